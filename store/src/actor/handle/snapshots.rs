//! Snapshots and clones: which snapshot a name means, and the work besides the entries in a
//! volume's log.

use super::super::StoreActor;
use super::super::directory::SnapshotLocation;
use super::super::operation::clones::CloneDone;
use super::super::operation::own_queries::OwnQuery;
use super::super::refusal::Refusal;
use super::super::request::{Decision, Request, Target, split};
use super::super::stage::Stage;
use super::super::stage::snapshots::{NamedSnapshot, SnapshotDone, not_found};
use longhaul_api::schedule::Due;
use longhaul_core::block::VolumeId;
use longhaul_core::store::SHELL_SESSION;
use longhaul_core::store::catalog::check_name;
use longhaul_core::store::fleet::clones::CloneVolume;
use longhaul_core::store::tenant::split as split_tenant;
use longhaul_core::wire::link::{
    SnapshotError, SnapshotInfo, SnapshotOperation, SnapshotReply, ToHost, ToStore, VolumeError,
    VolumeInfo, VolumeOperation, VolumeReply,
};

/// Finding a snapshot.
impl StoreActor {
    pub(super) fn snapshot_done(&mut self, done: SnapshotDone) {
        match done {
            SnapshotDone::Located(id, location, request) => self.located(id, location, request),
            SnapshotDone::NotNoted(error, request) => {
                self.refuse(request, Refusal::Unavailable(error));
            }
        }
    }

    /// The location says where a snapshot is, or nothing.
    fn located(&mut self, id: VolumeId, location: Option<SnapshotLocation>, mut request: Request) {
        let session = request.session();
        if self.sessions.listener().version(session).is_none() {
            // It is over, and its end has been announced: nobody would take it from the engine
            // again.
            return;
        }
        let had = |volume| {
            self.directory.has_volume(volume)
                && self.sessions.scope.may_have(session, volume, &self.directory)
        };
        match location.filter(|location| had(location.volume)) {
            Some(location) => {
                self.directory.insert_snapshot(id, location);
                request.engine = Some(id);
                self.run(Stage::Operation, request);
            }
            None => self.refuse_unknown(request),
        }
    }

    fn refuse_unknown(&self, request: Request) {
        if let Decision::Refuse(request, refusal) = not_found(request, &self.directory) {
            self.refuse(request, refusal);
        }
    }

    /// Asks the engine of a volume, wherever that is, for its snapshots after that of a segment, to
    /// find the one that a request names.
    pub(super) fn find_snapshot(&mut self, named: NamedSnapshot, after: u64) {
        let NamedSnapshot { volume, request } = named;
        let operation = SnapshotOperation::List { after, hidden: false };
        self.ask_engine(
            volume,
            operation,
            OwnQuery::FindSnapshot { volume, request: Box::new(request) },
        );
    }

    fn listed_snapshots(
        &mut self,
        volume: VolumeId,
        (snapshots, more): (&[SnapshotInfo], bool),
        request: Request,
    ) {
        let name = match &request.target {
            Target::VolumeOrSnapshot(name) => split(name).map(|(_, snapshot)| snapshot),
            _ => None,
        };
        let found = snapshots.iter().find(|snapshot| Some(snapshot.name.as_str()) == name).cloned();
        let after = snapshots.last().map(|last| last.segment);
        match (found, after) {
            (Some(info), _) => self.found_snapshot(volume, info, request),
            (None, Some(after)) if more => {
                self.find_snapshot(NamedSnapshot { volume, request }, after);
            }
            _ => {
                let error = VolumeError::Snapshot(SnapshotError::NotFound);
                self.refuse(request, Refusal::Unavailable(error));
            }
        }
    }

    /// The snapshot that a request names is known.
    fn found_snapshot(&mut self, volume: VolumeId, info: SnapshotInfo, request: Request) {
        let location = SnapshotLocation { volume, segment: info.segment };
        self.directory.insert_snapshot(info.id, location.clone());
        let Some(spec) = self.directory.spec(volume) else { return self.refuse_unknown(request) };
        if !matches!(request.message(), ToStore::Volume { .. }) {
            return self.stages.snapshots.note(info.id, location, request);
        }
        let info = VolumeInfo {
            name: format!("{}@{}", spec.name, info.name),
            id: info.id,
            sectors: info.sectors,
            block_bytes: spec.block_bytes,
            created: info.created,
            live: None,
            damaged: None,
        };
        self.sessions.reply(&[request.reply_to], &Ok(VolumeReply::Volume(info)));
    }
}

/// Questions of the store itself.
impl StoreActor {
    /// Asks the engine of a volume, wherever that is.
    fn ask_engine(&mut self, volume: VolumeId, operation: SnapshotOperation, query: OwnQuery) {
        let request = self.operations.queries.open(query);
        match self.directory.name(volume) {
            Some(name) => {
                let operation = VolumeOperation::Snapshot { name: name.to_owned(), operation };
                self.run_own(volume, ToStore::Volume { request, operation });
            }
            None => self.own_answer(ToHost::Volume { request, result: Err(VolumeError::NotFound) }),
        }
    }

    /// A request of the store itself about a volume.
    pub(super) fn run_own(&mut self, volume: VolumeId, message: ToStore) {
        let mut request = self.sessions.own_request(message);
        request.engine = Some(volume);
        self.run(Stage::Ownership, request);
    }

    /// Takes the answer to something that the store has asked itself.
    pub(super) fn own_answer(&mut self, message: ToHost) {
        let ToHost::Volume { request, result } = message else { return };
        let Some(query) = self.operations.queries.close(request) else { return };
        match query {
            OwnQuery::FindSnapshot { volume, request } => match result {
                Ok(VolumeReply::Snapshot(SnapshotReply::List { snapshots, more })) => {
                    self.listed_snapshots(volume, (&snapshots, more), *request);
                }
                Ok(_) => self.refuse_unknown(*request),
                Err(error) => self.refuse(*request, Refusal::Unavailable(error)),
            },
            OwnQuery::DeleteSnapshot { to, id } => {
                if let Some(id) = id.filter(|_| result.is_ok()) {
                    self.directory.remove_snapshot(id);
                    self.drop_engine(id);
                    self.stages.snapshots.forget(id);
                }
                self.sessions.reply(&[to], &result);
            }
            OwnQuery::ForClone(reply) => {
                let _ = reply.send(match result {
                    Ok(VolumeReply::Snapshot(reply)) => Ok(reply),
                    Ok(_) => Err(VolumeError::NotFound),
                    Err(error) => Err(error),
                });
            }
            OwnQuery::Scheduled(volume, due) => self.schedule_kept(volume, &due, result),
            OwnQuery::ForgetClone => {
                if let Err(error) = result {
                    // The snapshot stays as long as its volume.
                    tracing::warn!("a deleted clone is still noted in its parent: {error}");
                }
            }
        }
    }
}

/// Operations on snapshots.
impl StoreActor {
    /// Does the work that comes before the engine of a volume gets an operation on snapshots.
    /// Passes the request if the engine has to have it.
    pub(super) fn snapshot_operation(&mut self, id: VolumeId, mut request: Request) -> Decision {
        let to = request.reply_to;
        if to.session == SHELL_SESSION.0 {
            return Decision::Pass(request);
        }
        let principal = request.principal.clone();
        let ToStore::Volume { operation: VolumeOperation::Snapshot { operation, .. }, .. } =
            &mut request.body.message
        else {
            return Decision::Pass(request);
        };
        let refusal = match operation {
            SnapshotOperation::Create { id: identity, created, .. } => {
                *created = crate::clock::now();
                if self.directory.has(*identity) {
                    VolumeError::Snapshot(SnapshotError::IdTaken)
                } else {
                    return Decision::Pass(request);
                }
            }
            SnapshotOperation::Delete { snapshot } => {
                let engine = self.engines.get(id);
                let identity = engine.and_then(|engine| {
                    let driven = engine.lock();
                    driven.volume.state().snapshots.named(snapshot).map(|snapshot| snapshot.id)
                });
                let operation = SnapshotOperation::Delete { snapshot: snapshot.clone() };
                self.ask_engine(id, operation, OwnQuery::DeleteSnapshot { to, id: identity });
                return Decision::Hold;
            }
            SnapshotOperation::Clone { snapshot, clone, id: identity } => {
                let (snapshot, clone, identity) = (snapshot.clone(), clone.clone(), *identity);
                match self.may_clone(id, &clone, identity) {
                    Err(error) => error,
                    Ok(()) => return self.clone_volume(request, id, (snapshot, clone, identity)),
                }
            }
            // Stores say this to themselves, and to each other.
            SnapshotOperation::Forget { .. } if !principal.store => {
                VolumeError::Invalid("this is for stores to say".into())
            }
            SnapshotOperation::Diff { since, until, range } => {
                let (since, until, range) = (*since, *until, *range);
                self.begin_diff((to, &principal), id, since, until, range);
                return Decision::Hold;
            }
            SnapshotOperation::Usage { snapshots, volume, range } => {
                let (snapshots, volume, range) = (std::mem::take(snapshots), *volume, *range);
                self.begin_usage((to, &principal), id, snapshots, volume, range);
                return Decision::Hold;
            }
            SnapshotOperation::List { .. }
            | SnapshotOperation::Rollback { .. }
            | SnapshotOperation::Forget { .. } => return Decision::Pass(request),
        };
        Decision::Refuse(request, Refusal::Unavailable(refusal))
    }

    /// Whether a clone of a volume may have that name and identity.
    fn may_clone(&self, of: VolumeId, clone: &str, id: VolumeId) -> Result<(), VolumeError> {
        let of = self.directory.tenant(of);
        let (tenant, bare) = split_tenant(clone);
        // Data of a tenant must not depend on another tenant.
        if tenant != of {
            return Err(VolumeError::Invalid(match of {
                Some(of) => format!("a clone has the tenant of its volume: call it {of}/NAME"),
                None => "a clone has the tenant of its volume, which has none".to_owned(),
            }));
        }
        check_name(bare).map_err(|error| VolumeError::Invalid(error.to_string()))?;
        match self.directory.entry(clone) {
            Some(entry) if entry.spec.id != id => Err(VolumeError::Exists),
            None if self.directory.has(id) => Err(VolumeError::Snapshot(SnapshotError::IdTaken)),
            _ => Ok(()),
        }
    }

    /// Makes a clone of a snapshot of a volume, with a name and an identity.
    fn clone_volume(
        &mut self,
        request: Request,
        parent: VolumeId,
        (snapshot, name, id): (String, String, VolumeId),
    ) -> Decision {
        let Some(parent) = self.directory.spec(parent).cloned() else {
            return Decision::Refuse(request, Refusal::NotFound);
        };
        let clone = CloneVolume { parent, snapshot, name, id };
        self.operations.clones.begin(request.reply_to, clone);
        Decision::Hold
    }

    pub(super) fn clone_done(&mut self, done: CloneDone) {
        match done {
            CloneDone::AskEngine(volume, operation, reply) => {
                self.ask_engine(volume, operation, OwnQuery::ForClone(reply));
            }
            CloneDone::Cloned(to, result) => {
                let reply = result.map(|entry| {
                    let spec = &entry.spec;
                    tracing::info!("created volume {} ({}), a clone", spec.name, spec.id);
                    self.learn_new(entry)
                });
                self.sessions.reply(&[to], &reply);
            }
        }
    }

    /// Nothing is left of a clone, so its parent need not keep data for it.
    pub(super) fn forget_clone(&mut self, parent: VolumeId, clone: VolumeId) {
        if self.directory.has_volume(parent) {
            let operation = SnapshotOperation::Forget { id: clone };
            self.ask_engine(parent, operation, OwnQuery::ForgetClone);
        }
    }
}

/// Snapshots by the clock.
impl StoreActor {
    /// Takes and deletes what is due, of the volumes that are open here.
    pub(super) fn keep_schedules(&mut self) {
        for id in self.engines.scheduled() {
            self.keep_schedule(id);
        }
    }

    pub(super) fn keep_schedule(&mut self, id: VolumeId) {
        let Some(engine) = self.engines.get_mut(id) else { return };
        let Some(due) = engine.due_snapshot() else { return };
        let operation = match &due {
            Due::Take(name) => {
                let Ok(identity) = longhaul_base::random::identity() else { return };
                SnapshotOperation::Create {
                    snapshot: name.clone(),
                    id: VolumeId(identity),
                    created: crate::clock::now(),
                    barrier: false,
                }
            }
            Due::Delete(name) => SnapshotOperation::Delete { snapshot: name.clone() },
        };
        engine.schedule_begun();
        self.ask_engine(id, operation, OwnQuery::Scheduled(id, due));
    }

    fn schedule_kept(&mut self, id: VolumeId, due: &Due, result: Result<VolumeReply, VolumeError>) {
        let name = self.directory.name_or_empty(id);
        let (what, snapshot) = match due {
            Due::Take(snapshot) => ("taking", snapshot),
            Due::Delete(snapshot) => ("deleting", snapshot),
        };
        match &result {
            Ok(_) => tracing::info!("volume {name}: {what} snapshot {snapshot}, as scheduled"),
            Err(error) => tracing::warn!("volume {name}: {what} snapshot {snapshot}: {error}"),
        }
        if let Some(engine) = self.engines.get_mut(id) {
            engine.schedule_done();
        }
        // After a failure, the next attempt comes a while later.
        if result.is_ok() {
            self.keep_schedule(id);
        }
    }
}
