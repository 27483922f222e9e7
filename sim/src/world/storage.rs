//! The disk under a host's journals: what becomes of each operation, and recovery from what is
//! left.

use super::{Event, MS, World};
use crate::disk::{Covered, Disk};
use crate::note;
use crate::rng::Rng;
use bytes::Bytes;
use longhaul_core::block::{Seq, VolumeId};
use longhaul_core::host::journal::{self, Geometry, Recovered, Recovery};
use longhaul_core::host::{DiskOperation, DiskResult};

/// Writes and syncs of a journal that are under way, in the order of their beginnings. They end in
/// any order.
#[derive(Default)]
pub(super) struct UnderWay(Vec<Begun>);

struct Begun {
    id: u64,
    operation: DiskOperation,
    /// For a sync.
    covered: Option<Covered>,
}

impl UnderWay {
    /// The process dies. Any part of each write is in the page cache then.
    pub(super) fn cut_short(&self, disk: &mut Disk, rng: &mut Rng) {
        for begun in &self.0 {
            if let DiskOperation::Write { file, offset, data, .. } = &begun.operation {
                disk.write_part(*file, *offset, data, rng);
            }
        }
    }

    fn end(&mut self, id: u64) -> Option<Begun> {
        let place = self.0.iter().position(|begun| begun.id == id)?;
        Some(self.0.remove(place))
    }
}

impl World {
    pub(super) fn recover(&mut self, host: usize, volume: usize) -> Result<Recovered, String> {
        let (id, keyed) = (self.volumes[volume].id, self.has_versions(volume));
        let Some(journal) = &mut self.slot(host, volume).journal else {
            return Err("there is no journal".to_owned());
        };
        let dropped = journal.disk.settle();
        let outcome = recover(&mut journal.disk, id, keyed);
        self.coverage.deceptive_caches_dropped += u64::from(dropped);
        outcome
    }

    /// Recovers a copy of the disk as the death of the process now, or a power cut, would leave it.
    pub(super) fn shadow(&mut self, host: usize, volume: usize, seq: Seq, what: &str, power: bool) {
        let id = self.volumes[volume].id;
        let committed = self.volumes[volume].truth.log.len() as Seq;
        let Some(mut disk) = self.shadow_disk(host, volume, power) else { return };
        let fate = if power { "a power cut" } else { "the death of the process" };
        if disk.damaged {
            return;
        }
        self.coverage.shadow_recoveries += 1;
        match recover(&mut disk, id, false) {
            Ok(recovered) => {
                let last = recovered.state().map_or(0, |state| state.last);
                if last.max(committed) >= seq {
                    return;
                }
                self.fail(format!(
                    "{what} of host {host} promised writes up to {seq}, but {fate} now leaves \
                     {last} in the journal and {committed} at the store"
                ));
            }
            Err(error) => self.fail(format!(
                "{fate} now leaves host {host} a journal that cannot be recovered: {error}"
            )),
        }
    }

    pub(super) fn begin_disk(&mut self, host: usize, volume: usize, operation: DiskOperation) {
        let odds = self.plan.disk.flip;
        let latency = self.plan.disk_latency;
        if let DiskOperation::Read { id, file, offset, bytes } = operation {
            let flip = self.disk_fault(host, volume, odds);
            let at = self.at(host, volume);
            let slot = self.slot(host, volume);
            let delay = slot.disk_rng.spread(latency / 4 + 1, latency * 2 + 2);
            let mut rng = slot.disk_rng.clone();
            let Some(disk) = slot.disk() else {
                return self.fail(format!("host {host} reads a journal that it does not have"));
            };
            if !disk.holds(file, offset, bytes) {
                return self
                    .fail(format!("host {host} reads beyond its journal file: {operation:?}"));
            }
            if flip {
                disk.flip(file, offset, bytes, &mut rng);
                note!(self, "h{host} v{volume} a bit flips in file {file} at {offset}+{bytes}");
                self.coverage.disk_flips += 1;
            }
            self.after(delay, Event::DiskRead(at, id, file, offset, bytes));
            return;
        }
        let at = self.at(host, volume);
        let slot = self.slot(host, volume);
        let (id, synced, sync) = match &operation {
            DiskOperation::Write { id, sync, .. } => (*id, None, *sync),
            DiskOperation::Sync { id, file } => (*id, Some(*file), true),
            DiskOperation::Read { .. } => return,
        };
        let mut delay = slot.disk_rng.spread(latency / 4 + 1, latency * 2 + 2);
        if sync {
            delay += slot.disk_rng.spread(latency, latency * 10 + 2);
        }
        if slot.disk_rng.ppm(5000) {
            delay += slot.disk_rng.spread(MS, 400 * MS);
        }
        let covered = match (synced, slot.disk()) {
            (None, _) => None,
            (Some(file), Some(disk)) => Some(disk.begin_sync(file)),
            (Some(_), None) => {
                return self.fail(format!("host {host} syncs a journal that it does not have"));
            }
        };
        slot.disk_operations.0.push(Begun { id, operation, covered });
        let together = slot.disk_operations.0.len() as u64;
        self.coverage.disk_together += u64::from(together > 1);
        self.after(delay, Event::DiskDone(at, id));
    }

    pub(super) fn disk_read_done(
        &mut self,
        host: usize,
        volume: usize,
        id: u64,
        place: (u32, u64, usize),
    ) {
        let now = self.now;
        let slot = self.slot(host, volume);
        let Some(disk) = slot.disk() else { return };
        let data = Bytes::from(disk.read(place.0, place.1, place.2));
        note!(self, "h{host} v{volume} disk read {id} file {} at {}+{}", place.0, place.1, place.2);
        let slot = self.slot(host, volume);
        if let Some(machine) = slot.machine() {
            machine.handle_disk(now, DiskResult::Data { id, data });
        }
        self.pump_host(host, volume);
    }

    pub(super) fn disk_done(&mut self, host: usize, volume: usize, id: u64) {
        let now = self.now;
        let odds = self.plan.disk;
        let write_fails = self.disk_fault(host, volume, odds.write);
        let sync_fails = self.disk_fault(host, volume, odds.sync);
        let misdirected = self.disk_fault(host, volume, odds.misdirect);
        let ring = self.geometry(volume).ring();
        let slot = self.slot(host, volume);
        let Some(Begun { operation, covered, .. }) = slot.disk_operations.end(id) else { return };
        let mut rng = slot.disk_rng.clone();
        slot.disk_rng.draw();
        let Some(journal) = &mut slot.journal else {
            return self.fail(format!("host {host} writes a journal that it does not have"));
        };
        let disk = &mut journal.disk;
        let failed = |id, error: &str| DiskResult::Failed { id, error: error.to_owned() };
        let mut wrapped = 0;
        let lands_elsewhere = misdirected && matches!(operation, DiskOperation::Write { .. });
        let result = match &operation {
            DiskOperation::Write { id, file, offset, data, sync } => {
                if !disk.holds(*file, *offset, data.len()) || *offset < 4096 {
                    return self.fail(format!(
                        "host {host} writes file {file} at {offset}+{}, outside its frame area",
                        data.len()
                    ));
                }
                journal.written_bytes += data.len() as u64;
                wrapped = u64::from(
                    journal.written_bytes / ring
                        > (journal.written_bytes - data.len() as u64) / ring,
                );
                if write_fails {
                    disk.write_part(*file, *offset, data, &mut rng);
                    self.coverage.disk_write_errors += 1;
                    failed(*id, "injected write error")
                } else {
                    let (mut file, mut offset) = (*file, *offset);
                    if misdirected {
                        (file, offset) = disk.somewhere(data.len(), &mut rng);
                        disk.damaged = true;
                    }
                    match (*sync, sync_fails) {
                        (true, true) => {
                            disk.fail_write_durably(file, offset, data, &mut rng);
                            self.coverage.disk_sync_errors += 1;
                            failed(*id, "injected sync error")
                        }
                        (true, false) => {
                            disk.write_durably(file, offset, data);
                            DiskResult::Done { id: *id }
                        }
                        (false, _) => {
                            disk.write(file, offset, data);
                            DiskResult::Done { id: *id }
                        }
                    }
                }
            }
            DiskOperation::Sync { id, .. } => {
                let Some(covered) = covered else { return };
                if sync_fails {
                    disk.fail_sync(covered, &mut rng);
                    self.coverage.disk_sync_errors += 1;
                    failed(*id, "injected sync error")
                } else if disk.finish_sync(covered) {
                    DiskResult::Done { id: *id }
                } else {
                    failed(*id, "another sync has lost a write")
                }
            }
            DiskOperation::Read { .. } => return,
        };
        self.coverage.ring_wraps += wrapped;
        self.coverage.disk_misdirected += u64::from(lands_elsewhere);
        note!(self, "h{host} v{volume} disk {} -> {}", describe(&operation), brief(&result));
        if let Some(machine) = self.slot(host, volume).machine() {
            machine.handle_disk(now, result);
        }
        self.pump_host(host, volume);
    }
}

/// Makes the files of a new journal.
pub(super) fn create(
    disk: &mut Disk,
    geometry: Geometry,
    tag: u128,
    volume: VolumeId,
) -> Result<Recovered, String> {
    for (file, page) in journal::create_plan(geometry, tag, volume).map_err(|e| e.to_string())? {
        disk.write(file, 0, &page);
        disk.sync(file);
    }
    Ok(Recovered::empty(geometry, tag, volume))
}

/// Runs recovery over the files as they are now.
fn recover(disk: &mut Disk, volume: VolumeId, keyed: bool) -> Result<Recovered, String> {
    let lengths = (0..disk.files()).map(|file| disk.length(file)).collect();
    let mut recovery = Recovery::new(Some(volume), lengths);
    if keyed {
        recovery = recovery.with_versions();
    }
    loop {
        if let Some(outcome) = recovery.poll_outcome() {
            return outcome.map_err(|error| error.to_string());
        }
        match recovery.poll_disk() {
            Some(DiskOperation::Read { id, file, offset, bytes })
                if disk.holds(file, offset, bytes) =>
            {
                let data = Bytes::from(disk.read(file, offset, bytes));
                recovery.handle_disk(DiskResult::Data { id, data });
            }
            Some(other) => return Err(format!("recovery asks for {}", describe(&other))),
            None => return Err("recovery has stopped without an outcome".to_owned()),
        }
    }
}

fn describe(operation: &DiskOperation) -> String {
    match operation {
        DiskOperation::Write { id, file, offset, data, sync } => {
            format!("write {id} file {file} at {offset}+{} sync {sync}", data.len())
        }
        DiskOperation::Sync { id, file } => format!("sync {id} file {file}"),
        DiskOperation::Read { id, file, offset, bytes } => {
            format!("read {id} file {file} at {offset}+{bytes}")
        }
    }
}

fn brief(result: &DiskResult) -> String {
    match result {
        DiskResult::Done { .. } => "done".to_owned(),
        DiskResult::Data { data, .. } => format!("{} bytes", data.len()),
        DiskResult::Failed { error, .. } => error.clone(),
    }
}
