//! The map of a volume as a state machine: a table that takes what segments say, flushes of it, merges,
//! and lookups.
//!
//! Its owner says when to [`Tree::freeze`] the table, lets it [`Tree::step`], does what
//! [`Tree::poll`] says and hands back what came of it. Names of fragments are never used again as long as no
//! two owners share a generation. One flush and one merge are under way at a time, each with at most
//! [`PUTS_MAX`] fragments that are made and not yet there.

use super::fragment::{Builder, Fragment, FragmentId};
use super::levels::{LEVELS_MAX, Levels, Plan};
use super::lookup::{Answer, Lookup};
use super::merge::{Flush, Merge, Step};
use super::page::Entry;
use super::pages::Pages;
use super::table::Table;
use super::{Damage, Get, Limits, What};
use crate::block::{SECTOR_BYTES, VolumeId};
use crate::store::segment::Piece;
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};

/// Fragments of a flush, and of a merge, that are being put at a time. With the one being made it
/// bounds the memory that these take.
pub const PUTS_MAX: usize = 2;

/// Something to be done with a fragment.
#[derive(Clone, Debug)]
pub enum Output {
    /// Read these bytes of it; for [`Tree::handle_read`].
    Get(Get),
    /// Create it; for [`Tree::handle_written`].
    Put(Fragment, Vec<Bytes>),
}

/// What has come to an end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// What was frozen is in fragments.
    Flushed {
        /// The last segment in it.
        through: u64,
        /// Fragments written.
        fragments: usize,
        /// Bytes of them.
        bytes: u64,
    },
    /// Fragments were merged, or moved to a lower level.
    Merged {
        /// No longer part of the map; what was written of it before may name them still.
        gone: Vec<Fragment>,
        /// Bytes written; 0 if they were moved.
        bytes: u64,
    },
}

#[derive(Debug)]
struct Freezing {
    table: Table,
    through: u64,
    flush: Flush,
    finished: bool,
    made: Made,
}

#[derive(Debug)]
struct Merging {
    plan: Plan,
    merge: Merge,
    /// Reads under way, with the source that each is for.
    reads: Vec<(usize, Get)>,
    finished: bool,
    made: Made,
}

/// Fragments that were made, and those of them that are not there yet.
#[derive(Debug, Default)]
struct Made {
    fragments: Vec<Fragment>,
    putting: usize,
}

/// Whose fragment is being put.
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
    frozen: Option<Freezing>,
    levels: Levels,
    /// Of all fragments in the levels.
    data_sectors: u64,
    merging: Option<Merging>,
    /// No merge is due, as long as the levels stay what they are.
    settled: bool,
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
            frozen: None,
            data_sectors: data_sectors(&levels),
            levels,
            merging: None,
            settled: false,
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

    /// What the segments since the last [`Tree::freeze`] say.
    #[must_use]
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Bytes of memory that its tables take, about.
    #[must_use]
    pub fn table_bytes(&self) -> u64 {
        self.table.bytes() + self.frozen.as_ref().map_or(0, |frozen| frozen.table.bytes())
    }

    /// What a record of a segment does to the map.
    pub fn apply(&mut self, segment: u64, piece: &Piece, pages: &mut Pages) {
        self.change(pages, |table| table.apply(segment, piece));
    }

    /// The same for an entry from elsewhere.
    pub fn replace(&mut self, Entry { range, place }: Entry, pages: &mut Pages) {
        self.change(pages, |table| table.replace(range, place));
    }

    fn change(&mut self, pages: &mut Pages, change: impl FnOnce(&mut Table)) {
        let before = self.table.bytes();
        change(&mut self.table);
        pages.resize_table(before, self.table.bytes());
    }

    /// Begins to write the table, which has all segments up to `through`; false if the one before is
    /// still being written.
    pub fn freeze(&mut self, through: u64) -> bool {
        if self.frozen.is_some() {
            return false;
        }
        let table = std::mem::take(&mut self.table);
        let flush = Flush::new(&self.limits);
        let made = Made::default();
        self.frozen = Some(Freezing { table, through, flush, finished: false, made });
        true
    }

    /// Bytes of data that it refers to, at most: what newer parts of it hide in older ones counts too, until
    /// a merge finds out.
    #[must_use]
    pub fn mapped_bytes(&self) -> u64 {
        let frozen = self.frozen.as_ref().map_or(0, |frozen| frozen.table.mapped_bytes());
        let flushed = self.data_sectors.saturating_mul(SECTOR_BYTES);
        self.table.mapped_bytes().saturating_add(frozen).saturating_add(flushed)
    }

    /// Makes `levels` what the table lies over: they are the map after some segment, and the table has all
    /// that the segments after it say. What is under way comes to nothing; what was to be written is part of
    /// the table again.
    pub fn adopt(&mut self, levels: Levels, pages: &mut Pages) {
        if let Some(Freezing { table: older, .. }) = self.frozen.take() {
            let before = self.table.bytes() + older.bytes();
            let newer = std::mem::replace(&mut self.table, older);
            for (range, place) in newer.iter_from(0) {
                self.table.replace(range, place);
            }
            pages.resize_table(before, self.table.bytes());
        }
        self.merging = None;
        self.settled = false;
        self.cursors = [0; LEVELS_MAX];
        self.putting.clear();
        self.outputs.clear();
        self.events.clear();
        self.data_sectors = data_sectors(&levels);
        self.levels = levels;
    }

    /// Puts a table in the place of the one that there is.
    pub fn load(&mut self, table: Table, pages: &mut Pages) {
        pages.resize_table(self.table.bytes(), table.bytes());
        self.table = table;
    }

    /// Drops entries that the levels are known to have, which are the map after that segment.
    pub fn forget_through(&mut self, segment: u64, pages: &mut Pages) {
        self.change(pages, |table| table.forget_through(segment));
    }

    /// Names new fragments after a generation in which none has been written.
    pub fn own(&mut self, generation: u64) {
        (self.generation, self.next) = (generation, 1);
    }

    /// Whether nothing is under way, and no merge is due.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.settled && self.is_idle()
    }

    /// Whether a frozen table is being written.
    #[must_use]
    pub fn is_flushing(&self) -> bool {
        self.frozen.is_some()
    }

    /// Whether nothing is under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.frozen.is_none() && self.merging.is_none() && self.outputs.is_empty()
    }

    /// Goes on with what is under way, for about a millisecond; says whether there is more that need
    /// not wait for anything.
    ///
    /// # Errors
    /// The damage in a fragment that is to be merged; the next step asks for the same again.
    pub fn step(&mut self, pages: &mut Pages) -> Result<bool, Damage> {
        let flushed = self.step_flush(pages);
        Ok(self.step_merge()? || flushed)
    }

    /// Goes on with a flush only; says whether there is more of it that need not wait for anything.
    pub fn step_flush(&mut self, pages: &mut Pages) -> bool {
        let Some(frozen) = &mut self.frozen else { return false };
        if !frozen.finished && frozen.made.putting < PUTS_MAX {
            let built = match frozen.flush.step(&frozen.table) {
                Step::More | Step::Needs(_) => return true,
                Step::Full(built) => built,
                Step::Done(built) => {
                    frozen.finished = true;
                    built
                }
            };
            self.put(Job::Flush, built);
            return true;
        }
        if !frozen.finished || frozen.made.putting > 0 {
            return false;
        }
        if let Some(Freezing { table, through, made, .. }) = self.frozen.take() {
            pages.resize_table(table.bytes(), 0);
            let bytes = made.fragments.iter().map(Fragment::bytes).sum();
            let fragments = made.fragments.len();
            self.levels.add(made.fragments);
            self.data_sectors = data_sectors(&self.levels);
            self.settled = false;
            self.events.push_back(Event::Flushed { through, fragments, bytes });
        }
        true
    }

    fn step_merge(&mut self) -> Result<bool, Damage> {
        if self.merging.is_none() {
            if self.settled {
                return Ok(false);
            }
            let Some(plan) = self.levels.choose(&self.limits, &mut self.cursors) else {
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
            self.merging = Some(Merging { plan, merge, reads, finished: false, made });
        }
        let Some(merging) = &mut self.merging else { return Ok(false) };
        if !merging.reads.is_empty() {
            return Ok(false);
        }
        if !merging.finished && merging.made.putting < PUTS_MAX {
            let built = match merging.merge.step()? {
                Step::More => return Ok(true),
                Step::Needs(needs) => {
                    self.outputs.extend(needs.iter().map(|(_, get)| Output::Get(get.clone())));
                    merging.reads = needs;
                    return Ok(false);
                }
                Step::Full(built) => built,
                Step::Done(built) => {
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
            Job::Flush => self.frozen.as_mut().map(|frozen| &mut frozen.made),
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

    /// The next thing to be done. They may be done in any order.
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
            Some(Job::Flush) => self.frozen.as_mut().map(|frozen| &mut frozen.made),
            Some(Job::Merge) => self.merging.as_mut().map(|merging| &mut merging.made),
            None => None,
        };
        if let Some(made) = made {
            made.putting -= 1;
        }
    }

    /// What was read on behalf of [`Output::Get`].
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

    /// Takes a lookup a step further.
    ///
    /// # Errors
    /// See [`Lookup::step`].
    pub fn look(&self, lookup: &mut Lookup, pages: &mut Pages) -> Result<Answer, Damage> {
        match &self.frozen {
            None => lookup.step(&[&self.table], &self.levels, pages),
            Some(frozen) => lookup.step(&[&self.table, &frozen.table], &self.levels, pages),
        }
    }
}

fn data_sectors(levels: &Levels) -> u64 {
    levels.fragments().map(|fragment| fragment.data_sectors).sum()
}

impl Get {
    /// The whole index of a fragment.
    #[must_use]
    pub fn index(fragment: Fragment) -> Get {
        Get { fragment, what: What::Index, bytes: fragment.index_range() }
    }
}
