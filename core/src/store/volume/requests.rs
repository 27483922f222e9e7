//! Hands the requests of sessions to the machine that decides, and makes the answers that more than
//! one machine has a part in.

use super::Volume;
use super::committer::{LogChange, SegmentPlan, SegmentPut};
use super::context::Context;
use super::diffs;
use super::maintenance::RollbackMap;
use super::ownership::{Admission, AttachRequest};
use super::reading::{self, Access};
use super::reply::ReplyAddress;
use super::sizes;
use super::snapshots::{self, SnapshotRequest};
use crate::block::{Epoch, Range};
use crate::store::event::{Event, OpenError};
use crate::store::read_request::{ReadPurpose, ReadRequest, StageTarget};
use crate::store::segment::{Note, Segment, SegmentKind};
use crate::store::session::SessionId;
use crate::store::snapshot::Snapshot;
use crate::wire::link::{
    AttachError, Attached, Changes, Frame, HostId, Lane, MAX_READ_SECTORS, MAX_STATUS_RUNS, Moment,
    ReadError, RequestId, SnapshotOperation, SnapshotReply, ToHost, ToStore, VolumeError,
    VolumeInfo, VolumeOperation, VolumeReply,
};

/// The state before a segment.
pub(super) struct Before {
    /// The host that had not detached.
    unclean: Option<HostId>,
    /// It, for people, if an attach takes the volume from it.
    former: Option<String>,
    /// Announced bytes.
    lost: u64,
}

impl Volume {
    // Messages.

    pub(super) fn message(&mut self, session: SessionId, lane: Lane, frame: Frame<ToStore>) {
        if self.facts.is_readonly() {
            return self.snapshot_message(session, lane, frame);
        }
        let frame = match self.owner.admit(cx!(self), session, lane, frame) {
            Admission::Admitted(frame) => frame,
            Admission::Refused => return,
            Admission::ResumeRefused => {
                return self.reads.resume_decided(cx!(self), access!(self), session);
            }
        };
        let ours = self.facts.id();
        let to = |request| ReplyAddress { session, lane, request };
        match frame.message {
            ToStore::Attach { request, host, journal, take_over, .. } => {
                let attach = AttachRequest { host, journal, take_over };
                self.queue(LogChange::Attach { to: to(request), request: attach });
            }
            ToStore::Resume { request, volume, epoch, host } if volume == ours => {
                self.queue(LogChange::Resume { to: to(request), epoch, host });
            }
            ToStore::Detach { request, volume, epoch } if volume == ours => {
                self.queue(LogChange::Detach { to: to(request), epoch });
            }
            ToStore::Batch { volume, epoch, first, last } if volume == ours => {
                if self.is_serving() {
                    let (owner, seqs) = (&mut self.owner, (first, last));
                    self.commits.take_batch(cx!(self), owner, session, epoch, seqs, frame.payload);
                }
            }
            ToStore::Announce { volume, epoch, replace, entries } if volume == ours => {
                let holds = self.owner.is_held_by(session) && epoch == self.log.epoch();
                if self.is_serving() && holds {
                    // A segment of another engine counts as much as this session's requests: the
                    // host may have told that engine more since. Once this engine has caught up,
                    // the session is resumed, and replaces.
                    let replace = replace && self.reader.is_running();
                    let log = (&self.facts, &mut self.log, &mut self.out);
                    self.commits.announce(log, session, replace, &entries);
                }
            }
            ToStore::EarlyRead { request, volume, epoch, committed, range } if volume == ours => {
                let read = data_read(to(request), epoch, range);
                self.reads.ask_early(cx!(self), access!(self), (read, committed));
            }
            ToStore::Changed { request, volume, epoch, since } if volume == ours => {
                self.changed(to(request), epoch, since);
            }
            ToStore::Barrier { volume, epoch, barrier, seq } if volume == ours => {
                self.snapshots.handle_barrier(session, epoch, barrier, seq);
            }
            ToStore::Volume { request, operation } => {
                self.volume_operation(to(request), operation);
            }
            other => self.read_message(session, lane, other),
        }
    }

    /// Reads, of a volume or of a snapshot.
    fn read_message(&mut self, session: SessionId, lane: Lane, message: ToStore) {
        let ours = self.facts.id();
        let to = |request| ReplyAddress { session, lane, request };
        match message {
            ToStore::Read { request, volume, epoch, range } if volume == ours => {
                let read = data_read(to(request), epoch, range);
                self.reads.ask(cx!(self), access!(self), read, MAX_READ_SECTORS);
            }
            ToStore::Status { request, volume, epoch, range } if volume == ours => {
                self.reads.ask_status(cx!(self), access!(self), to(request), epoch, range);
            }
            ToStore::Stage { request, volume, epoch, range, into, lba, object }
                if volume == ours =>
            {
                let target = StageTarget { into, lba, object };
                let purpose = ReadPurpose::Stage(target);
                let read = ReadRequest { session, lane, request, epoch, range, purpose };
                self.reads.ask_stage(cx!(self), access!(self), read, target);
            }
            // Of another volume, or not for an engine.
            _ => {}
        }
    }

    /// A message to an engine of a snapshot, which answers every requester and writes nothing.
    fn snapshot_message(&mut self, session: SessionId, lane: Lane, frame: Frame<ToStore>) {
        let ours = self.facts.id();
        match frame.message {
            ToStore::Attach { request, .. } => self.attach_snapshot(session, lane, request),
            ToStore::Resume { request, volume, .. } if volume == ours => {
                self.attach_snapshot(session, lane, request);
            }
            ToStore::Detach { request, volume, .. } if volume == ours => {
                self.out.send(session, lane, ToHost::Detached { request });
            }
            ToStore::Batch { volume, epoch, .. } if volume == ours => {
                let reason = "a snapshot cannot be written to".to_owned();
                let refused = ToHost::BatchRefused { volume, epoch, reason };
                self.out.send(session, Lane::Control, refused);
            }
            ToStore::EarlyRead { request, volume, epoch, range, .. } if volume == ours => {
                let read = ToStore::Read { request, volume, epoch, range };
                self.read_message(session, lane, read);
            }
            ToStore::Changed { request, volume, epoch, .. } if volume == ours => {
                let serves = self.serves_snapshot() && epoch == 0;
                let result = if serves {
                    Ok(Changes::Ranges(Vec::new()))
                } else {
                    Err(ReadError::NotAttached)
                };
                self.out.send(session, lane, ToHost::Changed { request, volume, result });
            }
            ToStore::Volume { request, .. } => {
                let what = "this is not an operation on a snapshot".to_owned();
                let to = ReplyAddress { session, lane, request };
                self.out.reply(to, Err(VolumeError::Invalid(what)));
            }
            other => self.read_message(session, lane, other),
        }
    }

    fn is_serving(&self) -> bool {
        self.reader.is_open() && !self.facts.is_stopping()
    }

    fn serves_snapshot(&self) -> bool {
        self.reader.is_running() && !self.facts.is_stopping()
    }

    fn attach_snapshot(&mut self, session: SessionId, lane: Lane, request: RequestId) {
        let result = match self.failed() {
            None if !self.serves_snapshot() => Err(AttachError::ShuttingDown),
            None => Ok(Attached { epoch: 0, ..self.attached() }),
            Some(OpenError::NoSnapshot) => Err(AttachError::NotFound),
            Some(error) => Err(AttachError::Damaged(error.to_string())),
        };
        self.out.send(session, lane, ToHost::Attached { request, result });
    }

    fn changed(&mut self, to: ReplyAddress, epoch: Epoch, since: Moment) {
        // Observers need no such check; a writer does.
        let checked = match epoch {
            0 => Err(ReadError::Invalid),
            _ => {
                let range = Range::new(0, 1);
                let (facts, log) = (&self.facts, &self.log);
                let access = access!(self);
                reading::check((facts, log), access, to.session, epoch, range, u64::MAX)
            }
        };
        match checked {
            Ok(()) => self.diffs.begin(cx!(self), to, since),
            Err(error) => diffs::answer(&self.facts, &mut self.out, to, Err(error)),
        }
    }

    fn volume_operation(&mut self, to: ReplyAddress, operation: VolumeOperation) {
        let change = match operation {
            VolumeOperation::AcceptLoss { .. } => LogChange::AcceptLoss { to },
            VolumeOperation::Resize { sectors, .. } => LogChange::Grow { to, sectors },
            VolumeOperation::Shrink { sectors, .. } => LogChange::Shrink { to, sectors },
            VolumeOperation::Lost { from_lba, .. } => LogChange::Lost { to, from_lba },
            VolumeOperation::Snapshot { operation, .. } => {
                LogChange::Snapshot(SnapshotRequest { to, operation })
            }
            VolumeOperation::Show { .. } => {
                let info = self.volume_info();
                return self.out.reply(to, Ok(VolumeReply::Volume(info)));
            }
            VolumeOperation::Create { .. }
            | VolumeOperation::List
            | VolumeOperation::Stored { .. }
            | VolumeOperation::Delete { .. }
            | VolumeOperation::GetAttribute { .. }
            | VolumeOperation::SetAttribute { .. }
            | VolumeOperation::Trash(_) => {
                let what = "this is not an operation on an open volume".to_owned();
                return self.out.reply(to, Err(VolumeError::Invalid(what)));
            }
        };
        self.queue(change);
    }

    // Changes of the log.

    /// Queues an operation, or refuses it if it can never have its turn.
    fn queue(&mut self, change: LogChange) {
        if self.is_serving() {
            self.commits.push(change);
        } else {
            self.refuse_change(change);
        }
    }

    /// Refuses all that wait for their turn.
    pub(super) fn refuse_changes(&mut self) {
        for change in self.commits.take_queue() {
            self.refuse_change(change);
        }
        for request in self.snapshots.take() {
            self.refuse_change(LogChange::Snapshot(request));
        }
    }

    /// Answers an operation that the engine will not execute.
    pub(super) fn refuse_change(&mut self, change: LogChange) {
        let failed = self.failed().map(ToString::to_string);
        let attach = match &failed {
            Some(reason) => AttachError::Damaged(reason.clone()),
            None => AttachError::ShuttingDown,
        };
        let store =
            failed.unwrap_or_else(|| "the volume is being closed here; try again".to_owned());
        match change {
            // The host asks again when it has resumed at another store, or at this one.
            LogChange::Batch(_) | LogChange::Detach { .. } => {}
            LogChange::Attach { to, .. } | LogChange::Resume { to, .. } => {
                self.reply_attach(to, Err(attach));
            }
            LogChange::AcceptLoss { to }
            | LogChange::Grow { to, .. }
            | LogChange::Shrink { to, .. }
            | LogChange::Lost { to, .. }
            | LogChange::Snapshot(SnapshotRequest { to, .. }) => {
                self.out.reply(to, Err(VolumeError::Store(store)));
            }
        }
    }

    /// Snapshots that have waited long enough take their place in the queue.
    pub(super) fn advance_snapshots(&mut self) {
        if self.snapshots.is_empty() {
            return;
        }
        let reached = self.snapshots.reached(cx!(self), self.owner.session());
        let (map, cx) = (&mut self.map, cx!(self));
        let with_room = self.snapshots.with_room(|operation| map.has_room(cx, operation));
        for request in reached.into_iter().chain(with_room) {
            self.commits.push(LogChange::Snapshot(request));
        }
    }

    /// Executes the operation whose turn has come: no put of a segment is in progress.
    pub(super) fn begin_change(&mut self, change: LogChange) {
        let Some(change) = self.commits.probed(change) else { return self.catch_up() };
        match change {
            LogChange::Batch(_) => {}
            LogChange::Attach { to, request } => self.begin_attach(to, request),
            LogChange::Resume { to, epoch, host } => {
                let result = self.owner.resume(&self.facts, &self.log, to.session, epoch, host);
                if result.is_ok() && self.owner.has_replica() {
                    // A host drops the writes that the engine calls committed. The replica has the
                    // segments of other stores once it has a later segment.
                    return self.put_plain(SegmentKind::Announce, change);
                }
                self.reply_resumed(to, result);
            }
            LogChange::Detach { to, epoch } => {
                let ends = self.owner.is_held_by(to.session) && epoch == self.log.epoch();
                if ends && !self.log.clean && self.log.announced.is_empty() {
                    return self.put_plain(SegmentKind::Detach, change);
                }
                if ends {
                    self.owner.release();
                }
                self.detached(to);
            }
            LogChange::AcceptLoss { to } => self.begin_accept_loss(to),
            LogChange::Grow { to, sectors } => {
                match sizes::may_grow(&self.facts, &self.log, sectors) {
                    Err(error) => self.out.reply(to, Err(error)),
                    Ok(false) => self.reply_resized(to),
                    Ok(true) => self.put_plain(SegmentKind::Resize, change),
                }
            }
            LogChange::Shrink { to, sectors } => self.begin_shrink(to, sectors),
            LogChange::Snapshot(request) => self.begin_snapshot(request),
            LogChange::Lost { to, from_lba } => {
                let reply = self.lost(from_lba);
                self.out.reply(to, Ok(reply));
            }
        }
    }

    fn put_segment(&mut self, plan: SegmentPlan) {
        let begins = self.reader.begins();
        self.commits.put(cx!(self), begins, plan);
    }

    /// Puts a segment of that kind that says nothing but that.
    fn put_plain(&mut self, kind: SegmentKind, change: LogChange) {
        let plan = SegmentPlan::in_epoch(&self.facts, &self.log, kind, Some(change));
        self.put_segment(plan);
    }

    fn begin_attach(&mut self, to: ReplyAddress, request: AttachRequest) {
        if let Err(error) = self.owner.may_attach(&self.facts, &self.log, to.session, request) {
            return self.reply_attach(to, Err(error));
        }
        // Batches that arrived behind this request are acknowledged writes of the epoch that it
        // would end, whether the host had announced them or not.
        self.commits.announce_queued(&mut self.log, &self.owner);
        let (granted, key) = match self.owner.decide(&self.log, to.session, request) {
            Ok(granted) => granted,
            Err(error) => return self.reply_attach(to, Err(error)),
        };
        let change = LogChange::Attach { to, request };
        let mut plan = SegmentPlan::ends_epoch(&self.log, SegmentKind::Attach, change);
        let mut announced = self.log.announced.clone();
        announced.forget_after(granted.owed);
        let limit = self.facts.config().announce_in_segment_max;
        let footer = &mut plan.footer;
        (footer.announced, footer.rounded) = announced.snapshot(self.log.committed, limit);
        (footer.base, footer.key) = (granted.base, key);
        plan.host = Some(request.host);
        self.put_segment(plan);
    }

    fn begin_accept_loss(&mut self, to: ReplyAddress) {
        if let Some(host) = self.owner.host(&self.facts, &self.log) {
            return self.out.reply(to, Err(VolumeError::InUse(host)));
        }
        if self.log.host().is_none() {
            // Nobody's epoch: no host, nothing to give up.
            return self.out.reply(to, Ok(VolumeReply::Done));
        }
        let (kind, change) = (SegmentKind::AcceptLoss, LogChange::AcceptLoss { to });
        let plan = SegmentPlan::ends_epoch(&self.log, kind, change);
        self.put_segment(plan);
    }

    /// Cuts off the end, in an epoch that is nobody's: no host goes on with what it knew, and no
    /// cache with what was there.
    fn begin_shrink(&mut self, to: ReplyAddress, sectors: u64) {
        let connected = self.owner.is_connected();
        match sizes::may_shrink(&self.facts, &self.log, connected, sectors) {
            Err(error) => self.out.reply(to, Err(error)),
            Ok(false) => self.reply_resized(to),
            Ok(true) => {
                let (kind, change) = (SegmentKind::Shrink, LogChange::Shrink { to, sectors });
                let (piece, record) = sizes::cut(&self.facts, &self.log, sectors);
                let mut plan = SegmentPlan::ends_epoch(&self.log, kind, change);
                plan.footer.pieces.push(piece);
                plan.records.push(record);
                self.put_segment(plan);
            }
        }
    }

    /// Executes an operation on snapshots whose turn has come.
    fn begin_snapshot(&mut self, request: SnapshotRequest) {
        let (facts, log) = (&self.facts, &self.log);
        let bare = |segment, id| Note { segment, id, created: 0, name: String::new() };
        let begun = match &request.operation {
            SnapshotOperation::List { after, hidden } => {
                Ok(Err(snapshots::list(log, *after, *hidden)))
            }
            SnapshotOperation::Create { snapshot, id, created, barrier } => {
                match snapshots::may_create(facts, log, snapshot, *id) {
                    Ok(None) if *barrier && self.owner.is_connected() => {
                        if let Some(session) = self.owner.session() {
                            self.snapshots.ask_barrier(cx!(self), session, request);
                        }
                        return;
                    }
                    Ok(None) if !self.map.has_room(cx!(self), &request.operation) => {
                        return self.snapshots.wait_for_room(request);
                    }
                    Ok(None) => {
                        let note = snapshots::taken(&self.log, snapshot, *id, *created);
                        Ok(Ok((SegmentKind::Snapshot, note)))
                    }
                    Ok(Some(info)) => Ok(Err(SnapshotReply::Taken(info))),
                    Err(error) => Err(error),
                }
            }
            SnapshotOperation::Delete { snapshot } => {
                snapshots::named(log, snapshot).map(|&Snapshot { segment, id, .. }| {
                    Ok((SegmentKind::DeleteSnapshot, bare(segment, id)))
                })
            }
            SnapshotOperation::Clone { .. }
                if !self.map.has_room(cx!(self), &request.operation) =>
            {
                return self.snapshots.wait_for_room(request);
            }
            SnapshotOperation::Clone { snapshot, clone, id } => {
                let may = snapshots::may_clone(&self.facts, &self.log, snapshot, clone, *id);
                may.map(|(segment, there)| match there {
                    Some(reply) => Err(reply),
                    None => {
                        let (id, created, name) = (*id, 0, clone.clone());
                        Ok((SegmentKind::Clone, Note { segment, id, created, name }))
                    }
                })
            }
            SnapshotOperation::Forget { id } => Ok(match log.snapshots.clone_of(*id) {
                None => Err(SnapshotReply::Done),
                Some(clone) => Ok((SegmentKind::Forget, bare(clone.segment, clone.id))),
            }),
            SnapshotOperation::Rollback { snapshot } => match self.may_roll_back(snapshot) {
                Ok(_) if !self.map.has_room(cx!(self), &request.operation) => {
                    return self.snapshots.wait_for_room(request);
                }
                Ok(note) => Ok(Ok((SegmentKind::Rollback, note))),
                Err(error) => Err(error),
            },
            SnapshotOperation::Diff { .. } | SnapshotOperation::Usage { .. } => {
                Err(VolumeError::Invalid("several maps are needed to compare them".into()))
            }
        };
        match begun {
            Ok(Ok((kind, note))) => {
                let change = LogChange::Snapshot(request);
                let mut plan = if kind.begins_epoch() {
                    SegmentPlan::ends_epoch(&self.log, kind, change)
                } else {
                    SegmentPlan::in_epoch(&self.facts, &self.log, kind, Some(change))
                };
                plan.footer.note = Some(note);
                self.put_segment(plan);
            }
            Ok(Err(reply)) => snapshots::reply(&mut self.out, request.to, Ok(reply)),
            Err(error) => snapshots::reply(&mut self.out, request.to, Err(error)),
        }
    }

    /// Makes the note of a segment that rolls back to that snapshot. If the map of the snapshot is
    /// not in memory, the engine reads it first.
    fn may_roll_back(&mut self, snapshot: &str) -> Result<Note, VolumeError> {
        let note = snapshots::may_roll_back(&self.facts, &self.log, &self.owner, snapshot)?;
        match self.map.rollback_map(cx!(self), note.segment) {
            RollbackMap::Known => Ok(note),
            RollbackMap::Missing => {
                let why = "the root of the snapshot is not there, or damaged; try again";
                Err(VolumeError::Store(why.to_owned()))
            }
        }
    }

    /// The state before that segment counts.
    pub(super) fn before(&self, segment: &Segment) -> Before {
        let attaches = segment.header.kind == SegmentKind::Attach;
        Before {
            unclean: self.log.host().filter(|_| !self.log.clean),
            former: if attaches { self.owner.former(&self.log) } else { None },
            lost: self.log.announced.bytes(),
        }
    }

    /// The segment counts, and the engine has applied it. Answers the requester.
    pub(super) fn segment_committed(&mut self, put: SegmentPut, before: Before) {
        let segment = put.segment();
        let kind = segment.header.kind;
        if let Some(note) = &segment.footer.note
            && kind == SegmentKind::Rollback
        {
            let (epoch, segment, bytes) = (self.log.epoch(), note.segment, before.lost);
            self.out.event(Event::RolledBack { epoch, segment, bytes });
        }
        match put.into_change() {
            (Some(change), closed) => self.change_done(change, closed, before),
            (None, _) if kind == SegmentKind::Data => self.owner.tell_committed(cx!(self)),
            (None, _) => {}
        }
    }

    /// The segment of an operation exists. `closed`: the session that asked is gone.
    fn change_done(&mut self, change: LogChange, closed: bool, before: Before) {
        if !change.keeps_epoch() {
            self.owner.fence(cx!(self), change.session());
        }
        let epoch = self.log.epoch();
        match change {
            LogChange::Batch(_) | LogChange::Lost { .. } => {}
            LogChange::Resume { to, epoch, host } => {
                if !closed {
                    let result = self.owner.resume(&self.facts, &self.log, to.session, epoch, host);
                    self.reply_resumed(to, result);
                }
            }
            LogChange::Grow { to, .. } | LogChange::Shrink { to, .. } => {
                if !closed {
                    self.reply_resized(to);
                }
            }
            LogChange::Snapshot(SnapshotRequest { to, operation }) => {
                if !closed {
                    let result = snapshots::done(&self.facts, &self.log, &operation);
                    snapshots::reply(&mut self.out, to, result);
                }
            }
            LogChange::Attach { to, request: AttachRequest { host, .. } } => {
                let Before { unclean, former, .. } = before;
                let ReplyAddress { session, request, .. } = to;
                let attached = Event::Attached { epoch, host, unclean, session, request, former };
                self.out.event(attached);
                self.owner.take(&self.facts, &self.log, session, !closed);
                if !closed {
                    self.reply_attach(to, Ok(self.attached()));
                    if self.owner.has_replica() {
                        self.owner.tell_replica(cx!(self));
                    }
                }
            }
            LogChange::Detach { to, .. } => {
                self.owner.release();
                if !closed {
                    self.detached(to);
                }
            }
            LogChange::AcceptLoss { to } => {
                self.out.event(Event::LossAccepted { epoch, bytes: before.lost });
                if !closed {
                    self.out.reply(to, Ok(VolumeReply::Done));
                }
            }
        }
    }

    // Answers.

    fn reply_attach(&mut self, to: ReplyAddress, result: Result<Attached, AttachError>) {
        let ReplyAddress { session, lane, request } = to;
        self.out.send(session, lane, ToHost::Attached { request, result });
        self.reads.resume_decided(cx!(self), access!(self), session);
    }

    fn reply_resumed(&mut self, to: ReplyAddress, result: Result<(), AttachError>) {
        // A host that knows of another state must not believe that the replica has all committed
        // writes.
        if result.is_ok() {
            self.owner.tell_replica(cx!(self));
        }
        let result = result.map(|()| self.attached());
        self.reply_attach(to, result);
    }

    fn attached(&self) -> Attached {
        Attached {
            volume: self.facts.id(),
            sectors: self.log.sectors,
            block_bytes: self.facts.spec().block_bytes,
            epoch: self.log.epoch(),
            committed: self.log.committed,
        }
    }

    fn detached(&mut self, to: ReplyAddress) {
        self.out.send(to.session, to.lane, ToHost::Detached { request: to.request });
    }

    /// Tells the size of the volume once the location has noted it.
    pub(super) fn reply_resized(&mut self, to: ReplyAddress) {
        if self.sizes.is_noted_for(to, self.reader.is_open()) {
            let info = self.volume_info();
            self.out.reply(to, Ok(VolumeReply::Volume(info)));
        }
    }

    /// The engine will note no more sizes.
    pub(super) fn refuse_resized(&mut self) {
        let reason = self.failed().map(ToString::to_string).unwrap_or_default();
        for to in self.sizes.give_up() {
            self.out.reply(to, Err(VolumeError::Store(reason.clone())));
        }
    }

    fn volume_info(&self) -> VolumeInfo {
        self.facts.spec().info(self.log.sectors, self.info())
    }

    fn lost(&self, from_lba: u64) -> VolumeReply {
        let announced = &self.log.announced;
        let mut entries = announced.iter_from(from_lba);
        let ranges = entries.by_ref().take(MAX_STATUS_RUNS).map(|entry| entry.range).collect();
        VolumeReply::Lost {
            host: self.log.host(),
            connected: self.owner.is_connected(),
            clean: self.log.clean,
            rounded: announced.rounded(),
            ranges,
            more: entries.next().is_some(),
        }
    }
}

fn data_read(to: ReplyAddress, epoch: Epoch, range: Range) -> ReadRequest {
    let ReplyAddress { session, lane, request } = to;
    ReadRequest { session, lane, request, epoch, range, purpose: ReadPurpose::Data }
}
