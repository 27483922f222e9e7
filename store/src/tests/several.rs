//! Two stores over one directory.

use super::*;
use longhaul_core::wire::link::{Claim, KeyId, ReadError, StoreOperation};

#[tokio::test]
async fn reads_that_overtake_their_resume_wait_for_the_volume_to_come() {
    let (data, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let one = start(data.path()).await;
    one.volume(&["create", "a", "--size", "1MiB"]).await.unwrap();
    let at_one = one.requests().await;
    let Attached { volume, epoch, .. } = attach(&at_one, 7).await.unwrap();
    let id = registry::identity(state.path()).unwrap().to_string();
    join(data.path(), state.path(), &id);
    let two = start_over(data.path(), state.path(), |_| {}).await;
    let credential = Credential::load(&one.credential()).unwrap();
    let address = two.address.to_string();
    let at_two = Requests::connect(&credential, Some(&address)).await.unwrap();

    let behind = async |requests: &Requests, host| {
        let range = Range::new(0, 8);
        let read = |request| ToStore::EarlyRead { request, volume, epoch, committed: 0, range };
        let resume = |request| ToStore::Resume { request, volume, epoch, host: HostId(host) };
        let (read, resume) = tokio::join!(requests.call(Lane::Read, read), async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            requests.call(Lane::Control, resume).await
        });
        let ToHost::Data { result: read, .. } = read.unwrap().message else { panic!() };
        let ToHost::Attached { result: resumed, .. } = resume.unwrap().message else { panic!() };
        (read, resumed)
    };
    let (read, resumed) = behind(&at_two, 7).await;
    assert!(read.is_ok() && resumed.is_ok(), "{read:?} {resumed:?}");
    // A host that does not get the volume gets nothing of it.
    let (read, resumed) = behind(&at_one, 8).await;
    assert_eq!(read, Err(ReadError::NotAttached));
    assert_eq!(resumed, Err(AttachError::Fenced { epoch, host: HostId(7) }));
    // Only stores take volumes from each other.
    let (host, key) = (HostId(8), KeyId::NONE);
    let claim = Claim::Attach { journal: None, take_over: false };
    let release = StoreOperation::Release { volume, lease: 9, host, key, claim };
    assert!(
        format!("{:#}", at_two.store(release).await.unwrap_err()).contains("only another store")
    );
    for requests in [at_one, at_two] {
        requests.close().await;
    }
    one.stop().await;
    two.stop().await;
}
