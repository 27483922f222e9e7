//! Purposes and results of the operations on objects of a volume.

use super::super::ObjectMeta;
use super::super::catalog::RootName;
use super::super::gc::bundle::BundleId;
use super::super::gc::round::Object;
use super::super::map::Get;
use super::super::map::fragment::Fragment;
use super::super::map::fragment::FragmentId;
use super::super::moves::Want;
use super::super::open::Part;
use super::reply::ReplyAddress;
use crate::wire::link::StagedRun;
use bytes::Bytes;

/// The purpose of an operation on objects.
#[derive(Debug)]
pub(super) enum ObjectPurpose {
    ListRoots,
    /// The roots of a parent, by its place in the list of these.
    ListAncestor(usize),
    /// One of them; these are older, the newest last.
    ReadAncestor(usize, RootName, Vec<RootName>),
    /// Finds out whether the log has continued beyond the engine's last segment.
    ListEnd,
    /// Like `ListEnd`, after the put of the segment of that number.
    ConfirmPut(u64),
    ReadRoot(RootName),
    ReadLog {
        number: u64,
        part: Part,
    },
    /// Of that number.
    PutSegment(u64),
    /// Of the object in the place of that segment.
    ReadBack(u64),
    ListOwners,
    PutOwner(u64),
    ReadOwner(u64),
    ListFragments,
    /// The roots of snapshots.
    ListPins,
    ReadPin(RootName),
    /// The root of a snapshot, for rolling back to it.
    ReadBase(RootName),
    PutPin(RootName),
    PutFragment(FragmentId),
    /// For a merge.
    ReadFragment(Get),
    /// For reads; the flag says whether the newest root names the page.
    ReadPage(Want, bool),
    PutRoot(RootName),
    /// A part of a segment, for what it says about the map.
    Rebuild {
        number: u64,
        part: Part,
    },
    Delete,
    /// For the collector, of that serial number.
    Collect(u64, CollectorRequest),
    PutSize {
        number: u64,
    },
    Fetch {
        read: u64,
        index: usize,
        /// The newest root names it.
        known: bool,
    },
    PutStaged(StagedPut),
    /// A part of a segment, for a map diff.
    ScanLog {
        diff: u64,
        number: u64,
        part: Part,
    },
}

impl ObjectPurpose {
    /// Whether the log, or the newest root, says that the object is there.
    pub fn is_known(&self) -> bool {
        matches!(
            self,
            ObjectPurpose::Fetch { known: true, .. }
                | ObjectPurpose::ScanLog { .. }
                | ObjectPurpose::ReadPage(_, true)
                | ObjectPurpose::ReadRoot(_)
                | ObjectPurpose::ReadPin(_)
                | ObjectPurpose::ReadBase(_)
        )
    }
}

/// The requests of the collector to the object store.
#[derive(Clone, Debug)]
pub(super) enum CollectorRequest {
    Segments,
    Bundles,
    /// A fragment of the second map.
    Moved(Fragment),
    Root(RootName),
    /// The root of a snapshot.
    Pin(RootName),
    Fragment(FragmentId),
    Object(Object),
    Put(BundleId),
    Head(u64),
}

/// An object with staged data whose put is in progress.
#[derive(Debug)]
pub(super) struct StagedPut {
    pub to: ReplyAddress,
    /// The content of the object.
    pub runs: Vec<StagedRun>,
    /// Counted by the reads until it is there.
    pub bytes: u64,
}

/// The result of an operation.
pub(super) enum ObjectOutcome {
    Done,
    Exists,
    Data(Bytes),
    NotFound,
    List(Vec<ObjectMeta>),
}
