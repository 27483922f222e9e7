//! The engines of a store: production engines, driven by the simulator.

use super::objects::Origin;
use super::requests::{Asker, Request};
use super::store::{Job, Stage};
use super::{Event, World};
use crate::note;
use longhaul_core::block::{Time, VolumeId};
use longhaul_core::store::fleet::listing::CatalogEntry;
use longhaul_core::store::map::Limits;
use longhaul_core::store::map::pages::SharedPages;
use longhaul_core::store::{
    self, Config, ObjectResult, PutError, SHELL_SESSION, SessionId, SessionPeer, Volume,
};
use longhaul_core::wire::link::{Lane, ToHost, ToStore, VolumeError};
use std::collections::BTreeMap;
use std::time::Duration;

/// The time that a host has to come back before another host may get its volume.
const HOLDER_GRACE: Duration = Duration::from_secs(2);

pub(super) struct Engine {
    pub machine: Volume,
    pub number: u64,
    timer: Option<Time>,
    /// Whether a request has come for it since the last tick of the store.
    pub used: bool,
    /// By session, the recipients of answers in sessions that belong to no host.
    askers: BTreeMap<u64, Asker>,
    /// The recipients of the answer to the deletion of the volume.
    deletions: Vec<Asker>,
    pub leaving: bool,
    /// Whether another store had an engine of the volume at the same time.
    pub rivaled: bool,
    failed: bool,
}

impl Engine {
    pub fn is_deleted(&self) -> bool {
        !self.deletions.is_empty()
    }

    /// Lets the engine finish its work, so that another store can have the volume.
    pub fn leave(&mut self, now: Time) {
        if !std::mem::replace(&mut self.leaving, true) {
            self.machine.handle_shutdown(now);
        }
    }
}

pub(super) fn config() -> Config {
    Config {
        segment_bytes: 4 << 10,
        queue_bytes: 64 << 10,
        flush_every_segments: 4,
        map: Limits { page_bytes: 120, fragment_bytes: 360, runs: 2, level_bytes: 1500, factor: 3 },
        pages: SharedPages::new(64 << 10),
        delete_delay: Duration::from_secs(5),
        holder_grace: HOLDER_GRACE,
        missing_wait: Duration::from_secs(2),
        ..Config::default()
    }
}

impl World {
    /// Opens an engine for a volume, unless it has one. Returns false if the store does not know
    /// the volume, or if the engine is about to stop.
    fn open(&mut self, store: usize, id: VolumeId) -> bool {
        if let Some(engine) = self.stores[store].engines.get(&id) {
            if !engine.failed {
                return !engine.leaving;
            }
            self.drop_engine(store, id);
        }
        let Some(spec) = self.stores[store].spec(id).cloned() else { return false };
        let incarnation = self.rng.wide();
        let number = self.number();
        note!(self, "s{store} opens {id} as engine {number}");
        let mut machine = Volume::open(self.now, spec, incarnation, config());
        let taken = self.stores[store].claims.get(&id).and_then(|claim| claim.taken);
        if taken.is_some_and(|at| self.now.since(at) < HOLDER_GRACE) {
            machine.handle_awaited(self.now.after(HOLDER_GRACE));
        }
        let engine = Engine {
            machine,
            number,
            timer: None,
            used: true,
            askers: BTreeMap::new(),
            deletions: Vec::new(),
            leaving: false,
            rivaled: false,
            failed: false,
        };
        self.stores[store].engines.insert(id, engine);
        if self.stores.iter().filter(|at| at.engines.contains_key(&id)).count() > 1 {
            for engine in self.stores.iter_mut().filter_map(|at| at.engines.get_mut(&id)) {
                engine.rivaled = true;
            }
        }
        true
    }

    /// Drops an idle engine without a connected host, so that the next request opens the volume
    /// anew. Another store may have written to the volume in between.
    pub(super) fn reopen_if_unused(&mut self, store: usize, id: VolumeId) {
        let unused = self.stores[store].engines.get(&id).is_some_and(|engine| {
            let connected = engine.machine.info().is_none_or(|live| live.connected);
            !connected && engine.machine.is_idle() && !engine.is_deleted() && !engine.leaving
        });
        if unused {
            self.drop_engine(store, id);
        }
    }

    pub(super) fn hand_to_engine(&mut self, store: usize, request: Request) {
        let id = request.volume;
        if !self.open(store, id) {
            return self.refuse(store, request, VolumeError::NotFound);
        }
        let now = self.now;
        let session = match request.asker {
            Asker::Session(session) => session,
            _ => self.number(),
        };
        let lane = match request.frame.message {
            ToStore::Batch { .. } => Lane::Drain,
            _ => Lane::Control,
        };
        let Some(engine) = self.stores[store].engines.get_mut(&id) else { return };
        engine.used = true;
        if !matches!(request.asker, Asker::Session(_)) {
            engine.askers.insert(session, request.asker);
        }
        engine.machine.handle_session(SessionId(session), SessionPeer::default());
        engine.machine.handle_message(now, SessionId(session), lane, request.frame);
        self.drive(store, id);
    }

    /// Takes all outputs of an engine, and then continues a deletion, a release or a stop.
    pub(super) fn drive(&mut self, store: usize, id: VolumeId) {
        while let Some(engine) = self.stores[store].engines.get_mut(&id) {
            let number = engine.number;
            if let Some(event) = engine.machine.poll_event() {
                note!(self, "s{store} engine {number} event {event:?}");
                self.engine_event(store, id, &event);
            } else if let Some((operation, wanted)) = engine.machine.poll_object() {
                self.begin_object(store, Origin::Engine(id, number, operation), wanted);
            } else if let Some((session, _, frame)) = engine.machine.poll_message() {
                self.engine_says(store, id, session, frame.message);
            } else {
                break;
            }
        }
        let Some(engine) = self.stores[store].engines.get_mut(&id) else { return };
        if let Some(due) = engine.machine.poll_timeout()
            && engine.timer.is_none_or(|timer| due < timer)
        {
            engine.timer = Some(due);
            let (incarnation, number) = (self.stores[store].incarnation, 0);
            let number = self.stores[store].engines.get(&id).map_or(number, |e| e.number);
            self.schedule(due, Event::EngineTimer(store, incarnation, id, number));
        }
        self.go_on_deleting(store, id);
        self.let_go(store, id);
        self.may_stop(store);
    }

    fn engine_event(&mut self, store: usize, id: VolumeId, event: &store::Event) {
        match event {
            store::Event::Opened { .. } | store::Event::Resized { .. } => {
                let engine = self.stores[store].engines.get(&id);
                let sectors = engine.and_then(|engine| engine.machine.sectors());
                let at = &mut self.stores[store];
                let entry = at.directory.values_mut().find(|entry| entry.spec.id == id);
                if let (Some(entry), Some(sectors)) = (entry, sectors) {
                    entry.sectors = sectors;
                }
            }
            store::Event::Failed(error) => {
                let condemned = self.truths.get(&id).is_none_or(|truth| truth.fate.condemned);
                let behind = matches!(error, store::OpenError::ParentBehind);
                if !condemned && !behind && !self.parent_is_gone(id) {
                    self.fail(format!("store {store} cannot open volume {id}: {error}"));
                }
                if let Some(engine) = self.stores[store].engines.get_mut(&id) {
                    engine.failed = true;
                }
            }
            _ => {}
        }
    }

    /// Whether an engine may fail to open a clone because of its parents. A purge has removed a
    /// parent, or the log of the nearest parent lacks the clone. And the clone has no name, or by
    /// the last answer it does not exist.
    fn parent_is_gone(&self, id: VolumeId) -> bool {
        let Some(truth) = self.truths.get(&id) else { return true };
        let gone = truth.spec.parents.iter().any(|parent| {
            self.truths.get(&parent.volume).is_none_or(|parent| parent.fate.condemned)
        });
        let pinned = truth.spec.parents.iter().take(1).all(|parent| {
            self.truths.get(&parent.volume).is_some_and(|parent| parent.clones.contains(&id))
        });
        (gone || !pinned) && (truth.names.is_empty() || !truth.fate.exists)
    }

    fn engine_says(&mut self, store: usize, id: VolumeId, session: SessionId, message: ToHost) {
        self.check_said(store, id, session.0, &message);
        if session == SHELL_SESSION {
            return;
        }
        let now = self.now;
        let Some(engine) = self.stores[store].engines.get_mut(&id) else { return };
        match engine.askers.get(&session.0).cloned() {
            Some(asker) => {
                if matches!(message, ToHost::Volume { .. }) {
                    engine.askers.remove(&session.0);
                    engine.machine.handle_session_closed(now, session);
                    self.answer(store, &asker, message);
                }
            }
            None => self.answer(store, &Asker::Session(session.0), message),
        }
    }

    pub(super) fn engine_timer(&mut self, store: usize, id: VolumeId, number: u64) {
        let now = self.now;
        let Some(engine) = self.stores[store].engines.get_mut(&id) else { return };
        if engine.number != number {
            return;
        }
        engine.timer = None;
        if engine.machine.poll_timeout().is_some_and(|due| due <= now) {
            engine.machine.handle_timeout(now);
        }
        self.drive(store, id);
    }

    /// Hands the result of an object operation to its engine.
    pub(super) fn engine_object(
        &mut self,
        store: usize,
        id: VolumeId,
        number: u64,
        operation: u64,
        result: ObjectResult,
    ) {
        let now = self.now;
        let Some(engine) = self.stores[store].engines.get_mut(&id) else { return };
        if engine.number != number {
            return;
        }
        if result == ObjectResult::Put(Err(PutError::Exists)) {
            self.coverage.commits_refused += 1;
        }
        engine.machine.handle_object(now, operation, result);
        self.drive(store, id);
    }

    /// Drops an engine as if another store had taken the volume. The engine answers its waiting
    /// requests. Waiting deletions get an error that permits a retry.
    pub(super) fn drop_engine(&mut self, store: usize, id: VolumeId) {
        let now = self.now;
        let Some(mut engine) = self.stores[store].engines.remove(&id) else { return };
        note!(self, "s{store} drops engine {}", engine.number);
        engine.machine.handle_taken(now);
        while let Some((session, _, frame)) = engine.machine.poll_message() {
            let asker = engine.askers.remove(&session.0).unwrap_or(Asker::Session(session.0));
            self.answer(store, &asker, frame.message);
        }
        for asker in engine.deletions {
            let error = VolumeError::Store("the volume has moved".into());
            self.answer_volume(store, &asker, Err(error));
        }
    }

    /// Begins to delete a volume. A later step refuses this if the log says that a host has the
    /// volume attached.
    pub(super) fn begin_delete(&mut self, store: usize, request: Request) {
        let id = request.volume;
        if !self.open(store, id) {
            return self.refuse(store, request, VolumeError::NotFound);
        }
        if let Some(engine) = self.stores[store].engines.get_mut(&id) {
            engine.deletions.push(request.asker);
        }
        self.drive(store, id);
    }

    fn go_on_deleting(&mut self, store: usize, id: VolumeId) {
        let now = self.now;
        let Some(engine) = self.stores[store].engines.get_mut(&id) else { return };
        if engine.deletions.is_empty() {
            return;
        }
        if engine.leaving {
            if engine.machine.is_idle() {
                self.delete_stopped(store, id);
            }
            return;
        }
        let failed = engine.machine.failed().is_some();
        let refusal = match engine.machine.info() {
            None if !failed => return,
            None => None,
            Some(_) if failed => None,
            Some(live) => match live.host {
                Some(host) if live.connected => Some(VolumeError::InUse(host)),
                Some(_) if !live.clean => Some(VolumeError::Invalid("attached".into())),
                _ => None,
            },
        };
        if let Some(error) = refusal {
            for asker in std::mem::take(&mut engine.deletions) {
                self.answer_volume(store, &asker, Err(error.clone()));
            }
            return;
        }
        engine.leaving = true;
        engine.machine.handle_shutdown(now);
        self.drive(store, id);
    }

    /// Queues the deletion of a volume after its engine has become idle. The first requester gets
    /// the outcome, and the others get an error that permits a retry.
    fn delete_stopped(&mut self, store: usize, id: VolumeId) {
        let Ok(lease) = self.stores[store].holdings.deleting_lease(id) else {
            return self.drop_engine(store, id);
        };
        let lease = Some(lease);
        let at = &mut self.stores[store];
        let Some(engine) = at.engines.remove(&id) else { return };
        note!(self, "s{store} engine {} has stopped", engine.number);
        let clones = engine.machine.state().snapshots.clones().map(|clone| clone.id).collect();
        let clones = engine.machine.failed().is_none().then_some(clones);
        let spec = engine.machine.spec().clone();
        let sectors = at.directory.get(&spec.name).map(|entry| entry.sectors);
        let sectors = sectors.unwrap_or(spec.created_sectors);
        let entry = CatalogEntry { sectors, spec };
        let mut deletions = engine.deletions.into_iter();
        let Some(to) = deletions.next() else { return };
        for other in deletions {
            let error = VolumeError::Store("somebody else deletes it; try again".into());
            self.answer_volume(store, &other, Err(error));
        }
        self.push_job(store, Job::Delete { entry, lease, clones, to });
    }

    /// Drops the idle engines that have no connected host and got no request since the last tick.
    pub(super) fn close_unused(&mut self, store: usize) {
        let at = &mut self.stores[store];
        at.engines.retain(|_, engine| {
            let used = std::mem::take(&mut engine.used);
            let rest = engine.machine.is_idle() && engine.machine.poll_timeout().is_none();
            let connected = engine.machine.info().is_none_or(|live| live.connected);
            used || connected || engine.is_deleted() || !rest || engine.leaving
        });
    }

    /// Ends the process of a stopping store once its engines are idle and no change of the catalog
    /// runs.
    pub(super) fn may_stop(&mut self, store: usize) {
        let at = &self.stores[store];
        let idle = !at.chores.running && at.engines.values().all(|e| e.machine.is_idle());
        if at.stage == Stage::Stopping && idle {
            self.coverage.stopped += 1;
            self.crash(store);
        }
    }
}
