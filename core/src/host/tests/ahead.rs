//! Read-ahead and limits in the whole engine.

use super::world::World;
use crate::block::{Range, Request};
use crate::host::{Config, Counters, Durability, Event, ReadAheadStatus};
use crate::wire::link::{Lane, ToStore};
use std::time::Duration;

fn ahead(world: &World) -> ReadAheadStatus {
    world.volume.status(world.now).readahead
}

fn counters(world: &World) -> Counters {
    world.volume.status(world.now).counters
}

/// A volume with content at the store and nothing here.
fn cold(config: Config) -> World {
    let mut warm = World::new(4, World::small());
    for lba in [0, 16, 32, 48, 150, 166, 182, 198] {
        warm.write(lba, 16, true);
    }
    warm.settle();
    warm.elsewhere(config)
}

fn asked(world: &World, lane: Lane) -> Vec<Range> {
    let frames = world.lanes.get(&lane).into_iter().flatten();
    let range = |message: &ToStore| match message {
        ToStore::Read { range, .. } => Some(*range),
        _ => None,
    };
    frames.filter_map(|frame| range(&frame.message)).collect()
}

#[test]
fn a_sequence_is_read_ahead() {
    let mut world = cold(World::small());
    for lba in (0..256).step_by(8) {
        world.read(lba, 8);
        world.settle();
    }
    let counters = counters(&world);
    assert_eq!(counters.store_read_bytes, 3 * 4096, "three reads, then it is known");
    assert_eq!(counters.readahead_hit_bytes, 256 * 512 - 3 * 4096);
    let status = ahead(&world);
    assert_eq!(status.detected.used, counters.readahead_hit_bytes);
    assert_eq!(status.streams, 1);
    world.check_settled();
}

#[test]
fn a_read_that_meets_what_is_under_way_waits_for_it() {
    let mut world = cold(World::small());
    world.prefetch(0, 64);
    world.poll();
    let read = world.read(8, 16);
    world.poll();
    assert_eq!(asked(&world, Lane::ReadAhead), [Range::new(0, 64)]);
    assert_eq!(asked(&world, Lane::Read), []);
    assert!(world.is_outstanding(read));
    world.settle();
    assert!(!world.is_outstanding(read));
    assert_eq!(counters(&world).store_read_bytes, 0);
    assert_eq!(counters(&world).readahead_wait_bytes, 8192);
    assert_eq!(ahead(&world).hints.used, 8192);
    world.check_settled();
}

#[test]
fn a_write_in_between_makes_a_read_ask_for_itself() {
    let mut world = cold(World::small());
    world.prefetch(0, 64);
    world.poll();
    let before = world.read(0, 8);
    world.write(4, 8, false);
    let after = world.read(0, 16);
    world.poll();
    // The journal has the written sectors. The others are still good.
    assert_eq!(asked(&world, Lane::Read), []);
    world.settle();
    assert!(!world.is_outstanding(before) && !world.is_outstanding(after));
    let status = ahead(&world);
    assert_eq!(status.hints.issued, 64 * 512);
    assert_eq!(status.hints.wasted, 8 * 512);
    assert_eq!(status.hints.used, 8 * 512, "four sectors of each read");
    world.check_settled();
}

#[test]
fn what_is_lost_with_the_connection_is_asked_for_by_who_waits() {
    let mut world = cold(World::small());
    world.prefetch(0, 64);
    world.poll();
    let read = world.read(8, 8);
    world.poll();
    world.link_down();
    assert_eq!(ahead(&world).in_flight_bytes, 0);
    world.link_up();
    world.settle();
    assert!(!world.is_outstanding(read));
    assert_eq!(counters(&world).store_read_bytes, 4096);
    world.check_settled();
}

#[test]
fn a_trace_is_recorded_and_replayed() {
    let mut world = cold(World::small());
    assert!(world.volume.handle_record(world.now));
    assert!(!world.volume.handle_record(world.now));
    let reads = [(150, 8), (16, 8), (182, 16), (0, 8), (158, 8), (16, 4)];
    for (lba, sectors) in reads {
        world.read(lba, sectors);
        world.settle();
    }
    let trace = world.volume.handle_stop_recording(world.now).unwrap();
    assert_eq!(world.volume.handle_stop_recording(world.now), None);
    let ranges = [(150, 16), (16, 8), (182, 16), (0, 8)];
    assert_eq!(trace.ranges(), ranges.map(|(lba, sectors)| Range::new(lba, sectors)));

    let mut again = cold(World::small());
    again.volume.handle_replay(again.now, &trace);
    again.settle();
    assert_eq!(again.events.last(), Some(&Event::TraceReplayed { followed: true }));
    for (lba, sectors) in reads {
        again.read(lba, sectors);
        again.settle();
    }
    assert_eq!(counters(&again).store_read_bytes, 0);
    assert_eq!(ahead(&again).traces.used, trace.bytes());
    assert_eq!(ahead(&again).replay, None);
    again.check_settled();
}

#[test]
fn a_replay_waits_for_its_reader_and_ends_without_one() {
    let mut world = cold(World::small());
    assert!(world.volume.handle_record(world.now));
    for n in 0..42 {
        world.read(n * 6, 4);
        world.settle();
    }
    let trace = world.volume.handle_stop_recording(world.now).unwrap();
    assert!(trace.bytes() > 64 << 10);

    let mut again = cold(World::small());
    again.volume.handle_replay(again.now, &trace);
    again.settle();
    let (asked, total) = ahead(&again).replay.unwrap();
    assert!(asked < total && asked <= 32 << 10);
    for n in 0..42 {
        again.read(n * 6, 4);
        again.settle();
    }
    assert_eq!(counters(&again).store_read_bytes, 0);
    assert_eq!(ahead(&again).traces.wasted, 0);

    let mut other = cold(World::small());
    other.volume.handle_replay(other.now, &trace);
    other.settle();
    for n in 0..64 {
        other.read(n % 42 * 6 + 4, 2);
        other.settle();
    }
    assert_eq!(other.events.last(), Some(&Event::TraceReplayed { followed: false }));
    assert_eq!(ahead(&other).replay, None);
}

#[test]
fn without_memory_nothing_is_read_ahead() {
    let mut world = cold(Config { readahead_bytes: 0, ..World::small() });
    world.prefetch(0, 64);
    for lba in (0..256).step_by(8) {
        world.read(lba, 8);
        world.settle();
    }
    assert_eq!(ahead(&world).hints.issued + ahead(&world).detected.issued, 0);
    assert_eq!(counters(&world).store_read_bytes, 256 * 512);
}

#[test]
fn reading_ahead_keeps_to_its_limit_and_reads_know_none() {
    let mut world = cold(World::small());
    world.volume.handle_limits(world.now, None, Some(4096));
    let start = world.now;
    world.settle();
    for lba in (0..256).step_by(8) {
        world.read(lba, 8);
        world.settle();
    }
    let allowed = 4096.0 * (world.now.since(start).as_secs_f64() + 0.1) + 65_536.0;
    assert!((ahead(&world).detected.issued as f64) < allowed);
    assert_eq!(world.outstanding(), 0);
    assert_eq!(world.volume.status(world.now).readahead_rate, Some(4096));
    world.check_settled();
}

#[test]
fn the_drain_keeps_to_its_limit() {
    let mut world = World::new(1, World::small());
    world.volume.handle_limits(world.now, Some(100_000), None);
    let start = world.now;
    for n in 0..200 {
        world.write(n % 15 * 16, 16, false);
        world.settle();
    }
    world.check_settled();
    let took = world.now.since(start);
    let sent = counters(&world).batch_bytes;
    assert!(sent > 300_000, "{sent}");
    // The limit covers all but the last batch.
    let least = Duration::from_secs_f64((sent - 200_000) as f64 / 100_000.0);
    assert!(took >= least, "{sent} bytes in {took:?}");
}

#[test]
fn what_somebody_waits_for_is_not_held_back() {
    let config = Config { durability: Durability::Store, ..World::small() };
    let mut world = World::new(1, config);
    world.volume.handle_limits(world.now, Some(1000), None);
    let start = world.now;
    for n in 0..4 {
        world.write(n * 16, 16, false);
        world.raw(Request::Flush);
        world.settle();
    }
    assert!(world.now.since(start) < Duration::from_secs(30), "{:?}", world.now.since(start));
    assert_eq!(world.outstanding(), 0);
    // It counts all the same: data that nobody waits for comes later.
    world.write(0, 8, false);
    let committed = world.store.committed;
    world.advance(Duration::from_secs(60));
    assert_eq!(world.store.committed, committed);
}
