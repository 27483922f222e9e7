//! The target: all connections, sessions and devices of a host.

use super::Device;
use super::connection::{Outlet, before};
use super::copy::{Copies, Said};
use super::counters::{Abort, Counters};
use super::entry::{Entry, MAX_CONNECTIONS};
use super::failures::Failures;
use super::framing::Incoming;
use super::management::Fence;
use super::session::{Context, Session, event};
use super::tasks::{Stage, Tasks};
use super::{
    Access, CloseReason, Config, ConnectionId, DeviceId, Event, OpenError, Peer, SessionInfo,
};
use crate::block::{BlockError, Reply, Time};
use crate::front::scsi::{DeviceConfig, DeviceOutput, NexusId};
use bytes::{Bytes, BytesMut};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Devices there may be.
const MAX_DEVICES: usize = 4096;

/// Output beyond what sessions hold in payload that may wait before input is no longer taken.
const OUTPUT_BYTES: u64 = 1 << 20;

/// Time an initiator has to log out once it has lost its right.
const LOGOUT_LIMIT: Duration = Duration::from_secs(10);

/// How far a connection is.
#[derive(Debug)]
pub(super) enum Phase {
    /// It logs in.
    Login(Box<Entry>),
    /// It is of this session.
    Full(u32),
    /// What is left is to be written.
    Closing(Box<Outlet>),
}

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// The end of a login.
    Login(ConnectionId),
    /// Something of a session.
    Session(u32),
    /// Something of a device.
    Device(DeviceId),
}

/// A device and who uses it.
#[derive(Debug)]
pub(super) struct Unit {
    pub(super) device: Device,
    pub(super) volume: String,
    pub(super) sessions: usize,
    /// Sessions that lost tasks to a function of another one.
    affected: Vec<u32>,
    /// What its timer is set to.
    armed: Option<Time>,
}

/// The iSCSI target of a host; see [`super`] for what it promises.
///
/// # Driving it
///
/// Every connection begins with [`Target::handle_accept`]. Then, for ever and for each of them:
///
/// 1. while [`Target::wants_input`], read at least one byte into a `BytesMut`, with room for
///    [`Target::wanted`] bytes in total, and pass it to [`Target::handle_input`];
/// 2. take every event with [`Target::poll_event`] and act on it;
/// 3. call [`Target::handle_timeout`] when [`Target::poll_timeout`] says so;
/// 4. after an answer to an event went in or output was taken, pass a buffer that is not empty to
///    `handle_input` again: what stopped it before may be gone.
#[derive(Debug)]
pub struct Target {
    pub(super) config: Config,
    pub(super) access: Access,
    pub(super) now: Time,
    pub(super) connections: BTreeMap<ConnectionId, Phase>,
    pub(super) sessions: BTreeMap<u32, Session>,
    pub(super) by_tsih: BTreeMap<u16, u32>,
    pub(super) units: BTreeMap<DeviceId, Unit>,
    pub(super) volumes: BTreeMap<String, DeviceId>,
    /// Logins that wait for a volume.
    pub(super) opening: BTreeMap<String, Vec<ConnectionId>>,
    pub(super) failures: Failures,
    pub(super) copies: Copies,
    pub(super) events: VecDeque<Event>,
    pub(super) counters: Counters,
    pub(super) timers: BTreeSet<(Time, Timer)>,
    /// Sessions that have to be looked at before a handler returns.
    dirty: Vec<u32>,
    /// Sessions with functions that wait for others' acknowledgements.
    fenced: Vec<u32>,
    pub(super) shutting_down: bool,
    pub(super) last_tsih: u16,
    last_serial: u32,
    pub(super) last_nexus: NexusId,
    last_device: DeviceId,
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
            sessions: BTreeMap::new(),
            by_tsih: BTreeMap::new(),
            units: BTreeMap::new(),
            volumes: BTreeMap::new(),
            opening: BTreeMap::new(),
            failures: Failures::default(),
            copies: Copies::default(),
            events: VecDeque::new(),
            counters: Counters::default(),
            timers: BTreeSet::new(),
            dirty: Vec::new(),
            fenced: Vec::new(),
            shutting_down: false,
            last_tsih: 0,
            last_serial: 0,
            last_nexus: 0,
            last_device: 0,
        }
    }

    /// Other rights from now on. Sessions that lost theirs are asked to log out, and end if they
    /// do not.
    pub fn set_access(&mut self, now: Time, access: Access) {
        self.now = now;
        self.access = access;
        let access = &self.access;
        let lost: Vec<u32> = self
            .sessions
            .iter()
            .filter(|(_, session)| !session.is_allowed(access))
            .map(|(serial, _)| *serial)
            .collect();
        for serial in lost {
            self.dismiss(serial, LOGOUT_LIMIT, CloseReason::Forbidden);
        }
    }

    /// A connection was accepted; `random` must be unpredictable.
    pub fn handle_accept(&mut self, now: Time, id: ConnectionId, peer: Peer, random: [u8; 32]) {
        self.now = now;
        if self.shutting_down || self.connections.len() >= MAX_CONNECTIONS {
            let reason = if self.shutting_down {
                CloseReason::Shutdown
            } else {
                CloseReason::Refused("there are too many connections".to_owned())
            };
            self.connections.insert(id, Phase::Closing(Box::new(Outlet::new())));
            self.events.push_back(Event::Close { connection: id, reason });
            return;
        }
        let entry = Entry::new(now, self, peer, random);
        self.timers.insert((entry.limit, Timer::Login(id)));
        self.connections.insert(id, Phase::Login(Box::new(entry)));
    }

    /// Whether more input of a connection would be processed now.
    #[must_use]
    pub fn wants_input(&self, id: ConnectionId) -> bool {
        match self.connections.get(&id) {
            Some(Phase::Login(entry)) => entry.wants_input() && entry.outlet.bytes() < OUTPUT_BYTES,
            Some(Phase::Full(serial)) => self.sessions.get(serial).is_some_and(|session| {
                session.links.iter().any(|link| {
                    link.id == id
                        && link.closing.is_none()
                        && link.outlet.bytes() < self.config.session_bytes + OUTPUT_BYTES
                })
            }),
            Some(Phase::Closing(_)) | None => false,
        }
    }

    /// How many bytes the input buffer must hold in total before [`Target::handle_input`] can do
    /// anything; 0 when it takes none.
    #[must_use]
    pub fn wanted(&self, id: ConnectionId) -> usize {
        if !self.wants_input(id) {
            return 0;
        }
        match self.connections.get(&id) {
            Some(Phase::Login(entry)) => entry.wanted(),
            Some(Phase::Full(serial)) => self
                .sessions
                .get(serial)
                .and_then(|session| session.links.iter().find(|link| link.id == id))
                .map_or(0, |link| link.framing.wanted()),
            Some(Phase::Closing(_)) | None => 0,
        }
    }

    /// Takes what it can from the front of `input`. Payloads are split off, not copied, so they keep
    /// the memory of `input` alive. After the connection was closed, `input` is emptied.
    pub fn handle_input(&mut self, now: Time, id: ConnectionId, input: &mut BytesMut) {
        self.now = now;
        while self.wants_input(id) {
            let more = match self.connections.get(&id) {
                Some(Phase::Login(_)) => self.step_login(id, input),
                Some(Phase::Full(serial)) => {
                    let serial = *serial;
                    self.step_full(serial, id, input)
                }
                Some(Phase::Closing(_)) | None => false,
            };
            if !more {
                break;
            }
        }
        if matches!(self.connections.get(&id), Some(Phase::Closing(_)) | None) {
            input.clear();
        }
    }

    fn step_full(&mut self, serial: u32, id: ConnectionId, input: &mut BytesMut) -> bool {
        let Some((session, mut cx)) = self.session(serial) else { return false };
        let Some(at) = session.link(id) else { return false };
        let Some(incoming) = session.links[at].framing.step(input) else { return false };
        match incoming {
            Incoming::Pdu(pdu) => session.handle_pdu(&mut cx, at, pdu),
            Incoming::DataDigest(pdu) => session.handle_damaged(&mut cx, at, pdu),
            Incoming::HeaderDigest => {
                cx.counters.header_digest_errors += 1;
                let why = CloseReason::Violation("a header digest does not match");
                session.links[at].close(why);
            }
            Incoming::Lost(why) => session.links[at].close(CloseReason::Violation(why)),
        }
        self.settle(serial);
        true
    }

    /// A connection is gone, at its end or after an error, or was closed as [`Event::Close`] asked.
    pub fn handle_closed(&mut self, now: Time, id: ConnectionId) {
        self.now = now;
        match self.connections.remove(&id) {
            Some(Phase::Login(entry)) => {
                self.timers.remove(&(entry.limit, Timer::Login(id)));
                self.forget_opening(id, &entry);
            }
            Some(Phase::Full(serial)) => {
                if let Some((session, mut cx)) = self.session(serial)
                    && let Some(at) = session.link(id)
                {
                    session.unlink(&mut cx, at);
                    self.settle(serial);
                }
            }
            Some(Phase::Closing(_)) | None => {}
        }
    }

    /// The answer to [`Event::Open`]: the name of the device that was made, if one was. It may be
    /// released at once, if whoever asked for it is gone.
    pub fn handle_opened(
        &mut self,
        now: Time,
        volume: &str,
        result: Result<DeviceConfig, OpenError>,
    ) -> Option<DeviceId> {
        self.now = now;
        let waiting = self.opening.remove(volume)?;
        let full = || OpenError::Unavailable("there are too many devices".to_owned());
        let result =
            result.and_then(
                |config| {
                    if self.units.len() >= MAX_DEVICES { Err(full()) } else { Ok(config) }
                },
            );
        let mut made = None;
        let result = result.map(|config| {
            self.last_device += 1;
            let unit = Unit {
                device: Device::new(config),
                volume: volume.to_owned(),
                sessions: 0,
                affected: Vec::new(),
                armed: None,
            };
            self.units.insert(self.last_device, unit);
            self.volumes.insert(volume.to_owned(), self.last_device);
            made = Some(self.last_device);
        });
        for id in waiting {
            self.entry_opened(id, result.as_ref().copied());
        }
        // Whoever asked may be gone, or be refused for other reasons.
        if let Some(device) = made {
            self.forget_idle(device);
        }
        made
    }

    /// The answer to [`Event::List`]: the names of all volumes.
    pub fn handle_listed(&mut self, now: Time, id: ConnectionId, volumes: Vec<String>) {
        self.now = now;
        let Some(Phase::Full(serial)) = self.connections.get(&id) else { return };
        let serial = *serial;
        if let Some((session, mut cx)) = self.session(serial)
            && let Some(at) = session.link(id)
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
        if let Some(unit) = self.units.get_mut(&device) {
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
        if let Some(unit) = self.units.get_mut(&device) {
            unit.device.handle_saved(now, id, result);
            self.run(device);
            self.settle_all();
            self.forget_idle(device);
        }
    }

    /// A volume has another size, in sectors.
    pub fn handle_resized(&mut self, now: Time, volume: &str, sectors: u64) {
        self.now = now;
        if let Some(device) = self.volumes.get(volume).copied()
            && let Some(unit) = self.units.get_mut(&device)
        {
            unit.device.handle_resized(now, sectors);
            self.run(device);
            self.settle_all();
        }
    }

    /// A volume is not here any more: its sessions end, and its device with them.
    pub fn handle_volume_gone(&mut self, now: Time, volume: &str, why: &str) {
        self.now = now;
        let Some(device) = self.volumes.remove(volume) else { return };
        let concerned: Vec<u32> = self
            .sessions
            .iter()
            .filter(|(_, session)| session.device == Some(device))
            .map(|(serial, _)| *serial)
            .collect();
        for serial in concerned {
            if let Some(session) = self.sessions.get_mut(&serial) {
                session.cut_off(event::DROP_SESSION, CloseReason::VolumeGone(why.to_owned()));
            }
            self.settle(serial);
        }
        self.release(device);
        self.run_copies();
        self.settle_all();
    }

    /// New connections are refused and initiators are asked to log out; those that have not after
    /// `limit`, which they are told in whole seconds, are cut off. Below one second all are at once.
    /// Done when [`Target::sessions`] is empty and every [`Event::Close`] was acted on.
    pub fn handle_shutdown(&mut self, now: Time, limit: Duration) {
        self.now = now;
        self.shutting_down = true;
        let logins: Vec<ConnectionId> = self
            .connections
            .iter()
            .filter(|(_, phase)| matches!(phase, Phase::Login(_)))
            .map(|(id, _)| *id)
            .collect();
        for id in logins {
            self.close_entry(id, CloseReason::Shutdown);
        }
        let serials: Vec<u32> = self.sessions.keys().copied().collect();
        for serial in serials {
            self.dismiss(serial, limit, CloseReason::Shutdown);
        }
    }

    /// Asks a session to log out within `limit`.
    fn dismiss(&mut self, serial: u32, limit: Duration, reason: CloseReason) {
        let seconds = u16::try_from(limit.as_secs()).unwrap_or(u16::MAX);
        let by = self.now.after(Duration::from_secs(seconds.into()));
        if let Some(session) = self.sessions.get_mut(&serial) {
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

    /// What was due at [`Target::poll_timeout`] is done.
    pub fn handle_timeout(&mut self, now: Time) {
        self.now = now;
        while let Some((at, timer)) = self.timers.first().copied()
            && at <= now
        {
            self.timers.pop_first();
            match timer {
                Timer::Login(id) => self.close_entry(id, CloseReason::LoginLimit),
                Timer::Session(serial) => {
                    if let Some((session, mut cx)) = self.session(serial) {
                        session.armed = None;
                        session.handle_timeout(&mut cx);
                        self.settle(serial);
                    }
                }
                Timer::Device(device) => {
                    if let Some(unit) = self.units.get_mut(&device) {
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

    /// When [`Target::handle_timeout`] is to be called, if ever.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// The next thing to do.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The next bytes to write on a connection. Headers and small payloads come gathered in one
    /// piece; larger payloads are the buffers the replies brought.
    pub fn poll_output(&mut self, id: ConnectionId) -> Option<Bytes> {
        match self.connections.get_mut(&id)? {
            Phase::Login(entry) => entry.outlet.poll(),
            Phase::Closing(outlet) => outlet.poll(),
            Phase::Full(serial) => {
                let serial = *serial;
                let session = self.sessions.get_mut(&serial)?;
                let at = session.link(id)?;
                let piece = session.links[at].outlet.poll();
                if !session.waiting.is_empty()
                    && let Some((session, mut cx)) = self.session(serial)
                {
                    session.admit(&mut cx);
                    self.settle(serial);
                }
                piece
            }
        }
    }

    /// The sessions there are.
    pub fn sessions(&self) -> impl Iterator<Item = SessionInfo> {
        self.sessions.values().map(|session| SessionInfo {
            identity: session.identity.clone(),
            parameters: session.parameters,
            connections: session.links.iter().map(|link| link.id).collect(),
            commands: session.tasks.len(),
            held_bytes: session.held_bytes(),
        })
    }

    /// Totals since the target was made.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// A session, and what its handlers reach beyond it.
    pub(super) fn session(&mut self, serial: u32) -> Option<(&mut Session, Context<'_>)> {
        let session = self.sessions.get_mut(&serial)?;
        let device = session.device.and_then(|device| self.units.get_mut(&device));
        let cx = Context {
            now: self.now,
            config: &self.config,
            access: &self.access,
            events: &mut self.events,
            counters: &mut self.counters,
            device: device.map(|unit| &mut unit.device),
        };
        Some((session, cx))
    }

    /// A serial number that no session has, from 1 to 2^24 - 1.
    pub(super) fn free_serial(&mut self) -> u32 {
        loop {
            // From 1 on: 0 is for parts of copies.
            self.last_serial = self.last_serial % ((1 << 24) - 1) + 1;
            if !self.sessions.contains_key(&self.last_serial) {
                return self.last_serial;
            }
        }
    }

    /// Does what has to be done after a session was given something.
    pub(super) fn settle(&mut self, serial: u32) {
        self.dirty.push(serial);
        self.settle_all();
    }

    fn settle_all(&mut self) {
        while let Some(serial) = self.dirty.pop() {
            let device = self.sessions.get(&serial).and_then(|session| session.device);
            if let Some(device) = device {
                self.run(device);
            }
            self.tidy(serial);
            if !self.fenced.is_empty() {
                self.check_fences();
            }
        }
    }

    /// Takes the device's outputs to the sessions they concern, and copies as far as they go.
    fn run(&mut self, device: DeviceId) {
        self.take_outputs(device);
        self.run_copies();
    }

    /// Sets the timer of a device to what is due next.
    fn arm(&mut self, device: DeviceId) {
        let Some(unit) = self.units.get_mut(&device) else { return };
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

    pub(super) fn take_outputs(&mut self, device: DeviceId) {
        self.arm(device);
        while let Some(unit) = self.units.get_mut(&device)
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
                    self.copies.say(Said::Begin { copy: (device, id), task, plan });
                    continue;
                }
                DeviceOutput::EndCopy { id } => {
                    self.copies.say(Said::End { copy: (device, id) });
                    continue;
                }
                DeviceOutput::Part { task, result } => {
                    self.copies.say(Said::Part { task, result });
                    continue;
                }
                DeviceOutput::WantData { task, bytes } => {
                    let serial = Tasks::serial_of(task);
                    if let Some((session, mut cx)) = self.session(serial) {
                        session.handle_want(&mut cx, task, bytes);
                    }
                    serial
                }
                DeviceOutput::Response { task, response } => {
                    let serial = Tasks::serial_of(task);
                    if let Some((session, mut cx)) = self.session(serial) {
                        session.handle_response(&mut cx, task, response);
                    }
                    serial
                }
                DeviceOutput::Aborted { task } => {
                    let serial = Tasks::serial_of(task);
                    if !unit.affected.contains(&serial) {
                        unit.affected.push(serial);
                    }
                    if let Some((session, mut cx)) = self.session(serial)
                        && let Some(slot) = session.tasks.by_id(task)
                        && let Some(task) = session.abort(&mut cx, slot, Abort::Function)
                    {
                        session.tell_abort(task.lun, task.link);
                    }
                    serial
                }
                DeviceOutput::ManagementDone { id, response } => {
                    let serial = (id >> 32) as u32;
                    if self.sessions.contains_key(&serial) {
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

    /// What other sessions have to acknowledge before the function of session `serial` that ended
    /// tasks of theirs is answered (§4.2.3.3); they are asked to.
    fn fences(&mut self, device: DeviceId, serial: u32) -> Vec<Fence> {
        let Some(unit) = self.units.get_mut(&device) else { return Vec::new() };
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
            let Some(mut session) = self.sessions.remove(&serial) else { continue };
            let sessions = &self.sessions;
            let own: Vec<(ConnectionId, u32)> =
                session.links.iter().map(|link| (link.id, link.acknowledged)).collect();
            let waiting = session.advance_fences(self.now, |fence| {
                if fence.serial == serial {
                    own.iter().any(|(id, acknowledged)| {
                        *id == fence.link && before(*acknowledged, fence.stat_sn)
                    })
                } else {
                    sessions.get(&fence.serial).is_some_and(|session| session.is_up(fence))
                }
            });
            self.sessions.insert(serial, session);
            if waiting {
                self.fenced.push(serial);
            } else {
                self.dirty.push(serial);
            }
        }
    }

    /// Closes what is to be closed of a session, and tells the shell what there is to do.
    fn tidy(&mut self, serial: u32) {
        let Some((session, mut cx)) = self.session(serial) else { return };
        session.reopen();
        let mut closed = Vec::new();
        while let Some(at) = session.links.iter().position(|link| link.closing.is_some()) {
            closed.push(session.unlink(&mut cx, at));
        }
        for link in &mut session.links {
            if link.outlet.tell() {
                cx.events.push_back(Event::Output { connection: link.id });
            }
        }
        let (armed, wake) = (session.armed, session.wake);
        session.armed = wake;
        let cold_reset = std::mem::take(&mut session.cold_reset);
        let over = session.ended || session.links.is_empty() && session.lost.is_empty();
        let device = session.device;
        let any = !closed.is_empty();
        if armed != wake {
            if let Some(at) = armed {
                self.timers.remove(&(at, Timer::Session(serial)));
            }
            if let Some(at) = wake {
                self.timers.insert((at, Timer::Session(serial)));
            }
        }
        for link in closed {
            let reason = link.closing.unwrap_or(CloseReason::LoggedOut);
            self.connections.insert(link.id, Phase::Closing(Box::new(link.outlet)));
            self.tell(link.id);
            self.events.push_back(Event::Close { connection: link.id, reason });
        }
        if over {
            self.end_session(serial);
        } else if any {
            self.dirty.push(serial);
        }
        if cold_reset {
            for (other, session) in &mut self.sessions {
                if session.device == device {
                    session.cut_off(event::DROP_SESSION, CloseReason::Reset);
                    self.dirty.push(*other);
                }
            }
        }
    }

    fn end_session(&mut self, serial: u32) {
        let Some(session) = self.sessions.remove(&serial) else { return };
        // Those of connections that were lost; the others have been ended with theirs.
        let left = session.tasks.iter().filter(|(_, task)| task.stage != Stage::Done).count();
        self.counters.aborted_by_loss += left as u64;
        if let Some(at) = session.armed {
            self.timers.remove(&(at, Timer::Session(serial)));
        }
        self.by_tsih.remove(&session.tsih);
        self.events.push_back(Event::LoggedOut { identity: session.identity });
        if let Some(device) = session.device
            && let Some(unit) = self.units.get_mut(&device)
        {
            unit.sessions -= 1;
            unit.device.handle_nexus_loss(self.now, session.nexus);
            self.run(device);
            self.forget_idle(device);
        }
    }

    /// Drops a device that nobody uses and whose absence nobody would notice.
    pub(super) fn forget_idle(&mut self, device: DeviceId) {
        let idle = |unit: &Unit| unit.sessions == 0 && unit.device.is_idle();
        if self.units.get(&device).is_some_and(idle) {
            self.release(device);
        }
    }

    fn release(&mut self, device: DeviceId) {
        if let Some(unit) = self.units.remove(&device) {
            if let Some(at) = unit.armed {
                self.timers.remove(&(at, Timer::Device(device)));
            }
            self.forget_copies(device);
            if self.volumes.get(&unit.volume) == Some(&device) {
                self.volumes.remove(&unit.volume);
            }
            self.events.push_back(Event::Released { device, volume: unit.volume });
        }
    }

    /// Tells the shell of output of a connection that is not of a session.
    pub(super) fn tell(&mut self, id: ConnectionId) {
        let outlet = match self.connections.get_mut(&id) {
            Some(Phase::Login(entry)) => &mut entry.outlet,
            Some(Phase::Closing(outlet)) => outlet,
            Some(Phase::Full(_)) | None => return,
        };
        if outlet.tell() {
            self.events.push_back(Event::Output { connection: id });
        }
    }
}
