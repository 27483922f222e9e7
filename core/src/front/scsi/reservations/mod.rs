//! Reservations of the logical unit: persistent reservations (SPC-5) and, for older hosts, RESERVE
//! and RELEASE (SPC-2 §5.5.1). If the number of a clause of SPC-5 differs between its revisions,
//! the comments cite its title.
//!
//! The reservations promise:
//!
//! - a reservation binds all other nexuses from the answer to its command on;
//! - registrations outlive nexuses. They outlive power loss if an initiator asked for that (APTPL);
//!   then the answer to a command waits for its save;
//! - the number of registrations and the memory of waiting commands stay within
//!   [`MAX_REGISTRATIONS`], [`MAX_PARAMETER_BYTES`] and [`MAX_WAITING`].
//!
//! They know the names of tasks, the fields of sense data, and that storage can fail. They know
//! nothing else of these.
//!
//! # Use
//!
//! Call [`Reservations::restore`] with the saved bytes. If they cannot be read, call
//! [`Reservations::lost`]. Report every nexus that comes and goes. For a command:
//!
//! 1. Before it starts, call [`Reservations::check`] with its [`ConflictClass`]; `Err` is the
//!    answer. This includes INQUIRY and similar commands, which pass, but not the reservation
//!    commands.
//! 2. Answer PERSISTENT RESERVE IN with [`Reservations::handle_in`]. Answer RESERVE and RELEASE, 6
//!    and 10, with [`Reservations::handle_reserve`] and [`Reservations::handle_release`].
//! 3. For PERSISTENT RESERVE OUT, [`Reservations::begin_out`] gives the length of the parameter
//!    list to collect. Hand it in with [`Reservations::handle_out`]. A [`ReservationOutput::Done`]
//!    is the answer.
//!
//! After any `handle_*`, take everything from [`Reservations::poll_output`] and act on it in that
//! order. Unit attentions and aborts come before the `Done` of the command that caused them.
//!
//! If a task ends before its `Done`, call [`Reservations::handle_abort`]. That drops a command that
//! only waited. A command whose save is under way still takes effect; ignore its `Done`. A logical
//! unit reset is [`Reservations::handle_reset`] after the aborts. Persistent reservations survive
//! it.

mod class;
mod commands;
mod evaluate;
mod machine;
mod refusal;
mod report;
mod saved;
mod state;
mod transport;

#[cfg(test)]
mod tests;

pub use class::ConflictClass;
pub use machine::{MAX_WAITING, ReservationOutput, Reservations};
pub use refusal::{FieldPointer, ReservationRefusal};
pub use saved::RestoreError;
pub use state::{
    MAX_PARAMETER_BYTES, MAX_PORT_BYTES, MAX_REGISTRATIONS, ReservationType, attention,
};
