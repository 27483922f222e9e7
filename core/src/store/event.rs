//! What an engine tells of itself, and why one cannot go on.
//!
//! [`Volume::failed`]: super::Volume::failed
//! [`Volume::handle_repaired`]: super::Volume::handle_repaired

use super::session::SessionId;
use crate::block::{Epoch, Range, Seq};
use crate::wire::link::{HostId, KeyId, RequestId};

/// Something the shell should log or count. None needs an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The log has been read; the volume answers.
    Opened {
        /// Segments in the log.
        segments: u64,
        /// Segments after the root, which were read.
        replayed: u64,
        /// Current epoch.
        epoch: Epoch,
        /// Last committed number.
        committed: Seq,
    },
    /// The volume cannot be opened or cannot go on: see [`Volume::failed`].
    Failed(OpenError),
    /// A root could not be used; an older one or the segments take its place.
    RootDamaged {
        /// Of the object.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
    /// This engine maintains the map from now on.
    Claimed {
        /// The generation that began with it.
        generation: u64,
    },
    /// Another store has claimed it since.
    Superseded {
        /// The generation that began with that, or the first since.
        generation: u64,
    },
    /// The map goes on from a newer root, of another store.
    Adopted {
        /// Its generation.
        generation: u64,
        /// The last segment in it.
        through: u64,
        /// Segments after it whose map had to be read again.
        again: u64,
    },
    /// A table of the map is in fragments.
    Flushed {
        /// The last segment in it.
        through: u64,
        /// Fragments written.
        fragments: usize,
        /// Bytes of them.
        bytes: u64,
    },
    /// Fragments were merged, or moved to a lower level.
    Merged {
        /// Bytes written; 0 if they were moved.
        bytes: u64,
    },
    /// Objects that no root needs are being deleted.
    Deleted {
        /// How many.
        objects: u64,
    },
    /// The map has been merged into one level, to be counted.
    Compacted,
    /// What is named of all segments and bundles has been counted.
    Counted {
        /// Bytes of those of which something is.
        stored_bytes: u64,
        /// Bytes of them that are named, at most.
        named_bytes: u64,
    },
    /// What was left of segments lies in a bundle now.
    Moved {
        /// How many segments.
        segments: u64,
        /// Bytes of the bundle.
        bytes: u64,
    },
    /// Nobody needs these segments and bundles any more: they are deleted once readers of older roots had time.
    Reclaimed {
        /// How many.
        objects: u64,
        /// Their bytes.
        bytes: u64,
    },
    /// A segment or bundle is damaged, so that what is left of it cannot be moved: it stays.
    NotCollected {
        /// Of the object.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A host began an epoch.
    Attached {
        /// The new epoch.
        epoch: Epoch,
        /// Who.
        host: HostId,
        /// The host before it, if that one had not detached in order.
        unclean: Option<HostId>,
        /// The session in which it asked.
        session: SessionId,
        /// And the request.
        request: RequestId,
        /// The host before it if it had not detached, for people.
        former: Option<String>,
    },
    /// A session asked for something in the current epoch, which belongs to another key than its own: nothing was done. Told
    /// once of each session and action.
    OtherKey {
        /// Whose.
        session: SessionId,
        /// What, as in `volume.announce`.
        action: &'static str,
        /// The request, if it has no answer.
        request: Option<RequestId>,
        /// The epoch.
        epoch: Epoch,
        /// The key that it belongs to.
        key: KeyId,
    },
    /// The volume has another size, or turns out to have when its log is read.
    Resized {
        /// In sectors.
        sectors: u64,
    },
    /// What a host never delivered was given up.
    LossAccepted {
        /// The epoch that this began.
        epoch: Epoch,
        /// Bytes in the ranges given up.
        bytes: u64,
    },
    /// The volume is what a snapshot of it is.
    RolledBack {
        /// The epoch that this began.
        epoch: Epoch,
        /// The segment that took the snapshot.
        segment: u64,
        /// Bytes in the ranges that a host never delivered, and that are given up.
        bytes: u64,
    },
    /// Another store wrote to this volume's log; what it wrote has been adopted.
    Rival {
        /// The epoch now.
        epoch: Epoch,
        /// Whose it is.
        host: Option<HostId>,
        /// Segments adopted.
        segments: u64,
    },
    /// Other stores have gone on with the log so far that what this one knows of it has been deleted: it begins anew.
    LeftBehind {
        /// The last segment that was known here.
        segment: u64,
    },
    /// A batch was refused.
    BatchRefused {
        /// Whose.
        session: SessionId,
        /// Why.
        reason: String,
    },
    /// Announced ranges that make no sense were ignored.
    AnnounceIgnored {
        /// Whose.
        session: SessionId,
        /// How many.
        entries: u64,
    },
    /// Stored data is damaged or gone: reads of this range fail. Where there is a replica they wait for
    /// [`Volume::handle_repaired`].
    DataDamaged {
        /// Of the segment, the staged object or the part of the map that is to say where it lies.
        key: String,
        /// The sectors.
        range: Range,
        /// What is wrong with it.
        reason: String,
    },
    /// An object that has to be there is said not to exist, or could not be read several times; it is asked for again.
    Unreadable {
        /// Of the object.
        key: String,
    },
    /// The host was told what of its volume is damaged here.
    DamageTold {
        /// Whose.
        session: SessionId,
        /// In so many ranges.
        ranges: usize,
        /// Bytes of them.
        bytes: u64,
    },
    /// An operation on an object failed and will be tried again.
    Retry {
        /// Of the object, or the prefix of a list.
        key: String,
        /// What the object store said.
        error: String,
        /// How many times it has failed in a row.
        failures: u32,
    },
}

/// Why a volume cannot be opened, or cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The volume has no such snapshot, or none any more.
    #[error("the volume has no such snapshot: it has been deleted")]
    NoSnapshot,
    /// What a clone begins with is not there.
    #[error(
        "the snapshot that this clone began with is gone: bring the roots of its parent back from a copy of the object \
         store, and the volume is opened again; nothing has been changed"
    )]
    NoParent,
    /// What a clone begins with is not to be had yet.
    #[error(
        "no root of its parent has the snapshot that this clone began with yet: the parent's engine writes one; the volume is \
         opened again"
    )]
    ParentBehind,
    /// A segment in the middle of the log is not there.
    #[error(
        "segment {key} is missing although later ones exist: bring it back from a copy of the object store, and the \
         volume is opened again; nothing has been changed"
    )]
    Missing {
        /// Of the segment.
        key: String,
    },
    /// A segment's header, footer or place in the log is not valid.
    #[error(
        "segment {key} is damaged ({reason}): bring it back from a copy of the object store, and the volume is opened again; \
         `longhaul check` lists all damage; nothing has been changed"
    )]
    Damaged {
        /// Of the segment.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The segments end before a root that was made of them.
    #[error(
        "{key} was made of segments up to {number}, but they end at {end}: bring the missing ones back from a \
         copy of the object store, and the volume is opened again; nothing has been changed"
    )]
    Truncated {
        /// Of the root.
        key: String,
        /// The last segment there must be.
        number: u64,
        /// The last segment there is.
        end: u64,
    },
}
