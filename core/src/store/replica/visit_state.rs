//! The progress of a visit: the objects that it has found, and its next step.

use super::super::catalog;
use super::site::{Site, StreamId};
use super::status::Status;
use crate::block::VolumeId;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A visit under way.
pub(super) struct Visit {
    /// The place of the visit in the order of operations. For the catalog, the place at which it
    /// turned to the volumes.
    pub began: u64,
    pub phase: Phase,
    /// Operations under way.
    pub under_way: usize,
    /// Keys there.
    pub away: BTreeSet<String>,
    /// Keys at home, with bytes.
    pub home: BTreeMap<String, u64>,
    /// Segments up to this one are in the replica, or nothing needs them.
    pub after: u64,
    /// The missing objects, in order, in parts. A part begins after the end of the part before.
    pub missing: VecDeque<(PutOrder, VecDeque<String>)>,
    /// Segments on their way.
    pub segments: BTreeSet<u64>,
    /// Of the catalog: what is there and not at home any more.
    pub extra: Vec<String>,
    /// For the catalog: volumes to visit first.
    pub volumes: BTreeSet<VolumeId>,
    /// Objects that the visit has put, or found to be equal.
    pub put: BTreeSet<String>,
    /// A listed object is gone.
    pub again: bool,
    /// Missing objects, and the number of them that the visit has put.
    pub counts: (u64, u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Has anybody gone on there?
    Mark,
    /// Which roots are there?
    Roots,
    /// And what else?
    Away,
    /// What is at home, of that group?
    Home(usize),
    /// Of the catalog: which volumes do those names mean that are missing?
    Names,
    /// For the catalog: visits of these volumes are in progress.
    Volumes,
    Putting,
    /// Of the catalog: what is gone at home.
    Deleting,
    /// The visit looks for the mark again: a store that took over meanwhile may have put the listed
    /// objects.
    MarkAgain,
}

/// How a visit puts the objects of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PutOrder {
    Any,
    /// One after the other.
    Serial,
    /// In order, and none while a segment that has to be there before it is on its way.
    Segments,
}

/// The purpose of an operation of a visit.
pub(super) enum VisitStep {
    Mark,
    List(Site),
    /// Reads which volume a name refers to.
    Name,
    Read,
    Put,
    Compare(Vec<Bytes>),
    Delete,
}

impl VisitStep {
    pub fn site(&self) -> Site {
        match self {
            VisitStep::List(site) => *site,
            VisitStep::Name | VisitStep::Read => Site::Home,
            VisitStep::Mark | VisitStep::Put | VisitStep::Compare(_) | VisitStep::Delete => {
                Site::Away
            }
        }
    }
}

impl Visit {
    pub fn new(began: u64) -> Visit {
        Visit {
            began,
            phase: Phase::Mark,
            under_way: 0,
            away: BTreeSet::new(),
            home: BTreeMap::new(),
            after: 0,
            missing: VecDeque::new(),
            segments: BTreeSet::new(),
            extra: Vec::new(),
            volumes: BTreeSet::new(),
            put: BTreeSet::new(),
            again: false,
            counts: (0, 0),
        }
    }

    /// The number after which it looked for segments, and those that were at home, in order.
    pub fn listed_segments(&self, id: StreamId) -> (u64, Vec<u64>) {
        let StreamId::Volume(volume) = id else { return (0, Vec::new()) };
        let prefix = catalog::segment_prefix(volume);
        let listed = self.home.keys().filter_map(|key| catalog::parse_number(&prefix, key));
        (self.after, listed.collect())
    }

    pub fn count(&self, status: &mut Status) {
        status.visiting.0 += self.counts.0;
        status.visiting.1 += self.counts.1;
        let rest = self.missing.iter().flat_map(|(_, keys)| keys);
        status.bytes += rest.filter_map(|key| self.home.get(key)).sum::<u64>();
    }
}
