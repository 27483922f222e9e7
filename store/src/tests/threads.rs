//! A store with several link threads, whose engines run in all of them.

use super::*;
use longhaul_core::block::{Epoch, Seq};
use longhaul_core::wire::link::{ReadPart, SnapshotOperation, decode_data};
use std::collections::BTreeMap;
use tokio::sync::mpsc::UnboundedReceiver;

const THREADS: usize = 3;
const HOSTS: u128 = 6;
const BLOCKS: u64 = 64;
const LIMIT: Duration = Duration::from_secs(120);

async fn start_threads(dir: &Path) -> Running {
    start_in(dir, dir, THREADS, |store| {
        // Engines that nobody uses close all the time.
        store.actor.inputs.look = tokio::time::interval(Duration::from_millis(5));
    })
    .await
}

/// A host that says everything at once, and takes the answers in their order.
struct Host {
    client: Client,
    events: UnboundedReceiver<LinkEvent>,
    name: String,
    id: HostId,
    volume: VolumeId,
    epoch: Epoch,
    seq: Seq,
    /// The last committed content of each block.
    blocks: BTreeMap<u64, u8>,
    next: u64,
}

impl Host {
    async fn connect(store: &Running) -> (Client, UnboundedReceiver<LinkEvent>) {
        let credential = Credential::load(&store.credential()).unwrap();
        let address = store.address.to_string();
        let (client, mut events) =
            Client::start(credential, Some(address), Transport::Quic).unwrap();
        let up = tokio::time::timeout(LIMIT, events.recv()).await.unwrap();
        assert!(matches!(up, Some(LinkEvent::Up { .. })), "{up:?}");
        (client, events)
    }

    async fn new(store: &Running, name: String, id: u128, volume: VolumeId) -> Host {
        let (client, events) = Host::connect(store).await;
        let (id, blocks) = (HostId(id), BTreeMap::new());
        Host { client, events, name, id, volume, epoch: 0, seq: 0, blocks, next: 1 }
    }

    async fn answer(&mut self) -> Frame<ToHost> {
        loop {
            match tokio::time::timeout(LIMIT, self.events.recv()).await.unwrap() {
                Some(LinkEvent::Frame(frame)) => return frame,
                Some(LinkEvent::Stores(_)) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn request(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Sends the next write without waiting for anything.
    fn write(&mut self, block: u64) {
        self.seq += 1;
        let (volume, epoch, seq, fill) = (self.volume, self.epoch, self.seq, self.seq as u8);
        let mut payload = BytesMut::new();
        let range = Range::new(block * 8, 8);
        record::encode_data(volume, epoch, seq, range, &[fill; 4096], &mut payload);
        let message = ToStore::Batch { volume, epoch, first: seq, last: seq };
        self.client.send(Lane::Drain, Frame { message, payload: payload.freeze() });
        self.blocks.insert(block, fill);
    }

    /// Attaches, or resumes, and asks for more before the answer, in the same lane. The answer to
    /// the attach has to come before any that needs it.
    async fn begin(&mut self, resume: bool) {
        let attach = self.request();
        let (volume, host) = (self.volume, self.id);
        if resume {
            let message = ToStore::Resume { request: attach, volume, epoch: self.epoch, host };
            self.client.send(Lane::Control, message.into());
        } else {
            self.epoch += 1;
            let name = self.name.clone();
            let message =
                ToStore::Attach { request: attach, name, host, journal: None, take_over: false };
            self.client.send(Lane::Control, message.into());
        }
        let (mut attached, mut waiting) = (false, 0);
        while !attached || waiting > 0 {
            while !attached && waiting < 16 {
                waiting += 1;
                let (request, epoch, range) = (self.request(), self.epoch, Range::new(0, 8));
                let message = ToStore::Status { request, volume, epoch, range };
                self.client.send(Lane::Control, message.into());
            }
            match self.answer().await.message {
                ToHost::Attached { result, .. } => {
                    assert_eq!(result.unwrap().epoch, self.epoch);
                    attached = true;
                }
                ToHost::Status { result, .. } => {
                    waiting -= 1;
                    assert_eq!(result.is_ok(), attached, "{result:?}");
                }
                _ => {}
            }
        }
    }

    /// Writes and reads at the same time; each answer has to come once, with the right data.
    async fn work(&mut self) {
        let mut waiting = BTreeMap::new();
        let (volume, epoch) = (self.volume, self.epoch);
        for block in 0..BLOCKS {
            let request = self.request();
            let range = Range::new(block * 8, 8);
            let message = ToStore::Read { request, volume, epoch, range };
            let lane = if block % 3 == 0 { Lane::ReadAhead } else { Lane::Read };
            self.client.send(lane, message.into());
            waiting.insert(request, (block, self.blocks.get(&block).copied()));
        }
        for block in 0..8 {
            // Blocks that nobody reads now.
            self.write(BLOCKS + block);
        }
        let mut committed = 0;
        while !waiting.is_empty() || committed < self.seq {
            let frame = self.answer().await;
            match frame.message {
                ToHost::Committed { seq, .. } => {
                    assert!(seq > committed, "{seq} after {committed}");
                    committed = seq;
                }
                ToHost::Data { request, result, .. } => {
                    let (block, fill) = waiting.remove(&request).expect("one answer for each");
                    let range = Range::new(block * 8, 8);
                    let parts = decode_data(range, &result.unwrap(), frame.payload).unwrap();
                    let [part] = &parts[..] else { panic!("{parts:?}") };
                    match part {
                        ReadPart::Data { fragment, .. } => {
                            assert_eq!(fragment.payload[0], fill.unwrap(), "block {block}");
                        }
                        other => assert_eq!(fill, None, "block {block}: {other:?}"),
                    }
                }
                _ => {}
            }
        }
    }

    /// Detaches, or ends the session without a word.
    async fn end(self, store: &Running, detach: bool) -> Host {
        let mut host = self;
        if detach {
            let request = host.request();
            let (volume, epoch) = (host.volume, host.epoch);
            let message = ToStore::Detach { request, volume, epoch };
            host.client.send(Lane::Control, message.into());
            while !matches!(host.answer().await.message, ToHost::Detached { .. }) {}
        }
        let Host { client, .. } = host;
        tokio::task::spawn_blocking(move || client.close()).await.unwrap();
        let (client, events) = Host::connect(store).await;
        Host { client, events, ..host }
    }
}

/// Takes and deletes snapshots of a volume, and looks at it, until `stop`.
async fn disturb(store: &Running, name: String, stop: &std::sync::atomic::AtomicBool) -> u64 {
    let requests = store.requests().await;
    let mut rounds = 0;
    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
        rounds += 1;
        requests.volume(VolumeOperation::Show { name: name.clone() }).await.unwrap();
        let snapshot = format!("s{rounds}");
        let id = VolumeId(longhaul_base::random::identity().unwrap());
        let create = SnapshotOperation::Create {
            snapshot: snapshot.clone(),
            id,
            created: 0,
            barrier: false,
        };
        for operation in [create, SnapshotOperation::Delete { snapshot }] {
            let operation = VolumeOperation::Snapshot { name: name.clone(), operation };
            requests.volume(operation).await.unwrap();
        }
        requests.volume(VolumeOperation::List).await.unwrap();
    }
    requests.close().await;
    rounds
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn engines_in_several_threads_answer_everything_once_and_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let store = start_threads(dir.path()).await;
    let requests = store.requests().await;
    let stop = std::sync::atomic::AtomicBool::new(false);
    let hosts = (0..HOSTS).map(async |number| {
        let name = format!("v{number}");
        let create = VolumeOperation::Create {
            name: name.clone(),
            sectors: 2 * BLOCKS * 8,
            block_bytes: 4096,
        };
        let VolumeReply::Volume(info) = requests.volume(create).await.unwrap() else { panic!() };
        let mut host = Host::new(&store, name.clone(), number + 1, info.id).await;
        host.begin(false).await;
        let disturbed = disturb(&store, name, &stop);
        let work = async {
            for round in 0..24 {
                host.work().await;
                if round % 4 == 3 {
                    // Without a word the host stays attached.
                    let detach = round % 8 == 7;
                    host = host.end(&store, detach).await;
                    host.begin(!detach).await;
                }
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            host
        };
        let (host, rounds) = tokio::join!(work, disturbed);
        assert!(rounds > 0);
        host.end(&store, true).await
    });
    let hosts = futures_util::future::join_all(hosts).await;
    requests.close().await;
    store.stop().await;

    // Everything is there after a restart, and nothing is attached.
    let store = start_threads(dir.path()).await;
    for host in hosts {
        let mut host = host.end(&store, false).await;
        host.begin(false).await;
        for (block, fill) in std::mem::take(&mut host.blocks) {
            if block < BLOCKS {
                host.blocks.insert(block, fill);
            }
        }
        host.work().await;
        let Host { client, .. } = host.end(&store, true).await;
        tokio::task::spawn_blocking(move || client.close()).await.unwrap();
    }

    // Lists look at the engines all the time, and each deletion still hears of its engine's end.
    let (requests, looker) = (store.requests().await, store.requests().await);
    let deletions = async {
        for number in 0..HOSTS {
            let delete = VolumeOperation::Delete { name: format!("v{number}") };
            requests.volume(delete).await.unwrap();
        }
    };
    let looks = async {
        loop {
            looker.volume(VolumeOperation::List).await.unwrap();
        }
    };
    tokio::select! {
        () = deletions => {}
        () = looks => {}
        () = tokio::time::sleep(LIMIT) => panic!("a deletion has no answer"),
    }
    store.stop().await;
}
