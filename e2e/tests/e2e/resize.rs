//! Volumes that grow while clients use them.

use longhaul_e2e::process::{LIMIT, run};
use longhaul_e2e::site::{Host, Site};
use longhaul_e2e::stamp::{History, Shape, Workload, read_all};
use longhaul_e2e::wait_for;
use serde_json::json;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const BLOCKS: usize = 8192;
const MIB: u64 = (BLOCKS as u64 * 4096) >> 20;

/// The kernel's `ENOSPC`: NBD answers writes beyond the end with it.
const NO_SPACE: i32 = 28;

fn size_seen(host: &Host) -> u64 {
    let info = run("nbdinfo", ["--json", &host.uri("disk")]).ok().json();
    info["exports"][0]["export-size"].as_u64().unwrap()
}

/// As `volume list` says it.
fn size_listed(site: &Site) -> u64 {
    let list = site.volume(["list", "--json"]).ok().json();
    assert_eq!(list["volumes"][0]["name"], "disk", "{list}");
    list["volumes"][0]["size_bytes"].as_u64().unwrap()
}

fn wait_for_size(host: &Host, bytes: u64) {
    wait_for("the host knows the new size", LIMIT, || {
        host.volume_status("disk")["size_bytes"] == bytes
    });
}

#[test]
fn a_volume_grows_under_load_and_stays_so_when_the_host_is_killed() {
    let site = Site::with_volume("disk", MIB);
    let mut host = site.host("host");
    host.start();
    let (old, new) = (MIB << 20, (2 * MIB) << 20);
    let mut history = History::new(BLOCKS);
    let done = AtomicBool::new(false);
    let mut client = host.client("disk");
    std::thread::scope(|scope| {
        let (done, history, client) = (&done, &mut history, &mut client);
        let work = scope.spawn(move || {
            let shape = Shape { depth: 16, bytes_per_second: 16 << 20, ..Shape::default() };
            let mut workload = Workload::new(history, client, 7, shape);
            workload.run(|_| done.load(Ordering::Relaxed)).and_then(|()| workload.settle())
        });
        std::thread::sleep(Duration::from_millis(300));
        let grown = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let info = site.volume(["resize", "disk", &format!("{new}"), "--json"]).ok().json();
            assert_eq!(info["size_bytes"], new);
            assert_eq!(info["live"]["connected"], true);
            wait_for_size(&host, new);
            std::thread::sleep(Duration::from_millis(300));
        }));
        done.store(true, Ordering::Relaxed);
        work.join().expect("reads return what was written").expect("no request fails");
        grown.unwrap();
    });
    // This client heard another size.
    assert_eq!(client.size(), old);
    let refused = client.write(old, &[1; 4096]).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(NO_SPACE), "{refused}");
    client.flush().unwrap();
    client.disconnect();

    assert_eq!(size_seen(&host), new);
    let mut client = host.client("disk");
    assert_eq!(client.size(), new);
    client.write(new - 4096, &[2; 4096]).unwrap();
    client.flush().unwrap();
    let beyond = client.write(new, &[3; 4096]).unwrap_err();
    assert_eq!(beyond.raw_os_error(), Some(NO_SPACE), "{beyond}");
    host.kill();

    host.start();
    let mut client = host.client("disk");
    assert_eq!(client.size(), new);
    assert_eq!(client.read(new - 4096, 4096).unwrap(), [2; 4096]);
    let image = read_all(&mut client, history.bytes()).unwrap();
    history.prefix_of(&image, history.len()).unwrap();
    client.disconnect();
    host.wait_drained("disk", LIMIT);
    assert!(host.stop().success());
    let stored = site.export("disk");
    assert_eq!(stored.len() as u64, new);
    history.prefix_of(&stored[..old as usize], history.len()).unwrap();
    assert_eq!(stored[new as usize - 4096..], [2; 4096]);
}

#[test]
fn a_size_survives_a_store_that_is_killed_right_after_it_said_so() {
    let mut site = Site::with_volume("disk", MIB);
    let mut host = site.host("host");
    host.start();
    host.client("disk").disconnect();
    let mut bytes = MIB << 20;
    for round in 0..4u8 {
        bytes += 1 << 20;
        site.volume(["resize", "disk", &bytes.to_string()]).ok();
        site.store.kill();
        site.store.restart();
        // Before anybody has made this store open the volume, or as the host did.
        assert_eq!(size_listed(&site), bytes, "round {round}");
        assert_eq!(site.show("disk")["size_bytes"], bytes, "round {round}");
        // The message may have got lost with the store: then resuming tells it.
        wait_for_size(&host, bytes);
        let mut client = host.client("disk");
        client.write(bytes - 4096, &[round + 1; 4096]).unwrap();
        client.flush().unwrap();
        assert_eq!(client.read(bytes - 4096, 4096).unwrap(), [round + 1; 4096]);
        client.disconnect();
    }
    host.wait_drained("disk", LIMIT);
    assert!(host.stop().success());
    assert!(site.store.stop().success());
    for dir in [site.store.dir(), host.state()] {
        run(longhaul_e2e::process::longhaul(), ["check".as_ref(), dir.as_os_str()]).ok();
    }
}

#[test]
fn a_host_that_was_away_learns_the_size_when_it_comes_back() {
    let site = Site::with_volume("disk", MIB);
    let mut host = site.host("host");
    host.start();
    let mut client = host.client("disk");
    client.write(0, &[1; 4096]).unwrap();
    client.flush().unwrap();
    host.kill();
    let new = (MIB + 1) << 20;
    site.volume(["resize", "disk", &new.to_string()]).ok();
    host.start();
    let mut client = host.client("disk");
    assert_eq!((client.size(), size_seen(&host)), (new, new));
    client.write(new - 4096, &[2; 4096]).unwrap();
    client.flush().unwrap();
    assert_eq!(client.read(0, 4096).unwrap(), [1; 4096]);
}

#[test]
fn sizes_that_cannot_be_are_refused_and_nothing_changes() {
    let site = Site::with_volume("disk", MIB);
    site.volume(["resize", "disk", &format!("{MIB}MiB")]).ok();
    site.volume(["resize", "disk", "1MiB"]).fails(1, &["disk", "resize --force"]);
    site.volume(["resize", "disk", "100000001"]).fails(1, &["100000001", "multiple of 512"]);
    site.volume(["resize", "disk", "6000000TiB"]).fails(1, &["at most 4 EiB"]);
    site.volume(["resize", "other", "1GiB"]).fails(1, &["other", "no such volume"]);
    site.volume(["resize", "disk", "large"]).fails(2, &["`large` is not a size"]);
    site.volume(["resize", "disk"]).fails(2, &["SIZE"]);
    assert_eq!(size_listed(&site), MIB << 20);
    assert_eq!(site.show("disk")["live"]["segments"], json!(0));
}

#[test]
fn the_end_is_cut_off_of_a_volume_that_no_host_has() {
    let mut site = Site::with_volume("disk", MIB);
    let mut host = site.host("host").with(["--cache-size", "64MiB"]);
    host.start();
    let (old, new) = (MIB << 20, (MIB / 2) << 20);
    let mut client = host.client("disk");
    client.write(new - 4096, &[1; 8192]).unwrap();
    client.write(old - 4096, &[2; 4096]).unwrap();
    client.flush().unwrap();
    assert_eq!(client.read(new, 4096).unwrap(), [1; 4096]);
    site.snapshot(["create", "disk@whole"]).ok();
    let size = new.to_string();
    let cut = |site: &Site| site.volume(["resize", "disk", &size, "--force", "--json"]);
    cut(&site).fails(1, &["has the volume attached"]);
    client.disconnect();
    host.kill();
    // It would take a while until the store misses the host.
    site.store.kill();
    site.store.restart();
    cut(&site).fails(1, &["accept-loss"]);
    host.start();
    host.client("disk").disconnect();
    host.wait_drained("disk", LIMIT);
    assert!(host.stop().success());
    site.volume(["resize", "disk", &size]).fails(1, &["resize --force"]);
    assert_eq!(size_listed(&site), old);
    assert_eq!(cut(&site).ok().json()["size_bytes"], new);
    assert_eq!(cut(&site).ok().json()["size_bytes"], new);
    site.store.kill();
    site.store.restart();
    assert_eq!(size_listed(&site), new);

    // The host, its journal and its cache go on with what there is.
    host.start();
    let mut client = host.client("disk");
    assert_eq!((client.size(), size_seen(&host)), (new, new));
    assert_eq!(client.read(new - 4096, 4096).unwrap(), [1; 4096]);
    let beyond = client.write(new, &[3; 4096]).unwrap_err();
    assert_eq!(beyond.raw_os_error(), Some(NO_SPACE), "{beyond}");
    client.disconnect();
    site.volume(["resize", "disk", &old.to_string()]).ok();
    wait_for_size(&host, old);
    let mut client = host.client("disk");
    assert_eq!(client.read(new - 4096, 8192).unwrap()[4096..], [0; 4096]);
    assert_eq!(client.read(old - 4096, 4096).unwrap(), [0; 4096]);
    client.write(old - 4096, &[4; 4096]).unwrap();
    client.disconnect();
    host.wait_drained("disk", LIMIT);
    assert!(host.stop().success());
    let image = site.export("disk@whole");
    assert_eq!((image.len() as u64, image[new as usize], image[old as usize - 1]), (old, 1, 2));
    let image = site.export("disk");
    assert_eq!((image[new as usize - 1], image[new as usize], image[old as usize - 1]), (1, 0, 4));
    assert!(site.store.stop().success());
    for dir in [site.store.dir(), host.state()] {
        run(longhaul_e2e::process::longhaul(), ["check".as_ref(), dir.as_os_str()]).ok();
    }
}

#[test]
fn a_volume_that_was_made_smaller_comes_back_when_it_was_deleted() {
    let mut site = Site::with_volume("disk", MIB);
    let mut host = site.host("host");
    host.start();
    let mut client = host.client("disk");
    client.write(0, &[1; 4096]).unwrap();
    client.disconnect();
    host.wait_drained("disk", LIMIT);
    assert!(host.stop().success());
    let new = (MIB / 2) << 20;
    site.volume(["resize", "disk", &new.to_string(), "--force"]).ok();
    site.volume(["delete", "disk"]).ok();
    // Also by a store that knows only what is there.
    site.store.kill();
    site.store.restart();
    site.volume(["undelete", "disk"]).ok();
    assert_eq!(size_listed(&site), new);
    let image = site.export("disk");
    assert_eq!((image.len() as u64, image[4095], image[4096]), (new, 1, 0));
}
