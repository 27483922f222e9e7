//! What bounds a map.
//!
//! [`Tree`]: super::Tree

use super::fragment::FRAGMENT_BYTES;
use super::page::PAGE_BYTES;

/// What bounds a [`Tree`]. Besides its table, which its owner bounds by freezing it, and the cache, it
/// takes the memory of a flush and a merge: three times `fragment_bytes` each, and for the merge a chunk
/// of pages twice `runs` and one more times.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most bytes of a page; at most [`PAGE_BYTES`].
    pub page_bytes: usize,
    /// A fragment with so many bytes of pages is full.
    pub fragment_bytes: u64,
    /// So many flushes are merged into level 1. A lookup looks at each.
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
