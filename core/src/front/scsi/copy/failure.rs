//! The failure of a copy, and the status of the command that asked for it.

use super::format::{
    BLOCK_LENGTH_AT, DESCRIPTOR_BYTES, EXTENDED_COPY, HEADER_BYTES, OFFSET_AT, WRITE_RANGES_AT,
};
use super::part::{PartFailure, PartRefusal};
use crate::front::scsi::response::Status;
use crate::front::scsi::sense::{CommandRefusal, Sense, Side, code};

/// The failure that ended a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyFailure {
    /// Segment or range, counted from 0.
    pub segment: u16,
    /// The problem.
    pub problem: CopyProblem,
}

/// The cause of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyProblem {
    /// The list has no descriptor with that number.
    NoDescriptor(Side),
    /// The unit does not exist here, or the initiator may not use it.
    NotReachable(Side),
    /// The block length of the unit differs from that in the descriptor of this number.
    BlockLength(u16),
    /// The range exceeds the unit.
    OutOfRange(Side),
    /// The number of bytes is not a whole number of blocks at both ends.
    Inexact,
    /// The token cannot be used; the value is the additional sense code.
    Token(u16),
    /// The offset exceeds the data that the token represents.
    Offset,
    /// The length exceeds the data that the token represents.
    BeyondToken,
    /// A part failed.
    Part(Side, PartFailure),
}

impl CopyProblem {
    /// No unit that the copy may use has made the token.
    #[must_use]
    pub fn unknown_token() -> CopyProblem {
        CopyProblem::Token(code::TOKEN_UNKNOWN)
    }
}

impl CopyFailure {
    /// Whether the data that a token represents has changed.
    #[must_use]
    pub fn is_change(&self) -> bool {
        matches!(self.problem, CopyProblem::Part(_, PartFailure::Changed))
    }

    /// The refusal that ends the command.
    pub(in crate::front::scsi) fn refusal(self, action: u8) -> CommandRefusal {
        let CopyFailure { segment, problem } = self;
        // Offsets in a segment descriptor: the descriptor index, and the first block.
        let index_at = |side| if side == Side::Source { 4 } else { 6 };
        let lba_at = |side| if side == Side::Source { 12 } else { 20 };
        let aborted = |code| Sense::copy_aborted(code, segment);
        let sense = match problem {
            CopyProblem::NoDescriptor(side) => {
                aborted(code::UNREACHABLE_COPY_TARGET).in_segment(index_at(side))
            }
            CopyProblem::NotReachable(side) if action == EXTENDED_COPY => {
                aborted(code::COPY_TARGET_NOT_REACHABLE).in_segment(index_at(side))
            }
            CopyProblem::NotReachable(_) => aborted(code::COPY_TARGET_NOT_REACHABLE),
            CopyProblem::BlockLength(descriptor) => {
                let at = HEADER_BYTES + usize::from(descriptor) * DESCRIPTOR_BYTES;
                Sense::in_list(at + BLOCK_LENGTH_AT, None)
            }
            CopyProblem::OutOfRange(side) => aborted(code::NONE).in_segment(lba_at(side)),
            CopyProblem::Inexact => aborted(code::UNEXPECTED_INEXACT_SEGMENT),
            CopyProblem::Token(code) => Sense::illegal(code),
            CopyProblem::Offset => Sense::in_list(OFFSET_AT, None),
            CopyProblem::BeyondToken => Sense::in_list(WRITE_RANGES_AT - 2, None),
            CopyProblem::Part(_, PartFailure::Changed) => Sense::illegal(code::TOKEN_REVOKED),
            CopyProblem::Part(_, PartFailure::Unsupported) if action == EXTENDED_COPY => {
                aborted(code::TEMPORARY_INITIATOR_ERROR)
            }
            CopyProblem::Part(_, PartFailure::Unsupported) => {
                Sense::illegal(code::TOKEN_NOT_USABLE)
            }
            CopyProblem::Part(_, PartFailure::NotReachable) => {
                aborted(code::COPY_TARGET_NOT_REACHABLE)
            }
            CopyProblem::Part(_, PartFailure::Ended) => aborted(code::THIRD_PARTY_DEVICE_FAILURE),
            CopyProblem::Part(_, PartFailure::Refused(PartRefusal(refusal))) => match refusal {
                // The host is shutting down.
                CommandRefusal::Status(Status::Busy) => return refusal,
                _ => {
                    let CopyProblem::Part(side, _) = problem else { return refusal };
                    // The unit that got the command is the destination. Its answer is the answer of
                    // the command.
                    if side == Side::Destination && action != EXTENDED_COPY {
                        return refusal;
                    }
                    aborted(code::THIRD_PARTY_DEVICE_FAILURE).forwards(side, refusal)
                }
            },
        };
        CommandRefusal::Check(sense)
    }
}
