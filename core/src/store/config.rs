//! What bounds the engine of a volume.
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
    /// [`segment::MAX_RECORDS_BYTES`]. Larger segments are fewer objects; smaller ones commit sooner
    /// where the object store is slow.
    pub segment_bytes: u64,
    /// Batches that wait for a segment, in bytes; beyond it [`Volume::wants_input`] says no. Twice
    /// the bandwidth × latency of the object store keeps it busy.
    pub queue_bytes: u64,
    /// Flush the map's table after this many segments: what opening has to replay.
    pub flush_every_segments: u64,
    /// Flush it when it takes so many bytes. Four times as much is the most before
    /// [`Volume::wants_input`] says no.
    pub table_bytes: u64,
    /// What bounds the rest of the map.
    pub map: Limits,
    /// The cache of the map's pages: one for all volumes of a store.
    pub pages: SharedPages,
    /// What the map no longer needs is deleted so long after the root that says so: readers elsewhere may
    /// go by an older root until then.
    pub delete_delay: Duration,
    /// When garbage collection runs, and how fast; never if absent.
    pub garbage_collection: Option<Policy>,
    /// Bytes of fragments that perhaps no root names, for each snapshot and besides a part of the map. With more, an audit
    /// reads the roots of all snapshots.
    pub audit_bytes: u64,
    /// Announced ranges kept in memory (about 150 B each); beyond it neighbours are merged.
    pub announce_entries_max: usize,
    /// Announced ranges written into a segment; beyond it neighbours are merged there.
    pub announce_in_segment_max: usize,
    /// Announcements that no segment has carried for this long get a segment of their own.
    pub announce_persist: Duration,
    /// Concurrent reads of objects.
    pub read_operations_max: usize,
    /// Bytes of objects that reads under way may hold; a single read may exceed it alone. What is
    /// being staged may hold half as much again, or as much as one request.
    pub read_bytes_max: u64,
    /// Reads that wait; beyond it [`Volume::wants_input`] says no.
    pub reads_waiting_max: usize,
    /// How long after its session has ended a host that had not detached still counts as connected for others that want
    /// its volume: what it needs to come back.
    pub holder_grace: Duration,
    /// First and longest pause before an operation that failed is tried again; doubles in between.
    pub retry: (Duration, Duration),
    /// For how long an object that the log names, and that is said not to exist, is asked for again before what
    /// lies in it is a medium error: from the first time that was said, and up to the longest pause of `retry` more. An
    /// object store that cannot be reached is waited for without an end.
    pub missing_wait: Duration,
}

/// How long a missing object is waited for, by default: longer than a directory that several machines share may be
/// behind, and not so long that clients give up first.
pub const MISSING_WAIT: Duration = Duration::from_secs(20);

/// The same with object stores that keep an object on several machines: they may say that it does not exist while too few
/// of them are there (MinIO does), and a machine takes a while to be started again.
pub const MISSING_WAIT_BUCKET: Duration = Duration::from_secs(300);

/// Bytes of memory that the maps of a store's volumes take, by default.
pub const MAP_MEMORY: u64 = 256 << 20;

impl Default for Config {
    fn default() -> Self {
        Config {
            segment_bytes: BATCH_BYTES as u64,
            queue_bytes: 16 << 20,
            flush_every_segments: 64,
            table_bytes: 16 << 20,
            map: Limits::default(),
            pages: SharedPages::new(MAP_MEMORY),
            delete_delay: Duration::from_secs(600),
            garbage_collection: None,
            audit_bytes: 64 << 10,
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
