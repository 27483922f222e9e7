//! Several stores over one data location: one dies, sends its hosts away, passes requests on.

use crate::outages::beside;
use longhaul_e2e::bucket::{self, can_use_buckets};
use longhaul_e2e::process::{LIMIT, Output, command, longhaul, run, run_within};
use longhaul_e2e::site::{Host, Site, Store, http_get, metric};
use longhaul_e2e::stamp::{History, Shape, Workload};
use longhaul_e2e::wait_for;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// Within this another store serves what a killed one did.
// On an idle machine it takes 2 to 5 s; without a failover it would take for ever.
const FAILOVER: Duration = Duration::from_secs(40);

fn store_command<'a>(args: impl IntoIterator<Item = &'a str>) -> Output {
    let mut store = command(longhaul());
    store.arg("store").args(args);
    run_within(store, LIMIT)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are text")
}

/// Another store over the data of the first, with a state directory of its own; not started.
pub fn invited(site: &Site, name: &str) -> Store {
    let dir = site.path(name);
    site.store.invite(&dir);
    let mut store = Store::stopped(&dir);
    store.set_data(text(site.store.dir()));
    store
}

fn another(site: &Site, name: &str) -> Store {
    let mut store = invited(site, name);
    store.restart();
    store
}

/// Runs `longhaul volume …` at a store.
pub fn volume_at<'a>(
    credential: &Path,
    store: &Store,
    args: impl IntoIterator<Item = &'a str>,
) -> Output {
    let mut volume = command(longhaul());
    volume.arg("volume").arg("--credential").arg(credential);
    volume.args(["--store", &store.address]).args(args);
    run_within(volume, LIMIT)
}

/// `longhaul store list --json` at a store.
fn list(credential: &Path, store: &Store) -> Vec<Value> {
    let args = ["list", "--json", "--credential", text(credential), "--store", &store.address];
    let list = store_command(args).ok().json();
    list["stores"].as_array().expect("a list of stores").clone()
}

pub fn peer(host: &Host) -> String {
    host.status()["link"]["peer"].as_str().unwrap_or_default().to_owned()
}

pub fn knows(host: &Host, stores: &[&Store]) {
    wait_for("the host to know all stores", LIMIT, || {
        // It listens for clients a moment before.
        if http_get(&host.admin, "/healthz").is_none() {
            return false;
        }
        let status = host.status();
        let known = status["link"]["stores"].as_array().cloned().unwrap_or_default();
        stores.iter().all(|store| known.iter().any(|address| address == store.address.as_str()))
    });
}

/// All is there, as the remaining store says.
pub fn has_all(site: &Site, store: &Store, host: &mut Host, volume: &str, history: &History) {
    host.wait_drained(volume, LIMIT);
    assert!(host.stop().success());
    let file = site.path(&format!("export-{volume}"));
    volume_at(&site.store.credential(), store, ["export", volume, text(&file), "--force"]).ok();
    history.prefix_of(&std::fs::read(file).unwrap(), history.len()).unwrap();
}

/// A host whose every request waits for the store, and one with a journal: the store of both dies.
fn is_killed(mut site: Site, others: &mut [Store]) {
    site.create("disk", 32);
    site.create("sync", 8);
    let mut host = site.host("host").with(["--volume", "disk"]);
    let mut through = site.host("through").with(["--volume", "sync", "--write-through"]);
    host.start();
    through.start();
    for host in [&host, &through] {
        knows(host, &others.iter().collect::<Vec<_>>());
    }
    let before = peer(&host);
    assert_eq!((&before, &peer(&through)), (&site.store.address, &site.store.address));
    let (mut written, mut synced) = (History::new(8192), History::new(2048));
    let shape = Shape { depth: 4, bytes_per_second: 4_000_000, ..Shape::default() };
    let calm = Shape { depth: 2, max_blocks: 4, bytes_per_second: 400_000, ..Shape::default() };
    let mut served = Duration::ZERO;
    let mut synced_slowest = Duration::ZERO;
    let slowest = std::thread::scope(|scope| {
        let (host, through, synced) = (&host, &through, &mut synced);
        let (done, finished) = std::sync::mpsc::channel::<()>();
        let other = scope.spawn(move || {
            let mut client = through.client("sync");
            let mut workload = Workload::new(synced, &mut client, 6, calm);
            let end = workload.run(|_| finished.try_recv().is_ok());
            (end, workload.slowest())
        });
        let slowest = beside(host, &mut written, shape, |busy| {
            std::thread::sleep(Duration::from_secs(2));
            let changes = busy.changes();
            let start = Instant::now();
            site.store.kill();
            wait_for("another store to serve the volume", LIMIT, || {
                others
                    .iter()
                    .any(|store| metric(&store.admin, "longhaul_store_failovers_total") >= 1.0)
                    && host.volume_status("disk")["lag_seconds"].as_f64().unwrap() < 0.5
                    && host.status()["link"]["up"] == true
            });
            served = start.elapsed();
            std::thread::sleep(Duration::from_secs(1));
            assert!(busy.changes() > changes, "writes stand still");
        });
        let _ = done.send(());
        let (end, longest) = other.join().expect("reads return what was written");
        end.expect("no request fails");
        synced_slowest = longest;
        slowest
    });
    println!(
        "another store served after {:.2} s; slowest reply with a journal {:.3} s, without {:.2} s",
        served.as_secs_f64(),
        slowest.as_secs_f64(),
        synced_slowest.as_secs_f64()
    );
    assert!(
        synced_slowest < FAILOVER,
        "a request that waits for the store took {synced_slowest:?}"
    );
    assert!(served < FAILOVER, "it took {served:?}");
    let address = peer(&host);
    let store = others.iter().find(|store| store.address == address).expect("one of the others");
    has_all(&site, store, &mut host, "disk", &written);
    has_all(&site, store, &mut through, "sync", &synced);
}

#[test]
fn a_killed_store_is_stood_in_for() {
    let site = Site::new();
    let mut others = [another(&site, "second"), another(&site, "third")];
    is_killed(site, &mut others);
}

#[test]
fn a_killed_store_is_stood_in_for_over_a_bucket() {
    if !can_use_buckets("a_killed_store_is_stood_in_for_over_a_bucket") {
        return;
    }
    let (site, gateway, _faults) = bucket::site();
    let dir = site.path("second");
    site.store.invite(&dir);
    let mut other = bucket::store(&dir, "lab/one", &gateway.address());
    other.restart();
    is_killed(site, &mut [other]);
}

#[test]
fn a_host_finds_the_others_after_its_own_restart() {
    let mut site = Site::with_volume("disk", 8);
    let mut host = site.host("host").with(["--volume", "disk"]);
    host.start();
    let mut client = host.client("disk");
    client.write(0, &[7; 4096]).unwrap();
    client.flush().unwrap();
    client.disconnect();
    // It comes later, and the credential does not name it.
    let other = another(&site, "second");
    knows(&host, &[&other]);
    host.kill();
    site.store.kill();
    host.start();
    let mut client = host.client("disk");
    assert_eq!(client.read(0, 4096).unwrap(), [7; 4096]);
    assert_eq!(peer(&host), other.address);
    // And its own again, with later writes.
    client.write(4096, &[8; 4096]).unwrap();
    host.wait_drained("disk", LIMIT);
    drop(other);
    site.store.restart();
    let moved = Instant::now();
    wait_for("the first store to serve again", LIMIT, || peer(&host) == site.store.address);
    println!("back at the first store after {:.2} s", moved.elapsed().as_secs_f64());
    client.write(8192, &[9; 4096]).unwrap();
    host.wait_drained("disk", LIMIT);
    assert_eq!(&site.export("disk")[4096..12_288], [[8; 4096], [9; 4096]].concat());
}

#[test]
fn a_store_is_drained_and_nothing_is_noticed() {
    let mut site = Site::with_volume("disk", 32);
    let other = another(&site, "second");
    let mut host = site.host("host").with(["--volume", "disk"]);
    host.start();
    knows(&host, &[&other]);
    let mut history = History::new(8192);
    let credential = site.store.credential();
    let id = |at: &str| {
        let stores = list(&credential, &other);
        let found = stores.iter().find(|store| store["addresses"][0] == at);
        found.expect("it is listed")["id"].as_str().unwrap().to_owned()
    };
    let (first, second) = (id(&site.store.address), id(&other.address));
    let evacuate = |id: &str, more: &[&str]| {
        let args = ["evacuate", id, "--credential", text(&credential)];
        store_command(args.into_iter().chain(more.iter().copied()))
    };
    let shape = Shape { depth: 4, bytes_per_second: 4_000_000, ..Shape::default() };
    let slowest = beside(&host, &mut history, shape, |_| {
        for round in 0..2 {
            std::thread::sleep(Duration::from_secs(1));
            evacuate(&first, &[]).ok();
            assert_eq!(peer(&host), other.address, "round {round}");
            let stores = list(&credential, &site.store);
            let of = |id: &str| stores.iter().find(|store| store["id"] == id).unwrap();
            assert_eq!(
                (&of(&first)["state"], &of(&first)["hosts"]),
                (&"evacuating".into(), &0.into())
            );
            assert_eq!(
                (&of(&second)["state"], &of(&second)["volumes"]),
                (&"serving".into(), &1.into())
            );
            evacuate(&first, &["--off"]).ok();
            std::thread::sleep(Duration::from_secs(1));
            evacuate(&second, &[]).ok();
            assert_eq!(peer(&host), site.store.address, "round {round}");
            evacuate(&second, &["--off"]).ok();
        }
    });
    println!("slowest reply over four moves: {:.3} s", slowest.as_secs_f64());
    // Far less than any time-out.
    assert!(slowest < Duration::from_secs(20), "a request took {slowest:?}");
    let moves = metric(&site.store.admin, "longhaul_store_handed_over_total");
    assert!(moves >= 2.0, "the volume was let go {moves} times");
    evacuate(&first, &[]).ok();
    assert!(site.store.stop().success());
    has_all(&site, &other, &mut host, "disk", &history);
}

#[test]
fn a_store_that_nobody_can_stand_in_for_is_not_left() {
    let site = Site::with_volume("disk", 8);
    let mut other = another(&site, "second");
    let mut host = site.host("host").with(["--volume", "disk"]);
    host.start();
    knows(&host, &[&other]);
    let credential = site.store.credential();
    let mut client = host.client("disk");
    other.kill();
    let args = ["evacuate", "--credential", text(&credential), "--limit", "3s"];
    store_command(args).fails(1, &["1 hosts are still at store"]);
    client.write(0, &[1; 4096]).unwrap();
    host.wait_drained("disk", LIMIT);
    other.restart();
    wait_for("the host to leave", LIMIT, || peer(&host) == other.address);
}

#[test]
fn commands_reach_the_store_that_has_the_volume() {
    let mut site = Site::with_volume("disk", 8);
    let other = another(&site, "second");
    let mut host = site.host("host").with(["--volume", "disk"]);
    host.start();
    let mut client = host.client("disk");
    client.write(0, &[3; 4096]).unwrap();
    client.flush().unwrap();
    host.wait_drained("disk", LIMIT);
    let credential = site.store.credential();
    let at_other = |args: &[&str]| volume_at(&credential, &other, args.iter().copied());
    for args in [&["show", "disk", "--json"][..], &["list", "--json"]] {
        let said = at_other(args).ok().json();
        let volume = if args[0] == "list" { &said["volumes"][0] } else { &said };
        assert_eq!(volume["live"]["connected"], true, "{args:?}: {volume}");
    }
    at_other(&["delete", "disk"]).fails(1, &["has the volume attached"]);
    at_other(&["accept-loss", "disk"]).fails(1, &["has the volume attached"]);
    at_other(&["resize", "disk", "16MiB"]).ok();
    wait_for("the host to have the new size", LIMIT, || {
        host.volume_status("disk")["size_bytes"] == 16 << 20
    });
    let file = site.path("export");
    at_other(&["export", "disk", text(&file)]).ok();
    assert_eq!(&std::fs::read(&file).unwrap()[..4096], [3; 4096]);
    assert!(metric(&other.admin, "longhaul_store_forwarded_total") >= 5.0);
    // Created at one, used and deleted at the other, and created again.
    at_other(&["create", "more", "--size", "8MiB"]).ok();
    let mut late = site.host("late").with(["--volume", "more", "--store", &site.store.address]);
    late.start();
    late.client("more").write(0, &[4; 4096]).unwrap();
    assert!(late.stop().success());
    at_other(&["delete", "more"]).ok();
    site.volume(["show", "more"]).fails(1, &["no such volume"]);
    site.create("more", 8);
    at_other(&["export", "more", text(&file), "--force"]).ok();
    assert!(std::fs::read(&file).unwrap().iter().all(|byte| *byte == 0));
    // Another store does a dead store's work.
    drop(client);
    host.kill();
    site.store.kill();
    at_other(&["delete", "disk"]).fails(1, &["not connected"]);
    // The host may be on its way to the other store for some seconds.
    wait_for("the loss to be accepted", LIMIT, || {
        at_other(&["accept-loss", "disk"]).status.success()
    });
    at_other(&["delete", "disk"]).ok();
    assert_eq!(at_other(&["list", "--json"]).ok().json()["volumes"].as_array().unwrap().len(), 1);
}

#[test]
fn a_store_that_is_gone_for_good_is_forgotten() {
    let site = Site::with_volume("disk", 8);
    let mut others = [another(&site, "second"), another(&site, "third")];
    let credential = site.store.credential();
    let ids = || -> Vec<(String, bool)> {
        let all = list(&credential, &site.store);
        let said = |store: &Value| store["state"] != "no-answer";
        all.iter().map(|s| (s["id"].as_str().unwrap().to_owned(), said(s))).collect()
    };
    let forget = |id: &str| {
        store_command([
            "forget",
            id,
            "--credential",
            text(&credential),
            "--store",
            &site.store.address,
        ])
    };
    wait_for("all stores", LIMIT, || ids().len() == 3);
    for (id, _) in ids() {
        let refused = forget(&id);
        assert!(!refused.status.success(), "{}", refused.stderr);
        let why = &refused.stderr;
        assert!(why.contains("stop it"), "{why}");
    }
    forget("nothing").fails(2, &["no store"]);
    others[1].kill();
    let dead = || ids().into_iter().find(|(_, answers)| !answers);
    wait_for("one to be missed", LIMIT, || dead().is_some());
    let (dead, _) = dead().unwrap();
    forget(&dead[..8]).ok();
    wait_for("it to be forgotten", LIMIT, || ids().iter().all(|(id, _)| *id != dead));
    assert_eq!(ids().len(), 2);
    others[1].restart();
    wait_for("it to be back", LIMIT, || ids().contains(&(dead.clone(), true)));
}

#[test]
fn another_host_gets_the_volume_at_another_store() {
    let site = Site::with_volume("disk", 8);
    let other = another(&site, "second");
    let mut one = site.host("one").with(["--volume", "disk", "--store", &site.store.address]);
    one.start();
    let mut client = one.client("disk");
    client.write(0, &[5; 4096]).unwrap();
    client.flush().unwrap();
    one.wait_drained("disk", LIMIT);
    let mut two = site.host("two").with(["--store", &other.address]);
    two.start();
    wait_for("the link", LIMIT, || two.status()["link"]["up"] == true);
    let host = one.status()["host"].as_str().unwrap().to_owned();
    two.attach(["disk"]).fails(1, &["is in use by", &host, "--take-over"]);
    let live = site.show("disk")["live"].clone();
    assert_eq!((&live["connected"], &live["host"]), (&true.into(), &host.into()), "{live}");
    assert!(live["host_name"].as_str().unwrap().contains("127.0.0.1"), "{live}");
    client.write(4096, &[7; 4096]).unwrap();
    client.flush().unwrap();
    one.wait_drained("disk", LIMIT);
    two.attach(["disk", "--take-over"]).ok();
    assert_eq!(two.client("disk").read(0, 4096).unwrap(), [5; 4096]);
    assert_eq!(two.client("disk").read(4096, 4096).unwrap(), [7; 4096]);
    wait_for("the first host to be fenced", LIMIT, || {
        one.volume_status("disk")["state"] == "fenced"
    });
    two.client("disk").write(0, &[6; 4096]).unwrap();
    two.wait_drained("disk", LIMIT);
    assert_eq!(site.export("disk")[..4096], [6; 4096]);
}

#[test]
fn stores_share_a_ca_and_what_it_withdraws() {
    let site = Site::with_volume("disk", 8);
    let other = another(&site, "second");
    let old = std::fs::read(site.store.credential()).unwrap();
    let kept = site.path("old.toml");
    std::fs::write(&kept, &old).unwrap();
    let at_other = |credential: &Path| {
        let mut volume = command(longhaul());
        volume.arg("volume").arg("--credential").arg(credential);
        volume.args(["--store", &other.address, "list"]);
        run_within(volume, LIMIT)
    };
    at_other(&kept).ok();
    let mut rotate = command(longhaul());
    rotate.args(["credential", "rotate", "--state", text(site.store.dir())]);
    run_within(rotate, LIMIT).ok();
    wait_for("the other store to accept the new credential", LIMIT, || {
        at_other(&site.store.credential()).status.success()
    });
    at_other(&kept).fails(1, &["withdrawn"]);
    // The refusal tells a stranger how to join.
    let dir = site.path("stranger");
    let mut stranger = Store::stopped(&dir);
    stranger.set_data(text(site.store.dir()));
    let refused = run_within(stranger.command(), LIMIT);
    refused.fails(1, &["another CA", "longhaul store invite", "--new-ca"]);
    // One directory is one store.
    let mut twice = Store::stopped(site.store.dir());
    twice.set_flags(["--new-ca"]);
    run_within(twice.command(), LIMIT).fails(1, &["is in use"]);
}

#[test]
fn commands_find_another_store_when_theirs_is_gone() {
    let mut site = Site::with_volume("disk", 8);
    let other = another(&site, "second");
    let third = another(&site, "third");
    let credential = site.path("mine.toml");
    std::fs::copy(site.store.credential(), &credential).unwrap();
    // One that knew of the first store only.
    let shown = || {
        let path = text(&credential);
        let show = run(longhaul(), ["credential", "show", "--json", path]).ok().json();
        let stores = show["stores"].as_array().unwrap().iter();
        stores.map(|store| store.as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let said = std::fs::read_to_string(&credential).unwrap();
    assert_eq!(shown(), [site.store.address.clone()]);
    let volumes = || {
        let mut volume = command(longhaul());
        volume.args(["volume", "list", "--credential"]).arg(&credential);
        run_within(volume, LIMIT)
    };
    wait_for("the first store to know the others", LIMIT, || {
        volumes().ok();
        shown().len() == 3
    });
    assert_eq!(shown()[0], site.store.address);
    let head = |text: &str| text.lines().next().unwrap().to_owned();
    let now = std::fs::read_to_string(&credential).unwrap();
    assert!(head(&said).starts_with('#') && head(&now) == head(&said));
    let mode = std::fs::metadata(&credential).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    site.store.kill();
    volumes().ok();
    assert!(shown()[0] == other.address || shown()[0] == third.address);
    // By a link, too.
    let out = site.path("out");
    let mut export = command(longhaul());
    export.args(["volume", "export", "disk", text(&out), "--credential"]).arg(&credential);
    run_within(export, LIMIT).ok();
    // Nobody asks a forgotten one any more.
    let stores = list(&credential, &other);
    let dead = stores.iter().find(|store| store["state"] == "no-answer").unwrap();
    let id = dead["id"].as_str().unwrap().to_owned();
    store_command(["forget", &id, "--credential", text(&credential)]).ok();
    wait_for("it to be forgotten", LIMIT, || {
        run(longhaul(), ["credential", "refresh", text(&credential)]).ok();
        shown().len() == 2 && !shown().contains(&site.store.address)
    });
}

/// Four hosts at one store, and a second store that they know of.
fn crowded() -> (Site, Vec<Host>, Store) {
    let site = Site::new();
    let mut hosts = Vec::new();
    for n in 0..4 {
        let volume = format!("disk{n}");
        site.create(&volume, 8);
        let mut host = site.host(&format!("host{n}")).with(["--volume", &volume]);
        host.start();
        host.client(&volume).write(0, &[1; 4096]).unwrap();
        hosts.push(host);
    }
    let other = another(&site, "second");
    for host in &hosts {
        knows(host, &[&other]);
    }
    (site, hosts, other)
}

/// How many volumes each store has, the fewest first.
fn shares(credential: &Path, store: &Store) -> Vec<u64> {
    let stores = list(credential, store);
    let mut volumes: Vec<u64> =
        stores.iter().map(|store| store["volumes"].as_u64().unwrap()).collect();
    volumes.sort_unstable();
    volumes
}

#[test]
fn hosts_are_shared_out() {
    let (site, _hosts, other) = crowded();
    let credential = site.store.credential();
    store_command(["rebalance", "--credential", text(&credential)]).ok();
    wait_for("two volumes at each store", LIMIT, || shares(&credential, &other) == [2, 2]);
    store_command(["rebalance", "--credential", text(&credential)]).ok();
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(shares(&credential, &other), [2, 2]);
}

#[test]
fn hosts_are_shared_out_in_time_without_being_asked() {
    let (site, hosts, other) = crowded();
    let credential = site.store.credential();
    // One host each half minute.
    wait_for("one volume to go", LIMIT, || shares(&credential, &other) == [1, 3]);
    wait_for("another one to go", LIMIT, || shares(&credential, &other) == [2, 2]);
    for (n, host) in hosts.iter().enumerate() {
        let mut client = host.client(&format!("disk{n}"));
        assert_eq!(client.read(0, 4096).unwrap(), [1; 4096]);
        client.write(4096, &[2; 4096]).unwrap();
        client.flush().unwrap();
    }
}

#[test]
fn a_volume_is_scrubbed_by_the_store_that_has_it() {
    let mut site = Site::with_volume("disk", 8);
    site.store.set_flags(["--scrub-every", "1s"]);
    site.store.restart();
    let mut other = invited(&site, "second");
    other.set_flags(["--scrub-every", "1s"]);
    let mut host = site.host("host").with(["--volume", "disk", "--store", &site.store.address]);
    host.start();
    host.client("disk").write(0, &[1; 4096]).unwrap();
    host.wait_drained("disk", LIMIT);
    other.restart();
    let scrubbed = |store: &Store| metric(&store.admin, "longhaul_store_scrub_objects_total");
    let ended = |store: &Store| {
        let status = "longhaul_store_scrub_ended_timestamp_seconds";
        metric(&store.admin, status)
    };
    for store in [&site.store, &other] {
        let first = ended(store);
        wait_for("a whole pass", LIMIT, || ended(store) > first.max(1.0));
    }
    assert!(scrubbed(&site.store) > 0.0);
    assert_eq!(scrubbed(&other), 0.0);
}
