//! §7.7, §7.13: PDUs malformed in every way, beside a session that must not notice.

use super::{Rig, SOON, pattern};
use longhaul_e2e::initiator::connection::Received;
use longhaul_e2e::initiator::pdu::{self, NO_TAG, Pdu, op, reason};
use longhaul_e2e::initiator::session::{NONE, READ, cdb10};
use longhaul_e2e::initiator::{Connection, Session};
use longhaul_e2e::wait_for;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long an abuse goes on. Guessed: long enough for some thousands of PDUs.
const WHILE: Duration = Duration::from_secs(6);

/// Runs `abuse` while a session of another initiator writes, reads and compares without pause. It
/// checks that no command of that one took longer than a busy machine explains.
#[track_caller]
fn beside_a_good_session(rig: &mut Rig, abuse: impl FnOnce(&Rig)) {
    let mut login = rig.login().keys([("HeaderDigest", "CRC32C"), ("DataDigest", "CRC32C")]);
    login.initiator.push_str("-good");
    let mut good = Session::open(&login).unwrap();
    good.settle(0);
    /// Lets the good session end when the abuse does, however it does.
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let over = AtomicBool::new(false);
    let rounds = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let mut slowest = Duration::ZERO;
            while !over.load(Ordering::Relaxed) {
                let start = Instant::now();
                // Where no abuse of the others goes.
                let round = rounds.fetch_add(1, Ordering::Relaxed);
                let lba = 100_000 + round % 1000;
                let data = pattern(round as u8, lba, 20);
                // An abuse may reset the unit; the initiator hears that once, and it does no harm.
                good.settle(0);
                good.write_blocks(0, lba, &data).good();
                assert!(good.read_blocks(0, lba, 20) == data, "round {round}");
                slowest = slowest.max(start.elapsed());
            }
            good.close(0);
            slowest
        });
        let guard = Over(&over);
        abuse(rig);
        // It goes on afterward, too.
        let enough = rounds.load(Ordering::Relaxed) + 3;
        wait_for("the good session to go on", SOON, || {
            thread.is_finished() || rounds.load(Ordering::Relaxed) >= enough
        });
        drop(guard);
        let slowest = thread.join().expect("the good session went on");
        assert!(slowest < SOON, "the good session waited {slowest:?}");
    });
    rig.is_sound();
}

/// Reads the available bytes; false once the connection is closed.
fn drain(connection: &mut Connection) -> bool {
    loop {
        match connection.receive_within(Duration::from_millis(1)) {
            Received::Pdu(_) => {}
            Received::Closed => return false,
            Received::Nothing => return true,
        }
    }
}

/// §7.7: every opcode there is and is not.
#[test]
fn every_opcode() {
    let mut rig = Rig::new();
    beside_a_good_session(&mut rig, |rig| {
        for opcode in 0..0x40 {
            for immediate in [0, 0x40] {
                let mut session = rig.session([]);
                let itt = session.tag();
                let pdu = Pdu::new(opcode | immediate, 0x80).with32(16, itt);
                let pdu = session.numbered(pdu);
                session[0].send(&pdu);
                let answer = session[0].receive_within(Duration::from_millis(200));
                match (opcode, &answer) {
                    (
                        op::NOP_OUT
                        | op::COMMAND
                        | op::FUNCTION
                        | op::TEXT
                        | op::DATA_OUT
                        | op::LOGOUT
                        | op::SNACK,
                        _,
                    ) => {}
                    (op::LOGIN, Received::Pdu(reject)) => {
                        assert_eq!(reject.opcode(), op::REJECT, "{reject:?}");
                        assert_eq!(reject.header[2], reason::PROTOCOL, "{reject:?}");
                    }
                    // §11.17.1: command not supported. Where the target knows it to be wrong, §7.13
                    // leaves closing.
                    (_, Received::Pdu(reject)) => {
                        assert_eq!(reject.opcode(), op::REJECT, "{opcode:#04x}: {reject:?}");
                        assert_eq!(reject.header[2], reason::NOT_SUPPORTED, "{reject:?}");
                    }
                    (_, Received::Closed) => {}
                    (_, Received::Nothing) => panic!("{opcode:#04x}: no answer"),
                }
            }
        }
    });
}

/// Well-formed requests with one byte of the header changed to everything, and then with several.
#[test]
fn headers_changed_at_random() {
    let mut rig = Rig::new();
    beside_a_good_session(&mut rig, |rig| {
        let start = Instant::now();
        let mut session = rig.session([("InitialR2T", "No"), ("ErrorRecoveryLevel", "2")]);
        let mut lives = 0;
        while start.elapsed() < WHILE {
            let mut pdu = any(&mut session);
            for _ in 0..fastrand::usize(1..4) {
                // Not the lengths: those have tests of their own, and end the stream.
                let byte = fastrand::usize(..48);
                if !(4..8).contains(&byte) {
                    pdu.header[byte] = fastrand::u8(..);
                }
            }
            // Not into the good session's blocks, and no cold reset, which would end it.
            if pdu.opcode() == op::COMMAND {
                pdu.header[34..36].fill(0);
                pdu.header[32] = [0x28, 0x2a, 0x12, 0x00][fastrand::usize(..4)];
                pdu.header[36] &= 0x3f;
                pdu.header[39] = 0;
            }
            if pdu.opcode() == op::FUNCTION && matches!(pdu.flags() & 0x7f, 5..=7) {
                continue;
            }
            session[0].lenient = true;
            session[0].send_raw(&pdu);
            if !drain(&mut session[0]) || lives % 200 == 199 {
                session = rig.session([("InitialR2T", "No"), ("ErrorRecoveryLevel", "2")]);
            }
            lives += 1;
        }
        assert!(lives > 100, "{lives} PDUs");
    });
}

/// A right request of any kind.
fn any(session: &mut Session) -> Pdu {
    let itt = session.tag();
    match fastrand::u8(..9) {
        0 => session.command(NONE, 0, &[0; 6]),
        1 => session.read(fastrand::u32(..1000), fastrand::u16(1..64)),
        2 => session.write(fastrand::u32(..1000), 4),
        3 => session.write(fastrand::u32(..1000), 1).with_data(&[3; 512]),
        4 => session.numbered(pdu::nop_out(itt, NO_TAG).with_data(b"ping")),
        5 => session.numbered(pdu::text(true, itt, NO_TAG, b"SendTargets=\0")),
        6 => session.numbered(pdu::manage(fastrand::u8(1..3), itt, itt - 1)),
        7 => pdu::snack(fastrand::u8(..4), itt - 1, NO_TAG, 0, 0),
        _ => pdu::data_out(true, itt - 1, NO_TAG, 0, 0, &[5; 512]),
    }
}

/// Lengths that are not those of what follows.
#[test]
fn lengths_that_lie() {
    let mut rig = Rig::new();
    beside_a_good_session(&mut rig, |rig| {
        for words in [1, 2, 63, 64, 255] {
            for ahs in
                [&[][..], &[0; 8], &[0xff; 8], &[0, 5, 1, 0, 1, 2, 3, 4], &[0xff, 0xff, 1, 0]]
            {
                let mut session = rig.session([]);
                let mut read = session.read(0, 1);
                read.ahs = ahs.to_vec();
                read.false_ahs_words = Some(words);
                session[0].send(&read);
                session[0].send_bytes(&[0; 2000]);
                session[0].finish_sending();
                session[0].lenient = true;
                session[0].expect_closed(SOON);
            }
        }
        // Additional headers of the right length that make no sense (§11.2.2).
        for ahs in [
            &[0, 0, 0, 0][..],
            &[0, 1, 1, 0],
            &[0, 9, 1, 0, 1, 2, 3, 4],
            &[0xff, 0xff, 2, 0, 0, 0, 0, 0],
            &[0, 1, 0x3f, 0],
            &[0, 2, 1, 0, 9, 0, 0, 0, 0, 2, 1, 0, 9, 0, 0, 0],
        ] {
            let mut session = rig.session([]);
            let mut read = session.read(0, 1);
            read.ahs = ahs.to_vec();
            session[0].send(&read);
            match session[0].receive_within(SOON) {
                Received::Pdu(pdu) if pdu.opcode() == op::REJECT => {
                    assert_eq!(pdu.header[2], reason::INVALID_FIELD, "{ahs:?}: {pdu:?}");
                }
                Received::Pdu(pdu) => {
                    // An extended CDB of a command that has none, or data both ways.
                    assert!(matches!(pdu.opcode(), op::RESPONSE | op::DATA_IN), "{ahs:?}: {pdu:?}");
                }
                other => assert_eq!(other, Received::Closed, "{ahs:?}"),
            }
        }
        for length in [1, 3, 4, 511, 1 << 18, (1 << 18) + 1, 0x00ff_ffff] {
            for opcode in [op::COMMAND, op::NOP_OUT, op::DATA_OUT, op::TEXT, op::SNACK, op::LOGOUT]
            {
                let mut session = rig.session([]);
                let itt = session.tag();
                let mut pdu = session.numbered(Pdu::new(opcode, 0x80).with32(16, itt));
                pdu.false_data_bytes = Some(length);
                session[0].send(&pdu);
                session[0].finish_sending();
                session[0].lenient = true;
                session[0].expect_closed(SOON);
            }
        }
    });
}

/// Nothing but noise: before the login and after it.
#[test]
fn noise() {
    let mut rig = Rig::new();
    beside_a_good_session(&mut rig, |rig| {
        let start = Instant::now();
        while start.elapsed() < WHILE {
            let mut bytes = vec![0; fastrand::usize(8..20_000)];
            fastrand::Rng::new().fill(&mut bytes);
            if fastrand::bool() {
                let mut connection = Connection::open(&rig.portal);
                if fastrand::bool() {
                    bytes[0] = 0x43;
                    bytes[4..8].copy_from_slice(&[0, 0, 0x1f, 0xff]);
                }
                connection.send_bytes(&bytes);
                connection.finish_sending();
                while !matches!(connection.receive_within(SOON), Received::Closed) {}
            } else {
                let mut session = rig.session([]);
                session[0].lenient = true;
                session[0].send_bytes(&bytes);
                session[0].finish_sending();
                session[0].expect_closed(SOON);
            }
        }
    });
}

/// §11.18, §11.19: pings with and without tags.
#[test]
fn pings() {
    let rig = Rig::new();
    let mut session = rig.session([("MaxRecvDataSegmentLength", "512")]);
    for length in [0, 1, 100, 512] {
        let itt = session.tag();
        let data = vec![7; length];
        let ping = session.numbered(pdu::nop_out(itt, NO_TAG).with_data(&data));
        session[0].send(&ping);
        let pong = session[0].expect(op::NOP_IN);
        assert_eq!((pong.itt(), pong.ttt()), (itt, NO_TAG), "{pong:?}");
        assert_eq!(pong.data, data);
    }
    // More than this side takes comes back short (§11.18.3).
    let itt = session.tag();
    let ping = session.numbered(pdu::nop_out(itt, NO_TAG).with_data(&[8; 2000]));
    session[0].send(&ping);
    assert_eq!(session[0].expect(op::NOP_IN).data, [8; 512]);
    // Neither tag: an acknowledgment, and no answer.
    let quiet = session.numbered(pdu::nop_out(NO_TAG, NO_TAG).immediate());
    session[0].send(&quiet);
    session[0].expect_nothing(super::QUIET);
    // §11.18.1: without a tag it has to be immediate.
    let wrong = session.numbered(pdu::nop_out(NO_TAG, NO_TAG));
    session[0].send(&wrong);
    session[0].expect_reject(reason::INVALID_FIELD, &wrong);
    session.cmd_sn = wrong.cmd_sn();
    session.settle(0);
    session.close(0);
}

/// Commands for units that are none, and spelled in other ways (SAM-5 §4.7).
#[test]
fn other_units() {
    let rig = Rig::new();
    let mut session = rig.session([]);
    for lun in [1, 7, 255] {
        let read = super::with_lun(session.read(0, 1), lun);
        let end = session.run(0, &read, &[]);
        assert_eq!(end.sense(), (5, 0x2500), "unit {lun}");
        // INQUIRY tells that there is nothing there.
        let inquiry = session.command(READ, 36, &[0x12, 0, 0, 0, 36, 0]);
        let end = session.run(0, &super::with_lun(inquiry, lun), &[]);
        assert_eq!(end.good()[0], 0x7f, "unit {lun}");
    }
    let luns = session.command(READ, 64, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0]);
    assert_eq!(session.run(0, &luns, &[]).good(), [0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    session.close(0);
}

/// Any CDB at all, with data of any length: each gets an answer.
#[test]
fn any_cdb() {
    let mut rig = Rig::new();
    beside_a_good_session(&mut rig, |rig| {
        let start = Instant::now();
        let mut session = rig.session([]);
        let mut count = 0;
        while start.elapsed() < WHILE {
            let mut cdb: [u8; 16] = std::array::from_fn(|_| fastrand::u8(..) & fastrand::u8(..));
            // Reservations and mode changes would keep the good session out; writes go elsewhere.
            cdb[0] = [
                0x00, 0x03, 0x12, 0x1a, 0x25, 0x28, 0x2f, 0x34, 0x4d, 0x5a, 0x5e, 0x88, 0x8f, 0x90,
                0x9e, 0xa0, 0xa3, 0xa8, 0xaf, 0xff,
            ][fastrand::usize(..20)];
            let expected = fastrand::u32(..) >> fastrand::u32(12..32);
            let write = fastrand::bool();
            let flags = if write { 0xa0 } else { 0xc0 };
            let command = session.command(flags, expected, &cdb);
            let out = vec![0x5a; expected as usize];
            session.run(0, &command, &out);
            count += 1;
        }
        assert!(count > 50, "{count} commands");
        session.close(0);
    });
    let mut session = rig.session([]);
    let read = session.command(READ, 512, &cdb10(0x28, 0, 1));
    session.run(0, &read, &[]).good();
}
