//! The free blocks of a device.

use super::format::{Extent, MAX_EXTENTS};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The free blocks, in runs as long as possible.
#[derive(Debug, Default)]
pub struct Space {
    /// First block → number of blocks.
    runs: BTreeMap<u64, u64>,
    /// The same as (number of blocks, first block).
    by_length: BTreeSet<(u64, u64)>,
    free: u64,
}

impl Space {
    /// Makes all of these blocks free.
    pub fn new(blocks: Range<u64>) -> Space {
        let mut space = Space::default();
        space.insert(blocks.start, blocks.end - blocks.start);
        space.free = blocks.end - blocks.start;
        space
    }

    /// Number of free blocks.
    pub fn free_blocks(&self) -> u64 {
        self.free
    }

    fn insert(&mut self, start: u64, blocks: u64) {
        if blocks > 0 {
            self.runs.insert(start, blocks);
            self.by_length.insert((blocks, start));
        }
    }

    fn remove(&mut self, start: u64, blocks: u64) {
        self.runs.remove(&start);
        self.by_length.remove(&(blocks, start));
    }

    /// Takes `blocks` blocks. If one run is long enough, they are in one piece, else in the longest
    /// runs. `None` if too few are free, or only in too many pieces.
    pub fn allocate(&mut self, blocks: u64) -> Option<Vec<Extent>> {
        if blocks > self.free {
            return None;
        }
        let (mut extents, mut left) = (Vec::new(), blocks);
        while left > 0 {
            let enough = self.by_length.range((left, 0)..).next().copied();
            let run = enough.or_else(|| self.by_length.last().copied());
            let (length, start) = run.filter(|_| extents.len() < MAX_EXTENTS).or_else(|| {
                self.free_all(&extents);
                extents.clear();
                None
            })?;
            // An extent counts its blocks in 32 bits.
            let take = length.min(left).min(u32::MAX.into());
            self.remove(start, length);
            self.insert(start + take, length - take);
            self.free -= take;
            extents.push(Extent { block: start, blocks: take as u32 });
            left -= take;
        }
        Some(extents)
    }

    /// Takes these blocks. If some are not free, takes none and returns false.
    pub fn take(&mut self, extent: Extent) -> bool {
        let (first, count) = (extent.block, u64::from(extent.blocks));
        let Some((&start, &blocks)) = self.runs.range(..=first).next_back() else { return false };
        let (end, after) = (start + blocks, first + count);
        if end < after {
            return false;
        }
        self.remove(start, blocks);
        self.insert(start, first - start);
        self.insert(after, end - after);
        self.free -= count;
        true
    }

    /// Frees these blocks.
    pub fn free_all(&mut self, extents: &[Extent]) {
        for extent in extents {
            let (mut start, mut blocks) = (extent.block, u64::from(extent.blocks));
            self.free += blocks;
            if let Some((&before, &length)) = self.runs.range(..start).next_back()
                && before + length == start
            {
                self.remove(before, length);
                (start, blocks) = (before, blocks + length);
            }
            if let Some(&length) = self.runs.get(&(start + blocks)) {
                self.remove(start + blocks, length);
                blocks += length;
            }
            self.insert(start, blocks);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn in_one_piece_if_there_is_one() {
        let mut space = Space::new(10..110);
        let pieces: Vec<_> = (0..10).map(|_| space.allocate(10).unwrap()).collect();
        assert_eq!(space.allocate(1), None);
        for piece in [1, 3, 4, 7] {
            assert_eq!(pieces[piece], [Extent { block: 10 + 10 * piece as u64, blocks: 10 }]);
            space.free_all(&pieces[piece]);
        }
        assert_eq!(space.allocate(15).unwrap(), [Extent { block: 40, blocks: 15 }]);
        assert_eq!(space.allocate(26), None);
        assert_eq!(space.allocate(25).unwrap().len(), 3);
        assert_eq!(space.free_blocks(), 0);
    }

    #[test]
    fn what_is_scattered_too_much_is_left_alone() {
        let mut space = Space::new(0..1000);
        let pieces: Vec<_> = (0..1000).map(|_| space.allocate(1).unwrap()).collect();
        pieces.iter().step_by(2).for_each(|piece| space.free_all(piece));
        assert_eq!(space.free_blocks(), 500);
        assert_eq!(space.allocate(MAX_EXTENTS as u64 + 1), None);
        assert_eq!(space.free_blocks(), 500);
        assert_eq!(space.allocate(MAX_EXTENTS as u64).unwrap().len(), MAX_EXTENTS);
    }

    proptest! {
        #[test]
        fn no_block_is_given_out_twice(sizes in prop::collection::vec((0_u64..40, 0_usize..8), 1..200)) {
            let mut space = Space::new(5..305);
            let mut given: Vec<Vec<Extent>> = Vec::new();
            for (size, back) in sizes {
                if back < given.len() {
                    space.free_all(&given.swap_remove(back));
                }
                given.extend(space.allocate(size));
                let mut blocks: Vec<u64> = given
                    .iter()
                    .flatten()
                    .flat_map(|extent| extent.block..extent.block + u64::from(extent.blocks))
                    .collect();
                blocks.sort_unstable();
                prop_assert!(blocks.iter().all(|block| (5..305).contains(block)));
                prop_assert!(blocks.windows(2).all(|pair| pair[0] < pair[1]));
                prop_assert_eq!(space.free_blocks(), 300 - blocks.len() as u64);
                // The same space, built from the taken blocks.
                let mut again = Space::new(5..305);
                prop_assert!(given.iter().flatten().all(|extent| again.take(*extent)));
                prop_assert_eq!(&again.runs, &space.runs);
                prop_assert_eq!(&again.by_length, &space.by_length);
                prop_assert!(given.iter().flatten().all(|extent| !again.take(*extent)));
            }
        }
    }
}
