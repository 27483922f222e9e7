//! The end of a startup: the first sign of a queue.

/// Round trips that end a startup when the least of them shows a queue (RFC 9406 §4.2 has as many).
const STARTUP_SAMPLES: usize = 8;

/// Observations of a startup.
#[derive(Clone, Copy, Debug)]
pub(super) struct Startup {
    /// The last round-trip times, in seconds.
    rtts: [f64; STARTUP_SAMPLES],
    /// The largest rate, in bytes a second.
    rate: f64,
}

impl Default for Startup {
    fn default() -> Self {
        Startup { rtts: [f64::INFINITY; STARTUP_SAMPLES], rate: 0.0 }
    }
}

impl Startup {
    pub fn add(&mut self, rtt: f64, rate: Option<f64>) {
        self.rate = self.rate.max(rate.unwrap_or_default());
        self.rtts.rotate_right(1);
        self.rtts[0] = rtt;
    }

    /// The largest rate; 0 if none is known.
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// Whether the least of the last round trips shows a queue.
    pub fn has_queue(&self, base: f64) -> bool {
        let least = self.rtts.iter().copied().fold(f64::INFINITY, f64::min);
        // As RFC 9406 §4.2 has it, with a lower bound for short paths.
        let queue = (base / 8.0).clamp(2e-3, 16e-3);
        least.is_finite() && least > base + queue
    }
}
