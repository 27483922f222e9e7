//! Gives the space of journals back.

use super::blocking::blocking;
use super::state::{StateDir, VolumeFile};
use anyhow::Result;
use longhaul_core::block::VolumeId;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// How often an attach looks whether the space of its volume is free.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The volumes whose space the host is freeing.
pub struct JournalSpace {
    state: Arc<StateDir>,
    freeing: RefCell<BTreeSet<VolumeId>>,
}

impl JournalSpace {
    /// The host is freeing nothing in this state directory.
    pub fn new(state: Arc<StateDir>) -> JournalSpace {
        JournalSpace { state, freeing: RefCell::default() }
    }

    /// Frees the space that the state directory has for a volume. No task may attach it meanwhile.
    ///
    /// # Errors
    /// If a file stays.
    pub async fn free(&self, id: VolumeId, file: VolumeFile) -> Result<()> {
        self.freeing.borrow_mut().insert(id);
        let state = self.state.clone();
        let freed = blocking(move || state.free_volume(&file)).await;
        self.freeing.borrow_mut().remove(&id);
        freed
    }

    /// Resolves when nothing of a volume is left to free.
    pub async fn wait(&self, id: VolumeId) {
        while self.freeing.borrow().contains(&id) {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}
