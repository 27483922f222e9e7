//! Batches, their window, announcements, resuming, fencing, and reads that go to the store.

use super::world::{HOST, SECTORS, World};
use crate::block::{BlockError, BlockState, Epoch, Range, Request, Seq, StatusRun};
use crate::host::journal::Geometry;
use crate::host::{Config, DiskOperation, Event, Mode, Volume};
use crate::record;
use crate::wire::link::{AttachError, Frame, Lane, MAX_BATCH_BYTES, ReadError, ToHost, ToStore};
use bytes::{Buf, Bytes, BytesMut};
use std::time::Duration;

fn world() -> World {
    let mut world = World::new(21, World::small());
    world.settle();
    world
}

/// Does everything but the store's work: the disk is done, batches lie in the lane.
fn local(world: &mut World) {
    for _ in 0..100 {
        world.poll();
        if !(world.finish_mutation() | world.finish_read()) {
            break;
        }
    }
}

fn batches(world: &World) -> Vec<(Seq, Seq)> {
    let lane = world.lanes.get(&Lane::Drain);
    let batch = |frame: &Frame<ToStore>| match frame.message {
        ToStore::Batch { first, last, .. } => (first, last),
        _ => panic!("only batches travel in the drain's lane"),
    };
    lane.into_iter().flatten().map(batch).collect()
}

#[test]
fn only_what_is_stable_is_shipped_after_lingering() {
    let mut world = world();
    world.write(0, 8, false);
    local(&mut world);
    world.advance(Duration::from_millis(99));
    world.poll();
    // Lingering ends with the sync interval. The sync has not ended yet.
    world.advance(Duration::from_millis(2));
    world.poll();
    assert_eq!(batches(&world), []);
    local(&mut world);
    assert_eq!(batches(&world), [(1, 1)]);
}

#[test]
fn coalescing_stays_inside_a_batch_and_keeps_the_order() {
    let mut world = world();
    for _ in 0..6 {
        world.write(0, 8, false);
    }
    world.write(4, 8, false);
    world.discard(64, 64);
    world.write(80, 8, false);
    world.settle();
    let counters = world.volume.status(world.now).counters;
    assert_eq!((counters.batches, world.store.batches.len()), (1, 1));
    assert_eq!(counters.coalesced_bytes, 5 * (4096 + 52));
    world.write(0, 8, false);
    world.settle();
    assert_eq!(world.volume.status(world.now).counters.coalesced_bytes, 5 * (4096 + 52));
    world.check_settled();
}

#[test]
fn the_window_bounds_what_is_under_way_and_batches_follow_each_other() {
    let config = Config {
        batch_bytes: 64 << 10,
        memory_bytes: 64 << 20,
        ..Config::new(Mode::Journal(Geometry { file_bytes: 16 << 20, files: 4 }))
    };
    let mut world = World::new(22, Config { window_max_bytes: 1, ..config });
    world.settle();
    // Nothing overlaps within 64 KiB, so the batch leaves nothing out.
    for n in 0..900 {
        world.write(n % 16 * 16, 16, false);
        local(&mut world);
    }
    world.flush();
    local(&mut world);
    let under_way = batches(&world);
    let status = world.volume.status(world.now);
    assert!(status.in_flight_bytes <= status.window_bytes, "{status:?}");
    assert!(under_way.len() >= 2 && under_way.last().unwrap().1 < 900, "{under_way:?}");
    assert!(under_way.windows(2).all(|pair| pair[0].1 + 1 == pair[1].0));
    world.settle();
    world.check_settled();
}

/// Reads of frames cover whole frames. They must not bring in much more than a batch of small
/// records.
#[test]
fn what_a_batch_reads_back_is_bounded() {
    let geometry = Geometry { file_bytes: 4 << 20, files: 8 };
    let mut world = World::new(23, Config { mode: Mode::Journal(geometry), ..World::small() });
    world.settle();
    world.link_down();
    for n in 0..3000 {
        world.discard(n % 100, 1);
        local(&mut world);
    }
    world.flush();
    local(&mut world);
    assert!(world.volume.status(world.now).journal_bytes >= 3000 * 4096);
    world.link_up();
    let mut most = 0;
    for _ in 0..100 {
        while world.deliver(Lane::Control) {}
        world.answer();
        world.poll();
        let bytes = |read: &DiskOperation| match read {
            DiskOperation::Read { bytes, .. } => *bytes,
            _ => 0,
        };
        most = most.max(world.reads.iter().map(bytes).sum::<usize>());
        world.finish_read();
        world.deliver(Lane::Drain);
        world.advance(Duration::from_millis(200));
    }
    assert!(most > 0 && most <= MAX_BATCH_BYTES, "{most} bytes");
    world.settle();
    world.check_settled();
}

#[test]
fn what_was_not_committed_is_shipped_again_after_a_resume() {
    let mut world = world();
    for n in 0..4 {
        world.write(n * 8, 8, false);
        world.settle();
    }
    let committed = world.store.committed;
    world.write(0, 8, true);
    local(&mut world);
    world.advance(Duration::from_millis(200));
    local(&mut world);
    assert_eq!(batches(&world), [(committed + 1, committed + 1)]);
    world.link_down();
    world.poll();
    world.link_up();
    world.settle();
    assert!(world.events.contains(&Event::Resumed { committed }));
    world.check_settled();
}

#[test]
fn a_refused_batch_leads_to_a_resume() {
    let mut world = world();
    world.write(0, 8, true);
    world.advance(Duration::from_millis(200));
    local(&mut world);
    world.advance(Duration::from_millis(200));
    local(&mut world);
    world.lanes.clear();
    let (volume, reason) = (super::world::VOLUME, "no".to_owned());
    world.to_host.push_back(ToHost::BatchRefused { volume, epoch: 1, reason }.into());
    world.settle();
    assert!(world.events.iter().any(|event| matches!(event, Event::BatchRefused { .. })));
    world.check_settled();
}

#[test]
fn announcements_cover_what_was_acknowledged_and_not_shipped() {
    let mut world = world();
    for (lba, sectors) in [(0, 8), (8, 8), (100, 4), (50, 1)] {
        world.write(lba, sectors, false);
    }
    world.poll();
    assert_eq!(world.store.announced, []);
    world.advance(Duration::from_millis(5));
    world.poll();
    while world.deliver(Lane::Control) {}
    let expected = [(Range::new(0, 16), 2), (Range::new(50, 1), 4), (Range::new(100, 4), 3)];
    assert_eq!(world.store.announced, expected);
    // After a resume the drain announces everything uncommitted again, from scratch.
    world.link_down();
    world.write(200, 2, false);
    world.poll();
    world.link_up();
    for _ in 0..3 {
        world.poll();
        while world.deliver(Lane::Control) {}
        world.answer();
    }
    assert_eq!(world.store.announced[..3], expected);
    assert_eq!(world.store.announced[3..], [(Range::new(200, 2), 5)]);
    world.settle();
    assert_eq!(world.store.announced, []);
}

#[test]
fn a_range_is_announced_before_its_data_is_shipped() {
    let mut world =
        World::new(21, Config { durability: crate::host::Durability::Store, ..World::small() });
    world.settle();
    world.write(0, 8, true);
    local(&mut world);
    assert_eq!(batches(&world).len(), 1);
    while world.deliver(Lane::Control) {}
    assert_eq!(world.store.announced, [(Range::new(0, 8), 1)]);
}

#[test]
fn an_attach_with_a_journal_announces_what_it_holds() {
    let mut world = world();
    world.link_down();
    for n in 0..10 {
        world.write(n * 20, 8, true);
        local(&mut world);
    }
    world.crash(true);
    world.poll();
    while world.deliver(Lane::Control) {}
    assert_eq!(world.store.announced.len(), 10);
    world.settle();
    world.check_settled();
}

fn fenced(world: &mut World, epoch: Epoch) {
    assert!(world.events.contains(&Event::Fenced { epoch }));
    let id = world.write(0, 8, false);
    world.poll();
    assert!(world.errors.contains(&(id, BlockError::Fenced)));
    assert!(world.errors.iter().all(|(_, error)| *error == BlockError::Fenced));
}

#[test]
fn a_newer_epoch_fences_by_message_by_read_and_at_resume() {
    let prepared = || {
        let mut world = world();
        world.read(0, 8);
        world.write(0, 8, true);
        world.poll();
        world.store.epoch = 5;
        world
    };
    let mut by_read = prepared();
    by_read.settle();
    fenced(&mut by_read, 5);

    let mut by_message = prepared();
    // Acknowledged, and still in memory when the end comes.
    by_message.write(8, 8, false);
    by_message.poll();
    let volume = super::world::VOLUME;
    by_message.to_host.push_front(ToHost::Fenced { volume, epoch: 5 }.into());
    by_message.answer();
    by_message.poll();
    fenced(&mut by_message, 5);
    local(&mut by_message);
    by_message.disk.live = by_message.disk.durable.clone();
    assert_eq!(by_message.disk.recover().unwrap().last, 2);

    let mut at_resume = prepared();
    at_resume.link_down();
    at_resume.settle();
    fenced(&mut at_resume, 5);
    assert!(at_resume.store.batches.is_empty());
    // The journal is kept.
    assert_eq!(at_resume.disk.recover().unwrap().map.len(), 1);
}

#[test]
fn a_refused_resume_is_tried_again() {
    let mut world = world();
    world.write(0, 8, false);
    world.link_down();
    world.link_up();
    world.poll();
    let Some(Frame { message: ToStore::Resume { request, .. }, .. }) =
        world.lanes.get_mut(&Lane::Control).and_then(|lane| lane.pop_back())
    else {
        panic!("no resume")
    };
    let result = Err(AttachError::ShuttingDown);
    world.to_host.push_back(ToHost::Attached { request, result }.into());
    world.settle();
    assert!(world.events.contains(&Event::Refused(AttachError::ShuttingDown)));
    world.check_settled();
}

#[test]
fn cold_reads_wait_for_the_link() {
    let mut world = world();
    world.write(0, 8, false);
    world.link_down();
    let hit = world.read(0, 8);
    let miss = world.read(4, 8);
    local(&mut world);
    assert!(!world.is_outstanding(hit) && world.is_outstanding(miss));
    world.settle();
    world.check_settled();
}

/// The request of the only read under way.
fn only_read(world: &mut World) -> u64 {
    world.poll();
    let frame = world.lanes.get_mut(&Lane::Read).and_then(|lane| lane.pop_front());
    match frame.map(|frame| frame.message) {
        Some(ToStore::Read { request, .. }) => request,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_damaged_answer_is_asked_for_once_more() {
    let mut world = world();
    let volume = super::world::VOLUME;
    let read = world.read(0, 8);
    for _ in 0..2 {
        assert!(world.is_outstanding(read));
        let request = only_read(&mut world);
        let mut out = BytesMut::new();
        record::encode_data(volume, 1, 1, Range::new(0, 8), &[7; 4096], &mut out);
        out.advance(48);
        out[100] ^= 1;
        let pieces = vec![crate::wire::link::Piece::Data { sectors: 8, cover: Range::new(0, 8) }];
        let message = ToHost::Data { request, volume, result: Ok(pieces) };
        world.to_host.push_back(Frame { message, payload: out.freeze() });
        world.answer();
        world.poll();
    }
    assert_eq!(world.errors, [(read, BlockError::Medium(Range::new(0, 8)))]);
    assert!(world.events.contains(&Event::StoreDamaged { range: Range::new(0, 8) }));
}

#[test]
fn a_store_that_lost_the_attachment_is_resumed() {
    let mut world = world();
    let read = world.read(0, 8);
    let request = only_read(&mut world);
    let (volume, result) = (super::world::VOLUME, Err(ReadError::NotAttached));
    world.to_host.push_back(ToHost::Data { request, volume, result }.into());
    world.settle();
    assert!(!world.is_outstanding(read));
    world.check_settled();
}

#[test]
fn prefetched_data_is_used_until_it_is_overwritten() {
    let mut world = world();
    world.write(0, 16, true);
    world.settle();
    // A new run without the clean part of the map: all of it is at the store.
    let store_reads = |world: &World| world.volume.status(world.now).counters.store_read_bytes;
    let mut cold = World::new(5, World::small());
    cold.store.image = world.store.image.clone();
    cold.settle();
    cold.raw(crate::block::Request::Prefetch(Range::new(0, 16)));
    cold.settle();
    cold.raw(crate::block::Request::Read(Range::new(0, 16)));
    cold.settle();
    assert_eq!(store_reads(&cold), 0);
    assert_eq!(cold.volume.status(cold.now).counters.readahead_hit_bytes, 8192);
    // If a write overtakes a part of a prefetch, the buffer keeps only the rest.
    cold.prefetch(64, 16);
    cold.poll();
    cold.write(64, 4, false);
    cold.settle();
    cold.read(64, 16);
    cold.settle();
    assert_eq!(store_reads(&cold), 0);
    assert_eq!(cold.volume.status(cold.now).readahead.hints.wasted, 4 * 512);
}

#[test]
fn status_merges_both_sides() {
    let mut world = world();
    world.write(0, 8, true);
    world.settle();
    let mut fresh = World::new(5, World::small());
    fresh.store.image = world.store.image.clone();
    fresh.settle();
    fresh.write(16, 8, false);
    fresh.zero(20, 2, true);
    fresh.discard(4, 2);
    fresh.settle();
    fresh.status(0, 64);
    fresh.settle();
    let run = |sectors, state| StatusRun { sectors, state };
    use BlockState::{Data, Hole, Zero};
    assert_eq!(
        fresh.statuses,
        [vec![
            run(4, Data),
            run(2, Hole),
            run(2, Data),
            run(8, Hole),
            run(4, Data),
            run(2, Zero),
            run(2, Data),
            run(40, Hole),
        ]]
    );
    fresh.link_down();
    fresh.status(16, SECTORS - 16);
    fresh.poll();
    assert_eq!(fresh.statuses[1], [run(4, Data), run(2, Zero), run(2, Data)]);
}

#[test]
fn a_store_that_has_less_than_it_said_gets_nothing_more() {
    let mut world = world();
    world.write(0, 8, true);
    world.settle();
    world.write(8, 8, true);
    world.link_down();
    world.store.committed = 0;
    world.settle();
    assert!(world.events.contains(&Event::StoreLostWrites { committed: 0, from: 2 }));
    assert_eq!(world.store.batches.len(), 1);
}

/// The same for a store that had less from the start. A resume does not make it right, nor does a
/// journal without anything left in it.
#[test]
fn a_store_that_was_set_back_gets_nothing_more() {
    for delivered in [1, 2] {
        let mut world = world();
        for n in 0..delivered {
            world.write(n * 8, 8, true);
            world.settle();
        }
        // An empty frame says that everything is committed. After it comes perhaps one more write.
        world.crash(false);
        world.settle();
        if delivered == 1 {
            world.link_down();
            world.write(8, 8, true);
            local(&mut world);
        }
        world.store.committed = 0;
        let recovered = world.disk.recover().unwrap();
        assert_eq!((recovered.last, recovered.tail.before), (2, delivered));
        world.events.clear();
        world.restart(recovered);
        for _ in 0..3 {
            world.link_down();
            world.write(16, 8, true);
            world.settle();
        }
        let behind = Event::StoreLostWrites { committed: 0, from: delivered + 1 };
        assert_eq!(world.events.iter().filter(|event| **event == behind).count(), 4);
        assert!(!world.events.iter().any(|e| matches!(e, Event::JournalDamaged { .. })));
        assert_eq!(world.store.committed, 0);
    }
}

#[test]
fn without_a_journal_in_journal_mode_the_volume_says_so() {
    let mut store = super::store::Store::new();
    let config = World::small();
    let mut volume = Volume::new(crate::block::Time(0), config, HOST, store.attach(), None);
    assert!(matches!(volume.poll_event(), Some(Event::JournalFailed { continues: true, .. })));
}

#[test]
fn the_size_grows_by_message_and_at_resume_and_never_goes_back() {
    let mut world = world();
    let volume = super::world::VOLUME;
    for sectors in [SECTORS + 64, SECTORS + 8, u64::MAX] {
        world.to_host.push_back(ToHost::Resized { volume, sectors }.into());
    }
    let other = crate::block::VolumeId(1);
    world.to_host.push_back(ToHost::Resized { volume: other, sectors: SECTORS + 99 }.into());
    world.settle();
    assert_eq!(world.volume.sectors(), SECTORS + 64);
    let told = |world: &World| {
        let sizes = world.events.iter().filter_map(|event| match event {
            Event::Resized { sectors } => Some(*sectors),
            _ => None,
        });
        sizes.collect::<Vec<_>>()
    };
    assert_eq!(told(&world), [SECTORS + 64]);
    // A store that knows less, and one that knows more.
    for (says, size) in [(SECTORS, SECTORS + 64), (SECTORS + 128, SECTORS + 128)] {
        world.store.sectors = says;
        world.link_down();
        world.poll();
        world.link_up();
        world.settle();
        assert_eq!(world.volume.sectors(), size);
    }
    assert_eq!(told(&world), [SECTORS + 64, SECTORS + 128]);
}

#[test]
fn what_somebody_waits_for_goes_with_the_resume_and_is_answered_once() {
    let mut world = world();
    for n in 0..2 {
        world.write(n * 8, 8, false);
        world.settle();
    }
    let committed = world.store.committed;
    world.link_down();
    let waits = world.read(16, 16);
    world.poll();
    world.link_up();
    world.poll();
    let later = world.read(32, 8);
    world.poll();
    let behind = |frame: &Frame<ToStore>| match &frame.message {
        ToStore::EarlyRead { committed, range, .. } => (*committed, *range),
        other => panic!("{other:?}"),
    };
    let sent: Vec<_> = world.lanes[&Lane::Read].iter().map(behind).collect();
    assert_eq!(sent, [(committed, Range::new(16, 16)), (committed, Range::new(32, 8))]);
    // One answer comes before the resume. The store refuses the other request, which goes out
    // again.
    world.deliver(Lane::Read);
    world.answer();
    world.poll();
    assert!(!world.is_outstanding(waits) && world.is_outstanding(later));
    let frame = world.lanes.get_mut(&Lane::Read).and_then(|lane| lane.pop_front()).unwrap();
    let ToStore::EarlyRead { request, volume, .. } = frame.message else { panic!("{frame:?}") };
    let refused = ToHost::Data { request, volume, result: Err(ReadError::NotAttached) };
    world.to_host.push_back(refused.into());
    world.answer();
    world.poll();
    assert!(world.lanes[&Lane::Read].is_empty(), "not before the resume is answered");
    world.settle();
    assert!(!world.is_outstanding(later));
    world.check_settled();
}

#[test]
fn what_a_store_that_lets_the_volume_go_has_not_answered_is_asked_again() {
    let mut world = world();
    let volume = super::world::VOLUME;
    let gone = |world: &mut World| {
        let reason = "the volume has moved".to_owned();
        world.to_host.push_back(ToHost::BatchRefused { volume, epoch: 1, reason }.into());
        world.answer();
    };
    let read = world.read(16, 16);
    let request = only_read(&mut world);
    let refused = ToHost::Data { request, volume, result: Err(ReadError::NotAttached) };
    world.to_host.push_back(refused.into());
    gone(&mut world);
    world.settle();
    assert!(!world.is_outstanding(read));
    // The same with the end of the epoch.
    world.write(0, 8, false);
    world.volume.handle_shutdown(world.now);
    let is_detach = |frame: &Frame<ToStore>| matches!(frame.message, ToStore::Detach { .. });
    let asks = |world: &World| world.lanes[&Lane::Control].iter().any(is_detach);
    while !asks(&world) {
        world.finish_mutation();
        world.poll();
        if !asks(&world) {
            for lane in Lane::ALL {
                world.deliver(lane);
            }
            world.answer();
            world.poll();
        }
    }
    world.lanes.get_mut(&Lane::Control).unwrap().retain(|frame| !is_detach(frame));
    gone(&mut world);
    world.settle();
    assert!(world.volume.is_detached());
}

#[test]
fn without_space_new_data_is_refused_and_everything_else_goes_on() {
    let mut world = world();
    let volume = super::world::VOLUME;
    let told = |world: &mut World, room| {
        let epoch = world.store.epoch;
        world.to_host.push_back(ToHost::Room { volume, epoch, room }.into());
        world.settle();
    };
    world.write(0, 8, false);
    told(&mut world, false);
    assert!(world.volume.status(world.now).full);
    let refused = |world: &mut World, request| {
        let id = world.raw(request);
        world.settle();
        assert!(!world.is_outstanding(id));
        world.errors.contains(&(id, BlockError::NoSpace))
    };
    let range = Range::new(8, 8);
    let data = Bytes::from(vec![1; 4096]);
    let write = || Request::Write { range, data: data.clone(), fua: false };
    assert!(refused(&mut world, write()));
    assert!(refused(&mut world, Request::Zero { range, allocate: true, fua: false }));
    for taken in [
        Request::Zero { range, allocate: false, fua: false },
        Request::Discard { range, fua: true },
        Request::Read(range),
        Request::Flush,
    ] {
        assert!(!refused(&mut world, taken));
    }
    assert_eq!(world.store.committed, 3, "what was acknowledged is shipped");
    // It says nothing about another epoch.
    let epoch = world.store.epoch + 1;
    world.to_host.push_back(ToHost::Room { volume, epoch, room: true }.into());
    world.settle();
    assert!(refused(&mut world, write()));
    told(&mut world, true);
    assert!(!refused(&mut world, write()));
    // A new store has not reported its space yet.
    told(&mut world, false);
    world.link_down();
    world.poll();
    world.link_up();
    world.settle();
    assert!(!refused(&mut world, write()));
}
