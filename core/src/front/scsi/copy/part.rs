//! What a unit does for a copy, which another unit may have been asked for: a command without bytes
//! of its own, through a nexus that the initiator has with this unit.
//!
//! It neither waits for other tasks nor do they wait for it, but for the blocks that it writes: the
//! task that asked for the copy has had its turn, and what waits for that task may be older here.

use crate::block::{BlockError, Range, StagedPiece, Time, VolumeId};
use crate::front::scsi::io::{Io, Kind};
use crate::front::scsi::reservations::Class;
use crate::front::scsi::sense::{Refusal, Sense};
use crate::front::scsi::tasks::Work;
use crate::front::scsi::{Device, NexusId, Outcome, Output, TaskId};
use std::collections::VecDeque;

/// A part of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Have sectors of this unit made ready to be written to another one.
    Stage {
        /// Of this unit.
        range: Range,
        /// Where they will be written.
        into: VolumeId,
        /// Where the first of them will be written.
        lba: u64,
        /// What fails this if it is broken.
        watch: Option<u64>,
    },
    /// Write what is ready; the pieces follow each other.
    Write(Vec<StagedPiece>),
    /// Write zeroes, as unmapped blocks.
    Zero(Range),
}

/// What came of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartReply {
    /// It is ready: what to write.
    Staged(Vec<StagedPiece>),
    /// It is written.
    Done,
}

/// Why a part was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartFailure {
    /// What was watched has been written.
    Changed,
    /// The store cannot copy.
    Unsupported,
    /// The initiator may not use the unit any more, or it is gone.
    NotReachable,
    /// Task management of the unit has ended it, or the nexus is gone.
    Ended,
    /// The unit refused it, as it would have refused a read or a write.
    Refused(Refused),
}

/// How a unit refused a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused(pub(super) Refusal);

/// Ends of parts that are to be told.
pub(in crate::front::scsi) type Parts = VecDeque<(TaskId, Result<PartReply, PartFailure>)>;

impl Part {
    fn writes(&self) -> bool {
        !matches!(self, Part::Stage { .. })
    }
}

/// The outcome of a part as the copy is told it.
pub(in crate::front::scsi) fn result(
    outcome: Outcome,
    error: Option<BlockError>,
) -> Result<PartReply, PartFailure> {
    match (outcome, error) {
        (_, Some(BlockError::Changed)) => Err(PartFailure::Changed),
        (_, Some(BlockError::Unsupported)) => Err(PartFailure::Unsupported),
        (Outcome::Refused(refusal), _) => Err(PartFailure::Refused(Refused(refusal))),
        (Outcome::Staged(pieces), _) => Ok(PartReply::Staged(pieces)),
        (_, _) => Ok(PartReply::Done),
    }
}

impl Device {
    /// Whether a nexus may read or write now, as far as reservations go.
    #[must_use]
    pub fn lets(&self, nexus: NexusId, write: bool) -> bool {
        let class = if write { Class::Write } else { Class::Read };
        self.nexuses.contains_key(&nexus) && self.reservations.check(nexus, class).is_ok()
    }

    /// The volume.
    #[must_use]
    pub fn volume(&self) -> VolumeId {
        self.config.volume
    }

    /// The sectors of these blocks, if the unit has them.
    #[must_use]
    pub fn sectors_of(&self, lba: u64, blocks: u64) -> Option<Range> {
        self.range(lba, blocks).ok()
    }

    /// Bytes in a block.
    #[must_use]
    pub fn block_bytes(&self) -> u32 {
        self.config.block_bytes
    }

    /// A part of a copy, through a nexus of the initiator that asked for it; answered with
    /// [`Output::Part`] once the part can change the medium no more.
    pub fn handle_part(&mut self, _now: Time, nexus: NexusId, task: TaskId, part: Part) {
        if self.tasks.contains(task) {
            return;
        }
        match self.admit_part(nexus, &part) {
            Ok(()) => {
                let durable = self.writes_through();
                let block_sectors = self.block_sectors();
                let (kind, range) = match part {
                    Part::Stage { range, into, lba, watch } => {
                        (Kind::Stage { into, lba, watch }, range)
                    }
                    Part::Write(pieces) => {
                        let start = pieces.iter().map(|it| it.range.lba).min().unwrap_or(0);
                        let end = pieces.iter().map(|it| it.range.end()).max().unwrap_or(0);
                        (Kind::WriteStaged(pieces), Range::between(start, end))
                    }
                    Part::Zero(range) => (Kind::Zero, range),
                };
                let io = Io::new(kind, range, block_sectors, durable);
                self.tasks.add_part(nexus, task, Work::Medium(Box::new(io)));
            }
            Err(failure) => self.outputs.push_back(Output::Part { task, result: Err(failure) }),
        }
        self.settle();
    }

    fn admit_part(&self, nexus: NexusId, part: &Part) -> Result<(), PartFailure> {
        if !self.nexuses.contains_key(&nexus) {
            return Err(PartFailure::Ended);
        }
        let class = if part.writes() { Class::Write } else { Class::Read };
        if let Err(refusal) = self.reservations.check(nexus, class) {
            return Err(PartFailure::Refused(Refused(refusal.into())));
        }
        match self.is_write_protected() {
            Some(sense) if part.writes() => Err(sense.into()),
            _ => Ok(()),
        }
    }

    /// A part is not wanted any more. Answered like its end.
    pub fn end_part(&mut self, _now: Time, task: TaskId) {
        if self.tasks.is_live(task) {
            self.drop_task(task);
            self.settle();
        }
    }

    /// Tells of parts that have ended.
    pub(in crate::front::scsi) fn tell_parts(&mut self) {
        while let Some((task, result)) = self.tasks.parts.pop_front() {
            self.outputs.push_back(Output::Part { task, result });
        }
    }
}

impl From<Sense> for PartFailure {
    fn from(sense: Sense) -> PartFailure {
        PartFailure::Refused(Refused(Refusal::Check(sense)))
    }
}
