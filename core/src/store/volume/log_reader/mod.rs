//! Opening a volume and reading its log: the newest root that is good, then the segments after it;
//! all segments if there is no root. Later, what another store has written.
//!
//! The machine says which segment comes next and where the map begins; its owner applies both. It
//! does not know the state of the log, and not what a segment says.

mod end;
mod snapshot;

use super::super::VolumeSpec;
use super::super::catalog::{self, RootName};
use super::super::event::{Event, OpenError};
use super::super::log::LogState;
use super::super::object::{GetError, ObjectMeta};
use super::super::open::{OPEN_WINDOW, Part, Replay, ReplayStep};
use super::super::root::Root;
use super::super::segment::Segment;
use super::super::session::SessionId;
use super::context::Context;
use super::facts::Facts;
use super::outputs::Outputs;
use super::purpose::ObjectPurpose;
use super::roots;
use crate::wire::link::{Frame, Lane, Parent, ToStore};
use bytes::Bytes;
use end::{EndFound, LogEnd};
pub(super) use snapshot::SnapshotMap;
use snapshot::SnapshotSource;
use std::collections::VecDeque;

/// Messages held while a volume opens before it wants no more.
const HELD_MAX: usize = 1024;

/// A message of a session, in a lane.
pub(super) type Message = (SessionId, Lane, Frame<ToStore>);

enum Phase {
    Opening(Opening),
    Running,
    /// Another store may have written to the log: reading what it wrote.
    CatchingUp(Replay),
    Failed(OpenError),
}

enum Opening {
    /// A list of the roots is in progress.
    Roots,
    /// A read of a root is in progress; these are older, the newest last.
    Root {
        older: Vec<RootName>,
    },
    /// A read of the root of a snapshot is in progress.
    Pin,
    Replay(Replay),
}

/// Where the volume begins.
pub(super) enum Beginning {
    /// Unknown so far.
    Unknown,
    /// The volume has no root.
    Empty,
    /// With that root of the volume.
    Root(RootName, Box<Root>),
    /// With what that root of a snapshot of the parent says.
    Clone(Box<Root>),
    /// With a snapshot, whose root the reader reads now. That root of the volume has the moves.
    Moved(Box<Root>),
    /// With the snapshot whose root `name` this is, which the volume's root `newest` names.
    Snapshot {
        newest: RootName,
        name: RootName,
        root: Box<Root>,
    },
    /// The reader has to look for a newer root of the volume.
    Stale,
    Failed(OpenError),
}

/// The next step of the log.
pub(super) enum LogStep {
    Apply(Box<Segment>),
    /// Nothing, after this number of segments.
    End(u64, Result<(), OpenError>),
}

/// The meaning of the end of the log.
pub(super) enum LogEnded {
    /// A list of the roots is in progress.
    Unknown,
    /// Other stores have gone on far from here.
    LeftBehind,
    /// The end, after this number of segments.
    Ended(u64),
    Failed(OpenError),
}

/// How the volume goes on at the end of the log.
pub(super) enum Resumed {
    /// The volume is open; it held these messages until now.
    Opened(VecDeque<Message>),
    CaughtUp,
    Failed(OpenError),
}

/// Reads the log of a volume.
pub(super) struct LogReader {
    phase: Phase,
    /// While the volume opens: the object says that the log has to reach this segment.
    must_reach: Option<(u64, String)>,
    /// The parent, while the engine reads the beginning of the clone from it.
    parent: Option<VolumeSpec>,
    snapshot: Option<SnapshotSource>,
    end: LogEnd,
    held: VecDeque<Message>,
    held_bytes: u64,
}

impl LogReader {
    /// Begins to open a volume.
    pub fn open(facts: &Facts, out: &mut Outputs) -> LogReader {
        let reader = LogReader {
            phase: Phase::Opening(Opening::Roots),
            must_reach: None,
            parent: None,
            snapshot: facts.snapshot().map(SnapshotSource::new),
            end: LogEnd::default(),
            held: VecDeque::new(),
            held_bytes: 0,
        };
        reader.list_roots(facts, out);
        reader
    }

    /// Begins anew with the newest root. The held messages stay.
    pub fn restart(&mut self, facts: &Facts, out: &mut Outputs) {
        self.snapshot = facts.snapshot().map(SnapshotSource::new);
        self.must_reach = None;
        self.open_anew(facts, out);
    }

    /// Lists the roots again: a newer one exists.
    pub fn open_anew(&mut self, facts: &Facts, out: &mut Outputs) {
        self.phase = Phase::Opening(Opening::Roots);
        self.list_roots(facts, out);
    }

    pub fn is_opening(&self) -> bool {
        matches!(self.phase, Phase::Opening(_))
    }

    pub fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Running)
    }

    pub fn is_catching_up(&self) -> bool {
        matches!(self.phase, Phase::CatchingUp(_))
    }

    /// Whether the volume is open and has not failed.
    pub fn is_open(&self) -> bool {
        self.is_running() || self.is_catching_up()
    }

    pub fn failed(&self) -> Option<&OpenError> {
        match &self.phase {
            Phase::Failed(error) => Some(error),
            _ => None,
        }
    }

    /// Goes no further.
    pub fn fail(&mut self, error: OpenError) {
        self.phase = Phase::Failed(error);
    }

    /// Keeps a message until the volume is open.
    pub fn hold(&mut self, message: Message) {
        self.held_bytes += message.2.payload.len() as u64;
        self.held.push_back(message);
    }

    pub fn is_held_full(&self, facts: &Facts) -> bool {
        self.held_bytes >= facts.config().queue_bytes || self.held.len() >= HELD_MAX
    }

    /// Nobody waits for what that session has sent.
    pub fn forget(&mut self, session: SessionId) {
        self.held.retain(|(other, ..)| *other != session);
        self.held_bytes = self.held.iter().map(|(.., frame)| frame.payload.len() as u64).sum();
    }

    /// Gives up the held messages.
    pub fn take_held(&mut self) -> VecDeque<Message> {
        self.held_bytes = 0;
        std::mem::take(&mut self.held)
    }

    /// The volume whose roots the reader reads: the volume itself, or its parent.
    fn source<'a>(&'a self, facts: &'a Facts) -> &'a VolumeSpec {
        self.parent.as_ref().unwrap_or(facts.spec())
    }

    fn list_roots(&self, facts: &Facts, out: &mut Outputs) {
        roots::list(out, self.source(facts).id);
    }

    pub fn roots_listed(&mut self, cx: &mut Context<'_>, list: &[ObjectMeta]) -> Beginning {
        let names = roots::names(self.source(cx.facts).id, list);
        if self.parent.is_none() {
            self.end.opens(names.last().copied());
            if !cx.facts.is_readonly() {
                for name in &names {
                    let key = catalog::root_key(cx.facts.spec().id, *name);
                    self.must_reach(name.segment, key);
                }
            }
        }
        self.open_root(cx, names)
    }

    /// The log has to have this segment, says that object.
    fn must_reach(&mut self, segment: u64, key: String) {
        if self.must_reach.as_ref().is_none_or(|(most, _)| segment >= *most) {
            self.must_reach = Some((segment, key));
        }
    }

    /// Reads the newest of these roots.
    fn open_root(&mut self, cx: &mut Context<'_>, mut candidates: Vec<RootName>) -> Beginning {
        if let Some(name) = candidates.pop() {
            self.phase = Phase::Opening(Opening::Root { older: candidates });
            roots::read(cx.out, self.source(cx.facts).id, name);
            return Beginning::Unknown;
        }
        if self.parent.is_some() {
            return Beginning::Failed(OpenError::ParentBehind);
        }
        match cx.facts.spec().parents.first() {
            Some(parent) => {
                self.open_parent(cx, *parent);
                Beginning::Unknown
            }
            None => Beginning::Empty,
        }
    }

    /// A clone without a root of its own begins with a snapshot of its parent.
    fn open_parent(&mut self, cx: &mut Context<'_>, parent: Parent) {
        let spec = cx.facts.spec();
        self.parent = Some(VolumeSpec {
            id: parent.volume,
            created_sectors: 0,
            parents: spec.parents[1..].to_vec(),
            ..spec.clone()
        });
        self.open_anew(cx.facts, cx.out);
    }

    /// Takes the result of reading a root.
    pub fn root_read(
        &mut self,
        cx: &mut Context<'_>,
        name: RootName,
        data: Option<&Bytes>,
    ) -> Beginning {
        let Phase::Opening(Opening::Root { older }) = &mut self.phase else {
            return Beginning::Unknown;
        };
        let older = std::mem::take(older);
        let Some(data) = data else {
            // The store that deleted it had written newer ones.
            self.open_anew(cx.facts, cx.out);
            return Beginning::Unknown;
        };
        let announce_max = cx.facts.config().announce_entries_max;
        let source = self.source(cx.facts);
        let Some(root) = roots::parse(cx.out, source, announce_max, name, data) else {
            return self.open_root(cx, older);
        };
        if self.parent.is_some() {
            return self.parent_root(cx, &root);
        }
        match self.snapshot_map(name, &root) {
            SnapshotMap::Unwritten => Beginning::Root(name, Box::new(root)),
            SnapshotMap::Deleted => Beginning::Failed(OpenError::NoSnapshot),
            SnapshotMap::Known => Beginning::Unknown,
            SnapshotMap::In(pin) => {
                self.phase = Phase::Opening(Opening::Pin);
                roots::read_pin(cx.out, cx.facts.spec().id, pin);
                Beginning::Moved(Box::new(root))
            }
        }
    }

    /// Where the map of the snapshot is that the engine is of, by that root of the volume. An
    /// engine of a volume goes on from its own root.
    pub fn snapshot_map(&mut self, name: RootName, root: &Root) -> SnapshotMap {
        self.snapshot.as_mut().map_or(SnapshotMap::Unwritten, |snapshot| snapshot.look(name, root))
    }

    /// The newest root of the parent names the snapshot's root, as it did before the clone existed.
    fn parent_root(&mut self, cx: &mut Context<'_>, root: &Root) -> Beginning {
        let Some(parent) = cx.facts.spec().parents.first() else { return Beginning::Unknown };
        let there = root.state.snapshots.at(parent.segment);
        let there = there.is_some_and(|snapshot| snapshot.id == parent.snapshot);
        match root.pins.get(&parent.segment).filter(|_| there) {
            Some(pin) => {
                self.phase = Phase::Opening(Opening::Pin);
                roots::read_pin(cx.out, parent.volume, *pin);
                Beginning::Unknown
            }
            None if root.state.number < parent.segment => {
                Beginning::Failed(OpenError::ParentBehind)
            }
            None => Beginning::Failed(OpenError::NoParent),
        }
    }

    /// Whether this machine reads roots of snapshots now.
    pub fn wants_pin(&self) -> bool {
        self.parent.is_some() || self.snapshot.is_some()
    }

    /// Takes the result of reading the root of a snapshot.
    pub fn pin_read(
        &mut self,
        cx: &mut Context<'_>,
        name: RootName,
        data: Option<Bytes>,
    ) -> Beginning {
        if self.parent.is_some() {
            self.parent_pin(cx, name, data)
        } else {
            self.own_pin(cx, name, data)
        }
    }

    fn parent_pin(
        &mut self,
        cx: &mut Context<'_>,
        name: RootName,
        data: Option<Bytes>,
    ) -> Beginning {
        let source = self.source(cx.facts);
        let Some(root) = roots::parse_pin(cx.out, source, name, data) else {
            let key = catalog::pin_key(source.id, name);
            let reason = "the root of the snapshot that the clone began with cannot be read";
            return Beginning::Failed(OpenError::Damaged { key, reason: reason.to_owned() });
        };
        self.parent = None;
        Beginning::Clone(Box::new(root))
    }

    fn own_pin(&mut self, cx: &mut Context<'_>, name: RootName, data: Option<Bytes>) -> Beginning {
        let Some(snapshot) = &mut self.snapshot else { return Beginning::Unknown };
        let Some(newest) = snapshot.take_reading(name) else { return Beginning::Unknown };
        if data.is_none() && snapshot.misses(name) {
            if !self.is_opening() {
                return Beginning::Stale;
            }
            self.open_anew(cx.facts, cx.out);
            return Beginning::Unknown;
        }
        let spec = cx.facts.spec();
        let Some(root) = roots::parse_pin(cx.out, spec, name, data) else {
            let key = catalog::pin_key(spec.id, name);
            let reason = "the root of the snapshot cannot be read".to_owned();
            return Beginning::Failed(OpenError::Damaged { key, reason });
        };
        snapshot.based_on(name);
        Beginning::Snapshot { newest, name, root: Box::new(root) }
    }

    /// Reads the segments after that state of the log.
    pub fn replay_after(&mut self, facts: &Facts, log: &LogState) {
        let proves = facts.config().proves_segments;
        self.phase = Phase::Opening(Opening::Replay(Replay::after(log, proves, OPEN_WINDOW)));
    }

    /// Looks for segments after that state of the log that another store has written.
    pub fn catch_up_after(&mut self, facts: &Facts, log: &LogState) {
        self.phase = Phase::CatchingUp(Replay::after(log, facts.config().proves_segments, 1));
    }

    fn replay(&mut self) -> Option<&mut Replay> {
        match &mut self.phase {
            Phase::Opening(Opening::Replay(replay)) | Phase::CatchingUp(replay) => Some(replay),
            _ => None,
        }
    }

    /// The next step of the log. `None` while a read is in progress, and when no read is wanted.
    pub fn next(&mut self, cx: &mut Context<'_>) -> Option<LogStep> {
        if self.end.is_listing() {
            return None;
        }
        let replay = self.replay()?;
        match replay.step() {
            ReplayStep::Apply(segment) => Some(LogStep::Apply(segment)),
            ReplayStep::End => Some(LogStep::End(replay.applied, Ok(()))),
            ReplayStep::Failed(error) => Some(LogStep::End(replay.applied, Err(error))),
            ReplayStep::Wait => {
                for (number, part) in replay.reads() {
                    let key = catalog::segment_key(cx.facts.spec().id, number);
                    let purpose = ObjectPurpose::ReadLog { number, part };
                    cx.out.read_range(purpose, key, Replay::range(part));
                }
                None
            }
        }
    }

    /// Takes the result of reading a part of a segment; `None` if the segment does not exist.
    pub fn handle_part(&mut self, number: u64, part: Part, data: Option<Bytes>) {
        if let Some(replay) = self.replay() {
            replay.handle(number, part, data.ok_or(GetError::NotFound));
        }
    }

    /// The engine cannot apply that segment yet: a later step returns it again.
    pub fn put_back(&mut self, segment: Box<Segment>) {
        if let Some(replay) = self.replay() {
            replay.put_back(segment);
        }
    }

    /// The number of segments that the reader has read and returned.
    pub fn replayed(&self) -> u64 {
        match &self.phase {
            Phase::Opening(Opening::Replay(replay)) | Phase::CatchingUp(replay) => replay.applied,
            _ => 0,
        }
    }

    /// The engine has applied a segment, from this reader or its own put.
    pub fn applied(&mut self, facts: &Facts, segment: &Segment) {
        self.end.moved(facts.incarnation(), segment);
    }

    /// The engine gives up its segments on their way, the last of them with that counter.
    pub fn disown(&mut self, counter: u64) {
        self.end.disown(counter);
    }

    /// Whether the next segment is the first one of this engine after one of another.
    pub fn begins(&self) -> bool {
        !self.end.wrote_last()
    }

    /// Whether that was the last segment that an engine of a snapshot reads, and if so, whether it
    /// took the snapshot.
    pub fn snapshot_reached(&self, log: &LogState) -> Option<bool> {
        let snapshot = self.snapshot.as_ref().filter(|snapshot| snapshot.is_last(log))?;
        Some(snapshot.is_taken(log))
    }

    /// No segment follows, or no valid one.
    pub fn ended(
        &mut self,
        cx: &mut Context<'_>,
        applied: u64,
        outcome: Result<(), OpenError>,
    ) -> LogEnded {
        if applied == 0 && self.end.wrote_last() && outcome.is_ok() {
            return LogEnded::Ended(applied);
        }
        let base = self.replay().map_or(cx.log.number, |replay| replay.base());
        self.end.ends(base, applied, outcome);
        cx.out.list(ObjectPurpose::ListEnd, catalog::root_prefix(cx.facts.spec().id));
        LogEnded::Unknown
    }

    /// Takes the list of roots at the end of the log.
    pub fn end_listed(&mut self, facts: &Facts, log: &LogState, list: &[ObjectMeta]) -> LogEnded {
        let newest = roots::names(self.source(facts).id, list).pop();
        let opening = self.is_opening();
        match self.end.listed(newest, log.number, opening) {
            None => LogEnded::Unknown,
            Some(EndFound::WentOn) => LogEnded::LeftBehind,
            Some(EndFound::End { outcome: Ok(()), .. }) if opening && facts.is_readonly() => {
                LogEnded::Failed(OpenError::NoSnapshot)
            }
            Some(EndFound::End { outcome: Ok(()), applied }) => LogEnded::Ended(applied),
            Some(EndFound::End { outcome: Err(error), .. }) => LogEnded::Failed(error),
        }
    }

    /// The log ends there, after this number of segments: the volume continues.
    pub fn resume(&mut self, cx: &mut Context<'_>, applied: u64) -> Resumed {
        // A log that has failed stays so.
        if self.failed().is_some() {
            return Resumed::Opened(VecDeque::new());
        }
        match std::mem::replace(&mut self.phase, Phase::Running) {
            Phase::Opening(_) => {
                let end = cx.log.number;
                if let Some((number, key)) = self.must_reach.take()
                    && end < number
                {
                    return Resumed::Failed(OpenError::Truncated { key, number, end });
                }
                cx.out.event(Event::Opened {
                    segments: end,
                    replayed: applied,
                    epoch: cx.log.epoch(),
                    committed: cx.log.committed,
                });
                Resumed::Opened(self.take_held())
            }
            Phase::CatchingUp(_) => Resumed::CaughtUp,
            Phase::Running | Phase::Failed(_) => Resumed::Opened(VecDeque::new()),
        }
    }
}
