//! An operator's view: starting, stopping, status, metrics, exit codes, the demo.

use longhaul_e2e::process::{LIMIT, Server, command, longhaul, run, run_within};
use longhaul_e2e::site::{Relay, START, Site, files_below, free_address, http_get, temp_dir};
use longhaul_e2e::stamp::{History, Shape, Workload, read_all};
use longhaul_e2e::wait_for;
use rustix::process::Signal;
use std::collections::BTreeMap;

#[test]
fn an_orderly_stop_leaves_nothing_behind() {
    let mut site = Site::with_volume("disk", 32);
    let mut host = site.host("host");
    host.start();
    let mut history = History::new(8192);
    let mut client = host.client("disk");
    let mut workload = Workload::new(&mut history, &mut client, 1, Shape::default());
    workload.run(|history| history.len() >= 500).unwrap();
    // Not flushed: stopping in order keeps it all the same.
    assert!(host.stop().success());
    history.prefix_of(&site.export("disk"), history.len()).unwrap();
    let lost = site.volume(["lost", "disk", "--json"]).ok();
    assert_eq!(lost.json()["clean"], true, "{lost}");
    assert_eq!(lost.json()["ranges"], serde_json::json!([]), "{lost}");
    assert!(site.store.stop().success());

    site.store.restart();
    host.start();
    let image = read_all(&mut host.client("disk"), history.bytes()).unwrap();
    history.prefix_of(&image, history.len()).unwrap();
    // SIGINT does the same as SIGTERM.
    host.server().signal(Signal::INT);
    assert!(host.server().wait(START).success());
}

#[test]
fn what_cannot_be_drained_stays_in_the_journal() {
    let site = Site::with_volume("disk", 32);
    let relay = Relay::start(&site, []);
    let mut host = site.host("host").with(["--store", &relay.address, "--drain-limit", "1s"]);
    host.start();
    let mut history = History::new(8192);
    let mut client = host.client("disk");
    relay.cut();
    let shape = Shape { reads: 0, ..Shape::default() };
    let mut workload = Workload::new(&mut history, &mut client, 1, shape);
    workload.run(|history| history.len() >= 300).unwrap();
    host.stop();
    relay.restore();
    host.start();
    let image = read_all(&mut host.client("disk"), history.bytes()).unwrap();
    history.prefix_of(&image, history.len()).unwrap();
    host.wait_drained("disk", LIMIT);
    assert!(host.stop().success());
    history.prefix_of(&site.export("disk"), history.len()).unwrap();
}

#[test]
fn volumes_with_a_journal_are_attached_without_being_asked_for() {
    let site = Site::with_volume("disk", 32);
    site.create("second", 16);
    let relay = Relay::start(&site, []);
    let mut host = site.host("host").with(["--store", &relay.address]);
    host.start();
    let mut client = host.client("disk");
    relay.cut();
    client.write(0, &[9; 4096]).unwrap();
    client.flush().unwrap();
    host.kill();
    relay.restore();
    // No client this time: the host drains all the same.
    host.start();
    wait_for("the journal to be drained", LIMIT, || site.export("disk")[..4096] == [9; 4096]);
    let status = host.status();
    let names: Vec<&str> = volumes(&status).iter().map(|v| v["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["disk"], "{status}");
}

fn volumes(status: &serde_json::Value) -> &Vec<serde_json::Value> {
    status["volumes"].as_array().expect("volumes")
}

#[test]
fn status_and_metrics_say_what_is_going_on() {
    let mut site = Site::with_volume("disk", 32);
    site.create("second", 16);
    let mut host = site.host("host").with(["--volume", "disk", "--volume", "second"]);
    host.start();
    let mut client = host.client("disk");
    client.write(0, &[5; 1 << 20]).unwrap();
    client.flush().unwrap();
    drop(client.read(0, 4096).unwrap());
    host.wait_drained("disk", LIMIT);
    wait_for("both volumes", START, || volumes(&host.status()).len() == 2);

    let status = host.volume_status("disk");
    assert_eq!(status["epoch"], 1, "{status}");
    for number in ["lag_bytes", "lag_seconds", "journal_bytes", "journal_capacity_bytes"] {
        assert!(status[number].is_number(), "{number} in {status}");
    }
    assert_eq!(status["lag_bytes"], 0, "{status}");
    let capacity = status["journal_capacity_bytes"].as_u64().unwrap();
    assert!((100 << 20..=128 << 20).contains(&capacity), "{status}");
    assert_eq!(host.status()["link"]["up"], true, "{}", host.status());
    let table = run(longhaul(), ["status", "--admin", &host.admin]).ok();
    assert!(table.stdout.contains("disk") && table.stdout.contains("second"), "{table}");

    for (what, admin) in [("host", &host.admin), ("store", &site.store.admin)] {
        let (code, body) = http_get(admin, "/metrics").unwrap();
        assert_eq!(code, 200);
        let samples = parse_metrics(&body);
        assert!(samples.keys().all(|name| name.starts_with("longhaul_")), "{what}:\n{body}");
        assert!(samples.len() >= 5, "{what}:\n{body}");
        assert_eq!(http_get(admin, "/healthz").unwrap().0, 200);
        assert_eq!(http_get(admin, "/no-such-page").unwrap().0, 404);
    }
    let (_, body) = http_get(&host.admin, "/status").unwrap();
    let over_http: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(over_http["volumes"].as_array().unwrap().len(), 2, "{body}");

    site.store.kill();
    wait_for("the link to be seen down", START, || host.status()["link"]["up"] == false);
    client.write(0, &[6; 4096]).unwrap();
    assert!(host.lag_bytes("disk") >= 4096);
    host.kill();
    run(longhaul(), ["status", "--admin", &host.admin]).fails(1, &["running"]);
}

/// Samples by name, of the Prometheus text format: every line must be a sample of a declared type.
fn parse_metrics(body: &str) -> BTreeMap<String, usize> {
    let (mut types, mut samples) = (BTreeMap::new(), BTreeMap::new());
    for line in body.lines().filter(|line| !line.is_empty()) {
        if let Some(declared) = line.strip_prefix("# TYPE ") {
            let (name, kind) = declared.split_once(' ').unwrap();
            assert!(["counter", "gauge", "histogram", "summary"].contains(&kind), "{line}");
            assert!(types.insert(name.to_owned(), kind).is_none(), "declared twice: {line}");
            continue;
        }
        if line.starts_with('#') {
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no value: {line}"));
        let name = series.split('{').next().unwrap();
        assert!(series == name || series.ends_with('}'), "{line}");
        assert!(value.parse::<f64>().is_ok(), "not a number: {line}");
        let family = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        let family = family.filter(|family| types.contains_key(*family)).unwrap_or(name);
        let kind = types.get(family).unwrap_or_else(|| panic!("no type declared: {line}"));
        if *kind == "counter" {
            assert!(name.ends_with("_total"), "a counter's name ends with _total: {line}");
        }
        *samples.entry(family.to_owned()).or_insert(0) += 1;
    }
    samples
}

#[test]
fn exit_codes_tell_usage_from_failure() {
    let fails = |args: &[&str], code: i32, parts: &[&str]| {
        let out = run(longhaul(), args).fails(code, parts);
        assert!(out.stdout.is_empty(), "an error on standard output: {out}");
    };
    fails(&[], 2, &["usage"]);
    fails(&["no-such-command"], 2, &["usage"]);
    fails(&["host"], 2, &["--credential"]);
    fails(&["host", "--credential", "/x", "--state", "/y", "--journal-size", "ten"], 2, &["ten"]);
    fails(&["volume", "list", "--credential", "/no/such/file"], 1, &["/no/such/file"]);
    fails(&["check", "/no/such/directory"], 1, &["/no/such/directory"]);
    fails(&["status", "--admin", &free_address()], 1, &["running"]);
    fails(&["--config", "/no/such/file", "status"], 2, &["/no/such/file"]);
    let version = run(longhaul(), ["--version"]).ok();
    assert!(version.stdout.starts_with("longhaul "), "{version}");
    let help = run(longhaul(), ["--help"]).ok();
    for command in ["demo", "store", "host", "volume", "credential", "status", "check"] {
        assert!(help.stdout.contains(command), "{help}");
        run(longhaul(), [command, "--help"]).ok();
    }
}

#[test]
fn volume_commands_print_what_they_did() {
    let site = Site::new();
    site.create("a", 32);
    let args = ["create", "b", "--size", "1TiB", "--block-size", "4096"];
    site.volume(args).ok();
    let list = site.volume(["list", "--json"]).ok();
    let names: Vec<String> = list.json()["volumes"]
        .as_array()
        .unwrap_or_else(|| panic!("{list}"))
        .iter()
        .map(|volume| volume["name"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(names, ["a", "b"]);
    let table = site.volume(["list"]).ok();
    assert!(table.stdout.contains('a') && table.stdout.contains("1 TiB"), "{table}");
    let show = site.volume(["show", "b", "--json"]).ok();
    assert_eq!(show.json()["size_bytes"], 1u64 << 40, "{show}");
    assert_eq!(show.json()["block_bytes"], 4096, "{show}");
    site.volume(["create", "a", "--size", "1MiB"]).fails(1, &["exists"]);
    site.volume(["create", "bad name", "--size", "1MiB"]).fails(1, &["letters"]);
    site.volume(["create", "bad/name", "--size", "1MiB"]).fails(1, &["no tenant bad"]);
    site.volume(["create", "c", "--size", "1000"]).fails(1, &["multiple"]);
    site.volume(["create", "c", "--size", "0"]).fails(1, &["positive"]);
    site.volume(["create", "c"]).fails(2, &["--size"]);
    site.volume(["delete", "no-such-volume"]).fails(1, &["no such volume", "volume list"]);
    site.volume(["lost", "a"]).ok();
    site.volume(["delete", "b"]).ok();
    assert!(!site.volume(["list"]).ok().stdout.contains("1 TiB"));
}

#[test]
fn flags_come_from_the_config_file_and_the_environment() {
    let site = Site::with_volume("disk", 32);
    let config = site.path("longhaul.toml");
    let (admin, socket) = (free_address(), site.path("configured.nbd"));
    let text = format!(
        "[host]\nstate = {:?}\nadmin = {admin:?}\njournal-size = \"160MiB\"\nnbd = \
         [\"unix:{}\"]\nvolume = [\"disk\"]\n",
        site.path("configured"),
        socket.display()
    );
    std::fs::write(&config, text).unwrap();
    let mut host = command(longhaul());
    host.arg("--config").arg(&config).arg("host");
    host.env("LONGHAUL_CREDENTIAL", site.store.credential());
    let mut host = Server::start("host", host, &site.path("configured.log"));
    host.wait_until("the volume is attached", START, || {
        http_get(&admin, "/status").is_some_and(|(_, body)| body.contains("\"disk\""))
    });
    assert!(socket.exists());
    assert!(host.terminate(START).success());
}

#[test]
fn the_demo_shows_itself() {
    let once = |flags: &[&str]| {
        let dir = temp_dir();
        let nbd = format!("unix:{}", dir.path().join("nbd").display());
        let temporary = dir.path().join("tmp");
        std::fs::create_dir(&temporary).unwrap();
        let mut demo = command(longhaul());
        demo.args(["demo", "--once", "--size", "256MiB", "--nbd", &nbd]).args(flags);
        demo.env("TMPDIR", &temporary);
        let out = run_within(demo, LIMIT).ok();
        assert_eq!(files_below(&temporary), Vec::<std::path::PathBuf>::new(), "left behind");
        out
    };
    let out = once(&[]);
    assert!(out.stdout.contains("the read data equals the written data"), "{out}");
    once(&["--wan-delay", "4ms", "--write-through"]);

    let dir = temp_dir();
    let nbd = dir.path().join("nbd");
    let mut demo = command(longhaul());
    demo.args(["demo", "--size", "256MiB", "--nbd", &format!("unix:{}", nbd.display())]);
    demo.arg("--dir").arg(dir.path().join("state"));
    let start = |command| Server::start("demo", command, &dir.path().join("log"));
    let mut server = start(demo);
    let uri = format!("nbd+unix:///demo?socket={}", nbd.display());
    server.wait_until("the demo's volume", START, || {
        nbd.exists() && run("nbdinfo", [&uri]).status.success()
    });
    run("qemu-io", ["-f", "raw", "-c", "write -P 7 0 1M", "-c", "flush", &uri]).ok();
    assert!(server.terminate(START).success(), "{}", server.log());
    assert!(dir.path().join("state").exists(), "a directory that was given is kept");
    assert!(std::os::unix::net::UnixStream::connect(&nbd).is_err(), "the host has not ended");
}
