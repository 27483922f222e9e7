//! Operations on objects, from a store process to the object store and back.

use super::replica::Answer;
use super::{Event, World};
use crate::note;
use crate::objects::{Course, Fate};
use bytes::{Bytes, BytesMut};
use longhaul_core::store::catalog;
use longhaul_core::store::replica::{Moment, Site};
use longhaul_core::store::{
    Copies, GetError, ObjectOperation, ObjectResult, PutError, StorageError,
};

/// An operation under way.
pub struct Pending {
    store: usize,
    /// Of the process, and of the engine in it.
    incarnation: (u64, u64),
    volume: usize,
    id: u64,
    /// Where, and for whom unless it is an engine.
    site: Site,
    repeats: bool,
    /// The operations that had ended when it began.
    began: Option<Moment>,
    operation: ObjectOperation,
    fate: Fate,
    result: Option<ObjectResult>,
    /// A late put outlives its answer.
    answered: bool,
}

impl World {
    /// A store process begins an operation.
    pub(super) fn begin_object(
        &mut self,
        store: usize,
        volume: usize,
        id: u64,
        operation: ObjectOperation,
    ) {
        let put = matches!(operation, ObjectOperation::Put { .. });
        if let ObjectOperation::Get { key, copies: Copies::Welcome, .. } = &operation
            && catalog::parse_fragment_key(self.volumes[volume].id, key).is_some()
        {
            self.coverage.map_pages_read += 1;
        }
        let number = self.number();
        let mut pending = Pending {
            store,
            incarnation: self.engine_now(store, volume),
            volume,
            id,
            site: Site::Home,
            repeats: false,
            began: self.stores[store].repeater.as_ref().map(|repeater| repeater.machine.begin()),
            operation,
            fate: Fate::Works,
            result: None,
            answered: false,
        };
        if let ObjectOperation::Delete { key } = &pending.operation
            && self.delete_later(store, key)
        {
            note!(self, "s{store} v{volume} object {} later", describe(&pending.operation));
            pending.result = Some(ObjectResult::Delete(Ok(())));
            self.pending_objects.insert(number, pending);
            self.schedule(self.now, Event::ObjectAnswer(number));
            return self.pump_repeater(store);
        }
        let course = self.objects.course(self.now, put);
        note!(self, "s{store} v{volume} object {} {:?}", describe(&pending.operation), course.fate);
        pending.fate = course.fate;
        self.begin_pending(number, pending, course);
    }

    /// A store process begins to repeat something.
    pub(super) fn begin_repeated(
        &mut self,
        store: usize,
        id: u64,
        site: Site,
        operation: ObjectOperation,
    ) {
        let now = self.now;
        let put = matches!(operation, ObjectOperation::Put { .. });
        let objects = match &mut self.replica {
            Some(replica) if site == Site::Away => &mut replica.objects,
            _ => &mut self.objects,
        };
        let course = objects.course(now, put);
        note!(self, "s{store} {site:?} object {} {:?}", describe(&operation), course.fate);
        let number = self.number();
        let pending = Pending {
            store,
            incarnation: (self.stores[store].incarnation, 0),
            volume: self.volume_of_key(operation.key()).unwrap_or_default(),
            id,
            site,
            repeats: true,
            began: None,
            operation,
            fate: course.fate,
            result: None,
            answered: false,
        };
        self.begin_pending(number, pending, course);
    }

    fn begin_pending(&mut self, number: u64, pending: Pending, course: Course) {
        self.pending_objects.insert(number, pending);
        if course.fate != Fate::FailsBefore {
            self.schedule(course.effect, Event::ObjectEffect(number));
        }
        self.schedule(course.answer, Event::ObjectAnswer(number));
    }

    pub(super) fn object_effect(&mut self, number: u64) {
        let Some(mut pending) = self.pending_objects.remove(&number) else { return };
        let result = match &pending.operation {
            operation if pending.site == Site::Away => self.second_effect(operation, pending.fate),
            ObjectOperation::Put { key, data } => {
                let mut bytes = BytesMut::new();
                for part in data {
                    bytes.extend_from_slice(part);
                }
                let bytes = bytes.freeze();
                let own = self.objects.map.get(key).is_some_and(|there| *there == bytes);
                if self.objects.create(key, &bytes) {
                    note!(self, "s{} put {key} takes effect", pending.store);
                    self.object_created(
                        pending.store,
                        pending.incarnation,
                        pending.volume,
                        key,
                        &bytes,
                    );
                    if self.stores[pending.store].incarnation == pending.incarnation.0 {
                        self.keep_copy(pending.store, key, &bytes);
                    }
                    match pending.fate {
                        Fate::ExistsOwn => {
                            self.coverage.puts_exist_own += 1;
                            ObjectResult::Put(Err(PutError::Exists))
                        }
                        _ => ObjectResult::Put(Ok(())),
                    }
                } else {
                    if own {
                        self.coverage.puts_exist_own += 1;
                    } else {
                        self.coverage.puts_exist_other += 1;
                    }
                    ObjectResult::Put(Err(PutError::Exists))
                }
            }
            ObjectOperation::Get { key, range: Some(range), copies } => {
                let (key, range, copies) = (key.clone(), range.clone(), *copies);
                ObjectResult::Get(self.read_data(pending.store, &key, &range, copies))
            }
            ObjectOperation::Get { key, range: None, .. } => ObjectResult::Get(self.get(key, None)),
            operation @ (ObjectOperation::List { .. } | ObjectOperation::ListAfter { .. }) => {
                self.object_at_once(operation)
            }
            ObjectOperation::Delete { key } => {
                let key = key.clone();
                self.object_deleted(pending.volume, &key);
                self.objects.map.remove(&key);
                ObjectResult::Delete(Ok(()))
            }
        };
        pending.result = Some(result);
        if !pending.answered {
            self.pending_objects.insert(number, pending);
        }
    }

    pub(super) fn get(
        &self,
        key: &str,
        range: Option<&std::ops::Range<u64>>,
    ) -> Result<Bytes, GetError> {
        let object = self.objects.map.get(key).ok_or(GetError::NotFound)?;
        let Some(range) = range else { return Ok(object.clone()) };
        let end = range.end.min(object.len() as u64);
        let start = range.start.min(end);
        Ok(object.slice(start as usize..end as usize))
    }

    pub(super) fn object_answer(&mut self, number: u64) {
        let Some(mut pending) = self.pending_objects.remove(&number) else { return };
        let failed = || StorageError::unavailable("injected failure");
        let result = match (pending.fate, pending.result.take()) {
            (Fate::FailsBefore | Fate::FailsAfter | Fate::Late, _) => match &pending.operation {
                ObjectOperation::Put { .. } => {
                    match pending.fate {
                        Fate::FailsAfter => self.coverage.puts_failed_after += 1,
                        Fate::Late => self.coverage.puts_late += 1,
                        _ => self.coverage.puts_failed_before += 1,
                    }
                    ObjectResult::Put(Err(PutError::Failed(failed())))
                }
                ObjectOperation::Get { .. } => {
                    self.coverage.gets_failed += 1;
                    ObjectResult::Get(Err(GetError::Failed(failed())))
                }
                ObjectOperation::List { .. } | ObjectOperation::ListAfter { .. } => {
                    ObjectResult::List(Err(failed()))
                }
                ObjectOperation::Delete { .. } => ObjectResult::Delete(Err(failed())),
            },
            (_, Some(result)) => result,
            (_, None) => {
                return self.fail("an object operation was answered before its effect".to_owned());
            }
        };
        let (store, incarnation, volume, id) =
            (pending.store, pending.incarnation, pending.volume, pending.id);
        let repeats = pending.repeats;
        let repeated = pending.began.map(|began| (began, pending.operation.clone()));
        if pending.fate == Fate::Late {
            pending.answered = true;
            self.pending_objects.insert(number, pending);
        }
        if repeats {
            if self.stores[store].incarnation == incarnation.0 {
                self.repeated(store, id, result);
            }
            return;
        }
        let mut answer = Some(Answer { volume, incarnation, id, result });
        // The process knows of it even if the engine that wanted it is gone.
        if let Some((began, operation)) = repeated
            && self.stores[store].incarnation == incarnation.0
            && let Some(ended) = answer.take()
        {
            answer = self.repeat(store, began, &operation, ended);
        }
        if let Some(answer) = answer
            && self.engine_now(store, volume) == incarnation
        {
            self.object_done(store, volume, id, answer.result);
        }
    }
}

fn describe(operation: &ObjectOperation) -> String {
    match operation {
        ObjectOperation::Put { key, data } => {
            format!("put {key} {} B", data.iter().map(Bytes::len).sum::<usize>())
        }
        ObjectOperation::Get { key, range, .. } => format!("get {key} {range:?}"),
        ObjectOperation::List { prefix } => format!("list {prefix}"),
        ObjectOperation::ListAfter { after, .. } => format!("list after {after}"),
        ObjectOperation::Delete { key } => format!("delete {key}"),
    }
}
