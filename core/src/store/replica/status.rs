//! How far a replica is.

use crate::block::Time;

/// How far it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Operations that the replica has not repeated.
    pub operations: u64,
    /// Bytes of objects that the replica lacks, as far as known.
    pub bytes: u64,
    /// The time at which home executed the oldest of them.
    pub since: Option<Time>,
    /// Streams whose missing objects are unknown.
    pub unknown: usize,
    /// Of the visits in progress: missing objects, and the number of them that the visits have put.
    pub visiting: (u64, u64),
    /// Objects put there so far, and their bytes.
    pub put: (u64, u64),
    /// Why the last operation failed, if the last one did.
    pub trouble: Option<String>,
}
