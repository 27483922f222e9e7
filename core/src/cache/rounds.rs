//! Rounds: they bring the index in the file up to date, a few pages at a time.

use super::format::encode_page;
use super::{Cache, CachePhase, IndexRound, PAGES_MAX, ROUND_STAMPS};
use crate::block::Time;
use crate::disk::DiskOperation;
use crate::wire::link::Moment;

impl Cache {
    /// Begins a round if one is due or `hurried`, and continues the round under way. The volume
    /// knows that the store has committed everything up to `moment`, and has reported all those
    /// writes to [`Cache::forget`].
    pub fn settle(&mut self, now: Time, moment: Moment, hurried: bool) {
        if self.phase != CachePhase::Ready {
            return;
        }
        if matches!(self.round, IndexRound::None) && self.is_due(now, moment, hurried) {
            self.begin_round(moment);
        }
        self.write_pages();
    }

    fn is_due(&self, now: Time, moment: Moment, hurried: bool) -> bool {
        let late = self.changed.is_some_and(|since| since.after(self.interval) <= now);
        // A newer moment is worth a round even without changes: after a restart the store has fewer
        // writes to list.
        let end = hurried && (self.changed.is_some() || self.head.moment != Some(moment));
        late || end || self.stamps >= ROUND_STAMPS || self.head.moment.is_none()
    }

    /// The time at which [`Cache::settle`] has something to do.
    pub fn deadline(&self) -> Option<Time> {
        let idle = matches!(self.round, IndexRound::None) && self.phase == CachePhase::Ready;
        self.changed.filter(|_| idle).map(|since| since.after(self.interval))
    }

    /// Whether no operation is under way or due.
    pub fn is_settled(&self, moment: Moment) -> bool {
        match self.phase {
            CachePhase::Off | CachePhase::Asking => self.reads.is_empty(),
            CachePhase::Ready => {
                matches!(self.round, IndexRound::None)
                    && self.changed.is_none()
                    && self.head.moment == Some(moment)
                    && self.fills.is_empty()
                    && self.reads.is_empty()
            }
        }
    }

    fn begin_round(&mut self, moment: Moment) {
        self.head.round += 1;
        self.stamps = 0;
        self.changed = None;
        std::mem::swap(&mut self.pages, &mut self.dirty);
        self.round = IndexRound::Pages { moment, stamp: self.stamp, writing: 0 };
    }

    fn write_pages(&mut self) {
        let IndexRound::Pages { moment, stamp, mut writing } = self.round else { return };
        while writing < PAGES_MAX
            && let Some(page) = self.pages.pop()
        {
            // The page may be newer than the beginning of the round.
            let (geometry, tag) = (self.head.geometry, self.head.tag);
            let round = self.head.round as u32;
            let data = encode_page(geometry, tag, page, round, &self.index);
            self.head.rounds[page] = round;
            let id = self.id();
            self.counters.index_bytes += data.len() as u64;
            self.counters.written_bytes += data.len() as u64;
            let offset = geometry.page_at(page);
            self.out.push_back(DiskOperation::Write { id, file: 0, offset, data, sync: false });
            writing += 1;
        }
        if writing > 0 {
            self.round = IndexRound::Pages { moment, stamp, writing };
            return;
        }
        let id = self.id();
        self.out.push_back(DiskOperation::Sync { id, file: 0 });
        self.round = IndexRound::Sync { moment, stamp };
    }

    /// A write or a sync of the index has ended.
    pub(super) fn round_done(&mut self) {
        match self.round {
            IndexRound::Pages { moment, stamp, writing } => {
                self.round =
                    IndexRound::Pages { moment, stamp, writing: writing.saturating_sub(1) };
                self.write_pages();
            }
            IndexRound::Sync { moment, stamp } => {
                self.head.moment = Some(moment);
                self.head.stamp = stamp;
                let data = self.head.encode();
                let id = self.id();
                self.counters.index_bytes += data.len() as u64;
                self.counters.written_bytes += data.len() as u64;
                let offset = self.head.geometry.head_at(self.head.round);
                self.out.push_back(DiskOperation::Write { id, file: 0, offset, data, sync: true });
                self.round = IndexRound::Head;
            }
            IndexRound::Head | IndexRound::None => self.round = IndexRound::None,
        }
    }
}
