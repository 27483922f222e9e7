//! Encrypted volumes against a store that lies: it hides lists of keys, swaps volumes, and hands
//! out plain text.

use longhaul_e2e::process::{LIMIT, command, longhaul, run};
use longhaul_e2e::site::{Host, Site, files_below};
use longhaul_e2e::stamp::{History, Shape, Workload};
use longhaul_e2e::wait_for;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Data that only the host may see.
const SECRET: &[u8; 16] = b"Top secret text!";
const MIB: &str = "8MiB";

fn key_file(site: &Site, name: &str) -> String {
    let path = site.path(name).display().to_string();
    run(longhaul(), ["credential", "new-key", &path]).ok();
    path
}

/// A site with encrypted volumes of one key file.
fn site_with(names: &[&str]) -> (Site, String) {
    let site = Site::new();
    let key = key_file(&site, "key");
    for name in names {
        site.volume(["create", name, "--size", MIB, "--encrypt", "--key-file", &key]).ok();
    }
    (site, key)
}

/// The lists of keys that a store keeps.
fn lists(site: &Site) -> Vec<PathBuf> {
    let mut found = files_below(site.store.dir());
    found.retain(|path| path.parent().is_some_and(|parent| parent.ends_with("attr/keys")));
    found
}

/// The store hides the lists, and gives back what shows them again.
fn hide(site: &Site) -> Vec<(PathBuf, Vec<u8>)> {
    let found = lists(site);
    assert!(!found.is_empty());
    let kept = found.into_iter().map(|path| {
        let data = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        (path, data)
    });
    kept.collect()
}

fn show(hidden: &[(PathBuf, Vec<u8>)]) {
    for (path, data) in hidden {
        std::fs::write(path, data).unwrap();
    }
}

fn holds_secret(dir: &Path) -> bool {
    files_below(dir).iter().any(|path| {
        let data = std::fs::read(path).unwrap();
        data.windows(SECRET.len()).any(|window| window == SECRET)
    })
}

fn write_and_stop(mut host: Host, volume: &str, block: &[u8]) -> Host {
    host.start();
    let mut client = host.client(volume);
    client.write(0, block).unwrap();
    client.flush().unwrap();
    client.disconnect();
    host.wait_drained(volume, LIMIT);
    assert!(host.stop().success());
    host
}

#[test]
fn a_store_that_hides_the_keys_gets_no_plain_text() {
    let (site, key) = site_with(&["disk"]);
    let with_key = ["--key-file", &key, "--volume", "disk"];
    let through = ["--key-file", &key, "--volume", "disk", "--write-through"];
    // Hosts that have never seen the volume know from the key file that it is encrypted.
    let hidden = hide(&site);
    for (state, flags) in [("fresh", &with_key[..]), ("through", &through)] {
        let mut host = site.host(state).with(flags.iter().copied());
        host.start();
        let why = host.refusal("disk");
        assert!(why.contains("not encrypted") && why.contains("--plain disk"), "{why}");
        assert!(host.stop().success());
    }
    let mut host = site.host("required").with(["--volume", "disk", "--require-encryption"]);
    host.start();
    assert!(host.refusal("disk").contains("--require-encryption"));
    assert!(host.stop().success());
    show(&hidden);
    // One that has seen it encrypted remembers that in every mode, whatever flags it has later.
    for (state, flags) in [("journal", &with_key[..]), ("no-journal", &through)] {
        let host = site.host(state).with(flags.iter().copied());
        write_and_stop(host, "disk", &SECRET.repeat(256));
    }
    let hidden = hide(&site);
    for state in ["journal", "no-journal"] {
        for flags in [&["--write-through"][..], &[], &["--write-through", "--plain", "disk"]] {
            let mut host = site.host(state).with(["--volume", "disk"]).with(flags.iter().copied());
            host.start();
            let why = host.refusal("disk");
            assert!(why.contains("attached here before"), "{state} {flags:?}: {why}");
            assert!(host.stop().success());
        }
    }
    assert!(!holds_secret(site.store.dir()));
    show(&hidden);
    // Beside them there may be plain ones, if the operator says which.
    site.volume(["create", "open", "--size", MIB]).ok();
    let mut host = site.host("both").with(["--key-file", &key, "--volume", "disk,open"]);
    host.start();
    assert!(host.refusal("open").contains("--plain open"));
    assert!(host.stop().success());
    let host = host.with(["--plain", "open"]);
    let mut host = write_and_stop(host, "open", &SECRET.repeat(256));
    assert!(holds_secret(site.store.dir()));
    host.start();
    assert_eq!(host.client("disk").read(0, 4096).unwrap(), SECRET.repeat(256));
    assert!(host.stop().success());
    // A key file for one volume says nothing of others.
    let named = format!("disk={key}");
    let mut host = site.host("named").with(["--key-file", &named, "--volume", "disk,open"]);
    host.start();
    for volume in ["disk", "open"] {
        assert_eq!(host.client(volume).read(0, 4096).unwrap(), SECRET.repeat(256));
    }
    assert!(host.stop().success());
    // Commands go by the same rule.
    let image = site.path("image").display().to_string();
    let export = ["export", "open", &image, "--force", "--key-file", &key];
    site.volume(export).fails(1, &["not encrypted", "--plain"]);
    site.volume([&export[..], &["--plain"]].concat()).ok();
    let mut wrong = site.host("wrong").with(["--plain", "disk", "--key-file", &named]);
    wrong = wrong.with(["--volume", "disk"]);
    wrong.run_to_failure().fails(2, &["--plain disk"]);
}

#[test]
fn plain_text_that_a_store_hands_out_is_an_error() {
    let (site, key) = site_with(&["disk"]);
    let victim = site.host("victim").with(["--key-file", &key, "--volume", "disk"]);
    drop(write_and_stop(victim, "disk", &SECRET.repeat(512)));
    let hidden = hide(&site);
    for (state, flags) in [("one", &[][..]), ("two", &["--compression", "lz4"])] {
        let block = if state == "one" { 0 } else { 4096 };
        let mut attacker = site.host(state).with(["--volume", "disk"]).with(flags.iter().copied());
        attacker.start();
        let mut client = attacker.client("disk");
        client.write(block, &[0x66; 4096]).unwrap();
        client.flush().unwrap();
        client.disconnect();
        attacker.wait_drained("disk", LIMIT);
        assert!(attacker.stop().success());
    }
    show(&hidden);
    let image = site.path("image").display().to_string();
    let export = ["export", "disk", &image, "--force", "--key-file", &key];
    site.volume(export).fails(1, &["unencrypted"]);
    // The former host has a version table, and refuses the attach. These have none.
    for (state, flags) in [("fresh", &[][..]), ("through", &["--write-through"])] {
        let mut victim = site.host(state).with(["--key-file", &key, "--volume", "disk"]);
        victim = victim.with(flags.iter().copied());
        victim.start();
        let mut client = victim.client("disk");
        for block in [0, 4096] {
            let read = client.read(block, 4096);
            assert!(read.is_err(), "{state}, block at {block}: {:?}", read.map(|data| data[0]));
        }
        victim.server().wait_until("it says why", LIMIT, || {
            let log = std::fs::read_to_string(victim_log(&site, state)).unwrap_or_default();
            log.contains("unencrypted")
        });
        assert_eq!(client.read(8192, 4096).unwrap(), [0; 4096]);
        client.write(0, &SECRET.repeat(256)).unwrap();
        client.flush().unwrap();
        assert_eq!(client.read(0, 4096).unwrap(), SECRET.repeat(256));
        client.disconnect();
        assert!(victim.stop().success());
        if state == "fresh" {
            // For the second round, at the same place.
            let hidden = hide(&site);
            let attacker = site.host("three").with(["--volume", "disk"]);
            write_and_stop(attacker, "disk", &[0x67; 4096]);
            show(&hidden);
        }
    }
}

fn victim_log(site: &Site, state: &str) -> PathBuf {
    site.path(state).with_extension("log")
}

#[test]
fn a_volume_under_the_name_of_another_is_not_attached() {
    let (site, key) = site_with(&["one", "two"]);
    for name in ["one", "two"] {
        let host = site.host(name).with(["--key-file", &key, "--volume", name]);
        write_and_stop(host, name, &name.as_bytes()[..1].repeat(4096));
    }
    let id = |name: &str| site.show(name)["id"].as_str().unwrap().to_owned();
    let ids = [id("one"), id("two")];
    for name in ["one", "two"] {
        site.volume(["delete", name]).ok();
    }
    // The store's operator can do that, and needs no key for it.
    site.volume(["undelete", &ids[0], "--name", "two"]).ok();
    site.volume(["undelete", &ids[1], "--name", "one"]).ok();
    let mut host = site.host("host").with(["--key-file", &key, "--volume", "one,two"]);
    host.start();
    for (name, other) in [("one", "two"), ("two", "one")] {
        let why = host.refusal(name);
        assert!(why.contains(&format!("keys of volume {other}")), "{why}");
        assert!(why.contains("volume key rebind"), "{why}");
    }
    assert!(host.stop().success());
    let image = site.path("image").display().to_string();
    site.volume(["export", "one", &image, "--force", "--key-file", &key])
        .fails(1, &["keys of volume two"]);
    // A holder of the key can confirm it.
    let rebind = ["key", "rebind", "one", "--key-file", &key, "--was"];
    site.volume([&rebind[..], &["three"]].concat()).fails(1, &["keys of volume two"]);
    site.volume([&rebind[..], &["two"]].concat()).ok();
    host = site.host("host").with(["--key-file", &key, "--volume", "one"]);
    host.start();
    assert_eq!(host.client("one").read(0, 4096).unwrap()[0], b't');
    assert!(host.stop().success());
    // With the key at hand it happens at once.
    site.volume(["delete", "one"]).ok();
    site.volume(["undelete", "one", "--name", "three", "--key-file", &key]).ok();
    host = site.host("host").with(["--key-file", &key, "--volume", "three"]);
    host.start();
    assert_eq!(host.client("three").read(0, 4096).unwrap()[0], b't');
}

#[test]
fn what_opens_a_volume_is_added_and_taken_away() {
    let (site, key) = site_with(&["disk"]);
    let secret = |name: &str, text: &str| {
        let path = site.path(name);
        std::fs::write(&path, format!("{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path.display().to_string()
    };
    let other = key_file(&site, "other");
    let (passphrase, wrong) =
        (secret("passphrase", "correct horse battery"), secret("wrong", "correct horse batterz"));
    let host = site.host("host").with(["--key-file", &key, "--volume", "disk"]);
    write_and_stop(host, "disk", &SECRET.repeat(256));
    let add = ["key", "add", "disk", "--key-file", &key];
    site.volume([&["key", "add", "disk"][..], &["--recovery"]].concat()).fails(2, &["--key-file"]);
    site.volume(add).fails(2, &["--recovery"]);
    site.volume([&add[..], &["--new-passphrase-file", &passphrase]].concat()).ok();
    let printed = site.volume([&add[..], &["--recovery"]].concat()).ok().stdout;
    let recovery = secret("recovery", printed.trim());
    site.volume([&add[..], &["--new-key-file", &other]].concat()).ok();
    site.volume([&add[..], &["--new-key-file", &other]].concat()).fails(1, &["already"]);
    let list = site.volume(["key", "list", "disk", "--json", "--passphrase-file", &recovery]).ok();
    let kinds: Vec<String> = list.json()["slots"]
        .as_array()
        .unwrap()
        .iter()
        .map(|slot| format!("{} {}", slot["slot"], slot["kind"].as_str().unwrap()))
        .collect();
    assert_eq!(kinds, ["1 key-file", "2 passphrase", "3 recovery-key", "4 key-file"]);
    assert_eq!(list.json()["verified"], true);
    // Each of them opens it, on hosts and for commands.
    for (state, flags) in [
        ("by-passphrase", ["--passphrase-file", &passphrase]),
        ("by-recovery", ["--passphrase-file", &recovery]),
        ("by-other", ["--key-file", &other]),
    ] {
        let mut host = site.host(state).with(flags).with(["--volume", "disk"]);
        host.start();
        assert_eq!(host.client("disk").read(0, 4096).unwrap(), SECRET.repeat(256));
        assert!(host.stop().success());
    }
    let mut host = site.host("by-wrong").with(["--passphrase-file", &wrong, "--volume", "disk"]);
    host.start();
    assert!(host.refusal("disk").contains("a passphrase"));
    assert!(host.stop().success());
    let image = site.path("image").display().to_string();
    site.volume(["export", "disk", &image, "--force", "--passphrase-file", &passphrase]).ok();
    assert_eq!(&std::fs::read(&image).unwrap()[..4096], SECRET.repeat(256));
    // A clone opens with the same.
    site.snapshot(["create", "disk@base"]).ok();
    site.volume(["clone", "disk@base", "copy", "--passphrase-file", &passphrase]).ok();
    site.volume(["export", "copy", &image, "--force", "--passphrase-file", &recovery]).ok();
    assert_eq!(&std::fs::read(&image).unwrap()[..4096], SECRET.repeat(256));
    // A removed slot opens it no more; the last one stays.
    let remove = |slot: &'static str| {
        site.volume(["key", "remove", "disk", slot, "--passphrase-file", &passphrase])
    };
    site.volume(["rotate-key", "disk", "--key-file", &key, "--new-key-file", &other])
        .fails(1, &["4 key slots"]);
    for slot in ["1", "3", "4"] {
        remove(slot).ok();
    }
    remove("4").fails(1, &["no key slot 4"]);
    remove("2").fails(1, &["the last one"]);
    for flags in [["--key-file", &key], ["--passphrase-file", &recovery]] {
        site.volume([&["export", "disk", &image, "--force"][..], &flags].concat())
            .fails(1, &["a passphrase"]);
    }
    site.volume(["rotate-key", "disk", "--passphrase-file", &passphrase]).ok();
    site.volume(["export", "disk", &image, "--force", "--passphrase-file", &passphrase]).ok();
    assert_eq!(&std::fs::read(&image).unwrap()[..4096], SECRET.repeat(256));
}

/// The store drops a connection that is silent for 5 s.
#[test]
fn a_passphrase_may_come_late() {
    let (site, key) = site_with(&["disk"]);
    let passphrase = site.path("passphrase");
    std::fs::write(&passphrase, "correct horse battery\n").unwrap();
    std::fs::set_permissions(&passphrase, std::fs::Permissions::from_mode(0o600)).unwrap();
    let new = ["--new-passphrase-file", passphrase.to_str().unwrap()];
    site.volume([&["key", "add", "disk", "--key-file", &key][..], &new].concat()).ok();
    let image = site.path("image");
    let mut export = command(longhaul());
    export.args(["volume", "export", "disk"]).arg(&image);
    export.args(["--passphrase-file", "-", "--credential"]).arg(site.store.credential());
    export.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut export = export.spawn().unwrap();
    std::thread::sleep(Duration::from_secs(8));
    export.stdin.take().unwrap().write_all(b"correct horse battery\n").unwrap();
    let said = export.wait_with_output().unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    assert_eq!(std::fs::metadata(&image).unwrap().len(), 8 << 20);
}

#[test]
fn everything_is_encrypted_anew_and_the_old_key_goes() {
    let (site, key) = site_with(&["disk"]);
    let host = site.host("host").with(["--key-file", &key, "--volume", "disk"]);
    let mut host = write_and_stop(host, "disk", &SECRET.repeat(256));
    site.snapshot(["create", "disk@base"]).ok();
    host.start();
    let mut client = host.client("disk");
    client.write(1 << 20, &SECRET.repeat(64 << 10)).unwrap();
    client.write(4096, &[7; 512]).unwrap();
    client.flush().unwrap();
    host.wait_drained("disk", LIMIT);
    let rewrite = ["rotate-key", "disk", "--rewrite", "--key-file", &key];
    client.disconnect();
    assert!(host.stop().success());
    let image = site.path("image").display().to_string();
    let export = || {
        let _ = std::fs::remove_file(&image);
        site.volume(["export", "disk", &image, "--force", "--key-file", &key]).ok();
        std::fs::read(&image).unwrap()
    };
    let before = export();
    let keys = || {
        let list = site.volume(["key", "list", "disk", "--json", "--key-file", &key]).ok();
        list.json()["keys"].clone()
    };
    let json = [&rewrite[..], &["--json"]].concat();
    let done = site.volume(json.iter().copied()).ok().json();
    assert_eq!(done["snapshots"], 1, "{done}");
    assert!(done["rewritten_bytes"].as_u64().unwrap() >= (1 << 20) + 4096, "{done}");
    assert_eq!(keys(), serde_json::json!([1, 2]));
    assert!(export() == before);
    // Finished work does not repeat; without snapshots the old key goes.
    site.snapshot(["delete", "disk@base"]).ok();
    let done = site.volume(json.iter().copied()).ok().json();
    assert_eq!(done["rewritten_bytes"], 0, "{done}");
    assert_eq!(done["retired_keys"], serde_json::json!([1]), "{done}");
    assert_eq!(keys(), serde_json::json!([2]));
    assert!(export() == before);
    host.start();
    assert_eq!(host.client("disk").read(0, 4096).unwrap(), SECRET.repeat(256));
    assert!(host.stop().success());
}

/// How many packed records whose header names that data key lie in the store's objects, whoever
/// needs them.
fn records_under(site: &Site, key: u32) -> usize {
    let magic = b"LHRC";
    let in_file = |path: &PathBuf| {
        // The store may have deleted it meanwhile.
        let data = std::fs::read(path).unwrap_or_default();
        let heads = data.windows(52).filter(|head| {
            // Magic, version and kind of a packed record; the key follows the header.
            head[..4] == magic[..] && head[5] == 5 && head[48..] == key.to_le_bytes()
        });
        heads.count()
    };
    files_below(site.store.dir()).iter().map(in_file).sum()
}

/// While clients write, and through a kill of the host; in the end no object names the old key.
#[test]
fn a_host_encrypts_everything_anew_while_clients_write() {
    const BLOCKS: usize = 24_576;
    let mut site = Site::new();
    site.store.kill();
    // Objects that still have some data of use go, too, as soon as they are worth it.
    site.store.set_flags(["--delete-delay", "1s", "--gc-percent", "110"]);
    site.store.restart();
    let key = key_file(&site, "key");
    site.volume(["create", "disk", "--size", "96MiB", "--encrypt", "--key-file", &key]).ok();
    let mut host = site.host("host").with(["--key-file", &key, "--volume", "disk"]);
    host.start();
    let mut client = host.client("disk");
    let mut history = History::new(BLOCKS);
    let shape = || Shape { zeroes: 2, bytes_per_second: 16 << 20, ..Shape::default() };
    let mut workload = Workload::new(&mut history, &mut client, 5, shape());
    workload.fill().unwrap();
    workload.run(|history| history.len() >= BLOCKS + 1000).unwrap();
    site.snapshot(["create", "disk@before"]).ok();
    host.wait_drained("disk", LIMIT);
    assert!(records_under(&site, 1) > 0, "the scan finds what there is");

    let rewrite = ["rotate-key", "disk", "--rewrite", "--json", "--key-file", &key];
    let begun = site.volume(rewrite).ok().json();
    assert_eq!(begun["done"], false, "{begun}");
    let on_its_way = || {
        let status = host.volume_status("disk");
        status["rewrite"]["key"] == 2
    };
    wait_for("the host to begin", LIMIT, on_its_way);
    // The test kills the host on the way, and its successor begins once more.
    client.disconnect();
    host.kill();
    host.start();
    let mut client = host.client("disk");
    let mut workload = Workload::new(&mut history, &mut client, 6, shape());
    let until = Instant::now() + LIMIT;
    let ended = workload.run(|history| {
        let enough = history.len() >= BLOCKS + 3000 && history.len().is_multiple_of(200);
        (enough && host.volume_status("disk")["rewrite"]["done"] == true) || Instant::now() > until
    });
    ended.and_then(|()| workload.settle()).expect("no request fails");
    let status = host.volume_status("disk");
    assert_eq!(status["rewrite"]["done"], true, "{status}");
    let waits = [&rewrite[..], &["--wait"]].concat();
    let done = site.volume(waits.iter().copied()).ok().json();
    assert_eq!((&done["done"], &done["snapshots"]), (&true.into(), &1.into()), "{done}");
    let keys = || {
        let list = site.volume(["key", "list", "disk", "--json", "--key-file", &key]).ok();
        list.json()["keys"].clone()
    };
    assert_eq!(keys(), serde_json::json!([1, 2]), "the snapshot needs it");
    site.snapshot(["delete", "disk@before"]).ok();
    let done = site.volume(waits.iter().copied()).ok().json();
    assert_eq!(done["retired_keys"], serde_json::json!([1]), "{done}");
    assert_eq!(keys(), serde_json::json!([2]));
    // Data that shared an object with live data goes with the next key.
    let done = site.volume(waits.iter().copied()).ok().json();
    assert_eq!(done["retired_keys"], serde_json::json!([2]), "{done}");
    wait_for("space to be given back", LIMIT, || records_under(&site, 1) == 0);
    client.disconnect();
    host.wait_drained("disk", LIMIT);
    assert!(host.stop().success());
    let file = site.path("image").display().to_string();
    site.volume(["export", "disk", &file, "--key-file", &key]).ok();
    let written = history.len();
    assert_eq!(history.prefix_of(&std::fs::read(&file).unwrap(), written), Ok(written));
    assert!(site.store.stop().success());
    let checked = ["check".as_ref(), site.store.dir().as_os_str(), "--json".as_ref()];
    let report = run(longhaul(), checked).ok().json();
    let named = report["volumes"][0]["data_keys"].as_object().unwrap();
    assert!(!named.contains_key("1") && named.contains_key("3"), "{report}");
}
