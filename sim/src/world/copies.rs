//! The caches that stores have in front of the objects. They return only the content of the
//! objects.

use super::World;
use crate::disk::Disk;
use crate::note;
use crate::rng::Rng;
use bytes::Bytes;
use longhaul_core::block::Time;
use longhaul_core::cache::{Geometry, Source};
use longhaul_core::host::{DiskOperation, DiskResult};
use longhaul_core::store::cache::{ObjectCache, ObjectId};
use longhaul_core::store::{Copies, GetError, catalog};
use std::ops::Range;
use std::time::Duration;

/// One installation has all stores.
const INSTALLATION: u128 = 11;
/// Odds in parts per million that a read of the file has a flipped bit.
const FLIPS: u64 = 2000;

/// The cache of a store, and its disk, which does everything at once.
pub struct StoreCache {
    disk: Disk,
    geometry: Geometry,
    cache: ObjectCache,
    rng: Rng,
}

impl StoreCache {
    /// An empty one; of a few lines, so that they are fought over.
    pub fn new(mut rng: Rng) -> Option<StoreCache> {
        let geometry = Geometry::new(1, 4 + rng.below(24) as u16)?;
        let disk = Disk::new(1, geometry.bytes());
        let cache = open(&disk, geometry, &mut rng, Time(0));
        Some(StoreCache { disk, geometry, cache, rng })
    }

    /// Its process has died, perhaps with the power; another begins.
    pub fn restart(&mut self, now: Time) -> bool {
        let torn = self.rng.percent(50) && self.disk.cut_power(&mut self.rng);
        self.cache = open(&self.disk, self.geometry, &mut self.rng, now);
        torn
    }

    fn read(&mut self, now: Time, object: ObjectId, range: &Range<u64>) -> Option<Bytes> {
        let id = self.cache.look_up(object, range)?;
        self.run(now);
        let (found, data) = self.cache.poll_found()?;
        data.filter(|_| found == id)
    }

    fn run(&mut self, now: Time) {
        self.cache.settle(now, false);
        while let Some(operation) = self.cache.poll_disk() {
            let result = match operation {
                DiskOperation::Write { id, offset, data, sync, .. } => {
                    self.disk.write(0, offset, &data);
                    if sync {
                        self.disk.sync(0);
                    }
                    DiskResult::Done { id }
                }
                DiskOperation::Sync { id, .. } => {
                    self.disk.sync(0);
                    DiskResult::Done { id }
                }
                DiskOperation::Read { id, offset, bytes, .. } => {
                    if self.rng.ppm(FLIPS) {
                        self.disk.flip(0, offset, bytes, &mut self.rng);
                    }
                    DiskResult::Data { id, data: self.disk.read(0, offset, bytes).into() }
                }
            };
            // Damage is a miss.
            let _ = self.cache.handle_disk(now, result);
            self.cache.settle(now, false);
        }
    }
}

fn open(disk: &Disk, geometry: Geometry, rng: &mut Rng, now: Time) -> ObjectCache {
    let mut load = ObjectCache::load(geometry, INSTALLATION);
    while let Some(operation) = load.poll_disk() {
        let DiskOperation::Read { id, offset, bytes, .. } = operation else { break };
        load.handle_disk(DiskResult::Data { id, data: disk.read(0, offset, bytes).into() });
    }
    ObjectCache::new(now, load, INSTALLATION, rng.wide(), Duration::from_millis(20))
}

impl World {
    /// A store reads data: from its cache, or from the object and into its cache.
    pub(super) fn read_data(
        &mut self,
        store: usize,
        key: &str,
        range: &Range<u64>,
        copies: Copies,
    ) -> Result<Bytes, GetError> {
        let now = self.now;
        let true_bytes = self.get(key, Some(range));
        let object = catalog::parse_data_key(key);
        let object = object.map(|(volume, number)| ObjectId { volume, number });
        let whole = ObjectCache::whole(range);
        let fetched = self.get(key, Some(&whole));
        // The cache may still hold a deleted object. Only a store that does not know of the
        // deletion asks for it.
        let deleted = object.is_some_and(|object| {
            let mut volumes = self.volumes.iter().filter(|volume| volume.id == object.volume);
            volumes.any(|volume| volume.truth.deleted.contains(&object.number))
        });
        let (Some(object), Some(cache)) = (object, &mut self.copies[store]) else {
            return true_bytes;
        };
        match copies {
            Copies::Refused => return true_bytes,
            Copies::Welcome => {
                if let Some(copy) = cache.read(now, object, range) {
                    if Ok(&copy) != true_bytes.as_ref() && !deleted {
                        self.fail(format!(
                            "a store's copy of {key} {range:?} is not what it holds"
                        ));
                    }
                    self.coverage.copies_read += 1;
                    return Ok(copy);
                }
            }
            Copies::Bad => cache.cache.forget(now, object),
        }
        cache.cache.missed(range);
        if let Ok(data) = fetched {
            cache.cache.offer(now, Source::Read, object, &whole, &data);
        }
        cache.run(now);
        true_bytes
    }

    /// A new object goes to the cache of the store that put it.
    pub(super) fn keep_copy(&mut self, store: usize, key: &str, data: &Bytes) {
        let Some((volume, number)) = catalog::parse_data_key(key) else { return };
        let object = ObjectId { volume, number };
        let Some(cache) = &mut self.copies[store] else { return };
        let asked = ObjectCache::whole(&(0..data.len() as u64 + 1));
        cache.cache.offer(self.now, Source::Write, object, &asked, data);
        cache.run(self.now);
    }

    /// The process of a store has died.
    pub(super) fn restart_copies(&mut self, store: usize) {
        let now = self.now;
        if let Some(cache) = &mut self.copies[store]
            && cache.restart(now)
        {
            self.coverage.copies_torn += 1;
            note!(self, "s{store} the power cut tore its cache");
        }
    }
}
