//! The dirty map: the place of the newest content of each range, as long as the journal has it.
//!
//! Entries hold only journal addresses. The journal knows whether an address is still readable: in
//! memory, on disk, or recycled. An entry with a recycled address counts as absent. The map drops
//! such entries a few at a time.

use crate::block::{BlockState, Range, Seq};
use crate::extent::{Extent, ExtentMap};
use crate::record::{Header, Kind};

/// Where a run of sectors lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordPlace {
    /// Address of the record.
    pub addr: u64,
    /// Number of the record.
    pub seq: Seq,
    /// Sectors of a data or packed record: at most [`crate::record::MAX_RECORD_SECTORS`].
    record_sectors: u16,
    /// How far into such a record the run starts.
    skip: u16,
    kind: Kind,
    /// Bytes of a packed record, little-endian.
    packed_bytes: [u8; 3],
}

// A gigabyte of journal in 4 KiB writes is 262,144 of them.
const _: () = assert!(size_of::<RecordPlace>() <= 24);
const _: () = assert!(crate::record::MAX_RECORD_SECTORS <= u16::MAX as u64);

impl RecordPlace {
    /// The place of all of a record.
    pub fn new(addr: u64, header: &Header) -> RecordPlace {
        let Header { kind, seq, range, .. } = *header;
        let record_sectors = if kind.is_marker() { 0 } else { range.sectors as u16 };
        let bytes = if kind == Kind::Packed { header.record_bytes() as u32 } else { 0 };
        let [a, b, c, _] = bytes.to_le_bytes();
        RecordPlace { addr, seq, record_sectors, skip: 0, kind, packed_bytes: [a, b, c] }
    }

    /// Bytes of a packed record; otherwise 0.
    pub fn packed_bytes(&self) -> usize {
        let [a, b, c] = self.packed_bytes;
        u32::from_le_bytes([a, b, c, 0]) as usize
    }

    /// The record's kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The range of the data or packed record that holds `part`.
    pub fn record(&self, part: Range) -> Range {
        Range::new(part.lba - u64::from(self.skip), self.record_sectors.into())
    }

    /// The state for a status query.
    pub fn state(&self) -> BlockState {
        match self.kind {
            Kind::Data | Kind::Staged | Kind::Packed => BlockState::Data,
            Kind::Zero => BlockState::Zero,
            Kind::Discard => BlockState::Hole,
        }
    }
}

impl Extent for RecordPlace {
    fn skip(&self, sectors: u64) -> Self {
        match self.kind {
            Kind::Data | Kind::Packed => RecordPlace { skip: self.skip + sectors as u16, ..*self },
            Kind::Discard | Kind::Zero | Kind::Staged => *self,
        }
    }

    fn continues(&self, sectors: u64, next: &Self) -> bool {
        *next == self.skip(sectors)
    }
}

/// Entries to look at for each new record. That keeps stale entries below a third of the rest, even
/// if each record makes one stale.
const SWEEP_STEP: usize = 4;
/// Records between two looks, so that the search for the place in the map costs little.
const SWEEP_EVERY: usize = 64;
/// Entries to look at in one go when the map is full.
const SWEEP_FULL: usize = 1024;

/// A bounded map from ranges to places.
#[derive(Clone, Debug, Default)]
pub struct DirtyMap {
    map: ExtentMap<RecordPlace>,
    sweep_lba: u64,
    /// Records added since the last look.
    added: usize,
    /// The lowest readable address at the last look.
    gone: u64,
    /// Ends of the map that the sweep still has to reach to have seen every entry since `gone`
    /// moved.
    laps: u8,
    /// A whole sweep found nothing to drop below this address.
    swept_for: u64,
}

impl DirtyMap {
    /// Number of entries.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Maps a record and drops some entries below `gone`.
    pub fn insert(&mut self, range: Range, place: RecordPlace, gone: u64) {
        self.map.insert(range, place);
        self.added += 1;
        if self.added < SWEEP_EVERY {
            return;
        }
        self.added = 0;
        if gone != self.gone {
            self.gone = gone;
            self.laps = 2;
        }
        if self.laps > 0 && self.sweep(SWEEP_STEP * SWEEP_EVERY, gone) {
            self.laps -= 1;
        }
    }

    /// Forgets the part of `range` that lies in the record at `addr`.
    pub fn forget(&mut self, range: Range, addr: u64) {
        self.map.remove_if(range, |place| place.addr == addr);
    }

    /// Whether the map may take `records` more records. Makes room by dropping entries below
    /// `clean`.
    pub fn make_room(&mut self, records: u64, max: u64, clean: u64) -> bool {
        // An insertion cuts at most one entry in two. If the need is above the limit, the map has
        // room once it is empty.
        let need = (2 * records).min(max);
        let full = |map: &ExtentMap<RecordPlace>| map.len() as u64 + need > max;
        if !full(&self.map) {
            return true;
        }
        if self.swept_for >= clean {
            return false;
        }
        let laps = self.map.len() / SWEEP_FULL + 2;
        for _ in 0..laps {
            self.sweep(SWEEP_FULL, clean);
            if !full(&self.map) {
                return true;
            }
        }
        self.swept_for = clean;
        false
    }

    /// Looks at `count` entries and drops those below `limit`; true if that reached the end.
    fn sweep(&mut self, count: usize, limit: u64) -> bool {
        let next = self.map.sweep(self.sweep_lba, count, |place| place.addr < limit);
        self.sweep_lba = next.unwrap_or(0);
        next.is_none()
    }

    /// `range` in order and without gaps; entries below `gone` are absent.
    pub fn cover(
        &self,
        range: Range,
        gone: u64,
    ) -> impl Iterator<Item = (Range, Option<RecordPlace>)> + '_ {
        self.map
            .cover(range)
            .map(move |(part, place)| (part, place.filter(|place| place.addr >= gone)))
    }

    /// Like [`DirtyMap::cover`], but without content that only the store can give: staged records
    /// up to number `committed`.
    pub fn newest(
        &self,
        range: Range,
        gone: u64,
        committed: Seq,
    ) -> impl Iterator<Item = (Range, Option<RecordPlace>)> + '_ {
        let here = move |place: &RecordPlace| place.kind != Kind::Staged || place.seq > committed;
        self.cover(range, gone).map(move |(part, place)| (part, place.filter(here)))
    }

    /// Entries at or after `lba` that are not below `tail`.
    pub fn uncommitted(&self, lba: u64, tail: u64) -> impl Iterator<Item = (Range, Seq)> + '_ {
        self.map
            .iter_from(lba)
            .filter(move |(_, place)| place.addr >= tail)
            .map(|(range, place)| (range, place.seq))
    }
}
