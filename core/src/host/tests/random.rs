//! Random histories around the engine. Reads are right, no promised write gets lost, and everything
//! comes to rest.

use super::world::{Rng, SMALL, World};
use crate::host::journal::Geometry;
use crate::host::{Config, Durability, Mode};
use crate::pack::{Compression, DATA_KEY_BYTES, DataKey, Keys, Packing};
use proptest::prelude::*;
use std::collections::BTreeMap;

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
        packed(),
    ]
}

/// Data in compressed form, encrypted, or both, in records of one block or a few.
fn packed() -> impl Strategy<Value = Config> {
    let compression =
        prop_oneof![Just(Compression::None), Just(Compression::Lz4), Just(Compression::Zstd(1)),];
    let parts = (compression, any::<bool>(), 1..4u64, any::<bool>());
    parts.prop_map(|(compression, encrypted, blocks, few)| {
        let keys = BTreeMap::from([(1, DataKey::new([3; DATA_KEY_BYTES]))]);
        let keys = Keys::new([9; 12], keys).filter(|_| encrypted);
        Config {
            packing: Packing { compression, keys },
            packed_sectors_max: 8 * blocks,
            map_entries_max: if few { 12 } else { World::small().map_entries_max },
            ..World::small()
        }
    })
}

fn cases() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases())]

    /// Any order of completions, any link: reads return the last acknowledged content. In the end
    /// the store has everything.
    #[test]
    fn behaves_as_an_array(seed in any::<u64>(), config in config(), steps in 50..1500usize) {
        let mut world = World::new(seed, config);
        world.steps(steps);
        world.settle();
        world.check_settled();
    }

    #[test]
    fn write_through_behaves_as_an_array(
        seed in any::<u64>(),
        config in config(),
        steps in 50..800usize,
    ) {
        let mut world = World::new(seed, Config { mode: Mode::WriteThrough, ..config });
        world.steps(steps);
        world.settle();
        world.check_settled();
        assert_eq!(world.disk.syncs, 0);
    }

    /// The power goes again and again. Flushed writes survive, the surviving writes are a prefix,
    /// and the store is never ahead of the journal.
    #[test]
    fn survives_power_cuts(seed in any::<u64>(), config in config(), lives in 1..12usize) {
        let mut world = World::new(seed, config);
        for _ in 0..lives {
            let steps = world.rng.below(300) as usize;
            world.steps(steps);
            world.poll();
            let power = world.rng.chance(80);
            world.crash(power);
        }
        world.settle();
        world.check_settled();
    }

    /// The disk fails at some point. Everything acknowledged still reaches the store. If the host
    /// goes before that too, flushed writes are in the journal or at the store.
    #[test]
    fn survives_a_disk_failure(
        seed in any::<u64>(),
        before in 0..600usize,
        after in 0..600usize,
        crash in any::<bool>(),
    ) {
        let mut world = World::new(seed, World::small());
        world.steps(before);
        world.poll();
        world.fail_mutation();
        world.steps(after);
        if crash {
            world.poll();
            world.disk.stop(&world.mutations, &mut Rng(seed));
            world.disk.cut(&mut Rng(seed));
            let recovered = world.disk.recover().unwrap();
            prop_assert!(recovered.last.max(world.store.committed) >= world.flushed);
            world.check_store();
            world.restart(recovered);
            world.steps(after);
        }
        world.settle();
        world.check_settled();
    }
}
