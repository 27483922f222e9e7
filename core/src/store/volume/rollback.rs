//! Rolling back: a segment makes the map that of a snapshot, and what the segments since then say is no longer part of it.
//!
//! Like a snapshot it is a fact of the log, and names the segment that took the snapshot, not an object: which object
//! has the map the newest root says. Whoever applies the segment finds the snapshot set aside, if its map is newer than
//! the levels, or else reads its root; then the levels are set aside as a table would be, and take their place
//! once what was set aside before has been written.
//!
//! A root that is not there any more was deleted by who has written a newer one of the volume: the log is applied
//! all the same, and lookups wait for that one.

use super::super::OpenError;
use super::super::catalog::{self, RootName};
use super::super::map::levels::Levels;
use super::super::map::table::Table;
use super::super::map::tree::Tree;
use super::super::object::{Copies, ObjectOperation};
use super::super::root::Pins;
use super::super::segment::{Segment, SegmentKind};
use super::opening::Opening;
use super::{Phase, Purpose, Volume};
use bytes::Bytes;

/// Roots of snapshots that are read for rolling back.
#[derive(Default)]
pub(super) struct Rolling {
    reading: Option<RootName>,
    /// The last one read, and what it says; nothing if it is not there or damaged.
    read: Option<(RootName, Option<Levels>)>,
    /// One that was not there.
    missed: Option<RootName>,
    /// A newer root is to be looked for.
    pub stale: bool,
    /// The segment that is being put exists, and waits for a root to be read.
    pub exists: bool,
    /// What the segment to be applied makes the map, unless that is set aside.
    levels: Option<Levels>,
}

/// Where the map of a snapshot is.
#[derive(Clone, Debug)]
pub(super) enum Base {
    /// Set aside.
    Aside,
    Levels(Levels),
    /// It will be known.
    Wait,
    Missing(Option<RootName>),
}

impl Volume {
    /// Where the map of the snapshot of that segment is, by the present map; begins to read it if that is to be.
    pub(super) fn base_of(&mut self, from: u64) -> Base {
        if self.tree.is_set_aside(from) {
            return Base::Aside;
        }
        match self.upkeep.pins.get(&from) {
            Some(pin) => self.base_in(*pin),
            None if self.upkeep.is_pinning() => Base::Wait,
            None if self.upkeep.through() == from => Base::Levels(self.tree.levels().clone()),
            None => Base::Missing(None),
        }
    }

    /// What that root of a snapshot says.
    fn base_in(&mut self, pin: RootName) -> Base {
        match &self.rolling.read {
            Some((name, Some(levels))) if *name == pin => return Base::Levels(levels.clone()),
            Some((name, None)) if *name == pin => {
                self.rolling.read = None;
                return Base::Missing(Some(pin));
            }
            _ => {}
        }
        if self.rolling.reading.is_none() {
            self.rolling.reading = Some(pin);
            let key = catalog::pin_key(self.spec.id, pin);
            let operation = ObjectOperation::Get { key, range: None, copies: Copies::Refused };
            self.book.issue(Purpose::ReadBase(pin), operation);
        }
        Base::Wait
    }

    /// Whether [`Volume::base_of`] has an answer; begins to look for one if not.
    pub(super) fn is_base_known(&mut self, from: u64) -> bool {
        if self.tree.is_set_aside(from) {
            return true;
        }
        match self.upkeep.pins.get(&from).copied() {
            Some(pin) if self.rolling.read.as_ref().is_some_and(|(name, _)| *name == pin) => true,
            Some(pin) => {
                let _ = self.base_in(pin);
                false
            }
            None => !self.upkeep.is_pinning(),
        }
    }

    /// What reading such a root gave.
    pub(super) fn base_read(&mut self, pin: RootName, data: Option<Bytes>) {
        self.rolling.reading = None;
        let root = if data.is_some() { self.parse_pin(pin, data) } else { None };
        self.rolling.read = Some((pin, root.map(|root| root.levels)));
    }

    /// Whether a segment that exists can be applied now. If not, it will be.
    pub(super) fn may_apply(&mut self, segment: &Segment) -> bool {
        if segment.header.kind != SegmentKind::Rollback {
            return true;
        }
        let Some(from) = segment.footer.note.as_ref().map(|note| note.segment) else { return true };
        let opening = matches!(self.phase, Phase::Opening(_));
        self.rolling.levels = match self.base_of(from) {
            Base::Wait => return false,
            Base::Levels(levels) => Some(levels),
            Base::Aside => None,
            Base::Missing(pin) if opening => {
                self.open_anew(pin);
                return false;
            }
            Base::Missing(_) => {
                self.rolling.stale = true;
                None
            }
        };
        true
    }

    /// The segment has been applied to the state.
    pub(super) fn roll_back_by(&mut self, segment: &Segment) {
        let Some(note) = &segment.footer.note else { return };
        let levels = self.rolling.levels.take();
        self.rolling.read = None;
        let pages = &mut *self.config.pages.lock();
        self.tree.roll_back(segment.header.number, note.segment, levels, pages);
    }

    /// A root names one of a snapshot that is not there: there is a newer one.
    fn open_anew(&mut self, pin: Option<RootName>) {
        if pin.is_none() || self.rolling.missed == pin {
            return self.base_lost(pin);
        }
        self.rolling.missed = pin;
        {
            let pages = &mut *self.config.pages.lock();
            self.tree.load(Table::new(), pages);
        }
        self.tree = Tree::new(self.config.map, self.spec.id, 0, Levels::default());
        self.upkeep.begin_again();
        self.phase = Phase::Opening(Opening::Roots);
        self.list_roots();
    }

    /// A root of a snapshot is not there that a root of the volume names: there should be a newer one.
    pub(super) fn base_missing(&mut self, pin: Option<RootName>, claimed: Option<u64>) {
        if pin.is_none() || self.rolling.missed == pin {
            return self.base_lost(pin);
        }
        self.rolling.missed = pin;
        self.look_for_roots(claimed);
    }

    /// The map of a snapshot that the volume was rolled back to is not to be had.
    pub(super) fn base_lost(&mut self, pin: Option<RootName>) {
        let key = match (pin, self.upkeep.newest) {
            (Some(pin), _) => catalog::pin_key(self.spec.id, pin),
            (None, Some(newest)) => catalog::root_key(self.spec.id, newest),
            (None, None) => catalog::root_prefix(self.spec.id),
        };
        let reason = "the volume was rolled back to a snapshot whose root is not there".to_owned();
        self.fail(OpenError::Damaged { key, reason });
    }

    /// Where the map of the snapshot of that segment is, by a root that is to be gone on from.
    pub(super) fn base_by(&mut self, pins: &Pins, from: u64) -> Base {
        match pins.get(&from) {
            Some(pin) => self.base_in(*pin),
            None => Base::Missing(None),
        }
    }
}
