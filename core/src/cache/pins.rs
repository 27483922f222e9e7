//! Pinned ranges. The cache takes all data of a pinned range that a client reads or writes, and
//! evicts none of it. It reports the pinned ranges that it lacks, so that the volume fetches them
//! again.
//!
//! Pinning does not change the blocks that the cache may give out: a write makes the cache forget a
//! pinned block too. If a set has more pinned lines than slots, it keeps the first ones.

use super::index::{LINE_BYTES, LINE_SECTORS};
use crate::block::{MAX_VOLUME_SECTORS, Range, SECTOR_BYTES};
use crate::extent::{RangeSet, Uniform};
use crate::ranges::{self, MAX_RANGES, RangesError};

const MAGIC: [u8; 8] = *b"LHPINNED";
/// Most ranges in the list of lacking ranges. Beyond that the list becomes all pinned ranges.
const LACKING_MAX: usize = 1 << 16;
const _: () = assert!(MAX_VOLUME_SECTORS.is_multiple_of(LINE_SECTORS));

/// The pinned ranges of a volume, in whole lines of 16 KiB: each line that a range touches.
#[derive(Clone, Debug, Default)]
pub struct Pins {
    set: RangeSet,
    sectors: u64,
}

impl Pins {
    /// Adds a range.
    pub fn add(&mut self, range: Range) {
        let range = whole_lines(range);
        self.sectors += range.sectors - self.held(range);
        self.set.insert(range, Uniform(()));
    }

    /// Removes a range.
    pub fn remove(&mut self, range: Range) {
        let range = whole_lines(range);
        self.sectors -= self.held(range);
        self.set.remove(range);
    }

    /// Bytes of all pinned ranges.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.sectors * SECTOR_BYTES
    }

    /// Whether the number of ranges is small enough to encode them.
    #[must_use]
    pub fn is_encodable(&self) -> bool {
        self.set.len() <= MAX_RANGES
    }

    /// The ranges in order; they do not touch each other.
    pub fn ranges(&self) -> impl Iterator<Item = Range> + '_ {
        self.set.iter_from(0).map(|(range, _)| range)
    }

    /// Encodes the ranges, in at most [`crate::ranges::MAX_ENCODED_BYTES`] if
    /// [`Pins::is_encodable`].
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let ranges: Vec<Range> = self.ranges().collect();
        ranges::encode(MAGIC, ranges.iter())
    }

    /// Decodes an encoding.
    ///
    /// # Errors
    /// If the bytes are no encoding, have a later version, or show damage.
    pub fn decode(bytes: &[u8]) -> Result<Pins, RangesError> {
        let mut pins = Pins::default();
        for range in ranges::decode(MAGIC, bytes)? {
            if range != whole_lines(range) {
                return Err(RangesError::Invalid);
            }
            pins.add(range);
        }
        // A set has one valid encoding: in order, with as few ranges as possible.
        if pins.encode() == bytes { Ok(pins) } else { Err(RangesError::Invalid) }
    }

    /// As much of it as `bytes` allow, from the start of the volume on.
    pub(super) fn cut(&mut self, bytes: u64) {
        let mut left = bytes / LINE_BYTES * LINE_SECTORS;
        if self.sectors <= left {
            return;
        }
        let mut kept = Pins::default();
        for range in self.ranges() {
            let part = Range::new(range.lba, range.sectors.min(left));
            if part.is_empty() {
                break;
            }
            left -= part.sectors;
            kept.add(part);
        }
        *self = kept;
    }

    /// Whether the set contains a line.
    pub(super) fn holds(&self, line: u64) -> bool {
        let lba = line * LINE_SECTORS;
        !self.set.is_empty() && self.set.overlapping(Range::new(lba, 1)).next().is_some()
    }

    /// Number of pinned sectors in a range.
    fn held(&self, range: Range) -> u64 {
        self.set.overlapping(range).map(|(part, _)| part.sectors).sum()
    }
}

/// Widens a range to whole lines.
pub(crate) fn whole_lines(range: Range) -> Range {
    let end = range.end().div_ceil(LINE_SECTORS) * LINE_SECTORS;
    Range::between(range.lba / LINE_SECTORS * LINE_SECTORS, end)
}

/// The pinned ranges of a volume, and those of them that the cache may lack.
#[derive(Debug, Default)]
pub(super) struct Pinned {
    pins: Pins,
    lacking: RangeSet,
}

impl Pinned {
    /// New pins, of which the cache may lack everything.
    pub(super) fn new(pins: Pins) -> Pinned {
        let lacking = pins.set.clone();
        Pinned { pins, lacking }
    }

    pub(super) fn pins(&self) -> &Pins {
        &self.pins
    }

    pub(super) fn lacking(&self) -> &RangeSet {
        &self.lacking
    }

    /// Notes that the cache may lack all of them.
    pub(super) fn lack_all(&mut self) {
        self.lacking.clone_from(&self.pins.set);
    }

    /// Notes that the cache may lack the pinned parts of a range.
    pub(super) fn lack(&mut self, range: Range) {
        if self.pins.set.is_empty() || range.is_empty() {
            return;
        }
        for (part, _) in self.pins.set.overlapping(whole_lines(range)) {
            self.lacking.insert(part, Uniform(()));
        }
        if self.lacking.len() > LACKING_MAX {
            self.lack_all();
        }
    }

    /// Takes a range off the lacking ones, because the volume fetches it now.
    pub(super) fn take_lacking(&mut self, range: Range) {
        self.lacking.remove(range);
    }

    /// Bytes of a range outside of the pins.
    pub(super) fn unpinned_bytes(&self, range: Range) -> u64 {
        (range.sectors - self.pins.held(range)) * SECTOR_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Rig, line};
    use super::*;
    use crate::block::Time;
    use crate::host::cache::Source;
    use proptest::prelude::*;

    fn pins(ranges: &[Range]) -> Pins {
        let mut pins = Pins::default();
        ranges.iter().for_each(|range| pins.add(*range));
        pins
    }

    proptest! {
        #[test]
        fn pins_come_out_as_they_went_in(
            steps in prop::collection::vec((any::<bool>(), 0..4000u64, 1..200u64), 0..60),
            bit in any::<prop::sample::Index>(),
            limit in 0..200u64,
        ) {
            let mut pins = Pins::default();
            let mut lines = std::collections::BTreeSet::new();
            for (add, lba, sectors) in steps {
                let range = Range::new(lba, sectors);
                let touched = lba / LINE_SECTORS..range.end().div_ceil(LINE_SECTORS);
                if add {
                    pins.add(range);
                    lines.extend(touched);
                } else {
                    pins.remove(range);
                    touched.for_each(|line| { lines.remove(&line); });
                }
            }
            prop_assert_eq!(pins.bytes(), lines.len() as u64 * LINE_BYTES);
            for line in 0..200 {
                prop_assert_eq!(pins.holds(line), lines.contains(&line));
            }
            let mut bytes = pins.encode();
            let again = Pins::decode(&bytes).unwrap();
            prop_assert_eq!(again.ranges().collect::<Vec<_>>(), pins.ranges().collect::<Vec<_>>());
            prop_assert_eq!(again.bytes(), pins.bytes());
            let bit = bit.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Pins::decode(&bytes).is_err());
            pins.cut(limit * LINE_BYTES);
            let left: Vec<u64> = lines.into_iter().take(limit as usize).collect();
            prop_assert_eq!(pins.bytes(), left.len() as u64 * LINE_BYTES);
            prop_assert!(left.iter().all(|line| pins.holds(*line)));
        }
    }

    #[test]
    fn what_is_pinned_outlives_any_scan_and_comes_in_at_once() {
        let mut rig = Rig::new(5, 63);
        let lines = 5 * 63;
        for n in 0..2 * lines {
            rig.access(line(n));
        }
        let hot = pins(&[Range::new(5000 * LINE_SECTORS, lines / 2 * LINE_SECTORS)]);
        rig.cache.set_pins(hot);
        for n in 0..lines / 2 {
            assert!(!rig.access(line(5000 + n)), "it cannot be here");
        }
        let scan = |rig: &mut Rig| {
            for n in 0..10 * lines {
                rig.access(line(10_000 + n));
            }
        };
        scan(&mut rig);
        let status = rig.cache.status();
        assert_eq!(status.pinned_valid_bytes, status.pinned_bytes);
        assert!((0..lines / 2).all(|n| rig.access(line(5000 + n))));
        rig.cache.set_pins(Pins::default());
        assert_eq!(rig.cache.status().pinned_valid_bytes, 0);
        for n in 0..20 {
            // Another set of lines becomes hot.
            (0..lines).for_each(|n| {
                rig.access(line(20_000 + n));
            });
            let _ = n;
        }
        assert!((0..lines / 2).any(|n| !rig.access(line(5000 + n))));
    }

    #[test]
    fn a_full_set_still_takes_others_or_turns_them_away() {
        let mut rig = Rig::new(1, 10);
        rig.cache.set_pins(pins(&[Range::new(0, 100 * LINE_SECTORS)]));
        assert_eq!(rig.cache.status().pinned_bytes, 8 * LINE_BYTES, "four fifths, from the start");
        for n in 0..40 {
            rig.access(line(n));
        }
        assert!((0..8).all(|n| rig.access(line(n))));
        assert_eq!(rig.cache.status().pinned_valid_bytes, 8 * LINE_BYTES);
    }

    #[test]
    fn what_is_lacking_is_known() {
        let mut rig = Rig::new(3, 4);
        let pinned = Range::new(0, 4 * LINE_SECTORS);
        rig.cache.set_pins(pins(&[pinned]));
        let lacking = |rig: &Rig| -> Vec<Range> {
            rig.cache.lacking().iter_from(0).map(|(range, _)| range).collect()
        };
        assert_eq!(lacking(&rig), [pinned]);
        rig.cache.take_lacking(pinned);
        (0..4).for_each(|n| {
            rig.access(line(n));
        });
        assert_eq!(lacking(&rig), []);
        rig.cache.forget(Time(1), Range::new(40, 200));
        assert_eq!(lacking(&rig), [Range::new(32, 96)], "whole lines, and only what is pinned");
        assert_eq!(rig.cache.status().pinned_valid_bytes, 5 * crate::block::BLOCK_BYTES);
        let taken = rig.cache.offer(Time(1), Source::Warm, line(1), &[]);
        assert!(taken, "nothing was held back");
    }

    #[test]
    fn a_pinned_block_that_is_written_is_forgotten() {
        let mut rig = Rig::new(3, 4);
        rig.cache.set_pins(pins(&[line(0)]));
        rig.access(line(0));
        rig.cache.forget(Time(1), Range::new(9, 1));
        assert!(!rig.access(Range::new(8, 8)));
    }
}
