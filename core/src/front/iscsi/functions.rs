//! Task management functions that a session has not answered.

use super::connection::before;
use super::identity::ConnectionId;
use super::tasks::{SessionTask, TaskStage};
use crate::block::Time;
use crate::front::scsi::ManagementFunction;
use crate::wire::iscsi::FunctionResponse;

/// Functions that a session may have unfinished, numbered or not.
const MAX_FUNCTIONS: usize = 128;

/// A point in a connection's statuses that its initiator has to acknowledge.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fence {
    pub(super) serial: u32,
    pub(super) connection: ConnectionId,
    /// All statuses before this number.
    pub(super) stat_sn: u32,
}

impl Fence {
    /// A form in which fences can be compared.
    pub(super) fn key(&self) -> (u32, ConnectionId, u32) {
        (self.serial, self.connection, self.stat_sn)
    }
}

/// The steps of a function.
#[derive(Clone, Debug)]
pub(super) enum FunctionProgress {
    /// Waits until output and commands of the tasks have arrived.
    Settling { until: Time },
    /// The device carries it out.
    Asked,
    /// Waits until other connections have acknowledged earlier statuses.
    Fenced { fences: Vec<Fence>, response: FunctionResponse, until: Time },
}

/// A task management function that has not been answered.
#[derive(Clone, Debug)]
pub(super) struct PendingFunction {
    pub(super) id: u64,
    pub(super) connection: ConnectionId,
    pub(super) itt: u32,
    pub(super) lun: u64,
    pub(super) cmd_sn: u32,
    /// Code of the function (RFC 7143 §11.5.1).
    pub(super) function: u8,
    pub(super) management: ManagementFunction,
    pub(super) progress: FunctionProgress,
}

impl PendingFunction {
    /// Whether it concerns all logical units.
    pub(super) fn is_wide(&self) -> bool {
        matches!(self.management, ManagementFunction::TargetReset | ManagementFunction::NexusReset)
    }

    /// Whether the function ends a task.
    pub(super) fn concerns(&self, task: &SessionTask) -> bool {
        let older =
            before(task.cmd_sn, self.cmd_sn) || task.immediate && task.cmd_sn == self.cmd_sn;
        older && task.stage != TaskStage::Done && (self.is_wide() || task.lun == self.lun)
    }

    fn is_barrier(&self) -> bool {
        matches!(self.progress, FunctionProgress::Settling { .. })
    }
}

/// The functions of a session, in the order in which they came.
#[derive(Debug)]
pub(super) struct Functions {
    serial: u32,
    pending: Vec<PendingFunction>,
    /// The last name that a function got.
    last: u32,
}

impl Functions {
    /// No functions, of session `serial`.
    pub(super) fn new(serial: u32) -> Functions {
        Functions { serial, pending: Vec::new(), last: 0 }
    }

    /// The session that a function belongs to.
    pub(super) fn serial_of(id: u64) -> u32 {
        (id >> 32) as u32
    }

    pub(super) fn len(&self) -> usize {
        self.pending.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Adds a function and names it; `None` if there are too many.
    pub(super) fn add(&mut self, function: PendingFunction) -> Option<u64> {
        if self.pending.len() >= MAX_FUNCTIONS {
            return None;
        }
        self.last = self.last.wrapping_add(1);
        let id = u64::from(self.serial) << 32 | u64::from(self.last);
        self.pending.push(PendingFunction { id, ..function });
        Some(id)
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut PendingFunction> {
        self.pending.iter_mut().find(|function| function.id == id)
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<PendingFunction> {
        let at = self.pending.iter().position(|function| function.id == id)?;
        Some(self.pending.remove(at))
    }

    /// The oldest function that commands must not pass on their way to the device.
    pub(super) fn barrier(&self) -> Option<&PendingFunction> {
        self.pending.iter().find(|function| function.is_barrier())
    }

    /// Drops the functions of a connection that is gone.
    pub(super) fn forget(&mut self, connection: ConnectionId) {
        self.pending.retain(|function| function.connection != connection);
    }

    /// The fences that functions wait for.
    pub(super) fn fences(&self) -> impl Iterator<Item = &Fence> {
        self.pending.iter().flat_map(|function| match &function.progress {
            FunctionProgress::Fenced { fences, .. } => fences.as_slice(),
            FunctionProgress::Settling { .. } | FunctionProgress::Asked => &[],
        })
    }

    /// When the time of the next fence is over, of those whose time is not over at `now`.
    pub(super) fn next_fence_limit(&self, now: Time) -> Option<Time> {
        self.pending
            .iter()
            .filter_map(|function| match &function.progress {
                FunctionProgress::Fenced { until, .. } => Some(*until),
                FunctionProgress::Settling { .. } | FunctionProgress::Asked => None,
            })
            .filter(|until| *until > now)
            .min()
    }

    /// Removes the fences that are acknowledged, or whose time is over. Returns the functions
    /// without fences, with their responses, and whether some functions still wait.
    pub(super) fn lower_fences(
        &mut self,
        now: Time,
        is_up: impl Fn(&Fence) -> bool,
    ) -> (Vec<(u64, FunctionResponse)>, bool) {
        let (mut done, mut waiting) = (Vec::new(), false);
        for function in &mut self.pending {
            if let FunctionProgress::Fenced { fences, response, until } = &mut function.progress {
                fences.retain(|fence| is_up(fence));
                if fences.is_empty() || *until <= now {
                    done.push((function.id, *response));
                } else {
                    waiting = true;
                }
            }
        }
        (done, waiting)
    }
}
