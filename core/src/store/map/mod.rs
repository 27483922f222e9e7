//! Which sectors of a volume lie where: in its segments, or in objects staged for it.
//!
//! A [`Tree`] has in memory what the newest segments say, and the rest in objects, of which it reads pages
//! when it needs them: a log-structured merge of extents, whose memory does not grow with what is mapped.
//!
//! | module | is |
//! |---|---|
//! | `place` | where a run of sectors lies |
//! | [`table`] | what the newest segments say, in memory |
//! | [`page`] | up to 16 KiB of entries, coded |
//! | [`fragment`] | an immutable object of pages, with their index |
//! | [`levels`] | the fragments of a map, and which to merge next |
//! | [`merge`] | makes fragments of a table, and of fragments |
//! | [`pages`] | the cache of pages and indexes, for all volumes of a store |
//! | [`lookup`] | what a map says about a range |
//! | [`tree`] | a volume's map, with all of that going on |
//!
//! None of them does I/O or deletes anything: they say what is to be read and written, and which
//! fragments a map no longer needs.

pub mod fragment;
pub mod levels;
pub mod lookup;
pub mod merge;
pub mod page;
pub mod pages;
mod place;
pub mod table;
pub mod tree;

pub use place::Place;
pub use tree::Tree;

use crate::block::Range;
use fragment::{FRAGMENT_BYTES, Fragment, FragmentId};
use page::PAGE_BYTES;

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

/// Why bytes are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// The bytes end too soon.
    #[error("cut short")]
    Short,
    /// It is something else.
    #[error("not a {0}")]
    Magic(&'static str),
    /// A later version wrote it.
    #[error("of format version {0}, which needs a newer longhaul")]
    Version(u16),
    /// A checksum does not match.
    #[error("{0} does not match its checksum")]
    Checksum(&'static str),
    /// Intact, but not what it may say.
    #[error("not valid: {0}")]
    Invalid(&'static str),
}

/// Part of a map that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// In which fragment.
    pub fragment: FragmentId,
    /// About these sectors nothing is known.
    pub span: Range,
    /// What is wrong.
    pub reason: MapError,
}

/// Which part of a fragment is to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FragmentPart {
    /// Its index.
    Index,
    /// Pages that follow each other.
    Pages(std::ops::Range<u32>),
}

/// Bytes of a fragment to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Get {
    /// Which fragment.
    pub fragment: Fragment,
    /// What the bytes are.
    pub what: FragmentPart,
    /// Which bytes of the object.
    pub bytes: std::ops::Range<u64>,
}

impl Get {
    /// The name of what it reads.
    #[must_use]
    pub fn key(&self) -> pages::Key {
        let part = match &self.what {
            FragmentPart::Index => pages::Part::Index,
            FragmentPart::Pages(pages) => pages::Part::Page(pages.start),
        };
        (self.fragment.id, part)
    }
}

#[cfg(test)]
mod random;
