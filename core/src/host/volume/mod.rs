//! The engine of one attached volume: requests in, replies out, and the machines between them.
//!
//! [`Volume`] owns one machine for each concern, and routes: an input goes to the machine that it
//! is for. The result goes to the machines that it concerns. No machine sees the state of another
//! one.
//!
//! Inputs only record an event. [`Volume::settle`] restores the invariants before the next output,
//! once for any number of inputs. This makes groups: all writes that arrive before the shell asks
//! for disk work share a frame.

mod asking;
mod background;
mod caching;
mod conversation;
mod copying;
mod limits;
mod read_ahead;
mod reading;
mod shipping;
mod status;
mod writing;

use super::acknowledge::Acknowledger;
use super::background::Background;
use super::caching::Caching;
use super::config::{Config, Mode};
use super::context::Context;
use super::copy::{Copies, Staging};
use super::drain::Drain;
use super::io::{DiskOperation, DiskResult, Event};
use super::journal::{FinishedOperation, Recovered};
use super::keyed::KeyedContent;
use super::log::WriteLog;
use super::outputs::Outputs;
use super::readahead::ReadAhead;
use super::reads::Reads;
use super::session::StoreSession;
use super::versions::Versions;
use super::writes::WriteContent;
use crate::block::{BlockError, Epoch, Reply, Request, Seq, Time, VolumeId};
use crate::pack::{Keys, Packer};
use crate::record::Kind;
use crate::wire::link::{Attached, Frame, HostId, Lane, ToHost, ToStore};

/// Unsynced bytes that are worth a sync of their own.
const SYNC_BYTES: u64 = 4 << 20;

/// One attached volume.
///
/// # Call order
///
/// After any `handle_*`, call every `poll_*` until it returns nothing. Replies come in any order.
/// Each request has exactly one. [`DiskOperation`] says what its operations may rely on.
///
/// Methods are of four kinds. *Inputs* (`handle_*`, `set_*`) mark the outputs as stale and route.
/// *Outputs* (`poll_*`) settle first. *Queries* change nothing. *Routing* (private, in the modules
/// below) passes results of one machine to the others.
#[derive(Debug)]
pub struct Volume {
    /// The identity and the settings of the volume, and the time.
    context: Context,
    /// Every write until the store has committed it.
    log: WriteLog,
    /// Requests that wait for a write to get far enough.
    acknowledger: Acknowledger,
    /// The conversation with the store, and the open requests in it.
    session: StoreSession,
    /// Batches and announcements: everything that goes to the store in order.
    drain: Drain,
    /// Reads that wait for content.
    reads: Reads,
    /// Data that clients will read next.
    readahead: ReadAhead,
    /// The read cache.
    caching: Caching,
    /// Packing and encryption, and the version table.
    keyed: KeyedContent,
    /// Copies that the store makes.
    copies: Copies,
    /// Repairs, warming and encrypting anew.
    background: Background,
    /// The queues for the shell.
    out: Outputs,
}

impl Volume {
    /// Begins the epoch that `attached` grants. In [`Mode::Journal`], `recovered` is the result of
    /// [`super::journal::Recovery`], also for a new journal; without it the volume begins as after
    /// a journal failure. In [`Mode::WriteThrough`] the volume drains a journal of an earlier run,
    /// and writes nothing to it.
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
        let (volume, epoch) = (attached.volume, attached.epoch);
        let context = Context { now, config, host, volume, epoch };
        let config = &context.config;
        let packer = Packer::new(volume, config.packing.clone());
        let mut volume = Volume {
            log: WriteLog::new(&context, recovered, memory_only, &attached),
            acknowledger: Acknowledger::new(),
            session: StoreSession::new(attached.sectors),
            drain: Drain::new(attached.committed, config.window_max_bytes),
            reads: Reads::default(),
            readahead: ReadAhead::new(config.readahead_bytes),
            caching: Caching::default(),
            keyed: KeyedContent::new(packer, replayed),
            copies: Copies::default(),
            background: Background::default(),
            out: Outputs::default(),
            context,
        };
        volume.out.set_stale();
        volume.keys_changed();
        volume.drain.check_store(&volume.log, attached.committed, &mut volume.out);
        if missing {
            volume.journal_failed("no journal was handed over".into());
        }
        volume
    }

    // --- inputs ---

    /// Takes a request; `id` comes back with its reply. The range must fit [`Volume::sectors`],
    /// which may have grown since a client learned its size but never shrinks. A write's data must
    /// be as long as its range.
    pub fn handle_request(&mut self, now: Time, id: u64, request: Request) {
        self.input(now);
        if let Some(error) = self.refusal(&request) {
            return self.out.reply(id, Err(error));
        }
        let counters = self.out.count();
        match request {
            Request::Read(range) => self.read(id, range),
            Request::Write { range, data, fua } => {
                counters.writes += 1;
                counters.write_bytes += range.bytes();
                self.write(id, WriteContent::Data(range, data), fua);
            }
            Request::Flush => {
                counters.flushes += 1;
                self.flush(id);
            }
            Request::Discard { range, fua } => {
                counters.markers += 1;
                self.write(id, WriteContent::Marker(Kind::Discard, range), fua);
            }
            Request::Zero { range, allocate, fua } => {
                counters.markers += 1;
                let kind = if allocate { Kind::Zero } else { Kind::Discard };
                self.write(id, WriteContent::Marker(kind, range), fua);
            }
            Request::Prefetch(range) => {
                counters.prefetches += 1;
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
                FinishedOperation::NotOurs => {
                    (id, Err("a read was answered like a write".to_owned()))
                }
                FinishedOperation::Done | FinishedOperation::Failed(_) => return,
            },
            DiskResult::Failed { id, error } => match self.log.finish(id, Some(error.clone())) {
                FinishedOperation::NotOurs => (id, Err(error)),
                FinishedOperation::Failed(error) => return self.journal_failed(error),
                FinishedOperation::Done => return,
            },
            DiskResult::Data { id, data } => (id, Ok(data)),
        };
        self.disk_read(id, outcome);
    }

    /// A connection to the store is up again: the engine resumes its epoch.
    pub fn handle_link_up(&mut self, now: Time) {
        self.input(now);
        self.session.link_up();
        self.resume();
    }

    /// The connection is lost. Messages without an answer may or may not have arrived.
    pub fn handle_link_down(&mut self, now: Time) {
        self.input(now);
        self.link_down();
    }

    /// Takes a message of the store for this volume.
    pub fn handle_message(&mut self, now: Time, frame: Frame<ToHost>) {
        self.input(now);
        let known = |volume: VolumeId| volume == self.context.volume;
        let ours = |volume: VolumeId, epoch: Epoch| known(volume) && epoch == self.context.epoch;
        match frame.message {
            ToHost::Committed { volume, epoch, seq } if ours(volume, epoch) => self.commit(seq),
            ToHost::Replica { volume, epoch, progress } if ours(volume, epoch) => {
                self.acknowledger.set_replica(progress);
            }
            ToHost::Data { request, volume, result } if known(volume) => {
                self.store_data(request, result, frame.payload);
            }
            ToHost::Status { request, volume, result } if known(volume) => {
                self.store_status(request, result);
            }
            ToHost::Staged { request, volume, result } if known(volume) => {
                self.store_staged(request, result);
            }
            ToHost::Changed { request, volume, result } if known(volume) => {
                self.store_changes(request, result);
            }
            ToHost::Attached { request, result } => self.resumed(request, result),
            ToHost::Fenced { volume, epoch } if known(volume) && epoch > self.context.epoch => {
                self.fence(epoch);
            }
            ToHost::BatchRefused { volume, epoch, reason } if ours(volume, epoch) => {
                self.out.event(Event::BatchRefused { reason });
                self.drain.refused();
                if self.session.is_up() {
                    self.hold();
                }
            }
            ToHost::Resized { volume, sectors } if known(volume) => {
                self.session.resized(sectors, &mut self.out);
            }
            ToHost::Room { volume, epoch, room } if ours(volume, epoch) => {
                self.session.told_room(room, &mut self.out);
            }
            ToHost::Barrier { volume, epoch, barrier } if ours(volume, epoch) => {
                self.session.barrier(barrier, self.log.last());
            }
            ToHost::Damaged { volume, epoch, ranges } if ours(volume, epoch) => {
                self.told_damaged(&ranges);
            }
            ToHost::Detached { request } => self.session.detached(request, &mut self.out),
            _ => {}
        }
    }

    /// The time of [`Volume::poll_timeout`] has come.
    pub fn handle_timeout(&mut self, now: Time) {
        self.input(now);
    }

    /// From now on refuses new requests. Finishes those under way and syncs the journal. Drains
    /// until [`Volume::is_drained`]. Then ends the epoch.
    pub fn handle_shutdown(&mut self, now: Time) {
        self.input(now);
        self.session.close();
    }

    /// Replaces the keys of the volume: all old ones, and perhaps a newer one, which encrypts new
    /// writes. If the keys say to [give up](Keys::retires) older ones, encrypts the content under
    /// these anew. Does nothing if the volume is not encrypted.
    pub fn handle_keys(&mut self, now: Time, keys: Keys) {
        self.input(now);
        self.caching.set_keys(&keys);
        self.keyed.set_keys(keys);
        self.keys_changed();
    }

    /// Gives a keyed volume its version table, before its first request. The recovery of its
    /// journal must have been [with versions](super::journal::Recovery::with_versions), or the
    /// journal must be new.
    pub fn set_versions(&mut self, now: Time, versions: Versions) {
        self.input(now);
        self.log.hold();
        self.keyed.set_versions(versions);
    }

    /// Takes the outcome of an operation on the files of the version table.
    pub fn handle_versions(&mut self, now: Time, result: DiskResult) {
        self.input(now);
        self.keyed.handle_disk(result, &mut self.out);
    }

    fn input(&mut self, now: Time) {
        self.context.now = self.context.now.max(now);
        self.out.set_stale();
    }

    /// Why the volume refuses a request, if it does.
    fn refusal(&self, request: &Request) -> Option<BlockError> {
        if self.session.is_fenced() {
            return Some(BlockError::Fenced);
        }
        let closing = self.session.is_closing().then_some(BlockError::ShuttingDown);
        let refused = self.acknowledger.refusal().or(closing);
        refused.or_else(|| self.session.want_of_space(request))
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

    /// The next message to the store, and its lane.
    pub fn poll_message(&mut self) -> Option<(Lane, Frame<ToStore>)> {
        self.settle();
        if let Some(message) = self.out.next_message() {
            return Some(message);
        }
        // Announce a frame at a time, so that a large map never becomes a large queue.
        if self.session.is_up() && !self.session.is_fenced() {
            self.drain.announce_rest(&self.context, &self.log, &mut self.out);
        }
        self.out.next_message()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.settle();
        self.out.next_event()
    }

    /// The next operation on the files of the version table. Carry out writes and syncs in the
    /// order given. Their order relative to those of the journal is free. A read beyond the end of
    /// a file returns zeroes.
    pub fn poll_versions(&mut self) -> Option<DiskOperation> {
        self.settle();
        self.keyed.poll_disk()
    }

    /// When to call [`Volume::handle_timeout`], unless another input comes before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let now = self.context.now;
        if self.out.is_stale() {
            return Some(now);
        }
        let up = self.session.is_up();
        let oldest = self.log.journal().oldest_uncovered();
        let sync = oldest.map(|born| born.after(self.context.config.sync_interval));
        let announce = self.drain.announce_deadline().filter(|_| up);
        let replay = self.readahead.deadline(now).filter(|_| up);
        let cache = self.caching.get().filter(|cache| cache.is_ready());
        let background = self.background.deadline(now, cache, self.readahead.limit_end(now));
        // If a deadline has passed, it waits for something else than time.
        [
            sync,
            self.session.deadline(),
            announce,
            self.drain.ship_deadline(&self.context, &self.demand(), &self.log),
            self.drain.reread_deadline(),
            self.caching.deadline(),
            self.keyed.deadline(),
            replay,
        ]
        .into_iter()
        .chain(background.map(|at| at.filter(|_| up)))
        .flatten()
        .filter(|at| *at > now)
        .min()
    }

    // --- queries ---

    /// Whether the connection to the store is gone.
    #[must_use]
    pub fn is_link_down(&self) -> bool {
        self.session.is_down()
    }

    /// Whether someone waits for a commit: batches are then as urgent as control messages.
    #[must_use]
    pub fn drain_is_urgent(&self) -> bool {
        self.awaited().is_some() || self.session.is_closing()
    }

    /// Whether, after [`Volume::handle_shutdown`], no client waits for anything and all
    /// acknowledged writes are on stable storage: the process may end.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.session.is_closing()
            && !self.out.is_stale()
            && self.acknowledger.is_idle()
            && self.reads.is_idle()
            && self.session.is_idle()
            && self.copies.is_idle()
            && self.out.are_taken()
            && self.log.journal().is_stable()
            && self.caching.is_settled(self.log.moment(&self.context))
            && self.keyed.is_settled()
            && (!self.log.journal().is_memory_only()
                || self.log.is_all_committed()
                || self.session.is_fenced())
    }

    /// Whether, in addition, the store has committed everything.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.is_idle() && self.log.is_all_committed()
    }

    /// Whether the store has confirmed that the epoch ended in order.
    #[must_use]
    pub fn is_detached(&self) -> bool {
        self.session.is_detached()
    }

    /// The size of the volume in sectors. Requests up to there are valid.
    #[must_use]
    pub fn sectors(&self) -> u64 {
        self.session.sectors()
    }

    /// The keys of an encrypted volume, as they are now.
    #[must_use]
    pub fn keys(&self) -> Option<&Keys> {
        self.keyed.packing().keys()
    }

    /// The last number that somebody waits to see committed.
    fn awaited(&self) -> Option<Seq> {
        let waited = self.acknowledger.awaited().max(self.copies.awaited());
        waited.max(self.reads.awaited()).max(self.session.awaited())
    }

    /// The log, for tests that damage it.
    #[cfg(test)]
    pub(super) fn log(&mut self) -> &mut WriteLog {
        &mut self.log
    }

    // --- restoring the invariants ---

    /// Does everything that the inputs since the last call have made possible.
    fn settle(&mut self) {
        if !self.out.take_stale() {
            return;
        }
        if self.session.is_due(self.context.now) {
            self.resume();
        }
        self.settle_versions();
        self.admit();
        self.wake();
        if !self.session.is_fenced() {
            self.repair_on();
            let (open, Volume { context, drain, log, out, .. }) =
                (self.session.is_up(), &mut *self);
            drain.announce_due(context, open, log, out);
            self.ship();
            if !self.session.is_closing() {
                self.replay_on();
                self.warm_on();
                self.rewrite_on();
            }
            self.end_epoch();
        }
        // Also for the room that writes have just found missing.
        self.settle_versions();
        let (moment, hurried) = (self.log.moment(&self.context), self.session.is_closing());
        self.caching.settle(self.context.now, moment, hurried);
        let wanted = self.wanted();
        let Volume { context, log, out, .. } = self;
        out.write_files(|id| log.next_operation(context, wanted, id));
    }

    /// Answers the requests whose number has got where it has to be.
    fn wake(&mut self) {
        let progress = self.log.progress();
        self.acknowledger.wake(progress, &mut self.out);
        let reached = (progress.stable, progress.committed);
        self.session.tell_barriers(&self.context, reached, &mut self.out);
        self.stage_committed();
        self.read_committed();
    }

    /// The last number that has to become stable. [`Seq::MAX`] means everything in the journal.
    fn wanted(&self) -> Seq {
        let (now, config, journal) = (self.context.now, &self.context.config, self.log.journal());
        let all = self.acknowledger.has_waiting_writes()
            || self.background.wants_room()
            || self.session.is_closing()
            // The journal keeps acknowledged writes for salvage.
            || self.session.is_fenced();
        if all {
            return Seq::MAX;
        }
        let is_much = journal.unsynced_bytes() >= SYNC_BYTES.min(config.memory_bytes / 4);
        let is_late = |born: Time| born.after(config.sync_interval) <= now;
        let much = is_much.then(|| journal.written_seq());
        let late = journal.oldest_uncovered().is_some_and(is_late).then(|| self.log.last());
        let awaited = self.acknowledger.awaited_here().max(self.awaited());
        awaited.max(much).max(late).unwrap_or(0)
    }

    /// Ends the epoch once a shutdown has left nothing to do.
    fn end_epoch(&mut self) {
        if self.session.is_closing()
            && !self.acknowledger.has_waiting_writes()
            && self.log.is_all_committed()
            && self.keyed.is_settled()
        {
            self.session.detach(&self.context, &mut self.out);
        }
    }
}
