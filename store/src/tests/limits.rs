//! The limits of tenants a second, as links see them.

use super::*;
use longhaul_api::admin;
use longhaul_core::block::{Epoch, Seq, VolumeId};
use longhaul_core::wire::link::{
    SnapshotError, SnapshotKey, SnapshotOperation, TenantLimits, TenantOperation, VolumeError,
};
use std::time::Instant;

async fn set(requests: &Requests, limits: TenantLimits) {
    let set = TenantOperation::Set { tenant: "acme".into(), limits };
    requests.tenant(set).await.unwrap();
}

/// A store with a volume `acme/a`, whose tenant has those limits.
async fn limited(dir: &Path, limits: TenantLimits) -> (Running, Requests) {
    let store = start(dir).await;
    let requests = store.requests().await;
    let create = TenantOperation::Create { tenant: "acme".into(), limits };
    requests.tenant(create).await.unwrap();
    store.volume(&["create", "acme/a", "--size", "256MiB"]).await.unwrap();
    (store, requests)
}

/// A host with `acme/a` attached that does what a test says.
struct Puppet {
    client: Client,
    volume: VolumeId,
    epoch: Epoch,
}

impl Puppet {
    /// Ships as many batches of 1 MiB, ignoring all notices.
    fn ship(&self, last: Seq) {
        let (volume, epoch) = (self.volume, self.epoch);
        let data = vec![5; 1 << 20];
        for seq in 1..=last {
            let mut payload = BytesMut::new();
            let range = Range::new(seq % 128 * 2048, 2048);
            record::encode_data(volume, epoch, seq, range, &data, &mut payload);
            let message = ToStore::Batch { volume, epoch, first: seq, last: seq };
            self.client.send(Lane::Drain, Frame { message, payload: payload.freeze() });
        }
    }
}

async fn attached(store: &Running) -> (Puppet, mpsc::UnboundedReceiver<LinkEvent>) {
    let credential = Credential::load(&store.credential()).unwrap();
    let address = store.address.to_string();
    let (client, mut events) = Client::start(credential, Some(address), Transport::Tcp).unwrap();
    assert!(matches!(events.recv().await, Some(LinkEvent::Up { .. })));
    let name = "acme/a".to_owned();
    let attach =
        ToStore::Attach { request: 1, name, host: HostId(7), journal: None, take_over: false };
    client.send(Lane::Control, attach.into());
    let Some(LinkEvent::Frame(frame)) = events.recv().await else { panic!() };
    let ToHost::Attached { result: Ok(attached), .. } = frame.message else { panic!("{frame:?}") };
    (Puppet { client, volume: attached.volume, epoch: attached.epoch }, events)
}

/// Of a host that does not stop when it hears that there is no room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_holds_at_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let quota = 4 << 20;
    let limits = TenantLimits { max_stored: Some(quota), ..TenantLimits::default() };
    let (store, requests) = limited(dir.path(), limits).await;
    let (host, mut events) = attached(&store).await;
    let last = 160;
    host.ship(last);
    // Data beyond quota and grace does not come, and nothing fails. The notice of the full quota
    // comes early.
    let most = (quota + longhaul_base::limits::QUOTA_GRACE_BYTES) >> 20;
    let (mut committed, mut told) = (0, false);
    let quiet = Duration::from_secs(8);
    while committed < most / 2 || committed > most {
        let Some(LinkEvent::Frame(frame)) = events.recv().await else { panic!() };
        match frame.message {
            ToHost::Committed { seq, .. } => committed = seq,
            ToHost::Room { room, .. } => told |= !room,
            other => panic!("{other:?}"),
        }
        assert!(committed <= most, "{committed} MiB of {most}");
    }
    let until = Instant::now() + quiet;
    while Instant::now() < until {
        let event = tokio::time::timeout(Duration::from_secs(1), events.recv()).await;
        let Ok(event) = event else { continue };
        let Some(LinkEvent::Frame(frame)) = event else { panic!("{event:?}") };
        match frame.message {
            ToHost::Committed { seq, .. } => committed = seq,
            ToHost::Room { room, .. } => told |= !room,
            other => panic!("{other:?}"),
        }
        assert!(committed <= most, "{committed} MiB of {most}");
    }
    assert!(told);
    // With more room it goes on where it stopped.
    set(&requests, TenantLimits::default()).await;
    while committed < last {
        let Some(LinkEvent::Frame(frame)) = events.recv().await else { panic!() };
        if let ToHost::Committed { seq, .. } = frame.message {
            committed = seq;
        }
    }
    tokio::task::spawn_blocking(move || host.client.close()).await.unwrap();
    requests.close().await;
    store.stop().await;
}

#[tokio::test]
async fn usage_of_snapshots_that_are_not_there_opens_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (store, requests) = limited(dir.path(), TenantLimits::default()).await;
    let asking = (0..40_u64).map(|n| {
        let key = |m: u64| SnapshotKey {
            id: VolumeId(u128::from(n << 8 | m) + 1),
            segment: n + m,
            sectors: 1 << 19,
        };
        let snapshots = (0..64).map(key).collect();
        let range = Range::new(0, 1 << 19);
        let operation = SnapshotOperation::Usage { snapshots, volume: None, range };
        requests.volume(VolumeOperation::Snapshot { name: "acme/a".into(), operation })
    });
    for refused in futures_util::future::join_all(asking).await {
        let error = refused.unwrap_err();
        let error = error.downcast_ref::<VolumeError>();
        assert_eq!(error, Some(&VolumeError::Snapshot(SnapshotError::NotFound)));
    }
    let metrics = admin::Report::metrics(&*store.view).await;
    assert!(metrics.contains("longhaul_store_volumes_open 1\n"), "{metrics}");
    requests.close().await;
    store.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_over_tcp_lives_while_what_is_drained_waits() {
    let dir = tempfile::tempdir().unwrap();
    let limits = TenantLimits { max_rate: Some(64 << 10), ..TenantLimits::default() };
    let (store, requests) = limited(dir.path(), limits).await;
    let (client, mut events) = attached(&store).await;
    // More than the store takes, and all sockets on the way.
    let last = 48;
    client.ship(last);
    // Longer than a peer may be silent.
    let event = tokio::time::timeout(Duration::from_secs(8), events.recv()).await;
    assert!(event.is_err(), "{event:?}");
    set(&requests, TenantLimits::default()).await;
    loop {
        let Some(LinkEvent::Frame(frame)) = events.recv().await else { panic!() };
        let ToHost::Committed { seq, .. } = frame.message else { panic!("{frame:?}") };
        if seq == last {
            break;
        }
    }
    tokio::task::spawn_blocking(move || client.client.close()).await.unwrap();
    requests.close().await;
    store.stop().await;
}

#[tokio::test]
async fn the_control_lane_does_not_wait_and_is_paid_for() {
    let dir = tempfile::tempdir().unwrap();
    let limits = TenantLimits { max_iops: Some(10), ..TenantLimits::default() };
    let (store, requests) = limited(dir.path(), limits).await;
    let VolumeReply::Volume(info) =
        requests.volume(VolumeOperation::Show { name: "acme/a".into() }).await.unwrap()
    else {
        panic!()
    };
    let (volume, range) = (info.id, Range::new(0, 8));
    let read = async |lane| {
        let read = |request| ToStore::Read { request, volume, epoch: 0, range };
        let ToHost::Data { result, .. } = requests.call(lane, read).await.unwrap().message else {
            panic!()
        };
        result.unwrap();
    };
    // With the first the limits become known, and the bucket is empty.
    read(Lane::Read).await;
    let begun = Instant::now();
    for _ in 0..30 {
        read(Lane::Control).await;
    }
    read(Lane::Read).await;
    // A second's worth of the thirty may have come in.
    assert!(begun.elapsed() >= Duration::from_secs(2), "{:?}", begun.elapsed());
    requests.close().await;
    store.stop().await;
}

#[tokio::test]
async fn an_import_shows_what_is_committed() {
    let (dir, images) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let limits = TenantLimits { max_rate: Some(4 << 20), ..TenantLimits::default() };
    let (store, requests) = limited(dir.path(), limits).await;
    let observer = store.requests().await;
    let image = images.path().join("image");
    std::fs::write(&image, vec![7; 14 << 20]).unwrap();
    let bar = indicatif::ProgressBar::hidden();
    let mut seen = 0;
    {
        let given = longhaul_api::keys::Given::new(None, None, false);
        let import = longhaul::volume::import::run_with(
            &requests,
            "acme/a",
            &image,
            &given,
            (bar.clone(), false),
        );
        let mut import = std::pin::pin!(import);
        loop {
            tokio::select! {
                done = &mut import => break drop(done.unwrap()),
                () = tokio::time::sleep(Duration::from_millis(20)) => {}
            }
            let shown = bar.position();
            let show = VolumeOperation::Show { name: "acme/a".into() };
            let VolumeReply::Volume(info) = observer.volume(show).await.unwrap() else { panic!() };
            let committed = info.live.map_or(0, |live| live.mapped_bytes);
            assert!(shown <= committed, "{shown} bytes are shown and {committed} committed");
            seen = shown.max(seen);
        }
    }
    assert!(seen > 0, "it showed nothing on the way");
    requests.close().await;
    observer.close().await;
    store.stop().await;
}

#[tokio::test]
async fn batches_come_in_their_lane_only() {
    let dir = tempfile::tempdir().unwrap();
    let (store, requests) = limited(dir.path(), TenantLimits::default()).await;
    let (host, mut events) = attached(&store).await;
    let (volume, epoch) = (host.volume, host.epoch);
    let mut payload = BytesMut::new();
    record::encode_data(volume, epoch, 1, Range::new(0, 8), &[5; 4096], &mut payload);
    let message = ToStore::Batch { volume, epoch, first: 1, last: 1 };
    host.client.send(Lane::Control, Frame { message, payload: payload.freeze() });
    loop {
        let event = tokio::time::timeout(Duration::from_secs(120), events.recv()).await.unwrap();
        match event.unwrap() {
            LinkEvent::Down { .. } => break,
            LinkEvent::Frame(frame) => {
                assert!(!matches!(frame.message, ToHost::Committed { .. }), "{frame:?}");
            }
            _ => {}
        }
    }
    tokio::task::spawn_blocking(move || host.client.close()).await.unwrap();
    requests.close().await;
    store.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_keep_to_the_quota() {
    let dir = tempfile::tempdir().unwrap();
    // All that there is room for: the copies below add up to more.
    let limits = TenantLimits { max_stored: Some(8 << 20), ..TenantLimits::default() };
    let (store, requests) = limited(dir.path(), limits).await;
    let (host, mut events) = attached(&store).await;
    host.ship(4);
    let mut committed = 0;
    while committed < 4 {
        let Some(LinkEvent::Frame(frame)) = events.recv().await else { panic!() };
        if let ToHost::Committed { seq, .. } = frame.message {
            committed = seq;
        }
    }
    let (volume, epoch, range) = (host.volume, host.epoch, Range::new(2048, 8192));
    let most = ((8 << 20) + longhaul_base::limits::QUOTA_GRACE_BYTES) >> 22;
    let (mut staged, mut refused) = (0, 0);
    for request in 0..2 * most {
        let object = STAGED_BIT | (request + 1);
        let stage = ToStore::Stage { request, volume, epoch, range, into: volume, lba: 0, object };
        host.client.send(Lane::ReadAhead, stage.into());
        let result = loop {
            let Some(LinkEvent::Frame(frame)) = events.recv().await else { panic!() };
            if let ToHost::Staged { result, .. } = frame.message {
                break result;
            }
        };
        match result {
            Ok(_) => staged += 1,
            Err(StageError::Unsupported) => refused += 1,
            Err(other) => panic!("{other:?}"),
        }
    }
    assert!(staged > 0 && staged <= most && refused > 0, "{staged} copies, {refused} refused");
    tokio::task::spawn_blocking(move || host.client.close()).await.unwrap();
    requests.close().await;
    store.stop().await;
}
