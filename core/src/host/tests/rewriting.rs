//! The volume encrypts content under an older data key anew while clients write, and changes
//! nothing else.

use super::store::Lie;
use super::world::{SECTORS, SMALL, VOLUME, World};
use crate::block::Range;
use crate::host::journal::Geometry;
use crate::host::{Config, Event, Mode, RewriteStatus};
use crate::pack::{Compression, DATA_KEY_BYTES, DataKey, Keys, Packing};
use crate::record::packed;
use crate::wire::link::Lane;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn keys(newest: u32, retires: bool) -> Keys {
    let key = |number: u32| (number, DataKey::new([number as u8; DATA_KEY_BYTES]));
    let keys: BTreeMap<u32, DataKey> = (1..=newest).map(key).collect();
    Keys::new([9; 12], keys).unwrap().with_retiring(retires)
}

fn config() -> Config {
    let packing = Packing { compression: Compression::None, keys: Some(keys(1, false)) };
    Config { packing, readahead_bytes: 0, ..World::small() }
}

fn status(world: &World) -> RewriteStatus {
    world.volume.status(world.now).rewriting.unwrap()
}

/// The numbers of the keys of the content at the store.
fn keys_of(world: &World, range: Range) -> Vec<u32> {
    let with_content = |lba: &u64| world.store.sector(*lba).iter().any(|b| *b != 0);
    let mut all: Vec<u32> = (range.lba..range.end())
        .filter(with_content)
        .map(|lba| {
            let record = world.store.records[lba as usize].as_ref().unwrap();
            packed::open(VOLUME, record).unwrap().1.key
        })
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn filled(seed: u64, config: Config) -> World {
    let mut world = World::new(seed, config);
    for lba in (0..SECTORS / 2).step_by(16) {
        world.write(lba, 16, false);
        world.settle();
    }
    world
}

#[test]
fn everything_comes_under_the_newest_key() {
    let mut world = filled(1, config());
    world.write(3, 2, false);
    world.discard(40, 8);
    world.settle();
    assert_eq!(keys_of(&world, Range::new(0, SECTORS)), [1]);
    world.rotate(keys(2, false));
    world.settle();
    assert_eq!(world.volume.status(world.now).rewriting, None, "nothing asks for it");
    world.rotate(keys(2, true));
    world.settle();
    assert_eq!(keys_of(&world, Range::new(0, SECTORS)), [2]);
    let bytes = (SECTORS / 2 - 8) * 512;
    let total_bytes = SECTORS * 512;
    let expected = RewriteStatus {
        key: 2,
        done: true,
        total_bytes,
        done_bytes: total_bytes,
        rewritten_bytes: bytes,
        failed_bytes: 0,
    };
    assert_eq!(status(&world), expected);
    assert!(world.events.contains(&Event::EncryptedAnew { key: 2, bytes, failed_bytes: 0 }));
    // After a restart the volume looks at everything, and writes nothing.
    world.flush();
    world.settle();
    world.crash(false);
    world.settle();
    assert_eq!(status(&world), RewriteStatus { rewritten_bytes: 0, ..expected });
    world.rotate(keys(3, true));
    world.settle();
    assert_eq!((status(&world).key, status(&world).done), (3, true));
    assert_eq!(keys_of(&world, Range::new(0, SECTORS)), [3]);
    world.check_settled();
}

/// The answer is under way while a client writes.
#[test]
fn what_a_client_writes_after_a_piece_was_asked_for_stays() {
    for discard in [false, true] {
        let mut world = filled(2, config());
        world.rotate(keys(2, true));
        world.poll();
        let asked = |world: &World| world.lanes.get(&Lane::ReadAhead).is_some_and(|l| l.len() > 2);
        for _ in 0..100 {
            if asked(&world) {
                break;
            }
            world.deliver(Lane::ReadAhead);
            world.answer();
            world.finish_table(true);
            world.poll();
        }
        assert!(asked(&world), "pieces are asked for");
        while world.deliver(Lane::ReadAhead) {}
        // The store has answered, and none of that content is here.
        for lba in (4..SECTORS / 2).step_by(32) {
            if discard {
                world.discard(lba, 3);
            } else {
                world.write(lba, 3, false);
            }
        }
        world.poll();
        world.settle();
        world.check_settled();
        assert!(status(&world).done);
        assert_eq!(keys_of(&world, Range::new(0, SECTORS)), [2]);
    }
}

/// The journal's writes under the older key reach the store before the pass looks at anything.
#[test]
fn what_was_written_before_the_rotation_and_comes_later_is_not_passed_over() {
    let mut world = World::new(3, config());
    world.link_down();
    world.write(0, 16, false);
    world.poll();
    world.rotate(keys(2, true));
    world.poll();
    world.settle();
    assert_eq!(keys_of(&world, Range::new(0, SECTORS)), [2]);
    world.check_settled();
}

/// The volume does not write an older block again as if it were the newest.
#[test]
fn what_a_store_gives_that_is_outdated_is_not_written() {
    let mut world = filled(4, config());
    world.store.remember();
    world.write(0, 8, false);
    world.settle();
    for n in 0..60 {
        world.write(64 + n % 4 * 16, 16, false);
        world.settle();
    }
    world.store.lie = Lie::Old;
    world.rotate(keys(2, true));
    for _ in 0..2000 {
        world.poll();
        world.finish_mutation();
        world.finish_table(true);
        world.finish_table(false);
        for lane in Lane::ALL {
            world.deliver(lane);
        }
        world.answer();
    }
    assert!(!status(&world).done);
    assert!(world.events.iter().any(|event| matches!(event, Event::StoreOutdated { .. })));
    world.check_store();
    world.store.lie = Lie::None;
    world.settle();
    assert_eq!((status(&world).done, status(&world).failed_bytes), (true, 0));
    world.check_settled();
}

fn cases() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases())]

    /// Clients see only the last written content, through their writes, lost links, crashes and
    /// power cuts. In the end all of it is under the newest key.
    #[test]
    fn clients_see_nothing_of_it(
        seed in any::<u64>(),
        lives in 1..6usize,
        files in 3..5u32,
        sectors in 1..3u64,
        write_through in prop::bool::weighted(0.2),
    ) {
        let mode = match write_through {
            true => Mode::WriteThrough,
            false => Mode::Journal(Geometry { files, ..SMALL }),
        };
        let mut world = World::new(seed, Config {
            mode,
            packed_sectors_max: 8 * sectors,
            readahead_bytes: 64 << 10,
            ..config()
        });
        world.steps(150);
        for life in 0..lives {
            world.rotate(keys(2 + life as u32 / 2, true));
            let steps = world.rng.below(400) as usize;
            world.steps(steps);
            if !write_through {
                let power = world.rng.chance(60);
                world.crash(power);
            }
        }
        world.settle();
        world.check_settled();
        prop_assert!(status(&world).done);
        let newest = world.config.packing.keys.as_ref().unwrap().newest();
        let found = keys_of(&world, Range::new(0, SECTORS));
        prop_assert!(found.is_empty() || found == [newest], "{:?}, newest {}", found, newest);
    }
}
