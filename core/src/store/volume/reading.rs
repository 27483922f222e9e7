//! Reads and questions about what there is: checked, looked up, fetched and answered. They do not queue behind what changes
//! the log.

use super::super::map::Place;
use super::super::moves::{Lost, Want};
use super::super::object::ObjectOperation;
use super::super::reads::{Damage, Finished, Next, Request, What};
use super::super::{SHELL_SESSION, SessionId, catalog};
use super::{Phase, Purpose, Volume, maps};
use crate::block::{BlockState, Epoch, Range, StatusRun};
use crate::wire::link::{self, Lane, MAX_STATUS_RUNS, ReadError, RequestId, StageError, ToHost};

impl Volume {
    pub(super) fn asked_to_read(&mut self, request: Request, longest: u64) {
        let Request { session, epoch, range, .. } = request;
        match self.check_read(session, epoch, range, longest) {
            Ok(()) => self.reads.push(request),
            Err(error) => self.read_failed(request, error),
        }
    }

    /// A host wants to know what kind its data is; the shell, where it lies.
    pub(super) fn asked_for_status(
        &mut self,
        session: SessionId,
        lane: Lane,
        request: RequestId,
        epoch: Epoch,
        range: Range,
    ) {
        let what = if session == SHELL_SESSION { What::Places } else { What::Status };
        self.asked_to_read(Request { session, lane, request, epoch, range, what }, u64::MAX);
    }

    pub(super) fn check_read(
        &self,
        session: SessionId,
        epoch: u64,
        range: Range,
        longest: u64,
    ) -> Result<(), ReadError> {
        if matches!(self.phase, Phase::Opening(_) | Phase::Failed(_)) || self.shutting_down {
            return Err(ReadError::NotAttached);
        }
        if range.is_empty() || range.sectors > longest || !range.fits(self.state.sectors) {
            return Err(ReadError::Invalid);
        }
        let current = self.state.epoch();
        if epoch == 0 {
            Ok(())
        } else if self.is_readonly() {
            Err(ReadError::NotAttached)
        } else if epoch < current {
            Err(ReadError::Fenced(current))
        } else if epoch > current || self.holder.is_none_or(|holder| holder.session != session) {
            Err(ReadError::NotAttached)
        } else {
            Ok(())
        }
    }

    pub(super) fn read_failed(&mut self, read: Request, error: ReadError) {
        let (request, volume) = (read.request, self.id());
        let message = match read.what {
            What::Data => ToHost::Data { request, volume, result: Err(error) },
            What::Status => ToHost::Status { request, volume, result: Err(error) },
            What::Places => return self.places.push_back((request, Err(error))),
            What::Damaged(_) => return self.damage_not_looked_up(),
            What::Stage(_) => {
                ToHost::Staged { request, volume, result: Err(StageError::Read(error)) }
            }
        };
        self.send(read.session, read.lane, message);
    }

    fn status_found(&mut self, read: Request, parts: Vec<(Range, Option<Place>)>) {
        if let What::Places = read.what {
            return self.places.push_back((read.request, Ok(parts)));
        }
        let mut runs: Vec<StatusRun> = Vec::new();
        for (part, place) in parts {
            let state = match place {
                None => BlockState::Hole,
                Some(place) if place.is_zero() => BlockState::Zero,
                Some(_) => BlockState::Data,
            };
            match runs.last_mut() {
                Some(last) if last.state == state => last.sectors += part.sectors,
                _ => {
                    if runs.len() == MAX_STATUS_RUNS {
                        break;
                    }
                    runs.push(StatusRun { sectors: part.sectors, state });
                }
            }
        }
        let (request, volume) = (read.request, self.id());
        self.send(read.session, read.lane, ToHost::Status { request, volume, result: Ok(runs) });
    }

    pub(super) fn fence_reads(&mut self) {
        let epoch = self.state.epoch();
        for read in self.reads.fence(epoch) {
            self.read_failed(read, ReadError::Fenced(epoch));
        }
    }

    pub(super) fn advance_reads(&mut self) {
        self.fence_reads();
        while let Some(next) = self.next_read() {
            match next {
                Next::Fetch(read, index, fetch) => self.book.issue(
                    Purpose::Fetch { read, index, known: fetch.known },
                    ObjectOperation::Get {
                        key: self.object_key(fetch.object),
                        range: Some(fetch.range),
                        copies: fetch.copies,
                    },
                ),
                Next::Page(want, copies, known) => {
                    let (key, range) = match &want {
                        Want::Page(get) => {
                            (catalog::fragment_key(get.fragment.id), get.bytes.clone())
                        }
                        Want::Bundle(bundle) => {
                            (catalog::bundle_key(bundle.id), bundle.head_range())
                        }
                    };
                    let operation = ObjectOperation::Get { key, range: Some(range), copies };
                    self.book.issue(Purpose::ReadPage(want, known), operation);
                }
                Next::Finished(finished) => self.read_finished(finished),
                Next::Looked(read, parts) => self.status_found(read, parts),
                Next::Placed(read, parts) => self.damage_looked_up(read, &parts),
                Next::Lost(read, Lost { key, range, reason }) => {
                    self.read_damaged(read, key, range, reason.to_string());
                }
            }
        }
    }

    fn next_read(&mut self) -> Option<Next> {
        let pages = &mut *self.config.pages.lock();
        let maps = maps(&self.spec, &self.tree, &self.collect, &self.ancestors);
        self.reads.poll(maps, pages)
    }

    pub(super) fn read_finished(&mut self, finished: Finished) {
        let read = finished.request;
        if let What::Stage(stage) = read.what {
            return self.stage_read(finished, stage);
        }
        match finished.result {
            Ok(parts) => {
                let frame = link::encode_data(read.request, self.id(), &parts);
                self.messages.push_back((read.session, read.lane, frame));
            }
            Err(damage) => self.data_damaged(read, damage),
        }
    }

    pub(super) fn data_damaged(&mut self, read: Request, damage: Damage) {
        let Damage { object, range, reason } = damage;
        let key = self.object_key(object);
        self.read_damaged(read, key, range, reason);
    }
}
