//! The best value of a measurement lately.

use crate::block::Time;
use std::time::Duration;

/// How long a measurement counts. A guess: longer than a pause between bursts, shorter than a
/// change of path is worth waiting for.
const ESTIMATE_SPAN: Duration = Duration::from_secs(10);

/// The best value of the last one to two spans.
#[derive(Debug, Default)]
pub(super) struct Peak {
    current: u64,
    previous: u64,
    since: Time,
}

impl Peak {
    pub(super) fn add(&mut self, now: Time, value: u64) {
        if now.since(self.since) >= ESTIMATE_SPAN {
            self.previous = self.current;
            self.current = 0;
            self.since = now;
        }
        self.current = self.current.max(value);
    }

    pub(super) fn get(&self) -> u64 {
        self.current.max(self.previous)
    }
}
