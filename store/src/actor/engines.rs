//! The engines of the volumes and snapshots in use, and the state that the store keeps with each.
//! Also its memory of volumes whose engine is closed.
//!
//! An engine opens when somebody wants it and closes when nobody needs it: memory is for volumes in
//! use, not for all that exist. With nothing under way a closed engine loses nothing. The next open
//! reads its newest root and the few segments after it.

use super::super::catalog::attribute;
use super::completions::Completions;
use super::deadlines::Deadlines;
use super::directory::{Directory, SnapshotLocation};
use super::request::ReplyTo;
use longhaul_api::schedule::{self, Due, Schedule};
use longhaul_base::random;
use longhaul_core::block::{Time, VolumeId};
use longhaul_core::store::{
    Config, Event, ObjectOperation, ObjectResult, PutError, SessionId, SessionPeer, Volume,
    VolumeSpec,
};
use longhaul_core::wire::link::{Frame, Lane, LiveInfo, ToStore, VolumeError};
use longhaul_objects::{Objects, StorageError};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// Pause before an unusable volume opens anew. It doubles each time, up to sixteen times as much,
/// because an open takes a list and some reads.
const OPEN_AGAIN: Duration = Duration::from_secs(4);

/// The outcomes of the engines' tasks.
pub(super) enum EngineDone {
    /// An operation on an object.
    Object(ObjectDone),
    /// The snapshot schedule of a volume.
    Schedule(VolumeId, Schedule),
}

pub(super) struct ObjectDone {
    pub volume: VolumeId,
    /// Number of the engine that asked.
    pub engine: u64,
    pub id: u64,
    pub key: String,
    pub result: ObjectResult,
    pub bytes: u64,
    pub took: Duration,
}

/// The engine of a volume or snapshot.
pub(super) struct Engine {
    pub volume: Volume,
    /// Distinguishes engines, so that this one gets no answers to operations of an earlier one.
    number: u64,
    /// Sessions that have spoken to it.
    sessions: BTreeSet<u64>,
    /// It has no room: the link does not read the drain lanes of its sessions.
    paused: bool,
    /// Whether a message has come for it since the last look.
    used: bool,
    /// Deletions that wait until it is open, and then until it is idle.
    deletions: Vec<ReplyTo>,
    /// It finishes its work under way. After that comes its deletion, or another store serves it.
    leaving: bool,
    /// The last failure of an operation that has not succeeded since: the object, and the error.
    retrying: Option<(String, StorageError)>,
    /// Operations on objects without an outcome yet.
    under_way: usize,
    notices: DamageNotices,
    schedule: SnapshotSchedule,
    failures: OpenFailures,
}

/// The host that has heard of known damage.
#[derive(Default)]
struct DamageNotices {
    /// The holder at the last look.
    seen: Option<SessionId>,
    told: Option<(SessionId, Instant)>,
}

/// Snapshots by the clock.
#[derive(Default)]
struct SnapshotSchedule {
    schedule: Schedule,
    /// A snapshot operation is under way.
    running: bool,
}

/// Failures to open the volume.
#[derive(Default)]
struct OpenFailures {
    failed_at: Option<Instant>,
    /// How often in a row before.
    before: u32,
    /// The failed object has been restored since.
    repaired: bool,
}

/// How far the deletion of a volume is.
pub(super) enum DeletionStep {
    /// The volume is not open yet, operations are under way, or nobody deletes it.
    Wait,
    /// A host has the volume.
    Refuse(Vec<ReplyTo>, VolumeError),
    /// The engine finishes what is under way.
    ShutDown,
    /// Nothing is under way: a deletion can begin.
    Idle,
}

impl Engine {
    fn new(volume: Volume, number: u64, failures: u32) -> Engine {
        Engine {
            volume,
            number,
            sessions: BTreeSet::new(),
            paused: false,
            used: true,
            deletions: Vec::new(),
            leaving: false,
            retrying: None,
            under_way: 0,
            notices: DamageNotices::default(),
            schedule: SnapshotSchedule::default(),
            failures: OpenFailures { before: failures, ..OpenFailures::default() },
        }
    }

    pub fn number(&self) -> u64 {
        self.number
    }

    pub fn sessions(&self) -> &BTreeSet<u64> {
        &self.sessions
    }

    /// Whether it is a volume's, and not a snapshot's.
    pub fn is_whole(&self) -> bool {
        self.volume.id() == self.volume.spec().id
    }

    pub fn is_deleted(&self) -> bool {
        !self.deletions.is_empty()
    }

    /// The error of the operation that the engine repeats.
    pub fn retrying(&self) -> Option<&StorageError> {
        self.retrying.as_ref().map(|(_, error)| error)
    }

    /// A message has come for it.
    pub fn mark_used(&mut self) {
        self.used = true;
    }

    /// Takes a message. Says whether the session is new to it.
    pub fn handle_message(
        &mut self,
        now: Time,
        session: u64,
        lane: Lane,
        frame: Frame<ToStore>,
        peer: impl FnOnce() -> SessionPeer,
    ) -> bool {
        let new = self.sessions.insert(session);
        if new {
            self.volume.handle_session(SessionId(session), peer());
        }
        self.used = true;
        self.volume.handle_message(now, SessionId(session), lane, frame);
        new
    }

    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// Whether it has come to have room, or to have none, since the last call.
    pub fn room_changed(&mut self) -> bool {
        let paused = !self.volume.wants_input();
        paused != std::mem::replace(&mut self.paused, paused)
    }

    pub fn object_begun(&mut self) {
        self.under_way += 1;
    }

    /// An operation on an object is over. Engines put away had nothing under way.
    pub fn handle_object(&mut self, now: Time, id: u64, result: ObjectResult) {
        self.under_way = self.under_way.saturating_sub(1);
        if matches!(result, ObjectResult::Put(Ok(()))) {
            self.retrying = None;
        }
        self.volume.handle_object(now, id, result);
    }

    /// An operation on that object is over.
    pub fn settled(&mut self, key: &str) {
        self.retrying.take_if(|(about, _)| about == key);
    }

    /// Notes what an event says of opening and of operations that fail.
    pub fn note(&mut self, event: &Event) {
        match event {
            Event::Retry { key, error, .. } => {
                self.retrying = Some((key.clone(), error.clone()));
            }
            Event::Failed(_) => self.failures.failed_at = Some(Instant::now()),
            Event::Opened { .. } => self.failures.before = 0,
            _ => {}
        }
    }

    fn session_closed(&mut self, now: Time, session: u64) {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let since = since.map_or(0, |since| since.as_secs());
        self.volume.handle_silent(SessionId(session), since);
        self.volume.handle_session_closed(now, SessionId(session));
    }

    /// Whether the volume was unusable some time ago, and no reason for that is left: the missing
    /// objects exist, or may exist, again.
    fn may_be_opened_anew(&self) -> bool {
        let OpenFailures { failed_at, before, repaired } = self.failures;
        let pause = OPEN_AGAIN * (1 << before.min(4));
        failed_at.is_some_and(|at| repaired || at.elapsed() >= pause)
            && self.under_way == 0
            && self.deletions.is_empty()
            && !self.leaving
    }

    /// The restore of an object that it needs has ended. `repaired` tells whether it succeeded, and
    /// `last` whether the engine waits for no other.
    pub fn handle_repaired(&mut self, now: Time, key: &str, repaired: bool, last: bool) {
        self.failures.repaired |= repaired && last;
        self.volume.handle_repaired(now, key, repaired);
    }

    /// Whether no host uses it and nothing is under way.
    pub fn is_unused(&self) -> bool {
        let connected = self.volume.info().is_none_or(|live| live.connected);
        !connected && self.volume.is_idle() && self.deletions.is_empty() && !self.leaving
    }

    /// Whether it is a snapshot's that only map diffs have opened, with nothing under way.
    fn is_idle_snapshot(&self) -> bool {
        let at_rest = self.volume.is_idle() && self.volume.poll_timeout().is_none();
        at_rest && !self.is_whole() && self.under_way == 0 && self.sessions.is_empty()
    }

    /// Finishes what is under way, so that another store can have the volume. Says whether that
    /// begins now.
    pub fn leave(&mut self, now: Time) {
        if !std::mem::replace(&mut self.leaving, true) {
            self.volume.handle_shutdown(now);
        }
    }

    pub fn delete(&mut self, to: ReplyTo) {
        self.deletions.push(to);
    }

    pub fn take_deletions(&mut self) -> Vec<ReplyTo> {
        std::mem::take(&mut self.deletions)
    }

    /// Goes on with the deletion of the volume, if somebody deletes it.
    pub fn deletion_step(&mut self, now: Time) -> DeletionStep {
        if self.deletions.is_empty() {
            return DeletionStep::Wait;
        }
        if self.leaving {
            return if self.volume.is_idle() { DeletionStep::Idle } else { DeletionStep::Wait };
        }
        let failed = self.volume.failed().is_some();
        let refusal = match self.volume.info() {
            None if !failed => return DeletionStep::Wait,
            // A volume that does not open cannot be attached either.
            None => None,
            Some(_) if failed => None,
            Some(live) => match live.host {
                Some(host) if live.connected => Some(VolumeError::InUse(host)),
                Some(host) if !live.clean => Some(VolumeError::Invalid(format!(
                    "host {host} has the volume attached but is not connected: start it and let it \
                     stop in order, or see the missing writes with `longhaul volume lost {0}` and \
                     give them up with `longhaul volume accept-loss {0}`, then delete",
                    self.volume.spec().name
                ))),
                _ => None,
            },
        };
        if let Some(error) = refusal {
            return DeletionStep::Refuse(self.take_deletions(), error);
        }
        self.leaving = true;
        self.volume.handle_shutdown(now);
        DeletionStep::ShutDown
    }

    /// The host that has to hear of known damage now. Not at once, because a host takes a while
    /// after its attach until it listens. Not again before `again`.
    pub fn due_notice(&mut self, again: Duration) -> Option<SessionId> {
        let host = self.volume.session();
        let seen = std::mem::replace(&mut self.notices.seen, host) == host;
        let host = host.filter(|_| seen)?;
        if self.notices.told.is_some_and(|(to, at)| to == host && at.elapsed() < again) {
            return None;
        }
        self.notices.told = Some((host, Instant::now()));
        Some(host)
    }

    pub fn set_schedule(&mut self, schedule: Schedule) {
        self.schedule.schedule = schedule;
    }

    fn has_schedule(&self) -> bool {
        !self.schedule.schedule.is_empty()
    }

    /// The snapshot to take or delete now, by the schedule. Returns no other until
    /// [`Engine::schedule_done`].
    pub fn due_snapshot(&mut self) -> Option<Due> {
        if self.schedule.running || self.leaving || self.volume.info().is_none() {
            return None;
        }
        let state = self.volume.state();
        let last = state.snapshots.iter().next_back().map_or(0, |snapshot| snapshot.segment);
        let now = time::OffsetDateTime::now_utc();
        let changed = state.number > last;
        let there: Vec<_> = state.snapshots.iter().collect();
        self.schedule.schedule.due(now, changed, &there)
    }

    pub fn schedule_begun(&mut self) {
        self.schedule.running = true;
    }

    pub fn schedule_done(&mut self) {
        self.schedule.running = false;
    }
}

/// The use of the engines by the tenants' hosts.
#[derive(Default)]
pub(super) struct TenantUse {
    /// Whether a host has a volume attached.
    pub attached: bool,
    /// Segments in the logs of all its open volumes.
    pub segments: u64,
}

/// All engines.
pub(super) struct Engines {
    all: BTreeMap<VolumeId, Engine>,
    deadlines: Deadlines,
    /// The states of volumes at the time their engines closed.
    known: HashMap<VolumeId, LiveInfo>,
    /// Of every engine; all share the memory for their maps.
    pub config: Config,
    /// Engines opened so far.
    opened: u64,
    objects: Arc<dyn Objects>,
    done: Completions<EngineDone>,
}

impl Engines {
    pub fn new(
        objects: Arc<dyn Objects>,
        config: Config,
        done: Completions<EngineDone>,
    ) -> Engines {
        let (all, known) = (BTreeMap::new(), HashMap::new());
        let deadlines = Deadlines::default();
        Engines { all, deadlines, known, config, opened: 0, objects, done }
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn ids(&self) -> Vec<VolumeId> {
        self.all.keys().copied().collect()
    }

    pub fn iter(&self) -> impl Iterator<Item = (VolumeId, &Engine)> {
        self.all.iter().map(|(id, engine)| (*id, engine))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (VolumeId, &mut Engine)> {
        self.all.keys().for_each(|id| self.deadlines.touch(*id));
        self.all.iter_mut().map(|(id, engine)| (*id, engine))
    }

    pub fn get(&self, id: VolumeId) -> Option<&Engine> {
        self.all.get(&id)
    }

    pub fn get_mut(&mut self, id: VolumeId) -> Option<&mut Engine> {
        self.deadlines.touch(id);
        self.all.get_mut(&id)
    }

    pub fn has(&self, id: VolumeId) -> bool {
        self.all.contains_key(&id)
    }

    /// State of a volume, from its engine, or from the time when that closed.
    pub fn live(&self, id: VolumeId) -> Option<LiveInfo> {
        let engine = self.all.get(&id).and_then(|engine| engine.volume.info());
        engine.or_else(|| self.known.get(&id).cloned())
    }

    /// The state of a volume may change at another store.
    pub fn forget_live(&mut self, id: VolumeId) {
        self.known.remove(&id);
    }

    pub fn remove(&mut self, id: VolumeId) -> Option<Engine> {
        self.deadlines.touch(id);
        self.all.remove(&id)
    }

    /// When the first engine wants to hear.
    pub fn poll_timeout(&mut self) -> Option<Time> {
        self.refresh_deadlines();
        self.deadlines.first()
    }

    fn refresh_deadlines(&mut self) {
        let all = &self.all;
        self.deadlines.refresh(|id| all.get(&id).and_then(|engine| engine.volume.poll_timeout()));
    }

    pub fn is_idle(&self) -> bool {
        self.all.values().all(|engine| engine.volume.is_idle())
    }

    /// Whether a host has a volume attached here.
    pub fn has_hosts(&self) -> bool {
        self.all.values().any(|engine| engine.volume.session().is_some())
    }

    /// Sessions that have a volume attached, with how many.
    pub fn hosts(&self) -> BTreeMap<u64, usize> {
        let mut hosts = BTreeMap::new();
        for engine in self.all.values() {
            if let Some(session) = engine.volume.session() {
                *hosts.entry(session.0).or_default() += 1;
            }
        }
        hosts
    }

    /// Tenants with open volumes.
    pub fn tenants(&self, directory: &Directory) -> BTreeMap<String, TenantUse> {
        let mut tenants: BTreeMap<String, TenantUse> = BTreeMap::new();
        for (id, engine) in &self.all {
            let Some(tenant) = directory.tenant(*id) else { continue };
            let tenant = tenants.entry(tenant.to_owned()).or_default();
            tenant.attached |= engine.volume.session().is_some();
            tenant.segments += engine.volume.info().map_or(0, |live| live.segments);
        }
        tenants
    }

    /// Bytes that hosts of a tenant have announced and not sent.
    pub fn announced_bytes(&self, directory: &Directory, tenant: &str) -> u64 {
        let of = |id: &VolumeId| directory.tenant(*id) == Some(tenant);
        let engines = self.all.iter().filter(|(id, _)| of(id));
        engines
            .filter_map(|(_, engine)| engine.volume.info())
            .map(|live| live.announced_bytes)
            .sum()
    }

    /// Whether the link must not read the drain lane of a session, because a volume of it has no
    /// room.
    pub fn is_paused_for(&self, session: u64) -> bool {
        self.all.values().any(|engine| engine.paused && engine.sessions.contains(&session))
    }

    /// A session is over. Returns the engines that have something to say.
    pub fn session_closed(&mut self, now: Time, session: u64) -> Vec<VolumeId> {
        let mut told = Vec::new();
        for (id, engine) in &mut self.all {
            if engine.sessions.remove(&session) {
                self.deadlines.touch(*id);
                engine.session_closed(now, session);
                told.push(*id);
            }
        }
        told
    }

    /// The engines whose time has come.
    pub fn due(&mut self, now: Time) -> Vec<VolumeId> {
        self.refresh_deadlines();
        self.deadlines.due(now)
    }

    /// The engines with a schedule for snapshots.
    pub fn scheduled(&self) -> Vec<VolumeId> {
        let scheduled = self.all.iter().filter(|(_, engine)| engine.has_schedule());
        scheduled.map(|(id, _)| *id).collect()
    }

    /// Closes the engines that nobody needs. If one cannot go on or waits for a host's writes, it
    /// stays, so that operators see its state.
    pub fn close_unused(&mut self) {
        let (known, objects, deadlines) = (&mut self.known, &self.objects, &mut self.deadlines);
        self.all.retain(|id, engine| {
            deadlines.touch(*id);
            let used = std::mem::take(&mut engine.used);
            let volume = &engine.volume;
            if !engine.is_whole() && volume.failed().is_some() {
                return !engine.sessions.is_empty();
            }
            let at_rest = volume.is_idle() && volume.poll_timeout().is_none();
            let Some(live) = volume.info() else { return true };
            let needed = live.connected || live.announced_bytes > 0 || !engine.deletions.is_empty();
            if used || needed || !at_rest {
                return true;
            }
            tracing::debug!("volume {}: not in use, closed", volume.spec().name);
            known.insert(*id, live);
            objects.left(*id);
            false
        });
    }

    /// Closes snapshots that only map diffs have opened, beyond `keep` and except needed ones.
    pub fn close_idle_snapshots(&mut self, needed: &BTreeSet<VolumeId>, keep: usize) {
        let idle = self
            .all
            .iter()
            .filter(|(id, engine)| engine.is_idle_snapshot() && !needed.contains(*id));
        let idle: Vec<VolumeId> = idle.map(|(id, _)| *id).collect();
        for id in idle.into_iter().skip(keep) {
            self.remove(id);
            self.objects.left(id);
        }
    }

    /// Whether an engine may open: with the number of failures before, or why not.
    pub fn opening(&self, id: VolumeId) -> Opening {
        match self.all.get(&id) {
            None => Opening::Open(0),
            Some(engine) if engine.may_be_opened_anew() => {
                Opening::Open(engine.failures.before.saturating_add(1))
            }
            Some(engine) if engine.leaving => Opening::Leaving,
            Some(_) => Opening::IsOpen,
        }
    }

    /// Opens the engine of a volume, or of that snapshot of it, after `failures` failures in a row.
    pub fn open(
        &mut self,
        now: Time,
        id: VolumeId,
        spec: VolumeSpec,
        snapshot: Option<SnapshotLocation>,
        failures: u32,
    ) -> Option<&mut Engine> {
        let incarnation = match random::identity() {
            Ok(incarnation) => incarnation,
            Err(error) => {
                tracing::error!("cannot open volume {}: {error:#}", spec.name);
                return None;
            }
        };
        self.opened += 1;
        let config = self.config.clone();
        let volume = match snapshot {
            None => Volume::open(now, spec, incarnation, config),
            Some(SnapshotLocation { segment, .. }) => {
                Volume::open_snapshot(now, spec, (segment, id), incarnation, config)
            }
        };
        let engine = Engine::new(volume, self.opened, failures);
        self.deadlines.touch(id);
        Some(self.all.entry(id).insert_entry(engine).into_mut())
    }

    /// Carries out an operation of an engine in a task of its own.
    pub fn start(&self, (volume, engine, id): (VolumeId, u64, u64), operation: ObjectOperation) {
        let bytes = match &operation {
            ObjectOperation::Put { data, .. } => data.iter().map(|part| part.len() as u64).sum(),
            _ => 0,
        };
        let objects = self.objects.clone();
        let key = operation.key().to_owned();
        self.done.spawn(async move {
            let begun = Instant::now();
            let result = longhaul_objects::execute(&*objects, operation).await;
            let took = begun.elapsed();
            EngineDone::Object(ObjectDone { volume, engine, id, key, result, bytes, took })
        });
    }

    /// Reads the schedule of a volume, in a task of its own.
    pub fn read_schedule(&self, volume: VolumeId) {
        let (objects, done) = (self.objects.clone(), self.done.clone());
        tokio::spawn(async move {
            let read = attribute(&*objects, volume, schedule::ATTRIBUTE).await;
            let text = read.map(|data| String::from_utf8_lossy(&data).into_owned());
            match text.map(|text| text.parse()) {
                Ok(Ok(schedule)) => done.send(EngineDone::Schedule(volume, schedule)),
                Ok(Err(why)) => tracing::warn!("volume {volume}: its schedule is not kept: {why}"),
                Err(error) => tracing::warn!("volume {volume}: its schedule is not known: {error}"),
            }
        });
    }
}

/// Whether an engine may open.
pub(super) enum Opening {
    Open(u32),
    IsOpen,
    Leaving,
}

/// Whether an operation ends with this result: it has an answer, or the engine does not repeat it.
/// The engine repeats no deletion: the next one also deletes the leftovers.
pub(super) fn settles(result: &ObjectResult) -> bool {
    !matches!(
        result,
        ObjectResult::Put(Err(PutError::Failed(_)))
            | ObjectResult::Get(Err(longhaul_objects::GetError::Failed(_)))
            | ObjectResult::List(Err(_))
    )
}
