//! Flipped bits: found by `check` and by the reader, named, and never served as data.

use longhaul_e2e::process::{LIMIT, Output, longhaul, run};
use longhaul_e2e::site::{Host, Relay, Site, http_get, metric};
use longhaul_e2e::stamp::{History, Shape, Workload, read_all};
use longhaul_e2e::wait_for;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const EIO: i32 = 5;

pub fn check(dir: &Path) -> Output {
    run(longhaul(), ["check".as_ref(), dir.as_os_str()])
}

pub fn flip(file: &Path, at: u64) {
    let open = std::fs::File::options().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    open.read_exact_at(&mut byte, at).unwrap();
    open.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
}

/// A killed host with much in its journal that the store does not have.
fn undelivered() -> (Site, Relay, Host, History) {
    let site = Site::with_volume("disk", 32);
    let relay = Relay::start(&site, []);
    let mut host = site.host("host").with(["--store", &relay.address]);
    host.start();
    let mut client = host.client("disk");
    relay.cut();
    let mut history = History::new(8192);
    let shape = Shape { reads: 0, zeroes: 0, flushes: 50, ..Shape::default() };
    let mut workload = Workload::new(&mut history, &mut client, 1, shape);
    workload.run(|history| history.len() >= 400).unwrap();
    client.flush().unwrap();
    host.kill();
    (site, relay, host, history)
}

fn journal(host: &Host, number: &str) -> PathBuf {
    let volumes = std::fs::read_dir(host.state().join("volumes")).unwrap();
    let dir = volumes.map(|entry| entry.unwrap().path()).next().expect("a volume");
    dir.join(format!("journal.{number}"))
}

#[test]
fn a_sound_host_and_store_pass() {
    let (mut site, relay, mut host, history) = undelivered();
    check(host.state()).ok();
    relay.restore();
    host.start();
    host.wait_drained("disk", LIMIT);
    assert!(host.stop().success());
    check(host.state()).ok();
    assert!(site.store.stop().success());
    let report = run(longhaul(), ["check", "--json", site.store.dir().to_str().unwrap()]).ok();
    report.json();
    site.store.restart();
    history.prefix_of(&site.export("disk"), history.len()).unwrap();
    // After a crash too.
    site.store.kill();
    check(site.store.dir()).ok();
}

#[test]
fn a_damaged_journal_is_named_and_not_replayed() {
    let (site, relay, mut host, history) = undelivered();
    let file = journal(&host, "0000");
    flip(&file, 200_000);
    let name = "journal.0000";
    let report = check(host.state());
    assert_eq!(report.status.code(), Some(1), "{report}");
    let said = format!("{}{}", report.stdout, report.stderr);
    assert!(said.contains(name) && said.contains("offset"), "{said}");

    relay.restore();
    host.start();
    let refusal = host.refusal("disk");
    let named = refusal.contains(name) || refusal.contains("journal file 0");
    assert!(named && refusal.contains("offset"), "{refusal}");
    host.stop();
    // The host threw nothing away: with the old bit all of it is there.
    flip(&file, 200_000);
    host.start();
    let image = read_all(&mut host.client("disk"), history.bytes()).unwrap();
    history.prefix_of(&image, history.len()).unwrap();
    host.wait_drained("disk", LIMIT);
    history.prefix_of(&site.export("disk"), history.len()).unwrap();
}

#[test]
fn a_torn_tail_is_no_damage() {
    let (_site, relay, mut host, mut history) = undelivered();
    // After a power cut, anything may follow the last flush.
    let file = journal(&host, "0000");
    let open = std::fs::File::options().read(true).write(true).open(&file).unwrap();
    let data = std::fs::read(&file).unwrap();
    let end = data.iter().rposition(|byte| *byte != 0).unwrap() as u64 + 1;
    let mut rng = fastrand::Rng::with_seed(9);
    let mut noise = vec![0; 300_000];
    rng.fill(&mut noise);
    open.write_all_at(&noise, end.next_multiple_of(4096)).unwrap();
    check(host.state()).ok();
    relay.restore();
    host.start();
    let mut client = host.client("disk");
    let image = read_all(&mut client, history.bytes()).unwrap();
    let count = history.prefix_of(&image, history.flushed()).unwrap();
    history.cut(count);
}

#[test]
fn a_damaged_segment_is_an_error_of_its_range_only() {
    let mut site = Site::with_volume("disk", 32);
    let mut host = site.host("host");
    host.start();
    let mut client = host.client("disk");
    for mib in 0..8u64 {
        client.write(mib << 20, &[mib as u8 + 1; 1 << 20]).unwrap();
        client.flush().unwrap();
        host.wait_drained("disk", LIMIT);
    }
    client.disconnect();
    assert!(host.stop().success());
    assert!(site.store.stop().success());
    check(site.store.dir()).ok();
    let (file, at) = site
        .store
        .segments()
        .into_iter()
        .find_map(|file| {
            let data = std::fs::read(&file).unwrap();
            let run = data.windows(8192).position(|window| window.iter().all(|byte| *byte == 4))?;
            Some((file, run as u64))
        })
        .expect("a segment holds what was written");
    flip(&file, at + 5000);

    let report = check(site.store.dir());
    assert_eq!(report.status.code(), Some(1), "{report}");
    let said = format!("{}{}", report.stdout, report.stderr);
    let name = file.file_name().unwrap().to_str().unwrap();
    assert!(said.contains(name) && said.contains("offset"), "{said}");

    site.store.restart();
    let mut fresh = site.host("fresh");
    fresh.start();
    let mut client = fresh.client("disk");
    let mut bad = 0;
    for block in 0..256u64 {
        match client.read((3 << 20) + block * 4096, 4096) {
            Ok(data) => assert!(data == [4; 4096], "block {block} shows something else"),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(EIO), "{error}");
                bad += 1;
            }
        }
    }
    assert_eq!(bad, 1, "one block is damaged");
    for mib in [0, 1, 2, 4, 5, 6, 7u64] {
        assert!(client.read(mib << 20, 1 << 20).unwrap() == vec![mib as u8 + 1; 1 << 20]);
    }
    let out = site.path("out");
    site.volume(["export", "disk", out.to_str().unwrap()]).fails(1, &["damaged"]);
    // Writing over it heals the volume.
    client.write(3 << 20, &[9; 1 << 20]).unwrap();
    client.flush().unwrap();
    fresh.wait_drained("disk", LIMIT);
    assert!(client.read(3 << 20, 1 << 20).unwrap() == vec![9; 1 << 20]);
    let image = site.export("disk");
    assert!(image[3 << 20..4 << 20] == vec![9; 1 << 20]);
}

#[test]
fn a_missing_segment_is_named() {
    let mut site = Site::with_volume("disk", 32);
    let mut host = site.host("host");
    host.start();
    let mut client = host.client("disk");
    for at in 0..6u64 {
        client.write(at << 20, &[at as u8 + 1; 1 << 20]).unwrap();
        client.flush().unwrap();
        host.wait_drained("disk", LIMIT);
    }
    client.disconnect();
    assert!(host.stop().success());
    assert!(site.store.stop().success());
    let segments = site.store.segments();
    let gone = &segments[segments.len() / 2];
    std::fs::remove_file(gone).unwrap();
    // Nor does a file whose name is far beyond all others keep the check busy.
    let stray = gone.with_file_name("ffffffffffffffff");
    std::fs::write(&stray, "stray").unwrap();
    let report = check(site.store.dir());
    std::fs::remove_file(stray).unwrap();
    assert_eq!(report.status.code(), Some(1), "{report}");
    let said = format!("{}{}", report.stdout, report.stderr);
    assert!(said.contains(gone.file_name().unwrap().to_str().unwrap()), "{said}");
    // Without the root too: the store invents nothing.
    let files = longhaul_e2e::site::files_below(site.store.dir());
    for root in files.iter().filter(|path| path.parent().unwrap().ends_with("root")) {
        std::fs::remove_file(root).unwrap();
    }
    site.store.restart();
    let mut fresh = site.host("fresh");
    fresh.start();
    let name = gone.file_name().unwrap().to_str().unwrap();
    wait_for("the segment to be named", LIMIT, || fresh.refusal("disk").contains(name));
}

#[test]
fn the_scrub_finds_what_nobody_reads_and_names_what_it_costs() {
    let mut site = Site::new();
    site.store.kill();
    site.store.set_flags(["--scrub-every", "1s", "--scrub-rate", "1GiB"]);
    site.store.restart();
    site.create("disk", 32);
    let mut host = site.host("host");
    host.start();
    let mut client = host.client("disk");
    client.write(1 << 20, &[7; 64 << 10]).unwrap();
    client.flush().unwrap();
    host.wait_drained("disk", LIMIT);
    drop(client);
    assert!(host.stop().success());

    let admin = site.store.admin.clone();
    let status = || {
        let (_, body) = http_get(&admin, "/status").unwrap();
        serde_json::from_str::<serde_json::Value>(&body).unwrap()
    };
    let damage = || status()["volumes"][0]["damage"].as_array().unwrap().clone();
    let ended = || status()["scrub"]["ended"].as_u64();
    // The first pass may have found nothing to read yet.
    wait_for("objects to be read", LIMIT, || {
        metric(&admin, "longhaul_store_scrub_objects_total") > 1.0
    });
    wait_for("a pass", LIMIT, || ended().is_some());
    assert!(damage().is_empty(), "{:?}", damage());

    // In the middle of the data.
    let segments = site.store.segments();
    let big = segments.iter().find(|file| std::fs::metadata(file).unwrap().len() > 64 << 10);
    let big = big.expect("a segment with the data").clone();
    flip(&big, 32 << 10);
    wait_for("the damage to be found", LIMIT, || !damage().is_empty());
    let found = damage();
    assert_eq!(found.len(), 1, "{found:?}");
    let range = &found[0]["ranges"][0];
    assert_eq!((&range["offset_bytes"], &range["bytes"]), (&(1 << 20).into(), &(64 << 10).into()));
    assert_eq!(found[0]["unknown"], false);
    assert!(big.ends_with(Path::new(found[0]["object"].as_str().unwrap())), "{found:?}");
    assert_eq!(metric(&admin, "longhaul_store_scrub_damaged_objects"), 1.0);
    assert!(site.store.server().log().contains("sectors 2048+128"));

    // The store knows it at once after a restart, and no longer after the repair.
    site.store.kill();
    site.store.set_flags(["--scrub-every", "1h"]);
    site.store.restart();
    assert_eq!(damage(), found);
    site.store.kill();
    site.store.set_flags(["--scrub-every", "1s"]);
    flip(&big, 32 << 10);
    site.store.restart();
    wait_for("the damage to be gone", LIMIT, || damage().is_empty());
}
