//! Compression and encryption end to end: what the store and the disks hold, and who can read it.

use longhaul_e2e::client::Client;
use longhaul_e2e::process::{LIMIT, longhaul, run};
use longhaul_e2e::site::{Host, Relay, Site, files_below, metric};
use longhaul_e2e::stamp::{History, Shape, Workload, read_all};
use longhaul_e2e::wait_for;
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

const BLOCKS: usize = 4096;
const MIB: u64 = (BLOCKS as u64 * 4096) >> 20;

/// Data that only the host may see.
const SECRET: &[u8; 16] = b"Top secret text!";

fn new_key(site: &Site, name: &str) -> String {
    let path = site.path(name).display().to_string();
    run(longhaul(), ["credential", "new-key", &path]).ok();
    run(longhaul(), ["credential", "new-key", &path]).fails(1, &["cannot write the key file"]);
    path
}

fn encrypted(name: &str) -> (Site, String) {
    let site = Site::new();
    let key = new_key(&site, "key");
    let size = format!("{MIB}MiB");
    site.volume(["create", name, "--size", &size, "--encrypt"]).fails(2, &["--key-file"]);
    site.volume(["create", name, "--size", &size, "--encrypt", "--key-file", &key]).ok();
    (site, key)
}

fn holds_secret(dir: &Path) -> bool {
    files_below(dir).iter().any(|path| {
        let data = std::fs::read(path).unwrap();
        data.windows(SECRET.len()).any(|window| window == SECRET)
    })
}

#[test]
fn what_is_encrypted_is_nowhere_in_plain_text_and_for_whoever_has_the_key_file() {
    let (site, key) = encrypted("disk");
    let other = new_key(&site, "other-key");
    let text = SECRET.repeat(256);
    let mut host = site.host("host").with(["--key-file", &key, "--volume", "disk"]);
    host = host.with(["--cache-size", "64MiB"]);
    host.start();
    let mut client = host.client("disk");
    for block in 0..64 {
        client.write(block * 4096, &text).unwrap();
    }
    client.write(1 << 20, &text.repeat(200)).unwrap();
    client.write(4 << 20, &vec![0; 1 << 20]).unwrap();
    client.flush().unwrap();
    assert_eq!(client.read(63 * 4096, 4096).unwrap(), text);
    assert!(!holds_secret(host.state()), "the journal");
    host.wait_drained("disk", LIMIT);
    assert!(!holds_secret(site.store.dir()), "the store");
    let status = host.volume_status("disk");
    assert_eq!(status["encryption_key"], 1, "{status}");
    wait_for("what was written is in the cache", LIMIT, || {
        host.volume_status("disk")["cache"]["valid_bytes"].as_u64() >= Some(1 << 20)
    });
    assert_eq!(client.read(0, 4096).unwrap(), text);
    assert!(!holds_secret(host.state()), "journal and cache");
    assert_eq!(status["counters"]["packed_zero_bytes"], 1 << 20);
    // The host is gone with all it had.
    host.kill();

    let mut stranger = site.host("stranger").with(["--volume", "disk"]);
    stranger.start();
    assert!(stranger.refusal("disk").contains("none was given"));
    assert!(stranger.stop().success());
    let mut stranger = site.host("stranger").with(["--volume", "disk", "--key-file", &other]);
    stranger.start();
    assert!(stranger.refusal("disk").contains("other-key is"));
    assert!(stranger.stop().success());

    let keys = format!("{other},{key}");
    let mut second = site.host("second").with(["--key-file", &keys, "--volume", "disk"]);
    second.start();
    let mut client = second.client("disk");
    assert_eq!(client.read((1 << 20) + 100 * 4096, 4096).unwrap(), text);
    assert_eq!(client.read(4 << 20, 4096).unwrap(), [0; 4096]);

    // A new data key for new writes; old ones open what is there.
    site.volume(["rotate-key", "disk", "--key-file", &other]).fails(1, &["key file"]);
    site.volume(["rotate-key", "disk", "--key-file", &key]).ok();
    wait_for("the host takes the new key", LIMIT, || {
        second.volume_status("disk")["encryption_key"] == 2
    });
    client.write(0, &text).unwrap();
    client.flush().unwrap();
    assert_eq!(client.read(0, 8192).unwrap(), text.repeat(2));
    client.disconnect();
    second.wait_drained("disk", LIMIT);
    assert!(second.stop().success());

    // Another key file for all of them.
    site.volume(["rotate-key", "disk", "--key-file", &key, "--new-key-file", &other]).ok();
    let image = site.path("image");
    let out = image.display().to_string();
    site.volume(["export", "disk", &out, "--key-file", &key]).fails(1, &["--key-file"]);
    site.volume(["export", "disk", &out]).fails(1, &["none was given"]);
    site.volume(["export", "disk", &out, "--key-file", &other]).ok();
    let exported = std::fs::read(&image).unwrap();
    assert_eq!(exported.len() as u64, MIB << 20);
    assert_eq!(&exported[..8192], text.repeat(2));

    let size = format!("{MIB}MiB");
    site.volume(["create", "copy", "--size", &size, "--encrypt", "--key-file", &other]).ok();
    site.volume(["import", "copy", &out]).fails(1, &["none was given"]);
    site.volume(["import", "copy", &out, "--key-file", &other]).ok();
    let again = site.path("again");
    site.volume(["export", "copy", &again.display().to_string(), "--key-file", &other]).ok();
    assert!(std::fs::read(&again).unwrap() == exported);
    assert!(!holds_secret(site.store.dir()), "the store, after rotation and import");

    second = second.with(["--key-file", &other]);
    second.start();
    let mut client = second.client("disk");
    assert_eq!(client.read(0, 4096).unwrap(), text);
    client.disconnect();
    assert!(second.stop().success());
    let mut site = site;
    assert!(site.store.stop().success());
    for dir in [site.store.dir(), second.state()] {
        run(longhaul(), ["check", &dir.display().to_string()]).ok();
    }
}

#[test]
fn a_host_is_killed_with_a_compressed_and_encrypted_volume() {
    let (site, key) = encrypted("disk");
    let mut host = site.host("host").with(["--key-file", &key, "--compression", "lz4"]);
    let mut history = History::new(BLOCKS);
    let mut rng = fastrand::Rng::new();
    for round in 0..6 {
        host.start();
        let mut client = host.client("disk");
        let image = read_all(&mut client, history.bytes()).unwrap();
        let count = history
            .prefix_of(&image, history.acknowledged())
            .unwrap_or_else(|error| panic!("round {round}: {error}"));
        history.cut(count);
        let (pid, after) = (host.server().pid(), Duration::from_millis(rng.u64(100..1200)));
        let killer = std::thread::spawn(move || {
            std::thread::sleep(after);
            let _ = kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), Signal::KILL);
        });
        let shape = Shape { depth: 32, flushes: 10, ..Shape::default() };
        Workload::new(&mut history, &mut client, rng.u64(..), shape)
            .run(|_| false)
            .expect_err("it was killed");
        killer.join().unwrap();
        host.kill();
    }
    host.start();
    let mut client = host.client("disk");
    let image = read_all(&mut client, history.bytes()).unwrap();
    let count = history.prefix_of(&image, history.acknowledged()).unwrap();
    history.cut(count);
    client.disconnect();
    host.wait_drained("disk", LIMIT);
    assert!(host.stop().success());
    // Without compression a host can read it all the same.
    let mut other = site.host("other").with(["--key-file", &key]);
    other.start();
    let image = read_all(&mut other.client("disk"), history.bytes()).unwrap();
    history.prefix_of(&image, history.len()).unwrap();
}

#[test]
fn compression_says_what_it_brings() {
    let site = Site::with_volume("disk", MIB);
    let mut host = site.host("host").with(["--compression", "zstd:3"]);
    host.start();
    let mut client = host.client("disk");
    client.write(0, &SECRET.repeat(65536)).unwrap();
    client.flush().unwrap();
    let ratio = host.volume_status("disk")["compression_ratio"].as_f64().unwrap();
    assert!(ratio > 10.0, "{ratio}");
    host.wait_drained("disk", LIMIT);
    client.disconnect();
    assert!(host.stop().success());
    assert!(site.export("disk").starts_with(&SECRET.repeat(65536)));
    let sent: u64 = site.store.segments().iter().map(|s| s.metadata().unwrap().len()).sum();
    assert!(sent < 200_000, "{sent} bytes of segments");
    for wrong in ["zstd:0", "zstd:20", "gzip"] {
        let host = site.host("wrong").with(["--compression", wrong]);
        host.run_to_failure().fails(2, &["--compression"]);
    }
}

fn cache_file(host: &Host) -> PathBuf {
    let files = files_below(host.state());
    files.into_iter().find(|path| path.ends_with("cache.0000")).expect("there is a cache")
}

/// A host with the volume attached, after the comparison of its cache with the store.
fn start(host: &mut Host) -> Client {
    host.start();
    let client = host.client("disk");
    wait_for("the cache is ready", LIMIT, || {
        host.volume_status("disk")["cache"]["state"] == "ready"
    });
    client
}

/// Blocks of the secret, each with its number and a byte of its own.
fn secret_block(block: u64, byte: u8) -> Vec<u8> {
    let mut data = SECRET.repeat(256);
    data[..8].copy_from_slice(&block.to_le_bytes());
    data[8] = byte;
    data
}

const SECRET_BLOCKS: u64 = 1024;

fn read_secrets(client: &mut Client, byte: impl Fn(u64) -> u8) {
    for block in 0..SECRET_BLOCKS {
        let data = client.read(block * 4096, 4096).unwrap();
        assert!(data == secret_block(block, byte(block)), "block {block}");
    }
    // A part of a block, and across two.
    let data = client.read(4096 * 5 + 512, 1024).unwrap();
    assert_eq!(data, secret_block(5, byte(5))[512..1536]);
    let data = client.read(4096 * 8 - 512, 1024).unwrap();
    assert_eq!(data[..512], secret_block(7, byte(7))[3584..]);
}

#[test]
fn an_encrypted_volume_is_read_from_its_cache_which_nobody_else_can_read() {
    let (site, key) = encrypted("disk");
    let mut first = site.host("first").with(["--key-file", &key, "--volume", "disk"]);
    first.start();
    let mut client = first.client("disk");
    for block in 0..SECRET_BLOCKS {
        client.write(block * 4096, &secret_block(block, 0)).unwrap();
    }
    client.flush().unwrap();
    client.disconnect();
    first.wait_drained("disk", LIMIT);
    assert!(first.stop().success());

    let relay = Relay::start(&site, []);
    let store = ["--store", relay.address.as_str(), "--cache-size", "64MiB"];
    let mut host = site.host("host").with(["--key-file", &key, "--volume", "disk"]).with(store);
    drop(start(&mut host));
    let cache = |host: &Host, args: &[&str]| {
        run(longhaul(), ["cache"].iter().chain(args).chain(&["--admin", host.admin.as_str()])).ok()
    };
    cache(&host, &["pin", "disk", "0-1MiB"]);
    cache(&host, &["warm", "disk", "0-4MiB"]);
    relay.cut();
    let mut client = host.client("disk");
    read_secrets(&mut client, |_| 0);
    let status = host.volume_status("disk");
    assert!(status["cache"]["hit_bytes"].as_u64() >= Some(4 << 20), "{status}");
    let valid = metric(&host.admin, "longhaul_cache_valid_bytes{volume=\"disk\"}");
    assert!(valid >= f64::from(4 << 20), "{valid}");
    assert_eq!(status["cache"]["pinned_valid_bytes"], 1 << 20, "{status}");
    let shown = run(longhaul(), ["status", "--admin", host.admin.as_str()]).ok().stdout;
    assert!(shown.contains("4 MiB of"), "{shown}");
    relay.restore();
    client.disconnect();
    assert!(host.stop().success());
    assert!(!holds_secret(host.state()), "a cache that was filled by reads");

    // It is warm after a restart, and after a crash. A later write shows its own data, not the old
    // read.
    let mut client = start(&mut host);
    relay.cut();
    read_secrets(&mut client, |_| 0);
    relay.restore();
    let rewritten = |block: u64| u8::from(block.is_multiple_of(3));
    for block in (0..SECRET_BLOCKS).step_by(3) {
        client.write(block * 4096, &secret_block(block, 1)).unwrap();
    }
    client.flush().unwrap();
    host.wait_drained("disk", LIMIT);
    read_secrets(&mut client, rewritten);
    host.kill();
    let mut client = start(&mut host);
    read_secrets(&mut client, rewritten);

    // New cached blocks use the next key; the old ones stay.
    site.volume(["rotate-key", "disk", "--key-file", &key]).ok();
    wait_for("the host takes the new key", LIMIT, || {
        host.volume_status("disk")["encryption_key"] == 2
    });
    client.write(0, &secret_block(0, 2)).unwrap();
    client.flush().unwrap();
    host.wait_drained("disk", LIMIT);
    let rotated = |block: u64| if block == 0 { 2 } else { rewritten(block) };
    relay.cut();
    read_secrets(&mut client, rotated);
    relay.restore();
    client.disconnect();
    assert!(host.stop().success());
    assert!(!holds_secret(host.state()), "a cache that was filled by writes");

    // Any change of the file is a miss.
    let path = cache_file(&host);
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    for offset in (1 << 20..64 << 20).step_by(5000) {
        file.write_all_at(&[0xee; 40], offset).unwrap();
    }
    let mut client = start(&mut host);
    read_secrets(&mut client, rotated);
    assert!(host.volume_status("disk")["cache"]["damaged_blocks"].as_u64() > Some(0));
    client.disconnect();
    assert!(host.stop().success());
    assert!(!holds_secret(host.state()));
}
