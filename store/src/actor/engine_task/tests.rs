//! The engine of a volume over objects in a directory, whose turns the tests take by hand.

use super::*;
use longhaul_core::store::{Config, VolumeSpec};
use longhaul_core::wire::link::HostId;
use longhaul_objects::LocalObjects;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

const SESSION: u64 = 7;

struct Bench {
    _dir: tempfile::TempDir,
    task: Arc<EngineTask>,
    calls: UnboundedReceiver<Attend>,
    sent: Arc<Mutex<Vec<ToHost>>>,
}

impl Bench {
    /// With an engine that a host has attached.
    async fn attached() -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let (attend, calls) = unbounded_channel::<Attend>();
        let sent = Arc::new(Mutex::new(Vec::new()));
        let sending = sent.clone();
        let services = Services {
            objects: Arc::new(LocalObjects::open(dir.path()).unwrap()),
            send: Arc::new(move |_, _, frame| sending.lock().unwrap().push(frame.message)),
            meter: Meter::new(),
            attend: Completions::new(&attend),
        };
        let spec = VolumeSpec {
            id: VolumeId(1),
            name: "v".to_owned(),
            created_sectors: 2048,
            block_bytes: 4096,
            created: 0,
            parents: Vec::new(),
        };
        let volume = Volume::open(services.meter.now(), spec, 9, Config::default());
        let task = EngineTask::new(volume, 1, 0, Handle::current(), services);
        let mut bench = Bench { _dir: dir, task, calls, sent };
        let attach = ToStore::Attach {
            request: 1,
            name: "v".to_owned(),
            host: HostId(1),
            journal: None,
            take_over: false,
        };
        bench.push(Lane::Control, attach);
        while bench.task.lock().volume.session().is_none() {
            bench.turn_after_input().await;
        }
        bench.answer_calls(false);
        bench
    }

    fn push(&self, lane: Lane, message: ToStore) {
        let frame = SentFrame { session: SESSION, lane, frame: message.into() };
        assert!(self.task.push(Input::Frame(frame)).is_none());
    }

    /// Waits for an input, and leaves it in the queue.
    async fn input(&self) {
        while self.task.queue().inputs.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn turn_after_input(&mut self) {
        self.task.turn();
        if self.task.lock().under_way > 0 {
            self.input().await;
            self.task.turn();
        }
    }

    /// Does the actor's part; returns the messages.
    fn answer_calls(&mut self, watched: bool) -> Vec<ToHost> {
        let mut messages = Vec::new();
        loop {
            if let Some(outputs) = self.task.take_outputs() {
                messages.extend(outputs.messages.into_iter().map(|(_, _, frame)| frame.message));
            }
            self.task.lock().room_changed();
            if self.task.attended(watched) {
                break;
            }
        }
        while self.calls.try_recv().is_ok() {}
        messages
    }

    fn is_called(&mut self) -> bool {
        self.calls.try_recv().is_ok()
    }
}

#[tokio::test]
async fn the_actor_hears_of_the_end_although_it_has_looked_before() {
    let mut bench = Bench::attached().await;
    // It has to write a root.
    bench.task.lock().volume.handle_shutdown(Time(u64::MAX / 2));
    bench.answer_calls(true);
    while !bench.task.lock().volume.is_idle() {
        assert!(bench.task.lock().under_way > 0, "it ends by itself");
        bench.input().await;
        // A look at the state takes the input. The turn after it has none.
        drop(bench.task.lock());
        bench.task.turn();
        assert!(bench.is_called());
        bench.answer_calls(true);
    }
}

#[tokio::test]
async fn the_actor_hears_of_a_change_during_its_attention() {
    let mut bench = Bench::attached().await;
    bench.task.lock().volume.handle_shutdown(Time(u64::MAX / 2));
    loop {
        while bench.task.take_outputs().is_some() {}
        assert!(bench.task.driven().under_way > 0, "its last step says something");
        bench.input().await;
        // The actor has looked and not yet ended: the task says nothing.
        bench.task.turn();
        assert!(!bench.is_called());
        let driven = bench.task.driven();
        if driven.outputs.is_empty() && driven.volume.is_idle() {
            break;
        }
    }
    assert!(bench.task.attended(true));
    // The call wakes the task.
    tokio::time::timeout(Duration::from_secs(60), bench.task.wake.notified()).await.unwrap();
    bench.task.turn();
    assert!(bench.is_called());
}

#[tokio::test]
async fn answers_keep_their_order() {
    let mut bench = Bench::attached().await;
    let status = |request| ToStore::Status {
        request,
        volume: VolumeId(1),
        epoch: 1,
        range: longhaul_core::block::Range::new(0, 8),
    };
    let detach = ToStore::Detach { request: 3, volume: VolumeId(1), epoch: 1 };
    bench.push(Lane::Control, status(2));
    bench.task.turn();
    assert!(matches!(bench.sent.lock().unwrap()[..], [ToHost::Status { request: 2, .. }]));
    bench.push(Lane::Control, detach);
    while !bench.is_called() {
        bench.turn_after_input().await;
    }
    // The answer to the detach waits for the actor, and so do those after it.
    bench.push(Lane::Control, status(4));
    bench.task.turn();
    assert_eq!(bench.sent.lock().unwrap().len(), 1);
    let messages = bench.answer_calls(false);
    assert!(
        matches!(messages[..], [ToHost::Detached { .. }, ToHost::Status { request: 4, .. }]),
        "{messages:?}"
    );
}

#[tokio::test]
async fn a_closed_engine_gives_frames_back_and_has_answered_the_others() {
    let bench = Bench::attached().await;
    let read = |request| ToStore::Read {
        request,
        volume: VolumeId(1),
        epoch: 1,
        range: longhaul_core::block::Range::new(0, 8),
    };
    bench.push(Lane::Read, read(2));
    let (outputs, frames) = bench.task.close(Volume::handle_taken);
    assert!(frames.is_empty());
    let messages: Vec<ToHost> =
        outputs.messages.into_iter().map(|(_, _, frame)| frame.message).collect();
    assert!(matches!(messages[..], [ToHost::Data { request: 2, .. }, ..]), "{messages:?}");
    let frame = SentFrame { session: SESSION, lane: Lane::Read, frame: read(3).into() };
    assert!(bench.task.push(Input::Frame(frame)).is_some());
    assert!(matches!(bench.task.turn(), Next::Never));
}
