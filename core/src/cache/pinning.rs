//! Pinning ranges of a volume in its cache.

use super::pins::{Pinned, Pins};
use super::{Cache, CachePhase};
use crate::block::Range;
use crate::extent::RangeSet;

/// What may be pinned of the cache: the rest is for what is read besides.
const SHARE: (u64, u64) = (4, 5);

impl Cache {
    /// What is pinned.
    pub(crate) fn pins(&self) -> &Pins {
        self.pinned.pins()
    }

    /// Most bytes that may be pinned.
    pub(crate) fn pinned_most_bytes(&self) -> u64 {
        self.head.geometry.capacity_bytes() / SHARE.1 * SHARE.0
    }

    /// This is pinned from now on and nothing else, as far as the cache allows.
    pub(crate) fn set_pins(&mut self, mut pins: Pins) {
        pins.cut(self.pinned_most_bytes());
        self.pinned = Pinned::new(pins);
        for slot in 0..self.index.slots() {
            let line = self.index.line(slot);
            self.index.pin(slot, line.is_some_and(|line| self.pinned.pins().holds(line)));
        }
    }

    /// What is pinned and may not be here, at or after a sector.
    pub(crate) fn lacking(&self) -> &RangeSet {
        self.pinned.lacking()
    }

    /// Somebody looks after a range of what is lacking.
    pub(crate) fn take_lacking(&mut self, range: Range) {
        self.pinned.take_lacking(range);
    }

    /// What is pinned of a range is no longer here, or not yet.
    pub(crate) fn lack(&mut self, range: Range) {
        if self.phase != CachePhase::Off {
            self.pinned.lack(range);
        }
    }

    /// Bytes of a range that are not pinned.
    pub(crate) fn unpinned_bytes(&self, range: Range) -> u64 {
        self.pinned.unpinned_bytes(range)
    }

    /// Bytes on their way to the disk.
    pub(crate) fn writing_bytes(&self) -> u64 {
        self.writing_bytes
    }
}
