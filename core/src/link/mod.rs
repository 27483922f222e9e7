//! Requests in datagrams: small reads that someone waits for, so that a lost packet costs a
//! fraction of a round trip and not a probe timeout.
//!
//! [`DatagramClient`] is the host's side, [`DatagramServer`] the store's; [`Packet`] is what they exchange. A reply
//! is cut into parts with one of parity, so that any one of them may be lost; what is still missing is
//! asked for by name. What datagrams do not bring soon the caller has to send by stream.
//!
//! Promises: a request that goes in comes out exactly once, as a reply or as a request for the stream;
//! a reply is of one execution, never put together from two; at most [`REDUNDANT_PER_MILLE`] of the
//! bytes are redundant; memory is bounded by the constants here. It does not promise that the store
//! executes a request once: only requests that change nothing are taken.
//!
//! Why a read may be answered from any moment between its being asked and its answer, and so from any
//! of several executions, is said in `host/volume/reading.rs`.

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
