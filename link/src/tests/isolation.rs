//! One party's excess at the listener is its own.

use super::*;
use longhaul_base::limits;
use longhaul_core::wire::link::Announced;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpStream, UdpSocket};

const LIMIT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn silent_connections_keep_no_host_out() {
    let mut store = store();
    let mut silent = Vec::new();
    for _ in 0..limits::MAX_STRANGERS + 100 {
        silent.push(TcpStream::connect(store.address).await.unwrap());
    }
    let store_address = Some(store.address.to_string());
    let (client, _events) =
        Client::start(store.credential(), store_address, Transport::Tcp).unwrap();
    tokio::time::timeout(LIMIT, store.opened()).await.expect("the host gets in");
    // The oldest of those that say nothing have gone.
    let mut nothing = [0; 64];
    let closed = tokio::time::timeout(LIMIT, silent[0].read(&mut nothing)).await;
    assert!(!matches!(closed.unwrap(), Ok(1..)));
    tokio::task::spawn_blocking(move || client.close()).await.unwrap();
    store.listener.shutdown().await;
}

#[tokio::test]
async fn datagrams_of_nobody_keep_no_host_out() {
    let mut store = store();
    // First packets of connections that never go on (RFC 9000 §17.2.2): a store answers, and keeps
    // what it knows of them.
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    for number in 0..2000_u32 {
        let mut packet = vec![0; 1200];
        packet[..7].copy_from_slice(&[0xc0, 0, 0, 0, 1, 8, 0]);
        packet[6..10].copy_from_slice(&number.to_be_bytes());
        socket.send_to(&packet, store.address).await.unwrap();
    }
    let (client, _events) =
        Client::start(store.credential(), Some(store.address.to_string()), Transport::Quic)
            .unwrap();
    tokio::time::timeout(LIMIT, store.opened()).await.expect("the host gets in");
    tokio::task::spawn_blocking(move || client.close()).await.unwrap();
    store.listener.shutdown().await;
}

/// Asks for data and never takes any: of so many sessions of one credential.
struct Deaf {
    sessions: Vec<(Client, UnboundedReceiver<LinkEvent>)>,
}

impl Deaf {
    async fn connect(store: &mut Store, sessions: usize) -> Deaf {
        let mut deaf = Deaf { sessions: Vec::new() };
        for _ in 0..sessions {
            let credential = store.credential();
            let (link, _) = up(store, credential).await;
            deaf.sessions.push(link);
        }
        deaf
    }
}

/// A client and its session: frames that it sends from now on arrive. Before it is up it loses its
/// frames.
async fn up(
    store: &mut Store,
    credential: Credential,
) -> ((Client, UnboundedReceiver<LinkEvent>), u64) {
    let address = Some(store.address.to_string());
    let (client, mut events) = Client::start(credential, address, Transport::Tcp).unwrap();
    let session = store.opened().await;
    assert!(matches!(event(&mut events).await, LinkEvent::Up { .. }));
    ((client, events), session)
}

#[tokio::test]
async fn who_does_not_take_its_answers_is_not_listened_to_and_others_are() {
    let mut store = store();
    let deaf = Deaf::connect(&mut store, 12).await;
    let whole = |request| {
        let range = Range::new(0, 2048);
        ToStore::Read { request, volume: VolumeId(1), epoch: 1, range }.into()
    };
    for (client, _) in &deaf.sessions {
        for request in 1..=64 {
            client.send(Lane::Read, whole(request));
        }
    }
    // As if every read took for ever: an answer counts from the beginning of its read.
    let mut begun = 0_u64;
    let patience = |begun| if begun < 12 { LIMIT } else { Duration::from_millis(500) };
    while let Ok(event) = tokio::time::timeout(patience(begun), store.listener.event()).await {
        begun += u64::from(matches!(event, Some(ListenerEvent::Frame { .. })));
    }
    assert!(begun << 20 <= limits::ANSWER_BYTES_OF_ONE, "{begun} of 768 reads of 1 MiB");
    assert!(begun >= 12, "{begun}");
    // A tenant reads meanwhile, and each of the sessions may ask for something else.
    let file = store.dir.path().join("acme.toml");
    let (tenant, role) = (Some("acme"), credential::Role::Admin);
    let wanted = credential::Wanted { name: "acme", tenant, role, volumes: vec!["*".into()] };
    credential::issue(store.dir.path(), &wanted, &file).unwrap();
    let tenant = Credential::load(&file).unwrap();
    let ((client, _events), other) = up(&mut store, tenant).await;
    client.send(Lane::Read, whole(7));
    let operation = VolumeOperation::List;
    deaf.sessions[0].0.send(Lane::Control, ToStore::Volume { request: 1, operation }.into());
    let (mut read, mut list) = (false, false);
    while !(read && list) {
        let event = tokio::time::timeout(LIMIT, store.listener.event()).await.unwrap();
        if let Some(ListenerEvent::Frame { session, frame, .. }) = event {
            read |= session == other;
            list |= matches!(frame.message, ToStore::Volume { .. });
        }
    }
    // When they go, the store forgets their requests.
    let mut closing = tokio::task::JoinSet::new();
    for (client, _) in deaf.sessions {
        closing.spawn_blocking(move || client.close());
    }
    closing.join_all().await;
    let credential = store.credential();
    let ((client, _events), session) = up(&mut store, credential).await;
    for request in 1..=40 {
        client.send(Lane::Read, whole(request));
    }
    let mut begun = 0;
    while begun < 40 {
        let event = tokio::time::timeout(LIMIT, store.listener.event()).await;
        let out = store.listener.answer_bytes();
        let event = event.unwrap_or_else(|_| panic!("{begun} begun, {out} bytes out")).unwrap();
        if let ListenerEvent::Frame { session: of, .. } = event
            && of == session
        {
            begun += 1;
        }
    }
}

#[tokio::test]
async fn batches_that_are_not_stored_are_bounded_and_others_go_on() {
    let mut store = store();
    let deaf = Deaf::connect(&mut store, 12).await;
    let Frame { message, payload } = batch(1 << 20);
    for (client, _) in &deaf.sessions {
        for _ in 0..24 {
            let (message, payload) = (message.clone(), payload.clone());
            client.send(Lane::Drain, Frame { message, payload });
        }
    }
    // As if the store could store none of them: each counts while anything holds it.
    let mut held = Vec::new();
    let patience = |held| if held < 12 { LIMIT } else { Duration::from_millis(500) };
    while let Ok(event) = tokio::time::timeout(patience(held.len()), store.listener.event()).await {
        held.extend(match event {
            Some(ListenerEvent::Frame { frame, .. }) => Some(frame),
            _ => None,
        });
    }
    let most = limits::BATCH_BYTES_OF_ONE;
    assert!((held.len() as u64) << 20 <= most, "{} of 288 batches of 1 MiB", held.len());
    assert!(held.len() >= 12, "{}", held.len());
    assert!(store.listener.waiting_bytes() >= (held.len() as u64) << 20);
    // A tenant is heard meanwhile; so is a detach of the same party.
    let file = store.dir.path().join("acme.toml");
    let (tenant, role) = (Some("acme"), credential::Role::Admin);
    let wanted = credential::Wanted { name: "acme", tenant, role, volumes: vec!["*".into()] };
    credential::issue(store.dir.path(), &wanted, &file).unwrap();
    let tenant = Credential::load(&file).unwrap();
    let ((client, _events), other) = up(&mut store, tenant).await;
    client.send(Lane::Drain, batch(1 << 20));
    let detach = ToStore::Detach { request: 1, volume: VolumeId(1), epoch: 1 };
    deaf.sessions[0].0.send(Lane::Control, detach.into());
    let (mut stored, mut detached) = (false, false);
    while !(stored && detached) {
        let event = tokio::time::timeout(LIMIT, store.listener.event()).await.unwrap();
        if let Some(ListenerEvent::Frame { session, frame, .. }) = event {
            stored |= session == other;
            detached |= matches!(frame.message, ToStore::Detach { .. });
        }
    }
    // Stored data leaves room for waiting data: all of it comes.
    let mut came = held.len();
    held.clear();
    while came < 12 * 24 {
        let event = tokio::time::timeout(LIMIT, store.listener.event()).await.unwrap();
        came += usize::from(matches!(event, Some(ListenerEvent::Frame { .. })));
    }
    store.listener.shutdown().await;
}

#[tokio::test]
async fn what_waits_without_a_payload_is_bounded_too() {
    let mut store = store();
    let credential = store.credential();
    let ((client, _events), _) = up(&mut store, credential).await;
    let range = Range::new(0, 8);
    let entries: Vec<Announced> = (0..1000).map(|seq| Announced { range, seq }).collect();
    for _ in 0..1000 {
        let entries = entries.clone();
        let message = ToStore::Announce { volume: VolumeId(1), epoch: 1, replace: true, entries };
        client.send(Lane::Control, message.into());
    }
    let mut held = Vec::new();
    let patience = |held| if held < 12 { LIMIT } else { Duration::from_millis(500) };
    while let Ok(event) = tokio::time::timeout(patience(held.len()), store.listener.event()).await {
        held.extend(event);
    }
    let bytes = held.len() as u64 * 1000 * std::mem::size_of::<Announced>() as u64;
    assert!(bytes <= limits::FRAMES_BYTES_OF_SESSION, "{} announcements", held.len());
    drop(held);
    let next = tokio::time::timeout(LIMIT, store.listener.event()).await;
    assert!(matches!(next.unwrap(), Some(ListenerEvent::Frame { .. })));
    store.listener.shutdown().await;
}
