//! Writes that a host acknowledged and has not delivered: ranges, each with the number of its last
//! write.
//!
//! The set is exact while it fits its limit. Beyond the limit it joins the nearest neighbors and
//! says that it is rounded. A rounded set may name sectors that lost nothing. It never omits a
//! sector that lost something.

use crate::block::{MAX_VOLUME_SECTORS, Range, Seq};
use crate::wire::link::Announced;
use bytes::{BufMut, BytesMut};
use std::collections::{BTreeMap, BTreeSet};

/// Most bytes of an encoded entry: three numbers of at most ten bytes.
pub const MAX_ENTRY_BYTES: usize = 30;

#[derive(Clone, Copy, Debug)]
struct OutstandingRange {
    sectors: u64,
    seq: Seq,
}

/// A bounded set of announced ranges. Every operation costs O(log n) an entry touched.
#[derive(Clone, Debug)]
pub struct Outstanding {
    limit: usize,
    rounded: bool,
    sectors: u64,
    entries: BTreeMap<u64, OutstandingRange>,
    by_seq: BTreeSet<(Seq, u64)>,
    /// (sectors between an entry and the one after it, address of the first).
    gaps: BTreeSet<(u64, u64)>,
}

impl Outstanding {
    /// An empty set that keeps at most `limit` ranges, at least one.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Outstanding {
            limit: limit.max(1),
            rounded: false,
            sectors: 0,
            entries: BTreeMap::new(),
            by_seq: BTreeSet::new(),
            gaps: BTreeSet::new(),
        }
    }

    /// Number of ranges.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether everything acknowledged has arrived.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether the set has widened ranges.
    #[must_use]
    pub fn rounded(&self) -> bool {
        self.rounded
    }

    /// Length of all ranges.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        Range::new(0, self.sectors).bytes()
    }

    /// The last write in any range, 0 if there is none.
    #[must_use]
    pub fn last_seq(&self) -> Seq {
        self.by_seq.last().map_or(0, |&(seq, _)| seq)
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Outstanding::new(self.limit);
    }

    /// Takes the place of everything with what a segment or root says.
    pub fn replace(&mut self, announced: &[Announced], rounded: bool) {
        self.clear();
        for entry in announced {
            self.insert(*entry);
        }
        self.rounded |= rounded;
    }

    /// Adds a range; where it overlaps another the later write counts.
    pub fn insert(&mut self, announced: Announced) {
        let Announced { range, seq } = announced;
        if range.is_empty() {
            return;
        }
        let mut at = range.lba;
        for other in self.carve(range) {
            // Parts that an equal or later write had already claimed stay as they are.
            if other.seq >= seq {
                self.add(Range::between(at, other.range.lba), seq);
                self.add(other.range, other.seq);
                at = other.range.end();
            }
        }
        self.add(Range::between(at, range.end()), seq);
        while self.entries.len() > self.limit {
            self.merge_nearest();
        }
    }

    /// Drops the writes that the log has committed.
    pub fn settle(&mut self, committed: Seq) {
        while let Some(&(seq, lba)) = self.by_seq.first()
            && seq <= committed
        {
            self.unlink(lba);
        }
        self.rounded &= !self.entries.is_empty();
    }

    /// Forgets the writes after `last`. A range whose last write is one of them stays with `last`:
    /// it may hold earlier ones. That widens what is outstanding until `last` has arrived.
    pub fn forget_after(&mut self, last: Seq) {
        while let Some(&(seq, lba)) = self.by_seq.last()
            && seq > last
        {
            let Some(entry) = self.entries.get(&lba).copied() else { return };
            self.unlink(lba);
            self.add(Range::new(lba, entry.sectors), last);
            self.rounded = true;
        }
        self.rounded &= !self.entries.is_empty();
    }

    /// Ranges in order of address, from the one that holds or follows `lba`.
    pub fn iter_from(&self, lba: u64) -> impl Iterator<Item = Announced> + '_ {
        let start = self.before(lba.saturating_add(1)).unwrap_or(lba);
        self.entries
            .range(start..)
            .map(|(&lba, entry)| Announced {
                range: Range::new(lba, entry.sectors),
                seq: entry.seq,
            })
            .filter(move |entry| entry.range.end() > lba)
    }

    /// The outstanding writes after `committed`, in at most `limit` ranges, and whether the result
    /// is rounded.
    #[must_use]
    pub fn snapshot(&self, committed: Seq, limit: usize) -> (Vec<Announced>, bool) {
        let mut list: Vec<Announced> =
            self.iter_from(0).filter(|entry| entry.seq > committed).collect();
        let limit = limit.max(1);
        if list.len() <= limit {
            let rounded = self.rounded && !list.is_empty();
            return (list, rounded);
        }
        // Close the narrowest gaps; of equally wide ones the first in order of address.
        let mut gaps: Vec<(u64, usize)> = list
            .windows(2)
            .enumerate()
            .map(|(n, pair)| (pair[1].range.lba - pair[0].range.end(), n + 1))
            .collect();
        let close = list.len() - limit;
        gaps.select_nth_unstable(close - 1);
        let mut closed: Vec<usize> = gaps[..close].iter().map(|&(_, n)| n).collect();
        closed.sort_unstable();
        let mut closed = closed.into_iter().peekable();
        let mut merged: Vec<Announced> = Vec::with_capacity(limit);
        for (n, entry) in list.drain(..).enumerate() {
            match merged.last_mut() {
                Some(last) if closed.next_if_eq(&n).is_some() => {
                    last.range = Range::between(last.range.lba, entry.range.end());
                    last.seq = last.seq.max(entry.seq);
                }
                _ => merged.push(entry),
            }
        }
        (merged, true)
    }

    /// The last entry that begins before `lba`.
    fn before(&self, lba: u64) -> Option<u64> {
        self.entries.range(..lba).next_back().map(|(&lba, _)| lba)
    }

    /// Takes out the parts of all entries that lie in `range`, and gives them in order.
    fn carve(&mut self, range: Range) -> Vec<Announced> {
        let start = self.before(range.lba).unwrap_or(range.lba);
        let hit: Vec<u64> = self.entries.range(start..range.end()).map(|(&lba, _)| lba).collect();
        let mut parts = Vec::new();
        for lba in hit {
            let Some(entry) = self.entries.get(&lba).copied() else { continue };
            let whole = Range::new(lba, entry.sectors);
            let Some(part) = whole.intersect(range) else { continue };
            self.unlink(lba);
            self.link(Range::between(lba, part.lba), entry.seq);
            self.link(Range::between(part.end(), whole.end()), entry.seq);
            parts.push(Announced { range: part, seq: entry.seq });
        }
        parts
    }

    /// Adds a range that overlaps no other, joining it to neighbors of the same write.
    fn add(&mut self, mut range: Range, seq: Seq) {
        if range.is_empty() {
            return;
        }
        if let Some(lba) = self.before(range.lba)
            && let Some(entry) = self.entries.get(&lba).copied()
            && entry.seq == seq
            && lba + entry.sectors == range.lba
        {
            self.unlink(lba);
            range = Range::between(lba, range.end());
        }
        if let Some(entry) = self.entries.get(&range.end()).copied()
            && entry.seq == seq
        {
            self.unlink(range.end());
            range.sectors += entry.sectors;
        }
        self.link(range, seq);
    }

    fn merge_nearest(&mut self) {
        let Some(&(_, lba)) = self.gaps.first() else { return };
        let Some(first) = self.entries.get(&lba).copied() else { return };
        let Some((&next, second)) = self.entries.range(lba + 1..).next() else { return };
        let (end, seq) = (next + second.sectors, first.seq.max(second.seq));
        self.rounded = true;
        self.unlink(next);
        self.unlink(lba);
        self.link(Range::between(lba, end), seq);
    }

    fn gap_after(&self, lba: u64) -> Option<u64> {
        let end = lba + self.entries.get(&lba)?.sectors;
        self.entries.range(lba + 1..).next().map(|(&next, _)| next - end)
    }

    /// Runs `change` with the gaps around `lba` out of the index.
    fn around(&mut self, lba: u64, change: impl FnOnce(&mut Self)) {
        let before = self.before(lba);
        for at in [before, Some(lba)].into_iter().flatten() {
            if let Some(gap) = self.gap_after(at) {
                self.gaps.remove(&(gap, at));
            }
        }
        change(self);
        for at in [before, Some(lba)].into_iter().flatten() {
            if let Some(gap) = self.gap_after(at) {
                self.gaps.insert((gap, at));
            }
        }
    }

    fn link(&mut self, range: Range, seq: Seq) {
        if range.is_empty() {
            return;
        }
        self.around(range.lba, |set| {
            set.entries.insert(range.lba, OutstandingRange { sectors: range.sectors, seq });
        });
        self.by_seq.insert((seq, range.lba));
        self.sectors += range.sectors;
    }

    fn unlink(&mut self, lba: u64) {
        let Some(entry) = self.entries.get(&lba).copied() else { return };
        self.around(lba, |set| {
            set.entries.remove(&lba);
        });
        self.by_seq.remove(&(entry.seq, lba));
        self.sectors -= entry.sectors;
    }
}

/// Appends ranges in order of address; all are later than `committed`. Each has three LEB128
/// numbers: its distance from the end of the range before, its length, and its number less
/// `committed`.
pub fn encode(announced: &[Announced], committed: Seq, out: &mut BytesMut) {
    let mut at = 0;
    for entry in announced {
        put_varint(entry.range.lba.saturating_sub(at), out);
        put_varint(entry.range.sectors, out);
        put_varint(entry.seq.saturating_sub(committed), out);
        at = entry.range.end();
    }
}

/// Reads exactly `count` ranges that fill `bytes`; `None` if they are not what [`encode`] wrote.
#[must_use]
pub fn decode(mut bytes: &[u8], count: usize, committed: Seq) -> Option<Vec<Announced>> {
    // Each range takes at least three bytes. This check bounds the count before the code allocates
    // anything.
    if count > bytes.len() / 3 {
        return if count == 0 && bytes.is_empty() { Some(Vec::new()) } else { None };
    }
    let mut list = Vec::with_capacity(count);
    let mut at: u64 = 0;
    for _ in 0..count {
        let lba = at.checked_add(take_varint(&mut bytes)?)?;
        let range = Range::new(lba, take_varint(&mut bytes)?);
        let after = take_varint(&mut bytes)?;
        if range.is_empty() || !range.fits(MAX_VOLUME_SECTORS) || after == 0 {
            return None;
        }
        list.push(Announced { range, seq: committed.checked_add(after)? });
        at = range.end();
    }
    bytes.is_empty().then_some(list)
}

/// Appends a number as LEB128: seven bits a byte, the lowest first.
pub(super) fn put_varint(mut value: u64, out: &mut impl BufMut) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

/// Takes a number off the front; `None` if there is none, or one of more than 64 bits.
pub(super) fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            return None;
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: u64 = 96;

    fn announced(lba: u64, sectors: u64, seq: Seq) -> Announced {
        Announced { range: Range::new(lba, sectors), seq }
    }

    fn sectors_of(list: &[Announced]) -> [Seq; SIZE as usize] {
        let mut out = [0; SIZE as usize];
        for entry in list {
            for s in entry.range.lba..entry.range.end() {
                assert_eq!(out[s as usize], 0, "entries overlap");
                out[s as usize] = entry.seq;
            }
        }
        out
    }

    proptest! {
        #[test]
        fn exact_within_the_limit_and_never_less_beyond(
            ops in prop::collection::vec((0..SIZE, 1..12u64, 1..40u64, 0..10u8), 1..60),
            limit in 1..40usize,
            snapshot in 1..20usize,
        ) {
            let mut set = Outstanding::new(limit);
            let mut exact = Outstanding::new(1000);
            let mut model = [0u64; SIZE as usize];
            for (lba, sectors, seq, what) in ops {
                let range = Range::between(lba, (lba + sectors).min(SIZE));
                if what == 1 {
                    // A later question must find all writes announced up to that write.
                    let (mut set, mut earlier) = (exact.clone(), model);
                    set.forget_after(seq);
                    for s in &mut earlier { *s = (*s).min(seq); }
                    prop_assert_eq!(sectors_of(&set.iter_from(0).collect::<Vec<_>>()), earlier);
                }
                if what == 0 {
                    set.settle(seq / 2);
                    exact.settle(seq / 2);
                    for s in &mut model { if *s <= seq / 2 { *s = 0; } }
                } else {
                    set.insert(Announced { range, seq });
                    exact.insert(Announced { range, seq });
                    for s in range.lba..range.end() {
                        model[s as usize] = model[s as usize].max(seq);
                    }
                }
                let all: Vec<_> = exact.iter_from(0).collect();
                prop_assert_eq!(sectors_of(&all), model);
                prop_assert!(!exact.rounded());
                let bytes: u64 = all.iter().map(|entry| entry.range.bytes()).sum();
                prop_assert_eq!(exact.bytes(), bytes);

                let all: Vec<_> = set.iter_from(0).collect();
                prop_assert!(all.len() <= limit);
                let kept = sectors_of(&all);
                for (have, need) in kept.iter().zip(&model) { prop_assert!(have >= need); }
                prop_assert!(set.rounded() || kept == model);

                let (list, rounded) = exact.snapshot(0, snapshot);
                prop_assert!(list.len() <= snapshot);
                let kept = sectors_of(&list);
                for (have, need) in kept.iter().zip(&model) { prop_assert!(have >= need); }
                prop_assert!(rounded || kept == model);
                prop_assert_eq!(exact.last_seq(), *model.iter().max().unwrap());

                let mut out = BytesMut::new();
                encode(&list, 0, &mut out);
                prop_assert_eq!(decode(&out, list.len(), 0).unwrap(), list);
            }
        }

        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..100), count in 0..40usize) {
            let _ = decode(&bytes, count, 7);
            let _ = decode(&bytes, usize::MAX, u64::MAX);
        }
    }

    #[test]
    fn nearest_neighbours_are_merged_first() {
        let mut set = Outstanding::new(3);
        for (lba, seq) in [(0, 1), (50, 2), (10, 3), (90, 4)] {
            set.insert(announced(lba, 4, seq));
        }
        let all: Vec<_> = set.iter_from(0).collect();
        assert_eq!(all, [announced(0, 14, 3), announced(50, 4, 2), announced(90, 4, 4)]);
        assert!(set.rounded());
        set.settle(2);
        assert_eq!(set.len(), 2);
        set.settle(4);
        assert!(!set.rounded() && set.bytes() == 0);
    }

    #[test]
    fn limits_of_numbers() {
        let mut out = BytesMut::new();
        put_varint(u64::MAX, &mut out);
        assert_eq!(take_varint(&mut &out[..]), Some(u64::MAX));
        assert_eq!(take_varint(&mut &[0xff; 10][..]), None);
        assert_eq!(take_varint(&mut &[0x80][..]), None);
        let list = [announced(MAX_VOLUME_SECTORS - 1, 1, u64::MAX)];
        let mut out = BytesMut::new();
        encode(&list, 0, &mut out);
        assert!(out.len() <= MAX_ENTRY_BYTES);
        assert_eq!(decode(&out, 1, 0).unwrap(), list);
    }
}
