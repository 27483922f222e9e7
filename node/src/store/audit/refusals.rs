//! Which refusals are written: so many of each address a minute, and so many of all.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// For so long refusals are counted together.
const WINDOW: Duration = Duration::from_secs(60);
/// Lines of one address in that time, at most.
pub(super) const OF_SOURCE: u64 = 10;
/// Lines of all addresses in that time, at most.
pub(super) const OF_ALL: u64 = 500;
/// Addresses that are counted one by one; those of more are counted together.
const SOURCES: usize = 1024;
/// Addresses whose sums are written one by one.
const SUMMARIES: usize = 32;

#[derive(Default)]
struct Count {
    written: u64,
    left_out: u64,
}

/// What has been refused in this minute.
pub(super) struct Refusals {
    since: Instant,
    written: u64,
    sources: HashMap<IpAddr, Count>,
    others: u64,
}

/// Whoever has an IPv6 network has 2^64 addresses of it: they are one.
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

    /// Somebody was refused: what is to be said of the time before, and whether this is to be written.
    pub(super) fn note(&mut self, now: Instant, source: IpAddr) -> (Vec<(String, u64)>, bool) {
        let summary = self.end(now);
        let source = network(source);
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

    /// What was left out in the minute that has ended, if one has: of each address, the most first.
    pub(super) fn end(&mut self, now: Instant) -> Vec<(String, u64)> {
        if now.saturating_duration_since(self.since) < WINDOW {
            return Vec::new();
        }
        let Refusals { sources, others, .. } = std::mem::replace(self, Refusals::new(now));
        let mut left: Vec<_> =
            sources.into_iter().map(|(source, c)| (source, c.left_out)).collect();
        left.retain(|(_, count)| *count > 0);
        left.sort_unstable_by_key(|(source, count)| (std::cmp::Reverse(*count), *source));
        let rest = left.split_off(left.len().min(SUMMARIES));
        let others = others + rest.into_iter().map(|(_, count)| count).sum::<u64>();
        let mut all: Vec<_> = left.into_iter().map(|(s, count)| (s.to_string(), count)).collect();
        if others > 0 {
            all.push(("other addresses".to_owned(), others));
        }
        all
    }
}
