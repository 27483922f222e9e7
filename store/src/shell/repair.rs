//! What engines find damaged or missing is brought back from the second place, while they wait.

use super::{Outcome, Shell};
use longhaul_core::block::VolumeId;
use longhaul_core::store::{Event, OpenError, ReplicaDurability, catalog};
use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// What could not be brought back is not tried again before that.
const AGAIN: Duration = Duration::from_secs(60);
/// Segments at the end of a log that are brought back for one opening.
const SEGMENTS_MAX: u64 = 4096;

/// Objects that are being brought back, and those that could not be.
#[derive(Default)]
pub(super) struct Repairs {
    /// With the engines that are to be told.
    under_way: HashMap<String, BTreeSet<VolumeId>>,
    failed: HashMap<String, Instant>,
}

impl Shell {
    /// Brings back what an engine says is damaged or missing, if there is a second place.
    pub(super) fn repair(&mut self, id: VolumeId, event: &Event) {
        let Some(engine) = self.engines.get(&id) else { return };
        if engine.volume.replica() == ReplicaDurability::None {
            return;
        }
        let spec = engine.volume.spec().clone();
        self.repairs.failed.retain(|_, at| at.elapsed() < AGAIN);
        for key in objects_of(event) {
            let waiting = self.repairs.under_way.entry(key.clone()).or_default();
            let begun = !waiting.is_empty();
            waiting.insert(id);
            if begun {
                continue;
            }
            let failed = self.repairs.failed.contains_key(&key);
            let (repair, outcomes) = (self.keeper.repair().clone(), self.outcomes.0.clone());
            let spec = spec.clone();
            tokio::spawn(async move {
                let repaired = !failed && repair.object(&spec, &key).await;
                let _ = outcomes.send(Outcome::Repaired(key, repaired));
            });
        }
    }

    /// An object has been brought back, or could not be.
    pub(super) fn repaired(&mut self, key: String, repaired: bool) {
        let now = self.now();
        let waiting = self.repairs.under_way.remove(&key).unwrap_or_default();
        for id in waiting {
            let more = self.repairs.under_way.values().any(|waiting| waiting.contains(&id));
            let Some(engine) = self.engines.get_mut(&id) else { continue };
            engine.repaired |= repaired && !more;
            engine.volume.handle_repaired(now, &key, repaired);
            self.drive(id);
        }
        if !repaired {
            self.repairs.failed.entry(key).or_insert_with(Instant::now);
        }
    }
}

/// Whether an event says that something is damaged or missing.
pub(super) fn may_concern(event: &Event) -> bool {
    !objects_of(event).is_empty()
}

/// The objects that an event says are damaged or missing.
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
