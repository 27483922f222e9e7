//! An engine of a snapshot: it reads the map of that segment, answers whoever asks, and writes nothing.
//!
//! The map is that of the snapshot's root, which the newest root of the volume names. Until there is one
//! the segments after an older root are read, up to the snapshot's own; what such a root names may go
//! when the volume goes on, and then the snapshot's root is there instead.

use super::super::catalog::RootName;
use super::super::map::table::Table;
use super::super::reads::{Request, Stage, What};
use super::super::root::{Pins, Root};
use super::super::{Event, OpenError, SessionId, catalog};
use super::opening::Opening;
use super::upkeep::Step;
use super::{Phase, Volume};
use crate::block::VolumeId;
use crate::wire::link::{
    AttachError, Attached, Changes, Frame, Lane, LiveInfo, MAX_READ_SECTORS, ReadError, RequestId,
    ToHost, ToStore, VolumeError,
};
use bytes::Bytes;

/// Which snapshot an engine is of.
#[derive(Debug)]
pub(super) struct Only {
    pub segment: u64,
    pub id: VolumeId,
    /// The root of the snapshot that the map is of.
    based: Option<RootName>,
    /// The one that is being read, and the volume's root that names it.
    reading: Option<(RootName, RootName)>,
    /// One that was not there although a root named it.
    missed: Option<RootName>,
}

impl Only {
    pub fn new(segment: u64, id: VolumeId) -> Only {
        Only { segment, id, based: None, reading: None, missed: None }
    }
}

impl Volume {
    pub(super) fn is_readonly(&self) -> bool {
        self.only.is_some()
    }

    /// The volume's root `name` has been read: goes on from the snapshot's, or from this one if there is none yet.
    /// False if this one has to do.
    pub(super) fn only_root(&mut self, name: RootName, root: &Root) -> bool {
        let Some(only) = &mut self.only else { return false };
        if only.segment > root.state.number {
            return false;
        }
        let there = root.state.snapshots.at(only.segment).is_some_and(|s| s.id == only.id);
        match root.pins.get(&only.segment).filter(|_| there) {
            None => self.fail(OpenError::NoSnapshot),
            Some(pin) if only.based == Some(*pin) => {
                self.upkeep.newest = Some(name);
                self.adopt_moved(root.moved.clone());
                self.roots_seen(None, true);
            }
            Some(pin) => {
                only.reading = Some((*pin, name));
                // Of the same moment as the snapshot's root or later: what had moved then still has.
                self.adopt_moved(root.moved.clone());
                match self.phase {
                    Phase::Opening(_) => self.phase = Phase::Opening(Opening::Pin),
                    _ => self.upkeep.step = Step::ReadPin,
                }
                self.read_pin(*pin);
            }
        }
        true
    }

    /// What reading the root of the snapshot gave.
    pub(super) fn only_pin_read(&mut self, name: RootName, data: Option<Bytes>) {
        let Some(only) = &mut self.only else { return };
        let Some((_, newest)) = only.reading.take_if(|(pin, _)| *pin == name) else { return };
        let opening = matches!(self.phase, Phase::Opening(_));
        if data.is_none() && only.missed != Some(name) {
            // The snapshot may have been deleted since: then a newer root says so.
            only.missed = Some(name);
            if opening {
                self.phase = Phase::Opening(Opening::Roots);
                self.list_roots();
            } else {
                self.look_for_roots(None);
            }
            return;
        }
        let Some(Root { generation, state, levels, .. }) = self.parse_pin(name, data) else {
            let key = catalog::pin_key(self.spec.id, name);
            let reason = "the root of the snapshot cannot be read".to_owned();
            return self.fail(OpenError::Damaged { key, reason });
        };
        let through = state.number;
        {
            let pages = &mut *self.config.pages.lock();
            self.tree.adopt(levels, through, pages);
            self.tree.load(Table::new(), pages);
        }
        self.upkeep.based_on(newest, state.clone(), Pins::new());
        self.state = state;
        if let Some(only) = &mut self.only {
            (only.based, only.missed) = (Some(name), None);
        }
        if opening {
            self.log_ended(0);
        } else {
            self.event(Event::Adopted { generation, through, again: 0 });
            self.roots_seen(None, true);
        }
    }

    /// The segment that took the snapshot has been applied, or was not there.
    pub(super) fn only_replayed(&mut self, applied: u64) {
        let Some(only) = &self.only else { return };
        let taken = self.state.snapshots.at(only.segment);
        if self.state.number == only.segment && taken.is_some_and(|taken| taken.id == only.id) {
            self.log_ended(applied);
        } else {
            self.fail(OpenError::NoSnapshot);
        }
    }

    pub(super) fn only_message(
        &mut self,
        session: SessionId,
        lane: Lane,
        ours: VolumeId,
        frame: Frame<ToStore>,
    ) {
        let data = |request, epoch, range| Request {
            session,
            lane,
            request,
            epoch,
            range,
            what: What::Data,
        };
        match frame.message {
            ToStore::Attach { request, .. } => self.only_attach(session, lane, request),
            ToStore::Resume { request, volume, .. } if volume == ours => {
                self.only_attach(session, lane, request);
            }
            ToStore::Detach { request, volume, .. } if volume == ours => {
                self.send(session, lane, ToHost::Detached { request });
            }
            ToStore::Batch { volume, epoch, .. } if volume == ours => {
                let reason = "a snapshot cannot be written to".to_owned();
                let refused = ToHost::BatchRefused { volume, epoch, reason };
                self.send(session, Lane::Control, refused);
            }
            ToStore::Read { request, volume, epoch, range }
            | ToStore::ReadBehind { request, volume, epoch, range, .. }
                if volume == ours =>
            {
                let request = data(request, epoch, range);
                self.asked_to_read(request, MAX_READ_SECTORS);
            }
            ToStore::Status { request, volume, epoch, range } if volume == ours => {
                self.asked_for_status(session, lane, request, epoch, range);
            }
            ToStore::Stage { request, volume, epoch, range, into, lba, object }
                if volume == ours =>
            {
                let stage = Stage { into, lba, object };
                self.stage(session, lane, request, epoch, range, stage);
            }
            ToStore::Changed { request, volume, epoch, .. } if volume == ours => {
                let serves = self.only_serves() && epoch == 0;
                let result = if serves {
                    Ok(Changes::Ranges(Vec::new()))
                } else {
                    Err(ReadError::NotAttached)
                };
                self.send(session, lane, ToHost::Changed { request, volume, result });
            }
            ToStore::Volume { request, .. } => {
                let what = "this is not an operation on a snapshot".to_owned();
                self.reply_volume(session, lane, request, Err(VolumeError::Invalid(what)));
            }
            _ => {}
        }
    }

    fn only_serves(&self) -> bool {
        matches!(self.phase, Phase::Running) && !self.shutting_down
    }

    fn only_attach(&mut self, session: SessionId, lane: Lane, request: RequestId) {
        let result = match self.failed() {
            None if !self.only_serves() => Err(AttachError::ShuttingDown),
            None => Ok(Attached {
                volume: self.id(),
                sectors: self.state.sectors,
                block_bytes: self.spec.block_bytes,
                epoch: 0,
                committed: self.state.committed,
            }),
            Some(OpenError::NoSnapshot) => Err(AttachError::NotFound),
            Some(error) => Err(AttachError::Damaged(error.to_string())),
        };
        self.send(session, lane, ToHost::Attached { request, result });
    }

    /// What is known of the snapshot, once it is open.
    pub(super) fn only_info(&self, mapped_bytes: u64) -> LiveInfo {
        LiveInfo {
            epoch: 0,
            host: None,
            name: String::new(),
            connected: false,
            silent_since: None,
            clean: true,
            committed: self.state.committed,
            segments: self.state.number,
            mapped_bytes,
            announced_bytes: 0,
        }
    }
}
