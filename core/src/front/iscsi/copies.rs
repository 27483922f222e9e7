//! The copies of a target that are under way, and their parts.

use super::DeviceId;
use super::foreign::{CopyId, TargetId, UnitFacts};
use crate::front::scsi::TaskId;
use crate::front::scsi::copy::{CopyJob, CopyPlan, PartFailure, PartId, PartReply, UnitId};
use std::collections::{BTreeMap, VecDeque};

/// Names of parts are below this, so that no task of a session has one: no session has serial
/// number 0.
const PART_IDS: u64 = 1 << 40;

/// Names of units of other targets, in jobs, have this bit.
const FOREIGN: UnitId = 1 << 63;

/// An output of a device that is about a copy.
#[derive(Debug)]
pub(super) enum CopyNotice {
    /// A copy is to begin.
    Begin {
        /// Its name.
        copy: CopyId,
        /// The command.
        task: TaskId,
        /// What to copy.
        plan: CopyPlan,
    },
    /// A copy is to end.
    End {
        /// Its name.
        copy: CopyId,
    },
    /// A part of a copy has ended.
    Part {
        /// Its name at the device.
        task: TaskId,
        /// How it ended.
        result: Result<PartReply, PartFailure>,
    },
}

/// A unit of this target or of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyUnit {
    Own(DeviceId),
    Foreign(TargetId, DeviceId),
}

/// The units of other targets that a copy uses. A job knows them by names of their own.
#[derive(Debug, Default)]
pub(super) struct ForeignUnits(Vec<(TargetId, UnitFacts)>);

impl ForeignUnits {
    /// The name of a unit for the job.
    pub(super) fn name(&mut self, target: TargetId, facts: UnitFacts) -> UnitId {
        let known =
            |(its, unit): &(TargetId, UnitFacts)| (*its, unit.device) == (target, facts.device);
        let at = self.0.iter().position(known).unwrap_or_else(|| {
            self.0.push((target, facts));
            self.0.len() - 1
        });
        FOREIGN | at as UnitId
    }

    /// The unit of a name.
    pub(super) fn get(&self, unit: UnitId) -> CopyUnit {
        let foreign = (unit & FOREIGN != 0).then(|| self.0.get((unit & !FOREIGN) as usize));
        match foreign.flatten() {
            Some((target, facts)) => CopyUnit::Foreign(*target, facts.device),
            None => CopyUnit::Own(unit),
        }
    }
}

/// A copy under way.
#[derive(Debug)]
struct TargetCopy {
    /// Session that asked for it.
    serial: u32,
    job: CopyJob,
    /// The token that it uses, and the unit that made the token.
    token: Option<(CopyUnit, u64)>,
    foreign: ForeignUnits,
    /// Unit and name of each part under way.
    parts: BTreeMap<PartId, (CopyUnit, TaskId)>,
}

/// A copy that waits for the answers of other targets.
#[derive(Debug)]
pub(super) struct WaitingCopy {
    pub(super) task: TaskId,
    pub(super) plan: CopyPlan,
}

/// A part that this target does for another one.
#[derive(Debug)]
struct ForeignPart {
    by: TargetId,
    /// Its name there.
    task: TaskId,
    device: DeviceId,
}

/// All copies under way.
#[derive(Debug, Default)]
pub(super) struct Copies {
    copies: BTreeMap<CopyId, TargetCopy>,
    /// Those without a job yet.
    waiting: BTreeMap<CopyId, WaitingCopy>,
    parts: BTreeMap<TaskId, (CopyId, PartId)>,
    foreign_parts: BTreeMap<TaskId, ForeignPart>,
    notices: VecDeque<CopyNotice>,
    last_part: u64,
}

impl Copies {
    /// Takes a notice in, for [`Copies::poll_notice`].
    pub(super) fn notify(&mut self, notice: CopyNotice) {
        self.notices.push_back(notice);
    }

    pub(super) fn poll_notice(&mut self) -> Option<CopyNotice> {
        self.notices.pop_front()
    }

    /// A copy waits for the answers of other targets.
    pub(super) fn wait(&mut self, copy: CopyId, waiting: WaitingCopy) {
        self.waiting.insert(copy, waiting);
    }

    /// A copy does not wait any more. `None` if it has ended.
    pub(super) fn stop_waiting(&mut self, copy: CopyId) -> Option<WaitingCopy> {
        self.waiting.remove(&copy)
    }

    /// Adds a copy that session `serial` asked for.
    pub(super) fn begin(
        &mut self,
        copy: CopyId,
        serial: u32,
        job: CopyJob,
        token: Option<(CopyUnit, u64)>,
        foreign: ForeignUnits,
    ) {
        let parts = BTreeMap::new();
        self.copies.insert(copy, TargetCopy { serial, job, token, foreign, parts });
    }

    /// The unit of a copy with this name.
    pub(super) fn unit(&self, copy: CopyId, unit: UnitId) -> CopyUnit {
        self.copies.get(&copy).map_or(CopyUnit::Own(unit), |it| it.foreign.get(unit))
    }

    /// The job of a copy, and the session that asked for it.
    pub(super) fn job(&mut self, copy: CopyId) -> Option<(u32, &mut CopyJob)> {
        self.copies.get_mut(&copy).map(|it| (it.serial, &mut it.job))
    }

    fn new_part(&mut self) -> TaskId {
        self.last_part = (self.last_part + 1) % PART_IDS;
        self.last_part
    }

    /// Names a part that a unit is to do.
    pub(super) fn begin_part(&mut self, copy: CopyId, part: PartId, unit: CopyUnit) -> TaskId {
        let task = self.new_part();
        self.parts.insert(task, (copy, part));
        if let Some(it) = self.copies.get_mut(&copy) {
            it.parts.insert(part, (unit, task));
        }
        task
    }

    /// Names a part that a device is to do for another target.
    pub(super) fn begin_foreign(&mut self, by: TargetId, task: TaskId, device: DeviceId) -> TaskId {
        let own = self.new_part();
        self.foreign_parts.insert(own, ForeignPart { by, task, device });
        own
    }

    /// The device and the name here of a part for another target.
    pub(super) fn foreign(&self, by: TargetId, task: TaskId) -> Option<(DeviceId, TaskId)> {
        let mut found = self.foreign_parts.iter();
        let found = found.find(|(_, part)| (part.by, part.task) == (by, task));
        found.map(|(own, part)| (part.device, *own))
    }

    /// Ends a part for another target. Returns the target, and the name there.
    pub(super) fn end_foreign(&mut self, own: TaskId) -> Option<(TargetId, TaskId)> {
        self.foreign_parts.remove(&own).map(|part| (part.by, part.task))
    }

    /// Ends a part. Returns the copy that it belongs to.
    pub(super) fn end_part(
        &mut self,
        task: TaskId,
        result: Result<PartReply, PartFailure>,
    ) -> Option<CopyId> {
        let (copy, part) = self.parts.remove(&task)?;
        let it = self.copies.get_mut(&copy)?;
        it.parts.remove(&part);
        it.job.handle(part, result);
        Some(copy)
    }

    /// A part could not begin.
    pub(super) fn fail_part(&mut self, copy: CopyId, part: PartId, failure: PartFailure) {
        if let Some(it) = self.copies.get_mut(&copy) {
            it.parts.remove(&part);
            it.job.handle(part, Err(failure));
        }
    }

    /// Parts without writes, of a copy that is ending. Nobody needs their results.
    pub(super) fn needless_parts(&self, copy: CopyId) -> Vec<(CopyUnit, TaskId)> {
        let Some(it) = self.copies.get(&copy).filter(|it| it.job.is_ending()) else {
            return Vec::new();
        };
        it.job.staging().filter_map(|part| it.parts.get(&part).copied()).collect()
    }

    /// Removes a copy that has ended. Returns the token that it used.
    pub(super) fn end(&mut self, copy: CopyId) -> Option<Option<(CopyUnit, u64)>> {
        self.copies.remove(&copy).map(|it| it.token)
    }

    /// Handles the loss of a device. Copies that initiators asked of it end, and its parts of other
    /// copies fail. Returns the tokens that the ended copies used.
    pub(super) fn forget_device(&mut self, device: DeviceId) -> Vec<(CopyUnit, u64)> {
        self.waiting.retain(|copy, _| copy.0 != device);
        let ended = self.copies.extract_if(.., |copy, _| copy.0 == device);
        let tokens = ended.filter_map(|(_, it)| it.token).collect();
        let own = self.copies.values().flat_map(|it| it.parts.values());
        let own = own.filter(|(unit, _)| *unit == CopyUnit::Own(device)).map(|(_, task)| *task);
        let foreign = self.foreign_parts.iter().filter(|(_, part)| part.device == device);
        let lost: Vec<TaskId> = own.chain(foreign.map(|(task, _)| *task)).collect();
        for task in lost {
            let result = Err(PartFailure::NotReachable);
            self.notices.push_back(CopyNotice::Part { task, result });
        }
        let copies = &self.copies;
        self.parts.retain(|_, (copy, _)| copies.contains_key(copy));
        tokens
    }
}
