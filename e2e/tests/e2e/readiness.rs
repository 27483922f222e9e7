//! Whether a host and a store say what is wrong with them, and what they take up while they run.

use longhaul_e2e::client::Client;
use longhaul_e2e::process::{LIMIT, command, longhaul, run, run_within};
use longhaul_e2e::site::{Host, Relay, Site, files_below, http_get};
use longhaul_e2e::wait_for;
use rustix::process::Signal;
use serde_json::Value;
use std::path::PathBuf;

/// Code of `/readyz` and the reasons in it, with their volumes.
fn ready(admin: &str) -> (u16, Vec<(String, String)>) {
    let (code, body) = http_get(admin, "/readyz").expect("it answers");
    let json: Value = serde_json::from_str(&body).unwrap_or_else(|_| panic!("{body}"));
    assert_eq!(json["ready"], code == 200, "{body}");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let reasons = json["reasons"].as_array().expect("reasons").iter();
    (code, reasons.map(|it| (text(&it["reason"]), text(&it["volume"]))).collect())
}

fn lives(admin: &str) {
    assert_eq!(http_get(admin, "/livez").expect("it answers").0, 200);
}

fn journals(host: &Host) -> Vec<PathBuf> {
    let mut files = files_below(host.state());
    files.retain(|path| path.file_name().unwrap().to_string_lossy().starts_with("journal."));
    files
}

#[test]
fn a_host_that_cannot_serve_says_why() {
    let site = Site::with_volume("disk", 8);
    let named = ["--volume", "disk"];
    let mut first = site.host("first").with(named);
    first.start();
    first.client("disk").disconnect();
    assert_eq!(ready(&first.admin), (200, Vec::new()));
    assert_eq!(ready(&site.store.admin), (200, Vec::new()));
    lives(&first.admin);
    lives(&site.store.admin);
    let mut second = site.host("second").with(named);
    second.start();
    let reason = |reason: &str| (503, vec![(reason.to_owned(), "disk".to_owned())]);
    wait_for("the second host to be refused", LIMIT, || {
        ready(&second.admin) == reason("unattachable")
    });
    assert_eq!(first.volume_status("disk")["state"], "attached");
    second.attach(["disk", "--take-over"]).ok();
    wait_for("the first host to be fenced", LIMIT, || ready(&first.admin) == reason("fenced"));
    wait_for("the second host to be ready", LIMIT, || ready(&second.admin).0 == 200);
    lives(&first.admin);
    assert_eq!(http_get(&first.admin, "/healthz").unwrap().0, 503);
    let refused = Client::nbd(&first.nbd(), "disk").err().expect("it is fenced");
    assert!(refused.to_string().contains("fenced off here"), "{refused}");
    let log = first.server().log();
    assert_eq!(log.matches("is fenced off here").count(), 1, "{log}");
}

#[test]
fn sighup_takes_up_what_can_change() {
    let mut site = Site::with_volume("disk", 8);
    site.create("more", 8);
    let config = site.path("longhaul.toml");
    let write = |text: &str| std::fs::write(&config, text).unwrap();
    write("[host]\nvolume = [\"disk\"]\n");
    let mut host = site.host("host").with(["--config", config.to_str().unwrap()]);
    host.start();
    let mut client = host.client("disk");
    write(
        "[host]\nvolume = [\"disk\", \"more\"]\ndrain-rate = \"1Gbit/s\"\ncache-size = \"64MiB\"\n\
         [nbd.volumes]\nmore = [\"uid:4294967290\"]\n",
    );
    host.server().signal(Signal::HUP);
    wait_for("the host to have reloaded", LIMIT, || host.server().log().contains("reloaded:"));
    let log = host.server().log();
    for part in ["--volume", "--drain-rate", "access lists", "before the next start: --cache-size"]
    {
        assert!(log.contains(part), "{part}: {log}");
    }
    wait_for("the new volume", LIMIT, || {
        let status = host.status();
        let volumes = status["volumes"].as_array().unwrap().clone();
        volumes.iter().any(|it| it["name"] == "more" && it["state"] == "attached")
    });
    assert!(host.volume_status("disk")["limits"]["drain_rate"].as_str().unwrap().contains('G'));
    let refused = Client::nbd(&host.nbd(), "more").err().expect("it is for another user");
    assert!(refused.to_string().contains("not for this client"), "{refused}");
    write("[host]\nvolume = 3.5.6\n");
    host.server().signal(Signal::HUP);
    wait_for("the host to say so", LIMIT, || host.server().log().contains("nothing is reloaded"));
    client.write(0, &[1; 4096]).unwrap();
    client.flush().unwrap();
    site.store.server().signal(Signal::HUP);
    wait_for("the store to say so", LIMIT, || {
        site.store.server().log().contains("reloaded: nothing")
    });
    host.wait_drained("disk", LIMIT);
    lives(&site.store.admin);
}

#[test]
fn a_stop_in_order_warns_of_nothing() {
    let mut site = Site::with_volume("disk", 8);
    let mut host = site.host("host").with(["--volume", "disk"]);
    host.start();
    let mut client = host.client("disk");
    client.write(0, &[1; 4096]).unwrap();
    client.flush().unwrap();
    client.disconnect();
    let log = |path: PathBuf| std::fs::read_to_string(path).unwrap();
    assert!(host.stop().success());
    assert!(site.store.stop().success());
    for log in [log(host.state().with_extension("log")), log(site.path("store.log"))] {
        assert!(!log.contains(" WARN ") && !log.contains("ERROR"), "{log}");
    }
}

#[test]
fn one_bad_description_costs_its_own_volume_only() {
    let site = Site::with_volume("good", 8);
    site.create("bad", 8);
    let mut host = site.host("host");
    host.start();
    for volume in ["good", "bad"] {
        host.client(volume).disconnect();
    }
    let id = host.volume_status("bad")["id"].as_str().unwrap().to_owned();
    host.kill();
    let file = host.state().join("volumes").join(&id).join("volume.json");
    std::fs::write(&file, "{\"version\": 1, ").unwrap();
    let check = run(longhaul(), ["check", host.state().to_str().unwrap()]);
    let said = format!("{}{}", check.stdout, check.stderr);
    assert!(check.status.code() == Some(1) && said.contains(&id), "{check}");
    host.start();
    host.client("good").disconnect();
    let (code, reasons) = ready(&host.admin);
    assert!(
        code == 503 && reasons.contains(&("description-damaged".into(), id.clone())),
        "{reasons:?}"
    );
    assert_eq!(host.status()["damaged"][0]["id"], id.as_str());
    host.attach(["bad"]).fails(1, &["volume.json"]);
    assert_eq!(host.volume_status("good")["state"], "attached");
}

#[test]
fn the_journal_of_a_volume_that_is_gone_goes_too() {
    let site = Site::with_volume("disk", 8);
    let mut host = site.host("host").with(["--volume", "disk"]);
    host.start();
    host.client("disk").disconnect();
    assert!(host.stop().success());
    assert!(!journals(&host).is_empty());
    site.volume(["delete", "disk", "--now"]).ok();
    host.start();
    wait_for("its space to be free", LIMIT, || journals(&host).is_empty());
    let why = "does not have it any more";
    wait_for("the host to say so", LIMIT, || host.server().log().contains(why));
}

#[test]
fn what_was_not_delivered_stays_until_an_operator_gives_it_up() {
    let site = Site::with_volume("disk", 8);
    let relay = Relay::start(&site, []);
    let mut host = site.host("host").with(["--store", &relay.address]);
    host.start();
    let mut client = host.client("disk");
    relay.cut();
    client.write(0, &[1; 4096]).unwrap();
    client.flush().unwrap();
    host.kill();
    wait_for("the store to notice", LIMIT, || {
        site.volume(["lost", "disk", "--json"]).ok().json()["connected"] == false
    });
    // The host may be on its way back for some seconds.
    wait_for("the loss to be accepted", LIMIT, || {
        site.volume(["accept-loss", "disk"]).status.success()
    });
    site.volume(["delete", "disk", "--now"]).ok();
    relay.restore();
    host.start();
    wait_for("the volume to be missed", LIMIT, || host.volume_status("disk")["state"] == "refused");
    let status = host.volume_status("disk");
    assert!(status["reason"].as_str().unwrap().contains("--drop-undelivered"), "{status}");
    host.detach(["disk"]).fails(1, &["the store may lack", "--drop-undelivered"]);
    let mut asking = command(longhaul());
    asking.env_remove("LONGHAUL_YES").args(["detach", "disk", "--drop-undelivered"]);
    run_within(asking, LIMIT).fails(2, &["--yes"]);
    assert!(!journals(&host).is_empty());
    host.detach(["disk", "--drop-undelivered", "--yes"]).ok();
    assert!(journals(&host).is_empty());
    assert_eq!(host.status()["volumes"].as_array().unwrap().len(), 0);
}
