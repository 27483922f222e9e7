//! Numbers for operators and metrics.

use super::background::{RewriteStatus, WarmStatus};
use super::cache::CacheStatus;
use super::readahead::ReadAheadStatus;
use super::versions::VersionsStatus;
use crate::block::{Epoch, Seq};
use crate::pack;
use crate::wire::link::ReplicaProgress;
use std::time::Duration;

/// The state of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The epoch of the attach.
    pub epoch: Epoch,
    /// The last number given to a write.
    pub last: Seq,
    /// The last number on the host's stable storage.
    pub stable: Seq,
    /// The last number the store has committed.
    pub committed: Seq,
    /// Bytes that the store has not committed.
    pub lag_bytes: u64,
    /// Age of the oldest write that the store has not committed. The journal does not hold the
    /// times of writes. So writes of an earlier run count from the attach.
    pub lag: Duration,
    /// Journal space taken by writes that the store has not committed.
    pub journal_bytes: u64,
    /// Journal space.
    pub journal_capacity_bytes: u64,
    /// Buffers of writes in memory.
    pub memory_bytes: u64,
    /// Entries of the dirty map.
    pub dirty_entries: u64,
    /// Bytes shipped and not committed.
    pub in_flight_bytes: u64,
    /// Most bytes that may be.
    pub window_bytes: u64,
    /// Reads and status queries that wait for the disk or the store.
    pub waiting_reads: u64,
    /// Writes, discards and zeroes that wait for room.
    pub waiting_writes: u64,
    /// Flushes and writes that wait for durability.
    pub waiting_flushes: u64,
    /// The state of the store's replica.
    pub second: ReplicaProgress,
    /// Whether the store is reachable and the epoch resumed.
    pub link_up: bool,
    /// Whether writes live in memory only: write-through, or the journal has failed.
    pub memory_only: bool,
    /// Whether the journal has failed.
    pub latched: bool,
    /// Whether the store has no space for more data.
    pub full: bool,
    /// The epoch that fenced this one.
    pub fenced: Option<Epoch>,
    /// Limit of the drain, in bytes a second.
    pub drain_rate: Option<u64>,
    /// Limit of reading ahead, in bytes a second.
    pub readahead_rate: Option<u64>,
    /// Reading ahead.
    pub readahead: ReadAheadStatus,
    /// The read cache, if there is one.
    pub cache: Option<CacheStatus>,
    /// The last warming by command, if there was one.
    pub warming: Option<WarmStatus>,
    /// Encrypting anew, if the keys ask for it.
    pub rewriting: Option<RewriteStatus>,
    /// Since the attach.
    pub counters: Counters,
    /// Totals of packing since the attach.
    pub packed: pack::Counters,
    /// The version table, if the volume is keyed and has one.
    pub versions: Option<VersionsStatus>,
    /// Number of the key that new writes are encrypted with, if the volume is encrypted.
    pub key: Option<u32>,
}

/// Totals since the attach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Read requests.
    pub reads: u64,
    /// Bytes they asked for.
    pub read_bytes: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes they brought.
    pub write_bytes: u64,
    /// Discard and zero requests.
    pub markers: u64,
    /// Flush requests.
    pub flushes: u64,
    /// Requests to stage.
    pub stages: u64,
    /// Bytes they asked for.
    pub stage_bytes: u64,
    /// Requests to write staged pieces.
    pub copies: u64,
    /// Bytes that they wrote. None of these bytes came here.
    pub copy_bytes: u64,
    /// Prefetch requests.
    pub prefetches: u64,
    /// Bytes read from memory: writes on their way, discards, zeroes.
    pub memory_hit_bytes: u64,
    /// Bytes read from the journal's files.
    pub journal_hit_bytes: u64,
    /// Bytes read from the read-ahead.
    pub readahead_hit_bytes: u64,
    /// Bytes of reads that waited for a read-ahead under way.
    pub readahead_wait_bytes: u64,
    /// Bytes read from the read cache.
    pub cache_hit_bytes: u64,
    /// Bytes that only the store had.
    pub store_read_bytes: u64,
    /// Bytes of the read cache written back because the store's were damaged.
    pub written_back_bytes: u64,
    /// Batches shipped, repeats included.
    pub batches: u64,
    /// Bytes in them.
    pub batch_bytes: u64,
    /// Bytes of records that the drain did not send, thanks to coalescing.
    pub coalesced_bytes: u64,
    /// Journal writes.
    pub disk_writes: u64,
    /// Bytes in them.
    pub disk_write_bytes: u64,
    /// Journal syncs, those that come with a write included.
    pub disk_syncs: u64,
}
