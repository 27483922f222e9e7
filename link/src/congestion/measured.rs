//! The delay and the rate of a path, as epochs measure them.

use super::recent::Recent;
use std::time::{Duration, Instant};

/// Target of the standing queue, in seconds, at one byte a second. It falls with the root of the
/// rate: 2 ms at 20 Mb/s, which is three packets.
const TARGET_SCALE: f64 = 3.2;
/// Bounds of that, in seconds. Less than the first cannot be measured from user space.
const TARGET_BOUNDS: (f64, f64) = (0.5e-3, 5e-3);
/// How long the least round-trip time counts, once or twice over.
const BASE_SPAN: Duration = Duration::from_secs(15);
/// The same for the largest rate.
const RATE_SPAN: Duration = Duration::from_secs(10);

/// The peer may hold acknowledgments back by so many packets, and seconds. `quic.rs` asks for them.
const ACK_PACKETS: f64 = 10.0;
pub(super) const ACK_DELAY: f64 = 2e-3;

/// How much of a change that is remembered.
const NOISE_DECAY: f64 = 0.9;

/// Times in seconds, rates in bytes a second.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    base: Recent,
    most_rate: Recent,
    last_rtt: f64,
    /// Of the last epoch that has one.
    rate: f64,
    /// Of the last epoch.
    queue: f64,
    /// Mean change of that from epoch to epoch.
    noise: f64,
    /// Window of the last epoch, in bytes.
    window: f64,
}

impl Measured {
    pub fn new(now: Instant, window: f64) -> Measured {
        Measured {
            base: Recent::new(now, BASE_SPAN, f64::min),
            most_rate: Recent::new(now, RATE_SPAN, f64::max),
            last_rtt: 0.0,
            rate: 0.0,
            queue: 0.0,
            noise: 0.0,
            window,
        }
    }

    /// Least round-trip time of late.
    pub fn base(&self) -> f64 {
        self.base.get()
    }

    /// Largest rate of late.
    pub fn most_rate(&self) -> f64 {
        self.most_rate.get()
    }

    pub fn last_rtt(&self) -> f64 {
        self.last_rtt
    }

    /// Rate of the last epoch that has one.
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// Standing queue of the last epoch.
    pub fn queue(&self) -> f64 {
        self.queue
    }

    /// Mean change of the queue from epoch to epoch.
    pub fn noise(&self) -> f64 {
        self.noise
    }

    pub fn add_rtt(&mut self, now: Instant, rtt: f64) {
        self.last_rtt = rtt;
        self.base.add(now, rtt);
    }

    /// The path takes so long from now on, whatever was measured.
    pub fn set_base(&mut self, now: Instant, rtt: f64) {
        self.base = Recent::new(now, BASE_SPAN, f64::min);
        self.base.add(now, rtt);
    }

    /// The same again, and the rest of what was measured is queue.
    pub fn restore_base(&mut self, now: Instant, rtt: f64) {
        self.queue += self.base.get() - rtt;
        self.set_base(now, rtt);
    }

    /// A startup has found this rate.
    pub fn start(&mut self, now: Instant, rate: f64) {
        self.rate = rate;
        self.most_rate.add(now, rate);
    }

    /// The path may have become slower.
    pub fn forget_most_rate(&mut self, now: Instant) {
        self.most_rate = Recent::new(now, RATE_SPAN, f64::max);
        self.most_rate.add(now, self.rate);
    }

    /// An epoch has ended, with this window.
    pub fn end_epoch(&mut self, now: Instant, window: f64, least_rtt: f64, rate: Option<f64>) {
        let queue = least_rtt - self.base.get();
        // A change by our own window says nothing of the path.
        let ours = (window - self.window).abs() / self.rate.max(1.0);
        let change = ((queue - self.queue).abs() - ours).max(0.0);
        self.window = window;
        self.noise = NOISE_DECAY * self.noise + (1.0 - NOISE_DECAY) * change;
        self.queue = queue;
        if let Some(rate) = rate {
            self.rate = rate;
            self.most_rate.add(now, rate);
        }
    }

    /// Standing queue to aim at.
    pub fn target(&self, rate: f64, mtu: u64) -> f64 {
        if rate <= 0.0 {
            return TARGET_BOUNDS.1;
        }
        let scaled = TARGET_SCALE / rate.sqrt();
        scaled.clamp(TARGET_BOUNDS.0, TARGET_BOUNDS.1) + mtu as f64 / rate
    }

    /// Longest queue that a test may leave if the queue belongs to this flow, or to flows like it.
    /// `slower`: the path may have become so.
    pub fn limit(&self, slower: bool, mtu: u64) -> f64 {
        let most = self.most_rate.get();
        let rate = if slower { self.rate.max(most / 4.0) } else { most };
        let held_back = (ACK_PACKETS * mtu as f64 / rate.max(1.0)).min(ACK_DELAY);
        self.target(rate, mtu) + held_back.max(1e-3)
    }
}
