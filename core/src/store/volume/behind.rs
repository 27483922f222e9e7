//! Reads that come with a Resume and not after its answer: the round trip that they save is the first
//! one after an outage.
//!
//! Promises: such a read is answered from the epoch that it names or not at all, and the answer has
//! everything that its host knew to be committed when it asked. If the log as known here says as much, nothing
//! is waited for: that another store or host has gone on with the volume since then matters no more than for
//! a read that is asked when all is well, the moment before this store learns of it. Otherwise the read waits
//! until the session's Resume has been decided. Bounded: at most [`WAITING_MAX`] wait.

use super::super::SessionId;
use super::super::reads::Request;
use super::{Phase, Volume};
use crate::block::Seq;
use crate::wire::link::{MAX_READ_SECTORS, ReadError};
use std::collections::BTreeSet;

/// Reads that may wait; more are asked again by their hosts once these have resumed.
const WAITING_MAX: usize = 1024;

/// Reads that wait for the Resume of their session.
#[derive(Default)]
pub(super) struct Behind {
    /// With what their hosts know to be committed.
    waiting: Vec<(Request, Seq)>,
    /// Sessions whose Resume or Attach has been decided: nothing waits for these.
    decided: BTreeSet<SessionId>,
}

impl Behind {
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Nobody waits for these answers.
    pub fn forget(&mut self, session: SessionId) {
        self.waiting.retain(|(read, _)| read.session != session);
        self.decided.remove(&session);
    }
}

impl Volume {
    /// Takes a read whose host knows everything up to `committed` to be committed.
    pub(super) fn read_behind(&mut self, read: Request, committed: Seq) {
        let (session, range) = (read.session, read.range);
        let current = self.state.epoch();
        let holds =
            read.epoch == current && self.holder.is_some_and(|holder| holder.session == session);
        let sound = !range.is_empty() && range.sectors <= MAX_READ_SECTORS;
        if !self.is_serving() || holds || !sound {
            match self.check_read(session, read.epoch, range, MAX_READ_SECTORS) {
                Ok(()) => self.reads.push(read),
                Err(error) => self.read_failed(read, error),
            }
        } else if read.epoch < current || self.key_of_other(session, read.epoch).is_some() {
            self.read_failed(read, ReadError::Fenced(current));
        } else if read.epoch == current
            && committed <= self.state.committed
            // It may have grown elsewhere.
            && range.fits(self.state.sectors)
        {
            self.reads.push(read);
        } else if self.behind.decided.contains(&session) || self.behind.waiting.len() >= WAITING_MAX
        {
            self.read_failed(read, ReadError::NotAttached);
        } else {
            self.behind.waiting.push((read, committed));
        }
    }

    fn is_serving(&self) -> bool {
        matches!(self.phase, Phase::Running | Phase::CatchingUp(_)) && !self.shutting_down
    }

    /// The Resume or Attach of a session has been decided, and with it the reads that came along.
    pub(super) fn release_behind(&mut self, session: SessionId) {
        self.behind.decided.insert(session);
        let waiting = std::mem::take(&mut self.behind.waiting);
        let (due, rest) = waiting.into_iter().partition(|(read, _)| read.session == session);
        self.behind.waiting = rest;
        self.answer_behind(due);
    }

    /// Nothing is served any more.
    pub(super) fn refuse_behind(&mut self) {
        let waiting = std::mem::take(&mut self.behind.waiting);
        self.answer_behind(waiting);
    }

    fn answer_behind(&mut self, due: Vec<(Request, Seq)>) {
        for (read, committed) in due {
            self.read_behind(read, committed);
        }
    }
}
