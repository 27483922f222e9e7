//! The volume writes back ranges that are damaged at the store and whole in the read cache, and
//! nothing else.

use super::caching::File;
use super::world::{ONE_RECORD, SECTORS, VOLUME, World, payload};
use crate::block::{Range, SECTOR_BYTES, Seq};
use crate::host::Event;
use crate::wire::link::ToHost;

/// A world whose store and cache have all sectors, and the content of these.
fn cached(seed: u64) -> (World, File, Vec<u8>) {
    let mut world = World::new(seed, World::small());
    let mut file = File::new(&mut world);
    for lba in (0..SECTORS).step_by(ONE_RECORD as usize) {
        world.write(lba, ONE_RECORD, false);
    }
    world.flush();
    run(&mut world, &mut file);
    let status = world.volume.status(world.now).cache.unwrap();
    assert_eq!(status.valid_bytes, SECTORS * SECTOR_BYTES);
    let image = world.store.image.clone();
    (world, file, image)
}

fn run(world: &mut World, file: &mut File) {
    loop {
        world.settle();
        if !file.step(world) {
            return;
        }
    }
}

/// The store has lost a range, and says so.
fn lose(world: &mut World, range: Range) {
    bytes(&mut world.store.image, range).fill(0xee);
    let (epoch, ranges) = (world.store.epoch, vec![range]);
    world
        .volume
        .handle_message(world.now, ToHost::Damaged { volume: VOLUME, epoch, ranges }.into());
    world.poll();
}

fn bytes(image: &mut [u8], range: Range) -> &mut [u8] {
    &mut image[(range.lba * SECTOR_BYTES) as usize..(range.end() * SECTOR_BYTES) as usize]
}

fn written(world: &World) -> Vec<(Range, Seq, Seq)> {
    let written = world.events.iter().filter_map(|event| match event {
        Event::WrittenBack { range, first, last } => Some((*range, *first, *last)),
        _ => None,
    });
    written.collect()
}

fn repaired(world: &World) -> Option<(u64, u64)> {
    world.events.iter().rev().find_map(|event| match event {
        Event::Repaired { told_bytes, written_bytes } => Some((*told_bytes, *written_bytes)),
        _ => None,
    })
}

#[test]
fn what_is_in_the_cache_is_written_back_piece_by_piece() {
    let (mut world, mut file, image) = cached(1);
    let range = Range::new(3, SECTORS - 10);
    lose(&mut world, range);
    // A read of the first piece is under way. The next one begins after its commit.
    file.poll(&mut world);
    assert!(written(&world).is_empty());
    run(&mut world, &mut file);
    assert!(world.store.image == image);
    let written = written(&world);
    assert!(written.len() > 1);
    let mut at = range.lba;
    for (part, first, last) in &written {
        assert_eq!((part.lba, *first), (at, *last));
        at = part.end();
    }
    assert_eq!(at, range.end());
    assert_eq!(repaired(&world), Some((range.bytes(), range.bytes())));
    assert_eq!(world.volume.status(world.now).counters.written_back_bytes, range.bytes());
    // It is in the cache again.
    let status = world.volume.status(world.now).cache.unwrap();
    assert!(status.valid_bytes >= (SECTORS - 16) * SECTOR_BYTES, "{status:?}");
}

#[test]
fn what_a_client_writes_meanwhile_stays() {
    for discard in [false, true] {
        let (mut world, mut file, mut image) = cached(2);
        lose(&mut world, Range::new(0, 16));
        file.poll(&mut world);
        assert!(!file.queue.is_empty(), "it is being read");
        let range = Range::new(4, 2);
        if discard {
            world.discard(range.lba, range.sectors);
            bytes(&mut image, range).fill(0);
        } else {
            world.write(range.lba, range.sectors, false);
            let data = payload(world.last(), range);
            bytes(&mut image, range).copy_from_slice(&data);
        }
        run(&mut world, &mut file);
        // The cache did not have the rest of that block intact.
        for lost in [Range::new(0, 4), Range::new(6, 2)] {
            bytes(&mut image, lost).fill(0xee);
        }
        assert!(world.store.image == image);
        let written: Vec<Range> = written(&world).iter().map(|(range, ..)| *range).collect();
        assert_eq!(written, [Range::new(8, 8)]);
    }
}

#[test]
fn what_the_store_does_not_have_yet_is_left_alone() {
    let (mut world, mut file, mut image) = cached(3);
    let range = Range::new(8, 8);
    world.write(range.lba, range.sectors, false);
    let data = payload(world.last(), range);
    bytes(&mut image, range).copy_from_slice(&data);
    lose(&mut world, Range::new(0, 24));
    run(&mut world, &mut file);
    assert!(world.store.image == image);
    let written: Vec<Range> = written(&world).iter().map(|(range, ..)| *range).collect();
    assert_eq!(written, [Range::new(0, 8), Range::new(16, 8)]);
}

#[test]
fn what_the_cache_cannot_vouch_for_is_not_written() {
    let (mut world, mut file, _) = cached(4);
    for byte in &mut file.bytes {
        *byte ^= 1;
    }
    let range = Range::new(0, 64);
    lose(&mut world, range);
    run(&mut world, &mut file);
    assert!(written(&world).is_empty());
    assert_eq!(repaired(&world), Some((range.bytes(), 0)));
}

#[test]
fn nothing_is_written_back_where_that_could_be_in_the_way() {
    let range = Range::new(0, 64);
    let given_up = |world: &World| {
        assert!(written(world).is_empty());
        assert_eq!(repaired(world), Some((range.bytes(), 0)));
    };
    // The store has no space.
    let (mut world, mut file, _) = cached(5);
    let (volume, epoch) = (VOLUME, world.store.epoch);
    world.volume.handle_message(world.now, ToHost::Room { volume, epoch, room: false }.into());
    lose(&mut world, range);
    run(&mut world, &mut file);
    given_up(&world);
    // The journal is more than half full.
    let (mut world, mut file, _) = cached(9);
    world.link_down();
    for _ in 0..10_000 {
        let status = world.volume.status(world.now);
        if status.journal_bytes > status.journal_capacity_bytes / 2 {
            break;
        }
        world.write(SECTORS - ONE_RECORD, ONE_RECORD, false);
        for _ in 0..10 {
            world.poll();
            world.finish_mutation();
        }
    }
    let status = world.volume.status(world.now);
    assert!(status.journal_bytes > status.journal_capacity_bytes / 2 && status.waiting_writes == 0);
    lose(&mut world, range);
    given_up(&world);
    run(&mut world, &mut file);
    given_up(&world);
    // The volume is about to end, also during a read of the cache.
    let (mut world, mut file, _) = cached(6);
    lose(&mut world, range);
    file.poll(&mut world);
    world.volume.handle_shutdown(world.now);
    run(&mut world, &mut file);
    assert!(written(&world).is_empty());
    // Another epoch, or another volume.
    let (mut world, mut file, _) = cached(7);
    for (volume, epoch) in [(volume, epoch + 1), (crate::block::VolumeId(99), epoch)] {
        let damaged = ToHost::Damaged { volume, epoch, ranges: vec![range] };
        world.volume.handle_message(world.now, damaged.into());
    }
    run(&mut world, &mut file);
    assert!(written(&world).is_empty() && repaired(&world).is_none());
    // Without a link nothing begins. The list waits at no cost.
    world.link_down();
    lose(&mut world, range);
    while file.step(&mut world) {}
    assert!(written(&world).is_empty());
    run(&mut world, &mut file);
    assert_eq!(repaired(&world), Some((range.bytes(), range.bytes())));
}

#[test]
fn nonsense_is_bounded() {
    let (mut world, mut file, image) = cached(8);
    for range in [Range::new(u64::MAX - 3, 9), Range::new(5, 0), Range::new(SECTORS, 8)] {
        let (epoch, ranges) = (world.store.epoch, vec![range; 5000]);
        let damaged = ToHost::Damaged { volume: VOLUME, epoch, ranges };
        world.volume.handle_message(world.now, damaged.into());
        run(&mut world, &mut file);
    }
    assert!(written(&world).is_empty());
    let ranges = (0..5000).map(|n| Range::new(n * 2 % SECTORS, 1)).collect();
    let damaged = ToHost::Damaged { volume: VOLUME, epoch: world.store.epoch, ranges };
    world.volume.handle_message(world.now, damaged.into());
    run(&mut world, &mut file);
    assert!(world.store.image == image);
}
