//! The grammar of text, and complete exchanges.

use super::*;
use crate::front::iscsi::text::*;
use crate::front::iscsi::{Grant, Secret};
use proptest::prelude::*;
use std::time::Duration;

const INITIATOR: &str = "iqn.2001-04.com.example:i";

pub(in crate::front::iscsi) fn config() -> Config {
    Config {
        error_recovery_level: 2,
        max_connections: 4,
        max_recv_data_segment: 1 << 18,
        max_burst: 1 << 20,
        first_burst: 1 << 18,
        max_outstanding_r2t: 8,
        commands: 128,
        session_bytes: 1 << 26,
        ping_after: Duration::from_secs(5),
        ping_limit: Duration::from_secs(5),
        login_limit: Duration::from_secs(15),
        sessions_per_initiator: 8,
        weak_chap: false,
        has_others: false,
        portals: vec!["0.0.0.0:3260".to_owned(), "10.0.0.2:3261".to_owned()],
    }
}

fn access() -> Access {
    let grant = |user: Option<&str>| Grant {
        initiator: INITIATOR.to_owned(),
        user: user.map(str::to_owned),
    };
    Access {
        users: [("alice".to_owned(), Secret(b"a secret of alice".to_vec()))].into(),
        target_user: None,
        volumes: [
            ("Open".to_owned(), vec![grant(None)]),
            ("alices".to_owned(), vec![grant(Some("alice"))]),
            ("nobodys".to_owned(), vec![]),
            ("gone".to_owned(), vec![grant(None)]),
        ]
        .into(),
        moved: [("gone".to_owned(), "10.9.9.9:3260".to_owned())].into(),
    }
}

fn exchange(volume: Option<&str>, user: Option<&str>, loopback: bool) -> TextExchange {
    let identity = Identity {
        initiator: INITIATOR.to_owned(),
        alias: String::new(),
        isid: [0; 6],
        tsih: 1,
        cid: 0,
        volume: volume.map(str::to_owned),
        user: user.map(str::to_owned),
    };
    let peer =
        Peer { address: "10.0.0.9:40000".to_owned(), portal: "10.0.0.1:3260".to_owned(), loopback };
    TextExchange::new(identity, peer, 8192)
}

fn header(itt: u32, ttt: u32, last: bool, more: bool) -> RequestHeader {
    RequestHeader {
        opcode: crate::wire::iscsi::opcode::TEXT,
        immediate: false,
        ahs_bytes: 0,
        data_bytes: 0,
        itt,
        cmd_sn: 0,
        exp_stat_sn: 0,
        request: Request::Text { last, more, lun: 0, ttt },
    }
}

/// Sends one complete request. `volumes` are all volumes, if the exchange asks for them.
fn ask(exchange: &mut TextExchange, itt: u32, ttt: u32, text: &str) -> TextStep {
    let (config, access) = (config(), access());
    let step =
        exchange.handle_request(&config, &access, &header(itt, ttt, true, false), text.as_bytes());
    match step {
        TextStep::List => {
            let all = ["Open", "alices", "nobodys", "unnamed"].map(str::to_owned);
            exchange.handle_listed(&config, &access, &all)
        }
        step => step,
    }
}

fn text_of(step: &TextStep) -> String {
    match step {
        TextStep::Send { pdu, .. } => String::from_utf8_lossy(&pdu.text).replace('\0', "|"),
        other => panic!("no answer: {other:?}"),
    }
}

fn flags_of(step: &TextStep) -> (bool, bool, u32) {
    match step {
        TextStep::Send {
            pdu: TextPdu { response: Response::Text { last, more, ttt, .. }, .. },
            ..
        } => (*last, *more, *ttt),
        other => panic!("no answer: {other:?}"),
    }
}

#[test]
fn grammar() {
    let pair = |key, value| TextPair { key, value };
    assert_eq!(parse(b""), Ok(vec![]));
    assert_eq!(parse(b"\0\0\0"), Ok(vec![]));
    assert_eq!(parse(b"A=1\0B=\0"), Ok(vec![pair("A", "1"), pair("B", "")]));
    assert_eq!(parse(b"A=1=2\0\0\0"), Ok(vec![pair("A", "1=2")]));
    assert_eq!(parse(b"X-com.example.a+b@c_d=?\0"), Ok(vec![pair("X-com.example.a+b@c_d", "?")]));
    assert_eq!(parse(b"iSCSIProtocolLevel=2\0"), Ok(vec![pair("iSCSIProtocolLevel", "2")]));
    assert_eq!(parse(b"A=1"), Err(TextError::Unterminated));
    assert_eq!(parse(b"A=1\0B"), Err(TextError::Unterminated));
    assert_eq!(parse(b"A=1\0B\0"), Err(TextError::NoSeparator));
    assert_eq!(parse(b"A=1\0\0B=1\0"), Err(TextError::NoSeparator));
    for key in ["", "1A", "A B", "A\u{e4}", &"A".repeat(64)] {
        let text = format!("{key}=1\0");
        assert!(matches!(parse(text.as_bytes()), Err(TextError::KeyName(_))), "{key}");
    }
    assert!(parse(format!("{}=1\0", "A".repeat(63)).as_bytes()).is_ok());
    for value in [&b"A=\xff\0"[..], b"A=\x07\0", b"A=a\nb\0"] {
        assert_eq!(parse(value), Err(TextError::Value("A".to_owned())));
    }
}

#[test]
fn numbers() {
    for (text, value) in [
        ("0", Some(0)),
        ("8192", Some(8192)),
        ("0x2000", Some(8192)),
        ("0X00ff", Some(255)),
        ("18446744073709551615", Some(u64::MAX)),
        ("0xffffffffffffffff", Some(u64::MAX)),
        ("18446744073709551616", None),
        ("0x10000000000000000", None),
        ("", None),
        ("00", None),
        ("010", None),
        ("+1", None),
        ("-1", None),
        ("0x", None),
        ("0x+1", None),
        ("1 ", None),
        ("?", None),
        ("0bAQ==", None),
        (&format!("0x{}1", "0".repeat(252)), Some(1)),
        (&format!("0x{}1", "0".repeat(253)), None),
    ] {
        assert_eq!(number(text), value, "{text}");
    }
}

#[test]
fn binaries() {
    for (text, value) in [
        ("0x00ff", Some(&b"\x00\xff"[..])),
        ("0Xabc", Some(b"\x0a\xbc")),
        ("0bAP8=", Some(b"\x00\xff")),
        ("0BAA==", Some(b"\x00")),
        ("0bAAEC", Some(b"\x00\x01\x02")),
        ("0b+/8=", Some(b"\xfb\xff")),
        ("0x00010203", None),
        ("0bAAECAw==", None),
        ("0x", None),
        ("0b", None),
        ("0bAP9=", None),
        ("0bAP8", None),
        ("0bA===", None),
        ("0bA=A=", None),
        ("0x0g", None),
        ("17", None),
        ("", None),
    ] {
        assert_eq!(binary(text, 3).as_deref(), value, "{text}");
    }
}

#[test]
fn discovery_shows_what_may_be_used() {
    let open = "TargetName=iqn.2026-11.io.longhaul:open|TargetAddress=10.0.0.1:3260,1|\
                TargetAddress=10.0.0.2:3261,1|";
    let alices = open.replace(":open", ":alices");
    let unnamed = open.replace(":open", ":unnamed");
    let gone = "TargetName=iqn.2026-11.io.longhaul:gone|TargetAddress=10.9.9.9:3260,1|";
    for (user, loopback, wanted) in [
        (None, false, format!("{open}{gone}")),
        (Some("alice"), false, format!("{open}{alices}{gone}")),
        (None, true, format!("{open}{unnamed}{gone}")),
    ] {
        let mut exchange = exchange(None, user, loopback);
        let step = ask(&mut exchange, 7, RESERVED_TAG, "SendTargets=All\0");
        assert_eq!(text_of(&step), wanted);
        assert_eq!(flags_of(&step), (true, false, RESERVED_TAG));
    }
    let mut exchange = exchange(None, None, false);
    for (value, wanted) in [
        ("iqn.2026-11.io.longhaul:Open", open),
        ("iqn.2026-11.io.longhaul:gone", gone),
        ("iqn.2026-11.io.longhaul:alices", ""),
        ("iqn.2026-11.io.longhaul:unnamed", ""),
        ("iqn.2026-11.io.longhaul:none", ""),
        ("iqn.2001-04.com.example:x", ""),
        ("", "SendTargets=Reject|"),
        ("all", "SendTargets=Reject|"),
    ] {
        let step = ask(&mut exchange, 8, RESERVED_TAG, &format!("SendTargets={value}\0"));
        assert_eq!(text_of(&step), wanted, "{value}");
    }
}

#[test]
fn a_normal_session_sees_itself() {
    let own = "TargetName=iqn.2026-11.io.longhaul:open|TargetAddress=10.0.0.1:3260,1|\
               TargetAddress=10.0.0.2:3261,1|";
    let mut exchange = exchange(Some("Open"), None, false);
    for (value, wanted) in [
        ("", own),
        ("iqn.2026-11.io.longhaul:OPEN", own),
        ("iqn.2026-11.io.longhaul:gone", ""),
        ("All", "SendTargets=Reject|"),
    ] {
        let step = ask(&mut exchange, 8, RESERVED_TAG, &format!("SendTargets={value}\0"));
        assert_eq!(text_of(&step), wanted, "{value}");
    }
}

#[test]
fn keys_of_the_full_feature_phase() {
    let mut exchange = exchange(Some("Open"), None, false);
    let step = ask(
        &mut exchange,
        1,
        RESERVED_TAG,
        "MaxRecvDataSegmentLength=512\0InitiatorAlias=me\0HeaderDigest=None\0X-a=1\0Foo=2\0",
    );
    assert_eq!(text_of(&step), "HeaderDigest=Reject|X-a=NotUnderstood|Foo=NotUnderstood|");
    assert!(matches!(step, TextStep::Send { initiator_data_segment: Some(512), .. }));
    let step = ask(&mut exchange, 2, RESERVED_TAG, "MaxRecvDataSegmentLength=511\0");
    assert_eq!(text_of(&step), "MaxRecvDataSegmentLength=Reject|");
    assert!(matches!(step, TextStep::Send { initiator_data_segment: None, .. }));
    let step = ask(&mut exchange, 3, RESERVED_TAG, "SendTargets=\0SendTargets=\0");
    assert!(matches!(step, TextStep::Reject { reason: RejectReason::ProtocolError, .. }));
    let step = ask(&mut exchange, 4, RESERVED_TAG, "SendTargets");
    assert!(matches!(step, TextStep::Reject { reason: RejectReason::ProtocolError, .. }));
}

#[test]
fn text_in_pieces_both_ways() {
    let (config, access) = (config(), access());
    let mut exchange = exchange(None, None, false);
    let step = ask(&mut exchange, 1, RESERVED_TAG, "MaxRecvDataSegmentLength=512\0");
    assert_eq!(flags_of(&step), (true, false, RESERVED_TAG));

    let first = exchange.handle_request(
        &config,
        &access,
        &header(9, RESERVED_TAG, false, true),
        b"SendTar",
    );
    let (last, more, ttt) = flags_of(&first);
    assert!(!last && !more && ttt != RESERVED_TAG);
    let step =
        exchange.handle_request(&config, &access, &header(9, ttt, true, false), b"gets=All\0");
    assert_eq!(step, TextStep::List);
    // Only one request may be outstanding.
    let step =
        exchange.handle_request(&config, &access, &header(10, RESERVED_TAG, true, false), b"");
    assert!(matches!(step, TextStep::Reject { .. }));
    let mut access = access;
    let grants = access.volumes["Open"].clone();
    let volumes: Vec<String> = (0..20).map(|i| format!("v{i}")).collect();
    access.volumes.extend(volumes.iter().map(|volume| (volume.clone(), grants.clone())));
    let mut step = exchange.handle_listed(&config, &access, &volumes);
    let mut whole = String::new();
    let mut pieces = 0;
    loop {
        let text = text_of(&step);
        assert!(text.len() <= 512);
        whole.push_str(&text);
        pieces += 1;
        match flags_of(&step) {
            (true, false, RESERVED_TAG) => break,
            (false, true, again) => assert_eq!(again, ttt),
            other => panic!("{other:?}"),
        }
        step = exchange.handle_request(&config, &access, &header(9, ttt, true, false), b"");
    }
    assert_eq!(pieces, whole.len().div_ceil(512));
    assert_eq!(whole.matches("TargetName=").count(), 21);
    let step = exchange.handle_request(&config, &access, &header(9, ttt, true, false), b"");
    assert!(matches!(step, TextStep::Reject { reason: RejectReason::InvalidPduField, .. }));
}

#[test]
fn an_open_exchange_stays_open() {
    let (config, access) = (config(), access());
    let mut exchange = exchange(Some("Open"), None, false);
    let mut go = |itt, ttt, last, more, text: &[u8]| {
        exchange.handle_request(&config, &access, &header(itt, ttt, last, more), text)
    };
    let (last, more, ttt) =
        flags_of(&go(1, RESERVED_TAG, false, false, b"A=1\0MaxRecvDataSegmentLength=1024\0"));
    assert!(!last && !more && ttt != RESERVED_TAG);
    // A request with a tag of no exchange is rejected. The exchange goes on.
    assert!(matches!(go(2, ttt, true, false, b""), TextStep::Reject { .. }));
    assert!(matches!(go(1, ttt ^ 64, true, false, b""), TextStep::Reject { .. }));
    let step = go(1, ttt, true, false, b"B=1\0");
    assert_eq!(text_of(&step), "B=NotUnderstood|");
    assert!(matches!(step, TextStep::Send { initiator_data_segment: Some(1024), .. }));
    // The same key comes in two requests of one exchange.
    let (_, _, ttt) = flags_of(&go(1, RESERVED_TAG, false, false, b"A=1\0"));
    assert!(matches!(go(1, ttt, true, false, b"A=1\0"), TextStep::Reject { .. }));
    // A new exchange forgets the declarations.
    go(1, RESERVED_TAG, false, false, b"MaxRecvDataSegmentLength=512\0");
    let step = go(1, RESERVED_TAG, true, false, b"");
    assert!(matches!(step, TextStep::Send { initiator_data_segment: None, .. }));
    // The F and C bits together; text while the answer goes on; too much text.
    assert!(matches!(go(1, RESERVED_TAG, true, true, b""), TextStep::Reject { .. }));
    let unknown: String = (0..600).map(|i| format!("X-{i}=\0")).collect();
    let (_, more, ttt) = flags_of(&go(1, RESERVED_TAG, true, false, unknown.as_bytes()));
    assert!(more);
    assert!(matches!(go(1, ttt, true, false, b"A=1\0"), TextStep::Reject { .. }));
    let (_, _, ttt) = flags_of(&go(1, RESERVED_TAG, false, true, &[b'A'; 16_000]));
    let step = go(1, ttt, false, true, &[b'A'; 385]);
    assert!(matches!(step, TextStep::Reject { reason: RejectReason::LongOperationReject, .. }));
}

#[test]
fn portals_are_told_as_they_were_reached() {
    let told = |portals: &[&str], reached: &str| {
        let portals = portals.iter().map(|portal| (*portal).to_owned()).collect();
        let peer = Peer { address: String::new(), portal: reached.to_owned(), loopback: false };
        super::portals(&Config { portals, ..config() }, &peer)
    };
    assert_eq!(told(&[], "10.0.0.1:3260"), ["10.0.0.1:3260"]);
    assert_eq!(told(&["0.0.0.0:3260", "10.0.0.1:3260"], "10.0.0.1:3260"), ["10.0.0.1:3260"]);
    assert_eq!(told(&["[::]:3261"], "[fe80::1]:3261"), ["[fe80::1]:3261"]);
    assert_eq!(told(&["store.example:3260"], "10.0.0.1:3260"), ["store.example:3260"]);
    assert_eq!(host_of("[fe80::1]"), "[fe80::1]");
}

proptest! {
    #[test]
    fn any_text_is_parsed_or_refused(text in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(pairs) = parse(&text) {
            let mut again = ResponseText::default();
            for pair in &pairs {
                again.push(pair.key, pair.value);
            }
            prop_assert_eq!(parse(again.bytes()), Ok(pairs));
        }
    }

    #[test]
    fn binaries_come_back(bytes in prop::collection::vec(any::<u8>(), 1..100)) {
        prop_assert_eq!(binary(&hexadecimal(&bytes), 100), Some(bytes.clone()));
        prop_assert_eq!(binary(&hexadecimal(&bytes), bytes.len() - 1), None);
    }

    #[test]
    fn any_requests_are_answered_within_bounds(
        requests in prop::collection::vec(
            (0..3u32, prop::option::of(0..4u32), any::<bool>(), any::<bool>(),
             prop::collection::vec(prop_oneof![
                 Just(b"SendTargets=All\0".to_vec()),
                 Just(b"MaxRecvDataSegmentLength=600\0".to_vec()),
                 Just(b"Foo=1\0".to_vec()), Just(b"Bar=".to_vec()),
                 prop::collection::vec(any::<u8>(), 0..20), Just(vec![b'A'; 3000]),
             ], 0..4)),
            0..20),
        discovery: bool,
    ) {
        let (config, access) = (config(), access());
        let mut exchange = exchange((!discovery).then_some("Open"), None, true);
        let volumes: Vec<String> = (0..40).map(|i| format!("volume{i}")).collect();
        for (itt, ttt, last, more, parts) in requests {
            let header = header(itt, ttt.unwrap_or(RESERVED_TAG), last, more);
            let mut step = exchange.handle_request(&config, &access, &header, &parts.concat());
            if step == TextStep::List {
                step = exchange.handle_listed(&config, &access, &volumes);
            }
            match step {
                TextStep::Send { pdu: TextPdu { response, text }, .. } => {
                    let Response::Text { last: ends, more: goes_on, ttt, .. } = response else {
                        panic!()
                    };
                    prop_assert!(text.len() <= 8192);
                    prop_assert!(!(ends && goes_on));
                    prop_assert!(!ends || last, "ended what the initiator did not end");
                    prop_assert_eq!(ends, ttt == RESERVED_TAG);
                }
                TextStep::Reject { .. } => {}
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }
}
