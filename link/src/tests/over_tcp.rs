//! Links over TCP, and from one transport to the other.

use super::*;

#[tokio::test]
async fn over_tcp_frames_travel_both_ways_and_close_delivers_what_is_queued() {
    let mut store = store();
    let address = Some(store.address.to_string());
    let (client, mut events) = Client::start(store.credential(), address, Transport::Tcp).unwrap();
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
    assert_eq!(status.transport.as_deref(), Some("tcp"));
    assert!(status.sent_bytes > 6 << 20 && status.received_bytes > 6 << 20, "{status:?}");
    // A drain that is not read holds up no other lane.
    store.listener.pause_drain(session, true);
    for _ in 0..4 {
        client.send(Lane::Drain, batch(4 << 20));
    }
    client.send(Lane::Read, read(1));
    let mut drained = 0;
    loop {
        match store.listener.event().await.unwrap() {
            ListenerEvent::Frame { lane: Lane::Read, .. } => break,
            ListenerEvent::Frame { lane: Lane::Drain, .. } => drained += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(drained <= 1, "{drained}");
    store.listener.pause_drain(session, false);
    tokio::task::spawn_blocking(move || client.close()).await.unwrap();
    loop {
        match store.listener.event().await.unwrap() {
            ListenerEvent::Frame { .. } => drained += 1,
            ListenerEvent::Closed { .. } => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(drained, 4);
}

#[tokio::test]
async fn over_tcp_credentials_are_checked_and_ends_have_their_reasons() {
    let (mut store, other) = (store(), store());
    let address = Some(store.address.to_string());
    let start = |credential: Credential| {
        Client::start(credential, address.clone(), Transport::Tcp).unwrap()
    };
    let (client, mut events) = start(other.credential());
    assert!(matches!(event(&mut events).await, LinkEvent::Unreachable));
    let error = client.status().last_error.unwrap();
    assert!(error.contains("another CA"), "{error}");
    tokio::task::spawn_blocking(move || client.close()).await.unwrap();

    let old = store.credential();
    let (client, mut events) = start(old.clone());
    store.opened().await;
    assert!(matches!(event(&mut events).await, LinkEvent::Up { .. }));
    credential::rotate(store.dir.path()).unwrap();
    let LinkEvent::Down { reason } = event(&mut events).await else { panic!("still up") };
    assert!(reason.contains("withdrawn"), "{reason}");
    assert!(matches!(event(&mut events).await, LinkEvent::Unreachable));
    let error = client.status().last_error.unwrap();
    assert!(error.contains("withdrawn"), "{error}");
    tokio::task::spawn_blocking(move || client.close()).await.unwrap();

    let (client, mut events) = start(store.credential());
    store.opened().await;
    assert!(matches!(event(&mut events).await, LinkEvent::Up { .. }));
    store.listener.shutdown().await;
    let LinkEvent::Down { reason } = event(&mut events).await else { panic!("still up") };
    assert!(reason.contains("shutting down"), "{reason}");
    tokio::task::spawn_blocking(move || client.close()).await.unwrap();
}

#[tokio::test]
async fn where_udp_is_blocked_tcp_is_taken_and_quic_again_once_it_works() {
    let mut store = store();
    let shape = Shape { cut: true, ..Shape::default() };
    let relay = Relay::start("127.0.0.1:0".parse().unwrap(), store.address, shape).unwrap();
    let through = tokio::net::TcpListener::bind(relay.address()).await.unwrap();
    let target = store.address;
    let forward = tokio::spawn(async move {
        while let Ok((mut host, _)) = through.accept().await {
            tokio::spawn(async move {
                let mut store = tokio::net::TcpStream::connect(target).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut host, &mut store).await;
            });
        }
    });
    let credential = store.credential();
    let mut dialer = dial::Dialer::new(&credential, Transport::Auto).unwrap();
    dialer.try_again_every(Duration::from_millis(300));
    let (client, mut events) =
        Client::start_with(dialer, credential, Some(relay.address().to_string())).unwrap();
    store.opened().await;
    assert!(matches!(event(&mut events).await, LinkEvent::Up { .. }));
    assert_eq!(client.status().transport.as_deref(), Some("tcp"));
    client.send(Lane::Read, read(1));
    loop {
        if let ListenerEvent::Frame { frame, .. } = store.listener.event().await.unwrap() {
            assert_eq!(frame, read(1));
            break;
        }
    }
    relay.change(|shape| shape.cut = false);
    let LinkEvent::Down { reason } = event(&mut events).await else { panic!("still up") };
    assert!(reason.contains("UDP gets through"), "{reason}");
    assert!(matches!(event(&mut events).await, LinkEvent::Up { .. }));
    assert_eq!(client.status().transport.as_deref(), Some("quic"));
    tokio::task::spawn_blocking(move || client.close()).await.unwrap();
    forward.abort();
}
