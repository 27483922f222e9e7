//! Requests in datagrams: small urgent reads, so that a lost packet costs a fraction of a round
//! trip and not a probe timeout.
//!
//! [`DatagramClient`] is the host's end, [`DatagramServer`] the store's; they exchange a
//! [`Packet`]. The server cuts a reply into parts and adds one of parity, so that the path may lose
//! any one of them. The client asks for further missing parts by name. If datagrams bring no reply
//! soon, the caller has to send the request by stream.
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
