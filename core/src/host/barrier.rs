//! Barriers: the store asks for everything that has been acknowledged, on behalf of somebody who
//! takes a snapshot.

use crate::block::Seq;
use std::collections::VecDeque;

/// A barrier that is not committed.
#[derive(Debug)]
struct Barrier {
    number: u64,
    /// What is to be committed.
    last: Seq,
    /// The store knows that it is on stable storage here.
    told: bool,
}

/// Barriers that the store has asked for, as long as they are not committed.
#[derive(Debug, Default)]
pub(super) struct Barriers {
    asked: VecDeque<Barrier>,
}

impl Barriers {
    /// The store asks for everything up to `last`.
    pub(super) fn ask(&mut self, number: u64, last: Seq) {
        self.asked.push_back(Barrier { number, last, told: false });
    }

    /// Gives `tell` the number of each barrier that is on stable storage and not told yet, and what
    /// is to be committed.
    pub(super) fn tell(&mut self, stable: Seq, mut tell: impl FnMut(u64, Seq)) {
        for barrier in &mut self.asked {
            if barrier.last <= stable && !std::mem::replace(&mut barrier.told, true) {
                tell(barrier.number, barrier.last);
            }
        }
    }

    /// Forgets what the store knows and has committed.
    pub(super) fn forget(&mut self, committed: Seq) {
        self.asked.retain(|barrier| !barrier.told || barrier.last > committed);
    }

    /// The store has forgotten what it had asked.
    pub(super) fn link_lost(&mut self) {
        self.asked.clear();
    }

    /// The last number that the store waits for.
    pub(super) fn awaited(&self) -> Option<Seq> {
        self.asked.back().map(|barrier| barrier.last)
    }
}
