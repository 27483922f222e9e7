//! Reads of clients, and the sources that their parts wait for.
//!
//! A read is cut into slots, in the order of its range. A [plan](plan) finds the slots that have
//! their content at once. The others wait for a source: the [journal's
//! files](super::journal_reads), the cache, what is being read ahead, the store, or a commit.
//!
//! Promises: each read is answered once, after all of its slots; the first error is the answer. It
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

/// Whose a read is.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReadTarget {
    /// A client's request.
    Client(u64),
    /// A part of another read, which has to be read anew.
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
    /// Parts that are staged, by the number that has to be committed, and in the order of their
    /// coming.
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

    /// A read begins with these slots. It is answered at once if none of them is pending; false if
    /// so.
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

    /// A part is the store's to give, once this number is committed.
    pub(super) fn wait_for_commit(&mut self, seq: Seq, part: PendingPart) {
        self.uncommitted.entry(seq).or_default().push(part);
    }

    /// The parts for which the store can be asked by now.
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

    /// Gives up on everything; returns the requests that have to be told.
    pub(super) fn give_up(&mut self) -> Vec<u64> {
        self.uncommitted.clear();
        let client = |read: PendingRead| match read.target {
            ReadTarget::Client(id) => Some(id),
            ReadTarget::Slot { .. } => None,
        };
        std::mem::take(&mut self.reads).into_values().filter_map(client).collect()
    }

    // --- outputs ---

    /// Whether the read has not been answered.
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
