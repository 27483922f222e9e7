//! Answers to a host that asks to attach, and whether the answer may be that.

use super::host::Journal;
use super::storage::create;
use super::{Event, MS, State, World, agree};
use crate::disk::Disk;
use crate::model::{Branch, Kind, OpId};
use crate::note;
use crate::plan::Acknowledge;
use longhaul_core::block::Seq;
use longhaul_core::host;
use longhaul_core::wire::link::{AttachError, Attached, JournalState};

impl World {
    pub(super) fn refused(&mut self, host: usize, volume: usize, error: AttachError) {
        note!(self, "h{host} v{volume} is refused: {error:?}");
        let checked = self.check_refusal(host, volume, &error);
        self.require(checked);
        match &error {
            AttachError::LossPending { .. } => self.coverage.loss_pending += 1,
            AttachError::Diverged { .. } => self.coverage.diverged += 1,
            AttachError::InUse { .. } => self.coverage.in_use += 1,
            AttachError::Carried { .. } => self.coverage.carried_refused += 1,
            _ => {}
        }
        let at = self.at(host, volume);
        self.slot(host, volume).state = State::Refused(error);
        let delay = if self.finishing { 5 * MS } else { self.chaos_rng.spread(5 * MS, 1000 * MS) };
        self.after(delay, Event::Operator(at));
    }

    pub(super) fn check_refusal(
        &self,
        host: usize,
        volume: usize,
        error: &AttachError,
    ) -> Result<(), String> {
        let truth = &self.volumes[volume].truth;
        let State::Attaching(attaching) = &self.hosts[host].slots[volume].state else {
            return Ok(());
        };
        match error {
            AttachError::Diverged { .. } => {
                let Some(state) = attaching.state else {
                    return Err("diverged without a journal".to_owned());
                };
                let left_behind =
                    truth.base_after(state.epoch).is_some_and(|base| state.last > base);
                if left_behind {
                    Ok(())
                } else {
                    Err(format!("{state:?} is said to have diverged"))
                }
            }
            // The world checked the loss when the store reported it.
            AttachError::LossPending { .. } => {
                let Some(state) = attaching.state else { return Ok(()) };
                let own = self.hosts[host].id;
                let alone = truth.history.iter().all(|b| b.epoch <= state.epoch || b.host == own);
                let faulty = self.plan.disk.write + self.plan.disk.sync > 0;
                if alone && !faulty {
                    return Err(format!(
                        "host {host} comes back with {state:?}, and an operator is asked for"
                    ));
                }
                Ok(())
            }
            // The world checked this when the store said so.
            AttachError::ShuttingDown | AttachError::InUse { .. } => Ok(()),
            AttachError::Carried { .. } => {
                let Some(state) = attaching.state else {
                    return Err("a journal is in doubt that is not there".to_owned());
                };
                let own = self.hosts[host].id;
                if truth.history.iter().all(|b| b.epoch < state.epoch || b.host == own) {
                    return Err(format!("host {host} is not believed of its own {state:?}"));
                }
                Ok(())
            }
            other => Err(format!("an attach was refused without cause: {other}")),
        }
    }

    /// A host got its epoch. Checks the state that it starts from. Then the host serves the volume.
    pub(super) fn attached(
        &mut self,
        host: usize,
        volume: usize,
        attached: Attached,
        versions: Option<host::Versions>,
    ) {
        let now = self.now;
        note!(self, "h{host} v{volume} attached {attached:?}");
        let mut config = self.host_config(volume);
        config.packing = self.packing_in(volume, attached.epoch);
        let slot = self.slot(host, volume);
        let State::Attaching(attaching) = std::mem::replace(&mut slot.state, State::Down) else {
            return;
        };
        let checked = self.lineage(host, volume, attaching.state, &attached);
        let log = match checked {
            Ok(log) => log,
            Err(error) => return self.fail(error),
        };
        self.coverage.attaches += 1;
        let most = self.plan.volumes[volume].most_sectors;
        let sectors = attached.sectors;
        let restored = &self.volumes[volume].truth.restored;
        let base = restored.iter().rev().find(|restored| restored.epoch < attached.epoch);
        let base = base.map(|restored| (restored.seq, restored.image.clone()));
        let branch = Branch::new(volume, most, log.clone(), base, &self.ops);
        if self.branches.insert((volume, attached.epoch), branch).is_some() {
            return self
                .fail(format!("epoch {} of volume {volume} was granted twice", attached.epoch));
        }
        let (id, geometry, journals) = (
            self.volumes[volume].id,
            self.geometry(volume),
            self.plan.volumes[volume].acknowledge != Acknowledge::WriteThrough,
        );
        let tag = self.rng.wide();
        let slot = &mut self.hosts[host].slots[volume];
        let mut recovered = attaching.recovered;
        if journals && slot.journal.is_none() {
            let mut disk = Disk::new(geometry.files, geometry.file_bytes);
            let made = create(&mut disk, geometry, tag, id);
            slot.journal = Some(Journal {
                disk,
                view: log.clone(),
                flushed: log.len() as Seq,
                written_bytes: 0,
            });
            match made {
                Ok(fresh) => recovered = Some(fresh),
                Err(error) => return self.fail(error),
            }
        }
        slot.epoch = attached.epoch;
        slot.take_over = false;
        let quiet = self.finishing;
        let id = self.hosts[host].id;
        let mut machine = host::Volume::new(now, config, id, attached, recovered);
        let (drain, readahead) = self.plan.volumes[volume].limits;
        machine.handle_limits(now, drain, readahead);
        if let Some(versions) = versions {
            machine.set_versions(now, versions);
        }
        if let Some(cache) = self.open_cache(host, volume) {
            machine.set_cache(now, cache);
            machine.handle_pins(now, self.slot(host, volume).client.pins.clone());
        }
        let slot = self.slot(host, volume);
        slot.state = State::Running(Box::new(machine));
        slot.detached = false;
        slot.client.quiet = quiet;
        self.pump_host(host, volume);
        let whole = longhaul_core::block::Range::new(0, sectors);
        if self.slot(host, volume).disk_rng.percent(60) {
            self.ask_read(host, volume, whole);
        }
        self.wake_client(host, volume);
    }

    /// The writes that a new attachment starts from.
    pub(super) fn lineage(
        &mut self,
        host: usize,
        volume: usize,
        state: Option<JournalState>,
        attached: &Attached,
    ) -> Result<Vec<OpId>, String> {
        let truth = &self.volumes[volume].truth;
        let Some(committed) = truth.log.get(..attached.committed as usize) else {
            return Err(format!(
                "attached at {}, committed are {}",
                attached.committed,
                truth.log.len()
            ));
        };
        let Some(state) = state else { return Ok(committed.to_vec()) };
        let Some(journal) = &self.hosts[host].slots[volume].journal else {
            return Err("a journal state without a journal".to_owned());
        };
        let view = &journal.view[..state.last as usize];
        let later = truth
            .history
            .iter()
            .filter(|begun| begun.epoch > state.epoch && begun.epoch < attached.epoch)
            .map(|begun| begun.base)
            .min();
        if later.is_some_and(|base| state.last > base) {
            return Err(format!(
                "a journal that the volume left behind was let in: {state:?}, {attached:?}"
            ));
        }
        if !agree(view, committed) {
            return Err(format!(
                "the journal of host {host} is not in line with what is committed"
            ));
        }
        let log = if view.len() > committed.len() { view } else { committed };
        let recovered = log[committed.len()..].iter().map(|id| self.ops.get(*id).kind);
        self.coverage.copies_recovered +=
            recovered.filter(|kind| matches!(kind, Kind::Copy(_))).count() as u64;
        if (log.len() as Seq) < journal.flushed && !journal.disk.damaged {
            let fate = if state.epoch + 1 == attached.epoch { "lost" } else { "left behind" };
            return Err(format!(
                "host {host} comes back with writes up to {} ({fate}), promised were {}",
                log.len(),
                journal.flushed
            ));
        }
        self.coverage.writes_lost +=
            (journal.view.len() - log.len().min(journal.view.len())) as u64;
        Ok(log.to_vec())
    }

    // The machine's outputs.
}
