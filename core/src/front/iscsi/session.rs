//! A session in the full feature phase: one I_T nexus over one or more connections (RFC 7143 §4.4).
//!
//! Commands reach the device in the order of their numbers, whichever connection they came on.
//! Every list has a bound. If a peer breaks the protocol on one connection, the target closes only
//! that connection.

use super::command_order::{CommandOrder, EarlyRequest};
use super::connection::{CommandWindow, Connection, before};
use super::counters::{Abort, Counters};
use super::exchange::TextStep;
use super::framing::Pdu;
use super::functions::Functions;
use super::tasks::{SessionTask, SessionTasks, TaskStage};
use super::{
    Access, CloseReason, Config, ConnectionId, Device, DeviceId, Event, Identity, Parameters,
    TaskReporting,
};
use crate::block::Time;
use crate::front::scsi::NexusId;
use crate::wire::iscsi::{BHS_BYTES, RESERVED_TAG, RejectReason, Request, Response};
use bytes::Bytes;
use std::collections::VecDeque;

/// Most immediate commands of a session that have not ended. §4.2.2.1 leaves the number to the
/// target.
const MAX_IMMEDIATE: usize = 64;

/// Most failed connections whose tasks the session keeps.
const MAX_LOST: usize = 16;

/// Events of asynchronous messages (§11.9.1).
pub(super) mod event {
    /// The initiator has to log out within Parameter3 seconds.
    pub(in super::super) const LOGOUT: u8 = 1;
    /// The target will drop connection Parameter1, because the initiator did not log out.
    pub(in super::super) const DROP_CONNECTION: u8 = 2;
    /// The target will drop all connections of the session.
    pub(in super::super) const DROP_SESSION: u8 = 3;
    /// Another initiator ended tasks of a logical unit.
    pub(in super::super) const TASKS_TERMINATED: u8 = 5;
}

/// The parts of the target that a session's handlers use.
#[derive(Debug)]
pub(super) struct SessionContext<'a> {
    pub(super) now: Time,
    pub(super) config: &'a Config,
    pub(super) access: &'a Access,
    pub(super) events: &'a mut VecDeque<Event>,
    pub(super) counters: &'a mut Counters,
    /// The session's device; a discovery session has none.
    pub(super) device: Option<&'a mut Device>,
}

/// A connection that failed, whose tasks may be moved to another one (ErrorRecoveryLevel 2).
#[derive(Clone, Copy, Debug)]
pub(super) struct FailedConnection {
    pub(super) id: ConnectionId,
    pub(super) cid: u16,
    /// When its tasks end.
    pub(super) until: Time,
}

/// When a session's timer is due.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SessionTimer {
    /// The earliest time at which something is due.
    wake: Option<Time>,
    /// The time of the target's timer for this session.
    armed: Option<Time>,
}

impl SessionTimer {
    /// Something is due at `at`.
    fn arm(&mut self, at: Time) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }

    /// The time of the target's timer for this session.
    pub(super) fn armed(&self) -> Option<Time> {
        self.armed
    }

    /// The target's timer has fired.
    pub(super) fn fired(&mut self) {
        self.armed = None;
    }

    /// The old and the new time of the target's timer, if they differ.
    pub(super) fn rearm(&mut self) -> Option<(Option<Time>, Option<Time>)> {
        let armed = std::mem::replace(&mut self.armed, self.wake);
        (armed != self.wake).then_some((armed, self.wake))
    }
}

/// A session.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) serial: u32,
    pub(super) nexus: NexusId,
    /// The initiator and the volume; with the TSIH.
    pub(super) identity: Identity,
    /// The parameters that hold for all connections.
    pub(super) parameters: Parameters,
    pub(super) device: Option<DeviceId>,
    /// All its connections come from this machine.
    pub(super) loopback: bool,
    pub(super) connections: Vec<Connection>,
    pub(super) failed: Vec<FailedConnection>,
    pub(super) order: CommandOrder,
    pub(super) tasks: SessionTasks,
    pub(super) functions: Functions,
    /// The last tag of a ping.
    pings: u32,
    /// The session is over.
    pub(super) ended: bool,
    /// The target asked the initiator to log out by this time, for this reason.
    pub(super) dismissed: Option<(Time, CloseReason)>,
    /// The target answered a cold reset: the sessions of its target end.
    pub(super) cold_reset: bool,
    pub(super) timer: SessionTimer,
}

impl Session {
    /// A session without connections. Its next command has number `expected`, and at most
    /// `commands` may be outstanding.
    pub(super) fn new(
        (serial, nexus): (u32, NexusId),
        identity: Identity,
        parameters: Parameters,
        device: Option<DeviceId>,
        expected: u32,
        commands: u32,
    ) -> Session {
        Session {
            serial,
            nexus,
            identity,
            parameters,
            device,
            loopback: true,
            connections: Vec::new(),
            failed: Vec::new(),
            order: CommandOrder::new(expected, commands),
            tasks: SessionTasks::new(serial, commands),
            functions: Functions::new(serial),
            pings: 0,
            ended: false,
            dismissed: None,
            cold_reset: false,
            timer: SessionTimer::default(),
        }
    }

    /// The numbers to tell the initiator with the next PDU.
    pub(super) fn window(&self) -> CommandWindow {
        self.order.window()
    }

    pub(super) fn connection(&mut self, id: ConnectionId) -> Option<usize> {
        self.connections.iter().position(|connection| connection.id == id)
    }

    pub(super) fn connection_of(&self, cid: u16) -> Option<usize> {
        self.connections.iter().position(|connection| connection.cid == cid)
    }

    /// Something is due at `at`.
    pub(super) fn arm(&mut self, at: Time) {
        self.timer.arm(at);
    }

    /// Adds a connection that has just logged in.
    pub(super) fn add(&mut self, now: Time, config: &Config, connection: Connection) {
        self.arm(now.after(config.ping_after));
        self.connections.push(connection);
    }

    /// A PDU arrived on connection number `at`.
    pub(super) fn handle_pdu(&mut self, cx: &mut SessionContext<'_>, at: usize, pdu: Pdu) {
        let connection = &mut self.connections[at];
        connection.heard = cx.now;
        connection.ping = None;
        self.acknowledge(cx, at, pdu.header.exp_stat_sn);
        match pdu.header.request {
            Request::DataOut { .. } => return self.data_out(cx, at, pdu, false),
            Request::Snack { .. } => return self.snack(cx, at, &pdu),
            _ => {}
        }
        let header = pdu.header;
        if !header.immediate {
            // §4.2.2.1: silently ignore numbers outside the window and numbers that came before.
            if self.order.is_beyond(header.cmd_sn) {
                return;
            }
        }
        if let Some(reason) = self.refusal(&pdu) {
            self.reject(cx, at, &pdu.raw, reason);
            return;
        }
        let id = self.connections[at].id;
        let held = match header.request {
            Request::ScsiCommand { .. } => match self.receive(cx, at, &pdu) {
                Some(slot) => EarlyRequest::Command(slot),
                None => return,
            },
            _ => EarlyRequest::Other(id, Box::new(pdu)),
        };
        if header.immediate {
            self.execute(cx, held);
        } else if self.order.take_turn(header.cmd_sn) {
            self.execute(cx, held);
            self.execute_held(cx);
        } else {
            self.order.keep(header.cmd_sn, held);
        }
    }

    /// The reason to reject a request, if any. The number of a rejected request counts as not
    /// received (§7.3).
    fn refusal(&mut self, pdu: &Pdu) -> Option<RejectReason> {
        let header = &pdu.header;
        let discovery = self.device.is_none();
        match header.request {
            Request::NopOut { .. } => {
                // §11.18: a NOP-Out without a tag gets no answer, so it must be immediate.
                (header.itt == RESERVED_TAG && !header.immediate)
                    .then_some(RejectReason::InvalidPduField)
            }
            Request::Text { .. } | Request::Logout { .. } => {
                (header.itt == RESERVED_TAG).then_some(RejectReason::InvalidPduField)
            }
            // §4.3: a discovery session takes no other requests.
            _ if discovery => Some(RejectReason::ProtocolError),
            Request::TaskManagement { .. } => {
                // An immediate function refers to the commands before it. None of them can be
                // beyond the window.
                let beyond = before(self.window().max.wrapping_add(1), header.cmd_sn);
                if header.itt == RESERVED_TAG || beyond {
                    Some(RejectReason::InvalidPduField)
                } else {
                    (header.immediate && self.functions.len() >= MAX_IMMEDIATE)
                        .then_some(RejectReason::TooManyImmediateCommands)
                }
            }
            Request::ScsiCommand { .. } => {
                if header.itt == RESERVED_TAG {
                    return Some(RejectReason::InvalidPduField);
                }
                if header.immediate && self.order.immediate() >= MAX_IMMEDIATE {
                    return Some(RejectReason::TooManyImmediateCommands);
                }
                let slot = self.tasks.find(header.itt)?;
                let live = self.tasks.get(slot).is_some_and(|task| task.stage != TaskStage::Done);
                live.then_some(RejectReason::TaskInProgress)
            }
            // A login request in the full feature phase breaks the protocol (§6.3).
            Request::Login { .. } => Some(RejectReason::ProtocolError),
            Request::DataOut { .. } | Request::Snack { .. } | Request::Unknown => {
                Some(RejectReason::CommandNotSupported)
            }
        }
    }

    /// Executes the early requests whose turn has come.
    pub(super) fn execute_held(&mut self, cx: &mut SessionContext<'_>) {
        while let Some(held) = self.order.next() {
            self.execute(cx, held);
        }
        self.advance_functions(cx);
    }

    pub(super) fn execute(&mut self, cx: &mut SessionContext<'_>, held: EarlyRequest) {
        let (id, pdu) = match held {
            EarlyRequest::Nothing => return,
            EarlyRequest::Command(slot) => return self.enter(cx, slot),
            EarlyRequest::Other(id, pdu) => (id, pdu),
        };
        let Some(at) = self.connection(id) else { return };
        match pdu.header.request {
            Request::NopOut { lun, .. } => self.nop_out(at, lun, &pdu),
            Request::TaskManagement { .. } => self.manage(cx, at, &pdu),
            Request::Logout { reason, cid } => self.logout(cx, at, &pdu, reason, cid),
            Request::Text { .. } => self.text(cx, at, &pdu),
            _ => {}
        }
    }

    /// Answers a NOP-Out (§11.18, §11.19).
    fn nop_out(&mut self, at: usize, lun: u64, pdu: &Pdu) {
        if pdu.header.itt == RESERVED_TAG {
            return;
        }
        let window = self.window();
        let connection = &mut self.connections[at];
        let mut data = pdu.data.clone();
        data.truncate(connection.parameters.initiator_data_segment as usize);
        connection.send(window, pdu.header.itt, Response::NopIn { lun, ttt: RESERVED_TAG }, data);
    }

    /// Handles a Text request (§11.10).
    fn text(&mut self, cx: &mut SessionContext<'_>, at: usize, pdu: &Pdu) {
        let exchange = &mut self.connections[at].exchange;
        let step = exchange.handle_request(cx.config, cx.access, &pdu.header, &pdu.data);
        self.answer(cx, at, step, pdu.header.itt, &pdu.raw);
    }

    /// Takes the names of all volumes, for the exchange that asked for them.
    pub(super) fn handle_listed(
        &mut self,
        cx: &mut SessionContext<'_>,
        at: usize,
        volumes: &[String],
    ) {
        let connection = &mut self.connections[at];
        let Some((itt, raw)) = connection.listing.take() else { return };
        let step = connection.exchange.handle_listed(cx.config, cx.access, volumes);
        self.answer(cx, at, step, itt, &raw);
    }

    fn answer(
        &mut self,
        cx: &mut SessionContext<'_>,
        at: usize,
        step: TextStep,
        itt: u32,
        raw: &[u8; BHS_BYTES],
    ) {
        let window = self.window();
        let connection = &mut self.connections[at];
        match step {
            TextStep::Send { pdu, initiator_data_segment } => {
                connection.send(window, itt, pdu.response, pdu.text);
                if let Some(bytes) = initiator_data_segment {
                    connection.parameters.initiator_data_segment = bytes;
                }
            }
            TextStep::List => {
                connection.listing = Some((itt, *raw));
                cx.events.push_back(Event::List { connection: connection.id });
            }
            TextStep::Reject { reason, .. } => self.reject(cx, at, raw, reason),
        }
    }

    /// Handles a Logout request (§11.14, §11.15).
    fn logout(&mut self, cx: &mut SessionContext<'_>, at: usize, pdu: &Pdu, reason: u8, cid: u16) {
        const CLOSED: u8 = 0;
        const NO_SUCH_CONNECTION: u8 = 1;
        const RECOVERY_NOT_SUPPORTED: u8 = 2;
        let recovers = self.parameters.error_recovery_level >= 2;
        let known =
            self.connection_of(cid).is_some() || self.failed.iter().any(|failed| failed.cid == cid);
        let discovery = self.device.is_none();
        let response = match reason {
            0 => CLOSED,
            // §11.14.1: a discovery session can only be closed as a whole.
            1 | 2 if discovery => {
                self.reject(cx, at, &pdu.raw, RejectReason::ProtocolError);
                return;
            }
            1 | 2 if !known => NO_SUCH_CONNECTION,
            2 if !recovers => RECOVERY_NOT_SUPPORTED,
            1 | 2 => CLOSED,
            _ => {
                self.reject(cx, at, &pdu.raw, RejectReason::InvalidPduField);
                return;
            }
        };
        let closed = response == CLOSED;
        let keep = closed && reason == 2;
        if closed && reason == 0 {
            self.end_tasks(cx, |_| true);
        } else if closed && reason == 1 {
            let ids = self.ids_of(cid);
            self.end_tasks(cx, |task| ids.contains(&task.connection));
        }
        let window = self.window();
        let (time2wait, time2retain) =
            if keep { (self.parameters.time2wait, self.parameters.time2retain) } else { (0, 0) };
        let response = Response::Logout { response, time2wait, time2retain };
        self.connections[at].send(window, pdu.header.itt, response, Bytes::new());
        if !closed {
            return;
        }
        if reason == 0 {
            self.end(CloseReason::LoggedOut);
            return;
        }
        let other = self.connection_of(cid);
        if !keep {
            self.failed.retain(|failed| failed.cid != cid);
        } else if let Some(other) = other {
            self.lose(cx, other);
        }
        if let Some(other) = other {
            self.connections[other].close(CloseReason::LoggedOut);
        }
    }

    /// The names of the connections, live and failed, with this CID.
    fn ids_of(&self, cid: u16) -> Vec<ConnectionId> {
        let connections = self
            .connections
            .iter()
            .filter(|connection| connection.cid == cid)
            .map(|connection| connection.id);
        connections
            .chain(self.failed.iter().filter(|failed| failed.cid == cid).map(|failed| failed.id))
            .collect()
    }

    /// Ends the session with all its connections.
    pub(super) fn end(&mut self, reason: CloseReason) {
        self.ended = true;
        for connection in &mut self.connections {
            connection.close(reason.clone());
        }
    }

    /// Ends the session and tells its initiator, with [`event::DROP_CONNECTION`] or
    /// [`event::DROP_SESSION`]. The initiator may come back after the negotiated time, and finds
    /// none of its tasks then.
    pub(super) fn cut_off(&mut self, event: u8, reason: CloseReason) {
        let time2wait = self.parameters.time2wait;
        self.announce(event, |connection| {
            let cid = if event == event::DROP_CONNECTION { connection.cid } else { 0 };
            [cid, time2wait, 0]
        });
        self.end(reason);
    }

    /// Sends an asynchronous message to every connection.
    pub(super) fn announce(&mut self, event: u8, parameters: impl Fn(&Connection) -> [u16; 3]) {
        let window = self.window();
        for connection in &mut self.connections {
            let parameters = parameters(connection);
            let message = Response::Async { lun: 0, event, vendor: 0, parameters };
            connection.send(window, RESERVED_TAG, message, Bytes::new());
        }
    }

    /// Tells connections that their tasks on a logical unit were ended, if that was negotiated
    /// (§4.2.3.4). Connection `but` is not told.
    pub(super) fn announce_abort(
        &mut self,
        lun: u64,
        connections: &[ConnectionId],
        but: ConnectionId,
    ) {
        if self.parameters.task_reporting != TaskReporting::FastAbort {
            return;
        }
        let window = self.window();
        for connection in &mut self.connections {
            if connection.id != but && connections.contains(&connection.id) {
                let event = event::TASKS_TERMINATED;
                let message = Response::Async { lun, event, vendor: 0, parameters: [0; 3] };
                connection.send(window, RESERVED_TAG, message, Bytes::new());
            }
        }
    }

    /// Handles the end of a task by another session. Each connection is told once, after its last
    /// task of the logical unit has ended.
    pub(super) fn tell_abort(&mut self, lun: u64, connection: ConnectionId) {
        if self.parameters.task_reporting != TaskReporting::FastAbort {
            return;
        }
        let more = |(_, task): (u16, &SessionTask)| {
            task.connection == connection && task.lun == lun && task.stage == TaskStage::Active
        };
        if !self.tasks.iter().any(more) {
            self.announce_abort(lun, &[connection], ConnectionId::MAX);
        }
    }

    /// Whether the initiator may still use the volume.
    pub(super) fn is_allowed(&self, access: &Access) -> bool {
        let Identity { initiator, user, volume, .. } = &self.identity;
        volume
            .as_ref()
            .is_none_or(|volume| access.may_use(initiator, user.as_deref(), self.loopback, volume))
    }

    /// Handles a PDU whose data segment is damaged (§7.8).
    pub(super) fn handle_damaged(&mut self, cx: &mut SessionContext<'_>, at: usize, pdu: Pdu) {
        self.connections[at].heard = cx.now;
        self.acknowledge(cx, at, pdu.header.exp_stat_sn);
        cx.counters.data_digest_errors += 1;
        self.reject(cx, at, &pdu.raw, RejectReason::DataDigestError);
        match pdu.header.request {
            Request::DataOut { .. } => self.data_out(cx, at, pdu, true),
            // Without recovery the initiator would not send the request again. The gap in the
            // numbers would block the session.
            _ if !self.connections[at].recovers() => {
                self.connections[at]
                    .close(CloseReason::Violation("a damaged request, and no recovery"));
            }
            _ => {}
        }
    }

    /// Rejects a PDU that came on connection number `at` (§11.17).
    pub(super) fn reject(
        &mut self,
        cx: &mut SessionContext<'_>,
        at: usize,
        raw: &[u8; BHS_BYTES],
        reason: RejectReason,
    ) {
        self.reject_data(cx, at, raw, reason, 0);
    }

    /// Rejects a PDU. `data_sn` belongs to [`RejectReason::InvalidDataAck`].
    pub(super) fn reject_data(
        &mut self,
        cx: &mut SessionContext<'_>,
        at: usize,
        raw: &[u8; BHS_BYTES],
        reason: RejectReason,
        data_sn: u32,
    ) {
        cx.counters.reject(reason);
        let window = self.window();
        let response = Response::Reject { reason, data_sn };
        self.connections[at].send(window, RESERVED_TAG, response, Bytes::copy_from_slice(raw));
    }

    /// Ends tasks without responses.
    pub(super) fn end_tasks(
        &mut self,
        cx: &mut SessionContext<'_>,
        which: impl Fn(&SessionTask) -> bool,
    ) {
        for slot in self.tasks.select(which) {
            self.end_task(cx, slot);
        }
    }

    /// Removes connection number `at`, which is gone or will be when its output is written.
    pub(super) fn disconnect(&mut self, cx: &mut SessionContext<'_>, at: usize) -> Connection {
        let id = self.connections[at].id;
        let farewell = matches!(self.connections[at].closing, Some(CloseReason::LoggedOut));
        if self.parameters.error_recovery_level >= 2 && !farewell && !self.ended {
            self.lose(cx, at);
        }
        let kept = self.failed.iter().any(|failed| failed.id == id);
        let connection = self.connections.swap_remove(at);
        if !kept {
            self.end_tasks(cx, |task| task.connection == id);
        }
        self.order.cancel_of(connection.id);
        self.functions.forget(connection.id);
        self.advance_functions(cx);
        connection
    }

    /// Keeps the tasks of connection number `at` for a reassignment (§7.2.2).
    fn lose(&mut self, cx: &mut SessionContext<'_>, at: usize) {
        let Parameters { time2wait, time2retain, .. } = self.parameters;
        let seconds = u64::from(time2wait) + u64::from(time2retain);
        let until = cx.now.after(std::time::Duration::from_secs(seconds));
        let Connection { id, cid, .. } = self.connections[at];
        if self.failed.len() >= MAX_LOST {
            let oldest = self.failed.remove(0);
            self.end_tasks(cx, |task| task.connection == oldest.id);
        }
        if self.failed.iter().all(|failed| failed.id != id) {
            self.failed.push(FailedConnection { id, cid, until });
            self.arm(until);
        }
    }

    /// Removes task `slot`. A task without a status is counted as aborted.
    pub(super) fn abort(
        &mut self,
        cx: &mut SessionContext<'_>,
        slot: u16,
        why: Abort,
    ) -> Option<SessionTask> {
        let task = self.remove_task(slot)?;
        if task.stage != TaskStage::Done {
            cx.counters.abort(why);
        }
        Some(task)
    }

    /// Removes task `slot`.
    pub(super) fn remove_task(&mut self, slot: u16) -> Option<SessionTask> {
        let task = self.tasks.remove(slot)?;
        match task.stage {
            TaskStage::Waiting | TaskStage::Active => self.order.end(task.immediate),
            TaskStage::Held if task.immediate => self.order.end(true),
            TaskStage::Held | TaskStage::Done => {}
        }
        if task.stage == TaskStage::Held {
            self.order.cancel(task.cmd_sn);
        }
        Some(task)
    }

    /// Bytes that the session holds.
    pub(super) fn held_bytes(&self) -> u64 {
        self.tasks.charge()
            + self.connections.iter().map(|connection| connection.outlet.bytes()).sum::<u64>()
    }

    /// Acts on everything that is due.
    pub(super) fn handle_timeout(&mut self, cx: &mut SessionContext<'_>) {
        self.timer.wake = None;
        if let Some((by, reason)) = self.dismissed.clone() {
            if by <= cx.now {
                self.cut_off(event::DROP_CONNECTION, reason);
                return;
            }
            self.arm(by);
        }
        for at in 0..self.connections.len() {
            self.keep_alive(cx, at);
        }
        let now = cx.now;
        let over: Vec<ConnectionId> = self
            .failed
            .iter()
            .filter(|failed| failed.until <= now)
            .map(|failed| failed.id)
            .collect();
        if !over.is_empty() {
            self.failed.retain(|failed| failed.until > now);
            self.end_tasks(cx, |task| over.contains(&task.connection));
        }
        self.advance_functions(cx);
        for at in 0..self.failed.len() {
            self.arm(self.failed[at].until);
        }
        if let Some(limit) = self.functions.next_fence_limit(now) {
            self.arm(limit);
        }
    }

    fn keep_alive(&mut self, cx: &mut SessionContext<'_>, at: usize) {
        let connection = &mut self.connections[at];
        let due = match connection.ping {
            Some(limit) if limit <= cx.now => {
                connection.close(CloseReason::Silent);
                return;
            }
            Some(limit) => limit,
            None => {
                let due = connection.heard.after(cx.config.ping_after);
                if due <= cx.now { self.ping(cx, at) } else { due }
            }
        };
        self.arm(due);
    }

    /// Pings a connection, which also asks for an acknowledgment. Returns when the answer is due.
    pub(super) fn ping(&mut self, cx: &mut SessionContext<'_>, at: usize) -> Time {
        if let Some(limit) = self.connections[at].ping {
            return limit;
        }
        self.pings = self.pings.wrapping_add(1) & 0x7fff_ffff;
        let ttt = self.pings;
        let limit = cx.now.after(cx.config.ping_limit);
        let window = self.window();
        let connection = &mut self.connections[at];
        connection.ping = Some(limit);
        connection.send(window, RESERVED_TAG, Response::NopIn { lun: 0, ttt }, Bytes::new());
        self.arm(limit);
        limit
    }

    /// Tells the initiator that the window is open again, if it may not know.
    pub(super) fn reopen(&mut self) {
        let closed = self.order.expected().wrapping_sub(1);
        let told = |connection: &Connection| !before(closed, connection.told);
        if self.order.is_full() || !self.connections.iter().all(told) {
            return;
        }
        let window = self.window();
        if let Some(connection) =
            self.connections.iter_mut().find(|connection| connection.closing.is_none())
        {
            let nop = Response::NopIn { lun: 0, ttt: RESERVED_TAG };
            connection.send(window, RESERVED_TAG, nop, Bytes::new());
        }
    }
}
