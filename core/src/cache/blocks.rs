//! Conversion between ranges and the blocks and lines that they touch.

use super::index::LINE_BLOCKS;
use crate::block::{BLOCK_SECTORS, Range};

/// The range of a block.
pub(super) fn block_range(block: u64) -> Range {
    Range::new(block * BLOCK_SECTORS, BLOCK_SECTORS)
}

/// The range of blocks in a row.
pub(super) fn blocks_range(blocks: &std::ops::Range<u64>) -> Range {
    Range::between(blocks.start * BLOCK_SECTORS, blocks.end * BLOCK_SECTORS)
}

/// The blocks that a range touches.
pub(super) fn blocks_touched(range: Range) -> std::ops::Range<u64> {
    range.lba / BLOCK_SECTORS..range.end().div_ceil(BLOCK_SECTORS)
}

/// The blocks of a line that a range touches, a bit each.
pub(super) fn line_blocks(line: u64, range: Range) -> u8 {
    let first = line * LINE_BLOCKS;
    (0..LINE_BLOCKS)
        .filter(|n| block_range(first + n).intersect(range).is_some())
        .fold(0, |bits, n| bits | 1 << n)
}
