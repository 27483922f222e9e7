//! Frames and answers, whole and damaged.

use super::*;
use crate::block::MAX_STAGE_SECTORS;
use crate::record::Fragment;
use bytes::{Bytes, BytesMut};
use proptest::prelude::*;

fn hello() -> Frame<ToStore> {
    ToStore::Hello { min_version: 1, max_version: 1, software: "longhaul test".into() }.into()
}

#[test]
fn frames_survive_any_split() {
    let batch = Frame {
        message: ToStore::Batch { volume: VolumeId(7), epoch: 1, first: 1, last: 9 },
        payload: Bytes::from(vec![5; 1000]),
    };
    let mut stream = Vec::new();
    for frame in [hello(), batch.clone(), hello()] {
        stream.extend_from_slice(&frame.encode_head().unwrap());
        stream.extend_from_slice(&frame.payload);
    }
    for chunk in [1, 3, 64, 5000] {
        let (mut buffer, mut seen) = (BytesMut::new(), Vec::new());
        for part in stream.chunks(chunk) {
            buffer.extend_from_slice(part);
            while let Some(frame) = Frame::<ToStore>::take(&mut buffer).unwrap() {
                seen.push(frame);
            }
        }
        assert_eq!(seen, [hello(), batch.clone(), hello()]);
    }
}

#[test]
fn lengths_are_bounded_before_anything_is_allocated() {
    let mut buffer = BytesMut::from(&[0xff; 8][..]);
    assert!(matches!(Frame::<ToStore>::take(&mut buffer), Err(FrameError::TooLong { .. })));
}

#[test]
fn a_full_announcement_fits_a_head() {
    let entry = Announced { range: Range::new(1 << 52, 1 << 52), seq: u64::MAX };
    let message = ToStore::Announce {
        volume: VolumeId(u128::MAX),
        epoch: u64::MAX,
        replace: true,
        entries: vec![entry; MAX_ANNOUNCE_ENTRIES],
    };
    Frame::from(message).encode_head().unwrap();
}

#[test]
fn a_full_staged_answer_fits_a_head() {
    let run = StagedRun::Data { sectors: u64::MAX, offset: u32::MAX };
    let result = Ok(vec![run; MAX_STAGE_SECTORS as usize]);
    let message = ToHost::Staged { request: u64::MAX, volume: VolumeId(u128::MAX), result };
    Frame::from(message).encode_head().unwrap();
}

/// Who speaks an older version has to be able to read what comes: new messages are at the end.
#[test]
fn messages_keep_their_numbers() {
    let (request, volume) = (1, VolumeId(1));
    let stage = ToStore::Stage {
        request,
        volume,
        epoch: 1,
        range: Range::new(0, 1),
        into: volume,
        lba: 0,
        object: 1,
    };
    let staged = ToHost::Staged { request, volume, result: Err(StageError::Exists) };
    let first = |head: Bytes| head[FRAME_PREFIX_BYTES];
    assert_eq!(first(Frame::from(stage.clone()).encode_head().unwrap()), 9);
    assert_eq!(first(Frame::from(staged.clone()).encode_head().unwrap()), 10);
    for version in MIN_VERSION..=MAX_VERSION {
        let known = version >= COPY_VERSION;
        assert_eq!((stage.is_of_version(version), staged.is_of_version(version)), (known, known));
    }
    let since = Moment { epoch: 1, host: HostId(1), seq: 1 };
    let ask = ToStore::Changed { request, volume, epoch: 1, since };
    let answer = ToHost::Changed { request, volume, result: Ok(Changes::Unknown) };
    assert_eq!(first(Frame::from(ask.clone()).encode_head().unwrap()), 10);
    assert_eq!(first(Frame::from(answer.clone()).encode_head().unwrap()), 11);
    for version in MIN_VERSION..=MAX_VERSION {
        let known = version >= CHANGED_VERSION;
        assert_eq!((ask.is_of_version(version), answer.is_of_version(version)), (known, known));
    }
    let range = Range::new(0, 1);
    let behind = ToStore::ReadBehind { request, volume, epoch: 1, committed: 1, range };
    assert_eq!(first(Frame::from(behind.clone()).encode_head().unwrap()), 11);
    for version in MIN_VERSION..=MAX_VERSION {
        assert_eq!(behind.is_of_version(version), version >= BEHIND_VERSION);
    }
    let tenant = "t".to_owned();
    let ask = ToStore::Tenant { request, operation: TenantOperation::Show { tenant } };
    let answer = ToHost::Tenant { request, result: Ok(TenantReply::Done) };
    let refusal = ToHost::Tenant { request, result: Err(VolumeError::NotFound) };
    let room = ToHost::Room { volume, epoch: 1, room: true };
    let purge = VolumeOperation::Trash(TrashOperation::Purge { volume });
    let purge = ToStore::Volume { request, operation: purge };
    assert_eq!(first(Frame::from(ask.clone()).encode_head().unwrap()), 14);
    assert_eq!(first(Frame::from(answer.clone()).encode_head().unwrap()), 15);
    assert_eq!(first(Frame::from(room.clone()).encode_head().unwrap()), 16);
    for version in MIN_VERSION..=MAX_VERSION {
        let known = version >= TENANT_VERSION;
        assert_eq!((ask.is_of_version(version), answer.is_of_version(version)), (known, known));
        let known = version >= ROOM_VERSION;
        assert_eq!(refusal.is_of_version(version), known);
        assert_eq!((room.is_of_version(version), purge.is_of_version(version)), (known, known));
    }
    let damaged = ToHost::Damaged { volume, epoch: 1, ranges: vec![range] };
    assert_eq!(first(Frame::from(damaged.clone()).encode_head().unwrap()), 18);
    for version in MIN_VERSION..=MAX_VERSION {
        assert_eq!(damaged.is_of_version(version), version >= DAMAGE_VERSION);
    }
    let ask = ToHost::Barrier { volume, epoch: 1, barrier: 1 };
    let answer = ToStore::Barrier { volume, epoch: 1, barrier: 1, seq: 1 };
    let operation = SnapshotOperation::List { after: 0, hidden: false };
    let operation = VolumeOperation::Snapshot { name: "v".into(), operation };
    let operation = ToStore::Volume { request, operation };
    assert_eq!(first(Frame::from(ask.clone()).encode_head().unwrap()), 14);
    assert_eq!(first(Frame::from(answer.clone()).encode_head().unwrap()), 13);
    for version in MIN_VERSION..=MAX_VERSION {
        let known = version >= SNAPSHOT_VERSION;
        assert_eq!((ask.is_of_version(version), answer.is_of_version(version)), (known, known));
        assert_eq!(operation.is_of_version(version), known);
    }
}

#[test]
fn the_longest_changes_fit_a_head() {
    let range = Range::new(u64::MAX / 2, u64::MAX / 2);
    let result = Ok(Changes::Ranges(vec![range; MAX_CHANGED_RANGES]));
    let message = ToHost::Changed { request: u64::MAX, volume: VolumeId(u128::MAX), result };
    Frame::from(message).encode_head().unwrap();
}

#[test]
fn the_most_damaged_ranges_fit_a_head() {
    let ranges = vec![Range::new(u64::MAX / 2, u64::MAX / 2); MAX_DAMAGED_RANGES];
    let message = ToHost::Damaged { volume: VolumeId(u128::MAX), epoch: u64::MAX, ranges };
    Frame::from(message).encode_head().unwrap();
}

#[test]
fn the_longest_list_of_deleted_volumes_fits_a_head() {
    let volume = DeletedInfo {
        name: "x".repeat(2 * MAX_NAME_BYTES + 1),
        id: VolumeId(u128::MAX),
        sectors: u64::MAX,
        deleted: u64::MAX,
        until: u64::MAX,
    };
    let volumes = vec![volume; MAX_DELETED_LISTED];
    let result = Ok(VolumeReply::Trash(TrashReply::List { volumes, more: true }));
    Frame::from(ToHost::Volume { request: u64::MAX, result }).encode_head().unwrap();
}

#[test]
fn the_longest_list_of_snapshots_fits_a_head() {
    let snapshot = SnapshotInfo {
        name: "x".repeat(MAX_NAME_BYTES),
        id: VolumeId(u128::MAX),
        segment: u64::MAX,
        sectors: u64::MAX,
        created: u64::MAX,
        clones: u32::MAX,
        hidden: true,
    };
    let reply = SnapshotReply::List { snapshots: vec![snapshot; MAX_SNAPSHOTS_LISTED], more: true };
    let result = Ok(VolumeReply::Snapshot(reply));
    Frame::from(ToHost::Volume { request: u64::MAX, result }).encode_head().unwrap();
}

proptest! {
    #[test]
    fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300), head in 0u8..60) {
        let _ = Frame::<ToStore>::decode(&bytes, Bytes::new());
        let _ = Frame::<ToHost>::decode(&bytes, Bytes::new());
        let mut framed = BytesMut::from(&[head, 0, 0, 0, 4, 0, 0, 0][..]);
        framed.extend_from_slice(&bytes);
        while let Ok(Some(_)) = Frame::<ToHost>::take(&mut framed) {}
    }

    #[test]
    fn read_answers_round_trip(cuts in prop::collection::vec((0..3u8, 1..40u64), 1..8)) {
        let mut at = 5;
        let mut parts = Vec::new();
        for (kind, sectors) in cuts {
            let wanted = Range::new(at, sectors);
            at += sectors;
            parts.push(match kind {
                0 => ReadPart::Hole(sectors),
                1 => ReadPart::Zero(sectors),
                _ => {
                    let range = wanted.block_cover();
                    ReadPart::Data { wanted, fragment: Fragment {
                        range,
                        table: Bytes::from(vec![1; 4 * range.blocks() as usize]),
                        payload: Bytes::from(vec![2; range.bytes() as usize]),
                    } }
                }
            });
        }
        let range = Range::between(5, at);
        let frame = encode_data(1, VolumeId(1), &parts);
        let ToHost::Data { result: Ok(pieces), .. } = &frame.message else { panic!() };
        prop_assert_eq!(decode_data(range, pieces, frame.payload.clone()).unwrap(), parts);
        let longer = Range::new(range.lba, range.sectors + 1);
        prop_assert!(decode_data(longer, pieces, frame.payload.clone()).is_err());
    }
}
