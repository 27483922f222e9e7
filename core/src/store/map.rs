//! Which sectors of a volume lie where: in its segments, or in objects staged for it.
//!
//! An entry takes 40 bytes besides the tree around it. Callers look up ranges in bounded steps and
//! walk the whole only with a cursor, so that a map that is not all in memory can take this one's
//! place.

use super::segment::Piece;
use crate::block::{Range, SECTOR_BYTES, STAGED_BIT, Seq, StagedData};
use crate::extent::{Extent, ExtentMap};
use crate::record::{Kind, MAX_RECORD_SECTORS};

/// Where the data of a run of sectors lies, and enough of its record to find the checksums.
///
/// A number with bit 63 set is that of a staged object instead of a segment, and then the number of
/// the write is the same: records of staged objects carry it.
///
/// Invariant: segment 0, which does not exist, stands for zeroes; then the rest is 0 too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    segment: u64,
    seq: Seq,
    offset: u32,
    skip: u16,
    sectors: u16,
}

const _: () = assert!(size_of::<Place>() + 2 * size_of::<u64>() <= 40);
const _: () = assert!(MAX_RECORD_SECTORS <= u16::MAX as u64);

impl Place {
    /// Sectors that were zeroed.
    pub const ZERO: Place = Place { segment: 0, seq: 0, offset: 0, skip: 0, sectors: 0 };

    /// The run that begins `skip` sectors into a data record of `sectors` sectors, which begins at
    /// byte `offset` of segment `segment`. `None` if no record can be that.
    #[must_use]
    pub fn new(segment: u64, seq: Seq, offset: u32, skip: u64, sectors: u64) -> Option<Place> {
        let possible = segment > 0 && sectors <= MAX_RECORD_SECTORS && skip < sectors;
        possible.then_some(Place {
            segment,
            seq,
            offset,
            skip: skip as u16,
            sectors: sectors as u16,
        })
    }

    /// The run at `lba` of a staged record. `None` if it does not hold that sector.
    #[must_use]
    pub fn staged(lba: u64, staged: &StagedData) -> Option<Place> {
        let StagedData { object, offset, record } = *staged;
        Place::new(object, object, offset, lba.checked_sub(record.lba)?, record.sectors)
    }

    /// Whether the data lies in a staged object.
    #[must_use]
    pub fn is_staged(self) -> bool {
        self.segment & STAGED_BIT != 0
    }

    /// Whether these are zeroes.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self.segment == 0
    }

    /// Number of the segment, or of the staged object.
    #[must_use]
    pub fn segment(self) -> u64 {
        self.segment
    }

    /// Number of the write.
    #[must_use]
    pub fn seq(self) -> Seq {
        self.seq
    }

    /// Byte of the segment at which the record begins.
    #[must_use]
    pub fn offset(self) -> u32 {
        self.offset
    }

    /// Sectors from the beginning of the record to this run.
    #[must_use]
    pub fn skip(self) -> u64 {
        u64::from(self.skip)
    }

    /// Sectors of the whole record.
    #[must_use]
    pub fn record_sectors(self) -> u64 {
        u64::from(self.sectors)
    }

    /// The range of the record, given where this run begins.
    #[must_use]
    pub fn record(self, lba: u64) -> Range {
        Range::new(lba.saturating_sub(self.skip()), self.record_sectors())
    }
}

impl Extent for Place {
    fn skip(&self, sectors: u64) -> Self {
        if self.is_zero() {
            return *self;
        }
        // An entry is never longer than its record, so the sum stays below `sectors`.
        Place { skip: self.skip.saturating_add(sectors as u16), ..*self }
    }

    fn continues(&self, sectors: u64, next: &Self) -> bool {
        if self.is_zero() {
            next.is_zero()
        } else {
            next == &Extent::skip(self, sectors) && sectors <= MAX_RECORD_SECTORS
        }
    }
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
        let Piece { range, seq, offset, .. } = *piece;
        let place = match (piece.kind, &piece.staged) {
            (Kind::Discard, _) => None,
            (Kind::Zero, _) => Some(Place::ZERO),
            (_, Some(staged)) => Place::staged(range.lba, staged),
            (_, None) => Place::new(segment, seq, offset, 0, range.sectors),
        };
        self.replace(range, place);
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
mod tests {
    use super::*;

    fn apply(map: &mut Map, segment: u64, kind: Kind, range: Range, seq: Seq, offset: u32) {
        map.apply(segment, &Piece { kind, range, seq, offset, staged: None });
    }

    #[test]
    fn staged_runs_lie_in_their_object() {
        let mut map = Map::new();
        let object = STAGED_BIT | 9;
        let staged = Some(StagedData { object, offset: 640, record: Range::new(16, 64) });
        let range = Range::new(24, 8);
        map.apply(3, &Piece { kind: Kind::Staged, range, seq: 7, offset: 128, staged });
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
