//! The ownership of volumes, with two credentials.

use super::*;
use longhaul_core::wire::link::{
    JournalState, KeyId, ReadError, StoreOperation, StoreReply, TenantLimits, TenantOperation,
    VolumeError,
};
use longhaul_link::credential;

/// A store with the volume `acme/a`, a session of its tenant and one of the installation.
async fn two_keys(dir: &Path) -> (Running, Requests, Requests) {
    let store = start(dir).await;
    let (tenant, limits) = ("acme".to_owned(), TenantLimits::default());
    store.requests().await.tenant(TenantOperation::Create { tenant, limits }).await.unwrap();
    store.volume(&["create", "acme/a", "--size", "1MiB"]).await.unwrap();
    let file = dir.join("acme.toml");
    let (tenant, role) = (Some("acme"), credential::Role::Admin);
    let wanted = credential::Wanted { name: "acme", tenant, role, volumes: vec!["*".into()] };
    credential::issue(dir, &wanted, &file).unwrap();
    let credential = Credential::load(&file).unwrap();
    let host = Requests::connect(&credential, Some(&store.address.to_string())).await.unwrap();
    let other = store.requests().await;
    (store, host, other)
}

async fn ask(
    requests: &Requests,
    name: &str,
    host: u128,
    journal: Option<JournalState>,
    take_over: bool,
) -> Result<Attached, AttachError> {
    let (name, host) = (name.to_owned(), HostId(host));
    let attach = |request| ToStore::Attach { request, name, host, journal, take_over };
    let reply = requests.call(Lane::Control, attach).await.unwrap();
    let ToHost::Attached { result, .. } = reply.message else { panic!() };
    result
}

async fn commit(requests: &Requests, volume: VolumeId, epoch: u64, seq: u64) {
    let mut payload = BytesMut::new();
    record::encode_data(volume, epoch, seq, Range::new(8 * seq, 8), &[5; 4096], &mut payload);
    let message = ToStore::Batch { volume, epoch, first: seq, last: seq };
    requests.send(Lane::Drain, Frame { message, payload: payload.freeze() });
    let committed = ToHost::Committed { volume, epoch, seq };
    assert_eq!(requests.notice().await.unwrap(), committed);
}

/// Action, object and outcome of the lines that a file has by then.
async fn audited(dir: &Path, action: &str, lines: usize) -> Vec<(String, String)> {
    for _ in 0..400 {
        let text = std::fs::read_to_string(dir.join("audit.jsonl")).unwrap_or_default();
        let found = text.lines().filter_map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).ok()?;
            let text = |name: &str| Some(line[name].as_str()?.to_owned());
            (line["action"] == action).then_some((text("object")?, text("outcome")?))
        });
        let found: Vec<_> = found.collect();
        if found.len() >= lines {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("not {lines} lines of {action}");
}

#[tokio::test]
async fn a_connected_volume_is_taken_by_name_and_that_is_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let (store, host, other) = two_keys(dir.path()).await;
    let first = ask(&host, "a", 7, None, false).await.unwrap();
    commit(&host, first.volume, first.epoch, 1).await;
    for claimed in [8, 7] {
        let refused = ask(&other, "acme/a", claimed, None, false).await.unwrap_err();
        let AttachError::InUse { volume, host: HostId(7), by } = &refused else {
            panic!("{refused:?}");
        };
        assert_eq!(volume, "acme/a");
        assert!(by.contains("127.0.0.1"), "{by}");
    }
    let info = async |requests: &Requests| {
        let operation = VolumeOperation::Show { name: "acme/a".into() };
        requests.volume(operation).await
    };
    let VolumeReply::Volume(shown) = info(&other).await.unwrap() else { panic!() };
    let live = shown.live.unwrap();
    assert!(live.connected && live.name.contains("127.0.0.1"), "{live:?}");
    assert_eq!(live.silent_since, None);
    // The host has not noticed.
    commit(&host, first.volume, first.epoch, 2).await;
    let taken = ask(&other, "acme/a", 8, None, true).await.unwrap();
    assert_eq!((taken.epoch, taken.committed), (2, 2));
    // To its tenant a volume goes by the name that it has there.
    let refused = ask(&host, "a", 7, None, false).await.unwrap_err();
    assert!(refused.to_string().contains("volume a is in use by"), "{refused}");
    let lines = audited(dir.path(), "volume.take-over", 1).await;
    assert_eq!(lines[0].0, "acme/a");
    assert!(lines[0].1.starts_with("ok, taken from host 0000"), "{lines:?}");
    assert!(lines[0].1.contains("127.0.0.1"), "{lines:?}");
    other.close().await;
    let silent = async || {
        for _ in 0..400 {
            let VolumeReply::Volume(shown) = info(&store.requests().await).await.unwrap() else {
                panic!();
            };
            let live = shown.live.unwrap();
            if !live.connected {
                return live;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("a session that is over counts as connected");
    };
    assert!(silent().await.silent_since.is_some());
    host.close().await;
    store.stop().await;
}

#[tokio::test]
async fn an_epoch_is_only_spoken_for_with_its_key() {
    let dir = tempfile::tempdir().unwrap();
    let (store, host, other) = two_keys(dir.path()).await;
    let Attached { volume, epoch, .. } = ask(&host, "a", 7, None, false).await.unwrap();
    commit(&host, volume, epoch, 1).await;
    let announce = |entries| ToStore::Announce { volume, epoch, replace: true, entries };
    let owed = vec![Announced { range: Range::new(64, 8), seq: 2 }];
    host.send(Lane::Control, announce(owed).into());
    let resume = |request| ToStore::Resume { request, volume, epoch, host: HostId(7) };
    let reply = other.call(Lane::Control, resume).await.unwrap().message;
    let ToHost::Attached { result: Err(AttachError::OtherKey { key, .. }), .. } = reply else {
        panic!("{reply:?}");
    };
    assert_ne!(key, KeyId::NONE);
    other.send(Lane::Control, announce(Vec::new()).into());
    let mut payload = BytesMut::new();
    record::encode_data(volume, epoch, 2, Range::new(64, 8), &[6; 4096], &mut payload);
    let message = ToStore::Batch { volume, epoch, first: 2, last: 2 };
    other.send(Lane::Drain, Frame { message, payload: payload.freeze() });
    let refused = other.notice().await.unwrap();
    let ToHost::BatchRefused { reason, .. } = &refused else { panic!("{refused:?}") };
    assert!(reason.contains("belongs to key"), "{reason}");
    let range = Range::new(0, 8);
    let read = |request| ToStore::Read { request, volume, epoch, range };
    let reply = other.call(Lane::Read, read).await.unwrap().message;
    assert!(matches!(reply, ToHost::Data { result: Err(ReadError::Fenced(1)), .. }), "{reply:?}");
    let set = |attribute: &str, data: &str| VolumeOperation::SetAttribute {
        volume,
        epoch,
        attribute: attribute.to_owned(),
        data: data.into(),
        replaces: None,
    };
    for attribute in ["reservations", "versions", "rewrite"] {
        host.volume(set(attribute, "its own")).await.unwrap();
        let refused = other.call_volume(set(attribute, "forged")).await.unwrap();
        assert!(matches!(refused, Err(VolumeError::Forbidden(_))), "{attribute}: {refused:?}");
    }
    // Commands set it, whichever host has the volume.
    other.volume(set("schedule", "")).await.unwrap();
    other.send(Lane::Control, ToStore::Detach { request: 99, volume, epoch }.into());
    // A journal that has it all, it says.
    let journal = Some(JournalState { volume, epoch, last: 2 });
    let refused = ask(&other, "acme/a", 7, journal, false).await.unwrap_err();
    assert!(matches!(refused, AttachError::InUse { .. }), "{refused:?}");
    let lost = async || {
        let lost = VolumeOperation::Lost { name: "acme/a".into(), from_lba: 0 };
        let VolumeReply::Lost { ranges, connected, .. } = other.volume(lost).await.unwrap() else {
            panic!();
        };
        (ranges, connected)
    };
    assert_eq!(lost().await, (vec![Range::new(64, 8)], true));
    commit(&host, volume, epoch, 2).await;
    for (action, lines) in
        [("volume.resume", 1), ("volume.announce", 1), ("volume.batch", 1), ("volume.detach", 1)]
    {
        let found = audited(dir.path(), action, lines).await;
        let refused = format!("epoch {epoch} belongs to key {key}");
        let resumed = format!("the epoch belongs to key {key}");
        assert!(
            found.iter().any(|(_, outcome)| outcome.starts_with("refused: ")
                && (outcome.contains(&refused) || outcome.contains(&resumed))),
            "{action}: {found:?}"
        );
    }
    host.close().await;
    other.close().await;
    store.stop().await;
}

#[tokio::test]
async fn a_request_number_that_is_used_again_ends_the_session() {
    let dir = tempfile::tempdir().unwrap();
    let (store, host, other) = two_keys(dir.path()).await;
    ask(&host, "a", 7, None, false).await.unwrap();
    let credential = Credential::load(&store.credential()).unwrap();
    let address = Some(store.address.to_string());
    let (client, mut events) = Client::start(credential, address, Transport::Tcp).unwrap();
    assert!(matches!(events.recv().await, Some(LinkEvent::Up { .. })));
    for (name, take_over) in [("acme/a", true), ("acme/x", false)] {
        let (name, host) = (name.to_owned(), HostId(8));
        let attach = ToStore::Attach { request: 9, name, host, journal: None, take_over };
        client.send(Lane::Control, attach.into());
    }
    while !matches!(events.recv().await, Some(LinkEvent::Down { .. })) {}
    let lines = audited(dir.path(), "volume.take-over", 1).await;
    assert_eq!(lines[0].0, "acme/a");
    tokio::task::spawn_blocking(move || client.close()).await.unwrap();
    host.close().await;
    other.close().await;
    store.stop().await;
}

#[tokio::test]
async fn a_certificate_is_renewed_for_its_own_key_only() {
    let dir = tempfile::tempdir().unwrap();
    let (store, host, other) = two_keys(dir.path()).await;
    let own = Credential::load(&dir.path().join("acme.toml")).unwrap();
    let admin = Credential::load(&store.credential()).unwrap();
    let renew = async |requests: &Requests, credential: &Credential| {
        let request = credential.request().unwrap();
        requests.store(StoreOperation::Renew { request }).await
    };
    let foreign = format!("{:#}", renew(&host, &admin).await.unwrap_err());
    assert!(foreign.contains("another key"), "{foreign}");
    let StoreReply::Renewed(_) = renew(&host, &own).await.unwrap() else { panic!() };
    // Two at once of one party: either one has to come again, or both have their turn.
    let both = tokio::join!(renew(&host, &own), renew(&host, &own));
    for result in [both.0, both.1] {
        if let Err(error) = result {
            assert!(format!("{error:#}").contains("just being signed"), "{error:#}");
        }
    }
    host.close().await;
    other.close().await;
    store.stop().await;
}
