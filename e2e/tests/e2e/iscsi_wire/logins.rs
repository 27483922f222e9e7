//! §6.3, §11.12, §11.13, §12, §13: logins by the book, and every other way.

use super::{INITIATOR, QUIET, Rig, SOON, is_closed, target};
use longhaul_e2e::initiator::connection::PATIENCE;
use longhaul_e2e::initiator::login::{Login, pairs, stage, text, value};
use longhaul_e2e::initiator::pdu::{self, NO_TAG, Pdu, op, reason};
use longhaul_e2e::initiator::{Connection, Received, Session};

/// The answer to a login request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// Status 0, and goes on to this stage, or does not.
    Goes(Option<u8>),
    /// This status class and detail, and the connection closed.
    Refused(u16),
    /// The connection closed without a word.
    Closed,
}

#[track_caller]
fn answer(connection: &mut Connection, request: &Pdu) -> Answer {
    connection.send(request);
    match connection.receive_within(PATIENCE) {
        Received::Pdu(pdu) => {
            assert_eq!(pdu.opcode(), op::LOGIN_RESPONSE, "{pdu:?}");
            let status = pdu.get16(36);
            if status != 0 {
                assert!(is_closed(connection, SOON), "§6.3: open after {status:#06x}");
                return Answer::Refused(status);
            }
            let next = (pdu.flags() & 0x80 != 0).then_some(pdu.flags() & 3);
            Answer::Goes(next)
        }
        Received::Closed => Answer::Closed,
        Received::Nothing => panic!("no answer to {request:?}"),
    }
}

/// Every value of CSG, NSG, T and C on a fresh connection (§11.12.1 to §11.12.3).
#[test]
fn every_stage_transition_of_a_first_request() {
    let mut rig = Rig::new();
    for flags in 0..=u8::MAX {
        if flags & 0x30 != 0 {
            // Reserved bits: anything may come of them but a hang or a crash.
            let login = rig.login();
            let mut connection = Connection::open(&login.address);
            connection.send(&login.request(0, None, &text(login.names())).with8(1, flags));
            let _ = connection.receive_within(SOON);
            continue;
        }
        let login = rig.login();
        let (transit, more) = (flags & 0x80 != 0, flags & 0x40 != 0);
        let (now, next) = (flags >> 2 & 3, flags & 3);
        let legal_next = next > now && next != 2;
        let mut keys = login.names();
        if now == stage::SECURITY {
            keys.push(("AuthMethod", "None"));
        }
        let request = login.request(now, None, &text(keys)).with8(1, flags);
        let mut connection = Connection::open(&login.address);
        let got = answer(&mut connection, &request);
        let right = match (transit, more) {
            // §11.12.3: 2 is reserved, and nobody logs in in the full feature phase.
            _ if now > stage::OPERATIONAL => got == Answer::Refused(0x0200),
            // §11.12.2: C and T exclude each other.
            (true, true) => got == Answer::Refused(0x0200),
            (true, false) if !legal_next => got == Answer::Refused(0x0200),
            (true, false) => got == Answer::Goes(Some(next)),
            (false, _) => got == Answer::Goes(None),
        };
        assert!(right, "flags {flags:#04x}: {got:?}");
    }
    rig.is_sound();
}

/// Second requests, after the target has agreed to go to the operational stage.
#[test]
fn every_stage_of_a_second_request() {
    let mut rig = Rig::new();
    for now in 0..4 {
        for next in [None, Some(0), Some(1), Some(2), Some(3)] {
            let login = rig.login();
            let mut connection = Connection::open(&login.address);
            let mut keys = login.names();
            keys.push(("AuthMethod", "None"));
            let first = login.request(stage::SECURITY, Some(stage::OPERATIONAL), &text(keys));
            assert_eq!(answer(&mut connection, &first), Answer::Goes(Some(1)));
            let got = answer(&mut connection, &login.request(now, next, &[]));
            let right = match (now, next) {
                (1, None) => Answer::Goes(None),
                (1, Some(3)) => Answer::Goes(Some(3)),
                _ => Answer::Refused(0x0200),
            };
            assert_eq!(got, right, "from {now} to {next:?}");
        }
    }
    rig.is_sound();
}

#[test]
fn fields_that_must_not_change_or_be_so() {
    let rig = Rig::new();
    // §11.12: of the second request, when the first was right.
    type Change = fn(&mut Pdu);
    let changes: [(&str, Change, Answer); 7] = [
        ("ISID", |pdu| pdu.header[13] ^= 1, Answer::Refused(0x0200)),
        ("TSIH", |pdu| pdu.header[15] = 9, Answer::Refused(0x0200)),
        ("CID", |pdu| pdu.header[21] = 9, Answer::Refused(0x0200)),
        ("task tag", |pdu| pdu.header[19] ^= 1, Answer::Refused(0x0200)),
        // §11.12.4: the target speaks only version 0.
        ("version", |pdu| pdu.header[3] = 1, Answer::Refused(0x0205)),
        (
            "additional header",
            |pdu| pdu.ahs = vec![0, 5, 1, 0, 0, 0, 0, 0],
            Answer::Refused(0x0200),
        ),
        // §6.3: only login requests until the full feature phase.
        ("opcode", |pdu| pdu.header[0] = op::NOP_OUT | 0x40, Answer::Refused(0x020b)),
    ];
    for (what, change, right) in changes {
        let login = rig.login();
        let mut connection = Connection::open(&login.address);
        let first = login.request(stage::OPERATIONAL, None, &text(login.names()));
        assert_eq!(answer(&mut connection, &first), Answer::Goes(None));
        let mut second = login.request(stage::OPERATIONAL, Some(stage::FULL), &[]);
        change(&mut second);
        connection.send(&second);
        match connection.receive_within(SOON) {
            Received::Pdu(pdu) => {
                let got = Answer::Refused(pdu.get16(36));
                assert!(pdu.opcode() == op::LOGIN_RESPONSE && got == right, "{what}: {pdu:?}");
                assert!(is_closed(&mut connection, SOON), "{what}: still open");
            }
            // A client of another protocol deserves no answer.
            Received::Closed => assert_eq!(what, "opcode"),
            Received::Nothing => panic!("{what}: no answer"),
        }
    }
    // The first PDU of all being something else: closed without a word (§6.3).
    for opcode in (0..0x40).filter(|opcode| *opcode != op::LOGIN) {
        let mut connection = Connection::open(&rig.portal);
        connection.send(&Pdu::new(opcode, 0x80).with32(16, 7));
        let seen = connection.expect_closed(SOON);
        assert!(seen.is_empty(), "{opcode:#04x}: {seen:?}");
    }
}

#[test]
fn names_that_are_missing_or_wrong() {
    let rig = Rig::new();
    let disk = target("disk");
    let nowhere = target("nowhere");
    let cases: &[(&[(&str, &str)], u16)] = &[
        // §6.3: the first request names both ends.
        (&[], 0x0207),
        (&[("TargetName", &disk)], 0x0207),
        (&[("InitiatorName", INITIATOR)], 0x0207),
        (&[("InitiatorName", INITIATOR), ("SessionType", "Normal")], 0x0207),
        (&[("InitiatorName", INITIATOR), ("TargetName", &nowhere)], 0x0203),
        (&[("InitiatorName", INITIATOR), ("TargetName", "iqn.2001-04.com.example:x")], 0x0203),
        (&[("InitiatorName", INITIATOR), ("TargetName", &disk), ("SessionType", "Other")], 0x0209),
        // §4.2.7: a name has a form.
        (&[("InitiatorName", ""), ("TargetName", &disk)], 0x0200),
        (&[("InitiatorName", "me"), ("TargetName", &disk)], 0x0200),
        // §6.2: a key once.
        (
            &[("InitiatorName", INITIATOR), ("InitiatorName", INITIATOR), ("TargetName", &disk)],
            0x0200,
        ),
    ];
    for (keys, status) in cases {
        let login = rig.login();
        let mut connection = Connection::open(&login.address);
        let request =
            login.request(stage::OPERATIONAL, Some(stage::FULL), &text(keys.iter().copied()));
        assert_eq!(answer(&mut connection, &request), Answer::Refused(*status), "{keys:?}");
    }
    // §4.2.7.1: case does not distinguish names.
    let shouting = Login { target: Some(disk.replace("longhaul", "LongHaul")), ..rig.login() };
    rig.session_of(&shouting).close(0);
}

#[test]
fn texts_that_are_none() {
    let rig = Rig::new();
    let long_key = format!("{}=x\0", "K".repeat(64));
    let long_value = format!("X-com.example.x={}\0", "v".repeat(9000));
    let texts: &[&[u8]] = &[
        b"InitiatorName",
        b"InitiatorName\0",
        b"=\0",
        b"=value\0",
        b"9Key=1\0",
        b"Key=\xff\xfe\0",
        b"Key=\x01\0",
        b"HeaderDigest=Perhaps\0",
        b"DataDigest=\0",
        b"MaxRecvDataSegmentLength=511\0",
        b"MaxRecvDataSegmentLength=16777216\0",
        b"MaxRecvDataSegmentLength=many\0",
        long_key.as_bytes(),
        &[b'A'; 8192],
    ];
    for bad in texts {
        let login = rig.login();
        let mut connection = Connection::open(&login.address);
        let all = [&text(login.names()), *bad].concat();
        let all = &all[..all.len().min(8192)];
        let request = login.request(stage::OPERATIONAL, Some(stage::FULL), all);
        let got = answer(&mut connection, &request);
        let shown = String::from_utf8_lossy(&bad[..bad.len().min(40)]);
        assert_eq!(got, Answer::Refused(0x0200), "{shown:?}");
    }
    // §13.12: 8192 bytes are as much as a login PDU may bring.
    for length in [8193, 0x00ff_ffff] {
        let login = rig.login();
        let mut connection = Connection::open(&login.address);
        let mut request = login.request(stage::OPERATIONAL, Some(stage::FULL), &[]);
        request.false_data_bytes = Some(length);
        connection.send(&request);
        assert!(is_closed(&mut connection, SOON), "{length} bytes");
    }
    // §6.1: text may go over several PDUs, and what may be in one value has an end.
    let login = rig.login();
    let mut connection = Connection::open(&login.address);
    let all = [text(login.names()), long_value.into_bytes()].concat();
    let (first, second) = all.split_at(8192);
    let mut more = login.request(stage::OPERATIONAL, None, first);
    more.header[1] |= 0x40;
    assert_eq!(answer(&mut connection, &more), Answer::Goes(None));
    let got =
        answer(&mut connection, &login.request(stage::OPERATIONAL, Some(stage::FULL), second));
    // The target does not understand an unknown key, however long its value is.
    assert!(matches!(got, Answer::Goes(Some(3)) | Answer::Refused(0x0200)), "{got:?}");
}

/// A C bit that never ends, and text that never ends (§6.2: the target sets a limit).
#[test]
fn a_login_without_end_ends() {
    let rig = Rig::new();
    for data in [&[b'A'; 8192][..], b"A", b""] {
        let login = rig.login();
        let mut connection = Connection::open(&login.address);
        let mut request = login.request(stage::OPERATIONAL, None, data);
        request.header[1] |= 0x40;
        let rounds =
            (0..1000).take_while(|_| answer(&mut connection, &request) == Answer::Goes(None));
        let rounds = rounds.count();
        assert!(rounds < 200, "{} bytes each: {rounds} rounds", data.len());
    }
}

#[test]
fn text_cut_anywhere_is_the_same_text() {
    let rig = Rig::new();
    let login = rig.login();
    let mut keys = login.names();
    keys.extend([("HeaderDigest", "CRC32C,None"), ("ErrorRecoveryLevel", "2"), ("X-a.b", "1")]);
    let all = text(keys);
    for cut in (0..=all.len()).step_by(7) {
        let login = rig.login();
        let mut connection = Connection::open(&login.address);
        let mut first = login.request(stage::OPERATIONAL, None, &all[..cut]);
        first.header[1] |= 0x40;
        let reply = login.exchange(&mut connection, &first).unwrap();
        assert!(reply.data.is_empty(), "§6.1: an answer before the end: {reply:?}");
        let last = login.request(stage::OPERATIONAL, Some(stage::FULL), &all[cut..]);
        let reply = login.exchange(&mut connection, &last).unwrap();
        let answers = pairs(&reply.data);
        assert_eq!(value(&answers, "HeaderDigest"), Some("CRC32C"), "cut at {cut}: {answers:?}");
        assert_eq!(value(&answers, "ErrorRecoveryLevel"), Some("2"));
        assert_eq!(value(&answers, "X-a.b"), Some("NotUnderstood"), "§6.2.1");
    }
}

#[test]
fn keys_are_negotiated_by_their_functions() {
    let rig = Rig::new();
    // Offer, and the answers that §13 allows a target.
    let cases: &[(&str, &str, &[&str])] = &[
        ("HeaderDigest", "None", &["None"]),
        ("HeaderDigest", "None,CRC32C", &["None"]),
        ("DataDigest", "CRC32C,None", &["CRC32C"]),
        ("DataDigest", "Z-what,None", &["None"]),
        ("MaxConnections", "0", &["Reject"]),
        ("MaxConnections", "65536", &["Reject"]),
        ("InitialR2T", "Yes", &["Yes"]),
        ("InitialR2T", "perhaps", &["Reject"]),
        ("ImmediateData", "No", &["No"]),
        ("MaxBurstLength", "512", &["512"]),
        ("MaxBurstLength", "0x200", &["512"]),
        ("MaxBurstLength", "511", &["Reject"]),
        ("MaxOutstandingR2T", "1", &["1"]),
        ("MaxOutstandingR2T", "0", &["Reject"]),
        ("DataPDUInOrder", "Yes", &["Yes"]),
        ("DataSequenceInOrder", "Yes", &["Yes"]),
        ("ErrorRecoveryLevel", "0", &["0"]),
        ("ErrorRecoveryLevel", "3", &["Reject"]),
        ("DefaultTime2Wait", "0", &["0"]),
        ("DefaultTime2Retain", "0", &["0"]),
        ("DefaultTime2Retain", "3601", &["Reject"]),
        ("IFMarker", "No", &["No", "Reject"]),
        ("OFMarker", "Yes", &["No", "Reject"]),
        ("TaskReporting", "RFC3720", &["RFC3720"]),
        ("X-org.example.thing", "1", &["NotUnderstood"]),
        ("Whatever", "1", &["NotUnderstood"]),
    ];
    for (key, offer, right) in cases {
        let login = rig.login().key(key, offer);
        let (_, _, answers) = login.run().unwrap_or_else(|refused| panic!("{key}: {refused:?}"));
        let got = value(&answers, key);
        assert!(got.is_some_and(|got| right.contains(&got)), "{key}={offer}: {got:?}");
    }
    // §13.12: the answer to a declaration is none but one's own.
    let (_, _, answers) = rig.login().key("MaxRecvDataSegmentLength", 512).run().unwrap();
    let own: u32 = value(&answers, "MaxRecvDataSegmentLength").unwrap().parse().unwrap();
    assert!((512..=0xff_ffff).contains(&own), "{own}");
    // §13.14: the first burst is no longer than the burst, whatever the offer.
    let login = rig.login().keys([("FirstBurstLength", "262144"), ("MaxBurstLength", "65536")]);
    let (_, _, answers) = login.run().unwrap();
    let number = |key| value(&answers, key).unwrap().parse::<u32>().unwrap();
    assert!(number("FirstBurstLength") <= number("MaxBurstLength"), "{answers:?}");
}

#[test]
fn discovery_tells_what_may_be_used_and_takes_nothing_else() {
    let mut rig = Rig::new();
    rig.site.create("second", 16);
    // Nobody hears of one that is not attached here.
    rig.site.create("third", 16);
    rig.host.attach(["second"]).ok();
    let login = Login { target: None, ..rig.login() };
    let mut session = Session::open(&login).unwrap();
    let ask = |session: &mut Session, what: &[u8]| {
        let itt = session.tag();
        let request = session.numbered(pdu::text(true, itt, NO_TAG, what));
        session[0].send(&request);
        let answer = session[0].expect(op::TEXT_RESPONSE);
        assert_eq!(answer.itt(), itt);
        pairs(&answer.data)
    };
    let all = ask(&mut session, b"SendTargets=All\0");
    let names: Vec<&str> =
        all.iter().filter(|(key, _)| key == "TargetName").map(|(_, name)| name.as_str()).collect();
    assert_eq!(names, [target("disk"), target("second")], "{all:?}");
    // §C: each name comes with its address.
    let address = value(&all, "TargetAddress").unwrap();
    assert_eq!(address, format!("{},1", rig.portal));
    // §C: one target; and a name that is none.
    let one = ask(&mut session, format!("SendTargets={}\0", target("second")).as_bytes());
    assert_eq!(value(&one, "TargetName"), Some(target("second").as_str()));
    assert_eq!(one.iter().filter(|(key, _)| key == "TargetName").count(), 1);
    let none = ask(&mut session, b"SendTargets=iqn.2001-04.com.example:none\0");
    assert_eq!(value(&none, "TargetName"), None, "{none:?}");
    // §4.3: no commands, no management.
    let command = session.command(0x80, 0, &[0; 6]).immediate();
    session[0].send(&command);
    session[0].expect_reject(reason::PROTOCOL, &command);
    let manage = session.numbered(pdu::manage(5, 77, NO_TAG).immediate());
    session[0].send(&manage);
    session[0].expect_reject(reason::PROTOCOL, &manage);
    rig.is_sound();
}

#[test]
fn text_in_the_full_feature_phase() {
    let rig = Rig::new();
    let mut session = rig.session([]);
    // §11.10: over several PDUs, under the target's tag.
    let itt = session.tag();
    let first = session.numbered(pdu::text(false, itt, NO_TAG, b"SendTar"));
    session[0].send(&first);
    let part = session[0].expect(op::TEXT_RESPONSE);
    assert_eq!((part.flags() & 0x80, part.data.len()), (0, 0), "{part:?}");
    assert_ne!(part.ttt(), NO_TAG, "§11.11.4: a bookmark for what goes on");
    let last = session.numbered(pdu::text(true, itt, part.ttt(), b"gets=\0"));
    session[0].send(&last);
    let answer = session[0].expect(op::TEXT_RESPONSE);
    // §C: in a normal session, the session's own target.
    assert_eq!(value(&pairs(&answer.data), "TargetName"), Some(target("disk").as_str()));
    assert_eq!((answer.flags(), answer.ttt()), (0x80, NO_TAG));
    // A bookmark that nobody got.
    let itt = session.tag();
    let wrong = session.numbered(pdu::text(true, itt, 0x5555, b"SendTargets=\0"));
    session[0].send(&wrong);
    let answer = session[0].receive();
    assert_eq!(answer.opcode(), op::REJECT, "{answer:?}");
    // §4.3, §C: All is for discovery sessions.
    let itt = session.tag();
    let all = session.numbered(pdu::text(true, itt, NO_TAG, b"SendTargets=All\0"));
    session[0].send(&all);
    let answer = session[0].expect(op::TEXT_RESPONSE);
    assert_eq!(value(&pairs(&answer.data), "SendTargets"), Some("Reject"));
    // A key of the login.
    let itt = session.tag();
    let late = session.numbered(pdu::text(true, itt, NO_TAG, b"MaxConnections=2\0"));
    session[0].send(&late);
    let answer = session[0].receive();
    let rejected = answer.opcode() == op::REJECT
        || value(&pairs(&answer.data), "MaxConnections") == Some("Reject");
    assert!(rejected, "{answer:?}");
    session.settle(0);
}

#[test]
fn chap_one_way_and_mutual() {
    let rig = Rig::new();
    let secret = |name: &str, text: &str| {
        let path = rig.site.path(name);
        std::fs::write(&path, text).unwrap();
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let own = secret("own", "a secret of the initiator's");
    let theirs = secret("theirs", "a secret of the target's");
    rig.iscsi(["user", "set", "alice", "--secret-file", &own]).ok();
    rig.iscsi(["user", "set", "--target", "bob", "--secret-file", &theirs]).ok();
    rig.iscsi(["allow", "disk", INITIATOR, "--chap-user", "alice"]).ok();
    let alice = Some(("alice".to_owned(), b"a secret of the initiator's".to_vec()));
    let bob = Some(("bob".to_owned(), b"a secret of the target's".to_vec()));
    let one_way = Login { chap: alice.clone(), ..rig.login() };
    rig.session_of(&one_way).close(0);
    let mutual = Login { mutual: bob, ..one_way.clone() };
    rig.session_of(&mutual).close(0);
    let mutual = mutual.keys([("HeaderDigest", "CRC32C"), ("DataDigest", "CRC32C")]);
    rig.session_of(&mutual).close(0);
    // §12.1.3: a wrong response, an unknown user, no authentication at all.
    let status = |login: &Login| Session::open(login).err().map(|refused| refused.status);
    let wrong = Some(("alice".to_owned(), b"a secret of somebody's".to_vec()));
    assert_eq!(status(&Login { chap: wrong, ..rig.login() }), Some(0x0201));
    let mallory = Some(("mallory".to_owned(), b"a secret of the initiator's".to_vec()));
    assert_eq!(status(&Login { chap: mallory, ..rig.login() }), Some(0x0201));
    assert_eq!(status(&rig.login()), Some(0x0201));
    let other = Login { initiator: format!("{INITIATOR}-other"), chap: alice, ..rig.login() };
    assert_eq!(status(&other), Some(0x0202));
    // Out of turn: the response before the challenge, and the algorithm before the method.
    for keys in [&[("CHAP_N", "alice"), ("CHAP_R", "0x00")][..], &[("CHAP_A", "7")]] {
        let login = rig.login();
        let mut connection = Connection::open(&login.address);
        let all = text(login.names().into_iter().chain(keys.iter().copied()));
        let got = answer(&mut connection, &login.request(stage::SECURITY, None, &all));
        assert!(matches!(got, Answer::Refused(0x0200 | 0x0201)), "{got:?}");
    }
    // §12.1.3: MD5 only, where the target does not allow it.
    let login = rig.login();
    let mut connection = Connection::open(&login.address);
    let mut keys = login.names();
    keys.push(("AuthMethod", "CHAP"));
    let first = login.request(stage::SECURITY, None, &text(keys));
    assert_eq!(answer(&mut connection, &first), Answer::Goes(None));
    let offer = login.request(stage::SECURITY, None, &text([("CHAP_A", "5")]));
    let got = answer(&mut connection, &offer);
    assert!(matches!(got, Answer::Refused(0x0200 | 0x0201)), "{got:?}");
    // An initiator that goes on guessing has to wait, and nobody else.
    let guess = || Login {
        chap: Some(("alice".to_owned(), b"a secret of somebody's".to_vec())),
        ..rig.login()
    };
    let all: Vec<Option<u16>> = (0..12).map(|_| status(&guess())).collect();
    assert!(all.contains(&Some(0x0301)), "{all:?}");
    let other = Login { initiator: format!("{INITIATOR}-other"), ..one_way };
    assert_eq!(status(&other), Some(0x0202));
}

/// §6.3.5: the same ISID without a TSIH takes the session's place.
#[test]
fn a_session_is_reinstated() {
    let rig = Rig::new();
    let login = rig.login();
    let mut old = rig.session_of(&login);
    // An unanswered R2T and a command that has not come do not keep it.
    let write = old.write(0, 8);
    old[0].send(&write);
    old[0].expect(op::R2T);
    let mut new = Session::open(&login).unwrap();
    assert_ne!(new.tsih, 0);
    let seen = old[0].expect_closed(SOON);
    assert!(seen.iter().all(|pdu| pdu.opcode() == op::ASYNC), "{seen:?}");
    new.settle(0);
    // Another ISID, another initiator and another target are other sessions.
    let other = rig.session([]);
    new.settle(0);
    other.close(0);
    new.settle(0);
    // §6.3.5, table: a TSIH of a session that is not there, or another port's.
    for (tsih, isid) in [(new.tsih ^ 0x5555, login.isid), (new.tsih, [0x80, 1, 2, 3, 4, 5])] {
        let stray = Login { tsih, isid, ..login.clone() };
        assert_eq!(Session::open(&stray).err().map(|refused| refused.status), Some(0x020a));
    }
    new.close(0);
}

/// §6.3.4: the same CID takes the connection's place; §6.3.3 and the limit of connections.
#[test]
fn a_connection_is_reinstated() {
    let rig = Rig::new();
    let mut session = rig.session([("MaxConnections", "2"), ("ErrorRecoveryLevel", "0")]);
    assert_eq!(session.number("MaxConnections"), 2);
    session.join(1).unwrap();
    session.settle(1);
    let refused = session.join(2).unwrap_err();
    assert_eq!(refused.status, 0x0206, "{refused:?}");
    // The old one goes, the session stays.
    let itt = session.tag();
    let old = session.take(1);
    session.join(1).unwrap();
    let mut old = old;
    assert!(is_closed(&mut old, SOON));
    let nop = session.numbered(pdu::nop_out(itt, NO_TAG));
    session[1].send(&nop);
    session[1].expect(op::NOP_IN);
    session.settle(0);
    session[0].expect_nothing(QUIET);
    session.close(1);
}

/// §11.14: all three reasons, and those that are none.
#[test]
fn logouts() {
    let rig = Rig::new();
    let mut session = rig.session([("MaxConnections", "4"), ("ErrorRecoveryLevel", "1")]);
    session.join(1).unwrap();
    session.join(2).unwrap();
    let ask = |session: &mut Session, at: usize, why: u8, cid: u16| {
        let itt = session.tag();
        let logout = session.numbered(pdu::logout(why, itt, cid));
        session[at].send(&logout);
        let answer = session[at].expect(op::LOGOUT_RESPONSE);
        assert_eq!(answer.itt(), itt);
        answer.header[2]
    };
    // §11.15.1: no such connection; recovery is for level 2.
    assert_eq!(ask(&mut session, 0, 1, 9), 1);
    assert_eq!(ask(&mut session, 0, 2, 1), 2);
    // Another connection, and the connection itself.
    assert_eq!(ask(&mut session, 0, 1, 1), 0);
    assert!(is_closed(&mut session[1], SOON));
    assert_eq!(ask(&mut session, 2, 1, 2), 0);
    assert!(is_closed(&mut session[2], SOON));
    session.settle(0);
    // §11.14.1: a reason that is none.
    let itt = session.tag();
    let wrong = session.numbered(pdu::logout(77, itt, 0));
    session[0].send(&wrong);
    session[0].expect_reject(reason::INVALID_FIELD, &wrong);
    session.settle(0);
    session.close(0);
}
