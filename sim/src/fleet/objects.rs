//! Object operations on their way from a procedure or an engine to the location and back.

use super::place::{Fate, failure};
use super::{Event, World};
use crate::note;
use longhaul_core::block::{Time, VolumeId};
use longhaul_core::store::{ObjectMeta, ObjectOperation, ObjectResult, PutError};

/// The requester of an object operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A procedure, and the index of the operation within its effect.
    Task(u64, usize),
    /// The volume and the number of an engine, and its number for the operation.
    Engine(VolumeId, u64, u64),
}

/// An object operation in progress.
pub(super) struct PendingObject {
    pub store: usize,
    incarnation: u64,
    pub origin: Origin,
    pub operation: ObjectOperation,
    pub fate: Fate,
    /// Whether the procedure of a clone began the operation. That procedure may be over by now.
    pub of_clone: bool,
    /// The key of the name object that the procedure read last, and the volume that had the name.
    pub looked: Option<(String, VolumeId)>,
    result: Option<ObjectResult>,
    /// The objects on the pages of a list so far.
    pages: Vec<ObjectMeta>,
    /// Whether the requester has its answer. A late operation takes effect after that.
    answered: bool,
}

impl World {
    pub(super) fn begin_object(
        &mut self,
        store: usize,
        origin: Origin,
        operation: ObjectOperation,
    ) {
        let mut course = self.place.course(self.now, &operation);
        let of_clone = match origin {
            Origin::Task(task, _) => self.is_operation(task),
            Origin::Engine(..) => false,
        };
        if course.fate == Fate::Works {
            let delay = match of_clone {
                true => self.may_delete_parent(&operation),
                false => self.may_restore_otherwise(&operation),
            };
            course.effect.0 += delay;
            course.answer.0 += delay;
        }
        let number = self.number();
        note!(self, "s{store} {origin:?} #{number} {} {:?}", describe(&operation), course.fate);
        let looked = match origin {
            Origin::Task(task, _) => self.look_of(task, &operation),
            Origin::Engine(..) => None,
        };
        let pending = PendingObject {
            looked,
            store,
            incarnation: self.stores[store].incarnation,
            origin,
            operation,
            fate: course.fate,
            of_clone,
            result: None,
            pages: Vec::new(),
            answered: false,
        };
        let list = is_list(&pending.operation) && course.fate == Fate::Works;
        self.pending.insert(number, pending);
        if course.fate != Fate::FailsBefore {
            self.schedule(course.effect, Event::ObjectEffect(number));
        }
        if !list {
            self.schedule(course.answer, Event::ObjectAnswer(number));
        }
    }

    pub(super) fn object_effect(&mut self, number: u64) {
        let Some(mut pending) = self.pending.remove(&number) else { return };
        if is_list(&pending.operation) {
            return self.read_page(number, pending);
        }
        let result = match &pending.operation {
            ObjectOperation::Put { key, .. } => {
                let put = self.place.at_once(&pending.operation);
                if put == ObjectResult::Put(Ok(())) {
                    note!(self, "#{number} creates {key}");
                    self.may_die(&pending, key);
                    let checked = self.object_created(&pending);
                    self.require(checked);
                    self.coverage.names_late +=
                        u64::from(pending.fate == Fate::Late && key.starts_with("volumes/"));
                    self.coverage.puts_late += u64::from(pending.fate == Fate::Late);
                    self.coverage.puts_done += u64::from(pending.fate == Fate::FailsAfter);
                    if pending.fate == Fate::ExistsOwn {
                        self.coverage.puts_exist += 1;
                        ObjectResult::Put(Err(PutError::Exists))
                    } else {
                        put
                    }
                } else {
                    put
                }
            }
            ObjectOperation::Delete { key } => {
                if self.place.map.contains_key(key) {
                    note!(self, "#{number} deletes {key}");
                    let checked = self.object_deleted(&pending);
                    self.require(checked);
                    self.coverage.deletes_done += u64::from(pending.fate != Fate::Works);
                }
                self.place.at_once(&pending.operation)
            }
            ObjectOperation::Get { key, .. } => {
                if let Origin::Task(task, _) = pending.origin {
                    self.note_look(task, key);
                }
                self.place.at_once(&pending.operation)
            }
            _ => self.place.at_once(&pending.operation),
        };
        pending.result = Some(result);
        if !pending.answered {
            self.pending.insert(number, pending);
        }
    }

    /// Lets a store die soon after the put of a name or of a record about a deleted volume. After
    /// such a decision deaths are more frequent than at other times. They are most frequent after
    /// the name of a clone whose parent has lost its own. The same holds after a name that the
    /// newest record of the volume does not have.
    fn may_die(&mut self, pending: &PendingObject, key: &str) {
        let store = pending.store;
        let odds = match key.split('/').next() {
            Some("volumes") if pending.of_clone && self.is_orphan(&pending.operation) => 50,
            Some("volumes") if self.is_overtaken(&pending.operation) => 50,
            Some("volumes") => 5,
            Some("deleted") => 2,
            _ => return,
        };
        if self.plan.crashes && !self.end.is_quiet() && self.rng.percent(odds) {
            let incarnation = self.stores[store].incarnation;
            let delay = self.rng.below(20_000_000);
            self.after(delay, Event::StoreDeadline(store, incarnation));
        }
    }

    /// Reads the next page of a list.
    fn read_page(&mut self, number: u64, mut pending: PendingObject) {
        let (prefix, from) = match &pending.operation {
            ObjectOperation::List { prefix } => (prefix.clone(), String::new()),
            ObjectOperation::ListAfter { prefix, after } => (prefix.clone(), after.clone()),
            _ => return,
        };
        let from = pending.pages.last().map_or(from, |last| last.key.clone());
        // A list within one volume has many keys, so its pages are larger. Small pages make changes
        // between two pages of the other lists frequent.
        let size = if prefix.starts_with("v/") && prefix.len() > 2 { 4 } else { 1 };
        let page = self.place.page * size;
        let mut more: Vec<ObjectMeta> = self.place.list(&prefix, &from).take(page + 1).collect();
        let complete = more.len() <= page;
        more.truncate(page);
        pending.pages.extend(more);
        let delay = self.place.latency();
        if complete {
            if pending.pages.len() > page {
                let now: Vec<ObjectMeta> = self.place.list(&prefix, "").collect();
                self.coverage.lists_torn += u64::from(now != pending.pages);
            }
            pending.result = Some(ObjectResult::List(Ok(std::mem::take(&mut pending.pages))));
            self.after(delay, Event::ObjectAnswer(number));
        } else {
            self.after(delay, Event::ObjectEffect(number));
        }
        self.pending.insert(number, pending);
    }

    pub(super) fn object_answer(&mut self, number: u64) {
        let Some(mut pending) = self.pending.remove(&number) else { return };
        let fate = pending.fate;
        let result = match (fate, pending.result.take()) {
            (Fate::FailsBefore | Fate::FailsAfter | Fate::Late, _) | (_, None) => {
                let put = matches!(pending.operation, ObjectOperation::Put { .. });
                self.coverage.puts_failed += u64::from(fate == Fate::FailsBefore && put);
                failure(&pending.operation)
            }
            (_, Some(result)) => result,
        };
        let (store, incarnation, origin) = (pending.store, pending.incarnation, pending.origin);
        if fate == Fate::Late {
            pending.answered = true;
            self.pending.insert(number, pending);
        }
        if self.stores[store].incarnation != incarnation {
            return;
        }
        note!(self, "#{number} {}", brief(&result));
        match origin {
            Origin::Task(task, index) => self.operated(task, index, result, fate),
            Origin::Engine(volume, engine, id) => {
                self.engine_object(store, volume, engine, id, result);
            }
        }
    }

    /// Decides the outcome of the operations that a dead store has in progress. Each one either
    /// takes effect or is lost. Late puts take effect in any case.
    pub(super) fn orphan_objects(&mut self, store: usize) {
        let numbers: Vec<u64> = self.pending.keys().copied().collect();
        for number in numbers {
            let of = self.pending.get(&number).is_some_and(|pending| {
                pending.store == store && pending.result.is_none() && pending.fate != Fate::Late
            });
            if !of {
                continue;
            }
            let deletes = self
                .pending
                .get(&number)
                .is_some_and(|pending| matches!(pending.operation, ObjectOperation::Delete { .. }));
            let done = self.rng.percent(50);
            if deletes && done {
                self.object_effect(number);
            }
            if deletes || !done {
                self.pending.remove(&number);
            }
        }
    }

    /// Ends all faults of the location.
    pub(super) fn calm_place(&mut self) {
        self.place.odds = super::place::Odds::default();
        self.place.away_until = Time(0);
    }
}

fn is_list(operation: &ObjectOperation) -> bool {
    matches!(operation, ObjectOperation::List { .. } | ObjectOperation::ListAfter { .. })
}

fn describe(operation: &ObjectOperation) -> String {
    match operation {
        ObjectOperation::Put { key, data } => {
            let bytes: usize = data.iter().map(bytes::Bytes::len).sum();
            format!("put {key} {bytes} B")
        }
        ObjectOperation::Get { key, range, .. } => format!("get {key} {range:?}"),
        ObjectOperation::List { prefix } => format!("list {prefix}"),
        ObjectOperation::ListAfter { prefix, after } => format!("list {prefix} after {after}"),
        ObjectOperation::Delete { key } => format!("delete {key}"),
    }
}

fn brief(result: &ObjectResult) -> String {
    match result {
        ObjectResult::Get(Ok(bytes)) => format!("{} B", bytes.len()),
        ObjectResult::List(Ok(list)) => {
            let keys: Vec<&str> = list.iter().map(|meta| meta.key.as_str()).collect();
            format!("list of {}: {}", keys.len(), keys.join(" "))
        }
        other => format!("{other:?}"),
    }
}
