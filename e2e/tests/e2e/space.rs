//! The store frees the space of overwritten data, and nothing else.

use longhaul_e2e::process::{LIMIT, longhaul, run};
use longhaul_e2e::site::{Site, files_below};
use longhaul_e2e::stamp::{History, Shape, Workload};
use longhaul_e2e::wait_for;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const BLOCKS: usize = 16_384;
const MIB: u64 = (BLOCKS as u64 * 4096) >> 20;
/// Writes until the volume has several times its size of new data.
const WRITES: usize = 24_000;

/// Bytes of all objects.
fn stored(site: &Site) -> u64 {
    let sizes = files_below(site.store.dir()).into_iter().filter_map(|file| {
        // The store may have deleted it meanwhile.
        std::fs::metadata(file).ok().map(|file| file.len())
    });
    sizes.sum()
}

fn usage(site: &Site) -> serde_json::Value {
    site.volume(["usage", "disk", "--json"]).ok().json()
}

/// Written all over several times, with a snapshot taken on the way and the store killed again and
/// again. The stored bytes come down to the percentage, and image and snapshot stay.
#[test]
fn space_of_what_was_overwritten_is_given_back() {
    let mut site = Site::with_volume("disk", MIB);
    site.store.kill();
    site.store.set_flags(["--delete-delay", "1s"]);
    site.store.restart();
    let mut host = site.host("host").with(["--volume", "disk"]);
    host.start();
    let mut history = History::new(BLOCKS);
    let (done, so_far) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut client = host.client("disk");
    std::thread::scope(|scope| {
        let (done, so_far, history, client) = (&done, &so_far, &mut history, &mut client);
        let work = scope.spawn(move || {
            let shape = Shape { zeroes: 2, bytes_per_second: 64 << 20, ..Shape::default() };
            let mut workload = Workload::new(history, client, 11, shape);
            let ended = workload.run(|history| {
                so_far.store(history.len(), Ordering::Release);
                history.len() >= WRITES || done.load(Ordering::Acquire)
            });
            ended.and_then(|()| workload.settle())
        });
        let killed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for part in 1..5 {
                wait_for("writes", LIMIT, || {
                    so_far.load(Ordering::Acquire) >= WRITES * part / 5 || work.is_finished()
                });
                site.store.kill();
                site.store.restart();
                if part == 2 {
                    site.snapshot(["create", "disk@half"]).ok();
                }
            }
        }));
        if killed.is_err() {
            done.store(true, Ordering::Release);
        }
        work.join().expect("reads return what was written").expect("no request fails");
        killed.unwrap();
    });
    host.wait_drained("disk", LIMIT);
    let half = site.export("disk@half");
    // The host may have been on its way back: then it has all commits.
    history.prefix_of(&half, WRITES / 4).unwrap();
    let written = history.len();
    // The reason is that each store began with a segment, which stays.
    let most = (MIB << 20) / 10 * 17 + (16 << 20);
    assert!(stored(&site) > most, "there is nothing to be given back");
    assert_eq!(history.prefix_of(&site.export("disk"), written), Ok(written));
    assert!(site.export("disk@half") == half, "the snapshot has changed");
    site.snapshot(["delete", "disk@half"]).ok();
    wait_for("space to be given back", LIMIT, || stored(&site) <= most);
    let usage = usage(&site);
    assert!(usage["stored_bytes"].as_u64() <= Some(most), "{usage}");
    // A store that knows nothing but what is there, and a host that has nothing in memory.
    site.store.kill();
    site.store.restart();
    assert_eq!(history.prefix_of(&site.export("disk"), written), Ok(written));
    client.disconnect();
    host.kill();
    host.start();
    let mut client = host.client("disk");
    let image = longhaul_e2e::stamp::read_all(&mut client, history.bytes()).unwrap();
    assert_eq!(history.prefix_of(&image, written), Ok(written));
    client.disconnect();
    assert!(host.stop().success() && site.store.stop().success());
    run(longhaul(), ["check".as_ref(), site.store.dir().as_os_str()]).ok();
}
