//! The record: one write in the form it keeps from the journal over the link into a segment.
//!
//! ```text
//!  0        4     5     6       8        16       24       32        40         44        48
//!  ┌────────┬─────┬─────┬───────┬────────┬────────┬────────┬─────────┬──────────┬─────────┬─────────┬─────────┐
//!  │ "LHRC" │ ver │kind │ flags │ epoch  │  seq   │  lba   │ sectors │ payload  │ header  │ table   │ payload │
//!  │  u32   │ u8  │ u8  │  u16  │  u64   │  u64   │  u64   │   u64   │ len u32  │ crc u32 │ n × u32 │         │
//!  └────────┴─────┴─────┴───────┴────────┴────────┴────────┴─────────┴──────────┴─────────┴─────────┴─────────┘
//! ```
//!
//! All integers are little-endian. `table` holds one CRC32C for each 4 KiB block of the *volume*
//! that the range touches, over the part of the payload in that block. `header crc` is the CRC32C
//! of the first 44 bytes followed by the table. It begins with the volume's [seed](seed) in the
//! place of zero. Discards and zeroes have neither table nor payload. A staged record has no
//! payload either. In the place of the table it has 24 bytes that say where its data lies:
//!
//! ```text
//!  48       56           64       68           72
//!  ┌────────┬────────────┬────────┬────────────┐
//!  │ object │ record lba │ offset │ record     │
//!  │  u64   │    u64     │  u32   │ sectors u32│
//!  └────────┴────────────┴────────┴────────────┘
//! ```
//!
//! A packed record holds its data compressed, encrypted, or both, block by block: [`packed`].
//!
//! The header's checksum binds a record to its volume: it does not match with another volume's
//! identity. Every reader also compares the number and the range with those of a map. So no other
//! record passes for it: a log commits a number once.
//!
//! Only [`encode_data`] computes checksums of data. Everything after that verifies them or carries
//! them along: a cut of a record at block boundaries ([`Fragment`]) needs no new one.

pub mod packed;

use crate::block::{
    BLOCK_SECTORS, Epoch, MAX_VOLUME_SECTORS, Range, SECTOR_BYTES, STAGED_BIT, Seq, StagedData,
    VolumeId,
};
use bytes::{BufMut, Bytes, BytesMut};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of the encoding, in the header of every record.
pub const RECORD_VERSION: u8 = 1;

/// Bytes of a staged record that say where its data lies.
pub const STAGED_BYTES: usize = 24;

/// Bytes of a header without its table.
pub const HEADER_BYTES: usize = 48;

/// Largest data record, in sectors (1 MiB). A longer write becomes several records.
pub const MAX_RECORD_SECTORS: u64 = 2048;

/// Longest write that is one data record wherever it begins, in sectors. Longer writes are cut at
/// the ends of checksum blocks.
pub const MAX_WHOLE_SECTORS: u64 = MAX_RECORD_SECTORS - BLOCK_SECTORS;

/// Most bytes a record takes: header, table of an unaligned range, payload.
pub const MAX_RECORD_BYTES: usize = HEADER_BYTES
    + 4 * (MAX_RECORD_SECTORS / BLOCK_SECTORS + 1) as usize
    + (MAX_RECORD_SECTORS * SECTOR_BYTES) as usize;

const MAGIC: u32 = u32::from_le_bytes(*b"LHRC");
const CRC_OFFSET: usize = HEADER_BYTES - 4;

/// The effect of a record on its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Replaces its content with the payload.
    Data,
    /// Unmaps it: reads as zeroes, not allocated.
    Discard,
    /// Zeroes it: reads as zeroes, allocated.
    Zero,
    /// Replaces its content with data that the store has: see [`Header::staged`].
    Staged,
    /// Replaces its content with the payload, after unpacking: see [`packed`].
    Packed,
}

impl Kind {
    /// Its number in every encoding.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Kind::Data => 1,
            Kind::Discard => 2,
            Kind::Zero => 3,
            Kind::Staged => 4,
            Kind::Packed => 5,
        }
    }

    /// The kind of that number.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Kind> {
        match code {
            1 => Some(Kind::Data),
            2 => Some(Kind::Discard),
            3 => Some(Kind::Zero),
            4 => Some(Kind::Staged),
            5 => Some(Kind::Packed),
            _ => None,
        }
    }

    /// Whether it is without payload, and so costs the same whatever its range.
    #[must_use]
    pub fn is_marker(self) -> bool {
        !matches!(self, Kind::Data | Kind::Packed)
    }
}

/// Whether `range` of a volume can be a part, or all, of such a record of a staged object.
#[must_use]
pub fn can_hold(staged: &StagedData, range: Range) -> bool {
    staged.object & STAGED_BIT != 0
        && staged.record.sectors <= MAX_RECORD_SECTORS
        && staged.record.fits(MAX_VOLUME_SECTORS)
        && staged.record.intersect(range) == Some(range)
}

/// Why bytes are not a record, or not this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The bytes end before the record does.
    #[error("record is cut short: {have} of {need} bytes")]
    Short {
        /// Bytes there are.
        have: usize,
        /// Bytes the record has.
        need: usize,
    },
    /// No record starts here.
    #[error("no record starts here")]
    Magic,
    /// A later version wrote it, or the header is damaged: only a known version has a checksum.
    #[error(
        "record version {0} is not known to this version of longhaul: it is damaged, or a newer \
         version wrote it"
    )]
    Version(u8),
    /// Header or table do not match their checksum with the volume's seed.
    #[error("record header is damaged, or the record is of another volume")]
    Header,
    /// The header is intact but says what no record may.
    #[error("record header is not valid: {0}")]
    Invalid(&'static str),
    /// A block of the payload does not match its checksum.
    #[error("record payload is damaged at {0}")]
    Payload(Range),
    /// The volume does not have the key that encrypts it.
    #[error("{range} is encrypted with key {key}, which is not among the keys of the volume")]
    NoKey {
        /// The sectors.
        range: Range,
        /// Number of the key.
        key: u32,
    },
    /// It is not encrypted, and the volume is.
    #[error("{0} is unencrypted in an encrypted volume: somebody without its key wrote it")]
    Plain(Range),
    /// A block is as it was stored, but does not open: somebody forged or moved it, or the key is
    /// another one.
    #[error("{0} does not open with its key, or does not unpack: it was not written like this")]
    Sealed(Range),
}

/// The content of the header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it does.
    pub kind: Kind,
    /// The epoch that wrote it.
    pub epoch: Epoch,
    /// Its number in the volume.
    pub seq: Seq,
    /// The sectors it is about; never empty.
    pub range: Range,
    /// Where the data lies, if it is staged.
    pub staged: Option<StagedData>,
    /// Bytes of payload, if it is packed; otherwise 0.
    pub packed_bytes: u32,
}

impl Header {
    /// Bytes before the payload: header and what its checksum covers besides.
    #[must_use]
    pub fn prefix_bytes(&self) -> usize {
        let more = match self.kind {
            Kind::Data => 4 * self.range.blocks() as usize,
            Kind::Discard | Kind::Zero => 0,
            Kind::Staged => STAGED_BYTES,
            Kind::Packed => packed::table_bytes(self.range),
        };
        HEADER_BYTES + more
    }

    /// Bytes of payload.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        match self.kind {
            Kind::Data => self.range.bytes() as usize,
            Kind::Discard | Kind::Zero | Kind::Staged => 0,
            Kind::Packed => self.packed_bytes as usize,
        }
    }

    /// Bytes of the whole record.
    #[must_use]
    pub fn record_bytes(&self) -> usize {
        self.prefix_bytes() + self.payload_bytes()
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: U32,
    version: u8,
    kind: u8,
    flags: U16,
    epoch: U64,
    seq: U64,
    lba: U64,
    sectors: U64,
    payload: U32,
    crc: U32,
}

const _: () = assert!(size_of::<Raw>() == HEADER_BYTES);

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawStaged {
    object: U64,
    lba: U64,
    offset: U32,
    sectors: U32,
}

const _: () = assert!(size_of::<RawStaged>() == STAGED_BYTES);

/// Appends the 24 bytes that say where staged data lies, as in a record and in a segment's footer.
pub(crate) fn put_staged(staged: &StagedData, out: &mut BytesMut) {
    let raw = RawStaged {
        object: staged.object.into(),
        lba: staged.record.lba.into(),
        offset: staged.offset.into(),
        sectors: (staged.record.sectors as u32).into(),
    };
    out.extend_from_slice(raw.as_bytes());
}

/// Reads what [`put_staged`] wrote, if it can hold `range`.
pub(crate) fn parse_staged(bytes: &[u8], range: Range) -> Option<StagedData> {
    let (raw, _) = RawStaged::ref_from_prefix(bytes).ok()?;
    let staged = StagedData {
        object: raw.object.get(),
        offset: raw.offset.get(),
        record: Range::new(raw.lba.get(), raw.sectors.get().into()),
    };
    can_hold(&staged, range).then_some(staged)
}

/// Appends a data record to `out`, computing its checksums.
///
/// # Panics
/// If `data` is not exactly the range, the range is empty or longer than [`MAX_RECORD_SECTORS`]:
/// callers cut requests before they come here.
pub fn encode_data(
    volume: VolumeId,
    epoch: Epoch,
    seq: Seq,
    range: Range,
    data: &[u8],
    out: &mut BytesMut,
) {
    assert!(data.len() as u64 == range.bytes() && !range.is_empty());
    assert!(range.sectors <= MAX_RECORD_SECTORS);
    let header = Header { kind: Kind::Data, epoch, seq, range, staged: None, packed_bytes: 0 };
    out.reserve(header.record_bytes());
    put_data_prefix(volume, &header, [data], out);
    out.extend_from_slice(data);
}

/// The bytes of a data record before its payload, which lies in pieces of any size.
///
/// # Panics
/// As [`encode_data`].
pub(crate) fn data_prefix(
    volume: VolumeId,
    epoch: Epoch,
    seq: Seq,
    range: Range,
    pieces: &[Bytes],
) -> Bytes {
    let bytes: usize = pieces.iter().map(Bytes::len).sum();
    assert!(bytes as u64 == range.bytes() && !range.is_empty());
    assert!(range.sectors <= MAX_RECORD_SECTORS);
    let header = Header { kind: Kind::Data, epoch, seq, range, staged: None, packed_bytes: 0 };
    let mut out = BytesMut::with_capacity(header.prefix_bytes());
    put_data_prefix(volume, &header, pieces.iter().map(|piece| &piece[..]), &mut out);
    out.freeze()
}

fn put_data_prefix<'a>(
    volume: VolumeId,
    header: &Header,
    pieces: impl IntoIterator<Item = &'a [u8]>,
    out: &mut BytesMut,
) {
    let start = out.len();
    put_header(header, out);
    let mut pieces = pieces.into_iter();
    let mut rest: &[u8] = &[];
    for block in blocks(header.range) {
        let (mut crc, mut left) = (0, block.bytes() as usize);
        while left > 0 {
            if rest.is_empty() {
                let Some(next) = pieces.next() else { break };
                rest = next;
                continue;
            }
            let (part, after) = rest.split_at(left.min(rest.len()));
            crc = crc32c::crc32c_append(crc, part);
            left -= part.len();
            rest = after;
        }
        out.put_u32_le(crc);
    }
    seal_header(volume, &mut out[start..]);
}

/// Appends a record without payload: a discard or zeroes of any length.
///
/// # Panics
/// If the kind is not a marker's or the range is empty.
pub fn encode_marker(
    volume: VolumeId,
    kind: Kind,
    epoch: Epoch,
    seq: Seq,
    range: Range,
    out: &mut BytesMut,
) {
    assert!(matches!(kind, Kind::Discard | Kind::Zero) && !range.is_empty());
    let start = out.len();
    put_header(&Header { kind, epoch, seq, range, staged: None, packed_bytes: 0 }, out);
    seal_header(volume, &mut out[start..]);
}

/// Appends a record whose data the store has.
///
/// # Panics
/// If the range is empty or cannot be a part of the staged record: [`can_hold`].
pub fn encode_staged(
    volume: VolumeId,
    epoch: Epoch,
    seq: Seq,
    range: Range,
    staged: StagedData,
    out: &mut BytesMut,
) {
    assert!(can_hold(&staged, range) && !range.is_empty());
    let start = out.len();
    let kind = Kind::Staged;
    let header = Header { kind, epoch, seq, range, staged: Some(staged), packed_bytes: 0 };
    put_header(&header, out);
    put_staged(&staged, out);
    seal_header(volume, &mut out[start..]);
}

fn put_header(header: &Header, out: &mut BytesMut) {
    let raw = Raw {
        magic: MAGIC.into(),
        version: RECORD_VERSION,
        kind: header.kind.code(),
        flags: 0.into(),
        epoch: header.epoch.into(),
        seq: header.seq.into(),
        lba: header.range.lba.into(),
        sectors: header.range.sectors.into(),
        payload: (header.payload_bytes() as u32).into(),
        crc: 0.into(),
    };
    out.extend_from_slice(raw.as_bytes());
}

/// Fills in the header checksum of a prefix (header and table, nothing after).
fn seal_header(volume: VolumeId, prefix: &mut [u8]) {
    let crc = header_crc(volume, prefix);
    prefix[CRC_OFFSET..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
}

fn header_crc(volume: VolumeId, prefix: &[u8]) -> u32 {
    let head = crc32c::crc32c_append(seed(volume), &prefix[..CRC_OFFSET]);
    crc32c::crc32c_append(head, &prefix[HEADER_BYTES..])
}

/// The beginning of the checksums of a volume's record headers. Different seeds give different
/// checksums for any header, because a CRC is a bijection of its beginning. One pair of volumes in
/// 2³² has the same seed.
///
/// The seed is not a checksum itself, so that it costs a write nothing: identities are random.
#[must_use]
pub fn seed(volume: VolumeId) -> u32 {
    let (high, low) = ((volume.0 >> 64) as u64, volume.0 as u64);
    ((high.rotate_left(32) ^ low).wrapping_mul(SEED_FACTOR) >> 32) as u32
}

/// Odd, so that all bits count: 2⁶⁴ divided by the golden ratio.
const SEED_FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// The parts of `range` in each checksum block that it touches.
pub(crate) fn blocks(range: Range) -> impl Iterator<Item = Range> {
    let mut at = range.lba;
    std::iter::from_fn(move || {
        if at >= range.end() {
            return None;
        }
        let end = ((at / BLOCK_SECTORS + 1) * BLOCK_SECTORS).min(range.end());
        let part = Range::between(at, end);
        at = end;
        Some(part)
    })
}

/// Parses the header at the start of `bytes`, a record of `volume`, and verifies it together with
/// its table. Ignores the bytes after the prefix.
///
/// # Errors
/// See [`RecordError`]; never [`RecordError::Payload`].
pub fn parse_prefix(volume: VolumeId, bytes: &[u8]) -> Result<Header, RecordError> {
    let Ok((raw, _)) = Raw::ref_from_prefix(bytes) else {
        return Err(RecordError::Short { have: bytes.len(), need: HEADER_BYTES });
    };
    if raw.magic.get() != MAGIC {
        return Err(RecordError::Magic);
    }
    if raw.version != RECORD_VERSION {
        return Err(RecordError::Version(raw.version));
    }
    // Check the bounds of the lengths first. Only the checksum makes them trustworthy.
    let range = Range::new(raw.lba.get(), raw.sectors.get());
    let kind = Kind::from_code(raw.kind).ok_or(RecordError::Invalid("unknown kind"))?;
    if range.is_empty() {
        return Err(RecordError::Invalid("empty range"));
    }
    if !range.fits(MAX_VOLUME_SECTORS) {
        return Err(RecordError::Invalid("range beyond any volume"));
    }
    if kind == Kind::Data && range.sectors > MAX_RECORD_SECTORS {
        return Err(RecordError::Invalid("payload too long"));
    }
    if kind == Kind::Packed && range.sectors > packed::MAX_PACKED_SECTORS {
        return Err(RecordError::Invalid("too long for a packed record"));
    }
    if raw.flags.get() != 0 {
        return Err(RecordError::Invalid("unknown flags"));
    }
    let (epoch, seq) = (raw.epoch.get(), raw.seq.get());
    let packed_bytes = if kind == Kind::Packed { raw.payload.get() } else { 0 };
    let mut header = Header { kind, epoch, seq, range, staged: None, packed_bytes };
    if raw.payload.get() as usize != header.payload_bytes() {
        return Err(RecordError::Invalid("payload length does not match the range"));
    }
    let need = header.prefix_bytes();
    let Some(prefix) = bytes.get(..need) else {
        return Err(RecordError::Short { have: bytes.len(), need });
    };
    if header_crc(volume, prefix) != raw.crc.get() {
        return Err(RecordError::Header);
    }
    if kind == Kind::Staged {
        header.staged = parse_staged(&prefix[HEADER_BYTES..], range);
        if header.staged.is_none() {
            return Err(RecordError::Invalid("its range is not in the staged record"));
        }
    }
    if kind == Kind::Packed {
        packed::check_table(&header, &prefix[HEADER_BYTES..])?;
    }
    Ok(header)
}

/// Takes the record of `volume` at the start of `bytes` apart and verifies all of it.
///
/// # Errors
/// See [`RecordError`].
pub fn parse(volume: VolumeId, bytes: &Bytes) -> Result<Record, RecordError> {
    let header = verify(volume, bytes)?;
    Ok(Record::take_apart(volume, header, bytes))
}

/// Verifies all of the record of `volume` at the start of `bytes`; gives its header.
///
/// # Errors
/// See [`RecordError`].
pub fn verify(volume: VolumeId, bytes: &[u8]) -> Result<Header, RecordError> {
    let header = parse_whole(volume, bytes)?;
    let (prefix, payload) = bytes[..header.record_bytes()].split_at(header.prefix_bytes());
    match header.kind {
        Kind::Data => verify_blocks(header.range, &prefix[HEADER_BYTES..], payload)?,
        Kind::Packed => packed::verify(header.range, &prefix[HEADER_BYTES..], payload)?,
        Kind::Discard | Kind::Zero | Kind::Staged => {}
    }
    Ok(header)
}

/// As [`parse_prefix`], and the whole record is there.
///
/// # Errors
/// As for [`parse_prefix`].
pub(crate) fn parse_whole(volume: VolumeId, bytes: &[u8]) -> Result<Header, RecordError> {
    let header = parse_prefix(volume, bytes)?;
    let need = header.record_bytes();
    if bytes.len() < need {
        return Err(RecordError::Short { have: bytes.len(), need });
    }
    Ok(header)
}

/// Compares every block of `payload` with its entry in `table`; the lengths fit the range.
fn verify_blocks(range: Range, table: &[u8], payload: &[u8]) -> Result<(), RecordError> {
    let mut rest = payload;
    for (block, crc) in blocks(range).zip(table.chunks_exact(4)) {
        let (part, after) = rest.split_at(block.bytes() as usize);
        if crc32c::crc32c(part).to_le_bytes() != crc {
            return Err(RecordError::Payload(block));
        }
        rest = after;
    }
    Ok(())
}

/// A record, with verified checksums except after [`Record::take_apart`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The content of the header.
    pub header: Header,
    /// Payload and table; empty for all but data.
    pub data: Fragment,
    /// All bytes of a packed record; empty for others.
    packed: Bytes,
    volume: VolumeId,
}

impl Record {
    /// The record of `volume` at the start of `bytes`, which hold all of it. `header` is its
    /// header. Does not verify the payload.
    pub(crate) fn take_apart(volume: VolumeId, header: Header, bytes: &Bytes) -> Record {
        let (prefix, end) = (header.prefix_bytes(), header.record_bytes());
        let data = match header.kind {
            Kind::Data => Fragment {
                range: header.range,
                table: bytes.slice(HEADER_BYTES..prefix),
                payload: bytes.slice(prefix..end),
            },
            _ => Fragment::empty(),
        };
        let packed = if header.kind == Kind::Packed { bytes.slice(..end) } else { Bytes::new() };
        Record { header, data, packed, volume }
    }

    /// Appends the part of this record that lies in `part`, as a record of the same number, without
    /// computing a checksum of data. Cuts a data or packed record at block boundaries. So the
    /// result may cover a little more than `part`, but never more than the record.
    ///
    /// # Panics
    /// If the record and `part` have no sector in common.
    pub fn encode_part(&self, part: Range, out: &mut BytesMut) {
        let cut = match self.header.kind {
            Kind::Data | Kind::Packed => part.block_cover().intersect(self.header.range),
            Kind::Discard | Kind::Zero | Kind::Staged => part.intersect(self.header.range),
        };
        assert!(cut.is_some(), "{part} is not in {}", self.header.range);
        let range = cut.unwrap_or(self.header.range);
        if self.header.kind == Kind::Packed {
            return packed::put_cut(self.volume, &self.header, &self.packed, range, out);
        }
        let header = Header { range, ..self.header };
        let start = out.len();
        out.reserve(header.record_bytes());
        put_header(&header, out);
        let fragment = self.data.cut(range);
        out.extend_from_slice(&fragment.table);
        if let Some(staged) = &header.staged {
            put_staged(staged, out);
        }
        seal_header(self.volume, &mut out[start..]);
        out.extend_from_slice(&fragment.payload);
    }
}

/// Data with the checksums of its write: a run of whole checksum blocks of one record. The record's
/// first and last block may be incomplete, as in the write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// The sectors it holds.
    pub range: Range,
    /// One little-endian CRC32C for each block of the volume that `range` touches.
    pub table: Bytes,
    /// The data, of the range's length.
    pub payload: Bytes,
}

impl Fragment {
    fn empty() -> Fragment {
        Fragment { range: Range::new(0, 0), table: Bytes::new(), payload: Bytes::new() }
    }

    /// Compares every block with its checksum.
    ///
    /// # Errors
    /// [`RecordError::Payload`] names the first damaged block; [`RecordError::Invalid`] if table or
    /// payload do not have the length that the range demands.
    pub fn verify(&self) -> Result<(), RecordError> {
        if self.table.len() as u64 != 4 * self.range.blocks()
            || self.payload.len() as u64 != self.range.bytes()
        {
            return Err(RecordError::Invalid("table or payload length does not match the range"));
        }
        verify_blocks(self.range, &self.table, &self.payload)
    }

    /// The part that lies in `cut`, which must be a block-aligned cut of this fragment.
    /// [`Location::new`] gives one, and so does a block cover intersected with the record.
    #[must_use]
    pub fn cut(&self, cut: Range) -> Fragment {
        let Some(range) = self.range.intersect(cut) else { return Fragment::empty() };
        let first = ((range.lba / BLOCK_SECTORS - self.range.lba / BLOCK_SECTORS) * 4) as usize;
        let skip = ((range.lba - self.range.lba) * SECTOR_BYTES) as usize;
        Fragment {
            range,
            table: self.table.slice(first..first + 4 * range.blocks() as usize),
            payload: self.payload.slice(skip..skip + range.bytes() as usize),
        }
    }

    /// The bytes of the sectors of `wanted`, which must lie in the fragment.
    #[must_use]
    pub fn sectors(&self, wanted: Range) -> Bytes {
        let skip = (wanted.lba.saturating_sub(self.range.lba) * SECTOR_BYTES) as usize;
        self.payload.slice(skip..skip + wanted.bytes() as usize)
    }
}

/// The places of everything that a reader needs to read and verify a part of a data record, in
/// bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// The record's own range.
    pub record: Range,
    /// The sectors of the blocks to read: the wanted ones widened to whole blocks.
    pub cover: Range,
    /// Length of header and table, which start at byte 0.
    pub prefix_bytes: usize,
    /// First byte of the cover's payload.
    pub payload_start: usize,
    /// Length of the cover's payload.
    pub payload_bytes: usize,
}

impl Location {
    /// How to read `wanted` out of the data record about `record`; `None` if they do not overlap.
    #[must_use]
    pub fn new(record: Range, wanted: Range) -> Option<Location> {
        let cover = wanted.intersect(record)?.block_cover().intersect(record)?;
        let prefix_bytes = HEADER_BYTES + 4 * record.blocks() as usize;
        let skip = ((cover.lba - record.lba) * SECTOR_BYTES) as usize;
        Some(Location {
            record,
            cover,
            prefix_bytes,
            payload_start: prefix_bytes + skip,
            payload_bytes: cover.bytes() as usize,
        })
    }

    /// Bytes of one read from the start of the record that gets everything.
    #[must_use]
    pub fn span(&self) -> usize {
        self.payload_start + self.payload_bytes
    }

    /// Puts together and verifies the bytes that were read.
    ///
    /// # Errors
    /// Those of [`parse`]; [`RecordError::Invalid`] if another record is there.
    pub fn extract(
        &self,
        volume: VolumeId,
        seq: Seq,
        prefix: &Bytes,
        payload: Bytes,
    ) -> Result<Fragment, RecordError> {
        let header = parse_prefix(volume, prefix)?;
        if header.kind != Kind::Data || header.range != self.record || header.seq != seq {
            return Err(RecordError::Invalid("another record than the map says"));
        }
        let first =
            ((self.cover.lba / BLOCK_SECTORS - self.record.lba / BLOCK_SECTORS) * 4) as usize;
        let table_start = HEADER_BYTES + first;
        let fragment = Fragment {
            range: self.cover,
            table: prefix.slice(table_start..table_start + 4 * self.cover.blocks() as usize),
            payload,
        };
        fragment.verify()?;
        Ok(fragment)
    }
}

#[cfg(test)]
mod tests;
