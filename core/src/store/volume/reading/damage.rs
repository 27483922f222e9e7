//! Telling the host that has the volume attached what is damaged here: it may have that in its cache.
//!
//! An object that is damaged says of which ranges it lost the content. Of these the host is told what is still read from that
//! object, so that what it writes anew once is not asked for again. Nothing of this is kept: who finds the
//! damage, or knows of it when a host comes, says so.

use crate::block::Range;
use crate::extent::{RangeSet, Uniform};
use crate::store::map::Place;
use crate::store::moves::{Object, Placed};
use crate::wire::link::MAX_DAMAGED_RANGES;
use std::collections::VecDeque;

/// Most ranges that wait to be looked up.
const LEFT_MAX: usize = 8 * MAX_DAMAGED_RANGES;

/// Ranges of damaged objects.
#[derive(Debug, Default)]
pub(super) struct DamageReports {
    left: VecDeque<(Object, Range)>,
    looking: bool,
    found: RangeSet,
}

impl DamageReports {
    /// These ranges are to be looked up: what of them is still read from the object.
    pub fn suspect(&mut self, object: Object, ranges: impl Iterator<Item = Range>) {
        let room = LEFT_MAX - self.left.len().min(LEFT_MAX);
        self.left.extend(ranges.map(|range| (object, range)).take(room));
    }

    /// These ranges cannot be found any more, whatever the map says.
    pub fn lost(&mut self, ranges: impl Iterator<Item = Range>) {
        for range in ranges.take(MAX_DAMAGED_RANGES) {
            self.found.insert(range, Uniform(()));
        }
    }

    /// Whether a range is being looked up.
    pub fn is_looking(&self) -> bool {
        self.looking
    }

    /// The next range to look up, unless what has been found is to be told before.
    pub fn next(&mut self) -> Option<(Object, Range)> {
        let next = if self.found.len() < MAX_DAMAGED_RANGES { self.left.pop_front() } else { None };
        self.looking = next.is_some();
        next
    }

    /// Whether ranges are left to be looked up.
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

    /// What has been found.
    pub fn take(&mut self) -> RangeSet {
        std::mem::take(&mut self.found)
    }
}
