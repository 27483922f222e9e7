//! Which sectors of a volume lie where: in its segments, or in objects staged for it.
//!
//! An entry takes 40 bytes besides the tree around it. Callers look up ranges in bounded steps and
//! walk the whole only with a cursor, so that a map that is not all in memory can take this one's
//! place.

use super::segment::Piece;
use crate::block::{Range, SECTOR_BYTES, STAGED_BIT, Seq, StagedData};
use crate::extent::{Extent, ExtentMap};
use crate::record::packed::{MAX_PACKED_BYTES, MAX_PACKED_SECTORS};
use crate::record::{Kind, MAX_RECORD_SECTORS};

/// Where the data of a run of sectors lies, and enough of its record to find the checksums.
///
/// A number with bit 63 set is that of a staged object instead of a segment, and then the number of
/// the write is the same: records of staged objects carry it.
///
/// `shape` says which part of what record it is. Of a data record: sectors before the run (16 bits)
/// and sectors of the record (15 bits). Of a packed one, with the highest bit set: sectors before the
/// run (7 bits), sectors of the record less one (7 bits), bytes of the record (17 bits). All from the
/// lowest bit up.
///
/// Invariant: segment 0, which does not exist, stands for zeroes; then the rest is 0 too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    segment: u64,
    seq: Seq,
    offset: u32,
    shape: u32,
}

const PACKED: u32 = 1 << 31;
const _: () = assert!(MAX_PACKED_SECTORS <= 1 << 7 && MAX_PACKED_BYTES < 1 << 17);

const _: () = assert!(size_of::<Place>() + 2 * size_of::<u64>() <= 40);
const _: () = assert!(MAX_RECORD_SECTORS < 1 << 15);

impl Place {
    /// Sectors that were zeroed.
    pub const ZERO: Place = Place { segment: 0, seq: 0, offset: 0, shape: 0 };

    /// The run that begins `skip` sectors into a data record of `sectors` sectors, which begins at
    /// byte `offset` of segment `segment`. `None` if no record can be that.
    #[must_use]
    pub fn new(segment: u64, seq: Seq, offset: u32, skip: u64, sectors: u64) -> Option<Place> {
        let possible = segment > 0 && sectors <= MAX_RECORD_SECTORS && skip < sectors;
        let shape = (sectors as u32) << 16 | skip as u32;
        possible.then_some(Place { segment, seq, offset, shape })
    }

    /// All of a packed record about `sectors` sectors, `bytes` bytes long. `None` if no record can be
    /// that.
    #[must_use]
    pub fn packed(
        segment: u64,
        seq: Seq,
        offset: u32,
        sectors: u64,
        bytes: usize,
    ) -> Option<Place> {
        let possible = segment > 0
            && (1..=MAX_PACKED_SECTORS).contains(&sectors)
            && (1..=MAX_PACKED_BYTES).contains(&bytes);
        let shape = PACKED | (bytes as u32) << 14 | (sectors as u32 - 1) << 7;
        possible.then_some(Place { segment, seq, offset, shape })
    }

    /// As a checkpoint holds it. `None` if no record can be that.
    #[must_use]
    pub fn from_shape(segment: u64, seq: Seq, offset: u32, shape: u32) -> Option<Place> {
        let place = Place { segment, seq, offset, shape };
        let (skip, sectors) = (place.skip(), place.record_sectors());
        if shape & PACKED == 0 {
            return Place::new(segment, seq, offset, skip, sectors);
        }
        Place::packed(segment, seq, offset, sectors, place.packed_bytes())?;
        (skip < sectors && !place.is_staged()).then_some(place)
    }

    /// Which part of what record it is, as a checkpoint holds it.
    #[must_use]
    pub fn shape(self) -> u32 {
        self.shape
    }

    /// Bytes of the record, if it is packed; otherwise 0.
    #[must_use]
    pub fn packed_bytes(self) -> usize {
        if self.shape & PACKED == 0 { 0 } else { (self.shape >> 14 & 0x1_ffff) as usize }
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
        u64::from(if self.shape & PACKED == 0 { self.shape & 0xffff } else { self.shape & 0x7f })
    }

    /// Sectors of the whole record.
    #[must_use]
    pub fn record_sectors(self) -> u64 {
        u64::from(if self.shape & PACKED == 0 {
            self.shape >> 16
        } else {
            (self.shape >> 7 & 0x7f) + 1
        })
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
        // An entry is never longer than its record, so the sum stays below the record's sectors, and
        // in its bits.
        Place { shape: self.shape.wrapping_add(sectors as u32), ..*self }
    }

    fn continues(&self, sectors: u64, next: &Self) -> bool {
        if self.is_zero() {
            next.is_zero()
        } else {
            sectors < self.record_sectors().saturating_sub(Place::skip(*self))
                && next == &Extent::skip(self, sectors)
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
            (Kind::Packed, None) => {
                Place::packed(segment, seq, offset, range.sectors, piece.record_bytes())
            }
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
