//! The outputs of an engine: messages to send, events to log, and operations on objects.
//!
//! The queue tries a failed operation again until it succeeds, whatever its purpose. It also
//! repeats the read of an object that has to exist, for the time of
//! [`Config::missing_wait`](super::super::Config::missing_wait).

use super::super::catalog;
use super::super::event::Event;
use super::super::object::{
    Copies, GetError, ObjectOperation, ObjectResult, OperationQueue, Pending, PutError,
    StorageError,
};
use super::super::session::SessionId;
use super::facts::Facts;
use super::purpose::{ObjectOutcome, ObjectPurpose};
use super::reply::ReplyAddress;
use crate::block::{STAGED_BIT, Time};
use crate::wire::link::{Frame, Lane, ToHost, VolumeError, VolumeReply};
use bytes::Bytes;
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

/// Events that the engine keeps for a store service that does not take them; it drops later ones.
const EVENTS_MAX: usize = 4096;
/// The number of reads of a missing root: then the engine lists the roots anew.
const ROOT_TRIES: u32 = 3;
/// Objects that the engine remembers as gone after that: no read waits for them again.
const GONE_MAX: usize = 1024;
/// Failures of a read after which the engine reports that it cannot read the object. With the
/// pauses of [`Config::retry`](super::super::Config::retry) this takes some seconds.
const UNREADABLE: u32 = 6;

/// A finished operation: its purpose, its key, and its result.
pub(super) type FinishedOperation = (ObjectPurpose, String, ObjectOutcome);

/// No operation of that number is under way.
pub(super) struct UnknownOperation;

/// The outputs to poll.
pub(super) struct Outputs {
    messages: VecDeque<(SessionId, Lane, Frame<ToHost>)>,
    events: VecDeque<Event>,
    operations: OperationQueue<ObjectPurpose>,
    /// Objects that are not there although the log names them.
    gone: BTreeSet<String>,
}

impl Outputs {
    pub fn new(retry: (Duration, Duration)) -> Outputs {
        Outputs {
            messages: VecDeque::new(),
            events: VecDeque::new(),
            operations: OperationQueue::new(retry),
            gone: BTreeSet::new(),
        }
    }

    pub fn send(&mut self, session: SessionId, lane: Lane, message: ToHost) {
        self.send_frame(session, lane, message.into());
    }

    pub fn send_frame(&mut self, session: SessionId, lane: Lane, frame: Frame<ToHost>) {
        self.messages.push_back((session, lane, frame));
    }

    /// Answers an operation on the volume.
    pub fn reply(&mut self, to: ReplyAddress, result: Result<VolumeReply, VolumeError>) {
        let ReplyAddress { session, lane, request } = to;
        self.send(session, lane, ToHost::Volume { request, result });
    }

    pub fn poll_message(&mut self) -> Option<(SessionId, Lane, Frame<ToHost>)> {
        self.messages.pop_front()
    }

    /// Drops what a session would have got.
    pub fn forget(&mut self, session: SessionId) {
        self.messages.retain(|(other, ..)| *other != session);
    }

    pub fn event(&mut self, event: Event) {
        if self.events.len() < EVENTS_MAX {
            self.events.push_back(event);
        }
    }

    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    pub fn put(&mut self, purpose: ObjectPurpose, key: String, data: Vec<Bytes>) {
        self.operations.issue(purpose, ObjectOperation::Put { key, data });
    }

    /// Reads all of an object. No copy of it will do.
    pub fn read(&mut self, purpose: ObjectPurpose, key: String) {
        self.get(purpose, key, None, Copies::Refused);
    }

    /// Reads a range of an object. No copy of it will do.
    pub fn read_range(&mut self, purpose: ObjectPurpose, key: String, range: std::ops::Range<u64>) {
        self.get(purpose, key, Some(range), Copies::Refused);
    }

    pub fn get(
        &mut self,
        purpose: ObjectPurpose,
        key: String,
        range: Option<std::ops::Range<u64>>,
        copies: Copies,
    ) {
        self.operations.issue(purpose, ObjectOperation::Get { key, range, copies });
    }

    pub fn list(&mut self, purpose: ObjectPurpose, prefix: String) {
        self.operations.issue(purpose, ObjectOperation::List { prefix });
    }

    pub fn delete(&mut self, key: String) {
        self.operations.issue(ObjectPurpose::Delete, ObjectOperation::Delete { key });
    }

    pub fn poll_object(&mut self) -> Option<(u64, ObjectOperation)> {
        self.operations.poll()
    }

    pub fn handle_timeout(&mut self, now: Time) {
        self.operations.handle_timeout(now);
    }

    pub fn poll_timeout(&self) -> Option<Time> {
        self.operations.poll_timeout()
    }

    pub fn has_operations(&self) -> bool {
        !self.operations.is_empty()
    }

    /// Forgets operations that nobody waits for any more.
    pub fn retain(&mut self, keeps: impl Fn(&ObjectPurpose) -> bool) {
        self.operations.retain(keeps);
    }

    /// Gives up all operations. They may have their effect or not.
    pub fn take_operations(&mut self) -> impl Iterator<Item = ObjectPurpose> + use<> {
        self.operations.take_all().map(|pending| pending.purpose)
    }

    /// An object that was gone is there again.
    pub fn returned(&mut self, key: &str) {
        self.gone.remove(key);
    }

    /// Takes the outcome of an operation. Returns `None` if the operation continues, unchanged or
    /// as another one. The volume may have deleted segments up to `deleted`.
    pub fn finish(
        &mut self,
        facts: &Facts,
        id: u64,
        result: ObjectResult,
        deleted: u64,
    ) -> Result<Option<FinishedOperation>, UnknownOperation> {
        let mut pending = self.operations.finish(id).ok_or(UnknownOperation)?;
        let outcome = match (&pending.operation, result) {
            (ObjectOperation::Put { .. }, ObjectResult::Put(Ok(())))
            | (ObjectOperation::Delete { .. }, ObjectResult::Delete(Ok(()))) => {
                Ok(ObjectOutcome::Done)
            }
            (ObjectOperation::Put { .. }, ObjectResult::Put(Err(PutError::Exists))) => {
                Ok(ObjectOutcome::Exists)
            }
            (ObjectOperation::Get { .. }, ObjectResult::Get(result)) => match result {
                Ok(data) => {
                    self.gone.remove(pending.operation.key());
                    Ok(ObjectOutcome::Data(data))
                }
                Err(GetError::NotFound) => {
                    if let Some(operation) = in_parent(facts, &pending.operation) {
                        self.operations.reissue(Pending { operation, ..pending });
                        return Ok(None);
                    }
                    if self.may_return(facts, &mut pending, deleted) {
                        pending.missing += 1;
                        // The retry begins at the volume's own key again.
                        if let ObjectOperation::Get { key, .. } = &mut pending.operation
                            && let Some((_, number)) = catalog::parse_data_key(key)
                        {
                            *key = facts.data_key(number);
                        }
                        Err(StorageError::unavailable(
                            "the object store does not find it, but it existed",
                        ))
                    } else {
                        Ok(ObjectOutcome::NotFound)
                    }
                }
                // Equal to an object that ends before its first byte.
                Err(GetError::Damaged(_)) => Ok(ObjectOutcome::Data(Bytes::new())),
                Err(GetError::Failed(error)) => Err(error),
            },
            (
                ObjectOperation::List { .. } | ObjectOperation::ListAfter { .. },
                ObjectResult::List(Ok(list)),
            ) => Ok(ObjectOutcome::List(list)),
            (_, ObjectResult::Put(Err(PutError::Failed(error))))
            | (_, ObjectResult::List(Err(error)) | ObjectResult::Delete(Err(error))) => Err(error),
            // The result belongs to another kind of operation: ask again.
            _ => Err(StorageError::unavailable("the result is of another kind than the operation")),
        };
        let key = pending.operation.key().to_owned();
        match outcome {
            Ok(outcome) => Ok(Some((pending.purpose, key, outcome))),
            Err(error) => Ok(self.failed(facts, pending, key, error)),
        }
    }

    fn failed(
        &mut self,
        facts: &Facts,
        pending: Pending<ObjectPurpose>,
        key: String,
        error: StorageError,
    ) -> Option<FinishedOperation> {
        // Neither an answer of a lagging copy alone, nor a failure of a moment.
        let stays = pending.missing == 2 || pending.missing == 0 && pending.failures == UNREADABLE;
        if stays && matches!(pending.operation, ObjectOperation::Get { .. }) {
            self.event(Event::Unreadable { key: key.clone() });
        }
        let failures = pending.failures.saturating_add(1);
        self.event(Event::Retry { key: key.clone(), error, failures });
        // The next generation finds the objects that this one could not delete.
        if matches!(pending.purpose, ObjectPurpose::Delete) {
            return Some((pending.purpose, key, ObjectOutcome::Done));
        }
        self.operations.retry(facts.now(), pending);
        None
    }

    /// Whether to wait for an object that seems to be missing.
    fn may_return(
        &mut self,
        facts: &Facts,
        pending: &mut Pending<ObjectPurpose>,
        deleted: u64,
    ) -> bool {
        let key = pending.operation.key();
        if !pending.purpose.is_known() || self.gone.contains(key) {
            return false;
        }
        match pending.purpose {
            ObjectPurpose::ScanLog { number, .. } if number <= deleted => return false,
            ObjectPurpose::ReadRoot(_) | ObjectPurpose::ReadPin(_) | ObjectPurpose::ReadBase(_) => {
                // The list had it: unless a store has deleted it since, like an old one.
                return pending.missing < ROOT_TRIES;
            }
            _ => {}
        }
        let since = *pending.missing_since.get_or_insert(facts.now());
        if facts.now() < since.after(facts.config().missing_wait) {
            return true;
        }
        if self.gone.len() < GONE_MAX {
            self.gone.insert(key.to_owned());
        }
        false
    }
}

/// Where to look next for a staged object that a clone does not have: at its next parent.
fn in_parent(facts: &Facts, operation: &ObjectOperation) -> Option<ObjectOperation> {
    let ObjectOperation::Get { key, range, copies } = operation else { return None };
    let (volume, number) = catalog::parse_data_key(key).filter(|(_, n)| n & STAGED_BIT != 0)?;
    let spec = facts.spec();
    let mut chain = std::iter::once(spec.id).chain(spec.parents.iter().map(|parent| parent.volume));
    chain.find(|id| *id == volume)?;
    let key = catalog::data_key(chain.next()?, number);
    Some(ObjectOperation::Get { key, range: range.clone(), copies: *copies })
}
