//! The map of a volume as a state machine: a table for the newest segments, its flushes, merges,
//! and lookups.
//!
//! Its owner calls [`Tree::freeze`] on the table, or [`Tree::split`] to keep the map as it is at
//! that moment. The owner lets it [`Tree::step`], executes [`Tree::poll`], and hands back the
//! results. No name of a fragment comes twice, if no two owners share a generation. At most one
//! flush and one merge are in progress. Each has at most [`PUTS_MAX`] new fragments that do not
//! exist yet.

use super::fragment::{Builder, Fragment, FragmentId};
use super::get::{Damage, FragmentPart, Get};
use super::levels::{Compaction, LEVELS_MAX, Levels, Plan};
use super::limits::Limits;
use super::lookup::{Answer, Lookup};
use super::merge::{Flush, Merge, MergeStep};
use super::page::MapEntry;
use super::pages::Pages;
use super::table::Table;
use crate::block::{SECTOR_BYTES, VolumeId};
use crate::store::segment::Piece;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Fragments of a flush, and of a merge, that their owner puts at a time. With the new one this
/// bounds their memory.
pub const PUTS_MAX: usize = 2;

/// Work for the owner on a fragment.
#[derive(Clone, Debug)]
pub enum Output {
    /// Read these bytes of it; for [`Tree::handle_read`].
    Get(Get),
    /// Create it; for [`Tree::handle_written`].
    Put(Fragment, Vec<Bytes>),
}

/// Work that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Fragments hold the frozen table now.
    Flushed {
        /// The last segment in it.
        through: u64,
        /// Fragments written.
        fragments: usize,
        /// Bytes of them.
        bytes: u64,
    },
    /// A merge has ended, or fragments moved to a lower level.
    Merged {
        /// The map does not have these any more; older roots may still name them.
        gone: Vec<Fragment>,
        /// Bytes written; 0 for moved fragments.
        bytes: u64,
    },
    /// The levels are those of an earlier map, and later segments build on these.
    /// [`Event::Flushed`] comes after it.
    RolledBack {
        /// No longer part of the map.
        gone: Vec<Fragment>,
    },
}

/// A table that takes no more entries.
#[derive(Debug)]
pub struct Frozen {
    table: Table,
    /// The last segment in it.
    through: u64,
    /// Some root needs the map of that segment, so the tree must not join this table with later
    /// ones.
    kept: bool,
    /// It hides everything before it, and says nothing itself.
    rolled: Option<Rolled>,
}

/// The destination of a rollback.
#[derive(Debug)]
struct Rolled {
    /// The map after that segment. If the levels are unknown, the tree has set the table of that
    /// segment aside too.
    from: u64,
    levels: Option<Levels>,
    /// Of all fragments in these.
    data_sectors: u64,
}

impl Frozen {
    /// The entries of the segments up to `through`.
    #[must_use]
    pub fn kept(through: u64, table: Table) -> Frozen {
        Frozen { table, through, kept: true, rolled: None }
    }

    /// Segment `through` made the map what it was after segment `from`: that of `levels`, or of a
    /// table set aside before.
    #[must_use]
    pub fn rolled_back(through: u64, from: u64, levels: Option<Levels>) -> Frozen {
        let data_sectors = levels.as_ref().map_or(0, data_sectors);
        let rolled = Some(Rolled { from, levels, data_sectors });
        Frozen { table: Table::new(), through, kept: true, rolled }
    }

    /// The last segment in it.
    #[must_use]
    pub fn through(&self) -> u64 {
        self.through
    }
}

/// The tree writes the oldest of those.
#[derive(Debug)]
struct Flushing {
    flush: Flush,
    finished: bool,
    made: Made,
}

#[derive(Debug)]
struct Merging {
    plan: Plan,
    /// It is part of a compaction, and not due.
    compacts: bool,
    merge: Merge,
    /// Reads under way, with the source that each is for.
    reads: Vec<(usize, Get)>,
    finished: bool,
    made: Made,
}

/// The new fragments, and those that do not exist yet.
#[derive(Debug, Default)]
struct Made {
    fragments: Vec<Fragment>,
    putting: usize,
}

/// The job that a put belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Job {
    Flush,
    Merge,
}

/// The map of one volume.
#[derive(Debug)]
pub struct Tree {
    limits: Limits,
    volume: VolumeId,
    generation: u64,
    next: u64,
    table: Table,
    /// The oldest first.
    frozen: VecDeque<Frozen>,
    flushing: Option<Flushing>,
    levels: Levels,
    /// Of all fragments in the levels.
    data_sectors: u64,
    merging: Option<Merging>,
    /// No merge is due, as long as the levels stay what they are.
    settled: bool,
    /// The tree merges all of its fragments into one level.
    compacting: Option<Compaction>,
    cursors: [u64; LEVELS_MAX],
    putting: BTreeMap<FragmentId, Job>,
    outputs: VecDeque<Output>,
    events: VecDeque<Event>,
}

impl Tree {
    /// The map that these fragments are. New ones get names of `generation`, numbered from 1.
    #[must_use]
    pub fn new(limits: Limits, volume: VolumeId, generation: u64, levels: Levels) -> Tree {
        Tree {
            limits,
            volume,
            generation,
            next: 1,
            table: Table::new(),
            frozen: VecDeque::new(),
            flushing: None,
            data_sectors: data_sectors(&levels),
            levels,
            merging: None,
            settled: false,
            compacting: None,
            cursors: [0; LEVELS_MAX],
            putting: BTreeMap::new(),
            outputs: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// The fragments that it consists of, besides the tables.
    #[must_use]
    pub fn levels(&self) -> &Levels {
        &self.levels
    }

    /// The entries of the segments since the last [`Tree::freeze`] or [`Tree::split`].
    #[must_use]
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Bytes of memory that its tables take, about.
    #[must_use]
    pub fn table_bytes(&self) -> u64 {
        self.tables().map(Table::bytes).sum()
    }

    fn tables(&self) -> impl Iterator<Item = &Table> {
        let frozen = self.frozen.iter().rev().map(|frozen| &frozen.table);
        std::iter::once(&self.table).chain(frozen)
    }

    /// The map: tables, the newest first, and the levels below, with their sectors of data. `None`
    /// after a rollback to an unknown map.
    fn view(&self) -> Option<(Vec<&Table>, &Levels, u64)> {
        let mut tables = vec![&self.table];
        let mut end = self.frozen.len();
        while let Some(last) = end.checked_sub(1) {
            end = last;
            let frozen = &self.frozen[last];
            match &frozen.rolled {
                None => tables.push(&frozen.table),
                Some(Rolled { levels: Some(levels), data_sectors, .. }) => {
                    return Some((tables, levels, *data_sectors));
                }
                Some(Rolled { from, .. }) => {
                    let older = self.frozen.range(..last);
                    let at = older.into_iter().position(|frozen| frozen.through == *from)?;
                    end = at + 1;
                }
            }
        }
        Some((tables, &self.levels, self.data_sectors))
    }

    /// Whether the tree has rolled back to an unknown map: no lookup works until the tree adopts a
    /// later map.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.frozen.iter().enumerate().any(|(n, frozen)| match &frozen.rolled {
            Some(Rolled { from, levels: None, .. }) => {
                self.frozen.range(..n).all(|older| older.through != *from)
            }
            _ => false,
        })
    }

    /// Whether a lookup may come to that fragment.
    #[must_use]
    pub fn names(&self, fragment: &Fragment) -> bool {
        self.view().is_some_and(|(_, levels, _)| levels.names(fragment))
    }

    /// Applies a record of a segment to the map.
    pub fn apply(&mut self, segment: u64, piece: &Piece, pages: &mut Pages) {
        self.change(pages, |table| table.apply(segment, piece));
    }

    /// The same for an entry from elsewhere.
    pub fn replace(&mut self, MapEntry { range, place }: MapEntry, pages: &mut Pages) {
        self.change(pages, |table| table.replace(range, place));
    }

    fn change(&mut self, pages: &mut Pages, change: impl FnOnce(&mut Table)) {
        let before = self.table.bytes();
        change(&mut self.table);
        pages.resize_table(before, self.table.bytes());
    }

    /// Sets the table with all segments up to `through` aside: the tree will write the map after
    /// that segment as it is. Later segments go into a new table.
    pub fn split(&mut self, through: u64) {
        self.frozen.push_back(Frozen::kept(through, std::mem::take(&mut self.table)));
    }

    /// Makes the map the one after segment `from`; segment `through` asks for that. `levels` are
    /// that map, unless its table is aside. Other tables that are aside stay, because roots need
    /// them.
    pub fn roll_back(
        &mut self,
        through: u64,
        from: u64,
        levels: Option<Levels>,
        pages: &mut Pages,
    ) {
        let before = self.table_bytes();
        self.table = Table::new();
        self.frozen.push_back(Frozen::rolled_back(through, from, levels));
        pages.resize_table(before, self.table_bytes());
    }

    /// Begins to write the oldest table that is aside. Without one it freezes the table, which has
    /// all segments up to `through`. False if a write is still in progress.
    pub fn freeze(&mut self, through: u64) -> bool {
        if self.is_flushing() {
            return false;
        }
        if self.frozen.is_empty() {
            let table = std::mem::take(&mut self.table);
            self.frozen.push_back(Frozen { table, through, kept: false, rolled: None });
        }
        let flush = Flush::new(&self.limits);
        self.flushing = Some(Flushing { flush, finished: false, made: Made::default() });
        true
    }

    /// Bytes of data that it refers to, at most: what newer parts of it hide in older ones counts
    /// too, until a merge finds out.
    #[must_use]
    pub fn mapped_bytes(&self) -> u64 {
        let Some((tables, _, sectors)) = self.view() else { return 0 };
        let flushed = sectors.saturating_mul(SECTOR_BYTES);
        tables.into_iter().map(Table::mapped_bytes).fold(flushed, u64::saturating_add)
    }

    /// Bytes of data that fragments may have twice, or not yet: those of tables, and of fragments
    /// that lie over others.
    #[must_use]
    pub fn uncertain_bytes(&self) -> u64 {
        let over = self.levels.overlying_sectors().saturating_mul(SECTOR_BYTES);
        self.tables().map(Table::mapped_bytes).fold(over, u64::saturating_add)
    }

    /// Makes `levels` the base of the tables: they are the map after segment `through`. The tables
    /// have all entries of the segments after it. The work in progress ends without effect. Frozen
    /// entries are part of a table again, unless the tree had set them aside.
    pub fn adopt(&mut self, levels: Levels, through: u64, pages: &mut Pages) {
        let before = self.table_bytes();
        let mut older = Table::new();
        for frozen in std::mem::take(&mut self.frozen) {
            let Frozen { table, through: last, kept, rolled } = frozen;
            if last <= through {
                continue;
            }
            if rolled.is_some() {
                older = Table::new();
            }
            older = older.overwritten_by(table);
            if kept {
                let table = std::mem::take(&mut older);
                self.frozen.push_back(Frozen { table, through: last, kept, rolled });
            }
        }
        self.table = older.overwritten_by(std::mem::take(&mut self.table));
        pages.resize_table(before, self.table_bytes());
        self.flushing = None;
        self.merging = None;
        self.settled = false;
        self.compacting = None;
        self.cursors = [0; LEVELS_MAX];
        self.putting.clear();
        self.outputs.clear();
        self.events.clear();
        self.data_sectors = data_sectors(&levels);
        self.levels = levels;
    }

    /// Replaces all tables by this one.
    pub fn load(&mut self, table: Table, pages: &mut Pages) {
        self.load_split(Vec::new(), table, pages);
    }

    /// Like [`Tree::load`], with the tables that were aside before it, the oldest first.
    pub fn load_split(&mut self, split: Vec<Frozen>, table: Table, pages: &mut Pages) {
        let before = self.table_bytes();
        self.flushing = None;
        self.frozen = split.into();
        self.table = table;
        pages.resize_table(before, self.table_bytes());
    }

    /// Drops entries that the levels, the map after that segment, have.
    pub fn forget_through(&mut self, segment: u64, pages: &mut Pages) {
        let before = self.table_bytes();
        self.table.forget_through(segment);
        for frozen in &mut self.frozen {
            frozen.table.forget_through(segment);
        }
        pages.resize_table(before, self.table_bytes());
    }

    /// Names new fragments after a generation, with numbers from `first`. The owner has written
    /// none of these.
    pub fn own(&mut self, generation: u64, first: u64) {
        (self.generation, self.next) = (generation, first);
    }

    /// Whether nothing is under way, and no merge is due.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.settled && self.is_idle()
    }

    /// Merges all fragments into one level, so that hardly any has data that another one hides.
    /// Later flushes lie over it.
    pub fn compact(&mut self) {
        self.compacting = Some(Compaction::default());
        self.settled = false;
    }

    /// No more of that, also not the merge that is under way for it.
    pub fn stop_compacting(&mut self) {
        self.compacting = None;
        if let Some(Merging { made, .. }) = self.merging.take_if(|merging| merging.compacts) {
            self.putting.retain(|_, job| *job != Job::Merge);
            self.outputs.retain(|output| !matches!(output, Output::Get(_)));
            self.events.push_back(Event::Merged { gone: made.fragments, bytes: 0 });
        }
    }

    /// Whether that has not come to its end.
    #[must_use]
    pub fn is_compacting(&self) -> bool {
        self.compacting.is_some()
    }

    /// Whether the tree writes a frozen table.
    #[must_use]
    pub fn is_flushing(&self) -> bool {
        self.flushing.is_some()
    }

    /// The number of tables that are aside and have no fragments yet.
    #[must_use]
    pub fn set_aside(&self) -> usize {
        self.frozen.iter().filter(|frozen| frozen.kept).count()
    }

    /// Whether the map of that segment is one of those.
    #[must_use]
    pub fn is_set_aside(&self, segment: u64) -> bool {
        self.frozen.iter().any(|frozen| frozen.kept && frozen.through == segment)
    }

    /// Whether a later segment than that made the map an earlier one, which is not in the levels
    /// yet.
    #[must_use]
    pub fn is_rolled_back_after(&self, segment: u64) -> bool {
        self.frozen.iter().any(|frozen| frozen.rolled.is_some() && frozen.through > segment)
    }

    /// New fragments that are not part of the levels yet, or will be again; they may exist already.
    pub fn under_way(&self) -> impl Iterator<Item = &Fragment> {
        let flushed = self.flushing.iter().map(|flushing| &flushing.made);
        let merged = self.merging.iter().map(|merging| &merging.made);
        let rolled = self.frozen.iter().filter_map(|frozen| frozen.rolled.as_ref());
        let back = rolled.filter_map(|rolled| rolled.levels.as_ref());
        let made = flushed.chain(merged).flat_map(|made| &made.fragments);
        made.chain(back.flat_map(Levels::fragments))
    }

    /// The number of the next new fragment.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Whether nothing is under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.flushing.is_none() && self.merging.is_none() && self.outputs.is_empty()
    }

    /// Continues the work in progress for about a millisecond. Returns whether more work is ready.
    ///
    /// # Errors
    /// The damage in a fragment of a merge; the next step asks for the same again.
    pub fn step(&mut self, pages: &mut Pages) -> Result<bool, Damage> {
        let flushed = self.step_flush(pages);
        Ok(self.step_merge()? || flushed)
    }

    /// Goes on with a flush only; says whether there is more of it that need not wait for anything.
    pub fn step_flush(&mut self, pages: &mut Pages) -> bool {
        let Some(flushing) = &mut self.flushing else { return false };
        let Some(frozen) = self.frozen.front() else { return false };
        if frozen.rolled.is_some() {
            return self.step_back();
        }
        if !flushing.finished && flushing.made.putting < PUTS_MAX {
            let built = match flushing.flush.step(&frozen.table) {
                MergeStep::More | MergeStep::Needs(_) => return true,
                MergeStep::Full(built) => built,
                MergeStep::Done(built) => {
                    flushing.finished = true;
                    built
                }
            };
            self.put(Job::Flush, built);
            return true;
        }
        if !flushing.finished || flushing.made.putting > 0 {
            return false;
        }
        if let Some(Flushing { made, .. }) = self.flushing.take()
            && let Some(Frozen { table, through, .. }) = self.frozen.pop_front()
        {
            pages.resize_table(table.bytes(), 0);
            let bytes = made.fragments.iter().map(Fragment::bytes).sum();
            let fragments = made.fragments.len();
            self.levels.add(made.fragments);
            self.data_sectors = data_sectors(&self.levels);
            self.settled = false;
            let rolled = self.frozen.iter_mut().filter_map(|frozen| frozen.rolled.as_mut());
            for rolled in rolled.filter(|rolled| rolled.from == through) {
                rolled.levels = Some(self.levels.clone());
                rolled.data_sectors = self.data_sectors;
            }
            self.events.push_back(Event::Flushed { through, fragments, bytes });
        }
        true
    }

    /// Makes the levels those of the rollback. A merge of other levels ends without effect.
    fn step_back(&mut self) -> bool {
        let known =
            |frozen: &mut Frozen| frozen.rolled.as_ref().is_some_and(|r| r.levels.is_some());
        let Some(frozen) = self.frozen.pop_front_if(known) else { return false };
        let Some(Rolled { levels: Some(levels), data_sectors, .. }) = frozen.rolled else {
            return false;
        };
        let names: BTreeSet<FragmentId> = levels.fragments().map(|fragment| fragment.id).collect();
        let made = self.merging.take().map(|merging| merging.made.fragments).unwrap_or_default();
        let before = std::mem::replace(&mut self.levels, levels);
        let gone = before.fragments().copied().chain(made);
        let gone = gone.filter(|fragment| !names.contains(&fragment.id)).collect();
        self.putting.retain(|_, job| *job != Job::Merge);
        self.data_sectors = data_sectors;
        self.flushing = None;
        self.settled = false;
        self.compacting = None;
        self.cursors = [0; LEVELS_MAX];
        self.events.push_back(Event::RolledBack { gone });
        let (through, fragments, bytes) = (frozen.through, 0, 0);
        self.events.push_back(Event::Flushed { through, fragments, bytes });
        true
    }

    fn compaction(&mut self) -> Option<Plan> {
        let plan = self.levels.compact(&self.limits, self.compacting.as_mut()?);
        if plan.is_none() {
            self.compacting = None;
        }
        plan
    }

    fn step_merge(&mut self) -> Result<bool, Damage> {
        if self.merging.is_none() {
            if self.settled {
                return Ok(false);
            }
            let due = self.levels.choose(&self.limits, &mut self.cursors);
            let compacts = due.is_none();
            let Some(plan) = due.or_else(|| self.compaction()) else {
                self.settled = true;
                return Ok(false);
            };
            if plan.moves {
                let moved = plan.sources.iter().flatten().copied().collect();
                let gone = self.levels.replace(&plan, moved);
                self.data_sectors = data_sectors(&self.levels);
                self.events.push_back(Event::Merged { gone, bytes: 0 });
                return Ok(true);
            }
            let merge = Merge::new(&plan, &self.limits);
            let (reads, made) = (Vec::new(), Made::default());
            self.merging = Some(Merging { plan, compacts, merge, reads, finished: false, made });
        }
        let Some(merging) = &mut self.merging else { return Ok(false) };
        if !merging.reads.is_empty() {
            return Ok(false);
        }
        if !merging.finished && merging.made.putting < PUTS_MAX {
            let built = match merging.merge.step()? {
                MergeStep::More => return Ok(true),
                MergeStep::Needs(needs) => {
                    self.outputs.extend(needs.iter().map(|(_, get)| Output::Get(get.clone())));
                    merging.reads = needs;
                    return Ok(false);
                }
                MergeStep::Full(built) => built,
                MergeStep::Done(built) => {
                    merging.finished = true;
                    built
                }
            };
            self.put(Job::Merge, built);
            return Ok(true);
        }
        if !merging.finished || merging.made.putting > 0 {
            return Ok(false);
        }
        if let Some(Merging { plan, made, .. }) = self.merging.take() {
            let bytes = made.fragments.iter().map(Fragment::bytes).sum();
            let gone = self.levels.replace(&plan, made.fragments);
            self.data_sectors = data_sectors(&self.levels);
            self.events.push_back(Event::Merged { gone, bytes });
        }
        Ok(true)
    }

    fn put(&mut self, job: Job, built: Builder) {
        let made = match job {
            Job::Flush => self.flushing.as_mut().map(|flushing| &mut flushing.made),
            Job::Merge => self.merging.as_mut().map(|merging| &mut merging.made),
        };
        let Some(made) = made.filter(|_| !built.is_empty()) else { return };
        let id = FragmentId { volume: self.volume, generation: self.generation, number: self.next };
        self.next += 1;
        let (fragment, data) = built.finish(id);
        made.fragments.push(fragment);
        made.putting += 1;
        self.putting.insert(id, job);
        self.outputs.push_back(Output::Put(fragment, data));
    }

    /// The next work for the owner. The owner may execute these in any order.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// The next thing that has come to an end.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// A fragment is there and durable.
    pub fn handle_written(&mut self, fragment: FragmentId) {
        let made = match self.putting.remove(&fragment) {
            Some(Job::Flush) => self.flushing.as_mut().map(|flushing| &mut flushing.made),
            Some(Job::Merge) => self.merging.as_mut().map(|merging| &mut merging.made),
            None => None,
        };
        if let Some(made) = made {
            made.putting -= 1;
        }
    }

    /// Takes the result of [`Output::Get`].
    ///
    /// # Errors
    /// The damage, as far as it shows already; the next step asks for the same again.
    pub fn handle_read(&mut self, get: &Get, bytes: Bytes) -> Result<(), Damage> {
        let Some(merging) = &mut self.merging else { return Ok(()) };
        let Some(n) = merging.reads.iter().position(|(_, asked)| asked == get) else {
            return Ok(());
        };
        let (source, _) = merging.reads.swap_remove(n);
        merging.merge.supply(source, get, bytes)
    }

    /// Takes a lookup a step further; not if [`Tree::is_lost`].
    ///
    /// # Errors
    /// See [`Lookup::step`].
    pub fn look(&self, lookup: &mut Lookup, pages: &mut Pages) -> Result<Answer, Damage> {
        let Some((tables, levels, _)) = self.view() else { return Ok(Answer::Needs(Vec::new())) };
        lookup.step(&tables, levels, pages)
    }
}

fn data_sectors(levels: &Levels) -> u64 {
    levels.fragments().map(|fragment| fragment.data_sectors).sum()
}

impl Get {
    /// The whole index of a fragment.
    #[must_use]
    pub fn index(fragment: Fragment) -> Get {
        Get { fragment, what: FragmentPart::Index, bytes: fragment.index_range() }
    }
}
