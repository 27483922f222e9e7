//! Known damage. Hosts get reports of it, because they may have the data in their caches.

use super::super::scrub::{FoundDamage, Scrub};
use longhaul_core::block::{Range, VolumeId};
use longhaul_core::store::Event;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// How long not to report damage again that a read found: clients may read it again and again.
const AGAIN: Duration = Duration::from_secs(60);
/// How long until the next report of known damage that reads still meet.
pub(super) const TELL_AGAIN: Duration = Duration::from_secs(3600);
/// Most findings of reads to remember.
const RECENT_MAX: usize = 64;

/// Known damage.
pub(super) struct DamageReports {
    scrub: Scrub,
    /// The findings of the scrub.
    found: mpsc::UnboundedReceiver<FoundDamage>,
    /// Recent findings of reads.
    recent: VecDeque<(Instant, String, Range)>,
}

impl DamageReports {
    pub fn new(scrub: Scrub) -> DamageReports {
        let found = scrub.reports();
        DamageReports { scrub, found, recent: VecDeque::new() }
    }

    /// The next finding of the scrub.
    pub async fn next(&mut self) -> FoundDamage {
        match self.found.recv().await {
            Some(found) => found,
            None => std::future::pending().await,
        }
    }

    /// The damaged objects of a volume, with what they hold of it.
    pub fn known(&self, volume: VolumeId) -> Vec<(String, Vec<Range>)> {
        self.scrub.known(volume)
    }

    /// Takes an engine's event of damage. Returns the object and the range, if a report is due.
    pub fn event(&mut self, event: &Event) -> Option<(String, Range)> {
        match event {
            Event::DamageTold { bytes, .. } => self.scrub.told(*bytes),
            Event::DataDamaged { key, range, .. } => {
                self.recent.retain(|(at, ..)| at.elapsed() < AGAIN);
                if self.recent.iter().any(|(_, k, r)| k == key && r == range) {
                    return None;
                }
                if self.recent.len() == RECENT_MAX {
                    self.recent.pop_front();
                }
                self.recent.push_back((Instant::now(), key.clone(), *range));
                return Some((key.clone(), *range));
            }
            _ => {}
        }
        None
    }
}
