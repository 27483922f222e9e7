//! Text of login and text requests: its grammar (RFC 7143 §6.1), its way over several PDUs
//! (§6.2), and the text exchange of the full feature phase (§6.4, §11.10, appendix C).
//!
//! How a connection drives an [`Exchange`]; there is one per connection in the full feature phase:
//!
//! 1. Every Text request goes to [`Exchange::handle_request`], in the order of their CmdSN.
//! 2. [`Step::Send`]: send the PDU with the request's ITT and a StatSN of its own. If
//!    `initiator_data_segment` is there, data segments sent after this PDU keep to it.
//! 3. [`Step::List`]: ask the shell for the names of all volumes, then give them to
//!    [`Exchange::handle_listed`], whose step answers the same request. Requests that come in between
//!    may be handed in: they are rejected (§11.10: one outstanding text request).
//! 4. [`Step::Reject`]: send a Reject PDU with that reason and the request's header; the exchange is
//!    over and nothing that it declared holds.
//!
//! It promises: no bytes make it panic or loop; it holds at most [`MAX_REQUEST_BYTES`] of what came
//! and [`MAX_ANSWER_BYTES`] of what goes. It must not know sockets, tasks or logins.

use super::{Access, Config, Identity, PORTAL_GROUP, Peer, TextPdu, keys, name};
use crate::wire::iscsi::{RESERVED_TAG, RejectReason, Request, RequestHeader, Response};
use bytes::Bytes;
use std::collections::BTreeSet;

/// Most text of one exchange, or of a login. §6.2 asks for 8192 bytes at least, not counting what
/// authentication methods with longer keys need; CHAP has none.
pub const MAX_REQUEST_BYTES: usize = 16 << 10;

/// Longest answer. Only that of SendTargets can come near it, with some ten thousand targets; those
/// that do not fit are left out.
pub const MAX_ANSWER_BYTES: usize = 1 << 20;

/// Longest simple value, in bytes (§6.1).
pub const MAX_VALUE_BYTES: usize = 255;

/// Longest name of a key, in bytes (§6.1).
pub const MAX_KEY_BYTES: usize = 63;

/// Answer to a key that is not known.
pub const NOT_UNDERSTOOD: &str = "NotUnderstood";
/// Answer to a value that cannot be.
pub const REJECT: &str = "Reject";
/// Answer to a key that has no meaning here.
pub const IRRELEVANT: &str = "Irrelevant";
/// The option of a list that is none of the others.
pub const NONE: &str = "None";

/// How text breaks the grammar.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// The last pair has no null after it.
    #[error("the text does not end with a null")]
    Unterminated,
    /// No `=`.
    #[error("a pair of the text has no `=`")]
    NoSeparator,
    /// Not the name of a key.
    #[error("{0:?} is no name of a key")]
    KeyName(String),
    /// Not UTF-8, or with characters that values do not have.
    #[error("the value of {0} is not text")]
    Value(String),
    /// More than [`MAX_REQUEST_BYTES`].
    #[error("more than {MAX_REQUEST_BYTES} bytes of text")]
    TooLong,
}

/// A key and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair<'a> {
    /// Name of the key: a letter, then letters, digits and `.-+@_#`. (§6.1 wants a capital letter, and
    /// RFC 7144 then has iSCSIProtocolLevel.)
    pub key: &'a str,
    /// The value, without control characters.
    pub value: &'a str,
}

/// The pairs of a text.
///
/// Nulls after the last pair are let pass, since there are initiators that count padding as data.
///
/// # Errors
/// Where the text breaks the grammar.
pub fn parse(text: &[u8]) -> Result<Vec<Pair<'_>>, TextError> {
    let Some(end) = text.iter().rposition(|b| *b != 0) else { return Ok(Vec::new()) };
    if end + 1 == text.len() {
        return Err(TextError::Unterminated);
    }
    text[..=end].split(|b| *b == 0).map(parse_pair).collect()
}

fn parse_pair(pair: &[u8]) -> Result<Pair<'_>, TextError> {
    let at = pair.iter().position(|b| *b == b'=').ok_or(TextError::NoSeparator)?;
    let (key, value) = (&pair[..at], &pair[at + 1..]);
    let show = || String::from_utf8_lossy(&key[..key.len().min(MAX_KEY_BYTES)]).into_owned();
    let good = key.len() <= MAX_KEY_BYTES
        && key.first().is_some_and(u8::is_ascii_alphabetic)
        && key.iter().all(|b| b.is_ascii_alphanumeric() || b".-+@_#".contains(b));
    let key = std::str::from_utf8(key).ok().filter(|_| good);
    let key = key.ok_or_else(|| TextError::KeyName(show()))?;
    match std::str::from_utf8(value) {
        Ok(value) if !value.contains(char::is_control) => Ok(Pair { key, value }),
        _ => Err(TextError::Value(key.to_owned())),
    }
}

/// A numerical value (§6.1): decimal without leading zeros, or hexadecimal after `0x`; below 2^64.
#[must_use]
pub fn number(value: &str) -> Option<u64> {
    if value.len() > MAX_VALUE_BYTES {
        return None;
    }
    if let Some(digits) = after(value, b'x') {
        let good = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
        return u64::from_str_radix(digits, 16).ok().filter(|_| good);
    }
    let good =
        value.bytes().all(|b| b.is_ascii_digit()) && (value == "0" || !value.starts_with('0'));
    value.parse().ok().filter(|_| good)
}

/// A binary value (§6.1) of at most `limit` bytes: hexadecimal after `0x`, base64 after `0b`.
/// An odd number of hexadecimal digits means a leading zero.
#[must_use]
pub fn binary(value: &str, limit: usize) -> Option<Vec<u8>> {
    if let Some(digits) = after(value, b'x') {
        if digits.is_empty() || digits.len().div_ceil(2) > limit {
            return None;
        }
        let nibbles: Option<Vec<u8>> =
            digits.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect();
        let nibbles = nibbles?;
        let (head, rest) = nibbles.split_at(nibbles.len() % 2);
        let pairs = rest.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]);
        return Some(head.iter().copied().chain(pairs).collect());
    }
    let digits = after(value, b'b')?;
    if digits.is_empty() || !digits.len().is_multiple_of(4) || digits.len() / 4 * 3 > limit + 2 {
        return None;
    }
    let bare = digits.strip_suffix("==").or_else(|| digits.strip_suffix('=')).unwrap_or(digits);
    let mut bytes = Vec::with_capacity(bare.len() / 4 * 3 + 2);
    let (mut bits, mut held) = (0u32, 0);
    for digit in bare.bytes() {
        let six = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(six);
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
            bits &= (1 << held) - 1;
        }
    }
    // RFC 4648 §3.5: the bits that pad the last digit are zero.
    (bits == 0 && bytes.len() <= limit).then_some(bytes)
}

/// What follows `0x` or `0b`, in either case.
fn after(value: &str, mark: u8) -> Option<&str> {
    let (prefix, digits) = value.split_at_checked(2)?;
    let prefix = prefix.as_bytes();
    (prefix[0] == b'0' && prefix[1].eq_ignore_ascii_case(&mark)).then_some(digits)
}

/// Bytes as a hexadecimal constant.
pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold("0x".to_owned(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Text on its way out.
#[derive(Clone, Debug, Default)]
pub(super) struct Answer(Vec<u8>);

impl Answer {
    /// Adds a pair.
    pub(super) fn push(&mut self, key: &str, value: &str) {
        for part in [key, "=", value, "\0"] {
            self.0.extend_from_slice(part.as_bytes());
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whatever was said, in `Outbox`'s hands.
    pub(super) fn send(self) -> Outbox {
        Outbox(Bytes::from(self.0))
    }
}

/// Text that goes out in pieces.
#[derive(Clone, Debug, Default)]
pub(super) struct Outbox(Bytes);

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next piece; there is more where the outbox is not empty after it.
    pub(super) fn cut(&mut self, limit: usize) -> Bytes {
        self.0.split_to(self.0.len().min(limit))
    }
}

/// What a text request leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Send this response.
    Send {
        /// The response.
        pdu: TextPdu,
        /// What the initiator declared in the exchange that ends with this response.
        initiator_data_segment: Option<u32>,
    },
    /// Answer with [`Exchange::handle_listed`].
    List,
    /// Send a Reject.
    Reject {
        /// Its reason.
        reason: RejectReason,
        /// For the log.
        why: String,
    },
}

/// The text exchanges of a connection, one at a time.
#[derive(Debug)]
pub struct Exchange {
    identity: Identity,
    peer: Peer,
    /// What the initiator takes in a data segment.
    limit: u32,
    last_tag: u32,
    running: Option<Running>,
}

/// An exchange that has begun.
#[derive(Debug)]
struct Running {
    itt: u32,
    ttt: u32,
    /// The last request had its F bit.
    last: bool,
    /// Text came in this exchange, in bytes.
    total: usize,
    inbox: Vec<u8>,
    answer: Answer,
    outbox: Outbox,
    seen: BTreeSet<String>,
    declared: Option<u32>,
    /// Names of volumes are awaited.
    listing: Option<Wanted>,
}

/// What of the list of volumes is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Wanted {
    All,
    One(String),
}

impl Exchange {
    /// For a connection of a session; `initiator_data_segment` as the login declared it, in bytes.
    #[must_use]
    pub fn new(identity: Identity, peer: Peer, initiator_data_segment: u32) -> Exchange {
        Exchange { identity, peer, limit: initiator_data_segment, last_tag: 0, running: None }
    }

    /// A Text request arrived, with the whole of its data segment.
    pub fn handle_request(
        &mut self,
        config: &Config,
        access: &Access,
        header: &RequestHeader,
        data: &[u8],
    ) -> Step {
        let Request::Text { last, more, ttt, .. } = header.request else {
            return reject(RejectReason::ProtocolError, "no text request");
        };
        if self.running.as_ref().is_some_and(|running| running.listing.is_some()) {
            return reject(RejectReason::ProtocolError, "a text request while one is outstanding");
        }
        let mut running = match self.running.take() {
            Some(running) if running.itt == header.itt && running.ttt == ttt => running,
            // §11.10.4: the reserved tag begins anew.
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
            // §11.11: what answers a response with the C bit is empty.
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
                // Declarations that ask for nothing.
                "InitiatorAlias" | "X#NodeArchitecture" => {}
                key if keys::is_known(key) => running.answer.push(key, REJECT),
                key => running.answer.push(key, NOT_UNDERSTOOD),
            }
        }
        if running.listing.is_some() {
            self.running = Some(running);
            return Step::List;
        }
        running.outbox = std::mem::take(&mut running.answer).send();
        self.send(running)
    }

    /// The names of all volumes, as asked for by [`Step::List`].
    pub fn handle_listed(&mut self, config: &Config, access: &Access, volumes: &[String]) -> Step {
        let Some(mut running) = self.running.take() else {
            return reject(RejectReason::ProtocolError, "volumes that no exchange asked for");
        };
        let Some(wanted) = running.listing.take() else {
            self.running = Some(running);
            return reject(RejectReason::ProtocolError, "volumes that no exchange asked for");
        };
        // By name of the target: of volumes that differ in case only, the first.
        let mut named = BTreeSet::new();
        for volume in volumes.iter().chain(access.moved.keys()) {
            let fits = match &wanted {
                Wanted::All => true,
                Wanted::One(one) => one.eq_ignore_ascii_case(volume),
            };
            if fits && self.may_see(access, volume) && named.insert(name::target_name(volume)) {
                self.tell(config, access, &mut running.answer, volume);
            }
        }
        running.outbox = std::mem::take(&mut running.answer).send();
        self.send(running)
    }

    fn begin(&mut self, itt: u32) -> Running {
        self.last_tag = self.last_tag.wrapping_add(1);
        if self.last_tag == RESERVED_TAG {
            self.last_tag = 1;
        }
        Running {
            itt,
            ttt: self.last_tag,
            last: false,
            total: 0,
            inbox: Vec::new(),
            answer: Answer::default(),
            outbox: Outbox::default(),
            seen: BTreeSet::new(),
            declared: None,
            listing: None,
        }
    }

    /// Appendix C: a discovery session may ask for all or for one, a normal one for its own only.
    fn send_targets(&self, config: &Config, access: &Access, running: &mut Running, value: &str) {
        let own = self.identity.volume.as_deref();
        match (own, value) {
            (None, "All") => running.listing = Some(Wanted::All),
            (None, "") | (Some(_), "All") => running.answer.push("SendTargets", REJECT),
            (Some(own), "") => self.tell(config, access, &mut running.answer, own),
            (own, target) => match (name::normalise(target), own) {
                (Err(_), _) => running.answer.push("SendTargets", REJECT),
                (Ok(target), Some(own)) => {
                    if target == name::target_name(own) {
                        self.tell(config, access, &mut running.answer, own);
                    }
                }
                (Ok(target), None) => {
                    if let Some(volume) = access.volume_of(&target) {
                        running.listing = Some(Wanted::One(volume));
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

    /// The record of a target: its name and the addresses it is found at.
    fn tell(&self, config: &Config, access: &Access, answer: &mut Answer, volume: &str) {
        let mut record = Answer::default();
        record.push("TargetName", &name::target_name(volume));
        let addresses = match access.moved.get(volume) {
            Some(address) => vec![without_group(address).to_owned()],
            None => portals(config, &self.peer),
        };
        for address in addresses {
            record.push("TargetAddress", &format!("{address},{PORTAL_GROUP}"));
        }
        if answer.len() + record.len() <= MAX_ANSWER_BYTES {
            answer.0.append(&mut record.0);
        }
    }

    /// Answers with what fits, and closes the exchange if that was all and the initiator is done.
    fn send(&mut self, mut running: Running) -> Step {
        // A limit declared just now may be the smaller one, and both sides know both.
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
        Step::Send { pdu: TextPdu { response, text }, initiator_data_segment }
    }
}

fn reject(reason: RejectReason, why: &str) -> Step {
    Step::Reject { reason, why: why.to_owned() }
}

/// An address without the portal group tag that may follow it.
pub(super) fn without_group(address: &str) -> &str {
    address.split_once(',').map_or(address, |(address, _)| address)
}

/// Where this target is found, as an initiator that came to `peer.portal` should be told.
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

/// The part of an address before its port.
fn host_of(address: &str) -> &str {
    match address.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => host,
        _ => address,
    }
}

#[cfg(test)]
pub(super) mod tests;
