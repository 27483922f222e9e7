//! The status of a volume.

use super::Volume;
use crate::block::Time;
use crate::host::status::Status;

impl Volume {
    /// How the volume is doing.
    #[must_use]
    pub fn status(&self, now: Time) -> Status {
        let (journal, packing) = (self.log.journal(), self.keyed.packing());
        let born = journal.oldest_uncommitted();
        Status {
            epoch: self.context.epoch,
            last: self.log.last(),
            stable: self.log.stable(),
            committed: self.log.committed(),
            lag_bytes: journal.lag_bytes(),
            lag: born.map(|born| now.since(born)).unwrap_or_default(),
            journal_bytes: journal.used_bytes(),
            journal_capacity_bytes: journal.capacity_bytes(),
            memory_bytes: journal.memory_bytes(),
            dirty_entries: self.log.map_entries(),
            in_flight_bytes: self.drain.in_flight_bytes(),
            window_bytes: self.drain.window_bytes(),
            waiting_reads: self.reads.len() + self.session.waiting(),
            waiting_writes: self.acknowledger.waiting_writes(),
            waiting_flushes: self.acknowledger.waiting_flushes(),
            second: self.acknowledger.replica(),
            link_up: self.session.is_up(),
            memory_only: journal.is_memory_only(),
            latched: self.acknowledger.has_failed(),
            full: self.session.is_full(),
            fenced: self.session.fenced(),
            drain_rate: self.drain.rate(),
            readahead_rate: self.readahead.rate(),
            readahead: self.readahead.status(now),
            cache: self.caching.status(),
            warming: self.background.warm_status(),
            versions: self.keyed.status(),
            rewriting: self.background.rewrite_status(self.session.sectors()),
            counters: self.out.counters(),
            packed: packing.counters,
            key: packing.key(),
        }
    }
}
