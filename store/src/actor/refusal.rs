//! The answers to requests that the pipeline refuses: one match over all message kinds.

use longhaul_core::wire::link::{AttachError, ReadError, StageError, ToHost, ToStore, VolumeError};

/// Why the store refuses a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The volume does not exist, or the session may not see it.
    NotFound,
    /// The description of the volume is damaged, for this reason.
    Damaged(String),
    /// The credential does not allow the request, or the request is invalid.
    Rejected(VolumeError),
    /// The object is unusable, or not usable now.
    Unavailable(VolumeError),
    /// This store does not serve the volume, or no longer: its host resumes first.
    NotServed,
    /// The store does not copy the range: the host reads and writes it instead.
    NoCopy,
    /// The store that serves the volume does not answer.
    HolderSilent(String),
}

impl Refusal {
    /// The answer to a message; nothing for a message that has no answer.
    pub fn answer(self, message: ToStore) -> Option<ToHost> {
        Some(match message {
            ToStore::Attach { request, .. } => {
                ToHost::Attached { request, result: Err(self.of_attach()?) }
            }
            ToStore::Resume { request, .. } => {
                let error = match self {
                    Refusal::Rejected(why) => AttachError::Forbidden(why.to_string()),
                    Refusal::HolderSilent(_) => return None,
                    _ => AttachError::NotFound,
                };
                ToHost::Attached { request, result: Err(error) }
            }
            ToStore::Detach { request, volume, epoch } => match self {
                Refusal::NotServed => ToHost::BatchRefused { volume, epoch, reason: not_served() },
                _ => ToHost::Detached { request },
            },
            ToStore::Batch { volume, epoch, .. } => {
                let reason = match self {
                    Refusal::Rejected(why) => why.to_string(),
                    Refusal::NotServed => not_served(),
                    _ => "no such volume".to_owned(),
                };
                ToHost::BatchRefused { volume, epoch, reason }
            }
            ToStore::Read { request, volume, .. } | ToStore::EarlyRead { request, volume, .. } => {
                ToHost::Data { request, volume, result: Err(ReadError::NotAttached) }
            }
            ToStore::Status { request, volume, .. } => {
                ToHost::Status { request, volume, result: Err(ReadError::NotAttached) }
            }
            ToStore::Stage { request, volume, .. } => {
                let error = match self {
                    Refusal::Rejected(_) | Refusal::NoCopy => StageError::Unsupported,
                    _ => StageError::Read(ReadError::NotAttached),
                };
                ToHost::Staged { request, volume, result: Err(error) }
            }
            ToStore::Changed { request, volume, .. } => {
                ToHost::Changed { request, volume, result: Err(ReadError::NotAttached) }
            }
            ToStore::Volume { request, .. } => {
                ToHost::Volume { request, result: Err(self.of_volume()) }
            }
            ToStore::Store { request, .. } => {
                ToHost::Store { request, result: Err(self.rejected()?) }
            }
            ToStore::Tenant { request, .. } => {
                ToHost::Tenant { request, result: Err(self.rejected()?) }
            }
            ToStore::Hello { .. } | ToStore::Announce { .. } | ToStore::Barrier { .. } => {
                return None;
            }
        })
    }

    fn of_attach(self) -> Option<AttachError> {
        Some(match self {
            Refusal::Damaged(reason) => AttachError::Damaged(reason),
            Refusal::Rejected(why) => AttachError::Forbidden(why.to_string()),
            Refusal::Unavailable(VolumeError::NotFound | VolumeError::Snapshot(_))
            | Refusal::NotFound
            | Refusal::NotServed
            | Refusal::NoCopy => AttachError::NotFound,
            Refusal::Unavailable(error) => AttachError::Damaged(error.to_string()),
            Refusal::HolderSilent(_) => return None,
        })
    }

    fn of_volume(self) -> VolumeError {
        match self {
            Refusal::Damaged(reason) | Refusal::HolderSilent(reason) => VolumeError::Store(reason),
            Refusal::Rejected(error) | Refusal::Unavailable(error) => error,
            Refusal::NotFound | Refusal::NotServed | Refusal::NoCopy => VolumeError::NotFound,
        }
    }

    fn rejected(self) -> Option<VolumeError> {
        match self {
            Refusal::Rejected(why) => Some(why),
            _ => None,
        }
    }
}

fn not_served() -> String {
    "the volume is not in use at this store: resume".to_owned()
}
