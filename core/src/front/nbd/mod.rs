//! The server side of one NBD connection: bytes in, block requests out, replies back as bytes.
//!
//! The session promises, for any bytes that a client sends:
//!
//! - it never panics, and holds no more memory than its [`Limits`] allow;
//! - it hands out only requests that lie within the export and carry a payload of their length;
//! - it stays in step with the stream, or closes;
//! - its output depends on the bytes, not on how they were cut into reads. The one exception are
//!   bytes that arrive together with a `STARTTLS`, where the cut matters to security (see
//!   [`CloseReason::Violation`]).
//!
//! The session knows nothing of sockets, of TLS after the upgrade, or of the volume behind an
//! export. `docs/nbd.md` lists the decisions that the protocol leaves to a server.
//!
//! # Driving a session
//!
//! First write [`Session::poll_output`] (the greeting). Then repeat these steps:
//!
//! 1. While [`Session::wants_input`], read at least one byte into a `BytesMut` with room for
//!    [`Session::wanted`] bytes in total. Pass it to [`Session::handle_input`].
//! 2. Take every event with [`Session::poll_event`] and act on it.
//! 3. Write everything from [`Session::poll_output`].
//! 4. After an answer to an event or after output was taken, pass a buffer that is not empty to
//!    `handle_input` again. The session may be able to go on with it.
//!
//! The session has no time limit for the handshake. The shell closes connections that take too long
//! before [`Event::Ready`].

mod config;
mod contexts;
mod event;
mod export;
mod handshake;
mod phase;
mod reply;
mod session;
mod transmission;

#[cfg(test)]
mod tests;

pub use config::{Config, Inflight, Limits, Tls};
pub use event::{CloseReason, Event};
pub use export::{ExportEntry, ExportInfo, LookupError, LookupErrorKind};
pub use session::Session;
