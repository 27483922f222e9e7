//! The volumes that commands attached: the host attaches them again after a restart.

use crate::state::StateDir;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Their names, as the state directory has them. All clones are the same.
#[derive(Clone)]
pub struct RememberedVolumes {
    state: Arc<StateDir>,
    names: Arc<Mutex<BTreeSet<String>>>,
}

impl RememberedVolumes {
    /// Has read nothing yet.
    pub fn new(state: Arc<StateDir>) -> RememberedVolumes {
        RememberedVolumes { state, names: Arc::default() }
    }

    /// Reads the names.
    pub fn load(&self) -> BTreeSet<String> {
        let names = self.state.attached().unwrap_or_else(|error| {
            tracing::error!("{error:#}: attach the volumes again that commands had attached");
            BTreeSet::new()
        });
        self.names().clone_from(&names);
        names
    }

    /// Whether a name is one of them.
    pub fn contains(&self, name: &str) -> bool {
        self.names().contains(name)
    }

    /// Adds a name, or removes it.
    pub fn set(&self, name: &str, attached: bool) {
        // The lock lasts until the file is there: the newest set goes last.
        let mut names = self.names();
        let changed = if attached { names.insert(name.to_owned()) } else { names.remove(name) };
        if changed && let Err(error) = self.state.save_attached(&names) {
            let what = if attached { "will not be" } else { "will be" };
            tracing::warn!(volume = name, "it {what} attached at the next start: {error:#}");
        }
    }

    /// A panic with the lock held leaves a set of whole names behind.
    fn names(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
