//! Restores damaged or missing objects from the replica, if there is one.

use bytes::Bytes;
use longhaul_api::admin::Metrics;
use longhaul_core::store::{VolumeSpec, catalog, scrub, sealed};
use longhaul_objects::{Brought, GetError, Objects as _, Replicated, StorageError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long it may take: hosts wait.
const LIMIT: Duration = Duration::from_secs(30);

/// Brings objects back, and counts.
#[derive(Clone)]
pub struct Repair {
    replicated: Arc<Replicated>,
    counts: Arc<RepairCounts>,
}

#[derive(Default)]
struct RepairCounts {
    repaired: AtomicU64,
    failed: AtomicU64,
}

impl Repair {
    /// Repairs from the replica of these objects.
    pub fn new(replicated: Arc<Replicated>) -> Repair {
        Repair { replicated, counts: Arc::default() }
    }

    /// Restores an object of that volume, or of a parent of it. Returns whether the object has its
    /// content again. Returns `false` at once without a replica, or if no read works here.
    pub async fn object(&self, spec: &VolumeSpec, key: &str) -> bool {
        let Some((id, _)) = catalog::parse_volume_key(key) else { return false };
        let probe = catalog::name_key(&spec.name);
        if !self.replicated.is_active()
            || matches!(self.replicated.get(&probe, None).await, Err(GetError::Failed(_)))
        {
            return false;
        }
        let spec = VolumeSpec { id, ..spec.clone() };
        // An object without a checksum must not replace anything.
        let is_sound = |data: &Bytes| {
            let data = match sealed::is_sealed(key) {
                true => sealed::open(key, data).ok(),
                false => Some(data.clone()),
            };
            data.is_some_and(|data| scrub::verify(&spec, key, &data) == Some(Ok(())))
        };
        let back = tokio::time::timeout(LIMIT, self.replicated.bring_back(key, is_sound)).await;
        let late = || {
            let why = format!("not within {} s", LIMIT.as_secs());
            Brought::Failed(StorageError::unavailable(why))
        };
        let why = match back.unwrap_or_else(|_| late()) {
            Brought::Back => {
                self.counts.repaired.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(
                    "{key} was damaged or missing, and has been brought back from the replica"
                );
                return true;
            }
            Brought::NoPlace => return false,
            Brought::Missing => "the replica does not have it".to_owned(),
            Brought::Unsound => "the object of the replica is damaged, too".to_owned(),
            Brought::Failed(error) => error.to_string(),
        };
        self.counts.failed.fetch_add(1, Ordering::Relaxed);
        tracing::error!("{key} cannot be brought back from the replica: {why}");
        false
    }

    /// For Prometheus.
    pub fn metrics(&self, out: &mut Metrics) {
        let value = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64;
        let help = "Objects that were damaged or missing, and were brought back from the replica.";
        let repaired = value(&self.counts.repaired);
        out.single("longhaul_store_repaired_objects_total", "counter", help, repaired);
        let help = "Times that one could not be.";
        let failed = value(&self.counts.failed);
        out.single("longhaul_store_repair_failures_total", "counter", help, failed);
    }
}
