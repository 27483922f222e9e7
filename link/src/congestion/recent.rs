//! Values that count for a while.

use std::time::{Duration, Instant};

/// The best value of the last one to two spans.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recent {
    better: fn(f64, f64) -> f64,
    span: Duration,
    since: Instant,
    current: Option<f64>,
    previous: Option<f64>,
}

impl Recent {
    /// `better` picks one of two, as `f64::min` does.
    pub fn new(now: Instant, span: Duration, better: fn(f64, f64) -> f64) -> Recent {
        Recent { better, span, since: now, current: None, previous: None }
    }

    /// One more.
    pub fn add(&mut self, now: Instant, value: f64) {
        if now - self.since >= self.span {
            self.previous = self.current.take();
            self.since = now;
        }
        self.current = Some(self.current.map_or(value, |best| (self.better)(best, value)));
    }

    /// The best; 0 before the first.
    pub fn get(&self) -> f64 {
        match (self.current, self.previous) {
            (Some(one), Some(other)) => (self.better)(one, other),
            (one, other) => one.or(other).unwrap_or(0.0),
        }
    }
}

/// The time for the measurement of a share of [`Ambient`], and the number of shares that count.
const SHARE_SPAN: Duration = Duration::from_secs(1);
const SHARES: usize = 8;
/// Bytes below which a share means nothing.
const SHARE_BYTES: u64 = 1 << 20;

/// The share of the bytes that the path always loses: the least of the last seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ambient {
    acked: u64,
    lost: u64,
    since: Instant,
    shares: [Option<f64>; SHARES],
}

impl Ambient {
    /// Nothing is known.
    pub fn new(now: Instant) -> Ambient {
        Ambient { acked: 0, lost: 0, since: now, shares: [None; SHARES] }
    }

    /// So many bytes arrived, and did not.
    pub fn add(&mut self, now: Instant, acked: u64, lost: u64) {
        self.acked += acked;
        self.lost += lost;
        let all = self.acked + self.lost;
        if all >= SHARE_BYTES && now - self.since >= SHARE_SPAN {
            self.shares.rotate_right(1);
            self.shares[0] = Some(self.lost as f64 / all as f64);
            *self = Ambient { acked: 0, lost: 0, since: now, shares: self.shares };
        }
    }

    /// The share, 0 to 1; 0 while it is unknown.
    pub fn get(&self) -> f64 {
        self.shares.iter().flatten().copied().reduce(f64::min).unwrap_or(0.0)
    }
}
