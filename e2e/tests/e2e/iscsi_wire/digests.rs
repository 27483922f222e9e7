//! §13.1, §7.8: digests both ways, and what damage comes to at each error recovery level.

use super::{QUIET, Rig, SOON, pattern};
use longhaul_e2e::initiator::pdu::{self, NO_TAG, op, reason};
use longhaul_e2e::initiator::{Pdu, Session};

const BOTH: [(&str, &str); 2] = [("HeaderDigest", "CRC32C"), ("DataDigest", "CRC32C")];

fn at_level(rig: &Rig, level: &'static str) -> Session {
    let keys = [("ErrorRecoveryLevel", level), ("InitialR2T", "No")];
    rig.session(BOTH.into_iter().chain(keys))
}

/// A PDU as it travels, with one bit of its data segment or data digest turned over.
fn damaged(session: &Session, at: usize, pdu: &Pdu) -> Vec<u8> {
    let mut bytes = session[at].encode(pdu);
    let end = bytes.len();
    bytes[end - 1 - fastrand::usize(..8)] ^= 1 << fastrand::u32(..8);
    bytes
}

#[test]
fn every_combination_carries_data_both_ways() {
    let rig = Rig::new();
    for header in ["None", "CRC32C"] {
        for data in ["None", "CRC32C"] {
            for level in ["0", "2"] {
                let mut session = rig.session([
                    ("HeaderDigest", header),
                    ("DataDigest", data),
                    ("ErrorRecoveryLevel", level),
                    // So that Data-In has odd cuts and padding.
                    ("MaxRecvDataSegmentLength", "1021"),
                ]);
                let written = pattern(1, 64, 300);
                session.write_blocks(0, 64, &written).good();
                assert!(session.read_blocks(0, 64, 300) == written, "{header} {data} {level}");
                // Lengths that need padding, both ways.
                for length in 1..6 {
                    let cdb = [0x12, 0, 0, 0, length, 0];
                    let inquiry = session.command(0xc0, u32::from(length), &cdb);
                    assert_eq!(session.run(0, &inquiry, &[]).good().len(), usize::from(length));
                    let itt = session.tag();
                    let data = &b"padding"[..usize::from(length)];
                    let ping = session.numbered(pdu::nop_out(itt, NO_TAG).with_data(data));
                    session[0].send(&ping);
                    assert_eq!(session[0].expect(op::NOP_IN).data, data);
                }
                session.close(0);
            }
        }
    }
}

/// §7.8: nobody can follow a damaged header; the connection goes, at every level.
#[test]
fn a_damaged_header_ends_the_connection() {
    let rig = Rig::new();
    for level in ["0", "1", "2"] {
        for byte in 0..52 {
            if level != "0" && byte % 7 != 0 {
                continue;
            }
            let mut session = at_level(&rig, level);
            let read = session.read(0, 1);
            let mut bytes = session[0].encode(&read);
            assert_eq!(bytes.len(), 52);
            bytes[byte] ^= 0x10;
            session[0].send_bytes(&bytes);
            if (4..8).contains(&byte) {
                // The header claims more than comes; the claimed data is there before the target
                // judges it.
                session[0].send_bytes(&[0; 1100]);
            }
            let seen = session[0].expect_closed(SOON);
            assert!(seen.is_empty(), "level {level}, byte {byte}: {seen:?}");
        }
    }
}

/// §7.8: the target rejects damaged solicited data. Then the command fails, or the target asks for
/// it again.
#[test]
fn damaged_data_out() {
    let rig = Rig::new();
    for level in ["0", "1", "2"] {
        let mut session = at_level(&rig, level);
        let data = pattern(2, 1000, 16);
        let mut write = session.write(1000, 16);
        write.data.clear();
        session[0].send(&write);
        let r2t = session[0].expect(op::R2T);
        assert_eq!((r2t.offset(), r2t.count()), (0, 8192));
        let itt = write.itt();
        let first = pdu::data_out(false, itt, r2t.ttt(), 0, 0, &data[..4096]);
        let last = pdu::data_out(true, itt, r2t.ttt(), 1, 4096, &data[4096..]);
        let bytes = damaged(&session, 0, &first);
        session[0].send_bytes(&bytes);
        session[0].expect_reject(reason::DATA_DIGEST, &first);
        // The status waits until all solicited data has come.
        session[0].expect_nothing(QUIET);
        session[0].send(&last);
        if level == "0" {
            let end = session.finish_write(&write);
            // PROTOCOL SERVICE CRC ERROR (§7.8, §11.4.7.2).
            assert_eq!(end.sense(), (0x0b, 0x4705));
            assert_ne!(session.read_blocks(0, 1000, 16), data, "half of it was written");
        } else {
            // §7.8: a recovery R2T, for just what is missing.
            let again = session[0].expect(op::R2T);
            assert_eq!((again.offset(), again.count(), again.data_sn()), (0, 4096, 1));
            assert_ne!(again.ttt(), r2t.ttt(), "the first tag is used up");
            session[0].send(&pdu::data_out(true, itt, again.ttt(), 0, 0, &data[..4096]));
            let end = session[0].expect(op::RESPONSE);
            assert_eq!((end.header[2], end.header[3]), (0, 0), "{end:?}");
            // §11.4.8: both R2Ts count.
            assert_eq!(end.data_sn(), 2, "{end:?}");
            assert!(session.read_blocks(0, 1000, 16) == data, "level {level}");
        }
        session.close(0);
    }
}

/// The same for unsolicited data.
#[test]
fn damaged_unsolicited_data() {
    let rig = Rig::new();
    for level in ["0", "1"] {
        let mut session = at_level(&rig, level);
        let data = pattern(3, 2000, 8);
        let mut write = session.write(2000, 8);
        write.header[1] &= !0x80;
        write.data = data[..1024].to_vec();
        session[0].send(&write);
        let (itt, none) = (write.itt(), NO_TAG);
        let first = pdu::data_out(false, itt, none, 0, 1024, &data[1024..2048]);
        let bytes = damaged(&session, 0, &first);
        session[0].send_bytes(&bytes);
        session[0].expect_reject(reason::DATA_DIGEST, &first);
        session[0].send(&pdu::data_out(true, itt, none, 1, 2048, &data[2048..]));
        if level == "0" {
            let end = session.finish_write(&write);
            assert_eq!(end.sense(), (0x0b, 0x4705));
        } else {
            let again = session[0].expect(op::R2T);
            assert_eq!((again.offset(), again.count()), (1024, 1024), "{again:?}");
            session[0].send(&pdu::data_out(true, itt, again.ttt(), 0, 1024, &data[1024..2048]));
            assert_eq!(session[0].expect(op::RESPONSE).header[3], 0);
            assert!(session.read_blocks(0, 2000, 8) == data);
        }
        session.close(0);
    }
}

/// §7.8: the target rejects a command whose immediate data is damaged, and counts it as not
/// received. With recovery the initiator retries it under its number (§7.2.1). Without, nobody
/// does.
#[test]
fn damaged_immediate_data() {
    let rig = Rig::new();
    for level in ["0", "1", "2"] {
        let mut session = at_level(&rig, level);
        let data = pattern(4, 3000, 4);
        let mut write = session.write(3000, 4);
        write.data.clone_from(&data);
        let bytes = damaged(&session, 0, &write);
        let before = session[0].exp_cmd_sn;
        session[0].send_bytes(&bytes);
        let reject = session[0].expect_reject(reason::DATA_DIGEST, &write);
        assert_eq!(reject.exp_cmd_sn(), before, "§7.3: it was not received: {reject:?}");
        if level == "0" {
            let seen = session[0].expect_closed(SOON);
            assert!(seen.is_empty(), "{seen:?}");
            continue;
        }
        // Later commands wait.
        let mut read = session.read(3000, 4);
        // ORDERED, so that the write ends before it starts.
        read.header[1] = read.header[1] & !7 | 2;
        session[0].send(&read);
        session[0].expect_nothing(QUIET);
        session[0].send(&write);
        let end = session[0].expect(op::RESPONSE);
        assert_eq!((end.itt(), end.header[3]), (write.itt(), 0), "{end:?}");
        assert!(session.finish(0, &read, &[]).good() == data, "level {level}");
        session.close(0);
    }
}

/// A ping and a text with damage: rejected and not answered.
#[test]
fn damaged_pings() {
    let rig = Rig::new();
    let mut session = at_level(&rig, "1");
    let itt = session.tag();
    let ping = session.numbered(pdu::nop_out(itt, NO_TAG).immediate().with_data(b"hello"));
    let bytes = damaged(&session, 0, &ping);
    session[0].send_bytes(&bytes);
    session[0].expect_reject(reason::DATA_DIGEST, &ping);
    session[0].send(&ping);
    assert_eq!(session[0].expect(op::NOP_IN).data, b"hello");
    session.settle(0);
    session.close(0);
}

/// Connections of one session may differ in their digests (§13.1).
#[test]
fn digests_are_a_connections_own() {
    let rig = Rig::new();
    let mut session = rig.session([("MaxConnections", "4"), ("HeaderDigest", "CRC32C")]);
    session.join_with(1, [("HeaderDigest", "None"), ("DataDigest", "CRC32C")]).unwrap();
    session.join_with(2, [("HeaderDigest", "None"), ("DataDigest", "None")]).unwrap();
    let data = pattern(5, 0, 40);
    session.write_blocks(0, 0, &data).good();
    for at in 0..3 {
        assert!(session.read_blocks(at, 0, 40) == data, "connection {at}");
    }
    session.close(2);
}
