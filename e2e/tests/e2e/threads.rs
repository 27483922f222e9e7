//! Hosts with several front threads, at a store with several link threads: each volume is served
//! whichever thread has it.

use longhaul_e2e::client::Protocol;
use longhaul_e2e::process::{LIMIT, run};
use longhaul_e2e::site::{Host, Site, Store, temp_dir};
use longhaul_e2e::wait_for;

const NAMES: [&str; 4] = ["alpha", "beta", "gamma", "delta"];
const BYTES: usize = 64 << 10;

fn site(protocol: Protocol) -> Site {
    let dir = temp_dir();
    let mut store = Store::stopped(&dir.path().join("store"));
    store.set_flags(["--threads", "2"]);
    store.restart();
    let site = Site::around(dir, store).over(protocol);
    for name in NAMES {
        site.create(name, 16);
    }
    site
}

/// A host of three threads that attaches all volumes.
fn host(site: &Site) -> Host {
    let mut host = site.host("host").with(["--threads", "3"]);
    host.flags.extend(NAMES.iter().flat_map(|name| ["--volume".to_owned(), (*name).to_owned()]));
    host
}

fn attached(host: &Host) {
    wait_for("all volumes to be attached", LIMIT, || {
        NAMES.iter().all(|name| host.volume_status(name)["state"] == "attached")
    });
}

/// The front threads of the process beside the main thread.
fn front_threads(host: &mut Host) -> Vec<String> {
    let tasks = format!("/proc/{}/task", host.server().pid());
    let name = |entry: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(entry.unwrap().path().join("comm")).unwrap().trim().to_owned()
    };
    let mut names: Vec<String> = std::fs::read_dir(tasks).unwrap().map(name).collect();
    names.retain(|name| name.starts_with("front-"));
    names.sort();
    names
}

fn data(name: &str) -> Vec<u8> {
    vec![name.as_bytes()[0]; BYTES]
}

fn volumes_keep_apart(protocol: Protocol) {
    let site = site(protocol);
    let mut host = host(&site);
    host.start();
    attached(&host);
    assert_eq!(front_threads(&mut host), ["front-1", "front-2"]);
    assert_eq!(host.status()["links"].as_array().unwrap().len(), 3);
    let mut clients: Vec<_> = NAMES.iter().map(|name| host.client(name)).collect();
    for (client, name) in clients.iter_mut().zip(NAMES) {
        client.write(0, &data(name)).unwrap();
        client.flush().unwrap();
    }
    // A second connection of each volume finds what the first one wrote.
    for name in NAMES {
        let mut other = host.client(name);
        assert!(other.read(0, BYTES as u32).unwrap() == data(name), "{name}");
        other.disconnect();
    }
    let clients_of = |name: &str| {
        let status = host.volume_status(name);
        status["connections"].as_u64().unwrap() + status["iscsi_sessions"].as_u64().unwrap()
    };
    wait_for("the second clients to be gone", LIMIT, || {
        NAMES.iter().all(|name| clients_of(name) == 1)
    });
    // A host that dies with all of them loses nothing.
    host.kill();
    drop(clients);
    host.start();
    attached(&host);
    for name in NAMES {
        let mut client = host.client(name);
        assert!(client.read(0, BYTES as u32).unwrap() == data(name), "{name} after a crash");
        client.disconnect();
        host.wait_drained(name, LIMIT);
    }
    assert!(host.stop().success());
    for name in NAMES {
        assert!(site.export(name)[..BYTES] == data(name)[..], "{name} at the store");
    }
}

#[test]
fn volumes_of_several_threads_keep_apart() {
    volumes_keep_apart(Protocol::Nbd);
}

#[test]
fn volumes_of_several_threads_keep_apart_over_iscsi() {
    volumes_keep_apart(Protocol::Iscsi);
}

#[test]
fn threads_start_with_their_volumes_and_commands_find_them() {
    let site = site(Protocol::Nbd);
    let mut host = site.host("host").with(["--threads", "3"]);
    host.start();
    assert!(front_threads(&mut host).is_empty(), "no volume needs one");
    for unknown in ["omega", "psi"] {
        assert!(!run("nbdinfo", [host.uri_only(unknown)]).status.success());
        assert!(!host.detach([unknown]).status.success());
    }
    assert!(front_threads(&mut host).is_empty(), "nor do unknown names");
    host.attach(["alpha"]).ok();
    assert!(front_threads(&mut host).is_empty(), "the first volume is on the main thread");
    // The only volume is the default export.
    run("nbdinfo", [host.uri("")]).ok();
    for name in &NAMES[1..] {
        host.attach([*name]).ok();
    }
    assert_eq!(front_threads(&mut host), ["front-1", "front-2"]);
    let list = run("nbdinfo", ["--list", &host.uri("")]).ok().stdout;
    for name in NAMES {
        assert!(list.contains(&format!("export=\"{name}\"")), "{list}");
    }
    for none in ["", "omega"] {
        let refused = run("nbdinfo", [host.uri_only(none)]);
        assert!(!refused.status.success(), "{refused}");
    }
    // A snapshot is where its volume is.
    site.snapshot(["create", "beta@now"]).ok();
    run("nbdinfo", [host.uri_only("beta@now")]).ok();
    // Commands go to the thread of their volume.
    host.control("limit", ["gamma", "--drain-rate", "80Mbit/s"]).ok();
    assert_eq!(host.volume_status("gamma")["limits"]["drain_rate"], "80Mbit/s");
    assert_eq!(host.volume_status("beta")["limits"]["drain_rate"], "none");
    for name in NAMES.into_iter().chain(["beta@now"]) {
        host.detach([name]).ok();
    }
    let status = host.status();
    assert!(status["volumes"].as_array().unwrap().is_empty(), "{status}");
    assert!(host.stop().success());
}
