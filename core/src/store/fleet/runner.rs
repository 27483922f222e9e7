//! Runs a [`Procedure`] from result to result.

use crate::block::VolumeId;
use crate::store::object::{
    Copies, GetError, ObjectMeta, ObjectOperation, ObjectResult, PutError, StorageError,
};
use crate::wire::link::{
    SnapshotOperation, SnapshotReply, StoreId, StoreOperation, StoreReply, VolumeError,
};
use bytes::Bytes;
use std::time::Duration;

/// A request of a procedure to its driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// One operation on the objects.
    Object(ObjectOperation),
    /// Operations on the objects that do not depend on each other.
    Objects {
        /// In any order.
        operations: Vec<ObjectOperation>,
        /// Most of them under way at a time.
        at_once: usize,
    },
    /// A question to another store.
    Peer {
        /// Which.
        store: StoreId,
        /// The address of the store, unless the driver knows a newer one.
        addresses: Vec<String>,
        /// The question.
        operation: StoreOperation,
    },
    /// Something about the snapshots of a volume, which its engine does, wherever that is.
    Engine {
        /// The volume.
        volume: VolumeId,
        /// The operation for that store.
        operation: SnapshotOperation,
    },
    /// To wait that long, or a random part of it that is not less than half.
    Pause(Duration),
}

/// The answer of another store; nothing if it did not answer in time.
pub type Peered = Option<Result<StoreReply, VolumeError>>;

/// The result of the [`Effect`] of the same kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EffectResult {
    /// Of one operation.
    Object(ObjectResult),
    /// The results of several, in the order of the requests. Results after the first failure may be
    /// missing.
    Objects(Vec<ObjectResult>),
    /// Of a question.
    Peer(Peered),
    /// Of an engine.
    Engine(Result<SnapshotReply, VolumeError>),
    /// Of a pause.
    Paused,
}

/// Something the shell should log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// A note for developers only.
    Debug(String),
    /// Something goes on although not all is well.
    Warning(String),
    /// Something is damaged.
    Error(String),
}

/// The result of the next effect is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unknown;

/// A value that a procedure knows, or does not know yet.
pub type Known<T> = Result<T, Unknown>;

/// Why a part of a procedure does not go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Halt<E = VolumeError> {
    /// The result of the next effect is unknown.
    Unknown,
    /// The procedure has failed.
    Failed(E),
}

impl<E> From<Unknown> for Halt<E> {
    fn from(_: Unknown) -> Self {
        Halt::Unknown
    }
}

impl From<VolumeError> for Halt {
    fn from(error: VolumeError) -> Self {
        Halt::Failed(error)
    }
}

impl<E> Halt<E> {
    /// Takes the failure out of a result, so that a procedure can go on after it.
    ///
    /// # Errors
    /// [`Unknown`].
    pub fn caught<T>(result: Result<T, Halt<E>>) -> Known<Result<T, E>> {
        match result {
            Ok(value) => Ok(Ok(value)),
            Err(Halt::Failed(error)) => Ok(Err(error)),
            Err(Halt::Unknown) => Err(Unknown),
        }
    }
}

/// An operation as a function of its results.
pub trait Procedure {
    /// The outcome of the procedure.
    type Outcome;

    /// Goes through the results from the first one, and returns the outcome if there are enough of
    /// them.
    ///
    /// # Errors
    /// [`Unknown`], which one of the methods of [`Facts`] has returned.
    fn decide(&self, facts: &mut Facts<'_>) -> Known<Self::Outcome>;
}

struct Fact {
    effect: Effect,
    result: EffectResult,
    /// When the result came, in seconds since 1970.
    at: u64,
}

/// The results so far, from the point at which a procedure stands.
pub struct Facts<'a> {
    known: &'a [Fact],
    next: usize,
    now: u64,
    round: u32,
    wanted: Option<Wanted>,
    notes: Vec<Note>,
}

enum Wanted {
    Next(Effect),
    /// The procedure begins anew after a pause.
    Again(Duration),
}

impl<'a> Facts<'a> {
    /// The time at which the last result came, in seconds since 1970.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.now
    }

    /// How many times the procedure has begun anew.
    #[must_use]
    pub fn round(&self) -> u32 {
        self.round
    }

    /// Has something logged.
    pub fn note(&mut self, note: Note) {
        self.notes.push(note);
    }

    /// Forgets all results and begins anew after a pause.
    ///
    /// # Errors
    /// Always.
    pub fn begin_again<T>(&mut self, pause: Duration) -> Known<T> {
        self.wanted = Some(Wanted::Again(pause));
        Err(Unknown)
    }

    fn ask(&mut self, effect: Effect) -> Known<&'a EffectResult> {
        let Some(fact) = self.known.get(self.next) else {
            self.wanted = Some(Wanted::Next(effect));
            return Err(Unknown);
        };
        debug_assert_eq!(fact.effect, effect, "a procedure has changed its mind");
        self.next += 1;
        self.now = fact.at;
        Ok(&fact.result)
    }

    /// Creates an object.
    ///
    /// # Errors
    /// [`Unknown`]. The result is the inner one.
    pub fn put(&mut self, key: &str, data: Bytes) -> Known<Result<(), PutError>> {
        let operation = ObjectOperation::Put { key: key.to_owned(), data: vec![data] };
        Ok(match self.ask(Effect::Object(operation))? {
            EffectResult::Object(ObjectResult::Put(result)) => result.clone(),
            _ => Err(PutError::Failed(misfit())),
        })
    }

    /// Reads an object.
    ///
    /// # Errors
    /// As for [`Facts::put`].
    pub fn get(&mut self, key: &str) -> Known<Result<Bytes, GetError>> {
        Ok(match self.ask(Effect::Object(get(key)))? {
            EffectResult::Object(ObjectResult::Get(result)) => result.clone(),
            _ => Err(GetError::Failed(misfit())),
        })
    }

    /// Lists the objects whose names begin with `prefix`.
    ///
    /// # Errors
    /// As for [`Facts::put`].
    pub fn list(&mut self, prefix: &str) -> Known<Result<&'a [ObjectMeta], StorageError>> {
        let effect = Effect::Object(ObjectOperation::List { prefix: prefix.to_owned() });
        Ok(match self.ask(effect)? {
            EffectResult::Object(ObjectResult::List(Ok(list))) => Ok(list.as_slice()),
            EffectResult::Object(ObjectResult::List(Err(error))) => Err(error.clone()),
            _ => Err(misfit()),
        })
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// As for [`Facts::put`].
    pub fn delete(&mut self, key: &str) -> Known<Result<(), StorageError>> {
        let operation = ObjectOperation::Delete { key: key.to_owned() };
        Ok(match self.ask(Effect::Object(operation))? {
            EffectResult::Object(ObjectResult::Delete(result)) => result.clone(),
            _ => Err(misfit()),
        })
    }

    /// Deletes an object that nobody needs; if that fails, it only takes space.
    ///
    /// # Errors
    /// [`Unknown`].
    pub fn discard(&mut self, key: &str) -> Known<()> {
        if let Err(error) = self.delete(key)? {
            self.note(Note::Debug(format!("cannot delete {key}: {error}")));
        }
        Ok(())
    }

    /// Reads several objects; the results are in the order of `keys`.
    ///
    /// # Errors
    /// [`Unknown`]; inside, the first failure that trying again may mend.
    pub fn get_all(
        &mut self,
        keys: &[String],
        at_once: usize,
    ) -> Known<Result<Vec<Result<Bytes, GetError>>, StorageError>> {
        let operations: Vec<_> = keys.iter().map(|key| get(key)).collect();
        let results = self.objects(operations, at_once)?;
        let mut found = Vec::with_capacity(keys.len());
        for result in results {
            match result {
                ObjectResult::Get(Err(GetError::Failed(error))) => return Ok(Err(error.clone())),
                ObjectResult::Get(result) => found.push(result.clone()),
                _ => return Ok(Err(misfit())),
            }
        }
        Ok(if found.len() == keys.len() { Ok(found) } else { Err(misfit()) })
    }

    /// Lists the objects of several prefixes; the results are in the order of `prefixes`.
    ///
    /// # Errors
    /// [`Unknown`]; inside, the first failure.
    pub fn list_all(
        &mut self,
        prefixes: &[String],
        at_once: usize,
    ) -> Known<Result<Vec<&'a [ObjectMeta]>, StorageError>> {
        let list = |prefix: &String| ObjectOperation::List { prefix: prefix.clone() };
        let results = self.objects(prefixes.iter().map(list).collect(), at_once)?;
        let mut found = Vec::with_capacity(prefixes.len());
        for result in results {
            match result {
                ObjectResult::List(Ok(list)) => found.push(list.as_slice()),
                ObjectResult::List(Err(error)) => return Ok(Err(error.clone())),
                _ => return Ok(Err(misfit())),
            }
        }
        Ok(if found.len() == prefixes.len() { Ok(found) } else { Err(misfit()) })
    }

    /// Deletes several objects.
    ///
    /// # Errors
    /// [`Unknown`]; inside, the first failure.
    pub fn delete_all(
        &mut self,
        keys: Vec<String>,
        at_once: usize,
    ) -> Known<Result<(), StorageError>> {
        let asked = keys.len();
        let delete = |key| ObjectOperation::Delete { key };
        let results = self.objects(keys.into_iter().map(delete).collect(), at_once)?;
        for result in results {
            match result {
                ObjectResult::Delete(Ok(())) => {}
                ObjectResult::Delete(Err(error)) => return Ok(Err(error.clone())),
                _ => return Ok(Err(misfit())),
            }
        }
        Ok(if results.len() == asked { Ok(()) } else { Err(misfit()) })
    }

    fn objects(
        &mut self,
        operations: Vec<ObjectOperation>,
        at_once: usize,
    ) -> Known<&'a [ObjectResult]> {
        if operations.is_empty() {
            return Ok(&[]);
        }
        Ok(match self.ask(Effect::Objects { operations, at_once })? {
            EffectResult::Objects(results) => results,
            _ => &[],
        })
    }

    /// Asks another store.
    ///
    /// # Errors
    /// [`Unknown`].
    pub fn peer(
        &mut self,
        store: StoreId,
        addresses: &[String],
        operation: StoreOperation,
    ) -> Known<Peered> {
        let effect = Effect::Peer { store, addresses: addresses.to_vec(), operation };
        Ok(match self.ask(effect)? {
            EffectResult::Peer(answer) => answer.clone(),
            _ => None,
        })
    }

    /// Has the engine of a volume do something about its snapshots.
    ///
    /// # Errors
    /// [`Unknown`].
    pub fn engine(
        &mut self,
        volume: VolumeId,
        operation: SnapshotOperation,
    ) -> Known<Result<SnapshotReply, VolumeError>> {
        Ok(match self.ask(Effect::Engine { volume, operation })? {
            EffectResult::Engine(result) => result.clone(),
            _ => Err(VolumeError::from(misfit())),
        })
    }

    /// Waits.
    ///
    /// # Errors
    /// [`Unknown`].
    pub fn pause(&mut self, pause: Duration) -> Known<()> {
        self.ask(Effect::Pause(pause)).map(|_| ())
    }
}

/// Reports a mistake of a driver.
fn misfit() -> StorageError {
    StorageError::unavailable("the result of another operation has come")
}

fn get(key: &str) -> ObjectOperation {
    ObjectOperation::Get { key: key.to_owned(), range: None, copies: Copies::Refused }
}

/// A procedure in progress.
///
/// Take effects with [`poll_effect`](Runner::poll_effect), one at a time, and give each result to
/// [`handle_result`](Runner::handle_result). When no effect is left, there is an outcome.
pub struct Runner<P: Procedure> {
    procedure: P,
    known: Vec<Fact>,
    /// The next effect, or the one in progress.
    wanted: Option<Effect>,
    taken: bool,
    /// The effect under way ends a round.
    ends_round: bool,
    started: u64,
    round: u32,
    /// Notes for the driver. The count says how many of this round's the driver has seen before.
    notes: Vec<Note>,
    noted: usize,
    outcome: Option<P::Outcome>,
}

impl<P: Procedure> Runner<P> {
    /// Begins a procedure. `now` is in seconds since 1970, here and everywhere.
    #[must_use]
    pub fn new(procedure: P, now: u64) -> Self {
        let mut runner = Runner {
            procedure,
            known: Vec::new(),
            wanted: None,
            taken: false,
            ends_round: false,
            started: now,
            round: 0,
            notes: Vec::new(),
            noted: 0,
            outcome: None,
        };
        runner.advance();
        runner
    }

    fn advance(&mut self) {
        let mut facts = Facts {
            known: &self.known,
            next: 0,
            now: self.started,
            round: self.round,
            wanted: None,
            notes: Vec::new(),
        };
        let decided = self.procedure.decide(&mut facts);
        let wanted = facts.wanted.take();
        let fresh = facts.notes.split_off(self.noted.min(facts.notes.len()));
        self.noted += fresh.len();
        self.notes.extend(fresh);
        self.taken = false;
        match (decided, wanted) {
            (Ok(outcome), _) => self.outcome = Some(outcome),
            (Err(Unknown), Some(Wanted::Next(effect))) => self.wanted = Some(effect),
            (Err(Unknown), Some(Wanted::Again(pause))) => {
                self.wanted = Some(Effect::Pause(pause));
                self.ends_round = true;
            }
            (Err(Unknown), None) => debug_assert!(false, "the procedure names no next step"),
        }
    }

    /// The procedure that runs.
    #[must_use]
    pub fn procedure(&self) -> &P {
        &self.procedure
    }

    /// The next effect, once.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        if std::mem::replace(&mut self.taken, true) { None } else { self.wanted.clone() }
    }

    /// Takes the result of the effect under way.
    pub fn handle_result(&mut self, now: u64, result: EffectResult) {
        let Some(effect) = self.wanted.take() else { return };
        if std::mem::take(&mut self.ends_round) {
            self.known.clear();
            self.noted = 0;
            self.started = now;
            self.round = self.round.saturating_add(1);
        } else {
            self.known.push(Fact { effect, result, at: now });
        }
        self.advance();
    }

    /// Something to log.
    pub fn poll_note(&mut self) -> Option<Note> {
        if self.notes.is_empty() { None } else { Some(self.notes.remove(0)) }
    }

    /// The outcome, once.
    pub fn poll_outcome(&mut self) -> Option<P::Outcome> {
        self.outcome.take()
    }
}
