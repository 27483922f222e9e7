//! The clock of the actor and of the engines, and their counters.

use super::super::view::Counts;
use longhaul_core::block::Time;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// See the module. Clones share the counters.
#[derive(Clone)]
pub(super) struct Meter {
    counts: Arc<Mutex<Counts>>,
    origin: Instant,
}

impl Meter {
    pub fn new() -> Meter {
        Meter { counts: Arc::default(), origin: Instant::now() }
    }

    pub fn now(&self) -> Time {
        Time(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// For a moment.
    pub fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
