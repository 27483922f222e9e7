//! The window of a CUBIC flow, RFC 9438.
//!
//! A loss takes a fifth from the window instead of three tenths. Packets of this link leave in
//! bursts of ten. They find a full queue more often than those of a TCP flow that sends with each
//! acknowledgment. With the RFC's factor, this link gets a smaller share on the bench.

use std::time::Instant;

const C: f64 = 0.4;
const BETA: f64 = 0.8;
/// How a Reno flow grows that backs off to [`BETA`] (§4.3), in packets a round trip.
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// The state that decides the window, besides the window itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cubic {
    /// Window at the last congestion, in bytes.
    most: f64,
    /// Seconds until the window reaches that again.
    k: f64,
    since: Instant,
    /// Window of a flow that grows as Reno does.
    reno: f64,
    slow_start: bool,
}

impl Cubic {
    /// Begins with a window; `slow_start`: doubles it every round trip until the first congestion.
    pub fn new(now: Instant, window: f64, slow_start: bool) -> Cubic {
        Cubic { most: window, k: 0.0, since: now, reno: window, slow_start }
    }

    /// The window after the arrival of `bytes`, `rtt` seconds after the sender sent them.
    pub fn grown(&mut self, now: Instant, window: f64, bytes: f64, rtt: f64, mtu: f64) -> f64 {
        if self.slow_start {
            return window + bytes;
        }
        self.reno += ALPHA * mtu * bytes / window;
        let t = now.saturating_duration_since(self.since).as_secs_f64() + rtt - self.k;
        let target = (self.most + C * t * t * t * mtu).clamp(window, 1.5 * window);
        (window + (target - window) * bytes / window).max(self.reno)
    }

    /// The window after congestion.
    pub fn shrunk(&mut self, now: Instant, window: f64, mtu: f64) -> f64 {
        let smaller = window * BETA;
        // Fast convergence, §4.7.
        self.most = if window < self.most { window * (1.0 + BETA) / 2.0 } else { window };
        self.k = ((self.most - smaller).max(0.0) / mtu / C).cbrt();
        self.since = now;
        self.reno = smaller;
        self.slow_start = false;
        smaller
    }

    /// Whether there was no congestion yet.
    pub fn is_slow_start(&self) -> bool {
        self.slow_start
    }
}
