//! The engines of the volumes and snapshots in use, and the state that the store keeps with each.
//! Also its memory of volumes whose engine is closed.
//!
//! An engine opens when somebody wants it and closes when nobody needs it: memory is for volumes in
//! use, not for all that exist. With nothing under way a closed engine loses nothing. The next open
//! reads its newest root and the few segments after it.

use super::super::catalog::attribute;
use super::completions::Completions;
use super::directory::{Directory, SnapshotLocation};
use super::engine_task::{Driven, EngineTask, Failures, Services};
use super::request::ReplyTo;
use super::routes::Routes;
use longhaul_api::schedule::{self, Due, Schedule};
use longhaul_base::random;
use longhaul_core::block::{Time, VolumeId};
use longhaul_core::store::{Config, SessionId, SessionPeer, Volume, VolumeSpec};
use longhaul_core::wire::link::{LiveInfo, VolumeError};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant, SystemTime};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

/// Pause before an unusable volume opens anew. It doubles each time, up to sixteen times as much,
/// because an open takes a list and some reads.
const OPEN_AGAIN: Duration = Duration::from_secs(4);

/// The snapshot schedule of a volume is known.
pub(super) struct ScheduleRead(pub VolumeId, pub Schedule);

/// The engine of a volume or snapshot.
pub(super) struct Engine {
    pub task: Arc<EngineTask>,
    spec: VolumeSpec,
    /// Sessions that have spoken to it.
    sessions: BTreeSet<u64>,
    /// It has no room: the link does not read the drain lanes of its sessions.
    paused: bool,
    /// Deletions that wait until it is open, and then until it is idle.
    deletions: Vec<ReplyTo>,
    /// It finishes its work under way. After that comes its deletion, or another store serves it.
    leaving: bool,
    /// It finishes its work under way, and so does the store.
    stopping: bool,
    /// It could not open the volume, or cannot go on.
    failed: bool,
    notices: DamageNotices,
    schedule: SnapshotSchedule,
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
    fn new(task: Arc<EngineTask>, spec: VolumeSpec) -> Engine {
        Engine {
            task,
            spec,
            sessions: BTreeSet::new(),
            paused: false,
            deletions: Vec::new(),
            leaving: false,
            stopping: false,
            failed: false,
            notices: DamageNotices::default(),
            schedule: SnapshotSchedule::default(),
        }
    }

    /// The engine itself, after all its inputs so far. Ask for it once at a time.
    pub fn lock(&self) -> MutexGuard<'_, Driven> {
        self.task.lock()
    }

    /// The facts about the volume that never change.
    pub fn spec(&self) -> &VolumeSpec {
        &self.spec
    }

    pub fn sessions(&self) -> &BTreeSet<u64> {
        &self.sessions
    }

    /// Whether it is a volume's, and not a snapshot's.
    pub fn is_whole(&self) -> bool {
        self.task.id == self.spec.id
    }

    pub fn is_deleted(&self) -> bool {
        !self.deletions.is_empty()
    }

    /// Whether the actor waits for something that the engine does not report by itself.
    pub fn is_watched(&self) -> bool {
        self.leaving || self.stopping || self.is_deleted()
    }

    /// Notes that a session speaks to it. Says whether the session is new to it.
    pub fn meet(&mut self, session: u64, peer: impl FnOnce() -> SessionPeer) -> bool {
        let new = self.sessions.insert(session);
        if new {
            self.lock().volume.handle_session(SessionId(session), peer());
        }
        new
    }

    /// The engine cannot go on.
    pub fn mark_failed(&mut self) {
        self.failed = true;
    }

    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// Whether it has come to have room, or to have none, since the last call.
    pub fn room_changed(&mut self) -> bool {
        let changed = self.lock().room_changed();
        self.paused = changed.map_or(self.paused, |has_room| !has_room);
        changed.is_some()
    }

    fn session_closed(&mut self, now: Time, session: u64) {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let since = since.map_or(0, |since| since.as_secs());
        let mut driven = self.lock();
        driven.volume.handle_silent(SessionId(session), since);
        driven.volume.handle_session_closed(now, SessionId(session));
    }

    /// If the volume was unusable some time ago, and no reason for that is left, how often in a row
    /// its open failed before. Then the missing objects exist, or may exist, again.
    fn may_be_opened_anew(&self) -> Option<u32> {
        if !self.failed {
            return None;
        }
        let driven = self.lock();
        let Failures { failed_at, before, repaired, .. } = &driven.failures;
        let pause = OPEN_AGAIN * (1 << (*before).min(4));
        let due = failed_at.is_some_and(|at| *repaired || at.elapsed() >= pause);
        let free = driven.under_way == 0 && self.deletions.is_empty() && !self.leaving;
        (due && free).then_some(*before)
    }

    /// The restore of an object that it needs has ended. `repaired` tells whether it succeeded, and
    /// `last` whether the engine waits for no other.
    pub fn handle_repaired(&mut self, now: Time, key: &str, repaired: bool, last: bool) {
        let mut driven = self.lock();
        driven.failures.repaired |= repaired && last;
        driven.volume.handle_repaired(now, key, repaired);
    }

    /// Whether no host uses it and nothing is under way.
    pub fn is_unused(&self) -> bool {
        let driven = self.lock();
        let connected = driven.volume.info().is_none_or(|live| live.connected);
        !connected && driven.volume.is_idle() && self.deletions.is_empty() && !self.leaving
    }

    /// Finishes what is under way, so that another store can have the volume. Says whether that
    /// begins now.
    pub fn leave(&mut self, now: Time) {
        if !std::mem::replace(&mut self.leaving, true) {
            self.lock().volume.handle_shutdown(now);
        }
    }

    /// Finishes what is under way, because the store stops.
    pub fn stop(&mut self, now: Time) {
        self.stopping = true;
        self.lock().volume.handle_shutdown(now);
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
            return match self.lock().volume.is_idle() {
                true => DeletionStep::Idle,
                false => DeletionStep::Wait,
            };
        }
        let (failed, info) = {
            let driven = self.lock();
            (driven.volume.failed().is_some(), driven.volume.info())
        };
        let refusal = match info {
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
                    self.spec.name
                ))),
                _ => None,
            },
        };
        if let Some(error) = refusal {
            return DeletionStep::Refuse(self.take_deletions(), error);
        }
        self.leave(now);
        DeletionStep::ShutDown
    }

    /// The host that has to hear of known damage now. Not at once, because a host takes a while
    /// after its attach until it listens. Not again before `again`.
    pub fn due_notice(&mut self, again: Duration) -> Option<SessionId> {
        let host = self.lock().volume.session();
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
        let driven = self.task.lock();
        if self.schedule.running || self.leaving || driven.volume.info().is_none() {
            return None;
        }
        let state = driven.volume.state();
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
    /// The states of volumes at the time their engines closed.
    known: HashMap<VolumeId, LiveInfo>,
    /// Of every engine; all share the memory for their maps.
    pub config: Config,
    /// Engines opened so far.
    opened: u64,
    /// Of the threads for engines that no session has asked for.
    homes: Vec<Handle>,
    tasks: JoinSet<()>,
    routes: Routes,
    services: Services,
    schedules: Completions<ScheduleRead>,
}

impl Engines {
    /// Without engines. `homes` are the runtimes that they run in, at least one.
    pub fn new(
        config: Config,
        homes: Vec<Handle>,
        routes: Routes,
        services: Services,
        schedules: Completions<ScheduleRead>,
    ) -> Engines {
        Engines {
            all: BTreeMap::new(),
            known: HashMap::new(),
            config,
            opened: 0,
            homes,
            tasks: JoinSet::new(),
            routes,
            services,
            schedules,
        }
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
        self.all.iter_mut().map(|(id, engine)| (*id, engine))
    }

    pub fn get(&self, id: VolumeId) -> Option<&Engine> {
        self.all.get(&id)
    }

    pub fn get_mut(&mut self, id: VolumeId) -> Option<&mut Engine> {
        self.all.get_mut(&id)
    }

    pub fn has(&self, id: VolumeId) -> bool {
        self.all.contains_key(&id)
    }

    /// State of a volume, from its engine, or from the time when that closed.
    pub fn live(&self, id: VolumeId) -> Option<LiveInfo> {
        let engine = self.all.get(&id).and_then(|engine| engine.lock().volume.info());
        engine.or_else(|| self.known.get(&id).cloned())
    }

    /// The state of a volume may change at another store.
    pub fn forget_live(&mut self, id: VolumeId) {
        self.known.remove(&id);
    }

    /// Takes an engine out, which the caller closes.
    pub fn remove(&mut self, id: VolumeId) -> Option<Engine> {
        self.routes.forget_volume(id);
        self.all.remove(&id)
    }

    /// Lets the reads of a session go to an engine without the actor.
    pub fn open_route(&self, session: u64, id: VolumeId) {
        if let Some(engine) = self.all.get(&id) {
            self.routes.insert(session, &engine.task);
        }
    }

    /// Lets all reads pass the stages again.
    pub fn close_routes(&self) {
        self.routes.clear();
    }

    /// Waits until an engine has ended its task. An engine that panics ends the store: nobody may
    /// go on with its volume.
    pub async fn ended(&mut self) {
        match self.tasks.join_next().await {
            None => std::future::pending().await,
            Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Some(_) => {}
        }
    }

    pub fn is_idle(&self) -> bool {
        self.all.values().all(|engine| engine.lock().volume.is_idle())
    }

    /// Whether a host has a volume attached here.
    pub fn has_hosts(&self) -> bool {
        self.all.values().any(|engine| engine.lock().volume.session().is_some())
    }

    /// Sessions that have a volume attached, with how many.
    pub fn hosts(&self) -> BTreeMap<u64, usize> {
        let mut hosts = BTreeMap::new();
        for engine in self.all.values() {
            if let Some(session) = engine.lock().volume.session() {
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
            let driven = engine.lock();
            tenant.attached |= driven.volume.session().is_some();
            tenant.segments += driven.volume.info().map_or(0, |live| live.segments);
        }
        tenants
    }

    /// Bytes that hosts of a tenant have announced and not sent.
    pub fn announced_bytes(&self, directory: &Directory, tenant: &str) -> u64 {
        let of = |id: &VolumeId| directory.tenant(*id) == Some(tenant);
        let engines = self.all.iter().filter(|(id, _)| of(id));
        engines
            .filter_map(|(_, engine)| engine.lock().volume.info())
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
        self.routes.forget_session(session);
        let mut told = Vec::new();
        for (id, engine) in &mut self.all {
            if engine.sessions.remove(&session) {
                engine.session_closed(now, session);
                told.push(*id);
            }
        }
        told
    }

    /// The engines with a schedule for snapshots.
    pub fn scheduled(&self) -> Vec<VolumeId> {
        let scheduled = self.all.iter().filter(|(_, engine)| engine.has_schedule());
        scheduled.map(|(id, _)| *id).collect()
    }

    /// Closes the engines that nobody needs. If one cannot go on or waits for a host's writes, it
    /// stays, so that operators see its state.
    pub fn close_unused(&mut self) {
        let Engines { all, known, routes, services, .. } = self;
        all.retain(|id, engine| {
            let watched = engine.is_watched();
            if !engine.is_whole() && engine.lock().volume.failed().is_some() {
                return true;
            }
            let closed = engine.task.close_at_rest(|driven| {
                let used = std::mem::take(&mut driven.used);
                let live = driven.volume.info()?;
                let needed = live.connected || live.announced_bytes > 0 || watched;
                (!used && !needed).then_some(live)
            });
            let Some(live) = closed else { return true };
            tracing::debug!("volume {}: not in use, closed", engine.spec.name);
            known.insert(*id, live);
            routes.forget_volume(*id);
            services.objects.left(*id);
            false
        });
    }

    /// Snapshots that cannot be read and that no session asks for.
    pub fn failed_snapshots(&self) -> Vec<VolumeId> {
        let failed = self.all.iter().filter(|(_, engine)| {
            let alone = !engine.is_whole() && engine.sessions.is_empty();
            alone && engine.lock().volume.failed().is_some()
        });
        failed.map(|(id, _)| *id).collect()
    }

    /// Closes snapshots that only map diffs have opened, beyond `keep` and except needed ones.
    pub fn close_idle_snapshots(&mut self, needed: &BTreeSet<VolumeId>, keep: usize) {
        let Engines { all, routes, services, .. } = self;
        let mut kept = 0;
        all.retain(|id, engine| {
            if engine.is_whole() || !engine.sessions.is_empty() || needed.contains(id) {
                return true;
            }
            let closed = engine.task.close_at_rest(|driven| {
                let free = driven.under_way == 0 && driven.is_at_rest();
                kept += usize::from(free);
                (free && kept > keep).then_some(())
            });
            if closed.is_some() {
                routes.forget_volume(*id);
                services.objects.left(*id);
            }
            closed.is_none()
        });
    }

    /// Whether an engine may open: with the number of failures before, or why not.
    pub fn opening(&self, id: VolumeId) -> Opening {
        let Some(engine) = self.all.get(&id) else { return Opening::Open(0) };
        match engine.may_be_opened_anew() {
            Some(failures) => Opening::Open(failures.saturating_add(1)),
            None if engine.leaving => Opening::Leaving,
            None => Opening::IsOpen,
        }
    }

    /// Opens the engine of a volume, or of that snapshot of it, after `failures` failures in a row.
    /// It runs in the runtime `home`, or in any. `before` gets the engine before anything happens
    /// in it. Returns the failed engine in its place before, which the caller closes.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn open(
        &mut self,
        (id, spec, snapshot): (VolumeId, VolumeSpec, Option<SnapshotLocation>),
        failures: u32,
        home: Option<Handle>,
        before: impl FnOnce(&mut Volume, Time),
    ) -> anyhow::Result<Option<Engine>> {
        let incarnation = random::identity()?;
        self.opened += 1;
        let (now, config) = (self.services.meter.now(), self.config.clone());
        let mut volume = match snapshot {
            None => Volume::open(now, spec.clone(), incarnation, config),
            Some(SnapshotLocation { segment, .. }) => {
                Volume::open_snapshot(now, spec.clone(), (segment, id), incarnation, config)
            }
        };
        before(&mut volume, now);
        let any = self.opened as usize % self.homes.len().max(1);
        let home = home.unwrap_or_else(|| self.homes[any].clone());
        let services = self.services.clone();
        // Those of a failed engine.
        self.routes.forget_volume(id);
        let task = EngineTask::new(volume, self.opened, failures, home, services);
        self.tasks.spawn_on(task.clone().run(), task.home());
        Ok(self.all.insert(id, Engine::new(task, spec)))
    }

    /// Reads the schedule of a volume, in a task of its own.
    pub fn read_schedule(&self, volume: VolumeId) {
        let (objects, done) = (self.services.objects.clone(), self.schedules.clone());
        tokio::spawn(async move {
            let read = attribute(&*objects, volume, schedule::ATTRIBUTE).await;
            let text = read.map(|data| String::from_utf8_lossy(&data).into_owned());
            match text.map(|text| text.parse()) {
                Ok(Ok(schedule)) => done.send(ScheduleRead(volume, schedule)),
                Ok(Err(why)) => tracing::warn!("volume {volume}: its schedule is not kept: {why}"),
                Err(error) => tracing::warn!("volume {volume}: its schedule is not known: {error}"),
            }
        });
    }
}

impl Drop for Engines {
    /// Routes and listener know each other.
    fn drop(&mut self) {
        self.routes.clear();
    }
}

/// Whether an engine may open.
pub(super) enum Opening {
    Open(u32),
    IsOpen,
    Leaving,
}
