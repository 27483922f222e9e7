//! How much of each segment is named by the map, by snapshots and by clones; and which segments are worth emptying.

use crate::store::map::page::MapEntry;

/// Bytes that are named of each segment, by the root that names most of it: 8 bytes of memory a segment.
///
/// Roots are to be counted in order of age, each by what it names and the one before did not, and the other way round.
/// Of a segment the first root that has it names all that any later one does, unless the volume was rolled back: then two
/// branches may name different parts, and it is too little. Nothing hangs on that but how much there is to move:
/// a segment that a single entry names is never one of which nothing is named.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    /// The segment before the first.
    before: u64,
    /// By the root that is being counted.
    now: Vec<u32>,
    /// By the one that names most; not 0 if any names something.
    most: Vec<u32>,
}

impl Usage {
    /// Nothing is named of the segments after `before` up to `last`.
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

    /// All of a root has been counted.
    pub fn end_root(&mut self) {
        for (most, now) in self.most.iter_mut().zip(&self.now) {
            *most = (*most).max(*now);
        }
    }

    /// Bytes that are named of a segment; all of one that is not counted.
    #[must_use]
    pub fn of(&self, segment: u64) -> u64 {
        self.slot(segment).map_or(u64::MAX, |slot| u64::from(self.most[slot]))
    }
}

/// An object with what may be moved: a segment, or a bundle.
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
    /// Nothing is moved while all objects take no more than this, in percent of what is named.
    pub high_percent: u64,
    /// As many are emptied as it takes to get there.
    pub low_percent: u64,
    /// Most bytes moved in a round.
    pub moved_bytes_max: u64,
    /// Nothing is counted while less than this is stored.
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

/// What is stored and cannot be emptied.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fixed {
    /// Its size.
    pub stored_bytes: u64,
    /// What is named of it, at most.
    pub named_bytes: u64,
}

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Of these nothing is named.
    pub unnamed: Vec<usize>,
    /// What is named of these is to be moved.
    pub moved: Vec<usize>,
    /// Bytes of all objects but those of which nothing is named.
    pub stored_bytes: u64,
    /// What is named of them, at most.
    pub named_bytes: u64,
}

/// Which of these objects are worth emptying: those of which least is named for their size. (Preferring what is old, as log-structured file systems do, was tried: it writes a seventh more, since
/// what is moved is put together again whatever its age.)
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
    // By the share that is named.
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
