//! The engine of one volume.
//!
//! The engine has one owner and no locks: every input changes the state at once and leaves outputs
//! to poll. [`Volume`] itself decides nothing. It hands each input to one of these machines, tells
//! the others the result, and then lets each continue. No machine sees the state of another one: it
//! gets the facts that it needs as arguments.
//!
//! | machine | decides |
//! |---|---|
//! | [`log_reader`] | where the volume begins, the next segment, the end of the log |
//! | [`committer`] | whether a batch counts, the content of the next segment |
//! | [`ownership`] | the host of the epoch, the sessions that may speak for it |
//! | [`snapshots`] | whether a snapshot may begin or has to wait |
//! | [`sizes`] | when the location has noted a new size |
//! | [`reading`] | the answer to a read |
//! | [`diffs`] | the ranges that hosts wrote since a moment |
//! | [`maintenance`] | when to flush and merge the map, the root to continue from, the objects to delete |
//! | [`collector`] | the segments to empty |
//! | [`outputs`] | the outputs, and the retries of operations on objects |
//!
//! Some requests change the log or depend on its end: batches, attach, resume, detach, lost and
//! accept-loss. They go through one queue in order of arrival. Segments with batches may be on
//! their way together, any other one goes alone. Reads and announcements do not wait in the queue.

/// The state that a machine may read, and the place for its outputs.
macro_rules! cx {
    ($volume:ident) => {
        &mut Context { facts: &$volume.facts, log: &$volume.log, out: &mut $volume.out }
    };
}

/// Who may read.
macro_rules! access {
    ($volume:ident) => {
        Access {
            owner: &$volume.owner,
            serving: $volume.reader.is_open() && !$volume.facts.is_stopping(),
        }
    };
}

/// The facts about other machines that map maintenance needs.
macro_rules! around {
    ($volume:ident) => {
        Surroundings {
            running: $volume.reader.is_running(),
            can_put: $volume.reader.is_running() && !$volume.commits.is_putting(),
            saved: $volume.commits.unsaved_since().is_none(),
            unnoted: $volume.sizes.is_unnoted(),
            stranded: $volume.reads.is_stranded(),
            counting: $volume.gc.is_counting(),
        }
    };
}

mod collector;
mod committer;
mod context;
mod diffs;
mod facts;
mod log_reader;
mod maintenance;
mod objects;
mod outputs;
mod ownership;
mod purpose;
mod reading;
mod reply;
mod requests;
mod roots;
mod sizes;
mod snapshots;

use super::config::Config;
use super::event::{Event, OpenError};
use super::gc::moved::Moved;
use super::log::LogState;
use super::object::{ObjectOperation, ObjectResult};
use super::segment::Segment;
use super::session::SessionId;
use super::{Places, VolumeSpec, catalog};
use crate::block::{Range, SECTOR_BYTES, Time, VolumeId};
use crate::wire::link::{
    AttachError, Claim, Frame, HostId, KeyId, Lane, LiveInfo, ReadError, RequestId, StageError,
    ToHost, ToStore,
};
use collector::Collector;
use committer::Committer;
use context::Context;
use diffs::MapDiffs;
use facts::Facts;
use log_reader::{LogEnded, LogReader, LogStep, Resumed};
use maintenance::{MapEffect, MapMaintenance, Surroundings};
use outputs::{Outputs, UnknownOperation};
use ownership::Ownership;
pub use ownership::{ReplicaDurability, SessionPeer};
use purpose::ObjectPurpose;
use reading::{Access, ReadPath};
use sizes::SizeNotes;
use snapshots::SnapshotRequests;

/// The log of one volume as a state machine; see the [module](super).
///
/// Inputs are `handle_*`. After any of them, and after [`Volume::open`], the caller polls the
/// outputs `poll_*` until there are none. All other methods return the state of the volume. `now`
/// never goes back.
pub struct Volume {
    facts: Facts,
    out: Outputs,
    /// The log up to the last applied segment.
    log: LogState,
    reader: LogReader,
    owner: Ownership,
    commits: Committer,
    snapshots: SnapshotRequests,
    sizes: SizeNotes,
    reads: ReadPath,
    diffs: MapDiffs,
    map: MapMaintenance,
    gc: Collector,
}

impl Volume {
    /// Begins to open a volume. `incarnation` is random and never used for another engine.
    #[must_use]
    pub fn open(now: Time, spec: VolumeSpec, incarnation: u128, config: Config) -> Volume {
        Volume::begin(Facts::new(now, spec, None, incarnation, config))
    }

    /// Begins to open a snapshot of a volume, the one that the segment of that number took, for
    /// reading only. The engine uses the snapshot's identity in all answers. Any host may attach
    /// it, in epoch 0. The engine writes nothing. If the snapshot no longer exists, it fails with
    /// [`OpenError::NoSnapshot`], at once or when it finds out.
    #[must_use]
    pub fn open_snapshot(
        now: Time,
        spec: VolumeSpec,
        snapshot: (u64, VolumeId),
        incarnation: u128,
        config: Config,
    ) -> Volume {
        Volume::begin(Facts::new(now, spec, Some(snapshot), incarnation, config))
    }

    fn begin(facts: Facts) -> Volume {
        let mut out = Outputs::new(facts.config().retry);
        let reader = LogReader::open(&facts, &mut out);
        Volume {
            log: LogState::new(facts.spec(), facts.config().announce_entries_max),
            reader,
            owner: Ownership::default(),
            commits: Committer::default(),
            snapshots: SnapshotRequests::default(),
            sizes: SizeNotes::default(),
            reads: ReadPath::new(&facts),
            diffs: MapDiffs::default(),
            map: MapMaintenance::new(&facts),
            gc: Collector::new(facts.config(), facts.spec().id),
            facts,
            out,
        }
    }

    // Inputs.

    /// Names the peer of a session. Without this call the key of the session is unknown: it has
    /// [`KeyId::NONE`].
    pub fn handle_session(&mut self, session: SessionId, peer: SessionPeer) {
        self.owner.session_began(session, peer);
    }

    /// Until then the host of the volume may be on its way here. The store has just started, or has
    /// just got the volume from another store. Meanwhile the host counts as connected for any other
    /// host that wants the volume.
    pub fn handle_awaited(&mut self, until: Time) {
        self.owner.await_until(until);
    }

    /// Says, before [`Volume::handle_session_closed`], when a session has ended, as seconds since
    /// 1970. It is for people.
    pub fn handle_silent(&mut self, session: SessionId, since: u64) {
        self.owner.ended(session, since);
    }

    /// Takes a frame from a host. Attach and volume operations come here because they name this
    /// volume, other messages because they carry its identity. The engine ignores messages with
    /// neither.
    pub fn handle_message(
        &mut self,
        now: Time,
        session: SessionId,
        lane: Lane,
        frame: Frame<ToStore>,
    ) {
        self.facts.pass(now);
        if self.reader.is_opening() && !self.facts.is_stopping() {
            self.reader.hold((session, lane, frame));
        } else {
            self.message(session, lane, frame);
        }
        self.advance();
    }

    /// A connection has ended. The engine still commits the batches that it delivered.
    pub fn handle_session_closed(&mut self, now: Time, session: SessionId) {
        self.facts.pass(now);
        self.owner.session_closed(&self.facts, session);
        self.reader.forget(session);
        self.commits.forget(session);
        self.reads.forget(session);
        self.sizes.forget(session);
        self.diffs.forget(session);
        self.snapshots.forget(session);
        self.out.forget(session);
        self.advance();
    }

    /// The outcome of an operation that [`Volume::poll_object`] gave.
    pub fn handle_object(&mut self, now: Time, id: u64, result: ObjectResult) {
        self.facts.pass(now);
        let deleted = if self.gc.may_have_deleted() { self.map.rooted() } else { 0 };
        match self.out.finish(&self.facts, id, result, deleted) {
            Err(UnknownOperation) => return,
            Ok(None) => {}
            Ok(Some((purpose, key, outcome))) => self.object_done(purpose, key, outcome),
        }
        self.advance();
    }

    /// The time that [`Volume::poll_timeout`] gave has come.
    pub fn handle_timeout(&mut self, now: Time) {
        self.facts.pass(now);
        self.out.handle_timeout(now);
        if self.reader.is_running() {
            self.map.wake(&self.facts, &self.log);
            self.gc.take_step(cx!(self), &mut self.map);
            self.map.take_step(cx!(self));
        }
        self.advance();
    }

    /// Finishes the segment under way, flushes the map and refuses new work; done when
    /// [`Volume::is_idle`].
    pub fn handle_shutdown(&mut self, now: Time) {
        self.facts.pass(now);
        self.facts.stop();
        for (session, lane, frame) in self.reader.take_held() {
            self.message(session, lane, frame);
        }
        self.refuse_changes();
        self.reads.refuse(cx!(self), access!(self), false);
        self.reads.refuse_early(cx!(self), access!(self));
        self.advance();
    }

    /// Another store has taken the volume: the engine tells all waiting sessions to come again.
    /// Operations in progress may or may not have their effect. The owner then drops the engine.
    pub fn handle_taken(&mut self, now: Time) {
        self.facts.pass(now);
        self.facts.stop();
        self.refuse_all("the volume has moved to another store");
        for purpose in self.out.take_operations() {
            if let ObjectPurpose::PutStaged(put) = purpose {
                let error = StageError::Read(ReadError::NotAttached);
                self.reads.staged(cx!(self), put, Err(error));
            }
        }
    }

    /// Another store may still be at work, and must not continue the log. The engine takes the next
    /// number with a segment that changes nothing. The host keeps its attachment.
    pub fn handle_fence(&mut self, now: Time) {
        self.facts.pass(now);
        self.commits.fence();
        self.advance();
    }

    /// From now on the replica of the volume's objects is so far.
    pub fn handle_replica(&mut self, now: Time, replica: ReplicaDurability) {
        self.facts.pass(now);
        self.owner.set_replica(cx!(self), replica);
        self.advance();
    }

    /// Reports the fate of an object that an event called damaged or missing: readable again, or
    /// not.
    pub fn handle_repaired(&mut self, now: Time, key: &str, repaired: bool) {
        self.facts.pass(now);
        if repaired {
            self.out.returned(key);
        }
        self.reads.handle_repaired(cx!(self), access!(self), key, repaired);
        self.advance();
    }

    /// An object is damaged, with its present or former data of these ranges. For a part of the map
    /// these are the ranges that the engine cannot find any more. If no host has the volume
    /// attached, the call does nothing.
    pub fn handle_damaged(&mut self, now: Time, key: &str, ranges: &[Range]) {
        self.facts.pass(now);
        if self.facts.is_readonly() || !self.owner.is_connected() {
            return;
        }
        self.reads.handle_damaged(cx!(self), access!(self), key, ranges);
        self.advance();
    }

    // Outputs.

    /// The next operation on objects. Operations are independent of each other.
    pub fn poll_object(&mut self) -> Option<(u64, ObjectOperation)> {
        self.out.poll_object()
    }

    /// The next frame to send, in that lane of that session. The store service drops a frame for a
    /// closed session.
    pub fn poll_message(&mut self) -> Option<(SessionId, Lane, Frame<ToHost>)> {
        self.out.poll_message()
    }

    /// The next answer to a [`ToStore::Status`] of [`SHELL_SESSION`](super::SHELL_SESSION): the
    /// places of the data. The parts are in order from the start of the range, and may end before
    /// the range does.
    pub fn poll_places(&mut self) -> Option<(RequestId, Result<Places, ReadError>)> {
        self.reads.poll_places()
    }

    /// The next thing to log.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.out.poll_event()
    }

    /// The time at which [`Volume::handle_timeout`] wants a call; a past time means at once.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let around = around!(self);
        let save = self.commits.unsaved_since().filter(|_| around.can_put);
        let save = save.map(|since| since.after(self.facts.config().announce_persist));
        let map = self.map.poll_timeout(&self.facts, around);
        let gc = self.gc.poll_timeout(&self.facts, &self.map).filter(|_| around.running);
        [self.out.poll_timeout(), map, gc, save].into_iter().flatten().min()
    }

    // What is known.

    /// The facts about the volume that never change.
    #[must_use]
    pub fn spec(&self) -> &VolumeSpec {
        self.facts.spec()
    }

    /// The identity that messages are to carry: the volume's, or that of the snapshot which this
    /// is.
    #[must_use]
    pub fn id(&self) -> VolumeId {
        self.facts.id()
    }

    /// The session of the host that has the volume attached, if the host has a connection.
    #[must_use]
    pub fn session(&self) -> Option<SessionId> {
        self.owner.session()
    }

    /// The last reported state of the replica.
    #[must_use]
    pub fn replica(&self) -> ReplicaDurability {
        self.owner.replica()
    }

    /// Whether a key may speak for the current epoch.
    #[must_use]
    pub fn is_key_of_epoch(&self, key: KeyId) -> bool {
        ownership::is_key_of_epoch(&self.log, key)
    }

    /// Decides whether another store may have the volume for a host. It uses the facts known here
    /// and changes nothing.
    ///
    /// # Errors
    /// The reason why that host does not get it, as far as this store knows:
    /// [`AttachError::InUse`], [`AttachError::Fenced`], [`AttachError::OtherKey`]. For a volume
    /// with a connected host, also the errors of [`attach::decide`](super::attach::decide).
    pub fn may_leave(&self, host: HostId, key: KeyId, claim: Claim) -> Result<(), AttachError> {
        if !self.reader.is_open() {
            return Ok(());
        }
        self.owner.may_leave(&self.facts, &self.log, host, key, claim)
    }

    /// Whether the engine has room for more work. Without room, the store service stops reading the
    /// lanes of the sessions that use the volume, [`Lane::Drain`] first. The engine still takes
    /// everything that it gets.
    #[must_use]
    pub fn wants_input(&self) -> bool {
        let config = self.facts.config();
        self.commits.queue_bytes() < config.queue_bytes
            && !self.reader.is_held_full(&self.facts)
            && self.reads.waiting() < config.reads_waiting_max
            && !self.map.is_table_full(&self.facts)
    }

    /// Whether nothing is in progress: without further input nothing happens. After
    /// [`Volume::handle_shutdown`] the owner may then drop the volume.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let stopping = self.facts.is_stopping();
        if !self.reader.is_running() {
            return self.reader.failed().is_some() || self.reader.is_opening() && stopping;
        }
        let around = around!(self);
        !self.out.has_operations()
            && self.commits.is_idle()
            && self.reads.is_idle()
            && self.snapshots.is_empty()
            && self.gc.is_at_rest(&self.facts, &self.map)
            && self.map.is_idle(&self.facts, &self.log, around)
            && (around.saved || !stopping)
    }

    /// The state of the volume; `None` until it is open.
    #[must_use]
    pub fn info(&self) -> Option<LiveInfo> {
        if !self.reader.is_open() {
            return None;
        }
        let readonly = self.facts.is_readonly();
        let (log, owner) = (&self.log, &self.owner);
        Some(LiveInfo {
            epoch: if readonly { 0 } else { log.epoch() },
            host: log.host().filter(|_| !readonly),
            name: if readonly { String::new() } else { owner.holder_name(log) },
            connected: owner.is_connected(),
            silent_since: owner.silent_since(log).filter(|_| !readonly),
            clean: readonly || log.clean,
            committed: log.committed,
            segments: log.number,
            mapped_bytes: self.map.tree().mapped_bytes().min(log.sectors * SECTOR_BYTES),
            announced_bytes: if readonly { 0 } else { log.announced.bytes() },
        })
    }

    /// The bytes of the volume's segments and bundles, and the upper bound of their named bytes, by
    /// the last count. `None` before the first count.
    #[must_use]
    pub fn space(&self) -> Option<(u64, u64)> {
        self.gc.space()
    }

    /// The size of the volume in sectors; `None` until it is open.
    #[must_use]
    pub fn sectors(&self) -> Option<u64> {
        self.reader.is_open().then_some(self.log.sectors)
    }

    /// The state of the log up to the last applied segment.
    #[must_use]
    pub fn state(&self) -> &LogState {
        &self.log
    }

    /// The reason why the volume cannot open or continue. Only a new engine helps.
    #[must_use]
    pub fn failed(&self) -> Option<&OpenError> {
        self.reader.failed()
    }

    // Going on, and what all machines have to do with.

    /// Restores the invariants after every input: everything that can begin has begun.
    fn advance(&mut self) {
        self.advance_log();
        if !self.reader.is_open() {
            return;
        }
        if self.commits.waits_for_map() {
            self.segment_confirmed();
        }
        self.advance_queue();
        self.advance_map();
        let maps = self.map.maps(&self.facts, self.gc.moved());
        self.reads.advance(cx!(self), access!(self), maps);
    }

    /// Applies the segments that the engine has read, until the log ends or the engine must read
    /// more.
    fn advance_log(&mut self) {
        while let Some(step) = self.reader.next(cx!(self)) {
            let segment = match step {
                LogStep::Apply(segment) => segment,
                LogStep::End(applied, outcome) => {
                    self.log_stopped(applied, outcome);
                    continue;
                }
            };
            if !self.may_apply(&segment) {
                return self.reader.put_back(segment);
            }
            if let Err(reason) = self.log.apply(&segment) {
                let key = catalog::segment_key(self.facts.spec().id, segment.header.number);
                let error = OpenError::Damaged { key, reason: reason.to_owned() };
                self.log_stopped(self.reader.replayed() - 1, Err(error));
                continue;
            }
            self.segment_applied(&segment);
            self.map.adopt_if_reached(cx!(self));
            self.route_map();
            if let Some(taken) = self.reader.snapshot_reached(&self.log) {
                if taken {
                    return self.log_ended(self.reader.replayed());
                }
                return self.fail(OpenError::NoSnapshot);
            }
        }
    }

    /// No segment follows, or no valid one.
    fn log_stopped(&mut self, applied: u64, outcome: Result<(), OpenError>) {
        let ended = self.reader.ended(cx!(self), applied, outcome);
        self.route_end(ended);
    }

    fn route_end(&mut self, ended: LogEnded) {
        match ended {
            LogEnded::Unknown => {}
            LogEnded::LeftBehind => self.restart(),
            LogEnded::Ended(applied) => self.log_ended(applied),
            LogEnded::Failed(error) => self.fail(error),
        }
    }

    /// The log ends there, after this number of segments.
    fn log_ended(&mut self, applied: u64) {
        match self.reader.resume(cx!(self), applied) {
            Resumed::Failed(error) => self.fail(error),
            Resumed::Opened(held) => {
                for to in self.sizes.due() {
                    self.reply_resized(to);
                }
                for (session, lane, frame) in held {
                    self.message(session, lane, frame);
                }
            }
            Resumed::CaughtUp => {
                self.map.caught_up();
                if applied > 0 {
                    self.out.event(Event::Rival {
                        epoch: self.log.epoch(),
                        host: self.log.host(),
                        segments: applied,
                    });
                    self.drop_holder();
                }
            }
        }
    }

    /// Looks for segments that another store has written.
    fn catch_up(&mut self) {
        self.reader.catch_up_after(&self.facts, &self.log);
        self.advance_log();
    }

    /// Whether the engine can apply an existing segment now. If not, it will later.
    fn may_apply(&mut self, segment: &Segment) -> bool {
        let opening = self.reader.is_opening();
        let may = self.map.may_apply(cx!(self), segment, opening);
        self.route_map();
        may
    }

    /// The state of the log has a new segment.
    fn segment_applied(&mut self, segment: &Segment) {
        self.gc.applied(segment.header.tail().end);
        self.reader.applied(&self.facts, segment);
        self.map.applied(cx!(self), segment);
        self.sizes.applied(cx!(self), segment, self.owner.session());
    }

    /// Begins the next entries of the queue, until enough puts of segments, or a read of the log,
    /// are in progress.
    fn advance_queue(&mut self) {
        self.advance_snapshots();
        while self.reader.is_running()
            && let begins = self.reader.begins()
            && let Some(change) = self.commits.next(cx!(self), &mut self.owner, begins)
        {
            self.begin_change(change);
        }
    }

    /// Goes on with the map and with what it no longer needs.
    fn advance_map(&mut self) {
        if !self.reader.is_running() {
            return;
        }
        self.map.adopt_if_reached(cx!(self));
        self.route_map();
        self.map.advance_rebuild(cx!(self), self.reads.is_stranded());
        self.route_map();
        if !self.reader.is_running() {
            return;
        }
        self.gc.advance(cx!(self), &mut self.map, self.reads.waiting() > 0);
        self.map.advance(cx!(self), around!(self));
        self.route_map();
    }

    /// Tells the others what came of the map.
    fn route_map(&mut self) {
        while let Some(effect) = self.map.poll_effect() {
            match effect {
                MapEffect::LookingForRoots => self.reads.look_for_roots(),
                MapEffect::RootsSeen { newer } => {
                    self.reads.fence(cx!(self), access!(self));
                    let maps = self.map.maps(&self.facts, self.gc.moved());
                    self.reads.roots_seen(&self.facts, newer, maps);
                }
                MapEffect::Adopted(moved) => self.gc.adopt(&self.facts, moved),
                MapEffect::Stopped => self.gc.stop(&self.facts),
                MapEffect::Owned(generation) => self.gc.own(generation),
                MapEffect::SnapshotsGone => self.gc.recount(),
                MapEffect::WriteRoot(generation) => {
                    self.map.put_root(cx!(self), generation, &self.gc.for_root());
                }
                MapEffect::CatchUp => self.catch_up(),
                MapEffect::Restart => self.restart(),
                MapEffect::OpenAnew => self.reader.open_anew(&self.facts, &mut self.out),
                MapEffect::Failed(error) => self.fail(error),
            }
        }
    }

    /// The segment of the first put exists, and is the next one of the log.
    fn segment_confirmed(&mut self) {
        let Some(put) = self.commits.take_confirmed() else { return };
        if !self.may_apply(put.segment()) {
            return self.commits.wait_for_map(put);
        }
        self.commits.fenced();
        let before = self.before(put.segment());
        self.log.commit(put.segment());
        self.segment_applied(put.segment());
        self.segment_committed(put, before);
    }

    /// The log has continued far beyond here: the engine's state has no value.
    fn restart(&mut self) {
        self.out.event(Event::LeftBehind { segment: self.log.number });
        // The puts may have their effect. Then this engine reads the segments like any other, or no
        // engine does.
        self.commits.lost(cx!(self), &mut self.owner);
        self.reader.disown(self.commits.counter());
        self.drop_holder();
        self.reads.abandon(cx!(self), access!(self));
        self.diffs.refuse_all(&self.facts, &mut self.out);
        // No machine waits for any other operation in progress. Reads count until they end.
        self.out.retain(|purpose| {
            matches!(
                purpose,
                ObjectPurpose::PutStaged(_)
                    | ObjectPurpose::PutSize { .. }
                    | ObjectPurpose::Delete
                    | ObjectPurpose::Fetch { .. }
                    | ObjectPurpose::ReadPage(..)
            )
        });
        self.map.restart(&self.facts);
        self.gc.adopt(&self.facts, Moved::default());
        self.commits.probe_anew();
        self.reader.restart(&self.facts, &mut self.out);
    }

    /// Another store has gone on with the log: nobody holds the epoch here any more.
    fn drop_holder(&mut self) {
        self.commits.drop_batches();
        self.owner.drop_holder(cx!(self));
    }

    /// Stops. Waiting sessions get an answer; the holder hears the reason when it resumes.
    fn fail(&mut self, error: OpenError) {
        let reason = error.to_string();
        self.out.event(Event::Failed(error.clone()));
        self.reader.fail(error);
        self.refuse_all(&reason);
    }

    /// Answers everything that waits: the engine will do none of it.
    fn refuse_all(&mut self, reason: &str) {
        self.owner.refuse_holder(cx!(self), None, reason);
        if let Some(change) = self.commits.give_up_puts(&mut self.out) {
            self.refuse_change(change);
        }
        self.reads.refuse(cx!(self), access!(self), true);
        self.reads.refuse_early(cx!(self), access!(self));
        self.diffs.refuse_all(&self.facts, &mut self.out);
        self.refuse_resized();
        self.refuse_changes();
        for (session, lane, frame) in self.reader.take_held() {
            self.message(session, lane, frame);
        }
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        self.map.drop_tables(&self.facts, self.gc.moved());
    }
}

#[cfg(test)]
mod tests;
