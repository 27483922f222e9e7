//! Small types of the cache.

use super::blocks::block_range;
use crate::block::{BLOCK_BYTES, Range, ReadPiece, SECTOR_BYTES};

/// A block of an offer.
pub(super) enum OfferedBlock {
    Data(Vec<u8>),
    Zero,
}

/// The pieces of an offered range, in order.
pub(super) struct OfferedContent<'a> {
    pub(super) pieces: &'a [ReadPiece],
    /// The sector at which the first piece begins.
    pub(super) at: u64,
}

impl OfferedContent<'_> {
    /// The offered content of a block. Ask for blocks in ascending order.
    pub(super) fn block(&mut self, block: u64) -> Option<OfferedBlock> {
        let wanted = block_range(block);
        let mut data: Option<Vec<u8>> = None;
        let mut at = wanted.lba;
        while at < wanted.end() {
            let (piece, rest) = self.pieces.split_first()?;
            let sectors = match piece {
                ReadPiece::Data(data) => data.len() as u64 / SECTOR_BYTES,
                ReadPiece::Zeroes(sectors) => *sectors,
            };
            let range = Range::new(self.at, sectors);
            if range.end() <= at {
                (self.pieces, self.at) = (rest, range.end());
                continue;
            }
            let part = range.intersect(Range::between(at, wanted.end()))?;
            if let ReadPiece::Data(bytes) = piece {
                let whole = data.get_or_insert_with(|| vec![0; BLOCK_BYTES as usize]);
                let from = ((part.lba - range.lba) * SECTOR_BYTES) as usize;
                let to = ((part.lba - wanted.lba) * SECTOR_BYTES) as usize;
                let length = part.bytes() as usize;
                whole[to..to + length].copy_from_slice(&bytes[from..from + length]);
            }
            at = part.end();
        }
        Some(data.map_or(OfferedBlock::Zero, OfferedBlock::Data))
    }
}

/// A set of small numbers.
#[derive(Clone, Debug)]
pub(super) struct Bits {
    words: Vec<u64>,
    /// All words before this one are zero.
    from: usize,
}

impl Bits {
    pub(super) fn new(count: usize) -> Bits {
        Bits { words: vec![0; count.div_ceil(64)], from: 0 }
    }

    pub(super) fn set(&mut self, n: usize) {
        self.words[n / 64] |= 1 << (n % 64);
        self.from = self.from.min(n / 64);
    }

    /// Removes the least number and returns it.
    pub(super) fn pop(&mut self) -> Option<usize> {
        while let Some(word) = self.words.get_mut(self.from) {
            if *word != 0 {
                let bit = word.trailing_zeros() as usize;
                *word &= *word - 1;
                return Some(self.from * 64 + bit);
            }
            self.from += 1;
        }
        None
    }
}
