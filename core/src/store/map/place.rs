//! Where the data of a run of sectors lies.

use crate::block::{BLOCK_SECTORS, Range, SECTOR_BYTES, STAGED_BIT, Seq, StagedData};
use crate::extent::Extent;
use crate::record::packed::{MAX_PACKED_BYTES, MAX_PACKED_SECTORS};
use crate::record::{Kind, MAX_RECORD_SECTORS};
use crate::store::segment::Piece;

/// The place of the data of a run of sectors, with the facts about its record that locate the
/// checksums.
///
/// If bit 63 of a number is set, it is the number of a staged object and not of a segment. Then
/// `seq` has the same number, because records of staged objects carry it.
///
/// `shape` says which part of which record the run is. For a data record it has the sectors before
/// the run (16 bits) and the sectors of the record (15 bits). For a packed record the highest bit
/// is set. Its fields are the sectors before the run (7 bits), the sectors of the record less one
/// (7 bits), and its bytes (17 bits). All fields begin at the lowest bit.
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
    /// Zeroed sectors.
    pub const ZERO: Place = Place { segment: 0, seq: 0, offset: 0, shape: 0 };

    /// The run that begins `skip` sectors into a data record of `sectors` sectors, which begins at
    /// byte `offset` of segment `segment`. `None` if no record can be that.
    #[must_use]
    pub fn new(segment: u64, seq: Seq, offset: u32, skip: u64, sectors: u64) -> Option<Place> {
        let possible = segment > 0 && sectors <= MAX_RECORD_SECTORS && skip < sectors;
        let shape = (sectors as u32) << 16 | skip as u32;
        possible.then_some(Place { segment, seq, offset, shape })
    }

    /// All of a packed record about `sectors` sectors, `bytes` bytes long. `None` if no record can
    /// be that.
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
        possible.then(|| {
            let shape = PACKED | (bytes as u32) << 14 | (sectors as u32 - 1) << 7;
            Place { segment, seq, offset, shape }
        })
    }

    /// Where a record of segment `segment` puts what it is about; `None` for a hole.
    #[must_use]
    pub fn of(segment: u64, piece: &Piece) -> Option<Place> {
        let Piece { range, seq, offset, .. } = *piece;
        match (piece.kind, &piece.staged) {
            (Kind::Discard, _) => None,
            (Kind::Zero, _) => Some(Place::ZERO),
            (_, Some(staged)) => Place::staged(range.lba, staged),
            (Kind::Packed, None) => {
                Place::packed(segment, seq, offset, range.sectors, piece.record_bytes())
            }
            (_, None) => Place::new(segment, seq, offset, 0, range.sectors),
        }
    }

    /// Whether this can be where the data of `range` lies, as far as the place itself can tell.
    #[must_use]
    pub fn can_hold(self, range: Range) -> bool {
        let left = self.record_sectors().saturating_sub(self.skip());
        self.is_zero()
            || range.sectors <= left
                && range.lba >= self.skip()
                && (!self.is_staged() || self.seq == self.segment)
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

    /// The same run after a move that cut its record. The new record has `sectors` sectors, or
    /// `packed_bytes` bytes if it is packed, and begins at byte `at`. The run is `skip` sectors
    /// from that beginning. `None` if no record can have this form.
    #[must_use]
    pub fn moved(self, at: u32, skip: u64, sectors: u64, packed_bytes: usize) -> Option<Place> {
        let place = match (self.packed_bytes(), packed_bytes) {
            (0, 0) => return Place::new(self.segment, self.seq, at, skip, sectors),
            (0, _) | (_, 0) => return None,
            _ => Place::packed(self.segment, self.seq, at, sectors, packed_bytes)?,
        };
        (skip < sectors).then(|| Extent::skip(&place, skip))
    }

    /// Whether the data lies in a staged object.
    #[must_use]
    pub fn is_staged(self) -> bool {
        self.segment & STAGED_BIT != 0
    }

    /// The stored bytes of `sectors` sectors of the run.
    #[must_use]
    pub fn stored_bytes(self, sectors: u64) -> u64 {
        match self.packed_bytes() as u64 {
            0 => sectors * SECTOR_BYTES + sectors.div_ceil(BLOCK_SECTORS) * 4,
            // An estimate by the share of its sectors: this place does not know its blocks.
            packed => packed * sectors / self.record_sectors().max(1),
        }
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
        // An entry is never longer than its record, so the sum stays below the record's sectors,
        // and in its bits.
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

/// A map in which holes are entries too: `None` says that nothing is there, whatever an older map
/// says.
impl Extent for Option<Place> {
    fn skip(&self, sectors: u64) -> Self {
        self.map(|place| Extent::skip(&place, sectors))
    }

    fn continues(&self, sectors: u64, next: &Self) -> bool {
        match (self, next) {
            (None, None) => true,
            (Some(place), Some(next)) => place.continues(sectors, next),
            _ => false,
        }
    }
}
