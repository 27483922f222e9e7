//! The nexuses of a logical unit and the unit attention conditions that wait for them.
//!
//! Promises: each nexus that a condition concerns gets it once (SAM-5 §5.14). The list of a nexus
//! is no longer than the number of codes. The unit remembers at most [`MAX_LOST`] lost nexuses.

use super::nexus::{Nexus, NexusId};
use super::sense::code;
use std::collections::{BTreeMap, BTreeSet};

/// Lost nexuses to remember, so that they learn of the loss when they come back.
const MAX_LOST: usize = 256;

/// A nexus that is up.
#[derive(Debug)]
struct LiveNexus {
    ends: Nexus,
    /// Additional sense codes, each once, in the order of their reports.
    attentions: Vec<u16>,
}

/// The nexuses of a logical unit.
#[derive(Debug, Default)]
pub(super) struct Nexuses {
    live: BTreeMap<NexusId, LiveNexus>,
    /// Nexuses that were up before, at most [`MAX_LOST`].
    lost: BTreeSet<Nexus>,
}

impl Nexuses {
    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    pub fn contains(&self, nexus: NexusId) -> bool {
        self.live.contains_key(&nexus)
    }

    /// Adds a nexus. Its first unit attention tells whether an earlier nexus with the same ends was
    /// lost.
    pub fn add(&mut self, nexus: NexusId, ends: Nexus) {
        let again = self.lost.remove(&ends);
        let attention = if again { code::NEXUS_LOSS_OCCURRED } else { code::RESET_OCCURRED };
        self.live.insert(nexus, LiveNexus { ends, attentions: vec![attention] });
    }

    /// Removes a nexus and remembers its loss; `false` if no nexus has that name.
    pub fn lose(&mut self, nexus: NexusId) -> bool {
        let Some(live) = self.live.remove(&nexus) else { return false };
        if self.lost.len() >= MAX_LOST {
            self.lost.pop_first();
        }
        self.lost.insert(live.ends);
        true
    }

    pub fn ends(&self, nexus: NexusId) -> Option<&Nexus> {
        self.live.get(&nexus).map(|live| &live.ends)
    }

    /// Relative target port identifier of a nexus.
    pub fn relative_port(&self, nexus: NexusId) -> u16 {
        self.ends(nexus).map_or(1, |ends| ends.relative_port)
    }

    /// Establishes a unit attention condition for the nexuses for which `whom` is true. Does
    /// nothing for a nexus that has this condition already.
    pub fn establish(&mut self, code: u16, whom: impl Fn(NexusId) -> bool) {
        for (_, live) in self.live.iter_mut().filter(|(nexus, _)| whom(**nexus)) {
            // A reset implies all older conditions (SAM-5 §5.14.3).
            if code == code::DEVICE_RESET_OCCURRED {
                live.attentions.clear();
            }
            if !live.attentions.contains(&code) {
                live.attentions.push(code);
            }
        }
    }

    /// Takes the next unit attention condition to report.
    pub fn take_attention(&mut self, nexus: NexusId) -> Option<u16> {
        let attentions = &mut self.live.get_mut(&nexus)?.attentions;
        (!attentions.is_empty()).then(|| attentions.remove(0))
    }

    /// Whether a unit attention condition waits for a nexus.
    pub fn has_attention(&self, nexus: NexusId) -> bool {
        self.live.get(&nexus).is_some_and(|live| !live.attentions.is_empty())
    }

    /// The codes that wait for a nexus.
    #[cfg(test)]
    pub fn attentions(&self, nexus: NexusId) -> &[u16] {
        &self.live[&nexus].attentions
    }
}
