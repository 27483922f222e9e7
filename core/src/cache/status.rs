//! Numbers of a cache for operators and metrics.

/// Totals since the attach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounters {
    /// Bytes that the cache gave out.
    pub hit_bytes: u64,
    /// Bytes that the volume asked for and the cache did not have.
    pub miss_bytes: u64,
    /// Bytes written to the disk, the index included.
    pub written_bytes: u64,
    /// The part of `written_bytes` that was for the index.
    pub index_bytes: u64,
    /// Lines that the cache evicted.
    pub evictions: u64,
    /// Offered bytes that the policy turned away.
    pub refused_bytes: u64,
    /// Offered bytes that the cache dropped because the disk was behind.
    pub behind_bytes: u64,
    /// Bytes that the cache forgot because a client overwrote them.
    pub forgotten_bytes: u64,
    /// Blocks that the disk damaged or could not read.
    pub damaged_blocks: u64,
}

/// The state of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStatus {
    /// Whether the cache gives data out. False while it waits for the store's list of writes, and
    /// after a failure of its disk.
    pub ready: bool,
    /// Whether its disk has failed.
    pub off: bool,
    /// Bytes of data that fit.
    pub capacity_bytes: u64,
    /// Bytes that are valid.
    pub valid_bytes: u64,
    /// Bytes that the file held at the attach.
    pub found_bytes: u64,
    /// The part of `found_bytes` that the cache dropped: overwritten since, or not known to be
    /// good.
    pub dropped_bytes: u64,
    /// Whether the cache dropped all of them, because the store did not know the later writes.
    pub dropped_all: bool,
    /// Bytes of the volume that pins cover.
    pub pinned_bytes: u64,
    /// The part of `pinned_bytes` that is valid.
    pub pinned_valid_bytes: u64,
    /// Most bytes that pins may cover.
    pub pinned_most_bytes: u64,
    /// Totals.
    pub counters: CacheCounters,
}
