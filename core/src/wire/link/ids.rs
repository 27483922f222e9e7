//! Names of hosts and requests.

use serde::{Deserialize, Serialize};

/// The identity of a host state directory, drawn at random when it is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HostId(pub u128);

impl std::fmt::Display for HostId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Matches a reply to its request within a connection and volume.
pub type RequestId = u64;
