//! Handlers of reservation commands: PERSISTENT RESERVE IN and OUT, RESERVE and RELEASE.

use super::handler::{CommandContext, CommandOutcome};
use super::logical_unit::LogicalUnit;
use super::nexus::NexusId;
use super::reservations::{ConflictClass, ReservationRefusal};
use super::response::{DataIn, Status};
use super::sense::{CommandRefusal, Sense};

/// Checks whether a reservation of another nexus stops a command. The reservation commands have
/// checks of their own.
pub(super) fn check(
    unit: &LogicalUnit,
    nexus: NexusId,
    cdb: &[u8; 16],
) -> Result<(), CommandRefusal> {
    match cdb[0] {
        0x16 | 0x17 | 0x5e | 0x5f => Ok(()),
        _ => Ok(unit.reservations.check(nexus, ConflictClass::of(cdb))?),
    }
}

impl From<ReservationRefusal> for CommandRefusal {
    fn from(refusal: ReservationRefusal) -> CommandRefusal {
        match refusal {
            ReservationRefusal::Conflict => CommandRefusal::Status(Status::ReservationConflict),
            ReservationRefusal::Busy => CommandRefusal::Status(Status::Busy),
            ReservationRefusal::Check { key, code, field } => {
                let sense = Sense::new(key, code);
                CommandRefusal::Check(match field {
                    Some(field) => sense.at(field.in_cdb, field.byte, field.bit),
                    None => sense,
                })
            }
        }
    }
}

pub(super) fn ended(result: Result<(), ReservationRefusal>) -> CommandOutcome {
    match result {
        Ok(()) => CommandOutcome::DONE,
        Err(refusal) => CommandOutcome::Refused(refusal.into()),
    }
}

/// RESERVE(6).
pub(super) fn reserve(unit: &mut LogicalUnit, context: &CommandContext) -> CommandOutcome {
    ended(unit.reservations.handle_reserve(context.nexus, &context.cdb.0))
}

/// RELEASE(6).
pub(super) fn release(unit: &mut LogicalUnit, context: &CommandContext) -> CommandOutcome {
    ended(unit.reservations.handle_release(context.nexus, &context.cdb.0))
}

/// PERSISTENT RESERVE IN.
pub(super) fn reserve_in(unit: &mut LogicalUnit, context: &CommandContext) -> CommandOutcome {
    match unit.reservations.handle_in(&context.cdb.0) {
        Ok(bytes) => CommandOutcome::Good(DataIn::Parameter(bytes)),
        Err(refusal) => CommandOutcome::Refused(refusal.into()),
    }
}

/// The length of the parameter list of PERSISTENT RESERVE OUT.
pub(super) fn out_length(
    unit: &LogicalUnit,
    context: &CommandContext,
) -> Result<u64, CommandOutcome> {
    match unit.reservations.begin_out(&context.cdb.0) {
        Ok(bytes) => Ok(u64::from(bytes)),
        Err(refusal) => Err(CommandOutcome::Refused(refusal.into())),
    }
}

/// PERSISTENT RESERVE OUT.
pub(super) fn out(unit: &mut LogicalUnit, context: &CommandContext, list: &[u8]) -> CommandOutcome {
    let (task, nexus) = (context.task, context.nexus);
    unit.reservations.handle_out(task, nexus, &context.cdb.0, list);
    CommandOutcome::Reservations
}
