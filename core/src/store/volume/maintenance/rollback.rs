//! Rolls back: a segment makes the map that of a snapshot, without the entries of the segments
//! since then.
//!
//! Like a snapshot it is a fact of the log, and names the segment that took the snapshot, not an
//! object. The newest root names the object with the map. If the map of the snapshot is newer than
//! the levels, the engine that applies the segment has the snapshot's table aside. Otherwise it
//! reads the root of the snapshot. Then it sets the levels aside like a table. They become the
//! levels of the tree once it has written the earlier tables.
//!
//! A missing root means that its deleter has written a newer root of the volume. The engine applies
//! the log all the same, and lookups wait for the newer root.

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
    /// In a table aside.
    Aside,
    Levels(Levels),
    /// The answer comes later.
    Wait,
    Missing(Option<RootName>),
}

/// Roots of snapshots that the engine reads for rollbacks.
#[derive(Default)]
pub(super) struct RollbackRoots {
    reading: Option<RootName>,
    /// The last one read, and what it says; nothing if it is not there or damaged.
    read: Option<(RootName, Option<Levels>)>,
    /// One that was not there.
    missed: Option<RootName>,
    /// The levels that the next segment asks for, unless a table aside has them.
    levels: Option<Levels>,
}

impl RollbackRoots {
    /// Where the map of the snapshot of that segment is, by the present map; begins to read it if
    /// that is to be.
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

    /// The levels of that root of a snapshot; begins to read the root if necessary.
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

    /// Whether the engine has read that root, or found it missing.
    fn is_read(&self, pin: RootName) -> bool {
        self.read.as_ref().is_some_and(|(name, _)| *name == pin)
    }

    /// Takes the result of reading the root; `None` if it does not exist.
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

    /// Keeps the levels that the next segment asks for.
    pub fn prepare(&mut self, levels: Option<Levels>) {
        self.levels = levels;
    }

    /// The engine has applied the segment.
    pub fn take_prepared(&mut self) -> Option<Levels> {
        self.read = None;
        self.levels.take()
    }

    /// The root of a snapshot is not there although a root of the volume names it. Says whether
    /// that is new: then there is a newer root.
    pub fn misses(&mut self, pin: Option<RootName>) -> bool {
        let new = pin.is_some() && self.missed != pin;
        if new {
            self.missed = pin;
        }
        new
    }
}
