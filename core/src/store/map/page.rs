//! A page: up to 16 KiB of map entries in order, coded for size (`docs/formats.md`).
//!
//! A random write of 4 KiB costs about 11 bytes in a map of 1 TiB, a write that follows the one
//! before it 4. Compressing pages besides does not pay: `longhaul-lab bench-map` measures it.

use super::error::MapError;
use super::place::Place;
use crate::block::{MAX_VOLUME_SECTORS, Range};
use crate::extent::Extent;
use crate::store::announce::{put_varint, take_varint};
use bytes::Bytes;

/// Most bytes of an encoded page.
pub const PAGE_BYTES: usize = 16 << 10;
/// Most bytes of an encoded entry: a tag and seven numbers.
const MAX_ENTRY_BYTES: usize = 1 + 7 * MAX_VARINT_BYTES;
const MAX_VARINT_BYTES: usize = 10;
/// The number of entries.
const HEADER_BYTES: usize = 2;
/// The length of a run that an entry at the beginning of a page leaves out: 4 KiB.
const USUAL_SECTORS: u64 = 8;

const KIND: u8 = 7;
const HOLE: u8 = 0;
const ZERO: u8 = 1;
const DATA: u8 = 2;
const STAGED: u8 = 3;
const PACKED: u8 = 4;
/// Numbers that follow the tag because they are not what the entry before lets one expect.
const GAP: u8 = 1 << 3;
const LENGTH: u8 = 1 << 4;
const PART: u8 = 1 << 5;
const SEGMENT: u8 = 1 << 6;
const SEQ: u8 = 1 << 7;

// An entry has one byte at least, and a page counts them, and places in it, in 16 bits.
const _: () = assert!(PAGE_BYTES - HEADER_BYTES < 1 << 16);

/// A run of sectors and where it lies; `None` for a hole that hides what older fragments say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapEntry {
    /// The run; not empty.
    pub range: Range,
    /// Where it lies.
    pub place: Option<Place>,
}

impl MapEntry {
    /// The part of the entry from `lba` on; `None` if it ends before.
    #[must_use]
    pub fn from(self, lba: u64) -> Option<MapEntry> {
        if lba <= self.range.lba {
            return Some(self);
        }
        self.part(Range::between(lba, self.range.end()))
    }

    /// Itself, if it is about sectors of `span` only, which those of a page are.
    ///
    /// # Errors
    /// [`MapError::Invalid`].
    pub fn within(self, span: Range) -> Result<MapEntry, MapError> {
        let inside = self.range.intersect(span) == Some(self.range);
        if inside { Ok(self) } else { Err(MapError::Invalid("an entry out of place")) }
    }

    /// The part of it in `range`, if there is one.
    #[must_use]
    pub fn part(self, range: Range) -> Option<MapEntry> {
        let part = self.range.intersect(range)?;
        let place = Extent::skip(&self.place, part.lba - self.range.lba);
        Some(MapEntry { range: part, place })
    }
}

/// The entry before, which the code of an entry builds on.
#[derive(Clone, Copy, Debug)]
struct Before {
    end: u64,
    sectors: u64,
    segment: u64,
    seq: u64,
}

impl Before {
    const NOTHING: Before = Before { end: 0, sectors: USUAL_SECTORS, segment: 0, seq: 0 };

    fn next(self, MapEntry { range, place }: MapEntry) -> Before {
        let data = place.filter(|place| !place.is_zero());
        Before {
            end: range.end(),
            sectors: range.sectors,
            segment: data.map_or(self.segment, Place::segment),
            seq: data.map_or(self.seq, Place::seq),
        }
    }
}

/// Encodes a page entry by entry.
#[derive(Debug)]
pub struct Encoder {
    bytes: Vec<u8>,
    limit: usize,
    entries: u16,
    first: u64,
    before: Before,
}

impl Encoder {
    /// An empty page that takes entries up to `limit` bytes, and one in any case; at most
    /// [`PAGE_BYTES`].
    #[must_use]
    pub fn new(limit: usize) -> Encoder {
        let limit = limit.min(PAGE_BYTES);
        let mut bytes = Vec::with_capacity(limit.max(HEADER_BYTES + MAX_ENTRY_BYTES));
        bytes.extend_from_slice(&[0; HEADER_BYTES]);
        Encoder { bytes, limit, entries: 0, first: 0, before: Before::NOTHING }
    }

    /// Number of entries.
    #[must_use]
    pub fn entries(&self) -> u16 {
        self.entries
    }

    /// The first sector of the first entry.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Adds an entry, which begins at or after the end of the one before; says whether there was
    /// room.
    pub fn push(&mut self, entry: MapEntry) -> bool {
        let start = self.bytes.len();
        encode(entry, self.before, &mut self.bytes);
        if self.bytes.len() > self.limit && self.entries > 0 {
            self.bytes.truncate(start);
            return false;
        }
        if self.entries == 0 {
            self.first = entry.range.lba;
        }
        self.entries += 1;
        self.before = self.before.next(entry);
        true
    }

    /// The page.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.bytes[..HEADER_BYTES].copy_from_slice(&self.entries.to_le_bytes());
        self.bytes
    }
}

fn encode(MapEntry { range, place }: MapEntry, before: Before, out: &mut Vec<u8>) {
    let at = out.len();
    let mut tag = 0;
    out.push(tag);
    let mut number = |flag: u8, value: u64, usual: bool| {
        if !usual {
            tag |= flag;
            put_varint(value, out);
        }
    };
    let gap = range.lba.saturating_sub(before.end);
    number(GAP, gap, gap == 0);
    number(LENGTH, range.sectors, range.sectors == before.sectors);
    let kind = match place {
        None => HOLE,
        Some(place) if place.is_zero() => ZERO,
        Some(place) => {
            let (skip, sectors) = (place.skip(), place.record_sectors());
            let whole = skip == 0 && sectors == range.sectors;
            number(PART, skip, whole);
            number(PART, sectors, whole);
            let segment = place.segment();
            number(SEGMENT, segment, segment == before.segment);
            let kind = if place.is_staged() {
                STAGED
            } else {
                let seq = place.seq();
                number(SEQ, seq, seq == before.seq.wrapping_add(1));
                if place.packed_bytes() > 0 { PACKED } else { DATA }
            };
            if kind == PACKED {
                number(0, u64::from(place.offset()), false);
                number(0, place.packed_bytes() as u64, false);
            } else {
                // Data records are multiples of four bytes long.
                number(0, u64::from(place.offset().rotate_right(2)), false);
            }
            kind
        }
    };
    out[at] = tag | kind;
}

/// The entries of a page, in order. After an error there is nothing more.
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    rest: &'a [u8],
    left: u16,
    before: Before,
}

impl<'a> Entries<'a> {
    /// Returns the entries of a page whose checksum the caller has verified.
    ///
    /// # Errors
    /// [`MapError::Invalid`] if this is too short or too long for a page.
    pub fn new(page: &'a [u8]) -> Result<Entries<'a>, MapError> {
        let Some((count, rest)) = page.split_first_chunk() else { return Err(MapError::Short) };
        if page.len() > PAGE_BYTES {
            return Err(MapError::Invalid("a page that is too long"));
        }
        Ok(Entries { rest, left: u16::from_le_bytes(*count), before: Before::NOTHING })
    }

    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first)
    }

    fn number(&mut self, said: bool, usual: u64) -> Option<u64> {
        if said { take_varint(&mut self.rest) } else { Some(usual) }
    }

    fn decode(&mut self) -> Option<MapEntry> {
        let before = self.before;
        let tag = self.byte()?;
        let gap = self.number(tag & GAP != 0, 0)?;
        let sectors = self.number(tag & LENGTH != 0, before.sectors)?;
        let lba = before.end.checked_add(gap)?;
        let range = Range::new(lba, sectors);
        if range.is_empty() || !range.fits(MAX_VOLUME_SECTORS) {
            return None;
        }
        let kind = tag & KIND;
        if kind <= ZERO {
            let expected = tag & (PART | SEGMENT | SEQ) == 0;
            let place = (kind == ZERO).then_some(Place::ZERO);
            return expected.then_some(MapEntry { range, place });
        }
        let skip = self.number(tag & PART != 0, 0)?;
        let record_sectors = self.number(tag & PART != 0, sectors)?;
        let segment = self.number(tag & SEGMENT != 0, before.segment)?;
        let seq = match kind {
            STAGED if tag & SEQ != 0 => return None,
            STAGED => segment,
            _ => self.number(tag & SEQ != 0, before.seq.wrapping_add(1))?,
        };
        let offset = u32::try_from(take_varint(&mut self.rest)?).ok()?;
        let place = if kind == PACKED {
            let bytes = usize::try_from(take_varint(&mut self.rest)?).ok()?;
            let whole = Place::packed(segment, seq, offset, record_sectors, bytes)?;
            (skip < record_sectors).then(|| Extent::skip(&whole, skip))?
        } else {
            Place::new(segment, seq, offset.rotate_left(2), skip, record_sectors)?
        };
        let possible = kind <= PACKED && place.is_staged() == (kind == STAGED);
        (possible && place.can_hold(range)).then_some(MapEntry { range, place: Some(place) })
    }
}

impl Iterator for Entries<'_> {
    type Item = Result<MapEntry, MapError>;

    fn next(&mut self) -> Option<Result<MapEntry, MapError>> {
        let Some(left) = self.left.checked_sub(1) else {
            let rest = std::mem::take(&mut self.rest);
            return (!rest.is_empty())
                .then_some(Err(MapError::Invalid("bytes follow the entries of a page")));
        };
        let Some(entry) = self.decode() else {
            (self.left, self.rest) = (0, &[]);
            return Some(Err(MapError::Invalid("impossible map entry")));
        };
        self.left = left;
        self.before = self.before.next(entry);
        Some(Ok(entry))
    }
}

/// A page in memory, with random access to its entries.
#[derive(Debug)]
pub struct Page {
    bytes: Bytes,
    marks: Vec<Mark>,
}

/// Where to begin reading: every [`MARKED_ENTRIES`] entries.
#[derive(Debug)]
struct Mark {
    at: u16,
    left: u16,
    before: Before,
}

/// Entries from one mark to the next: a page has 25 marks then, a sixteenth of its size.
const MARKED_ENTRIES: u16 = 64;

impl Page {
    /// Makes a page with entries about `span` only. The caller has verified its checksum.
    ///
    /// # Errors
    /// [`MapError::Invalid`] or [`MapError::Short`] if these cannot be entries in order.
    pub fn new(bytes: Bytes, span: Range) -> Result<Page, MapError> {
        let mut entries = Entries::new(&bytes)?;
        let (all, mut marks) = (entries.left, Vec::new());
        loop {
            if (all - entries.left).is_multiple_of(MARKED_ENTRIES) {
                let at = (bytes.len() - entries.rest.len()) as u16;
                marks.push(Mark { at, left: entries.left, before: entries.before });
            }
            let Some(entry) = entries.next() else { break };
            entry?.within(span)?;
        }
        marks.shrink_to_fit();
        Ok(Page { bytes, marks })
    }

    /// Bytes of memory that it takes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (self.bytes.len() + self.marks.len() * size_of::<Mark>()) as u64
    }

    /// The entries that reach beyond sector `lba`, after a few that do not.
    #[must_use]
    pub fn entries_from(&self, lba: u64) -> Entries<'_> {
        let next = self.marks.partition_point(|mark| mark.before.end <= lba);
        match self.marks.get(next.saturating_sub(1)) {
            Some(Mark { at, left, before }) => {
                let rest = self.bytes.get(usize::from(*at)..).unwrap_or_default();
                Entries { rest, left: *left, before: *before }
            }
            None => Entries { rest: &[], left: 0, before: Before::NOTHING },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::STAGED_BIT;
    use proptest::prelude::*;

    fn data(lba: u64, sectors: u64, segment: u64, seq: u64, offset: u32) -> MapEntry {
        let place = Place::new(segment, seq, offset, 0, sectors);
        assert!(place.is_some());
        MapEntry { range: Range::new(lba, sectors), place }
    }

    fn page(entries: &[MapEntry]) -> Vec<u8> {
        let mut encoder = Encoder::new(PAGE_BYTES);
        for entry in entries {
            assert!(encoder.push(*entry));
        }
        encoder.finish()
    }

    fn decode(page: &[u8]) -> Result<Vec<MapEntry>, MapError> {
        Entries::new(page)?.collect()
    }

    #[test]
    fn golden_bytes() {
        let object = STAGED_BIT | 5;
        let entries = [
            data(16, 8, 3, 9, 128),
            data(24, 8, 3, 10, 4276),
            MapEntry { range: Range::new(40, 8), place: None },
            MapEntry { range: Range::new(48, 100), place: Some(Place::ZERO) },
            MapEntry { range: Range::new(148, 4), place: Place::new(object, object, 64, 2, 8) },
            MapEntry { range: Range::new(152, 16), place: Place::packed(4, 12, 129, 16, 300) },
        ];
        let bytes = page(&entries);
        let expected: &[&[u8]] = &[
            &[6, 0],
            &[DATA | GAP | SEGMENT | SEQ, 16, 3, 9, 32],
            &[DATA, 0xad, 8],
            &[HOLE | GAP, 8],
            &[ZERO | LENGTH, 100],
            &[STAGED | LENGTH | PART | SEGMENT, 4, 2, 8],
            &[0x85, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1, 16],
            &[PACKED | LENGTH | SEGMENT | SEQ, 16, 4, 12, 0x81, 1, 0xac, 2],
        ];
        assert_eq!(bytes, expected.concat());
        assert_eq!(decode(&bytes), Ok(entries.to_vec()));
    }

    #[test]
    fn what_a_place_cannot_be_is_refused() {
        let impossible: &[&[u8]] = &[
            &[],
            &[1],
            // Less, and more, than it says.
            &[1, 0],
            &[0, 0, 0],
            // No sectors; sectors beyond any volume.
            &[1, 0, HOLE | LENGTH, 0],
            &[1, 0, HOLE | GAP, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
            // A number of more than 64 bits.
            &[1, 0, HOLE | GAP, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2],
            // A hole that lies somewhere, an unknown kind.
            &[1, 0, HOLE | SEGMENT, 1],
            &[1, 0, 5 | SEGMENT | SEQ, 1, 1, 32],
            // No segment; a segment's number where a staged object's must be, and the reverse.
            &[1, 0, DATA | SEQ, 1, 32],
            &[1, 0, STAGED | SEGMENT, 1, 32],
            &[1, 0, DATA | SEGMENT, 0x81, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1, 32],
            // More than the record has, and before the volume begins.
            &[1, 0, DATA | PART | SEGMENT, 1, 8, 1, 32],
            &[1, 0, DATA | LENGTH | PART | SEGMENT, 4, 1, 8, 1, 32],
            &[1, 0, PACKED | PART | SEGMENT, 9, 8, 1, 32, 70],
            &[1, 0, PACKED | PART | SEGMENT, 0, 0, 1, 32, 70],
        ];
        for bytes in impossible {
            assert!(decode(bytes).is_err(), "{bytes:02x?}");
        }
        assert!(decode(&[1, 0, DATA | SEGMENT, 1, 32]).is_ok());
        assert!(decode(&vec![0; PAGE_BYTES + 1]).is_err());
    }

    #[test]
    fn a_page_takes_what_fits() {
        let mut encoder = Encoder::new(64);
        let mut pushed = Vec::new();
        for n in 0.. {
            let entry = data(n * 1000, 8, n * 7919 + 1, n * 31 + 1, n as u32 * 4148);
            if !encoder.push(entry) {
                break;
            }
            pushed.push(entry);
        }
        let bytes = encoder.finish();
        assert!(bytes.len() <= 64 && pushed.len() > 3, "{} {}", bytes.len(), pushed.len());
        assert_eq!(decode(&bytes), Ok(pushed));
    }

    fn place(range: Range) -> impl Strategy<Value = Option<Place>> {
        let sectors = range.sectors;
        let most = range.lba.min(20);
        let skip = 0..=most;
        prop_oneof![
            Just(None),
            Just(Some(Place::ZERO)),
            (1..u64::MAX >> 1, any::<u64>(), any::<u32>(), skip.clone(), 0..9u64).prop_map(
                move |(segment, seq, offset, skip, more)| {
                    Place::new(segment, seq, offset, skip, skip + sectors + more)
                }
            ),
            (any::<u64>(), any::<u32>(), skip.clone()).prop_map(move |(object, offset, skip)| {
                let object = object | STAGED_BIT;
                Place::new(object, object, offset, skip, skip + sectors)
            }),
            (1..99u64, any::<u64>(), any::<u32>(), skip, 1..100_000usize).prop_map(
                move |(segment, seq, offset, skip, bytes)| {
                    let whole = Place::packed(segment, seq, offset, skip + sectors, bytes)?;
                    Some(Extent::skip(&whole, skip))
                }
            ),
        ]
    }

    fn entries() -> impl Strategy<Value = Vec<MapEntry>> {
        let gap = prop_oneof![Just(0), 0..40u64, 0..1u64 << 40];
        prop::collection::vec((gap, 1..90u64), 0..200).prop_flat_map(|runs| {
            let mut end = 0;
            let entries = runs.into_iter().map(|(gap, sectors)| {
                let range = Range::new(end + gap, sectors);
                end = range.end();
                place(range).prop_map(move |place| MapEntry { range, place })
            });
            entries.collect::<Vec<_>>()
        })
    }

    proptest! {
        #[test]
        fn pages_round_trip(entries in entries()) {
            prop_assert_eq!(decode(&page(&entries)), Ok(entries));
        }

        #[test]
        fn reading_begins_anywhere(entries in entries(), at in any::<prop::sample::Index>()) {
            let end = entries.last().map_or(0, |entry| entry.range.end());
            let whole = Page::new(page(&entries).into(), Range::new(0, end)).unwrap();
            let edges = entries.iter().flat_map(|entry| [entry.range.lba, entry.range.end()]);
            let mut places: Vec<u64> = edges.flat_map(|lba| [lba.saturating_sub(1), lba]).collect();
            places.push(0);
            let lba = places[at.index(places.len())];
            let found: Vec<MapEntry> = whole.entries_from(lba).map(Result::unwrap).collect();
            prop_assert!(entries.ends_with(&found));
            let beyond = |entry: &&MapEntry| entry.range.end() > lba;
            let wanted = entries.iter().filter(beyond).count();
            prop_assert!((wanted..=wanted + 64).contains(&found.len()), "{}", found.len());
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(entries) = decode(&bytes) {
                prop_assert_eq!(decode(&page(&entries)), Ok(entries));
            }
        }
    }
}
