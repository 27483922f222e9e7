//! Events that an engine reports, and the reasons why an engine cannot continue.
//!
//! [`Volume::failed`]: super::Volume::failed [`Volume::handle_repaired`]:
//! super::Volume::handle_repaired

use super::object::StorageError;
use super::session::SessionId;
use crate::block::{Epoch, Range, Seq};
use crate::wire::link::{HostId, KeyId, RequestId};

/// Something the shell should log or count. None needs an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The engine has read the log; the volume answers.
    Opened {
        /// Segments in the log.
        segments: u64,
        /// The number of segments that the engine read after the root.
        replayed: u64,
        /// Current epoch.
        epoch: Epoch,
        /// Last committed number.
        committed: Seq,
    },
    /// The engine cannot open the volume or cannot continue: see [`Volume::failed`].
    Failed(OpenError),
    /// The engine could not use a root; it uses an older root or the segments instead.
    RootDamaged {
        /// Of the object.
        key: String,
        /// The damage of the root.
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
        /// The number of segments after the root whose map the engine had to read again.
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
    /// The engine merged fragments, or moved them to a lower level.
    Merged {
        /// Bytes written; 0 for moved fragments.
        bytes: u64,
    },
    /// The engine deletes objects that no root needs.
    Deleted {
        /// How many.
        objects: u64,
    },
    /// The engine has merged the map into one level, before a count.
    Compacted,
    /// The engine has counted the named bytes of all segments and bundles.
    Counted {
        /// Bytes of those of which something is.
        stored_bytes: u64,
        /// The upper bound of their named bytes.
        named_bytes: u64,
    },
    /// A bundle holds the named rest of segments now.
    Moved {
        /// How many segments.
        segments: u64,
        /// Bytes of the bundle.
        bytes: u64,
    },
    /// No reader needs these segments and bundles. The engine deletes them after a delay for the
    /// readers of older roots.
    Reclaimed {
        /// How many.
        objects: u64,
        /// Their bytes.
        bytes: u64,
    },
    /// A segment or bundle is damaged. The engine cannot move the rest of it, so the object stays.
    NotCollected {
        /// Of the object.
        key: String,
        /// The damage of the object.
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
    /// A session sent a request in the current epoch, which belongs to another key than the
    /// session's. The engine did nothing. The engine reports this once for each session and action.
    OtherKey {
        /// Whose.
        session: SessionId,
        /// The action, such as `volume.announce`.
        action: &'static str,
        /// The request, if it has no answer.
        request: Option<RequestId>,
        /// The epoch.
        epoch: Epoch,
        /// The key that it belongs to.
        key: KeyId,
    },
    /// The volume has another size, or the engine finds one when it reads the log.
    Resized {
        /// In sectors.
        sectors: u64,
    },
    /// An operator gave up writes that a host never delivered.
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
        /// Bytes in the ranges that the host never delivered, and that the operator gave up.
        bytes: u64,
    },
    /// Another store wrote to the log of this volume; this engine has adopted the segment.
    Rival {
        /// The epoch now.
        epoch: Epoch,
        /// Whose it is.
        host: Option<HostId>,
        /// Segments adopted.
        segments: u64,
    },
    /// Other stores have continued the log so far that they deleted the segments that this engine
    /// knows. It begins anew.
    LeftBehind {
        /// The last segment that this engine knew.
        segment: u64,
    },
    /// The engine refused a batch.
    BatchRefused {
        /// Whose.
        session: SessionId,
        /// Why.
        reason: String,
    },
    /// The engine ignored announced ranges that make no sense.
    AnnounceIgnored {
        /// Whose.
        session: SessionId,
        /// How many.
        entries: u64,
    },
    /// Stored data is damaged or missing, so reads of this range fail. With a replica they wait for
    /// [`Volume::handle_repaired`].
    DataDamaged {
        /// Of the segment, the staged object or the part of the map that is to say where it lies.
        key: String,
        /// The sectors.
        range: Range,
        /// The damage of the data.
        reason: String,
    },
    /// An object that has to exist is missing, or several reads of it failed. The engine asks for
    /// it again.
    Unreadable {
        /// Of the object.
        key: String,
    },
    /// The engine told the host which ranges of its volume are damaged here.
    DamageTold {
        /// Whose.
        session: SessionId,
        /// In this number of ranges.
        ranges: usize,
        /// Bytes of them.
        bytes: u64,
    },
    /// An operation on an object failed; the engine will try it again.
    Retry {
        /// Of the object, or the prefix of a list.
        key: String,
        /// The answer of the object store.
        error: StorageError,
        /// How many times it has failed in a row.
        failures: u32,
    },
}

/// The reason why an engine cannot open a volume, or cannot continue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The snapshot that a clone begins with is gone.
    #[error("the volume has no such snapshot: it has been deleted")]
    NoSnapshot,
    /// A clone's first object is missing.
    #[error(
        "the snapshot that this clone began with is gone: bring the roots of its parent back from \
         a copy of the object store, and the store opens the volume again; it has changed nothing"
    )]
    NoParent,
    /// No root of the parent has the snapshot that a clone begins with yet.
    #[error(
        "no root of its parent has the snapshot that this clone began with yet: the parent's \
         engine writes one, and the store opens the volume again; restore the parent if it is \
         deleted"
    )]
    ParentBehind,
    /// A segment in the middle of the log is not there.
    #[error(
        "segment {key} is missing although later ones exist: bring it back from a copy of the \
         object store, and the volume is opened again; nothing has been changed"
    )]
    Missing {
        /// Of the segment.
        key: String,
    },
    /// A segment's header, footer or place in the log is not valid.
    #[error(
        "segment {key} is damaged ({reason}): bring it back from a copy of the object store, and \
         the store opens the volume again; `longhaul check` lists all damage; the store has \
         changed nothing"
    )]
    Damaged {
        /// Of the segment.
        key: String,
        /// The damage of the object.
        reason: String,
    },
    /// The segments end before the segment of a root.
    #[error(
        "{key} needs segments up to {number}, but the log ends at {end}: bring the missing ones \
         back from a copy of the object store, and the store opens the volume again; it has \
         changed nothing"
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
