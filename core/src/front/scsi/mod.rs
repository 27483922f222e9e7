//! A disk as SCSI hosts see it: one logical unit with its I_T nexuses, commands in, block requests
//! out.
//!
//! The device promises, for any command bytes:
//!
//! - it never panics, and holds no more memory than its limits allow;
//! - it hands out only block requests that lie within the volume;
//! - it ends every command with exactly one response, unless the command is aborted;
//! - it reports a unit attention condition to each nexus that it is for, once.
//!
//! The device knows SPC-5 and SBC-4. It knows nothing of the transport: no tags, no sequence
//! numbers, no negotiated lengths. "Output" is data from the initiator, "input" is data to it.
//!
//! # Driving a device
//!
//! After any `handle_*`, take everything from [`Device::poll_output`] and act on it.
//!
//! # How it works
//!
//! The device checks a command when it arrives: unit attentions, reservations, then the fields of
//! the command. A command that passes becomes a task. The task collects its output, if it has any,
//! and waits until the task set lets it start. Then it is carried out at once or with requests to
//! the volume.
//!
//! From the bottom up: `command`, `response`, `sense` and `output` are plain types. `logical_unit`
//! is the state that commands use. `handler` says what a handler is; `control`, `data`, `inquiry`,
//! `mode`, `persistent` and `copy` have the handlers, and `command_table` lists them. `task_set`
//! orders tasks, and `volume_io` is the I/O of one. `device` owns it all.

mod class;
mod command;
mod command_table;
mod config;
mod control;
pub mod copy;
mod data;
mod device;
mod function;
mod handler;
mod inquiry;
mod limits;
mod logical_unit;
mod mode;
mod mode_parameters;
mod nexus;
mod nexuses;
mod output;
mod persistent;
mod port_groups;
mod requests;
pub mod reservations;
mod response;
mod sense;
mod supported;
mod task_set;
mod volume_io;

pub use class::CommandClass;
pub use command::{Attribute, Command};
pub use config::{DeviceConfig, TokenSecret};
pub use device::Device;
pub use function::{ManagementFunction, ManagementResponse};
pub use limits::{MAX_ATOMIC_BYTES, MAX_TASKS, MAX_TRANSFER_BYTES};
pub use nexus::{Nexus, NexusId, TARGET_PORT, TaskId};
pub use output::DeviceOutput;
pub use response::{CommandResponse, DataIn, Status};
pub use sense::Side;
