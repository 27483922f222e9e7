//! The roots of a map, of the volume and of its snapshots, and the states of the log that these are
//! of.

use super::super::context::Context;
use super::super::purpose::ObjectPurpose;
use super::deletion::Dropped;
use super::rebuild::LogStates;
use crate::store::catalog::{self, RootName};
use crate::store::gc::moved::Moved;
use crate::store::log::LogState;
use crate::store::map::fragment::FragmentId;
use crate::store::map::tree::Tree;
use crate::store::root::{self, Pins};

/// The existing roots, and the content of the next ones.
#[derive(Default)]
pub(super) struct RootWriter {
    /// The root that the map goes on from.
    newest: Option<RootName>,
    /// The state that the levels of the map are of; `None` if there are none.
    flushed: Option<Box<LogState>>,
    /// Like `state`, of the tables aside, and of the flush in progress.
    states: LogStates,
    /// The roots of all snapshots that are in the levels.
    pins: Pins,
    /// The put in progress.
    pinning: Option<RootName>,
    /// Those put in this generation.
    pins_made: u64,
    /// Fragments of this generation from this number on are in the root of no snapshot.
    unpinned: u64,
    /// Roots written in this generation.
    roots: u64,
}

impl RootWriter {
    pub fn newest(&self) -> Option<RootName> {
        self.newest
    }

    /// The last segment in the levels of the map.
    pub fn through(&self) -> u64 {
        self.flushed.as_ref().map_or(0, |state| state.number)
    }

    /// Whether there is something that a root can say.
    pub fn has_levels(&self) -> bool {
        self.flushed.is_some()
    }

    /// Whether the engine has written a root of this generation.
    pub fn has_written(&self) -> bool {
        self.roots > 0
    }

    /// The map and its state are those of a root.
    pub fn based_on(&mut self, name: RootName, state: LogState, pins: Pins) {
        self.newest = Some(name);
        self.flushed = Some(Box::new(state));
        self.pins = pins;
    }

    /// The map is that with which a clone begins; there is no root of it.
    pub fn begin_with(&mut self, state: LogState) {
        self.flushed = Some(Box::new(state));
    }

    /// A newer root of the volume has the moves, whatever its map.
    pub fn seen(&mut self, name: RootName) {
        self.newest = Some(name);
    }

    /// Forgets the whole map.
    pub fn forget(&mut self) {
        (self.newest, self.flushed) = (None, None);
        self.states.clear();
        self.pins.clear();
    }

    /// Keeps the state of the log for a table that goes aside, or for the next flush.
    pub fn keep_state(&mut self, state: &LogState) {
        self.states.insert(state.number, Box::new(state.clone()));
    }

    pub fn keep_states(&mut self, states: LogStates) {
        self.states = states;
    }

    /// The table of the flush joins a table again, unless it was aside. The put of a snapshot's
    /// root has ended.
    pub fn stop(&mut self, tree: &Tree) {
        let through = self.through();
        self.states.retain(|number, _| *number > through && tree.is_set_aside(*number));
        self.pinning = None;
    }

    /// A generation begins. Its fragments have numbers from `next` on.
    pub fn own(&mut self, next: u64) {
        (self.roots, self.pins_made, self.unpinned) = (0, 0, next);
    }

    /// The levels are the map after that segment.
    pub fn flushed(&mut self, through: u64) {
        self.flushed = self.states.remove(&through);
    }

    /// The root of the snapshot of that segment.
    pub fn pin_of(&self, segment: u64) -> Option<RootName> {
        self.pins.get(&segment).copied()
    }

    pub fn is_pinning(&self) -> bool {
        self.pinning.is_some()
    }

    /// The roots of all snapshots that are in the levels.
    pub fn pins(&self) -> impl ExactSizeIterator<Item = RootName> {
        self.pins.values().copied()
    }

    /// Whether the root of a snapshot may name a fragment that is no longer part of the map.
    pub fn may_be_pinned(&self, generation: Option<u64>, id: FragmentId) -> bool {
        let newer = Some(id.generation) == generation && id.number >= self.unpinned;
        let unkept = self.pins.is_empty() && self.pinning.is_none();
        !(newer || unkept)
    }

    /// Puts the root of the snapshot that the levels are of, if they are of one and it is not
    /// there.
    pub fn put_pin(&mut self, cx: &mut Context<'_>, generation: u64, tree: &Tree) {
        let Some(state) = &self.flushed else { return };
        let segment = state.number;
        if state.snapshots.at(segment).is_none() || self.pins.contains_key(&segment) {
            return;
        }
        let name = RootName { generation, segment, number: self.pins_made };
        let data = vec![root::encode_pin(generation, state, tree.levels())];
        self.pins_made += 1;
        self.pinning = Some(name);
        self.unpinned = tree.next();
        let key = catalog::pin_key(cx.facts.spec().id, name);
        cx.out.put(ObjectPurpose::PutPin(name), key, data);
    }

    /// The root of a snapshot is there.
    pub fn pin_put(&mut self, name: RootName) {
        if self.pinning.take_if(|pinning| *pinning == name).is_some() {
            self.pins.insert(name.segment, name);
        }
    }

    /// Puts the next root of that generation, with the moves, and without the roots of deleted
    /// snapshots.
    pub fn put_root(
        &mut self,
        cx: &mut Context<'_>,
        generation: u64,
        tree: &Tree,
        moved: &Moved,
        dropped: &mut Dropped,
    ) {
        let Some(state) = &self.flushed else { return };
        let (segment, number) = (state.number, self.roots);
        let name = RootName { generation, segment, number };
        let announce_max = cx.facts.config().announce_entries_max;
        let levels = tree.levels();
        let data = root::encode(generation, state, levels, &self.pins, moved, announce_max);
        self.roots += 1;
        let deleted = self.pins.extract_if(.., |number, _| state.snapshots.at(*number).is_none());
        dropped.drop_pins(deleted.map(|(_, name)| name));
        let key = catalog::root_key(cx.facts.spec().id, name);
        cx.out.put(ObjectPurpose::PutRoot(name), key, vec![data]);
    }

    /// The root is there.
    pub fn root_put(&mut self, name: RootName) {
        self.newest = Some(name);
    }
}
