//! Cut lines and full disks: nothing fails at the host, and all is as before when they end.

use longhaul_e2e::client::Protocol;
use longhaul_e2e::device::small_disk;
use longhaul_e2e::line::Line;
use longhaul_e2e::process::LIMIT;
use longhaul_e2e::site::{Host, Relay, Site, metric};
use longhaul_e2e::stamp::{BLOCK, History, Shape, Workload, read_all};
use longhaul_e2e::{can_use_devices, setting, wait_for};
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A workload in a thread of its own, to do something to its world meanwhile.
pub struct Busy<'a> {
    done: &'a AtomicBool,
    changes: &'a AtomicUsize,
}

impl Busy<'_> {
    /// The number of changes so far.
    pub fn changes(&self) -> usize {
        self.changes.load(Ordering::Relaxed)
    }
}

/// Runs `meanwhile` beside a workload, which must not fail; returns the slowest reply.
pub fn beside(
    host: &Host,
    history: &mut History,
    shape: Shape,
    meanwhile: impl FnOnce(&Busy<'_>),
) -> Duration {
    let (done, changes) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut client = host.client("disk");
    std::thread::scope(|scope| {
        let work = scope.spawn(|| {
            let mut workload = Workload::new(history, &mut client, 5, shape);
            let end = workload.run(|history| {
                changes.store(history.len(), Ordering::Relaxed);
                done.load(Ordering::Relaxed)
            });
            (end, workload.slowest())
        });
        let busy = Busy { done: &done, changes: &changes };
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| meanwhile(&busy)));
        busy.done.store(true, Ordering::Relaxed);
        let (end, slowest) = work.join().expect("reads return what was written");
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
        end.expect("no request fails");
        slowest
    })
}

fn store_has_all(site: &Site, host: &mut Host, history: &History) {
    host.wait_drained("disk", LIMIT);
    assert!(host.stop().success());
    history.prefix_of(&site.export("disk"), history.len()).unwrap();
}

#[test]
fn a_cut_line_is_not_noticed() {
    the_line_is_cut(Protocol::Nbd, 60);
}

#[test]
fn a_cut_line_is_not_noticed_over_iscsi() {
    // Longer than initiators wait for anything but a command.
    the_line_is_cut(Protocol::Iscsi, 40);
}

fn the_line_is_cut(protocol: Protocol, seconds: u64) {
    let cut = Duration::from_secs(setting("LONGHAUL_E2E_CUT_SECONDS", seconds));
    let site = Site::with_volume("disk", 32).over(protocol);
    let relay = Relay::start(&site, []);
    let mut host = site.host("host").with(["--store", &relay.address]);
    host.start();
    let mut history = History::new(8192);
    // The test writes all of the volume first: the host reads the journal's content without the
    // store.
    let mut client = host.client("disk");
    let shape = Shape { max_blocks: 256, ..Shape::default() };
    Workload::new(&mut history, &mut client, 4, shape).fill().unwrap();
    client.disconnect();
    // 32 MiB and a minute of this fit the smallest journal.
    let shape = Shape { depth: 4, bytes_per_second: 500_000, ..Shape::default() };
    let slowest = beside(&host, &mut history, shape, |busy| {
        std::thread::sleep(Duration::from_secs(2));
        relay.cut();
        let start = Instant::now();
        let mut before = busy.changes();
        wait_for("the link to be seen down", Duration::from_secs(30), || {
            host.status()["link"]["up"] == false
        });
        while start.elapsed() < cut {
            std::thread::sleep(Duration::from_secs(5).min(cut));
            let now = busy.changes();
            assert!(now > before, "writes stand still while the line is cut");
            before = now;
        }
        assert!(host.lag_bytes("disk") > 0);
        let lag = host.volume_status("disk")["lag_seconds"].as_f64().unwrap();
        assert!(lag >= cut.as_secs_f64() - 5.0, "the lag is {lag} s after a cut of {cut:?}");
        relay.restore();
        wait_for("the lag to end", LIMIT, || {
            host.volume_status("disk")["lag_seconds"].as_f64().unwrap() < 3.0
        });
    });
    assert!(slowest < cut / 2, "a request took {slowest:?}");
    store_has_all(&site, &mut host, &history);
}

fn transport_is(host: &Host, transport: &str) -> bool {
    let link = &host.status()["link"];
    link["up"] == true && link["transport"] == transport
}

#[test]
fn a_severed_line_is_not_noticed_over_tcp() {
    let site = Site::with_volume("disk", 32);
    let line = Line::start(&site.store.address);
    let address = line.address();
    let mut host = site.host("host").with(["--transport", "tcp", "--store", &address]);
    host.start();
    let mut history = History::new(8192);
    // The host reads the journal's content without the store.
    let mut client = host.client("disk");
    let shape = Shape { max_blocks: 256, ..Shape::default() };
    Workload::new(&mut history, &mut client, 4, shape).fill().unwrap();
    client.disconnect();
    assert!(transport_is(&host, "tcp"));
    let shape = Shape { depth: 4, bytes_per_second: 2_000_000, ..Shape::default() };
    let slowest = beside(&host, &mut history, shape, |busy| {
        let mut rng = fastrand::Rng::with_seed(8);
        for round in 0..6 {
            std::thread::sleep(Duration::from_millis(rng.u64(100..1500)));
            // Silence that ends by itself loses no connection.
            if round % 3 == 2 {
                line.cut()
            } else {
                line.sever()
            }
            let before = busy.changes();
            std::thread::sleep(Duration::from_millis(rng.u64(500..3000)));
            assert!(busy.changes() > before, "writes stand still while the line is severed");
            line.restore();
        }
        line.sever();
        wait_for("the link to be seen down", LIMIT, || host.status()["link"]["up"] == false);
        std::thread::sleep(Duration::from_secs(8));
        assert!(host.lag_bytes("disk") > 0);
        line.restore();
        wait_for("the lag to end", LIMIT, || {
            host.volume_status("disk")["lag_seconds"].as_f64().unwrap() < 3.0
        });
    });
    assert!(slowest < Duration::from_secs(8), "a request took {slowest:?}");
    assert!(host.status()["link"]["reconnects"].as_u64() >= Some(2));
    store_has_all(&site, &mut host, &history);
}

#[test]
fn where_udp_is_blocked_tcp_carries_everything_until_it_is_not() {
    let site = Site::with_volume("disk", 32);
    let relay = Relay::start(&site, []);
    relay.cut();
    let line = Line::at(&relay.address, &site.store.address);
    let mut host = site.host("host").with(["--store", &relay.address]);
    host.start();
    let mut history = History::new(8192);
    let shape = Shape { depth: 4, bytes_per_second: 2_000_000, ..Shape::default() };
    beside(&host, &mut history, shape, |busy| {
        let goes_on = |over: &str| {
            wait_for(&format!("the link over {over}"), LIMIT, || transport_is(&host, over));
            let before = busy.changes();
            wait_for("writes to go on", LIMIT, || busy.changes() > before + 100);
        };
        goes_on("tcp");
        assert!(line.bytes() > 0);
        relay.restore();
        goes_on("quic");
        relay.cut();
        goes_on("tcp");
    });
    store_has_all(&site, &mut host, &history);
}

#[test]
fn many_short_cuts() {
    the_line_is_cut_often(Protocol::Nbd);
}

#[test]
fn many_short_cuts_over_iscsi() {
    the_line_is_cut_often(Protocol::Iscsi);
}

fn the_line_is_cut_often(protocol: Protocol) {
    let site = Site::with_volume("disk", 32).over(protocol);
    let relay = Relay::start(&site, ["--delay", "2ms", "--loss", "0.5%"]);
    let mut host = site.host("host").with(["--store", &relay.address]);
    host.start();
    let mut history = History::new(8192);
    let shape = Shape { bytes_per_second: 4 << 20, depth: 32, ..Shape::default() };
    beside(&host, &mut history, shape, |_| {
        let mut rng = fastrand::Rng::with_seed(6);
        for _ in 0..8 {
            std::thread::sleep(Duration::from_millis(rng.u64(100..1500)));
            relay.cut();
            std::thread::sleep(Duration::from_millis(rng.u64(100..3000)));
            relay.restore();
        }
    });
    store_has_all(&site, &mut host, &history);
}

#[test]
fn a_full_journal_makes_writes_wait() {
    the_journal_fills(Protocol::Nbd);
}

#[test]
fn a_full_journal_makes_writes_wait_over_iscsi() {
    the_journal_fills(Protocol::Iscsi);
}

fn the_journal_fills(protocol: Protocol) {
    let site = Site::with_volume("disk", 32).over(protocol);
    let relay = Relay::start(&site, []);
    let mut host = site.host("host").with(["--store", &relay.address]);
    host.start();
    let mut history = History::new(8192);
    let shape = Shape {
        reads: 0,
        zeroes: 0,
        max_blocks: 64,
        bytes_per_second: 1 << 30,
        ..Shape::default()
    };
    beside(&host, &mut history, shape, |busy| {
        relay.cut();
        let mut seen = (busy.changes(), Instant::now());
        wait_for("writes to wait for room in the journal", LIMIT, || {
            if busy.changes() != seen.0 {
                seen = (busy.changes(), Instant::now());
            }
            let status = host.volume_status("disk");
            let (used, capacity) = (&status["journal_bytes"], &status["journal_capacity_bytes"]);
            let (used, capacity) = (used.as_f64().unwrap(), capacity.as_f64().unwrap());
            assert!(used <= capacity, "{status}");
            used > 0.7 * capacity
                && status["waiting_writes"].as_u64() > Some(0)
                && seen.1.elapsed() > Duration::from_secs(5)
        });
        assert!(host.server_is_alive(), "the host has died");
        relay.restore();
        let before = busy.changes();
        wait_for("writes to go on", LIMIT, || busy.changes() > before + 100);
    });
    store_has_all(&site, &mut host, &history);
}

#[test]
fn reads_of_what_the_journal_has_go_on_without_the_store() {
    the_store_is_away(Protocol::Nbd);
}

#[test]
fn reads_of_what_the_journal_has_go_on_without_the_store_over_iscsi() {
    the_store_is_away(Protocol::Iscsi);
}

fn the_store_is_away(protocol: Protocol) {
    let mut site = Site::with_volume("disk", 32).over(protocol);
    let mut host = site.host("host");
    host.start();
    let mut client = host.client("disk");
    let data = vec![7; 1 << 20];
    for at in 0..16u64 {
        client.write(at << 20, &data).unwrap();
    }
    client.flush().unwrap();
    host.wait_drained("disk", LIMIT);
    site.store.kill();
    // The store is not there to answer: a read that needed it would not come back.
    for at in 0..16u64 {
        assert!(client.read(at << 20, 1 << 20).unwrap() == data);
    }
    // Reads that only the store can answer wait until it is back, and are right then.
    let cold = std::thread::spawn(move || client.read(20 << 20, 4096).map(|data| (client, data)));
    std::thread::sleep(Duration::from_secs(2));
    assert!(!cold.is_finished(), "a cold read was answered without the store");
    site.store.restart();
    let (client, data) = cold.join().unwrap().unwrap();
    assert_eq!(data, [0; 4096]);
    client.disconnect();
}

/// Over iSCSI the first login attaches a volume. The host refuses that login in such a way that
/// initiators come again.
#[test]
fn no_room_for_the_journal_refuses_logins_until_there_is() {
    if !can_use_devices("no_room_for_the_journal_refuses_logins_until_there_is") {
        return;
    }
    let site = Site::with_volume("disk", 32).over(Protocol::Iscsi);
    let small = small_disk(&site.path("small"), 64);
    let mut host = site.host("host");
    host.set_state(&small.path().join("state"));
    host.start();
    assert!(host.client_or_refused("disk").is_none(), "there is no room for its journal");
    wait_for("the host to say so", LIMIT, || host.server().log().contains("make room"));
    assert_eq!(metric(&host.admin, "longhaul_iscsi_logins_total") as u64, 0);
    assert!(metric(&host.admin, "longhaul_iscsi_logins_refused_total") > 0.0);
    let at = small.path().to_str().unwrap();
    longhaul_e2e::process::run("mount", ["-o", "remount,size=256m", at]).ok();
    let mut client = host.client("disk");
    client.write(0, &[1; BLOCK]).unwrap();
    client.disconnect();
    assert!(host.stop().success());
    assert_eq!(site.export("disk")[..BLOCK], [1; BLOCK]);
    small.unmount();
}

#[test]
fn no_room_for_the_journal_is_said_before_anything_is_attached() {
    if !can_use_devices("no_room_for_the_journal_is_said_before_anything_is_attached") {
        return;
    }
    let site = Site::with_volume("disk", 32);
    let small = small_disk(&site.path("small"), 64);
    let mut host = site.host("host").with(["--volume", "disk"]);
    host.set_state(&small.path().join("state"));
    host.launch();
    wait_for("the host to say so", LIMIT, || host.server().log().contains("make room"));
    let log = host.server().log();
    assert!(log.contains("small/state"), "the place is not named:\n{log}");
    let show = site.volume(["show", "disk", "--json"]).ok().json();
    assert_eq!(show["live"]["epoch"].as_u64().unwrap_or(0), 0, "an epoch has begun: {show}");
    host.kill();
    small.unmount();
}

#[test]
fn a_full_disk_at_the_host_stops_nothing() {
    if can_use_devices("a_full_disk_at_the_host_stops_nothing") {
        the_host_has_no_room(Protocol::Nbd);
    }
}

#[test]
fn a_full_disk_at_the_host_stops_nothing_over_iscsi() {
    if can_use_devices("a_full_disk_at_the_host_stops_nothing_over_iscsi") {
        the_host_has_no_room(Protocol::Iscsi);
    }
}

fn the_host_has_no_room(protocol: Protocol) {
    let site = Site::with_volume("disk", 32).over(protocol);
    let small = small_disk(&site.path("small"), 192);
    let relay = Relay::start(&site, []);
    let mut host = site.host("host").with(["--store", &relay.address]);
    host.set_state(&small.path().join("state"));
    host.start();
    let mut client = host.client("disk");
    client.write(0, &[1; BLOCK]).unwrap();
    client.flush().unwrap();
    host.wait_drained("disk", LIMIT);
    // The journal has its space; whatever else fills the disk takes nothing from it.
    fill_up(&small.path().join("junk"));
    relay.cut();
    let mut history = History::new(8192);
    let shape = Shape { max_blocks: 256, ..Shape::default() };
    let mut workload = Workload::new(&mut history, &mut client, 3, shape);
    workload.fill().unwrap();
    client.flush().unwrap();
    host.kill();
    relay.restore();
    // A restart needs no room either.
    host.start();
    let image = read_all(&mut host.client("disk"), history.bytes()).unwrap();
    history.prefix_of(&image, history.len()).unwrap();
    assert!(!host.volume_status("disk")["journal_failed"].as_bool().unwrap());
    store_has_all(&site, &mut host, &history);
    small.unmount();
}

/// Writes a file until the disk is full.
fn fill_up(path: &Path) {
    let mut file = std::fs::File::create(path).unwrap();
    let full = loop {
        if let Err(error) = file.write_all(&[0x55; 4096]) {
            break error;
        }
    };
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull, "{full}");
}

#[test]
fn a_full_disk_at_the_store_is_waited_out() {
    if can_use_devices("a_full_disk_at_the_store_is_waited_out") {
        the_store_has_no_room(Protocol::Nbd);
    }
}

#[test]
fn a_full_disk_at_the_store_is_waited_out_over_iscsi() {
    if can_use_devices("a_full_disk_at_the_store_is_waited_out_over_iscsi") {
        the_store_has_no_room(Protocol::Iscsi);
    }
}

fn the_store_has_no_room(protocol: Protocol) {
    let mut site = Site::new().over(protocol);
    let disk = small_disk(&site.path("small"), 48);
    site.store.stop();
    let data = disk.path().join("data");
    site.store = longhaul_e2e::site::Store::start(&data);
    site.create("disk", 32);
    let mut host = site.host("host");
    host.start();
    let mut history = History::new(8192);
    let mut client = host.client("disk");
    let shape = Shape { reads: 0, zeroes: 0, bytes_per_second: 1 << 30, ..Shape::default() };
    let mut workload = Workload::new(&mut history, &mut client, 3, shape);
    // 80 MiB: more than the store has room for, less than the journal has.
    workload.run(|history| history.len() >= 80 * 256 / 8).unwrap();
    client.flush().unwrap();
    wait_for("the store to run out of room", LIMIT, || {
        metric(&site.store.admin, "longhaul_store_object_failures_total") > 0.0
    });
    assert!(host.lag_bytes("disk") > 20 << 20, "the store cannot have taken all of it");
    client.write(0, &[0; 4096]).unwrap();
    client.disconnect();
    let at = disk.path().to_str().unwrap();
    longhaul_e2e::process::run("mount", ["-o", "remount,size=512m", at]).ok();
    host.wait_drained("disk", LIMIT);
    let mut client = host.client("disk");
    let image = read_all(&mut client, history.bytes()).unwrap();
    client.disconnect();
    assert!(host.stop().success());
    assert!(site.export("disk") == image, "the store has something else than the host");
    let mut restored = image;
    restored[..4096].copy_from_slice(&history.expected(0));
    history.prefix_of(&restored, history.len()).unwrap();
    site.store.stop();
    disk.unmount();
}
