//! Early reads: they come with a Resume and not after its answer. The round trip that they save is the first
//! one after an outage.
//!
//! Promises: such a read is answered from the epoch that it names or not at all, and the answer has
//! everything that its host knew to be committed when it asked. If the log as known here says as much, nothing
//! is waited for: that another store or host has gone on with the volume since then matters no more than for
//! a read that is asked when all is well, the moment before this store learns of it. Otherwise the read waits
//! until the session's Resume has been decided. Bounded: at most [`WAITING_MAX`] wait.

use crate::block::Seq;
use crate::store::read_request::ReadRequest;
use crate::store::session::SessionId;
use std::collections::BTreeSet;

/// Reads that may wait; more are asked again by their hosts once these have resumed.
const WAITING_MAX: usize = 1024;

/// A read, and what its host knows to be committed.
pub(super) type EarlyRead = (ReadRequest, Seq);

/// Reads that wait for the Resume of their session.
#[derive(Default)]
pub(super) struct EarlyReads {
    waiting: Vec<EarlyRead>,
    /// Sessions whose Resume or Attach has been decided: nothing waits for these.
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

    /// Keeps a read until the Resume of its session is decided; says no if that has been, or too many wait.
    pub fn hold(&mut self, early: EarlyRead) -> bool {
        let held = !self.decided.contains(&early.0.session) && self.waiting.len() < WAITING_MAX;
        if held {
            self.waiting.push(early);
        }
        held
    }

    /// The Resume or Attach of a session has been decided, and with it these reads.
    pub fn decided(&mut self, session: SessionId) -> Vec<EarlyRead> {
        self.decided.insert(session);
        self.waiting.extract_if(.., |(read, _)| read.session == session).collect()
    }

    /// Gives up all that wait.
    pub fn take(&mut self) -> Vec<EarlyRead> {
        std::mem::take(&mut self.waiting)
    }
}
