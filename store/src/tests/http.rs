//! The HTTP API and the client of it, in one process.

use super::*;
use longhaul_api::client::{Client, problem};
use longhaul_api::types::ProblemKind as Kind;
use longhaul_link::relay::{Relay, Shape};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const LIMIT: Duration = Duration::from_secs(120);

impl Running {
    async fn client(&self, store: Option<&str>) -> Client {
        Client::connect(Credential::load(&self.credential()).unwrap(), store).await.unwrap()
    }

    /// A metric without labels.
    async fn metric(&self, name: &str) -> u64 {
        let metrics = self.view.metrics().await;
        let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap().parse::<f64>().unwrap() as u64
    }
}

/// A store gives the same answers over HTTP and over a link.
async fn works(client: &Client, name: &str) {
    let made = client.create_volume(name, 1 << 20, 512).await.unwrap();
    assert_eq!((made.name.as_str(), made.size_bytes, made.block_bytes), (name, 1 << 20, 512));
    assert_eq!(client.volume(name).await.unwrap().id, made.id);
    let grown = client.resize_volume(name, 2 << 20, false).await.unwrap();
    assert_eq!(grown.size_bytes, 2 << 20);
    for (error, kind, why) in [
        (client.volume("none").await.unwrap_err(), Kind::NotFound, "no such volume"),
        (client.volume("").await.unwrap_err(), Kind::Failed, "not a volume name"),
        (client.volume("ä/ö?x#y%20").await.unwrap_err(), Kind::NotFound, "no such volume"),
        (client.create_volume(name, 512, 512).await.unwrap_err(), Kind::Exists, "exists"),
        (client.create_volume("x", 100, 512).await.unwrap_err(), Kind::Invalid, "multiple of 512"),
        (client.delete_snapshot(name, "x").await.unwrap_err(), Kind::NotFound, "no such snapshot"),
        (client.changes(name, "x", None, 0).await.unwrap_err(), Kind::NotFound, "no snapshot x"),
        (client.tenant("none").await.unwrap_err(), Kind::NotFound, "no tenant none"),
        (client.tenant("a b").await.unwrap_err(), Kind::NotFound, "no tenant a b"),
        (client.delete_tenant("none").await.unwrap_err(), Kind::NotFound, "no tenant none"),
        (client.forget_store(&"1".repeat(32)).await.unwrap_err(), Kind::NotFound, "no store"),
        (client.forget_store("1").await.unwrap_err(), Kind::Invalid, "32 hexadecimal"),
    ] {
        // This side refuses values that make no request.
        let found = problem(&error).unwrap_or(Kind::Failed);
        assert!(found == kind && format!("{error:#}").contains(why), "{found:?} {error:#}");
    }
    client.create_snapshot(name, "a", false).await.unwrap();
    assert!(client.changes(name, "a", None, 0).await.unwrap().ranges.is_empty());
    assert_eq!(client.snapshots(name).await.unwrap().snapshots[0].name, "a");
    assert_eq!(client.usage(name).await.unwrap().snapshots.len(), 1);
    client.delete_snapshot(name, "a").await.unwrap();
    client.delete_volume(name, true).await.unwrap();
    let gone = client.deleted().await.unwrap().volumes;
    assert!(gone.iter().all(|volume| volume.name != name), "{gone:?}");
}

#[tokio::test]
async fn a_store_is_asked_over_http_and_where_that_is_not_reached_over_a_link() {
    let dir = tempfile::tempdir().unwrap();
    let store = start(dir.path()).await;
    let client = store.client(None).await;
    assert!(client.is_over_http());
    works(&client, "a").await;
    // Beside it there can be a link, for keys.
    assert!(client.link().await.unwrap().is_open());
    client.volumes().await.unwrap();
    let asked = store.metric("longhaul_store_http_requests_total").await;
    assert!(asked > 15, "{asked} requests");
    assert_eq!(store.metric("longhaul_store_http_connections").await, 1);
    client.close().await;
    // TCP does not get through a relay.
    let relay =
        Relay::start("127.0.0.1:0".parse().unwrap(), store.address, Shape::default()).unwrap();
    let behind = relay.address().to_string();
    let client = store.client(Some(&behind)).await;
    assert!(!client.is_over_http());
    works(&client, "b").await;
    client.close().await;
    assert_eq!(store.metric("longhaul_store_http_requests_total").await, asked);
    // Of several addresses one that works is enough.
    let mut credential = Credential::load(&store.credential()).unwrap();
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    credential.stores.insert(0, nobody.local_addr().unwrap().to_string());
    let client = Client::connect(credential.clone(), None).await.unwrap();
    assert!(client.is_over_http());
    client.volumes().await.unwrap();
    client.close().await;
    store.stop().await;
    let error = Client::connect(credential, Some("nowhere.invalid:1")).await.err().unwrap();
    let error = error.to_string();
    assert!(error.contains("cannot reach the store at nowhere.invalid:1"), "{error}");
}

#[tokio::test]
async fn a_credential_that_is_not_accepted_is_told_so_over_http() {
    let dir = tempfile::tempdir().unwrap();
    let store = start(dir.path()).await;
    let client = store.client(None).await;
    client.volumes().await.unwrap();
    let old = Credential::load(&store.credential()).unwrap();
    credential::rotate(dir.path()).unwrap();
    // If the length is known, the end is known too.
    let begun = std::time::Instant::now();
    let error = loop {
        match client.volumes().await {
            Err(error) if problem(&error) == Some(Kind::Forbidden) => break error.to_string(),
            _ => assert!(begun.elapsed() < LIMIT, "it is still accepted"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert!(error.contains("withdrawn"), "{error}");
    client.close().await;
    for _ in 0..20 {
        let client = Client::connect(old.clone(), None).await.unwrap();
        let error = client.volumes().await.unwrap_err();
        assert_eq!(problem(&error), None);
        let error = format!("{error:#}");
        assert!(error.contains("cannot reach") && error.contains("withdrawn"), "{error}");
        client.close().await;
    }
    let client = store.client(None).await;
    client.volumes().await.unwrap();
    client.close().await;
    // One of another installation does not get as far.
    let other = tempfile::tempdir().unwrap();
    let identity = credential::prepare(other.path(), &[store.address.to_string()], "").unwrap();
    drop(identity);
    let foreign = Credential::load(&other.path().join("credentials/admin.toml")).unwrap();
    let error = format!("{:#}", Client::connect(foreign, None).await.err().unwrap());
    assert!(error.contains("another CA"), "{error}");
    store.stop().await;
}

#[tokio::test]
async fn a_store_that_answers_late_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let store = start(dir.path()).await;
    let target = store.address;
    // It takes connections, and says nothing for longer than an address may be silent.
    let busy = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = busy.local_addr().unwrap().to_string();
    let serving = tokio::spawn(async move {
        while let Ok((mut client, _)) = busy.accept().await {
            tokio::spawn(async move {
                tokio::time::sleep(longhaul_link::CONNECT_TIMEOUT + Duration::from_secs(1)).await;
                let mut store = tokio::net::TcpStream::connect(target).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut store).await;
            });
        }
    });
    let client = store.client(Some(&address)).await;
    assert!(client.is_over_http());
    client.volumes().await.unwrap();
    client.close().await;
    serving.abort();
    store.stop().await;
}

/// A store's door for HTTP, with nothing behind it.
struct Entrance {
    dir: tempfile::TempDir,
    address: String,
    counts: Arc<longhaul_api::Counts>,
    _listener: Listener,
    _serving: JoinSet<()>,
}

impl Entrance {
    fn new(bounds: longhaul_api::Bounds) -> Entrance {
        let dir = tempfile::tempdir().unwrap();
        let identity = credential::prepare(dir.path(), &[], "").unwrap();
        let issued = Arc::new(Issued::new(dir.path()));
        let sockets = Sockets::bind("127.0.0.1:0".parse().unwrap(), 1).unwrap();
        let address = sockets.address();
        let (udp, tcp) = sockets.split();
        let acceptor = Acceptor::over(udp, &identity, issued.clone()).unwrap();
        let mut tcp = tcp::Acceptor::over(tcp.unwrap(), &identity, issued.clone()).unwrap();
        let mut listener = Listener::start(acceptor, issued, Vec::new());
        let counts = Arc::new(longhaul_api::Counts::new(&bounds));
        let mut serving = JoinSet::new();
        let visitors = tcp.visitors().unwrap();
        serving.spawn(longhaul_api::serve(visitors, listener.door(), counts.clone(), bounds));
        listener.add_tcp(tcp);
        let address = address.to_string();
        Entrance { dir, address, counts, _listener: listener, _serving: serving }
    }

    async fn visit(&self, credential: &Credential) -> tcp::Visit {
        tcp::visit(credential, std::slice::from_ref(&self.address), &Arc::default())
            .await
            .unwrap()
            .unwrap()
    }

    fn issue(&self, tenant: &str, name: &str) -> Credential {
        let file = self.dir.path().join(name);
        let (tenant, role) = (Some(tenant), credential::Role::Admin);
        let wanted = credential::Wanted { name, tenant, role, volumes: vec!["*".into()] };
        credential::issue(self.dir.path(), &wanted, &file).unwrap();
        Credential::load(&file).unwrap()
    }

    async fn wait_for_connections(&self, number: usize) {
        let begun = std::time::Instant::now();
        while self.counts.connections() != number {
            assert!(begun.elapsed() < LIMIT, "{} connections", self.counts.connections());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn rest(visit: &mut tcp::Visit) -> String {
    let mut text = Vec::new();
    let read = tokio::time::timeout(LIMIT, visit.stream.read_to_end(&mut text));
    // An orderly close does not matter here.
    let _ = read.await.expect("the connection ends");
    String::from_utf8(text).unwrap()
}

#[tokio::test]
async fn connections_are_bounded_in_number_and_silence() {
    // All of the connections below are to be open at once.
    let silence = Duration::from_secs(3);
    let entrance = Entrance::new(longhaul_api::Bounds { connections: 4, of_one: 2, silence });
    let acme = [entrance.issue("acme", "a"), entrance.issue("acme", "b")];
    let other = entrance.issue("other", "c");
    let mut first = entrance.visit(&acme[0]).await;
    let _second = entrance.visit(&acme[1]).await;
    entrance.wait_for_connections(2).await;
    // A tenant has its share, with whatever credentials; others have theirs.
    let ask = b"GET /v1/openapi.json HTTP/1.1\r\nhost: a\r\n\r\n";
    let turned_away = async |credential: &Credential| {
        let mut visit = entrance.visit(credential).await;
        visit.stream.write_all(ask).await.unwrap();
        let answer = rest(&mut visit).await;
        assert!(answer.contains(" 503 ") && answer.contains("too many"), "{answer}");
    };
    turned_away(&acme[0]).await;
    assert_eq!(entrance.counts.refused(), 1);
    let _third = entrance.visit(&other).await;
    entrance.wait_for_connections(3).await;
    // The last is for who has none.
    turned_away(&other).await;
    let admin = entrance.dir.path().join("credentials/admin.toml");
    let admin = Credential::load(&admin).unwrap();
    let _fourth = entrance.visit(&admin).await;
    entrance.wait_for_connections(4).await;
    turned_away(&entrance.issue("another", "d")).await;
    // The store does not wait for a client that sends nothing, or only a part, or has no more
    // requests.
    let begun = std::time::Instant::now();
    first.stream.write_all(b"GET /v1/nothing HTTP/1.1\r\nhost: a\r\n\r\nGET /v1/").await.unwrap();
    let answer = rest(&mut first).await;
    assert!(answer.contains("404") && answer.contains("openapi.json"), "{answer}");
    entrance.wait_for_connections(0).await;
    assert!(begun.elapsed() >= silence / 2, "{:?}", begun.elapsed());
    let visit = entrance.visit(&admin).await;
    entrance.wait_for_connections(1).await;
    drop(visit);
    entrance.wait_for_connections(0).await;
}

#[tokio::test]
async fn who_says_too_much_reads_so() {
    let store_dir = tempfile::tempdir().unwrap();
    let store = start(store_dir.path()).await;
    let credential = Credential::load(&store.credential()).unwrap();
    let head = |more: &str, bytes: usize| {
        format!(
            "POST /v1/volumes HTTP/1.1\r\nhost: a\r\ncontent-type: \
             application/json\r\n{more}content-length: {bytes}\r\n\r\n"
        )
    };
    for bytes in [65_537, 1 << 20, 3 << 20] {
        let mut visit =
            tcp::visit(&credential, &credential.stores, &Arc::default()).await.unwrap().unwrap();
        visit.stream.write_all(head("connection: close\r\n", bytes).as_bytes()).await.unwrap();
        // Send all of it before looking for the answer.
        visit.stream.write_all(&vec![b' '; bytes]).await.unwrap();
        visit.stream.flush().await.unwrap();
        let answer = rest(&mut visit).await;
        assert!(answer.contains(" 413 ") && answer.contains("\"too-large\""), "{answer}");
    }
    // A client that asks first need not send it.
    let mut visit =
        tcp::visit(&credential, &credential.stores, &Arc::default()).await.unwrap().unwrap();
    let asks = head("connection: close\r\nexpect: 100-continue\r\n", 1 << 30);
    visit.stream.write_all(asks.as_bytes()).await.unwrap();
    visit.stream.flush().await.unwrap();
    assert!(rest(&mut visit).await.contains(" 413 "));
    // A large enough size is accepted, and the connection goes on.
    let said = r#"{"name": "a", "size_bytes": 512}"#;
    let body = said.to_owned() + &" ".repeat(65_536 - said.len());
    let mut visit =
        tcp::visit(&credential, &credential.stores, &Arc::default()).await.unwrap().unwrap();
    visit.stream.write_all(head("", body.len()).as_bytes()).await.unwrap();
    visit.stream.write_all(body.as_bytes()).await.unwrap();
    let last = "GET /v1/volumes/a HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    visit.stream.write_all(last.as_bytes()).await.unwrap();
    visit.stream.flush().await.unwrap();
    let answer = rest(&mut visit).await;
    assert!(answer.contains(" 201 ") && answer.contains(" 200 "), "{answer}");
    store.stop().await;
}

/// All of what has changed is what the parts of it are together.
#[tokio::test]
async fn what_has_changed_comes_in_parts() {
    let dir = tempfile::tempdir().unwrap();
    let store = start(dir.path()).await;
    store.volume(&["create", "a", "--size", "256MiB"]).await.unwrap();
    store.volume(&["list"]).await.unwrap();
    let client = store.client(None).await;
    client.create_snapshot("a", "empty", true).await.unwrap();
    let requests = store.requests().await;
    let Attached { volume, epoch, .. } = attach(&requests, 7).await.unwrap();
    // Every other sector of 16 MiB: more ranges than one answer has.
    let ranges: u64 = 16_384;
    let numbers: Vec<u64> = (0..ranges).collect();
    for batch in numbers.chunks(2048) {
        let mut payload = BytesMut::new();
        for number in batch {
            let range = Range::new(number * 2, 1);
            record::encode_data(volume, epoch, number + 1, range, &[7; 512], &mut payload);
        }
        let (first, last) = (batch[0] + 1, batch[0] + batch.len() as u64);
        let message = ToStore::Batch { volume, epoch, first, last };
        requests.send(Lane::Drain, Frame { message, payload: payload.freeze() });
    }
    let begun = std::time::Instant::now();
    while client.volume("a").await.unwrap().live.is_none_or(|live| live.committed < ranges) {
        assert!(begun.elapsed() < LIMIT, "it is not committed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (mut parts, mut from, mut all) = (0, 0, Vec::new());
    loop {
        let part = client.changes("a", "empty", None, from).await.unwrap();
        parts += 1;
        all.extend(part.ranges.iter().map(|change| (change.offset_bytes, change.bytes)));
        match part.next_bytes {
            Some(next) => from = next,
            None => break,
        }
    }
    assert!(parts > 1);
    assert!(
        all.len() as u64 == ranges
            && all.iter().enumerate().all(|(n, at)| *at == (n as u64 * 1024, 512))
    );
    // From within one, and beyond the end.
    let part = client.changes("a", "empty", None, (ranges - 1) * 1024).await.unwrap();
    assert_eq!((part.ranges.len(), part.next_bytes), (1, None));
    assert!(client.changes("a", "empty", None, 1 << 40).await.unwrap().ranges.is_empty());
    let error = client.changes("a", "empty", None, 100).await.unwrap_err();
    assert_eq!(problem(&error), Some(Kind::Invalid));
    requests.close().await;
    client.close().await;
    store.stop().await;
}
