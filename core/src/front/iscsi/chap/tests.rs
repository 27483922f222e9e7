//! The responses of every algorithm, and the refusals of an authentication.

use super::*;
use crate::front::iscsi::exchange::tests::config;

const SECRET: &[u8] = b"a secret of alice";
const OWN: &[u8] = b"the target's secret";

/// `random` of the authentications: 0, 1, 2, ... with 0x27 last, which is the identifier.
fn random() -> [u8; 32] {
    let mut random: [u8; 32] = std::array::from_fn(|i| i as u8);
    random[31] = 0x27;
    random
}

fn access() -> Access {
    let secret = |bytes: &[u8]| Secret(bytes.to_vec());
    Access {
        users: [
            ("alice".to_owned(), secret(SECRET)),
            ("short".to_owned(), secret(b"elevenbytes")),
            ("twin".to_owned(), secret(OWN)),
        ]
        .into(),
        target_user: Some(("target".to_owned(), secret(OWN))),
        ..Access::default()
    }
}

fn ask<'a>(list: &'a str) -> ChapKeys<'a> {
    ChapKeys { algorithms: Some(list), ..ChapKeys::default() }
}

/// An authentication that has sent its challenge, for the first algorithm of `list`.
fn challenged(list: &str) -> Chap {
    let mut chap = Chap::Start { random: random() };
    let config = Config { weak_chap: true, ..config() };
    chap.handle(&config, &access(), ask(list), &mut ResponseText::default()).unwrap();
    chap
}

fn said(answer: ResponseText) -> String {
    let all = answer.send().cut(usize::MAX);
    String::from_utf8(all.to_vec()).unwrap().replace('\0', "|")
}

/// The expected responses were computed with Python's hashlib over 0x27, "a secret of alice" and 0,
/// 1, 2, ...
#[test]
fn responses() {
    let challenge: [u8; 32] = std::array::from_fn(|i| i as u8);
    for (algorithm, hex) in [
        (ChapAlgorithm::Md5, "bbf0689af4b695b74d01f9e7beb95e99"),
        (ChapAlgorithm::Sha1, "27063b641af6ed7aba343526ab83cc6cca538528"),
        (ChapAlgorithm::Sha256, "6e061438bef1580973391eaec5a1ef59f7ccf01e0e95e40d7035fc82f6bc2502"),
        (ChapAlgorithm::Sha3, "3a9bead2b5271d0b650f55a46c56db8d2a24e409b21a85e16698c2aedb819fcb"),
    ] {
        let response = algorithm.respond(0x27, SECRET, &challenge[..algorithm.bytes()]);
        assert_eq!(text::hexadecimal(&response), format!("0x{hex}"), "{algorithm:?}");
        assert_eq!(response.len(), algorithm.bytes());
    }
}

#[test]
fn the_initiator_s_order_decides_among_what_is_allowed() {
    for (list, weak, chosen) in [
        ("5", false, None),
        ("6,5", false, None),
        ("5", true, Some("5")),
        ("6,5,7", true, Some("6")),
        ("5,6,7,8", false, Some("7")),
        ("8,7", false, Some("8")),
        ("0x7", false, Some("7")),
        ("1,2,255,7", false, Some("7")),
        ("", false, None),
        ("07", false, None),
        ("None", false, None),
    ] {
        let config = Config { weak_chap: weak, ..config() };
        let mut answer = ResponseText::default();
        let mut chap = Chap::Start { random: random() };
        let result = chap.handle(&config, &access(), ask(list), &mut answer);
        let said = said(answer);
        match chosen {
            None => {
                assert!(matches!(result, Err(ChapFailure::Authentication(_))), "{list}");
                assert_eq!(said, "");
            }
            Some(number) => {
                assert_eq!(result, Ok(()), "{list}");
                assert!(
                    said.starts_with(&format!("CHAP_A={number}|CHAP_I=39|CHAP_C=0x000102")),
                    "{said}"
                );
            }
        }
    }
}

#[test]
fn right_answers() {
    for (list, algorithm) in [
        ("5", ChapAlgorithm::Md5),
        ("6", ChapAlgorithm::Sha1),
        ("7", ChapAlgorithm::Sha256),
        ("8", ChapAlgorithm::Sha3),
    ] {
        let mut chap = challenged(list);
        let Chap::Challenged { id, challenge, .. } = chap.clone() else { panic!("{chap:?}") };
        let response = text::hexadecimal(&algorithm.respond(id, SECRET, &challenge));
        let keys = ChapKeys {
            name: Some("alice"),
            response: Some(&response),
            id: Some("0xff"),
            challenge: Some("0bAQIDBAUGBwg="),
            ..ChapKeys::default()
        };
        let mut answer = ResponseText::default();
        assert_eq!(chap.handle(&config(), &access(), keys, &mut answer), Ok(()));
        assert_eq!(chap.user(), Some("alice"));
        let own = algorithm.respond(0xff, OWN, &[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(said(answer), format!("CHAP_N=target|CHAP_R={}|", text::hexadecimal(&own)));
        assert!(matches!(
            chap.handle(&config(), &access(), keys, &mut ResponseText::default()),
            Err(ChapFailure::Protocol(_))
        ));
    }
}

#[test]
fn wrong_answers() {
    let right = |secret: &[u8]| {
        let Chap::Challenged { algorithm, id, challenge } = challenged("7") else { panic!() };
        (
            text::hexadecimal(&algorithm.respond(id, secret, &challenge)),
            text::hexadecimal(&challenge),
        )
    };
    let (good, challenge) = right(SECRET);
    let (bad, _) = right(b"another secret");
    let (twin, _) = right(OWN);
    let (short, _) = right(b"elevenbytes");
    let (nobody, _) = right(NO_SECRET);
    let good = good.as_str();
    #[derive(Debug)]
    enum Want {
        Protocol,
        Authentication,
        Reflection,
        Fine,
    }
    use Want::*;
    let other = Some("0x0102");
    let none = None;
    let long = format!("0x{}", "00".repeat(1025));
    for (name, response, id, back, want) in [
        (Some("alice"), Some(good), none, none, Fine),
        (Some("alice"), Some(good), Some("1"), other, Fine),
        (Some("alice"), Some(bad.as_str()), none, none, Authentication),
        (Some("alice"), Some(&good[..64]), none, none, Authentication),
        (Some("alice"), Some("0x00"), none, none, Authentication),
        (Some("Alice"), Some(good), none, none, Authentication),
        (Some("nobody"), Some(nobody.as_str()), none, none, Authentication),
        (Some("short"), Some(short.as_str()), none, none, Authentication),
        // One secret for both directions does no harm as long as one direction is used.
        (Some("twin"), Some(twin.as_str()), Some("1"), other, Authentication),
        (Some("twin"), Some(twin.as_str()), none, none, Fine),
        (Some("alice"), Some(good), Some("1"), Some(challenge.as_str()), Reflection),
        (Some("alice"), Some(bad.as_str()), Some("1"), Some(challenge.as_str()), Reflection),
        (Some("alice"), Some("12345"), none, none, Protocol),
        (Some("alice"), Some(long.as_str()), none, none, Protocol),
        (Some("alice"), Some(good), Some("256"), other, Protocol),
        (Some("alice"), Some(good), Some("x"), other, Protocol),
        (Some("alice"), Some(good), Some("1"), Some(long.as_str()), Protocol),
        (Some("alice"), Some(good), Some("1"), Some(""), Protocol),
        (Some("alice"), Some(good), Some("1"), none, Protocol),
        (Some("alice"), Some(good), none, other, Protocol),
        (Some("alice"), none, none, none, Protocol),
        (none, Some(good), none, none, Protocol),
        (Some(""), Some(good), none, none, Protocol),
    ] {
        let keys = ChapKeys { algorithms: None, id, challenge: back, name, response };
        let mut chap = challenged("7");
        let result = chap.handle(&config(), &access(), keys, &mut ResponseText::default());
        let fits = match want {
            Protocol => matches!(result, Err(ChapFailure::Protocol(_))),
            Authentication => matches!(result, Err(ChapFailure::Authentication(_))),
            Reflection => result == Err(ChapFailure::Reflection),
            Fine => result == Ok(()),
        };
        assert!(fits, "{keys:?} {want:?}: {result:?}");
        assert_eq!(chap.user().is_some(), matches!(want, Fine));
    }
}

#[test]
fn a_target_without_a_secret_cannot_be_asked() {
    let Chap::Challenged { algorithm, id, challenge } = challenged("7") else { panic!() };
    let response = text::hexadecimal(&algorithm.respond(id, SECRET, &challenge));
    for target_user in [None, Some(("target".to_owned(), Secret(b"elevenbytes".to_vec())))] {
        let access = Access { target_user, ..access() };
        let keys = ChapKeys {
            algorithms: None,
            id: Some("1"),
            challenge: Some("0x01"),
            name: Some("alice"),
            response: Some(&response),
        };
        let mut answer = ResponseText::default();
        let result = challenged("7").handle(&config(), &access, keys, &mut answer);
        assert!(matches!(result, Err(ChapFailure::Authentication(_))), "{result:?}");
        assert_eq!(said(answer), "");
    }
}

#[test]
fn out_of_turn() {
    let mut chap = Chap::Start { random: random() };
    let both = ChapKeys { name: Some("alice"), ..ask("7") };
    let late = ChapKeys { algorithms: None, ..both };
    for keys in [both, late] {
        let result = chap.handle(&config(), &access(), keys, &mut ResponseText::default());
        assert!(matches!(result, Err(ChapFailure::Protocol(_))));
    }
    let again =
        challenged("7").handle(&config(), &access(), ask("7"), &mut ResponseText::default());
    assert!(matches!(again, Err(ChapFailure::Protocol(_))));
}
