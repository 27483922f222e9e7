//! Records. No bytes cause a panic. An accepted record survives cutting and parsing again. A block
//! read out of it by location is the written one. A cut of a packed record unpacks to the same data
//! as the whole.
//!
//! Input: flags, cut, record. With flag 1 the target first makes the header checksum right.
#![no_main]

use bytes::{Bytes, BytesMut};
use libfuzzer_sys::fuzz_target;
use longhaul_core::block::{Range, STAGED_BIT, StagedData, VolumeId};
use longhaul_core::pack::{Compression, DataKey, Keys, Packer, Packing};
use longhaul_core::record::{self, HEADER_BYTES, Kind, Location, STAGED_BYTES, can_hold, packed};
use longhaul_fuzz::{Input, seeds};

const VOLUME: VolumeId = VolumeId(1);
const OTHER: VolumeId = VolumeId(2);

fn make_seeds() -> Vec<Vec<u8>> {
    let mut made = Vec::new();
    for (lba, sectors) in [(0, 1), (3, 9), (8, 16)] {
        let range = Range::new(lba, sectors);
        let mut record = BytesMut::from(&[0, 1, 0, 0, 0, 2, 0, 0, 0][..]);
        record::encode_data(VOLUME, 1, 7, range, &vec![5; range.bytes() as usize], &mut record);
        made.push(record.to_vec());
    }
    let mut marker = BytesMut::from(&[1, 0, 0, 0, 0, 1, 0, 0, 0][..]);
    record::encode_marker(VOLUME, Kind::Discard, 1, 8, Range::new(4, 1 << 30), &mut marker);
    made.push(marker.to_vec());
    let data = StagedData { object: STAGED_BIT | 3, offset: 64, record: Range::new(4, 24) };
    let mut staged = BytesMut::from(&[1, 2, 0, 0, 0, 3, 0, 0, 0][..]);
    record::encode_staged(VOLUME, 1, 9, Range::new(8, 16), data, &mut staged);
    made.push(staged.to_vec());
    for compression in [Compression::None, Compression::Lz4, Compression::Zstd(1)] {
        let keys = Keys::new([6; 12], [(1, DataKey::new([7; 32]))].into());
        let keys = keys.filter(|_| compression == Compression::None);
        let mut packer = Packer::new(VOLUME, Packing { compression, keys });
        let mut packed = BytesMut::from(&[1, 2, 0, 0, 0, 9, 0, 0, 0][..]);
        let range = Range::new(3, 16);
        let data: Vec<u8> =
            (0..range.bytes()).map(|n| if n < 2560 { 0 } else { (n / 99) as u8 }).collect();
        packer.pack(1, 9, range, &data, &mut packed);
        made.push(packed.to_vec());
    }
    made
}

fuzz_target!(init: seeds("record", make_seeds), |data: &[u8]| {
    let mut input = Input(data);
    let (flags, skip, length) = (input.byte(), input.u32(), input.u32());
    let mut bytes = input.0.to_vec();
    if flags & 1 == 1 && bytes.len() >= HEADER_BYTES {
        let sectors = u64::from_le_bytes(bytes[32..40].try_into().unwrap());
        let lba = u64::from_le_bytes(bytes[24..32].try_into().unwrap());
        let blocks = Range::new(lba % (1 << 50), sectors.min(4096)).blocks() as usize;
        let table = match bytes[5] {
            1 => 4 * blocks,
            4 => STAGED_BYTES,
            5 => 16 + 8 * blocks,
            _ => 0,
        };
        if let Some(table) = bytes.get(HEADER_BYTES..HEADER_BYTES + table) {
            let crc = crc32c::crc32c_append(crc32c::crc32c_append(record::seed(VOLUME), &bytes[..HEADER_BYTES - 4]), table);
            bytes[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
        }
    }
    let bytes = Bytes::from(bytes);
    // Of one volume it is at most.
    let of = |volume| record::parse_prefix(volume, &bytes).is_ok();
    assert!(!of(VOLUME) || !of(OTHER));
    let header = record::parse_prefix(VOLUME, &bytes);
    let Ok(record) = record::parse(VOLUME, &bytes) else { return };
    assert_eq!(header, Ok(record.header));
    let range = record.header.range;
    let start = range.lba + u64::from(skip) % range.sectors;
    let part = Range::between(start, start + 1 + u64::from(length) % (range.end() - start));
    let mut cut = BytesMut::new();
    record.encode_part(part, &mut cut);
    let cut_bytes = cut.freeze();
    let cut = record::parse(VOLUME, &cut_bytes).unwrap();
    assert_eq!(cut.header.range.intersect(part), Some(part));
    assert_eq!((cut.header.seq, cut.header.kind), (record.header.seq, record.header.kind));
    assert_eq!(cut.header.staged, record.header.staged);
    assert!(cut.header.staged.is_none_or(|staged| can_hold(&staged, cut.header.range)));
    if record.header.kind == Kind::Packed {
        let mut packer = Packer::new(VOLUME, Packing::default());
        let (whole, part_of) = (packer.unpack(&bytes, part), packer.unpack(&cut_bytes, part));
        assert_eq!(whole, part_of);
        assert!(whole.is_err() || whole.is_ok_and(|data| data.len() as u64 == part.bytes()));
        let span = packed::span_max(range, part).min(record.header.record_bytes());
        let found = packed::extract(
            (VOLUME, VOLUME),
            record.header.seq,
            range,
            part,
            &bytes.slice(..span),
        )
        .unwrap();
        assert_eq!(packer.unpack(&found, part), part_of);
    }
    if record.header.kind == Kind::Data {
        assert_eq!(cut.data.sectors(part), record.data.sectors(part));
        let location = Location::new(range, part).unwrap();
        let end = location.payload_start + location.payload_bytes;
        assert!(location.prefix_bytes <= location.payload_start && end <= bytes.len());
    }
});
