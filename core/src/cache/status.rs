//! Numbers of a cache for operators and metrics.

/// Totals since the attach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounters {
    /// Bytes given out.
    pub hit_bytes: u64,
    /// Bytes that were asked for and not there.
    pub miss_bytes: u64,
    /// Bytes written to the disk, the index included.
    pub written_bytes: u64,
    /// Bytes of the index among them.
    pub index_bytes: u64,
    /// Lines that had to go for others.
    pub evictions: u64,
    /// Bytes offered and turned away by policy.
    pub refused_bytes: u64,
    /// Bytes offered and dropped because the disk was behind.
    pub behind_bytes: u64,
    /// Bytes forgotten because they were written.
    pub forgotten_bytes: u64,
    /// Blocks that were damaged on the disk, or could not be read.
    pub damaged_blocks: u64,
}

/// How the cache is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStatus {
    /// Whether it gives anything out: not while it waits for the store's word, nor after a failure.
    pub ready: bool,
    /// Whether its disk has failed.
    pub off: bool,
    /// Bytes that fit.
    pub capacity_bytes: u64,
    /// Bytes that are valid.
    pub valid_bytes: u64,
    /// Bytes that were there when the volume was attached.
    pub found_bytes: u64,
    /// Bytes of these that were dropped: written since, or not known to be good.
    pub dropped_bytes: u64,
    /// Whether all of them were, because the store did not know what was written since.
    pub dropped_all: bool,
    /// Bytes of the volume that are pinned.
    pub pinned_bytes: u64,
    /// Bytes of these that are valid.
    pub pinned_valid_bytes: u64,
    /// Most bytes that may be pinned.
    pub pinned_most_bytes: u64,
    /// Totals.
    pub counters: CacheCounters,
}
