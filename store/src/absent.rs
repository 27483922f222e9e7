//! Answers about volumes that there are not.

use longhaul_core::wire::link::{
    AttachError, ReadError, StageError, ToHost, ToStore, VolumeError, VolumeOperation,
};

/// What to answer when a message names a volume that is not there.
pub fn no_such_volume(message: ToStore) -> Option<ToHost> {
    match message {
        ToStore::Attach { request, .. } | ToStore::Resume { request, .. } => {
            Some(ToHost::Attached { request, result: Err(AttachError::NotFound) })
        }
        ToStore::Detach { request, .. } => Some(ToHost::Detached { request }),
        ToStore::Batch { volume, epoch, .. } => {
            let reason = "there is no such volume".to_owned();
            Some(ToHost::BatchRefused { volume, epoch, reason })
        }
        ToStore::Read { request, volume, .. } | ToStore::ReadBehind { request, volume, .. } => {
            Some(ToHost::Data { request, volume, result: Err(ReadError::NotAttached) })
        }
        ToStore::Status { request, volume, .. } => {
            Some(ToHost::Status { request, volume, result: Err(ReadError::NotAttached) })
        }
        ToStore::Stage { request, volume, .. } => {
            let result = Err(StageError::Read(ReadError::NotAttached));
            Some(ToHost::Staged { request, volume, result })
        }
        ToStore::Changed { request, volume, .. } => {
            Some(ToHost::Changed { request, volume, result: Err(ReadError::NotAttached) })
        }
        ToStore::Volume { request, .. } => {
            Some(ToHost::Volume { request, result: Err(VolumeError::NotFound) })
        }
        ToStore::Hello { .. }
        | ToStore::Announce { .. }
        | ToStore::Store { .. }
        | ToStore::Tenant { .. }
        | ToStore::Barrier { .. } => None,
    }
}

/// The volume that a message names, if it does by name.
pub fn named_in(message: &ToStore) -> Option<&str> {
    match message {
        ToStore::Attach { name, .. }
        | ToStore::Volume {
            operation:
                VolumeOperation::Show { name }
                | VolumeOperation::Snapshot { name, .. }
                | VolumeOperation::Lost { name, .. }
                | VolumeOperation::AcceptLoss { name }
                | VolumeOperation::Stored { name }
                | VolumeOperation::Resize { name, .. }
                | VolumeOperation::Shrink { name, .. }
                | VolumeOperation::Delete { name },
            ..
        } => Some(name),
        _ => None,
    }
}

/// What to answer when a message names a volume of which no more than the name can be read, for that reason.
pub fn damaged_volume(message: ToStore, reason: &str) -> Option<ToHost> {
    match message {
        ToStore::Attach { request, .. } => {
            let result = Err(AttachError::Damaged(reason.to_owned()));
            Some(ToHost::Attached { request, result })
        }
        ToStore::Volume { request, .. } => {
            let result = Err(VolumeError::Store(reason.to_owned()));
            Some(ToHost::Volume { request, result })
        }
        other => no_such_volume(other),
    }
}

/// What to answer when a message names a volume that its host has to resume first: this store does not
/// serve it, or no longer.
pub fn not_here(message: ToStore) -> Option<ToHost> {
    let reason = || "the volume is not in use at this store: resume".to_owned();
    match message {
        ToStore::Detach { volume, epoch, .. } | ToStore::Batch { volume, epoch, .. } => {
            Some(ToHost::BatchRefused { volume, epoch, reason: reason() })
        }
        other => no_such_volume(other),
    }
}
