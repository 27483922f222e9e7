//! What was written and committed gets into the read cache, in bursts too.

use super::world::{ONE_RECORD, SECTORS, VOLUME, World};
use crate::block::{BLOCK_BYTES, SECTOR_BYTES};
use crate::host::cache::{Cache, Geometry, LINE_SECTORS};
use crate::host::{Config, DiskOperation, DiskResult};
use std::collections::VecDeque;

/// The cache's file: what is under way, and what it holds.
pub(super) struct File {
    pub(super) queue: VecDeque<DiskOperation>,
    pub(super) bytes: Vec<u8>,
}

impl File {
    pub(super) fn new(world: &mut World) -> File {
        let geometry = Geometry::new(64, 16).unwrap();
        let cache = Cache::fresh(geometry, VOLUME, 1);
        world.volume.set_cache(world.now, cache);
        File { queue: VecDeque::new(), bytes: vec![0; geometry.bytes() as usize] }
    }

    pub(super) fn poll(&mut self, world: &mut World) {
        while let Some(operation) = world.volume.poll_cache() {
            self.queue.push_back(operation);
        }
    }

    /// Carries out the first of what is under way; false if nothing is.
    pub(super) fn step(&mut self, world: &mut World) -> bool {
        self.poll(world);
        let Some(operation) = self.queue.pop_front() else { return false };
        let result = match operation {
            DiskOperation::Write { id, offset, data, .. } => {
                let at = offset as usize;
                self.bytes[at..at + data.len()].copy_from_slice(&data);
                DiskResult::Done { id }
            }
            DiskOperation::Sync { id, .. } => DiskResult::Done { id },
            DiskOperation::Read { id, offset, bytes, .. } => {
                let data = self.bytes[offset as usize..offset as usize + bytes].to_vec();
                DiskResult::Data { id, data: data.into() }
            }
        };
        world.volume.handle_cache(world.now, result);
        true
    }
}

/// With so little on its way to the cache's file, a line fills it.
fn world(seed: u64) -> World {
    World::new(seed, Config { cache_writing_bytes: BLOCK_BYTES, ..World::small() })
}

#[test]
fn a_burst_of_writes_waits_for_the_disk_of_the_cache() {
    let mut world = world(1);
    let mut file = File::new(&mut world);
    for lba in (0..SECTORS).step_by(ONE_RECORD as usize) {
        world.write(lba, ONE_RECORD, false);
    }
    world.flush();
    world.settle();
    file.poll(&mut world);
    let status = world.volume.status(world.now).cache.unwrap();
    assert!(status.valid_bytes < SECTORS * SECTOR_BYTES / 4, "it takes what its disk has taken");
    while file.step(&mut world) {}
    let status = world.volume.status(world.now).cache.unwrap();
    assert_eq!(status.valid_bytes, SECTORS * SECTOR_BYTES);
    assert_eq!(status.counters.behind_bytes, 0);
}

#[test]
fn what_is_overwritten_while_it_waits_is_not_taken() {
    let mut world = world(2);
    let mut file = File::new(&mut world);
    world.write(0, LINE_SECTORS, false);
    world.write(LINE_SECTORS, LINE_SECTORS, false);
    world.flush();
    world.settle();
    // The first line is on its way, the second waits.
    file.poll(&mut world);
    world.write(0, LINE_SECTORS, false);
    world.write(LINE_SECTORS, LINE_SECTORS, false);
    while file.step(&mut world) {}
    assert_eq!(world.volume.status(world.now).cache.unwrap().valid_bytes, 0);
    world.flush();
    world.settle();
    while file.step(&mut world) {}
    assert_eq!(
        world.volume.status(world.now).cache.unwrap().valid_bytes,
        2 * LINE_SECTORS * SECTOR_BYTES
    );
}
