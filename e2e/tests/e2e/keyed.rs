//! A store that nobody may trust, and hosts that know their writes to an encrypted volume.

use longhaul_e2e::process::{LIMIT, run};
use longhaul_e2e::site::{Host, Site};
use std::path::Path;

const MIB: usize = 16;

fn host(site: &Site, name: &str, key: &str) -> Host {
    // Its journal is so short that a few rounds over the volume leave nothing of the first in it.
    site.host(name).with(["--key-file", key, "--volume", "disk"])
}

/// Fills the volume, and delivers it.
fn fill(host: &mut Host, byte: u8) {
    let mut client = host.client("disk");
    for block in 0..MIB {
        client.write((block as u64) << 20, &vec![byte; 1 << 20]).unwrap();
    }
    client.flush().unwrap();
    client.disconnect();
    host.wait_drained("disk", LIMIT);
}

fn expect(host: &mut Host, byte: u8) {
    let mut client = host.client("disk");
    for block in 0..MIB {
        let data = client.read((block as u64) << 20, 1 << 20).unwrap();
        assert!(data.iter().all(|found| *found == byte), "MiB {block}");
    }
    client.disconnect();
}

fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    run("cp", ["-a", &from.display().to_string(), &to.display().to_string()]).ok();
}

/// The token in a refusal, which a host can accept.
fn token(refusal: &str) -> String {
    assert!(refusal.contains("not as this host left it"), "{refusal}");
    let (_, rest) = refusal.split_once("--accept-rollback disk=").expect("it says how to go on");
    rest[..16].to_owned()
}

#[test]
fn a_store_that_is_brought_back_from_a_copy_is_refused_until_that_is_accepted() {
    let (mut site, key) = Site::with_encrypted("disk", MIB as u64);
    let mut host = host(&site, "host", &key);
    host.start();
    fill(&mut host, 1);
    assert!(host.stop().success());
    assert!(site.store.stop().success());
    let (data, old) = (site.store.dir().to_owned(), site.path("old"));
    copy(&data, &old);
    site.store.restart();
    host.start();
    for byte in 2..8 {
        fill(&mut host, byte);
    }
    expect(&mut host, 7);
    let versions = host.volume_status("disk")["versions"].clone();
    assert_eq!((&versions["state"], &versions["outdated"]), (&"complete".into(), &0.into()));
    assert!(host.stop().success());

    assert!(site.store.stop().success());
    copy(&old, &data);
    site.store.restart();
    host.start();
    let refusal = host.refusal("disk");
    assert!(refusal.contains("disk"), "{refusal}");
    assert!(host.stop().success());
    // Without its journal the host knows it all the same.
    let volumes = host.state().join("volumes");
    let journal = std::fs::read_dir(&volumes).unwrap().next().unwrap().unwrap().path();
    std::fs::rename(&journal, site.path("salvage")).unwrap();
    host.start();
    let token = token(&host.refusal("disk"));
    assert!(host.stop().success());
    let accept = format!("disk={token}");
    let mut host = host.with(["--accept-rollback", &accept]);
    host.start();
    expect(&mut host, 1);
    fill(&mut host, 9);
    expect(&mut host, 9);
    assert!(host.stop().success());

    // The acceptance was for that one rollback.
    assert!(site.store.stop().success());
    copy(&old, &data);
    site.store.restart();
    std::fs::remove_dir_all(std::fs::read_dir(&volumes).unwrap().next().unwrap().unwrap().path())
        .unwrap();
    host.start();
    assert_ne!(self::token(&host.refusal("disk")), token);
    assert!(host.stop().success());
}

#[test]
fn an_honest_store_is_believed_through_kills_and_other_hosts_and_a_rollback_is_accepted_by_name() {
    let (site, key) = Site::with_encrypted("disk", MIB as u64);
    let (mut first, mut second) = (host(&site, "first", &key), host(&site, "second", &key));
    first.start();
    for byte in 1..6 {
        fill(&mut first, byte);
        first.kill();
        first.start();
        expect(&mut first, byte);
    }
    let mut client = first.client("disk");
    client.write(512, &[9; 512]).unwrap();
    client.flush().unwrap();
    client.disconnect();
    assert!(first.stop().success());
    // Another host with the keys. This host believes its changes, and compares the rest.
    second.start();
    let mut client = second.client("disk");
    assert_eq!(client.read(0, 1024).unwrap(), [[5; 512], [9; 512]].concat());
    client.write(1 << 20, &vec![8; 4096]).unwrap();
    client.flush().unwrap();
    client.disconnect();
    assert_eq!(second.volume_status("disk")["versions"]["state"], "partial");
    assert!(second.stop().success());
    first.start();
    let mut client = first.client("disk");
    assert_eq!(client.read(1 << 20, 4096).unwrap(), vec![8; 4096]);
    assert_eq!(client.read(2 << 20, 4096).unwrap(), vec![5; 4096]);
    client.disconnect();
    site.snapshot(["create", "disk@then"]).ok();
    fill(&mut first, 7);
    assert!(first.stop().success());
    site.snapshot(["rollback", "disk@then"]).ok();
    first.start();
    let token = token(&first.refusal("disk"));
    assert!(first.stop().success());
    let mut first = first.with(["--accept-rollback", &format!("disk={token}")]);
    first.start();
    let mut client = first.client("disk");
    assert_eq!(client.read(1 << 20, 4096).unwrap(), vec![8; 4096]);
    assert_eq!(client.read(2 << 20, 4096).unwrap(), vec![5; 4096]);
    client.disconnect();
    assert!(first.stop().success());
}
