//! Clients: what initiators do to a volume, and the comparison of every answer with the model.

use super::copy::{Watch, copied};
use super::{Event, MS, State, World};
use crate::model::{Kind, Op, fill};
use crate::note;
use crate::plan::Acknowledge;
use crate::rng::Rng;
use bytes::Bytes;
use longhaul_core::block::{BlockError, Range, Reply, Request, Seq, Time};
use longhaul_core::host::Trace;
use longhaul_core::host::cache::Pins;
use std::collections::BTreeMap;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Read,
    /// The kind and, for each part that gets a number of its own, the numbers.
    Write(Kind, Seq, Seq),
    Flush,
    Status,
    Prefetch,
    Watch,
    /// The target volume, the place in it, and the watch.
    Stage(usize, u64, Option<u64>),
}

#[derive(Debug)]
pub(super) struct Pending {
    pub(super) asked: Asked,
    pub(super) range: Range,
    fua: bool,
    /// For reads and status: what they may show at least.
    floors: Vec<u32>,
    /// The last acknowledged write at the time of the request, which a flush covers.
    pub(super) cover: Seq,
    issued: Time,
}

/// The client of a volume at a host.
#[derive(Debug)]
pub struct Client {
    pub(super) rng: Rng,
    pending: BTreeMap<u64, Pending>,
    /// Present and earlier watches.
    pub(super) watches: Vec<Watch>,
    /// Reads in a row.
    walk: Option<Walk>,
    /// The recording of earlier reads.
    trace: Option<Trace>,
    /// The pins, which outlive the process.
    pub(super) pins: Pins,
    /// Whether the world is ending: no new random requests.
    pub(super) quiet: bool,
    /// Whether the last requests of the world have gone out.
    pub(super) last_asked: bool,
    awake: bool,
}

/// Reads at equal distances, forward or backward.
#[derive(Clone, Copy, Debug)]
struct Walk {
    next: Range,
    step: i64,
    left: u64,
}

impl Client {
    /// A client without requests.
    pub(super) fn new(rng: Rng) -> Client {
        let (pending, watches) = (BTreeMap::new(), Vec::new());
        Client {
            rng,
            pending,
            watches,
            walk: None,
            trace: None,
            pins: Pins::default(),
            quiet: false,
            last_asked: false,
            awake: false,
        }
    }

    /// Forgets its requests: the host is gone, nobody will ever learn their outcome.
    pub(super) fn reset(&mut self) {
        self.pending.clear();
        self.watches.clear();
        self.walk = None;
        self.awake = false;
        self.last_asked = false;
    }

    /// Whether nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// The requests under way, in words.
    pub(super) fn waiting(&self) -> String {
        let oldest = self.pending.values().next();
        let oldest =
            oldest.map(|p| format!("{:?} {} since {} ms", p.asked, p.range, p.issued.0 / MS));
        format!("{} requests, the oldest {oldest:?}", self.pending.len())
    }
}

/// A part of a volume of this many sectors, most often a small one.
fn somewhere(rng: &mut Rng, sectors: u64) -> Range {
    let most = if rng.percent(80) { 64 } else { sectors };
    let length = rng.between(1, most.min(sectors));
    Range::new(rng.below(sectors - length + 1), length)
}

impl World {
    /// Lets the client go on, now or a little later.
    pub(super) fn wake_client(&mut self, host: usize, volume: usize) {
        let think = self.plan.volumes[volume].think;
        let at = self.at(host, volume);
        let client = &mut self.slot(host, volume).client;
        if client.awake {
            return;
        }
        client.awake = true;
        let pause = if client.rng.percent(40) { 0 } else { client.rng.spread(1000, think) };
        self.after(pause, Event::Client(at));
    }

    pub(super) fn client_wakes(&mut self, host: usize, volume: usize) {
        let depth = self.plan.volumes[volume].depth as usize;
        let slot = self.slot(host, volume);
        slot.client.awake = false;
        if !matches!(slot.state, State::Running(_)) || slot.client.quiet || slot.stopping {
            return;
        }
        if slot.client.pending.len() < depth {
            self.ask_something(host, volume);
            self.wake_client(host, volume);
        }
    }

    fn ask_something(&mut self, host: usize, volume: usize) {
        let plan = self.plan.volumes[volume];
        let State::Running(machine) = &self.slot(host, volume).state else { return };
        // A client that has just connected: the others know of less.
        let sectors = machine.sectors();
        let rng = &mut self.slot(host, volume).client.rng;
        let what = rng.weighted(&plan.mix);
        let blocks = sectors / plan.block;
        let longest = (plan.longest / plan.block).max(1);
        let length = rng.spread(1, longest).min(blocks);
        // Half of the requests hit an eighth of the volume, so that they overlap.
        let area = if rng.percent(50) { (blocks / 8).max(length) } else { blocks };
        let mut first = rng.below(area - length + 1);
        if sectors > plan.sectors && rng.percent(20) {
            first = blocks - length;
        }
        let mut range = Range::new(first * plan.block, length * plan.block);
        if rng.percent(30) {
            // Whole checksum blocks, which coalescing is about.
            let cover = range.block_cover();
            range = if cover.fits(sectors) { cover } else { range };
        }
        let whole = Range::new(0, sectors);
        if matches!(what, 0 | 4 | 5 | 6) && rng.percent(4) {
            range = whole;
        }
        let allocate = rng.percent(50);
        let marker_fua = rng.percent(5);
        match what {
            0 => {
                let range = self.walk(host, volume, range, sectors);
                self.ask_read(host, volume, range);
                self.trace_or_limit(host, volume);
            }
            1 => self.ask_write(host, volume, Kind::Data, range, false),
            2 => self.ask_write(host, volume, Kind::Data, range, true),
            3 => self.ask_flush(host, volume),
            4 => self.ask_write(host, volume, Kind::Discard, range, marker_fua),
            5 => self.ask_write(host, volume, Kind::Zero(allocate), range, marker_fua),
            6 => {
                let floors = self.floors(host, volume, range);
                self.ask(host, volume, Asked::Status, range, floors, Request::Status(range), false);
            }
            7 => {
                let request = Request::Prefetch(range);
                self.ask(host, volume, Asked::Prefetch, range, Vec::new(), request, false);
            }
            8 => self.ask_stage(host, volume, range),
            _ => self.ask_write_staged(host, volume, marker_fua),
        }
    }

    /// Where the client reads: on from its last read, or at `range`, from where it may go on.
    fn walk(&mut self, host: usize, volume: usize, range: Range, sectors: u64) -> Range {
        let plan = self.plan.volumes[volume];
        let client = &mut self.slot(host, volume).client;
        if !client.rng.percent(plan.walk) {
            return range;
        }
        let rng = &mut client.rng;
        let walk = client.walk.take().unwrap_or_else(|| {
            let length = range.sectors.min(2 * plan.block);
            let apart = if rng.percent(60) { 0 } else { rng.between(1, 4) * plan.block };
            let step = (length + apart) as i64;
            let step = if rng.percent(60) { step } else { -step };
            let left = rng.between(4, 64);
            Walk { next: Range::new(range.lba, length), step, left }
        });
        let next = walk.next.lba.checked_add_signed(walk.step);
        let next = next.map(|lba| Range::new(lba, walk.next.sectors));
        client.walk = next.filter(|next| next.fits(sectors) && walk.left > 0).map(|next| Walk {
            next,
            left: walk.left - 1,
            ..walk
        });
        walk.next
    }

    /// Now and then an operator records reads, replays a trace, or changes the limits.
    fn trace_or_limit(&mut self, host: usize, volume: usize) {
        let (now, limits) = (self.now, self.plan.volumes[volume].limits);
        let slot = self.slot(host, volume);
        let State::Running(machine) = &mut slot.state else { return };
        let client = &mut slot.client;
        match client.rng.below(100) {
            0..4 if client.trace.is_none() => {
                let begun = machine.handle_record(now);
                if !begun {
                    client.trace = machine.handle_stop_recording(now);
                }
            }
            0..4 => {
                if let Some(trace) = client.trace.take() {
                    machine.handle_replay(now, &trace);
                }
            }
            4 => {
                let (drain, readahead) = limits;
                let some = |rng: &mut Rng, limit: Option<u64>| limit.filter(|_| rng.percent(50));
                let drain = some(&mut client.rng, drain);
                let readahead = some(&mut client.rng, readahead);
                machine.handle_limits(now, drain, readahead);
                self.coverage.limits_changed += 1;
            }
            5..9 => {
                let range = somewhere(&mut client.rng, machine.sectors());
                if client.rng.percent(60) {
                    client.pins.add(range);
                } else {
                    client.pins.remove(range);
                }
                machine.handle_pins(now, client.pins.clone());
            }
            9..13 => {
                let range = somewhere(&mut client.rng, machine.sectors());
                if machine.handle_warm(now, &[range]).is_err() && client.rng.percent(20) {
                    machine.handle_stop_warming(now);
                }
            }
            _ => {}
        }
        self.pump_host(host, volume);
    }

    fn floors(&self, host: usize, volume: usize, range: Range) -> Vec<u32> {
        let epoch = self.hosts[host].slots[volume].epoch;
        self.branches.get(&(volume, epoch)).map(|branch| branch.floors(range)).unwrap_or_default()
    }

    /// Reads a range.
    pub(super) fn ask_read(&mut self, host: usize, volume: usize, range: Range) {
        let floors = self.floors(host, volume, range);
        self.note_early_read(host, volume, range, &floors);
        self.ask(host, volume, Asked::Read, range, floors, Request::Read(range), false);
    }

    /// Flushes.
    pub(super) fn ask_flush(&mut self, host: usize, volume: usize) {
        let none = Range::new(0, 0);
        self.ask(host, volume, Asked::Flush, none, Vec::new(), Request::Flush, false);
    }

    fn ask_write(&mut self, host: usize, volume: usize, kind: Kind, range: Range, fua: bool) {
        let epoch = self.hosts[host].slots[volume].epoch;
        let longest = self.record_sectors(volume);
        let Some(branch) = self.branches.get_mut(&(volume, epoch)) else { return };
        let first = branch.log.len() as Seq + 1;
        let mut data = Vec::with_capacity(range.bytes() as usize);
        let plan = self.plan.volumes[volume];
        let packed = if plan.packs() { plan.packed_sectors } else { u64::MAX };
        for whole in parts(kind, range, longest) {
            let (mut one, mut last) = (None, 0);
            for part in parts(kind, whole, packed) {
                let id = self.ops.push(Op { volume, kind, range: part });
                branch.push(id, part);
                for lba in part.lba..part.end() {
                    fill(volume, id, lba, &mut data);
                }
                one.get_or_insert(id);
                last = id;
            }
            let first = one.unwrap_or(last);
            self.ops.join(first, last);
            self.coverage.writes_packed += u64::from(plan.packs() && kind == Kind::Data);
            self.coverage.writes_joined += u64::from(first < last);
        }
        let last = branch.log.len() as Seq;
        let request = match kind {
            Kind::Data => Request::Write { range, data: Bytes::from(data), fua },
            Kind::Discard => Request::Discard { range, fua },
            Kind::Zero(allocate) => Request::Zero { range, allocate, fua },
            Kind::Copy(_) | Kind::Again(_) => {
                return self.fail("copies are asked for elsewhere".to_owned());
            }
        };
        self.ask(host, volume, Asked::Write(kind, first, last), range, Vec::new(), request, fua);
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn ask(
        &mut self,
        host: usize,
        volume: usize,
        asked: Asked,
        range: Range,
        floors: Vec<u32>,
        request: Request,
        fua: bool,
    ) {
        let number = self.number();
        let now = self.now;
        let epoch = self.hosts[host].slots[volume].epoch;
        let cover = self.branches.get(&(volume, epoch)).map_or(0, |branch| branch.acknowledged);
        note!(self, "h{host} v{volume} #{number} asks {asked:?} {range} fua {fua} cover {cover}");
        let slot = self.slot(host, volume);
        let pending = Pending { asked, range, fua, floors, cover, issued: now };
        slot.client.pending.insert(number, pending);
        if let State::Running(machine) = &mut slot.state {
            machine.handle_request(now, number, request);
        }
        self.pump_host(host, volume);
    }

    /// Compares an answer with the model.
    pub(super) fn answered(
        &mut self,
        host: usize,
        volume: usize,
        number: u64,
        result: Result<Reply, BlockError>,
    ) {
        let Some(pending) = self.slot(host, volume).client.pending.remove(&number) else {
            return self
                .fail(format!("request {number} of host {host} was answered without being asked"));
        };
        note!(self, "h{host} v{volume} #{number} answered {}", brief(&result));
        match result {
            Ok(reply) => self.succeeded(host, volume, number, &pending, &reply),
            Err(error) => self.failed(host, volume, number, &pending, error),
        }
        self.wake_client(host, volume);
    }

    fn succeeded(
        &mut self,
        host: usize,
        volume: usize,
        number: u64,
        pending: &Pending,
        reply: &Reply,
    ) {
        let epoch = self.hosts[host].slots[volume].epoch;
        let now = self.now;
        let Some(branch) = self.branches.get_mut(&(volume, epoch)) else { return };
        match (pending.asked, reply) {
            (Asked::Read, Reply::Data(pieces)) => {
                self.coverage.reads_checked += 1;
                self.coverage.sectors_checked += pending.range.sectors;
                let checked = branch.check_read(pending.range, &pending.floors, pieces, &self.ops);
                self.coverage.copies_found += copied(volume, pending.range.lba, pieces);
                let context = |e| format!("read #{number} at host {host}, epoch {epoch}: {e}");
                self.require(checked.map_err(context));
            }
            (Asked::Status, Reply::Status(runs)) => {
                self.coverage.status_checked += 1;
                let checked = branch.check_status(pending.range, &pending.floors, runs, &self.ops);
                let context = |e| format!("status #{number} at host {host}, epoch {epoch}: {e}");
                self.require(checked.map_err(context));
            }
            (Asked::Write(kind, first, seq), Reply::Done) => {
                let written: Vec<(Seq, Range)> = (first..=seq)
                    .map(|seq| (seq, self.ops.get(branch.log[seq as usize - 1]).range))
                    .collect();
                for (seq, range) in &written {
                    branch.acknowledge(*seq, *range);
                }
                match kind {
                    Kind::Data => {
                        self.coverage.writes_acknowledged += 1;
                        let created = self.volumes[volume].spec.created_sectors;
                        self.coverage.writes_beyond += u64::from(!pending.range.fits(created));
                    }
                    Kind::Copy(_) => self.coverage.copies_acknowledged += 1,
                    _ => self.coverage.markers_acknowledged += 1,
                }
                let recent = &mut self.slot(host, volume).recent;
                recent.extend(written.into_iter().map(|(seq, range)| (now, seq, range)));
                if pending.fua {
                    self.coverage.fua_acknowledged += 1;
                    self.promised(host, volume, seq, "a FUA write");
                } else if self.plan.volumes[volume].acknowledge == Acknowledge::WriteThrough {
                    self.promised(host, volume, seq, "a write through");
                } else {
                    self.survives_the_process(host, volume, seq);
                }
            }
            (Asked::Flush, Reply::Done) => {
                self.coverage.flushes_acknowledged += 1;
                self.promised(host, volume, pending.cover, "a flush");
            }
            (Asked::Prefetch, Reply::Done) => {}
            (Asked::Watch, Reply::Watching(watch)) => {
                self.watching(host, volume, pending, *watch);
            }
            (Asked::Stage(into, lba, watch), Reply::Staged(pieces)) => {
                let checked = self.staged(host, volume, pending, (into, lba, watch), pieces);
                let context = |e| format!("staging #{number} of host {host}, epoch {epoch}: {e}");
                self.require(checked.map_err(context));
            }
            (asked, reply) => self.fail(format!("{asked:?} was answered with {reply:?}")),
        }
    }

    /// Something said that everything up to `seq` is durable.
    fn promised(&mut self, host: usize, volume: usize, seq: Seq, what: &str) {
        let slot = &self.hosts[host].slots[volume];
        let latched = match &slot.state {
            State::Running(machine) => machine.status(self.now).latched,
            _ => false,
        };
        let epoch = slot.epoch;
        let Some(branch) = self.branches.get_mut(&(volume, epoch)) else { return };
        branch.flushed = branch.flushed.max(seq);
        let at_store = latched || self.plan.volumes[volume].acknowledge != Acknowledge::Host;
        if at_store {
            let truth = &self.volumes[volume].truth.log;
            let held =
                truth.len() as Seq >= seq && truth[..seq as usize] == branch.log[..seq as usize];
            if !held {
                let have = truth.len();
                self.fail(format!(
                    "{what} of host {host}, epoch {epoch}, promised writes up to {seq} to be at \
                     the store, which holds {have}"
                ));
            }
        } else if self.plan.shadow > 0 {
            let shadow = self.plan.shadow;
            if self.slot(host, volume).disk_rng.percent(shadow) {
                self.shadow(host, volume, seq, what, true);
            }
        }
    }

    /// A write was acknowledged: the process may die now, and the write stays.
    fn survives_the_process(&mut self, host: usize, volume: usize, seq: Seq) {
        let latched = match &self.hosts[host].slots[volume].state {
            State::Running(machine) => machine.status(self.now).latched,
            _ => false,
        };
        let odds = self.plan.shadow / 4;
        // After a journal failure memory is all there is, until the store has it.
        if !latched && self.slot(host, volume).disk_rng.percent(odds) {
            self.shadow(host, volume, seq, "an acknowledged write", false);
        }
    }

    fn failed(
        &mut self,
        host: usize,
        volume: usize,
        number: u64,
        pending: &Pending,
        error: BlockError,
    ) {
        let slot = &self.hosts[host].slots[volume];
        let damaged = slot.journal.as_ref().is_some_and(|journal| journal.disk.damaged);
        let allowed = match error {
            BlockError::Fenced => self.volumes[volume].truth.epoch > slot.epoch,
            BlockError::ShuttingDown => slot.stopping,
            BlockError::Stopped => {
                let failed = match &slot.state {
                    State::Running(machine) => machine.status(self.now).latched,
                    _ => false,
                };
                failed && !self.plan.volumes[volume].continues
            }
            BlockError::Medium(_) => damaged || (self.plan.liar && self.has_versions(volume)),
            BlockError::Changed => self.may_have_changed(host, volume, pending),
            BlockError::NoSpace => false,
            // The store cannot read what it would have to copy.
            BlockError::Unsupported => {
                let stages = matches!(pending.asked, Asked::Stage(..));
                self.coverage.copies_refused += u64::from(stages);
                stages && self.plan.volumes[volume].encrypted
            }
        };
        if matches!(error, BlockError::Medium(_)) {
            self.coverage.medium_errors += 1;
        }
        if !allowed {
            self.fail(format!(
                "request #{number} of host {host} ({pending:?}) failed without cause: {error}"
            ));
        }
    }
}

/// A write's parts, each a record with a number of its own: at most `longest` sectors, cut where
/// checksum blocks end.
fn parts(kind: Kind, range: Range, longest: u64) -> Vec<Range> {
    if kind == Kind::Data { cut(range, longest) } else { vec![range] }
}

pub(super) fn cut(range: Range, longest: u64) -> Vec<Range> {
    let mut parts = Vec::new();
    let mut lba = range.lba;
    while lba < range.end() {
        let end = (lba.saturating_add(longest) / 8 * 8).min(range.end());
        parts.push(Range::between(lba, end));
        lba = end;
    }
    parts
}

fn brief(result: &Result<Reply, BlockError>) -> String {
    match result {
        Ok(Reply::Data(pieces)) => format!("{} pieces", pieces.len()),
        other => format!("{other:?}"),
    }
}
