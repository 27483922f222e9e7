//! Delays for initiators whose logins fail to authenticate.
//!
//! The target counts failures for the pair of address and initiator name, so that nobody can lock
//! out an initiator at another address. It also counts them for the address alone, with a higher
//! threshold, so that changing the name does not help.
//!
//! The delay grows up to a limit, and so does the memory. A successful authentication resets the
//! count of the pair.

use crate::block::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// Failures before the first delay. A mistyped secret, or one that is being changed, causes no
/// delay.
const FREE: u32 = 5;
/// The same for an address alone.
const FREE_OF_ADDRESS: u32 = 32;
/// The first delay; each is twice the one before.
const FIRST: Duration = Duration::from_secs(1);
/// The longest delay. Guessed: it allows 1,440 secrets a day.
const LONGEST: Duration = Duration::from_secs(60);
/// Time without a failure after which the target forgets the count.
const MEMORY: Duration = Duration::from_secs(600);
/// Most names and addresses to remember.
const MAX_REMEMBERED: usize = 1024;
/// Bytes of a name to compare. No valid name is longer (RFC 7143 §4.2.7.1).
const NAME_BYTES: usize = 223;

/// An address, and the initiator name unless the entry is for the address alone.
type FailureKey = (String, Option<String>);

/// The recent failures.
#[derive(Debug, Default)]
pub(super) struct Failures {
    all: BTreeMap<FailureKey, FailureRecord>,
}

#[derive(Clone, Copy, Debug)]
struct FailureRecord {
    times: u32,
    last: Time,
    until: Time,
}

/// The address without the port.
fn address(peer: &str) -> &str {
    peer.rsplit_once(':').map_or(peer, |(address, _)| address)
}

fn keys(peer: &str, initiator: &str) -> [(FailureKey, u32); 2] {
    let mut name = initiator.to_owned();
    let most = (0..=NAME_BYTES.min(name.len())).rev().find(|at| name.is_char_boundary(*at));
    name.truncate(most.unwrap_or(0));
    let of = address(peer).to_owned();
    [((of.clone(), Some(name)), FREE), ((of, None), FREE_OF_ADDRESS)]
}

impl Failures {
    /// How long an initiator has to wait before it may log in; `None` if it need not wait.
    pub(super) fn wait(&self, now: Time, peer: &str, initiator: &str) -> Option<Duration> {
        let failed = keys(peer, initiator).into_iter().filter_map(|(who, _)| self.all.get(&who));
        let until = failed.map(|failed| failed.until).max()?;
        (until > now).then(|| until.since(now))
    }

    /// A login has failed to authenticate.
    pub(super) fn handle_failure(&mut self, now: Time, peer: &str, initiator: &str) {
        self.all.retain(|_, failed| now.since(failed.last) < MEMORY);
        for (who, free) in keys(peer, initiator) {
            if self.all.len() >= MAX_REMEMBERED && !self.all.contains_key(&who) {
                // The entry with the shortest delay has the fewest failures.
                let least = self.all.iter().min_by_key(|(_, failed)| (failed.until, failed.last));
                if let Some(least) = least.map(|(who, _)| who.clone()) {
                    self.all.remove(&least);
                }
            }
            let failed =
                self.all.entry(who).or_insert(FailureRecord { times: 0, last: now, until: now });
            failed.times = failed.times.saturating_add(1);
            failed.last = now;
            if failed.times >= free {
                let wait = FIRST.saturating_mul(1 << (failed.times - free).min(16)).min(LONGEST);
                failed.until = now.after(wait);
            }
        }
    }

    /// A login has authenticated.
    pub(super) fn handle_success(&mut self, peer: &str, initiator: &str) {
        let [(who, _), _] = keys(peer, initiator);
        self.all.remove(&who);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    #[test]
    fn who_fails_waits_longer_and_longer_and_nobody_else_does() {
        let mut failures = Failures::default();
        let mut now = at(10);
        let mut waits = Vec::new();
        for _ in 0..12 {
            failures.handle_failure(now, "192.0.2.1:4000", "iqn.a");
            let wait = failures.wait(now, "192.0.2.1:4001", "iqn.a").unwrap_or_default();
            waits.push(wait.as_secs());
            now = now.after(wait);
        }
        assert_eq!(waits, [0, 0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60]);
        failures.handle_failure(now, "192.0.2.1:4000", "iqn.a");
        // The same initiator at another address, and another initiator at this address.
        assert_eq!(failures.wait(now, "192.0.2.2:4000", "iqn.a"), None);
        assert_eq!(failures.wait(now, "192.0.2.1:4000", "iqn.b"), None);
        assert_eq!(failures.wait(now.after(LONGEST), "192.0.2.1:4000", "iqn.a"), None);
        failures.handle_success("192.0.2.1:9", "iqn.a");
        assert_eq!(failures.wait(now, "192.0.2.1:4000", "iqn.a"), None);
    }

    #[test]
    fn other_names_do_not_help_and_memory_is_bounded() {
        let mut failures = Failures::default();
        for n in 0..FREE_OF_ADDRESS {
            failures.handle_failure(at(1), "[2001:db8::1]:1", &format!("iqn.{n}"));
        }
        assert!(failures.wait(at(1), "[2001:db8::1]:2", "iqn.new").is_some());
        for n in 0..3 * MAX_REMEMBERED {
            failures.handle_failure(at(1), &format!("host{n}:1"), "iqn.a");
        }
        assert!(failures.all.len() <= MAX_REMEMBERED);
        assert!(failures.wait(at(1), "[2001:db8::1]:2", "iqn.new").is_some(), "it had to wait");
        failures.handle_failure(at(1000), "host1:1", "iqn.a");
        assert_eq!(failures.all.len(), 2);
    }
}
