//! The outputs of a device.

use super::copy::part::{PartFailure, PartReply};
use super::copy::plan::CopyPlan;
use super::function::ManagementResponse;
use super::nexus::TaskId;
use super::response::CommandResponse;
use crate::block::Request;
use bytes::Bytes;

/// An output of a device, for the transport or the shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceOutput {
    /// Collect exactly this many bytes of output, at most [`out_bytes`](super::Command::out_bytes).
    /// Hand them in with [`handle_data`](super::Device::handle_data).
    WantData {
        /// The task that wants them.
        task: TaskId,
        /// The number of bytes, more than zero.
        bytes: u64,
    },
    /// A command has ended.
    Response {
        /// The task of the command.
        task: TaskId,
        /// The response.
        response: CommandResponse,
    },
    /// Task management or PREEMPT AND ABORT has ended a task, and it gets no response. The function
    /// may be one of its own nexus. The transport drops its state of the task.
    Aborted {
        /// The task.
        task: TaskId,
    },
    /// A task management function is done.
    ManagementDone {
        /// The name of the function, as it was handed in.
        id: u64,
        /// The outcome.
        response: ManagementResponse,
    },
    /// Send this request to the volume, and answer with
    /// [`handle_reply`](super::Device::handle_reply). In a [`Request::Stage`] the number of the
    /// object is 0; the shell draws another one.
    Request {
        /// The name of the request, for the answer.
        id: u64,
        /// The request.
        request: Request,
    },
    /// Save these persistent reservations with the volume in the place of the older ones. Answer
    /// with [`handle_saved`](super::Device::handle_saved).
    SaveReservations {
        /// The name of the save, for the answer.
        id: u64,
        /// Opaque bytes. If they are empty, remove the last save.
        data: Bytes,
    },
    /// Copy this for the nexus of the task. Answer with
    /// [`handle_copied`](super::Device::handle_copied).
    Copy {
        /// The name of the copy, for the answer.
        id: u64,
        /// The command that asked for the copy. It may end before the copy does.
        task: TaskId,
        /// What to copy.
        plan: CopyPlan,
    },
    /// End a copy early. Answer once nothing of it will be written any more.
    EndCopy {
        /// The copy.
        id: u64,
    },
    /// A part of a copy has ended.
    Part {
        /// The task of the part, as it was handed in.
        task: TaskId,
        /// The result.
        result: Result<PartReply, PartFailure>,
    },
}
