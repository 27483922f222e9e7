//! Data of the read-ahead. To make room, the buffer first drops data that clients have read, then
//! the oldest.
//!
//! It never holds data that a later write has replaced: the volume calls [`Buffer::forget`] for
//! every range written. Each byte that goes in counts exactly once when it comes out, as used or as
//! wasted. It must not know where data comes from.

use super::tally::{AheadReason, Tally};
use crate::block::{Range, ReadPiece, SECTOR_BYTES};
use crate::extent::{Extent, ExtentMap};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};

#[derive(Clone, Debug)]
struct Cached {
    stamp: u64,
    /// A client has read it.
    used: bool,
    /// The data from here to the end of the piece with this stamp. `None`: zeroes.
    data: Option<Bytes>,
}

impl Extent for Cached {
    fn skip(&self, sectors: u64) -> Self {
        let skip = (sectors * SECTOR_BYTES) as usize;
        Cached { data: self.data.as_ref().map(|data| data.slice(skip..)), ..*self }
    }

    fn continues(&self, _sectors: u64, next: &Self) -> bool {
        self.stamp == next.stamp && self.used == next.used
    }
}

#[derive(Clone, Copy, Debug)]
struct BufferedRun {
    range: Range,
    charge: u64,
    /// Bytes that no client has read.
    unused: u64,
    why: AheadReason,
}

/// The least charge for an entry, which stands for the maps around it.
pub(super) const ENTRY_CHARGE: u64 = 4096;

#[derive(Debug, Default)]
pub(super) struct Buffer {
    map: ExtentMap<Cached>,
    /// By stamp: in the order of arrival.
    entries: BTreeMap<u64, BufferedRun>,
    /// Entries without unused bytes.
    done: VecDeque<u64>,
    bytes: u64,
    /// The part of it that is for a trace and not all used.
    trace_bytes: u64,
    stamp: u64,
}

impl Buffer {
    /// The charge for the content.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The charge for the part that a trace brought and that is not all used.
    pub(super) fn trace_bytes(&self) -> u64 {
        self.trace_bytes
    }

    /// Keeps verified content of `range`. `None`: zeroes.
    pub(super) fn insert(
        &mut self,
        range: Range,
        data: Option<Bytes>,
        why: AheadReason,
        tally: &mut Tally,
    ) {
        self.forget(range, tally);
        let charge = data.as_ref().map_or(0, |data| data.len() as u64).max(ENTRY_CHARGE);
        self.stamp += 1;
        self.map.insert(range, Cached { stamp: self.stamp, used: false, data });
        self.entries.insert(self.stamp, BufferedRun { range, charge, unused: range.bytes(), why });
        self.bytes += charge;
        self.trace_bytes += if why == AheadReason::Trace { charge } else { 0 };
    }

    /// Drops the first used entry, or else the oldest one. False if there is none.
    pub(super) fn drop_one(&mut self, tally: &mut Tally) -> bool {
        let mut first = None;
        while first.is_none()
            && let Some(stamp) = self.done.pop_front()
        {
            first = self.entries.remove_entry(&stamp);
        }
        let Some((stamp, entry)) = first.or_else(|| self.entries.pop_first()) else { return false };
        self.map.remove_if(entry.range, |cached| cached.stamp == stamp);
        self.bytes -= entry.charge;
        if entry.why == AheadReason::Trace && entry.unused > 0 {
            self.trace_bytes -= entry.charge;
        }
        tally.waste(entry.why, entry.unused);
        true
    }

    /// A client is about to write the range.
    pub(super) fn forget(&mut self, range: Range, tally: &mut Tally) {
        if self.map.is_empty() {
            return;
        }
        let unused: Vec<(u64, u64)> = self
            .map
            .overlapping(range)
            .filter(|(_, cached)| !cached.used)
            .map(|(part, cached)| (cached.stamp, part.bytes()))
            .collect();
        for (stamp, bytes) in unused {
            if let Some(why) = self.taken(stamp, bytes) {
                tally.waste(why, bytes);
            }
        }
        self.map.remove(range);
    }

    /// `range` in order and without gaps, with the content that the buffer has. That counts as
    /// used.
    pub(super) fn read(
        &mut self,
        range: Range,
        tally: &mut Tally,
    ) -> Vec<(Range, Option<ReadPiece>)> {
        if self.map.is_empty() {
            return vec![(range, None)];
        }
        let mut fresh: Vec<(Range, Cached)> = Vec::new();
        let found = self.map.cover(range).map(|(part, cached)| {
            let Some(cached) = cached else { return (part, None) };
            let piece = match &cached.data {
                Some(data) => ReadPiece::Data(data.slice(..part.bytes() as usize)),
                None => ReadPiece::Zeroes(part.sectors),
            };
            if !cached.used {
                fresh.push((part, Cached { used: true, ..cached }));
            }
            (part, Some(piece))
        });
        let found = found.collect();
        for (part, cached) in fresh {
            if let Some(why) = self.taken(cached.stamp, part.bytes()) {
                tally.add_use(why, part.bytes());
            }
            self.map.insert(part, cached);
        }
        found
    }

    /// The parts of `range` that the buffer lacks.
    pub(super) fn missing(&self, range: Range) -> impl Iterator<Item = Range> + '_ {
        self.map.cover(range).filter(|(_, cached)| cached.is_none()).map(|(part, _)| part)
    }

    /// Marks `bytes` of an entry as used.
    fn taken(&mut self, stamp: u64, bytes: u64) -> Option<AheadReason> {
        let entry = self.entries.get_mut(&stamp)?;
        entry.unused = entry.unused.saturating_sub(bytes);
        if entry.unused == 0 {
            self.done.push_back(stamp);
            self.trace_bytes -= if entry.why == AheadReason::Trace { entry.charge } else { 0 };
        }
        Some(entry.why)
    }
}
