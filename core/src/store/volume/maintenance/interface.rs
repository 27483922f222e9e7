//! Facts that map maintenance needs of the other machines of a volume, and its requests to them.
//!
//! [`MapMaintenance::put_root`]: super::MapMaintenance::put_root

use crate::store::event::OpenError;
use crate::store::gc::moved::Moved;

/// What the machine has to know of the others.
#[derive(Clone, Copy)]
pub(in crate::store::volume) struct Surroundings {
    /// The log has been read to its end.
    pub running: bool,
    /// No segment is being put.
    pub can_put: bool,
    /// Nor are there announcements that no segment has carried.
    pub saved: bool,
    /// There are sizes that are not noted.
    pub unnoted: bool,
    /// Reads wait for newer roots.
    pub stranded: bool,
    /// Fragments of roots that are kept are being counted: nothing may be deleted.
    pub counting: bool,
}

impl Surroundings {
    /// What a flush depends on: whether sizes are not noted, and whether nothing is being committed.
    pub fn at_rest(self) -> (bool, bool) {
        (self.unnoted, self.can_put && self.saved)
    }
}

/// What others have to do.
pub(in crate::store::volume) enum MapEffect {
    /// Newer roots are being looked for from now on: for the reads.
    LookingForRoots,
    /// The map is the newest there is: for the reads.
    RootsSeen {
        newer: bool,
    },
    /// The map is that of a root, which says what has moved: for the collector.
    Adopted(Moved),
    /// What the collector has begun comes to nothing.
    Stopped,
    /// The generation is this engine's: for the collector.
    Owned(u64),
    /// Roots of snapshots have gone: much may have become unnamed.
    SnapshotsGone,
    /// The next root is to be written: [`MapMaintenance::put_root`].
    WriteRoot(u64),
    /// The log is to be read on.
    CatchUp,
    /// The log is to be read anew, from the newest root.
    Restart,
    /// Likewise, while the volume is being opened.
    OpenAnew,
    Failed(OpenError),
}

/// How a rollback to a snapshot stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store::volume) enum RollbackMap {
    Known,
    Missing,
}
