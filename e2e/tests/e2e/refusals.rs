//! Refusals, and whether their messages give advice.

use longhaul_e2e::client::Client;
use longhaul_e2e::process::{LIMIT, command, longhaul, run, run_within};
use longhaul_e2e::site::{Host, Site, Store, free_address};
use longhaul_e2e::wait_for;
use std::path::{Path, PathBuf};

fn list(credential: &Path, store: &str) -> longhaul_e2e::process::Output {
    let mut list = command(longhaul());
    list.args(["volume", "list", "--store", store, "--credential"]).arg(credential);
    run_within(list, LIMIT)
}

#[test]
fn another_installations_credential() {
    let (site, other) = (Site::new(), Site::new());
    list(&site.store.credential(), &site.store.address).ok();
    list(&other.store.credential(), &site.store.address).fails(1, &["credential", "another CA"]);
    let mut host = Host::new(&site.path("host"), &other.store.credential());
    host = host.with(["--store", &site.store.address, "--volume", "disk"]);
    host.launch();
    wait_for("the host to say so", LIMIT, || host.server().log().contains("another CA"));
}

#[test]
fn a_withdrawn_credential() {
    let site = Site::with_volume("disk", 32);
    let old = site.path("old.toml");
    std::fs::copy(site.store.credential(), &old).unwrap();
    list(&old, &site.store.address).ok();
    let mut connected = Host::new(&site.path("connected"), &old);
    connected.start();
    let mut client = connected.client("disk");
    let state = site.store.dir().to_str().unwrap();
    run(longhaul(), ["credential", "rotate", "--state", state]).ok();
    // The running store notices.
    list(&old, &site.store.address).fails(1, &["withdrawn", "admin.toml"]);
    list(&site.store.credential(), &site.store.address).ok();
    let mut host = Host::new(&site.path("host"), &old);
    host.launch();
    wait_for("the host to say so", LIMIT, || host.server().log().contains("withdrawn"));
    // So does the session that is open; its client's writes go to the journal.
    wait_for("the open session to end", LIMIT, || {
        let link = connected.status()["link"].clone();
        link["up"] == false && link["last_error"].as_str().unwrap().contains("withdrawn")
    });
    client.write(0, &[1; 4096]).unwrap();
    client.flush().unwrap();
    client.disconnect();
    connected.kill();
    // The new one, in its place, delivers them.
    std::fs::copy(site.store.credential(), &old).unwrap();
    connected.start();
    // It has a new key: that the journal is the one of the old key's host is the operator's to say.
    connected.attach(["disk", "--take-over"]).ok();
    wait_for("the write to arrive", LIMIT, || site.export("disk")[..4096] == [1; 4096]);
    let shown = run(
        longhaul(),
        ["credential", "show", "--json", site.store.credential().to_str().unwrap()],
    )
    .ok();
    assert_eq!(shown.json()["stores"][0], site.store.address.as_str(), "{shown}");
    let empty = site.path("empty");
    std::fs::create_dir(&empty).unwrap();
    run(longhaul(), ["credential", "rotate", "--state", empty.to_str().unwrap()])
        .fails(1, &["credentials"]);
}

#[test]
fn an_expired_credential() {
    let site = Site::new();
    let expired = site.path("expired.toml");
    let text = std::fs::read_to_string(site.store.credential()).unwrap();
    let mut file: toml::Table = text.parse().unwrap();
    let (certificate, key) = expired_certificate(&site);
    file.insert("certificate".into(), certificate.into());
    file.insert("key".into(), key.into());
    file.insert("not_after".into(), "2021-01-01T00:00:00Z".into());
    std::fs::write(&expired, file.to_string()).unwrap();
    list(&expired, &site.store.address).fails(1, &["expired", "rotate"]);
}

/// A client certificate that the store's own CA has signed for the year 2020.
fn expired_certificate(site: &Site) -> (String, String) {
    let dir = site.path("openssl");
    std::fs::create_dir(&dir).unwrap();
    let ca = site.store.dir().join("credentials/ca.pem");
    let config = "[ca]\ndefault_ca=d\n[d]\ndatabase=index\nnew_certs_dir=.\nserial=serial\ndefault_md=sha256\n\
                  policy=p\nunique_subject=no\n[p]\ncommonName=supplied\n[req]\ndistinguished_name=n\n[n]\n";
    for (name, content) in [("config", config), ("index", ""), ("serial", "4142434445464748\n")] {
        std::fs::write(dir.join(name), content).unwrap();
    }
    let openssl = |args: &str| {
        let mut openssl = command("openssl");
        openssl.current_dir(&dir).args(args.split(' '));
        run_within(openssl, LIMIT).ok();
    };
    openssl("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out key.pem");
    openssl("req -new -config config -key key.pem -subj /CN=admin -out request.pem");
    openssl(&format!(
        "ca -batch -notext -config config -cert {0} -keyfile {0} -in request.pem -out \
         certificate.pem -startdate 20200101000000Z -enddate 20210101000000Z",
        ca.display()
    ));
    let read = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
    (read("certificate.pem"), read("key.pem"))
}

#[test]
fn nonsense_as_credential() {
    let site = Site::new();
    let file = site.path("nonsense.toml");
    std::fs::write(&file, "version = 1\nstores = []\n").unwrap();
    list(&file, &site.store.address).fails(1, &["nonsense.toml", "not a credential file"]);
    std::fs::write(&file, [0xff; 100]).unwrap();
    list(&file, &site.store.address).fails(1, &["nonsense.toml"]);
    // A port on which nobody is: an answer within a moment, not a hang.
    let nobody = list(&site.store.credential(), &free_address());
    nobody.fails(1, &["no answer"]);
}

#[test]
fn one_store_per_directory_and_one_host_per_state() {
    let mut site = Site::with_volume("disk", 32);
    let second = Store::stopped(site.store.dir());
    let pid = format!("pid {}", site.store.server().pid());
    run_within(second.command(), LIMIT).fails(1, &["in use", &pid]);
    let mut host = site.host("host");
    host.start();
    let pid = format!("pid {}", host.server().pid());
    let mut again = site.host("host");
    again.admin = free_address();
    again.run_to_failure().fails(1, &["in use", &pid]);
    // The first ones have not noticed.
    host.client("disk").disconnect();
    list(&site.store.credential(), &site.store.address).ok();
    // A check looks at what stands still.
    let state = host.state().to_str().unwrap();
    run(longhaul(), ["check", state]).fails(1, &["in use"]);
}

#[test]
fn an_address_that_is_taken() {
    let site = Site::new();
    let mut second = Store::stopped(&site.path("second"));
    second.address.clone_from(&site.store.address);
    run_within(second.command(), LIMIT).fails(1, &["address", &site.store.address.clone()]);
    let mut host = site.host("host");
    host.admin.clone_from(&site.store.admin);
    host.run_to_failure().fails(1, &["address", &site.store.admin]);
}

#[test]
fn a_journal_that_is_too_small_or_changed_its_size() {
    let site = Site::with_volume("disk", 32);
    let mut host = site.host("host").with(["--volume", "disk"]);
    host.journal_size = "1MiB".into();
    host.run_to_failure().fails(2, &["--journal-size", "at least"]);
    // An existing journal keeps its size; another flag gives a message and is not fatal.
    host.journal_size = "128MiB".into();
    host.start();
    host.client("disk").disconnect();
    assert!(host.stop().success());
    host.journal_size = "256MiB".into();
    host.start();
    host.client("disk").disconnect();
    let capacity = host.volume_status("disk")["journal_capacity_bytes"].as_u64().unwrap();
    assert!(capacity <= 128 << 20, "{capacity}");
    assert!(host.server().log().contains("journal"), "{}", host.server().log());
}

/// Replaces the value of `"version"` or `version =` in a file by one from the future.
fn tamper(file: &Path) {
    let text = std::fs::read_to_string(file).unwrap();
    let mut changed = text.clone();
    for (from, to) in [
        ("version\": 1", "version\": 99"),
        ("version = 1", "version = 99"),
        ("format\": 1", "format\": 99"),
    ] {
        changed = changed.replacen(from, to, 1);
    }
    assert_ne!(changed, text, "{} has no version:\n{text}", file.display());
    std::fs::write(file, changed).unwrap();
}

/// That `check` finds a file of a later version.
fn check_names(dir: &Path, file: &str) {
    let report = run(longhaul(), ["check".as_ref(), dir.as_os_str()]);
    assert_eq!(report.status.code(), Some(1), "{report}");
    let said = format!("{}{}", report.stdout, report.stderr);
    assert!(said.contains(file) && said.contains("newer"), "{report}");
}

fn find(dir: &Path, name: &str) -> PathBuf {
    let mut files = longhaul_e2e::site::files_below(dir);
    files.retain(|path| path.file_name().is_some_and(|file| file == name));
    assert_eq!(files.len(), 1, "{name} below {}: {files:?}", dir.display());
    files.remove(0)
}

#[test]
fn formats_of_a_later_version() {
    let mut site = Site::with_volume("disk", 32);
    let mut host = site.host("host").with(["--volume", "disk"]);
    host.start();
    host.client("disk").disconnect();
    assert!(host.stop().success());
    let host_file = host.state().join("host.toml");
    let before = std::fs::read(&host_file).unwrap();
    tamper(&host_file);
    host.run_to_failure().fails(1, &["host.toml", "newer"]);
    check_names(host.state(), "host.toml");
    std::fs::write(&host_file, before).unwrap();

    let volume_file = find(host.state(), "volume.json");
    tamper(&volume_file);
    check_names(host.state(), "volume.json");
    host.launch();
    wait_for("the host to say so", LIMIT, || {
        let log = host.server().log();
        log.contains("volume.json") && log.contains("newer")
    });
    host.kill();

    assert!(site.store.stop().success());
    let data = site.store.dir().to_owned();
    let marker = "longhaul-store.json";
    tamper(&data.join(marker));
    run_within(site.store.command(), LIMIT).fails(1, &[marker, "newer"]);
    check_names(&data, marker);
}

#[test]
fn directories_of_the_wrong_kind() {
    let mut site = Site::with_volume("disk", 32);
    let mut host = site.host("host");
    host.start();
    host.client("disk").disconnect();
    assert!(host.stop().success());
    assert!(site.store.stop().success());
    let (state, data) = (host.state().to_owned(), site.store.dir().to_owned());
    run_within(Store::stopped(&state).command(), LIMIT).fails(1, &[state.to_str().unwrap()]);
    host.set_state(&data);
    host.run_to_failure().fails(1, &[data.to_str().unwrap()]);
    let other = site.path("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("holiday.jpg"), "x").unwrap();
    run(longhaul(), ["check", other.to_str().unwrap()]).fails(1, &[other.to_str().unwrap()]);
}

#[test]
fn volumes_that_do_not_exist() {
    let site = Site::new();
    let mut host = site.host("host");
    host.start();
    let refusal = host.refusal("disk");
    assert!(refusal.contains("no such volume"), "{refusal}");
    let refusal = host.refusal("../../etc/passwd");
    assert!(refusal.contains("no such volume") || refusal.contains("letters"), "{refusal}");
    // Created meanwhile: the next attempt finds it.
    site.create("disk", 8);
    host.client("disk").disconnect();
}

/// Garbage and half-open connections do not disturb others.
#[test]
fn strangers_at_the_door() {
    let site = Site::with_volume("disk", 32);
    let mut host = site.host("host");
    host.start();
    let mut client = host.client("disk");
    let socket = host.nbd();
    let path = socket.strip_prefix("unix:").unwrap();
    let idle: Vec<_> =
        (0..50).map(|_| std::os::unix::net::UnixStream::connect(path).unwrap()).collect();
    let mut rng = fastrand::Rng::with_seed(1);
    for _ in 0..50 {
        let mut stranger = std::os::unix::net::UnixStream::connect(path).unwrap();
        let mut noise = vec![0; rng.usize(1..20_000)];
        rng.fill(&mut noise);
        if rng.bool() {
            noise[..4].copy_from_slice(&[0, 0, 0, 3]);
        }
        let _ = std::io::Write::write_all(&mut stranger, &noise);
    }
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    for _ in 0..200 {
        let mut noise = vec![0; rng.usize(1..1400)];
        rng.fill(&mut noise);
        udp.send_to(&noise, &site.store.address).unwrap();
    }
    client.write(0, &[3; 4096]).unwrap();
    client.flush().unwrap();
    assert_eq!(client.read(0, 4096).unwrap(), [3; 4096]);
    drop(idle);
    host.wait_drained("disk", LIMIT);
    Client::nbd(&socket, "disk").unwrap().disconnect();
}
