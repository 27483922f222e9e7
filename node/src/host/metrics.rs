//! Counters and latencies of a volume's requests, kept on the front thread without locks.

use longhaul_core::block::{BlockError, ReadPiece, Reply, Request, SECTOR_BYTES};
use std::time::Duration;

/// What a request was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A read.
    Read,
    /// A write, FUA or not.
    Write,
    /// A flush.
    Flush,
    /// A discard.
    Discard,
    /// A write of zeroes.
    Zero,
    /// A prefetch.
    Prefetch,
    /// A status query.
    Status,
    /// The beginning or end of a watch.
    Watch,
    /// A piece of a copy made ready by the store.
    Stage,
    /// A write of what is ready.
    WriteStaged,
}

impl Kind {
    /// All kinds with their label, in the order of their numbers.
    pub const ALL: [(Kind, &str); 10] = [
        (Kind::Read, "read"),
        (Kind::Write, "write"),
        (Kind::Flush, "flush"),
        (Kind::Discard, "discard"),
        (Kind::Zero, "zero"),
        (Kind::Prefetch, "prefetch"),
        (Kind::Status, "status"),
        (Kind::Watch, "watch"),
        (Kind::Stage, "stage"),
        (Kind::WriteStaged, "write_staged"),
    ];

    /// The kind of a request.
    pub fn of(request: &Request) -> Kind {
        match request {
            Request::Read(_) => Kind::Read,
            Request::Write { .. } => Kind::Write,
            Request::Flush => Kind::Flush,
            Request::Discard { .. } => Kind::Discard,
            Request::Zero { .. } => Kind::Zero,
            Request::Prefetch(_) => Kind::Prefetch,
            Request::Status(_) => Kind::Status,
            Request::Watch(_) | Request::Unwatch(_) => Kind::Watch,
            Request::Stage { .. } => Kind::Stage,
            Request::WriteStaged { .. } => Kind::WriteStaged,
        }
    }
}

/// Upper bound of the first bucket: 2^12 ns, 4 µs.
const FIRST_BUCKET_BITS: u32 = 12;

/// Buckets with a bound; the last one is at 2^36 ns, 69 s.
const BUCKETS: usize = 25;

/// How long requests of a kind took: buckets that double.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    buckets: [u64; BUCKETS + 1],
    nanos: u64,
}

impl Histogram {
    fn record(&mut self, took: Duration) {
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

/// What clients asked of a volume and what came of it.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// By kind, see [`Kind::ALL`].
    pub latency: [Histogram; Kind::ALL.len()],
    /// Bytes of reads that succeeded.
    pub read_bytes: u64,
    /// Bytes of writes that were asked for.
    pub write_bytes: u64,
    /// Requests that failed.
    pub errors: u64,
}

impl Metrics {
    /// A request came in.
    pub fn start(&mut self, request: &Request) {
        if let Request::Write { data, .. } = request {
            self.write_bytes += data.len() as u64;
        }
    }

    /// A request was answered.
    pub fn end(&mut self, kind: Kind, took: Duration, reply: &Result<Reply, BlockError>) {
        self.latency[kind as usize].record(took);
        match reply {
            Err(_) => self.errors += 1,
            Ok(Reply::Data(pieces)) => {
                let bytes = pieces.iter().map(|piece| match piece {
                    ReadPiece::Data(data) => data.len() as u64,
                    ReadPiece::Zeroes(sectors) => sectors * SECTOR_BYTES,
                });
                self.read_bytes += bytes.sum::<u64>();
            }
            Ok(_) => {}
        }
    }

    /// The latency of a kind.
    pub fn of(&self, kind: Kind) -> &Histogram {
        &self.latency[kind as usize]
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

    #[test]
    fn kinds_are_numbered_in_order() {
        for (number, (kind, _)) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, number);
        }
    }
}
