//! A store that gets any messages from hosts, in any order, on several sessions. Its object store
//! fails now and then. It never panics and never works without end. Committed numbers only grow. A
//! store that opens the log afterward finds exactly the committed writes.
//!
//! Input: steps; see `step`. Frames are as on the link.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use longhaul_core::block::{Range, Time};
use longhaul_core::store::{
    GetError, ObjectOperation, ObjectResult, PutError, SessionId, SessionPeer, StorageError, Volume,
};
use longhaul_core::wire::link::{
    Announced, Frame, HostId, JournalState, KeyId, Lane, ToHost, ToStore, VolumeOperation,
};
use longhaul_fuzz::world::{self, Objects};
use longhaul_fuzz::{Input, seeds};

fn frame(session: u8, frame: Frame<ToStore>) -> Vec<u8> {
    let head = frame.encode_head().unwrap();
    let length = (head.len() + frame.payload.len()) as u32;
    [&[0, session][..], &length.to_le_bytes(), &head, &frame.payload].concat()
}

fn make_seeds() -> Vec<Vec<u8>> {
    let (volume, host) = (world::VOLUME, world::HOST);
    let attach = |host, journal| -> Frame<ToStore> {
        ToStore::Attach { request: 1, name: "v".into(), host, journal, take_over: true }.into()
    };
    let announced = Announced { range: Range::new(8, 8), seq: 9 };
    let announce = ToStore::Announce { volume, epoch: 1, replace: true, entries: vec![announced] };
    let read = ToStore::Read { request: 2, volume, epoch: 1, range: Range::new(0, 1024) };
    let resume = ToStore::Resume { request: 3, volume, epoch: 1, host };
    let behind = |request, committed| -> Frame<ToStore> {
        let range = Range::new(0, 16);
        ToStore::EarlyRead { request, volume, epoch: 1, committed, range }.into()
    };
    let detach = ToStore::Detach { request: 4, volume, epoch: 1 };
    let accept = VolumeOperation::AcceptLoss { name: "v".into() };
    let lost = VolumeOperation::Lost { name: "v".into(), from_lba: 0 };
    let work = [
        frame(1, attach(host, None)),
        frame(1, announce.into()),
        frame(1, world::batch(1, 1, 4)),
        frame(1, world::batch(1, 5, 9)),
        frame(1, read.into()),
        frame(1, world::stage(7, 1)),
        vec![1, 9],
    ]
    .concat();
    let journal = JournalState { volume, epoch: 1, last: 12 };
    vec![
        [work.clone(), frame(1, detach.into())].concat(),
        [work.clone(), vec![2, 1], frame(2, resume.into()), frame(2, world::batch(1, 10, 12))]
            .concat(),
        [work.clone(), frame(2, attach(HostId(5), None)), frame(1, world::batch(1, 10, 11))]
            .concat(),
        [work.clone(), vec![3, 3], frame(2, attach(host, Some(journal)))].concat(),
        [
            work.clone(),
            vec![2, 1],
            frame(2, ToStore::Volume { request: 5, operation: lost }.into()),
            frame(2, ToStore::Volume { request: 6, operation: accept }.into()),
        ]
        .concat(),
        [work, frame(2, behind(8, 9)), frame(2, behind(9, 99))].concat(),
    ]
}

struct World {
    now: Time,
    store: Volume,
    objects: Objects,
    /// So many operations of the object store fail from now on.
    failing: u8,
    committed: u64,
}

impl World {
    fn settle(&mut self) {
        for _ in 0..2000 {
            let mut idle = true;
            while let Some((id, operation)) = self.store.poll_object() {
                idle = false;
                let result = self.object(operation);
                self.store.handle_object(self.now, id, result);
            }
            while let Some((_, _, frame)) = self.store.poll_message() {
                idle = false;
                if let ToHost::Committed { seq, .. } = frame.message {
                    assert!(self.store.info().is_none_or(|info| seq <= info.committed));
                }
                frame.encode_head().expect("what the store says fits a frame");
            }
            while self.store.poll_event().is_some() {
                idle = false;
            }
            if idle {
                let committed = self.store.info().map_or(self.committed, |info| info.committed);
                assert!(committed >= self.committed, "committed went back");
                self.committed = committed;
                return;
            }
        }
        panic!("the store does not come to rest");
    }

    fn object(&mut self, operation: ObjectOperation) -> ObjectResult {
        if self.failing == 0 {
            return world::object(&mut self.objects, operation);
        }
        self.failing -= 1;
        let error = || StorageError::unavailable("failing");
        match operation {
            // May have taken effect all the same.
            ObjectOperation::Put { .. } if self.failing % 2 == 1 => {
                world::object(&mut self.objects, operation);
                ObjectResult::Put(Err(PutError::Failed(error())))
            }
            ObjectOperation::Put { .. } => ObjectResult::Put(Err(PutError::Failed(error()))),
            ObjectOperation::Get { .. } => ObjectResult::Get(Err(GetError::Failed(error()))),
            ObjectOperation::List { .. } | ObjectOperation::ListAfter { .. } => {
                ObjectResult::List(Err(error()))
            }
            ObjectOperation::Delete { .. } => ObjectResult::Delete(Err(error())),
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 6 {
            0 => {
                let session = SessionId(u64::from(input.byte() % 3));
                // The last one is somebody else's, whatever it says of itself.
                let key = if session.0 == 2 { KeyId([7; 32]) } else { KeyId::NONE };
                self.store.handle_session(session, SessionPeer { key, name: String::new() });
                let length = input.u32() as usize % 70_000;
                let mut buffer = BytesMut::from(input.bytes(length));
                while let Ok(Some(frame)) = Frame::<ToStore>::take(&mut buffer) {
                    // The shell routes only what names this volume, each kind on its lane.
                    let lane = match &frame.message {
                        ToStore::Hello { .. } => continue,
                        ToStore::Batch { .. } => Lane::Drain,
                        ToStore::Read { .. }
                        | ToStore::EarlyRead { .. }
                        | ToStore::Status { .. } => Lane::Read,
                        ToStore::Stage { .. } => Lane::ReadAhead,
                        _ => Lane::Control,
                    };
                    if self.store.wants_input() {
                        self.store.handle_message(self.now, session, lane, frame);
                    }
                }
            }
            1 => {
                self.now = world::later(self.now, 1 << (input.byte() % 14));
                self.store.handle_timeout(self.now);
            }
            2 => {
                let session = SessionId(u64::from(input.byte() % 3));
                self.store.handle_session_closed(self.now, session);
            }
            3 => self.failing = input.byte(),
            4 => self.settle(),
            _ => self.store.handle_shutdown(self.now),
        }
    }
}

fuzz_target!(init: seeds("store_engine", make_seeds), |data: &[u8]| {
    let mut input = Input(data);
    let (store, objects) = (world::store(), Objects::new());
    let mut world = World { now: Time(1), store, objects, failing: 0, committed: 0 };
    world.settle();
    for _ in 0..200 {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
        world.settle();
    }
    // The object store recovers, time passes, and what was under way ends.
    world.failing = 0;
    for _ in 0..30 {
        world.now = world::later(world.now, 10_000);
        world.store.handle_timeout(world.now);
        world.settle();
    }
    assert_eq!(world.store.failed(), None, "the store has broken its own log");
    let committed = world.committed;
    world.store = world::store();
    world.committed = 0;
    world.settle();
    assert_eq!(world.store.failed(), None, "the log cannot be opened again");
    assert_eq!(world.committed, committed, "the log holds something else than was committed");
});
