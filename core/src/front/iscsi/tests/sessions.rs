//! Several connections in a session, several sessions of an initiator, and the ends of each.

use super::super::*;
use super::driver::*;
use crate::wire::iscsi::{RESERVED_TAG, opcode};

fn statuses(pdus: &[In]) -> Vec<(u8, u32)> {
    pdus.iter().map(|pdu| (pdu.opcode(), pdu.itt())).collect()
}

/// Event and parameters of an asynchronous message.
fn event(pdu: &In) -> (u8, [u16; 3]) {
    assert_eq!(pdu.opcode(), opcode::ASYNC, "{pdu:x?}");
    let parameter = |at: usize| u16::from_be_bytes([pdu.bhs[at], pdu.bhs[at + 1]]);
    (pdu.bhs[36], [38, 40, 42].map(parameter))
}

fn two(p: Parameters) -> (World, usize, usize) {
    let mut world = World::new(config());
    let a = world.connect(identity(1, 0, 0), p, 100);
    let tsih = world.tsih(a);
    let b = world.connect(identity(1, tsih, 1), p, 100);
    assert_eq!(world.target.sessions().count(), 1);
    (world, a, b)
}

#[test]
fn commands_keep_their_order_across_connections() {
    let (mut world, a, b) = two(parameters());
    // The write's data and the read after it overtake the command before them.
    world.send(b, write(0, 2, 101, 0, 1024));
    world.send(b, data_out(true, 2, RESERVED_TAG, 0, 0, &[9; 1024]));
    world.send(b, read(3, 102, 0, 1024));
    assert!(world.take(b).is_empty());
    world.send(b, read(3, 102, 0, 1024));
    world.send(a, read(1, 100, 0, 1024));
    assert_eq!(world.one(a).u32(28), 103);
    let mut rest = statuses(&world.take(b));
    rest.sort_unstable();
    assert_eq!(rest, [(opcode::SCSI_RESPONSE, 2), (opcode::DATA_IN, 3)]);
    assert_eq!(world.disk[..1024], [9; 1024]);
}

#[test]
fn what_lies_outside_the_window_is_ignored() {
    let (mut world, a, _) = two(parameters());
    for number in [99, 100 + 32, 5, 0x8000_0000] {
        world.send(a, nothing(1, number));
    }
    assert!(world.take(a).is_empty());
    world.send(a, nothing(1, 100 + 31));
    assert!(world.take(a).is_empty(), "the last one of the window waits");
    world.send(a, nothing(2, 100));
    assert_eq!(world.one(a).itt(), 2);
    // An earlier request had this number.
    world.send(a, nothing(3, 100));
    assert!(world.take(a).is_empty());
}

#[test]
fn the_window_closes_with_commands_that_have_not_ended() {
    let (mut world, a, _) = two(parameters());
    world.hold = true;
    for n in 0..40 {
        world.send(a, read(n, 100 + n, 0, 512));
    }
    assert_eq!(world.held.len(), 32);
    let (device, id, request) = world.held.pop_front().unwrap();
    world.answer(device, id, request);
    world.pump();
    let pdu = world.one(a);
    assert_eq!((pdu.u32(28), pdu.u32(32)), (132, 132), "one may come");
    world.answer_all();
    let pdus = world.take(a);
    assert_eq!(pdus.last().unwrap().u32(32), 132 + 31);
}

#[test]
fn data_comes_back_on_the_connection_of_its_command_only() {
    let (mut world, a, b) = two(Parameters { immediate_data: false, ..parameters() });
    world.send(a, write(0, 1, 100, 0, 512));
    world.send(b, data_out(true, 1, RESERVED_TAG, 0, 0, &[1; 512]));
    let reject = world.one(b);
    assert_eq!((reject.opcode(), reject.bhs[2]), (opcode::REJECT, 9));
    assert_eq!(reject.data[0], opcode::DATA_OUT);
    world.send(a, data_out(true, 1, RESERVED_TAG, 0, 0, &[1; 512]));
    assert_eq!(world.one(a).bhs[3], 0);
}

#[test]
fn a_connection_is_logged_out_by_another_one() {
    let (mut world, a, b) = two(parameters());
    world.hold = true;
    world.send(a, read(1, 100, 0, 512));
    world.send(b, read(2, 101, 0, 512));
    world.send(b, logout(1, 0, 3, 102));
    assert_eq!(statuses(&world.take(b)), [(opcode::LOGOUT_RESPONSE, 3)]);
    assert_eq!(*world.expect_closed(a), CloseReason::LoggedOut);
    world.answer_all();
    assert!(world.take(a).is_empty());
    assert_eq!(statuses(&world.take(b)), [(opcode::DATA_IN, 2)]);
    // No such connection; no recovery at this level; no such reason.
    for (reason, cid, expected) in [(1, 7, 1), (2, 1, 2)] {
        world.send(b, logout(reason, cid, 3, 102));
        assert_eq!(world.one(b).bhs[2], expected);
    }
    world.send(b, logout(9, 1, 3, 102));
    assert_eq!(world.one(b).opcode(), opcode::REJECT);
    world.send(b, logout(1, 1, 4, 102));
    assert_eq!(world.target.sessions().count(), 0);
}

#[test]
fn a_lost_connection_takes_its_tasks_along_and_leaves_the_others() {
    let (mut world, a, b) = two(parameters());
    world.hold = true;
    world.send(a, read(1, 100, 0, 512));
    world.send(a, nothing(2, 102));
    world.send(b, read(3, 103, 0, 512));
    world.drop_connection(a);
    // The command that waited for its turn counts as received.
    world.send(b, nothing(4, 101));
    assert_eq!(statuses(&world.take(b)), [(opcode::SCSI_RESPONSE, 4)]);
    world.answer_all();
    let pdu = world.one(b);
    assert_eq!((pdu.itt(), pdu.u32(28)), (3, 104));
}

#[test]
fn sessions_and_connections_are_reinstated() {
    let mut world = World::new(config());
    let a = world.connect(identity(1, 0, 0), parameters(), 1);
    let other = world.connect(identity(2, 0, 0), parameters(), 1);
    world.hold = true;
    world.send(a, read(1, 1, 0, 512));
    let again = world.connect(identity(1, 0, 0), parameters(), 50);
    assert_eq!(*world.expect_closed(a), CloseReason::Reinstated);
    assert_eq!(world.target.sessions().count(), 2);
    world.answer_all();
    world.send(again, nothing(1, 50));
    assert_eq!(world.one(again).bhs[3], 0);
    // The same connection of the same session.
    let tsih = world.tsih(again);
    let third = world.connect(identity(1, tsih, 0), parameters(), 50);
    assert_eq!(*world.expect_closed(again), CloseReason::Reinstated);
    world.send(third, nothing(1, 51));
    assert_eq!(world.one(third).bhs[3], 0);
    world.send(other, nothing(1, 1));
    assert_eq!(world.one(other).bhs[3], 0);
}

/// The last user of the device ends, and the new one comes.
#[test]
fn the_only_session_of_a_device_is_reinstated() {
    let mut world = World::new(config());
    let old = world.connect(identity(1, 0, 0), parameters(), 1);
    let new = world.connect(identity(1, 0, 0), parameters(), 50);
    assert_eq!(*world.expect_closed(old), CloseReason::Reinstated);
    world.send(new, nothing(1, 50));
    assert_eq!(world.one(new).opcode(), 0x21);
}

#[test]
fn logins_that_cannot_be() {
    let mut world = World::new(config());
    let a = world.connect(identity(1, 0, 0), parameters(), 1);
    let tsih = world.tsih(a);
    let p = parameters();
    assert_eq!(world.try_connect(identity(1, tsih + 1, 1), p, 1), Err(0x020a));
    assert_eq!(world.try_connect(identity(2, tsih, 1), p, 1), Err(0x020a));
    for cid in 1..4 {
        world.connect(identity(1, tsih, cid), p, 1);
    }
    assert_eq!(world.try_connect(identity(1, tsih, 4), p, 1), Err(0x0206));
    for isid in 2..5 {
        world.connect(identity(isid, 0, 0), p, 1);
    }
    assert_eq!(world.try_connect(identity(9, 0, 0), p, 1), Err(0x0302));
}

#[test]
fn sessions_end_when_asked_to_log_out_or_are_cut_off() {
    let (mut world, a, b) = two(parameters());
    let other = world.connect(identity(2, 0, 7), parameters(), 1);
    world.target.handle_shutdown(world.now, Duration::from_millis(4999));
    world.pump();
    for at in [a, b, other] {
        let pdu = world.one(at);
        assert_eq!((pdu.opcode(), pdu.itt(), event(&pdu)), (0x32, !0, (1, [0, 0, 4])));
    }
    assert_eq!(world.try_connect(identity(3, 0, 0), parameters(), 1), Err(0x0301));
    world.send(a, logout(0, 0, 2, 100));
    assert_eq!(*world.expect_closed(b), CloseReason::LoggedOut);
    world.take(a);
    world.pass(Duration::from_millis(3999));
    assert!(world.conns[other].closed.is_none());
    world.pass(Duration::from_millis(1));
    // Parameters: the CID of the connection to drop, DefaultTime2Wait, and no time for tasks.
    assert_eq!(event(&world.one(other)), (2, [7, 2, 0]));
    assert_eq!(*world.expect_closed(other), CloseReason::Shutdown);
    assert!(world.take(a).is_empty() && world.take(b).is_empty(), "they have left");
    assert_eq!(world.target.sessions().count(), 0);
    assert_eq!(world.target.poll_timeout(), None);
}

/// If nobody has time to log out, the target announces the drop of all connections, and drops them.
#[test]
fn a_shutdown_that_does_not_wait() {
    let (mut world, a, b) = two(parameters());
    world.target.handle_shutdown(world.now, Duration::from_millis(999));
    world.pump();
    for at in [a, b] {
        assert_eq!(event(&world.one(at)), (3, [0, 2, 0]));
        assert_eq!(*world.expect_closed(at), CloseReason::Shutdown);
    }
}

/// After the first request to log out, the target tells the initiator of a second, earlier limit.
#[test]
fn a_shutdown_shortens_the_time_to_log_out() {
    let (mut world, a, _) = two(parameters());
    let mut access = Access::default();
    access.volumes.insert("v".into(), Vec::new());
    world.target.set_access(world.now, access);
    world.pump();
    assert_eq!(event(&world.one(a)), (1, [0, 0, 10]));
    world.target.handle_shutdown(world.now, Duration::from_secs(60));
    world.pump();
    assert!(world.take(a).is_empty());
    world.target.handle_shutdown(world.now, Duration::from_secs(4));
    world.pump();
    assert_eq!(event(&world.one(a)), (1, [0, 0, 4]));
    world.pass(Duration::from_secs(4));
    assert_eq!(*world.expect_closed(a), CloseReason::Shutdown);
}

#[test]
fn who_loses_the_right_is_logged_out() {
    let (mut world, a, _) = two(parameters());
    let mut access = Access::default();
    access.volumes.insert("v".into(), vec![Grant { initiator: INITIATOR.into(), user: None }]);
    world.target.set_access(world.now, access.clone());
    world.pump();
    assert!(world.take(a).is_empty());
    access.volumes.insert("v".into(), Vec::new());
    world.target.set_access(world.now, access);
    world.pump();
    assert_eq!(world.one(a).opcode(), opcode::ASYNC);
    world.pass(Duration::from_secs(10));
    assert_eq!(*world.expect_closed(a), CloseReason::Forbidden);
}

#[test]
fn a_volume_that_goes_takes_its_sessions_along() {
    let (mut world, a, b) = two(parameters());
    world.hold = true;
    world.send(a, read(1, 100, 0, 512));
    world.target.handle_volume_gone(world.now, "v", "fenced");
    world.pump();
    for at in [a, b] {
        assert_eq!(world.one(at).bhs[36], 3);
        assert_eq!(*world.expect_closed(at), CloseReason::VolumeGone("fenced".into()));
    }
    assert!(world.events.iter().any(|event| matches!(event, Event::Released { .. })));
    world.answer_all();
    assert!(world.take(a).is_empty());
}

#[test]
fn memory_is_given_to_one_command_after_the_other() {
    let config = Config { session_bytes: 1 << 20, ..config() };
    let mut world = World::new(config);
    let p = Parameters { immediate_data: false, initial_r2t: true, ..parameters() };
    let at = world.connect(identity(1, 0, 0), p, 1);
    world.hold = true;
    let source = pattern(5, 700 << 10);
    world.send(at, write(F, 1, 1, 0, 700 << 10));
    world.send(at, read(2, 2, 0, 700 << 10));
    world.send(at, nothing(3, 3));
    assert!(world.held.is_empty());
    answer_r2ts(&mut world, at, &source);
    assert_eq!(world.held.len(), 1, "the read waits");
    assert_eq!(world.target.sessions().next().unwrap().held_bytes, 700 << 10);
    world.answer_all();
    assert_eq!(world.held.len(), 1);
    world.answer_all();
    let pdus = world.take(at);
    assert_eq!(statuses(&pdus)[..2], [(opcode::SCSI_RESPONSE, 1), (opcode::SCSI_RESPONSE, 3)]);
    assert_eq!(assemble(&pdus, &p), source);
    assert_eq!(world.target.sessions().next().unwrap().held_bytes, 0);
}
