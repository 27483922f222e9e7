//! The part of a map that is not yet in fragments: what the segments since the last flush say.

use super::place::Place;
use crate::block::Range;
use crate::extent::ExtentMap;
use crate::store::segment::Piece;

/// Memory of an entry, in bytes: 48 in a B-tree whose nodes are two thirds full. `longhaul-lab bench-map`
/// prints what a table takes.
const ENTRY_BYTES: u64 = 72;

/// Which sectors lie where by the newest segments. A hole is an entry too: it hides what older parts
/// of the map say. Sectors without an entry are theirs to tell.
#[derive(Clone, Debug, Default)]
pub struct Table {
    entries: ExtentMap<Option<Place>>,
}

impl Table {
    /// A table that says nothing.
    #[must_use]
    pub fn new() -> Table {
        Table::default()
    }

    /// Number of entries, holes among them.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it says nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of memory that it takes, about.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.entries.len() as u64 * ENTRY_BYTES
    }

    /// What a record of a segment does to the map.
    pub fn apply(&mut self, segment: u64, piece: &Piece) {
        self.replace(piece.range, Place::of(segment, piece));
    }

    /// Maps `range`, or makes it a hole.
    pub fn replace(&mut self, range: Range, place: Option<Place>) {
        self.entries.insert(range, place);
    }

    /// What it says about `range`, in order; parts that it says nothing about are left out.
    pub fn overlapping(&self, range: Range) -> impl Iterator<Item = (Range, Option<Place>)> + '_ {
        self.entries.overlapping(range)
    }

    /// Entries in order, from the one that holds or follows `lba`.
    pub fn iter_from(&self, lba: u64) -> impl Iterator<Item = (Range, Option<Place>)> + '_ {
        self.entries.iter_from(lba).map(|(range, place)| (range, *place))
    }
}
