//! Restores objects from the replica that engines find damaged or missing, while the engines wait.

use super::completions::Completions;
use crate::repair::Repair;
use longhaul_core::block::VolumeId;
use longhaul_core::store::{Event, OpenError, VolumeSpec, catalog};
use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// Pause before the next attempt to restore an object after a failure.
const AGAIN: Duration = Duration::from_secs(60);
/// Most segments at the end of a log to restore for one open.
const SEGMENTS_MAX: u64 = 4096;

/// The restore of an object from the replica has ended.
pub(super) struct RepairDone {
    pub key: String,
    pub repaired: bool,
}

/// Objects with a restore under way, and those whose restore failed.
pub(super) struct Repairs {
    repair: Repair,
    /// With the engines that wait.
    under_way: HashMap<String, BTreeSet<VolumeId>>,
    failed: HashMap<String, Instant>,
    done: Completions<RepairDone>,
}

impl Repairs {
    pub fn new(repair: Repair, done: Completions<RepairDone>) -> Repairs {
        Repairs { repair, under_way: HashMap::new(), failed: HashMap::new(), done }
    }

    /// Begins to restore the objects that an engine reports as damaged or missing.
    pub fn begin(&mut self, id: VolumeId, spec: &VolumeSpec, event: &Event) {
        self.failed.retain(|_, at| at.elapsed() < AGAIN);
        for key in objects_of(event) {
            let waiting = self.under_way.entry(key.clone()).or_default();
            let begun = !waiting.is_empty();
            waiting.insert(id);
            if begun {
                continue;
            }
            let failed = self.failed.contains_key(&key);
            let (repair, spec) = (self.repair.clone(), spec.clone());
            self.done.spawn(async move {
                let repaired = !failed && repair.object(&spec, &key).await;
                RepairDone { key, repaired }
            });
        }
    }

    /// The restore of an object has ended. Returns the engines that wait for it, and whether they
    /// wait for no other.
    pub fn end(&mut self, done: &RepairDone) -> Vec<(VolumeId, bool)> {
        let waiting = self.under_way.remove(&done.key).unwrap_or_default();
        if !done.repaired {
            self.failed.entry(done.key.clone()).or_insert_with(Instant::now);
        }
        let more = |id| self.under_way.values().any(|waiting| waiting.contains(&id));
        waiting.into_iter().map(|id| (id, !more(id))).collect()
    }
}

/// Whether an event reports something damaged or missing.
pub(super) fn may_concern(event: &Event) -> bool {
    !objects_of(event).is_empty()
}

/// The objects that an event reports as damaged or missing.
fn objects_of(event: &Event) -> Vec<String> {
    match event {
        Event::DataDamaged { key, .. }
        | Event::RootDamaged { key, .. }
        | Event::NotCollected { key, .. }
        | Event::Unreadable { key }
        | Event::Failed(OpenError::Missing { key } | OpenError::Damaged { key, .. }) => {
            vec![key.clone()]
        }
        Event::Failed(OpenError::Truncated { key, number, end }) => {
            let Some((volume, _)) = catalog::parse_volume_key(key) else { return Vec::new() };
            let last = (*number).min(end.saturating_add(SEGMENTS_MAX));
            (end + 1..=last).map(|number| catalog::segment_key(volume, number)).collect()
        }
        _ => Vec::new(),
    }
}
