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
use crate::front::iscsi::copies::{CopyId, CopyNotice};
use crate::front::iscsi::session::Session;
use crate::front::iscsi::tasks::SessionTasks;
use crate::front::iscsi::{DeviceId, Identity};
use crate::front::scsi::copy::{
    CopyFailure, CopyJob, CopyMove, CopyPart, CopyPlan, CopyProblem, CscdDescriptor, Designator,
    PartFailure, PartOrder, Rod, SegmentDescriptor,
};
use crate::front::scsi::{NexusId, Side, TaskId};

fn is_same_initiator(a: &Identity, b: &Identity) -> bool {
    a.initiator == b.initiator && a.user == b.user
}

impl Target {
    /// The nexus through which a copy of session `serial` may use a device; see the module
    /// documentation. If there are several, one that reservations admit.
    fn reach(&self, serial: u32, device: DeviceId, write: bool) -> Option<NexusId> {
        let (own, unit) = (self.sessions.get(serial)?, self.devices.get(device)?);
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
        let mut nexuses = self.sessions.iter().filter(usable).map(|session| session.nexus);
        let first = nexuses.next()?;
        let lets = |nexus: &NexusId| unit.device.lets(*nexus, write);
        Some(std::iter::once(first).chain(nexuses).find(lets).unwrap_or(first))
    }

    /// The device with a designator, among those that the copy may use.
    fn find(&self, serial: u32, name: &Designator, write: bool) -> Option<DeviceId> {
        let mut called = self
            .devices
            .iter()
            .filter(|(id, unit)| {
                unit.device.is_called(name) && self.reach(serial, *id, write).is_some()
            })
            .map(|(id, _)| id);
        let found = called.next()?;
        // Designators are cut from longer identities, so two may be equal.
        called.next().is_none().then_some(found)
    }

    /// Acts on the notices of devices about copies.
    pub(super) fn run_copies(&mut self) {
        while let Some(notice) = self.copies.poll_notice() {
            match notice {
                CopyNotice::Begin { copy, task, plan } => self.begin_copy(copy, task, plan),
                CopyNotice::End { copy } => {
                    if let Some((_, job)) = self.copies.job(copy) {
                        job.stop();
                    }
                    self.advance_copy(copy);
                }
                CopyNotice::Part { task, result } => {
                    if let Some(copy) = self.copies.end_part(task, result) {
                        self.report_progress(copy);
                        self.advance_copy(copy);
                    }
                }
            }
        }
    }

    fn begin_copy(&mut self, copy: CopyId, task: TaskId, plan: CopyPlan) {
        let serial = SessionTasks::serial_of(task);
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
                    let unit = self.devices.get_mut(source).ok_or(unknown)?;
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
        self.copies.begin(copy, serial, job, token);
        match failure {
            Some(failure) => self.end_copy(copy, Err(failure)),
            None => self.advance_copy(copy),
        }
    }

    /// The move of a segment of an EXTENDED COPY.
    fn segment(
        &self,
        serial: u32,
        descriptors: &[CscdDescriptor],
        segment: &SegmentDescriptor,
    ) -> Result<CopyMove, CopyProblem> {
        let unit = |index: u16, side: Side| {
            let descriptor =
                descriptors.get(usize::from(index)).ok_or(CopyProblem::NoDescriptor(side))?;
            let write = side == Side::Destination;
            let found =
                descriptor.designator.as_ref().and_then(|name| self.find(serial, name, write));
            let id = found.ok_or(CopyProblem::NotReachable(side))?;
            let unit = self.devices.get(id).ok_or(CopyProblem::NotReachable(side))?;
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
    fn advance_copy(&mut self, copy: CopyId) {
        let mut changed = Vec::new();
        while let Some((serial, job)) = self.copies.job(copy)
            && let Some(PartOrder { id, unit, part }) = job.poll()
        {
            let write = !matches!(part, CopyPart::Stage { .. });
            let Some(nexus) = self.reach(serial, unit, write) else {
                self.copies.fail_part(copy, id, PartFailure::NotReachable);
                continue;
            };
            let task = self.copies.begin_part(copy, id, unit);
            if let Some(unit) = self.devices.get_mut(unit) {
                unit.device.handle_part(self.now, nexus, task, part);
            }
            changed.push(unit);
        }
        for (device, task) in self.copies.needless_parts(copy) {
            if let Some(unit) = self.devices.get_mut(device) {
                unit.device.end_part(self.now, task);
                changed.push(device);
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
        if let Some((device, token)) = token
            && let Some(unit) = self.devices.get_mut(device)
        {
            let revoked = result.is_err_and(|failure| failure.is_change());
            unit.device.release_token(self.now, token, revoked);
            self.take_outputs(device);
            self.forget_idle(device);
        }
        if let Some(unit) = self.devices.get_mut(copy.0) {
            unit.device.handle_copied(self.now, copy.1, result);
            self.take_outputs(copy.0);
            self.forget_idle(copy.0);
        }
    }

    /// Ends the copies of a device that is gone, and its parts of others.
    pub(super) fn forget_copies(&mut self, device: DeviceId) {
        for (device, token) in self.copies.forget_device(device) {
            if let Some(unit) = self.devices.get_mut(device) {
                unit.device.release_token(self.now, token, false);
                self.take_outputs(device);
            }
        }
    }
}
