//! The packed record: data in compressed or encrypted form, or both, block by block.
//!
//! ```text
//!  0        48       52          64               64 + 8 n
//!  ┌────────┬────────┬───────────┬────────────────┬─────────────────────────┐
//!  │ header │ key    │ salt      │ table          │ payload: stored blocks  │
//!  │        │ u32    │ 12 B      │ n × 8 B        │ one behind the other    │
//!  └────────┴────────┴───────────┴────────────────┴─────────────────────────┘
//!  an entry of the table:  crc u32 │ stored bytes u16 │ method u8 │ 0
//! ```
//!
//! The table has an entry for each 4 KiB block of the *volume* that the range touches. The entry is
//! about the part of the range in that block. `crc` is the CRC32C of the stored form of the block.
//! So everything that carries or cuts records can verify them without a key. Key 0 means no
//! encryption, and then the salt is zero. The stored form of a block of zeroes is empty.
//!
//! Only the table says where a block lies in the payload. So packed records are short: a read of
//! one block fetches no more than a whole record. This module knows the form; [`crate::pack`] knows
//! the content and the keys.

use super::{
    HEADER_BYTES, Header, Kind, RecordError, blocks, parse_prefix, put_header, seal_header,
};
use crate::block::{BLOCK_BYTES, BLOCK_SECTORS, Epoch, Range, SECTOR_BYTES, Seq, VolumeId};
use bytes::{BufMut, Bytes, BytesMut};

/// Longest packed record, in sectors (64 KiB of data). A guess: long enough that header and table
/// are small beside it, short enough that reading all of it for one block costs little.
pub const MAX_PACKED_SECTORS: u64 = 128;
/// Bytes that encryption adds to each block: the authentication tag.
pub const TAG_BYTES: usize = 16;
/// Most bytes of the stored form of a block.
pub const MAX_STORED_BYTES: usize = BLOCK_BYTES as usize + TAG_BYTES;
/// Bytes of salt: see [`Lock`].
pub const SALT_BYTES: usize = 12;
/// Most bytes of a packed record.
pub const MAX_PACKED_BYTES: usize = bytes_max(Range { lba: 1, sectors: MAX_PACKED_SECTORS });

const LOCK_BYTES: usize = 4 + SALT_BYTES;
const ENTRY_BYTES: usize = 8;

const _: () = assert!(MAX_PACKED_BYTES < 1 << 17, "the store's map has 17 bits for it");

/// The stored form of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Method {
    /// Zeroes: the stored form is empty.
    Zeroes,
    /// As it is.
    Raw,
    /// LZ4 block format.
    Lz4,
    /// A Zstandard frame.
    Zstd,
}

impl Method {
    /// Its number in the table.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Method::Zeroes => 0,
            Method::Raw => 1,
            Method::Lz4 => 2,
            Method::Zstd => 3,
        }
    }

    fn from_code(code: u8) -> Option<Method> {
        Some(match code {
            0 => Method::Zeroes,
            1 => Method::Raw,
            2 => Method::Lz4,
            3 => Method::Zstd,
            _ => return None,
        })
    }
}

/// With what the blocks of a record are encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lock {
    /// Number of the volume's data key, from 1; 0 if they are not encrypted.
    pub key: u32,
    /// Drawn at random by the host for each attachment and mixed into the key. So no store can make
    /// two hosts use the same key, epoch and number twice. Zero if the key is.
    pub salt: [u8; SALT_BYTES],
}

/// A block of a packed record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block<'a> {
    /// The sectors.
    pub range: Range,
    /// Their stored form.
    pub method: Method,
    /// What is stored.
    pub stored: &'a [u8],
}

/// Bytes between header and payload of a record about `range`.
pub(super) fn table_bytes(range: Range) -> usize {
    LOCK_BYTES + ENTRY_BYTES * range.blocks() as usize
}

/// Most bytes of a packed record about `range`.
#[must_use]
pub const fn bytes_max(range: Range) -> usize {
    HEADER_BYTES
        + LOCK_BYTES
        + range.blocks() as usize * (ENTRY_BYTES + TAG_BYTES)
        + (range.sectors * SECTOR_BYTES) as usize
}

/// Most bytes from the start of a packed record about `record` that a read of `wanted` needs.
/// `wanted` lies in the record.
#[must_use]
pub fn span_max(record: Range, wanted: Range) -> usize {
    let end = Range::between(record.lba, wanted.end()).block_cover().end().min(record.end());
    let before = Range::between(record.lba, end.max(record.lba));
    let stored = before.bytes() as usize + TAG_BYTES * before.blocks() as usize;
    HEADER_BYTES + table_bytes(record) + stored
}

/// Builds a packed record at the end of a buffer, block by block.
#[derive(Debug)]
pub struct Builder<'a> {
    volume: VolumeId,
    header: Header,
    start: usize,
    /// Blocks that are still to come.
    left: usize,
    out: &'a mut BytesMut,
}

impl<'a> Builder<'a> {
    /// Begins a record of `volume` about `range`.
    ///
    /// # Panics
    /// If the range is empty or longer than [`MAX_PACKED_SECTORS`].
    pub fn new(
        volume: VolumeId,
        epoch: Epoch,
        seq: Seq,
        range: Range,
        lock: &Lock,
        out: &'a mut BytesMut,
    ) -> Self {
        assert!(!range.is_empty() && range.sectors <= MAX_PACKED_SECTORS);
        let start = out.len();
        let kind = Kind::Packed;
        let header = Header { kind, epoch, seq, range, staged: None, packed_bytes: 0 };
        out.put_bytes(0, HEADER_BYTES);
        put_lock(lock, out);
        out.put_bytes(0, header.prefix_bytes() - HEADER_BYTES - LOCK_BYTES);
        Builder { volume, header, start, left: header.range.blocks() as usize, out }
    }

    /// Appends the next block.
    ///
    /// # Panics
    /// If there are no more blocks, or it is longer than [`MAX_STORED_BYTES`].
    pub fn push(&mut self, method: Method, stored: &[u8]) {
        assert!(self.left > 0 && stored.len() <= MAX_STORED_BYTES);
        let index = self.header.range.blocks() as usize - self.left;
        let at = self.start + HEADER_BYTES + LOCK_BYTES + ENTRY_BYTES * index;
        let entry = &mut self.out[at..at + ENTRY_BYTES];
        entry[..4].copy_from_slice(&crc32c::crc32c(stored).to_le_bytes());
        entry[4..6].copy_from_slice(&(stored.len() as u16).to_le_bytes());
        entry[6] = method.code();
        self.out.extend_from_slice(stored);
        self.left -= 1;
        self.header.packed_bytes += stored.len() as u32;
    }

    /// Ends the record; gives its header.
    ///
    /// # Panics
    /// If blocks are missing.
    pub fn finish(self) -> Header {
        assert_eq!(self.left, 0, "every block was pushed");
        finish(self.volume, &self.header, &mut self.out[self.start..]);
        self.header
    }
}

/// Fills in the header of a record whose other parts are there.
fn finish(volume: VolumeId, header: &Header, record: &mut [u8]) {
    let mut head = BytesMut::with_capacity(HEADER_BYTES);
    put_header(header, &mut head);
    record[..HEADER_BYTES].copy_from_slice(&head);
    seal_header(volume, &mut record[..header.prefix_bytes()]);
}

fn put_lock(lock: &Lock, out: &mut BytesMut) {
    out.put_u32_le(lock.key);
    out.extend_from_slice(&lock.salt);
}

/// The entries of a table: checksum, stored bytes, method.
fn entries(table: &[u8]) -> impl Iterator<Item = (u32, usize, Option<Method>)> + '_ {
    table[LOCK_BYTES..].chunks_exact(ENTRY_BYTES).map(|entry| {
        let crc = u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]);
        let stored = u16::from_le_bytes([entry[4], entry[5]]);
        let method = if entry[7] == 0 { Method::from_code(entry[6]) } else { None };
        (crc, stored.into(), method)
    })
}

fn lock(table: &[u8]) -> Lock {
    let mut lock = Lock {
        key: u32::from_le_bytes([table[0], table[1], table[2], table[3]]),
        ..Lock::default()
    };
    lock.salt.copy_from_slice(&table[4..LOCK_BYTES]);
    lock
}

/// Whether the table, all of it and intact, is one that a record with that header can have.
pub(super) fn check_table(header: &Header, table: &[u8]) -> Result<(), RecordError> {
    let lock = lock(table);
    if lock.key == 0 && lock.salt != [0; SALT_BYTES] {
        return Err(RecordError::Invalid("salt without a key"));
    }
    let tag = if lock.key == 0 { 0 } else { TAG_BYTES };
    let mut sum = 0;
    for (block, (_, stored, method)) in blocks(header.range).zip(entries(table)) {
        let plain = block.bytes() as usize;
        let possible = match method {
            Some(Method::Zeroes) => stored == 0,
            Some(Method::Raw) => stored == plain + tag,
            Some(Method::Lz4 | Method::Zstd) => stored > tag && stored < plain + tag,
            None => false,
        };
        if !possible {
            return Err(RecordError::Invalid("a block is stored as none can be"));
        }
        sum += stored;
    }
    if sum != header.payload_bytes() {
        return Err(RecordError::Invalid("payload length does not match the table"));
    }
    Ok(())
}

/// Compares every block of `payload` with its entry in `table`. The caller has checked both.
pub(super) fn verify(range: Range, table: &[u8], payload: &[u8]) -> Result<(), RecordError> {
    let mut rest = payload;
    for (block, (crc, stored, _)) in blocks(range).zip(entries(table)) {
        let Some((part, after)) = rest.split_at_checked(stored) else {
            return Err(RecordError::Payload(block));
        };
        if crc32c::crc32c(part) != crc {
            return Err(RecordError::Payload(block));
        }
        rest = after;
    }
    Ok(())
}

/// Appends the blocks of `cut`, a cut at block boundaries, of the record that is `bytes`, as a
/// record of the same number, of `volume`.
pub(super) fn put_cut(
    volume: VolumeId,
    header: &Header,
    bytes: &[u8],
    cut: Range,
    out: &mut BytesMut,
) {
    let table = &bytes[HEADER_BYTES..header.prefix_bytes()];
    let (mut skip, mut stored_bytes) = (0, 0);
    for (block, (_, stored, _)) in blocks(header.range).zip(entries(table)) {
        if block.end() <= cut.lba {
            skip += stored;
        } else if block.lba < cut.end() {
            stored_bytes += stored;
        }
    }
    let header_cut = Header { range: cut, packed_bytes: stored_bytes as u32, ..*header };
    let first = LOCK_BYTES
        + ENTRY_BYTES * (cut.lba / BLOCK_SECTORS - header.range.lba / BLOCK_SECTORS) as usize;
    let start = out.len();
    out.reserve(header_cut.record_bytes());
    put_header(&header_cut, out);
    out.extend_from_slice(&table[..LOCK_BYTES]);
    out.extend_from_slice(&table[first..first + ENTRY_BYTES * cut.blocks() as usize]);
    seal_header(volume, &mut out[start..]);
    let payload = header.prefix_bytes() + skip;
    out.extend_from_slice(&bytes[payload..payload + stored_bytes]);
}

/// The blocks of `wanted` as a record of their own, from the packed record of `owner` at the start
/// of `bytes`. `bytes` hold at least [`span_max`] bytes, or all. The result is verified. It is a
/// record of `volume`: the volume, clone or snapshot that the read is for.
///
/// # Errors
/// Those of [`super::parse`]; [`RecordError::Invalid`] if another record is there.
pub fn extract(
    (owner, volume): (VolumeId, VolumeId),
    seq: Seq,
    record: Range,
    wanted: Range,
    bytes: &Bytes,
) -> Result<Bytes, RecordError> {
    let header = parse_prefix(owner, bytes)?;
    if header.kind != Kind::Packed || header.range != record || header.seq != seq {
        return Err(RecordError::Invalid("another record than the map says"));
    }
    let cut = wanted.block_cover().intersect(record);
    let Some(cut) = cut.filter(|cut| cut.intersect(wanted) == Some(wanted)) else {
        return Err(RecordError::Invalid("the sectors are not in the record"));
    };
    let table = &bytes[HEADER_BYTES..header.prefix_bytes()];
    let before = blocks(record).zip(entries(table)).take_while(|(block, _)| block.lba < cut.end());
    let need = header.prefix_bytes() + before.map(|(_, (_, stored, _))| stored).sum::<usize>();
    if bytes.len() < need {
        return Err(RecordError::Short { have: bytes.len(), need });
    }
    let mut out = BytesMut::new();
    put_cut(volume, &header, bytes, cut, &mut out);
    super::verify(volume, &out)?;
    Ok(out.freeze())
}

/// The blocks of `part` out of a record of `volume` that [`extract`] gave, and that holds them.
#[must_use]
pub fn cut(volume: VolumeId, record: Range, part: Range, found: &Bytes) -> Bytes {
    let header = parse_prefix(volume, found).ok();
    let cover = part.block_cover().intersect(record);
    let Some((header, cover)) = header.zip(cover).filter(|(h, cover)| h.range != *cover) else {
        return found.clone();
    };
    let mut out = BytesMut::new();
    put_cut(volume, &header, found, cover, &mut out);
    out.freeze()
}

/// The blocks of a packed record of `volume`, and their encryption. The record has to be intact up
/// to the end of the blocks that the caller looks at.
///
/// # Errors
/// Those of [`parse_prefix`]; [`RecordError::Invalid`] if it is not packed. A block with a wrong
/// checksum, or a missing one, is an error of its own.
pub fn open(volume: VolumeId, bytes: &[u8]) -> Result<(Header, Lock, Blocks<'_>), RecordError> {
    let header = parse_prefix(volume, bytes)?;
    if header.kind != Kind::Packed {
        return Err(RecordError::Invalid("it is not packed"));
    }
    let (prefix, payload) = bytes.split_at(header.prefix_bytes());
    let table = &prefix[HEADER_BYTES..];
    Ok((header, lock(table), Blocks { range: header.range, table, payload }))
}

/// See [`open`].
#[derive(Clone, Copy, Debug)]
pub struct Blocks<'a> {
    range: Range,
    table: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Blocks<'a> {
    /// The blocks that touch `wanted`, without verification. Each comes with the last bytes of its
    /// stored form: if it is encrypted, that is the authentication tag. The outer `None` stands for
    /// zeroes, whose stored form is empty.
    pub fn tags(
        self,
        wanted: Range,
    ) -> impl Iterator<Item = (Range, Option<Option<[u8; TAG_BYTES]>>)> {
        let mut at = 0;
        blocks(self.range).zip(entries(self.table)).filter_map(
            move |(range, (_, stored, method))| {
                at += stored;
                range.intersect(wanted)?;
                let zeroes = method == Some(Method::Zeroes);
                let block = self.payload.get(at - stored..at);
                let tag = block.and_then(|block| block.last_chunk::<TAG_BYTES>().copied());
                Some((range, (!zeroes).then_some(tag)))
            },
        )
    }

    /// Those that touch `wanted`, each verified when it comes.
    pub fn of(self, wanted: Range) -> impl Iterator<Item = Result<Block<'a>, RecordError>> {
        let mut at = 0;
        blocks(self.range).zip(entries(self.table)).filter_map(
            move |(range, (crc, stored, method))| {
                let start = at;
                at += stored;
                range.intersect(wanted)?;
                let block = self.payload.get(start..at).zip(method);
                let sound = block.filter(|(stored, _)| crc32c::crc32c(stored) == crc);
                let damaged = RecordError::Payload(range);
                Some(sound.map(|(stored, method)| Block { range, method, stored }).ok_or(damaged))
            },
        )
    }
}
