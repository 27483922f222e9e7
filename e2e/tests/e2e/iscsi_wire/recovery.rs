//! §7, §11.16: what error recovery levels 1 and 2 promise. SNACKs of every kind, connections lost
//! and replaced, tasks moved.

use super::{QUIET, Rig, SOON, is_closed, pattern, with_lun};
use longhaul_e2e::initiator::pdu::{self, NO_TAG, Pdu, function, op, reason, snack};
use longhaul_e2e::initiator::session::{NONE, READ, cdb10};
use longhaul_e2e::initiator::{Received, Session};
use std::time::{Duration, Instant};

fn at_level(rig: &Rig, level: &'static str) -> Session {
    rig.session([
        ("ErrorRecoveryLevel", level),
        ("ImmediateData", "No"),
        ("MaxConnections", "2"),
        ("MaxRecvDataSegmentLength", "512"),
        ("MaxBurstLength", "1024"),
        ("FirstBurstLength", "512"),
        ("DefaultTime2Wait", "0"),
        ("DefaultTime2Retain", "20"),
    ])
}

/// Reads without acknowledging anything; gives the Data-Ins and the response.
fn read_held(session: &mut Session, blocks: u16) -> (Pdu, Vec<Pdu>, Pdu) {
    let read = session.read(600, blocks);
    session[0].send(&read);
    let mut data = Vec::new();
    loop {
        let pdu = session[0].receive();
        match pdu.opcode() {
            op::DATA_IN => data.push(pdu),
            op::RESPONSE => return (read, data, pdu),
            _ => panic!("{pdu:?}"),
        }
    }
}

/// The fields that must be the same in a repeated PDU: all but the window and ExpStatSN.
fn essence(pdu: &Pdu) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
    (pdu.header[..24].to_vec(), pdu.header[36..].to_vec(), pdu.data.clone())
}

#[test]
fn lost_data_in_is_sent_again() {
    let rig = Rig::new();
    let mut session = at_level(&rig, "1");
    let data = pattern(50, 600, 8);
    session.write_blocks(0, 600, &data).good();
    session[0].hold = true;
    session[0].lenient = true;
    let (read, sent, end) = read_held(&mut session, 8);
    assert_eq!(sent.len(), 8);
    // §11.7.2: A once a sequence, and §11.7.3: the status stands alone.
    let acks = sent.iter().filter(|pdu| pdu.flags() & 0x40 != 0).count();
    assert!(acks >= 1, "no A bit in {sent:?}");
    assert!(sent.iter().all(|pdu| pdu.flags() & 1 == 0));
    for (begin, run, numbers) in [(2, 1, 2..3), (0, 0, 0..8), (5, 3, 5..8), (7, 0, 7..8)] {
        session[0].send(&pdu::snack(snack::DATA_R2T, read.itt(), NO_TAG, begin, run));
        for number in numbers {
            let again = session[0].expect(op::DATA_IN);
            assert_eq!(essence(&again), essence(&sent[number]), "from {begin}, {run} PDUs");
        }
        session[0].expect_nothing(QUIET);
    }
    // §11.16.3: a PDU that nobody sent.
    for (begin, run) in [(8, 0), (8, 1), (7, 2), (0, 9), (u32::MAX, 1)] {
        let wrong = pdu::snack(snack::DATA_R2T, read.itt(), NO_TAG, begin, run);
        session[0].send(&wrong);
        let reject = session[0].expect(op::REJECT);
        let right = [reason::INVALID_FIELD, reason::SNACK];
        assert!(right.contains(&reject.header[2]), "{begin}, {run}: {reject:?}");
    }
    // A task that is none.
    let wrong = pdu::snack(snack::DATA_R2T, read.itt() ^ 1, NO_TAG, 0, 0);
    session[0].send(&wrong);
    session[0].expect(op::REJECT);
    // §11.16: an acknowledgment of data; the covered data is gone.
    let ack = sent.iter().find(|pdu| pdu.flags() & 0x40 != 0).unwrap();
    let next = ack.data_sn() + 1;
    session[0].send(&pdu::snack(snack::DATA_ACK, NO_TAG, ack.ttt(), next, 0));
    session[0].expect_nothing(QUIET);
    session[0].send(&pdu::snack(snack::DATA_R2T, read.itt(), NO_TAG, 0, 0));
    let reject = session[0].expect(op::REJECT);
    assert_eq!(reject.header[2], reason::SNACK, "§11.17.1: {reject:?}");
    session[0].send(&pdu::snack(snack::DATA_R2T, read.itt(), NO_TAG, next, 1));
    assert_eq!(session[0].expect(op::DATA_IN).data_sn(), next);
    // §11.17.1: impossible acknowledgments.
    for (tag, begin) in [(ack.ttt() ^ 0x0001_0000, next), (ack.ttt(), 100), (NO_TAG, 1)] {
        session[0].send(&pdu::snack(snack::DATA_ACK, NO_TAG, tag, begin, 0));
        let reject = session[0].expect(op::REJECT);
        assert_eq!(reject.header[2], reason::DATA_ACK, "{tag:#x}, {begin}: {reject:?}");
    }
    // The status, once acknowledged, ends the task.
    assert_eq!(end.header[3], 0);
    session[0].hold = false;
    session.settle(0);
    session[0].send(&pdu::snack(snack::DATA_R2T, read.itt(), NO_TAG, 0, 0));
    session[0].expect(op::REJECT);
    session.settle(0);
    session.close(0);
}

#[test]
fn lost_statuses_are_sent_again() {
    let rig = Rig::new();
    let mut session = at_level(&rig, "1");
    session[0].hold = true;
    session[0].lenient = true;
    let held = session[0].exp_stat_sn;
    let mut sent = Vec::new();
    for round in 0..6 {
        let itt = session.tag();
        let request = match round % 3 {
            0 => session.command(NONE, 0, &[0; 6]),
            1 => session.numbered(pdu::nop_out(itt, NO_TAG).with_data(b"again?")),
            _ => session.command(NONE, 0, &[0xff; 16]),
        };
        session[0].send(&request);
        sent.push(session[0].receive());
    }
    for (begin, run, numbers) in [(0, 0, 0..6), (2, 2, 2..4), (5, 1, 5..6), (3, 0, 3..6)] {
        session[0].send(&pdu::snack(snack::STATUS, NO_TAG, NO_TAG, held + begin, run));
        for number in numbers {
            let again = session[0].receive();
            assert_eq!(again.stat_sn(), sent[number].stat_sn());
            assert_eq!(essence(&again), essence(&sent[number]), "from {begin}, {run} statuses");
        }
        session[0].expect_nothing(QUIET);
    }
    // §11.16: acknowledged data, and data that nobody sent. Every Reject bears a number as well.
    type Wrong = fn(u32, u32) -> (u32, u32);
    let wrong: [Wrong; 4] = [
        |held, _| (held.wrapping_sub(1), 1),
        |_, next| (next, 1),
        |held, next| (held, next.wrapping_sub(held) + 1),
        |_, next| (next.wrapping_add(100), 0),
    ];
    for wrong in wrong {
        let (begin, run) = wrong(held, session[0].next_stat_sn.unwrap());
        session[0].send(&pdu::snack(snack::STATUS, NO_TAG, NO_TAG, begin, run));
        let reject = session[0].expect(op::REJECT);
        assert!(
            [reason::PROTOCOL, reason::INVALID_FIELD, reason::SNACK].contains(&reject.header[2]),
            "{begin}, {run}: {reject:?}"
        );
    }
    session[0].hold = false;
    session.settle(0);
    session.close(0);
}

#[test]
fn lost_r2ts_are_sent_again() {
    let rig = Rig::new();
    let mut session = at_level(&rig, "1");
    let data = pattern(51, 0, 2);
    let write = session.write(0, 2);
    session[0].send(&write);
    let r2t = session[0].expect(op::R2T);
    for (begin, run) in [(0, 0), (0, 1)] {
        session[0].send(&pdu::snack(snack::DATA_R2T, write.itt(), NO_TAG, begin, run));
        assert_eq!(essence(&session[0].expect(op::R2T)), essence(&r2t));
    }
    session[0].send(&pdu::snack(snack::DATA_R2T, write.itt(), NO_TAG, 1, 1));
    session[0].expect(op::REJECT);
    // §7.9: the target asks for a hole in the data again, duplicates do no harm.
    let ttt = r2t.ttt();
    session[0].send(&pdu::data_out(true, write.itt(), ttt, 1, 512, &data[512..]));
    let again = session[0].expect(op::R2T);
    assert_eq!((again.offset(), again.count(), again.data_sn()), (0, 512, 1));
    session[0].send(&pdu::data_out(true, write.itt(), again.ttt(), 0, 0, &data[..512]));
    assert_eq!(session[0].expect(op::RESPONSE).header[3], 0);
    assert!(session.read_blocks(0, 0, 2) == data);
    // Forever too little: it ends.
    let write = session.write(0, 2);
    session[0].send(&write);
    for _ in 0..10_000 {
        let pdu = session[0].receive();
        if pdu.opcode() == op::RESPONSE {
            let length = usize::from(u16::from_be_bytes([pdu.data[0], pdu.data[1]]));
            assert!(length >= 14 && pdu.header[3] == 2, "{pdu:?}");
            session.settle(0);
            session.close(0);
            return;
        }
        assert_eq!(pdu.opcode(), op::R2T);
        session[0].send(&pdu::data_out(true, write.itt(), pdu.ttt(), 0, pdu.offset(), &[]));
    }
    panic!("the target asks again without end");
}

/// §11.16.1: R-Data, after the segment length has changed.
#[test]
fn data_is_sent_anew() {
    let rig = Rig::new();
    let mut session = at_level(&rig, "1");
    let data = pattern(52, 600, 8);
    session.write_blocks(0, 600, &data).good();
    session[0].hold = true;
    session[0].lenient = true;
    let (read, sent, end) = read_held(&mut session, 8);
    assert_eq!(sent.len(), 8);
    // §11.10, §13.12: in the full feature phase text tells a new length.
    let itt = session.tag();
    let text = b"MaxRecvDataSegmentLength=1024\0";
    let request = session.numbered(pdu::text(true, itt, NO_TAG, text));
    session[0].send(&request);
    session[0].expect(op::TEXT_RESPONSE);
    session[0].send(&pdu::snack(snack::R_DATA, read.itt(), 0x77, 0, 0));
    let mut got: Vec<u8> = Vec::new();
    let status = loop {
        let pdu = session[0].receive();
        if pdu.opcode() != op::DATA_IN {
            break pdu;
        }
        assert_eq!(pdu.offset() as usize, got.len(), "{pdu:?}");
        got.extend(&pdu.data);
    };
    assert!(got == data);
    assert_eq!(status.opcode(), op::RESPONSE);
    // §11.4.10: the tag of the SNACK tells which response it is; the number stays.
    assert_eq!((status.ttt(), status.stat_sn()), (0x77, end.stat_sn()), "{status:?}");
    assert_eq!(status.data_sn(), 4, "§11.4.8: four PDUs of 1024 bytes: {status:?}");
    for tag in [0, NO_TAG] {
        session[0].send(&pdu::snack(snack::R_DATA, read.itt(), tag, 0, 0));
        session[0].expect(op::REJECT);
    }
    session[0].hold = false;
    session.settle(0);
    session.close(0);
}

/// §11.16: at level 0 there are no SNACKs; and kinds there are not.
#[test]
fn snacks_out_of_place() {
    let rig = Rig::new();
    let mut session = at_level(&rig, "0");
    for kind in [snack::DATA_R2T, snack::STATUS, snack::DATA_ACK, snack::R_DATA, 4, 15] {
        let stray = pdu::snack(kind, 1, 1, 0, 0);
        session[0].send(&stray);
        let reject = session[0].expect(op::REJECT);
        assert_eq!(reject.header[2], reason::PROTOCOL, "{kind}: {reject:?}");
    }
    session.settle(0);
    session.close(0);
    let mut session = at_level(&rig, "1");
    for kind in 4..16 {
        session[0].send(&pdu::snack(kind, 1, 1, 0, 0));
        session[0].expect(op::REJECT);
    }
    session.settle(0);
    session.close(0);
}

/// Sends TASK REASSIGN and gives the response's code (§11.6.1).
#[track_caller]
fn reassign(session: &mut Session, at: usize, task: u32, lun: u8, exp_data_sn: u32) -> u8 {
    let itt = session.tag();
    let request = pdu::manage(function::TASK_REASSIGN, itt, task).with32(36, exp_data_sn);
    let request = session.numbered(with_lun(request, lun).immediate());
    session[at].send(&request);
    let answer = session[at].expect(op::FUNCTION_RESPONSE);
    assert_eq!(answer.itt(), itt);
    answer.header[2]
}

/// §7.2.2, §11.5.1: a connection fails with a read answered but not acknowledged, and a write half
/// way; both go on elsewhere.
#[test]
fn tasks_move_to_another_connection() {
    const COMPLETE: u8 = 0;
    let rig = Rig::new();
    for new_connection in [false, true] {
        let mut session = at_level(&rig, "2");
        session.join(1).unwrap();
        let data = pattern(53, 600, 8);
        session.write_blocks(0, 600, &data).good();
        session[0].hold = true;
        let (read, sent, _) = read_held(&mut session, 8);
        let new = pattern(54, 900, 4);
        let write = session.write(900, 4);
        session[0].send(&write);
        let r2t = session[0].expect(op::R2T);
        let first = &new[..512];
        session[0].send(&pdu::data_out(false, write.itt(), r2t.ttt(), 0, 0, first));
        // §11.6.1: while its connection is there, a task stays on it.
        assert_eq!(reassign(&mut session, 1, read.itt(), 0, 0), 3, "still allegiant");
        session.take(0).drop_now();
        // The target notices; a logout for recovery (§11.14.1) makes sure of it.
        let itt = session.tag();
        let logout = session.numbered(pdu::logout(2, itt, 0).immediate());
        session[1].send(&logout);
        let answer = session[1].expect(op::LOGOUT_RESPONSE);
        assert_eq!(answer.header[2], 0, "{answer:?}");
        let at = if new_connection {
            session.join(0).unwrap();
            0
        } else {
            1
        };
        // Wrong in every way: another task, another unit.
        assert_eq!(reassign(&mut session, at, 0x7777_0000, 0, 0), 1, "no such task");
        assert_eq!(reassign(&mut session, at, read.itt(), 5, 0), 1, "no such task in that unit");
        // §11.5.6: the first three PDUs have come.
        assert_eq!(reassign(&mut session, at, read.itt(), 0, 3), COMPLETE);
        let mut got: Vec<u8> = sent[..3].iter().flat_map(|pdu| pdu.data.clone()).collect();
        let end = loop {
            let pdu = session[at].receive();
            if pdu.opcode() != op::DATA_IN {
                break pdu;
            }
            assert_eq!(pdu.offset() as usize, got.len(), "{pdu:?}");
            got.extend(&pdu.data);
        };
        assert!(got == data);
        assert_eq!((end.opcode(), end.itt(), end.header[3]), (op::RESPONSE, read.itt(), 0));
        // The write: this side asks for the missing part again.
        assert_eq!(reassign(&mut session, at, write.itt(), 0, 0), COMPLETE);
        let mut asked = 0;
        loop {
            let pdu = session[at].receive();
            assert_eq!(pdu.itt(), write.itt(), "{pdu:?}");
            if pdu.opcode() == op::RESPONSE {
                assert_eq!(pdu.header[3], 0, "{pdu:?}");
                break;
            }
            asked += pdu.count();
            let from = pdu.offset() as usize;
            let part = &new[from..from + pdu.count() as usize];
            for piece in longhaul_e2e::initiator::session::sequence(
                write.itt(),
                pdu.ttt(),
                pdu.offset(),
                part,
                512,
            ) {
                session[at].send(&piece);
            }
        }
        assert!((1536..=2048).contains(&asked), "{asked} bytes asked for again");
        assert!(session.read_blocks(at, 900, 4) == new);
        // A second time there is nothing to move (it is allegiant here, or done).
        assert_ne!(reassign(&mut session, at, write.itt(), 0, 0), COMPLETE);
        session.close(at);
    }
}

/// §7.14: the only connection fails at level 2; a new one in its place takes the tasks over.
#[test]
fn the_only_connection_is_replaced() {
    let rig = Rig::new();
    for politely in [false, true] {
        let mut session = at_level(&rig, "2");
        let data = pattern(55, 600, 8);
        session.write_blocks(0, 600, &data).good();
        session[0].hold = true;
        let (read, ..) = read_held(&mut session, 8);
        let gone = session.take(0);
        if politely {
            gone.drop_now();
            std::thread::sleep(QUIET);
            session.join(0).unwrap();
        } else {
            // §6.3.4: reinstatement is an implicit logout for recovery.
            session.join(0).unwrap();
            let mut gone = gone;
            assert!(is_closed(&mut gone, SOON));
        }
        assert_eq!(reassign(&mut session, 0, read.itt(), 0, 0), 0);
        assert!(session.finish(0, &read, &[]).good() == data, "politely: {politely}");
        session.settle(0);
        session.close(0);
    }
}

/// §7.5, §7.6: DefaultTime2Retain after the loss, tasks and session are gone.
#[test]
fn nothing_is_kept_longer_than_agreed() {
    let rig = Rig::new();
    let keys = [
        ("ErrorRecoveryLevel", "2"),
        ("DefaultTime2Wait", "0"),
        ("DefaultTime2Retain", "2"),
        ("ImmediateData", "No"),
        ("MaxConnections", "2"),
    ];
    let mut session = rig.session(keys);
    assert_eq!(session.number("DefaultTime2Retain"), 2);
    session.join(1).unwrap();
    let write = session.write(0, 8);
    session[0].send(&write);
    session[0].expect(op::R2T);
    session.take(0).drop_now();
    std::thread::sleep(Duration::from_millis(4500));
    assert_eq!(reassign(&mut session, 1, write.itt(), 0, 0), 1, "the task is gone");
    session.settle(1);
    session.take(1).drop_now();
    std::thread::sleep(Duration::from_millis(4500));
    let refused = session.join(0).unwrap_err();
    assert_eq!(refused.status, 0x020a, "the session is gone: {refused:?}");
    // §11.15: a logout for recovery tells the times.
    let mut session = rig.session(keys);
    session.join(1).unwrap();
    let itt = session.tag();
    let logout = session.numbered(pdu::logout(2, itt, 1).immediate());
    session[0].send(&logout);
    let answer = session[0].expect(op::LOGOUT_RESPONSE);
    assert_eq!((answer.header[2], answer.get16(40), answer.get16(42)), (0, 0, 2), "{answer:?}");
    session.close(0);
}

/// Below level 2 nothing moves (§11.6.1).
#[test]
fn no_reassignment_below_level_2() {
    let rig = Rig::new();
    for level in ["0", "1"] {
        let mut session = at_level(&rig, level);
        let write = session.write(0, 2);
        session[0].send(&write);
        session[0].expect(op::R2T);
        let got = reassign(&mut session, 0, write.itt(), 0, 0);
        assert_eq!(got, 4, "allegiance reassignment not supported");
        session.close(0);
    }
}

/// Losses at random, on a link that forgets: every command ends with the right data.
#[test]
fn commands_survive_a_lossy_initiator() {
    let rig = Rig::new();
    let mut session = rig.session([
        ("ErrorRecoveryLevel", "2"),
        ("MaxRecvDataSegmentLength", "1024"),
        ("MaxBurstLength", "4096"),
        ("FirstBurstLength", "512"),
        ("DefaultTime2Wait", "0"),
        ("ImmediateData", "No"),
    ]);
    session[0].lenient = true;
    let data = pattern(56, 0, 64);
    let start = Instant::now();
    let (mut rounds, mut lost) = (0, 0);
    while start.elapsed() < Duration::from_secs(5) {
        rounds += 1;
        session.write_blocks(0, 0, &data).good();
        session[0].hold = true;
        let read = session.command(READ, 64 * 512, &cdb10(0x28, 0, 64));
        session[0].send(&read);
        let mut got: Vec<Option<Vec<u8>>> = vec![None; 32];
        let mut end = None;
        let mut status = None;
        loop {
            match session[0].receive_within(Duration::from_millis(100)) {
                Received::Pdu(pdu) => {
                    assert_eq!(pdu.itt(), read.itt(), "{pdu:?}");
                    let is_end = pdu.opcode() == op::RESPONSE;
                    if is_end {
                        status = Some(pdu.stat_sn());
                    }
                    if fastrand::u8(..3) == 0 {
                        lost += 1;
                    } else if is_end {
                        end = Some(pdu);
                    } else {
                        let number = pdu.data_sn() as usize;
                        got[number] = Some(pdu.data);
                    }
                }
                Received::Closed => panic!("closed in round {rounds}"),
                Received::Nothing => {
                    let missing = got.iter().position(Option::is_none);
                    let again = match (missing, &end, status) {
                        (Some(from), ..) => {
                            let run = got[from..].iter().take_while(|piece| piece.is_none());
                            let run = run.count() as u32;
                            pdu::snack(snack::DATA_R2T, read.itt(), NO_TAG, from as u32, run)
                        }
                        (None, None, Some(number)) => {
                            pdu::snack(snack::STATUS, NO_TAG, NO_TAG, number, 1)
                        }
                        _ => break,
                    };
                    session[0].send(&again);
                }
            }
        }
        session[0].hold = false;
        assert_eq!(end.map(|end| end.header[3]), Some(0));
        let all: Vec<u8> = got.into_iter().flatten().flatten().collect();
        assert!(all == data, "round {rounds}");
        if rounds % 5 == 0 {
            session.take(0).drop_now();
            session.join(0).unwrap();
            session[0].lenient = true;
        }
    }
    assert!(rounds > 1 && lost > 10, "{rounds} rounds, {lost} PDUs lost");
    session.close(0);
}
