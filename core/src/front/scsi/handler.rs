//! Handlers of commands: their inputs and their outcomes.

use super::command::Cdb;
use super::copy::plan::CopyRequest;
use super::logical_unit::LogicalUnit;
use super::nexus::{NexusId, TaskId};
use super::response::DataIn;
use super::sense::{CommandRefusal, Sense};
use super::volume_io::VolumeIo;
use crate::block::StagedPiece;

/// The command that a handler carries out.
#[derive(Clone, Copy, Debug)]
pub(super) struct CommandContext {
    pub nexus: NexusId,
    pub task: TaskId,
    pub cdb: Cdb,
    /// Bytes of output that the initiator is ready to send.
    pub out_bytes: u64,
}

/// The outcome of a handler.
#[derive(Debug)]
pub(super) enum CommandOutcome {
    /// The command ends with GOOD.
    Good(DataIn),
    /// The command ends with another status.
    Refused(CommandRefusal),
    /// The command goes on with requests to the volume.
    Medium(Box<VolumeIo>),
    /// The command ends when the reservations are saved.
    Reservations,
    /// The command ends when the transport has copied.
    Copy(Box<CopyRequest>),
    /// The part of a copy ends; these pieces are ready to be written.
    Staged(Vec<StagedPiece>),
}

impl CommandOutcome {
    pub const DONE: CommandOutcome = CommandOutcome::Good(DataIn::None);

    /// GOOD with parameter data, cut to the allocation length.
    pub fn data(mut bytes: Vec<u8>, allocation: usize) -> CommandOutcome {
        bytes.truncate(allocation);
        CommandOutcome::Good(DataIn::Parameter(bytes.into()))
    }
}

impl From<Sense> for CommandOutcome {
    fn from(sense: Sense) -> CommandOutcome {
        CommandOutcome::Refused(CommandRefusal::Check(sense))
    }
}

/// How a command moves data.
#[derive(Debug)]
pub(super) struct TransferPlan {
    /// Bytes of output that the fields of the command ask for.
    pub wanted: u64,
    /// The bytes of those that are collected.
    pub collect: u64,
    pub io: VolumeIo,
}

/// Carries out a command without output.
pub(super) type ControlHandler = fn(&mut LogicalUnit, &CommandContext) -> CommandOutcome;

/// Carries out a command with a parameter list.
pub(super) type ListHandler = fn(&mut LogicalUnit, &CommandContext, &[u8]) -> CommandOutcome;

/// Carries out a command that describes the table of commands.
pub(super) type TableHandler = fn(&[CommandEntry], &CommandContext) -> CommandOutcome;

/// The function that carries out a command.
#[derive(Clone, Copy, Debug)]
pub(super) enum Handler {
    /// At once, without output.
    Control(ControlHandler),
    /// At once, with a parameter list. The first function gives the length of the list.
    List(fn(&LogicalUnit, &CommandContext) -> Result<u64, CommandOutcome>, ListHandler),
    /// At once, from the table of commands.
    Table(TableHandler),
    /// With requests to the volume.
    Medium(fn(&LogicalUnit, &CommandContext) -> Result<TransferPlan, Sense>),
}

/// An entry of the table of commands.
#[derive(Debug)]
pub(super) struct CommandEntry {
    pub opcode: u8,
    /// Service action, if the operation code has several.
    pub action: Option<u8>,
    /// CDB USAGE DATA (SPC-5 §6.37.3): the bits that are evaluated. It is as long as the command.
    pub usage: &'static [u8],
    pub run: Handler,
}
