//! The segment: an immutable object with a run of the log.
//!
//! ```text
//! ┌─────────────┬─────────────────────────────┬──────────────────────────────────┬──────────────┐
//! │ header      │ records, as they arrived    │ footer: index, announced ranges  │ trailer      │
//! │ 128 B       │                             │                                  │ 32 B         │
//! └─────────────┴─────────────────────────────┴──────────────────────────────────┴──────────────┘
//! ```
//!
//! Header and footer have all facts that opening a volume needs; the records' own checksums cover
//! their payloads. Every header has the checksum of the header before it. So a segment of another
//! history cannot stand in for the right one. `docs/formats.md` draws the fields.

use super::announce;
use super::catalog::check_name;
use crate::block::{Epoch, MAX_VOLUME_SECTORS, Range, Seq, StagedData, VolumeId};
use crate::record::packed::{self, MAX_PACKED_SECTORS};
use crate::record::{
    self, HEADER_BYTES as RECORD_BYTES, Kind, MAX_RECORD_SECTORS, RecordError, STAGED_BYTES,
};
use crate::wire::link::{Announced, HostId, KeyId, MAX_NAME_BYTES};
use bytes::{BufMut, Bytes, BytesMut};
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of the format.
pub const SEGMENT_VERSION: u16 = 1;
/// Bytes of a header.
pub const HEADER_BYTES: usize = 128;
/// Bytes of a trailer.
pub const TRAILER_BYTES: usize = 32;
/// Most bytes of records in a segment.
pub const MAX_RECORDS_BYTES: u64 = 64 << 20;
/// Most segments of an engine on their way at once. A constant of the format: after the first
/// segment of an engine, one number less is void.
pub const IN_FLIGHT_MAX: u64 = 16;
/// Most announced ranges in a segment or root.
pub const MAX_ANNOUNCED: usize = 1 << 20;
/// Most bytes of a footer: every record staged, and every announced range of the longest form.
pub const MAX_FOOTER_BYTES: u64 = FOOTER_BYTES as u64
    + MAX_RECORDS_BYTES / (RECORD_BYTES + STAGED_BYTES) as u64
        * (PIECE_BYTES + STAGED_BYTES) as u64
    + (MAX_ANNOUNCED * announce::MAX_ENTRY_BYTES) as u64
    + (NOTE_BYTES + u8::MAX as usize) as u64
    + size_of::<KeyId>() as u64;

const HEADER_MAGIC: u32 = u32::from_le_bytes(*b"LHSG");
const FOOTER_MAGIC: u32 = u32::from_le_bytes(*b"LHSF");
const TRAILER_MAGIC: u32 = u32::from_le_bytes(*b"LHST");
const FOOTER_BYTES: usize = 24;
const PIECE_BYTES: usize = 32;
const NOTE_BYTES: usize = 33;
const FLAG_ROUNDED: u16 = 1;
/// In the byte of a header that says how many segments were on their way.
const FLAG_VOIDS: u8 = 0x80;

const _: () = assert!(MAX_RECORDS_BYTES + MAX_FOOTER_BYTES < u32::MAX as u64, "offsets are u32");

/// The kinds of segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentKind {
    /// Commits writes.
    Data,
    /// Begins an epoch.
    Attach,
    /// Ends an epoch in order.
    Detach,
    /// Gives up the announced writes and begins an epoch without a host.
    AcceptLoss,
    /// Remembers the announced writes, nothing else.
    Announce,
    /// Makes the volume larger.
    Resize,
    /// Takes a snapshot: the content of the volume after this segment.
    Snapshot,
    /// Deletes a snapshot.
    DeleteSnapshot,
    /// Makes the volume what a snapshot is, and begins an epoch that is nobody's.
    Rollback,
    /// A clone begins with a snapshot.
    Clone,
    /// A clone is gone.
    Forget,
    /// Makes the volume smaller, and begins an epoch without a host. Its one record discards the
    /// range that it cuts off.
    Shrink,
}

impl SegmentKind {
    fn code(self) -> u8 {
        match self {
            SegmentKind::Data => 1,
            SegmentKind::Attach => 2,
            SegmentKind::Detach => 3,
            SegmentKind::AcceptLoss => 4,
            SegmentKind::Announce => 5,
            SegmentKind::Resize => 6,
            SegmentKind::Snapshot => 7,
            SegmentKind::DeleteSnapshot => 8,
            SegmentKind::Rollback => 9,
            SegmentKind::Clone => 10,
            SegmentKind::Forget => 11,
            SegmentKind::Shrink => 12,
        }
    }

    fn from_code(code: u8) -> Option<SegmentKind> {
        Some(match code {
            1 => SegmentKind::Data,
            2 => SegmentKind::Attach,
            3 => SegmentKind::Detach,
            4 => SegmentKind::AcceptLoss,
            5 => SegmentKind::Announce,
            6 => SegmentKind::Resize,
            7 => SegmentKind::Snapshot,
            8 => SegmentKind::DeleteSnapshot,
            9 => SegmentKind::Rollback,
            10 => SegmentKind::Clone,
            11 => SegmentKind::Forget,
            12 => SegmentKind::Shrink,
            _ => return None,
        })
    }

    /// Whether it begins an epoch.
    #[must_use]
    pub fn begins_epoch(self) -> bool {
        matches!(
            self,
            SegmentKind::Attach
                | SegmentKind::AcceptLoss
                | SegmentKind::Rollback
                | SegmentKind::Shrink
        )
    }

    /// Whether its footer has a [`Note`].
    #[must_use]
    pub fn has_note(self) -> bool {
        matches!(
            self,
            SegmentKind::Snapshot
                | SegmentKind::DeleteSnapshot
                | SegmentKind::Rollback
                | SegmentKind::Clone
                | SegmentKind::Forget
        )
    }
}

/// Tells who wrote a segment: no two attempts to write one share a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// Random, of the engine that wrote it.
    pub incarnation: u128,
    /// Counts that engine's segments; with [`BEGINS`] if it follows a segment of another engine.
    pub counter: u64,
}

/// In the counter of a [`Token`]: another engine wrote the segment before. No engine ever deletes
/// such a segment. So an engine that believes that the log ends there never gets its number.
pub const BEGINS: u64 = 1 << 63;

impl Token {
    /// Whether the segment follows one of another engine.
    #[must_use]
    pub fn begins(&self) -> bool {
        self.counter & BEGINS != 0
    }
}

/// The content of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Which volume.
    pub volume: VolumeId,
    /// Number in the log, from 1.
    pub number: u64,
    /// What it does.
    pub kind: SegmentKind,
    /// The epoch that it belongs to, or begins.
    pub epoch: Epoch,
    /// The host of that epoch; 0 for none.
    pub host: HostId,
    /// The engine that wrote the segment.
    pub token: Token,
    /// First number that it commits: one more than the last committed number before it.
    pub first: Seq,
    /// Last number committed once this segment exists; `first - 1` if it commits nothing.
    pub last: Seq,
    /// Bytes of records.
    pub records_bytes: u32,
    /// Bytes of the footer.
    pub footer_bytes: u32,
    /// The checksum of the previous segment's header; 0 for the first.
    pub previous: u32,
    /// For a segment that resizes: the size of the volume from here on, in sectors. Otherwise 0.
    pub sectors: u64,
    /// The last segment before this one that void numbers follow; 0 for none.
    pub void_after: u64,
    /// Whether void numbers follow this one.
    pub voids: bool,
    /// How many segments before this one were on their way when the engine built this one. All
    /// segments before those were durable.
    pub ahead: u8,
}

/// The number of the segment after one that void numbers follow; 0 if there is none.
fn segment_after_void(void_after: u64) -> u64 {
    if void_after == 0 { 0 } else { void_after.saturating_add(IN_FLIGHT_MAX) }
}

/// The number of the segment after `number`, if void numbers last followed `void_after`.
#[must_use]
pub fn number_after(number: u64, void_after: u64) -> u64 {
    if number == void_after && number > 0 {
        segment_after_void(void_after)
    } else {
        number.saturating_add(1)
    }
}

/// The number of the segment before `number`, if void numbers last followed `void_after`.
#[must_use]
pub fn number_before(number: u64, void_after: u64) -> u64 {
    let before = number.saturating_sub(1);
    let void = void_after..segment_after_void(void_after);
    if void.contains(&before) { void_after } else { before }
}

impl Header {
    /// The last segment that void numbers follow, this one included; 0 for none.
    #[must_use]
    pub fn last_void_after(&self) -> u64 {
        if self.voids { self.number } else { self.void_after }
    }

    /// The number of the segment after this one.
    #[must_use]
    pub fn number_after(&self) -> u64 {
        number_after(self.number, self.last_void_after())
    }

    /// The number of the segment before, 0 for none.
    #[must_use]
    pub fn number_before(&self) -> u64 {
        number_before(self.number, self.void_after)
    }

    /// The last segment that was durable before the put of this one, 0 for none.
    #[must_use]
    pub fn number_durable(&self) -> u64 {
        number_before(self.number.saturating_sub(self.ahead.into()), self.void_after)
    }

    /// Where footer and trailer lie in the object.
    #[must_use]
    pub fn tail(&self) -> std::ops::Range<u64> {
        let start = HEADER_BYTES as u64 + u64::from(self.records_bytes);
        start..start + u64::from(self.footer_bytes) + TRAILER_BYTES as u64
    }
}

/// A record of a segment, or the part of one that survived the coalescing of its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// What it does.
    pub kind: Kind,
    /// To which sectors.
    pub range: Range,
    /// Number of the write.
    pub seq: Seq,
    /// Byte of the object, or of the batch before it is in one, at which the record begins.
    pub offset: u32,
    /// The place of the data, if it is in a staged object.
    pub staged: Option<StagedData>,
    /// Bytes of the record's payload, if it is packed; otherwise 0.
    pub packed_bytes: u32,
}

impl Piece {
    /// Bytes of the record.
    #[must_use]
    pub fn record_bytes(&self) -> usize {
        let Piece { kind, range, seq, staged, packed_bytes, .. } = *self;
        record::Header { kind, epoch: 0, seq, range, staged, packed_bytes }.record_bytes()
    }

    fn end(&self) -> u64 {
        u64::from(self.offset) + self.record_bytes() as u64
    }
}

/// The content of a footer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Footer {
    /// The records in order.
    pub pieces: Vec<Piece>,
    /// Acknowledged writes that are not committed once this segment exists, in order of address.
    pub announced: Vec<Announced>,
    /// Whether the engine widened announced ranges to have fewer.
    pub rounded: bool,
    /// For a segment that begins an epoch: the last number that the epoch builds on.
    pub base: Seq,
    /// For a segment about a snapshot or a clone: which.
    pub note: Option<Note>,
    /// For one that attaches: the key of the session that asked for it.
    pub key: KeyId,
}

/// The facts in a segment about a snapshot or a clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The segment that took the snapshot: perhaps this one.
    pub segment: u64,
    /// The identity of the snapshot; of a segment that is about a clone, the clone's.
    pub id: VolumeId,
    /// The time of the snapshot or of the request, seconds since 1970; otherwise 0.
    pub created: u64,
    /// Its name; empty where the identity says enough.
    pub name: String,
}

/// A segment's header and footer, verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The header.
    pub header: Header,
    /// Its checksum, which the next segment carries.
    pub header_crc: u32,
    /// The footer.
    pub footer: Footer,
}

/// Why bytes are not a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SegmentError {
    /// The bytes end before the segment does.
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
    /// Intact, but not what a segment may say.
    #[error("not valid: {0}")]
    Invalid(&'static str),
    /// A record is damaged.
    #[error("record at byte {offset}: {error}")]
    Record {
        /// Where in the object.
        offset: u64,
        /// The damage of the record.
        error: RecordError,
    },
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: U32,
    version: U16,
    kind: u8,
    ahead: u8,
    volume: U128,
    number: U64,
    epoch: U64,
    host: U128,
    incarnation: U128,
    counter: U64,
    first: U64,
    last: U64,
    records_bytes: U32,
    footer_bytes: U32,
    previous: U32,
    sectors: U64,
    void_after: U64,
    crc: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawFooter {
    magic: U32,
    version: U16,
    flags: U16,
    pieces: U32,
    announced: U32,
    base: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawPiece {
    lba: U64,
    sectors: U64,
    seq: U64,
    offset: U32,
    kind: u8,
    packed_bytes: [u8; 3],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawNote {
    segment: U64,
    id: U128,
    created: U64,
    name_bytes: u8,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawTrailer {
    magic: U32,
    version: U16,
    flags: U16,
    footer_offset: U64,
    footer_bytes: U32,
    footer_crc: U32,
    header_crc: U32,
    crc: U32,
}

const _: () = assert!(size_of::<RawHeader>() == HEADER_BYTES);
const _: () = assert!(size_of::<RawFooter>() == FOOTER_BYTES);
const _: () = assert!(size_of::<RawPiece>() == PIECE_BYTES);
const _: () = assert!(size_of::<RawNote>() == NOTE_BYTES);
const _: () = assert!(size_of::<RawTrailer>() == TRAILER_BYTES);
const _: () = assert!(MAX_NAME_BYTES <= u8::MAX as usize);

/// Puts a segment together around `records`, which are not copied. Lengths in `header` are filled
/// in; offsets in the footer are those of the object already.
///
/// # Panics
/// If the records are longer than [`MAX_RECORDS_BYTES`], which the engine's limits exclude.
#[must_use]
pub fn build(mut header: Header, footer: Footer, records: Vec<Bytes>) -> (Segment, Vec<Bytes>) {
    let records_bytes: u64 = records.iter().map(|part| part.len() as u64).sum();
    assert!(records_bytes <= MAX_RECORDS_BYTES && footer.announced.len() <= MAX_ANNOUNCED);
    let mut tail = BytesMut::with_capacity(
        FOOTER_BYTES
            + footer.pieces.len() * PIECE_BYTES
            + footer.announced.len() * 8
            + TRAILER_BYTES,
    );
    put_footer(&footer, &header, &mut tail);
    header.records_bytes = records_bytes as u32;
    header.footer_bytes = tail.len() as u32;
    let (head, header_crc) = encode_header(&header);
    let trailer = RawTrailer {
        magic: TRAILER_MAGIC.into(),
        version: SEGMENT_VERSION.into(),
        flags: 0.into(),
        footer_offset: header.tail().start.into(),
        footer_bytes: header.footer_bytes.into(),
        footer_crc: crc32c::crc32c(&tail).into(),
        header_crc: header_crc.into(),
        crc: 0.into(),
    };
    let trailer = trailer.as_bytes();
    tail.extend_from_slice(&trailer[..TRAILER_BYTES - 4]);
    tail.put_u32_le(crc32c::crc32c(&trailer[..TRAILER_BYTES - 4]));
    let mut data = Vec::with_capacity(records.len() + 2);
    data.push(head);
    data.extend(records);
    data.push(tail.freeze());
    (Segment { header, header_crc, footer }, data)
}

fn encode_header(header: &Header) -> (Bytes, u32) {
    let raw = RawHeader {
        magic: HEADER_MAGIC.into(),
        version: SEGMENT_VERSION.into(),
        kind: header.kind.code(),
        ahead: header.ahead | if header.voids { FLAG_VOIDS } else { 0 },
        volume: header.volume.0.into(),
        number: header.number.into(),
        epoch: header.epoch.into(),
        host: header.host.0.into(),
        incarnation: header.token.incarnation.into(),
        counter: header.token.counter.into(),
        first: header.first.into(),
        last: header.last.into(),
        records_bytes: header.records_bytes.into(),
        footer_bytes: header.footer_bytes.into(),
        previous: header.previous.into(),
        sectors: header.sectors.into(),
        void_after: header.void_after.into(),
        crc: 0.into(),
    };
    let mut out = BytesMut::from(raw.as_bytes());
    let crc = crc32c::crc32c(&out[..HEADER_BYTES - 4]);
    out[HEADER_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
    (out.freeze(), crc)
}

fn put_footer(footer: &Footer, header: &Header, out: &mut BytesMut) {
    let flags = if footer.rounded { FLAG_ROUNDED } else { 0 };
    let raw = RawFooter {
        magic: FOOTER_MAGIC.into(),
        version: SEGMENT_VERSION.into(),
        flags: flags.into(),
        pieces: (footer.pieces.len() as u32).into(),
        announced: (footer.announced.len() as u32).into(),
        base: footer.base.into(),
    };
    out.extend_from_slice(raw.as_bytes());
    for piece in &footer.pieces {
        let bytes = piece.packed_bytes.to_le_bytes();
        let raw = RawPiece {
            lba: piece.range.lba.into(),
            sectors: piece.range.sectors.into(),
            seq: piece.seq.into(),
            offset: piece.offset.into(),
            kind: piece.kind.code(),
            packed_bytes: [bytes[0], bytes[1], bytes[2]],
        };
        out.extend_from_slice(raw.as_bytes());
    }
    for staged in footer.pieces.iter().filter_map(|piece| piece.staged.as_ref()) {
        record::put_staged(staged, out);
    }
    if let Some(note) = &footer.note {
        put_note(note, out);
    }
    if header.kind == SegmentKind::Attach {
        out.extend_from_slice(&footer.key.0);
    }
    announce::encode(&footer.announced, header.last, out);
}

fn put_note(note: &Note, out: &mut BytesMut) {
    let name = &note.name.as_bytes()[..note.name.len().min(MAX_NAME_BYTES)];
    let raw = RawNote {
        segment: note.segment.into(),
        id: note.id.0.into(),
        created: note.created.into(),
        name_bytes: name.len() as u8,
    };
    out.extend_from_slice(raw.as_bytes());
    out.extend_from_slice(name);
}

/// The note of a footer, and what follows it.
fn take_note(kind: SegmentKind, bytes: &[u8]) -> Option<(Note, &[u8])> {
    let (raw, rest) = RawNote::ref_from_prefix(bytes).ok()?;
    let (name, rest) = rest.split_at_checked(usize::from(raw.name_bytes))?;
    let name = std::str::from_utf8(name).ok()?;
    let named = matches!(kind, SegmentKind::Snapshot | SegmentKind::Clone);
    let good = if named { check_name(name).is_ok() } else { name.is_empty() };
    let note = Note {
        segment: raw.segment.get(),
        id: VolumeId(raw.id.get()),
        created: raw.created.get(),
        name: name.to_owned(),
    };
    good.then_some((note, rest))
}

/// Reads the header at the start of `bytes`; gives it and its checksum.
///
/// # Errors
/// See [`SegmentError`].
pub fn parse_header(bytes: &[u8]) -> Result<(Header, u32), SegmentError> {
    let Ok((raw, _)) = RawHeader::ref_from_prefix(bytes) else { return Err(SegmentError::Short) };
    if raw.magic.get() != HEADER_MAGIC {
        return Err(SegmentError::Magic("segment"));
    }
    if raw.version.get() != SEGMENT_VERSION {
        return Err(SegmentError::Version(raw.version.get()));
    }
    let crc = crc32c::crc32c(&bytes[..HEADER_BYTES - 4]);
    if crc != raw.crc.get() {
        return Err(SegmentError::Checksum("header"));
    }
    let invalid = Err(SegmentError::Invalid("impossible header"));
    let Some(kind) = SegmentKind::from_code(raw.kind) else { return invalid };
    let header = Header {
        volume: VolumeId(raw.volume.get()),
        number: raw.number.get(),
        kind,
        epoch: raw.epoch.get(),
        host: HostId(raw.host.get()),
        token: Token { incarnation: raw.incarnation.get(), counter: raw.counter.get() },
        first: raw.first.get(),
        last: raw.last.get(),
        records_bytes: raw.records_bytes.get(),
        footer_bytes: raw.footer_bytes.get(),
        previous: raw.previous.get(),
        sectors: raw.sectors.get(),
        void_after: raw.void_after.get(),
        voids: raw.ahead & FLAG_VOIDS != 0,
        ahead: raw.ahead & !FLAG_VOIDS,
    };
    let commits = kind == SegmentKind::Data;
    let shrinks = kind == SegmentKind::Shrink;
    let resizes = shrinks || kind == SegmentKind::Resize;
    // Only batches go ahead, and not beside the first segment of an engine.
    let alone = !commits || header.token.begins();
    let after_void = header.number >= segment_after_void(header.void_after);
    let ahead = u64::from(header.ahead);
    let possible = (header.sectors > 0) == resizes
        && header.sectors <= MAX_VOLUME_SECTORS
        && header.number > 0
        && after_void
        && (!header.voids || header.token.begins())
        && ahead < IN_FLIGHT_MAX.min(header.number)
        && !(alone && ahead > 0)
        && header.first > 0
        && if commits { header.last >= header.first } else { header.last == header.first - 1 }
        && (header.records_bytes > 0) == (commits || shrinks)
        && u64::from(header.records_bytes) <= MAX_RECORDS_BYTES
        && (FOOTER_BYTES as u64..=MAX_FOOTER_BYTES).contains(&u64::from(header.footer_bytes));
    if possible { Ok((header, crc)) } else { invalid }
}

/// Reads footer and trailer, the bytes at [`Header::tail`], and verifies that they belong to the
/// header.
///
/// # Errors
/// See [`SegmentError`].
pub fn parse_tail(header: Header, header_crc: u32, bytes: &[u8]) -> Result<Segment, SegmentError> {
    if bytes.len() != header.footer_bytes as usize + TRAILER_BYTES {
        return Err(SegmentError::Short);
    }
    let (footer, trailer) = bytes.split_at(header.footer_bytes as usize);
    let Ok(raw) = RawTrailer::ref_from_bytes(trailer) else { return Err(SegmentError::Short) };
    if raw.magic.get() != TRAILER_MAGIC {
        return Err(SegmentError::Magic("segment trailer"));
    }
    if crc32c::crc32c(&trailer[..TRAILER_BYTES - 4]) != raw.crc.get() {
        return Err(SegmentError::Checksum("trailer"));
    }
    if raw.header_crc.get() != header_crc
        || raw.footer_offset.get() != header.tail().start
        || raw.footer_bytes.get() != header.footer_bytes
    {
        return Err(SegmentError::Invalid("the trailer belongs to another segment"));
    }
    if crc32c::crc32c(footer) != raw.footer_crc.get() {
        return Err(SegmentError::Checksum("footer"));
    }
    let footer = parse_footer(&header, footer)?;
    Ok(Segment { header, header_crc, footer })
}

fn parse_footer(header: &Header, bytes: &[u8]) -> Result<Footer, SegmentError> {
    let Ok((raw, rest)) = RawFooter::ref_from_prefix(bytes) else {
        return Err(SegmentError::Short);
    };
    if raw.magic.get() != FOOTER_MAGIC {
        return Err(SegmentError::Magic("segment footer"));
    }
    if raw.version.get() != SEGMENT_VERSION {
        return Err(SegmentError::Version(raw.version.get()));
    }
    let count = raw.pieces.get() as usize;
    let Ok((raw_pieces, rest)) = <[RawPiece]>::ref_from_prefix_with_elems(rest, count) else {
        return Err(SegmentError::Invalid("the index is longer than the footer"));
    };
    let bad = SegmentError::Invalid("impossible index");
    let mut pieces = Vec::with_capacity(count);
    let shrinks = header.kind == SegmentKind::Shrink;
    // The discard of the cut range has the next number, which a later record gets again.
    let last = if shrinks { header.first } else { header.last };
    let (mut offset, mut seq) = (HEADER_BYTES as u64, header.first);
    let mut rest = rest;
    for raw in raw_pieces {
        let range = Range::new(raw.lba.get(), raw.sectors.get());
        let kind = Kind::from_code(raw.kind).ok_or(bad)?;
        let mut staged = None;
        if kind == Kind::Staged {
            staged = Some(record::parse_staged(rest, range).ok_or(bad)?);
            rest = &rest[STAGED_BYTES..];
        }
        let [a, b, c] = raw.packed_bytes;
        let packed_bytes = u32::from_le_bytes([a, b, c, 0]);
        let (seq_of, offset_of) = (raw.seq.get(), raw.offset.get());
        let piece = Piece { kind, range, seq: seq_of, offset: offset_of, staged, packed_bytes };
        let packed_possible = if kind == Kind::Packed {
            range.sectors <= MAX_PACKED_SECTORS && piece.record_bytes() <= packed::bytes_max(range)
        } else {
            packed_bytes == 0
        };
        let possible = !range.is_empty()
            && range.fits(MAX_VOLUME_SECTORS)
            && (kind != Kind::Data || range.sectors <= MAX_RECORD_SECTORS)
            && packed_possible
            && (seq..=last).contains(&piece.seq)
            && (!shrinks || kind == Kind::Discard && range.lba == header.sectors)
            && u64::from(piece.offset) == offset;
        if !possible {
            return Err(bad);
        }
        (offset, seq) = (piece.end(), piece.seq);
        pieces.push(piece);
    }
    if offset != header.tail().start
        || (!pieces.is_empty() && seq != last)
        || shrinks && pieces.len() != 1
    {
        return Err(bad);
    }
    let mut note = None;
    if header.kind.has_note() {
        let bad = SegmentError::Invalid("impossible note");
        let (found, after) = take_note(header.kind, rest).ok_or(bad)?;
        (note, rest) = (Some(found), after);
    }
    let mut key = KeyId::NONE;
    if header.kind == SegmentKind::Attach {
        let (found, after) =
            rest.split_first_chunk().ok_or(SegmentError::Invalid("no key in the footer"))?;
        (key, rest) = (KeyId(*found), after);
    }
    let announced = announce::decode(rest, raw.announced.get() as usize, header.last)
        .ok_or(SegmentError::Invalid("impossible announced ranges"))?;
    let flags = raw.flags.get();
    if flags & !FLAG_ROUNDED != 0 {
        return Err(SegmentError::Invalid("unknown flags"));
    }
    let rounded = flags & FLAG_ROUNDED != 0;
    Ok(Footer { pieces, announced, rounded, base: raw.base.get(), note, key })
}

/// Verifies a whole segment with every checksum in it.
///
/// # Errors
/// See [`SegmentError`].
pub fn verify(object: &Bytes) -> Result<Segment, SegmentError> {
    let segment = parse(object)?;
    for piece in &segment.footer.pieces {
        verify_record(object, &segment.header, piece)?;
    }
    Ok(segment)
}

/// Reads header and footer of a whole segment, not its records.
///
/// # Errors
/// See [`SegmentError`].
pub fn parse(object: &[u8]) -> Result<Segment, SegmentError> {
    let (header, header_crc) = parse_header(object)?;
    let tail = header.tail();
    if object.len() as u64 != tail.end {
        return Err(if (object.len() as u64) < tail.end {
            SegmentError::Short
        } else {
            SegmentError::Invalid("bytes follow the trailer")
        });
    }
    parse_tail(header, header_crc, &object[tail.start as usize..])
}

/// Verifies a record of a segment that [`parse`] has read: its checksums, and that it is the one of
/// the index.
///
/// # Errors
/// [`SegmentError::Record`].
pub fn verify_record(object: &Bytes, header: &Header, piece: &Piece) -> Result<(), SegmentError> {
    let offset = u64::from(piece.offset);
    let bytes = object.slice(piece.offset as usize..piece.end() as usize);
    let record = record::parse(header.volume, &bytes)
        .map_err(|error| SegmentError::Record { offset, error })?;
    let found = record.header;
    if found.kind != piece.kind
        || found.range != piece.range
        || found.seq != piece.seq
        || found.staged != piece.staged
        || found.packed_bytes != piece.packed_bytes
        || found.epoch > header.epoch
    {
        return Err(SegmentError::Record {
            offset,
            error: RecordError::Invalid("not the record of the index"),
        });
    }
    Ok(())
}
