//! The parts of the end-to-end tests. They are the real binary and real clients as child processes,
//! and a client of our own that knows all acknowledged and flushed writes.
//!
//! - [`process`]: commands with a time limit, servers that end with the test.
//! - [`site`]: a store, hosts and relays with their directories and ports.
//! - [`bucket`]: a server of the S3 API, and a store over it.
//! - [`minio`]: a cluster of three that speaks it, too.
//! - [`garage`]: a server of it that must be refused.
//! - [`ceph`]: a cluster of Ceph with two gateways for it.
//! - [`faults`]: an HTTP proxy in front of it that does what networks and clouds do.
//! - [`client`]: a client of a volume, whichever protocol it speaks.
//! - [`nbd`]: a minimal NBD client.
//! - [`scsi`]: an iSCSI client with many commands in flight.
//! - [`stamp`]: a workload whose every block says which write it is from, and its checker.
//! - [`line`]: a TCP line with a cut.
//! - [`power`]: a disk with a power switch.
//! - [`guest`]: a Linux in an emulated machine.
//! - [`iscsi`]: libiscsi's programs and its conformance suite.
//! - [`device`]: a volume as a block device and a mounted file system.
//! - [`initiator`]: an iSCSI initiator that can misbehave.
//!
//! Everything here panics with a message when something is not as it should be: the caller is a
//! test, and the message is its failure. Every wait has a limit.

// A test's harness: a panic is how it reports.
#![allow(clippy::unwrap_used, clippy::expect_used)]

pub mod bucket;
pub mod ceph;
pub mod client;
pub mod device;
pub mod faults;
pub mod garage;
pub mod guest;
pub mod initiator;
pub mod iscsi;
pub mod line;
pub mod minio;
pub mod nbd;
pub mod power;
pub mod process;
pub mod scsi;
pub mod site;
pub mod stamp;

use std::io::Write;
use std::sync::Once;
use std::time::{Duration, Instant};

/// Content that names its place. Both numbers are of bytes, and multiples of 8.
#[must_use]
pub fn content(offset: u64, bytes: u64) -> Vec<u8> {
    let mut content = vec![0; bytes as usize];
    for (word, place) in (offset / 8..).zip(content.chunks_exact_mut(8)) {
        place.copy_from_slice(&(word * 0x9e37_79b9 + 1).to_le_bytes());
    }
    content
}

/// From now on says why a test fails at the moment it does. The test runner shows it at the end of
/// a run of many minutes. A reader who watches, or has a cut log, never sees that.
pub fn say_failures_at_once() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let thread = std::thread::current();
            let name = thread.name().unwrap_or("a thread of a test");
            // Unlike `eprintln!`, not kept back with what the test says.
            let _ = writeln!(std::io::stderr(), "{name}: {panic}");
            usual(panic);
        }));
    });
}

/// Polls until `ready`, at most `limit`; panics naming `what` otherwise.
pub fn wait_for(what: &str, limit: Duration, mut ready: impl FnMut() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(start.elapsed() < limit, "waited {limit:?} in vain for: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether the test can go on where it needs root, loop devices and FUSE. Without them it fails in
/// CI (`CI=true`), and elsewhere says loudly that it did not run.
#[must_use]
pub fn can_use_devices(test: &str) -> bool {
    let missing = if !rustix::process::geteuid().is_root() {
        "root"
    } else if !std::path::Path::new("/dev/fuse").exists() {
        "/dev/fuse"
    } else if !std::path::Path::new("/dev/loop-control").exists() {
        "/dev/loop-control"
    } else {
        return true;
    };
    assert!(!in_ci(), "{test} needs {missing}, and in CI (CI=true) no test may be left out");
    eprintln!("SKIPPED {test}: it needs {missing}. Run `make test` as root to run it.");
    false
}

/// Whether `CI=true`.
#[must_use]
pub fn in_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true" || value == "1")
}

/// A number from the environment, or what it is otherwise.
#[must_use]
pub fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")),
        Err(_) => default,
    }
}
