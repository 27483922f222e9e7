//! The behavior of the target toward a correct initiator.

use super::super::*;
use super::driver::*;
use crate::wire::iscsi::{RESERVED_TAG, opcode};

const SN: u32 = 0xffff_fffe;

fn sn(n: u32) -> u32 {
    SN.wrapping_add(n)
}

#[test]
fn a_read_comes_in_sequences_with_the_status_in_its_last_pdu() {
    let mut world = World::new(config());
    let p = parameters();
    let at = world.connect(identity(1, 0, 0), p, SN);
    world.send(at, read(7, sn(0), 3, 300 << 10));
    let pdus = world.take(at);
    assert_eq!(assemble(&pdus, &p), world.disk[3 * 512..3 * 512 + (300 << 10)]);
    let last = pdus.last().unwrap();
    assert_eq!(last.flags(), F | 1, "final, with a status, no residual");
    assert_eq!(last.u32(28), sn(1), "ExpCmdSN");
    assert_eq!(last.u32(32), sn(32), "MaxCmdSN");
    assert_eq!(pdus.iter().filter(|pdu| pdu.flags() & F != 0).count(), 3);
}

#[test]
fn writes_come_by_every_way() {
    for initial_r2t in [false, true] {
        for immediate_data in [false, true] {
            for digests in [false, true] {
                for bytes in [512, 4096, 48 << 10, 64 << 10, 65 << 10, 1 << 20] {
                    let p = Parameters {
                        initial_r2t,
                        immediate_data,
                        header_digest: digests,
                        data_digest: digests,
                        target_data_segment: 16 << 10,
                        ..parameters()
                    };
                    one_write(p, bytes);
                }
            }
        }
    }
}

fn one_write(p: Parameters, bytes: u32) {
    let mut world = World::new(config());
    let at = world.connect(identity(1, 0, 0), p, SN);
    let source = pattern(bytes as u8 ^ 0x55, bytes as usize);
    let immediate = if p.immediate_data { bytes.min(p.first_burst).min(16 << 10) } else { 0 };
    let unsolicited = if p.initial_r2t { immediate } else { bytes.min(p.first_burst) };
    let last = if unsolicited > immediate { 0 } else { F };
    world.send(at, write(last, 9, sn(0), 8, bytes).data(&source[..immediate as usize]));
    let mut offset = immediate;
    let mut data_sn = 0;
    while offset < unsolicited {
        assert!(world.take(at).is_empty(), "an R2T before the unsolicited data has ended");
        let end = unsolicited.min(offset + (16 << 10));
        let data = &source[offset as usize..end as usize];
        world.send(at, data_out(end == unsolicited, 9, RESERVED_TAG, data_sn, offset, data));
        offset = end;
        data_sn += 1;
    }
    let r2ts = answer_r2ts(&mut world, at, &source);
    assert_eq!(r2ts as u32, (bytes - unsolicited).div_ceil(p.max_burst));
    let response = world.one(at);
    assert_eq!(response.opcode(), opcode::SCSI_RESPONSE);
    assert_eq!((response.flags(), response.bhs[2], response.bhs[3]), (F, 0, 0));
    assert_eq!(response.u32(36), r2ts as u32, "ExpDataSN counts R2Ts");
    assert_eq!(world.disk[8 * 512..8 * 512 + bytes as usize], source);
}

#[test]
fn r2ts_are_outstanding_up_to_the_limit() {
    let mut world = World::new(config());
    let p = Parameters { immediate_data: false, initial_r2t: true, ..parameters() };
    let at = world.connect(identity(1, 0, 0), p, SN);
    let bytes = 1 << 20;
    let source = pattern(3, bytes);
    world.send(at, write(F, 9, sn(0), 0, bytes as u32));
    let r2ts = world.take(at);
    assert_eq!(r2ts.len(), 4);
    for (n, r2t) in r2ts.iter().enumerate() {
        assert_eq!(r2t.u32(36), n as u32);
        assert_eq!(r2t.u32(40), n as u32 * p.max_burst);
    }
    // The input is the same in whatever order the volume answers the requests.
    for r2t in r2ts.iter().rev() {
        solicited(&mut world, at, r2t, &source);
    }
    answer_r2ts(&mut world, at, &source);
    assert_eq!(world.one(at).opcode(), opcode::SCSI_RESPONSE);
    assert_eq!(world.disk[..bytes], source);
}

#[test]
fn pdus_of_a_sequence_may_come_in_any_order_where_that_was_agreed() {
    let mut world = World::new(config());
    let p = Parameters { data_pdu_in_order: false, initial_r2t: true, ..parameters() };
    let at = world.connect(identity(1, 0, 0), p, SN);
    let source = pattern(3, 8192);
    world.send(at, write(F, 9, sn(0), 0, 8192));
    let r2t = world.one(at);
    for (n, offset) in [4096, 0, 6144, 2048].into_iter().enumerate() {
        let data = &source[offset..offset + 2048];
        world.send(at, data_out(n == 3, 9, r2t.ttt(), n as u32, offset as u32, data));
    }
    assert_eq!(world.one(at).bhs[3], 0);
    assert_eq!(world.disk[..8192], source);
}

#[test]
fn residuals_say_what_was_not_moved() {
    let mut world = World::new(config());
    let at = world.connect(identity(1, 0, 0), parameters(), SN);
    let read = |expected| command(F | R, 1, 0, expected, cdb(super::device::READ, 0, 512));
    let mut n = 0;
    let mut go = |world: &mut World, out: Out| {
        world.send(at, out.put(24, sn(n)));
        n += 1;
        world.one(at)
    };
    // Overflow: the initiator gets the expected bytes and no more.
    let pdu = go(&mut world, read(100));
    assert_eq!((pdu.flags(), pdu.u32(44), pdu.data.len()), (F | 1 | 4, 412, 100));
    let pdu = go(&mut world, read(0));
    assert_eq!((pdu.opcode(), pdu.flags(), pdu.u32(44)), (opcode::SCSI_RESPONSE, F | 4, 512));
    let pdu = go(&mut world, read(10_000));
    assert_eq!((pdu.flags(), pdu.u32(44), pdu.data.len()), (F | 1 | 2, 9488, 512));
    let write = |expected, wanted, immediate: usize| {
        command(F | W, 1, 0, expected, cdb(super::device::WRITE, 0, wanted))
            .data(&pattern(1, immediate))
    };
    let pdu = go(&mut world, write(1024, 512, 1024));
    assert_eq!((pdu.flags(), pdu.bhs[3], pdu.u32(44)), (F | 2, 0, 512));
    let pdu = go(&mut world, write(512, 1024, 512));
    assert_eq!((pdu.flags(), pdu.bhs[3], pdu.u32(44)), (F | 4, 0, 512));
    let pdu = go(&mut world, write(0, 1024, 0));
    assert_eq!((pdu.flags(), pdu.bhs[3], pdu.u32(44)), (F | 4, 0, 1024));
    // A read that is announced as a write.
    let odd = command(F | W, 1, 0, 512, cdb(super::device::READ, 0, 512)).data(&[0; 512]);
    let pdu = go(&mut world, odd);
    assert_eq!((pdu.flags(), pdu.u32(44)), (F | 4, 512));
    // The target refuses bidirectional commands.
    let both = command(F | R | W, 1, 0, 512, cdb(super::device::READ, 0, 512));
    let pdu = go(&mut world, both);
    assert_eq!((pdu.bhs[3], &pdu.data[4..5], &pdu.data[14..16]), (2, &[5][..], &[0x0e, 3][..]));
}

#[test]
fn sense_follows_its_length() {
    let mut world = World::new(config());
    let at = world.connect(identity(1, 0, 0), parameters(), SN);
    world.send(at, command(F, 1, sn(0), 0, cdb(0xff, 0, 0)));
    let pdu = world.one(at);
    assert_eq!((pdu.bhs[3], &pdu.data[..]), (2, &[0, 3, 0x70, 0, 5][..]));
}

#[test]
fn pings_are_echoed_and_made() {
    let mut world = World::new(config());
    let at = world.connect(identity(1, 0, 0), parameters(), SN);
    world.send(at, Out::new(opcode::NOP_OUT, false, F, 5).put(20, !0).put(24, sn(0)).data(b"abc"));
    let pdu = world.one(at);
    assert_eq!((pdu.opcode(), pdu.itt(), pdu.ttt(), &pdu.data[..]), (0x20, 5, !0, &b"abc"[..]));
    assert_eq!(pdu.u32(28), sn(1));
    world.send(at, Out::new(opcode::NOP_OUT, true, F, 6).put(20, !0).put(24, sn(1)));
    assert_eq!(world.one(at).u32(28), sn(1), "an immediate one has no number of its own");
    world.pass(config().ping_after);
    let ping = world.one(at);
    assert_eq!((ping.opcode(), ping.itt()), (opcode::NOP_IN, !0));
    assert_ne!(ping.ttt(), !0);
    world.send(at, Out::new(opcode::NOP_OUT, true, F, !0).put(20, ping.ttt()).put(24, sn(1)));
    assert!(world.take(at).is_empty(), "the answer to a ping is not answered");
    world.pass(config().ping_after);
    assert_eq!(world.one(at).opcode(), opcode::NOP_IN);
    world.pass(config().ping_limit);
    assert_eq!(*world.expect_closed(at), CloseReason::Silent);
    assert_eq!(world.target.sessions().count(), 0);
}

#[test]
fn a_logout_closes_the_session() {
    let mut world = World::new(config());
    let at = world.connect(identity(1, 0, 0), parameters(), SN);
    world.hold = true;
    world.send(at, read(1, sn(0), 0, 512));
    world.send(at, logout(0, 0, 2, sn(1)));
    let pdu = world.one(at);
    assert_eq!((pdu.opcode(), pdu.itt(), pdu.bhs[2]), (opcode::LOGOUT_RESPONSE, 2, 0));
    assert_eq!(*world.expect_closed(at), CloseReason::LoggedOut);
    assert_eq!(world.target.sessions().count(), 0);
    world.answer_all();
    assert!(world.take(at).is_empty());
}

#[test]
fn discovery_lists_targets_and_nothing_else() {
    let mut world = World::new(config());
    let id = Identity { volume: None, ..identity(1, 0, 0) };
    let at = world.connect(id, parameters(), SN);
    world.send(
        at,
        Out::new(opcode::TEXT, false, F, 5).put(20, !0).put(24, sn(0)).data(b"SendTargets=All\0"),
    );
    let event = world.events.pop().unwrap();
    assert!(matches!(event, Event::List { .. }));
    world.target.handle_listed(world.now, world.conns[at].id, vec!["v".into()]);
    world.pump();
    let pdu = world.one(at);
    assert_eq!((pdu.opcode(), pdu.flags()), (opcode::TEXT_RESPONSE, F));
    assert_eq!(
        String::from_utf8(pdu.data).unwrap(),
        "TargetName=iqn.2026-11.io.longhaul:v\0TargetAddress=127.0.0.1:3260,1\0"
    );
    world.send(at, nothing(6, sn(1)));
    let pdu = world.one(at);
    assert_eq!((pdu.opcode(), pdu.bhs[2]), (opcode::REJECT, 4));
    world.send(at, logout(0, 0, 7, sn(1)));
    assert_eq!(world.one(at).opcode(), opcode::LOGOUT_RESPONSE);
}
