//! Attach, resume, detach, and operations on the volume as a whole.

use super::super::attach::{self, Asker};
use super::super::segment::{self, SegmentKind};
use super::super::{Event, SessionId};
use super::commit::{Before, Wish, Work};
use super::snapshots::Asked;
use super::{Holder, Phase, Second, Volume};
use crate::block::Epoch;
use crate::wire::link::{
    Announced, AttachError, Attached, HostId, Lane, MAX_STATUS_RUNS, RequestId, ToHost,
    VolumeError, VolumeOperation, VolumeReply,
};

impl Volume {
    /// Queues an operation, or refuses it if it can never have its turn.
    pub(super) fn control(&mut self, work: Work) {
        let serving = matches!(self.phase, Phase::Running | Phase::CatchingUp(_));
        if serving && !self.shutting_down {
            self.queue.push_back(work);
        } else {
            self.refuse_work(work);
        }
    }

    /// Answers an operation that will not be executed.
    pub(super) fn refuse_work(&mut self, work: Work) {
        let failed = self.failed().map(ToString::to_string);
        let attach = match &failed {
            Some(reason) => AttachError::Damaged(reason.clone()),
            None => AttachError::ShuttingDown,
        };
        let store =
            failed.unwrap_or_else(|| "the volume is being closed here; try again".to_owned());
        match work {
            Work::Batch(_) => {}
            Work::Attach { session, lane, request, .. }
            | Work::Resume { session, lane, request, .. } => {
                self.reply_attach(session, lane, request, Err(attach));
            }
            // The host asks again when it has resumed at another store, or at this one.
            Work::Detach { .. } => {}
            Work::AcceptLoss { session, lane, request }
            | Work::Resize { session, lane, request, .. }
            | Work::Lost { session, lane, request, .. } => {
                self.reply_volume(session, lane, request, Err(VolumeError::Store(store)));
            }
            Work::Snapshot { asked: Asked { session, lane, request }, .. } => {
                self.reply_volume(session, lane, request, Err(VolumeError::Store(store)));
            }
        }
    }

    fn reply_attach(
        &mut self,
        session: SessionId,
        lane: Lane,
        request: RequestId,
        result: Result<Attached, AttachError>,
    ) {
        self.send(session, lane, ToHost::Attached { request, result });
        self.release_behind(session);
    }

    fn reply_resumed(
        &mut self,
        session: SessionId,
        lane: Lane,
        request: RequestId,
        result: Result<Attached, AttachError>,
    ) {
        // A host that knows of another state must not take what is committed for what is at both.
        if result.is_ok() {
            self.tell_second();
        }
        self.reply_attach(session, lane, request, result);
    }

    fn attached(&self) -> Attached {
        Attached {
            volume: self.spec.id,
            sectors: self.state.sectors,
            block_bytes: self.spec.block_bytes,
            epoch: self.state.epoch(),
            committed: self.state.committed,
        }
    }

    /// Executes an operation whose turn has come: no segment is being put.
    pub(super) fn begin_control(&mut self, work: Work) {
        // What another store has written meanwhile decides too, and must be in the answer: a host
        // throws away what it is told to be committed. A detach finds out by putting its segment.
        if !self.probed && !matches!(work, Work::Detach { .. }) {
            self.probed = true;
            self.queue.push_front(work);
            self.catch_up();
            return;
        }
        self.probed = false;
        match work {
            Work::Batch(_) => {}
            Work::Attach { session, lane, request, wish } => {
                self.begin_attach(session, lane, request, wish);
            }
            Work::Resume { session, lane, request, epoch, host } => {
                let result = self.resume(session, epoch, host);
                if result.is_ok() && self.second != Second::None {
                    // A host throws away what it is told to be committed. What others have written is at the second place
                    // once something that follows it is.
                    let work = Work::Resume { session, lane, request, epoch, host };
                    self.put_segment(SegmentKind::Announce, Vec::new(), Some(work));
                    return;
                }
                self.reply_resumed(session, lane, request, result);
            }
            Work::Detach { session, lane, request, epoch } => {
                let holds = self.holder.is_some_and(|holder| holder.session == session);
                let ends = holds && epoch == self.state.epoch();
                if ends && !self.state.clean && self.state.announced.is_empty() {
                    let work = Work::Detach { session, lane, request, epoch };
                    self.put_segment(SegmentKind::Detach, Vec::new(), Some(work));
                } else {
                    if ends {
                        self.holder = None;
                    }
                    self.send(session, lane, ToHost::Detached { request });
                }
            }
            Work::AcceptLoss { session, lane, request } => {
                self.begin_accept_loss(session, lane, request);
            }
            Work::Resize { session, lane, request, sectors, shrink: false } => {
                self.begin_resize(session, lane, request, sectors);
            }
            Work::Resize { session, lane, request, sectors, shrink: true } => {
                self.begin_shrink(session, lane, request, sectors);
            }
            Work::Snapshot { asked, operation } => self.begin_snapshot(asked, operation),
            Work::Lost { session, lane, request, from_lba } => {
                let reply = self.lost(from_lba);
                self.reply_volume(session, lane, request, Ok(reply));
            }
        }
    }

    fn resume(
        &mut self,
        session: SessionId,
        epoch: Epoch,
        host: HostId,
    ) -> Result<Attached, AttachError> {
        let current = self.state.epoch();
        if epoch > current {
            return Err(AttachError::Damaged(format!(
                "the host is in epoch {epoch}, the log ends in epoch {current}: part of the log is gone; bring the \
                 missing segments back from a copy of the object store"
            )));
        }
        let owner = self.state.host();
        if epoch < current || owner != Some(host) {
            return Err(AttachError::Fenced { epoch: current, host: owner.unwrap_or(HostId(0)) });
        }
        if let Some(key) = self.key_of_other(session, epoch) {
            return Err(AttachError::OtherKey { epoch, key });
        }
        self.take_over(session, true);
        Ok(self.attached())
    }

    fn begin_attach(&mut self, session: SessionId, lane: Lane, request: RequestId, wish: Wish) {
        let Wish { host, journal, take_over } = wish;
        if host == HostId(0) {
            let error = AttachError::Damaged("host identity 0 is reserved".into());
            self.reply_attach(session, lane, request, Err(error));
            return;
        }
        let key = self.key_of_session(session);
        if let Some(error) = self.in_use_by_other(host, key).filter(|_| !take_over) {
            return self.reply_attach(session, lane, request, Err(error));
        }
        // Batches that arrived behind this request are acknowledged writes of the epoch that it
        // would end, whether they had been announced or not.
        for work in &self.queue {
            if let Work::Batch(batch) = work
                && self.holder.is_some_and(|holder| holder.session == batch.session)
                && batch.epoch == self.state.epoch()
            {
                for piece in &batch.pieces {
                    if piece.seq > self.state.committed {
                        let entry = Announced { range: piece.range, seq: piece.seq };
                        self.state.announced.insert(entry);
                    }
                }
            }
        }
        let asker = Asker { key, take_over };
        let granted = match attach::decide(self.state.lineage(), asker, journal) {
            Ok(granted) => granted,
            Err(error) => {
                self.reply_attach(session, lane, request, Err(error));
                return;
            }
        };
        let mut announced = self.state.announced.clone();
        announced.forget_after(granted.owed);
        let committed = self.state.committed;
        let limit = self.config.announce_in_segment_max;
        let (announced, rounded) = announced.snapshot(committed, limit);
        let base = granted.base;
        let note = None;
        let footer = segment::Footer { announced, rounded, base, key, note, pieces: Vec::new() };
        let epoch = self.state.epoch() + 1;
        let work = Work::Attach { session, lane, request, wish };
        let kind = SegmentKind::Attach;
        self.put_built(kind, epoch, Some(host), committed, footer, Vec::new(), Some(work));
    }

    fn begin_accept_loss(&mut self, session: SessionId, lane: Lane, request: RequestId) {
        if let Some(host) = self.held_by() {
            self.reply_volume(session, lane, request, Err(VolumeError::InUse(host)));
            return;
        }
        if self.state.host().is_none() {
            // Nobody's epoch: no host, nothing to give up.
            self.reply_volume(session, lane, request, Ok(VolumeReply::Done));
            return;
        }
        let committed = self.state.committed;
        let footer = segment::Footer { base: committed, ..segment::Footer::default() };
        let epoch = self.state.epoch() + 1;
        let work = Work::AcceptLoss { session, lane, request };
        let kind = SegmentKind::AcceptLoss;
        self.put_built(kind, epoch, None, committed, footer, Vec::new(), Some(work));
    }

    /// Makes `session` the one whose batches count.
    fn take_over(&mut self, session: SessionId, connected: bool) {
        let epoch = self.state.epoch();
        self.holder = Some(Holder { epoch, session, connected, refused: false });
        self.note_holder(session);
        if !connected {
            self.await_holder();
        }
    }

    /// The segment of an operation exists.
    pub(super) fn control_done(&mut self, work: Work, closed: bool, before: Before) {
        let Before { unclean, holder: former, lost } = before;
        let epoch = self.state.epoch();
        let stays = match &work {
            Work::Detach { .. } | Work::Resume { .. } | Work::Resize { shrink: false, .. } => true,
            Work::Snapshot { operation, .. } => !operation.begins_epoch(),
            _ => false,
        };
        if !stays
            && let Some(before) = self.holder.take()
            && before.session != work.session()
        {
            let volume = self.spec.id;
            self.send(before.session, Lane::Control, ToHost::Fenced { volume, epoch });
        }
        match work {
            Work::Batch(_) | Work::Lost { .. } => {}
            Work::Resume { session, lane, request, epoch, host } => {
                if !closed {
                    let result = self.resume(session, epoch, host);
                    self.reply_resumed(session, lane, request, result);
                }
            }
            Work::Resize { session, lane, request, .. } => {
                if !closed {
                    self.reply_resized(session, lane, request);
                }
            }
            Work::Snapshot { asked, operation } => self.snapshot_done(asked, &operation, closed),
            Work::Attach { session, lane, request, wish: Wish { host, .. } } => {
                self.event(Event::Attached { epoch, host, unclean, session, request, former });
                self.take_over(session, !closed);
                if !closed {
                    let attached = self.attached();
                    self.reply_attach(session, lane, request, Ok(attached));
                    if self.second != Second::None {
                        self.tell_second();
                    }
                }
            }
            Work::Detach { session, lane, request, .. } => {
                self.holder = None;
                if !closed {
                    self.send(session, lane, ToHost::Detached { request });
                }
            }
            Work::AcceptLoss { session, lane, request } => {
                self.event(Event::LossAccepted { epoch, bytes: lost });
                if !closed {
                    self.reply_volume(session, lane, request, Ok(VolumeReply::Done));
                }
            }
        }
    }

    pub(super) fn volume_operation(
        &mut self,
        session: SessionId,
        lane: Lane,
        request: RequestId,
        operation: VolumeOperation,
    ) {
        let result = match operation {
            VolumeOperation::AcceptLoss { .. } => {
                self.control(Work::AcceptLoss { session, lane, request });
                return;
            }
            VolumeOperation::Resize { sectors, .. } => {
                self.control(Work::Resize { session, lane, request, sectors, shrink: false });
                return;
            }
            VolumeOperation::Shrink { sectors, .. } => {
                self.control(Work::Resize { session, lane, request, sectors, shrink: true });
                return;
            }
            VolumeOperation::Lost { from_lba, .. } => {
                self.control(Work::Lost { session, lane, request, from_lba });
                return;
            }
            VolumeOperation::Snapshot { operation, .. } => {
                let asked = Asked { session, lane, request };
                self.control(Work::Snapshot { asked, operation });
                return;
            }
            VolumeOperation::Show { .. } => Ok(VolumeReply::Volume(self.volume_info())),
            VolumeOperation::Create { .. }
            | VolumeOperation::List
            | VolumeOperation::Stored { .. }
            | VolumeOperation::Delete { .. }
            | VolumeOperation::GetAttribute { .. }
            | VolumeOperation::SetAttribute { .. }
            | VolumeOperation::Trash(_) => {
                Err(VolumeError::Invalid("this is not an operation on an open volume".into()))
            }
        };
        self.reply_volume(session, lane, request, result);
    }

    fn lost(&self, from_lba: u64) -> VolumeReply {
        let announced = &self.state.announced;
        let mut entries = announced.iter_from(from_lba);
        let ranges = entries.by_ref().take(MAX_STATUS_RUNS).map(|entry| entry.range).collect();
        VolumeReply::Lost {
            host: self.state.host(),
            connected: self.connected(),
            clean: self.state.clean,
            rounded: announced.rounded(),
            ranges,
            more: entries.next().is_some(),
        }
    }
}
