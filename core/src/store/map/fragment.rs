//! A fragment: an immutable object with a part of a map, in order (`docs/formats.md`).
//!
//! ```text
//! ┌──────┬───┬──────┬────────────────────────────────────────┬─────────┐
//! │ page │ … │ page │ index: first lba, length, crc of each  │ trailer │
//! └──────┴───┴──────┴────────────────────────────────────────┴─────────┘
//! ```
//!
//! A reader has the [`Fragment`] already. It holds the index's checksum, and the index holds those
//! of the pages. So a reader never accepts the bytes of another fragment, or of another part of
//! this one. The trailer repeats the [`Fragment`] for a reader that has only the object.

use super::error::MapError;
use super::page::{Encoder, Entries, MapEntry, PAGE_BYTES, Page};
use crate::block::{MAX_VOLUME_SECTORS, Range, VolumeId};
use bytes::Bytes;
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of the format.
pub const FRAGMENT_VERSION: u16 = 1;
/// Bytes of pages at which a new fragment is full.
pub const FRAGMENT_BYTES: u64 = 4 << 20;
/// Most bytes of pages in a fragment.
pub const MAX_PAGES_BYTES: u64 = 1 << 30;
/// Bytes of a fragment's description, in its trailer and in a root.
pub const DESCRIPTION_BYTES: usize = size_of::<RawFragment>();
/// Bytes of a trailer.
pub const TRAILER_BYTES: usize = size_of::<RawTrailer>();

const TRAILER_MAGIC: u32 = u32::from_le_bytes(*b"LHFT");
const INDEX_ENTRY_BYTES: usize = size_of::<RawPage>();

const _: () = assert!(FRAGMENT_BYTES + (PAGE_BYTES as u64) < MAX_PAGES_BYTES);

/// The name of a fragment. No name comes twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FragmentId {
    /// The volume that wrote it for its map; a clone's map refers to others' fragments.
    pub volume: VolumeId,
    /// The generation of who wrote it.
    pub generation: u64,
    /// Its number in that generation.
    pub number: u64,
}

/// The facts about a fragment that a reader needs before it reads the fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Its name.
    pub id: FragmentId,
    /// From the first sector of its first entry to the last of its last; not empty.
    pub span: Range,
    /// Number of entries.
    pub entries: u64,
    /// Sectors of data in them: neither holes nor zeroes.
    pub data_sectors: u64,
    /// Entries that are holes.
    pub holes: u32,
    /// Bytes of its pages; the index begins there.
    pub pages_bytes: u32,
    /// Number of pages, not zero.
    pub pages: u32,
    /// Checksum of the index.
    pub index_crc: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawFragment {
    volume: U128,
    generation: U64,
    number: U64,
    lba: U64,
    sectors: U64,
    entries: U64,
    data_sectors: U64,
    pages_bytes: U32,
    pages: U32,
    index_crc: U32,
    holes: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawTrailer {
    fragment: RawFragment,
    magic: U32,
    version: U16,
    reserved: U16,
    crc: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawPage {
    lba: U64,
    bytes: U32,
    crc: U32,
}

impl Fragment {
    /// Bytes of the object.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.index_range().end + TRAILER_BYTES as u64
    }

    /// The bytes of the object that are the index.
    #[must_use]
    pub fn index_range(&self) -> std::ops::Range<u64> {
        let start = u64::from(self.pages_bytes);
        start..start + u64::from(self.pages) * INDEX_ENTRY_BYTES as u64
    }

    /// As a root or a trailer holds it.
    #[must_use]
    pub fn describe(&self) -> [u8; DESCRIPTION_BYTES] {
        zerocopy::transmute!(self.raw())
    }

    fn raw(&self) -> RawFragment {
        RawFragment {
            volume: self.id.volume.0.into(),
            generation: self.id.generation.into(),
            number: self.id.number.into(),
            lba: self.span.lba.into(),
            sectors: self.span.sectors.into(),
            entries: self.entries.into(),
            data_sectors: self.data_sectors.into(),
            pages_bytes: self.pages_bytes.into(),
            pages: self.pages.into(),
            index_crc: self.index_crc.into(),
            holes: self.holes.into(),
        }
    }

    /// Reads what [`Fragment::describe`] wrote.
    ///
    /// # Errors
    /// [`MapError::Short`], [`MapError::Invalid`].
    pub fn parse(bytes: &[u8]) -> Result<Fragment, MapError> {
        let raw = RawFragment::ref_from_bytes(bytes).map_err(|_| MapError::Short)?;
        let fragment = Fragment {
            id: FragmentId {
                volume: VolumeId(raw.volume.get()),
                generation: raw.generation.get(),
                number: raw.number.get(),
            },
            span: Range::new(raw.lba.get(), raw.sectors.get()),
            entries: raw.entries.get(),
            data_sectors: raw.data_sectors.get(),
            holes: raw.holes.get(),
            pages_bytes: raw.pages_bytes.get(),
            pages: raw.pages.get(),
            index_crc: raw.index_crc.get(),
        };
        let Fragment { span, entries, data_sectors, pages, .. } = fragment;
        let pages_bytes = u64::from(fragment.pages_bytes);
        let possible = !span.is_empty()
            && span.fits(MAX_VOLUME_SECTORS)
            && (1..=span.sectors).contains(&entries)
            && data_sectors <= span.sectors
            && (1..=entries).contains(&u64::from(pages))
            && pages_bytes <= MAX_PAGES_BYTES
            && pages_bytes <= u64::from(pages) * PAGE_BYTES as u64
            && u64::from(fragment.holes) <= entries;
        if possible { Ok(fragment) } else { Err(MapError::Invalid("impossible fragment")) }
    }

    /// Reads the last [`TRAILER_BYTES`] of an object of `object_bytes`.
    ///
    /// # Errors
    /// The damage of the trailer.
    pub fn parse_trailer(trailer: &[u8], object_bytes: u64) -> Result<Fragment, MapError> {
        let raw = RawTrailer::ref_from_bytes(trailer).map_err(|_| MapError::Short)?;
        if raw.magic.get() != TRAILER_MAGIC {
            return Err(MapError::Magic("fragment"));
        }
        if raw.version.get() != FRAGMENT_VERSION {
            return Err(MapError::Version(raw.version.get()));
        }
        if crc32c::crc32c(&trailer[..TRAILER_BYTES - 4]) != raw.crc.get() {
            return Err(MapError::Checksum("trailer"));
        }
        let fragment = Fragment::parse(raw.fragment.as_bytes())?;
        if fragment.bytes() == object_bytes && raw.reserved.get() == 0 {
            Ok(fragment)
        } else {
            Err(MapError::Invalid("its size differs from its trailer"))
        }
    }

    /// Verifies a whole object: every checksum, and that its entries match the trailer.
    ///
    /// # Errors
    /// The damage of the object.
    pub fn verify(object: &Bytes) -> Result<Fragment, MapError> {
        let trailer = object.len().checked_sub(TRAILER_BYTES).ok_or(MapError::Short)?;
        let fragment = Fragment::parse_trailer(&object[trailer..], object.len() as u64)?;
        let range = fragment.index_range();
        let index = Index::new(&fragment, object.slice(range.start as usize..range.end as usize))?;
        let (mut entries, mut data_sectors, mut holes, mut at) = (0, 0, 0, 0);
        for page in 0..index.pages() {
            let range = index.range(page);
            let bytes = &object[range.start as usize..range.end as usize];
            let mut expected = Some(index.span(page).lba);
            for entry in index.entries(page, bytes)? {
                let MapEntry { range, place } = entry?;
                if expected.take().is_some_and(|lba| lba != range.lba) {
                    return Err(MapError::Invalid("a page begins elsewhere than its index says"));
                }
                entries += 1;
                holes += u32::from(place.is_none());
                data_sectors += place.filter(|place| !place.is_zero()).map_or(0, |_| range.sectors);
                at = range.end();
            }
            if expected.is_some() {
                return Err(MapError::Invalid("a page without entries"));
            }
        }
        let Fragment { span, .. } = fragment;
        let said = (fragment.entries, fragment.data_sectors, fragment.holes, span.end());
        if (entries, data_sectors, holes, at) == said {
            Ok(fragment)
        } else {
            Err(MapError::Invalid("its entries differ from its trailer"))
        }
    }
}

/// The index of a fragment, verified.
#[derive(Clone, Debug)]
pub struct Index {
    bytes: Bytes,
    /// Where each page begins, and after the last one where they end.
    starts: Vec<u32>,
    span: Range,
}

impl Index {
    /// Verifies the bytes at [`Fragment::index_range`].
    ///
    /// # Errors
    /// The damage of the bytes.
    pub fn new(fragment: &Fragment, bytes: Bytes) -> Result<Index, MapError> {
        if bytes.len() != fragment.pages as usize * INDEX_ENTRY_BYTES {
            return Err(MapError::Short);
        }
        if crc32c::crc32c(&bytes) != fragment.index_crc {
            return Err(MapError::Checksum("index"));
        }
        let bad = MapError::Invalid("impossible index");
        let raw = <[RawPage]>::ref_from_bytes(&bytes).map_err(|_| bad)?;
        let mut starts = Vec::with_capacity(raw.len() + 1);
        let mut at = 0u32;
        starts.push(at);
        for page in raw {
            if !(1..=PAGE_BYTES).contains(&(page.bytes.get() as usize)) {
                return Err(bad);
            }
            at = at.checked_add(page.bytes.get()).ok_or(bad)?;
            starts.push(at);
        }
        let rising = raw.windows(2).all(|pair| pair[0].lba.get() < pair[1].lba.get());
        let span = fragment.span;
        let inside = raw.first().is_some_and(|page| page.lba.get() == span.lba)
            && raw.last().is_some_and(|page| page.lba.get() < span.end());
        if !rising || !inside || at != fragment.pages_bytes {
            return Err(bad);
        }
        Ok(Index { bytes, starts, span })
    }

    fn raw(&self) -> &[RawPage] {
        // The constructor has verified the length.
        <[RawPage]>::ref_from_bytes(&self.bytes).unwrap_or_default()
    }

    /// Number of pages.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.starts.len() - 1
    }

    /// Bytes of memory that it takes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (self.bytes.len() + self.starts.len() * size_of::<u32>()) as u64
    }

    /// The pages that may have entries about `range`.
    #[must_use]
    pub fn overlapping(&self, range: Range) -> std::ops::Range<usize> {
        let raw = self.raw();
        let end = raw.partition_point(|page| page.lba.get() < range.end());
        let start = raw.partition_point(|page| page.lba.get() <= range.lba);
        start.saturating_sub(1).min(end)..end
    }

    /// The bytes of the object that are a page.
    #[must_use]
    pub fn range(&self, page: usize) -> std::ops::Range<u64> {
        u64::from(self.starts[page])..u64::from(self.starts[page + 1])
    }

    /// The sectors that a page can have entries about.
    #[must_use]
    pub fn span(&self, page: usize) -> Range {
        let raw = self.raw();
        let end = raw.get(page + 1).map_or(self.span.end(), |next| next.lba.get());
        Range::between(raw[page].lba.get(), end)
    }

    fn verify(&self, page: usize, bytes: &[u8]) -> Result<(), MapError> {
        let good = crc32c::crc32c(bytes) == self.raw()[page].crc.get();
        if good { Ok(()) } else { Err(MapError::Checksum("page")) }
    }

    /// Verifies the bytes of a page, to keep it in memory.
    ///
    /// # Errors
    /// The damage of the page.
    pub fn page(&self, page: usize, bytes: Bytes) -> Result<Page, MapError> {
        self.verify(page, &bytes)?;
        Page::new(bytes, self.span(page))
    }

    /// Verifies the bytes of a page and returns its entries.
    ///
    /// # Errors
    /// The damage of the page.
    pub fn entries<'a>(
        &self,
        page: usize,
        bytes: &'a [u8],
    ) -> Result<impl Iterator<Item = Result<MapEntry, MapError>> + use<'a>, MapError> {
        self.verify(page, bytes)?;
        self.verified_entries(page, bytes)
    }

    /// Returns the entries of a page, of a fragment that the caller has verified as a whole.
    ///
    /// # Errors
    /// The damage of the page.
    pub fn verified_entries<'a>(
        &self,
        page: usize,
        bytes: &'a [u8],
    ) -> Result<impl Iterator<Item = Result<MapEntry, MapError>> + use<'a>, MapError> {
        let span = self.span(page);
        Ok(Entries::new(bytes)?.map(move |entry| entry.and_then(|entry| entry.within(span))))
    }
}

/// Makes a fragment entry by entry.
#[derive(Debug)]
pub struct Builder {
    page_bytes: usize,
    page: Encoder,
    parts: Vec<Bytes>,
    index: Vec<u8>,
    pages_bytes: u64,
    pages: u32,
    entries: u64,
    data_sectors: u64,
    holes: u32,
    start: u64,
    end: u64,
}

impl Builder {
    /// An empty fragment with pages of at most `page_bytes`.
    #[must_use]
    pub fn new(page_bytes: usize) -> Builder {
        Builder {
            page_bytes,
            page: Encoder::new(page_bytes),
            parts: Vec::new(),
            index: Vec::new(),
            pages_bytes: 0,
            pages: 0,
            entries: 0,
            data_sectors: 0,
            holes: 0,
            start: 0,
            end: 0,
        }
    }

    /// Bytes of the pages that are full.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.pages_bytes
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Adds an entry, which begins at or after the end of the one before.
    pub fn push(&mut self, entry: MapEntry) {
        if self.entries == 0 {
            self.start = entry.range.lba;
        }
        if !self.page.push(entry) {
            self.finish_page();
            // An empty page takes any entry.
            self.page.push(entry);
        }
        self.entries += 1;
        self.holes += u32::from(entry.place.is_none());
        let data = entry.place.is_some_and(|place| !place.is_zero());
        self.data_sectors += if data { entry.range.sectors } else { 0 };
        self.end = entry.range.end();
    }

    fn finish_page(&mut self) {
        let page = std::mem::replace(&mut self.page, Encoder::new(self.page_bytes));
        let lba = page.first();
        let bytes = page.finish();
        let raw = RawPage {
            lba: lba.into(),
            bytes: (bytes.len() as u32).into(),
            crc: crc32c::crc32c(&bytes).into(),
        };
        self.index.extend_from_slice(raw.as_bytes());
        self.pages_bytes += bytes.len() as u64;
        self.pages += 1;
        self.parts.push(bytes.into());
    }

    /// The object, which has at least one entry and pages of at most [`MAX_PAGES_BYTES`].
    #[must_use]
    pub fn finish(mut self, id: FragmentId) -> (Fragment, Vec<Bytes>) {
        if self.page.entries() > 0 {
            self.finish_page();
        }
        let fragment = Fragment {
            id,
            span: Range::between(self.start, self.end),
            entries: self.entries,
            data_sectors: self.data_sectors,
            holes: self.holes,
            pages_bytes: self.pages_bytes as u32,
            pages: self.pages,
            index_crc: crc32c::crc32c(&self.index),
        };
        let mut trailer = RawTrailer {
            fragment: fragment.raw(),
            magic: TRAILER_MAGIC.into(),
            version: FRAGMENT_VERSION.into(),
            reserved: 0.into(),
            crc: 0.into(),
        };
        trailer.crc = crc32c::crc32c(&trailer.as_bytes()[..TRAILER_BYTES - 4]).into();
        self.parts.push(self.index.into());
        self.parts.push(Bytes::copy_from_slice(trailer.as_bytes()));
        (fragment, self.parts)
    }
}
