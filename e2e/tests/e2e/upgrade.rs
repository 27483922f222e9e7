//! The data of earlier versions, and stores and hosts of an earlier version beside those of this
//! one.
//!
//! `e2e/fixtures` holds an archive for each change of a format on disk. It has the directories of a
//! store and a host, with something of everything, and the content of their volumes. `make fixture`
//! makes one of this version.

use crate::fleet::{has_all, invited, knows, peer};
use longhaul_e2e::client::{Client, Command};
use longhaul_e2e::process::{LIMIT, longhaul, repository, run};
use longhaul_e2e::site::{Host, Site, Store, temp_dir};
use longhaul_e2e::stamp::{History, Shape, Workload, read_all};
use longhaul_e2e::wait_for;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use std::path::{Path, PathBuf};

const MIB: u64 = 16;
/// The volumes and snapshots of a fixture that a store has all of; of `disk` the host has the rest.
const IMAGES: [&str; 4] = ["disk@monday", "disk@tuesday", "copy", "secret"];

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are text")
}

fn digest(image: &[u8]) -> String {
    Sha256::digest(image).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn export(site: &Site, name: &str) -> Vec<u8> {
    let (file, key) = (site.path("image"), site.path("key"));
    let _ = std::fs::remove_file(&file);
    site.volume(["export", name, text(&file), "--key-file", text(&key), "--plain"]).ok();
    std::fs::read(file).unwrap()
}

/// Writes, zeroes and discards, to a client and to its expected content; most of the data
/// compresses.
fn write_some(client: &mut Client, image: &mut [u8], random: &mut fastrand::Rng, times: usize) {
    for _ in 0..times {
        let mut data = vec![random.u8(..); 4096 * random.usize(1..=4)];
        let part = data.len() / 4;
        random.fill(&mut data[..part]);
        let at = random.usize(0..=(image.len() - data.len()) / 4096) * 4096;
        client.write(at as u64, &data).unwrap();
        image[at..at + data.len()].copy_from_slice(&data);
    }
    for (command, bytes) in [(Command::Zero, 12_288), (Command::Discard, 8192)] {
        let at = random.usize(0..=(image.len() - bytes) / 4096) * 4096;
        client.call(command, false, at as u64, bytes as u32, &[]).unwrap();
        image[at..at + bytes].fill(0);
    }
    client.flush().unwrap();
}

fn read(client: &mut Client) -> Vec<u8> {
    let bytes = client.size();
    read_all(client, bytes).unwrap()
}

fn host_of(site: &Site) -> Host {
    let mut host = site.host("host").with(["--volume", "disk", "--volume", "secret"]);
    host.journal_size = "64MiB".into();
    host.with([
        "--cache-size",
        "64MiB",
        "--key-file",
        text(&site.path("key")),
        "--plain",
        "disk,copy",
    ])
}

/// Makes a fixture of this version, in the file that `LONGHAUL_E2E_FIXTURE` says.
#[test]
#[ignore = "makes a file: make fixture"]
fn a_fixture_is_made() {
    let file = std::env::var_os("LONGHAUL_E2E_FIXTURE").expect("LONGHAUL_E2E_FIXTURE is a file");
    let file = std::path::absolute(PathBuf::from(file)).unwrap();
    let mut site = Site::with_volume("disk", MIB);
    let key = site.path("key");
    run(longhaul(), ["credential", "new-key", text(&key)]).ok();
    let size = format!("{MIB}MiB");
    site.volume(["create", "secret", "--size", &size, "--encrypt", "--key-file", text(&key)]).ok();
    let mut random = fastrand::Rng::with_seed(7);
    let mut host = host_of(&site);
    host.start();
    for name in ["disk", "secret"] {
        let mut client = host.client(name);
        let mut image = read(&mut client);
        write_some(&mut client, &mut image, &mut random, 12);
        client.disconnect();
    }
    site.snapshot(["create", "disk@monday"]).ok();
    site.volume(["clone", "disk@monday", "copy"]).ok();
    site.volume(["resize", "disk", &format!("{}MiB", MIB + 4)]).ok();
    assert!(host.stop().success());
    // Records of both kinds.
    let mut host = host.with(["--compression", "zstd"]);
    host.start();
    let mut clients = ["disk", "copy", "secret"].map(|name| host.client(name));
    for client in &mut clients {
        let mut image = read(client);
        write_some(client, &mut image, &mut random, 12);
    }
    site.snapshot(["create", "disk@tuesday"]).ok();
    let [mut disk, copy, secret] = clients;
    let mut image = read(&mut disk);
    write_some(&mut disk, &mut image, &mut random, 20);
    assert!(read(&mut disk) == image);
    for client in [disk, copy, secret] {
        client.disconnect();
    }
    for name in ["disk", "copy", "secret"] {
        host.wait_drained(name, LIMIT);
    }
    assert!(host.stop().success());
    site.snapshot(["rollback", "disk@tuesday"]).ok();
    host.start();
    let mut client = host.client("disk");
    let mut image = read(&mut client);
    write_some(&mut client, &mut image, &mut random, 20);
    host.wait_drained("disk", LIMIT);
    let mut digests: Map<String, Value> = IMAGES
        .iter()
        .map(|name| ((*name).to_owned(), digest(&export(&site, name)).into()))
        .collect();
    // The host's undelivered writes.
    assert!(site.store.stop().success());
    write_some(&mut client, &mut image, &mut random, 20);
    digests.insert("disk".into(), digest(&image).into());
    host.kill();
    let version = run(longhaul(), ["--version"]).ok().stdout;
    let said = json!({ "made_by": version.trim(), "sha256": digests });
    std::fs::write(site.path("fixture.json"), format!("{said:#}\n")).unwrap();
    let dir = site.path(".");
    let parts = ["fixture.json", "key", "store", "host"];
    run("tar", ["-C", text(&dir), "-S", "-czf", text(&file)].into_iter().chain(parts)).ok();
}

/// This version serves the whole content of an archive, and can continue from it.
fn is_served(archive: &Path) {
    let dir = temp_dir();
    run("tar", ["-C", text(dir.path()), "-xzf", text(archive)]).ok();
    let path = |name: &str| dir.path().join(name);
    for part in ["store", "host"] {
        run(longhaul(), ["check", text(&path(part))]).ok();
    }
    let said: Value =
        serde_json::from_slice(&std::fs::read(path("fixture.json")).unwrap()).unwrap();
    // Its credential ends some day.
    run(longhaul(), ["credential", "rotate", "--state", text(&path("store"))]).ok();
    let mut store = Store::stopped(&path("store"));
    store.restart();
    let mut site = Site::around(dir, store);
    let mut host = host_of(&site);
    host.start();
    // The new credential has another key than the writer of the journals' rest.
    for volume in ["disk", "secret"] {
        host.attach([volume, "--take-over"]).ok();
        host.wait_drained(volume, LIMIT);
    }
    for name in IMAGES.into_iter().chain(["disk"]) {
        let found = digest(&export(&site, name));
        assert_eq!(said["sha256"][name], found, "{name} of {}", archive.display());
    }
    let mut client = host.client("disk");
    let mut image = read(&mut client);
    assert_eq!(said["sha256"]["disk"], digest(&image));
    let mut random = fastrand::Rng::with_seed(8);
    write_some(&mut client, &mut image, &mut random, 10);
    assert!(read(&mut client) == image);
    client.disconnect();
    site.snapshot(["create", "disk@now"]).ok();
    assert!(export(&site, "disk@now") == image);
    site.snapshot(["delete", "disk@tuesday"]).ok();
    assert!(host.stop().success());
    site.snapshot(["rollback", "disk@monday"]).ok();
    assert_eq!(
        said["sha256"]["disk@monday"],
        digest(&export(&site, "disk")[..(MIB << 20) as usize])
    );
    site.store.kill();
    site.store.restart();
    assert!(export(&site, "disk@now") == image);
    assert!(site.store.stop().success());
    for part in ["store", "host"] {
        run(longhaul(), ["check", text(&site.path(part))]).ok();
    }
}

#[test]
fn what_earlier_versions_have_written_is_served() {
    let mut archives: Vec<PathBuf> = std::fs::read_dir(repository().join("e2e/fixtures"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    archives.sort();
    assert!(!archives.is_empty());
    for archive in archives {
        is_served(&archive);
    }
}

/// Store after store gets replaced, and the other way round, while hosts of either version write.
#[test]
#[ignore = "needs the binary of an earlier version: make upgrade-test"]
fn stores_and_hosts_of_two_versions_get_along() {
    let old = std::env::var_os("LONGHAUL_E2E_OLD").expect("LONGHAUL_E2E_OLD is a binary");
    let (old, new) = (PathBuf::from(old), longhaul().to_path_buf());
    let dir = temp_dir();
    let mut first = Store::stopped(&dir.path().join("store"));
    first.set_binary(&old);
    first.restart();
    let mut site = Site::around(dir, first);
    let mut second = invited(&site, "second");
    second.set_binary(&old);
    second.restart();
    site.create("disk", 32);
    let mut host = site.host("host").with(["--volume", "disk"]);
    let mut history = History::new(8192);
    // The test replaces the first, then the second, then the host; and back again.
    let steps = [
        (&new, &old, &old),
        (&new, &new, &old),
        (&new, &new, &new),
        (&old, &new, &new),
        (&old, &old, &new),
        (&old, &old, &old),
    ];
    for (n, (one, two, of_host)) in steps.into_iter().enumerate() {
        host.set_binary(of_host);
        host.start();
        knows(&host, &[&site.store, &second]);
        let mut client = host.client("disk");
        let mut left = 3;
        let shape = Shape { depth: 4, bytes_per_second: 4_000_000, ..Shape::default() };
        let mut workload = Workload::new(&mut history, &mut client, n as u64, shape);
        let mut since = std::time::Instant::now();
        let work = workload.run(|_| {
            if since.elapsed().as_millis() > 1500 {
                since = std::time::Instant::now();
                left -= 1;
                match left {
                    2 => {
                        site.store.kill();
                        site.store.set_binary(one);
                        site.store.restart();
                    }
                    1 => {
                        second.kill();
                        second.set_binary(two);
                        second.restart();
                    }
                    _ => {}
                }
            }
            left == 0
        });
        work.and_then(|()| workload.settle()).expect("no request fails");
        drop(workload);
        client.disconnect();
        wait_for("a store to be there", LIMIT, || !peer(&host).is_empty());
        has_all(&site, &second, &mut host, "disk", &history);
    }
    assert!(second.stop().success() && site.store.stop().success());
    run(longhaul(), ["check".as_ref(), site.store.dir().as_os_str()]).ok();
}
