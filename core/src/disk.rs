//! The operations that state machines request of local disks.

use bytes::Bytes;

/// An operation on a file of a journal or a cache.
///
/// The shell carries out writes and syncs strictly in order, one after another, and reads at any
/// time. It never repeats a failed write or sync.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskOperation {
    /// Write `data` at `offset`; if `sync`, reply only after the file's data is on stable storage.
    Write {
        /// For the result.
        id: u64,
        /// Number of the file.
        file: u32,
        /// In bytes from the start of the file.
        offset: u64,
        /// The bytes to write; a multiple of 4 KiB.
        data: Bytes,
        /// Followed by a sync of this file.
        sync: bool,
    },
    /// Put everything written to the file so far on stable storage.
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
