//! A keyed volume goes from a host that dies to another one and back. The first host's journal
//! still holds commits that no checkpoint of its table has. Others have written after them.

use super::{Event, MS, State, World};
use crate::note;
use longhaul_core::block::Seq;

/// Looks after which the world gives up a relay without progress.
const LOOKS: u64 = 150;

/// Two hosts and the volume that they share.
pub(super) struct Relay {
    volume: usize,
    first: usize,
    second: usize,
    leg: Leg,
    looks: u64,
}

/// The next event that a relay waits for.
#[derive(Clone, Copy)]
enum Leg {
    /// That the store has all that the first host wrote.
    Drained,
    /// That it has more than this, of the second one.
    Away(Seq),
    /// That it has all of it.
    AwayDrained,
    /// That the first one has promised more than this.
    Back(Seq),
}

impl World {
    /// Looks how far the relay is.
    pub(super) fn relay(&mut self) {
        if self.finishing {
            return;
        }
        let delay = self.relay_rng.spread(MS, 12 * MS);
        self.after(delay, Event::Relay);
        let Some(mut relay) = self.relay.take().or_else(|| self.begin_relay()) else { return };
        relay.looks += 1;
        if relay.looks <= LOOKS {
            self.relay = self.run_relay(relay);
            return;
        }
        for host in [relay.first, relay.second] {
            if self.runs(host, relay.volume) {
                self.slot(host, relay.volume).client.quiet = false;
                self.wake_client(host, relay.volume);
            }
        }
    }

    fn begin_relay(&mut self) -> Option<Relay> {
        let volume = self.relay_rng.index(self.volumes.len());
        let first = self.relay_rng.index(self.hosts.len());
        let second = self.relay_rng.index(self.hosts.len());
        let lazy = !self.relay_rng.percent(20) || first == second;
        if lazy || !self.has_versions(volume) || !self.runs(first, volume) {
            return None;
        }
        self.slot(first, volume).client.quiet = true;
        Some(Relay { volume, first, second, leg: Leg::Drained, looks: 0 })
    }

    fn runs(&self, host: usize, volume: usize) -> bool {
        matches!(self.hosts[host].slots[volume].state, State::Running(_))
    }

    /// Whether the store has all that a host has, which does nothing more.
    fn is_drained(&mut self, host: usize, volume: usize) -> bool {
        let now = self.now;
        let machine = self.slot(host, volume).machine();
        machine.is_some_and(|machine| machine.status(now).lag_bytes == 0)
    }

    /// One host dies, the other one is to have the volume.
    fn pass_on(&mut self, from: usize, to: usize, volume: usize) {
        let power = self.relay_rng.percent(50);
        self.crash_host(from, power);
        self.slot(from, volume).wanted = false;
        self.slot(to, volume).take_over = true;
        self.want(to, volume);
    }

    fn run_relay(&mut self, mut relay: Relay) -> Option<Relay> {
        let Relay { volume, first, second, leg, .. } = relay;
        let host = if matches!(leg, Leg::Drained | Leg::Back(_)) { first } else { second };
        if !self.runs(host, volume) {
            return Some(relay);
        }
        let committed = self.volumes[volume].truth.log.len() as Seq;
        match leg {
            Leg::Drained if self.is_drained(first, volume) => {
                note!(self, "v{volume} goes from h{first} to h{second}, and back");
                self.pass_on(first, second, volume);
                relay.leg = Leg::Away(committed);
            }
            Leg::Away(before) if committed > before => {
                self.slot(second, volume).client.quiet = true;
                relay.leg = Leg::AwayDrained;
            }
            Leg::AwayDrained if self.is_drained(second, volume) => {
                self.pass_on(second, first, volume);
                relay.leg = Leg::Back(committed);
            }
            Leg::Back(before) => {
                let epoch = self.slot(first, volume).epoch;
                let branch = self.branches.get(&(volume, epoch));
                if branch.is_some_and(|branch| branch.flushed > before) {
                    let power = self.relay_rng.percent(70);
                    self.crash_host(first, power);
                    self.coverage.relays += 1;
                    return None;
                }
            }
            _ => {}
        }
        Some(relay)
    }
}
