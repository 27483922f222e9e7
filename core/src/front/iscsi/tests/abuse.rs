//! Initiators that violate the protocol.

use super::super::*;
use super::device::WRITE;
use super::driver::*;
use crate::wire::iscsi::{RESERVED_TAG, opcode};

fn world(p: Parameters) -> (World, usize) {
    let mut world = World::new(config());
    let at = world.connect(identity(1, 0, 0), p, 100);
    (world, at)
}

fn reject(world: &mut World, at: usize) -> u8 {
    let pdu = world.one(at);
    assert_eq!((pdu.opcode(), pdu.itt()), (opcode::REJECT, RESERVED_TAG), "{pdu:x?}");
    assert_eq!(pdu.data.len(), 48);
    pdu.bhs[2]
}

/// Key and code of the sense data of a failed command.
fn failure(world: &mut World, at: usize) -> (u8, u16) {
    let pdu = world.one(at);
    assert_eq!((pdu.opcode(), pdu.bhs[3]), (opcode::SCSI_RESPONSE, 2), "{pdu:x?}");
    (pdu.data[4], u16::from_be_bytes([pdu.data[5], pdu.data[6]]))
}

const UNEXPECTED: (u8, u16) = (0x0b, 0x0c0c);
const AMOUNT: (u8, u16) = (0x0b, 0x0c0d);
const CRC: (u8, u16) = (0x0b, 0x4705);

/// Checks that the session still works.
fn works(world: &mut World, at: usize, cmd_sn: u32) {
    world.send(at, nothing(99, cmd_sn));
    let pdu = world.one(at);
    assert_eq!((pdu.itt(), pdu.bhs[3]), (99, 0));
}

#[test]
fn requests_that_are_none() {
    let (mut world, at) = world(parameters());
    for code in [0x07, 0x1c, 0x1e, 0x20, 0x21, 0x3f] {
        world.send(at, Out::new(code, true, F, 1).put(24, 100));
        assert_eq!(reject(&mut world, at), 5, "code {code:x}");
        world.send(at, Out::new(code, false, F, 1).put(24, 100));
        assert_eq!(reject(&mut world, at), 5, "code {code:x}");
    }
    world.send(at, Out::new(opcode::LOGIN, true, F, 1).put(24, 100));
    assert_eq!(reject(&mut world, at), 4);
    world.send(at, Out::new(opcode::NOP_OUT, false, F, !0).put(24, 100));
    assert_eq!(reject(&mut world, at), 9);
    world.send(at, nothing(!0, 100));
    assert_eq!(reject(&mut world, at), 9);
    // None of these requests used its number.
    works(&mut world, at, 100);
}

#[test]
fn headers_and_lengths_that_cannot_be() {
    // More data than was negotiated.
    let (mut world, at) = world(parameters());
    let out = write(F, 1, 100, 0, 1 << 20).data(&vec![0; (64 << 10) + 4]);
    world.send(at, out);
    assert!(matches!(world.expect_closed(at), CloseReason::Violation(_)));
    assert_eq!(world.target.sessions().count(), 0);
    // Malformed additional header segments.
    let (mut world, at) = self::world(parameters());
    for ahs in [
        vec![0, 200, 1, 0],
        vec![0, 1, 7, 0],
        vec![0, 0, 1, 0],
        [&[0, 250, 1, 0][..], &[0; 252]].concat(),
        [&[0, 5, 1, 0][..], &[0; 4], &[0, 5, 1, 0], &[0; 4]].concat(),
    ] {
        let mut out = nothing(1, 100);
        out.ahs = ahs;
        world.send(at, out);
        assert_eq!(reject(&mut world, at), 9);
    }
    let mut out = nothing(1, 100);
    out.ahs = [&[0, 17, 1, 0][..], &[0; 16]].concat();
    world.send(at, out);
    assert_eq!(world.one(at).bhs[3], 0, "a longer CDB");
    // Data with a command that has no output.
    world.send(at, read(1, 101, 0, 512).data(&[0; 4]));
    assert_eq!(reject(&mut world, at), 9);
    works(&mut world, at, 101);
}

#[test]
fn a_damaged_header_ends_the_connection() {
    let p = Parameters { header_digest: true, ..parameters() };
    let (mut world, at) = world(p);
    let mut bytes = nothing(1, 100).encode(&p);
    bytes[20] ^= 1;
    world.send_bytes(at, &bytes);
    assert!(matches!(world.expect_closed(at), CloseReason::Violation(_)));
    assert!(world.take(at).is_empty());
}

#[test]
fn damaged_data_without_recovery() {
    let p = Parameters { data_digest: true, ..parameters() };
    let (mut world, at) = world(p);
    world.send(at, write(0, 1, 100, 0, 1024));
    let mut bytes = data_out(false, 1, RESERVED_TAG, 0, 0, &[1; 512]).encode(&p);
    *bytes.last_mut().unwrap() ^= 1;
    world.send_bytes(at, &bytes);
    assert_eq!(reject(&mut world, at), 2);
    world.send(at, data_out(true, 1, RESERVED_TAG, 1, 512, &[1; 512]));
    assert_eq!(failure(&mut world, at), CRC);
    // A damaged command cannot be skipped, because its number is missing.
    let mut bytes = write(F, 1, 101, 0, 512).data(&[1; 512]).encode(&p);
    *bytes.last_mut().unwrap() ^= 1;
    world.send_bytes(at, &bytes);
    assert_eq!(reject(&mut world, at), 2);
    assert!(matches!(world.expect_closed(at), CloseReason::Violation(_)));
}

#[test]
fn a_tag_that_is_in_use() {
    let (mut world, at) = world(parameters());
    world.hold = true;
    world.send(at, read(1, 100, 0, 512));
    world.send(at, nothing(1, 101));
    assert_eq!(reject(&mut world, at), 7);
    works(&mut world, at, 101);
}

#[test]
fn unsolicited_data_that_was_not_agreed_on() {
    let (mut world, at) = world(Parameters { immediate_data: false, ..parameters() });
    world.send(at, write(F, 1, 100, 0, 512).data(&[1; 512]));
    assert_eq!(failure(&mut world, at), UNEXPECTED);
    works(&mut world, at, 101);

    let (mut world, at) = self::world(Parameters { initial_r2t: true, ..parameters() });
    world.send(at, write(0, 1, 100, 0, 1024).data(&[1; 512]));
    assert!(world.take(at).is_empty(), "what was announced is waited for");
    world.send(at, data_out(true, 1, RESERVED_TAG, 0, 512, &[1; 512]));
    assert_eq!(failure(&mut world, at), UNEXPECTED);
    works(&mut world, at, 101);

    // After the last PDU of the sequence.
    let (mut world, at) = self::world(parameters());
    world.send(at, write(F, 1, 100, 0, 200 << 10).data(&[1; 512]));
    let r2ts = world.take(at);
    world.send(at, data_out(true, 1, RESERVED_TAG, 0, 512, &[1; 512]));
    assert!(world.take(at).is_empty());
    for r2t in &r2ts {
        solicited(&mut world, at, r2t, &vec![1; 200 << 10]);
    }
    assert_eq!(failure(&mut world, at), UNEXPECTED);
}

#[test]
fn more_data_than_was_announced_or_agreed() {
    let (mut world, at) = world(parameters());
    let p = Parameters { first_burst: 1024, ..parameters() };
    world.send(at, write(F, 1, 100, 0, 512).data(&[1; 1024]));
    assert_eq!(failure(&mut world, at), AMOUNT);
    let (mut world, at) = self::world(p);
    world.send(at, write(F, 1, 100, 0, 4096).data(&[1; 2048]));
    assert_eq!(failure(&mut world, at), AMOUNT);
    world.send(at, write(0, 1, 101, 0, 4096).data(&[1; 512]));
    world.send(at, data_out(true, 1, RESERVED_TAG, 0, 512, &[1; 1024]));
    assert_eq!(failure(&mut world, at), AMOUNT);
    works(&mut world, at, 102);
}

#[test]
fn solicited_data_that_is_not_what_was_asked_for() {
    type Change = fn(Out) -> Out;
    let changes: [(Change, (u8, u16)); 6] = [
        (|out| out.put(40, 512), AMOUNT),
        (|out| out.put(40, !0), AMOUNT),
        (|out| out.put(36, 1), CRC),
        (|out| out.put(36, !0), CRC),
        (
            |mut out| {
                out.data.truncate(512);
                out
            },
            AMOUNT,
        ),
        (
            |mut out| {
                out.data.push(0);
                out
            },
            AMOUNT,
        ),
    ];
    for (change, expected) in changes {
        let p = Parameters { initial_r2t: true, immediate_data: false, ..parameters() };
        let (mut world, at) = world(p);
        let before = world.disk.clone();
        world.send(at, write(F, 1, 100, 0, 4096));
        let r2t = world.one(at);
        world.send(at, change(data_out(true, 1, r2t.ttt(), 0, 0, &[1; 4096])));
        assert_eq!(failure(&mut world, at), expected);
        assert_eq!(world.disk, before);
        works(&mut world, at, 101);
    }
    // The sequence is complete but lacks the F bit. Nothing more will come.
    let p = Parameters { initial_r2t: true, immediate_data: false, ..parameters() };
    let (mut world, at) = world(p);
    world.send(at, write(F, 1, 100, 0, 4096));
    let r2t = world.one(at);
    world.send(at, data_out(false, 1, r2t.ttt(), 0, 0, &[1; 4096]));
    assert_eq!(failure(&mut world, at), AMOUNT);
}

#[test]
fn data_with_tags_that_nobody_gave() {
    let p = Parameters { initial_r2t: true, immediate_data: false, ..parameters() };
    let (mut world, at) = world(p);
    world.send(at, write(F, 1, 100, 0, 4096));
    let r2t = world.one(at);
    world.send(at, data_out(true, 1, r2t.ttt() + 1, 0, 0, &[1; 4096]));
    assert_eq!(reject(&mut world, at), 9);
    world.send(at, data_out(true, 2, r2t.ttt(), 0, 0, &[1; 4096]));
    assert_eq!(reject(&mut world, at), 9);
    let mut other = data_out(true, 1, r2t.ttt(), 0, 0, &[1; 4096]);
    other.bhs[9] = 1;
    world.send(at, other);
    assert_eq!(reject(&mut world, at), 9, "another logical unit");
    solicited(&mut world, at, &r2t, &[1; 4096]);
    assert_eq!(world.one(at).bhs[3], 0);
    // The same for a read.
    world.hold = true;
    world.send(at, read(3, 101, 0, 512));
    world.send(at, data_out(true, 3, RESERVED_TAG, 0, 0, &[1; 512]));
    assert_eq!(reject(&mut world, at), 9);
}

#[test]
fn a_status_waits_for_output_that_is_on_its_way() {
    let (mut world, at) = world(parameters());
    world.send(at, command(W, 1, 100, 1024, cdb(0xff, 0, 0)).data(&[1; 512]));
    assert!(world.take(at).is_empty());
    world.send(at, data_out(true, 1, RESERVED_TAG, 0, 512, &[1; 512]));
    assert_eq!(world.one(at).bhs[3], 2);
    // The same for a command that needs less.
    world.send(at, command(W, 1, 101, 1024, cdb(WRITE, 0, 512)).data(&[1; 512]));
    assert!(world.take(at).is_empty());
    world.send(at, data_out(true, 1, RESERVED_TAG, 0, 512, &[1; 512]));
    assert_eq!(world.one(at).flags(), F | 2);
}

#[test]
fn there_is_no_snack_without_recovery() {
    let (mut world, at) = world(parameters());
    for kind in 0..5 {
        world.send(at, snack(kind, !0, !0, 0, 0));
        assert_eq!(reject(&mut world, at), 4);
    }
    works(&mut world, at, 100);
}

#[test]
fn immediate_commands_have_a_limit() {
    let (mut world, at) = world(parameters());
    world.hold = true;
    for n in 0..70 {
        let mut out = read(n, 100, 0, 512);
        out.bhs[0] |= 0x40;
        world.send(at, out);
    }
    let rejects = world.take(at);
    assert_eq!(rejects.len(), 6);
    assert!(rejects.iter().all(|pdu| pdu.bhs[2] == 6));
    world.answer_all();
    assert_eq!(world.take(at).len(), 64);
    works(&mut world, at, 100);
}

#[test]
fn tiny_pieces_are_put_together() {
    let p = Parameters { initial_r2t: true, immediate_data: false, ..parameters() };
    let (mut world, at) = world(p);
    let source = pattern(9, 4096);
    world.send(at, write(F, 1, 100, 0, 4096));
    let r2t = world.one(at);
    for n in 0..4096u32 {
        let data = &source[n as usize..n as usize + 1];
        world.send(at, data_out(n == 4095, 1, r2t.ttt(), n, n, data));
    }
    assert_eq!(world.one(at).bhs[3], 0);
    assert_eq!(world.disk[..4096], source);
}

#[test]
fn logins_have_a_limit() {
    let mut world = World::new(config());
    let peer = Peer { address: String::new(), portal: String::new(), loopback: true };
    world.target.handle_accept(world.now, 1, peer, [0; 32]);
    assert_eq!(world.target.wanted(1), 48);
    world.target.handle_timeout(world.now.after(config().login_limit));
    let reason = CloseReason::LoginLimit;
    assert_eq!(world.target.poll_event(), Some(Event::Close { connection: 1, reason }));
    assert_eq!(world.target.wanted(1), 0);
    world.target.handle_closed(world.now, 1);
    assert_eq!(world.target.poll_timeout(), None);
}
