//! Hosts that die or lose their power between a write and the flush after it, under an initiator
//! that logs in again. The initiator does not learn of the crash, so its flush vouches for all
//! earlier answers.

use longhaul_e2e::client::Protocol;
use longhaul_e2e::power::Disk;
use longhaul_e2e::process::LIMIT;
use longhaul_e2e::site::Site;
use longhaul_e2e::stamp::{History, Shape, Workload, read_all};
use longhaul_e2e::{can_use_devices, setting};
use rustix::process::{Pid, Signal, kill_process};
use std::time::Duration;

const BLOCKS: usize = 2048;
const MIB: u64 = (BLOCKS as u64 * 4096) >> 20;

/// The loss in each round, besides the host itself.
enum Loss {
    /// Nothing else.
    None,
    /// The power of the disk with its state directory.
    Machine,
    /// The power of its journal device.
    JournalDevice,
}

/// Crashes a host again and again, and returns the number of lost acknowledged changes. With a
/// write cache these are the last ones of those that no flush has confirmed; without one, there
/// must be none.
fn crashes(loss: &Loss, write_cache: bool, rounds: u64) -> usize {
    let seed = setting("LONGHAUL_E2E_SEED", fastrand::u64(..));
    eprintln!("LONGHAUL_E2E_SEED={seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let site = Site::with_volume("disk", MIB).over(Protocol::Iscsi);
    let mut host = site.host("host");
    host.journal_size = "64MiB".into();
    let dir = site.path("machine");
    let mut disk = match loss {
        Loss::None => None,
        Loss::Machine => {
            let disk = Disk::new(&dir, 160);
            host.set_state(&disk.path().join("state"));
            Some(disk)
        }
        Loss::JournalDevice => {
            let disk = Disk::raw(&dir, 80);
            host.journal_device = Some(disk.device());
            Some(disk)
        }
    };
    let mut history = History::new(BLOCKS);
    let mut lost = 0;
    for round in 0..=setting("LONGHAUL_E2E_ROUNDS", rounds) {
        if let Some(disk) = &mut disk {
            disk.start();
        }
        host.start();
        let mut client = host.client("disk");
        client.flush().unwrap();
        let image = read_all(&mut client, history.bytes()).unwrap();
        let least = if write_cache { history.flushed() } else { history.acknowledged() };
        let count = history
            .prefix_of(&image, least)
            .unwrap_or_else(|error| panic!("round {round}: {error}"));
        lost += history.acknowledged().saturating_sub(count);
        history.cut(count);
        if write_cache {
            client.set_write_cache(true).unwrap();
        }
        let shape = Shape { depth: rng.usize(1..48), flushes: 5, reads: 20, ..Shape::default() };
        let mut workload = Workload::new(&mut history, &mut client, rng.u64(..), shape);
        if rng.bool() {
            // With all of it acknowledged.
            let changes = workload.changes() + rng.usize(1..150);
            let end = workload.run(|history| history.len() >= changes);
            let ended = host.server().ended();
            end.unwrap_or_else(|error| panic!("round {round}: {error}; the host: {ended:?}"));
        } else {
            // In the middle of it.
            let pid = Pid::from_raw(i32::try_from(host.server().pid()).unwrap()).unwrap();
            let after = Duration::from_millis(rng.u64(1..150));
            let killer = std::thread::spawn(move || {
                std::thread::sleep(after);
                let _ = kill_process(pid, Signal::KILL);
            });
            let end = workload.run(|_| false).expect_err("it was killed");
            assert!(end.kind() != std::io::ErrorKind::Other, "round {round}: {end}");
            killer.join().unwrap();
        }
        host.kill();
        if let Some(disk) = &mut disk {
            disk.cut();
        }
    }
    if let Some(disk) = &mut disk {
        disk.start();
    }
    host.start();
    let mut client = host.client("disk");
    client.flush().unwrap();
    let image = read_all(&mut client, history.bytes()).unwrap();
    let least = if write_cache { history.flushed() } else { history.acknowledged() };
    let count = history.prefix_of(&image, least).unwrap();
    history.cut(count);
    client.disconnect();
    host.wait_drained("disk", LIMIT);
    assert!(host.stop().success());
    history.prefix_of(&site.export("disk"), count).unwrap();
    lost
}

#[test]
fn what_was_acknowledged_is_there_after_a_kill_and_a_new_login() {
    assert_eq!(crashes(&Loss::None, false, 20), 0);
}

#[test]
fn what_was_acknowledged_is_there_after_a_power_cut_and_a_new_login() {
    if can_use_devices("what_was_acknowledged_is_there_after_a_power_cut_and_a_new_login") {
        assert_eq!(crashes(&Loss::Machine, false, 10), 0);
    }
}

#[test]
fn what_was_acknowledged_is_there_after_a_power_cut_of_the_journal_device() {
    if can_use_devices("what_was_acknowledged_is_there_after_a_power_cut_of_the_journal_device") {
        assert_eq!(crashes(&Loss::JournalDevice, false, 6), 0);
    }
}

/// The same with a write cache, which an initiator has to ask for. This counterpart shows that the
/// power cuts above take unflushed data away.
#[test]
fn what_was_in_the_write_cache_is_lost_from_its_end_in_a_power_cut() {
    if can_use_devices("what_was_in_the_write_cache_is_lost_from_its_end_in_a_power_cut") {
        assert_ne!(crashes(&Loss::Machine, true, 8), 0, "nothing was lost: no power was cut");
    }
}
