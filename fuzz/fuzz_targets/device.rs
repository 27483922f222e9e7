//! Superblocks and the index of a device. No bytes cause a panic. An accepted part encodes to the
//! same bytes, and lies where objects can be.
//!
//! Input: kind, bytes. The target first makes the checksums right.
#![no_main]
#![allow(dead_code)]

use libfuzzer_sys::fuzz_target;
use longhaul_fuzz::{Input, seeds};

// The target includes these files as they are, so that it need not build what their crate depends
// on.
#[path = "../../objects/src/device/format.rs"]
mod format;

use format::{AreaHeader, Extent, FrameId, Geometry, HEADER_BYTES, Object, Record, Superblock};

fn geometry() -> Geometry {
    Geometry::new(format::MIN_DEVICE_BYTES).unwrap()
}

fn make_seeds() -> Vec<Vec<u8>> {
    let superblock = Superblock { identity: 7, geometry: geometry() }.encode();
    let header = AreaHeader { identity: 7, generation: 3, frames: 2 }.encode();
    let first = geometry().blocks().start;
    let extents = [Extent { block: first, blocks: 2 }, Extent { block: first + 9, blocks: 1 }];
    let object = Object { bytes: 9000, crc: 5, extents: Box::new(extents) };
    let mut body = Vec::new();
    format::encode_create("v/7/seg/1", &object, &mut body);
    format::encode_delete("volumes/a", &mut body);
    let frame = format::encode_frame(FrameId { identity: 7, generation: 3, number: 1 }, &body);
    let frame = &frame[..format::FRAME_HEADER_BYTES + body.len()];
    [&superblock[..], &header[..], frame, &body]
        .iter()
        .enumerate()
        .map(|(kind, bytes)| [&[kind as u8][..], bytes].concat())
        .collect()
}

fn sealed(bytes: &[u8]) -> [u8; HEADER_BYTES] {
    let mut out = [0; HEADER_BYTES];
    let length = bytes.len().min(HEADER_BYTES);
    out[..length].copy_from_slice(&bytes[..length]);
    let crc = crc32c::crc32c(&out[..HEADER_BYTES - 4]);
    out[HEADER_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
    out
}

fn records(body: &[u8]) {
    let Ok(records) = format::parse_records(body, geometry()) else { return };
    let mut again = Vec::new();
    for record in &records {
        match record {
            Record::Create(key, object) => {
                let all = geometry().blocks();
                let blocks =
                    |extent: &Extent| extent.block..extent.block + u64::from(extent.blocks);
                let inside =
                    |range: std::ops::Range<u64>| all.start <= range.start && range.end <= all.end;
                assert!(object.extents.iter().map(blocks).all(inside));
                format::encode_create(key, object, &mut again);
            }
            Record::Delete(key) => format::encode_delete(key, &mut again),
        }
    }
    assert_eq!(again, body);
}

fuzz_target!(init: seeds("device", make_seeds), |data: &[u8]| {
    let mut input = Input(data);
    match input.byte() % 4 {
        0 => {
            if let Ok(superblock) = Superblock::parse(&sealed(input.0)) {
                assert_eq!(Superblock::parse(&superblock.encode()), Ok(superblock));
                let blocks = superblock.geometry.blocks();
                assert!(blocks.start < blocks.end);
            }
        }
        1 => {
            if let Ok(Some(header)) = AreaHeader::parse(&sealed(input.0)) {
                assert_eq!(AreaHeader::parse(&header.encode()), Ok(Some(header)));
            }
        }
        2 => {
            let mut frame = input.0.to_vec();
            if let Some(body) = frame.len().checked_sub(format::FRAME_HEADER_BYTES) {
                frame[4..8].copy_from_slice(&(body as u32).to_le_bytes());
                let crc = crc32c::crc32c_append(crc32c::crc32c(&frame[..40]), &frame[format::FRAME_HEADER_BYTES..]);
                frame[40..44].copy_from_slice(&crc.to_le_bytes());
            }
            if let Ok((id, body)) = format::parse_frame(&frame) {
                assert_eq!(format::parse_frame(&format::encode_frame(id, body)), Ok((id, body)));
                records(body);
            }
        }
        _ => records(input.0),
    }
});
