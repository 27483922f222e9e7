//! Floods of a store in another process, for `scripts/bench-isolation`.
//!
//! `FLOOD_CREDENTIAL` is the credential of the attacking party, `FLOOD_VOLUME` a volume with data
//! that it may use. Each flood prints a line when it has begun, and goes on until it is killed.

use super::*;
use longhaul_core::wire::link::{SnapshotKey, SnapshotOperation};

const LINKS: usize = 1030;
const SESSIONS: usize = 100;
const READS: u64 = 512;
/// Questions at a time, and snapshots that each asks for.
const QUESTIONS: usize = 16;
const SNAPSHOTS: u128 = 64;

fn credential() -> Credential {
    let file = std::env::var("FLOOD_CREDENTIAL").expect("FLOOD_CREDENTIAL is set");
    Credential::load(Path::new(&file)).unwrap()
}

async fn volume(requests: &Requests) -> VolumeId {
    let name = std::env::var("FLOOD_VOLUME").expect("FLOOD_VOLUME is set");
    let shown = requests.volume(VolumeOperation::Show { name }).await.unwrap();
    let VolumeReply::Volume(info) = shown else { panic!("{shown:?}") };
    info.id
}

fn begun() {
    println!("flooding");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "floods a store, for scripts/bench-isolation"]
async fn asks_for_data_and_takes_none() {
    let credential = credential();
    let requests = Requests::connect(&credential, None).await.unwrap();
    let (volume, range) = (volume(&requests).await, Range::new(0, 2048));
    let mut sessions = Vec::new();
    for _ in 0..SESSIONS {
        let (client, mut events) = Client::start(credential.clone(), None, Transport::Tcp).unwrap();
        assert!(matches!(events.recv().await, Some(LinkEvent::Up { .. })));
        sessions.push((client, events));
    }
    for (client, _) in &sessions {
        for request in 1..=READS {
            client.send(Lane::Read, ToStore::Read { request, volume, epoch: 0, range }.into());
        }
    }
    begun();
    tokio::time::sleep(Duration::from_millis(100)).await;
    // Data in the sockets stays there: nobody reads them, and they stay open.
    let own = rustix::process::getpid();
    rustix::process::kill_process(own, rustix::process::Signal::STOP).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "floods a store, for scripts/bench-isolation"]
async fn asks_for_the_usage_of_what_is_not_there() {
    let requests = Requests::connect(&credential(), None).await.unwrap();
    let name = std::env::var("FLOOD_VOLUME").expect("FLOOD_VOLUME is set");
    begun();
    let ask = async |first: usize| {
        for round in 0.. {
            let first = ((round * QUESTIONS + first) as u128) << 8;
            let key = |n| SnapshotKey {
                id: VolumeId(first + n + 1),
                segment: n as u64 + 1,
                sectors: 1 << 19,
            };
            let snapshots = (0..SNAPSHOTS).map(key).collect();
            let range = Range::new(0, 1 << 19);
            let operation = SnapshotOperation::Usage { snapshots, volume: None, range };
            let asked = VolumeOperation::Snapshot { name: name.clone(), operation };
            requests.call_volume(asked).await.unwrap().unwrap_err();
        }
    };
    futures_util::future::join_all((0..QUESTIONS).map(ask)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "floods a store, for scripts/bench-isolation"]
async fn makes_links_without_end() {
    let credential = credential();
    begun();
    let link = |_| Client::start(credential.clone(), None, Transport::Quic).unwrap();
    let links: Vec<_> = (0..LINKS).map(link).collect();
    std::future::pending::<()>().await;
    drop(links);
}
