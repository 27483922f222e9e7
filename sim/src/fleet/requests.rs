//! Requests about volumes. A store hands each one to its engine, or forwards it to the store that
//! has the volume. This models the actor of the store service.

use super::World;
use super::store::{Job, VolumeClaim};
use super::task::{Done, task};
use super::tend::{Aim, Entry};
use crate::note;
use longhaul_core::block::VolumeId;
use longhaul_core::store::fleet::claim::{Claim, ClaimOutcome, LeasePurpose, LeaseSource};
use longhaul_core::store::fleet::clones::CloneVolume;
use longhaul_core::store::fleet::holdings::{HeldEngine, Release};
use longhaul_core::store::lease::{self, Lease};
use longhaul_core::wire::link::{
    self, AttachError, Frame, HostId, KeyId, SnapshotOperation, StoreOperation, StoreReply, ToHost,
    ToStore, VolumeError, VolumeOperation,
};

/// The recipient of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Asker {
    /// A host, by its session.
    Session(u64),
    /// An operation of an operator, and the number of its attempt.
    Operation(u64, u64),
    /// A procedure of the same store.
    Task(u64),
    /// Another store, by its question.
    Call(u64),
    Nobody,
}

/// A request about a volume.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub asker: Asker,
    pub volume: VolumeId,
    pub frame: Frame<ToStore>,
    pub from_store: bool,
}

/// The purpose of the claim that a request needs. A request without a purpose needs a store that
/// has the volume already.
fn purpose(message: &ToStore) -> Option<LeasePurpose> {
    match message {
        ToStore::Attach { host, journal, take_over, .. } => {
            let (journal, take_over) = (*journal, *take_over);
            Some(LeasePurpose::Serve(
                *host,
                KeyId::NONE,
                link::Claim::Attach { journal, take_over },
            ))
        }
        ToStore::Resume { host, epoch, .. } => {
            Some(LeasePurpose::Serve(*host, KeyId::NONE, link::Claim::Resume(*epoch)))
        }
        ToStore::Volume { .. } => Some(LeasePurpose::Ask),
        _ => None,
    }
}

impl World {
    /// Handles a request at a store. The request waits, goes to the engine or to another store,
    /// begins a claim, or gets an error.
    pub(super) fn take(&mut self, store: usize, request: Request) {
        let now = self.now;
        let id = request.volume;
        let at = &mut self.stores[store];
        let spec = at.spec(id).cloned();
        let claim = at.claims.entry(id).or_default();
        if at.holdings.is_busy(id) {
            claim.waiting.push_back(request);
            return;
        }
        let Some(purpose) = purpose(&request.frame.message) else {
            if at.holdings.lease(id).is_some() || at.engines.contains_key(&id) {
                return self.operate(store, request);
            }
            return self.refuse(store, request, VolumeError::NotFound);
        };
        if purpose == LeasePurpose::Ask
            && let Some((holder, since)) = claim.holder
            && now.0 - since.0 < super::SECOND
        {
            return self.redirect(store, holder, request, true);
        }
        let Some(spec) = spec else {
            return self.refuse(store, request, VolumeError::NotFound);
        };
        at.holdings.begin_claim(id);
        claim.asker = Some(request);
        let claim = Claim { me: at.holder(), spec, purpose };
        let now = self.clock(store);
        self.start(store, Aim::Claim(id), task(claim, now, Done::Claimed));
    }

    fn redirect(&mut self, store: usize, holder: link::StoreId, request: Request, cached: bool) {
        if request.from_store {
            return self.refuse(store, request, VolumeError::Store("it has moved".into()));
        }
        self.forward(store, holder, request, cached);
    }

    /// Handles the outcome of a claim. The store serves, forwards or refuses its request, and looks
    /// at the waiting ones again.
    pub(super) fn claimed(&mut self, store: usize, id: VolumeId, outcome: ClaimOutcome) {
        let now = self.now;
        let at = &mut self.stores[store];
        let Some(claim) = at.claims.get_mut(&id) else { return };
        let stale = at.holdings.handle_claimed(id, &outcome);
        let asker = claim.asker.take();
        let waiting = std::mem::take(&mut claim.waiting);
        match outcome {
            ClaimOutcome::Mine { taken, .. } => {
                claim.holder = None;
                if taken.is_some_and(LeaseSource::is_other) {
                    claim.taken = Some(now);
                }
                self.count_taken(store, id, taken);
                if stale {
                    let open = self.stores[store].engines.contains_key(&id);
                    self.coverage.engines_stale += u64::from(open);
                    self.drop_engine(store, id);
                }
                if let Some(request) = asker {
                    self.operate(store, request);
                }
            }
            ClaimOutcome::Elsewhere(holder, _) => {
                claim.holder = Some((holder, now));
                if let Some(request) = asker {
                    self.redirect(store, holder, request, false);
                }
            }
            ClaimOutcome::Refused(error) => {
                if let Some(request) = asker {
                    self.refuse_host(store, &request, error);
                }
            }
            ClaimOutcome::Gone => {
                self.coverage.claims_gone += 1;
                if let Some(request) = asker {
                    self.gone(store, id, request);
                }
            }
        }
        for request in waiting {
            self.decide_again(store, request);
        }
    }

    /// Checks that a store with a volume holds its lease. If the store took the lease from a silent
    /// store, it must have asked that one. It must have looked at the name after that, so that it
    /// never serves a volume that is gone.
    pub(super) fn check_claim(
        &self,
        entry: &Entry,
        id: VolumeId,
        outcome: &ClaimOutcome,
    ) -> Result<(), String> {
        let ClaimOutcome::Mine { number, taken } = outcome else { return Ok(()) };
        let store = entry.store;
        if *taken == Some(LeaseSource::Silent) && !entry.unanswered {
            return Err(format!("store {store} takes volume {id} and has not asked its store"));
        }
        let named = entry.looked.as_ref().is_some_and(|(_, named)| *named == id);
        if taken.is_some() && !named {
            return Err(format!("store {store} takes volume {id}, and has seen no name of it"));
        }
        let Some(there) = self.place.map.get(&lease::key(id, *number)) else { return Ok(()) };
        // After the removal of all leases, a late claim may take an old number again.
        if self.truths.get(&id).is_some_and(|truth| truth.fate.condemned) {
            return Ok(());
        }
        let me = self.stores[store].holder();
        let held =
            Lease::Held { store: me.id, incarnation: me.incarnation, addresses: me.addresses };
        if Lease::decode("", there).ok() != Some(held) {
            return Err(format!("store {store} has volume {id} by lease {number}, another one's"));
        }
        Ok(())
    }

    fn count_taken(&mut self, store: usize, id: VolumeId, taken: Option<LeaseSource>) {
        match taken {
            Some(LeaseSource::Nobody) => self.coverage.leases_first += 1,
            Some(LeaseSource::Handed) => self.coverage.leases_handed += 1,
            Some(LeaseSource::Silent) => {
                self.coverage.leases_silent += 1;
                let has = |at: usize| {
                    at != store
                        && self.stores[at].is_up()
                        && self.stores[at].holdings.lease(id).is_some()
                };
                let partitioned = (0..self.stores.len()).any(has);
                self.coverage.leases_partitioned += u64::from(partitioned);
            }
            None => {}
        }
    }

    fn decide_again(&mut self, store: usize, request: Request) {
        if self.stores[store].entry_of(request.volume).is_some() {
            self.take(store, request);
        } else {
            self.refuse(store, request, VolumeError::NotFound);
        }
    }

    /// Handles a request for a volume that the claim found gone.
    fn gone(&mut self, store: usize, id: VolumeId, request: Request) {
        let deletes = matches!(
            request.frame.message,
            ToStore::Volume { operation: VolumeOperation::Delete { .. }, .. }
        );
        let entry = self.stores[store].entry_of(id).cloned();
        if deletes && let Some(entry) = entry {
            // An earlier deletion may have stopped halfway: this one completes it.
            let to = request.asker;
            let job = Job::Delete { entry, lease: None, clones: None, to };
            return self.push_job(store, job);
        }
        self.forget_volume(store, id);
        self.refuse(store, request, VolumeError::NotFound);
    }

    /// Drops all knowledge of a volume that no longer exists, and refuses its waiting requests.
    pub(super) fn forget_volume(&mut self, store: usize, id: VolumeId) {
        self.drop_engine(store, id);
        let at = &mut self.stores[store];
        at.directory.retain(|_, entry| entry.spec.id != id);
        at.holdings.forget(id);
        let Some(claim) = at.claims.remove(&id) else { return };
        for request in claim.asker.into_iter().chain(claim.waiting) {
            self.refuse(store, request, VolumeError::NotFound);
        }
    }

    /// Handles the request of another store for a volume. Returns the answer, unless an engine has
    /// to stop first.
    pub(super) fn release(
        &mut self,
        store: usize,
        call: u64,
        operation: &StoreOperation,
    ) -> Option<Result<StoreReply, VolumeError>> {
        let StoreOperation::Release { volume: id, lease, host, key, claim } = *operation else {
            return Some(Err(VolumeError::NotFound));
        };
        let at = &mut self.stores[store];
        let engine = match at.engines.get_mut(&id) {
            None => HeldEngine::None,
            Some(engine) if engine.is_deleted() => HeldEngine::Deleting,
            Some(engine) => HeldEngine::Open(engine.machine.may_leave(host, key, claim)),
        };
        let release = at.holdings.handle_release(id, lease, engine.clone());
        note!(self, "s{store} is asked for {id} by lease {lease}: {engine:?} {release:?}");
        if let Release::Answer(result) = release {
            if matches!(result, Ok(StoreReply::Refused(_))) {
                self.coverage.releases_refused += 1;
            }
            return Some(result);
        }
        self.check_leaves(store, id, host, claim);
        let now = self.now;
        let at = &mut self.stores[store];
        at.claims.entry(id).or_default().releasing.push(call);
        if let Some(engine) = at.engines.get_mut(&id) {
            engine.leave(now);
        }
        self.drive(store, id);
        None
    }

    /// Checks that a connected host loses its volume only to a host that may take it. That host has
    /// a take-over, or it is the host of the current epoch.
    fn check_leaves(&mut self, store: usize, id: VolumeId, host: HostId, claim: link::Claim) {
        let engine = self.stores[store].engines.get(&id);
        let session = engine.and_then(|engine| engine.machine.session());
        let holder = session.and_then(|session| self.sessions.get(&session.0));
        let other = holder.is_some_and(|session| self.hosts[session.host].id != host);
        let epoch = self.truths.get(&id).map(|truth| truth.epoch);
        let takes = match claim {
            link::Claim::Attach { take_over, .. } => take_over,
            // If the epoch is still the current one, another store served that host in between.
            link::Claim::Resume(resumed) => epoch == Some(resumed),
        };
        // The host of the current epoch needs no take-over.
        let own = self.truths.get(&id).is_some_and(|truth| truth.host == host);
        // At another store, an operator may have accepted the loss of the host's writes, which ends
        // the epoch. This engine has read that in the log, and has not told the host yet.
        let live = engine.and_then(|engine| engine.machine.info());
        let ended = live.is_some_and(|live| live.host.is_none());
        if other && !takes && !own && !ended {
            self.fail(format!("store {store} leaves volume {id}, whose host is connected"));
        }
    }

    /// Releases a volume to another store that waits for it, once the engine is idle.
    pub(super) fn let_go(&mut self, store: usize, id: VolumeId) {
        let at = &mut self.stores[store];
        let left = at.claims.get(&id).is_some_and(|claim| !claim.releasing.is_empty());
        if !left || at.engines.get(&id).is_some_and(|engine| !engine.machine.is_idle()) {
            return;
        }
        note!(self, "s{store} leaves {id}");
        self.coverage.engines_left += 1;
        let at = &mut self.stores[store];
        let answer = at.holdings.handle_left(id);
        let claim = at.claims.entry(id).or_default();
        let (calls, waiting) =
            (std::mem::take(&mut claim.releasing), std::mem::take(&mut claim.waiting));
        self.drop_engine(store, id);
        for call in calls {
            self.answer_call(call, super::peers::Answer::Store(answer.clone()));
        }
        for request in waiting {
            self.decide_again(store, request);
        }
    }

    /// Executes a request for a volume of this store.
    pub(super) fn operate(&mut self, store: usize, mut request: Request) {
        let id = request.volume;
        if let ToStore::Volume { operation, .. } = &mut request.frame.message {
            self.reopen_if_unused(store, id);
            match operation {
                VolumeOperation::Delete { .. } => return self.begin_delete(store, request),
                VolumeOperation::Snapshot {
                    operation: SnapshotOperation::Clone { snapshot, clone, id: identity },
                    ..
                } if !matches!(request.asker, Asker::Task(_)) && !request.from_store => {
                    let (snapshot, name, clone) = (snapshot.clone(), clone.clone(), *identity);
                    return self.clone_volume(store, request, snapshot, name, clone);
                }
                VolumeOperation::Snapshot {
                    operation: SnapshotOperation::Create { created, .. },
                    ..
                } => *created = 1,
                _ => {}
            }
        }
        self.hand_to_engine(store, request);
    }

    fn clone_volume(
        &mut self,
        store: usize,
        request: Request,
        snapshot: String,
        name: String,
        id: VolumeId,
    ) {
        let at = &self.stores[store];
        let Asker::Operation(number, attempt) = request.asker else { return };
        let Some(parent) = at.spec(request.volume).cloned() else {
            return self.refuse(store, request, VolumeError::NotFound);
        };
        if at.directory.get(&name).is_some_and(|entry| entry.spec.id != id) {
            return self.refuse(store, request, VolumeError::Exists);
        }
        let clone = CloneVolume { parent, snapshot, name, id };
        let now = self.clock(store);
        self.start(store, Aim::Operation(number, attempt), task(clone, now, Done::Cloned));
    }

    /// Sends a snapshot operation to the engine of a volume, at whichever store has it.
    pub(super) fn ask_engine(
        &mut self,
        store: usize,
        volume: VolumeId,
        operation: SnapshotOperation,
        asker: Asker,
    ) {
        let name = self.stores[store].spec(volume).map(|spec| spec.name.clone());
        let known = name.is_some();
        let name = name.unwrap_or_default();
        let operation = VolumeOperation::Snapshot { name, operation };
        let frame = Frame::from(ToStore::Volume { request: 0, operation });
        let request = Request { asker, volume, frame, from_store: false };
        if known {
            self.take(store, request);
        } else {
            self.refuse(store, request, VolumeError::NotFound);
        }
    }

    fn refuse_host(&mut self, store: usize, request: &Request, error: AttachError) {
        if let ToStore::Attach { request: number, .. } | ToStore::Resume { request: number, .. } =
            &request.frame.message
        {
            let reply = ToHost::Attached { request: *number, result: Err(error) };
            self.answer(store, &request.asker, reply);
        }
    }

    /// Answers a request with an error.
    pub(super) fn refuse(&mut self, store: usize, request: Request, error: VolumeError) {
        let reply = match request.frame.message {
            ToStore::Attach { request, .. } | ToStore::Resume { request, .. } => {
                let error = match error {
                    VolumeError::NotFound => AttachError::NotFound,
                    other => AttachError::Damaged(other.to_string()),
                };
                ToHost::Attached { request, result: Err(error) }
            }
            ToStore::Volume { request, .. } => ToHost::Volume { request, result: Err(error) },
            ToStore::Batch { volume, epoch, .. } => {
                ToHost::BatchRefused { volume, epoch, reason: error.to_string() }
            }
            _ => return,
        };
        self.answer(store, &request.asker, reply);
    }
}

impl VolumeClaim {
    /// Drops the requests of a session that has ended.
    pub fn forget(&mut self, session: u64) {
        let of = |request: &Request| request.asker == Asker::Session(session);
        self.asker.take_if(|request| of(request));
        self.waiting.retain(|request| !of(request));
    }
}
