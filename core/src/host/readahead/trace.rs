//! The reads of a boot or of an application's start: a host records them once, and reads them ahead
//! the next time.
//!
//! Promises: a recording and its encoding ([`crate::ranges`]) are bounded. Nothing here touches
//! data: a trace holds only the sectors of reads, in their order.

use crate::block::{Range, SECTOR_BYTES};
use crate::extent::{ExtentMap, RangeSet, Uniform};
use crate::ranges::{self, RangesError};

/// Most ranges of a trace.
pub const MAX_TRACE_RANGES: usize = ranges::MAX_RANGES;
/// Longest encoding.
pub const MAX_TRACE_BYTES: usize = ranges::MAX_ENCODED_BYTES;

const MAGIC: [u8; 8] = *b"LHTRACE1";
/// How many ranges back a read may continue one. So that many streams may be interleaved.
const REACH: usize = 16;
/// Sectors of one request (256 KiB).
const PIECE: u64 = 512;
/// How many of the last 64 reads have to be of the trace.
const FAITHFUL: u32 = 16;

/// Ranges in the order of their first use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    ranges: Vec<Range>,
}

impl Trace {
    /// The ranges, none empty, no two of them overlapping.
    #[must_use]
    pub fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    /// Bytes in all of them.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.bytes()).sum()
    }

    /// At most [`MAX_TRACE_BYTES`].
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        ranges::encode(MAGIC, self.ranges.iter())
    }

    /// Decodes an encoding.
    ///
    /// # Errors
    /// If the bytes are not an encoding, are of a later version, or are damaged.
    pub fn decode(bytes: &[u8]) -> Result<Trace, RangesError> {
        Ok(Trace { ranges: ranges::decode(MAGIC, bytes)? })
    }
}

/// A recording of reads.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    ranges: Vec<Range>,
    seen: RangeSet,
}

impl Recorder {
    /// A client reads. A full trace takes no more ranges.
    pub(super) fn read(&mut self, range: Range) {
        let fresh: Vec<Range> = self
            .seen
            .cover(range)
            .filter(|(_, seen)| seen.is_none())
            .map(|(part, _)| part)
            .collect();
        for part in fresh {
            let recent = self.ranges.iter_mut().rev().take(REACH);
            let grown = recent.into_iter().find_map(|range| {
                let joined = if range.end() == part.lba {
                    Range::between(range.lba, part.end())
                } else if part.end() == range.lba {
                    Range::between(part.lba, range.end())
                } else {
                    return None;
                };
                *range = joined;
                Some(())
            });
            if grown.is_none() {
                if self.ranges.len() >= MAX_TRACE_RANGES {
                    return;
                }
                self.ranges.push(part);
            }
            self.seen.insert(part, Uniform(()));
        }
    }

    pub(super) fn finish(self) -> Trace {
        Trace { ranges: self.ranges }
    }
}

/// A trace under replay.
#[derive(Debug)]
pub(super) struct Replay {
    ranges: Vec<Range>,
    /// The next range, and how much of it the replay has passed.
    next: usize,
    done: u64,
    /// All ranges of the trace, and whether each is still worth a request.
    map: ExtentMap<Uniform<bool>>,
    /// Whether the last 64 reads were of the trace, a bit for each.
    followed: u64,
    pub(super) asked_bytes: u64,
    pub(super) total_bytes: u64,
}

impl Replay {
    pub(super) fn new(trace: &Trace) -> Replay {
        let mut map = ExtentMap::new();
        for range in &trace.ranges {
            map.insert(*range, Uniform(true));
        }
        Replay {
            ranges: trace.ranges.clone(),
            next: 0,
            done: 0,
            map,
            followed: u64::MAX,
            asked_bytes: 0,
            total_bytes: trace.bytes(),
        }
    }

    /// A client reads. False once it reads something else than during the recording.
    pub(super) fn read(&mut self, range: Range) -> bool {
        let parts: Vec<(Range, Uniform<bool>)> = self.map.overlapping(range).collect();
        self.followed = (self.followed << 1) | u64::from(!parts.is_empty());
        for (part, ahead) in parts {
            // A full map is only less exact.
            if ahead.0 && self.map.len() < 2 * MAX_TRACE_RANGES {
                self.map.insert(part, Uniform(false));
            }
        }
        self.followed.count_ones() >= FAITHFUL
    }

    /// The next range to ask for, in a volume of `sectors`; `None` at the end.
    pub(super) fn next(&mut self, sectors: u64) -> Option<Range> {
        loop {
            let range = *self.ranges.get(self.next)?;
            let rest = Range::between(range.lba + self.done, range.end());
            let ahead =
                self.map.overlapping(rest).find(|(part, ahead)| ahead.0 && part.lba < sectors);
            if let Some((part, _)) = ahead {
                self.done = part.lba - range.lba;
                return Some(Range::between(
                    part.lba,
                    part.end().min(part.lba + PIECE).min(sectors),
                ));
            }
            self.next += 1;
            self.done = 0;
        }
    }

    /// Notes a request for that range.
    pub(super) fn asked(&mut self, range: Range) {
        if let Some(whole) = self.ranges.get(self.next) {
            self.done = range.end() - whole.lba;
            self.asked_bytes += range.sectors * SECTOR_BYTES;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::MAX_VOLUME_SECTORS;
    use crate::ranges::HEADER_BYTES;
    use proptest::prelude::*;

    fn record(reads: &[Range]) -> Trace {
        let mut recorder = Recorder::default();
        reads.iter().for_each(|range| recorder.read(*range));
        recorder.finish()
    }

    fn reads() -> impl Strategy<Value = Vec<Range>> {
        let read = (0..4096u64, 1..64u64).prop_map(|(lba, sectors)| Range::new(lba, sectors));
        prop::collection::vec(read, 0..200)
    }

    proptest! {
        #[test]
        fn a_trace_holds_what_was_read_once(reads in reads()) {
            let trace = record(&reads);
            let mut expected = RangeSet::new();
            reads.iter().for_each(|range| expected.insert(*range, Uniform(())));
            prop_assert_eq!(trace.bytes(), expected.mapped_sectors() * SECTOR_BYTES);
            let encoded = trace.encode();
            prop_assert!(encoded.len() <= MAX_TRACE_BYTES);
            prop_assert_eq!(Trace::decode(&encoded), Ok(trace.clone()));
            // A replay without a reader asks for all of the trace, in order.
            let mut replay = Replay::new(&trace);
            let mut asked = RangeSet::new();
            while let Some(range) = replay.next(1 << 20) {
                prop_assert!(asked.overlapping(range).next().is_none());
                asked.insert(range, Uniform(()));
                replay.asked(range);
            }
            prop_assert_eq!(asked.mapped_sectors(), expected.mapped_sectors());
            prop_assert_eq!(replay.asked_bytes, replay.total_bytes);
        }

        #[test]
        fn damage_is_noticed(reads in reads(), at in any::<prop::sample::Index>(), bit in 0..8u8) {
            let mut encoded = record(&reads).encode();
            let at = at.index(encoded.len());
            encoded[at] ^= 1 << bit;
            prop_assert!(Trace::decode(&encoded).is_err());
            prop_assert!(Trace::decode(&encoded[..at]).is_err());
        }

        #[test]
        fn any_bytes_are_refused_or_come_out_as_they_went_in(
            body in prop::collection::vec(any::<u8>(), 0..60), count in 0..20u32,
        ) {
            let mut bytes = vec![0; HEADER_BYTES];
            bytes[..8].copy_from_slice(&MAGIC);
            bytes[12..16].copy_from_slice(&count.to_le_bytes());
            bytes.extend(body);
            let crc = crc32c::crc32c(&bytes[12..]);
            bytes[8..12].copy_from_slice(&crc.to_le_bytes());
            if let Ok(trace) = Trace::decode(&bytes) {
                prop_assert_eq!(trace.encode(), bytes);
            }
        }
    }

    #[test]
    fn interleaved_streams_are_few_ranges() {
        let reads: Vec<Range> =
            (0..1000).map(|n| Range::new(n % 4 * 100_000 + n / 4 * 8, 8)).collect();
        assert_eq!(record(&reads).ranges().len(), 4);
    }

    #[test]
    fn a_recording_is_bounded() {
        let mut recorder = Recorder::default();
        for n in 0..MAX_TRACE_RANGES as u64 + 1000 {
            recorder.read(Range::new((n * (MAX_VOLUME_SECTORS >> 18)) ^ 1, 1));
        }
        let trace = recorder.finish();
        assert_eq!(trace.ranges().len(), MAX_TRACE_RANGES);
        assert!(trace.encode().len() <= MAX_TRACE_BYTES);
    }

    #[test]
    fn a_replay_leaves_out_what_was_read_and_ends_when_the_reader_goes_elsewhere() {
        let trace = record(&[Range::new(0, 100), Range::new(1000, 100), Range::new(5000, 50)]);
        let mut replay = Replay::new(&trace);
        let first = replay.next(5020).unwrap();
        assert_eq!(first, Range::new(0, 100));
        replay.asked(first);
        assert!(replay.read(Range::new(990, 60)));
        let second = replay.next(5020).unwrap();
        assert_eq!(second, Range::new(1050, 50));
        replay.asked(second);
        // The volume is smaller than it was.
        assert_eq!(replay.next(5020), Some(Range::new(5000, 20)));
        let elsewhere = (0..100).take_while(|n| replay.read(Range::new(9000 + n, 1))).count();
        assert_eq!(elsewhere, 48);
    }
}
