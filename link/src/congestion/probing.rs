//! The times at which a path is probed for more.

use std::time::{Duration, Instant};

/// How often a path is probed: shortest and longest pause; each probe that finds nothing doubles
/// it.
const PROBE_PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(8));
/// Growth of the rate from which on there may be more to come.
const RISING: f64 = 1.15;

/// When the last probe was, and what the rate has been since.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probing {
    at: Instant,
    pause: Duration,
    /// Mean of the last rates, and the least of that since the last probe.
    mean_rate: f64,
    least: f64,
}

impl Probing {
    pub fn new(now: Instant) -> Probing {
        Probing { at: now, pause: PROBE_PAUSE.1, mean_rate: 0.0, least: f64::INFINITY }
    }

    /// A startup has found this rate.
    pub fn start(&mut self, rate: f64) {
        (self.mean_rate, self.least) = (rate, rate);
    }

    /// The rate of an epoch.
    pub fn add(&mut self, rate: f64) {
        self.mean_rate += (rate - self.mean_rate) / 4.0;
        self.least = self.least.min(self.mean_rate);
    }

    pub fn mean_rate(&self) -> f64 {
        self.mean_rate
    }

    /// Whether the rate goes up between probes.
    pub fn is_rising(&self) -> bool {
        self.mean_rate >= RISING * self.least
    }

    /// Whether it is time for a probe. `promising`: there may be more.
    pub fn is_due(&self, now: Instant, competes: bool, promising: bool) -> bool {
        let shortest = PROBE_PAUSE.0 * if competes { 2 } else { 1 };
        now - self.at >= if promising { shortest } else { self.pause }
    }

    /// The rate has followed a probe, to this.
    pub fn followed(&mut self, rate: f64) {
        self.mean_rate = rate;
        self.pause = PROBE_PAUSE.0;
    }

    /// A probe has ended.
    pub fn ended(&mut self, now: Instant) {
        self.at = now;
    }

    /// A probe has ended, and found nothing more.
    pub fn found_nothing(&mut self, now: Instant) {
        self.at = now;
        self.pause = (self.pause * 2).min(PROBE_PAUSE.1);
        self.least = self.mean_rate;
    }
}
