//! Stores whose objects are not in a directory.

use longhaul_e2e::client::Client;
use longhaul_e2e::process::{LIMIT, command, longhaul, run, run_within};
use longhaul_e2e::site::{Host, Site, http_get, temp_dir};
use longhaul_e2e::stamp::{History, Shape, Workload};
use longhaul_e2e::{content, wait_for};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

fn write(client: &mut Client, from: u64, to: u64) {
    for offset in (from..to).step_by(256 << 10) {
        client.write(offset, &content(offset, 256 << 10)).unwrap();
    }
    client.flush().unwrap();
}

fn shows(client: &mut Client, from: u64, to: u64) {
    for offset in (from..to).step_by(256 << 10) {
        let data = client.read(offset, 256 << 10).unwrap();
        assert!(data == content(offset, 256 << 10), "at {offset}");
    }
}

fn started(site: &Site, name: &str) -> Host {
    let mut host = site.host(name);
    host.start();
    host
}

/// A store without space waits for some, and so do the writes.
fn fills_up_and_goes_on(site: &Site) {
    site.create("filler", 32);
    site.create("disk", 64);
    let image = site.path("image");
    std::fs::write(&image, content(0, 32 * MIB)).unwrap();
    site.volume(["import", "filler", image.to_str().unwrap()]).ok();
    let mut host = started(site, "host");
    let mut client = host.client("disk");
    write(&mut client, 0, 48 * MIB);
    let said = || http_get(&site.store.admin, "/healthz").unwrap().1;
    wait_for("the store to say that there is no room", LIMIT, || said().contains("no space left"));
    assert!(host.lag_bytes("disk") > 0);
    // Clients read the common data meanwhile, and write on.
    shows(&mut client, 0, 48 * MIB);
    write(&mut client, 0, MIB);
    site.volume(["delete", "filler", "--now"]).ok();
    host.wait_drained("disk", LIMIT);
    assert!(!said().contains("no space left"), "{}", said());
    client.disconnect();
    assert!(host.stop().success());
    let image = site.export("disk");
    assert!(image[..(48 * MIB) as usize] == content(0, 48 * MIB));
}

#[test]
fn memory_that_is_full_is_waited_for() {
    let site = Site::with_data("mem://80MiB");
    fills_up_and_goes_on(&site);
}

/// A file as a store's device, and the flag for it.
fn device(dir: &Path, mib: u64) -> String {
    let path = dir.join("device");
    std::fs::File::create(&path).unwrap().set_len(mib * MIB).unwrap();
    format!("file://{}", path.display())
}

#[test]
fn a_device_that_is_full_is_waited_for() {
    let dir = temp_dir();
    let mut site = Site::with_data(&device(dir.path(), 84));
    fills_up_and_goes_on(&site);
    site.store.stop();
    site.store.restart();
    assert!(site.export("disk")[..(48 * MIB) as usize] == content(0, 48 * MIB));
}

#[test]
fn a_store_on_a_device_is_killed_and_comes_back() {
    let dir = temp_dir();
    let data = device(dir.path(), 400);
    let mut site = Site::with_data(&data);
    site.create("disk", 32);
    let mut host = started(&site, "host");
    let mut history = History::new(8192);
    let mut client = host.client("disk");
    for round in 0..6 {
        // All of it stays on the device: segments go with their volume only.
        let shape =
            Shape { depth: 8, max_blocks: 256, bytes_per_second: 40_000_000, ..Shape::default() };
        let mut workload = Workload::new(&mut history, &mut client, round, shape);
        let begun = Instant::now();
        let pause = Duration::from_millis(150 + 130 * round % 400);
        workload.run(|_| begun.elapsed() > pause).unwrap();
        site.store.kill();
        site.store.restart();
    }
    client.disconnect();
    host.wait_drained("disk", LIMIT);
    assert!(host.stop().success());
    history.prefix_of(&site.export("disk"), history.len()).unwrap();

    // While it runs nobody else takes it.
    let state = site.path("second");
    let second = || {
        let mut store = command(longhaul());
        store.args(["store", "--admin", "none", "--listen", "127.0.0.1:0", "--data", &data]);
        store.arg("--state").arg(&state);
        run_within(store, LIMIT)
    };
    second().fails(1, &["in use by another longhaul process"]);
    let check = || run(longhaul(), ["check", &data]);
    check().fails(1, &["in use"]);
    assert!(site.store.stop().success());
    let report = check().ok();
    assert!(report.stdout.contains("disk") && !report.stdout.contains("DAMAGE"), "{report}");
    // A store does not take foreign content for a store, and does not touch it.
    let path = data.strip_prefix("file://").unwrap();
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(&[0x5a; 8192], 0).unwrap();
    second()
        .fails(1, &["holds other data, or a store with damaged superblocks", "dd if=/dev/zero"]);
}

#[test]
fn a_store_in_memory_says_what_it_is() {
    let mut store = command(longhaul());
    store.args(["store", "--data", "mem://1GiB", "--admin", "none"]);
    run_within(store, LIMIT).fails(2, &["mem://1GiB", "--state"]);
    let mut site = Site::with_data("mem://64MiB");
    let log = site.store.server().log();
    assert!(
        log.contains("gone when this process ends") && log.contains("memory (64 MiB)"),
        "{log}"
    );
}

/// A host whose store has forgotten everything keeps its undelivered writes, and says so.
#[test]
fn a_store_that_forgot_its_volumes_gets_nothing_and_costs_nothing() {
    let mut site = Site::with_data("mem://256MiB");
    site.create("disk", 16);
    let mut host = started(&site, "host");
    let mut client = host.client("disk");
    write(&mut client, 0, MIB);
    host.wait_drained("disk", LIMIT);
    site.store.kill();
    write(&mut client, MIB, 2 * MIB);
    site.store.restart();
    let reason = || host.volume_status("disk")["reason"].to_string();
    wait_for("the host to say that its volume is gone", LIMIT, || {
        reason().contains("does not have this volume any more")
    });
    assert!(reason().contains("undelivered writes in"), "{}", reason());
    // Clients of what the journal has go on.
    write(&mut client, 2 * MIB, 3 * MIB);
    shows(&mut client, MIB, 3 * MIB);
    assert!(host.lag_bytes("disk") >= 2 * MIB);
    client.disconnect();
    host.stop();

    // Neither a new start nor a new volume of that name does away with it.
    host.start();
    let refusal = host.refusal("disk");
    assert!(
        refusal.contains("no such volume") && refusal.contains("undelivered writes in"),
        "{refusal}"
    );
    site.create("disk", 16);
    wait_for("the host to see the new volume", LIMIT, || {
        host.refusal("disk").contains("still holds the journal")
    });
    assert!(host.lag_bytes("disk") >= 2 * MIB);
}
