//! The fragments of a map, and the choice of the next merge.
//!
//! Level 0 has the flushes, the newest first; they may overlap each other. In each level from 1 on,
//! fragments are disjoint and in order. A level may have some ten times the bytes of the level
//! above it. Of two entries for a sector, the one in the newer flush, or in the higher level,
//! counts.

use super::error::MapError;
use super::fragment::{Fragment, FragmentId};
use super::limits::Limits;
use crate::block::Range;
use crate::extent::{RangeSet, Uniform};
use std::collections::BTreeSet;

/// Most levels besides level 0: ten times ten times … 32 MiB are more than there can be.
pub const LEVELS_MAX: usize = 12;
/// A merge takes in a neighbor that is smaller than this part of a full fragment.
const SMALL: u64 = 2;

/// The fragments of a map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Levels {
    /// Level 0: each flush a run of disjoint fragments in order.
    runs: Vec<Vec<Fragment>>,
    sorted: Vec<Vec<Fragment>>,
}

/// The next merge.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Runs of fragments to merge, the newest first.
    pub sources: Vec<Vec<Fragment>>,
    /// The level that the result goes to.
    pub target: usize,
    /// Sectors that lower levels may know about: the merge must keep holes only there.
    pub below: RangeSet,
    /// Nothing to merge: the fragments move as they are.
    pub moves: bool,
}

/// How far the map has merged its fragments into those of the lowest level.
#[derive(Clone, Copy, Debug, Default)]
pub struct Compaction {
    /// The level that goes into the next one.
    level: usize,
    /// The fragments of it before that sector have.
    cursor: u64,
}

/// The fragments of a run that have sectors of `range`.
fn overlapping(run: &[Fragment], range: Range) -> std::ops::Range<usize> {
    let start = run.partition_point(|fragment| fragment.span.end() <= range.lba);
    let end = run.partition_point(|fragment| fragment.span.lba < range.end());
    start.min(end)..end
}

/// From the first to the last sector of runs.
fn hull(runs: &[Vec<Fragment>]) -> Range {
    let spans = || runs.iter().flatten().map(|fragment| fragment.span);
    let lba = spans().map(|span| span.lba).min().unwrap_or(0);
    Range::between(lba, spans().map(Range::end).max().unwrap_or(0))
}

fn bytes(run: &[Fragment]) -> u64 {
    run.iter().map(Fragment::bytes).sum()
}

impl Levels {
    /// As a root says: the runs of level 0, the newest first, and the levels from 1 on.
    ///
    /// # Errors
    /// [`MapError::Invalid`] if runs are not in order, or fragments named twice.
    pub fn new(runs: Vec<Vec<Fragment>>, sorted: Vec<Vec<Fragment>>) -> Result<Levels, MapError> {
        let levels = Levels { runs, sorted };
        let ordered =
            |run: &[Fragment]| run.windows(2).all(|pair| pair[0].span.end() <= pair[1].span.lba);
        let names: BTreeSet<FragmentId> = levels.fragments().map(|fragment| fragment.id).collect();
        let good = levels.sources().all(ordered)
            && levels.sorted.len() <= LEVELS_MAX
            && names.len() == levels.fragments().count();
        if good { Ok(levels) } else { Err(MapError::Invalid("fragments out of order")) }
    }

    /// The runs of level 0, the newest first.
    #[must_use]
    pub fn runs(&self) -> &[Vec<Fragment>] {
        &self.runs
    }

    /// The levels from 1 on.
    #[must_use]
    pub fn sorted(&self) -> &[Vec<Fragment>] {
        &self.sorted
    }

    /// All fragments.
    pub fn fragments(&self) -> impl Iterator<Item = &Fragment> {
        self.runs.iter().chain(&self.sorted).flatten()
    }

    /// Whether the fragment is one of these.
    #[must_use]
    pub fn names(&self, fragment: &Fragment) -> bool {
        self.overlapping(fragment.span).flatten().any(|there| there.id == fragment.id)
    }

    /// Runs in the order in which they count.
    pub(super) fn sources(&self) -> impl Iterator<Item = &[Fragment]> {
        self.runs.iter().chain(&self.sorted).map(Vec::as_slice)
    }

    /// Of each run, in the order in which they count, what has sectors of `range`.
    pub fn overlapping(&self, range: Range) -> impl Iterator<Item = &[Fragment]> {
        self.sources().map(move |run| &run[overlapping(run, range)]).filter(|run| !run.is_empty())
    }

    /// Adds a flush, newer than all that is there.
    pub fn add(&mut self, run: Vec<Fragment>) {
        if !run.is_empty() {
            self.runs.insert(0, run);
        }
    }

    /// The due merge, if there is one. First comes level 0 with too many runs. Then comes the level
    /// that exceeds its limit most. Last comes a fragment of mostly holes that hides data, because
    /// the hidden data wastes space. `cursors` has for each level the end of its last merge.
    #[must_use]
    pub fn choose(&self, limits: &Limits, cursors: &mut [u64; LEVELS_MAX]) -> Option<Plan> {
        let most = limits.runs.max(1);
        if self.runs.len() >= most {
            // The oldest, if merges have fallen behind: each takes memory.
            let oldest = self.runs.len().saturating_sub(2 * most);
            return Some(self.plan(limits, self.runs[oldest..].to_vec(), 1));
        }
        let mut allowed = limits.level_bytes;
        let mut worst: Option<(usize, u64)> = None;
        for (n, level) in self.sorted.iter().enumerate().take(LEVELS_MAX - 1) {
            // In thousandths of what it may have.
            let fill = bytes(level).saturating_mul(1000) / allowed.max(1);
            if fill > worst.map_or(1000, |(_, fill)| fill) {
                worst = Some((n, fill));
            }
            allowed = allowed.saturating_mul(limits.factor.max(2));
        }
        let Some((n, _)) = worst else {
            let (n, fragment) = self.hiding()?;
            return Some(self.plan(limits, vec![vec![fragment]], n + 2));
        };
        let level = &self.sorted[n];
        let next = level.partition_point(|fragment| fragment.span.lba < cursors[n]);
        let fragment = *level.get(next).or(level.first())?;
        cursors[n] = fragment.span.end();
        Some(self.plan(limits, vec![vec![fragment]], n + 2))
    }

    /// The next merge that it takes until nothing that was there when the compaction began lies
    /// over anything else, if it takes one. Merges that are due go first.
    #[must_use]
    pub fn compact(&self, limits: &Limits, at: &mut Compaction) -> Option<Plan> {
        if at.level == 0 {
            at.level = 1;
            if self.runs.len() + self.sorted.iter().filter(|level| !level.is_empty()).count() > 1
                && !self.runs.is_empty()
            {
                return Some(self.plan(limits, self.runs.clone(), 1));
            }
        }
        while self.sorted.iter().skip(at.level).any(|level| !level.is_empty()) {
            let level = &self.sorted[at.level - 1];
            let next = level.partition_point(|fragment| fragment.span.lba < at.cursor);
            if let Some(&fragment) = level.get(next) {
                at.cursor = fragment.span.end();
                return Some(self.plan(limits, vec![vec![fragment]], at.level + 1));
            }
            *at = Compaction { level: at.level + 1, cursor: 0 };
        }
        None
    }

    /// Sectors of data in fragments that lie over others: the upper bound of double counts.
    #[must_use]
    pub fn overlying_sectors(&self) -> u64 {
        let sources: Vec<&[Fragment]> = self.sources().collect();
        let lies_over = |n: usize, fragment: &Fragment| {
            sources[n + 1..].iter().any(|run| !overlapping(run, fragment.span).is_empty())
        };
        let sources = sources.iter().enumerate();
        let fragments = sources.flat_map(|(n, run)| run.iter().map(move |fragment| (n, fragment)));
        let over = fragments.filter(|(n, fragment)| lies_over(*n, fragment));
        over.map(|(_, fragment)| fragment.data_sectors).sum()
    }

    /// A fragment, and its place among the levels, that is mostly holes over what is below it.
    fn hiding(&self) -> Option<(usize, Fragment)> {
        self.sorted.iter().enumerate().find_map(|(n, level)| {
            let hides = |fragment: &&Fragment| {
                let below = self.sorted.iter().skip(n + 1);
                u64::from(fragment.holes) * 2 > fragment.entries
                    && below.into_iter().any(|run| !overlapping(run, fragment.span).is_empty())
            };
            level.iter().find(hides).map(|fragment| (n, *fragment))
        })
    }

    fn plan(&self, limits: &Limits, mut sources: Vec<Vec<Fragment>>, target: usize) -> Plan {
        let enough = limits.fragment_bytes / SMALL;
        let small = |fragment: &Fragment| u64::from(fragment.pages_bytes) < enough;
        let level = self.sorted.get(target - 1).map(Vec::as_slice).unwrap_or_default();
        let hit = overlapping(level, hull(&sources));
        let moves = target > 1 && hit.is_empty() && !sources.iter().flatten().any(small);
        if !moves {
            // The merge takes small neighbors along. So data that a host writes bit by bit ends up
            // in few fragments.
            let mut hit = hit;
            if hit.start > 0 && small(&level[hit.start - 1]) {
                hit.start -= 1;
            }
            if level.get(hit.end).is_some_and(small) {
                hit.end += 1;
            }
            if !hit.is_empty() {
                sources.push(level[hit].to_vec());
            }
        }
        let hull = hull(&sources);
        let mut below = RangeSet::new();
        for run in self.sorted.iter().skip(target) {
            for fragment in &run[overlapping(run, hull)] {
                below.insert(fragment.span, Uniform(()));
            }
        }
        Plan { sources, target, below, moves }
    }

    /// Puts the result of a merge in the place of what went into it; gives what is no longer named.
    pub fn replace(&mut self, plan: &Plan, result: Vec<Fragment>) -> Vec<Fragment> {
        let mut gone: Vec<Fragment> = plan.sources.iter().flatten().copied().collect();
        let names: BTreeSet<FragmentId> = gone.iter().map(|fragment| fragment.id).collect();
        for run in self.runs.iter_mut().chain(&mut self.sorted) {
            run.retain(|fragment| !names.contains(&fragment.id));
        }
        self.runs.retain(|run| !run.is_empty());
        if self.sorted.len() < plan.target {
            self.sorted.resize(plan.target, Vec::new());
        }
        gone.retain(|fragment| !result.iter().any(|kept| kept.id == fragment.id));
        let level = &mut self.sorted[plan.target - 1];
        // Nothing of the level lies between the removed fragments.
        let first = result.first().map_or(0, |fragment| fragment.span.lba);
        let at = level.partition_point(|fragment| fragment.span.lba < first);
        level.splice(at..at, result);
        gone
    }
}
