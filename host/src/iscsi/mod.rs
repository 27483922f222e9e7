//! The iSCSI target: sockets, volumes and the clock around the target machine.
//!
//! Promises: the turn that reads a command also answers it, if the command needs no I/O. Responses
//! of a turn leave in one write. The target does not read from an initiator that does not read. It
//! drops one that dawdles in the login. Connections without a login have places of their own, of
//! which the oldest give way, so they keep nobody out. The target knows volumes only through
//! [`Volumes`], and initiators' rights through [`access`].
//!
//! # Turns
//!
//! All connections share one `Target`. After each input (of a socket, an engine's reply, a timer)
//! `IscsiServer::act` carries out the target's events until none is left. An engine may reply at
//! once, so `act` may be entered while it runs. Then the inner call only returns, and the outer one
//! goes on.

pub mod access;
mod connection;
mod counters;
mod input;
mod listen;
mod server;
mod sessions;
#[cfg(test)]
mod tests;

pub use access::{
    ConfiguredAccess, InitiatorChange, InitiatorRights, InitiatorRightsReport, config_table,
    new_token,
};
pub use connection::{IscsiConnection, MovedIscsi};
pub use counters::Counters;
pub use listen::Portal;
pub use server::{
    IscsiHome, IscsiPlaces, IscsiServer, OpenedVolume, ReservationError, Volumes, config,
};
pub use sessions::SessionReport;
