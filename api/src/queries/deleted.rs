//! Deleted volumes that can be brought back.

use super::unexpected;
use anyhow::Result;
use longhaul_core::block::VolumeId;
use longhaul_core::wire::link::{
    DeletedInfo, TrashOperation, TrashReply, VolumeOperation, VolumeReply,
};
use longhaul_link::Requests;

/// Asks for something about deleted volumes.
///
/// # Errors
/// If the store fails.
pub async fn ask(requests: &Requests, operation: TrashOperation) -> Result<VolumeReply> {
    requests.volume(VolumeOperation::Trash(operation)).await
}

/// All deleted volumes, those that were deleted first before the others.
pub async fn deleted(requests: &Requests) -> Result<Vec<DeletedInfo>> {
    let mut all: Vec<DeletedInfo> = Vec::new();
    loop {
        let after = all.last().map_or(VolumeId(0), |last| last.id);
        let reply = ask(requests, TrashOperation::List { after }).await?;
        let VolumeReply::Trash(TrashReply::List { volumes, more }) = reply else {
            return Err(unexpected());
        };
        let stuck = volumes.last().is_none_or(|last| last.id <= after);
        all.extend(volumes);
        if !more {
            break;
        }
        if stuck {
            return Err(unexpected());
        }
    }
    all.sort_by_key(|volume| (volume.deleted, volume.id));
    Ok(all)
}
