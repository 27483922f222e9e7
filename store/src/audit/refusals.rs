//! Limits the refusals to write: a number for each address or credential a minute, and a number for
//! all.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// The window in which refusals count together.
const WINDOW: Duration = Duration::from_secs(60);
/// Lines of one address or credential in that time, at most.
pub(super) const OF_SOURCE: u64 = 10;
/// Lines of all of them in that time, at most.
pub(super) const OF_ALL: u64 = 500;
/// Addresses or credentials with a count of their own. The others have one common count.
const SOURCES: usize = 1024;
/// Sources whose sums get a line of their own.
const SUMMARIES: usize = 32;

#[derive(Default)]
struct Count {
    written: u64,
    left_out: u64,
}

/// The refusals of this minute.
pub(super) struct Refusals {
    since: Instant,
    written: u64,
    sources: HashMap<RefusalSource, Count>,
    others: u64,
}

/// Who was refused.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum RefusalSource {
    /// Somebody there, who has shown no credential.
    Address(IpAddr),
    /// The holder of the credential with that serial number.
    Credential(String),
}

impl From<IpAddr> for RefusalSource {
    fn from(address: IpAddr) -> RefusalSource {
        RefusalSource::Address(network(address))
    }
}

impl std::fmt::Display for RefusalSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RefusalSource::Address(address) => address.fmt(f),
            RefusalSource::Credential(serial) => f.write_str(serial),
        }
    }
}

/// The owner of an IPv6 network has 2^64 addresses of it: they count as one.
fn network(source: IpAddr) -> IpAddr {
    match source {
        IpAddr::V6(address) => match address.to_ipv4_mapped() {
            Some(mapped) => mapped.into(),
            None => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        },
        IpAddr::V4(_) => source,
    }
}

impl Refusals {
    pub(super) fn new(now: Instant) -> Refusals {
        Refusals { since: now, written: 0, sources: HashMap::new(), others: 0 }
    }

    /// Counts a refusal. Returns the sums of the time before, and whether to write this refusal.
    pub(super) fn note(
        &mut self,
        now: Instant,
        source: impl Into<RefusalSource>,
    ) -> (Vec<(String, u64)>, bool) {
        let summary = self.end(now);
        let source = source.into();
        if self.sources.len() >= SOURCES && !self.sources.contains_key(&source) {
            self.others += 1;
            return (summary, false);
        }
        let count = self.sources.entry(source).or_default();
        let write = count.written < OF_SOURCE && self.written < OF_ALL;
        if write {
            count.written += 1;
            self.written += 1;
        } else {
            count.left_out += 1;
        }
        (summary, write)
    }

    /// If a minute has ended, the numbers of its unwritten refusals by source, the largest first.
    pub(super) fn end(&mut self, now: Instant) -> Vec<(String, u64)> {
        if now.saturating_duration_since(self.since) < WINDOW {
            return Vec::new();
        }
        let Refusals { sources, others, .. } = std::mem::replace(self, Refusals::new(now));
        let mut left: Vec<_> =
            sources.into_iter().map(|(source, c)| (source, c.left_out)).collect();
        left.retain(|(_, count)| *count > 0);
        left.sort_unstable_by(|(one, ones), (other, others)| {
            others.cmp(ones).then_with(|| one.cmp(other))
        });
        let rest = left.split_off(left.len().min(SUMMARIES));
        let others = others + rest.into_iter().map(|(_, count)| count).sum::<u64>();
        let mut all: Vec<_> = left.into_iter().map(|(s, count)| (s.to_string(), count)).collect();
        if others > 0 {
            all.push(("others".to_owned(), others));
        }
        all
    }
}
