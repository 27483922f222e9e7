//! Lists of volumes that nobody has used since the start of the store.

use super::*;

#[tokio::test]
async fn a_list_knows_the_ends_of_all_logs_and_opens_no_volume() {
    let dir = tempfile::tempdir().unwrap();
    let store = start(dir.path()).await;
    let requests = store.requests().await;
    let others = 40;
    store.volume(&["create", "a", "--size", "1MiB"]).await.unwrap();
    for n in 0..others {
        let (name, sectors, block_bytes) = (format!("other-{n}"), 2048, 512);
        let create = VolumeOperation::Create { name, sectors, block_bytes };
        requests.volume(create).await.unwrap();
    }
    // Nothing of this arrives.
    let host = store.requests().await;
    let Attached { volume, epoch, .. } = attach(&host, 7).await.unwrap();
    let entries = vec![Announced { range: Range::new(8, 16), seq: 1 }];
    let message = ToStore::Announce { volume, epoch, replace: true, entries };
    host.send(Lane::Control, message.into());
    let show = || requests.volume(VolumeOperation::Show { name: "a".into() });
    loop {
        let VolumeReply::Volume(info) = show().await.unwrap() else { panic!() };
        if info.live.is_some_and(|live| live.announced_bytes > 0) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    host.close().await;
    requests.close().await;
    store.stop().await;

    let store = start(dir.path()).await;
    let requests = store.requests().await;
    // A list waits for a moment only; on a busy machine another one knows more.
    let list = loop {
        let VolumeReply::List(list) = requests.volume(VolumeOperation::List).await.unwrap() else {
            panic!()
        };
        if list.iter().all(|info| info.live.is_some()) {
            break list;
        }
    };
    assert_eq!(list.len(), others + 1);
    let live = |name: &str| {
        let found = list.iter().find(|info| info.name == name).unwrap();
        found.live.clone().unwrap()
    };
    let a = live("a");
    assert_eq!((a.host, a.announced_bytes), (Some(HostId(7)), 16 * 512));
    assert!(!a.connected && !a.clean, "{a:?}");
    assert_eq!((live("other-3").host, live("other-3").announced_bytes), (None, 0));
    let metrics = store.view.metrics().await;
    assert!(metrics.contains("longhaul_store_volumes_open 0\n"), "{metrics}");

    // The list knows the changes since.
    let host = store.requests().await;
    let again = |request| ToStore::Resume { request, volume, epoch, host: HostId(7) };
    let reply = host.call(Lane::Control, again).await.unwrap();
    assert!(matches!(reply.message, ToHost::Attached { result: Ok(_), .. }), "{reply:?}");
    let VolumeReply::List(list) = requests.volume(VolumeOperation::List).await.unwrap() else {
        panic!()
    };
    let now = list.iter().find(|info| info.name == "a").unwrap().live.clone().unwrap();
    assert!(now.connected, "{now:?}");
    host.close().await;
    requests.close().await;
    store.stop().await;
}
