//! Committed writes get into the read cache, in bursts too.

use super::world::{ONE_RECORD, SECTORS, VOLUME, World};
use crate::block::{BLOCK_BYTES, SECTOR_BYTES};
use crate::host::cache::{Cache, Geometry, LINE_SECTORS, Load};
use crate::host::{Config, DiskOperation, DiskResult};
use crate::pack::{Compression, DATA_KEY_BYTES, DataKey, Keys, Packing};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The cache's file: its operations under way, and its content.
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

    /// The host has started anew.
    fn load(&mut self, world: &mut World) {
        self.queue.clear();
        let mut load = Load::new(Geometry::new(64, 16).unwrap(), Some(VOLUME));
        while let Some(DiskOperation::Read { id, offset, bytes, .. }) = load.poll_disk() {
            let data = self.bytes[offset as usize..offset as usize + bytes].to_vec();
            load.handle_disk(DiskResult::Data { id, data: data.into() });
        }
        assert!(load.report().found);
        world.volume.set_cache(world.now, load.finish(VOLUME, 2));
    }

    pub(super) fn poll(&mut self, world: &mut World) {
        while let Some(operation) = world.volume.poll_cache() {
            self.queue.push_back(operation);
        }
    }

    /// Carries out the first operation under way. False if there is none.
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

/// The limit for the cache's file is so low that one line fills it.
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

fn keyed() -> World {
    let keys = BTreeMap::from([(1, DataKey::new([3; DATA_KEY_BYTES]))]);
    let packing = Packing { compression: Compression::None, keys: Keys::new([9; 12], keys) };
    World::new(3, Config { packing, readahead_bytes: 0, ..World::small() })
}

fn settle(world: &mut World, file: &mut File) {
    loop {
        world.settle();
        if !file.step(world) {
            return;
        }
        while file.step(world) {}
    }
}

fn hits(world: &World) -> u64 {
    world.volume.status(world.now).cache.unwrap().counters.hit_bytes
}

/// Writes until the journal has nothing of the earlier writes.
fn push_out(world: &mut World, file: &mut File) {
    for n in 0..60 {
        world.write(128 + n % 8 * 16, 16, false);
        settle(world, file);
    }
}

#[test]
fn an_encrypted_volume_has_no_plain_text_in_its_cache_and_hits_are_the_newest_version() {
    let mut world = keyed();
    let mut file = File::new(&mut world);
    world.write(0, 16, false);
    world.write(16, 16, false);
    settle(&mut world, &mut file);
    push_out(&mut world, &mut file);
    let before = hits(&world);
    world.read(3, 9);
    settle(&mut world, &mut file);
    assert_eq!((hits(&world) - before, world.errors.len()), (9 * SECTOR_BYTES, 0));
    let plain = world.store.sector(3).to_vec();
    assert!(!file.bytes.windows(512).any(|window| window == plain));

    // The file has its old content, and the store says that nobody has written since.
    let old = file.bytes.clone();
    world.write(0, 8, false);
    world.write(10, 2, false);
    settle(&mut world, &mut file);
    push_out(&mut world, &mut file);
    world.advance(Duration::from_secs(20));
    settle(&mut world, &mut file);
    world.crash(false);
    file.bytes = old;
    file.load(&mut world);
    settle(&mut world, &mut file);
    let status = world.volume.status(world.now).cache.unwrap();
    assert!(status.ready && !status.dropped_all && status.valid_bytes > 0);
    world.read(0, LINE_SECTORS);
    settle(&mut world, &mut file);
    assert_eq!(world.errors, []);
    // The volume has compared the read with the last write. The line has come in anew.
    let before = hits(&world);
    world.read(0, LINE_SECTORS);
    settle(&mut world, &mut file);
    assert_eq!(hits(&world) - before, LINE_SECTORS * SECTOR_BYTES);
    assert_eq!(world.volume.status(world.now).cache.unwrap().counters.damaged_blocks, 0);
}
