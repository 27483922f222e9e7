//! Task management functions (SAM-5 §7), and responses that wait for ended tasks.

use super::{DeferredResponse, Device, WaitingResponse};
use crate::front::scsi::command::is_here;
use crate::front::scsi::function::{ManagementFunction, ManagementResponse};
use crate::front::scsi::mode_parameters::ModeParameters;
use crate::front::scsi::nexus::{NexusId, TaskId};
use crate::front::scsi::output::DeviceOutput;
use crate::front::scsi::sense::code;
use std::collections::BTreeSet;

impl Device {
    pub(super) fn manage(
        &mut self,
        nexus: NexusId,
        id: u64,
        lun: u64,
        function: ManagementFunction,
    ) {
        let everywhere =
            matches!(function, ManagementFunction::TargetReset | ManagementFunction::NexusReset);
        if !everywhere && !is_here(lun) {
            return self.managed(id, ManagementResponse::NoLun);
        }
        let yes = |yes| match yes {
            true => ManagementResponse::Succeeded,
            false => ManagementResponse::Complete,
        };
        let ended = match function {
            ManagementFunction::QueryTask(task) => {
                return self.managed(id, yes(self.is_task_of(task, nexus)));
            }
            ManagementFunction::QueryTaskSet => {
                let tasks = self.tasks.of(|task| task.nexus() == nexus && !task.is_part());
                return self.managed(id, yes(!tasks.is_empty()));
            }
            ManagementFunction::QueryAsyncEvent => {
                let pending = self.unit.nexuses.has_attention(nexus);
                return self.managed(id, yes(pending));
            }
            ManagementFunction::AbortTask(task) if self.is_task_of(task, nexus) => vec![task],
            ManagementFunction::AbortTask(_) => Vec::new(),
            ManagementFunction::AbortTaskSet | ManagementFunction::NexusReset => {
                self.tasks.of(|task| task.nexus() == nexus)
            }
            ManagementFunction::ClearTaskSet
            | ManagementFunction::LogicalUnitReset
            | ManagementFunction::TargetReset => self.tasks.of(|_| true),
        };
        let mut others: BTreeSet<NexusId> = BTreeSet::new();
        for &task in &ended {
            others.extend(self.tasks.nexus_of(task).filter(|other| *other != nexus));
            self.abort(task, nexus);
        }
        match function {
            ManagementFunction::AbortTaskSet | ManagementFunction::NexusReset => {
                self.stop_background(|other| other == nexus);
            }
            ManagementFunction::ClearTaskSet
            | ManagementFunction::LogicalUnitReset
            | ManagementFunction::TargetReset => {
                self.stop_background(|_| true);
            }
            _ => {}
        }
        match function {
            // Nexuses that get no status are told by a unit attention (SAM-5 §5.6).
            ManagementFunction::ClearTaskSet if !self.unit.mode.task_aborted => {
                self.unit
                    .nexuses
                    .establish(code::COMMANDS_CLEARED, |other| others.contains(&other));
            }
            ManagementFunction::LogicalUnitReset | ManagementFunction::TargetReset => {
                self.unit.mode = ModeParameters::default();
                self.unit.reservations.handle_reset();
                self.unit.copies.forget_all();
                self.unit.nexuses.establish(code::DEVICE_RESET_OCCURRED, |_| true);
            }
            ManagementFunction::NexusReset => {
                self.unit.reservations.handle_nexus_loss(nexus);
                if let Some(ends) = self.unit.nexuses.ends(nexus) {
                    self.unit.reservations.handle_nexus(nexus, ends);
                }
                self.unit.nexuses.establish(code::NEXUS_LOSS_OCCURRED, |other| other == nexus);
            }
            _ => {}
        }
        // Tasks that were ended earlier may still change the medium, too.
        let tasks = self.tasks.lingering();
        let response = DeferredResponse::Management(id);
        self.waiting.push(WaitingResponse { response, tasks });
    }

    fn is_task_of(&self, task: TaskId, nexus: NexusId) -> bool {
        self.tasks.is_live(task) && self.tasks.nexus_of(task) == Some(nexus)
    }

    fn managed(&mut self, id: u64, response: ManagementResponse) {
        self.outputs.push_back(DeviceOutput::ManagementDone { id, response });
    }

    /// Sends the responses that wait for no task any more; `false` if there are none.
    pub(super) fn answer_waiting(&mut self) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        for waiting in &mut self.waiting {
            waiting.tasks.retain(|task| self.tasks.lingers(*task));
        }
        let done: Vec<WaitingResponse> =
            self.waiting.extract_if(.., |waiting| waiting.tasks.is_empty()).collect();
        let any = !done.is_empty();
        for waiting in done {
            match waiting.response {
                DeferredResponse::Management(id) => self.managed(id, ManagementResponse::Complete),
                DeferredResponse::Task(task, outcome) => self.finish(task, outcome),
            }
        }
        any
    }
}
