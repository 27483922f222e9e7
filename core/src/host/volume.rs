//! The engine of one attached volume: requests in, replies out, and everything between them owned
//! in one place.
//!
//! Inputs only record what happened; [`Volume::settle`] then restores the invariants, once for any
//! number of inputs, before the next output is given. That is also what makes groups: all writes
//! that arrive before the shell asks for disk work share a frame.

use super::announce::Announcer;
use super::barrier::Barriers;
use super::caching::Caching;
use super::config::{Config, Mode, OnJournalFailure};
use super::copy::{Copies, Staging};
use super::dirty::DirtyMap;
use super::drain::Drain;
use super::io::{DiskOperation, DiskResult, Event};
use super::journal::{Finished, Journal, Recovered};
use super::readahead::ReadAhead;
use super::reads::Reads;
use super::repair::Repairs;
use super::rewriting::Rewriting;
use super::status::Counters;
use super::versioning::Versioning;
use super::versions::Fed;
use super::warming::Warming;
use super::writes::{Content, Waiting};
use crate::block::{BlockError, Epoch, MAX_VOLUME_SECTORS, Reply, Request, Seq, Time, VolumeId};
use crate::pack::{Keys, Packer};
use crate::record::Kind;
use crate::wire::link::{
    AttachError, Attached, Frame, HostId, Lane, RequestId, SecondState, ToHost, ToStore,
};
use std::collections::VecDeque;
use std::time::Duration;

/// First and longest pause before the store is asked again, or the journal read again.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LAST: Duration = Duration::from_secs(5);

/// Unsynced bytes that are worth a sync of their own.
const SYNC_BYTES: u64 = 4 << 20;

/// Where the conversation with the store stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    Down,
    /// Connected, to be resumed at this time.
    Held(Time),
    /// Resume was sent.
    Resuming(RequestId),
    Up,
}

/// One attached volume.
///
/// # Call order
///
/// After any `handle_*`, call every `poll_*` until it gives nothing. Replies come in any order, each
/// request has exactly one. Disk writes and syncs are to be carried out in the order given.
#[derive(Debug)]
pub struct Volume {
    pub(super) now: Time,
    pub(super) config: Config,
    pub(super) host: HostId,
    pub(super) volume: VolumeId,
    pub(super) epoch: Epoch,
    /// Never less than a client has been told.
    sectors: u64,
    pub(super) journal: Journal,
    pub(super) packer: Packer,
    pub(super) dirty: DirtyMap,
    pub(super) readahead: ReadAhead,
    pub(super) caching: Caching,
    pub(super) warming: Warming,
    pub(super) repairs: Repairs,
    pub(super) rewriting: Rewriting,
    pub(super) versions: Versioning,
    /// What the journal held of a keyed volume, until the table of versions is there.
    pub(super) replayed: Vec<Fed>,
    pub(super) reads: Reads,
    pub(super) copies: Copies,
    pub(super) barriers: Barriers,
    pub(super) drain: Drain,
    pub(super) announcer: Announcer,
    pub(super) link: Link,
    retry: Duration,
    pub(super) committed: Seq,
    pub(super) waiting: VecDeque<Waiting>,
    /// Requests that wait until a number is in the journal's files, is durable there, and is at the
    /// store; all in order.
    pub(super) written_waiters: VecDeque<(u64, Seq)>,
    pub(super) stable_waiters: VecDeque<(u64, Seq)>,
    pub(super) commit_waiters: VecDeque<(u64, Seq)>,
    /// The same, until it is at both places of the store's objects.
    pub(super) replica_waiters: VecDeque<(u64, Seq)>,
    pub(super) second: SecondState,
    pub(super) latched: bool,
    pub(super) stopped: bool,
    pub(super) fenced: Option<Epoch>,
    pub(super) shutting_down: bool,
    detach: Detach,
    /// The store has less than the journal can make up for: nothing is shipped.
    pub(super) behind: bool,
    /// The store has no space for more data.
    pub(super) full: bool,
    /// The journal could not be read for shipping: again at this time.
    pub(super) drain_retry: Option<(Time, Duration)>,
    pub(super) ids: u64,
    pub(super) requests: RequestId,
    needs_settle: bool,
    replies: VecDeque<(u64, Result<Reply, BlockError>)>,
    pub(super) disk: VecDeque<DiskOperation>,
    pub(super) messages: VecDeque<(Lane, Frame<ToStore>)>,
    pub(super) events: VecDeque<Event>,
    pub(super) counters: Counters,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Detach {
    No,
    Sent(RequestId),
    Confirmed,
}

/// Most events kept for the shell; it takes them after every input, so this is never reached.
const MAX_EVENTS: usize = 1024;

impl Volume {
    /// Begins the epoch that `attached` grants. In [`Mode::Journal`] `recovered` is what
    /// [`super::journal::Recovery`] found, also in a journal just created; without it the volume
    /// begins as after a journal failure. In [`Mode::WriteThrough`] a journal left over from an
    /// earlier run is drained, and not written to.
    #[must_use]
    pub fn new(
        now: Time,
        config: Config,
        host: HostId,
        attached: Attached,
        recovered: Option<Recovered>,
    ) -> Volume {
        let missing = matches!(config.mode, Mode::Journal(_)) && recovered.is_none();
        let mut recovered = recovered;
        let noted = recovered.as_mut().and_then(|recovered| recovered.versions.as_mut());
        let replayed = noted.map(std::mem::take).unwrap_or_default();
        let memory_only = missing || config.mode == Mode::WriteThrough;
        let committed = attached.committed;
        let journal = Journal::new(
            now,
            recovered.as_ref(),
            memory_only,
            attached.epoch,
            committed,
            config.memory_bytes,
        );
        let mut volume = Volume {
            now,
            host,
            volume: attached.volume,
            epoch: attached.epoch,
            sectors: attached.sectors,
            journal,
            packer: Packer::new(attached.volume, config.packing.clone()),
            dirty: recovered
                .filter(|recovered| recovered.is_current(&attached))
                .map(|recovered| recovered.map)
                .unwrap_or_default(),
            readahead: ReadAhead::new(config.readahead_bytes),
            caching: Caching::default(),
            warming: Warming::default(),
            repairs: Repairs::default(),
            rewriting: Rewriting::default(),
            versions: Versioning::default(),
            replayed,
            reads: Reads::default(),
            copies: Copies::default(),
            barriers: Barriers::default(),
            drain: Drain::new(committed, config.window_max_bytes),
            announcer: Announcer::default(),
            link: Link::Up,
            retry: RETRY_FIRST,
            committed,
            waiting: VecDeque::new(),
            written_waiters: VecDeque::new(),
            stable_waiters: VecDeque::new(),
            commit_waiters: VecDeque::new(),
            replica_waiters: VecDeque::new(),
            second: SecondState::None,
            latched: false,
            stopped: false,
            fenced: None,
            shutting_down: false,
            detach: Detach::No,
            behind: false,
            full: false,
            drain_retry: None,
            ids: 0,
            requests: 0,
            needs_settle: true,
            replies: VecDeque::new(),
            disk: VecDeque::new(),
            messages: VecDeque::new(),
            events: VecDeque::new(),
            counters: Counters::default(),
            config,
        };
        volume.announcer.restart();
        volume.rewrite_begin();
        // A journal may hold more than it needs.
        let (most, tail) = (volume.config.map_entries_max, volume.journal.tail());
        volume.dirty.make_room(0, most, tail);
        volume.check_behind(committed);
        if missing {
            volume.journal_failed("no journal was handed over".into());
        }
        volume
    }

    // --- inputs ---

    /// Takes a request; `id` comes back with its reply. The range must fit [`Volume::sectors`], which
    /// may have grown since a client was told its size but never shrinks, and a write's
    /// data must be as long as its range.
    pub fn handle_request(&mut self, now: Time, id: u64, request: Request) {
        self.input(now);
        if let Some(error) = self.refusal().or_else(|| self.want_of_space(&request)) {
            return self.reply(id, Err(error));
        }
        match request {
            Request::Read(range) => self.read(id, range),
            Request::Write { range, data, fua } => {
                self.counters.writes += 1;
                self.counters.write_bytes += range.bytes();
                let content = Content::Data(range, data);
                self.write(Waiting { id, content, fua, done: 0 });
            }
            Request::Flush => {
                self.counters.flushes += 1;
                self.wait_until_durable(id, self.journal.next_seq() - 1);
            }
            Request::Discard { range, fua } => {
                self.counters.markers += 1;
                let content = Content::Marker(Kind::Discard, range);
                self.write(Waiting { id, content, fua, done: 0 });
            }
            Request::Zero { range, allocate, fua } => {
                self.counters.markers += 1;
                let kind = if allocate { Kind::Zero } else { Kind::Discard };
                let content = Content::Marker(kind, range);
                self.write(Waiting { id, content, fua, done: 0 });
            }
            Request::Prefetch(range) => {
                self.counters.prefetches += 1;
                self.prefetch(range);
                self.reply(id, Ok(Reply::Done));
            }
            Request::Status(range) => self.query_status(id, range),
            Request::Watch(ranges) => self.watch(id, ranges),
            Request::Unwatch(number) => self.unwatch(id, number),
            Request::Stage { range, into, lba, object, watch } => {
                self.stage(Staging { id, range, into, lba, object, watch });
            }
            Request::WriteStaged { pieces, fua } => self.write_staged(id, pieces, fua),
        }
    }

    /// Takes the outcome of a disk operation.
    pub fn handle_disk(&mut self, now: Time, result: DiskResult) {
        self.input(now);
        let (id, outcome) = match result {
            DiskResult::Done { id } => match self.journal.finish(id, None) {
                Finished::NotOurs => (id, Err("a read was answered like a write".to_owned())),
                Finished::Done | Finished::Failed(_) => return,
            },
            DiskResult::Failed { id, error } => {
                match self.journal.finish(id, Some(error.clone())) {
                    Finished::NotOurs => (id, Err(error)),
                    Finished::Failed(error) => return self.journal_failed(error),
                    Finished::Done => return,
                }
            }
            DiskResult::Data { id, data } => (id, Ok(data)),
        };
        self.disk_read(id, outcome);
    }

    /// Takes the outcome of an operation on the cache file.
    pub fn handle_cache(&mut self, now: Time, result: DiskResult) {
        self.input(now);
        self.cache_done(result);
    }

    /// A connection to the store is up again: the engine resumes its epoch.
    pub fn handle_link_up(&mut self, now: Time) {
        self.input(now);
        self.retry = RETRY_FIRST;
        self.resume();
    }

    /// The connection is lost. What was sent and not answered may or may not have arrived.
    pub fn handle_link_down(&mut self, now: Time) {
        self.input(now);
        self.link = Link::Down;
        if let Detach::Sent(_) = self.detach {
            self.detach = Detach::No;
        }
        self.messages.clear();
        self.drain.abandon();
        self.barriers.link_lost();
        let waiters = self.readahead.link_lost();
        self.reads.link_lost();
        self.ask_for(waiters);
    }

    /// Whether no connection to the store has been reported since the last one was lost.
    #[must_use]
    pub fn is_link_down(&self) -> bool {
        self.link == Link::Down
    }

    /// Takes a message of the store for this volume.
    pub fn handle_message(&mut self, now: Time, frame: Frame<ToHost>) {
        self.input(now);
        let ours = |volume: VolumeId, epoch: Epoch| volume == self.volume && epoch == self.epoch;
        match frame.message {
            ToHost::Committed { volume, epoch, seq } if ours(volume, epoch) => self.commit(seq),
            ToHost::Second { volume, epoch, second } if ours(volume, epoch) => self.second = second,
            ToHost::Data { request, volume, result } if volume == self.volume => {
                self.store_data(request, result, frame.payload);
            }
            ToHost::Status { request, volume, result } if volume == self.volume => {
                self.store_status(request, result);
            }
            ToHost::Staged { request, volume, result } if volume == self.volume => {
                self.store_staged(request, result);
            }
            ToHost::Changed { request, volume, result } if volume == self.volume => {
                self.store_changes(request, result);
            }
            ToHost::Attached { request, result } if self.link == Link::Resuming(request) => {
                self.resumed(result);
            }
            ToHost::Fenced { volume, epoch } if volume == self.volume && epoch > self.epoch => {
                self.fence(epoch);
            }
            ToHost::BatchRefused { volume, epoch, reason } if ours(volume, epoch) => {
                self.event(Event::BatchRefused { reason });
                self.drain.distrust = true;
                if self.link == Link::Up {
                    self.hold();
                }
            }
            ToHost::Resized { volume, sectors } if volume == self.volume => self.resized(sectors),
            ToHost::Room { volume, epoch, room } if ours(volume, epoch) => self.told_room(room),
            ToHost::Barrier { volume, epoch, barrier } if ours(volume, epoch) => {
                self.barrier(barrier);
            }
            ToHost::Damaged { volume, epoch, ranges } if ours(volume, epoch) => {
                self.told_damaged(&ranges);
            }
            ToHost::Detached { request } if self.detach == Detach::Sent(request) => {
                self.detach = Detach::Confirmed;
                self.event(Event::Detached);
            }
            _ => {}
        }
    }

    /// The time of [`Volume::poll_timeout`] has come.
    pub fn handle_timeout(&mut self, now: Time) {
        self.input(now);
    }

    /// New requests are refused from now on; those under way are finished, the journal is synced, the
    /// drain goes on until [`Volume::is_drained`], and then the epoch is ended.
    pub fn handle_shutdown(&mut self, now: Time) {
        self.input(now);
        self.shutting_down = true;
    }

    /// The keys of the volume are these from now on: all that there were, and perhaps a newer one,
    /// with which new writes are encrypted. If they say that the older ones are to be [given up](Keys::retires), what is
    /// under these is encrypted anew. Nothing happens if the volume is not encrypted.
    pub fn handle_keys(&mut self, now: Time, keys: Keys) {
        self.input(now);
        self.caching.set_keys(&keys);
        self.packer.set_keys(keys);
        self.rewrite_begin();
    }

    pub(super) fn touch(&mut self) {
        self.needs_settle = true;
    }

    pub(super) fn input(&mut self, now: Time) {
        self.now = self.now.max(now);
        self.needs_settle = true;
    }

    // --- outputs ---

    /// The next reply.
    pub fn poll_reply(&mut self) -> Option<(u64, Result<Reply, BlockError>)> {
        self.settle();
        self.replies.pop_front()
    }

    /// The next disk operation.
    pub fn poll_disk(&mut self) -> Option<DiskOperation> {
        self.settle();
        self.disk.pop_front()
    }

    /// The next operation on the cache file. Writes and syncs are carried out in the order given, but
    /// in none with those of the journal.
    pub fn poll_cache(&mut self) -> Option<DiskOperation> {
        self.settle();
        self.caching.poll_disk()
    }

    /// The next message to the store, and its lane.
    pub fn poll_message(&mut self) -> Option<(Lane, Frame<ToStore>)> {
        self.settle();
        if let Some(message) = self.messages.pop_front() {
            return Some(message);
        }
        // Told a frame at a time, so that a large map never becomes a large queue.
        self.announce_all();
        self.messages.pop_front()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.settle();
        self.events.pop_front()
    }

    /// When [`Volume::handle_timeout`] should be called, unless another input comes before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        if self.needs_settle {
            return Some(self.now);
        }
        let sync = self.journal.oldest_unstable().map(|t| t.after(self.config.sync_interval));
        let resume = match self.link {
            Link::Held(at) => Some(at),
            _ => None,
        };
        let up = self.link == Link::Up;
        let announce = self.announcer.deadline().filter(|_| up);
        let retry = self.drain_retry.map(|(at, _)| at);
        // What is due already waits for something else than time.
        let cache = self.caching.deadline();
        let versions = self.versions.deadline();
        let replay = self.readahead.deadline(self.now).filter(|_| up);
        let warm = self.warm_deadline().filter(|_| up);
        let repair = self.repair_deadline().filter(|_| up);
        let rewrite = self.rewrite_deadline().filter(|_| up);
        let ship = self.ship_deadline();
        [sync, resume, announce, ship, retry, cache, versions, replay, warm, repair, rewrite]
            .into_iter()
            .flatten()
            .filter(|at| *at > self.now)
            .min()
    }

    /// Whether someone waits for a commit: batches are then as urgent as control messages.
    #[must_use]
    pub fn drain_is_urgent(&self) -> bool {
        self.awaited().is_some() || self.shutting_down
    }

    /// The last number that somebody waits to see committed.
    pub(super) fn awaited(&self) -> Option<Seq> {
        let last = |waiters: &VecDeque<(u64, Seq)>| waiters.back().map(|(_, seq)| *seq);
        let flushes = last(&self.commit_waiters).max(last(&self.replica_waiters));
        let waited = flushes.max(self.copies.awaited()).max(self.reads.awaited());
        waited.max(self.barriers.awaited())
    }

    /// Whether, after [`Volume::handle_shutdown`], nobody waits for anything and all that was
    /// acknowledged is on stable storage: the process may end.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.shutting_down
            && !self.needs_settle
            && self.waiting.is_empty()
            && self.waiting_flushes() == 0
            && self.reads.is_idle()
            && self.copies.is_idle()
            && self.replies.is_empty()
            && self.disk.is_empty()
            && self.journal.is_stable()
            && self.caching.is_settled(self.moment())
            && self.versions.is_settled()
            && (!self.journal.is_memory_only() || self.all_committed() || self.fenced.is_some())
    }

    /// Whether, in addition, the store has committed everything.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.is_idle() && self.all_committed()
    }

    /// Whether the store has confirmed that the epoch ended in order.
    #[must_use]
    pub fn is_detached(&self) -> bool {
        self.detach == Detach::Confirmed
    }

    /// The size of the volume in sectors: requests up to there are good.
    #[must_use]
    pub fn sectors(&self) -> u64 {
        self.sectors
    }

    pub(super) fn waiting_flushes(&self) -> u64 {
        let far = self.commit_waiters.len() + self.replica_waiters.len();
        (self.stable_waiters.len() + far) as u64
    }

    fn all_committed(&self) -> bool {
        self.committed + 1 >= self.journal.next_seq()
    }

    // --- restoring the invariants ---

    /// Does everything that the inputs since the last call have made possible.
    pub(super) fn settle(&mut self) {
        if !std::mem::take(&mut self.needs_settle) {
            return;
        }
        if let Link::Held(at) = self.link
            && at <= self.now
        {
            self.resume();
        }
        self.settle_versions();
        self.admit();
        self.wake();
        if self.fenced.is_none() {
            self.repair_on();
            self.announce_some();
            self.ship();
            if !self.shutting_down {
                self.replay_on();
                self.warm_on();
                self.rewrite_on();
            }
            self.end_epoch();
        }
        // Also for the room that writes found to be missing just now.
        self.settle_versions();
        self.settle_cache();
        let want_sync = self.want_sync();
        if let Some(operation) = self.journal.next_operation(self.now, want_sync, &mut self.ids) {
            match &operation {
                DiskOperation::Write { data, sync, .. } => {
                    self.counters.disk_writes += 1;
                    self.counters.disk_write_bytes += data.len() as u64;
                    self.counters.disk_syncs += u64::from(*sync);
                }
                DiskOperation::Sync { .. } => self.counters.disk_syncs += 1,
                DiskOperation::Read { .. } => {}
            }
            self.disk.push_back(operation);
        }
    }

    fn want_sync(&self) -> bool {
        !self.stable_waiters.is_empty()
            || self.awaited().is_some_and(|seq| seq > self.journal.stable_seq())
            || !self.waiting.is_empty()
            || self.rewriting.wants_room()
            || self.shutting_down
            // What was acknowledged is kept for salvage.
            || self.fenced.is_some()
            || self.journal.unsynced_bytes() >= SYNC_BYTES.min(self.config.memory_bytes / 4)
            || self
                .journal
                .oldest_unstable()
                .is_some_and(|born| born.after(self.config.sync_interval) <= self.now)
    }

    /// Replies to those whose number has got where it has to be.
    fn wake(&mut self) {
        let written = self.journal.written_seq().max(self.committed);
        while let Some((id, _)) = self.written_waiters.pop_front_if(|(_, seq)| *seq <= written) {
            self.reply(id, Ok(Reply::Done));
        }
        let stable = self.journal.stable_seq().max(self.committed);
        while let Some((id, _)) = self.stable_waiters.pop_front_if(|(_, seq)| *seq <= stable) {
            self.reply(id, Ok(Reply::Done));
        }
        let committed = self.committed;
        while let Some((id, _)) = self.commit_waiters.pop_front_if(|(_, seq)| *seq <= committed) {
            self.reply(id, Ok(Reply::Done));
        }
        let there = self.replicated();
        while let Some((id, _)) = self.replica_waiters.pop_front_if(|(_, seq)| *seq <= there) {
            self.reply(id, Ok(Reply::Done));
        }
        self.tell_barriers();
        self.stage_committed();
        self.read_committed();
    }

    /// Ends the epoch once a shutdown has left nothing to do.
    fn end_epoch(&mut self) {
        if self.shutting_down
            && self.detach == Detach::No
            && self.link == Link::Up
            && self.waiting.is_empty()
            && self.all_committed()
            && self.versions.is_settled()
        {
            let request = self.next_request();
            self.detach = Detach::Sent(request);
            let (volume, epoch) = (self.volume, self.epoch);
            self.send(Lane::Control, ToStore::Detach { request, volume, epoch }.into());
        }
    }

    /// The keys of an encrypted volume, as they are now.
    #[must_use]
    pub fn keys(&self) -> Option<&Keys> {
        self.packer.keys()
    }

    fn refusal(&self) -> Option<BlockError> {
        if self.fenced.is_some() {
            Some(BlockError::Fenced)
        } else if self.stopped {
            Some(BlockError::Stopped)
        } else if self.shutting_down {
            Some(BlockError::ShuttingDown)
        } else {
            None
        }
    }

    // --- the store ---

    fn commit(&mut self, seq: Seq) {
        // More than was shipped can only be a mistake of the store: nothing is forgotten for it.
        if seq <= self.committed || seq > self.drain.shipped() {
            return;
        }
        self.committed = seq;
        self.versions.commit(seq);
        self.journal.commit(seq);
        self.drain.commit(self.now, seq);
        self.cache_committed();
        self.retry = RETRY_FIRST;
    }

    fn resume(&mut self) {
        if self.fenced.is_some() {
            return;
        }
        // Nothing that was prepared for the conversation before may follow the resume.
        self.drain.abandon();
        let request = self.next_request();
        self.link = Link::Resuming(request);
        let (volume, epoch, host) = (self.volume, self.epoch, self.host);
        self.send(Lane::Control, ToStore::Resume { request, volume, epoch, host }.into());
        self.ask_again();
    }

    /// Asks the store to resume after a pause that grows.
    pub(super) fn hold(&mut self) {
        self.drain.abandon();
        // A store that the volume has left does not answer it.
        if let Detach::Sent(_) = self.detach {
            self.detach = Detach::No;
        }
        self.link = Link::Held(self.now.after(self.retry));
        self.retry = (self.retry * 2).min(RETRY_LAST);
    }

    fn resumed(&mut self, result: Result<Attached, AttachError>) {
        let attached = match result {
            Ok(attached) => attached,
            Err(AttachError::Fenced { epoch, .. }) => return self.fence(epoch),
            // A snapshot that is deleted does not come back, nor does anybody's patience.
            Err(error @ AttachError::NotFound) if self.epoch == 0 => {
                self.event(Event::Refused(error));
                self.fenced = Some(0);
                self.messages.clear();
                return self.fail_all(BlockError::Fenced);
            }
            Err(error) => {
                self.event(Event::Refused(error));
                return self.hold();
            }
        };
        if attached.epoch != self.epoch || attached.volume != self.volume {
            return self.hold();
        }
        self.link = Link::Up;
        self.told_room(true);
        self.resized(attached.sectors);
        let committed = attached.committed;
        let possible = self.versions.possible(committed);
        if possible > self.committed && possible < self.journal.next_seq() {
            let committed = possible;
            self.committed = committed;
            self.versions.commit(committed);
            self.journal.commit(committed);
        }
        self.check_behind(committed);
        self.drain.restart(self.committed);
        self.announcer.restart();
        self.ask_again();
        self.event(Event::Resumed { committed });
    }

    /// The store says how large the volume is. While it is attached it only grows; what is told out
    /// of order is old.
    fn resized(&mut self, sectors: u64) {
        if sectors > self.sectors && sectors <= MAX_VOLUME_SECTORS && self.fenced.is_none() {
            self.sectors = sectors;
            self.event(Event::Resized { sectors });
        }
    }

    pub(super) fn fence(&mut self, epoch: Epoch) {
        if self.fenced.is_none() {
            self.fenced = Some(epoch);
            self.event(Event::Fenced { epoch });
            self.messages.clear();
            self.fail_all(BlockError::Fenced);
        }
    }

    fn journal_failed(&mut self, error: String) {
        self.latched = true;
        self.journal.latch();
        let continues = self.config.on_journal_failure == OnJournalFailure::Continue;
        self.event(Event::JournalFailed { error, continues });
        if continues {
            // Local stable storage will not come: they wait for the store now.
            self.commit_waiters.append(&mut self.stable_waiters);
            for (id, _) in std::mem::take(&mut self.written_waiters) {
                self.reply(id, Ok(Reply::Done));
            }
        } else {
            self.stopped = true;
            self.fail_all(BlockError::Stopped);
        }
    }

    fn fail_all(&mut self, error: BlockError) {
        let mut ids: Vec<u64> = self.written_waiters.drain(..).map(|(id, _)| id).collect();
        ids.extend(self.stable_waiters.drain(..).map(|(id, _)| id));
        ids.extend(self.commit_waiters.drain(..).map(|(id, _)| id));
        ids.extend(self.replica_waiters.drain(..).map(|(id, _)| id));
        ids.extend(self.waiting.drain(..).map(|write| write.id));
        ids.extend(self.reads.fail_all());
        // Their reads have failed with all the others.
        self.readahead.link_lost();
        self.warming = Warming::default();
        self.repairs = Repairs::default();
        self.rewriting = Rewriting::default();
        ids.extend(self.copies.fail_all());
        for id in ids {
            self.reply(id, Err(error));
        }
    }

    // --- small things ---

    pub(super) fn reply(&mut self, id: u64, result: Result<Reply, BlockError>) {
        self.replies.push_back((id, result));
    }

    pub(super) fn send(&mut self, lane: Lane, frame: Frame<ToStore>) {
        self.messages.push_back((lane, frame));
    }

    pub(super) fn event(&mut self, event: Event) {
        if self.events.len() < MAX_EVENTS {
            self.events.push_back(event);
        }
    }

    pub(super) fn next_request(&mut self) -> RequestId {
        self.requests += 1;
        self.requests
    }

    pub(super) fn next_id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    /// Whether writes wait for room that only commits can make.
    pub(super) fn writes_wait(&self) -> bool {
        !self.waiting.is_empty()
    }
}
