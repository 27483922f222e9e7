//! Task management (RFC 7143 §11.5, RFC 7144 §5), and when its responses may be sent: after what it
//! ended has settled at all initiators concerned (RFC 7143 §4.2.3).

use super::connection::before;
use super::counters::Abort;
use super::framing::Pdu;
use super::session::{Context, Held, Session};
use super::tasks::{Stage, Task};
use super::{ConnectionId, TaskReporting};
use crate::block::Time;
use crate::front::scsi::{ManagementFunction, ManagementResponse};
use crate::wire::iscsi::{self, FunctionResponse, Request, Response};
use bytes::Bytes;
use std::time::Duration;

/// How long a function waits for output that was asked for and for commands that are missing. The
/// standard knows no limit, but initiators stop to answer R2Ts once they reset, whatever was agreed.
const SETTLE_LIMIT: Duration = Duration::from_secs(3);

/// How long a response waits until other connections have acknowledged what was sent before.
const FENCE_LIMIT: Duration = Duration::from_secs(5);

/// Functions that a session may have unfinished, numbered or not.
const MAX_FUNCTIONS: usize = 128;

/// A status that another connection has to acknowledge.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fence {
    pub(super) serial: u32,
    pub(super) link: ConnectionId,
    /// All before it.
    pub(super) stat_sn: u32,
}

#[derive(Clone, Debug)]
enum Progress {
    /// Output and commands of the tasks concerned are on their way.
    Settling { until: Time },
    /// The device is at it.
    Asked,
    /// Other connections have to acknowledge what was sent before.
    Fenced { fences: Vec<Fence>, response: FunctionResponse, until: Time },
}

/// A task management function that has not been answered.
#[derive(Clone, Debug)]
pub(super) struct Function {
    id: u64,
    pub(super) link: ConnectionId,
    itt: u32,
    lun: u64,
    cmd_sn: u32,
    function: u8,
    management: ManagementFunction,
    progress: Progress,
}

impl Function {
    /// Commands do not pass it on their way to the device.
    pub(super) fn is_barrier(&self) -> bool {
        matches!(self.progress, Progress::Settling { .. })
    }

    /// It concerns all logical units.
    fn is_wide(&self) -> bool {
        matches!(self.management, ManagementFunction::TargetReset | ManagementFunction::NexusReset)
    }

    fn concerns(&self, task: &Task) -> bool {
        let older =
            before(task.cmd_sn, self.cmd_sn) || task.immediate && task.cmd_sn == self.cmd_sn;
        older && task.stage != Stage::Done && (self.is_wide() || task.lun == self.lun)
    }
}

/// Functions of RFC 7144 need an initiator that knows it.
const LEVEL_OF_RFC_7144: u8 = 2;

impl Session {
    /// A function's turn has come.
    pub(super) fn manage(&mut self, cx: &mut Context<'_>, at: usize, pdu: &Pdu) {
        let Request::TaskManagement { function, lun, referenced, referenced_cmd_sn, .. } =
            pdu.header.request
        else {
            return;
        };
        let link = self.links[at].id;
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
                match task.filter(|(_, task)| task.lun == lun && task.stage != Stage::Done) {
                    Some((slot, task)) if task.stage == Stage::Active => {
                        ManagementFunction::QueryTask(self.tasks.id(slot))
                    }
                    Some(_) => {
                        return self.respond_function(link, itt, FunctionResponse::Succeeded);
                    }
                    None => return self.respond_function(link, itt, FunctionResponse::Complete),
                }
            }
            f if f == F::QueryTaskSet as u8 && newer => {
                let waits = |task: &Task| task.stage == Stage::Waiting && task.lun == lun;
                if self.tasks.iter().any(|(_, task)| waits(task)) {
                    return self.respond_function(link, itt, FunctionResponse::Succeeded);
                }
                ManagementFunction::QueryTaskSet
            }
            f if f == F::QueryAsyncEvent as u8 && newer => ManagementFunction::QueryAsyncEvent,
            // Without auto contingent allegiance there is none to clear.
            _ => return self.respond_function(link, itt, FunctionResponse::NotSupported),
        };
        let query = matches!(
            management,
            ManagementFunction::QueryTask(_)
                | ManagementFunction::QueryTaskSet
                | ManagementFunction::QueryAsyncEvent
        );
        let progress = if query {
            Progress::Asked
        } else {
            let until = cx.now.after(SETTLE_LIMIT);
            self.arm(until);
            Progress::Settling { until }
        };
        let cmd_sn = pdu.header.cmd_sn;
        let Some(id) =
            self.begin(Function { id: 0, link, itt, lun, cmd_sn, function, management, progress })
        else {
            return;
        };
        if query {
            self.ask(cx, id, lun, management);
            return;
        }
        if let Some(function) = self.functions.last().cloned() {
            for slot in self.tasks.select(|task| function.concerns(task)) {
                if let Some(task) = self.tasks.get(slot) {
                    task.frozen = true;
                }
            }
            if function.is_wide() {
                // §4.2.3.3: what has not arrived is taken to have.
                while before(self.expected, cmd_sn) {
                    let held = self.held.remove(&self.expected);
                    self.expected = self.expected.wrapping_add(1);
                    if let Some(held) = held {
                        self.execute(cx, held);
                    }
                }
                self.execute_held(cx);
            }
        }
        self.advance_functions(cx);
    }

    /// Takes a function in and names it; refuses it if there are too many.
    fn begin(&mut self, function: Function) -> Option<u64> {
        if self.functions.len() >= MAX_FUNCTIONS {
            self.respond_function(function.link, function.itt, FunctionResponse::Rejected);
            return None;
        }
        self.function_ids = self.function_ids.wrapping_add(1);
        let id = u64::from(self.serial) << 32 | u64::from(self.function_ids);
        self.functions.push(Function { id, ..function });
        Some(id)
    }

    fn ask(&mut self, cx: &mut Context<'_>, id: u64, lun: u64, management: ManagementFunction) {
        if let Some(device) = cx.device.as_deref_mut() {
            device.handle_management(cx.now, self.nexus, id, lun, management);
        }
    }

    fn abort_task(
        &mut self,
        cx: &mut Context<'_>,
        at: usize,
        pdu: &Pdu,
        lun: u64,
        referenced: u32,
        referenced_cmd_sn: u32,
    ) {
        let link = self.links[at].id;
        let itt = pdu.header.itt;
        let slot = self.tasks.find(referenced);
        let live = slot
            .and_then(|slot| self.tasks.get(slot))
            .is_some_and(|task| task.stage != Stage::Done && task.lun == lun);
        let Some(slot) = slot.filter(|_| live) else {
            // §11.6.1: a command that is still to come counts as received and aborted.
            let number = referenced_cmd_sn;
            let to_come = slot.is_none()
                && !before(number, self.expected)
                && before(number, pdu.header.cmd_sn)
                && !before(self.window().max, number);
            let response = if to_come {
                self.held.entry(number).or_insert(Held::Nothing);
                FunctionResponse::Complete
            } else {
                FunctionResponse::NoTask
            };
            self.respond_function(link, itt, response);
            self.execute_held(cx);
            return;
        };
        let id = self.tasks.id(slot);
        let active = self.tasks.get(slot).is_some_and(|task| task.stage == Stage::Active);
        if !active {
            self.abort(cx, slot, Abort::Function);
            self.respond_function(link, itt, FunctionResponse::Complete);
            return;
        }
        let management = ManagementFunction::AbortTask(id);
        let function = Function {
            id: 0,
            link,
            itt,
            lun,
            cmd_sn: pdu.header.cmd_sn,
            function: iscsi::Function::AbortTask as u8,
            management,
            progress: Progress::Asked,
        };
        if let Some(function) = self.begin(function) {
            self.abort(cx, slot, Abort::Function);
            self.ask(cx, function, lun, management);
        }
    }

    /// Takes functions as far as they go.
    pub(super) fn advance_functions(&mut self, cx: &mut Context<'_>) {
        while let Some(at) = self.functions.iter().position(Function::is_barrier) {
            let function = self.functions[at].clone();
            let Progress::Settling { until } = function.progress else { return };
            let concerned = self.tasks.select(|task| function.concerns(task));
            let arrived = !before(self.expected, function.cmd_sn);
            let quiet = concerned.iter().all(|slot| {
                let collect = self.tasks.get(*slot).and_then(|task| task.collect.as_deref());
                collect.is_none_or(|collect| collect.is_quiet())
            });
            // §4.2.3.4: an initiator that aborts fast sends no more of their output.
            let fast = self.parameters.task_reporting == TaskReporting::FastAbort;
            if !(arrived && (quiet || fast)) && cx.now < until {
                self.arm(until);
                return;
            }
            self.functions[at].progress = Progress::Asked;
            // The device ends what it has; what it has not been given ends here.
            let mut links = Vec::new();
            for slot in self.tasks.select(|task| {
                function.concerns(task)
                    || task.stage == Stage::Active
                        && (function.is_wide() || task.lun == function.lun)
            }) {
                if let Some(task) = self.abort(cx, slot, Abort::Function) {
                    links.push(task.link);
                }
            }
            self.announce_abort(function.lun, &links, function.link);
            self.ask(cx, function.id, function.lun, function.management);
        }
        self.admit(cx);
    }

    /// The device has carried a function out, which ended tasks of other sessions as far as
    /// `fences` tell. True if its response has to wait.
    pub(super) fn handle_management_done(
        &mut self,
        cx: &mut Context<'_>,
        id: u64,
        response: ManagementResponse,
        mut fences: Vec<Fence>,
    ) -> bool {
        let Some(at) = self.functions.iter().position(|function| function.id == id) else {
            return false;
        };
        let response = match response {
            ManagementResponse::Complete => FunctionResponse::Complete,
            ManagementResponse::Succeeded => FunctionResponse::Succeeded,
            ManagementResponse::NoLun => FunctionResponse::NoLun,
        };
        let single = matches!(
            self.functions[at].management,
            ManagementFunction::AbortTask(_)
                | ManagementFunction::QueryTask(_)
                | ManagementFunction::QueryTaskSet
                | ManagementFunction::QueryAsyncEvent
        );
        let own = self.functions[at].link;
        if single {
            fences.clear();
        } else {
            // §4.2.2.3.4: the response comes after all that was sent on other connections.
            fences.extend(self.fences().filter(|fence| fence.link != own));
        }
        if fences.is_empty() {
            self.finish_function(at, response);
            return false;
        }
        let until = cx.now.after(FENCE_LIMIT);
        self.functions[at].progress = Progress::Fenced { fences, response, until };
        self.arm(until);
        true
    }

    /// What this session's connections have not acknowledged.
    pub(super) fn fences(&self) -> impl Iterator<Item = Fence> {
        let serial = self.serial;
        self.links.iter().filter_map(move |link| {
            let stat_sn = link.outlet.stat_sn;
            let owed = link.closing.is_none() && before(link.acknowledged, stat_sn);
            owed.then_some(Fence { serial, link: link.id, stat_sn })
        })
    }

    /// Answers functions whose fences are down; `is_up` tells whether one is not. True if some still
    /// wait.
    pub(super) fn advance_fences(&mut self, now: Time, is_up: impl Fn(&Fence) -> bool) -> bool {
        let mut waiting = false;
        let mut at = 0;
        while let Some(function) = self.functions.get_mut(at) {
            if let Progress::Fenced { fences, response, until } = &mut function.progress {
                fences.retain(|fence| is_up(fence));
                if fences.is_empty() || *until <= now {
                    let response = *response;
                    self.finish_function(at, response);
                    continue;
                }
                waiting = true;
            }
            at += 1;
        }
        waiting
    }

    /// Whether the fence of this session is still up.
    pub(super) fn is_up(&self, fence: &Fence) -> bool {
        self.links
            .iter()
            .any(|link| link.id == fence.link && before(link.acknowledged, fence.stat_sn))
    }

    fn finish_function(&mut self, at: usize, response: FunctionResponse) {
        let function = self.functions.remove(at);
        self.respond_function(function.link, function.itt, response);
        self.cold_reset |= function.function == iscsi::Function::TargetColdReset as u8;
    }

    /// Answers a function on the connection it came on.
    pub(super) fn respond_function(
        &mut self,
        link: ConnectionId,
        itt: u32,
        response: FunctionResponse,
    ) {
        let window = self.window();
        if let Some(at) = self.link(link) {
            let response = Response::TaskManagement { response };
            self.links[at].send(window, itt, response, Bytes::new());
        }
    }
}
