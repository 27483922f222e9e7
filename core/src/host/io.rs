//! Events: everything that the engine tells the shell besides replies, messages and disk
//! operations.

pub use crate::disk::{DiskOperation, DiskResult};

use crate::block::{Epoch, Range, Seq};
use crate::wire::link::AttachError;

/// Something an operator or the log should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Another epoch has begun: all requests fail from now on, the journal is kept for salvage.
    Fenced {
        /// The epoch that ended ours.
        epoch: Epoch,
    },
    /// The journal cannot be written any more.
    JournalFailed {
        /// What failed.
        error: String,
        /// Whether the volume goes on in store durability, or has stopped.
        continues: bool,
    },
    /// What the journal holds of this range cannot be read back as it was written.
    JournalDamaged {
        /// The sectors, as far as they are known; empty if a whole frame is concerned.
        range: Range,
        /// Number of the journal file.
        file: u32,
        /// In bytes from the start of the file.
        offset: u64,
        /// What is wrong.
        problem: String,
        /// Nothing from here on reaches the store until it can be read after all; that is tried
        /// again every minute.
        shipping_waits: bool,
    },
    /// The store answered a read twice with data that does not match its checksum, or reported
    /// damage itself.
    StoreDamaged {
        /// The sectors.
        range: Range,
    },
    /// The store answered a read twice with an older version of a keyed volume's blocks, with
    /// zeroes where something was written, or with what is not this volume's. The client got a
    /// medium error.
    StoreOutdated {
        /// The sectors.
        range: Range,
    },
    /// The disk with the table of versions has failed: answers of the store are not compared with
    /// it any more.
    VersionsFailed {
        /// What failed.
        error: String,
    },
    /// The store answered a read of an encrypted volume twice with data that is not encrypted.
    StorePlain {
        /// The sectors.
        range: Range,
    },
    /// The epoch goes on after the link was lost.
    Resumed {
        /// What the store has.
        committed: Seq,
    },
    /// The volume has grown: [`Volume::sectors`](super::Volume::sectors).
    Resized {
        /// Its size now.
        sectors: u64,
    },
    /// The store has no space for more data of this volume, or has again.
    Room {
        /// Whether it has.
        room: bool,
    },
    /// The store does not let the epoch go on for now; it is asked again.
    Refused(AttachError),
    /// The store could not take a batch; the engine resumes and ships it again.
    BatchRefused {
        /// What the store said.
        reason: String,
    },
    /// The store has less than it once said it had committed, and the journal no longer holds what
    /// is missing. Nothing is shipped any more.
    StoreLostWrites {
        /// What the store has now.
        committed: Seq,
        /// The first write that the journal still holds.
        from: Seq,
    },
    /// A trace has been read ahead to its end, or clients went another way.
    TraceReplayed {
        /// To its end.
        followed: bool,
    },
    /// Warming by command has come to its end.
    Warmed {
        /// Bytes that are in the cache now, or were already.
        bytes: u64,
        /// Bytes that the store could not give.
        failed_bytes: u64,
    },
    /// The disk of the read cache has failed: it is not used any more, and reads go to the store.
    CacheFailed {
        /// What failed.
        error: String,
    },
    /// What the read cache had of this range was damaged; it was read from the store.
    CacheDamaged {
        /// The sectors.
        range: Range,
        /// What is wrong.
        problem: String,
    },
    /// The read cache is in use: the store has said what was written since it was last.
    CacheReady {
        /// Bytes that were there.
        found_bytes: u64,
        /// Bytes of these that were dropped.
        dropped_bytes: u64,
        /// Whether all were, because the store could not say what was written since.
        dropped_all: bool,
    },
    /// The store says that it has lost something: what the read cache has of it will be written
    /// back.
    DamageTold {
        /// In so many ranges.
        ranges: usize,
        /// Bytes of them that are looked at.
        bytes: u64,
    },
    /// Content of the read cache was written back.
    WrittenBack {
        /// The sectors.
        range: Range,
        /// The first number that this took.
        first: Seq,
        /// The last one.
        last: Seq,
    },
    /// What was under an older data key was written again.
    Rewritten {
        /// The sectors.
        range: Range,
        /// The first number that this took.
        first: Seq,
        /// The last one.
        last: Seq,
    },
    /// All of the volume was looked at for what is under older data keys.
    EncryptedAnew {
        /// Number of the key that it is under now.
        key: u32,
        /// Bytes that were written again.
        bytes: u64,
        /// Bytes that the store could not give. If there are none, nothing is under an older key
        /// any more; else everything is looked at again later.
        failed_bytes: u64,
    },
    /// What the store had lost has been looked at, or given up.
    Repaired {
        /// Bytes that it had lost.
        told_bytes: u64,
        /// Bytes of them that were written back.
        written_bytes: u64,
    },
    /// The store has confirmed the end of the epoch after a shutdown.
    Detached,
}
