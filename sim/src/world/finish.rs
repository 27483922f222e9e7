//! The end of a world: faults stop, every volume gets one host, and everything drains. Then readers
//! compare the store's content with the requested writes. These readers share nothing with the
//! processes that ran.

use super::observe::shown;
use super::replica;
use super::truth::Restored;
use super::truth::replay;
use super::{Event, MS, State, World};
use crate::model::{Image, Stamp, difference};
use crate::note;
use crate::objects::Odds;
use longhaul_core::block::{Range, Seq, Time};
use longhaul_core::store::{self, ObjectOperation, ObjectResult, SessionId, catalog, segment};
use longhaul_core::wire::link::{Lane, MAX_READ_SECTORS, ToStore};

/// How long the end may take.
const PATIENCE: u64 = 400_000 * MS;
/// After this long without success the operator gives up a journal that the disk had damaged.
const DAMAGED_PATIENCE: u64 = 30_000 * MS;

/// How far a volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Faults go on.
    Running,
    /// This host is to finish it.
    Owned(usize),
    /// Drained, detached, compared.
    Done,
}

impl World {
    /// Begins the end, and then looks after it.
    pub(super) fn finish(&mut self) {
        if !self.finishing {
            self.begin_end();
        }
        for volume in 0..self.volumes.len() {
            if let Stage::Owned(owner) = self.volumes[volume].finish {
                self.finish_volume(owner, volume);
            }
        }
        if self.violation.is_some() {
            return;
        }
        if self.volumes.iter().all(|volume| volume.finish == Stage::Done) && self.second_is_done() {
            self.finished = true;
            return;
        }
        if self.now.0 > self.plan.chaos + PATIENCE {
            let reason = self.why_not_done();
            return self.fail(format!(
                "not drained {} s after the last fault: {reason}",
                PATIENCE / MS / 1000
            ));
        }
        self.after(20 * MS, Event::Finish);
    }

    fn begin_end(&mut self) {
        note!(self, "no more faults");
        self.finishing = true;
        self.objects.odds = Odds::default();
        self.objects.away_until = Time(0);
        self.end_second_faults();
        self.plan.quality.late = 0;
        for host in 0..self.hosts.len() {
            if self.hosts[host].slots.iter().any(|slot| slot.stopping) {
                self.crash_host(host, false);
            }
        }
        for volume in 0..self.volumes.len() {
            let epoch = self.volumes[volume].truth.epoch;
            let rank = |host: usize| {
                let slot = &self.hosts[host].slots[volume];
                let serves = matches!(slot.state, State::Running(_)) && slot.epoch == epoch;
                (serves && !slot.fenced, slot.wanted, slot.journal.is_some())
            };
            let owner = (0..self.hosts.len()).max_by_key(|host| rank(*host)).unwrap_or(0);
            note!(self, "h{owner} is to finish v{volume}");
            self.volumes[volume].finish = Stage::Owned(owner);
            for host in (0..self.hosts.len()).filter(|host| *host != owner) {
                self.slot(host, volume).wanted = false;
                self.stop_slot(host, volume);
            }
            self.slot(owner, volume).client.quiet = true;
        }
    }

    fn finish_volume(&mut self, owner: usize, volume: usize) {
        let late = self.now.0 > self.plan.chaos + DAMAGED_PATIENCE;
        let slot = self.slot(owner, volume);
        slot.client.quiet = true;
        if late && slot.journal.as_ref().is_some_and(|journal| journal.disk.damaged) {
            note!(self, "h{owner} v{volume} gives up a damaged journal");
            self.stop_slot(owner, volume);
            self.slot(owner, volume).journal = None;
        }
        if self.hosts[owner].up && matches!(self.slot(owner, volume).state, State::Down) {
            self.want(owner, volume);
            return;
        }
        let continues = self.plan.volumes[volume].continues;
        let slot = self.slot(owner, volume);
        let State::Running(machine) = &slot.state else { return };
        let sectors = machine.sectors();
        if slot.fenced {
            return;
        }
        if slot.stopping {
            if machine.is_drained() && slot.detached {
                let checked = self.compare(owner, volume);
                self.require(checked.map_err(|e| format!("volume {volume} at the end: {e}")));
                self.volumes[volume].finish = Stage::Done;
            }
        } else if slot.latched && !continues {
            self.stop_slot(owner, volume);
        } else if slot.client.is_idle() {
            if std::mem::replace(&mut slot.client.last_asked, true) {
                self.shut_down_slot(owner, volume);
            } else {
                self.ask_read(owner, volume, Range::new(0, sectors));
                self.ask_flush(owner, volume);
            }
        }
    }

    fn why_not_done(&self) -> String {
        let mut reasons = Vec::new();
        for (number, volume) in self.volumes.iter().enumerate() {
            let Stage::Owned(owner) = volume.finish else { continue };
            let slot = &self.hosts[owner].slots[number];
            let state = match &slot.state {
                State::Down => "is down".to_owned(),
                State::Attaching(_) => "asks for an epoch".to_owned(),
                State::Refused(error) => format!("is refused: {error}"),
                State::Running(machine) => format!(
                    "serves epoch {} (stopping {}, drained {}, detached {}): {:?}",
                    slot.epoch,
                    slot.stopping,
                    machine.is_drained(),
                    slot.detached,
                    machine.status(self.now)
                ),
            };
            let committed = volume.truth.log.len();
            reasons.push(format!(
                "host {owner} {state}; session {:?}; volume {number} has {committed} writes \
                 committed; client: {}",
                slot.session,
                slot.client.waiting()
            ));
        }
        reasons.join("; ")
    }

    /// Everything acknowledged is committed, and all ways to read it agree.
    fn compare(&mut self, owner: usize, volume: usize) -> Result<(), String> {
        let epoch = self.slot(owner, volume).epoch;
        let truth = &self.volumes[volume].truth;
        let Some(branch) = self.branches.get(&(volume, epoch)) else {
            return Err(format!("nobody serves epoch {epoch}"));
        };
        // A later epoch may have begun on a request that was on its way all the time; it has
        // written nothing then.
        if truth.epoch < epoch || truth.log != branch.log {
            return Err(format!(
                "host {owner} says that it is drained; {} writes were asked for in epoch {epoch}, \
                 {} are committed in epoch {}",
                branch.log.len(),
                truth.log.len(),
                truth.epoch
            ));
        }
        let replayed = self.replay_log(volume)?;
        if let Some(difference) = difference(&truth.image, &replayed) {
            return Err(format!("the segments as they are now: {difference}"));
        }
        let reopened = self.reopen(volume)?;
        let truth = &self.volumes[volume].truth;
        if let Some(difference) = difference(&truth.image, &reopened) {
            return Err(format!("a store that opens the volume afresh: {difference}"));
        }
        // A list of volumes that opens none of them shows at least the acknowledged sizes.
        let noted = self.objects.list(&catalog::size_prefix(self.volumes[volume].id));
        let noted = noted.last().map(|(key, _)| &self.objects.map[key]);
        let sizes = self.volumes[volume].truth.sizes.values();
        let noted = sizes.filter(|size| noted == Some(&catalog::encode_size(**size).into()));
        if noted.max().is_none_or(|noted| *noted < truth.resized)
            && truth.resized > self.volumes[volume].spec.created_sectors
        {
            return Err(format!("{} sectors were acknowledged and are not noted", truth.resized));
        }
        self.check_space(volume)?;
        self.coverage.logs_verified += 1;
        Ok(())
    }

    fn replay_log(&self, volume: usize) -> Result<Image, String> {
        let truth = &self.volumes[volume].truth;
        let mut image = vec![Stamp::default(); truth.image.len()];
        let mut through = 0;
        if !truth.deleted.is_empty()
            && let Some((found, segment)) = self.image_of_root(volume)?
        {
            image[..found.len()].copy_from_slice(&found);
            through = segment;
        }
        let prefix = catalog::segment_prefix(self.volumes[volume].id);
        for (key, _) in self.objects.list(&prefix) {
            let counts = |number| number > through && truth.order.has(number);
            if !catalog::parse_number(&prefix, &key).is_some_and(counts) {
                continue;
            }
            let object = &self.objects.map[&key];
            let segment = segment::verify(object).map_err(|e| format!("segment {key}: {e}"))?;
            let here = |restored: &&Restored| restored.segment == segment.header.number;
            if let Some(restored) = truth.restored.iter().find(here) {
                image.clone_from(&restored.image);
                continue;
            }
            let op_of =
                |seq: Seq| truth.log.get(usize::try_from(seq).ok()?.checked_sub(1)?).copied();
            let staged = |number| self.staged.get(&(volume, number));
            let mut packer = self.packer(volume);
            replay(&self.ops, &mut image, object, &segment, &mut packer, op_of, staged)
                .map_err(|e| format!("segment {key}: {e}"))?;
        }
        Ok(image)
    }

    /// Opens the volume with a store of its own and reads all of it as an observer.
    fn reopen(&mut self, volume: usize) -> Result<Image, String> {
        let spec = self.volumes[volume].spec.clone();
        let (id, sectors) = (spec.id, self.volumes[volume].truth.sectors);
        let mut now = self.now;
        let mut machine = store::Volume::open(now, spec, self.rng.wide(), self.store_config());
        let mut image = vec![Stamp::default(); sectors as usize];
        let mut lba = 0;
        while lba < sectors {
            let range = Range::new(lba, MAX_READ_SECTORS.min(sectors - lba));
            let message = ToStore::Read { request: lba, volume: id, epoch: 0, range };
            machine.handle_message(now, SessionId(1), Lane::Read, message.into());
            let mut answer = None;
            for _ in 0..100_000 {
                if let Some((number, operation)) = machine.poll_object() {
                    let result = self.object_at_once(&operation);
                    machine.handle_object(now, number, result);
                } else if let Some((_, _, frame)) = machine.poll_message() {
                    answer = Some(frame);
                    break;
                } else if let Some(due) = machine.poll_timeout() {
                    now = now.max(due);
                    machine.handle_timeout(now);
                } else {
                    break;
                }
            }
            let Some(frame) = answer else {
                return Err(format!("no answer to a read of {range}: {:?}", machine.failed()));
            };
            let found = shown(range, &frame, &mut self.packer(volume))?;
            image[range.lba as usize..range.end() as usize].copy_from_slice(&found);
            lba = range.end();
        }
        if machine.sectors() != Some(sectors) {
            return Err(format!("it has {:?} sectors, not {sectors}", machine.sectors()));
        }
        Ok(image)
    }

    pub(super) fn object_at_once(&self, operation: &ObjectOperation) -> ObjectResult {
        replica::at_once(&self.objects.map, operation)
    }
}
