//! Barriers: the store asks for all acknowledged writes, on behalf of a client that takes a
//! snapshot.

use crate::block::Seq;
use std::collections::VecDeque;

/// An uncommitted barrier.
#[derive(Debug)]
struct Barrier {
    number: u64,
    /// The last write that it covers.
    last: Seq,
    /// The store knows that these writes are on stable storage here.
    told: bool,
}

/// Barriers that the store has asked for and has not committed.
#[derive(Debug, Default)]
pub(super) struct Barriers {
    asked: VecDeque<Barrier>,
}

impl Barriers {
    /// The store asks for everything up to `last`.
    pub(super) fn ask(&mut self, number: u64, last: Seq) {
        self.asked.push_back(Barrier { number, last, told: false });
    }

    /// Calls `tell` with the number and the last write of each barrier that is on stable storage,
    /// once for each barrier.
    pub(super) fn tell(&mut self, stable: Seq, mut tell: impl FnMut(u64, Seq)) {
        for barrier in &mut self.asked {
            if barrier.last <= stable && !std::mem::replace(&mut barrier.told, true) {
                tell(barrier.number, barrier.last);
            }
        }
    }

    /// Forgets barriers that the store knows and has committed.
    pub(super) fn forget(&mut self, committed: Seq) {
        self.asked.retain(|barrier| !barrier.told || barrier.last > committed);
    }

    /// The store has forgotten its barriers.
    pub(super) fn link_lost(&mut self) {
        self.asked.clear();
    }

    /// The last number that the store waits for.
    pub(super) fn awaited(&self) -> Option<Seq> {
        self.asked.back().map(|barrier| barrier.last)
    }
}
