//! The volume's side of copies that the store makes: watches, staging, and writing what is staged.
//!
//! Staging reads at the store, so it begins once the store has all that was acknowledged before it.
//! What is staged is written like any other write, in records that say where the store has the data;
//! until such a record is committed nobody can say what it holds, and reads of it wait.

use super::reads::LinkUse;
use super::volume::Volume;
use super::writes::WriteContent;
use crate::block::{
    BlockError, MAX_WATCHES, Range, Reply, STAGED_BIT, Seq, Staged, StagedData, StagedPiece,
    VolumeId,
};
use crate::record::MAX_RECORD_SECTORS;
use crate::wire::link::{StageError, StagedRun};
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
    fn pieces(&self, runs: &[StagedRun]) -> Option<Vec<StagedPiece>> {
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
struct Watch {
    number: u64,
    ranges: Vec<Range>,
}

/// Watches, and stagings that wait for commits.
#[derive(Debug, Default)]
pub(super) struct Copies {
    /// With the number that has to be committed first; in order.
    waiting: VecDeque<(Seq, Staging)>,
    /// The oldest first.
    watches: VecDeque<Watch>,
    /// Watches that there have been.
    begun: u64,
    /// What is being read to be written back, until somebody else writes to it.
    guard: Option<Watch>,
}

impl Copies {
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The last number that somebody waits to see committed.
    pub(super) fn awaited(&self) -> Option<Seq> {
        self.waiting.back().map(|(seq, _)| *seq)
    }

    /// Gives up on everything; gives the requests that have to be told.
    pub(super) fn fail_all(&mut self) -> Vec<u64> {
        self.waiting.drain(..).map(|(_, staging)| staging.id).collect()
    }

    /// `range` is written: whoever watches it will learn.
    pub(super) fn written(&mut self, range: Range) {
        let hit = |watch: &Watch| watch.ranges.iter().any(|r| r.intersect(range).is_some());
        if !self.watches.is_empty() {
            self.watches.retain(|watch| !hit(watch));
        }
        self.guard.take_if(|guard| hit(guard));
    }

    /// Watches these in place of what was guarded before. It is not among those of clients, of which the oldest give way.
    pub(super) fn guard(&mut self, ranges: Vec<Range>) {
        self.guard = Some(Watch { number: 0, ranges });
    }

    /// Whether nobody has written to what was guarded; it is no longer.
    pub(super) fn release_guard(&mut self) -> bool {
        self.guard.take().is_some()
    }

    fn holds(&self, watch: Option<u64>) -> bool {
        watch.is_none_or(|number| self.watches.iter().any(|watch| watch.number == number))
    }
}

impl Volume {
    // --- watches ---

    pub(super) fn watch(&mut self, id: u64, ranges: Vec<Range>) {
        if self.copies.watches.len() >= MAX_WATCHES {
            self.copies.watches.pop_front();
        }
        self.copies.begun += 1;
        let number = self.copies.begun;
        self.copies.watches.push_back(Watch { number, ranges });
        self.out.reply(id, Ok(Reply::Watching(number)));
    }

    pub(super) fn unwatch(&mut self, id: u64, number: u64) {
        self.copies.watches.retain(|watch| watch.number != number);
        self.out.reply(id, Ok(Reply::Done));
    }

    // --- staging ---

    pub(super) fn stage(&mut self, staging: Staging) {
        // What a store can copy it can read. Nor is it believed that a range has nothing to copy.
        if self.packer.is_encrypting() {
            return self.out.reply(staging.id, Err(BlockError::Unsupported));
        }
        self.out.count().stages += 1;
        self.out.count().stage_bytes += staging.range.bytes();
        let seq = self.log.last();
        self.copies.waiting.push_back((seq, staging));
    }

    /// Asks the store for the stagings whose turn has come.
    pub(super) fn stage_committed(&mut self) {
        let committed = self.log.committed();
        while let Some((_, staging)) =
            self.copies.waiting.pop_front_if(|(seq, _)| *seq <= committed)
        {
            if self.copies.holds(staging.watch) {
                self.ask(staging.range, LinkUse::Stage(staging), false);
            } else {
                self.out.reply(staging.id, Err(BlockError::Changed));
            }
        }
    }

    /// Takes the store's answer to a staging.
    pub(super) fn store_staged(
        &mut self,
        request: u64,
        result: Result<Vec<StagedRun>, StageError>,
    ) {
        let Some(asked) = self.reads.take_asked(request) else { return };
        let LinkUse::Stage(staging) = asked.what else {
            // An answer of the wrong kind: asked again, it may come right.
            return self.ask(asked.range, asked.what, true);
        };
        if !self.copies.holds(staging.watch) {
            return self.out.reply(staging.id, Err(BlockError::Changed));
        }
        match result {
            Ok(runs) => match staging.pieces(&runs) {
                Some(pieces) => self.out.reply(staging.id, Ok(Reply::Staged(pieces))),
                None if asked.again => {
                    self.out.reply(staging.id, Err(BlockError::Medium(asked.range)))
                }
                None => self.ask(asked.range, LinkUse::Stage(staging.again()), true),
            },
            Err(StageError::Exists) => {
                self.ask(asked.range, LinkUse::Stage(staging.again()), asked.again);
            }
            Err(StageError::Unsupported) => {
                self.out.reply(staging.id, Err(BlockError::Unsupported));
            }
            Err(StageError::Read(error)) => self.store_refused(asked, error),
        }
    }

    // --- writing what is staged ---

    pub(super) fn write_staged(&mut self, id: u64, pieces: Vec<StagedPiece>, fua: bool) {
        // What the store can copy it can read. Into an encrypted volume nothing goes in plain text.
        let data = |piece: &StagedPiece| matches!(piece.content, Staged::Data(_));
        if self.packer.is_encrypting() && pieces.iter().any(data) {
            return self.out.reply(id, Err(BlockError::Unsupported));
        }
        self.out.count().copies += 1;
        self.out.count().copy_bytes += pieces.iter().map(|piece| piece.range.bytes()).sum::<u64>();
        self.write(id, WriteContent::Staged(pieces), fua);
    }
}
