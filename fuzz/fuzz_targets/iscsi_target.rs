//! An initiator that sends any bytes after its login, on one or two connections of a session, in
//! any pieces. Meanwhile time passes and connections end. The target never panics. Requests lie
//! within the volume, with a payload of their length. Every connection ends once. PDUs are whole,
//! and numbers are in order. Another initiator's session works as before.
//!
//! Input: settings, cuts, then steps: a byte for the kind, and its bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longhaul_core::front::iscsi::Access;
use longhaul_fuzz::iscsi::{
    World, command, config, copy_list, login, pdu, populate_list, take, token_list, unit,
};
use longhaul_fuzz::{Input, pieces, seeds};
use std::time::Duration;

const GOOD: u64 = 1;
/// Beyond the connections that steps make.
const OTHER: u64 = 1000;
const FULL: u8 = 0x87;
const NO_TAG: u32 = u32::MAX;

fn keys(settings: u8, initiator: &str, volume: &str) -> Vec<u8> {
    let yes_no = |bit: u8| if settings & bit != 0 { "Yes" } else { "No" };
    format!(
        "InitiatorName=iqn.2001-04.com.example:{initiator}\0TargetName=iqn.2026-11.io.longhaul:{volume}\0ErrorRecoveryLevel={}\0InitialR2T={}\0ImmediateData={}\0MaxConnections=2\0MaxOutstandingR2T=3\0MaxRecvDataSegmentLength=1024\0MaxBurstLength=4096\0FirstBurstLength=2048\0DefaultTime2Wait=0\0iSCSIProtocolLevel=2\0{}",
        settings % 3,
        yes_no(4),
        yes_no(8),
        if settings & 16 != 0 { "DataDigest=CRC32C\0" } else { "" },
    )
    .into_bytes()
}

/// A step that sends `stream` on connection `which`.
fn sends(which: u8, stream: &[u8]) -> Vec<u8> {
    let length = stream.len() as u32;
    [&[which][..], &length.to_le_bytes(), stream].concat()
}

fn make_seeds() -> Vec<Vec<u8>> {
    let start = |settings: u8| vec![settings, 1, 2, 3, 4];
    let read =
        |itt, sn, flags| command(flags, itt, sn, 4096, &[0x28, 0, 0, 0, 0, 8, 0, 0, 8, 0], &[]);
    let write = |itt, sn, flags, data: &[u8]| {
        command(flags, itt, sn, 4096, &[0x2a, 0, 0, 0, 0, 8, 0, 0, 8, 0], data)
    };
    let ready = command(0x81, 9, 1, 0, &[0; 6], &[]);
    let out = |itt, ttt, last: u8, sn, at, data: &[u8]| {
        pdu(0x05, last, &[(16, itt), (20, ttt), (36, sn), (40, at)], data)
    };
    let plain = [
        start(2),
        sends(0, &ready),
        sends(0, &[read(10, 2, 0xc1), write(11, 3, 0xa1, &[7; 1024])].concat()),
        sends(0, &out(11, 0x0001_0000, 0x80, 0, 1024, &[8; 3072])),
        sends(0, &pdu(0x00, 0x80, &[(16, 12), (20, NO_TAG), (24, 4)], b"ping")),
        sends(0, &pdu(0x04, 0x80, &[(16, 13), (20, NO_TAG), (24, 5)], b"SendTargets=\0")),
        sends(0, &pdu(0x06, 0x80, &[(16, 14), (24, 6)], b"")),
    ];
    let recovery = [
        start(1 + 8),
        sends(0, &ready),
        sends(0, &read(10, 2, 0xc1)),
        sends(0, &pdu(0x10, 0x80, &[(16, 10), (20, NO_TAG)], b"")),
        sends(0, &pdu(0x10, 0x81, &[(16, NO_TAG), (20, NO_TAG), (40, 1)], b"")),
        sends(0, &pdu(0x10, 0x83, &[(16, 10), (20, 7)], b"")),
        sends(
            0,
            &[write(11, 4, 0x21, &[7; 1024]), out(11, NO_TAG, 0x80, 0, 1024, &[8; 1024])].concat(),
        ),
        sends(0, &command(0x81, 12, 3, 0, &[0; 6], &[])),
        vec![3, 20],
    ];
    let moved = [
        start(2 + 4),
        vec![4],
        sends(0, &ready),
        sends(0, &write(11, 2, 0xa1, &[])),
        vec![5],
        sends(1, &pdu(0x46, 0x82, &[(16, 14), (24, 3)], b"")),
        sends(1, &pdu(0x42, 0x88, &[(16, 15), (20, 11), (24, 3)], b"")),
        sends(1, &out(11, 0x0001_0001, 0x80, 0, 0, &[8; 4096])),
    ];
    let managed = [
        start(4),
        sends(0, &ready),
        sends(0, &[write(11, 2, 0xa1, &[]), write(12, 3, 0xa1, &[])].concat()),
        sends(0, &pdu(0x42, 0x81, &[(16, 20), (20, 11), (24, 4), (32, 2)], b"")),
        sends(0, &pdu(0x42, 0x82, &[(16, 21), (20, NO_TAG), (24, 4)], b"")),
        sends(0, &pdu(0x42, 0x85, &[(16, 22), (20, NO_TAG), (24, 4)], b"")),
        sends(0, &pdu(0x42, 0x87, &[(16, 23), (20, NO_TAG), (24, 4)], b"")),
    ];
    let digest = [start(16), sends(0, &write(11, 1, 0xa1, &[7; 1024])), sends(0, &[0; 4])];
    let third = |itt, sn, action: u8, list: &[u8]| {
        let length = list.len() as u32;
        let mut cdb = [0; 16];
        (cdb[0], cdb[1], cdb[9]) = (0x83, action, itt as u8);
        cdb[10..14].copy_from_slice(&length.to_be_bytes());
        command(0xa1, itt, sn, length, &cdb, list)
    };
    let copies = [
        start(8),
        sends(0, &ready),
        sends(0, &third(10, 2, 0, &copy_list([unit(0x70), unit(0x80)]))),
        sends(0, &third(11, 3, 0x10, &populate_list())),
        sends(0, &third(12, 4, 0x11, &token_list(Some(unit(0x70))))),
        sends(0, &third(13, 5, 0x11, &token_list(None))),
        sends(0, &third(14, 6, 0, &copy_list([unit(0x70), unit(0x90)]))),
        vec![3, 9],
        vec![7],
        sends(0, &third(15, 7, 0, &copy_list([unit(0x80), unit(0x70)]))),
    ];
    let all = [
        plain.concat(),
        recovery.concat(),
        moved.concat(),
        managed.concat(),
        digest.concat(),
        copies.concat(),
    ];
    all.to_vec()
}

/// TEST UNIT READY on the good session: whole PDUs, and one status each time.
fn ask(world: &mut World, number: u32) {
    world.send(GOOD, &command(0x81, number, number, 0, &[0; 6], &[]));
    let output = std::mem::take(world.outputs.get_mut(&GOOD).unwrap());
    assert!(!world.closed.contains_key(&GOOD), "{:?}", world.closed);
    let mut rest = &output[..];
    let mut statuses = 0;
    while let Some((header, _)) = take(&mut rest) {
        statuses += u32::from(header[0] == 0x21);
    }
    assert!(rest.is_empty() && statuses == 1, "the good session got {output:x?}");
}

fuzz_target!(init: seeds("iscsi_target", make_seeds), |data: &[u8]| {
    let mut input = Input(data);
    let (settings, cuts) = (input.byte(), input.u32());
    let mut world = World::new(config(), Access::default());
    world.accept(GOOD);
    world.send(GOOD, &login(FULL, 1, 0, &keys(0, "good", "v")));
    world.outputs.insert(GOOD, Vec::new());
    let mut number = 1;
    ask(&mut world, number);
    // The other volume that the bad one may copy to and from.
    world.accept(OTHER);
    world.send(OTHER, &login(FULL, 3, 0, &keys(0, "bad", "w")));
    world.accept(2);
    world.send(2, &login(FULL, 2, 0, &keys(settings, "bad", "v")));
    let tsih = world.outputs[&2][14..16].try_into().map(u16::from_be_bytes).unwrap();
    assert_ne!(tsih, 0, "the login failed");
    let mut connections = [2, 2];
    let mut last = 2;
    let mut reset = false;
    while !input.is_empty() && last < 64 {
        match input.byte() {
            which @ (0 | 1) => {
                let length = input.u32() as usize;
                let bytes = input.bytes(length);
                // A reset of all the target's sessions is for the good one, too.
                reset |= bytes.windows(2).any(|pair| pair[0] & 0x3f == 2 && pair[1] & 0x7f == 7);
                for piece in pieces(bytes, cuts) {
                    world.send(connections[usize::from(which)], piece);
                }
            }
            3 => {
                // Below the time in which a pinged session must answer.
                world.pass(Duration::from_secs(u64::from(input.byte() % 10)));
                if !reset {
                    number += 1;
                    ask_if_alive(&mut world, &mut number);
                }
            }
            4 => {
                last += 1;
                connections[1] = last;
                world.accept(last);
                let mut again = login(FULL, 2, tsih, &keys(settings, "bad", "v"));
                again[21] = input.byte() % 3;
                world.send(last, &again);
            }
            5 => world.drop_connection(connections[0]),
            7 => world.drop_connection(OTHER),
            6 => {
                last += 1;
                connections[0] = last;
                world.accept(last);
                world.send(last, &login(FULL, 2, 0, &keys(settings, "bad", "v")));
            }
            _ => {}
        }
    }
    if !reset {
        number += 1;
        ask_if_alive(&mut world, &mut number);
    }
    for id in (1..=last).chain([OTHER]) {
        world.drop_connection(id);
    }
    world.pass(Duration::from_secs(100));
    assert_eq!(world.target.sessions().count(), 0, "sessions without connections");
});

/// Like [`ask`], after answers to pings and after all unit attentions.
fn ask_if_alive(world: &mut World, number: &mut u32) {
    let output = std::mem::take(world.outputs.get_mut(&GOOD).unwrap());
    let mut rest = &output[..];
    while let Some((header, _)) = take(&mut rest) {
        if header[0] == 0x20 && header[20..24] != [0xff; 4] {
            let ttt = u32::from_be_bytes([header[20], header[21], header[22], header[23]]);
            let pong = pdu(0x40, 0x80, &[(16, NO_TAG), (20, ttt), (24, *number)], b"");
            world.send(GOOD, &pong);
        }
    }
    assert!(rest.is_empty());
    ask(world, *number);
}
