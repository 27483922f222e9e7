//! Limits of frames and messages.
//!
//! [`ToHost::Changed`]: super::ToHost::Changed
//! [`ToHost::Damaged`]: super::ToHost::Damaged
//! [`ToHost::Status`]: super::ToHost::Status
//! [`ToStore::Announce`]: super::ToStore::Announce
//! [`ToStore::Read`]: super::ToStore::Read

use crate::block::{BLOCK_BYTES, BLOCK_SECTORS, MAX_STAGE_SECTORS, Range};
use crate::record::{MAX_RECORD_BYTES, packed};

/// Bytes before the head.
pub const FRAME_PREFIX_BYTES: usize = 8;
/// Largest head, in bytes.
pub const MAX_HEAD_BYTES: usize = 256 << 10;
/// Largest payload, in bytes. A batch, or a read of [`MAX_READ_SECTORS`], has to fit. In the read
/// every sector may come from another record, with a block and a checksum of its own, or a record
/// of one block.
pub const MAX_PAYLOAD_BYTES: usize = MAX_BATCH_BYTES + (256 << 10);
/// Largest batch, in bytes of records.
pub const MAX_BATCH_BYTES: usize = 8 << 20;
/// The target size of the records of a batch, and of a segment, in bytes. A request to a bucket
/// costs the same whatever its size, so these have 4 MiB of data and some reserve. The reserve has
/// room for the headers of blocks of 4 KiB, an eightieth. It has room for the next frame of a
/// journal, which did not fit. It also pays for the objects of the map, about one for each fifteen
/// segments.
pub const BATCH_BYTES: usize = 5 << 20;
/// Longest range of one [`ToStore::Read`], in sectors (1 MiB).
pub const MAX_READ_SECTORS: u64 = 2048;
/// Most entries of one [`ToStore::Announce`].
pub const MAX_ANNOUNCE_ENTRIES: usize = 4096;
/// Most runs of one [`ToHost::Status`].
pub const MAX_STATUS_RUNS: usize = 4096;
/// Most ranges of one [`ToHost::Changed`].
pub const MAX_CHANGED_RANGES: usize = 8192;
/// Most ranges of one [`ToHost::Damaged`].
pub const MAX_DAMAGED_RANGES: usize = 1024;
/// Longest volume name, in bytes.
pub const MAX_NAME_BYTES: usize = 255;
/// Largest attribute of a volume, in bytes.
pub const MAX_ATTRIBUTE_BYTES: usize = 192 << 10;

const _: () = assert!(MAX_ATTRIBUTE_BYTES + 1024 <= MAX_HEAD_BYTES, "an attribute fits a head");

const _: () =
    assert!(MAX_STAGE_SECTORS as usize * 16 + 64 <= MAX_HEAD_BYTES, "postcard takes ≤ 16 B a run");

const _: () = assert!(MAX_READ_SECTORS as usize * (BLOCK_BYTES as usize + 4) <= MAX_PAYLOAD_BYTES);
const _: () = assert!(
    MAX_READ_SECTORS as usize * packed::bytes_max(Range::new(0, BLOCK_SECTORS))
        <= MAX_PAYLOAD_BYTES
);
const _: () = assert!(MAX_RECORD_BYTES <= MAX_BATCH_BYTES, "any record fits a batch");
const _: () =
    assert!(MAX_ANNOUNCE_ENTRIES * 30 <= MAX_HEAD_BYTES, "postcard takes ≤ 30 B an entry");

const _: () =
    assert!(MAX_CHANGED_RANGES * 20 + 64 <= MAX_HEAD_BYTES, "postcard takes ≤ 20 B a range");

const _: () =
    assert!(MAX_DAMAGED_RANGES * 20 + 64 <= MAX_HEAD_BYTES, "postcard takes ≤ 20 B a range");
