//! A store with several link threads.

use super::*;

fn store_with_threads(threads: usize) -> Store {
    let versions = (MIN_VERSION, MAX_VERSION);
    let dir = tempfile::tempdir().unwrap();
    store_on(threads, dir, "127.0.0.1:0", versions, &quic::GENERATIONS)
}

/// The next frame of any session.
async fn frame(store: &mut Store) -> (u64, Frame<ToStore>) {
    match tokio::time::timeout(LIMIT, store.listener.event()).await.unwrap().unwrap() {
        ListenerEvent::Frame { session, frame, .. } => (session, frame),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn lanes_keep_order_at_each_thread() {
    let mut store = store_with_threads(3);
    for _ in 0..4 {
        let dialer = quic::Dialer::new(&store.credential()).unwrap();
        exchange(&mut store, dialer).await;
        while !matches!(store.listener.event().await.unwrap(), ListenerEvent::Closed { .. }) {}
    }
}

#[tokio::test]
async fn all_connections_of_a_link_go_to_one_thread() {
    let mut store = store_with_threads(5);
    let mut dialer = quic::Dialer::new(&store.credential()).unwrap();
    dialer.spread();
    let mut threads = std::collections::BTreeSet::new();
    for _ in 0..6 {
        let (_connection, mut lanes, session) = connected(&mut store, &mut dialer).await;
        // Its first frame comes when the listener knows it.
        send(&mut lanes, Lane::Read, read(1)).await;
        frame(&mut store).await;
        threads.insert(store.listener.runtime_of(session).unwrap().id().to_string());
    }
    assert_eq!(threads.len(), 1);
}

#[tokio::test]
async fn a_host_whose_address_changes_keeps_its_session() {
    let mut store = store_with_threads(4);
    let mut hosts = Vec::new();
    // Enough that they come to several threads.
    for _ in 0..8 {
        let mut dialer = quic::Dialer::new(&store.credential()).unwrap();
        let (connection, lanes, session) = connected(&mut store, &mut dialer).await;
        hosts.push((dialer, connection, lanes, session));
    }
    for round in 1..4 {
        for (dialer, _connection, lanes, session) in &mut hosts {
            dialer.move_away();
            send(lanes, Lane::Read, read(round)).await;
            assert_eq!(frame(&mut store).await, (*session, read(round)));
            store.listener.send(*session, Lane::Read, data(round, 0));
        }
    }
    assert_eq!(store.listener.statistics().len(), hosts.len());
}

#[tokio::test]
async fn all_threads_end_with_the_listener() {
    let mut store = store_with_threads(2);
    let (client, mut events) =
        Client::start(store.credential(), Some(store.address.to_string()), Transport::Auto)
            .unwrap();
    store.opened().await;
    assert!(matches!(event(&mut events).await, LinkEvent::Up { .. }));
    let address = store.address;
    store.listener.shutdown().await;
    assert!(matches!(event(&mut events).await, LinkEvent::Down { .. }));
    // All of its sockets are gone.
    Sockets::bind(address, 2).unwrap();
    tokio::task::spawn_blocking(move || client.close()).await.unwrap();
}
