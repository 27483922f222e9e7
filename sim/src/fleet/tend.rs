//! Executes the effects of procedures.

use super::objects::Origin;
use super::place::Fate;
use super::requests::Asker;
use super::task::{Done, Task};
use super::{Event, World};
use crate::note;
use longhaul_core::block::{Time, VolumeId};
use longhaul_core::store::fleet::{Effect, EffectResult, Note};
use longhaul_core::store::{ObjectOperation, ObjectResult, VolumeSpec, catalog};
use longhaul_core::wire::link::VolumeError;

/// The purpose of a procedure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Aim {
    /// To find the store of a volume, and to take the volume if that is possible.
    Claim(VolumeId),
    /// A change of the catalog, and the recipient of its answer.
    Job(Asker),
    /// To remove the data of a volume, after a purge or after a deletion without a grace time.
    Remove(VolumeId),
    /// To take the next step for a deleted volume.
    Tend(VolumeId),
    /// An operation that waits for no other change: number and attempt.
    Operation(u64, u64),
    /// To decide whether a volume may grow, for an operation: number and attempt.
    Growth(u64, u64),
    /// To look at the location, for volumes and for records of deleted volumes.
    LookVolumes,
    LookRecords,
    /// The steps of a start.
    StartStores,
    StartMember,
    StartCatalog,
    StartRecords,
    /// To remove the registration of another store.
    Forget,
}

/// The object operations of one effect.
struct Many {
    operations: Vec<ObjectOperation>,
    results: Vec<Option<ObjectResult>>,
    next: usize,
    at_once: usize,
    under_way: usize,
    failed: bool,
}

/// A procedure in progress at a store.
pub(super) struct Entry {
    pub store: usize,
    pub aim: Aim,
    pub began: Time,
    task: Box<dyn Task>,
    many: Option<Many>,
    /// Whether a fault affected one of its object operations.
    pub troubled: bool,
    /// The key of the name object that it read last, and the volume of that name. Each further
    /// operation clears this, except a deletion.
    pub looked: Option<(String, VolumeId)>,
    /// The volume that got its name by a put of this procedure.
    named: Option<VolumeSpec>,
    /// The volume of the name that it deleted last. A look at that name clears this.
    freed: Option<VolumeSpec>,
    /// The records that it put after the decision to remove everything. If its store dies before it
    /// can remove them, nobody does.
    pub left: Vec<(VolumeId, String)>,
    /// Whether another store left one of its questions without an answer.
    pub unanswered: bool,
}

impl World {
    /// Starts a procedure at a store. Returns its number.
    pub(super) fn start(&mut self, store: usize, aim: Aim, task: Box<dyn Task>) -> u64 {
        let number = self.number();
        note!(self, "s{store} task {number} {aim:?}");
        self.tasks.insert(
            number,
            Entry {
                store,
                aim,
                began: self.now,
                task,
                many: None,
                looked: None,
                named: None,
                freed: None,
                left: Vec::new(),
                troubled: false,
                unanswered: false,
            },
        );
        self.go_on(number);
        number
    }

    fn go_on(&mut self, number: u64) {
        let Some(entry) = self.tasks.get_mut(&number) else { return };
        while let Some(note) = entry.task.poll_note() {
            if self.trace.wanted() {
                let (Note::Debug(text) | Note::Warning(text) | Note::Error(text)) = note;
                self.trace.line(self.now, format_args!("task {number} notes {text}"));
            }
        }
        if let Some(done) = entry.task.poll_done() {
            let Some(entry) = self.tasks.remove(&number) else { return };
            note!(self, "task {number} is done {}", super::answer::show(&done));
            return self.task_done(entry, done);
        }
        let Some(effect) = entry.task.poll_effect() else { return };
        let store = entry.store;
        match effect {
            Effect::Object(operation) => {
                self.begin_object(store, Origin::Task(number, 0), operation);
            }
            Effect::Objects { operations, at_once } => {
                let results = operations.iter().map(|_| None).collect();
                entry.many = Some(Many {
                    operations,
                    results,
                    next: 0,
                    at_once,
                    under_way: 0,
                    failed: false,
                });
                self.begin_more(number);
            }
            Effect::Peer { store: to, operation, .. } => {
                note!(self, "task {number} asks {to} {operation:?}");
                self.call_store(store, to, operation, Some(number));
            }
            Effect::Engine { volume, operation } => {
                note!(self, "task {number} asks the engine of {volume} {operation:?}");
                self.ask_engine(store, volume, operation, Asker::Task(number));
            }
            Effect::Pause(pause) => {
                self.coverage.claims_again += u64::from(matches!(entry.aim, Aim::Claim(_)));
                let whole = pause.as_nanos() as u64;
                let pause = whole / 2 + self.rng.below(whole / 2 + 1);
                self.after(pause, Event::Paused(number));
            }
        }
    }

    fn begin_more(&mut self, number: u64) {
        loop {
            let Some(entry) = self.tasks.get_mut(&number) else { return };
            let store = entry.store;
            let Some(many) = &mut entry.many else { return };
            if many.under_way == 0 && (many.failed || many.next == many.operations.len()) {
                break;
            }
            let full = many.under_way >= many.at_once.max(1);
            if full || many.failed || many.next == many.operations.len() {
                return;
            }
            let (index, operation) = (many.next, many.operations[many.next].clone());
            many.next += 1;
            many.under_way += 1;
            self.begin_object(store, Origin::Task(number, index), operation);
        }
        let Some(many) = self.tasks.get_mut(&number).and_then(|entry| entry.many.take()) else {
            return;
        };
        let mut results = Vec::new();
        for result in many.results.into_iter().map_while(|result| result) {
            let failed = result.is_failed();
            results.push(result);
            if failed {
                break;
            }
        }
        self.result(number, EffectResult::Objects(results));
    }

    /// Whether a procedure belongs to an operation that waits for no other change. The only such
    /// change of a volume is a clone.
    pub(super) fn is_operation(&self, task: u64) -> bool {
        self.tasks.get(&task).is_some_and(|entry| matches!(entry.aim, Aim::Operation(..)))
    }

    /// Whether a procedure takes the next step for a deleted volume.
    pub(super) fn is_tending(&self, task: u64) -> bool {
        self.tasks.get(&task).is_some_and(|entry| matches!(entry.aim, Aim::Tend(_)))
    }

    /// The name that a procedure has looked at right before this operation, if any.
    pub(super) fn look_of(
        &mut self,
        task: u64,
        operation: &ObjectOperation,
    ) -> Option<(String, VolumeId)> {
        let entry = self.tasks.get_mut(&task)?;
        match operation {
            // A deletion may fail, and the procedure then repeats it.
            ObjectOperation::Delete { .. } => entry.looked.clone(),
            _ => entry.looked.take(),
        }
    }

    /// Notes that a procedure reads an object. Only names matter.
    pub(super) fn note_look(&mut self, task: u64, key: &str) {
        let spec = self.place.map.get(key).and_then(|data| catalog::decode_spec(key, data).ok());
        let Some(entry) = self.tasks.get_mut(&task) else { return };
        let freed = entry.freed.take_if(|freed| catalog::name_key(&freed.name) == key);
        if let Some(spec) = spec {
            let again = freed.is_some_and(|freed| freed.id == spec.id);
            self.coverage.named_again += u64::from(again);
            entry.looked = Some((key.to_owned(), spec.id));
        }
    }

    /// Notes that a procedure has deleted the name of a volume.
    pub(super) fn note_freed(&mut self, task: u64, spec: &VolumeSpec) {
        if let Some(entry) = self.tasks.get_mut(&task) {
            entry.freed = Some(spec.clone());
        }
    }

    /// Whether a procedure has deleted the name of a volume, and has not looked at the name since.
    pub(super) fn has_freed(&self, task: u64, spec: &VolumeSpec) -> bool {
        let freed = self.tasks.get(&task).and_then(|entry| entry.freed.as_ref());
        freed.is_some_and(|freed| freed.id == spec.id && freed.name == spec.name)
    }

    /// Notes that a put of a procedure has given a volume its name.
    pub(super) fn note_named(&mut self, task: u64, spec: &VolumeSpec) {
        if let Some(entry) = self.tasks.get_mut(&task) {
            entry.named = Some(spec.clone());
        }
    }

    /// Takes the result of an object operation. After the last one of an effect, the procedure gets
    /// the results.
    pub(super) fn operated(&mut self, task: u64, index: usize, result: ObjectResult, fate: Fate) {
        let Some(entry) = self.tasks.get_mut(&task) else { return };
        entry.troubled |= fate != Fate::Works;
        let Some(many) = &mut entry.many else {
            return self.result(task, EffectResult::Object(result));
        };
        many.under_way -= 1;
        many.failed |= result.is_failed();
        many.results[index] = Some(result);
        self.begin_more(task);
    }

    pub(super) fn paused(&mut self, task: u64) {
        self.result(task, EffectResult::Paused);
    }

    /// Hands the result of an effect to its procedure.
    pub(super) fn result(&mut self, task: u64, result: EffectResult) {
        let Some(entry) = self.tasks.get(&task) else { return };
        let now = self.clock(entry.store);
        if let Some(entry) = self.tasks.get_mut(&task) {
            entry.unanswered |= result == EffectResult::Peer(None);
            entry.task.handle(now, result);
        }
        self.go_on(task);
    }

    /// Drops the procedures of a dead store. Returns their number.
    pub(super) fn drop_tasks(&mut self, store: usize) -> usize {
        let mut lost = 0;
        for (_, entry) in self.tasks.extract_if(.., |_, entry| entry.store == store) {
            lost += 1;
            for (volume, key) in entry.left {
                if let Some(truth) = self.truths.get_mut(&volume) {
                    truth.late.insert(key);
                }
            }
        }
        lost
    }

    fn task_done(&mut self, entry: Entry, done: Done) {
        let store = entry.store;
        match (entry.aim.clone(), done) {
            (Aim::Claim(volume), Done::Claimed(outcome)) => {
                let checked = self.check_claim(&entry, volume, &outcome);
                self.require(checked);
                self.claimed(store, volume, outcome);
            }
            (Aim::Job(asker), done) => self.job_done(store, &asker, done),
            (Aim::Remove(volume) | Aim::Tend(volume), Done::Tended(result)) => {
                self.tended(store, volume, result, entry.aim);
            }
            (Aim::Operation(number, attempt), done) => {
                let checked = self.check_refused(&entry, &done);
                self.require(checked);
                self.operation_done(store, (number, attempt), done, entry.troubled);
            }
            (Aim::Growth(number, attempt), Done::Allowed(result)) => {
                self.growth(store, (number, attempt), result);
            }
            (Aim::LookVolumes, Done::Changes(result)) => self.looked(store, result, &entry),
            (Aim::LookRecords, Done::Records(result)) => self.looked_at_records(store, result),
            (_, done) => self.start_goes_on(store, done),
        }
    }

    /// Checks that a refused clone has lost the name that its procedure had given to it.
    fn check_refused(&self, entry: &Entry, done: &Done) -> Result<(), String> {
        let (Done::Cloned(Err(error)), Some(spec)) = (done, &entry.named) else { return Ok(()) };
        // After a failure of the location or of a store, the clone may keep its name.
        if matches!(error, VolumeError::Store(_)) {
            return Ok(());
        }
        // Other requests may restore the clone, or repeat the request for it.
        let others = self.truths.get(&spec.id).is_none_or(|truth| {
            let fate = &truth.fate;
            fate.restored > 0 || fate.restores + fate.again > 0
        });
        let key = catalog::name_key(&spec.name);
        let there = self.place.map.get(&key).and_then(|data| catalog::decode_spec(&key, data).ok());
        if !others && there.as_ref() == Some(spec) {
            return Err(format!("clone {} is refused, and keeps its name", spec.name));
        }
        Ok(())
    }
}
