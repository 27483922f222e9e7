//! Lists of ranges as bytes, for traces and pins.
//!
//! Promises: the number of ranges bounds an encoding. Parsing refuses damaged bytes and other
//! content, and no list has two encodings. It must not know the meaning of the ranges.
//!
//! `docs/formats.md` draws the format.

use crate::block::{MAX_VOLUME_SECTORS, Range};
use crate::extent::{RangeSet, Uniform};

/// Most ranges of a list.
pub const MAX_RANGES: usize = 1 << 16;
/// Longest encoding: two numbers of at most 8 bytes for each range, and the header.
pub const MAX_ENCODED_BYTES: usize = HEADER_BYTES + 16 * MAX_RANGES;

pub(super) const HEADER_BYTES: usize = 16;

/// Why bytes are not a list of ranges of the expected kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangesError {
    /// It begins differently, or is of a later version.
    #[error("it is something else, or of a later version")]
    Unknown,
    /// The checksum does not match.
    #[error("it is damaged: the checksum does not match")]
    Damaged,
    /// The checksum matches and the content makes no sense.
    #[error("what it says makes no sense")]
    Invalid,
}

/// At most [`MAX_RANGES`] ranges as bytes that begin with `magic`.
pub(super) fn encode<'a>(
    magic: [u8; 8],
    ranges: impl ExactSizeIterator<Item = &'a Range>,
) -> Vec<u8> {
    let mut out = vec![0; HEADER_BYTES];
    out[..8].copy_from_slice(&magic);
    out[12..16].copy_from_slice(&(ranges.len() as u32).to_le_bytes());
    let mut at = 0;
    for range in ranges {
        // Most ranges lie a little further on than the one before.
        let distance = range.lba as i64 - at;
        put_number(&mut out, ((distance << 1) ^ (distance >> 63)) as u64);
        put_number(&mut out, range.sectors);
        at = range.end() as i64;
    }
    let crc = crc32c::crc32c(&out[12..]);
    out[8..12].copy_from_slice(&crc.to_le_bytes());
    out
}

/// Takes an encoding apart: ranges that are not empty and do not overlap.
pub(super) fn decode(magic: [u8; 8], bytes: &[u8]) -> Result<Vec<Range>, RangesError> {
    let (header, mut rest) = bytes.split_at_checked(HEADER_BYTES).ok_or(RangesError::Unknown)?;
    if header[..8] != magic {
        return Err(RangesError::Unknown);
    }
    let word = |at: usize| {
        u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    if word(8) != crc32c::crc32c(&bytes[12..]) {
        return Err(RangesError::Damaged);
    }
    let count = word(12) as usize;
    if count > MAX_RANGES {
        return Err(RangesError::Invalid);
    }
    let mut ranges = Vec::with_capacity(count.min(rest.len()));
    let mut seen = RangeSet::new();
    let mut at = 0i64;
    for _ in 0..count {
        let folded = take_number(&mut rest).ok_or(RangesError::Invalid)?;
        let sectors = take_number(&mut rest).ok_or(RangesError::Invalid)?;
        let distance = (folded >> 1) as i64 ^ -((folded & 1) as i64);
        let lba = at.checked_add(distance).and_then(|lba| u64::try_from(lba).ok());
        let range = lba
            .filter(|lba| *lba < MAX_VOLUME_SECTORS && sectors <= MAX_VOLUME_SECTORS - lba)
            .map(|lba| Range::new(lba, sectors))
            .filter(|range| !range.is_empty() && seen.overlapping(*range).next().is_none())
            .ok_or(RangesError::Invalid)?;
        seen.insert(range, Uniform(()));
        ranges.push(range);
        at = range.end() as i64;
    }
    if rest.is_empty() { Ok(ranges) } else { Err(RangesError::Invalid) }
}

/// Seven bits a byte, the lowest first, the highest bit set in all but the last.
fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    // Addresses and distances are below 2^55, which is eight times seven bits.
    for shift in (0..56).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            // One encoding for each number.
            return (*byte != 0 || shift == 0).then_some(number);
        }
    }
    None
}
