//! Records that do not come back as written, from memory or from the journal's files.

use super::world::World;
use crate::block::{BlockError, Range};
use crate::host::{Config, Event};
use crate::wire::link::Lane;
use std::time::Duration;

fn local(world: &mut World) {
    world.poll();
    while world.finish_mutation() | world.finish_read() {
        world.poll();
    }
}

/// A world out of reach of its store, with `writes` writes of 8 KiB. Each has a frame of its own,
/// and the frames lie one behind the other on disk.
fn written(writes: u64, config: Config) -> World {
    let mut world = World::new(31, config);
    world.settle();
    world.link_down();
    for n in 0..writes {
        world.write(n * 16, 16, true);
        local(&mut world);
    }
    assert_eq!(world.outstanding(), 0);
    world
}

/// Address of the record that holds a sector, in the first lap of the journal.
fn record(world: &mut World, lba: u64) -> u64 {
    let mut parts = world.volume.log().cover(Range::new(lba, 1));
    parts.next().and_then(|(_, place)| place).map(|place| place.addr).unwrap()
}

/// Flips a bit on disk in the payload of the record at `addr`.
fn rot_on_disk(world: &mut World, addr: u64) {
    let (file, offset) = world.volume.log().journal().spot(addr + 300);
    world.disk.live[file as usize][offset as usize] ^= 1;
}

/// The same in memory.
fn rot_in_memory(world: &mut World, lba: u64) {
    let addr = record(world, lba) + 300;
    world.volume.log().rot(addr);
}

/// Does everything that is possible now.
fn pump(world: &mut World) {
    for _ in 0..20 {
        local(world);
        for lane in Lane::ALL {
            world.deliver(lane);
        }
        world.answer();
    }
    local(world);
}

/// Like [`pump`], and time passes.
fn pass(world: &mut World, time: Duration) {
    let end = world.now.after(time);
    while world.now < end {
        pump(world);
        world.advance(Duration::from_millis(50));
    }
    pump(world);
}

/// Whether the drain waited, for each report of damage.
fn damage(world: &World) -> Vec<bool> {
    let waits = |event: &Event| match event {
        Event::JournalDamaged { shipping_waits, .. } => Some(*shipping_waits),
        _ => None,
    };
    world.events.iter().filter_map(waits).collect()
}

fn refusals(world: &World) -> usize {
    world.events.iter().filter(|event| matches!(event, Event::BatchRefused { .. })).count()
}

/// Reads 8 KiB; true if that is a medium error.
fn is_lost(world: &mut World, lba: u64) -> bool {
    world.errors.clear();
    let read = world.read(lba, 16);
    pump(world);
    assert!(!world.is_outstanding(read));
    assert!(world.errors.iter().all(|(_, error)| matches!(error, BlockError::Medium(_))));
    !world.errors.is_empty()
}

/// All the way: data in memory goes to the store as it is, and the store refuses it. The host looks
/// at it, finds the damage, and sends the data of the disk.
#[test]
fn a_record_that_rots_in_memory_is_refused_and_shipped_from_disk() {
    let mut world = written(5, World::small());
    rot_in_memory(&mut world, 32);
    world.link_up();
    world.settle();
    assert_eq!((refusals(&world), damage(&world)), (1, vec![false]));
    world.check_settled();
}

#[test]
fn a_reader_that_finds_it_first_gets_what_the_disk_has() {
    let mut world = written(5, World::small());
    rot_in_memory(&mut world, 32);
    world.link_up();
    while refusals(&world) == 0 {
        pump(&mut world);
        world.advance(Duration::from_millis(10));
    }
    // The host has not resumed yet.
    assert!(!world.volume.status(world.now).link_up);
    assert!(!is_lost(&mut world, 32));
    assert_eq!(damage(&world), [false]);
    world.settle();
    world.check_settled();
}

/// The same without another copy: the store gets the writes before it and nothing after it.
#[test]
fn a_record_that_rots_in_memory_with_no_other_copy_is_lost_alone() {
    let mut world = World::new(31, World::small());
    world.settle();
    world.link_down();
    world.write(0, 16, false);
    world.poll();
    world.fail_mutation();
    for n in 1..5 {
        world.write(n * 16, 16, false);
        world.poll();
        world.volume.log().seal();
    }
    rot_in_memory(&mut world, 48);
    world.link_up();
    pass(&mut world, Duration::from_secs(30));
    stuck_at(&mut world, 3);
    assert_eq!(refusals(&world), 1, "what is known to be damaged is not sent again");
}

#[test]
fn a_record_that_rots_on_disk_holds_up_what_follows_it_only() {
    let mut world = written(5, Config { memory_bytes: 64 << 10, ..World::small() });
    let victim = record(&mut world, 48);
    rot_on_disk(&mut world, victim);
    // Push it out of memory.
    for n in 5..9 {
        world.write(n * 16, 16, true);
        local(&mut world);
    }
    world.link_up();
    pass(&mut world, Duration::from_secs(30));
    stuck_at(&mut world, 3);
    assert_eq!(refusals(&world), 0);
    // A later read succeeded after all.
    rot_on_disk(&mut world, victim);
    world.settle();
    world.check_settled();
}

/// The store has the writes before number `committed + 1`. That write is damaged and fills the 8
/// KiB from sector 16 x `committed` on. Clients lose only this write. The operator gets a report.
fn stuck_at(world: &mut World, committed: u64) {
    assert_eq!(world.store.committed, committed);
    world.check_store();
    let told = damage(world);
    assert!(told.contains(&true) && told.len() <= 8, "a pause that grows: {told:?}");
    for n in 0..5 {
        assert_eq!(is_lost(world, n * 16), n == committed, "block {n}");
    }
    world.write(committed * 16, 16, false);
    pump(world);
    assert!(!is_lost(world, committed * 16), "what is written anew is there");
    // Writes go on until there is no room, and then they wait.
    let mut writes = 0;
    while world.volume.status(world.now).waiting_writes == 0 {
        assert!(writes < 100);
        writes += 1;
        world.write(128 + writes % 8 * 16, 16, false);
        local(world);
    }
    assert!(writes > 2 && world.errors.is_empty());
    pass(world, Duration::from_secs(1));
    let status = world.volume.status(world.now);
    assert!(status.waiting_writes == 1 && status.lag_bytes > 5 * 8192);
    assert!(status.lag > Duration::from_secs(30) && status.link_up);
    assert_eq!(world.store.committed, committed);
}

/// A client never loses data that the store has too because the journal is damaged.
#[test]
fn a_clean_record_that_rots_on_disk_is_read_from_the_store() {
    let mut world = written(5, Config { memory_bytes: 64 << 10, ..World::small() });
    world.link_up();
    world.settle();
    for n in 5..9 {
        world.write(n * 16, 16, true);
        local(&mut world);
    }
    let victim = record(&mut world, 16);
    rot_on_disk(&mut world, victim);
    let before = world.volume.status(world.now).counters.store_read_bytes;
    for _ in 0..2 {
        world.read(16, 16);
        world.settle();
    }
    assert_eq!((world.outstanding(), damage(&world)), (0, vec![false]));
    assert_eq!(world.volume.status(world.now).counters.store_read_bytes, before + 2 * 8192);
    world.check_settled();
}
