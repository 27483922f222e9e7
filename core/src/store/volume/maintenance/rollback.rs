//! Rolling back: a segment makes the map that of a snapshot, and what the segments since then say is no longer part of it.
//!
//! Like a snapshot it is a fact of the log, and names the segment that took the snapshot, not an object: which object
//! has the map the newest root says. Whoever applies the segment finds the snapshot set aside, if its map is newer than
//! the levels, or else reads its root; then the levels are set aside as a table would be, and take their place
//! once what was set aside before has been written.
//!
//! A root that is not there any more was deleted by who has written a newer one of the volume: the log is applied
//! all the same, and lookups wait for that one.

use super::super::outputs::Outputs;
use super::super::purpose::ObjectPurpose;
use super::super::roots;
use super::writer::MapWriter;
use crate::block::VolumeId;
use crate::store::VolumeSpec;
use crate::store::catalog::{self, RootName};
use crate::store::map::levels::Levels;
use bytes::Bytes;

/// Where the map of a snapshot is.
#[derive(Clone, Debug)]
pub(super) enum SnapshotLevels {
    /// In a table that is set aside.
    Aside,
    Levels(Levels),
    /// It will be known.
    Wait,
    Missing(Option<RootName>),
}

/// Roots of snapshots that are read for rolling back.
#[derive(Default)]
pub(super) struct RollbackRoots {
    reading: Option<RootName>,
    /// The last one read, and what it says; nothing if it is not there or damaged.
    read: Option<(RootName, Option<Levels>)>,
    /// One that was not there.
    missed: Option<RootName>,
    /// What the segment to be applied makes the map, unless that is set aside.
    levels: Option<Levels>,
}

impl RollbackRoots {
    /// Where the map of the snapshot of that segment is, by the present map; begins to read it if that is to be.
    pub fn levels_of(
        &mut self,
        map: &MapWriter,
        out: &mut Outputs,
        volume: VolumeId,
        from: u64,
    ) -> SnapshotLevels {
        if map.tree().is_set_aside(from) {
            return SnapshotLevels::Aside;
        }
        match map.roots().pin_of(from) {
            Some(pin) => self.levels_in(out, volume, pin),
            None if map.roots().is_pinning() => SnapshotLevels::Wait,
            None if map.roots().through() == from => {
                SnapshotLevels::Levels(map.tree().levels().clone())
            }
            None => SnapshotLevels::Missing(None),
        }
    }

    /// Whether [`RollbackRoots::levels_of`] has an answer; begins to look for one if not.
    pub fn is_levels_known(
        &mut self,
        map: &MapWriter,
        out: &mut Outputs,
        volume: VolumeId,
        from: u64,
    ) -> bool {
        if map.tree().is_set_aside(from) {
            return true;
        }
        match map.roots().pin_of(from) {
            Some(pin) if self.is_read(pin) => true,
            Some(pin) => {
                let _ = self.levels_in(out, volume, pin);
                false
            }
            None => !map.roots().is_pinning(),
        }
    }

    /// What that root of a snapshot says; begins to read it if that is not known.
    pub fn levels_in(
        &mut self,
        out: &mut Outputs,
        volume: VolumeId,
        pin: RootName,
    ) -> SnapshotLevels {
        match &self.read {
            Some((name, Some(levels))) if *name == pin => {
                return SnapshotLevels::Levels(levels.clone());
            }
            Some((name, None)) if *name == pin => {
                self.read = None;
                return SnapshotLevels::Missing(Some(pin));
            }
            _ => {}
        }
        if self.reading.is_none() {
            self.reading = Some(pin);
            out.read(ObjectPurpose::ReadBase(pin), catalog::pin_key(volume, pin));
        }
        SnapshotLevels::Wait
    }

    /// Whether that root has been read, or was not there.
    fn is_read(&self, pin: RootName) -> bool {
        self.read.as_ref().is_some_and(|(name, _)| *name == pin)
    }

    /// What reading the root gave; nothing if it is not there.
    pub fn handle_read(
        &mut self,
        out: &mut Outputs,
        spec: &VolumeSpec,
        pin: RootName,
        data: Option<Bytes>,
    ) {
        let root = match data {
            None => None,
            data => roots::parse_pin(out, spec, pin, data),
        };
        self.reading = None;
        self.read = Some((pin, root.map(|root| root.levels)));
    }

    /// What the segment makes the map that is to be applied next.
    pub fn prepare(&mut self, levels: Option<Levels>) {
        self.levels = levels;
    }

    /// The segment has been applied.
    pub fn take_prepared(&mut self) -> Option<Levels> {
        self.read = None;
        self.levels.take()
    }

    /// The root of a snapshot is not there although a root of the volume names it. Says whether that is new: then there is
    /// a newer root.
    pub fn misses(&mut self, pin: Option<RootName>) -> bool {
        let new = pin.is_some() && self.missed != pin;
        if new {
            self.missed = pin;
        }
        new
    }
}
