//! Messages about whole volumes.

use super::ids::HostId;
use super::{
    SnapshotError, SnapshotOperation, SnapshotReply, StoredBytes, TrashOperation, TrashReply,
};
use crate::block::{Epoch, Range, Seq, VolumeId};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Something about volumes as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum VolumeOperation {
    /// Makes a volume.
    Create {
        /// Its name.
        name: String,
        /// Its size in sectors.
        sectors: u64,
        /// Logical block size in bytes: 512 or 4096.
        block_bytes: u32,
    },
    /// Lists all volumes.
    List,
    /// Shows one.
    Show {
        /// Which.
        name: String,
    },
    /// Deletes one that no host has attached. Where the store keeps deleted volumes for a time it
    /// is one of those then.
    Delete {
        /// Which.
        name: String,
    },
    /// Shows what its last host acknowledged and never delivered.
    Lost {
        /// Of which.
        name: String,
        /// Continue a long list after this sector.
        from_lba: u64,
    },
    /// Gives up what its last host never delivered, and ends that host's epoch.
    AcceptLoss {
        /// Of which.
        name: String,
    },
    /// Asks for an attribute: bytes that a host keeps with the volume, outside of its address
    /// space.
    GetAttribute {
        /// Of which volume.
        volume: VolumeId,
        /// The name of the attribute: at most 32 small letters and dashes.
        attribute: String,
    },
    /// Replaces an attribute, all of it or nothing.
    SetAttribute {
        /// Of which volume.
        volume: VolumeId,
        /// The host's epoch: refused if it is over.
        epoch: Epoch,
        /// Which attribute.
        attribute: String,
        /// At most [`super::MAX_ATTRIBUTE_BYTES`]; empty to forget it.
        data: Vec<u8>,
        /// The [digest](attribute_digest) of the only value that it may replace:
        /// [`VolumeError::Changed`] if there is another one. Nothing to replace any.
        replaces: Option<[u8; 32]>,
    },
    /// Makes one larger, attached or not.
    Resize {
        /// Which.
        name: String,
        /// Its size from now on, in sectors. The size that it has already is a success too.
        sectors: u64,
    },
    /// Something about its snapshots.
    Snapshot {
        /// Which.
        name: String,
        /// What.
        operation: SnapshotOperation,
    },
    /// Makes a volume smaller that no host has attached. The data beyond the new end is gone, even
    /// if the volume grows again.
    Shrink {
        /// Which.
        name: String,
        /// Its size from now on, in sectors. The size that it has already is a success too.
        sectors: u64,
    },
    /// Asks what one takes in the store's location.
    Stored {
        /// Which.
        name: String,
    },
    /// An operation on deleted volumes.
    Trash(TrashOperation),
}

/// The outcome of a [`VolumeOperation`] that succeeded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum VolumeReply {
    /// Created, deleted, accepted.
    Done,
    /// Created, shown or resized.
    Volume(VolumeInfo),
    /// All volumes, by name.
    List(Vec<VolumeInfo>),
    /// The lost ranges, as long as the host does not come back.
    Lost {
        /// The host that acknowledged it.
        host: Option<HostId>,
        /// Whether that host has a connection: then the ranges are merely in flight.
        connected: bool,
        /// Whether the host ended its epoch in order.
        clean: bool,
        /// Whether the store widened ranges because they were too many to remember each.
        rounded: bool,
        /// At most [`super::MAX_STATUS_RUNS`] ranges in order of address.
        ranges: Vec<Range>,
        /// Whether more follow: ask again from the end of the last.
        more: bool,
    },
    /// An attribute; empty if no host has set it.
    Attribute(Vec<u8>),
    /// The outcome of the operation on snapshots.
    Snapshot(SnapshotReply),
    /// The bytes of a volume.
    Stored(StoredBytes),
    /// The outcome of the operation on deleted volumes.
    Trash(TrashReply),
}

/// The facts about a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeInfo {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub id: VolumeId,
    /// Its size in sectors.
    pub sectors: u64,
    /// Logical block size in bytes.
    pub block_bytes: u32,
    /// The time of its creation, seconds since 1970.
    pub created: u64,
    /// The additional facts about an open volume.
    pub live: Option<LiveInfo>,
    /// The damage of its description, if there is any. Then the volume is unusable: only its name
    /// is known, and the rest is zero.
    pub damaged: Option<String>,
}

impl VolumeInfo {
    /// The facts about a volume of which the store can read only the name.
    #[must_use]
    pub fn unusable(name: String, reason: String) -> VolumeInfo {
        let (id, damaged) = (VolumeId(0), Some(reason));
        VolumeInfo { name, id, sectors: 0, block_bytes: 0, created: 0, live: None, damaged }
    }
}

/// The facts that the store knows of a volume once it has opened it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveInfo {
    /// Current epoch.
    pub epoch: Epoch,
    /// The host that attached it last.
    pub host: Option<HostId>,
    /// Its credential and where it is or was, for people; empty if the store does not know.
    pub name: String,
    /// Whether that host has a connection.
    pub connected: bool,
    /// Since when it is not, as seconds since 1970, if the store has seen that.
    pub silent_since: Option<u64>,
    /// Whether it ended its epoch in order.
    pub clean: bool,
    /// Last committed number.
    pub committed: Seq,
    /// Segments in the log.
    pub segments: u64,
    /// The upper bound of the bytes of data that the map refers to. Overwritten or discarded data
    /// may count until the store has merged parts of the map.
    pub mapped_bytes: u64,
    /// Bytes announced and not committed.
    pub announced_bytes: u64,
}

/// Why a volume operation failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum VolumeError {
    /// No such volume.
    #[error("no such volume; `longhaul volume list` shows the existing ones")]
    NotFound,
    /// Another volume has the name.
    #[error("a volume of that name exists; choose another name, or delete it first")]
    Exists,
    /// The name, size or block size is invalid.
    #[error("{0}")]
    Invalid(String),
    /// A host has it attached, and has a connection or may be on its way back.
    #[error(
        "host {0} has the volume attached; stop that host first, or wait for 10 s if it is gone"
    )]
    InUse(HostId),
    /// The store failed.
    #[error("the store could not do it: {0}")]
    Store(String),
    /// The epoch is over.
    #[error("epoch {0} has ended the epoch of this request")]
    Fenced(Epoch),
    /// An error of an operation on snapshots.
    #[error(transparent)]
    Snapshot(SnapshotError),
    /// The credential may not do that: why not, and who may.
    #[error("{0}")]
    Forbidden(String),
    /// An attribute does not have the value that the request wants to replace.
    #[error("another one has changed it meanwhile: look at it, and try again")]
    Changed,
}

/// The digest that stands for the value of an attribute: its SHA-256. That of no bytes stands for
/// an attribute without a value.
#[must_use]
pub fn attribute_digest(data: &[u8]) -> [u8; 32] {
    Sha256::digest(data).into()
}
