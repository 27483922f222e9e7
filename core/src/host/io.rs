//! Events: everything that the engine tells the shell besides replies, messages and disk
//! operations.

pub use crate::disk::{DiskOperation, DiskResult};

use crate::block::{Epoch, Range, Seq};
use crate::wire::link::AttachError;

/// Something an operator or the log should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Another epoch has begun. From now on all requests fail. The journal stays, for salvage.
    Fenced {
        /// The epoch that ended this host's.
        epoch: Epoch,
    },
    /// The journal accepts no more writes.
    JournalFailed {
        /// The error.
        error: String,
        /// Whether the volume goes on in store durability, or has stopped.
        continues: bool,
    },
    /// The journal does not return its content of this range as written.
    JournalDamaged {
        /// The sectors, as far as they are known. Empty if the damage concerns a whole frame.
        range: Range,
        /// Number of the journal file.
        file: u32,
        /// In bytes from the start of the file.
        offset: u64,
        /// The damage.
        problem: String,
        /// Nothing from here on reaches the store until a read succeeds. The volume tries that
        /// again every minute.
        shipping_waits: bool,
    },
    /// The store answered a read twice with data that does not match its checksum, or reported
    /// damage itself.
    StoreDamaged {
        /// The sectors.
        range: Range,
    },
    /// The store answered a read of a keyed volume twice with wrong content. That is an older
    /// version of a block, zeroes in the place of written data, or content of another volume. The
    /// client got a medium error.
    StoreOutdated {
        /// The sectors.
        range: Range,
    },
    /// The disk of the version table has failed. The volume no longer compares answers of the store
    /// with the table.
    VersionsFailed {
        /// The error.
        error: String,
    },
    /// The store answered a read of an encrypted volume twice with data that is not encrypted.
    StorePlain {
        /// The sectors.
        range: Range,
    },
    /// The epoch goes on after a loss of the link.
    Resumed {
        /// The last write that the store has.
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
    /// The store does not let the epoch go on for now. The volume asks again.
    Refused(AttachError),
    /// The store could not take a batch. The engine resumes and sends it again.
    BatchRefused {
        /// The reason of the store.
        reason: String,
    },
    /// The store lacks writes that it had committed, and the journal no longer holds them. The
    /// drain sends nothing any more.
    StoreLostWrites {
        /// The last write that the store has now.
        committed: Seq,
        /// The first write that the journal still holds.
        from: Seq,
    },
    /// The replay of a trace has reached its end, or clients went another way.
    TraceReplayed {
        /// It reached its end.
        followed: bool,
    },
    /// Warming by command has come to its end.
    Warmed {
        /// Bytes that are in the cache now, or were already.
        bytes: u64,
        /// Bytes that the store could not give.
        failed_bytes: u64,
    },
    /// The disk of the read cache has failed. The volume no longer uses the cache; reads go to the
    /// store.
    CacheFailed {
        /// The error.
        error: String,
    },
    /// The read cache returned damaged content of this range. The volume read it from the store.
    CacheDamaged {
        /// The sectors.
        range: Range,
        /// The damage.
        problem: String,
    },
    /// The read cache is in use: the store has listed the writes since its last use.
    CacheReady {
        /// Bytes that the cache held.
        found_bytes: u64,
        /// The part of these that it dropped.
        dropped_bytes: u64,
        /// Whether it dropped all, because the store could not list the writes.
        dropped_all: bool,
    },
    /// The store reports that it has lost something. The volume will write back the parts that the
    /// read cache has.
    DamageTold {
        /// Number of ranges.
        ranges: usize,
        /// Bytes of these that the volume looks at.
        bytes: u64,
    },
    /// The volume has written back content of the read cache.
    WrittenBack {
        /// The sectors.
        range: Range,
        /// The first number of these writes.
        first: Seq,
        /// The last one.
        last: Seq,
    },
    /// The volume has written content under an older data key again.
    Rewritten {
        /// The sectors.
        range: Range,
        /// The first number of these writes.
        first: Seq,
        /// The last one.
        last: Seq,
    },
    /// The volume has looked at all of its content for older data keys.
    EncryptedAnew {
        /// Number of the key that all content is under now.
        key: u32,
        /// Bytes that it wrote again.
        bytes: u64,
        /// Bytes that the store could not give. If there are none, nothing is under an older key
        /// any more. Else the volume looks at everything again later.
        failed_bytes: u64,
    },
    /// The volume has looked at all lost ranges, or has given up.
    Repaired {
        /// Bytes that the store had lost.
        told_bytes: u64,
        /// The part of these that the volume wrote back.
        written_bytes: u64,
    },
    /// The store has confirmed the end of the epoch after a shutdown.
    Detached,
}
