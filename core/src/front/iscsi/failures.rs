//! Logins that failed to authenticate: whoever fails again and again has to wait.
//!
//! What counts is an initiator's name at an address, so that nobody keeps an initiator out who is elsewhere; and
//! the address alone, with more patience, so that other names do not help. Promises: memory is bounded; the wait grows
//! and is bounded; who authenticates has a clean slate.

use crate::block::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// Failures before one has to wait: a secret that was mistyped, and was being changed.
const FREE: u32 = 5;
/// The same for an address, whatever the names.
const FREE_OF_ADDRESS: u32 = 32;
/// The first wait; each is twice the one before.
const FIRST: Duration = Duration::from_secs(1);
/// The longest. A guess: 1,440 secrets tried a day.
const LONGEST: Duration = Duration::from_secs(60);
/// After so long without a failure all is forgotten.
const MEMORY: Duration = Duration::from_secs(600);
/// Names and addresses that are remembered.
const MAX_REMEMBERED: usize = 1024;
/// Bytes of a name that count: no name is longer (RFC 7143 §4.2.7.1).
const NAME_BYTES: usize = 223;

/// An address, and a name if it is about one.
type Who = (String, Option<String>);

/// Who has failed lately.
#[derive(Debug, Default)]
pub(super) struct Failures {
    all: BTreeMap<Who, Failed>,
}

#[derive(Clone, Copy, Debug)]
struct Failed {
    times: u32,
    last: Time,
    until: Time,
}

/// The address without the port.
fn address(peer: &str) -> &str {
    peer.rsplit_once(':').map_or(peer, |(address, _)| address)
}

fn keys(peer: &str, initiator: &str) -> [(Who, u32); 2] {
    let mut name = initiator.to_owned();
    let most = (0..=NAME_BYTES.min(name.len())).rev().find(|at| name.is_char_boundary(*at));
    name.truncate(most.unwrap_or(0));
    let of = address(peer).to_owned();
    [((of.clone(), Some(name)), FREE), ((of, None), FREE_OF_ADDRESS)]
}

impl Failures {
    /// How long an initiator has to wait before it may log in; `None` if it need not.
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
                // Those that have to wait the least have failed the least.
                let least = self.all.iter().min_by_key(|(_, failed)| (failed.until, failed.last));
                if let Some(least) = least.map(|(who, _)| who.clone()) {
                    self.all.remove(&least);
                }
            }
            let failed = self.all.entry(who).or_insert(Failed { times: 0, last: now, until: now });
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
        // The same initiator elsewhere, and another one at this address.
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
