//! Continues from a root that is older than the flushed tables: the engine reads the segments after
//! it again.

use super::super::facts::Facts;
use super::super::outputs::Outputs;
use super::super::purpose::ObjectPurpose;
use crate::store::catalog;
use crate::store::log::LogState;
use crate::store::map::levels::Levels;
use crate::store::map::table::Table;
use crate::store::map::tree::Frozen;
use crate::store::object::GetError;
use crate::store::open::{OPEN_WINDOW, Part, Replay, ReplayStep};
use crate::store::segment::{Segment, SegmentKind};
use bytes::Bytes;
use std::collections::BTreeMap;

/// The states after some segments.
pub(super) type LogStates = BTreeMap<u64, Box<LogState>>;

/// The entries of the segments after a root, as far as the engine has read them.
pub(super) struct Rebuild {
    replay: Replay,
    state: LogState,
    table: Table,
    /// The tables aside from before: up to segments that took snapshots, and the destinations of
    /// rollbacks.
    split: Vec<Frozen>,
    /// The states after those.
    states: LogStates,
}

impl Rebuild {
    /// Nothing yet: the root itself.
    pub fn new(state: LogState) -> Rebuild {
        let replay = Replay::after(&state, true, OPEN_WINDOW);
        let (table, split, states) = (Table::new(), Vec::new(), LogStates::new());
        Rebuild { replay, state, table, split, states }
    }

    /// Whether the rebuild has applied the segments up to that one.
    pub fn has_reached(&self, number: u64) -> bool {
        self.state.number == number
    }

    /// The table, the tables aside before it, and the states after those.
    pub fn into_parts(self) -> (Table, Vec<Frozen>, LogStates) {
        (self.table, self.split, self.states)
    }

    /// The next step; reads segments if it needs them.
    pub fn next(&mut self, facts: &Facts, out: &mut Outputs) -> ReplayStep {
        let step = self.replay.step();
        if matches!(step, ReplayStep::Wait) {
            for (number, part) in self.replay.reads() {
                let key = catalog::segment_key(facts.spec().id, number);
                let purpose = ObjectPurpose::Rebuild { number, part };
                out.read_range(purpose, key, Replay::range(part));
            }
        }
        step
    }

    pub fn handle_part(&mut self, number: u64, part: Part, data: Option<Bytes>) {
        self.replay.handle(number, part, data.ok_or(GetError::NotFound));
    }

    /// The engine cannot apply that segment yet: the next step returns it again.
    pub fn put_back(&mut self, segment: Box<Segment>) {
        self.replay.put_back(segment);
    }

    /// Applies a segment. `levels` are the map that the segment asks for, unless a table aside has
    /// it.
    pub fn apply(&mut self, segment: &Segment, levels: Option<Levels>) -> Result<(), &'static str> {
        self.state.apply(segment)?;
        let number = segment.header.number;
        for piece in &segment.footer.pieces {
            self.table.apply(number, piece);
        }
        let aside = match (segment.header.kind, &segment.footer.note) {
            (SegmentKind::Snapshot, _) => Frozen::kept(number, std::mem::take(&mut self.table)),
            (SegmentKind::Rollback, Some(note)) => {
                self.table = Table::new();
                Frozen::rolled_back(number, note.segment, levels)
            }
            _ => return Ok(()),
        };
        self.split.push(aside);
        self.states.insert(number, Box::new(self.state.clone()));
        Ok(())
    }

    /// The snapshot whose map the segment asks for, if no table aside has it.
    pub fn needs(&self, segment: &Segment) -> Option<u64> {
        let note = segment.footer.note.as_ref()?;
        let rolls_back = segment.header.kind == SegmentKind::Rollback;
        let aside = self.split.iter().any(|frozen| frozen.through() == note.segment);
        (rolls_back && !aside).then_some(note.segment)
    }
}
