//! Which sectors of a volume lie where: in its segments, or in objects staged for it.
//!
//! [`Map`] has all of it in memory; an entry takes 40 bytes besides the tree around it. [`Tree`] has in
//! memory what the newest segments say, and the rest in objects, of which it reads pages when it needs
//! them: a log-structured merge of extents, whose memory does not grow with what is mapped.
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

use super::segment::Piece;
use crate::block::{Range, SECTOR_BYTES};
use crate::extent::ExtentMap;
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
pub enum What {
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
    pub what: What,
    /// Which bytes of the object.
    pub bytes: std::ops::Range<u64>,
}

/// The map of one volume. What is not in it is a hole.
#[derive(Clone, Debug, Default)]
pub struct Map {
    entries: ExtentMap<Place>,
    data_sectors: u64,
}

impl Map {
    /// An empty map.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the whole volume is a hole.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of data that it refers to; zeroes do not count.
    #[must_use]
    pub fn mapped_bytes(&self) -> u64 {
        self.data_sectors.saturating_mul(SECTOR_BYTES)
    }

    /// What a record of a segment does to the map.
    pub fn apply(&mut self, segment: u64, piece: &Piece) {
        self.replace(piece.range, Place::of(segment, piece));
    }

    /// Maps `range`, or makes it a hole.
    pub fn replace(&mut self, range: Range, place: Option<Place>) {
        let before: u64 = self.data_sectors_in(range);
        self.data_sectors -= before;
        match place {
            Some(place) => {
                if !place.is_zero() {
                    self.data_sectors += range.sectors;
                }
                self.entries.insert(range, place);
            }
            None => self.entries.remove(range),
        }
    }

    fn data_sectors_in(&self, range: Range) -> u64 {
        let data = self.entries.overlapping(range).filter(|(_, place)| !place.is_zero());
        data.map(|(part, _)| part.sectors).sum()
    }

    /// `range` in order and without gaps; `None` for holes.
    pub fn cover(&self, range: Range) -> impl Iterator<Item = (Range, Option<Place>)> + '_ {
        self.entries.cover(range)
    }

    /// Entries in order, from the one that holds or follows `lba`.
    pub fn iter_from(&self, lba: u64) -> impl Iterator<Item = (Range, Place)> + '_ {
        self.entries.iter_from(lba).map(|(range, place)| (range, *place))
    }
}

#[cfg(test)]
mod random;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::{STAGED_BIT, Seq, StagedData};
    use crate::record::Kind;

    fn apply(map: &mut Map, segment: u64, kind: Kind, range: Range, seq: Seq, offset: u32) {
        map.apply(segment, &Piece { kind, range, seq, offset, staged: None, packed_bytes: 0 });
    }

    #[test]
    fn staged_runs_lie_in_their_object() {
        let mut map = Map::new();
        let object = STAGED_BIT | 9;
        let staged = Some(StagedData { object, offset: 640, record: Range::new(16, 64) });
        let range = Range::new(24, 8);
        map.apply(
            3,
            &Piece { kind: Kind::Staged, range, seq: 7, offset: 128, staged, packed_bytes: 0 },
        );
        apply(&mut map, 4, Kind::Data, Range::new(20, 6), 8, 128);
        let (part, place) = map.iter_from(26).next().unwrap();
        assert_eq!((part, place.skip()), (Range::new(26, 6), 10));
        assert!(place.is_staged());
        assert_eq!((place.segment(), place.seq(), place.offset()), (object, object, 640));
        assert_eq!(place.record(part.lba), Range::new(16, 64));
        assert_eq!(map.mapped_bytes(), 12 * SECTOR_BYTES);
    }

    #[test]
    fn counts_data_only() {
        let mut map = Map::new();
        apply(&mut map, 1, Kind::Data, Range::new(0, 100), 1, 128);
        apply(&mut map, 1, Kind::Zero, Range::new(50, 100), 2, 999);
        assert_eq!(map.mapped_bytes(), 50 * SECTOR_BYTES);
        apply(&mut map, 2, Kind::Data, Range::new(40, 20), 3, 128);
        assert_eq!(map.mapped_bytes(), 60 * SECTOR_BYTES);
        apply(&mut map, 2, Kind::Discard, Range::new(0, 1 << 40), 4, 999);
        assert_eq!((map.mapped_bytes(), map.is_empty()), (0, true));
    }

    #[test]
    fn parts_of_a_record_remember_the_whole() {
        let mut map = Map::new();
        apply(&mut map, 7, Kind::Data, Range::new(10, 100), 5, 128);
        apply(&mut map, 8, Kind::Data, Range::new(40, 8), 6, 200);
        let parts: Vec<_> = map.cover(Range::new(30, 30)).collect();
        let records: Vec<_> =
            parts.iter().map(|(part, place)| (part.lba, place.unwrap().record(part.lba))).collect();
        assert_eq!(
            records,
            [(30, Range::new(10, 100)), (40, Range::new(40, 8)), (48, Range::new(10, 100))]
        );
    }

    #[test]
    fn neighbours_of_different_records_stay_apart() {
        let mut map = Map::new();
        apply(&mut map, 1, Kind::Data, Range::new(0, 8), 1, 128);
        apply(&mut map, 1, Kind::Data, Range::new(8, 8), 2, 5000);
        apply(&mut map, 1, Kind::Zero, Range::new(16, 8), 3, 0);
        apply(&mut map, 1, Kind::Zero, Range::new(24, 1 << 30), 4, 0);
        assert_eq!(map.len(), 3);
    }
}
