//! Formats and limits of the parameter lists of copies and of tokens. VPD page 8Fh reports the
//! limits.

use crate::block::MAX_WATCHES;

/// Service action of EXTENDED COPY(LID1).
pub(super) const EXTENDED_COPY: u8 = 0x00;

/// Most CSCD descriptors in a list. Initiators name fewer; each takes 32 bytes.
pub(super) const MAX_DESCRIPTORS: usize = 16;

/// Most segments of a list: as many as fit in 8 KiB.
pub(super) const MAX_SEGMENTS: usize = 256;

/// Longest list of descriptors, in bytes.
pub(super) const MAX_LIST_BYTES: usize =
    MAX_DESCRIPTORS * DESCRIPTOR_BYTES + MAX_SEGMENTS * SEGMENT_BYTES;

/// Most bytes of a segment: the largest value of its field with the longest blocks.
pub(super) const MAX_SEGMENT_BYTES: u32 = 256 << 20;

const _: () = assert!(u16::MAX as u32 * 4096 <= MAX_SEGMENT_BYTES);

/// Identification descriptor CSCD descriptor.
pub(super) const IDENTIFICATION: u8 = 0xe4;

/// Block device to block device segment descriptor.
pub(super) const BLOCK_TO_BLOCK: u8 = 0x02;

/// Bytes before the descriptors.
pub(super) const HEADER_BYTES: usize = 16;

/// Bytes of a block to block segment descriptor. Its length field does not count the first four.
pub(super) const SEGMENT_BYTES: usize = 28;

pub(super) const SEGMENT_LENGTH: usize = SEGMENT_BYTES - 4;

/// Offset of the device type specific parameters in a CSCD descriptor. Their last three bytes are
/// the block length.
pub(super) const BLOCK_LENGTH_AT: usize = 29;

/// Bytes of a CSCD descriptor (SPC-4, EXTENDED COPY).
pub(super) const DESCRIPTOR_BYTES: usize = 32;

/// Service action of POPULATE TOKEN.
pub(super) const POPULATE: u8 = 0x10;

/// Service action of WRITE USING TOKEN.
pub(super) const WRITE: u8 = 0x11;

/// Bytes of a token.
pub const TOKEN_BYTES: usize = 512;

/// ROD TOKEN LENGTH of such a token.
pub(super) const TOKEN_LENGTH: u16 = 0x01f8;

/// A token.
pub type RodToken = [u8; TOKEN_BYTES];

/// Most tokens of a unit.
pub(super) const MAX_TOKENS: usize = MAX_WATCHES;

/// ROD types (SPC-5): point in time copy, change vulnerable; any point in time; default point in
/// time; block zeroes.
pub(super) const CHANGE_VULNERABLE: u32 = 0x0080_0001;

pub(super) const ANY_POINT_IN_TIME: u32 = 0x0080_ffff;

pub(super) const DEFAULT_POINT_IN_TIME: u32 = 0x0080_0000;

pub(super) const ZEROES: u32 = 0xffff_0001;

/// Inactivity timeouts in seconds: the default, and the longest.
pub(super) const DEFAULT_TIMEOUT: u32 = 30;

pub(super) const MAX_TIMEOUT: u32 = 600;

/// Most ranges of a list.
pub(super) const MAX_RANGES: usize = 256;

/// Offsets in the parameter lists: the ranges in either list, the offset into the represented data,
/// the token.
pub(super) const POPULATE_RANGES_AT: usize = 16;

pub(super) const WRITE_RANGES_AT: usize = 536;

pub(super) const OFFSET_AT: usize = 8;

pub(super) const TOKEN_AT: usize = 16;

/// Bytes of a block device range descriptor.
pub(super) const RANGE_BYTES: usize = 16;

/// Offsets in a token: the CSCD descriptor of its creator, the number of bytes represented, the
/// block length, the random bytes.
pub(super) const CREATOR_AT: usize = 16;

pub(super) const AMOUNT_AT: usize = 48;

pub(super) const SPECIFIC_AT: usize = 96;

pub(super) const RANDOM_AT: usize = 128;

const _: () = assert!(CREATOR_AT + BLOCK_LENGTH_AT < AMOUNT_AT);

/// Service actions of RECEIVE COPY RESULTS and its variants, in the order of VPD page 8Fh.
pub(super) const RECEIVE_ACTIONS: [u8; 5] = [0x00, 0x01, 0x03, 0x04, 0x07];

/// Service actions of EXTENDED COPY and its variants.
pub(super) const COPY_ACTIONS: [u8; 3] = [EXTENDED_COPY, POPULATE, WRITE];
