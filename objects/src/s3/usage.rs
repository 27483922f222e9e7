//! The use of a bucket: counts, times and bytes of requests, for metrics and for the bill.

use longhaul_base::histogram::Histogram;
use longhaul_core::block::VolumeId;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// Most volumes with their own counts. Requests for other volumes count in the totals only.
const VOLUMES_MAX: usize = 65_536;

/// Kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// `PutObject`.
    Put,
    /// `GetObject`.
    Get,
    /// `ListObjectsV2`, a page.
    List,
    /// `DeleteObject`.
    Delete,
    /// `CopyObject`.
    Copy,
}

impl Operation {
    /// The name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Put => "put",
            Operation::Get => "get",
            Operation::List => "list",
            Operation::Delete => "delete",
            Operation::Copy => "copy",
        }
    }
}

/// Ends of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// Success.
    Ok,
    /// An object of that name exists already.
    Exists,
    /// No object has that name.
    Missing,
    /// The bucket asks for fewer requests.
    Throttled,
    /// The credentials are not valid, or not enough.
    Denied,
    /// Another error of the client, as the bucket sees it.
    Refused,
    /// An error of the bucket.
    Failed,
    /// No answer.
    Lost,
}

impl Outcome {
    /// The name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::Exists => "exists",
            Outcome::Missing => "missing",
            Outcome::Throttled => "throttled",
            Outcome::Denied => "denied",
            Outcome::Refused => "refused",
            Outcome::Failed => "failed",
            Outcome::Lost => "lost",
        }
    }
}

/// Requests for the objects of one volume, by their usual price. Deletions are usually free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Priced {
    /// Puts, and pages of lists.
    pub puts: u64,
    /// Gets.
    pub gets: u64,
}

/// Counters since the start.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    /// Requests over the line, with every attempt.
    pub requests: BTreeMap<(Operation, Outcome), u64>,
    /// Time until the answer to a request began.
    pub seconds: BTreeMap<Operation, Histogram>,
    /// Bytes of objects sent, with every attempt.
    pub sent_bytes: u64,
    /// Bytes of objects received.
    pub received_bytes: u64,
    /// Requests that repeat another one.
    pub retries: u64,
    /// Pauses of all requests because the bucket asked for fewer.
    pub pauses: u64,
    /// Time of these pauses, without the random delay after them.
    pub paused: Duration,
    /// The part of the requests that is for volumes.
    pub volumes: HashMap<VolumeId, Priced>,
}

impl Usage {
    /// Counts a request that has ended.
    pub fn request(
        &mut self,
        operation: Operation,
        outcome: Outcome,
        volume: Option<VolumeId>,
        sent_bytes: u64,
        took: Duration,
        again: bool,
    ) {
        *self.requests.entry((operation, outcome)).or_default() += 1;
        self.seconds.entry(operation).or_default().record(took);
        self.sent_bytes += sent_bytes;
        self.retries += u64::from(again);
        let Some(volume) = volume else { return };
        if self.volumes.len() >= VOLUMES_MAX && !self.volumes.contains_key(&volume) {
            return;
        }
        let priced = self.volumes.entry(volume).or_default();
        match operation {
            Operation::Put | Operation::List | Operation::Copy => priced.puts += 1,
            Operation::Get => priced.gets += 1,
            Operation::Delete => {}
        }
    }

    /// Counts a pause of all requests.
    pub fn paused(&mut self, pause: Duration) {
        self.pauses += 1;
        self.paused += pause;
    }
}
