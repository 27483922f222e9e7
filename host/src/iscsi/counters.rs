//! Totals of the target since the start.

use std::collections::BTreeMap;

/// Totals since the start.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// The counters of the target machine.
    pub target: longhaul_core::front::iscsi::Counters,
    /// Connections that the target closed, by reason.
    pub closed: BTreeMap<&'static str, u64>,
    /// Connections turned away because their portal had too many.
    pub turned_away: u64,
    /// Bytes read from initiators.
    pub received_bytes: u64,
    /// Bytes written to initiators.
    pub sent_bytes: u64,
}

impl Counters {
    /// Adds those of another front thread.
    pub fn add(&mut self, other: Counters) {
        self.target.add(&other.target);
        for (reason, count) in other.closed {
            *self.closed.entry(reason).or_default() += count;
        }
        self.turned_away += other.turned_away;
        self.received_bytes += other.received_bytes;
        self.sent_bytes += other.sent_bytes;
    }
}
