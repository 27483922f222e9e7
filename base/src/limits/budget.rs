//! Bytes that the answers of a store may take, shared among parties and their sessions.
//!
//! An answer counts from the arrival of its request. If a client does not read its answers, the
//! store stops reading its requests: they wait, and nothing is refused. A party has at most as much
//! as the others leave free. A session has at most as much as the other sessions of its party leave
//! free. A quarter of a party's bytes is for sessions without an answer. Each may have one while
//! its party is below its limit and a quarter of all bytes is free. Read-ahead has half of all
//! that, so that it does not delay reads that a client waits for.
//!
//! Promises: answers never take more than all bytes, nor more than the part of one party or
//! session.

use super::shares::most;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// How often a waiter looks whether other parties have left room. Bytes that another party gives
/// back do not wake it: otherwise sessions that wait for ever would cost time with each answer.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Whether a client waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// A client waits.
    Waited,
    /// The request is a read-ahead.
    Ahead,
}

/// The bytes for answers.
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
    /// The party gave something back.
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
        // A party that had much before others came must not come to a stop.
        let alone = of_session == 0
            && of_party + bytes <= self.of_party
            && out.all + bytes <= self.all / 4 * 3;
        // A quarter is for sessions without an answer.
        let session_most = most(party_most / 4 * 3, self.of_session, of_party - of_session);
        let session_may = of_session + bytes <= part(session_most);
        first || alone || of_party + bytes <= part(party_most) && session_may
    }
}

impl Budget {
    /// A budget of `all` bytes, `of_party` for each party, and `of_session` for each of its
    /// sessions.
    #[must_use]
    pub fn new(all: u64, of_party: u64, of_session: u64) -> Budget {
        Budget(Arc::new(Inner { all, of_party, of_session, out: Mutex::default() }))
    }

    /// Takes bytes for an answer, if the party and the session may have them.
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

    /// Takes bytes for an answer as soon as the party and the session may have them.
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
            // If the change comes before the wait, the next look sees it.
            let changed = changed.unwrap_or_default();
            let _ = tokio::time::timeout(LOOK_AGAIN, changed.notified()).await;
        }
    }

    /// Bytes that answers have taken.
    #[must_use]
    pub fn out(&self) -> u64 {
        lock(&self.0.out).all
    }
}

/// The bytes of an answer, until dropped.
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
        // A request for more than the limit of one session counts as that limit.
        drop(held);
        let other: Arc<str> = "other".into();
        assert!(budget.take(&other, 2, 10 * ALL, Urgency::Waited).is_some());
    }
}
