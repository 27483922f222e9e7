//! The link protocol: the messages between host and store.
//!
//! A frame is `head length (u32 LE) | payload length (u32 LE) | head | payload`. The head is a
//! message in [postcard] encoding. The payload is raw bytes that the message describes (records of
//! a batch, blocks of a read). Frames travel in order within a [`Lane`]; lanes are independent of
//! each other. The transport authenticates and encrypts.
//!
//! The protocol has one version, 1. [`ToStore::Hello`] and [`ToHost::Hello`] agree on it; they keep
//! their form in all versions.

mod attach;
mod data;
mod fleet;
mod frame;
mod ids;
mod limits;
mod principal;
mod snapshots;
mod tenants;
mod trash;
mod volumes;

pub use attach::{AttachError, Attached, JournalState};
pub use data::{Piece, ReadPart, decode_data, encode_data};
pub use fleet::{
    Claim, MAX_SERVED, MAX_SERVED_NAME_BYTES, MAX_STORES, ReplicaOperation, ReplicaState, Served,
    StoreId, StoreOperation, StoreReply, StoreReport, StoreState,
};
pub use frame::{Frame, FrameError};
pub use ids::{HostId, RequestId};
pub use limits::{
    BATCH_BYTES, FRAME_PREFIX_BYTES, MAX_ANNOUNCE_ENTRIES, MAX_ATTRIBUTE_BYTES, MAX_BATCH_BYTES,
    MAX_CHANGED_RANGES, MAX_DAMAGED_RANGES, MAX_HEAD_BYTES, MAX_NAME_BYTES, MAX_PAYLOAD_BYTES,
    MAX_READ_SECTORS, MAX_STATUS_RUNS,
};
pub use principal::{KeyId, Principal};
pub use snapshots::{
    MAX_MAPS_COUNTED, MAX_SNAPSHOTS_LISTED, MapUsage, Parent, SnapshotError, SnapshotInfo,
    SnapshotKey, SnapshotOperation, SnapshotReply, StoredBytes,
};
pub use tenants::{TenantInfo, TenantLimits, TenantOperation, TenantReply};
pub use trash::{DeletedInfo, MAX_DELETED_LISTED, TrashOperation, TrashReply};
pub use volumes::{
    LiveInfo, VolumeError, VolumeInfo, VolumeOperation, VolumeReply, attribute_digest,
};

use crate::block::{Epoch, Range, Seq, StatusRun, VolumeId};
use serde::{Deserialize, Serialize};

/// Oldest protocol version spoken.
pub const MIN_VERSION: u16 = 1;
/// Newest protocol version spoken.
pub const MAX_VERSION: u16 = 1;

/// The lanes, the most urgent first. Replies travel back in the lane of their request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Reads that someone waits for.
    Read,
    /// Attach, announce, commits, volume operations: small and rare.
    Control,
    /// Reads that nobody waits for yet.
    ReadAhead,
    /// Batches. While a flush waits for a commit the lane is worth as much as [`Lane::Control`].
    Drain,
}

impl Lane {
    /// All lanes, the most urgent first.
    pub const ALL: [Lane; 4] = [Lane::Read, Lane::Control, Lane::ReadAhead, Lane::Drain];
}

/// Host to store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToStore {
    /// First frame on [`Lane::Control`].
    Hello {
        /// Oldest version the host speaks.
        min_version: u16,
        /// Newest version the host speaks.
        max_version: u16,
        /// For logs.
        software: String,
    },
    /// Begins a new epoch of a volume.
    Attach {
        /// For the reply.
        request: RequestId,
        /// Volume name.
        name: String,
        /// Who asks.
        host: HostId,
        /// The state of the host's journal, if it has one for this volume.
        journal: Option<JournalState>,
        /// Take the volume even from a connected host.
        take_over: bool,
    },
    /// Continues an epoch after the connection was lost.
    Resume {
        /// For the reply.
        request: RequestId,
        /// Which volume.
        volume: VolumeId,
        /// The epoch to go on with.
        epoch: Epoch,
        /// The requesting host; must be the host that attached, with the same key.
        host: HostId,
    },
    /// Ends an epoch: the store has committed every acknowledged write.
    Detach {
        /// For the reply.
        request: RequestId,
        /// Which volume.
        volume: VolumeId,
        /// The epoch that ends.
        epoch: Epoch,
    },
    /// Writes to commit, all or none. The payload holds records in order of `seq`. Numbers may be
    /// missing that later ones of the batch overwrote.
    Batch {
        /// Which volume.
        volume: VolumeId,
        /// The host's epoch.
        epoch: Epoch,
        /// First number of the batch: the last of the batch before plus one.
        first: Seq,
        /// Last number of the batch.
        last: Seq,
    },
    /// Ranges that the host acknowledged to the initiator and has not sent yet.
    Announce {
        /// Which volume.
        volume: VolumeId,
        /// The host's epoch.
        epoch: Epoch,
        /// Forget earlier announcements (first frame after attach or resume).
        replace: bool,
        /// At most [`MAX_ANNOUNCE_ENTRIES`], in any order.
        entries: Vec<Announced>,
    },
    /// Reads at most [`MAX_READ_SECTORS`].
    Read {
        /// For the reply.
        request: RequestId,
        /// Which volume.
        volume: VolumeId,
        /// The host's epoch; 0 for an observer, which reads committed data and attaches nothing.
        epoch: Epoch,
        /// What to read.
        range: Range,
    },
    /// Asks which parts of the range are data, zeroes or holes.
    Status {
        /// For the reply.
        request: RequestId,
        /// Which volume.
        volume: VolumeId,
        /// As for reads.
        epoch: Epoch,
        /// Of which range.
        range: Range,
    },
    /// Something about volumes as a whole.
    Volume {
        /// For the reply.
        request: RequestId,
        /// What.
        operation: VolumeOperation,
    },
    /// Copies what the store has committed of a range into a staged object of another volume, or
    /// the same.
    Stage {
        /// For the reply.
        request: RequestId,
        /// The volume to copy from.
        volume: VolumeId,
        /// The host's epoch of that volume.
        epoch: Epoch,
        /// The range to copy: at most [`crate::block::MAX_STAGE_SECTORS`].
        range: Range,
        /// The volume that the object is for.
        into: VolumeId,
        /// Where in it the range's first sector goes.
        lba: u64,
        /// Number of the object, bit 63 set.
        object: u64,
    },
    /// Asks for the sectors with a write, discard or zeroing after a moment in the log.
    Changed {
        /// For the reply.
        request: RequestId,
        /// Which volume.
        volume: VolumeId,
        /// The host's epoch.
        epoch: Epoch,
        /// Since when.
        since: Moment,
    },
    /// As [`ToStore::Read`], from a host that has asked to resume and has no answer yet; its Resume
    /// may arrive later than this.
    EarlyRead {
        /// For the reply.
        request: RequestId,
        /// Which volume.
        volume: VolumeId,
        /// The host's epoch.
        epoch: Epoch,
        /// The last number that the host knows to be committed: the answer must have all up to it.
        committed: Seq,
        /// What to read.
        range: Range,
    },
    /// Something about stores: from another store, or an administrator.
    Store {
        /// For the reply.
        request: RequestId,
        /// What.
        operation: StoreOperation,
    },
    /// Answers [`ToHost::Barrier`], once the host's own journal has it on stable storage.
    Barrier {
        /// Which volume.
        volume: VolumeId,
        /// The host's epoch.
        epoch: Epoch,
        /// Of the question.
        barrier: u64,
        /// The last number that the host had acknowledged at the request, or a later one.
        seq: Seq,
    },
    /// Something about tenants.
    Tenant {
        /// For the reply.
        request: RequestId,
        /// What.
        operation: TenantOperation,
    },
}

/// A moment in the log of a volume, as a host remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// The epoch in which the host learned of it.
    pub epoch: Epoch,
    /// The host of that epoch.
    pub host: HostId,
    /// The last number that was committed then.
    pub seq: Seq,
}

/// Store to host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToHost {
    /// First frame on [`Lane::Control`].
    Hello {
        /// The version spoken from now on, or `None` when there is none in common: the store closes
        /// the connection after this frame.
        version: Option<u16>,
        /// Oldest and newest version the store speaks.
        supported: (u16, u16),
        /// For logs.
        software: String,
        /// Addresses of all stores of this installation.
        stores: Vec<String>,
    },
    /// Answers [`ToStore::Attach`] and [`ToStore::Resume`].
    Attached {
        /// Of the request.
        request: RequestId,
        /// The attachment or why not.
        result: Result<Attached, AttachError>,
    },
    /// Answers [`ToStore::Detach`].
    Detached {
        /// Of the request.
        request: RequestId,
    },
    /// Everything up to `seq` is durable at the store.
    Committed {
        /// Which volume.
        volume: VolumeId,
        /// The epoch of the host that gets this.
        epoch: Epoch,
        /// The last committed number.
        seq: Seq,
    },
    /// The host's epoch is over.
    Fenced {
        /// Which volume.
        volume: VolumeId,
        /// The epoch that ended it.
        epoch: Epoch,
    },
    /// The store could not take a batch; the connection stays, and the host resumes.
    BatchRefused {
        /// Which volume.
        volume: VolumeId,
        /// Of the host.
        epoch: Epoch,
        /// Why, for the log.
        reason: String,
    },
    /// Answers [`ToStore::Read`]. The payload holds, for each data piece in order, its checksum
    /// table and its blocks.
    Data {
        /// Of the request.
        request: RequestId,
        /// Which volume.
        volume: VolumeId,
        /// Pieces in order that together are the range asked for, or why not.
        result: Result<Vec<Piece>, ReadError>,
    },
    /// Answers [`ToStore::Status`].
    Status {
        /// Of the request.
        request: RequestId,
        /// Which volume.
        volume: VolumeId,
        /// Runs from the start of the range; they may end before it does.
        result: Result<Vec<StatusRun>, ReadError>,
    },
    /// Answers [`ToStore::Volume`].
    Volume {
        /// Of the request.
        request: RequestId,
        /// The outcome.
        result: Result<VolumeReply, VolumeError>,
    },
    /// The volume has grown while the host has it attached. A host that does not get this learns it
    /// from [`Attached`] when it resumes or attaches.
    Resized {
        /// Which volume.
        volume: VolumeId,
        /// Its size in sectors, on stable storage.
        sectors: u64,
    },
    /// Answers [`ToStore::Stage`].
    Staged {
        /// Of the request.
        request: RequestId,
        /// The volume copied from.
        volume: VolumeId,
        /// Runs in order that together are the range asked for, or why not. The object exists
        /// unless none of them is data.
        result: Result<Vec<StagedRun>, StageError>,
    },
    /// Answers [`ToStore::Changed`].
    Changed {
        /// Of the request.
        request: RequestId,
        /// Which volume.
        volume: VolumeId,
        /// At least the writes between that moment and the request; or the reason why there is no
        /// answer.
        result: Result<Changes, ReadError>,
    },
    /// Answers [`ToStore::Store`].
    Store {
        /// Of the request.
        request: RequestId,
        /// The outcome.
        result: Result<StoreReply, VolumeError>,
    },
    /// The list of stores has changed, or the host has to leave this one.
    Stores {
        /// Addresses of all stores of this installation; or of those to go to, the first of them
        /// first.
        stores: Vec<String>,
        /// Whether the host is to go to one of these, as soon as one answers.
        leave: bool,
    },
    /// Some request needs all writes committed that the host has acknowledged so far. The host
    /// sends them without waiting for more, and answers with the last number of them.
    Barrier {
        /// Which volume.
        volume: VolumeId,
        /// The host's epoch.
        epoch: Epoch,
        /// For the answer.
        barrier: u64,
    },
    /// Answers [`ToStore::Tenant`].
    Tenant {
        /// Of the request.
        request: RequestId,
        /// The outcome.
        result: Result<TenantReply, VolumeError>,
    },
    /// Whether the store has space for more data of a volume. While it has none, it repeats the
    /// message now and then; it sends the message again when it has space. On a new link the host
    /// assumes space until a message comes.
    Room {
        /// Which volume.
        volume: VolumeId,
        /// The host's epoch.
        epoch: Epoch,
        /// Whether there is.
        room: bool,
    },
    /// The state of the replica of the volume's objects. It comes before the answer to a resume,
    /// after the answer to an attach, and on every change.
    Replica {
        /// Which volume.
        volume: VolumeId,
        /// The epoch of the host.
        epoch: Epoch,
        /// How far it is.
        progress: ReplicaProgress,
    },
    /// The store's data of these sectors is damaged, or was when the store found the damage. A host
    /// that has their content writes it anew. The host sends no answer. A host without the content
    /// reports no failure.
    Damaged {
        /// Which volume.
        volume: VolumeId,
        /// The epoch of the host.
        epoch: Epoch,
        /// At most [`MAX_DAMAGED_RANGES`], in any order.
        ranges: Vec<Range>,
    },
}

/// The writes of a volume since a moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Changes {
    /// At most [`MAX_CHANGED_RANGES`] ranges in order of address. No write is outside of them. They
    /// may be wider than the writes.
    Ranges(Vec<Range>),
    /// The moment is not one of this log, or too long ago: writes may be anywhere.
    Unknown,
}

/// The state of the replica of a volume's objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReplicaProgress {
    /// There is none.
    #[default]
    None,
    /// The installation has one, and committed writes get there later.
    Behind,
    /// Everything up to this number is there as well.
    InStep(Seq),
}

/// A part of the staged data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StagedRun {
    /// This many sectors never written or discarded.
    Hole(u64),
    /// This many zeroed sectors.
    Zero(u64),
    /// A data record of exactly these sectors of the volume that the object is for.
    Data {
        /// How many: at most [`crate::record::MAX_RECORD_SECTORS`].
        sectors: u64,
        /// Byte of the object at which the record begins.
        offset: u32,
    },
}

/// The reason why the store staged nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum StageError {
    /// The store cannot read the range.
    #[error(transparent)]
    Read(ReadError),
    /// An object of that number exists.
    #[error("an object of that number exists")]
    Exists,
    /// The store cannot do it: it does not know the volume to copy into.
    #[error("the store cannot copy into that volume")]
    Unsupported,
}

/// An acknowledged range that has not arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Announced {
    /// Where.
    pub range: Range,
    /// The last write in it: once the store has committed this number, the entry is settled.
    pub seq: Seq,
}

/// Why a read failed at the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum ReadError {
    /// The stored data of this range is damaged.
    #[error("damaged at {0}")]
    Medium(Range),
    /// The epoch is over.
    #[error("fenced by epoch {0}")]
    Fenced(Epoch),
    /// The request made no sense: too long, or beyond the volume.
    #[error("not a valid range")]
    Invalid,
    /// The volume is not open at this store (any more): attach or resume, then ask again.
    #[error("the volume is not attached")]
    NotAttached,
}

#[cfg(test)]
mod tests;
