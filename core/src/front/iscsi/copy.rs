//! Copies between the units of a target: which units a copy may reach, and its parts on their way.
//!
//! **The one place where it is decided whether a copy may use a unit is [`Target::reach`]**, asked
//! for every part anew. An initiator that names a volume by its designator gets no further than one that
//! logs in to it: it has to be *allowed* to use the volume, with the name, the CHAP user and from the
//! place that the session with its command has, and it has to *have* a session with the unit, under that
//! name and user. Parts go through that session's nexus, so the unit judges them (reservations, write
//! protection) as it judges the commands of that session. Where there is no such session, the unit is not
//! reachable, whether it exists or not.

use super::session::Session;
use super::target::Target;
use super::{DeviceId, Identity};
use crate::block::Range;
use crate::front::scsi::copy::{
    CopyFailure, CopyJob, CopyMove, CopyPart, CopyPlan, CopyProblem, Designator, PartFailure,
    PartId, PartOrder, PartReply, Rod, SegmentDescriptor,
};
use crate::front::scsi::{NexusId, Side, TaskId};
use std::collections::{BTreeMap, VecDeque};

/// Parts have names that no task of a session has: no session has the serial number 0.
const PART_IDS: u64 = 1 << 40;

/// Names a copy: the device that was asked for it, and its name there.
type CopyId = (DeviceId, u64);

/// What a device has said about copies.
#[derive(Debug)]
pub(super) enum Said {
    /// A copy is to begin.
    Begin {
        /// Of whom.
        copy: CopyId,
        /// The command.
        task: TaskId,
        /// What to copy.
        plan: CopyPlan,
    },
    /// It is to end.
    End {
        /// Which.
        copy: CopyId,
    },
    /// A part of one has ended.
    Part {
        /// Which.
        task: TaskId,
        /// How.
        result: Result<PartReply, PartFailure>,
    },
}

#[derive(Debug)]
struct Copy {
    /// Session that asked for it.
    serial: u32,
    job: CopyJob,
    /// The token that it uses, and of which device.
    token: Option<(DeviceId, u64)>,
    parts: BTreeMap<PartId, (DeviceId, TaskId)>,
}

/// All copies under way.
#[derive(Debug, Default)]
pub(super) struct Copies {
    copies: BTreeMap<CopyId, Copy>,
    parts: BTreeMap<TaskId, (CopyId, PartId)>,
    said: VecDeque<Said>,
    last_part: u64,
}

impl Copies {
    pub(super) fn say(&mut self, said: Said) {
        self.said.push_back(said);
    }
}

fn is_same_initiator(a: &Identity, b: &Identity) -> bool {
    a.initiator == b.initiator && a.user == b.user
}

impl Target {
    /// The nexus through which a copy that session `serial` asked for may use a device; see the head of
    /// this module. Of several, one that reservations do not keep out.
    fn reach(&self, serial: u32, device: DeviceId, write: bool) -> Option<NexusId> {
        let (own, unit) = (self.sessions.get(&serial)?, self.units.get(&device)?);
        let Identity { initiator, user, .. } = &own.identity;
        if !self.access.may_use(initiator, user.as_deref(), own.loopback, &unit.volume) {
            return None;
        }
        let usable = |session: &&Session| {
            session.device == Some(device)
                && !session.ended
                && is_same_initiator(&session.identity, &own.identity)
                && session.is_allowed(&self.access)
        };
        if usable(&own) {
            return Some(own.nexus);
        }
        let mut nexuses = self.sessions.values().filter(usable).map(|session| session.nexus);
        let first = nexuses.next()?;
        let lets = |nexus: &NexusId| unit.device.lets(*nexus, write);
        Some(std::iter::once(first).chain(nexuses).find(lets).unwrap_or(first))
    }

    /// The device of that name, among those that the copy may use.
    fn find(&self, serial: u32, name: &Designator, write: bool) -> Option<DeviceId> {
        let mut called = self
            .units
            .iter()
            .filter(|(id, unit)| {
                unit.device.is_called(name) && self.reach(serial, **id, write).is_some()
            })
            .map(|(id, _)| *id);
        let found = called.next()?;
        // Names that are cut from longer ones may be the same.
        called.next().is_none().then_some(found)
    }

    /// Does what devices have said about copies, and what follows.
    pub(super) fn run_copies(&mut self) {
        while let Some(said) = self.copies.said.pop_front() {
            match said {
                Said::Begin { copy, task, plan } => self.begin_copy(copy, task, plan),
                Said::End { copy } => {
                    if let Some(it) = self.copies.copies.get_mut(&copy) {
                        it.job.stop();
                    }
                    self.advance_copy(copy);
                }
                Said::Part { task, result } => {
                    if let Some((copy, part)) = self.copies.parts.remove(&task) {
                        self.part_ended(copy, part, result);
                    }
                }
            }
        }
    }

    fn begin_copy(&mut self, copy: CopyId, task: TaskId, plan: CopyPlan) {
        let serial = super::tasks::Tasks::serial_of(task);
        let mut token = None;
        let moves = match plan {
            CopyPlan::Segments { descriptors, segments } => {
                let plain = |(index, segment): (usize, &SegmentDescriptor)| {
                    let failed = |problem| CopyFailure { segment: index as u16, problem };
                    self.segment(serial, &descriptors, segment).map_err(failed)
                };
                segments.iter().enumerate().map(plain).collect()
            }
            CopyPlan::Zeroes { ranges } => self.zeroes(copy.0, &ranges),
            CopyPlan::Token { token: bytes, creator, skip, ranges, delete } => {
                let unknown = CopyFailure { segment: 0, problem: CopyProblem::unknown_token() };
                let source = self.find(serial, &creator, false).ok_or(unknown);
                let now = self.now;
                source.and_then(|source| {
                    let unit = self.units.get_mut(&source).ok_or(unknown)?;
                    let used = unit.device.use_token(now, &bytes, delete);
                    let grant = used.map_err(|code| CopyFailure {
                        segment: 0,
                        problem: CopyProblem::Token(code),
                    })?;
                    token = Some((source, grant.id));
                    self.redeem(copy.0, source, &grant, skip, &ranges)
                })
            }
        };
        let (job, failure) = match moves {
            Ok(moves) => (CopyJob::new(moves), None),
            Err(failure) => (CopyJob::new(Vec::new()), Some(failure)),
        };
        let it = Copy { serial, job, token, parts: BTreeMap::new() };
        self.copies.copies.insert(copy, it);
        match failure {
            Some(failure) => self.end_copy(copy, Err(failure)),
            None => self.advance_copy(copy),
        }
    }

    /// What a segment of an EXTENDED COPY moves.
    fn segment(
        &self,
        serial: u32,
        descriptors: &[crate::front::scsi::copy::CscdDescriptor],
        segment: &SegmentDescriptor,
    ) -> Result<CopyMove, CopyProblem> {
        let unit = |index: u16, side: Side| {
            let descriptor =
                descriptors.get(usize::from(index)).ok_or(CopyProblem::NoDescriptor(side))?;
            let write = side == Side::Destination;
            let found =
                descriptor.designator.as_ref().and_then(|name| self.find(serial, name, write));
            let id = found.ok_or(CopyProblem::NotReachable(side))?;
            let unit = self.units.get(&id).ok_or(CopyProblem::NotReachable(side))?;
            if unit.device.block_bytes() != descriptor.block_bytes {
                return Err(CopyProblem::BlockLength(index));
            }
            Ok((id, &unit.device))
        };
        let (source, from) = unit(segment.source, Side::Source)?;
        let (destination, to) = unit(segment.destination, Side::Destination)?;
        let counted = if segment.of_destination { to } else { from };
        let bytes = u64::from(segment.blocks) * u64::from(counted.block_bytes());
        let blocks = |block_bytes: u32| {
            let block_bytes = u64::from(block_bytes);
            bytes
                .is_multiple_of(block_bytes)
                .then_some(bytes / block_bytes)
                .ok_or(CopyProblem::Inexact)
        };
        let (from_blocks, to_blocks) = (blocks(from.block_bytes())?, blocks(to.block_bytes())?);
        let out_of = |side| CopyProblem::OutOfRange(side);
        let range = from.sectors_of(segment.source_lba, from_blocks);
        let range = range.ok_or(out_of(Side::Source))?;
        let there = to.sectors_of(segment.destination_lba, to_blocks);
        let there = there.ok_or(out_of(Side::Destination))?;
        Ok(CopyMove {
            source: Some(source),
            destination,
            into: to.volume(),
            from: range,
            lba: there.lba,
            watch: None,
        })
    }

    fn zeroes(&self, device: DeviceId, ranges: &[Range]) -> Result<Vec<CopyMove>, CopyFailure> {
        let gone = CopyProblem::NotReachable(Side::Destination);
        let unit = self.units.get(&device).ok_or(CopyFailure { segment: 0, problem: gone })?;
        let zeroes = |range: &Range| CopyMove {
            source: None,
            destination: device,
            into: unit.device.volume(),
            from: *range,
            lba: range.lba,
            watch: None,
        };
        Ok(ranges.iter().map(zeroes).collect())
    }

    /// What is moved of what a token stands for, after `skip` sectors of it.
    fn redeem(
        &self,
        device: DeviceId,
        source: DeviceId,
        grant: &Rod,
        skip: u64,
        ranges: &[Range],
    ) -> Result<Vec<CopyMove>, CopyFailure> {
        let failed = |problem| CopyFailure { segment: 0, problem };
        let gone = failed(CopyProblem::NotReachable(Side::Destination));
        let into = self.units.get(&device).ok_or(gone)?.device.volume();
        let total: u64 = grant.ranges.iter().map(|range| range.sectors).sum();
        let wanted: u64 = ranges.iter().map(|range| range.sectors).sum();
        if skip >= total {
            return Err(failed(CopyProblem::Offset));
        }
        if wanted > total - skip {
            return Err(failed(CopyProblem::BeyondToken));
        }
        let mut moves = Vec::new();
        let (mut from, mut passed) = (grant.ranges.iter().copied(), skip);
        let mut here = Range::new(0, 0);
        for range in ranges {
            let mut to = *range;
            while !to.is_empty() {
                while here.is_empty() {
                    // There is enough: it was counted.
                    let Some(next) = from.next() else { return Ok(moves) };
                    let over = passed.min(next.sectors);
                    passed -= over;
                    here = Range::between(next.lba + over, next.end());
                }
                let sectors = to.sectors.min(here.sectors);
                moves.push(CopyMove {
                    source: Some(source),
                    destination: device,
                    into,
                    from: Range::new(here.lba, sectors),
                    lba: to.lba,
                    watch: Some(grant.watch),
                });
                here = Range::between(here.lba + sectors, here.end());
                to = Range::between(to.lba + sectors, to.end());
            }
        }
        Ok(moves)
    }

    /// Begins the parts that may begin; ends the copy if nothing is left of it.
    fn advance_copy(&mut self, copy: CopyId) {
        let mut changed = Vec::new();
        while let Some(it) = self.copies.copies.get_mut(&copy)
            && let Some(PartOrder { id, unit, part }) = it.job.poll()
        {
            let (serial, write) = (it.serial, !matches!(part, CopyPart::Stage { .. }));
            let Some(nexus) = self.reach(serial, unit, write) else {
                self.part_failed(copy, id, PartFailure::NotReachable);
                continue;
            };
            self.copies.last_part = (self.copies.last_part + 1) % PART_IDS;
            let task = self.copies.last_part;
            self.copies.parts.insert(task, (copy, id));
            if let Some(it) = self.copies.copies.get_mut(&copy) {
                it.parts.insert(id, (unit, task));
            }
            if let Some(unit) = self.units.get_mut(&unit) {
                unit.device.handle_part(self.now, nexus, task, part);
            }
            changed.push(unit);
        }
        let Some(it) = self.copies.copies.get(&copy) else { return };
        // Nobody waits for what is only being made ready.
        if it.job.is_ending() {
            for part in it.job.staging() {
                if let Some((device, task)) = it.parts.get(&part).copied()
                    && let Some(unit) = self.units.get_mut(&device)
                {
                    unit.device.end_part(self.now, task);
                    changed.push(device);
                }
            }
        }
        if it.job.is_over() {
            let result = it.job.failure().map_or(Ok(()), Err);
            self.end_copy(copy, result);
        }
        changed.into_iter().for_each(|device| self.take_outputs(device));
    }

    fn part_failed(&mut self, copy: CopyId, part: PartId, failure: PartFailure) {
        if let Some(it) = self.copies.copies.get_mut(&copy) {
            it.parts.remove(&part);
            it.job.handle(part, Err(failure));
        }
    }

    fn part_ended(&mut self, copy: CopyId, part: PartId, result: Result<PartReply, PartFailure>) {
        let Some(it) = self.copies.copies.get_mut(&copy) else { return };
        it.parts.remove(&part);
        it.job.handle(part, result);
        let (segments, sectors) = it.job.progress();
        if let Some(unit) = self.units.get_mut(&copy.0) {
            unit.device.handle_copy_progress(copy.1, segments, sectors);
        }
        self.advance_copy(copy);
    }

    fn end_copy(&mut self, copy: CopyId, result: Result<(), CopyFailure>) {
        let Some(it) = self.copies.copies.remove(&copy) else { return };
        if let Some((device, token)) = it.token
            && let Some(unit) = self.units.get_mut(&device)
        {
            let revoked = result.is_err_and(|failure| failure.is_change());
            unit.device.release_token(self.now, token, revoked);
            self.take_outputs(device);
            self.forget_idle(device);
        }
        if let Some(unit) = self.units.get_mut(&copy.0) {
            unit.device.handle_copied(self.now, copy.1, result);
            self.take_outputs(copy.0);
            self.forget_idle(copy.0);
        }
    }

    /// A device is gone: its copies end, and its parts of others.
    pub(super) fn forget_copies(&mut self, device: DeviceId) {
        let ended = self.copies.copies.extract_if(.., |copy, _| copy.0 == device);
        let tokens: Vec<(DeviceId, u64)> = ended.filter_map(|(_, it)| it.token).collect();
        for (device, token) in tokens {
            if let Some(unit) = self.units.get_mut(&device) {
                unit.device.release_token(self.now, token, false);
                self.take_outputs(device);
            }
        }
        let parts: Vec<(TaskId, PartId)> = self
            .copies
            .copies
            .values()
            .flat_map(|it| it.parts.iter())
            .filter(|(_, (unit, _))| *unit == device)
            .map(|(part, (_, task))| (*task, *part))
            .collect();
        for (task, _) in parts {
            let result = Err(PartFailure::NotReachable);
            self.copies.say(Said::Part { task, result });
        }
        let copies = &self.copies.copies;
        self.copies.parts.retain(|_, (copy, _)| copies.contains_key(copy));
    }
}
