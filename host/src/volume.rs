//! An attached volume on the front thread: joins the engine with connections, disk and link.
//!
//! Promises: the replies of one wake-up leave before it wakes journal and link. So a request that
//! needs neither gets its answer without a system call to another thread. All work of one wake-up
//! reaches journal and link together. The front thread owns the volume, so the module needs no
//! lock. It does not know the client protocol.

use super::cache::CacheFile;
use super::metrics::{RequestKind, StageTimes, VolumeMetrics};
use super::version_table::VersionTable;
use bytes::Bytes;
use longhaul_base::disk::{DiskCounters, JournalDisk, OrderedDisk};
use longhaul_base::units::show_bytes;
use longhaul_core::block::{BlockError, Reply, Request, Seq, Time, VolumeId};
use longhaul_core::host::cache::Pins;
use longhaul_core::host::{self as engine, DiskOperation, DiskResult, Event};
use longhaul_core::pack::Keys;
use longhaul_core::wire::link::{Attached, Frame, Lane, RequestId, ToHost, ToStore};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Time for the engines: nanoseconds since the process started to use it.
#[derive(Clone, Copy)]
pub struct Clock(Instant);

impl Clock {
    /// A clock that starts now.
    pub fn start() -> Clock {
        // An engine may subtract from the time; zero is left for "never".
        Clock(Instant::now().checked_sub(Duration::from_secs(1)).unwrap_or_else(Instant::now))
    }

    /// The time.
    pub fn now(self) -> Time {
        Time(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// A moment for timers; never more than a day away.
    pub fn instant(self, time: Time) -> tokio::time::Instant {
        // A day is for ever: if the timer fires early, the task sets it again.
        let after = Duration::from_nanos(time.0).min(self.0.elapsed() + Duration::from_secs(86400));
        tokio::time::Instant::from_std(self.0 + after)
    }
}

/// A connection that waits for replies.
pub trait Requester {
    /// The outcome of request `slot`. The connection may collect outcomes until
    /// [`Requester::flush`].
    fn reply(&self, slot: u64, reply: Result<Reply, BlockError>);
    /// Sends the collected replies. Called once after the replies of a wake-up.
    fn flush(&self);
    /// Whether the connection has collected a reply since the last flush; sets it.
    fn mark(&self) -> bool;
}

/// The way to the store.
pub trait Uplink {
    /// Takes a message. A store that answers at once gives its answer back.
    fn send(&self, lane: Lane, frame: Frame<ToStore>) -> Option<Frame<ToHost>>;
    /// Sends all taken messages.
    fn submit(&self);
    /// Whether a flush of this volume waits for the store.
    fn set_drain_urgent(&self, volume: VolumeId, urgent: bool);
}

/// Where the journal is.
pub enum Backing {
    /// On a disk.
    Disk(Box<JournalDisk>),
    /// Nowhere: every write waits for the store.
    None,
    /// In memory, for measurements: a write is done after its copy.
    Memory(Vec<Vec<u8>>),
}

impl Backing {
    fn start(&mut self, operation: DiskOperation) -> Option<DiskResult> {
        match self {
            Backing::Disk(disk) => disk.start_operation(operation),
            Backing::Memory(files) => Some(match operation {
                DiskOperation::Write { id, file, offset, data, .. } => {
                    let start = offset as usize;
                    files[file as usize][start..start + data.len()].copy_from_slice(&data);
                    DiskResult::Done { id }
                }
                DiskOperation::Sync { id, .. } => DiskResult::Done { id },
                DiskOperation::Read { id, file, offset, bytes } => {
                    let start = offset as usize;
                    let data = Bytes::copy_from_slice(&files[file as usize][start..start + bytes]);
                    DiskResult::Data { id, data }
                }
            }),
            Backing::None => Some(match operation {
                DiskOperation::Write { id, .. }
                | DiskOperation::Sync { id, .. }
                | DiskOperation::Read { id, .. } => {
                    DiskResult::Failed { id, error: "this volume has no journal".into() }
                }
            }),
        }
    }
}

struct PendingRequest {
    client: Rc<dyn Requester>,
    slot: u64,
    kind: RequestKind,
    started: Time,
}

/// Requests with their outcome.
type Answered = Vec<(PendingRequest, Result<Reply, BlockError>)>;

/// Requests without a reply, numbered by place.
#[derive(Default)]
struct Requests {
    places: Vec<Option<PendingRequest>>,
    free: Vec<usize>,
}

impl Requests {
    fn insert(&mut self, pending: PendingRequest) -> u64 {
        match self.free.pop() {
            Some(place) => {
                self.places[place] = Some(pending);
                place as u64
            }
            None => {
                self.places.push(Some(pending));
                self.places.len() as u64 - 1
            }
        }
    }

    fn remove(&mut self, id: u64) -> Option<PendingRequest> {
        let pending = self.places.get_mut(id as usize)?.take()?;
        self.free.push(id as usize);
        Some(pending)
    }
}

/// The times of the requests to the store.
#[derive(Default)]
struct StoreRequests {
    reads: BTreeMap<RequestId, Time>,
    /// Batches by their last number, which grows.
    batches: VecDeque<(Seq, Time)>,
}

impl StoreRequests {
    fn sent(&mut self, now: Time, lane: Lane, message: &ToStore) {
        match message {
            ToStore::Read { request, .. } if lane == Lane::Read => {
                self.reads.insert(*request, now);
            }
            ToStore::Batch { last, .. } => self.batches.push_back((*last, now)),
            // The engine asks again for all that was under way.
            ToStore::Resume { .. } => *self = StoreRequests::default(),
            _ => {}
        }
    }

    fn answered(&mut self, now: Time, message: &ToHost, stages: &mut StageTimes) {
        match message {
            ToHost::Data { request, .. } => {
                if let Some(at) = self.reads.remove(request) {
                    stages.link.record(now.since(at));
                }
            }
            ToHost::Committed { seq, .. } => {
                while let Some((_, at)) = self.batches.pop_front_if(|(last, _)| *last <= *seq) {
                    stages.commit.record(now.since(at));
                }
            }
            _ => {}
        }
    }
}

/// The volume of which a name names a snapshot.
pub fn snapshot_of(name: &str) -> Option<&str> {
    name.split_once('@').map(|(volume, _)| volume)
}

/// Takes the events of an engine.
type OnEvent = Box<dyn Fn(&Volume, Event)>;

/// An attached volume.
pub struct Volume {
    name: String,
    attached: Attached,
    clock: Clock,
    inner: RefCell<VolumeParts>,
    /// Reused between turns, so that a turn does not allocate.
    replies: Cell<Answered>,
    /// Wakes [`Volume::run`] when its timer has to fire earlier.
    rearm: Notify,
    uplink: Rc<dyn Uplink>,
    on_event: OnEvent,
    detached: Cell<bool>,
    /// The host still has to state something about it at the store.
    concluding: Cell<bool>,
    /// The name of its journal, if it has one.
    journal: OnceCell<String>,
    /// [`Volume::run`] is to return.
    ended: Cell<bool>,
    trouble: RefCell<Option<String>>,
}

struct VolumeParts {
    engine: engine::Volume,
    backing: Backing,
    /// Where the read cache is, if there is one.
    cache: Option<OrderedDisk>,
    /// Where the version table is, if there is one.
    versions: Option<OrderedDisk>,
    requests: Requests,
    metrics: VolumeMetrics,
    asked: StoreRequests,
    armed: Time,
    urgent: bool,
}

impl Volume {
    /// Joins an engine with its surroundings. Calls `on_event` after each turn with the engine's
    /// reports.
    pub fn new(
        name: String,
        attached: Attached,
        clock: Clock,
        engine: engine::Volume,
        backing: Backing,
        uplink: Rc<dyn Uplink>,
        on_event: impl Fn(&Volume, Event) + 'static,
    ) -> Rc<Volume> {
        let inner = VolumeParts {
            engine,
            backing,
            cache: None,
            versions: None,
            requests: Requests::default(),
            metrics: VolumeMetrics::default(),
            asked: StoreRequests::default(),
            armed: Time(u64::MAX),
            urgent: false,
        };
        Rc::new(Volume {
            name,
            attached,
            clock,
            inner: RefCell::new(inner),
            replies: Cell::default(),
            rearm: Notify::new(),
            uplink,
            on_event: Box::new(on_event),
            detached: Cell::new(false),
            concluding: Cell::new(false),
            journal: OnceCell::new(),
            ended: Cell::new(false),
            trouble: RefCell::default(),
        })
    }

    /// Gives it a read cache, before its first request.
    pub fn set_cache(&self, file: CacheFile) {
        let now = self.clock.now();
        {
            let inner = &mut *self.inner.borrow_mut();
            inner.engine.set_cache(now, file.cache);
            let wanted = file.pins.bytes();
            inner.engine.handle_pins(now, file.pins);
            let pinned = inner.engine.pins().map_or(0, Pins::bytes);
            if pinned < wanted {
                tracing::warn!(
                    volume = self.name,
                    "{} are to be pinned, and the cache has room for {}: the rest is not",
                    show_bytes(wanted),
                    show_bytes(pinned)
                );
            }
            inner.cache = Some(file.disk);
        }
        self.turn(now);
    }

    /// Gives it its version table, before its first request.
    pub fn set_versions(&self, table: VersionTable) {
        let now = self.clock.now();
        {
            let inner = &mut *self.inner.borrow_mut();
            inner.engine.set_versions(now, table.versions);
            inner.versions = Some(table.disk);
        }
        self.turn(now);
    }

    /// Names the journal that its writes are in (`journal_id` of `volume.json`), before its first
    /// request.
    pub fn set_journal(&self, id: String) {
        // It has one journal for as long as it lives.
        let _ = self.journal.set(id);
    }

    /// The name of its journal; `None` if every write waits for the store.
    pub fn journal(&self) -> Option<&str> {
        self.journal.get().map(String::as_str)
    }

    /// Its name at the attach.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The last lasting trouble with its journal or its store, for the status.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.borrow().clone()
    }

    /// Something is wrong and stays so.
    pub fn set_trouble(&self, why: String) {
        self.trouble.replace(Some(why));
    }

    /// It is not, if it was this.
    pub fn end_trouble(&self, why: &str) {
        self.trouble.borrow_mut().take_if(|trouble| trouble == why);
    }

    /// Its size in sectors now; it may grow.
    pub fn sectors(&self) -> u64 {
        self.inner.borrow().engine.sectors()
    }

    /// Whether it is a snapshot, which nothing is written to.
    pub fn is_read_only(&self) -> bool {
        snapshot_of(&self.name).is_some()
    }

    /// The store's answer to the attach.
    pub fn attached(&self) -> &Attached {
        &self.attached
    }

    /// Hands requests of a client to the engine and acts on what follows. `since` is when the
    /// client's protocol began with them.
    pub fn submit(
        &self,
        client: &Rc<dyn Requester>,
        since: Instant,
        requests: impl Iterator<Item = (u64, Request)>,
    ) {
        let now = self.clock.now();
        {
            let inner = &mut *self.inner.borrow_mut();
            inner.metrics.stages.front.record(since.elapsed());
            for (slot, request) in requests {
                let kind = RequestKind::of(&request);
                inner.metrics.start(&request);
                let pending = PendingRequest { client: client.clone(), slot, kind, started: now };
                let id = inner.requests.insert(pending);
                inner.engine.handle_request(now, id, request);
            }
        }
        self.turn(now);
    }

    /// Gives the engine something and acts on what follows.
    pub fn with(&self, input: impl FnOnce(Time, &mut engine::Volume)) {
        let now = self.clock.now();
        input(now, &mut self.inner.borrow_mut().engine);
        self.turn(now);
    }

    /// Gives the engine messages of the store and acts on what follows.
    pub fn handle_messages(&self, frames: impl Iterator<Item = Frame<ToHost>>) {
        let now = self.clock.now();
        {
            let inner = &mut *self.inner.borrow_mut();
            for frame in frames {
                inner.asked.answered(now, &frame.message, &mut inner.metrics.stages);
                inner.engine.handle_message(now, frame);
            }
        }
        self.turn(now);
    }

    /// Carries out what the engine wants until it wants nothing more.
    fn turn(&self, now: Time) {
        let mut replies = self.replies.take();
        let mut events = Vec::new();
        {
            let inner = &mut *self.inner.borrow_mut();
            loop {
                let mut again = false;
                while let Some(operation) = inner.engine.poll_disk() {
                    if let Some(result) = inner.backing.start(operation) {
                        inner.engine.handle_disk(now, result);
                        again = true;
                    }
                }
                if let Some(cache) = &mut inner.cache {
                    while let Some(operation) = inner.engine.poll_cache() {
                        if let Some(result) = cache.start_operation(operation) {
                            inner.engine.handle_cache(now, result);
                            again = true;
                        }
                    }
                }
                if let Some(versions) = &mut inner.versions {
                    while let Some(operation) = inner.engine.poll_versions() {
                        if let Some(result) = versions.start_operation(operation) {
                            inner.engine.handle_versions(now, result);
                            again = true;
                        }
                    }
                }
                while let Some((lane, frame)) = inner.engine.poll_message() {
                    inner.asked.sent(now, lane, &frame.message);
                    if let Some(answer) = self.uplink.send(lane, frame) {
                        let stages = &mut inner.metrics.stages;
                        inner.asked.answered(now, &answer.message, stages);
                        inner.engine.handle_message(now, answer);
                        again = true;
                    }
                }
                if !again {
                    break;
                }
            }
            while let Some((id, reply)) = inner.engine.poll_reply() {
                if let Some(pending) = inner.requests.remove(id) {
                    inner.metrics.end(pending.kind, now.since(pending.started), &reply);
                    replies.push((pending, reply));
                }
            }
            while let Some(event) = inner.engine.poll_event() {
                events.push(event);
            }
        }
        let answering = (!replies.is_empty()).then(Instant::now);
        let mut touched: Option<Rc<dyn Requester>> = None;
        let mut more = Vec::new();
        for (pending, reply) in replies.drain(..) {
            let PendingRequest { client, slot, .. } = pending;
            client.reply(slot, reply);
            if client.mark() {
                match touched {
                    None => touched = Some(client),
                    Some(_) => more.push(client),
                }
            }
        }
        for client in touched.iter().chain(&more) {
            client.flush();
        }
        self.replies.set(replies);
        let answered = answering.map(|begun| begun.elapsed());
        {
            let inner = &mut *self.inner.borrow_mut();
            if let Backing::Disk(disk) = &mut inner.backing {
                disk.submit();
            }
            for disk in [&mut inner.cache, &mut inner.versions].into_iter().flatten() {
                disk.submit();
            }
            let urgent = inner.engine.drain_is_urgent();
            if urgent != inner.urgent {
                inner.urgent = urgent;
                self.uplink.set_drain_urgent(self.attached.volume, urgent);
            }
            if let Some(next) = inner.engine.poll_timeout()
                && next < inner.armed
            {
                inner.armed = next;
                self.rearm.notify_one();
            }
        }
        self.uplink.submit();
        {
            let stages = &mut self.inner.borrow_mut().metrics.stages;
            let took = self.clock.now().since(now);
            stages.host.record(took.saturating_sub(answered.unwrap_or_default()));
            if let Some(answered) = answered {
                stages.front.record(answered);
            }
        }
        for event in events {
            if event == Event::Detached {
                self.detached.set(true);
            }
            (self.on_event)(self, event);
        }
    }

    /// Closes its files and stops its timer. For a volume that is detached or fenced off. Clients
    /// may still have it, but it must not touch a journal that another task opens or removes.
    pub fn end(&self) {
        self.ended.set(true);
        self.rearm.notify_one();
        let inner = &mut *self.inner.borrow_mut();
        inner.backing = Backing::None;
        inner.cache = None;
    }

    /// Serves journal and timer until dropped, or [`Volume::end`].
    pub async fn run(self: Rc<Self>) {
        let watch_disk = || {
            let inner = self.inner.borrow();
            let disk = match &inner.backing {
                Backing::Disk(disk) => Some(disk.watch()),
                Backing::None | Backing::Memory(_) => None,
            };
            async move {
                match disk {
                    Some(done) => done.await,
                    None => std::future::pending().await,
                }
            }
        };
        let watch_cache = || {
            let done = self.inner.borrow().cache.as_ref().map(OrderedDisk::watch);
            async move {
                match done {
                    Some(done) => done.await,
                    None => std::future::pending().await,
                }
            }
        };
        let watch_versions = || {
            let done = self.inner.borrow().versions.as_ref().map(OrderedDisk::watch);
            async move {
                match done {
                    Some(done) => done.await,
                    None => std::future::pending().await,
                }
            }
        };
        loop {
            let armed = self.inner.borrow().armed;
            tokio::select! {
                () = watch_disk() => self.take_disk_results(),
                () = watch_versions() => self.take_versions_results(),
                () = watch_cache() => self.take_cache_results(),
                () = tokio::time::sleep_until(self.clock.instant(armed)) => self.take_timeout(),
                () = self.rearm.notified() => {}
            }
            if self.ended.get() {
                return;
            }
        }
    }

    fn take_disk_results(&self) {
        let now = self.clock.now();
        {
            let inner = &mut *self.inner.borrow_mut();
            let Backing::Disk(disk) = &mut inner.backing else { return };
            for result in disk.take_results() {
                inner.engine.handle_disk(now, result);
            }
        }
        self.turn(now);
    }

    fn take_cache_results(&self) {
        let now = self.clock.now();
        {
            let inner = &mut *self.inner.borrow_mut();
            let Some(cache) = &mut inner.cache else { return };
            for result in cache.take_results() {
                inner.engine.handle_cache(now, result);
            }
        }
        self.turn(now);
    }

    fn take_versions_results(&self) {
        let now = self.clock.now();
        {
            let inner = &mut *self.inner.borrow_mut();
            let Some(versions) = &mut inner.versions else { return };
            for result in versions.take_results() {
                inner.engine.handle_versions(now, result);
            }
        }
        self.turn(now);
    }

    fn take_timeout(&self) {
        let now = self.clock.now();
        {
            let inner = &mut *self.inner.borrow_mut();
            inner.armed = Time(u64::MAX);
            if inner.engine.poll_timeout().is_some_and(|due| due <= now) {
                inner.engine.handle_timeout(now);
            }
        }
        self.turn(now);
    }

    /// The status of the engine, of the disk, and of the requests.
    pub fn status(&self) -> (engine::Status, Option<DiskCounters>, VolumeMetrics) {
        let inner = self.inner.borrow();
        let mut metrics = inner.metrics.clone();
        let disk = match &inner.backing {
            Backing::Disk(disk) => {
                metrics.stages.disk = disk.times();
                Some(disk.counters())
            }
            Backing::None | Backing::Memory(_) => None,
        };
        (inner.engine.status(self.clock.now()), disk, metrics)
    }

    /// Whether the store has everything and has confirmed the end of the epoch, and the host has no
    /// more statements to make about it.
    pub fn is_detached(&self) -> bool {
        self.detached.get() && !self.concluding.get()
    }

    /// Whether the store has confirmed the end of the epoch.
    pub fn has_ended(&self) -> bool {
        self.detached.get()
    }

    /// Whether the host still has to state something about it at the store after the end of its
    /// epoch.
    pub fn set_concluding(&self, concluding: bool) {
        self.concluding.set(concluding);
    }

    /// Whether it has a version table.
    pub fn has_versions(&self) -> bool {
        self.inner.borrow().versions.is_some()
    }

    /// Its keys as they are now, if it is encrypted.
    pub fn keys(&self) -> Option<Keys> {
        self.inner.borrow().engine.keys().cloned()
    }

    /// Whether another host has attached it: nothing of it reaches the store any more.
    pub fn is_fenced(&self) -> bool {
        self.inner.borrow().engine.status(self.clock.now()).fenced.is_some()
    }

    /// After shutdown: whether the journal is stable.
    pub fn is_idle(&self) -> bool {
        self.inner.borrow().engine.is_idle()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_core::block::Range;
    use longhaul_core::wire::link::HostId;

    #[test]
    fn answers_end_what_was_asked() {
        let (mut asked, mut stages) = (StoreRequests::default(), StageTimes::default());
        let volume = VolumeId(1);
        let read = |request| ToStore::Read { request, volume, epoch: 1, range: Range::new(0, 8) };
        let batch = |last| ToStore::Batch { volume, epoch: 1, first: last, last };
        asked.sent(Time(0), Lane::Read, &read(1));
        asked.sent(Time(0), Lane::Read, &read(2));
        asked.sent(Time(0), Lane::ReadAhead, &read(3));
        for last in [5, 6, 7] {
            asked.sent(Time(0), Lane::Drain, &batch(last));
        }
        for request in [2, 3, 4] {
            let answer = ToHost::Data { request, volume, result: Ok(Vec::new()) };
            asked.answered(Time(1_000_000), &answer, &mut stages);
        }
        let committed = ToHost::Committed { volume, epoch: 1, seq: 6 };
        asked.answered(Time(2_000_000), &committed, &mut stages);
        assert_eq!((stages.link.seconds(), stages.commit.seconds()), (0.001, 0.004));
        let resume = ToStore::Resume { request: 9, volume, epoch: 1, host: HostId(1) };
        asked.sent(Time(0), Lane::Control, &resume);
        assert!(asked.reads.is_empty() && asked.batches.is_empty(), "they are asked again");
    }
}
