//! Known damage, of which hosts are told: they may have the data in their caches.

use super::super::scrub::{FoundDamage, Scrub};
use longhaul_core::block::{Range, VolumeId};
use longhaul_core::store::Event;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// What a read found is not told again for so long: clients may read it again and again.
const AGAIN: Duration = Duration::from_secs(60);
/// What is known is told again after so long, if it is still read from there.
pub(super) const TELL_AGAIN: Duration = Duration::from_secs(3600);
/// Most of what reads found that is remembered.
const RECENT_MAX: usize = 64;

/// What is known of damage.
pub(super) struct DamageReports {
    scrub: Scrub,
    /// What the scrub finds.
    found: mpsc::UnboundedReceiver<FoundDamage>,
    /// What reads found of late.
    recent: VecDeque<(Instant, String, Range)>,
}

impl DamageReports {
    pub fn new(scrub: Scrub) -> DamageReports {
        let found = scrub.reports();
        DamageReports { scrub, found, recent: VecDeque::new() }
    }

    /// What the scrub finds next.
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

    /// What an engine says of damage; the object and the range, if that is to be told.
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
