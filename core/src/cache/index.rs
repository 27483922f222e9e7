//! Which lines are in the cache, where, and which go when others come.
//!
//! A line is four blocks of 4 KiB. A line can only be in one of the 63 slots of its set, so that an
//! entry needs no pointers: 15 bytes for 16 KiB. Neighbouring lines belong to neighbouring sets,
//! which spreads what lies together evenly.
//!
//! Replacement is S3-FIFO (Yang et al., SOSP 2023) within a set: new lines are on probation in a
//! small queue, a tenth of the set, and stay if they are used again; the rest is a FIFO with second
//! chances; lines that left the small queue unused are remembered for a while as ghosts. Slots keep
//! their place, so both queues are hands that go round the set. What is pinned keeps its slot. What
//! is admitted at all, and what is pinned, is decided by [`super::Cache`]. It knows nothing of
//! disks and formats.

/// Blocks of a line.
pub const LINE_BLOCKS: u64 = 4;
/// Most slots of a set.
pub const WAYS_MAX: usize = 63;

const FREE: u32 = u32::MAX;
const VALID: u8 = 0x0f;
const USES: u8 = 0x30;
const USE: u8 = 0x10;
const MAIN: u8 = 0x40;
/// In memory only: on disk what is pinned is kept elsewhere.
const PINNED: u8 = 0x80;

/// A slot: number of the set times the slots of a set, plus the way.
pub type Slot = usize;

/// How a line comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rank {
    /// Nothing is known of it.
    Probation,
    /// It is of use.
    Main,
    /// It stays.
    Pinned,
}

/// What an entry says on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// Number of the line divided by the number of sets; `u32::MAX` if the slot is free.
    pub tag: u32,
    /// Of each block: the low half of the stamp it was written with, or 0 for zeroes.
    pub stamps: [u16; LINE_BLOCKS as usize],
    /// Valid blocks, uses, queue.
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
    /// Fingerprints, as many as slots; 0 is none.
    ghosts: Vec<u16>,
    hands: Vec<Hands>,
    free: usize,
    valid_blocks: u64,
    /// Of these, blocks of pinned lines.
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

    /// Valid blocks of lines that are pinned.
    pub fn pinned_blocks(&self) -> u64 {
        self.pinned_blocks
    }

    /// Whether the line in a slot is pinned.
    pub fn is_pinned(&self, slot: Slot) -> bool {
        self.states[slot] & PINNED != 0
    }

    /// The line in a slot is pinned from now on, or is not.
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

    /// The slot of a line that is here, with or without valid blocks.
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

    /// Blocks of the line that are valid, a bit each.
    pub fn valid(&self, slot: Slot) -> u8 {
        self.states[slot] & VALID
    }

    /// The line was of use.
    pub fn touch(&mut self, slot: Slot) {
        let state = &mut self.states[slot];
        if *state & USES != USES {
            *state += USE;
        }
    }

    /// The block is valid from now on.
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

    /// These blocks are not valid any more; true if any was.
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

    /// Whether the line's set has a slot that is free.
    pub fn has_room(&self, line: u64) -> bool {
        let (set, _) = self.place(line);
        self.tags[set * self.ways..(set + 1) * self.ways].contains(&FREE)
    }

    /// Whether a line was let go, or turned away, not long ago; forgets it.
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

    /// Remembers a line that is not here.
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

    /// A slot for a line that is not here, and whether another line had to go for it. Slots that
    /// are `busy` or pinned stay. `None` if all have to stay.
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

    /// Chooses who goes.
    fn evict(&mut self, set: usize, busy: impl Fn(Slot) -> bool) -> Option<Slot> {
        let start = set * self.ways;
        // What holds nothing goes first.
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
        // Each pass takes a use from a line that stays: four passes and one more are enough.
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

    /// Puts an entry that was read from disk into an empty slot.
    pub fn restore(&mut self, slot: Slot, entry: IndexEntry) {
        // Of two entries for a line, one may be old.
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
    // The high bits of a product with an odd number near 2^64 divided by the golden ratio.
    ((line.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u16).max(1)
}
