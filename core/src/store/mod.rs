//! Volumes as a log of immutable segments.
//!
//! One [`Volume`] is the log of one volume over an object store that can only create, read, list and
//! delete whole objects. It promises:
//!
//! - what is committed is a prefix of what hosts acknowledged, cut at a batch boundary;
//! - a batch commits whole or not at all, and every byte of it was verified on arrival;
//! - one writer: an epoch begins with a segment created put-if-absent under the next number, so that of
//!   two rivals, in one store or in two, exactly one goes on;
//! - what a host announced and never delivered is known, and stands in the way of a host that attaches
//!   without it.
//!
//! It knows neither sockets nor which object store it runs on, and nothing of a host but its frames.
//!
//! | module | is |
//! |---|---|
//! | [`catalog`] | keys, volume names, the description of a volume |
//! | [`sealed`] | what binds small objects to their names |
//! | [`segment`] | the object format of the log (`docs/formats.md`) |
//! | [`map`] | which sectors lie where |
//! | [`root`] | the state after some segment, and what the map is made of |
//! | [`announce`] | what was acknowledged and has not arrived |
//! | [`attach`] | who may attach, as a function |
//! | [`snapshot`] | the snapshots and clones that the log knows of |
//! | [`log`] | the state that a log adds up to, segment by segment |
//! | [`staged`] | objects with data that a host had staged, to be written elsewhere |
//! | [`lease`] | which store serves a volume |
//! | [`fleet`] | what stores over one location decide together |
//! | [`tenant`] | whose a volume is, and what each tenant may have |
//! | [`trash`] | what becomes of volumes that are deleted |
//! | [`check`] | verifies objects offline |
//! | [`differences`] | what differs between two maps |
//! | [`replica`] | a second place for all objects |
//! | [`cache`] | pieces of objects on a local disk, in front of the object store |
//! | [`Volume`] | the engine |

mod account;
mod ancestor;
pub mod announce;
pub mod attach;
pub mod cache;
pub mod catalog;
pub mod check;
mod diff;
pub mod fleet;
pub mod gc;
pub mod lease;
pub mod log;
mod lookups;
pub mod map;
mod moves;
mod object;
mod open;
mod read_request;
mod reads;
pub mod replica;
pub mod root;
pub mod scrub;
pub mod sealed;
pub mod segment;
pub mod snapshot;
pub mod staged;
pub mod tenant;
pub mod throttle;
pub mod trash;
mod volume;

pub use account::Account;
pub use catalog::VolumeSpec;
pub use diff::{Places, differences};
pub use object::{Copies, GetError, ObjectMeta, ObjectOperation, ObjectResult, PutError};
pub use volume::{ReplicaDurability, SessionPeer, Volume};

use crate::block::{Epoch, Range, Seq};
use crate::wire::link::{BATCH_BYTES, HostId, KeyId, MAX_BATCH_BYTES, RequestId};
use map::pages::SharedPages;
use std::time::Duration;

/// A connection of a host, numbered by the shell and never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// The session in which the shell itself asks an engine for something; no connection has it.
pub const SHELL_SESSION: SessionId = SessionId(u64::MAX);

/// Limits of one volume's engine. Together with the map they bound its memory.
#[derive(Clone, Debug)]
pub struct Config {
    /// A segment takes whole batches up to this many bytes, and at least one batch. At most
    /// [`segment::MAX_RECORDS_BYTES`]. Larger segments are fewer objects; smaller ones commit sooner
    /// where the object store is slow.
    pub segment_bytes: u64,
    /// Batches that wait for a segment, in bytes; beyond it [`Volume::wants_input`] says no. Twice
    /// the bandwidth × latency of the object store keeps it busy.
    pub queue_bytes: u64,
    /// Flush the map's table after this many segments: what opening has to replay.
    pub flush_every_segments: u64,
    /// Flush it when it takes so many bytes. Four times as much is the most before
    /// [`Volume::wants_input`] says no.
    pub table_bytes: u64,
    /// What bounds the rest of the map.
    pub map: map::Limits,
    /// The cache of the map's pages: one for all volumes of a store.
    pub pages: SharedPages,
    /// What the map no longer needs is deleted so long after the root that says so: readers elsewhere may
    /// go by an older root until then.
    pub delete_delay: Duration,
    /// When garbage collection runs, and how fast; never if absent.
    pub garbage_collection: Option<gc::usage::Policy>,
    /// Bytes of fragments that perhaps no root names, for each snapshot and besides a part of the map. With more, an audit
    /// reads the roots of all snapshots.
    pub audit_bytes: u64,
    /// Announced ranges kept in memory (about 150 B each); beyond it neighbours are merged.
    pub announce_entries_max: usize,
    /// Announced ranges written into a segment; beyond it neighbours are merged there.
    pub announce_in_segment_max: usize,
    /// Announcements that no segment has carried for this long get a segment of their own.
    pub announce_persist: Duration,
    /// Concurrent reads of objects.
    pub read_operations_max: usize,
    /// Bytes of objects that reads under way may hold; a single read may exceed it alone. What is
    /// being staged may hold half as much again, or as much as one request.
    pub read_bytes_max: u64,
    /// Reads that wait; beyond it [`Volume::wants_input`] says no.
    pub reads_waiting_max: usize,
    /// How long after its session has ended a host that had not detached still counts as connected for others that want
    /// its volume: what it needs to come back.
    pub holder_grace: Duration,
    /// First and longest pause before an operation that failed is tried again; doubles in between.
    pub retry: (Duration, Duration),
    /// For how long an object that the log names, and that is said not to exist, is asked for again before what
    /// lies in it is a medium error: from the first time that was said, and up to the longest pause of `retry` more. An
    /// object store that cannot be reached is waited for without an end.
    pub missing_wait: Duration,
}

/// How long a missing object is waited for, by default: longer than a directory that several machines share may be
/// behind, and not so long that clients give up first.
pub const MISSING_WAIT: Duration = Duration::from_secs(20);

/// The same with object stores that keep an object on several machines: they may say that it does not exist while too few
/// of them are there (MinIO does), and a machine takes a while to be started again.
pub const MISSING_WAIT_BUCKET: Duration = Duration::from_secs(300);

/// Bytes of memory that the maps of a store's volumes take, by default.
pub const MAP_MEMORY: u64 = 256 << 20;

impl Default for Config {
    fn default() -> Self {
        Config {
            segment_bytes: BATCH_BYTES as u64,
            queue_bytes: 16 << 20,
            flush_every_segments: 64,
            table_bytes: 16 << 20,
            map: map::Limits::default(),
            pages: SharedPages::new(MAP_MEMORY),
            delete_delay: Duration::from_secs(600),
            garbage_collection: None,
            audit_bytes: 64 << 10,
            announce_entries_max: 65_536,
            announce_in_segment_max: 16_384,
            announce_persist: Duration::from_secs(1),
            read_operations_max: 256,
            read_bytes_max: 64 << 20,
            reads_waiting_max: 16_384,
            holder_grace: Duration::ZERO,
            retry: (Duration::from_millis(100), Duration::from_secs(5)),
            missing_wait: MISSING_WAIT,
        }
    }
}

const _: () = assert!(MAX_BATCH_BYTES as u64 <= segment::MAX_RECORDS_BYTES);

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
