//! An iSCSI initiator that can do everything right and everything wrong: the other end of the wire
//! for tests of the target.
//!
//! It knows RFC 7143 and nothing of longhaul. It builds, parses and digests headers with its own
//! code, so that a mistake in the target's own encoding does not repeat here. It is synchronous,
//! over one `TcpStream` per connection, and in layers, each of which a test may leave or bend:
//!
//! - [`pdu`]: a PDU as 48 bytes with names for its fields. It checks nothing on the way out, except
//!   for the two lengths that are right unless a test sets them.
//! - [`connection`]: PDUs in and out of a socket, digests, the target's status numbers.
//! - [`login`]: logins with any keys, stages and identities, and CHAP.
//! - [`session`]: connections, command numbers and tags; commands from one end to the other. It
//!   checks the target's duties on the way: numbers, offsets, bursts, residuals.
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
