//! A part of a copy: a command without output, through a nexus that the initiator has with this
//! unit.

use crate::block::{Range, StagedPiece, VolumeId};
use crate::front::scsi::nexus::TaskId;
use crate::front::scsi::sense::{CommandRefusal, Sense};
use std::collections::VecDeque;

/// A part of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyPart {
    /// Stage sectors of this unit, so that another unit can write them.
    Stage {
        /// Sectors of this unit.
        range: Range,
        /// The volume that will get them.
        into: VolumeId,
        /// First sector there.
        lba: u64,
        /// A watch; if it is broken, the part fails.
        watch: Option<u64>,
    },
    /// Write staged pieces, which follow each other.
    Write(Vec<StagedPiece>),
    /// Write zeroes as unmapped blocks.
    Zero(Range),
}

/// The result of a successful part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartReply {
    /// The staged pieces, for a write.
    Staged(Vec<StagedPiece>),
    /// The unit has written the data.
    Done,
}

/// The reason why a part failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartFailure {
    /// The watched data has changed.
    Changed,
    /// The store does not support copies.
    Unsupported,
    /// The initiator may not use the unit any more, or the unit is gone.
    NotReachable,
    /// Task management of the unit has ended the part, or the nexus is lost.
    Ended,
    /// The unit refused the part, as it would have refused a read or a write.
    Refused(PartRefusal),
}

/// The refusal of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartRefusal(pub(in crate::front::scsi) CommandRefusal);

/// Results of parts that nobody has taken.
pub(in crate::front::scsi) type Parts = VecDeque<(TaskId, Result<PartReply, PartFailure>)>;

impl CopyPart {
    pub(in crate::front::scsi) fn writes(&self) -> bool {
        !matches!(self, CopyPart::Stage { .. })
    }
}

impl From<Sense> for PartFailure {
    fn from(sense: Sense) -> PartFailure {
        PartFailure::Refused(PartRefusal(CommandRefusal::Check(sense)))
    }
}
