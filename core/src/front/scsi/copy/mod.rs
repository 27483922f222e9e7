//! Third-party copy: commands that make a unit move data itself (SPC-4 and SPC-5, "Third-party
//! copies"; SBC-4, POPULATE TOKEN and WRITE USING TOKEN).
//!
//! The unit that gets such a command is the *copy manager*. It checks the parameter list (`list`,
//! `token`), hands a [`CopyPlan`] to the transport, and keeps the result (`results`, `report`). The
//! transport knows the units and the rights of the initiator. It drives a [`CopyJob`], whose steps
//! are [`CopyPart`]s. A part is a command without output that a unit does for a copy.
//!
//! **Checks.** The transport checks in one place whether the initiator may use a unit, again for
//! every part. The unit that does a part makes all other checks of a read or a write of that nexus.
//! These are reservations, write protection, size, and exclusive claims of other commands. Task
//! management of the unit ends parts as it ends tasks.
//!
//! If task management ended a copy, the copy writes nothing after the answer to the function. That
//! holds for all units that it writes to. The memory of results is bounded.

pub(super) mod failure;
mod format;
mod job;
pub(super) mod list;
pub(super) mod part;
pub(super) mod plan;
pub(super) mod report;
pub(super) mod results;
pub(super) mod token;
pub(super) mod tokens;
pub(super) mod vpd;

pub use failure::{CopyFailure, CopyProblem};
pub use format::{RodToken, TOKEN_BYTES};
pub use job::{CopyJob, CopyMove, PartId, PartOrder, UnitId};
pub use part::{CopyPart, PartFailure, PartReply};
pub use plan::{CopyPlan, CscdDescriptor, Designator, SegmentDescriptor};
pub use tokens::Rod;
