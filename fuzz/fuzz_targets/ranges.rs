//! Traces and pins that are anything: a refusal in words or ranges that make sense, and one
//! encoding for each; no panic.
//!
//! Input: settings (bit 0: pins rather than a trace, bit 1: put first bytes and checksum right),
//! then the bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longhaul_core::block::{MAX_VOLUME_SECTORS, Range};
use longhaul_core::extent::{RangeSet, Uniform};
use longhaul_core::host::Trace;
use longhaul_core::host::cache::Pins;
use longhaul_core::ranges::{MAX_ENCODED_BYTES, MAX_RANGES};
use longhaul_fuzz::seeds;

const CRC: std::ops::Range<usize> = 8..12;

fn make_seeds() -> Vec<Vec<u8>> {
    let mut pins = Pins::default();
    let mut all = Vec::new();
    for range in [Range::new(0, 1), Range::new(4000, 64), Range::new(1 << 40, 1 << 20)] {
        pins.add(range);
        // The bytes after the first ones are the same in both.
        all.extend([0, 1, 2, 3].map(|settings| [&[settings][..], &pins.encode()].concat()));
    }
    all
}

fn check(ranges: impl Iterator<Item = Range>) -> u64 {
    let mut seen = RangeSet::new();
    let (mut count, mut bytes) = (0, 0);
    for range in ranges {
        assert!(!range.is_empty() && range.fits(MAX_VOLUME_SECTORS), "{range:?}");
        assert!(seen.overlapping(range).next().is_none(), "{range:?} comes twice");
        seen.insert(range, Uniform(()));
        count += 1;
        bytes += range.bytes();
    }
    assert!(count <= MAX_RANGES);
    bytes
}

fuzz_target!(init: seeds("ranges", make_seeds), |data: &[u8]| {
    let Some((settings, bytes)) = data.split_first() else { return };
    let mut bytes = bytes.to_vec();
    let pinned = settings & 1 == 1;
    if settings & 2 == 2 && bytes.len() >= CRC.end {
        bytes[..CRC.start].copy_from_slice(if pinned { b"LHPINNED" } else { b"LHTRACE1" });
        let crc = crc32c::crc32c(&bytes[CRC.end..]);
        bytes[CRC].copy_from_slice(&crc.to_le_bytes());
    }
    let again = if pinned {
        Pins::decode(&bytes).map(|pins| {
            assert_eq!(check(pins.ranges()), pins.bytes());
            assert!(pins.is_encodable());
            pins.encode()
        })
    } else {
        Trace::decode(&bytes).map(|trace| {
            assert_eq!(check(trace.ranges().iter().copied()), trace.bytes());
            trace.encode()
        })
    };
    match again {
        Ok(again) => assert!(again == bytes && bytes.len() <= MAX_ENCODED_BYTES),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
