//! Early reads come with a Resume and not after its answer. They save the first round trip after an
//! outage.
//!
//! Promises: the answer to such a read comes from the epoch that the read names, or there is none.
//! It has everything that its host knew to be committed at the time of the request. If the log here
//! has as much, the read does not wait. Another store or host may have continued the volume since
//! then. That matters no more than for an ordinary read in the moment before this store hears of
//! it. Otherwise the read waits for the decision on the session's Resume. At most [`WAITING_MAX`]
//! reads wait.

use crate::block::Seq;
use crate::store::read_request::ReadRequest;
use crate::store::session::SessionId;
use std::collections::BTreeSet;

/// Reads that may wait; hosts ask for others again once they have resumed.
const WAITING_MAX: usize = 1024;

/// A read, and the committed number that its host knows.
pub(super) type EarlyRead = (ReadRequest, Seq);

/// Reads that wait for the Resume of their session.
#[derive(Default)]
pub(super) struct EarlyReads {
    waiting: Vec<EarlyRead>,
    /// Sessions with a decided Resume or Attach: nothing waits for these.
    decided: BTreeSet<SessionId>,
}

impl EarlyReads {
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Nobody waits for these answers.
    pub fn forget(&mut self, session: SessionId) {
        self.waiting.retain(|(read, _)| read.session != session);
        self.decided.remove(&session);
    }

    /// Keeps a read until the decision on its session's Resume. False if the decision has come, or
    /// too many reads wait.
    pub fn hold(&mut self, early: EarlyRead) -> bool {
        let held = !self.decided.contains(&early.0.session) && self.waiting.len() < WAITING_MAX;
        if held {
            self.waiting.push(early);
        }
        held
    }

    /// Takes the decision on the Resume or Attach of a session. Returns its reads, which it decides
    /// too.
    pub fn decided(&mut self, session: SessionId) -> Vec<EarlyRead> {
        self.decided.insert(session);
        self.waiting.extract_if(.., |(read, _)| read.session == session).collect()
    }

    /// Gives up all that wait.
    pub fn take(&mut self) -> Vec<EarlyRead> {
        std::mem::take(&mut self.waiting)
    }
}
