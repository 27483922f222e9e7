//! The store's word on a volume before the attach, and the reasons to refuse an attach.

use crate::context::HostContext;
use crate::failure::AttachFailure;
use crate::state::StateDir;
use longhaul_core::wire::link::{
    AttachError, ToHost, ToStore, VolumeError, VolumeInfo, VolumeOperation, VolumeReply,
};

/// Asks the store for a volume by name.
pub(super) async fn show(host: &HostContext, name: &str) -> Result<VolumeInfo, AttachFailure> {
    let operation = VolumeOperation::Show { name: name.to_owned() };
    match host.router.call(|request| ToStore::Volume { request, operation }).await? {
        // The name in the request counts, not the one in the answer.
        ToHost::Volume { result: Ok(VolumeReply::Volume(info)), .. } => {
            Ok(VolumeInfo { name: name.to_owned(), ..info })
        }
        ToHost::Volume { result: Err(error @ VolumeError::NotFound), .. } => {
            let kept = host.state.volumes()?.into_iter().find(|v| v.name == name && !v.released);
            let kept = match kept {
                None => String::new(),
                Some(volume) => format!(
                    "; the host keeps the undelivered writes in {}: `longhaul detach {name} \
                     --drop-undelivered` gives it up",
                    host.state.volume_dir(volume.volume_id()?).display()
                ),
            };
            Err(AttachFailure::NotFound(format!("volume {name}: {error}{kept}")))
        }
        ToHost::Volume { result: Err(error), .. } => {
            Err(AttachFailure::Refused(format!("volume {name}: {error}")))
        }
        _ => Err(AttachFailure::Refused("the store gave an answer that does not fit".into())),
    }
}

/// The failure for an attach that the store refused.
pub(super) fn refusal(
    host: &HostContext,
    name: &str,
    info: &VolumeInfo,
    error: &AttachError,
) -> AttachFailure {
    let dir = host.state.volume_dir(info.id);
    match error {
        AttachError::NotFound => AttachFailure::NotFound(format!("volume {name}: {error}")),
        AttachError::ShuttingDown => AttachFailure::Link,
        AttachError::InUse { .. } => AttachFailure::InUse(error.to_string()),
        AttachError::Diverged { .. } | AttachError::WrongVolume(_) => {
            AttachFailure::Refused(format!("volume {name}: {error} (it is in {})", dir.display()))
        }
        _ => AttachFailure::Refused(format!("volume {name}: {error}")),
    }
}

/// An attach would be refused, or fence off a host that is at work.
pub(super) fn refuse_in_use(host: &HostContext, info: &VolumeInfo) -> Result<(), AttachFailure> {
    let live = info.live.as_ref().filter(|live| live.connected);
    match live.and_then(|live| live.host) {
        Some(other) if other != host.state.host() => {
            let by = live.map(|live| live.name.clone()).unwrap_or_default();
            let error = AttachError::InUse { volume: info.name.clone(), host: other, by };
            Err(AttachFailure::InUse(error.to_string()))
        }
        _ => Ok(()),
    }
}

/// The operator has to decide about writes that another host never delivered, before this host
/// makes a journal.
pub(super) async fn refuse_loss(
    host: &HostContext,
    info: &VolumeInfo,
) -> Result<(), AttachFailure> {
    let operation = VolumeOperation::Lost { name: info.name.clone(), from_lba: 0 };
    let asked = host.router.call(|request| ToStore::Volume { request, operation }).await?;
    let ToHost::Volume {
        result: Ok(VolumeReply::Lost { host: other, connected, ranges, .. }), ..
    } = asked
    else {
        // The attach says what is wrong.
        return Ok(());
    };
    match other {
        Some(other) if !connected && !ranges.is_empty() && other != host.state.host() => {
            let bytes = ranges.iter().map(|range| range.bytes()).sum();
            let error = AttachError::LossPending { host: other, bytes };
            Err(AttachFailure::Refused(format!("volume {}: {error}", info.name)))
        }
        _ => Ok(()),
    }
}

/// Refuses to attach a volume without its journal while that may hold undelivered writes.
pub(super) fn refuse_undelivered(state: &StateDir, info: &VolumeInfo) -> Result<(), AttachFailure> {
    match state.volume(info.id)? {
        Some(file) if !file.released => Err(AttachFailure::Refused(format!(
            "volume {} has a journal in {} that may hold undelivered writes: start the host \
             without --write-through until it has drained and stop it in order, then with it",
            info.name,
            state.volume_dir(info.id).display()
        ))),
        // It was fenced off with them.
        Some(file) if !file.delivered => Err(AttachFailure::Refused(format!(
            "volume {0} has a journal in {1} with writes that it did not deliver before another \
             host attached the volume: move that directory away to keep them for salvage, or give \
             them up with `longhaul detach {0} --drop-undelivered`",
            info.name,
            state.volume_dir(info.id).display()
        ))),
        _ => Ok(()),
    }
}

/// Refuses a volume that cannot have the root that the operator expects.
pub(super) fn may_expect(
    host: &HostContext,
    name: &str,
    read_only: bool,
    encrypted: bool,
) -> Result<(), AttachFailure> {
    let why = match (read_only, encrypted) {
        _ if host.settings.expected(name).is_none() => return Ok(()),
        (true, _) => "snapshots have none",
        (false, true) => return Ok(()),
        (false, false) => {
            "the store says that it is not encrypted, and only encrypted volumes have one"
        }
    };
    Err(AttachFailure::Refused(format!("volume {name}: a root is expected of it, and {why}")))
}
