//! How tasks start, go on and end.

use super::Device;
use crate::block::{BlockError, Request};
use crate::front::scsi::command_table::COMMANDS;
use crate::front::scsi::copy::part::{PartFailure, PartRefusal, PartReply};
use crate::front::scsi::copy::token;
use crate::front::scsi::handler::CommandOutcome;
use crate::front::scsi::nexus::{NexusId, TaskId};
use crate::front::scsi::output::DeviceOutput;
use crate::front::scsi::response::{CommandResponse, DataIn, Status};
use crate::front::scsi::task_set::{EndedTask, TaskStart, TaskStep, TaskWork};

use bytes::Bytes;

impl Device {
    /// Restores the invariants that hold between events. No task waits that could start. The
    /// outputs hold every response and every end of a part that is due.
    pub(super) fn settle(&mut self) {
        loop {
            self.start_ready();
            let more = self.take_reservation_outputs() | self.answer_waiting();
            if !more {
                break;
            }
        }
        while let Some((task, result)) = self.tasks.poll_part() {
            self.outputs.push_back(DeviceOutput::Part { task, result });
        }
        self.release_watches();
    }

    /// Gives up the watches that nobody needs any more; nobody waits for the replies.
    pub(super) fn release_watches(&mut self) {
        while let Some(watch) =
            self.unit.tokens.poll_unwatch().or_else(|| self.tasks.poll_stray_watch())
        {
            let id = self.tasks.name_request();
            self.outputs.push_back(DeviceOutput::Request { id, request: Request::Unwatch(watch) });
        }
    }

    fn start_ready(&mut self) {
        loop {
            let ended = self.tasks.ended();
            let mut from = 0;
            while let Some((seq, id)) = self.tasks.next_ready(from) {
                from = seq + 1;
                if self.tasks.may_start(id) {
                    self.start(id);
                }
            }
            // The end of a task may let an older one start, too.
            if self.tasks.ended() == ended {
                break;
            }
        }
    }

    fn start(&mut self, id: TaskId) {
        let outcome = match self.tasks.start(id) {
            Some(TaskStart::Control(run, context)) => run(&mut self.unit, &context),
            Some(TaskStart::Table(run, context)) => run(COMMANDS, &context),
            Some(TaskStart::List(run, context, list)) => run(&mut self.unit, &context, &list),
            Some(TaskStart::Failed(sense)) => sense.into(),
            Some(TaskStart::Medium) => return self.advance(id),
            None => return,
        };
        match outcome {
            CommandOutcome::Medium(io) => {
                self.tasks.set_work(id, TaskWork::Medium(io));
                self.advance(id);
            }
            CommandOutcome::Reservations => {
                // The reservations already have the command.
                self.tasks.set_work(id, TaskWork::Reservations);
            }
            CommandOutcome::Copy(request) => self.begin_copy(id, *request),
            CommandOutcome::Good(_) | CommandOutcome::Refused(_) | CommandOutcome::Staged(_) => {
                self.finish(id, outcome);
            }
        }
    }

    /// Goes on with a task all of whose requests are answered.
    pub(super) fn advance(&mut self, id: TaskId) {
        let sectors = self.unit.config.sectors;
        match self.tasks.advance(id, sectors, &mut self.outputs) {
            Some(TaskStep::End(outcome)) => self.finish(id, outcome),
            Some(TaskStep::MakeToken(watch, request)) => {
                let outcome = match self.tasks.nexus_of(id) {
                    Some(nexus) => token::make(&mut self.unit, self.now, nexus, &request, watch),
                    None => CommandOutcome::DONE,
                };
                self.finish(id, outcome);
            }
            None => {}
        }
    }

    /// Ends a task with a response.
    pub(super) fn finish(&mut self, id: TaskId, outcome: CommandOutcome) {
        match self.tasks.end(id) {
            Some(EndedTask { part: true, error, .. }) => {
                self.tasks.end_part(id, part_result(outcome, error));
            }
            Some(EndedTask { wanted, .. }) => self.respond(id, wanted, outcome),
            None => {}
        }
    }

    /// Ends a task without a response.
    pub(super) fn drop_task(&mut self, id: TaskId) {
        if let Some(copy) = self.tasks.drop_task(id) {
            self.stop_copy(copy);
        }
        self.unit.reservations.handle_abort(id);
    }

    /// Ends a task for task management, or for a PREEMPT AND ABORT, of nexus `by` (SAM-5 §5.6).
    pub(super) fn abort(&mut self, id: TaskId, by: NexusId) {
        let Some(task) = self.tasks.get(id) else { return };
        let (nexus, out_wanted, part) = (task.nexus(), task.wanted(), task.is_part());
        self.drop_task(id);
        if part {
            return;
        }
        if nexus != by && self.unit.mode.task_aborted {
            let (sense, data) = (Bytes::new(), DataIn::None);
            let response = CommandResponse { status: Status::TaskAborted, sense, data, out_wanted };
            self.outputs.push_back(DeviceOutput::Response { task: id, response });
        } else {
            self.outputs.push_back(DeviceOutput::Aborted { task: id });
        }
    }
}

/// The result of a part, in the terms of the copy.
fn part_result(
    outcome: CommandOutcome,
    error: Option<BlockError>,
) -> Result<PartReply, PartFailure> {
    match (outcome, error) {
        (_, Some(BlockError::Changed)) => Err(PartFailure::Changed),
        (_, Some(BlockError::Unsupported)) => Err(PartFailure::Unsupported),
        (CommandOutcome::Refused(refusal), _) => Err(PartFailure::Refused(PartRefusal(refusal))),
        (CommandOutcome::Staged(pieces), _) => Ok(PartReply::Staged(pieces)),
        (_, _) => Ok(PartReply::Done),
    }
}
