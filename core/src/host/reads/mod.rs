//! Reads of clients, and the sources that their parts wait for.
//!
//! A read has slots, in the order of its range. A [plan](plan) finds the slots that have their
//! content at once. The others wait for a source: the [journal's files](super::journal_reads), the
//! cache, a read-ahead, the store, or a commit.
//!
//! Promises: each read gets one answer, after all of its slots; the first error is the answer. It
//! must not know where content comes from.

mod plan;

pub(super) use plan::ReadPlan;

use super::outputs::Outputs;
use super::pieces::PendingPart;
use crate::block::{BlockError, ReadPiece, Reply, Seq};
use std::collections::BTreeMap;

/// The content of a part of a read.
#[derive(Debug)]
pub(super) enum ReadSlot {
    Pending,
    One(ReadPiece),
    Many(Vec<ReadPiece>),
}

/// The receiver of a read.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReadTarget {
    /// A client's request.
    Client(u64),
    /// A part of another read, which needs a new read.
    Slot { read: u64, slot: usize },
}

#[derive(Debug)]
struct PendingRead {
    target: ReadTarget,
    slots: Vec<ReadSlot>,
    pending: usize,
    error: Option<BlockError>,
}

/// Reads that wait for something.
#[derive(Debug, Default)]
pub(super) struct Reads {
    reads: BTreeMap<u64, PendingRead>,
    /// The number of the next read.
    next: u64,
    /// Staged parts, by the number that the store has to commit, and in the order of their arrival.
    uncommitted: BTreeMap<Seq, Vec<PendingPart>>,
}

impl Reads {
    // --- inputs ---

    /// A number for a read.
    pub(super) fn begin(&mut self) -> u64 {
        let read = self.next;
        self.next += 1;
        read
    }

    /// Begins a read with these slots. If none of them is pending, answers at once and returns
    /// false.
    pub(super) fn insert(
        &mut self,
        read: u64,
        target: ReadTarget,
        slots: Vec<ReadSlot>,
        out: &mut Outputs,
    ) -> bool {
        let pending = slots.iter().filter(|slot| matches!(slot, ReadSlot::Pending)).count();
        if pending == 0 {
            self.deliver(target, Ok(collect(slots)), out);
            return false;
        }
        self.reads.insert(read, PendingRead { target, slots, pending, error: None });
        true
    }

    /// Only the store can give a part, after it has committed this number.
    pub(super) fn wait_for_commit(&mut self, seq: Seq, part: PendingPart) {
        self.uncommitted.entry(seq).or_default().push(part);
    }

    /// Takes the parts that the store can give by now.
    pub(super) fn take_committed(&mut self, committed: Seq) -> Vec<PendingPart> {
        let mut parts = Vec::new();
        while let Some(first) = self.uncommitted.first_entry()
            && *first.key() <= committed
        {
            parts.append(&mut first.remove());
        }
        parts
    }

    /// A part of a read has its outcome.
    pub(super) fn fill(
        &mut self,
        read: u64,
        slot: usize,
        result: Result<ReadSlot, BlockError>,
        out: &mut Outputs,
    ) {
        let Some(found) = self.reads.get_mut(&read) else { return };
        found.pending -= 1;
        match result {
            Ok(content) => found.slots[slot] = content,
            Err(error) => found.error = found.error.or(Some(error)),
        }
        if found.pending == 0
            && let Some(read) = self.reads.remove(&read)
        {
            let result = match read.error {
                None => Ok(collect(read.slots)),
                Some(error) => Err(error),
            };
            self.deliver(read.target, result, out);
        }
    }

    fn deliver(
        &mut self,
        target: ReadTarget,
        result: Result<Vec<ReadPiece>, BlockError>,
        out: &mut Outputs,
    ) {
        match target {
            ReadTarget::Client(id) => out.reply(id, result.map(Reply::Data)),
            ReadTarget::Slot { read, slot } => {
                self.fill(read, slot, result.map(ReadSlot::Many), out);
            }
        }
    }

    /// Gives up on everything. Returns the requests that need an answer.
    pub(super) fn give_up(&mut self) -> Vec<u64> {
        self.uncommitted.clear();
        let client = |read: PendingRead| match read.target {
            ReadTarget::Client(id) => Some(id),
            ReadTarget::Slot { .. } => None,
        };
        std::mem::take(&mut self.reads).into_values().filter_map(client).collect()
    }

    // --- outputs ---

    /// Whether the read has no answer yet.
    pub(super) fn waits(&self, read: u64) -> bool {
        self.reads.contains_key(&read)
    }

    /// The last number that a read waits to see committed.
    pub(super) fn awaited(&self) -> Option<Seq> {
        self.uncommitted.last_key_value().map(|(seq, _)| *seq)
    }

    pub(super) fn len(&self) -> u64 {
        self.reads.len() as u64
    }

    pub(super) fn is_idle(&self) -> bool {
        self.reads.is_empty()
    }
}

/// The pieces of all parts of a read.
fn collect(slots: Vec<ReadSlot>) -> Vec<ReadPiece> {
    let mut pieces = Vec::with_capacity(slots.len());
    for slot in slots {
        match slot {
            ReadSlot::One(piece) => pieces.push(piece),
            ReadSlot::Many(more) => pieces.extend(more),
            ReadSlot::Pending => {}
        }
    }
    pieces
}
