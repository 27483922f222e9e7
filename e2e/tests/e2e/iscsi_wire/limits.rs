//! Slow and large things: login and ping limits, limits of sessions and connections, and the memory
//! of the host under floods.

use super::{INITIATOR, Rig, SOON, is_closed, pattern};
use longhaul_e2e::initiator::connection::Received;
use longhaul_e2e::initiator::login::{stage, text};
use longhaul_e2e::initiator::pdu::{self, NO_TAG, op};
use longhaul_e2e::initiator::{Connection, Login, Session};
use longhaul_e2e::wait_for;
use std::time::{Duration, Instant};

/// The effect of the target's limits of 15 s each on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// A login that does not go on ends, wherever it stopped (§7.5 leaves the time to the target).
#[test]
fn a_login_has_a_limit() {
    let rig = Rig::new();
    let login = rig.login();
    let request = login.request(stage::OPERATIONAL, None, &text(login.names()));
    let start = Instant::now();
    let mut silent = Connection::open(&rig.portal);
    let mut half = Connection::open(&rig.portal);
    let bytes = half.encode(&request);
    half.send_bytes(&bytes[..60]);
    let mut begun = Connection::open(&rig.portal);
    begun.send(&request);
    begun.expect(op::LOGIN_RESPONSE);
    let mut slow = Connection::open(&rig.portal);
    // A byte now and then does not keep it alive.
    for byte in bytes.chunks(1).take(40) {
        slow.send_bytes(byte);
        std::thread::sleep(Duration::from_millis(200));
    }
    for connection in [&mut silent, &mut half, &mut begun, &mut slow] {
        assert!(is_closed(connection, LONG));
    }
    assert!(start.elapsed() > Duration::from_secs(5), "too soon for a slow network");
}

/// §4.2.2.2, §11.19: a silent initiator gets a ping, and loses its connection without an answer.
#[test]
fn a_silent_initiator_is_dropped_and_one_that_answers_is_not() {
    let rig = Rig::new();
    let mut dead = rig.session([]);
    let mut alive = rig.session([]);
    dead[0].answer_pings = false;
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while alive[0].pings < 2 {
                assert!(start.elapsed() < LONG * 2, "{} pings", alive[0].pings);
                assert_eq!(alive[0].receive_within(Duration::from_secs(1)), Received::Nothing);
            }
        });
        let seen = dead[0].expect_closed(LONG * 2);
        assert!(!seen.is_empty(), "dropped without a ping");
        for ping in &seen {
            assert_eq!((ping.opcode(), ping.itt()), (op::NOP_IN, NO_TAG), "{ping:?}");
            assert_ne!(ping.ttt(), NO_TAG, "a ping that cannot be answered: {ping:?}");
        }
    });
    alive.settle(0);
    alive.close(0);
}

/// Sessions of one initiator have a limit; another initiator has its own.
#[test]
fn sessions_of_an_initiator_are_limited() {
    let rig = Rig::new();
    let mut sessions = Vec::new();
    let refused = loop {
        match Session::open(&rig.login()) {
            Ok(session) => sessions.push(session),
            Err(refused) => break refused,
        }
        assert!(sessions.len() <= 1000, "no limit");
    };
    // §11.13.5: out of resources.
    assert_eq!(refused.status, 0x0302);
    let other = Login { initiator: format!("{INITIATOR}-other"), ..rig.login() };
    rig.session_of(&other).close(0);
    // One goes, one comes.
    sessions.pop().unwrap().close(0);
    rig.session([]);
}

/// Of connections from one address that have not logged in there are few, and whoever is in stays
/// in.
#[test]
fn connections_of_a_portal_are_limited() {
    let mut rig = Rig::new();
    let mut good = rig.session([]);
    let before = rig.resident_kib();
    let start = Instant::now();
    let mut open: Vec<Connection> = (0..1100).map(|_| Connection::open(&rig.portal)).collect();
    let mut turned_away = 0;
    let refused = |connection: &mut Connection| {
        connection.receive_within(Duration::from_micros(100)) == Received::Closed
    };
    wait_for("some to be turned away", SOON, || {
        turned_away += open.extract_if(.., refused).count();
        turned_away >= 1000
    });
    // On a machine so busy that the login limit has passed, the number means nothing.
    assert!(
        open.len() >= 64 || start.elapsed() > Duration::from_secs(14),
        "{} connections",
        open.len()
    );
    good.settle(0);
    let data = pattern(1, 0, 64);
    good.write_blocks(0, 0, &data).good();
    assert!(good.read_blocks(0, 0, 64) == data);
    let grown = rig.resident_kib().saturating_sub(before);
    // Connections that say nothing have no buffers to speak of.
    assert!(grown < 300 << 10, "{grown} KiB for 64 connections");
    drop(open);
    wait_for("places to be free", SOON, || Session::open(&rig.login()).is_ok());
    good.settle(0);
    rig.is_sound();
}

/// The memory that one session can make the host keep. It is 32 MiB of payload (`session_bytes`),
/// twice for data on its way in and out, and the allocator's reserve.
const SESSION_KIB: u64 = 160 << 10;

/// Runs a flood and checks that the host has not grown by more than `limit_kib` at any time.
#[track_caller]
fn within_memory(rig: &mut Rig, limit_kib: u64, mut step: impl FnMut(u32) -> bool) {
    let before = rig.resident_kib();
    let mut most = before;
    let mut round = 0;
    while step(round) {
        round += 1;
        most = most.max(rig.resident_kib());
        let grown = most - before;
        assert!(grown < limit_kib, "grew by {grown} KiB within {round} rounds");
    }
    eprintln!("{before} KiB, at most {most} KiB, {round} rounds");
    rig.is_sound();
}

/// Reads whose data nobody takes.
#[test]
fn memory_stays_bounded_when_nobody_reads() {
    let mut rig = Rig::new();
    let mut session = rig.session([("MaxRecvDataSegmentLength", "262144")]);
    let mut writer = rig.session([]);
    for part in 0..16 {
        writer.write_blocks(0, part * 2048, &pattern(3, part * 2048, 2048)).good();
    }
    let mut good = rig.session([]);
    within_memory(&mut rig, SESSION_KIB, |round| {
        let reads: Vec<u8> = (0..16)
            .flat_map(|_| {
                let read = session.read(fastrand::u32(..16384), 16384);
                session[0].encode(&read)
            })
            .collect();
        // The target stops to read; that is as it should be.
        session[0].send_some(&reads, Duration::from_millis(100));
        good.settle(0);
        round < 40
    });
    // Once it reads again, all goes on.
    let start = Instant::now();
    let mut ends = 0;
    while ends < 4 && start.elapsed() < LONG {
        let pdu = session[0].receive();
        ends += u32::from(pdu.opcode() == op::DATA_IN && pdu.flags() & 1 == 1);
    }
    assert_eq!(ends, 4);
}

/// Writes that never get their data: commands, numbers before their turn, and unsolicited data.
#[test]
fn memory_stays_bounded_under_writes_without_end() {
    let mut rig = Rig::new();
    let mut good = rig.session([]);
    let flood = |rig: &Rig| {
        rig.session([
            ("InitialR2T", "No"),
            ("FirstBurstLength", "262144"),
            ("MaxBurstLength", "262144"),
        ])
    };
    let mut sessions: Vec<Session> = (0..4).map(|_| flood(&rig)).collect();
    // The first number of each never comes, so that all waits that comes after it.
    for session in &mut sessions {
        session.cmd_sn = session.cmd_sn.wrapping_add(1);
    }
    within_memory(&mut rig, 4 * SESSION_KIB, |round| {
        for session in &mut sessions {
            let mut write = session.write(0, 512);
            write.header[1] &= !0x80;
            write.data = vec![9; 65536];
            let mut bytes = session[0].encode(&write);
            let out = pdu::data_out(false, write.itt(), NO_TAG, 0, 65536, &[9; 131_072]);
            bytes.extend(session[0].encode(&out));
            session[0].send_some(&bytes, Duration::from_millis(50));
        }
        good.settle(0);
        round < 300
    });
}

/// Logins with long texts, refused logins and dropped ones leave nothing behind.
#[test]
fn memory_stays_bounded_under_logins() {
    let mut rig = Rig::new();
    let mut good = rig.session([]);
    let portal = rig.portal.clone();
    let login = rig.login();
    within_memory(&mut rig, 64 << 10, |round| {
        for _ in 0..20 {
            let mut connection = Connection::open(&portal);
            let mut request = login.request(stage::OPERATIONAL, None, &[b'K'; 8192]);
            request.header[1] |= 0x40;
            for _ in 0..fastrand::u8(..6) {
                connection.send(&request);
            }
            match fastrand::u8(..3) {
                0 => connection.drop_now(),
                1 => drop(login.run()),
                _ => {}
            }
        }
        good.settle(0);
        round < 40
    });
}

/// Requests with immediate answers that nobody reads: pings, rejects, management.
#[test]
fn memory_stays_bounded_when_answers_pile_up() {
    let mut rig = Rig::new();
    let mut good = rig.session([]);
    for kind in 0..3 {
        let mut session =
            rig.session([("ErrorRecoveryLevel", "2"), ("MaxRecvDataSegmentLength", "65536")]);
        within_memory(&mut rig, SESSION_KIB, |round| {
            let mut bytes = Vec::new();
            for _ in 0..64 {
                let itt = session.tag();
                let request = match kind {
                    0 => pdu::nop_out(itt, NO_TAG).immediate().with_data(&[1; 16384]),
                    1 => pdu::data_out(true, itt, 0x1234, 0, 0, &[2; 64]),
                    _ => pdu::manage(1, itt, 1).immediate(),
                };
                let request = session.numbered(request);
                bytes.extend(session[0].encode(&request));
            }
            let sent = session[0].send_some(&bytes, Duration::from_millis(50));
            good.settle(0);
            // Cut in the middle of a PDU there is no going on.
            round < 200 && sent == bytes.len()
        });
    }
}

/// Sessions that come and go leave nothing behind.
#[test]
fn memory_stays_bounded_over_many_sessions() {
    let mut rig = Rig::new();
    for _ in 0..50 {
        rig.session([]).close(0);
    }
    let login = rig.login();
    within_memory(&mut rig, 48 << 10, |round| {
        for _ in 0..10 {
            let mut session = Session::open(&login).unwrap();
            session.settle(0);
            session.write_blocks(0, 0, &pattern(1, 0, 64)).good();
            match round % 3 {
                0 => session.close(0),
                1 => session.take(0).drop_now(),
                // Reinstated by the next one.
                _ => {}
            }
        }
        round < 60
    });
}
