//! The guarantees of an acknowledgment and of a flush, and failures of a full or broken disk.

use super::world::{SECTORS, World};
use crate::block::BlockError;
use crate::host::{Config, DiskOperation, Durability, Event, Mode, OnJournalFailure};
use crate::wire::link::Lane;
use std::time::Duration;

/// A world at rest whose link is down.
fn alone(config: Config) -> World {
    let mut world = World::new(11, config);
    world.settle();
    world.link_down();
    world
}

fn finish_all(world: &mut World) {
    world.poll();
    while world.finish_mutation() {
        world.poll();
    }
}

#[test]
fn a_write_is_acknowledged_when_written_and_a_flush_when_synced() {
    let mut world = alone(World::small());
    let write = world.write(0, 8, false);
    world.poll();
    assert!(world.is_outstanding(write), "it would die with the process");
    let syncs = world.disk.syncs;
    assert!(world.finish_mutation());
    world.poll();
    assert!(!world.is_outstanding(write));
    assert_eq!(world.disk.syncs, syncs);
    let flush = world.flush();
    world.poll();
    assert!(world.is_outstanding(flush));
    finish_all(&mut world);
    assert!(!world.is_outstanding(flush));
}

#[test]
fn nothing_is_acknowledged_before_the_epoch_is_on_record() {
    let mut world = World::new(11, World::small());
    let write = world.write(0, 8, false);
    world.poll();
    assert!(world.is_outstanding(write));
    finish_all(&mut world);
    assert!(!world.is_outstanding(write));
}

#[test]
fn many_flushes_share_one_sync() {
    let mut world = alone(World::small());
    let before = world.disk.syncs;
    for n in 0..20 {
        world.write(n * 8, 1, false);
        world.poll();
    }
    for _ in 0..20 {
        world.flush();
    }
    finish_all(&mut world);
    assert_eq!(world.outstanding(), 0);
    // One sync for the frame under way when the flushes came, and for the writes behind it.
    assert_eq!(world.disk.syncs - before, 1);
    assert_eq!(world.volume.status(world.now).counters.flushes, 20);
}

#[test]
fn writes_that_arrive_together_share_a_frame() {
    let mut world = alone(World::small());
    let before = world.volume.status(world.now).counters.disk_writes;
    for n in 0..10 {
        world.write(n * 8, 1, true);
    }
    finish_all(&mut world);
    assert_eq!(world.outstanding(), 0);
    assert_eq!(world.volume.status(world.now).counters.disk_writes - before, 1);
}

#[test]
fn writes_go_on_beside_a_sync() {
    let mut world = alone(World::small());
    world.write(0, 8, false);
    finish_all(&mut world);
    let flush = world.flush();
    world.poll();
    let write = world.write(8, 8, false);
    world.poll();
    let begun: Vec<_> = world.mutations.iter().collect();
    let [DiskOperation::Sync { .. }, DiskOperation::Write { sync: false, .. }] = begun[..] else {
        panic!("{begun:?}")
    };
    assert!(world.finish_mutation_at(1));
    world.poll();
    assert!(!world.is_outstanding(write) && world.is_outstanding(flush));
    assert!(world.finish_mutation());
    world.poll();
    assert!(!world.is_outstanding(flush));
    // The sync covers only the first write.
    let last = world.flush();
    world.poll();
    assert!(world.is_outstanding(last));
    finish_all(&mut world);
    assert!(!world.is_outstanding(last));
}

#[test]
fn two_groups_are_under_way_and_a_third_one_gathers() {
    let mut world = alone(World::small());
    let mut ids = Vec::new();
    for n in 0..6 {
        ids.push(world.write(n * 8, 1, true));
        world.poll();
    }
    let is_synced =
        |operation: &DiskOperation| matches!(operation, DiskOperation::Write { sync: true, .. });
    assert_eq!(world.mutations.len(), 2);
    assert!(world.mutations.iter().all(is_synced));
    let open = |world: &World| ids.iter().filter(|id| world.is_outstanding(**id)).count();
    world.finish_mutation_at(1);
    world.poll();
    assert_eq!(open(&world), 6, "the first group may still get lost");
    assert_eq!(world.mutations.len(), 2, "the third one is on its way");
    world.finish_mutation_at(0);
    world.poll();
    assert_eq!(open(&world), 4);
    finish_all(&mut world);
    assert_eq!(open(&world), 0);
    assert_eq!(world.volume.status(world.now).counters.disk_syncs, 1 + 3);
}

#[test]
fn a_write_that_overtakes_another_is_not_acknowledged() {
    let mut world = alone(Config { memory_bytes: 512 << 10, ..World::small() });
    // Each is long enough not to wait for the one before.
    let ids = [world.write(0, 24, false), world.write(24, 24, false)];
    world.poll();
    let late = world.write(48, 24, false);
    world.poll();
    assert_eq!(world.mutations.len(), 2);
    world.finish_mutation_at(1);
    world.poll();
    assert!(world.is_outstanding(late) && world.is_outstanding(ids[1]));
    world.finish_mutation();
    world.poll();
    assert_eq!(world.outstanding(), 0);
}

#[test]
fn nothing_under_way_counts_after_a_failure() {
    let mut world = alone(World::small());
    let ids = [world.write(0, 8, true), world.write(8, 8, true)];
    world.poll();
    world.write(16, 8, true);
    world.poll();
    assert_eq!(world.mutations.len(), 2);
    world.fail_mutation();
    assert!(world.finish_mutation());
    world.poll();
    assert!(world.mutations.is_empty(), "nothing begins after a failure");
    assert!(ids.iter().all(|id| world.is_outstanding(*id)));
    world.settle();
    world.check_settled();
}

#[test]
fn an_idle_journal_is_synced_after_the_interval() {
    let mut world = alone(World::small());
    world.write(0, 8, false);
    finish_all(&mut world);
    let before = world.disk.syncs;
    let at = world.volume.poll_timeout().unwrap();
    assert!(at <= world.now.after(Duration::from_millis(100)));
    world.advance(Duration::from_millis(100));
    finish_all(&mut world);
    assert_eq!(world.disk.syncs, before + 1);
    assert_eq!(world.volume.poll_timeout(), None);
}

#[test]
fn a_full_journal_makes_writes_wait_in_order() {
    let mut world = alone(World::small());
    let mut ids = Vec::new();
    for n in 0..60 {
        ids.push(world.write(n * 16 % (SECTORS - 16), 16, false));
        finish_all(&mut world);
    }
    let waiting: Vec<bool> = ids.iter().map(|id| world.is_outstanding(*id)).collect();
    assert!(waiting.contains(&true) && waiting.contains(&false));
    assert!(waiting.is_sorted(), "a later write went ahead of an earlier one");
    // Flushes and reads of acknowledged writes still work.
    let flush = world.flush();
    let read = world.read(0, 16);
    finish_all(&mut world);
    while world.finish_read() {
        world.poll();
    }
    assert!(!world.is_outstanding(flush) && !world.is_outstanding(read));
    // A crash in this state loses nothing and ends up in the same state.
    let mut acknowledged = world.last();
    acknowledged -= waiting.iter().filter(|waits| **waits).count() as u64;
    world.crash(true);
    assert_eq!(world.last(), acknowledged);
    for n in 0..60 {
        world.write(n * 16 % (SECTORS - 16), 16, false);
    }
    world.settle();
    world.check_settled();
}

#[test]
fn a_full_dirty_map_makes_writes_wait() {
    let mut world = alone(Config { map_entries_max: 10, ..World::small() });
    let ids: Vec<u64> = (0..20).map(|n| world.write(n * 10, 1, false)).collect();
    finish_all(&mut world);
    assert!(world.is_outstanding(ids[19]) && !world.is_outstanding(ids[0]));
    world.settle();
    world.check_settled();
}

#[test]
fn a_write_larger_than_memory_goes_through_in_parts() {
    let mut world = World::new(2, Config { memory_bytes: 64 << 10, ..World::small() });
    world.settle();
    let range = crate::block::Range::new(3, 250);
    let data = super::world::payload(1, range);
    let request = crate::block::Request::Write { range, data: data.clone(), fua: true };
    world.raw(request);
    world.settle();
    assert_eq!(world.outstanding(), 0);
    assert_eq!(&world.store.image[3 * 512..253 * 512], &data[..]);
}

#[test]
fn store_durability_waits_for_the_commit() {
    let mut world = World::new(11, Config { durability: Durability::Store, ..World::small() });
    world.settle();
    world.write(0, 8, false);
    world.poll();
    let flush = world.flush();
    finish_all(&mut world);
    assert!(world.is_outstanding(flush) && world.volume.drain_is_urgent());
    while world.deliver(Lane::Control) {}
    assert!(world.deliver(Lane::Drain), "shipped without lingering");
    world.answer();
    world.poll();
    assert!(!world.is_outstanding(flush) && !world.volume.drain_is_urgent());
}

#[test]
fn write_through_acknowledges_commits() {
    let mut world = World::new(11, Config { mode: Mode::WriteThrough, ..World::small() });
    world.settle();
    let write = world.write(0, 8, false);
    world.poll();
    assert!(world.is_outstanding(write));
    assert!(world.deliver(Lane::Drain));
    assert!(world.is_outstanding(write));
    world.answer();
    world.poll();
    assert!(!world.is_outstanding(write));
}

/// Fails a write (`sync` false) or a sync, with a flush waiting.
fn failing(on_journal_failure: OnJournalFailure, sync: bool) -> (World, u64) {
    let mut world = alone(Config { on_journal_failure, ..World::small() });
    world.write(0, 8, false);
    if sync {
        finish_all(&mut world);
    }
    let flush = world.flush();
    world.poll();
    match &world.mutations[0] {
        DiskOperation::Sync { .. } => assert!(sync),
        DiskOperation::Write { .. } => assert!(!sync),
        DiskOperation::Read { .. } => unreachable!(),
    }
    world.fail_mutation();
    world.poll();
    (world, flush)
}

#[test]
fn after_a_failure_the_volume_goes_on_in_store_durability() {
    for sync in [false, true] {
        let (mut world, flush) = failing(OnJournalFailure::Continue, sync);
        assert!(matches!(world.events[..], [.., Event::JournalFailed { continues: true, .. }]));
        assert!(world.is_outstanding(flush), "nothing local makes it durable any more");
        let write = world.write(8, 8, false);
        world.poll();
        assert!(!world.is_outstanding(write));
        assert!(world.mutations.is_empty(), "nothing is written or synced after a failure");
        world.settle();
        assert!(!world.is_outstanding(flush) && world.mutations.is_empty());
        world.check_settled();
        assert!(world.volume.status(world.now).latched);
    }
}

#[test]
fn after_a_failure_the_volume_stops_if_told_so() {
    for sync in [false, true] {
        let (mut world, flush) = failing(OnJournalFailure::Stop, sync);
        let write = flush - 1;
        assert!(matches!(world.events[..], [.., Event::JournalFailed { continues: false, .. }]));
        let read = world.read(0, 8);
        world.poll();
        let stopped = |id: u64| (id, BlockError::Stopped);
        let failed = [write, flush, read].map(stopped);
        // If the sync failed, the write had its acknowledgment already.
        assert_eq!(world.errors, failed[usize::from(sync)..]);
        // Its writes in memory still reach the store.
        world.settle();
        assert_eq!(world.store.committed, 1);
        world.check_store();
    }
}

/// After a failure the store may know more than the journal: the next run takes that over.
#[test]
fn a_journal_that_the_store_has_overtaken_is_adopted() {
    let (mut world, _) = failing(OnJournalFailure::Continue, true);
    for n in 0..5 {
        world.write(n * 8, 8, false);
    }
    world.settle();
    assert_eq!(world.store.committed, 6);
    let recovered = world.disk.recover().unwrap();
    assert!(recovered.last < 6);
    world.restart(recovered);
    world.settle();
    world.write(100, 8, true);
    world.settle();
    world.check_settled();
    world.crash(true);
    world.settle();
    world.check_settled();
    assert_eq!(world.last(), 7);
}

#[test]
fn memory_is_the_ring_after_a_failure() {
    let (mut world, _) = failing(OnJournalFailure::Continue, false);
    for n in 0..100 {
        world.write(n * 2 % 200, 16, false);
    }
    world.poll();
    assert!(world.volume.status(world.now).waiting_writes > 0);
    assert!(world.max_memory <= world.config.memory_bytes + 4096);
    world.settle();
    world.check_settled();
}

#[test]
fn shutdown_drains_and_detaches() {
    let mut world = World::new(4, World::small());
    world.settle();
    for n in 0..5 {
        world.write(n * 8, 8, false);
    }
    world.poll();
    world.volume.handle_shutdown(world.now);
    let refused = world.write(0, 8, false);
    world.poll();
    assert_eq!(world.errors, [(refused, BlockError::ShuttingDown)]);
    assert!(!world.volume.is_idle());
    finish_all(&mut world);
    assert!(world.volume.is_idle() && !world.volume.is_drained());
    world.settle();
    assert!(world.volume.is_drained() && world.volume.is_detached());
    assert_eq!(world.store.committed, 5);
}

/// Memory makes reads fast: buffers must not be twice as long as their frames.
#[test]
fn buffers_follow_the_length_of_frames() {
    let mut world = alone(Config { memory_bytes: 512 << 10, ..World::small() });
    let memory = |world: &mut World, writes: u64| {
        let before = world.volume.status(world.now).memory_bytes;
        for n in 0..writes {
            world.write(n % 30 * 8, 8, true);
        }
        finish_all(world);
        world.volume.status(world.now).memory_bytes - before
    };
    memory(&mut world, 8);
    for _ in 0..10 {
        memory(&mut world, 1);
    }
    assert_eq!(memory(&mut world, 1), 8192);
    assert!(memory(&mut world, 8) < 2 * 8 * 4200);
}

#[test]
fn what_is_written_and_not_synced_stays_in_memory() {
    let mut world = alone(Config { memory_bytes: 64 << 10, ..World::small() });
    for n in 0..40 {
        world.write(n * 16 % (SECTORS - 16), 16, false);
        world.poll();
        while let Some(DiskOperation::Write { sync: false, .. }) = world.mutations.front() {
            world.finish_mutation();
            world.poll();
        }
    }
    assert!(world.fail_mutation(), "a sync is under way");
    world.settle();
    world.check_settled();
}
