//! Pages, fragments and roots of a map: whatever the bytes, no panic; what is accepted writes out
//! to something that reads back the same.
//!
//! Input: flags, object. The lowest two bits say what it is: 0 a page, 1 a fragment, 2 a root. With
//! flag 4 all checksums are made right first.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use longhaul_core::block::{Range, STAGED_BIT, VolumeId};
use longhaul_core::store::gc::moved::Moved;
use longhaul_core::store::log::LogState;
use longhaul_core::store::map::fragment::{
    Builder, DESCRIPTION_BYTES, Fragment, FragmentId, Index, TRAILER_BYTES,
};
use longhaul_core::store::map::levels::Levels;
use longhaul_core::store::map::page::{Encoder, Entries, MapEntry, PAGE_BYTES};
use longhaul_core::store::map::{MapError, Place};
use longhaul_core::store::root;
use longhaul_fuzz::{Input, seeds, world};

const ROOT_HEADER_BYTES: usize = 96;
const INDEX_ENTRY_BYTES: usize = 16;

fn entries() -> Vec<MapEntry> {
    let object = STAGED_BIT | 7;
    let places = [
        Place::new(3, 9, 128, 0, 8),
        Place::new(3, 10, 4276, 0, 8),
        None,
        Some(Place::ZERO),
        Place::new(object, object, 64, 2, 10),
        Place::packed(4, 12, 129, 8, 300),
        Place::new(1 << 40, 1 << 50, u32::MAX, 0, 2048),
    ];
    let entry = |(n, place)| MapEntry { range: Range::new(16 + 9 * n as u64, 8), place };
    places.into_iter().enumerate().map(entry).collect()
}

fn page(entries: &[MapEntry]) -> Vec<u8> {
    let mut encoder = Encoder::new(PAGE_BYTES);
    for entry in entries {
        assert!(encoder.push(*entry), "what was read is never longer than it has to be");
    }
    encoder.finish()
}

fn fragment(entries: &[MapEntry], number: u64) -> (Fragment, Bytes) {
    let mut builder = Builder::new(50);
    for entry in entries {
        builder.push(*entry);
    }
    let id = FragmentId { volume: VolumeId(1), generation: 1, number };
    let (fragment, parts) = builder.finish(id);
    (fragment, parts.concat().into())
}

fn make_seeds() -> Vec<Vec<u8>> {
    let entries = entries();
    let (first, object) = fragment(&entries, 1);
    let (second, _) = fragment(&entries[2..4], 2);
    let levels = Levels::new(vec![vec![second]], vec![vec![first]]).unwrap();
    let mut state = LogState::new(&world::spec(), 100);
    state.number = 64;
    let root = root::encode(2, &state, &levels, &root::Pins::new(), &Moved::default(), 100);
    let with = |flags: u8, object: &[u8]| [&[flags][..], object].concat();
    vec![
        with(0, &page(&entries)),
        with(1, &object),
        with(5, &object),
        with(2, &root),
        with(6, &root),
    ]
}

fn number(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
}

fn seal(bytes: &mut [u8], at: usize, crc: u32) {
    bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}

fn reseal_fragment(object: &mut [u8]) {
    let Some(trailer) = object.len().checked_sub(TRAILER_BYTES) else { return };
    let description = trailer + DESCRIPTION_BYTES;
    // Of a description the last four numbers are the pages' bytes, their number, the index's
    // checksum and the holes.
    let (index, pages) = (number(object, description - 16), number(object, description - 12));
    if index.checked_add(pages.saturating_mul(INDEX_ENTRY_BYTES)).is_some_and(|end| end <= trailer)
    {
        let mut at = 0;
        for entry in (index..trailer).step_by(INDEX_ENTRY_BYTES).take(pages) {
            let end = at + number(object, entry + 8);
            let Some(page) = object.get(at..end) else { break };
            let crc = crc32c::crc32c(page);
            seal(object, entry + 12, crc);
            at = end;
        }
        let crc = crc32c::crc32c(&object[index..index + pages * INDEX_ENTRY_BYTES]);
        seal(object, description - 8, crc);
    }
    let end = object.len() - 4;
    let crc = crc32c::crc32c(&object[trailer..end]);
    seal(object, end, crc);
}

fn reseal_root(object: &mut [u8]) {
    if object.len() < ROOT_HEADER_BYTES {
        return;
    }
    let crc = crc32c::crc32c(&object[ROOT_HEADER_BYTES..]);
    seal(object, ROOT_HEADER_BYTES - 8, crc);
    let crc = crc32c::crc32c(&object[..ROOT_HEADER_BYTES - 4]);
    seal(object, ROOT_HEADER_BYTES - 4, crc);
}

fn decode(page: &[u8]) -> Result<Vec<MapEntry>, MapError> {
    Entries::new(page)?.collect()
}

fuzz_target!(init: seeds("map", make_seeds), |data: &[u8]| {
    let mut input = Input(data);
    let flags = input.byte();
    let mut object = input.0.to_vec();
    match flags & 3 {
        0 => {
            let Ok(entries) = decode(&object) else { return };
            assert!(entries.windows(2).all(|pair| pair[0].range.end() <= pair[1].range.lba));
            assert_eq!(decode(&page(&entries)), Ok(entries));
        }
        1 => {
            if flags & 4 != 0 {
                reseal_fragment(&mut object);
            }
            let object = Bytes::from(object);
            let Ok(found) = Fragment::verify(&object) else { return };
            let range = found.index_range();
            let index = object.slice(range.start as usize..range.end as usize);
            let index = Index::new(&found, index).unwrap();
            let mut entries = Vec::new();
            for page in 0..index.pages() {
                let range = index.range(page);
                let bytes = &object[range.start as usize..range.end as usize];
                entries.extend(index.entries(page, bytes).unwrap().map(Result::unwrap));
            }
            let (again, object) = fragment(&entries, found.id.number);
            assert_eq!(Fragment::verify(&object), Ok(again));
            assert_eq!((again.span, again.entries), (found.span, found.entries));
        }
        _ => {
            if flags & 4 != 0 {
                reseal_root(&mut object);
            }
            let Ok(found) = root::parse(&world::spec(), &object, 1000) else { return };
            let root::Root { generation, state, levels, pins, moved } = found;
            let written = root::encode(generation, &state, &levels, &pins, &moved, 1000);
            let again = root::parse(&world::spec(), &written, 1000).unwrap();
            assert_eq!((&again.levels, &again.moved), (&levels, &moved));
            let root::Root { generation, state, levels, pins, moved } = again;
            assert_eq!(root::encode(generation, &state, &levels, &pins, &moved, 1000), written);
        }
    }
});
