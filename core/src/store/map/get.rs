//! The read of a part of a map, and the damage that it finds.

use super::error::MapError;
use super::fragment::{Fragment, FragmentId};
use super::pages::{Key, Part};
use crate::block::Range;

/// The part of a fragment to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FragmentPart {
    /// Its index.
    Index,
    /// Pages that follow each other.
    Pages(std::ops::Range<u32>),
}

/// Bytes of a fragment to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Get {
    /// Which fragment.
    pub fragment: Fragment,
    /// The meaning of the bytes.
    pub what: FragmentPart,
    /// The range of bytes in the object.
    pub bytes: std::ops::Range<u64>,
}

impl Get {
    /// The name of what it reads.
    #[must_use]
    pub fn key(&self) -> Key {
        let part = match &self.what {
            FragmentPart::Index => Part::Index,
            FragmentPart::Pages(pages) => Part::Page(pages.start),
        };
        (self.fragment.id, part)
    }
}

/// A part of a map that the engine cannot read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// In which fragment.
    pub fragment: FragmentId,
    /// The map says nothing about these sectors.
    pub span: Range,
    /// What is wrong.
    pub reason: MapError,
}
