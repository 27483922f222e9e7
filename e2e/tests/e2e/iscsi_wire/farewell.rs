//! §11.9: messages to initiators when a host stops in order.

use super::{Rig, SOON};
use longhaul_e2e::initiator::pdu::{self, Pdu, op};
use longhaul_e2e::initiator::{Connection, Received};
use longhaul_e2e::site::START;
use rustix::process::Signal;
use std::time::Instant;

/// Events of an asynchronous message (§11.9.1).
const LOGOUT: u8 = 1;
const DROP_CONNECTION: u8 = 2;
const DROP_SESSION: u8 = 3;

/// Event and parameters of the next PDU, which must be such a message.
#[track_caller]
fn event(connection: &mut Connection) -> (u8, [u16; 3]) {
    let pdu = connection.expect(op::ASYNC);
    assert_eq!((pdu.flags(), pdu.itt()), (0x80, u32::MAX), "{pdu:?}");
    read(&pdu)
}

fn read(pdu: &Pdu) -> (u8, [u16; 3]) {
    (pdu.header[36], [38, 40, 42].map(|at| pdu.get16(at)))
}

/// Each connection gets a logout request. An obedient initiator leaves as always. One that stays
/// hears for each connection that it will be dropped, with the time to wait before a new login.
#[test]
fn a_host_that_stops_asks_for_logouts_and_says_what_it_drops() {
    let mut rig = Rig::new();
    let mut obeys = rig.session([]);
    let mut stays = rig.session([("MaxConnections", "2"), ("DefaultTime2Wait", "3")]);
    stays.join(7).unwrap();
    stays.settle(7);
    rig.host.server().signal(Signal::TERM);
    let start = Instant::now();
    assert_eq!(event(&mut obeys[0]), (LOGOUT, [0, 0, 4]));
    for at in [0, 7] {
        assert_eq!(event(&mut stays[at]), (LOGOUT, [0, 0, 4]));
    }
    // Commands under way end, on the way out too.
    let data = super::pattern(1, 8, 16);
    obeys.write_blocks(0, 8, &data).good();
    obeys.close(0);
    assert!(stays.read_blocks(7, 8, 16) == data);
    for at in [0, 7] {
        assert_eq!(event(&mut stays[at]), (DROP_CONNECTION, [at as u16, 3, 0]));
        let rest = stays[at].expect_closed(SOON);
        assert!(rest.is_empty(), "after the last word: {rest:?}");
    }
    let took = start.elapsed();
    assert!(took.as_secs_f64() > 3.9, "cut off after {took:?}, though asked to log out within 4 s");
    assert!(rig.host.server().wait(START).success());
}

/// A host that may not take its time drops all sessions at once, and says so.
#[test]
fn a_host_that_stops_at_once_says_so() {
    let mut rig = Rig::with(["--drain-limit", "1s"]);
    let mut session = rig.session([("MaxConnections", "2")]);
    session.join(1).unwrap();
    session.settle(1);
    rig.host.server().signal(Signal::TERM);
    for at in [0, 1] {
        assert_eq!(event(&mut session[at]), (DROP_SESSION, [0, 2, 0]));
        session[at].expect_closed(SOON);
    }
    assert!(rig.host.server().wait(START).success());
}

/// A stopping host does not wait for initiators that have left on request.
#[test]
fn a_host_that_stops_does_not_wait_for_those_who_have_left() {
    let mut rig = Rig::with(["--drain-limit", "100s"]);
    let mut session = rig.session([("MaxConnections", "2")]);
    session.join(1).unwrap();
    session.settle(1);
    rig.host.server().signal(Signal::TERM);
    let start = Instant::now();
    // §11.9.1: each connection logs out on its own here.
    for at in [1, 0] {
        assert_eq!(event(&mut session[at]).0, LOGOUT);
        let itt = session.tag();
        let logout = session.numbered(pdu::logout(1, itt, at as u16).immediate());
        session[at].send(&logout);
        let answer = session[at].expect(op::LOGOUT_RESPONSE);
        assert_eq!(answer.header[2], 0, "{answer:?}");
        assert_eq!(session[at].receive_within(SOON), Received::Closed);
    }
    assert!(rig.host.server().wait(START).success());
    let took = start.elapsed();
    assert!(took.as_secs_f64() < 30.0, "the host has waited {took:?} for nobody");
}
