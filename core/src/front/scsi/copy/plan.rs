//! The request of a copy command, for the transport and for units.

use super::format::{BLOCK_LENGTH_AT, DESCRIPTOR_BYTES, IDENTIFICATION, TOKEN_BYTES};
use crate::block::Range;

/// Most bytes of a designator in a CSCD descriptor.
const MAX_DESIGNATOR_BYTES: usize = 20;

/// A logical unit's name in a copy: a designator from VPD page 83h.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Designator {
    pub(in crate::front::scsi) code_set: u8,
    pub(in crate::front::scsi) kind: u8,
    pub(in crate::front::scsi) value: Vec<u8>,
}

impl Designator {
    /// The designator in an identification descriptor, if it names a logical unit.
    pub(in crate::front::scsi) fn parse(descriptor: &[u8; DESCRIPTOR_BYTES]) -> Option<Designator> {
        let length = usize::from(descriptor[7]);
        let value = descriptor.get(8..8 + length).filter(|_| length <= MAX_DESIGNATOR_BYTES)?;
        // ASSOCIATION 0: the logical unit.
        let is_unit = descriptor[5] & 0x30 == 0 && !value.is_empty();
        let (code_set, kind) = (descriptor[4] & 0x0f, descriptor[5] & 0x0f);
        is_unit.then(|| Designator { code_set, kind, value: value.to_vec() })
    }

    /// The CSCD descriptor with this designator.
    pub(super) fn descriptor(&self, block_bytes: u32) -> [u8; DESCRIPTOR_BYTES] {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        bytes[0] = IDENTIFICATION;
        bytes[4] = self.code_set;
        bytes[5] = self.kind;
        // At most 20: `parse` takes no longer ones.
        bytes[7] = self.value.len() as u8;
        bytes[8..8 + self.value.len()].copy_from_slice(&self.value);
        bytes[BLOCK_LENGTH_AT..].copy_from_slice(&block_bytes.to_be_bytes()[1..]);
        bytes
    }
}

/// A CSCD descriptor of a list: a unit that takes part in the copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CscdDescriptor {
    /// The designator; `None` if it cannot be one of this target's.
    pub designator: Option<Designator>,
    /// Block length in bytes, as the initiator believes.
    pub block_bytes: u32,
}

/// A segment descriptor of an EXTENDED COPY, block device to block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentDescriptor {
    /// Index of the source's CSCD descriptor.
    pub source: u16,
    /// Index of the destination's CSCD descriptor.
    pub destination: u16,
    /// DC: the number of blocks counts blocks of the destination, not of the source.
    pub of_destination: bool,
    /// Number of blocks.
    pub blocks: u16,
    /// First block of the source.
    pub source_lba: u64,
    /// First block of the destination.
    pub destination_lba: u64,
}

/// The data that a command asks to be copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyPlan {
    /// EXTENDED COPY.
    Segments {
        /// Units by index.
        descriptors: Vec<CscdDescriptor>,
        /// Segments, to be copied in this order.
        segments: Vec<SegmentDescriptor>,
    },
    /// WRITE USING TOKEN.
    Token {
        /// The token.
        token: Box<[u8; TOKEN_BYTES]>,
        /// The unit that made the token, by the token's own field.
        creator: Designator,
        /// Sectors of the represented data to skip.
        skip: u64,
        /// Sectors of the unit that got the command, to be written.
        ranges: Vec<Range>,
        /// Delete the token after this use.
        delete: bool,
    },
    /// WRITE USING TOKEN with the block zeroes token.
    Zeroes {
        /// Sectors of the unit that got the command, to be written.
        ranges: Vec<Range>,
    },
}

/// LIST IDENTIFIER. Identifiers of one byte and of four bytes are distinct.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::front::scsi) enum ListId {
    /// One byte: EXTENDED COPY(LID1).
    One(u8),
    /// Four bytes: commands with tokens.
    Four(u32),
}

/// A copy that a command asks for.
#[derive(Debug)]
pub(in crate::front::scsi) struct CopyRequest {
    pub plan: CopyPlan,
    /// The identifier under which the initiator can ask for the result.
    pub list: Option<ListId>,
    /// Service action of the command.
    pub action: u8,
    /// The command ends when the copy has begun (IMMED).
    pub immediate: bool,
}

/// The request of a POPULATE TOKEN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::front::scsi) struct PopulateToken {
    pub list: u32,
    pub ranges: Vec<Range>,
    /// Inactivity timeout in seconds.
    pub timeout: u32,
}
