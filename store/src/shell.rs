//! Drives the engines: frames and outcomes in, frames and operations out.

mod claims;
mod damage;
mod engines;
mod gate;
mod jobs;
mod limits;
mod repair;
mod replica;
mod rights;
mod snapshots;
mod stores;
mod strangers;
mod survey;
mod tenants;
mod trash;
mod walks;
mod watch;
mod work;

pub use stores::{Fleet, addresses};

use super::absent::{damaged_volume, named_in, no_such_volume};
use super::audit::Audit;
use super::catalog::{Catalog, Entry, NotCreated};
use super::replica::Keeper;
use super::scrub::Scrub;
use super::view::{Counts, FleetState, MapMemory, Question, SessionState, Snapshot, VolumeState};
use claims::Claims;
use damage::Damage;
use engines::{Engine, settles};
use gate::Guests;
use limits::Limits;
use longhaul_core::block::{Time, VolumeId};
use longhaul_core::store::{Config, ObjectResult, SHELL_SESSION, SessionId};
use longhaul_core::wire::link::{
    Frame, Lane, LiveInfo, ReadError, StageError, ToHost, ToStore, TrashReply, VolumeError,
    VolumeInfo, VolumeOperation, VolumeReply,
};
use longhaul_link::credential::{Issued, Own};
use longhaul_link::{Listener, ListenerEvent};
use longhaul_objects::Objects;
use repair::Repairs;
use replica::SecondPlace;
use snapshots::{Snapshots, read_schedule, volume_of};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use stores::Signing;
use strangers::Strangers;
use survey::Survey;
use tenants::Room;
use tokio::sync::mpsc;
use tokio::time::Interval;
use trash::Trash;
use walks::Walks;
use watch::Watch;
use work::{Asked, Job, Outcome, Work};

/// Frames taken before engines' timers and other inputs are looked at again.
const FRAMES_AT_ONCE: usize = 64;
/// How often engines are looked for that nobody needs: one goes after one to two of these. A guess:
/// longer than the pause between an operator's commands.
const LOOK_INTERVAL: Duration = Duration::from_secs(30);

/// How long hosts get to go to other stores before this one stops, and what is done to get to the second place.
const AWAY_LIMIT: Duration = Duration::from_secs(5);

/// The store's one owner.
pub struct Shell {
    listener: Listener,
    objects: Arc<dyn Objects>,
    /// Of every engine; all share the memory for their maps.
    pub(super) config: Config,
    /// All volumes by name.
    catalog: BTreeMap<String, Entry>,
    /// By name, why volumes cannot be used: their descriptions are damaged.
    unusable: BTreeMap<String, String>,
    names: HashMap<VolumeId, String>,
    /// Those in use, and snapshots of them that are.
    engines: BTreeMap<VolumeId, Engine>,
    snapshots: Snapshots,
    walks: Walks,
    /// What was known of a volume when its engine was put away.
    known: HashMap<VolumeId, LiveInfo>,
    /// The same of those that nobody has used since the start.
    survey: Survey,
    /// When to look for engines to put away.
    pub(super) look: Interval,
    outcomes: (mpsc::UnboundedSender<Outcome>, mpsc::UnboundedReceiver<Outcome>),
    questions: mpsc::Receiver<Question>,
    /// Creations and deletions, one after the other.
    jobs: VecDeque<Job>,
    working: bool,
    /// Deleted volumes whose data is being removed.
    removing: usize,
    trash: Trash,
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
    guests: Guests,
    own: Arc<Own>,
    signing: Signing,
    watch: Watch,
    room: Room,
    /// When to look for it.
    look_for_room: Interval,
    limits: Limits,
    /// The location is being looked at for what other stores did; and once more after that.
    looking: bool,
    look_again: bool,
    /// Frames about volumes that are not known, and requests for a list, until it has been.
    strangers: Strangers,
    lists: Vec<Asked>,
    /// When to remind hosts that are to leave.
    remind: Interval,
    /// The second place of all objects, if there is one.
    keeper: Arc<Keeper>,
    second: SecondPlace,
    repairs: Repairs,
    damage: Damage,
}

/// What a store knows of its volumes when it starts, and where it writes down what is done to them.
pub struct Books {
    /// All volumes by name.
    pub catalog: Catalog,
    /// Those that are deleted.
    pub deleted: Vec<VolumeId>,
    /// How long the data of these stays.
    pub delete_grace: Duration,
    /// Who does what.
    pub audit: Audit,
    /// What is damaged.
    pub scrub: Scrub,
    /// Which certificates are accepted, and what they are good for.
    pub issued: Arc<Issued>,
    /// What this store shows.
    pub own: Arc<Own>,
}

impl Shell {
    /// Owns what is given.
    pub fn new(
        listener: Listener,
        objects: Arc<dyn Objects>,
        books: Books,
        questions: mpsc::Receiver<Question>,
        config: Config,
        fleet: Option<Fleet>,
        keeper: Arc<Keeper>,
    ) -> Shell {
        let Books { catalog, deleted, delete_grace, audit, scrub, issued, own } = books;
        let Catalog { entries: catalog, damaged: unusable } = catalog;
        let specs = catalog.values().map(|entry| &entry.spec);
        let names = specs.map(|spec| (spec.id, spec.name.clone())).collect();
        Shell {
            listener,
            objects,
            config,
            catalog,
            unusable,
            names,
            engines: BTreeMap::new(),
            snapshots: Snapshots::default(),
            walks: Walks::default(),
            known: HashMap::new(),
            survey: Survey::default(),
            look: tokio::time::interval(LOOK_INTERVAL),
            outcomes: mpsc::unbounded_channel(),
            questions,
            jobs: VecDeque::new(),
            working: false,
            removing: 0,
            trash: Trash::new(delete_grace, deleted),
            counts: Counts::default(),
            elsewhere: Duration::ZERO,
            origin: Instant::now(),
            engines_opened: 0,
            fleet,
            claims: Claims::default(),
            stores: HashSet::new(),
            guests: Guests::new(issued),
            own,
            signing: Signing::default(),
            watch: Watch::new(audit),
            room: Room::default(),
            look_for_room: tokio::time::interval(tenants::ROOM_INTERVAL),
            limits: Limits::default(),
            looking: false,
            look_again: false,
            strangers: Strangers::default(),
            lists: Vec::new(),
            remind: tokio::time::interval(stores::REMIND),
            keeper,
            second: SecondPlace::default(),
            repairs: Repairs::default(),
            damage: Damage::new(scrub),
        }
    }

    /// Serves until somebody has gone on elsewhere, and says so; may be dropped between any two events.
    pub async fn serve(&mut self) -> anyhow::Error {
        loop {
            self.step().await;
            if let Some(why) = self.second.ended() {
                return why;
            }
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
        // What is not repeated by then is found at the next start.
        let _ = tokio::time::timeout(AWAY_LIMIT, self.keeper.replicated().settle()).await;
        self.objects.finish().await;
    }

    /// Ends all sessions.
    pub async fn close(self) {
        self.listener.shutdown().await;
    }

    async fn step(&mut self) {
        let engines = self.engines.values().filter_map(|engine| engine.volume.poll_timeout());
        let deadline = engines.chain(self.limits.poll_timeout()).min();
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
            () = timeout => {
                self.timeouts();
                self.pass_due();
            }
            _ = self.look.tick() => {
                self.put_away();
                self.tick();
                self.keep_schedules();
                self.tend_trash();
                self.tend_limits();
                self.tend_certificate();
                self.watch.tick();
                self.tell_known_damage();
            }
            _ = self.look_for_room.tick() => {
                self.look_for_room();
                self.look_for_shares();
            }
            _ = self.remind.tick(), if self.fleet.is_some() => self.remind(),
            () = self.second.tick() => self.see_to_second(),
            found = self.damage.next() => self.found_damaged(found),
        }
    }

    fn now(&self) -> Time {
        Time(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn event(&mut self, event: ListenerEvent) {
        match event {
            ListenerEvent::Opened { session, peer, principal, software } => {
                tracing::info!(
                    "session {session}: {peer} ({software}, credential {})",
                    principal.serial
                );
                self.watch.opened(session, peer, &principal, &software);
                self.guests.opened(session, &principal);
                self.session_opened(session, &principal);
            }
            ListenerEvent::Closed { session, reason } => {
                tracing::info!("session {session} closed: {reason}");
                self.stores.remove(&session);
                self.guests.closed(session);
                self.watch.closed(session);
                self.claims.forget(session);
                self.strangers.forget(session);
                self.forget_held(session);
                let now = self.now();
                for id in self.engines.keys().copied().collect::<Vec<_>>() {
                    let Some(engine) = self.engines.get_mut(&id) else { continue };
                    if engine.sessions.remove(&session) {
                        engine.session_closed(now, session);
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
        let Frame { message, payload } = frame;
        let code = longhaul_link::CloseCode::Protocol;
        if let Err(why) = self.watch.asked(session, &message) {
            return self.listener.close_session(session, code, &why);
        }
        // What comes in another lane would neither wait where it has to nor be paid for.
        if lane != Lane::Drain && matches!(message, ToStore::Batch { .. }) {
            let why = "a batch came in another lane than that for batches";
            return self.listener.close_session(session, code, why);
        }
        let Some(message) = self.inbound(session, lane, message) else { return };
        let frame = Frame { message, payload };
        let strange = self.is_strange(&frame.message) || !self.may_see(session, &frame.message);
        let early = matches!(frame.message, ToStore::ReadBehind { .. });
        // Another store may have created it a moment ago.
        let frame = match self.fleet.is_some() && strange && !early {
            false => frame,
            true => match self.strangers.put(session, lane, frame) {
                None => return self.look_around(),
                Some(frame) => frame,
            },
        };
        self.known_frame(session, lane, frame);
    }

    /// Whether a message names a volume that is not known.
    fn is_strange(&self, message: &ToStore) -> bool {
        match message {
            // What may be a copy of an old flight has nothing looked up.
            ToStore::Hello { .. }
            | ToStore::Store { .. }
            | ToStore::Tenant { .. }
            | ToStore::ReadBehind { .. } => false,
            ToStore::Attach { name, .. } => !self.catalog.contains_key(volume_of(name)),
            ToStore::Resume { volume, .. }
            | ToStore::Detach { volume, .. }
            | ToStore::Batch { volume, .. }
            | ToStore::Announce { volume, .. }
            | ToStore::Read { volume, .. }
            | ToStore::Status { volume, .. }
            | ToStore::Changed { volume, .. }
            | ToStore::Barrier { volume, .. } => !self.is_known(*volume),
            ToStore::Stage { volume, into, .. } => {
                !self.is_known(*volume) || !self.names.contains_key(into)
            }
            ToStore::Volume { operation, .. } => match operation {
                VolumeOperation::Create { .. }
                | VolumeOperation::List
                | VolumeOperation::Trash(_) => false,
                VolumeOperation::Show { name } => !self.catalog.contains_key(volume_of(name)),
                VolumeOperation::Snapshot { name, .. }
                | VolumeOperation::Lost { name, .. }
                | VolumeOperation::AcceptLoss { name }
                | VolumeOperation::Stored { name }
                | VolumeOperation::Resize { name, .. }
                | VolumeOperation::Shrink { name, .. }
                | VolumeOperation::Delete { name } => !self.catalog.contains_key(name),
                VolumeOperation::GetAttribute { volume, .. }
                | VolumeOperation::SetAttribute { volume, .. } => !self.names.contains_key(volume),
            },
        }
    }

    /// A frame, after the location has been looked at if it names a volume that was not known.
    fn known_frame(&mut self, session: u64, lane: Lane, frame: Frame<ToStore>) {
        if !self.may_see(session, &frame.message) {
            return self.refuse_foreign(session, lane, frame.message);
        }
        let announced = match &frame.message {
            ToStore::Announce { volume, .. } => Some(*volume),
            _ => None,
        };
        if let Some(frame) = self.take_growth(session, lane, frame)
            && let Some(frame) = self.keep_to_quota(session, lane, frame)
            && let Some(frame) = self.hold(session, lane, frame)
        {
            self.allowed_frame(session, lane, frame);
        }
        if let Some(volume) = announced {
            self.notice_announced(volume);
        }
    }

    /// A frame that its session may send.
    fn allowed_frame(&mut self, session: u64, lane: Lane, frame: Frame<ToStore>) {
        let Some(frame) = self.take_snapshot_frame(session, lane, frame) else { return };
        let volume = match &frame.message {
            ToStore::Hello { .. } => {
                let code = longhaul_link::CloseCode::Protocol;
                return self.listener.close_session(session, code, "a second Hello");
            }
            ToStore::Store { request, operation } => {
                let asked = Asked { session, lane, request: *request };
                return self.store_operation(asked, operation.clone());
            }
            ToStore::Tenant { request, operation } => {
                let asked = Asked { session, lane, request: *request };
                return self.tenant_operation(asked, operation.clone());
            }
            ToStore::Attach { name, .. } => self.catalog.get(name).map(|entry| entry.spec.id),
            ToStore::Resume { volume, .. }
            | ToStore::Detach { volume, .. }
            | ToStore::Batch { volume, .. }
            | ToStore::Announce { volume, .. }
            | ToStore::Read { volume, .. }
            | ToStore::Status { volume, .. }
            | ToStore::Changed { volume, .. }
            | ToStore::Barrier { volume, .. } => self.names.contains_key(volume).then_some(*volume),
            ToStore::ReadBehind { request, volume, .. } => {
                // What may be a copy of an old flight opens nothing: the host asks again.
                if !self.engines.contains_key(volume) && !self.listener.is_proven(session) {
                    let (request, volume) = (*request, *volume);
                    let result = Err(ReadError::NotAttached);
                    let reply = ToHost::Data { request, volume, result };
                    return self.send(session, lane, reply.into());
                }
                self.names.contains_key(volume).then_some(*volume)
            }
            ToStore::Stage { request, volume, into, .. } => {
                // A volume that is not there would get an object that nothing ever deletes.
                if !self.names.contains_key(into) {
                    let (request, volume) = (*request, *volume);
                    let result = Err(StageError::Unsupported);
                    let reply = ToHost::Staged { request, volume, result };
                    return self.send(session, lane, reply.into());
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

    /// There is no such volume for the tenant whose session it is.
    fn refuse_foreign(&self, session: u64, lane: Lane, message: ToStore) {
        match message {
            ToStore::Stage { request, volume, into, .. } if !self.may_have(session, into) => {
                let result = Err(StageError::Unsupported);
                self.send(session, lane, ToHost::Staged { request, volume, result }.into());
            }
            message => self.refuse(session, lane, message),
        }
    }

    /// There is no such volume.
    fn refuse(&self, session: u64, lane: Lane, message: ToStore) {
        let damaged = named_in(&message).and_then(|name| self.unusable.get(volume_of(name)));
        let reply = match damaged {
            Some(reason) => damaged_volume(message, reason),
            None => no_such_volume(message),
        };
        if let Some(reply) = reply {
            self.send(session, lane, reply.into());
        }
    }

    /// A frame for the engine of a volume, which is this store's.
    fn hand_to_engine(
        &mut self,
        id: VolumeId,
        session: u64,
        lane: Lane,
        mut frame: Frame<ToStore>,
    ) {
        if let ToStore::Volume { request, operation } = &frame.message {
            let asked = Asked { session, lane, request: *request };
            let delete = matches!(operation, VolumeOperation::Delete { .. });
            self.reopen_if_unused(id);
            if delete {
                return self.begin_delete(id, asked);
            }
            match self.snapshot_operation(id, asked, frame) {
                Some(same) => frame = same,
                None => return,
            }
        }
        if !self.open(id) {
            return self.refuse(session, lane, frame.message);
        }
        let now = self.now();
        if let Some(engine) = self.engines.get_mut(&id) {
            if engine.sessions.insert(session) {
                engine.volume.handle_session(SessionId(session), self.watch.peer(session));
                if engine.paused {
                    self.listener.pause_drain(session, true);
                }
            }
            engine.used = true;
            engine.volume.handle_message(now, SessionId(session), lane, frame);
        }
        self.drive(id);
    }

    fn info(&self, entry: &Entry) -> VolumeInfo {
        entry.spec.info(entry.sectors, self.live(entry.spec.id))
    }

    /// What is known of a volume: of its engine, as it was when that was put away, or as its log says.
    fn live(&self, id: VolumeId) -> Option<LiveInfo> {
        let engine = self.engines.get(&id).and_then(|engine| engine.volume.info());
        let read = || self.survey.get(id, self.is_alone()).cloned();
        engine.or_else(|| self.known.get(&id).cloned()).or_else(read)
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
                            self.learn(*entry);
                        }
                        Err(error)
                    }
                };
                self.reply(&asked, &reply);
                self.next_job();
            }
            Outcome::Deleted(asked, spec, result, removing) => {
                self.working = false;
                self.note_deletion(spec.id);
                if matches!(result, Ok(()) | Err(VolumeError::NotFound)) {
                    tracing::info!("deleted volume {} ({})", spec.name, spec.id);
                    self.catalog.remove(&spec.name);
                    self.removing += usize::from(removing);
                    self.known.remove(&spec.id);
                    self.survey.forget(spec.id);
                    self.forget_snapshots_of(spec.id);
                    self.forget_claims(spec.id);
                    self.release_held(spec.id);
                    self.tell_stores();
                    if result.is_err() {
                        // Somebody else has deleted it, and there may be another one of its name.
                        self.look_around();
                    }
                } else {
                    self.names.insert(spec.id, spec.name);
                }
                self.reply(&asked, &result.map(|()| VolumeReply::Done));
                self.next_job();
            }
            Outcome::Restored(asked, result) => {
                self.working = false;
                self.restored(&asked, result);
                self.next_job();
            }
            Outcome::Purged(asked, result) => {
                self.working = false;
                self.removing += usize::from(result.is_ok());
                let reply = result.map(|()| VolumeReply::Trash(TrashReply::Purged));
                self.reply(&asked, &reply);
                self.next_job();
            }
            Outcome::Tended(id, result) => self.tended(id, result),
            Outcome::TendedAll => self.tended_all(),
            Outcome::Replied(asked, result) => self.reply(&[asked], &result),
            Outcome::Tenant(asked, changed, result) => self.told_tenant(asked, changed, result),
            Outcome::Limits(found) => self.found_limits(found),
            Outcome::Shares(reports) => self.found_shares(reports),
            Outcome::Room(found) => self.found_room(found),
            Outcome::Allowed(Ok(()), session, lane, frame) => {
                self.allowed_frame(session, lane, frame);
            }
            Outcome::Allowed(Err(error), session, lane, frame) => {
                self.refuse_snapshot(session, lane, frame.message, error);
            }
            Outcome::Attribute(asked, result, of) => {
                self.working = false;
                if let Some(volume) = of {
                    read_schedule(&self.objects, &self.outcomes.0, volume);
                }
                self.reply(&asked, &result);
                self.next_job();
            }
            Outcome::Removed(id, result) => {
                self.removing -= 1;
                self.tended(id, result);
            }
            Outcome::Cloned(asked, result) => self.cloned(asked, result),
            Outcome::Engine(volume, operation, reply) => {
                self.ask_for_clone(volume, operation, reply);
            }
            Outcome::Answered(message) => self.answered(message),
            Outcome::Scheduled(id, schedule) => self.scheduled(id, schedule),
            Outcome::Placed(id, place, session, lane, frame) => {
                self.placed(id, place, session, lane, frame);
            }
            Outcome::NotPlaced(error, session, lane, message) => {
                self.refuse_snapshot(session, lane, message, error);
            }
            Outcome::Places(number, result) => self.places(number, result),
            Outcome::Claimed(id, outcome) => self.claimed(id, outcome),
            Outcome::Forwarded(session, lane, frame) => self.send(session, lane, frame),
            Outcome::Again(id, session, lane, frame) => self.again(id, session, lane, frame),
            Outcome::Found(found) => self.found(found),
            Outcome::Stores(asked, stores) => self.listed(asked, stores),
            Outcome::Loads(asked, reports) => self.loads(asked, reports),
            Outcome::Signed(asked, party, result) => self.signed(asked, &party, result),
            Outcome::Certificate(result) => self.tended_certificate(result),
            Outcome::Forgotten(asked, result) => self.forgotten(asked, result),
            Outcome::Lives(asked, reports) => self.list(asked, reports),
            Outcome::Surveyed(id, live) => self.surveyed(id, live),
            Outcome::ListDue(number) => self.list_due(number),
            Outcome::Replica(asked, result, tell) => self.replica_answered(asked, result, tell),
            Outcome::Lost(lost) => self.second_lost(lost),
            Outcome::Built(built) => self.second_built(built),
            Outcome::Repaired(key, repaired) => self.repaired(key, repaired),
        }
    }

    /// Sends a frame to whom it is for.
    fn send(&self, session: u64, lane: Lane, frame: Frame<ToHost>) {
        let gate = (&self.guests, &self.watch);
        deliver(&self.listener, gate, &self.outcomes.0, session, lane, frame);
    }

    fn learn(&mut self, entry: Entry) {
        self.names.insert(entry.spec.id, entry.spec.name.clone());
        self.unusable.remove(&entry.spec.name);
        self.catalog.insert(entry.spec.name.clone(), entry);
    }

    fn reply(&self, asked: &[Asked], result: &Result<VolumeReply, VolumeError>) {
        for asked in asked {
            let reply = ToHost::Volume { request: asked.request, result: result.clone() };
            self.send(asked.session, asked.lane, reply.into());
        }
    }

    fn snapshot(&self) -> Snapshot {
        let volumes = self.catalog.values().map(|entry| {
            let engine = self.engines.get(&entry.spec.id);
            VolumeState {
                info: self.info(entry),
                space: engine.and_then(|engine| engine.volume.space()),
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
            tenants: self.limits.states(),
            counts: self.counts.clone(),
            map: MapMemory::of(&self.config.pages.lock()),
            datagrams: self.listener.datagrams(),
            early: self.listener.early(),
            answer_bytes: self.listener.answer_bytes(),
            waiting_bytes: self.listener.waiting_bytes(),
            cache: self.objects.cache(),
            usage: self.objects.usage(),
        }
    }
}

/// Sends a frame to a session; what the shell has asked comes back to it.
fn deliver(
    listener: &Listener,
    (guests, watch): (&Guests, &Watch),
    outcomes: &mpsc::UnboundedSender<Outcome>,
    session: u64,
    lane: Lane,
    frame: Frame<ToHost>,
) {
    if session == SHELL_SESSION.0 {
        let _ = outcomes.send(Outcome::Answered(frame.message));
    } else {
        let Frame { message, payload } = frame;
        watch.answered(session, &message);
        let message = guests.outbound(session, message);
        listener.send(session, lane, Frame { message, payload });
    }
}
