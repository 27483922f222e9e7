//! Connections before the full feature phase: the login, and its entry into a session (RFC 7143 §6.3).

use super::connection::{Link, Outlet, Window};
use super::framing::{Framing, Incoming};
use super::login::{Login, Step, status};
use super::session::Session;
use super::target::{Phase, Target, Timer};
use super::{
    CloseReason, ConnectionId, Event, Identity, OpenError, PORTAL_GROUP, Parameters, Peer, TextPdu,
};
use crate::block::Time;
use crate::front::scsi::Nexus;
use crate::wire::iscsi::{Request, Response, ResponseHeader};
use bytes::BytesMut;

/// Longest data segment before another length was declared (§13.12), in bytes.
const LOGIN_SEGMENT_BYTES: usize = 8192;

/// Most commands in a session's window, whatever the configuration says.
const MAX_COMMANDS: u32 = 4096;

/// Connections there may be in all, and sessions, which may outlive theirs.
pub(super) const MAX_CONNECTIONS: usize = 4096;

/// A connection that logs in.
#[derive(Debug)]
pub(super) struct Entry {
    login: Box<Login>,
    peer: Peer,
    framing: Framing,
    pub(super) outlet: Outlet,
    pub(super) limit: Time,
    /// The last request's tag and number.
    itt: u32,
    cmd_sn: u32,
    /// The session it wants to join, or 0.
    tsih: u16,
    /// A request has come: its status number follows the initiator's expectation.
    begun: bool,
    /// The volume that has to be opened first.
    pub(super) opening: Option<String>,
    admitted: Option<(Identity, Parameters)>,
}

impl Entry {
    pub(super) fn new(now: Time, target: &Target, peer: Peer, random: [u8; 32]) -> Entry {
        Entry {
            login: Box::new(Login::new(&target.config, &peer, random)),
            peer,
            framing: Framing::new(LOGIN_SEGMENT_BYTES),
            outlet: Outlet::new(),
            limit: now.after(target.config.login_limit),
            itt: 0,
            cmd_sn: 0,
            tsih: 0,
            begun: false,
            opening: None,
            admitted: None,
        }
    }

    pub(super) fn wants_input(&self) -> bool {
        self.opening.is_none()
    }

    pub(super) fn wanted(&self) -> usize {
        self.framing.wanted()
    }

    /// Sends a login response; the first one's number is the one the initiator expects.
    fn send(&mut self, pdu: &TextPdu, window: Window) {
        let header = ResponseHeader {
            itt: self.itt,
            stat_sn: self.outlet.stat_sn,
            exp_cmd_sn: window.expected,
            max_cmd_sn: window.max,
            data_bytes: pdu.text.len(),
            response: pdu.response,
        };
        self.outlet.stat_sn = self.outlet.stat_sn.wrapping_add(1);
        self.outlet.put(header, |sink| sink.put(pdu.text.clone()));
    }
}

impl Target {
    /// Takes one login request from `input`. False if none is there.
    pub(super) fn step_login(&mut self, id: ConnectionId, input: &mut BytesMut) -> bool {
        let Some(Phase::Login(entry)) = self.connections.get_mut(&id) else { return false };
        let Some(incoming) = entry.framing.step(input) else { return false };
        let pdu = match incoming {
            Incoming::Pdu(pdu) => pdu,
            // Digests begin with the full feature phase.
            Incoming::DataDigest(_) | Incoming::HeaderDigest => return false,
            Incoming::Lost(why) => {
                self.close_entry(id, CloseReason::Violation(why));
                return true;
            }
        };
        if !entry.begun {
            entry.begun = true;
            entry.cmd_sn = pdu.header.cmd_sn;
            entry.outlet.stat_sn = pdu.header.exp_stat_sn;
        }
        entry.itt = pdu.header.itt;
        if let Request::Login { tsih, .. } = pdu.header.request {
            entry.tsih = tsih;
        }
        // While an initiator has to wait, nothing that it shows is judged: the refusal must not tell a wrong secret
        // from the right one, whenever it got its challenge. Its name comes with the first request.
        let (failures, now) = (&self.failures, self.now);
        let wait = |login: &Login, peer: &Peer| {
            let initiator = login.initiator()?;
            failures.wait(now, &peer.address, initiator)
        };
        let login = &mut entry.login;
        let step = match wait(login, &entry.peer) {
            Some(wait) => login.handle_wait(wait),
            None => {
                let step = login.handle_request(&self.config, &self.access, &pdu.header, &pdu.data);
                match wait(login, &entry.peer) {
                    Some(wait) if !matches!(step, Step::Fail { .. }) => login.handle_wait(wait),
                    _ => step,
                }
            }
        };
        self.enter(id, step);
        true
    }

    /// Does what a login wants done.
    pub(super) fn enter(&mut self, id: ConnectionId, step: Step) {
        let mut step = step;
        loop {
            let Some(Phase::Login(entry)) = self.connections.get(&id) else { return };
            let window = self.window_of(entry.tsih, entry.cmd_sn);
            let Some(Phase::Login(entry)) = self.connections.get_mut(&id) else { return };
            step = match step {
                Step::Send(pdu) => {
                    entry.send(&pdu, window);
                    self.tell(id);
                    return;
                }
                Step::Open { volume } => {
                    if self.volumes.contains_key(&volume) {
                        entry.login.handle_opened(Ok(()))
                    } else {
                        entry.opening = Some(volume.clone());
                        let waiting = self.opening.entry(volume.clone()).or_default();
                        waiting.push(id);
                        if waiting.len() == 1 {
                            self.events.push_back(Event::Open { volume });
                        }
                        return;
                    }
                }
                Step::Admit { identity, parameters } => {
                    let result = self.admission(&identity, parameters);
                    let Some(Phase::Login(entry)) = self.connections.get_mut(&id) else { return };
                    if let Ok((tsih, parameters)) = result {
                        entry.admitted = Some((Identity { tsih, ..identity }, parameters));
                    }
                    entry.login.handle_admitted(result)
                }
                Step::Done(pdu) => {
                    let admitted = entry.admitted.as_ref();
                    let by_secret = admitted.is_some_and(|(who, _)| who.user.is_some());
                    if let Some(initiator) = entry.login.initiator().filter(|_| by_secret) {
                        self.failures.handle_success(&entry.peer.address, initiator);
                    }
                    entry.send(&pdu, window);
                    self.begin(id);
                    return;
                }
                Step::Fail { response, reason } => {
                    let redirected = response.as_ref().is_some_and(|pdu| {
                        matches!(pdu.response, Response::Login { status: status::MOVED, .. })
                    });
                    let unauthenticated = response.as_ref().is_some_and(|pdu| {
                        matches!(
                            pdu.response,
                            Response::Login { status: status::AUTHENTICATION, .. }
                        )
                    });
                    // Who does not even try has guessed nothing.
                    let guessed = unauthenticated && entry.login.uses_chap();
                    if let Some(initiator) = entry.login.initiator().filter(|_| guessed) {
                        let peer = &entry.peer.address;
                        self.failures.handle_failure(self.now, peer, initiator);
                    }
                    if let Some(pdu) = response {
                        entry.send(&pdu, window);
                    }
                    if redirected {
                        self.counters.logins_redirected += 1;
                    } else {
                        self.counters.logins_refused += 1;
                    }
                    self.close_entry(id, CloseReason::Refused(reason));
                    return;
                }
            };
        }
    }

    /// Gives a login that waited for a volume its answer.
    pub(super) fn entry_opened(&mut self, id: ConnectionId, result: Result<(), &OpenError>) {
        let Some(Phase::Login(entry)) = self.connections.get_mut(&id) else { return };
        entry.opening = None;
        let result = result.map_err(|error| {
            let status = match error {
                OpenError::NotFound(_) => status::NOT_FOUND,
                OpenError::Unavailable(_) => status::UNAVAILABLE,
            };
            (status, error.to_string())
        });
        let step = entry.login.handle_opened(result);
        self.enter(id, step);
    }

    /// Whether a connection may enter the session it asks for, with what TSIH and parameters.
    fn admission(
        &mut self,
        identity: &Identity,
        own: Parameters,
    ) -> Result<(u16, Parameters), (u16, String)> {
        if self.shutting_down {
            return Err((status::UNAVAILABLE, "the target is shutting down".into()));
        }
        if identity.tsih == 0 {
            let same = |session: &&Session| {
                session.identity.initiator == identity.initiator
                    && !is_same_port(&session.identity, identity)
            };
            if self.sessions.values().filter(same).count() >= self.config.sessions_per_initiator {
                let why = "the initiator has as many sessions as it may have".to_owned();
                return Err((status::NO_RESOURCES, why));
            }
            let room = self.sessions.len() < MAX_CONNECTIONS;
            return match self.free_tsih().filter(|_| room) {
                Some(tsih) => Ok((tsih, own)),
                None => Err((status::NO_RESOURCES, "no session is free".into())),
            };
        }
        let session = self.by_tsih.get(&identity.tsih).and_then(|s| self.sessions.get(s));
        let Some(session) = session.filter(|session| is_same_port(&session.identity, identity))
        else {
            return Err((status::NO_SESSION, "there is no such session".into()));
        };
        if session.device.is_none() {
            let why = "a discovery session has one connection".to_owned();
            return Err((status::CANNOT_INCLUDE, why));
        }
        let common = session.parameters;
        let others = session.links.iter().filter(|link| link.cid != identity.cid).count();
        // §6.3.4: at level 2 there is always room for a connection that tasks can be moved to.
        let most = usize::from(common.max_connections.max(1))
            + usize::from(common.error_recovery_level >= 2);
        if others >= most {
            let why = "the session has as many connections as were agreed".to_owned();
            return Err((status::TOO_MANY_CONNECTIONS, why));
        }
        // §13: digests and segments are the connection's own, all else the session's.
        let parameters = Parameters {
            header_digest: own.header_digest,
            data_digest: own.data_digest,
            initiator_data_segment: own.initiator_data_segment,
            target_data_segment: own.target_data_segment,
            ..common
        };
        Ok((identity.tsih, parameters))
    }

    /// The window that a login response tells of: the session's, or that of a new one.
    fn window_of(&self, tsih: u16, cmd_sn: u32) -> Window {
        match self.by_tsih.get(&tsih).and_then(|serial| self.sessions.get(serial)) {
            Some(session) => session.window(),
            None => Window { expected: cmd_sn, max: cmd_sn.wrapping_add(self.commands() - 1) },
        }
    }

    /// Commands in a session's window.
    fn commands(&self) -> u32 {
        self.config.commands.clamp(1, MAX_COMMANDS)
    }

    /// A TSIH that is not in use; 0 never is one.
    fn free_tsih(&mut self) -> Option<u16> {
        for _ in 0..=u16::MAX {
            self.last_tsih = self.last_tsih.wrapping_add(1);
            if self.last_tsih != 0 && !self.by_tsih.contains_key(&self.last_tsih) {
                return Some(self.last_tsih);
            }
        }
        None
    }

    /// A login is done: the connection is in the full feature phase.
    fn begin(&mut self, id: ConnectionId) {
        let now = self.now;
        let Some(Phase::Login(entry)) = self.connections.remove(&id) else { return };
        self.timers.remove(&(entry.limit, Timer::Login(id)));
        let Entry { peer, framing, outlet, cmd_sn, admitted, .. } = *entry;
        let Some((identity, parameters)) = admitted else {
            let reason = CloseReason::Violation("a login ended without a session");
            self.connections.insert(id, Phase::Closing(Box::new(outlet)));
            self.events.push_back(Event::Close { connection: id, reason });
            return;
        };
        let serial = match self.by_tsih.get(&identity.tsih) {
            Some(serial) => *serial,
            None => self.begin_session(&identity, parameters, cmd_sn),
        };
        let loopback = peer.loopback;
        let window = self.window_of(identity.tsih, cmd_sn);
        let link =
            Link::new(now, identity.clone(), peer, parameters, framing, outlet, (id, window));
        self.connections.insert(id, Phase::Full(serial));
        self.counters.logins += 1;
        self.events.push_back(Event::LoggedIn { connection: id, identity: identity.clone() });
        if let Some((session, cx)) = self.session(serial) {
            session.loopback &= loopback;
            // §6.3.4: the new connection takes the place of one with the same number.
            if let Some(old) = session.link_of(identity.cid) {
                session.links[old].close(CloseReason::Reinstated);
            }
            session.add(cx.now, cx.config, link);
        }
        self.settle(serial);
    }

    /// A new session, in the place of one of the same port if there is one (§6.3.5).
    fn begin_session(&mut self, identity: &Identity, parameters: Parameters, expected: u32) -> u32 {
        let device = identity.volume.as_ref().and_then(|volume| self.volumes.get(volume)).copied();
        // Before the old session ends: the device must not go as one that nobody uses.
        if let Some(unit) = device.and_then(|device| self.units.get_mut(&device)) {
            unit.sessions += 1;
        }
        let old = self
            .sessions
            .iter()
            .find(|(_, session)| is_same_port(&session.identity, identity))
            .map(|(serial, _)| *serial);
        if let Some(old) = old {
            if let Some(session) = self.sessions.get_mut(&old) {
                session.end(CloseReason::Reinstated);
            }
            self.settle(old);
        }
        let serial = self.free_serial();
        self.last_nexus += 1;
        let nexus = self.last_nexus;
        if let Some(unit) = device.and_then(|device| self.units.get_mut(&device)) {
            let isid: String = identity.isid.iter().map(|byte| format!("{byte:02x}")).collect();
            let ends = Nexus {
                initiator_port: format!("{},i,0x{isid}", identity.initiator),
                relative_port: PORTAL_GROUP,
            };
            unit.device.handle_nexus(self.now, nexus, ends);
        }
        let session = Session::new(
            serial,
            nexus,
            identity.tsih,
            identity.clone(),
            parameters,
            device,
            expected,
            self.commands(),
        );
        self.by_tsih.insert(identity.tsih, serial);
        self.sessions.insert(serial, session);
        serial
    }

    /// Enters the full feature phase without a login.
    #[cfg(test)]
    pub(super) fn skip_login(
        &mut self,
        id: ConnectionId,
        identity: Identity,
        parameters: Parameters,
        cmd_sn: u32,
        stat_sn: u32,
    ) -> Result<u16, u16> {
        let (tsih, parameters) = self.admission(&identity, parameters).map_err(|error| error.0)?;
        if let Some(Phase::Login(entry)) = self.connections.get_mut(&id) {
            entry.cmd_sn = cmd_sn;
            entry.outlet.stat_sn = stat_sn;
            entry.admitted = Some((Identity { tsih, ..identity }, parameters));
        }
        self.begin(id);
        Ok(tsih)
    }

    /// The login is over without success.
    pub(super) fn close_entry(&mut self, id: ConnectionId, reason: CloseReason) {
        if let Some(Phase::Login(entry)) = self.connections.remove(&id) {
            self.timers.remove(&(entry.limit, Timer::Login(id)));
            self.forget_opening(id, &entry);
            self.connections.insert(id, Phase::Closing(Box::new(entry.outlet)));
            self.tell(id);
            self.events.push_back(Event::Close { connection: id, reason });
        }
    }

    /// A login does not wait for its volume any more.
    pub(super) fn forget_opening(&mut self, id: ConnectionId, entry: &Entry) {
        if let Some(waiting) =
            entry.opening.as_ref().and_then(|volume| self.opening.get_mut(volume))
        {
            waiting.retain(|other| *other != id);
        }
    }
}

/// Whether two logins come from one initiator port to one target port (§4.4.1): one nexus.
fn is_same_port(a: &Identity, b: &Identity) -> bool {
    a.initiator == b.initiator && a.isid == b.isid && a.volume == b.volume
}
