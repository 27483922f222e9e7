//! A connection before the full feature phase that sends any bytes. The target never panics, and
//! every answer is a whole login response. A session exists only if the last answer admits one. The
//! answers are the same for all divisions of the stream.
//!
//! Input: settings, cuts, then either a stream, or requests as (flags, length, text).
#![no_main]

use libfuzzer_sys::fuzz_target;
use longhaul_core::front::iscsi::{Access, Grant, Secret};
use longhaul_fuzz::iscsi::{World, config, login, take};
use longhaul_fuzz::{Input, pieces, seeds};

const INITIATOR: &str = "iqn.2001-04.com.example:i";

/// A request of the structured form.
fn request(flags: u8, text: &str) -> Vec<u8> {
    let mut bytes = vec![flags];
    bytes.extend((text.len() as u32).to_le_bytes());
    bytes.extend(text.bytes());
    bytes
}

fn make_seeds() -> Vec<Vec<u8>> {
    let start = |settings: u8| vec![settings, 1, 2, 3, 4];
    let names = format!("InitiatorName={INITIATOR}\0TargetName=iqn.2026-11.io.longhaul:v\0");
    let all = "\
               HeaderDigest=CRC32C,None\0DataDigest=None\0MaxConnections=4\0InitialR2T=No\0ImmediateData=Yes\0MaxRecvDataSegmentLength=262144\0MaxBurstLength=0x40000\0FirstBurstLength=65536\0DefaultTime2Wait=2\0DefaultTime2Retain=20\0MaxOutstandingR2T=8\0DataPDUInOrder=No\0DataSequenceInOrder=No\0ErrorRecoveryLevel=2\0IFMarker=No\0OFMarkInt=2048~8192\0TaskReporting=FastAbort,RFC3720\0iSCSIProtocolLevel=2\0X-a.b=1\0";
    let plain = [start(0), request(0x87, &format!("{names}{all}"))].concat();
    let staged = [
        start(0),
        request(0x81, &format!("{names}AuthMethod=CHAP,None\0")),
        request(0x44, &all[..100]),
        request(0x04, &all[100..]),
        request(0x87, ""),
    ];
    let chap = [
        start(1),
        request(0x00, &format!("{names}AuthMethod=CHAP\0")),
        request(0x00, "CHAP_A=5,6,7\0"),
        request(0x81, "CHAP_N=alice\0CHAP_R=0x0011\0CHAP_I=9\0CHAP_C=0b/////////////////////w==\0"),
        request(0x87, all),
    ];
    let discovery =
        [start(0), request(0x87, &format!("InitiatorName={INITIATOR}\0SessionType=Discovery\0"))];
    let stream = [start(2), login(0x87, 1, 0, format!("{names}{all}").as_bytes())].concat();
    vec![plain, staged.concat(), chap.concat(), discovery.concat(), stream]
}

fn access(settings: u8) -> Access {
    let mut access = Access::default();
    if settings & 1 != 0 {
        let grant = Grant { initiator: INITIATOR.into(), user: Some("alice".into()) };
        access.users.insert("alice".into(), Secret(b"a secret of alice's".to_vec()));
        access.target_user = Some(("bob".into(), Secret(b"a secret of bob's".to_vec())));
        access.volumes.insert("v".into(), vec![grant]);
    }
    if settings & 4 != 0 {
        access.moved.insert("v".into(), "127.0.0.1:3261".into());
    }
    access
}

/// The answers of the target, and whether there is a session then.
fn drive<'a>(settings: u8, pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<u8>, bool) {
    let mut world = World::new(config(), access(settings));
    world.accept(1);
    for piece in pieces {
        if world.target.sessions().count() > 0 {
            break;
        }
        world.send(1, piece);
    }
    let sessions = world.target.sessions().count();
    (world.outputs.remove(&1).unwrap_or_default(), sessions > 0)
}

fuzz_target!(init: seeds("iscsi_login", make_seeds), |data: &[u8]| {
    let mut input = Input(data);
    let (settings, cuts) = (input.byte(), input.u32());
    let mut requests = Vec::new();
    if settings & 2 == 0 {
        while !input.is_empty() {
            let flags = input.byte();
            let length = input.u32() as usize;
            let text = input.bytes(length.min(9000));
            requests.push(login(flags, 1, 0, text));
        }
    } else {
        requests.push(input.0.to_vec());
    }
    let stream = requests.concat();
    let (whole, admitted) = drive(settings, requests.iter().map(Vec::as_slice));
    let (cut, cut_admitted) = drive(settings, pieces(&stream, cuts));
    // Input after the login no longer concerns this target.
    if !admitted && !cut_admitted {
        assert_eq!(whole, cut, "the answers depend on how the stream is cut");
    }
    let mut rest = &whole[..];
    let mut last = None;
    while let Some((header, text)) = take(&mut rest) {
        if header[0] != 0x23 {
            assert!(admitted, "not of a login: {header:x?}");
            return;
        }
        assert!(text.len() <= 8192 && (text.is_empty() || text.ends_with(&[0]) || header[1] & 0x40 != 0 || last == Some(0x40)));
        last = Some(header[1] & 0x40);
        if header[36] != 0 {
            assert!(!admitted, "refused, and admitted");
            assert!(rest.is_empty(), "after a refusal: {rest:x?}");
        }
    }
    assert!(rest.is_empty());
});
