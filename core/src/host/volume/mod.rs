//! The engine of one attached volume: requests in, replies out, and everything between them owned
//! in one place.
//!
//! Inputs only record what happened; [`Volume::settle`] then restores the invariants, once for any
//! number of inputs, before the next output is given. That is also what makes groups: all writes
//! that arrive before the shell asks for disk work share a frame.

mod writing;

use crate::block::{BlockError, Epoch, MAX_VOLUME_SECTORS, Reply, Request, Seq, Time, VolumeId};
use crate::host::acknowledge::Acknowledger;
use crate::host::announce::Announcer;
use crate::host::barrier::Barriers;
use crate::host::caching::Caching;
use crate::host::config::{Config, Mode, OnJournalFailure};
use crate::host::context::Context;
use crate::host::copy::{Copies, Staging};
use crate::host::drain::Drain;
use crate::host::io::{DiskOperation, DiskResult, Event};
use crate::host::journal::{Finished, Recovered};
use crate::host::log::WriteLog;
use crate::host::outputs::Outputs;
use crate::host::readahead::ReadAhead;
use crate::host::reads::Reads;
use crate::host::repair::Repairs;
use crate::host::rewriting::Rewriting;
use crate::host::versioning::Versioning;
use crate::host::versions::Fed;
use crate::host::warming::Warming;
use crate::host::writes::WriteContent;
use crate::pack::{Keys, Packer};
use crate::record::Kind;
use crate::wire::link::{AttachError, Attached, Frame, HostId, Lane, RequestId, ToHost, ToStore};
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
    pub(super) context: Context,
    /// Never less than a client has been told.
    sectors: u64,
    pub(super) log: WriteLog,
    pub(super) acknowledger: Acknowledger,
    pub(super) packer: Packer,
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
    pub(super) fenced: Option<Epoch>,
    pub(super) shutting_down: bool,
    detach: Detach,
    /// The store has less than the journal can make up for: nothing is shipped.
    pub(super) behind: bool,
    /// The store has no space for more data.
    pub(super) full: bool,
    /// The journal could not be read for shipping: again at this time.
    pub(super) drain_retry: Option<(Time, Duration)>,
    pub(super) requests: RequestId,
    needs_settle: bool,
    pub(super) out: Outputs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Detach {
    No,
    Sent(RequestId),
    Confirmed,
}

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
        let (volume, epoch, sectors) = (attached.volume, attached.epoch, attached.sectors);
        let context = Context { now, config, host, volume, epoch };
        let config = &context.config;
        let mut volume = Volume {
            sectors,
            log: WriteLog::new(&context, recovered, memory_only, &attached),
            acknowledger: Acknowledger::new(),
            packer: Packer::new(volume, config.packing.clone()),
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
            fenced: None,
            shutting_down: false,
            detach: Detach::No,
            behind: false,
            full: false,
            drain_retry: None,
            requests: 0,
            needs_settle: true,
            out: Outputs::default(),
            context,
        };
        volume.announcer.restart();
        volume.rewrite_begin();
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
            return self.out.reply(id, Err(error));
        }
        match request {
            Request::Read(range) => self.read(id, range),
            Request::Write { range, data, fua } => {
                self.out.count().writes += 1;
                self.out.count().write_bytes += range.bytes();
                self.write(id, WriteContent::Data(range, data), fua);
            }
            Request::Flush => {
                self.out.count().flushes += 1;
                self.flush(id);
            }
            Request::Discard { range, fua } => {
                self.out.count().markers += 1;
                self.write(id, WriteContent::Marker(Kind::Discard, range), fua);
            }
            Request::Zero { range, allocate, fua } => {
                self.out.count().markers += 1;
                let kind = if allocate { Kind::Zero } else { Kind::Discard };
                self.write(id, WriteContent::Marker(kind, range), fua);
            }
            Request::Prefetch(range) => {
                self.out.count().prefetches += 1;
                self.prefetch(range);
                self.out.reply(id, Ok(Reply::Done));
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
            DiskResult::Done { id } => match self.log.finish(id, None) {
                Finished::NotOurs => (id, Err("a read was answered like a write".to_owned())),
                Finished::Done | Finished::Failed(_) => return,
            },
            DiskResult::Failed { id, error } => match self.log.finish(id, Some(error.clone())) {
                Finished::NotOurs => (id, Err(error)),
                Finished::Failed(error) => return self.journal_failed(error),
                Finished::Done => return,
            },
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
        self.out.drop_messages();
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
        let ours = |volume: VolumeId, epoch: Epoch| {
            volume == self.context.volume && epoch == self.context.epoch
        };
        match frame.message {
            ToHost::Committed { volume, epoch, seq } if ours(volume, epoch) => self.commit(seq),
            ToHost::Second { volume, epoch, second } if ours(volume, epoch) => {
                self.acknowledger.set_replica(second);
            }
            ToHost::Data { request, volume, result } if volume == self.context.volume => {
                self.store_data(request, result, frame.payload);
            }
            ToHost::Status { request, volume, result } if volume == self.context.volume => {
                self.store_status(request, result);
            }
            ToHost::Staged { request, volume, result } if volume == self.context.volume => {
                self.store_staged(request, result);
            }
            ToHost::Changed { request, volume, result } if volume == self.context.volume => {
                self.store_changes(request, result);
            }
            ToHost::Attached { request, result } if self.link == Link::Resuming(request) => {
                self.resumed(result);
            }
            ToHost::Fenced { volume, epoch }
                if volume == self.context.volume && epoch > self.context.epoch =>
            {
                self.fence(epoch);
            }
            ToHost::BatchRefused { volume, epoch, reason } if ours(volume, epoch) => {
                self.out.event(Event::BatchRefused { reason });
                self.drain.distrust = true;
                if self.link == Link::Up {
                    self.hold();
                }
            }
            ToHost::Resized { volume, sectors } if volume == self.context.volume => {
                self.resized(sectors)
            }
            ToHost::Room { volume, epoch, room } if ours(volume, epoch) => self.told_room(room),
            ToHost::Barrier { volume, epoch, barrier } if ours(volume, epoch) => {
                self.barrier(barrier);
            }
            ToHost::Damaged { volume, epoch, ranges } if ours(volume, epoch) => {
                self.told_damaged(&ranges);
            }
            ToHost::Detached { request } if self.detach == Detach::Sent(request) => {
                self.detach = Detach::Confirmed;
                self.out.event(Event::Detached);
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
        self.context.now = self.context.now.max(now);
        self.needs_settle = true;
    }

    // --- outputs ---

    /// The next reply.
    pub fn poll_reply(&mut self) -> Option<(u64, Result<Reply, BlockError>)> {
        self.settle();
        self.out.next_reply()
    }

    /// The next disk operation.
    pub fn poll_disk(&mut self) -> Option<DiskOperation> {
        self.settle();
        self.out.next_disk()
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
        if let Some(message) = self.out.next_message() {
            return Some(message);
        }
        // Told a frame at a time, so that a large map never becomes a large queue.
        self.announce_all();
        self.out.next_message()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.settle();
        self.out.next_event()
    }

    /// When [`Volume::handle_timeout`] should be called, unless another input comes before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        if self.needs_settle {
            return Some(self.context.now);
        }
        let sync = self
            .log
            .journal()
            .oldest_unstable()
            .map(|t| t.after(self.context.config.sync_interval));
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
        let replay = self.readahead.deadline(self.context.now).filter(|_| up);
        let warm = self.warm_deadline().filter(|_| up);
        let repair = self.repair_deadline().filter(|_| up);
        let rewrite = self.rewrite_deadline().filter(|_| up);
        let ship = self.ship_deadline();
        [sync, resume, announce, ship, retry, cache, versions, replay, warm, repair, rewrite]
            .into_iter()
            .flatten()
            .filter(|at| *at > self.context.now)
            .min()
    }

    /// Whether someone waits for a commit: batches are then as urgent as control messages.
    #[must_use]
    pub fn drain_is_urgent(&self) -> bool {
        self.awaited().is_some() || self.shutting_down
    }

    /// The last number that somebody waits to see committed.
    pub(super) fn awaited(&self) -> Option<Seq> {
        let waited = self.acknowledger.awaited();
        let waited = waited.max(self.copies.awaited()).max(self.reads.awaited());
        waited.max(self.barriers.awaited())
    }

    /// Whether, after [`Volume::handle_shutdown`], nobody waits for anything and all that was
    /// acknowledged is on stable storage: the process may end.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.shutting_down
            && !self.needs_settle
            && !self.acknowledger.has_waiting_writes()
            && self.acknowledger.waiting_flushes() == 0
            && self.reads.is_idle()
            && self.copies.is_idle()
            && self.out.are_taken()
            && self.log.journal().is_stable()
            && self.caching.is_settled(self.log.moment(&self.context))
            && self.versions.is_settled()
            && (!self.log.journal().is_memory_only()
                || self.log.is_all_committed()
                || self.fenced.is_some())
    }

    /// Whether, in addition, the store has committed everything.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.is_idle() && self.log.is_all_committed()
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

    // --- restoring the invariants ---

    /// Does everything that the inputs since the last call have made possible.
    pub(super) fn settle(&mut self) {
        if !std::mem::take(&mut self.needs_settle) {
            return;
        }
        if let Link::Held(at) = self.link
            && at <= self.context.now
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
        let Volume { context, log, out, .. } = self;
        out.write_file(|id| log.next_operation(context, want_sync, id));
    }

    fn want_sync(&self) -> bool {
        self.acknowledger.awaits_sync()
            || self.awaited().is_some_and(|seq| seq > self.log.journal().stable_seq())
            || self.acknowledger.has_waiting_writes()
            || self.rewriting.wants_room()
            || self.shutting_down
            // What was acknowledged is kept for salvage.
            || self.fenced.is_some()
            || self.log.journal().unsynced_bytes() >= SYNC_BYTES.min(self.context.config.memory_bytes / 4)
            || self.log.journal().oldest_unstable()
                .is_some_and(|born| born.after(self.context.config.sync_interval) <= self.context.now)
    }

    /// Replies to those whose number has got where it has to be.
    fn wake(&mut self) {
        self.acknowledger.wake(self.log.progress(), &mut self.out);
        self.tell_barriers();
        self.stage_committed();
        self.read_committed();
    }

    /// Ends the epoch once a shutdown has left nothing to do.
    fn end_epoch(&mut self) {
        if self.shutting_down
            && self.detach == Detach::No
            && self.link == Link::Up
            && !self.acknowledger.has_waiting_writes()
            && self.log.is_all_committed()
            && self.versions.is_settled()
        {
            let request = self.next_request();
            self.detach = Detach::Sent(request);
            let (volume, epoch) = (self.context.volume, self.context.epoch);
            self.out.send(Lane::Control, ToStore::Detach { request, volume, epoch });
        }
    }

    /// The keys of an encrypted volume, as they are now.
    #[must_use]
    pub fn keys(&self) -> Option<&Keys> {
        self.packer.keys()
    }

    fn refusal(&self) -> Option<BlockError> {
        if self.fenced.is_some() {
            return Some(BlockError::Fenced);
        }
        let closing = self.shutting_down.then_some(BlockError::ShuttingDown);
        self.acknowledger.refusal().or(closing)
    }

    // --- the store ---

    fn commit(&mut self, seq: Seq) {
        // More than was shipped can only be a mistake of the store: nothing is forgotten for it.
        if seq <= self.log.committed() || seq > self.drain.shipped() {
            return;
        }
        self.log.commit(seq);
        self.versions.commit(seq);
        self.drain.commit(self.context.now, seq);
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
        let (volume, epoch, host) = (self.context.volume, self.context.epoch, self.context.host);
        self.out.send(Lane::Control, ToStore::Resume { request, volume, epoch, host });
        self.ask_again();
    }

    /// Asks the store to resume after a pause that grows.
    pub(super) fn hold(&mut self) {
        self.drain.abandon();
        // A store that the volume has left does not answer it.
        if let Detach::Sent(_) = self.detach {
            self.detach = Detach::No;
        }
        self.link = Link::Held(self.context.now.after(self.retry));
        self.retry = (self.retry * 2).min(RETRY_LAST);
    }

    fn resumed(&mut self, result: Result<Attached, AttachError>) {
        let attached = match result {
            Ok(attached) => attached,
            Err(AttachError::Fenced { epoch, .. }) => return self.fence(epoch),
            // A snapshot that is deleted does not come back, nor does anybody's patience.
            Err(error @ AttachError::NotFound) if self.context.epoch == 0 => {
                self.out.event(Event::Refused(error));
                self.fenced = Some(0);
                self.out.drop_messages();
                return self.fail_all(BlockError::Fenced);
            }
            Err(error) => {
                self.out.event(Event::Refused(error));
                return self.hold();
            }
        };
        if attached.epoch != self.context.epoch || attached.volume != self.context.volume {
            return self.hold();
        }
        self.link = Link::Up;
        self.told_room(true);
        self.resized(attached.sectors);
        let committed = attached.committed;
        let possible = self.versions.possible(committed);
        if possible > self.log.committed() && possible < self.log.journal().next_seq() {
            let committed = possible;
            self.log.commit(committed);
            self.versions.commit(committed);
        }
        self.check_behind(committed);
        self.drain.restart(self.log.committed());
        self.announcer.restart();
        self.ask_again();
        self.out.event(Event::Resumed { committed });
    }

    /// The store says how large the volume is. While it is attached it only grows; what is told out
    /// of order is old.
    fn resized(&mut self, sectors: u64) {
        if sectors > self.sectors && sectors <= MAX_VOLUME_SECTORS && self.fenced.is_none() {
            self.sectors = sectors;
            self.out.event(Event::Resized { sectors });
        }
    }

    pub(super) fn fence(&mut self, epoch: Epoch) {
        if self.fenced.is_none() {
            self.fenced = Some(epoch);
            self.out.event(Event::Fenced { epoch });
            self.out.drop_messages();
            self.fail_all(BlockError::Fenced);
        }
    }

    fn journal_failed(&mut self, error: String) {
        self.log.latch();
        let continues = self.context.config.on_journal_failure == OnJournalFailure::Continue;
        self.out.event(Event::JournalFailed { error, continues });
        self.acknowledger.journal_failed(continues, &mut self.out);
        if !continues {
            self.fail_all(BlockError::Stopped);
        }
    }

    fn fail_all(&mut self, error: BlockError) {
        let mut ids = self.acknowledger.give_up();
        ids.extend(self.reads.fail_all());
        // Their reads have failed with all the others.
        self.readahead.link_lost();
        self.warming = Warming::default();
        self.repairs = Repairs::default();
        self.rewriting = Rewriting::default();
        ids.extend(self.copies.fail_all());
        for id in ids {
            self.out.reply(id, Err(error));
        }
    }

    // --- small things ---

    pub(super) fn next_request(&mut self) -> RequestId {
        self.requests += 1;
        self.requests
    }
}
