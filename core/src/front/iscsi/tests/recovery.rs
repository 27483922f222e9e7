//! Error recovery within a command, within a connection, and of connections.

use super::super::*;
use super::driver::*;
use crate::wire::iscsi::{RESERVED_TAG, opcode};

fn level(level: u8) -> Parameters {
    Parameters { error_recovery_level: level, data_digest: true, ..parameters() }
}

fn world(p: Parameters) -> (World, usize) {
    let mut world = World::new(config());
    let at = world.connect(identity(1, 0, 0), p, 100);
    world.conns[at].again = true;
    (world, at)
}

fn send_damaged(world: &mut World, at: usize, out: Out) {
    let stat_sn = world.conns[at].stat_sn;
    let mut bytes = out.put(28, stat_sn).encode(&world.conns[at].parameters);
    *bytes.last_mut().unwrap() ^= 1;
    world.send_bytes(at, &bytes);
    let pdu = world.one_of(at, opcode::REJECT);
    assert_eq!(pdu.bhs[2], 2);
}

impl World {
    /// Takes the first PDU of that kind. Other PDUs stay.
    fn one_of(&mut self, at: usize, opcode: u8) -> In {
        let pdu = self.conns[at].received.pop_front().expect("no PDU");
        assert_eq!(pdu.opcode(), opcode, "{pdu:x?}");
        pdu
    }
}

fn without_numbers(pdu: &In) -> In {
    let mut pdu = pdu.clone();
    pdu.bhs[28..36].fill(0);
    pdu
}

#[test]
fn damaged_output_is_asked_for_again() {
    let p = Parameters { initial_r2t: true, immediate_data: false, ..level(1) };
    for damaged in [&[0][..], &[1], &[2], &[0, 1], &[0, 2], &[0, 1, 2]] {
        let (mut world, at) = world(p);
        let source = pattern(4, 3072);
        world.send(at, write(F, 1, 100, 0, 3072));
        let r2t = world.one(at);
        for n in 0..3u32 {
            let part = &source[n as usize * 1024..(n as usize + 1) * 1024];
            let out = data_out(n == 2, 1, r2t.ttt(), n, n * 1024, part);
            if damaged.contains(&n) {
                send_damaged(&mut world, at, out);
            } else {
                world.send(at, out);
            }
        }
        let first = world.conns[at].received.front().unwrap();
        assert_eq!((first.opcode(), first.u32(36)), (opcode::R2T, 1), "the next number");
        assert_eq!(first.u32(40), damaged[0] * 1024);
        answer_r2ts(&mut world, at, &source);
        assert_eq!(world.one(at).bhs[3], 0);
        assert_eq!(world.disk[..3072], source);
    }
}

#[test]
fn damaged_unsolicited_output_is_asked_for_again() {
    let (mut world, at) = world(level(1));
    let source = pattern(4, 8192);
    world.send(at, write(0, 1, 100, 0, 8192).data(&source[..1024]));
    send_damaged(&mut world, at, data_out(false, 1, RESERVED_TAG, 0, 1024, &source[1024..2048]));
    world.send(at, data_out(false, 1, RESERVED_TAG, 1, 2048, &source[2048..4096]));
    send_damaged(&mut world, at, data_out(true, 1, RESERVED_TAG, 2, 4096, &source[4096..]));
    assert_eq!(answer_r2ts(&mut world, at, &source), 2);
    assert_eq!(world.one(at).bhs[3], 0);
    assert_eq!(world.disk[..8192], source);
}

#[test]
fn a_pdu_that_never_came_is_asked_for() {
    let p = Parameters { initial_r2t: true, immediate_data: false, ..level(1) };
    let (mut world, at) = world(p);
    let source = pattern(4, 3072);
    world.send(at, write(F, 1, 100, 0, 3072));
    let r2t = world.one(at);
    world.send(at, data_out(false, 1, r2t.ttt(), 0, 0, &source[..1024]));
    world.send(at, data_out(true, 1, r2t.ttt(), 2, 2048, &source[2048..]));
    // The target drops a duplicate.
    let again = world.one(at);
    assert_eq!((again.u32(40), again.u32(44)), (1024, 1024));
    solicited(&mut world, at, &again, &source);
    assert_eq!(world.one(at).bhs[3], 0);
    assert_eq!(world.disk[..3072], source);
}

#[test]
fn an_initiator_that_never_sends_what_it_says_is_given_up() {
    let p = Parameters { initial_r2t: true, immediate_data: false, ..level(1) };
    let (mut world, at) = world(p);
    world.send(at, write(F, 1, 100, 0, 1024));
    for n in 0.. {
        let pdu = world.one(at);
        if pdu.opcode() == opcode::SCSI_RESPONSE {
            assert_eq!(pdu.bhs[3], 2);
            assert!(n > 10);
            break;
        }
        world.send(at, data_out(true, 1, pdu.ttt(), 0, 0, &[]));
    }
}

#[test]
fn a_damaged_command_is_sent_again() {
    let (mut world, at) = world(level(1));
    send_damaged(&mut world, at, write(F, 1, 100, 0, 512).data(&[7; 512]));
    world.send(at, nothing(2, 101));
    assert!(world.take(at).is_empty());
    world.send(at, write(F, 1, 100, 0, 512).data(&[7; 512]));
    assert_eq!(world.take(at).len(), 2);
    assert_eq!(world.disk[..512], [7; 512]);
}

#[test]
fn statuses_are_sent_again() {
    let (mut world, at) = world(level(1));
    let first = world.conns[at].stat_sn;
    for n in 0..4 {
        let keep = nothing(n, 100 + n).put(28, first);
        world.send_raw(at, &keep);
    }
    let sent = world.take(at);
    let ask = |world: &mut World, begin: u32, run| {
        world.send_raw(at, &snack(1, !0, !0, first.wrapping_add(begin), run).put(28, first));
        world.take(at)
    };
    let again = ask(&mut world, 1, 2);
    assert_eq!(again.len(), 2);
    assert_eq!(without_numbers(&again[0]), without_numbers(&sent[1]));
    assert_eq!(without_numbers(&again[1]), without_numbers(&sent[2]));
    assert_eq!(ask(&mut world, 0, 0).len(), 4);
    let refused = ask(&mut world, 2, 3);
    assert_eq!((refused[0].opcode(), refused[0].bhs[2]), (opcode::REJECT, 9));
    // Acknowledged statuses are gone.
    world.send_raw(at, &snack(1, !0, !0, first, 1).put(28, first.wrapping_add(2)));
    let refused = world.one(at);
    assert_eq!((refused.opcode(), refused.bhs[2]), (opcode::REJECT, 4));
}

#[test]
fn input_is_sent_again_until_it_is_acknowledged() {
    let p = Parameters { data_digest: true, ..level(1) };
    let (mut world, at) = world(p);
    let first = world.conns[at].stat_sn;
    world.send(at, read(1, 100, 0, 300 << 10));
    let sent = world.take(at);
    assert_eq!(assemble(&sent, &p), world.disk[..300 << 10]);
    let status = sent.last().unwrap();
    assert_eq!((status.opcode(), status.u32(36) as usize), (0x21, sent.len() - 1));
    let asks: Vec<_> = sent.iter().filter(|pdu| pdu.flags() & 0x40 != 0).collect();
    assert_eq!(asks.len(), 2, "one a sequence but for the last");
    let ask = |world: &mut World, kind, itt, tag, begin, run| {
        world.send_raw(at, &snack(kind, itt, tag, begin, run).put(28, first));
        world.take(at)
    };
    let again = ask(&mut world, 0, 1, !0, 3, 2);
    assert_eq!(again.len(), 2);
    assert_eq!(without_numbers(&again[0]), without_numbers(&sent[3]));
    assert_eq!(without_numbers(&again[1]), without_numbers(&sent[4]));
    assert_eq!(ask(&mut world, 0, 1, !0, 0, 0).len(), sent.len() - 1);
    assert_eq!(ask(&mut world, 0, 1, !0, 99, 0)[0].bhs[2], 9);
    assert_eq!(ask(&mut world, 0, 55, !0, 0, 0)[0].bhs[2], 9);
    // Acknowledge the first sequence.
    let tag = asks[0].ttt();
    let next = asks[0].u32(36) + 1;
    assert!(ask(&mut world, 2, !0, tag, next, 0).is_empty());
    assert_eq!(ask(&mut world, 2, !0, tag, 0, 0)[0].bhs[2], 8);
    assert_eq!(ask(&mut world, 2, !0, tag + 1, next, 0)[0].bhs[2], 8);
    assert_eq!(ask(&mut world, 2, !0, tag, 99, 0)[0].bhs[2], 8);
    assert_eq!(ask(&mut world, 0, 1, !0, 0, 1)[0].bhs[2], 3);
    // All remaining data, with a tag.
    let anew = ask(&mut world, 3, 1, 77, 0, 0);
    assert_eq!(anew.len(), sent.len() - next as usize);
    for (a, b) in anew.iter().zip(&sent[next as usize..]) {
        if a.opcode() == opcode::DATA_IN {
            assert_eq!(without_numbers(a), without_numbers(b));
        } else {
            assert_eq!((a.stat_sn(), a.u32(20)), (b.stat_sn(), 77));
        }
    }
    let again = ask(&mut world, 1, !0, !0, first, 1);
    assert_eq!(again[0].u32(20), 77, "the last one sent is sent again");
    // When the status is acknowledged, all is gone.
    world.send(at, nothing(2, 101));
    world.take(at);
    assert_eq!(world.target.sessions().next().unwrap().held_bytes, 0);
    let refused = ask(&mut world, 0, 1, !0, 0, 0);
    assert_eq!(refused[0].bhs[2], 9);
}

#[test]
fn input_is_cut_anew_when_the_initiator_takes_less() {
    let (mut world, at) = world(level(1));
    let first = world.conns[at].stat_sn;
    world.send(at, read(1, 100, 0, 64 << 10));
    assert_eq!(world.take(at).len(), 3);
    let text = Out::new(opcode::TEXT, false, F, 2).put(20, !0).put(24, 101).put(28, first);
    world.send_raw(at, &text.data(b"MaxRecvDataSegmentLength=8192\0"));
    assert_eq!(world.one(at).opcode(), opcode::TEXT_RESPONSE);
    world.conns[at].parameters.initiator_data_segment = 8192;
    world.send_raw(at, &snack(3, 1, 5, 0, 0).put(28, first));
    let pdus = world.take(at);
    assert_eq!(pdus.len(), 9);
    assert_eq!(assemble(&pdus, &world.conns[at].parameters), world.disk[..64 << 10]);
    assert_eq!(pdus[8].u32(36), 8);
}

#[test]
fn r2ts_are_sent_again() {
    let p = Parameters { initial_r2t: true, immediate_data: false, ..level(1) };
    let (mut world, at) = world(p);
    let source = pattern(1, 300 << 10);
    world.send(at, write(F, 1, 100, 0, 300 << 10));
    let sent = world.take(at);
    assert_eq!(sent.len(), 3);
    world.send(at, snack(0, 1, !0, 1, 0));
    let again = world.take(at);
    assert_eq!(again.iter().collect::<Vec<_>>(), sent[1..].iter().collect::<Vec<_>>());
    for r2t in &sent {
        solicited(&mut world, at, r2t, &source);
    }
    assert_eq!(world.one(at).bhs[3], 0);
}

#[test]
fn what_is_not_acknowledged_holds_others_back_and_is_asked_for() {
    let config = Config { session_bytes: 1 << 20, ..config() };
    let mut world = World::new(config);
    let at = world.connect(identity(1, 0, 0), level(1), 100);
    let first = world.conns[at].stat_sn;
    for n in 0..4 {
        world.send_raw(at, &read(n, 100 + n, 0, 400 << 10).put(28, first));
    }
    let pdus = world.take(at);
    let done = pdus.iter().filter(|pdu| pdu.opcode() == opcode::SCSI_RESPONSE).count();
    assert_eq!(done, 2);
    let ping = pdus.last().unwrap();
    assert_eq!(ping.opcode(), opcode::NOP_IN);
    world.send(at, Out::new(opcode::NOP_OUT, true, F, !0).put(20, ping.ttt()).put(24, 104));
    assert!(world.take(at).len() > 24);
}

fn fail_over(p: Parameters, prepare: impl FnOnce(&mut World, usize)) -> (World, usize) {
    let (mut world, a) = world(p);
    let tsih = world.tsih(a);
    prepare(&mut world, a);
    world.drop_connection(a);
    assert_eq!(world.target.sessions().count(), 1, "kept for a while");
    let b = world.connect(identity(1, tsih, 0), p, 100);
    (world, b)
}

fn reassign(itt: u32, cmd_sn: u32, referenced: u32, exp_data_sn: u32) -> Out {
    manage(8, itt, cmd_sn, referenced, 0).put(36, exp_data_sn)
}

#[test]
fn a_read_is_moved_to_another_connection() {
    let p = level(2);
    for had in [0, 1, 5, 10] {
        let (mut world, b) = fail_over(p, |world, a| {
            world.send(a, read(1, 100, 0, 300 << 10));
            world.take(a);
        });
        world.send(b, reassign(2, 101, 1, had));
        let pdus = world.take(b);
        assert_eq!((pdus[0].opcode(), pdus[0].bhs[2]), (opcode::TASK_MANAGEMENT_RESPONSE, 0));
        assert_eq!(pdus[1].u32(36), had);
        assert_eq!(pdus.len(), 12 - had as usize);
        let status = pdus.last().unwrap();
        assert_eq!((status.opcode(), status.bhs[3], status.u32(36)), (0x21, 0, 10));
        world.send(b, nothing(3, 101));
        world.take(b);
        assert_eq!(world.target.sessions().next().unwrap().commands, 1, "the last one");
    }
}

#[test]
fn a_read_in_progress_is_moved() {
    let p = level(2);
    let (mut world, b) = fail_over(p, |world, a| {
        world.hold = true;
        world.send(a, read(1, 100, 0, 4096));
        world.send(a, read(2, 101, 0, 4096));
    });
    world.send(b, reassign(9, 102, 1, 0));
    assert_eq!(world.one(b).bhs[2], 0);
    world.answer_all();
    let pdus = world.take(b);
    assert_eq!(pdus.iter().map(In::itt).collect::<Vec<_>>(), [1, 1]);
    world.send(b, reassign(9, 102, 2, 0));
    assert_eq!(world.take(b).iter().map(In::itt).collect::<Vec<_>>(), [9, 2, 2]);
}

#[test]
fn a_write_is_moved_to_another_connection() {
    let p = Parameters { first_burst: 4096, ..level(2) };
    let source = pattern(8, 300 << 10);
    for solicit in [false, true] {
        let (mut world, b) = fail_over(p, |world, a| {
            world.send(a, write(0, 1, 100, 0, 300 << 10).data(&source[..1024]));
            let end = if solicit { 4096 } else { 2048 };
            world.send(a, data_out(solicit, 1, RESERVED_TAG, 0, 1024, &source[1024..end]));
            let r2ts = world.take(a);
            assert_eq!(r2ts.len(), if solicit { 3 } else { 0 });
            if solicit {
                solicited(world, a, &r2ts[1], &source);
            }
        });
        world.send(b, reassign(2, 101, 1, if solicit { 3 } else { 0 }));
        assert_eq!(world.one_of(b, opcode::TASK_MANAGEMENT_RESPONSE).bhs[2], 0);
        let first = world.conns[b].received.front().unwrap();
        assert_eq!(first.u32(36), if solicit { 3 } else { 0 });
        assert!(answer_r2ts(&mut world, b, &source) >= 2);
        assert_eq!(world.one(b).bhs[3], 0);
        assert_eq!(world.disk[..300 << 10], source);
    }
}

#[test]
fn reassignments_that_cannot_be() {
    let (mut world, at) = world(level(1));
    world.send(at, reassign(2, 100, 1, 0));
    assert_eq!(world.one(at).bhs[2], 4);
    let (mut world, at) = self::world(level(2));
    world.hold = true;
    world.send(at, read(1, 100, 0, 512));
    world.send(at, reassign(2, 101, 1, 0));
    assert_eq!(world.one(at).bhs[2], 3, "still allegiant");
    world.send(at, reassign(2, 101, 5, 0));
    assert_eq!(world.one(at).bhs[2], 1);
}

#[test]
fn tasks_are_not_kept_for_ever() {
    let p = level(2);
    let (mut world, a) = world(p);
    let tsih = world.tsih(a);
    world.hold = true;
    world.send(a, read(1, 100, 0, 512));
    world.drop_connection(a);
    world.pass(Duration::from_secs(21));
    assert_eq!(world.target.sessions().count(), 1);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.target.sessions().count(), 0);
    assert_eq!(world.target.poll_timeout(), None);
    assert_eq!(world.try_connect(identity(1, tsih, 0), p, 100), Err(0x020a));
    world.answer_all();
}

#[test]
fn a_connection_is_removed_for_recovery() {
    let p = level(2);
    let (mut world, a) = world(p);
    let tsih = world.tsih(a);
    let b = world.connect(identity(1, tsih, 1), p, 100);
    world.hold = true;
    world.send(a, read(1, 100, 0, 512));
    world.send(b, logout(2, 0, 2, 101));
    let pdu = world.one(b);
    let times = (pdu.bhs[41], pdu.bhs[43]);
    assert_eq!((pdu.opcode(), pdu.bhs[2], times), (opcode::LOGOUT_RESPONSE, 0, (2, 20)));
    assert!(world.conns[a].closed.is_some());
    world.send(b, reassign(3, 101, 1, 0));
    assert_eq!(world.one(b).bhs[2], 0);
    world.answer_all();
    assert_eq!(world.take(b).len(), 2);
}
