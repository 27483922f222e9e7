//! Counts the bytes of each segment that the map, snapshots and clones name, and chooses the
//! segments to empty.

use crate::store::map::page::MapEntry;

/// The named bytes of each segment, by the root that names most of it: 8 bytes of memory a segment.
///
/// The caller counts roots in order of age. For each root it gives two things: the names that the
/// root before does not have, and the names that only the root before has. The first root with a
/// segment names at least the parts that any later root names. The exception is a volume after a
/// rollback: then two branches may name different parts, and the count is too low. Only the
/// estimate of the work depends on that. A segment with a single entry never counts as unnamed.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    /// The segment before the first.
    before: u64,
    /// By the present root.
    now: Vec<u32>,
    /// By the one that names most; not 0 if any names something.
    most: Vec<u32>,
}

impl Usage {
    /// Begins without names of the segments after `before` up to `last`.
    #[must_use]
    pub fn new(before: u64, last: u64) -> Usage {
        let segments = last.saturating_sub(before) as usize;
        Usage { before, now: vec![0; segments], most: vec![0; segments] }
    }

    fn slot(&self, segment: u64) -> Option<usize> {
        let slot = usize::try_from(segment.checked_sub(self.before)?.checked_sub(1)?).ok()?;
        (slot < self.now.len()).then_some(slot)
    }

    fn counted(&self, entry: MapEntry) -> Option<(usize, u32)> {
        let place = entry.place.filter(|place| !place.is_zero() && !place.is_staged())?;
        let slot = self.slot(place.segment())?;
        let bytes = place.stored_bytes(entry.range.sectors);
        Some((slot, u32::try_from(bytes).unwrap_or(u32::MAX)))
    }

    /// An entry of a fragment that the root names.
    pub fn count(&mut self, entry: MapEntry) {
        let Some((slot, bytes)) = self.counted(entry) else { return };
        self.now[slot] = self.now[slot].saturating_add(bytes);
        self.most[slot] = self.most[slot].max(1);
    }

    /// An entry of a fragment that the root before named, and this one does not.
    pub fn discount(&mut self, entry: MapEntry) {
        let Some((slot, bytes)) = self.counted(entry) else { return };
        self.now[slot] = self.now[slot].saturating_sub(bytes);
    }

    /// The present root ends.
    pub fn end_root(&mut self) {
        for (most, now) in self.most.iter_mut().zip(&self.now) {
            *most = (*most).max(*now);
        }
    }

    /// Named bytes of a segment; all bytes of an uncounted one.
    #[must_use]
    pub fn of(&self, segment: u64) -> u64 {
        self.slot(segment).map_or(u64::MAX, |slot| u64::from(self.most[slot]))
    }
}

/// An object whose data the collector may move: a segment, or a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The segments whose records are in it: one, or of a bundle several.
    pub segments: Vec<u64>,
    /// Its size.
    pub bytes: u64,
}

/// When to collect, and how much.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// The collector moves nothing while all objects take at most this percentage of the named
    /// bytes.
    pub high_percent: u64,
    /// Otherwise it empties objects until they take this percentage.
    pub low_percent: u64,
    /// Most bytes moved in a round.
    pub moved_bytes_max: u64,
    /// The collector counts nothing while less than this is stored.
    pub least_bytes: u64,
    /// Most bytes read or written in a second; 0 for as many as there is time for.
    pub bytes_per_second: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            high_percent: 149,
            low_percent: 140,
            moved_bytes_max: 1 << 30,
            least_bytes: 64 << 20,
            bytes_per_second: 0,
        }
    }
}

/// The stored bytes that the collector cannot empty.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fixed {
    /// Its size.
    pub stored_bytes: u64,
    /// The upper bound of their named bytes.
    pub named_bytes: u64,
}

/// The work for the collector.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// The objects without named data.
    pub unnamed: Vec<usize>,
    /// The objects whose named data the collector moves.
    pub moved: Vec<usize>,
    /// Bytes of all objects but the unnamed ones.
    pub stored_bytes: u64,
    /// The upper bound of their named bytes.
    pub named_bytes: u64,
}

/// Chooses the objects to empty: those with the lowest share of named bytes. Log-structured file
/// systems prefer old objects. A test of that wrote a seventh more, because the collector joins
/// moved data whatever its age.
#[must_use]
pub fn choose(sources: &[Source], usage: &Usage, policy: &Policy, fixed: Fixed) -> Choice {
    let named = |source: &Source| {
        let all = source.segments.iter().map(|segment| usage.of(*segment));
        all.fold(0, u64::saturating_add).min(source.bytes)
    };
    let mut ranked = Vec::with_capacity(sources.len());
    let mut choice = Choice::default();
    let (mut total, mut live) = (fixed.stored_bytes, fixed.named_bytes);
    for (number, source) in sources.iter().enumerate() {
        let named = named(source);
        if named == 0 {
            choice.unnamed.push(number);
            continue;
        }
        total += source.bytes;
        live += named;
        if named < source.bytes {
            ranked.push((named, number));
        }
    }
    // By the share of named bytes.
    ranked.sort_unstable_by(|&(a, i), &(b, j)| {
        let shares = [a, b].map(u128::from);
        let bytes = [i, j].map(|number| u128::from(sources[number].bytes));
        (shares[0] * bytes[1], i).cmp(&(shares[1] * bytes[0], j))
    });
    (choice.stored_bytes, choice.named_bytes) = (total, live);
    let share = |percent: u64| live.saturating_mul(percent) / 100;
    if total <= share(policy.high_percent) {
        return choice;
    }
    let mut moved = 0u64;
    for (named, number) in ranked {
        if total <= share(policy.low_percent) || moved + named > policy.moved_bytes_max {
            break;
        }
        choice.moved.push(number);
        moved += named;
        total -= sources[number].bytes - named;
    }
    choice
}
