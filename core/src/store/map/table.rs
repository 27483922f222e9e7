//! The part of a map that is not yet in fragments: what the segments since the last flush say.

use super::place::Place;
use crate::block::{MAX_VOLUME_SECTORS, Range, SECTOR_BYTES};
use crate::extent::ExtentMap;
use crate::store::segment::Piece;

/// Memory of an entry, in bytes: 48 in a B-tree whose nodes are two thirds full. `longhaul-lab
/// bench-map` prints what a table takes.
const ENTRY_BYTES: u64 = 72;

/// The places of sectors by the newest segments. A hole is an entry too: it hides older parts of
/// the map. For sectors without an entry the older parts count.
#[derive(Clone, Debug, Default)]
pub struct Table {
    entries: ExtentMap<Option<Place>>,
    data_sectors: u64,
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

    /// Bytes of data that it refers to; neither holes nor zeroes.
    #[must_use]
    pub fn mapped_bytes(&self) -> u64 {
        self.data_sectors.saturating_mul(SECTOR_BYTES)
    }

    /// Applies a record of a segment to the map.
    pub fn apply(&mut self, segment: u64, piece: &Piece) {
        self.replace(piece.range, Place::of(segment, piece));
    }

    /// Maps `range`, or makes it a hole.
    pub fn replace(&mut self, range: Range, place: Option<Place>) {
        let data = |place: &Option<Place>| place.is_some_and(|place| !place.is_zero());
        let before = self.entries.overlapping(range).filter(|(_, place)| data(place));
        self.data_sectors -= before.map(|(part, _)| part.sectors).sum::<u64>();
        self.data_sectors += if data(&place) { range.sectors } else { 0 };
        self.entries.insert(range, place);
    }

    /// Joins this table and a newer one.
    #[must_use]
    pub fn overwritten_by(mut self, newer: Table) -> Table {
        if self.is_empty() {
            return newer;
        }
        for (range, place) in newer.iter_from(0) {
            self.replace(range, place);
        }
        self
    }

    /// Drops entries about data of segments up to that one.
    pub fn forget_through(&mut self, segment: u64) {
        let mut dropped = 0;
        let old = |place: &Option<Place>| {
            place.is_some_and(|place| {
                !place.is_zero() && !place.is_staged() && place.segment() <= segment
            })
        };
        for (range, place) in self.entries.iter_from(0) {
            dropped += if old(place) { range.sectors } else { 0 };
        }
        self.data_sectors -= dropped;
        self.entries.remove_if(Range::new(0, MAX_VOLUME_SECTORS), old);
    }

    /// The entries for `range`, in order, without the parts that have none.
    pub fn overlapping(&self, range: Range) -> impl Iterator<Item = (Range, Option<Place>)> + '_ {
        self.entries.overlapping(range)
    }

    /// Entries in order, from the one that holds or follows `lba`.
    pub fn iter_from(&self, lba: u64) -> impl Iterator<Item = (Range, Option<Place>)> + '_ {
        self.entries.iter_from(lba).map(|(range, place)| (range, *place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::{STAGED_BIT, Seq, StagedData};
    use crate::record::Kind;

    fn apply(map: &mut Table, segment: u64, kind: Kind, range: Range, seq: Seq, offset: u32) {
        map.apply(segment, &Piece { kind, range, seq, offset, staged: None, packed_bytes: 0 });
    }

    #[test]
    fn staged_runs_lie_in_their_object() {
        let mut map = Table::new();
        let object = STAGED_BIT | 9;
        let staged = Some(StagedData { object, offset: 640, record: Range::new(16, 64) });
        let range = Range::new(24, 8);
        map.apply(
            3,
            &Piece { kind: Kind::Staged, range, seq: 7, offset: 128, staged, packed_bytes: 0 },
        );
        apply(&mut map, 4, Kind::Data, Range::new(20, 6), 8, 128);
        let (part, place) = map.iter_from(26).next().unwrap();
        let place = place.unwrap();
        assert_eq!((part, place.skip()), (Range::new(26, 6), 10));
        assert!(place.is_staged());
        assert_eq!((place.segment(), place.seq(), place.offset()), (object, object, 640));
        assert_eq!(place.record(part.lba), Range::new(16, 64));
        assert_eq!(map.mapped_bytes(), 12 * SECTOR_BYTES);
    }

    #[test]
    fn counts_data_only() {
        let mut map = Table::new();
        apply(&mut map, 1, Kind::Data, Range::new(0, 100), 1, 128);
        apply(&mut map, 1, Kind::Zero, Range::new(50, 100), 2, 999);
        assert_eq!(map.mapped_bytes(), 50 * SECTOR_BYTES);
        apply(&mut map, 2, Kind::Data, Range::new(40, 20), 3, 128);
        assert_eq!(map.mapped_bytes(), 60 * SECTOR_BYTES);
        apply(&mut map, 2, Kind::Discard, Range::new(0, 1 << 40), 4, 999);
        assert_eq!((map.mapped_bytes(), map.len()), (0, 1), "a hole hides what older parts say");
    }

    #[test]
    fn parts_of_a_record_remember_the_whole() {
        let mut map = Table::new();
        apply(&mut map, 7, Kind::Data, Range::new(10, 100), 5, 128);
        apply(&mut map, 8, Kind::Data, Range::new(40, 8), 6, 200);
        let records: Vec<_> = map
            .overlapping(Range::new(30, 30))
            .map(|(part, place)| (part.lba, place.unwrap().record(part.lba)))
            .collect();
        assert_eq!(
            records,
            [(30, Range::new(10, 100)), (40, Range::new(40, 8)), (48, Range::new(10, 100))]
        );
    }

    #[test]
    fn neighbours_of_different_records_stay_apart() {
        let mut map = Table::new();
        apply(&mut map, 1, Kind::Data, Range::new(0, 8), 1, 128);
        apply(&mut map, 1, Kind::Data, Range::new(8, 8), 2, 5000);
        apply(&mut map, 1, Kind::Zero, Range::new(16, 8), 3, 0);
        apply(&mut map, 1, Kind::Zero, Range::new(24, 1 << 30), 4, 0);
        assert_eq!(map.len(), 3);
    }
}
