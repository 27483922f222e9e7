//! Complete logins.

use super::*;
use crate::front::iscsi::exchange::tests::config;
use crate::front::iscsi::{Grant, Secret};
use crate::wire::iscsi::opcode;
use proptest::prelude::*;

const INITIATOR: &str = "iqn.2001-04.com.example:i";
const SECRET: &[u8] = b"a secret of alice";
const OWN: &[u8] = b"the target's secret";
const ISID: [u8; 6] = [0x80, 1, 2, 3, 4, 5];

fn access() -> Access {
    let grant = |user: Option<&str>| Grant {
        initiator: INITIATOR.to_owned(),
        user: user.map(str::to_owned),
    };
    Access {
        users: [
            ("alice".to_owned(), Secret(SECRET.to_vec())),
            ("bob".to_owned(), Secret(b"a secret of bob".to_vec())),
        ]
        .into(),
        target_user: Some(("target".to_owned(), Secret(OWN.to_vec()))),
        volumes: [
            ("Open".to_owned(), vec![grant(None)]),
            ("alices".to_owned(), vec![grant(Some("alice"))]),
            ("nobodys".to_owned(), vec![]),
            ("gone".to_owned(), vec![grant(None)]),
            ("alicesgone".to_owned(), vec![grant(Some("alice"))]),
        ]
        .into(),
        moved: ["gone", "alicesgone"]
            .map(|volume| (volume.to_owned(), "10.9.9.9:3260,7".to_owned()))
            .into(),
    }
}

/// An initiator that logs in.
struct Talk {
    login: Login,
    config: Config,
    access: Access,
    header: RequestHeader,
}

/// Flags of a request.
#[derive(Clone, Copy)]
struct Flags {
    stage: u8,
    next: Option<u8>,
    more: bool,
}

/// The request stays in the stage.
fn stay(stage: u8) -> Flags {
    Flags { stage, next: None, more: false }
}

/// The request asks to leave the stage.
fn go(stage: u8, next: u8) -> Flags {
    Flags { stage, next: Some(next), more: false }
}

/// The text continues.
fn more(stage: u8) -> Flags {
    Flags { stage, next: None, more: true }
}

impl Talk {
    fn new(config: Config, access: Access, loopback: bool) -> Talk {
        let peer = Peer {
            address: "10.0.0.9:40000".to_owned(),
            portal: "10.0.0.1:3260".to_owned(),
            loopback,
        };
        let login = Login::new(&config, &peer, std::array::from_fn(|i| i as u8));
        let header = RequestHeader {
            opcode: opcode::LOGIN,
            immediate: true,
            ahs_bytes: 0,
            data_bytes: 0,
            itt: 77,
            cmd_sn: 1,
            exp_stat_sn: 0,
            request: Request::Login {
                transit: false,
                more: false,
                stage: 0,
                next: 0,
                version_max: 0,
                version_min: 0,
                isid: ISID,
                tsih: 0,
                cid: 3,
            },
        };
        Talk { login, config, access, header }
    }

    fn afar() -> Talk {
        Talk::new(config(), access(), false)
    }

    /// Changes a field of later requests.
    fn with(mut self, change: impl FnOnce(&mut RequestHeader)) -> Talk {
        change(&mut self.header);
        self
    }

    fn joining(self, session: u16) -> Talk {
        self.with(|header| {
            if let Request::Login { tsih, .. } = &mut header.request {
                *tsih = session;
            }
        })
    }

    fn raw(&mut self, flags: Flags, text: &[u8]) -> LoginStep {
        if let Request::Login { transit, more, stage, next, .. } = &mut self.header.request {
            *transit = flags.next.is_some();
            *more = flags.more;
            *stage = flags.stage;
            *next = flags.next.unwrap_or_default();
        }
        self.login.handle_request(&self.config, &self.access, &self.header, text)
    }

    /// Sends text, with `|` for nulls.
    fn send(&mut self, flags: Flags, text: &str) -> LoginStep {
        self.raw(flags, text.replace('|', "\0").as_bytes())
    }

    /// Expects this text as the answer, in this stage, with that next stage.
    #[track_caller]
    fn expect(&mut self, flags: Flags, text: &str, next: Option<u8>, answer: &str) {
        let step = self.send(flags, text);
        let LoginStep::Send(pdu) = step else { panic!("no answer: {step:?}") };
        assert_eq!(show(&pdu.text), answer);
        assert_eq!(pdu.response, response(flags.stage, next, false, 0, status::SUCCESS));
    }

    /// Opens the volume and admits the session.
    #[track_caller]
    fn finish(&mut self, step: LoginStep, volume: &str) -> (Identity, Parameters, String) {
        assert_eq!(step, LoginStep::Open { volume: volume.to_owned() });
        let step = self.login.handle_opened(Ok(()));
        let LoginStep::Admit { identity, parameters } = step else {
            panic!("not admitted: {step:?}")
        };
        let step = self.login.handle_admitted(Ok((9, parameters)));
        let LoginStep::Done(pdu) = step else { panic!("not done: {step:?}") };
        let Response::Login { stage, .. } = pdu.response else { panic!("{pdu:?}") };
        assert_eq!(pdu.response, response(stage, Some(3), false, 9, status::SUCCESS));
        (identity, parameters, show(&pdu.text))
    }

    /// The response to the challenge in `answer`, of `user`.
    fn reply(&self, answer: &str, user: &str, secret: &[u8]) -> String {
        let find = |key: &str| {
            let pair = answer.split('|').find(|pair| pair.starts_with(key)).unwrap();
            pair[key.len() + 1..].to_owned()
        };
        assert_eq!(find("CHAP_A"), "7");
        let id = find("CHAP_I").parse::<u8>().unwrap();
        let challenge = text::binary(&find("CHAP_C"), 1024).unwrap();
        let response = chap::ChapAlgorithm::Sha256.respond(id, secret, &challenge);
        format!("CHAP_N={user}|CHAP_R={}|", text::hexadecimal(&response))
    }

    /// Goes through AuthMethod and the challenge. Returns the keys of the response.
    #[track_caller]
    fn challenge(&mut self, first: &str, user: &str, secret: &[u8]) -> String {
        let step = self.send(go(0, 1), &format!("{first}AuthMethod=CHAP,None|"));
        assert!(text_of(&step).ends_with("AuthMethod=CHAP|"), "{step:?}");
        let step = self.send(go(0, 1), "CHAP_A=5,7|");
        self.reply(&text_of(&step), user, secret)
    }
}

fn response(stage: u8, next: Option<u8>, more: bool, tsih: u16, status: u16) -> Response {
    Response::Login {
        transit: next.is_some(),
        more,
        stage,
        next: next.unwrap_or_default(),
        version_max: 0,
        version_active: 0,
        isid: ISID,
        tsih,
        status,
    }
}

fn show(text: &[u8]) -> String {
    String::from_utf8(text.to_vec()).unwrap().replace('\0', "|")
}

#[track_caller]
fn text_of(step: &LoginStep) -> String {
    let LoginStep::Send(pdu) = step else { panic!("no answer: {step:?}") };
    show(&pdu.text)
}

/// The status of a refusal; `None` without a response.
#[track_caller]
fn refused(step: &LoginStep) -> Option<u16> {
    let LoginStep::Fail { response, reason } = step else { panic!("not refused: {step:?}") };
    assert!(!reason.is_empty());
    let pdu = response.as_ref()?;
    let Response::Login { transit, more, status, .. } = pdu.response else { panic!("{pdu:?}") };
    assert!(!transit && !more);
    assert_eq!(pdu.text.is_empty(), status != status::MOVED, "{pdu:?}");
    Some(status)
}

fn names(volume: &str) -> String {
    format!("InitiatorName={INITIATOR}|TargetName=iqn.2026-11.io.longhaul:{volume}|")
}

fn discovery() -> String {
    format!("InitiatorName={INITIATOR}|SessionType=Discovery|")
}

const OWN_KEYS: &str = "MaxRecvDataSegmentLength=262144|TargetAlias=Open|";

#[test]
fn through_both_stages() {
    let mut talk = Talk::afar();
    let text =
        format!("{}InitiatorAlias=me|SessionType=Normal|AuthMethod=CHAP,None|", names("OPEN"));
    talk.expect(go(0, 1), &text, Some(1), "TargetPortalGroupTag=1|AuthMethod=None|");
    talk.expect(
        stay(1),
        "HeaderDigest=CRC32C,None|MaxRecvDataSegmentLength=65536|X-com.example=1|",
        None,
        &format!("X-com.example=NotUnderstood|{OWN_KEYS}HeaderDigest=CRC32C|"),
    );
    let step = talk.send(go(1, 3), "InitialR2T=No|ErrorRecoveryLevel=1|");
    let (identity, parameters, text) = talk.finish(step, "Open");
    assert_eq!(text, "InitialR2T=No|ErrorRecoveryLevel=1|");
    assert_eq!(
        identity,
        Identity {
            initiator: INITIATOR.to_owned(),
            alias: "me".to_owned(),
            isid: ISID,
            tsih: 0,
            cid: 3,
            volume: Some("Open".to_owned()),
            user: None,
        }
    );
    assert!(parameters.header_digest && !parameters.data_digest && !parameters.initial_r2t);
    assert_eq!(parameters.initiator_data_segment, 65_536);
    assert_eq!(parameters.target_data_segment, 262_144);
    assert_eq!(parameters.error_recovery_level, 1);
    assert_eq!(refused(&talk.send(stay(1), "")), None, "used up");
}

#[test]
fn the_short_ways() {
    // From security straight to the full feature phase, with and without AuthMethod.
    for method in ["", "AuthMethod=None|", "AuthMethod=KRB5,None|"] {
        let mut talk = Talk::afar();
        let step = talk.send(go(0, 3), &format!("{}{method}", names("Open")));
        let (_, parameters, _) = talk.finish(step, "Open");
        assert_eq!(parameters, Negotiation::new(false, true).settle());
    }
    // The login begins in the operational stage.
    let mut talk = Talk::afar();
    let step = talk.send(go(1, 3), &format!("{}DataDigest=CRC32C|", names("Open")));
    let (_, parameters, text) = talk.finish(step, "Open");
    assert_eq!(text, format!("TargetPortalGroupTag=1|{OWN_KEYS}DataDigest=CRC32C|"));
    assert!(parameters.data_digest);
    // A target with small bursts requires the operational stage.
    let config = Config { max_burst: 65_536, first_burst: 65_536, ..config() };
    let mut talk = Talk::new(config, access(), false);
    talk.expect(go(0, 3), &names("Open"), Some(1), "TargetPortalGroupTag=1|");
    talk.expect(go(1, 3), "", None, &format!("{OWN_KEYS}MaxBurstLength=65536|"));
    let step = talk.send(go(1, 3), "MaxBurstLength=65536|");
    assert_eq!(talk.finish(step, "Open").1.max_burst, 65_536);
}

#[test]
fn an_offer_has_to_be_answered() {
    let config = Config { max_burst: 65_536, ..config() };
    let mut talk = Talk::new(config, access(), false);
    assert!(text_of(&talk.send(go(1, 3), &names("Open"))).ends_with("MaxBurstLength=65536|"));
    assert_eq!(refused(&talk.send(go(1, 3), "")), Some(status::INITIATOR_ERROR));
}

#[test]
fn one_way_and_mutual_chap() {
    for back in ["", "CHAP_I=9|CHAP_C=0x0102030405060708090a0b0c0d0e0f10|"] {
        let mut talk = Talk::afar();
        let reply = talk.challenge(&names("alices"), "alice", SECRET);
        let answer = match back {
            "" => String::new(),
            _ => {
                let challenge: Vec<u8> = (1..=16).collect();
                let response = chap::ChapAlgorithm::Sha256.respond(9, OWN, &challenge);
                format!("CHAP_N=target|CHAP_R={}|", text::hexadecimal(&response))
            }
        };
        talk.expect(go(0, 1), &format!("{reply}{back}"), Some(1), &answer);
        let step = talk.send(go(1, 3), "");
        let (identity, ..) = talk.finish(step, "alices");
        assert_eq!(identity.user.as_deref(), Some("alice"));
    }
    // The response without leaving the stage, then a request for the full feature phase.
    let mut talk = Talk::afar();
    let reply = talk.challenge(&names("alices"), "alice", SECRET);
    talk.expect(stay(0), &reply, None, "");
    let step = talk.send(go(0, 3), "");
    talk.finish(step, "alices");
    // An initiator that needs no CHAP may insist on it.
    let mut talk = Talk::afar();
    talk.expect(
        stay(0),
        &format!("{}AuthMethod=CHAP|", names("Open")),
        None,
        "TargetPortalGroupTag=1|AuthMethod=CHAP|",
    );
    let step = talk.send(stay(0), "CHAP_A=7|");
    let reply = talk.reply(&text_of(&step), "bob", b"a secret of bob");
    let step = talk.send(go(0, 3), &reply);
    assert_eq!(talk.finish(step, "Open").0.user.as_deref(), Some("bob"));
}

#[test]
fn chap_that_fails() {
    let expect = |volume: &str, user: &str, secret: &[u8], add: &str, wanted| {
        let mut talk = Talk::afar();
        let reply = talk.challenge(&names(volume), user, secret);
        let step = talk.send(go(0, 1), &format!("{reply}{add}"));
        assert_eq!(refused(&step), wanted, "{volume} {user} {add}");
    };
    let challenge = text::hexadecimal(&std::array::from_fn::<u8, 32, _>(|i| i as u8));
    expect("alices", "alice", b"wrong", "", Some(status::AUTHENTICATION));
    expect("alices", "carol", SECRET, "", Some(status::AUTHENTICATION));
    expect("alices", "alice", SECRET, "CHAP_I=1|", Some(status::INITIATOR_ERROR));
    expect("alices", "alice", SECRET, &format!("CHAP_I=1|CHAP_C={challenge}|"), None);
    // The user differs from the grant's.
    expect("alices", "bob", b"a secret of bob", "", Some(status::AUTHORIZATION));

    for (flags, text, wanted) in [
        (go(0, 1), "", status::AUTHENTICATION),
        (go(0, 1), "X-a=1|", status::AUTHENTICATION),
        (stay(0), "CHAP_A=5|", status::AUTHENTICATION),
        (stay(0), "CHAP_N=alice|CHAP_R=0x00|", status::INITIATOR_ERROR),
        (stay(0), "AuthMethod=None|", status::INITIATOR_ERROR),
    ] {
        let mut talk = Talk::afar();
        talk.send(stay(0), &format!("{}AuthMethod=CHAP|", names("alices")));
        assert_eq!(refused(&talk.send(flags, text)), Some(wanted), "{text}");
    }
    // Requests without progress are allowed.
    let mut talk = Talk::afar();
    talk.send(stay(0), &format!("{}AuthMethod=CHAP|", names("alices")));
    talk.expect(stay(0), "", None, "");
    assert!(text_of(&talk.send(stay(0), "CHAP_A=8|")).starts_with("CHAP_A=8|"));
}

#[test]
fn what_needs_chap_is_not_had_without() {
    for volume in ["alices", "nobodys", "none", "alicesgone"] {
        let say = |flags, text: &str| {
            refused(&Talk::afar().send(flags, &format!("{}{text}", names(volume))))
        };
        assert_eq!(say(go(0, 1), "AuthMethod=None|"), Some(status::AUTHENTICATION), "{volume}");
        assert_eq!(say(stay(0), "AuthMethod=|"), Some(status::AUTHENTICATION));
        assert_eq!(say(stay(0), "AuthMethod=SRP,KRB5|"), Some(status::AUTHENTICATION));
        assert_eq!(say(go(0, 3), ""), Some(status::AUTHENTICATION));
        assert_eq!(say(go(1, 3), ""), Some(status::AUTHENTICATION));
        assert_eq!(say(stay(1), ""), Some(status::AUTHENTICATION));
        assert_eq!(say(stay(0), "AuthMethod=CHAP|CHAP_A=7|"), Some(status::INITIATOR_ERROR));
        assert_eq!(say(stay(0), "CHAP_A=7|"), Some(status::INITIATOR_ERROR));
    }
}

/// An unknown target and one without a grant look the same, before and after authentication.
#[test]
fn strangers_learn_nothing() {
    let dialogue = |volume: &str, user: &str, secret: &[u8]| {
        let mut talk = Talk::afar();
        let first = talk.send(stay(0), &format!("{}AuthMethod=CHAP,None|", names(volume)));
        let second = talk.send(stay(0), "CHAP_A=7|");
        let reply = talk.reply(&text_of(&second), user, secret);
        let third = talk.send(go(0, 1), &reply);
        (text_of(&first), text_of(&second), refused(&third))
    };
    for (user, secret, wanted) in [
        ("mallory", &b"whatever it may be"[..], status::AUTHENTICATION),
        ("bob", b"a secret of bob", status::AUTHORIZATION),
    ] {
        let known = dialogue("alices", user, secret);
        assert_eq!(known.2, Some(wanted));
        for volume in ["nobodys", "none", "alicesgone", "a:b", "a:b:c"] {
            assert_eq!(dialogue(volume, user, secret), known, "{volume} {user}");
        }
    }
    // Without CHAP users, nobody can authenticate.
    let access = Access { users: Default::default(), ..access() };
    for volume in ["alices", "nobodys", "none", "alicesgone", "a:b", "a:b:c"] {
        let mut talk = Talk::new(config(), access.clone(), false);
        let step = talk.send(stay(0), &format!("{}AuthMethod=CHAP,None|", names(volume)));
        assert_eq!(refused(&step), Some(status::AUTHORIZATION), "{volume}");
    }
}

#[test]
fn on_loopback() {
    let say = |volume: &str| {
        let mut talk = Talk::new(config(), access(), true);
        let step = talk.send(go(0, 3), &names(volume));
        (talk, step)
    };
    let (mut talk, step) = say("Unnamed");
    assert_eq!(talk.finish(step, "Unnamed").0.volume.as_deref(), Some("Unnamed"));
    for (volume, wanted) in [
        ("nobodys", status::AUTHORIZATION),
        ("alices", status::AUTHENTICATION),
        ("a:b:c", status::NOT_FOUND),
    ] {
        assert_eq!(refused(&say(volume).1), Some(wanted), "{volume}");
    }
}

#[test]
fn redirection() {
    let mut talk = Talk::afar();
    let step = talk.send(go(0, 1), &names("gone"));
    let LoginStep::Fail { response: Some(pdu), .. } = &step else { panic!("{step:?}") };
    assert_eq!(show(&pdu.text), "TargetAddress=10.9.9.9:3260|");
    assert_eq!(refused(&step), Some(status::MOVED));
    assert_eq!(refused(&Talk::afar().send(stay(1), &names("gone"))), Some(status::MOVED));
    let mut talk = Talk::afar();
    let reply = talk.challenge(&names("alicesgone"), "alice", SECRET);
    assert_eq!(refused(&talk.send(go(0, 1), &reply)), Some(status::MOVED));
    // A connection that joins a session is not redirected.
    let step = Talk::afar().joining(5).send(go(0, 3), &names("gone"));
    assert!(matches!(step, LoginStep::Admit { .. }), "{step:?}");
}

#[test]
fn discovery_sessions() {
    // A target that needs no proof is visible without one.
    let mut talk = Talk::afar();
    let text = format!("{}AuthMethod=None|", discovery());
    talk.expect(go(0, 1), &text, Some(1), "AuthMethod=None|");
    let step = talk.send(go(1, 3), "ErrorRecoveryLevel=2|MaxBurstLength=65536|");
    let LoginStep::Admit { identity, parameters } = step else { panic!("{step:?}") };
    assert_eq!(identity.volume, None);
    assert_eq!(parameters.error_recovery_level, 0);
    let LoginStep::Done(pdu) = talk.login.handle_admitted(Ok((4, parameters))) else { panic!() };
    assert_eq!(
        show(&pdu.text),
        "MaxRecvDataSegmentLength=262144|ErrorRecoveryLevel=0|MaxBurstLength=Irrelevant|"
    );
    // With CHAP, if the initiator lists it first.
    let mut talk = Talk::afar();
    let reply = talk.challenge(&discovery(), "alice", SECRET);
    let step = talk.send(go(0, 3), &reply);
    let LoginStep::Admit { identity, .. } = step else { panic!("{step:?}") };
    assert_eq!(identity.user.as_deref(), Some("alice"));
    // An unknown initiator, and one whose grants all ask for CHAP.
    let stranger = "InitiatorName=iqn.2001-04.com.example:x|SessionType=Discovery|";
    assert_eq!(refused(&Talk::afar().send(go(0, 3), stranger)), Some(status::AUTHENTICATION));
    let mut talk = Talk::afar();
    let reply = talk.challenge(stranger, "bob", b"a secret of bob");
    assert_eq!(refused(&talk.send(go(0, 3), &reply)), Some(status::AUTHORIZATION));
    let mut access = access();
    access.volumes.retain(|volume, _| volume == "alices");
    let mut talk = Talk::new(config(), access.clone(), false);
    assert_eq!(refused(&talk.send(go(0, 3), &discovery())), Some(status::AUTHENTICATION));
    access.users.clear();
    for who in [discovery().as_str(), stranger] {
        let mut talk = Talk::new(config(), access.clone(), false);
        assert_eq!(refused(&talk.send(go(0, 3), who)), Some(status::AUTHORIZATION));
        let mut talk = Talk::new(config(), access.clone(), true);
        assert!(matches!(talk.send(go(0, 3), who), LoginStep::Admit { .. }));
    }
    let step = Talk::afar().joining(5).send(stay(0), &discovery());
    assert_eq!(refused(&step), Some(status::CANNOT_INCLUDE));
}

#[test]
fn joining_a_session() {
    let mut talk = Talk::afar().joining(5);
    let step =
        talk.send(go(1, 3), &format!("{}MaxConnections=2|HeaderDigest=CRC32C|", names("open")));
    let LoginStep::Admit { identity, parameters } = step else { panic!("{step:?}") };
    assert_eq!((identity.tsih, identity.volume.as_deref()), (5, Some("Open")));
    assert!(parameters.header_digest);
    let LoginStep::Done(pdu) = talk.login.handle_admitted(Ok((5, parameters))) else { panic!() };
    assert!(show(&pdu.text).ends_with("MaxConnections=Irrelevant|HeaderDigest=CRC32C|"));
    assert_eq!(pdu.response, response(1, Some(3), false, 5, status::SUCCESS));
}

#[test]
fn refusals_of_others() {
    let talk = || {
        let mut talk = Talk::afar();
        let step = talk.send(go(0, 3), &names("Open"));
        (talk, step)
    };
    let (mut talk_a, _) = talk();
    let step = talk_a.login.handle_opened(Err((status::UNAVAILABLE, "no store".to_owned())));
    assert_eq!(refused(&step), Some(status::UNAVAILABLE));
    let (mut talk_b, _) = talk();
    talk_b.login.handle_opened(Ok(()));
    let why = (status::TOO_MANY_CONNECTIONS, "too many".to_owned());
    assert_eq!(
        refused(&talk_b.login.handle_admitted(Err(why))),
        Some(status::TOO_MANY_CONNECTIONS)
    );
    // A request before the answer.
    let (mut talk_c, _) = talk();
    assert_eq!(refused(&talk_c.send(stay(0), "")), None);
    assert_eq!(refused(&Talk::afar().login.handle_opened(Ok(()))), None);
    let parameters = Negotiation::new(false, true).settle();
    assert_eq!(refused(&Talk::afar().login.handle_admitted(Ok((1, parameters)))), None);
}

#[test]
fn first_requests_that_are_refused() {
    let target = "TargetName=iqn.2026-11.io.longhaul:Open|";
    for (flags, text, wanted) in [
        (stay(0), target.to_owned(), status::MISSING_PARAMETER),
        (stay(0), String::new(), status::MISSING_PARAMETER),
        (stay(0), format!("InitiatorName={INITIATOR}|"), status::MISSING_PARAMETER),
        (stay(0), format!("InitiatorName=i|{target}"), status::INITIATOR_ERROR),
        (stay(0), format!("InitiatorName={}|{target}", "i".repeat(300)), status::INITIATOR_ERROR),
        (stay(0), format!("{}SessionType=Odd|", names("Open")), status::SESSION_TYPE),
        (stay(0), format!("{0}{0}", names("Open")), status::INITIATOR_ERROR),
        (stay(0), format!("{}TargetAlias=x|", names("Open")), status::INITIATOR_ERROR),
        (stay(0), format!("{}TargetPortalGroupTag=1|", names("Open")), status::INITIATOR_ERROR),
        (stay(0), format!("{}HeaderDigest=None|", names("Open")), status::INITIATOR_ERROR),
        (stay(0), format!("{}SendTargets=All|", names("Open")), status::INITIATOR_ERROR),
        (stay(1), format!("{}AuthMethod=None|", names("Open")), status::INITIATOR_ERROR),
        (stay(1), format!("{}CHAP_A=7|", names("Open")), status::INITIATOR_ERROR),
        (stay(1), format!("{}HeaderDigest=Odd|", names("Open")), status::INITIATOR_ERROR),
        (stay(0), format!("{}Odd", names("Open")), status::INITIATOR_ERROR),
        (stay(0), format!("{}Odd|", names("Open")), status::INITIATOR_ERROR),
        (stay(2), names("Open"), status::INITIATOR_ERROR),
        (stay(3), names("Open"), status::INITIATOR_ERROR),
        (go(0, 0), names("Open"), status::INITIATOR_ERROR),
        (go(0, 2), names("Open"), status::INITIATOR_ERROR),
        (go(1, 0), names("Open"), status::INITIATOR_ERROR),
        (go(1, 1), names("Open"), status::INITIATOR_ERROR),
        (go(1, 2), names("Open"), status::INITIATOR_ERROR),
        (Flags { more: true, ..go(0, 1) }, names("Open"), status::INITIATOR_ERROR),
        (stay(0), format!("{}{}", names("Open"), "A".repeat(8192)), status::INITIATOR_ERROR),
    ] {
        assert_eq!(refused(&Talk::afar().send(flags, &text)), Some(wanted), "{text}");
    }
    let odd =
        |change: fn(&mut RequestHeader)| Talk::afar().with(change).send(stay(0), &names("Open"));
    let step = odd(|header| {
        if let Request::Login { version_min, version_max, .. } = &mut header.request {
            (*version_min, *version_max) = (1, 2);
        }
    });
    assert_eq!(refused(&step), Some(status::VERSION));
    assert_eq!(refused(&odd(|header| header.ahs_bytes = 4)), Some(status::INITIATOR_ERROR));
    assert_eq!(refused(&odd(|header| header.request = Request::Unknown)), None);
    let step = odd(|header| {
        if let Request::Login { version_max, .. } = &mut header.request {
            *version_max = 9;
        }
    });
    assert!(matches!(step, LoginStep::Send(_)), "a newer initiator that speaks ours");
}

#[test]
fn later_requests_that_are_refused() {
    let say = |change: fn(&mut RequestHeader), flags: Flags, text: &str| {
        let mut talk = Talk::afar();
        talk.expect(stay(0), &names("Open"), None, "TargetPortalGroupTag=1|");
        refused(&talk.with(change).send(flags, text))
    };
    let error = Some(status::INITIATOR_ERROR);
    assert_eq!(say(|_| {}, stay(1), ""), error, "the stage was not left");
    assert_eq!(say(|_| {}, stay(0), "InitiatorName=iqn.2001-04.com.example:j|"), error);
    assert_eq!(say(|_| {}, stay(0), "SessionType=Discovery|"), error, "too late");
    assert_eq!(say(|header| header.itt = 78, stay(0), ""), error);
    assert_eq!(
        say(
            |header| {
                if let Request::Login { cid, .. } = &mut header.request {
                    *cid = 4;
                }
            },
            stay(0),
            ""
        ),
        error
    );
    assert_eq!(
        say(|header| header.request = Request::Unknown, stay(0), ""),
        Some(status::INVALID_REQUEST)
    );
    // A request for an earlier stage.
    let mut talk = Talk::afar();
    talk.expect(go(0, 1), &names("Open"), Some(1), "TargetPortalGroupTag=1|");
    assert_eq!(refused(&talk.send(stay(0), "")), error);
    // The same key in two requests.
    let mut talk = Talk::afar();
    talk.send(stay(1), &format!("{}HeaderDigest=None|", names("Open")));
    assert_eq!(refused(&talk.send(stay(1), "HeaderDigest=None|")), error);
    // A login that never ends.
    let mut talk = Talk::afar();
    talk.send(stay(0), &names("Open"));
    for _ in 1..MAX_REQUESTS {
        talk.expect(stay(0), "", None, "");
    }
    assert_eq!(refused(&talk.send(stay(0), "")), error);
}

#[test]
fn text_in_pieces_both_ways() {
    let mut talk = Talk::afar();
    let whole = names("Open").replace('|', "\0");
    let (a, b) = whole.as_bytes().split_at(20);
    assert_eq!(text_of(&talk.raw(more(1), a)), "");
    let step = talk.raw(stay(1), b);
    assert!(text_of(&step).starts_with("TargetPortalGroupTag=1|"));
    let unknown: String = (0..100).map(|i| format!("X-{i}=|")).collect();
    let mut step = talk.send(go(1, 3), &format!("{unknown}MaxRecvDataSegmentLength=512|"));
    let mut text = String::new();
    while let LoginStep::Send(pdu) = &step {
        assert_eq!(pdu.response, response(1, None, true, 0, 0));
        assert_eq!(pdu.text.len(), 512);
        text.push_str(&show(&pdu.text));
        step = talk.send(go(1, 3), "");
    }
    text.push_str(&talk.finish(step, "Open").2);
    assert_eq!(text.matches("=NotUnderstood|").count(), 100);

    // The last piece goes with the transition that the last request asks for.
    let mut talk = Talk::afar();
    talk.send(stay(1), &format!("{}MaxRecvDataSegmentLength=512|", names("Open")));
    talk.send(go(1, 3), &(0..40).map(|i| format!("X-{i}=|")).collect::<String>());
    assert!(matches!(talk.send(stay(1), ""), LoginStep::Send(_)));
    let step = talk.send(go(1, 3), "");
    assert_eq!(talk.finish(step, "Open").2, "");

    // Text in a request that must be empty; too much text.
    let mut talk = Talk::afar();
    talk.send(stay(1), &format!("{}MaxRecvDataSegmentLength=512|", names("Open")));
    talk.send(go(1, 3), &unknown);
    assert_eq!(refused(&talk.send(go(1, 3), "A=1|")), Some(status::INITIATOR_ERROR));
    let mut talk = Talk::afar();
    for _ in 0..2 {
        assert_eq!(text_of(&talk.raw(more(0), &[b'A'; 8192])), "");
    }
    assert_eq!(refused(&talk.raw(more(0), b"A")), Some(status::INITIATOR_ERROR));
}

#[test]
fn keys_of_any_stage() {
    let mut talk = Talk::afar();
    talk.expect(
        go(0, 1),
        &format!("{}X#NodeArchitecture=a,b|Y-x=1|AuthMethod=None|", names("Open")),
        Some(1),
        "TargetPortalGroupTag=1|Y-x=NotUnderstood|AuthMethod=None|",
    );
    let long = "ä".repeat(200);
    let step = talk.send(go(1, 3), &format!("InitiatorAlias={long}|RDMAExtensions=Yes|"));
    let (identity, _, text) = talk.finish(step, "Open");
    assert_eq!(identity.alias, "ä".repeat(127));
    assert_eq!(text, format!("RDMAExtensions=NotUnderstood|{OWN_KEYS}"));
}

/// Pieces of text with which logins make progress.
fn part() -> impl Strategy<Value = Vec<u8>> {
    let text = |text: &str| Just(text.replace('|', "\0").into_bytes());
    prop_oneof![
        text(&names("Open")),
        text(&names("alices")),
        text(&discovery()),
        text("AuthMethod=CHAP,None|"),
        text("AuthMethod=None|"),
        text("CHAP_A=7|"),
        text("CHAP_N=alice|CHAP_R=0x00|"),
        text("HeaderDigest=CRC32C|"),
        text("MaxRecvDataSegmentLength=512|"),
        text("MaxBurstLength=512|"),
        (0..1000u32).prop_map(|n| (0..200)
            .map(|i| format!("X-{n}-{i}=\0"))
            .collect::<String>()
            .into_bytes()),
        prop::collection::vec(any::<u8>(), 0..30),
        Just(Vec::new()),
    ]
}

proptest! {
    /// Any text: answers keep to the limit, only permitted initiators get in, and the login ends.
    #[test]
    fn any_dialogue(
        stage in 0..4u8,
        requests in prop::collection::vec(
            (prop::option::weighted(0.1, 0..4u8), prop::option::of(0..4u8),
             prop::bool::weighted(0.1),
             prop::collection::vec(part(), 0..3)),
            1..20),
        small: bool,
    ) {
        let mut config = config();
        if small {
            config.max_burst = 4096;
        }
        let mut talk = Talk::new(config, access(), false);
        let mut current = stage;
        for (jump, next, more, parts) in requests {
            let flags = Flags { stage: jump.unwrap_or(current), next, more };
            let mut step = talk.raw(flags, &parts.concat());
            if let LoginStep::Open { volume } = &step {
                prop_assert_eq!(volume, "Open");
                step = talk.login.handle_opened(Ok(()));
            }
            if let LoginStep::Admit { identity, parameters } = &step {
                prop_assert_eq!(&identity.user, &None);
                prop_assert!(matches!(identity.volume.as_deref(), None | Some("Open")));
                let parameters = *parameters;
                let most = talk.config.max_burst;
                prop_assert!(identity.volume.is_none() || parameters.max_burst <= most);
                step = talk.login.handle_admitted(Ok((1, parameters)));
            }
            match step {
                LoginStep::Send(pdu) => {
                    prop_assert!(pdu.text.len() <= 8192);
                    let Response::Login { transit, more, stage, next, .. } = pdu.response else {
                        return Err(TestCaseError::fail("no login response"));
                    };
                    prop_assert!(!(transit && more));
                    prop_assert!(!transit || flags.next.is_some_and(|wanted| next <= wanted));
                    prop_assert!(!transit || next > stage);
                    current = if transit { next } else { stage };
                }
                LoginStep::Done(_) | LoginStep::Fail { .. } => {
                    prop_assert_eq!(refused(&talk.raw(stay(current), b"")), None);
                    return Ok(());
                }
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }
}
