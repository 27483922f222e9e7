//! The facts about the other machines of a volume that map maintenance needs, and its requests to
//! them.
//!
//! [`MapMaintenance::put_root`]: super::MapMaintenance::put_root

use crate::store::event::OpenError;
use crate::store::gc::moved::Moved;

/// The facts about the others.
#[derive(Clone, Copy)]
pub(in crate::store::volume) struct Surroundings {
    /// The engine has read the log to its end.
    pub running: bool,
    /// No put of a segment is in progress.
    pub can_put: bool,
    /// Nor are there announcements that no segment has carried.
    pub saved: bool,
    /// Some sizes have no note yet.
    pub unnoted: bool,
    /// Reads wait for newer roots.
    pub stranded: bool,
    /// A count of the fragments of kept roots is in progress: the engine must delete nothing.
    pub counting: bool,
}

impl Surroundings {
    /// The facts that a flush depends on: whether sizes lack a note, and whether no commit is in
    /// progress.
    pub fn at_rest(self) -> (bool, bool) {
        (self.unnoted, self.can_put && self.saved)
    }
}

/// Work for the other machines.
pub(in crate::store::volume) enum MapEffect {
    /// A search for newer roots begins: for the reads.
    LookingForRoots,
    /// The map is the newest there is: for the reads.
    RootsSeen {
        newer: bool,
    },
    /// The map is that of a root, which says what has moved: for the collector.
    Adopted(Moved),
    /// The work of the collector ends without effect.
    Stopped,
    /// The generation is this engine's: for the collector.
    Owned(u64),
    /// Roots of snapshots have gone: much may have become unnamed.
    SnapshotsGone,
    /// Write the next root: [`MapMaintenance::put_root`].
    WriteRoot(u64),
    /// Read on in the log.
    CatchUp,
    /// Read the log anew, from the newest root.
    Restart,
    /// Likewise, while the volume opens.
    OpenAnew,
    Failed(OpenError),
}

/// How a rollback to a snapshot stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store::volume) enum RollbackMap {
    Known,
    Missing,
}
