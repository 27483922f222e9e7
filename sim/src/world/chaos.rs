//! Faults, and what operators do about them.

use super::{Event, MS, State, World};
use crate::disk::Disk;
use crate::link::Direction;
use crate::note;
use longhaul_core::block::Time;
use longhaul_core::wire::link::{AttachError, HostId, Lane, ToStore, VolumeOperation};

impl World {
    pub(super) fn chaos(&mut self) {
        if self.finishing {
            return;
        }
        let w = self.plan.weights;
        let weights = [
            w.crash,
            w.power,
            w.shutdown,
            w.lose,
            w.carry,
            w.compete,
            w.store_crash,
            w.store_shutdown,
            w.cut,
            w.outage,
            w.hand_over,
        ];
        let host = self.chaos_rng.index(self.hosts.len());
        let store = self.chaos_rng.index(self.stores.len());
        if weights.iter().sum::<u64>() > 0 {
            match self.chaos_rng.weighted(&weights) {
                0 => {
                    self.coverage.host_crashes += u64::from(self.hosts[host].up);
                    self.crash_host(host, false);
                }
                1 => {
                    self.coverage.host_power_cuts += u64::from(self.hosts[host].up);
                    self.crash_host(host, true);
                }
                2 => self.stop_host(host),
                3 => self.lose_host(host),
                4 => self.carry_journal(host),
                5 => self.compete(),
                6 => {
                    self.coverage.store_crashes += u64::from(self.stores[store].up);
                    self.crash_store(store);
                }
                7 => self.stop_store(store),
                8 => {
                    let numbers: Vec<u64> = self.sessions.keys().copied().collect();
                    if !numbers.is_empty() {
                        let number = numbers[self.chaos_rng.index(numbers.len())];
                        self.cut(number);
                    }
                }
                10 => self.hand_over(store),
                _ => {
                    let length = self.chaos_rng.spread(20 * MS, 1500 * MS);
                    note!(self, "the object store goes away for {} ms", length / MS);
                    self.coverage.outages += 1;
                    self.objects.away_until = Time(self.now.0 + length);
                }
            }
        }
        for volume in 0..self.volumes.len() {
            self.someone_wants(volume);
        }
        let calm = self.plan.calm;
        let next = self.chaos_rng.spread(calm / 8, calm * 2);
        self.after(next, Event::Chaos);
    }

    /// Gives a volume to a host if no host has or wants it.
    fn someone_wants(&mut self, volume: usize) {
        if self.hosts.iter().any(|host| host.slots[volume].wanted) {
            return;
        }
        let host = self.chaos_rng.index(self.hosts.len());
        self.want(host, volume);
    }

    pub(super) fn want(&mut self, host: usize, volume: usize) {
        note!(self, "h{host} is to have v{volume}");
        self.slot(host, volume).wanted = true;
        if self.hosts[host].up && matches!(self.slot(host, volume).state, State::Down) {
            self.start_slot(host, volume);
        }
    }

    fn compete(&mut self) {
        let volume = self.chaos_rng.index(self.volumes.len());
        let host = self.chaos_rng.index(self.hosts.len());
        let slot = self.slot(host, volume);
        if slot.wanted || !matches!(slot.state, State::Down) {
            return;
        }
        let others = |(n, h): (usize, &super::Host)| {
            n != host && matches!(h.slots[volume].state, State::Running(_))
        };
        if self.hosts.iter().enumerate().any(others) {
            self.coverage.competing_attaches += 1;
        }
        self.slot(host, volume).take_over = self.chaos_rng.percent(70);
        self.want(host, volume);
    }

    /// The machine is gone, with its disks.
    fn lose_host(&mut self, host: usize) {
        note!(self, "h{host} is lost for good");
        self.coverage.hosts_lost += 1;
        self.crash_host(host, true);
        self.hosts[host].id = HostId(self.rng.wide());
        for volume in 0..self.volumes.len() {
            let slot = self.slot(host, volume);
            slot.journal = None;
            slot.cache.lose();
            slot.table.lose();
            // This machine with a new disk, or another one, takes over.
            slot.wanted = false;
        }
    }

    /// The machine is gone, but its disks go into another.
    fn carry_journal(&mut self, host: usize) {
        let to = self.chaos_rng.index(self.hosts.len());
        if to == host {
            return;
        }
        note!(self, "h{host} is lost, its journals are carried to h{to}");
        self.crash_host(host, true);
        self.hosts[host].id = HostId(self.rng.wide());
        for volume in 0..self.volumes.len() {
            self.carry_cache(host, to, volume);
            let journal = self.slot(host, volume).journal.take();
            let wanted = std::mem::take(&mut self.slot(host, volume).wanted);
            let free = matches!(self.slot(to, volume).state, State::Down)
                && self.slot(to, volume).journal.is_none();
            if !free || !wanted {
                self.slot(host, volume).table.lose();
                continue;
            }
            self.carry_table(host, to, volume);
            self.coverage.journals_carried += u64::from(journal.is_some());
            self.slot(to, volume).journal = journal;
            self.slot(to, volume).take_over = self.chaos_rng.percent(50);
            self.want(to, volume);
        }
    }

    /// Cuts a link: frames get lost, and both ends notice some time later.
    pub(super) fn cut(&mut self, number: u64) {
        let Some((session, _)) = self.sessions.get_mut(&number) else { return };
        if !session.connected {
            return;
        }
        let lost = session.cut();
        note!(self, "session {number} is cut, {lost} frames are lost");
        self.coverage.link_cuts += 1;
        let host = self.link_rng.spread(10_000, 300 * MS);
        let store = self.link_rng.spread(10_000, 2000 * MS);
        self.after(host, Event::HostNotices(number));
        self.after(store, Event::StoreNotices(number));
    }

    /// The operator's reaction to a refused host.
    pub(super) fn operator(&mut self, host: usize, volume: usize) {
        let State::Refused(error) = &self.slot(host, volume).state else { return };
        let error = error.clone();
        let patient = !self.finishing && self.chaos_rng.percent(60);
        match error {
            AttachError::LossPending { .. } => {
                if patient {
                    // Give the host that is missing some time to come back.
                    self.stop_slot(host, volume);
                    if self.chaos_rng.percent(50) {
                        self.want(host, volume);
                    } else {
                        self.slot(host, volume).wanted = false;
                    }
                } else {
                    let name = self.volumes[volume].name.clone();
                    let request = self.number();
                    let operation = VolumeOperation::Lost { name: name.clone(), from_lba: 0 };
                    self.send_up(
                        host,
                        volume,
                        Lane::Control,
                        &ToStore::Volume { request, operation }.into(),
                    );
                    let request = self.number();
                    let operation = VolumeOperation::AcceptLoss { name };
                    self.send_up(
                        host,
                        volume,
                        Lane::Control,
                        &ToStore::Volume { request, operation }.into(),
                    );
                    let at = self.at(host, volume);
                    self.after(2000 * MS, Event::Operator(at));
                }
            }
            AttachError::Diverged { .. }
            | AttachError::WrongVolume(_)
            | AttachError::Fenced { .. } => {
                // The operator moves the journal away for salvage.
                self.stop_slot(host, volume);
                // The version table stays. It lacks commits that only the journal knew.
                let slot = self.slot(host, volume);
                (slot.journal, slot.table.bereft) = (None, true);
                self.slot(host, volume).wanted = self.finishing || self.chaos_rng.percent(30);
                if self.slot(host, volume).wanted {
                    self.want(host, volume);
                }
            }
            AttachError::InUse { .. } => {
                self.stop_slot(host, volume);
                if self.finishing || self.chaos_rng.percent(70) {
                    // Or the other host will be gone by then.
                    self.slot(host, volume).take_over |= self.chaos_rng.percent(30);
                    self.want(host, volume);
                } else {
                    self.slot(host, volume).wanted = false;
                }
            }
            AttachError::Carried { .. } => {
                self.stop_slot(host, volume);
                self.slot(host, volume).take_over = true;
                self.want(host, volume);
            }
            AttachError::NotFound
            | AttachError::Damaged(_)
            | AttachError::ShuttingDown
            | AttachError::Forbidden(_)
            | AttachError::OtherKey { .. } => {
                self.stop_slot(host, volume);
                self.want(host, volume);
            }
        }
    }

    /// A disk fault, if the time for one has come.
    pub(super) fn disk_fault(&mut self, host: usize, volume: usize, odds: u64) -> bool {
        !self.finishing && self.slot(host, volume).disk_rng.ppm(odds)
    }

    pub(super) fn deliver(&mut self, number: u64, direction: Direction, lane: Lane) {
        match direction {
            Direction::Up => self.deliver_up(number, lane),
            Direction::Down => self.deliver_down(number, lane),
        }
    }

    /// A shadow of a disk after the death of the process, or a power cut.
    pub(super) fn shadow_disk(&mut self, host: usize, volume: usize, power: bool) -> Option<Disk> {
        let slot = self.slot(host, volume);
        let mut rng = slot.disk_rng.clone();
        let mut disk = slot.journal.as_ref()?.disk.clone();
        slot.disk_rng.draw();
        slot.disk_operations.cut_short(&mut disk, &mut rng);
        if power {
            disk.cut_power(&mut rng);
        }
        Some(disk)
    }
}
