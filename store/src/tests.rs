//! A whole store over loopback, with the commands as its clients.

use super::*;
use bytes::BytesMut;
use clap::Parser as _;
use longhaul::args::{Cli, Command};
use longhaul_api::admin::Report as _;
use longhaul_core::block::{Range, STAGED_BIT, StagedData, VolumeId};
use longhaul_core::record;
use longhaul_core::store::MAP_MEMORY;
use longhaul_core::wire::link::{
    Announced, AttachError, Attached, Frame, HostId, Lane, ReplicaProgress, StageError, StagedRun,
    ToHost, ToStore, VolumeOperation, VolumeReply,
};
use longhaul_link::credential::Credential;
use longhaul_link::{Client, LinkEvent, Requests, Transport};
use std::path::PathBuf;
use tokio::sync::oneshot;

mod flood;
mod http;
mod limits;
mod mutations;
mod ownership;
mod several;
mod survey;
mod threads;

struct Running {
    dir: PathBuf,
    address: SocketAddr,
    view: Arc<view::View>,
    stop: oneshot::Sender<()>,
    task: tokio::task::JoinHandle<()>,
}

async fn start(dir: &Path) -> Running {
    start_with(dir, |_| {}).await
}

async fn start_with(dir: &Path, change: impl FnOnce(&mut Store)) -> Running {
    start_over(dir, dir, change).await
}

async fn start_over(data: &Path, state: &Path, change: impl FnOnce(&mut Store)) -> Running {
    start_in(data, state, 1, change).await
}

/// Starts a store with that many link threads.
async fn start_in(
    data: &Path,
    state: &Path,
    threads: usize,
    change: impl FnOnce(&mut Store),
) -> Running {
    let options = Options {
        data: &Location::Directory(data.into()),
        state,
        listen: "127.0.0.1:0".parse().unwrap(),
        advertise: None,
        cache_bytes: 0,
        cache_dir: None,
        map_memory: MAP_MEMORY,
        collect: None,
        delete_delay: Duration::from_secs(600),
        new_ca: false,
        scrub: Default::default(),
        delete_grace: Duration::from_secs(3600),
    };
    let mut store = Store::start_in(&options, threads).await.unwrap();
    change(&mut store);
    let (address, view) = (store.address(), Arc::new(store.view()));
    let (stop, stopped) = oneshot::channel();
    let run = Box::pin(store.run(
        async {
            let _ = stopped.await;
        },
        std::future::pending(),
    ));
    let task = tokio::spawn(async move { run.await.unwrap() });
    Running { dir: state.to_owned(), address, view, stop, task }
}

impl Running {
    fn credential(&self) -> PathBuf {
        self.dir.join("credentials/admin.toml")
    }

    async fn requests(&self) -> Requests {
        let credential = Credential::load(&self.credential()).unwrap();
        Requests::connect(&credential, None).await.unwrap()
    }

    /// Runs a command as the binary would.
    async fn volume(&self, args: &[&str]) -> Result<()> {
        let credential = self.credential();
        let fixed = ["longhaul", "volume", "--credential", credential.to_str().unwrap()];
        let all: Vec<String> = fixed.iter().chain(args).map(|arg| (*arg).to_owned()).collect();
        let run = move || {
            let Command::Volume(args) = Cli::try_parse_from(all).unwrap().command else { panic!() };
            longhaul::volume::run(&args)
        };
        tokio::task::spawn_blocking(run).await.unwrap()
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.task.await.unwrap();
    }
}

/// Attaches once no other host is in the way.
async fn attach(requests: &Requests, host: u128) -> Result<Attached, AttachError> {
    loop {
        match try_attach(requests, host).await {
            Err(AttachError::InUse { .. }) => tokio::time::sleep(Duration::from_millis(50)).await,
            attached => return attached,
        }
    }
}

async fn try_attach(requests: &Requests, host: u128) -> Result<Attached, AttachError> {
    let attach = |request| ToStore::Attach {
        request,
        name: "a".into(),
        host: HostId(host),
        journal: None,
        take_over: false,
    };
    let reply = requests.call(Lane::Control, attach).await.unwrap();
    let ToHost::Attached { result, .. } = reply.message else { panic!() };
    result
}

fn said(result: Result<()>) -> String {
    format!("{:#}", result.unwrap_err())
}

/// Has a store join in `two`, by a token of the one in `one`.
pub(crate) fn join(one: &Path, two: &Path, store: &str) {
    let joining = credential::Joining::begin(two, &credential::invite(one).unwrap()).unwrap();
    let serial = &joining.token().serial;
    let signed = credential::join::answer(one, serial, store, joining.request()).unwrap();
    joining.finish(store, signed).unwrap();
}

#[tokio::test]
async fn volumes_are_created_listed_and_deleted_and_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let store = start(dir.path()).await;
    store.volume(&["create", "a", "--size", "1GiB"]).await.unwrap();
    store.volume(&["create", "b", "--size", "1MiB", "--block-size", "4096"]).await.unwrap();
    assert!(said(store.volume(&["create", "a", "--size", "1GiB"]).await).contains("exists"));
    assert!(said(store.volume(&["create", "x/y", "--size", "1GiB"]).await).contains("x/y"));
    assert!(said(store.volume(&["create", "c", "--size", "100"]).await).contains("multiple"));
    store.volume(&["list"]).await.unwrap();
    store.volume(&["show", "a", "--json"]).await.unwrap();
    assert!(said(store.volume(&["show", "c"]).await).contains("no such volume"));
    store.volume(&["delete", "b"]).await.unwrap();
    assert!(said(store.volume(&["delete", "b"]).await).contains("no such volume"));
    store.volume(&["create", "b", "--size", "2MiB"]).await.unwrap();
    store.stop().await;

    let store = start(dir.path()).await;
    let requests = store.requests().await;
    let VolumeReply::List(list) = requests.volume(VolumeOperation::List).await.unwrap() else {
        panic!()
    };
    let sizes: Vec<_> = list.iter().map(|info| (info.name.as_str(), info.sectors)).collect();
    assert_eq!(sizes, [("a", 2 << 20), ("b", 4096)]);
    requests.close().await;
    store.stop().await;
}

#[tokio::test]
async fn a_copy_between_volumes_survives_its_source_and_goes_with_its_volume() {
    let dir = tempfile::tempdir().unwrap();
    let store = start(dir.path()).await;
    store.volume(&["create", "a", "--size", "1MiB"]).await.unwrap();
    store.volume(&["create", "b", "--size", "1MiB"]).await.unwrap();
    let host = store.requests().await;
    let a = attach(&host, 7).await.unwrap();
    let range = Range::new(8, 16);
    let mut payload = BytesMut::new();
    record::encode_data(a.volume, 1, 1, range, &[0xab; 16 * 512], &mut payload);
    let commit = async |volume, payload: BytesMut| {
        let message = ToStore::Batch { volume, epoch: 1, first: 1, last: 1 };
        host.send(Lane::Drain, Frame { message, payload: payload.freeze() });
        let ToHost::Committed { seq: 1, .. } = host.notice().await.unwrap() else { panic!() };
    };
    commit(a.volume, payload).await;
    let attach_b = |request| ToStore::Attach {
        request,
        name: "b".into(),
        host: HostId(7),
        journal: None,
        take_over: false,
    };
    let reply = host.call(Lane::Control, attach_b).await.unwrap().message;
    let ToHost::Attached { result: Ok(b), .. } = reply else { panic!("{reply:?}") };
    let object = STAGED_BIT | 1;
    let stage = async |into| {
        let stage = |request| {
            let (volume, epoch, lba) = (a.volume, 1, 99);
            ToStore::Stage { request, volume, epoch, range, into, lba, object }
        };
        let reply = host.call(Lane::ReadAhead, stage).await.unwrap().message;
        let ToHost::Staged { result, .. } = reply else { panic!("{reply:?}") };
        result
    };
    assert_eq!(stage(VolumeId(1)).await, Err(StageError::Unsupported));
    let runs = stage(b.volume).await.unwrap();
    assert_eq!(runs, [StagedRun::Data { sectors: 16, offset: 0 }]);
    assert_eq!(stage(b.volume).await, Err(StageError::Exists));
    let data = StagedData { object, offset: 0, record: Range::new(99, 16) };
    let mut payload = BytesMut::new();
    record::encode_staged(b.volume, 1, 1, Range::new(100, 15), data, &mut payload);
    commit(b.volume, payload).await;
    for volume in [a.volume, b.volume] {
        let detach = |request| ToStore::Detach { request, volume, epoch: 1 };
        host.call(Lane::Control, detach).await.unwrap();
    }
    host.close().await;
    store.volume(&["delete", "a"]).await.unwrap();
    store.stop().await;

    longhaul::check::check(dir.path(), None, false).unwrap();
    let store = start(dir.path()).await;
    let file = dir.path().join("exported");
    store.volume(&["export", "b", file.to_str().unwrap()]).await.unwrap();
    let bytes = std::fs::read(&file).unwrap();
    for (sector, bytes) in bytes.chunks(512).enumerate() {
        let expected = if (100..115).contains(&sector) { 0xab } else { 0 };
        assert!(bytes.iter().all(|byte| *byte == expected), "sector {sector}");
    }
    store.volume(&["delete", "b", "--now"]).await.unwrap();
    store.stop().await;
    let left = |dir: &Path| std::fs::read_dir(dir).map_or(0, |entries| entries.count());
    let objects = dir.path().join("objects");
    assert_eq!(left(&objects.join(format!("v/{}/staged", b.volume))), 0);
}

async fn sizes(requests: &Requests) -> Vec<(String, u64)> {
    let VolumeReply::List(list) = requests.volume(VolumeOperation::List).await.unwrap() else {
        panic!()
    };
    list.into_iter().map(|info| (info.name, info.sectors)).collect()
}

#[tokio::test]
async fn volumes_grow_while_attached_and_a_restarted_store_lists_them_so() {
    let dir = tempfile::tempdir().unwrap();
    let store = start(dir.path()).await;
    store.volume(&["create", "a", "--size", "1MiB"]).await.unwrap();
    store.volume(&["create", "b", "--size", "1MiB", "--block-size", "4096"]).await.unwrap();
    let host = store.requests().await;
    attach(&host, 7).await.unwrap();
    store.volume(&["resize", "a", "3MiB"]).await.unwrap();
    let ToHost::Resized { sectors, .. } = host.notice().await.unwrap() else { panic!() };
    assert_eq!(sectors, 3 << 11);
    store.volume(&["resize", "a", "3MiB", "--json"]).await.unwrap();
    store.volume(&["resize", "b", "2MiB"]).await.unwrap();
    for (args, why) in [
        (["resize", "a", "2MiB"], "resize --force"),
        (["resize", "a", "3145729"], "multiple of 512"),
        (["resize", "b", "2101760"], "multiple of 4096"),
        (["resize", "a", "6000000TiB"], "at most 4 EiB"),
        (["resize", "c", "3MiB"], "no such volume"),
    ] {
        let said = said(store.volume(&args).await);
        assert!(said.contains(why), "{args:?}: {said}");
    }
    let expected = [("a".to_owned(), 3 << 11), ("b".to_owned(), 2 << 11)];
    assert_eq!(sizes(&host).await, expected);
    host.close().await;
    store.stop().await;

    // Without opening anything, and then as the log says.
    let store = start(dir.path()).await;
    let requests = store.requests().await;
    assert_eq!(sizes(&requests).await, expected);
    assert!(store.view.metrics().await.contains("longhaul_store_volumes_open 0"));
    assert_eq!(attach(&requests, 8).await.unwrap().sectors, 3 << 11);
    assert_eq!(sizes(&requests).await, expected);
    requests.close().await;
    store.stop().await;
    longhaul::check::check(dir.path(), None, true).unwrap();
}

#[tokio::test]
async fn one_store_over_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let store = start(dir.path()).await;
    let data = Location::Directory(dir.path().into());
    let options = Options {
        data: &data,
        state: dir.path(),
        listen: "127.0.0.1:0".parse().unwrap(),
        advertise: None,
        cache_bytes: 0,
        cache_dir: None,
        map_memory: MAP_MEMORY,
        collect: None,
        delete_delay: Duration::from_secs(600),
        new_ca: false,
        scrub: Default::default(),
        delete_grace: Duration::from_secs(3600),
    };
    let error = format!("{:#}", Store::start(&options).await.err().unwrap());
    assert!(error.contains(&format!("pid {}", std::process::id())), "{error}");
    store.stop().await;
    std::fs::remove_file(dir.path().join(STORE_FILE)).unwrap();
    let error = format!("{:#}", Store::start(&options).await.err().unwrap());
    assert!(error.contains("no longhaul-store.json"), "{error}");
}

#[tokio::test]
async fn an_attached_volume_is_neither_deleted_nor_imported_into() {
    let dir = tempfile::tempdir().unwrap();
    let store = start(dir.path()).await;
    store.volume(&["create", "a", "--size", "1MiB"]).await.unwrap();
    let host = store.requests().await;
    let attached = attach(&host, 7).await.unwrap();
    let image = dir.path().join("image");
    std::fs::write(&image, [1; 512]).unwrap();
    let image = image.to_str().unwrap();
    assert!(said(store.volume(&["delete", "a"]).await).contains("stop that host"));
    assert!(said(store.volume(&["import", "a", image]).await).contains("stop that host"));

    let message = ToStore::Announce {
        volume: attached.volume,
        epoch: attached.epoch,
        replace: true,
        entries: vec![Announced { range: Range::new(8, 8), seq: 1 }],
    };
    host.send(Lane::Control, message.into());
    host.close().await;
    let requests = store.requests().await;
    // The store may notice the end of the host's session a little later.
    let lost = loop {
        let operation = VolumeOperation::Lost { name: "a".into(), from_lba: 0 };
        match requests.volume(operation).await.unwrap() {
            VolumeReply::Lost { connected: false, ranges, .. } => break ranges,
            _ => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    assert_eq!(lost, [Range::new(8, 8)]);
    let refused = attach(&requests, 8).await.unwrap_err();
    assert!(matches!(refused, AttachError::LossPending { bytes: 4096, .. }), "{refused}");
    store.volume(&["lost", "a", "--json"]).await.unwrap();
    assert!(said(store.volume(&["delete", "a"]).await).contains("accept-loss a"));
    store.volume(&["accept-loss", "a"]).await.unwrap();
    store.volume(&["delete", "a", "--now"]).await.unwrap();
    requests.close().await;
    store.stop().await;
    assert!(!dir.path().join("objects/v").exists(), "a store that stops finishes a removal");
}

#[tokio::test]
async fn an_image_comes_out_as_it_went_in() {
    let dir = tempfile::tempdir().unwrap();
    let store = start(dir.path()).await;
    store.volume(&["create", "a", "--size", "64MiB"]).await.unwrap();
    // Data, holes, zeroes, and an end within a sector.
    let (image, copy) = (dir.path().join("image"), dir.path().join("copy"));
    let file = std::fs::File::create(&image).unwrap();
    {
        use std::os::unix::fs::FileExt as _;
        let mut data = vec![0; 9 << 20];
        let mut random = fastrand::Rng::with_seed(1);
        random.fill(&mut data);
        data[1 << 20..2 << 20].fill(0);
        data[(5 << 20) + 700..(5 << 20) + 40_000].fill(0);
        file.write_all_at(&data, 0).unwrap();
        file.write_all_at(&data[..100_001], 40 << 20).unwrap();
    }
    let mut expected = std::fs::read(&image).unwrap();
    expected.resize(64 << 20, 0);
    let (image, out) = (image.to_str().unwrap(), copy.to_str().unwrap());
    store.volume(&["import", "a", image]).await.unwrap();
    store.volume(&["export", "a", out]).await.unwrap();
    assert!(std::fs::read(&copy).unwrap() == expected, "the copy differs");
    {
        use std::os::unix::fs::MetadataExt as _;
        let allocated = std::fs::metadata(&copy).unwrap().blocks() * 512;
        assert!(allocated < 16 << 20, "{allocated} bytes are not sparse");
    }
    // A second image replaces all of the first, and the store starts anew in between.
    store.stop().await;
    let store = start(dir.path()).await;
    std::fs::write(dir.path().join("second"), [3; 5000]).unwrap();
    let second = dir.path().join("second");
    let asked = said(store.volume(&["import", "a", second.to_str().unwrap()]).await);
    assert!(asked.contains("has data") && asked.contains("--yes"), "{asked}");
    store.volume(&["import", "a", second.to_str().unwrap(), "--yes"]).await.unwrap();
    store.volume(&["export", "a", out, "--json", "--force"]).await.unwrap();
    let mut expected = vec![3; 5000];
    expected.resize(64 << 20, 0);
    assert!(std::fs::read(&copy).unwrap() == expected, "the second copy differs");
    std::fs::File::create(&second).unwrap().set_len(65 << 20).unwrap();
    let error = said(store.volume(&["import", "a", second.to_str().unwrap()]).await);
    assert!(error.contains("only 67108864"), "{error}");
    store.stop().await;
}

#[tokio::test]
async fn the_admin_view_shows_volumes_and_sessions() {
    use longhaul_api::admin::Report as _;
    let dir = tempfile::tempdir().unwrap();
    let store = start(dir.path()).await;
    store.volume(&["create", "a", "--size", "1MiB"]).await.unwrap();
    let host = store.requests().await;
    attach(&host, 7).await.unwrap();
    let metrics = store.view.metrics().await;
    assert!(metrics.contains("longhaul_store_volume_attached{volume=\"a\"} 1"), "{metrics}");
    assert!(metrics.contains("longhaul_store_sessions 1"), "{metrics}");
    assert!(metrics.contains("longhaul_store_datagram_requests_total 0"), "{metrics}");
    let status = store.view.status().await.unwrap();
    assert_eq!(status["volumes"][0]["live"]["epoch"], 1);
    assert!(store.view.ready().await.is_empty());
    let view = store.view.clone();
    host.close().await;
    store.stop().await;
    assert_eq!(view.ready().await[0].reason, "shutting-down");
    assert!(view.live().await.is_ok() && view.status().await.is_err());
}

#[tokio::test]
async fn a_volume_that_nobody_uses_takes_no_memory_and_opens_again() {
    async fn open(store: &Running) -> usize {
        use longhaul_api::admin::Report as _;
        let metrics = store.view.metrics().await;
        let line = metrics.lines().find_map(|l| l.strip_prefix("longhaul_store_volumes_open "));
        line.unwrap().parse().unwrap()
    }
    async fn until_open(store: &Running, count: usize) {
        let waiting = async {
            while open(store).await != count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(120), waiting).await.unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    let store = start_with(dir.path(), |store| {
        store.actor.inputs.look = tokio::time::interval(Duration::from_millis(50));
    })
    .await;
    for name in ["a", "b", "c"] {
        store.volume(&["create", name, "--size", "1MiB"]).await.unwrap();
    }
    let image = dir.path().join("image");
    std::fs::write(&image, [3; 5000]).unwrap();
    for name in ["b", "c"] {
        store.volume(&["import", name, image.to_str().unwrap()]).await.unwrap();
    }
    // The one that a host has attached stays, whether the host says anything or not.
    let host = store.requests().await;
    let attached = attach(&host, 7).await.unwrap();
    until_open(&store, 1).await;
    let requests = store.requests().await;
    let VolumeReply::List(list) = requests.volume(VolumeOperation::List).await.unwrap() else {
        panic!()
    };
    let live: Vec<_> = list.iter().map(|info| info.live.as_ref().unwrap()).collect();
    assert!(live[0].connected && live[1].clean && !live[1].connected, "{live:?}");
    assert_eq!(live[1].mapped_bytes, 5120, "what was known of it is still said");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(open(&store).await, 1, "neither a list opens one, nor is an attached one closed");

    let copy = dir.path().join("copy");
    store.volume(&["export", "b", copy.to_str().unwrap()]).await.unwrap();
    assert_eq!(std::fs::read(&copy).unwrap()[..5000], [3; 5000]);
    store.volume(&["delete", "c"]).await.unwrap();
    until_open(&store, 1).await;

    // A host with a broken connection finds its epoch. The store does not forget a host that owes
    // writes.
    host.close().await;
    until_open(&store, 0).await;
    let host = store.requests().await;
    let (volume, epoch) = (attached.volume, attached.epoch);
    let resume = |request| ToStore::Resume { request, volume, epoch, host: HostId(7) };
    let reply = host.call(Lane::Control, resume).await.unwrap();
    let ToHost::Attached { result: Ok(resumed), .. } = reply.message else { panic!("{reply:?}") };
    assert_eq!(resumed, attached);
    let entries = vec![Announced { range: Range::new(8, 8), seq: 1 }];
    let message = ToStore::Announce { volume, epoch, replace: true, entries };
    host.send(Lane::Control, message.into());
    host.close().await;
    // Longer than announcements take to be on record.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(open(&store).await, 1);
    requests.close().await;
    store.stop().await;
}

#[tokio::test]
async fn a_host_resumes_after_a_restart_of_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let store = start(dir.path()).await;
    store.volume(&["create", "a", "--size", "1MiB"]).await.unwrap();
    let credential = Credential::load(&store.credential()).unwrap();
    let address = store.address.to_string();
    let (client, mut events) = Client::start(credential, Some(address), Transport::Auto).unwrap();
    assert!(matches!(events.recv().await, Some(LinkEvent::Up { .. })));
    let attach = ToStore::Attach {
        request: 1,
        name: "a".into(),
        host: HostId(7),
        journal: None,
        take_over: false,
    };
    client.send(Lane::Control, attach.into());
    let Some(LinkEvent::Frame(frame)) = events.recv().await else { panic!() };
    let ToHost::Attached { result: Ok(attached), .. } = frame.message else { panic!() };
    let (volume, epoch) = (attached.volume, attached.epoch);
    let mut payload = bytes::BytesMut::new();
    record::encode_data(volume, epoch, 1, Range::new(0, 8), &[5; 4096], &mut payload);
    let message = ToStore::Batch { volume, epoch, first: 1, last: 1 };
    client.send(Lane::Drain, Frame { message, payload: payload.freeze() });
    let Some(LinkEvent::Frame(frame)) = events.recv().await else { panic!() };
    assert_eq!(frame.message, ToHost::Committed { volume, epoch, seq: 1 });
    let listen = store.address;
    store.stop().await;
    assert!(matches!(events.recv().await, Some(LinkEvent::Down { .. })));
    while std::net::UdpSocket::bind(listen).is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let data = Location::Directory(dir.path().into());
    let options = Options {
        data: &data,
        state: dir.path(),
        listen,
        advertise: None,
        cache_bytes: 0,
        cache_dir: None,
        map_memory: MAP_MEMORY,
        collect: None,
        delete_delay: Duration::from_secs(600),
        new_ca: false,
        scrub: Default::default(),
        delete_grace: Duration::from_secs(3600),
    };
    let store = Store::start(&options).await.unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let task = tokio::spawn(store.run(
        async {
            let _ = stopped.await;
        },
        std::future::pending(),
    ));
    // How often it tried in vain meanwhile is chance.
    while !matches!(events.recv().await.unwrap(), LinkEvent::Up { .. }) {}
    let resume = ToStore::Resume { request: 2, volume, epoch, host: HostId(7) };
    client.send(Lane::Control, resume.into());
    // The place of the committed data comes before its size.
    let Some(LinkEvent::Frame(frame)) = events.recv().await else { panic!() };
    let second = ReplicaProgress::None;
    assert_eq!(frame.message, ToHost::Replica { volume, epoch, progress: second });
    let Some(LinkEvent::Frame(frame)) = events.recv().await else { panic!() };
    let ToHost::Attached { result: Ok(resumed), .. } = frame.message else { panic!("{frame:?}") };
    assert_eq!((resumed.epoch, resumed.committed), (epoch, 1));
    tokio::task::spawn_blocking(move || client.close()).await.unwrap();
    stop.send(()).unwrap();
    task.await.unwrap().unwrap();
}

#[tokio::test]
async fn directories_of_others_are_refused_and_left_alone() {
    async fn refused(data: &Path, state: &Path) -> String {
        let listen = "127.0.0.1:0".parse().unwrap();
        let location = &Location::Directory(data.into());
        let (advertise, cache_bytes, cache_dir) = (None, 0, None);
        let options = Options {
            data: location,
            state,
            listen,
            advertise,
            cache_bytes,
            cache_dir,
            map_memory: MAP_MEMORY,
            collect: None,
            delete_delay: Duration::from_secs(600),
            new_ca: false,
            scrub: Default::default(),
            delete_grace: Duration::from_secs(3600),
        };
        let before = names(data);
        let error = format!("{:#}", Store::start(&options).await.err().expect("refused"));
        assert_eq!(names(data), before, "nothing was written");
        error
    }
    fn names(dir: &Path) -> Vec<std::ffi::OsString> {
        let mut names: Vec<_> =
            std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }
    let host = tempfile::tempdir().unwrap();
    drop(longhaul_host::state::StateDir::open(host.path()).unwrap());
    let error = refused(host.path(), host.path()).await;
    assert!(error.contains("state directory of a host") && error.contains("--data"), "{error}");
    let fresh = tempfile::tempdir().unwrap();
    let error = refused(fresh.path(), host.path()).await;
    assert!(error.contains("--state"), "{error}");
    std::fs::write(fresh.path().join("holiday.jpg"), "x").unwrap();
    let error = refused(fresh.path(), fresh.path()).await;
    assert!(error.contains("holiday.jpg") && error.contains("longhaul-store.json"), "{error}");

    // Leftovers of an unfinished start are no reason.
    std::fs::remove_file(fresh.path().join("holiday.jpg")).unwrap();
    for name in ["lock", "longhaul-store.json.17.tmp"] {
        std::fs::write(fresh.path().join(name), "").unwrap();
    }
    for name in ["credentials", "lost+found"] {
        std::fs::create_dir(fresh.path().join(name)).unwrap();
    }
    let store = start(fresh.path()).await;
    store.stop().await;
    let error = longhaul_host::state::StateDir::open(fresh.path()).err().unwrap().to_string();
    assert!(error.contains("data directory of a store"), "{error}");
    assert!(!fresh.path().join("volumes").exists());
    // With its marker lost it is still not taken for an empty one.
    std::fs::remove_file(fresh.path().join(STORE_FILE)).unwrap();
    let error = refused(fresh.path(), fresh.path()).await;
    assert!(error.contains("`objects`") || error.contains("`tmp`"), "{error}");
}
