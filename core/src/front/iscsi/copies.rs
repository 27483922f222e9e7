//! The copies of a target that are under way, and their parts.

use super::DeviceId;
use crate::front::scsi::TaskId;
use crate::front::scsi::copy::{CopyJob, CopyPlan, PartFailure, PartId, PartReply};
use std::collections::{BTreeMap, VecDeque};

/// Names of parts are below this, so that no task of a session has one: no session has serial
/// number 0.
const PART_IDS: u64 = 1 << 40;

/// Names a copy: the device that was asked for it, and its name there.
pub(super) type CopyId = (DeviceId, u64);

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

/// A copy under way.
#[derive(Debug)]
struct TargetCopy {
    /// Session that asked for it.
    serial: u32,
    job: CopyJob,
    /// The token that it uses, and the device that made the token.
    token: Option<(DeviceId, u64)>,
    /// Device and name of each part under way.
    parts: BTreeMap<PartId, (DeviceId, TaskId)>,
}

/// All copies under way.
#[derive(Debug, Default)]
pub(super) struct Copies {
    copies: BTreeMap<CopyId, TargetCopy>,
    parts: BTreeMap<TaskId, (CopyId, PartId)>,
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

    /// Adds a copy that session `serial` asked for.
    pub(super) fn begin(
        &mut self,
        copy: CopyId,
        serial: u32,
        job: CopyJob,
        token: Option<(DeviceId, u64)>,
    ) {
        self.copies.insert(copy, TargetCopy { serial, job, token, parts: BTreeMap::new() });
    }

    /// The job of a copy, and the session that asked for it.
    pub(super) fn job(&mut self, copy: CopyId) -> Option<(u32, &mut CopyJob)> {
        self.copies.get_mut(&copy).map(|it| (it.serial, &mut it.job))
    }

    /// Names a part that a device is to do.
    pub(super) fn begin_part(&mut self, copy: CopyId, part: PartId, device: DeviceId) -> TaskId {
        self.last_part = (self.last_part + 1) % PART_IDS;
        let task = self.last_part;
        self.parts.insert(task, (copy, part));
        if let Some(it) = self.copies.get_mut(&copy) {
            it.parts.insert(part, (device, task));
        }
        task
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
    pub(super) fn needless_parts(&self, copy: CopyId) -> Vec<(DeviceId, TaskId)> {
        let Some(it) = self.copies.get(&copy).filter(|it| it.job.is_ending()) else {
            return Vec::new();
        };
        it.job.staging().filter_map(|part| it.parts.get(&part).copied()).collect()
    }

    /// Removes a copy that has ended. Returns the token that it used.
    pub(super) fn end(&mut self, copy: CopyId) -> Option<Option<(DeviceId, u64)>> {
        self.copies.remove(&copy).map(|it| it.token)
    }

    /// Handles the loss of a device. Copies that initiators asked of it end, and its parts of other
    /// copies fail. Returns the tokens that the ended copies used.
    pub(super) fn forget_device(&mut self, device: DeviceId) -> Vec<(DeviceId, u64)> {
        let ended = self.copies.extract_if(.., |copy, _| copy.0 == device);
        let tokens = ended.filter_map(|(_, it)| it.token).collect();
        let parts = self.copies.values().flat_map(|it| it.parts.values());
        for (_, task) in parts.filter(|(unit, _)| *unit == device) {
            let result = Err(PartFailure::NotReachable);
            self.notices.push_back(CopyNotice::Part { task: *task, result });
        }
        let copies = &self.copies;
        self.parts.retain(|_, (copy, _)| copies.contains_key(copy));
        tokens
    }
}
