//! The losses that are congestion.

use super::recent::Ambient;
use std::time::{Duration, Instant};

/// Largest window, in bytes; flow control ends before.
const LARGEST_WINDOW: f64 = (64 << 20) as f64;
/// From this share of the bytes of an epoch on, losses are congestion. The limit is twice the usual
/// losses higher.
const LOSS_LIMIT: f64 = 0.05;
/// Fewer packets lost in an epoch mean nothing.
const LOSS_PACKETS: u64 = 8;
/// For how long the window does not rise again after such losses.
const CEILING_SPAN: Duration = Duration::from_secs(2);

/// Losses, and their meaning for the window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Losses {
    /// Losses of packets from before this time belong to an earlier window.
    from: Instant,
    /// The window does not grow beyond this until then.
    ceiling: Option<(f64, Instant)>,
    ambient: Ambient,
    queue_bytes: u64,
}

impl Losses {
    pub fn new(now: Instant) -> Losses {
        Losses { from: now, ceiling: None, ambient: Ambient::new(now), queue_bytes: 0 }
    }

    /// Losses of packets from before this time belong to an earlier window.
    pub fn from(&self) -> Instant {
        self.from
    }

    /// The window is another one from now on.
    pub fn begin(&mut self, now: Instant) {
        self.from = now;
    }

    /// The path lost bytes while the queue was long.
    pub fn lost_in_queue(&mut self, bytes: u64) {
        self.queue_bytes += bytes;
    }

    pub fn queue_bytes(&self) -> u64 {
        self.queue_bytes
    }

    /// The largest window.
    pub fn ceiling(&self) -> f64 {
        self.ceiling.map_or(LARGEST_WINDOW, |(ceiling, _)| ceiling)
    }

    /// The window does not grow beyond this for a while.
    pub fn set_ceiling(&mut self, now: Instant, window: f64) {
        self.ceiling = Some((window, now + CEILING_SPAN));
    }

    /// Whether these are only the usual losses.
    pub fn is_ambient(&self, acked: u64, lost: u64, mtu: u64) -> bool {
        let usual = self.ambient.get();
        usual >= 1e-3 && lost as f64 <= 2.0 * (usual * (acked + lost) as f64 + mtu as f64)
    }

    /// Whether an epoch lost more than the usual.
    pub fn end_epoch(&mut self, now: Instant, acked: u64, lost: u64, mtu: u64) -> bool {
        let limit = LOSS_LIMIT + 2.0 * self.ambient.get();
        self.ambient.add(now, acked, lost);
        if self.ceiling.is_some_and(|(_, until)| now >= until) {
            self.ceiling = None;
        }
        lost >= LOSS_PACKETS * mtu && lost as f64 > limit * (acked + lost) as f64
    }
}
