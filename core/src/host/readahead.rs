//! Data read before anyone asked for it: a bounded buffer, first in first out.
//!
//! Promises never to hold what a later write has replaced: the volume calls
//! [`ReadAhead::forget`] for every range written. It must not know where data comes from.

use crate::block::{Range, ReadPiece, SECTOR_BYTES};
use crate::extent::{Extent, ExtentMap};
use bytes::Bytes;
use std::collections::VecDeque;

#[derive(Clone, Debug)]
struct Cached {
    stamp: u64,
    /// None is zeroes.
    data: Option<Bytes>,
}

impl Extent for Cached {
    fn skip(&self, sectors: u64) -> Self {
        let skip = (sectors * SECTOR_BYTES) as usize;
        Cached { stamp: self.stamp, data: self.data.as_ref().map(|data| data.slice(skip..)) }
    }

    fn continues(&self, _sectors: u64, _next: &Self) -> bool {
        false
    }
}

/// What an entry is charged at least, for the map around it.
const ENTRY_CHARGE: u64 = 4096;

#[derive(Debug)]
pub(crate) struct ReadAhead {
    map: ExtentMap<Cached>,
    order: VecDeque<(u64, Range, u64)>,
    bytes: u64,
    max: u64,
    stamp: u64,
}

impl ReadAhead {
    pub(crate) fn new(max: u64) -> ReadAhead {
        ReadAhead { map: ExtentMap::new(), order: VecDeque::new(), bytes: 0, max, stamp: 0 }
    }

    pub(crate) fn max(&self) -> u64 {
        self.max
    }

    /// Keeps verified content of `range`, dropping the oldest.
    pub(crate) fn insert(&mut self, range: Range, piece: &ReadPiece) {
        let (data, charge) = match piece {
            // Copied, so that it does not keep a whole answer alive.
            ReadPiece::Data(data) => (Some(Bytes::copy_from_slice(data)), data.len() as u64),
            ReadPiece::Zeroes(_) => (None, 0),
        };
        let charge = charge.max(ENTRY_CHARGE);
        if charge > self.max {
            return;
        }
        while self.bytes + charge > self.max {
            let Some((stamp, old, bytes)) = self.order.pop_front() else { break };
            self.map.remove_if(old, |cached| cached.stamp == stamp);
            self.bytes -= bytes;
        }
        self.stamp += 1;
        self.map.insert(range, Cached { stamp: self.stamp, data });
        self.order.push_back((self.stamp, range, charge));
        self.bytes += charge;
    }

    /// The range is about to be written.
    pub(crate) fn forget(&mut self, range: Range) {
        if !self.map.is_empty() {
            self.map.remove(range);
        }
    }

    /// `range` in order and without gaps, with content where there is some.
    pub(crate) fn cover(
        &self,
        range: Range,
    ) -> impl Iterator<Item = (Range, Option<ReadPiece>)> + '_ {
        self.map.cover(range).map(|(part, cached)| {
            let piece = cached.map(|cached| match cached.data {
                Some(data) => ReadPiece::Data(data.slice(..part.bytes() as usize)),
                None => ReadPiece::Zeroes(part.sectors),
            });
            (part, piece)
        })
    }
}
