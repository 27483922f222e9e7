//! §4.2.5, §11.3, §11.4, §11.7, §11.8: data in all the ways it may travel, and those it may not.

use super::{QUIET, Rig, SOON, is_closed, pattern, with_lun};
use longhaul_e2e::initiator::pdu::{self, NO_TAG, op, reason};
use longhaul_e2e::initiator::session::{READ, Residual, WRITE, cdb10, sequence};
use longhaul_e2e::initiator::{Pdu, Session};

/// UNEXPECTED UNSOLICITED DATA and INCORRECT AMOUNT OF DATA (§11.4.7.2).
const UNEXPECTED: (u8, u16) = (0x0b, 0x0c0c);
const INCORRECT: (u8, u16) = (0x0b, 0x0c0d);

#[test]
fn every_agreement_about_data_carries_it() {
    let rig = Rig::new();
    let mut kind = 10;
    for initial in ["Yes", "No"] {
        for immediate in ["Yes", "No"] {
            for (first, burst) in [("512", "512"), ("1536", "4096"), ("65536", "262144")] {
                for outstanding in ["1", "7"] {
                    let mut session = rig.session([
                        ("InitialR2T", initial),
                        ("ImmediateData", immediate),
                        ("FirstBurstLength", first),
                        ("MaxBurstLength", burst),
                        ("MaxOutstandingR2T", outstanding),
                        ("MaxRecvDataSegmentLength", "2048"),
                    ]);
                    kind += 1;
                    for blocks in [1, 3, 17, 200] {
                        let data = pattern(kind, 500, blocks);
                        let outcome = session.write_blocks(0, 500, &data);
                        assert_eq!(outcome.residual, Residual::None);
                        outcome.good();
                        let read = session.read_blocks(0, 500, blocks as u16);
                        assert!(read == data, "{initial} {immediate} {first} {burst} {blocks}");
                    }
                    session.close(0);
                }
            }
        }
    }
}

/// §11.8.4, §13.17: the target keeps to the negotiated number of R2Ts, and sends the next as soon
/// as one is done.
#[test]
fn r2ts_are_limited() {
    let rig = Rig::new();
    for most in [1_usize, 2, 5] {
        let agreed = most.to_string();
        let mut session = rig.session([
            ("MaxOutstandingR2T", agreed.as_str()),
            ("MaxBurstLength", "1024"),
            ("FirstBurstLength", "512"),
            ("ImmediateData", "No"),
        ]);
        let data = pattern(40, 0, 20);
        let write = session.write(0, 20);
        session[0].send(&write);
        let mut open = Vec::new();
        let mut seen = 0;
        for _ in 0..most {
            open.push(session[0].expect(op::R2T));
        }
        session[0].expect_nothing(QUIET);
        while let Some(r2t) = open.pop() {
            seen += 1;
            let from = r2t.offset() as usize;
            let part = &data[from..from + r2t.count() as usize];
            for piece in sequence(write.itt(), r2t.ttt(), r2t.offset(), part, 512) {
                session[0].send(&piece);
            }
            if seen + open.len() < 10 {
                open.push(session[0].expect(op::R2T));
            }
        }
        let end = session[0].expect(op::RESPONSE);
        assert_eq!((end.header[3], end.data_sn()), (0, 10), "{end:?}");
        assert!(session.read_blocks(0, 0, 20) == data);
        session.close(0);
    }
}

/// A write of eight blocks of which the target has asked for all.
fn asked(session: &mut Session) -> (Pdu, Pdu) {
    let write = session.write(4000, 8);
    session[0].send(&write);
    let r2t = session[0].expect(op::R2T);
    assert_eq!((r2t.offset(), r2t.count()), (0, 4096));
    (write, r2t)
}

/// Wrong answers to an R2T at level 0. The command fails with the sense of §11.4.7.2 once the
/// sequence has ended, and the session goes on.
#[test]
fn wrong_answers_to_an_r2t() {
    let rig = Rig::new();
    let data = pattern(41, 4000, 16);
    // Data-Out PDUs as (last, DataSN, offset, bytes).
    type Piece = (bool, u32, u32, usize);
    let cases: &[(&str, &[Piece], (u8, u16))] = &[
        ("too little", &[(true, 0, 0, 2048)], INCORRECT),
        ("nothing", &[(true, 0, 0, 0)], INCORRECT),
        ("a hole", &[(false, 0, 0, 1024), (true, 1, 2048, 2048)], INCORRECT),
        ("twice", &[(false, 0, 0, 2048), (true, 1, 0, 2048)], INCORRECT),
        ("backwards", &[(false, 0, 2048, 2048), (true, 1, 0, 2048)], INCORRECT),
        ("beyond the end", &[(true, 0, 0, 4608)], INCORRECT),
        ("beyond the task", &[(true, 0, 1 << 31, 512)], INCORRECT),
        ("beyond 32 bits", &[(true, 0, u32::MAX - 255, 512)], INCORRECT),
        // §7.9: a missing DataSN is like a digest error.
        ("DataSN left out", &[(false, 0, 0, 2048), (true, 2, 2048, 2048)], (0x0b, 0x4705)),
        ("DataSN from 1", &[(true, 1, 0, 4096)], (0x0b, 0x4705)),
        ("DataSN again", &[(false, 0, 0, 2048), (true, 0, 2048, 2048)], (0x0b, 0x4705)),
    ];
    let mut session = rig.session([("ImmediateData", "No")]);
    for (what, pieces, right) in cases {
        let (write, r2t) = asked(&mut session);
        for (last, data_sn, offset, bytes) in *pieces {
            let piece = &data[..*bytes];
            let out = pdu::data_out(*last, write.itt(), r2t.ttt(), *data_sn, *offset, piece);
            session[0].send(&out);
        }
        let end = session.finish_write(&write);
        assert_eq!(end.sense(), *right, "{what}");
        session.settle(0);
    }
    // Small pieces are right as long as they are in order (DataPDUInOrder).
    let (write, r2t) = asked(&mut session);
    for piece in sequence(write.itt(), r2t.ttt(), 0, &data[..4096], 4) {
        session[0].send(&piece);
    }
    session.finish_write(&write).good();
    assert!(session.read_blocks(0, 4000, 8) == data[..4096]);
    session.close(0);
}

/// Data that nobody asked for: of no task, under no tag, for another unit.
#[test]
fn data_out_that_belongs_nowhere() {
    let rig = Rig::new();
    let mut session = rig.session([("ImmediateData", "No")]);
    let data = pattern(42, 4000, 8);
    let (write, r2t) = asked(&mut session);
    let itt = write.itt();
    let strays = [
        pdu::data_out(true, itt ^ 1, r2t.ttt(), 0, 0, &data),
        pdu::data_out(true, itt ^ 1, NO_TAG, 0, 0, &data),
        pdu::data_out(true, itt, r2t.ttt() ^ 1, 0, 0, &data),
        // §11.7.4: the unit goes with the tag.
        with_lun(pdu::data_out(true, itt, r2t.ttt(), 0, 0, &data), 1),
    ];
    for stray in strays {
        session[0].send(&stray);
        session[0].expect_reject(reason::INVALID_FIELD, &stray);
    }
    // The command has not noticed.
    session[0].send(&pdu::data_out(true, itt, r2t.ttt(), 0, 0, &data));
    session.finish_write(&write).good();
    assert!(session.read_blocks(0, 4000, 8) == data);
    // After its end the tag is nobody's.
    let late = pdu::data_out(true, itt, r2t.ttt(), 0, 0, &data);
    session[0].send(&late);
    session[0].expect_reject(reason::INVALID_FIELD, &late);
    session.close(0);
}

/// §4.2.5.2, §11.4.7.2: unsolicited data where none may be, or more than may be.
#[test]
fn unsolicited_data_that_may_not_be() {
    let rig = Rig::new();
    let data = pattern(43, 0, 16);
    // The login allowed no immediate data.
    let mut session = rig.session([("ImmediateData", "No"), ("InitialR2T", "Yes")]);
    let mut write = session.write(0, 4);
    write.data = data[..2048].to_vec();
    assert_eq!(session.run(0, &write, &data).sense(), UNEXPECTED);
    // None to follow.
    let mut write = session.write(0, 4);
    write.header[1] &= !0x80;
    session[0].send(&write);
    session[0].send(&pdu::data_out(true, write.itt(), NO_TAG, 0, 0, &data[..2048]));
    assert_eq!(session.finish_write(&write).sense(), UNEXPECTED);
    session.settle(0);
    session.close(0);
    // More than FirstBurstLength, at once or in parts.
    let keys = [("InitialR2T", "No"), ("FirstBurstLength", "1024"), ("MaxBurstLength", "4096")];
    let mut session = rig.session(keys);
    let mut write = session.write(0, 4);
    write.data = data[..1536].to_vec();
    assert_eq!(session.run(0, &write, &data).sense(), INCORRECT);
    let mut write = session.write(0, 4);
    write.header[1] &= !0x80;
    write.data = data[..1024].to_vec();
    session[0].send(&write);
    session[0].send(&pdu::data_out(true, write.itt(), NO_TAG, 0, 1024, &data[..512]));
    assert_eq!(session.finish_write(&write).sense(), INCORRECT);
    // More than the command announced.
    let mut write = session.write(0, 1);
    write.data = data[..1024].to_vec();
    let end = session.run(0, &write, &data);
    assert_eq!(end.sense(), INCORRECT);
    session.settle(0);
    assert!(session.read_blocks(0, 0, 16) != data);
    session.close(0);
}

/// Data with a read (§11.3.4 wants W for it): refused, not read as the next PDU.
#[test]
fn data_with_a_command_that_takes_none() {
    let rig = Rig::new();
    let mut session = rig.session([]);
    let mut read = session.read(0, 1);
    read.data = vec![7; 100];
    session[0].send(&read);
    session[0].expect_reject(reason::INVALID_FIELD, &read);
    // The target did not receive its number (§7.3), and another one may use it.
    session.cmd_sn = read.cmd_sn();
    session.settle(0);
    session.close(0);
}

/// §11.4.5: more or less data than expected.
#[test]
fn residuals() {
    let rig = Rig::new();
    for level in ["0", "1"] {
        let mut session = rig.session([("ErrorRecoveryLevel", level), ("ImmediateData", "No")]);
        let data = pattern(44, 100, 8);
        session.write_blocks(0, 100, &data).good();
        // A read for which there is more, less and no room.
        for (expected, moved, residual) in [
            (4096, 4096, Residual::None),
            (5000, 4096, Residual::Underflow(904)),
            (1 << 24, 4096, Residual::Underflow((1 << 24) - 4096)),
            (4095, 4095, Residual::Overflow(1)),
            (1, 1, Residual::Overflow(4095)),
            (0, 0, Residual::Overflow(4096)),
        ] {
            let read = session.command(READ, expected, &cdb10(0x28, 100, 8));
            let end = session.run(0, &read, &[]);
            assert_eq!(end.residual, residual, "read of {expected}, level {level}");
            assert!(end.good() == data[..moved], "read of {expected}");
        }
        // A read by a command without the R bit: it has no room at all.
        let read = session.command(0x80, 0, &cdb10(0x28, 100, 1));
        let end = session.run(0, &read, &[]);
        assert_eq!((end.residual, end.data.len()), (Residual::Overflow(512), 0));
        // A write that announces more than its CDB takes: the target does not ask for the rest.
        let write = session.command(WRITE, 8192, &cdb10(0x2a, 100, 8));
        let end = session.run(0, &write, &[&data[..], &data[..]].concat());
        assert_eq!(end.residual, Residual::Underflow(4096));
        let asked: u32 = end.r2ts.iter().map(Pdu::count).sum();
        assert_eq!(asked, 4096);
        end.good();
        // Less: the target writes that, and reports the rest.
        let write = session.command(WRITE, 2048, &cdb10(0x2a, 100, 8));
        let end = session.run(0, &write, &data);
        assert_eq!(end.residual, Residual::Overflow(2048), "{end:?}");
        // INQUIRY with too much room, and REPORT LUNS.
        let inquiry = session.command(READ, 255, &[0x12, 0, 0, 0, 255, 0]);
        let end = session.run(0, &inquiry, &[]);
        let length = end.data.len() as u32;
        assert_eq!(end.residual, Residual::Underflow(255 - length));
        // A command that fails moves nothing of what it announced.
        let beyond = session.command(READ, 512, &cdb10(0x28, u32::MAX, 1));
        let end = session.run(0, &beyond, &[]);
        assert_eq!((end.sense(), end.residual), ((5, 0x2100), Residual::Underflow(512)));
        session.close(0);
    }
}

/// §4.4: the target refuses commands that move data both ways, and nothing hangs on them.
#[test]
fn bidirectional_commands_are_refused() {
    let rig = Rig::new();
    let mut session = rig.session([]);
    // XDWRITEREAD (10), with the additional header of its expected input (§11.2.2.4).
    let mut both = session.command(0xe0, 512, &cdb10(0x53, 0, 1));
    both.ahs = vec![0, 5, 2, 0, 0, 0, 2, 0];
    let end = session.run(0, &both, &[0; 512]);
    assert_eq!(end.status, 2, "{end:?}");
    session.settle(0);
    session.close(0);
}

/// §13.13, §11.7: the target cuts long reads into sequences and PDUs as negotiated.
#[test]
fn reads_are_cut_as_agreed() {
    let rig = Rig::new();
    for (segment, burst) in
        [("512", "512"), ("700", "1500"), ("8192", "65536"), ("262144", "262144")]
    {
        let mut session = rig.session([
            ("MaxRecvDataSegmentLength", segment),
            ("MaxBurstLength", burst),
            ("FirstBurstLength", "512"),
        ]);
        let read = session.read(0, 1000);
        let end = session.run(0, &read, &[]);
        let most: usize = burst.parse().unwrap();
        let sequences = end.data_in.iter().filter(|pdu| pdu.flags() & 0x80 != 0).count();
        assert_eq!(sequences, (1000 * 512_usize).div_ceil(most), "§11.7.1: F bits");
        // §11.7.3: the status comes with the last one.
        assert_eq!(end.end.opcode(), op::DATA_IN);
        session.close(0);
    }
}

/// A write with a cut in the middle of a PDU, at every kind of place, has no effect.
#[test]
fn writes_that_are_cut_off() {
    let rig = Rig::new();
    let mut judge = rig.session([]);
    let old = pattern(45, 7000, 8);
    judge.write_blocks(0, 7000, &old).good();
    for cut in [1, 47, 48, 49, 1000, 2095, 2096 + 47, 2096 + 48, 4191 - 1] {
        let mut session = rig.session([]);
        let new = pattern(46, 7000, 8);
        let mut write = session.write(7000, 8);
        write.data = new[..2048].to_vec();
        let out = pdu::data_out(true, write.itt(), 0, 0, 2048, &new[2048..]);
        let mut bytes = session[0].encode(&write);
        if cut >= bytes.len() {
            session[0].send(&write);
            let r2t = session[0].expect(op::R2T);
            let rest = session[0].encode(&out.with32(20, r2t.ttt()));
            session[0].send_bytes(&rest[..cut - bytes.len()]);
        } else {
            bytes.truncate(cut);
            session[0].send_bytes(&bytes);
        }
        session.take(0).drop_now();
        assert!(judge.read_blocks(0, 7000, 8) == old, "cut at {cut}");
    }
    judge.close(0);
}

/// A data segment longer than the target declared (§13.12).
#[test]
fn a_segment_that_is_too_long() {
    let rig = Rig::new();
    let mut session = rig.session([]);
    let most = session.number("MaxRecvDataSegmentLength");
    let itt = session.tag();
    let mut ping = session.numbered(pdu::nop_out(itt, NO_TAG));
    ping.false_data_bytes = Some(most + 1);
    session[0].send(&ping);
    assert!(is_closed(&mut session[0], SOON));
}
