//! Version tables of keyed volumes, the disk under them, and stores that lie about such volumes.
//!
//! The lie happens on the way to the host. In place of the store's answer comes a sector's earlier
//! record, zeroes, or content of another volume. No client may ever see it. The host must never
//! take an honest store for a lying one. So an error without a lie ends the world, and so does a
//! refused attach without a reason.

use super::{Event, MS, State, World};
use crate::disk::Disk;
use crate::note;
use crate::rng::Rng;
use bytes::Bytes;
use longhaul_core::block::{Range, VolumeId};
use longhaul_core::host::versions::{FILES, HEAD_BYTES, Head, Statement, Verdict};
use longhaul_core::host::{DiskOperation, DiskResult, Versions};
use longhaul_core::record::{self, packed};
use longhaul_core::wire::link::{
    self, Attached, Changes, Frame, Lane, Piece, ReadPart, ToHost, ToStore,
};
use std::collections::{BTreeMap, VecDeque};

/// Bytes of each file: more than any volume here needs.
const FILE_BYTES: u64 = 64 << 10;
/// Memory for pages. The table still keeps the least possible number.
const MEMORY_BYTES: u64 = 1;
/// Earlier records kept of a sector.
const EARLIER: usize = 4;

/// The table of a slot, and what is under way on its disk.
pub struct Table {
    disk: Option<Disk>,
    queue: VecDeque<DiskOperation>,
    busy: bool,
    rng: Rng,
    /// Its journal is gone, or accepts no more writes.
    pub(super) bereft: bool,
    /// It does not know all versions. The host believes the first one that it sees, so such a table
    /// gets no lies.
    partial: bool,
}

/// The answers that lying stores have seen pass by: for a sector of a volume, its records.
#[derive(Default)]
pub struct Liar {
    earlier: BTreeMap<(usize, u64), VecDeque<Option<Bytes>>>,
}

impl Table {
    pub fn new(rng: Rng) -> Table {
        Table {
            disk: None,
            queue: VecDeque::new(),
            busy: false,
            rng,
            bereft: false,
            partial: false,
        }
    }

    /// The process no longer does anything about it.
    pub fn stop(&mut self) {
        self.queue.clear();
        self.busy = false;
    }

    /// The disk is gone.
    pub fn lose(&mut self) {
        (self.disk, self.bereft) = (None, false);
    }

    fn head(&self, volume: VolumeId) -> Result<Option<Head>, String> {
        let Some(disk) = &self.disk else { return Ok(None) };
        let heads = disk.read(0, 0, 2 * HEAD_BYTES);
        Head::newest(volume, &heads).map_err(|error| error.to_string())
    }
}

impl World {
    /// Whether hosts of a volume keep versions.
    pub(super) fn has_versions(&self, volume: usize) -> bool {
        let plan = self.plan.volumes[volume];
        plan.encrypted && plan.acknowledge != crate::plan::Acknowledge::WriteThrough
    }

    /// The process dies, with or without its page cache.
    pub(super) fn crash_table(&mut self, host: usize, volume: usize, power: bool) {
        let table = &mut self.slot(host, volume).table;
        let Some(disk) = &mut table.disk else { return };
        if let Some(DiskOperation::Write { file, offset, data, .. }) = table.queue.front() {
            disk.write_part(*file, *offset, data, &mut table.rng);
        }
        let torn = power && disk.cut_power(&mut table.rng);
        self.coverage.tables_torn += u64::from(torn);
    }

    /// A state directory goes from one host to another.
    pub(super) fn carry_table(&mut self, from: usize, to: usize, volume: usize) {
        let carried = self.slot(from, volume).table.disk.take();
        let bereft = std::mem::take(&mut self.slot(from, volume).table.bereft);
        let partial = self.slot(from, volume).table.partial;
        let there = &mut self.slot(to, volume).table;
        (there.disk, there.bereft, there.partial) = (carried, bereft, partial);
    }

    /// A host got an epoch of a volume with versions. Compares that with its knowledge.
    pub(super) fn judge(
        &mut self,
        host: usize,
        volume: usize,
        attached: Attached,
        changes: Option<Changes>,
    ) {
        // Another host has attached it since. The store would say so in any answer.
        if self.volumes[volume].truth.epoch > attached.epoch {
            return self.gives_up(host, volume);
        }
        let (id, host_id) = (self.volumes[volume].id, self.hosts[host].id);
        let State::Attaching(attaching) = &self.hosts[host].slots[volume].state else { return };
        let ends = attaching.recovered.as_ref().map(|recovered| recovered.ends());
        let head = match self.slot(host, volume).table.head(id) {
            Ok(head) => head,
            Err(error) => return self.fail(format!("the table of host {host}: {error}")),
        };
        let statement = self.volumes[volume].statement;
        let asked = changes.is_some();
        let Some(head) = head else {
            let complete = attached.committed == 0;
            let key = [self.rng.draw() as u8; 32];
            return self.begin_table(
                (host, volume),
                Head::new(&attached, host_id, complete, key),
                attached,
                &[],
                true,
            );
        };
        if head.seq > 0 {
            // The same, had the store gone back.
            let committed = self.chaos_rng.fork(head.seq).below(head.seq);
            let lie = Attached { committed, ..attached.clone() };
            let verdict = head.judge(&lie, ends, statement, Some(Changes::Ranges(Vec::new())));
            if !matches!(verdict, Verdict::Refuse(_)) {
                return self.fail(format!(
                    "host {host} knows writes up to {} of volume {volume}, and {committed} are \
                     enough: {verdict:?}",
                    head.seq
                ));
            }
        }
        match head.judge(&attached, ends, statement, changes) {
            Verdict::Go(ranges) => {
                self.coverage.tables_kept += 1;
                self.coverage.versions_forgotten += ranges.len() as u64;
                let head = head.attached(&attached, host_id);
                self.begin_table((host, volume), head, attached, &ranges, false);
            }
            Verdict::Ask(since) if !asked => {
                note!(self, "h{host} v{volume} asks what changed since {since:?}");
                let request = self.number();
                let epoch = attached.epoch;
                let State::Attaching(attaching) = &mut self.slot(host, volume).state else {
                    return;
                };
                attaching.granted = Some((attached, request));
                let message = ToStore::Changed { request, volume: id, epoch, since };
                self.send_up(host, volume, Lane::Control, &message.into());
            }
            Verdict::Ask(since) => self.fail(format!("host {host} asks twice: {since:?}")),
            Verdict::Refuse(why) => {
                note!(self, "h{host} v{volume} refuses: {why}");
                let truth = &self.volumes[volume].truth;
                let excused = truth.history.iter().any(|begun| begun.host.0 == 0)
                    || !truth.deleted.is_empty()
                    || self.slot(host, volume).table.bereft
                    || self.plan.disk.write + self.plan.disk.sync > 0;
                if !excused {
                    return self.fail(format!(
                        "host {host} refuses volume {volume}, which nobody rolled back: {why}"
                    ));
                }
                // The operator knows why, and accepts it.
                self.coverage.rollbacks_accepted += 1;
                let key = [self.rng.draw() as u8; 32];
                let head = Head::new(&attached, host_id, false, key);
                self.begin_table((host, volume), head, attached, &[], true);
            }
        }
    }

    /// The store has said what changed.
    pub(super) fn judged(&mut self, host: usize, volume: usize, message: &ToHost) {
        let ToHost::Changed { request, result, .. } = message else { return };
        let State::Attaching(attaching) = &mut self.slot(host, volume).state else { return };
        let Some((attached, _)) = attaching.granted.take_if(|(_, number)| *number == *request)
        else {
            return;
        };
        match result.clone() {
            Ok(changes) => self.judge(host, volume, attached, Some(changes)),
            Err(_) => self.gives_up(host, volume),
        }
    }

    /// An attach has failed. A later one may succeed.
    fn gives_up(&mut self, host: usize, volume: usize) {
        self.stop_slot(host, volume);
        self.slot(host, volume).wanted = false;
        if self.finishing || self.chaos_rng.percent(50) {
            self.want(host, volume);
        }
    }

    fn begin_table(
        &mut self,
        (host, volume): (usize, usize),
        head: Head,
        attached: Attached,
        forgotten: &[Range],
        new: bool,
    ) {
        let (epoch, seq, key) = (attached.epoch, attached.committed, head.key());
        let statement = Statement { epoch, seq, key, root: None };
        self.volumes[volume].statement = Some(statement);
        let table = &mut self.slot(host, volume).table;
        table.bereft = false;
        if new {
            (table.disk, table.partial) = (None, false);
        }
        table.partial |= !head.complete || !forgotten.is_empty();
        let disk = table.disk.get_or_insert_with(|| Disk::new(FILES, FILE_BYTES));
        for file in 0..FILES {
            disk.sync(file);
        }
        disk.write(0, head.slot() * HEAD_BYTES as u64, &head.encode());
        disk.sync(0);
        let Some(versions) = Versions::new(head, attached.committed, forgotten, MEMORY_BYTES)
        else {
            return self.fail("a table without a key".to_owned());
        };
        self.attached(host, volume, attached, Some(versions));
    }

    pub(super) fn begin_versions(&mut self, host: usize, volume: usize, operation: DiskOperation) {
        let latency = self.plan.disk_latency;
        let at = self.at(host, volume);
        let table = &mut self.slot(host, volume).table;
        if let DiskOperation::Read { id, file, offset, bytes } = operation {
            let delay = table.rng.spread(latency / 4 + 1, latency * 2 + 2);
            return self.after(delay, Event::TableRead(at, id, file, offset, bytes));
        }
        table.queue.push_back(operation);
        self.next_versions(host, volume);
    }

    fn next_versions(&mut self, host: usize, volume: usize) {
        let latency = self.plan.disk_latency;
        let at = self.at(host, volume);
        // The slower the disk is, the longer a journal holds what the table there does not have
        // yet.
        let slow = if self.plan.relays { 200_000 } else { 5000 };
        let table = &mut self.slot(host, volume).table;
        if table.busy || table.queue.is_empty() {
            return;
        }
        table.busy = true;
        let mut delay = table.rng.spread(latency / 4 + 1, latency * 2 + 2);
        if table.rng.ppm(slow) {
            delay += table.rng.spread(MS, 400 * MS);
        }
        self.after(delay, Event::TableDone(at));
    }

    pub(super) fn table_read_done(
        &mut self,
        host: usize,
        volume: usize,
        id: u64,
        (file, offset, bytes): (u32, u64, usize),
    ) {
        let now = self.now;
        let slot = self.slot(host, volume);
        let Some(disk) = slot.table.disk.as_ref().filter(|disk| disk.holds(file, offset, bytes))
        else {
            return self.fail(format!("host {host} reads beyond its table: {file} {offset}"));
        };
        let result = DiskResult::Data { id, data: Bytes::from(disk.read(file, offset, bytes)) };
        if let Some(machine) = slot.machine() {
            machine.handle_versions(now, result);
        }
        self.pump_host(host, volume);
    }

    pub(super) fn table_done(&mut self, host: usize, volume: usize) {
        let now = self.now;
        let slot = self.slot(host, volume);
        slot.table.busy = false;
        let (Some(operation), Some(disk)) = (slot.table.queue.pop_front(), &mut slot.table.disk)
        else {
            return;
        };
        let id = match operation {
            DiskOperation::Write { id, file, offset, data, sync } => {
                disk.write(file, offset, &data);
                if sync {
                    disk.sync(file);
                }
                id
            }
            DiskOperation::Sync { id, file } => {
                disk.sync(file);
                id
            }
            DiskOperation::Read { .. } => return,
        };
        if let Some(machine) = slot.machine() {
            machine.handle_versions(now, DiskResult::Done { id });
        }
        self.next_versions(host, volume);
        self.pump_host(host, volume);
    }

    // --- lies ---

    /// The answer that a host gets: the true one, unless a store lies.
    pub(super) fn perhaps_lie(
        &mut self,
        (host, volume): (usize, usize),
        range: Option<Range>,
        frame: Frame<ToHost>,
    ) -> Frame<ToHost> {
        let (Some(range), true) = (range, self.plan.liar && self.has_versions(volume)) else {
            return frame;
        };
        let ToHost::Data { request, volume: id, result: Ok(pieces) } = &frame.message else {
            return frame;
        };
        let Some(parts) = sectors(*id, range, pieces, &frame.payload) else { return frame };
        let knows = !self.slot(host, volume).table.partial;
        let lies = knows && !self.finishing && self.chaos_rng.percent(15);
        let mut lie = Vec::new();
        for (n, record) in parts.iter().enumerate() {
            let lba = range.lba + n as u64;
            let earlier = self.liar.earlier.entry((volume, lba)).or_default();
            let chosen = match self.chaos_rng.below(10) {
                _ if !lies => record.clone(),
                0 => None,
                1 => {
                    let other = self.liar.earlier.keys().find(|(other, _)| *other != volume);
                    let other = other.and_then(|at| self.liar.earlier[at].back()?.clone());
                    other.or_else(|| record.clone())
                }
                _ => {
                    let n = self.chaos_rng.index(earlier.len() + 1);
                    earlier.get(n).unwrap_or(record).clone()
                }
            };
            let earlier = self.liar.earlier.entry((volume, lba)).or_default();
            if earlier.back() != Some(record) {
                earlier.push_back(record.clone());
            }
            if earlier.len() > EARLIER {
                earlier.pop_front();
            }
            lie.push(match chosen {
                None => ReadPart::Hole(1),
                Some(record) => ReadPart::Packed { wanted: Range::new(lba, 1), record },
            });
        }
        if !lies {
            return frame;
        }
        note!(self, "a store lies to h{host} v{volume} about {range}");
        self.coverage.lies += 1;
        link::encode_data(*request, *id, &lie)
    }
}

impl World {
    /// A host asks for its cache which ranges others wrote while it was away. A store that lies
    /// says: none.
    pub(super) fn perhaps_deny_changes(
        &mut self,
        (host, volume): (usize, usize),
        mut frame: Frame<ToHost>,
    ) -> Frame<ToHost> {
        let liar = self.plan.liar && self.has_versions(volume);
        // The version table asks while it attaches; what it does not know it believes.
        let cache = matches!(self.slot(host, volume).state, State::Running(_));
        if let ToHost::Changed { result: Ok(changes), .. } = &mut frame.message
            && liar
            && cache
            && *changes != Changes::Ranges(Vec::new())
            && self.chaos_rng.percent(70)
        {
            note!(self, "a store tells h{host} v{volume} that nothing was written");
            *changes = Changes::Ranges(Vec::new());
            self.coverage.changes_denied += 1;
        }
        frame
    }
}

/// The record of each sector of an answer; `None` for zeroes. Nothing if it has plain text.
fn sectors(
    volume: VolumeId,
    range: Range,
    pieces: &[Piece],
    payload: &Bytes,
) -> Option<Vec<Option<Bytes>>> {
    let parts = link::decode_data(range, pieces, payload.clone()).ok()?;
    let mut out = Vec::new();
    for part in parts {
        match part {
            ReadPart::Hole(sectors) | ReadPart::Zero(sectors) => {
                out.extend((0..sectors).map(|_| None));
            }
            ReadPart::Packed { wanted, record } => {
                let of = record::parse_prefix(volume, &record).ok()?.range;
                let lbas = wanted.lba..wanted.end();
                let cut = |lba| packed::cut(volume, of, Range::new(lba, 1), &record);
                out.extend(lbas.map(|lba| Some(cut(lba))));
            }
            ReadPart::Data { .. } => return None,
        }
    }
    Some(out)
}
