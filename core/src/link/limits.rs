//! Limits of the requests in datagrams and of their replies.

use crate::block::SECTOR_BYTES;
use crate::wire::link::MAX_READ_SECTORS;

/// Longest read in a datagram, in sectors (32 KiB).
pub const MAX_SECTORS: u64 = 64;
/// Largest reply in parts, as an encoded frame, in bytes. A larger one goes by stream. It occurs if
/// each sector comes from another record.
pub const MAX_REPLY_BYTES: usize = 64 << 10;
/// Most data parts of a reply; what has arrived of them, and the parity, are bits of a `u64`.
pub const MAX_PARTS: usize = 63;
/// Most requests of a host that are under way in datagrams; the rest goes by stream.
pub const MAX_CALLS: usize = 32;
/// Most bytes that those may ask for.
pub const MAX_ASKED_BYTES: u64 = 256 << 10;
/// Redundant bytes for each thousand bytes that datagrams carry either way. The store spends them
/// on parity, and the host on requests that it sends twice.
pub const REDUNDANT_PER_MILLE: u64 = STORE_PER_MILLE + HOST_PER_MILLE;
pub(super) const STORE_PER_MILLE: u64 = 132;
pub(super) const HOST_PER_MILLE: u64 = 18;
/// The cost of a datagram on the wire beyond its bytes: IPv4 and UDP 28, QUIC's header, tag and
/// frame about 35.
pub(super) const PACKET_BYTES: u64 = 63;

const _: () = assert!(MAX_SECTORS <= MAX_READ_SECTORS && MAX_SECTORS * SECTOR_BYTES <= 32 << 10);
