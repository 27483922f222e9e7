//! Faults: stores die, stop, leave and come back. Links between stores break, links of hosts break,
//! and the location is away.

use super::place::{MS, SECOND};
use super::store::Stage;
use super::{Event, World};
use crate::note;
use longhaul_core::wire::link::ToHost;

impl World {
    pub(super) fn chaos(&mut self) {
        if self.end.is_quiet() {
            return;
        }
        let delay = self.rng.spread(200 * MS, 12 * SECOND);
        self.after(delay, Event::Chaos);
        let store = self.rng.index(self.stores.len());
        let crash = if self.plan.crashes { 20 } else { 0 };
        let cut = if self.plan.partitions { 25 } else { 0 };
        match self.rng.weighted(&[crash, cut, 15, 15, 5, 6, 4, 4]) {
            0 if self.stores[store].stage != Stage::Down => {
                self.coverage.crashes += 1;
                self.crash(store);
            }
            1 => self.cut_link(store),
            2 => self.heal_link(),
            3 => {
                let host = self.rng.index(self.hosts.len());
                self.break_host(host);
            }
            4 => {
                let away = self.rng.spread(100 * MS, 10 * SECOND);
                note!(self, "the location is away");
                self.place.away_until.0 = self.now.0 + away;
            }
            5 => self.drain(store),
            6 => self.stop_store(store),
            7 => self.leave(store),
            _ => {}
        }
    }

    fn cut_link(&mut self, store: usize) {
        let other = self.rng.index(self.stores.len());
        if other == store {
            return;
        }
        note!(self, "the link of s{store} and s{other} is cut");
        self.coverage.partitions += 1;
        self.peering.cut.insert((store.min(other), store.max(other)));
    }

    fn heal_link(&mut self) {
        let links = self.peering.cut.len();
        if links > 0 {
            let link = self.rng.index(links);
            let link = self.peering.cut.iter().nth(link).copied();
            note!(self, "the link of {link:?} is whole");
            self.peering.cut.retain(|other| Some(*other) != link);
        }
    }

    /// Ends a process at once. Its memory and its procedures are lost, and another process starts
    /// later.
    pub(super) fn crash(&mut self, store: usize) {
        if self.stores[store].stage == Stage::Down {
            return;
        }
        note!(self, "s{store} dies");
        let busy = self.drop_tasks(store);
        self.coverage.crashes_busy += u64::from(busy > 0);
        self.orphan_objects(store);
        let at = &mut self.stores[store];
        at.stage = Stage::Down;
        at.incarnation += 1;
        at.forget_all();
        let mut of: Vec<u64> = self.sessions_of(store);
        while let Some(session) = of.pop() {
            let delay = self.rng.spread(MS, 3 * SECOND);
            self.after(delay, Event::HostNotices(session));
        }
        let delay = self.rng.spread(100 * MS, 20 * SECOND);
        self.after(delay, Event::StoreStarts(store));
    }

    /// Begins to evacuate a store, or ends the evacuation.
    fn drain(&mut self, store: usize) {
        if self.stores[store].stage != Stage::Up {
            return;
        }
        let on = !self.stores[store].draining;
        note!(self, "s{store} draining {on}");
        self.stores[store].draining = on;
        if on {
            self.tell_hosts(store);
        }
    }

    /// Tells the hosts of a store to leave.
    pub(super) fn tell_hosts(&mut self, store: usize) {
        for session in self.sessions_of(store) {
            let message = ToHost::Stores { stores: Vec::new(), leave: true };
            self.send_down(session, message);
        }
    }

    /// Stops a process in order: its engines get five seconds to finish their work. While a change
    /// of the catalog runs, the process does not stop.
    fn stop_store(&mut self, store: usize) {
        if self.stores[store].stage != Stage::Up || self.stores[store].chores.running {
            return;
        }
        note!(self, "s{store} is told to stop");
        self.stores[store].stage = Stage::Stopping;
        let now = self.now;
        let engines: Vec<_> = self.stores[store].engines.keys().copied().collect();
        for id in engines {
            if let Some(engine) = self.stores[store].engines.get_mut(&id) {
                engine.machine.handle_shutdown(now);
            }
            self.drive(store, id);
        }
        let incarnation = self.stores[store].incarnation;
        self.after(5 * SECOND, Event::StoreDeadline(store, incarnation));
        self.may_stop(store);
    }

    /// Takes a store out of the installation for a while. If the store is down at once, another
    /// store removes its registration.
    fn leave(&mut self, store: usize) {
        let other = |at: &usize| *at != store && self.stores[*at].stage == Stage::Up;
        let Some(by) = (0..self.stores.len()).find(other) else { return };
        if self.stores[store].stage == Stage::Up {
            self.drain(store);
            self.stop_store(store);
        }
        if self.stores[store].stage == Stage::Down {
            self.forget_store(by, store);
        }
    }
}
