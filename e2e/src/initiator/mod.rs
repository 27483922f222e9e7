//! An iSCSI initiator that can do everything right and everything wrong: the other end of the wire for
//! tests of the target.
//!
//! It knows RFC 7143 and nothing of longhaul: headers are put together, taken apart and digested here
//! once more, so that a mistake in the target's own encoding is not mirrored. It is synchronous, over
//! one `TcpStream` per connection, and in layers, each of which a test may leave or bend:
//!
//! - [`pdu`]: a PDU as 48 bytes with names for its fields. Nothing in it is checked or made consistent
//!   on the way out, but for the two lengths that are right unless they were set.
//! - [`connection`]: PDUs in and out of a socket, digests, the target's status numbers.
//! - [`login`]: logins with any keys, stages and identities, and CHAP.
//! - [`session`]: connections, command numbers and tags; commands from one end to the other. What the
//!   target must keep to is checked on the way: numbers, offsets, bursts, residuals.
//! - [`copy`]: commands by which units copy.
//!
//! It panics, as all of this crate, where the target breaks a rule.

pub mod connection;
pub mod copy;
pub mod crc;
pub mod login;
pub mod pdu;
pub mod session;

pub use connection::{Connection, Received};
pub use login::{Login, Refused};
pub use pdu::Pdu;
pub use session::{Outcome, Session};
