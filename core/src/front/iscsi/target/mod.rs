//! The target: it routes between connections, sessions and devices.
//!
//! Its children own the state: [`Sessions`] and each session in it, [`Devices`], and [`Copies`].
//! The target passes the outputs of one to the others, and keeps the timers of all.

mod copies;
mod foreign;
mod login;

use super::connection::PduOutput;
use super::copies::{Copies, CopyNotice};
use super::counters::{Abort, Counters};
use super::devices::{Devices, TargetDevice};
use super::failures::Failures;
use super::framing::Incoming;
use super::functions::{Fence, Functions};
use super::login_connection::LoginConnection;
use super::session::{Session, SessionContext, event};
use super::sessions::Sessions;
use super::tasks::{SessionTasks, TaskStage};
use super::{
    Access, CloseReason, Config, ConnectionId, Device, DeviceId, Event, OpenError, Peer,
    SessionInfo,
};
use crate::block::{BlockError, Reply, Time};
use crate::front::scsi::{DeviceConfig, DeviceOutput};
use bytes::{Bytes, BytesMut};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Most connections of a target, and most sessions, which may outlive their connections.
const MAX_CONNECTIONS: usize = 4096;

/// Bytes of output beyond the payload of a session that may wait. Above it the target takes no
/// input.
const OUTPUT_BYTES: u64 = 1 << 20;

/// Time for an initiator that lost its right to log out.
const LOGOUT_LIMIT: Duration = Duration::from_secs(10);

/// The phase of a connection.
#[derive(Debug)]
enum ConnectionPhase {
    /// It is in the login phase.
    Login(Box<LoginConnection>),
    /// It is in the full feature phase, in this session.
    Full(u32),
    /// It is closed. The rest of its output still has to go out.
    Closing(Box<PduOutput>),
}

/// The timers of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// The time limit of a login.
    Login(ConnectionId),
    /// The timer of a session.
    Session(u32),
    /// The timer of a device.
    Device(DeviceId),
}

/// The iSCSI target of a host; see [`super`] for its promises.
///
/// # Driving a target
///
/// Every connection begins with [`Target::handle_accept`]. Then repeat these steps for each
/// connection:
///
/// 1. While [`Target::wants_input`], read at least one byte into a `BytesMut` with room for
///    [`Target::wanted`] bytes in total. Pass it to [`Target::handle_input`].
/// 2. Take every event with [`Target::poll_event`] and act on it.
/// 3. Call [`Target::handle_timeout`] at the time of [`Target::poll_timeout`].
/// 4. After an answer to an event or after output was taken, pass a buffer that is not empty to
///    `handle_input` again. The target may be able to go on with it.
#[derive(Debug)]
pub struct Target {
    config: Config,
    access: Access,
    now: Time,
    connections: BTreeMap<ConnectionId, ConnectionPhase>,
    sessions: Sessions,
    devices: Devices,
    failures: Failures,
    copies: Copies,
    events: VecDeque<Event>,
    counters: Counters,
    timers: BTreeSet<(Time, Timer)>,
    /// Sessions that have to be settled before a handler returns.
    dirty: Vec<u32>,
    /// Sessions with functions that wait for acknowledgments of other connections.
    fenced: Vec<u32>,
    shutting_down: bool,
}

impl Target {
    /// A target without connections.
    #[must_use]
    pub fn new(config: Config, access: Access) -> Target {
        Target {
            config,
            access,
            now: Time::default(),
            connections: BTreeMap::new(),
            sessions: Sessions::default(),
            devices: Devices::default(),
            failures: Failures::default(),
            copies: Copies::default(),
            events: VecDeque::new(),
            counters: Counters::default(),
            timers: BTreeSet::new(),
            dirty: Vec::new(),
            fenced: Vec::new(),
            shutting_down: false,
        }
    }

    /// Replaces the rights. Sessions that lost theirs are asked to log out, and end if they do not.
    pub fn set_access(&mut self, now: Time, access: Access) {
        self.now = now;
        self.access = access;
        let access = &self.access;
        let lost = self.sessions.select(|session| !session.is_allowed(access));
        for serial in lost {
            self.dismiss(serial, LOGOUT_LIMIT, CloseReason::Forbidden);
        }
    }

    /// A connection was accepted. `random` must be unpredictable.
    pub fn handle_accept(&mut self, now: Time, id: ConnectionId, peer: Peer, random: [u8; 32]) {
        self.now = now;
        if self.shutting_down || self.connections.len() >= MAX_CONNECTIONS {
            let reason = if self.shutting_down {
                CloseReason::Shutdown
            } else {
                CloseReason::Refused("the target has too many connections".to_owned())
            };
            self.connections.insert(id, ConnectionPhase::Closing(Box::new(PduOutput::new())));
            self.events.push_back(Event::Close { connection: id, reason });
            return;
        }
        let entry = LoginConnection::new(now, &self.config, peer, random);
        self.timers.insert((entry.limit, Timer::Login(id)));
        self.connections.insert(id, ConnectionPhase::Login(Box::new(entry)));
    }

    /// Whether the target would process more input of a connection now.
    #[must_use]
    pub fn wants_input(&self, id: ConnectionId) -> bool {
        match self.connections.get(&id) {
            Some(ConnectionPhase::Login(entry)) => {
                entry.wants_input() && entry.outlet.bytes() < OUTPUT_BYTES
            }
            Some(ConnectionPhase::Full(serial)) => {
                self.sessions.get(*serial).is_some_and(|session| {
                    session.connections.iter().any(|connection| {
                        connection.id == id
                            && connection.closing.is_none()
                            && connection.outlet.bytes() < self.config.session_bytes + OUTPUT_BYTES
                    })
                })
            }
            Some(ConnectionPhase::Closing(_)) | None => false,
        }
    }

    /// How many bytes the input buffer must hold in total before [`Target::handle_input`] can do
    /// anything. It is 0 if the target takes no input.
    #[must_use]
    pub fn wanted(&self, id: ConnectionId) -> usize {
        if !self.wants_input(id) {
            return 0;
        }
        match self.connections.get(&id) {
            Some(ConnectionPhase::Login(entry)) => entry.wanted(),
            Some(ConnectionPhase::Full(serial)) => self
                .sessions
                .get(*serial)
                .and_then(|session| {
                    session.connections.iter().find(|connection| connection.id == id)
                })
                .map_or(0, |connection| connection.framing.wanted()),
            Some(ConnectionPhase::Closing(_)) | None => 0,
        }
    }

    /// Takes as much as possible from the front of `input`. Payloads are split off, not copied, so
    /// they keep the memory of `input` alive. If the connection is closed, `input` is emptied.
    pub fn handle_input(&mut self, now: Time, id: ConnectionId, input: &mut BytesMut) {
        self.now = now;
        while self.wants_input(id) {
            let more = match self.connections.get(&id) {
                Some(ConnectionPhase::Login(_)) => self.step_login(id, input),
                Some(ConnectionPhase::Full(serial)) => {
                    let serial = *serial;
                    self.step_full(serial, id, input)
                }
                Some(ConnectionPhase::Closing(_)) | None => false,
            };
            if !more {
                break;
            }
        }
        if matches!(self.connections.get(&id), Some(ConnectionPhase::Closing(_)) | None) {
            input.clear();
        }
    }

    fn step_full(&mut self, serial: u32, id: ConnectionId, input: &mut BytesMut) -> bool {
        let Some((session, mut cx)) = self.session(serial) else { return false };
        let Some(at) = session.connection(id) else { return false };
        let Some(incoming) = session.connections[at].framing.step(input) else { return false };
        match incoming {
            Incoming::Pdu(pdu) => session.handle_pdu(&mut cx, at, pdu),
            Incoming::DataDigest(pdu) => session.handle_damaged(&mut cx, at, pdu),
            Incoming::HeaderDigest => {
                cx.counters.header_digest_errors += 1;
                let why = CloseReason::Violation("a header digest does not match");
                session.connections[at].close(why);
            }
            Incoming::Lost(why) => session.connections[at].close(CloseReason::Violation(why)),
        }
        self.settle(serial);
        true
    }

    /// A connection has ended: by the peer, after an error, or after [`Event::Close`].
    pub fn handle_closed(&mut self, now: Time, id: ConnectionId) {
        self.now = now;
        match self.connections.remove(&id) {
            Some(ConnectionPhase::Login(entry)) => {
                self.timers.remove(&(entry.limit, Timer::Login(id)));
                self.forget_opening(id, &entry);
            }
            Some(ConnectionPhase::Full(serial)) => {
                if let Some((session, mut cx)) = self.session(serial)
                    && let Some(at) = session.connection(id)
                {
                    session.disconnect(&mut cx, at);
                    self.settle(serial);
                }
            }
            Some(ConnectionPhase::Closing(_)) | None => {}
        }
    }

    /// The answer to [`Event::Open`]. Returns the name of the new device, if one was made. The
    /// device is released at once if no login waits for it any more.
    pub fn handle_opened(
        &mut self,
        now: Time,
        volume: &str,
        result: Result<DeviceConfig, OpenError>,
    ) -> Option<DeviceId> {
        self.now = now;
        let waiting = self.devices.opened(volume)?;
        let result = result.and_then(|config| match self.devices.is_full() {
            true => Err(OpenError::Unavailable("there are too many devices".to_owned())),
            false => Ok(config),
        });
        let mut made = None;
        let result = result.map(|config| {
            made = Some(self.devices.add(volume, Device::new(config)));
        });
        for id in waiting {
            self.volume_opened(id, result.as_ref().copied());
        }
        // The logins may be gone, or refused for other reasons.
        if let Some(device) = made {
            self.forget_idle(device);
        }
        made
    }

    /// The answer to [`Event::List`]: the names of all volumes.
    pub fn handle_listed(&mut self, now: Time, id: ConnectionId, volumes: Vec<String>) {
        self.now = now;
        let Some(ConnectionPhase::Full(serial)) = self.connections.get(&id) else { return };
        let serial = *serial;
        if let Some((session, mut cx)) = self.session(serial)
            && let Some(at) = session.connection(id)
        {
            session.handle_listed(&mut cx, at, &volumes);
            self.settle(serial);
        }
    }

    /// The outcome of [`Event::Request`].
    pub fn handle_reply(
        &mut self,
        now: Time,
        device: DeviceId,
        id: u64,
        result: Result<Reply, BlockError>,
    ) {
        self.now = now;
        if let Some(unit) = self.devices.get_mut(device) {
            unit.device.handle_reply(now, id, result);
            self.run(device);
            self.settle_all();
            self.forget_idle(device);
        }
    }

    /// The outcome of [`Event::Save`].
    pub fn handle_saved(
        &mut self,
        now: Time,
        device: DeviceId,
        id: u64,
        result: Result<(), String>,
    ) {
        self.now = now;
        if let Some(unit) = self.devices.get_mut(device) {
            unit.device.handle_saved(now, id, result);
            self.run(device);
            self.settle_all();
            self.forget_idle(device);
        }
    }

    /// A volume has another size, in sectors.
    pub fn handle_resized(&mut self, now: Time, volume: &str, sectors: u64) {
        self.now = now;
        if let Some(device) = self.devices.of_volume(volume)
            && let Some(unit) = self.devices.get_mut(device)
        {
            unit.device.handle_resized(now, sectors);
            self.run(device);
            self.settle_all();
        }
    }

    /// A volume is gone: its sessions end, and its device with them.
    pub fn handle_volume_gone(&mut self, now: Time, volume: &str, why: &str) {
        self.now = now;
        let Some(device) = self.devices.forget_volume(volume) else { return };
        let concerned = self.sessions.select(|session| session.device == Some(device));
        for serial in concerned {
            if let Some(session) = self.sessions.get_mut(serial) {
                session.cut_off(event::DROP_SESSION, CloseReason::VolumeGone(why.to_owned()));
            }
            self.settle(serial);
        }
        self.release(device);
        self.run_copies();
        self.settle_all();
    }

    /// Refuses new connections, and asks initiators to log out.
    ///
    /// Initiators are told `limit` in whole seconds. Sessions that remain after it are cut off;
    /// below one second, all are at once. The shutdown is done when [`Target::sessions`] is empty
    /// and the shell has acted on every [`Event::Close`].
    pub fn handle_shutdown(&mut self, now: Time, limit: Duration) {
        self.now = now;
        self.shutting_down = true;
        let logins: Vec<ConnectionId> = self
            .connections
            .iter()
            .filter(|(_, phase)| matches!(phase, ConnectionPhase::Login(_)))
            .map(|(id, _)| *id)
            .collect();
        for id in logins {
            self.close_login(id, CloseReason::Shutdown);
        }
        for serial in self.sessions.select(|_| true) {
            self.dismiss(serial, limit, CloseReason::Shutdown);
        }
    }

    /// Asks a session to log out within `limit`.
    fn dismiss(&mut self, serial: u32, limit: Duration, reason: CloseReason) {
        let seconds = u16::try_from(limit.as_secs()).unwrap_or(u16::MAX);
        let by = self.now.after(Duration::from_secs(seconds.into()));
        if let Some(session) = self.sessions.get_mut(serial) {
            if session.device.is_none() {
                session.end(reason);
            } else if seconds == 0 {
                session.cut_off(event::DROP_SESSION, reason);
            } else if session.dismissed.as_ref().is_none_or(|(earlier, _)| by < *earlier) {
                session.dismissed = Some((by, reason));
                session.announce(event::LOGOUT, |_| [0, 0, seconds]);
                session.arm(by);
            }
            self.settle(serial);
        }
    }

    /// Acts on everything that is due.
    pub fn handle_timeout(&mut self, now: Time) {
        self.now = now;
        while let Some((at, timer)) = self.timers.first().copied()
            && at <= now
        {
            self.timers.pop_first();
            match timer {
                Timer::Login(id) => self.close_login(id, CloseReason::LoginLimit),
                Timer::Session(serial) => {
                    if let Some((session, mut cx)) = self.session(serial) {
                        session.timer.fired();
                        session.handle_timeout(&mut cx);
                        self.settle(serial);
                    }
                }
                Timer::Device(device) => {
                    if let Some(unit) = self.devices.get_mut(device) {
                        unit.armed = None;
                        unit.device.handle_timeout(now);
                        self.run(device);
                        self.settle_all();
                        self.forget_idle(device);
                    }
                }
            }
        }
    }

    /// The time at which [`Target::handle_timeout`] wants a call, if any.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Takes the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Takes the next bytes to write on a connection. Headers and small payloads come gathered in
    /// one piece. Larger payloads are the buffers of the replies.
    pub fn poll_output(&mut self, id: ConnectionId) -> Option<Bytes> {
        match self.connections.get_mut(&id)? {
            ConnectionPhase::Login(entry) => entry.outlet.poll(),
            ConnectionPhase::Closing(outlet) => outlet.poll(),
            ConnectionPhase::Full(serial) => {
                let serial = *serial;
                let session = self.sessions.get_mut(serial)?;
                let at = session.connection(id)?;
                let piece = session.connections[at].outlet.poll();
                if session.tasks.has_waiting()
                    && let Some((session, mut cx)) = self.session(serial)
                {
                    session.admit(&mut cx);
                    self.settle(serial);
                }
                piece
            }
        }
    }

    /// Descriptions of all sessions.
    pub fn sessions(&self) -> impl Iterator<Item = SessionInfo> {
        self.sessions.iter().map(|session| SessionInfo {
            identity: session.identity.clone(),
            parameters: session.parameters,
            connections: session.connections.iter().map(|connection| connection.id).collect(),
            commands: session.tasks.len(),
            held_bytes: session.held_bytes(),
        })
    }

    /// Counters since the target was made.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// A session, with the parts of the target that its handlers use.
    fn session(&mut self, serial: u32) -> Option<(&mut Session, SessionContext<'_>)> {
        let session = self.sessions.get_mut(serial)?;
        let device = session.device.and_then(|device| self.devices.get_mut(device));
        let cx = SessionContext {
            now: self.now,
            config: &self.config,
            access: &self.access,
            events: &mut self.events,
            counters: &mut self.counters,
            device: device.map(|unit| &mut unit.device),
        };
        Some((session, cx))
    }

    /// Settles a session after it was given something.
    fn settle(&mut self, serial: u32) {
        self.dirty.push(serial);
        self.settle_all();
    }

    fn settle_all(&mut self) {
        while let Some(serial) = self.dirty.pop() {
            let device = self.sessions.get(serial).and_then(|session| session.device);
            if let Some(device) = device {
                self.run(device);
            }
            self.tidy(serial);
            if !self.fenced.is_empty() {
                self.check_fences();
            }
        }
    }

    /// Passes the outputs of a device to the sessions concerned, and moves copies on.
    fn run(&mut self, device: DeviceId) {
        self.take_outputs(device);
        self.run_copies();
    }

    /// Sets the timer of a device.
    fn arm(&mut self, device: DeviceId) {
        let Some(unit) = self.devices.get_mut(device) else { return };
        let due = unit.device.poll_timeout();
        if unit.armed != due {
            if let Some(at) = std::mem::replace(&mut unit.armed, due) {
                self.timers.remove(&(at, Timer::Device(device)));
            }
            if let Some(at) = due {
                self.timers.insert((at, Timer::Device(device)));
            }
        }
    }

    fn take_outputs(&mut self, device: DeviceId) {
        self.arm(device);
        while let Some(unit) = self.devices.get_mut(device)
            && let Some(output) = unit.device.poll_output()
        {
            let serial = match output {
                DeviceOutput::Request { id, request } => {
                    self.events.push_back(Event::Request { device, id, request });
                    continue;
                }
                DeviceOutput::SaveReservations { id, data } => {
                    self.events.push_back(Event::Save { device, id, data });
                    continue;
                }
                DeviceOutput::Copy { id, task, plan } => {
                    self.copies.notify(CopyNotice::Begin { copy: (device, id), task, plan });
                    continue;
                }
                DeviceOutput::EndCopy { id } => {
                    self.copies.notify(CopyNotice::End { copy: (device, id) });
                    continue;
                }
                DeviceOutput::Part { task, result } => {
                    self.copies.notify(CopyNotice::Part { task, result });
                    continue;
                }
                DeviceOutput::WantData { task, bytes } => {
                    let serial = SessionTasks::serial_of(task);
                    if let Some((session, mut cx)) = self.session(serial) {
                        session.handle_want(&mut cx, task, bytes);
                    }
                    serial
                }
                DeviceOutput::Response { task, response } => {
                    let serial = SessionTasks::serial_of(task);
                    if let Some((session, mut cx)) = self.session(serial) {
                        session.handle_response(&mut cx, task, response);
                    }
                    serial
                }
                DeviceOutput::Aborted { task } => {
                    let serial = SessionTasks::serial_of(task);
                    if !unit.affected.contains(&serial) {
                        unit.affected.push(serial);
                    }
                    if let Some((session, mut cx)) = self.session(serial)
                        && let Some(slot) = session.tasks.by_id(task)
                        && let Some(task) = session.abort(&mut cx, slot, Abort::Function)
                    {
                        session.tell_abort(task.lun, task.connection);
                    }
                    serial
                }
                DeviceOutput::ManagementDone { id, response } => {
                    let serial = Functions::serial_of(id);
                    if self.sessions.contains(serial) {
                        let fences = self.fences(device, serial);
                        if let Some((session, mut cx)) = self.session(serial)
                            && session.handle_management_done(&mut cx, id, response, fences)
                            && !self.fenced.contains(&serial)
                        {
                            self.fenced.push(serial);
                        }
                    }
                    serial
                }
            };
            if self.dirty.last() != Some(&serial) {
                self.dirty.push(serial);
            }
        }
    }

    /// The fences for a function of session `serial` that ended tasks of other sessions (§4.2.3.3).
    /// Pings the connections of these.
    fn fences(&mut self, device: DeviceId, serial: u32) -> Vec<Fence> {
        let Some(unit) = self.devices.get_mut(device) else { return Vec::new() };
        let affected = std::mem::take(&mut unit.affected);
        let mut fences = Vec::new();
        for other in affected.into_iter().filter(|other| *other != serial) {
            if let Some((session, mut cx)) = self.session(other) {
                fences.extend(session.fences());
                session.solicit(&mut cx);
                self.dirty.push(other);
            }
        }
        fences
    }

    fn check_fences(&mut self) {
        for serial in std::mem::take(&mut self.fenced) {
            // Any session may own a fence, so acknowledged fences are collected first.
            let Some(session) = self.sessions.get(serial) else { continue };
            let down: BTreeSet<(u32, ConnectionId, u32)> = session
                .functions
                .fences()
                .filter(|fence| {
                    let owner = self.sessions.get(fence.serial);
                    !owner.is_some_and(|owner| owner.is_up(fence))
                })
                .map(Fence::key)
                .collect();
            let Some(session) = self.sessions.get_mut(serial) else { continue };
            let (answered, waiting) =
                session.advance_fences(self.now, |fence| !down.contains(&fence.key()));
            if waiting {
                self.fenced.push(serial);
            }
            if answered || !waiting {
                self.dirty.push(serial);
            }
        }
    }

    /// Closes the connections of a session that have to close, sets its timer, and ends it if it is
    /// over.
    fn tidy(&mut self, serial: u32) {
        let Some((session, mut cx)) = self.session(serial) else { return };
        session.reopen();
        let mut closed = Vec::new();
        while let Some(at) =
            session.connections.iter().position(|connection| connection.closing.is_some())
        {
            closed.push(session.disconnect(&mut cx, at));
        }
        for connection in &mut session.connections {
            if connection.outlet.tell() {
                cx.events.push_back(Event::Output { connection: connection.id });
            }
        }
        let rearm = session.timer.rearm();
        let cold_reset = std::mem::take(&mut session.cold_reset);
        let over = session.ended || session.connections.is_empty() && session.failed.is_empty();
        let device = session.device;
        let any = !closed.is_empty();
        if let Some((old, new)) = rearm {
            if let Some(at) = old {
                self.timers.remove(&(at, Timer::Session(serial)));
            }
            if let Some(at) = new {
                self.timers.insert((at, Timer::Session(serial)));
            }
        }
        for connection in closed {
            let reason = connection.closing.unwrap_or(CloseReason::LoggedOut);
            self.connections
                .insert(connection.id, ConnectionPhase::Closing(Box::new(connection.outlet)));
            self.tell(connection.id);
            self.events.push_back(Event::Close { connection: connection.id, reason });
        }
        if over {
            self.end_session(serial);
        } else if any {
            self.dirty.push(serial);
        }
        if cold_reset {
            for session in self.sessions.iter_mut() {
                if session.device == device {
                    session.cut_off(event::DROP_SESSION, CloseReason::Reset);
                    self.dirty.push(session.serial);
                }
            }
        }
    }

    fn end_session(&mut self, serial: u32) {
        let Some(session) = self.sessions.remove(serial) else { return };
        // These are tasks of failed connections. The other tasks ended with their connections.
        let left = session.tasks.iter().filter(|(_, task)| task.stage != TaskStage::Done).count();
        self.counters.aborted_by_loss += left as u64;
        if let Some(at) = session.timer.armed() {
            self.timers.remove(&(at, Timer::Session(serial)));
        }
        self.events.push_back(Event::LoggedOut { identity: session.identity });
        if let Some(device) = session.device
            && let Some(unit) = self.devices.get_mut(device)
        {
            unit.sessions -= 1;
            unit.device.handle_nexus_loss(self.now, session.nexus);
            self.run(device);
            self.forget_idle(device);
        }
    }

    /// Drops a device without sessions, if no later session could tell.
    fn forget_idle(&mut self, device: DeviceId) {
        let idle = |unit: &TargetDevice| unit.sessions == 0 && unit.device.is_idle();
        if self.devices.get(device).is_some_and(idle) {
            self.release(device);
        }
    }

    fn release(&mut self, device: DeviceId) {
        if let Some(unit) = self.devices.remove(device) {
            if let Some(at) = unit.armed {
                self.timers.remove(&(at, Timer::Device(device)));
            }
            self.forget_copies(device);
            self.events.push_back(Event::Released { device, volume: unit.volume });
        }
    }

    /// Tells the shell of output of a connection that belongs to no session.
    fn tell(&mut self, id: ConnectionId) {
        let outlet = match self.connections.get_mut(&id) {
            Some(ConnectionPhase::Login(entry)) => &mut entry.outlet,
            Some(ConnectionPhase::Closing(outlet)) => outlet,
            Some(ConnectionPhase::Full(_)) | None => return,
        };
        if outlet.tell() {
            self.events.push_back(Event::Output { connection: id });
        }
    }
}
