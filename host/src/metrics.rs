//! Counters and latencies of a volume's requests, kept on the front thread without locks.

use longhaul_base::disk::DiskTimes;
use longhaul_base::histogram::Histogram;
use longhaul_core::block::{BlockError, ReadPiece, Reply, Request, SECTOR_BYTES};
use std::time::Duration;

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
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

impl RequestKind {
    /// All kinds with their label, in the order of their numbers.
    pub const ALL: [(RequestKind, &str); 10] = [
        (RequestKind::Read, "read"),
        (RequestKind::Write, "write"),
        (RequestKind::Flush, "flush"),
        (RequestKind::Discard, "discard"),
        (RequestKind::Zero, "zero"),
        (RequestKind::Prefetch, "prefetch"),
        (RequestKind::Status, "status"),
        (RequestKind::Watch, "watch"),
        (RequestKind::Stage, "stage"),
        (RequestKind::WriteStaged, "write_staged"),
    ];

    /// The kind of a request.
    pub fn of(request: &Request) -> RequestKind {
        match request {
            Request::Read(_) => RequestKind::Read,
            Request::Write { .. } => RequestKind::Write,
            Request::Flush => RequestKind::Flush,
            Request::Discard { .. } => RequestKind::Discard,
            Request::Zero { .. } => RequestKind::Zero,
            Request::Prefetch(_) => RequestKind::Prefetch,
            Request::Status(_) => RequestKind::Status,
            Request::Watch(_) | Request::Unwatch(_) => RequestKind::Watch,
            Request::Stage { .. } => RequestKind::Stage,
            Request::WriteStaged { .. } => RequestKind::WriteStaged,
        }
    }
}

/// Where the time of a volume's requests goes. One request passes several stages, some of them more
/// than once: divide the sum of a stage by the number of requests.
#[derive(Clone, Debug, Default)]
pub struct StageTimes {
    /// Client protocols: taking requests apart, putting replies together and writing them to the
    /// socket; once for each wake-up that had some.
    pub front: Histogram,
    /// The engine with all that it hands over to disk and link; once for each wake-up.
    pub host: Histogram,
    /// Time from a read request to the store until the answer, with the way there and back.
    pub link: Histogram,
    /// Time from a batch of writes until the store reports its commit, measured like `link`.
    pub commit: Histogram,
    /// The journal's disk.
    pub disk: DiskTimes,
}

impl StageTimes {
    /// All of them with their label.
    pub fn all(&self) -> [(&'static str, &Histogram); 7] {
        [
            ("front", &self.front),
            ("host", &self.host),
            ("link", &self.link),
            ("commit", &self.commit),
            ("journal_write", &self.disk.write),
            ("journal_sync", &self.disk.sync),
            ("journal_read", &self.disk.read),
        ]
    }
}

/// The requests of a volume's clients, and their outcomes.
#[derive(Clone, Debug, Default)]
pub struct VolumeMetrics {
    /// By stage.
    pub stages: StageTimes,
    /// By kind, see [`RequestKind::ALL`].
    pub latency: [Histogram; RequestKind::ALL.len()],
    /// Bytes of reads that succeeded.
    pub read_bytes: u64,
    /// Bytes of writes that clients asked for.
    pub write_bytes: u64,
    /// Requests that failed.
    pub errors: u64,
}

impl VolumeMetrics {
    /// A request came in.
    pub fn start(&mut self, request: &Request) {
        if let Request::Write { data, .. } = request {
            self.write_bytes += data.len() as u64;
        }
    }

    /// Counts the answer to a request.
    pub fn end(&mut self, kind: RequestKind, took: Duration, reply: &Result<Reply, BlockError>) {
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
    pub fn of(&self, kind: RequestKind) -> &Histogram {
        &self.latency[kind as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_numbered_in_order() {
        for (number, (kind, _)) in RequestKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, number);
        }
    }
}
