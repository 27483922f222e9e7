//! A device with two commands, which end only after the volume has replied.
//!
//! CDB byte 0 selects the command. 0 does nothing. [`READ`] and [`WRITE`] move bytes from or to a
//! sector. Bytes 2 to 9 are the sector; bytes 10 to 13 are the number of bytes, a multiple of a
//! sector. Any other command is refused.

use crate::block::{BlockError, Range, Reply, Request, Time, VolumeId};
use crate::front::scsi::copy::{CopyFailure, CopyPart, Designator, Rod};
use crate::front::scsi::{
    Command, CommandResponse, DataIn, DeviceConfig, DeviceOutput, ManagementFunction,
    ManagementResponse, Nexus, NexusId, Status, TaskId,
};
use bytes::{Bytes, BytesMut};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub const READ: u8 = 0x88;
pub const WRITE: u8 = 0x8a;

#[derive(Debug)]
struct Task {
    nexus: NexusId,
    range: Range,
    request: Option<u64>,
}

#[derive(Debug)]
pub struct Device {
    tasks: BTreeMap<TaskId, Task>,
    pub nexuses: BTreeSet<NexusId>,
    seen: BTreeSet<TaskId>,
    outputs: VecDeque<DeviceOutput>,
    requests: u64,
    sectors: u64,
}

fn response(status: Status, data: DataIn, out_wanted: u64, sense: &[u8]) -> CommandResponse {
    let sense = Bytes::copy_from_slice(sense);
    CommandResponse { status, sense, data, out_wanted }
}

impl Device {
    pub fn new(config: DeviceConfig) -> Device {
        Device {
            tasks: BTreeMap::new(),
            nexuses: BTreeSet::new(),
            seen: BTreeSet::new(),
            outputs: VecDeque::new(),
            requests: 0,
            sectors: config.sectors,
        }
    }

    /// It is never idle before its first use, because the driver makes it before the login that it
    /// skips.
    pub fn is_idle(&self) -> bool {
        !self.seen.is_empty() && self.nexuses.is_empty() && self.tasks.is_empty()
    }

    pub fn handle_nexus(&mut self, _now: Time, nexus: NexusId, _ends: Nexus) {
        assert!(self.nexuses.insert(nexus));
    }

    pub fn handle_nexus_loss(&mut self, _now: Time, nexus: NexusId) {
        assert!(self.nexuses.remove(&nexus));
        self.tasks.retain(|_, task| task.nexus != nexus);
    }

    pub fn handle_command(&mut self, _now: Time, nexus: NexusId, task: TaskId, command: Command) {
        assert!(self.nexuses.contains(&nexus));
        assert!(self.seen.insert(task), "a task's name was used again");
        let cdb = command.cdb;
        let lba = u64::from_be_bytes(cdb[2..10].try_into().unwrap());
        let bytes = u64::from(u32::from_be_bytes(cdb[10..14].try_into().unwrap()));
        let range = Range::new(lba, bytes / 512);
        let mut end = |response| self.outputs.push_back(DeviceOutput::Response { task, response });
        match cdb[0] {
            0 => end(response(Status::Good, DataIn::None, 0, &[])),
            READ | WRITE if !range.fits(self.sectors) => {
                end(response(Status::CheckCondition, DataIn::None, 0, &[0x70, 0, 5]));
            }
            READ => {
                self.tasks.insert(task, Task { nexus, range, request: None });
                self.request(task, Request::Read(range));
            }
            WRITE if bytes.min(command.out_bytes) == 0 => {
                end(response(Status::Good, DataIn::None, bytes, &[]));
            }
            WRITE => {
                let bytes = bytes.min(command.out_bytes);
                self.tasks.insert(task, Task { nexus, range, request: None });
                self.outputs.push_back(DeviceOutput::WantData { task, bytes });
            }
            _ => end(response(Status::CheckCondition, DataIn::None, 0, &[0x70, 0, 5])),
        }
    }

    fn request(&mut self, task: TaskId, request: Request) {
        self.requests += 1;
        self.tasks.get_mut(&task).unwrap().request = Some(self.requests);
        self.outputs.push_back(DeviceOutput::Request { id: self.requests, request });
    }

    pub fn handle_data(&mut self, _now: Time, task: TaskId, data: Vec<Bytes>) {
        let mut whole = BytesMut::new();
        data.iter().for_each(|piece| whole.extend_from_slice(piece));
        let range = self.tasks[&task].range;
        whole.truncate(whole.len() / 512 * 512);
        let range = Range::new(range.lba, whole.len() as u64 / 512);
        self.request(task, Request::Write { range, data: whole.freeze(), fua: false });
    }

    pub fn handle_data_failure(&mut self, _now: Time, task: TaskId, key: u8, code: u16) {
        self.tasks.remove(&task).unwrap();
        let sense = [0x70, 0, key, (code >> 8) as u8, code as u8];
        let response = response(Status::CheckCondition, DataIn::None, 0, &sense);
        self.outputs.push_back(DeviceOutput::Response { task, response });
    }

    pub fn handle_management(
        &mut self,
        _now: Time,
        nexus: NexusId,
        id: u64,
        lun: u64,
        function: ManagementFunction,
    ) {
        assert!(self.nexuses.contains(&nexus));
        let mut response = ManagementResponse::Complete;
        let all = |_: &Task| true;
        let own = |task: &Task| task.nexus == nexus;
        match function {
            _ if lun != 0 && !matches!(function, ManagementFunction::TargetReset) => {
                response = ManagementResponse::NoLun;
            }
            ManagementFunction::AbortTask(task) => {
                self.tasks.remove(&task);
            }
            ManagementFunction::AbortTaskSet | ManagementFunction::NexusReset => {
                self.end(nexus, own)
            }
            ManagementFunction::ClearTaskSet
            | ManagementFunction::LogicalUnitReset
            | ManagementFunction::TargetReset => {
                self.end(nexus, all);
            }
            ManagementFunction::QueryTask(task) => {
                if self.tasks.contains_key(&task) {
                    response = ManagementResponse::Succeeded;
                }
            }
            ManagementFunction::QueryTaskSet => {
                if self.tasks.values().any(own) {
                    response = ManagementResponse::Succeeded;
                }
            }
            ManagementFunction::QueryAsyncEvent => {}
        }
        self.outputs.push_back(DeviceOutput::ManagementDone { id, response });
    }

    fn end(&mut self, by: NexusId, which: impl Fn(&Task) -> bool) {
        for (id, task) in std::mem::take(&mut self.tasks) {
            if !which(&task) {
                self.tasks.insert(id, task);
            } else if task.nexus != by {
                self.outputs.push_back(DeviceOutput::Aborted { task: id });
            }
        }
    }

    pub fn handle_reply(&mut self, _now: Time, id: u64, result: Result<Reply, BlockError>) {
        let found = self.tasks.iter().find(|(_, task)| task.request == Some(id)).map(|(id, _)| *id);
        let Some(task) = found else { return };
        let range = self.tasks.remove(&task).unwrap().range;
        let response = match result {
            Ok(Reply::Data(pieces)) => response(Status::Good, DataIn::Pieces(pieces), 0, &[]),
            Ok(_) => response(Status::Good, DataIn::None, range.bytes(), &[]),
            Err(_) => response(Status::CheckCondition, DataIn::None, 0, &[0x70, 0, 3]),
        };
        self.outputs.push_back(DeviceOutput::Response { task, response });
    }

    pub fn handle_saved(&mut self, _now: Time, _id: u64, _result: Result<(), String>) {}

    pub fn handle_resized(&mut self, _now: Time, _sectors: u64) {}

    pub fn handle_timeout(&mut self, _now: Time) {}

    pub fn poll_timeout(&self) -> Option<Time> {
        None
    }

    /// It has no designator.
    pub fn is_called(&self, _: &Designator) -> bool {
        false
    }

    pub fn lets(&self, _: NexusId, _write: bool) -> bool {
        true
    }

    pub fn block_bytes(&self) -> u32 {
        512
    }

    pub fn volume(&self) -> VolumeId {
        VolumeId(0)
    }

    pub fn sectors(&self) -> u64 {
        self.sectors
    }

    pub fn use_token(&mut self, _: Time, _: &[u8; 512], _delete: bool) -> Result<Rod, u16> {
        Err(0x2304)
    }

    pub fn release_token(&mut self, _: Time, _id: u64, _revoked: bool) {}

    pub fn handle_part(&mut self, _: Time, _: NexusId, _: TaskId, _: CopyPart) {}

    pub fn end_part(&mut self, _: Time, _: TaskId) {}

    pub fn handle_copy_progress(&mut self, _id: u64, _segments: u16, _sectors: u64) {}

    pub fn handle_copied(&mut self, _: Time, _id: u64, _: Result<(), CopyFailure>) {}

    pub fn poll_output(&mut self) -> Option<DeviceOutput> {
        self.outputs.pop_front()
    }
}
