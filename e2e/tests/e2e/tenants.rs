//! Volumes that are deleted and come back, and tenants that know nothing of each other.

use longhaul_e2e::process::{LIMIT, longhaul, run};
use longhaul_e2e::site::{Site, files_below};
use longhaul_e2e::wait_for;
use serde_json::Value;

const MIB: u64 = 8;

fn deleted(site: &Site) -> Vec<Value> {
    let list = site.volume(["list", "--deleted", "--json"]).ok().json();
    list["volumes"].as_array().unwrap().clone()
}

fn written(site: &Site, volume: &str, byte: u8) {
    let mut host = site.host(&format!("writer-{byte}"));
    host.start();
    let mut client = host.client(volume);
    client.write(0, &[byte; 64 << 10]).unwrap();
    client.flush().unwrap();
    client.disconnect();
    assert!(host.stop().success());
}

#[test]
fn a_deleted_volume_comes_back_as_it_was() {
    let mut site = Site::with_volume("disk", MIB);
    written(&site, "disk", 7);
    site.snapshot(["create", "disk@monday"]).ok();
    let id = site.show("disk")["id"].clone();
    let mut reader = site.host("reader");
    reader.start();
    let mut snapshot = reader.client("disk@monday");
    assert_eq!(snapshot.read(0, 4096).unwrap(), [7; 4096]);
    site.volume(["delete", "disk"]).ok();
    // It is gone for everybody, and so are its snapshots.
    assert!(snapshot.read(1 << 20, 4096).is_err());
    assert!(reader.refusal("disk").contains("no such volume"));
    site.volume(["show", "disk"]).fails(1, &["no such volume"]);
    site.volume(["export", "disk@monday", "/dev/null"]).fails(1, &["no such volume"]);
    let list = deleted(&site);
    assert_eq!((&list[0]["id"], &list[0]["size_bytes"]), (&id, &(MIB << 20).into()));
    assert!(list[0]["until"].as_u64() > list[0]["deleted"].as_u64());
    // Its name is free, and stays with whoever has it.
    site.create("disk", 1);
    site.volume(["undelete", "disk"]).fails(1, &["exists"]);
    site.store.kill();
    site.store.restart();
    site.volume(["undelete", "disk", "--name", "old"]).ok();
    assert!(deleted(&site).is_empty());
    assert_eq!(site.show("old")["id"], id);
    assert_eq!(site.export("old")[..64 << 10], [7; 64 << 10]);
    assert_eq!(site.export("old@monday")[..64 << 10], [7; 64 << 10]);
    written(&site, "old", 8);
    // Twice deleted and of one name they are told apart.
    site.volume(["delete", "disk"]).ok();
    site.volume(["delete", "old"]).ok();
    site.volume(["undelete", "nothing"]).fails(1, &["list --deleted"]);
    site.volume(["undelete", "old", "--name", "disk"]).ok();
    site.volume(["delete", "disk"]).ok();
    site.volume(["undelete", "disk"]).fails(2, &["identity"]);
    site.volume(["undelete", id.as_str().unwrap(), "--name", "a/b"]).fails(1, &[]);
    site.volume(["undelete", id.as_str().unwrap()]).ok();
    assert_eq!(site.export("disk")[..64 << 10], [8; 64 << 10]);
    assert!(site.store.stop().success());
    run(longhaul(), ["check".as_ref(), site.store.dir().as_os_str()]).ok();
}

#[test]
fn what_is_deleted_goes_when_its_time_is_up_or_at_once() {
    let mut site = Site::new();
    let data = |site: &Site| files_below(&site.store.dir().join("objects/v")).len();
    let gone = |site: &Site| {
        wait_for("the data to be removed", LIMIT, || data(site) == 0);
        assert!(deleted(site).is_empty());
    };
    site.create("disk", MIB);
    written(&site, "disk", 1);
    assert!(data(&site) > 0);
    site.volume(["delete", "disk", "--now"]).ok();
    gone(&site);
    site.create("disk", MIB);
    written(&site, "disk", 2);
    site.volume(["delete", "disk"]).ok();
    assert!(data(&site) > 0);
    site.volume(["delete", "disk", "--now"]).ok();
    gone(&site);
    site.volume(["delete", "disk", "--now"]).fails(1, &["no deleted volume"]);
    // A store that keeps nothing, and one that is started after the time.
    site.create("disk", MIB);
    written(&site, "disk", 3);
    site.volume(["delete", "disk"]).ok();
    site.store.stop();
    std::thread::sleep(std::time::Duration::from_secs(2));
    site.store.set_flags(["--delete-grace", "1s"]);
    site.store.restart();
    gone(&site);
    site.store.stop();
    site.store.set_flags(["--delete-grace", "0"]);
    site.store.restart();
    site.create("disk", MIB);
    written(&site, "disk", 4);
    site.volume(["delete", "disk"]).ok();
    gone(&site);
    assert!(site.store.stop().success());
    run(longhaul(), ["check".as_ref(), site.store.dir().as_os_str()]).ok();
}
