//! Marks the named parts of the segments that a round empties. A run that an entry names takes 12
//! bytes of memory, at most twice, however many roots name it.

use super::bundle::in_blocks;
use crate::store::map::page::MapEntry;
use std::collections::BTreeMap;
use std::ops::Range;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Run {
    offset: u32,
    first: u16,
    end: u16,
    /// Sectors of the record.
    sectors: u16,
}

/// Runs of a segment.
#[derive(Clone, Debug, Default)]
struct Runs {
    list: Vec<Run>,
    /// At this number of runs the marks sort and merge them.
    limit: usize,
}

/// The least number of runs of a segment before the marks sort them.
const UNSORTED: usize = 256;

impl Runs {
    fn push(&mut self, run: Run) {
        match self.list.last_mut() {
            // The usual case: a map in order, and data that a host wrote in order.
            Some(last) if last.takes(&run) => last.end = last.end.max(run.end),
            _ => self.list.push(run),
        }
        if self.list.len() >= self.limit.max(UNSORTED) {
            self.sort();
            self.limit = 2 * self.list.len();
        }
    }

    /// Puts them in order, without any that touch.
    fn sort(&mut self) {
        self.list.sort_unstable();
        self.list.dedup_by(|run, last| {
            let taken = last.takes(run);
            if taken {
                last.end = last.end.max(run.end);
            }
            taken
        });
    }
}

impl Run {
    /// Whether the other one begins in it or where it ends.
    fn takes(&self, other: &Run) -> bool {
        (self.offset, self.sectors) == (other.offset, other.sectors)
            && (self.first..=self.end).contains(&other.first)
    }
}

/// Named runs, by segment.
#[derive(Clone, Debug, Default)]
pub struct Marks {
    segments: BTreeMap<u64, Runs>,
}

/// The named parts of a record: its offset, its sectors, and the runs in order. Runs end at block
/// boundaries of the volume, with a block or more between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Byte of the segment at which the record begins.
    pub offset: u32,
    /// Sectors of the record.
    pub sectors: u64,
    /// In sectors from its beginning.
    pub runs: Vec<Range<u64>>,
}

impl Marks {
    /// Begins without names of these segments.
    #[must_use]
    pub fn new(segments: impl IntoIterator<Item = u64>) -> Marks {
        Marks { segments: segments.into_iter().map(|segment| (segment, Runs::default())).collect() }
    }

    /// An entry of a live fragment.
    pub fn mark(&mut self, entry: MapEntry) {
        let Some(place) = entry.place.filter(|place| !place.is_zero()) else { return };
        let Some(runs) = self.segments.get_mut(&place.segment()) else { return };
        let sectors = place.record_sectors();
        let lba = place.record(entry.range.lba).lba;
        let run = in_blocks(lba, place.skip()..place.skip() + entry.range.sectors, sectors);
        // Records have less than 2^15 sectors.
        let run = Run {
            offset: place.offset(),
            first: run.start as u16,
            end: run.end as u16,
            sectors: sectors as u16,
        };
        runs.push(run);
    }

    /// The segments.
    pub fn segments(&self) -> impl Iterator<Item = u64> + '_ {
        self.segments.keys().copied()
    }

    /// Takes the named parts of a segment, in order of offset. The caller marks nothing of the
    /// segment after that.
    pub fn take(&mut self, segment: u64) -> Vec<Named> {
        let mut runs = self.segments.remove(&segment).unwrap_or_default();
        runs.sort();
        let mut named: Vec<Named> = Vec::new();
        for run in runs.list {
            let (first, end) = (u64::from(run.first), u64::from(run.end));
            let sectors = u64::from(run.sectors);
            match named.last_mut() {
                Some(last) if last.offset == run.offset && last.sectors == sectors => {
                    last.runs.push(first..end);
                }
                _ => {
                    let runs = std::iter::once(first..end).collect();
                    named.push(Named { offset: run.offset, sectors, runs });
                }
            }
        }
        named
    }
}
