//! Warming and pinning the read cache, by range and by file.

use longhaul_e2e::client::Client;
use longhaul_e2e::device::Device;
use longhaul_e2e::process::{LIMIT, Output, longhaul, run};
use longhaul_e2e::site::{Host, Relay, Site, metric};
use longhaul_e2e::{can_use_devices, content, wait_for};

/// More than the cache holds.
const MIB: u64 = 160;
const READ: u64 = 64 << 10;
/// Smallest block of a file system.
const BLOCK: usize = 1024;

/// A volume with content at the store, and a host with a cache of 64 MiB that has nothing of it.
fn cold() -> (Site, Relay, Host) {
    let site = Site::with_volume("disk", MIB);
    let mut first = site.host("first");
    first.start();
    let mut client = first.client("disk");
    for offset in (0..MIB << 20).step_by(1 << 20) {
        client.write(offset, &content(offset, 1 << 20)).unwrap();
    }
    client.flush().unwrap();
    client.disconnect();
    first.wait_drained("disk", LIMIT);
    assert!(first.stop().success());
    let relay = Relay::start(&site, []);
    let mut host = site.host("cold").with([
        "--store",
        relay.address.as_str(),
        "--cache-size",
        "64MiB",
        "--volume",
        "disk",
    ]);
    host.start();
    host.client("disk").disconnect();
    (site, relay, host)
}

fn cache(host: &Host, args: &[&str]) -> Output {
    run(longhaul(), ["cache"].iter().chain(args).chain(&["--admin", host.admin.as_str()]))
}

fn of_cache(host: &Host, name: &str) -> u64 {
    host.volume_status("disk")["cache"][name].as_u64().unwrap()
}

fn wait_pinned(host: &Host, bytes: u64) {
    wait_for("what is pinned to be there", LIMIT, || {
        let status = host.volume_status("disk");
        let cache = &status["cache"];
        cache["state"] == "ready"
            && cache["pinned_bytes"] == bytes
            && cache["pinned_valid_bytes"] == bytes
    });
}

fn read(client: &mut Client, start: u64, end: u64) {
    for offset in (start..end).step_by(READ as usize) {
        assert_eq!(client.read(offset, READ as u32).unwrap(), content(offset, READ), "{offset}");
    }
}

#[test]
fn what_is_warm_is_read_without_the_store() {
    let (_site, relay, host) = cold();
    cache(&host, &["warm", "disk", "8MiB+8MiB", "32MiB-40MiB"]).ok();
    let warming = &host.volume_status("disk")["cache"]["warming"];
    assert_eq!((&warming["state"], &warming["done_bytes"]), (&"done".into(), &(16 << 20).into()));
    relay.cut();
    let mut client = host.client("disk");
    read(&mut client, 8 << 20, 16 << 20);
    read(&mut client, 32 << 20, 40 << 20);
    assert!(of_cache(&host, "hit_bytes") >= 16 << 20);
    relay.restore();
    cache(&host, &["warm", "disk", "all"]).fails(1, &["160 MiB", "--cache-size"]);
    cache(&host, &["warm", "disk", "159MiB+2MiB"]).fails(1, &["not within volume disk"]);
    cache(&host, &["warm", "disk"]).fails(2, &["--file"]);
    cache(&host, &["warm", "disk", "5"]).fails(2, &["OFFSET+LENGTH"]);
    cache(&host, &["warm", "other", "all"]).fails(1, &["volume other is not attached here"]);
    cache(&host, &["stop", "disk"]).fails(1, &["not being warmed"]);
}

#[test]
fn what_is_pinned_outlives_scans_restarts_and_crashes() {
    let (_site, relay, mut host) = cold();
    cache(&host, &["pin", "disk", "all"]).fails(1, &["160 MiB", "more than", "--cache-size"]);
    cache(&host, &["pin", "disk", "4MiB+6MiB", "100MiB-102MiB"]).ok();
    cache(&host, &["pin", "disk", "10MiB+4MiB"]).ok();
    cache(&host, &["unpin", "disk", "12MiB+2MiB"]).ok();
    let pinned = 10 << 20;
    wait_pinned(&host, pinned);
    let shown = cache(&host, &["show", "disk", "--json"]).ok().json();
    let ranges = serde_json::json!([[4 << 20, 12 << 20], [100 << 20, 102 << 20]]);
    assert_eq!(shown["pinned"], ranges);
    assert_eq!(metric(&host.admin, "longhaul_cache_pinned_bytes{volume=\"disk\"}"), pinned as f64);

    // All of the volume, twice, is five times the cache.
    let mut client = host.client("disk");
    for _ in 0..2 {
        read(&mut client, 0, MIB << 20);
    }
    let check = |host: &Host, client: &mut Client| {
        relay.cut();
        read(client, 4 << 20, 12 << 20);
        read(client, 100 << 20, 102 << 20);
        relay.restore();
        assert_eq!(of_cache(host, "pinned_valid_bytes"), pinned);
    };
    check(&host, &mut client);
    // Overwritten data stays there too, once the store has it.
    let new = vec![7; 1 << 20];
    client.write(5 << 20, &new).unwrap();
    client.flush().unwrap();
    host.wait_drained("disk", LIMIT);
    wait_pinned(&host, pinned);
    client.write(5 << 20, &content(5 << 20, 1 << 20)).unwrap();
    client.flush().unwrap();
    host.wait_drained("disk", LIMIT);
    client.disconnect();
    assert!(host.stop().success());
    for _ in 0..2 {
        host.start();
        let mut client = host.client("disk");
        wait_pinned(&host, pinned);
        check(&host, &mut client);
        host.kill();
    }
    host.start();
    host.client("disk").disconnect();
    cache(&host, &["unpin", "disk", "all"]).ok();
    assert_eq!(of_cache(&host, "pinned_bytes"), 0);
}

#[test]
fn a_volume_without_a_cache_says_why() {
    let site = Site::with_volume("disk", 32);
    let mut host = site.host("host").with(["--volume", "disk"]);
    host.start();
    host.client("disk").disconnect();
    for command in ["pin", "warm", "unpin"] {
        cache(&host, &[command, "disk", "all"]).fails(1, &["no read cache", "--cache-size"]);
    }
    cache(&host, &["show", "disk"]).fails(1, &["no read cache"]);
}

#[test]
fn files_are_pinned_where_they_lie() {
    if !can_use_devices("files_are_pinned_where_they_lie") {
        return;
    }
    let site = Site::with_volume("disk", 256);
    let mut host = site.host("host").with(["--cache-size", "64MiB"]);
    host.start();
    host.client("disk").disconnect();
    let device = Device::connect(&host.uri("disk"), &site.path(""));
    run("mkfs.ext4", ["-q", device.path()]).ok();
    let mount = device.mount(&site.path("mounted"), "defaults");
    let dir = mount.path().join("files");
    std::fs::create_dir(&dir).unwrap();
    let body = |n: u64| content(n << 30, 2 << 20);
    for n in 0..4 {
        std::fs::write(dir.join(n.to_string()), body(n)).unwrap();
    }
    std::fs::write(dir.join("empty"), "").unwrap();
    let path = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    // Not yet written back: that is FIEMAP's business.
    cache(&host, &["pin", "disk", "--file", &path("")]).ok();
    let shown = cache(&host, &["show", "disk", "--json"]).ok().json();
    let ranges: Vec<(u64, u64)> = serde_json::from_value(shown["pinned"].clone()).unwrap();
    let pinned: u64 = ranges.iter().map(|(start, end)| end - start).sum();
    assert!((8 << 20..9 << 20).contains(&pinned), "{ranges:?}");
    // The device's content there is the files' content.
    let mut client = host.client("disk");
    let mut found = 0;
    for (start, end) in &ranges {
        let mut there = Vec::new();
        for offset in (*start..*end).step_by(16 << 10) {
            there.extend(client.read(offset, 16 << 10).unwrap());
        }
        let blocks: std::collections::BTreeSet<&[u8]> = there.chunks(BLOCK).collect();
        found += (0..4)
            .flat_map(|n| body(n).chunks(BLOCK).map(<[u8]>::to_vec).collect::<Vec<_>>())
            .filter(|block| blocks.contains(block.as_slice()))
            .count();
    }
    assert_eq!(found, 4 * (2 << 20) / BLOCK);
    cache(&host, &["unpin", "disk", "--file", &path("0"), "--file", &path("1")]).ok();
    assert!(of_cache(&host, "pinned_bytes") < 5 << 20);
    cache(&host, &["pin", "disk", "--file", &path("none")]).fails(1, &["none"]);
    // A file on another disk has its place there, and not here.
    let elsewhere = site.path("elsewhere");
    std::fs::write(&elsewhere, vec![1; 1 << 20]).unwrap();
    cache(&host, &["pin", "disk", "--file", elsewhere.to_str().unwrap()]).fails(1, &["volume"]);
    cache(&host, &["pin", "disk", "--file", &path("empty")]).fails(1, &["no data"]);
    cache(&host, &["pin", "disk", "--file", "/proc/self/status"])
        .fails(1, &["not on one block device"]);
    mount.unmount();
    device.disconnect();
}
