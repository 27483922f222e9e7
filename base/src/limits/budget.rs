//! Bytes that the answers of a store may take, shared among parties and their sessions.
//!
//! An answer counts from when what asks for it is taken in, so that who does not read its answers is not listened to
//! any more: it waits, and nothing is refused. A party has no more than the others leave free, nor a session more
//! than the others of its party do. A quarter of what a party may have is for sessions that have nothing: each may have one
//! answer as long as its party is below its limit, and a quarter of all is free. What is read ahead has half of all that, so that reads that somebody waits for do not wait for it.
//!
//! Promises: no more is out than there is, and no more of one party or session than it may have.

use super::shares::most;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// How often who waits looks whether other parties have left room: what they give back wakes nobody else, or sessions
/// that wait for ever would cost them time with each answer.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Whether somebody waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// Somebody does.
    Waited,
    /// It is asked for ahead of time.
    Ahead,
}

/// The bytes there are.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    all: u64,
    of_party: u64,
    of_session: u64,
    out: Mutex<Out>,
}

#[derive(Debug, Default)]
struct Out {
    all: u64,
    parties: BTreeMap<Arc<str>, Party>,
}

#[derive(Debug, Default)]
struct Party {
    out: u64,
    sessions: BTreeMap<u64, u64>,
    /// Something of the party's was given back.
    changed: Arc<Notify>,
}

impl Inner {
    fn has_room(&self, out: &Out, party: &str, session: u64, bytes: u64, urgency: Urgency) -> bool {
        let found = out.parties.get(party);
        let of_party = found.map_or(0, |party| party.out);
        let of_session = found.and_then(|party| party.sessions.get(&session)).copied();
        let of_session = of_session.unwrap_or(0);
        let part = |whole: u64| if urgency == Urgency::Ahead { whole / 2 } else { whole };
        let party_most = most(self.all, self.of_party, out.all - of_party);
        let first = of_party == 0 && out.all + bytes <= self.all;
        // A party that had much before others came is not to stand still for it.
        let alone = of_session == 0
            && of_party + bytes <= self.of_party
            && out.all + bytes <= self.all / 4 * 3;
        // A quarter is for those that have nothing.
        let session_most = most(party_most / 4 * 3, self.of_session, of_party - of_session);
        let session_may = of_session + bytes <= part(session_most);
        first || alone || of_party + bytes <= part(party_most) && session_may
    }
}

impl Budget {
    /// So many bytes, so many for one party, and so many for one of its sessions.
    #[must_use]
    pub fn new(all: u64, of_party: u64, of_session: u64) -> Budget {
        Budget(Arc::new(Inner { all, of_party, of_session, out: Mutex::default() }))
    }

    /// Takes bytes for an answer, if there are any for whom it is.
    #[must_use]
    pub fn take(
        &self,
        party: &Arc<str>,
        session: u64,
        bytes: u64,
        urgency: Urgency,
    ) -> Option<Answer> {
        let inner = &self.0;
        let bytes = bytes.min(inner.of_session).min(inner.of_party);
        let mut out = lock(&inner.out);
        if !inner.has_room(&out, party, session, bytes, urgency) {
            return None;
        }
        out.all += bytes;
        let of = out.parties.entry(party.clone()).or_default();
        of.out += bytes;
        *of.sessions.entry(session).or_default() += bytes;
        drop(out);
        Some(Answer { budget: inner.clone(), party: party.clone(), session, bytes })
    }

    /// The same, as soon as there are any.
    pub async fn wait(
        &self,
        party: &Arc<str>,
        session: u64,
        bytes: u64,
        urgency: Urgency,
    ) -> Answer {
        loop {
            if let Some(answer) = self.take(party, session, bytes, urgency) {
                return answer;
            }
            let changed = lock(&self.0.out).parties.get(party).map(|of| of.changed.clone());
            // What changes before it is waited for is seen at the next look.
            let changed = changed.unwrap_or_default();
            let _ = tokio::time::timeout(LOOK_AGAIN, changed.notified()).await;
        }
    }

    /// Bytes that are out.
    #[must_use]
    pub fn out(&self) -> u64 {
        lock(&self.0.out).all
    }
}

/// The bytes of an answer, until it is dropped.
#[derive(Debug)]
pub struct Answer {
    budget: Arc<Inner>,
    party: Arc<str>,
    session: u64,
    bytes: u64,
}

impl Drop for Answer {
    fn drop(&mut self) {
        let mut out = lock(&self.budget.out);
        out.all -= self.bytes;
        if let Some(of) = out.parties.get_mut(&self.party) {
            of.out -= self.bytes;
            if let Some(bytes) = of.sessions.get_mut(&self.session) {
                *bytes -= self.bytes;
                if *bytes == 0 {
                    of.sessions.remove(&self.session);
                }
            }
            of.changed.notify_waiters();
            if of.sessions.is_empty() {
                out.parties.remove(&self.party);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;

    const ALL: u64 = 1 << 20;

    fn grab(budget: &Budget, party: &Arc<str>, session: u64, urgency: Urgency) -> Vec<Answer> {
        std::iter::from_fn(|| budget.take(party, session, 1024, urgency)).collect()
    }

    #[test]
    fn a_hundred_sessions_that_do_not_read_leave_room_for_others() {
        let budget = Budget::new(ALL, ALL / 2, ALL / 4);
        let (one, other): (Arc<str>, Arc<str>) = ("one".into(), "other".into());
        let of_one = |session| grab(&budget, &one, session, Urgency::Waited);
        let held: Vec<_> = (0..100).map(of_one).collect();
        assert!(budget.out() <= ALL / 2, "{}", budget.out());
        assert!(held[0].len() as u64 * 1024 <= ALL / 4);
        assert!(held.iter().all(|answers| !answers.is_empty()), "each session has its turn");
        assert!(held[99].len() * 1024 < ALL as usize / 64, "{}", held[99].len());
        let others = grab(&budget, &other, 7, Urgency::Waited);
        assert!(others.len() as u64 * 1024 >= ALL / 16, "{}", others.len());
        drop((held, others));
        assert_eq!(budget.out(), 0);
    }

    #[test]
    fn what_is_read_ahead_leaves_room_for_reads() {
        let budget = Budget::new(ALL, ALL / 2, ALL / 4);
        let party: Arc<str> = "one".into();
        let ahead = grab(&budget, &party, 1, Urgency::Ahead);
        assert!(!ahead.is_empty() && ahead.len() as u64 * 1024 <= ALL / 8);
        let reads = grab(&budget, &party, 1, Urgency::Waited);
        assert!(reads.len() as u64 * 1024 >= ALL / 16, "{}", reads.len());
    }

    #[tokio::test]
    async fn who_waits_goes_on_when_something_is_read() {
        let budget = Budget::new(ALL, ALL / 2, ALL / 4);
        let party: Arc<str> = "one".into();
        let mut held = grab(&budget, &party, 1, Urgency::Waited);
        let waiting = budget.wait(&party, 1, 1024, Urgency::Waited);
        let mut waiting = std::pin::pin!(waiting);
        assert!((&mut waiting).now_or_never().is_none());
        held.pop();
        let limit = Duration::from_secs(60);
        let _answer = tokio::time::timeout(limit, waiting).await.unwrap();
        // More than there ever is for one counts as all that there is for it.
        drop(held);
        let other: Arc<str> = "other".into();
        assert!(budget.take(&other, 2, 10 * ALL, Urgency::Waited).is_some());
    }
}
