//! Bytes of each session's drain lane that wait in the pipeline. If a session has too many, the
//! link reads no more of it.

use std::collections::{BTreeSet, HashMap};

/// Most waiting bytes of a session's drain lane before the link stops reading it: four batches of
/// usual size. So the store sees the batches of other volumes behind them.
const HELD_MAX: u64 = 16 << 20;
/// Bytes that a request counts for besides its payload.
const FRAME_BYTES: u64 = 4096;

#[derive(Default)]
pub(in super::super) struct HeldDrains {
    /// Bytes that wait, by session.
    bytes: HashMap<u64, u64>,
    /// Sessions that have come to have too much, or no longer have.
    changed: BTreeSet<u64>,
}

impl HeldDrains {
    /// Whether the link must stop reading a session's drain lane.
    pub fn is_full(&self, session: u64) -> bool {
        self.bytes.get(&session).is_some_and(|bytes| *bytes >= HELD_MAX)
    }

    /// A request of that many bytes waits.
    pub fn add(&mut self, session: u64, bytes: u64) {
        *self.bytes.entry(session).or_default() += bytes + FRAME_BYTES;
        if self.is_full(session) {
            self.changed.insert(session);
        }
    }

    /// It waits no longer.
    pub fn remove(&mut self, session: u64, bytes: u64) {
        let was_full = self.is_full(session);
        if let Some(held) = self.bytes.get_mut(&session) {
            *held = held.saturating_sub(bytes + FRAME_BYTES);
        }
        if was_full && !self.is_full(session) {
            self.changed.insert(session);
        }
    }

    /// A session is over.
    pub fn forget(&mut self, session: u64) {
        self.bytes.remove(&session);
        self.changed.remove(&session);
    }

    /// The sessions whose state has changed, for a new decision about reading them.
    pub fn take_changed(&mut self) -> BTreeSet<u64> {
        std::mem::take(&mut self.changed)
    }
}
