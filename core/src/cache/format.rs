//! The bytes of a cache file: two heads, the pages of the index, the slots.
//!
//! ```text
//! ┌────────┬────────┬──────┬───┬──────┬──────────┬─────────────────┐
//! │ head A │ head B │ page │ … │ page │ slot 0   │ slot 1 …        │
//! │        │        │ 4 KiB│   │ 4 KiB│ 16,608 B │                 │
//! └────────┴────────┴──────┴───┴──────┴──────────┴─────────────────┘
//! ```
//!
//! The cache believes nothing in the file without its checksum and its identity. Each block holds
//! its own number and its stamp, and the index has to know that stamp. Each page of the index holds
//! the round that wrote it, and the head holds the oldest round that each page may have. So the
//! cache misses if a slot holds older data, a page is torn, or the disk lost or misplaced a write.
//! `docs/formats.md` draws the fields.

use super::index::{Index, IndexEntry, LINE_BLOCKS, Slot, WAYS_MAX};
use super::version::BlockVersion;
use crate::block::{BLOCK_BYTES, VolumeId};
use crate::pack::SEAL_BYTES;
use crate::wire::link::{HostId, Moment};
use bytes::{BufMut, Bytes, BytesMut};
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of the format.
pub const CACHE_VERSION: u16 = 1;
/// Smallest cache, in bytes.
pub const MIN_CACHE_BYTES: u64 = 64 << 20;
/// Largest cache, in bytes.
pub const MAX_CACHE_BYTES: u64 = 16 << 40;
/// Bytes of a block in a slot: the data, and a trailer that identifies the block.
pub const RECORD_BYTES: usize = BLOCK_BYTES as usize + TRAILER_BYTES;
/// Bytes of a slot.
pub const SLOT_BYTES: u64 = LINE_BLOCKS * RECORD_BYTES as u64;
/// Bytes of a page of the index.
pub const PAGE_BYTES: usize = 4096;

const TRAILER_BYTES: usize = 16 + SEAL_BYTES;
/// Bytes of the context of a sealed block.
const CONTEXT_BYTES: usize = 16 + 8 + 4 + size_of::<BlockVersion>();
const SETS_PER_PAGE: usize = 4;
const PAGE_SLOTS: usize = SETS_PER_PAGE * WAYS_MAX;
const HEAD_MAGIC: u32 = u32::from_le_bytes(*b"LHCA");
const PAGE_MAGIC: u32 = u32::from_le_bytes(*b"LHCX");
const HEAD_BYTES: usize = 128;
const PAGE_HEADER_BYTES: usize = 64;
const ENTRY_BYTES: usize = 16;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHead {
    magic: U32,
    version: U16,
    ways: U16,
    sets: U32,
    stamp: U32,
    volume: U128,
    tag: U128,
    host: U128,
    round: U64,
    epoch: U64,
    seq: U64,
    sealed: u8,
    reserved: [u8; 35],
    crc: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawPage {
    magic: U32,
    number: U32,
    tag: U128,
    round: U32,
    reserved: [u8; 32],
    crc: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawEntry {
    tag: U32,
    stamps: [U16; LINE_BLOCKS as usize],
    state: u8,
    reserved: [u8; 3],
}

const _: () = assert!(size_of::<RawHead>() == HEAD_BYTES);
const _: () = assert!(size_of::<RawPage>() == PAGE_HEADER_BYTES);
const _: () = assert!(size_of::<RawEntry>() == ENTRY_BYTES);
const _: () = assert!(PAGE_HEADER_BYTES + PAGE_SLOTS * ENTRY_BYTES == PAGE_BYTES);

/// The layout of a cache file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    sets: u32,
    ways: u16,
}

impl Geometry {
    /// The geometry of a file of this many bytes; `None` if it is too small to hold a set or larger
    /// than [`MAX_CACHE_BYTES`].
    #[must_use]
    pub fn for_size(bytes: u64) -> Option<Geometry> {
        if bytes > MAX_CACHE_BYTES {
            return None;
        }
        let mut sets = u32::try_from(bytes / (WAYS_MAX as u64 * SLOT_BYTES)).ok()?;
        while sets > 0 && Geometry::new(sets, WAYS_MAX as u16)?.bytes() > bytes {
            sets -= 1;
        }
        // An odd number of sets. Otherwise lines a power of two apart would fall into a few sets.
        sets = sets.saturating_sub(u32::from(sets.is_multiple_of(2)));
        Geometry::new(sets, WAYS_MAX as u16)
    }

    /// The geometry of `sets` sets of `ways` slots. `None` if there are no sets, no slots, or more
    /// than 63 slots in a set. Hosts use 63.
    #[must_use]
    pub fn new(sets: u32, ways: u16) -> Option<Geometry> {
        (sets > 0 && (1..=WAYS_MAX).contains(&usize::from(ways))).then_some(Geometry { sets, ways })
    }

    /// An index without entries.
    pub(super) fn index(self) -> Index {
        Index::new(self.sets, usize::from(self.ways))
    }

    /// Bytes of the file that the cache uses.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.slots_at() + self.slots() * SLOT_BYTES
    }

    /// Bytes of data that fit.
    #[must_use]
    pub fn capacity_bytes(self) -> u64 {
        self.slots() * LINE_BLOCKS * BLOCK_BYTES
    }

    /// Number of lines that the index can tell apart. The cache never keeps a line with a higher
    /// number.
    #[must_use]
    pub fn lines(self) -> u64 {
        u64::from(self.sets) * u64::from(u32::MAX)
    }

    fn slots(self) -> u64 {
        u64::from(self.sets) * u64::from(self.ways)
    }

    pub(super) fn pages(self) -> usize {
        (self.sets as usize).div_ceil(SETS_PER_PAGE)
    }

    pub(super) fn head_bytes(self) -> usize {
        (HEAD_BYTES + 4 * self.pages()).next_multiple_of(PAGE_BYTES)
    }

    pub(super) fn head_at(self, round: u64) -> u64 {
        (round % 2) * self.head_bytes() as u64
    }

    pub(super) fn page_at(self, page: usize) -> u64 {
        (2 * self.head_bytes() + page * PAGE_BYTES) as u64
    }

    fn slots_at(self) -> u64 {
        self.page_at(self.pages())
    }

    /// Byte at which a block of a slot lies. Slots of neighboring sets are neighbors, so that the
    /// file can hold a run of lines in one piece.
    pub(super) fn block_at(self, slot: Slot, block: u64) -> u64 {
        let ways = usize::from(self.ways);
        let (set, way) = ((slot / ways) as u64, (slot % ways) as u64);
        let place = way * u64::from(self.sets) + set;
        self.slots_at() + place * SLOT_BYTES + block * RECORD_BYTES as u64
    }

    /// The page that holds the entry of a slot.
    pub(super) fn page_of(self, slot: Slot) -> usize {
        slot / (SETS_PER_PAGE * usize::from(self.ways))
    }

    fn page_slots(self, page: usize) -> std::ops::Range<Slot> {
        let slots = SETS_PER_PAGE * usize::from(self.ways);
        page * slots..((page + 1) * slots).min(self.slots() as usize)
    }
}

/// Most rounds of a cache: enough for centuries at one in ten seconds. Pages hold the low half of
/// the number.
const ROUNDS_MAX: u64 = 1 << 31;

/// The content of a head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub geometry: Geometry,
    pub volume: VolumeId,
    /// Drawn at random for the file. The heads, pages and blocks of the file all hold it.
    pub tag: u128,
    /// Number of this head: each new head has a higher one.
    pub round: u64,
    /// The index knows all writes to the volume up to here. `None` before a volume is attached with
    /// this cache.
    pub moment: Option<Moment>,
    /// The first stamp that no round covers. Blocks written since then have later stamps.
    pub stamp: u32,
    /// Whether the blocks are encrypted.
    pub sealed: bool,
    /// For each page, the low half of the last round that wrote it; 0 for never.
    pub rounds: Vec<u32>,
}

impl Head {
    pub fn encode(&self) -> Bytes {
        let moment = self.moment.unwrap_or(Moment { epoch: 0, host: HostId(0), seq: 0 });
        let raw = RawHead {
            magic: HEAD_MAGIC.into(),
            version: CACHE_VERSION.into(),
            ways: self.geometry.ways.into(),
            sets: self.geometry.sets.into(),
            stamp: self.stamp.into(),
            volume: self.volume.0.into(),
            tag: self.tag.into(),
            host: moment.host.0.into(),
            round: self.round.into(),
            epoch: moment.epoch.into(),
            seq: moment.seq.into(),
            sealed: self.sealed.into(),
            reserved: [0; 35],
            crc: 0.into(),
        };
        let mut out = BytesMut::with_capacity(self.geometry.head_bytes());
        out.extend_from_slice(raw.as_bytes());
        for round in &self.rounds {
            out.put_u32_le(*round);
        }
        out.resize(self.geometry.head_bytes(), 0);
        let crc = head_crc(&out);
        out[HEAD_BYTES - 4..HEAD_BYTES].copy_from_slice(&crc.to_le_bytes());
        out.freeze()
    }

    /// Decodes a head. `None` if `bytes` are not a valid head of this geometry and volume.
    pub fn parse(geometry: Geometry, volume: Option<VolumeId>, bytes: &[u8]) -> Option<Head> {
        let (raw, rest) = RawHead::ref_from_prefix(bytes).ok()?;
        let fits = bytes.len() == geometry.head_bytes()
            && raw.magic.get() == HEAD_MAGIC
            && raw.version.get() == CACHE_VERSION
            && raw.crc.get() == head_crc(bytes)
            && raw.sets.get() == geometry.sets
            && raw.ways.get() == geometry.ways
            && raw.round.get() < ROUNDS_MAX
            && volume.is_none_or(|volume| raw.volume.get() == volume.0);
        if !fits {
            return None;
        }
        let (rounds, _) = <[U32]>::ref_from_prefix_with_elems(rest, geometry.pages()).ok()?;
        let host = HostId(raw.host.get());
        let moment = Moment { epoch: raw.epoch.get(), host, seq: raw.seq.get() };
        Some(Head {
            geometry,
            volume: VolumeId(raw.volume.get()),
            tag: raw.tag.get(),
            round: raw.round.get(),
            moment: (moment.epoch > 0).then_some(moment),
            stamp: raw.stamp.get(),
            sealed: raw.sealed != 0,
            rounds: rounds.iter().map(|round| round.get()).collect(),
        })
    }
}

fn head_crc(bytes: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&bytes[..HEAD_BYTES - 4]);
    crc32c::crc32c_append(crc, &bytes[HEAD_BYTES..])
}

/// Encodes a page of the index in its current state.
pub(super) fn encode_page(
    geometry: Geometry,
    tag: u128,
    page: usize,
    round: u32,
    index: &Index,
) -> Bytes {
    let header = RawPage {
        magic: PAGE_MAGIC.into(),
        number: (page as u32).into(),
        tag: tag.into(),
        round: round.into(),
        reserved: [0; 32],
        crc: 0.into(),
    };
    let mut out = BytesMut::with_capacity(PAGE_BYTES);
    out.extend_from_slice(header.as_bytes());
    for slot in geometry.page_slots(page) {
        let entry = index.entry(slot);
        let raw = RawEntry {
            tag: entry.tag.into(),
            stamps: entry.stamps.map(U16::new),
            state: entry.state,
            reserved: [0; 3],
        };
        out.extend_from_slice(raw.as_bytes());
    }
    out.resize(PAGE_BYTES, 0);
    let crc = page_crc(&out);
    out[PAGE_HEADER_BYTES - 4..PAGE_HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
    out.freeze()
}

fn page_crc(bytes: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&bytes[..PAGE_HEADER_BYTES - 4]);
    crc32c::crc32c_append(crc, &bytes[PAGE_HEADER_BYTES..])
}

/// Puts the entries of a page into the index and returns the round that wrote the page. `None` if
/// the page is damaged, older than the head allows, or of a round that cannot have begun.
pub(super) fn restore_page(
    head: &Head,
    page: usize,
    bytes: &[u8],
    index: &mut Index,
) -> Option<u32> {
    let (header, rest) = RawPage::ref_from_prefix(bytes).ok()?;
    let oldest = head.rounds.get(page).copied().unwrap_or(u32::MAX);
    let good = bytes.len() == PAGE_BYTES
        && header.magic.get() == PAGE_MAGIC
        && header.number.get() as usize == page
        && header.tag.get() == head.tag
        && header.round.get() >= oldest
        && u64::from(header.round.get()) <= head.round + 1
        && header.crc.get() == page_crc(bytes);
    let slots = head.geometry.page_slots(page);
    let (entries, _) = <[RawEntry]>::ref_from_prefix_with_elems(rest, slots.len()).ok()?;
    if !good {
        return None;
    }
    for (slot, raw) in slots.zip(entries) {
        let stamps = raw.stamps.map(|stamp| stamp.get());
        index.restore(slot, IndexEntry { tag: raw.tag.get(), stamps, state: raw.state });
    }
    Some(header.round.get())
}

/// Appends a block and its trailer, which identifies it. `block` counts from the start of the
/// volume. `data` goes to the disk as it is: it is encrypted if there is a seal.
pub(super) fn put_block(
    tag: u128,
    (block, stamp): (u64, u32),
    data: &[u8],
    seal: &[u8; SEAL_BYTES],
    out: &mut BytesMut,
) {
    out.extend_from_slice(data);
    out.put_u64_le(block);
    out.put_u32_le(stamp);
    out.put_u32_le(block_crc(tag, block, stamp, data, seal));
    out.extend_from_slice(seal);
}

fn block_crc(tag: u128, block: u64, stamp: u32, data: &[u8], seal: &[u8; SEAL_BYTES]) -> u32 {
    let mut head = [0; 28];
    head[..16].copy_from_slice(&tag.to_le_bytes());
    head[16..24].copy_from_slice(&block.to_le_bytes());
    head[24..].copy_from_slice(&stamp.to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&head), seal);
    crc32c::crc32c_append(crc, data)
}

/// The context of a sealed block: file, block, stamp and version. The seal only opens with these.
pub(super) fn context(
    tag: u128,
    (block, stamp): (u64, u32),
    version: &BlockVersion,
) -> [u8; CONTEXT_BYTES] {
    let mut context = [0; CONTEXT_BYTES];
    context[..16].copy_from_slice(&tag.to_le_bytes());
    context[16..24].copy_from_slice(&block.to_le_bytes());
    context[24..28].copy_from_slice(&stamp.to_le_bytes());
    for (bytes, mark) in context[28..].chunks_exact_mut(4).zip(version) {
        bytes.copy_from_slice(&mark.to_le_bytes());
    }
    context
}

/// The stamp and the seal of a record, if the record is a block.
pub(super) fn seal_of(record: &[u8]) -> Option<(u32, &[u8; SEAL_BYTES])> {
    let (raw, _) = RawTrailer::ref_from_prefix(record.get(BLOCK_BYTES as usize..)?).ok()?;
    Some((raw.stamp.get(), &raw.seal))
}

/// Whether `record` is this block, with a stamp whose low half is `stamp`.
pub(super) fn is_block(tag: u128, block: u64, stamp: u16, record: &[u8]) -> bool {
    let Some((data, trailer)) = record.split_at_checked(BLOCK_BYTES as usize) else { return false };
    let Ok((raw, _)) = RawTrailer::ref_from_prefix(trailer) else { return false };
    raw.block.get() == block
        && raw.stamp.get() as u16 == stamp
        && raw.crc.get() == block_crc(tag, block, raw.stamp.get(), data, &raw.seal)
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawTrailer {
    block: U64,
    stamp: U32,
    crc: U32,
    seal: [u8; SEAL_BYTES],
}

const _: () = assert!(size_of::<RawTrailer>() == TRAILER_BYTES);
