//! The target side of iSCSI: bytes of connections in, block requests out, replies back as bytes.
//!
//! The target promises, whatever initiators send:
//!
//! - it never panics, and holds no more memory than its [`Config`] allows;
//! - it stays in step with each stream, or closes the connection;
//! - its behavior depends on the bytes, not on how they were cut into reads.
//!
//! The memory of a session is `session_bytes`, and the payload of one command beyond. Each of its
//! `commands` may hold `first_burst` of unsolicited data and one data segment. Each connection may
//! hold 1 MiB of output beyond that. A payload also keeps the rest of the buffer alive that it was
//! split from.
//!
//! The target knows nothing of sockets, nor of what is behind a volume. It leaves SCSI to
//! [`scsi`](crate::front::scsi), which knows nothing of connections, numbers and buffers.
//!
//! `framing` finds PDUs in the stream. [`login`] and `login_connection` take a connection to its
//! session. `session` handles its requests, `command_order` puts them in order, `commands` and
//! `collect` move their data, `management` ends them, and `recovery` sends PDUs again. `connection`
//! numbers the PDUs that go out. `sessions`, `devices` and `copies` hold the state of a target, and
//! `target` routes between them.
//!
//! Sources: RFC 7143, and RFC 7144 as far as Linux uses it. `docs/iscsi.md` lists the decisions
//! that the standards leave to a target.

mod access;
mod chap;
mod collect;
mod command_order;
mod commands;
mod config;
mod connection;
mod copies;
mod counters;
mod devices;
mod event;
pub mod exchange;
mod failures;
mod foreign;
mod framing;
mod functions;
mod identity;
mod keys;
pub mod login;
mod login_connection;
mod management;
pub mod name;
mod parameters;
mod recovery;
mod session;
mod sessions;
mod target;
mod tasks;
pub mod text;

#[cfg(test)]
mod tests;

pub use access::{Access, Grant};
pub use config::{Config, PORTAL_GROUP, Secret};
pub use counters::Counters;
pub use event::{CloseReason, Event, OpenError};
pub use foreign::{Asker, CopyAnswer, CopyId, CopyMessage, CopyQuestion, TargetId, UnitFacts};
pub use identity::{ConnectionId, DeviceId, Identity, Peer, SessionInfo};
pub use login_connection::MovedLogin;
pub use name::TARGET_PREFIX;
pub use parameters::{Parameters, TaskReporting};
pub use target::Target;

// Tests of the transport need a device that waits and fails on demand.
#[cfg(not(test))]
use crate::front::scsi::Device;
#[cfg(test)]
use tests::device::Device;
