//! Snapshots and clones in the log. Each is a segment, which the engine puts in its turn like any
//! other change.
//!
//! Before that, a snapshot may wait beside the queue, so that nothing waits for it. It waits until
//! the log has the acknowledged writes of the host. It may also wait for the maps of earlier
//! snapshots, because the engine keeps only a few of them in memory.

use super::super::catalog;
use super::super::log::LogState;
use super::super::segment::Note;
use super::super::session::SessionId;
use super::super::snapshot::{MAX_CLONES, MAX_SNAPSHOTS, Snapshot};
use super::context::Context;
use super::facts::Facts;
use super::outputs::Outputs;
use super::ownership::Ownership;
use super::reply::ReplyAddress;
use crate::block::{Epoch, SECTOR_BYTES, Seq, VolumeId};
use crate::wire::link::{
    Lane, MAX_SNAPSHOTS_LISTED, Parent, SnapshotError, SnapshotInfo, SnapshotOperation,
    SnapshotReply, ToHost, VolumeError, VolumeReply,
};

/// An operation on snapshots, and who asked for it.
pub(super) struct SnapshotRequest {
    pub to: ReplyAddress,
    pub operation: SnapshotOperation,
}

/// A snapshot whose barrier the engine has requested from the host.
struct Barrier {
    number: u64,
    session: SessionId,
    epoch: Epoch,
    /// The number that has to be committed first, once the host has named it.
    seq: Option<Seq>,
    request: SnapshotRequest,
}

/// Snapshots that wait.
#[derive(Default)]
pub(super) struct SnapshotRequests {
    next: u64,
    barriers: Vec<Barrier>,
    /// Requests that wait for the write of maps.
    waiting: Vec<SnapshotRequest>,
}

fn refused(error: SnapshotError) -> VolumeError {
    VolumeError::Snapshot(error)
}

/// Answers an operation on snapshots.
pub(super) fn reply(
    out: &mut Outputs,
    to: ReplyAddress,
    result: Result<SnapshotReply, VolumeError>,
) {
    out.reply(to, result.map(VolumeReply::Snapshot));
}

/// The snapshot of that name.
pub(super) fn named<'a>(log: &'a LogState, name: &str) -> Result<&'a Snapshot, VolumeError> {
    log.snapshots.named(name).ok_or_else(|| refused(SnapshotError::NotFound))
}

/// Whether a snapshot may begin, or exists already.
pub(super) fn may_create(
    facts: &Facts,
    log: &LogState,
    name: &str,
    id: VolumeId,
) -> Result<Option<SnapshotInfo>, VolumeError> {
    let snapshots = &log.snapshots;
    catalog::check_name(name).map_err(|error| VolumeError::Invalid(error.to_string()))?;
    if let Some(there) = snapshots.named(name) {
        let same = there.id == id;
        return if same {
            Ok(Some(snapshots.info(there)))
        } else {
            Err(refused(SnapshotError::Exists))
        };
    }
    let taken = snapshots.identified(id).is_some() || snapshots.clone_of(id).is_some();
    if taken || id == VolumeId(0) || id == facts.spec().id {
        return Err(refused(SnapshotError::IdTaken));
    }
    if snapshots.len() >= MAX_SNAPSHOTS {
        return Err(refused(SnapshotError::TooMany(MAX_SNAPSHOTS as u32)));
    }
    Ok(None)
}

/// The note of the segment that takes a snapshot.
pub(super) fn taken(log: &LogState, name: &str, id: VolumeId, created: u64) -> Note {
    Note { segment: log.next_number(), id, created, name: name.to_owned() }
}

/// The segment of the snapshot for a clone; and the answer, if the log has noted the clone already.
pub(super) fn may_clone(
    facts: &Facts,
    log: &LogState,
    snapshot: &str,
    clone: &str,
    id: VolumeId,
) -> Result<(u64, Option<SnapshotReply>), VolumeError> {
    let (spec, snapshots) = (facts.spec(), &log.snapshots);
    catalog::check_name(clone).map_err(|error| VolumeError::Invalid(error.to_string()))?;
    let found = named(log, snapshot)?;
    if let Some(there) = snapshots.clone_of(id) {
        let same = there.segment == found.segment && there.name == clone;
        let reply = pinned_reply(facts, log, found.segment).filter(|_| same);
        let reply = reply.ok_or_else(|| refused(SnapshotError::IdTaken))?;
        return Ok((found.segment, Some(reply)));
    }
    let taken = snapshots.identified(id).is_some();
    if taken || id == VolumeId(0) || id == spec.id {
        return Err(refused(SnapshotError::IdTaken));
    }
    if spec.parents.len() >= catalog::MAX_PARENTS {
        return Err(refused(SnapshotError::TooDeep(catalog::MAX_PARENTS as u32)));
    }
    if snapshots.clones().len() >= MAX_CLONES {
        return Err(VolumeError::Invalid(format!(
            "the volume has {MAX_CLONES} clones, the most that there may be"
        )));
    }
    Ok((found.segment, None))
}

/// The note of the segment that rolls back to that snapshot, if the log allows the rollback.
pub(super) fn may_roll_back(
    facts: &Facts,
    log: &LogState,
    owner: &Ownership,
    snapshot: &str,
) -> Result<Note, VolumeError> {
    if let Some(host) = owner.host(facts, log) {
        return Err(VolumeError::InUse(host));
    }
    let &Snapshot { segment, id, sectors, .. } = named(log, snapshot)?;
    // The range beyond the end would hold data, and show it when the volume grows.
    if sectors > log.sectors {
        let bytes = sectors * SECTOR_BYTES;
        return Err(VolumeError::Invalid(format!(
            "the snapshot is larger than the volume: make the volume as large first ({bytes} \
             bytes), then roll back"
        )));
    }
    Ok(Note { segment, id, created: 0, name: String::new() })
}

/// The facts that a clone needs about its snapshot, the one of that segment.
fn pinned_reply(facts: &Facts, log: &LogState, segment: u64) -> Option<SnapshotReply> {
    let (spec, found) = (facts.spec(), log.snapshots.at(segment)?);
    let nearest = Parent { volume: spec.id, segment, snapshot: found.id };
    let parents = std::iter::once(nearest).chain(spec.parents.iter().copied()).collect();
    Some(SnapshotReply::Pinned { sectors: found.sectors, parents })
}

/// A page of the snapshots after that segment.
pub(super) fn list(log: &LogState, after: u64, hidden: bool) -> SnapshotReply {
    let snapshots = &log.snapshots;
    let later = |snapshot: &&Snapshot| snapshot.segment > after && (hidden || !snapshot.hidden);
    let mut found = snapshots.iter().filter(later);
    let page = found.by_ref().take(MAX_SNAPSHOTS_LISTED);
    let listed = page.map(|snapshot| snapshots.info(snapshot)).collect();
    SnapshotReply::List { snapshots: listed, more: found.next().is_some() }
}

/// The answer to an operation whose segment exists.
pub(super) fn done(
    facts: &Facts,
    log: &LogState,
    operation: &SnapshotOperation,
) -> Result<SnapshotReply, VolumeError> {
    let snapshots = &log.snapshots;
    let reply = match operation {
        SnapshotOperation::Create { snapshot, .. } => {
            snapshots.named(snapshot).map(|taken| SnapshotReply::Taken(snapshots.info(taken)))
        }
        SnapshotOperation::Clone { id, .. } => {
            snapshots.clone_of(*id).and_then(|clone| pinned_reply(facts, log, clone.segment))
        }
        SnapshotOperation::List { .. }
        | SnapshotOperation::Diff { .. }
        | SnapshotOperation::Usage { .. }
        | SnapshotOperation::Delete { .. }
        | SnapshotOperation::Rollback { .. }
        | SnapshotOperation::Forget { .. } => Some(SnapshotReply::Done),
    };
    reply.ok_or_else(|| refused(SnapshotError::NotFound))
}

impl SnapshotRequests {
    pub fn is_empty(&self) -> bool {
        self.barriers.is_empty() && self.waiting.is_empty()
    }

    /// Nobody waits for these answers.
    pub fn forget(&mut self, session: SessionId) {
        self.barriers.retain(|barrier| barrier.request.to.session != session);
        self.waiting.retain(|request| request.to.session != session);
    }

    /// Gives up all that wait.
    pub fn take(&mut self) -> impl Iterator<Item = SnapshotRequest> + use<> {
        let barriers = std::mem::take(&mut self.barriers).into_iter();
        barriers.map(|barrier| barrier.request).chain(std::mem::take(&mut self.waiting))
    }

    /// The request waits for the write of maps.
    pub fn wait_for_room(&mut self, request: SnapshotRequest) {
        self.waiting.push(request);
    }

    /// Asks the host, in its session, for everything that it has acknowledged.
    pub fn ask_barrier(
        &mut self,
        cx: &mut Context<'_>,
        session: SessionId,
        request: SnapshotRequest,
    ) {
        self.next += 1;
        let number = self.next;
        let (volume, epoch) = (cx.facts.spec().id, cx.log.epoch());
        self.barriers.push(Barrier { number, session, epoch, seq: None, request });
        cx.out.send(session, Lane::Control, ToHost::Barrier { volume, epoch, barrier: number });
    }

    /// The host says what it has acknowledged.
    pub fn handle_barrier(&mut self, session: SessionId, epoch: Epoch, number: u64, seq: Seq) {
        let same = |barrier: &&mut Barrier| {
            (barrier.number, barrier.session, barrier.epoch) == (number, session, epoch)
        };
        if let Some(barrier) = self.barriers.iter_mut().find(same) {
            barrier.seq = Some(seq);
        }
    }

    /// Those that have waited long enough for the host, whose session is `holder`: they take their
    /// place in the queue.
    pub fn reached(
        &mut self,
        cx: &mut Context<'_>,
        holder: Option<SessionId>,
    ) -> Vec<SnapshotRequest> {
        let (committed, epoch) = (cx.log.committed, cx.log.epoch());
        let mut ready = Vec::new();
        for barrier in std::mem::take(&mut self.barriers) {
            if barrier.seq.is_some_and(|seq| seq <= committed) {
                ready.push(without_barrier(barrier.request));
            } else if holder != Some(barrier.session) || epoch != barrier.epoch {
                reply(cx.out, barrier.request.to, Err(refused(SnapshotError::NoBarrier)));
            } else {
                self.barriers.push(barrier);
            }
        }
        ready
    }

    /// Those for which there is room now: they take their place in the queue.
    pub fn with_room(
        &mut self,
        mut has_room: impl FnMut(&SnapshotOperation) -> bool,
    ) -> Vec<SnapshotRequest> {
        let waiting = std::mem::take(&mut self.waiting);
        let (ready, waiting): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|request| has_room(&request.operation));
        self.waiting = waiting;
        ready.into_iter().map(without_barrier).collect()
    }
}

/// A request that waits for room has had its barrier.
fn without_barrier(request: SnapshotRequest) -> SnapshotRequest {
    let SnapshotRequest { to, operation } = request;
    let operation = match operation {
        SnapshotOperation::Create { snapshot, id, created, .. } => {
            SnapshotOperation::Create { snapshot, id, created, barrier: false }
        }
        other => other,
    };
    SnapshotRequest { to, operation }
}
