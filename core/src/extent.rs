//! An ordered map from runs of sectors to values: the newest insertion wins where runs overlap.
//!
//! The host keeps its dirty map in one, the store its LBA map, and the drain the content of a
//! batch.

use crate::block::Range;
use std::collections::BTreeMap;
use std::ops::Bound;

/// A divisible value for a run of sectors.
pub trait Extent: Clone {
    /// The value for the rest of the run, `sectors` further on.
    #[must_use]
    fn skip(&self, sectors: u64) -> Self;

    /// Whether `next` simply continues this value's run of `sectors`, so that both can be one
    /// entry.
    fn continues(&self, sectors: u64, next: &Self) -> bool;
}

#[derive(Clone, Debug)]
struct Entry<V> {
    sectors: u64,
    value: V,
}

/// Disjoint runs of sectors, each with a value, in order.
///
/// All operations cost O(log n) plus the number of entries that they touch.
#[derive(Clone, Debug)]
pub struct ExtentMap<V> {
    entries: BTreeMap<u64, Entry<V>>,
}

impl<V> Default for ExtentMap<V> {
    fn default() -> Self {
        ExtentMap { entries: BTreeMap::new() }
    }
}

impl<V: Extent> ExtentMap<V> {
    /// An empty map.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the map is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Unmaps everything.
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// Maps `range` to `value`, replacing whatever was there.
    pub fn insert(&mut self, range: Range, value: V) {
        if range.is_empty() {
            return;
        }
        let (lba, end) = (range.lba, range.end());
        // Without a cut, one descent finds all relevant entries. These are the entry that starts
        // where the range ends, the one that the range overwrites whole, and the one before.
        let mut near = self.entries.range_mut(..=end);
        let mut before = near.next_back();
        let mut added = 0;
        if let Some((at, after)) = &before
            && **at == end
        {
            if value.continues(range.sectors, &after.value) {
                added = after.sectors;
            }
            before = near.next_back();
        }
        let entry = Entry { sectors: range.sectors + added, value };
        let joins = |first: Option<(&u64, &mut Entry<V>)>| match first {
            Some((&at, first))
                if at + first.sectors == lba
                    && first.value.continues(first.sectors, &entry.value) =>
            {
                first.sectors += entry.sectors;
                true
            }
            _ => false,
        };
        match before {
            Some((&at, same)) if at == lba && same.sectors == range.sectors => {
                if joins(near.next_back()) {
                    self.entries.remove(&lba);
                } else {
                    *same = entry;
                }
            }
            Some((&at, other)) if at + other.sectors > lba => {
                self.remove(range);
                let value = entry.value;
                self.entries.insert(lba, Entry { sectors: range.sectors, value });
                return self.join_around(range);
            }
            before => {
                if !joins(before) {
                    self.entries.insert(lba, entry);
                }
            }
        }
        if added > 0 {
            self.entries.remove(&end);
        }
    }

    /// Unmaps `range`.
    pub fn remove(&mut self, range: Range) {
        self.remove_if(range, |_| true);
    }

    /// Unmaps the parts of `range` whose value satisfies `condition`.
    pub fn remove_if(&mut self, range: Range, mut condition: impl FnMut(&V) -> bool) {
        if range.is_empty() {
            return;
        }
        let end = range.end();
        let mut cursor = self.entry_at_or_before(range.lba).unwrap_or(range.lba);
        while cursor < end {
            let Some((&lba, entry)) = self.entries.range(cursor..end).next() else { break };
            let sectors = entry.sectors;
            let entry_end = lba + sectors;
            cursor = entry_end;
            if entry_end <= range.lba || !condition(&entry.value) {
                continue;
            }
            let tail = (entry_end > end)
                .then(|| Entry { sectors: entry_end - end, value: entry.value.skip(end - lba) });
            if lba < range.lba {
                if let Some(head) = self.entries.get_mut(&lba) {
                    head.sectors = range.lba - lba;
                }
            } else {
                self.entries.remove(&lba);
            }
            if let Some(tail) = tail {
                self.entries.insert(end, tail);
            }
        }
    }

    /// Looks at `count` entries, from the first one that starts at or after `lba`. Unmaps those
    /// whose value satisfies `condition`. Returns where to go on, or `None` at the end of the map.
    pub fn sweep(&mut self, lba: u64, count: usize, condition: impl Fn(&V) -> bool) -> Option<u64> {
        let mut entries = self.entries.range(lba..);
        let found =
            entries.by_ref().take(count).filter(|(_, entry)| condition(&entry.value)).count() > 0;
        let next = entries.next().map(|(&next, _)| next);
        if found {
            let end = next.map_or(Bound::Unbounded, Bound::Excluded);
            let hits = (Bound::Included(lba), end);
            self.entries.extract_if(hits, |_, entry| condition(&entry.value)).for_each(drop);
        }
        next
    }

    /// The mapped parts of `range` in order, each cut to it.
    pub fn overlapping(&self, range: Range) -> impl Iterator<Item = (Range, V)> + '_ {
        let start = self.entry_at_or_before(range.lba).unwrap_or(range.lba);
        let bounds = if range.is_empty() { start..start } else { start..range.end() };
        self.entries.range(bounds).filter_map(move |(&lba, entry)| {
            let whole = Range::new(lba, entry.sectors);
            let part = whole.intersect(range)?;
            Some((part, entry.value.skip(part.lba - lba)))
        })
    }

    /// `range` in order and without gaps: mapped parts with their value, the others with `None`.
    pub fn cover(&self, range: Range) -> impl Iterator<Item = (Range, Option<V>)> + '_ {
        let mut at = range.lba;
        let mut mapped = self.overlapping(range).peekable();
        std::iter::from_fn(move || {
            if at >= range.end() {
                return None;
            }
            let (part, value) = match mapped.peek() {
                Some((part, _)) if part.lba == at => {
                    let (part, value) = mapped.next()?;
                    (part, Some(value))
                }
                Some((part, _)) => (Range::between(at, part.lba), None),
                None => (Range::between(at, range.end()), None),
            };
            at = part.end();
            Some((part, value))
        })
    }

    /// All entries in order, from the one that holds or follows `lba`.
    pub fn iter_from(&self, lba: u64) -> impl Iterator<Item = (Range, &V)> + '_ {
        let start = self.entry_at_or_before(lba).unwrap_or(lba);
        self.entries
            .range(start..)
            .map(|(&lba, entry)| (Range::new(lba, entry.sectors), &entry.value))
            .filter(move |(range, _)| range.end() > lba)
    }

    /// Number of mapped sectors. Walks the whole map.
    #[must_use]
    pub fn mapped_sectors(&self) -> u64 {
        self.entries.values().map(|entry| entry.sectors).sum()
    }

    fn entry_at_or_before(&self, lba: u64) -> Option<u64> {
        self.entries.range(..=lba).next_back().map(|(&lba, _)| lba)
    }

    fn join_around(&mut self, range: Range) {
        self.join_at(range.end());
        self.join_at(range.lba);
    }

    /// Makes one entry of the two that meet at `lba`, if the second continues the first.
    fn join_at(&mut self, lba: u64) {
        let Some(second) = self.entries.get(&lba) else { return };
        let Some((&first_lba, first)) = self.entries.range(..lba).next_back() else { return };
        if first_lba + first.sectors != lba || !first.value.continues(first.sectors, &second.value)
        {
            return;
        }
        let added = second.sectors;
        self.entries.remove(&lba);
        if let Some(first) = self.entries.get_mut(&first_lba) {
            first.sectors += added;
        }
    }
}

/// A value that is the same for every sector of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Uniform<T>(pub T);

impl<T: Clone + PartialEq> Extent for Uniform<T> {
    fn skip(&self, _sectors: u64) -> Self {
        self.clone()
    }

    fn continues(&self, _sectors: u64, next: &Self) -> bool {
        self == next
    }
}

/// A set of sectors.
pub type RangeSet = ExtentMap<Uniform<()>>;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Sector `n` of a run that started with value `v` has value `v + n`: cuts must keep count.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Ramp(u64);

    impl Extent for Ramp {
        fn skip(&self, sectors: u64) -> Self {
            Ramp(self.0 + sectors)
        }
        fn continues(&self, sectors: u64, next: &Self) -> bool {
            self.0 + sectors == next.0
        }
    }

    const SIZE: u64 = 64;

    #[derive(Clone, Debug)]
    enum Op {
        Insert(u64, u64, u64),
        Remove(u64, u64),
        RemoveBelow(u64, u64, u64),
        Sweep(usize, u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            (0..SIZE, 0..SIZE, 0..1000u64).prop_map(|(a, b, v)| Op::Insert(a, b, v * 100)),
            // Values that continue a neighbor's, so that joining happens.
            (0..SIZE, 0..SIZE).prop_map(|(a, b)| Op::Insert(a, b, a)),
            (0..SIZE, 0..SIZE).prop_map(|(a, b)| Op::Remove(a, b)),
            (0..SIZE, 0..SIZE, 0..100_000u64).prop_map(|(a, b, v)| Op::RemoveBelow(a, b, v)),
            (1..8usize, 0..100_000u64).prop_map(|(count, v)| Op::Sweep(count, v)),
        ]
    }

    fn clip(lba: u64, sectors: u64) -> Range {
        Range::between(lba, (lba + sectors).min(SIZE))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]
        #[test]
        fn behaves_as_an_array(ops in prop::collection::vec(op(), 1..40), at in 0..SIZE, len in 0..SIZE) {
            let mut map = ExtentMap::new();
            let mut model = [None::<u64>; SIZE as usize];
            for op in ops {
                match op {
                    Op::Insert(a, b, v) => {
                        let range = clip(a, b);
                        map.insert(range, Ramp(v));
                        for s in range.lba..range.end() { model[s as usize] = Some(v + s - range.lba); }
                    }
                    Op::Remove(a, b) => {
                        let range = clip(a, b);
                        map.remove(range);
                        for s in range.lba..range.end() { model[s as usize] = None; }
                    }
                    Op::RemoveBelow(a, b, limit) => {
                        // The sweep asks for the condition once an entry, so make it one that is
                        // the same for all of an entry's sectors.
                        let range = clip(a, b);
                        let hit: Vec<Range> = map.iter_from(0)
                            .filter(|(_, v)| v.0 < limit)
                            .filter_map(|(r, _)| r.intersect(range)).collect();
                        map.remove_if(range, |v| v.0 < limit);
                        for r in hit { for s in r.lba..r.end() { model[s as usize] = None; } }
                    }
                    Op::Sweep(count, limit) => {
                        let entries: Vec<(Range, Ramp)> =
                            map.iter_from(0).map(|(r, v)| (r, *v)).collect();
                        let (mut at, mut steps) = (0, 0);
                        while let Some(next) = map.sweep(at, count, |v| v.0 < limit) {
                            at = next;
                            steps += 1;
                        }
                        prop_assert_eq!(steps, entries.len().saturating_sub(1) / count);
                        for (r, _) in entries.iter().filter(|(_, v)| v.0 < limit) {
                            for s in r.lba..r.end() { model[s as usize] = None; }
                        }
                    }
                }
                // Disjoint, ordered, non-empty, fully joined.
                let mut last: Option<(Range, Ramp)> = None;
                for (range, value) in map.iter_from(0) {
                    prop_assert!(!range.is_empty());
                    if let Some((before, v)) = last {
                        prop_assert!(before.end() <= range.lba);
                        let v: Ramp = v;
                        prop_assert!(before.end() < range.lba || !v.continues(before.sectors, value));
                    }
                    last = Some((range, *value));
                }
            }
            let range = clip(at, len);
            let mut covered = Vec::new();
            for (part, value) in map.cover(range) {
                for n in 0..part.sectors {
                    covered.push(value.map(|v| v.0 + n));
                }
            }
            prop_assert_eq!(&covered[..], &model[range.lba as usize..range.end() as usize]);
            let mapped: u64 = model.iter().filter(|v| v.is_some()).count() as u64;
            prop_assert_eq!(map.mapped_sectors(), mapped);
        }
    }

    #[test]
    fn sequential_runs_become_one_entry() {
        let mut map = ExtentMap::new();
        for lba in (0..800).step_by(8) {
            map.insert(Range::new(lba, 8), Ramp(lba));
        }
        assert_eq!(map.len(), 1);
        map.insert(Range::new(80, 8), Ramp(5000));
        assert_eq!(map.len(), 3);
    }
}
