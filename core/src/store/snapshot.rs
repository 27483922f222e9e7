//! Snapshots and clones, as the log of a volume knows them.
//!
//! A snapshot is a fact of the log: the content of the volume after the segment that takes it. A
//! clone is a volume that begins with that content. The log of its parent knows of the clone before
//! the clone exists, so that the parent keeps the clone's objects. It forgets the clone once the
//! clone is gone.

use super::segment::{Note, Segment, SegmentKind};
use crate::block::VolumeId;
use crate::wire::link::SnapshotInfo;
use std::sync::Arc;

/// Most snapshots of a volume, with those that only clones need.
pub const MAX_SNAPSHOTS: usize = 1 << 14;
/// Most clones of a volume.
pub const MAX_CLONES: usize = 1 << 14;

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The segment that took it: it is what the volume was after that.
    pub segment: u64,
    /// Its identity; a host reads the snapshot under it.
    pub id: VolumeId,
    /// Its name.
    pub name: String,
    /// The time of the snapshot, seconds since 1970.
    pub created: u64,
    /// Its size in sectors.
    pub sectors: u64,
    /// An operator deleted it; it stays for its clones.
    pub hidden: bool,
}

/// A clone of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloneOf {
    /// The segment of the snapshot that it began with.
    pub segment: u64,
    /// Its identity.
    pub id: VolumeId,
    /// Its name.
    pub name: String,
}

/// All snapshots and clones of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshots {
    /// In order of their segments.
    list: Vec<Arc<Snapshot>>,
    /// In order of their identities.
    clones: Vec<Arc<CloneOf>>,
}

impl Snapshots {
    /// As a root says: snapshots in order of their segments, clones in order of their identities.
    /// `None` if that cannot be.
    #[must_use]
    pub(super) fn new(list: Vec<Snapshot>, clones: Vec<CloneOf>) -> Option<Snapshots> {
        let list: Vec<Arc<Snapshot>> = list.into_iter().map(Arc::new).collect();
        let clones: Vec<Arc<CloneOf>> = clones.into_iter().map(Arc::new).collect();
        let rising = list.windows(2).all(|pair| pair[0].segment < pair[1].segment)
            && clones.windows(2).all(|pair| pair[0].id < pair[1].id);
        let snapshots = Snapshots { list, clones };
        let begun = snapshots.clones().all(|clone| snapshots.at(clone.segment).is_some());
        let few = snapshots.list.len() <= MAX_SNAPSHOTS && snapshots.clones.len() <= MAX_CLONES;
        (rising && begun && few).then_some(snapshots)
    }

    /// Snapshots in order of their segments, with those that only clones need.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Snapshot> {
        self.list.iter().map(AsRef::as_ref)
    }

    /// How many those are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Clones in order of their identities.
    pub fn clones(&self) -> impl ExactSizeIterator<Item = &CloneOf> {
        self.clones.iter().map(AsRef::as_ref)
    }

    /// The snapshot of a segment.
    #[must_use]
    pub fn at(&self, segment: u64) -> Option<&Snapshot> {
        let found = self.list.binary_search_by_key(&segment, |snapshot| snapshot.segment);
        found.ok().and_then(|at| self.list.get(at)).map(AsRef::as_ref)
    }

    /// The snapshot of that name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Snapshot> {
        self.iter().find(|snapshot| !snapshot.hidden && snapshot.name == name)
    }

    /// The snapshot of that identity, one that only clones need too.
    #[must_use]
    pub fn identified(&self, id: VolumeId) -> Option<&Snapshot> {
        self.iter().find(|snapshot| snapshot.id == id)
    }

    /// The clone of that identity.
    #[must_use]
    pub fn clone_of(&self, id: VolumeId) -> Option<&CloneOf> {
        let found = self.clones.binary_search_by_key(&id, |clone| clone.id);
        found.ok().and_then(|at| self.clones.get(at)).map(AsRef::as_ref)
    }

    /// Whether the segment, if it is about snapshots or clones, can be the next one of the log.
    ///
    /// # Errors
    /// What contradicts it.
    pub(super) fn follows(&self, segment: &Segment) -> Result<(), &'static str> {
        let Some(note) = &segment.footer.note else { return Ok(()) };
        let snapshot = self.at(note.segment).filter(|snapshot| !snapshot.hidden);
        match segment.header.kind {
            SegmentKind::Snapshot => {
                let new = note.segment == segment.header.number
                    && self.named(&note.name).is_none()
                    && self.identified(note.id).is_none();
                if !new || self.list.len() >= MAX_SNAPSHOTS {
                    return Err("it takes an impossible snapshot");
                }
            }
            SegmentKind::DeleteSnapshot | SegmentKind::Rollback
                if snapshot.is_none_or(|snapshot| snapshot.id != note.id) =>
            {
                return Err("it names a snapshot that does not exist");
            }
            SegmentKind::Clone => {
                let new = self.clone_of(note.id).is_none() && self.clones.len() < MAX_CLONES;
                if snapshot.is_none() || !new {
                    return Err("it makes an impossible clone");
                }
            }
            SegmentKind::Forget
                if self.clone_of(note.id).is_none_or(|clone| clone.segment != note.segment) =>
            {
                return Err("it names a clone that does not exist");
            }
            _ => {}
        }
        Ok(())
    }

    /// Applies the next segment of the log, of a volume of `sectors`, to the snapshots and clones.
    pub(super) fn commit(&mut self, segment: &Segment, sectors: u64) {
        let Some(note) = &segment.footer.note else { return };
        let Note { segment: number, id, created, ref name } = *note;
        match segment.header.kind {
            SegmentKind::Snapshot => {
                let (name, hidden) = (name.clone(), false);
                let snapshot = Snapshot { segment: number, id, name, created, sectors, hidden };
                self.list.push(Arc::new(snapshot));
            }
            SegmentKind::DeleteSnapshot => {
                let at = self.list.binary_search_by_key(&number, |snapshot| snapshot.segment);
                let needed = self.clones.iter().any(|clone| clone.segment == number);
                match at {
                    Ok(at) if needed => Arc::make_mut(&mut self.list[at]).hidden = true,
                    Ok(at) => drop(self.list.remove(at)),
                    Err(_) => {}
                }
            }
            SegmentKind::Clone => {
                let at = self.clones.partition_point(|clone| clone.id < id);
                let clone = CloneOf { segment: number, id, name: name.clone() };
                self.clones.insert(at, Arc::new(clone));
            }
            SegmentKind::Forget => {
                self.clones.retain(|clone| clone.id != id);
                let needed = self.clones.iter().any(|clone| clone.segment == number);
                self.list
                    .retain(|snapshot| needed || !snapshot.hidden || snapshot.segment != number);
            }
            _ => {}
        }
    }

    /// Describes a snapshot for an answer.
    #[must_use]
    pub fn info(&self, snapshot: &Snapshot) -> SnapshotInfo {
        let clones = self.clones.iter().filter(|clone| clone.segment == snapshot.segment);
        SnapshotInfo {
            name: snapshot.name.clone(),
            id: snapshot.id,
            segment: snapshot.segment,
            sectors: snapshot.sectors,
            created: snapshot.created,
            clones: clones.count() as u32,
            hidden: snapshot.hidden,
        }
    }
}
