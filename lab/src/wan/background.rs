//! Other people's traffic: open loop, without back-off after losses.
//!
//! The profile is that of "Obtaining High Performance for Storage Outsourcing" (FAST 2002). The
//! rate's mean and deviation per load factor are Table 3's, on an OC-3 of 155 Mb/s. Packet sizes
//! are §3.1's (50 % ≤ 44 B, 75 % ≤ 576 B, 99 % ≤ 1500 B). On a line of another rate both scale with
//! it. The paper does not say over which time it took the deviation. Here each [`INTERVAL`] draws a
//! new rate, and packets arrive independently of each other within it (a Poisson process).

use super::line::Nanos;
use fastrand::Rng;

/// The paper's line, in bits per second.
const PAPER_RATE: f64 = 155e6;
/// How long a rate is kept: guessed, short against a run and long against a queue.
const INTERVAL: Nanos = 100_000_000;
/// Table 3: load factor in %, mean of the rate in Mb/s, its standard deviation in Mb/s.
const TABLE: [(f64, f64, f64); 11] = [
    (0.0, 0.0, 0.0),
    (20.0, 31.0, 9.8),
    (30.0, 40.0, 11.7),
    (35.0, 43.0, 12.3),
    (40.0, 56.0, 12.7),
    (50.0, 76.0, 12.8),
    (55.0, 86.0, 12.8),
    (60.0, 96.0, 12.8),
    (70.0, 106.0, 12.8),
    (75.0, 110.0, 12.8),
    // Not in the table: all of the line.
    (100.0, 155.0, 12.8),
];
/// Mean size of a packet, in bytes: see [`packet_bytes`].
const MEAN_BYTES: f64 = 0.5 * 42.0 + 0.25 * 310.5 + 0.24 * 1038.5 + 0.01 * 2990.5;

/// Mean and standard deviation of the rate at a load factor from 0 to 1, on a line of `rate` bits
/// per second. Both are in bits per second.
#[must_use]
pub fn profile(load: f64, rate: u64) -> (f64, f64) {
    let load = load.clamp(0.0, 1.0) * 100.0;
    let above = TABLE.iter().position(|row| row.0 >= load).unwrap_or(TABLE.len() - 1);
    let (a, b) = (TABLE[above.saturating_sub(1)], TABLE[above]);
    let share = if b.0 > a.0 { (load - a.0) / (b.0 - a.0) } else { 1.0 };
    let scale = rate as f64 / PAPER_RATE * 1e6;
    ((a.1 + share * (b.1 - a.1)) * scale, (a.2 + share * (b.2 - a.2)) * scale)
}

/// The packets of the background, one after the other.
#[derive(Debug)]
pub struct Traffic {
    mean: f64,
    deviation: f64,
    /// Mean time between packets in this interval, in nanoseconds.
    gap: f64,
    interval_end: Nanos,
    next: Nanos,
}

impl Traffic {
    /// From `now` on.
    #[must_use]
    pub fn new(load: f64, rate: u64, now: Nanos, rng: &mut Rng) -> Traffic {
        let (mean, deviation) = profile(load, rate);
        let mut traffic = Traffic { mean, deviation, gap: 0.0, interval_end: now, next: now };
        traffic.step(rng);
        traffic
    }

    /// The next packet that arrives at or before `now`: when, and its bytes.
    pub fn poll(&mut self, now: Nanos, rng: &mut Rng) -> Option<(Nanos, u32)> {
        while self.next <= now {
            let at = self.next;
            // The end of an interval is no packet.
            let packet = at < self.interval_end;
            self.step(rng);
            if packet {
                return Some((at, packet_bytes(rng)));
            }
        }
        None
    }

    fn step(&mut self, rng: &mut Rng) {
        if self.next >= self.interval_end {
            let rate = (self.mean + self.deviation * normal(rng)).max(0.0);
            self.gap = MEAN_BYTES * 8e9 / rate;
            self.interval_end = self.next + INTERVAL;
        }
        // Exponential; `1 - f64()` is never 0. Past the interval's end the rate is another: the
        // process has no memory, so it starts anew there.
        let gap = -(1.0 - rng.f64()).ln() * self.gap;
        self.next = self.next.saturating_add(gap as Nanos).min(self.interval_end);
    }
}

/// The size of a packet, with the paper's quantiles; the last hundredth is larger than an
/// Ethernet's.
fn packet_bytes(rng: &mut Rng) -> u32 {
    match rng.u32(0..100) {
        0..50 => rng.u32(40..=44),
        50..75 => rng.u32(45..=576),
        75..99 => rng.u32(577..=1500),
        _ => rng.u32(1501..=4480),
    }
}

/// A standard normal number (Box and Muller).
fn normal(rng: &mut Rng) -> f64 {
    (-2.0 * (1.0 - rng.f64()).ln()).sqrt() * (std::f64::consts::TAU * rng.f64()).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profile_is_the_papers() {
        let (mean, deviation) = profile(0.7, 155_000_000);
        assert!((mean - 106e6).abs() < 1.0 && (deviation - 12.8e6).abs() < 1.0);
        let (mean, _) = profile(0.45, 155_000_000);
        assert!((mean - 66e6).abs() < 1.0);
        let (mean, _) = profile(0.7, 1_550_000_000);
        assert!((mean - 1060e6).abs() < 10.0);
        assert!(profile(0.0, 155_000_000).0 < 1e-9);
    }

    #[test]
    fn sizes_have_the_papers_quantiles_and_the_mean_we_count_with() {
        let mut rng = Rng::with_seed(1);
        let sizes: Vec<u32> = (0..400_000).map(|_| packet_bytes(&mut rng)).collect();
        let share = |limit: u32| {
            sizes.iter().filter(|size| **size <= limit).count() as f64 / sizes.len() as f64
        };
        assert!((share(44) - 0.50).abs() < 0.005);
        assert!((share(576) - 0.75).abs() < 0.005);
        assert!((share(1500) - 0.99).abs() < 0.005);
        let mean = sizes.iter().map(|size| f64::from(*size)).sum::<f64>() / sizes.len() as f64;
        assert!((mean / MEAN_BYTES - 1.0).abs() < 0.01, "{mean}");
    }

    #[test]
    fn rate_has_the_profiles_mean_and_deviation() {
        for load in [0.2, 0.5, 0.7] {
            let mut rng = Rng::with_seed(2);
            let mut traffic = Traffic::new(load, 155_000_000, 0, &mut rng);
            let mut rates = Vec::new();
            for interval in 1..=600 {
                let mut bytes = 0;
                while let Some((_, size)) = traffic.poll(interval * INTERVAL - 1, &mut rng) {
                    bytes += u64::from(size);
                }
                rates.push(bytes as f64 * 8e9 / INTERVAL as f64);
            }
            let mean = rates.iter().sum::<f64>() / rates.len() as f64;
            let squares = rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>();
            let deviation = (squares / rates.len() as f64).sqrt();
            let (wanted, spread) = profile(load, 155_000_000);
            assert!((mean / wanted - 1.0).abs() < 0.04, "{load}: {mean}");
            assert!((deviation / spread - 1.0).abs() < 0.12, "{load}: {deviation}");
        }
    }
}
