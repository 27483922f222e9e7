//! What tenants may do in a second, as links see it.

use super::*;
use longhaul_core::wire::link::{TenantLimits, TenantOperation};
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_over_tcp_lives_while_what_is_drained_waits() {
    let dir = tempfile::tempdir().unwrap();
    let limits = TenantLimits { max_rate: Some(64 << 10), ..TenantLimits::default() };
    let (store, requests) = limited(dir.path(), limits).await;
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
    let (volume, epoch) = (attached.volume, attached.epoch);
    // More than the store takes, and all sockets on the way.
    let last = 48;
    let data = vec![5; 1 << 20];
    for seq in 1..=last {
        let mut payload = BytesMut::new();
        record::encode_data(epoch, seq, Range::new(seq * 2048, 2048), &data, &mut payload);
        let message = ToStore::Batch { volume, epoch, first: seq, last: seq };
        client.send(Lane::Drain, Frame { message, payload: payload.freeze() });
    }
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
    tokio::task::spawn_blocking(move || client.close()).await.unwrap();
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
        let import =
            crate::volume::import::run_with(&requests, "acme/a", &image, None, bar.clone());
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
