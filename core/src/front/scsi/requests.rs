//! The requests that a task sends to the volume.

use super::nexus::TaskId;
use super::output::DeviceOutput;
use crate::block::Request;
use bytes::{Bytes, BytesMut};
use std::collections::{BTreeMap, VecDeque};

/// Requests without an answer: the task that each belongs to, and whether it changes the medium.
#[derive(Debug, Default)]
pub(super) struct PendingRequests {
    pending: BTreeMap<u64, (TaskId, bool)>,
    next: u64,
}

impl PendingRequests {
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// A name that no request had before.
    pub fn name(&mut self) -> u64 {
        let id = self.next;
        self.next += 1;
        id
    }

    /// Adds a request of a task; its name.
    pub fn add(&mut self, task: TaskId, changes: bool) -> u64 {
        let id = self.name();
        self.pending.insert(id, (task, changes));
        id
    }

    /// Removes a request that was answered.
    pub fn remove(&mut self, id: u64) -> Option<(TaskId, bool)> {
        self.pending.remove(&id)
    }
}

/// Takes the requests that a task makes in one round.
pub(super) struct RequestSink<'a> {
    task: TaskId,
    sectors: u64,
    pending: &'a mut PendingRequests,
    outputs: &'a mut VecDeque<DeviceOutput>,
    issued: u32,
    changing: u32,
}

impl<'a> RequestSink<'a> {
    /// For a task on a volume of `sectors` sectors.
    pub fn new(
        task: TaskId,
        sectors: u64,
        pending: &'a mut PendingRequests,
        outputs: &'a mut VecDeque<DeviceOutput>,
    ) -> RequestSink<'a> {
        RequestSink { task, sectors, pending, outputs, issued: 0, changing: 0 }
    }

    /// Sectors of the volume.
    pub fn sectors(&self) -> u64 {
        self.sectors
    }

    /// The number of requests, and of those that change the medium.
    pub fn counts(&self) -> (u32, u32) {
        (self.issued, self.changing)
    }

    pub fn push(&mut self, request: Request) {
        let changes = matches!(
            request,
            Request::Write { .. }
                | Request::Discard { .. }
                | Request::Zero { .. }
                | Request::WriteStaged { .. }
        );
        let id = self.pending.add(self.task, changes);
        self.issued += 1;
        self.changing += u32::from(changes);
        self.outputs.push_back(DeviceOutput::Request { id, request });
    }
}

/// The pieces as one run of bytes. They are copied only if there are several.
pub(super) fn joined(mut data: Vec<Bytes>) -> Bytes {
    match data.len() {
        0 => Bytes::new(),
        1 => data.remove(0),
        _ => {
            let bytes = data.iter().map(Bytes::len).sum();
            let mut whole = BytesMut::with_capacity(bytes);
            for piece in data {
                whole.extend_from_slice(&piece);
            }
            whole.freeze()
        }
    }
}
