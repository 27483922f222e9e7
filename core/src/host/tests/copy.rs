//! Copies within the store: watches, staging, and reads of uncommitted staged ranges.

use super::world::World;
use crate::block::{
    BlockError, BlockState, Range, Request, STAGED_BIT, Staged, StagedPiece, StatusRun,
};
use crate::host::Durability;
use crate::wire::link::{Lane, ReadError, StageError, ToHost, ToStore};

fn world() -> World {
    let mut world = World::new(3, World::small());
    world.settle();
    world
}

/// A world in which sectors 0 to 15 are staged for 64 to 79.
fn staged() -> (World, StagedPiece) {
    let mut world = world();
    world.write(0, 16, true);
    world.stage(Range::new(0, 16), 64, None);
    world.settle();
    let piece = world.staged[0];
    assert_eq!(piece.range, Range::new(64, 16));
    (world, piece)
}

/// Does everything but the store's answers to batches.
fn all_but_commits(world: &mut World) {
    for _ in 0..100 {
        world.poll();
        world.finish_mutation();
        world.finish_read();
        for lane in [Lane::Read, Lane::Control, Lane::ReadAhead] {
            world.deliver(lane);
        }
        world.answer();
    }
}

fn stages(world: &World) -> Vec<u64> {
    let sent = world.lanes.values().flatten();
    sent.filter_map(|frame| match frame.message {
        ToStore::Stage { object, .. } => Some(object),
        _ => None,
    })
    .collect()
}

#[test]
fn what_is_staged_is_read_once_it_is_committed() {
    let (mut world, piece) = staged();
    world.write_staged(piece, 0, false);
    let inside = world.read(66, 4);
    let across = world.read(60, 24);
    let before = world.read(0, 16);
    all_but_commits(&mut world);
    assert!(world.is_outstanding(inside) && world.is_outstanding(across));
    assert!(!world.is_outstanding(before));
    assert!(world.volume.drain_is_urgent(), "somebody waits for the commit");
    world.settle();
    assert!(!world.is_outstanding(inside) && !world.is_outstanding(across));
    world.check_settled();
}

#[test]
fn a_read_that_waits_makes_the_journal_sync() {
    let (mut world, piece) = staged();
    world.write_staged(piece, 0, false);
    let read = world.read(64, 16);
    let now = world.now;
    for _ in 0..100 {
        world.poll();
        world.finish_mutation();
        for lane in Lane::ALL {
            world.deliver(lane);
        }
        world.answer();
    }
    assert_eq!(now, world.now);
    assert!(!world.is_outstanding(read), "no timer was needed");
}

#[test]
fn a_part_of_what_is_staged_can_be_written() {
    let (mut world, piece) = staged();
    world.write_staged(piece, 5, true);
    world.settle();
    world.check_settled();
    // After a crash the journal says the same.
    world.write_staged(piece, 11, true);
    all_but_commits(&mut world);
    world.poll();
    world.crash(true);
    world.read(60, 24);
    world.settle();
    world.check_settled();
}

#[test]
fn a_prefetch_does_not_fetch_what_is_not_committed() {
    let (mut world, piece) = staged();
    world.write_staged(piece, 0, false);
    world.prefetch(60, 30);
    all_but_commits(&mut world);
    world.settle();
    world.read(60, 30);
    world.settle();
    world.check_settled();
}

#[test]
fn status_knows_that_it_is_data() {
    let (mut world, piece) = staged();
    world.write_staged(piece, 0, false);
    world.status(64, 16);
    world.settle();
    let data = StatusRun { sectors: 16, state: BlockState::Data };
    assert_eq!(world.statuses, [[data]]);
}

#[test]
fn staging_waits_for_what_was_acknowledged() {
    let mut world = world();
    world.write(0, 16, false);
    world.stage(Range::new(8, 16), 64, None);
    all_but_commits(&mut world);
    assert_eq!(world.staged, [], "nothing is asked of the store before");
    world.settle();
    assert_eq!(world.staged.len(), 1);
}

#[test]
fn another_object_is_taken_where_there_is_one() {
    let mut world = world();
    world.store.staged_exists = true;
    world.stage(Range::new(0, 8), 64, None);
    world.settle();
    assert_eq!((world.staged.len(), world.store.staged.len()), (1, 1));
}

#[test]
fn a_staging_is_asked_again_under_another_number() {
    let mut world = world();
    let id = world.stage(Range::new(0, 8), 64, None);
    world.poll();
    let first = stages(&world);
    world.link_down();
    world.poll();
    assert!(world.is_outstanding(id));
    world.link_up();
    for _ in 0..10 {
        world.poll();
        world.deliver(Lane::Control);
        world.answer();
    }
    let second = stages(&world);
    assert_eq!((first.len(), second.len()), (1, 1));
    assert_ne!(first, second);
    assert_ne!(second[0] & STAGED_BIT, 0);
    world.settle();
    assert_eq!(world.staged.len(), 1);
}

#[test]
fn what_the_store_cannot_do_is_said() {
    for (error, expected) in [
        (StageError::Unsupported, BlockError::Unsupported),
        (
            StageError::Read(ReadError::Medium(Range::new(3, 1))),
            BlockError::Medium(Range::new(3, 1)),
        ),
        (StageError::Read(ReadError::Fenced(9)), BlockError::Fenced),
    ] {
        let mut world = world();
        let id = world.stage(Range::new(0, 8), 64, None);
        world.poll();
        let sent = world.lanes.get_mut(&Lane::ReadAhead).unwrap().pop_front().unwrap();
        let ToStore::Stage { request, volume, .. } = sent.message else { panic!("{sent:?}") };
        world.to_host.push_back(ToHost::Staged { request, volume, result: Err(error) }.into());
        world.answer();
        world.poll();
        assert_eq!(world.errors, [(id, expected)]);
    }
}

#[test]
fn fencing_ends_what_waits() {
    let (mut world, piece) = staged();
    world.write_staged(piece, 0, false);
    let read = world.read(64, 16);
    let stage = world.stage(Range::new(0, 8), 64, None);
    all_but_commits(&mut world);
    let (volume, epoch) = (super::world::VOLUME, 99);
    world.to_host.push_back(ToHost::Fenced { volume, epoch }.into());
    world.answer();
    world.poll();
    world.errors.sort_by_key(|(id, _)| *id);
    assert_eq!(world.errors, [(read, BlockError::Fenced), (stage, BlockError::Fenced)]);
    assert_eq!(world.outstanding(), 0);
}

/// The writes that break a watch.
#[test]
fn any_kind_of_write_breaks_a_watch() {
    type Write = fn(&mut World, StagedPiece) -> u64;
    let writes: [(&str, bool, Write); 7] = [
        ("a write", true, |world, _| world.write(79, 2, false)),
        ("zeroes", true, |world, _| world.zero(60, 8, true)),
        ("zeroes that give space back", true, |world, _| world.zero(60, 8, false)),
        ("a discard", true, |world, _| world.discard(0, 256)),
        ("a copy", true, |world, piece| world.write_staged(piece, 12, false)),
        ("a write beside it", false, |world, _| world.write(80, 8, false)),
        ("a copy beside it", false, |world, _| {
            let range = Range::new(80, 16);
            let pieces = vec![StagedPiece { range, content: Staged::Zero }];
            world.raw(Request::WriteStaged { pieces, fua: false })
        }),
    ];
    for (name, breaks, write) in writes {
        // Before the request, and between it and the answer.
        for early in [true, false] {
            let (mut world, piece) = staged();
            world.raw(Request::Watch(vec![Range::new(200, 4), Range::new(64, 16)]));
            world.poll();
            let watch = world.watching[0];
            if early {
                write(&mut world, piece);
            }
            let id = world.stage(Range::new(64, 16), 128, Some(watch));
            if !early {
                world.poll();
                assert_eq!(stages(&world).len(), 1, "{name}: nothing to wait for");
                write(&mut world, piece);
            }
            world.settle();
            let expected = if breaks { vec![(id, BlockError::Changed)] } else { vec![] };
            assert_eq!(world.errors, expected, "{name}, early: {early}");
        }
    }
}

#[test]
fn the_oldest_watch_gives_way_and_an_ended_one_is_gone() {
    let mut world = world();
    for _ in 0..66 {
        world.raw(Request::Watch(vec![Range::new(0, 8)]));
    }
    world.poll();
    let watching = world.watching.clone();
    world.raw(Request::Unwatch(watching[65]));
    let lost = [0, 1, 65].map(|n: usize| world.stage(Range::new(0, 8), 64, Some(watching[n])));
    let kept = world.stage(Range::new(0, 8), 64, Some(watching[2]));
    world.settle();
    let ids: Vec<u64> = world.errors.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, lost);
    assert!(world.errors.iter().all(|(_, error)| *error == BlockError::Changed));
    assert!(!world.is_outstanding(kept) && world.staged.len() == 1);
}

#[test]
fn without_a_journal_it_is_the_same() {
    for config in [
        crate::host::Config { durability: Durability::Store, ..World::small() },
        crate::host::Config { mode: crate::host::Mode::WriteThrough, ..World::small() },
    ] {
        let mut world = World::new(3, config);
        world.write(0, 16, true);
        world.stage(Range::new(0, 16), 64, None);
        world.settle();
        let piece = world.staged[0];
        world.write_staged(piece, 3, true);
        world.read(60, 24);
        world.settle();
        world.check_settled();
    }
}
