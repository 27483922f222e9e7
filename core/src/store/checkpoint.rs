//! Reading checkpoints, which earlier versions wrote where now are roots: objects with the state of the
//! log after some segment and all of its map.
//!
//! ```text
//! ┌────────┬──────────────────────┬───┬──────────────────────┬──────────────────────────────┐
//! │ header │ page: ≤ 4096 entries │ … │ page                 │ end: epochs, announced, sums │
//! └────────┴──────────────────────┴───┴──────────────────────┴──────────────────────────────┘
//! ```
//!
//! A checkpoint of a large map is built in steps while segments go on being committed, so its pages
//! may show the map after a later segment than its name says, up to the one called *through*.
//! Applying the segments after the named one, to *through* at least, gives the right state all the
//! same: for each sector the last segment that touches it decides.

use super::announce;
use super::attach::{self, MAX_HISTORY, OLD_EPOCH_BYTES};
use super::catalog::VolumeSpec;
use super::log::State;
use super::map::Place;
use super::map::table::Table;
use super::segment::MAX_ANNOUNCED;
use crate::block::{MAX_VOLUME_SECTORS, Range, VolumeId};
use bytes::{Buf, BytesMut};
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The last version of the format.
pub const CHECKPOINT_VERSION: u16 = 4;
/// The version before there was a size in it: it is of a volume that had never been resized.
const UNSIZED_VERSION: u16 = 1;
/// The version before there were staged objects: otherwise the same.
const UNSTAGED_VERSION: u16 = 2;
/// The version before there were packed records: otherwise the same.
const UNPACKED_VERSION: u16 = 3;
/// Most entries of a page.
pub const PAGE_ENTRIES: usize = 4096;

const HEADER_MAGIC: u32 = u32::from_le_bytes(*b"LHCK");
const PAGE_MAGIC: u32 = u32::from_le_bytes(*b"LHCP");
const END_MAGIC: u32 = u32::from_le_bytes(*b"LHCE");
const HEADER_BYTES: usize = 48;
const SECTION_BYTES: usize = 24;
const ENTRY_BYTES: usize = 40;
const END_BYTES: usize = 48;
const FLAG_CLEAN: u32 = 1;
const FLAG_ROUNDED: u32 = 2;
const MAX_END_BYTES: usize =
    END_BYTES + MAX_HISTORY * OLD_EPOCH_BYTES + MAX_ANNOUNCED * announce::MAX_ENTRY_BYTES;

const _: () = assert!(PAGE_ENTRIES * ENTRY_BYTES <= MAX_END_BYTES);

/// Why bytes are not a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// The bytes end before the checkpoint does.
    #[error("cut short")]
    Short,
    /// It is something else.
    #[error("not a {0}")]
    Magic(&'static str),
    /// A later version wrote it.
    #[error("of format version {0}, which needs a newer longhaul")]
    Version(u16),
    /// A checksum does not match.
    #[error("{0} does not match its checksum")]
    Checksum(&'static str),
    /// Intact, but not what a checkpoint may say.
    #[error("not valid: {0}")]
    Invalid(&'static str),
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: U32,
    version: U16,
    flags: U16,
    volume: U128,
    number: U64,
    sectors: U64,
    reserved: [u8; 4],
    crc: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawSection {
    magic: U32,
    index: U32,
    bytes: U32,
    reserved: U32,
    body_crc: U32,
    crc: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawEntry {
    lba: U64,
    sectors: U64,
    segment: U64,
    seq: U64,
    offset: U32,
    shape: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawEnd {
    number: U64,
    through: U64,
    committed: U64,
    entries: U64,
    header_crc: U32,
    flags: U32,
    epochs: U32,
    announced: U32,
}

const _: () = assert!(size_of::<RawHeader>() == HEADER_BYTES);
const _: () = assert!(size_of::<RawSection>() == SECTION_BYTES);
const _: () = assert!(size_of::<RawEntry>() == ENTRY_BYTES);
const _: () = assert!(size_of::<RawEnd>() == END_BYTES);

/// A checkpoint that has been read and verified.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// The state.
    pub state: State,
    /// The map: right once segments up to `through` are applied. It has no entries for holes.
    pub table: Table,
    /// The log must reach this segment at least.
    pub through: u64,
}

/// Takes a checkpoint apart as its bytes arrive, in pieces of any size; holds no more than a section
/// besides the map.
#[derive(Debug)]
pub struct Reader {
    volume: VolumeId,
    number: u64,
    state: State,
    table: Table,
    buffer: BytesMut,
    begun: bool,
    sections: u32,
    entries: u64,
    cursor: u64,
    newest: u64,
    through: Option<u64>,
}

impl Reader {
    /// Begins to read the checkpoint of that number.
    #[must_use]
    pub fn new(spec: &VolumeSpec, number: u64, announce_max: usize) -> Reader {
        Reader {
            volume: spec.id,
            number,
            state: State::new(spec, announce_max),
            table: Table::new(),
            buffer: BytesMut::new(),
            begun: false,
            sections: 0,
            entries: 0,
            cursor: 0,
            newest: 0,
            through: None,
        }
    }

    /// The next bytes.
    ///
    /// # Errors
    /// See [`CheckpointError`]; nothing can be read after one.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), CheckpointError> {
        self.buffer.extend_from_slice(bytes);
        if !self.begun {
            if self.buffer.len() < HEADER_BYTES {
                return Ok(());
            }
            let header = self.buffer.split_to(HEADER_BYTES);
            self.header(&header)?;
            self.begun = true;
        }
        while !self.buffer.is_empty() {
            if self.through.is_some() {
                return Err(CheckpointError::Invalid("bytes follow its end"));
            }
            if !self.section()? {
                break;
            }
        }
        Ok(())
    }

    /// The checkpoint, after all bytes.
    ///
    /// # Errors
    /// [`CheckpointError::Short`] if its end has not come.
    pub fn finish(self) -> Result<Checkpoint, CheckpointError> {
        let through = self.through.ok_or(CheckpointError::Short)?;
        Ok(Checkpoint { state: self.state, table: self.table, through })
    }

    fn header(&mut self, bytes: &[u8]) -> Result<(), CheckpointError> {
        let Ok(raw) = RawHeader::ref_from_bytes(bytes) else { return Err(CheckpointError::Short) };
        if raw.magic.get() != HEADER_MAGIC {
            return Err(CheckpointError::Magic("checkpoint"));
        }
        let version = raw.version.get();
        if ![UNSIZED_VERSION, UNSTAGED_VERSION, UNPACKED_VERSION, CHECKPOINT_VERSION]
            .contains(&version)
        {
            return Err(CheckpointError::Version(version));
        }
        if crc32c::crc32c(&bytes[..HEADER_BYTES - 4]) != raw.crc.get() {
            return Err(CheckpointError::Checksum("header"));
        }
        if raw.volume.get() != self.volume.0 || raw.number.get() != self.number {
            return Err(CheckpointError::Invalid("it is that of another volume or segment"));
        }
        if version != UNSIZED_VERSION {
            let sectors = raw.sectors.get();
            if !(self.state.sectors..=MAX_VOLUME_SECTORS).contains(&sectors) {
                return Err(CheckpointError::Invalid("its size is impossible"));
            }
            self.state.sectors = sectors;
        }
        Ok(())
    }

    /// Takes the next section if all of it is there.
    fn section(&mut self) -> Result<bool, CheckpointError> {
        let Ok((raw, rest)) = RawSection::ref_from_prefix(&self.buffer) else { return Ok(false) };
        let magic = raw.magic.get();
        let limit = match magic {
            PAGE_MAGIC => PAGE_ENTRIES * ENTRY_BYTES,
            END_MAGIC => MAX_END_BYTES,
            _ => return Err(CheckpointError::Magic("checkpoint section")),
        };
        if crc32c::crc32c(&raw.as_bytes()[..SECTION_BYTES - 4]) != raw.crc.get() {
            return Err(CheckpointError::Checksum("a section header"));
        }
        let bytes = raw.bytes.get() as usize;
        if raw.index.get() != self.sections || bytes > limit {
            return Err(CheckpointError::Invalid("a section out of place"));
        }
        if rest.len() < bytes {
            return Ok(false);
        }
        if crc32c::crc32c(&rest[..bytes]) != raw.body_crc.get() {
            return Err(CheckpointError::Checksum("a section"));
        }
        self.buffer.advance(SECTION_BYTES);
        let body = self.buffer.split_to(bytes);
        self.sections += 1;
        if magic == PAGE_MAGIC {
            self.page(&body)?
        } else {
            self.end(&body)?
        }
        Ok(true)
    }

    fn page(&mut self, body: &[u8]) -> Result<(), CheckpointError> {
        let bad = CheckpointError::Invalid("impossible map entry");
        let entries = <[RawEntry]>::ref_from_bytes(body).map_err(|_| bad)?;
        for raw in entries {
            let range = Range::new(raw.lba.get(), raw.sectors.get());
            if range.is_empty() || !range.fits(self.state.sectors) || range.lba < self.cursor {
                return Err(bad);
            }
            let (segment, seq) = (raw.segment.get(), raw.seq.get());
            let place = if segment == 0 {
                Place::ZERO
            } else {
                let place = Place::from_shape(segment, seq, raw.offset.get(), raw.shape.get());
                place.filter(|place| place.can_hold(range)).ok_or(bad)?
            };
            if !place.is_staged() {
                self.newest = self.newest.max(place.segment());
            }
            self.cursor = range.end();
            self.entries += 1;
            self.table.replace(range, Some(place));
        }
        Ok(())
    }

    fn end(&mut self, body: &[u8]) -> Result<(), CheckpointError> {
        let bad = CheckpointError::Invalid("impossible end section");
        let (raw, rest) = RawEnd::ref_from_prefix(body).map_err(|_| bad)?;
        let epochs = raw.epochs.get() as usize;
        let (history, rest) = attach::decode_old_history(rest, epochs).ok_or(bad)?;
        let through = raw.through.get();
        let possible = raw.number.get() == self.number
            && through >= self.number
            && raw.entries.get() == self.entries
            && self.newest <= through;
        if !possible {
            return Err(bad);
        }
        let committed = raw.committed.get();
        let announced =
            announce::decode(rest, raw.announced.get() as usize, committed).ok_or(bad)?;
        let state = &mut self.state;
        state.number = self.number;
        state.header_crc = raw.header_crc.get();
        state.committed = committed;
        state.clean = raw.flags.get() & FLAG_CLEAN != 0;
        state.announced.replace(&announced, raw.flags.get() & FLAG_ROUNDED != 0);
        state.history = history;
        self.through = Some(through);
        Ok(())
    }
}
