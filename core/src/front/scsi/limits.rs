//! Limits of a logical unit. VPD pages report them, and the checks of commands enforce them.

use crate::block::SECTOR_BYTES;

/// Most tasks of a logical unit, of all nexuses together. Above it, commands end with TASK SET
/// FULL.
pub const MAX_TASKS: usize = 4096;

/// Longest transfer of one command, in bytes (MAXIMUM TRANSFER LENGTH): that of the volume.
pub const MAX_TRANSFER_BYTES: u64 = crate::block::MAX_TRANSFER_BYTES;

/// Longest atomic write, in bytes: the longest that fits one record wherever it begins.
pub const MAX_ATOMIC_BYTES: u64 = crate::record::MAX_WHOLE_SECTORS * SECTOR_BYTES;

/// Most blocks of a COMPARE AND WRITE: the largest value of its field, which is no more than is
/// atomic.
pub(super) const MAX_COMPARE_BLOCKS: u8 = 0xff;

const _: () = assert!(MAX_COMPARE_BLOCKS as u64 * 4096 <= MAX_ATOMIC_BYTES);

/// Most bytes of a WRITE SAME. The pattern is written as data.
pub(super) const MAX_SAME_BYTES: u64 = 32 << 20;

/// Most descriptors of an UNMAP.
pub(super) const MAX_UNMAP_DESCRIPTORS: u32 = 256;

/// Most copies of a unit under way, in the background or not. Above it, commands end with BUSY.
pub(super) const MAX_COPIES: usize = 32;
