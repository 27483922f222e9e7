//! Limits of the engine of a volume.
//!
//! [`Volume::wants_input`]: super::Volume::wants_input

use super::gc::usage::Policy;
use super::map::Limits;
use super::map::pages::SharedPages;
use super::segment;
use crate::wire::link::{BATCH_BYTES, MAX_BATCH_BYTES};
use std::time::Duration;

/// Limits of one volume's engine. Together with the map they bound its memory.
#[derive(Clone, Debug)]
pub struct Config {
    /// A segment takes whole batches up to this many bytes, and at least one batch. At most
    /// [`segment::MAX_RECORDS_BYTES`]. Larger segments are fewer objects; smaller ones commit
    /// sooner where the object store is slow.
    pub segment_bytes: u64,
    /// Batches that wait for a segment, in bytes; beyond it [`Volume::wants_input`] says no.
    pub queue_bytes: u64,
    /// Segments on their way at once.
    pub in_flight: InFlight,
    /// The engine flushes the table of the map after this many segments. Opening the volume has to
    /// replay them.
    pub flush_every_segments: u64,
    /// Flush it when it takes so many bytes. Four times as much is the most before
    /// [`Volume::wants_input`] says no.
    pub table_bytes: u64,
    /// Limits of the rest of the map.
    pub map: Limits,
    /// The cache of the map's pages: one for all volumes of a store.
    pub pages: SharedPages,
    /// The engine deletes unneeded objects of the map this long after the root that drops them.
    /// Readers elsewhere may use an older root until then.
    pub delete_delay: Duration,
    /// When garbage collection runs, and how fast; never if absent.
    pub garbage_collection: Option<Policy>,
    /// Bytes of fragments that perhaps no root names, for each snapshot and besides a part of the
    /// map. With more, an audit reads the roots of all snapshots.
    pub sweep_bytes: u64,
    /// Segments prove that those before them were durable here. In a location that began as a
    /// replica they do not: the replica may lack some that home had.
    pub proves_segments: bool,
    /// Announced ranges in memory (about 150 B each). Beyond this limit the engine joins neighbors.
    pub announce_entries_max: usize,
    /// Announced ranges in a segment. Beyond this limit the engine joins neighbors there.
    pub announce_in_segment_max: usize,
    /// Announcements that no segment has carried for this long get a segment of their own.
    pub announce_persist: Duration,
    /// Concurrent reads of objects.
    pub read_operations_max: usize,
    /// Bytes of objects that the reads in progress may hold; a single read may exceed the limit
    /// alone. Staging may hold half as much in addition, or as much as one request.
    pub read_bytes_max: u64,
    /// Reads that wait; beyond it [`Volume::wants_input`] says no.
    pub reads_waiting_max: usize,
    /// The time that a host needs to come back. For this long after its session has ended, a host
    /// that has not detached counts as connected. Other hosts cannot get its volume then.
    pub holder_grace: Duration,
    /// First and longest pause before a retry of a failed operation; the pause doubles in between.
    pub retry: (Duration, Duration),
    /// How long the engine asks again for an object that the log names and the object store does
    /// not find. The time counts from the first such answer. After it, and after at most the
    /// longest pause of `retry`, the data is a medium error. While the object store is unreachable,
    /// the engine waits without an end.
    pub missing_wait: Duration,
}

/// Most segments of a volume on their way at once.
#[derive(Clone, Copy, Debug)]
pub struct InFlight {
    /// From 1 to [`segment::IN_FLIGHT_MAX`].
    pub segments: usize,
    /// A single segment may exceed the limit. The bandwidth × latency of the object store keeps it
    /// busy.
    pub bytes: u64,
}

/// The default wait for a missing object. A directory that several machines share may lag behind
/// for a shorter time. Clients wait longer before they give up.
pub const MISSING_WAIT: Duration = Duration::from_secs(20);

/// The default wait for a missing object in a bucket. Some object stores keep an object on several
/// machines. While too few of them run, such a store may say that the object does not exist (MinIO
/// does). A machine takes a while to start again.
pub const MISSING_WAIT_BUCKET: Duration = Duration::from_secs(300);

/// Bytes of memory that the maps of a store's volumes take, by default.
pub const MAP_MEMORY: u64 = 256 << 20;

impl Default for Config {
    fn default() -> Self {
        Config {
            segment_bytes: BATCH_BYTES as u64,
            queue_bytes: 16 << 20,
            in_flight: InFlight { segments: segment::IN_FLIGHT_MAX as usize, bytes: 64 << 20 },
            flush_every_segments: 64,
            table_bytes: 16 << 20,
            map: Limits::default(),
            pages: SharedPages::new(MAP_MEMORY),
            delete_delay: Duration::from_secs(600),
            garbage_collection: None,
            sweep_bytes: 64 << 10,
            proves_segments: true,
            announce_entries_max: 65_536,
            announce_in_segment_max: 16_384,
            announce_persist: Duration::from_secs(1),
            read_operations_max: 256,
            read_bytes_max: 64 << 20,
            reads_waiting_max: 16_384,
            holder_grace: Duration::ZERO,
            retry: (Duration::from_millis(100), Duration::from_secs(5)),
            missing_wait: MISSING_WAIT,
        }
    }
}

const _: () = assert!(MAX_BATCH_BYTES as u64 <= segment::MAX_RECORDS_BYTES);
