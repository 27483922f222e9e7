//! Makes a table from all content that a store gives out. A host needs this if it has no table and
//! knows the [root](super::Root).
//!
//! Promises: the table holds the store's answers, from the first sector to the last. Only the root
//! tells whether they are right. The memory of the table bounds that of the learner. It must not
//! know the link or files.

use super::head::Head;
use super::mark::{MarkKey, Seal};
use super::seals_of_answer;
use super::table::Table;
use crate::block::{BLOCK_SECTORS, Range};
use crate::disk::{DiskOperation, DiskResult};
use crate::wire::link::Piece;
use bytes::Bytes;

/// The outcome of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learned {
    /// It is in the table.
    Taken,
    /// Give it again after an operation has its outcome.
    Later,
    /// It does not answer for that range, or it holds plain text.
    Unfit,
}

/// Makes a table.
#[derive(Debug)]
pub struct Learner {
    key: MarkKey,
    table: Table,
    /// The first sector that is not in it.
    at: u64,
}

impl Learner {
    /// A learner of the table that will have this head; the files of the table are empty. At most
    /// `memory` bytes of the table are in memory. `None` if its key is invalid.
    #[must_use]
    pub fn new(head: Head, memory: u64) -> Option<Learner> {
        Some(Learner { key: head.mark_key()?, table: Table::new(head, memory), at: 0 })
    }

    /// Everything before this sector is in the table.
    #[must_use]
    pub fn at(&self) -> u64 {
        self.at
    }

    /// The store says that all sectors up to this one are zeroes.
    pub fn pass(&mut self, end: u64) {
        // A blank mark means zeroes.
        self.at = self.at.max(end);
    }

    /// Takes the answer to a read of `range`, which begins at [`Learner::at`].
    pub fn take(&mut self, range: Range, pieces: &[Piece], payload: &Bytes) -> Learned {
        if self.table.is_crowded() {
            self.table.checkpoint(self.table.head().seq);
        }
        if self.table.is_frozen() {
            return Learned::Later;
        }
        let volume = self.table.head().volume;
        let Some(parts) = seals_of_answer(volume, range, pieces, payload) else {
            return Learned::Unfit;
        };
        let mut later = false;
        for (range, seal) in parts {
            let Some(mark) = self.key.mark(&seal) else { return Learned::Unfit };
            if seal == Seal::Zero {
                continue;
            }
            let mut at = range.lba;
            while at < range.end() {
                let end = ((at / BLOCK_SECTORS + 1) * BLOCK_SECTORS).min(range.end());
                // Ask for all missing pages, so that the table reads them at once.
                later |= !self.table.set(Range::between(at, end), mark);
                at = end;
            }
        }
        if later {
            return Learned::Later;
        }
        self.at = range.end();
        Learned::Taken
    }

    /// Puts everything on the disk. It is there once no operation is left.
    pub fn finish(&mut self) {
        self.table.checkpoint(self.table.head().seq);
    }

    /// Whether everything is on the disk.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        !self.table.is_frozen()
    }

    /// The next operation on the files of the table. Carry out writes and syncs in the order given.
    /// A read beyond the end of a file returns zeroes.
    pub fn poll_disk(&mut self) -> Option<DiskOperation> {
        self.table.poll_disk()
    }

    /// Takes the outcome of an operation.
    ///
    /// # Errors
    /// If the disk has failed: the table is unusable.
    pub fn handle_disk(&mut self, result: DiskResult) -> Result<(), String> {
        self.table.handle_disk(result);
        self.table.failed().map_or(Ok(()), |error| Err(error.to_owned()))
    }
}
