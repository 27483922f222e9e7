//! What a bucket is asked for: counts, times and bytes, for metrics and for the bill.

use longhaul_base::histogram::Histogram;
use longhaul_core::block::VolumeId;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// Volumes that are counted by themselves; requests about more of them are in the totals only.
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
    /// As metrics name it.
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

/// How requests end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// As asked.
    Ok,
    /// There is an object of that name already.
    Exists,
    /// There is no object of that name.
    Missing,
    /// The bucket asks for fewer requests.
    Throttled,
    /// The credentials will not do.
    Denied,
    /// Another error of the asker's, as the bucket sees it.
    Refused,
    /// An error of the bucket's.
    Failed,
    /// No answer.
    Lost,
}

impl Outcome {
    /// As metrics name it.
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

/// Requests about one volume's objects, as they are usually priced; deletions are usually free.
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
    /// Requests over the line, every attempt counted.
    pub requests: BTreeMap<(Operation, Outcome), u64>,
    /// Until the answer to a request began.
    pub seconds: BTreeMap<Operation, Histogram>,
    /// Bytes of objects sent, every attempt counted.
    pub sent_bytes: u64,
    /// Bytes of objects received.
    pub received_bytes: u64,
    /// Requests that were another attempt at the same.
    pub retries: u64,
    /// Times that all requests paused because the bucket asked for fewer.
    pub pauses: u64,
    /// How long they did, without what they waited to not come all at once.
    pub paused: Duration,
    /// Of the requests, those about volumes.
    pub volumes: HashMap<VolumeId, Priced>,
}

impl Usage {
    /// A request has ended.
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

    /// All requests pause.
    pub fn paused(&mut self, pause: Duration) {
        self.pauses += 1;
        self.paused += pause;
    }
}
