//! Sense data in the descriptor format and in the fixed format (SPC-5 §4.4).

use super::response::Status;
use bytes::Bytes;

/// Sense keys (SPC-5 §4.4.8).
pub(super) mod key {
    pub const NO_SENSE: u8 = 0x0;
    pub const NOT_READY: u8 = 0x2;
    pub const MEDIUM_ERROR: u8 = 0x3;
    pub const HARDWARE_ERROR: u8 = 0x4;
    pub const ILLEGAL_REQUEST: u8 = 0x5;
    pub const UNIT_ATTENTION: u8 = 0x6;
    pub const DATA_PROTECT: u8 = 0x7;
    pub const COPY_ABORTED: u8 = 0xa;
    pub const MISCOMPARE: u8 = 0xe;
}

/// Additional sense codes, ASC in the high byte, ASCQ in the low one (SPC-5 annex F).
pub(super) mod code {
    pub const NONE: u16 = 0x0000;
    pub const OPERATION_IN_PROGRESS: u16 = 0x0016;
    pub const TARGET_PORT_UNAVAILABLE: u16 = 0x040c;
    pub const UNREACHABLE_COPY_TARGET: u16 = 0x0804;
    pub const TEMPORARY_INITIATOR_ERROR: u16 = 0x0d00;
    pub const THIRD_PARTY_DEVICE_FAILURE: u16 = 0x0d01;
    pub const COPY_TARGET_NOT_REACHABLE: u16 = 0x0d02;
    pub const INVALID_FIELD_IN_INFORMATION_UNIT: u16 = 0x0e03;
    pub const UNRECOVERED_READ_ERROR: u16 = 0x1100;
    pub const PARAMETER_LIST_LENGTH_ERROR: u16 = 0x1a00;
    pub const MISCOMPARE_DURING_VERIFY: u16 = 0x1d00;
    pub const INVALID_OPERATION_CODE: u16 = 0x2000;
    pub const LBA_OUT_OF_RANGE: u16 = 0x2100;
    pub const TOKEN_NOT_USABLE: u16 = 0x2300;
    pub const UNSUPPORTED_TOKEN_TYPE: u16 = 0x2301;
    pub const TOKEN_UNKNOWN: u16 = 0x2304;
    pub const TOKEN_CORRUPT: u16 = 0x2305;
    pub const TOKEN_REVOKED: u16 = 0x2306;
    pub const TOKEN_EXPIRED: u16 = 0x2307;
    pub const TOKEN_DELETED: u16 = 0x2309;
    pub const INVALID_TOKEN_LENGTH: u16 = 0x230a;
    pub const INVALID_FIELD_IN_CDB: u16 = 0x2400;
    pub const LUN_NOT_SUPPORTED: u16 = 0x2500;
    pub const INVALID_FIELD_IN_LIST: u16 = 0x2600;
    pub const TOO_MANY_TARGET_DESCRIPTORS: u16 = 0x2606;
    pub const UNSUPPORTED_TARGET_DESCRIPTOR: u16 = 0x2607;
    pub const TOO_MANY_SEGMENT_DESCRIPTORS: u16 = 0x2608;
    pub const UNSUPPORTED_SEGMENT_DESCRIPTOR: u16 = 0x2609;
    pub const UNEXPECTED_INEXACT_SEGMENT: u16 = 0x260a;
    pub const INLINE_DATA_LENGTH_EXCEEDED: u16 = 0x260b;
    pub const WRITE_PROTECTED: u16 = 0x2700;
    pub const SOFTWARE_WRITE_PROTECTED: u16 = 0x2702;
    pub const SPACE_ALLOCATION_FAILED: u16 = 0x2707;
    pub const RESET_OCCURRED: u16 = 0x2900;
    pub const DEVICE_RESET_OCCURRED: u16 = 0x2903;
    pub const NEXUS_LOSS_OCCURRED: u16 = 0x2907;
    pub const MODE_PARAMETERS_CHANGED: u16 = 0x2a01;
    pub const CAPACITY_CHANGED: u16 = 0x2a09;
    pub const COMMANDS_CLEARED: u16 = 0x2f00;
    pub const SAVING_NOT_SUPPORTED: u16 = 0x3900;
    pub const INTERNAL_TARGET_FAILURE: u16 = 0x4400;
    pub const INVALID_MESSAGE: u16 = 0x4900;
}

/// The bytes that a field pointer counts from (SPC-5 §4.4.2.4.2, §4.4.2.4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Within {
    Cdb,
    List,
    /// A segment descriptor of a copy.
    Segment,
}

/// The location of an invalid field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pointer {
    within: Within,
    byte: u16,
    /// The highest bit of the field, unless the field is whole bytes.
    bit: Option<u8>,
}

/// A logical unit's role in a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The unit that is read.
    Source,
    /// The unit that is written.
    Destination,
}

/// The response of a unit in a copy: status, sense key and additional sense code. Without sense
/// data, the latter two are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Forwarded {
    side: Side,
    status: u8,
    key: u8,
    code: u16,
}

/// The content of the sense data of a CHECK CONDITION or a REQUEST SENSE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sense {
    key: u8,
    code: u16,
    information: Option<u64>,
    pointer: Option<Pointer>,
    /// The segment of a copy that failed, counted from 0.
    segment: Option<u16>,
    forwarded: Option<Forwarded>,
}

impl Sense {
    pub const fn new(key: u8, code: u16) -> Sense {
        Sense { key, code, information: None, pointer: None, segment: None, forwarded: None }
    }

    pub const fn illegal(code: u16) -> Sense {
        Sense::new(key::ILLEGAL_REQUEST, code)
    }

    /// INVALID FIELD IN CDB: the field that starts at this byte. `bit` is its highest bit, unless
    /// it is whole bytes.
    pub const fn in_cdb(byte: u16, bit: Option<u8>) -> Sense {
        Sense::illegal(code::INVALID_FIELD_IN_CDB).at(true, byte, bit)
    }

    /// INVALID FIELD IN PARAMETER LIST; `byte` and `bit` as in [`Sense::in_cdb`].
    pub fn in_list(byte: usize, bit: Option<u8>) -> Sense {
        // The largest value stands for all offsets beyond it.
        let byte = u16::try_from(byte).unwrap_or(u16::MAX);
        Sense::illegal(code::INVALID_FIELD_IN_LIST).at(false, byte, bit)
    }

    pub const fn list_length() -> Sense {
        Sense::illegal(code::PARAMETER_LIST_LENGTH_ERROR)
    }

    /// LOGICAL BLOCK ADDRESS OUT OF RANGE, with the first such address.
    pub const fn out_of_range(lba: u64) -> Sense {
        Sense::illegal(code::LBA_OUT_OF_RANGE).with_information(lba)
    }

    pub const fn miscompare(information: u64) -> Sense {
        Sense::new(key::MISCOMPARE, code::MISCOMPARE_DURING_VERIFY).with_information(information)
    }

    pub const fn attention(code: u16) -> Sense {
        Sense::new(key::UNIT_ATTENTION, code)
    }

    pub const fn with_information(mut self, information: u64) -> Sense {
        self.information = Some(information);
        self
    }

    pub const fn at(mut self, in_cdb: bool, byte: u16, bit: Option<u8>) -> Sense {
        let within = if in_cdb { Within::Cdb } else { Within::List };
        self.pointer = Some(Pointer { within, byte, bit });
        self
    }

    /// COPY ABORTED: the copy of this segment failed.
    pub const fn copy_aborted(code: u16, segment: u16) -> Sense {
        let mut sense = Sense::new(key::COPY_ABORTED, code);
        sense.segment = Some(segment);
        sense
    }

    /// Adds a pointer to the field of the segment descriptor that starts at this byte.
    pub const fn in_segment(mut self, byte: u16) -> Sense {
        self.pointer = Some(Pointer { within: Within::Segment, byte, bit: None });
        self
    }

    /// Adds the response of a unit in the copy.
    pub const fn forwards(mut self, side: Side, refusal: CommandRefusal) -> Sense {
        self.forwarded = Some(match refusal {
            CommandRefusal::Check(sense) => Forwarded {
                side,
                status: Status::CheckCondition as u8,
                key: sense.key,
                code: sense.code,
            },
            CommandRefusal::Status(status) => {
                Forwarded { side, status: status as u8, key: 0, code: 0 }
            }
        });
        self
    }

    /// Sense key specific data.
    fn specific(&self) -> Option<[u8; 3]> {
        self.pointer.map(|pointer| {
            let [high, low] = pointer.byte.to_be_bytes();
            let within = match pointer.within {
                Within::Cdb => 0x40,
                Within::List => 0,
                // SD: the pointer is into a segment descriptor.
                Within::Segment => 0x20,
            };
            [0x80 | within | pointer.bit.map_or(0, |bit| 0x08 | bit & 0x07), high, low]
        })
    }

    /// The wire format: descriptor format if `descriptors`, else fixed format.
    pub fn bytes(&self, descriptors: bool) -> Bytes {
        if descriptors { self.descriptor_format() } else { self.fixed_format() }
    }

    fn descriptor_format(&self) -> Bytes {
        let [asc, ascq] = self.code.to_be_bytes();
        let mut bytes = Vec::with_capacity(64);
        bytes.extend([0x72, self.key, asc, ascq, 0, 0, 0, 0]);
        if let Some(information) = self.information {
            bytes.extend([0x00, 0x0a, 0x80, 0]);
            bytes.extend(information.to_be_bytes());
        }
        if let Some(segment) = self.segment {
            let [high, low] = segment.to_be_bytes();
            bytes.extend([0x01, 0x0a, 0, 0, 0, 0, high, low, 0, 0, 0, 0]);
        }
        if let Some([first, high, low]) = self.specific() {
            bytes.extend([0x02, 0x06, 0, 0, first, high, low, 0]);
        }
        if let Some(Forwarded { side, status, key, code }) = self.forwarded {
            // SPC-5 §4.4.2.7.
            let side = if side == Side::Source { 1 } else { 2 };
            let [asc, ascq] = code.to_be_bytes();
            bytes.extend([0x0c, 2 + 8, side, status, 0x72, key, asc, ascq, 0, 0, 0, 0]);
        }
        // At most 8 + 12 + 12 + 8 + 12 bytes.
        bytes[7] = (bytes.len() - 8) as u8;
        bytes.into()
    }

    fn fixed_format(&self) -> Bytes {
        let [asc, ascq] = self.code.to_be_bytes();
        // If the information does not fit four bytes, VALID is 0 (SPC-5 §4.4.3).
        let information = self.information.and_then(|wide| u32::try_from(wide).ok());
        let valid = if information.is_some() { 0x80 } else { 0 };
        let mut bytes = Vec::with_capacity(40);
        bytes.extend([0x70 | valid, 0, self.key]);
        bytes.extend(information.unwrap_or(0).to_be_bytes());
        bytes.extend([10, 0, 0, 0, 0, asc, ascq, 0]);
        bytes.extend(self.specific().unwrap_or([0; 3]));
        // COMMAND-SPECIFIC INFORMATION: the offsets of status and sense data of the source and of
        // the destination, and the segment (SPC-4, EXTENDED COPY, errors of segments).
        if let Some(segment) = self.segment {
            bytes[10..12].copy_from_slice(&segment.to_be_bytes());
        }
        if let Some(Forwarded { side, status, key, code }) = self.forwarded {
            bytes[if side == Side::Source { 8 } else { 9 }] = bytes.len() as u8;
            let [asc, ascq] = code.to_be_bytes();
            bytes.push(status);
            bytes.extend([0x70, 0, key, 0, 0, 0, 0, 6, 0, 0, 0, 0, asc, ascq]);
        }
        // At most 18 + 15 bytes.
        bytes[7] = (bytes.len() - 8) as u8;
        bytes.into()
    }
}

/// The status that ends a command which is not carried out, or not to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandRefusal {
    /// CHECK CONDITION.
    Check(Sense),
    /// Another status, without sense data.
    Status(Status),
}

impl From<Sense> for CommandRefusal {
    fn from(sense: Sense) -> CommandRefusal {
        CommandRefusal::Check(sense)
    }
}
