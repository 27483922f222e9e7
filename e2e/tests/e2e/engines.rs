//! S3 servers that take too long to build or to start for every test run: `make soak-engines` runs
//! these.

use crate::buckets::{another_host_reads_it, attached, rng};
use crate::fleet::knows;
use crate::outages::beside;
use crate::replica::a_bucket_goes_there_and_back;
use longhaul_e2e::bucket::{self, variables};
use longhaul_e2e::ceph::{Cluster, GATEWAYS, OSDS};
use longhaul_e2e::faults::{Fault, Faults};
use longhaul_e2e::garage::{ACCESS_KEY, BUCKET, Garage, SECRET_KEY};
use longhaul_e2e::minio;
use longhaul_e2e::process::{LIMIT, Output, command, longhaul, run_within};
use longhaul_e2e::site::{Host, Site, Store, metric, temp_dir};
use longhaul_e2e::stamp::{History, Shape};
use longhaul_e2e::{setting, wait_for};
use std::path::Path;
use std::time::{Duration, Instant};

/// A store over Garage's bucket, which ends by itself.
fn over_garage(state: &Path, address: &str) -> Output {
    let mut store = command(longhaul());
    store.args(["store", "--listen", "127.0.0.1:0", "--admin", "none", "--state"]).arg(state);
    store.args(["--data", &format!("s3://{BUCKET}/lab/one")]).envs(variables(address));
    store.env("AWS_ACCESS_KEY_ID", ACCESS_KEY).env("AWS_SECRET_ACCESS_KEY", SECRET_KEY);
    run_within(store, LIMIT)
}

#[test]
#[ignore = "Garage takes a quarter of an hour to build: make soak-engines"]
fn garage_is_refused() {
    let dir = temp_dir();
    let garage = Garage::start(&dir.path().join("garage"));
    let state = dir.path().join("state");
    over_garage(&state, &garage.address()).fails(
        1,
        &[
            "bucket `longhaul`",
            &garage.address(),
            "If-None-Match",
            "a second creation of one name succeeded",
            "Garage does not",
        ],
    );
    assert_eq!(garage.objects(), 0, "what was tried is removed");

    // Where something before it answers the second creation, what two do at once tells.
    let faults = Faults::start(&garage.address());
    let mut tried = 0;
    faults.set(move |request| {
        let twice = request.method == "PUT" && request.path.ends_with("-twice");
        tried += u32::from(twice);
        if twice && tried == 2 { Fault::Answer(412, "PreconditionFailed") } else { Fault::None }
    });
    over_garage(&state, &faults.address())
        .fails(1, &["bucket `longhaul`", "of two creations of one name at once both succeeded"]);
    let seen = faults.take_seen();
    let races = seen.iter().filter(|r| r.method == "PUT" && r.path.contains("-race-")).count();
    assert_eq!(races, 2, "one race, and nothing after it: {seen:?}");
    assert_eq!(garage.objects(), 0, "what was tried is removed");
}

/// A replica takes over in another prefix of the bucket, and the first prefix takes over again.
fn goes_to_another_prefix(
    site: &mut Site,
    host: &mut Host,
    history: &mut History,
    balancer: &Faults,
    lost: impl FnOnce(&mut Store),
) {
    let state = site.path("waiting");
    site.store.invite(&state);
    let waiting = bucket::store(&state, "lab/two", &balancer.address());
    let [there, back] =
        ["lab/two", "lab/one"].map(|prefix| format!("s3://{}/{prefix}", bucket::BUCKET));
    a_bucket_goes_there_and_back(site, host, history, waiting, [&there, &back], lost);
}

#[test]
#[ignore = "MinIO takes five minutes to build: make soak-engines"]
fn one_of_three_nodes_of_minio_is_killed_and_returns() {
    let dir = temp_dir();
    let mut cluster = minio::Cluster::start(&dir.path().join("minio"));
    let balancer = Faults::before(cluster.addresses());
    let mut store = bucket::store(&dir.path().join("store"), "lab/one", &balancer.address());
    store.restart();
    let mut site = Site::around(dir, store);
    let mut host = attached(&site, &[]);
    let mut history = History::new(crate::buckets::BLOCKS);
    let mut rng = rng();
    let node = rng.usize(..minio::NODES);
    crate::buckets::beside(&host, &mut history, rng.u64(..), || {
        std::thread::sleep(Duration::from_millis(rng.u64(200..1000)));
        cluster.kill(node);
        std::thread::sleep(Duration::from_millis(rng.u64(1000..4000)));
    });
    // Two nodes are enough for everything, not only to keep clients from noticing. But MinIO keeps
    // the locks of the third on its writes for a minute or two.
    host.wait_drained("disk", LIMIT * 3);
    site.store.kill();
    site.store.restart();
    // A freshly started one does not know later writes yet, and denies them.
    balancer.set_servers(cluster.ready());
    crate::buckets::beside(&host, &mut history, rng.u64(..), || {
        cluster.restart(node);
        balancer.set_servers(cluster.ready());
        std::thread::sleep(Duration::from_millis(rng.u64(1000..3000)));
    });
    // And the server copies objects within it.
    goes_to_another_prefix(&mut site, &mut host, &mut history, &balancer, Store::kill);
    another_host_reads_it(&mut site, &mut host, &history);
}

/// The kills of one round after the other: so many OSDs, gateways, and the host's store. Without
/// two OSDs nothing gets written, and requests hang.
const VICTIMS: [(usize, usize, bool); 6] =
    [(1, 0, false), (0, 1, false), (0, 0, true), (1, 1, true), (2, 0, false), (2, GATEWAYS, true)];

#[test]
#[ignore = "Ceph takes half a minute to start, and is to be killed for some minutes: make \
            soak-engines"]
fn ceph_and_stores_are_killed_and_no_client_notices() {
    let until = Instant::now() + Duration::from_secs(60 * setting("LONGHAUL_E2E_MINUTES", 5));
    let dir = temp_dir();
    let mut ceph = Cluster::start(&dir.path().join("ceph"));
    let balancer = Faults::before(ceph.addresses());
    let mut store = bucket::store(&dir.path().join("store"), "lab/one", &balancer.address());
    store.restart();
    let mut site = Site::around(dir, store);
    let state = site.path("second");
    site.store.invite(&state);
    let mut second = bucket::store(&state, "lab/one", &balancer.address());
    second.restart();
    let mut host = attached(&site, &[]);
    knows(&host, &[&site.store, &second]);
    let mut history = History::new(crate::buckets::BLOCKS);
    let mut rng = rng();
    beside(&host, &mut history, Shape::default(), |_| std::thread::sleep(Duration::from_secs(2)));
    // Before the log is long: the copy goes segment by segment.
    goes_to_another_prefix(&mut site, &mut host, &mut history, &balancer, |store| {
        store.kill();
        second.kill();
    });
    second.restart();
    knows(&host, &[&site.store, &second]);

    let mut rounds = 0;
    while Instant::now() < until || rounds < VICTIMS.len() {
        let victims = VICTIMS[rounds % VICTIMS.len()];
        let some =
            |count: usize, of: usize, first: usize| (0..count).map(move |n| (first + n) % of);
        let osds: Vec<_> = some(victims.0, OSDS, rng.usize(..OSDS)).collect();
        let gateways: Vec<_> = some(victims.1, GATEWAYS, rng.usize(..GATEWAYS)).collect();
        let (before, dead, after) = (rng.u64(200..2000), rng.u64(500..8000), rng.u64(..2000));
        let stores = [&mut site.store, &mut second];
        let served = served_by(&host, &stores);
        let store: &mut Store = stores.into_iter().nth(served).expect("one of the two");
        let begun = Instant::now();
        let mut clean = 0.0;
        let depth = rng.usize(1..32);
        let shape = Shape { depth, bytes_per_second: 4_000_000, ..Shape::default() };
        let slowest = beside(&host, &mut history, shape, |_| {
            std::thread::sleep(Duration::from_millis(before));
            osds.iter().for_each(|osd| ceph.kill_osd(*osd));
            gateways.iter().for_each(|gateway| ceph.kill_gateway(*gateway));
            if victims.2 {
                store.kill();
            }
            std::thread::sleep(Duration::from_millis(dead));
            osds.iter().for_each(|osd| ceph.restart_osd(*osd));
            gateways.iter().for_each(|gateway| ceph.restart_gateway(*gateway));
            if victims.2 {
                store.restart();
            }
            // The next one may not die before these have what they lack.
            ceph.wait_clean();
            clean = begun.elapsed().as_secs_f64();
            std::thread::sleep(Duration::from_millis(after));
        });
        host.wait_drained("disk", LIMIT);
        eprintln!(
            "round {rounds}: OSDs {osds:?}, gateways {gateways:?}{}, dead for {dead} ms; Ceph had \
             everything after {clean:.1} s, the store after {:.1} s; slowest reply {:.1} s",
            if victims.2 { ", a store" } else { "" },
            begun.elapsed().as_secs_f64(),
            slowest.as_secs_f64()
        );
        rounds += 1;
    }
    let sum = |name: &str| metric(&site.store.admin, name) + metric(&second.admin, name);
    let retries = sum("longhaul_store_object_retries_total");
    eprintln!("{rounds} rounds, {} changes, {retries} retries since the last kill", history.len());
    // Acknowledged data is where it cannot get lost, not only at living daemons.
    ceph.kill_all();
    ceph.restart_all();
    for store in [&mut site.store, &mut second] {
        assert!(!store.server().log().contains("another store wrote"), "{}", store.server().log());
    }
    another_host_reads_it(&mut site, &mut host, &history);
}

/// The store that the host uses.
fn served_by(host: &Host, stores: &[&mut Store; 2]) -> usize {
    let mut found = None;
    wait_for("the host to be at a store", LIMIT, || {
        let peer = crate::fleet::peer(host);
        found = stores.iter().position(|store| store.address == peer);
        found.is_some()
    });
    found.expect("it was waited for")
}
