//! A host attaches the volumes that its operator named, and nothing for a client that only looks.

use longhaul_e2e::client::Client;
use longhaul_e2e::iscsi::{libiscsi, url};
use longhaul_e2e::process::{LIMIT, Server, command, longhaul, run};
use longhaul_e2e::site::{Host, Relay, START, Site, files_below, free_address};
use longhaul_e2e::wait_for;
use rustix::process::Signal;
use std::net::TcpStream;
use std::path::PathBuf;

/// Journal files of a host.
fn journals(host: &Host) -> Vec<PathBuf> {
    let mut files = files_below(host.state());
    files.retain(|path| path.file_name().unwrap().to_string_lossy().starts_with("journal."));
    files
}

/// A host that serves iSCSI as well, with its portal.
fn both(site: &Site, name: &str, flags: &[&str]) -> (Host, String) {
    let portal = free_address();
    let mut host = site.host(name).with(["--iscsi", &portal]).with(flags.iter().copied());
    host.start();
    wait_for("the portal", LIMIT, || TcpStream::connect(&portal).is_ok());
    wait_for("the link", LIMIT, || host.status()["link"]["up"] == true);
    (host, portal)
}

fn volumes(host: &Host) -> usize {
    host.status()["volumes"].as_array().unwrap().len()
}

/// Everything that only looks at volume `disk`, none of which may have it.
fn look(host: &Host, portal: &str) {
    let list = run("nbdinfo", ["--list", &host.uri_only("")]);
    assert!(!list.stdout.contains("disk"), "{list}");
    let info = run("nbdinfo", ["--json", &host.uri_only("disk")]);
    assert!(!info.status.success(), "{info}");
    let image = run("qemu-img", ["info", &host.uri_only("disk")]);
    assert!(!image.status.success(), "{image}");
    let targets = libiscsi("iscsi-ls", ["-s", &format!("iscsi://{portal}")]);
    assert!(!targets.stdout.contains("disk"), "{targets}");
}

#[test]
fn looking_at_a_volume_takes_nothing() {
    let site = Site::with_volume("disk", 32);
    let mut first = site.host("first").with(["--volume", "disk"]);
    first.start();
    let mut writer = first.client("disk");
    writer.write(0, &[1; 4096]).unwrap();
    writer.flush().unwrap();
    let epoch = first.volume_status("disk")["epoch"].clone();

    let (second, portal) = both(&site, "second", &[]);
    look(&second, &portal);
    let inquiry = libiscsi("iscsi-inq", [url(&portal, None, "disk").as_str()]);
    assert!(!inquiry.status.success(), "{inquiry}");
    let refused = Client::nbd(&second.nbd(), "disk").err().expect("it is attached elsewhere");
    assert!(refused.to_string().contains("longhaul attach disk"), "{refused}");
    // The host refuses a command as well, with advice, and makes no useless journal.
    second.attach(["disk"]).fails(1, &["in use", "--take-over", "detach"]);
    assert!(journals(&second).is_empty());

    writer.write(4096, &[2; 4096]).unwrap();
    writer.flush().unwrap();
    assert_eq!(first.volume_status("disk")["state"], "attached");
    assert_eq!(first.volume_status("disk")["epoch"], epoch);
    first.wait_drained("disk", LIMIT);
    assert_eq!(site.export("disk")[4096..8192], [2; 4096]);

    // Only an operator who says so takes it.
    second.attach(["disk", "--take-over"]).ok();
    wait_for("the first host to be fenced", LIMIT, || writer.write(0, &[3; 4096]).is_err());
    wait_for("it to say by whom", LIMIT, || {
        let status = first.volume_status("disk");
        status["state"] == "fenced" && status["fenced_by"]["host"] == second.status()["host"]
    });
    let refused = Client::nbd(&first.nbd(), "disk").err().expect("it is fenced");
    assert!(refused.to_string().contains("fenced"), "{refused}");
    assert_eq!(second.client("disk").read(4096, 4096).unwrap(), [2; 4096]);
    // Back again, when the other one has let go.
    second.detach(["disk"]).ok();
    first.attach(["disk"]).ok();
    assert_eq!(first.client("disk").read(4096, 4096).unwrap(), [2; 4096]);
}

#[test]
fn volumes_come_and_go_by_command() {
    let site = Site::with_volume("disk", 32);
    let (mut host, portal) = both(&site, "host", &["--cache-size", "64MiB"]);
    host.attach(["none"]).fails(1, &["no such volume"]);
    host.detach(["disk"]).fails(1, &["not attached here"]);
    let attached = host.attach(["disk", "--json"]).ok().json();
    assert_eq!(attached["nbd"][0], host.uri_only("disk"), "{attached}");
    assert_eq!(attached["iscsi"]["portals"][0], portal.as_str(), "{attached}");
    assert!(
        libiscsi("iscsi-ls", ["-s", &format!("iscsi://{portal}")]).ok().stdout.contains("disk")
    );
    assert!(run("nbdinfo", ["--list", &host.uri_only("")]).ok().stdout.contains("disk"));
    let mut client = host.client("disk");
    client.write(0, &[1; 4096]).unwrap();
    client.flush().unwrap();
    host.detach(["disk"]).fails(1, &["1 clients", "disconnect"]);
    assert_eq!(client.read(0, 4096).unwrap(), [1; 4096]);

    // It stays attached, whatever ends the host.
    host.kill();
    host.start();
    let attached = |host: &Host| {
        wait_for("the volume is attached by itself", LIMIT, || {
            volumes(host) == 1 && host.volume_status("disk")["state"] == "attached"
        });
    };
    attached(&host);
    assert!(host.stop().success());
    host.start();
    attached(&host);
    assert_eq!(host.client("disk").read(0, 4096).unwrap(), [1; 4096]);

    let text = host.detach(["disk"]).ok();
    assert!(text.stdout.contains("detached"), "{text}");
    assert_eq!(volumes(&host), 0);
    let left = files_below(&host.state().join("volumes"));
    assert!(left.is_empty(), "its space is not free: {left:?}");
    assert_eq!(site.show("disk")["live"]["clean"], true);
    assert!(host.stop().success());
    host.start();
    wait_for("the link", LIMIT, || host.status()["link"]["up"] == true);
    assert_eq!(volumes(&host), 0);
    site.volume(["delete", "disk"]).ok();
}

#[test]
fn a_detach_waits_for_the_store_or_for_nobody() {
    let site = Site::with_volume("disk", 32);
    let relay = Relay::start(&site, []);
    let mut host = site.host("host").with(["--store", &relay.address]);
    host.start();
    let mut client = host.client("disk");
    relay.cut();
    client.write(0, &[1; 4096]).unwrap();
    client.flush().unwrap();
    client.disconnect();
    wait_for("the link to be down", LIMIT, || host.status()["link"]["up"] == false);
    let detach = |log: &str| {
        let mut detach = command(longhaul());
        detach.args(["detach", "disk", "--admin", &host.admin]);
        Server::start("detach", detach, &site.path(log))
    };
    let mut first = detach("first.log");
    first.wait_until("it waits for the store", START, || first_log(&site).contains("waiting"));
    first.signal(Signal::INT);
    assert!(!first.wait(START).success());
    assert!(first.log().contains("attached as before"), "{}", first.log());
    let mut client = host.client("disk");
    client.write(4096, &[2; 4096]).unwrap();
    client.disconnect();
    let mut second = detach("second.log");
    relay.restore();
    assert!(second.wait(LIMIT).success(), "{}", second.log());
    assert_eq!(volumes(&host), 0);
    assert_eq!(site.export("disk")[..8192], [[1; 4096], [2; 4096]].concat());
}

fn first_log(site: &Site) -> String {
    std::fs::read_to_string(site.path("first.log")).unwrap_or_default()
}

#[test]
fn on_demand_is_for_names_that_match_and_for_who_enters() {
    let site = Site::with_volume("disk", 32);
    site.create("other", 8);
    let (first, portal) = both(&site, "first", &["--attach-on-demand", "di*"]);
    let list = run("nbdinfo", ["--list", &first.uri_only("")]);
    assert!(!list.stdout.contains("disk"), "{list}");
    libiscsi("iscsi-ls", ["-s", &format!("iscsi://{portal}")]);
    assert_eq!(volumes(&first), 0);
    let refused = Client::nbd(&first.nbd(), "other").err().expect("it does not match");
    assert!(refused.to_string().contains("not attached here"), "{refused}");
    // As QEMU does, which selects contexts before it enters.
    run("qemu-img", ["info", &first.uri_only("disk")]).ok();
    assert_eq!(first.volume_status("disk")["state"], "attached");
    // A host does not take another host's volume.
    let (second, portal) = both(&site, "second", &["--attach-on-demand", "*"]);
    let refused = Client::nbd(&second.nbd(), "disk").err().expect("it is attached elsewhere");
    assert!(refused.to_string().contains("in use"), "{refused}");
    assert!(!libiscsi("iscsi-inq", [url(&portal, None, "disk").as_str()]).status.success());
    libiscsi("iscsi-inq", [url(&portal, None, "other").as_str()]).ok();
    assert_eq!(second.volume_status("other")["state"], "attached");
    assert_eq!(first.volume_status("disk")["state"], "attached");
}

#[test]
fn a_snapshot_of_an_attached_volume_is_there_for_who_asks() {
    let site = Site::with_volume("disk", 8);
    let mut host = site.host("host").with(["--volume", "disk"]);
    host.start();
    let mut client = host.client("disk");
    client.write(0, &[1; 4096]).unwrap();
    client.flush().unwrap();
    site.snapshot(["create", "disk@monday"]).ok();
    client.write(0, &[2; 4096]).unwrap();
    let mut monday = Client::nbd(&host.nbd(), "disk@monday").unwrap();
    assert_eq!(monday.read(0, 4096).unwrap(), [1; 4096]);
    assert_eq!(host.volume_status("disk")["state"], "attached");
    let mut other = site.host("other");
    other.start();
    let refused = Client::nbd(&other.nbd(), "disk@monday").err().expect("its volume is not here");
    assert!(refused.to_string().contains("not attached here"), "{refused}");
}

#[test]
fn a_volume_over_nbd_is_for_whom_its_list_names() {
    let site = Site::with_volume("disk", 8);
    site.create("free", 8);
    let tcp = free_address();
    let named = ["--volume", "disk", "--volume", "free", "--nbd", &tcp];
    let mut host = site.host("host").with(named);
    host.start();
    let mut client = host.client("disk");
    client.write(0, &[1; 4096]).unwrap();
    host.client("free").disconnect();
    Client::nbd(&tcp, "disk").unwrap().disconnect();
    host.control("nbd", ["allow", "disk", "bob"]).fails(2, &["no client", "uid:1000"]);
    // The user of this process, and another one.
    let (own, other) = (rustix::process::geteuid().as_raw(), 65_534);
    let (own, other) = (format!("uid:{own}"), format!("uid:{other}"));
    host.control("nbd", ["allow", "disk", &other]).ok();
    wait_for("the client to be cut off", LIMIT, || client.read(0, 4096).is_err());
    for round in ["before a restart", "after it"] {
        let refused = Client::nbd(&host.nbd(), "disk").err().expect(round);
        assert!(refused.to_string().contains("not for this client"), "{round}: {refused}");
        let refused = Client::nbd(&tcp, "disk").err().expect(round);
        assert!(refused.to_string().contains("longhaul nbd allow"), "{round}: {refused}");
        let list = run("nbdinfo", ["--list", &host.uri_only("")]).ok();
        assert!(list.stdout.contains("free") && !list.stdout.contains("disk"), "{list}");
        host.stop();
        host.start();
        host.client("free").disconnect();
    }
    let list = host.control("nbd", ["list"]).ok();
    assert!(list.stdout.contains(&other) && list.stdout.contains("command"), "{list}");
    if own == "uid:0" {
        // The other user gets its grants, and nothing else.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(site.path(""), open).unwrap();
        let as_other = |volume: &str| {
            let user = ["--reuid", "65534", "--clear-groups", "nbdinfo"].map(str::to_owned);
            run("setpriv", user.into_iter().chain([host.uri_only(volume)]))
        };
        assert!(as_other("disk").ok().stdout.contains("export-size"));
        let free = as_other("free");
        assert!(!free.status.success(), "{free}");
    }
    host.control("nbd", ["allow", "disk", &own]).ok();
    assert_eq!(host.client("disk").read(0, 4096).unwrap(), [1; 4096]);
    for client in [&own, &other] {
        host.control("nbd", ["deny", "disk", client]).ok();
    }
    host.control("nbd", ["deny", "disk", &other]).fails(1, &["not granted"]);
    assert!(host.control("nbd", ["list"]).ok().stdout.contains("(nobody)"));
    let refused = Client::nbd(&tcp, "disk").err().map(|error| error.to_string());
    assert!(refused.is_some_and(|error| error.contains("not for this client")));
    host.control("nbd", ["open", "disk"]).ok();
    Client::nbd(&tcp, "disk").unwrap().disconnect();
}

#[test]
fn a_stop_during_an_attach_hands_the_volume_back() {
    let site = Site::new();
    let names = ["a", "b", "c"];
    for name in names {
        site.create(name, 8);
    }
    let named = ["--volume", "a", "--volume", "b", "--volume", "c"];
    let mut host = site.host("host").with(named);
    for _ in 0..5 {
        host.start();
        assert!(host.stop().success());
    }
    for name in names {
        site.volume(["delete", name]).ok();
    }
}
