//! Recovery of journals that are torn, mixed up, cut or old.

use super::world::{JOURNAL, SECTORS, SMALL, VOLUME, World, recover, run};
use crate::block::{Range, Request, VolumeId};
use crate::host::journal::{
    FileHeader, FrameHeader, FrameRef, JournalError, MIN_FILE_BYTES, Recovery, create_plan,
};
use crate::host::{Config, Mode};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The bytes on disk do not change by accident: these are the headers of `docs/formats.md`.
#[test]
fn golden_file_header() {
    let plan = create_plan(SMALL, JOURNAL, VOLUME).unwrap();
    assert_eq!(plan.len(), 3);
    assert_eq!(plan[1].1.len(), 4096);
    assert_eq!(hex(&plan[1].1[..64]), GOLDEN_FILE);
    assert!(plan[1].1[64..].iter().all(|b| *b == 0));
    let header = FileHeader { journal: JOURNAL, volume: VOLUME, file: 1, geometry: SMALL };
    assert_eq!(FileHeader::parse(1, &plan[1].1), Ok(header));
}

const GOLDEN_FILE: &str = "4c484a4f55524e4c01000000010000008877665544332211\
    0000000000000000cdab0000000000000000000000000000000001000000000003000000a20c5352";

#[test]
fn golden_frame_header() {
    let header = FrameHeader {
        journal: JOURNAL,
        incarnation: 2,
        body_bytes: 564,
        addr: 0x2000,
        number: 9,
        epoch: 3,
        first_seq: 77,
        last_seq: 77,
        tail: FrameRef { addr: 0x1000, number: 8, prev_crc: 0x0102_0304, before: 70 },
        synced_addr: 0x1000,
        prev_crc: 0x0506_0708,
    };
    let mut bytes = [0xff; 128];
    let crc = header.encode_to(&mut bytes);
    assert_eq!(hex(&bytes), GOLDEN_FRAME);
    assert_eq!(FrameHeader::parse(&bytes), Ok(Some((header, crc))));
    for bit in 0..128 * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(FrameHeader::parse(&bytes), Ok(None), "bit {bit}");
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}

const GOLDEN_FRAME: &str = "\
                            4c484a46010000008877665544332211000000000000000002000000340200000020000000000000090000000000000003000000000000004d000000000000004d00000000000000001000000000000008000000000000000010000000000000040302010807060546000000000000000000000000000000000000000cafdc4e";

/// A journal with `writes` frames of one write each, the store out of reach. A flush follows each
/// of the first `synced` writes.
fn journal(writes: u64, synced: u64) -> World {
    let mut world = World::new(1, World::small());
    world.settle();
    world.link_down();
    for n in 0..writes {
        world.write(n * 8 % SECTORS, 8, false);
        world.poll();
        while world.finish_mutation() {
            world.poll();
        }
        if n + 1 == synced {
            world.flush();
            world.poll();
            while world.finish_mutation() {
                world.poll();
            }
        }
    }
    world
}

/// Places of all frames in file 0, by walking headers.
fn frames(world: &World) -> Vec<usize> {
    (4096..world.disk.live[0].len())
        .step_by(4096)
        .filter(|at| matches!(FrameHeader::parse(&world.disk.live[0][*at..]), Ok(Some(_))))
        .collect()
}

#[test]
fn a_whole_journal_comes_back() {
    let world = journal(5, 0);
    let lengths = world.disk.live.iter().map(|f| f.len() as u64).collect();
    let (outcome, recovery) = run(&world.disk.live, Recovery::new(None, lengths));
    let recovered = outcome.unwrap();
    let state = recovered.state().unwrap();
    assert_eq!((state.volume, state.epoch, state.last), (VOLUME, 1, 5));
    let report = recovery.report();
    assert_eq!((report.seqs, report.records, report.epoch), ((1, 5), 5, 1));
    assert!(report.frames >= 5 && report.live_bytes > 5 * 4096 && report.end > report.tail);
}

#[test]
fn a_fresh_journal_says_nothing() {
    let world = World::new(1, World::small());
    let recovered = world.disk.recover().unwrap();
    assert_eq!(recovered.state(), None);
}

/// The host comes back with less than the store has. So its next frame does not follow the last one
/// by number, and says so. Frames from before the power cut know nothing of that.
#[test]
fn the_newest_word_about_the_tail_counts() {
    let mut world = journal(3, 3);
    let lost = world.disk.clone();
    world.link_up();
    world.settle();
    world.write(40, 8, false);
    world.settle();
    assert_eq!(world.store.committed, 4);
    world.disk = lost;
    let recovered = world.recovered().unwrap();
    assert_eq!(recovered.last, 3);
    let old = FrameHeader {
        journal: JOURNAL,
        incarnation: recovered.incarnation,
        body_bytes: 0,
        addr: SMALL.ring(),
        number: recovered.number + 7,
        epoch: 1,
        first_seq: 40,
        last_seq: 40,
        tail: FrameRef {
            addr: recovered.end,
            number: recovered.number,
            prev_crc: recovered.prev_crc,
            before: 3,
        },
        synced_addr: 0,
        prev_crc: 0,
    };
    world.restart(recovered);
    world.settle();
    world.link_down();
    world.write(40, 8, true);
    world.poll();
    while world.finish_mutation() {
        world.poll();
    }
    assert_eq!(world.disk.recover().unwrap().last, 5);
    // One more lap, at the place of the first frame.
    let mut files = world.disk.live.clone();
    old.encode_to(&mut files[0][4096..4096 + 128]);
    assert_eq!(recover(&files).unwrap().last, 5, "an acknowledged write is lost");
}

#[test]
fn a_torn_tail_is_dropped() {
    let mut world = journal(5, 0);
    let at = *frames(&world).last().unwrap();
    world.disk.live[0][at + 4096..at + 8192].fill(0);
    assert_eq!(world.disk.recover().unwrap().last, 4);
}

#[test]
fn a_frame_lost_in_the_middle_ends_the_journal_although_later_ones_are_there() {
    let mut world = journal(5, 0);
    let at = frames(&world)[3];
    world.disk.live[0][at..at + 8192].fill(0);
    assert_eq!(world.disk.recover().unwrap().last, 2);
}

#[test]
fn a_synced_frame_that_is_damaged_is_an_error() {
    for (victim, byte) in [(2, 200), (2, 60), (1, 4200)] {
        let mut world = journal(6, 4);
        let at = frames(&world)[victim];
        world.disk.live[0][at + byte] ^= 1;
        match world.disk.recover() {
            Err(JournalError::Damaged { file: 0, offset, .. }) => assert_eq!(offset, at as u64),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_misdirected_frame_is_not_taken() {
    let mut world = journal(5, 0);
    let places = frames(&world);
    // The fourth frame also landed where the fifth belongs.
    let copy = world.disk.live[0][places[3]..places[3] + 8192].to_vec();
    world.disk.live[0][places[4]..places[4] + 8192].copy_from_slice(&copy);
    assert_eq!(world.disk.recover().unwrap().last, places.len() as u64 - 2 - 1);
}

#[test]
fn frames_of_another_journal_on_the_same_disk_do_not_pass() {
    let old = journal(5, 0);
    let mut files = old.disk.live.clone();
    for (file, page) in create_plan(SMALL, JOURNAL + 1, VOLUME).unwrap() {
        files[file as usize][..4096].copy_from_slice(&page);
    }
    assert_eq!(recover(&files).unwrap().state(), None);
    files[2] = old.disk.live[2].clone();
    assert!(matches!(recover(&files), Err(JournalError::Mixed { file: 2, .. })));
}

#[test]
fn a_stale_frame_of_an_earlier_run_does_not_pass() {
    let mut world = journal(5, 0);
    let at = frames(&world)[3];
    let whole = world.disk.live.clone();
    // Frame 3 never made it; frames 4 and 5 did.
    world.disk.live[0][at..at + 8192].fill(0);
    world.disk.durable = world.disk.live.clone();
    let recovered = world.disk.recover().unwrap();
    world.restart(recovered);
    world.settle();
    world.link_down();
    let last = world.last();
    // The new run has one empty frame and one with two writes. They end exactly where the stale
    // frame 5 begins, which has the next number and the next seq.
    world.write(0, 8, false);
    world.write(8, 8, true);
    world.poll();
    while world.finish_mutation() {
        world.poll();
    }
    assert_eq!(world.disk.live[0][at + 16384..at + 24576], whole[0][at + 16384..at + 24576]);
    let recovered = world.disk.recover().unwrap();
    let stale = (at + 16384 - 4096) as u64;
    assert_eq!((recovered.last, recovered.end, recovered.number), (last + 2, stale, 5));
}

#[test]
fn files_that_do_not_belong_are_named() {
    let world = journal(2, 0);
    let files = world.disk.live;
    let wrong = run(&files, Recovery::new(Some(VolumeId(1)), vec![64 << 10; 3])).0;
    assert!(matches!(wrong, Err(JournalError::WrongVolume { .. })));

    let two = files[..2].to_vec();
    assert!(matches!(recover(&two), Err(JournalError::FileCount { expected: 3, found: 2 })));

    let mut cut = files.clone();
    cut[1].truncate(8192);
    assert!(matches!(recover(&cut), Err(JournalError::Truncated { file: 1, found: 8192, .. })));
    cut[1].truncate(100);
    assert!(matches!(recover(&cut), Err(JournalError::FileHeader { file: 1, .. })));

    let mut swapped = files.clone();
    swapped.swap(0, 1);
    assert!(matches!(recover(&swapped), Err(JournalError::FileHeader { .. })));

    let mut later = files.clone();
    later[0][8] = 9;
    assert!(matches!(recover(&later), Err(JournalError::Version { version: 9, .. })));
    assert!(matches!(recover(&[]), Err(JournalError::FileCount { .. })));
}

/// The header of a frame as a later version might write it.
fn later_frame(journal: u128) -> [u8; 128] {
    let header = FrameHeader {
        journal,
        incarnation: 1,
        body_bytes: 0,
        addr: 0,
        number: 0,
        epoch: 1,
        first_seq: 1,
        last_seq: 0,
        tail: FrameRef::default(),
        synced_addr: 0,
        prev_crc: 0,
    };
    let mut bytes = [0; 128];
    header.encode_to(&mut bytes);
    bytes[4] = 4;
    let crc = crc32c::crc32c(&bytes[..124]);
    bytes[124..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Clients choose their data, which may look like the frames of their own journal of a later
/// version.
#[test]
fn data_that_look_like_a_later_version_do_not_stop_recovery() {
    for journal in [JOURNAL + 1, JOURNAL] {
        let mut world = journal_with_data(&later_frame(journal));
        match world.disk.recover() {
            Ok(recovered) if journal != JOURNAL => assert_eq!(recovered.last, 1),
            Err(JournalError::Version { file: 0, version: 4, .. }) if journal == JOURNAL => {}
            other => panic!("{other:?}"),
        }
        world.settle();
    }
}

/// A journal with one write in which each 128 bytes, as they lie in the file, are `data`.
fn journal_with_data(data: &[u8; 128]) -> World {
    let mut world = World::new(1, World::small());
    world.settle();
    world.link_down();
    let range = Range::new(0, 16);
    // Behind the frame's header, the record's, and its table.
    let phase = 128 + 48 + 2 * 4;
    let data: Vec<u8> = (0..range.bytes() as usize).map(|at| data[(phase + at) % 128]).collect();
    world.raw(Request::Write { range, data: data.into(), fua: true });
    world.poll();
    while world.finish_mutation() {
        world.poll();
    }
    assert_eq!(world.outstanding(), 0);
    world
}

#[test]
fn a_failing_read_is_named() {
    let mut recovery = Recovery::new(None, vec![64 << 10; 2]);
    let Some(crate::host::DiskOperation::Read { id, .. }) = recovery.poll_disk() else { panic!() };
    let error = "input/output error".to_owned();
    recovery.handle_disk(crate::host::DiskResult::Failed { id, error });
    assert!(matches!(recovery.poll_outcome(), Some(Err(JournalError::Read { file: 0, .. }))));
}

#[test]
fn the_ring_wraps_many_times() {
    let mut world = World::new(3, World::small());
    for round in 0..40 {
        for n in 0..24 {
            world.write((n * 16 + round) % (SECTORS - 16), 16, n % 7 == 0);
            world.poll();
            while world.finish_mutation() {
                world.poll();
            }
        }
        world.settle();
        if round % 5 == 4 {
            world.crash(true);
        }
    }
    world.settle();
    world.check_settled();
    let recovered = world.disk.recover().unwrap();
    assert!(recovered.end > 10 * SMALL.ring(), "{} laps", recovered.end / SMALL.ring());
}

#[test]
fn the_smallest_journal_works_and_impossible_ones_are_refused() {
    let smallest = crate::host::journal::Geometry { file_bytes: MIN_FILE_BYTES, files: 2 };
    let config = Config { mode: Mode::Journal(smallest), ..World::small() };
    let mut world = World::new(5, config);
    for _ in 0..2000 {
        world.step();
    }
    world.settle();
    world.check_settled();
    for (file_bytes, files) in [(65535, 2), (4096, 4), (1 << 20, 1), (0, 0), (1 << 40, 2)] {
        let geometry = crate::host::journal::Geometry { file_bytes, files };
        assert!(geometry.check().is_err(), "{geometry:?}");
    }
}
