//! The snapshot that a read-only engine serves. The engine reads the map of the segment that took
//! the snapshot, and writes nothing.
//!
//! The map is that of the snapshot's root, which the newest root of the volume names. Until that
//! root exists, the engine reads the segments after an older root, up to the snapshot's own. The
//! volume may delete the objects of that older root when it continues. By then the snapshot's root
//! exists.

use crate::block::VolumeId;
use crate::store::catalog::RootName;
use crate::store::log::LogState;
use crate::store::root::Root;

/// The root of the snapshot whose map the engine uses.
#[derive(Debug)]
pub(super) struct SnapshotSource {
    segment: u64,
    id: VolumeId,
    /// The root of the snapshot that the map is of.
    based: Option<RootName>,
    /// The root of the read in progress, and the volume's root that names it.
    reading: Option<(RootName, RootName)>,
    /// One that was not there although a root named it.
    missed: Option<RootName>,
}

/// Where the map of the snapshot is, by a root of the volume.
pub(in super::super) enum SnapshotMap {
    /// The snapshot has no root yet: this one has to do.
    Unwritten,
    /// The snapshot does not exist any more.
    Deleted,
    /// The map is that of its root already.
    Known,
    /// In this root of the snapshot, which the engine reads next.
    In(RootName),
}

impl SnapshotSource {
    pub fn new((segment, id): (u64, VolumeId)) -> SnapshotSource {
        SnapshotSource { segment, id, based: None, reading: None, missed: None }
    }

    /// Where the map is, by the volume's root `name`.
    pub fn look(&mut self, name: RootName, root: &Root) -> SnapshotMap {
        if self.segment > root.state.number {
            return SnapshotMap::Unwritten;
        }
        let there = root.state.snapshots.at(self.segment).is_some_and(|s| s.id == self.id);
        match root.pins.get(&self.segment).filter(|_| there) {
            None => SnapshotMap::Deleted,
            Some(pin) if self.based == Some(*pin) => SnapshotMap::Known,
            Some(pin) => {
                self.reading = Some((*pin, name));
                SnapshotMap::In(*pin)
            }
        }
    }

    /// If the read in progress is for this root of the snapshot, returns the root of the volume
    /// that named it.
    pub fn take_reading(&mut self, name: RootName) -> Option<RootName> {
        self.reading.take_if(|(pin, _)| *pin == name).map(|(_, newest)| newest)
    }

    /// The root of the snapshot does not exist. Returns whether that is new: a newer root of the
    /// volume may say that the snapshot is deleted.
    pub fn misses(&mut self, name: RootName) -> bool {
        self.missed.replace(name) != Some(name)
    }

    /// The map is that of this root of the snapshot.
    pub fn based_on(&mut self, name: RootName) {
        (self.based, self.missed) = (Some(name), None);
    }

    /// Whether the engine has read the log up to the segment that took the snapshot.
    pub fn is_last(&self, log: &LogState) -> bool {
        self.segment == log.number
    }

    /// Whether the last applied segment took the snapshot.
    pub fn is_taken(&self, log: &LogState) -> bool {
        let taken = log.snapshots.at(self.segment);
        self.is_last(log) && taken.is_some_and(|taken| taken.id == self.id)
    }
}
