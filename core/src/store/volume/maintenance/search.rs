//! The search for a root that is newer than the one that the map goes on from, until the log has been applied up to there.

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
    /// The generation on behalf of which.
    claimed: Option<u64>,
    phase: Phase,
}

enum Phase {
    /// Roots are being listed.
    List,
    /// One is being read.
    Read { older: Vec<RootName> },
    /// That root is the map of a segment that has not been applied here.
    Newer { name: RootName, root: Box<Root>, log: LogRead },
    /// That root is the map of an earlier segment than the last one flushed here: what the segments after
    /// it say is read again.
    Older { name: RootName, root: Box<Root>, rebuild: Box<Rebuild> },
}

/// Whether the log has been read on account of a root that is newer than what is known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LogRead {
    Not,
    Reading,
    Done,
}

/// What reading a root gave.
pub(super) enum RootRead {
    Root(Root),
    /// Whoever deleted it has written newer ones.
    Gone,
    /// These are left.
    Damaged(Vec<RootName>),
}

/// What the search needs of the log.
pub(super) enum LogWanted {
    No,
    /// It is to be read on.
    Read,
    /// It has ended before that root.
    Ended(RootName),
}

/// Whether what the segments after a root say has been read again.
pub(super) enum Reached {
    NotYet,
    Yes,
    /// A segment is not there, or not what it was.
    Never,
    /// A root of a snapshot is not there that this one names, and a newer one may not.
    Outdated,
    /// It still is not there.
    WithoutPin(Option<RootName>),
}

impl Search {
    /// Roots are being listed.
    pub fn new(claimed: Option<u64>) -> Search {
        Search { claimed, phase: Phase::List }
    }

    /// Reads the newest of these roots, if it is newer than `newest`.
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

    /// The map is to go on from that root.
    pub fn found(claimed: Option<u64>, name: RootName, root: Root) -> Search {
        let (root, log) = (Box::new(root), LogRead::Not);
        Search { claimed, phase: Phase::Newer { name, root, log } }
    }

    /// The generation on behalf of which.
    pub fn claimed(&self) -> Option<u64> {
        self.claimed
    }

    pub fn is_listing(&self) -> bool {
        matches!(self.phase, Phase::List)
    }

    /// What reading a root gave, if one is being read.
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
            Some(root) => RootRead::Root(root),
            None => RootRead::Damaged(older),
        })
    }

    /// Whether the log is to be read on, which is possible while `can_put`.
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

    /// What was in the log when its reading began has been applied.
    pub fn log_read(&mut self) {
        if let Phase::Newer { log: log @ LogRead::Reading, .. } = &mut self.phase {
            *log = LogRead::Done;
        }
    }

    /// The segment that the root is the map of, if that is not newer than this one.
    pub fn reached(&self, applied: u64) -> Option<u64> {
        match &self.phase {
            Phase::Newer { root, .. } => {
                Some(root.state.number).filter(|number| *number <= applied)
            }
            _ => None,
        }
    }

    /// Begins to read again what the segments after the root say.
    pub fn rebuild(&mut self, facts: &Facts) {
        if let Phase::Newer { name, root, .. } = std::mem::replace(&mut self.phase, Phase::List) {
            let rebuild = Box::new(Rebuild::new(facts, root.state.clone()));
            self.phase = Phase::Older { name, root, rebuild };
        }
    }

    /// Goes on reading what the segments after the root say.
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

    /// The root that was found, and what the segments after it say if the present tables are not that.
    pub fn into_found(self) -> Option<(RootName, Root, Option<Rebuild>)> {
        match self.phase {
            Phase::Newer { name, root, .. } => Some((name, *root, None)),
            Phase::Older { name, root, rebuild } => Some((name, *root, Some(*rebuild))),
            Phase::List | Phase::Read { .. } => None,
        }
    }
}
