//! CHAP in iSCSI, the target's side (RFC 7143 §12.1.3, RFC 1994).
//!
//! The target sends a challenge. The initiator responds, and may send a challenge, too. The module
//! promises:
//!
//! - the time of a comparison does not depend on where the responses differ;
//! - an unknown user costs the same work as a known one;
//! - the target never responds to its own challenge.
//!
//! The algorithms are those of the IANA registry. The weak ones are for initiators that have no
//! other.

use super::text::{self, ResponseText};
use super::{Access, Config, Secret, keys};

/// Longest challenge and response, in bytes (§12.1.3).
const MAX_BINARY_BYTES: usize = 1024;

/// Shortest secret, in bytes: 96 bits (§12.1.3).
pub(super) const MIN_SECRET_BYTES: usize = 12;

/// The secret that is hashed for an unknown user.
const NO_SECRET: &[u8] = &[0; MIN_SECRET_BYTES];

/// The hash that makes a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChapAlgorithm {
    Md5,
    Sha1,
    Sha256,
    Sha3,
}

impl ChapAlgorithm {
    /// The algorithm with a number of the registry (§17.3), if it may be used.
    fn find(number: u64, weak: bool) -> Option<ChapAlgorithm> {
        match number {
            5 if weak => Some(ChapAlgorithm::Md5),
            6 if weak => Some(ChapAlgorithm::Sha1),
            7 => Some(ChapAlgorithm::Sha256),
            8 => Some(ChapAlgorithm::Sha3),
            _ => None,
        }
    }

    fn number(self) -> &'static str {
        match self {
            ChapAlgorithm::Md5 => "5",
            ChapAlgorithm::Sha1 => "6",
            ChapAlgorithm::Sha256 => "7",
            ChapAlgorithm::Sha3 => "8",
        }
    }

    /// Bytes of a response, and of the challenge for it.
    fn bytes(self) -> usize {
        match self {
            ChapAlgorithm::Md5 => 16,
            ChapAlgorithm::Sha1 => 20,
            ChapAlgorithm::Sha256 | ChapAlgorithm::Sha3 => 32,
        }
    }

    /// The response to a challenge (RFC 1994 §4.1).
    pub(super) fn respond(self, id: u8, secret: &[u8], challenge: &[u8]) -> Vec<u8> {
        fn hash<D: sha2::Digest>(id: u8, secret: &[u8], challenge: &[u8]) -> Vec<u8> {
            let digest = D::new().chain_update([id]).chain_update(secret).chain_update(challenge);
            digest.finalize().to_vec()
        }
        match self {
            ChapAlgorithm::Md5 => hash::<md5::Md5>(id, secret, challenge),
            ChapAlgorithm::Sha1 => hash::<sha1::Sha1>(id, secret, challenge),
            ChapAlgorithm::Sha256 => hash::<sha2::Sha256>(id, secret, challenge),
            ChapAlgorithm::Sha3 => hash::<sha3::Sha3_256>(id, secret, challenge),
        }
    }
}

/// The CHAP keys of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ChapKeys<'a> {
    pub(super) algorithms: Option<&'a str>,
    pub(super) id: Option<&'a str>,
    pub(super) challenge: Option<&'a str>,
    pub(super) name: Option<&'a str>,
    pub(super) response: Option<&'a str>,
}

/// The reason why authentication fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ChapFailure {
    /// The initiator broke the rules of the exchange.
    Protocol(String),
    /// The initiator did not prove its identity, or the target cannot prove its own.
    Authentication(String),
    /// The initiator sent the target's challenge back. §12.1.3: the connection is closed.
    Reflection,
}

/// The state of an authentication.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Chap {
    /// Waits for the list of algorithms.
    Start { random: [u8; 32] },
    /// Waits for the response.
    Challenged { algorithm: ChapAlgorithm, id: u8, challenge: Vec<u8> },
    /// The initiator has authenticated as this user.
    Done { user: String },
}

impl std::fmt::Debug for Chap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Chap::Start { .. } => f.write_str("Start"),
            Chap::Challenged { algorithm, .. } => write!(f, "Challenged({algorithm:?})"),
            Chap::Done { user } => write!(f, "Done({user:?})"),
        }
    }
}

impl Chap {
    /// The user, once the initiator has authenticated.
    pub(super) fn user(&self) -> Option<&str> {
        match self {
            Chap::Done { user } => Some(user),
            _ => None,
        }
    }

    /// Takes the CHAP keys of a request, which has at least one.
    pub(super) fn handle(
        &mut self,
        config: &Config,
        access: &Access,
        keys: ChapKeys<'_>,
        answer: &mut ResponseText,
    ) -> Result<(), ChapFailure> {
        *self = match self {
            Chap::Start { random } => start(config, keys, random, answer)?,
            Chap::Challenged { algorithm, id, challenge } => {
                let user = finish(access, keys, *algorithm, *id, challenge, answer)?;
                Chap::Done { user }
            }
            Chap::Done { .. } => {
                return Err(ChapFailure::Protocol("CHAP keys after authentication".to_owned()));
            }
        };
        Ok(())
    }
}

fn start(
    config: &Config,
    keys: ChapKeys<'_>,
    random: &[u8; 32],
    answer: &mut ResponseText,
) -> Result<Chap, ChapFailure> {
    let ChapKeys { algorithms: Some(list), id: None, challenge: None, name: None, response: None } =
        keys
    else {
        return Err(ChapFailure::Protocol("CHAP begins with CHAP_A and nothing else".to_owned()));
    };
    let find = |option: &str| ChapAlgorithm::find(text::number(option)?, config.weak_chap);
    let algorithm = keys::choose(list, find).ok_or_else(|| {
        let weak = if config.weak_chap { "" } else { " (5 and 6 only where weak CHAP is allowed)" };
        ChapFailure::Authentication(format!("CHAP_A={list}: this target has 7 and 8{weak}"))
    })?;
    // The identifier has to differ between challenges, but is no secret.
    let id = random[31];
    let challenge = random[..algorithm.bytes()].to_vec();
    answer.push("CHAP_A", algorithm.number());
    answer.push("CHAP_I", &id.to_string());
    answer.push("CHAP_C", &text::hexadecimal(&challenge));
    Ok(Chap::Challenged { algorithm, id, challenge })
}

fn finish(
    access: &Access,
    keys: ChapKeys<'_>,
    algorithm: ChapAlgorithm,
    id: u8,
    challenge: &[u8],
    answer: &mut ResponseText,
) -> Result<String, ChapFailure> {
    let protocol = |why: &str| ChapFailure::Protocol(why.to_owned());
    let ChapKeys { algorithms: None, name: Some(name), response: Some(response), .. } = keys else {
        return Err(protocol("a CHAP challenge is answered with CHAP_N and CHAP_R"));
    };
    if name.is_empty() || name.len() > text::MAX_VALUE_BYTES {
        return Err(protocol("CHAP_N is empty or longer than 255 bytes"));
    }
    let response = text::binary(response, MAX_BINARY_BYTES)
        .ok_or_else(|| protocol("CHAP_R is no binary value"))?;
    let back = match (keys.id, keys.challenge) {
        (None, None) => None,
        (Some(id), Some(challenge)) => {
            let id = text::number(id).and_then(|id| u8::try_from(id).ok());
            let id = id.ok_or_else(|| protocol("CHAP_I is not one byte"))?;
            let challenge = text::binary(challenge, MAX_BINARY_BYTES)
                .ok_or_else(|| protocol("CHAP_C is no binary value"))?;
            Some((id, challenge))
        }
        _ => return Err(protocol("CHAP_I and CHAP_C come together")),
    };
    // This check comes first, so that nothing can be learned by reflection.
    if back.as_ref().is_some_and(|(_, theirs)| theirs == challenge) {
        return Err(ChapFailure::Reflection);
    }
    let secret = access.users.get(name).map(|Secret(secret)| secret.as_slice());
    let expected = algorithm.respond(id, secret.unwrap_or(NO_SECRET), challenge);
    let equal = is_equal(&expected, &response);
    let Some(secret) = secret.filter(|_| equal) else {
        return Err(ChapFailure::Authentication(format!(
            "CHAP user {name:?}: wrong name or secret"
        )));
    };
    if secret.len() < MIN_SECRET_BYTES {
        let why = format!(
            "the secret of CHAP user {name:?} has less than {MIN_SECRET_BYTES} bytes: give it a \
             longer one"
        );
        return Err(ChapFailure::Authentication(why));
    }
    if let Some((id, challenge)) = back {
        let Some((own_name, Secret(own))) = &access.target_user else {
            let why =
                "the initiator wants the target to authenticate itself: configure a target user";
            return Err(ChapFailure::Authentication(why.to_owned()));
        };
        // §12.1.3: with one secret for both directions, a party could let the other side compute
        // its response.
        if is_equal(own, secret) || own.len() < MIN_SECRET_BYTES {
            let why = format!(
                "the target's secret is that of CHAP user {name:?}, or has less than \
                 {MIN_SECRET_BYTES} bytes: configure another"
            );
            return Err(ChapFailure::Authentication(why));
        }
        answer.push("CHAP_N", own_name);
        answer.push("CHAP_R", &text::hexadecimal(&algorithm.respond(id, own, &challenge)));
    }
    Ok(name.to_owned())
}

/// Whether two byte strings are equal. The time depends on their lengths only.
fn is_equal(a: &[u8], b: &[u8]) -> bool {
    let differing = a.iter().zip(b).fold(0, |bits, (a, b)| bits | (a ^ b));
    a.len() == b.len() && std::hint::black_box(differing) == 0
}

#[cfg(test)]
mod tests;
