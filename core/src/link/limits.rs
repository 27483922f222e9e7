//! Limits of the requests in datagrams and of their replies.

use crate::block::SECTOR_BYTES;
use crate::wire::link::MAX_READ_SECTORS;

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
pub(super) const STORE_PER_MILLE: u64 = 132;
pub(super) const HOST_PER_MILLE: u64 = 18;
/// What a datagram costs on the wire beyond its bytes: IPv4 and UDP 28, QUIC's header, tag and frame
/// about 35.
pub(super) const PACKET_BYTES: u64 = 63;

const _: () = assert!(MAX_SECTORS <= MAX_READ_SECTORS && MAX_SECTORS * SECTOR_BYTES <= 32 << 10);
