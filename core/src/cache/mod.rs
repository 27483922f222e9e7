//! A cache on a local disk. A host caches the data that it read from the store, and the writes that
//! the store committed. A store caches pieces of objects, which never change
//! ([`crate::store::cache`]).
//!
//! Promises:
//! - The cache only gives out the newest acknowledged content of a block that the dirty map does
//!   not have. The volume reports each write with [`Cache::forget`], which takes effect at once in
//!   memory. The index on disk holds the [`Moment`] of the log that it is true of. After an attach
//!   the cache gives out nothing until the store has listed the later writes
//!   ([`Cache::handle_changes`]).
//! - The cache verifies that each block from the disk is intact and is the very one that it wrote
//!   there.
//! - If the disk fails, the cache turns itself off and fails no read.
//! - Memory is bounded: 15 bytes for each 16 KiB of the cache, plus at most [`WRITING_BYTES_MAX`]
//!   on their way to the disk. The cache drops data beyond that; the volume may offer it again.
//!
//! It must not know where the data comes from, nor wait for anything.
//!
//! # The index on disk
//!
//! The cache writes pages of the index in place, in rounds. A round is the changed pages, a sync,
//! then a head. The head holds the moment up to which the pages have all changes. A page may be
//! newer than its head: then it has more changes. A page is never older than its head, because the
//! head holds the round of each page. A round may end at any point.

mod blocks;
mod format;
#[cfg(test)]
mod generate;
mod index;
mod load;
mod parts;
mod pinning;
mod pins;
mod reading;
mod round;
mod rounds;
mod sealed;
mod status;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod traces;
mod version;

pub use format::{Geometry, MAX_CACHE_BYTES, MIN_CACHE_BYTES, RECORD_BYTES};
pub use index::{LINE_BLOCKS, LINE_BYTES, LINE_SECTORS};
pub use load::{Load, Loaded, StoredBlock};
pub use pins::Pins;
pub use status::{CacheCounters, CacheStatus};
pub use version::{BlockVersion, Version, VersionOf};

use crate::block::{BLOCK_BYTES, BLOCK_SECTORS, Range, ReadPiece, Time, VolumeId};
use crate::disk::{DiskOperation, DiskResult};
use crate::pack::Sealer;
use crate::wire::link::{Changes, Moment};
use blocks::{block_range, blocks_range, blocks_touched, line_blocks};
use bytes::{Bytes, BytesMut};
use format::Head;
use index::{Index, Rank, Slot};
use parts::{OfferedBlock, OfferedContent};
use pins::Pinned;
use round::{Rounds, Stamps};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

pub(crate) use pins::whole_lines;

/// Most bytes on their way to the disk.
pub const WRITING_BYTES_MAX: u64 = 4 << 20;
/// Most writes of blocks under way.
const FILLS_MAX: usize = 256;
/// Stamps that the cache may use before it begins a round. They are far fewer than half of all
/// stamps. So no stamp comes again while a block from before a crash may have it.
const ROUND_STAMPS: u32 = 1 << 14;
/// Stamps to skip after a restart, because nobody knows how many the last process used.
const STAMPS_SKIPPED: u32 = 1 << 15;
/// Longest read of the file, in sectors of the volume (1 MiB).
const RUN_SECTORS_MAX: u64 = 2048;
/// After this number of failed reads the cache gives up the disk.
const FAILURES_MAX: u32 = 8;

/// Why the volume offers data to the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A client read it and the cache did not have it, or a client used data that was read ahead.
    Read,
    /// A client wrote it, and the store has committed it.
    Write,
    /// A command wants it in the cache, at any cost to the disk and to other data.
    Warm,
}

/// The state of a part of a range in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The cache does not have it.
    Absent,
    /// Zeroes.
    Zero,
    /// It lies in the file, in one piece. The record of the first block begins at this byte.
    At(u64),
}

/// Identifies a part of a client's read, so that its outcome finds the way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reader {
    /// Number of the client's read.
    pub read: u64,
    /// Number of the part within it.
    pub slot: usize,
}

/// A read of the file that is under way.
#[derive(Debug)]
struct Reading {
    what: Reader,
    range: Range,
    stamps: Vec<u16>,
}

/// Blocks of a line on their way to the disk.
#[derive(Debug)]
struct LineFill {
    slot: Slot,
    first: u64,
    stamps: Vec<u16>,
    /// Blocks of the line, a bit each, that a client has overwritten meanwhile.
    spoiled: u8,
    bytes: u64,
}

impl LineFill {
    /// The blocks of this write, a bit for each block of the line.
    fn blocks(&self) -> u8 {
        ((1 << self.stamps.len()) - 1) << self.first
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CachePhase {
    /// The index may be out of date: the cache gives nothing out and takes nothing in.
    Asking,
    Ready,
    Off,
}

/// The outcome of an operation of the cache.
#[derive(Debug)]
pub enum Outcome {
    /// Nothing to report.
    None,
    /// A read: its reader, its range, and the data or why it is unusable.
    Read(Reader, Range, Result<Bytes, Unusable>),
    /// The disk has failed, and these reads with it.
    Failed(String, Vec<(Reader, Range)>),
}

/// Why the data of a read is unusable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// The cache replaced the block meanwhile.
    Replaced,
    /// The disk did not return the bytes that the cache wrote.
    Damaged(String),
}

/// The cache of one volume.
///
/// # Call order
///
/// After any other call, call [`Cache::settle`], then [`Cache::poll_disk`] until it returns
/// nothing. Carry out writes and syncs in the order given. Reads may run at any time.
#[derive(Debug)]
pub struct Cache {
    head: Head,
    index: Index,
    /// Encrypts the blocks, if the volume is encrypted.
    sealer: Option<Sealer>,
    phase: CachePhase,
    stamps: Stamps,
    /// The changes of the index that the file lacks.
    rounds: Rounds,
    writing_bytes_max: u64,
    fills: BTreeMap<u64, LineFill>,
    reads: BTreeMap<u64, Reading>,
    writing_bytes: u64,
    failures: u32,
    /// Bytes that the cache may still write. Useful reads earn credit; see [`Cache::admit`].
    credit: u64,
    found_bytes: u64,
    dropped_bytes: u64,
    dropped_all: bool,
    pinned: Pinned,
    out: VecDeque<DiskOperation>,
    next_id: u64,
    counters: CacheCounters,
}

impl Load {
    /// The cache. If the file held none, `tag` has to be a random number for a new one.
    #[must_use]
    pub fn finish(self, volume: VolumeId, tag: u128) -> Cache {
        let (geometry, head, index, newest_round) = self.into_parts();
        match head {
            Some(head) => Cache::restored(head, index, newest_round),
            None => Cache::fresh(geometry, volume, tag),
        }
    }
}

impl Cache {
    /// An empty cache for a file that holds none. `tag` has to be a random number.
    #[must_use]
    pub fn fresh(geometry: Geometry, volume: VolumeId, tag: u128) -> Cache {
        let rounds = vec![0; geometry.pages()];
        let (round, stamp, sealed) = (0, 1, false);
        let head = Head { geometry, volume, tag, round, moment: None, stamp, sealed, rounds };
        Cache::new(head, geometry.index())
    }

    fn restored(mut head: Head, index: Index, newest_round: u64) -> Cache {
        // Pages of an unfinished round hold its number, so that number must not come again. Also,
        // the next head must not overwrite this one.
        let newest = head.round.max(newest_round);
        head.round = newest + (newest - head.round) % 2;
        head.stamp = head.stamp.wrapping_add(STAMPS_SKIPPED);
        Cache::new(head, index)
    }

    fn new(head: Head, index: Index) -> Cache {
        let found_bytes = index.valid_blocks() * BLOCK_BYTES;
        let phase = if head.moment.is_some() { CachePhase::Asking } else { CachePhase::Ready };
        Cache {
            stamps: Stamps::after(head.stamp),
            rounds: Rounds::new(head.geometry.pages()),
            writing_bytes_max: WRITING_BYTES_MAX,
            fills: BTreeMap::new(),
            reads: BTreeMap::new(),
            writing_bytes: 0,
            failures: 0,
            credit: 0,
            found_bytes,
            dropped_bytes: 0,
            dropped_all: false,
            pinned: Pinned::default(),
            out: VecDeque::new(),
            next_id: 0,
            counters: CacheCounters::default(),
            phase,
            head,
            index,
            sealer: None,
        }
    }

    /// How long a change of the index may stay out of the file.
    pub fn set_interval(&mut self, interval: Duration) {
        self.rounds.set_interval(interval);
    }

    /// Sets the most bytes that may be on their way to the disk, in place of [`WRITING_BYTES_MAX`].
    pub fn set_writing_bytes_max(&mut self, bytes: u64) {
        self.writing_bytes_max = bytes;
    }

    // --- calls of the volume ---

    /// The moment of the index, if the volume has to ask the store for later writes.
    pub fn asks(&self) -> Option<Moment> {
        self.head.moment.filter(|_| self.phase == CachePhase::Asking)
    }

    /// Whether the cache gives data out and takes data in.
    pub fn is_ready(&self) -> bool {
        self.phase == CachePhase::Ready
    }

    /// Splits `range` into parts, in order and without gaps. Each part is either absent, zeroes, or
    /// one piece of the file. Neighboring parts may both be `Absent`. Counts as a use of the lines.
    pub fn cover(&mut self, range: Range) -> Vec<(Range, Found)> {
        let mut runs: Vec<(Range, Found)> = Vec::new();
        if self.phase != CachePhase::Ready {
            return vec![(range, Found::Absent)];
        }
        let mut line = (u64::MAX, None);
        // The byte of the file at which the next block has to lie to extend the run.
        let mut next_at = 0;
        for block in blocks_touched(range) {
            if block / LINE_BLOCKS != line.0 {
                line = (block / LINE_BLOCKS, self.index.find(block / LINE_BLOCKS));
                if let Some(slot) = line.1 {
                    self.index.touch(slot);
                }
            }
            let stamp = line.1.and_then(|slot| self.index.stamp(slot, block % LINE_BLOCKS));
            let found = match (stamp, line.1) {
                (Some(0), _) if self.believes_zeroes() => Found::Zero,
                (Some(0), _) => Found::Absent,
                (Some(_), Some(slot)) => {
                    Found::At(self.head.geometry.block_at(slot, block % LINE_BLOCKS))
                }
                _ => Found::Absent,
            };
            let Some(part) = block_range(block).intersect(range) else { continue };
            match found {
                Found::Absent => self.counters.miss_bytes += part.bytes(),
                Found::Zero | Found::At(_) => self.earn(part.bytes()),
            }
            match (runs.last_mut(), found) {
                (Some((run, Found::At(_))), Found::At(at))
                    if at == next_at && run.sectors <= RUN_SECTORS_MAX - BLOCK_SECTORS =>
                {
                    run.sectors += part.sectors;
                }
                (Some((run, last)), Found::Absent | Found::Zero) if *last == found => {
                    run.sectors += part.sectors;
                }
                _ => runs.push((part, found)),
            }
            if let Found::At(at) = found {
                next_at = at + RECORD_BYTES as u64;
            }
        }
        runs
    }

    /// A client writes `range`: the cached content becomes old.
    pub fn forget(&mut self, now: Time, range: Range) {
        if self.phase == CachePhase::Off || range.is_empty() {
            return;
        }
        self.lack(range);
        for fill in self.fills.values_mut() {
            let line = self.index.line(fill.slot);
            if let Some(line) = line {
                fill.spoiled |= line_blocks(line, range);
            }
        }
        if self.index.valid_blocks() == 0 {
            return;
        }
        let first = range.lba / LINE_SECTORS;
        let last = (range.end() - 1) / LINE_SECTORS;
        if last - first >= self.index.slots() as u64 / 8 {
            // A look at every slot takes less time than a search for each line.
            for slot in 0..self.index.slots() {
                let line = self.index.line(slot);
                if let Some(line) = line.filter(|line| (first..=last).contains(line)) {
                    self.clear(now, slot, line_blocks(line, range));
                }
            }
            return;
        }
        for line in first..=last {
            if let Some(slot) = self.index.find(line) {
                self.clear(now, slot, line_blocks(line, range));
            }
        }
    }

    /// Takes the writes since the index's moment, as the store lists them. The volume itself has
    /// reported its own writes since the attach.
    pub fn handle_changes(&mut self, now: Time, changes: &Changes) {
        if self.phase != CachePhase::Asking {
            return;
        }
        let before = self.index.valid_blocks();
        match changes {
            Changes::Ranges(ranges) => {
                for range in ranges {
                    self.forget(now, *range);
                }
            }
            Changes::Unknown => {
                self.dropped_all = before > 0;
                self.pinned.lack_all();
                for slot in 0..self.index.slots() {
                    self.clear(now, slot, u8::MAX);
                }
            }
        }
        self.dropped_bytes += (before - self.index.valid_blocks()) * BLOCK_BYTES;
        self.phase = CachePhase::Ready;
        // The moment goes on even if nothing has changed.
        self.rounds.changed(now);
    }

    /// Offers the current content of `range`, and the cache takes the part that it wants. `pieces`
    /// cover all of the range in order. False if the cache would have taken more with a faster
    /// disk. A sealed cache takes nothing.
    pub fn offer(&mut self, now: Time, source: Source, range: Range, pieces: &[ReadPiece]) -> bool {
        self.offer_versions(now, source, range, pieces, &mut |_| Version::Unknown)
    }

    /// Like [`Cache::offer`], also for a sealed cache. A sealed cache takes a block if `version`
    /// knows its newest version, and the offered block has to be of that version. The result is
    /// also false if `version` cannot answer now.
    pub fn offer_versions(
        &mut self,
        now: Time,
        source: Source,
        range: Range,
        pieces: &[ReadPiece],
        version: VersionOf<'_>,
    ) -> bool {
        if self.phase != CachePhase::Ready {
            return true;
        }
        let behind = self.counters.behind_bytes;
        let start = range.lba.div_ceil(BLOCK_SECTORS);
        let end = range.end() / BLOCK_SECTORS;
        let mut content = OfferedContent { pieces, at: range.lba };
        let mut block = start;
        while block < end {
            let line = block / LINE_BLOCKS;
            let stop = ((line + 1) * LINE_BLOCKS).min(end);
            self.offer_line((now, source), line, block..stop, &mut content, version);
            block = stop;
        }
        self.counters.behind_bytes == behind
    }

    /// Whether the bytes on their way to the disk have reached half of their limit. If so, offer
    /// later what can wait.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.phase == CachePhase::Ready && self.is_filled(2)
    }

    /// Whether the bytes on their way to the disk have reached an `n`th of their limit.
    fn is_filled(&self, n: u32) -> bool {
        self.writing_bytes >= self.writing_bytes_max / u64::from(n)
            || self.fills.len() >= FILLS_MAX / n as usize
            || self.stamps.since(self.head.stamp) >= STAMPS_SKIPPED - LINE_BLOCKS as u32 * 2 * n
    }

    /// Counts bytes that the volume did not offer because the disk was too slow for too long.
    pub fn passed_over(&mut self, bytes: u64) {
        self.counters.behind_bytes += bytes;
    }

    fn offer_line(
        &mut self,
        (now, source): (Time, Source),
        line: u64,
        blocks: std::ops::Range<u64>,
        content: &mut OfferedContent<'_>,
        version: VersionOf<'_>,
    ) {
        let bytes = (blocks.end - blocks.start) * BLOCK_BYTES;
        let there = self.index.find(line);
        // The blocks that are valid or on their way to the disk.
        let have = there.map_or(0, |slot| {
            let fills = self.fills.values().filter(|fill| fill.slot == slot);
            fills.fold(self.index.valid(slot), |have, fill| have | fill.blocks())
        });
        let wanted = line_blocks(line, blocks_range(&blocks));
        if have & wanted == wanted {
            return;
        }
        if self.is_filled(1) {
            self.counters.behind_bytes += bytes;
            return;
        }
        let Some(slot) = self.admit(now, line, there, source) else {
            self.counters.refused_bytes += bytes;
            return;
        };
        // The credit from clients' reads does not pay for data that a command wants.
        let credit = self.credit;
        let free = source == Source::Warm || self.index.is_pinned(slot);
        let mut run: Option<(u64, Vec<u16>, BytesMut)> = None;
        for block in blocks {
            let n = block % LINE_BLOCKS;
            let known = have & (1 << n) != 0;
            let data = if known { None } else { content.block(block) };
            let data = match data {
                Some(OfferedBlock::Data(data)) => Some(data),
                Some(OfferedBlock::Zero) if self.believes_zeroes() => {
                    self.index.set(slot, n, 0);
                    self.mark(now, slot);
                    None
                }
                Some(OfferedBlock::Zero) => Some(vec![0; BLOCK_BYTES as usize]),
                None => None,
            };
            if let Some(data) = data {
                let stamp = self.stamps.next();
                match self.sealed((block, stamp), data, version) {
                    Ok((data, seal)) => {
                        let (_, stamps, out) = run.get_or_insert_with(|| {
                            let bytes = RECORD_BYTES * LINE_BLOCKS as usize;
                            (n, Vec::new(), BytesMut::with_capacity(bytes))
                        });
                        stamps.push(stamp as u16);
                        let tag = self.head.tag;
                        format::put_block(tag, (block, stamp), &data, &seal, out);
                        continue;
                    }
                    Err(Version::Later) => self.counters.behind_bytes += BLOCK_BYTES,
                    Err(_) => self.counters.refused_bytes += BLOCK_BYTES,
                }
            }
            self.fill(slot, run.take());
        }
        self.fill(slot, run.take());
        if free {
            self.credit = credit;
        }
    }

    fn fill(&mut self, slot: Slot, run: Option<(u64, Vec<u16>, BytesMut)>) {
        let Some((first, stamps, data)) = run else { return };
        let id = self.id();
        let bytes = data.len() as u64;
        let offset = self.head.geometry.block_at(slot, first);
        self.writing_bytes += bytes;
        self.counters.written_bytes += bytes;
        self.credit = self.credit.saturating_sub(bytes);
        self.fills.insert(id, LineFill { slot, first, stamps, spoiled: 0, bytes });
        let data = data.freeze();
        self.out.push_back(DiskOperation::Write { id, file: 0, offset, data, sync: false });
    }

    /// Finds a slot for a line, if the cache gains more by the line than it loses by an eviction.
    ///
    /// While slots are free the cache takes any line. After that, writes to the disk cost credit. A
    /// hit earns half of its bytes. A miss earns a quarter of its bytes, and misses alone fill at
    /// most half of the credit. While any credit is left the cache takes lines that it held or
    /// missed not long ago. It takes a line that it sees for the first time only while more than
    /// half of the credit is left, which needs hits. So the cache soon turns a scan away, and a new
    /// working set still gets in. Pinned lines, and lines that a command wants, need no credit.
    fn admit(&mut self, now: Time, line: u64, there: Option<Slot>, source: Source) -> Option<Slot> {
        let warming = self.index.free() >= self.index.slots() / 8;
        let pinned = self.pinned.pins().holds(line);
        let commanded = pinned || source == Source::Warm;
        let credit = commanded || warming || self.credit > 0;
        if there.is_some() {
            return there.filter(|_| credit);
        }
        let ghost = self.index.take_ghost(line);
        let wanted = ghost
            || commanded
            || self.index.has_room(line)
            || (source == Source::Read && self.credit > self.credit_max() / 2);
        if !(wanted && credit) {
            // A client that only writes a line has no use for it in the cache.
            if source == Source::Read {
                self.index.add_ghost(line);
            }
            return None;
        }
        let fills = &self.fills;
        let busy = |slot| fills.values().any(|fill| fill.slot == slot);
        let rank = match (pinned, ghost || commanded) {
            (true, _) => Rank::Pinned,
            (false, true) => Rank::Main,
            (false, false) => Rank::Probation,
        };
        let (slot, evicted) = self.index.admit(line, rank, busy)?;
        if evicted {
            self.counters.evictions += 1;
            // From now on nobody reports writes to the evicted line. So the index in the file must
            // not name it any longer.
            self.mark(now, slot);
        }
        Some(slot)
    }

    fn credit_max(&self) -> u64 {
        self.head.geometry.capacity_bytes() / 16
    }

    fn earn(&mut self, hit_bytes: u64) {
        self.counters.hit_bytes += hit_bytes;
        self.credit = (self.credit + hit_bytes / 2).min(self.credit_max());
    }

    /// Counts bytes of a read that the cache did not have.
    pub fn missed(&mut self, bytes: u64) {
        let limit = self.credit_max() / 2;
        if self.credit < limit {
            self.credit = (self.credit + bytes / 4).min(limit);
        }
    }

    // --- the disk ---

    /// The next operation for the disk.
    pub fn poll_disk(&mut self) -> Option<DiskOperation> {
        self.out.pop_front()
    }

    /// Takes the outcome of an operation. A sealed cache gives nothing out.
    pub fn handle_disk(&mut self, now: Time, result: DiskResult) -> Outcome {
        self.handle_disk_versions(now, result, &mut |_| Version::Unknown)
    }

    /// Like [`Cache::handle_disk`], also for a sealed cache, which gives out the blocks of the
    /// newest version.
    pub fn handle_disk_versions(
        &mut self,
        now: Time,
        result: DiskResult,
        version: VersionOf<'_>,
    ) -> Outcome {
        let (id, outcome) = match result {
            DiskResult::Done { id } => (id, Ok(None)),
            DiskResult::Data { id, data } => (id, Ok(Some(data))),
            DiskResult::Failed { id, error } => (id, Err(error)),
        };
        if let Some(reading) = self.reads.remove(&id) {
            let outcome = outcome.map(Option::unwrap_or_default);
            return self.was_read(now, reading, outcome, version);
        }
        if self.phase == CachePhase::Off {
            return Outcome::None;
        }
        if let Err(error) = outcome {
            return self.fail(error);
        }
        match self.fills.remove(&id) {
            Some(fill) => self.filled(now, &fill),
            None => self.round_done(),
        }
        Outcome::None
    }

    fn filled(&mut self, now: Time, fill: &LineFill) {
        self.writing_bytes -= fill.bytes;
        for (block, stamp) in (fill.first..).zip(&fill.stamps) {
            if fill.spoiled & (1 << block) == 0 {
                self.index.set(fill.slot, block, *stamp);
            }
        }
        self.mark(now, fill.slot);
    }

    /// Gives the disk up. The content of the file stays true as of the moment in its head.
    fn fail(&mut self, error: String) -> Outcome {
        self.phase = CachePhase::Off;
        self.out.clear();
        self.fills.clear();
        self.writing_bytes = 0;
        self.rounds.stop();
        let reads = std::mem::take(&mut self.reads);
        Outcome::Failed(error, reads.into_values().map(|r| (r.what, r.range)).collect())
    }

    // --- helpers ---

    /// The layout of its file.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.head.geometry
    }

    /// Its numbers for operators and metrics.
    #[must_use]
    pub fn status(&self) -> CacheStatus {
        CacheStatus {
            ready: self.phase == CachePhase::Ready,
            off: self.phase == CachePhase::Off,
            capacity_bytes: self.head.geometry.capacity_bytes(),
            valid_bytes: self.index.valid_blocks() * BLOCK_BYTES,
            found_bytes: self.found_bytes,
            dropped_bytes: self.dropped_bytes,
            dropped_all: self.dropped_all,
            pinned_bytes: self.pinned.pins().bytes(),
            pinned_valid_bytes: self.index.pinned_blocks() * BLOCK_BYTES,
            pinned_most_bytes: self.pinned_most_bytes(),
            counters: self.counters,
        }
    }

    /// The parts of a range that the cache does not have. Does not count as a use.
    pub fn missing(&self, range: Range) -> Vec<Range> {
        if self.phase != CachePhase::Ready {
            return vec![range];
        }
        let mut missing: Vec<Range> = Vec::new();
        for block in blocks_touched(range) {
            let slot = self.index.find(block / LINE_BLOCKS);
            let bit = 1 << (block % LINE_BLOCKS);
            if slot.is_some_and(|slot| self.index.valid(slot) & bit != 0) {
                continue;
            }
            let Some(part) = block_range(block).intersect(range) else { continue };
            match missing.last_mut() {
                Some(last) if last.end() == part.lba => last.sectors += part.sectors,
                _ => missing.push(part),
            }
        }
        missing
    }

    fn clear(&mut self, now: Time, slot: Slot, blocks: u8) {
        let before = self.index.valid_blocks();
        if self.index.clear(slot, blocks) {
            self.counters.forgotten_bytes += (before - self.index.valid_blocks()) * BLOCK_BYTES;
            self.mark(now, slot);
        }
    }

    fn mark(&mut self, now: Time, slot: Slot) {
        self.rounds.mark(self.head.geometry.page_of(slot));
        self.rounds.changed(now);
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}
