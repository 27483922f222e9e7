//! A store that lies about a keyed volume: with older blocks, with zeroes, or with a volume after a
//! rollback.

use super::store::Lie;
use super::world::{SECTORS, SMALL, World};
use crate::block::{BlockError, BlockState, Range};
use crate::host::journal::Geometry;
use crate::host::versions::{Rollback, Verdict};
use crate::host::{Config, Event, Mode};
use crate::pack::{Compression, DATA_KEY_BYTES, DataKey, Keys, Packing};
use crate::wire::link::{Changes, Lane, StagedRun, ToHost, ToStore};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

pub fn config() -> Config {
    let keys = BTreeMap::from([(1, DataKey::new([3; DATA_KEY_BYTES]))]);
    Config {
        packing: Packing { compression: Compression::None, keys: Keys::new([9; 12], keys) },
        readahead_bytes: 0,
        ..World::small()
    }
}

/// Writes until the journal has nothing of the earlier writes.
fn push_out(world: &mut World) {
    for n in 0..60 {
        world.write(128 + n % 8 * 16, 16, false);
        world.settle();
    }
}

fn outdated(world: &World) -> Vec<Range> {
    let range = |event: &Event| match event {
        Event::StoreOutdated { range } => Some(*range),
        _ => None,
    };
    world.events.iter().filter_map(range).collect()
}

/// A read of the range must fail.
fn expect_error(world: &mut World, range: Range) {
    let before = world.errors.len();
    world.read(range.lba, range.sectors);
    world.settle();
    assert_eq!(world.errors.len(), before + 1, "{range} is read");
    assert!(matches!(world.errors.last(), Some((_, BlockError::Medium(_)))));
    assert!(!outdated(world).is_empty());
}

#[test]
fn an_older_block_is_an_error_for_its_range() {
    let mut world = World::new(1, config());
    world.write(0, 16, false);
    world.settle();
    world.store.remember();
    world.write(8, 8, false);
    world.settle();
    push_out(&mut world);
    world.read(0, 16);
    world.settle();
    assert_eq!(world.errors, []);
    world.store.lie = Lie::Old;
    world.read(0, 8);
    world.settle();
    assert_eq!(world.errors, [], "what was not written since is the newest version");
    expect_error(&mut world, Range::new(8, 8));
    assert_eq!(outdated(&world), [Range::new(8, 8)]);
    let status = world.volume.status(world.now).versions.unwrap();
    assert_eq!((status.complete, status.outdated), (true, 2));
}

#[test]
fn zeroes_for_what_was_written_are_an_error_and_no_hole() {
    let mut world = World::new(2, config());
    world.write(0, 8, false);
    world.settle();
    push_out(&mut world);
    world.store.lie = Lie::Zeroes;
    expect_error(&mut world, Range::new(0, 8));
    world.status(0, 24);
    world.settle();
    let runs = world.statuses.last().unwrap();
    assert_eq!((runs[0].sectors, runs[0].state), (8, BlockState::Data));
    assert_eq!((runs[1].sectors, runs[1].state), (16, BlockState::Hole));
}

#[test]
fn what_was_discarded_stays_so() {
    let mut world = World::new(3, config());
    world.write(0, 16, false);
    world.settle();
    world.store.remember();
    world.discard(0, 8);
    world.zero(8, 8, true);
    world.settle();
    push_out(&mut world);
    world.read(0, 16);
    world.settle();
    assert_eq!(world.errors, []);
    world.store.lie = Lie::Old;
    expect_error(&mut world, Range::new(0, 8));
    expect_error(&mut world, Range::new(8, 8));
}

/// If a store reports a hole in the place of written data, a copy must not make a hole of it.
#[test]
fn a_store_is_not_asked_what_there_is_to_copy() {
    let mut world = World::new(20, config());
    world.write(0, 16, false);
    world.settle();
    let id = world.stage(Range::new(0, 16), 64, None);
    world.poll();
    for frame in world.lanes.remove(&Lane::ReadAhead).into_iter().flatten() {
        if let ToStore::Stage { request, volume, .. } = frame.message {
            let result = Ok(vec![StagedRun::Hole(16)]);
            world.to_host.push_back(ToHost::Staged { request, volume, result }.into());
        }
    }
    world.answer();
    world.poll();
    assert!(world.staged.is_empty());
    assert_eq!(world.errors, [(id, BlockError::Unsupported)]);
}

/// Sectors of a block have versions of their own after a write to a part of it.
#[test]
fn an_older_sector_is_an_error() {
    let mut world = World::new(4, config());
    world.write(0, 8, false);
    world.settle();
    world.store.remember();
    world.write(2, 1, false);
    world.settle();
    push_out(&mut world);
    world.read(0, 8);
    world.settle();
    assert_eq!(world.errors, []);
    world.store.lie = Lie::Old;
    world.read(3, 5);
    world.settle();
    assert_eq!(world.errors, []);
    expect_error(&mut world, Range::new(2, 1));
}

#[test]
fn a_restart_does_not_make_it_forget() {
    for power in [false, true] {
        let mut world = World::new(5, config());
        world.write(0, 8, false);
        world.settle();
        world.store.remember();
        world.write(0, 8, false);
        world.flush();
        world.settle();
        push_out(&mut world);
        world.flush();
        world.settle();
        world.crash(power);
        world.settle();
        assert_eq!(world.refused, []);
        world.store.lie = Lie::Old;
        expect_error(&mut world, Range::new(0, 8));
    }
}

/// The journal keeps all writes that the table on disk lacks, however long nobody asks for room.
#[test]
fn what_was_committed_just_before_a_power_cut_is_known_after_it() {
    let mut world = World::new(6, config());
    for n in 0..200 {
        world.write(n % 12 * 8 + n % 3, 1 + n % 11, false);
        world.settle();
        if n % 7 == 0 {
            world.crash(true);
            world.settle();
            world.read(0, 112);
            world.settle();
            assert_eq!(world.errors, []);
        }
    }
}

#[test]
fn a_store_that_was_rolled_back_is_refused() {
    let mut world = World::new(7, config());
    world.write(0, 8, false);
    world.settle();
    let (image, records) = world.store.copy();
    let committed = world.store.committed;
    world.write(0, 8, false);
    world.flush();
    world.settle();
    push_out(&mut world);
    world.advance(Duration::from_secs(11));
    world.settle();
    let known = world.table_head().seq;
    assert!(known > committed);
    world.store.paste(image, records);
    world.store.committed = committed;
    let attached = world.store.attach();
    let ends = world.recovered().unwrap().ends();
    let verdict = world.table_head().judge(&attached, Some(ends), world.statement, None);
    assert_eq!(verdict, Verdict::Refuse(Rollback::Shorter { committed, known }));
}

/// A store's list of others' writes counts only if a holder of the keys confirms it.
#[test]
fn changes_of_nobody_are_refused() {
    let mut world = World::new(8, config());
    world.write(0, 8, false);
    world.settle();
    world.advance(Duration::from_secs(11));
    world.settle();
    let head = world.table_head();
    let ends = Some(world.recovered().unwrap().ends());
    world.store.attach();
    let attached = world.store.attach();
    let statement = world.statement;
    let judge = |statement, changes| head.judge(&attached, ends, statement, changes);
    assert!(matches!(judge(statement, None), Verdict::Ask(moment) if moment.epoch == head.epoch));
    let ranges = vec![Range::new(0, 8)];
    let some = || Some(Changes::Ranges(ranges.clone()));
    assert!(matches!(judge(statement, some()), Verdict::Refuse(Rollback::Changed { .. })));
    assert_eq!(judge(statement, Some(Changes::Ranges(Vec::new()))), Verdict::Go(Vec::new()));
    let mut newer = statement.unwrap();
    newer.epoch += 1;
    assert_eq!(judge(Some(newer), some()), Verdict::Go(ranges.clone()));
    let unknown = judge(Some(newer), Some(Changes::Unknown));
    assert!(matches!(unknown, Verdict::Refuse(Rollback::Unknown { .. })));
    let gone = judge(None, some());
    assert!(matches!(gone, Verdict::Refuse(Rollback::Statement { .. })));
    newer.seq = attached.committed + 1;
    assert!(matches!(judge(Some(newer), some()), Verdict::Refuse(Rollback::Shorter { .. })));
}

/// A host without a table believes the first version that it sees, and no other from then on.
#[test]
fn the_first_version_seen_is_the_only_one() {
    let mut first = World::new(9, config());
    first.write(0, 16, false);
    first.settle();
    first.store.remember();
    first.write(0, 16, false);
    first.settle();
    let mut world = first.elsewhere(config());
    world.store.take_memory(&first.store);
    world.read(0, 8);
    world.settle();
    assert_eq!(world.errors, []);
    world.store.lie = Lie::Old;
    expect_error(&mut world, Range::new(0, 8));
    assert!(!world.volume.status(world.now).versions.unwrap().complete);
}

#[test]
fn a_table_whose_disk_fails_holds_nobody_up() {
    let mut world = World::new(10, config());
    world.table_fails = true;
    push_out(&mut world);
    assert!(world.events.iter().any(|event| matches!(event, Event::VersionsFailed { .. })));
    world.read(128, 64);
    world.settle();
    assert_eq!(world.errors, []);
    assert!(world.volume.status(world.now).versions.unwrap().failed.is_some());
}

/// A failed table does not know which writes the store can have. That is no reason to disbelieve
/// the store.
#[test]
fn the_link_may_be_lost_after_the_disk_of_a_table() {
    let mut world = World::new(12, config());
    world.table_fails = true;
    push_out(&mut world);
    world.write(0, 8, false);
    world.flush();
    for _ in 0..20 {
        world.poll();
        world.finish_mutation();
        world.advance(Duration::from_millis(50));
        world.poll();
        for lane in Lane::ALL {
            world.deliver(lane);
        }
    }
    assert_eq!(world.store.committed, world.last(), "the store has it, and its host was not told");
    world.link_down();
    world.write(8, 8, false);
    world.settle();
    world.check_settled();
}

/// If others wrote before an epoch, frames that the journal holds for the table must not lie behind
/// a frame of this epoch.
#[test]
fn the_writes_of_others_do_not_cut_a_journal_off() {
    for power in [false, true] {
        let mut world = World::new(14, config());
        world.write(0, 8, false);
        world.flush();
        world.bustle();
        world.advance(Duration::from_millis(200));
        world.bustle();
        assert_eq!(world.store.committed, world.last());
        let mut other = world.elsewhere(config());
        other.write(0, 8, false);
        other.write(16, 8, false);
        other.settle();
        world.come_back(power, &other);
        world.write(32, 8, false);
        world.flush();
        world.bustle();
        world.crash(power);
        for lba in [32, 40] {
            world.write(lba, 8, false);
            world.flush();
            world.settle();
            world.crash(power);
        }
        world.settle();
        assert_eq!(world.refused, []);
        world.check_settled();
    }
}

fn cases() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, cases: 48, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases())]

    /// The host always accepts an honest store, through crashes and power cuts. The table does not
    /// fit into memory, and the journal is short.
    #[test]
    fn an_honest_store_is_believed(
        seed in any::<u64>(),
        lives in 1..10usize,
        files in 2..5u32,
        sectors in 1..3u64,
    ) {
        let config = Config {
            mode: Mode::Journal(Geometry { files, ..SMALL }),
            packed_sectors_max: 8 * sectors,
            readahead_bytes: 64 << 10,
            ..config()
        };
        let mut world = World::new(seed, config);
        for _ in 0..lives {
            let steps = world.rng.below(300) as usize;
            world.steps(steps);
            let power = world.rng.chance(60);
            world.crash(power);
        }
        world.settle();
        world.check_settled();
        prop_assert_eq!(&world.refused[..], &[]);
        prop_assert_eq!(outdated(&world), Vec::<Range>::new());
    }

    /// Clients see the newest content or errors, however the store lies: `World::check` looks at
    /// each answer.
    #[test]
    fn a_lying_store_is_not_believed(seed in any::<u64>(), lives in 1..6usize) {
        let mut world = World::new(seed, Config { readahead_bytes: 64 << 10, ..config() });
        for _ in 0..lives {
            world.store.lie = Lie::None;
            let steps = world.rng.below(200) as usize;
            world.steps(steps);
            world.settle();
            world.store.remember();
            world.steps(steps);
            world.settle();
            world.store.lie = if world.rng.chance(50) { Lie::Old } else { Lie::Zeroes };
            for n in 0..SECTORS / 8 {
                world.read(n * 8, 8);
            }
            world.steps(100);
            world.settle();
            let power = world.rng.chance(50);
            world.crash(power);
        }
    }
}
