//! Versions of blocks, as a version table knows them.

use crate::block::BLOCK_SECTORS;

/// The version of a block: for each sector, a value that only this version has there.
pub type BlockVersion = [u32; BLOCK_SECTORS as usize];

/// The answer to a question for the newest version of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// The newest version.
    Is(BlockVersion),
    /// Nobody knows.
    Unknown,
    /// The answer is not available now. Ask later.
    Later,
}

/// Returns the newest version of a block; blocks count from the start of the volume. Only sealed
/// caches call it.
pub type VersionOf<'a> = &'a mut dyn FnMut(u64) -> Version;
