//! Link frames, both directions. No bytes and no divisions cause a panic, or allocations beyond the
//! limits. The frames are the same for all divisions. An accepted frame encodes to one that decodes
//! to the same.
//!
//! Input: direction, cuts, stream.
#![no_main]

use bytes::{Bytes, BytesMut};
use libfuzzer_sys::fuzz_target;
use longhaul_core::block::Range;
use longhaul_core::record::Fragment;
use longhaul_core::wire::link::{
    Announced, AttachError, Claim, FRAME_PREFIX_BYTES, Frame, HostId, KeyId, LiveInfo,
    MAX_HEAD_BYTES, MAX_PAYLOAD_BYTES, Piece, ReadPart, Served, StoreId, StoreOperation,
    StoreReply, StoreReport, TenantLimits, TenantOperation, ToHost, ToStore, TrashOperation,
    VolumeOperation, decode_data, encode_data,
};
use longhaul_fuzz::{Input, pieces, seeds, world};
use serde::{Serialize, de::DeserializeOwned};

fn stream<M: Serialize + DeserializeOwned>(direction: u8, frames: Vec<Frame<M>>) -> Vec<u8> {
    let mut bytes = vec![direction, 1, 2, 3, 4];
    for frame in frames {
        bytes.extend(frame.encode_head().unwrap());
        bytes.extend(&frame.payload);
    }
    bytes
}

fn make_seeds() -> Vec<Vec<u8>> {
    let announced = Announced { range: Range::new(8, 8), seq: 3 };
    let hello = ToStore::Hello { min_version: 1, max_version: 1, software: "x".into() };
    let (volume, host) = (world::VOLUME, world::HOST);
    let create = VolumeOperation::Create { name: "v".into(), sectors: 1024, block_bytes: 512 };
    let claim = Claim::Resume(1);
    let key = KeyId([5; 32]);
    let release = StoreOperation::Release { volume, lease: 2, host, key, claim };
    let restore = TrashOperation::Restore { volume, name: "t/v".into() };
    let tenant = TenantOperation::Create { tenant: "t".into(), limits: TenantLimits::default() };
    let to_store = vec![
        hello.into(),
        ToStore::Attach { request: 1, name: "v".into(), host, journal: None, take_over: false }
            .into(),
        ToStore::Announce { volume, epoch: 1, replace: true, entries: vec![announced] }.into(),
        world::batch(1, 1, 3),
        ToStore::Read { request: 2, volume, epoch: 1, range: Range::new(0, 8) }.into(),
        ToStore::Volume { request: 3, operation: create }.into(),
        world::stage(4, 1),
        ToStore::EarlyRead { request: 5, volume, epoch: 1, committed: 3, range: Range::new(0, 8) }
            .into(),
        ToStore::Store { request: 6, operation: release }.into(),
        ToStore::Store { request: 7, operation: StoreOperation::Evacuate { on: true } }.into(),
        ToStore::Volume { request: 8, operation: VolumeOperation::Trash(restore) }.into(),
        ToStore::Tenant { request: 9, operation: tenant }.into(),
    ];
    let lost = AttachError::LossPending { host: HostId(3), bytes: 4096 };
    let fragment = Fragment {
        range: Range::new(0, 8),
        table: Bytes::from_static(&[1; 4]),
        payload: Bytes::from_static(&[2; 4096]),
    };
    let parts = [ReadPart::Hole(3), ReadPart::Data { wanted: Range::new(3, 4), fragment }];
    let live = LiveInfo {
        epoch: 1,
        host: Some(host),
        name: "a at [::1]:1".into(),
        connected: true,
        silent_since: None,
        clean: false,
        committed: 3,
        segments: 4,
        mapped_bytes: 4096,
        announced_bytes: 512,
    };
    let report = StoreReport {
        id: StoreId(1),
        addresses: vec!["a:7777".into()],
        software: "x".into(),
        evacuating: false,
        hosts: 1,
        attached: 1,
        bytes_per_second: 4096,
        volumes: vec![Served { volume, live }],
    };
    let to_host = vec![
        ToHost::Attached { request: 1, result: Ok(world::attached(1, 0)) }.into(),
        ToHost::Attached { request: 2, result: Err(lost) }.into(),
        ToHost::Committed { volume, epoch: 1, seq: 3 }.into(),
        encode_data(2, volume, &parts),
        ToHost::Fenced { volume, epoch: 2 }.into(),
        world::staged(4),
        ToHost::Store { request: 6, result: Ok(StoreReply::Released) }.into(),
        ToHost::Store { request: 7, result: Ok(StoreReply::Report(report)) }.into(),
        ToHost::Stores { stores: vec!["b:7777".into()], leave: true }.into(),
        ToHost::Damaged { volume, epoch: 1, ranges: vec![Range::new(8, 128)] }.into(),
    ];
    // A block that no volume can have.
    let cover = Range::new(u64::MAX - 8, 8);
    let result = Ok(vec![Piece::Data { sectors: 1, cover }]);
    let absurd = vec![ToHost::Data { request: 3, volume, result }.into()];
    vec![stream(0, to_store), stream(1, to_host), stream(1, absurd)]
}

fn take_all<M>(data: &[u8], cuts: Option<u32>) -> (Vec<Frame<M>>, bool)
where
    M: Serialize + DeserializeOwned,
{
    let (mut buffer, mut frames) = (BytesMut::new(), Vec::new());
    let whole = cuts.is_none().then_some(data);
    let cut = cuts.into_iter().flat_map(|cuts| pieces(data, cuts));
    for piece in whole.into_iter().chain(cut) {
        buffer.extend_from_slice(piece);
        loop {
            match Frame::take(&mut buffer) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(_) => return (frames, true),
            }
        }
        let limit = FRAME_PREFIX_BYTES + MAX_HEAD_BYTES + MAX_PAYLOAD_BYTES;
        assert!(buffer.capacity() <= 2 * limit + data.len());
    }
    (frames, false)
}

fn check<M>(data: &[u8], cuts: u32) -> Vec<Frame<M>>
where
    M: Serialize + DeserializeOwned + Clone + PartialEq + std::fmt::Debug,
{
    let (frames, failed) = take_all::<M>(data, None);
    assert_eq!(take_all::<M>(data, Some(cuts)), (frames.clone(), failed));
    for frame in &frames {
        let head = frame.encode_head().unwrap();
        let again = Frame::<M>::decode(&head[FRAME_PREFIX_BYTES..], frame.payload.clone());
        assert_eq!(again.as_ref(), Ok(frame));
    }
    frames
}

fuzz_target!(init: seeds("link", make_seeds), |data: &[u8]| {
    let mut input = Input(data);
    let (direction, cuts) = (input.byte(), input.u32());
    if direction & 1 == 0 {
        check::<ToStore>(input.0, cuts);
        return;
    }
    for frame in check::<ToHost>(input.0, cuts) {
        let ToHost::Data { result: Ok(pieces), request, volume } = frame.message else { continue };
        let sectors = pieces.iter().map(|piece| match piece {
            Piece::Hole(sectors)
            | Piece::Zero(sectors)
            | Piece::Data { sectors, .. }
            | Piece::Packed { sectors, .. } => *sectors,
        });
        let range = Range::new(0, sectors.fold(0, u64::saturating_add));
        let Ok(parts) = decode_data(range, &pieces, frame.payload.clone()) else { continue };
        for part in &parts {
            if let ReadPart::Data { wanted, fragment } = part {
                assert!(fragment.range.intersect(*wanted) == Some(*wanted));
                let _ = fragment.verify();
                assert_eq!(fragment.sectors(*wanted).len() as u64, wanted.bytes());
            }
        }
        assert_eq!(encode_data(request, volume, &parts).payload, frame.payload);
    }
});
