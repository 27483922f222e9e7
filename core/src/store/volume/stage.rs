//! Staging: what is committed of a range, read and put as an object of another volume, or of this one.
//!
//! Nothing refers to the object until the host writes to that volume what it is told here.

use super::super::object::ObjectOperation;
use super::super::reads::{Finished, Request, Stage, What};
use super::super::{Event, SessionId, catalog, staged};
use super::{Purpose, Volume};
use crate::block::{Epoch, MAX_STAGE_SECTORS, MAX_VOLUME_SECTORS, Range, STAGED_BIT};
use crate::record::RecordError;
use crate::wire::link::{Lane, ReadError, RequestId, StageError, StagedRun, ToHost};

/// An object being put: who asked, and what is in it.
#[derive(Debug)]
pub(super) struct Putting {
    session: SessionId,
    lane: Lane,
    request: RequestId,
    runs: Vec<StagedRun>,
    /// Counted by the reads until it is there.
    bytes: u64,
}

impl Volume {
    pub(super) fn stage(
        &mut self,
        session: SessionId,
        lane: Lane,
        request: RequestId,
        epoch: Epoch,
        range: Range,
        stage: Stage,
    ) {
        let what = What::Stage(stage);
        let read = Request { session, lane, request, epoch, range, what };
        let to = Range::new(stage.lba, range.sectors);
        // An observer has no business with copies.
        let attached = epoch > 0 || self.is_readonly();
        let possible = attached && stage.object & STAGED_BIT != 0 && to.fits(MAX_VOLUME_SECTORS);
        match self.check_read(session, epoch, range, MAX_STAGE_SECTORS) {
            Ok(()) if !possible => self.read_failed(read, ReadError::Invalid),
            Ok(()) => self.reads.push(read),
            Err(error) => self.read_failed(read, error),
        }
    }

    /// What is to be staged has been read.
    pub(super) fn stage_read(&mut self, finished: Finished, stage: Stage) {
        let Finished { request: read, result, bytes } = finished;
        let Request { session, lane, request, epoch, range, .. } = read;
        let Stage { into, lba, object } = stage;
        let parts = match result {
            Ok(parts) => parts,
            Err(damage) => return self.data_damaged(read, damage),
        };
        match staged::encode((self.id(), into), epoch, object, lba, &parts) {
            Ok(staged::Staged { runs, data }) => {
                let putting = Putting { session, lane, request, runs, bytes };
                if data.is_empty() {
                    self.staged(putting, Ok(()));
                } else {
                    let key = catalog::staged_key(into, object);
                    self.book
                        .issue(Purpose::PutStaged(putting), ObjectOperation::Put { key, data });
                }
            }
            Err(RecordError::NoKey { .. }) => {
                self.reads.release(bytes);
                let (volume, result) = (self.id(), Err(StageError::Unsupported));
                self.send(session, lane, ToHost::Staged { request, volume, result });
            }
            // It was good when it came: this memory is not.
            Err(error) => {
                self.reads.release(bytes);
                let key = catalog::staged_key(into, object);
                let reason = error.to_string();
                self.event(Event::DataDamaged { key, range, reason });
                self.read_failed(read, ReadError::Medium(range));
            }
        }
    }

    /// The object exists, by this put or by another.
    pub(super) fn staged(&mut self, putting: Putting, result: Result<(), StageError>) {
        let Putting { session, lane, request, runs, bytes } = putting;
        self.reads.release(bytes);
        let (volume, result) = (self.id(), result.map(|()| runs));
        self.send(session, lane, ToHost::Staged { request, volume, result });
    }
}
