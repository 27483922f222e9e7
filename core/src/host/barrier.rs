//! Barriers: the store asks for everything that has been acknowledged, on behalf of somebody who takes a snapshot.

use super::volume::{Link, Volume};
use crate::block::Seq;
use crate::wire::link::{Lane, ToStore};
use std::collections::VecDeque;

/// Barriers that the store has asked for, as long as they are not committed.
#[derive(Debug, Default)]
pub(super) struct Barriers {
    /// The number of each, what is to be committed, and whether the store has been told.
    asked: VecDeque<(u64, Seq, bool)>,
}

impl Barriers {
    /// The last number that the store waits for.
    pub(super) fn awaited(&self) -> Option<Seq> {
        self.asked.back().map(|(_, seq, _)| *seq)
    }

    /// The store has forgotten what it had asked.
    pub(super) fn link_lost(&mut self) {
        self.asked.clear();
    }
}

impl Volume {
    pub(super) fn barrier(&mut self, barrier: u64) {
        let last = self.log.last();
        self.barriers.asked.push_back((barrier, last, false));
    }

    /// Tells the store what is on stable storage here, and forgets what is committed there.
    pub(super) fn tell_barriers(&mut self) {
        let stable = self.log.stable();
        let (volume, epoch) = (self.context.volume, self.context.epoch);
        let mut due = Vec::new();
        for (barrier, seq, told) in &mut self.barriers.asked {
            if *seq <= stable && self.link == Link::Up && !std::mem::replace(told, true) {
                due.push(ToStore::Barrier { volume, epoch, barrier: *barrier, seq: *seq });
            }
        }
        let committed = self.log.committed();
        self.barriers.asked.retain(|(_, seq, told)| !*told || *seq > committed);
        for message in due {
            self.out.send(Lane::Control, message);
        }
    }
}
