//! §4.2.2, §4.4, §7.9: the numbers of commands, statuses and data, the window, and several
//! connections in one session.

use super::{QUIET, Rig, SOON, pattern};
use longhaul_e2e::initiator::pdu::{self, NO_TAG, Pdu, function, op, reason};
use longhaul_e2e::initiator::session::{NONE, READ, WRITE, cdb10};
use longhaul_e2e::initiator::{Received, Session};

/// An ordered write of one block with its data in the command. Simple tasks may pass each other
/// after delivery (SAM-5 §8.9.1).
fn small_write(session: &mut Session, kind: u8) -> Pdu {
    let mut write = ordered(session.write(10, 1));
    write.data = pattern(kind, 10, 1);
    write
}

/// With the task attribute ORDERED (§11.3.1).
fn ordered(mut pdu: Pdu) -> Pdu {
    pdu.header[1] = pdu.header[1] & !7 | 2;
    pdu
}

#[test]
fn commands_run_in_the_order_of_their_numbers() {
    let rig = Rig::new();
    let mut session = rig.session([]);
    // Backwards: nothing happens until the first comes, then all in order; the last write counts.
    let mut writes: Vec<Pdu> = (0..20).map(|kind| small_write(&mut session, kind)).collect();
    let read = ordered(session.read(10, 1));
    session[0].send(&read);
    let first = writes.remove(0);
    for write in writes.iter().rev() {
        session[0].send(write);
    }
    session[0].expect_nothing(QUIET);
    session[0].send(&first);
    for write in [first].iter().chain(&writes) {
        let end = session[0].expect(op::RESPONSE);
        assert_eq!((end.itt(), end.header[3]), (write.itt(), 0), "out of order: {end:?}");
    }
    assert!(session.finish(0, &read, &[]).good() == pattern(19, 10, 1));
    session.close(0);
}

/// §4.2.2.1: the target skips numbers outside the window, and received ones, in silence.
#[test]
fn commands_outside_the_window_are_ignored() {
    let rig = Rig::new();
    let mut session = rig.session([]);
    let ok = session.command(NONE, 0, &[0; 6]);
    session.run(0, &ok, &[]).good();
    let (expected, max) = (session[0].exp_cmd_sn, session[0].max_cmd_sn);
    let window = max.wrapping_sub(expected) + 1;
    assert!((1..=4096).contains(&window), "a window of {window}");
    for number in [
        expected.wrapping_sub(1),
        expected.wrapping_sub(1000),
        max.wrapping_add(1),
        max.wrapping_add(1000),
        expected.wrapping_add(1 << 31),
        expected.wrapping_sub(1 << 30),
    ] {
        let itt = session.tag();
        let stray = pdu::command(WRITE | 1, itt, 512, &cdb10(0x2a, 10, 1)).with32(24, number);
        session[0].send(&stray.with_data(&pattern(99, 10, 1)));
    }
    session[0].expect_nothing(QUIET);
    assert!(session.read_blocks(0, 10, 1) != pattern(99, 10, 1));
    // The target takes the last number of the window, and it waits.
    let itt = session.tag();
    let last = session[0].max_cmd_sn;
    session[0].send(&pdu::command(NONE | 1, itt, 0, &[0; 6]).with32(24, last));
    session[0].expect_nothing(QUIET);
    while session.cmd_sn != last {
        let command = session.command(NONE, 0, &[0; 6]);
        session[0].send(&command);
    }
    session.cmd_sn = last.wrapping_add(1);
    let mut left = window + 8;
    loop {
        let end = session[0].expect(op::RESPONSE);
        if end.itt() == itt {
            break;
        }
        left -= 1;
        assert_ne!(left, 0, "the last command is not answered");
    }
    session.settle(0);
    session.close(0);
}

/// CmdSN and StatSN go around at 2^32 (§4.2.2.1, RFC 1982).
#[test]
fn numbers_wrap_around() {
    let rig = Rig::new();
    let mut login = rig.login();
    login.cmd_sn = u32::MAX - 5;
    let mut session = rig.session_of(&login);
    for kind in 0..20 {
        let data = pattern(kind, 0, 8);
        session.write_blocks(0, 0, &data).good();
        assert!(session.read_blocks(0, 0, 8) == data);
    }
    assert!(session.cmd_sn < 100);
    session.close(0);
}

/// §4.2.2.1: immediate commands go at once, whatever number is missing; there is a limit to them.
#[test]
fn immediate_commands() {
    let rig = Rig::new();
    let mut session = rig.session([]);
    let gap = session.command(NONE, 0, &[0; 6]);
    let waits = session.command(NONE, 0, &[0; 6]);
    session[0].send(&waits);
    let itt = session.tag();
    let ping = session.numbered(pdu::nop_out(itt, NO_TAG).immediate().with_data(b"now"));
    session[0].send(&ping);
    assert_eq!(session[0].expect(op::NOP_IN).data, b"now");
    let itt = session.tag();
    let read = session.numbered(pdu::command(READ | 1, itt, 512, &cdb10(0x28, 0, 1)).immediate());
    session[0].send(&read);
    session.finish(0, &read, &[]).good();
    // Many immediate writes that wait for data: the target rejects some, none hangs.
    let mut taken = Vec::new();
    let mut rejected = 0;
    for _ in 0..400 {
        let itt = session.tag();
        let write = pdu::command(WRITE | 1, itt, 512, &cdb10(0x2a, 10, 1)).immediate();
        let write = session.numbered(write);
        session[0].send(&write);
        let answer = session[0].receive();
        match answer.opcode() {
            op::R2T => taken.push(answer),
            op::REJECT => {
                assert_eq!(answer.header[2], reason::TOO_MANY_IMMEDIATE, "{answer:?}");
                rejected += 1;
            }
            _ => panic!("{answer:?}"),
        }
    }
    assert!(!taken.is_empty() && rejected > 0, "{} taken", taken.len());
    for r2t in taken {
        session[0].send(&pdu::data_out(true, r2t.itt(), r2t.ttt(), 0, 0, &pattern(7, 10, 1)));
        assert_eq!(session[0].expect(op::RESPONSE).header[3], 0);
    }
    session[0].send(&gap);
    session.finish(0, &gap, &[]).good();
    session.finish(0, &waits, &[]).good();
    session.close(0);
}

/// §11.2.1.8, §11.17.1: a tag that is in use names one task.
#[test]
fn a_tag_that_is_in_use() {
    let rig = Rig::new();
    let mut session = rig.session([("ImmediateData", "No")]);
    let write = session.write(0, 1);
    session[0].send(&write);
    let r2t = session[0].expect(op::R2T);
    let again = session.write(0, 1).with32(16, write.itt());
    session[0].send(&again);
    session[0].expect_reject(reason::IN_PROGRESS, &again);
    session.cmd_sn = again.cmd_sn();
    // The tag that names nothing.
    let none = session.read(0, 1).with32(16, NO_TAG);
    session[0].send(&none);
    session[0].expect_reject(reason::INVALID_FIELD, &none);
    session.cmd_sn = none.cmd_sn();
    session[0].send(&pdu::data_out(true, write.itt(), r2t.ttt(), 0, 0, &[1; 512]));
    session.finish_write(&write).good();
    // Free again.
    let read = session.read(0, 1).with32(16, write.itt());
    assert_eq!(session.run(0, &read, &[]).good(), [1; 512]);
    session.close(0);
}

/// §4.2.2.1: the numbers are the session's; commands over several connections run in their order.
#[test]
fn order_holds_across_connections() {
    let rig = Rig::new();
    let mut session = rig.session([("MaxConnections", "8")]);
    let most = session.number("MaxConnections") as usize;
    assert!(most >= 4, "{most} connections");
    for cid in 1..most {
        session.join(cid as u16).unwrap();
    }
    for round in 0..10 {
        // Each write on another connection, sent in any order; the last number's data stays.
        let mut writes: Vec<(usize, Pdu)> = (0..24)
            .map(|kind| (fastrand::usize(..most), small_write(&mut session, round * 24 + kind)))
            .collect();
        let last = writes.last().unwrap().1.data.clone();
        fastrand::shuffle(&mut writes);
        for (at, write) in &writes {
            session[*at].send(write);
        }
        for (at, _) in &writes {
            let end = session[*at].expect(op::RESPONSE);
            assert_eq!(end.header[3], 0, "{end:?}");
            let of: Vec<&Pdu> =
                writes.iter().filter(|(on, _)| on == at).map(|(_, write)| write).collect();
            // §4.4: the status comes where the command came from.
            assert!(of.iter().any(|write| write.itt() == end.itt()), "allegiance: {end:?}");
        }
        let at = fastrand::usize(..most);
        assert!(session.read_blocks(at, 10, 1) == last, "round {round}");
    }
    session.close(most - 1);
}

/// §4.4: data has to come on its command's connection.
#[test]
fn data_on_another_connection_is_refused() {
    let rig = Rig::new();
    let mut session = rig.session([("MaxConnections", "2"), ("ImmediateData", "No")]);
    session.join(1).unwrap();
    let write = session.write(0, 1);
    session[0].send(&write);
    let r2t = session[0].expect(op::R2T);
    let stray = pdu::data_out(true, write.itt(), r2t.ttt(), 0, 0, &[9; 512]);
    session[1].send(&stray);
    session[1].expect_reject(reason::INVALID_FIELD, &stray);
    session[0].send(&pdu::data_out(true, write.itt(), r2t.ttt(), 0, 0, &[8; 512]));
    session.finish_write(&write).good();
    assert_eq!(session.read_blocks(1, 0, 1), [8; 512]);
    session.close(0);
}

/// §7.14, §7.6: a connection is lost below level 2. Its tasks end, the session and the others go
/// on. A retry on another one fills a number that went with it (§7.2.1).
#[test]
fn a_connection_lost_among_others() {
    let rig = Rig::new();
    let mut session = rig.session([("MaxConnections", "3"), ("ImmediateData", "No")]);
    session.join(1).unwrap();
    let write = session.write(0, 8);
    session[1].send(&write);
    session[1].expect(op::R2T);
    let missing = session.command(NONE, 0, &[0; 6]);
    let after = session.command(NONE, 0, &[0; 6]);
    session[0].send(&after);
    session.take(1).drop_now();
    session[0].expect_nothing(QUIET);
    session[0].send(&missing);
    session.finish(0, &missing, &[]).good();
    session.finish(0, &after, &[]).good();
    // The tag is free again, and the connection may come back.
    let read = session.read(0, 1).with32(16, write.itt());
    session.run(0, &read, &[]).good();
    session.join(1).unwrap();
    session.settle(1);
    session.close(1);
}

/// §11.5, §4.2.3: aborting present, answered and missing commands.
#[test]
fn aborted_tasks() {
    const COMPLETE: u8 = 0;
    const NO_TASK: u8 = 1;
    let rig = Rig::new();
    let mut session = rig.session([("ImmediateData", "No")]);
    let manage = |session: &mut Session, function: u8, tag: u32, number: u32| {
        let itt = session.tag();
        let request = pdu::manage(function, itt, tag).with32(32, number);
        let request = session.numbered(request.immediate());
        session[0].send(&request);
        let answer = session[0].expect(op::FUNCTION_RESPONSE);
        assert_eq!(answer.itt(), itt);
        answer.header[2]
    };
    let write = session.write(0, 8);
    session[0].send(&write);
    let r2t = session[0].expect(op::R2T);
    assert_eq!(manage(&mut session, function::ABORT_TASK, write.itt(), write.cmd_sn()), COMPLETE);
    // The target skips data on its way, and the command has no status.
    session[0].send(&pdu::data_out(true, write.itt(), r2t.ttt(), 0, 0, &[1; 4096]));
    session[0].expect_nothing(QUIET);
    // §11.5.1: a task that is not there, with a number that is not in the window.
    assert_eq!(manage(&mut session, function::ABORT_TASK, 0x1234, write.cmd_sn()), NO_TASK);
    // §11.6.1: a number that is to come counts as received, and its command does nothing.
    let ghost = session.command(NONE, 0, &[0; 6]);
    let next = session.command(NONE, 0, &[0; 6]);
    session[0].send(&next);
    session[0].expect_nothing(QUIET);
    assert_eq!(manage(&mut session, function::ABORT_TASK, ghost.itt(), ghost.cmd_sn()), COMPLETE);
    session.finish(0, &next, &[]).good();
    session[0].send(&ghost);
    session[0].expect_nothing(QUIET);
    // A function that is none, and one for a unit that is none.
    assert_eq!(manage(&mut session, 99, NO_TAG, 0), 5);
    let itt = session.tag();
    let reset = super::with_lun(pdu::manage(function::LUN_RESET, itt, NO_TAG), 7);
    let reset = session.numbered(reset.immediate());
    session[0].send(&reset);
    let answer = session[0].expect(op::FUNCTION_RESPONSE);
    assert_eq!(answer.header[2], 2, "{answer:?}");
    // A reset that claims to come after commands beyond the window.
    for ahead in [5000, 1 << 30, (1 << 31) - 1] {
        let itt = session.tag();
        let number = session.cmd_sn.wrapping_add(ahead);
        let reset = pdu::manage(function::WARM_RESET, itt, NO_TAG).immediate().with32(24, number);
        session[0].send(&reset);
        session[0].expect_reject(reason::INVALID_FIELD, &reset);
    }
    // A reset ends all tasks, and whoever is there hears of it once.
    let write = session.write(0, 8);
    session[0].send(&write);
    session[0].expect(op::R2T);
    let itt = session.tag();
    let reset = session.numbered(pdu::manage(function::LUN_RESET, itt, NO_TAG).immediate());
    session[0].send(&reset);
    let answer = session[0].expect(op::FUNCTION_RESPONSE);
    assert_eq!((answer.itt(), answer.header[2]), (itt, COMPLETE), "{answer:?}");
    session.settle(0);
    session.close(0);
}

/// §11.5.1: a cold reset ends the sessions of the target.
#[test]
fn a_cold_reset_ends_all_sessions() {
    let rig = Rig::new();
    let mut session = rig.session([]);
    let mut other = rig.session([]);
    let itt = session.tag();
    let reset = session.numbered(pdu::manage(function::COLD_RESET, itt, NO_TAG).immediate());
    session[0].send(&reset);
    let seen = session[0].expect_closed(SOON);
    assert!(seen.first().is_some_and(|pdu| pdu.opcode() == op::FUNCTION_RESPONSE), "{seen:?}");
    other[0].expect_closed(SOON);
    rig.session([]).close(0);
}

/// §4.2.2.2: every status has the number after the last one, whatever it is of.
#[test]
fn statuses_of_every_kind_are_numbered() {
    let rig = Rig::new();
    let mut session = rig.session([]);
    for _ in 0..50 {
        let itt = session.tag();
        let request = match fastrand::u8(..6) {
            0 => session.command(NONE, 0, &[0; 6]),
            1 => session.read(0, 4),
            2 => session.numbered(pdu::nop_out(itt, NO_TAG)),
            3 => session.numbered(pdu::text(true, itt, NO_TAG, b"SendTargets=\0")),
            4 => session.numbered(pdu::manage(function::ABORT_TASK, itt, 1)),
            _ => session.command(0x80, 0, &[0xff; 16]),
        };
        session[0].send(&request);
        // The connection checks the numbers.
        while let Received::Pdu(pdu) = session[0].receive_within(SOON) {
            if pdu.has_status() {
                break;
            }
        }
    }
    session.close(0);
}
