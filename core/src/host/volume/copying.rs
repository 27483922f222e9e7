//! Routing of copies: watches, ranges to stage at the store, and writes of staged ranges.
//!
//! A staged range is written like any other write, in records that name the place of the data at
//! the store. Until such a record is committed its content is not known here, and reads of it wait.

use super::Volume;
use crate::block::{BlockError, Range, Reply, Staged, StagedPiece};
use crate::host::copy::Staging;
use crate::host::requests::Purpose;
use crate::host::writes::WriteContent;
use crate::wire::link::{RequestId, StageError, StagedRun};

impl Volume {
    pub(super) fn watch(&mut self, id: u64, ranges: Vec<Range>) {
        let number = self.copies.watch(ranges);
        self.out.reply(id, Ok(Reply::Watching(number)));
    }

    pub(super) fn unwatch(&mut self, id: u64, number: u64) {
        self.copies.unwatch(number);
        self.out.reply(id, Ok(Reply::Done));
    }

    pub(super) fn stage(&mut self, staging: Staging) {
        // A store that can copy data can read it. Nor is it believed that a range has nothing to
        // copy.
        if self.keyed.packing().is_encrypting() {
            return self.out.reply(staging.id, Err(BlockError::Unsupported));
        }
        let counters = self.out.count();
        counters.stages += 1;
        counters.stage_bytes += staging.range.bytes();
        self.copies.stage(self.log.last(), staging);
    }

    /// Asks the store for the stagings whose turn has come.
    pub(super) fn stage_committed(&mut self) {
        while let Some(staging) = self.copies.next_due(self.log.committed()) {
            if self.copies.holds(&staging) {
                self.ask(staging.range, Purpose::Stage(staging), false);
            } else {
                self.out.reply(staging.id, Err(BlockError::Changed));
            }
        }
    }

    /// Takes the store's answer to a staging.
    pub(super) fn store_staged(
        &mut self,
        number: RequestId,
        result: Result<Vec<StagedRun>, StageError>,
    ) {
        let Some(request) = self.session.answered(number) else { return };
        let Purpose::Stage(staging) = request.purpose else {
            // An answer of the wrong kind: asked again, it may come right.
            return self.ask(request.range, request.purpose, true);
        };
        let (id, range) = (staging.id, request.range);
        if !self.copies.holds(&staging) {
            return self.out.reply(id, Err(BlockError::Changed));
        }
        match result {
            Ok(runs) => match staging.pieces(&runs) {
                Some(pieces) => self.out.reply(id, Ok(Reply::Staged(pieces))),
                None if request.again => self.out.reply(id, Err(BlockError::Medium(range))),
                None => self.ask(range, Purpose::Stage(staging.again()), true),
            },
            Err(StageError::Exists) => {
                self.ask(range, Purpose::Stage(staging.again()), request.again);
            }
            Err(StageError::Unsupported) => self.out.reply(id, Err(BlockError::Unsupported)),
            Err(StageError::Read(error)) => self.store_refused(request, error),
        }
    }

    pub(super) fn write_staged(&mut self, id: u64, pieces: Vec<StagedPiece>, fua: bool) {
        // A store that can copy data can read it. Into an encrypted volume nothing goes in plain
        // text.
        let data = |piece: &StagedPiece| matches!(piece.content, Staged::Data(_));
        if self.keyed.packing().is_encrypting() && pieces.iter().any(data) {
            return self.out.reply(id, Err(BlockError::Unsupported));
        }
        let counters = self.out.count();
        counters.copies += 1;
        counters.copy_bytes += pieces.iter().map(|piece| piece.range.bytes()).sum::<u64>();
        self.write(id, WriteContent::Staged(pieces), fua);
    }
}
