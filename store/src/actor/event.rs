//! The events of the actor's own tasks: one kind for each child, which knows what its completions
//! mean.

use super::engine_task::Attend;
use super::engines::ScheduleRead;
use super::fleet::FleetDone;
use super::operation::clones::CloneDone;
use super::operation::jobs::JobDone;
use super::operation::lists::ListDone;
use super::operation::map_diff::PlacesFound;
use super::operation::tenants::TenantDone;
use super::operation::trash::TrashDone;
use super::repair::RepairDone;
use super::replica::ReplicaDone;
use super::stage::ownership::OwnershipDone;
use super::stage::quota::QuotaDone;
use super::stage::rates::RatesDone;
use super::stage::snapshots::SnapshotDone;
use longhaul_core::wire::link::ToHost;

/// The outcome of a task.
pub(super) enum TaskDone {
    Attend(Attend),
    Schedule(ScheduleRead),
    Quota(QuotaDone),
    Rates(RatesDone),
    Snapshot(SnapshotDone),
    Ownership(OwnershipDone),
    Job(JobDone),
    Clone(CloneDone),
    Trash(TrashDone),
    List(ListDone),
    Places(PlacesFound),
    Tenant(TenantDone),
    Fleet(FleetDone),
    Replica(ReplicaDone),
    Repair(RepairDone),
    /// An answer to a question of the store itself.
    OwnAnswer(ToHost),
}

macro_rules! from {
    ($($kind:ident($completion:ty),)*) => {
        $(impl From<$completion> for TaskDone {
            fn from(done: $completion) -> TaskDone {
                TaskDone::$kind(done)
            }
        })*
    };
}

from! {
    Attend(Attend),
    Schedule(ScheduleRead),
    Quota(QuotaDone),
    Rates(RatesDone),
    Snapshot(SnapshotDone),
    Ownership(OwnershipDone),
    Job(JobDone),
    Clone(CloneDone),
    Trash(TrashDone),
    List(ListDone),
    Places(PlacesFound),
    Tenant(TenantDone),
    Fleet(FleetDone),
    Replica(ReplicaDone),
    Repair(RepairDone),
    OwnAnswer(ToHost),
}
