//! The text exchanges of the full feature phase (RFC 7143 §6.4, §11.10, appendix C).
//!
//! A connection in the full feature phase has one [`TextExchange`], and drives it like this:
//!
//! 1. Pass every Text request to [`TextExchange::handle_request`], in the order of their CmdSN.
//! 2. [`TextStep::Send`]: send the PDU with the request's ITT and a StatSN of its own. If
//!    `initiator_data_segment` is there, it limits the data segments that are sent after this PDU.
//! 3. [`TextStep::List`]: ask the shell for the names of all volumes. Pass them to
//!    [`TextExchange::handle_listed`], whose step answers the same request. Requests that come in
//!    between may be passed in: they are rejected (§11.10: one outstanding text request).
//! 4. [`TextStep::Reject`]: send a Reject PDU with that reason and the request's header. The
//!    exchange is over, and its declarations are void.
//!
//! No bytes make an exchange panic or loop. It holds at most [`MAX_REQUEST_BYTES`] of requests and
//! [`MAX_ANSWER_BYTES`] of answers. It knows nothing of sockets, tasks or logins.

use super::access::Access;
use super::config::{Config, PORTAL_GROUP};
use super::identity::{Identity, Peer};
use super::text::{
    MAX_REQUEST_BYTES, NOT_UNDERSTOOD, REJECT, ResponseText, TextError, TextOutbox, TextPdu, parse,
    without_group,
};
use super::{keys, name};
use crate::wire::iscsi::{RESERVED_TAG, RejectReason, Request, RequestHeader, Response};
use std::collections::BTreeSet;

/// Longest answer. SendTargets comes near it with some ten thousand targets. Targets that do not
/// fit are left out.
pub const MAX_ANSWER_BYTES: usize = 1 << 20;

/// The next step of an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextStep {
    /// Send this response.
    Send {
        /// The response.
        pdu: TextPdu,
        /// The MaxRecvDataSegmentLength that the initiator declared in the exchange which ends with
        /// this response.
        initiator_data_segment: Option<u32>,
    },
    /// Answer with [`TextExchange::handle_listed`].
    List,
    /// Send a Reject.
    Reject {
        /// The reason code.
        reason: RejectReason,
        /// The reason for the log.
        why: String,
    },
}

/// The text exchanges of a connection, one at a time.
#[derive(Debug)]
pub struct TextExchange {
    identity: Identity,
    peer: Peer,
    /// Longest data segment that the initiator takes, in bytes.
    limit: u32,
    last_tag: u32,
    running: Option<RunningExchange>,
}

/// An exchange that has begun.
#[derive(Debug)]
struct RunningExchange {
    itt: u32,
    ttt: u32,
    /// The last request had its F bit.
    last: bool,
    /// Bytes of text in the requests so far.
    total: usize,
    inbox: Vec<u8>,
    answer: ResponseText,
    outbox: TextOutbox,
    seen: BTreeSet<String>,
    declared: Option<u32>,
    /// The exchange waits for the names of volumes.
    listing: Option<WantedTargets>,
}

/// The targets that SendTargets asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum WantedTargets {
    All,
    One(String),
}

impl TextExchange {
    /// For a connection of a session. The login declared `initiator_data_segment`, in bytes.
    #[must_use]
    pub fn new(identity: Identity, peer: Peer, initiator_data_segment: u32) -> TextExchange {
        TextExchange { identity, peer, limit: initiator_data_segment, last_tag: 0, running: None }
    }

    /// Handles a Text request with the whole of its data segment.
    pub fn handle_request(
        &mut self,
        config: &Config,
        access: &Access,
        header: &RequestHeader,
        data: &[u8],
    ) -> TextStep {
        let Request::Text { last, more, ttt, .. } = header.request else {
            return reject(RejectReason::ProtocolError, "no text request");
        };
        if self.running.as_ref().is_some_and(|running| running.listing.is_some()) {
            return reject(RejectReason::ProtocolError, "a text request while one is outstanding");
        }
        let mut running = match self.running.take() {
            Some(running) if running.itt == header.itt && running.ttt == ttt => running,
            // §11.10.4: the reserved tag begins a new exchange.
            _ if ttt == RESERVED_TAG => self.begin(header.itt),
            other => {
                self.running = other;
                return reject(
                    RejectReason::InvalidPduField,
                    "a text request with tags that no exchange has",
                );
            }
        };
        if last && more {
            return reject(RejectReason::ProtocolError, "a text request that is last and goes on");
        }
        running.last = last;
        if !running.outbox.is_empty() {
            // §11.11: the request that answers a response with the C bit is empty.
            if more || !data.is_empty() {
                return reject(RejectReason::ProtocolError, "text while the answer goes on");
            }
            return self.send(running);
        }
        running.total += data.len();
        if running.total > MAX_REQUEST_BYTES {
            return reject(RejectReason::LongOperationReject, &TextError::TooLong.to_string());
        }
        running.inbox.extend_from_slice(data);
        if more {
            return self.send(running);
        }
        let text = std::mem::take(&mut running.inbox);
        let pairs = match parse(&text) {
            Ok(pairs) => pairs,
            Err(error) => return reject(RejectReason::ProtocolError, &error.to_string()),
        };
        for pair in pairs {
            if !running.seen.insert(pair.key.to_owned()) {
                let why = format!("{} twice in one exchange", pair.key);
                return reject(RejectReason::ProtocolError, &why);
            }
            match pair.key {
                "SendTargets" => self.send_targets(config, access, &mut running, pair.value),
                "MaxRecvDataSegmentLength" => match keys::data_segment(pair.value) {
                    Some(length) => running.declared = Some(length),
                    None => running.answer.push(pair.key, REJECT),
                },
                // Declarations need no answer.
                "InitiatorAlias" | "X#NodeArchitecture" => {}
                key if keys::is_known(key) => running.answer.push(key, REJECT),
                key => running.answer.push(key, NOT_UNDERSTOOD),
            }
        }
        if running.listing.is_some() {
            self.running = Some(running);
            return TextStep::List;
        }
        running.outbox = std::mem::take(&mut running.answer).send();
        self.send(running)
    }

    /// Takes the names of all volumes, which [`TextStep::List`] asked for.
    pub fn handle_listed(
        &mut self,
        config: &Config,
        access: &Access,
        volumes: &[String],
    ) -> TextStep {
        let Some(mut running) = self.running.take() else {
            return reject(RejectReason::ProtocolError, "volumes that no exchange asked for");
        };
        let Some(wanted) = running.listing.take() else {
            self.running = Some(running);
            return reject(RejectReason::ProtocolError, "volumes that no exchange asked for");
        };
        // If volumes differ only in case, the first one gets the target name.
        let mut named = BTreeSet::new();
        for volume in volumes.iter().chain(access.moved.keys()) {
            let fits = match &wanted {
                WantedTargets::All => true,
                WantedTargets::One(one) => one.eq_ignore_ascii_case(volume),
            };
            if fits && self.may_see(access, volume) && named.insert(name::target_name(volume)) {
                self.add_record(config, access, &mut running.answer, volume);
            }
        }
        running.outbox = std::mem::take(&mut running.answer).send();
        self.send(running)
    }

    fn begin(&mut self, itt: u32) -> RunningExchange {
        self.last_tag = self.last_tag.wrapping_add(1);
        if self.last_tag == RESERVED_TAG {
            self.last_tag = 1;
        }
        RunningExchange {
            itt,
            ttt: self.last_tag,
            last: false,
            total: 0,
            inbox: Vec::new(),
            answer: ResponseText::default(),
            outbox: TextOutbox::default(),
            seen: BTreeSet::new(),
            declared: None,
            listing: None,
        }
    }

    /// SendTargets (appendix C). A discovery session may ask for all targets or for one, a normal
    /// session only for its own.
    fn send_targets(
        &self,
        config: &Config,
        access: &Access,
        running: &mut RunningExchange,
        value: &str,
    ) {
        let own = self.identity.volume.as_deref();
        match (own, value) {
            (None, "All") => running.listing = Some(WantedTargets::All),
            (None, "") | (Some(_), "All") => running.answer.push("SendTargets", REJECT),
            (Some(own), "") => self.add_record(config, access, &mut running.answer, own),
            (own, target) => match (name::normalize(target), own) {
                (Err(_), _) => running.answer.push("SendTargets", REJECT),
                (Ok(target), Some(own)) => {
                    if target == name::target_name(own) {
                        self.add_record(config, access, &mut running.answer, own);
                    }
                }
                (Ok(target), None) => {
                    if let Some(volume) = access.volume_of(&target) {
                        running.listing = Some(WantedTargets::One(volume));
                    }
                }
            },
        }
    }

    fn may_see(&self, access: &Access, volume: &str) -> bool {
        let Identity { initiator, user, .. } = &self.identity;
        name::volume_of(&name::target_name(volume)).is_some()
            && access.may_use(initiator, user.as_deref(), self.peer.loopback, volume)
    }

    /// Adds the record of a target: its name and its addresses.
    fn add_record(
        &self,
        config: &Config,
        access: &Access,
        answer: &mut ResponseText,
        volume: &str,
    ) {
        let mut record = ResponseText::default();
        record.push("TargetName", &name::target_name(volume));
        let addresses = match access.moved.get(volume) {
            Some(address) => vec![without_group(address).to_owned()],
            None => portals(config, &self.peer),
        };
        for address in addresses {
            record.push("TargetAddress", &format!("{address},{PORTAL_GROUP}"));
        }
        if answer.len() + record.len() <= MAX_ANSWER_BYTES {
            answer.append(record);
        }
    }

    /// Sends what fits. The exchange ends if nothing is left and the initiator has no more.
    fn send(&mut self, mut running: RunningExchange) -> TextStep {
        // If the initiator just declared a smaller limit, it holds already.
        let limit = running.declared.unwrap_or(self.limit).min(self.limit);
        let text = running.outbox.cut(limit as usize);
        let more = !running.outbox.is_empty();
        let last = running.last && !more;
        let ttt = if last { RESERVED_TAG } else { running.ttt };
        let response = Response::Text { last, more, lun: 0, ttt };
        let mut initiator_data_segment = None;
        if last {
            initiator_data_segment = running.declared;
            self.limit = running.declared.unwrap_or(self.limit);
        } else {
            self.running = Some(running);
        }
        TextStep::Send { pdu: TextPdu { response, text }, initiator_data_segment }
    }
}

fn reject(reason: RejectReason, why: &str) -> TextStep {
    TextStep::Reject { reason, why: why.to_owned() }
}

/// The addresses of this target, for an initiator that connected to `peer.portal`.
fn portals(config: &Config, peer: &Peer) -> Vec<String> {
    let reached = host_of(&peer.portal);
    let mut portals = Vec::new();
    for portal in &config.portals {
        let (host, rest) = portal.split_at(host_of(portal).len());
        let portal = match host {
            "0.0.0.0" | "[::]" | "*" | "" => format!("{reached}{rest}"),
            _ => portal.clone(),
        };
        if !portals.contains(&portal) {
            portals.push(portal);
        }
    }
    if portals.is_empty() {
        portals.push(peer.portal.clone());
    }
    portals
}

/// The part of an address before the port.
fn host_of(address: &str) -> &str {
    match address.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => host,
        _ => address,
    }
}

#[cfg(test)]
pub(super) mod tests;
