//! Tells the host that has the volume attached which ranges are damaged here: its cache may have
//! them.
//!
//! A damaged object lists the ranges whose content it lost. The host hears of those ranges that the
//! map still reads from that object. So the store asks for no range that the host has written anew.
//! The store keeps no list. A part that finds the damage, or knows of it when a host comes, reports
//! it.

use crate::block::Range;
use crate::extent::{RangeSet, Uniform};
use crate::store::map::Place;
use crate::store::moves::{Object, Placed};
use crate::wire::link::MAX_DAMAGED_RANGES;
use std::collections::VecDeque;

/// Most ranges that wait for their lookup.
const LEFT_MAX: usize = 8 * MAX_DAMAGED_RANGES;

/// Ranges of damaged objects.
#[derive(Debug, Default)]
pub(super) struct DamageReports {
    left: VecDeque<(Object, Range)>,
    looking: bool,
    found: RangeSet,
}

impl DamageReports {
    /// Queues these ranges for a lookup of the parts that the map still reads from the object.
    pub fn suspect(&mut self, object: Object, ranges: impl Iterator<Item = Range>) {
        let room = LEFT_MAX - self.left.len().min(LEFT_MAX);
        self.left.extend(ranges.map(|range| (object, range)).take(room));
    }

    /// No engine can find these ranges any more, whatever the map says.
    pub fn lost(&mut self, ranges: impl Iterator<Item = Range>) {
        for range in ranges.take(MAX_DAMAGED_RANGES) {
            self.found.insert(range, Uniform(()));
        }
    }

    /// Whether a lookup is in progress.
    pub fn is_looking(&self) -> bool {
        self.looking
    }

    /// The next range to look up, unless the host has to hear of found ranges first.
    pub fn next(&mut self) -> Option<(Object, Range)> {
        let next = if self.found.len() < MAX_DAMAGED_RANGES { self.left.pop_front() } else { None };
        self.looking = next.is_some();
        next
    }

    /// Whether ranges wait for their lookup.
    pub fn is_left(&self) -> bool {
        !self.left.is_empty()
    }

    /// Where a range lies of which an object lost the content.
    pub fn looked_up(&mut self, object: Object, parts: &[Placed]) {
        let hurt = |place: Option<(Object, Place)>| {
            place.is_some_and(|(other, place)| other == object && !place.is_zero())
        };
        for (part, _) in parts.iter().filter(|(_, place)| hurt(*place)) {
            self.found.insert(*part, Uniform(()));
        }
    }

    /// Takes the found ranges.
    pub fn take(&mut self) -> RangeSet {
        std::mem::take(&mut self.found)
    }
}
