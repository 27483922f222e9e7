//! The login phase of a connection (RFC 7143 §6.3, §11.12, §12, §13): from the first request to the
//! full feature phase, or to the refusal.
//!
//! A connection drives a [`Login`] so: every PDU that arrives goes to [`Login::handle_request`] with
//! the whole of its data segment; the [`Step`] says what to send or to find out. While a step waits
//! for an answer, no request is handed in. After [`Step::Done`] and [`Step::Fail`] the machine is
//! used up. Numbers (StatSN, CmdSN) are the connection's; time is, too (`login_limit`).
//!
//! What an initiator learns before it has authenticated, decided here:
//!
//! - Off loopback, a target that does not exist and one that the initiator has no grant for are
//!   refused alike: authorisation failure (0202), and the log says which it was. Where there are CHAP
//!   users, both are refused only after the initiator has authenticated as one of them, so that who
//!   has no secret (0201) cannot tell a target with a grant that asks for CHAP from one that does not
//!   exist. A name with a grant that asks for nothing is let in, and thereby told.
//! - On loopback, where a volume without grants may be used, 0203 says that there is none.
//! - Whether a volume can be opened, whether it has moved and its alias are told after that only.
//!
//! Of the methods that an initiator lists, the first that it may use counts (§6.2.1), and CHAP is for
//! initiators that are set up for it: where no grant of the initiator names a user, `CHAP,None` is
//! answered `None`, since there are initiators that list both without having a secret.
//!
//! It promises: no bytes make it panic or loop; it holds at most [`text::MAX_REQUEST_BYTES`] of what
//! came, and a small multiple of that in answers; it ends after [`MAX_REQUESTS`] requests. It must
//! not know sockets or sessions.

use super::access::Need;
use super::chap::{self, Chap};
use super::keys::{self, Negotiation, Place};
use super::text::{self, Answer, NONE, NOT_UNDERSTOOD, Outbox, Pair};
use super::{Access, Config, Identity, PORTAL_GROUP, Parameters, Peer, TextPdu, name};
use crate::wire::iscsi::{Request, RequestHeader, Response};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::time::Duration;

/// Most requests of a login. The longest honest one has eight, and some more for long texts.
pub const MAX_REQUESTS: u32 = 64;

/// The only version of the protocol there is (§11.12.4).
const VERSION: u8 = 0;

const SECURITY: u8 = 0;
const OPERATIONAL: u8 = 1;
const FULL_FEATURE: u8 = 3;

/// Statuses of a login response: class and detail (§11.13.5).
pub mod status {
    /// All is well.
    pub const SUCCESS: u16 = 0x0000;
    /// The target is elsewhere for a while; the text has its address.
    pub const MOVED: u16 = 0x0101;
    /// The initiator breaks the protocol.
    pub const INITIATOR_ERROR: u16 = 0x0200;
    /// The initiator is not who it says, or does not say it.
    pub const AUTHENTICATION: u16 = 0x0201;
    /// The initiator may not use the target.
    pub const AUTHORISATION: u16 = 0x0202;
    /// There is no such target.
    pub const NOT_FOUND: u16 = 0x0203;
    /// The target was removed and has no new address.
    pub const REMOVED: u16 = 0x0204;
    /// No version that both speak.
    pub const VERSION: u16 = 0x0205;
    /// Too many connections in the session.
    pub const TOO_MANY_CONNECTIONS: u16 = 0x0206;
    /// InitiatorName or TargetName is missing.
    pub const MISSING_PARAMETER: u16 = 0x0207;
    /// The session cannot have this connection.
    pub const CANNOT_INCLUDE: u16 = 0x0208;
    /// Neither a normal nor a discovery session.
    pub const SESSION_TYPE: u16 = 0x0209;
    /// The session to join is not there.
    pub const NO_SESSION: u16 = 0x020a;
    /// A PDU that is none of a login.
    pub const INVALID_REQUEST: u16 = 0x020b;
    /// The target failed.
    pub const TARGET_ERROR: u16 = 0x0300;
    /// The target cannot serve just now.
    pub const UNAVAILABLE: u16 = 0x0301;
    /// The target has no room.
    pub const NO_RESOURCES: u16 = 0x0302;
}

/// What a login wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Send this login response, then take the next request.
    Send(TextPdu),
    /// Answer with [`Login::handle_opened`]; no request is taken until then.
    Open {
        /// The volume that the initiator wants to log in to. Spelled as [`Access`] spells it; one that
        /// is not there, as the initiator does, who may have folded it to lower case.
        volume: String,
    },
    /// All is agreed but whether the session may be: answer with [`Login::handle_admitted`]. Rights
    /// that changed while the volume was opened are for the one who answers to see
    /// ([`Access::may_use`]).
    Admit {
        /// Who wants in.
        identity: Identity,
        /// Parameters; of a connection that joins a session, those of the session count.
        parameters: Parameters,
    },
    /// Send this last response; the connection is in the full feature phase.
    Done(TextPdu),
    /// Send this response, if any, and close.
    Fail {
        /// The refusal; none where the initiator cannot be told.
        response: Option<TextPdu>,
        /// For the log.
        reason: String,
    },
}

/// A login that does not go on.
#[derive(Debug)]
struct Refusal {
    /// `None`: the connection is closed without a word.
    status: Option<u16>,
    text: Bytes,
    reason: String,
}

impl Refusal {
    fn new(status: u16, reason: impl Into<String>) -> Refusal {
        Refusal { status: Some(status), text: Bytes::new(), reason: reason.into() }
    }

    fn silent(reason: impl Into<String>) -> Refusal {
        Refusal { status: None, text: Bytes::new(), reason: reason.into() }
    }

    fn initiator(reason: impl Into<String>) -> Refusal {
        Refusal::new(status::INITIATOR_ERROR, reason)
    }
}

impl From<chap::Failure> for Refusal {
    fn from(failure: chap::Failure) -> Refusal {
        match failure {
            chap::Failure::Protocol(why) => Refusal::initiator(why),
            chap::Failure::Authentication(why) => Refusal::new(status::AUTHENTICATION, why),
            chap::Failure::Reflection => {
                Refusal::silent("the initiator plays the target's own CHAP challenge back")
            }
        }
    }
}

/// What all requests of a login have in common (§11.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tags {
    isid: [u8; 6],
    tsih: u16,
    cid: u16,
    itt: u32,
}

/// What a request wants, once its header is judged.
#[derive(Clone, Copy, Debug)]
struct Wish {
    transit: bool,
    more: bool,
    next: u8,
}

/// Where the login is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Talking,
    Opening,
    Admitting,
    Over,
}

/// What is known after the first text.
#[derive(Debug)]
struct Names {
    initiator: String,
    /// `None`: discovery.
    target: Option<Target>,
    need: Need,
}

/// The target asked for.
#[derive(Debug)]
struct Target {
    name: String,
    volume: Option<String>,
}

/// A connection that logs in.
#[derive(Debug)]
pub struct Login {
    peer: Peer,
    random: [u8; 32],
    state: State,
    requests: u32,
    /// Text that came, in bytes.
    total: usize,
    tags: Option<Tags>,
    /// From the request that is being answered, for refusals.
    stage: u8,
    inbox: Vec<u8>,
    outbox: Outbox,
    /// Keys that came.
    seen: BTreeSet<String>,
    names: Option<Names>,
    /// The text that is being answered is the first.
    introducing: bool,
    alias: String,
    /// AuthMethod was negotiated, to this: `Some(None)` is the method `None`.
    method: Option<Option<Chap>>,
    /// The initiator may have what it wants, and here.
    cleared: bool,
    negotiation: Negotiation,
    /// The last piece of text, of the response that ends the login.
    last_text: Bytes,
}

impl Login {
    /// A fresh connection; `random` is used for the challenge and nothing else.
    #[must_use]
    pub fn new(_config: &Config, peer: &Peer, random: [u8; 32]) -> Login {
        Login {
            peer: peer.clone(),
            random,
            state: State::Talking,
            requests: 0,
            total: 0,
            tags: None,
            stage: SECURITY,
            inbox: Vec::new(),
            outbox: Outbox::default(),
            seen: BTreeSet::new(),
            names: None,
            introducing: false,
            alias: String::new(),
            method: None,
            cleared: false,
            negotiation: Negotiation::new(false, true),
            last_text: Bytes::new(),
        }
    }

    /// A PDU arrived, with its data segment.
    pub fn handle_request(
        &mut self,
        config: &Config,
        access: &Access,
        header: &RequestHeader,
        data: &[u8],
    ) -> Step {
        let step = if self.state == State::Talking {
            self.request(config, access, header, data)
        } else {
            Err(Refusal::silent("a request before the last one was answered"))
        };
        step.unwrap_or_else(|refusal| self.refuse(refusal))
    }

    /// Whether the volume can be had: `Err` has the status (class and detail) and why.
    pub fn handle_opened(&mut self, result: Result<(), (u16, String)>) -> Step {
        if self.state != State::Opening {
            return self
                .refuse(Refusal::silent("a volume was opened that the login did not ask for"));
        }
        match result {
            Ok(()) => self.admit(),
            Err((status, why)) => self.refuse(Refusal::new(status, why)),
        }
    }

    /// The session's TSIH and parameters, or the status (class and detail) and why not.
    pub fn handle_admitted(&mut self, result: Result<(u16, Parameters), (u16, String)>) -> Step {
        if self.state != State::Admitting {
            return self
                .refuse(Refusal::silent("a session was admitted that the login did not ask for"));
        }
        match result {
            Ok((tsih, _)) => {
                self.state = State::Over;
                let text = std::mem::take(&mut self.last_text);
                let mut pdu = self.response(text, false, Some(FULL_FEATURE));
                if let Response::Login { tsih: field, .. } = &mut pdu.response {
                    *field = tsih;
                }
                Step::Done(pdu)
            }
            Err((status, why)) => self.refuse(Refusal::new(status, why)),
        }
    }

    fn request(
        &mut self,
        config: &Config,
        access: &Access,
        header: &RequestHeader,
        data: &[u8],
    ) -> Result<Step, Refusal> {
        let wish = self.judge(header, data)?;
        if !self.outbox.is_empty() {
            // §11.13.2: what answers a response with the C bit is empty.
            if wish.more || !data.is_empty() {
                return Err(Refusal::initiator("text while the answer goes on"));
            }
            return Ok(self.answer(config, wish));
        }
        self.total += data.len();
        if self.total > text::MAX_REQUEST_BYTES {
            return Err(Refusal::initiator(text::TextError::TooLong.to_string()));
        }
        self.inbox.extend_from_slice(data);
        if wish.more {
            return Ok(Step::Send(self.response(Bytes::new(), false, None)));
        }
        let text = std::mem::take(&mut self.inbox);
        let pairs = text::parse(&text).map_err(|error| Refusal::initiator(error.to_string()))?;
        for pair in &pairs {
            // §6.3: a key once in a login.
            if !self.seen.insert(pair.key.to_owned()) {
                return Err(Refusal::initiator(format!("{} twice in one login", pair.key)));
            }
        }
        let mut answer = Answer::default();
        self.introducing = self.names.is_none();
        if self.introducing {
            self.meet(access, &pairs, &mut answer)?;
        }
        match self.stage {
            SECURITY => self.security(config, access, &pairs, wish, &mut answer)?,
            _ => self.operational(config, access, &pairs, wish, &mut answer)?,
        }
        self.outbox = answer.send();
        Ok(self.answer(config, wish))
    }

    /// The header against the rules of the phase.
    fn judge(&mut self, header: &RequestHeader, data: &[u8]) -> Result<Wish, Refusal> {
        let Request::Login { transit, more, stage, next, version_min, isid, tsih, cid, .. } =
            header.request
        else {
            // §6.3: on a fresh connection there is nobody to tell.
            return Err(match self.tags {
                None => Refusal::silent("the first PDU is no login request"),
                Some(_) => Refusal::new(status::INVALID_REQUEST, "a PDU that is no login request"),
            });
        };
        let tags = Tags { isid, tsih, cid, itt: header.itt };
        let first = self.tags.is_none();
        let known = *self.tags.get_or_insert(tags);
        let before = std::mem::replace(&mut self.stage, stage);
        if version_min > VERSION {
            let why = format!("the initiator speaks version {version_min} and newer");
            return Err(Refusal::new(status::VERSION, why));
        }
        self.requests += 1;
        if self.requests > MAX_REQUESTS {
            return Err(Refusal::initiator("a login without end"));
        }
        if known != tags {
            return Err(Refusal::initiator("ISID, TSIH, CID or task tag changed within the login"));
        }
        if header.ahs_bytes != 0 {
            return Err(Refusal::initiator("a login request with an additional header segment"));
        }
        if data.len() > keys::DEFAULT_DATA_SEGMENT as usize {
            return Err(Refusal::initiator("a login request of more than 8192 bytes"));
        }
        if first && stage > OPERATIONAL || !first && stage != before {
            return Err(Refusal::initiator(format!("stage {stage} at the wrong time")));
        }
        if transit && more {
            return Err(Refusal::initiator("a request that goes on and wants to leave the stage"));
        }
        if transit && (next <= stage || next != OPERATIONAL && next != FULL_FEATURE) {
            return Err(Refusal::initiator(format!("from stage {stage} to stage {next}")));
        }
        Ok(Wish { transit, more, next })
    }

    /// The first text: who wants what.
    fn meet(
        &mut self,
        access: &Access,
        pairs: &[Pair<'_>],
        answer: &mut Answer,
    ) -> Result<(), Refusal> {
        let find = |key: &str| pairs.iter().find(|pair| pair.key == key).map(|pair| pair.value);
        let missing = |key: &str| {
            Refusal::new(status::MISSING_PARAMETER, format!("the first request has no {key}"))
        };
        let initiator = find("InitiatorName").ok_or_else(|| missing("InitiatorName"))?;
        let initiator = name::normalise(initiator)
            .map_err(|error| Refusal::initiator(format!("InitiatorName: {error}")))?;
        let discovery = match find("SessionType") {
            None | Some("Normal") => false,
            Some("Discovery") => true,
            Some(other) => {
                return Err(Refusal::new(status::SESSION_TYPE, format!("SessionType={other:?}")));
            }
        };
        let leading = self.is_leading();
        if discovery && !leading {
            let why = "a discovery session has one connection";
            return Err(Refusal::new(status::CANNOT_INCLUDE, why));
        }
        let loopback = self.peer.loopback;
        let (target, need) = if discovery {
            (None, access.need_for_discovery(&initiator, loopback))
        } else {
            let asked = find("TargetName").ok_or_else(|| missing("TargetName"))?;
            let volume = access.volume_of(asked);
            let need = match &volume {
                Some(volume) => access.need(&initiator, loopback, volume),
                None => Need::Nobody,
            };
            // §13.9.
            answer.push("TargetPortalGroupTag", &PORTAL_GROUP.to_string());
            (Some(Target { name: asked.to_owned(), volume }), need)
        };
        let names = Names { initiator, target, need };
        if names.need == Need::Nobody && (loopback || access.users.is_empty()) {
            return Err(forbidden(&names, loopback));
        }
        if names.need == Need::User && access.users.is_empty() {
            // As where there is no grant: nothing can be shown here that would tell more.
            let why = "the grants name CHAP users, and there are none: configure them";
            return Err(Refusal::new(status::AUTHORISATION, why));
        }
        // Whoever starts here skips security (§6.3.1).
        if self.stage == OPERATIONAL && !matches!(names.need, Need::Nothing { .. }) {
            return Err(unauthenticated(&names.initiator));
        }
        self.negotiation = Negotiation::new(discovery, leading);
        self.names = Some(names);
        Ok(())
    }

    /// Text of the security stage.
    fn security(
        &mut self,
        config: &Config,
        access: &Access,
        pairs: &[Pair<'_>],
        wish: Wish,
        answer: &mut Answer,
    ) -> Result<(), Refusal> {
        let mut keys = chap::Keys::default();
        let mut method = None;
        for pair in pairs {
            match (pair.key, keys::place(pair.key)) {
                ("AuthMethod", _) => method = Some(pair.value),
                ("CHAP_A", _) => keys.algorithms = Some(pair.value),
                ("CHAP_I", _) => keys.id = Some(pair.value),
                ("CHAP_C", _) => keys.challenge = Some(pair.value),
                ("CHAP_N", _) => keys.name = Some(pair.value),
                ("CHAP_R", _) => keys.response = Some(pair.value),
                (key, place) => self.common(key, pair.value, place, answer)?,
            }
        }
        let has_keys = keys != chap::Keys::default();
        if let Some(list) = method {
            if has_keys {
                return Err(Refusal::initiator("CHAP keys before AuthMethod is settled"));
            }
            self.method = Some(self.choose_method(access, list)?);
            answer.push(
                "AuthMethod",
                if matches!(self.method, Some(Some(_))) { "CHAP" } else { NONE },
            );
        } else if has_keys {
            let Some(Some(chap)) = &mut self.method else {
                return Err(Refusal::initiator("CHAP keys without AuthMethod=CHAP"));
            };
            chap.handle(config, access, keys, answer)?;
        } else if wish.transit && !self.is_authenticated() {
            let who = self.names.as_ref().map_or("", |names| &names.initiator);
            return Err(unauthenticated(who));
        }
        if self.is_authenticated() && (wish.transit || self.user().is_some()) {
            self.clear(access)?;
        }
        Ok(())
    }

    /// The method for an initiator's list; `None` for the one of that name.
    fn choose_method(&self, access: &Access, list: &str) -> Result<Option<Chap>, Refusal> {
        let Some(names) = &self.names else {
            return Err(Refusal::silent("security without names"));
        };
        let lists_none = list.split(',').any(|method| method == NONE);
        let may_none = matches!(names.need, Need::Nothing { .. });
        let may_chap = match names.need {
            Need::Nothing { chap } => !access.users.is_empty() && (chap || !lists_none),
            Need::User | Need::Nobody => true,
        };
        keys::choose(list, |method| match method {
            "CHAP" if may_chap => Some(Some(Chap::Start { random: self.random })),
            NONE if may_none => Some(None),
            _ => None,
        })
        .ok_or_else(|| {
            let why = format!("AuthMethod={list}: {} has to use another", names.initiator);
            Refusal::new(status::AUTHENTICATION, why)
        })
    }

    /// Whether the initiator has done what is needed to leave the security stage.
    fn is_authenticated(&self) -> bool {
        match &self.method {
            Some(Some(chap)) => chap.user().is_some(),
            Some(None) | None => {
                self.names.as_ref().is_some_and(|names| matches!(names.need, Need::Nothing { .. }))
            }
        }
    }

    /// Whether the initiator, now that it has authenticated, may have what it wants here.
    fn clear(&mut self, access: &Access) -> Result<(), Refusal> {
        let Some(names) = &self.names else {
            return Err(Refusal::silent("a login without names"));
        };
        if self.cleared {
            return Ok(());
        }
        let loopback = self.peer.loopback;
        let Some(target) = &names.target else {
            if names.need == Need::Nobody {
                return Err(forbidden(names, loopback));
            }
            self.cleared = true;
            return Ok(());
        };
        let may =
            |volume: &&String| access.may_use(&names.initiator, self.user(), loopback, volume);
        let Some(volume) = target.volume.as_ref().filter(may) else {
            return Err(forbidden(names, loopback));
        };
        // A connection that joins a session goes where the session is.
        let leading = self.is_leading();
        if let Some(address) = access.moved.get(volume).filter(|_| leading) {
            // §13.8: here without the portal group tag.
            let address = text::without_group(address);
            let mut answer = Answer::default();
            answer.push("TargetAddress", address);
            return Err(Refusal {
                status: Some(status::MOVED),
                text: answer.send().cut(keys::DEFAULT_DATA_SEGMENT as usize),
                reason: format!("volume {volume} has moved to {address}"),
            });
        }
        self.cleared = true;
        Ok(())
    }

    /// Text of the operational stage.
    fn operational(
        &mut self,
        config: &Config,
        access: &Access,
        pairs: &[Pair<'_>],
        wish: Wish,
        answer: &mut Answer,
    ) -> Result<(), Refusal> {
        self.clear(access)?;
        let mut own = Vec::new();
        for pair in pairs {
            match keys::place(pair.key) {
                Some(Place::Operational) => own.push(*pair),
                place => self.common(pair.key, pair.value, place, answer)?,
            }
        }
        if self.negotiation.declare(config, answer)
            && let Some(volume) = self.volume()
        {
            answer.push("TargetAlias", &volume);
        }
        self.negotiation.handle(config, &own, answer).map_err(Refusal::initiator)?;
        if wish.transit
            && self.negotiation.is_lacking(config)
            && !self.negotiation.offer(config, answer)
        {
            return Err(Refusal::initiator("the target's offer was not answered"));
        }
        Ok(())
    }

    /// Keys that are not the stage's own.
    fn common(
        &mut self,
        key: &str,
        value: &str,
        place: Option<Place>,
        answer: &mut Answer,
    ) -> Result<(), Refusal> {
        match place {
            Some(Place::Naming) if self.introducing => {}
            Some(Place::Alias) => {
                if key == "InitiatorAlias" {
                    let end = value.floor_char_boundary(text::MAX_VALUE_BYTES);
                    self.alias = value[..end].to_owned();
                }
            }
            None => answer.push(key, NOT_UNDERSTOOD),
            Some(_) => {
                return Err(Refusal::initiator(format!("{key} is not for stage {}", self.stage)));
            }
        }
        Ok(())
    }
}

/// What is sent.
impl Login {
    /// Answers with what fits, and goes on to the next stage if all is said.
    fn answer(&mut self, config: &Config, wish: Wish) -> Step {
        // §13.12: until the full feature phase no side has to take more than the default.
        let declared = self.negotiation.parameters().initiator_data_segment;
        let text = self.outbox.cut(declared.min(keys::DEFAULT_DATA_SEGMENT) as usize);
        if !self.outbox.is_empty() {
            return Step::Send(self.response(text, true, None));
        }
        match self.next_stage(config, wish) {
            None => Step::Send(self.response(text, false, None)),
            Some(FULL_FEATURE) => {
                self.last_text = text;
                match self.volume() {
                    Some(volume) if self.is_leading() => {
                        self.state = State::Opening;
                        Step::Open { volume }
                    }
                    _ => self.admit(),
                }
            }
            Some(next) => {
                let pdu = self.response(text, false, Some(next));
                self.stage = next;
                Step::Send(pdu)
            }
        }
    }

    /// The stage to go to, if the initiator wants to and may.
    fn next_stage(&self, config: &Config, wish: Wish) -> Option<u8> {
        let lacking = self.negotiation.is_lacking(config);
        match self.stage {
            _ if !wish.transit || !self.cleared => None,
            // §6.3.1: a target may go less far than it is asked to.
            SECURITY if lacking => Some(OPERATIONAL),
            SECURITY => Some(wish.next),
            _ if lacking => None,
            _ => Some(FULL_FEATURE),
        }
    }

    fn admit(&mut self) -> Step {
        let (Some(tags), Some(names)) = (self.tags, &self.names) else {
            return self.refuse(Refusal::silent("a login without names"));
        };
        self.state = State::Admitting;
        Step::Admit {
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

    /// Who logs in, once it has said so.
    #[must_use]
    pub fn initiator(&self) -> Option<&str> {
        self.names.as_ref().map(|names| names.initiator.as_str())
    }

    /// Whether it authenticates with CHAP, or has tried to.
    #[must_use]
    pub fn uses_chap(&self) -> bool {
        matches!(self.method, Some(Some(_)))
    }

    /// The initiator has failed too often lately: it is told to come back later.
    pub fn handle_wait(&mut self, wait: Duration) -> Step {
        let seconds = wait.as_secs() + 1;
        let why = format!("it failed to authenticate too often, and may try again in {seconds} s");
        self.refuse(Refusal::new(status::UNAVAILABLE, why))
    }

    fn refuse(&mut self, refusal: Refusal) -> Step {
        self.state = State::Over;
        let response = refusal.status.map(|code| {
            let mut pdu = self.response(refusal.text, false, None);
            if let Response::Login { status, .. } = &mut pdu.response {
                *status = code;
            }
            pdu
        });
        Step::Fail { response, reason: refusal.reason }
    }

    fn is_leading(&self) -> bool {
        self.tags.is_some_and(|tags| tags.tsih == 0)
    }

    fn volume(&self) -> Option<String> {
        self.names.as_ref()?.target.as_ref()?.volume.clone()
    }

    fn user(&self) -> Option<&str> {
        self.method.as_ref()?.as_ref()?.user()
    }
}

/// There is nothing for this initiator here.
fn forbidden(names: &Names, loopback: bool) -> Refusal {
    let who = &names.initiator;
    match &names.target {
        None => Refusal::new(status::AUTHORISATION, format!("no volume has a grant for {who}")),
        Some(Target { name, volume: None }) if loopback => {
            Refusal::new(status::NOT_FOUND, format!("{name:?} is no target of this host"))
        }
        Some(Target { name, volume: None }) => {
            let why = format!("{name:?} is no target of this host, asked for by {who}");
            Refusal::new(status::AUTHORISATION, why)
        }
        Some(Target { volume: Some(volume), .. }) => {
            let why = format!("volume {volume} has no grant for {who} and this CHAP user: add one");
            Refusal::new(status::AUTHORISATION, why)
        }
    }
}

fn unauthenticated(initiator: &str) -> Refusal {
    let why = format!("{initiator} has to authenticate with CHAP, and did not");
    Refusal::new(status::AUTHENTICATION, why)
}

#[cfg(test)]
mod tests;
