//! Rounds: they bring the index in the file up to date, a few pages at a time.

use super::format::encode_page;
use super::round::RoundStep;
use super::{Cache, CachePhase, ROUND_STAMPS};
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
        if self.rounds.is_idle() && self.is_due(now, moment, hurried) {
            self.begin_round(moment);
        }
        self.write_pages();
    }

    fn is_due(&self, now: Time, moment: Moment, hurried: bool) -> bool {
        let late = self.rounds.due().is_some_and(|due| due <= now);
        // A moment that is known is worth keeping even if nothing has changed: the store looks back
        // less far.
        let end = hurried && (self.rounds.is_changed() || self.head.moment != Some(moment));
        late || end || self.stamps.given() >= ROUND_STAMPS || self.head.moment.is_none()
    }

    /// The time at which [`Cache::settle`] has something to do.
    pub fn deadline(&self) -> Option<Time> {
        let idle = self.rounds.is_idle() && self.phase == CachePhase::Ready;
        self.rounds.due().filter(|_| idle)
    }

    /// Whether no operation is under way or due.
    pub fn is_settled(&self, moment: Moment) -> bool {
        match self.phase {
            CachePhase::Off | CachePhase::Asking => self.reads.is_empty(),
            CachePhase::Ready => {
                self.rounds.is_idle()
                    && !self.rounds.is_changed()
                    && self.head.moment == Some(moment)
                    && self.fills.is_empty()
                    && self.reads.is_empty()
            }
        }
    }

    fn begin_round(&mut self, moment: Moment) {
        self.head.round += 1;
        let stamp = self.stamps.begin_round();
        self.rounds.begin(moment, stamp);
    }

    fn write_pages(&mut self) {
        while let Some(step) = self.rounds.next() {
            self.write(step);
        }
    }

    fn write(&mut self, step: RoundStep) {
        let (data, offset, sync) = match step {
            RoundStep::Page(page) => {
                let (geometry, tag) = (self.head.geometry, self.head.tag);
                let round = self.head.round as u32;
                let data = encode_page(geometry, tag, page, round, &self.index);
                self.head.rounds[page] = round;
                (data, geometry.page_at(page), false)
            }
            RoundStep::Sync => {
                let id = self.id();
                self.out.push_back(DiskOperation::Sync { id, file: 0 });
                return;
            }
            RoundStep::Head { moment, stamp } => {
                self.head.moment = Some(moment);
                self.head.stamp = stamp;
                (self.head.encode(), self.head.geometry.head_at(self.head.round), true)
            }
        };
        let id = self.id();
        self.counters.index_bytes += data.len() as u64;
        self.counters.written_bytes += data.len() as u64;
        self.out.push_back(DiskOperation::Write { id, file: 0, offset, data, sync });
    }

    /// A write or a sync of the index has ended.
    pub(super) fn round_done(&mut self) {
        if let Some(head) = self.rounds.done() {
            self.write(head);
        }
        self.write_pages();
    }
}
