//! The space of a volume and its snapshots.

use super::{info, snapshots, unexpected};
use crate::types::{SnapshotUsage, Usage};
use anyhow::Result;
use longhaul_core::block::{Range, VolumeId};
use longhaul_core::wire::link::{
    MAX_MAPS_COUNTED, MapUsage, SnapshotInfo, SnapshotKey, SnapshotOperation, SnapshotReply,
    VolumeInfo, VolumeOperation, VolumeReply,
};
use longhaul_link::Requests;

/// The space of a volume and its snapshots.
///
/// # Errors
/// If the volume does not exist, or the store fails.
pub async fn of(requests: &Requests, name: &str) -> Result<Usage> {
    let info = info(requests, name).await?;
    let snapshots = snapshots::listed(requests, name, true).await?;
    count(requests, &info, snapshots).await
}

async fn count(
    requests: &Requests,
    info: &VolumeInfo,
    snapshots: Vec<SnapshotInfo>,
) -> Result<Usage> {
    let all = snapshots.len();
    // Count each one with its neighbors. It shares data only with these, unless a rollback lies
    // between.
    let window = MAX_MAPS_COUNTED;
    let inner = if all <= window { all.max(1) } else { window - 2 };
    let mut counted = Vec::with_capacity(all);
    let mut volume =
        MapUsage { id: info.id, logical_bytes: 0, referenced_bytes: 0, unique_bytes: 0 };
    let mut named_bytes = None;
    for first in (0..all.max(1)).step_by(inner) {
        let last = (first + inner).min(all);
        let (begin, end) =
            if all <= window { (0, all) } else { (first.saturating_sub(1), (last + 1).min(all)) };
        // After the last snapshot comes the volume.
        let whole = (last == all).then_some(info.sectors);
        let keys = snapshots[begin..end].iter().map(SnapshotInfo::key).collect();
        let (mut maps, named) = walk(requests, info, keys, whole).await?;
        if whole.is_some()
            && let Some(own) = maps.pop()
        {
            volume = own;
        }
        counted.extend(maps.into_iter().skip(first - begin).take(last - first));
        named_bytes = (all <= window).then_some(named);
    }
    let stored = VolumeOperation::Stored { name: info.name.clone() };
    let VolumeReply::Stored(stored) = requests.volume(stored).await? else {
        return Err(unexpected());
    };
    let snapshots = snapshots.iter().zip(&counted);
    let snapshots = snapshots.map(|(info, usage)| SnapshotUsage::new(info, usage)).collect();
    Ok(Usage::new(info, &volume, stored, named_bytes, snapshots))
}

/// The bytes that each map names, and the bytes that any of them names.
async fn walk(
    requests: &Requests,
    info: &VolumeInfo,
    snapshots: Vec<SnapshotKey>,
    volume: Option<u64>,
) -> Result<(Vec<MapUsage>, u64)> {
    let ids: Vec<VolumeId> =
        snapshots.iter().map(|key| key.id).chain(volume.map(|_| info.id)).collect();
    let none = |id: &VolumeId| MapUsage {
        id: *id,
        logical_bytes: 0,
        referenced_bytes: 0,
        unique_bytes: 0,
    };
    let mut sums: Vec<MapUsage> = ids.iter().map(none).collect();
    let mut all_named = 0u64;
    let sectors = snapshots.iter().map(|key| key.sectors).chain(volume).max().unwrap_or(0);
    let mut left = Range::new(0, sectors);
    while !left.is_empty() {
        let (snapshots, range) = (snapshots.clone(), left);
        let operation = SnapshotOperation::Usage { snapshots, volume, range };
        let reply = snapshots::ask(requests, &info.name, operation).await?;
        let VolumeReply::Snapshot(SnapshotReply::Usage { maps, named_bytes, end }) = reply else {
            return Err(unexpected());
        };
        if end <= range.lba
            || end > range.end()
            || maps.iter().map(|map| map.id).ne(ids.iter().copied())
        {
            return Err(unexpected());
        }
        for (sum, map) in sums.iter_mut().zip(maps) {
            sum.logical_bytes += map.logical_bytes;
            sum.referenced_bytes += map.referenced_bytes;
            sum.unique_bytes += map.unique_bytes;
        }
        all_named += named_bytes;
        left = Range::between(end, range.end());
    }
    Ok((sums, all_named))
}
