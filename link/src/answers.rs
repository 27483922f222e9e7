//! The unanswered requests of a session, and its data that the store has not stored. Both count
//! from their arrival, see [`Budget`].
//!
//! Data counts while anything holds its payload, wherever that waits. An answer stops counting in
//! three cases: the transport has sent it, nothing asks for it any more, or the session has ended.

use super::principal::party;
use bytes::Bytes;
use longhaul_base::limits::{self, Answer, Budget, Urgency};
use longhaul_core::block::{Range, SECTOR_BYTES};
use longhaul_core::wire::link::{
    Announced, Frame, Lane, Principal, RequestId, ToHost, ToStore, VolumeOperation,
};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The bytes of all sessions of a store.
#[derive(Debug)]
pub(super) struct Budgets {
    reads: Budget,
    others: Budget,
    batches: Budget,
    frames: Budget,
}

impl Default for Budgets {
    fn default() -> Self {
        Budgets {
            reads: Budget::new(
                limits::ANSWER_BYTES,
                limits::ANSWER_BYTES_OF_ONE,
                limits::ANSWER_BYTES_OF_SESSION,
            ),
            others: Budget::new(
                limits::OTHER_ANSWERS_BYTES,
                limits::OTHER_ANSWERS_BYTES_OF_ONE,
                limits::OTHER_ANSWERS_BYTES_OF_SESSION,
            ),
            batches: Budget::new(
                limits::BATCH_BYTES,
                limits::BATCH_BYTES_OF_ONE,
                limits::BATCH_BYTES_OF_SESSION,
            ),
            frames: Budget::new(
                limits::FRAMES_BYTES,
                limits::FRAMES_BYTES_OF_ONE,
                limits::FRAMES_BYTES_OF_SESSION,
            ),
        }
    }
}

impl Budgets {
    /// Bytes that answers count for at this moment.
    pub(super) fn out(&self) -> u64 {
        self.reads.out() + self.others.out()
    }

    /// Bytes of the data that waits at this moment for the object store or for anything else.
    pub(super) fn waiting(&self) -> u64 {
        self.batches.out() + self.frames.out()
    }
}

/// The answers of a session.
pub(super) struct Answers {
    budgets: Arc<Budgets>,
    party: Arc<str>,
    session: u64,
    /// Another store passes on data that counts at that store already. It takes a store that delays
    /// it to be gone.
    of_store: bool,
    /// By lane and request; a repeated request is there twice.
    begun: Mutex<HashMap<(u8, RequestId), Vec<Answer>>>,
}

/// Bytes of data that go with a range, with checksums and the like: generously.
fn with_data(range: Range) -> u64 {
    let bytes = range.sectors.saturating_mul(SECTOR_BYTES);
    bytes.saturating_add(bytes / 32).saturating_add(4096)
}

/// The number of a request that has one answer, and what that counts for; of data, if so.
fn asked(message: &ToStore) -> Option<(RequestId, Option<u64>)> {
    match message {
        ToStore::Read { request, range, .. }
        | ToStore::EarlyRead { request, range, .. }
        | ToStore::Stage { request, range, .. } => Some((*request, Some(with_data(*range)))),
        ToStore::Status { request, .. }
        | ToStore::Changed { request, .. }
        | ToStore::Volume { request, .. }
        | ToStore::Store { request, .. }
        | ToStore::Tenant { request, .. } => Some((*request, None)),
        // Small, or none.
        ToStore::Hello { .. }
        | ToStore::Attach { .. }
        | ToStore::Resume { .. }
        | ToStore::Detach { .. }
        | ToStore::Batch { .. }
        | ToStore::Announce { .. }
        | ToStore::Barrier { .. } => None,
    }
}

/// The bytes that a message without a payload counts while it waits; `None` if its answer counts
/// enough.
fn carried(message: &ToStore) -> Option<u64> {
    match message {
        ToStore::Attach { .. }
        | ToStore::Resume { .. }
        | ToStore::Detach { .. }
        | ToStore::Batch { .. }
        | ToStore::Barrier { .. } => Some(0),
        ToStore::Announce { entries, .. } => {
            Some((entries.len() * std::mem::size_of::<Announced>()) as u64)
        }
        ToStore::Volume { operation: VolumeOperation::SetAttribute { data, .. }, .. } => {
            Some(data.len() as u64)
        }
        ToStore::Hello { .. }
        | ToStore::Read { .. }
        | ToStore::EarlyRead { .. }
        | ToStore::Status { .. }
        | ToStore::Stage { .. }
        | ToStore::Changed { .. }
        | ToStore::Volume { .. }
        | ToStore::Store { .. }
        | ToStore::Tenant { .. } => None,
    }
}

fn answered(message: &ToHost) -> Option<RequestId> {
    match message {
        ToHost::Data { request, .. }
        | ToHost::Staged { request, .. }
        | ToHost::Status { request, .. }
        | ToHost::Changed { request, .. }
        | ToHost::Volume { request, .. }
        | ToHost::Store { request, .. }
        | ToHost::Tenant { request, .. } => Some(*request),
        _ => None,
    }
}

impl Answers {
    /// Of a session of that principal.
    pub(super) fn new(budgets: Arc<Budgets>, principal: &Principal, session: u64) -> Answers {
        let (party, of_store) = (party(principal).into(), principal.store);
        Answers { budgets, party, session, of_store, begun: Mutex::default() }
    }

    /// Takes a request: waits until the store has room for the answer.
    pub(super) async fn begin(&self, lane: Lane, message: &ToStore) {
        let Some((request, bytes)) = asked(message).filter(|_| !self.of_store) else { return };
        let urgency = match lane {
            Lane::Read | Lane::Control => Urgency::Waited,
            Lane::ReadAhead | Lane::Drain => Urgency::Ahead,
        };
        let answer = match bytes {
            Some(bytes) => self.budgets.reads.wait(&self.party, self.session, bytes, urgency).await,
            None => {
                let bytes = limits::OTHER_ANSWER_BYTES;
                let urgency = Urgency::Waited;
                self.budgets.others.wait(&self.party, self.session, bytes, urgency).await
            }
        };
        self.begun().entry((lane as u8, request)).or_default().push(answer);
    }

    /// Takes data: waits until the store has room for it. The data takes the room while anything
    /// holds its payload.
    pub(super) async fn count(&self, frame: Frame<ToStore>) -> Frame<ToStore> {
        let Frame { message, payload } = frame;
        let (budget, bytes) = match (payload.len() as u64, carried(&message)) {
            (0, Some(bytes)) => (&self.budgets.frames, bytes),
            (0, None) => return Frame { message, payload },
            (bytes, _) => (&self.budgets.batches, bytes),
        };
        if self.of_store {
            return Frame { message, payload };
        }
        let bytes = bytes + limits::FRAME_BYTES;
        let room = budget.wait(&self.party, self.session, bytes, Urgency::Waited).await;
        Frame { message, payload: counted(payload, room) }
    }

    /// Takes an answer, and returns the bytes that it counts.
    pub(super) fn end(&self, lane: Lane, message: &ToHost) -> Option<Answer> {
        let key = (lane as u8, answered(message)?);
        let mut begun = self.begun();
        let all = begun.get_mut(&key)?;
        let answer = all.pop();
        if all.is_empty() {
            begun.remove(&key);
        }
        answer
    }

    fn begun(&self) -> MutexGuard<'_, HashMap<(u8, RequestId), Vec<Answer>>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Data that counts for as long as anything holds on to it.
struct Counted {
    data: Bytes,
    _answer: Answer,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

/// The same data, which counts until the transport has sent it.
pub(super) fn counted(data: Bytes, answer: Answer) -> Bytes {
    Bytes::from_owner(Counted { data, _answer: answer })
}
