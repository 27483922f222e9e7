//! CHAP as iSCSI uses it (RFC 7143 §12.1.3, RFC 1994), the target's side.
//!
//! The target challenges; the initiator answers, and may challenge back. It promises: an answer is
//! compared in a time that does not depend on where it differs, a user that does not exist takes the
//! same work as one that does, and a challenge of the target's own is never answered. Algorithms are
//! those of the IANA registry; the weak ones are there for initiators that have nothing else.

use super::text::{self, Answer};
use super::{Access, Config, Secret, keys};

/// Longest challenge and response, in bytes (§12.1.3).
const MAX_BINARY_BYTES: usize = 1024;

/// Shortest secret, in bytes: 96 bits (§12.1.3).
pub(super) const MIN_SECRET_BYTES: usize = 12;

/// What is hashed for a user that there is not.
const NO_SECRET: &[u8] = &[0; MIN_SECRET_BYTES];

/// How a response is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    Md5,
    Sha1,
    Sha256,
    Sha3,
}

impl Algorithm {
    /// The algorithm of a number in the registry (§17.3), if it may be used.
    fn find(number: u64, weak: bool) -> Option<Algorithm> {
        match number {
            5 if weak => Some(Algorithm::Md5),
            6 if weak => Some(Algorithm::Sha1),
            7 => Some(Algorithm::Sha256),
            8 => Some(Algorithm::Sha3),
            _ => None,
        }
    }

    fn number(self) -> &'static str {
        match self {
            Algorithm::Md5 => "5",
            Algorithm::Sha1 => "6",
            Algorithm::Sha256 => "7",
            Algorithm::Sha3 => "8",
        }
    }

    /// Length of a response, and of the challenge that is made for it.
    fn bytes(self) -> usize {
        match self {
            Algorithm::Md5 => 16,
            Algorithm::Sha1 => 20,
            Algorithm::Sha256 | Algorithm::Sha3 => 32,
        }
    }

    /// The response to a challenge (RFC 1994 §4.1).
    pub(super) fn respond(self, id: u8, secret: &[u8], challenge: &[u8]) -> Vec<u8> {
        fn hash<D: sha2::Digest>(id: u8, secret: &[u8], challenge: &[u8]) -> Vec<u8> {
            let digest = D::new().chain_update([id]).chain_update(secret).chain_update(challenge);
            digest.finalize().to_vec()
        }
        match self {
            Algorithm::Md5 => hash::<md5::Md5>(id, secret, challenge),
            Algorithm::Sha1 => hash::<sha1::Sha1>(id, secret, challenge),
            Algorithm::Sha256 => hash::<sha2::Sha256>(id, secret, challenge),
            Algorithm::Sha3 => hash::<sha3::Sha3_256>(id, secret, challenge),
        }
    }
}

/// The CHAP keys of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Keys<'a> {
    pub(super) algorithms: Option<&'a str>,
    pub(super) id: Option<&'a str>,
    pub(super) challenge: Option<&'a str>,
    pub(super) name: Option<&'a str>,
    pub(super) response: Option<&'a str>,
}

/// How authentication ends badly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The initiator breaks the rules of the dialogue.
    Protocol(String),
    /// It is not who it says, or cannot be shown that we are.
    Authentication(String),
    /// It plays our own challenge back: §12.1.3 has the connection closed.
    Reflection,
}

/// The dialogue.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Chap {
    /// Awaits the algorithms.
    Start { random: [u8; 32] },
    /// Awaits the response.
    Challenged { algorithm: Algorithm, id: u8, challenge: Vec<u8> },
    /// The initiator is this user.
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
    /// The user, once it is known.
    pub(super) fn user(&self) -> Option<&str> {
        match self {
            Chap::Done { user } => Some(user),
            _ => None,
        }
    }

    /// The keys of a request, which has at least one.
    pub(super) fn handle(
        &mut self,
        config: &Config,
        access: &Access,
        keys: Keys<'_>,
        answer: &mut Answer,
    ) -> Result<(), Failure> {
        *self = match self {
            Chap::Start { random } => start(config, keys, random, answer)?,
            Chap::Challenged { algorithm, id, challenge } => {
                let user = finish(access, keys, *algorithm, *id, challenge, answer)?;
                Chap::Done { user }
            }
            Chap::Done { .. } => {
                return Err(Failure::Protocol("CHAP keys after authentication".to_owned()));
            }
        };
        Ok(())
    }
}

fn start(
    config: &Config,
    keys: Keys<'_>,
    random: &[u8; 32],
    answer: &mut Answer,
) -> Result<Chap, Failure> {
    let Keys { algorithms: Some(list), id: None, challenge: None, name: None, response: None } =
        keys
    else {
        return Err(Failure::Protocol("CHAP begins with CHAP_A and nothing else".to_owned()));
    };
    let find = |option: &str| Algorithm::find(text::number(option)?, config.weak_chap);
    let algorithm = keys::choose(list, find).ok_or_else(|| {
        let weak = if config.weak_chap { "" } else { " (5 and 6 only where weak CHAP is allowed)" };
        Failure::Authentication(format!("CHAP_A={list}: this target has 7 and 8{weak}"))
    })?;
    // The identifier only has to differ between challenges, and is no secret.
    let id = random[31];
    let challenge = random[..algorithm.bytes()].to_vec();
    answer.push("CHAP_A", algorithm.number());
    answer.push("CHAP_I", &id.to_string());
    answer.push("CHAP_C", &text::hexadecimal(&challenge));
    Ok(Chap::Challenged { algorithm, id, challenge })
}

fn finish(
    access: &Access,
    keys: Keys<'_>,
    algorithm: Algorithm,
    id: u8,
    challenge: &[u8],
    answer: &mut Answer,
) -> Result<String, Failure> {
    let protocol = |why: &str| Failure::Protocol(why.to_owned());
    let Keys { algorithms: None, name: Some(name), response: Some(response), .. } = keys else {
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
    // Before all else, so that nothing can be learned by reflection.
    if back.as_ref().is_some_and(|(_, theirs)| theirs == challenge) {
        return Err(Failure::Reflection);
    }
    let secret = access.users.get(name).map(|Secret(secret)| secret.as_slice());
    let expected = algorithm.respond(id, secret.unwrap_or(NO_SECRET), challenge);
    let equal = is_equal(&expected, &response);
    let Some(secret) = secret.filter(|_| equal) else {
        return Err(Failure::Authentication(format!("CHAP user {name:?}: wrong name or secret")));
    };
    if secret.len() < MIN_SECRET_BYTES {
        let why = format!(
            "the secret of CHAP user {name:?} has less than {MIN_SECRET_BYTES} bytes: give it a longer one"
        );
        return Err(Failure::Authentication(why));
    }
    if let Some((id, challenge)) = back {
        let Some((own_name, Secret(own))) = &access.target_user else {
            let why =
                "the initiator wants the target to authenticate itself: configure a target user";
            return Err(Failure::Authentication(why.to_owned()));
        };
        // §12.1.3: with one secret for both directions, whoever can make one side answer is the other.
        if is_equal(own, secret) || own.len() < MIN_SECRET_BYTES {
            let why = format!(
                "the target's secret is that of CHAP user {name:?}, or has less than \
                 {MIN_SECRET_BYTES} bytes: configure another"
            );
            return Err(Failure::Authentication(why));
        }
        answer.push("CHAP_N", own_name);
        answer.push("CHAP_R", &text::hexadecimal(&algorithm.respond(id, own, &challenge)));
    }
    Ok(name.to_owned())
}

/// Whether two byte strings are the same; the time taken depends on their lengths only.
fn is_equal(a: &[u8], b: &[u8]) -> bool {
    let differing = a.iter().zip(b).fold(0, |bits, (a, b)| bits | (a ^ b));
    a.len() == b.len() && std::hint::black_box(differing) == 0
}

#[cfg(test)]
mod tests;
