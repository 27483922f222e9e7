//! Totals and times of a disk.

use crate::histogram::Histogram;

/// Totals of a journal's disk.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct DiskCounters {
    /// Writes, those with a sync included.
    pub writes: u64,
    /// Syncs, and writes with a sync.
    pub syncs: u64,
    /// Bytes written.
    pub bytes: u64,
}

/// How long a journal's disk took.
#[derive(Clone, Debug, Default)]
pub struct DiskTimes {
    /// Writes, those with a sync included.
    pub write: Histogram,
    /// Syncs.
    pub sync: Histogram,
    /// Reads that the page cache could not answer.
    pub read: Histogram,
}
