//! Snapshots and clones in the log: a segment each, put in its turn like anything that changes the log.
//!
//! A snapshot may wait before that, beside the queue, so that nobody waits for it: for what the host has acknowledged
//! to be committed, or for the maps of those before it to be written, of which only so many are kept in memory.

use super::super::SessionId;
use super::super::catalog;
use super::super::segment::{self, Note, SegmentKind};
use super::super::snapshot::{MAX_CLONES, MAX_SNAPSHOTS, Snapshot};
use super::Volume;
use super::commit::Work;
use super::rollback::Base;
use crate::block::{Epoch, SECTOR_BYTES, Seq, VolumeId};
use crate::wire::link::{
    Lane, MAX_SNAPSHOTS_LISTED, Parent, RequestId, SnapshotError, SnapshotInfo, SnapshotOperation,
    SnapshotReply, ToHost, VolumeError, VolumeReply,
};

/// Tables of snapshots that are not in fragments yet, at most, before another is taken.
const SET_ASIDE_MAX: usize = 16;

/// Who asked for something about snapshots.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub session: SessionId,
    pub lane: Lane,
    pub request: RequestId,
}

/// A snapshot that the host has been asked for.
struct Barrier {
    number: u64,
    session: SessionId,
    epoch: Epoch,
    /// What is to be committed, once the host has said that.
    seq: Option<Seq>,
    work: Work,
}

/// Snapshots that wait.
#[derive(Default)]
pub(super) struct Snapping {
    next: u64,
    barriers: Vec<Barrier>,
    /// For maps to be written.
    waiting: Vec<Work>,
}

impl Snapping {
    pub fn is_empty(&self) -> bool {
        self.barriers.is_empty() && self.waiting.is_empty()
    }

    /// Nobody waits for these answers.
    pub fn forget(&mut self, session: SessionId) {
        self.barriers.retain(|barrier| barrier.work.session() != session);
        self.waiting.retain(|work| work.session() != session);
    }

    pub fn take(&mut self) -> Vec<Work> {
        let barriers = std::mem::take(&mut self.barriers).into_iter().map(|barrier| barrier.work);
        barriers.chain(std::mem::take(&mut self.waiting)).collect()
    }
}

fn refused(error: SnapshotError) -> VolumeError {
    VolumeError::Snapshot(error)
}

impl Volume {
    fn reply_snapshot(&mut self, asked: Asked, result: Result<SnapshotReply, VolumeError>) {
        let Asked { session, lane, request } = asked;
        self.reply_volume(session, lane, request, result.map(VolumeReply::Snapshot));
    }

    fn snapshot_named(&self, name: &str) -> Result<&Snapshot, VolumeError> {
        self.state.snapshots.named(name).ok_or_else(|| refused(SnapshotError::NotFound))
    }

    /// Executes an operation whose turn has come.
    pub(super) fn begin_snapshot(&mut self, asked: Asked, operation: SnapshotOperation) {
        let begun = match &operation {
            SnapshotOperation::List { after, hidden } => {
                Ok(Err(self.list_snapshots(*after, *hidden)))
            }
            SnapshotOperation::Create { snapshot, id, created, barrier } => {
                match self.may_create(snapshot, *id) {
                    Ok(None) if *barrier && self.connected() => {
                        return self.ask_barrier(asked, operation);
                    }
                    Ok(None) if !self.has_room(&operation) => {
                        self.snapping.waiting.push(Work::Snapshot { asked, operation });
                        return;
                    }
                    Ok(None) => {
                        let segment = self.state.number + 1;
                        let (id, created, name) = (*id, *created, snapshot.clone());
                        Ok(Ok((SegmentKind::Snapshot, Note { segment, id, created, name })))
                    }
                    Ok(Some(info)) => Ok(Err(SnapshotReply::Taken(info))),
                    Err(error) => Err(error),
                }
            }
            SnapshotOperation::Delete { snapshot } => self.snapshot_named(snapshot).map(|found| {
                let &Snapshot { segment, id, .. } = found;
                let note = Note { segment, id, created: 0, name: String::new() };
                Ok((SegmentKind::DeleteSnapshot, note))
            }),
            SnapshotOperation::Clone { .. } if !self.has_room(&operation) => {
                self.snapping.waiting.push(Work::Snapshot { asked, operation });
                return;
            }
            SnapshotOperation::Clone { snapshot, clone, id } => {
                self.may_clone(snapshot, clone, *id).map(|(segment, there)| {
                    let (id, created, name) = (*id, 0, clone.clone());
                    match there {
                        Some(reply) => Err(reply),
                        None => Ok((SegmentKind::Clone, Note { segment, id, created, name })),
                    }
                })
            }
            SnapshotOperation::Forget { id } => Ok(match self.state.snapshots.clone_of(*id) {
                None => Err(SnapshotReply::Done),
                Some(clone) => {
                    let (segment, id) = (clone.segment, clone.id);
                    let note = Note { segment, id, created: 0, name: String::new() };
                    Ok((SegmentKind::Forget, note))
                }
            }),
            SnapshotOperation::Rollback { snapshot } => match self.may_roll_back(snapshot) {
                Ok(_) if !self.has_room(&operation) => {
                    self.snapping.waiting.push(Work::Snapshot { asked, operation });
                    return;
                }
                Ok(note) => Ok(Ok((SegmentKind::Rollback, note))),
                Err(error) => Err(error),
            },
            SnapshotOperation::Diff { .. } | SnapshotOperation::Usage { .. } => {
                Err(VolumeError::Invalid("several maps are needed to compare them".into()))
            }
        };
        match begun {
            Ok(Ok((kind, note))) => self.put_note(kind, note, Work::Snapshot { asked, operation }),
            Ok(Err(reply)) => self.reply_snapshot(asked, Ok(reply)),
            Err(error) => self.reply_snapshot(asked, Err(error)),
        }
    }

    fn put_note(&mut self, kind: SegmentKind, note: Note, work: Work) {
        let (committed, limit) = (self.state.committed, self.config.announce_in_segment_max);
        if kind.begins_epoch() {
            // As after accepting a loss: a journal that was delivered holds nothing that would come back.
            let (base, note) = (committed, Some(note));
            let footer = segment::Footer { base, note, ..segment::Footer::default() };
            let epoch = self.state.epoch() + 1;
            return self.put_built(kind, epoch, None, committed, footer, Vec::new(), Some(work));
        }
        let (announced, rounded) = self.state.announced.snapshot(committed, limit);
        let note = Some(note);
        let footer = segment::Footer { announced, rounded, note, ..segment::Footer::default() };
        let (epoch, host) = (self.state.epoch(), self.state.host());
        self.put_built(kind, epoch, host, committed, footer, Vec::new(), Some(work));
    }

    /// Whether a snapshot may be taken, or is there already.
    fn may_create(&self, name: &str, id: VolumeId) -> Result<Option<SnapshotInfo>, VolumeError> {
        let snapshots = &self.state.snapshots;
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
        if taken || id == VolumeId(0) || id == self.spec.id {
            return Err(refused(SnapshotError::IdTaken));
        }
        if snapshots.len() >= MAX_SNAPSHOTS {
            return Err(refused(SnapshotError::TooMany(MAX_SNAPSHOTS as u32)));
        }
        Ok(None)
    }

    /// The segment of the snapshot that a clone may be made of, and the answer if that has been noted.
    fn may_clone(
        &self,
        snapshot: &str,
        clone: &str,
        id: VolumeId,
    ) -> Result<(u64, Option<SnapshotReply>), VolumeError> {
        let snapshots = &self.state.snapshots;
        catalog::check_name(clone).map_err(|error| VolumeError::Invalid(error.to_string()))?;
        let found = self.snapshot_named(snapshot)?;
        if let Some(there) = snapshots.clone_of(id) {
            let same = there.segment == found.segment && there.name == clone;
            let reply = self.pinned_reply(found.segment).filter(|_| same);
            let reply = reply.ok_or_else(|| refused(SnapshotError::IdTaken))?;
            return Ok((found.segment, Some(reply)));
        }
        let taken = snapshots.identified(id).is_some();
        if taken || id == VolumeId(0) || id == self.spec.id {
            return Err(refused(SnapshotError::IdTaken));
        }
        if self.spec.parents.len() >= catalog::MAX_PARENTS {
            return Err(refused(SnapshotError::TooDeep(catalog::MAX_PARENTS as u32)));
        }
        if snapshots.clones().len() >= MAX_CLONES {
            return Err(VolumeError::Invalid(format!(
                "the volume has {MAX_CLONES} clones, the most that there may be"
            )));
        }
        Ok((found.segment, None))
    }

    /// What the segment says that rolls back to that snapshot; its map is read if that has not been.
    fn may_roll_back(&mut self, snapshot: &str) -> Result<Note, VolumeError> {
        if let Some(host) = self.held_by() {
            return Err(VolumeError::InUse(host));
        }
        let &Snapshot { segment, id, sectors, .. } = self.snapshot_named(snapshot)?;
        // There would be something beyond the end, to be seen when the volume grows.
        if sectors > self.state.sectors {
            let bytes = sectors * SECTOR_BYTES;
            return Err(VolumeError::Invalid(format!(
                "the snapshot is larger than the volume: make the volume as large first ({bytes} bytes), then roll back"
            )));
        }
        if let Base::Missing(_) = self.base_of(segment) {
            self.rolling.stale = true;
            let why = "the root of the snapshot is not there, or damaged; try again".to_owned();
            return Err(VolumeError::Store(why));
        }
        Ok(Note { segment, id, created: 0, name: String::new() })
    }

    /// What a clone of the snapshot of that segment has to know.
    fn pinned_reply(&self, segment: u64) -> Option<SnapshotReply> {
        let found = self.state.snapshots.at(segment)?;
        let nearest = Parent { volume: self.spec.id, segment, snapshot: found.id };
        let parents = std::iter::once(nearest).chain(self.spec.parents.iter().copied()).collect();
        Some(SnapshotReply::Pinned { sectors: found.sectors, parents })
    }

    fn list_snapshots(&self, after: u64, hidden: bool) -> SnapshotReply {
        let snapshots = &self.state.snapshots;
        let later = |snapshot: &&Snapshot| snapshot.segment > after && (hidden || !snapshot.hidden);
        let mut found = snapshots.iter().filter(later);
        let page = found.by_ref().take(MAX_SNAPSHOTS_LISTED);
        let listed = page.map(|snapshot| snapshots.info(snapshot)).collect();
        SnapshotReply::List { snapshots: listed, more: found.next().is_some() }
    }

    /// The segment of an operation exists.
    pub(super) fn snapshot_done(
        &mut self,
        asked: Asked,
        operation: &SnapshotOperation,
        closed: bool,
    ) {
        let snapshots = &self.state.snapshots;
        let reply = match operation {
            SnapshotOperation::Create { snapshot, .. } => {
                snapshots.named(snapshot).map(|taken| SnapshotReply::Taken(snapshots.info(taken)))
            }
            SnapshotOperation::Clone { id, .. } => {
                snapshots.clone_of(*id).and_then(|clone| self.pinned_reply(clone.segment))
            }
            SnapshotOperation::List { .. }
            | SnapshotOperation::Diff { .. }
            | SnapshotOperation::Usage { .. }
            | SnapshotOperation::Delete { .. }
            | SnapshotOperation::Rollback { .. }
            | SnapshotOperation::Forget { .. } => Some(SnapshotReply::Done),
        };
        if !closed {
            self.reply_snapshot(asked, reply.ok_or_else(|| refused(SnapshotError::NotFound)));
        }
    }

    /// Asks the host for everything that it has acknowledged.
    fn ask_barrier(&mut self, asked: Asked, operation: SnapshotOperation) {
        let Some(holder) = self.holder else { return };
        self.snapping.next += 1;
        let number = self.snapping.next;
        let (volume, epoch, session) = (self.spec.id, self.state.epoch(), holder.session);
        let work = Work::Snapshot { asked, operation };
        self.snapping.barriers.push(Barrier { number, session, epoch, seq: None, work });
        self.send(session, Lane::Control, ToHost::Barrier { volume, epoch, barrier: number });
    }

    /// The host says what it has acknowledged.
    pub(super) fn barrier(&mut self, session: SessionId, epoch: Epoch, number: u64, seq: Seq) {
        let same = |barrier: &&mut Barrier| {
            (barrier.number, barrier.session, barrier.epoch) == (number, session, epoch)
        };
        if let Some(barrier) = self.snapping.barriers.iter_mut().find(same) {
            barrier.seq = Some(seq);
        }
    }

    /// Those that have waited long enough take their place in the queue.
    pub(super) fn advance_snapping(&mut self) {
        if self.snapping.is_empty() {
            return;
        }
        let (committed, epoch) = (self.state.committed, self.state.epoch());
        let holder = self.holder.filter(|holder| holder.connected).map(|holder| holder.session);
        for barrier in std::mem::take(&mut self.snapping.barriers) {
            if barrier.seq.is_some_and(|seq| seq <= committed) {
                self.queue.push_back(without_barrier(barrier.work));
            } else if holder != Some(barrier.session) || epoch != barrier.epoch {
                if let Work::Snapshot { asked, .. } = barrier.work {
                    self.reply_snapshot(asked, Err(refused(SnapshotError::NoBarrier)));
                }
            } else {
                self.snapping.barriers.push(barrier);
            }
        }
        let waiting = std::mem::take(&mut self.snapping.waiting);
        for work in waiting {
            let ready = match &work {
                Work::Snapshot { operation, .. } => self.has_room(operation),
                _ => true,
            };
            if ready {
                self.queue.push_back(without_barrier(work));
            } else {
                self.snapping.waiting.push(work);
            }
        }
    }

    /// Whether what has to be written before this has been: a clone begins with what a root says, so that whoever opens it
    /// finds that.
    fn has_room(&mut self, operation: &SnapshotOperation) -> bool {
        match operation {
            SnapshotOperation::Clone { snapshot, .. } => {
                let rooted = self.upkeep.newest.map_or(0, |root| root.segment);
                let found = self.state.snapshots.named(snapshot);
                found.is_none_or(|snapshot| snapshot.segment <= rooted)
            }
            SnapshotOperation::Rollback { snapshot } => {
                let found = self.state.snapshots.named(snapshot).map(|snapshot| snapshot.segment);
                // What cannot be is refused.
                let known = found.is_none_or(|from| self.is_base_known(from));
                known && self.tree.set_aside() < SET_ASIDE_MAX
            }
            _ => self.tree.set_aside() < SET_ASIDE_MAX,
        }
    }
}

/// What waits for room has had its barrier.
fn without_barrier(work: Work) -> Work {
    match work {
        Work::Snapshot { asked, operation } => {
            let operation = match operation {
                SnapshotOperation::Create { snapshot, id, created, .. } => {
                    SnapshotOperation::Create { snapshot, id, created, barrier: false }
                }
                other => other,
            };
            Work::Snapshot { asked, operation }
        }
        other => other,
    }
}
