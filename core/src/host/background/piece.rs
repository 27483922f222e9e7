//! The size of the pieces in which background work reads and writes a volume.

use crate::block::{BLOCK_SECTORS, SECTOR_BYTES};

/// Longest piece, in sectors (256 KiB).
pub(super) const PIECE: u64 = 512;
/// A written piece is at most this part of the journal's capacity.
const PIECES_OF_JOURNAL: u64 = 16;

/// Longest piece to write, in sectors, into a journal of that capacity whose longest record has
/// `longest` sectors.
pub(in crate::host) fn piece_sectors(capacity_bytes: u64, longest: u64) -> u64 {
    let most = PIECE.min(longest).min(capacity_bytes / PIECES_OF_JOURNAL / SECTOR_BYTES);
    (most / BLOCK_SECTORS * BLOCK_SECTORS).max(BLOCK_SECTORS)
}
