//! Hosts that move, get lost, or are two: epochs, owed writes, and the right to go on.

use longhaul_e2e::client::Protocol;
use longhaul_e2e::process::{LIMIT, Output};
use longhaul_e2e::site::{Host, Relay, Site, files_below};
use longhaul_e2e::stamp::{BLOCK, History, Shape, Workload, read_all};
use longhaul_e2e::wait_for;
use std::collections::BTreeSet;

const BLOCKS: usize = 8192;

fn write(host: &Host, history: &mut History, changes: usize, seed: u64) {
    let mut client = host.client("disk");
    let shape = Shape { reads: 0, zeroes: 0, bytes_per_second: 1 << 30, ..Shape::default() };
    let until = history.len() + changes;
    let mut workload = Workload::new(history, &mut client, seed, shape);
    workload.run(|history| history.len() >= until).unwrap();
    client.flush().unwrap();
    client.disconnect();
}

fn shows_all(host: &Host, history: &History) {
    let image = read_all(&mut host.client("disk"), history.bytes()).unwrap();
    history.prefix_of(&image, history.len()).unwrap();
}

fn lost(site: &Site) -> (Output, BTreeSet<usize>) {
    let output = site.volume(["lost", "disk", "--json"]).ok();
    let json = output.json();
    let mut blocks = BTreeSet::new();
    for range in json["ranges"].as_array().expect("ranges") {
        let (at, length) = (range["offset"].as_u64().unwrap(), range["bytes"].as_u64().unwrap());
        blocks.extend(at as usize / BLOCK..(at + length) as usize / BLOCK);
    }
    (output, blocks)
}

#[test]
fn a_state_directory_that_is_moved_is_replayed() {
    a_state_directory_is_moved(Protocol::Nbd);
}

#[test]
fn a_state_directory_that_is_moved_is_replayed_over_iscsi() {
    a_state_directory_is_moved(Protocol::Iscsi);
}

fn a_state_directory_is_moved(protocol: Protocol) {
    let site = Site::with_volume("disk", 32).over(protocol);
    // A line so slow that nearly everything is still here when the machine "dies".
    let relay = Relay::start(&site, ["--rate", "2Mbit/s"]);
    let mut host = site.host("here").with(["--store", &relay.address]);
    host.start();
    let mut history = History::new(BLOCKS);
    write(&host, &mut history, 500, 1);
    assert!(host.lag_bytes("disk") > 4 << 20);
    host.kill();
    let there = site.path("there");
    std::fs::rename(host.state(), &there).unwrap();

    wait_for("the store to notice", LIMIT, || lost(&site).0.json()["connected"] == false);
    // Without the journal the volume is not to be had.
    let mut without = site.host("without");
    without.start();
    assert!(without.refusal("disk").contains("never arrived"));
    without.kill();

    let mut host = site.host("there");
    host.start();
    shows_all(&host, &history);
    host.wait_drained("disk", LIMIT);
    assert!(host.stop().success());
    history.prefix_of(&site.export("disk"), history.len()).unwrap();
    assert!(lost(&site).1.is_empty());
}

#[test]
fn a_lost_host_is_accounted_for() {
    let site = Site::with_volume("disk", 32);
    let relay = Relay::start(&site, ["--rate", "4Mbit/s"]);
    let mut host = site.host("host").with(["--store", &relay.address]);
    host.start();
    let mut history = History::new(BLOCKS);
    write(&host, &mut history, 500, 2);
    let (under_way, _) = lost(&site);
    assert_eq!(under_way.json()["connected"], true, "{under_way}");
    // Announcements go ahead of the data.
    wait_for("everything to be announced", LIMIT, || {
        let (_, announced) = lost(&site);
        let (shortest, _) = history.prefixes_of(&site.export_at_rest("disk"), 0).unwrap();
        history.blocks_since(shortest).is_subset(&announced)
    });
    relay.cut();
    host.kill();
    wait_for("the store to notice", LIMIT, || lost(&site).0.json()["connected"] == false);

    let image = site.export_at_rest("disk");
    let (shortest, _) = history.prefixes_of(&image, 0).unwrap();
    assert!(shortest < history.len(), "everything has arrived: the line was not slow");
    let (account, blocks) = lost(&site);
    assert_eq!(account.json()["clean"], false, "{account}");
    assert_eq!(account.json()["rounded"], false, "{account}");
    assert_eq!(blocks, history.blocks_since(shortest), "not exactly what is missing: {account}");

    let mut fresh = site.host("fresh");
    fresh.start();
    let refusal = fresh.refusal("disk");
    assert!(refusal.contains("never arrived") && refusal.contains("accept-loss"), "{refusal}");
    assert_eq!(lost(&site).1, blocks, "asking has changed the account");
    // The host may be on its way back for some seconds.
    wait_for("the loss to be accepted", LIMIT, || {
        site.volume(["accept-loss", "disk"]).status.success()
    });
    assert!(lost(&site).1.is_empty());
    let seen = read_all(&mut fresh.client("disk"), history.bytes()).unwrap();
    assert!(seen == image, "what is served is not what was at the store");
    history.cut(shortest);
    write(&fresh, &mut history, 50, 3);
    shows_all(&fresh, &history);

    // The abandoned host comes back: it must not overwrite, and its journal stays.
    host.flags.clear();
    let journal = journal_of(&host);
    host.start();
    host.attach(["disk"]).fails(1, &["in use"]);
    host.attach(["disk", "--take-over"]).fails(1, &["went on without"]);
    host.stop();
    assert!(journal_of(&host) == journal, "the journal to salvage from was changed");
    shows_all(&fresh, &history);
}

/// Names and contents of the journal files of a host.
fn journal_of(host: &Host) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let mut files = files_below(host.state());
    files.retain(|path| path.file_name().unwrap().to_string_lossy().starts_with("journal."));
    files.sort();
    assert!(!files.is_empty(), "there is no journal in {}", host.state().display());
    files.into_iter().map(|path| (path.clone(), std::fs::read(&path).unwrap())).collect()
}

#[test]
fn the_newer_host_fences_the_older() {
    a_newer_host_comes(Protocol::Nbd);
}

#[test]
fn the_newer_host_fences_the_older_over_iscsi() {
    a_newer_host_comes(Protocol::Iscsi);
}

fn a_newer_host_comes(protocol: Protocol) {
    let site = Site::with_volume("disk", 32).over(protocol);
    let (mut older, mut newer) = (site.host("older"), site.host("newer"));
    older.start();
    let mut history = History::new(BLOCKS);
    write(&older, &mut history, 200, 1);
    older.wait_drained("disk", LIMIT);
    let mut client = older.client("disk");
    newer.start();
    newer.attach(["disk", "--take-over"]).ok();
    shows_all(&newer, &history);

    wait_for("the older host's client to get errors", LIMIT, || {
        client.write(0, &[1; BLOCK]).is_err()
    });
    let status = older.volume_status("disk");
    assert_eq!(status["state"], "fenced", "{status}");
    assert!(client.read(0, 4096).is_err(), "a fenced host still answers reads");
    write(&newer, &mut history, 50, 2);
    shows_all(&newer, &history);
    newer.wait_drained("disk", LIMIT);
    assert!(newer.volume_status("disk")["epoch"].as_u64() > status["epoch"].as_u64());
    // Later writes to the older one are not in the volume.
    history.prefix_of(&site.export("disk"), history.len()).unwrap();

    // With nothing of its own it may take the volume back, and sees what the other one wrote. It
    // does not do so by itself.
    older.stop();
    older.start();
    wait_for("the older host to be refused", LIMIT, || {
        older.volume_status("disk")["state"] == "refused"
    });
    let mut client = newer.client_or_refused("disk");
    older.attach(["disk", "--take-over"]).ok();
    shows_all(&older, &history);
    wait_for("the newer host to be fenced", LIMIT, || match &mut client {
        Some(client) => client.write(0, &[1; BLOCK]).is_err(),
        None => true,
    });
}

#[test]
fn a_host_that_was_cut_off_is_fenced_when_it_comes_back_and_keeps_its_journal() {
    a_host_is_cut_off(Protocol::Nbd);
}

#[test]
fn a_host_that_was_cut_off_is_fenced_when_it_comes_back_over_iscsi() {
    a_host_is_cut_off(Protocol::Iscsi);
}

fn a_host_is_cut_off(protocol: Protocol) {
    let site = Site::with_volume("disk", 32).over(protocol);
    let relay = Relay::start(&site, []);
    let mut older = site.host("older").with(["--store", &relay.address]);
    older.start();
    let mut history = History::new(BLOCKS);
    write(&older, &mut history, 200, 1);
    older.wait_drained("disk", LIMIT);
    let common = history.len();
    relay.cut();
    write(&older, &mut history, 100, 2);

    // The store cannot know of these writes, so any host gets the volume.
    let mut newer = site.host("newer");
    newer.start();
    newer.attach(["disk", "--take-over"]).ok();
    history.cut(common);
    shows_all(&newer, &history);
    write(&newer, &mut history, 100, 3);

    relay.restore();
    wait_for("the older host to be fenced", LIMIT, || {
        older.volume_status("disk")["state"] == "fenced"
    });
    older.stop();
    let journal = journal_of(&older);
    older.start();
    older.attach(["disk", "--take-over"]).fails(1, &["went on without"]);
    older.stop();
    assert!(journal_of(&older) == journal, "the journal to salvage from was changed");
    shows_all(&newer, &history);
}

#[test]
fn a_volume_that_is_attached_is_not_deleted() {
    let site = Site::with_volume("disk", 32);
    let mut host = site.host("host");
    host.start();
    let client = host.client("disk");
    site.volume(["delete", "disk"]).fails(1, &["attached", "stop"]);
    site.volume(["accept-loss", "disk"]).fails(1, &["attached"]);
    client.disconnect();
    assert!(host.stop().success());
    site.volume(["delete", "disk"]).ok();
    site.volume(["show", "disk"]).fails(1, &["no such volume"]);
    // Its name is free, and the new volume is empty.
    site.create("disk", 16);
    host.start();
    let image = read_all(&mut host.client("disk"), 16 << 20).unwrap();
    assert!(image.iter().all(|byte| *byte == 0));
}
