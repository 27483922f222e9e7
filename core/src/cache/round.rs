//! The changes of the index that the file lacks, and the round that writes them.

use super::parts::Bits;
use crate::block::Time;
use crate::wire::link::Moment;
use std::time::Duration;

/// Most pages of the index under way.
const PAGES_MAX: usize = 16;

/// A round of writing the index.
#[derive(Clone, Copy, Debug)]
enum IndexRound {
    None,
    /// `writing` pages are under way. The head of this round will have `moment` and `stamp`, from
    /// its beginning.
    Pages {
        moment: Moment,
        stamp: u32,
        writing: usize,
    },
    Sync {
        moment: Moment,
        stamp: u32,
    },
    Head,
}

/// The next operation of a round.
#[derive(Clone, Copy, Debug)]
pub(super) enum RoundStep {
    /// The page as it is now, which may be newer than when the round began.
    Page(usize),
    Sync,
    /// The head, which says that all changes up to a moment are in the pages.
    Head {
        moment: Moment,
        stamp: u32,
    },
}

/// The changes of the index, and the round under way.
#[derive(Debug)]
pub(super) struct Rounds {
    round: IndexRound,
    /// Pages that have changed since the round began.
    dirty: Bits,
    /// Pages that the round has to write.
    pages: Bits,
    /// The time of the first change since the round began.
    changed: Option<Time>,
    /// How long a change may stay out of the file.
    interval: Duration,
}

impl Rounds {
    pub(super) fn new(pages: usize) -> Rounds {
        Rounds {
            round: IndexRound::None,
            dirty: Bits::new(pages),
            pages: Bits::new(pages),
            changed: None,
            interval: Duration::ZERO,
        }
    }

    pub(super) fn set_interval(&mut self, interval: Duration) {
        self.interval = interval;
    }

    /// A page has changed.
    pub(super) fn mark(&mut self, page: usize) {
        self.dirty.set(page);
    }

    /// Notes that the file lacks something.
    pub(super) fn changed(&mut self, now: Time) {
        self.changed.get_or_insert(now);
    }

    pub(super) fn is_changed(&self) -> bool {
        self.changed.is_some()
    }

    /// The time at which a round has to begin, because of the changes.
    pub(super) fn due(&self) -> Option<Time> {
        self.changed.map(|since| since.after(self.interval))
    }

    /// Whether no round is under way.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.round, IndexRound::None)
    }

    /// Begins a round, whose head will have this moment and stamp.
    pub(super) fn begin(&mut self, moment: Moment, stamp: u32) {
        self.changed = None;
        std::mem::swap(&mut self.pages, &mut self.dirty);
        self.round = IndexRound::Pages { moment, stamp, writing: 0 };
    }

    /// The next operation, unless the round has to wait for others.
    pub(super) fn next(&mut self) -> Option<RoundStep> {
        let IndexRound::Pages { moment, stamp, writing } = self.round else { return None };
        if writing >= PAGES_MAX {
            return None;
        }
        if let Some(page) = self.pages.pop() {
            self.round = IndexRound::Pages { moment, stamp, writing: writing + 1 };
            return Some(RoundStep::Page(page));
        }
        if writing > 0 {
            return None;
        }
        self.round = IndexRound::Sync { moment, stamp };
        Some(RoundStep::Sync)
    }

    /// Takes the end of a write or sync. Gives the head if that is next.
    pub(super) fn done(&mut self) -> Option<RoundStep> {
        match self.round {
            IndexRound::Pages { moment, stamp, writing } => {
                let writing = writing.saturating_sub(1);
                self.round = IndexRound::Pages { moment, stamp, writing };
                None
            }
            IndexRound::Sync { moment, stamp } => {
                self.round = IndexRound::Head;
                Some(RoundStep::Head { moment, stamp })
            }
            IndexRound::Head | IndexRound::None => {
                self.round = IndexRound::None;
                None
            }
        }
    }

    /// Ends the round. No other one begins.
    pub(super) fn stop(&mut self) {
        self.round = IndexRound::None;
        self.changed = None;
    }
}

/// Gives a number to each block that the cache writes.
#[derive(Debug)]
pub(super) struct Stamps {
    next: u32,
    /// Given away since the last round began.
    given: u32,
}

impl Stamps {
    pub(super) fn after(next: u32) -> Stamps {
        Stamps { next, given: 0 }
    }

    /// Never one whose low half is 0, which stands for zeroes.
    pub(super) fn next(&mut self) -> u32 {
        if self.next as u16 == 0 {
            self.next = self.next.wrapping_add(1);
        }
        let stamp = self.next;
        self.next = self.next.wrapping_add(1);
        self.given += 1;
        stamp
    }

    /// How many there are from that one to the next.
    pub(super) fn since(&self, stamp: u32) -> u32 {
        self.next.wrapping_sub(stamp)
    }

    /// Given away since the last round began.
    pub(super) fn given(&self) -> u32 {
        self.given
    }

    /// A round begins. Gives the next stamp.
    pub(super) fn begin_round(&mut self) -> u32 {
        self.given = 0;
        self.next
    }
}
