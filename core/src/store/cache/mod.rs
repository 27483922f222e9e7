//! Pieces of immutable objects on a local disk, in front of the object store.
//!
//! This is the read cache of hosts ([`crate::cache`]) with another address. It knows lines of 16
//! KiB by number. A hash of an object's identity gives the first line of the object. Two objects
//! may come to lie over each other, so each block names its object. A block of 4096 bytes is a
//! *cell*: 32 bytes of identity and up to 4064 bytes of the object. `docs/formats.md` draws it.
//!
//! Promises:
//! - The cache returns the bytes that the object store returned or took for this part of the
//!   object. Objects do not change, so nothing can be old. The cache forgets a deleted object, and
//!   the name of that object does not come again.
//! - The cache verifies each cell from the disk, and that the cell is the one that it wrote there.
//! - A disk that fails turns the cache off and fails no read.
//!
//! The cache must not know the content of an object. The reader judges the bytes, and reports bad
//! ones with [`Copies::Bad`](super::Copies).

#[cfg(test)]
mod tests;

use crate::block::{BLOCK_BYTES, BLOCK_SECTORS, Range, ReadPiece, Time, VolumeId};
use crate::cache::{
    Cache, CacheStatus, Found, Geometry, LINE_BLOCKS, LINE_SECTORS, Load, Outcome, Reader, Source,
    Unusable,
};
use crate::disk::{DiskOperation, DiskResult};
use crate::wire::link::{Changes, HostId, Moment};
use bytes::{Bytes, BytesMut};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use zerocopy::little_endian::{U16, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of the cells; part of the identity that the file has.
const CELL_VERSION: u128 = 1;
const CELL_HEADER_BYTES: usize = 32;
/// Bytes of an object in a cell.
pub const CELL_BYTES: u64 = BLOCK_BYTES - CELL_HEADER_BYTES as u64;
/// Lines that an object may have: the cache keeps no bytes behind the first 128 MiB. Segments have
/// less.
const OBJECT_LINES: u64 = (128 << 20) / (LINE_BLOCKS * CELL_BYTES) + 1;
/// Everything is true as of any time.
const ALWAYS: Moment = Moment { epoch: 1, host: HostId(0), seq: 0 };

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawCell {
    volume: U128,
    number: U64,
    bytes: U16,
    reserved: [u8; 6],
}

const _: () = assert!(size_of::<RawCell>() == CELL_HEADER_BYTES);

/// The name of an object: the volume, and the number of the segment or staged object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectId {
    /// Whose.
    pub volume: VolumeId,
    /// Its number, as in [`super::catalog::data_key`].
    pub number: u64,
}

/// Trouble that an operator should know of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The disk has failed: the cache does not use it any more.
    Failed(String),
    /// A cell was damaged.
    Damaged(String),
}

/// How it is doing, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectCacheStatus {
    /// Reads answered.
    pub hits: u64,
    /// Bytes in them.
    pub hit_bytes: u64,
    /// Reads that the object store had to answer.
    pub misses: u64,
    /// Bytes in them.
    pub miss_bytes: u64,
    /// Cells that belonged to another object at the same place.
    pub collisions: u64,
    /// Of the cache beneath.
    pub cache: CacheStatus,
}

#[derive(Debug)]
struct LookUp {
    object: ObjectId,
    range: std::ops::Range<u64>,
    parts: Vec<(Range, Option<Bytes>)>,
    outstanding: usize,
}

/// The cache of a store.
///
/// # Call order
///
/// After any other call [`ObjectCache::settle`], [`ObjectCache::poll_disk`] and
/// [`ObjectCache::poll_found`], until they give nothing.
#[derive(Debug)]
pub struct ObjectCache {
    cache: Cache,
    look_ups: BTreeMap<u64, LookUp>,
    next: u64,
    found: VecDeque<(u64, Option<Bytes>)>,
    status: ObjectCacheStatus,
}

impl ObjectCache {
    /// Begins to read the file of the cache that this installation has; see [`Load`].
    #[must_use]
    pub fn load(geometry: Geometry, installation: u128) -> Load {
        Load::new(geometry, Some(identity(installation)))
    }

    /// Makes the cache, once the caller has loaded its file. `tag` is a random number for a file
    /// without a valid index. A change of the index may be missing in the file for `interval`.
    #[must_use]
    pub fn new(now: Time, load: Load, installation: u128, tag: u128, interval: Duration) -> Self {
        let mut cache = load.finish(identity(installation), tag);
        cache.set_interval(interval);
        // No range has changed: the cached objects never change.
        cache.handle_changes(now, &Changes::Ranges(Vec::new()));
        ObjectCache {
            cache,
            look_ups: BTreeMap::new(),
            next: 1,
            found: VecDeque::new(),
            status: ObjectCacheStatus::default(),
        }
    }

    /// The bytes to fetch for these wanted bytes: whole cells.
    #[must_use]
    pub fn whole(range: &std::ops::Range<u64>) -> std::ops::Range<u64> {
        let cells = cells(range);
        cells.start * CELL_BYTES..cells.end * CELL_BYTES
    }

    /// Looks for bytes of an object. If all are here their outcome comes out of
    /// [`ObjectCache::poll_found`] under the number that this returns.
    pub fn look_up(&mut self, object: ObjectId, range: &std::ops::Range<u64>) -> Option<u64> {
        let whole = self.place(object, &cells(range))?;
        if !self.cache.is_ready() || !self.cache.missing(whole).is_empty() {
            return None;
        }
        let id = self.next;
        self.next += 1;
        let mut parts = Vec::new();
        for (slot, (part, found)) in self.cache.cover(whole).into_iter().enumerate() {
            // A cell has a header, and is not zero.
            let Found::At(at) = found else { return None };
            self.cache.read(Reader { read: id, slot }, part, at);
            parts.push((part, None));
        }
        let outstanding = parts.len();
        self.look_ups.insert(id, LookUp { object, range: range.clone(), parts, outstanding });
        Some(id)
    }

    /// The next answer: the bytes, or `None` if the cache does not have them after all.
    pub fn poll_found(&mut self) -> Option<(u64, Option<Bytes>)> {
        self.found.pop_front()
    }

    /// The object store had to answer a read of `range`.
    pub fn missed(&mut self, range: &std::ops::Range<u64>) {
        self.status.misses += 1;
        self.status.miss_bytes += range.end - range.start;
        self.cache.missed(range.end - range.start);
    }

    /// Takes bytes of an object as far as it wants them: `data`, which the object store gave for
    /// `asked`, whole cells. If there are fewer the object ends there.
    pub fn offer(
        &mut self,
        now: Time,
        source: Source,
        object: ObjectId,
        asked: &std::ops::Range<u64>,
        data: &Bytes,
    ) {
        let ends = (data.len() as u64) < asked.end - asked.start;
        let mut content = BytesMut::new();
        let mut count = 0;
        for cell in data.chunks(CELL_BYTES as usize) {
            if cell.len() < CELL_BYTES as usize && !ends {
                break;
            }
            let header = RawCell {
                volume: object.volume.0.into(),
                number: object.number.into(),
                bytes: (cell.len() as u16).into(),
                reserved: [0; 6],
            };
            content.extend_from_slice(header.as_bytes());
            content.extend_from_slice(cell);
            count += 1;
            content.resize(count * BLOCK_BYTES as usize, 0);
        }
        let first = asked.start / CELL_BYTES;
        let Some(range) = self.place(object, &(first..first + count as u64)) else { return };
        if asked.start.is_multiple_of(CELL_BYTES) && !range.is_empty() {
            self.cache.offer(now, source, range, &[ReadPiece::Data(content.freeze())]);
        }
    }

    /// The object is deleted, or its bytes here have turned out to be bad.
    pub fn forget(&mut self, now: Time, object: ObjectId) {
        let line = self.line(object);
        let range = Range::new(line * LINE_SECTORS, OBJECT_LINES * LINE_SECTORS);
        self.cache.forget(now, range);
    }

    /// Begins to bring the index in the file up to date if it is time, or `hurried`.
    pub fn settle(&mut self, now: Time, hurried: bool) {
        self.cache.settle(now, ALWAYS, hurried);
    }

    /// When [`ObjectCache::settle`] has something to do.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.cache.deadline()
    }

    /// Whether the file knows all and nothing is on its way.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.cache.is_settled(ALWAYS)
    }

    /// The next operation on its file.
    pub fn poll_disk(&mut self) -> Option<DiskOperation> {
        self.cache.poll_disk()
    }

    /// Takes the outcome of an operation.
    pub fn handle_disk(&mut self, now: Time, result: DiskResult) -> Option<Trouble> {
        match self.cache.handle_disk(now, result) {
            Outcome::None => None,
            Outcome::Read(reader, _, Ok(data)) => {
                self.part(now, reader, Some(data));
                None
            }
            Outcome::Read(reader, _, Err(why)) => {
                self.part(now, reader, None);
                match why {
                    Unusable::Damaged(problem) => Some(Trouble::Damaged(problem)),
                    Unusable::Replaced => None,
                }
            }
            Outcome::Failed(error, reads) => {
                for (reader, _) in reads {
                    self.part(now, reader, None);
                }
                Some(Trouble::Failed(error))
            }
        }
    }

    fn part(&mut self, now: Time, reader: Reader, data: Option<Bytes>) {
        let Some(look_up) = self.look_ups.get_mut(&reader.read) else { return };
        if let Some((_, part)) = look_up.parts.get_mut(reader.slot) {
            *part = data;
        }
        look_up.outstanding -= 1;
        if look_up.outstanding > 0 {
            return;
        }
        let Some(look_up) = self.look_ups.remove(&reader.read) else { return };
        let found = match assemble(&look_up) {
            Assembled::Bytes(data) => {
                self.status.hits += 1;
                self.status.hit_bytes += data.len() as u64;
                Some(data)
            }
            Assembled::Incomplete => None,
            Assembled::Foreign(part) => {
                self.status.collisions += 1;
                self.cache.forget(now, part);
                None
            }
        };
        self.found.push_back((reader.read, found));
    }

    /// How it is doing.
    #[must_use]
    pub fn status(&self) -> ObjectCacheStatus {
        ObjectCacheStatus { cache: self.cache.status(), ..self.status }
    }

    /// The line at which an object begins.
    fn line(&self, object: ObjectId) -> u64 {
        let volume = object.volume.0;
        let mut hash = (volume as u64) ^ mix((volume >> 64) as u64 ^ mix(object.number));
        hash = mix(hash);
        let room = self.cache.geometry().lines() - OBJECT_LINES;
        ((u128::from(hash) * u128::from(room)) >> 64) as u64
    }

    /// Where cells of an object are, in the addresses of the cache beneath.
    fn place(&self, object: ObjectId, cells: &std::ops::Range<u64>) -> Option<Range> {
        let fits = cells.end <= OBJECT_LINES * LINE_BLOCKS;
        let first = self.line(object) * LINE_BLOCKS + cells.start;
        let count = cells.end.checked_sub(cells.start)?;
        fits.then(|| Range::new(first * BLOCK_SECTORS, count * BLOCK_SECTORS))
    }
}

fn identity(installation: u128) -> VolumeId {
    VolumeId(installation ^ CELL_VERSION)
}

/// The finalizer of splitmix64.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn cells(range: &std::ops::Range<u64>) -> std::ops::Range<u64> {
    range.start / CELL_BYTES..range.end.div_ceil(CELL_BYTES)
}

enum Assembled {
    Bytes(Bytes),
    Incomplete,
    /// These blocks are another object's.
    Foreign(Range),
}

fn assemble(look_up: &LookUp) -> Assembled {
    let LookUp { object, range, parts, .. } = look_up;
    let mut out = BytesMut::with_capacity((range.end - range.start) as usize);
    let mut at = range.start / CELL_BYTES * CELL_BYTES;
    for (part, data) in parts {
        let Some(data) = data else { return Assembled::Incomplete };
        for cell in data.chunks(BLOCK_BYTES as usize) {
            let Ok((header, payload)) = RawCell::ref_from_prefix(cell) else {
                return Assembled::Incomplete;
            };
            let same =
                header.volume.get() == object.volume.0 && header.number.get() == object.number;
            let Some(payload) = payload.get(..usize::from(header.bytes.get())) else {
                return Assembled::Foreign(*part);
            };
            if !same {
                return Assembled::Foreign(*part);
            }
            let end = at + payload.len() as u64;
            let (from, to) = (range.start.max(at), range.end.min(end));
            if from < to {
                out.extend_from_slice(&payload[(from - at) as usize..(to - at) as usize]);
            }
            at += CELL_BYTES;
        }
    }
    Assembled::Bytes(out.freeze())
}
