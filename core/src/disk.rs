//! The operations that state machines request of local disks.

use bytes::Bytes;

/// An operation on a file of a journal, a cache or a version table.
///
/// The shell carries out operations on a journal side by side. They end in any order. For a cache
/// and a version table it carries out writes and syncs strictly in order, one after another. Reads
/// come at any time. The shell never repeats a failed write or sync.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskOperation {
    /// Write `data` at `offset`. If `sync`, reply only after this data is on stable storage. That
    /// says nothing about other writes of a journal. Those of a cache or a version table are in
    /// order, so a sync covers all earlier writes to the file.
    Write {
        /// For the result.
        id: u64,
        /// Number of the file.
        file: u32,
        /// In bytes from the start of the file.
        offset: u64,
        /// The bytes to write; a multiple of 4 KiB.
        data: Bytes,
        /// Whether the reply waits for stable storage.
        sync: bool,
    },
    /// Put on stable storage every write to the file whose reply came before this operation.
    Sync {
        /// For the result.
        id: u64,
        /// Number of the file.
        file: u32,
    },
    /// Read exactly `bytes` bytes; a short read is a failure.
    Read {
        /// For the result.
        id: u64,
        /// Number of the file.
        file: u32,
        /// In bytes from the start of the file.
        offset: u64,
        /// How many, at most 8 MiB.
        bytes: usize,
    },
}

/// The outcome of a [`DiskOperation`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskResult {
    /// A write or sync succeeded.
    Done {
        /// Of the operation.
        id: u64,
    },
    /// A read succeeded.
    Data {
        /// Of the operation.
        id: u64,
        /// Exactly the requested number of bytes.
        data: Bytes,
    },
    /// The operation failed.
    Failed {
        /// Of the operation.
        id: u64,
        /// The error of the operating system.
        error: String,
    },
}
