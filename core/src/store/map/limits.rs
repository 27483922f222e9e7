//! Limits of a map.
//!
//! [`Tree`]: super::Tree

use super::fragment::FRAGMENT_BYTES;
use super::page::PAGE_BYTES;

/// Limits of a [`Tree`]. The memory of its table does not count: its owner bounds the table by
/// freezing it. The cache does not count either. A flush and a merge take three times
/// `fragment_bytes` each. The merge also takes a chunk of pages for each of twice `runs` and one
/// more sources.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most bytes of a page; at most [`PAGE_BYTES`].
    pub page_bytes: usize,
    /// A fragment with this number of bytes of pages is full.
    pub fragment_bytes: u64,
    /// At this number of flushes the map merges them into level 1. A lookup reads each flush.
    pub runs: usize,
    /// Bytes that level 1 may have.
    pub level_bytes: u64,
    /// How many times more the next level may have, and so on.
    pub factor: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            page_bytes: PAGE_BYTES,
            fragment_bytes: FRAGMENT_BYTES,
            runs: 4,
            level_bytes: 32 << 20,
            factor: 10,
        }
    }
}
