//! Checkpoints: whatever the bytes and however they are cut, no panic and the same outcome.
//!
//! Input: flags, cuts, object. With flag 1 all checksums are made right first.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longhaul_core::block::VolumeId;
use longhaul_core::store::VolumeSpec;
use longhaul_core::store::checkpoint::{Checkpoint, CheckpointError, Reader};
use longhaul_fuzz::{Input, pieces, seeds, world};

const HEADER_BYTES: usize = 48;
const SECTION_BYTES: usize = 24;
const NUMBER: u64 = 9;

fn make_seeds() -> Vec<Vec<u8>> {
    let with = |flags: u8, object: Vec<u8>| [&[flags, 1, 2, 3, 4][..], &object].concat();
    let found = world::checkpoint();
    vec![with(0, found.clone()), with(1, found)]
}

fn reseal(object: &mut [u8]) {
    if object.len() < HEADER_BYTES {
        return;
    }
    let crc = crc32c::crc32c(&object[..HEADER_BYTES - 4]);
    object[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
    let mut rest = &mut object[HEADER_BYTES..];
    while rest.len() >= SECTION_BYTES {
        let length = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        let end = SECTION_BYTES.saturating_add(length).min(rest.len());
        let body = crc32c::crc32c(&rest[SECTION_BYTES..end]);
        rest[16..20].copy_from_slice(&body.to_le_bytes());
        let head = crc32c::crc32c(&rest[..SECTION_BYTES - 4]);
        rest[SECTION_BYTES - 4..SECTION_BYTES].copy_from_slice(&head.to_le_bytes());
        rest = &mut rest[end..];
    }
}

fn read<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Result<Checkpoint, CheckpointError> {
    let (id, created_sectors) = (VolumeId(0x10), 64);
    let spec = VolumeSpec { id, created_sectors, ..world::spec() };
    let mut reader = Reader::new(&spec, NUMBER, 1000);
    for piece in pieces {
        reader.push(piece)?;
    }
    reader.finish()
}

/// All that was read, in a form that can be compared.
fn said(checkpoint: &Checkpoint) -> String {
    let Checkpoint { state, table, through } = checkpoint;
    let entries: Vec<_> = table.iter_from(0).collect();
    format!("{state:?} {entries:?} {through}")
}

fuzz_target!(init: seeds("checkpoint", make_seeds), |data: &[u8]| {
    let mut input = Input(data);
    let (flags, cuts) = (input.byte(), input.u32());
    let mut object = input.0.to_vec();
    if flags & 1 == 1 {
        reseal(&mut object);
    }
    let whole = read(std::iter::once(&object[..]));
    let cut = read(pieces(&object, cuts));
    assert_eq!(whole.is_ok(), cut.is_ok());
    let (Ok(whole), Ok(cut)) = (whole, cut) else { return };
    assert_eq!(said(&whole), said(&cut));
});
