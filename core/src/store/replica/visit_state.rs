//! How far a visit is: what it has found, and what it does next.

use super::super::catalog;
use super::site::{Site, StreamId};
use super::status::Status;
use crate::block::VolumeId;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A visit under way.
pub(super) struct Visit {
    /// Its place in the order of what is done and begun; of the catalog, when it turned to the volumes.
    pub began: u64,
    pub phase: Phase,
    /// Operations under way.
    pub under_way: usize,
    /// Keys there.
    pub away: BTreeSet<String>,
    /// Keys at home, with bytes.
    pub home: BTreeMap<String, u64>,
    /// Segments up to this one are there, or are not needed.
    pub after: u64,
    /// What is missing, in order, in parts that begin when the one before is done, with whether one object is put after the
    /// other.
    pub missing: VecDeque<(bool, VecDeque<String>)>,
    /// Of the catalog: what is there and not at home any more.
    pub extra: Vec<String>,
    /// Of the catalog: volumes to be visited first.
    pub volumes: BTreeSet<VolumeId>,
    /// What it has put, or found to be the same.
    pub put: BTreeSet<String>,
    /// Something was listed and is gone.
    pub again: bool,
    /// Objects that were missing, and that have been put.
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
    /// Of the catalog: they are being visited.
    Volumes,
    Putting,
    /// Of the catalog: what is gone at home.
    Deleting,
    /// And has anybody gone on there since? What was listed may be theirs then.
    MarkAgain,
}

/// What an operation of a visit is for.
pub(super) enum VisitStep {
    Mark,
    List(Site),
    /// Which volume a name means.
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
            extra: Vec::new(),
            volumes: BTreeSet::new(),
            put: BTreeSet::new(),
            again: false,
            counts: (0, 0),
        }
    }

    /// The last segment that was at home when it looked.
    pub fn last_segment(&self, id: StreamId) -> u64 {
        let StreamId::Volume(volume) = id else { return 0 };
        let prefix = catalog::segment_prefix(volume);
        let listed = self.home.keys().filter_map(|key| catalog::parse_number(&prefix, key));
        listed.max().unwrap_or(0).max(self.after)
    }

    pub fn count(&self, status: &mut Status) {
        status.visiting.0 += self.counts.0;
        status.visiting.1 += self.counts.1;
        let rest = self.missing.iter().flat_map(|(_, keys)| keys);
        status.bytes += rest.filter_map(|key| self.home.get(key)).sum::<u64>();
    }
}
