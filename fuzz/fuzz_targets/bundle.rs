//! The index of a bundle. No bytes cause a panic. An accepted index is in order. It finds its
//! entries in the object, and nothing else.
//!
//! Input: flags, object. With flag 1 the target first makes the checksums right.
#![no_main]

use bytes::{Bytes, BytesMut};
use libfuzzer_sys::fuzz_target;
use longhaul_core::block::{Range, VolumeId};
use longhaul_core::record::{self, MAX_RECORD_SECTORS};
use longhaul_core::store::gc::bundle::{Builder, BundleId, ENTRY_BYTES, HEADER_BYTES, Head, Index};
use longhaul_core::store::map::Place;
use longhaul_fuzz::seeds;

fn make_seeds() -> Vec<Vec<u8>> {
    let mut builder = Builder::new();
    let mut bytes = BytesMut::new();
    record::encode_data(VolumeId(1), 1, 9, Range::new(4, 40), &[3; 40 * 512], &mut bytes);
    let record = record::parse(VolumeId(1), &bytes.freeze()).expect("just encoded");
    builder.push(3, 128, 0..4, &record, 0);
    builder.push(3, 128, 20..28, &record, 0);
    builder.push(4, 128, 7..9, &record, 0);
    let id = BundleId { volume: VolumeId(1), generation: 2, number: 3 };
    let object = builder.finish(id).concat();
    [0, 1].iter().map(|flags| [&[*flags], &object[..]].concat()).collect()
}

fn seal(object: &mut [u8]) {
    let Some(entries) = object.get(40..44) else { return };
    let entries = u32::from_le_bytes(entries.try_into().expect("four bytes")) as usize;
    let end = HEADER_BYTES.saturating_add(entries.saturating_mul(ENTRY_BYTES));
    if let Some(index) = object.get(HEADER_BYTES..end) {
        let crc = crc32c::crc32c(index).to_le_bytes();
        object[44..48].copy_from_slice(&crc);
    }
    if object.len() >= HEADER_BYTES {
        let crc = crc32c::crc32c(&object[..HEADER_BYTES - 4]).to_le_bytes();
        object[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&crc);
    }
}

fuzz_target!(init: seeds("bundle", make_seeds), |data: &[u8]| {
    let Some((flags, object)) = data.split_first() else { return };
    let mut object = object.to_vec();
    if flags & 1 != 0 {
        seal(&mut object);
    }
    let Ok(head) = Head::parse(&object) else { return };
    let range = head.index_range();
    let Some(bytes) = object.get(range.start as usize..range.end as usize) else { return };
    let Ok(index) = Index::new(head, Bytes::copy_from_slice(bytes)) else { return };
    assert_eq!(index.id(), head.id);
    let mut before = 0;
    for segment in index.segments() {
        assert!(segment > before, "in order, each once");
        before = segment;
    }
    for raw in bytes.chunks_exact(ENTRY_BYTES) {
        let number = |at: usize, len: usize| {
            raw[at..at + len].iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte))
        };
        let (segment, offset) = (number(0, 8), number(8, 4) as u32);
        let (first, sectors) = (number(16, 2), number(18, 2));
        let run = first..first + sectors;
        let (at, skip) = index.record(segment, offset, &run).expect("what it says it has");
        assert!(at < head.bytes() && at >= range.end && skip == first);
        assert_eq!(index.record(segment, offset, &(first..run.end + 1)), None, "more than it has");
        // A record of data that is large enough for the run.
        if let Some(place) = Place::new(segment, 1, offset, first, MAX_RECORD_SECTORS)
            && let Some(found) = index.find(place, sectors)
        {
            assert_eq!((found.segment(), found.seq(), found.skip()), (segment, 1, 0));
            assert_eq!(found.record_sectors(), sectors);
        }
    }
});
