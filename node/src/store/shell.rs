//! Drives the engines: frames and outcomes in, frames and operations out.

mod claims;
mod jobs;
mod stores;

pub use stores::{Fleet, addresses};

use super::absent::no_such_volume;
use super::catalog::{Entry, NotCreated};
use super::events::log;
use super::lease;
use super::view::{Counts, FleetState, MapMemory, Question, SessionState, Snapshot, VolumeState};
use crate::link::{Listener, ListenerEvent};
use crate::objects::{self, Objects};
use crate::random;
use bytes::Bytes;
use claims::Claims;
use longhaul_core::block::{Epoch, Time, VolumeId};
use longhaul_core::store::map::pages::SharedPages;
use longhaul_core::store::{
    Config, Event, ObjectOperation, ObjectResult, PutError, SessionId, Volume, VolumeSpec,
};
use longhaul_core::wire::link::{
    Frame, Lane, LiveInfo, ReadError, RequestId, StageError, StoreReport, StoreState, ToHost,
    ToStore, VolumeError, VolumeInfo, VolumeOperation, VolumeReply,
};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::time::Interval;

/// Frames taken before engines' timers and other inputs are looked at again.
const FRAMES_AT_ONCE: usize = 64;
/// How often engines are looked for that nobody needs: one goes after one to two of these. A guess:
/// longer than the pause between an operator's commands.
const LOOK_INTERVAL: Duration = Duration::from_secs(30);

/// How long hosts get to go to other stores before this one stops.
const AWAY_LIMIT: Duration = Duration::from_secs(5);

/// A volume that cannot be used is opened anew when somebody wants it, so much later; each time twice as much, up to
/// sixteen times: it takes a list and some reads.
const OPEN_AGAIN: Duration = Duration::from_secs(4);

/// The store's one owner.
pub struct Shell {
    listener: Listener,
    objects: Arc<dyn Objects>,
    /// Pages of all volumes' maps.
    pages: SharedPages,
    /// All volumes by name.
    catalog: BTreeMap<String, Entry>,
    names: HashMap<VolumeId, String>,
    /// Those in use.
    engines: BTreeMap<VolumeId, Engine>,
    /// What was known of a volume when its engine was put away.
    known: HashMap<VolumeId, LiveInfo>,
    /// When to look for engines to put away.
    pub(super) look: Interval,
    outcomes: (mpsc::UnboundedSender<Outcome>, mpsc::UnboundedReceiver<Outcome>),
    questions: mpsc::Receiver<Question>,
    /// Creations and deletions, one after the other.
    jobs: VecDeque<Job>,
    working: bool,
    /// Deleted volumes whose data is being removed.
    removing: usize,
    counts: Counts,
    /// Time that the present piece of work has spent reading objects.
    elsewhere: Duration,
    origin: Instant,
    /// Engines opened so far.
    engines_opened: u64,
    /// The other stores, if there may be any.
    fleet: Option<Fleet>,
    claims: Claims,
    /// Sessions of other stores.
    stores: HashSet<u64>,
    /// The location is being looked at for what other stores did; and once more after that.
    looking: bool,
    look_again: bool,
    /// Frames about volumes that are not known, and requests for a list, until it has been.
    strangers: Vec<(u64, Lane, Frame<ToStore>)>,
    lists: Vec<Asked>,
    /// When to remind hosts that are to leave.
    remind: Interval,
}

struct Engine {
    volume: Volume,
    /// What an engine before it asked of the objects is not answered to this one.
    number: u64,
    /// Sessions that have spoken to it.
    sessions: BTreeSet<u64>,
    paused: bool,
    /// Whether a frame has come for it since the last look.
    used: bool,
    /// Deletions that wait until it is open, and then until it is idle.
    deletions: Vec<Asked>,
    leaving: bool,
    /// The last failure of an operation that has not succeeded since, and what it was about.
    retrying: Option<(String, String)>,
    /// Operations on objects without an outcome yet.
    under_way: usize,
    /// When it was seen that the volume cannot be used, and how often in a row before.
    failed_at: Option<Instant>,
    failures: u32,
}

impl Engine {
    /// Whether the volume could not be used some time ago, and nothing is left of that: what was missing may be
    /// there again.
    fn may_be_opened_anew(&self) -> bool {
        let pause = OPEN_AGAIN * (1 << self.failures.min(4));
        self.failed_at.is_some_and(|at| at.elapsed() >= pause)
            && self.under_way == 0
            && self.deletions.is_empty()
            && !self.leaving
    }
}

/// Who asked for a volume operation.
#[derive(Clone, Copy)]
struct Asked {
    session: u64,
    lane: Lane,
    request: RequestId,
}

struct Job {
    asked: Vec<Asked>,
    work: Work,
}

enum Work {
    Create {
        name: String,
        sectors: u64,
        block_bytes: u32,
    },
    /// With the lease by which it is this store's.
    Delete(VolumeSpec, Option<u64>),
    GetAttribute {
        volume: VolumeId,
        attribute: String,
    },
    SetAttribute {
        volume: VolumeId,
        epoch: Epoch,
        attribute: String,
        data: Bytes,
    },
}

enum Outcome {
    Object {
        volume: VolumeId,
        engine: u64,
        id: u64,
        key: String,
        result: ObjectResult,
        bytes: u64,
        took: Duration,
    },
    Created(Vec<Asked>, Result<VolumeSpec, NotCreated>),
    Deleted(Vec<Asked>, VolumeSpec, Result<(), VolumeError>),
    /// An attribute was read or replaced.
    Attribute(Vec<Asked>, Result<VolumeReply, VolumeError>),
    /// The data of a deleted volume is removed, as far as that works.
    Removed,
    /// It is known whose a volume is.
    Claimed(VolumeId, lease::Outcome),
    /// Another store has done what was asked here.
    Forwarded(u64, Lane, Frame<ToHost>),
    /// It could not: it is to be looked up again who has the volume.
    Again(VolumeId, u64, Lane, Frame<ToStore>),
    /// The location was looked at.
    Found(Result<stores::Found, String>),
    /// What other stores say of themselves, for a list, and to share what there is to do.
    Stores(Asked, Vec<StoreState>),
    Loads(Option<Asked>, Vec<StoreReport>),
    /// What other stores know of volumes.
    Lives(Vec<Asked>, Vec<StoreReport>),
}

impl Shell {
    /// Owns what is given.
    pub fn new(
        listener: Listener,
        objects: Arc<dyn Objects>,
        catalog: BTreeMap<String, Entry>,
        questions: mpsc::Receiver<Question>,
        pages: SharedPages,
        fleet: Option<Fleet>,
    ) -> Shell {
        let specs = catalog.values().map(|entry| &entry.spec);
        let names = specs.map(|spec| (spec.id, spec.name.clone())).collect();
        Shell {
            listener,
            objects,
            pages,
            catalog,
            names,
            engines: BTreeMap::new(),
            known: HashMap::new(),
            look: tokio::time::interval(LOOK_INTERVAL),
            outcomes: mpsc::unbounded_channel(),
            questions,
            jobs: VecDeque::new(),
            working: false,
            removing: 0,
            counts: Counts::default(),
            elsewhere: Duration::ZERO,
            origin: Instant::now(),
            engines_opened: 0,
            fleet,
            claims: Claims::default(),
            stores: HashSet::new(),
            looking: false,
            look_again: false,
            strangers: Vec::new(),
            lists: Vec::new(),
            remind: tokio::time::interval(stores::REMIND),
        }
    }

    /// Serves for ever; may be dropped between any two events.
    pub async fn serve(&mut self) {
        loop {
            self.step().await;
        }
    }

    /// Lets the engines finish what is under way.
    pub async fn finish(&mut self) {
        if self.send_away() {
            let away = async {
                while self.has_hosts() {
                    self.step().await;
                }
            };
            // Those that find no other store wait for this one.
            let _ = tokio::time::timeout(AWAY_LIMIT, away).await;
        }
        let now = self.now();
        for id in self.engines.keys().copied().collect::<Vec<_>>() {
            if let Some(engine) = self.engines.get_mut(&id) {
                engine.volume.handle_shutdown(now);
            }
            self.drive(id);
        }
        while self.working
            || self.removing > 0
            || self.engines.values().any(|engine| !engine.volume.is_idle())
        {
            self.step().await;
        }
        self.objects.finish().await;
    }

    /// Ends all sessions.
    pub async fn close(self) {
        self.listener.shutdown().await;
    }

    async fn step(&mut self) {
        let deadline =
            self.engines.values().filter_map(|engine| engine.volume.poll_timeout()).min();
        let wait = deadline.map(|at| at.since(self.now()));
        let timeout = async {
            match wait {
                // Timers of the runtime have a millisecond's grain: zero must not wait for one.
                Some(Duration::ZERO) => tokio::task::yield_now().await,
                Some(wait) => tokio::time::sleep(wait).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(outcome) = self.outcomes.1.recv() => {
                self.outcome(outcome);
                while let Ok(outcome) = self.outcomes.1.try_recv() {
                    self.outcome(outcome);
                }
            }
            Some(event) = self.listener.event() => {
                self.event(event);
                for _ in 1..FRAMES_AT_ONCE {
                    let Some(event) = self.listener.try_event() else { break };
                    self.event(event);
                }
            }
            Some(question) = self.questions.recv() => {
                let _ = question.send(self.snapshot());
            }
            () = timeout => self.timeouts(),
            _ = self.look.tick() => {
                self.put_away();
                self.tick();
            }
            _ = self.remind.tick(), if self.fleet.is_some() => self.remind(),
        }
    }

    /// Drops the engines that nobody needs: memory is for volumes in use, not for all that ever were.
    /// With nothing under way nothing is lost; opening one again reads its newest root and the few
    /// segments after it. One that cannot go on or is owed writes stays, for its state to be seen.
    fn put_away(&mut self) {
        let known = &mut self.known;
        self.engines.retain(|id, engine| {
            let used = std::mem::take(&mut engine.used);
            let volume = &engine.volume;
            let at_rest = volume.is_idle() && volume.poll_timeout().is_none();
            let Some(live) = volume.info() else { return true };
            let needed = live.connected || live.announced_bytes > 0 || !engine.deletions.is_empty();
            if used || needed || !at_rest {
                return true;
            }
            tracing::debug!("volume {}: not in use, closed", volume.spec().name);
            known.insert(*id, live);
            false
        });
        // Where nothing happens nobody looks how much memory there is.
        if self.pages.lock().is_crowded() {
            let now = self.now();
            for id in self.engines.keys().copied().collect::<Vec<_>>() {
                if let Some(engine) = self.engines.get_mut(&id) {
                    engine.volume.handle_timeout(now);
                }
                self.drive(id);
            }
        }
    }

    fn now(&self) -> Time {
        Time(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn timeouts(&mut self) {
        let now = self.now();
        let due = |engine: &Engine| engine.volume.poll_timeout().is_some_and(|at| at <= now);
        let due: Vec<_> = self.engines.iter().filter(|(_, e)| due(e)).map(|(id, _)| *id).collect();
        for id in due {
            if let Some(engine) = self.engines.get_mut(&id) {
                engine.volume.handle_timeout(now);
            }
            self.drive(id);
        }
    }

    fn event(&mut self, event: ListenerEvent) {
        match event {
            ListenerEvent::Opened { session, peer, serial, software } => {
                tracing::info!("session {session}: {peer} ({software}, credential {serial})");
                self.session_opened(session, &serial);
            }
            ListenerEvent::Closed { session, reason } => {
                tracing::info!("session {session} closed: {reason}");
                self.stores.remove(&session);
                self.claims.forget(session);
                self.strangers.retain(|(other, ..)| *other != session);
                let now = self.now();
                for id in self.engines.keys().copied().collect::<Vec<_>>() {
                    let Some(engine) = self.engines.get_mut(&id) else { continue };
                    if engine.sessions.remove(&session) {
                        engine.volume.handle_session_closed(now, SessionId(session));
                        self.drive(id);
                    }
                }
            }
            ListenerEvent::Frame { session, lane, frame } => {
                self.counts.frames += 1;
                self.counts.received_bytes += frame.payload.len() as u64;
                let begun = Instant::now();
                self.elsewhere = Duration::ZERO;
                self.frame(session, lane, frame);
                let took = begun.elapsed().saturating_sub(self.elsewhere);
                self.counts.work.record(took);
            }
        }
    }

    fn frame(&mut self, session: u64, lane: Lane, frame: Frame<ToStore>) {
        if self.fleet.is_some() && self.is_strange(&frame.message) {
            // Another store may have created it a moment ago.
            self.strangers.push((session, lane, frame));
            return self.look_around();
        }
        self.known_frame(session, lane, frame);
    }

    /// Whether a message names a volume that is not known.
    fn is_strange(&self, message: &ToStore) -> bool {
        match message {
            // What may be a copy of an old flight has nothing looked up.
            ToStore::Hello { .. } | ToStore::Store { .. } | ToStore::ReadBehind { .. } => false,
            ToStore::Attach { name, .. } => !self.catalog.contains_key(name),
            ToStore::Resume { volume, .. }
            | ToStore::Detach { volume, .. }
            | ToStore::Batch { volume, .. }
            | ToStore::Announce { volume, .. }
            | ToStore::Read { volume, .. }
            | ToStore::Status { volume, .. }
            | ToStore::Changed { volume, .. } => !self.names.contains_key(volume),
            ToStore::Stage { volume, into, .. } => {
                !self.names.contains_key(volume) || !self.names.contains_key(into)
            }
            ToStore::Volume { operation, .. } => match operation {
                VolumeOperation::Create { .. } | VolumeOperation::List => false,
                VolumeOperation::Show { name }
                | VolumeOperation::Lost { name, .. }
                | VolumeOperation::AcceptLoss { name }
                | VolumeOperation::Resize { name, .. }
                | VolumeOperation::Delete { name } => !self.catalog.contains_key(name),
                VolumeOperation::GetAttribute { volume, .. }
                | VolumeOperation::SetAttribute { volume, .. } => !self.names.contains_key(volume),
            },
        }
    }

    /// A frame, after the location has been looked at if it names a volume that was not known.
    fn known_frame(&mut self, session: u64, lane: Lane, frame: Frame<ToStore>) {
        let volume = match &frame.message {
            ToStore::Hello { .. } => {
                let code = crate::link::CloseCode::Protocol;
                return self.listener.close_session(session, code, "a second Hello");
            }
            ToStore::Store { request, operation } => {
                let asked = Asked { session, lane, request: *request };
                return self.store_operation(asked, operation.clone());
            }
            ToStore::Attach { name, .. } => self.catalog.get(name).map(|entry| entry.spec.id),
            ToStore::Resume { volume, .. }
            | ToStore::Detach { volume, .. }
            | ToStore::Batch { volume, .. }
            | ToStore::Announce { volume, .. }
            | ToStore::Read { volume, .. }
            | ToStore::Status { volume, .. }
            | ToStore::Changed { volume, .. } => self.names.contains_key(volume).then_some(*volume),
            ToStore::ReadBehind { request, volume, .. } => {
                // What may be a copy of an old flight opens nothing: the host asks again.
                if !self.engines.contains_key(volume) && !self.listener.is_proven(session) {
                    let (request, volume) = (*request, *volume);
                    let result = Err(ReadError::NotAttached);
                    let reply = ToHost::Data { request, volume, result };
                    return self.listener.send(session, lane, reply.into());
                }
                self.names.contains_key(volume).then_some(*volume)
            }
            ToStore::Stage { request, volume, into, .. } => {
                // Every credential is good for all volumes; one that is not there would get an object
                // that nothing ever deletes.
                if !self.names.contains_key(into) {
                    let (request, volume) = (*request, *volume);
                    let result = Err(StageError::Unsupported);
                    let reply = ToHost::Staged { request, volume, result };
                    return self.listener.send(session, lane, reply.into());
                }
                self.names.contains_key(volume).then_some(*volume)
            }
            ToStore::Volume { request, operation } => {
                let asked = Asked { session, lane, request: *request };
                match self.volume_operation(asked, operation) {
                    Some(volume) => Some(volume),
                    None => return,
                }
            }
        };
        match volume {
            Some(id) => self.admit(id, session, lane, frame),
            None => self.refuse(session, lane, frame.message),
        }
    }

    /// There is no such volume.
    fn refuse(&self, session: u64, lane: Lane, message: ToStore) {
        if let Some(reply) = no_such_volume(message) {
            self.listener.send(session, lane, reply.into());
        }
    }

    /// A frame for the engine of a volume, which is this store's.
    fn hand_to_engine(&mut self, id: VolumeId, session: u64, lane: Lane, frame: Frame<ToStore>) {
        if let ToStore::Volume { request, operation } = &frame.message {
            self.reopen_if_unused(id);
            if let VolumeOperation::Delete { .. } = operation {
                return self.begin_delete(id, Asked { session, lane, request: *request });
            }
        }
        if !self.open(id) {
            return self.refuse(session, lane, frame.message);
        }
        let now = self.now();
        if let Some(engine) = self.engines.get_mut(&id) {
            if engine.sessions.insert(session) && engine.paused {
                self.listener.pause_drain(session, true);
            }
            engine.used = true;
            engine.volume.handle_message(now, SessionId(session), lane, frame);
        }
        self.drive(id);
    }

    fn info(&self, entry: &Entry) -> VolumeInfo {
        entry.spec.info(entry.sectors, self.live(entry.spec.id))
    }

    /// What is known of a volume: of its engine, or as it was when that was put away.
    fn live(&self, id: VolumeId) -> Option<LiveInfo> {
        let engine = self.engines.get(&id);
        engine.and_then(|engine| engine.volume.info()).or_else(|| self.known.get(&id).cloned())
    }

    /// Makes sure that a volume has an engine; false if it is being deleted or there is none.
    fn open(&mut self, id: VolumeId) -> bool {
        let mut failures = 0;
        if let Some(engine) = self.engines.get(&id) {
            if !engine.may_be_opened_anew() {
                return !engine.leaving;
            }
            failures = engine.failures.saturating_add(1);
        }
        let spec = self.names.get(&id).and_then(|name| self.catalog.get(name));
        let Some(Entry { spec, .. }) = spec.cloned() else { return false };
        let incarnation = match random::identity() {
            Ok(incarnation) => incarnation,
            Err(error) => {
                tracing::error!("cannot open volume {}: {error:#}", spec.name);
                return false;
            }
        };
        self.engines_opened += 1;
        let config = Config { pages: self.pages.clone(), ..Config::default() };
        let engine = Engine {
            volume: Volume::open(self.now(), spec, incarnation, config),
            number: self.engines_opened,
            sessions: BTreeSet::new(),
            paused: false,
            used: true,
            deletions: Vec::new(),
            leaving: false,
            retrying: None,
            under_way: 0,
            failed_at: None,
            failures,
        };
        self.engines.insert(id, engine);
        true
    }

    /// Takes everything an engine has to give.
    fn drive(&mut self, id: VolumeId) {
        loop {
            let now = self.now();
            let Some(engine) = self.engines.get_mut(&id) else { return };
            let mut again = false;
            while let Some((number, operation)) = engine.volume.poll_object() {
                let begun = Instant::now();
                if let ObjectOperation::Get { key, range: Some(range), copies } = &operation
                    && let Some(result) = self.objects.try_read(key, range, *copies)
                {
                    let took = begun.elapsed();
                    self.elsewhere += took;
                    self.counts.get.record(took);
                    self.counts.gets += 1;
                    self.counts.get_bytes += result.as_ref().map_or(0, |data| data.len() as u64);
                    engine.volume.handle_object(now, number, ObjectResult::Get(result));
                    again = true;
                } else {
                    engine.under_way += 1;
                    let of = (id, engine.number, number);
                    start(&self.objects, &self.outcomes.0, of, operation);
                }
            }
            while let Some((session, lane, frame)) = engine.volume.poll_message() {
                self.counts.sent_bytes += frame.payload.len() as u64;
                self.listener.send(session.0, lane, frame);
            }
            while let Some(event) = engine.volume.poll_event() {
                if let Event::Retry { key, error, .. } = &event {
                    engine.retrying = Some((key.clone(), error.clone()));
                }
                match &event {
                    Event::Failed(_) => engine.failed_at = Some(Instant::now()),
                    Event::Opened { .. } => engine.failures = 0,
                    _ => {}
                }
                self.counts.map.add(&event);
                if let Event::Opened { .. } | Event::Resized { .. } = &event
                    && let Some(sectors) = engine.volume.sectors()
                    && let Some(entry) = self.catalog.get_mut(&engine.volume.spec().name)
                {
                    entry.sectors = sectors;
                }
                log(&engine.volume.spec().name, &event);
            }
            if !again {
                break;
            }
        }
        self.pause(id);
        self.delete(id);
        self.let_go(id);
    }

    /// Stops reading what a volume's sessions drain while the volume has no room.
    fn pause(&mut self, id: VolumeId) {
        let Some(engine) = self.engines.get_mut(&id) else { return };
        let paused = !engine.volume.wants_input();
        if paused == std::mem::replace(&mut engine.paused, paused) {
            return;
        }
        let sessions = engine.sessions.clone();
        self.pause_drains(&sessions);
    }

    /// Reads what sessions drain or not, as their volumes have room.
    fn pause_drains(&self, sessions: &BTreeSet<u64>) {
        for session in sessions {
            let mut engines = self.engines.values();
            let any = engines.any(|engine| engine.paused && engine.sessions.contains(session));
            self.listener.pause_drain(*session, any);
        }
    }

    fn outcome(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Object { volume, engine: number, id, key, result, bytes, took } => {
                self.counts.add(&result, bytes, took);
                if self.engines.get(&volume).is_none_or(|engine| engine.number != number) {
                    return;
                }
                let begun = Instant::now();
                self.elsewhere = Duration::ZERO;
                let now = self.now();
                let settled = settles(&result);
                if let Some(engine) = self.engines.get_mut(&volume) {
                    // One that was put away had nothing under way.
                    engine.under_way = engine.under_way.saturating_sub(1);
                    if matches!(result, ObjectResult::Put(Ok(()))) {
                        engine.retrying = None;
                    }
                    engine.volume.handle_object(now, id, result);
                }
                self.drive(volume);
                if settled && let Some(engine) = self.engines.get_mut(&volume) {
                    engine.retrying.take_if(|(about, _)| *about == key);
                }
                let took = begun.elapsed().saturating_sub(self.elsewhere);
                self.counts.work.record(took);
            }
            Outcome::Created(asked, result) => {
                self.working = false;
                let reply = match result {
                    Ok(spec) => {
                        tracing::info!("created volume {} ({})", spec.name, spec.id);
                        let sectors = spec.created_sectors;
                        let info = spec.info(sectors, None);
                        self.learn(Entry { spec, sectors });
                        self.tell_stores();
                        Ok(VolumeReply::Volume(info))
                    }
                    Err(NotCreated { error, taken }) => {
                        if let Some(entry) =
                            taken.filter(|e| !self.catalog.contains_key(&e.spec.name))
                        {
                            tracing::warn!(
                                "volume {} ({}) was not known here: it was created at another store, or without an answer",
                                entry.spec.name,
                                entry.spec.id
                            );
                            self.learn(entry);
                        }
                        Err(error)
                    }
                };
                self.reply(&asked, &reply);
                self.next_job();
            }
            Outcome::Deleted(asked, spec, result) => {
                self.working = false;
                if result.is_ok() {
                    tracing::info!("deleted volume {} ({})", spec.name, spec.id);
                    self.catalog.remove(&spec.name);
                    self.removing += 1;
                    self.known.remove(&spec.id);
                    self.forget_claims(spec.id);
                    self.tell_stores();
                } else {
                    self.names.insert(spec.id, spec.name);
                }
                self.reply(&asked, &result.map(|()| VolumeReply::Done));
                self.next_job();
            }
            Outcome::Attribute(asked, result) => {
                self.working = false;
                self.reply(&asked, &result);
                self.next_job();
            }
            Outcome::Removed => self.removing -= 1,
            Outcome::Claimed(id, outcome) => self.claimed(id, outcome),
            Outcome::Forwarded(session, lane, frame) => self.listener.send(session, lane, frame),
            Outcome::Again(id, session, lane, frame) => self.again(id, session, lane, frame),
            Outcome::Found(found) => self.found(found),
            Outcome::Stores(asked, stores) => self.listed(asked, stores),
            Outcome::Loads(asked, reports) => self.loads(asked, reports),
            Outcome::Lives(asked, reports) => self.list_with(&asked, &reports),
        }
    }

    fn learn(&mut self, entry: Entry) {
        self.names.insert(entry.spec.id, entry.spec.name.clone());
        self.catalog.insert(entry.spec.name.clone(), entry);
    }

    fn reply(&self, asked: &[Asked], result: &Result<VolumeReply, VolumeError>) {
        for asked in asked {
            let reply = ToHost::Volume { request: asked.request, result: result.clone() };
            self.listener.send(asked.session, asked.lane, reply.into());
        }
    }

    fn snapshot(&self) -> Snapshot {
        let volumes = self.catalog.values().map(|entry| {
            let engine = self.engines.get(&entry.spec.id);
            VolumeState {
                info: self.info(entry),
                failed: engine.and_then(|e| e.volume.failed()).map(ToString::to_string),
                retrying: engine.and_then(|engine| Some(engine.retrying.as_ref()?.1.clone())),
            }
        });
        let sessions = self.listener.statistics().into_iter();
        let sessions = sessions.map(|(peer, link)| SessionState { peer, link });
        Snapshot {
            volumes: volumes.collect(),
            open: self.engines.len(),
            fleet: self.fleet.as_ref().map(|fleet| FleetState {
                leases: self.claims.count(),
                stores: fleet.peers.list().len() + 1,
                draining: fleet.is_draining(),
            }),
            sessions: sessions.collect(),
            counts: self.counts.clone(),
            map: MapMemory::of(&self.pages.lock()),
            datagrams: self.listener.datagrams(),
            early: self.listener.early(),
            cache: self.objects.cache(),
            usage: self.objects.usage(),
        }
    }
}

/// Carries out an operation in a task of its own.
fn start(
    objects: &Arc<dyn Objects>,
    outcomes: &mpsc::UnboundedSender<Outcome>,
    (volume, engine, id): (VolumeId, u64, u64),
    operation: ObjectOperation,
) {
    let bytes = match &operation {
        ObjectOperation::Put { data, .. } => data.iter().map(|part| part.len() as u64).sum(),
        _ => 0,
    };
    let (objects, outcomes) = (objects.clone(), outcomes.clone());
    let key = operation.key().to_owned();
    tokio::spawn(async move {
        let begun = Instant::now();
        let result = objects::execute(&*objects, operation).await;
        let took = begun.elapsed();
        let _ = outcomes.send(Outcome::Object { volume, engine, id, key, result, bytes, took });
    });
}

/// Whether an operation is over with this: it had an answer, or is not tried again. Deletions are not;
/// what stays is deleted with the next.
fn settles(result: &ObjectResult) -> bool {
    !matches!(
        result,
        ObjectResult::Put(Err(PutError::Failed(_)))
            | ObjectResult::Get(Err(objects::GetError::Failed(_)))
            | ObjectResult::List(Err(_))
    )
}
