//! Damage at the store is repaired where there is another copy.

use crate::damage::{check, flip};
use crate::replica::{is_in_step, replica};
use longhaul_e2e::process::LIMIT;
use longhaul_e2e::site::{Site, metric};
use longhaul_e2e::wait_for;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

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

    // What nobody reads is found by the scrub.
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
