//! Copies between the units of a target: the units that a copy may reach, and its parts.
//!
//! **[`Target::reach`] is the one place that decides whether a copy may use a unit.** It is asked
//! again for every part. Naming a volume by its designator gives an initiator no more rights than
//! logging in to it. Two conditions hold:
//!
//! - The initiator is *allowed* to use the volume, with the name, CHAP user and address of the
//!   session that sent the command.
//! - The initiator *has* a session with the unit, under that name and user.
//!
//! Parts go through the nexus of that session. So the unit checks them (reservations, write
//! protection) as it checks the commands of that session. Without such a session the unit is not
//! reachable, whether it exists or not.

use super::Target;
use crate::block::Range;
use crate::front::iscsi::copies::{CopyNotice, CopyUnit, ForeignUnits, WaitingCopy};
use crate::front::iscsi::devices::TargetDevice;
use crate::front::iscsi::foreign::{
    Asker, CopyAnswer, CopyId, CopyMessage, CopyQuestion, TargetId, UnitFacts,
};
use crate::front::iscsi::session::Session;
use crate::front::iscsi::tasks::SessionTasks;
use crate::front::iscsi::{Device, DeviceId, Event};
use crate::front::scsi::copy::{
    CopyFailure, CopyJob, CopyMove, CopyPart, CopyPlan, CopyProblem, CscdDescriptor, Designator,
    PartFailure, PartOrder, Rod, RodToken, SegmentDescriptor, UnitId,
};
use crate::front::scsi::{NexusId, Side, TaskId};

impl Target {
    /// The initiator of a session, which asks for copies.
    fn asker(&self, serial: u32) -> Option<Asker> {
        let session = self.sessions.get(serial)?;
        Some(Asker::new(&session.identity, session.loopback))
    }

    /// The nexus through which a copy of session `serial` may use a device; see the module
    /// documentation. If there are several, one that reservations admit.
    fn reach(&self, serial: u32, device: DeviceId, write: bool) -> Option<NexusId> {
        self.reach_as(&self.asker(serial)?, Some(serial), device, write)
    }

    /// The same for an initiator. It may have sent the command to another target of the host.
    pub(super) fn reach_as(
        &self,
        asker: &Asker,
        serial: Option<u32>,
        device: DeviceId,
        write: bool,
    ) -> Option<NexusId> {
        let unit = self.devices.get(device)?;
        let Asker { initiator, user, loopback } = asker;
        if !self.access.may_use(initiator, user.as_deref(), *loopback, &unit.volume) {
            return None;
        }
        let usable = |session: &&Session| {
            session.device == Some(device)
                && !session.ended
                && asker.is(&session.identity)
                && session.is_allowed(&self.access)
        };
        if let Some(own) = serial.and_then(|serial| self.sessions.get(serial)).filter(usable) {
            return Some(own.nexus);
        }
        let mut nexuses = self.sessions.iter().filter(usable).map(|session| session.nexus);
        let first = nexuses.next()?;
        let lets = |nexus: &NexusId| unit.device.lets(*nexus, write);
        Some(std::iter::once(first).chain(nexuses).find(lets).unwrap_or(first))
    }

    /// The devices with a designator, among those that an initiator's copy may use.
    pub(super) fn find_as<'a>(
        &'a self,
        asker: &'a Asker,
        name: &'a Designator,
        write: bool,
    ) -> impl Iterator<Item = UnitFacts> + 'a {
        let usable = move |(id, unit): &(DeviceId, &TargetDevice)| {
            unit.device.is_called(name) && self.reach_as(asker, None, *id, write).is_some()
        };
        self.devices.iter().filter(usable).map(|(id, unit)| facts(id, &unit.device))
    }

    /// The unit with a designator, among those that the copy may use, and its name for the job.
    fn find(&self, found: &mut FoundUnits, name: &Designator, write: bool) -> Option<FoundUnit> {
        let own = self.find_as(&found.asker, name, write).map(|unit| (None, unit));
        let asked = |(its, for_write, ..): &&(Designator, bool, TargetId, UnitFacts)| {
            (its, *for_write) == (name, write)
        };
        let foreign = found.answers.iter().filter(asked);
        let mut called = own.chain(foreign.map(|(.., target, unit)| (Some(*target), *unit)));
        let (target, facts) = called.next()?;
        // Designators are cut from longer identities, so two may be equal.
        if called.next().is_some() {
            return None;
        }
        drop(called);
        let id = target.map_or(facts.device, |target| found.names.name(target, facts));
        Some(FoundUnit { id, facts })
    }

    /// Acts on the notices of devices about copies.
    pub(super) fn run_copies(&mut self) {
        while let Some(notice) = self.copies.poll_notice() {
            match notice {
                CopyNotice::Begin { copy, task, plan } => self.begin_copy(copy, task, plan),
                CopyNotice::End { copy } => {
                    if self.copies.stop_waiting(copy).is_some() {
                        self.start_copy(copy, 0, (Ok(Vec::new()), None), ForeignUnits::default());
                    }
                    if let Some((_, job)) = self.copies.job(copy) {
                        job.stop();
                    }
                    self.advance_copy(copy);
                }
                CopyNotice::Part { task, result } => {
                    if let Some((target, task)) = self.copies.end_foreign(task) {
                        self.tell_target(target, CopyMessage::Done { task, result });
                    } else if let Some(copy) = self.copies.end_part(task, result) {
                        self.report_progress(copy);
                        self.advance_copy(copy);
                    }
                }
            }
        }
    }

    fn begin_copy(&mut self, copy: CopyId, task: TaskId, plan: CopyPlan) {
        let serial = SessionTasks::serial_of(task);
        let question = if self.config.has_others { question(&plan) } else { None };
        match question.zip(self.asker(serial)) {
            Some((question, asker)) => {
                self.copies.wait(copy, WaitingCopy { task, plan });
                self.events.push_back(Event::Ask { copy, asker, question });
            }
            None => self.plan_copy(copy, WaitingCopy { task, plan }, Vec::new()),
        }
    }

    /// Plans a copy with what other targets have answered.
    pub(super) fn plan_copy(
        &mut self,
        copy: CopyId,
        WaitingCopy { task, plan }: WaitingCopy,
        answers: Vec<(TargetId, CopyAnswer)>,
    ) {
        let serial = SessionTasks::serial_of(task);
        let mut token = None;
        // Without the session nothing is reachable.
        let asker = self.asker(serial).unwrap_or_else(Asker::nobody);
        let mut found = FoundUnits { asker, answers: Vec::new(), names: ForeignUnits::default() };
        let moves = match plan {
            CopyPlan::Segments { descriptors, segments } => {
                found.take(&plan_units(&descriptors, &segments), answers);
                let plain = |(index, segment): (usize, &SegmentDescriptor)| {
                    let failed = |problem| CopyFailure { segment: index as u16, problem };
                    self.segment(&mut found, &descriptors, segment).map_err(failed)
                };
                segments.iter().enumerate().map(plain).collect()
            }
            CopyPlan::Zeroes { ranges } => self.zeroes(copy.0, &ranges),
            CopyPlan::Token { token: bytes, creator, skip, ranges, delete } => {
                let granted = self.grant(&mut found, &creator, (&bytes, delete), answers);
                granted.and_then(|(source, unit, grant)| {
                    token = Some((unit, grant.id));
                    self.redeem(copy.0, source, &grant, skip, &ranges)
                })
            }
        };
        self.start_copy(copy, serial, (moves, token), found.names);
        self.advance_copy(copy);
    }

    fn start_copy(
        &mut self,
        copy: CopyId,
        serial: u32,
        (moves, token): PlannedCopy,
        foreign: ForeignUnits,
    ) {
        let (job, failure) = match moves {
            Ok(moves) => (CopyJob::new(moves), None),
            Err(failure) => (CopyJob::new(Vec::new()), Some(failure)),
        };
        self.copies.begin(copy, serial, job, token, foreign);
        if let Some(failure) = failure {
            self.end_copy(copy, Err(failure));
        }
    }

    /// The data of a token, with the unit that made it and its name for the job.
    fn grant(
        &mut self,
        found: &mut FoundUnits,
        creator: &Designator,
        (token, delete): (&RodToken, bool),
        answers: Vec<(TargetId, CopyAnswer)>,
    ) -> Result<(UnitId, CopyUnit, Rod), CopyFailure> {
        let failed = |problem| CopyFailure { segment: 0, problem };
        let refused = |code| failed(CopyProblem::Token(code));
        let mut own = self.find_as(&found.asker, creator, false).map(|unit| unit.device);
        let (first, more) = (own.next(), own.next().is_some());
        drop(own);
        let mut foreign: Vec<_> = answers
            .into_iter()
            .filter_map(|(target, answer)| match answer {
                CopyAnswer::Token(Some((facts, result))) => Some((target, facts, result)),
                CopyAnswer::Token(None) | CopyAnswer::Units(_) => None,
            })
            .collect();
        let one = !more && usize::from(first.is_some()) + foreign.len() == 1;
        match (first, foreign.pop()) {
            (Some(device), None) if one => {
                let unit = self.devices.get_mut(device);
                let unit = unit.ok_or(failed(CopyProblem::unknown_token()))?;
                let grant = unit.device.use_token(self.now, token, delete).map_err(refused)?;
                Ok((device, CopyUnit::Own(device), grant))
            }
            (None, Some((target, facts, result))) if one => {
                let grant = result.map_err(refused)?;
                let unit = CopyUnit::Foreign(target, facts.device);
                Ok((found.names.name(target, facts), unit, grant))
            }
            (_, last) => {
                // Designators are cut from longer identities, so two may be equal.
                for (target, facts, result) in foreign.into_iter().chain(last) {
                    if let Ok(grant) = result {
                        self.release_token(
                            CopyUnit::Foreign(target, facts.device),
                            grant.id,
                            false,
                        );
                    }
                }
                Err(failed(CopyProblem::unknown_token()))
            }
        }
    }

    /// The move of a segment of an EXTENDED COPY.
    fn segment(
        &self,
        found: &mut FoundUnits,
        descriptors: &[CscdDescriptor],
        segment: &SegmentDescriptor,
    ) -> Result<CopyMove, CopyProblem> {
        let mut unit = |index: u16, side: Side| {
            let descriptor =
                descriptors.get(usize::from(index)).ok_or(CopyProblem::NoDescriptor(side))?;
            let write = side == Side::Destination;
            let name = descriptor.designator.as_ref();
            let found = name.and_then(|name| self.find(found, name, write));
            let found = found.ok_or(CopyProblem::NotReachable(side))?;
            if found.facts.block_bytes != descriptor.block_bytes {
                return Err(CopyProblem::BlockLength(index));
            }
            Ok((found.id, found.facts))
        };
        let (source, from) = unit(segment.source, Side::Source)?;
        let (destination, to) = unit(segment.destination, Side::Destination)?;
        let counted = if segment.of_destination { to } else { from };
        let bytes = u64::from(segment.blocks) * u64::from(counted.block_bytes);
        let blocks = |block_bytes: u32| {
            let block_bytes = u64::from(block_bytes);
            bytes
                .is_multiple_of(block_bytes)
                .then_some(bytes / block_bytes)
                .ok_or(CopyProblem::Inexact)
        };
        let (from_blocks, to_blocks) = (blocks(from.block_bytes)?, blocks(to.block_bytes)?);
        let out_of = |side| CopyProblem::OutOfRange(side);
        let range = from.range(segment.source_lba, from_blocks);
        let range = range.ok_or(out_of(Side::Source))?;
        let there = to.range(segment.destination_lba, to_blocks);
        let there = there.ok_or(out_of(Side::Destination))?;
        Ok(CopyMove {
            source: Some(source),
            destination,
            into: to.volume,
            from: range,
            lba: there.lba,
            watch: None,
        })
    }

    fn zeroes(&self, device: DeviceId, ranges: &[Range]) -> Result<Vec<CopyMove>, CopyFailure> {
        let gone = CopyProblem::NotReachable(Side::Destination);
        let unit = self.devices.get(device).ok_or(CopyFailure { segment: 0, problem: gone })?;
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

    /// The moves of the data that a token represents, after `skip` sectors of it.
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
        let into = self.devices.get(device).ok_or(gone)?.device.volume();
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
                    // The sum was checked, so there is enough.
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

    /// Begins the parts that may begin. Ends the copy if nothing of it is left.
    pub(super) fn advance_copy(&mut self, copy: CopyId) {
        let mut changed = Vec::new();
        while let Some((serial, job)) = self.copies.job(copy)
            && let Some(PartOrder { id, unit, part }) = job.poll()
        {
            match self.copies.unit(copy, unit) {
                CopyUnit::Own(device) => {
                    let write = !matches!(part, CopyPart::Stage { .. });
                    let Some(nexus) = self.reach(serial, device, write) else {
                        self.copies.fail_part(copy, id, PartFailure::NotReachable);
                        continue;
                    };
                    let task = self.copies.begin_part(copy, id, CopyUnit::Own(device));
                    if let Some(unit) = self.devices.get_mut(device) {
                        unit.device.handle_part(self.now, nexus, task, part);
                    }
                    changed.push(device);
                }
                unit @ CopyUnit::Foreign(target, device) => {
                    let Some(asker) = self.asker(serial) else {
                        self.copies.fail_part(copy, id, PartFailure::NotReachable);
                        continue;
                    };
                    let task = self.copies.begin_part(copy, id, unit);
                    self.tell_target(target, CopyMessage::Part { task, device, asker, part });
                }
            }
        }
        for (unit, task) in self.copies.needless_parts(copy) {
            match unit {
                CopyUnit::Own(device) => {
                    if let Some(unit) = self.devices.get_mut(device) {
                        unit.device.end_part(self.now, task);
                        changed.push(device);
                    }
                }
                CopyUnit::Foreign(target, _) => {
                    self.tell_target(target, CopyMessage::End { task });
                }
            }
        }
        if let Some((_, job)) = self.copies.job(copy)
            && job.is_over()
        {
            let result = job.failure().map_or(Ok(()), Err);
            self.end_copy(copy, result);
        }
        changed.into_iter().for_each(|device| self.take_outputs(device));
    }

    /// Reports the progress of a copy to the device that was asked for it.
    fn report_progress(&mut self, copy: CopyId) {
        let Some((_, job)) = self.copies.job(copy) else { return };
        let (segments, sectors) = job.progress();
        if let Some(unit) = self.devices.get_mut(copy.0) {
            unit.device.handle_copy_progress(copy.1, segments, sectors);
        }
    }

    fn end_copy(&mut self, copy: CopyId, result: Result<(), CopyFailure>) {
        let Some(token) = self.copies.end(copy) else { return };
        if let Some((unit, token)) = token {
            let revoked = result.is_err_and(|failure| failure.is_change());
            self.release_token(unit, token, revoked);
        }
        if let Some(unit) = self.devices.get_mut(copy.0) {
            unit.device.handle_copied(self.now, copy.1, result);
            self.take_outputs(copy.0);
            self.forget_idle(copy.0);
        }
    }

    /// A copy does not use a token any more.
    pub(super) fn release_token(&mut self, unit: CopyUnit, token: u64, revoked: bool) {
        match unit {
            CopyUnit::Own(device) => {
                if let Some(unit) = self.devices.get_mut(device) {
                    unit.device.release_token(self.now, token, revoked);
                    self.take_outputs(device);
                    self.forget_idle(device);
                }
            }
            CopyUnit::Foreign(target, device) => {
                self.tell_target(target, CopyMessage::Release { device, token, revoked });
            }
        }
    }

    /// Ends the copies of a device that is gone, and its parts of others.
    pub(super) fn forget_copies(&mut self, device: DeviceId) {
        for (unit, token) in self.copies.forget_device(device) {
            self.release_token(unit, token, false);
        }
    }
}

/// The moves of a copy, and the token that it uses with the unit that made it.
type PlannedCopy = (Result<Vec<CopyMove>, CopyFailure>, Option<(CopyUnit, u64)>);

/// The units that a copy may use.
struct FoundUnits {
    asker: Asker,
    /// Those of other targets: designator, whether the copy may write to it, target, unit.
    answers: Vec<(Designator, bool, TargetId, UnitFacts)>,
    /// Their names for the job.
    names: ForeignUnits,
}

/// A unit that a copy may use, and its name for the job.
struct FoundUnit {
    id: UnitId,
    facts: UnitFacts,
}

impl FoundUnits {
    /// Takes the answers about the units with these designators.
    fn take(&mut self, asked: &[(Designator, bool)], answers: Vec<(TargetId, CopyAnswer)>) {
        for (target, answer) in answers {
            let CopyAnswer::Units(units) = answer else { continue };
            for ((name, write), units) in asked.iter().zip(units) {
                let found = units.into_iter().map(|unit| (name.clone(), *write, target, unit));
                self.answers.extend(found);
            }
        }
    }
}

/// What a copy has to know of units.
pub(super) fn facts(id: DeviceId, device: &Device) -> UnitFacts {
    UnitFacts {
        device: id,
        volume: device.volume(),
        block_bytes: device.block_bytes(),
        sectors: device.sectors(),
    }
}

/// The units that a plan names; those of destinations have to be writable.
fn plan_units(
    descriptors: &[CscdDescriptor],
    segments: &[SegmentDescriptor],
) -> Vec<(Designator, bool)> {
    let mut units: Vec<(Designator, bool)> = Vec::new();
    for segment in segments {
        for (index, write) in [(segment.source, false), (segment.destination, true)] {
            let descriptor = descriptors.get(usize::from(index));
            let Some(name) = descriptor.and_then(|it| it.designator.clone()) else { continue };
            if !units.contains(&(name.clone(), write)) {
                units.push((name, write));
            }
        }
    }
    units
}

/// What to ask other targets about a plan.
fn question(plan: &CopyPlan) -> Option<CopyQuestion> {
    match plan {
        CopyPlan::Segments { descriptors, segments } => {
            Some(CopyQuestion::Units(plan_units(descriptors, segments)))
        }
        CopyPlan::Token { token, creator, delete, .. } => Some(CopyQuestion::Token {
            creator: creator.clone(),
            token: token.clone(),
            delete: *delete,
        }),
        CopyPlan::Zeroes { .. } => None,
    }
}
