//! Hosts that know nothing of an encrypted volume but its root.

use longhaul_e2e::client::{Client, Command};
use longhaul_e2e::process::{LIMIT, run};
use longhaul_e2e::site::{Host, Site};
use longhaul_e2e::wait_for;
use serde_json::Value;
use std::path::{Path, PathBuf};

const MIB: u64 = 24;

fn host(site: &Site, name: &str, key: &str) -> Host {
    site.host(name).with(["--key-file", key, "--volume", "disk"])
}

fn expecting(site: &Site, name: &str, key: &str, root: &str) -> Host {
    let expected = format!("disk={root}");
    host(site, name, key).with(["--expect-root", &expected])
}

/// The store's last statement of a root, as in `longhaul volume show`.
fn shown(site: &Site, volume: &str, key: &str) -> Value {
    site.volume(["show", volume, "--json", "--key-file", key]).ok().json()["root"].clone()
}

fn hash(root: &Value) -> &str {
    root["hash"].as_str().unwrap_or_else(|| panic!("no root in {root}"))
}

/// Writes of all kinds: whole blocks, parts of blocks, zeroes; far apart, so that there are holes.
fn write(client: &mut Client, byte: u8) {
    client.write(0, &[byte; 64 << 10]).unwrap();
    client.write(3 << 20, &vec![byte ^ 0x55; 1 << 20]).unwrap();
    client.write((3 << 20) + 512, &[byte; 1024]).unwrap();
    client.call(Command::Zero, false, (3 << 20) + 8192, 8192, &[]).unwrap();
    client.write((MIB << 20) - 1536, &[byte; 1536]).unwrap();
    client.call(Command::Discard, false, (3 << 20) + (256 << 10), 64 << 10, &[]).unwrap();
    client.flush().unwrap();
}

fn write_and_stop(host: &mut Host, byte: u8) {
    host.start();
    let mut client = host.client("disk");
    write(&mut client, byte);
    client.disconnect();
    host.wait_drained("disk", LIMIT);
    assert!(host.stop().success());
}

fn content(host: &Host) -> Vec<u8> {
    let mut client = host.client("disk");
    let content = (0..MIB).flat_map(|at| client.read(at << 20, 1 << 20).unwrap()).collect();
    client.disconnect();
    content
}

fn state(host: &Host) -> Value {
    host.volume_status("disk")["versions"]["state"].clone()
}

#[test]
fn a_host_that_knows_only_the_root_attaches_that_state_and_no_other() {
    let (site, key) = Site::with_encrypted("disk", MIB);
    let mut first = host(&site, "first", &key);
    assert_eq!(shown(&site, "disk", &key), Value::Null);
    write_and_stop(&mut first, 1);
    let root = shown(&site, "disk", &key);
    assert_eq!(root["later_writes"], 0, "{root}");
    let text = site.volume(["show", "disk", "--key-file", &key]).ok().stdout;
    assert!(text.contains(hash(&root)), "{text}");

    let mut second = host(&site, "second", &key).with(["--expect-root", hash(&root)]);
    second.start();
    let before = content(&second);
    assert_eq!((before[0], before[(3 << 20) + 512], before[(3 << 20) + 8192]), (1, 1, 0));
    assert_eq!(state(&second), "complete");
    assert!(second.stop().success());
    // It has written nothing, and knows the same.
    assert_eq!(shown(&site, "disk", &key), root);
    write_and_stop(&mut second, 2);
    let newer = shown(&site, "disk", &key);
    assert_ne!(hash(&newer), hash(&root));
    // A host with a table goes by that, whatever root its start expected.
    second.start();
    assert_eq!(content(&second)[0], 2);
    let mut client = second.client("disk");
    client.write(0, &[3; 4096]).unwrap();
    client.flush().unwrap();
    client.disconnect();
    second.wait_drained("disk", LIMIT);
    let later = shown(&site, "disk", &key);
    assert_eq!((hash(&later), &later["later_writes"]), (hash(&newer), &1.into()), "{later}");
    assert!(second.stop().success());

    let mut third = expecting(&site, "third", &key, hash(&newer));
    third.start();
    let why = third.refusal("disk");
    assert!(why.contains("--expect-root") && why.contains("another root is stated"), "{why}");
    assert!(third.stop().success());
    // The first one knows the volume, and believes the others, who have its keys.
    first.start();
    assert_eq!(content(&first)[..4096], [3; 4096]);
    assert!(first.stop().success());

    // The failure to open a table shows when the volume is this host's already: it goes back to the
    // store.
    let mut tables = std::fs::read_dir(first.state().join("versions")).unwrap();
    let marks = tables.next().unwrap().unwrap().path().join("versions.0001");
    std::fs::remove_file(&marks).unwrap();
    std::fs::create_dir(&marks).unwrap();
    first.start();
    wait_for("the first host to fail", LIMIT, || {
        ["stopped", "refused"].iter().any(|state| first.volume_status("disk")["state"] == *state)
    });
    second.start();
    assert_eq!(content(&second)[..4096], [3; 4096]);
}

fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    run("cp", ["-a", &from.display().to_string(), &to.display().to_string()]).ok();
}

/// The directory in which a store keeps the statements about the volume.
fn stated(site: &Site) -> PathBuf {
    let mut found = longhaul_e2e::site::files_below(site.store.dir());
    found.retain(|path| path.parent().is_some_and(|dir| dir.ends_with("attr/versions")));
    found[0].parent().unwrap().to_owned()
}

/// A store with an older state, and one with another history of the same length. For the latter it
/// shows the statement of the right one.
#[test]
fn a_store_with_another_state_is_found_out() {
    let (mut site, key) = Site::with_encrypted("disk", MIB);
    let mut writer = host(&site, "writer", &key);
    write_and_stop(&mut writer, 1);
    assert!(site.store.stop().success());
    let (data, old, old_host) =
        (site.store.dir().to_owned(), site.path("old"), site.path("old-host"));
    copy(&data, &old);
    copy(writer.state(), &old_host);
    site.store.restart();
    write_and_stop(&mut writer, 2);
    let root = shown(&site, "disk", &key);
    assert!(site.store.stop().success());
    let true_statement = site.path("statement");
    copy(&stated(&site), &true_statement);

    copy(&old, &data);
    site.store.restart();
    let mut victim = expecting(&site, "victim", &key, hash(&root));
    victim.start();
    assert!(victim.refusal("disk").contains("another root is stated"));
    assert!(victim.stop().success());

    assert!(site.store.stop().success());
    copy(&old, &data);
    copy(&old_host, writer.state());
    site.store.restart();
    write_and_stop(&mut writer, 3);
    let other = shown(&site, "disk", &key);
    assert_eq!(other["write"], root["write"], "the histories are of the same length");
    assert!(site.store.stop().success());
    copy(&true_statement, &stated(&site));
    site.store.restart();
    assert_eq!(shown(&site, "disk", &key), root, "so the store says");
    victim.start();
    let why = victim.refusal("disk");
    assert!(why.contains("the host read all of it") && why.contains(hash(&other)), "{why}");
    let versions = victim.state().join("versions");
    let left = std::fs::read_dir(&versions).map_or(0, Iterator::count);
    assert_eq!(left, 0, "nothing of it counts");
    // The host does not read it again and again, and the volume is free for others.
    assert!(victim.refusal("disk").contains("the host read all of it"));
    assert!(victim.stop().success());
}

/// A clone is of a volume that its host does not know; the store dies while the host reads
/// everything.
#[test]
fn all_of_a_volume_is_learned_through_a_restart_of_the_store() {
    let (mut site, key) = Site::with_encrypted("disk", MIB);
    let mut first = host(&site, "first", &key);
    write_and_stop(&mut first, 1);
    site.snapshot(["create", "disk@base"]).ok();
    site.volume(["clone", "disk@base", "copy", "--key-file", &key]).ok();
    let keyed =
        |site: &Site, name: &str| site.host(name).with(["--key-file", &key, "--volume", "copy"]);
    // Without a word of the operator a host knows what it has seen, and has no root.
    let mut partial = keyed(&site, "partial");
    partial.start();
    assert_eq!(partial.client("copy").read(0, 4096).unwrap(), [1; 4096]);
    assert_eq!(partial.volume_status("copy")["versions"]["state"], "partial");
    assert!(partial.stop().success());
    assert_eq!(shown(&site, "copy", &key), Value::Null);
    let mut second = keyed(&site, "second").with(["--expect-root", "copy=any"]);
    second.start();
    site.store.kill();
    site.store.restart();
    assert_eq!(second.client("copy").read(0, 4096).unwrap(), [1; 4096]);
    assert_eq!(second.volume_status("copy")["versions"]["state"], "complete");
    assert!(second.stop().success());
    let root = shown(&site, "copy", &key);
    let expected = format!("copy={}", hash(&root));
    let mut third = keyed(&site, "third").with(["--expect-root", &expected]);
    third.start();
    assert_eq!(third.client("copy").read(3 << 20, 512).unwrap(), [1 ^ 0x55; 512]);
    assert!(third.stop().success());
    assert_eq!(hash(&shown(&site, "copy", &key)), hash(&root));
}

#[test]
fn a_root_is_expected_of_encrypted_volumes_only() {
    let (site, key) = Site::with_encrypted("disk", MIB);
    site.volume(["create", "open", "--size", "4MiB"]).ok();
    let flags = ["--expect-root", "open=any", "--volume", "open"];
    let mut plain = site.host("plain").with(flags);
    plain.start();
    assert!(plain.refusal("open").contains("not encrypted"));
    assert!(plain.stop().success());
    let host = site.host("through").with(["--key-file", &key, "--write-through"]).with(flags);
    host.run_to_failure().fails(2, &["--write-through", "--expect-root"]);
    let host = site.host("wrong").with(["--expect-root", "disk=1234"]);
    host.run_to_failure().fails(2, &["NAME=HASH", "longhaul volume show"]);
    let host =
        self::host(&site, "several", &key).with(["--expect-root", "any", "--volume", "open"]);
    host.run_to_failure().fails(2, &["NAME=HASH", "one --volume"]);
    let text = site.volume(["show", "open", "--key-file", &key]).ok().stdout;
    assert!(text.contains("not encrypted"), "{text}");
    let mut gone = expecting(&site, "gone", &key, &"0a".repeat(32));
    gone.start();
    let why = gone.refusal("disk");
    assert!(why.contains("has stated a root"), "{why}");
    // The host hands its epoch back.
    wait_for("the volume to be free", LIMIT, || {
        let show = site.volume(["show", "disk", "--json"]).ok().json();
        show["live"]["connected"] != true
    });
    assert!(gone.stop().success());
}
