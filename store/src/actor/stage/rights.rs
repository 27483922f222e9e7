//! The rights that each message needs of the credential of its session.
//!
//! The matches are exhaustive: a new message does not compile before this module decides about it.
//! `docs/security.md` has the same as a table.

use longhaul_core::wire::link::{
    ReplicaOperation, SnapshotOperation, StoreOperation, TenantOperation, ToStore, TrashOperation,
    VolumeOperation,
};
use longhaul_link::credential::Role;

/// The rights that a message needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Needs {
    /// The least role.
    pub role: Role,
    /// For what.
    pub scope: Scope,
    /// Whether another store may say it.
    pub stores: bool,
}

/// The object that the role is needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// The volumes that the message names.
    Volumes,
    /// Nothing: the answer has only what the credential covers.
    Covered,
    /// All of the installation.
    Installation,
    /// Only other stores say it.
    Stores,
    /// Only who has a token to join with.
    Token,
}

const fn volumes(role: Role) -> Needs {
    Needs { role, scope: Scope::Volumes, stores: false }
}

/// The same, and stores pass it on to each other.
const fn passed_on(role: Role) -> Needs {
    Needs { role, scope: Scope::Volumes, stores: true }
}

const fn covered(role: Role) -> Needs {
    Needs { role, scope: Scope::Covered, stores: false }
}

const fn installation(role: Role) -> Needs {
    Needs { role, scope: Scope::Installation, stores: false }
}

const fn between_stores() -> Needs {
    Needs { role: Role::Admin, scope: Scope::Stores, stores: true }
}

/// The rights that a message needs.
pub(super) fn needs(message: &ToStore) -> Needs {
    match message {
        // The store never passes it on, and ends the session.
        ToStore::Hello { .. } => covered(Role::Read),
        ToStore::Attach { .. }
        | ToStore::Resume { .. }
        | ToStore::Detach { .. }
        | ToStore::Batch { .. }
        | ToStore::Announce { .. }
        | ToStore::Stage { .. }
        | ToStore::EarlyRead { .. }
        | ToStore::Changed { .. }
        | ToStore::Barrier { .. } => volumes(Role::Write),
        ToStore::Read { .. } | ToStore::Status { .. } => passed_on(Role::Read),
        ToStore::Volume { operation, .. } => of_volume(operation),
        ToStore::Store { operation, .. } => of_store(operation),
        ToStore::Tenant { operation, .. } => match operation {
            TenantOperation::Show { .. } | TenantOperation::List => installation(Role::Read),
            TenantOperation::Create { .. }
            | TenantOperation::Set { .. }
            | TenantOperation::Delete { .. } => installation(Role::Admin),
        },
    }
}

fn of_volume(operation: &VolumeOperation) -> Needs {
    match operation {
        VolumeOperation::List => covered(Role::Read),
        VolumeOperation::Show { .. }
        | VolumeOperation::Lost { .. }
        | VolumeOperation::Stored { .. }
        | VolumeOperation::GetAttribute { .. } => passed_on(Role::Read),
        // Hosts set reservations and traces. They also set schedules of snapshots, because they may
        // take snapshots.
        VolumeOperation::SetAttribute { attribute, .. } => passed_on(match attribute.as_str() {
            // New keys of a volume shut out the holders of the old ones.
            longhaul_api::keys::ATTRIBUTE => Role::Admin,
            _ => Role::Write,
        }),
        VolumeOperation::Delete { .. }
        | VolumeOperation::AcceptLoss { .. }
        | VolumeOperation::Resize { .. }
        | VolumeOperation::Shrink { .. } => passed_on(Role::Admin),
        VolumeOperation::Create { .. } => volumes(Role::Admin),
        VolumeOperation::Snapshot { operation, .. } => match operation {
            SnapshotOperation::List { .. }
            | SnapshotOperation::Diff { .. }
            | SnapshotOperation::Usage { .. } => passed_on(Role::Read),
            SnapshotOperation::Create { .. } | SnapshotOperation::Delete { .. } => {
                passed_on(Role::Write)
            }
            SnapshotOperation::Rollback { .. } | SnapshotOperation::Clone { .. } => {
                passed_on(Role::Admin)
            }
            SnapshotOperation::Forget { .. } => between_stores(),
        },
        VolumeOperation::Trash(operation) => match operation {
            TrashOperation::List { .. } => covered(Role::Read),
            TrashOperation::Restore { .. } | TrashOperation::Purge { .. } => volumes(Role::Admin),
        },
    }
}

fn of_store(operation: &StoreOperation) -> Needs {
    match operation {
        StoreOperation::Report | StoreOperation::Replica(ReplicaOperation::Show) => {
            Needs { stores: true, ..installation(Role::Read) }
        }
        StoreOperation::List => installation(Role::Read),
        StoreOperation::Evacuate { .. }
        | StoreOperation::Rebalance
        | StoreOperation::Forget { .. }
        | StoreOperation::Replica(
            ReplicaOperation::Add { .. } | ReplicaOperation::Remove | ReplicaOperation::Mode { .. },
        ) => installation(Role::Admin),
        StoreOperation::Refresh | StoreOperation::Release { .. } => between_stores(),
        // Of oneself.
        StoreOperation::Renew { .. } => covered(Role::Read),
        StoreOperation::Sign { .. } => {
            Needs { role: Role::Read, scope: Scope::Token, stores: false }
        }
    }
}
