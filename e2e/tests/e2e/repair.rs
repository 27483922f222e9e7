//! Repair of damage at the store from another copy: from a replica, or from a host's read cache.

use crate::damage::{check, flip};
use crate::replica::{is_in_step, replica};
use longhaul_e2e::client::Client;
use longhaul_e2e::process::{LIMIT, longhaul, run};
use longhaul_e2e::site::{Host, Site, http_get, metric};
use longhaul_e2e::wait_for;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const START: u64 = 1 << 20;
const LENGTH: usize = 1 << 20;
const BLOCK: usize = 4096;

/// All objects of a directory, by the last part of their names.
fn objects(dir: &Path) -> HashMap<OsString, PathBuf> {
    let mut found = HashMap::new();
    let mut pending = vec![dir.to_owned()];
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                pending.push(path);
            } else {
                found.insert(path.file_name().unwrap().to_owned(), path);
            }
        }
    }
    found
}

#[test]
fn what_is_damaged_is_brought_back_from_the_replica() {
    let mut site = Site::with_volume("disk", 32);
    let place = site.path("replica");
    replica(&site, &site.store, ["add", place.to_str().unwrap()]).ok();
    is_in_step(&site, &site.store);
    let mut host = site.host("host");
    host.start();
    let mut client = host.client("disk");
    for mib in 0..8u64 {
        client.write(mib << 20, &[mib as u8 + 1; 1 << 20]).unwrap();
        client.flush().unwrap();
        host.wait_drained("disk", LIMIT);
    }
    client.disconnect();
    assert!(host.stop().success());
    assert!(site.store.stop().success());

    // One of each: in the data, in a header, gone; a part of the map, and the newest root.
    let here = site.store.dir().to_owned();
    let mut segments = site.store.segments();
    segments.sort();
    segments.retain(|file| fs::metadata(file).unwrap().len() > 64 << 10);
    assert!(segments.len() >= 6, "{segments:?}");
    flip(&segments[1], 32 << 10);
    flip(&segments[2], 20);
    fs::remove_file(&segments[3]).unwrap();
    let of_kind = |kind: &str| {
        let all = objects(&here.join("objects/v")).into_values();
        let of_kind = |path: &PathBuf| path.to_str().unwrap().contains(kind);
        let mut files: Vec<PathBuf> = all.filter(of_kind).collect();
        files.sort();
        files
    };
    let fragments = of_kind("/frag/");
    for fragment in &fragments {
        flip(fragment, 40);
    }
    if let Some(root) = of_kind("/root/").last() {
        flip(root, 40);
    }
    assert!(!fragments.is_empty());
    let sound = objects(&place.join("objects/tree"));
    check(&here).fails(1, &["damage in"]);

    site.store.restart();
    let mut fresh = site.host("fresh");
    fresh.start();
    let mut client = fresh.client("disk");
    for mib in 0..8u64 {
        assert!(client.read(mib << 20, 1 << 20).unwrap() == vec![mib as u8 + 1; 1 << 20]);
    }
    let admin = site.store.admin.clone();
    let repaired = || metric(&admin, "longhaul_store_repaired_objects_total");
    assert!(repaired() >= 4.0, "{}", site.store.server().log());
    for (name, file) in [1, 2, 3].map(|n| (segments[n].file_name().unwrap(), &segments[n])) {
        assert!(fs::read(file).unwrap() == fs::read(&sound[name]).unwrap(), "{name:?}");
    }
    client.disconnect();
    assert!(fresh.stop().success());

    // The scrub finds damage that nobody reads.
    assert!(site.store.stop().success());
    flip(&segments[5], 32 << 10);
    site.store.set_flags(["--scrub-every", "1s", "--scrub-rate", "1GiB"]);
    site.store.restart();
    wait_for("the scrub to find it", LIMIT, || repaired() >= 1.0);
    wait_for("a clean pass", LIMIT, || {
        metric(&admin, "longhaul_store_scrub_ended_timestamp_seconds") > 0.0
            && metric(&admin, "longhaul_store_scrub_damaged_objects") == 0.0
    });
    assert!(site.store.stop().success());
    check(&here).ok();
}

/// A host that has written a range, which is at the store and in its read cache.
fn cached() -> (Site, Host, Client, Vec<u8>) {
    let mut site = Site::new();
    site.store.kill();
    site.store.set_flags(["--scrub-every", "1s", "--scrub-rate", "1GiB"]);
    site.store.restart();
    site.create("disk", 32);
    let mut host = site.host("host").with(["--cache-size", "64MiB"]);
    host.start();
    let mut client = host.client("disk");
    let mut content = vec![0; LENGTH];
    fastrand::Rng::with_seed(5).fill(&mut content);
    client.write(START, &content).unwrap();
    client.flush().unwrap();
    host.wait_drained("disk", LIMIT);
    run(longhaul(), ["cache", "warm", "disk", "1MiB+1MiB", "--admin", host.admin.as_str()]).ok();
    (site, host, client, content)
}

/// Flips bits in what the store has of the content.
fn damage(site: &Site, content: &[u8], places: &[usize]) {
    let mut hit = 0;
    for file in site.store.segments() {
        let data = std::fs::read(&file).unwrap();
        let open = std::fs::File::options().write(true).open(&file).unwrap();
        for place in places {
            let block = &content[*place..*place + 64];
            if let Some(at) = data.windows(64).position(|window| window == block) {
                open.write_all_at(&[data[at] ^ 0x10], at as u64).unwrap();
                hit += 1;
            }
        }
    }
    assert!(hit >= places.len(), "{hit} places were found");
}

fn written_back(host: &Host) -> f64 {
    metric(&host.admin, "longhaul_host_written_back_bytes_total{volume=\"disk\"}")
}

fn told(site: &Site) -> f64 {
    metric(&site.store.admin, "longhaul_store_damage_told_bytes_total")
}

fn status(site: &Site) -> serde_json::Value {
    let (_, body) = http_get(&site.store.admin, "/status").unwrap();
    serde_json::from_str(&body).unwrap()
}

/// Waits for a pass of the scrub that has begun since.
fn wait_for_a_pass(site: &Site) {
    let scrub = || status(site)["scrub"].clone();
    let now = scrub()["began"].as_u64().unwrap();
    wait_for("a whole pass of the scrub", LIMIT, || {
        let scrub = scrub();
        scrub["began"].as_u64().unwrap() > now + 1 && scrub["ended"].as_u64() > Some(now + 1)
    });
}

/// The reads of a client without a cache.
fn read_afresh(site: &Site, host: &mut Host) -> Vec<u8> {
    let image = site.export("disk");
    assert!(host.stop().success());
    let mut fresh = site.host("fresh");
    fresh.start();
    let mut client = fresh.client("disk");
    let read = client.read(START, LENGTH as u32).unwrap();
    client.disconnect();
    assert!(image[START as usize..][..LENGTH] == read, "an observer sees something else");
    read
}

#[test]
fn what_the_store_has_lost_is_written_back_from_a_read_cache() {
    let (site, mut host, client, content) = cached();
    client.disconnect();
    damage(&site, &content, &[5 * BLOCK, 100 * BLOCK + 512, LENGTH - BLOCK]);
    wait_for("what is damaged to be written back", LIMIT, || written_back(&host) > 0.0);
    wait_for_a_pass(&site);
    host.wait_drained("disk", LIMIT);
    // The object is damaged as before, until its collection; but nothing reads from there any more.
    let before = (told(&site), written_back(&host));
    assert!(before.0 > 0.0);
    wait_for_a_pass(&site);
    assert_eq!((told(&site), written_back(&host)), before);
    assert!(read_afresh(&site, &mut host) == content);
}

#[test]
fn what_is_written_meanwhile_stays() {
    let (site, mut host, mut client, mut content) = cached();
    let places: Vec<usize> = (0..16).map(|n| n * 16 * BLOCK + 1024).collect();
    damage(&site, &content, &places);
    let mut rng = fastrand::Rng::with_seed(6);
    let (mut writes, mut after) = (0, 0);
    wait_for("a write-back under writes", LIMIT, || {
        for _ in 0..20 {
            let at = rng.usize(0..LENGTH / BLOCK / 2) * 2 * BLOCK;
            let mut block = [0; BLOCK];
            rng.fill(&mut block);
            client.write(START + at as u64, &block).unwrap();
            content[at..at + BLOCK].copy_from_slice(&block);
            writes += 1;
        }
        after += u32::from(written_back(&host) > 0.0);
        after > 20
    });
    client.flush().unwrap();
    assert!(client.read(START, LENGTH as u32).unwrap() == content, "after {writes} writes");
    client.disconnect();
    host.wait_drained("disk", LIMIT);
    // The store repeats the ranges that a host gave up for writes.
    wait_for_a_pass(&site);
    wait_for_a_pass(&site);
    host.wait_drained("disk", LIMIT);
    assert!(read_afresh(&site, &mut host) == content, "after {writes} writes");
}

#[test]
fn a_host_that_comes_back_is_told_what_was_found_without_it() {
    let (mut site, mut host, client, content) = cached();
    client.disconnect();
    assert!(host.stop().success());
    damage(&site, &content, &[7 * BLOCK]);
    wait_for("the damage to be found", LIMIT, || {
        !status(&site)["volumes"][0]["damage"].as_array().unwrap().is_empty()
    });
    assert_eq!(told(&site), 0.0);
    site.store.kill();
    site.store.set_flags(["--scrub-every", "1h"]);
    site.store.restart();
    host.start();
    host.client("disk").disconnect();
    // The store looks twice a minute for hosts that have come.
    let limit = Duration::from_secs(120);
    wait_for("what is damaged to be written back", limit, || written_back(&host) > 0.0);
    host.wait_drained("disk", LIMIT);
    wait_for("all of it", LIMIT, || written_back(&host) >= told(&site));
    host.wait_drained("disk", LIMIT);
    assert!(read_afresh(&site, &mut host) == content);
}
