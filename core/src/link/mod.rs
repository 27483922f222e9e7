//! Lone requests in datagrams: small reads that someone waits for, so that a lost packet costs a
//! fraction of a round trip and not a probe timeout.
//!
//! [`Asker`] is the host's side, [`Answerer`] the store's; [`Packet`] is what they exchange. A reply
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

mod answerer;
mod asker;
mod budget;
mod packet;
#[cfg(test)]
mod tests;

pub use answerer::{AnswerCounters, Answerer};
pub use asker::{AskCounters, Asker, Output};
pub use packet::{Packet, Part, REQUEST_BYTES_MAX};

use crate::block::SECTOR_BYTES;
use crate::wire::link::{MAX_READ_SECTORS, RequestId, ToHost, ToStore};

/// Longest read that is asked for in a datagram, in sectors (32 KiB).
pub const MAX_SECTORS: u64 = 64;
/// Largest reply that is cut into parts, as an encoded frame, in bytes. One that is larger, because
/// each sector came from another record, goes by stream.
pub const MAX_REPLY_BYTES: usize = 64 << 10;
/// Most data parts of a reply; what has arrived of them, and the parity, are bits of a `u64`.
pub const MAX_PARTS: usize = 63;
/// Most requests of a host that are under way in datagrams; the rest goes by stream.
pub const MAX_CALLS: usize = 32;
/// Most bytes that those may ask for.
pub const MAX_ASKED_BYTES: u64 = 256 << 10;
/// Bytes sent redundantly per thousand bytes that datagrams carry either way: for parts of parity at
/// the store, and for requests sent twice at the host.
pub const REDUNDANT_PER_MILLE: u64 = STORE_PER_MILLE + HOST_PER_MILLE;
const STORE_PER_MILLE: u64 = 132;
const HOST_PER_MILLE: u64 = 18;
/// What a datagram costs on the wire beyond its bytes: IPv4 and UDP 28, QUIC's header, tag and frame
/// about 35.
const PACKET_BYTES: u64 = 63;

const _: () = assert!(MAX_SECTORS <= MAX_READ_SECTORS && MAX_SECTORS * SECTOR_BYTES <= 32 << 10);

/// Requests that may be lone: they change nothing, and their replies are small.
#[must_use]
pub fn may_be_lone(message: &ToStore) -> bool {
    match message {
        ToStore::Read { range, .. } | ToStore::ReadBehind { range, .. } => {
            (1..=MAX_SECTORS).contains(&range.sectors)
        }
        ToStore::Status { .. } => true,
        _ => false,
    }
}

/// The number of a lone request.
fn request_of(message: &mut ToStore) -> Option<&mut RequestId> {
    match message {
        ToStore::Read { request, .. }
        | ToStore::ReadBehind { request, .. }
        | ToStore::Status { request, .. } => Some(request),
        _ => None,
    }
}

/// The request that a reply to a lone request names.
fn answered_by(message: &mut ToHost) -> Option<&mut RequestId> {
    match message {
        ToHost::Data { request, .. } | ToHost::Status { request, .. } => Some(request),
        _ => None,
    }
}
