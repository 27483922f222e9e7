//! The end of a command: status, sense data and input.

use crate::block::ReadPiece;
use bytes::Bytes;

/// The input of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataIn {
    /// Nothing.
    None,
    /// Parameter data.
    Parameter(Bytes),
    /// The result of a read.
    Pieces(Vec<ReadPiece>),
}

/// Status codes (SAM-5 §5.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Good = 0x00,
    /// The sense data tells why.
    CheckCondition = 0x02,
    /// A comparison matched, or prefetched blocks will be in the cache.
    ConditionMet = 0x04,
    /// Try again later.
    Busy = 0x08,
    /// Another nexus holds a reservation.
    ReservationConflict = 0x18,
    /// Too many tasks.
    TaskSetFull = 0x28,
    /// Another nexus aborted the task, and the TAS bit is set.
    TaskAborted = 0x40,
}

/// The end of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandResponse {
    /// Status.
    pub status: Status,
    /// Sense data in wire format; empty if there is none.
    pub sense: Bytes,
    /// Input for the initiator.
    pub data: DataIn,
    /// Bytes of output that the fields of the command ask for, whatever the initiator was ready to
    /// send. The transport computes the residual count from it.
    pub out_wanted: u64,
}
