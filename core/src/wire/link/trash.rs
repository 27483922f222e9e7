//! Messages about deleted volumes that still have data.

use super::limits::{MAX_HEAD_BYTES, MAX_NAME_BYTES};
use crate::block::VolumeId;
use serde::{Deserialize, Serialize};

/// Most volumes of one [`TrashReply::List`].
pub const MAX_DELETED_LISTED: usize = 256;

const _: () = assert!(
    MAX_DELETED_LISTED * (2 * MAX_NAME_BYTES + 3 + 19 + 3 * 10) + 64 <= MAX_HEAD_BYTES,
    "postcard takes ≤ 19 B for an identity and ≤ 10 B for a number"
);

/// An operation on deleted volumes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TrashOperation {
    /// Lists them, by identity.
    List {
        /// Continue a long list after this one; 0 from the beginning.
        after: VolumeId,
    },
    /// Gives one a name again: it is what it was, with its snapshots. A volume that has that name
    /// and identity already is a success too.
    Restore {
        /// Which.
        volume: VolumeId,
        /// Its name from now on.
        name: String,
    },
    /// Removes the data of one now.
    Purge {
        /// Which.
        volume: VolumeId,
    },
}

/// The outcome of a successful [`TrashOperation`]. A restored volume appears like any other
/// instead.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TrashReply {
    /// Those there are.
    List {
        /// At most [`MAX_DELETED_LISTED`].
        volumes: Vec<DeletedInfo>,
        /// Whether more follow: ask again after the last.
        more: bool,
    },
    /// Nobody gets it back.
    Purged,
}

/// The facts about a deleted volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeletedInfo {
    /// The name that it had.
    pub name: String,
    /// Its identity.
    pub id: VolumeId,
    /// Its size in sectors.
    pub sectors: u64,
    /// The time of its deletion, seconds since 1970.
    pub deleted: u64,
    /// The time at which the asked store would remove its data.
    pub until: u64,
}
