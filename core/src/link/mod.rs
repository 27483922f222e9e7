//! Requests in datagrams: small reads that someone waits for, so that a lost packet costs a
//! fraction of a round trip and not a probe timeout.
//!
//! [`DatagramClient`] is the host's side, [`DatagramServer`] the store's; [`Packet`] is what they exchange. A reply
//! is cut into parts with one of parity, so that any one of them may be lost; what is still missing is
//! asked for by name. What datagrams do not bring soon the caller has to send by stream.
//!
//! Promises:
//! - Each request that goes in comes out exactly once, as a reply or as a request for the stream.
//! - The parts of a reply come from one execution, never from two.
//! - At most [`REDUNDANT_PER_MILLE`] of the bytes are redundant.
//! - The constants here bound the memory.
//!
//! The store may execute a request more than once. So the client takes only requests that change
//! nothing.
//!
//! The answer to a read may come from any moment between the request and the answer, and so from
//! any of several executions. `host/volume/reading.rs` gives the reason.

mod budget;
mod datagram_client;
mod datagram_server;
mod limits;
mod packet;
mod request;
#[cfg(test)]
mod tests;

pub use datagram_client::{AskCounters, DatagramClient, Output};
pub use datagram_server::{AnswerCounters, DatagramServer};
pub use limits::{
    MAX_ASKED_BYTES, MAX_CALLS, MAX_PARTS, MAX_REPLY_BYTES, MAX_SECTORS, REDUNDANT_PER_MILLE,
};
pub use packet::{Packet, Part, REQUEST_BYTES_MAX};
pub use request::fits_datagram;
