//! A host's volumes with a store that is there, and with one that is not.

use super::context::HostShared;
use super::encryption::EncryptionPolicy;
use super::exposition;
use super::iscsi;
use super::nbd::{Exports as _, NbdPlaces, NbdServer};
use super::registry::VolumeRegistry;
use super::report::{self, VolumeReport};
use super::settings::{Limits, VolumeSettings};
use super::state::{JournalShape, StateDir};
use super::uplink::Router;
use super::volume::{Clock, Requester, Volume};
use bytes::Bytes;
use clap::Parser as _;
use longhaul::args::{Cli, Command};
use longhaul_core::block::{
    BlockError, Range, ReadPiece, Reply, Request, SECTOR_BYTES, STAGED_BIT, VolumeId,
};
use longhaul_core::front::iscsi::{Access, OpenError};
use longhaul_core::front::nbd::LookupErrorKind;
use longhaul_core::host::{Durability, OnJournalFailure};
use longhaul_core::pack::Compression;
use longhaul_link::credential::Credential;
use longhaul_link::relay::{Relay, Shape};
use longhaul_link::{Client, Transport};
use longhaul_store as store;
use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Each part is a process of its own: all it started ends with it, as if somebody had killed it.
fn process<T>(part: impl Future<Output = T>) -> T {
    let runtime = super::runtime::front_runtime().unwrap();
    let limited = async { tokio::time::timeout(Duration::from_secs(180), part).await.unwrap() };
    runtime.block_on(tokio::task::LocalSet::new().run_until(limited))
}

async fn store(dir: &Path) -> (oneshot::Sender<()>, tokio::task::JoinHandle<()>) {
    let listen = "127.0.0.1:0".parse().unwrap();
    let options = store::Options {
        data: &longhaul_objects::Location::Directory(dir.into()),
        state: dir,
        listen,
        advertise: None,
        cache_bytes: 0,
        cache_dir: None,
        map_memory: longhaul_core::store::MAP_MEMORY,
        collect: None,
        delete_delay: Duration::from_secs(600),
        new_ca: false,
        scrub: Default::default(),
        delete_grace: Duration::from_secs(3600),
    };
    let store = store::Store::start(&options).await.unwrap();
    let (stop, stopped) = oneshot::channel();
    let run = Box::pin(store.run(
        async {
            let _ = stopped.await;
        },
        std::future::pending(),
    ));
    (stop, tokio::spawn(async move { run.await.unwrap() }))
}

fn credential(store: &Path) -> PathBuf {
    store.join("credentials/admin.toml")
}

async fn create(store: &Path, name: &str) {
    command(store, &["create", name, "--size", "16MiB"]).await;
}

async fn command(store: &Path, args: &[&str]) {
    let args = ["longhaul", "volume"].iter().chain(args).chain(&["--credential"]);
    let args = args.map(Into::into).chain([credential(store).into_os_string()]);
    let Command::Volume(args) = Cli::try_parse_from(args).unwrap().command else { panic!() };
    tokio::task::spawn_blocking(move || longhaul::volume::run(&args)).await.unwrap().unwrap();
}

fn host(store: &Path, state: &Path) -> Rc<VolumeRegistry> {
    host_at(store, state, None)
}

fn host_at(store: &Path, state: &Path, at: Option<String>) -> Rc<VolumeRegistry> {
    host_with(store, state, at, false)
}

fn host_with(
    store: &Path,
    state: &Path,
    at: Option<String>,
    write_through: bool,
) -> Rc<VolumeRegistry> {
    let credential = Credential::load(&credential(store)).unwrap();
    let (client, events) = Client::start(credential, at, Transport::Auto).unwrap();
    let settings = VolumeSettings {
        journal: JournalShape::from_size(64 << 20).unwrap(),
        cache_bytes: 0,
        durability: Durability::Host,
        on_journal_failure: OnJournalFailure::Continue,
        write_through,
        compression: Compression::None,
        locks: EncryptionPolicy::default(),
        accept_rollback: Vec::new(),
        expect_root: Vec::new(),
        readahead_bytes: 32 << 20,
        limits: Limits::default(),
        warm: None,
    };
    let state = Arc::new(StateDir::open(state).unwrap());
    let shared = HostShared::new(state, Clock::start(), 1);
    let registry = VolumeRegistry::new(shared, 0, settings, Rc::new(Router::new(client)));
    tokio::task::spawn_local(registry.clone().run_link(events));
    // So that whoever opens a volume in a test is its operator.
    registry.set_on_demand(vec!["*".parse().unwrap()]);
    registry
}

fn answer(registry: &Rc<VolumeRegistry>) -> report::HostSnapshot {
    let server = NbdServer::new(registry.clone(), None, NbdPlaces::default());
    let (config, access) = (iscsi::config(Vec::new(), false), Access::default());
    let rights = (access, iscsi::IscsiPlaces::default());
    let target = iscsi::IscsiServer::new(registry.clone(), Clock::start(), config, rights);
    report::join(registry.state(), vec![report::look(registry, &server, &target)])
}

fn report(registry: &Rc<VolumeRegistry>) -> VolumeReport {
    answer(registry).report.volumes.remove(0)
}

struct Done(Cell<usize>);

impl Requester for Done {
    fn reply(&self, _: u64, reply: Result<Reply, BlockError>) {
        assert_eq!(reply, Ok(Reply::Done));
        self.0.set(self.0.get() + 1);
    }

    fn flush(&self) {}

    fn mark(&self) -> bool {
        true
    }
}

async fn write_and_flush(volume: &Rc<Volume>) {
    write_and_flush_at(volume, 0).await;
}

async fn write_and_flush_at(volume: &Rc<Volume>, lba: u64) {
    let done = Rc::new(Done(Cell::new(0)));
    let client: Rc<dyn Requester> = done.clone();
    let data = Bytes::from_static(&[7; 8192]);
    let write = Request::Write { range: Range::new(lba, 16), data, fua: false };
    // A flush covers all writes that were acknowledged before it.
    for (number, request) in [(1, write), (2, Request::Flush)] {
        volume.submit(&client, Instant::now(), std::iter::once((number, request)));
        while done.0.get() < number as usize {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[test]
fn what_was_not_delivered_is_known_without_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let (data, state) = (dir.path().join("store"), dir.path().join("host"));
    process(async {
        let (stop, stopped) = store(&data).await;
        create(&data, "v").await;
        let registry = host(&data, &state);
        // The link is not up yet. The client has to wait; the host does not refuse it.
        let (info, volume) = registry.clone().open("v".into(), true).await.unwrap();
        assert_eq!(info.sectors, 16 << 11);
        assert_eq!(report(&registry).journal.lag_bytes, 0);
        stop.send(()).unwrap();
        stopped.await.unwrap();
        write_and_flush(&volume).await;
    });
    process(async {
        let registry = host(&data, &state);
        registry.attach_always("v");
        let first = report(&registry);
        assert_eq!(first.state, "attaching");
        let started = Instant::now();
        let refusal = registry.clone().open("v".into(), true).await.err().unwrap();
        assert_eq!(refusal.kind, LookupErrorKind::Policy);
        assert!(refusal.message.contains("the store cannot be reached"), "{}", refusal.message);
        let took = started.elapsed();
        // And not when a store comes, which may be never.
        assert!(took < Duration::from_secs(60), "{took:?}");
        registry.link_tried().await;
        let report = report(&registry);
        assert_eq!(report.state, "attaching");
        assert!((8192..9000).contains(&report.journal.lag_bytes), "{report:?}");
        assert!(
            report.journal.journal_bytes >= report.journal.lag_bytes
                && report.journal.lag_seconds > 0.0
        );
        assert_eq!(report.journal.journal_capacity_bytes, 64 << 20);
        assert_eq!(report.reason.as_deref(), Some("waiting for the store"));
    });
    // An unreadable journal counts as full, and the status says why.
    let volume = std::fs::read_dir(state.join("volumes")).unwrap().next().unwrap().unwrap();
    std::fs::write(volume.path().join("journal.0003"), "cut").unwrap();
    process(async {
        let registry = host(&data, &state);
        registry.attach_always("v");
        let _ = registry.clone().open("v".into(), true).await;
        let report = report(&registry);
        assert_eq!((report.state.as_str(), report.journal.lag_bytes), ("refused", 64 << 20));
        assert!(report.reason.as_ref().unwrap().contains("journal.0003"), "{report:?}");
        let metrics = exposition::prometheus(&answer(&registry));
        assert!(metrics.contains("longhaul_host_lag_bytes{volume=\"v\"} 67108864"), "{metrics}");
    });
}

#[test]
fn a_journal_that_nothing_describes_is_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let (data, state) = (dir.path().join("store"), dir.path().join("host"));
    process(async {
        let _store = store(&data).await;
        create(&data, "v").await;
        let registry = host(&data, &state);
        let (_, volume) = registry.clone().open("v".into(), true).await.unwrap();
        write_and_flush(&volume).await;
    });
    let volume = std::fs::read_dir(state.join("volumes")).unwrap().next().unwrap().unwrap().path();
    let (file, aside) = (volume.join("volume.json"), dir.path().join("aside"));
    std::fs::rename(&file, &aside).unwrap();
    let journal = std::fs::read(volume.join("journal.0000")).unwrap();
    process(async {
        let _store = store(&data).await;
        let registry = host(&data, &state);
        let refusal = registry.clone().open("v".into(), true).await.err().unwrap();
        assert!(refusal.message.contains("no volume.json"), "{}", refusal.message);
    });
    assert!(std::fs::read(volume.join("journal.0000")).unwrap() == journal, "it was touched");
    std::fs::rename(&aside, &file).unwrap();
    process(async {
        let _store = store(&data).await;
        let registry = host(&data, &state);
        registry.clone().open("v".into(), true).await.unwrap();
    });
}

/// A file with this content that opens for writing. Every write to it fails.
fn unwritable(content: &[u8]) -> std::fs::File {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    use std::io::Write as _;
    let mut file = std::fs::File::from(memfd_create("journal", MemfdFlags::ALLOW_SEALING).unwrap());
    file.write_all(content).unwrap();
    fcntl_add_seals(&file, SealFlags::WRITE).unwrap();
    file
}

#[test]
fn the_status_says_why_a_journal_has_failed() {
    use std::os::fd::AsRawFd as _;
    let dir = tempfile::tempdir().unwrap();
    let (data, state) = (dir.path().join("store"), dir.path().join("host"));
    process(async {
        let _store = store(&data).await;
        create(&data, "v").await;
        let registry = host(&data, &state);
        registry.clone().open("v".into(), true).await.unwrap();
    });
    let volume = std::fs::read_dir(state.join("volumes")).unwrap().next().unwrap().unwrap().path();
    let journal = volume.join("journal.0000");
    let broken = unwritable(&std::fs::read(&journal).unwrap());
    std::fs::remove_file(&journal).unwrap();
    let path = format!("/proc/self/fd/{}", broken.as_raw_fd());
    std::os::unix::fs::symlink(path, &journal).unwrap();
    process(async {
        let _store = store(&data).await;
        let registry = host(&data, &state);
        let (_, volume) = registry.clone().open("v".into(), true).await.unwrap();
        // It goes on, with the store for its journal.
        write_and_flush(&volume).await;
        let report = report(&registry);
        assert_eq!(report.state, "attached");
        assert!(report.journal.journal_failed && report.journal.memory_only, "{report:?}");
        assert_eq!(
            (report.journal.lag_bytes, report.journal.committed_seq),
            (0, report.journal.last_seq)
        );
        let reason = report.reason.unwrap();
        for part in
            ["the journal failed: ", "write of ", "journal.0000", "goes on", "replace the disk"]
        {
            assert!(reason.contains(part), "{reason}");
        }
        let metrics = exposition::prometheus(&answer(&registry));
        assert!(metrics.contains("longhaul_host_journal_failed{volume=\"v\"} 1"), "{metrics}");
    });
}

#[test]
fn a_client_that_is_early_hears_that_there_is_no_such_volume() {
    let dir = tempfile::tempdir().unwrap();
    let (data, state) = (dir.path().join("store"), dir.path().join("host"));
    process(async {
        let _store = store(&data).await;
        let registry = host(&data, &state);
        let refusal = registry.clone().open("none".into(), true).await.err().unwrap();
        assert_eq!(refusal.kind, LookupErrorKind::Unknown, "{}", refusal.message);
    });
}

#[test]
fn reservations_stay_with_the_volume() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("store");
    let open = |registry: &Rc<VolumeRegistry>| iscsi::Volumes::open(registry.clone(), "v".into());
    process(async {
        let (stop, stopped) = store(&data).await;
        create(&data, "v").await;
        let registry = host(&data, &dir.path().join("one"));
        let Err(OpenError::NotFound(_)) =
            iscsi::Volumes::open(registry.clone(), "none".into()).await
        else {
            panic!("the volume does not exist");
        };
        let (volume, saved) = open(&registry).await.unwrap();
        assert!(saved.is_empty());
        let save = |data: &'static [u8]| {
            iscsi::Volumes::save(registry.clone(), volume.clone(), Bytes::from_static(data))
        };
        save(b"first").await.unwrap();
        save(b"second").await.unwrap();
        let many = Bytes::from(vec![0; 200 << 10]);
        let error = iscsi::Volumes::save(registry.clone(), volume.clone(), many).await.unwrap_err();
        assert!(error.to_string().contains("unregister"), "{error}");
        // While the store is away a save waits like a write.
        stop.send(()).unwrap();
        stopped.await.unwrap();
        let third = tokio::task::spawn_local(save(b"third"));
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!third.is_finished());
        third.abort();
        let _ = third.await;
    });
    process(async {
        let _store = store(&data).await;
        let one = host(&data, &dir.path().join("one"));
        let (volume, saved) = open(&one).await.unwrap();
        assert_eq!(saved, "second");
        volume.with(|now, engine| engine.handle_shutdown(now));
        while !volume.is_detached() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let two = host(&data, &dir.path().join("two"));
        let (other, saved) = open(&two).await.unwrap();
        assert_eq!(saved, "second");
        iscsi::Volumes::save(two, other, Bytes::from_static(b"of another host")).await.unwrap();
        let late = iscsi::Volumes::save(one, volume, Bytes::from_static(b"late")).await;
        assert!(late.is_err(), "its epoch is over");
    });
}

#[test]
fn a_volume_grows_while_it_is_attached_and_whoever_registered_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let (data, state) = (dir.path().join("store"), dir.path().join("host"));
    let size_kept = || {
        let state = StateDir::open(&state).unwrap();
        state.volumes().unwrap()[0].sectors
    };
    process(async {
        let _store = store(&data).await;
        create(&data, "v").await;
        let registry = host(&data, &state);
        let told = Rc::new(RefCell::new(Vec::new()));
        registry.on_resized({
            let told = told.clone();
            move |volume, sectors| {
                // A listener may look at the volume.
                assert_eq!(volume.sectors(), sectors);
                told.borrow_mut().push((volume.name().to_owned(), sectors));
            }
        });
        let (info, volume) = registry.clone().open("v".into(), true).await.unwrap();
        assert_eq!(info.sectors, 16 << 11);
        command(&data, &["resize", "v", "64MiB"]).await;
        while told.borrow().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(*told.borrow(), [("v".to_owned(), 64 << 11)]);
        write_and_flush_at(&volume, (64 << 11) - 16).await;
        let (info, _) = registry.clone().open("v".into(), true).await.unwrap();
        assert_eq!((info.sectors, report(&registry).size_bytes), (64 << 11, 64 << 20));
    });
    // The host was killed. While it is away the volume grows once more.
    assert_eq!(size_kept(), 64 << 11);
    process(async {
        let _store = store(&data).await;
        command(&data, &["resize", "v", "80MiB"]).await;
        let registry = host(&data, &state);
        registry.attach_always("v");
        assert_eq!(report(&registry).size_bytes, 0);
        let (info, volume) = registry.clone().open("v".into(), true).await.unwrap();
        assert_eq!(info.sectors, 80 << 11);
        write_and_flush_at(&volume, (80 << 11) - 16).await;
    });
    assert_eq!(size_kept(), 80 << 11);
}

/// Keeps a reply.
#[derive(Default)]
struct Kept(RefCell<Option<Result<Reply, BlockError>>>);

impl Requester for Kept {
    fn reply(&self, _: u64, reply: Result<Reply, BlockError>) {
        self.0.replace(Some(reply));
    }

    fn flush(&self) {}

    fn mark(&self) -> bool {
        true
    }
}

async fn ask(volume: &Rc<Volume>, request: Request) -> Result<Reply, BlockError> {
    let kept = Rc::new(Kept::default());
    let client: Rc<dyn Requester> = kept.clone();
    volume.submit(&client, Instant::now(), std::iter::once((1, request)));
    loop {
        if let Some(reply) = kept.0.take() {
            return reply;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// A byte of each sector.
async fn read(volume: &Rc<Volume>, range: Range) -> Vec<u8> {
    let Ok(Reply::Data(pieces)) = ask(volume, Request::Read(range)).await else { panic!() };
    let bytes = pieces.iter().map(|piece| match piece {
        ReadPiece::Data(data) => data.to_vec(),
        ReadPiece::Zeroes(sectors) => vec![0; (sectors * SECTOR_BYTES) as usize],
    });
    bytes.collect::<Vec<_>>().concat().chunks(512).map(|sector| sector[77]).collect()
}

#[test]
fn volumes_are_copied_at_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let (data, state) = (dir.path().join("store"), dir.path().join("host"));
    let copy = [[0; 4].as_slice(), &[7; 16], &[0; 4]].concat();
    process(async {
        let _store = store(&data).await;
        create(&data, "v").await;
        create(&data, "w").await;
        let registry = host(&data, &state);
        let (_, v) = registry.clone().open("v".into(), true).await.unwrap();
        let (_, w) = registry.clone().open("w".into(), true).await.unwrap();
        write_and_flush_at(&v, 8).await;
        let watch = ask(&v, Request::Watch(vec![Range::new(0, 16)])).await;
        let Ok(Reply::Watching(watch)) = watch else { panic!("{watch:?}") };
        let stage = |watch| Request::Stage {
            range: Range::new(4, 24),
            into: w.attached().volume,
            lba: 101,
            object: STAGED_BIT | 5,
            watch,
        };
        let staged = ask(&v, stage(Some(watch))).await;
        let Ok(Reply::Staged(pieces)) = staged else { panic!("{staged:?}") };
        // The same number again: the engine finds another.
        let again = ask(&v, stage(None)).await;
        assert!(matches!(&again, Ok(Reply::Staged(other)) if *other != pieces), "{again:?}");
        let write = Request::WriteStaged { pieces, fua: true };
        assert_eq!(ask(&w, write).await, Ok(Reply::Done));
        assert_eq!(read(&w, Range::new(101, 24)).await, copy);
        write_and_flush_at(&v, 0).await;
        assert_eq!(ask(&v, stage(Some(watch))).await, Err(BlockError::Changed));
        let unknown = Request::Stage {
            range: Range::new(4, 24),
            into: VolumeId(1),
            lba: 0,
            object: STAGED_BIT | 6,
            watch: None,
        };
        assert_eq!(ask(&v, unknown).await, Err(BlockError::Unsupported));
        let metrics = exposition::prometheus(&answer(&registry));
        for line in [
            "longhaul_host_copies_total{volume=\"w\"} 1",
            "longhaul_host_copy_bytes_total{volume=\"w\"} 12288",
            "longhaul_host_stages_total{volume=\"v\"} 4",
        ] {
            assert!(metrics.contains(line), "{line}: {metrics}");
        }
    });
    // After a kill of the host, from its journal.
    process(async {
        let _store = store(&data).await;
        let registry = host(&data, &state);
        let (_, w) = registry.clone().open("w".into(), true).await.unwrap();
        assert_eq!(read(&w, Range::new(101, 24)).await, copy);
    });
}

#[test]
fn what_waits_for_the_line_goes_with_the_first_flight() {
    let dir = tempfile::tempdir().unwrap();
    let (data, state) = (dir.path().join("store"), dir.path().join("host"));
    process(async {
        let _store = store(&data).await;
        create(&data, "v").await;
        let target = Credential::load(&credential(&data)).unwrap().stores[0].parse().unwrap();
        let any = "127.0.0.1:0".parse().unwrap();
        let relay = Relay::start(any, target, Shape::default()).unwrap();
        let registry = host_at(&data, &state, Some(relay.address().to_string()));
        let (_, volume) = registry.clone().open("v".into(), true).await.unwrap();
        write_and_flush_at(&volume, 8).await;
        relay.change(|shape| shape.cut = true);
        while registry.is_connected() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(!registry.link_status().up, "also while the store is tried with data");
        let waits = read(&volume, Range::new(64, 4));
        let returns = async {
            tokio::time::sleep(Duration::from_millis(1500)).await;
            write_and_flush_at(&volume, 16).await;
            relay.change(|shape| shape.cut = false);
        };
        let (got, ()) = tokio::join!(waits, returns);
        assert_eq!(got, [0; 4]);
        while report(&registry).journal.lag_bytes > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(read(&volume, Range::new(8, 2)).await, [7; 2]);
        let early = registry.link_status().early;
        assert!(early.accepted == 1 && early.offered > 1 && early.rejected == 0, "{early:?}");
        let metrics = exposition::prometheus(&answer(&registry));
        assert!(metrics.contains("longhaul_host_link_early_accepted_total 1"), "{metrics}");
    });
}

#[test]
fn writes_that_a_fenced_host_kept_are_never_taken_for_delivered() {
    let dir = tempfile::tempdir().unwrap();
    let (data, state) = (dir.path().join("store"), dir.path().join("host"));
    let kept = || {
        let files = StateDir::open(&state).unwrap().volumes().unwrap();
        (files[0].released, files[0].delivered)
    };
    process(async {
        let (stop, stopped) = store(&data).await;
        create(&data, "v").await;
        let registry = host(&data, &state);
        let (_, volume) = registry.clone().open("v".into(), true).await.unwrap();
        stop.send(()).unwrap();
        stopped.await.unwrap();
        write_and_flush(&volume).await;
    });
    // As it is when another host has taken the volume meanwhile.
    let opened = StateDir::open(&state).unwrap();
    let mut file = opened.volumes().unwrap().remove(0);
    file.released = true;
    opened.save_volume(&file).unwrap();
    let journal = opened.volume_dir(file.volume_id().unwrap());
    drop(opened);
    process(async {
        let _store = store(&data).await;
        let registry = host_with(&data, &state, None, true);
        let refusal = registry.clone().open("v".into(), true).await.err().unwrap();
        assert!(refusal.message.contains("--drop-undelivered"), "{}", refusal.message);
        let error = registry.detach("v", false).await.unwrap_err().to_string();
        assert!(error.contains("the store may lack"), "{error}");
    });
    assert_eq!(kept(), (true, false));
    // A journal that the volume does not use may come while the volume is attached.
    let aside = dir.path().join("aside");
    std::fs::rename(&journal, &aside).unwrap();
    process(async {
        let _store = store(&data).await;
        let registry = host_with(&data, &state, None, true);
        let (_, volume) = registry.clone().open("v".into(), true).await.unwrap();
        std::fs::rename(&aside, &journal).unwrap();
        volume.with(|now, engine| engine.handle_shutdown(now));
        while !volume.is_detached() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    assert_eq!(kept(), (true, false));
}

#[test]
fn who_gives_up_takes_nothing_over_later() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("store");
    process(async {
        let _store = store(&data).await;
        create(&data, "v").await;
        let target = Credential::load(&credential(&data)).unwrap().stores[0].parse().unwrap();
        let any = "127.0.0.1:0".parse().unwrap();
        let cut = Shape { cut: true, ..Shape::default() };
        let relay = Relay::start(any, target, cut).unwrap();
        let one = host(&data, &dir.path().join("one"));
        let (_, volume) = one.clone().open("v".into(), true).await.unwrap();
        let two = host_at(&data, &dir.path().join("two"), Some(relay.address().to_string()));
        // It waits for the volume by itself, and takes it from nobody.
        two.attach_always("v");
        two.attach_now("v", true).unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        two.cancel_attach("v");
        relay.change(|shape| shape.cut = false);
        let reason = loop {
            let report = report(&two);
            if report.state == "refused" || report.state == "attached" {
                break report.reason;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        assert!(reason.is_some_and(|reason| reason.contains("in use")));
        assert!(!volume.is_fenced());
        // A command that means it still does.
        two.attach_now("v", true).unwrap();
        while !volume.is_fenced() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // An attempt to have it back that fails does not hide that, or who did it.
        let until = async |state: &str| loop {
            let report = report(&one);
            if report.state == state
                && report.fenced_by.as_ref().is_some_and(|by| by.host.is_some())
            {
                break report;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        let fenced = until("fenced").await;
        for _ in 0..2 {
            one.attach_now("v", false).unwrap();
            assert_eq!(until("refused").await.fenced_by, fenced.fenced_by);
            one.cancel_attach("v");
            let again = until("fenced").await;
            assert_eq!(
                (again.reason, again.fenced_by),
                (fenced.reason.clone(), fenced.fenced_by.clone())
            );
        }
    });
}
