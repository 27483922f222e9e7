//! Files of local disks: carries out the operations that engines ask of them.
//!
//! [`JournalDisk`] is for a journal, whose operations run side by side. [`OrderedDisk`] is for a
//! cache or a version table, whose writes and syncs run one after another.
//!
//! All disks of a thread share one backend, and none has a thread of its own. The backend is an
//! io_uring. If the kernel refuses it, or after [`use_threads_only`], threads of the runtime do the
//! same. An idle disk costs no thread and no wake-up.
//!
//! Promises:
//!
//! - After a write or sync has failed, the disk begins no other one. Those under way fail too,
//!   whatever the kernel says of them. All later ones fail with the first reason. The reason: a
//!   second fsync may succeed without having stored the data that the first one lost.
//! - The kernel reports an error of writeback once to each open file description (fsync(2)). So
//!   each description has at most one sync under way. Otherwise the sync of one group could take
//!   the error of another one. A sync of a file goes through the description that was open before
//!   the first write, and that all buffered writes use. A direct write (`O_DIRECT`) reports its own
//!   error. One with a sync (`RWF_DSYNC`) reports also that of its own flush.
//! - Buffered and direct writes to a file of a journal are never under way together. So the kernel
//!   never has to drop a dirty page from the cache for a direct write.
//! - A small write that nothing holds up goes into the page cache on the caller's thread at once.
//! - The page cache answers reads at once, or the backend reads.
//! - A disk that is dropped first carries out all operations that it has taken.
//!
//! The disks know nothing of the content of the files.

mod area;
mod backend;
mod counters;
mod direct;
mod inline;
mod journal;
mod ordered;
mod pool;
mod port;
mod ring;
mod shared;
#[cfg(test)]
mod tests;
mod zero;

pub use area::FileArea;
pub use counters::{DiskCounters, DiskTimes};
pub use journal::JournalDisk;
pub use ordered::OrderedDisk;
pub use shared::use_threads_only;
pub use zero::Zero;
