//! Random histories: whatever happens around the engine, reads are right, nothing is lost that was
//! promised, and everything comes to rest.

use super::world::{Rng, SMALL, World};
use crate::host::journal::Geometry;
use crate::host::{Config, Durability, Mode};
use proptest::prelude::*;

fn config() -> impl Strategy<Value = Config> {
    let small = World::small();
    prop_oneof![
        Just(small.clone()),
        Just(Config { durability: Durability::Store, ..small.clone() }),
        Just(Config { map_entries_max: 12, ..small.clone() }),
        Just(Config {
            mode: Mode::Journal(Geometry { file_bytes: 128 << 10, files: 2 }),
            batch_bytes: 8 << 10,
            ..small.clone()
        }),
        Just(Config { mode: Mode::Journal(Geometry { files: 7, ..SMALL }), ..small.clone() }),
    ]
}

fn cases() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases())]

    /// Any order of completions, any link: reads return what was acknowledged last, and in the end
    /// the store has everything.
    #[test]
    fn behaves_as_an_array(seed in any::<u64>(), config in config(), steps in 50..1500usize) {
        let mut world = World::new(seed, config);
        for _ in 0..steps {
            world.step();
        }
        world.settle();
        world.check_settled();
    }

    #[test]
    fn write_through_behaves_as_an_array(seed in any::<u64>(), steps in 50..800usize) {
        let mut world = World::new(seed, Config { mode: Mode::WriteThrough, ..World::small() });
        for _ in 0..steps {
            world.step();
        }
        world.settle();
        world.check_settled();
        assert_eq!(world.disk.syncs, 0);
    }

    /// The power goes again and again: flushed writes survive, what survives is a prefix, the
    /// store is never ahead of the journal.
    #[test]
    fn survives_power_cuts(seed in any::<u64>(), config in config(), lives in 1..12usize) {
        let mut world = World::new(seed, config);
        for _ in 0..lives {
            let steps = world.rng.below(300);
            for _ in 0..steps {
                world.step();
            }
            world.poll();
            let power = world.rng.chance(80);
            world.crash(power);
        }
        world.settle();
        world.check_settled();
    }

    /// The disk fails at some point: everything acknowledged still reaches the store.
    #[test]
    fn goes_on_from_memory(seed in any::<u64>(), before in 0..600usize, after in 0..600usize) {
        let mut world = World::new(seed, World::small());
        for _ in 0..before {
            world.step();
        }
        world.poll();
        world.fail_mutation();
        for _ in 0..after {
            world.step();
        }
        world.settle();
        world.check_settled();
    }

    /// The disk fails, and later the host too: flushed writes are in the journal or at the store.
    #[test]
    fn survives_a_disk_failure_and_a_crash(seed in any::<u64>(), before in 0..400usize, after in 0..400usize) {
        let mut world = World::new(seed, World::small());
        for _ in 0..before {
            world.step();
        }
        world.poll();
        world.fail_mutation();
        for _ in 0..after {
            world.step();
        }
        world.poll();
        let mut rng = Rng(seed);
        world.disk.cut(&mut rng);
        let recovered = world.disk.recover().unwrap();
        prop_assert!(recovered.last.max(world.store.committed) >= world.flushed);
        world.check_store();
        world.restart(recovered);
        for _ in 0..after {
            world.step();
        }
        world.settle();
        world.check_settled();
    }
}
