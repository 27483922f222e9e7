//! The settings of the host engine. Every limit on its memory is here or follows from these.

use super::cache::WRITING_BYTES_MAX;
use super::journal::Geometry;
use crate::pack::Packing;
use crate::record::packed::MAX_PACKED_SECTORS;
use crate::wire::link::BATCH_BYTES;
use std::time::Duration;

/// Settings of one attached volume.
///
/// They bound the memory of the volume. Its parts are:
///
/// - `memory_bytes` for writes on their way;
/// - `readahead_bytes` for read-ahead, present and under way. Add 8 MiB while a recording of a
///   trace runs, and 8 MiB while a replay runs;
/// - about 100 B × `map_entries_max` for the dirty map;
/// - at most 144 B for each 4 KiB of journal, for the index of frames;
/// - `window_max_bytes` plus three batches, for batches that the link has and the store has not
///   committed;
/// - the read cache's index (15 B for each 16 KiB), 4 MiB on the way to its file, and 16 MiB of
///   batches;
/// - if the volume is keyed, `versions_bytes` and some 20 MiB of changes. For a while after a
///   restart, the changes take some 150 bytes for each record of the journal instead;
/// - the memory of the requests that the front admits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where writes live until the store has committed them.
    pub mode: Mode,
    /// The durability that a flush waits for.
    pub durability: Durability,
    /// The reaction to a failure of the local disk.
    pub on_journal_failure: OnJournalFailure,
    /// Most bytes of writes in memory: acknowledged and not yet on stable storage. Should hold a
    /// few journal syncs' worth of writes: write bandwidth × sync latency × 4.
    pub memory_bytes: u64,
    /// Most bytes shipped to the store and not committed. Bandwidth × round trip, and more.
    pub window_max_bytes: u64,
    /// Target size of a batch, at most [`crate::wire::link::MAX_BATCH_BYTES`].
    pub batch_bytes: u64,
    /// Most bytes of read-ahead, present and under way together. Twice the bandwidth × round trip
    /// keeps a line full; a quarter is for hints and for used data. 0: read nothing ahead, not even
    /// when a client asks for it.
    pub readahead_bytes: u64,
    /// Most bytes of the version table in memory, for a keyed volume. A page of 4 KiB covers about
    /// 4 MiB of the volume.
    pub versions_bytes: u64,
    /// How long a write may wait for others before the drain sends it.
    pub drain_linger: Duration,
    /// How long an acknowledged write may stay out of stable storage although nobody flushes.
    pub sync_interval: Duration,
    /// How long a change of the read cache's index may stay out of its file. A crash loses the
    /// cached data since then.
    pub cache_interval: Duration,
    /// Most bytes on their way to the read cache's file.
    pub cache_writing_bytes: u64,
    /// Most entries of the dirty map. If the map is full of uncommitted entries, writes wait.
    pub map_entries_max: u64,
    /// The packing of the data of writes before the journal gets them.
    pub packing: Packing,
    /// Longest packed record, in sectors: 8 to [`crate::record::packed::MAX_PACKED_SECTORS`]. A
    /// read of one block of a packed record may have to read that much. Each record costs 64 bytes,
    /// and an entry in the maps of host and store.
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
    /// In memory. A write is acknowledged after its commit by the store.
    WriteThrough,
}

/// The meaning of "durable" for a flush and for a write with FUA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// On the host's local stable storage, or at the store if that comes first.
    Host,
    /// Committed by the store.
    Store,
    /// Committed by the store, and on its replica if there is one.
    Replica,
}

/// The reaction to a failed write or sync of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnJournalFailure {
    /// The volume goes on in store durability, with its writes in memory until the store has
    /// committed them.
    Continue,
    /// Every request fails.
    Stop,
}
