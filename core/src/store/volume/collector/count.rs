//! Counts the stored and the named bytes, and decides whether the next count is worth its reads.

use crate::store::gc::usage::Policy;

/// A count is worth its reads after this growth since the last count: one part in this number.
const GROWN: u64 = 32;
/// A round that frees less than one part in this number is the last for a while.
const LEAST: u64 = 128;

/// The result of the last count, and the growth since.
#[derive(Default)]
pub(super) struct SpaceCount {
    /// Bytes stored and named as of the last count, and written since.
    stored: u64,
    named: u64,
    written: u64,
    /// Bytes stored when the last count ended, if this engine has counted.
    counted: Option<u64>,
    /// Bytes stored when the round began that empties something; otherwise as many as can be.
    emptying: u64,
    /// Mapped bytes at the end of the last count.
    mapped: u64,
    /// Much may have become unnamed at once.
    recount: bool,
}

impl SpaceCount {
    /// Takes the counts of a root.
    pub fn adopt(&mut self, stored: u64, named: u64) {
        (self.stored, self.named) = (stored, named);
        (self.written, self.counted) = (0, None);
    }

    /// The engine has written a segment of `bytes` bytes.
    pub fn written(&mut self, bytes: u64) {
        self.written = self.written.saturating_add(bytes);
    }

    /// Much may have become unnamed at once.
    pub fn recount(&mut self) {
        self.recount = true;
    }

    /// Whether anybody has counted.
    pub fn is_known(&self) -> bool {
        self.stored > 0
    }

    /// Bytes stored now, if anybody has counted, and bytes named as of the last count.
    pub fn space(&self) -> Option<(u64, u64)> {
        self.is_known().then_some((self.stored + self.written, self.named))
    }

    /// The counts for a root: stored bytes, 0 before the first count, and named bytes.
    pub fn for_root(&self) -> (u64, u64) {
        (if self.is_known() { self.stored + self.written } else { 0 }, self.named)
    }

    /// Whether a count is worth its reads. The map holds `mapped` bytes; `own`: no parent has a
    /// part of them.
    pub fn is_due(&self, policy: &Policy, mapped: u64, own: bool) -> bool {
        let mut stored = self.stored.saturating_add(self.written);
        if self.stored == 0 && self.counted.is_none() && own {
            // Before the first count: the mapped bytes are a lower bound of the stored ones.
            stored = stored.max(mapped);
        }
        let counted = self.counted.unwrap_or(0);
        let grown = counted + counted / GROWN;
        // Discarded, or overwritten by a merge's account.
        let fallen = self.mapped.saturating_sub(mapped);
        let named = self.named.saturating_sub(fallen);
        stored >= policy.least_bytes
            && (self.recount
                || (stored > grown || fallen > self.mapped / GROWN)
                    && stored > named.saturating_mul(policy.high_percent) / 100)
    }

    /// A count begins.
    pub fn begin(&mut self) {
        (self.written, self.recount) = (0, false);
    }

    /// A round begins, which empties something or not.
    pub fn begin_round(&mut self, empties: bool) {
        self.emptying = if empties { self.stored } else { u64::MAX };
    }

    /// The round has counted. Says whether another one is worth it: not after one that gave hardly
    /// anything back.
    pub fn counted(&mut self, stored: u64, named: u64) -> bool {
        let before = std::mem::take(&mut self.emptying);
        (self.stored, self.named) = (stored, named);
        stored < before - before / LEAST
    }

    /// The engine has written the second map. The map holds `mapped` bytes.
    pub fn end(&mut self, mapped: u64) {
        self.counted = Some(self.stored + self.written);
        self.mapped = mapped;
    }
}
