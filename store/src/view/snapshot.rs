//! The state of a store that its admin address shows.

use bytes::Bytes;
use longhaul_base::histogram::Histogram;
use longhaul_core::link::AnswerCounters;
use longhaul_core::store::Event;
use longhaul_core::store::map::pages::Pages;
use longhaul_core::store::throttle::{Rates, Totals, Waiting};
use longhaul_core::wire::link::VolumeInfo;
use longhaul_link::transport::Statistics;
use longhaul_objects::{
    CacheReport, GetError, ObjectResult, StorageError, StorageErrorKind, Usage,
};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

/// The state of a store at a moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// All volumes.
    pub volumes: Vec<VolumeState>,
    /// How many of them are open, and take memory.
    pub open: usize,
    /// Its state among other stores, if there may be any.
    pub fleet: Option<FleetState>,
    /// Connected hosts.
    pub sessions: Vec<SessionState>,
    /// Tenants with limits a second whose volumes are in use here.
    pub tenants: Vec<TenantState>,
    /// Counters since the start.
    pub counts: Counts,
    /// Small reads that hosts asked for in datagrams, since the start.
    pub datagrams: AnswerCounters,
    /// Sessions that began with data, since the start.
    pub early: u64,
    /// Bytes that answers under way count for.
    pub answer_bytes: u64,
    /// Bytes of frames, for example batches, that are not stored or wait for something else.
    pub waiting_bytes: u64,
    /// Memory of the volumes' maps.
    pub map: MapMemory,
    /// The cache in front of the objects, if there is one.
    pub cache: Option<CacheReport>,
    /// The requests to the bucket, if a bucket holds the objects.
    pub usage: Option<Usage>,
}

/// A store among others at a moment.
#[derive(Clone, Copy, Debug)]
pub struct FleetState {
    /// Volumes that it has.
    pub leases: usize,
    /// Stores there are, with it.
    pub stores: usize,
    /// Whether hosts are to leave it.
    pub evacuating: bool,
}

/// A volume at a moment.
#[derive(Clone, Debug)]
pub struct VolumeState {
    /// Its known state.
    pub info: VolumeInfo,
    /// Bytes stored in segments and bundles, and needed of them, when last counted.
    pub space: Option<(u64, u64)>,
    /// Why it is unusable.
    pub failed: Option<String>,
    /// An operation on its objects that fails again and again.
    pub retrying: Option<StorageError>,
}

/// A tenant that has limits on what it does, at a moment.
#[derive(Clone, Debug)]
pub struct TenantState {
    /// Its name.
    pub name: String,
    /// This store's part of the limits.
    pub rates: Rates,
    /// Requests that wait for them.
    pub waiting: Waiting,
    /// Totals of the other requests.
    pub totals: Totals,
}

/// A session at a moment.
#[derive(Clone, Debug)]
pub struct SessionState {
    /// Where the host is.
    pub peer: SocketAddr,
    /// Its connection.
    pub link: Statistics,
}

/// Counters since the start.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Time for a turn of an engine, without its reads of objects. A turn handles the inputs that
    /// wait.
    pub work: Histogram,
    /// Time to read a range of an object.
    pub get: Histogram,
    /// Time to create an object.
    pub put: Histogram,
    /// Frames from hosts.
    pub frames: u64,
    /// Payload bytes from hosts.
    pub received_bytes: u64,
    /// Payload bytes to hosts.
    pub sent_bytes: u64,
    /// Objects created.
    pub puts: u64,
    /// Bytes in them.
    pub put_bytes: u64,
    /// Ranges of objects read.
    pub gets: u64,
    /// Bytes in them.
    pub get_bytes: u64,
    /// Lists of objects asked for.
    pub lists: u64,
    /// Objects deleted.
    pub deletes: u64,
    /// Operations on objects that failed, by the kind of the failure.
    pub failures: BTreeMap<StorageErrorKind, u64>,
    /// Volumes taken from a store that did not answer.
    pub failovers: u64,
    /// Volumes taken from a store that let go of them.
    pub taken_over: u64,
    /// Volumes let go for another store.
    pub handed_over: u64,
    /// Requests passed on to the store that has the volume.
    pub forwarded: u64,
    /// Hosts asked to go to a store with less to do.
    pub rebalanced: u64,
    /// Of the volumes' maps.
    pub map: MapCounts,
    /// Of giving space back.
    pub collect: CollectCounts,
}

/// The garbage collection of the engines, since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct CollectCounts {
    /// Bytes of bundles written.
    pub moved_bytes: u64,
    /// Segments whose rest is in these.
    pub moved_segments: u64,
    /// Deleted segments and bundles.
    pub reclaimed: u64,
    /// Bytes of them.
    pub reclaimed_bytes: u64,
    /// Damaged ones, which stay.
    pub damaged: u64,
}

impl CollectCounts {
    /// Something has happened in an engine.
    pub fn add(&mut self, event: &Event) {
        match event {
            Event::Moved { segments, bytes } => {
                self.moved_bytes += bytes;
                self.moved_segments += segments;
            }
            Event::Reclaimed { objects, bytes } => {
                self.reclaimed += objects;
                self.reclaimed_bytes += bytes;
            }
            Event::NotCollected { .. } => self.damaged += 1,
            _ => {}
        }
    }
}

/// The map maintenance of the engines, since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct MapCounts {
    /// Tables written.
    pub flushes: u64,
    /// Bytes of fragments that this made.
    pub flushed_bytes: u64,
    /// Bytes of fragments that merges made.
    pub merged_bytes: u64,
    /// Objects of maps deleted.
    pub deletes: u64,
}

impl MapCounts {
    /// Something has happened in an engine.
    pub fn add(&mut self, event: &Event) {
        match event {
            Event::Flushed { bytes, .. } => {
                self.flushes += 1;
                self.flushed_bytes += bytes;
            }
            Event::Merged { bytes } => self.merged_bytes += bytes,
            Event::Deleted { objects } => self.deletes += objects,
            _ => {}
        }
    }
}

/// Memory of the volumes' maps at a moment, and how it served since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct MapMemory {
    /// Bytes of tables.
    pub tables: u64,
    /// Bytes of pages.
    pub pages: u64,
    /// Bytes that both may take.
    pub limit: u64,
    /// Needed pages that were in memory.
    pub hits: u64,
    /// Needed pages that had to be read.
    pub misses: u64,
}

impl MapMemory {
    /// Of a cache.
    pub fn of(pages: &Pages) -> MapMemory {
        let (hits, misses) = pages.looks();
        let (tables, limit, pages) = (pages.tables(), pages.limit(), pages.bytes());
        MapMemory { tables, pages, limit, hits, misses }
    }
}

impl Counts {
    /// Counts a range of an object that was read at once.
    pub fn add_read(&mut self, result: &Result<Bytes, GetError>, took: Duration) {
        self.get.record(took);
        self.gets += 1;
        self.get_bytes += result.as_ref().map_or(0, |data| data.len() as u64);
    }

    /// Counts an operation of an engine on an object. `bytes` are those of a new object.
    pub fn add(&mut self, result: &ObjectResult, bytes: u64, took: Duration) {
        if let Some(kind) = result.failure() {
            *self.failures.entry(kind).or_default() += 1;
        }
        match result {
            ObjectResult::Put(Ok(())) => {
                self.puts += 1;
                self.put_bytes += bytes;
                self.put.record(took);
            }
            ObjectResult::Get(Ok(data)) => {
                self.gets += 1;
                self.get_bytes += data.len() as u64;
                self.get.record(took);
            }
            ObjectResult::List(Ok(_)) => self.lists += 1,
            ObjectResult::Delete(Ok(())) => self.deletes += 1,
            ObjectResult::Put(Err(_))
            | ObjectResult::Get(Err(_))
            | ObjectResult::List(Err(_))
            | ObjectResult::Delete(Err(_)) => {}
        }
    }
}
