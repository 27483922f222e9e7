//! Which volumes this store serves, of those that all stores of the installation have in common.
//!
//! Where a host wants a volume it gets it: its store takes the volume's lease, from the store that has it
//! if that answers. So a host is at one store with all of its volumes, which can be copied from one to
//! another there, and volumes move with their host and never by themselves. What is merely asked about a
//! volume is passed on to the store that has it.

use super::{Asked, Job, Outcome, Shell, Work};
use crate::absent::{no_such_volume, not_here};
use crate::lease::{self, Purpose, Source};
use longhaul_core::block::VolumeId;
use longhaul_core::store::fleet::holdings::{HeldEngine, Holdings, Release};
use longhaul_core::wire::link::{
    Claim, Frame, KeyId, Lane, ReadError, StoreId, StoreOperation, StoreReply, ToHost, ToStore,
    VolumeError, VolumeOperation,
};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

/// How long a volume is taken to be where it was found, when something is asked about it again.
const FRESH: Duration = Duration::from_secs(1);
/// Reads of a volume that wait for the Resume that they follow, at most; more are asked again after it.
const BEHIND_MAX: usize = 1024;
/// What those are told who use a volume here that is another store's now.
const MOVED: &str = "the volume has moved to another store";

/// What this store has to do with volumes.
#[derive(Default)]
pub(super) struct Claims {
    held: Holdings,
    all: HashMap<VolumeId, State>,
}

/// A frame with the session and lane that it came in.
type Waiting = (u64, Lane, Frame<ToStore>);

#[derive(Default)]
struct State {
    /// Whose it is was asked for this frame, unless its session has ended since.
    asker: Option<Waiting>,
    /// Frames that came meanwhile, or while it is being let go; and reads that came before their Resume. What bounds them is
    /// that each counts at the link, for itself or with its answer.
    waiting: VecDeque<Waiting>,
    /// Where it was found.
    elsewhere: Option<(StoreId, Vec<String>, Instant)>,
    /// When it was taken from another store.
    taken: Option<Instant>,
    /// Stores that wait for it to be let go.
    releasing: Vec<Asked>,
}

impl Claims {
    /// Volumes that are this store's.
    pub(super) fn count(&self) -> usize {
        self.held.count()
    }

    /// Number of the lease by which a volume is this store's.
    pub(super) fn lease(&self, id: VolumeId) -> Option<u64> {
        self.held.lease(id)
    }

    /// Whether a volume was another store's until so long ago, at most.
    pub(super) fn is_taken_within(&self, id: VolumeId, time: Duration) -> bool {
        let taken = self.all.get(&id).and_then(|state| state.taken);
        taken.is_some_and(|at| at.elapsed() < time)
    }

    /// A session is over: nobody waits for what it asked.
    pub(super) fn forget(&mut self, session: u64) {
        for state in self.all.values_mut() {
            state.asker.take_if(|(other, ..)| *other == session);
            state.waiting.retain(|(other, ..)| *other != session);
        }
    }
}

/// What a frame wants of a volume, if that depends on who has it.
fn purpose(message: &ToStore, key: KeyId) -> Option<Purpose> {
    match message {
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

impl Shell {
    /// A frame for a volume: to its engine, once it is known whose it is.
    pub(super) fn admit(&mut self, id: VolumeId, session: u64, lane: Lane, frame: Frame<ToStore>) {
        let Some(fleet) = &self.fleet else { return self.hand_to_engine(id, session, lane, frame) };
        let state = self.claims.all.entry(id).or_default();
        if self.claims.held.is_busy(id) {
            state.waiting.push_back((session, lane, frame));
            return;
        }
        let key = self.guests.principal(session).map_or(KeyId::NONE, |principal| principal.key);
        let Some(purpose) = purpose(&frame.message, key) else {
            if self.claims.held.lease(id).is_some() || self.engines.contains_key(&id) {
                return self.hand_to_engine(id, session, lane, frame);
            }
            if matches!(frame.message, ToStore::ReadBehind { .. })
                && state.waiting.len() < BEHIND_MAX
            {
                // The Resume that it follows comes in another lane.
                state.waiting.push_back((session, lane, frame));
                return;
            }
            // Its host resumes, and the volume follows.
            if let Some(reply) = not_here(frame.message) {
                self.send(session, lane, reply.into());
            }
            return;
        };
        let observes = matches!(frame.message, ToStore::Read { .. } | ToStore::Status { .. });
        let held = self.claims.held.lease(id).is_some();
        if observes && held && self.engines.contains_key(&id) {
            return self.hand_to_engine(id, session, lane, frame);
        }
        if purpose == Purpose::Ask
            && let Some((store, addresses, since)) = &state.elsewhere
            && since.elapsed() < FRESH
        {
            let (store, addresses) = (*store, addresses.clone());
            return self.forward(store, addresses, session, lane, frame, Some(id));
        }
        let Some(name) = self.names.get(&id) else { return };
        let Some(spec) = self.catalog.get(name).map(|entry| entry.spec.clone()) else { return };
        self.claims.held.begin_claim(id);
        state.asker = Some((session, lane, frame));
        let (objects, outcomes) = (self.objects.clone(), self.outcomes.0.clone());
        let (peers, me) = (fleet.peers.clone(), fleet.me.clone());
        tokio::spawn(async move {
            let outcome = lease::claim(&*objects, &peers, &me, &spec, purpose).await;
            let _ = outcomes.send(Outcome::Claimed(id, outcome));
        });
    }

    /// It is known whose a volume is.
    pub(super) fn claimed(&mut self, id: VolumeId, outcome: lease::Outcome) {
        let Some(state) = self.claims.all.get_mut(&id) else { return };
        let stale = self.claims.held.handle_claimed(id, &outcome);
        let mut waiting = std::mem::take(&mut state.waiting);
        let asker = state.asker.take();
        match outcome {
            lease::Outcome::Mine { number, taken } => {
                state.elsewhere = None;
                if taken.is_some_and(Source::is_other) {
                    state.taken = Some(Instant::now());
                }
                if stale {
                    // It knows the volume as it was before another store had it.
                    self.drop_engine(id);
                }
                let name = self.names.get(&id).cloned().unwrap_or_default();
                match taken {
                    Some(Source::Silent) => {
                        self.counts.failovers += 1;
                        self.watch.claimed(&name, "taken from a store that does not answer");
                        tracing::warn!(
                            "volume {name}: taken from a store that does not answer (lease {number})"
                        );
                    }
                    Some(Source::Handed) => {
                        self.counts.taken_over += 1;
                        self.watch.claimed(&name, "left by another store");
                        tracing::info!("volume {name}: taken from another store (lease {number})");
                    }
                    Some(Source::Nobody) => tracing::debug!("volume {name}: lease {number}"),
                    None => {}
                }
                if let Some((session, lane, frame)) = asker {
                    self.hand_to_engine(id, session, lane, frame);
                }
            }
            lease::Outcome::Elsewhere(store, addresses) => {
                state.elsewhere = Some((store, addresses.clone(), Instant::now()));
                if let Some((session, lane, frame)) = asker {
                    self.forward(store, addresses, session, lane, frame, None);
                }
            }
            lease::Outcome::Refused(error) => {
                if let Some((session, lane, frame)) = asker
                    && let ToStore::Attach { request, .. } | ToStore::Resume { request, .. } =
                        frame.message
                {
                    let reply = ToHost::Attached { request, result: Err(error) };
                    self.send(session, lane, reply.into());
                    self.refuse_behind(session, &mut waiting);
                }
            }
            lease::Outcome::Gone => {
                if let Some((session, lane, frame)) = asker {
                    self.gone(id, session, lane, frame);
                }
            }
        }
        self.admit_again(id, waiting);
    }

    /// Reads that came along with what a session was refused are not answered either.
    fn refuse_behind(&self, session: u64, waiting: &mut VecDeque<Waiting>) {
        for (other, lane, frame) in std::mem::take(waiting) {
            if other != session || !matches!(frame.message, ToStore::ReadBehind { .. }) {
                waiting.push_back((other, lane, frame));
            } else if let Some(reply) = not_here(frame.message) {
                self.send(session, lane, reply.into());
            }
        }
    }

    fn admit_again(&mut self, id: VolumeId, waiting: VecDeque<Waiting>) {
        for (session, lane, frame) in waiting {
            if self.names.contains_key(&id) {
                self.admit(id, session, lane, frame);
            } else if let Some(reply) = no_such_volume(frame.message) {
                self.send(session, lane, reply.into());
            }
        }
    }

    /// A frame for a volume that is deleted.
    fn gone(&mut self, id: VolumeId, session: u64, lane: Lane, frame: Frame<ToStore>) {
        let name = self.names.get(&id).cloned().unwrap_or_default();
        if let ToStore::Volume { request, operation: VolumeOperation::Delete { .. } } =
            frame.message
            && let Some(entry) = self.catalog.get(&name)
        {
            // What is left of a deletion that was cut short.
            let asked = vec![Asked { session, lane, request }];
            let (entry, lease, clones) = (entry.clone(), None, BTreeSet::new());
            let at_once = self.deletes_at_once();
            let work = Work::Delete { entry, lease, clones, at_once };
            self.names.remove(&id);
            self.jobs.push_back(Job { asked, work });
            return self.next_job();
        }
        self.forget_volume(&name);
        if let Some(reply) = no_such_volume(frame.message) {
            self.send(session, lane, reply.into());
        }
    }

    /// A volume has been deleted at another store.
    pub(super) fn forget_volume(&mut self, name: &str) {
        let Some(entry) = self.catalog.remove(name) else { return };
        let id = entry.spec.id;
        self.names.remove(&id);
        self.drop_engine(id);
        self.forget_snapshots_of(id);
        self.forget_claims(id);
        self.release_held(id);
    }

    /// Whoever waits to know whose a volume is hears that there is none.
    pub(super) fn forget_claims(&mut self, id: VolumeId) {
        self.claims.held.forget(id);
        let Some(state) = self.claims.all.remove(&id) else { return };
        self.admit_again(id, state.asker.into_iter().chain(state.waiting).collect());
    }

    /// Parts with an engine: what it has under way may have its effect or not, and the next engine, wherever
    /// it is, reads the log. Whoever waits for it is told to come again.
    pub(super) fn drop_engine(&mut self, id: VolumeId) {
        self.known.remove(&id);
        self.survey.forget(id);
        let now = self.now();
        let Some(mut engine) = self.engines.remove(&id) else { return };
        engine.volume.handle_taken(now);
        while let Some((session, lane, frame)) = engine.volume.poll_message() {
            self.send(session.0, lane, frame);
        }
        while let Some((number, result)) = engine.volume.poll_places() {
            self.places(number, result);
        }
        if !engine.deletions.is_empty() {
            let moved = VolumeError::Store(format!("{MOVED}; try again"));
            self.reply(&engine.deletions, &Err(moved));
        }
        self.pause_drains(&engine.sessions);
    }

    /// Before something is asked of a volume that no host uses here: another store may have written to it
    /// since its engine has read the log.
    pub(super) fn reopen_if_unused(&mut self, id: VolumeId) {
        let alone = self.fleet.as_ref().is_none_or(|fleet| fleet.peers.list().is_empty());
        let unused = self.engines.get(&id).is_some_and(|engine| {
            let connected = engine.volume.info().is_none_or(|live| live.connected);
            !connected && engine.volume.is_idle() && engine.deletions.is_empty() && !engine.leaving
        });
        if !alone && unused {
            self.drop_engine(id);
        }
    }

    /// Has the store that has a volume do what was asked here. If that was looked up for an earlier
    /// request (`unsure`, the volume) and it does not answer, it is looked up again.
    fn forward(
        &mut self,
        store: StoreId,
        addresses: Vec<String>,
        session: u64,
        lane: Lane,
        frame: Frame<ToStore>,
        unsure: Option<VolumeId>,
    ) {
        let message = frame.message;
        let failed = match &message {
            ToStore::Read { request, volume, .. } => {
                let (request, volume) = (*request, *volume);
                ToHost::Data { request, volume, result: Err(ReadError::NotAttached) }
            }
            ToStore::Status { request, volume, .. } => {
                let (request, volume) = (*request, *volume);
                ToHost::Status { request, volume, result: Err(ReadError::NotAttached) }
            }
            ToStore::Volume { request, .. } => {
                let why = format!(
                    "store {store} at {} has the volume and does not answer; try again",
                    addresses.join(", ")
                );
                ToHost::Volume { request: *request, result: Err(VolumeError::Store(why)) }
            }
            _ => return,
        };
        // From another store: that one looked a moment ago, and it has moved since.
        let Some(fleet) = self.fleet.as_ref().filter(|_| !self.stores.contains(&session)) else {
            return self.send(session, lane, failed.into());
        };
        self.counts.forwarded += 1;
        let (peers, outcomes) = (fleet.peers.clone(), self.outcomes.0.clone());
        tokio::spawn(async move {
            let again = message.clone();
            let answer = peers.forward(store, &addresses, lane, message).await;
            let _ = outcomes.send(match (answer, unsure) {
                (Ok(answer), _) => Outcome::Forwarded(session, lane, answer),
                (Err(_), None) => Outcome::Forwarded(session, lane, failed.into()),
                (Err(_), Some(id)) => Outcome::Again(id, session, lane, again.into()),
            });
        });
    }

    /// A frame whose volume is no longer where it was found.
    pub(super) fn again(&mut self, id: VolumeId, session: u64, lane: Lane, frame: Frame<ToStore>) {
        if let Some(state) = self.claims.all.get_mut(&id) {
            state.elsewhere = None;
        }
        self.known_frame(session, lane, frame);
    }

    /// Another store wants a volume for a host.
    pub(super) fn release(&mut self, asked: Asked, operation: StoreOperation) {
        let StoreOperation::Release { volume: id, lease, host, key, claim } = operation else {
            return;
        };
        let engine = match self.engines.get_mut(&id) {
            None => HeldEngine::None,
            Some(engine) if !engine.deletions.is_empty() => HeldEngine::Deleting,
            Some(engine) => HeldEngine::Open(engine.volume.may_leave(host, key, claim)),
        };
        let held = self.claims.held.lease(id).is_some();
        if let Release::Answer(result) = self.claims.held.handle_release(id, lease, engine) {
            if held && self.claims.held.lease(id).is_none() {
                self.known.remove(&id);
                self.survey.forget(id);
            }
            return self.reply_store(asked, result);
        }
        let state = self.claims.all.entry(id).or_default();
        state.releasing.push(asked);
        let now = self.now();
        if let Some(engine) = self.engines.get_mut(&id)
            && !std::mem::replace(&mut engine.leaving, true)
        {
            engine.volume.handle_shutdown(now);
        }
        self.drive(id);
    }

    /// Lets a volume go that another store waits for, once nothing is under way.
    pub(super) fn let_go(&mut self, id: VolumeId) {
        let Some(state) = self.claims.all.get_mut(&id) else { return };
        if state.releasing.is_empty()
            || self.engines.get(&id).is_some_and(|engine| !engine.volume.is_idle())
        {
            return;
        }
        let left = self.claims.held.handle_left(id);
        let asked = std::mem::take(&mut state.releasing);
        let waiting = std::mem::take(&mut state.waiting);
        if let Some(engine) = self.engines.get(&id) {
            self.counts.handed_over += 1;
            tracing::info!("volume {}: left to another store", engine.volume.spec().name);
        }
        self.drop_engine(id);
        self.objects.left(id);
        for asked in asked {
            self.reply_store(asked, left.clone());
        }
        self.admit_again(id, waiting);
        self.release_held(id);
    }

    pub(super) fn reply_store(&self, asked: Asked, result: Result<StoreReply, VolumeError>) {
        let reply = ToHost::Store { request: asked.request, result };
        self.send(asked.session, asked.lane, reply.into());
    }
}
