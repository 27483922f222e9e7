//! Writes back ranges that are damaged at the store and whole in the read cache.
//!
//! Promises: the data is the last content of the range before that write, in the order of all
//! writes. No write touches the range between the read of the cache and the number of the new
//! write. It is an ordinary write, in the journal and at the store. The volume writes back only
//! ranges that the store has in full: the delivery of the others heals them. Repairs never delay
//! clients. They go one piece at a time, each after the commit of the one before. They write
//! nothing while there is work that clients could have to wait for. In that case they give up the
//! rest; a store that still needs it reports it again.

use crate::block::{Range, Seq, Time};
use crate::extent::{RangeSet, Uniform};
use crate::host::cache::{Found, Reader};
use crate::host::io::Event;
use crate::host::outputs::Outputs;
use crate::host::pieces::pieces;
use crate::wire::link::MAX_DAMAGED_RANGES;
use bytes::{Bytes, BytesMut};
use std::time::Duration;

/// Most ranges to keep.
const LEFT_MAX: usize = 8 * MAX_DAMAGED_RANGES;
/// Pieces to look at before other work has its turn, because the cache may lack most of them.
const LOOKS: usize = 64;
const TURN: Duration = Duration::from_millis(1);
/// Marks the reads of the cache for a piece, to distinguish them from those of clients.
const READER: u64 = 1 << 63;

/// Damaged ranges of the store that the volume has not looked at.
#[derive(Debug, Default)]
pub(in crate::host) struct Repairs {
    left: RangeSet,
    piece: Option<CachedPiece>,
    /// The number of the last piece.
    number: u64,
    /// Pieces to look at in this turn.
    looks: usize,
    /// The last number written back.
    written: Seq,
    turn: Option<Time>,
    /// Bytes since nothing was left.
    told_bytes: u64,
    written_bytes: u64,
}

/// A piece on its way from the cache.
#[derive(Debug)]
struct CachedPiece {
    /// The parts in order.
    parts: Vec<(Range, CachedPart)>,
    pending: usize,
    /// A client has written to it since its read.
    spoiled: bool,
}

/// A part of a piece.
#[derive(Debug)]
enum CachedPart {
    Pending,
    /// The cache does not have it after all.
    Absent,
    Zeroes,
    Data(Bytes),
}

impl Repairs {
    // --- inputs ---

    /// The store reports that it has lost these ranges of a volume of `sectors`.
    pub(in crate::host) fn told(&mut self, ranges: &[Range], sectors: u64, out: &mut Outputs) {
        let whole = Range::new(0, sectors);
        let before = self.told_bytes;
        for range in ranges.iter().take(MAX_DAMAGED_RANGES) {
            let Some(range) = range.intersect(whole) else { continue };
            if self.left.len() < LEFT_MAX {
                self.leave(range);
                self.told_bytes += range.bytes();
            }
        }
        let bytes = self.told_bytes - before;
        out.event(Event::DamageTold { ranges: ranges.len(), bytes });
    }

    /// A client writes a range.
    pub(in crate::host) fn written(&mut self, range: Range) {
        if let Some(piece) = &mut self.piece {
            piece.spoiled |= piece.parts.iter().any(|(part, _)| part.intersect(range).is_some());
        }
    }

    /// Gives up all that is left.
    pub(in crate::host) fn give_up(&mut self) {
        self.left.clear();
    }

    fn leave(&mut self, range: Range) {
        self.left.insert(range, Uniform(()));
    }

    // --- pieces ---

    /// Whether a turn begins: ranges are left and no read is under way.
    pub(in crate::host) fn begin_turn(&mut self, now: Time) -> bool {
        if self.turn.is_some_and(|turn| turn > now) {
            return false;
        }
        self.turn = None;
        self.looks = LOOKS;
        true
    }

    /// The next piece to look at, of at most `longest` sectors.
    pub(in crate::host) fn next_piece(
        &mut self,
        now: Time,
        committed: Seq,
        longest: u64,
    ) -> Option<Range> {
        if self.looks == 0 {
            self.turn = Some(now.after(TURN));
            return None;
        }
        self.looks -= 1;
        if self.piece.is_some() || self.written > committed {
            return None;
        }
        let (range, _) = self.left.iter_from(0).next()?;
        let piece = pieces(range, longest).next()?;
        self.left.remove(piece);
        Some(piece)
    }

    /// The cache has these parts of a piece. Returns the reads of the cache to make.
    pub(in crate::host) fn read(
        &mut self,
        found: Vec<(Range, Found)>,
    ) -> Vec<(Reader, Range, u64)> {
        let (mut parts, mut reads) = (Vec::new(), Vec::new());
        let number = self.number + 1;
        for (range, found) in found {
            let part = match found {
                Found::Absent => continue,
                Found::Zero => CachedPart::Zeroes,
                Found::At(at) => {
                    reads.push((Reader { read: READER | number, slot: parts.len() }, range, at));
                    CachedPart::Pending
                }
            };
            parts.push((range, part));
        }
        if !parts.is_empty() {
            self.number = number;
            self.piece = Some(CachedPiece { parts, pending: reads.len(), spoiled: false });
        }
        reads
    }

    /// Whether a read of the cache is for a piece, present or given up.
    pub(in crate::host) fn reads(reader: Reader) -> bool {
        reader.read & READER != 0
    }

    /// The cache has given a part of a piece, or could not.
    pub(in crate::host) fn came(&mut self, reader: Reader, data: Option<Bytes>) {
        if reader.read != READER | self.number {
            return;
        }
        let Some(piece) = &mut self.piece else { return };
        if let Some((_, part)) = piece.parts.get_mut(reader.slot) {
            *part = data.map_or(CachedPart::Absent, CachedPart::Data);
            piece.pending -= 1;
        }
    }

    /// Takes the piece to write back, after all its reads. Empty if a client has written to it
    /// since, or if `may` is false.
    pub(in crate::host) fn take_read(&mut self, may: bool) -> Vec<(Range, Bytes)> {
        let Some(CachedPiece { parts, spoiled, .. }) =
            self.piece.take_if(|piece| piece.pending == 0)
        else {
            return Vec::new();
        };
        if spoiled {
            // Look at the rest of it once more.
            for (range, _) in parts {
                self.leave(range);
            }
            return Vec::new();
        }
        if may { joined(parts) } else { Vec::new() }
    }

    /// A range has been written back, under these numbers.
    pub(in crate::host) fn written_back(
        &mut self,
        range: Range,
        (first, last): (Seq, Seq),
        out: &mut Outputs,
    ) {
        self.written = last;
        self.written_bytes += range.bytes();
        out.count().written_back_bytes += range.bytes();
        out.event(Event::WrittenBack { range, first, last });
    }

    /// Reports that the volume has looked at all lost ranges, or has given up.
    pub(in crate::host) fn end(&mut self, out: &mut Outputs) {
        if self.left.is_empty() && self.piece.is_none() {
            let told_bytes = std::mem::take(&mut self.told_bytes);
            let written_bytes = std::mem::take(&mut self.written_bytes);
            out.event(Event::Repaired { told_bytes, written_bytes });
        }
    }

    // --- outputs ---

    /// Whether the volume has more ranges and reads none now.
    pub(in crate::host) fn is_waiting(&self) -> bool {
        self.told_bytes > 0 && self.piece.is_none()
    }

    /// When the next turn begins.
    pub(in crate::host) fn deadline(&self) -> Option<Time> {
        self.turn.filter(|_| !self.left.is_empty())
    }
}

/// Parts that follow each other are one write.
fn joined(parts: Vec<(Range, CachedPart)>) -> Vec<(Range, Bytes)> {
    let mut runs: Vec<(Range, Vec<Bytes>)> = Vec::new();
    for (range, part) in parts {
        let data = match part {
            CachedPart::Pending | CachedPart::Absent => continue,
            CachedPart::Zeroes => Bytes::from(vec![0; range.bytes() as usize]),
            CachedPart::Data(data) => data,
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
