//! The login of a connection, and its way into a session (RFC 7143 §6.3).

use super::{ConnectionPhase, MAX_CONNECTIONS, Target, Timer};
use crate::block::Time;
use crate::front::iscsi::connection::{CommandWindow, Connection};
use crate::front::iscsi::framing::Incoming;
use crate::front::iscsi::login::{Login, LoginStep, status};
use crate::front::iscsi::login_connection::{LoginConnection, MovedLogin};
use crate::front::iscsi::session::Session;
use crate::front::iscsi::{
    CloseReason, ConnectionId, Event, Identity, OpenError, PORTAL_GROUP, Parameters, Peer,
};
use crate::front::scsi::Nexus;
use crate::wire::iscsi::{Request, Response};
use bytes::BytesMut;

/// Most commands in a session's window, whatever the configuration says.
const MAX_COMMANDS: u32 = 4096;

impl Target {
    /// Takes one login request from `input`; false if it holds none.
    pub(super) fn step_login(&mut self, id: ConnectionId, input: &mut BytesMut) -> bool {
        let Some(ConnectionPhase::Login(entry)) = self.connections.get_mut(&id) else {
            return false;
        };
        let Some(incoming) = entry.framing.step(input) else { return false };
        let pdu = match incoming {
            Incoming::Pdu(pdu) => pdu,
            // Digests are used only in the full feature phase.
            Incoming::DataDigest(_) | Incoming::HeaderDigest => return false,
            Incoming::Lost(why) => {
                self.close_login(id, CloseReason::Violation(why));
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
        // An initiator that has to wait is refused before its proof is checked. Otherwise the
        // refusal could tell a wrong secret from the right one. Its name comes with the first
        // request.
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
                    Some(wait) if !matches!(step, LoginStep::Fail { .. }) => {
                        login.handle_wait(wait)
                    }
                    _ => step,
                }
            }
        };
        self.enter(id, step);
        true
    }

    /// The answer to [`Event::Place`]: this target has the volume.
    pub fn handle_placed(&mut self, now: Time, id: ConnectionId) {
        self.now = now;
        let Some(ConnectionPhase::Login(entry)) = self.connections.get_mut(&id) else { return };
        entry.placed = true;
        if let Some(step) = entry.placing.take() {
            self.enter(id, step);
        }
    }

    /// The answer to [`Event::Place`]: another target has the volume. From now on the connection is
    /// none of this target. `None` if its login has ended meanwhile.
    pub fn take_login(&mut self, id: ConnectionId) -> Option<MovedLogin> {
        let Some(ConnectionPhase::Login(entry)) = self.connections.get(&id) else { return None };
        entry.placing.as_ref()?;
        let Some(ConnectionPhase::Login(entry)) = self.connections.remove(&id) else { return None };
        self.timers.remove(&(entry.limit, Timer::Login(id)));
        // This target has counted its failures.
        if let Some(initiator) = entry.login.initiator().filter(|_| entry.login.user().is_some()) {
            self.failures.handle_success(&entry.peer.address, initiator);
        }
        Some(MovedLogin(entry))
    }

    /// A login comes from another target of this host, with the same clock. It goes on where it
    /// stood. Afterwards take output of the connection, whether an event asks for it or not.
    pub fn handle_moved(&mut self, now: Time, id: ConnectionId, login: MovedLogin) {
        self.now = now;
        let MovedLogin(mut entry) = login;
        let step = entry.placing.take();
        entry.placed = true;
        self.timers.insert((entry.limit, Timer::Login(id)));
        self.connections.insert(id, ConnectionPhase::Login(entry));
        if self.shutting_down || self.connections.len() > MAX_CONNECTIONS {
            let reason = match self.shutting_down {
                true => CloseReason::Shutdown,
                false => CloseReason::Refused("the target has too many connections".to_owned()),
            };
            self.close_login(id, reason);
        } else if let Some(step) = step {
            self.enter(id, step);
        }
    }

    /// Acts on the step of a login.
    pub(super) fn enter(&mut self, id: ConnectionId, step: LoginStep) {
        let mut step = step;
        loop {
            let Some(ConnectionPhase::Login(entry)) = self.connections.get(&id) else { return };
            let window = self.window_of(entry.tsih, entry.cmd_sn);
            let Some(ConnectionPhase::Login(entry)) = self.connections.get_mut(&id) else { return };
            if !entry.placed
                && let Some(volume) = volume_of(&step).map(str::to_owned)
            {
                entry.placing = Some(step);
                self.events.push_back(Event::Place { connection: id, volume });
                return;
            }
            step = match step {
                LoginStep::Send(pdu) => {
                    entry.send(&pdu, window);
                    self.tell(id);
                    return;
                }
                LoginStep::Open { volume } => {
                    if self.devices.of_volume(&volume).is_some() {
                        entry.login.handle_opened(Ok(()))
                    } else {
                        entry.opening = Some(volume.clone());
                        if self.devices.wait(&volume, id) {
                            self.events.push_back(Event::Open { volume });
                        }
                        return;
                    }
                }
                LoginStep::Admit { identity, parameters } => {
                    let result = self.admission(&identity, parameters);
                    let Some(ConnectionPhase::Login(entry)) = self.connections.get_mut(&id) else {
                        return;
                    };
                    if let Ok((tsih, parameters)) = result {
                        entry.admitted = Some((Identity { tsih, ..identity }, parameters));
                    }
                    entry.login.handle_admitted(result)
                }
                LoginStep::Done(pdu) => {
                    let admitted = entry.admitted.as_ref();
                    let by_secret = admitted.is_some_and(|(who, _)| who.user.is_some());
                    if let Some(initiator) = entry.login.initiator().filter(|_| by_secret) {
                        self.failures.handle_success(&entry.peer.address, initiator);
                    }
                    entry.send(&pdu, window);
                    self.begin(id);
                    return;
                }
                LoginStep::Fail { response, reason } => {
                    let redirected = response.as_ref().is_some_and(|pdu| {
                        matches!(pdu.response, Response::Login { status: status::MOVED, .. })
                    });
                    let unauthenticated = response.as_ref().is_some_and(|pdu| {
                        matches!(
                            pdu.response,
                            Response::Login { status: status::AUTHENTICATION, .. }
                        )
                    });
                    // An initiator without CHAP has not guessed a secret.
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
                    self.close_login(id, CloseReason::Refused(reason));
                    return;
                }
            };
        }
    }

    /// Passes the result of opening a volume to a login that waited for it.
    pub(super) fn volume_opened(&mut self, id: ConnectionId, result: Result<(), &OpenError>) {
        let Some(ConnectionPhase::Login(entry)) = self.connections.get_mut(&id) else { return };
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

    /// Decides whether a connection may enter the session that it asks for. Returns the TSIH and
    /// the parameters.
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
            if self.sessions.iter().filter(same).count() >= self.config.sessions_per_initiator {
                let why = "the initiator has as many sessions as it may have".to_owned();
                return Err((status::NO_RESOURCES, why));
            }
            let room = self.sessions.len() < MAX_CONNECTIONS;
            return match self.sessions.free_tsih().filter(|_| room) {
                Some(tsih) => Ok((tsih, own)),
                None => Err((status::NO_RESOURCES, "no session is free".into())),
            };
        }
        let session = self.sessions.of_tsih(identity.tsih);
        let Some(session) = session.filter(|session| is_same_port(&session.identity, identity))
        else {
            return Err((status::NO_SESSION, "there is no such session".into()));
        };
        if session.device.is_none() {
            let why = "a discovery session has one connection".to_owned();
            return Err((status::CANNOT_INCLUDE, why));
        }
        let common = session.parameters;
        let others =
            session.connections.iter().filter(|connection| connection.cid != identity.cid).count();
        // §6.3.4: at level 2 one more connection is allowed, so that tasks can be moved to it.
        let most = usize::from(common.max_connections.max(1))
            + usize::from(common.error_recovery_level >= 2);
        if others >= most {
            let why = "the session has as many connections as were agreed".to_owned();
            return Err((status::TOO_MANY_CONNECTIONS, why));
        }
        // §13: digests and data segments belong to the connection, all else to the session.
        let parameters = Parameters {
            header_digest: own.header_digest,
            data_digest: own.data_digest,
            initiator_data_segment: own.initiator_data_segment,
            target_data_segment: own.target_data_segment,
            ..common
        };
        Ok((identity.tsih, parameters))
    }

    /// The window in a login response: that of the session, or of a new one.
    fn window_of(&self, tsih: u16, cmd_sn: u32) -> CommandWindow {
        match self.sessions.of_tsih(tsih) {
            Some(session) => session.window(),
            // The session may be one of another target. A closed window takes nothing back.
            None if tsih != 0 => CommandWindow { expected: cmd_sn, max: cmd_sn.wrapping_sub(1) },
            None => {
                CommandWindow { expected: cmd_sn, max: cmd_sn.wrapping_add(self.commands() - 1) }
            }
        }
    }

    /// Size of a session's command window.
    fn commands(&self) -> u32 {
        self.config.commands.clamp(1, MAX_COMMANDS)
    }

    /// Moves a connection into the full feature phase.
    fn begin(&mut self, id: ConnectionId) {
        let now = self.now;
        let Some(ConnectionPhase::Login(entry)) = self.connections.remove(&id) else { return };
        self.timers.remove(&(entry.limit, Timer::Login(id)));
        let LoginConnection { peer, framing, outlet, cmd_sn, admitted, .. } = *entry;
        let Some((identity, parameters)) = admitted else {
            let reason = CloseReason::Violation("a login ended without a session");
            self.connections.insert(id, ConnectionPhase::Closing(Box::new(outlet)));
            self.events.push_back(Event::Close { connection: id, reason });
            return;
        };
        let serial = match self.sessions.of_tsih(identity.tsih) {
            Some(session) => session.serial,
            None => self.begin_session(&identity, parameters, cmd_sn),
        };
        let loopback = peer.loopback;
        let window = self.window_of(identity.tsih, cmd_sn);
        let connection =
            Connection::new(now, identity.clone(), peer, parameters, framing, outlet, (id, window));
        self.connections.insert(id, ConnectionPhase::Full(serial));
        self.counters.logins += 1;
        self.events.push_back(Event::LoggedIn { connection: id, identity: identity.clone() });
        if let Some((session, cx)) = self.session(serial) {
            session.loopback &= loopback;
            // §6.3.4: the new connection replaces one with the same CID.
            if let Some(old) = session.connection_of(identity.cid) {
                session.connections[old].close(CloseReason::Reinstated);
            }
            session.add(cx.now, cx.config, connection);
        }
        self.settle(serial);
    }

    /// Begins a session. It replaces one of the same port, if there is one (§6.3.5).
    fn begin_session(&mut self, identity: &Identity, parameters: Parameters, expected: u32) -> u32 {
        let device = identity.volume.as_ref().and_then(|volume| self.devices.of_volume(volume));
        // This comes before the end of the old session, so that the device stays in use.
        if let Some(unit) = device.and_then(|device| self.devices.get_mut(device)) {
            unit.sessions += 1;
        }
        let old = self
            .sessions
            .iter()
            .find(|session| is_same_port(&session.identity, identity))
            .map(|session| session.serial);
        if let Some(old) = old {
            if let Some(session) = self.sessions.get_mut(old) {
                session.end(CloseReason::Reinstated);
            }
            self.settle(old);
        }
        let serial = self.sessions.free_serial();
        let nexus = self.sessions.new_nexus();
        if let Some(unit) = device.and_then(|device| self.devices.get_mut(device)) {
            let isid: String = identity.isid.iter().map(|byte| format!("{byte:02x}")).collect();
            let ends = Nexus {
                initiator_port: format!("{},i,0x{isid}", identity.initiator),
                relative_port: PORTAL_GROUP,
            };
            unit.device.handle_nexus(self.now, nexus, ends);
        }
        let names = (serial, nexus);
        let commands = self.commands();
        let session = Session::new(names, identity.clone(), parameters, device, expected, commands);
        self.sessions.insert(session);
        serial
    }

    /// Opens a volume without a login that waits for it; false if it has a device.
    #[cfg(test)]
    pub(in crate::front::iscsi) fn skip_open(&mut self, volume: &str) -> bool {
        let new = self.devices.of_volume(volume).is_none();
        if new {
            self.devices.expect(volume);
        }
        new
    }

    /// Enters the full feature phase without a login.
    #[cfg(test)]
    pub(in crate::front::iscsi) fn skip_login(
        &mut self,
        id: ConnectionId,
        identity: Identity,
        parameters: Parameters,
        cmd_sn: u32,
        stat_sn: u32,
    ) -> Result<u16, u16> {
        let (tsih, parameters) = self.admission(&identity, parameters).map_err(|error| error.0)?;
        if let Some(ConnectionPhase::Login(entry)) = self.connections.get_mut(&id) {
            entry.cmd_sn = cmd_sn;
            entry.outlet.stat_sn = stat_sn;
            entry.admitted = Some((Identity { tsih, ..identity }, parameters));
        }
        self.begin(id);
        Ok(tsih)
    }

    /// Ends a login without success.
    pub(super) fn close_login(&mut self, id: ConnectionId, reason: CloseReason) {
        if let Some(ConnectionPhase::Login(entry)) = self.connections.remove(&id) {
            self.timers.remove(&(entry.limit, Timer::Login(id)));
            self.forget_opening(id, &entry);
            self.connections.insert(id, ConnectionPhase::Closing(Box::new(entry.outlet)));
            self.tell(id);
            self.events.push_back(Event::Close { connection: id, reason });
        }
    }

    /// A login waits for its volume no longer.
    pub(super) fn forget_opening(&mut self, id: ConnectionId, entry: &LoginConnection) {
        if let Some(volume) = &entry.opening {
            self.devices.stop_waiting(volume, id);
        }
    }
}

/// Whether two logins have the same initiator port and target port (§4.4.1), which makes them one
/// nexus.
fn is_same_port(a: &Identity, b: &Identity) -> bool {
    a.initiator == b.initiator && a.isid == b.isid && a.volume == b.volume
}

/// The volume that a step needs, for a login to one.
fn volume_of(step: &LoginStep) -> Option<&str> {
    match step {
        LoginStep::Open { volume } => Some(volume),
        LoginStep::Admit { identity, .. } => identity.volume.as_deref(),
        LoginStep::Send(_) | LoginStep::Done(_) | LoginStep::Fail { .. } => None,
    }
}
