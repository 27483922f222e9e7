//! Logins: any keys, stages and identities, right or wrong (RFC 7143 §6.3, §11.12, §11.13), and
//! CHAP.

use super::connection::{Connection, Received};
use super::pdu::{Pdu, op};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;

/// Stages (§11.12.3).
pub mod stage {
    /// Security negotiation.
    pub const SECURITY: u8 = 0;
    /// Operational negotiation.
    pub const OPERATIONAL: u8 = 1;
    /// Full feature phase.
    pub const FULL: u8 = 3;
}

/// Keys and values in the order in which they came.
pub type Pairs = Vec<(String, String)>;

/// The value of a key.
#[must_use]
pub fn value<'a>(pairs: &'a Pairs, key: &str) -> Option<&'a str> {
    pairs.iter().find(|(found, _)| found == key).map(|(_, value)| value.as_str())
}

/// Keys and values as they travel (§6.1).
#[must_use]
pub fn text<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (key, value) in pairs {
        bytes.extend(format!("{key}={value}\0").bytes());
    }
    bytes
}

/// Reads them again.
///
/// # Panics
/// If they break the format.
#[must_use]
#[track_caller]
pub fn pairs(bytes: &[u8]) -> Pairs {
    let text = std::str::from_utf8(bytes).expect("text is UTF-8");
    assert!(text.is_empty() || text.ends_with('\0'), "a pair without its end: {text:?}");
    let found = text.split_terminator('\0').map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or_else(|| panic!("no pair: {pair:?}"));
        (key.to_owned(), value.to_owned())
    });
    found.collect()
}

/// Status class and detail of a refusal (§11.13.5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Both, class first.
    pub status: u16,
    /// The keys that came with it.
    pub pairs: Pairs,
}

/// The parameters of a login.
#[derive(Clone, Debug)]
pub struct Login {
    /// Where to.
    pub address: String,
    /// InitiatorName.
    pub initiator: String,
    /// TargetName; none for discovery.
    pub target: Option<String>,
    /// The initiator's part of the session's identity.
    pub isid: [u8; 6],
    /// The session to join; 0 for a new one.
    pub tsih: u16,
    /// Number of the connection.
    pub cid: u16,
    /// The first command's number.
    pub cmd_sn: u32,
    /// Keys of the operational stage.
    pub keys: Pairs,
    /// User and secret, and the target's expected user and secret if it has to answer too.
    pub chap: Option<(String, Vec<u8>)>,
    /// User and secret of the target.
    pub mutual: Option<(String, Vec<u8>)>,
}

impl Login {
    /// To a target, with the defaults of §13 for everything.
    #[must_use]
    pub fn to(address: &str, target: &str, initiator: &str) -> Login {
        Login {
            address: address.to_owned(),
            initiator: initiator.to_owned(),
            target: Some(target.to_owned()),
            isid: [0x80, fastrand::u8(..), fastrand::u8(..), fastrand::u8(..), 0, 1],
            tsih: 0,
            cid: 0,
            cmd_sn: 1,
            keys: Vec::new(),
            chap: None,
            mutual: None,
        }
    }

    /// With a key of the operational stage.
    #[must_use]
    pub fn key(mut self, key: &str, value: impl ToString) -> Login {
        self.keys.retain(|(other, _)| other != key);
        self.keys.push((key.to_owned(), value.to_string()));
        self
    }

    /// With these keys.
    #[must_use]
    pub fn keys<'a>(self, keys: impl IntoIterator<Item = (&'a str, &'a str)>) -> Login {
        keys.into_iter().fold(self, |login, (key, value)| login.key(key, value))
    }

    /// A login request of it; `next`: the stage to go to.
    #[must_use]
    pub fn request(&self, from: u8, next: Option<u8>, text: &[u8]) -> Pdu {
        let flags = next.map_or(0, |next| 0x80 | next) | from << 2;
        let mut pdu = Pdu::new(op::LOGIN, flags).immediate().with_data(text);
        pdu.header[8..14].copy_from_slice(&self.isid);
        pdu.with16(14, self.tsih).with32(16, 0x1001).with16(20, self.cid).with32(24, self.cmd_sn)
    }

    /// The keys that say who wants what.
    #[must_use]
    pub fn names(&self) -> Vec<(&str, &str)> {
        let mut names = vec![("InitiatorName", self.initiator.as_str())];
        match &self.target {
            Some(target) => {
                names.extend([("TargetName", target.as_str()), ("SessionType", "Normal")]);
            }
            None => names.push(("SessionType", "Discovery")),
        }
        names
    }

    /// Logs in by the book. Gives the connection in the full feature phase, the TSIH and the
    /// target's keys.
    ///
    /// # Errors
    /// The target's refusal.
    ///
    /// # Panics
    /// If the target breaks the rules.
    #[track_caller]
    pub fn run(&self) -> Result<(Connection, u16, Pairs), Refused> {
        let mut connection = Connection::open(&self.address);
        let (tsih, pairs) = self.run_on(&mut connection)?;
        Ok((connection, tsih, pairs))
    }

    /// The same on a connection that is there.
    ///
    /// # Errors
    /// The target's refusal.
    ///
    /// # Panics
    /// If the target breaks the rules.
    #[track_caller]
    pub fn run_on(&self, connection: &mut Connection) -> Result<(u16, Pairs), Refused> {
        if self.chap.is_some() {
            self.authenticate(connection)?;
        }
        let mut own = if self.chap.is_some() { Vec::new() } else { self.names() };
        own.extend(self.keys.iter().map(|(key, value)| (key.as_str(), value.as_str())));
        let mut all = Pairs::new();
        let mut bytes = text(own);
        let mut parts = Vec::new();
        while bytes.len() > 8192 {
            let rest = bytes.split_off(8192);
            parts.push(std::mem::replace(&mut bytes, rest));
        }
        for part in parts {
            // §11.12.2: the C bit, and no wish to go on.
            let mut pdu = self.request(stage::OPERATIONAL, None, &part);
            pdu.header[1] |= 0x40;
            let answer = self.exchange(connection, &pdu)?;
            assert!(answer.data.is_empty() && answer.flags() & 0xc0 == 0, "{answer:?}");
        }
        let mut request = self.request(stage::OPERATIONAL, Some(stage::FULL), &bytes);
        let mut received = Vec::new();
        for _ in 0..16 {
            let answer = self.exchange(connection, &request)?;
            received.extend(&answer.data);
            if answer.flags() & 0x40 != 0 {
                // §11.13.2: an empty request asks for the rest.
                assert_eq!(answer.flags() & 0x80, 0, "T and C: {answer:?}");
                request = self.request(stage::OPERATIONAL, Some(stage::FULL), &[]);
                continue;
            }
            let fresh = pairs(&std::mem::take(&mut received));
            all.extend(fresh);
            if answer.flags() & 0x80 != 0 {
                assert_eq!(answer.flags() & 3, stage::FULL, "another stage: {answer:?}");
                let tsih = answer.get16(14);
                assert_ne!(tsih, 0, "a session without TSIH");
                assert!(self.tsih == 0 || tsih == self.tsih, "another session: {answer:?}");
                connection.header_digest = value(&all, "HeaderDigest") == Some("CRC32C");
                connection.data_digest = value(&all, "DataDigest") == Some("CRC32C");
                return Ok((tsih, all));
            }
            request = self.request(stage::OPERATIONAL, Some(stage::FULL), &[]);
        }
        panic!("a login without end: {all:?}");
    }

    /// Sends a login request and gives the answer.
    ///
    /// # Errors
    /// The target's refusal.
    ///
    /// # Panics
    /// If something else comes.
    #[track_caller]
    pub fn exchange(&self, connection: &mut Connection, request: &Pdu) -> Result<Pdu, Refused> {
        connection.send(request);
        let pdu = match connection.receive_within(super::connection::PATIENCE) {
            Received::Pdu(pdu) => pdu,
            // A refusal without words.
            Received::Closed => return Err(Refused { status: 0xffff, pairs: Vec::new() }),
            Received::Nothing => panic!("no answer to {request:?}"),
        };
        assert_eq!(pdu.opcode(), op::LOGIN_RESPONSE, "{pdu:?}");
        assert_eq!(pdu.itt(), request.itt(), "{pdu:?}");
        assert_eq!(pdu.header[8..14], self.isid, "{pdu:?}");
        let status = pdu.get16(36);
        if status == 0 { Ok(pdu) } else { Err(Refused { status, pairs: pairs(&pdu.data) }) }
    }

    /// The security stage with CHAP (§12.1.3), algorithm SHA-256 (7).
    #[track_caller]
    fn authenticate(&self, connection: &mut Connection) -> Result<(), Refused> {
        let (user, secret) = self.chap.as_ref().expect("the caller has looked");
        let mut first = self.names();
        first.push(("AuthMethod", "CHAP"));
        let answer =
            self.exchange(connection, &self.request(stage::SECURITY, None, &text(first)))?;
        assert_eq!(value(&pairs(&answer.data), "AuthMethod"), Some("CHAP"), "{answer:?}");
        let offer = self.request(stage::SECURITY, None, &text([("CHAP_A", "7")]));
        let challenge = pairs(&self.exchange(connection, &offer)?.data);
        assert_eq!(value(&challenge, "CHAP_A"), Some("7"), "{challenge:?}");
        let id: u8 = value(&challenge, "CHAP_I").unwrap().parse().unwrap();
        let bytes = unhex(value(&challenge, "CHAP_C").unwrap());
        assert!(bytes.len() >= 16, "a short challenge: {challenge:?}");
        let response = chap(id, secret, &bytes);
        let (own_id, own) = (fastrand::u8(..), fastrand::u128(..).to_be_bytes());
        let (shown_id, shown) = (own_id.to_string(), hex(&own));
        let mut keys = vec![("CHAP_N", user.as_str()), ("CHAP_R", response.as_str())];
        if self.mutual.is_some() {
            keys.extend([("CHAP_I", shown_id.as_str()), ("CHAP_C", shown.as_str())]);
        }
        let last = self.request(stage::SECURITY, Some(stage::OPERATIONAL), &text(keys));
        let answer = self.exchange(connection, &last)?;
        assert_eq!(answer.flags(), 0x81, "{answer:?}");
        if let Some((user, secret)) = &self.mutual {
            let answer = pairs(&answer.data);
            assert_eq!(value(&answer, "CHAP_N"), Some(user.as_str()));
            let right = unhex(&chap(own_id, secret, &own));
            assert_eq!(value(&answer, "CHAP_R").map(unhex), Some(right), "not the target's");
        }
        Ok(())
    }
}

/// CHAP_R (RFC 1994 §4.1): the hash over identifier, secret and challenge.
#[must_use]
pub fn chap(id: u8, secret: &[u8], challenge: &[u8]) -> String {
    let hash = Sha256::new().chain_update([id]).chain_update(secret).chain_update(challenge);
    hex(&hash.finalize())
}

/// Binary as text (§6.1).
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("0x{digits}")
}

/// Text as binary.
#[must_use]
#[track_caller]
pub fn unhex(text: &str) -> Vec<u8> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let digits = digits.unwrap_or_else(|| panic!("not hexadecimal: {text}"));
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(byte).collect()
}

/// The values of a session: its own keys and the target's answers, by name. For the others, the
/// defaults of §13 hold.
#[must_use]
pub fn agreed(answers: &Pairs) -> BTreeMap<String, String> {
    let defaults = [
        ("MaxBurstLength", "262144"),
        ("FirstBurstLength", "65536"),
        ("MaxOutstandingR2T", "1"),
        ("InitialR2T", "Yes"),
        ("ImmediateData", "Yes"),
        ("ErrorRecoveryLevel", "0"),
        ("MaxConnections", "1"),
        ("MaxRecvDataSegmentLength", "8192"),
        ("DefaultTime2Wait", "2"),
        ("DefaultTime2Retain", "20"),
    ];
    let mut agreed: BTreeMap<String, String> = BTreeMap::new();
    agreed.extend(defaults.map(|(key, value)| (key.to_owned(), value.to_owned())));
    let no_value = ["Irrelevant", "Reject", "NotUnderstood"];
    let values = answers.iter().filter(|(_, value)| !no_value.contains(&value.as_str()));
    agreed.extend(values.cloned());
    agreed
}
