//! What the host engine can be told. Every limit on its memory is here or follows from here.

use super::cache::WRITING_BYTES_MAX;
use super::journal::Geometry;
use crate::pack::Packing;
use crate::record::packed::MAX_PACKED_SECTORS;
use crate::wire::link::BATCH_BYTES;
use std::time::Duration;

/// Settings of one attached volume.
///
/// Memory is bounded by `memory_bytes` (writes on their way), `readahead_bytes` (read ahead and
/// being read ahead; 8 MiB more while a trace is recorded and as much while one is replayed), about
/// 100 B × `map_entries_max` (dirty map), at most 144 B for each 4 KiB of journal (frame index),
/// `window_max_bytes` (batches handed to the link and not committed) plus three batches, the read
/// cache's index (15 B for each 16 KiB) with 4 MiB on its way to its file and 16 MiB of batches,
/// `versions_bytes` and some 20 MiB of changes if the volume is keyed (for a while after a restart,
/// some 150 bytes for each record of the journal instead), and whatever the requests that the front
/// admits hold themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where writes live until the store has committed them.
    pub mode: Mode,
    /// What a flush waits for.
    pub durability: Durability,
    /// What happens when the local disk fails.
    pub on_journal_failure: OnJournalFailure,
    /// Most bytes of writes in memory: acknowledged and not yet on stable storage. Should hold a
    /// few journal syncs' worth of writes: write bandwidth × sync latency × 4.
    pub memory_bytes: u64,
    /// Most bytes shipped to the store and not committed. Bandwidth × round trip, and more.
    pub window_max_bytes: u64,
    /// Target size of a batch, at most [`crate::wire::link::MAX_BATCH_BYTES`].
    pub batch_bytes: u64,
    /// Most bytes of data read ahead and being read ahead together: twice the bandwidth × round
    /// trip keeps a line full, a quarter is for hints and for what was used. 0: nothing is read
    /// ahead, not even when a client asks for it.
    pub readahead_bytes: u64,
    /// Most bytes of the table of versions that a keyed volume has in memory; a page of 4 KiB is
    /// about 4 MiB of the volume.
    pub versions_bytes: u64,
    /// How long a write may wait for company before it is shipped.
    pub drain_linger: Duration,
    /// How long an acknowledged write may stay out of stable storage although nobody flushes.
    pub sync_interval: Duration,
    /// How long a change of the read cache's index may stay out of its file: a crash costs what was
    /// cached since.
    pub cache_interval: Duration,
    /// Most bytes on their way to the read cache's file.
    pub cache_writing_bytes: u64,
    /// Most entries of the dirty map; when only entries that the store has not committed are left
    /// at the limit, writes wait.
    pub map_entries_max: u64,
    /// What is done to the data of writes before it is journaled.
    pub packing: Packing,
    /// Longest packed record, in sectors: 8 to [`crate::record::packed::MAX_PACKED_SECTORS`]. What
    /// is read of a packed record to get at one block of it is up to that much; each record costs
    /// 64 bytes and an entry in the maps of host and store.
    pub packed_sectors_max: u64,
}

impl Config {
    /// The defaults.
    #[must_use]
    pub fn new(mode: Mode) -> Config {
        let memory_bytes = 32 << 20;
        let bytes = match mode {
            Mode::Journal(geometry) => geometry.file_bytes.saturating_mul(geometry.files.into()),
            Mode::WriteThrough => memory_bytes,
        };
        Config {
            mode,
            durability: Durability::Host,
            on_journal_failure: OnJournalFailure::Continue,
            memory_bytes,
            window_max_bytes: 64 << 20,
            batch_bytes: BATCH_BYTES as u64,
            readahead_bytes: 32 << 20,
            versions_bytes: 32 << 20,
            drain_linger: Duration::from_millis(100),
            sync_interval: Duration::from_millis(100),
            cache_interval: Duration::from_secs(10),
            cache_writing_bytes: WRITING_BYTES_MAX,
            map_entries_max: bytes >> 10,
            packing: Packing::default(),
            packed_sectors_max: MAX_PACKED_SECTORS,
        }
    }
}

/// Where writes live until the store has committed them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In a journal on local stable storage.
    Journal(Geometry),
    /// In memory: a write is acknowledged when the store has committed it.
    WriteThrough,
}

/// What "durable" means for a flush and for a write with FUA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// On the host's local stable storage (or at the store, should that come first).
    Host,
    /// Committed by the store.
    Store,
    /// Committed by the store, at both places of its objects if there are two.
    Replica,
}

/// What happens after a write or sync of the journal has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnJournalFailure {
    /// The volume goes on in store durability, with its writes in memory until the store has
    /// committed them.
    Continue,
    /// Every request fails.
    Stop,
}
