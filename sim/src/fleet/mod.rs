//! A world of several stores over one object location, from one seed.
//!
//! Each store runs the procedures of [`longhaul_core::store::fleet`], and the engines of its
//! volumes. The world executes each effect at a time of its own, so the procedures of several
//! stores interleave in any order. The location, the questions between stores and the stores
//! themselves fail.

mod answer;
mod chaos;
pub mod coverage;
mod engines;
mod finish;
mod host;
mod objects;
mod operation;
mod operator;
mod peers;
mod place;
mod requests;
mod service;
mod store;
mod task;
mod tend;
mod truth;

use crate::note;
use crate::rng::Rng;
use crate::trace::{Mode, Trace};
use coverage::Coverage;
use host::{Host, Session};
use longhaul_core::block::{Time, VolumeId};
use longhaul_core::wire::link::{Frame, ToHost, ToStore};
use objects::PendingObject;
use operator::Operator;
use peers::Peering;
use place::{MS, Place, SECOND};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use store::Store;
use tend::Entry;
use truth::Truth;

/// The time at which a world begins, in seconds since 1970.
const EPOCH: u64 = 1_700_000_000;

/// The result of a world.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The first violation of the contract, if the world found one.
    pub violation: Option<String>,
    /// Counters of the events in this world.
    pub coverage: Coverage,
    /// Number of handled events.
    pub steps: u64,
    /// Hash of the trace; 0 without a trace.
    pub hash: u64,
    /// The virtual time at the end.
    pub time: Time,
}

/// An event on the queue of the world.
#[derive(Debug)]
enum Event {
    Paused(u64),
    ObjectEffect(u64),
    ObjectAnswer(u64),
    EngineTimer(usize, u64, VolumeId, u64),
    CallArrives(u64),
    CallAnswered(u64),
    CallTimeout(u64),
    Up(u64, Box<Frame<ToStore>>),
    Down(u64, Box<Frame<ToHost>>),
    HostNotices(u64),
    StoreNotices(u64),
    HostWakes(usize, u64),
    StoreTick(usize, u64),
    StoreStarts(usize),
    StoreDeadline(usize, u64),
    Operator,
    OperationArrives(u64, u64),
    OperationAnswered(u64, u64),
    Chaos,
    Finish,
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

/// The properties that the seed chooses for the whole world.
struct Plan {
    /// Duration of the faults in nanoseconds.
    length: u64,
    /// The time in seconds that the data of a deleted volume stays.
    grace: u64,
    /// Longest pause between two operations of the operator, in nanoseconds.
    pace: u64,
    /// Whether stores die without an order to stop.
    crashes: bool,
    partitions: bool,
    tenants: bool,
}

struct World {
    now: Time,
    queue: BinaryHeap<Reverse<Scheduled>>,
    order: u64,
    steps: u64,
    next_number: u64,
    rng: Rng,
    trace: Trace,
    coverage: Coverage,
    violation: Option<String>,
    plan: Plan,
    place: Place,
    stores: Vec<Store>,
    hosts: Vec<Host>,
    sessions: BTreeMap<u64, Session>,
    tasks: BTreeMap<u64, Entry>,
    pending: BTreeMap<u64, PendingObject>,
    peering: Peering,
    truths: BTreeMap<VolumeId, Truth>,
    operator: Operator,
    end: finish::End,
}

/// Runs the world of a seed, for at most `step_limit` events.
#[must_use]
pub fn run(seed: u64, mode: Mode, step_limit: u64) -> Outcome {
    let mut world = World::new(seed, mode);
    world.begin();
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
    fn new(seed: u64, mode: Mode) -> World {
        let root = Rng::new(seed ^ 0xf1ee_7000_0000_0000);
        let mut rng = root.fork(1);
        let plan = Plan {
            length: rng.between(60, 400) * SECOND,
            grace: [0, 30, 100, 100_000][rng.index(4)],
            pace: rng.spread(100 * MS, 3 * SECOND),
            crashes: rng.percent(70),
            partitions: rng.percent(70),
            tenants: rng.percent(50),
        };
        let stores = rng.between(2, 4) as usize;
        let hosts = rng.between(1, 4) as usize;
        World {
            now: Time(0),
            queue: BinaryHeap::new(),
            order: 0,
            steps: 0,
            next_number: 0,
            trace: Trace::new(mode),
            coverage: Coverage::default(),
            violation: None,
            place: Place::new(root.fork(2)),
            stores: (0..stores).map(|at| Store::new(at, &mut rng)).collect(),
            hosts: (0..hosts).map(|at| Host::new(at, root.fork(100 + at as u64))).collect(),
            sessions: BTreeMap::new(),
            tasks: BTreeMap::new(),
            pending: BTreeMap::new(),
            peering: Peering::new(root.fork(3)),
            truths: BTreeMap::new(),
            operator: Operator::new(root.fork(4), plan.tenants),
            end: finish::End::default(),
            plan,
            rng: root.fork(5),
        }
    }

    fn begin(&mut self) {
        for store in 0..self.stores.len() {
            // Any store but the first may start late.
            let late = store > 0 && self.rng.percent(30);
            let delay = if late { self.rng.below(self.plan.length / 2) } else { 0 };
            self.after(delay, Event::StoreStarts(store));
        }
        for host in 0..self.hosts.len() {
            self.after(2 * SECOND, Event::HostWakes(host, 0));
        }
        self.after(SECOND, Event::Operator);
        self.after(SECOND, Event::Chaos);
        self.after(self.plan.length, Event::Finish);
    }

    fn run(&mut self, step_limit: u64) {
        while self.violation.is_none() && !self.end.is_done() {
            let Some(Reverse(next)) = self.queue.pop() else {
                self.fail("nothing will ever happen again".to_owned());
                break;
            };
            self.steps += 1;
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
            Event::Paused(task) => self.paused(task),
            Event::ObjectEffect(number) => self.object_effect(number),
            Event::ObjectAnswer(number) => self.object_answer(number),
            Event::EngineTimer(store, incarnation, volume, engine) => {
                if self.stores[store].incarnation == incarnation {
                    self.engine_timer(store, volume, engine);
                }
            }
            Event::CallArrives(number) => self.call_arrives(number),
            Event::CallAnswered(number) => self.call_answered(number),
            Event::CallTimeout(number) => self.call_timeout(number),
            Event::Up(session, frame) => self.frame_up(session, *frame),
            Event::Down(session, frame) => self.frame_down(session, &frame.message),
            Event::HostNotices(session) => self.host_notices(session),
            Event::StoreNotices(session) => self.store_notices(session),
            Event::HostWakes(host, generation) => {
                if self.hosts[host].generation == generation {
                    self.host_wakes(host);
                }
            }
            Event::StoreTick(store, incarnation) => {
                if self.stores[store].incarnation == incarnation {
                    self.store_tick(store);
                }
            }
            Event::StoreStarts(store) => self.start_store(store),
            Event::StoreDeadline(store, incarnation) => {
                if self.stores[store].incarnation == incarnation {
                    self.crash(store);
                }
            }
            Event::Operator => self.operator_wakes(),
            Event::OperationArrives(number, attempt) => self.operation_arrives(number, attempt),
            Event::OperationAnswered(number, attempt) => self.operation_answered(number, attempt),
            Event::Chaos => self.chaos(),
            Event::Finish => self.finish(),
        }
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

    /// The time in seconds since 1970, by the clock of a store.
    fn clock(&self, store: usize) -> u64 {
        (EPOCH + self.now.0 / SECOND).saturating_add_signed(self.stores[store].skew)
    }

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
