//! Initiators that guess CHAP secrets.

use super::super::chap::ChapAlgorithm;
use super::super::login::status;
use super::super::{Access, ConnectionId, Grant, Peer, Secret, TARGET_PREFIX, Target, text};
use super::driver::{Out, config, parameters};
use crate::block::Time;
use crate::wire::iscsi::{BHS_BYTES, opcode};
use bytes::BytesMut;
use std::time::Duration;

const INITIATOR: &str = "iqn.2001-04.com.example:i";
const SECRET: &[u8] = b"a secret of alice";

/// Initiators at one address that log in to a volume of alice.
struct Guesser {
    target: Target,
    now: Time,
    last: ConnectionId,
}

/// A login that has got its challenge.
struct Challenged {
    id: ConnectionId,
    number: u8,
    challenge: Vec<u8>,
}

impl Guesser {
    fn new() -> Guesser {
        let grant = Grant { initiator: INITIATOR.to_owned(), user: Some("alice".to_owned()) };
        let access = Access {
            users: [("alice".to_owned(), Secret(SECRET.to_vec()))].into(),
            volumes: [("v".to_owned(), vec![grant])].into(),
            ..Access::default()
        };
        Guesser { target: Target::new(config(), access), now: Time(1), last: 0 }
    }

    /// Sends a text that asks to leave the security stage. Returns the status and the text of the
    /// answer.
    fn send(&mut self, id: ConnectionId, text: &str) -> (u16, String) {
        let mut out =
            Out::new(opcode::LOGIN, true, 0x81, 7).data(text.replace('|', "\0").as_bytes());
        out.bhs[8..14].copy_from_slice(&[0x80, 0, 0, 0, 0, id as u8]);
        let mut input = BytesMut::from(&out.encode(&parameters())[..]);
        self.target.handle_input(self.now, id, &mut input);
        let mut answer = Vec::new();
        while let Some(piece) = self.target.poll_output(id) {
            answer.extend_from_slice(&piece);
        }
        assert_eq!(answer[0] & 0x3f, opcode::LOGIN_RESPONSE);
        let said = String::from_utf8_lossy(&answer[BHS_BYTES..]).replace('\0', "|");
        (u16::from_be_bytes([answer[36], answer[37]]), said)
    }

    fn begin(&mut self) -> (ConnectionId, (u16, String)) {
        self.last += 1;
        let (address, portal) = ("10.0.0.9:40000".to_owned(), "10.0.0.1:3260".to_owned());
        let peer = Peer { address, portal, loopback: false };
        self.target.handle_accept(self.now, self.last, peer, [self.last as u8; 32]);
        let names = format!("InitiatorName={INITIATOR}|TargetName={TARGET_PREFIX}v|");
        (self.last, self.send(self.last, &format!("{names}AuthMethod=CHAP|")))
    }

    fn challenged(&mut self) -> Challenged {
        let (id, (status, _)) = self.begin();
        assert_eq!(status, status::SUCCESS);
        let (status, said) = self.send(id, "CHAP_A=7|");
        assert_eq!(status, status::SUCCESS);
        let find = |key: &str| said.split('|').find_map(|pair| pair.strip_prefix(key)).unwrap();
        let number = find("CHAP_I=").parse().unwrap();
        let challenge = text::binary(find("CHAP_C="), 1024).unwrap();
        Challenged { id, number, challenge }
    }

    /// The status of the answer to this secret.
    fn answer(&mut self, login: &Challenged, secret: &[u8]) -> u16 {
        let response = ChapAlgorithm::Sha256.respond(login.number, secret, &login.challenge);
        let response = text::hexadecimal(&response);
        self.send(login.id, &format!("CHAP_N=alice|CHAP_R={response}|")).0
    }
}

/// During a wait, the answers to a wrong and to the right secret must be the same. Otherwise every
/// login that already had its challenge would be good for a guess.
#[test]
fn while_an_initiator_has_to_wait_no_secret_of_it_is_judged() {
    let mut guesser = Guesser::new();
    let logins: Vec<_> = (0..12).map(|_| guesser.challenged()).collect();
    let wrong = b"not alice's secret";
    for login in &logins[..5] {
        assert_eq!(guesser.answer(login, wrong), status::AUTHENTICATION);
    }
    assert_eq!(guesser.answer(&logins[5], wrong), status::UNAVAILABLE);
    assert_eq!(guesser.answer(&logins[6], SECRET), status::UNAVAILABLE);
    assert_eq!(guesser.begin().1.0, status::UNAVAILABLE);
    // Each wait allows one guess, however many logins are ready.
    for (n, seconds) in [(7, 1), (9, 2)] {
        guesser.now = guesser.now.after(Duration::from_secs(seconds));
        assert_eq!(guesser.answer(&logins[n], wrong), status::AUTHENTICATION);
        assert_eq!(guesser.answer(&logins[n + 1], wrong), status::UNAVAILABLE);
    }
    guesser.now = guesser.now.after(Duration::from_secs(4));
    assert_eq!(guesser.answer(&logins[11], SECRET), status::SUCCESS);
}
