//! Volumes that come back after a deletion, and tenants that know nothing of each other.

use longhaul_e2e::client::{Command, Protocol};
use longhaul_e2e::process::{LIMIT, Output, command, longhaul, run, run_within};
use longhaul_e2e::site::{Host, Site, files_below, http_get, metric};
use longhaul_e2e::wait_for;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const MIB: u64 = 8;
/// The kernel's `ENOSPC`.
const NO_SPACE: i32 = 28;

fn deleted(site: &Site) -> Vec<Value> {
    let list = site.volume(["list", "--deleted", "--json"]).ok().json();
    list["volumes"].as_array().unwrap().clone()
}

fn written(site: &Site, volume: &str, byte: u8) {
    let mut host = site.host(&format!("writer-{byte}"));
    host.start();
    let mut client = host.client(volume);
    client.write(0, &[byte; 64 << 10]).unwrap();
    client.flush().unwrap();
    client.disconnect();
    assert!(host.stop().success());
}

#[test]
fn a_deleted_volume_comes_back_as_it_was() {
    let mut site = Site::with_volume("disk", MIB);
    written(&site, "disk", 7);
    site.snapshot(["create", "disk@monday"]).ok();
    let id = site.show("disk")["id"].clone();
    let mut reader = site.host("reader");
    reader.start();
    let mut snapshot = reader.client("disk@monday");
    assert_eq!(snapshot.read(0, 4096).unwrap(), [7; 4096]);
    snapshot.disconnect();
    site.volume(["delete", "disk"]).ok();
    // It is gone for everybody, and so are its snapshots.
    let mut late = site.host("late");
    late.start();
    assert!(late.refusal("disk@monday").contains("no such"));
    assert!(reader.refusal("disk").contains("no such volume"));
    site.volume(["show", "disk"]).fails(1, &["no such volume"]);
    site.volume(["export", "disk@monday", "/dev/null"]).fails(1, &["no such volume"]);
    let list = deleted(&site);
    assert_eq!((&list[0]["id"], &list[0]["size_bytes"]), (&id, &(MIB << 20).into()));
    assert!(list[0]["until"].as_u64() > list[0]["deleted"].as_u64());
    // Its name is free, and stays with whoever has it.
    site.create("disk", 1);
    site.volume(["undelete", "disk"]).fails(1, &["exists"]);
    site.store.kill();
    site.store.restart();
    site.volume(["undelete", "disk", "--name", "old"]).ok();
    assert!(deleted(&site).is_empty());
    assert_eq!(site.show("old")["id"], id);
    assert_eq!(site.export("old")[..64 << 10], [7; 64 << 10]);
    assert_eq!(site.export("old@monday")[..64 << 10], [7; 64 << 10]);
    written(&site, "old", 8);
    // The list tells two deleted ones of one name apart.
    site.volume(["delete", "disk"]).ok();
    site.volume(["delete", "old"]).ok();
    site.volume(["undelete", "nothing"]).fails(1, &["list --deleted"]);
    site.volume(["undelete", "old", "--name", "disk"]).ok();
    site.volume(["delete", "disk"]).ok();
    site.volume(["undelete", "disk"]).fails(2, &["identity"]);
    site.volume(["undelete", id.as_str().unwrap(), "--name", "a/b"]).fails(1, &[]);
    site.volume(["undelete", id.as_str().unwrap()]).ok();
    assert_eq!(site.export("disk")[..64 << 10], [8; 64 << 10]);
    assert!(site.store.stop().success());
    run(longhaul(), ["check".as_ref(), site.store.dir().as_os_str()]).ok();
}

#[test]
fn what_is_deleted_goes_when_its_time_is_up_or_at_once() {
    let mut site = Site::new();
    let data = |site: &Site| {
        let all = site.store.dir().join("objects/v");
        if all.exists() { files_below(&all).len() } else { 0 }
    };
    let gone = |site: &Site| {
        wait_for("the data to be removed", LIMIT, || data(site) == 0);
        assert!(deleted(site).is_empty());
    };
    site.create("disk", MIB);
    written(&site, "disk", 1);
    assert!(data(&site) > 0);
    site.volume(["delete", "disk", "--now"]).ok();
    gone(&site);
    site.create("disk", MIB);
    written(&site, "disk", 2);
    site.volume(["delete", "disk"]).ok();
    assert!(data(&site) > 0);
    site.volume(["delete", "disk", "--now"]).ok();
    gone(&site);
    site.volume(["delete", "disk", "--now"]).fails(1, &["no deleted volume"]);
    // A store that keeps nothing, and one that starts after the time.
    site.create("disk", MIB);
    written(&site, "disk", 3);
    site.volume(["delete", "disk"]).ok();
    site.store.stop();
    std::thread::sleep(std::time::Duration::from_secs(2));
    site.store.set_flags(["--delete-grace", "1s"]);
    site.store.restart();
    gone(&site);
    site.store.stop();
    site.store.set_flags(["--delete-grace", "0"]);
    site.store.restart();
    site.create("disk", MIB);
    written(&site, "disk", 4);
    site.volume(["delete", "disk"]).ok();
    gone(&site);
    assert!(site.store.stop().success());
    run(longhaul(), ["check".as_ref(), site.store.dir().as_os_str()]).ok();
}

/// Runs a command with a credential.
fn with<'a>(credential: &Path, args: impl IntoIterator<Item = &'a str>) -> Output {
    let mut command = command(longhaul());
    command.args(args).arg("--credential").arg(credential);
    run_within(command, LIMIT)
}

/// Makes a tenant with those limits, and a credential for it.
fn tenant(site: &Site, name: &str, limits: &[&str]) -> PathBuf {
    let all = ["tenant", "create", name].into_iter().chain(limits.iter().copied());
    with(&site.store.credential(), all).ok();
    issue(site, name, name)
}

fn issue(site: &Site, tenant: &str, name: &str) -> PathBuf {
    let file = site.path(&format!("{name}.toml"));
    let state = site.store.dir().to_str().unwrap();
    let path = file.to_str().unwrap();
    run(
        longhaul(),
        [
            "credential",
            "issue",
            "--role",
            "admin",
            "--tenant",
            tenant,
            "--name",
            name,
            "--state",
            state,
            path,
        ],
    )
    .ok();
    file
}

fn names(list: &Value, what: &str) -> Vec<String> {
    let list = list[what].as_array().unwrap().iter();
    list.map(|volume| volume["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn tenants_know_nothing_of_each_other() {
    let site = Site::with_volume("db", MIB);
    let (acme, other) = (tenant(&site, "acme", &[]), tenant(&site, "other", &[]));
    for (credential, size) in [(&acme, "16MiB"), (&other, "32MiB")] {
        with(credential, ["volume", "create", "db", "--size", size]).ok();
    }
    with(&other, ["volume", "create", "theirs", "--size", "1MiB"]).ok();
    let list = |credential: &Path| {
        names(&with(credential, ["volume", "list", "--json"]).ok().json(), "volumes")
    };
    assert_eq!(list(&acme), ["db"]);
    assert_eq!(list(&other), ["db", "theirs"]);
    assert_eq!(list(&site.store.credential()), ["acme/db", "db", "other/db", "other/theirs"]);
    let shown = with(&acme, ["volume", "show", "db", "--json"]).ok().json();
    assert_eq!((&shown["name"], &shown["size_bytes"]), (&"db".into(), &(16 << 20).into()));
    // No attempt finds such a volume.
    for name in ["theirs", "theirs@x"] {
        with(&acme, ["volume", "show", name]).fails(1, &["no such volume"]);
    }
    for odd in
        ["other/db", "../other/db", "_other/db", "acme/db", "/db", "db/", "", "\u{e4}", "a b"]
    {
        with(&acme, ["volume", "show", odd]).fails(1, &["letters"]);
        with(&acme, ["volume", "create", odd, "--size", "1MiB"]).fails(1, &["letters"]);
        with(&acme, ["volume", "delete", odd]).fails(1, &["letters"]);
    }
    for args in [
        &["volume", "delete", "theirs"][..],
        &["volume", "resize", "theirs", "1GiB"],
        &["volume", "export", "theirs", "/dev/null"],
        &["volume", "lost", "theirs"],
        &["volume", "accept-loss", "theirs"],
        &["snapshot", "create", "theirs@x"],
        &["snapshot", "list", "theirs"],
    ] {
        with(&acme, args.iter().copied()).fails(1, &["no such volume"]);
    }
    for args in [
        &["store", "list"][..],
        &["store", "evacuate"],
        &["store", "rebalance"],
        &["tenant", "list"],
        &["tenant", "set", "acme", "--max-volumes", "none"],
        &["tenant", "create", "third"],
    ] {
        with(&acme, args.iter().copied()).fails(1, &["admin.toml"]);
    }
    // Hosts of both, and of the installation, each with what is theirs.
    let hosts = [(&acme, "db", 1), (&other, "db", 2), (&site.store.credential(), "db", 3)];
    let mut running = Vec::new();
    for (credential, volume, byte) in hosts {
        let mut host = Host::new(&site.path(&format!("host-{byte}")), credential);
        host.start();
        let mut client = host.client(volume);
        client.write(0, &[byte; 4096]).unwrap();
        client.flush().unwrap();
        client.disconnect();
        running.push(host);
    }
    assert!(running[0].refusal("theirs").contains("no such volume"));
    assert!(running[0].refusal("other/db").contains("letters"));
    for (host, byte) in running.iter_mut().zip([1, 2, 3]) {
        let mut client = host.client("db");
        assert_eq!(client.read(0, 4096).unwrap(), [byte; 4096]);
        client.disconnect();
        host.wait_drained("db", LIMIT);
        assert!(host.stop().success());
    }
    // Snapshots, clones and deleted volumes are theirs as well.
    with(&acme, ["snapshot", "create", "db@monday"]).ok();
    with(&acme, ["volume", "clone", "db@monday", "copy"]).ok();
    with(&acme, ["volume", "clone", "db@monday", "other/copy"]).fails(1, &["letters"]);
    with(&acme, ["volume", "delete", "db"]).fails(1, &["delete copy first"]);
    let admin = site.store.credential();
    with(&admin, ["volume", "clone", "acme/db@monday", "copy"]).fails(1, &["acme/NAME"]);
    assert_eq!(list(&acme), ["copy", "db"]);
    with(&acme, ["volume", "delete", "copy"]).ok();
    let deleted = |credential: &Path| {
        let list = with(credential, ["volume", "list", "--deleted", "--json"]).ok().json();
        (names(&list, "volumes"), list["volumes"][0]["id"].as_str().map(str::to_owned))
    };
    let id = deleted(&acme).1.unwrap();
    assert!(deleted(&other).0.is_empty());
    assert_eq!(deleted(&admin).0, ["acme/copy"]);
    with(&other, ["volume", "undelete", &id]).fails(1, &["no deleted volume"]);
    with(&other, ["volume", "delete", &id, "--now"]).fails(1, &["no deleted volume"]);
    with(&admin, ["volume", "undelete", &id, "--name", "copy"]).fails(1, &["acme/NAME"]);
    with(&acme, ["volume", "undelete", "copy"]).ok();
    let mut reader = Host::new(&site.path("reader"), &acme);
    reader.start();
    for volume in ["copy", "db@monday"] {
        let mut client = reader.client(volume);
        assert_eq!(client.read(0, 4096).unwrap(), [1; 4096]);
        client.disconnect();
    }
    assert!(reader.stop().success());
}

#[test]
fn the_installation_serves_tenants_volumes_by_their_whole_names() {
    let mut site = Site::new();
    let acme = tenant(&site, "acme", &[]);
    with(&acme, ["volume", "create", "db", "--size", "8MiB"]).ok();
    for protocol in [Protocol::Nbd, Protocol::Iscsi] {
        site = site.over(protocol);
        let mut host = site.host(&format!("{protocol:?}"));
        host.start();
        let mut client = host.client("acme/db");
        client.write(0, &[5; 4096]).unwrap();
        client.flush().unwrap();
        client.disconnect();
        host.wait_drained("acme/db", LIMIT);
        assert!(host.stop().success());
    }
    let mut host = Host::new(&site.path("own"), &acme);
    host.start();
    let mut client = host.client("db");
    assert_eq!(client.read(0, 4096).unwrap(), [5; 4096]);
    client.disconnect();
    assert!(host.stop().success());
}

#[test]
fn a_tenant_has_no_more_than_it_may() {
    let site = Site::new();
    let acme = tenant(&site, "acme", &["--max-volumes", "2", "--max-bytes", "24MiB"]);
    let create = |name: &str, size: &str| with(&acme, ["volume", "create", name, "--size", size]);
    create("a", "32MiB").fails(1, &["24 MiB together"]);
    create("a", "8MiB").ok();
    with(&acme, ["volume", "resize", "a", "32MiB"]).fails(1, &["24 MiB together", "--max-bytes"]);
    with(&acme, ["volume", "resize", "a", "16MiB"]).ok();
    create("b", "8MiB").ok();
    create("c", "1MiB").fails(1, &["may have 2", "--max-volumes"]);
    with(&acme, ["snapshot", "create", "a@x"]).ok();
    with(&acme, ["volume", "clone", "a@x", "c"]).fails(1, &["may have 2"]);
    // A deleted volume makes room, and needs room to come back.
    with(&acme, ["volume", "delete", "b"]).ok();
    create("c", "8MiB").ok();
    with(&acme, ["volume", "undelete", "b"]).fails(1, &["may have 2"]);
    let admin = site.store.credential();
    let show = || with(&admin, ["tenant", "show", "acme", "--json"]).ok().json();
    let shown = show();
    assert_eq!((&shown["volumes"], &shown["bytes"]), (&2.into(), &(24 << 20).into()));
    assert_eq!((&shown["max_bytes"], &shown["deleted"]), (&(24 << 20).into(), &1.into()));
    // Raised, it goes on at once.
    with(&admin, ["tenant", "set", "acme", "--max-volumes", "none", "--max-bytes", "1GiB"]).ok();
    with(&acme, ["volume", "undelete", "b"]).ok();
    with(&acme, ["volume", "clone", "a@x", "d"]).ok();
    assert_eq!(show()["max_volumes"], Value::Null);
    with(&admin, ["tenant", "delete", "acme"]).fails(1, &["4 volumes"]);
    for volume in ["d", "a", "b", "c"] {
        with(&acme, ["volume", "delete", volume, "--now"]).ok();
    }
    wait_for("nothing to be left", LIMIT, || {
        with(&admin, ["tenant", "delete", "acme"]).status.success()
    });
    create("a", "1MiB").fails(1, &["no tenant acme"]);
    with(&admin, ["volume", "create", "acme/a", "--size", "1MiB"]).fails(1, &["no tenant acme"]);
    with(&admin, ["tenant", "show", "acme"]).fails(1, &["no tenant acme"]);
    with(&admin, ["tenant", "create", "a/b"]).fails(1, &["letters"]);
}

#[test]
fn a_tenant_over_its_stored_bytes_sees_no_space_until_there_is_some() {
    let site = Site::new();
    let acme = tenant(&site, "acme", &["--max-stored", "4MiB"]);
    let admin = site.store.credential();
    for (credential, name) in [(&acme, "db"), (&admin, "own")] {
        with(credential, ["volume", "create", name, "--size", "64MiB"]).ok();
    }
    let mut host = Host::new(&site.path("host"), &acme).with(["--volume", "db"]);
    let mut other = site.host("other").with(["--volume", "own"]);
    host.start();
    other.start();
    let (mut client, mut own) = (host.client("db"), other.client("own"));
    let full = || host.volume_status("db")["no_space"] == true;
    // From some point on the host refuses it, before the quota is exceeded by more than the data on
    // its way.
    let mut taken = 0_u64;
    let refused = loop {
        match client.write(taken << 20 & (31 << 20), &[taken as u8 + 1; 1 << 20]) {
            Ok(()) => taken += 1,
            Err(refused) => break refused,
        }
        assert!(taken < 512, "nothing is refused");
        own.write(taken << 20 & (31 << 20), &[1; 1 << 20]).unwrap();
    };
    assert_eq!(refused.raw_os_error(), Some(NO_SPACE), "{refused}");
    assert!(taken >= 3, "{taken}");
    client.flush().unwrap();
    wait_for("the tenant to be over its quota", LIMIT, full);
    // Acknowledged data is there and stored, and others notice nothing.
    client.flush().unwrap();
    host.wait_drained("db", LIMIT);
    let last = taken - 1;
    assert_eq!(client.read(last << 20 & (31 << 20), 4096).unwrap(), [last as u8 + 1; 4096]);
    client.call(Command::Discard, false, 0, 1 << 20, &[]).unwrap();
    own.write(32 << 20, &[9; 4096]).unwrap();
    let shown = with(&admin, ["tenant", "show", "acme", "--json"]).ok().json();
    let stored = shown["stored"].as_u64().unwrap();
    assert!((3 << 20..(4 << 20) + (64 << 20)).contains(&stored), "{shown}");
    with(&admin, ["tenant", "set", "acme", "--max-stored", "1GiB"]).ok();
    wait_for("there to be room again", LIMIT, || !full());
    client.write(32 << 20, &[9; 4096]).unwrap();
    client.flush().unwrap();
    for client in [client, own] {
        client.disconnect();
    }
    assert!(host.stop().success() && other.stop().success());
}

/// Makes a volume of a tenant that has `mib` MiB of `byte`, all of it at the store.
fn filled(site: &Site, credential: &Path, volume: &str, mib: u64, byte: u8) {
    with(credential, ["volume", "create", volume, "--size", "256MiB"]).ok();
    let mut host = Host::new(&site.path(&format!("fill-{volume}")), credential);
    host.start();
    let mut client = host.client(volume);
    for n in 0..mib {
        client.write(n << 20, &vec![byte; 1 << 20]).unwrap();
    }
    client.disconnect();
    host.wait_drained(volume, LIMIT);
    assert!(host.stop().success());
}

/// The value of a metric of a tenant, if there is one.
fn of_tenant(admin: &str, metric: &str, tenant: &str) -> Option<f64> {
    let (_, text) = http_get(admin, "/metrics")?;
    let sample = format!("{metric}{{tenant=\"{tenant}\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&sample)?.parse().ok())
}

#[test]
fn a_tenant_does_no_more_in_a_second_than_it_may() {
    let mut site = Site::new();
    let acme = tenant(&site, "acme", &[]);
    let admin = site.store.credential();
    let set = |args: &[&str]| {
        with(&admin, ["tenant", "set", "acme"].iter().chain(args).copied()).ok();
    };
    filled(&site, &acme, "db", 24, 7);
    with(&admin, ["tenant", "set", "acme", "--max-iops", "0"]).fails(2, &["would stop everything"]);
    with(&admin, ["tenant", "set", "acme", "--max-rate", "50"]).fails(2, &["Mbit/s"]);
    // A reader gets at most a second's worth and the income of the time, however slow the machine
    // is.
    set(&["--max-rate", "4MiB/s"]);
    let mut host = Host::new(&site.path("host"), &acme);
    host.start();
    let mut client = host.client("db");
    let begun = Instant::now();
    for n in 0..24 {
        assert_eq!(client.read(n << 20, 1 << 20).unwrap(), vec![7; 1 << 20]);
    }
    assert!(begun.elapsed() >= Duration::from_secs((24 - 4) / 4), "{:?}", begun.elapsed());
    let throttled = of_tenant(&site.store.admin, "longhaul_tenant_throttled_seconds_total", "acme");
    assert!(throttled > Some(1.0), "{throttled:?}");
    assert!(of_tenant(&site.store.admin, "longhaul_tenant_bytes_total", "acme") >= Some(24e6));
    // It lies with the data: another start of the store, and it still counts.
    client.disconnect();
    assert!(host.stop().success());
    set(&["--max-rate", "none", "--max-iops", "20"]);
    site.store.kill();
    site.store.restart();
    let show = with(&admin, ["tenant", "show", "acme", "--json"]).ok().json();
    assert_eq!((&show["max_iops"], &show["max_rate"]), (&20.into(), &Value::Null));
    host.start();
    let mut client = host.client("db");
    let begun = Instant::now();
    for n in 0..60 {
        client.read(((n * 7919) % 3000) << 13, 8192).unwrap();
    }
    assert!(begun.elapsed() >= Duration::from_secs((60 - 20) / 20), "{:?}", begun.elapsed());
    let shown = with(&admin, ["tenant", "show", "acme"]).ok().stdout;
    assert!(shown.contains("at most 20") && shown.contains("at this store"), "{shown}");
    let list = with(&admin, ["tenant", "list"]).ok().stdout;
    assert!(list.contains("IOPS") && list.contains(" 20"), "{list}");
    client.disconnect();
    assert!(host.stop().success());
}

#[test]
fn a_burst_of_one_volume_does_not_hold_up_another() {
    let site = Site::new();
    let acme = tenant(&site, "acme", &[]);
    let admin = site.store.credential();
    filled(&site, &acme, "small", 2, 7);
    filled(&site, &acme, "big", 2, 8);
    with(&admin, ["tenant", "set", "acme", "--max-rate", "1MiB/s"]).ok();
    let waiting = || {
        let show = with(&admin, ["tenant", "show", "acme", "--json"]).ok().json();
        (show["waiting_requests"].as_u64().unwrap(), show["waiting_bytes"].as_u64().unwrap())
    };
    // A minute and a half of what the tenant may do, acknowledged and on its way.
    let mut burst = Host::new(&site.path("burst"), &acme).with(["--volume", "big"]);
    burst.start();
    let mut client = burst.client("big");
    for n in 2..98_u64 {
        let content: Vec<u8> =
            (0..1 << 17).flat_map(|word| (word * 7919 + n).to_le_bytes()).collect();
        client.write(n << 20, &content).unwrap();
    }
    client.flush().unwrap();
    wait_for("batches to wait", LIMIT, || waiting().1 > 1 << 20);
    // Neither another volume's reads wait for it, nor those of its own.
    let mut host = Host::new(&site.path("reader"), &acme);
    host.start();
    let mut small = host.client("small");
    for n in 0..20 {
        assert_eq!(small.read(((n * 11) % 200) << 13, 8192).unwrap(), [7; 8192]);
        assert_eq!(client.read(((n * 11) % 200) << 13, 8192).unwrap(), [8; 8192]);
    }
    assert!(burst.lag_bytes("big") > 8 << 20, "the burst is over");
    let limit = of_tenant(&site.store.admin, "longhaul_tenant_limit_bytes_per_second", "acme");
    assert_eq!(limit, Some(f64::from(1 << 20)));
    // A gone reader waits for nothing any more, and goes on when it is back.
    burst.kill();
    wait_for("what waited to be forgotten", LIMIT, || waiting() == (0, 0));
    burst.start();
    wait_for("batches to wait", LIMIT, || waiting().0 > 0);
    // A lifted limit is gone at once.
    with(&admin, ["tenant", "set", "acme", "--max-rate", "none"]).ok();
    burst.wait_drained("big", LIMIT);
    assert_eq!(waiting(), (0, 0));
    small.disconnect();
    assert!(burst.stop().success() && host.stop().success());
}

#[test]
fn several_stores_share_what_a_tenant_may_do() {
    let site = Site::new();
    let mut second = longhaul_e2e::site::Store::stopped(&site.path("second"));
    site.store.invite(second.dir());
    second.set_data(site.store.dir().to_str().unwrap());
    second.restart();
    let acme = tenant(&site, "acme", &["--max-iops", "1000", "--max-rate", "8MiB/s"]);
    let limit = |store: &longhaul_e2e::site::Store| {
        let of = |what| of_tenant(&store.admin, what, "acme");
        let iops = of("longhaul_tenant_limit_operations_per_second");
        (iops, of("longhaul_tenant_limit_bytes_per_second"))
    };
    let attached = |volume: &str, store: &longhaul_e2e::site::Store| {
        with(&acme, ["volume", "create", volume, "--size", "8MiB"]).ok();
        let mut host = Host::new(&site.path(volume), &acme).with(["--store", &store.address]);
        host.start();
        let mut client = host.client(volume);
        client.write(0, &[1; 4096]).unwrap();
        host.wait_drained(volume, LIMIT);
        (host, client)
    };
    let whole = (Some(1000.0), Some(f64::from(8 << 20)));
    let half = (Some(500.0), Some(f64::from(4 << 20)));
    let (mut one, client) = attached("one", &site.store);
    wait_for("the limit to be known", LIMIT, || limit(&site.store) == whole);
    let (mut two, other) = attached("two", &second);
    wait_for("both to have half", LIMIT, || limit(&site.store) == half && limit(&second) == half);
    // A change at one store counts at the other at once.
    let admin = site.store.credential();
    with(&admin, ["tenant", "set", "acme", "--max-iops", "none"]).ok();
    wait_for("it to be heard", LIMIT, || limit(&second) == (None, half.1));
    client.disconnect();
    assert!(one.stop().success());
    wait_for("the other to have all", LIMIT, || limit(&second) == (None, whole.1));
    other.disconnect();
    assert!(two.stop().success());
}

#[test]
fn credentials_of_tenants_are_issued_listed_and_revoked() {
    let site = Site::new();
    let acme = tenant(&site, "acme", &[]);
    let second = issue(&site, "acme", "second");
    with(&acme, ["volume", "create", "db", "--size", "8MiB"]).ok();
    let state = site.store.dir().to_str().unwrap();
    let credential = |args: &[&str]| {
        let at = ["--state", state];
        run(longhaul(), ["credential"].iter().chain(args).chain(&at).copied())
    };
    let show = run(longhaul(), ["credential", "show", acme.to_str().unwrap(), "--json"]).ok();
    assert_eq!(show.json()["tenant"], "acme");
    let serial = show.json()["serial"].as_str().unwrap().to_owned();
    let list = credential(&["list", "--json"]).ok().json();
    let of = |serial: &str| {
        let all = list["credentials"].as_array().unwrap();
        all.iter().find(|one| one["serial"] == serial).map(|one| one["tenant"].clone())
    };
    assert_eq!(of(&serial), Some("acme".into()));
    // Another one of the installation's own leaves those of tenants.
    credential(&["rotate"]).ok();
    let mut host = Host::new(&site.path("host"), &acme);
    host.start();
    let mut client = host.client("db");
    client.write(0, &[1; 4096]).unwrap();
    client.flush().unwrap();
    credential(&["revoke", &serial]).ok();
    wait_for("the session to end", LIMIT, || !with(&acme, ["volume", "list"]).status.success());
    with(&acme, ["volume", "list"]).fails(1, &["withdrawn"]);
    wait_for("the host to be refused", LIMIT, || {
        metric(&host.admin, "longhaul_host_link_up") == 0.0
    });
    with(&second, ["volume", "list"]).ok();
    credential(&["revoke", "--tenant", "acme"]).ok();
    wait_for("the other to be refused", LIMIT, || {
        !with(&second, ["volume", "list"]).status.success()
    });
    credential(&["revoke", &serial]).fails(1, &["credential list"]);
    with(&site.store.credential(), ["volume", "show", "acme/db"]).ok();
}

#[test]
fn several_stores_keep_tenants_apart_and_agree_on_them() {
    let site = Site::new();
    let mut second = longhaul_e2e::site::Store::stopped(&site.path("second"));
    site.store.invite(second.dir());
    second.set_data(site.store.dir().to_str().unwrap());
    second.restart();
    let acme = tenant(&site, "acme", &["--max-volumes", "1"]);
    let other = tenant(&site, "other", &[]);
    let at = |credential: &Path, args: &[&str]| {
        let at = ["--store", second.address.as_str()];
        with(credential, args.iter().copied().chain(at))
    };
    with(&acme, ["volume", "create", "db", "--size", "8MiB"]).ok();
    wait_for("the second store to accept it", LIMIT, || {
        at(&acme, &["volume", "list"]).status.success()
            && at(&other, &["volume", "list"]).status.success()
    });
    at(&other, &["volume", "show", "db"]).fails(1, &["no such volume"]);
    at(&acme, &["volume", "create", "more", "--size", "8MiB"]).fails(1, &["may have 1"]);
    // The first has it. The second passes requests on, and the answer has its own name.
    let mut host = Host::new(&site.path("host"), &acme).with(["--store", &site.store.address]);
    host.start();
    let mut client = host.client("db");
    client.write(0, &[1; 4096]).unwrap();
    client.flush().unwrap();
    let shown = at(&acme, &["volume", "show", "db", "--json"]).ok().json();
    assert_eq!((&shown["name"], &shown["live"]["connected"]), (&"db".into(), &true.into()));
    at(&acme, &["snapshot", "create", "db@x"]).ok();
    at(&acme, &["volume", "resize", "db", "16MiB"]).ok();
    at(&acme, &["volume", "delete", "db"]).fails(1, &["attached"]);
    client.disconnect();
    assert!(host.stop().success());
    at(&acme, &["volume", "delete", "db"]).ok();
    with(&acme, ["volume", "undelete", "db"]).ok();
    let mut host = Host::new(&site.path("host"), &acme).with(["--store", &second.address]);
    host.start();
    let mut client = host.client("db@x");
    assert_eq!(client.read(0, 4096).unwrap(), [1; 4096]);
    client.disconnect();
    assert!(host.stop().success());
}

#[test]
fn the_audit_log_says_who_did_what_and_what_came_of_it() {
    let mut site = Site::with_volume("own", MIB);
    let acme = tenant(&site, "acme", &["--max-volumes", "1"]);
    with(&acme, ["volume", "create", "db", "--size", "8MiB"]).ok();
    with(&acme, ["volume", "create", "more", "--size", "8MiB"]).fails(1, &[]);
    with(&acme, ["volume", "delete", "own"]).fails(1, &[]);
    with(&acme, ["store", "evacuate"]).fails(1, &[]);
    let mut host = Host::new(&site.path("host"), &acme);
    host.start();
    host.client("db").disconnect();
    with(&acme, ["snapshot", "create", "db@x"]).ok();
    assert!(host.stop().success());
    with(&acme, ["volume", "delete", "db"]).ok();
    let state = site.store.dir().to_str().unwrap().to_owned();
    let audit = |args: &[&str]| {
        let all = ["store", "audit", "--state", &state, "--json"].into_iter();
        let text = run(longhaul(), all.chain(args.iter().copied())).ok().stdout;
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        lines.collect::<Vec<Value>>()
    };
    let serial = run(longhaul(), ["credential", "show", acme.to_str().unwrap(), "--json"]);
    let serial = serial.ok().json()["serial"].clone();
    run(longhaul(), ["credential", "revoke", "--tenant", "acme", "--state", &state]).ok();
    wait_for("the credential to be refused", LIMIT, || {
        !with(&acme, ["volume", "list"]).status.success()
    });
    let refused = || {
        audit(&[]).iter().any(|line| {
            line["action"] == "session.open" && line["outcome"] != "ok" && line["tenant"].is_null()
        })
    };
    wait_for("that to be written down", LIMIT, refused);
    assert!(site.store.stop().success());
    let done: Vec<_> = audit(&["--tenant", "acme"])
        .iter()
        .filter(|line| line["action"] != "session.open" && line["action"] != "volume.detach")
        .map(|line| {
            assert_eq!(line["credential"], serial, "{line}");
            assert!(line["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
            let text = |name: &str| line[name].as_str().unwrap().to_owned();
            (text("action"), text("object"), text("outcome") == "ok")
        })
        .collect();
    let expected = [
        ("volume.create", "acme/db", true),
        ("volume.create", "acme/more", false),
        ("volume.delete", "acme/own", false),
        ("store.evacuate", "", false),
        ("volume.attach", "acme/db", true),
        ("snapshot.create", "acme/db@x", true),
        ("volume.delete", "acme/db", true),
    ];
    let expected = expected.map(|(action, object, ok)| (action.to_owned(), object.to_owned(), ok));
    assert_eq!(done, expected);
    let all = audit(&["--since", "1h"]);
    let created = all.iter().find(|line| line["action"] == "volume.create").unwrap();
    assert_eq!((&created["tenant"], &created["object"]), (&Value::Null, &"own".into()));
    assert!(all.iter().any(|line| line["action"] == "tenant.create" && line["object"] == "acme"));
    assert!(all.is_sorted_by_key(|line| line["time"].as_str().unwrap().to_owned()));
}
