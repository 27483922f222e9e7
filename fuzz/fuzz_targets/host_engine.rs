//! A host whose store sends any messages and whose disk fails now and then. It never panics and
//! never works without end. Each request gets at most one answer.
//!
//! Input: steps; see `step`. Frames are as on the link.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use longhaul_core::block::{Range, Request, STAGED_BIT, Time};
use longhaul_core::host::{DiskOperation, DiskResult, Volume};
use longhaul_core::wire::link::{
    AttachError, Frame, HostId, Lane, ReadPart, ToHost, ToStore, encode_data,
};
use longhaul_fuzz::{Input, seeds, world};
use std::collections::BTreeSet;

fn frame(frame: impl Into<Frame<ToHost>>) -> Vec<u8> {
    let frame = frame.into();
    let head = frame.encode_head().unwrap();
    let length = (head.len() + frame.payload.len()) as u32;
    [&[0][..], &length.to_le_bytes(), &head, &frame.payload].concat()
}

fn make_seeds() -> Vec<Vec<u8>> {
    let volume = world::VOLUME;
    let committed = |seq| frame(ToHost::Committed { volume, epoch: 1, seq });
    let writes = [1, 1, 1, 2, 1, 3, 1, 4, 2, 9, 3];
    let read = encode_data(1, volume, &[ReadPart::Hole(64)]);
    let attached = ToHost::Attached { request: 2, result: Ok(world::attached(1, 1)) };
    let fenced = AttachError::Fenced { epoch: 2, host: HostId(4) };
    let refused = ToHost::Attached { request: 2, result: Err(fenced) };
    vec![
        [&writes[..], &committed(2), &committed(4), &[4, 0, 10, 3]].concat(),
        [&writes[..], &[5, 6], &frame(attached), &committed(4)].concat(),
        [&writes[..], &[5, 6], &frame(refused)].concat(),
        [&writes[..], &[4, 0, 3], &frame(read)].concat(),
        [&writes[..], &[7, 3], &writes[..], &frame(ToHost::Fenced { volume, epoch: 2 })].concat(),
        // A watch, a range to stage, and the answer; a write of it, and a read before its commit.
        [&[11, 12, 0][..], &frame(world::staged(1)), &[1, 6, 4, 0, 90], &committed(1)].concat(),
        [&writes[..], &[8], &committed(4), &frame(ToHost::Detached { request: 1 })].concat(),
    ]
}

struct World {
    now: Time,
    host: Volume,
    files: Vec<Vec<u8>>,
    failing: u8,
    next: u64,
    open: BTreeSet<u64>,
}

impl World {
    fn request(&mut self, request: Request) {
        if self.open.len() >= 64 {
            return;
        }
        self.next += 1;
        self.open.insert(self.next);
        self.host.handle_request(self.now, self.next, request);
    }

    fn settle(&mut self) {
        for _ in 0..2000 {
            let mut idle = true;
            while let Some(operation) = self.host.poll_disk() {
                idle = false;
                let result = self.disk(operation);
                self.host.handle_disk(self.now, result);
            }
            while let Some((lane, frame)) = self.host.poll_message() {
                idle = false;
                frame.encode_head().expect("what the host says fits a frame");
                assert_eq!(lane == Lane::Drain, matches!(frame.message, ToStore::Batch { .. }));
            }
            while let Some((id, _)) = self.host.poll_reply() {
                idle = false;
                assert!(self.open.remove(&id), "request {id} is answered twice");
            }
            while self.host.poll_event().is_some() {
                idle = false;
            }
            if idle {
                return;
            }
        }
        panic!("the host does not come to rest");
    }

    fn disk(&mut self, operation: DiskOperation) -> DiskResult {
        let id = match &operation {
            DiskOperation::Write { id, .. }
            | DiskOperation::Sync { id, .. }
            | DiskOperation::Read { id, .. } => *id,
        };
        if self.failing == 1 {
            self.failing = 0;
            return DiskResult::Failed { id, error: "failing".into() };
        }
        self.failing = self.failing.saturating_sub(1);
        world::disk(&mut self.files, operation)
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 13 {
            0 => {
                let length = input.u32() as usize % 70_000;
                let mut buffer = BytesMut::from(input.bytes(length));
                while let Ok(Some(frame)) = Frame::<ToHost>::take(&mut buffer) {
                    self.host.handle_message(self.now, frame);
                }
            }
            1 => {
                let request = world::request(u64::from(input.byte()));
                self.request(request);
            }
            2 => {
                self.now = world::later(self.now, 1 << (input.byte() % 14));
                self.host.handle_timeout(self.now);
            }
            3 => self.request(Request::Flush),
            4 => {
                let (lba, sectors) = (input.byte(), input.byte());
                let range = Range::new(u64::from(lba) * 3, 1 + u64::from(sectors));
                self.request(Request::Read(range));
            }
            5 => self.host.handle_link_down(self.now),
            6 => self.host.handle_link_up(self.now),
            7 => self.failing = input.byte() % 32,
            8 => self.host.handle_shutdown(self.now),
            9 => {
                let range = Range::new(u64::from(input.byte()), 64);
                self.request(Request::Prefetch(range));
            }
            10 => {
                let range = Range::new(u64::from(input.byte()), 64);
                self.request(Request::Status(range));
            }
            11 => self.request(Request::Watch(vec![Range::new(0, 64)])),
            _ => {
                let flags = input.byte();
                let (range, into) = (Range::new(30, 16), world::VOLUME);
                let watch = (flags & 1 == 1).then_some(1);
                let object = STAGED_BIT | u64::from(flags);
                self.request(Request::Stage { range, into, lba: 99, object, watch });
            }
        }
    }
}

fuzz_target!(init: seeds("host_engine", make_seeds), |data: &[u8]| {
    let mut input = Input(data);
    let mut world = World {
        now: Time(1),
        host: world::host(),
        files: world::new_journal(),
        failing: 0,
        next: 0,
        open: BTreeSet::new(),
    };
    world.settle();
    for _ in 0..300 {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
        world.settle();
    }
});
