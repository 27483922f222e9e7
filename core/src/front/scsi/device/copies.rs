//! Copies: those that a command of this unit asked for, and parts of any copy that this unit does.
//!
//! A part neither waits for other tasks nor do they wait for it, except for the blocks that it
//! writes. The task that asked for the copy has had its turn, and older tasks here may wait for
//! that task.

use super::Device;
use crate::block::{Range, Time, VolumeId};
use crate::front::scsi::copy::failure::CopyFailure;
use crate::front::scsi::copy::part::{CopyPart, PartFailure, PartRefusal};
use crate::front::scsi::copy::plan::{CopyRequest, Designator};
use crate::front::scsi::copy::{Rod, RodToken};
use crate::front::scsi::handler::CommandOutcome;
use crate::front::scsi::limits::MAX_COPIES;
use crate::front::scsi::nexus::{NexusId, TaskId};
use crate::front::scsi::output::DeviceOutput;
use crate::front::scsi::reservations::ConflictClass;
use crate::front::scsi::response::Status;
use crate::front::scsi::sense::{CommandRefusal, Sense, code};
use crate::front::scsi::task_set::TaskWork;
use crate::front::scsi::volume_io::IoKind;

impl Device {
    /// Whether a designator is this unit's.
    #[must_use]
    pub fn is_called(&self, designator: &Designator) -> bool {
        self.unit.is_called(designator)
    }

    /// The data that a token of this unit represents. The token does not expire before
    /// [`Device::release_token`].
    ///
    /// # Errors
    ///
    /// The additional sense code that says why the token cannot be used.
    pub fn use_token(&mut self, now: Time, token: &RodToken, delete: bool) -> Result<Rod, u16> {
        let rod = self.unit.tokens.redeem(now, token, delete);
        self.release_watches();
        rod
    }

    /// A copy that used a token has ended. `revoked`: the represented data has changed.
    pub fn release_token(&mut self, now: Time, id: u64, revoked: bool) {
        self.unit.tokens.release(now, id, revoked);
        self.release_watches();
    }

    /// Whether the reservations let a nexus read or write now.
    #[must_use]
    pub fn lets(&self, nexus: NexusId, write: bool) -> bool {
        let class = if write { ConflictClass::Write } else { ConflictClass::Read };
        self.unit.nexuses.contains(nexus) && self.unit.reservations.check(nexus, class).is_ok()
    }

    /// The volume.
    #[must_use]
    pub fn volume(&self) -> VolumeId {
        self.unit.config.volume
    }

    /// Sectors of the unit, in whole blocks.
    #[must_use]
    pub fn sectors(&self) -> u64 {
        self.unit.blocks() * self.unit.block_sectors()
    }

    /// Bytes in a block.
    #[must_use]
    pub fn block_bytes(&self) -> u32 {
        self.unit.config.block_bytes
    }

    /// Begins a part of a copy, through a nexus of the initiator that asked for the copy.
    /// [`DeviceOutput::Part`] answers it once the part cannot change the medium any more.
    pub fn handle_part(&mut self, _now: Time, nexus: NexusId, task: TaskId, part: CopyPart) {
        if self.tasks.contains(task) {
            return;
        }
        match self.admit_part(nexus, &part) {
            Ok(()) => {
                let durable = self.unit.writes_through();
                let (kind, range) = match part {
                    CopyPart::Stage { range, into, lba, watch } => {
                        (IoKind::Stage { into, lba, watch }, range)
                    }
                    CopyPart::Write(pieces) => {
                        let start = pieces.iter().map(|it| it.range.lba).min().unwrap_or(0);
                        let end = pieces.iter().map(|it| it.range.end()).max().unwrap_or(0);
                        (IoKind::WriteStaged(pieces), Range::between(start, end))
                    }
                    CopyPart::Zero(range) => (IoKind::Zero, range),
                };
                let io = self.unit.io(kind, range, durable);
                self.tasks.add_part(nexus, task, TaskWork::Medium(Box::new(io)));
            }
            Err(failure) => {
                self.outputs.push_back(DeviceOutput::Part { task, result: Err(failure) })
            }
        }
        self.settle();
    }

    fn admit_part(&self, nexus: NexusId, part: &CopyPart) -> Result<(), PartFailure> {
        if !self.unit.nexuses.contains(nexus) {
            return Err(PartFailure::Ended);
        }
        let class = if part.writes() { ConflictClass::Write } else { ConflictClass::Read };
        if let Err(refusal) = self.unit.reservations.check(nexus, class) {
            return Err(PartFailure::Refused(PartRefusal(refusal.into())));
        }
        match self.unit.is_write_protected() {
            Some(sense) if part.writes() => Err(sense.into()),
            _ => Ok(()),
        }
    }

    /// Ends a part early. [`DeviceOutput::Part`] answers the part.
    pub fn end_part(&mut self, _now: Time, task: TaskId) {
        if self.tasks.is_live(task) {
            self.drop_task(task);
            self.settle();
        }
    }

    /// Hands a copy to the transport.
    pub(super) fn begin_copy(&mut self, task: TaskId, asked: CopyRequest) {
        let CopyRequest { plan, list, action, immediate } = asked;
        let Some(nexus) = self.tasks.nexus_of(task) else { return };
        if self.unit.copies.running() >= MAX_COPIES {
            return self
                .finish(task, CommandOutcome::Refused(CommandRefusal::Status(Status::Busy)));
        }
        let Some(id) = self.tasks.wait_for_copy(task, immediate) else { return };
        if !self.unit.copies.begin(id, nexus, list, action, immediate) {
            self.tasks.copied(id);
            let busy = Sense::illegal(code::OPERATION_IN_PROGRESS);
            return self.finish(task, busy.into());
        }
        self.outputs.push_back(DeviceOutput::Copy { id, task, plan });
        if immediate {
            self.finish(task, CommandOutcome::DONE);
        }
    }

    /// The progress of a copy: complete segments, with all before them, and sectors.
    pub fn handle_copy_progress(&mut self, id: u64, segments: u16, sectors: u64) {
        self.unit.copies.progress(id, segments, sectors);
    }

    /// A copy has ended. Nothing of it will be written any more.
    pub fn handle_copied(&mut self, _now: Time, id: u64, result: Result<(), CopyFailure>) {
        let refusal = match result {
            Ok(()) => None,
            Err(failure) => {
                Some(failure.refusal(self.unit.copies.action_of(id).unwrap_or_default()))
            }
        };
        let descriptors = self.unit.mode.descriptor_sense;
        self.unit.copies.end(id, refusal, descriptors);
        if let Some(task) = self.tasks.copied(id) {
            let outcome = refusal.map_or(CommandOutcome::DONE, CommandOutcome::Refused);
            self.finish(task, outcome);
        }
        self.settle();
    }

    /// Ends the background copies of these nexuses.
    pub(super) fn stop_background(&mut self, whose: impl Fn(NexusId) -> bool) {
        for id in self.tasks.stop_background(whose) {
            self.stop_copy(id);
        }
    }

    /// Ends a copy whose task was ended.
    pub(super) fn stop_copy(&mut self, id: u64) {
        self.unit.copies.stop(id);
        self.outputs.push_back(DeviceOutput::EndCopy { id });
    }
}
