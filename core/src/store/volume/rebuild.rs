//! Going on from a root that is older than what has been flushed here: what the segments after it say is read again.

use super::super::catalog;
use super::super::log::State;
use super::super::map::levels::Levels;
use super::super::map::table::Table;
use super::super::map::tree::Frozen;
use super::super::object::{Copies, GetError, ObjectOperation};
use super::super::open::{self, Part, Replay};
use super::super::segment::{Segment, SegmentKind};
use super::rollback::Base;
use super::upkeep::{States, Step};
use super::{Purpose, Volume};
use bytes::Bytes;

/// What the segments after a root say.
pub(super) struct Rebuilt {
    pub state: State,
    pub table: Table,
    /// What was set aside before that: tables up to segments that took snapshots, and what was rolled back to.
    pub split: Vec<Frozen>,
    /// The states after those.
    pub states: States,
}

impl Rebuilt {
    /// Nothing yet: the root itself.
    pub fn new(state: State) -> Rebuilt {
        Rebuilt { state, table: Table::new(), split: Vec::new(), states: States::new() }
    }

    /// `levels` are what the segment makes the map, if that is not set aside.
    fn apply(&mut self, segment: &Segment, levels: Option<Levels>) -> Result<(), &'static str> {
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

    /// The snapshot that the segment makes the map, if it is not set aside.
    fn needs(&self, segment: &Segment) -> Option<u64> {
        let note = segment.footer.note.as_ref()?;
        let rolls_back = segment.header.kind == SegmentKind::Rollback;
        let aside = self.split.iter().any(|frozen| frozen.through() == note.segment);
        (rolls_back && !aside).then_some(note.segment)
    }
}

impl Volume {
    /// Reads again what the segments after a root say.
    pub(super) fn advance_rebuild(&mut self) {
        let id = self.spec.id;
        while let Step::Ahead { root, replay, rebuilt, .. } = &mut self.upkeep.step {
            if root.state.number + replay.applied == self.state.number {
                let step = std::mem::take(&mut self.upkeep.step);
                if let Step::Ahead { claimed, name, root, rebuilt, .. } = step {
                    self.adopt(claimed, name, *root, Some(*rebuilt));
                }
                return;
            }
            match replay.step() {
                open::Step::Apply(segment) => {
                    let mut levels = None;
                    if let Some(from) = rebuilt.needs(&segment) {
                        let pins = root.pins.clone();
                        let base = self.base_by(&pins, from);
                        let Step::Ahead { claimed, replay, .. } = &mut self.upkeep.step else {
                            return;
                        };
                        match base {
                            Base::Levels(found) => levels = Some(found),
                            Base::Missing(pin) => {
                                let claimed = *claimed;
                                return self.base_missing(pin, claimed);
                            }
                            Base::Wait | Base::Aside => {
                                replay.put_back(segment);
                                return;
                            }
                        }
                    }
                    let Step::Ahead { rebuilt, .. } = &mut self.upkeep.step else { return };
                    if rebuilt.apply(&segment, levels).is_err() {
                        return self.restart();
                    }
                }
                open::Step::Wait => {
                    for (number, part) in replay.reads() {
                        let key = catalog::segment_key(id, number);
                        let range = Some(Replay::range(part));
                        self.book.issue(
                            Purpose::Rebuild { number, part },
                            ObjectOperation::Get { key, range, copies: Copies::Refused },
                        );
                    }
                    return;
                }
                // It was there when that root was the newest; if it still is, opening says what is wrong.
                open::Step::End | open::Step::Failed(_) => return self.restart(),
            }
        }
    }

    pub(super) fn rebuild_read(&mut self, number: u64, part: Part, data: Option<Bytes>) {
        if let Step::Ahead { replay, .. } = &mut self.upkeep.step {
            replay.handle(number, part, data.ok_or(GetError::NotFound));
        }
    }
}
