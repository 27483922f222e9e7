//! Roots: two hosts with the same knowledge have the same root, and a host without a table can
//! learn it.

use super::keyed::config;
use super::store::Lie;
use super::table::TableDisk;
use super::world::{SECTORS, SMALL, World};
use crate::block::{Range, VolumeId};
use crate::host::journal::Geometry;
use crate::host::versions::{
    BLOCKS, Head, Learned, Learner, PAGE_BYTES, Root, Rooting, SECTORS as SECTOR_MARKS,
};
use crate::host::{Config, Mode};
use crate::wire::link::{Attached, HostId, ToHost, ToStore};
use proptest::prelude::*;
use std::convert::Infallible;

const KEY: [u8; 32] = [5; 32];

fn page(table: &TableDisk, file: u32, number: u64) -> Vec<u8> {
    let file = table.file(file as usize);
    let from = (number as usize * PAGE_BYTES).min(file.len());
    file[from..file.len().min(from + PAGE_BYTES)].to_vec()
}

/// The root of a table without pending work.
fn root_of(table: &TableDisk, volume: VolumeId) -> Option<Root> {
    let head = Head::newest(volume, table.file(0)).unwrap().unwrap();
    let mut rooting = Rooting::new(&head)?;
    for number in 0..table.file(BLOCKS as usize).len().div_ceil(PAGE_BYTES) as u64 {
        let blocks = page(table, BLOCKS, number);
        let sectors = |number| Ok::<_, Infallible>(page(table, SECTOR_MARKS, number));
        rooting.take(number, &blocks, sectors).unwrap();
    }
    rooting.finish()
}

fn run(learner: &mut Learner, disk: &mut TableDisk) {
    loop {
        while let Some(operation) = learner.poll_disk() {
            disk.start(operation);
        }
        let Some(result) = disk.finish_read().or_else(|| disk.finish()) else { return };
        learner.handle_disk(result).unwrap();
    }
}

/// The table that another host makes of the store's content, in reads of `step` sectors.
fn learn(world: &mut World, key: [u8; 32], step: u64) -> Option<TableDisk> {
    let Attached { volume, epoch, .. } = world.store.attached();
    let head = Head::new(&world.store.attached(), HostId(77), true, key);
    let mut learner = Learner::new(head, 1).unwrap();
    let mut disk = TableDisk::new();
    while learner.at() < SECTORS {
        let range = Range::between(learner.at(), (learner.at() + step).min(SECTORS));
        let read = ToStore::Read { request: 1, volume, epoch, range };
        let answer = world.store.handle(read.into()).unwrap();
        let ToHost::Data { result: Ok(pieces), .. } = answer.message else { panic!() };
        loop {
            match learner.take(range, &pieces, &answer.payload) {
                Learned::Taken => break,
                Learned::Later => run(&mut learner, &mut disk),
                Learned::Unfit => return None,
            }
        }
        assert_eq!(learner.at(), range.end());
    }
    learner.finish();
    run(&mut learner, &mut disk);
    assert!(learner.is_at_rest());
    Some(disk)
}

/// Ends the volume in order.
fn let_go(world: &mut World) -> Option<Root> {
    world.volume.handle_shutdown(world.now);
    world.settle();
    root_of(&world.table, world.table_head().volume)
}

fn learned(world: &mut World, key: [u8; 32], step: u64) -> Option<Root> {
    let table = learn(world, key, step)?;
    root_of(&table, world.table_head().volume)
}

#[test]
fn a_root_is_of_one_state_and_one_key() {
    let mut world = World::new(1, config());
    world.write(0, 16, false);
    world.write(3, 2, false);
    world.settle();
    world.store.remember();
    world.zero(8, 4, true);
    world.write(70, 9, false);
    world.discard(40, 8);
    let root = let_go(&mut world).unwrap();
    assert_eq!(root.seq, world.store.committed);
    assert_eq!(learned(&mut world, KEY, 32), Some(root));
    assert_ne!(learned(&mut world, [6; 32], 32), Some(root), "the key is another one");
    for lie in [Lie::Old, Lie::Zeroes] {
        world.store.lie = lie;
        assert!(learned(&mut world, KEY, 32).is_some_and(|other| other != root));
    }
    world.store.lie = Lie::None;
    world.store.committed += 1;
    assert_ne!(learned(&mut world, KEY, 32), Some(root), "there was one more write");
}

#[test]
fn a_table_that_does_not_know_all_has_no_root() {
    let mut first = World::new(2, config());
    first.write(0, 16, false);
    first.settle();
    let mut world = first.elsewhere(config());
    world.read(0, 8);
    world.settle();
    assert_eq!(let_go(&mut world), None);
}

/// No table has content in plain text.
#[test]
fn nothing_is_learned_from_plain_text() {
    let mut world = World::new(3, World::small());
    world.write(0, 16, false);
    world.settle();
    assert!(learn(&mut world, KEY, 32).is_none());
}

#[test]
fn a_damaged_table_has_no_root() {
    let mut world = World::new(4, config());
    world.write(0, 16, false);
    assert!(let_go(&mut world).is_some());
    let mut unit = world.table.file(1)[..512].to_vec();
    unit[5] ^= 1;
    world.table.write(1, 0, &unit);
    assert_eq!(root_of(&world.table, world.table_head().volume), None);
}

/// Two hosts have the same root, however each came to its table or reads the volume. A store that
/// holds something back has another root.
fn have_the_same_root(seed: u64, lives: usize, files: u32, step: u64) {
    let config = Config { mode: Mode::Journal(Geometry { files, ..SMALL }), ..config() };
    let mut world = World::new(seed, config);
    for _ in 0..lives {
        let steps = world.rng.below(200) as usize;
        world.steps(steps);
        let power = world.rng.chance(60);
        world.crash(power);
    }
    world.settle();
    world.check_settled();
    world.store.remember();
    let (before, last) = (world.store.copy(), world.store.committed);
    let root = let_go(&mut world);
    assert!(root.is_some());
    assert_eq!(learned(&mut world, KEY, step), root);
    // The content of one sector of the newest ones is held back.
    let lba = world.rng.below(SECTORS);
    let (mut image, mut records) = before;
    records[lba as usize] = None;
    let content = &mut image[lba as usize * 512..][..512];
    let held = content.iter().any(|byte| *byte != 0);
    content.fill(0);
    world.store.paste(image, records);
    world.store.committed = last;
    let found = learned(&mut world, KEY, step);
    assert_eq!(found != root, held);
}

/// A process died during a checkpoint, and the next one took the marks for durable. Then the power
/// went.
#[test]
fn marks_that_a_power_cut_takes_are_made_again() {
    have_the_same_root(7938576675074759017, 4, 2, 1);
}

fn cases() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, cases: 48, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn all_hosts_have_the_same_root(
        seed in any::<u64>(),
        lives in 1..6usize,
        files in 2..5u32,
        step in 1..64u64,
    ) {
        have_the_same_root(seed, lives, files, step);
    }
}
