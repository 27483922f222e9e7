//! What the operations on objects of a volume are for, and what comes of them.

use super::super::ObjectMeta;
use super::super::catalog::RootName;
use super::super::map::Get;
use super::super::map::fragment::FragmentId;
use super::super::moves::Want;
use super::super::open::Part;
use super::collect::Ask;
use super::stage::Putting;
use bytes::Bytes;

/// What an operation on objects is for.
#[derive(Debug)]
pub(super) enum Purpose {
    ListRoots,
    /// The roots of a parent, by its place in the list of these.
    ListAncestor(usize),
    /// One of them; these are older, the newest last.
    ReadAncestor(usize, RootName, Vec<RootName>),
    /// Whether the log has gone on after what was read of it.
    ListEnd,
    /// The same after the segment of that number, which has been put.
    ConfirmPut(u64),
    ReadRoot(RootName),
    ReadLog {
        number: u64,
        part: Part,
    },
    PutSegment,
    ReadBack,
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
    /// For reads; whether the newest root is known to name it.
    ReadPage(Want, bool),
    PutRoot(RootName),
    /// A part of a segment, for what it says about the map.
    Rebuild {
        number: u64,
        part: Part,
    },
    Delete,
    /// For the collector, of that serial number.
    Collect(u64, Ask),
    PutSize {
        number: u64,
    },
    Fetch {
        read: u64,
        index: usize,
        /// The newest root is known to name it.
        known: bool,
    },
    PutStaged(Putting),
    /// A part of a segment, for a walk back along the log.
    Walk {
        walk: u64,
        number: u64,
        part: Part,
    },
}

impl Purpose {
    /// Whether the log, or the newest root, says that the object is there.
    pub fn is_known(&self) -> bool {
        matches!(
            self,
            Purpose::Fetch { known: true, .. }
                | Purpose::Walk { .. }
                | Purpose::ReadPage(_, true)
                | Purpose::ReadRoot(_)
                | Purpose::ReadPin(_)
                | Purpose::ReadBase(_)
        )
    }
}

/// What an operation came to.
pub(super) enum Outcome {
    Done,
    Exists,
    Data(Bytes),
    NotFound,
    List(Vec<ObjectMeta>),
}
