//! The progress of a journal on its disk: writes, stable storage, and the operation under way.

use crate::block::{Seq, Time};
use crate::disk::DiskOperation;
use std::collections::VecDeque;

/// The facts that become true when a sealed frame is on stable storage.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unstable {
    pub end: u64,
    pub last: Seq,
    pub tail_addr: u64,
    pub born: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InFlight {
    Write { id: u64, file: u32, end: u64, sync: bool },
    Sync { id: u64, file: u32 },
}

/// The meaning of a finished operation for the volume.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FinishedOperation {
    /// Not an operation of the journal.
    NotOurs,
    /// Success.
    Done,
    /// The journal has just latched.
    Failed(String),
}

/// The progress of a journal on its disk.
#[derive(Debug)]
pub(super) struct Stability {
    unstable: VecDeque<Unstable>,
    /// Everything below this address is written: it is in the page cache at least.
    written: u64,
    written_seq: Seq,
    /// Everything below this address is on stable storage.
    stable: u64,
    stable_seq: Seq,
    /// A stable frame says that recovery starts here.
    published: u64,
    /// Files with writes since their last sync.
    unsynced_files: VecDeque<u32>,
    /// Recovery has adopted frames that have had no sync yet. Their tail counts after the sync.
    adopting: Option<u64>,
    in_flight: Option<InFlight>,
}

impl Stability {
    pub(super) fn new(written: u64, stable: u64) -> Stability {
        Stability {
            unstable: VecDeque::new(),
            written,
            written_seq: 0,
            stable,
            stable_seq: 0,
            published: 0,
            unsynced_files: VecDeque::new(),
            adopting: None,
            in_flight: None,
        }
    }

    /// The recovered bytes may never have left the page cache of the run before. That also holds
    /// for the frame that names the tail, which may lie anywhere.
    pub(super) fn adopt(&mut self, files: u32, tail: u64) {
        self.unsynced_files = (0..files).collect();
        self.adopting = Some(tail);
    }

    pub(super) fn written(&self) -> u64 {
        self.written
    }

    pub(super) fn written_seq(&self) -> Seq {
        self.written_seq
    }

    pub(super) fn stable(&self) -> u64 {
        self.stable
    }

    pub(super) fn stable_seq(&self) -> Seq {
        self.stable_seq
    }

    pub(super) fn published(&self) -> u64 {
        self.published
    }

    /// Whether recovery has adopted frames that have had no sync yet.
    pub(super) fn is_adopting(&self) -> bool {
        self.adopting.is_some()
    }

    /// Whether an operation is under way.
    pub(super) fn is_busy(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Whether every sealed frame is on stable storage.
    pub(super) fn is_all_stable(&self) -> bool {
        self.unstable.is_empty() && self.adopting.is_none() && self.in_flight.is_none()
    }

    /// The time of the acknowledgment of the oldest record that is not on stable storage.
    pub(super) fn oldest_unstable(&self) -> Option<Time> {
        self.unstable.front().map(|unstable| unstable.born)
    }

    /// Bytes written and not synced.
    pub(super) fn unsynced_bytes(&self) -> u64 {
        self.written - self.stable.min(self.written)
    }

    /// Whether no frame on its way says that recovery starts at `addr` or later.
    pub(super) fn publishes_only_below(&self, addr: u64) -> bool {
        self.unstable.iter().all(|unstable| unstable.tail_addr < addr)
    }

    /// Whether another file has writes since its last sync.
    pub(super) fn has_unsynced_but(&self, file: u32) -> bool {
        self.unsynced_files.iter().any(|unsynced| *unsynced != file)
    }

    /// The disk has to write this frame.
    pub(super) fn sealed(&mut self, unstable: Unstable) {
        self.unstable.push_back(unstable);
    }

    /// Begins a write of a frame, with a sync of its file if `sync`. Returns the number of the
    /// operation.
    pub(super) fn begin_write(&mut self, ids: &mut u64, file: u32, end: u64, sync: bool) -> u64 {
        let id = next(ids);
        if !self.unsynced_files.contains(&file) {
            self.unsynced_files.push_back(file);
        }
        self.in_flight = Some(InFlight::Write { id, file, end, sync });
        id
    }

    /// Begins a sync of the next file with writes since its last sync.
    pub(super) fn sync_file(&mut self, ids: &mut u64) -> Option<DiskOperation> {
        let file = *self.unsynced_files.front()?;
        let id = next(ids);
        self.in_flight = Some(InFlight::Sync { id, file });
        Some(DiskOperation::Sync { id, file })
    }

    /// Takes the outcome of a write or sync. `last` is the last number of the journal.
    pub(super) fn finish(
        &mut self,
        id: u64,
        error: Option<String>,
        last: Seq,
    ) -> FinishedOperation {
        let (synced, ours) = match self.in_flight {
            Some(InFlight::Write { id: ours, file, sync, .. }) => (sync.then_some(file), ours),
            Some(InFlight::Sync { id: ours, file }) => (Some(file), ours),
            None => return FinishedOperation::NotOurs,
        };
        if ours != id {
            return FinishedOperation::NotOurs;
        }
        if let Some(error) = error {
            let what = if synced.is_some() { "sync" } else { "write" };
            return FinishedOperation::Failed(format!("journal {what} failed: {error}"));
        }
        if let Some(InFlight::Write { end, .. }) = self.in_flight.take() {
            self.written = end;
            let frames = self.unstable.partition_point(|unstable| unstable.end <= end);
            if let Some(last) = frames.checked_sub(1).and_then(|last| self.unstable.get(last)) {
                self.written_seq = self.written_seq.max(last.last);
            }
        }
        if let Some(file) = synced {
            self.unsynced_files.retain(|unsynced| *unsynced != file);
            if self.unsynced_files.is_empty() {
                self.became_stable(last);
            }
        }
        FinishedOperation::Done
    }

    /// Everything written is synced.
    fn became_stable(&mut self, last: Seq) {
        self.stable = self.written;
        if let Some(published) = self.adopting.take() {
            self.published = self.published.max(published);
            self.stable_seq = self.stable_seq.max(last);
        }
        while let Some(unstable) = self.unstable.pop_front_if(|u| u.end <= self.stable) {
            self.stable_seq = self.stable_seq.max(unstable.last);
            self.published = self.published.max(unstable.tail_addr);
        }
    }

    /// Writes nothing any more. Returns the address from which on only memory has the bytes.
    pub(super) fn stop(&mut self) -> u64 {
        self.in_flight = None;
        self.unstable.clear();
        match self.adopting.take() {
            // It had no sync in this run. But recovery read it from the disk, so it seems to be
            // there. The drain may send it. No flush has relied on it.
            Some(_) => self.written,
            None => self.stable,
        }
    }
}

/// The next number of an operation.
pub(super) fn next(ids: &mut u64) -> u64 {
    *ids += 1;
    *ids
}
