//! Single cases of the standards.

use super::*;
use crate::front::scsi::reservations::attention::*;

const KINDS: [u8; 6] = [1, 3, 5, 6, 7, 8];

fn cdb(bytes: &[u8]) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[..bytes.len()].copy_from_slice(bytes);
    cdb
}

#[test]
fn classes() {
    let cases: [(&[u8], ConflictClass); 38] = [
        (&[0x00], ConflictClass::Ready),
        (&[0x03], ConflictClass::Free),
        (&[0x12], ConflictClass::Free),
        (&[0x25], ConflictClass::Free),
        (&[0x4d], ConflictClass::Free),
        (&[0xa0], ConflictClass::Free),
        (&[0x9e, 0x10], ConflictClass::Free),
        (&[0x9e, 0x12], ConflictClass::Read),
        (&[0x9e, 0x11], ConflictClass::Write),
        (&[0xa3, 0x0a], ConflictClass::Free),
        (&[0xa3, 0x0c], ConflictClass::Read),
        (&[0xa3, 0x0d], ConflictClass::Read),
        (&[0xa4, 0x0a], ConflictClass::Write),
        (&[0x1b, 0, 0, 0, 1], ConflictClass::Free),
        (&[0x1b, 0, 0, 0, 0], ConflictClass::Write),
        (&[0x1b, 0, 0, 0, 0x11], ConflictClass::Write),
        (&[0x1e, 0, 0, 0, 0], ConflictClass::Free),
        (&[0x1e, 0, 0, 0, 1], ConflictClass::Write),
        (&[0x08], ConflictClass::Read),
        (&[0x28], ConflictClass::Read),
        (&[0x88], ConflictClass::Read),
        (&[0x2f], ConflictClass::Read),
        (&[0x34], ConflictClass::Read),
        (&[0x1a], ConflictClass::Read),
        (&[0x5a], ConflictClass::Read),
        (&[0x37], ConflictClass::Read),
        (&[0x0a], ConflictClass::Write),
        (&[0x2a], ConflictClass::Write),
        (&[0x8a], ConflictClass::Write),
        (&[0x89], ConflictClass::Write),
        (&[0x35], ConflictClass::Write),
        (&[0x91], ConflictClass::Write),
        (&[0x42], ConflictClass::Write),
        (&[0x41], ConflictClass::Write),
        (&[0x55], ConflictClass::Write),
        (&[0x9c], ConflictClass::Write),
        (&[0x83, 0x10], ConflictClass::Read),
        (&[0x7f, 0, 0, 0, 0, 0, 0, 0x18, 0, 0x0b], ConflictClass::Write),
    ];
    for (bytes, class) in cases {
        assert_eq!(ConflictClass::of(&cdb(bytes)), class, "{bytes:02x?}");
    }
}

#[test]
fn who_may_do_what_under_each_type() {
    // Reads and writes of the holder, a registered nexus and a stranger.
    let tables = [
        (1, [true, true, true, false, true, false]),
        (3, [true, true, false, false, false, false]),
        (5, [true, true, true, true, true, false]),
        (6, [true, true, true, true, false, false]),
        (7, [true, true, true, true, true, false]),
        (8, [true, true, true, true, false, false]),
    ];
    for (kind, allowed) in tables {
        let mut unit = Unit::new();
        unit.register(1, 11);
        unit.register(2, 12);
        assert_eq!(unit.send(1, RESERVE, kind, &list(11, 0, 0)), GOOD);
        let found = [1, 1, 2, 2, 3, 3]
            .iter()
            .zip([ConflictClass::Read, ConflictClass::Write].iter().cycle());
        let found: Vec<bool> = found.map(|(&n, &class)| unit.it.check(n, class).is_ok()).collect();
        assert_eq!(found, allowed, "type {kind}");
        for nexus in 1..=4 {
            assert_eq!(unit.it.check(nexus, ConflictClass::Free), GOOD);
            assert_eq!(unit.it.check(nexus, ConflictClass::Ready), GOOD);
        }
        let key = if kind >= 7 { 0 } else { 11 };
        assert_eq!(unit.reservation(), Some((key, kind)));
    }
}

#[test]
fn a_registration_outlives_its_nexus() {
    let mut unit = Unit::new();
    unit.register(1, 11);
    unit.send(1, RESERVE, 3, &list(11, 0, 0)).unwrap();
    unit.it.handle_nexus_loss(1);
    assert_eq!(unit.it.check(2, ConflictClass::Read), CONFLICT);
    // Another spelling of the same port.
    let initiator_port = "iqn.2026-11.TEST:1,i,0X1".replace('X', "x");
    unit.it.handle_nexus(9, &Nexus { initiator_port, relative_port: 1 });
    assert_eq!(unit.it.check(9, ConflictClass::Write), GOOD);
    // The same initiator through the other port is another nexus, and so is its other session.
    unit.it.handle_nexus(10, &ends(1, 2));
    assert_eq!(unit.it.check(10, ConflictClass::Read), CONFLICT);
    unit.it.handle_reset();
    assert_eq!(unit.it.check(2, ConflictClass::Read), CONFLICT);
}

#[test]
fn register() {
    let mut unit = Unit::new();
    assert_eq!(unit.send(1, REGISTER, 0, &list(5, 6, 0)), CONFLICT);
    // The release has no effect.
    assert_eq!(unit.send(1, REGISTER, 0, &list(0, 0, 0)), GOOD);
    assert_eq!(unit.generation(), 0);
    assert_eq!(unit.send(1, REGISTER, 0, &list(0, 6, 0)), GOOD);
    assert_eq!(unit.send(1, REGISTER, 0, &list(0, 7, 0)), CONFLICT);
    assert_eq!(unit.send(1, REGISTER, 0, &list(6, 7, 0)), GOOD);
    assert_eq!((unit.keys(), unit.generation()), (vec![7], 2));
    assert_eq!(unit.send(1, REGISTER_IGNORING, 0, &list(99, 8, 0)), GOOD);
    assert_eq!((unit.keys(), unit.generation()), (vec![8], 3));
    assert_eq!(unit.send(1, REGISTER, 0, &list(8, 0, 0)), GOOD);
    assert_eq!((unit.keys(), unit.generation()), (vec![], 4));
    assert!(unit.it.is_empty());
}

#[test]
fn the_end_of_a_holders_registration_ends_its_reservation() {
    for kind in KINDS {
        let mut unit = Unit::new();
        unit.register(1, 11);
        unit.register(2, 12);
        unit.send(1, RESERVE, kind, &list(11, 0, 0)).unwrap();
        assert_eq!(unit.send(1, REGISTER, 0, &list(11, 0, 0)), GOOD);
        let told = if matches!(kind, 5 | 6) { vec![(2, RESERVATIONS_RELEASED)] } else { vec![] };
        assert_eq!(unit.attentions, told, "type {kind}");
        assert_eq!(unit.reservation().is_some(), kind >= 7, "type {kind}");
        // The last registrant.
        assert_eq!(unit.send(2, REGISTER, 0, &list(12, 0, 0)), GOOD);
        assert_eq!((unit.reservation(), &unit.attentions), (None, &vec![]));
    }
}

#[test]
fn reserve_and_release() {
    let mut unit = Unit::new();
    assert_eq!(unit.send(1, RESERVE, 1, &list(0, 0, 0)), CONFLICT);
    unit.register(1, 11);
    unit.register(2, 12);
    assert_eq!(unit.send(1, RESERVE, 1, &list(12, 0, 0)), CONFLICT);
    assert_eq!(code(unit.send(1, RESERVE, 2, &list(11, 0, 0))), Some(0x2400));
    assert_eq!(code(unit.send(1, RESERVE, 0x11, &list(11, 0, 0))), Some(0x2400));
    assert_eq!(unit.send(1, RELEASE, 1, &list(11, 0, 0)), GOOD);
    for kind in KINDS {
        assert_eq!(unit.send(1, RESERVE, kind, &list(11, 0, 0)), GOOD);
        assert_eq!(unit.send(1, RESERVE, kind, &list(11, 0, 0)), GOOD);
        let wrong = if kind == 1 { 3 } else { 1 };
        assert_eq!(unit.send(1, RESERVE, wrong, &list(11, 0, 0)), CONFLICT);
        let second = unit.send(2, RESERVE, kind, &list(12, 0, 0));
        assert_eq!(second, if kind >= 7 { GOOD } else { CONFLICT });
        assert_eq!(code(unit.send(1, RELEASE, wrong, &list(11, 0, 0))), Some(0x2604));
        assert_eq!(code(unit.send(1, RELEASE, kind | 0x10, &list(11, 0, 0))), Some(0x2604));
        assert_eq!(unit.send(1, RELEASE, kind, &list(9, 0, 0)), CONFLICT);
        assert_eq!(unit.send(3, RELEASE, kind, &list(0, 0, 0)), CONFLICT);
        if kind < 7 {
            assert_eq!(unit.send(2, RELEASE, kind, &list(12, 0, 0)), GOOD);
            assert_eq!(unit.reservation(), Some((11, kind)));
        }
        assert_eq!(unit.send(1, RELEASE, kind, &list(11, 0, 0)), GOOD);
        let told = if kind >= 5 { vec![(2, RESERVATIONS_RELEASED)] } else { vec![] };
        assert_eq!(unit.attentions, told, "type {kind}");
        assert_eq!((unit.reservation(), unit.generation()), (None, 2));
    }
}

#[test]
fn clear_tells_the_others() {
    let mut unit = Unit::new();
    for nexus in 1..=3 {
        unit.register(nexus, 10 + nexus);
    }
    unit.send(1, RESERVE, 3, &list(11, 0, 0)).unwrap();
    assert_eq!(unit.send(4, CLEAR, 0, &list(0, 0, 0)), CONFLICT);
    assert_eq!(unit.send(2, CLEAR, 0, &list(12, 0, 0)), GOOD);
    let told = [(1, RESERVATIONS_PREEMPTED), (3, RESERVATIONS_PREEMPTED)];
    assert_eq!(unit.attentions, told);
    assert_eq!((unit.keys(), unit.reservation(), unit.generation()), (vec![], None, 4));
}

#[test]
fn preempting_a_reservation() {
    let mut unit = Unit::new();
    for (nexus, key) in [(1, 11), (2, 12), (3, 11), (4, 14)] {
        unit.register(nexus, key);
    }
    unit.send(1, RESERVE, 1, &list(11, 0, 0)).unwrap();
    assert_eq!(code(unit.send(2, PREEMPT, 1, &list(12, 0, 0))), Some(0x2600));
    assert_eq!(unit.send(2, PREEMPT, 1, &list(12, 77, 0)), CONFLICT);
    assert_eq!(code(unit.send(2, PREEMPT, 2, &list(12, 11, 0))), Some(0x2400));
    // The type stays, so the remaining nexus gets no unit attention.
    assert_eq!(unit.send(2, PREEMPT, 1, &list(12, 11, 0)), GOOD);
    let told = [(1, REGISTRATIONS_PREEMPTED), (3, REGISTRATIONS_PREEMPTED)];
    assert_eq!((unit.attentions.as_slice(), unit.aborted.as_slice()), (&told[..], &[][..]));
    assert_eq!((unit.keys(), unit.reservation()), (vec![12, 14], Some((12, 1))));
    // Preempting its own reservation, to change the type.
    assert_eq!(unit.send(2, PREEMPT_AND_ABORT, 6, &list(12, 12, 0)), GOOD);
    assert_eq!(unit.attentions, [(4, RESERVATIONS_RELEASED)]);
    assert_eq!((unit.aborted.as_slice(), unit.reservation()), (&[][..], Some((12, 6))));
    // Preempting another's, with an end to its commands.
    assert_eq!(unit.send(4, PREEMPT_AND_ABORT, 8, &list(14, 12, 0)), GOOD);
    assert_eq!(unit.attentions, [(2, REGISTRATIONS_PREEMPTED)]);
    assert_eq!(unit.aborted, [2]);
    assert_eq!((unit.keys(), unit.reservation()), (vec![14], Some((0, 8))));
}

#[test]
fn preempting_registrations() {
    let mut unit = Unit::new();
    for (nexus, key) in [(1, 11), (2, 12), (3, 13), (4, 13)] {
        unit.register(nexus, key);
    }
    unit.send(1, RESERVE, 5, &list(11, 0, 0)).unwrap();
    // The type does not matter.
    assert_eq!(unit.send(2, PREEMPT, 0xff, &list(12, 13, 0)), GOOD);
    let told = [(3, REGISTRATIONS_PREEMPTED), (4, REGISTRATIONS_PREEMPTED)];
    assert_eq!(unit.attentions, told);
    assert_eq!((unit.keys(), unit.reservation()), (vec![11, 12], Some((11, 5))));
    // Its own registration goes as well, but it gets no unit attention.
    assert_eq!(unit.send(2, PREEMPT, 1, &list(12, 12, 0)), GOOD);
    assert_eq!((unit.keys(), unit.attentions.len()), (vec![11], 0));
}

#[test]
fn preempting_all_registrants() {
    let mut unit = Unit::new();
    for (nexus, key) in [(1, 11), (2, 12), (3, 13)] {
        unit.register(nexus, key);
    }
    unit.send(1, RESERVE, 7, &list(11, 0, 0)).unwrap();
    assert_eq!(unit.send(2, PREEMPT, 1, &list(12, 13, 0)), GOOD);
    assert_eq!((unit.keys(), unit.reservation()), (vec![11, 12], Some((0, 7))));
    assert_eq!(unit.send(2, PREEMPT_AND_ABORT, 3, &list(12, 0, 0)), GOOD);
    assert_eq!((unit.keys(), unit.reservation()), (vec![12], Some((12, 3))));
    assert_eq!(unit.attentions, [(1, REGISTRATIONS_PREEMPTED)]);
    assert_eq!(unit.aborted, [1]);
    // All holders have the same key.
    unit.send(2, RELEASE, 3, &list(12, 0, 0)).unwrap();
    unit.send(2, RESERVE, 8, &list(12, 0, 0)).unwrap();
    assert_eq!(unit.send(2, PREEMPT, 8, &list(12, 12, 0)), GOOD);
    assert_eq!((unit.keys(), unit.reservation()), (vec![], None));
}

#[test]
fn register_and_move() {
    let mut unit = Unit::new();
    unit.register(1, 11);
    unit.register(2, 12);
    let to = |nexus: u8| moving(11, 21, 0, 1, &port(nexus));
    assert_eq!(unit.send(3, MOVE, 0, &to(2)), CONFLICT);
    assert_eq!(code(unit.send(1, MOVE, 0, &to(2))), Some(0x2400));
    unit.send(1, RESERVE, 3, &list(11, 0, 0)).unwrap();
    assert_eq!(unit.send(2, MOVE, 0, &moving(12, 21, 0, 1, &port(3))), CONFLICT);
    assert_eq!(code(unit.send(1, MOVE, 0, &moving(11, 0, 0, 1, &port(3)))), Some(0x2600));
    assert_eq!(code(unit.send(1, MOVE, 0, &moving(11, 21, 0, 7, &port(3)))), Some(0x2600));
    assert_eq!(code(unit.send(1, MOVE, 0, &to(1))), Some(0x2600));
    let device = moving(11, 21, 0, 1, "iqn.2026-11.test:1");
    assert_eq!(code(unit.send(1, MOVE, 0, &device)), Some(0x2600));
    assert_eq!(unit.send(1, MOVE, 0, &to(2)), GOOD);
    assert_eq!((unit.keys(), unit.reservation()), (vec![11, 21], Some((21, 3))));
    assert_eq!(unit.it.check(1, ConflictClass::Read), CONFLICT);
    assert_eq!(unit.it.check(2, ConflictClass::Write), GOOD);
    // To a nexus that was never up, and away.
    let away = moving(21, 31, 0x02, 2, "iqn.2026-11.test:new,i,0xabcdef012345");
    assert_eq!(unit.send(2, MOVE, 0, &away), GOOD);
    assert_eq!((unit.keys(), unit.reservation()), (vec![11, 31], Some((31, 3))));
    assert!(unit.attentions.is_empty());
    // REGISTER AND MOVE cannot move a reservation of all registrants.
    unit.send(1, CLEAR, 0, &list(11, 0, 0)).unwrap();
    unit.register(1, 11);
    unit.send(1, RESERVE, 8, &list(11, 0, 0)).unwrap();
    assert_eq!(unit.send(1, MOVE, 0, &to(2)), CONFLICT);
}

#[test]
fn other_ports_can_be_registered_too() {
    let mut unit = Unit::new();
    let both = specifying(list(0, 5, SPEC_I_PT | ALL_TG_PT), &[&port(2), &port(2), &port(1)]);
    assert_eq!(unit.send(1, REGISTER, 0, &both), GOOD);
    assert_eq!(unit.keys(), [5, 5, 5, 5]);
    assert_eq!(unit.generation(), 1);
    assert_eq!(
        code(unit.send(1, REGISTER, 0, &specifying(list(5, 6, SPEC_I_PT), &[&port(3)]))),
        Some(0x2600)
    );
    // If one is registered already, none is registered.
    let again = specifying(list(0, 6, SPEC_I_PT), &[&port(4), &port(2)]);
    assert_eq!(code(unit.send(3, REGISTER, 0, &again)), Some(0x2600));
    assert_eq!(unit.keys().len(), 4);
    // The name of a device stands for all its known ports, of which there must be one.
    unit.it.handle_nexus(
        9,
        &Nexus { initiator_port: "iqn.2026-11.test:4,i,0xff".into(), relative_port: 1 },
    );
    let device = specifying(list(0, 6, SPEC_I_PT), &["iqn.2026-11.test:4"]);
    assert_eq!(unit.send(3, REGISTER, 0, &device), GOOD);
    assert_eq!(unit.keys().len(), 7);
    assert_eq!(unit.send(9, REGISTER, 0, &list(6, 0, 0)), GOOD);
    let nobody = specifying(list(0, 6, SPEC_I_PT), &["iqn.2026-11.test:5"]);
    assert_eq!(code(unit.send(9, REGISTER, 0, &nobody)), Some(0x2600));
    // A registration through one port is unregistered through all.
    assert_eq!(unit.send(3, REGISTER, 0, &list(6, 0, ALL_TG_PT)), GOOD);
    assert_eq!(unit.send(1, REGISTER, 0, &list(5, 0, ALL_TG_PT)), GOOD);
    assert_eq!(unit.keys(), [5, 5, 6]);
    for action in [RESERVE, REGISTER_IGNORING, CLEAR] {
        let list = specifying(list(0, 6, SPEC_I_PT), &[&port(2)]);
        assert_eq!(code(unit.send(3, action, 1, &list)), Some(0x2600));
    }
}

#[test]
fn malformed_lists() {
    let mut unit = Unit::new();
    let good = specifying(list(0, 5, SPEC_I_PT), &[&port(2)]);
    let mut cases: Vec<(Vec<u8>, u16)> = vec![
        (list(0, 5, 0)[..23].to_vec(), 0x1a00),
        ([list(0, 5, 0), vec![0]].concat(), 0x1a00),
        (list(0, 5, SPEC_I_PT), 0x1a00),
        (good[..good.len() - 4].to_vec(), 0x1a00),
        ([good.clone(), vec![0; 4]].concat(), 0x1a00),
        (vec![0; 1 + MAX_PARAMETER_BYTES as usize], 0x1a00),
    ];
    let mut change = |at: usize, to: u8, code| {
        let mut list = good.clone();
        list[at] = to;
        cases.push((list, code));
    };
    change(28, 0x46, 0x2600); // another protocol
    change(28, 0x85, 0x2600); // an unknown format
    change(28, 0x05, 0x2600); // a port where a device should be
    change(31, 19, 0x2600);
    change(31, 16, 0x2600);
    change(31, 0xfc, 0x1a00);
    change(32, 0, 0x2600); // no name
    change(40, 0xff, 0x2600); // not UTF-8
    let at = good.windows(5).position(|it| it == b",i,0x").unwrap();
    change(at + 6, b'g', 0x2600);
    for (index, (list, expected)) in cases.iter().enumerate() {
        assert_eq!(code(unit.send(1, REGISTER, 0, list)), Some(*expected), "case {index}");
    }
    let unterminated = {
        let mut list = list(0, 5, SPEC_I_PT);
        list.extend([0, 0, 0, 24, 5, 0, 0, 20]);
        list.extend([b'a'; 20]);
        list
    };
    assert_eq!(code(unit.send(1, REGISTER, 0, &unterminated)), Some(0x2600));
    let good_move = moving(0, 5, 0, 1, &port(2));
    assert_eq!(code(unit.send(1, MOVE, 0, &good_move[..24])), Some(0x1a00));
    assert_eq!(code(unit.send(1, MOVE, 0, &[good_move, vec![0; 4]].concat())), Some(0x1a00));
    for action in [8, 9, 0x1f] {
        let refused = unit.send(1, action, 0, &list(0, 5, 0));
        let field = FieldPointer { in_cdb: true, byte: 1, bit: Some(4) };
        assert_eq!(
            refused,
            Err(ReservationRefusal::Check { key: 5, code: 0x2400, field: Some(field) })
        );
    }
    assert!(unit.it.is_empty());
}

#[test]
fn registrations_are_bounded() {
    let mut unit = Unit::new();
    let name = |n: usize| format!("iqn.2026-11.test:many,i,0x{n:x}");
    for first in (0..MAX_REGISTRATIONS - 1).step_by(100) {
        let ports: Vec<String> = (first..MAX_REGISTRATIONS - 1).take(100).map(name).collect();
        let ports: Vec<&str> = ports.iter().map(String::as_str).collect();
        assert_eq!(unit.send(1, REGISTER, 0, &specifying(list(0, 5, SPEC_I_PT), &ports)), GOOD);
        assert_eq!(unit.send(1, REGISTER, 0, &list(5, 0, 0)), GOOD);
    }
    unit.register(1, 6);
    assert_eq!(unit.keys().len(), MAX_REGISTRATIONS);
    assert_eq!(code(unit.send(2, REGISTER, 0, &list(0, 7, 0))), Some(0x5504));
    let initiator_port = format!("iqn.{}", "x".repeat(MAX_PORT_BYTES));
    unit.it.handle_nexus(9, &Nexus { initiator_port, relative_port: 1 });
    unit.register(1, 0);
    assert_eq!(code(unit.send(9, REGISTER, 0, &list(0, 7, 0))), Some(0x5504));
    // The largest state fits the format.
    unit.send(2, REGISTER, 0, &list(0, 7, APTPL)).unwrap();
    unit.power_cycle();
    assert_eq!(unit.keys().len(), MAX_REGISTRATIONS);
}

#[test]
fn reports() {
    let mut unit = Unit::new();
    unit.send(1, REGISTER, 0, &list(0, 0x0102_0304_0506_0708, APTPL)).unwrap();
    unit.register(2, 0xff);
    let keys = unit.it.handle_in(&in_cdb(0, u16::MAX)).unwrap();
    assert_eq!(
        &keys[..],
        b"\0\0\0\x02\0\0\0\x10\x01\x02\x03\x04\x05\x06\x07\x08\0\0\0\0\0\0\0\xff"
    );
    assert_eq!(unit.it.handle_in(&in_cdb(0, 8)).unwrap(), keys[..8]);
    assert_eq!(unit.it.handle_in(&in_cdb(0, 0)).unwrap().len(), 0);
    unit.send(1, RESERVE, 6, &list(0x0102_0304_0506_0708, 0, 0)).unwrap();
    // The last registration was without APTPL.
    let capabilities = unit.it.handle_in(&in_cdb(2, 100)).unwrap();
    assert_eq!(&capabilities[..], [0, 8, 0x1d, 0xb0, 0xea, 0x01, 0, 0]);
    let reservation = unit.it.handle_in(&in_cdb(1, 100)).unwrap();
    assert_eq!(
        &reservation[..],
        b"\0\0\0\x02\0\0\0\x10\x01\x02\x03\x04\x05\x06\x07\x08\0\0\0\0\0\x06\0\0"
    );
    let status = unit.it.handle_in(&in_cdb(3, u16::MAX)).unwrap();
    let first = b"\x01\x02\x03\x04\x05\x06\x07\x08\0\0\0\0\x01\x06\0\0\0\0\0\x01\0\0\0\x28\
        \x45\0\0\x24iqn.2026-11.test:1,i,0x000000000001\0";
    assert_eq!(&status[8..8 + first.len()], first);
    assert_eq!(status.len(), 8 + 2 * first.len());
    assert_eq!(
        &status[8 + first.len()..][..24],
        b"\0\0\0\0\0\0\0\xff\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\x28"
    );
    for action in 4..0x20 {
        let refused = unit.it.handle_in(&in_cdb(action, 100)).unwrap_err();
        assert_eq!(code(Err(refused)), Some(0x2400));
    }
}

#[test]
fn spc2_reservations() {
    let mut unit = Unit::new();
    let (reserve6, release10) = (cdb(&[0x16]), cdb(&[0x57]));
    assert_eq!(unit.it.handle_reserve(1, &reserve6), GOOD);
    assert_eq!(unit.it.handle_reserve(1, &reserve6), GOOD);
    assert_eq!(unit.it.handle_reserve(2, &reserve6), CONFLICT);
    for class in [ConflictClass::Ready, ConflictClass::Read, ConflictClass::Write] {
        assert_eq!(unit.it.check(1, class), GOOD);
        assert_eq!(unit.it.check(2, class), CONFLICT);
    }
    assert_eq!(unit.it.check(2, ConflictClass::Free), GOOD);
    // Even for the nexus that made the reservation.
    for nexus in [1, 2] {
        assert_eq!(unit.send(nexus, REGISTER, 0, &list(0, 5, 0)), CONFLICT);
    }
    assert_eq!(unit.it.handle_in(&in_cdb(0, 100)), Err(ReservationRefusal::Conflict));
    assert_eq!(unit.it.handle_release(2, &release10), GOOD);
    assert_eq!(unit.it.check(2, ConflictClass::Read), CONFLICT);
    assert_eq!(unit.it.handle_release(1, &release10), GOOD);
    assert_eq!(unit.it.check(2, ConflictClass::Read), GOOD);
    assert_eq!(unit.it.handle_reserve(2, &reserve6), GOOD);
    unit.it.handle_reset();
    assert_eq!(unit.it.handle_reserve(1, &reserve6), GOOD);
    unit.it.handle_nexus_loss(1);
    assert_eq!(unit.it.check(2, ConflictClass::Write), GOOD);
    for bytes in [
        &[0x16, 0x01][..],
        &[0x16, 0x10],
        &[0x16, 0, 0, 0, 1],
        &[0x56, 0x02],
        &[0x56, 0, 0, 0, 0, 0, 0, 0, 9],
    ] {
        assert_eq!(code(unit.it.handle_reserve(2, &cdb(bytes))), Some(0x2400));
        assert_eq!(code(unit.it.handle_release(2, &cdb(bytes))), Some(0x2400));
    }
    // The unit ignores the reservation identification of RESERVE(6) and the CONTROL byte.
    assert_eq!(unit.it.handle_reserve(2, &cdb(&[0x16, 0, 7, 0, 0, 0])), GOOD);
}

#[test]
fn spc2_reservations_beside_persistent_ones() {
    let (reserve, release) = (cdb(&[0x16]), cdb(&[0x17]));
    let mut unit = Unit::new();
    unit.register(1, 11);
    unit.register(2, 12);
    for nexus in 1..=3 {
        assert_eq!(unit.it.handle_reserve(nexus, &reserve), CONFLICT);
        assert_eq!(unit.it.handle_release(nexus, &release), CONFLICT);
    }
    for kind in KINDS {
        unit.send(1, RESERVE, kind, &list(11, 0, 0)).unwrap();
        let shared = if kind >= 5 { GOOD } else { CONFLICT };
        for (nexus, expected) in [(1, GOOD), (2, shared), (3, CONFLICT)] {
            assert_eq!(unit.it.handle_reserve(nexus, &reserve), expected);
            assert_eq!(unit.it.handle_release(nexus, &release), expected);
        }
        assert_eq!(unit.it.check(2, ConflictClass::Ready), GOOD);
        unit.send(1, RELEASE, kind, &list(11, 0, 0)).unwrap();
    }
}

#[test]
fn persistence_is_asked_for() {
    let mut unit = Unit::new();
    unit.register(1, 11);
    unit.send(1, RESERVE, 1, &list(11, 0, 0)).unwrap();
    assert_eq!(unit.saves, 0);
    assert_eq!(unit.send(2, REGISTER, 0, &list(0, 12, APTPL)), GOOD);
    assert_eq!(unit.saves, 1);
    unit.power_cycle();
    assert_eq!(
        (unit.keys(), unit.reservation(), unit.generation()),
        (vec![11, 12], Some((11, 1)), 0)
    );
    assert_eq!(unit.it.check(2, ConflictClass::Write), CONFLICT);
    // From now on the unit saves every change.
    assert_eq!(unit.send(1, RELEASE, 1, &list(11, 0, 0)), GOOD);
    assert_eq!(unit.send(1, RELEASE, 1, &list(11, 0, 0)), GOOD);
    assert_eq!(unit.saves, 1);
    unit.power_cycle();
    assert_eq!((unit.keys(), unit.reservation()), (vec![11, 12], None));
    // Until a registration says otherwise.
    assert_eq!(unit.send(2, REGISTER, 0, &list(12, 12, 0)), GOOD);
    assert!(unit.storage.is_empty());
    assert_eq!(unit.keys(), [11, 12]);
    unit.power_cycle();
    assert!(unit.it.is_empty());
}

#[test]
fn nothing_changes_that_cannot_be_saved() {
    let mut unit = Unit::new();
    unit.failing = true;
    let failed = Err(ReservationRefusal::Check { key: 4, code: 0x4400, field: None });
    assert_eq!(unit.send(1, REGISTER, 0, &list(0, 11, APTPL)), failed);
    assert!(unit.keys().is_empty() && unit.generation() == 0);
    unit.failing = false;
    // The content of the storage is unknown, so it is written even if nothing changed.
    assert_eq!(unit.send(1, REGISTER, 0, &list(0, 11, 0)), GOOD);
    assert_eq!(unit.saves, 2);
    assert_eq!(unit.send(1, REGISTER, 0, &list(11, 11, 0)), GOOD);
    assert_eq!(unit.saves, 2);
}

#[test]
fn commands_wait_for_the_one_that_is_being_saved() {
    let mut unit = Unit::new();
    let it = &mut unit.it;
    let send = |it: &mut Reservations, task, nexus, action, list: &[u8]| {
        it.handle_out(task, nexus, &out_cdb(action, 3, list), list);
    };
    send(it, 1, 1, REGISTER, &list(0, 11, APTPL));
    let Some(ReservationOutput::Save { id, .. }) = it.poll_output() else { panic!() };
    send(it, 2, 1, RESERVE, &list(11, 0, 0));
    send(it, 3, 2, REGISTER, &list(0, 12, APTPL));
    send(it, 4, 3, REGISTER, &list(0, 13, APTPL));
    it.handle_nexus_loss(2);
    it.handle_abort(4);
    assert_eq!(it.poll_output(), None);
    // Neither the old state nor the new one allows it.
    assert_eq!(it.handle_reserve(4, &cdb(&[0x16])), CONFLICT);
    it.handle_saved(id + 1, Ok(()));
    assert_eq!(it.poll_output(), None);
    it.handle_saved(id, Ok(()));
    assert_eq!(it.poll_output(), Some(ReservationOutput::Done { task: 1, result: GOOD }));
    let Some(ReservationOutput::Save { id, .. }) = it.poll_output() else { panic!() };
    assert_eq!((it.check(4, ConflictClass::Write), it.poll_output()), (GOOD, None));
    for task in 10..=10 + MAX_WAITING as u64 {
        send(it, task, 4, REGISTER, &list(5, 0, 0));
    }
    let busy = ReservationOutput::Done {
        task: 10 + MAX_WAITING as u64,
        result: Err(ReservationRefusal::Busy),
    };
    assert_eq!(it.poll_output(), Some(busy));
    it.handle_saved(id, Ok(()));
    assert_eq!(it.poll_output(), Some(ReservationOutput::Done { task: 2, result: GOOD }));
    assert_eq!(it.check(4, ConflictClass::Write), CONFLICT);
    for task in 10..10 + MAX_WAITING as u64 {
        assert_eq!(it.poll_output(), Some(ReservationOutput::Done { task, result: CONFLICT }));
    }
    assert_eq!(unit.keys(), [11]);
}

#[test]
fn lost_reservations_keep_everybody_out() {
    let mut unit = Unit::over(Reservations::lost(&[1, 2]));
    assert_eq!(unit.it.check(1, ConflictClass::Read), CONFLICT);
    assert_eq!(unit.it.check(1, ConflictClass::Free), GOOD);
    assert_eq!(unit.it.handle_reserve(1, &cdb(&[0x16])), CONFLICT);
    assert_eq!(unit.reservation(), Some((0, 3)));
    unit.register(1, 11);
    assert_eq!(unit.send(1, RESERVE, 3, &list(11, 0, 0)), CONFLICT);
    assert_eq!(unit.send(1, RELEASE, 3, &list(11, 0, 0)), GOOD);
    assert_eq!(unit.send(1, REGISTER, 0, &list(11, 0, 0)), GOOD);
    assert_eq!(unit.it.check(1, ConflictClass::Read), CONFLICT);
    unit.register(1, 11);
    unit.power_cycle();
    assert_eq!(unit.keys(), [11]);
    assert_eq!(code(unit.send(1, PREEMPT, 3, &list(11, 0, 0))), Some(0x2600));
    assert_eq!(unit.it.check(1, ConflictClass::Read), CONFLICT);
    assert_eq!(unit.send(1, CLEAR, 0, &list(11, 0, 0)), GOOD);
    assert!(unit.storage.is_empty() && unit.it.is_empty());
    assert_eq!(unit.it.check(1, ConflictClass::Write), GOOD);
}

#[test]
fn golden_bytes() {
    let mut unit = Unit::new();
    unit.send(1, REGISTER, 0, &list(0, 0x0102_0304_0506_0708, APTPL)).unwrap();
    unit.send(1, RESERVE, 5, &list(0x0102_0304_0506_0708, 0, 0)).unwrap();
    let expected = b"LHPR\x01\0\x01\x05\0\0\0\0\x01\0\0\0\x2f\0\0\0\x67\x6a\xf8\x07\
        \x08\x07\x06\x05\x04\x03\x02\x01\x01\0\x23\0iqn.2026-11.test:1,i,0x000000000001";
    assert_eq!(&unit.storage[..], expected);
}

#[test]
fn damaged_bytes_are_not_believed() {
    let mut unit = Unit::new();
    unit.send(1, REGISTER, 0, &list(0, 11, APTPL)).unwrap();
    unit.send(1, RESERVE, 5, &list(11, 0, 0)).unwrap();
    let good = unit.storage.to_vec();
    for at in 0..good.len() {
        for bit in 0..8 {
            let mut bad = good.clone();
            bad[at] ^= 1 << bit;
            assert!(saved::decode(&bad).is_err(), "byte {at}");
        }
        if at > 0 {
            assert!(saved::decode(&good[..at]).is_err());
        }
    }
    // Well-formed but invalid bytes.
    let sealed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bad = good.clone();
        change(&mut bad);
        let length = (bad.len() - 24) as u32;
        bad[16..20].copy_from_slice(&length.to_le_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c(&bad[..20]), &bad[24..]);
        bad[20..24].copy_from_slice(&crc.to_le_bytes());
        saved::decode(&bad)
    };
    assert!(sealed(&|_| ()).is_ok());
    assert_eq!(sealed(&|it| it[4] = 2), Err(RestoreError::Version(2)));
    // Offset and value; the last entry appends a byte.
    let nonsense = [
        (6, 3),
        (6, 0),
        (7, 2),
        (7, 0),
        (7, 7),
        (8, 1),
        (12, 2),
        (14, 1),
        (24, 0),
        (34, 0xff),
        (good.len(), 0),
    ];
    for (at, value) in nonsense {
        let found = sealed(&|bad| {
            bad.resize(bad.len().max(at + 1), 0);
            bad[at] = value;
        });
        assert!(matches!(found, Err(RestoreError::Invalid(_))), "byte {at}: {found:?}");
    }
}
