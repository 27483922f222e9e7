//! The volumes that commands attached: they are attached again after a restart.

use crate::state::StateDir;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Their names, as the state directory has them.
pub(super) struct RememberedVolumes {
    state: Arc<StateDir>,
    names: RefCell<BTreeSet<String>>,
}

impl RememberedVolumes {
    /// Nothing was read yet.
    pub fn new(state: Arc<StateDir>) -> RememberedVolumes {
        RememberedVolumes { state, names: RefCell::default() }
    }

    /// Reads the names.
    pub fn load(&self) -> BTreeSet<String> {
        let names = self.state.attached().unwrap_or_else(|error| {
            tracing::error!("{error:#}: attach the volumes again that commands had attached");
            BTreeSet::new()
        });
        self.names.replace(names.clone());
        names
    }

    /// Whether a name is one of them.
    pub fn contains(&self, name: &str) -> bool {
        self.names.borrow().contains(name)
    }

    /// Adds a name, or removes it.
    pub fn set(&self, name: &str, attached: bool) {
        let mut names = self.names.borrow_mut();
        let changed = if attached { names.insert(name.to_owned()) } else { names.remove(name) };
        if changed && let Err(error) = self.state.save_attached(&names) {
            let what = if attached { "will not be" } else { "will be" };
            tracing::warn!(volume = name, "it {what} attached at the next start: {error:#}");
        }
    }
}
