//! A replica at a second place: the first one is lost, what was there goes on, and goes back.

use crate::fleet::{invited, knows, peer};
use crate::outages::beside;
use longhaul_e2e::process::{LIMIT, Output, command, longhaul, run_within};
use longhaul_e2e::site::{Site, Store, metric};
use longhaul_e2e::stamp::{History, Shape};
use longhaul_e2e::wait_for;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are text")
}

/// `longhaul store replica …` at a store.
pub fn replica<'a>(site: &Site, at: &Store, args: impl IntoIterator<Item = &'a str>) -> Output {
    let mut store = command(longhaul());
    store.args(["store", "replica"]).args(args);
    store.arg("--credential").arg(site.store.credential()).args(["--store", &at.address]);
    run_within(store, LIMIT)
}

fn shown(site: &Site, at: &Store) -> Value {
    replica(site, at, ["show", "--json"]).ok().json()["replica"].clone()
}

pub fn is_in_step(site: &Site, at: &Store) {
    wait_for("the replica to be complete", LIMIT, || shown(site, at)["state"] == "in step");
}

/// Has a store that waits go on.
fn fail_over(site: &Site, to: &Store) -> Output {
    let mut store = command(longhaul());
    store.args(["store", "failover", &to.address, "--json", "--credential"]);
    store.arg(site.store.credential());
    run_within(store, LIMIT)
}

/// A store that waits over that place.
pub fn waiting(site: &Site, name: &str, place: &Path) -> Store {
    let mut store = invited(site, name);
    store.set_data(text(place));
    store.restart();
    store
}

fn ends_by_itself(store: &mut Store) {
    let server = store.server();
    let status = server.wait(LIMIT);
    assert!(!status.success() && server.log().contains("somebody has gone on"), "{status}");
}

#[test]
fn a_place_is_lost_and_another_one_goes_on_and_back() {
    let mut site = Site::with_volume("disk", 32);
    let place = site.path("replica");
    let mut host = site.host("host").with(["--volume", "disk", "--durability", "replica"]);
    host.start();
    let mut written = History::new(8192);
    let shape = Shape { depth: 4, bytes_per_second: 4_000_000, ..Shape::default() };
    let mut second = invited(&site, "second");
    second.set_data(text(&place));
    let address = second.address.clone();
    beside(&host, &mut written, shape, |busy| {
        // Under load it is made, and then kept up with.
        std::thread::sleep(Duration::from_secs(1));
        assert_eq!(host.volume_status("disk")["replica"], "none");
        replica(&site, &site.store, ["add", text(&place), "--standby", &address]).ok();
        is_in_step(&site, &site.store);
        second.restart();
        assert_eq!(metric(&second.admin, "longhaul_store_standby"), 1.0);
        wait_for("the host to know", LIMIT, || host.volume_status("disk")["replica"] == "in step");
        knows(&host, &[&second]);
        std::thread::sleep(Duration::from_secs(1));
        let changes = busy.changes();
        site.store.kill();
        assert_eq!(fail_over(&site, &second).ok().json()["role"], "store");
        wait_for("the host to go there", LIMIT, || {
            let status = host.volume_status("disk");
            peer(&host) == address && status["lag_seconds"].as_f64().unwrap() < 0.5
        });
        std::thread::sleep(Duration::from_secs(1));
        assert!(busy.changes() > changes, "writes stand still");
        assert_eq!(host.volume_status("disk")["replica"], "none");

        // The first place comes back, and finds that it is not needed any more.
        let first = site.store.dir().to_owned();
        let mut old = Store::stopped(&first);
        old.address.clone_from(&site.store.address);
        refused(&run_within(old.command(), LIMIT), "somebody has gone on");
        // It gets what it lacks, and can go on in its turn.
        let back = waiting_again(&site, &second, &first);
        let sent = shown(&site, &second);
        let (put, reused) = (sent["put_bytes"].as_u64(), sent["reused_bytes"].as_u64());
        assert!(reused.unwrap() > 4 << 20, "{sent}");
        println!("going back sends {put:?} bytes, {reused:?} were there");
        knows(&host, &[&back]);
        let changes = busy.changes();
        fail_over(&site, &back).ok();
        ends_by_itself(&mut second);
        wait_for("the host to go back", LIMIT, || {
            let status = host.volume_status("disk");
            peer(&host) == back.address && status["lag_seconds"].as_f64().unwrap() < 0.5
        });
        std::thread::sleep(Duration::from_secs(1));
        assert!(busy.changes() > changes, "writes stand still");
        site.store = back;
    });
    host.wait_drained("disk", LIMIT);
    assert!(host.stop().success());
    let export = site.export_at_rest("disk");
    written.prefix_of(&export, written.len()).unwrap();
}

/// The first place as a replica of the second, with a store over it that waits.
fn waiting_again(site: &Site, second: &Store, first: &Path) -> Store {
    let mut back = Store::stopped(first);
    replica(site, second, ["add", text(first), "--standby", &back.address]).ok();
    is_in_step(site, second);
    back.restart();
    assert_eq!(metric(&back.admin, "longhaul_store_standby"), 1.0);
    back
}

#[test]
fn what_cannot_be_a_replica_is_refused() {
    let site = Site::with_volume("disk", 8);
    let refuses = |args: &[&str], why: &str| {
        refused(&replica(&site, &site.store, args.iter().copied()), why);
    };
    let place = site.path("replica");
    let own = site.store.dir().to_owned();
    refuses(&["add", "somewhere"], "whole path");
    refuses(&["add", "mem://64MiB"], "a directory or s3://");
    refuses(&["add", text(&own)], "where the volumes are");
    refuses(&["remove"], "there is no replica");
    refuses(&["mode", "behind"], "there is no replica");
    let foreign = site.path("foreign");
    std::fs::create_dir_all(&foreign).unwrap();
    std::fs::write(foreign.join("letter.txt"), "dear").unwrap();
    refuses(&["add", text(&foreign)], "letter.txt");
    let other = Site::with_volume("other", 8);
    let theirs = other.store.dir().to_owned();
    refuses(&["add", text(&theirs)], "belongs to installation");
    assert_eq!(shown(&site, &site.store), Value::Null);

    replica(&site, &site.store, ["add", text(&place), "--behind"]).ok();
    refuses(&["add", text(&place)], "there is a replica in");
    wait_for("it to be complete", LIMIT, || shown(&site, &site.store)["complete"] == true);
    assert_eq!(shown(&site, &site.store)["state"], "behind");
    replica(&site, &site.store, ["mode", "in-step"]).ok();
    is_in_step(&site, &site.store);

    // A store that waits serves nobody; and one of another CA would be no use to any host.
    let second = waiting(&site, "second", &place);
    let mut stranger = Store::stopped(&site.path("stranger"));
    stranger.set_data(text(&place));
    refused(&run_within(stranger.command(), LIMIT), "another CA");
    let mut volume = command(longhaul());
    volume.args(["volume", "list", "--store", &second.address, "--credential"]);
    volume.arg(site.store.credential());
    assert!(!run_within(volume, LIMIT).status.success());
    // Where it is not to be found commits wait, and go on when it is there again.
    let aside = site.path("aside");
    std::fs::rename(&place, &aside).unwrap();
    let mut create = command(longhaul());
    create.args(["volume", "create", "late", "--size", "8MiB", "--credential"]);
    create.arg(site.store.credential());
    let mut creating = create.spawn().unwrap();
    wait_for("the trouble to be seen", LIMIT, || {
        shown(&site, &site.store)["trouble"].as_str().is_some_and(|why| why.contains("mounted"))
    });
    assert!(creating.try_wait().unwrap().is_none());
    std::fs::rename(&aside, &place).unwrap();
    assert!(creating.wait().unwrap().success());
    // What nothing is repeated in any more cannot be gone on with.
    replica(&site, &site.store, ["remove"]).ok();
    assert_eq!(shown(&site, &site.store), Value::Null);
    refused(&fail_over(&site, &second), "not everything");
    refused(&fail_over(&site, &site.store), "it serves volumes");
    let mut host = site.host("host");
    host.start();
    host.client("late").write(0, &[1; 4096]).unwrap();
    host.wait_drained("late", LIMIT);
}

#[track_caller]
fn refused(output: &Output, why: &str) {
    assert!(!output.status.success() && output.stderr.contains(why), "{output}");
}
