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

/// A peer reads a message by its number: new messages are at the end.
#[test]
fn messages_keep_their_numbers() {
    fn number<T: Serialize>(message: T) -> u8 {
        postcard::to_allocvec(&message).unwrap()[0]
    }
    let (request, volume) = (1, VolumeId(1));
    let operation = TenantOperation::Show { tenant: "t".to_owned() };
    let detach = ToStore::Detach { request, volume, epoch: 1 };
    let result = Err(VolumeError::NotFound);
    assert_eq!(number(hello().message), 0);
    assert_eq!(number(detach), 3);
    assert_eq!(number(ToStore::Tenant { request, operation }), 14);
    assert_eq!(number(ToHost::Detached { request }), 2);
    assert_eq!(number(ToHost::Volume { request, result }), 8);
    assert_eq!(number(ToHost::Damaged { volume, epoch: 1, ranges: Vec::new() }), 18);
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
