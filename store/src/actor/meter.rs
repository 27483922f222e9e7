//! The actor's clock, its counters, and how long each piece of work takes it.

use super::super::view::Counts;
use longhaul_core::block::Time;
use std::time::{Duration, Instant};

pub(super) struct Meter {
    pub counts: Counts,
    origin: Instant,
    /// When the present piece of work began.
    begun: Instant,
    /// Time that it has spent reading objects.
    reading: Duration,
}

impl Meter {
    pub fn new() -> Meter {
        let now = Instant::now();
        Meter { counts: Counts::default(), origin: now, begun: now, reading: Duration::ZERO }
    }

    pub fn now(&self) -> Time {
        Time(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    pub fn begin_work(&mut self) {
        (self.begun, self.reading) = (Instant::now(), Duration::ZERO);
    }

    /// An object was read for the present piece of work.
    pub fn add_reading(&mut self, took: Duration) {
        self.reading += took;
    }

    pub fn end_work(&mut self) {
        self.counts.work.record(self.begun.elapsed().saturating_sub(self.reading));
    }
}
