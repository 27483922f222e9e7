//! The interface of the backends, which carry out operations on files away from the caller.

use super::direct::AlignedBytes;
use bytes::Bytes;
use rustix::io::Errno;
use std::fs::File;
use std::io::IoSlice;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// Carries out operations side by side, in any order.
///
/// It owns the buffers and the open file of an operation until the operation has ended.
pub(super) trait Backend: Send + Sync {
    /// Takes an operation. It may begin only at the next [`Backend::submit`].
    fn start(&self, request: DiskRequest);
    /// Begins all operations taken so far.
    fn submit(&self);
    /// Blocks until the mailbox has a message. An operation for that mailbox is under way.
    fn wait(&self, mailbox: &Mailbox);
    /// Whether somebody takes the ends of operations from the kernel.
    fn is_attended(&self) -> bool;
}

/// An operation, and who hears of its end.
pub(super) struct DiskRequest {
    pub token: u64,
    pub operation: FileOperation,
    pub mailbox: Arc<Mailbox>,
}

/// An operation on an open file. It lives until the backend has carried it out.
pub(super) struct FileOperation {
    pub file: Arc<File>,
    pub offset: u64,
    pub action: FileAction,
    /// Bytes read or written so far.
    pub done: usize,
}

pub(super) enum FileAction {
    /// Write all of the data. If `sync`, end once this data is on stable storage.
    Write { data: WriteData, sync: bool },
    /// Fill the buffer, or end at the end of the file.
    Read(Vec<u8>),
    /// Put all earlier writes on stable storage.
    Sync,
}

pub(super) enum WriteData {
    /// One after another.
    Pieces(Vec<Bytes>),
    Aligned(AlignedBytes),
}

impl FileOperation {
    pub(super) fn new(file: Arc<File>, offset: u64, action: FileAction) -> FileOperation {
        FileOperation { file, offset, action, done: 0 }
    }

    fn len(&self) -> usize {
        match &self.action {
            FileAction::Write { data: WriteData::Pieces(pieces), .. } => {
                pieces.iter().map(Bytes::len).sum()
            }
            FileAction::Write { data: WriteData::Aligned(data), .. } => data.as_slice().len(),
            FileAction::Read(data) => data.len(),
            FileAction::Sync => 0,
        }
    }

    /// The place in the file where it goes on.
    pub(super) fn next_offset(&self) -> u64 {
        self.offset + self.done as u64
    }

    /// The data that still has to be written.
    pub(super) fn rest(&self) -> Vec<IoSlice<'_>> {
        let mut slices = match &self.action {
            FileAction::Write { data: WriteData::Pieces(pieces), .. } => {
                pieces.iter().map(|piece| IoSlice::new(piece)).collect()
            }
            FileAction::Write { data: WriteData::Aligned(data), .. } => {
                vec![IoSlice::new(data.as_slice())]
            }
            FileAction::Read(_) | FileAction::Sync => return Vec::new(),
        };
        let all = slices.len();
        let mut rest = slices.as_mut_slice();
        IoSlice::advance_slices(&mut rest, self.done);
        let skipped = all - rest.len();
        slices.split_off(skipped)
    }

    /// Takes the outcome of a system call. Returns the outcome of the operation; `None` if there is
    /// more to do.
    pub(super) fn progress(&mut self, call: Result<usize, Errno>) -> Option<Result<usize, Errno>> {
        match (call, &self.action) {
            (Err(Errno::INTR), _) => None,
            (Err(error), _) => Some(Err(error)),
            (Ok(_), FileAction::Sync) => Some(Ok(0)),
            (Ok(bytes), _) if self.done + bytes >= self.len() => {
                self.done = self.len();
                Some(Ok(self.done))
            }
            (Ok(0), FileAction::Write { .. }) => Some(Err(Errno::IO)),
            (Ok(0), FileAction::Read(_)) => Some(Ok(self.done)),
            (Ok(bytes), _) => {
                self.done += bytes;
                None
            }
        }
    }
}

/// A message to a disk.
pub(super) enum DiskMessage {
    /// An operation has ended.
    Ended { token: u64, operation: FileOperation, outcome: Result<usize, Errno> },
    /// The zeroing thread has left a file that a write waits for.
    HandedOver,
}

/// Messages for one disk.
#[derive(Default)]
pub(super) struct Mailbox {
    messages: Mutex<Vec<DiskMessage>>,
    arrived: Condvar,
    notify: Notify,
}

impl Mailbox {
    pub(super) fn post(&self, message: DiskMessage) {
        lock(&self.messages).push(message);
        self.arrived.notify_all();
        self.notify.notify_one();
    }

    pub(super) fn take(&self) -> Vec<DiskMessage> {
        std::mem::take(&mut *lock(&self.messages))
    }

    pub(super) fn is_empty(&self) -> bool {
        lock(&self.messages).is_empty()
    }

    /// Resolves after the next message, or if there was one since the last call.
    pub(super) async fn arrival(&self) {
        self.notify.notified().await;
    }

    /// Lets [`Mailbox::arrival`] resolve.
    pub(super) fn wake(&self) {
        self.notify.notify_one();
    }

    /// Blocks until there is a message. Returns whether there is one.
    pub(super) fn wait(&self, most: Option<Duration>) -> bool {
        let messages = lock(&self.messages);
        match most {
            Some(most) => {
                let waited =
                    self.arrived.wait_timeout_while(messages, most, |messages| messages.is_empty());
                !waited.unwrap_or_else(PoisonError::into_inner).0.is_empty()
            }
            None => {
                let waited = self.arrived.wait_while(messages, |messages| messages.is_empty());
                !waited.unwrap_or_else(PoisonError::into_inner).is_empty()
            }
        }
    }
}

/// A panic with the lock held leaves queues of whole entries behind: they stay usable.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
