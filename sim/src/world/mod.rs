//! A world: hosts, stores, disks, links and objects around the production state machines, driven by
//! one queue of events in virtual time.
//!
//! Promises: the same seed gives the same events. The world compares each result of the machines
//! with the model at once, and the first violation of the contract ends it. It knows the machines
//! only by the interface that the shell uses.

mod announced;
mod attach;
mod cache;
mod chaos;
mod client;
mod copies;
mod copy;
mod damage;
mod datagrams;
mod finish;
mod forge;
mod host;
mod maps;
mod object;
mod observe;
mod relay;
mod replica;
mod snapshots;
mod storage;
mod store;
mod truth;
mod versions;

use crate::coverage::Coverage;
use crate::disk::Disk;
use crate::link::{Direction, Session};
use crate::model::{Branch, OpId, Ops};
use crate::note;
use crate::objects::Objects;
use crate::plan::Plan;
use crate::rng::Rng;
use crate::trace::{Mode, Trace};
use bytes::Bytes;
use longhaul_core::block::{Epoch, Range, Seq, StagedPiece, Time, VolumeId};
use longhaul_core::store::map::Place;
use longhaul_core::wire::link::{Announced, AttachError, HostId, Lane};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

const MS: u64 = 1_000_000;

/// Something that happens at a time. Events of a slot name its generation and are void when the
/// slot has a newer one.
#[derive(Debug)]
enum Event {
    Client(At),
    /// The write or sync at the front of the slot's disk queue has ended.
    DiskDone(At, u64),
    /// A read of the journal has ended: id, file, offset, bytes.
    DiskRead(At, u64, u32, u64, usize),
    /// The write or sync at the front of the cache's queue has ended.
    CacheDone(At),
    /// The write or sync at the front of the queue of the version table has ended.
    TableDone(At),
    /// A read of that table has ended: id, file, offset, bytes.
    TableRead(At, u64, u32, u64, usize),
    /// A read of the cache has ended: id, offset, bytes.
    CacheRead(At, u64, u64, usize),
    /// The process drops a volume after a fence, or starts it again.
    LetGo(At),
    HostTimer(At),
    Connect(At),
    AttachTimeout(At, u64),
    /// A refused slot tries again, or its operator acts.
    Operator(At),
    Deliver(u64, Direction, Lane),
    Datagram(u64, Direction, Bytes),
    /// A timer of the machine for datagrams.
    DatagramTimer(u64, Time),
    HostNotices(u64),
    StoreNotices(u64),
    StartHost(usize, u64),
    HostDeadline(usize, u64),
    StoreTimer(usize, u64, usize),
    StartStore(usize, u64),
    StoreDeadline(usize, u64),
    ObjectEffect(u64),
    ObjectAnswer(u64),
    Chaos,
    Observe,
    Snap,
    /// An event on the replica.
    Replica,
    Repeat(usize, u64),
    Audit,
    /// Somebody speaks for a host.
    Forge,
    /// A volume may go to another host and back.
    Relay,
    /// A host gets a report of damage.
    Tell,
    Finish,
}

/// A slot: host and volume index, and the generation that the event is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct At {
    host: usize,
    volume: usize,
    generation: u64,
}

struct Scheduled {
    time: Time,
    order: u64,
    event: Event,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        (self.time, self.order) == (other.time, other.order)
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.time, self.order).cmp(&(other.time, other.order))
    }
}

/// The state of a volume in a host's process.
enum State {
    /// Nothing.
    Down,
    /// Asks for an epoch.
    Attaching(Box<host::Attaching>),
    /// Serves it.
    Running(Box<longhaul_core::host::Volume>),
    /// Was refused.
    Refused(AttachError),
}

/// A volume at a host, with its state directory. Parts that end with a slot's journal file or
/// process are in [`State`].
struct Slot {
    /// The state directory's journal, if there is one.
    journal: Option<host::Journal>,
    /// Its read cache, which may outlive or precede the journal.
    cache: cache::Cache,
    /// Its version table, which outlives the journal.
    table: versions::Table,
    /// Ranges of reads under way, where the answers may be lies.
    asked: BTreeMap<u64, Range>,
    /// Whether the host is to have the volume attached.
    wanted: bool,
    /// Whether its operator allows it to take the volume from another host.
    take_over: bool,
    generation: u64,
    state: State,
    epoch: Epoch,
    session: Option<u64>,
    /// Since when the machine takes its link for usable.
    up_since: Option<Time>,
    /// The counted part of the read-ahead.
    ahead: [u64; 3],
    connecting: bool,
    timer: Option<Time>,
    /// Writes and syncs of the journal that are under way.
    disk_operations: storage::UnderWay,
    latched: bool,
    stopping: bool,
    detached: bool,
    /// The store it prefers.
    store: usize,
    fenced: bool,
    client: client::Client,
    /// Writes acknowledged of late: (when, seq, range), until committed.
    recent: VecDeque<(Time, Seq, Range)>,
    disk_rng: Rng,
}

struct Host {
    id: HostId,
    up: bool,
    incarnation: u64,
    slots: Vec<Slot>,
}

struct Volume {
    id: VolumeId,
    name: String,
    spec: longhaul_core::store::VolumeSpec,
    truth: truth::Truth,
    finish: finish::Stage,
    /// The last statement of a holder of the keys.
    statement: Option<longhaul_core::host::versions::Statement>,
    /// Pieces staged for it that any host may write: the newest.
    ready: VecDeque<StagedPiece>,
}

/// The messages of a session's host to the store since the beginning of the session.
#[derive(Default)]
struct Told {
    /// The identity of the host. If a host is lost for good, its successor has another one.
    host: Option<HostId>,
    announced: Vec<Announced>,
    shipped: Seq,
}

/// The world of a seed.
pub struct World {
    /// Virtual time since the beginning.
    pub now: Time,
    /// What happened.
    pub trace: Trace,
    /// What was covered.
    pub coverage: Coverage,
    /// Events that happened.
    pub steps: u64,
    plan: Plan,
    queue: BinaryHeap<Reverse<Scheduled>>,
    order: u64,
    rng: Rng,
    link_rng: Rng,
    chaos_rng: Rng,
    observer_rng: Rng,
    snap_rng: Rng,
    damage_rng: Rng,
    forge_rng: Rng,
    relay_rng: Rng,
    relay: Option<relay::Relay>,
    /// Sessions of a party that has a key of its own and speaks for hosts.
    forgers: BTreeSet<u64>,
    ops: Ops,
    liar: versions::Liar,
    /// Staged objects, by volume and number.
    staged: BTreeMap<(usize, u64), copy::Object>,
    volumes: Vec<Volume>,
    hosts: Vec<Host>,
    stores: Vec<store::Process>,
    sessions: BTreeMap<u64, (Session, Told)>,
    branches: BTreeMap<(usize, Epoch), Branch>,
    objects: Objects,
    /// The replica of all objects, if there is one.
    replica: Option<replica::ReplicaObjects>,
    /// Engines of snapshots.
    readers: Vec<snapshots::Reader>,
    /// Open questions about snapshots, by request.
    questions: Vec<snapshots::Question>,
    /// Roots of snapshots, after their comparison with the segments.
    verified_pins: BTreeMap<String, Vec<Option<Place>>>,
    /// By store.
    copies: Vec<Option<copies::StoreCache>>,
    pending_objects: BTreeMap<u64, object::Pending>,
    next_number: u64,
    finishing: bool,
    finished: bool,
    violation: Option<String>,
}

/// The end of a world.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The first violation of the contract.
    pub violation: Option<String>,
    /// What was covered.
    pub coverage: Coverage,
    /// Events that happened.
    pub steps: u64,
    /// Hash of the trace.
    pub hash: u64,
    /// Virtual time that passed.
    pub time: Time,
}

/// Runs the world of a seed until the final check has passed or something is wrong.
#[must_use]
pub fn run(seed: u64, mode: Mode, step_limit: u64) -> Outcome {
    let mut world = World::new(seed, mode);
    world.run(step_limit);
    Outcome {
        violation: world.violation,
        coverage: world.coverage,
        steps: world.steps,
        hash: world.trace.hash(),
        time: world.now,
    }
}

impl World {
    /// The world of a seed, at its beginning.
    #[must_use]
    pub fn new(seed: u64, mode: Mode) -> World {
        let root = Rng::new(seed);
        let plan = Plan::new(&mut root.fork(1));
        let mut rng = root.fork(2);
        let volumes =
            plan.volumes.iter().enumerate().map(|(n, v)| Volume::new(n, v, &mut rng)).collect();
        let hosts = (0..plan.hosts)
            .map(|host| Host {
                id: HostId(rng.wide()),
                up: true,
                incarnation: 0,
                slots: (0..plan.volumes.len())
                    .map(|volume| Slot::new(&root, host, volume))
                    .collect(),
            })
            .collect();
        let objects = Objects::new(root.fork(3), plan.odds, plan.object_latency);
        let mut world = World {
            now: Time(0),
            trace: Trace::new(mode),
            coverage: Coverage::default(),
            steps: 0,
            queue: BinaryHeap::new(),
            order: 0,
            rng,
            link_rng: root.fork(4),
            chaos_rng: root.fork(5),
            observer_rng: root.fork(6),
            snap_rng: root.fork(7),
            damage_rng: root.fork(300_000),
            forge_rng: root.fork(400_000),
            relay_rng: root.fork(500_000),
            relay: None,
            forgers: BTreeSet::new(),
            ops: Ops::default(),
            liar: versions::Liar::default(),
            staged: BTreeMap::new(),
            volumes,
            hosts,
            stores: (0..2).map(|_| store::Process::new()).collect(),
            sessions: BTreeMap::new(),
            branches: BTreeMap::new(),
            objects,
            replica: World::replica(&root, &plan),
            copies: (0..2).map(|n| copies::StoreCache::new(root.fork(200_000 + n))).collect(),
            readers: Vec::new(),
            questions: Vec::new(),
            verified_pins: BTreeMap::new(),
            pending_objects: BTreeMap::new(),
            next_number: 0,
            finishing: false,
            finished: false,
            violation: None,
            plan,
        };
        note!(world, "plan {:?}", world.plan);
        for volume in 0..world.volumes.len() {
            let host = world.rng.index(world.hosts.len());
            world.hosts[host].slots[volume].wanted = true;
            world.start_slot(host, volume);
        }
        let first = world.plan.calm;
        world.after(first, Event::Chaos);
        world.after(30 * MS, Event::Observe);
        world.after(35 * MS, Event::Snap);
        for store in 0..world.stores.len() {
            world.start_repeating(store);
        }
        if world.replica.is_some() {
            world.after(50 * MS, Event::Replica);
        }
        world.after(20 * MS, Event::Audit);
        world.after(40 * MS, Event::Tell);
        if world.plan.forgery > 0 {
            world.after(25 * MS, Event::Forge);
        }
        if world.plan.relays {
            world.after(45 * MS, Event::Relay);
        }
        let end = world.plan.chaos;
        world.after(end, Event::Finish);
        world
    }

    fn run(&mut self, step_limit: u64) {
        let (mut same, mut at) = (0, Time(0));
        while self.violation.is_none() && !self.finished {
            let Some(Reverse(next)) = self.queue.pop() else {
                self.fail("nothing will ever happen again, and not everything is done".to_owned());
                break;
            };
            self.steps += 1;
            same = if next.time == at { same + 1 } else { 0 };
            at = next.time;
            if same > 20_000 {
                self.fail(format!("time stands still; the event is {:?}", next.event));
                break;
            }
            if self.steps > step_limit {
                self.fail(format!("not done after {step_limit} steps"));
                break;
            }
            self.now = next.time;
            self.handle(next.event);
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Client(at) => self.live(at, |w| w.client_wakes(at.host, at.volume)),
            Event::DiskDone(at, id) => self.live(at, |w| w.disk_done(at.host, at.volume, id)),
            Event::DiskRead(at, id, file, offset, bytes) => {
                self.live(at, |w| w.disk_read_done(at.host, at.volume, id, (file, offset, bytes)));
            }
            Event::CacheDone(at) => self.live(at, |w| w.cache_done(at.host, at.volume)),
            Event::CacheRead(at, id, offset, bytes) => {
                self.live(at, |w| w.cache_read_done(at.host, at.volume, id, offset, bytes));
            }
            Event::TableDone(at) => self.live(at, |w| w.table_done(at.host, at.volume)),
            Event::TableRead(at, id, file, offset, bytes) => {
                let place = (file, offset, bytes);
                self.live(at, |w| w.table_read_done(at.host, at.volume, id, place));
            }
            Event::LetGo(at) => self.live(at, |w| w.let_go(at.host, at.volume)),
            Event::HostTimer(at) => self.live(at, |w| w.host_timer(at.host, at.volume)),
            Event::Connect(at) => self.live(at, |w| w.connect(at.host, at.volume)),
            Event::AttachTimeout(at, request) => {
                self.live(at, |w| w.attach_timeout(at.host, at.volume, request));
            }
            Event::Operator(at) => self.live(at, |w| w.operator(at.host, at.volume)),
            Event::Deliver(session, direction, lane) => self.deliver(session, direction, lane),
            Event::Datagram(session, direction, bytes) => self.datagram(session, direction, bytes),
            Event::DatagramTimer(session, due) => self.datagram_timer(session, due),
            Event::HostNotices(session) => self.host_notices(session),
            Event::StoreNotices(session) => self.store_notices(session),
            Event::StartHost(host, incarnation) => {
                if self.hosts[host].incarnation == incarnation {
                    self.start_host(host);
                }
            }
            Event::HostDeadline(host, incarnation) => {
                if self.hosts[host].incarnation == incarnation {
                    self.host_deadline(host);
                }
            }
            Event::StoreTimer(store, incarnation, volume) => {
                if self.stores[store].incarnation == incarnation {
                    self.store_timer(store, volume);
                }
            }
            Event::StartStore(store, incarnation) => {
                if self.stores[store].incarnation == incarnation {
                    self.start_store(store);
                }
            }
            Event::StoreDeadline(store, incarnation) => {
                if self.stores[store].incarnation == incarnation {
                    self.store_deadline(store);
                }
            }
            Event::ObjectEffect(number) => self.object_effect(number),
            Event::ObjectAnswer(number) => self.object_answer(number),
            Event::Chaos => self.chaos(),
            Event::Observe => self.observe(),
            Event::Snap => self.snap(),
            Event::Replica => self.look_at_replica(),
            Event::Repeat(store, incarnation) => {
                if self.stores[store].incarnation == incarnation {
                    self.repeater_timer(store);
                }
            }
            Event::Audit => self.audit(),
            Event::Forge => self.forge(),
            Event::Relay => self.relay(),
            Event::Tell => self.tell_damage(),
            Event::Finish => self.finish(),
        }
    }

    fn live(&mut self, at: At, action: impl FnOnce(&mut World)) {
        if self.hosts[at.host].slots[at.volume].generation == at.generation {
            action(self);
        }
    }

    fn at(&self, host: usize, volume: usize) -> At {
        At { host, volume, generation: self.hosts[host].slots[volume].generation }
    }

    fn slot(&mut self, host: usize, volume: usize) -> &mut Slot {
        &mut self.hosts[host].slots[volume]
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    fn after(&mut self, delay: u64, event: Event) {
        self.schedule(Time(self.now.0 + delay), event);
    }

    fn schedule(&mut self, time: Time, event: Event) {
        self.order += 1;
        self.queue.push(Reverse(Scheduled { time: time.max(self.now), order: self.order, event }));
    }

    /// Ends the world because of a violation of the contract.
    fn fail(&mut self, reason: String) {
        note!(self, "VIOLATION {reason}");
        self.violation.get_or_insert(reason);
    }

    fn require(&mut self, result: Result<(), String>) {
        if let Err(reason) = result {
            self.fail(reason);
        }
    }
}

impl Slot {
    fn new(root: &Rng, host: usize, volume: usize) -> Slot {
        let label = 1000 + 100 * host as u64 + 2 * volume as u64;
        Slot {
            journal: None,
            cache: cache::Cache::new(root.fork(label + 100_000)),
            table: versions::Table::new(root.fork(label + 400_000)),
            asked: BTreeMap::new(),
            wanted: false,
            take_over: false,
            generation: 0,
            state: State::Down,
            epoch: 0,
            session: None,
            up_since: None,
            ahead: [0; 3],
            connecting: false,
            timer: None,
            disk_operations: storage::UnderWay::default(),
            latched: false,
            stopping: false,
            detached: false,
            store: 0,
            fenced: false,
            client: client::Client::new(root.fork(label)),
            recent: VecDeque::new(),
            disk_rng: root.fork(label + 1),
        }
    }

    /// The machine, if the slot serves its volume.
    fn machine(&mut self) -> Option<&mut longhaul_core::host::Volume> {
        match &mut self.state {
            State::Running(machine) => Some(machine),
            _ => None,
        }
    }

    fn disk(&mut self) -> Option<&mut Disk> {
        self.journal.as_mut().map(|journal| &mut journal.disk)
    }
}

/// The write numbers of a log as far as both logs go, if they agree.
fn agree(a: &[OpId], b: &[OpId]) -> bool {
    a.iter().zip(b).all(|(a, b)| a == b)
}
