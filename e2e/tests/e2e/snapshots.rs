//! Snapshots and clones, as their users see them.

use longhaul_e2e::client::{Client, Command, Protocol};
use longhaul_e2e::device::Device;
use longhaul_e2e::process::{LIMIT, longhaul, run};
use longhaul_e2e::site::{Site, target};
use longhaul_e2e::stamp::{History, Shape, Workload, read_all};
use longhaul_e2e::{can_use_devices, wait_for};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const BLOCKS: usize = 4096;
const MIB: u64 = (BLOCKS as u64 * 4096) >> 20;

/// The kernel's `EPERM`: NBD answers writes to a read-only export with it.
const NOT_PERMITTED: i32 = 1;

fn names(site: &Site, volume: &str) -> Vec<String> {
    let list = site.snapshot(["list", volume, "--json"]).ok().json();
    let list = list["snapshots"].as_array().unwrap();
    list.iter().map(|snapshot| snapshot["name"].as_str().unwrap().to_owned()).collect()
}

/// A client of a new host that is there for this only.
fn readers(site: &Site, name: &str, volume: &str) -> (longhaul_e2e::site::Host, Client) {
    let mut host = site.host(name);
    host.start();
    let client = host.client(volume);
    (host, client)
}

/// Writes without a pause during snapshots. Each snapshot holds all writes acknowledged before its
/// request, is the volume at one moment, and never changes, whatever dies.
#[test]
fn snapshots_of_a_busy_volume_hold_what_was_acknowledged_and_never_change() {
    let mut site = Site::with_volume("disk", MIB);
    let mut host = site.host("host").with(["--volume", "disk"]);
    host.start();
    let mut history = History::new(BLOCKS);
    let (done, acknowledged) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut client = host.client("disk");
    let mut least = Vec::new();
    std::thread::scope(|scope| {
        let (done, acknowledged, history) = (&done, &acknowledged, &mut history);
        let client = &mut client;
        let work = scope.spawn(move || {
            let shape = Shape { depth: 8, bytes_per_second: 8 << 20, ..Shape::default() };
            let mut workload = Workload::new(history, client, 7, shape);
            let so_far = |history: &History| {
                acknowledged.store(history.acknowledged(), Ordering::Release);
                done.load(Ordering::Acquire)
            };
            workload.run(so_far).and_then(|()| workload.settle())
        });
        let taken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for n in 0..6 {
                std::thread::sleep(Duration::from_millis(200));
                least.push(acknowledged.load(Ordering::Acquire));
                site.snapshot(["create", &format!("disk@s{n}")]).ok();
            }
        }));
        done.store(true, Ordering::Release);
        work.join().expect("reads return what was written").expect("no request fails");
        taken.unwrap();
    });
    assert_eq!(names(&site, "disk"), ["s0", "s1", "s2", "s3", "s4", "s5"]);
    let mut images = Vec::new();
    let mut before = 0;
    for (n, least) in least.iter().enumerate() {
        let image = site.export(&format!("disk@s{n}"));
        before = history.prefix_of(&image, (*least).max(before)).unwrap();
        images.push(image);
    }
    // Deletions in any order leave the others; so do kills of store and host.
    site.snapshot(["delete", "disk@s2", "disk@s0"]).ok();
    site.store.kill();
    site.store.restart();
    host.kill();
    let mut reader = site.host("reader");
    reader.start();
    for n in [1, 3, 4, 5] {
        let mut client = reader.client(&format!("disk@s{n}"));
        assert!(read_all(&mut client, history.bytes()).unwrap() == images[n], "snapshot {n}");
        client.disconnect();
    }
    assert!(reader.refusal("disk@s2").contains("no such"), "{}", reader.refusal("disk@s2"));
    // A reader goes on at a store that has forgotten who it is.
    let mut client = reader.client("disk@s3");
    site.store.kill();
    site.store.restart();
    assert!(read_all(&mut client, history.bytes()).unwrap() == images[3]);
    client.disconnect();
    host.start();
    host.client("disk").disconnect();
    host.wait_drained("disk", LIMIT);
    assert!(reader.stop().success() && host.stop().success() && site.store.stop().success());
    run(longhaul(), ["check".as_ref(), site.store.dir().as_os_str()]).ok();
}

#[test]
fn a_snapshot_is_a_disk_that_nobody_writes_to() {
    let site = Site::with_volume("disk", MIB);
    let (mut host, mut client) = readers(&site, "host", "disk");
    client.write(4096, &[1; 8192]).unwrap();
    let info = site.snapshot(["create", "disk@Monday", "--json"]).ok().json();
    assert_eq!((&info["volume"], &info["name"]), (&"disk".into(), &"Monday".into()));
    assert_eq!(info["size_bytes"], MIB << 20);
    client.write(4096, &[2; 4096]).unwrap();
    client.flush().unwrap();
    site.volume(["resize", "disk", &format!("{}MiB", MIB + 1)]).ok();

    let shown = site.show("disk@Monday");
    assert_eq!((&shown["name"], &shown["id"]), (&"disk@Monday".into(), &info["id"]));
    assert_eq!(shown["size_bytes"], MIB << 20);
    let seen = run("nbdinfo", ["--json", &host.uri("disk@Monday")]).ok().json();
    let export = &seen["exports"][0];
    assert_eq!(
        (&export["is_read_only"], &export["export-size"]),
        (&true.into(), &(MIB << 20).into())
    );
    let mut snapshot = host.client("disk@Monday");
    assert_eq!(snapshot.read(4096, 8192).unwrap(), [1; 8192]);
    assert_eq!(snapshot.read(0, 4096).unwrap(), [0; 4096]);
    let refused = snapshot.write(0, &[3; 4096]).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(NOT_PERMITTED), "{refused}");
    // Readers of a deleted one lose it, and do not wait.
    site.snapshot(["create", "disk@Tuesday"]).ok();
    let mut tuesday = host.client("disk@Tuesday");
    site.snapshot(["delete", "disk@Tuesday"]).ok();
    assert!(tuesday.read(0, 4096).is_err());
    snapshot.disconnect();
    client.disconnect();
    assert!(host.stop().success());

    let site = site.over(Protocol::Iscsi);
    let mut host = site.host("initiators");
    host.start();
    let mut snapshot = host.client("disk@Monday");
    assert_eq!(snapshot.read(4096, 8192).unwrap(), [1; 8192]);
    assert!(snapshot.write(0, &[3; 4096]).is_err(), "{}", target("disk@Monday"));
    // Another may have its name.
    site.snapshot(["delete", "disk@Monday"]).ok();
    assert!(names(&site, "disk").is_empty());
    assert!(snapshot.read(0, 4096).is_err());
    site.snapshot(["create", "disk@Monday"]).ok();
    let mut snapshot = host.client("disk@Monday");
    assert_eq!(snapshot.read(4096, 4096).unwrap(), [2; 4096]);
    snapshot.disconnect();
    assert!(host.stop().success());
    site.volume(["delete", "disk"]).ok();
}

#[test]
fn each_mistake_with_a_snapshot_has_its_message() {
    let site = Site::with_volume("disk", MIB);
    site.snapshot(["create", "disk"]).fails(2, &["VOLUME@SNAPSHOT"]);
    site.snapshot(["create", "disk@"]).fails(2, &["VOLUME@SNAPSHOT"]);
    site.snapshot(["create", "disk@a/b"]).fails(1, &["letters"]);
    site.snapshot(["create", "other@a"]).fails(1, &["no such volume"]);
    site.snapshot(["delete", "disk@a"]).fails(1, &["no such snapshot", "snapshot list"]);
    site.snapshot(["rollback", "disk@a"]).fails(1, &["no such snapshot"]);
    site.volume(["clone", "disk@a", "copy"]).fails(1, &["no such snapshot"]);
    site.snapshot(["create", "disk@a"]).ok();
    site.snapshot(["create", "disk@a"]).fails(1, &["snapshot of that name"]);
    site.volume(["clone", "disk@a", "disk"]).fails(1, &["exists"]);
    site.volume(["clone", "disk@a", "a b"]).fails(1, &["letters"]);
    site.volume(["show", "disk@b"]).fails(1, &["no such snapshot"]);
    site.volume(["resize", "disk@a", "1GiB"]).fails(1, &["no such volume"]);
    assert_eq!(names(&site, "disk"), ["a"]);
    let (host, client) = readers(&site, "host", "disk");
    site.snapshot(["rollback", "disk@a"]).fails(1, &["attached"]);
    client.disconnect();
    drop(host);
}

#[test]
fn clones_share_what_they_have_not_written_and_outlive_the_snapshot() {
    let mut site = Site::with_volume("disk", MIB);
    let (mut host, mut client) = readers(&site, "host", "disk");
    client.write(0, &[1; 64 << 10]).unwrap();
    site.snapshot(["create", "disk@base"]).ok();
    client.write(0, &[2; 4096]).unwrap();
    client.flush().unwrap();
    let info = site.volume(["clone", "disk@base", "copy", "--json"]).ok().json();
    assert_eq!((&info["name"], &info["size_bytes"]), (&"copy".into(), &(MIB << 20).into()));
    let mut copy = host.client("copy");
    assert_eq!(copy.read(0, 64 << 10).unwrap(), [1; 64 << 10]);
    copy.write(8192, &[3; 4096]).unwrap();
    copy.flush().unwrap();
    assert_eq!(client.read(0, 4096).unwrap(), [2; 4096]);
    assert_eq!(client.read(8192, 4096).unwrap(), [1; 4096]);
    // A clone of a snapshot of a clone.
    site.snapshot(["create", "copy@second"]).ok();
    site.volume(["clone", "copy@second", "third"]).ok();
    copy.write(0, &[4; 4096]).unwrap();
    let mut third = host.client("third");
    third.write(16384, &[5; 4096]).unwrap();
    third.flush().unwrap();
    let expected = |third: &mut Client| {
        let mut image = vec![1; 64 << 10];
        image[8192..12288].fill(3);
        image[16384..20480].fill(5);
        assert!(third.read(0, 64 << 10).unwrap() == image);
    };
    expected(&mut third);

    let list = site.snapshot(["list", "--json"]).ok().json();
    let list = list["snapshots"].as_array().unwrap();
    let clones: Vec<_> = list.iter().map(|snapshot| snapshot["clones"].as_u64().unwrap()).collect();
    assert_eq!(clones, [1, 1], "{list:?}");
    site.snapshot(["delete", "disk@base", "copy@second"]).ok();
    assert!(names(&site, "disk").is_empty() && names(&site, "copy").is_empty());
    for client in [client, copy, third] {
        client.disconnect();
    }
    for volume in ["disk", "copy", "third"] {
        host.wait_drained(volume, LIMIT);
    }
    assert!(host.stop().success());
    site.volume(["delete", "disk"]).fails(1, &["copy"]);
    site.volume(["delete", "copy"]).fails(1, &["third"]);
    assert!(site.store.stop().success());
    run(longhaul(), ["check".as_ref(), site.store.dir().as_os_str()]).ok();
    site.store.restart();
    site.store.kill();
    site.store.restart();
    host.start();
    let mut third = host.client("third");
    expected(&mut third);
    third.disconnect();
    assert!(host.stop().success());
    site.volume(["delete", "third"]).ok();
    wait_for("the clone is forgotten", LIMIT, || site.volume(["delete", "copy"]).status.success());
    wait_for("the other clone is forgotten", LIMIT, || {
        site.volume(["delete", "disk"]).status.success()
    });
    assert!(site.store.stop().success());
    run(longhaul(), ["check".as_ref(), site.store.dir().as_os_str()]).ok();
}

#[test]
fn a_clone_of_an_encrypted_volume_opens_with_the_same_key_file() {
    let site = Site::new();
    let key = site.path("key").display().to_string();
    run(longhaul(), ["credential", "new-key", &key]).ok();
    let size = format!("{MIB}MiB");
    site.volume(["create", "disk", "--size", &size, "--encrypt", "--key-file", &key]).ok();
    let mut host = site.host("host").with(["--key-file", &key]);
    host.start();
    let mut client = host.client("disk");
    client.write(0, &[7; 64 << 10]).unwrap();
    site.snapshot(["create", "disk@base"]).ok();
    client.write(0, &[8; 4096]).unwrap();
    let mut snapshot = host.client("disk@base");
    assert_eq!(snapshot.read(0, 64 << 10).unwrap(), [7; 64 << 10]);
    snapshot.disconnect();
    site.volume(["clone", "disk@base", "copy"]).fails(2, &["--key-file"]);
    site.volume(["clone", "disk@base", "copy", "--key-file", &key]).ok();
    let mut copy = host.client("copy");
    assert_eq!(copy.read(0, 64 << 10).unwrap(), [7; 64 << 10]);
    copy.write(4096, &[9; 4096]).unwrap();
    copy.flush().unwrap();
    site.snapshot(["create", "copy@second"]).ok();
    let mut second = host.client("copy@second");
    assert_eq!(second.read(0, 8192).unwrap(), [[7; 4096], [9; 4096]].concat());
    second.disconnect();
    site.volume(["rotate-key", "copy", "--key-file", &key]).ok();
    host.kill();
    host.start();
    let mut copy = host.client("copy");
    assert_eq!(copy.read(0, 8192).unwrap(), [[7; 4096], [9; 4096]].concat());
}

#[test]
fn snapshots_are_taken_by_the_clock() {
    let mut site = Site::with_volume("disk", MIB);
    let (mut host, mut client) = readers(&site, "host", "disk");
    client.write(0, &[1; 4096]).unwrap();
    client.flush().unwrap();
    host.wait_drained("disk", LIMIT);
    let schedule = |args: &[&str]| site.snapshot([&["schedule", "disk"], args].concat());
    assert_eq!(schedule(&[]).ok().stdout, "none\n");
    schedule(&["fortnightly=2"]).fails(2, &["hourly=24,daily=7"]);
    schedule(&["daily=7,hourly=2"]).ok();
    assert_eq!(schedule(&["--json"]).ok().json()["schedule"], "hourly=2,daily=7");
    // The first of each at once.
    let kinds = |site: &Site| {
        let mut kinds: Vec<String> = names(site, "disk");
        kinds.iter_mut().for_each(|name| name.truncate(name.find('-').unwrap()));
        kinds
    };
    wait_for("the first snapshots", LIMIT, || kinds(&site) == ["hourly", "daily"]);
    let taken = names(&site, "disk");
    assert_eq!(site.export(&format!("disk@{}", taken[0]))[..4096], [1; 4096]);
    // A restarted store knows it, and does not take them again.
    site.store.kill();
    site.store.restart();
    client.write(0, &[2; 4096]).unwrap();
    client.flush().unwrap();
    host.wait_drained("disk", LIMIT);
    assert_eq!(site.snapshot(["schedule", "disk"]).ok().stdout, "hourly=2,daily=7\n");
    let now = names(&site, "disk");
    // Unless the clock has struck meanwhile.
    assert!(now == taken || now.len() > taken.len(), "{now:?}");
    site.snapshot(["schedule", "disk", "none"]).ok();
    assert_eq!(site.snapshot(["schedule", "disk"]).ok().stdout, "none\n");
    client.disconnect();
    assert!(host.stop().success());
}

#[test]
fn a_volume_goes_back_to_a_snapshot() {
    let mut site = Site::with_volume("disk", MIB);
    let (mut host, mut client) = readers(&site, "host", "disk");
    client.write(0, &[1; 64 << 10]).unwrap();
    site.snapshot(["create", "disk@good"]).ok();
    client.write(4096, &[2; 64 << 10]).unwrap();
    client.flush().unwrap();
    site.snapshot(["create", "disk@bad"]).ok();
    site.snapshot(["rollback", "disk@good"]).fails(1, &["attached"]);
    client.disconnect();
    host.wait_drained("disk", LIMIT);
    assert!(host.stop().success());
    site.snapshot(["rollback", "disk@good"]).ok();
    site.store.kill();
    site.store.restart();
    // Its read cache and its journal have seen what is gone.
    host.start();
    let mut client = host.client("disk");
    let mut good = vec![0; 128 << 10];
    good[..64 << 10].fill(1);
    assert!(client.read(0, 128 << 10).unwrap() == good);
    client.write(8192, &[3; 4096]).unwrap();
    client.flush().unwrap();
    client.disconnect();
    host.wait_drained("disk", LIMIT);
    assert!(host.stop().success());
    // There and back again.
    site.snapshot(["rollback", "disk@bad"]).ok();
    let bad = site.export("disk");
    assert_eq!((bad[0], bad[4096], bad[67 << 10], bad[68 << 10]), (1, 2, 2, 0));
    assert_eq!(bad[8192], 2);
    site.snapshot(["delete", "disk@bad", "disk@good"]).ok();
    assert!(site.export("disk") == bad);
    assert!(site.store.stop().success());
    run(longhaul(), ["check".as_ref(), site.store.dir().as_os_str()]).ok();
}

/// A host that died gets in if all its acknowledged writes arrived.
#[test]
fn a_dead_hosts_writes_do_not_come_after_a_rollback() {
    let mut site = Site::with_volume("disk", MIB);
    // Until the store has noticed that the host is gone it has the volume.
    let roll_back = |site: &Site| {
        let tried = || site.snapshot(["rollback", "disk@good"]).status.success();
        wait_for("the volume is rolled back", LIMIT, tried);
    };
    let mut host = site.host("host").with(["--volume", "disk"]);
    host.start();
    let mut client = host.client("disk");
    client.write(0, &[1; 4096]).unwrap();
    site.snapshot(["create", "disk@good"]).ok();
    client.write(0, &[2; 4096]).unwrap();
    client.flush().unwrap();
    host.wait_drained("disk", LIMIT);
    host.kill();
    roll_back(&site);
    assert_eq!(site.export("disk")[0], 1);
    host.start();
    let mut client = host.client("disk");
    assert_eq!(client.read(0, 4096).unwrap(), [1; 4096]);
    // The store refuses undelivered writes, and the host keeps them.
    site.store.kill();
    client.write(0, &[3; 4096]).unwrap();
    client.flush().unwrap();
    host.kill();
    site.store.restart();
    roll_back(&site);
    host.start();
    let reason = || host.volume_status("disk")["reason"].to_string();
    wait_for("the journal is refused", LIMIT, || reason().contains("went on without them"));
    assert_eq!(site.export("disk")[0], 1);
}

/// The ranges that the command lists: offset, bytes, type.
fn diff(site: &Site, since: &str, until: &str) -> Vec<(u64, u64, String)> {
    let list = site.volume(["diff", since, until, "--json"]).ok().json();
    let ranges = list["ranges"].as_array().unwrap().iter();
    let number = |value: &serde_json::Value| value.as_u64().unwrap();
    ranges
        .map(|range| {
            let kind = range["type"].as_str().unwrap().to_owned();
            (number(&range["offset_bytes"]), number(&range["bytes"]), kind)
        })
        .collect()
}

#[test]
fn what_each_snapshot_takes_is_told() {
    let site = Site::with_volume("disk", MIB);
    let (mut host, mut client) = readers(&site, "host", "disk");
    let settle = |client: &mut Client| {
        client.flush().unwrap();
        host.wait_drained("disk", LIMIT);
    };
    // The second MiB stays, and each snapshot gets a new first one.
    client.write(1 << 20, &[9; 1 << 20]).unwrap();
    for n in 1..=2 {
        client.write(0, &[n; 1 << 20]).unwrap();
        settle(&mut client);
        site.snapshot(["create", &format!("disk@s{n}")]).ok();
    }
    client.write(0, &[3; 1 << 19]).unwrap();
    client.call(Command::Zero, false, 1 << 19, 1 << 19, &[]).unwrap();
    settle(&mut client);
    let usage = || site.volume(["usage", "disk", "--json"]).ok().json();
    let bytes = |value: &serde_json::Value, of: &str| value[of].as_u64().unwrap();
    // With the checksum of each block.
    let stored = |logical: u64| logical + logical / 4096 * 4;
    let all = |value: &serde_json::Value| {
        ["logical_bytes", "referenced_bytes", "unique_bytes"].map(|of| bytes(value, of))
    };
    let said = usage();
    let [mib, half] = [1 << 20, 1 << 19];
    for snapshot in said["snapshots"].as_array().unwrap() {
        assert_eq!(all(snapshot), [2 * mib, stored(2 * mib), stored(mib)], "{said}");
    }
    assert_eq!(all(&said), [mib + half, stored(mib + half), stored(half)], "{said}");
    assert_eq!(bytes(&said, "size_bytes"), MIB << 20);
    // The overhead of a segment and a record is nobody's, and more is not.
    assert!(bytes(&said, "reclaimable_bytes") < 64 << 10, "{said}");

    // Deleting a snapshot frees the data of only that one; a clone keeps its own.
    site.volume(["clone", "disk@s1", "copy"]).ok();
    site.snapshot(["delete", "disk@s1", "disk@s2"]).ok();
    let said = usage();
    let [hidden] = &said["snapshots"].as_array().unwrap()[..] else { panic!("{said}") };
    assert_eq!((&hidden["deleted"], &hidden["clones"]), (&true.into(), &1.into()));
    assert_eq!(all(hidden), [2 * mib, stored(2 * mib), 0], "{said}");
    let free = bytes(&said, "reclaimable_bytes");
    assert!((stored(mib)..stored(mib) + (64 << 10)).contains(&free), "{said}");
    let copy = site.volume(["usage", "copy", "--json"]).ok().json();
    assert_eq!(all(&copy), [2 * mib, stored(2 * mib), 0], "{copy}");
    assert_eq!((&copy["stored_bytes"], &copy["reclaimable_bytes"]), (&0.into(), &0.into()));
    let text = site.volume(["usage", "disk"]).ok();
    assert!(text.stdout.starts_with("NAME") && text.stdout.contains("(deleted, has clones)"));
    assert!(text.stderr.contains("can be reclaimed"), "{}", text.stderr);
    site.volume(["usage", "nothing"]).fails(1, &["no such volume"]);
    client.disconnect();
    assert!(host.stop().success());
}

#[test]
fn what_differs_is_listed_and_sent_and_received() {
    let site = Site::with_volume("disk", MIB);
    site.create("copy", MIB);
    let (mut host, mut client) = readers(&site, "host", "disk");
    client.write(1 << 20, &[1; 64 << 10]).unwrap();
    site.snapshot(["create", "disk@monday"]).ok();
    client.write((1 << 20) + 512, &[2; 512]).unwrap();
    client.write(3 << 20, &[3; 2 << 20]).unwrap();
    client.call(Command::Zero, false, (1 << 20) + (32 << 10), 4096, &[]).unwrap();
    site.snapshot(["create", "disk@tuesday"]).ok();
    let row = |offset: u64, bytes: u64, kind: &str| (offset, bytes, kind.to_owned());
    let changed = [
        row((1 << 20) + 512, 512, "data"),
        row((1 << 20) + (32 << 10), 4096, "zero"),
        row(3 << 20, 2 << 20, "data"),
    ];
    assert_eq!(diff(&site, "disk@monday", "disk@tuesday"), changed);
    assert_eq!(diff(&site, "disk@monday", "disk"), changed);
    assert_eq!(diff(&site, "disk@tuesday", "disk"), []);
    assert_eq!(diff(&site, "disk@tuesday", "disk@tuesday"), []);
    site.volume(["diff", "disk@monday", "copy"]).fails(1, &["not of one volume"]);
    site.volume(["diff", "disk@friday", "disk"]).fails(1, &["no snapshot friday"]);
    let text = site.volume(["diff", "disk@monday", "disk@tuesday"]).ok().stdout;
    assert!(text.starts_with("OFFSET"), "{text}");

    // Backup programs ask for it over NBD.
    let dirty = |export: &str, since: &str| {
        let context = format!("--map=qemu:dirty-bitmap:{since}");
        let map = run("nbdinfo", [context.as_str(), "--json", &host.uri(export)]).ok().json();
        let number = |extent: &serde_json::Value, name: &str| extent[name].as_u64().unwrap();
        let extents = map.as_array().unwrap().iter();
        assert_eq!(extents.clone().map(|e| number(e, "length")).sum::<u64>(), MIB << 20);
        extents
            .filter(|extent| number(extent, "type") == 1)
            .map(|extent| (number(extent, "offset"), number(extent, "length")))
            .collect::<Vec<_>>()
    };
    let ranges: Vec<_> = changed.iter().map(|(offset, bytes, _)| (*offset, *bytes)).collect();
    assert_eq!(dirty("disk@tuesday", "monday"), ranges);
    let offered = run("nbdinfo", ["--json", &host.uri("disk@tuesday")]).ok().stdout;
    assert!(offered.contains("qemu:dirty-bitmap:monday"), "{offered}");
    let offered = run("nbdinfo", ["--json", &host.uri("disk@monday")]).ok().stdout;
    assert!(!offered.contains("dirty-bitmap"), "{offered}");

    let file = |name: &str| site.path(name).display().to_string();
    let (all, tuesday) = (file("all"), file("tuesday"));
    site.snapshot(["send", "disk@monday", &all]).ok();
    site.snapshot(["send", "disk@tuesday", &tuesday, "--since", "monday"]).ok();
    site.snapshot(["send", "disk@monday", &all, "--since", "tuesday"]).fails(1, &["--force"]);
    site.snapshot(["send", "disk@monday", &all, "--since", "tuesday", "--force"])
        .fails(1, &["not taken after"]);
    let sizes = [&all, &tuesday].map(|file| std::fs::metadata(file).unwrap().len());
    assert!((64 << 10..80 << 10).contains(&sizes[0]), "{sizes:?}");
    assert!((2 << 20..(2 << 20) + (16 << 10)).contains(&sizes[1]), "{sizes:?}");

    site.snapshot(["receive", "copy", &tuesday]).fails(1, &["receive that one first"]);
    site.create("small", 1);
    site.snapshot(["receive", "small", &all]).fails(1, &["resize"]);
    // Data that the stream lacks is gone.
    let mut other = host.client("copy");
    other.write(8 << 20, &[9; 4096]).unwrap();
    other.disconnect();
    host.wait_drained("copy", LIMIT);
    client.disconnect();
    site.snapshot(["receive", "copy", &all]).fails(1, &["attached"]);
    host.wait_drained("disk", LIMIT);
    assert!(host.stop().success());
    site.snapshot(["receive", "copy", &all]).ok();
    assert!(site.export("copy") == site.export("disk@monday"));
    site.snapshot(["receive", "copy", &tuesday]).ok();
    assert!(site.export("copy") == site.export("disk@tuesday"));
    assert!(site.export("copy@monday") == site.export("disk@monday"));
    assert_eq!(names(&site, "copy"), ["monday", "tuesday"]);
    // Once more is no harm.
    let again = site.snapshot(["receive", "copy", &tuesday]).ok();
    assert!(again.stderr.contains("already"), "{}", again.stderr);

    // The store refuses a cut stream, and a volume with new writes; rolling back helps.
    let (wednesday, short) = (file("wednesday"), file("short"));
    host.start();
    let mut client = host.client("disk");
    client.write(5 << 20, &[5; 4 << 20]).unwrap();
    site.snapshot(["create", "disk@wednesday"]).ok();
    client.disconnect();
    let mut other = host.client("copy");
    other.write(0, &[8; 4096]).unwrap();
    other.flush().unwrap();
    other.disconnect();
    for volume in ["disk", "copy"] {
        host.wait_drained(volume, LIMIT);
    }
    assert!(host.stop().success());
    site.snapshot(["send", "disk@wednesday", &wednesday, "--since", "tuesday"]).ok();
    site.snapshot(["receive", "copy", &wednesday]).fails(1, &["rollback copy@tuesday"]);
    assert_eq!(site.export("copy")[0], 8);
    site.snapshot(["rollback", "copy@tuesday"]).ok();
    let stream = std::fs::read(&wednesday).unwrap();
    std::fs::write(&short, &stream[..stream.len() - 100]).unwrap();
    site.snapshot(["receive", "copy", &short]).fails(1, &["cut short", "rollback copy@tuesday"]);
    site.snapshot(["rollback", "copy@tuesday"]).ok();
    site.snapshot(["receive", "copy", &wednesday]).ok();
    assert!(site.export("copy") == site.export("disk@wednesday"));

    // And back, to the volume that it came from.
    let (back, thursday) = (file("back"), [7; 4096]);
    host.start();
    let mut other = host.client("copy");
    other.write(0, &thursday).unwrap();
    site.snapshot(["create", "copy@thursday"]).ok();
    other.disconnect();
    host.wait_drained("copy", LIMIT);
    assert!(host.stop().success());
    site.snapshot(["send", "copy@thursday", &back, "--since", "wednesday"]).ok();
    site.snapshot(["receive", "disk", &back]).ok();
    assert_eq!(site.export("disk")[..4096], thursday);
    assert!(site.export("copy") == site.export("disk"));
}

#[test]
fn files_of_yesterday_are_mounted_beside_todays() {
    if !can_use_devices("a file system on a snapshot") {
        return;
    }
    let site = Site::with_volume("disk", 256);
    let mut host = site.host("host");
    host.start();
    host.client("disk").disconnect();
    let device = Device::connect(&host.uri("disk"), &site.path("today"));
    run("mkfs.ext4", ["-q", device.path()]).ok();
    let mount = device.mount(&site.path("mounted"), "discard");
    let file = mount.path().join("file");
    std::fs::write(&file, "yesterday").unwrap();
    run("sync", ["--file-system".as_ref(), mount.path().as_os_str()]).ok();
    site.snapshot(["create", "disk@yesterday"]).ok();
    std::fs::write(&file, "today").unwrap();
    std::fs::write(mount.path().join("new"), "new").unwrap();
    run("sync", ["--file-system".as_ref(), mount.path().as_os_str()]).ok();

    let yesterday = Device::connect(&host.uri("disk@yesterday"), &site.path("yesterday"));
    let old = yesterday.mount(&site.path("old"), "ro,noload");
    assert_eq!(std::fs::read_to_string(old.path().join("file")).unwrap(), "yesterday");
    assert!(!old.path().join("new").exists());
    old.unmount();
    yesterday.disconnect();
    // A clone takes writes, and so its own journal can replay.
    site.volume(["clone", "disk@yesterday", "copy"]).ok();
    let copy = Device::connect(&host.uri("copy"), &site.path("copy"));
    run("e2fsck", ["-f", "-y", copy.path()]);
    run("e2fsck", ["-f", "-n", copy.path()]).ok();
    let written = copy.mount(&site.path("written"), "discard");
    assert_eq!(read(written.path(), "file"), "yesterday");
    std::fs::write(written.path().join("file"), "another").unwrap();
    written.unmount();
    copy.disconnect();
    assert_eq!(read(mount.path(), "file"), "today");
    mount.unmount();
    device.disconnect();
}

fn read(dir: &Path, name: &str) -> String {
    std::fs::read_to_string(dir.join(name)).unwrap()
}
