//! Durations in buckets, as Prometheus wants them.

use std::time::Duration;

/// Upper bound of the first bucket: 2^12 ns, 4 µs.
const FIRST_BUCKET_BITS: u32 = 12;

/// Buckets with a bound; the last one is at 2^36 ns, 69 s.
const BUCKETS: usize = 25;

/// How long things took: buckets that double.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    buckets: [u64; BUCKETS + 1],
    nanos: u64,
}

impl Histogram {
    /// One more took this long.
    pub fn record(&mut self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bits = u64::BITS - nanos.saturating_sub(1).leading_zeros();
        let bucket = (bits.saturating_sub(FIRST_BUCKET_BITS) as usize).min(BUCKETS);
        self.buckets[bucket] += 1;
        self.nanos = self.nanos.saturating_add(nanos);
    }

    /// All of their time in seconds.
    pub fn seconds(&self) -> f64 {
        self.nanos as f64 / 1e9
    }

    /// For each upper bound in seconds, how many lie between the bound before and this one.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let bound = |bucket: usize| (1u64 << (FIRST_BUCKET_BITS + bucket as u32)) as f64 / 1e9;
        self.buckets[..BUCKETS].iter().enumerate().map(move |(bucket, n)| (bound(bucket), *n))
    }

    /// How many took longer than the last bound.
    pub fn above(&self) -> u64 {
        self.buckets[BUCKETS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_fall_into_the_right_bucket() {
        let mut histogram = Histogram::default();
        for nanos in [1, 4096, 4097, 8192, 8193, u64::MAX / 4] {
            histogram.record(Duration::from_nanos(nanos));
        }
        let counts: Vec<u64> = histogram.buckets().map(|(_, count)| count).collect();
        assert_eq!(counts[..4], [2, 2, 1, 0]);
        assert_eq!(histogram.buckets().next().unwrap().0, 4096e-9);
        assert_eq!(histogram.above(), 1, "the longest is beyond every bound");
    }
}
