//! Gives the space of journals back.

use super::blocking::blocking;
use super::state::{StateDir, VolumeFile};
use anyhow::Result;
use longhaul_core::block::VolumeId;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often an attach looks whether the space of its volume is free.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The volumes whose space the host is freeing. All clones are the same.
#[derive(Clone)]
pub struct JournalSpace {
    state: Arc<StateDir>,
    freeing: Arc<Mutex<BTreeSet<VolumeId>>>,
}

impl JournalSpace {
    /// The host is freeing nothing in this state directory.
    pub fn new(state: Arc<StateDir>) -> JournalSpace {
        JournalSpace { state, freeing: Arc::default() }
    }

    /// Frees the space that the state directory has for a volume. No task may attach it meanwhile.
    ///
    /// # Errors
    /// If a file stays.
    pub async fn free(&self, id: VolumeId, file: VolumeFile) -> Result<()> {
        self.freeing().insert(id);
        let state = self.state.clone();
        let freed = blocking(move || state.free_volume(&file)).await;
        self.freeing().remove(&id);
        freed
    }

    /// Resolves when nothing of a volume is left to free.
    pub async fn wait(&self, id: VolumeId) {
        while self.freeing().contains(&id) {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// A panic with the lock held leaves a set of whole entries behind.
    fn freeing(&self) -> MutexGuard<'_, BTreeSet<VolumeId>> {
        self.freeing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
