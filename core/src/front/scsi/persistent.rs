//! The device's side of reservations: their commands handed over, what they decide carried out.

use super::management::{Answer, Waiting};
use super::reservations::{self, Class};
use super::sense::{Refusal, Sense};
use super::tasks::Task;
use super::{Context, DataIn, Device, NexusId, Outcome, Output, Status};

pub(super) use super::reservations::Reservations;

/// Relative identifiers of the target ports: the one portal group.
const PORTS: [u16; 1] = [crate::front::iscsi::PORTAL_GROUP];

/// The reservations after a start. Those that cannot be read keep everybody out until somebody
/// clears them: to forget them could let two hosts write.
pub(super) fn restore(saved: &[u8]) -> Reservations {
    Reservations::restore(&PORTS, saved).unwrap_or_else(|_| Reservations::lost(&PORTS))
}

/// Whether a reservation of another nexus stops a command. Those that deal with reservations answer
/// for themselves.
pub(super) fn check(
    reservations: &Reservations,
    nexus: NexusId,
    cdb: &[u8; 16],
) -> Result<(), Refusal> {
    match cdb[0] {
        0x16 | 0x17 | 0x5e | 0x5f => Ok(()),
        _ => Ok(reservations.check(nexus, Class::of(cdb))?),
    }
}

impl From<reservations::Refusal> for Refusal {
    fn from(refusal: reservations::Refusal) -> Refusal {
        match refusal {
            reservations::Refusal::Conflict => Refusal::Status(Status::ReservationConflict),
            reservations::Refusal::Busy => Refusal::Status(Status::Busy),
            reservations::Refusal::Check { key, code, field } => {
                let sense = Sense::new(key, code);
                Refusal::Check(match field {
                    Some(field) => sense.at(field.in_cdb, field.byte, field.bit),
                    None => sense,
                })
            }
        }
    }
}

fn ended(result: Result<(), reservations::Refusal>) -> Outcome {
    match result {
        Ok(()) => Outcome::DONE,
        Err(refusal) => Outcome::Refused(refusal.into()),
    }
}

/// RESERVE(6).
pub(super) fn reserve(device: &mut Device, context: &Context) -> Outcome {
    ended(device.reservations.handle_reserve(context.nexus, &context.cdb.0))
}

/// RELEASE(6).
pub(super) fn release(device: &mut Device, context: &Context) -> Outcome {
    ended(device.reservations.handle_release(context.nexus, &context.cdb.0))
}

/// PERSISTENT RESERVE IN.
pub(super) fn reserve_in(device: &mut Device, context: &Context) -> Outcome {
    match device.reservations.handle_in(&context.cdb.0) {
        Ok(bytes) => Outcome::Good(DataIn::Parameter(bytes)),
        Err(refusal) => Outcome::Refused(refusal.into()),
    }
}

/// The parameter list of PERSISTENT RESERVE OUT.
pub(super) fn out_length(device: &Device, context: &Context) -> Result<u64, Outcome> {
    match device.reservations.begin_out(&context.cdb.0) {
        Ok(bytes) => Ok(u64::from(bytes)),
        Err(refusal) => Err(Outcome::Refused(refusal.into())),
    }
}

/// PERSISTENT RESERVE OUT.
pub(super) fn out(device: &mut Device, context: &Context, list: &[u8]) -> Outcome {
    let (task, nexus) = (context.task, context.nexus);
    device.reservations.handle_out(task, nexus, &context.cdb.0, list);
    Outcome::Reservations
}

impl Device {
    /// Does what the reservations say; `false` if they say nothing.
    pub(super) fn take_reservation_outputs(&mut self) -> bool {
        let mut any = false;
        // A PREEMPT AND ABORT has ended tasks; they come before its own end.
        let mut fences = false;
        while let Some(output) = self.reservations.poll_output() {
            any = true;
            match output {
                reservations::Output::Done { task, result } => {
                    let ended = ended(result);
                    // It promises that nothing of those it has shut out is written any more.
                    if std::mem::take(&mut fences) {
                        let tasks = self.tasks.lingering();
                        self.waiting.push(Waiting { answer: Answer::Task(task, ended), tasks });
                    } else {
                        self.finish(task, ended);
                    }
                }
                reservations::Output::Save { id, data } => {
                    self.outputs.push_back(Output::SaveReservations { id, data });
                }
                reservations::Output::Attention { nexus, code } => {
                    self.attention(code, |other| other == nexus);
                }
                reservations::Output::Abort { nexus, except } => {
                    fences = true;
                    let by = self.tasks.nexus_of(except).unwrap_or(nexus);
                    let tasks = self.tasks.of(|task: &Task| task.nexus() == nexus);
                    for task in tasks.into_iter().filter(|task| *task != except) {
                        self.abort(task, by);
                    }
                    self.stop_background(|other| other == nexus);
                }
            }
        }
        any
    }
}
