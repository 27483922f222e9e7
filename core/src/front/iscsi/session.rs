//! A session in the full feature phase: one I_T nexus over one or more connections (RFC 7143 §4.4).
//!
//! Promises: commands reach the device in the order of their numbers, whichever connection they came
//! on; every list has a bound; a connection whose peer breaks the protocol is closed, the others go on.

use super::Device;
use super::collect::Collect;
use super::connection::{Link, Window, before};
use super::counters::{Abort, Counters};
use super::framing::Pdu;
use super::management::Function;
use super::tasks::{Stage, Task, Tasks};
use super::text;
use super::{
    Access, CloseReason, Config, ConnectionId, DeviceId, Event, Identity, Parameters, TaskReporting,
};
use crate::block::Time;
use crate::front::scsi::NexusId;
use crate::wire::iscsi::{BHS_BYTES, RESERVED_TAG, RejectReason, Request, Response};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};

/// Immediate commands that a session may have unfinished (§4.2.2.1 leaves the number to the target).
const MAX_IMMEDIATE: usize = 64;

/// Failed connections whose tasks are kept.
const MAX_LOST: usize = 16;

/// Events of asynchronous messages (§11.9.1).
pub(super) mod event {
    /// The initiator is to log out within Parameter3 seconds.
    pub(in super::super) const LOGOUT: u8 = 1;
    /// Connection Parameter1 will be dropped, as it was not logged out.
    pub(in super::super) const DROP_CONNECTION: u8 = 2;
    /// All connections of the session will be dropped.
    pub(in super::super) const DROP_SESSION: u8 = 3;
    /// The tasks of a logical unit were ended.
    pub(in super::super) const TASKS_TERMINATED: u8 = 5;
}

/// What a session's handlers reach beyond the session.
#[derive(Debug)]
pub(super) struct Context<'a> {
    pub(super) now: Time,
    pub(super) config: &'a Config,
    pub(super) access: &'a Access,
    pub(super) events: &'a mut VecDeque<Event>,
    pub(super) counters: &'a mut Counters,
    /// The session's device; a discovery session has none.
    pub(super) device: Option<&'a mut Device>,
}

/// A numbered request that came before its turn.
#[derive(Debug)]
pub(super) enum Held {
    /// Its task waits in its slot.
    Command(u16),
    /// Anything else, with the connection it came on.
    Other(ConnectionId, Box<Pdu>),
    /// Received, and nothing to be done about it any more.
    Nothing,
}

/// A connection that failed, whose tasks may be moved to another one (ErrorRecoveryLevel 2).
#[derive(Clone, Copy, Debug)]
pub(super) struct Lost {
    pub(super) id: ConnectionId,
    pub(super) cid: u16,
    /// From then on its tasks are ended.
    pub(super) until: Time,
}

/// A session.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) serial: u32,
    pub(super) nexus: NexusId,
    pub(super) tsih: u16,
    pub(super) identity: Identity,
    /// Those that hold for all connections count here.
    pub(super) parameters: Parameters,
    pub(super) device: Option<DeviceId>,
    /// All its connections come from this machine.
    pub(super) loopback: bool,
    pub(super) links: Vec<Link>,
    pub(super) lost: Vec<Lost>,
    /// Number of the next command in order.
    pub(super) expected: u32,
    /// Size of the window.
    commands: u32,
    /// Numbered tasks that have not ended.
    pub(super) active: u32,
    /// Unnumbered ones.
    pub(super) immediate: usize,
    pub(super) held: BTreeMap<u32, Held>,
    pub(super) tasks: Tasks,
    /// Tasks that wait for memory, oldest first.
    pub(super) waiting: VecDeque<u16>,
    /// Payload of admitted tasks, in bytes.
    pub(super) charge: u64,
    pub(super) functions: Vec<Function>,
    pub(super) function_ids: u32,
    /// Tags of tasks that were ended while output for them may be on its way.
    pub(super) ghosts: VecDeque<u32>,
    /// Tags of pings.
    pub(super) pings: u32,
    /// The session is over.
    pub(super) ended: bool,
    /// It was asked to log out, by then and for this reason.
    pub(super) dismissed: Option<(Time, CloseReason)>,
    /// A cold reset was answered: the sessions of its target end.
    pub(super) cold_reset: bool,
    /// When something is due.
    pub(super) wake: Option<Time>,
    /// What the target's timer is set to.
    pub(super) armed: Option<Time>,
}

impl Session {
    /// A session without connections whose next command bears the number `expected`.
    #[expect(clippy::too_many_arguments, reason = "all of them identify the session")]
    pub(super) fn new(
        serial: u32,
        nexus: NexusId,
        tsih: u16,
        identity: Identity,
        parameters: Parameters,
        device: Option<DeviceId>,
        expected: u32,
        commands: u32,
    ) -> Session {
        Session {
            serial,
            nexus,
            tsih,
            identity,
            parameters,
            device,
            loopback: true,
            links: Vec::new(),
            lost: Vec::new(),
            expected,
            commands,
            active: 0,
            immediate: 0,
            held: BTreeMap::new(),
            tasks: Tasks::new(serial),
            waiting: VecDeque::new(),
            charge: 0,
            functions: Vec::new(),
            function_ids: 0,
            ghosts: VecDeque::new(),
            pings: 0,
            ended: false,
            dismissed: None,
            cold_reset: false,
            wake: None,
            armed: None,
        }
    }

    /// The numbers to tell the initiator with the next PDU.
    pub(super) fn window(&self) -> Window {
        // A command that arrives takes its place in the window along, and gives one back when it
        // ends: the last number never falls.
        let free = self.commands.saturating_sub(self.active);
        let max = self.expected.wrapping_sub(1).wrapping_add(free);
        Window { expected: self.expected, max }
    }

    pub(super) fn link(&mut self, id: ConnectionId) -> Option<usize> {
        self.links.iter().position(|link| link.id == id)
    }

    pub(super) fn link_of(&self, cid: u16) -> Option<usize> {
        self.links.iter().position(|link| link.cid == cid)
    }

    /// Something is due at `at`.
    pub(super) fn arm(&mut self, at: Time) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }

    /// Adds a connection that has just logged in.
    pub(super) fn add(&mut self, now: Time, config: &Config, link: Link) {
        self.arm(now.after(config.ping_after));
        self.links.push(link);
    }

    /// A PDU arrived on connection number `at`.
    pub(super) fn handle_pdu(&mut self, cx: &mut Context<'_>, at: usize, pdu: Pdu) {
        let link = &mut self.links[at];
        link.heard = cx.now;
        link.ping = None;
        self.acknowledge(cx, at, pdu.header.exp_stat_sn);
        match pdu.header.request {
            Request::DataOut { .. } => return self.data_out(cx, at, pdu, false),
            Request::Snack { .. } => return self.snack(cx, at, &pdu),
            _ => {}
        }
        let header = pdu.header;
        if !header.immediate {
            // §4.2.2.1: outside the window, and what was received before, is silently ignored.
            let beyond =
                before(header.cmd_sn, self.expected) || before(self.window().max, header.cmd_sn);
            if beyond || self.held.contains_key(&header.cmd_sn) {
                return;
            }
        }
        if let Some(reason) = self.refusal(&pdu) {
            self.reject(cx, at, &pdu.raw, reason);
            return;
        }
        let id = self.links[at].id;
        let held = match header.request {
            Request::ScsiCommand { .. } => match self.receive(cx, at, &pdu) {
                Some(slot) => Held::Command(slot),
                None => return,
            },
            _ => Held::Other(id, Box::new(pdu)),
        };
        if header.immediate {
            self.execute(cx, held);
        } else if header.cmd_sn == self.expected {
            self.expected = self.expected.wrapping_add(1);
            self.execute(cx, held);
            self.execute_held(cx);
        } else {
            self.held.insert(header.cmd_sn, held);
        }
    }

    /// Whether a request cannot be taken at all. Its number counts as not received (§7.3).
    fn refusal(&mut self, pdu: &Pdu) -> Option<RejectReason> {
        let header = &pdu.header;
        let discovery = self.device.is_none();
        match header.request {
            Request::NopOut { .. } => {
                // §11.18: what bears no tag is not answered, and so not numbered.
                (header.itt == RESERVED_TAG && !header.immediate)
                    .then_some(RejectReason::InvalidPduField)
            }
            Request::Text { .. } | Request::Logout { .. } => {
                (header.itt == RESERVED_TAG).then_some(RejectReason::InvalidPduField)
            }
            // §4.3: a discovery session takes no other requests.
            _ if discovery => Some(RejectReason::ProtocolError),
            Request::TaskManagement { .. } => {
                // An immediate one says which commands come before it; that is none beyond the window.
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
                if header.immediate && self.immediate >= MAX_IMMEDIATE {
                    return Some(RejectReason::TooManyImmediateCommands);
                }
                let slot = self.tasks.find(header.itt)?;
                let live = self.tasks.get(slot).is_some_and(|task| task.stage != Stage::Done);
                live.then_some(RejectReason::TaskInProgress)
            }
            // A login request in the full feature phase breaks the protocol (§6.3).
            Request::Login { .. } => Some(RejectReason::ProtocolError),
            Request::DataOut { .. } | Request::Snack { .. } | Request::Unknown => {
                Some(RejectReason::CommandNotSupported)
            }
        }
    }

    /// Carries out what waited for its turn.
    pub(super) fn execute_held(&mut self, cx: &mut Context<'_>) {
        while let Some(held) = self.held.remove(&self.expected) {
            self.expected = self.expected.wrapping_add(1);
            self.execute(cx, held);
        }
        self.advance_functions(cx);
    }

    pub(super) fn execute(&mut self, cx: &mut Context<'_>, held: Held) {
        let (id, pdu) = match held {
            Held::Nothing => return,
            Held::Command(slot) => return self.enter(cx, slot),
            Held::Other(id, pdu) => (id, pdu),
        };
        let Some(at) = self.link(id) else { return };
        match pdu.header.request {
            Request::NopOut { lun, .. } => self.nop_out(at, lun, &pdu),
            Request::TaskManagement { .. } => self.manage(cx, at, &pdu),
            Request::Logout { reason, cid } => self.logout(cx, at, &pdu, reason, cid),
            Request::Text { .. } => self.text(cx, at, &pdu),
            _ => {}
        }
    }

    /// §11.18, §11.19.
    fn nop_out(&mut self, at: usize, lun: u64, pdu: &Pdu) {
        if pdu.header.itt == RESERVED_TAG {
            return;
        }
        let window = self.window();
        let link = &mut self.links[at];
        let mut data = pdu.data.clone();
        data.truncate(link.parameters.initiator_data_segment as usize);
        link.send(window, pdu.header.itt, Response::NopIn { lun, ttt: RESERVED_TAG }, data);
    }

    /// §11.10.
    fn text(&mut self, cx: &mut Context<'_>, at: usize, pdu: &Pdu) {
        let exchange = &mut self.links[at].exchange;
        let step = exchange.handle_request(cx.config, cx.access, &pdu.header, &pdu.data);
        self.answer(cx, at, step, pdu.header.itt, &pdu.raw);
    }

    /// The names of all volumes, for an exchange that asked for them.
    pub(super) fn handle_listed(&mut self, cx: &mut Context<'_>, at: usize, volumes: &[String]) {
        let link = &mut self.links[at];
        let Some((itt, raw)) = link.listing.take() else { return };
        let step = link.exchange.handle_listed(cx.config, cx.access, volumes);
        self.answer(cx, at, step, itt, &raw);
    }

    fn answer(
        &mut self,
        cx: &mut Context<'_>,
        at: usize,
        step: text::Step,
        itt: u32,
        raw: &[u8; BHS_BYTES],
    ) {
        let window = self.window();
        let link = &mut self.links[at];
        match step {
            text::Step::Send { pdu, initiator_data_segment } => {
                link.send(window, itt, pdu.response, pdu.text);
                if let Some(bytes) = initiator_data_segment {
                    link.parameters.initiator_data_segment = bytes;
                }
            }
            text::Step::List => {
                link.listing = Some((itt, *raw));
                cx.events.push_back(Event::List { connection: link.id });
            }
            text::Step::Reject { reason, .. } => self.reject(cx, at, raw, reason),
        }
    }

    /// §11.14, §11.15.
    fn logout(&mut self, cx: &mut Context<'_>, at: usize, pdu: &Pdu, reason: u8, cid: u16) {
        const CLOSED: u8 = 0;
        const NO_SUCH_CONNECTION: u8 = 1;
        const RECOVERY_NOT_SUPPORTED: u8 = 2;
        let recovers = self.parameters.error_recovery_level >= 2;
        let known = self.link_of(cid).is_some() || self.lost.iter().any(|lost| lost.cid == cid);
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
            self.end_tasks(cx, |task| ids.contains(&task.link));
        }
        let window = self.window();
        let (time2wait, time2retain) =
            if keep { (self.parameters.time2wait, self.parameters.time2retain) } else { (0, 0) };
        let response = Response::Logout { response, time2wait, time2retain };
        self.links[at].send(window, pdu.header.itt, response, Bytes::new());
        if !closed {
            return;
        }
        if reason == 0 {
            self.end(CloseReason::LoggedOut);
            return;
        }
        let other = self.link_of(cid);
        if !keep {
            self.lost.retain(|lost| lost.cid != cid);
        } else if let Some(other) = other {
            self.lose(cx, other);
        }
        if let Some(other) = other {
            self.links[other].close(CloseReason::LoggedOut);
        }
    }

    /// The connection, and failed ones, that have or had this number.
    fn ids_of(&self, cid: u16) -> Vec<ConnectionId> {
        let links = self.links.iter().filter(|link| link.cid == cid).map(|link| link.id);
        links.chain(self.lost.iter().filter(|lost| lost.cid == cid).map(|lost| lost.id)).collect()
    }

    /// The session is over, with all its connections.
    pub(super) fn end(&mut self, reason: CloseReason) {
        self.ended = true;
        for link in &mut self.links {
            link.close(reason.clone());
        }
    }

    /// The session is over and its initiator is told so, with event [`event::DROP_CONNECTION`] or
    /// [`event::DROP_SESSION`]: it may come again after the time that was agreed on, and finds none
    /// of its tasks then.
    pub(super) fn cut_off(&mut self, event: u8, reason: CloseReason) {
        let time2wait = self.parameters.time2wait;
        self.announce(event, |link| {
            let cid = if event == event::DROP_CONNECTION { link.cid } else { 0 };
            [cid, time2wait, 0]
        });
        self.end(reason);
    }

    /// Sends an asynchronous message to every connection.
    pub(super) fn announce(&mut self, event: u8, parameters: impl Fn(&Link) -> [u16; 3]) {
        let window = self.window();
        for link in &mut self.links {
            let parameters = parameters(link);
            let message = Response::Async { lun: 0, event, vendor: 0, parameters };
            link.send(window, RESERVED_TAG, message, Bytes::new());
        }
    }

    /// Tells connections that their tasks on a logical unit were ended, where that was agreed on
    /// (§4.2.3.4); `but` knows already.
    pub(super) fn announce_abort(&mut self, lun: u64, links: &[ConnectionId], but: ConnectionId) {
        if self.parameters.task_reporting != TaskReporting::FastAbort {
            return;
        }
        let window = self.window();
        for link in &mut self.links {
            if link.id != but && links.contains(&link.id) {
                let event = event::TASKS_TERMINATED;
                let message = Response::Async { lun, event, vendor: 0, parameters: [0; 3] };
                link.send(window, RESERVED_TAG, message, Bytes::new());
            }
        }
    }

    /// A task on connection `link` was ended by another session. Each connection is told once for
    /// all tasks of a logical unit that are still there.
    pub(super) fn tell_abort(&mut self, lun: u64, link: ConnectionId) {
        if self.parameters.task_reporting != TaskReporting::FastAbort {
            return;
        }
        let more = |(_, task): (u16, &Task)| {
            task.link == link && task.lun == lun && task.stage == Stage::Active
        };
        if !self.tasks.iter().any(more) {
            self.announce_abort(lun, &[link], ConnectionId::MAX);
        }
    }

    /// Whether its initiator may use its volume.
    pub(super) fn is_allowed(&self, access: &Access) -> bool {
        let Identity { initiator, user, volume, .. } = &self.identity;
        volume
            .as_ref()
            .is_none_or(|volume| access.may_use(initiator, user.as_deref(), self.loopback, volume))
    }

    /// A PDU came whose data segment is damaged (§7.8).
    pub(super) fn handle_damaged(&mut self, cx: &mut Context<'_>, at: usize, pdu: Pdu) {
        self.links[at].heard = cx.now;
        self.acknowledge(cx, at, pdu.header.exp_stat_sn);
        cx.counters.data_digest_errors += 1;
        self.reject(cx, at, &pdu.raw, RejectReason::DataDigestError);
        match pdu.header.request {
            Request::DataOut { .. } => self.data_out(cx, at, pdu, true),
            // Without recovery within a command nobody would send it again: the gap in the order of
            // commands would block the session until the initiator runs out of patience.
            _ if !self.links[at].recovers() => {
                self.links[at].close(CloseReason::Violation("a damaged request, and no recovery"));
            }
            _ => {}
        }
    }

    /// Refuses a PDU that came on connection number `at` (§11.17).
    pub(super) fn reject(
        &mut self,
        cx: &mut Context<'_>,
        at: usize,
        raw: &[u8; BHS_BYTES],
        reason: RejectReason,
    ) {
        self.reject_data(cx, at, raw, reason, 0);
    }

    /// Refuses a PDU; `data_sn` goes with [`RejectReason::InvalidDataAck`].
    pub(super) fn reject_data(
        &mut self,
        cx: &mut Context<'_>,
        at: usize,
        raw: &[u8; BHS_BYTES],
        reason: RejectReason,
        data_sn: u32,
    ) {
        cx.counters.reject(reason);
        let window = self.window();
        let response = Response::Reject { reason, data_sn };
        self.links[at].send(window, RESERVED_TAG, response, Bytes::copy_from_slice(raw));
    }

    /// Ends tasks without responses.
    pub(super) fn end_tasks(&mut self, cx: &mut Context<'_>, which: impl Fn(&Task) -> bool) {
        for slot in self.tasks.select(which) {
            self.end_task(cx, slot);
        }
    }

    /// Connection number `at` is gone, or will be as soon as its output is written.
    pub(super) fn unlink(&mut self, cx: &mut Context<'_>, at: usize) -> Link {
        let id = self.links[at].id;
        let farewell = matches!(self.links[at].closing, Some(CloseReason::LoggedOut));
        if self.parameters.error_recovery_level >= 2 && !farewell && !self.ended {
            self.lose(cx, at);
        }
        let kept = self.lost.iter().any(|lost| lost.id == id);
        let link = self.links.swap_remove(at);
        if !kept {
            self.end_tasks(cx, |task| task.link == id);
        }
        for held in self.held.values_mut() {
            if matches!(held, Held::Other(id, _) if *id == link.id) {
                *held = Held::Nothing;
            }
        }
        self.functions.retain(|function| function.link != link.id);
        self.advance_functions(cx);
        link
    }

    /// Keeps the tasks of connection number `at` for another one (§7.2.2).
    fn lose(&mut self, cx: &mut Context<'_>, at: usize) {
        let Parameters { time2wait, time2retain, .. } = self.parameters;
        let seconds = u64::from(time2wait) + u64::from(time2retain);
        let until = cx.now.after(std::time::Duration::from_secs(seconds));
        let Link { id, cid, .. } = self.links[at];
        if self.lost.len() >= MAX_LOST {
            let oldest = self.lost.remove(0);
            self.end_tasks(cx, |task| task.link == oldest.id);
        }
        if self.lost.iter().all(|lost| lost.id != id) {
            self.lost.push(Lost { id, cid, until });
            self.arm(until);
        }
    }

    /// Takes note that task `slot` has ended, and counts it if it had no status.
    pub(super) fn abort(&mut self, cx: &mut Context<'_>, slot: u16, why: Abort) -> Option<Task> {
        let task = self.remove_task(slot)?;
        if task.stage != Stage::Done {
            cx.counters.abort(why);
        }
        Some(task)
    }

    /// Takes note that task `slot` has ended, whichever way.
    pub(super) fn remove_task(&mut self, slot: u16) -> Option<Task> {
        let task = self.tasks.remove(slot)?;
        self.charge -= task.charge;
        match task.stage {
            Stage::Waiting | Stage::Active if !task.immediate => self.active -= 1,
            Stage::Held | Stage::Waiting | Stage::Active if task.immediate => self.immediate -= 1,
            _ => {}
        }
        match task.stage {
            Stage::Held => {
                if let Some(held) = self.held.get_mut(&task.cmd_sn) {
                    *held = Held::Nothing;
                }
            }
            Stage::Waiting => self.waiting.retain(|other| *other != slot),
            _ => {}
        }
        if task.collect.as_deref().is_some_and(|collect: &Collect| !collect.is_quiet()) {
            if self.ghosts.len() >= 2 * self.commands as usize {
                self.ghosts.pop_front();
            }
            self.ghosts.push_back(task.itt);
        }
        Some(task)
    }

    /// Bytes that the session holds.
    pub(super) fn held_bytes(&self) -> u64 {
        self.charge + self.links.iter().map(|link| link.outlet.bytes()).sum::<u64>()
    }

    /// Something that was due is.
    pub(super) fn handle_timeout(&mut self, cx: &mut Context<'_>) {
        self.wake = None;
        if let Some((by, reason)) = self.dismissed.clone() {
            if by <= cx.now {
                self.cut_off(event::DROP_CONNECTION, reason);
                return;
            }
            self.arm(by);
        }
        for at in 0..self.links.len() {
            self.keep_alive(cx, at);
        }
        let now = cx.now;
        let over: Vec<ConnectionId> =
            self.lost.iter().filter(|lost| lost.until <= now).map(|lost| lost.id).collect();
        if !over.is_empty() {
            self.lost.retain(|lost| lost.until > now);
            self.end_tasks(cx, |task| over.contains(&task.link));
        }
        self.advance_functions(cx);
        for at in 0..self.lost.len() {
            self.arm(self.lost[at].until);
        }
    }

    fn keep_alive(&mut self, cx: &mut Context<'_>, at: usize) {
        let link = &mut self.links[at];
        let due = match link.ping {
            Some(limit) if limit <= cx.now => {
                link.close(CloseReason::Silent);
                return;
            }
            Some(limit) => limit,
            None => {
                let due = link.heard.after(cx.config.ping_after);
                if due <= cx.now { self.ping(cx, at) } else { due }
            }
        };
        self.arm(due);
    }

    /// Asks for a sign of life, and with it for an acknowledgement; says when it is due.
    pub(super) fn ping(&mut self, cx: &mut Context<'_>, at: usize) -> Time {
        if let Some(limit) = self.links[at].ping {
            return limit;
        }
        self.pings = self.pings.wrapping_add(1) & 0x7fff_ffff;
        let ttt = self.pings;
        let limit = cx.now.after(cx.config.ping_limit);
        let window = self.window();
        let link = &mut self.links[at];
        link.ping = Some(limit);
        link.send(window, RESERVED_TAG, Response::NopIn { lun: 0, ttt }, Bytes::new());
        self.arm(limit);
        limit
    }

    /// Tells an initiator that may not know of it that it may send again.
    pub(super) fn reopen(&mut self) {
        let closed = self.expected.wrapping_sub(1);
        let told = |link: &Link| !before(closed, link.told);
        if self.active >= self.commands || !self.links.iter().all(told) {
            return;
        }
        let window = self.window();
        if let Some(link) = self.links.iter_mut().find(|link| link.closing.is_none()) {
            let nop = Response::NopIn { lun: 0, ttt: RESERVED_TAG };
            link.send(window, RESERVED_TAG, nop, Bytes::new());
        }
    }
}
