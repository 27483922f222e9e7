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
//! that the range touches, over the part of the payload that lies in that block; `header crc` is the
//! CRC32C of the first 44 bytes followed by the table. Discards and zeroes have neither table nor
//! payload. A staged record has no payload either; where the table would be it says in 24 bytes where
//! its data lies:
//!
//! ```text
//!  48       56           64       68           72
//!  ┌────────┬────────────┬────────┬────────────┐
//!  │ object │ record lba │ offset │ record     │
//!  │  u64   │    u64     │  u32   │ sectors u32│
//!  └────────┴────────────┴────────┴────────────┘
//! ```
//!
//! A record does not name its volume: the journal frame, batch or segment around it does.
//!
//! Checksums of data are computed once, in [`encode_data`]. Everything after that verifies them or
//! carries them along: a record can be cut at block boundaries ([`Fragment`]) without a new one.

use crate::block::{
    BLOCK_SECTORS, Epoch, MAX_VOLUME_SECTORS, Range, SECTOR_BYTES, STAGED_BIT, Seq, StagedData,
};
use bytes::{BufMut, Bytes, BytesMut};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of the encoding, in the header of every record but the staged.
pub const RECORD_VERSION: u8 = 1;

/// Version of a staged record: what does not know them has to say so.
pub const STAGED_VERSION: u8 = 2;

/// Bytes of a staged record that say where its data lies.
pub const STAGED_BYTES: usize = 24;

/// Bytes of a header without its table.
pub const HEADER_BYTES: usize = 48;

/// Largest data record, in sectors (1 MiB). A longer write becomes several records.
pub const MAX_RECORD_SECTORS: u64 = 2048;

/// Longest write that is one data record wherever it begins, in sectors: records are cut where
/// checksum blocks end.
pub const MAX_WHOLE_SECTORS: u64 = MAX_RECORD_SECTORS - BLOCK_SECTORS;

/// Most bytes a record takes: header, table of an unaligned range, payload.
pub const MAX_RECORD_BYTES: usize = HEADER_BYTES
    + 4 * (MAX_RECORD_SECTORS / BLOCK_SECTORS + 1) as usize
    + (MAX_RECORD_SECTORS * SECTOR_BYTES) as usize;

const MAGIC: u32 = u32::from_le_bytes(*b"LHRC");
const CRC_OFFSET: usize = HEADER_BYTES - 4;

/// What a record does to its range.
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
            _ => None,
        }
    }

    fn version(self) -> u8 {
        if self == Kind::Staged { STAGED_VERSION } else { RECORD_VERSION }
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
        "record version {0} is not known to this version of longhaul: it is damaged, or a newer version wrote it"
    )]
    Version(u8),
    /// Header or table do not match their checksum.
    #[error("record header is damaged")]
    Header,
    /// The header is intact but says what no record may.
    #[error("record header is not valid: {0}")]
    Invalid(&'static str),
    /// A block of the payload does not match its checksum.
    #[error("record payload is damaged at {0}")]
    Payload(Range),
}

/// What the header of a record says.
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
}

impl Header {
    /// Entries in the checksum table.
    #[must_use]
    pub fn table_entries(&self) -> usize {
        if self.kind == Kind::Data { self.range.blocks() as usize } else { 0 }
    }

    /// Bytes before the payload: header and what its checksum covers besides.
    #[must_use]
    pub fn prefix_bytes(&self) -> usize {
        let staged = if self.kind == Kind::Staged { STAGED_BYTES } else { 0 };
        HEADER_BYTES + 4 * self.table_entries() + staged
    }

    /// Bytes of payload.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        if self.kind == Kind::Data { self.range.bytes() as usize } else { 0 }
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
pub fn encode_data(epoch: Epoch, seq: Seq, range: Range, data: &[u8], out: &mut BytesMut) {
    assert!(data.len() as u64 == range.bytes() && !range.is_empty());
    assert!(range.sectors <= MAX_RECORD_SECTORS);
    let header = Header { kind: Kind::Data, epoch, seq, range, staged: None };
    out.reserve(header.record_bytes());
    put_data_prefix(&header, [data], out);
    out.extend_from_slice(data);
}

/// The bytes of a data record before its payload, which lies in pieces of any size.
///
/// # Panics
/// As [`encode_data`].
pub(crate) fn data_prefix(epoch: Epoch, seq: Seq, range: Range, pieces: &[Bytes]) -> Bytes {
    let bytes: usize = pieces.iter().map(Bytes::len).sum();
    assert!(bytes as u64 == range.bytes() && !range.is_empty());
    assert!(range.sectors <= MAX_RECORD_SECTORS);
    let header = Header { kind: Kind::Data, epoch, seq, range, staged: None };
    let mut out = BytesMut::with_capacity(header.prefix_bytes());
    put_data_prefix(&header, pieces.iter().map(|piece| &piece[..]), &mut out);
    out.freeze()
}

fn put_data_prefix<'a>(
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
    seal_header(&mut out[start..]);
}

/// Appends a record without payload: a discard or zeroes of any length.
///
/// # Panics
/// If the kind is not a marker's or the range is empty.
pub fn encode_marker(kind: Kind, epoch: Epoch, seq: Seq, range: Range, out: &mut BytesMut) {
    assert!(matches!(kind, Kind::Discard | Kind::Zero) && !range.is_empty());
    let start = out.len();
    put_header(&Header { kind, epoch, seq, range, staged: None }, out);
    seal_header(&mut out[start..]);
}

/// Appends a record whose data the store has.
///
/// # Panics
/// If the range is empty or cannot be a part of the staged record: [`can_hold`].
pub fn encode_staged(epoch: Epoch, seq: Seq, range: Range, staged: StagedData, out: &mut BytesMut) {
    assert!(can_hold(&staged, range) && !range.is_empty());
    let start = out.len();
    put_header(&Header { kind: Kind::Staged, epoch, seq, range, staged: Some(staged) }, out);
    put_staged(&staged, out);
    seal_header(&mut out[start..]);
}

fn put_header(header: &Header, out: &mut BytesMut) {
    let raw = Raw {
        magic: MAGIC.into(),
        version: header.kind.version(),
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
fn seal_header(prefix: &mut [u8]) {
    let crc = header_crc(prefix);
    prefix[CRC_OFFSET..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
}

fn header_crc(prefix: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&prefix[..CRC_OFFSET]), &prefix[HEADER_BYTES..])
}

/// The parts of `range` in each checksum block that it touches.
fn blocks(range: Range) -> impl Iterator<Item = Range> {
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

/// Reads the header at the start of `bytes` and verifies it together with its table. What follows
/// the prefix is not looked at.
///
/// # Errors
/// See [`RecordError`]; never [`RecordError::Payload`].
pub fn parse_prefix(bytes: &[u8]) -> Result<Header, RecordError> {
    let Ok((raw, _)) = Raw::ref_from_prefix(bytes) else {
        return Err(RecordError::Short { have: bytes.len(), need: HEADER_BYTES });
    };
    if raw.magic.get() != MAGIC {
        return Err(RecordError::Magic);
    }
    if ![RECORD_VERSION, STAGED_VERSION].contains(&raw.version) {
        return Err(RecordError::Version(raw.version));
    }
    // The lengths are bounded before they are trusted, and trusted only after the checksum.
    let range = Range::new(raw.lba.get(), raw.sectors.get());
    let kind = Kind::from_code(raw.kind).ok_or(RecordError::Invalid("unknown kind"))?;
    if raw.version != kind.version() {
        return Err(RecordError::Invalid("a kind of another version"));
    }
    if range.is_empty() {
        return Err(RecordError::Invalid("empty range"));
    }
    if !range.fits(MAX_VOLUME_SECTORS) {
        return Err(RecordError::Invalid("range beyond any volume"));
    }
    if kind == Kind::Data && range.sectors > MAX_RECORD_SECTORS {
        return Err(RecordError::Invalid("payload too long"));
    }
    if raw.flags.get() != 0 {
        return Err(RecordError::Invalid("unknown flags"));
    }
    let (epoch, seq) = (raw.epoch.get(), raw.seq.get());
    let mut header = Header { kind, epoch, seq, range, staged: None };
    if raw.payload.get() as usize != header.payload_bytes() {
        return Err(RecordError::Invalid("payload length does not match the range"));
    }
    let need = header.prefix_bytes();
    let Some(prefix) = bytes.get(..need) else {
        return Err(RecordError::Short { have: bytes.len(), need });
    };
    if header_crc(prefix) != raw.crc.get() {
        return Err(RecordError::Header);
    }
    if kind == Kind::Staged {
        header.staged = parse_staged(&prefix[HEADER_BYTES..], range);
        if header.staged.is_none() {
            return Err(RecordError::Invalid("its range is not in the staged record"));
        }
    }
    Ok(header)
}

/// Takes the record at the start of `bytes` apart and verifies all of it.
///
/// # Errors
/// See [`RecordError`].
pub fn parse(bytes: &Bytes) -> Result<Record, RecordError> {
    let header = verify(bytes)?;
    Ok(Record::take_apart(header, bytes))
}

/// Verifies all of the record at the start of `bytes`; gives its header.
///
/// # Errors
/// See [`RecordError`].
pub fn verify(bytes: &[u8]) -> Result<Header, RecordError> {
    let header = parse_whole(bytes)?;
    if header.kind == Kind::Data {
        let (prefix, payload) = bytes[..header.record_bytes()].split_at(header.prefix_bytes());
        verify_blocks(header.range, &prefix[HEADER_BYTES..], payload)?;
    }
    Ok(header)
}

/// As [`parse_prefix`], and the whole record is there.
///
/// # Errors
/// As for [`parse_prefix`].
pub(crate) fn parse_whole(bytes: &[u8]) -> Result<Header, RecordError> {
    let header = parse_prefix(bytes)?;
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

/// A record, its checksums verified unless [`Record::take_apart`] was asked for less.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What the header says.
    pub header: Header,
    /// Payload and table; empty for markers.
    pub data: Fragment,
}

impl Record {
    /// The record that `bytes` start with; `header` is what they say and all of it is there. The
    /// payload is not looked at.
    pub(crate) fn take_apart(header: Header, bytes: &Bytes) -> Record {
        let table = HEADER_BYTES..HEADER_BYTES + 4 * header.table_entries();
        let data = Fragment {
            range: if header.kind == Kind::Data { header.range } else { Range::new(0, 0) },
            table: bytes.slice(table),
            payload: bytes.slice(header.prefix_bytes()..header.record_bytes()),
        };
        Record { header, data }
    }

    /// Appends the part of this record that lies in `part`, as a record of the same number, without
    /// computing a checksum of data. A data record is cut at block boundaries, so the result may
    /// cover a little more than `part`, never more than the record.
    ///
    /// # Panics
    /// If the record and `part` have no sector in common.
    pub fn encode_part(&self, part: Range, out: &mut BytesMut) {
        let cut = match self.header.kind {
            Kind::Data => part.block_cover().intersect(self.header.range),
            Kind::Discard | Kind::Zero | Kind::Staged => part.intersect(self.header.range),
        };
        assert!(cut.is_some(), "{part} is not in {}", self.header.range);
        let range = cut.unwrap_or(self.header.range);
        let header = Header { range, ..self.header };
        let start = out.len();
        out.reserve(header.record_bytes());
        put_header(&header, out);
        let fragment = self.data.cut(range);
        out.extend_from_slice(&fragment.table);
        if let Some(staged) = &header.staged {
            put_staged(staged, out);
        }
        seal_header(&mut out[start..]);
        out.extend_from_slice(&fragment.payload);
    }
}

/// Data with the checksums it was written with: a run of whole checksum blocks of one record (the
/// record's first and last block may be cut short, as they were when written).
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

    /// The part that lies in `cut`, which must be a block-aligned cut of this fragment (as
    /// [`Location::new`] or a block cover intersected with the record gives).
    #[must_use]
    pub fn cut(&self, cut: Range) -> Fragment {
        let Some(range) = self.range.intersect(cut) else {
            return Fragment {
                range: Range::new(0, 0),
                table: Bytes::new(),
                payload: Bytes::new(),
            };
        };
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

/// Where, in bytes from the start of an encoded data record, lie the things that are needed to read
/// and verify a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// The record's own range.
    pub record: Range,
    /// The sectors whose blocks have to be read: the wanted ones widened to whole blocks.
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

    /// Puts together and verifies what was read.
    ///
    /// # Errors
    /// As for [`parse`]; [`RecordError::Invalid`] if the record found there is not the one expected.
    pub fn extract(
        &self,
        seq: Seq,
        prefix: &Bytes,
        payload: Bytes,
    ) -> Result<Fragment, RecordError> {
        let header = parse_prefix(prefix)?;
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn data(range: Range) -> Vec<u8> {
        (0..range.bytes()).map(|n| (n / 3 + range.lba) as u8).collect()
    }

    fn encoded(range: Range) -> Bytes {
        let mut out = BytesMut::new();
        encode_data(3, 77, range, &data(range), &mut out);
        out.freeze()
    }

    /// The bytes on disk do not change by accident: this is the record of `docs/formats.md`.
    #[test]
    fn golden_bytes() {
        let mut out = BytesMut::new();
        encode_marker(Kind::Discard, 1, 2, Range::new(8, 16), &mut out);
        let hex: String = out.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            "4c48524301020000010000000000000002000000000000000800000000000000100000000000000000000000\
             6fe82f88"
        );
    }

    fn staged(range: Range, record: Range) -> Bytes {
        let staged = StagedData { object: STAGED_BIT | 0xfeed, offset: 4096, record };
        let mut out = BytesMut::new();
        encode_staged(1, 2, range, staged, &mut out);
        out.freeze()
    }

    #[test]
    fn golden_staged_bytes() {
        let hex: String = staged(Range::new(8, 16), Range::new(4, 24))
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        assert_eq!(
            hex,
            "4c48524302040000010000000000000002000000000000000800000000000000100000000000000000000000\
             a1a5ca2eedfe00000000008004000000000000000010000018000000"
        );
    }

    #[test]
    fn marker_has_no_payload_and_any_length() {
        let mut out = BytesMut::new();
        encode_marker(Kind::Zero, 1, 2, Range::new(0, 1 << 40), &mut out);
        assert_eq!(out.len(), HEADER_BYTES);
        let record = parse(&out.freeze()).unwrap();
        assert_eq!(record.header.kind, Kind::Zero);
        assert_eq!(record.header.range.sectors, 1 << 40);
    }

    #[test]
    fn later_version_is_named() {
        let mut out = BytesMut::from(&encoded(Range::new(0, 8))[..]);
        out[4] = 9;
        assert_eq!(parse(&out.freeze()), Err(RecordError::Version(9)));
    }

    fn range() -> impl Strategy<Value = Range> {
        (0..40u64, 1..60u64).prop_map(|(lba, sectors)| Range::new(lba, sectors))
    }

    proptest! {
        #[test]
        fn round_trip(range in range()) {
            let bytes = encoded(range);
            prop_assert!(bytes.len() <= MAX_RECORD_BYTES);
            let record = parse(&bytes).unwrap();
            let header = Header { kind: Kind::Data, epoch: 3, seq: 77, range, staged: None };
            prop_assert_eq!(record.header, header);
            prop_assert_eq!(&record.data.payload[..], &data(range)[..]);
        }

        #[test]
        fn staged_records_round_trip_and_can_be_cut(
            record in range(), skip in 0..60u64, len in 1..60u64, cut in 0..60u64, bit in 0..576usize,
        ) {
            let range = Range::new(record.lba + skip % record.sectors, len).intersect(record).unwrap();
            let bytes = staged(range, record);
            let parsed = parse(&bytes).unwrap();
            prop_assert_eq!(bytes.len(), parsed.header.record_bytes());
            prop_assert_eq!(parsed.header.staged.unwrap().record, record);
            let part = Range::between(range.lba + cut % range.sectors, range.end());
            let mut out = BytesMut::new();
            parsed.encode_part(part, &mut out);
            let piece = parse(&out.freeze()).unwrap();
            prop_assert_eq!(piece.header, Header { range: part, ..parsed.header });
            let mut damaged = bytes.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(parse(&Bytes::from(damaged)).is_err());
        }

        #[test]
        fn a_prefix_does_not_depend_on_the_pieces(range in range(), at in any::<prop::sample::Index>()) {
            let bytes = encoded(range);
            let payload = bytes.slice(bytes.len() - range.bytes() as usize..);
            let (one, two) = payload.split_at(at.index(payload.len()));
            let pieces = [Bytes::copy_from_slice(one), Bytes::copy_from_slice(two)];
            let prefix = data_prefix(3, 77, range, &pieces);
            prop_assert_eq!(&prefix[..], &bytes[..bytes.len() - payload.len()]);
        }

        #[test]
        fn any_flipped_bit_is_noticed(range in range(), at in any::<prop::sample::Index>(), bit in 0..8u8) {
            let mut bytes = encoded(range).to_vec();
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert!(parse(&Bytes::from(bytes)).is_err());
        }

        #[test]
        fn any_cut_is_noticed(range in range(), at in any::<prop::sample::Index>()) {
            let bytes = encoded(range);
            let cut = bytes.slice(..at.index(bytes.len()));
            let short = matches!(parse(&cut), Err(RecordError::Short { .. }));
            prop_assert!(short);
        }

        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut bytes = bytes;
            let _ = parse(&Bytes::from(bytes.clone()));
            if bytes.len() >= 6 {
                bytes[..4].copy_from_slice(b"LHRC");
                bytes[4] = RECORD_VERSION;
                let _ = parse(&Bytes::from(bytes));
            }
        }

        #[test]
        fn parts_keep_checksums(range in range(), skip in 0..60u64, len in 1..60u64) {
            let part = Range::new(range.lba + skip % range.sectors, len).intersect(range).unwrap();
            let bytes = encoded(range);
            let record = parse(&bytes).unwrap();

            let mut out = BytesMut::new();
            record.encode_part(part, &mut out);
            let piece = parse(&out.freeze()).unwrap();
            prop_assert_eq!(piece.header.seq, 77);
            prop_assert!(piece.header.range.intersect(part) == Some(part));
            prop_assert_eq!(piece.data.sectors(part), record.data.sectors(part));

            let location = Location::new(range, part).unwrap();
            let fragment = location.extract(
                77,
                &bytes.slice(..location.prefix_bytes),
                bytes.slice(location.payload_start..location.span()),
            ).unwrap();
            prop_assert_eq!(fragment.range, piece.header.range);
            prop_assert_eq!(fragment.sectors(part), record.data.sectors(part));
        }
    }
}
