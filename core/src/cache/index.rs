//! The index of a cache: the lines that it holds, their slots, and the order of eviction.
//!
//! A line is four blocks of 4 KiB. A line can only be in one of the 63 slots of its set. So an
//! entry needs no pointers: it takes 15 bytes for 16 KiB. Neighboring lines belong to neighboring
//! sets, which spreads them evenly.
//!
//! Replacement is S3-FIFO (Yang et al., SOSP 2023) within a set. New lines are on probation in a
//! small queue, a tenth of the set. They stay if they are used again. The rest of the set is a FIFO
//! with second chances. The index remembers lines that left the small queue unused for a while, as
//! ghosts. Slots keep their place, so both queues are hands that go round the set. Pinned lines
//! keep their slots. [`super::Cache`] decides which lines to admit and to pin. The index knows
//! nothing of disks and formats.

use crate::block::{BLOCK_BYTES, BLOCK_SECTORS};

/// Blocks of a line.
pub const LINE_BLOCKS: u64 = 4;
/// Bytes of a line: what is admitted and evicted together.
pub const LINE_BYTES: u64 = LINE_BLOCKS * BLOCK_BYTES;
/// Sectors of a line.
pub const LINE_SECTORS: u64 = LINE_BLOCKS * BLOCK_SECTORS;
/// Most slots of a set.
pub const WAYS_MAX: usize = 63;

const FREE: u32 = u32::MAX;
const VALID: u8 = 0x0f;
const USES: u8 = 0x30;
const USE: u8 = 0x10;
const MAIN: u8 = 0x40;
/// In memory only: the file does not say which lines are pinned.
const PINNED: u8 = 0x80;

/// A slot: the number of its set times the slots of a set, plus its number in the set (the way).
pub type Slot = usize;

/// The queue that a new line joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rank {
    /// The cache has not seen the line before.
    Probation,
    /// The line has been of use.
    Main,
    /// The line keeps its slot.
    Pinned,
}

/// The entry of a slot, as the file holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// Number of the line divided by the number of sets; `u32::MAX` if the slot is free.
    pub tag: u32,
    /// For each block, the low half of the stamp of its write, or 0 for zeroes.
    pub stamps: [u16; LINE_BLOCKS as usize],
    /// Bits: the valid blocks, the number of uses, the queue.
    pub state: u8,
}

#[derive(Clone, Copy, Debug, Default)]
struct Hands {
    small: u8,
    main: u8,
    ghost: u8,
}

/// The index of one cache.
#[derive(Clone, Debug)]
pub struct Index {
    sets: usize,
    ways: usize,
    tags: Vec<u32>,
    stamps: Vec<[u16; LINE_BLOCKS as usize]>,
    states: Vec<u8>,
    /// Fingerprints of lines that left. As many as slots; 0 is none.
    ghosts: Vec<u16>,
    hands: Vec<Hands>,
    free: usize,
    valid_blocks: u64,
    /// The part of the valid blocks that belongs to pinned lines.
    pinned_blocks: u64,
}

impl Index {
    /// An empty index.
    pub fn new(sets: u32, ways: usize) -> Index {
        let sets = sets as usize;
        let slots = sets * ways;
        Index {
            sets,
            ways,
            tags: vec![FREE; slots],
            stamps: vec![[0; LINE_BLOCKS as usize]; slots],
            states: vec![0; slots],
            ghosts: vec![0; slots],
            hands: vec![Hands::default(); sets],
            free: slots,
            valid_blocks: 0,
            pinned_blocks: 0,
        }
    }

    pub fn slots(&self) -> usize {
        self.tags.len()
    }

    pub fn free(&self) -> usize {
        self.free
    }

    pub fn valid_blocks(&self) -> u64 {
        self.valid_blocks
    }

    /// Number of valid blocks of pinned lines.
    pub fn pinned_blocks(&self) -> u64 {
        self.pinned_blocks
    }

    /// Whether the line in a slot is pinned.
    pub fn is_pinned(&self, slot: Slot) -> bool {
        self.states[slot] & PINNED != 0
    }

    /// Pins the line in a slot, or unpins it.
    pub fn pin(&mut self, slot: Slot, pinned: bool) {
        if self.is_pinned(slot) == pinned {
            return;
        }
        let blocks = u64::from(self.valid(slot).count_ones());
        if pinned {
            self.states[slot] |= PINNED | MAIN;
            self.pinned_blocks += blocks;
        } else {
            self.states[slot] &= !PINNED;
            self.pinned_blocks -= blocks;
        }
    }

    fn place(&self, line: u64) -> (usize, Option<u32>) {
        let sets = self.sets as u64;
        let tag = u32::try_from(line / sets).ok().filter(|tag| *tag != FREE);
        ((line % sets) as usize, tag)
    }

    /// The slot of a line, if the index holds the line, with or without valid blocks.
    pub fn find(&self, line: u64) -> Option<Slot> {
        let (set, tag) = self.place(line);
        let tag = tag?;
        let start = set * self.ways;
        let way = self.tags[start..start + self.ways].iter().position(|other| *other == tag)?;
        Some(start + way)
    }

    /// The line in a slot.
    pub fn line(&self, slot: Slot) -> Option<u64> {
        let tag = self.tags[slot];
        (tag != FREE).then(|| u64::from(tag) * self.sets as u64 + (slot / self.ways) as u64)
    }

    /// The stamp of a block of a line, if it is valid.
    pub fn stamp(&self, slot: Slot, block: u64) -> Option<u16> {
        (self.states[slot] & (1 << block) != 0).then(|| self.stamps[slot][block as usize])
    }

    /// The valid blocks of the line, a bit each.
    pub fn valid(&self, slot: Slot) -> u8 {
        self.states[slot] & VALID
    }

    /// Counts a use of the line.
    pub fn touch(&mut self, slot: Slot) {
        let state = &mut self.states[slot];
        if *state & USES != USES {
            *state += USE;
        }
    }

    /// Makes the block valid.
    pub fn set(&mut self, slot: Slot, block: u64, stamp: u16) {
        let bit = 1 << block;
        let added = u64::from(self.states[slot] & bit == 0);
        self.valid_blocks += added;
        if self.is_pinned(slot) {
            self.pinned_blocks += added;
        }
        self.states[slot] |= bit;
        self.stamps[slot][block as usize] = stamp;
    }

    /// Makes these blocks invalid. True if any was valid.
    pub fn clear(&mut self, slot: Slot, blocks: u8) -> bool {
        let gone = self.states[slot] & VALID & blocks;
        self.states[slot] &= !gone;
        let lost = u64::from(gone.count_ones());
        self.valid_blocks -= lost;
        if self.is_pinned(slot) {
            self.pinned_blocks -= lost;
        }
        gone != 0
    }

    /// Whether the line's set has a free slot.
    pub fn has_room(&self, line: u64) -> bool {
        let (set, _) = self.place(line);
        self.tags[set * self.ways..(set + 1) * self.ways].contains(&FREE)
    }

    /// Whether the index let this line go, or the cache turned it away, not long ago. Forgets it.
    pub fn take_ghost(&mut self, line: u64) -> bool {
        let (set, _) = self.place(line);
        let print = fingerprint(line);
        let ghosts = &mut self.ghosts[set * self.ways..(set + 1) * self.ways];
        match ghosts.iter_mut().find(|ghost| **ghost == print) {
            Some(ghost) => {
                *ghost = 0;
                true
            }
            None => false,
        }
    }

    /// Remembers a line that the index does not hold.
    pub fn add_ghost(&mut self, line: u64) {
        let (set, _) = self.place(line);
        let print = fingerprint(line);
        let hand = &mut self.hands[set].ghost;
        let ghosts = &mut self.ghosts[set * self.ways..(set + 1) * self.ways];
        if !ghosts.contains(&print) {
            ghosts[usize::from(*hand)] = print;
            *hand = (*hand + 1) % self.ways as u8;
        }
    }

    /// Finds a slot for a new line. Also returns whether another line had to go for it. Lines that
    /// are `busy` or pinned stay. `None` if all lines of the set have to stay.
    pub fn admit(
        &mut self,
        line: u64,
        rank: Rank,
        busy: impl Fn(Slot) -> bool,
    ) -> Option<(Slot, bool)> {
        let (set, tag) = self.place(line);
        let tag = tag?;
        let start = set * self.ways;
        let free = self.tags[start..start + self.ways].iter().position(|other| *other == FREE);
        let (slot, evicted) = match free {
            Some(way) => {
                self.free -= 1;
                (start + way, false)
            }
            None => {
                let slot = self.evict(set, busy)?;
                (slot, self.states[slot] & VALID != 0)
            }
        };
        self.clear(slot, VALID);
        self.tags[slot] = tag;
        self.states[slot] = match rank {
            Rank::Probation => 0,
            Rank::Main => MAIN,
            Rank::Pinned => MAIN | PINNED,
        };
        Some((slot, evicted))
    }

    /// Chooses the line to evict.
    fn evict(&mut self, set: usize, busy: impl Fn(Slot) -> bool) -> Option<Slot> {
        let start = set * self.ways;
        // Slots without valid blocks go first.
        let empty = |slot: &Slot| self.states[*slot] & (VALID | PINNED) == 0 && !busy(*slot);
        if let Some(slot) = (start..start + self.ways).find(empty) {
            return Some(slot);
        }
        let pinned = (start..start + self.ways).filter(|slot| self.is_pinned(*slot)).count();
        let quota = ((self.ways - pinned) / 10).max(1);
        let small =
            (start..start + self.ways).filter(|slot| self.states[*slot] & MAIN == 0).count();
        let mut left = small;
        let from_small = small >= quota;
        // Each pass takes one use from each line that stays. So four passes and one more are
        // enough.
        for step in 0..6 * self.ways {
            let probation = from_small && left > 0 || step >= 5 * self.ways;
            let hands = &mut self.hands[set];
            let hand = if probation { &mut hands.small } else { &mut hands.main };
            let slot = start + usize::from(*hand);
            *hand = (*hand + 1) % self.ways as u8;
            let state = self.states[slot];
            if state & PINNED != 0 || busy(slot) || (state & MAIN == 0) != probation {
                continue;
            }
            if probation {
                left = left.saturating_sub(1);
                if state & USES == 0 {
                    if let Some(line) = self.line(slot) {
                        self.add_ghost(line);
                    }
                    return Some(slot);
                }
                self.states[slot] = (state & !USES) | MAIN;
            } else if state & USES == 0 {
                return Some(slot);
            } else {
                self.states[slot] -= USE;
            }
        }
        None
    }

    /// The entry of a slot.
    pub fn entry(&self, slot: Slot) -> IndexEntry {
        let state = self.states[slot] & !PINNED;
        IndexEntry { tag: self.tags[slot], stamps: self.stamps[slot], state }
    }

    /// Puts an entry from the file into an empty slot.
    pub fn restore(&mut self, slot: Slot, entry: IndexEntry) {
        // If the file has two entries for a line, one may be old.
        let set = slot / self.ways;
        let twice = self.tags[set * self.ways..(set + 1) * self.ways].contains(&entry.tag);
        if entry.tag == FREE || twice || self.tags[slot] != FREE {
            return;
        }
        self.tags[slot] = entry.tag;
        self.stamps[slot] = entry.stamps;
        self.states[slot] = entry.state & (VALID | USES | MAIN);
        self.free -= 1;
        self.valid_blocks += u64::from((entry.state & VALID).count_ones());
    }
}

/// Never 0.
fn fingerprint(line: u64) -> u16 {
    // The high bits of a product with an odd number near 2^64 / φ, the golden ratio.
    ((line.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u16).max(1)
}
