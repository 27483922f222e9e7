//! The formats on a device besides the content of objects: superblocks, and the index in its two
//! areas.
//!
//! `docs/formats.md` draws them. The functions here parse and encode bytes. They never panic,
//! whatever the bytes are, and only accept ranges within the device.

use std::ops::Range;

/// Unit of space, and of the index. Each write is a multiple of it, so that no write touches bytes
/// that an earlier one made durable.
pub const BLOCK: u64 = 4096;
/// Bytes at which the superblocks begin.
pub const SUPERBLOCKS: [u64; 2] = [0, BLOCK];
/// Byte at which the first area of the index begins. Only the superblocks come before it.
pub const AREAS_AT: u64 = 1 << 20;
/// Bytes at which the headers of an area begin, from its start.
pub const AREA_HEADERS: [u64; 2] = [0, BLOCK];
/// Byte at which its frames begin.
pub const FRAMES_AT: u64 = 2 * BLOCK;
/// A superblock or the header of an area: one sector, which a disk writes whole or not at all.
pub const HEADER_BYTES: usize = 512;
/// Bytes of a frame before its records.
pub const FRAME_HEADER_BYTES: usize = 48;
/// Most bytes of records in a frame.
pub const MAX_BODY_BYTES: usize = 64 * 1024 - FRAME_HEADER_BYTES;
/// Most pieces of an object.
pub const MAX_EXTENTS: usize = 64;
/// Longest name of an object.
pub const MAX_KEY_BYTES: usize = 1024;
/// Smallest area. With three quarters of its frames full of objects it has room for one more of any
/// size.
pub const MIN_AREA_BYTES: u64 = 512 << 10;
/// Smallest device.
pub const MIN_DEVICE_BYTES: u64 = 64 << 20;
/// Largest object: an extent has to be able to count its blocks.
pub const MAX_OBJECT_BYTES: u64 = 1 << 40;

const SUPERBLOCK: &[u8; 8] = b"LHDEVICE";
const AREA: &[u8; 8] = b"LHDEVIDX";
const FRAME: &[u8; 4] = b"LHDF";
const VERSION: u16 = 1;
const CREATE: u8 = 1;
const DELETE: u8 = 2;

/// Why bytes are invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Not the expected kind of bytes.
    #[error("{0}")]
    Damaged(&'static str),
    /// A later version wrote them.
    #[error("version {0} is not known here: use a newer longhaul")]
    Version(u16),
}

use FormatError::Damaged;

/// The parts of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of the device in use.
    pub device_bytes: u64,
    /// Bytes of each of the two areas of the index.
    pub area_bytes: u64,
}

impl Geometry {
    /// The geometry for a device of this size. An area is a 4096th of it, but 2 MiB at least and 1
    /// GiB at most.
    pub fn new(device_bytes: u64) -> Option<Geometry> {
        let area_bytes = (device_bytes / 4096).next_multiple_of(1 << 20).clamp(2 << 20, 1 << 30);
        let device_bytes = device_bytes / BLOCK * BLOCK;
        (device_bytes >= MIN_DEVICE_BYTES).then_some(Geometry { device_bytes, area_bytes })
    }

    /// Where an area, 0 or 1, begins.
    pub fn area(self, area: usize) -> u64 {
        AREAS_AT + self.area_bytes * area as u64
    }

    /// The blocks for the content of objects.
    pub fn blocks(self) -> Range<u64> {
        self.area(2) / BLOCK..self.device_bytes / BLOCK
    }

    fn is_valid(self) -> bool {
        let area = self.area_bytes;
        self.device_bytes.is_multiple_of(BLOCK)
            && area.is_multiple_of(BLOCK)
            && (MIN_AREA_BYTES..=1 << 30).contains(&area)
            && self.area(2) < self.device_bytes
    }
}

/// Says that a device belongs to a store, and to which one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The installation.
    pub identity: u128,
    /// The parts of the device.
    pub geometry: Geometry,
}

impl Superblock {
    /// Encodes the superblock.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = header(SUPERBLOCK, BLOCK as u32, self.identity);
        put(&mut out, 32, &self.geometry.device_bytes.to_le_bytes());
        put(&mut out, 40, &self.geometry.area_bytes.to_le_bytes());
        seal(out)
    }

    /// Parses a superblock.
    ///
    /// # Errors
    /// If the bytes are not a superblock, or its values are impossible.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Superblock, FormatError> {
        let (number, identity) = unseal(SUPERBLOCK, bytes)?;
        if u64::from(number) != BLOCK {
            return Err(Damaged("its blocks have a size that makes no sense"));
        }
        let (device_bytes, area_bytes) = (u64_at(bytes, 32), u64_at(bytes, 40));
        let geometry = Geometry { device_bytes, area_bytes };
        if !geometry.is_valid() {
            return Err(Damaged("its sizes make no sense"));
        }
        Ok(Superblock { identity, geometry })
    }
}

/// Begins an area of the index. The engine writes it after the frames that it counts are durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AreaHeader {
    /// The installation.
    pub identity: u128,
    /// The area with the higher one counts.
    pub generation: u64,
    /// Frames that were written before this header.
    pub frames: u32,
}

impl AreaHeader {
    /// Encodes the header.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = header(AREA, self.frames, self.identity);
        put(&mut out, 32, &self.generation.to_le_bytes());
        seal(out)
    }

    /// Parses a header; `None` if nobody ever wrote one.
    ///
    /// # Errors
    /// If the bytes are not a header.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Option<AreaHeader>, FormatError> {
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let (frames, identity) = unseal(AREA, bytes)?;
        Ok(Some(AreaHeader { identity, generation: u64_at(bytes, 32), frames }))
    }
}

/// Identifies a frame: its installation, its generation, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameId {
    /// The installation.
    pub identity: u128,
    /// The generation of its area.
    pub generation: u64,
    /// Counts from 0.
    pub number: u64,
}

/// A run of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first block, from the start of the device.
    pub block: u64,
    /// Number of blocks; never 0.
    pub blocks: u32,
}

/// The size, checksum and place of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Size.
    pub bytes: u64,
    /// CRC32C of the content.
    pub crc: u32,
    /// Its blocks, in order. Zeroes fill up the last one.
    pub extents: Box<[Extent]>,
}

/// A change of the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// The object exists from now on.
    Create(String, Object),
    /// The object does not exist any more.
    Delete(String),
}

/// Bytes of the record of an object.
pub fn create_bytes(key: &str, object: &Object) -> usize {
    16 + key.len() + 12 * object.extents.len()
}

/// Bytes of the record of a deletion.
pub fn delete_bytes(key: &str) -> usize {
    4 + key.len()
}

/// Appends the record of an object. The name has from 1 to [`MAX_KEY_BYTES`] bytes.
pub fn encode_create(key: &str, object: &Object, out: &mut Vec<u8>) {
    out.extend([CREATE, object.extents.len() as u8]);
    out.extend((key.len() as u16).to_le_bytes());
    out.extend(object.crc.to_le_bytes());
    out.extend(object.bytes.to_le_bytes());
    out.extend(key.as_bytes());
    for extent in &object.extents {
        out.extend(extent.block.to_le_bytes());
        out.extend(extent.blocks.to_le_bytes());
    }
}

/// Appends the record of a deletion.
pub fn encode_delete(key: &str, out: &mut Vec<u8>) {
    out.extend([DELETE, 0]);
    out.extend((key.len() as u16).to_le_bytes());
    out.extend(key.as_bytes());
}

/// Encodes a frame with these records, in whole blocks.
pub fn encode_frame(id: FrameId, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(frame_bytes(body.len()) as usize);
    out.extend(FRAME);
    out.extend((body.len() as u32).to_le_bytes());
    out.extend(id.identity.to_le_bytes());
    out.extend(id.generation.to_le_bytes());
    out.extend(id.number.to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&out), body);
    out.extend(crc.to_le_bytes());
    out.extend([0; 4]);
    out.extend(body);
    out.resize(frame_bytes(body.len()) as usize, 0);
    out
}

/// Bytes of a frame with `body` bytes of records.
pub fn frame_bytes(body: usize) -> u64 {
    ((FRAME_HEADER_BYTES + body) as u64).next_multiple_of(BLOCK)
}

/// The frame at the start of `bytes`: its identity, and the bytes of its records.
///
/// # Errors
/// If no whole frame begins there.
pub fn parse_frame(bytes: &[u8]) -> Result<(FrameId, &[u8]), FormatError> {
    let Some((head, rest)) = bytes.split_at_checked(FRAME_HEADER_BYTES) else {
        return Err(Damaged("it is cut short"));
    };
    let id = peek_frame(head).ok_or(Damaged("there is no frame"))?;
    let length = u32_at(head, 4) as usize;
    if length > MAX_BODY_BYTES {
        return Err(Damaged("it is too long"));
    }
    let Some(body) = rest.get(..length) else { return Err(Damaged("it is cut short")) };
    if u32_at(head, 40) != crc32c::crc32c_append(crc32c::crc32c(&head[..40]), body) {
        return Err(Damaged("its checksum does not match"));
    }
    Ok((id, body))
}

/// Bytes of the frame that may begin here, by its header; one block if no frame does.
pub fn frame_length(first: &[u8]) -> u64 {
    match peek_frame(first) {
        Some(_) => frame_bytes((u32_at(first, 4) as usize).min(MAX_BODY_BYTES)),
        None => BLOCK,
    }
}

/// The identity of the frame that may begin here. Does not check whether the frame is whole.
pub fn peek_frame(bytes: &[u8]) -> Option<FrameId> {
    let head = bytes.get(..FRAME_HEADER_BYTES).filter(|head| head.starts_with(FRAME))?;
    let (generation, number) = (u64_at(head, 24), u64_at(head, 32));
    Some(FrameId { identity: u128_at(head, 8), generation, number })
}

/// Parses the records of a frame.
///
/// # Errors
/// If a record is invalid, or its blocks are not blocks for objects.
pub fn parse_records(mut body: &[u8], geometry: Geometry) -> Result<Vec<Record>, FormatError> {
    let mut records = Vec::new();
    while !body.is_empty() {
        let (record, rest) = parse_record(body, geometry)?;
        records.push(record);
        body = rest;
    }
    Ok(records)
}

fn parse_record(body: &[u8], geometry: Geometry) -> Result<(Record, &[u8]), FormatError> {
    let short = || Damaged("a record is cut short");
    let (head, rest) = body.split_at_checked(4).ok_or_else(short)?;
    let (kind, count) = (head[0], usize::from(head[1]));
    let key_bytes = usize::from(u16::from_le_bytes([head[2], head[3]]));
    let key = |bytes: &[u8]| match std::str::from_utf8(bytes) {
        Ok(key) if (1..=MAX_KEY_BYTES).contains(&key.len()) => Ok(key.to_owned()),
        _ => Err(Damaged("a name is none")),
    };
    match kind {
        DELETE if count == 0 => {
            let (name, rest) = rest.split_at_checked(key_bytes).ok_or_else(short)?;
            Ok((Record::Delete(key(name)?), rest))
        }
        CREATE if count <= MAX_EXTENTS => {
            let (fixed, rest) = rest.split_at_checked(12).ok_or_else(short)?;
            let (crc, bytes) = (u32_at(fixed, 0), u64_at(fixed, 4));
            let (name, rest) = rest.split_at_checked(key_bytes).ok_or_else(short)?;
            let (places, rest) = rest.split_at_checked(12 * count).ok_or_else(short)?;
            let extents: Box<[Extent]> = places
                .chunks_exact(12)
                .map(|place| Extent { block: u64_at(place, 0), blocks: u32_at(place, 8) })
                .collect();
            let all = geometry.blocks();
            let inside = |extent: &Extent| {
                let end = extent.block.checked_add(extent.blocks.into());
                extent.blocks > 0
                    && extent.block >= all.start
                    && end.is_some_and(|end| end <= all.end)
            };
            let blocks: u64 = extents.iter().map(|extent| u64::from(extent.blocks)).sum();
            if !extents.iter().all(inside) || blocks != bytes.div_ceil(BLOCK) {
                return Err(Damaged("an object is where none can be"));
            }
            Ok((Record::Create(key(name)?, Object { bytes, crc, extents }), rest))
        }
        _ => Err(Damaged("a record is of no kind that is known")),
    }
}

fn header(magic: &[u8; 8], number: u32, identity: u128) -> [u8; HEADER_BYTES] {
    let mut out = [0; HEADER_BYTES];
    put(&mut out, 0, magic);
    put(&mut out, 8, &VERSION.to_le_bytes());
    put(&mut out, 12, &number.to_le_bytes());
    put(&mut out, 16, &identity.to_le_bytes());
    out
}

fn seal(mut out: [u8; HEADER_BYTES]) -> [u8; HEADER_BYTES] {
    let crc = crc32c::crc32c(&out[..HEADER_BYTES - 4]);
    put(&mut out, HEADER_BYTES - 4, &crc.to_le_bytes());
    out
}

fn unseal(magic: &[u8; 8], bytes: &[u8; HEADER_BYTES]) -> Result<(u32, u128), FormatError> {
    if !bytes.starts_with(magic) {
        return Err(Damaged("it is not there"));
    }
    if u32_at(bytes, HEADER_BYTES - 4) != crc32c::crc32c(&bytes[..HEADER_BYTES - 4]) {
        return Err(Damaged("its checksum does not match"));
    }
    match u16::from_le_bytes([bytes[8], bytes[9]]) {
        VERSION => Ok((u32_at(bytes, 12), u128_at(bytes, 16))),
        other => Err(FormatError::Version(other)),
    }
}

fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    out[at..at + bytes.len()].copy_from_slice(bytes);
}

/// `N` bytes at `at`. The caller knows that they exist.
fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes_at(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes_at(bytes, at))
}

fn u128_at(bytes: &[u8], at: usize) -> u128 {
    u128::from_le_bytes(bytes_at(bytes, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEOMETRY: Geometry = Geometry { device_bytes: 64 << 20, area_bytes: 2 << 20 };

    #[test]
    fn golden_bytes() {
        let superblock = Superblock { identity: 7, geometry: GEOMETRY }.encode();
        assert_eq!(&superblock[..12], b"LHDEVICE\x01\0\0\0");
        assert_eq!(
            &superblock[12..48],
            [
                0, 16, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0,
                0, 0, 0, 32, 0, 0, 0, 0, 0
            ]
        );
        let extents = Box::new([Extent { block: 0x0500, blocks: 1 }]);
        let object = Object { bytes: 9, crc: 0x0403_0201, extents };
        let mut body = Vec::new();
        encode_create("ab", &object, &mut body);
        encode_delete("cde", &mut body);
        assert_eq!(body.len(), create_bytes("ab", &object) + delete_bytes("cde"));
        assert_eq!(
            body,
            [
                1, 1, 2, 0, 1, 2, 3, 4, 9, 0, 0, 0, 0, 0, 0, 0, b'a', b'b', 0, 5, 0, 0, 0, 0, 0, 0,
                1, 0, 0, 0, 2, 0, 3, 0, b'c', b'd', b'e'
            ]
        );
        let id = FrameId { identity: 7, generation: 2, number: 3 };
        let frame = encode_frame(id, &body);
        assert_eq!(frame.len(), 4096);
        assert_eq!(&frame[..12], b"LHDF\x25\0\0\0\x07\0\0\0");
        assert_eq!(parse_frame(&frame), Ok((id, &body[..])));
        let records = parse_records(&body, GEOMETRY).unwrap();
        let expected = [Record::Create("ab".into(), object), Record::Delete("cde".into())];
        assert_eq!(records, expected);
    }

    #[test]
    fn whatever_is_damaged_is_refused() {
        let superblock = Superblock { identity: 7, geometry: GEOMETRY }.encode();
        let area = AreaHeader { identity: 7, generation: 3, frames: 1 }.encode();
        assert!(Superblock::parse(&superblock).is_ok() && AreaHeader::parse(&area).is_ok());
        assert_eq!(AreaHeader::parse(&[0; HEADER_BYTES]), Ok(None));
        for at in 0..HEADER_BYTES {
            let (mut superblock, mut area) = (superblock, area);
            superblock[at] ^= 1;
            area[at] ^= 1;
            assert!(Superblock::parse(&superblock).is_err() && AreaHeader::parse(&area).is_err());
        }
        let mut newer = superblock;
        newer[8] = 2;
        assert_eq!(Superblock::parse(&seal(newer)), Err(FormatError::Version(2)));
        let frame = encode_frame(FrameId { identity: 7, generation: 2, number: 3 }, b"12345");
        for at in 0..FRAME_HEADER_BYTES + 5 {
            let mut frame = frame.clone();
            frame[at] ^= 0x10;
            assert!(parse_frame(&frame).is_err() || (44..48).contains(&at), "{at}");
        }
    }

    #[test]
    fn objects_lie_where_objects_are() {
        let blocks = GEOMETRY.blocks();
        let parse = |bytes, extents: &[(u64, u32)]| {
            let extents = extents.iter().map(|&(block, blocks)| Extent { block, blocks }).collect();
            let mut body = Vec::new();
            encode_create("k", &Object { bytes, crc: 0, extents }, &mut body);
            parse_records(&body, GEOMETRY)
        };
        assert!(parse(0, &[]).is_ok());
        assert!(parse(8192, &[(blocks.end - 1, 1), (blocks.start, 1)]).is_ok());
        for (bytes, extents) in [
            (1, vec![]),
            (4097, vec![(blocks.start, 1)]),
            (4096, vec![(blocks.start - 1, 1)]),
            (8192, vec![(blocks.end - 1, 2)]),
            (4096, vec![(u64::MAX, 1)]),
            (0, vec![(blocks.start, 0)]),
        ] {
            assert!(parse(bytes, &extents).is_err(), "{bytes} {extents:?}");
        }
    }
}
