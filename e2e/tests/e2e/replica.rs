//! A replica: the first location is lost, a standby continues with the rest, and goes back.

use crate::fleet::{invited, knows, peer, volume_at};
use crate::outages::{Busy, beside};
use longhaul_e2e::bucket::{self, ACCESS_KEY, BUCKET, Gateway, can_use_buckets, variables};
use longhaul_e2e::faults::{Fault, Faults};
use longhaul_e2e::process::{LIMIT, Output, command, longhaul, run_within};
use longhaul_e2e::site::{Host, Site, Store, metric, temp_dir};
use longhaul_e2e::stamp::{History, Shape, read_all};
use longhaul_e2e::wait_for;
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
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
    assert!(!status.success() && server.log().contains("another store has taken over"), "{status}");
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
        // The stores make it under load, and then keep it up to date.
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

        // The first location comes back, and finds that nobody needs it any more.
        let first = site.store.dir().to_owned();
        let mut old = Store::stopped(&first);
        old.address.clone_from(&site.store.address);
        refused(&run_within(old.command(), LIMIT), "another store has taken over");
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

/// The other bucket's user.
const OTHER_KEY: &str = "E2E1ACCESS";

/// The environment of a store for its bucket at one address, and for the replica's at another.
fn of_two(own: (&str, &str), replica: (&str, &str)) -> Vec<(String, String)> {
    let named = |prefix: &str, (access_key, address): (&str, &str)| {
        let of = variables(address).into_iter().map(|(name, value)| match name {
            "AWS_ACCESS_KEY_ID" => (format!("{prefix}{name}"), access_key.to_owned()),
            _ => (format!("{prefix}{name}"), value),
        });
        of.collect::<Vec<_>>()
    };
    [named("", own), named("LONGHAUL_REPLICA_", replica)].concat()
}

fn set_variables(store: &mut Store, variables: &[(String, String)]) {
    store.set_variables(variables.iter().map(|(name, value)| (name.as_str(), value.as_str())));
}

/// A host is at that store, and what it writes arrives there.
fn goes_on_at(host: &Host, busy: &Busy<'_>, store: &Store) {
    wait_for("the host to go there", LIMIT, || {
        let status = host.volume_status("disk");
        peer(host) == store.address && status["lag_seconds"].as_f64().unwrap() < 0.5
    });
    let changes = busy.changes();
    wait_for("writes to go on", LIMIT, || busy.changes() > changes + 10);
}

/// A store has all of the volume, and gives it to a host that has never had it.
fn has_all_at(site: &Site, store: &Store, host: &mut Host, history: &History, name: &str) {
    host.wait_drained("disk", LIMIT);
    let file = site.path(name);
    volume_at(&site.store.credential(), store, ["export", "disk", text(&file), "--force"]).ok();
    history.prefix_of(&std::fs::read(&file).unwrap(), history.len()).unwrap();
}

/// The name of a volume's object, in whatever tree it lies.
fn of_volume(key: &str) -> Option<&str> {
    let at = key.find("/v/")?;
    Some(&key[at..])
}

/// The content below a prefix of a bucket for each volume, by names that both locations share.
fn volumes_at(gateway: &Gateway, prefix: &str) -> HashMap<String, Vec<u8>> {
    let objects = gateway.objects().into_iter().filter(|(key, _)| key.starts_with(prefix));
    let read = objects.filter_map(|(key, _)| {
        let content = std::fs::read(gateway.path(&key)).ok()?;
        Some((of_volume(&key)?.to_owned(), content))
    });
    read.collect()
}

#[test]
fn a_bucket_is_lost_and_another_one_goes_on_and_back() {
    if !can_use_buckets("a_bucket_is_lost_and_another_one_goes_on_and_back") {
        return;
    }
    // Two servers of two users, so that the test sees the keys at each.
    let dir = temp_dir();
    let mut near = Gateway::start(&dir.path().join("near"));
    let far = Gateway::start_for(&dir.path().join("far"), OTHER_KEY);
    let (to_near, to_far) = (Faults::start(&near.address()), Faults::start(&far.address()));
    let (near_at, far_at) = (to_near.address(), to_far.address());
    let (near_user, far_user) = ((ACCESS_KEY, near_at.as_str()), (OTHER_KEY, far_at.as_str()));
    let mut first = bucket::store(&dir.path().join("first"), "lab/one", &near_at);
    set_variables(&mut first, &of_two(near_user, far_user));
    first.restart();
    let mut site = Site::around(dir, first);
    site.create("disk", 32);
    let mut host = site.host("host").with(["--volume", "disk", "--durability", "replica"]);
    host.start();
    let mut second = invited(&site, "second");
    second.set_data(&format!("s3://{BUCKET}/two"));
    set_variables(&mut second, &of_two(far_user, near_user));

    let mut written = History::new(8192);
    let shape = Shape { depth: 4, bytes_per_second: 4_000_000, ..Shape::default() };
    beside(&host, &mut written, shape, |busy| {
        std::thread::sleep(Duration::from_secs(2));
        let place = format!("s3://{BUCKET}/two");
        replica(&site, &site.store, ["add", &place, "--standby", &second.address]).ok();
        is_in_step(&site, &site.store);
        second.restart();
        assert_eq!(metric(&second.admin, "longhaul_store_standby"), 1.0);
        wait_for("the host to know", LIMIT, || host.volume_status("disk")["replica"] == "in step");
        knows(&host, &[&second]);
        // Some answers of the replica get lost, too.
        let mut dice = fastrand::Rng::with_seed(7);
        to_far.set(move |request| match (request.method.as_str(), dice.u32(..4)) {
            ("PUT", 0) => Fault::LoseAnswer,
            _ => Fault::None,
        });
        std::thread::sleep(Duration::from_secs(3));
        to_far.end();
        assert!(metric(&site.store.admin, "longhaul_replica_put_bytes_total") > 1e6);
        near.kill();
        site.store.kill();
        assert_eq!(fail_over(&site, &second).ok().json()["role"], "store");
        goes_on_at(&host, busy, &second);
        assert_eq!(host.volume_status("disk")["replica"], "none");
    });
    has_all_at(&site, &second, &mut host, &written, "at-second");

    // The first bucket is back, and its store finds that nobody needs it any more.
    near.restart();
    refused(&run_within(site.store.command(), LIMIT), "another store has taken over");
    let before = volumes_at(&near, "lab/one/objects/");
    beside(&host, &mut written, shape, |busy| {
        drop(to_near.take_seen());
        // Answers get lost. And the server answers a copy within the bucket with success before it
        // fails.
        let mut dice = fastrand::Rng::with_seed(8);
        to_near.set(move |request| match (request.method.as_str(), dice.u32(..8)) {
            ("PUT", 0) => Fault::LoseAnswer,
            ("PUT", 1) if request.bytes == 0 => Fault::Answer(200, "RequestTimeout"),
            _ => Fault::None,
        });
        let place = format!("s3://{BUCKET}/lab/one");
        replica(&site, &second, ["add", &place, "--standby", &site.store.address]).ok();
        std::thread::sleep(Duration::from_millis(500));
        second.kill();
        second.restart();
        // Its own writes fence it, so the host has to be there again.
        goes_on_at(&host, busy, &second);
        is_in_step(&site, &second);
        to_near.end();
        let put = to_near.take_seen().into_iter().filter(|request| request.method == "PUT");
        let put: Vec<_> = put.map(|request| (request.path, request.bytes)).collect();
        only_the_difference_was_sent(&before, &near, &put);
        site.store.restart();
        assert_eq!(metric(&site.store.admin, "longhaul_store_standby"), 1.0);
        knows(&host, &[&site.store]);
        fail_over(&site, &site.store).ok();
        ends_by_itself(&mut second);
        goes_on_at(&host, busy, &site.store);
    });
    has_all_at(&site, &site.store, &mut host, &written, "at-first");
    // A host that has never had it reads it, from a store that has only the bucket.
    assert!(host.stop().success());
    site.store.kill();
    site.store.restart();
    let mut fresh = site.host("fresh");
    fresh.start();
    let image = read_all(&mut fresh.client("disk"), written.bytes()).unwrap();
    written.prefix_of(&image, written.len()).unwrap();
    assert!(fresh.stop().success());
    assert!(site.store.stop().success());
    for place in [near.path("lab/one"), far.path("two")] {
        run_within(check(&place), LIMIT).ok();
    }
}

/// A bucket gets a replica at `there`, and `waiting` continues with it after `lost` has killed the
/// former store. It gets one at `back`, where it came from, and the server copies the old content;
/// and the first store continues there.
pub fn a_bucket_goes_there_and_back(
    site: &mut Site,
    host: &mut Host,
    history: &mut History,
    mut waiting: Store,
    [there, back]: [&str; 2],
    lost: impl FnOnce(&mut Store),
) {
    replica(site, &site.store, ["add", there, "--standby", &waiting.address]).ok();
    is_in_step(site, &site.store);
    waiting.restart();
    assert_eq!(metric(&waiting.admin, "longhaul_store_standby"), 1.0);
    knows(host, &[&waiting]);
    let shape = Shape { depth: 4, bytes_per_second: 4_000_000, ..Shape::default() };
    beside(host, history, shape, |busy| {
        std::thread::sleep(Duration::from_secs(1));
        lost(&mut site.store);
        assert_eq!(fail_over(site, &waiting).ok().json()["role"], "store");
        goes_on_at(host, busy, &waiting);
        // Nobody has told the first place.
        refused(&replica(site, &waiting, ["add", back]), "--discard");
        let address = site.store.address.clone();
        replica(site, &waiting, ["add", back, "--discard", "--standby", &address]).ok();
        is_in_step(site, &waiting);
        let sent = shown(site, &waiting);
        println!(
            "going back sends {} bytes, {} were there",
            sent["put_bytes"], sent["reused_bytes"]
        );
        assert!(sent["reused_bytes"].as_u64().unwrap() > 4 << 20, "{sent}");
        site.store.restart();
        waiting.kill();
        fail_over(site, &site.store).ok();
        goes_on_at(host, busy, &site.store);
    });
}

/// Of the content of `before`, nothing large went again: `put` has names and bytes of the new puts.
/// The server copied it there.
fn only_the_difference_was_sent(
    before: &HashMap<String, Vec<u8>>,
    near: &Gateway,
    put: &[(String, usize)],
) {
    let after = volumes_at(near, "lab/one/objects/tree/");
    // Sending a shorter one takes less time than looking for it.
    let large = |(_, bytes): &&(String, usize)| *bytes > 8192;
    let sent: Vec<_> = put.iter().filter(large).filter_map(|(path, _)| of_volume(path)).collect();
    for name in &sent {
        let same = before.get(*name).is_some_and(|old| after.get(*name) == Some(old));
        assert!(!same, "{name} was there and was sent again");
    }
    let copied = after.iter().filter(|(name, _)| !sent.contains(&name.as_str()));
    let copied: usize = copied.map(|(_, content)| content.len()).sum();
    let bytes: usize = put.iter().map(|(_, bytes)| bytes).sum();
    let copies = put.iter().filter(|(_, bytes)| *bytes == 0).count();
    println!(
        "going back: {bytes} bytes were sent, {copied} were there, {copies} requests for copies"
    );
    assert!(copied > 8 << 20, "only {copied} bytes were there of {}", before.len());
}

/// `longhaul check` of a location.
fn check(place: &Path) -> Command {
    let mut check = command(longhaul());
    check.arg("check").arg(place);
    check
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
    refuses(&["remove"], "the installation has no replica");
    refuses(&["mode", "behind"], "the installation has no replica");
    let foreign = site.path("foreign");
    std::fs::create_dir_all(&foreign).unwrap();
    std::fs::write(foreign.join("letter.txt"), "dear").unwrap();
    refuses(&["add", text(&foreign)], "letter.txt");
    let other = Site::with_volume("other", 8);
    let theirs = other.store.dir().to_owned();
    refuses(&["add", text(&theirs)], "belongs to installation");
    assert_eq!(shown(&site, &site.store), Value::Null);

    replica(&site, &site.store, ["add", text(&place), "--behind"]).ok();
    refuses(&["add", text(&place)], "the replica is in");
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
    // Without it commits wait, and go on when it is there again.
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
    // Nobody can continue from a location that nothing follows any more.
    replica(&site, &site.store, ["remove"]).ok();
    assert_eq!(shown(&site, &site.store), Value::Null);
    refused(&fail_over(&site, &second), "incomplete");
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
