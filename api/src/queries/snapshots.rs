//! The snapshots of a volume, and their schedule.

use super::{info, unexpected};
use crate::attributes;
use crate::schedule::{ATTRIBUTE, Schedule};
use anyhow::Result;
use longhaul_core::wire::link::{
    SnapshotInfo, SnapshotOperation, SnapshotReply, VolumeOperation, VolumeReply,
};
use longhaul_link::Requests;

/// The snapshot schedule of a volume.
///
/// # Errors
/// If the volume does not exist, or the store fails.
pub async fn schedule_of(requests: &Requests, volume: &str) -> Result<Schedule> {
    let info = info(requests, volume).await?;
    let data = attributes::get(requests, &info, ATTRIBUTE).await?;
    String::from_utf8_lossy(&data)
        .parse()
        .map_err(|error| anyhow::anyhow!("the store's schedule is invalid: {error}"))
}

/// Has snapshots of a volume taken.
///
/// # Errors
/// As for [`schedule_of`].
pub async fn set_schedule(requests: &Requests, volume: &str, schedule: &Schedule) -> Result<()> {
    let info = info(requests, volume).await?;
    let data = schedule.to_string().into_bytes();
    let epoch = attributes::epoch(requests, volume).await?;
    attributes::set(requests, &info, epoch, ATTRIBUTE, (None, data)).await
}

/// Asks for something about snapshots of a volume.
///
/// # Errors
/// If the store fails.
pub async fn ask(
    requests: &Requests,
    volume: &str,
    operation: SnapshotOperation,
) -> Result<VolumeReply> {
    let name = volume.to_owned();
    requests.volume(VolumeOperation::Snapshot { name, operation }).await
}

/// All snapshots of a volume, the oldest first.
pub async fn of_volume(requests: &Requests, volume: &str) -> Result<Vec<SnapshotInfo>> {
    listed(requests, volume, false).await
}

/// The same, including deleted ones that stay for their clones.
pub async fn listed(requests: &Requests, volume: &str, hidden: bool) -> Result<Vec<SnapshotInfo>> {
    let mut all: Vec<SnapshotInfo> = Vec::new();
    loop {
        let after = all.last().map_or(0, |last| last.segment);
        let reply = ask(requests, volume, SnapshotOperation::List { after, hidden }).await?;
        let VolumeReply::Snapshot(SnapshotReply::List { snapshots, more }) = reply else {
            return Err(unexpected());
        };
        let stuck = snapshots.last().is_none_or(|last| last.segment <= after);
        all.extend(snapshots);
        if !more {
            return Ok(all);
        }
        if stuck {
            return Err(unexpected());
        }
    }
}
