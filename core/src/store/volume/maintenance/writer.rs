//! Writes the map: the table of the newest segments, its flushes and merges, and the roots of
//! these.
//!
//! The machine follows orders, in bounded steps. Its owner knows the right time, and whether this
//! engine may write at all.

use super::super::context::Context;
use super::super::facts::Facts;
use super::super::outputs::Outputs;
use super::super::purpose::ObjectPurpose;
use super::deletion::{Deletion, Dropped};
use super::rebuild::Rebuild;
use super::root_writer::RootWriter;
use super::schedule::Schedule;
use crate::block::Time;
use crate::store::catalog::{self, RootName};
use crate::store::event::Event;
use crate::store::gc::moved::Moved;
use crate::store::log::LogState;
use crate::store::map::fragment::{Fragment, FragmentId};
use crate::store::map::levels::Levels;
use crate::store::map::table::Table;
use crate::store::map::tree::{self, Output, Tree};
use crate::store::map::{self, Get};
use crate::store::object::{Copies, StorageError, StorageErrorKind};
use crate::store::root::{self, Pins};
use crate::store::segment::{IN_FLIGHT_MAX, Segment, SegmentKind};
use bytes::Bytes;

/// At this number of entries a table is worth a flush when memory is short.
const CROWDED_ENTRIES: usize = 1024;
/// The map, and the writes in progress.
pub(super) struct MapWriter {
    tree: Tree,
    schedule: Schedule,
    roots: RootWriter,
}

impl MapWriter {
    pub fn new(facts: &Facts) -> MapWriter {
        MapWriter {
            tree: Tree::new(facts.config().map, facts.spec().id, 0, Levels::default()),
            schedule: Schedule::default(),
            roots: RootWriter::default(),
        }
    }

    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    pub fn roots(&self) -> &RootWriter {
        &self.roots
    }

    /// Whether the table has grown much during the write of the table before it.
    pub fn is_table_full(&self, facts: &Facts) -> bool {
        let most = facts.config().table_bytes.saturating_mul(4);
        let writing = self.tree.is_flushing() || self.tree.set_aside() > 0;
        writing && self.tree.table_bytes() >= most
    }

    pub fn is_idle(&self) -> bool {
        self.tree.is_idle() && !self.schedule.is_stepping()
    }

    /// Writes what there is in the table; up to which segment.
    pub fn flush(&mut self, log: &LogState) -> u64 {
        self.schedule.want_flush(self.roots.through() < log.number);
        log.number
    }

    /// Merges all that there is.
    pub fn compact(&mut self) {
        self.tree.compact();
        self.schedule.set_stepping(true);
    }

    /// Whether that merge has ended. If a fragment of it is damaged, its present result is final.
    pub fn is_compacted(
        &mut self,
        cx: &mut Context<'_>,
        generation: Option<u64>,
        deletion: &mut Deletion,
    ) -> bool {
        if self.tree.is_compacting() && self.schedule.paused().is_some() {
            self.tree.stop_compacting();
            self.tree_outputs(cx, generation, deletion);
            self.schedule.forgive();
            self.schedule.set_stepping(true);
        }
        !self.tree.is_compacting()
    }

    // Where the map begins.

    /// The levels of the map are those of a root.
    pub fn begin_with(
        &mut self,
        facts: &Facts,
        name: RootName,
        state: LogState,
        levels: Levels,
        pins: Pins,
    ) {
        self.tree.adopt(levels, state.number, &mut facts.pages());
        self.roots.based_on(name, state, pins);
    }

    /// They are those with which a clone begins; there is no root of it.
    pub fn begin_with_clone(&mut self, facts: &Facts, state: LogState, levels: Levels) {
        self.tree.adopt(levels, state.number, &mut facts.pages());
        self.roots.begin_with(state);
    }

    /// The log has no segment after the levels.
    pub fn clear_table(&mut self, facts: &Facts) {
        self.tree.load(Table::new(), &mut facts.pages());
    }

    /// Goes on from a newer root; `rebuild` is what the segments after it say, if the present
    /// tables are not that.
    pub fn go_on_from(
        &mut self,
        cx: &Context<'_>,
        name: RootName,
        state: LogState,
        levels: Levels,
        pins: Pins,
        rebuild: Option<Rebuild>,
    ) {
        let through = state.number;
        let pages = &mut *cx.facts.pages();
        self.tree.adopt(levels, through, pages);
        match rebuild.map(Rebuild::into_parts) {
            Some((table, split, states)) => {
                self.roots.keep_states(states);
                self.tree.load_split(split, table, pages);
            }
            None if through == cx.log.number => self.tree.load(Table::new(), pages),
            None => self.tree.forget_through(through, pages),
        }
        self.roots.based_on(name, state, pins);
    }

    /// Forgets the whole map.
    pub fn restart(&mut self, facts: &Facts) {
        (self.schedule, self.roots) = (Schedule::default(), RootWriter::default());
        let pages = &mut *facts.pages();
        self.tree.adopt(Levels::default(), 0, pages);
        self.tree.load(Table::new(), pages);
    }

    /// The volume opens anew: forgets the whole map.
    pub fn forget(&mut self, facts: &Facts) {
        self.tree.load(Table::new(), &mut facts.pages());
        self.tree = Tree::new(facts.config().map, facts.spec().id, 0, Levels::default());
        self.roots.forget();
    }

    /// A newer root of the volume has the moves, whatever its map.
    pub fn seen(&mut self, name: RootName) {
        self.roots.seen(name);
    }

    /// The generation is this engine's.
    pub fn own(&mut self, generation: u64) {
        self.tree.own(generation, 1);
        self.roots.own(self.tree.next());
        self.schedule.set_stepping(true);
    }

    /// Ends the work in progress without effect.
    pub fn stop(&mut self) {
        self.roots.stop(&self.tree);
        self.schedule.stop();
    }

    /// Another engine has taken over. The objects of the levels exist for a while; after that a
    /// newer root does.
    pub fn give_up(&mut self, facts: &Facts) {
        self.schedule.want_flush(false);
        let (levels, through) = (self.tree.levels().clone(), self.roots.through());
        self.tree.adopt(levels, through, &mut facts.pages());
    }

    // What segments say.

    /// The state has a new segment: applies its part of the map. `levels` are the map that a
    /// rollback asks for, unless a table aside has it.
    pub fn applied(&mut self, cx: &mut Context<'_>, segment: &Segment, levels: Option<Levels>) {
        let number = segment.header.number;
        {
            let pages = &mut *cx.facts.pages();
            for piece in &segment.footer.pieces {
                self.tree.apply(number, piece, pages);
            }
        }
        match segment.header.kind {
            SegmentKind::DeleteSnapshot | SegmentKind::Forget | SegmentKind::Shrink => {
                if !cx.facts.is_readonly() {
                    let delay = cx.facts.config().delete_delay;
                    self.schedule.flush_by(cx.facts.now().after(delay));
                }
                return;
            }
            // The tree writes the map after it as it is.
            SegmentKind::Snapshot => self.tree.split(number),
            SegmentKind::Rollback => self.roll_back(cx.facts, segment, levels),
            _ => return,
        }
        self.roots.keep_state(cx.log);
    }

    fn roll_back(&mut self, facts: &Facts, segment: &Segment, levels: Option<Levels>) {
        let Some(note) = &segment.footer.note else { return };
        self.tree.roll_back(segment.header.number, note.segment, levels, &mut facts.pages());
    }

    // Flushes and merges.

    pub fn flush_time(&self) -> Option<Time> {
        self.schedule.flush_time()
    }

    /// When a merge goes on that could not read its fragments.
    pub fn paused(&self) -> Option<Time> {
        self.schedule.paused()
    }

    /// Whether a step is possible now.
    pub fn is_stepping(&self, facts: &Facts) -> bool {
        self.schedule.is_stepping() && (self.tree.is_flushing() || !facts.is_stopping())
    }

    /// Time has passed. `owns`: this engine maintains the map.
    pub fn wake(&mut self, facts: &Facts, log: &LogState, owns: bool) {
        if self.schedule.take_flush_time(facts.now()) {
            self.flush(log);
        }
        if owns {
            self.schedule.wake(facts.now());
        }
    }

    /// Takes a step of a flush or a merge, if one is possible.
    pub fn take_step(
        &mut self,
        cx: &mut Context<'_>,
        generation: Option<u64>,
        deletion: &mut Deletion,
    ) {
        if !self.is_stepping(cx.facts) {
            return;
        }
        let only_flush = cx.facts.is_stopping() || self.schedule.paused().is_some();
        let stepped = {
            let pages = &mut *cx.facts.pages();
            if only_flush { Ok(self.tree.step_flush(pages)) } else { self.tree.step(pages) }
        };
        match stepped {
            Ok(more) => self.schedule.set_stepping(more),
            Err(damage) => self.merge_damaged(cx, &damage),
        }
        self.tree_outputs(cx, generation, deletion);
    }

    /// Freezes the table, for a write.
    pub fn freeze(&mut self, log: &LogState) {
        if self.tree.set_aside() == 0 {
            self.roots.keep_state(log);
        }
        self.schedule.want_flush(false);
        let freezes = self.tree.freeze(log.number);
        self.schedule.set_stepping(self.schedule.is_stepping() || freezes);
    }

    fn merge_damaged(&mut self, cx: &mut Context<'_>, damage: &map::Damage) {
        let failures = self.schedule.failed(cx.facts.now(), self.tree.is_flushing());
        let key = catalog::fragment_key(damage.fragment);
        let error = StorageError::new(StorageErrorKind::Damaged, damage.reason.to_string());
        cx.out.event(Event::Retry { key, error, failures });
    }

    fn tree_outputs(
        &mut self,
        cx: &mut Context<'_>,
        generation: Option<u64>,
        deletion: &mut Deletion,
    ) {
        while let Some(output) = self.tree.poll() {
            match output {
                Output::Put(fragment, data) => put_fragment(cx.out, fragment, data),
                Output::Get(get) => {
                    let bad = self.schedule.has_failed();
                    read_fragment(cx.out, get, if bad { Copies::Bad } else { Copies::Refused });
                }
            }
        }
        while let Some(event) = self.tree.poll_event() {
            match event {
                tree::Event::Flushed { through, fragments, bytes } => {
                    self.roots.flushed(through);
                    self.schedule.flushed();
                    if let Some(generation) = generation {
                        self.roots.put_pin(cx, generation, &self.tree);
                    }
                    cx.out.event(Event::Flushed { through, fragments, bytes });
                }
                tree::Event::Merged { gone, bytes } => {
                    self.schedule.merged();
                    self.left(cx.facts, generation, deletion, gone);
                    cx.out.event(Event::Merged { bytes });
                }
                tree::Event::RolledBack { gone } => {
                    self.schedule.forgive();
                    self.left(cx.facts, generation, deletion, gone);
                }
            }
        }
    }

    /// Fragments are no longer part of the map.
    fn left(
        &self,
        facts: &Facts,
        generation: Option<u64>,
        deletion: &mut Deletion,
        gone: Vec<Fragment>,
    ) {
        for fragment in gone {
            let id = fragment.id;
            facts.pages().forget(id);
            if id.volume != facts.spec().id {
                // A clone's parent may need it.
            } else if self.roots.may_be_pinned(generation, id) {
                deletion.drop_perhaps(fragment);
            } else {
                deletion.drop_fragment(id);
            }
        }
    }

    pub fn fragment_put(&mut self, fragment: FragmentId) {
        self.tree.handle_written(fragment);
        self.schedule.set_stepping(true);
    }

    /// Takes a part of a fragment for a merge; `None` if the fragment is gone.
    pub fn fragment_read(&mut self, cx: &mut Context<'_>, get: &Get, data: Option<Bytes>) {
        let handled = self.tree.handle_read(get, data.unwrap_or_default());
        self.schedule.set_stepping(true);
        if let Err(damage) = handled {
            self.merge_damaged(cx, &damage);
        }
    }

    /// Whether to write the table. `unnoted`: some sizes have no note. `at_rest`: no commit is in
    /// progress or will come.
    pub fn is_flush_due(
        &self,
        facts: &Facts,
        log: &LogState,
        (unnoted, at_rest): (bool, bool),
    ) -> bool {
        let (number, config) = (log.number, facts.config());
        let through = self.roots.through();
        // Void numbers are not segments.
        let void =
            if (through.max(1)..number).contains(&log.void_after) { IN_FLIGHT_MAX - 1 } else { 0 };
        let since = (number - through.min(number)).saturating_sub(void);
        if self.tree.is_flushing()
            || facts.is_readonly()
            // The levels must stay the map of a snapshot until its root exists.
            || self.roots.is_pinning()
            // An engine that opens from a root does not look for sizes without a note.
            || unnoted
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
        if facts.is_stopping() {
            return at_rest;
        }
        let table = self.tree.table();
        since >= config.flush_every_segments.max(1)
            || self.schedule.is_flush_wanted()
            || table.bytes() >= config.table_bytes
            || table.len() >= CROWDED_ENTRIES && facts.pages().is_crowded()
    }

    /// Whether the map differs from the newest root, or a request wants a root. Several merges
    /// share one root.
    pub fn is_root_due(&self, facts: &Facts, wanted: bool) -> bool {
        let merged =
            self.schedule.is_merge_unwritten() && self.tree.is_settled() && !facts.is_stopping();
        self.roots.has_levels()
            && !self.roots.is_pinning()
            && (self.schedule.is_flush_unwritten() || merged || wanted)
    }

    // Roots.

    /// Puts the root of the snapshot that the levels are of, if they are of one and it is not
    /// there.
    pub fn put_pin(&mut self, cx: &mut Context<'_>, generation: u64) {
        self.roots.put_pin(cx, generation, &self.tree);
    }

    /// The root of a snapshot is there.
    pub fn pin_put(&mut self, name: RootName) {
        self.roots.pin_put(name);
    }

    /// Puts the next root of that generation, which says what has moved.
    pub fn put_root(
        &mut self,
        cx: &mut Context<'_>,
        generation: u64,
        moved: &Moved,
        dropped: &mut Dropped,
    ) {
        self.schedule.rooted();
        self.roots.put_root(cx, generation, &self.tree, moved, dropped);
    }

    /// The root is there. Gives the bytes of all fragments that it names.
    pub fn root_put(&mut self, name: RootName) -> u64 {
        self.roots.root_put(name);
        self.tree.levels().fragments().map(Fragment::bytes).sum()
    }
}

/// Puts a fragment of either map.
pub(in super::super) fn put_fragment(out: &mut Outputs, fragment: Fragment, data: Vec<Bytes>) {
    let key = catalog::fragment_key(fragment.id);
    out.put(ObjectPurpose::PutFragment(fragment.id), key, data);
}

/// Reads a part of a fragment of either map, for a merge.
pub(in super::super) fn read_fragment(out: &mut Outputs, get: Get, copies: Copies) {
    let key = catalog::fragment_key(get.fragment.id);
    let range = Some(get.bytes.clone());
    out.get(ObjectPurpose::ReadFragment(get), key, range, copies);
}
