//! The effects of reservation outputs on tasks and nexuses.

use super::{DeferredResponse, Device, WaitingResponse};
use crate::front::scsi::output::DeviceOutput;
use crate::front::scsi::persistent;
use crate::front::scsi::reservations::ReservationOutput;
use crate::front::scsi::task_set::Task;

impl Device {
    /// Acts on the outputs of the reservations; `false` if there are none.
    pub(super) fn take_reservation_outputs(&mut self) -> bool {
        let mut any = false;
        // A PREEMPT AND ABORT has ended tasks. They come before its own end.
        let mut fences = false;
        while let Some(output) = self.unit.reservations.poll_output() {
            any = true;
            match output {
                ReservationOutput::Done { task, result } => {
                    let ended = persistent::ended(result);
                    // It promises that tasks of preempted nexuses change nothing any more.
                    if std::mem::take(&mut fences) {
                        let tasks = self.tasks.lingering();
                        let response = DeferredResponse::Task(task, ended);
                        self.waiting.push(WaitingResponse { response, tasks });
                    } else {
                        self.finish(task, ended);
                    }
                }
                ReservationOutput::Save { id, data } => {
                    self.outputs.push_back(DeviceOutput::SaveReservations { id, data });
                }
                ReservationOutput::Attention { nexus, code } => {
                    self.unit.nexuses.establish(code, |other| other == nexus);
                }
                ReservationOutput::Abort { nexus, except } => {
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
