//! The counters: each event counts once.

use super::super::*;
use super::driver::*;
use crate::front::scsi::CommandClass;
use crate::wire::iscsi::{RejectReason, opcode};

fn of(world: &World, class: CommandClass) -> u64 {
    world.target.counters().commands[class as usize]
}

#[test]
fn commands_are_counted_when_their_turn_comes() {
    let mut world = World::new(config());
    let at = world.connect(identity(1, 0, 0), parameters(), 100);
    world.send(at, read(1, 101, 0, 512));
    assert_eq!(of(&world, CommandClass::Read), 0, "another one comes first");
    world.send(at, nothing(2, 100));
    world.send(at, write(F, 3, 102, 0, 512).data(&[1; 512]));
    // One number was received before, one request is refused for its tag.
    world.send(at, read(1, 101, 0, 512));
    world.send(at, read(!0, 103, 0, 512));
    let counts =
        [CommandClass::Read, CommandClass::Write, CommandClass::Other, CommandClass::Flush]
            .map(|c| of(&world, c));
    assert_eq!(counts, [1, 1, 1, 0]);
    let counters = world.target.counters();
    assert_eq!((counters.logins, counters.logins_refused), (1, 0));
    assert_eq!(counters.rejects, BTreeMap::from([(RejectReason::InvalidPduField, 1)]));
}

#[test]
fn damage_is_counted() {
    let p = Parameters { header_digest: true, data_digest: true, ..parameters() };
    let mut world = World::new(config());
    let at = world.connect(identity(1, 0, 0), p, 100);
    let mut bytes = write(F, 1, 100, 0, 512).data(&[1; 512]).put(28, !15).encode(&p);
    *bytes.last_mut().unwrap() ^= 1;
    world.send_bytes(at, &bytes);
    let counters = world.target.counters();
    assert_eq!((counters.header_digest_errors, counters.data_digest_errors), (0, 1));
    assert_eq!(counters.rejects, BTreeMap::from([(RejectReason::DataDigestError, 1)]));
    let at = world.connect(identity(1, 0, 0), p, 100);
    let mut bytes = read(1, 100, 0, 512).encode(&p);
    bytes[40] ^= 1;
    world.send_bytes(at, &bytes);
    assert!(
        matches!(world.expect_closed(at), CloseReason::Violation(why) if why.contains("header"))
    );
    let counters = world.target.counters();
    assert_eq!((counters.header_digest_errors, counters.data_digest_errors), (1, 1));
}

#[test]
fn logins_that_are_refused_are_counted() {
    let mut world = World::new(config());
    let peer = Peer { address: String::new(), portal: String::new(), loopback: true };
    world.target.handle_accept(world.now, 1, peer, [0; 32]);
    let request = Out::new(opcode::NOP_OUT, true, F, 1).encode(&parameters());
    world.target.handle_input(world.now, 1, &mut bytes::BytesMut::from(&request[..]));
    let counters = world.target.counters();
    let counts = (counters.logins, counters.logins_refused, counters.logins_redirected);
    assert_eq!(counts, (0, 1, 0));
}

#[test]
fn aborted_commands_are_counted_by_cause() {
    let count = |world: &World| {
        let counters = world.target.counters();
        (counters.aborted_by_function, counters.aborted_by_loss)
    };
    for level in [0, 2] {
        let p = Parameters { error_recovery_level: level, ..parameters() };
        let mut world = World::new(config());
        let at = world.connect(identity(1, 0, 0), p, 100);
        let other = world.connect(identity(2, 0, 0), p, 100);
        // Ended commands do not count, although at level 2 their status is kept.
        world.send(at, read(1, 100, 0, 512));
        world.hold = true;
        world.send(at, read(2, 101, 0, 512));
        world.send(at, read(3, 102, 0, 512));
        world.send(other, read(4, 100, 0, 512));
        world.send(at, manage(1, 5, 103, 2, 101));
        assert_eq!(count(&world), (1, 0), "level {level}: ABORT TASK");
        // LOGICAL UNIT RESET ends the tasks of both sessions.
        world.send(at, manage(5, 6, 103, 0, 0));
        assert_eq!(count(&world), (3, 0), "level {level}: a reset");
        world.send(at, read(7, 103, 0, 512));
        world.send(other, read(8, 101, 0, 512));
        world.drop_connection(at);
        world.pass(Duration::from_secs(60));
        assert_eq!(
            count(&world),
            (3, 2),
            "level {level}: a connection lost, and one that is silent"
        );
        assert_eq!(world.target.sessions().count(), 0);
    }
}

/// Tasks of a failed connection, which another connection could have taken over.
#[test]
fn what_waits_for_a_connection_ends_with_the_session() {
    let p = Parameters { error_recovery_level: 2, ..parameters() };
    let mut world = World::new(config());
    let a = world.connect(identity(1, 0, 0), p, 100);
    let tsih = world.tsih(a);
    let b = world.connect(identity(1, tsih, 1), p, 100);
    world.hold = true;
    world.send(b, read(1, 100, 0, 512));
    world.drop_connection(b);
    assert_eq!(world.target.counters().aborted_by_loss, 0);
    world.connect(identity(1, 0, 0), p, 100);
    assert_eq!(*world.expect_closed(a), CloseReason::Reinstated);
    assert_eq!(world.target.counters().aborted_by_loss, 1);
}
