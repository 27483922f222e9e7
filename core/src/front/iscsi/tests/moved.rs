//! Logins that move to the target that has their volume.

use super::super::*;
use super::driver::*;
use crate::block::Time;
use bytes::BytesMut;

fn peer() -> Peer {
    Peer { address: "127.0.0.1:1".into(), portal: "127.0.0.1:3260".into(), loopback: true }
}

fn target() -> Target {
    Target::new(Config { has_others: true, ..config() }, Access::default())
}

/// A login to `v` that goes to the full feature phase at once.
fn login(tsih: u16, cid: u16) -> BytesMut {
    let names = format!("InitiatorName={INITIATOR}\0TargetName={TARGET_PREFIX}v\0");
    let values = "InitialR2T=No\0MaxBurstLength=131072\0FirstBurstLength=65536\0\
                  MaxOutstandingR2T=4\0MaxConnections=4\0ErrorRecoveryLevel=0\0";
    let text = names + values;
    let mut out = Out::new(0x03, true, 0x87, 7).data(text.as_bytes());
    out.bhs[8] = 0x80;
    out.bhs[14..16].copy_from_slice(&tsih.to_be_bytes());
    out.bhs[20..22].copy_from_slice(&cid.to_be_bytes());
    BytesMut::from(&out.put(24, 1).encode(&parameters())[..])
}

fn placed(target: &mut Target) -> Option<(ConnectionId, String)> {
    std::iter::from_fn(|| target.poll_event()).find_map(|event| match event {
        Event::Place { connection, volume } => Some((connection, volume)),
        _ => None,
    })
}

fn output(target: &mut Target, id: ConnectionId) -> Vec<u8> {
    std::iter::from_fn(|| target.poll_output(id)).flat_map(|piece| piece.to_vec()).collect()
}

/// Status class and detail, and the TSIH, of a login response.
fn answer(pdu: &[u8]) -> (u16, u16) {
    assert_eq!(pdu[0], 0x23, "it is a login response");
    let at = |at: usize| u16::from_be_bytes([pdu[at], pdu[at + 1]]);
    (at(36), at(14))
}

#[test]
fn a_login_goes_on_at_the_target_that_has_its_volume() {
    let (mut first, mut second) = (target(), target());
    let now = Time(1);
    first.handle_accept(now, 1, peer(), [1; 32]);
    first.handle_input(now, 1, &mut login(0, 1));
    assert_eq!(placed(&mut first), Some((1, "v".to_owned())));
    assert!(!first.wants_input(1) && output(&mut first, 1).is_empty());
    let moved = first.take_login(1).unwrap();
    assert!(first.take_login(1).is_none(), "it has gone");
    assert_eq!(first.poll_timeout(), None, "with its timer");
    second.handle_moved(now, 9, moved);
    let opens = std::iter::from_fn(|| second.poll_event()).collect::<Vec<_>>();
    assert_eq!(opens, [Event::Open { volume: "v".into() }]);
    second.handle_opened(now, "v", Ok(device_config())).unwrap();
    let (status, tsih) = answer(&output(&mut second, 9));
    assert!(status == 0 && tsih != 0);
    assert_eq!(second.sessions().count(), 1);

    // A second connection of the session finds it there.
    first.handle_accept(now, 2, peer(), [2; 32]);
    first.handle_input(now, 2, &mut login(tsih, 2));
    assert_eq!(placed(&mut first), Some((2, "v".to_owned())));
    let moved = first.take_login(2).unwrap();
    second.handle_moved(now, 10, moved);
    assert_eq!(answer(&output(&mut second, 10)), (0, tsih));
    assert_eq!(second.sessions().map(|session| session.connections.len()).sum::<usize>(), 2);
}

#[test]
fn a_login_stays_where_its_volume_is() {
    let mut target = target();
    let now = Time(1);
    target.handle_accept(now, 1, peer(), [1; 32]);
    target.handle_input(now, 1, &mut login(0, 1));
    assert!(placed(&mut target).is_some());
    target.handle_placed(now, 1);
    target.handle_opened(now, "v", Ok(device_config())).unwrap();
    assert_eq!(answer(&output(&mut target, 1)).0, 0);
    // Such a session is nowhere.
    target.handle_accept(now, 2, peer(), [2; 32]);
    target.handle_input(now, 2, &mut login(77, 2));
    assert!(placed(&mut target).is_some());
    target.handle_placed(now, 2);
    assert_eq!(answer(&output(&mut target, 2)).0, 0x020a);
}

#[test]
fn a_login_that_moves_too_late_is_refused() {
    let (mut first, mut second) = (target(), target());
    let now = Time(1);
    first.handle_accept(now, 1, peer(), [1; 32]);
    first.handle_input(now, 1, &mut login(0, 1));
    let limit = first.poll_timeout().unwrap();
    let moved = first.take_login(1).unwrap();
    second.handle_moved(now, 1, moved);
    second.handle_timeout(limit);
    let closed =
        |event: &Event| matches!(event, Event::Close { reason: CloseReason::LoginLimit, .. });
    assert!(std::iter::from_fn(|| second.poll_event()).any(|event| closed(&event)));

    first.handle_accept(now, 2, peer(), [2; 32]);
    first.handle_input(now, 2, &mut login(0, 1));
    let moved = first.take_login(2).unwrap();
    second.handle_shutdown(now, Duration::ZERO);
    second.handle_moved(now, 2, moved);
    let closed = |event: &Event| matches!(event, Event::Close { connection: 2, .. });
    assert!(std::iter::from_fn(|| second.poll_event()).any(|event| closed(&event)));
}
