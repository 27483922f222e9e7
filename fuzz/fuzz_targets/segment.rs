//! Segments. No bytes cause a panic, also in a log that takes a valid segment. Each record that a
//! valid segment lists exists.
//!
//! Input: flags, object. With flag 1 the target first makes all checksums of the envelope right.
#![no_main]

use bytes::{Bytes, BytesMut};
use libfuzzer_sys::fuzz_target;
use longhaul_core::store::check::LogCheck;
use longhaul_core::store::segment::{self, HEADER_BYTES, TRAILER_BYTES};
use longhaul_fuzz::{Input, seeds, world};

/// The segments that a store makes of an attach and some batches.
fn make_seeds() -> Vec<Vec<u8>> {
    world::log().into_iter().map(|object| [&[1][..], &object].concat()).collect()
}

fn reseal(object: &mut BytesMut) {
    let length = object.len();
    if length < HEADER_BYTES + TRAILER_BYTES {
        return;
    }
    let put = |object: &mut BytesMut, at: usize, crc: u32| {
        object[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    };
    let header = crc32c::crc32c(&object[..HEADER_BYTES - 4]);
    put(object, HEADER_BYTES - 4, header);
    let trailer = length - TRAILER_BYTES;
    let footer = u32::from_le_bytes(object[trailer + 16..trailer + 20].try_into().unwrap());
    if let Some(start) = trailer.checked_sub(footer as usize) {
        let footer = crc32c::crc32c(&object[start..trailer]);
        put(object, trailer + 20, footer);
    }
    put(object, trailer + 24, header);
    let crc = crc32c::crc32c(&object[trailer..length - 4]);
    put(object, length - 4, crc);
}

fuzz_target!(init: seeds("segment", make_seeds), |data: &[u8]| {
    let mut input = Input(data);
    let flags = input.byte();
    let mut object = BytesMut::from(input.0);
    if flags & 1 == 1 {
        reseal(&mut object);
    }
    let object: Bytes = object.freeze();
    let head = segment::parse_header(&object);
    if let Ok((header, crc)) = head {
        let tail = header.tail();
        if tail.end == object.len() as u64 {
            let _ = segment::parse_tail(header, crc, &object[tail.start as usize..]);
        }
    }
    let Ok(found) = segment::verify(&object) else { return };
    assert_eq!(head, Ok((found.header, found.header_crc)));
    for piece in &found.footer.pieces {
        assert!(u64::from(piece.offset) < object.len() as u64);
        let record = object.slice(piece.offset as usize..);
        let record = longhaul_core::record::parse(found.header.volume, &record).unwrap();
        assert_eq!((record.header.range, record.header.seq), (piece.range, piece.seq));
    }
    let mut check = LogCheck::new(&world::spec());
    let _ = check.handle_segment(&object);
});
