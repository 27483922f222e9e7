//! Third-party copy: commands by which an initiator has a unit move data itself (SPC-4 and SPC-5,
//! "Third-party copies"; SBC-4, POPULATE TOKEN and WRITE USING TOKEN).
//!
//! A unit that gets such a command is the *copy manager*: it checks the parameter list ([`list`],
//! [`token`]), hands a [`Plan`] to the transport, and remembers what became of it ([`report`]). The
//! transport knows which units there are and which of them this initiator may use; it drives a [`Job`],
//! whose steps are [`Part`]s: commands without bytes of their own that a unit carries out for a copy.
//!
//! **Who checks what.** Whether the initiator may use a unit at all is checked in one place, by the
//! transport, for every part again. Everything else is checked by the unit that the part is for, as it
//! is for a read or a write of that nexus: reservations, write protection, size, exclusive claims of
//! other commands; and the unit's task management ends parts as it ends tasks.
//!
//! Promises: a copy that was ended by task management writes nothing after that was answered, whatever
//! units it writes to; what is remembered is bounded.

mod job;
mod list;
#[cfg(test)]
pub(super) mod lists;
mod part;
mod report;
#[cfg(test)]
mod tests;
pub(super) mod token;
pub(super) mod vpd;

pub use job::{Job, Move, Order, PartId, UnitId};
pub use part::{Part, PartFailure, PartReply};
pub use token::Grant;

pub(super) use list::{extended_copy, extended_copy_length};
pub(super) use part::{Parts, result as part_result};
pub(super) use report::{
    Results, copy_status, failed_segment_details, operating_parameters, receive_data,
    rod_token_information,
};
pub(super) use token::{
    Tokens, populate, populate_length, write_using_token, write_using_token_length,
};

use super::sense::{Refusal, Sense, Side, code};
use super::{Device, NexusId, Outcome, Output, Status, TaskId};
use crate::block::{Range, Time};

/// Copies of a unit that may be under way, in the background or not; beyond, commands end with BUSY.
pub(super) const MAX_COPIES: usize = 32;

/// Bytes that a designator in a descriptor of a copy may have.
const MAX_DESIGNATOR_BYTES: usize = 20;

/// Offset of the device type specific parameters of such a descriptor: in the last three bytes of them
/// is the block length.
const BLOCK_LENGTH_AT: usize = 29;

/// Bytes of a CSCD descriptor (SPC-4, EXTENDED COPY).
const DESCRIPTOR_BYTES: usize = 32;

/// A logical unit's name in a copy: a designator that VPD page 83h gives for the unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Designator {
    code_set: u8,
    kind: u8,
    value: Vec<u8>,
}

impl Designator {
    /// What an identification descriptor CSCD descriptor names, if it names a logical unit.
    fn parse(descriptor: &[u8; DESCRIPTOR_BYTES]) -> Option<Designator> {
        let length = usize::from(descriptor[7]);
        let value = descriptor.get(8..8 + length).filter(|_| length <= MAX_DESIGNATOR_BYTES)?;
        // ASSOCIATION: a logical unit.
        let is_unit = descriptor[5] & 0x30 == 0 && !value.is_empty();
        let (code_set, kind) = (descriptor[4] & 0x0f, descriptor[5] & 0x0f);
        is_unit.then(|| Designator { code_set, kind, value: value.to_vec() })
    }

    /// The descriptor that names a unit by it.
    fn descriptor(&self, block_bytes: u32) -> [u8; DESCRIPTOR_BYTES] {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        bytes[0] = list::IDENTIFICATION;
        bytes[4] = self.code_set;
        bytes[5] = self.kind;
        // At most 20, as no longer ones are made.
        bytes[7] = self.value.len() as u8;
        bytes[8..8 + self.value.len()].copy_from_slice(&self.value);
        bytes[BLOCK_LENGTH_AT..].copy_from_slice(&block_bytes.to_be_bytes()[1..]);
        bytes
    }
}

/// A unit that a list names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Its name; `None` if none of ours can be meant.
    pub designator: Option<Designator>,
    /// Bytes in a block of it, as the initiator believes.
    pub block_bytes: u32,
}

/// A segment of an EXTENDED COPY, block device to block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Number of the source in the list of descriptors.
    pub source: u16,
    /// Likewise of the destination.
    pub destination: u16,
    /// The number of blocks is of the destination's (DC), not of the source's.
    pub of_destination: bool,
    /// How many blocks.
    pub blocks: u16,
    /// First block of the source.
    pub source_lba: u64,
    /// First block of the destination.
    pub destination_lba: u64,
}

/// What a command asks to be copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// EXTENDED COPY.
    Segments {
        /// Units by number.
        descriptors: Vec<Descriptor>,
        /// What to copy, in this order.
        segments: Vec<Segment>,
    },
    /// WRITE USING TOKEN.
    Token {
        /// The token.
        token: Box<[u8; token::TOKEN_BYTES]>,
        /// The unit that made it, as the token says.
        creator: Designator,
        /// Sectors of what the token stands for to be passed over.
        skip: u64,
        /// Where to write, of the unit that got the command; sectors.
        ranges: Vec<Range>,
        /// The token is not to be used again.
        delete: bool,
    },
    /// WRITE USING TOKEN, with the token for zeroes.
    Zeroes {
        /// Where to write, of the unit that got the command; sectors.
        ranges: Vec<Range>,
    },
}

/// Why a copy ended before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Segment or range, counted from 0.
    pub segment: u16,
    /// What was wrong.
    pub problem: Problem,
}

/// What was wrong with a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// There is no descriptor of that number.
    NoDescriptor(Side),
    /// The unit is not here, or not for this initiator.
    NotReachable(Side),
    /// The unit's blocks have another length than the descriptor of this number says.
    BlockLength(u16),
    /// The unit is smaller.
    OutOfRange(Side),
    /// The number of bytes is not a whole number of blocks at both ends.
    Inexact,
    /// The token is no good: additional sense code.
    Token(u16),
    /// The offset is beyond what the token stands for.
    Offset,
    /// It is more than the token stands for.
    BeyondToken,
    /// A part failed.
    Part(Side, PartFailure),
}

impl Problem {
    /// The token is of no unit that the copy may use.
    #[must_use]
    pub fn unknown_token() -> Problem {
        Problem::Token(code::TOKEN_UNKNOWN)
    }
}

impl Failure {
    /// Whether what a token stands for has changed.
    #[must_use]
    pub fn is_change(&self) -> bool {
        matches!(self.problem, Problem::Part(_, PartFailure::Changed))
    }

    /// How the command that asked for the copy ends.
    pub(super) fn refusal(self, action: u8) -> Refusal {
        let Failure { segment, problem } = self;
        // Where in a segment descriptor the units are named, and their blocks.
        let index_at = |side| if side == Side::Source { 4 } else { 6 };
        let lba_at = |side| if side == Side::Source { 12 } else { 20 };
        let aborted = |code| Sense::copy_aborted(code, segment);
        let sense = match problem {
            Problem::NoDescriptor(side) => {
                aborted(code::UNREACHABLE_COPY_TARGET).in_segment(index_at(side))
            }
            Problem::NotReachable(side) if action == list::EXTENDED_COPY => {
                aborted(code::COPY_TARGET_NOT_REACHABLE).in_segment(index_at(side))
            }
            Problem::NotReachable(_) => aborted(code::COPY_TARGET_NOT_REACHABLE),
            Problem::BlockLength(descriptor) => {
                let at = list::HEADER_BYTES + usize::from(descriptor) * DESCRIPTOR_BYTES;
                Sense::in_list(at + BLOCK_LENGTH_AT, None)
            }
            Problem::OutOfRange(side) => aborted(code::NONE).in_segment(lba_at(side)),
            Problem::Inexact => aborted(code::UNEXPECTED_INEXACT_SEGMENT),
            Problem::Token(code) => Sense::illegal(code),
            Problem::Offset => Sense::in_list(token::OFFSET_AT, None),
            Problem::BeyondToken => Sense::in_list(token::WRITE_RANGES_AT - 2, None),
            Problem::Part(_, PartFailure::Changed) => Sense::illegal(code::TOKEN_REVOKED),
            Problem::Part(_, PartFailure::Unsupported) if action == list::EXTENDED_COPY => {
                aborted(code::TEMPORARY_INITIATOR_ERROR)
            }
            Problem::Part(_, PartFailure::Unsupported) => Sense::illegal(code::TOKEN_NOT_USABLE),
            Problem::Part(_, PartFailure::NotReachable) => aborted(code::COPY_TARGET_NOT_REACHABLE),
            Problem::Part(_, PartFailure::Ended) => aborted(code::THIRD_PARTY_DEVICE_FAILURE),
            Problem::Part(_, PartFailure::Refused(part::Refused(refusal))) => match refusal {
                // The host is shutting down.
                Refusal::Status(Status::Busy) => return refusal,
                _ => {
                    let Problem::Part(side, _) = problem else { return refusal };
                    // What is written is the unit that got the command, and its answer the command's.
                    if side == Side::Destination && action != list::EXTENDED_COPY {
                        return refusal;
                    }
                    aborted(code::THIRD_PARTY_DEVICE_FAILURE).forwards(side, refusal)
                }
            },
        };
        Refusal::Check(sense)
    }
}

/// A copy that a command asks for.
#[derive(Debug)]
pub(super) struct Asked {
    pub plan: Plan,
    /// Under which name its outcome is asked for; `None`: it is not.
    pub list: Option<report::ListId>,
    /// Service action of the command.
    pub action: u8,
    /// The command ends when the copy has begun (IMMED).
    pub immediate: bool,
}

impl Device {
    /// Whether a designator is this unit's.
    #[must_use]
    pub fn is_called(&self, designator: &Designator) -> bool {
        let (code_set, kind) = super::inquiry::NAA;
        designator.code_set == code_set
            && designator.kind == kind
            && designator.value == super::inquiry::naa(self)
    }

    fn designator(&self) -> Designator {
        let value = super::inquiry::naa(self).to_vec();
        let (code_set, kind) = super::inquiry::NAA;
        Designator { code_set, kind, value }
    }

    /// Hands a copy to the transport.
    pub(super) fn begin_copy(&mut self, task: TaskId, asked: Asked) {
        let Asked { plan, list, action, immediate } = asked;
        let Some(nexus) = self.tasks.nexus_of(task) else { return };
        if self.results.running() >= MAX_COPIES {
            return self.finish(task, Outcome::Refused(Refusal::Status(Status::Busy)));
        }
        let Some(id) = self.tasks.wait_for_copy(task, immediate) else { return };
        if !self.results.begin(id, nexus, list, action, immediate) {
            self.tasks.copied(id);
            let busy = Sense::illegal(code::OPERATION_IN_PROGRESS);
            return self.finish(task, busy.into());
        }
        self.outputs.push_back(Output::Copy { id, task, plan });
        if immediate {
            self.finish(task, Outcome::DONE);
        }
    }

    /// How far a copy has come: segments that are done, with all before them, and sectors.
    pub fn handle_copy_progress(&mut self, id: u64, segments: u16, sectors: u64) {
        self.results.progress(id, segments, sectors);
    }

    /// A copy has ended, and nothing of it will be written any more.
    pub fn handle_copied(&mut self, _now: Time, id: u64, result: Result<(), Failure>) {
        let refusal = match result {
            Ok(()) => None,
            Err(failure) => Some(failure.refusal(self.results.action_of(id).unwrap_or_default())),
        };
        let descriptors = self.mode.descriptor_sense;
        self.results.end(id, refusal, descriptors);
        if let Some(task) = self.tasks.copied(id) {
            let outcome = refusal.map_or(Outcome::DONE, Outcome::Refused);
            self.finish(task, outcome);
        }
        self.settle();
    }

    /// Copies in the background that these nexuses asked for are ended like tasks.
    pub(super) fn stop_background(&mut self, whose: impl Fn(NexusId) -> bool) {
        for id in self.tasks.stop_background(whose) {
            self.stop_copy(id);
        }
    }

    /// A copy whose task was ended has to end.
    pub(super) fn stop_copy(&mut self, id: u64) {
        self.results.stop(id);
        self.outputs.push_back(Output::EndCopy { id });
    }
}
