//! A logical unit with its tasks: commands in, outputs for the transport out.
//!
//! [`Device`] routes between the parts that own the state. [`LogicalUnit`] has the state that
//! commands use, including the reservations. [`TaskSet`] has the tasks and their order.

mod copies;
mod management;
mod reservations;
mod tasks;

#[cfg(test)]
mod tests;

use super::command::{Attribute, Cdb, Command, is_here};
use super::command_table;
use super::config::DeviceConfig;
use super::function::ManagementFunction;
use super::handler::{CommandContext, CommandOutcome, Handler, TransferPlan};
use super::inquiry;
use super::limits::MAX_TASKS;
use super::logical_unit::LogicalUnit;
use super::mode_parameters::ModeParameters;
use super::nexus::{Nexus, NexusId, TaskId};
use super::output::DeviceOutput;
use super::persistent;
use super::response::{CommandResponse, DataIn, Status};
use super::sense::{CommandRefusal, Sense, code};
use super::task_set::{TaskSet, TaskWork};
use crate::block::{BlockError, Reply, Time};
use bytes::Bytes;
use std::collections::{BTreeSet, VecDeque};

/// The command whose response waits.
#[derive(Debug)]
enum DeferredResponse {
    /// A task management function.
    Management(u64),
    /// A PREEMPT AND ABORT, with its outcome.
    Task(TaskId, CommandOutcome),
}

/// A response that waits until these tasks, which have ended, can no longer change the medium.
#[derive(Debug)]
struct WaitingResponse {
    response: DeferredResponse,
    tasks: BTreeSet<TaskId>,
}

/// A logical unit.
#[derive(Debug)]
pub struct Device {
    unit: LogicalUnit,
    tasks: TaskSet,
    waiting: Vec<WaitingResponse>,
    /// When the last reply of the volume came.
    now: Time,
    outputs: VecDeque<DeviceOutput>,
}

impl Device {
    /// A device without nexuses.
    #[must_use]
    pub fn new(config: DeviceConfig) -> Device {
        Device {
            unit: LogicalUnit::new(config),
            tasks: TaskSet::default(),
            waiting: Vec::new(),
            now: Time::default(),
            outputs: VecDeque::new(),
        }
    }

    /// Whether the target may drop this device and make it anew without any later nexus noticing.
    /// That is so if there is no nexus, task, reservation or token, and all mode parameters have
    /// their defaults.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.unit.nexuses.is_empty()
            && self.tasks.is_empty()
            && self.unit.reservations.is_empty()
            && self.unit.tokens.is_empty()
            && self.unit.mode == ModeParameters::default()
    }

    /// A nexus has come up. The same two ends may not be up twice: the transport closes the older
    /// session first (RFC 7143 §6.3.5).
    pub fn handle_nexus(&mut self, _now: Time, nexus: NexusId, ends: Nexus) {
        self.unit.reservations.handle_nexus(nexus, &ends);
        self.unit.nexuses.add(nexus, ends);
    }

    /// A nexus is lost (SAM-5 §6.3.4): its tasks end without responses.
    pub fn handle_nexus_loss(&mut self, _now: Time, nexus: NexusId) {
        if !self.unit.nexuses.lose(nexus) {
            return;
        }
        for task in self.tasks.of(|task| task.nexus() == nexus) {
            self.drop_task(task);
        }
        self.stop_background(|other| other == nexus);
        self.unit.copies.forget_nexus(nexus);
        self.unit.reservations.handle_nexus_loss(nexus);
        self.settle();
    }

    /// A command of a nexus.
    pub fn handle_command(&mut self, _now: Time, nexus: NexusId, task: TaskId, command: Command) {
        if self.tasks.contains(task) {
            return;
        }
        if let Err(outcome) = self.admit(nexus, task, &command) {
            self.respond(task, 0, *outcome);
        }
        self.settle();
    }

    /// The output that a task wanted: pieces in order, together of exactly that length. For a task
    /// that has ended, nothing happens.
    pub fn handle_data(&mut self, _now: Time, task: TaskId, data: Vec<Bytes>) {
        if self.tasks.collected(task, data) {
            self.settle();
        }
    }

    /// A task's output will not come. The task ends with this sense key and code.
    pub fn handle_data_failure(&mut self, _now: Time, task: TaskId, key: u8, code: u16) {
        if self.tasks.is_collecting(task) {
            self.finish(task, CommandOutcome::from(Sense::new(key, code)));
            self.settle();
        }
    }

    /// A task management function. [`DeviceOutput::ManagementDone`] answers it once no task that it
    /// ended can change the medium any more.
    pub fn handle_management(
        &mut self,
        _now: Time,
        nexus: NexusId,
        id: u64,
        lun: u64,
        function: ManagementFunction,
    ) {
        self.manage(nexus, id, lun, function);
        self.settle();
    }

    /// The volume has answered a request.
    pub fn handle_reply(&mut self, now: Time, id: u64, result: Result<Reply, BlockError>) {
        self.now = now;
        if let Some(task) = self.tasks.replied(id, result, self.unit.block_sectors()) {
            self.advance(task);
        }
        self.settle();
    }

    /// Handles the outcome of a save of reservations: done, or the reason why not.
    pub fn handle_saved(&mut self, _now: Time, id: u64, result: Result<(), String>) {
        self.unit.reservations.handle_saved(id, result);
        self.settle();
    }

    /// The volume has another size, in sectors.
    pub fn handle_resized(&mut self, _now: Time, sectors: u64) {
        let before = self.unit.blocks();
        self.unit.config.sectors = sectors;
        if self.unit.blocks() != before {
            self.unit.nexuses.establish(code::CAPACITY_CHANGED, |_| true);
        }
    }

    /// The time to call [`Device::handle_timeout`], if ever.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.unit.tokens.next_expiry()
    }

    /// The time of [`Device::poll_timeout`] has come.
    pub fn handle_timeout(&mut self, now: Time) {
        self.unit.tokens.expire(now);
        self.settle();
    }

    /// Takes the next output.
    pub fn poll_output(&mut self) -> Option<DeviceOutput> {
        self.outputs.pop_front()
    }

    /// Checks a command and makes it a task.
    ///
    /// # Errors
    ///
    /// The outcome of a command that ends at once.
    fn admit(
        &mut self,
        nexus: NexusId,
        task: TaskId,
        command: &Command,
    ) -> Result<(), Box<CommandOutcome>> {
        let cdb = Cdb(command.cdb);
        let context = CommandContext { nexus, task, cdb, out_bytes: command.out_bytes };
        if !is_here(command.lun) {
            return Err(Box::new(inquiry::elsewhere(&context)));
        }
        if !self.unit.nexuses.contains(nexus) || self.tasks.len() >= MAX_TASKS {
            return refuse(CommandRefusal::Status(Status::TaskSetFull));
        }
        if command.attribute == Attribute::Aca {
            // SAM-5 §8.9.5: there is never an auto contingent allegiance here.
            return refuse(Sense::illegal(code::INVALID_MESSAGE));
        }
        // INQUIRY, REPORT LUNS and REQUEST SENSE go past unit attentions (SAM-5 §5.14.4).
        if !matches!(cdb.byte(0), 0x03 | 0x12 | 0xa0)
            && let Some(code) = self.unit.nexuses.take_attention(nexus)
        {
            return refuse(Sense::attention(code));
        }
        if let Err(refusal) = persistent::check(&self.unit, nexus, &command.cdb) {
            return refuse(refusal);
        }
        let entry = command_table::find(command).or_else(refuse)?;
        let attribute = command.attribute;
        match entry.run {
            Handler::Control(run) => self.add(context, attribute, TaskWork::Control(run), 0, 0),
            Handler::Table(run) => self.add(context, attribute, TaskWork::Table(run), 0, 0),
            Handler::List(length, run) => {
                let wanted = length(&self.unit, &context).map_err(Box::new)?;
                // The ranges of an UNMAP are known only when its list is there.
                let all = (cdb.byte(0) == 0x42).then_some(self.unit.config.sectors);
                let work = TaskWork::List { run, all };
                self.add(context, attribute, work, wanted, wanted.min(command.out_bytes));
            }
            Handler::Medium(plan) => {
                let TransferPlan { wanted, collect, io } =
                    plan(&self.unit, &context).or_else(refuse)?;
                let work = TaskWork::Medium(Box::new(io));
                self.add(context, attribute, work, wanted, collect);
            }
        }
        Ok(())
    }

    fn add(
        &mut self,
        context: CommandContext,
        attribute: Attribute,
        work: TaskWork,
        wanted: u64,
        collect: u64,
    ) {
        self.tasks.add(context, attribute, work, wanted, collect);
        if collect > 0 {
            let task = context.task;
            self.outputs.push_back(DeviceOutput::WantData { task, bytes: collect });
        }
    }

    fn respond(&mut self, task: TaskId, out_wanted: u64, outcome: CommandOutcome) {
        let (status, sense, data) = match outcome {
            CommandOutcome::Good(data) => (Status::Good, Bytes::new(), data),
            CommandOutcome::Refused(CommandRefusal::Status(status)) => {
                (status, Bytes::new(), DataIn::None)
            }
            CommandOutcome::Refused(CommandRefusal::Check(sense)) => {
                let sense = sense.bytes(self.unit.mode.descriptor_sense);
                (Status::CheckCondition, sense, DataIn::None)
            }
            // A command does not end with any of these.
            CommandOutcome::Medium(_)
            | CommandOutcome::Reservations
            | CommandOutcome::Copy(_)
            | CommandOutcome::Staged(_) => return,
        };
        let response = CommandResponse { status, sense, data, out_wanted };
        self.outputs.push_back(DeviceOutput::Response { task, response });
    }
}

/// Ends a command that was not admitted.
fn refuse<T>(refusal: impl Into<CommandRefusal>) -> Result<T, Box<CommandOutcome>> {
    Err(Box::new(CommandOutcome::Refused(refusal.into())))
}
