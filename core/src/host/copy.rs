//! Copies that the store makes: watches, and ranges to stage.
//!
//! Promises: a staging reads at the store. So it begins once the store has every write that was
//! acknowledged before it. A watch ends with a write to its range, or when a newer watch needs its
//! place. It must not know the link, nor how a write uses a staged range.

use crate::block::{
    MAX_WATCHES, Range, STAGED_BIT, Seq, Staged, StagedData, StagedPiece, VolumeId,
};
use crate::record::MAX_RECORD_SECTORS;
use crate::wire::link::StagedRun;
use std::collections::VecDeque;

/// A range to stage.
#[derive(Clone, Copy, Debug)]
pub(super) struct Staging {
    pub(super) id: u64,
    pub(super) range: Range,
    pub(super) into: VolumeId,
    pub(super) lba: u64,
    pub(super) object: u64,
    pub(super) watch: Option<u64>,
}

impl Staging {
    /// The same with another object, because the first one may exist already.
    pub(super) fn again(self) -> Staging {
        Staging { object: next_object(self.object), ..self }
    }

    /// The pieces of the store's runs, if the runs cover the request.
    pub(super) fn pieces(&self, runs: &[StagedRun]) -> Option<Vec<StagedPiece>> {
        let mut at = self.lba;
        let mut pieces = Vec::with_capacity(runs.len());
        for run in runs {
            let (StagedRun::Hole(sectors)
            | StagedRun::Zero(sectors)
            | StagedRun::Data { sectors, .. }) = *run;
            let range = Range::new(at, sectors);
            let content = match *run {
                StagedRun::Hole(_) => Staged::Hole,
                StagedRun::Zero(_) => Staged::Zero,
                StagedRun::Data { offset, .. } if sectors <= MAX_RECORD_SECTORS => {
                    Staged::Data(StagedData { object: self.object, offset, record: range })
                }
                StagedRun::Data { .. } => return None,
            };
            if range.is_empty() || range.end() > self.lba + self.range.sectors {
                return None;
            }
            at = range.end();
            pieces.push(StagedPiece { range, content });
        }
        (at == self.lba + self.range.sectors).then_some(pieces)
    }
}

/// Another number for an object. It is as good as a random one if the first one was random.
fn next_object(object: u64) -> u64 {
    // An odd step reaches every number; this one is far from every round one (the golden ratio).
    object.wrapping_add(0x9e37_79b9_7f4a_7c15) | STAGED_BIT
}

#[derive(Debug)]
struct RangeWatch {
    number: u64,
    ranges: Vec<Range>,
}

/// Watches, and stagings that wait for commits.
#[derive(Debug, Default)]
pub(super) struct Copies {
    /// Stagings in order. Each has the number of the last write that has to be committed first.
    waiting: VecDeque<(Seq, Staging)>,
    /// The oldest first.
    watches: VecDeque<RangeWatch>,
    /// Number of watches so far.
    begun: u64,
}

impl Copies {
    // --- inputs ---

    /// Watches these ranges. If there are too many watches, the oldest one gives way. Returns the
    /// number of the watch.
    pub(super) fn watch(&mut self, ranges: Vec<Range>) -> u64 {
        if self.watches.len() >= MAX_WATCHES {
            self.watches.pop_front();
        }
        self.begun += 1;
        let number = self.begun;
        self.watches.push_back(RangeWatch { number, ranges });
        number
    }

    /// Ends a watch.
    pub(super) fn unwatch(&mut self, number: u64) {
        self.watches.retain(|watch| watch.number != number);
    }

    /// A client writes `range`: watches of it end.
    pub(super) fn written(&mut self, range: Range) {
        if !self.watches.is_empty() {
            let hit =
                |watch: &RangeWatch| watch.ranges.iter().any(|r| r.intersect(range).is_some());
            self.watches.retain(|watch| !hit(watch));
        }
    }

    /// Keeps a staging until the store has committed everything up to `seq`.
    pub(super) fn stage(&mut self, seq: Seq, staging: Staging) {
        self.waiting.push_back((seq, staging));
    }

    /// The next staging whose turn has come.
    pub(super) fn next_due(&mut self, committed: Seq) -> Option<Staging> {
        let due = self.waiting.pop_front_if(|(seq, _)| *seq <= committed);
        due.map(|(_, staging)| staging)
    }

    /// Gives up on everything. Returns the requests that need an answer.
    pub(super) fn give_up(&mut self) -> Vec<u64> {
        self.waiting.drain(..).map(|(_, staging)| staging.id).collect()
    }

    // --- outputs ---

    /// Whether the watch of a staging, if any, still holds.
    pub(super) fn holds(&self, staging: &Staging) -> bool {
        let is_watched = |number| self.watches.iter().any(|watch| watch.number == number);
        staging.watch.is_none_or(is_watched)
    }

    /// The last number that somebody waits to see committed.
    pub(super) fn awaited(&self) -> Option<Seq> {
        self.waiting.back().map(|(seq, _)| *seq)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }
}
