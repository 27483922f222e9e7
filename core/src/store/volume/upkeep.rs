//! The upkeep of the map: flushes, merges, roots, and deleting what these replace.
//!
//! Whoever does it has claimed a *generation*: an object created if absent, whose number is one more than
//! that of the last. Generations follow each other without gaps, so that it takes one look for the next
//! to know whether somebody else has taken over; who has been superseded stops, goes on from the newest
//! root, and claims anew when there is something to flush. Rules:
//!
//! - a generation is claimed when there is something to flush, not before: an idle volume costs nothing;
//! - after a claim the newest root is adopted before anything is written;
//! - a root is written when all that it names is there, of the map exactly after one segment, and names the
//!   roots of all snapshots up to there;
//! - an object is deleted by who has written a root of its own generation, if neither of the last two
//!   roots names it, nor a snapshot's root that these name, after a delay, and if *after* that delay no later
//!   generation has been claimed.
//!
//! Work goes on in bounded steps when there is no other: see [`Volume::poll_timeout`].

mod compact;
mod roots;

use super::super::catalog::RootName;
use super::super::gc::moved::FIRST_FRAGMENT;
use super::super::log::State;
use super::super::map::fragment::{Fragment, FragmentId};
use super::super::map::table::Table;
use super::super::map::tree::{self, Output};
use super::super::map::{self, Get};
use super::super::object::{Copies, ObjectMeta, ObjectOperation};
use super::super::open::{OPEN_WINDOW, Replay};
use super::super::root::Pins;
use super::super::{Event, OpenError, catalog, root};
use super::ancestors::maps;
use super::rebuild::Rebuilt;
use super::sweep::Sweep;
use super::{Phase, Purpose, Volume};
use crate::block::{Time, VolumeId};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Roots kept: the newest, and one in case that is damaged.
const ROOTS_KEPT: usize = 2;
/// Entries of a table that is worth being flushed when memory is short.
const CROWDED_ENTRIES: usize = 1024;
/// A sweep is due when fragments that only snapshots may name have more bytes than this part of the map, and some for each
/// snapshot.
const PERHAPS: u64 = 4;
/// Pause before fragments that could not be merged are read again.
const MERGE_PAUSE: Duration = Duration::from_secs(60);

/// What is under way. One thing at a time, besides flush and merge.
#[derive(Default)]
pub(super) enum Step {
    #[default]
    Idle,
    /// Roots are being listed, or read. `claimed` is the generation on behalf of which.
    Roots {
        claimed: Option<u64>,
    },
    ReadRoot {
        claimed: Option<u64>,
        older: Vec<RootName>,
    },
    /// That root is the map of a segment that has not been applied here.
    Behind {
        claimed: Option<u64>,
        name: RootName,
        root: Box<root::Root>,
        log: Log,
    },
    /// That root is the map of an earlier segment than the last one flushed here: what the segments after
    /// it say is read again.
    Ahead {
        claimed: Option<u64>,
        name: RootName,
        root: Box<root::Root>,
        replay: Replay,
        rebuilt: Box<Rebuilt>,
    },
    /// The root of a snapshot is being read, by an engine of it.
    ReadPin,
    /// A generation is being claimed.
    Claim,
    /// Objects are being listed for a sweep.
    Listing,
    /// Somebody else may have claimed the next: a look that began at that time.
    Look {
        since: Time,
    },
    /// A root is being put that no longer names these.
    Put {
        gone: Gone,
    },
}

/// States after some segments.
pub(super) type States = BTreeMap<u64, Box<State>>;

/// Whether the log has been read on account of a root that is ahead of what is known.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Log {
    Unread,
    Reading,
    Read,
}

/// What a root named, and a later one does not.
#[derive(Default)]
pub(super) struct Gone {
    /// No snapshot can name these.
    pub fragments: Vec<FragmentId>,
    /// Some may name these, of so many bytes: a sweep will tell.
    pub perhaps: Vec<(FragmentId, u64)>,
    /// The roots of snapshots.
    pub pins: Vec<RootName>,
    /// Segments and bundles.
    pub objects: Vec<String>,
}

/// A root that is kept.
pub(super) struct Kept {
    name: RootName,
    /// What the one before it named, and this one does not.
    pub gone: Gone,
}

/// Who has the upkeep, and how far it is.
#[derive(Default)]
pub(super) struct Upkeep {
    pub step: Step,
    /// The generation claimed here, as long as nobody is known to have claimed a later one.
    pub generation: Option<u64>,
    /// The root that the map goes on from.
    pub newest: Option<RootName>,
    /// The state that the levels of the map are of; `None` if there are none.
    flushed: Option<Box<State>>,
    /// The same of what has been set aside, and of what is being flushed.
    states: States,
    /// The roots of all snapshots that are in the levels.
    pub pins: Pins,
    /// One that is being put.
    pinning: Option<RootName>,
    /// Those put in this generation.
    pins_made: u64,
    /// Fragments of this generation from this number on are in the root of no snapshot.
    unpinned: u64,
    /// Bytes of fragments that no root names but perhaps one of a snapshot.
    pub perhaps_bytes: u64,
    pub sweep: Option<Sweep>,
    /// The root of a snapshot that was not there for a sweep.
    pub pin_missed: Option<RootName>,
    pub sweep_due: bool,
    /// The table is to be written whatever it has.
    flush_wanted: bool,
    /// When it will be, if not before.
    flush_by: Option<Time>,
    /// There is a flush without a root, or a merge.
    flush_unwritten: bool,
    merge_unwritten: bool,
    /// What the newest root names and the map no longer does.
    pub gone: Gone,
    /// There are segments or bundles among it, and no root says so; or only the newest does.
    objects_unwritten: bool,
    /// So many roots are to be written although the map is what the newest says: until none that is kept names what
    /// merges have replaced.
    renew: usize,
    pub kept: VecDeque<Kept>,
    /// Objects that no kept root names, as soon as there is a root of this generation.
    pub orphans: Vec<String>,
    /// What may be deleted, and when.
    doomed: VecDeque<(Time, Vec<String>)>,
    /// Roots written in this generation.
    pub roots: u64,
    /// No newer root was there a moment ago.
    fresh: bool,
    /// A fragment of ours was not there: somebody may have taken over.
    pub suspicious: bool,
    /// There is work that waits for nothing.
    stepping: bool,
    /// Fragments to be merged could not be read: no merge goes on before then.
    paused: Option<Time>,
    failures: u32,
}

impl Upkeep {
    /// The map and its state are those of a root.
    pub fn based_on(&mut self, name: RootName, state: State, pins: Pins) {
        self.newest = Some(name);
        self.flushed = Some(Box::new(state));
        self.pins = pins;
    }

    /// Nothing is known of the map.
    pub fn begin_again(&mut self) {
        (self.newest, self.flushed) = (None, None);
        self.states.clear();
        self.pins.clear();
    }

    /// Whether the root of a snapshot is being put.
    pub fn is_pinning(&self) -> bool {
        self.pinning.is_some()
    }

    /// The map is that with which a clone begins; there is no root of it.
    pub fn begun_with(&mut self, state: State) {
        self.flushed = Some(Box::new(state));
    }

    /// What was in the log when its reading began has been applied.
    pub fn caught_up(&mut self) {
        if let Step::Behind { log: log @ Log::Reading, .. } = &mut self.step {
            *log = Log::Read;
        }
    }

    /// Whether a root has been written here, and there is one before it.
    pub fn has_written(&self) -> bool {
        self.generation.is_some() && self.roots > 0 && self.kept.len() >= ROOTS_KEPT
    }

    /// The generation that is this engine's.
    pub fn generation(&self) -> Option<u64> {
        self.generation
    }

    /// All roots that somebody may open: nothing that one of them names is given up.
    pub fn kept_roots(&self) -> Vec<RootName> {
        self.kept.iter().map(|kept| kept.name).collect()
    }

    /// The segments after this one may be replayed.
    pub fn oldest_kept(&self) -> u64 {
        self.kept.iter().map(|kept| kept.name.segment).min().unwrap_or(0)
    }

    /// These objects are not to be named by the next root.
    pub fn collected(&mut self, objects: Vec<String>) {
        self.gone.objects.extend(objects);
        self.objects_unwritten = true;
    }

    /// No root is to name what the map no longer has.
    pub fn renew_roots(&mut self) {
        self.renew = ROOTS_KEPT;
    }

    /// Whether one that is to be there for that is not.
    pub fn is_renewing(&self) -> bool {
        self.renew > 0 || matches!(self.step, Step::Put { .. })
    }

    /// The next root does not name this any more.
    pub fn is_gone(&mut self, fragment: FragmentId) {
        self.gone.fragments.push(fragment);
    }

    /// Somebody may have taken over.
    pub fn suspect(&mut self) {
        self.suspicious = true;
    }

    /// The last segment in the levels of the map.
    pub fn through(&self) -> u64 {
        self.flushed.as_ref().map_or(0, |state| state.number)
    }

    /// A fragment is no longer part of the map of that volume.
    fn left(&mut self, volume: VolumeId, fragment: Fragment) {
        let id = fragment.id;
        let newer = Some(id.generation) == self.generation && id.number >= self.unpinned;
        let unkept = self.pins.is_empty() && self.pinning.is_none();
        if id.volume != volume {
            // A clone's parent may need it.
        } else if newer || unkept {
            self.gone.fragments.push(id);
        } else {
            self.gone.perhaps.push((id, fragment.bytes()));
        }
    }
}

impl Kept {
    /// Of who wrote it.
    pub fn generation(&self) -> u64 {
        self.name.generation
    }
}

impl Volume {
    /// Whether nothing is under way, and nothing more will be.
    pub(super) fn upkeep_is_idle(&self) -> bool {
        let rests = self.upkeep.generation.is_none()
            || self.shutting_down
            || self.tree.is_idle() && !self.upkeep.stepping;
        self.collect_is_idle()
            && matches!(self.upkeep.step, Step::Idle)
            && !self.tree.is_flushing()
            && !self.is_flush_due()
            && !self.is_root_due()
            && rests
    }

    pub(super) fn upkeep_timeout(&self) -> Option<Time> {
        if !matches!(self.phase, Phase::Running) {
            return None;
        }
        let flush_by = self.upkeep.flush_by.filter(|_| !self.shutting_down);
        if self.upkeep.generation.is_none() {
            return flush_by;
        }
        let step = self.is_stepping().then_some(self.now);
        let paused = self.upkeep.paused.filter(|_| !self.shutting_down);
        let idle = matches!(self.upkeep.step, Step::Idle) && !self.shutting_down;
        let idle = idle && !self.collect.is_reading();
        let doomed = self.upkeep.doomed.front().filter(|_| idle).map(|(due, _)| *due);
        [step, flush_by, paused, doomed, self.collect_timeout()].into_iter().flatten().min()
    }

    fn is_stepping(&self) -> bool {
        self.upkeep.stepping && (self.tree.is_flushing() || !self.shutting_down)
    }

    /// A step of a flush or a merge, if one can be taken.
    pub(super) fn upkeep_step(&mut self) {
        if !matches!(self.phase, Phase::Running) {
            return;
        }
        if self.upkeep.flush_by.take_if(|at| *at <= self.now).is_some() {
            self.flush();
        }
        if self.upkeep.generation.is_none() {
            return;
        }
        if self.upkeep.paused.take_if(|until| *until <= self.now).is_some() {
            self.upkeep.stepping = true;
        }
        self.collect_step();
        if !self.is_stepping() {
            return;
        }
        let only_flush = self.shutting_down || self.upkeep.paused.is_some();
        let stepped = {
            let pages = &mut *self.config.pages.lock();
            if only_flush { Ok(self.tree.step_flush(pages)) } else { self.tree.step(pages) }
        };
        match stepped {
            Ok(more) => self.upkeep.stepping = more,
            Err(damage) => self.merge_damaged(&damage),
        }
        self.tree_outputs();
    }

    fn merge_damaged(&mut self, damage: &map::Damage) {
        self.upkeep.failures = self.upkeep.failures.saturating_add(1);
        if self.upkeep.failures > 1 {
            self.upkeep.paused = Some(self.now.after(MERGE_PAUSE));
        }
        self.upkeep.stepping = self.upkeep.paused.is_none() || self.tree.is_flushing();
        let key = catalog::fragment_key(damage.fragment);
        let (error, failures) = (damage.reason.to_string(), self.upkeep.failures);
        self.event(Event::Retry { key, error, failures });
    }

    fn tree_outputs(&mut self) {
        while let Some(output) = self.tree.poll() {
            match output {
                Output::Put(fragment, data) => {
                    let key = catalog::fragment_key(fragment.id);
                    let operation = ObjectOperation::Put { key, data };
                    self.book.issue(Purpose::PutFragment(fragment.id), operation);
                }
                Output::Get(get) => {
                    let copies =
                        if self.upkeep.failures > 0 { Copies::Bad } else { Copies::Refused };
                    self.read_fragment(Purpose::ReadFragment, get, copies);
                }
            }
        }
        while let Some(event) = self.tree.poll_event() {
            match event {
                tree::Event::Flushed { through, fragments, bytes } => {
                    self.upkeep.flushed = self.upkeep.states.remove(&through);
                    self.upkeep.flush_unwritten = true;
                    self.put_pin();
                    self.event(Event::Flushed { through, fragments, bytes });
                }
                tree::Event::Merged { gone, bytes } => {
                    self.upkeep.failures = 0;
                    self.upkeep.merge_unwritten = true;
                    self.left(gone);
                    self.event(Event::Merged { bytes });
                }
                tree::Event::RolledBack { gone } => {
                    (self.upkeep.failures, self.upkeep.paused) = (0, None);
                    self.left(gone);
                }
            }
        }
    }

    fn left(&mut self, gone: Vec<Fragment>) {
        for fragment in gone {
            self.config.pages.lock().forget(fragment.id);
            self.upkeep.left(self.spec.id, fragment);
        }
    }

    pub(super) fn read_fragment(
        &mut self,
        purpose: impl FnOnce(Get) -> Purpose,
        get: Get,
        copies: Copies,
    ) {
        let key = catalog::fragment_key(get.fragment.id);
        let range = Some(get.bytes.clone());
        self.book.issue(purpose(get), ObjectOperation::Get { key, range, copies });
    }

    pub(super) fn fragment_put(&mut self, fragment: FragmentId) {
        if fragment.number >= FIRST_FRAGMENT {
            return self.moved_fragment_put(fragment);
        }
        self.tree.handle_written(fragment);
        self.upkeep.stepping = true;
    }

    /// A part of a fragment that is to be merged; nothing if that is gone.
    pub(super) fn fragment_read(&mut self, get: &Get, data: Option<Bytes>) {
        if get.fragment.id.number >= FIRST_FRAGMENT {
            return self.moved_fragment_read(get, data);
        }
        self.upkeep.suspicious |= data.is_none();
        let handled = self.tree.handle_read(get, data.unwrap_or_default());
        self.upkeep.stepping = true;
        if let Err(damage) = handled {
            self.merge_damaged(&damage);
        }
    }

    /// Whether the table is to be written.
    fn is_flush_due(&self) -> bool {
        let since = self.state.number - self.upkeep.through().min(self.state.number);
        if self.tree.is_flushing()
            || self.is_readonly()
            // The levels are to be the map of a snapshot until its root is there.
            || self.upkeep.pinning.is_some()
            // Opening from a root, nobody would find out that a size is not noted.
            || self.sizes.is_unnoted()
            || self.tree.levels().runs().len() + 1 >= root::MAX_RUNS
            || self.tree.is_lost()
        {
            return false;
        }
        if self.tree.set_aside() > 0 {
            return true;
        }
        if since == 0 {
            return false;
        }
        if self.shutting_down {
            return self.put.is_none() && self.announce_unsaved.is_none();
        }
        let table = self.tree.table();
        since >= self.config.flush_every_segments.max(1)
            || self.upkeep.flush_wanted
            || table.bytes() >= self.config.table_bytes
            || table.len() >= CROWDED_ENTRIES && self.config.pages.lock().is_crowded()
    }

    /// Whether the map is no longer what the newest root says. Merges have one root together.
    pub(super) fn is_root_due(&self) -> bool {
        let merged = self.upkeep.merge_unwritten && self.tree.is_settled() && !self.shutting_down;
        self.upkeep.generation.is_some()
            && self.upkeep.flushed.is_some()
            && self.upkeep.pinning.is_none()
            && (self.upkeep.flush_unwritten
                || merged
                || (self.upkeep.objects_unwritten || self.upkeep.renew > 0) && !self.shutting_down)
    }

    /// Begins whatever is next.
    pub(super) fn advance_upkeep(&mut self) {
        if !matches!(self.phase, Phase::Running) {
            return;
        }
        self.adopt_if_reached();
        self.advance_rebuild();
        self.advance_collect();
        let can_put = self.can_put();
        match &mut self.upkeep.step {
            Step::Idle => {}
            Step::Behind { name, log: Log::Read, .. } => {
                let key = catalog::root_key(self.spec.id, *name);
                let (number, end) = (name.segment, self.state.number);
                return self.fail(OpenError::Truncated { key, number, end });
            }
            Step::Behind { log: log @ Log::Unread, .. } if can_put => {
                *log = Log::Reading;
                return self.catch_up();
            }
            _ => return,
        }
        if std::mem::take(&mut self.rolling.stale) {
            return self.look_for_roots(None);
        }
        let due = self.is_flush_due();
        let Some(generation) = self.upkeep.generation else {
            if self.reads.is_stranded() || due && !self.upkeep.fresh {
                self.look_for_roots(None);
            } else if due {
                self.begin_claim();
            }
            return;
        };
        let late = self.upkeep.doomed.front().is_some_and(|(due, _)| *due <= self.now)
            && !self.collect.is_reading();
        if self.is_root_due() {
            self.put_root(generation);
        } else if due || late && !self.shutting_down || self.upkeep.suspicious {
            self.upkeep.step = Step::Look { since: self.now };
            self.read_owner(generation + 1);
        } else if self.reads.is_stranded() {
            self.look_for_roots(None);
        } else if self.upkeep.sweep_due && self.upkeep.sweep.is_none() && !self.shutting_down {
            self.begin_sweep();
        }
    }

    pub(super) fn look_for_roots(&mut self, claimed: Option<u64>) {
        self.upkeep.step = Step::Roots { claimed };
        self.reads.look_for_roots();
        // What is not there may be a parent's.
        if self.reads.is_stranded() { self.look_at_ancestors() } else { self.list_roots() }
    }

    pub(super) fn upkeep_roots_listed(&mut self, names: Vec<RootName>) {
        let Step::Roots { claimed } = self.upkeep.step else { return };
        if claimed.is_some() {
            let keys = names.iter().map(|name| catalog::root_key(self.spec.id, *name));
            self.upkeep.orphans = keys.collect();
        }
        self.newer_root(claimed, names);
    }

    /// Reads the newest of these roots, if it is newer than the one that the map goes on from.
    fn newer_root(&mut self, claimed: Option<u64>, mut older: Vec<RootName>) {
        match older.pop().filter(|name| Some(*name) > self.upkeep.newest) {
            Some(name) => {
                self.upkeep.step = Step::ReadRoot { claimed, older };
                self.read_root(name);
            }
            None => self.roots_seen(claimed, false),
        }
    }

    pub(super) fn upkeep_root_read(&mut self, name: RootName, data: Option<Bytes>) {
        let Step::ReadRoot { claimed, older } = std::mem::take(&mut self.upkeep.step) else {
            return;
        };
        let Some(data) = data else { return self.look_for_roots(claimed) };
        match self.parse_root(name, &data) {
            Some(root) if self.only_root(name, &root) => {}
            Some(root) => {
                let (root, log) = (Box::new(root), Log::Unread);
                self.upkeep.step = Step::Behind { claimed, name, root, log };
                self.adopt_if_reached();
            }
            None => self.newer_root(claimed, older),
        }
    }

    /// Goes on from a newer root that was read, if the log has been applied up to there.
    pub(super) fn adopt_if_reached(&mut self) {
        let reached = |root: &root::Root| root.state.number <= self.state.number;
        if !matches!(&self.upkeep.step, Step::Behind { root, .. } if reached(root)) {
            return;
        }
        let Step::Behind { claimed, name, root, .. } = std::mem::take(&mut self.upkeep.step) else {
            return;
        };
        let number = root.state.number;
        if number < self.upkeep.through() || self.tree.is_rolled_back_after(number) {
            // The table begins later than that.
            let replay = Replay::new(self.spec.id, number + 1, OPEN_WINDOW);
            let rebuilt = Box::new(Rebuilt::new(root.state.clone()));
            self.upkeep.step = Step::Ahead { claimed, name, root, replay, rebuilt };
        } else {
            self.adopt(claimed, name, *root, None);
        }
    }

    /// Goes on from a newer root; `rebuilt` is what the segments after it say, if the present tables are not
    /// that.
    pub(super) fn adopt(
        &mut self,
        claimed: Option<u64>,
        name: RootName,
        root: root::Root,
        rebuilt: Option<Rebuilt>,
    ) {
        let root::Root { generation, state, levels, pins, moved } = root;
        self.adopt_moved(moved);
        let through = state.number;
        let again = if rebuilt.is_some() { self.state.number - through } else { 0 };
        self.event(Event::Adopted { generation, through, again });
        {
            let pages = &mut *self.config.pages.lock();
            self.tree.adopt(levels, through, pages);
            match rebuilt {
                Some(Rebuilt { table, split, states, .. }) => {
                    self.upkeep.states = states;
                    self.tree.load_split(split, table, pages);
                }
                None if through == self.state.number => self.tree.load(Table::new(), pages),
                None => self.tree.forget_through(through, pages),
            }
        }
        self.upkeep.based_on(name, state, pins);
        self.upkeep.gone = Gone::default();
        self.stop_upkeep();
        self.roots_seen(claimed, true);
    }

    /// What was begun comes to nothing: somebody else goes on from the newest root, or this does.
    fn stop_upkeep(&mut self) {
        let upkeep = &mut self.upkeep;
        let through = upkeep.through();
        // What was not set aside is part of a table again.
        let tree = &self.tree;
        upkeep.states.retain(|number, _| *number > through && tree.is_set_aside(*number));
        (upkeep.generation, upkeep.pinning, upkeep.sweep) = (None, None, None);
        (upkeep.flush_unwritten, upkeep.merge_unwritten, upkeep.stepping) = (false, false, false);
        upkeep.paused = None;
        upkeep.kept.clear();
        upkeep.doomed.clear();
        upkeep.gone.objects.clear();
        upkeep.objects_unwritten = false;
        upkeep.renew = 0;
        self.stop_collecting();
    }

    /// The map goes on from the newest root there is.
    pub(super) fn roots_seen(&mut self, claimed: Option<u64>, newer: bool) {
        self.upkeep.step = Step::Idle;
        if self.tree.is_lost() {
            return self.base_lost(None);
        }
        self.upkeep.fresh = true;
        // Before lookups go on with a map of the epoch that is now.
        self.fence_reads();
        {
            let pages = &mut *self.config.pages.lock();
            let maps = maps(&self.spec, &self.tree, &self.collect, &self.ancestors);
            self.reads.roots_seen(newer, maps, pages);
        }
        if let Some(generation) = claimed {
            self.own(generation);
        }
    }

    fn begin_claim(&mut self) {
        self.upkeep.fresh = false;
        self.upkeep.step = Step::Claim;
        let prefix = catalog::owner_prefix(self.spec.id);
        self.book.issue(Purpose::ListOwners, ObjectOperation::List { prefix });
    }

    pub(super) fn owners_listed(&mut self, list: &[ObjectMeta]) {
        let prefix = catalog::owner_prefix(self.spec.id);
        let claimed = list.iter().filter_map(|meta| catalog::parse_number(&prefix, &meta.key));
        self.claim(claimed.max().unwrap_or(0) + 1);
    }

    fn claim(&mut self, generation: u64) {
        let key = catalog::owner_key(self.spec.id, generation);
        let data = vec![catalog::encode_owner(self.incarnation).into()];
        self.book.issue(Purpose::PutOwner(generation), ObjectOperation::Put { key, data });
    }

    /// Nobody else has the generation, by this put or by one that was thought to have failed.
    pub(super) fn claimed(&mut self, generation: u64) {
        self.look_for_roots(Some(generation));
    }

    pub(super) fn read_owner(&mut self, generation: u64) {
        let key = catalog::owner_key(self.spec.id, generation);
        self.book.issue(
            Purpose::ReadOwner(generation),
            ObjectOperation::Get { key, range: None, copies: Copies::Refused },
        );
    }

    /// Who has claimed a generation, if anybody has.
    pub(super) fn owner_read(&mut self, generation: u64, data: Option<Bytes>) {
        match std::mem::take(&mut self.upkeep.step) {
            Step::Claim => {
                self.upkeep.step = Step::Claim;
                // An engine claims a generation once at most: what names it is its own.
                match data {
                    Some(data) if data == catalog::encode_owner(self.incarnation).as_bytes() => {
                        self.claimed(generation);
                    }
                    Some(_) => self.claim(generation + 1),
                    None => self.claim(generation),
                }
            }
            Step::Look { since } => self.looked(generation, since, data.is_some()),
            step => self.upkeep.step = step,
        }
    }

    /// The generation is this engine's, and the newest root has been adopted.
    fn own(&mut self, generation: u64) {
        self.event(Event::Claimed { generation });
        self.stop_upkeep();
        self.tree.own(generation, 1);
        self.own_moved(generation);
        self.upkeep.generation = Some(generation);
        (self.upkeep.roots, self.upkeep.pins_made) = (0, 0);
        self.upkeep.unpinned = self.tree.next();
        self.upkeep.stepping = true;
        if let Some(name) = self.upkeep.newest {
            let key = catalog::root_key(self.spec.id, name);
            self.upkeep.orphans.retain(|orphan| *orphan != key);
            self.upkeep.kept.push_back(Kept { name, gone: Gone::default() });
        }
        // Whoever took over before this may have kept it from being there.
        self.put_pin();
        self.begin_sweep();
    }

    /// Whether somebody else has taken over is known, as of a moment after `since`.
    fn looked(&mut self, next: u64, since: Time, superseded: bool) {
        self.upkeep.suspicious = false;
        if superseded {
            self.event(Event::Superseded { generation: next });
            self.upkeep.flush_wanted = false;
            // What the levels name is there for a while; then a newer root is.
            let (levels, through) = (self.tree.levels().clone(), self.upkeep.through());
            self.tree.adopt(levels, through, &mut self.config.pages.lock());
            self.stop_upkeep();
            self.upkeep.fresh = false;
            return;
        }
        let mut deleted = 0;
        let held = self.collect.is_reading();
        while let Some((_, keys)) =
            self.upkeep.doomed.pop_front_if(|(due, _)| *due <= since && !held)
        {
            deleted += keys.len() as u64;
            for key in keys {
                self.book.issue(Purpose::Delete, ObjectOperation::Delete { key });
            }
        }
        if deleted > 0 {
            self.event(Event::Deleted { objects: deleted });
        }
        if self.is_flush_due() {
            let number = self.state.number;
            if self.tree.set_aside() == 0 {
                self.upkeep.states.insert(number, Box::new(self.state.clone()));
            }
            self.upkeep.flush_wanted = false;
            self.upkeep.stepping |= self.tree.freeze(number);
        }
    }
}
