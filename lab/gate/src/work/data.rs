//! Records and encryption.

use super::{BLOCK, VOLUME, bytes};
use bytes::{Bytes, BytesMut};
use longhaul_core::block::Range;
use longhaul_core::pack::{Compression, DataKey, Keys, Packer, Packing};
use longhaul_core::record;
use std::hint::black_box;

fn encode(operations: u32, sectors: u64) -> Box<dyn FnMut()> {
    let data = bytes(Range::new(0, sectors).bytes() as usize);
    let mut out = BytesMut::with_capacity(2 * data.len() + 4096);
    Box::new(move || {
        for number in 0..u64::from(operations) {
            out.clear();
            let range = Range::new(number * sectors, sectors);
            record::encode_data(VOLUME, 1, 1 + number, range, &data, &mut out);
            black_box(&out);
        }
    })
}

pub fn record_encode(operations: u32) -> Box<dyn FnMut()> {
    encode(operations, BLOCK)
}

pub fn record_encode_64(operations: u32) -> Box<dyn FnMut()> {
    encode(operations, 16 * BLOCK)
}

/// Parses a record and verifies its data.
pub fn record_verify(operations: u32) -> Box<dyn FnMut()> {
    let mut out = BytesMut::new();
    record::encode_data(VOLUME, 1, 1, Range::new(0, BLOCK), &bytes(4096), &mut out);
    let record = out.freeze();
    Box::new(move || {
        for _ in 0..operations {
            assert!(black_box(record::parse(VOLUME, black_box(&record))).is_ok());
        }
    })
}

fn packer() -> Packer {
    let keys = Keys::new([6; 12], [(1, DataKey::new([7; 32]))].into());
    Packer::new(VOLUME, Packing { compression: Compression::None, keys })
}

pub fn encrypt(operations: u32) -> Box<dyn FnMut()> {
    let (data, mut packer) = (bytes(4096), packer());
    let mut out = BytesMut::with_capacity(8192);
    Box::new(move || {
        for number in 0..u64::from(operations) {
            out.clear();
            packer.pack(1, 1 + number, Range::new(number * BLOCK, BLOCK), &data, &mut out);
            black_box(&out);
        }
    })
}

pub fn decrypt(operations: u32) -> Box<dyn FnMut()> {
    let (mut packer, range) = (packer(), Range::new(0, BLOCK));
    let mut out = BytesMut::new();
    packer.pack(1, 1, range, &bytes(4096), &mut out);
    let packed: Bytes = out.freeze();
    Box::new(move || {
        for _ in 0..operations {
            assert!(black_box(packer.unpack(black_box(&packed), range)).is_ok());
        }
    })
}
