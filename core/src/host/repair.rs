//! Writing back what is damaged at the store and whole in the read cache.
//!
//! Promises: what is written back is what the range held last before that write, in the order of all writes: nothing of it was
//! written between being read in the cache and being given its number. It is an ordinary write, in the journal and at the
//! store. Only what the store has in full is written back, since the rest heals by being delivered. It never stands in
//! anybody's way: one piece at a time, none before the last one is committed, and none while there is anything that
//! clients could have to wait for; then all that is left is given up, and a store that still needs it says so again.

use super::cache::{Found, Reader};
use super::io::Event;
use super::pieces::pieces;
use super::volume::{Link, Volume};
use crate::block::{BLOCK_SECTORS, Range, SECTOR_BYTES, Seq, Time};
use crate::extent::{RangeSet, Uniform};
use crate::wire::link::MAX_DAMAGED_RANGES;
use bytes::{Bytes, BytesMut};
use std::time::Duration;

/// Longest piece, in sectors (256 KiB).
const PIECE: u64 = 512;
/// A piece is no more than this part of what the journal holds.
const PIECES_OF_JOURNAL: u64 = 16;
/// More than this part of the journal has to be free.
const FREE_OF_JOURNAL: u64 = 2;
/// Most ranges that are left to be looked at.
const LEFT_MAX: usize = 8 * MAX_DAMAGED_RANGES;
/// Pieces looked at before anything else has its turn: most may not be in the cache.
const LOOKS: usize = 64;
const TURN: Duration = Duration::from_millis(1);
/// What distinguishes reads of the cache for a piece from those of clients.
const READER: u64 = 1 << 63;

/// What is damaged at the store, as far as that has not been looked at.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    left: RangeSet,
    piece: Option<Piece>,
    /// Of the last piece.
    number: u64,
    /// The last number written back.
    written: Seq,
    turn: Option<Time>,
    /// Since nothing was left.
    told_bytes: u64,
    written_bytes: u64,
}

/// What is being read in the cache.
#[derive(Debug)]
struct Piece {
    /// In order.
    parts: Vec<(Range, Part)>,
    pending: usize,
}

#[derive(Debug)]
enum Part {
    Pending,
    /// The cache does not have it after all.
    Absent,
    Zeroes,
    Data(Bytes),
}

impl Repairs {
    /// Whether a read of the cache is for a piece, this one or one that has been given up.
    pub(super) fn reads(reader: Reader) -> bool {
        reader.read & READER != 0
    }

    fn leave(&mut self, range: Range) {
        self.left.insert(range, Uniform(()));
    }
}

impl Volume {
    /// The store says that it has lost these.
    pub(super) fn told_damaged(&mut self, ranges: &[Range]) {
        let whole = Range::new(0, self.sectors());
        let before = self.repairs.told_bytes;
        for range in ranges.iter().take(MAX_DAMAGED_RANGES) {
            let Some(range) = range.intersect(whole) else { continue };
            if self.repairs.left.len() < LEFT_MAX {
                self.repairs.leave(range);
                self.repairs.told_bytes += range.bytes();
            }
        }
        let bytes = self.repairs.told_bytes - before;
        self.out.event(Event::DamageTold { ranges: ranges.len(), bytes });
    }

    /// Goes on with what is left.
    pub(super) fn repair_on(&mut self) {
        if self.repairs.told_bytes == 0 || self.repairs.piece.is_some() {
            return;
        }
        let cache = self.caching.get();
        if !self.may_repair() || cache.is_none_or(|cache| cache.status().off) {
            self.repairs.left.clear();
        }
        let (now, ready) = (self.context.now, self.caching.ready().is_some());
        if ready && self.link == Link::Up && self.repairs.turn.is_none_or(|turn| turn <= now) {
            self.look_at_pieces();
        }
        if self.repairs.left.is_empty() && self.repairs.piece.is_none() {
            let told_bytes = std::mem::take(&mut self.repairs.told_bytes);
            let written_bytes = std::mem::take(&mut self.repairs.written_bytes);
            self.out.event(Event::Repaired { told_bytes, written_bytes });
        }
    }

    fn look_at_pieces(&mut self) {
        self.repairs.turn = None;
        let journal = self.log.journal().capacity_bytes() / PIECES_OF_JOURNAL / SECTOR_BYTES;
        let most = PIECE.min(self.log.journal().record_sectors_max()).min(journal);
        let most = (most / BLOCK_SECTORS * BLOCK_SECTORS).max(BLOCK_SECTORS);
        for _ in 0..LOOKS {
            if self.repairs.piece.is_some() || self.repairs.written > self.log.committed() {
                return;
            }
            let next = self.repairs.left.iter_from(0).next();
            let Some(piece) = next.and_then(|(range, _)| pieces(range, most).next()) else {
                return;
            };
            self.repairs.left.remove(piece);
            self.repair(piece);
        }
        self.repairs.turn = Some(self.context.now.after(TURN));
    }

    /// Whether nobody could have to wait for what is written back, and it would get to the store.
    pub(super) fn may_repair(&self) -> bool {
        let ends = self.shutting_down || self.fenced.is_some();
        let stuck = self.acknowledger.has_failed()
            || self.behind
            || self.full
            || self.acknowledger.has_waiting_writes();
        let free = self.log.journal().used_bytes()
            <= self.log.journal().capacity_bytes() / FREE_OF_JOURNAL;
        // A snapshot is not written to.
        self.context.epoch > 0 && !ends && !stuck && free
    }

    /// Reads what the cache has of a piece.
    fn repair(&mut self, piece: Range) {
        let committed = self.log.committed();
        let at_store = self
            .log
            .cover(piece)
            .filter(|(_, place)| place.is_none_or(|place| place.seq <= committed));
        let mut here = RangeSet::new();
        for (range, _) in at_store {
            here.insert(range, Uniform(()));
        }
        for missing in self.caching.missing(piece) {
            here.remove(missing);
        }
        let (mut parts, mut found_at) = (Vec::new(), Vec::new());
        for (range, _) in here.iter_from(0) {
            for (range, found) in self.caching.cover(range) {
                let part = match found {
                    Found::Absent => continue,
                    Found::Zero => Part::Zeroes,
                    Found::At(at) => {
                        found_at.push((parts.len(), range, at));
                        Part::Pending
                    }
                };
                parts.push((range, part));
            }
        }
        if parts.is_empty() {
            return;
        }
        self.repairs.number += 1;
        let number = self.repairs.number;
        self.copies.guard(parts.iter().map(|(range, _)| *range).collect());
        let pending = found_at.len();
        self.repairs.piece = Some(Piece { parts, pending });
        for (slot, range, at) in found_at {
            self.caching.read(Reader { read: READER | number, slot }, range, at);
        }
        if pending == 0 {
            self.write_back();
        }
    }

    /// The cache has given a part of a piece, or could not.
    pub(super) fn repair_read(&mut self, reader: Reader, data: Option<Bytes>) {
        if reader.read != READER | self.repairs.number {
            return;
        }
        let Some(piece) = &mut self.repairs.piece else { return };
        if let Some((_, part)) = piece.parts.get_mut(reader.slot) {
            *part = data.map_or(Part::Absent, Part::Data);
            piece.pending -= 1;
        }
        if piece.pending == 0 {
            self.write_back();
        }
    }

    /// Writes what has been read, unless somebody else has written to it since.
    fn write_back(&mut self) {
        let Some(Piece { parts, .. }) = self.repairs.piece.take() else { return };
        if !self.copies.release_guard() {
            // The rest of it is looked at once more.
            for (range, _) in parts {
                self.repairs.leave(range);
            }
            return;
        }
        if !self.may_repair() {
            return;
        }
        for (range, data) in joined(parts) {
            let first = self.log.journal().next_seq();
            let (whole, _) = self.write_own(range, data);
            if !whole {
                return;
            }
            let last = self.log.last();
            self.repairs.written = last;
            self.repairs.written_bytes += range.bytes();
            self.out.count().written_back_bytes += range.bytes();
            self.out.event(Event::WrittenBack { range, first, last });
        }
    }

    /// When [`Volume::repair_on`] has something to do that it has not now.
    pub(super) fn repair_deadline(&self) -> Option<Time> {
        self.repairs.turn.filter(|_| !self.repairs.left.is_empty())
    }
}

/// Parts that follow each other are one write.
fn joined(parts: Vec<(Range, Part)>) -> Vec<(Range, Bytes)> {
    let mut runs: Vec<(Range, Vec<Bytes>)> = Vec::new();
    for (range, part) in parts {
        let data = match part {
            Part::Pending | Part::Absent => continue,
            Part::Zeroes => Bytes::from(vec![0; range.bytes() as usize]),
            Part::Data(data) => data,
        };
        match runs.last_mut() {
            Some((run, all)) if run.end() == range.lba => {
                run.sectors += range.sectors;
                all.push(data);
            }
            _ => runs.push((range, vec![data])),
        }
    }
    let whole = |(range, mut all): (Range, Vec<Bytes>)| match all.pop() {
        Some(only) if all.is_empty() => (range, only),
        last => {
            let mut whole = BytesMut::with_capacity(range.bytes() as usize);
            for data in all.into_iter().chain(last) {
                whole.extend_from_slice(&data);
            }
            (range, whole.freeze())
        }
    };
    runs.into_iter().map(whole).collect()
}
