//! A bundle: an immutable object with runs of records that garbage collection moved out of segments
//! (`docs/formats.md`).
//!
//! ```text
//! ┌────────┬────────────────────────────────────────────┬──────────────────────┐
//! │ header │ index: segment, offset, run → where it is  │ records, back to back │
//! │ 64 B   │ 24 B each, in order                        │                      │
//! └────────┴────────────────────────────────────────────┴──────────────────────┘
//! ```
//!
//! A record in a bundle keeps its epoch, number and checksums, and covers a part of its former
//! sectors. A reader that looks for a run by its [`Place`] gets the [`Place`] of the record in the
//! bundle. It reads and verifies that place like one in a segment.

use crate::block::{self, BLOCK_SECTORS, VolumeId};
use crate::record::packed::MAX_PACKED_BYTES;
use crate::record::{self, Kind, MAX_RECORD_SECTORS, Record};
use crate::store::map::{MapError, Place};
use bytes::{BufMut, Bytes, BytesMut};
use std::ops::Range;
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of the format.
pub const BUNDLE_VERSION: u16 = 1;
/// Bytes of a header.
pub const HEADER_BYTES: usize = size_of::<RawHeader>();
/// Bytes of an entry of the index.
pub const ENTRY_BYTES: usize = size_of::<RawEntry>();
/// Most bytes of records: offsets have 32 bits, and a store puts an object whole.
pub const MAX_RECORDS_BYTES: u64 = 128 << 20;

const MAGIC: u32 = u32::from_le_bytes(*b"LHBU");

/// The name of a bundle. No name comes twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BundleId {
    /// The volume whose segments are in it.
    pub volume: VolumeId,
    /// The generation of who wrote it.
    pub generation: u64,
    /// Its number in that generation, from 1.
    pub number: u64,
}

/// The facts about a bundle that a reader needs before it reads the bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bundle {
    /// Its name.
    pub id: BundleId,
    /// Entries of its index.
    pub entries: u32,
}

impl Bundle {
    /// The bytes of the object that are header and index.
    #[must_use]
    pub fn head_range(&self) -> Range<u64> {
        0..HEADER_BYTES as u64 + u64::from(self.entries) * ENTRY_BYTES as u64
    }

    /// Verifies the bytes at [`Bundle::head_range`].
    ///
    /// # Errors
    /// The damage of the bytes.
    pub fn index(&self, bytes: &Bytes) -> Result<Index, MapError> {
        let head = Head::parse(bytes)?;
        if (head.id, head.entries) != (self.id, self.entries) {
            return Err(MapError::Invalid("it is another bundle"));
        }
        if (bytes.len() as u64) < self.head_range().end {
            return Err(MapError::Short);
        }
        Index::new(head, bytes.slice(HEADER_BYTES..self.head_range().end as usize))
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: U32,
    version: U16,
    flags: U16,
    volume: U128,
    generation: U64,
    number: U64,
    entries: U32,
    index_crc: U32,
    records_bytes: U64,
    reserved: U32,
    crc: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawEntry {
    segment: U64,
    /// Of the record in the segment.
    offset: U32,
    /// Of the record in the bundle, from where the records begin.
    at: U32,
    /// Sectors of the record before the run, and of the run.
    first: U16,
    sectors: U16,
    /// Bytes of the record in the bundle if it is packed, or 0.
    packed_bytes: U32,
}

const _: () = assert!(HEADER_BYTES == 64 && ENTRY_BYTES == 24);
const _: () = assert!(MAX_RECORD_SECTORS < 1 << 16 && MAX_PACKED_BYTES < 1 << 32);

/// A moved run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BundleEntry {
    segment: u64,
    offset: u32,
    first: u64,
    sectors: u64,
    at: u32,
    packed_bytes: usize,
}

impl BundleEntry {
    fn key(&self) -> (u64, u32, u64) {
        (self.segment, self.offset, self.first)
    }
}

/// The content of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Its name.
    pub id: BundleId,
    entries: u32,
    index_crc: u32,
    records_bytes: u64,
}

impl Head {
    /// Reads the header at the start of `bytes`.
    ///
    /// # Errors
    /// The damage of the header.
    pub fn parse(bytes: &[u8]) -> Result<Head, MapError> {
        let Ok((raw, _)) = RawHeader::ref_from_prefix(bytes) else { return Err(MapError::Short) };
        if raw.magic.get() != MAGIC {
            return Err(MapError::Magic("bundle"));
        }
        if raw.version.get() != BUNDLE_VERSION {
            return Err(MapError::Version(raw.version.get()));
        }
        if crc32c::crc32c(&bytes[..HEADER_BYTES - 4]) != raw.crc.get() {
            return Err(MapError::Checksum("header"));
        }
        let id = BundleId {
            volume: VolumeId(raw.volume.get()),
            generation: raw.generation.get(),
            number: raw.number.get(),
        };
        let (entries, index_crc) = (raw.entries.get(), raw.index_crc.get());
        let head = Head { id, entries, index_crc, records_bytes: raw.records_bytes.get() };
        let possible = raw.flags.get() == 0
            && entries > 0
            && head.records_bytes <= MAX_RECORDS_BYTES
            && u64::from(entries) <= head.records_bytes;
        if possible { Ok(head) } else { Err(MapError::Invalid("impossible header")) }
    }

    /// The bytes of the object that are the index.
    #[must_use]
    pub fn index_range(&self) -> Range<u64> {
        let start = HEADER_BYTES as u64;
        start..start + u64::from(self.entries) * ENTRY_BYTES as u64
    }

    /// Bytes of the object.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.index_range().end + self.records_bytes
    }
}

/// The index of a bundle, verified.
#[derive(Clone, Debug)]
pub struct Index {
    head: Head,
    bytes: Bytes,
}

impl Index {
    /// Verifies the bytes at [`Head::index_range`].
    ///
    /// # Errors
    /// The damage of the bytes.
    pub fn new(head: Head, bytes: Bytes) -> Result<Index, MapError> {
        let range = head.index_range();
        if bytes.len() as u64 != range.end - range.start {
            return Err(MapError::Short);
        }
        if crc32c::crc32c(&bytes) != head.index_crc {
            return Err(MapError::Checksum("index"));
        }
        let index = Index { head, bytes };
        let mut end = (0, 0, 0);
        for number in 0..head.entries as usize {
            let entry = index.entry(number);
            let last = entry.first + entry.sectors;
            if entry.segment == 0
                || entry.sectors == 0
                || last > MAX_RECORD_SECTORS
                || entry.packed_bytes > MAX_PACKED_BYTES
                || u64::from(entry.at) >= head.records_bytes
                || entry.key() < end
            {
                return Err(MapError::Invalid("impossible index"));
            }
            end = (entry.segment, entry.offset, last);
        }
        Ok(index)
    }

    fn raw(&self) -> &[RawEntry] {
        // The constructor has verified the length.
        <[RawEntry]>::ref_from_bytes(&self.bytes).unwrap_or_default()
    }

    fn entry(&self, number: usize) -> BundleEntry {
        let raw = &self.raw()[number];
        BundleEntry {
            segment: raw.segment.get(),
            offset: raw.offset.get(),
            first: u64::from(raw.first.get()),
            sectors: u64::from(raw.sectors.get()),
            at: raw.at.get(),
            packed_bytes: raw.packed_bytes.get() as usize,
        }
    }

    /// Its name.
    #[must_use]
    pub fn id(&self) -> BundleId {
        self.head.id
    }

    /// Bytes of memory that it takes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Returns the place in the bundle's object of a run of `sectors` sectors, if garbage
    /// collection moved the run here. The number of the write is the same, and the record begins
    /// where the one in the bundle does. The result has the segment of `place`, but its data is in
    /// another object.
    #[must_use]
    pub fn find(&self, place: Place, sectors: u64) -> Option<Place> {
        let run = place.skip()..place.skip().checked_add(sectors)?;
        let (at, first) = self.record(place.segment(), place.offset(), &run)?;
        let entry = self.before(place.segment(), place.offset(), place.skip())?;
        let (at, skip) = (u32::try_from(at).ok()?, place.skip() - first);
        place.moved(at, skip, entry.sectors, entry.packed_bytes)
    }

    /// The bytes of the object at which the record with a run begins, and the sectors of the old
    /// record before it.
    #[must_use]
    pub fn record(&self, segment: u64, offset: u32, run: &Range<u64>) -> Option<(u64, u64)> {
        let entry = self.before(segment, offset, run.start)?;
        let holds = (entry.segment, entry.offset) == (segment, offset)
            && entry.first <= run.start
            && run.end <= entry.first + entry.sectors;
        holds.then(|| (self.head.index_range().end + u64::from(entry.at), entry.first))
    }

    /// The last entry that begins there or before.
    fn before(&self, segment: u64, offset: u32, first: u64) -> Option<BundleEntry> {
        let raw = self.raw();
        let wanted = (segment, offset, first);
        let after = raw.partition_point(|raw| {
            (raw.segment.get(), raw.offset.get(), u64::from(raw.first.get())) <= wanted
        });
        after.checked_sub(1).map(|number| self.entry(number))
    }

    /// The header of the bundle.
    #[must_use]
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// The segments of which there is something in it, in order.
    pub fn segments(&self) -> impl Iterator<Item = u64> + '_ {
        let mut last = 0;
        self.raw().iter().filter_map(move |raw| {
            let segment = raw.segment.get();
            (std::mem::replace(&mut last, segment) != segment).then_some(segment)
        })
    }
}

/// Verifies a whole bundle: its index, and all of its records.
///
/// # Errors
/// The damage. If only records are damaged, their sectors too.
pub fn verify(id: BundleId, object: &Bytes) -> Result<(), (String, Vec<block::Range>)> {
    let whole = |error: MapError| (error.to_string(), Vec::new());
    let head = Head::parse(object).map_err(whole)?;
    if head.id != id {
        return Err(("it is another bundle".to_owned(), Vec::new()));
    }
    if head.bytes() != object.len() as u64 {
        return Err(whole(MapError::Short));
    }
    let range = head.index_range();
    let bytes = object.slice(range.start as usize..range.end as usize);
    let index = Index::new(head, bytes).map_err(whole)?;
    let mut damage: Option<(String, Vec<block::Range>)> = None;
    let mut at = range.end as usize;
    for _ in 0..index.head.entries {
        let rest = &object[at.min(object.len())..];
        let bad = |error: record::RecordError| format!("record at byte {at}: {error}");
        let header =
            record::parse_prefix(id.volume, rest).map_err(|error| (bad(error), Vec::new()))?;
        let bytes = header.record_bytes();
        if bytes > rest.len() {
            return Err(whole(MapError::Short));
        }
        if let Err(error) = record::verify(id.volume, rest) {
            damage.get_or_insert_with(|| (bad(error), Vec::new())).1.push(header.range);
        }
        at += bytes;
    }
    damage.map_or(Ok(()), Err)
}

/// Puts a bundle together.
#[derive(Debug, Default)]
pub struct Builder {
    entries: Vec<BundleEntry>,
    records: BytesMut,
}

impl Builder {
    /// Nothing.
    #[must_use]
    pub fn new() -> Builder {
        Builder::default()
    }

    /// Bytes of records so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.records.len() as u64
    }

    /// Entries that its index will have.
    #[must_use]
    pub fn entries(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds a run of the record at byte `offset` of `segment`. `run` counts sectors from the
    /// beginning of that record. The function adds the sectors that the run needs to end at block
    /// boundaries of the volume. `record` is the record, or the rest of it after an earlier move,
    /// which begins `skip` sectors later. Runs of a record have a block between them.
    ///
    /// # Panics
    /// If the run is not in the record.
    pub fn push(&mut self, segment: u64, offset: u32, run: Range<u64>, record: &Record, skip: u64) {
        let whole = record.header.range;
        let start = whole.lba + run.start - skip;
        let part = block::Range::new(start, run.end - run.start);
        let at = self.records.len() as u32;
        record.encode_part(part, &mut self.records);
        // As `encode_part` has it, which would have panicked.
        let Some(cut) = part.block_cover().intersect(whole) else { return };
        let packed = record.header.kind == Kind::Packed;
        let packed_bytes = if packed { self.records.len() - at as usize } else { 0 };
        let (first, sectors) = (cut.lba - whole.lba + skip, cut.sectors);
        self.entries.push(BundleEntry { segment, offset, first, sectors, at, packed_bytes });
    }

    /// Where it is, for [`Builder::truncate`].
    #[must_use]
    pub fn mark(&self) -> (usize, usize) {
        (self.entries.len(), self.records.len())
    }

    /// Takes back everything that `push` has added since.
    pub fn truncate(&mut self, (entries, records): (usize, usize)) {
        self.entries.truncate(entries);
        self.records.truncate(records);
    }

    /// The object.
    #[must_use]
    pub fn finish(mut self, id: BundleId) -> Vec<Bytes> {
        self.entries.sort_unstable_by_key(BundleEntry::key);
        let mut index = BytesMut::with_capacity(self.entries.len() * ENTRY_BYTES);
        for entry in &self.entries {
            let raw = RawEntry {
                segment: entry.segment.into(),
                offset: entry.offset.into(),
                at: entry.at.into(),
                first: (entry.first as u16).into(),
                sectors: (entry.sectors as u16).into(),
                packed_bytes: (entry.packed_bytes as u32).into(),
            };
            index.extend_from_slice(raw.as_bytes());
        }
        let raw = RawHeader {
            magic: MAGIC.into(),
            version: BUNDLE_VERSION.into(),
            flags: 0.into(),
            volume: id.volume.0.into(),
            generation: id.generation.into(),
            number: id.number.into(),
            entries: (self.entries.len() as u32).into(),
            index_crc: crc32c::crc32c(&index).into(),
            records_bytes: (self.records.len() as u64).into(),
            reserved: 0.into(),
            crc: 0.into(),
        };
        let raw = raw.as_bytes();
        let mut head = BytesMut::with_capacity(HEADER_BYTES + index.len());
        head.extend_from_slice(&raw[..HEADER_BYTES - 4]);
        head.put_u32_le(crc32c::crc32c(&raw[..HEADER_BYTES - 4]));
        head.extend_from_slice(&index);
        vec![head.freeze(), self.records.freeze()]
    }
}

/// Sectors of a run widened to the blocks of the volume that it touches, in a record that begins at
/// `lba`.
#[must_use]
pub fn in_blocks(lba: u64, run: Range<u64>, sectors: u64) -> Range<u64> {
    let before = (lba + run.start) % BLOCK_SECTORS;
    let end = (lba + run.end).next_multiple_of(BLOCK_SECTORS) - lba;
    run.start.saturating_sub(before)..end.min(sectors)
}
