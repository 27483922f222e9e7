//! Task management functions (SAM-5 §7) and their outcomes.

use super::nexus::TaskId;

/// A task management function of SAM-5 §7, by its effect here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManagementFunction {
    /// Ends one task of this nexus.
    AbortTask(TaskId),
    /// Ends all tasks of this nexus.
    AbortTaskSet,
    /// Ends all tasks of all nexuses.
    ClearTaskSet,
    /// Ends all tasks of all nexuses. Ends SPC-2 reservations, and resets the mode parameters to
    /// their defaults.
    LogicalUnitReset,
    /// Does the same as a logical unit reset. The target has no other logical units.
    TargetReset,
    /// Ends all tasks of this nexus, and everything that a lost nexus loses.
    NexusReset,
    /// Asks whether the task exists.
    QueryTask(TaskId),
    /// Asks whether this nexus has tasks.
    QueryTaskSet,
    /// Asks whether a unit attention condition waits for this nexus.
    QueryAsyncEvent,
}

/// The outcome of a task management function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManagementResponse {
    /// The function is done. For a query, the answer is no.
    Complete,
    /// For a query, the answer is yes.
    Succeeded,
    /// The logical unit does not exist.
    NoLun,
}
