//! Ownership: the volumes that this store serves, among those of all stores of the installation.
//!
//! A host gets a volume at the store that it asks. That store takes the volume's lease, from the
//! store that holds it if that one answers. So a host uses one store for all of its volumes, and
//! copies between them stay in that store. Volumes move with their host and never by themselves. If
//! a question about a volume comes to another store, that store redirects it to the holder of the
//! lease.

use super::super::completions::Completions;
use super::super::directory::Directory;
use super::super::refusal::Refusal;
use super::super::request::{Decision, Redirect, ReplyTo, Request, Target};
use crate::lease::{self, Holder, Purpose, Source};
use crate::peers::Peers;
use longhaul_core::block::VolumeId;
use longhaul_core::store::fleet::holdings::{HeldEngine, Holdings, Release};
use longhaul_core::wire::link::{
    AttachError, Claim, Frame, StoreId, StoreReply, ToHost, ToStore, VolumeError,
};
use longhaul_objects::Objects;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the answer to who holds a volume counts for the next question.
const FRESH: Duration = Duration::from_secs(1);
/// Most early reads of a volume that wait for their Resume message. The host repeats the others
/// after it.
const EARLY_MAX: usize = 1024;

/// The outcomes of this stage's tasks.
pub(in super::super) enum OwnershipDone {
    /// The holder of a volume's lease is known.
    Claimed(VolumeId, lease::Outcome),
    /// Another store has answered a request.
    Forwarded(ReplyTo, Frame<ToHost>),
    /// The store that held the volume does not answer: look up the holder again.
    HolderLost(VolumeId, Request),
}

/// This store among those that share the volumes.
struct Member {
    me: Holder,
    peers: Peers,
}

pub(in super::super) struct Ownership {
    /// Nothing if this store has its volumes for itself.
    member: Option<Member>,
    held: Holdings,
    volumes: HashMap<VolumeId, VolumeClaim>,
    objects: Arc<dyn Objects>,
    done: Completions<OwnershipDone>,
}

/// The known state of a volume's lease.
#[derive(Default)]
struct VolumeClaim {
    /// The request that the look-up of the lease is for, unless its session has ended since.
    requester: Option<Request>,
    /// Requests that came meanwhile, or while another store has the volume; and reads that came
    /// before their Resume message. The link bounds them: each counts there, for itself or with its
    /// answer.
    waiting: VecDeque<Request>,
    /// The store that held the lease at the last look.
    holder: Option<(StoreId, Vec<String>, Instant)>,
    /// When this store took the volume from another one.
    taken: Option<Instant>,
    /// Stores that wait for this store to leave the volume.
    releasing: Vec<ReplyTo>,
}

/// The consequences of the answer about a volume's lease.
pub(in super::super) struct Claimed {
    /// The request that the look-up was for.
    pub requester: Option<Request>,
    /// Requests that came meanwhile.
    pub waiting: VecDeque<Request>,
    pub verdict: Verdict,
}

pub(in super::super) enum Verdict {
    /// This store holds the lease.
    Mine {
        number: u64,
        taken: Option<Source>,
        /// Another store may have had the volume since its engine opened.
        stale: bool,
    },
    Redirect(Redirect),
    Refused(AttachError),
    Gone,
}

/// The consequences after this store has left a volume.
pub(in super::super) struct LeftVolume {
    pub stores: Vec<ReplyTo>,
    pub answer: Result<StoreReply, VolumeError>,
    pub waiting: VecDeque<Request>,
}

/// The purpose of a request, if it depends on the holder of the lease.
fn purpose(request: &Request) -> Option<Purpose> {
    let key = request.principal.key;
    match request.message() {
        ToStore::Attach { host, journal, take_over, .. } => {
            let (journal, take_over) = (*journal, *take_over);
            Some(Purpose::Serve(*host, key, Claim::Attach { journal, take_over }))
        }
        ToStore::Resume { host, epoch, .. } => {
            Some(Purpose::Serve(*host, key, Claim::Resume(*epoch)))
        }
        ToStore::Volume { .. }
        | ToStore::Read { epoch: 0, .. }
        | ToStore::Status { epoch: 0, .. } => Some(Purpose::Ask),
        _ => None,
    }
}

impl Ownership {
    /// Of a store among those, or of one that has its volumes for itself.
    pub fn new(
        fleet: Option<(&Holder, &Peers)>,
        objects: Arc<dyn Objects>,
        done: Completions<OwnershipDone>,
    ) -> Ownership {
        let member = fleet.map(|(me, peers)| Member { me: me.clone(), peers: peers.clone() });
        let (held, volumes) = (Holdings::default(), HashMap::new());
        Ownership { member, held, volumes, objects, done }
    }

    /// Passes a request for the engine of a volume that this store serves. `open` says whether an
    /// engine is open.
    pub fn decide(
        &mut self,
        request: Request,
        directory: &Directory,
        open: impl Fn(VolumeId) -> bool,
    ) -> Decision {
        let (Some(member), Some(id)) = (&self.member, request.engine) else {
            return Decision::Pass(request);
        };
        // Any store may read a snapshot.
        if directory.snapshot(id).is_some() {
            return Decision::Pass(request);
        }
        let claim = self.volumes.entry(id).or_default();
        if self.held.is_busy(id) {
            claim.waiting.push_back(request);
            return Decision::Hold;
        }
        let Some(purpose) = purpose(&request) else {
            if self.held.lease(id).is_some() || open(id) {
                return Decision::Pass(request);
            }
            if matches!(request.target, Target::Early(_)) && claim.waiting.len() < EARLY_MAX {
                // The Resume that it follows comes in another lane.
                claim.waiting.push_back(request);
                return Decision::Hold;
            }
            // Its host resumes, and the volume follows.
            return Decision::Refuse(request, Refusal::NotServed);
        };
        let observes = matches!(request.target, Target::Id(_)) && purpose == Purpose::Ask;
        if observes && self.held.lease(id).is_some() && open(id) {
            return Decision::Pass(request);
        }
        if purpose == Purpose::Ask
            && let Some((store, addresses, since)) = &claim.holder
            && since.elapsed() < FRESH
        {
            let (store, addresses) = (*store, addresses.clone());
            let redirect = Redirect { store, addresses, cached_for: Some(id) };
            return Decision::Forward(request, redirect);
        }
        // Nothing during a deletion of the volume here.
        let Some(spec) = directory.spec(id).cloned() else {
            return Decision::Refuse(request, Refusal::NotFound);
        };
        self.held.begin_claim(id);
        claim.requester = Some(request);
        let objects = self.objects.clone();
        let (peers, me) = (member.peers.clone(), member.me.clone());
        self.done.spawn(async move {
            let outcome = lease::claim(&*objects, &peers, &me, &spec, purpose).await;
            OwnershipDone::Claimed(id, outcome)
        });
        Decision::Hold
    }

    /// The holder of a volume's lease is known.
    pub fn claimed(&mut self, id: VolumeId, outcome: lease::Outcome) -> Option<Claimed> {
        let claim = self.volumes.get_mut(&id)?;
        let stale = self.held.handle_claimed(id, &outcome);
        let verdict = match outcome {
            lease::Outcome::Mine { number, taken } => {
                claim.holder = None;
                if taken.is_some_and(Source::is_other) {
                    claim.taken = Some(Instant::now());
                }
                Verdict::Mine { number, taken, stale }
            }
            lease::Outcome::Elsewhere(store, addresses) => {
                claim.holder = Some((store, addresses.clone(), Instant::now()));
                Verdict::Redirect(Redirect { store, addresses, cached_for: None })
            }
            lease::Outcome::Refused(error) => Verdict::Refused(error),
            lease::Outcome::Gone => Verdict::Gone,
        };
        let (requester, waiting) = (claim.requester.take(), std::mem::take(&mut claim.waiting));
        Some(Claimed { requester, waiting, verdict })
    }

    /// Has another store answer a request, and holds it until then. Without others, or if another
    /// store asked because it took this one for the holder, refuses the request: the lease has
    /// moved since.
    pub fn forward(&self, request: Request, redirect: Redirect) -> Decision {
        let Redirect { store, addresses, cached_for } = redirect;
        let why = format!(
            "store {store} at {} has the volume and does not answer; try again",
            addresses.join(", ")
        );
        let silent = Refusal::HolderSilent(why);
        let Some(member) = self.member.as_ref().filter(|_| !request.is_from_store()) else {
            return Decision::Refuse(request, silent);
        };
        let Some(failed) = silent.answer(request.message().clone()) else { return Decision::Hold };
        let peers = member.peers.clone();
        self.done.spawn(async move {
            let (to, message) = (request.reply_to, request.message().clone());
            match (peers.forward(store, &addresses, to.lane, message).await, cached_for) {
                (Ok(answer), _) => OwnershipDone::Forwarded(to, answer),
                (Err(_), None) => OwnershipDone::Forwarded(to, failed.into()),
                (Err(_), Some(id)) => OwnershipDone::HolderLost(id, request),
            }
        });
        Decision::Hold
    }

    /// The store that held a volume does not answer.
    pub fn holder_lost(&mut self, id: VolumeId) {
        if let Some(claim) = self.volumes.get_mut(&id) {
            claim.holder = None;
        }
    }

    /// Another store takes this one to have a volume by the lease of that number, and wants it.
    pub fn handle_release(&mut self, id: VolumeId, lease: u64, engine: HeldEngine) -> Release {
        self.held.handle_release(id, lease, engine)
    }

    /// Another store waits until this one has left a volume.
    pub fn begin_leaving(&mut self, id: VolumeId, to: ReplyTo) {
        self.volumes.entry(id).or_default().releasing.push(to);
    }

    pub fn is_left(&self, id: VolumeId) -> bool {
        self.volumes.get(&id).is_some_and(|claim| !claim.releasing.is_empty())
    }

    /// This store has left a volume. Returns the stores that wait for that, with the answer to
    /// them, and the requests that came meanwhile.
    pub fn left(&mut self, id: VolumeId) -> LeftVolume {
        let answer = self.held.handle_left(id);
        let claim = self.volumes.entry(id).or_default();
        let stores = std::mem::take(&mut claim.releasing);
        LeftVolume { stores, answer, waiting: std::mem::take(&mut claim.waiting) }
    }

    /// A volume does not exist any more. Returns the requests that wait to know who holds it.
    pub fn remove(&mut self, id: VolumeId) -> Vec<Request> {
        self.held.forget(id);
        let Some(claim) = self.volumes.remove(&id) else { return Vec::new() };
        claim.requester.into_iter().chain(claim.waiting).collect()
    }

    /// A session is over: nobody waits for what it asked.
    pub fn forget(&mut self, session: u64) {
        for claim in self.volumes.values_mut() {
            claim.requester.take_if(|request| request.session() == session);
            claim.waiting.retain(|request| request.session() != session);
        }
    }

    /// Volumes that this store serves.
    pub fn count(&self) -> usize {
        self.held.count()
    }

    /// Number of the lease by which this store has a volume.
    pub fn lease(&self, id: VolumeId) -> Option<u64> {
        self.held.lease(id)
    }

    /// The lease by which this store deletes a volume; none if it has its volumes for itself.
    ///
    /// # Errors
    /// Another store has taken the volume.
    pub fn deleting_lease(&self, id: VolumeId) -> Result<Option<u64>, VolumeError> {
        self.member.as_ref().map(|_| self.held.deleting_lease(id)).transpose()
    }

    /// Whether a volume was another store's until so long ago, at most.
    pub fn is_taken_within(&self, id: VolumeId, time: Duration) -> bool {
        let taken = self.volumes.get(&id).and_then(|claim| claim.taken);
        taken.is_some_and(|at| at.elapsed() < time)
    }
}

/// The error for those who wait for something of a volume that moves to another store.
pub(in super::super) fn moved() -> VolumeError {
    VolumeError::Store("the volume has moved to another store; try again".to_owned())
}
