//! The emulator's counters, and its lateness.

use super::line::{BackgroundCount, Nanos};
use serde::Serialize;

/// How many of each error, to a microsecond.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    max: Nanos,
}

/// Errors of this many microseconds and more count as this.
const LARGEST_US: usize = 10_000;

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: vec![0; LARGEST_US + 1], total: 0, max: 0 }
    }
}

impl Histogram {
    /// Counts one.
    pub fn record(&mut self, error: Nanos) {
        self.counts[((error / 1000) as usize).min(LARGEST_US)] += 1;
        self.total += 1;
        self.max = self.max.max(error);
    }

    /// How many there were.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The error that a share `q` does not exceed, in microseconds; 0 of nothing.
    #[must_use]
    pub fn quantile_us(&self, q: f64) -> f64 {
        let wanted = (self.total as f64 * q).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (us, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return us as f64;
            }
        }
        0.0
    }

    /// The largest, in microseconds.
    #[must_use]
    pub fn max_us(&self) -> f64 {
        self.max as f64 / 1000.0
    }
}

/// The counts of one direction since the last mark.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// Packets that arrived at the line, as on the wire.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets delivered.
    pub delivered: u64,
    /// Their bytes.
    pub delivered_bytes: u64,
    /// Lost at random, in bursts or not.
    pub lost: u64,
    /// Dropped at the bottleneck.
    pub queue_drops: u64,
    /// Dropped because the line was down.
    pub outage_drops: u64,
    /// Overtaken.
    pub reordered: u64,
    /// Reads from, and writes to, the devices: super-packets count once.
    pub reads: u64,
    /// See `reads`.
    pub writes: u64,
    /// Dropped because more was on its way than the emulator holds.
    pub overflow: u64,
    /// Not taken by the receiving device.
    pub refused: u64,
    /// The lateness of deliveries.
    pub lateness: Histogram,
    /// Background traffic.
    pub background: BackgroundCount,
}

/// One direction, since the last [`super::Wan::mark`].
#[derive(Clone, Debug, Default, Serialize)]
pub struct LineReport {
    /// Packets that arrived at the line, as on the wire; and their bytes, IP headers included.
    pub packets: u64,
    /// See `packets`.
    pub bytes: u64,
    /// Delivered packets, and their bytes.
    pub delivered: u64,
    /// See `delivered`.
    pub delivered_bytes: u64,
    /// Packets lost at random, in bursts or not.
    pub lost: u64,
    /// Packets dropped at the bottleneck's full queue.
    pub queue_drops: u64,
    /// Packets dropped during outages.
    pub outage_drops: u64,
    /// Packets that the model reordered.
    pub reordered: u64,
    /// Background packets that arrived at the bottleneck, their bytes, and how many found its queue
    /// full.
    pub background: BackgroundCount,
    /// The lateness of deliveries, in microseconds: median, 99th percentile, largest.
    pub delay_error_p50_us: f64,
    /// See `delay_error_p50_us`.
    pub delay_error_p99_us: f64,
    /// See `delay_error_p50_us`.
    pub delay_error_max_us: f64,
    /// Probe packets that went from one side to the other, and by how much their delay was larger
    /// than the line's, in microseconds.
    pub probes: u64,
    /// See `probes`.
    pub probe_error_p50_us: f64,
    /// See `probes`.
    pub probe_error_p99_us: f64,
    /// See `probes`.
    pub probe_error_max_us: f64,
}

impl LineReport {
    /// From counters and probes.
    #[must_use]
    pub fn new(from: &Counters, probe: &Histogram) -> LineReport {
        LineReport {
            packets: from.packets,
            bytes: from.bytes,
            delivered: from.delivered,
            delivered_bytes: from.delivered_bytes,
            lost: from.lost,
            queue_drops: from.queue_drops,
            outage_drops: from.outage_drops,
            reordered: from.reordered,
            background: from.background,
            delay_error_p50_us: from.lateness.quantile_us(0.50),
            delay_error_p99_us: from.lateness.quantile_us(0.99),
            delay_error_max_us: from.lateness.max_us(),
            probes: probe.total(),
            probe_error_p50_us: probe.quantile_us(0.50),
            probe_error_p99_us: probe.quantile_us(0.99),
            probe_error_max_us: probe.max_us(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles() {
        let mut histogram = Histogram::default();
        assert!(histogram.quantile_us(0.5) < 1e-9);
        for us in 1..=100 {
            histogram.record(us * 1000);
        }
        histogram.record(1_000_000_000);
        assert!((histogram.quantile_us(0.5) - 51.0).abs() < 1e-9);
        assert!((histogram.quantile_us(0.99) - 100.0).abs() < 1e-9);
        assert!((histogram.max_us() - 1e6).abs() < 1e-9);
        assert!((histogram.quantile_us(1.0) - LARGEST_US as f64).abs() < 1e-9);
    }
}
