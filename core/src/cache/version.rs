//! Versions of blocks, as a table of versions knows them.

use crate::block::BLOCK_SECTORS;

/// Which version of a block it is: for each sector, what only this version has there.
pub type BlockVersion = [u32; BLOCK_SECTORS as usize];

/// What is known of the version of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// This is the newest.
    Is(BlockVersion),
    /// Nobody knows.
    Unknown,
    /// It cannot be said now.
    Later,
}

/// Says which version of a block, numbered from the start of the volume, is the newest. Not asked
/// by caches that are not sealed.
pub type VersionOf<'a> = &'a mut dyn FnMut(u64) -> Version;
