//! Host and store over loopback, in one process.

mod early;
mod isolation;
mod measure;
mod over_tcp;
mod threads;

use super::quic::Acceptor;
use super::*;
use crate::credential::{self, Credential, Issued};
use crate::relay::{Relay, Shape};
use bytes::Bytes;
use longhaul_core::block::{Range, VolumeId};
use longhaul_core::wire::link::{
    Frame, Lane, MAX_VERSION, MIN_VERSION, ToHost, ToStore, VolumeError, VolumeOperation,
    VolumeReply,
};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedReceiver;

struct Store {
    dir: tempfile::TempDir,
    listener: Listener,
    address: std::net::SocketAddr,
}

fn store_at(dir: tempfile::TempDir, address: &str) -> Store {
    store_of(dir, address, (MIN_VERSION, MAX_VERSION), &quic::GENERATIONS)
}

fn store_of(
    dir: tempfile::TempDir,
    address: &str,
    versions: (u16, u16),
    generations: &[&[u8]],
) -> Store {
    store_on(1, dir, address, versions, generations)
}

/// A store with so many link threads.
fn store_on(
    threads: usize,
    dir: tempfile::TempDir,
    address: &str,
    versions: (u16, u16),
    generations: &[&[u8]],
) -> Store {
    let stores = vec!["127.0.0.1:1".to_owned()];
    let identity = credential::prepare(dir.path(), &stores, "").unwrap();
    let issued = Arc::new(Issued::new(dir.path()));
    let sockets = Sockets::bind(address.parse().unwrap(), threads).unwrap();
    let address = sockets.address();
    let (udp, tcp) = sockets.split();
    let acceptor = Acceptor::with_generations(udp, &identity, issued.clone(), generations).unwrap();
    let mut listener =
        Listener::with_versions(acceptor, issued.clone(), vec![address.to_string()], versions);
    // If a store starts again, the one before may still have the port.
    if let Ok(tcp) = tcp {
        listener.add_tcp(tcp::Acceptor::over(tcp, &identity, issued.clone()).unwrap());
    }
    Store { dir, listener, address }
}

fn store() -> Store {
    store_at(tempfile::tempdir().unwrap(), "127.0.0.1:0")
}

fn store_speaking(versions: (u16, u16)) -> Store {
    store_of(tempfile::tempdir().unwrap(), "127.0.0.1:0", versions, &quic::GENERATIONS)
}

fn credential_of(dir: &Path) -> Credential {
    Credential::load(&dir.join("credentials/admin.toml")).unwrap()
}

impl Store {
    fn credential(&self) -> Credential {
        credential_of(self.dir.path())
    }

    async fn opened(&mut self) -> u64 {
        loop {
            if let ListenerEvent::Opened { session, .. } = self.listener.event().await.unwrap() {
                return session;
            }
        }
    }
}

/// How long something may take that a test waits for: the machine may be busy.
const LIMIT: Duration = Duration::from_secs(120);

/// The next one, but for those that say that an attempt begins.
async fn event(events: &mut UnboundedReceiver<LinkEvent>) -> LinkEvent {
    loop {
        let next = tokio::time::timeout(LIMIT, events.recv());
        match next.await.unwrap().unwrap() {
            // A credential from before the store had an address learns it here.
            LinkEvent::Early | LinkEvent::Stores(_) => {}
            event => return event,
        }
    }
}

fn batch(bytes: usize) -> Frame<ToStore> {
    let message = ToStore::Batch { volume: VolumeId(1), epoch: 1, first: 1, last: 1 };
    Frame { message, payload: Bytes::from(vec![7; bytes]) }
}

fn read(request: u64) -> Frame<ToStore> {
    let range = Range::new(0, 16);
    ToStore::Read { request, volume: VolumeId(1), epoch: 1, range }.into()
}

fn data(request: u64, bytes: usize) -> Frame<ToHost> {
    let message = ToHost::Data { request, volume: VolumeId(1), result: Ok(Vec::new()) };
    Frame { message, payload: Bytes::from(vec![9; bytes]) }
}

#[tokio::test]
async fn frames_travel_both_ways_and_close_delivers_what_is_queued() {
    let mut store = store();
    let (client, mut events) =
        Client::start(store.credential(), Some(store.address.to_string()), Transport::Auto)
            .unwrap();
    let session = store.opened().await;
    assert!(matches!(event(&mut events).await, LinkEvent::Up { .. }));
    for (lane, bytes) in Lane::ALL.into_iter().zip([0, 1, 5000, 6 << 20]) {
        client.send(lane, batch(bytes));
        match store.listener.event().await.unwrap() {
            ListenerEvent::Frame { lane: got, frame, .. } => {
                assert_eq!((got, frame), (lane, batch(bytes)));
            }
            other => panic!("{other:?}"),
        }
        store.listener.send(session, lane, data(4, bytes));
        match event(&mut events).await {
            LinkEvent::Frame(frame) => assert_eq!(frame, data(4, bytes)),
            other => panic!("{other:?}"),
        }
    }
    let status = client.status();
    assert!(status.up && status.sent_bytes > 6 << 20 && status.received_bytes > 6 << 20);
    client.send(Lane::Drain, batch(3 << 20));
    tokio::task::spawn_blocking(move || client.close()).await.unwrap();
    let mut delivered = false;
    loop {
        match store.listener.event().await.unwrap() {
            ListenerEvent::Frame { frame, .. } => delivered |= frame == batch(3 << 20),
            ListenerEvent::Closed { reason, .. } => break assert_eq!(reason, "done"),
            ListenerEvent::Opened { .. } => panic!("opened again"),
        }
    }
    assert!(delivered);
    assert_eq!(store.listener.statistics().len(), 0);
}

/// A connection that has said Hello, its lanes, and the number of its session.
async fn connected(
    store: &mut Store,
    dialer: &mut quic::Dialer,
) -> (Box<dyn transport::Connection>, transport::Lanes, u64) {
    let connection = dialer.connect(store.address, CONNECT_TIMEOUT);
    let ((connection, lanes), session) = tokio::join!(
        async {
            let connection = connection.await.unwrap();
            let mut lanes = connection.open_lanes().await.unwrap();
            let hello = ToStore::Hello { min_version: 1, max_version: 1, software: "a".into() };
            send(&mut lanes, Lane::Control, hello.into()).await;
            (connection, lanes)
        },
        store.opened()
    );
    (connection, lanes, session)
}

/// Sends a frame without a payload.
async fn send(lanes: &mut transport::Lanes, lane: Lane, frame: Frame<ToStore>) {
    let mut chunks = [frame.encode_head().unwrap()];
    while lanes[lane as usize].send.write(&mut chunks).await.unwrap() == 0 {}
}

/// Moves frames of many sizes in all lanes at once, both ways.
async fn exchange(store: &mut Store, mut dialer: quic::Dialer) {
    let (connection, lanes, session) = connected(store, &mut dialer).await;
    let sizes = || (0..200_usize).map(|n| n * n * 7 % 90_000);
    let (_keep, urgent) = tokio::sync::watch::channel(false);
    let mut hosts = tokio::task::JoinSet::new();
    for (lane, streams) in Lane::ALL.into_iter().zip(lanes) {
        let (sender, queue) = tokio::sync::mpsc::unbounded_channel();
        sizes().for_each(|bytes| sender.send(batch(bytes)).unwrap());
        drop(sender);
        let urgent = urgent.clone();
        hosts.spawn(async move {
            lane::send_all::<ToStore, _>(
                lane,
                streams.send,
                queue,
                &lane::Backlog::default(),
                urgent,
            )
            .await
        });
        hosts.spawn(async move {
            let mut reader = lane::FrameReader::new(streams.receive);
            if lane == Lane::Control {
                reader.next::<ToHost>().await.unwrap().unwrap();
            }
            for bytes in sizes() {
                let frame = reader.next::<ToHost>().await.unwrap().unwrap();
                assert_eq!(frame, data(1, bytes));
            }
            Ok(())
        });
    }
    let mut expected = Lane::ALL.map(|_| sizes());
    for _ in 0..sizes().count() * Lane::ALL.len() {
        let ListenerEvent::Frame { lane, frame, .. } = store.listener.event().await.unwrap() else {
            panic!("it ended");
        };
        let bytes = expected[lane as usize].next().unwrap();
        assert_eq!(frame, batch(bytes));
        store.listener.send(session, lane, data(1, bytes));
    }
    while let Some(result) = hosts.join_next().await {
        result.unwrap().unwrap();
    }
    connection.close(CloseCode::Done, "done");
}

#[tokio::test]
async fn lanes_keep_order_over_several_streams() {
    let mut store = store();
    let dialer = quic::Dialer::new(&store.credential()).unwrap();
    let exchange = exchange(&mut store, dialer);
    tokio::time::timeout(Duration::from_secs(60), exchange).await.unwrap();
}

#[tokio::test]
async fn no_generation_in_common_is_refused_clearly() {
    let other: [&[u8]; 1] = [b"longhaul/9"];
    let versions = (MIN_VERSION, MAX_VERSION);
    let store = store_of(tempfile::tempdir().unwrap(), "127.0.0.1:0", versions, &other);
    let address = store.address.to_string();
    let error = Requests::connect(&store.credential(), Some(&address)).await.err().unwrap();
    assert!(format!("{error:#}").contains("of another generation"), "{error:#}");
}

#[tokio::test]
async fn the_newest_version_in_common_is_spoken() {
    let cases =
        [((1, 1), (1, 2), 1), ((1, 2), (1, 2), 2), ((1, 2), (1, 1), 1), ((2, 9), (1, 4), 4)];
    for (host, store, common) in cases {
        let mut store = store_speaking(store);
        let mut dialer = quic::Dialer::new(&store.credential()).unwrap();
        let connection = dialer.connect(store.address, LIMIT).await.unwrap();
        let [_, mut control, ..] = connection.open_lanes().await.unwrap();
        let (min_version, max_version) = host;
        let hello = ToStore::Hello { min_version, max_version, software: "a".into() };
        let mut chunks = [Frame::from(hello).encode_head().unwrap()];
        while control.send.write(&mut chunks).await.unwrap() == 0 {}
        let mut reader = lane::FrameReader::new(control.receive);
        let said = reader.next::<ToHost>().await.unwrap().unwrap().message;
        let ToHost::Hello { version, .. } = said else { panic!("{said:?}") };
        assert_eq!(version, Some(common));
        let session = store.opened().await;
        assert_eq!(store.listener.version(session), Some(common));
    }
}

#[tokio::test]
async fn no_version_in_common_is_said_at_the_host() {
    let store = store_speaking((70, 90));
    let address = store.address.to_string();
    let error = Requests::connect(&store.credential(), Some(&address)).await.err().unwrap();
    let error = format!("{error:#}");
    assert!(error.contains("versions 70 to 90") && error.contains("upgrade"), "{error}");
}

#[tokio::test]
async fn credentials_of_another_installation_are_refused_with_their_own_message() {
    let (ours, theirs) = (store(), store());
    let address = ours.address.to_string();
    let error = Requests::connect(&theirs.credential(), Some(&address)).await.err().unwrap();
    assert!(format!("{error:#}").contains("another CA"), "{error:#}");
}

#[tokio::test]
async fn withdrawn_credentials_are_refused_and_their_sessions_ended() {
    let mut store = store();
    let old = store.credential();
    let (client, mut events) =
        Client::start(old.clone(), Some(store.address.to_string()), Transport::Auto).unwrap();
    store.opened().await;
    assert!(matches!(event(&mut events).await, LinkEvent::Up { .. }));
    credential::rotate(store.dir.path()).unwrap();
    let LinkEvent::Down { reason } = event(&mut events).await else { panic!("still up") };
    assert!(reason.contains("withdrawn"), "{reason}");
    let address = store.address.to_string();
    let error = Requests::connect(&old, Some(&address)).await.err().unwrap();
    assert!(format!("{error:#}").contains("withdrawn"), "{error:#}");
    Requests::connect(&store.credential(), Some(&address)).await.unwrap().close().await;
    tokio::task::spawn_blocking(move || client.close()).await.unwrap();
}

#[tokio::test]
async fn a_store_that_is_not_there_is_named() {
    let store = store();
    let error = Requests::connect(&store.credential(), None).await.err().unwrap();
    let error = format!("{error:#}");
    assert!(error.contains("store at 127.0.0.1:1: no answer: is it running"), "{error}");
    let error = Requests::connect(&store.credential(), Some("nowhere")).await.err().unwrap();
    assert!(format!("{error:#}").contains("HOST:PORT"), "{error:#}");
}

#[tokio::test]
async fn a_request_gets_its_reply_or_the_stores_reason() {
    let mut store = store();
    let credential = store.credential();
    let address = store.address.to_string();
    let command = tokio::spawn(async move {
        let requests = Requests::connect(&credential, Some(&address)).await.unwrap();
        let list = requests.volume(VolumeOperation::List).await.unwrap();
        assert_eq!(list, VolumeReply::List(Vec::new()));
        let show = requests.volume(VolumeOperation::Show { name: "a".into() }).await;
        assert!(format!("{:#}", show.unwrap_err()).contains("no such volume"));
        let lost = requests.volume(VolumeOperation::List).await;
        assert!(format!("{:#}", lost.unwrap_err()).contains("lost the connection"));
    });
    let session = store.opened().await;
    for result in [Ok(VolumeReply::List(Vec::new())), Err(VolumeError::NotFound)] {
        let ListenerEvent::Frame { frame, .. } = store.listener.event().await.unwrap() else {
            panic!()
        };
        let ToStore::Volume { request, .. } = frame.message else { panic!() };
        let reply = ToHost::Volume { request, result };
        store.listener.send(session, Lane::Control, reply.into());
    }
    store.listener.event().await.unwrap();
    store.listener.shutdown().await;
    command.await.unwrap();
}

#[tokio::test]
async fn a_cut_is_noticed_in_seconds_and_the_link_comes_back() {
    let mut store = store();
    let relay =
        Relay::start("127.0.0.1:0".parse().unwrap(), store.address, Shape::default()).unwrap();
    let (client, mut events) =
        Client::start(store.credential(), Some(relay.address().to_string()), Transport::Auto)
            .unwrap();
    store.opened().await;
    assert!(matches!(event(&mut events).await, LinkEvent::Up { .. }));
    relay.change(|shape| shape.cut = true);
    assert!(matches!(event(&mut events).await, LinkEvent::Down { .. }));
    // Dropped, not kept for later.
    client.send(Lane::Drain, batch(100));
    relay.change(|shape| shape.cut = false);
    let mut next = event(&mut events).await;
    while matches!(next, LinkEvent::Unreachable) {
        next = event(&mut events).await;
    }
    assert!(matches!(next, LinkEvent::Up { .. }), "{next:?}");
    store.opened().await;
    client.send(Lane::Read, read(77));
    let ListenerEvent::Frame { frame, .. } = store.listener.event().await.unwrap() else {
        panic!()
    };
    assert!(matches!(frame.message, ToStore::Read { .. }), "{frame:?}");
    assert_eq!(client.status().reconnects, 1);
    tokio::task::spawn_blocking(move || client.close()).await.unwrap();
}

#[tokio::test]
async fn a_restarted_store_is_found_again() {
    let mut store = store();
    let (client, mut events) =
        Client::start(store.credential(), Some(store.address.to_string()), Transport::Auto)
            .unwrap();
    store.opened().await;
    assert!(matches!(event(&mut events).await, LinkEvent::Up { .. }));
    let Store { dir, listener, address } = store;
    listener.shutdown().await;
    let LinkEvent::Down { reason } = event(&mut events).await else { panic!("still up") };
    assert!(reason.contains("shutting down"), "{reason}");
    // In one process the old socket stays until the last connection has drained.
    let free = || std::net::UdpSocket::bind(address).is_ok();
    while !free() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut store = store_at(dir, &address.to_string());
    store.opened().await;
    // The link may have tried it while no store was there.
    let mut next = event(&mut events).await;
    while matches!(next, LinkEvent::Unreachable) {
        next = event(&mut events).await;
    }
    assert!(matches!(next, LinkEvent::Up { .. }), "{next:?}");
    tokio::task::spawn_blocking(move || client.close()).await.unwrap();
}

#[tokio::test]
async fn what_follows_hello_after_a_loss_takes_no_round_trip_of_its_own() {
    let mut store = store();
    let rtt = Duration::from_millis(400);
    let shape = Shape { delay: rtt / 2, ..Shape::default() };
    let relay = Relay::start("127.0.0.1:0".parse().unwrap(), store.address, shape).unwrap();
    let (client, mut events) =
        Client::start(store.credential(), Some(relay.address().to_string()), Transport::Auto)
            .unwrap();
    let mut session = store.opened().await;
    assert!(matches!(event(&mut events).await, LinkEvent::Up { .. }));
    let mut took = Vec::new();
    // Once is enough: the machine may have had no time for the others.
    for _ in 0..20 {
        store.listener.close_session(session, CloseCode::ShuttingDown, "for a moment");
        assert!(matches!(event(&mut events).await, LinkEvent::Down { .. }));
        let begun = Instant::now();
        assert!(matches!(event(&mut events).await, LinkEvent::Up { .. }));
        client.send(Lane::Control, read(1));
        loop {
            match store.listener.event().await.unwrap() {
                ListenerEvent::Opened { session: opened, .. } => session = opened,
                ListenerEvent::Frame { frame, .. } => break assert_eq!(frame, read(1)),
                ListenerEvent::Closed { .. } => {}
            }
        }
        took.push(begun.elapsed());
        // There, back, there; with a round trip for Hello it was one more. The first pause is 50 ms
        // at most.
        if begun.elapsed() < rtt * 2 + rtt / 4 {
            break;
        }
    }
    assert!(took.iter().any(|took| *took < rtt * 2 + rtt / 4), "{took:?}");
    tokio::task::spawn_blocking(move || client.close()).await.unwrap();
}

#[tokio::test]
async fn a_store_that_is_not_what_it_was_is_asked_first() {
    let mut store = store();
    let (client, mut events) =
        Client::start(store.credential(), Some(store.address.to_string()), Transport::Auto)
            .unwrap();
    store.opened().await;
    let LinkEvent::Up { version, .. } = event(&mut events).await else { panic!("not up") };
    assert_eq!(version, MAX_VERSION);
    let Store { dir, listener, address } = store;
    listener.shutdown().await;
    while std::net::UdpSocket::bind(address).is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let _store = store_of(dir, &address.to_string(), (70, 90), &quic::GENERATIONS);
    loop {
        match event(&mut events).await {
            LinkEvent::Unreachable => {
                if client.status().last_error.unwrap().contains("upgrade") {
                    break;
                }
            }
            // Taken for what it was once, at most, before it has said otherwise.
            LinkEvent::Up { .. }
            | LinkEvent::Down { .. }
            | LinkEvent::Early
            | LinkEvent::Stores(_) => {}
            LinkEvent::Frame(frame) => panic!("{frame:?}"),
        }
    }
    tokio::task::spawn_blocking(move || client.close()).await.unwrap();
}

#[tokio::test]
async fn a_credential_that_was_withdrawn_while_the_line_was_away_gets_nothing_through() {
    let mut store = store();
    let relay =
        Relay::start("127.0.0.1:0".parse().unwrap(), store.address, Shape::default()).unwrap();
    let (client, mut events) =
        Client::start(store.credential(), Some(relay.address().to_string()), Transport::Auto)
            .unwrap();
    store.opened().await;
    assert!(matches!(event(&mut events).await, LinkEvent::Up { .. }));
    relay.change(|shape| shape.cut = true);
    assert!(matches!(event(&mut events).await, LinkEvent::Down { .. }));
    credential::rotate(store.dir.path()).unwrap();
    // The store has seen the end of the session, too, so that nothing of it is to come.
    loop {
        if let ListenerEvent::Closed { .. } = store.listener.event().await.unwrap() {
            break;
        }
    }
    relay.change(|shape| shape.cut = false);
    loop {
        match event(&mut events).await {
            // The link takes the store for the former one, and sends the frames after Hello, ...
            LinkEvent::Early => {}
            LinkEvent::Up { .. } => client.send(Lane::Read, read(1)),
            LinkEvent::Down { reason } => assert!(reason.contains("withdrawn"), "{reason}"),
            LinkEvent::Unreachable => {
                if client.status().last_error.unwrap().contains("withdrawn") {
                    break;
                }
            }
            LinkEvent::Stores(_) => {}
            LinkEvent::Frame(frame) => panic!("{frame:?}"),
        }
    }
    // ... and never looked at.
    assert!(store.listener.try_event().is_none());
    tokio::task::spawn_blocking(move || client.close()).await.unwrap();
}

#[tokio::test]
async fn what_a_host_says_of_itself_is_bounded_and_escaped() {
    let mut store = store();
    let mut dialer = quic::Dialer::new(&store.credential()).unwrap();
    let connection = dialer.connect(store.address, Duration::from_secs(20)).await.unwrap();
    let mut lanes = connection.open_lanes().await.unwrap();
    let software = format!("\u{1b}[2J{}", "x".repeat(9000));
    let hello = ToStore::Hello { min_version: 1, max_version: 1, software };
    let mut chunks = [Frame::from(hello).encode_head().unwrap()];
    while lanes[Lane::Control as usize].send.write(&mut chunks).await.unwrap() == 0 {}
    let Some(ListenerEvent::Opened { software, .. }) = store.listener.event().await else {
        panic!()
    };
    assert!(software.starts_with("\\u{1b}[2Jxxx") && software.len() <= 256, "{software}");
}

#[tokio::test]
async fn the_end_of_a_short_cut_is_noticed_soon() {
    let mut store = store();
    let relay =
        Relay::start("127.0.0.1:0".parse().unwrap(), store.address, Shape::default()).unwrap();
    let (client, mut events) =
        Client::start(store.credential(), Some(relay.address().to_string()), Transport::Quic)
            .unwrap();
    let session = store.opened().await;
    assert!(matches!(event(&mut events).await, LinkEvent::Up { .. }));
    let mut took = Vec::new();
    // Once is enough: the machine may have had no time for the others.
    for request in 1..9 {
        relay.change(|shape| shape.cut = true);
        client.send(Lane::Read, read(request));
        store.listener.send(session, Lane::Control, data(2, 5));
        // The transport's own repetitions come at pauses that double, so that the next ones are
        // seconds away.
        tokio::time::sleep(Duration::from_millis(3500)).await;
        relay.change(|shape| shape.cut = false);
        let begun = Instant::now();
        let got = store.listener.event().await.unwrap();
        assert!(matches!(got, ListenerEvent::Frame { .. }), "{got:?}");
        assert!(matches!(event(&mut events).await, LinkEvent::Frame(_)));
        took.push(begun.elapsed());
        if begun.elapsed() < Duration::from_millis(1200) {
            break;
        }
    }
    assert!(took.iter().any(|took| *took < Duration::from_millis(1200)), "{took:?}");
    tokio::task::spawn_blocking(move || client.close()).await.unwrap();
}

#[tokio::test]
async fn a_cold_read_does_not_queue_behind_a_full_drain() {
    let mut store = store();
    // 20 Mbit/s: the drain below takes seven seconds.
    let shape =
        Shape { delay: Duration::from_millis(5), rate: Some(20_000_000), ..Shape::default() };
    let relay = Relay::start("127.0.0.1:0".parse().unwrap(), store.address, shape).unwrap();
    let (client, mut events) =
        Client::start(store.credential(), Some(relay.address().to_string()), Transport::Auto)
            .unwrap();
    let session = store.opened().await;
    assert!(matches!(event(&mut events).await, LinkEvent::Up { .. }));
    for _ in 0..4 {
        client.send(Lane::Drain, batch(4 << 20));
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let begun = Instant::now();
    client.send(Lane::Read, read(1));
    let mut batches = 0;
    loop {
        match store.listener.event().await.unwrap() {
            ListenerEvent::Frame { lane: Lane::Read, .. } => break,
            ListenerEvent::Frame { lane: Lane::Drain, .. } => batches += 1,
            other => panic!("{other:?}"),
        }
    }
    store.listener.send(session, Lane::Read, data(1, 8 << 10));
    assert!(matches!(event(&mut events).await, LinkEvent::Frame(_)));
    let took = begun.elapsed();
    assert_eq!(batches, 0, "the drain was over before the read");
    // Two delays, the bottleneck's queue (50 ms), a loss in it at worst, and much room for a slow
    // machine.
    assert!(took < Duration::from_secs(3), "{took:?}");
    tokio::task::spawn_blocking(move || client.close()).await.unwrap();
}

#[tokio::test]
async fn a_paused_drain_holds_up_no_other_lane_and_little_memory() {
    let mut store = store();
    let (client, mut events) =
        Client::start(store.credential(), Some(store.address.to_string()), Transport::Auto)
            .unwrap();
    let session = store.opened().await;
    assert!(matches!(event(&mut events).await, LinkEvent::Up { .. }));
    // A frame that it has read already still comes.
    client.send(Lane::Drain, batch(1));
    store.listener.event().await.unwrap();
    store.listener.pause_drain(session, true);
    for _ in 0..40 {
        client.send(Lane::Drain, batch(1 << 20));
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    client.send(Lane::Read, read(1));
    let mut early = 0;
    loop {
        match store.listener.event().await.unwrap() {
            ListenerEvent::Frame { lane: Lane::Read, .. } => break,
            ListenerEvent::Frame { lane: Lane::Drain, .. } => early += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(early <= 1, "{early} batches passed a paused drain");
    store.listener.pause_drain(session, false);
    while early < 40 {
        match store.listener.event().await.unwrap() {
            ListenerEvent::Frame { lane: Lane::Drain, .. } => early += 1,
            // The client repeats a read in a datagram for as long as it has no reply.
            ListenerEvent::Frame { lane: Lane::Read, .. } => {}
            other => panic!("{other:?}"),
        }
    }
    tokio::task::spawn_blocking(move || client.close()).await.unwrap();
}

#[tokio::test]
async fn reads_without_a_reply_are_bounded_and_hold_up_no_other_lane() {
    let mut store = store();
    let (client, mut events) =
        Client::start(store.credential(), Some(store.address.to_string()), Transport::Auto)
            .unwrap();
    let session = store.opened().await;
    assert!(matches!(event(&mut events).await, LinkEvent::Up { .. }));
    for request in 0..1000 {
        client.send(Lane::ReadAhead, read(request));
    }
    client.send(Lane::Drain, batch(1));
    let (mut taken, mut drained) = (0, false);
    while taken < 256 || !drained {
        match store.listener.event().await.unwrap() {
            ListenerEvent::Frame { lane: Lane::ReadAhead, .. } => taken += 1,
            ListenerEvent::Frame { lane: Lane::Drain, .. } => drained = true,
            other => panic!("{other:?}"),
        }
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(store.listener.try_event().is_none(), "the rest waits for replies");
    for request in 0..1000 {
        store.listener.send(session, Lane::ReadAhead, data(request, 1));
        if taken < 1000 {
            let event = store.listener.event().await.unwrap();
            assert!(
                matches!(event, ListenerEvent::Frame { lane: Lane::ReadAhead, .. }),
                "{event:?}"
            );
            taken += 1;
        }
        assert!(matches!(event(&mut events).await, LinkEvent::Frame(_)));
    }
    tokio::task::spawn_blocking(move || client.close()).await.unwrap();
}

#[tokio::test]
async fn lone_reads_survive_loss_in_datagrams_and_are_answered_once() {
    let mut store = store();
    let shape = Shape { delay: Duration::from_millis(2), loss: 0.05, ..Shape::default() };
    let relay = Relay::start("127.0.0.1:0".parse().unwrap(), store.address, shape).unwrap();
    let (client, mut events) =
        Client::start(store.credential(), Some(relay.address().to_string()), Transport::Auto)
            .unwrap();
    let session = store.opened().await;
    assert!(matches!(event(&mut events).await, LinkEvent::Up { .. }));
    let serve = tokio::spawn(async move {
        while let Some(event) = store.listener.event().await {
            let ListenerEvent::Frame { lane, frame, .. } = event else { return store };
            let ToStore::Read { request, .. } = frame.message else { panic!("{frame:?}") };
            store.listener.send(session, lane, data(request, 8 << 10));
        }
        store
    });
    for request in 0..300 {
        client.send(Lane::Read, read(request));
        let LinkEvent::Frame(frame) = event(&mut events).await else { panic!("{request}") };
        assert_eq!(frame, data(request, 8 << 10));
    }
    let datagrams = client.status().datagrams;
    assert!(datagrams.requests == 300 && datagrams.recovered > 10, "{datagrams:?}");
    assert!(datagrams.repeats > 5 && datagrams.by_stream < 30, "{datagrams:?}");
    // The link answers open requests, or sends them by stream, before it closes.
    client.send(Lane::Read, read(1000));
    tokio::task::spawn_blocking(move || client.close()).await.unwrap();
    // The session is over by then, and still counts.
    let store = serve.await.unwrap();
    let answered = store.listener.datagrams();
    assert!(answered.requests >= 301 && answered.repeats > 5, "{answered:?}");
    assert!(answered.repeated_bytes > 0 && answered.redundant_bytes > 0, "{answered:?}");
    assert!(answered.redundant_bytes * 1000 <= answered.sent_bytes * 132, "{answered:?}");
}
