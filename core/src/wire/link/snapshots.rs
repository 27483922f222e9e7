//! Messages about snapshots and clones.

use super::limits::{MAX_HEAD_BYTES, MAX_NAME_BYTES};
use crate::block::{Range, VolumeId};
use serde::{Deserialize, Serialize};

/// Most snapshots of one [`SnapshotReply::List`].
pub const MAX_SNAPSHOTS_LISTED: usize = 512;
/// Most snapshots of one [`SnapshotOperation::Usage`]: the store holds a part of the map of each in
/// memory at a time.
pub const MAX_MAPS_COUNTED: usize = 64;

const _: () = assert!(
    MAX_SNAPSHOTS_LISTED * (MAX_NAME_BYTES + 3 + 19 + 4 * 10) + 64 <= MAX_HEAD_BYTES,
    "postcard takes ≤ 19 B for an identity and ≤ 10 B for a number"
);

/// Something about the snapshots of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SnapshotOperation {
    /// Takes one: the committed content when its turn has come.
    Create {
        /// Its name, by the rules of volume names.
        snapshot: String,
        /// Its identity, drawn at random by who asks: to ask again is to ask for the same. Nothing
        /// else may have it.
        id: VolumeId,
        /// When, in seconds since 1970. The store fills this in, whatever it is.
        created: u64,
        /// Whether the store first asks a connected host for all acknowledged writes.
        barrier: bool,
    },
    /// Lists them, the oldest first.
    List {
        /// Continue a long list after the snapshot of this segment; 0 from the beginning.
        after: u64,
        /// Whether the list has deleted ones too that stay for their clones.
        hidden: bool,
    },
    /// Deletes one. One with clones is no longer seen, and goes with the last of these.
    Delete {
        /// Which.
        snapshot: String,
    },
    /// Makes the volume what it was then, in an epoch without a host; the size stays. While a
    /// writing host has a connection, the store refuses it. A repetition rolls back again.
    Rollback {
        /// To which.
        snapshot: String,
    },
    /// Notes that a volume begins with the content of a snapshot, which stays as long as that
    /// volume. The store makes the volume afterward.
    Clone {
        /// Of which snapshot.
        snapshot: String,
        /// The clone's name.
        clone: String,
        /// The clone's identity, drawn at random by who asks, as a snapshot's.
        id: VolumeId,
    },
    /// A clone is gone, with everything that it consisted of. Stores say this to themselves.
    Forget {
        /// The clone's identity. An unknown one is a success too.
        id: VolumeId,
    },
    /// Returns the map diff of a snapshot and another one, or of a snapshot and the present volume.
    /// It leaves out ranges that read as before and have no write in between. The store service
    /// answers this, not an engine.
    Diff {
        /// The one.
        since: SnapshotKey,
        /// The other; without it the volume.
        until: Option<SnapshotKey>,
        /// The range of that one, which the store looks at from its start on.
        range: Range,
    },
    /// Returns the stored bytes that snapshots and the volume name. The store service answers this,
    /// not an engine.
    Usage {
        /// The snapshots, at most [`MAX_MAPS_COUNTED`]; data that several of them name is unique to
        /// none.
        snapshots: Vec<SnapshotKey>,
        /// The size in sectors of the volume, if the store counts the volume's data with them.
        volume: Option<u64>,
        /// The range, which the store looks at from its start on.
        range: Range,
    },
}

impl SnapshotOperation {
    /// Whether it begins an epoch, nobody's.
    #[must_use]
    pub fn begins_epoch(&self) -> bool {
        matches!(self, SnapshotOperation::Rollback { .. })
    }
}

/// The outcome of a [`SnapshotOperation`] that succeeded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SnapshotReply {
    /// Taken.
    Taken(SnapshotInfo),
    /// Snapshots in order of age, without those that only clones need.
    List {
        /// At most [`MAX_SNAPSHOTS_LISTED`].
        snapshots: Vec<SnapshotInfo>,
        /// Whether more follow: ask again after the segment of the last.
        more: bool,
    },
    /// Deleted, forgotten.
    Done,
    /// The log has noted the first content of a clone, which stays.
    Pinned {
        /// The clone's size in sectors.
        sectors: u64,
        /// Where what it does not have itself comes from, the nearest first.
        parents: Vec<Parent>,
    },
    /// What differs.
    Diff {
        /// At most [`super::MAX_CHANGED_RANGES`], in order of address.
        ranges: Vec<Range>,
        /// Between the start of the range asked for and this sector, which is at least one further;
        /// ask again from here on.
        end: u64,
    },
    /// What is named.
    Usage {
        /// By each snapshot asked for, in that order, and last by the volume.
        maps: Vec<MapUsage>,
        /// By any of them, of what the volume has stored itself.
        named_bytes: u64,
        /// Between the start of the range asked for and this sector, as of [`SnapshotReply::Diff`].
        end: u64,
    },
}

/// The use of some sectors by the map of a snapshot or volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapUsage {
    /// Which.
    pub id: VolumeId,
    /// Bytes that have data, as a client sees them.
    pub logical_bytes: u64,
    /// The stored bytes of these, also if a clone's parent has them.
    pub referenced_bytes: u64,
    /// The bytes of those that neither another counted map nor a parent names.
    pub unique_bytes: u64,
}

/// The bytes of a volume in the store's location.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredBytes {
    /// The bytes of segments and bundles.
    pub segments: u64,
    /// Of staged objects.
    pub staged: u64,
    /// Of everything else: its maps above all.
    pub maps: u64,
}

/// Names a snapshot, for users of its [`SnapshotInfo`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotKey {
    /// Its identity.
    pub id: VolumeId,
    /// The segment that took it.
    pub segment: u64,
    /// Its size.
    pub sectors: u64,
}

/// A volume from which a clone has what it did not write itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    /// Which.
    pub volume: VolumeId,
    /// Its segments up to this one, the snapshot's, count: the next nearer one goes on after it.
    pub segment: u64,
    /// The snapshot's identity.
    pub snapshot: VolumeId,
}

/// The facts about a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotInfo {
    /// Its name.
    pub name: String,
    /// Its identity: a host reads it under this identity as a volume of its own.
    pub id: VolumeId,
    /// It is what the volume was after this segment.
    pub segment: u64,
    /// Its size in sectors.
    pub sectors: u64,
    /// The time of the snapshot, seconds since 1970.
    pub created: u64,
    /// Clones that began with it and are still there.
    pub clones: u32,
    /// An operator deleted it, and it stays for these.
    pub hidden: bool,
}

impl SnapshotInfo {
    /// The key of the snapshot for readers.
    pub fn key(&self) -> SnapshotKey {
        SnapshotKey { id: self.id, segment: self.segment, sectors: self.sectors }
    }
}

/// Why an operation on snapshots failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum SnapshotError {
    /// No such snapshot.
    #[error("the volume has no such snapshot; `longhaul snapshot list` shows the existing ones")]
    NotFound,
    /// Another one has the name.
    #[error("the volume has a snapshot of that name; choose another name, or delete it first")]
    Exists,
    /// Another one has the identity.
    #[error("that identity is in use already; ask again with another one")]
    IdTaken,
    /// The volume has too many snapshots.
    #[error("the volume has {0} snapshots, the most that it may have; delete some first")]
    TooMany(u32),
    /// It would have too many parents.
    #[error(
        "a clone of this volume would have more than {0} volumes behind it; copy it into a volume \
         of its own instead, with `longhaul volume export` and `import`"
    )]
    TooDeep(u32),
    /// The host went away before it had delivered what it had acknowledged.
    #[error(
        "the host that has the volume attached went away, or did not name its acknowledged writes: \
         try again, or take the snapshot of the store's data with --no-barrier"
    )]
    NoBarrier,
}
