//! `kill -9` at random moments under a workload that knows all promises.

use longhaul_e2e::client::Protocol;
use longhaul_e2e::process::{LIMIT, command, longhaul, run_within};
use longhaul_e2e::setting;
use longhaul_e2e::site::{Host, Site};
use longhaul_e2e::stamp::{History, Shape, Workload, read_all};
use rustix::process::{Pid, Signal, kill_process};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const BLOCKS: usize = 8192;
const MIB: u64 = (BLOCKS as u64 * 4096) >> 20;

/// More of them with `make soak ROUNDS=N`.
fn rounds(default: u64) -> u64 {
    setting("LONGHAUL_E2E_ROUNDS", default)
}

fn seed() -> u64 {
    let seed = setting("LONGHAUL_E2E_SEED", fastrand::u64(..));
    eprintln!("LONGHAUL_E2E_SEED={seed}");
    seed
}

fn kill_later(pid: u32, after: Duration) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        std::thread::sleep(after);
        let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        let _ = kill_process(pid, Signal::KILL);
    })
}

/// Everything there, at the host, at the store, and for another host; and nothing damaged in the
/// directories.
fn nothing_is_missing(mut site: Site, host: &mut Host, history: &History) {
    let mut client = host.client("disk");
    client.flush().unwrap();
    let image = read_all(&mut client, history.bytes()).unwrap();
    history.prefix_of(&image, history.len()).unwrap();
    client.disconnect();
    host.wait_drained("disk", LIMIT);
    assert!(host.stop().success());
    history.prefix_of(&site.export("disk"), history.len()).unwrap();
    let mut other = site.host("fresh");
    other.start();
    let image = read_all(&mut other.client("disk"), history.bytes()).unwrap();
    history.prefix_of(&image, history.len()).unwrap();
    assert!(other.stop().success());
    assert!(site.store.stop().success());
    for dir in [site.store.dir(), host.state(), other.state()] {
        let mut check = command(longhaul());
        check.arg("check").arg(dir);
        if let Some(device) = host.journal_device.as_ref().filter(|_| dir == host.state()) {
            check.arg("--journal").arg(device);
        }
        run_within(check, LIMIT).ok();
    }
}

/// `at_store`: whether a flush promises what the store holds, not what the journal does.
fn host_crashes(protocol: Protocol, flags: &[&str], at_store: bool, rounds: u64) {
    let site = Site::with_volume("disk", MIB).over(protocol);
    let host = site.host("host").with(flags.iter().copied());
    crashes(site, host, at_store, rounds);
}

fn crashes(site: Site, mut host: Host, at_store: bool, rounds: u64) {
    let mut history = History::new(BLOCKS);
    let mut rng = fastrand::Rng::with_seed(seed());
    for round in 0..rounds {
        let stored = (round % 4 == 3).then(|| {
            let least = if at_store { history.flushed() } else { 0 };
            history
                .prefixes_of(&site.export_at_rest("disk"), least)
                .unwrap_or_else(|e| panic!("round {round}, store: {e}"))
        });
        host.start();
        let mut client = host.client("disk");
        let image = read_all(&mut client, history.bytes()).unwrap();
        let count = history
            .prefix_of(&image, history.acknowledged())
            .unwrap_or_else(|error| panic!("round {round}: {error}"));
        if let Some((shortest, _)) = stored {
            assert!(
                shortest <= count,
                "round {round}: the store had {shortest}, the host recovered {count}"
            );
        }
        history.cut(count);
        let killer = kill_later(host.server().pid(), Duration::from_millis(rng.u64(20..1200)));
        let shape = Shape { depth: rng.usize(1..64), flushes: rng.u32(1..40), ..Shape::default() };
        let mut workload = Workload::new(&mut history, &mut client, rng.u64(..), shape);
        let end = workload.run(|_| false).expect_err("it was killed");
        assert!(end.kind() != std::io::ErrorKind::Other, "round {round}: {end}");
        killer.join().unwrap();
        host.kill();
    }
    host.start();
    let mut client = host.client("disk");
    let image = read_all(&mut client, history.bytes()).unwrap();
    let count = history.prefix_of(&image, history.acknowledged()).unwrap();
    history.cut(count);
    client.disconnect();
    nothing_is_missing(site, &mut host, &history);
}

#[test]
fn host_is_killed() {
    host_crashes(Protocol::Nbd, &[], false, rounds(20));
}

/// As where the kernel or a sandbox refuses an io_uring.
#[test]
fn host_without_io_uring_is_killed() {
    let site = Site::with_volume("disk", MIB);
    let host = site.host("host").with(["--no-io-uring"]);
    crashes(site, host, false, rounds(8));
}

/// With a journal on a device of its own.
#[test]
fn host_with_a_journal_device_is_killed() {
    let site = Site::with_volume("disk", MIB);
    let mut host = site.host("host");
    let device = site.path("journal-device");
    std::fs::File::create(&device).unwrap().set_len(200 << 20).unwrap();
    host.journal_device = Some(device);
    crashes(site, host, false, rounds(8));
}

#[test]
fn host_is_killed_over_iscsi() {
    host_crashes(Protocol::Iscsi, &[], false, rounds(12));
}

#[test]
fn host_is_killed_over_tcp_with_durability_store() {
    let flags = ["--transport", "tcp", "--durability", "store"];
    host_crashes(Protocol::Nbd, &flags, true, rounds(8));
}

#[test]
fn host_is_killed_with_durability_store() {
    host_crashes(Protocol::Nbd, &["--durability", "store"], true, rounds(8));
}

#[test]
fn host_is_killed_with_durability_store_over_iscsi() {
    host_crashes(Protocol::Iscsi, &["--durability", "store"], true, rounds(4));
}

#[test]
fn host_is_killed_in_write_through() {
    host_crashes(Protocol::Nbd, &["--write-through"], true, rounds(8));
}

#[test]
fn host_is_killed_in_write_through_over_iscsi() {
    host_crashes(Protocol::Iscsi, &["--write-through"], true, rounds(4));
}

#[test]
fn store_is_killed_and_no_client_notices() {
    store_crashes(Protocol::Nbd, &[], rounds(20));
}

#[test]
fn store_is_killed_and_no_initiator_notices() {
    store_crashes(Protocol::Iscsi, &[], rounds(8));
}

#[test]
fn store_is_killed_over_tcp_and_no_client_notices() {
    store_crashes(Protocol::Nbd, &["--transport", "tcp"], rounds(8));
}

fn store_crashes(protocol: Protocol, flags: &[&str], rounds: u64) {
    let mut site = Site::with_volume("disk", MIB).over(protocol);
    site.store.set_flags(["--threads", "2"]);
    let mut host = site.host("host").with(flags.iter().copied());
    host.start();
    let mut rng = fastrand::Rng::with_seed(seed());
    let mut history = History::new(BLOCKS);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let client = host.client("disk");
        let (done, history, seed) = (&done, &mut history, rng.u64(..));
        let work = scope.spawn(move || {
            let mut client = client;
            // Cold reads wait for the store, so there are few.
            let shape =
                Shape { depth: 64, reads: 5, bytes_per_second: 8 << 20, ..Shape::default() };
            Workload::new(history, &mut client, seed, shape).run(|_| done.load(Ordering::Relaxed))
        });
        let mut crash = || {
            for _ in 0..rounds {
                std::thread::sleep(Duration::from_millis(rng.u64(20..1000)));
                site.store.kill();
                std::thread::sleep(Duration::from_millis(rng.u64(..300)));
                site.store.restart();
                assert!(!work.is_finished(), "the client has seen an error");
            }
        };
        let crashed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(&mut crash));
        done.store(true, Ordering::Relaxed);
        let worked = work.join().expect("reads return what was written");
        worked.expect("no request fails");
        if let Err(panic) = crashed {
            std::panic::resume_unwind(panic);
        }
    });
    nothing_is_missing(site, &mut host, &history);
}

#[test]
fn both_are_killed() {
    both_crash(Protocol::Nbd, &[], rounds(6));
}

#[test]
fn both_are_killed_over_iscsi() {
    both_crash(Protocol::Iscsi, &[], rounds(4));
}

#[test]
fn both_are_killed_over_tcp() {
    both_crash(Protocol::Nbd, &["--transport", "tcp"], rounds(6));
}

fn both_crash(protocol: Protocol, flags: &[&str], rounds: u64) {
    let mut site = Site::with_volume("disk", MIB).over(protocol);
    site.store.set_flags(["--threads", "2"]);
    let mut host = site.host("host").with(flags.iter().copied());
    let mut history = History::new(BLOCKS);
    let seed = seed();
    let mut rng = fastrand::Rng::with_seed(seed);
    for round in 0..rounds {
        host.start();
        let mut client = host.client("disk");
        let image = read_all(&mut client, history.bytes()).unwrap();
        let count = history
            .prefix_of(&image, history.acknowledged())
            .unwrap_or_else(|error| panic!("round {round}: {error}"));
        history.cut(count);
        let after = Duration::from_millis(rng.u64(20..1200));
        let killers =
            [kill_later(host.server().pid(), after), kill_later(site.store.server().pid(), after)];
        // No reads: those that the journal cannot answer would wait for a dead store.
        let shape = Shape { reads: 0, ..Shape::default() };
        let mut workload = Workload::new(&mut history, &mut client, rng.u64(..), shape);
        let end = workload.run(|_| false).expect_err("it was killed");
        assert!(end.kind() != std::io::ErrorKind::Other, "round {round}: {end}");
        killers.into_iter().for_each(|killer| killer.join().unwrap());
        host.kill();
        site.store.restart();
    }
    host.start();
    let mut client = host.client("disk");
    let image = read_all(&mut client, history.bytes()).unwrap();
    let count = history.prefix_of(&image, history.acknowledged()).unwrap();
    history.cut(count);
    client.disconnect();
    nothing_is_missing(site, &mut host, &history);
}
