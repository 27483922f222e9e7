//! Map maintenance: flushes, merges, roots, and the adoption of other stores' roots.
//!
//! The engine that maintains the map has claimed a *generation*: an object created if absent, whose
//! number is one more than the last. Generations have no gaps. So one look for the next number
//! tells whether another engine has taken over. A superseded engine stops, continues from the
//! newest root, and claims again when it has something to flush. Rules:
//!
//! - An engine claims a generation only to flush something: an idle volume costs nothing.
//! - After a claim it adopts the newest root before it writes anything.
//! - It writes a root when all objects that the root names exist. The root is of the map exactly
//!   after one segment, and names the roots of all snapshots up to there.
//! - It deletes objects that no root names by the rules of [`deletion`].
//!
//! The work proceeds in bounded steps when there is no other. The machine knows only the moves of
//! the collector. About reads and commits it knows only the [`Surroundings`]. It leaves
//! [`MapEffect`]s for all others.

mod ancestors;
mod deletion;
mod generations;
mod interface;
mod rebuild;
mod rollback;
mod root_writer;
mod schedule;
mod search;
mod writer;

use super::super::catalog::{self, RootName};
use super::super::event::{Event, OpenError};
use super::super::gc::moved::Moved;
use super::super::log::LogState;
use super::super::map::Get;
use super::super::map::fragment::FragmentId;
use super::super::map::levels::Levels;
use super::super::map::tree::Tree;
use super::super::moves::Maps;
use super::super::object::ObjectMeta;
use super::super::open::Part;
use super::super::root::{Pins, Root};
use super::super::segment::{Segment, SegmentKind};
use super::context::Context;
use super::facts::Facts;
use super::outputs::Outputs;
use super::roots;
use crate::block::Time;
use crate::wire::link::SnapshotOperation;
use ancestors::{AncestorMaps, AncestorsRead};
use bytes::Bytes;
use deletion::{Deletion, Dropped, PinRead};
pub(super) use generations::{claim_next, read_owner};
pub(super) use interface::{MapEffect, RollbackMap, Surroundings};
use rollback::{RollbackRoots, SnapshotLevels};
use search::{LogWanted, Reached, RootRead, Search};
use std::collections::VecDeque;
use writer::MapWriter;
pub(super) use writer::{put_fragment, read_fragment};

/// Tables of snapshots without fragments, at most, before the engine takes another snapshot.
const SET_ASIDE_MAX: usize = 16;

/// The step in progress. One at a time, besides flush and merge.
#[derive(Default)]
enum MapStep {
    #[default]
    Idle,
    /// A search for a newer root, or for its segment, is in progress.
    Search(Search),
    /// An engine of a snapshot reads the snapshot's root.
    ReadPin,
    /// A claim of a generation is in progress.
    Claim,
    /// A list of objects for a sweep is in progress.
    Listing,
    /// Somebody else may have claimed the next: a look that began at that time.
    Look { since: Time },
    /// A put of a root that no longer names these is in progress.
    Put { dropped: Dropped },
}

/// The map of a volume, and who maintains it.
pub(super) struct MapMaintenance {
    writer: MapWriter,
    ancestors: AncestorMaps,
    rollback: RollbackRoots,
    deletion: Deletion,
    step: MapStep,
    effects: VecDeque<MapEffect>,
    /// The generation claimed here, while this engine knows of no later claim.
    generation: Option<u64>,
    /// No newer root was there a moment ago.
    fresh: bool,
    /// Somebody may have taken over.
    suspicious: bool,
    /// The engine has to look for a newer root.
    stale: bool,
}

impl MapMaintenance {
    pub fn new(facts: &Facts) -> MapMaintenance {
        MapMaintenance {
            writer: MapWriter::new(facts),
            ancestors: AncestorMaps::new(facts),
            rollback: RollbackRoots::default(),
            deletion: Deletion::default(),
            step: MapStep::Idle,
            effects: VecDeque::new(),
            generation: None,
            fresh: false,
            suspicious: false,
            stale: false,
        }
    }

    // The map, for the other machines.

    pub fn tree(&self) -> &Tree {
        self.writer.tree()
    }

    /// The maps that reads use. `moved` has the moves of the volume itself.
    pub fn maps<'a>(&'a self, facts: &'a Facts, moved: &'a Tree) -> Maps<'a> {
        Maps {
            spec: facts.spec(),
            tree: self.writer.tree(),
            moved,
            ancestors: self.ancestors.all(),
        }
    }

    pub fn generation(&self) -> Option<u64> {
        self.generation
    }

    /// The last segment that the newest root has.
    pub fn rooted(&self) -> u64 {
        self.writer.roots().newest().map_or(0, |newest| newest.segment)
    }

    /// The last segment in the levels of the map.
    pub fn through(&self) -> u64 {
        self.writer.roots().through()
    }

    /// All roots that a reader may open: the engine gives up nothing that one of them names.
    pub fn kept_roots(&self) -> Vec<RootName> {
        self.deletion.kept_roots()
    }

    /// An opening engine may replay the segments after this one.
    pub fn oldest_kept(&self) -> u64 {
        self.kept_roots().iter().map(|name| name.segment).min().unwrap_or(0)
    }

    /// Whether this engine has written a root, and an earlier one exists.
    pub fn has_written(&self) -> bool {
        self.generation.is_some()
            && self.writer.roots().has_written()
            && self.deletion.keeps_enough()
    }

    /// Whether the table has grown much during the write of the table before it.
    pub fn is_table_full(&self, facts: &Facts) -> bool {
        self.writer.is_table_full(facts)
    }

    pub fn poll_effect(&mut self) -> Option<MapEffect> {
        self.effects.pop_front()
    }

    fn effect(&mut self, effect: MapEffect) {
        self.effects.push_back(effect);
    }

    /// Gives the pages of the tables back.
    pub fn drop_tables(&self, facts: &Facts, moved: &Tree) {
        let bytes = self.writer.tree().table_bytes() + moved.table_bytes();
        facts.pages().resize_table(bytes, 0);
    }

    // The requests of the collector.

    /// Writes the table before the merge of the map. Returns its last segment.
    pub fn flush(&mut self, log: &LogState) -> u64 {
        self.writer.flush(log)
    }

    /// Merges the whole map, before its count.
    pub fn compact(&mut self) {
        self.writer.compact();
    }

    /// Whether that merge has ended. If a fragment of it is damaged, its present result is final.
    pub fn is_compacted(&mut self, cx: &mut Context<'_>) -> bool {
        self.writer.is_compacted(cx, self.generation, &mut self.deletion)
    }

    /// No root is to name what the map no longer has.
    pub fn renew_roots(&mut self) {
        self.deletion.renew_roots();
    }

    /// Whether the root for that is still missing.
    pub fn is_renewing(&self) -> bool {
        self.deletion.is_renewing() || matches!(self.step, MapStep::Put { .. })
    }

    /// The next root names none of these segments and bundles.
    pub fn drop_objects(&mut self, objects: Vec<String>) {
        self.deletion.drop_objects(objects);
    }

    /// Nor is this fragment of the second map.
    pub fn drop_fragment(&mut self, fragment: FragmentId) {
        self.deletion.drop_fragment(fragment);
    }

    /// Somebody may have taken over.
    pub fn suspect(&mut self) {
        self.suspicious = true;
    }

    // Opening, and the log.

    /// The volume begins with a root.
    pub fn begin_with(&mut self, facts: &Facts, name: RootName, root: Root) {
        self.effect(MapEffect::Adopted(root.moved));
        self.writer.begin_with(facts, name, root.state, root.levels, root.pins);
    }

    /// A clone begins with the map of a snapshot of its parent; there is no root of it.
    pub fn begin_with_clone(&mut self, facts: &Facts, state: LogState, levels: Levels) {
        self.writer.begin_with_clone(facts, state, levels);
    }

    /// The map is that of a snapshot's root, for an engine that only reads it.
    pub fn begin_with_snapshot(
        &mut self,
        facts: &Facts,
        newest: RootName,
        state: LogState,
        levels: Levels,
    ) {
        self.writer.begin_with(facts, newest, state, levels, Pins::new());
        self.writer.clear_table(facts);
    }

    /// Forgets the whole map.
    pub fn restart(&mut self, facts: &Facts) {
        let MapMaintenance { mut writer, ancestors, .. } =
            std::mem::replace(self, MapMaintenance::new(facts));
        writer.restart(facts);
        (self.writer, self.ancestors) = (writer, ancestors);
    }

    /// Whether the engine can apply an existing segment now. If not, it will later.
    pub fn may_apply(&mut self, cx: &mut Context<'_>, segment: &Segment, opening: bool) -> bool {
        if segment.header.kind != SegmentKind::Rollback {
            return true;
        }
        let Some(from) = segment.footer.note.as_ref().map(|note| note.segment) else { return true };
        let levels = match self.rollback.levels_of(&self.writer, cx.out, cx.facts.spec().id, from) {
            SnapshotLevels::Wait => return false,
            SnapshotLevels::Levels(levels) => Some(levels),
            SnapshotLevels::Aside => None,
            SnapshotLevels::Missing(pin) if opening => {
                self.open_anew(cx.facts, pin);
                return false;
            }
            SnapshotLevels::Missing(_) => {
                self.stale = true;
                None
            }
        };
        self.rollback.prepare(levels);
        true
    }

    /// The state has a new segment: applies its part of the map.
    pub fn applied(&mut self, cx: &mut Context<'_>, segment: &Segment) {
        let rolls_back = segment.header.kind == SegmentKind::Rollback;
        let levels = if rolls_back { self.rollback.take_prepared() } else { None };
        self.writer.applied(cx, segment, levels);
    }

    /// The engine has applied the log up to the end that it had at the start of the read.
    pub fn caught_up(&mut self) {
        if let MapStep::Search(search) = &mut self.step {
            search.log_read();
        }
    }

    // Maps of snapshots.

    /// Whether there is a map of the snapshot of that segment to roll back to.
    pub fn rollback_map(&mut self, cx: &mut Context<'_>, from: u64) -> RollbackMap {
        match self.rollback.levels_of(&self.writer, cx.out, cx.facts.spec().id, from) {
            SnapshotLevels::Missing(_) => {
                self.stale = true;
                RollbackMap::Missing
            }
            _ => RollbackMap::Known,
        }
    }

    /// Whether the maps that have to be written before the operation exist. A clone begins with the
    /// content of a root, so any engine that opens the clone must find that root.
    pub fn has_room(&mut self, cx: &mut Context<'_>, operation: &SnapshotOperation) -> bool {
        match operation {
            SnapshotOperation::Clone { snapshot, .. } => {
                let found = cx.log.snapshots.named(snapshot);
                found.is_none_or(|snapshot| snapshot.segment <= self.rooted())
            }
            SnapshotOperation::Rollback { snapshot } => {
                let found = cx.log.snapshots.named(snapshot).map(|snapshot| snapshot.segment);
                // The engine refuses impossible operations.
                let known = found.is_none_or(|from| {
                    let volume = cx.facts.spec().id;
                    self.rollback.is_levels_known(&self.writer, cx.out, volume, from)
                });
                known && self.writer.tree().set_aside() < SET_ASIDE_MAX
            }
            _ => self.writer.tree().set_aside() < SET_ASIDE_MAX,
        }
    }

    /// Takes the result of reading the root of a snapshot, for a rollback to it.
    pub fn base_read(&mut self, cx: &mut Context<'_>, pin: RootName, data: Option<Bytes>) {
        self.rollback.handle_read(cx.out, cx.facts.spec(), pin, data);
    }

    /// A root names one of a snapshot that is not there: there is a newer one.
    fn open_anew(&mut self, facts: &Facts, pin: Option<RootName>) {
        if !self.rollback.misses(pin) {
            return self.base_lost(facts, pin);
        }
        self.writer.forget(facts);
        self.effect(MapEffect::OpenAnew);
    }

    /// The engine cannot get the map of the snapshot that the volume rolled back to.
    fn base_lost(&mut self, facts: &Facts, pin: Option<RootName>) {
        let volume = facts.spec().id;
        let key = match (pin, self.writer.roots().newest()) {
            (Some(pin), _) => catalog::pin_key(volume, pin),
            (None, Some(newest)) => catalog::root_key(volume, newest),
            (None, None) => catalog::root_prefix(volume),
        };
        let reason = "the volume rolled back to a snapshot whose root is missing".to_owned();
        self.effect(MapEffect::Failed(OpenError::Damaged { key, reason }));
    }

    // Flushes and merges.

    /// Whether nothing is under way, and nothing more will be.
    pub fn is_idle(&self, facts: &Facts, log: &LogState, around: Surroundings) -> bool {
        let rests = self.generation.is_none() || facts.is_stopping() || self.writer.is_idle();
        matches!(self.step, MapStep::Idle)
            && !self.writer.tree().is_flushing()
            && !self.writer.is_flush_due(facts, log, around.at_rest())
            && !self.is_root_due(facts)
            && rests
    }

    pub fn poll_timeout(&self, facts: &Facts, around: Surroundings) -> Option<Time> {
        if !around.running {
            return None;
        }
        let stopping = facts.is_stopping();
        let flush_by = self.writer.flush_time().filter(|_| !stopping);
        if self.generation.is_none() {
            return flush_by;
        }
        let step = self.writer.is_stepping(facts).then_some(facts.now());
        let paused = self.writer.paused().filter(|_| !stopping);
        let idle = matches!(self.step, MapStep::Idle) && !stopping && !around.counting;
        let doomed = self.deletion.due().filter(|_| idle);
        [step, flush_by, paused, doomed].into_iter().flatten().min()
    }

    /// Time has passed, and the engine has read the log to its end.
    pub fn wake(&mut self, facts: &Facts, log: &LogState) {
        self.writer.wake(facts, log, self.generation.is_some());
    }

    /// Takes a step of a flush or a merge, if one is possible.
    pub fn take_step(&mut self, cx: &mut Context<'_>) {
        if self.generation.is_some() {
            self.writer.take_step(cx, self.generation, &mut self.deletion);
        }
    }

    pub fn fragment_put(&mut self, fragment: FragmentId) {
        self.writer.fragment_put(fragment);
    }

    /// Takes a part of a fragment for a merge; `None` if the fragment is gone.
    pub fn fragment_read(&mut self, cx: &mut Context<'_>, get: &Get, data: Option<Bytes>) {
        self.suspicious |= data.is_none();
        self.writer.fragment_read(cx, get, data);
    }

    /// Whether the map is no longer what the newest root says. Merges have one root together.
    pub fn is_root_due(&self, facts: &Facts) -> bool {
        let wanted = self.deletion.wants_root() && !facts.is_stopping();
        self.generation.is_some() && self.writer.is_root_due(facts, wanted)
    }

    /// Begins the next work, once the engine has read the log to its end.
    pub fn advance(&mut self, cx: &mut Context<'_>, around: Surroundings) {
        match &mut self.step {
            MapStep::Idle => {}
            MapStep::Search(search) => match search.want_log(around.can_put) {
                LogWanted::No => return,
                LogWanted::Read => return self.effect(MapEffect::CatchUp),
                LogWanted::Ended(name) => {
                    let key = catalog::root_key(cx.facts.spec().id, name);
                    let (number, end) = (name.segment, cx.log.number);
                    let error = OpenError::Truncated { key, number, end };
                    return self.effect(MapEffect::Failed(error));
                }
            },
            _ => return,
        }
        if std::mem::take(&mut self.stale) {
            return self.look_for_roots(cx.facts, cx.out, around.stranded, None);
        }
        let due = self.writer.is_flush_due(cx.facts, cx.log, around.at_rest());
        let Some(generation) = self.generation else {
            if around.stranded || due && !self.fresh {
                self.look_for_roots(cx.facts, cx.out, around.stranded, None);
            } else if due {
                self.begin_claim(cx);
            }
            return;
        };
        let now = cx.facts.now();
        let late = self.deletion.due().is_some_and(|due| due <= now) && !around.counting;
        if self.is_root_due(cx.facts) {
            self.effect(MapEffect::WriteRoot(generation));
        } else if due || late && !cx.facts.is_stopping() || self.suspicious {
            self.step = MapStep::Look { since: now };
            read_owner(cx, generation + 1);
        } else if around.stranded {
            self.look_for_roots(cx.facts, cx.out, around.stranded, None);
        } else if self.deletion.is_audit_due() && !cx.facts.is_stopping() {
            self.begin_sweep(cx);
        }
    }

    // Newer roots.

    /// Looks for newer roots than the base of the map, or than a parent's, for stranded reads.
    pub fn look_for_roots(
        &mut self,
        facts: &Facts,
        out: &mut Outputs,
        stranded: bool,
        claimed: Option<u64>,
    ) {
        self.step = MapStep::Search(Search::new(claimed));
        self.effect(MapEffect::LookingForRoots);
        if stranded {
            let read = self.ancestors.look_at(out, 0);
            self.ancestors_read(facts, out, read);
        } else {
            roots::list(out, facts.spec().id);
        }
    }

    fn ancestors_read(&mut self, facts: &Facts, out: &mut Outputs, read: AncestorsRead) {
        if read == AncestorsRead::All {
            roots::list(out, facts.spec().id);
        }
    }

    pub fn ancestor_listed(&mut self, cx: &mut Context<'_>, which: usize, list: &[ObjectMeta]) {
        // Another search may have ended the work in progress.
        if matches!(&self.step, MapStep::Search(search) if search.is_listing()) {
            let read = self.ancestors.listed(cx.out, which, list);
            self.ancestors_read(cx.facts, cx.out, read);
        }
    }

    pub fn ancestor_read(
        &mut self,
        cx: &mut Context<'_>,
        which: (usize, RootName),
        older: Vec<RootName>,
        data: Option<&Bytes>,
    ) {
        let read = self.ancestors.handle_root(cx.facts, cx.out, which, older, data);
        self.ancestors_read(cx.facts, cx.out, read);
    }

    pub fn roots_listed(&mut self, cx: &mut Context<'_>, list: &[ObjectMeta]) {
        let MapStep::Search(search) = &self.step else { return };
        if !search.is_listing() {
            return;
        }
        let volume = cx.facts.spec().id;
        let names = roots::names(volume, list);
        if search.claimed().is_some() {
            self.deletion.claim(names.iter().map(|name| catalog::root_key(volume, *name)));
        }
        self.read_newer(cx, search.claimed(), names);
    }

    /// Reads the newest of these roots, if it is newer than the one that the map goes on from.
    fn read_newer(&mut self, cx: &mut Context<'_>, claimed: Option<u64>, names: Vec<RootName>) {
        let newest = self.writer.roots().newest();
        match Search::read(cx.out, cx.facts.spec().id, claimed, names, newest) {
            Some(search) => self.step = MapStep::Search(search),
            None => self.roots_seen(cx, claimed, false),
        }
    }

    /// Takes the result of reading a root. Returns the root if the map should continue from it:
    /// [`MapMaintenance::go_on_from`].
    pub fn root_read(
        &mut self,
        cx: &mut Context<'_>,
        stranded: bool,
        name: RootName,
        data: Option<Bytes>,
    ) -> Option<(Option<u64>, Root)> {
        let MapStep::Search(search) = std::mem::take(&mut self.step) else { return None };
        let claimed = search.claimed();
        match search.root_read(cx.out, cx.facts, name, data)? {
            RootRead::Root(root) => return Some((claimed, *root)),
            RootRead::Gone => self.look_for_roots(cx.facts, cx.out, stranded, claimed),
            RootRead::Damaged(older) => self.read_newer(cx, claimed, older),
        }
        None
    }

    /// Continues from a newer root, as soon as the engine has applied the log up to there.
    pub fn go_on_from(
        &mut self,
        cx: &mut Context<'_>,
        claimed: Option<u64>,
        name: RootName,
        root: Root,
    ) {
        self.step = MapStep::Search(Search::found(claimed, name, root));
        self.adopt_if_reached(cx);
    }

    /// An engine of a snapshot goes by what a newer root of the volume says has moved.
    pub fn snapshot_known(&mut self, cx: &mut Context<'_>, name: RootName, moved: Moved) {
        self.writer.seen(name);
        self.effect(MapEffect::Adopted(moved));
        self.roots_seen(cx, None, true);
    }

    /// Reads the root of the snapshot. The moves are of the same moment or later: a move stays
    /// true.
    pub fn read_snapshot(&mut self, cx: &mut Context<'_>, pin: RootName, moved: Moved) {
        self.effect(MapEffect::Adopted(moved));
        self.step = MapStep::ReadPin;
        roots::read_pin(cx.out, cx.facts.spec().id, pin);
    }

    /// It goes on with the root of the snapshot.
    pub fn snapshot_read(&mut self, cx: &mut Context<'_>, generation: u64) {
        cx.out.event(Event::Adopted { generation, through: self.through(), again: 0 });
        self.roots_seen(cx, None, true);
    }

    /// Continues from a newer root that the engine has read, if it has applied the log up to there.
    pub fn adopt_if_reached(&mut self, cx: &mut Context<'_>) {
        let MapStep::Search(search) = &mut self.step else { return };
        let Some(number) = search.reached(cx.log.number) else { return };
        let through = self.writer.roots().through();
        if number < through || self.writer.tree().is_rolled_back_after(number) {
            // The table begins later than that.
            search.rebuild();
        } else {
            self.adopt_found(cx);
        }
    }

    /// Reads again what the segments after a root say.
    pub fn advance_rebuild(&mut self, cx: &mut Context<'_>, stranded: bool) {
        let MapStep::Search(search) = &mut self.step else { return };
        let claimed = search.claimed();
        match search.advance(cx, &mut self.rollback) {
            Reached::NotYet => {}
            Reached::Yes => self.adopt_found(cx),
            // It existed with that root. If it still does, opening the volume reports the error.
            Reached::Never => self.effect(MapEffect::Restart),
            Reached::WithoutPin(pin) => self.base_lost(cx.facts, pin),
            // There should be a newer one.
            Reached::Outdated => self.look_for_roots(cx.facts, cx.out, stranded, claimed),
        }
    }

    pub fn rebuild_read(&mut self, number: u64, part: Part, data: Option<Bytes>) {
        if let MapStep::Search(search) = &mut self.step {
            search.handle_part(number, part, data);
        }
    }

    /// Continues from the newer root, which the engine has found and reached.
    fn adopt_found(&mut self, cx: &mut Context<'_>) {
        let MapStep::Search(search) = std::mem::take(&mut self.step) else { return };
        let claimed = search.claimed();
        let Some((name, root, rebuild)) = search.into_found() else { return };
        let Root { generation, state, levels, pins, moved } = root;
        self.effect(MapEffect::Adopted(moved));
        let through = state.number;
        let again = if rebuild.is_some() { cx.log.number - through } else { 0 };
        cx.out.event(Event::Adopted { generation, through, again });
        self.writer.go_on_from(cx, name, state, levels, pins, rebuild);
        self.deletion.adopt();
        self.stop();
        self.roots_seen(cx, claimed, true);
    }

    /// Ends the work in progress without effect: an engine continues from the newest root.
    fn stop(&mut self) {
        self.writer.stop();
        self.generation = None;
        self.deletion.stop();
        self.effect(MapEffect::Stopped);
    }

    /// The map goes on from the newest root there is.
    fn roots_seen(&mut self, cx: &mut Context<'_>, claimed: Option<u64>, newer: bool) {
        self.step = MapStep::Idle;
        if self.writer.tree().is_lost() {
            return self.base_lost(cx.facts, None);
        }
        self.fresh = true;
        self.effect(MapEffect::RootsSeen { newer });
        if let Some(generation) = claimed {
            self.own(cx, generation);
        }
    }

    // Generations.

    fn begin_claim(&mut self, cx: &mut Context<'_>) {
        self.fresh = false;
        self.step = MapStep::Claim;
        generations::list(cx);
    }

    /// No other engine has the generation. This put took it, or an earlier one that seemed to fail.
    pub fn claimed(&mut self, cx: &mut Context<'_>, stranded: bool, generation: u64) {
        self.look_for_roots(cx.facts, cx.out, stranded, Some(generation));
    }

    /// Takes the owner of a generation, if there is one.
    pub fn owner_read(
        &mut self,
        cx: &mut Context<'_>,
        around: Surroundings,
        generation: u64,
        data: Option<Bytes>,
    ) {
        match self.step {
            MapStep::Claim => {
                let claimed = generations::is_claimed(cx, generation, data);
                if claimed {
                    self.claimed(cx, around.stranded, generation);
                }
            }
            MapStep::Look { since } => {
                self.step = MapStep::Idle;
                self.looked(cx, around, generation, since, data.is_some());
            }
            _ => {}
        }
    }

    /// This engine owns the generation, and has adopted the newest root.
    fn own(&mut self, cx: &mut Context<'_>, generation: u64) {
        cx.out.event(Event::Claimed { generation });
        self.stop();
        self.writer.own(generation);
        self.effect(MapEffect::Owned(generation));
        self.generation = Some(generation);
        if let Some(name) = self.writer.roots().newest() {
            self.deletion.begin(cx.facts.spec().id, name);
        }
        // An engine that took over before this one may have prevented the put.
        self.writer.put_pin(cx, generation);
        self.begin_sweep(cx);
    }

    /// The engine knows now whether another one had taken over at a moment after `since`.
    fn looked(
        &mut self,
        cx: &mut Context<'_>,
        around: Surroundings,
        next: u64,
        since: Time,
        superseded: bool,
    ) {
        self.suspicious = false;
        if superseded {
            cx.out.event(Event::Superseded { generation: next });
            self.writer.give_up(cx.facts);
            self.stop();
            self.fresh = false;
            return;
        }
        if !around.counting {
            let keys = self.deletion.take_due(since);
            let objects = keys.len() as u64;
            for key in keys {
                cx.out.delete(key);
            }
            if objects > 0 {
                cx.out.event(Event::Deleted { objects });
            }
        }
        if self.writer.is_flush_due(cx.facts, cx.log, around.at_rest()) {
            self.writer.freeze(cx.log);
        }
    }

    // Roots.

    /// The root of a snapshot is there.
    pub fn pin_put(&mut self, name: RootName) {
        self.writer.pin_put(name);
    }

    /// Puts the next root of that generation, which says what has moved.
    pub fn put_root(&mut self, cx: &mut Context<'_>, generation: u64, moved: &Moved) {
        if !self.writer.roots().has_levels() {
            return;
        }
        let mut dropped = self.deletion.take_dropped();
        self.writer.put_root(cx, generation, moved, &mut dropped);
        self.deletion.root_made(&dropped);
        self.step = MapStep::Put { dropped };
    }

    /// The root is there: nobody else can have written one of this generation.
    pub fn root_put(&mut self, facts: &Facts, name: RootName) {
        let MapStep::Put { dropped } = std::mem::take(&mut self.step) else { return };
        let named: u64 = self.writer.root_put(name);
        let pins = self.writer.roots().pins().len() as u64;
        let reads = facts.config().sweep_bytes.saturating_mul(pins);
        if self.deletion.root_put(facts, (name, dropped), named, reads) {
            self.effect(MapEffect::SnapshotsGone);
        }
    }

    // The sweep of objects that no root names.

    fn begin_sweep(&mut self, cx: &mut Context<'_>) {
        self.step = MapStep::Listing;
        self.deletion.begin_sweep(cx.facts, cx.out);
    }

    pub fn fragments_listed(&mut self, cx: &mut Context<'_>, moved: &Tree, list: &[ObjectMeta]) {
        let Some(generation) = self.generation else { return };
        let mapped = mapped(self.writer.tree(), moved);
        self.deletion.fragments_listed(cx, generation, mapped, list);
    }

    pub fn pins_listed(&mut self, cx: &mut Context<'_>, moved: &Tree, list: &[ObjectMeta]) {
        let Some(generation) = self.generation else { return };
        let pins = self.writer.roots().pins();
        self.deletion.pins_listed(cx.facts, generation, pins, list);
        self.step = MapStep::Idle;
        self.deletion.sweep_on(cx, Some(generation), mapped(self.writer.tree(), moved));
    }

    /// Takes the result of reading the root of a snapshot, for a sweep.
    pub fn pin_read(
        &mut self,
        cx: &mut Context<'_>,
        moved: &Tree,
        name: RootName,
        data: Option<Bytes>,
    ) {
        let pins = self.writer.roots().pins();
        match self.deletion.pin_read(cx, pins, name, data) {
            PinRead::Audited => {
                let mapped = mapped(self.writer.tree(), moved);
                self.deletion.sweep_on(cx, self.generation, mapped);
            }
            PinRead::Missing => self.suspicious = true,
            PinRead::Nothing => {}
        }
    }
}

/// The fragments of both maps, and new ones for them.
fn mapped<'a>(tree: &'a Tree, moved: &'a Tree) -> impl Iterator<Item = FragmentId> + 'a {
    let fragments = tree.levels().fragments().chain(tree.under_way());
    let fragments = fragments.chain(moved.levels().fragments()).chain(moved.under_way());
    fragments.map(|fragment| fragment.id)
}
