//! Telling the host that has the volume attached what is damaged here: it may have that in its cache.
//!
//! An object that is damaged says of which ranges it lost the content. Of these the host is told what is still read from that
//! object, so that what it writes anew once is not asked for again. Nothing of this is kept: who finds the
//! damage, or knows of it when a host comes, says so.

use super::super::map::Place;
use super::super::moves::{Object, Placed};
use super::super::reads::{Request, What};
use super::super::{Event, SHELL_SESSION, catalog};
use super::Volume;
use crate::block::{Range, Time};
use crate::extent::{RangeSet, Uniform};
use crate::wire::link::{Lane, MAX_DAMAGED_RANGES, ToHost};
use std::collections::VecDeque;

/// Most ranges that wait to be looked up.
const LEFT_MAX: usize = 8 * MAX_DAMAGED_RANGES;

/// Ranges of damaged objects.
#[derive(Debug, Default)]
pub(super) struct Damages {
    left: VecDeque<(Object, Range)>,
    looking: bool,
    found: RangeSet,
}

impl Volume {
    /// An object is damaged in what it has, or had, of these ranges. With a part of the map they are what cannot be found any
    /// more. Nothing happens if nobody has the volume attached.
    pub fn handle_damaged(&mut self, now: Time, key: &str, ranges: &[Range]) {
        self.now = now;
        if self.is_readonly() || self.holder().is_none() {
            return;
        }
        let whole = Range::new(0, self.state.sectors);
        let ranges = ranges.iter().filter_map(|range| range.intersect(whole));
        match self.object_of(key) {
            Some(object) => {
                let room = LEFT_MAX - self.damages.left.len().min(LEFT_MAX);
                self.damages.left.extend(ranges.map(|range| (object, range)).take(room));
            }
            // Of another volume, or in which nothing can lie that this one reads.
            None if catalog::parse_data_key(key).is_some()
                || !key.starts_with(&catalog::volume_prefix(self.spec.id)) => {}
            None => {
                for range in ranges.take(MAX_DAMAGED_RANGES) {
                    self.damages.found.insert(range, Uniform(()));
                }
            }
        }
        if !self.damages.looking {
            self.look_up_damage();
        }
        self.advance();
    }

    /// The object of a key, if it is one that this volume may read data from.
    fn object_of(&self, key: &str) -> Option<Object> {
        if let Some((_, number)) = catalog::parse_data_key(key) {
            return (self.data_key(number) == key).then_some(Object::Own(number));
        }
        let parents = self.spec.parents.iter().map(|parent| parent.volume);
        let mut volumes = std::iter::once(self.spec.id).chain(parents);
        volumes.find_map(|volume| catalog::parse_bundle_key(volume, key)).map(Object::Bundle)
    }

    /// Looks the next range up, or says what has been found.
    fn look_up_damage(&mut self) {
        self.damages.looking = false;
        while self.damages.found.len() < MAX_DAMAGED_RANGES
            && let Some((object, range)) = self.damages.left.pop_front()
        {
            let (session, lane, what) = (SHELL_SESSION, Lane::ReadAhead, What::Damaged(object));
            // The map may have gone on since, or be being read.
            if self.check_read(session, 0, range, u64::MAX).is_ok() {
                self.damages.looking = true;
                return self.reads.push(Request {
                    session,
                    lane,
                    request: 0,
                    epoch: 0,
                    range,
                    what,
                });
            }
        }
        self.tell_damage();
        if !self.damages.left.is_empty() {
            self.look_up_damage();
        }
    }

    fn tell_damage(&mut self) {
        let found = std::mem::take(&mut self.damages.found);
        let Some(session) = self.holder().filter(|_| !found.is_empty()) else { return };
        let (volume, epoch) = (self.spec.id, self.state.epoch());
        let all: Vec<Range> = found.iter_from(0).map(|(range, _)| range).collect();
        let bytes = all.iter().map(|range| range.bytes()).sum();
        self.event(Event::DamageTold { session, ranges: all.len(), bytes });
        for ranges in all.chunks(MAX_DAMAGED_RANGES) {
            let ranges = ranges.to_vec();
            self.send(session, Lane::Control, ToHost::Damaged { volume, epoch, ranges });
        }
    }

    /// Where a range lies of which an object lost the content.
    pub(super) fn damage_looked_up(&mut self, read: Request, parts: &[Placed]) {
        let What::Damaged(object) = read.what else { return };
        let hurt = |place: Option<(Object, Place)>| {
            place.is_some_and(|(other, place)| other == object && !place.is_zero())
        };
        for (part, _) in parts.iter().filter(|(_, place)| hurt(*place)) {
            self.damages.found.insert(*part, Uniform(()));
        }
        self.look_up_damage();
    }

    /// A range could not be looked up, and is left out.
    pub(super) fn damage_not_looked_up(&mut self) {
        self.look_up_damage();
    }
}
