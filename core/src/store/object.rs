//! The requests of an engine to an object store, and the queue of those in progress.
//!
//! The queue tries a failed operation again, unchanged, after a pause that doubles. It keeps the
//! operation meanwhile. The queue does not know the purpose of any operation.

use crate::block::Time;
use crate::wire::link::VolumeError;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Whether a copy of an object's bytes, kept elsewhere, will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    /// No: the engine reads the objects of the log from the object store itself.
    Refused,
    /// Yes: the read is for data, and the engine verifies data.
    Welcome,
    /// No: what came does not verify, and if it was a copy that is bad.
    Bad,
}

/// An operation on objects. The object store may execute them in any order and concurrently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectOperation {
    /// Creates an object, whole or not at all, unless one of that name exists; durable before it
    /// succeeds.
    Put {
        /// Name.
        key: String,
        /// Content: the concatenation.
        data: Vec<Bytes>,
    },
    /// Reads an object or a range of its bytes. A range that reaches beyond the object's end gives
    /// what there is of it, perhaps nothing; only an object that does not exist is
    /// [`GetError::NotFound`].
    Get {
        /// Name.
        key: String,
        /// First byte, and the byte after the last; everything if absent.
        range: Option<std::ops::Range<u64>>,
        /// Whether a copy of them will do.
        copies: Copies,
    },
    /// Lists the objects whose name begins with `prefix`, in any order.
    List {
        /// Beginning of the names.
        prefix: String,
    },
    /// The same, of the objects whose names come after `after`.
    ListAfter {
        /// Beginning of the names.
        prefix: String,
        /// A name, of an object or not.
        after: String,
    },
    /// Deletes an object; one that does not exist counts as deleted.
    Delete {
        /// Name.
        key: String,
    },
}

impl ObjectOperation {
    /// The object's name, or the prefix of a list.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            ObjectOperation::Put { key, .. }
            | ObjectOperation::Get { key, .. }
            | ObjectOperation::Delete { key } => key,
            ObjectOperation::List { prefix } | ObjectOperation::ListAfter { prefix, .. } => prefix,
        }
    }
}

/// The outcome of the [`ObjectOperation`] of the same kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectResult {
    /// Of a put.
    Put(Result<(), PutError>),
    /// Of a get.
    Get(Result<Bytes, GetError>),
    /// Of a list.
    List(Result<Vec<ObjectMeta>, StorageError>),
    /// Of a delete.
    Delete(Result<(), StorageError>),
}

/// The reason why the object store did not do an operation. The message is for operators, and names
/// the next step if there is one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct StorageError {
    kind: StorageErrorKind,
    message: String,
}

/// The kind of a [`StorageError`], by the step that ends it. The queue tries the operation again,
/// whatever the kind: an operator may have taken the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StorageErrorKind {
    /// Trying again may help. Nothing more is known.
    Unavailable,
    /// The object store refuses the credential, or it lacks a right.
    Denied,
    /// The space or the quota is used up.
    Full,
    /// The location, or a setting of the way to it, is wrong.
    Misconfigured,
    /// The object or the device is not as written.
    Damaged,
}

impl StorageErrorKind {
    /// All kinds.
    pub const ALL: [StorageErrorKind; 5] = [
        StorageErrorKind::Unavailable,
        StorageErrorKind::Denied,
        StorageErrorKind::Full,
        StorageErrorKind::Misconfigured,
        StorageErrorKind::Damaged,
    ];

    /// The name in metrics and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            StorageErrorKind::Unavailable => "unavailable",
            StorageErrorKind::Denied => "denied",
            StorageErrorKind::Full => "full",
            StorageErrorKind::Misconfigured => "misconfigured",
            StorageErrorKind::Damaged => "damaged",
        }
    }
}

impl StorageError {
    /// An error of a kind.
    #[must_use]
    pub fn new(kind: StorageErrorKind, message: impl Into<String>) -> Self {
        StorageError { kind, message: message.into() }
    }

    /// An error of which nothing more is known.
    #[must_use]
    pub fn unavailable(message: impl Into<String>) -> Self {
        StorageError::new(StorageErrorKind::Unavailable, message)
    }

    /// The kind.
    #[must_use]
    pub fn kind(&self) -> StorageErrorKind {
        self.kind
    }

    /// The message.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Puts a text before the message, like `context` of other errors.
    #[must_use]
    pub fn context(self, before: impl std::fmt::Display) -> Self {
        StorageError { message: format!("{before}: {}", self.message), ..self }
    }
}

impl From<GetError> for StorageError {
    fn from(error: GetError) -> Self {
        match error {
            GetError::NotFound => StorageError::unavailable(error.to_string()),
            GetError::Failed(error) => error,
            GetError::Damaged(reason) => StorageError::new(StorageErrorKind::Damaged, reason),
        }
    }
}

/// Another store, and the client, learn only the message.
impl From<StorageError> for VolumeError {
    fn from(error: StorageError) -> Self {
        VolumeError::Store(error.message)
    }
}

impl ObjectResult {
    /// Whether a repetition of the operation may succeed. A damaged object is an answer.
    #[must_use]
    pub fn is_failed(&self) -> bool {
        matches!(
            self,
            ObjectResult::Put(Err(PutError::Failed(_)))
                | ObjectResult::Get(Err(GetError::Failed(_)))
                | ObjectResult::List(Err(_))
                | ObjectResult::Delete(Err(_))
        )
    }

    /// The kind of a failure; `None` for a success, and for an answer about the object.
    #[must_use]
    pub fn failure(&self) -> Option<StorageErrorKind> {
        match self {
            ObjectResult::Put(Err(PutError::Failed(error)))
            | ObjectResult::Get(Err(GetError::Failed(error)))
            | ObjectResult::List(Err(error))
            | ObjectResult::Delete(Err(error)) => Some(error.kind),
            ObjectResult::Get(Err(GetError::Damaged(_))) => Some(StorageErrorKind::Damaged),
            ObjectResult::Put(Ok(()) | Err(PutError::Exists))
            | ObjectResult::Get(Ok(_) | Err(GetError::NotFound))
            | ObjectResult::List(Ok(_))
            | ObjectResult::Delete(Ok(())) => None,
        }
    }
}

/// The reason why the object store did not create an object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PutError {
    /// An object with this name exists.
    #[error("the object exists")]
    Exists,
    /// It may or may not exist now.
    #[error("{0}")]
    Failed(StorageError),
}

/// The reason why the engine could not read an object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GetError {
    /// No object has this name.
    #[error("the object does not exist")]
    NotFound,
    /// Trying again may help.
    #[error("{0}")]
    Failed(StorageError),
    /// The storage answers, but does not have the object as written. The object is no file,
    /// unreadable, or belongs to another name. A retry does not help.
    #[error("{0}")]
    Damaged(String),
}

/// An object in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectMeta {
    /// Name.
    pub key: String,
    /// Size.
    pub bytes: u64,
}

/// An operation in progress, or one that waits for a retry.
pub(super) struct Pending<P> {
    pub purpose: P,
    pub operation: ObjectOperation,
    /// Failures in a row.
    pub failures: u32,
    /// The number of answers that the object does not exist.
    pub missing: u32,
    /// The time of the first such answer.
    pub missing_since: Option<Time>,
}

/// The operations of one volume. `P` says what each is for.
pub(super) struct OperationQueue<P> {
    next_id: u64,
    retry: (Duration, Duration),
    outgoing: VecDeque<u64>,
    pending: BTreeMap<u64, Pending<P>>,
    paused: BTreeSet<(Time, u64)>,
}

impl<P> OperationQueue<P> {
    pub fn new(retry: (Duration, Duration)) -> Self {
        OperationQueue {
            next_id: 1,
            retry,
            outgoing: VecDeque::new(),
            pending: BTreeMap::new(),
            paused: BTreeSet::new(),
        }
    }

    /// Forgets all that are for something else.
    pub fn retain(&mut self, keeps: impl Fn(&P) -> bool) {
        self.pending.retain(|_, pending| keeps(&pending.purpose));
        let pending = &self.pending;
        self.paused.retain(|(_, id)| pending.contains_key(id));
        self.outgoing.retain(|id| pending.contains_key(id));
    }

    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// The purpose of an unfinished operation.
    pub fn purpose(&self, id: u64) -> Option<&P> {
        self.pending.get(&id).map(|pending| &pending.purpose)
    }

    pub fn issue(&mut self, purpose: P, operation: ObjectOperation) {
        let (failures, missing, missing_since) = (0, 0, None);
        self.insert(Pending { purpose, operation, failures, missing, missing_since });
    }

    /// Issues an operation again in another way.
    pub fn reissue(&mut self, pending: Pending<P>) {
        self.insert(pending);
    }

    fn insert(&mut self, pending: Pending<P>) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.pending.insert(id, pending);
        self.outgoing.push_back(id);
        id
    }

    /// Tries an operation again after a pause.
    pub fn retry(&mut self, now: Time, mut pending: Pending<P>) {
        let (first, longest) = self.retry;
        let pause = first.saturating_mul(1 << pending.failures.min(20)).min(longest);
        pending.failures = pending.failures.saturating_add(1);
        let id = self.next_id;
        self.next_id += 1;
        self.pending.insert(id, pending);
        self.paused.insert((now.after(pause), id));
    }

    /// Takes out all operations.
    pub fn take_all(&mut self) -> impl Iterator<Item = Pending<P>> + use<P> {
        self.outgoing.clear();
        self.paused.clear();
        std::mem::take(&mut self.pending).into_values()
    }

    /// Takes a finished operation out of the queue; `None` for one that is not under way.
    pub fn finish(&mut self, id: u64) -> Option<Pending<P>> {
        self.pending.remove(&id)
    }

    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(&(due, id)) = self.paused.first()
            && due <= now
        {
            self.paused.remove(&(due, id));
            self.outgoing.push_back(id);
        }
    }

    pub fn poll_timeout(&self) -> Option<Time> {
        self.paused.first().map(|&(due, _)| due)
    }

    pub fn poll(&mut self) -> Option<(u64, ObjectOperation)> {
        let id = self.outgoing.pop_front()?;
        let pending = self.pending.get(&id)?;
        Some((id, pending.operation.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_stays_with_its_error() {
        let full = StorageError::new(StorageErrorKind::Full, "no room");
        let said = full.clone().context(format_args!("cannot write {}", "x"));
        assert_eq!(
            (said.kind(), said.message()),
            (StorageErrorKind::Full, "cannot write x: no room")
        );
        let failure = ObjectResult::Put(Err(PutError::Failed(full.clone()))).failure();
        assert_eq!(failure, Some(StorageErrorKind::Full));
        assert_eq!(ObjectResult::List(Err(full.clone())).failure(), Some(StorageErrorKind::Full));
        assert_eq!(StorageError::from(GetError::Failed(full.clone())), full);
        let damaged = ObjectResult::Get(Err(GetError::Damaged("x".to_owned())));
        assert_eq!(damaged.failure(), Some(StorageErrorKind::Damaged));
        for answer in [
            ObjectResult::Put(Err(PutError::Exists)),
            ObjectResult::Get(Err(GetError::NotFound)),
            ObjectResult::Delete(Ok(())),
        ] {
            assert_eq!(answer.failure(), None, "{answer:?}");
        }
    }
}
