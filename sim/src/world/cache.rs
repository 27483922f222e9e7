//! The disk under a host's read cache. No fault of it may ever be visible in an answer.

use super::{Event, MS, World};
use crate::disk::Disk;
use crate::note;
use crate::rng::Rng;
use bytes::Bytes;
use longhaul_core::host::cache::{self, Geometry, Load, RECORD_BYTES};
use longhaul_core::host::{DiskOperation, DiskResult};
use longhaul_core::pack::SEAL_BYTES;
use std::collections::VecDeque;

/// A cache file and what is under way on it.
pub struct Cache {
    disk: Option<Disk>,
    /// An earlier content of the file: somebody keeps a copy.
    copy: Option<Disk>,
    queue: VecDeque<DiskOperation>,
    busy: bool,
    rng: Rng,
}

impl Cache {
    pub fn new(rng: Rng) -> Cache {
        Cache { disk: None, copy: None, queue: VecDeque::new(), busy: false, rng }
    }

    /// The process no longer does anything about it.
    pub fn stop(&mut self) {
        self.queue.clear();
        self.busy = false;
    }

    /// The disk is gone.
    pub fn lose(&mut self) {
        self.disk = None;
    }
}

impl World {
    /// The process dies, with or without its page cache.
    pub(super) fn crash_cache(&mut self, host: usize, volume: usize, power: bool) {
        let cache = &mut self.slot(host, volume).cache;
        let Some(disk) = &mut cache.disk else { return };
        if let Some(DiskOperation::Write { offset, data, .. }) = cache.queue.front() {
            disk.write_part(0, *offset, data, &mut cache.rng);
        }
        let torn = power && disk.cut_power(&mut cache.rng);
        self.coverage.cache_torn += u64::from(torn);
    }

    /// A journal goes from one host to another; what of the cache?
    pub(super) fn carry_cache(&mut self, from: usize, to: usize, volume: usize) {
        let strange = self.plan.volumes[volume].cache.strange;
        let cache = &mut self.slot(from, volume).cache;
        let stays = cache.rng.percent(strange);
        let carried = if stays { cache.disk.clone() } else { cache.disk.take() };
        let there = &mut self.slot(to, volume).cache;
        let idle = there.queue.is_empty() && !there.busy;
        if carried.is_some() && idle && there.rng.percent(70) {
            there.disk = carried;
            note!(self, "h{from} v{volume} the cache goes to h{to}");
            self.coverage.cache_strange += 1;
        }
    }

    /// The cache as a host that has attached the volume finds or makes it.
    pub(super) fn open_cache(&mut self, host: usize, volume: usize) -> Option<cache::Cache> {
        let plan = self.plan.volumes[volume].cache;
        let id = self.volumes[volume].id;
        let geometry = Geometry::new(plan.sets, plan.ways)?;
        let tag = self.rng.wide();
        let cache = &mut self.slot(host, volume).cache;
        if cache.rng.percent(plan.strange / 4) && cache.copy.is_some() {
            cache.disk.clone_from(&cache.copy);
            note!(self, "h{host} v{volume} an old copy of the cache is back");
            self.coverage.cache_strange += 1;
        }
        let cache = &mut self.slot(host, volume).cache;
        let disk = cache.disk.get_or_insert_with(|| Disk::new(1, geometry.bytes()));
        if cache.rng.percent(20) {
            cache.copy = Some(disk.clone());
        }
        let mut load = Load::new(geometry, Some(id));
        while let Some(operation) = load.poll_disk() {
            let DiskOperation::Read { id, offset, bytes, .. } = operation else {
                self.fail(format!("opening a cache asks for {operation:?}"));
                return None;
            };
            let data = Bytes::from(disk.read(0, offset, bytes));
            load.handle_disk(DiskResult::Data { id, data });
        }
        let report = load.report();
        note!(self, "h{host} v{volume} cache: {report:?}");
        Some(load.finish(id, tag))
    }

    pub(super) fn begin_cache(&mut self, host: usize, volume: usize, operation: DiskOperation) {
        let latency = self.plan.disk_latency;
        let odds = self.plan.volumes[volume].cache.odds.flip;
        let at = self.at(host, volume);
        let finishing = self.finishing;
        let cache = &mut self.slot(host, volume).cache;
        let Some(disk) = &mut cache.disk else {
            return self.fail(format!("host {host} uses a cache that it does not have"));
        };
        let (DiskOperation::Read { file, offset, .. } | DiskOperation::Write { file, offset, .. }) =
            operation
        else {
            cache.queue.push_back(operation);
            return self.next_cache(host, volume);
        };
        let bytes = match &operation {
            DiskOperation::Read { bytes, .. } => *bytes,
            DiskOperation::Write { data, .. } => data.len(),
            DiskOperation::Sync { .. } => 0,
        };
        if !disk.holds(file, offset, bytes) {
            return self.fail(format!("host {host} goes beyond its cache file: {offset}+{bytes}"));
        }
        if let DiskOperation::Read { id, .. } = operation {
            if !finishing && cache.rng.ppm(odds) {
                disk.flip(0, offset, bytes, &mut cache.rng);
            }
            let delay = cache.rng.spread(latency / 4 + 1, latency * 2 + 2);
            return self.after(delay, Event::CacheRead(at, id, offset, bytes));
        }
        let plain = matches!(&operation, DiskOperation::Write { data, .. } if is_plain(data));
        cache.queue.push_back(operation);
        if plain && self.packing(volume).keys.is_some() {
            return self
                .fail(format!("host {host} keeps plain text of volume {volume} in its cache"));
        }
        self.next_cache(host, volume);
    }

    fn next_cache(&mut self, host: usize, volume: usize) {
        let latency = self.plan.disk_latency;
        let at = self.at(host, volume);
        let cache = &mut self.slot(host, volume).cache;
        if cache.busy || cache.queue.is_empty() {
            return;
        }
        cache.busy = true;
        let mut delay = cache.rng.spread(latency / 4 + 1, latency * 2 + 2);
        if cache.rng.ppm(5000) {
            delay += cache.rng.spread(MS, 400 * MS);
        }
        self.after(delay, Event::CacheDone(at));
    }

    pub(super) fn cache_read_done(
        &mut self,
        host: usize,
        volume: usize,
        id: u64,
        offset: u64,
        bytes: usize,
    ) {
        let now = self.now;
        let odds = self.plan.volumes[volume].cache.odds.write;
        let finishing = self.finishing;
        let slot = self.slot(host, volume);
        let Some(disk) = &slot.cache.disk else { return };
        let result = if !finishing && slot.cache.rng.ppm(odds) {
            DiskResult::Failed { id, error: "injected read error".to_owned() }
        } else {
            DiskResult::Data { id, data: Bytes::from(disk.read(0, offset, bytes)) }
        };
        if let Some(machine) = slot.machine() {
            machine.handle_cache(now, result);
        }
        self.pump_host(host, volume);
    }

    pub(super) fn cache_done(&mut self, host: usize, volume: usize) {
        let now = self.now;
        let finishing = self.finishing;
        let odds = self.plan.volumes[volume].cache.odds;
        let slot = self.slot(host, volume);
        let cache = &mut slot.cache;
        cache.busy = false;
        let (Some(operation), Some(disk)) = (cache.queue.pop_front(), &mut cache.disk) else {
            return;
        };
        let rng = &mut cache.rng;
        let mut faulty = |odds: u64| !finishing && rng.ppm(odds);
        let (write_fails, sync_fails) = (faulty(odds.write), faulty(odds.sync));
        let misdirected = faulty(odds.misdirect);
        let (id, sync) = match operation {
            DiskOperation::Write { id, offset, data, sync, .. } => {
                if write_fails {
                    disk.write_part(0, offset, &data, rng);
                } else if misdirected {
                    let (_, at) = disk.somewhere(data.len(), rng);
                    disk.write(0, at, &data);
                } else {
                    disk.write(0, offset, &data);
                }
                (id, sync)
            }
            DiskOperation::Sync { id, .. } => (id, true),
            DiskOperation::Read { .. } => return,
        };
        let result = if write_fails || (sync && sync_fails) {
            if sync {
                let covered = disk.begin_sync(0);
                disk.fail_sync(covered, rng);
            }
            DiskResult::Failed { id, error: "injected error of the cache's disk".to_owned() }
        } else {
            if sync {
                disk.sync(0);
            }
            DiskResult::Done { id }
        };
        if let Some(machine) = slot.machine() {
            machine.handle_cache(now, result);
        }
        self.next_cache(host, volume);
        self.pump_host(host, volume);
    }
}

/// Whether these are blocks of which one is not encrypted: then its seal is zeroes. All other
/// writes to a cache file are multiples of 4 KiB.
fn is_plain(data: &[u8]) -> bool {
    !data.len().is_multiple_of(4096)
        && data
            .chunks(RECORD_BYTES)
            .any(|record| record[record.len() - SEAL_BYTES..].iter().all(|byte| *byte == 0))
}
