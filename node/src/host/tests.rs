//! A host's volumes with a store that is there, and with one that is not.

use super::admin;
use super::front::{Front, Options};
use super::nbd::{Exports as _, Server};
use super::report::{self, VolumeReport};
use super::state::{JournalShape, StateDir};
use super::uplink::Router;
use super::volume::{Client as Asker, Clock, Volume};
use crate::cli::{Cli, Command};
use crate::credential::Credential;
use crate::link::Client;
use crate::store;
use bytes::Bytes;
use clap::Parser as _;
use longhaul_core::block::{BlockError, Range, Reply, Request};
use longhaul_core::front::nbd::LookupErrorKind;
use longhaul_core::host::{Durability, OnJournalFailure};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Each part is a process of its own: what it started ends with it, as if it had been killed.
fn process<T>(part: impl Future<Output = T>) -> T {
    let runtime = super::front_runtime().unwrap();
    let limited = async { tokio::time::timeout(Duration::from_secs(60), part).await.unwrap() };
    runtime.block_on(tokio::task::LocalSet::new().run_until(limited))
}

async fn store(dir: &Path) -> (oneshot::Sender<()>, tokio::task::JoinHandle<()>) {
    let listen = "127.0.0.1:0".parse().unwrap();
    let options = store::Options { data: dir, state: dir, listen, advertise: None };
    let store = store::Store::start(&options).await.unwrap();
    let (stop, stopped) = oneshot::channel();
    let run = store.run(async {
        let _ = stopped.await;
    });
    (stop, tokio::spawn(run))
}

fn credential(store: &Path) -> PathBuf {
    store.join("credentials/admin.toml")
}

async fn create(store: &Path, name: &str) {
    let credential = credential(store);
    let args = ["longhaul", "volume", "create", name, "--size", "16MiB", "--credential"];
    let args = args.map(Into::into).into_iter().chain([credential.into_os_string()]);
    let Command::Volume(args) = Cli::try_parse_from(args).unwrap().command else { panic!() };
    tokio::task::spawn_blocking(move || crate::volume::run(&args)).await.unwrap().unwrap();
}

fn host(store: &Path, state: &Path) -> Rc<Front> {
    let credential = Credential::load(&credential(store)).unwrap();
    let (client, events) = Client::start(credential, None).unwrap();
    let options = Options {
        journal: JournalShape::from_size(64 << 20).unwrap(),
        durability: Durability::Host,
        on_journal_failure: OnJournalFailure::Continue,
        write_through: false,
    };
    let state = Arc::new(StateDir::open(state).unwrap());
    let front = Front::new(state, options, Rc::new(Router::new(client)), Clock::start());
    tokio::task::spawn_local(front.clone().run_link(events));
    front
}

fn report(front: &Rc<Front>) -> VolumeReport {
    let server = Server::new(front.clone(), None);
    report::collect(front, &server).report.volumes.remove(0)
}

struct Done(Cell<usize>);

impl Asker for Done {
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
    let done = Rc::new(Done(Cell::new(0)));
    let asker: Rc<dyn Asker> = done.clone();
    let data = Bytes::from_static(&[7; 8192]);
    let write = Request::Write { range: Range::new(0, 16), data, fua: false };
    volume.submit(&asker, [(1, write), (2, Request::Flush)].into_iter());
    while done.0.get() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn what_was_not_delivered_is_known_without_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let (data, state) = (dir.path().join("store"), dir.path().join("host"));
    process(async {
        let (stop, stopped) = store(&data).await;
        create(&data, "v").await;
        let front = host(&data, &state);
        // The link is not up yet: the client is held, not refused.
        let (info, volume) = front.clone().open("v".into(), true).await.unwrap();
        assert_eq!(info.sectors, 16 << 11);
        assert_eq!(report(&front).lag_bytes, 0);
        stop.send(()).unwrap();
        stopped.await.unwrap();
        write_and_flush(&volume).await;
    });
    process(async {
        let front = host(&data, &state);
        front.pin("v");
        let first = report(&front);
        assert_eq!(first.state, "attaching");
        let started = Instant::now();
        let refusal = front.clone().open("v".into(), true).await.err().unwrap();
        assert_eq!(refusal.kind, LookupErrorKind::Policy);
        assert!(refusal.message.contains("the store cannot be reached"), "{}", refusal.message);
        let took = started.elapsed();
        assert!(took < Duration::from_secs(11), "{took:?}");
        front.link_tried().await;
        let report = report(&front);
        assert_eq!(report.state, "attaching");
        assert!((8192..9000).contains(&report.lag_bytes), "{report:?}");
        assert!(report.journal_bytes >= report.lag_bytes && report.lag_seconds > 0.0);
        assert_eq!(report.journal_capacity_bytes, 64 << 20);
        assert_eq!(report.reason.as_deref(), Some("waiting for the store"));
    });
    // A journal that cannot be read counts as full, and the status says why.
    let volume = std::fs::read_dir(state.join("volumes")).unwrap().next().unwrap().unwrap();
    std::fs::write(volume.path().join("journal.0003"), "cut").unwrap();
    process(async {
        let front = host(&data, &state);
        front.pin("v");
        let _ = front.clone().open("v".into(), true).await;
        let report = report(&front);
        assert_eq!((report.state.as_str(), report.lag_bytes), ("attaching", 64 << 20));
        assert!(report.reason.as_ref().unwrap().contains("journal.0003"), "{report:?}");
        let metrics = admin::prometheus(&super::report::Answer {
            report: report::collect(&front, &Server::new(front.clone(), None)).report,
            metrics: Vec::new(),
        });
        assert!(metrics.contains("longhaul_host_lag_bytes{volume=\"v\"} 67108864"), "{metrics}");
    });
}

#[test]
fn a_client_that_is_early_hears_that_there_is_no_such_volume() {
    let dir = tempfile::tempdir().unwrap();
    let (data, state) = (dir.path().join("store"), dir.path().join("host"));
    process(async {
        let _store = store(&data).await;
        let front = host(&data, &state);
        let refusal = front.clone().open("none".into(), true).await.err().unwrap();
        assert_eq!(refusal.kind, LookupErrorKind::Unknown, "{}", refusal.message);
    });
}
