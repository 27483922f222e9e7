//! A command from the transport, and the fields of its CDB.

use bytes::Bytes;

/// Task attributes (SAM-5 §8.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// The task may start in any order among simple tasks.
    Simple,
    /// The task starts after all older tasks and before all newer ones.
    Ordered,
    /// The task starts before all tasks that have not started.
    HeadOfQueue,
    /// Auto contingent allegiance: never valid here.
    Aca,
}

/// A command as it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Logical unit number, eight bytes as on the wire.
    pub lun: u64,
    /// The first 16 bytes, zero-padded.
    pub cdb: [u8; 16],
    /// The bytes after the 16th of a longer command, at most 244; empty for most commands.
    pub more_cdb: Bytes,
    /// Task attribute.
    pub attribute: Attribute,
    /// Bytes of output that the initiator is ready to send. The device asks for no more.
    pub out_bytes: u64,
    /// Bytes of input that the initiator is ready to take. The device answers in full; the
    /// transport cuts the data.
    pub in_bytes: u64,
}

/// The bytes of a command, with accessors for the fields that most commands have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cdb(pub [u8; 16]);

impl Cdb {
    pub fn byte(&self, at: usize) -> u8 {
        self.0[at & 15]
    }

    pub fn u16(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.byte(at), self.byte(at + 1)])
    }

    pub fn u32(&self, at: usize) -> u32 {
        u32::from(self.u16(at)) << 16 | u32::from(self.u16(at + 2))
    }

    pub fn u64(&self, at: usize) -> u64 {
        u64::from(self.u32(at)) << 32 | u64::from(self.u32(at + 4))
    }

    /// Length of the command in bytes, by its operation code (SPC-5 §4.2.5.1). It is 16 for the
    /// groups whose length is not defined.
    pub fn len(&self) -> usize {
        match self.byte(0) >> 5 {
            0 => 6,
            1 | 2 => 10,
            5 => 12,
            _ => 16,
        }
    }

    /// LOGICAL BLOCK ADDRESS.
    pub fn lba(&self) -> u64 {
        match self.len() {
            6 => u64::from(self.u32(0) & 0x1f_ffff),
            16 => self.u64(2),
            _ => u64::from(self.u32(2)),
        }
    }

    /// TRANSFER LENGTH, in logical blocks.
    pub fn blocks(&self) -> u64 {
        match self.len() {
            // Only in this form 0 means 256.
            6 => match self.byte(4) {
                0 => 256,
                blocks => u64::from(blocks),
            },
            10 => u64::from(self.u16(7)),
            12 => u64::from(self.u32(6)),
            _ => u64::from(self.u32(10)),
        }
    }

    /// The offset of the field that [`Cdb::blocks`] reads.
    pub fn blocks_at(&self) -> u16 {
        match self.len() {
            6 => 4,
            10 => 7,
            12 => 6,
            _ => 10,
        }
    }

    /// The byte of flags of a command that transfers blocks. Commands of six bytes have none.
    pub fn flags(&self) -> u8 {
        if self.len() == 6 { 0 } else { self.byte(1) }
    }
}

/// A big-endian number of at most eight bytes.
pub(super) fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Whether a logical unit number is the device's: 0, in peripheral device addressing or in flat
/// space addressing (SAM-5 §4.7).
pub(super) fn is_here(lun: u64) -> bool {
    matches!(lun, 0 | 0x4000_0000_0000_0000)
}
