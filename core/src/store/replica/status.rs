//! How far a replica is.

use crate::block::Time;

/// How far it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Operations that are not done there.
    pub operations: u64,
    /// Bytes of objects that are not there, as far as that is known.
    pub bytes: u64,
    /// Since when the oldest of them has been done at home.
    pub since: Option<Time>,
    /// Streams of which it is not known what is missing.
    pub unknown: usize,
    /// Of the visits under way, objects that were missing, and how many of them have been put.
    pub visiting: (u64, u64),
    /// Objects put there so far, and their bytes.
    pub put: (u64, u64),
    /// Why the last operation failed, if the last one did.
    pub trouble: Option<String>,
}
