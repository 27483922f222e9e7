//! Stores whose objects are in a bucket: a real server of the S3 API, killed, throttled, and behind
//! a proxy that loses answers.

use longhaul_e2e::bucket::{self, Gateway, can_use_buckets, site, store, variables};
use longhaul_e2e::faults::{Fault, Faults, Request};
use longhaul_e2e::process::{LIMIT, Output, command, longhaul, run, run_within};
use longhaul_e2e::site::{Host, Site, http_get, metric, temp_dir};
use longhaul_e2e::stamp::{History, Shape, Workload, read_all};
use longhaul_e2e::{setting, wait_for};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Of the volumes here.
pub const BLOCKS: usize = 8192;
const MIB: u64 = (BLOCKS as u64 * 4096) >> 20;

pub fn rng() -> fastrand::Rng {
    let seed = setting("LONGHAUL_E2E_SEED", fastrand::u64(..));
    eprintln!("LONGHAUL_E2E_SEED={seed}");
    fastrand::Rng::with_seed(seed)
}

/// Runs `meanwhile` beside a workload, no request of which may fail.
pub fn beside(host: &Host, history: &mut History, seed: u64, meanwhile: impl FnOnce()) {
    let done = AtomicBool::new(false);
    let mut client = host.client("disk");
    std::thread::scope(|scope| {
        let work = scope.spawn(|| {
            let mut workload = Workload::new(history, &mut client, seed, Shape::default());
            workload.run(|_| done.load(Ordering::Relaxed))
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(meanwhile));
        done.store(true, Ordering::Relaxed);
        work.join().expect("reads return what was written").expect("no request fails");
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Everything is at the store, and another host reads it there.
pub fn another_host_reads_it(site: &mut Site, host: &mut Host, history: &History) {
    host.wait_drained("disk", LIMIT);
    assert!(host.stop().success());
    history.prefix_of(&site.export("disk"), history.len()).unwrap();
    site.store.kill();
    site.store.restart();
    let mut other = site.host("fresh");
    other.start();
    let image = read_all(&mut other.client("disk"), history.bytes()).unwrap();
    history.prefix_of(&image, history.len()).unwrap();
    assert!(other.stop().success());
    assert!(site.store.stop().success());
}

/// Everything is at the store, another host reads it there, and a copy of the bucket is sound.
fn nothing_is_missing(
    site: &mut Site,
    gateway: &Gateway,
    prefix: &str,
    host: &mut Host,
    history: &History,
) {
    another_host_reads_it(site, host, history);
    run(longhaul(), ["check".as_ref(), gateway.path(prefix).as_os_str()]).ok();
}

pub fn attached(site: &Site, flags: &[&str]) -> Host {
    site.create("disk", MIB);
    let mut host = site.host("host").with(["--volume", "disk"]).with(flags.iter().copied());
    host.start();
    drop(host.client("disk"));
    host
}

#[test]
fn a_volume_lives_in_a_bucket() {
    if !can_use_buckets("a_volume_lives_in_a_bucket") {
        return;
    }
    let (mut site, gateway, faults) = site();
    let mut host = attached(&site, &[]);
    let mut history = History::new(BLOCKS);
    beside(&host, &mut history, 1, || std::thread::sleep(Duration::from_secs(3)));
    host.wait_drained("disk", LIMIT);

    let names = gateway.objects();
    let named = |part: &str| names.iter().filter(|(name, _)| name.starts_with(part)).count();
    assert_eq!(named("lab/one/longhaul-store.json"), 1, "{names:?}");
    assert_eq!(named("lab/one/objects/volumes/disk"), 1, "{names:?}");
    assert!(named("lab/one/objects/v/") > 1, "{names:?}");
    assert_eq!(named("lab/one/probe"), 0, "{names:?}");
    assert_eq!(named(""), named("lab/one/"), "nothing elsewhere: {names:?}");

    let (_, metrics) = http_get(&site.store.admin, "/metrics").unwrap();
    for sample in [
        "longhaul_store_object_requests_total{operation=\"put\",outcome=\"ok\"} ",
        "longhaul_store_object_requests_total{operation=\"put\",outcome=\"exists\"} ",
        "longhaul_store_object_request_seconds_count{operation=\"put\"} ",
        "longhaul_store_volume_requests_total{volume=\"disk\",class=\"put\"} ",
    ] {
        assert!(metrics.contains(sample), "no {sample} in\n{metrics}");
    }
    assert!(metric(&site.store.admin, "longhaul_store_object_sent_bytes_total") > 1e6);

    // Unused volumes cost nothing.
    std::thread::sleep(Duration::from_secs(2));
    drop(faults.take_seen());
    std::thread::sleep(Duration::from_secs(10));
    let seen = faults.take_seen();
    assert!(seen.is_empty(), "requests of an idle store: {seen:?}");
    // Not even while a host has it attached, and asks the store how it is.
    assert_eq!(http_get(&site.store.admin, "/healthz").unwrap().0, 200);
    assert!(faults.take_seen().is_empty());

    nothing_is_missing(&mut site, &gateway, "lab/one", &mut host, &history);
    site.store.restart();
    let check = format!("s3://{}/lab/one", bucket::BUCKET);
    run(longhaul(), ["check", &check]).fails(1, &["directory", "aws s3 sync"]);
    site.volume(["delete", "disk", "--now"]).ok();
    wait_for("the data to be removed", LIMIT, || {
        gateway.objects().iter().all(|(name, _)| !name.contains("/objects/v/"))
    });
    site.create("disk", MIB);
}

#[test]
fn store_and_bucket_are_killed_and_no_client_notices() {
    if !can_use_buckets("store_and_bucket_are_killed_and_no_client_notices") {
        return;
    }
    let (mut site, mut gateway, _faults) = site();
    let mut host = attached(&site, &[]);
    let mut history = History::new(BLOCKS);
    let mut rng = rng();
    for round in 0..setting("LONGHAUL_E2E_ROUNDS", 8) {
        beside(&host, &mut history, rng.u64(..), || {
            std::thread::sleep(Duration::from_millis(rng.u64(50..1500)));
            if round % 2 == 0 {
                site.store.kill();
                std::thread::sleep(Duration::from_millis(rng.u64(0..300)));
                site.store.restart();
            } else {
                gateway.kill();
                std::thread::sleep(Duration::from_millis(rng.u64(0..3000)));
                gateway.restart();
            }
            std::thread::sleep(Duration::from_millis(rng.u64(0..500)));
        });
    }
    nothing_is_missing(&mut site, &gateway, "lab/one", &mut host, &history);
}

/// Loses every `one_in`th answer to changes of the bucket, and now and then those of a whole
/// second. That is longer than the layer below the engine repeats requests.
fn loses_answers(mut rng: fastrand::Rng, one_in: u32) -> impl FnMut(&Request) -> Fault + Send {
    let mut silent_until = Instant::now();
    move |request| {
        if rng.u32(..200) == 0 {
            silent_until = Instant::now() + Duration::from_secs(1);
        }
        let changes = request.method != "GET";
        let lost = Instant::now() < silent_until || changes && rng.u32(..one_in) == 0;
        if lost { Fault::LoseAnswer } else { Fault::None }
    }
}

#[test]
fn answers_that_are_lost_after_success_lose_and_wedge_nothing() {
    if !can_use_buckets("answers_that_are_lost_after_success_lose_and_wedge_nothing") {
        return;
    }
    let (mut site, gateway, faults) = site();
    // The one that creates a volume: it is the creator's all the same.
    let mut first = true;
    faults.set(move |request| {
        let name = request.method == "PUT" && request.path.contains("/volumes/");
        if name && std::mem::take(&mut first) { Fault::LoseAnswer } else { Fault::None }
    });
    let mut host = attached(&site, &[]);
    assert!(faults.take_seen().iter().filter(|r| r.path.contains("/volumes/disk")).count() > 1);
    let mut rng = rng();
    let mut history = History::new(BLOCKS);
    faults.set(loses_answers(fastrand::Rng::with_seed(rng.u64(..)), 2));
    beside(&host, &mut history, rng.u64(..), || std::thread::sleep(Duration::from_secs(20)));
    let seen = faults.take_seen();
    let count = |method: &str| seen.iter().filter(|request| request.method == method).count();
    eprintln!("{} puts, {} gets", count("PUT"), count("GET"));
    // Still with faults; and if no creation is ever answered, what exists says so.
    host.wait_drained("disk", LIMIT);
    faults.set(|request| if request.method == "PUT" { Fault::LoseAnswer } else { Fault::None });
    beside(&host, &mut history, rng.u64(..), || std::thread::sleep(Duration::from_secs(5)));
    host.wait_drained("disk", LIMIT);
    faults.end();
    // One segment refused to its own writer would be a rival.
    assert!(
        !site.store.server().log().contains("another store wrote"),
        "{}",
        site.store.server().log()
    );
    nothing_is_missing(&mut site, &gateway, "lab/one", &mut host, &history);

    // All answers lost for longer than anyone waits: whoever asks again finds the volume.
    site.store.restart();
    faults.set(
        |request| {
            if request.path.contains("/volumes/") { Fault::LoseAnswer } else { Fault::None }
        },
    );
    site.volume(["create", "second", "--size", "1MiB"]).fails(1, &["no answer"]);
    faults.end();
    site.volume(["create", "second", "--size", "1MiB"]).fails(1, &["exists"]);
    assert_eq!(site.show("second")["name"], "second");
    site.volume(["delete", "second"]).ok();
}

#[test]
fn throttled_cut_and_slow_requests_only_take_time() {
    if !can_use_buckets("throttled_cut_and_slow_requests_only_take_time") {
        return;
    }
    let (mut site, gateway, faults) = site();
    let mut host = attached(&site, &[]);
    let mut history = History::new(BLOCKS);
    let mut rng = rng();
    for phase in 0..4 {
        let mut dice = fastrand::Rng::with_seed(rng.u64(..));
        faults.set(move |request| match (phase, dice.u32(..10)) {
            (0, 0..6) => Fault::Answer(503, "SlowDown"),
            (1, 0..4) if request.bytes > 0 => Fault::CutRequest,
            (1, 0..4) => Fault::CutAnswer,
            (2, 0..5) => Fault::Answer(500, "InternalError"),
            (3, 0..5) => Fault::Delay(Duration::from_millis(300)),
            _ => Fault::None,
        });
        beside(&host, &mut history, rng.u64(..), || std::thread::sleep(Duration::from_secs(4)));
    }
    faults.end();
    host.wait_drained("disk", LIMIT);
    assert!(metric(&site.store.admin, "longhaul_store_object_pauses_total") > 0.0);
    assert!(metric(&site.store.admin, "longhaul_store_object_retries_total") > 0.0);

    // A store that is missing some of its machines says of what is there that it is not.
    let until = Instant::now() + Duration::from_secs(3);
    faults.set(move |request| {
        let data = request.method == "GET" && request.path.contains("/seg/");
        if data && Instant::now() < until { Fault::Answer(404, "NoSuchKey") } else { Fault::None }
    });
    beside(&host, &mut history, rng.u64(..), || std::thread::sleep(Duration::from_secs(4)));
    let log = site.store.server().log();
    assert!(log.contains("does not find it"), "no read was asked for: {log}");
    // And if a store opens the volume just then, it does so again later.
    host.wait_drained("disk", LIMIT);
    let names = gateway.objects().into_iter().map(|(name, _)| name);
    let segments: Vec<_> = names.filter(|name| name.contains("/seg/")).collect();
    let hidden = segments[segments.len() - 2].clone();
    let until = Instant::now() + Duration::from_secs(5);
    faults.set(move |request| {
        let gone = request.method == "GET" && request.path.contains(&hidden);
        if gone && Instant::now() < until { Fault::Answer(404, "NoSuchKey") } else { Fault::None }
    });
    site.store.kill();
    site.store.restart();
    beside(&host, &mut history, rng.u64(..), || std::thread::sleep(Duration::from_secs(2)));
    host.wait_drained("disk", LIMIT);

    // Nothing but refusals: the requests get rarer instead of more.
    faults.set(|_| Fault::Answer(503, "SlowDown"));
    beside(&host, &mut history, rng.u64(..), || {
        std::thread::sleep(Duration::from_secs(5));
        drop(faults.take_seen());
        std::thread::sleep(Duration::from_secs(10));
        let seen = faults.take_seen();
        // The workload gets no answer before the commit.
        faults.end();
        assert!(seen.len() < 40, "{} requests in 10 s to a bucket that wants none", seen.len());
    });
    nothing_is_missing(&mut site, &gateway, "lab/one", &mut host, &history);
}

#[test]
fn credentials_that_expire_stop_nothing_and_new_ones_are_taken_up() {
    if !can_use_buckets("credentials_that_expire_stop_nothing_and_new_ones_are_taken_up") {
        return;
    }
    let dir = temp_dir();
    let gateway = Gateway::start(&dir.path().join("gateway"));
    let faults = Faults::start(&gateway.address());
    let profile = dir.path().join("credentials");
    let write_profile = |token: &str| {
        let (key, secret) = (bucket::ACCESS_KEY, bucket::SECRET_KEY);
        let text = format!(
            "[default]\nx=1\n[lab]\naws_access_key_id={key}\naws_secret_access_key={secret}\n{token}"
        );
        std::fs::write(&profile, text).unwrap();
    };
    write_profile("# yet without a token\n");
    let mut store = store(&dir.path().join("store"), "p", &faults.address());
    let mut all = variables(&faults.address());
    all.retain(|(name, _)| !name.ends_with("_KEY_ID") && !name.ends_with("_ACCESS_KEY"));
    let path = profile.to_str().unwrap().to_owned();
    all.retain(|(name, _)| *name != "AWS_SHARED_CREDENTIALS_FILE");
    all.extend([("AWS_PROFILE", "lab".into()), ("AWS_SHARED_CREDENTIALS_FILE", path)]);
    store.set_variables(all.iter().map(|(name, value)| (*name, value.as_str())));
    store.restart();
    let mut site = Site::around(dir, store);
    let mut host = attached(&site, &[]);
    let mut history = History::new(BLOCKS);
    beside(&host, &mut history, 1, || {
        std::thread::sleep(Duration::from_millis(500));
        faults.set(|_| Fault::Answer(400, "ExpiredToken"));
        let admin = site.store.admin.clone();
        wait_for("the store to say so", LIMIT, || {
            http_get(&admin, "/healthz").is_some_and(|(code, text)| {
                code == 503 && text.contains("volume disk") && text.contains("have expired")
            })
        });
        let (_, status) = http_get(&admin, "/status").unwrap();
        assert!(status.contains("ExpiredToken"), "{status}");
        // As after a rewrite of the file.
        write_profile("# renewed, some bytes longer than before\n");
        faults.end();
        wait_for("the store to recover", LIMIT, || {
            http_get(&admin, "/healthz").is_some_and(|(code, _)| code == 200)
        });
    });
    nothing_is_missing(&mut site, &gateway, "p", &mut host, &history);
}

/// A store that should not start.
fn refused(dir: &Path, prefix: &str, address: &str, change: &[(&str, &str)]) -> Output {
    let store = store(dir, prefix, address);
    let mut command = store.command();
    command.envs(change.iter().copied());
    run_within(command, LIMIT)
}

#[test]
fn what_a_store_cannot_use_is_refused_with_a_reason() {
    if !can_use_buckets("what_a_store_cannot_use_is_refused_with_a_reason") {
        return;
    }
    let dir = temp_dir();
    let gateway = Gateway::start(&dir.path().join("gateway"));
    let state = dir.path().join("state");
    let address = gateway.address();
    let refused = |prefix: &str, change: &[(&str, &str)]| refused(&state, prefix, &address, change);
    refused("p", &[("AWS_ACCESS_KEY_ID", "nobody")]).fails(1, &["does not know the access key"]);
    refused("p", &[("AWS_SECRET_ACCESS_KEY", "wrong")]).fails(1, &["AWS_SECRET_ACCESS_KEY"]);
    refused("p", &[("AWS_ALLOW_HTTP", "false")]).fails(1, &["AWS_ALLOW_HTTP=true", &address]);
    let https = format!("https://{address}");
    refused("p", &[("AWS_ENDPOINT_URL", &https)]).fails(1, &["no answer", &https]);
    let nowhere = "http://no-such-host.invalid:1";
    refused("p", &[("AWS_ENDPOINT_URL", nowhere)]).fails(1, &["name is not known", nowhere]);
    refused("p", &[("AWS_ENDPOINT_URL", "http://127.0.0.1:9")]).fails(1, &["no answer"]);
    let profile =
        [("AWS_PROFILE", "none"), ("AWS_ACCESS_KEY_ID", ""), ("AWS_SECRET_ACCESS_KEY", "")];
    refused("p", &profile).fails(1, &["profile `none`", "static keys"]);
    gateway.add("foreign/thesis.tex", "x");
    refused("foreign", &[]).fails(1, &["s3://longhaul/foreign", "thesis.tex"]);
    gateway.add("newer/longhaul-store.json", r#"{"format":9,"installation":"0","created_by":"x"}"#);
    refused("newer", &[]).fails(1, &["format 9", "newer longhaul"]);
    // None of them has left anything.
    assert_eq!(gateway.objects().len(), 2, "{:?}", gateway.objects());

    let mut missing = command(longhaul());
    missing.args(["store", "--listen", "127.0.0.1:0", "--admin", "none", "--state"]).arg(&state);
    missing.args(["--data", "s3://no-such-bucket/p"]).envs(variables(&address));
    run_within(missing, LIMIT).fails(1, &["no bucket `no-such-bucket`", "create it"]);
    for (data, part) in [("s3://longhaul/p", "--state"), ("s3://x", "name of a bucket")] {
        let mut usage = command(longhaul());
        usage.args(["store", "--listen", "127.0.0.1:0", "--admin", "none", "--data", data]);
        run_within(usage, LIMIT).fails(2, &[part]);
    }
}

#[test]
fn a_bucket_over_tls_is_trusted_by_its_ca() {
    if !can_use_buckets("a_bucket_over_tls_is_trusted_by_its_ca") {
        return;
    }
    let dir = temp_dir();
    let openssl = |args: &str| {
        let mut openssl = command("openssl");
        openssl.current_dir(dir.path()).args(args.split_whitespace());
        run_within(openssl, LIMIT).ok();
    };
    let new = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj";
    openssl(&format!("req -x509 {new} /CN=ca -days 2 -keyout ca-key.pem -out ca.pem"));
    openssl(&format!("req {new} /CN=s3 -keyout key.pem -out request.pem"));
    std::fs::write(
        dir.path().join("extension"),
        "basicConstraints=CA:FALSE\nsubjectAltName=IP:127.0.0.1\n",
    )
    .unwrap();
    openssl(
        "x509 -req -in request.pem -days 2 -CA ca.pem -CAkey ca-key.pem -CAcreateserial -extfile \
         extension -out cert.pem",
    );
    let path = |name: &str| dir.path().join(name);
    let gateway = Gateway::start_tls(&path("gateway"), &path("cert.pem"), &path("key.pem"));
    let url = format!("https://{}", gateway.address());
    let ca = path("ca.pem").to_str().unwrap().to_owned();
    let change = [("AWS_ENDPOINT_URL", url.as_str()), ("AWS_ALLOW_HTTP", "false")];
    refused(&path("state"), "p", &gateway.address(), &change)
        .fails(1, &["certificate is not accepted", "SSL_CERT_FILE", &url]);
    let mut store = store(&path("state"), "p", &gateway.address());
    let mut all = variables(&gateway.address());
    all.retain(|(name, _)| !["AWS_ENDPOINT_URL", "AWS_ALLOW_HTTP"].contains(name));
    all.extend([("AWS_ENDPOINT_URL", url), ("SSL_CERT_FILE", ca)]);
    store.set_variables(all.iter().map(|(name, value)| (*name, value.as_str())));
    store.restart();
    let mut site = Site::around(dir, store);
    let mut host = attached(&site, &[]);
    let mut history = History::new(BLOCKS);
    beside(&host, &mut history, 1, || std::thread::sleep(Duration::from_secs(1)));
    nothing_is_missing(&mut site, &gateway, "p", &mut host, &history);
}

#[test]
fn a_bucket_without_conditional_creation_is_refused() {
    if !can_use_buckets("a_bucket_without_conditional_creation_is_refused") {
        return;
    }
    let dir = temp_dir();
    let gateway = Gateway::start(&dir.path().join("gateway"));
    let faults = Faults::start(&gateway.address());
    // As with Garage: existing content is no hindrance. The condition is signed, so the object goes
    // instead.
    let root = gateway.path("..");
    faults.set(move |request| {
        if request.method == "PUT" {
            let _ = std::fs::remove_file(root.join(request.path.trim_start_matches('/')));
        }
        Fault::None
    });
    let state = dir.path().join("state");
    refused(&state, "p", &faults.address(), &[])
        .fails(1, &["bucket `longhaul`", "If-None-Match", "second creation of one name succeeded"]);
    assert_eq!(gateway.objects(), [], "the probe is removed");
    faults.end();
    let mut store = store(&state, "p", &faults.address());
    store.restart();
    let beginnings = ["p/longhaul-store.json", "p/objects/stores/", "p/objects/accepted/"];
    for (key, _) in gateway.objects() {
        assert!(beginnings.iter().any(|known| key.starts_with(known)), "{key}");
    }
}

#[test]
fn a_host_at_another_store_over_the_same_prefix_fences_the_first() {
    if !can_use_buckets("a_host_at_another_store_over_the_same_prefix_fences_the_first") {
        return;
    }
    let (site, gateway, _faults) = site();
    let host = attached(&site, &[]);
    let mut first = host.client("disk");
    first.write(0, &[1; 4096]).unwrap();
    first.flush().unwrap();
    host.wait_drained("disk", LIMIT);
    // An attach at the second store takes the volume.
    let dir = site.path("second");
    site.store.invite(&dir);
    let mut second = store(&dir, "lab/one", &gateway.address());
    second.restart();
    let mut other =
        Host::new(&site.path("other"), &site.store.credential()).with(["--store", &second.address]);
    other.start();
    other.attach(["disk", "--take-over"]).ok();
    let mut client = other.client("disk");
    assert_eq!(client.read(0, 4096).unwrap(), vec![1; 4096]);
    client.write(0, &[2; 4096]).unwrap();
    client.flush().unwrap();
    other.wait_drained("disk", LIMIT);
    // The first host goes on writing.
    let _ = first.write(4096, &[3; 4096]).and_then(|()| first.flush());
    wait_for("the first host to be fenced", LIMIT, || {
        host.volume_status("disk")["state"] == "fenced"
    });
    assert_eq!(client.read(0, 4096).unwrap(), vec![2; 4096]);
    assert_eq!(client.read(4096, 4096).unwrap(), vec![0; 4096]);
    assert!(other.stop().success());
}
