//! Reading ahead: what patterns and traces save, seen from outside; limits by command.

use longhaul_e2e::client::Client;
use longhaul_e2e::process::{LIMIT, longhaul, run};
use longhaul_e2e::site::{Host, Relay, Site};
use longhaul_e2e::{content, wait_for};

const MIB: u64 = 16;
const READ: u64 = 8192;

/// A volume with content at the store, and a host that has nothing of it, behind 5 ms of line.
fn cold() -> (Site, Relay, Host) {
    let site = Site::with_volume("disk", MIB);
    let mut first = site.host("first");
    first.start();
    let mut client = first.client("disk");
    for offset in (0..MIB << 20).step_by(1 << 20) {
        client.write(offset, &content(offset, 1 << 20)).unwrap();
    }
    client.flush().unwrap();
    client.disconnect();
    first.wait_drained("disk", LIMIT);
    assert!(first.stop().success());
    let relay = Relay::start(&site, ["--delay", "5ms"]);
    let host = site.host("cold").with(["--store", relay.address.as_str()]);
    (site, relay, host)
}

fn read(client: &mut Client, offset: u64) {
    assert_eq!(client.read(offset, READ as u32).unwrap(), content(offset, READ), "at {offset}");
}

fn counter(host: &Host, name: &str) -> u64 {
    host.volume_status("disk")["counters"][name].as_u64().unwrap()
}

#[test]
fn a_sequence_is_read_from_the_store_only_at_its_beginning() {
    let (_site, _relay, mut host) = cold();
    host.start();
    let mut client = host.client("disk");
    for offset in (0..8 << 20).step_by(READ as usize) {
        read(&mut client, offset);
    }
    let (store, all) = (counter(&host, "store_read_bytes"), counter(&host, "read_bytes"));
    assert_eq!(all, 8 << 20);
    assert!(store <= all / 20, "{store} of {all} bytes were asked for when they were read");
    assert!(host.volume_status("disk")["readahead"]["accuracy"].as_f64().unwrap_or(0.0) > 0.99);
}

#[test]
fn what_a_start_reads_is_read_ahead_the_next_time() {
    let (_site, _relay, mut host) = cold();
    host.start();
    let trace = |host: &Host, args: &[&str]| {
        run(longhaul(), ["trace"].iter().chain(args).chain(&["--admin", host.admin.as_str()]))
    };
    // No pattern that the detector would know.
    let places: Vec<u64> = (0..200).map(|n| n * n * 7919 % (MIB << 7) * READ).collect();
    let mut client = host.client("disk");
    trace(&host, &["record", "disk", "boot"]).ok();
    trace(&host, &["record", "disk", "boot"]).fails(1, &["being recorded already"]);
    places.iter().for_each(|offset| read(&mut client, *offset));
    trace(&host, &["stop", "disk"]).ok();
    let first = counter(&host, "store_read_bytes");
    assert!(first > 1 << 20, "{first}");
    client.disconnect();
    let list = trace(&host, &["list", "--json"]).ok().json();
    assert_eq!((&list[0]["volume"], &list[0]["name"]), (&"disk".into(), &"boot".into()));
    trace(&host, &["replay", "disk", "other"]).fails(1, &["has no trace other"]);
    assert!(host.stop().success());

    host = host.with(["--warm", "boot"]);
    host.start();
    let mut client = host.client("disk");
    wait_for("the trace is read ahead", LIMIT, || {
        let ahead = &host.volume_status("disk")["readahead"];
        ahead["replay"].is_null() && ahead["in_flight_bytes"] == 0
    });
    places.iter().for_each(|offset| read(&mut client, *offset));
    assert_eq!(counter(&host, "store_read_bytes"), 0, "without it these were {first}");
    trace(&host, &["delete", "disk", "boot"]).ok();
    assert_eq!(trace(&host, &["list", "--json"]).ok().json(), serde_json::json!([]));
}

#[test]
fn limits_hold_and_are_changed_by_command() {
    let site = Site::with_volume("disk", MIB);
    let mut host = site.host("host").with(["--drain-rate", "8Mbit/s,00:00-24:00=80kbit/s"]);
    host.start();
    let limit = |args: &[&str]| {
        let admin = ["--admin", host.admin.as_str()];
        run(longhaul(), ["limit", "disk"].iter().chain(args).chain(&admin))
    };
    let mut client = host.client("disk");
    // One after another, since a batch has at least the writes of one moment.
    for offset in (0..4 << 20).step_by(64 << 10) {
        client.write(offset, &content(offset, 64 << 10)).unwrap();
    }
    client.flush().unwrap();
    // It would take 400 s.
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert!(host.lag_bytes("disk") > 2 << 20);
    let status = host.volume_status("disk");
    assert_eq!(status["limits"]["drain_bits"], 80_000);
    limit(&["--drain-rate", "fast"]).fails(2, &["fast"]);
    limit(&["--drain-rate", "none", "--readahead-rate", "1Mbit/s"]).ok();
    host.wait_drained("disk", LIMIT);
    let limits = &host.volume_status("disk")["limits"];
    assert_eq!(
        (&limits["drain_rate"], &limits["readahead_bits"]),
        (&"none".into(), &1_000_000.into())
    );
}
