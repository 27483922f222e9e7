//! Pinning ranges of a volume in its cache.

use super::pins::{Pinned, Pins};
use super::{Cache, CachePhase};
use crate::block::Range;
use crate::extent::RangeSet;

/// The share of the cache for pinned ranges, at most. Other reads use the rest.
const SHARE: (u64, u64) = (4, 5);

impl Cache {
    /// The pinned ranges.
    pub(crate) fn pins(&self) -> &Pins {
        self.pinned.pins()
    }

    /// Most bytes of pinned ranges.
    pub(crate) fn pinned_most_bytes(&self) -> u64 {
        self.head.geometry.capacity_bytes() / SHARE.1 * SHARE.0
    }

    /// Pins these ranges and no others, up to [`Cache::pinned_most_bytes`].
    pub(crate) fn set_pins(&mut self, mut pins: Pins) {
        pins.cut(self.pinned_most_bytes());
        self.pinned = Pinned::new(pins);
        for slot in 0..self.index.slots() {
            let line = self.index.line(slot);
            self.index.pin(slot, line.is_some_and(|line| self.pinned.pins().holds(line)));
        }
    }

    /// Pinned ranges that the cache may lack.
    pub(crate) fn lacking(&self) -> &RangeSet {
        self.pinned.lacking()
    }

    /// Takes a range off the lacking ones, because the volume fetches it now.
    pub(crate) fn take_lacking(&mut self, range: Range) {
        self.pinned.take_lacking(range);
    }

    /// Notes that the cache lacks the pinned parts of a range.
    pub(crate) fn lack(&mut self, range: Range) {
        if self.phase != CachePhase::Off {
            self.pinned.lack(range);
        }
    }

    /// Bytes of a range outside of the pins.
    pub(crate) fn unpinned_bytes(&self, range: Range) -> u64 {
        self.pinned.unpinned_bytes(range)
    }

    /// Bytes on their way to the disk.
    pub(crate) fn writing_bytes(&self) -> u64 {
        self.writing_bytes
    }
}
