//! Copies that the store makes: watches, and ranges that are to be staged.
//!
//! Promises: a staging reads at the store, so it begins once the store has every write that was
//! acknowledged before it. A watch ends when its range is written, or gives way to a newer watch.
//! It must not know the link, nor how a staged range is written.

use crate::block::{
    MAX_WATCHES, Range, STAGED_BIT, Seq, Staged, StagedData, StagedPiece, VolumeId,
};
use crate::record::MAX_RECORD_SECTORS;
use crate::wire::link::StagedRun;
use std::collections::VecDeque;

/// A range that is to be staged.
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
    /// The same with another object, which may be there already.
    pub(super) fn again(self) -> Staging {
        Staging { object: next_object(self.object), ..self }
    }

    /// The pieces that the store's runs stand for, if these are what was asked for.
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

/// Another number for an object, as good as drawn at random if the first one was.
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
    /// With the number that has to be committed first; in order.
    waiting: VecDeque<(Seq, Staging)>,
    /// The oldest first.
    watches: VecDeque<RangeWatch>,
    /// Watches that there have been.
    begun: u64,
}

impl Copies {
    // --- inputs ---

    /// Watches these ranges, in place of the oldest watch if there are too many. Gives the number
    /// of the watch.
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

    /// `range` is written: whoever watches it will learn.
    pub(super) fn written(&mut self, range: Range) {
        if !self.watches.is_empty() {
            let hit =
                |watch: &RangeWatch| watch.ranges.iter().any(|r| r.intersect(range).is_some());
            self.watches.retain(|watch| !hit(watch));
        }
    }

    /// A range is to be staged once everything up to `seq` is committed.
    pub(super) fn stage(&mut self, seq: Seq, staging: Staging) {
        self.waiting.push_back((seq, staging));
    }

    /// The next staging whose turn has come.
    pub(super) fn next_due(&mut self, committed: Seq) -> Option<Staging> {
        let due = self.waiting.pop_front_if(|(seq, _)| *seq <= committed);
        due.map(|(_, staging)| staging)
    }

    /// Gives up on everything; returns the requests that have to be told.
    pub(super) fn give_up(&mut self) -> Vec<u64> {
        self.waiting.drain(..).map(|(_, staging)| staging.id).collect()
    }

    // --- outputs ---

    /// Whether what a staging watches has not been written to.
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
