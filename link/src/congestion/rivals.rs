//! Other flows that fill the queue.

use std::time::{Duration, Instant};

/// For so long after another flow was there, a queue counts as its queue at once.
pub(super) const SUSPICION: Duration = Duration::from_secs(15);
/// For so long after that, a queue that stays does not count as a longer way.
const SHARED_SPAN: Duration = Duration::from_secs(20);
/// The decay of the longest queue, by epoch.
const LONGEST_DECAY: f64 = 0.995;

/// Knowledge about other flows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rivals {
    /// Longest queue while somebody else filled it.
    longest: f64,
    /// The last time at which another flow filled the queue, or a queue counted as a longer way.
    /// Two such queues soon after each other are rather the ups and downs of another flow.
    shared_at: Option<Instant>,
    /// The window and the time when a test found no other flow any more.
    left: Option<(f64, Instant)>,
}

impl Rivals {
    /// A startup has ended.
    pub fn start(&mut self) {
        self.longest = 0.0;
    }

    /// Longest queue while somebody else filled it, in seconds.
    pub fn longest(&self) -> f64 {
        self.longest
    }

    /// Somebody else fills the queue, which is so long.
    pub fn saw(&mut self, queue: f64) {
        self.longest = self.longest.max(queue);
    }

    /// Likewise, for an epoch.
    pub fn end_epoch(&mut self, queue: f64) {
        self.longest = (self.longest * LONGEST_DECAY).max(queue);
    }

    /// Another flow fills the queue, or the queue counts as a longer way.
    pub fn shared(&mut self, now: Instant) {
        self.shared_at = Some(now);
    }

    /// Whether somebody else filled the queue lately.
    pub fn was_shared(&self, now: Instant) -> bool {
        self.shared_at.is_some_and(|at| now - at < SHARED_SPAN)
    }

    /// A test finds nobody else any more.
    pub fn leave(&mut self, now: Instant, window: f64) {
        self.left = Some((window, now));
    }

    /// Whether that was a short while ago.
    pub fn left_lately(&self, now: Instant) -> bool {
        self.left.is_some_and(|(_, at)| now - at < SUSPICION)
    }

    /// The window then, if that was a short while ago; once.
    pub fn take_left(&mut self, now: Instant) -> Option<f64> {
        self.left.take().filter(|(_, at)| now - *at < SUSPICION).map(|(window, _)| window)
    }
}
