//! The queues from which the shell takes what a volume gives out.
//!
//! Promises: each queue keeps its order. Machines only add to the queues; only the volume takes
//! from them. It must not know the use of an output.

use super::io::{DiskOperation, Event};
use super::status::Counters;
use crate::block::{BlockError, Reply};
use crate::wire::link::{Frame, Lane, ToStore};
use std::collections::VecDeque;

/// Most events kept for the shell; it takes them after every input, so this is never reached.
const MAX_EVENTS: usize = 1024;

/// Replies, operations on the journal's files, messages to the store, and events.
#[derive(Debug, Default)]
pub(super) struct Outputs {
    replies: VecDeque<(u64, Result<Reply, BlockError>)>,
    disk: VecDeque<DiskOperation>,
    messages: VecDeque<(Lane, Frame<ToStore>)>,
    events: VecDeque<Event>,
    counters: Counters,
    /// The number of the last disk operation.
    disk_id: u64,
    /// Something came in since the outputs were last brought up to date.
    stale: bool,
}

impl Outputs {
    // --- for machines ---

    /// Answers a request.
    pub(super) fn reply(&mut self, id: u64, result: Result<Reply, BlockError>) {
        self.replies.push_back((id, result));
    }

    /// Sends a message to the store.
    pub(super) fn send(&mut self, lane: Lane, message: impl Into<Frame<ToStore>>) {
        self.messages.push_back((lane, message.into()));
    }

    /// Tells the shell something.
    pub(super) fn event(&mut self, event: Event) {
        if self.events.len() < MAX_EVENTS {
            self.events.push_back(event);
        }
    }

    /// Reads a file of the journal; the outcome comes back with the number that this returns.
    pub(super) fn read_file(&mut self, (file, offset): (u32, u64), bytes: usize) -> u64 {
        self.disk_id += 1;
        let id = self.disk_id;
        self.disk.push_back(DiskOperation::Read { id, file, offset, bytes });
        id
    }

    /// Writes and syncs files of the journal, as long as `next` gives an operation. It makes the
    /// number of the operation out of the last one.
    pub(super) fn write_files(&mut self, mut next: impl FnMut(&mut u64) -> Option<DiskOperation>) {
        while let Some(operation) = next(&mut self.disk_id) {
            match &operation {
                DiskOperation::Write { data, sync, .. } => {
                    self.counters.disk_writes += 1;
                    self.counters.disk_write_bytes += data.len() as u64;
                    self.counters.disk_syncs += u64::from(*sync);
                }
                DiskOperation::Sync { .. } => self.counters.disk_syncs += 1,
                DiskOperation::Read { .. } => {}
            }
            self.disk.push_back(operation);
        }
    }

    /// The totals, to be counted up.
    pub(super) fn count(&mut self) -> &mut Counters {
        &mut self.counters
    }

    /// Drops the messages to the store: the conversation with it is over.
    pub(super) fn drop_messages(&mut self) {
        self.messages.clear();
    }

    // --- for the volume ---

    /// Something came in.
    pub(super) fn set_stale(&mut self) {
        self.stale = true;
    }

    /// Whether something came in since the last call.
    pub(super) fn take_stale(&mut self) -> bool {
        std::mem::take(&mut self.stale)
    }

    pub(super) fn is_stale(&self) -> bool {
        self.stale
    }

    pub(super) fn next_reply(&mut self) -> Option<(u64, Result<Reply, BlockError>)> {
        self.replies.pop_front()
    }

    pub(super) fn next_disk(&mut self) -> Option<DiskOperation> {
        self.disk.pop_front()
    }

    pub(super) fn next_message(&mut self) -> Option<(Lane, Frame<ToStore>)> {
        self.messages.pop_front()
    }

    pub(super) fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    pub(super) fn counters(&self) -> Counters {
        self.counters
    }

    /// Whether the shell has taken all replies and disk operations.
    pub(super) fn are_taken(&self) -> bool {
        self.replies.is_empty() && self.disk.is_empty()
    }
}
