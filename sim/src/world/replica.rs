//! A replica of the objects. Its state equals an earlier state of home, at any moment. It holds
//! everything that was promised to be at both places.
//!
//! Every store process repeats its operations there, and forgets the unfinished ones when it dies.
//! Both places fail on their own.

use super::{Event, MS, World};
use crate::model::{Image, difference};
use crate::note;
use crate::objects::{Fate, Objects, Odds};
use crate::plan::ReplicaPlan;
use crate::rng::Rng;
use bytes::Bytes;
use longhaul_core::block::{Range, Seq, Time};
use longhaul_core::store::replica::{Limits, Replica, StreamId};
use longhaul_core::store::{
    self, GetError, ObjectMeta, ObjectOperation, ObjectResult, PutError, SessionId, StorageError,
    catalog,
};
use longhaul_core::wire::link::{Lane, MAX_READ_SECTORS, ToStore};
use std::collections::BTreeMap;
use std::time::Duration;

/// The replica of a world.
pub struct ReplicaObjects {
    pub(super) plan: ReplicaPlan,
    pub(super) objects: Objects,
    rng: Rng,
    /// For each volume, the last number that was promised to be at both places.
    pub(super) promised: BTreeMap<usize, Seq>,
    /// The number of segments of each volume at the final look.
    looked: Option<Vec<u64>>,
    /// Of each volume, its sectors and what was in them after each segment.
    pub(super) images: Vec<BTreeMap<u64, (u64, Image)>>,
}

/// The part of a store process that repeats what it does.
pub struct Repeater {
    pub(super) machine: Replica,
    timer: Option<Time>,
    /// Answers for engines after the operation at both places, by number. Each has volume, engine,
    /// operation and outcome.
    waiting: BTreeMap<u64, Answer>,
}

/// An answer for an engine.
pub struct Answer {
    pub(super) volume: usize,
    pub(super) incarnation: (u64, u64),
    pub(super) id: u64,
    pub(super) result: ObjectResult,
}

impl Repeater {
    fn new(now: Time, plan: &ReplicaPlan) -> Repeater {
        let limits = Limits {
            window: 3,
            held_bytes: 128 << 10,
            entries: plan.entries,
            visits: 2,
            retry: (Duration::from_millis(5), Duration::from_millis(200)),
        };
        Repeater { machine: Replica::new(now, limits), timer: None, waiting: BTreeMap::new() }
    }
}

impl World {
    pub(super) fn replica(rng: &Rng, plan: &crate::plan::Plan) -> Option<ReplicaObjects> {
        let plan_of = plan.replica?;
        Some(ReplicaObjects {
            plan: plan_of,
            objects: Objects::new(rng.fork(9), plan.odds, plan_of.latency),
            rng: rng.fork(10),
            promised: BTreeMap::new(),
            looked: None,
            images: vec![BTreeMap::new(); plan.volumes.len()],
        })
    }

    /// A store process has started: nobody knows what the one before has left to do.
    pub(super) fn start_repeating(&mut self, store: usize) {
        let Some(replica) = &self.replica else { return };
        let mut repeater = Repeater::new(self.now, &replica.plan);
        for volume in &self.volumes {
            repeater.machine.visit(self.now, StreamId::Volume(volume.id));
        }
        self.stores[store].repeater = Some(repeater);
        self.pump_repeater(store);
    }

    /// An operation of an engine has ended at home. Whether its answer is to wait.
    pub(super) fn repeat(
        &mut self,
        store: usize,
        began: store::replica::Moment,
        operation: &ObjectOperation,
        answer: Answer,
    ) -> Option<Answer> {
        let now = self.now;
        let (Some(repeater), Some(replica)) = (&mut self.stores[store].repeater, &self.replica)
        else {
            return Some(answer);
        };
        let ObjectOperation::Put { key, data } = operation else { return Some(answer) };
        let data = match &answer.result {
            ObjectResult::Put(Ok(())) => Some(&data[..]),
            ObjectResult::Put(Err(PutError::Exists)) => None,
            _ => return Some(answer),
        };
        let number = repeater.machine.put(now, began, key, data, replica.plan.sync);
        let answer = match number {
            Some(number) if replica.plan.sync => {
                repeater.waiting.insert(number, answer);
                None
            }
            _ => Some(answer),
        };
        self.pump_repeater(store);
        answer
    }

    /// An engine wants to delete an object: that happens when it may. False if nothing else has to
    /// agree.
    pub(super) fn delete_later(&mut self, store: usize, key: &str) -> bool {
        let now = self.now;
        let Some(repeater) = &mut self.stores[store].repeater else { return false };
        repeater.machine.delete(now, key, false).is_some()
    }

    /// A store begins with a volume that another one may have had.
    pub(super) fn visit_replica(&mut self, store: usize, volume: usize) {
        let (now, id) = (self.now, self.volumes[volume].id);
        if let Some(repeater) = &mut self.stores[store].repeater {
            repeater.machine.visit(now, StreamId::Volume(id));
        }
        self.pump_repeater(store);
    }

    pub(super) fn leave_replica(&mut self, store: usize, volume: usize) {
        let (now, id) = (self.now, self.volumes[volume].id);
        if let Some(repeater) = &mut self.stores[store].repeater {
            repeater.machine.leave(now, id);
        }
        self.pump_repeater(store);
    }

    pub(super) fn pump_repeater(&mut self, store: usize) {
        loop {
            let Some(repeater) = &mut self.stores[store].repeater else { return };
            if let Some((id, site, operation)) = repeater.machine.poll_operation() {
                self.begin_repeated(store, id, site, operation);
            } else if let Some(number) = repeater.machine.poll_repeated() {
                self.coverage.repeated += 1;
                let Some(answer) = repeater.waiting.remove(&number) else { continue };
                if self.engine_now(store, answer.volume) == answer.incarnation {
                    self.object_done(store, answer.volume, answer.id, answer.result);
                }
            } else {
                break;
            }
        }
        let incarnation = self.stores[store].incarnation;
        let Some(repeater) = &mut self.stores[store].repeater else { return };
        if let Some(reason) = repeater.machine.fenced() {
            let reason = format!("store {store} thinks that somebody has gone on: {reason}");
            return self.fail(reason);
        }
        if let Some(due) = repeater.machine.poll_timeout()
            && repeater.timer.is_none_or(|timer| due < timer)
        {
            repeater.timer = Some(due);
            self.schedule(due, Event::Repeat(store, incarnation));
        }
    }

    pub(super) fn repeater_timer(&mut self, store: usize) {
        let now = self.now;
        let Some(repeater) = &mut self.stores[store].repeater else { return };
        repeater.timer = None;
        repeater.machine.handle_timeout(now);
        self.pump_repeater(store);
    }

    pub(super) fn repeated(&mut self, store: usize, id: u64, result: ObjectResult) {
        let now = self.now;
        let Some(repeater) = &mut self.stores[store].repeater else { return };
        repeater.machine.handle_operation(now, id, result);
        self.pump_repeater(store);
    }

    /// An operation takes effect there.
    pub(super) fn second_effect(
        &mut self,
        operation: &ObjectOperation,
        fate: Fate,
    ) -> ObjectResult {
        let Some(replica) = &mut self.replica else {
            return ObjectResult::List(Err(StorageError::unavailable("there is no replica")));
        };
        match operation {
            ObjectOperation::Put { key, data } => {
                let data = Bytes::from(data.concat());
                let created = replica.objects.create(key, &data);
                if let Some(home) = self.objects.map.get(key)
                    && replica.objects.map[key] != *home
                {
                    self.fail(format!("{key} is another one there"));
                }
                match fate {
                    Fate::Works if created => ObjectResult::Put(Ok(())),
                    _ => ObjectResult::Put(Err(PutError::Exists)),
                }
            }
            ObjectOperation::Delete { key } => {
                replica.objects.map.remove(key);
                self.coverage.second_deletes += 1;
                ObjectResult::Delete(Ok(()))
            }
            _ => at_once(&replica.objects.map, operation),
        }
    }

    /// Something goes wrong on the replica, or home is lost this very moment. Checks that the
    /// replica is usable.
    pub(super) fn look_at_replica(&mut self) {
        if self.finishing {
            return;
        }
        let Some(replica) = &mut self.replica else { return };
        if replica.rng.percent(15) {
            let length = replica.rng.spread(20 * MS, 1500 * MS);
            note!(self, "the replica goes away for {} ms", length / MS);
            self.coverage.second_outages += 1;
            replica.objects.away_until = Time(self.now.0 + length);
        }
        let next = replica.rng.spread(10 * MS, 400 * MS);
        for volume in 0..self.volumes.len() {
            let checked = self.check_second(volume, false);
            self.require(checked.map_err(|e| format!("volume {volume}, home being lost: {e}")));
        }
        self.after(next, Event::Replica);
    }

    pub(super) fn end_second_faults(&mut self) {
        if let Some(replica) = &mut self.replica {
            replica.objects.odds = Odds::default();
            replica.objects.away_until = Time(0);
        }
    }

    /// Whether the replica has everything that home has, at the end, and is usable.
    pub(super) fn second_is_done(&mut self) -> bool {
        if self.replica.is_none() {
            return true;
        }
        let idle = |process: &super::store::Process| {
            process.repeater.as_ref().is_some_and(|repeater| repeater.machine.is_idle())
        };
        if !self.stores.iter().all(idle) {
            return false;
        }
        // If an operation took effect when nobody waited for it any more, the next start finds it.
        let segments: Vec<u64> = self.volumes.iter().map(|volume| volume.truth.segments).collect();
        if let Some(replica) = &mut self.replica
            && replica.looked.replace(segments.clone()) != Some(segments)
        {
            for volume in 0..self.volumes.len() {
                self.visit_replica(0, volume);
            }
            return false;
        }
        for volume in 0..self.volumes.len() {
            let checked = self.check_second(volume, true);
            self.require(checked.map_err(|e| format!("volume {volume}, there at the end: {e}")));
        }
        true
    }

    /// Opens a volume there, reads all of it, and compares.
    fn check_second(&mut self, volume: usize, whole: bool) -> Result<(), String> {
        let config = store::Config { proves_segments: false, ..self.store_config() };
        let spec = self.volumes[volume].spec.clone();
        let mut packer = self.packer(volume);
        let Some(replica) = &mut self.replica else { return Ok(()) };
        // A store that opens it there also writes. The world forgets these writes.
        let (map, id) = (&mut replica.objects.map.clone(), spec.id);
        let mut now = self.now;
        let incarnation = replica.rng.wide();
        let mut machine = store::Volume::open(now, spec.clone(), incarnation, config.clone());
        drive(map, &mut machine, &mut now, |machine| machine.info().is_some())?;
        let (number, committed) = (machine.state().number, machine.state().committed);
        let sectors = machine.sectors().unwrap_or_default();
        let promised = replica.promised.get(&volume).copied().unwrap_or_default();
        if committed < promised {
            return Err(format!("it holds {committed} writes, {promised} were promised"));
        }
        if number == 0 && !whole {
            return Ok(());
        }
        let truth = &self.volumes[volume].truth;
        if whole && number != truth.segments {
            return Err(format!("it ends with segment {number}, at home with {}", truth.segments));
        }
        let Some((expected_sectors, expected)) = replica.images[volume].get(&number) else {
            return if number == 0 {
                Ok(())
            } else {
                Err(format!("nobody wrote segment {number}"))
            };
        };
        if sectors != *expected_sectors {
            return Err(format!("it has {sectors} sectors, not {expected_sectors}"));
        }
        let mut image = expected.clone();
        let mut lba = 0;
        while lba < sectors {
            let range = Range::new(lba, MAX_READ_SECTORS.min(sectors - lba));
            let message = ToStore::Read { request: lba, volume: id, epoch: 0, range };
            machine.handle_message(now, SessionId(1), Lane::Read, message.into());
            let mut answer = None;
            drive(map, &mut machine, &mut now, |machine| {
                answer = machine.poll_message();
                answer.is_some()
            })?;
            if let Some((_, _, frame)) = answer {
                let found = super::observe::shown(range, &frame, &mut packer)?;
                image[range.lba as usize..range.end() as usize].copy_from_slice(&found);
            }
            lba = range.end();
        }
        self.coverage.second_opened += 1;
        self.coverage.second_behind += u64::from(number < truth.segments);
        if let Some(difference) = difference(expected, &image) {
            return Err(format!("after segment {number} {difference}"));
        }
        if machine.state().epoch() == 0 {
            return Ok(());
        }
        // The store that took over writes, and then the next one opens the volume.
        machine.handle_fence(now);
        drive(map, &mut machine, &mut now, |machine| machine.state().number > number)?;
        let written = machine.state().number;
        let mut next = store::Volume::open(now, spec, incarnation.wrapping_add(1), config);
        drive(map, &mut next, &mut now, |next| next.info().is_some())?;
        let (found, holds) = (next.state().number, next.state().committed);
        if (found, holds) != (written, committed) {
            return Err(format!("after segment {written} another store finds {found}"));
        }
        Ok(())
    }

    /// Home has a new segment: remembers the content of the volume at this moment.
    pub(super) fn remember_image(&mut self, volume: usize) {
        let truth = &self.volumes[volume].truth;
        if let Some(replica) = &mut self.replica {
            replica.images[volume].insert(truth.segments, (truth.sectors, truth.image.clone()));
        }
    }

    pub(super) fn volume_of_key(&self, key: &str) -> Option<usize> {
        let (id, _) = catalog::parse_volume_key(key)?;
        self.volumes.iter().position(|volume| volume.id == id)
    }
}

/// Lets an engine go on with these objects until that is so.
fn drive(
    map: &mut BTreeMap<String, Bytes>,
    machine: &mut store::Volume,
    now: &mut Time,
    mut done: impl FnMut(&mut store::Volume) -> bool,
) -> Result<(), String> {
    let mut asked = None;
    for _ in 0..100_000 {
        if done(machine) {
            return Ok(());
        }
        if let Some((number, operation)) = machine.poll_object() {
            let result = match &operation {
                ObjectOperation::Put { key, data } if !map.contains_key(key) => {
                    map.insert(key.clone(), data.concat().into());
                    ObjectResult::Put(Ok(()))
                }
                _ => at_once(map, &operation),
            };
            machine.handle_object(*now, number, result);
            asked = Some(operation);
        } else if let Some(due) = machine.poll_timeout() {
            *now = due.max(*now);
            machine.handle_timeout(*now);
        } else {
            break;
        }
    }
    Err(format!("it does not open, or answer: {:?}, after {asked:?}", machine.failed()))
}

/// The outcome of an operation that changes nothing, on these objects.
pub(super) fn at_once(map: &BTreeMap<String, Bytes>, operation: &ObjectOperation) -> ObjectResult {
    match operation {
        ObjectOperation::Put { key, .. } => ObjectResult::Put(Err(if map.contains_key(key) {
            PutError::Exists
        } else {
            PutError::Failed(StorageError::unavailable("an observer puts nothing"))
        })),
        ObjectOperation::Get { key, range, .. } => {
            let Some(object) = map.get(key) else {
                return ObjectResult::Get(Err(GetError::NotFound));
            };
            let whole = 0..object.len() as u64;
            let range = range.clone().unwrap_or(whole.clone());
            let end = range.end.min(whole.end);
            ObjectResult::Get(Ok(object.slice(range.start.min(end) as usize..end as usize)))
        }
        ObjectOperation::List { prefix } => ObjectResult::List(Ok(listed(map, prefix, ""))),
        ObjectOperation::ListAfter { prefix, after } => {
            ObjectResult::List(Ok(listed(map, prefix, after)))
        }
        ObjectOperation::Delete { .. } => ObjectResult::Delete(Ok(())),
    }
}

pub(super) fn listed(map: &BTreeMap<String, Bytes>, prefix: &str, after: &str) -> Vec<ObjectMeta> {
    let found = map.range(prefix.to_owned()..).take_while(|(key, _)| key.starts_with(prefix));
    let found = found.filter(|(key, _)| key.as_str() > after);
    found.map(|(key, data)| ObjectMeta { key: key.clone(), bytes: data.len() as u64 }).collect()
}
