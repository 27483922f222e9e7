//! The cache in front of a store's objects, seen from outside.

use longhaul_e2e::client::Client;
use longhaul_e2e::content;
use longhaul_e2e::process::{LIMIT, command, longhaul, run_within};
use longhaul_e2e::site::{Host, Site, metric};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::time::Duration;

const MIB: u64 = 8;
/// Longer than a change of the cache's index stays out of its file.
const WRITTEN: Duration = Duration::from_secs(12);

/// A store with a cache, and a volume of which it has everything.
fn filled() -> Site {
    let mut site = Site::with_volume("disk", MIB);
    site.store.stop();
    site.store.set_flags(["--cache-size", "64MiB"]);
    site.store.restart();
    let mut host = site.host("writer");
    host.start();
    let mut client = host.client("disk");
    for offset in (0..MIB << 20).step_by(256 << 10) {
        client.write(offset, &content(offset, 256 << 10)).unwrap();
    }
    client.flush().unwrap();
    client.disconnect();
    host.wait_drained("disk", LIMIT);
    assert!(host.stop().success());
    site
}

/// A host that has nothing.
fn cold(site: &Site, name: &str) -> (Host, Client) {
    let mut host = site.host(name);
    host.start();
    let client = host.client("disk");
    (host, client)
}

fn read_all(client: &mut Client) {
    for offset in (0..MIB << 20).step_by(64 << 10) {
        let data = client.read(offset, 64 << 10).unwrap();
        assert!(data == content(offset, 64 << 10), "at {offset}");
    }
}

fn cache_file(site: &Site) -> PathBuf {
    site.store.dir().join("cache/objects.0000")
}

/// Overwrites what segments hold but for their ends, and says what it was.
fn blank(site: &Site) -> Vec<(PathBuf, Vec<u8>)> {
    let segments = site.store.segments().into_iter();
    let whole = segments.map(|path| (path.clone(), std::fs::read(path).unwrap()));
    let whole: Vec<_> = whole.filter(|(_, data)| data.len() > 64 << 10).collect();
    for (path, data) in &whole {
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.write_all_at(&vec![0xee; data.len() - (16 << 10)], 8 << 10).unwrap();
    }
    assert!(!whole.is_empty());
    whole
}

#[test]
fn a_second_reader_is_served_from_the_stores_cache_also_after_a_kill() {
    let mut site = filled();
    let (mut host, mut client) = cold(&site, "first");
    read_all(&mut client);
    client.disconnect();
    assert!(host.stop().success());
    let cached = metric(&site.store.admin, "longhaul_store_cache_bytes");
    assert!(cached > 0.9 * (MIB << 20) as f64, "{cached}");
    std::thread::sleep(WRITTEN);
    site.store.kill();
    site.store.restart();
    assert!(site.store.server().log().contains("opened a cache of 64"));
    let (mut host, mut client) = cold(&site, "second");
    // Later reads from the objects give other data than the writes.
    let segments = blank(&site);
    read_all(&mut client);
    let (hits, misses) = (
        metric(&site.store.admin, "longhaul_store_cache_hits_total"),
        metric(&site.store.admin, "longhaul_store_cache_misses_total"),
    );
    assert!(hits > 10.0 && misses == 0.0, "{hits} hits, {misses} misses");
    client.disconnect();
    assert!(host.stop().success());

    // Without the cache the damage shows.
    site.store.stop();
    site.store.set_flags(["--cache-size", "0"]);
    site.store.restart();
    let (mut host, mut client) = cold(&site, "third");
    let places = (0..MIB << 20).step_by(64 << 10);
    let refused = places.filter(|offset| client.read(*offset, 64 << 10).is_err()).count();
    assert!(refused > 10, "{refused} of the reads failed");
    client.disconnect();
    assert!(host.stop().success());
    for (path, data) in segments {
        std::fs::write(path, data).unwrap();
    }
}

#[test]
fn a_damaged_cache_is_a_miss_and_another_ones_is_dropped() {
    let mut site = filled();
    let (mut host, mut client) = cold(&site, "first");
    read_all(&mut client);
    client.disconnect();
    assert!(host.stop().success());
    assert!(site.store.stop().success());

    let path = cache_file(&site);
    let mut bytes = std::fs::read(&path).unwrap();
    // Blocks, and a little of the index: its heads and most of its pages stay.
    for at in (128 << 10..bytes.len()).step_by(1021) {
        bytes[at] ^= 0x20;
    }
    std::fs::write(&path, &bytes).unwrap();
    site.store.restart();
    let (mut host, mut client) = cold(&site, "second");
    read_all(&mut client);
    let damaged = metric(&site.store.admin, "longhaul_store_cache_damaged_blocks_total");
    assert!(damaged > 0.0);
    client.disconnect();
    assert!(host.stop().success());
    assert!(site.store.stop().success());

    // A file of the same size that is another installation's.
    let other = filled();
    std::fs::copy(cache_file(&other), &path).unwrap();
    site.store.restart();
    assert!(
        site.store.server().log().contains("drops the content of the object cache"),
        "{}",
        site.store.server().log()
    );
    let (_host, mut client) = cold(&site, "third");
    read_all(&mut client);
    assert!(metric(&site.store.admin, "longhaul_store_cache_misses_total") > 0.0);
}

#[test]
fn where_there_is_no_cache_a_store_serves_all_the_same() {
    let mut site = filled();
    site.store.stop();
    let file = site.path("no-directory");
    std::fs::write(&file, "x").unwrap();
    site.store.set_flags(["--cache-size", "64MiB", "--cache-dir", file.to_str().unwrap()]);
    site.store.restart();
    assert!(site.store.server().log().contains("the store runs without an object cache"));
    let (_host, mut client) = cold(&site, "first");
    read_all(&mut client);
    let mut command = command(longhaul());
    command.args(["store", "--cache-size", "1MiB", "--listen", "127.0.0.1:0", "--admin", "none"]);
    command.arg("--data").arg(site.path("other"));
    run_within(command, LIMIT).fails(2, &["--cache-size", "64"]);
    assert!(!site.path("other").exists(), "nothing was made");
}
