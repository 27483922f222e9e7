//! Task management.

use super::super::*;
use super::driver::*;
use crate::wire::iscsi::{Function as Fn, RESERVED_TAG, opcode};

fn world(p: Parameters) -> (World, usize) {
    let mut world = World::new(config());
    let at = world.connect(identity(1, 0, 0), p, 100);
    world.hold = true;
    (world, at)
}

fn response(world: &mut World, at: usize) -> (u32, u8) {
    let pdu = world.one(at);
    assert_eq!(pdu.opcode(), opcode::TASK_MANAGEMENT_RESPONSE, "{pdu:x?}");
    (pdu.itt(), pdu.bhs[2])
}

#[test]
fn a_task_is_aborted() {
    let (mut world, at) = world(parameters());
    world.send(at, read(1, 100, 0, 512));
    world.send(at, manage(1, 2, 101, 1, 100));
    assert_eq!(response(&mut world, at), (2, 0));
    world.answer_all();
    assert!(world.take(at).is_empty());
    // The task is gone; another one never existed.
    world.send(at, manage(1, 3, 101, 1, 100));
    assert_eq!(response(&mut world, at), (3, 1));
    // A command counts as received if the initiator sent it and it has not arrived.
    world.send(at, manage(1, 4, 103, 9, 102));
    assert_eq!(response(&mut world, at), (4, 0));
    world.send(at, nothing(5, 102));
    assert!(world.take(at).is_empty());
    world.send(at, nothing(6, 101));
    let pdu = world.one(at);
    assert_eq!((pdu.itt(), pdu.u32(28)), (6, 103));
}

#[test]
fn data_for_an_aborted_task_is_passed_over() {
    let (mut world, at) = world(Parameters { immediate_data: false, ..parameters() });
    world.send(at, write(0, 1, 100, 0, 4096));
    world.send(at, manage(1, 2, 101, 1, 100));
    assert_eq!(response(&mut world, at), (2, 0));
    world.send(at, data_out(true, 1, RESERVED_TAG, 0, 0, &[1; 4096]));
    assert!(world.take(at).is_empty());
    world.send(at, data_out(true, 77, RESERVED_TAG, 0, 0, &[1; 4096]));
    assert_eq!(world.one(at).opcode(), opcode::REJECT);
}

#[test]
fn a_task_set_is_aborted_once_its_output_has_come() {
    let p = Parameters { initial_r2t: true, immediate_data: false, ..parameters() };
    let (mut world, at) = world(p);
    let source = pattern(1, 1 << 20);
    world.send(at, write(F, 1, 100, 0, 1 << 20));
    let r2ts = world.take(at);
    world.send(at, read(2, 101, 0, 512));
    world.send(at, manage(Fn::AbortTaskSet as u8, 3, 102, !0, 0));
    // A newer command waits as before.
    world.send(at, read(4, 102, 0, 512));
    assert_eq!(world.held.len(), 1);
    assert!(world.take(at).is_empty());
    for r2t in &r2ts {
        solicited(&mut world, at, r2t, &source);
    }
    assert_eq!(response(&mut world, at), (3, 0), "and no more R2Ts");
    assert_eq!(world.held.len(), 2);
    world.answer_all();
    assert_eq!(world.one(at).itt(), 4);
}

#[test]
fn an_initiator_that_answers_no_r2t_is_not_waited_for_for_ever() {
    let p = Parameters { initial_r2t: true, immediate_data: false, ..parameters() };
    let (mut world, at) = world(p);
    world.send(at, write(F, 1, 100, 0, 4096));
    world.take(at);
    world.send(at, manage(Fn::LogicalUnitReset as u8, 3, 101, !0, 0));
    assert!(world.take(at).is_empty());
    world.pass(Duration::from_secs(3));
    assert_eq!(response(&mut world, at), (3, 0));
}

#[test]
fn a_task_set_waits_for_commands_that_are_missing() {
    let (mut world, at) = world(parameters());
    world.send(at, read(1, 100, 0, 512));
    world.send(at, manage(Fn::AbortTaskSet as u8, 2, 102, !0, 0));
    assert!(world.take(at).is_empty());
    world.send(at, read(3, 101, 0, 512));
    assert_eq!(response(&mut world, at), (2, 0));
    world.answer_all();
    assert!(world.take(at).is_empty());
}

#[test]
fn a_reset_is_answered_when_others_have_acknowledged_what_they_were_told() {
    let (mut world, a) = world(parameters());
    let b = world.connect(identity(2, 0, 0), parameters(), 1);
    let idle = world.connect(identity(3, 0, 0), parameters(), 1);
    for (itt, cmd_sn) in [(1, 1), (2, 2)] {
        world.send(b, read(itt, cmd_sn, 0, 512));
    }
    let (device, id, request) = world.held.pop_front().unwrap();
    world.answer(device, id, request);
    world.pump();
    let stat_sn = world.conns[b].stat_sn;
    assert_eq!(world.one(b).itt(), 1);
    world.send(a, manage(Fn::LogicalUnitReset as u8, 9, 100, !0, 0));
    assert!(world.take(a).is_empty(), "the other initiator has not acknowledged its status");
    assert!(world.take(idle).is_empty());
    let ping = world.one(b);
    assert_eq!(ping.opcode(), opcode::NOP_IN);
    let pong =
        Out::new(opcode::NOP_OUT, true, F, !0).put(20, ping.ttt()).put(24, 3).put(28, stat_sn);
    world.send_raw(b, &pong);
    assert_eq!(response(&mut world, a), (9, 0));
    world.answer_all();
    assert!(world.take(b).is_empty());
    assert_eq!(world.target.sessions().map(|session| session.commands).sum::<usize>(), 0);
}

#[test]
fn a_fence_falls_with_its_connection_and_with_time() {
    for drop in [true, false] {
        let (mut world, a) = world(parameters());
        let b = world.connect(identity(2, 0, 0), parameters(), 1);
        world.send(b, read(1, 1, 0, 512));
        world.send(b, nothing(2, 2));
        world.send(a, manage(Fn::ClearTaskSet as u8, 9, 100, !0, 0));
        assert!(world.take(a).is_empty());
        if drop {
            world.drop_connection(b);
        } else {
            world.pass(Duration::from_secs(5));
        }
        assert_eq!(response(&mut world, a), (9, 0));
    }
}

#[test]
fn a_response_is_sent_while_a_later_one_still_waits() {
    let (mut world, a) = world(parameters());
    for (itt, seconds) in [(9, 2), (10, 1)] {
        let other = world.connect(identity(itt, 0, 0), parameters(), 1);
        world.send(other, read(1, 1, 0, 512));
        world.send(other, nothing(2, 2));
        world.send(a, manage(Fn::ClearTaskSet as u8, itt.into(), 100, !0, 0));
        assert!(world.take(a).is_empty());
        world.pass(Duration::from_secs(seconds));
    }
    // The world fails if the target has output and does not say so.
    world.pass(Duration::from_secs(2));
    assert_eq!(response(&mut world, a), (9, 0));
    world.pass(Duration::from_secs(2));
    assert_eq!(response(&mut world, a), (10, 0));
}

#[test]
fn target_resets() {
    let (mut world, a) = world(parameters());
    let b = world.connect(identity(2, 0, 0), parameters(), 1);
    world.send(a, read(1, 103, 0, 512));
    // Commands that have not arrived count as received.
    world.send(a, manage(Fn::TargetWarmReset as u8, 9, 105, !0, 0));
    let pdu = world.one(a);
    assert_eq!((pdu.opcode(), pdu.bhs[2], pdu.u32(28)), (0x22, 0, 105));
    world.send(a, manage(Fn::TargetColdReset as u8, 10, 105, !0, 0));
    let pdus = world.take(a);
    assert_eq!((pdus[0].opcode(), pdus[0].itt(), pdus[0].bhs[2]), (0x22, 10, 0));
    assert_eq!((pdus[1].opcode(), pdus[1].bhs[36]), (opcode::ASYNC, 3));
    assert_eq!(*world.expect_closed(a), CloseReason::Reset);
    assert_eq!(*world.expect_closed(b), CloseReason::Reset);
    assert_eq!(world.target.sessions().count(), 0);
}

#[test]
fn functions_of_the_newer_level() {
    for level in [1, 2] {
        let (mut world, at) = world(Parameters { protocol_level: level, ..parameters() });
        world.send(at, read(1, 100, 0, 512));
        let unsupported = level < 2;
        let expect = |response| if unsupported { 5 } else { response };
        for (function, referenced, expected) in
            [(9, 1, 7), (9, 2, 0), (10, !0, 7), (12, !0, 0), (11, !0, 0), (3, !0, 5), (77, !0, 5)]
        {
            world.send(at, manage(function, 9, 101, referenced, 100));
            let expected = if matches!(function, 3 | 77) { 5 } else { expect(expected) };
            assert_eq!(response(&mut world, at), (9, expected), "function {function}");
        }
        world.answer_all();
        assert_eq!(world.take(at).is_empty(), !unsupported);
    }
}

#[test]
fn there_is_a_limit_to_functions() {
    let p = Parameters { initial_r2t: true, immediate_data: false, ..parameters() };
    let (mut world, at) = world(p);
    world.send(at, write(F, 1, 100, 0, 4096));
    world.take(at);
    for n in 0..100 {
        world.send(at, manage(Fn::AbortTaskSet as u8, 1000 + n, 101, !0, 0));
    }
    let rejects = world.take(at);
    assert_eq!(rejects.len(), 100 - 64);
    assert!(rejects.iter().all(|pdu| pdu.opcode() == opcode::REJECT && pdu.bhs[2] == 6));
}

#[test]
fn fast_aborts_do_not_wait_and_are_told_to_others() {
    let p = Parameters {
        initial_r2t: true,
        immediate_data: false,
        task_reporting: TaskReporting::FastAbort,
        ..parameters()
    };
    let (mut world, a) = world(p);
    let other = world.connect(identity(2, 0, 0), p, 1);
    world.send(a, write(F, 1, 100, 0, 4096));
    world.send(other, write(F, 1, 1, 0, 4096));
    world.send(other, read(2, 2, 0, 512));
    let r2t = world.one(a);
    world.take(other);
    world.send(a, manage(Fn::LogicalUnitReset as u8, 9, 101, !0, 0));
    assert!(world.take(a).is_empty(), "the other one has not acknowledged");
    let pdus = world.take(other);
    assert_eq!((pdus.len(), pdus[0].opcode(), pdus[0].bhs[36]), (2, opcode::ASYNC, 5));
    world.send(other, nothing(3, 3));
    assert_eq!(response(&mut world, a), (9, 0));
    // The target drops data on its way for the old task.
    solicited(&mut world, a, &r2t, &[1; 4096]);
    assert!(world.take(a).is_empty());
}

#[test]
fn a_window_that_opens_is_told() {
    let (mut world, a) = world(parameters());
    let b = world.connect(identity(2, 0, 0), parameters(), 1);
    for n in 0..32 {
        world.send(b, read(n, 1 + n, 0, 512));
    }
    assert!(world.take(b).is_empty());
    // The last number of the window was sent at login, so all numbers are used.
    world.send(a, manage(Fn::LogicalUnitReset as u8, 9, 100, !0, 0));
    let nop = world.one(b);
    assert_eq!((nop.opcode(), nop.itt(), nop.ttt()), (opcode::NOP_IN, !0, !0));
    assert_eq!((nop.u32(28), nop.u32(32)), (33, 64));
}

/// A reset of the target counts missing commands as received. That must not be 2^31 commands.
#[test]
fn a_reset_far_ahead_is_refused() {
    let mut world = World::new(config());
    let a = world.connect(identity(1, 0, 0), parameters(), 1);
    for ahead in [config().commands + 1, 1 << 20, (1 << 31) - 2] {
        world.send(a, manage(6, 9, 1 + ahead, RESERVED_TAG, 0));
        let reject = world.one(a);
        assert_eq!((reject.opcode(), reject.bhs[2]), (0x3f, 9), "{ahead} ahead");
    }
    world.send(a, nothing(1, 1));
    assert_eq!(world.one(a).opcode(), 0x21);
}
