//! The target's totals in `/metrics`, against what an initiator has done.

use super::{INITIATOR, Rig, SOON, pattern, target, with_lun};
use longhaul_e2e::initiator::pdu::{self, NO_TAG, function, op};
use longhaul_e2e::initiator::session::{NONE, READ, WRITE, cdb10};
use longhaul_e2e::initiator::{Login, Session};
use longhaul_e2e::process::LIMIT;
use longhaul_e2e::site::http_get;
use longhaul_e2e::wait_for;

/// The total with these labels; one that never happened need not be there.
#[track_caller]
fn total(rig: &Rig, name: &str) -> u64 {
    let (_, body) = http_get(&rig.host.admin, "/metrics").expect("the host answers");
    let name = format!("longhaul_iscsi_{name} ");
    let sample = body.lines().find_map(|line| line.strip_prefix(&name));
    sample.map_or(0, |value| value.parse().expect("a whole number"))
}

const CLASSES: [&str; 6] = ["read", "write", "flush", "discard", "reservation", "other"];

fn commands(rig: &Rig) -> [u64; 6] {
    CLASSES.map(|class| total(rig, &format!("commands_total{{class=\"{class}\"}}")))
}

fn aborted(rig: &Rig) -> [u64; 2] {
    ["function", "loss"]
        .map(|cause| total(rig, &format!("aborted_tasks_total{{cause=\"{cause}\"}}")))
}

#[test]
fn commands_are_counted_by_class() {
    let rig = Rig::new();
    let mut session = rig.session([]);
    let before = commands(&rig);
    let data = pattern(1, 0, 8);
    for _ in 0..3 {
        session.write_blocks(0, 0, &data).good();
    }
    for _ in 0..5 {
        session.read_blocks(0, 0, 8);
    }
    // SYNCHRONIZE CACHE (10), PERSISTENT RESERVE IN with READ KEYS, READ CAPACITY (10), and what is
    // none.
    let flush = session.command(NONE, 0, &cdb10(0x35, 0, 0));
    session.run(0, &flush, &[]).good();
    let keys = session.command(READ, 8, &cdb10(0x5e, 0, 8));
    session.run(0, &keys, &[]).good();
    let capacity = session.command(READ, 8, &cdb10(0x25, 0, 0));
    session.run(0, &capacity, &[]).good();
    let none = session.command(NONE, 0, &[0xff; 16]);
    assert_eq!(session.run(0, &none, &[]).status, 2);
    // UNMAP of one block.
    let mut list = vec![0; 24];
    (list[1], list[3], list[19]) = (22, 16, 1);
    let mut unmap = session.command(WRITE, 24, &cdb10(0x42, 0, 24));
    unmap.data = list;
    session.run(0, &unmap, &[]).good();
    let after = commands(&rig);
    let grown: Vec<u64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
    assert_eq!(grown, [5, 3, 1, 1, 1, 2], "{CLASSES:?}");
    session.close(0);
}

#[test]
fn damage_and_rejects_are_counted() {
    let rig = Rig::new();
    let digests = |segment: &str| format!("digest_errors_total{{segment=\"{segment}\"}}");
    let rejects = |reason: &str| format!("rejects_total{{reason=\"{reason}\"}}");
    let keys = [("HeaderDigest", "CRC32C"), ("DataDigest", "CRC32C"), ("ErrorRecoveryLevel", "1")];
    let mut session = rig.session(keys);
    let itt = session.tag();
    let ping = session.numbered(pdu::nop_out(itt, NO_TAG).with_data(b"damaged"));
    let mut bytes = session[0].encode(&ping);
    *bytes.last_mut().unwrap() ^= 1;
    session[0].send_bytes(&bytes);
    session[0].expect_reject(pdu::reason::DATA_DIGEST, &ping);
    assert_eq!((total(&rig, &digests("header")), total(&rig, &digests("data"))), (0, 1));
    assert_eq!(total(&rig, &rejects("data_digest")), 1);
    session[0].send(&ping);
    session[0].expect(op::NOP_IN);
    let none = session.read(0, 1).with32(16, NO_TAG);
    session[0].send(&none);
    session[0].expect_reject(pdu::reason::INVALID_FIELD, &none);
    assert_eq!(total(&rig, &rejects("invalid_field")), 1);
    session.cmd_sn = none.cmd_sn();
    let read = session.read(0, 1);
    let mut bytes = session[0].encode(&read);
    bytes[20] ^= 1;
    session[0].send_bytes(&bytes);
    session[0].expect_closed(SOON);
    assert_eq!((total(&rig, &digests("header")), total(&rig, &digests("data"))), (1, 1));
    assert_eq!(total(&rig, &rejects("data_digest")), 1, "a header is not rejected");
}

#[test]
fn logins_are_counted_by_what_came_of_them() {
    let rig = Rig::new();
    let counts = || {
        ["logins_total", "logins_refused_total", "logins_redirected_total"]
            .map(|name| total(&rig, name))
    };
    let grown = |before: [u64; 3]| {
        let after = counts();
        [0, 1, 2].map(|at| after[at] - before[at])
    };
    let before = counts();
    let mut session = rig.session([("MaxConnections", "2")]);
    session.join(1).unwrap();
    assert_eq!(session.join(2).unwrap_err().status, 0x0206);
    let nobody = Login::to(&rig.portal, &target("nobody"), INITIATOR);
    assert_eq!(Session::open(&nobody).err().map(|refused| refused.status), Some(0x0203));
    assert_eq!(grown(before), [2, 2, 0]);
    session.close(0);
    rig.iscsi(["move", "disk", "--to", "127.0.0.1:3260"]).ok();
    assert_eq!(Session::open(&rig.login()).err().map(|refused| refused.status), Some(0x0101));
    assert_eq!(grown(before), [2, 2, 1]);
}

#[test]
fn aborted_tasks_are_counted_by_cause() {
    let rig = Rig::new();
    let mut session = rig.session([("ImmediateData", "No")]);
    assert_eq!(aborted(&rig), [0, 0]);
    let waits = |session: &mut Session| {
        let write = session.write(0, 8);
        session[0].send(&write);
        session[0].expect(op::R2T);
        write
    };
    let write = waits(&mut session);
    let itt = session.tag();
    let abort = pdu::manage(function::ABORT_TASK, itt, write.itt()).with32(32, write.cmd_sn());
    let abort = session.numbered(abort.immediate());
    session[0].send(&abort);
    assert_eq!(session[0].expect(op::FUNCTION_RESPONSE).header[2], 0);
    assert_eq!(aborted(&rig), [1, 0]);
    // A reset by another initiator ends it, and one for a unit that is none ends nothing.
    waits(&mut session);
    let mut other = rig.session([]);
    let itt = other.tag();
    let stray = with_lun(pdu::manage(function::LUN_RESET, itt, NO_TAG), 7);
    let stray = other.numbered(stray.immediate());
    other[0].send(&stray);
    assert_eq!(other[0].expect(op::FUNCTION_RESPONSE).header[2], 2);
    assert_eq!(aborted(&rig), [1, 0]);
    let itt = other.tag();
    let reset = other.numbered(pdu::manage(function::LUN_RESET, itt, NO_TAG).immediate());
    other[0].send(&reset);
    wait_for("the reset to be counted", LIMIT, || aborted(&rig) == [2, 0]);
    // §4.2.3.3: the reset gets its answer when the session that lost the task has acknowledged all
    // before.
    session.settle(0);
    other[0].expect(op::FUNCTION_RESPONSE);
    waits(&mut session);
    session.take(0).drop_now();
    wait_for("the loss to be counted", LIMIT, || aborted(&rig) == [2, 1]);
    other.settle(0);
    other.close(0);
}
