//! The keys of RFC 7143 §13 and RFC 7144 §7, and the negotiation of each.
//!
//! The standards leave some cases open. The target decides them like this:
//!
//! - If a boolean or number is malformed or out of range, the answer is `Reject`, and the key keeps
//!   its default. The same holds for a TaskReporting without a known option. `?` has been no value
//!   since RFC 3720, so the answer is `Reject`.
//! - Digests without a known option end the login (§7.12).
//! - Keys for the leading connection are `Irrelevant` on other connections. They change nothing, so
//!   they are no reason to refuse an initiator.
//! - The answer to the markers of RFC 3720 is `No`, which §13.25 allows and old initiators
//!   understand better than `Reject`. The answer to their intervals is `Reject`.

use super::text::{self, IRRELEVANT, NONE, NOT_UNDERSTOOD, REJECT, ResponseText};
use super::{Config, Parameters, TaskReporting};

/// Longest data segment in bytes before a side declares another (§13.12).
pub(super) const DEFAULT_DATA_SEGMENT: u32 = 8192;
const DEFAULT_MAX_BURST: u32 = 262_144;
const DEFAULT_FIRST_BURST: u32 = 65_536;
/// Time in seconds for which tasks and sessions are kept after a connection is lost.
const TIME2RETAIN: u64 = 20;
/// The newest iSCSIProtocolLevel, that of RFC 7144.
const PROTOCOL_LEVEL: u64 = 2;

const LENGTHS: std::ops::RangeInclusive<u64> = 512..=0xff_ffff;
const COUNTS: std::ops::RangeInclusive<u64> = 1..=0xffff;
const SECONDS: std::ops::RangeInclusive<u64> = 0..=3600;

/// The place where a key may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyUse {
    /// The first request of a login, in any stage: names and session type.
    Naming,
    /// Any request of a login: names for people.
    Alias,
    /// The security stage.
    Security,
    /// The operational stage.
    Operational,
    /// The full feature phase.
    FullFeature,
    /// Only targets send the key.
    Target,
}

const KEYS: &[(&str, KeyUse)] = &[
    ("InitiatorName", KeyUse::Naming),
    ("TargetName", KeyUse::Naming),
    ("SessionType", KeyUse::Naming),
    ("InitiatorAlias", KeyUse::Alias),
    ("X#NodeArchitecture", KeyUse::Alias),
    ("AuthMethod", KeyUse::Security),
    ("CHAP_A", KeyUse::Security),
    ("CHAP_I", KeyUse::Security),
    ("CHAP_C", KeyUse::Security),
    ("CHAP_N", KeyUse::Security),
    ("CHAP_R", KeyUse::Security),
    ("HeaderDigest", KeyUse::Operational),
    ("DataDigest", KeyUse::Operational),
    ("MaxConnections", KeyUse::Operational),
    ("InitialR2T", KeyUse::Operational),
    ("ImmediateData", KeyUse::Operational),
    ("MaxRecvDataSegmentLength", KeyUse::Operational),
    ("MaxBurstLength", KeyUse::Operational),
    ("FirstBurstLength", KeyUse::Operational),
    ("DefaultTime2Wait", KeyUse::Operational),
    ("DefaultTime2Retain", KeyUse::Operational),
    ("MaxOutstandingR2T", KeyUse::Operational),
    ("DataPDUInOrder", KeyUse::Operational),
    ("DataSequenceInOrder", KeyUse::Operational),
    ("ErrorRecoveryLevel", KeyUse::Operational),
    ("TaskReporting", KeyUse::Operational),
    ("iSCSIProtocolLevel", KeyUse::Operational),
    ("IFMarker", KeyUse::Operational),
    ("OFMarker", KeyUse::Operational),
    ("IFMarkInt", KeyUse::Operational),
    ("OFMarkInt", KeyUse::Operational),
    ("SendTargets", KeyUse::FullFeature),
    ("TargetAlias", KeyUse::Target),
    ("TargetAddress", KeyUse::Target),
    ("TargetPortalGroupTag", KeyUse::Target),
];

/// The place where a key may be used; `None` for an unknown key.
pub(super) fn key_use(key: &str) -> Option<KeyUse> {
    KEYS.iter().find(|(known, _)| *known == key).map(|(_, key_use)| *key_use)
}

/// Whether a standard defines the key.
pub(super) fn is_known(key: &str) -> bool {
    key_use(key).is_some()
}

/// The value of a MaxRecvDataSegmentLength.
pub(super) fn data_segment(value: &str) -> Option<u32> {
    number_in(value, &LENGTHS).and_then(|length| u32::try_from(length).ok())
}

fn number_in(value: &str, range: &std::ops::RangeInclusive<u64>) -> Option<u64> {
    text::number(value).filter(|number| range.contains(number))
}

fn boolean(value: &str) -> Option<bool> {
    match value {
        "Yes" => Some(true),
        "No" => Some(false),
        _ => None,
    }
}

/// The first option of a list for which `have` returns a value. §6.2.1: the order of the initiator
/// decides.
pub(super) fn choose<T>(list: &str, have: impl Fn(&str) -> Option<T>) -> Option<T> {
    list.split(',').filter(|option| option.len() <= text::MAX_VALUE_BYTES).find_map(have)
}

/// The operational negotiation of a login, on the target's side.
#[derive(Debug)]
pub(super) struct Negotiation {
    discovery: bool,
    leading: bool,
    parameters: Parameters,
    /// The initiator offered MaxBurstLength, or answered the target's offer.
    burst_settled: bool,
    first_burst_settled: bool,
    /// The offers of the target. It makes them if the defaults are too large for it.
    offered: Offered,
    declared: bool,
}

/// The offers that the target made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Offered {
    Nothing,
    /// Offers of MaxBurstLength and FirstBurstLength.
    Bursts(bool, bool),
}

impl Negotiation {
    /// A negotiation with the defaults of §13. `leading`: the connection begins a session.
    pub(super) fn new(discovery: bool, leading: bool) -> Negotiation {
        Negotiation {
            discovery,
            leading,
            parameters: Parameters {
                header_digest: false,
                data_digest: false,
                initiator_data_segment: DEFAULT_DATA_SEGMENT,
                target_data_segment: DEFAULT_DATA_SEGMENT,
                max_burst: DEFAULT_MAX_BURST,
                first_burst: DEFAULT_FIRST_BURST,
                initial_r2t: true,
                immediate_data: true,
                max_outstanding_r2t: 1,
                max_connections: 1,
                error_recovery_level: 0,
                time2wait: 2,
                time2retain: 20,
                data_pdu_in_order: true,
                data_sequence_in_order: true,
                task_reporting: TaskReporting::Rfc3720,
                protocol_level: 1,
            },
            burst_settled: false,
            first_burst_settled: false,
            offered: Offered::Nothing,
            declared: false,
        }
    }

    /// The parameters negotiated so far.
    pub(super) fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Sends the declarations of the target; `false` if it sent them before.
    pub(super) fn declare(&mut self, config: &Config, answer: &mut ResponseText) -> bool {
        if self.declared {
            return false;
        }
        self.declared = true;
        let length =
            u64::from(config.max_recv_data_segment).clamp(*LENGTHS.start(), *LENGTHS.end());
        self.parameters.target_data_segment = length as u32;
        answer.push("MaxRecvDataSegmentLength", &length.to_string());
        true
    }

    /// The bursts that the target has to offer, because their defaults exceed its limits.
    fn lacking(&self, config: &Config) -> (bool, bool) {
        let p = &self.parameters;
        let counts = self.leading && !self.discovery;
        let unsolicited = !p.initial_r2t || p.immediate_data;
        (
            counts && !self.burst_settled && max_burst(config) < DEFAULT_MAX_BURST,
            counts
                && unsolicited
                && !self.first_burst_settled
                && first_burst(config) < DEFAULT_FIRST_BURST,
        )
    }

    /// Whether the login needs an operational stage.
    pub(super) fn is_lacking(&self, config: &Config) -> bool {
        self.lacking(config) != (false, false)
    }

    /// Offers the bursts; `false` if they were offered before and not answered.
    pub(super) fn offer(&mut self, config: &Config, answer: &mut ResponseText) -> bool {
        if self.offered != Offered::Nothing {
            return false;
        }
        let (burst, first) = self.lacking(config);
        self.offered = Offered::Bursts(burst, first);
        if burst {
            answer.push("MaxBurstLength", &max_burst(config).to_string());
        }
        if first {
            answer.push("FirstBurstLength", &first_burst(config).to_string());
        }
        true
    }

    /// Takes the pairs of one request. FirstBurstLength comes last, because it depends on
    /// MaxBurstLength, InitialR2T and ImmediateData.
    ///
    /// # Errors
    ///
    /// The reason why the login fails.
    pub(super) fn handle(
        &mut self,
        config: &Config,
        pairs: &[text::TextPair<'_>],
        answer: &mut ResponseText,
    ) -> Result<(), String> {
        let is_first_burst = |pair: &&text::TextPair<'_>| pair.key == "FirstBurstLength";
        for pair in pairs.iter().filter(|pair| !is_first_burst(pair)) {
            self.handle_pair(config, pair.key, pair.value, answer)?;
        }
        for pair in pairs.iter().filter(is_first_burst) {
            self.handle_pair(config, pair.key, pair.value, answer)?;
        }
        Ok(())
    }

    fn handle_pair(
        &mut self,
        config: &Config,
        key: &str,
        value: &str,
        answer: &mut ResponseText,
    ) -> Result<(), String> {
        if self.answers_offer(key) {
            return self.handle_counter(config, key, value);
        }
        if self.is_irrelevant(key) {
            answer.push(key, IRRELEVANT);
            return Ok(());
        }
        let p = &mut self.parameters;
        // §6.2.2: both sides compute the same result. `None` is an invalid value.
        let result = match key {
            "HeaderDigest" => Some(yes_no_digest(&mut p.header_digest, key, value)?),
            "DataDigest" => Some(yes_no_digest(&mut p.data_digest, key, value)?),
            "MaxRecvDataSegmentLength" => {
                // A declaration has no answer, so an invalid one ends the login.
                let length = data_segment(value);
                p.initiator_data_segment =
                    length.ok_or_else(|| format!("{key}={value} cannot be"))?;
                return Ok(());
            }
            "InitialR2T" => set(boolean(value), &mut p.initial_r2t, |offer| offer),
            "ImmediateData" => set(boolean(value), &mut p.immediate_data, |offer| offer),
            "DataPDUInOrder" => set(boolean(value), &mut p.data_pdu_in_order, |_| true),
            "DataSequenceInOrder" => set(boolean(value), &mut p.data_sequence_in_order, |_| true),
            "MaxConnections" => {
                least(value, &COUNTS, config.max_connections, &mut p.max_connections)
            }
            "MaxOutstandingR2T" => {
                least(value, &COUNTS, config.max_outstanding_r2t, &mut p.max_outstanding_r2t)
            }
            "MaxBurstLength" => {
                self.burst_settled = true;
                least(value, &LENGTHS, max_burst(config), &mut p.max_burst)
            }
            "FirstBurstLength" => {
                self.first_burst_settled = true;
                let most = first_burst(config).min(p.max_burst);
                least(value, &LENGTHS, most, &mut p.first_burst)
            }
            "DefaultTime2Wait" => number_in(value, &SECONDS).map(|seconds| {
                p.time2wait = seconds as u16;
                seconds.to_string()
            }),
            "DefaultTime2Retain" => number_in(value, &SECONDS).map(|seconds| {
                p.time2retain = seconds.min(TIME2RETAIN) as u16;
                p.time2retain.to_string()
            }),
            "ErrorRecoveryLevel" => {
                // §4.3: a discovery session has no recovery.
                let most = if self.discovery { 0 } else { config.error_recovery_level };
                least(value, &(0..=2), most, &mut p.error_recovery_level)
            }
            "iSCSIProtocolLevel" => number_in(value, &(0..=31)).map(|level| {
                p.protocol_level = level.min(PROTOCOL_LEVEL) as u8;
                p.protocol_level.to_string()
            }),
            "TaskReporting" => {
                let known = [
                    ("RFC3720", TaskReporting::Rfc3720),
                    ("ResponseFence", TaskReporting::ResponseFence),
                    ("FastAbort", TaskReporting::FastAbort),
                ];
                let have = |option: &str| known.iter().find(|(name, _)| *name == option);
                choose(value, have).map(|(name, reporting)| {
                    p.task_reporting = *reporting;
                    (*name).to_owned()
                })
            }
            "IFMarker" | "OFMarker" => boolean(value).map(|_| "No".to_owned()),
            "IFMarkInt" | "OFMarkInt" => None,
            _ => Some(NOT_UNDERSTOOD.to_owned()),
        };
        // A rejected key keeps its default, which may exceed the target's limit. A later offer
        // would repeat the key, which is not allowed. So the login ends.
        if result.is_none() && self.is_rejected_burst(config, key) {
            return Err(format!("{key}={value} cannot be, and the default is too much"));
        }
        answer.push(key, result.as_deref().unwrap_or(REJECT));
        Ok(())
    }

    fn is_rejected_burst(&self, config: &Config, key: &str) -> bool {
        key == "MaxBurstLength" && max_burst(config) < DEFAULT_MAX_BURST
            || key == "FirstBurstLength" && first_burst(config) < DEFAULT_FIRST_BURST
    }

    /// Whether a key is irrelevant: by the "Irrelevant when" of §13, or because it is for the
    /// leading connection only.
    fn is_irrelevant(&self, key: &str) -> bool {
        let p = &self.parameters;
        match key {
            "MaxConnections"
            | "InitialR2T"
            | "ImmediateData"
            | "MaxBurstLength"
            | "MaxOutstandingR2T"
            | "DataPDUInOrder"
            | "DataSequenceInOrder"
            | "TaskReporting"
            | "iSCSIProtocolLevel" => self.discovery || !self.leading,
            "FirstBurstLength" => {
                self.discovery || !self.leading || p.initial_r2t && !p.immediate_data
            }
            "DefaultTime2Wait" | "DefaultTime2Retain" | "ErrorRecoveryLevel" => !self.leading,
            _ => false,
        }
    }

    fn answers_offer(&self, key: &str) -> bool {
        match self.offered {
            Offered::Nothing => false,
            Offered::Bursts(burst, first) => {
                burst && key == "MaxBurstLength" || first && key == "FirstBurstLength"
            }
        }
    }

    /// Takes the initiator's answer to an offer of the target.
    fn handle_counter(&mut self, config: &Config, key: &str, value: &str) -> Result<(), String> {
        let (most, result, settled) = if key == "MaxBurstLength" {
            (max_burst(config), &mut self.parameters.max_burst, &mut self.burst_settled)
        } else {
            (first_burst(config), &mut self.parameters.first_burst, &mut self.first_burst_settled)
        };
        *settled = true;
        if key == "FirstBurstLength" && value == IRRELEVANT {
            *result = most;
            return Ok(());
        }
        match data_segment(value) {
            Some(length) if length <= most => {
                *result = length;
                Ok(())
            }
            _ => Err(format!("{key}={value} is no answer to {key}={most}")),
        }
    }

    /// The parameters at the end of the negotiation.
    pub(super) fn settle(&self) -> Parameters {
        let mut parameters = self.parameters;
        // §13.14: the first burst must not exceed the burst.
        parameters.first_burst = parameters.first_burst.min(parameters.max_burst);
        parameters
    }
}

fn max_burst(config: &Config) -> u32 {
    config.max_burst.clamp(*LENGTHS.start() as u32, *LENGTHS.end() as u32)
}

fn first_burst(config: &Config) -> u32 {
    config.first_burst.clamp(*LENGTHS.start() as u32, max_burst(config))
}

fn yes_no_digest(digest: &mut bool, key: &str, value: &str) -> Result<String, String> {
    *digest = choose(value, |option| match option {
        "CRC32C" => Some(true),
        NONE => Some(false),
        _ => None,
    })
    .ok_or_else(|| format!("{key}={value}: this target has CRC32C and None"))?;
    Ok(if *digest { "CRC32C" } else { NONE }.to_owned())
}

fn set(offer: Option<bool>, result: &mut bool, rule: impl Fn(bool) -> bool) -> Option<String> {
    offer.map(|offer| {
        *result = rule(offer);
        if *result { "Yes" } else { "No" }.to_owned()
    })
}

/// The result function "minimum".
fn least<T>(
    value: &str,
    range: &std::ops::RangeInclusive<u64>,
    most: T,
    result: &mut T,
) -> Option<String>
where
    T: Copy + Into<u64> + TryFrom<u64>,
{
    let number = number_in(value, range)?.min(most.into()).max(*range.start());
    *result = T::try_from(number).ok()?;
    Some(number.to_string())
}

#[cfg(test)]
mod tests;
