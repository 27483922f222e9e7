//! What is to be read of a map, and what of it could not be.

use super::error::MapError;
use super::fragment::{Fragment, FragmentId};
use super::pages::{Key, Part};
use crate::block::Range;

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
    pub fn key(&self) -> Key {
        let part = match &self.what {
            FragmentPart::Index => Part::Index,
            FragmentPart::Pages(pages) => Part::Page(pages.start),
        };
        (self.fragment.id, part)
    }
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
