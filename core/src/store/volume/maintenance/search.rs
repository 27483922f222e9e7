//! The search for a root that is newer than the basis of the map. It ends when the applied log has
//! reached that root.

use super::super::context::Context;
use super::super::facts::Facts;
use super::super::outputs::Outputs;
use super::super::roots;
use super::rebuild::Rebuild;
use super::rollback::{RollbackRoots, SnapshotLevels};
use crate::block::VolumeId;
use crate::store::catalog::RootName;
use crate::store::open::{Part, ReplayStep};
use crate::store::root::Root;
use bytes::Bytes;

/// A search under way.
pub(super) struct Search {
    /// The engine searches after it has claimed this generation.
    claimed: Option<u64>,
    phase: Phase,
}

enum Phase {
    /// Lists roots.
    List,
    /// Reads a root. `older` are the other ones.
    Read { older: Vec<RootName> },
    /// That root is the map of a segment that this engine has not applied.
    Newer { name: RootName, root: Box<Root>, log: LogRead },
    /// That root is the map of an earlier segment than the last flushed one. The engine reads the
    /// segments after it again.
    Older { name: RootName, root: Box<Root>, rebuild: Box<Rebuild> },
}

/// Whether the engine has read the log because of a root that is newer than its log.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LogRead {
    Not,
    Reading,
    Done,
}

/// The outcome of reading a root.
pub(super) enum RootRead {
    Root(Box<Root>),
    /// The root is gone: the engine that deleted it has written newer ones.
    Gone,
    /// The root is damaged. These older ones are left.
    Damaged(Vec<RootName>),
}

/// The need of the search for the log.
pub(super) enum LogWanted {
    No,
    /// The engine has to read on.
    Read,
    /// The log ends before that root.
    Ended(RootName),
}

/// Progress of reading the segments after a root again.
pub(super) enum Reached {
    NotYet,
    Yes,
    /// A segment is missing, or differs from before.
    Never,
    /// This root names a root of a snapshot that is missing. A newer root may not name it.
    Outdated,
    /// That root of a snapshot is still missing.
    WithoutPin(Option<RootName>),
}

impl Search {
    /// Lists roots.
    pub fn new(claimed: Option<u64>) -> Search {
        Search { claimed, phase: Phase::List }
    }

    /// Reads the newest of these roots if it is newer than `newest`.
    pub fn read(
        out: &mut Outputs,
        volume: VolumeId,
        claimed: Option<u64>,
        mut older: Vec<RootName>,
        newest: Option<RootName>,
    ) -> Option<Search> {
        let name = older.pop().filter(|name| Some(*name) > newest)?;
        roots::read(out, volume, name);
        Some(Search { claimed, phase: Phase::Read { older } })
    }

    /// The map has to go on from that root.
    pub fn found(claimed: Option<u64>, name: RootName, root: Root) -> Search {
        let (root, log) = (Box::new(root), LogRead::Not);
        Search { claimed, phase: Phase::Newer { name, root, log } }
    }

    /// The engine searches after it has claimed this generation.
    pub fn claimed(&self) -> Option<u64> {
        self.claimed
    }

    pub fn is_listing(&self) -> bool {
        matches!(self.phase, Phase::List)
    }

    /// Takes the outcome of reading a root, in a search that reads one.
    pub fn root_read(
        self,
        out: &mut Outputs,
        facts: &Facts,
        name: RootName,
        data: Option<Bytes>,
    ) -> Option<RootRead> {
        let Phase::Read { older } = self.phase else { return None };
        let Some(data) = data else { return Some(RootRead::Gone) };
        let announce_max = facts.config().announce_entries_max;
        Some(match roots::parse(out, facts.spec(), announce_max, name, &data) {
            Some(root) => RootRead::Root(Box::new(root)),
            None => RootRead::Damaged(older),
        })
    }

    /// Whether the search needs the log. The engine can read on while `can_put`.
    pub fn want_log(&mut self, can_put: bool) -> LogWanted {
        match &mut self.phase {
            Phase::Newer { name, log: LogRead::Done, .. } => LogWanted::Ended(*name),
            Phase::Newer { log: log @ LogRead::Not, .. } if can_put => {
                *log = LogRead::Reading;
                LogWanted::Read
            }
            _ => LogWanted::No,
        }
    }

    /// The engine has applied the log as it was when reading began.
    pub fn log_read(&mut self) {
        if let Phase::Newer { log: log @ LogRead::Reading, .. } = &mut self.phase {
            *log = LogRead::Done;
        }
    }

    /// The segment of the root, if `applied` has reached it.
    pub fn reached(&self, applied: u64) -> Option<u64> {
        match &self.phase {
            Phase::Newer { root, .. } => {
                Some(root.state.number).filter(|number| *number <= applied)
            }
            _ => None,
        }
    }

    /// Begins to read the segments after the root again.
    pub fn rebuild(&mut self) {
        if let Phase::Newer { name, root, .. } = std::mem::replace(&mut self.phase, Phase::List) {
            let rebuild = Box::new(Rebuild::new(root.state.clone()));
            self.phase = Phase::Older { name, root, rebuild };
        }
    }

    /// Goes on reading the segments after the root.
    pub fn advance(&mut self, cx: &mut Context<'_>, rollback: &mut RollbackRoots) -> Reached {
        let volume = cx.facts.spec().id;
        let Phase::Older { root, rebuild, .. } = &mut self.phase else { return Reached::NotYet };
        while !rebuild.has_reached(cx.log.number) {
            let segment = match rebuild.next(cx.facts, cx.out) {
                ReplayStep::Apply(segment) => segment,
                ReplayStep::Wait => return Reached::NotYet,
                ReplayStep::End | ReplayStep::Failed(_) => return Reached::Never,
            };
            let mut levels = None;
            if let Some(from) = rebuild.needs(&segment) {
                let found = match root.pins.get(&from) {
                    Some(pin) => rollback.levels_in(cx.out, volume, *pin),
                    None => SnapshotLevels::Missing(None),
                };
                match found {
                    SnapshotLevels::Levels(found) => levels = Some(found),
                    SnapshotLevels::Missing(pin) if rollback.misses(pin) => {
                        return Reached::Outdated;
                    }
                    SnapshotLevels::Missing(pin) => return Reached::WithoutPin(pin),
                    SnapshotLevels::Wait | SnapshotLevels::Aside => {
                        rebuild.put_back(segment);
                        return Reached::NotYet;
                    }
                }
            }
            if rebuild.apply(&segment, levels).is_err() {
                return Reached::Never;
            }
        }
        Reached::Yes
    }

    pub fn handle_part(&mut self, number: u64, part: Part, data: Option<Bytes>) {
        if let Phase::Older { rebuild, .. } = &mut self.phase {
            rebuild.handle_part(number, part, data);
        }
    }

    /// The found root. With it the content of the segments after it, if the present tables lack
    /// that.
    pub fn into_found(self) -> Option<(RootName, Root, Option<Rebuild>)> {
        match self.phase {
            Phase::Newer { name, root, .. } => Some((name, *root, None)),
            Phase::Older { name, root, rebuild } => Some((name, *root, Some(*rebuild))),
            Phase::List | Phase::Read { .. } => None,
        }
    }
}
