//! Task management functions (SAM-5 §7), and the target port group.

use super::inquiry::is_here;
use super::sense::{Sense, code};
use super::{Context, Device, Management, ManagementResponse, NexusId, Outcome, Output, TaskId};
use crate::front::iscsi::PORTAL_GROUP;
use std::collections::BTreeSet;

/// What is told when tasks that were ended can change the medium no more.
#[derive(Debug)]
pub(super) enum Answer {
    /// That a task management function is done.
    Management(u64),
    /// The outcome of a PREEMPT AND ABORT.
    Task(TaskId, Outcome),
}

/// An answer that waits, and for which tasks.
#[derive(Debug)]
pub(super) struct Waiting {
    pub answer: Answer,
    pub tasks: BTreeSet<TaskId>,
}

impl Device {
    pub(super) fn manage(&mut self, nexus: NexusId, id: u64, lun: u64, function: Management) {
        let everywhere = matches!(function, Management::TargetReset | Management::NexusReset);
        if !everywhere && !is_here(lun) {
            return self.managed(id, ManagementResponse::NoLun);
        }
        let yes = |yes| match yes {
            true => ManagementResponse::Succeeded,
            false => ManagementResponse::Complete,
        };
        let ended = match function {
            Management::QueryTask(task) => {
                return self.managed(id, yes(self.is_task_of(task, nexus)));
            }
            Management::QueryTaskSet => {
                let tasks = self.tasks.of(|task| task.nexus() == nexus && !task.is_part());
                return self.managed(id, yes(!tasks.is_empty()));
            }
            Management::QueryAsyncEvent => {
                let pending = self.nexuses.get(&nexus).map(|live| !live.attentions.is_empty());
                return self.managed(id, yes(pending == Some(true)));
            }
            Management::AbortTask(task) if self.is_task_of(task, nexus) => vec![task],
            Management::AbortTask(_) => Vec::new(),
            Management::AbortTaskSet | Management::NexusReset => {
                self.tasks.of(|task| task.nexus() == nexus)
            }
            Management::ClearTaskSet | Management::LogicalUnitReset | Management::TargetReset => {
                self.tasks.of(|_| true)
            }
        };
        let mut others: BTreeSet<NexusId> = BTreeSet::new();
        for &task in &ended {
            others.extend(self.tasks.nexus_of(task).filter(|other| *other != nexus));
            self.abort(task, nexus);
        }
        match function {
            Management::AbortTaskSet | Management::NexusReset => {
                self.stop_background(|other| other == nexus);
            }
            Management::ClearTaskSet | Management::LogicalUnitReset | Management::TargetReset => {
                self.stop_background(|_| true);
            }
            _ => {}
        }
        match function {
            // Those that are not told by a status are told by a unit attention (SAM-5 §5.6).
            Management::ClearTaskSet if !self.mode.task_aborted => {
                self.attention(code::COMMANDS_CLEARED, |other| others.contains(&other));
            }
            Management::LogicalUnitReset | Management::TargetReset => {
                self.mode = super::mode::Parameters::default();
                self.reservations.handle_reset();
                self.results.forget_all();
                self.attention(code::DEVICE_RESET_OCCURRED, |_| true);
            }
            Management::NexusReset => {
                self.reservations.handle_nexus_loss(nexus);
                if let Some(live) = self.nexuses.get_mut(&nexus) {
                    self.reservations.handle_nexus(nexus, &live.ends);
                }
                self.attention(code::NEXUS_LOSS_OCCURRED, |other| other == nexus);
            }
            _ => {}
        }
        // Those that were ended before may still be changing the medium as well.
        let tasks = self.tasks.lingering();
        self.waiting.push(Waiting { answer: Answer::Management(id), tasks });
    }

    fn is_task_of(&self, task: TaskId, nexus: NexusId) -> bool {
        self.tasks.is_live(task) && self.tasks.nexus_of(task) == Some(nexus)
    }

    fn managed(&mut self, id: u64, response: ManagementResponse) {
        self.outputs.push_back(Output::ManagementDone { id, response });
    }

    /// Gives the answers that wait for nothing any more; whether there were any.
    pub(super) fn answer_waiting(&mut self) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        for waiting in &mut self.waiting {
            waiting.tasks.retain(|task| self.tasks.lingers(*task));
        }
        let done: Vec<Waiting> =
            self.waiting.extract_if(.., |waiting| waiting.tasks.is_empty()).collect();
        let any = !done.is_empty();
        for waiting in done {
            match waiting.answer {
                Answer::Management(id) => self.managed(id, ManagementResponse::Complete),
                Answer::Task(task, outcome) => self.finish(task, outcome),
            }
        }
        any
    }
}

/// REPORT TARGET PORT GROUPS: one group, active and optimised, with one port.
pub(super) fn report_target_port_groups(device: &mut Device, context: &Context) -> Outcome {
    let cdb = &context.cdb;
    let mut bytes = match cdb.byte(1) >> 5 {
        0 => vec![0; 4],
        // With the extended header; no time is told for a transition, since there is none.
        1 => vec![0, 0, 0, 0, 0x10, 0, 0, 0],
        _ => return Sense::in_cdb(1, Some(7)).into(),
    };
    let [group_high, group_low] = PORTAL_GROUP.to_be_bytes();
    let port = device.nexuses.get(&context.nexus).map_or(1, |live| live.ends.relative_port);
    let [port_high, port_low] = port.to_be_bytes();
    // AO_SUP is the only state that there is.
    bytes.extend([0x00, 0x01, group_high, group_low, 0, 0, 0, 1, 0, 0, port_high, port_low]);
    let length = (bytes.len() - 4) as u32;
    bytes[..4].copy_from_slice(&length.to_be_bytes());
    Outcome::data(bytes, cdb.u32(6) as usize)
}
