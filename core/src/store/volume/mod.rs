//! The engine of one volume.
//!
//! One owner, no locks: every input changes the state at once and leaves outputs to be polled. Work
//! that changes the log or hangs on its end (batches, attach, resume, detach, lost, accept-loss) goes
//! through one queue in order of arrival, and at most one segment is being put at a time; batches that arrive meanwhile form the
//! next one. Reads and announcements do not queue behind it.

mod ancestors;
mod behind;
mod changed;
mod collect;
mod commit;
mod control;
mod damage;
mod end;
mod opening;
mod outcomes;
mod owner;
mod purpose;
mod reading;
mod readonly;
mod rebuild;
mod repair;
mod resize;
mod rollback;
mod second;
mod snapshots;
mod stage;
mod sweep;
mod upkeep;

use super::log::State;
use super::map::Tree;
use super::map::levels::Levels;
use super::moves::Object;
use super::object::{Book, GetError, ObjectOperation, ObjectResult, Pending, PutError};
use super::open::Replay;
use super::reads::{Reads, Request, Stage, What};
use super::{Config, Event, OpenError, Places, SessionId, VolumeSpec, catalog, segment};
use crate::block::{Epoch, SECTOR_BYTES, STAGED_BIT, Time, VolumeId};
use crate::wire::link::{
    self, Frame, Lane, LiveInfo, MAX_READ_SECTORS, ReadError, RequestId, StageError, ToHost,
    ToStore,
};
pub(super) use ancestors::Ancestor;
use ancestors::maps;
use behind::Behind;
use changed::Walks;
use collect::Collect;
use commit::{Put, Wish, Work};
use damage::Damages;
use end::End;
use opening::Opening;
use owner::Owners;
pub use owner::SessionPeer;
use purpose::{Outcome, Purpose};
use readonly::Only;
use repair::Repairs;
use resize::Sizes;
use rollback::Rolling;
pub use second::Second;
use snapshots::Snapping;
use std::collections::{BTreeSet, VecDeque};
use upkeep::Upkeep;

/// Events kept for a shell that does not take them; later ones are dropped.
const EVENTS_MAX: usize = 4096;
/// Messages held while a volume opens before it wants no more.
const HELD_MAX: usize = 1024;

/// How often a root that is said not to exist is asked for again: then the roots are listed anew.
const ROOT_TRIES: u32 = 3;
/// Objects that are remembered as gone after that: nobody waits for them again.
const GONE_MAX: usize = 1024;

enum Phase {
    Opening(Opening),
    Running,
    /// Another store may have written to the log: reading what it wrote.
    CatchingUp(Replay),
    Failed(OpenError),
}

/// The session whose batches count.
#[derive(Clone, Copy, Debug)]
struct Holder {
    epoch: Epoch,
    session: SessionId,
    connected: bool,
    /// A batch was refused: what follows is dropped until the host resumes.
    refused: bool,
}

/// The log of one volume as a state machine; see the [module](super).
///
/// Inputs are `handle_*`; after any of them, and after [`Volume::open`], the outputs are to be
/// polled until there are none. `now` never goes back.
pub struct Volume {
    spec: VolumeSpec,
    /// The parent, while what a clone begins with is read from it.
    origin: Option<VolumeSpec>,
    /// The snapshot that this is of, if it is not of the volume.
    only: Option<Only>,
    config: Config,
    incarnation: u128,
    counter: u64,
    now: Time,
    phase: Phase,
    state: State,
    tree: Tree,
    /// While it is being opened: the log has to reach this segment, says that object.
    must_reach: Option<(u64, String)>,
    end: End,
    book: Book<Purpose>,
    messages: VecDeque<(SessionId, Lane, Frame<ToHost>)>,
    places: VecDeque<(RequestId, Result<Places, ReadError>)>,
    events: VecDeque<Event>,
    /// Objects that are not there although the log names them.
    gone: BTreeSet<String>,
    held: VecDeque<(SessionId, Lane, Frame<ToStore>)>,
    held_bytes: u64,
    holder: Option<Holder>,
    owners: Owners,
    queue: VecDeque<Work>,
    queue_bytes: u64,
    /// The log has been looked at for what another store wrote, on behalf of the queue's front.
    probed: bool,
    put: Option<Put>,
    reads: Reads,
    behind: Behind,
    upkeep: Upkeep,
    collect: Collect,
    ancestors: Vec<Ancestor>,
    sizes: Sizes,
    walks: Walks,
    snapping: Snapping,
    rolling: Rolling,
    second: Second,
    repairs: Repairs,
    damages: Damages,
    /// The next number is to be taken.
    fencing: bool,
    announce_unsaved: Option<Time>,
    shutting_down: bool,
}

impl Volume {
    /// Begins to open a volume. `incarnation` is random and never used for another engine.
    #[must_use]
    pub fn open(now: Time, spec: VolumeSpec, incarnation: u128, config: Config) -> Volume {
        Volume::begin(now, spec, None, incarnation, config)
    }

    fn begin(
        now: Time,
        spec: VolumeSpec,
        only: Option<Only>,
        incarnation: u128,
        mut config: Config,
    ) -> Volume {
        config.segment_bytes = config.segment_bytes.clamp(1, segment::MAX_RECORDS_BYTES);
        config.announce_in_segment_max =
            config.announce_in_segment_max.clamp(1, segment::MAX_ANNOUNCED);
        let state = State::new(&spec, config.announce_entries_max);
        let asked = only.as_ref().map_or(spec.id, |only| only.id);
        let mut volume = Volume {
            origin: None,
            only,
            incarnation,
            counter: 0,
            now,
            phase: Phase::Opening(Opening::Roots),
            state,
            tree: Tree::new(config.map, spec.id, 0, Levels::default()),
            must_reach: None,
            end: End::default(),
            book: Book::new(config.retry),
            messages: VecDeque::new(),
            places: VecDeque::new(),
            events: VecDeque::new(),
            gone: BTreeSet::new(),
            held: VecDeque::new(),
            held_bytes: 0,
            holder: None,
            owners: Owners::default(),
            queue: VecDeque::new(),
            queue_bytes: 0,
            probed: false,
            put: None,
            reads: Reads::new(
                config.read_operations_max,
                config.read_bytes_max,
                spec.clone(),
                asked,
            ),
            behind: Behind::default(),
            upkeep: Upkeep::default(),
            collect: Collect::new(&config, spec.id),
            ancestors: Ancestor::all(&config, &spec),
            sizes: Sizes::default(),
            walks: Walks::default(),
            snapping: Snapping::default(),
            rolling: Rolling::default(),
            second: Second::default(),
            repairs: Repairs::default(),
            damages: Damages::default(),
            fencing: false,
            announce_unsaved: None,
            shutting_down: false,
            spec,
            config,
        };
        volume.list_roots();
        volume
    }

    /// What does not change about the volume.
    #[must_use]
    pub fn spec(&self) -> &VolumeSpec {
        &self.spec
    }

    /// Begins to open the snapshot of a volume that was taken by that segment, for reading only: it goes by
    /// the snapshot's identity, whatever is asked of it, and anybody may attach it, in epoch 0. Nothing is
    /// written. It fails with [`OpenError::NoSnapshot`] when the snapshot has been deleted, at once or
    /// when that shows.
    #[must_use]
    pub fn open_snapshot(
        now: Time,
        spec: VolumeSpec,
        (segment, id): (u64, VolumeId),
        incarnation: u128,
        config: Config,
    ) -> Volume {
        Volume::begin(now, spec, Some(Only::new(segment, id)), incarnation, config)
    }

    /// The identity that messages are to carry: the volume's, or that of the snapshot which this is.
    #[must_use]
    pub fn id(&self) -> VolumeId {
        self.only.as_ref().map_or(self.spec.id, |only| only.id)
    }

    /// The session whose host has the volume attached and is connected.
    #[must_use]
    pub fn holder(&self) -> Option<SessionId> {
        self.holder.filter(|holder| holder.connected).map(|holder| holder.session)
    }

    /// A frame from a host. Attach and volume operations come here because they name this volume,
    /// everything else because it carries its identity; what does neither is ignored.
    pub fn handle_message(
        &mut self,
        now: Time,
        session: SessionId,
        lane: Lane,
        frame: Frame<ToStore>,
    ) {
        self.now = now;
        if matches!(self.phase, Phase::Opening(_)) && !self.shutting_down {
            self.held_bytes += frame.payload.len() as u64;
            self.held.push_back((session, lane, frame));
        } else {
            self.message(session, lane, frame);
        }
        self.advance();
    }

    /// A connection is gone. What it had delivered is still committed.
    pub fn handle_session_closed(&mut self, now: Time, session: SessionId) {
        self.now = now;
        self.forget_peer(session);
        self.held.retain(|(other, ..)| *other != session);
        self.held_bytes = self.held.iter().map(|(.., frame)| frame.payload.len() as u64).sum();
        if let Some(holder) = &mut self.holder
            && holder.session == session
        {
            holder.connected = false;
            self.await_holder();
        }
        let leaves = |work: &Work| !work.is_batch() && work.session() == session;
        if self.queue.front().is_some_and(leaves) {
            // What is being read from the log was read for the one that leaves: it may be older
            // than what the next one knows.
            self.probed = false;
        }
        self.queue.retain(|work| !leaves(work));
        if let Some(put) = &mut self.put {
            put.session_closed(session);
        }
        self.reads.forget(session);
        self.repairs.forget(session);
        self.behind.forget(session);
        self.sizes.forget(session);
        self.walks.forget(session);
        self.snapping.forget(session);
        self.messages.retain(|(other, ..)| *other != session);
        self.advance();
    }

    /// The outcome of an operation that [`Volume::poll_object`] gave.
    pub fn handle_object(&mut self, now: Time, id: u64, result: ObjectResult) {
        self.now = now;
        let Some(mut pending) = self.book.finish(id) else { return };
        let outcome = match result {
            ObjectResult::Put(Ok(())) | ObjectResult::Delete(Ok(())) => Ok(Outcome::Done),
            ObjectResult::Put(Err(PutError::Exists)) => Ok(Outcome::Exists),
            ObjectResult::Get(Ok(data)) => {
                self.gone.remove(pending.operation.key());
                Ok(Outcome::Data(data))
            }
            ObjectResult::Get(Err(GetError::NotFound)) if self.elsewhere(&pending).is_some() => {
                if let Some(operation) = self.elsewhere(&pending) {
                    self.book.reissue(Pending { operation, ..pending });
                }
                return self.advance();
            }
            ObjectResult::Get(Err(GetError::NotFound)) if self.may_return(&mut pending) => {
                pending.missing += 1;
                // Where it was looked for first.
                if let ObjectOperation::Get { key, .. } = &mut pending.operation
                    && let Some((_, number)) = catalog::parse_data_key(key)
                {
                    *key = self.data_key(number);
                }
                Err("it is said not to exist, and was there".into())
            }
            ObjectResult::Get(Err(GetError::NotFound)) => Ok(Outcome::NotFound),
            // As good as an object that is cut short before its first byte.
            ObjectResult::Get(Err(GetError::Damaged(_))) => Ok(Outcome::Data(bytes::Bytes::new())),
            ObjectResult::List(Ok(list)) => Ok(Outcome::List(list)),
            ObjectResult::Put(Err(PutError::Failed(error)))
            | ObjectResult::Get(Err(GetError::Failed(error)))
            | ObjectResult::List(Err(error))
            | ObjectResult::Delete(Err(error)) => Err(error),
        };
        match outcome {
            Ok(outcome) => self.object_done(pending, outcome),
            Err(error) => self.object_failed(pending, error),
        }
        self.advance();
    }

    /// The time that [`Volume::poll_timeout`] gave has come.
    pub fn handle_timeout(&mut self, now: Time) {
        self.now = now;
        self.book.handle_timeout(now);
        self.upkeep_step();
        self.advance();
    }

    /// Finishes the segment under way, flushes the map and refuses new work; done when
    /// [`Volume::is_idle`].
    pub fn handle_shutdown(&mut self, now: Time) {
        self.now = now;
        self.shutting_down = true;
        for (session, lane, frame) in std::mem::take(&mut self.held) {
            self.message(session, lane, frame);
        }
        self.held_bytes = 0;
        let queue = std::mem::take(&mut self.queue);
        for work in queue.into_iter().chain(self.snapping.take()) {
            self.refuse_work(work);
        }
        self.queue_bytes = 0;
        let waiting = self.repairs.take_all();
        for read in self.reads.stop().into_iter().chain(waiting) {
            self.read_failed(read, ReadError::NotAttached);
        }
        self.refuse_behind();
        self.advance();
    }

    /// Another store has taken the volume: all who wait for something here are told to come again. What is
    /// under way may have its effect or not; the engine is then to be dropped.
    pub fn handle_taken(&mut self, now: Time) {
        self.now = now;
        self.shutting_down = true;
        self.refuse_all("the volume has moved to another store");
        for pending in self.book.take_all() {
            if let Purpose::PutStaged(putting) = pending.purpose {
                self.staged(putting, Err(StageError::Read(ReadError::NotAttached)));
            }
        }
    }

    /// The next operation on objects. Operations are independent of each other.
    pub fn poll_object(&mut self) -> Option<(u64, ObjectOperation)> {
        self.book.poll()
    }

    /// The next frame to send, in that lane of that session. A frame for a session that is closed
    /// is dropped.
    pub fn poll_message(&mut self) -> Option<(SessionId, Lane, Frame<ToHost>)> {
        self.messages.pop_front()
    }

    /// The next answer to a [`ToStore::Status`] of [`SHELL_SESSION`]: where what lies, of parts in order from the start of
    /// the range, which may end before it does.
    pub fn poll_places(&mut self) -> Option<(RequestId, Result<Places, ReadError>)> {
        self.places.pop_front()
    }

    /// The next thing to log.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Volume::handle_timeout`] wants to be called; a time that has passed means at once.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let save = self
            .announce_unsaved
            .filter(|_| self.can_put())
            .map(|since| since.after(self.config.announce_persist));
        [self.book.poll_timeout(), self.upkeep_timeout(), save].into_iter().flatten().min()
    }

    /// Whether there is room for more work. While there is not, the shell reads no further from the
    /// lanes of the sessions that use the volume ([`Lane::Drain`] first of all); what it hands over
    /// all the same is taken.
    #[must_use]
    pub fn wants_input(&self) -> bool {
        self.queue_bytes < self.config.queue_bytes
            && self.held_bytes < self.config.queue_bytes
            && self.held.len() < HELD_MAX
            && self.reads.waiting() < self.config.reads_waiting_max
            && !self.is_table_full()
    }

    /// Whether the table has grown much while the one before it is still being written.
    fn is_table_full(&self) -> bool {
        let most = self.config.table_bytes.saturating_mul(4);
        (self.tree.is_flushing() || self.tree.set_aside() > 0) && self.tree.table_bytes() >= most
    }

    /// Whether nothing is under way: with no further input nothing further happens. After
    /// [`Volume::handle_shutdown`] the volume may then be dropped.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        match self.phase {
            Phase::Failed(_) => true,
            Phase::Opening(_) => self.shutting_down,
            Phase::CatchingUp(_) => false,
            Phase::Running => {
                self.book.is_empty()
                    && self.queue.is_empty()
                    && self.put.is_none()
                    && self.reads.is_idle()
                    && self.repairs.is_empty()
                    && self.behind.is_empty()
                    && self.snapping.is_empty()
                    && self.upkeep_is_idle()
                    && !(self.shutting_down && self.announce_unsaved.is_some())
            }
        }
    }

    /// What is known of the volume; `None` until it is open.
    #[must_use]
    pub fn info(&self) -> Option<LiveInfo> {
        if matches!(self.phase, Phase::Opening(_) | Phase::Failed(_)) {
            return None;
        }
        let mapped_bytes = self.tree.mapped_bytes().min(self.state.sectors * SECTOR_BYTES);
        if self.is_readonly() {
            return Some(self.only_info(mapped_bytes));
        }
        Some(LiveInfo {
            epoch: self.state.epoch(),
            host: self.state.host(),
            name: self.holder_name(),
            connected: self.connected(),
            silent_since: self.silent_since(),
            clean: self.state.clean,
            committed: self.state.committed,
            segments: self.state.number,
            mapped_bytes,
            announced_bytes: self.state.announced.bytes(),
        })
    }

    /// Bytes of the volume's segments and bundles, and of what is named of them, at most, as of the last count;
    /// `None` before the first.
    #[must_use]
    pub fn space(&self) -> Option<(u64, u64)> {
        self.collect.space()
    }

    /// The session of the host that has the volume attached, if that is connected.
    #[must_use]
    pub fn session(&self) -> Option<SessionId> {
        self.holder.filter(|holder| holder.connected).map(|holder| holder.session)
    }

    /// The size of the volume in sectors; `None` until it is open.
    #[must_use]
    pub fn sectors(&self) -> Option<u64> {
        let open = !matches!(self.phase, Phase::Opening(_) | Phase::Failed(_));
        open.then_some(self.state.sectors)
    }

    /// The state of the log as far as it has been applied.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Why the volume cannot be opened or cannot go on. It stays so; only opening it anew helps.
    #[must_use]
    pub fn failed(&self) -> Option<&OpenError> {
        match &self.phase {
            Phase::Failed(error) => Some(error),
            _ => None,
        }
    }

    /// Restores what must hold after every input: whatever can be begun has been.
    fn advance(&mut self) {
        self.advance_log();
        if !matches!(self.phase, Phase::Running | Phase::CatchingUp(_)) {
            return;
        }
        if self.rolling.exists {
            self.segment_confirmed();
        }
        self.advance_queue();
        self.advance_upkeep();
        self.advance_reads();
    }

    /// A segment has been applied to the state: what it says about the map.
    fn map_segment(&mut self, segment: &segment::Segment) {
        self.collect.written(segment.header.tail().end);
        self.end_moved(segment);
        {
            let pages = &mut *self.config.pages.lock();
            for piece in &segment.footer.pieces {
                self.tree.apply(segment.header.number, piece, pages);
            }
        }
        self.split_by(segment);
    }

    fn connected(&self) -> bool {
        self.holder.is_some_and(|holder| holder.connected)
    }

    fn event(&mut self, event: Event) {
        if self.events.len() < EVENTS_MAX {
            self.events.push_back(event);
        }
    }

    fn send(&mut self, session: SessionId, lane: Lane, message: ToHost) {
        self.messages.push_back((session, lane, message.into()));
    }

    /// Goes no further. Whoever waits for something is told; the holder learns why when it resumes.
    fn fail(&mut self, error: OpenError) {
        let reason = error.to_string();
        self.event(Event::Failed(error.clone()));
        self.phase = Phase::Failed(error);
        self.refuse_all(&reason);
    }

    /// Answers all that waits: nothing of it will be done.
    fn refuse_all(&mut self, reason: &str) {
        if let Some(holder) = self.holder {
            self.refuse_batch(holder.session, holder.epoch, reason.to_owned());
        }
        if let Some(work) = self.put.take().and_then(Put::asked) {
            self.refuse_work(work);
        }
        let waiting = self.repairs.take_all();
        for read in self.reads.abandon().into_iter().chain(waiting) {
            self.read_failed(read, ReadError::NotAttached);
        }
        self.refuse_behind();
        self.refuse_walks();
        self.refuse_resized();
        let queue = std::mem::take(&mut self.queue);
        for work in queue.into_iter().chain(self.snapping.take()) {
            self.refuse_work(work);
        }
        self.queue_bytes = 0;
        for (session, lane, frame) in std::mem::take(&mut self.held) {
            self.message(session, lane, frame);
        }
        self.held_bytes = 0;
    }

    fn message(&mut self, session: SessionId, lane: Lane, frame: Frame<ToStore>) {
        let ours = self.id();
        if self.is_readonly() {
            return self.only_message(session, lane, ours, frame);
        }
        let Some(frame) = self.only_in_own_epoch(session, lane, frame) else { return };
        match frame.message {
            ToStore::Attach { request, host, journal, take_over, .. } => {
                let wish = Wish { host, journal, take_over };
                self.control(Work::Attach { session, lane, request, wish });
            }
            ToStore::Resume { request, volume, epoch, host } if volume == ours => {
                self.control(Work::Resume { session, lane, request, epoch, host });
            }
            ToStore::Detach { request, volume, epoch } if volume == ours => {
                self.control(Work::Detach { session, lane, request, epoch });
            }
            ToStore::Batch { volume, epoch, first, last } if volume == ours => {
                self.batch(session, epoch, first, last, frame.payload);
            }
            ToStore::Announce { volume, epoch, replace, entries } if volume == ours => {
                self.announce(session, epoch, replace, &entries);
            }
            ToStore::Read { request, volume, epoch, range } if volume == ours => {
                let request = Request { session, lane, request, epoch, range, what: What::Data };
                self.asked_to_read(request, MAX_READ_SECTORS);
            }
            ToStore::ReadBehind { request, volume, epoch, committed, range } if volume == ours => {
                let request = Request { session, lane, request, epoch, range, what: What::Data };
                self.read_behind(request, committed);
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
            ToStore::Changed { request, volume, epoch, since } if volume == ours => {
                self.changed(session, lane, request, epoch, since);
            }
            ToStore::Barrier { volume, epoch, barrier, seq } if volume == ours => {
                self.barrier(session, epoch, barrier, seq);
            }
            ToStore::Volume { request, operation } => {
                self.volume_operation(session, lane, request, operation);
            }
            _ => {}
        }
    }

    fn object_key(&self, object: Object) -> String {
        match object {
            Object::Own(number) => self.data_key(number),
            Object::Bundle(id) => catalog::bundle_key(id),
        }
    }

    /// The key of a segment or of a staged object, of which it is not known whether it is this volume's or a parent's.
    fn data_key(&self, number: u64) -> String {
        let staged = number & STAGED_BIT != 0;
        let volume = if staged { self.spec.id } else { self.spec.owner_of(number) };
        catalog::data_key(volume, number)
    }

    /// What was staged for a parent lies there: where to look next for an object of a clone that is not here.
    fn elsewhere(&self, pending: &Pending<Purpose>) -> Option<ObjectOperation> {
        let ObjectOperation::Get { key, range, copies } = &pending.operation else { return None };
        let (volume, number) = catalog::parse_data_key(key).filter(|(_, n)| n & STAGED_BIT != 0)?;
        let mut chain = std::iter::once(self.spec.id)
            .chain(self.spec.parents.iter().map(|parent| parent.volume));
        chain.find(|id| *id == volume)?;
        let key = catalog::data_key(chain.next()?, number);
        Some(ObjectOperation::Get { key, range: range.clone(), copies: *copies })
    }

    /// Whether an object that is said not to exist is to be waited for.
    fn may_return(&mut self, pending: &mut Pending<Purpose>) -> bool {
        let key = pending.operation.key();
        if !pending.purpose.is_known() || self.gone.contains(key) {
            return false;
        }
        if let Purpose::Walk { number, .. } = pending.purpose
            && self.collect.may_have_deleted()
            && self.upkeep.newest.is_some_and(|newest| number <= newest.segment)
        {
            return false;
        }
        if let Purpose::ReadRoot(_) | Purpose::ReadPin(_) | Purpose::ReadBase(_) = pending.purpose {
            // It was in the list: unless it has been deleted since, as old ones are.
            return pending.missing < ROOT_TRIES;
        }
        let since = *pending.missing_since.get_or_insert(self.now);
        if self.now < since.after(self.config.missing_wait) {
            return true;
        }
        if self.gone.len() < GONE_MAX {
            self.gone.insert(key.to_owned());
        }
        false
    }

    fn reply_volume(
        &mut self,
        session: SessionId,
        lane: Lane,
        request: RequestId,
        result: Result<link::VolumeReply, link::VolumeError>,
    ) {
        self.send(session, lane, ToHost::Volume { request, result });
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        let bytes = self.tree.table_bytes() + self.collect.moved.table_bytes();
        self.config.pages.lock().resize_table(bytes, 0);
    }
}

impl Phase {
    fn replay(&mut self) -> Option<&mut Replay> {
        match self {
            Phase::Opening(Opening::Replay(replay)) | Phase::CatchingUp(replay) => Some(replay),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
