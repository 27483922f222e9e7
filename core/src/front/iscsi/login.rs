//! The login phase of a connection (RFC 7143 §6.3, §11.12, §12, §13), from the first request to the
//! full feature phase or to the refusal.
//!
//! A connection passes every PDU to [`Login::handle_request`], with the whole of its data segment.
//! The [`LoginStep`] says what to send or to ask. While a step waits for an answer, no request is
//! passed in. After [`LoginStep::Done`] and [`LoginStep::Fail`] the machine has ended. The
//! connection owns the numbers (StatSN, CmdSN) and the time limit (`login_limit`).
//!
//! The standard leaves open what an initiator learns before it has authenticated. The target
//! decides:
//!
//! - Off loopback, the target does not tell an unknown name from a name without a grant for the
//!   initiator. Both are an authorization failure (0202), and the log says which it was.
//! - If there are CHAP users, both are refused only after the initiator has authenticated as one of
//!   them. So an initiator without a secret (0201) learns nothing about names. A grant without a
//!   CHAP user admits the initiator, and thereby tells it of the name.
//! - On loopback, where volumes without grants may be used, an unknown name is 0203.
//! - Only after these checks the initiator learns whether a volume can be opened or has moved, and
//!   its alias.
//!
//! Of the methods that an initiator lists, the first that it may use counts (§6.2.1). If no grant
//! of the initiator names a user, `CHAP,None` is answered `None`, because some initiators list both
//! without having a secret.
//!
//! No bytes make a login panic or loop. It holds at most [`text::MAX_REQUEST_BYTES`] of requests,
//! and a small multiple of that in answers. It ends after [`MAX_REQUESTS`] requests. It knows
//! nothing of sockets or sessions.

use super::access::RequiredProof;
use super::chap::{self, Chap};
use super::keys::{self, KeyUse, Negotiation};
use super::text::{self, NONE, NOT_UNDERSTOOD, ResponseText, TextOutbox, TextPair, TextPdu};
use super::{Access, Config, Identity, PORTAL_GROUP, Parameters, Peer, name};
use crate::wire::iscsi::{Request, RequestHeader, Response};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::time::Duration;

/// Most requests of a login. The longest valid one has eight, and a few more for long texts.
pub const MAX_REQUESTS: u32 = 64;

/// The only version of the protocol (§11.12.4).
const VERSION: u8 = 0;

const SECURITY: u8 = 0;
const OPERATIONAL: u8 = 1;
const FULL_FEATURE: u8 = 3;

/// Statuses of a login response: class and detail (§11.13.5).
pub mod status {
    /// The login may go on.
    pub const SUCCESS: u16 = 0x0000;
    /// The target has moved temporarily; the text has its address.
    pub const MOVED: u16 = 0x0101;
    /// The initiator broke the protocol.
    pub const INITIATOR_ERROR: u16 = 0x0200;
    /// The initiator did not prove its identity.
    pub const AUTHENTICATION: u16 = 0x0201;
    /// The initiator may not use the target.
    pub const AUTHORIZATION: u16 = 0x0202;
    /// No such target.
    pub const NOT_FOUND: u16 = 0x0203;
    /// The target was removed and has no new address.
    pub const REMOVED: u16 = 0x0204;
    /// No common version.
    pub const VERSION: u16 = 0x0205;
    /// Too many connections in the session.
    pub const TOO_MANY_CONNECTIONS: u16 = 0x0206;
    /// InitiatorName or TargetName is missing.
    pub const MISSING_PARAMETER: u16 = 0x0207;
    /// The session cannot have this connection.
    pub const CANNOT_INCLUDE: u16 = 0x0208;
    /// Neither a normal nor a discovery session.
    pub const SESSION_TYPE: u16 = 0x0209;
    /// The session to join does not exist.
    pub const NO_SESSION: u16 = 0x020a;
    /// The PDU is not a login request.
    pub const INVALID_REQUEST: u16 = 0x020b;
    /// The target failed.
    pub const TARGET_ERROR: u16 = 0x0300;
    /// The target cannot serve now.
    pub const UNAVAILABLE: u16 = 0x0301;
    /// The target has no resources.
    pub const NO_RESOURCES: u16 = 0x0302;
}

/// The next step of a login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoginStep {
    /// Send this login response, then take the next request.
    Send(TextPdu),
    /// Answer with [`Login::handle_opened`]. No request is taken until then.
    Open {
        /// The volume that the initiator wants, in the spelling of [`Access`]. If [`Access`] has no
        /// such volume, the spelling is the initiator's, which may have folded it to lower case.
        volume: String,
    },
    /// Decide about the session, and answer with [`Login::handle_admitted`]. Rights may have
    /// changed while the volume was opened; the user of the machine checks them
    /// ([`Access::may_use`]).
    Admit {
        /// The initiator and the volume.
        identity: Identity,
        /// The negotiated parameters. If the connection joins a session, those of the session
        /// count.
        parameters: Parameters,
    },
    /// Send this last response; the connection is in the full feature phase.
    Done(TextPdu),
    /// Send this response, if any, and close.
    Fail {
        /// The refusal; `None` if no response is safe.
        response: Option<TextPdu>,
        /// The reason for the log.
        reason: String,
    },
}

/// The refusal of a login.
#[derive(Debug)]
struct LoginRefusal {
    /// `None`: the connection is closed without a response.
    status: Option<u16>,
    text: Bytes,
    reason: String,
}

impl LoginRefusal {
    fn new(status: u16, reason: impl Into<String>) -> LoginRefusal {
        LoginRefusal { status: Some(status), text: Bytes::new(), reason: reason.into() }
    }

    fn silent(reason: impl Into<String>) -> LoginRefusal {
        LoginRefusal { status: None, text: Bytes::new(), reason: reason.into() }
    }

    fn initiator(reason: impl Into<String>) -> LoginRefusal {
        LoginRefusal::new(status::INITIATOR_ERROR, reason)
    }
}

impl From<chap::ChapFailure> for LoginRefusal {
    fn from(failure: chap::ChapFailure) -> LoginRefusal {
        match failure {
            chap::ChapFailure::Protocol(why) => LoginRefusal::initiator(why),
            chap::ChapFailure::Authentication(why) => {
                LoginRefusal::new(status::AUTHENTICATION, why)
            }
            chap::ChapFailure::Reflection => {
                LoginRefusal::silent("the initiator plays the target's own CHAP challenge back")
            }
        }
    }
}

/// The fields that all requests of a login have in common (§11.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LoginTags {
    isid: [u8; 6],
    tsih: u16,
    cid: u16,
    itt: u32,
}

/// The stage transition that a request asks for.
#[derive(Clone, Copy, Debug)]
struct StageRequest {
    transit: bool,
    more: bool,
    next: u8,
}

/// The state of a login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LoginState {
    Talking,
    Opening,
    Admitting,
    Over,
}

/// The names in the first text.
#[derive(Debug)]
struct LoginNames {
    initiator: String,
    /// `None` for a discovery session.
    target: Option<RequestedTarget>,
    need: RequiredProof,
}

/// The target that the initiator asked for.
#[derive(Debug)]
struct RequestedTarget {
    name: String,
    volume: Option<String>,
}

/// A login.
#[derive(Debug)]
pub struct Login {
    peer: Peer,
    random: [u8; 32],
    state: LoginState,
    requests: u32,
    /// Bytes of text in the requests so far.
    total: usize,
    tags: Option<LoginTags>,
    /// The stage of the current request, for refusals.
    stage: u8,
    inbox: Vec<u8>,
    outbox: TextOutbox,
    /// Keys that came before.
    seen: BTreeSet<String>,
    names: Option<LoginNames>,
    /// The current text is the first one.
    introducing: bool,
    alias: String,
    /// The negotiated AuthMethod: `Some(None)` is the method `None`.
    method: Option<Option<Chap>>,
    /// The initiator may use the target.
    authorized: bool,
    negotiation: Negotiation,
    /// The last piece of text, for the response that ends the login.
    last_text: Bytes,
}

impl Login {
    /// A new login. `random` is used only for the CHAP challenge.
    #[must_use]
    pub fn new(_config: &Config, peer: &Peer, random: [u8; 32]) -> Login {
        Login {
            peer: peer.clone(),
            random,
            state: LoginState::Talking,
            requests: 0,
            total: 0,
            tags: None,
            stage: SECURITY,
            inbox: Vec::new(),
            outbox: TextOutbox::default(),
            seen: BTreeSet::new(),
            names: None,
            introducing: false,
            alias: String::new(),
            method: None,
            authorized: false,
            negotiation: Negotiation::new(false, true),
            last_text: Bytes::new(),
        }
    }

    /// Handles a PDU with its data segment.
    pub fn handle_request(
        &mut self,
        config: &Config,
        access: &Access,
        header: &RequestHeader,
        data: &[u8],
    ) -> LoginStep {
        let step = if self.state == LoginState::Talking {
            self.request(config, access, header, data)
        } else {
            Err(LoginRefusal::silent("a request before the last one was answered"))
        };
        step.unwrap_or_else(|refusal| self.refuse(refusal))
    }

    /// The result of opening the volume: `Err` has the status (class and detail) and the reason.
    pub fn handle_opened(&mut self, result: Result<(), (u16, String)>) -> LoginStep {
        if self.state != LoginState::Opening {
            return self.refuse(LoginRefusal::silent(
                "a volume was opened that the login did not ask for",
            ));
        }
        match result {
            Ok(()) => self.admit(),
            Err((status, why)) => self.refuse(LoginRefusal::new(status, why)),
        }
    }

    /// The TSIH and the parameters of the session, or the status (class and detail) and the reason.
    pub fn handle_admitted(
        &mut self,
        result: Result<(u16, Parameters), (u16, String)>,
    ) -> LoginStep {
        if self.state != LoginState::Admitting {
            return self.refuse(LoginRefusal::silent(
                "a session was admitted that the login did not ask for",
            ));
        }
        match result {
            Ok((tsih, _)) => {
                self.state = LoginState::Over;
                let text = std::mem::take(&mut self.last_text);
                let mut pdu = self.response(text, false, Some(FULL_FEATURE));
                if let Response::Login { tsih: field, .. } = &mut pdu.response {
                    *field = tsih;
                }
                LoginStep::Done(pdu)
            }
            Err((status, why)) => self.refuse(LoginRefusal::new(status, why)),
        }
    }

    fn request(
        &mut self,
        config: &Config,
        access: &Access,
        header: &RequestHeader,
        data: &[u8],
    ) -> Result<LoginStep, LoginRefusal> {
        let transition = self.check_header(header, data)?;
        if !self.outbox.is_empty() {
            // §11.13.2: the request that answers a response with the C bit is empty.
            if transition.more || !data.is_empty() {
                return Err(LoginRefusal::initiator("text while the answer goes on"));
            }
            return Ok(self.answer(config, transition));
        }
        self.total += data.len();
        if self.total > text::MAX_REQUEST_BYTES {
            return Err(LoginRefusal::initiator(text::TextError::TooLong.to_string()));
        }
        self.inbox.extend_from_slice(data);
        if transition.more {
            return Ok(LoginStep::Send(self.response(Bytes::new(), false, None)));
        }
        let text = std::mem::take(&mut self.inbox);
        let pairs =
            text::parse(&text).map_err(|error| LoginRefusal::initiator(error.to_string()))?;
        for pair in &pairs {
            // §6.3: each key comes once in a login.
            if !self.seen.insert(pair.key.to_owned()) {
                return Err(LoginRefusal::initiator(format!("{} twice in one login", pair.key)));
            }
        }
        let mut answer = ResponseText::default();
        self.introducing = self.names.is_none();
        if self.introducing {
            self.take_names(access, &pairs, &mut answer)?;
        }
        match self.stage {
            SECURITY => self.security(config, access, &pairs, transition, &mut answer)?,
            _ => self.operational(config, access, &pairs, transition, &mut answer)?,
        }
        self.outbox = answer.send();
        Ok(self.answer(config, transition))
    }

    /// Checks a header against the rules of the phase.
    fn check_header(
        &mut self,
        header: &RequestHeader,
        data: &[u8],
    ) -> Result<StageRequest, LoginRefusal> {
        let Request::Login { transit, more, stage, next, version_min, isid, tsih, cid, .. } =
            header.request
        else {
            // §6.3: the first PDU of a connection is not a login request, so no response is
            // possible.
            return Err(match self.tags {
                None => LoginRefusal::silent("the first PDU is no login request"),
                Some(_) => {
                    LoginRefusal::new(status::INVALID_REQUEST, "a PDU that is no login request")
                }
            });
        };
        let tags = LoginTags { isid, tsih, cid, itt: header.itt };
        let first = self.tags.is_none();
        let known = *self.tags.get_or_insert(tags);
        let before = std::mem::replace(&mut self.stage, stage);
        if version_min > VERSION {
            let why = format!("the initiator speaks version {version_min} and newer");
            return Err(LoginRefusal::new(status::VERSION, why));
        }
        self.requests += 1;
        if self.requests > MAX_REQUESTS {
            return Err(LoginRefusal::initiator("a login without end"));
        }
        if known != tags {
            return Err(LoginRefusal::initiator(
                "ISID, TSIH, CID or task tag changed within the login",
            ));
        }
        if header.ahs_bytes != 0 {
            return Err(LoginRefusal::initiator(
                "a login request with an additional header segment",
            ));
        }
        if data.len() > keys::DEFAULT_DATA_SEGMENT as usize {
            return Err(LoginRefusal::initiator("a login request of more than 8192 bytes"));
        }
        if first && stage > OPERATIONAL || !first && stage != before {
            return Err(LoginRefusal::initiator(format!("stage {stage} at the wrong time")));
        }
        if transit && more {
            return Err(LoginRefusal::initiator(
                "a request that goes on and wants to leave the stage",
            ));
        }
        if transit && (next <= stage || next != OPERATIONAL && next != FULL_FEATURE) {
            return Err(LoginRefusal::initiator(format!("from stage {stage} to stage {next}")));
        }
        Ok(StageRequest { transit, more, next })
    }

    /// Handles the first text, with the names.
    fn take_names(
        &mut self,
        access: &Access,
        pairs: &[TextPair<'_>],
        answer: &mut ResponseText,
    ) -> Result<(), LoginRefusal> {
        let find = |key: &str| pairs.iter().find(|pair| pair.key == key).map(|pair| pair.value);
        let missing = |key: &str| {
            LoginRefusal::new(status::MISSING_PARAMETER, format!("the first request has no {key}"))
        };
        let initiator = find("InitiatorName").ok_or_else(|| missing("InitiatorName"))?;
        let initiator = name::normalize(initiator)
            .map_err(|error| LoginRefusal::initiator(format!("InitiatorName: {error}")))?;
        let discovery = match find("SessionType") {
            None | Some("Normal") => false,
            Some("Discovery") => true,
            Some(other) => {
                return Err(LoginRefusal::new(
                    status::SESSION_TYPE,
                    format!("SessionType={other:?}"),
                ));
            }
        };
        let leading = self.is_leading();
        if discovery && !leading {
            let why = "a discovery session has one connection";
            return Err(LoginRefusal::new(status::CANNOT_INCLUDE, why));
        }
        let loopback = self.peer.loopback;
        let (target, need) = if discovery {
            (None, access.need_for_discovery(&initiator, loopback))
        } else {
            let asked = find("TargetName").ok_or_else(|| missing("TargetName"))?;
            let volume = access.volume_of(asked);
            let need = match &volume {
                Some(volume) => access.need(&initiator, loopback, volume),
                None => RequiredProof::Nobody,
            };
            // §13.9.
            answer.push("TargetPortalGroupTag", &PORTAL_GROUP.to_string());
            (Some(RequestedTarget { name: asked.to_owned(), volume }), need)
        };
        let names = LoginNames { initiator, target, need };
        if names.need == RequiredProof::Nobody && (loopback || access.users.is_empty()) {
            return Err(forbidden(&names, loopback));
        }
        if names.need == RequiredProof::User && access.users.is_empty() {
            // The refusal is the same as without a grant, because no authentication is possible
            // here.
            let why = "the grants name CHAP users that do not exist: configure them";
            return Err(LoginRefusal::new(status::AUTHORIZATION, why));
        }
        // A login that starts in this stage skips security (§6.3.1).
        if self.stage == OPERATIONAL && !matches!(names.need, RequiredProof::Nothing { .. }) {
            return Err(unauthenticated(&names.initiator));
        }
        self.negotiation = Negotiation::new(discovery, leading);
        self.names = Some(names);
        Ok(())
    }

    /// Handles text of the security stage.
    fn security(
        &mut self,
        config: &Config,
        access: &Access,
        pairs: &[TextPair<'_>],
        transition: StageRequest,
        answer: &mut ResponseText,
    ) -> Result<(), LoginRefusal> {
        let mut keys = chap::ChapKeys::default();
        let mut method = None;
        for pair in pairs {
            match (pair.key, keys::key_use(pair.key)) {
                ("AuthMethod", _) => method = Some(pair.value),
                ("CHAP_A", _) => keys.algorithms = Some(pair.value),
                ("CHAP_I", _) => keys.id = Some(pair.value),
                ("CHAP_C", _) => keys.challenge = Some(pair.value),
                ("CHAP_N", _) => keys.name = Some(pair.value),
                ("CHAP_R", _) => keys.response = Some(pair.value),
                (key, key_use) => self.common(key, pair.value, key_use, answer)?,
            }
        }
        let has_keys = keys != chap::ChapKeys::default();
        if let Some(list) = method {
            if has_keys {
                return Err(LoginRefusal::initiator("CHAP keys before AuthMethod is settled"));
            }
            self.method = Some(self.choose_method(access, list)?);
            answer.push(
                "AuthMethod",
                if matches!(self.method, Some(Some(_))) { "CHAP" } else { NONE },
            );
        } else if has_keys {
            let Some(Some(chap)) = &mut self.method else {
                return Err(LoginRefusal::initiator("CHAP keys without AuthMethod=CHAP"));
            };
            chap.handle(config, access, keys, answer)?;
        } else if transition.transit && !self.is_authenticated() {
            let who = self.names.as_ref().map_or("", |names| &names.initiator);
            return Err(unauthenticated(who));
        }
        if self.is_authenticated() && (transition.transit || self.user().is_some()) {
            self.authorize(access)?;
        }
        Ok(())
    }

    /// Chooses a method from the initiator's list; `None` stands for the method `None`.
    fn choose_method(&self, access: &Access, list: &str) -> Result<Option<Chap>, LoginRefusal> {
        let Some(names) = &self.names else {
            return Err(LoginRefusal::silent("security without names"));
        };
        let lists_none = list.split(',').any(|method| method == NONE);
        let may_none = matches!(names.need, RequiredProof::Nothing { .. });
        let may_chap = match names.need {
            RequiredProof::Nothing { chap } => !access.users.is_empty() && (chap || !lists_none),
            RequiredProof::User | RequiredProof::Nobody => true,
        };
        keys::choose(list, |method| match method {
            "CHAP" if may_chap => Some(Some(Chap::Start { random: self.random })),
            NONE if may_none => Some(None),
            _ => None,
        })
        .ok_or_else(|| {
            let why = format!("AuthMethod={list}: {} has to use another", names.initiator);
            LoginRefusal::new(status::AUTHENTICATION, why)
        })
    }

    /// Whether the initiator may leave the security stage.
    fn is_authenticated(&self) -> bool {
        match &self.method {
            Some(Some(chap)) => chap.user().is_some(),
            Some(None) | None => self
                .names
                .as_ref()
                .is_some_and(|names| matches!(names.need, RequiredProof::Nothing { .. })),
        }
    }

    /// Checks the rights of the initiator, after it has authenticated.
    fn authorize(&mut self, access: &Access) -> Result<(), LoginRefusal> {
        let Some(names) = &self.names else {
            return Err(LoginRefusal::silent("a login without names"));
        };
        if self.authorized {
            return Ok(());
        }
        let loopback = self.peer.loopback;
        let Some(target) = &names.target else {
            if names.need == RequiredProof::Nobody {
                return Err(forbidden(names, loopback));
            }
            self.authorized = true;
            return Ok(());
        };
        let may =
            |volume: &&String| access.may_use(&names.initiator, self.user(), loopback, volume);
        let Some(volume) = target.volume.as_ref().filter(may) else {
            return Err(forbidden(names, loopback));
        };
        // A connection that joins a session stays with the session.
        let leading = self.is_leading();
        if let Some(address) = access.moved.get(volume).filter(|_| leading) {
            // §13.8: without the portal group tag.
            let address = text::without_group(address);
            let mut answer = ResponseText::default();
            answer.push("TargetAddress", address);
            return Err(LoginRefusal {
                status: Some(status::MOVED),
                text: answer.send().cut(keys::DEFAULT_DATA_SEGMENT as usize),
                reason: format!("volume {volume} has moved to {address}"),
            });
        }
        self.authorized = true;
        Ok(())
    }

    /// Handles text of the operational stage.
    fn operational(
        &mut self,
        config: &Config,
        access: &Access,
        pairs: &[TextPair<'_>],
        transition: StageRequest,
        answer: &mut ResponseText,
    ) -> Result<(), LoginRefusal> {
        self.authorize(access)?;
        let mut own = Vec::new();
        for pair in pairs {
            match keys::key_use(pair.key) {
                Some(KeyUse::Operational) => own.push(*pair),
                key_use => self.common(pair.key, pair.value, key_use, answer)?,
            }
        }
        if self.negotiation.declare(config, answer)
            && let Some(volume) = self.volume()
        {
            answer.push("TargetAlias", &volume);
        }
        self.negotiation.handle(config, &own, answer).map_err(LoginRefusal::initiator)?;
        if transition.transit
            && self.negotiation.is_lacking(config)
            && !self.negotiation.offer(config, answer)
        {
            return Err(LoginRefusal::initiator("the target's offer was not answered"));
        }
        Ok(())
    }

    /// Handles a key that does not belong to the stage.
    fn common(
        &mut self,
        key: &str,
        value: &str,
        key_use: Option<KeyUse>,
        answer: &mut ResponseText,
    ) -> Result<(), LoginRefusal> {
        match key_use {
            Some(KeyUse::Naming) if self.introducing => {}
            Some(KeyUse::Alias) => {
                if key == "InitiatorAlias" {
                    let end = value.floor_char_boundary(text::MAX_VALUE_BYTES);
                    self.alias = value[..end].to_owned();
                }
            }
            None => answer.push(key, NOT_UNDERSTOOD),
            Some(_) => {
                return Err(LoginRefusal::initiator(format!(
                    "{key} is not for stage {}",
                    self.stage
                )));
            }
        }
        Ok(())
    }
}

/// The responses.
impl Login {
    /// Sends the text that fits. If all is sent, goes on to the next stage.
    fn answer(&mut self, config: &Config, transition: StageRequest) -> LoginStep {
        // §13.12: before the full feature phase, data segments are limited to the default.
        let declared = self.negotiation.parameters().initiator_data_segment;
        let text = self.outbox.cut(declared.min(keys::DEFAULT_DATA_SEGMENT) as usize);
        if !self.outbox.is_empty() {
            return LoginStep::Send(self.response(text, true, None));
        }
        match self.next_stage(config, transition) {
            None => LoginStep::Send(self.response(text, false, None)),
            Some(FULL_FEATURE) => {
                self.last_text = text;
                match self.volume() {
                    Some(volume) if self.is_leading() => {
                        self.state = LoginState::Opening;
                        LoginStep::Open { volume }
                    }
                    _ => self.admit(),
                }
            }
            Some(next) => {
                let pdu = self.response(text, false, Some(next));
                self.stage = next;
                LoginStep::Send(pdu)
            }
        }
    }

    /// The stage to go to, if the initiator wants to and may.
    fn next_stage(&self, config: &Config, transition: StageRequest) -> Option<u8> {
        let lacking = self.negotiation.is_lacking(config);
        match self.stage {
            _ if !transition.transit || !self.authorized => None,
            // §6.3.1: a target may choose an earlier stage than the initiator asked for.
            SECURITY if lacking => Some(OPERATIONAL),
            SECURITY => Some(transition.next),
            _ if lacking => None,
            _ => Some(FULL_FEATURE),
        }
    }

    fn admit(&mut self) -> LoginStep {
        let (Some(tags), Some(names)) = (self.tags, &self.names) else {
            return self.refuse(LoginRefusal::silent("a login without names"));
        };
        self.state = LoginState::Admitting;
        LoginStep::Admit {
            identity: Identity {
                initiator: names.initiator.clone(),
                alias: self.alias.clone(),
                isid: tags.isid,
                tsih: tags.tsih,
                cid: tags.cid,
                volume: self.volume(),
                user: self.user().map(str::to_owned),
            },
            parameters: self.negotiation.settle(),
        }
    }

    fn response(&self, text: Bytes, more: bool, next: Option<u8>) -> TextPdu {
        let (isid, tsih) = self.tags.map_or(([0; 6], 0), |tags| (tags.isid, tags.tsih));
        TextPdu {
            response: Response::Login {
                transit: next.is_some(),
                more,
                stage: self.stage,
                next: next.unwrap_or_default(),
                version_max: VERSION,
                version_active: VERSION,
                isid,
                tsih,
                status: status::SUCCESS,
            },
            text,
        }
    }

    /// The initiator, once it has sent its name.
    #[must_use]
    pub fn initiator(&self) -> Option<&str> {
        self.names.as_ref().map(|names| names.initiator.as_str())
    }

    /// Whether the initiator uses CHAP, or has tried to.
    #[must_use]
    pub fn uses_chap(&self) -> bool {
        matches!(self.method, Some(Some(_)))
    }

    /// Refuses an initiator that has failed too often lately. It may come back after `wait`.
    pub fn handle_wait(&mut self, wait: Duration) -> LoginStep {
        let seconds = wait.as_secs() + 1;
        let why = format!("it failed to authenticate too often, and may try again in {seconds} s");
        self.refuse(LoginRefusal::new(status::UNAVAILABLE, why))
    }

    fn refuse(&mut self, refusal: LoginRefusal) -> LoginStep {
        self.state = LoginState::Over;
        let response = refusal.status.map(|code| {
            let mut pdu = self.response(refusal.text, false, None);
            if let Response::Login { status, .. } = &mut pdu.response {
                *status = code;
            }
            pdu
        });
        LoginStep::Fail { response, reason: refusal.reason }
    }

    fn is_leading(&self) -> bool {
        self.tags.is_some_and(|tags| tags.tsih == 0)
    }

    fn volume(&self) -> Option<String> {
        self.names.as_ref()?.target.as_ref()?.volume.clone()
    }

    pub(super) fn user(&self) -> Option<&str> {
        self.method.as_ref()?.as_ref()?.user()
    }
}

/// The refusal of an initiator without rights.
fn forbidden(names: &LoginNames, loopback: bool) -> LoginRefusal {
    let who = &names.initiator;
    match &names.target {
        None => {
            LoginRefusal::new(status::AUTHORIZATION, format!("no volume has a grant for {who}"))
        }
        Some(RequestedTarget { name, volume: None }) if loopback => {
            LoginRefusal::new(status::NOT_FOUND, format!("{name:?} is no target of this host"))
        }
        Some(RequestedTarget { name, volume: None }) => {
            let why = format!("{name:?} is no target of this host, asked for by {who}");
            LoginRefusal::new(status::AUTHORIZATION, why)
        }
        Some(RequestedTarget { volume: Some(volume), .. }) => {
            let why = format!("volume {volume} has no grant for {who} and this CHAP user: add one");
            LoginRefusal::new(status::AUTHORIZATION, why)
        }
    }
}

fn unauthenticated(initiator: &str) -> LoginRefusal {
    let why = format!("{initiator} has to authenticate with CHAP, and did not");
    LoginRefusal::new(status::AUTHENTICATION, why)
}

#[cfg(test)]
mod tests;
