//! Task management (RFC 7143 §11.5, RFC 7144 §5), and the times of its responses.
//!
//! The target may only send a response after the effects of the function have settled at all
//! initiators concerned (RFC 7143 §4.2.3).

use super::connection::before;
use super::counters::Abort;
use super::framing::Pdu;
use super::functions::{Fence, FunctionProgress, PendingFunction};
use super::session::{Session, SessionContext};
use super::tasks::{SessionTask, TaskStage};
use super::{ConnectionId, TaskReporting};
use crate::block::Time;
use crate::front::scsi::{ManagementFunction, ManagementResponse};
use crate::wire::iscsi::{self, FunctionResponse, Request, Response};
use bytes::Bytes;
use std::time::Duration;

/// How long a function waits for solicited output and for missing commands. The standard has no
/// limit. But initiators stop answering R2Ts once they reset, whatever was negotiated.
const SETTLE_LIMIT: Duration = Duration::from_secs(3);

/// How long a response waits for the acknowledgments of other connections.
const FENCE_LIMIT: Duration = Duration::from_secs(5);

/// The protocol level that the functions of RFC 7144 need.
const LEVEL_OF_RFC_7144: u8 = 2;

impl Session {
    /// Handles a function whose turn has come.
    pub(super) fn manage(&mut self, cx: &mut SessionContext<'_>, at: usize, pdu: &Pdu) {
        let Request::TaskManagement { function, lun, referenced, referenced_cmd_sn, .. } =
            pdu.header.request
        else {
            return;
        };
        let connection = self.connections[at].id;
        let itt = pdu.header.itt;
        let newer = self.parameters.protocol_level >= LEVEL_OF_RFC_7144;
        use iscsi::Function as F;
        let management = match function {
            f if f == F::AbortTask as u8 => {
                return self.abort_task(cx, at, pdu, lun, referenced, referenced_cmd_sn);
            }
            f if f == F::TaskReassign as u8 => return self.reassign(cx, at, pdu),
            f if f == F::AbortTaskSet as u8 => ManagementFunction::AbortTaskSet,
            f if f == F::ClearTaskSet as u8 => ManagementFunction::ClearTaskSet,
            f if f == F::LogicalUnitReset as u8 => ManagementFunction::LogicalUnitReset,
            f if f == F::TargetWarmReset as u8 => ManagementFunction::TargetReset,
            f if f == F::TargetColdReset as u8 => ManagementFunction::TargetReset,
            f if f == F::ItNexusReset as u8 && newer => ManagementFunction::NexusReset,
            f if f == F::QueryTask as u8 && newer => {
                let slot = self.tasks.find(referenced);
                let task = slot.and_then(|slot| Some((slot, self.tasks.get(slot)?)));
                match task.filter(|(_, task)| task.lun == lun && task.stage != TaskStage::Done) {
                    Some((slot, task)) if task.stage == TaskStage::Active => {
                        ManagementFunction::QueryTask(self.tasks.id(slot))
                    }
                    Some(_) => {
                        return self.respond_function(connection, itt, FunctionResponse::Succeeded);
                    }
                    None => {
                        return self.respond_function(connection, itt, FunctionResponse::Complete);
                    }
                }
            }
            f if f == F::QueryTaskSet as u8 && newer => {
                let waits =
                    |task: &SessionTask| task.stage == TaskStage::Waiting && task.lun == lun;
                if self.tasks.iter().any(|(_, task)| waits(task)) {
                    return self.respond_function(connection, itt, FunctionResponse::Succeeded);
                }
                ManagementFunction::QueryTaskSet
            }
            f if f == F::QueryAsyncEvent as u8 && newer => ManagementFunction::QueryAsyncEvent,
            // CLEAR ACA has no effect without auto contingent allegiance.
            _ => return self.respond_function(connection, itt, FunctionResponse::NotSupported),
        };
        let query = matches!(
            management,
            ManagementFunction::QueryTask(_)
                | ManagementFunction::QueryTaskSet
                | ManagementFunction::QueryAsyncEvent
        );
        let progress = if query {
            FunctionProgress::Asked
        } else {
            let until = cx.now.after(SETTLE_LIMIT);
            self.arm(until);
            FunctionProgress::Settling { until }
        };
        let cmd_sn = pdu.header.cmd_sn;
        let Some(id) = self.begin(PendingFunction {
            id: 0,
            connection,
            itt,
            lun,
            cmd_sn,
            function,
            management,
            progress,
        }) else {
            return;
        };
        if query {
            self.ask(cx, id, lun, management);
            return;
        }
        if let Some(function) = self.functions.get_mut(id).cloned() {
            for slot in self.tasks.select(|task| function.concerns(task)) {
                if let Some(task) = self.tasks.get(slot) {
                    task.frozen = true;
                }
            }
            if function.is_wide() {
                // §4.2.3.3: commands that have not arrived count as received.
                while before(self.order.expected(), cmd_sn) {
                    if let Some(held) = self.order.skip() {
                        self.execute(cx, held);
                    }
                }
                self.execute_held(cx);
            }
        }
        self.advance_functions(cx);
    }

    /// Adds a function and names it. Rejects it if there are too many.
    fn begin(&mut self, function: PendingFunction) -> Option<u64> {
        let (connection, itt) = (function.connection, function.itt);
        let id = self.functions.add(function);
        if id.is_none() {
            self.respond_function(connection, itt, FunctionResponse::Rejected);
        }
        id
    }

    fn ask(
        &mut self,
        cx: &mut SessionContext<'_>,
        id: u64,
        lun: u64,
        management: ManagementFunction,
    ) {
        if let Some(device) = cx.device.as_deref_mut() {
            device.handle_management(cx.now, self.nexus, id, lun, management);
        }
    }

    fn abort_task(
        &mut self,
        cx: &mut SessionContext<'_>,
        at: usize,
        pdu: &Pdu,
        lun: u64,
        referenced: u32,
        referenced_cmd_sn: u32,
    ) {
        let connection = self.connections[at].id;
        let itt = pdu.header.itt;
        let slot = self.tasks.find(referenced);
        let live = slot
            .and_then(|slot| self.tasks.get(slot))
            .is_some_and(|task| task.stage != TaskStage::Done && task.lun == lun);
        let Some(slot) = slot.filter(|_| live) else {
            // §11.6.1: a command that has not arrived counts as received and aborted.
            let number = referenced_cmd_sn;
            let to_come = slot.is_none()
                && !before(number, self.order.expected())
                && before(number, pdu.header.cmd_sn)
                && !before(self.window().max, number);
            let response = if to_come {
                self.order.count_as_received(number);
                FunctionResponse::Complete
            } else {
                FunctionResponse::NoTask
            };
            self.respond_function(connection, itt, response);
            self.execute_held(cx);
            return;
        };
        let id = self.tasks.id(slot);
        let active = self.tasks.get(slot).is_some_and(|task| task.stage == TaskStage::Active);
        if !active {
            self.abort(cx, slot, Abort::Function);
            self.respond_function(connection, itt, FunctionResponse::Complete);
            return;
        }
        let management = ManagementFunction::AbortTask(id);
        let function = PendingFunction {
            id: 0,
            connection,
            itt,
            lun,
            cmd_sn: pdu.header.cmd_sn,
            function: iscsi::Function::AbortTask as u8,
            management,
            progress: FunctionProgress::Asked,
        };
        if let Some(function) = self.begin(function) {
            self.abort(cx, slot, Abort::Function);
            self.ask(cx, function, lun, management);
        }
    }

    /// Moves the functions on as far as possible.
    pub(super) fn advance_functions(&mut self, cx: &mut SessionContext<'_>) {
        while let Some(function) = self.functions.barrier().cloned() {
            let FunctionProgress::Settling { until } = function.progress else { return };
            let concerned = self.tasks.select(|task| function.concerns(task));
            let arrived = !before(self.order.expected(), function.cmd_sn);
            let quiet = concerned.iter().all(|slot| {
                let collect = self.tasks.get(*slot).and_then(|task| task.collect.as_deref());
                collect.is_none_or(|collect| collect.is_quiet())
            });
            // §4.2.3.4: with FastAbort the initiator sends no more output for these tasks.
            let fast = self.parameters.task_reporting == TaskReporting::FastAbort;
            if !(arrived && (quiet || fast)) && cx.now < until {
                self.arm(until);
                return;
            }
            if let Some(asked) = self.functions.get_mut(function.id) {
                asked.progress = FunctionProgress::Asked;
            }
            // The device ends its tasks. Tasks that it does not have end here.
            let mut connections = Vec::new();
            for slot in self.tasks.select(|task| {
                function.concerns(task)
                    || task.stage == TaskStage::Active
                        && (function.is_wide() || task.lun == function.lun)
            }) {
                if let Some(task) = self.abort(cx, slot, Abort::Function) {
                    connections.push(task.connection);
                }
            }
            self.announce_abort(function.lun, &connections, function.connection);
            self.ask(cx, function.id, function.lun, function.management);
        }
        self.admit(cx);
    }

    /// The device has carried out a function. `fences` are those of other sessions whose tasks it
    /// ended. Returns true if the response has to wait.
    pub(super) fn handle_management_done(
        &mut self,
        cx: &mut SessionContext<'_>,
        id: u64,
        response: ManagementResponse,
        mut fences: Vec<Fence>,
    ) -> bool {
        let Some(function) = self.functions.get_mut(id) else { return false };
        let (own, management) = (function.connection, function.management);
        let response = match response {
            ManagementResponse::Complete => FunctionResponse::Complete,
            ManagementResponse::Succeeded => FunctionResponse::Succeeded,
            ManagementResponse::NoLun => FunctionResponse::NoLun,
        };
        let single = matches!(
            management,
            ManagementFunction::AbortTask(_)
                | ManagementFunction::QueryTask(_)
                | ManagementFunction::QueryTaskSet
                | ManagementFunction::QueryAsyncEvent
        );
        if single {
            fences.clear();
        } else {
            // §4.2.2.3.4: the response comes after everything that was sent on other connections.
            fences.extend(self.fences().filter(|fence| fence.connection != own));
        }
        if fences.is_empty() {
            self.finish_function(id, response);
            return false;
        }
        let until = cx.now.after(FENCE_LIMIT);
        if let Some(function) = self.functions.get_mut(id) {
            function.progress = FunctionProgress::Fenced { fences, response, until };
        }
        self.arm(until);
        true
    }

    /// The fences for all statuses that this session's connections have not acknowledged.
    pub(super) fn fences(&self) -> impl Iterator<Item = Fence> {
        let serial = self.serial;
        self.connections.iter().filter_map(move |connection| {
            let stat_sn = connection.outlet.stat_sn;
            let owed = connection.closing.is_none() && before(connection.acknowledged, stat_sn);
            owed.then_some(Fence { serial, connection: connection.id, stat_sn })
        })
    }

    /// Answers the functions that wait for no fence any more. `is_up` tells whether a fence is not
    /// acknowledged. Returns whether it answered some, and whether some still wait.
    pub(super) fn advance_fences(
        &mut self,
        now: Time,
        is_up: impl Fn(&Fence) -> bool,
    ) -> (bool, bool) {
        let (done, waiting) = self.functions.lower_fences(now, is_up);
        let answered = !done.is_empty();
        for (id, response) in done {
            self.finish_function(id, response);
        }
        (answered, waiting)
    }

    /// Whether a fence of this session is not acknowledged yet.
    pub(super) fn is_up(&self, fence: &Fence) -> bool {
        self.connections.iter().any(|connection| {
            connection.id == fence.connection && before(connection.acknowledged, fence.stat_sn)
        })
    }

    fn finish_function(&mut self, id: u64, response: FunctionResponse) {
        let Some(function) = self.functions.remove(id) else { return };
        self.respond_function(function.connection, function.itt, response);
        self.cold_reset |= function.function == iscsi::Function::TargetColdReset as u8;
    }

    /// Answers a function on its own connection.
    pub(super) fn respond_function(
        &mut self,
        connection: ConnectionId,
        itt: u32,
        response: FunctionResponse,
    ) {
        let window = self.window();
        if let Some(at) = self.connection(connection) {
            let response = Response::TaskManagement { response };
            self.connections[at].send(window, itt, response, Bytes::new());
        }
    }
}
