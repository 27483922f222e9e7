//! What a volume and its snapshots take.

use super::{columns, pretty, print, progress, show, snapshot, tell, unexpected};
use crate::link::Requests;
use crate::units::show_bytes;
use anyhow::{Context as _, Result, bail};
use longhaul_core::block::{Range, SECTOR_BYTES, VolumeId};
use longhaul_core::wire::link::{
    MAX_MAPS_COUNTED, MapUsage, SNAPSHOT_VERSION, SnapshotInfo, SnapshotKey, SnapshotOperation,
    SnapshotReply, StoredBytes, VolumeInfo, VolumeOperation, VolumeReply,
};
use serde_json::{Value, json};

/// What all of a volume takes.
struct Usage {
    /// Each snapshot, in order of age.
    snapshots: Vec<(SnapshotInfo, MapUsage)>,
    volume: MapUsage,
    /// By any of them, of what the volume has stored itself; not known of a volume with more snapshots than can
    /// be counted at a time.
    named_bytes: Option<u64>,
    stored: StoredBytes,
}

/// Runs `longhaul volume usage`.
///
/// # Errors
/// If there is no such volume, it is too old, or the store fails.
pub async fn run(requests: &Requests, name: &str, as_json: bool) -> Result<()> {
    if requests.version() < SNAPSHOT_VERSION {
        bail!("the store is too old to say what volumes take: upgrade it");
    }
    let info = show(requests, name).await?;
    let snapshots = snapshot::listed(requests, name, true).await;
    let snapshots = snapshots.with_context(|| format!("volume {name}"))?;
    let usage = count(requests, &info, snapshots, !as_json).await;
    let usage = usage.with_context(|| format!("volume {name}"))?;
    if as_json {
        return print(&pretty(&in_json(&info, &usage))?);
    }
    print(&in_words(&info, &usage))?;
    let StoredBytes { segments, staged, maps } = usage.stored;
    let data = segments.saturating_add(staged);
    let mut text =
        format!("{} of data are stored, and {} of maps", show_bytes(data), show_bytes(maps));
    if let Some(named) = usage.named_bytes {
        let free = show_bytes(data.saturating_sub(named));
        text += &format!("; {free} of the data can be reclaimed");
    }
    tell(&text);
    Ok(())
}

async fn count(
    requests: &Requests,
    info: &VolumeInfo,
    snapshots: Vec<SnapshotInfo>,
    bar: bool,
) -> Result<Usage> {
    let all = snapshots.len();
    // Each with its neighbours: what it shares, it shares with these, unless the volume was rolled back in between.
    let window = MAX_MAPS_COUNTED;
    let inner = if all <= window { all.max(1) } else { window - 2 };
    let rounds = all.div_ceil(inner).max(1) as u64;
    let size = |info: &VolumeInfo| info.sectors.saturating_mul(SECTOR_BYTES);
    let bar = progress(size(info).saturating_mul(rounds), bar);
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
        let (mut maps, named) = walk(requests, info, keys, whole, &bar).await?;
        if whole.is_some()
            && let Some(own) = maps.pop()
        {
            volume = own;
        }
        counted.extend(maps.into_iter().skip(first - begin).take(last - first));
        named_bytes = (all <= window).then_some(named);
    }
    bar.finish_and_clear();
    let stored = VolumeOperation::Stored { name: info.name.clone() };
    let VolumeReply::Stored(stored) = requests.volume(stored).await? else {
        return Err(unexpected());
    };
    let snapshots = snapshots.into_iter().zip(counted).collect();
    Ok(Usage { snapshots, volume, named_bytes, stored })
}

/// What maps name all in all, and what any of them does.
async fn walk(
    requests: &Requests,
    info: &VolumeInfo,
    snapshots: Vec<SnapshotKey>,
    volume: Option<u64>,
    bar: &indicatif::ProgressBar,
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
    let before = bar.position();
    let mut left = Range::new(0, sectors);
    while !left.is_empty() {
        let (snapshots, range) = (snapshots.clone(), left);
        let operation = SnapshotOperation::Usage { snapshots, volume, range };
        let reply = snapshot::ask(requests, &info.name, operation).await?;
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
        bar.set_position(before + end.saturating_mul(SECTOR_BYTES));
    }
    Ok((sums, all_named))
}

/// What deleting just this one would give back: nothing while clones need it.
fn unique(info: &SnapshotInfo, usage: &MapUsage) -> u64 {
    if info.clones > 0 { 0 } else { usage.unique_bytes }
}

fn in_json(info: &VolumeInfo, usage: &Usage) -> Value {
    let StoredBytes { segments, staged, maps } = usage.stored;
    let data = segments.saturating_add(staged);
    let snapshots = usage.snapshots.iter().map(|(info, usage)| {
        json!({
            "name": info.name,
            "id": info.id.to_string(),
            "deleted": info.hidden,
            "clones": info.clones,
            "size_bytes": info.sectors.saturating_mul(SECTOR_BYTES),
            "logical_bytes": usage.logical_bytes,
            "referenced_bytes": usage.referenced_bytes,
            "unique_bytes": unique(info, usage),
        })
    });
    json!({
        "name": info.name,
        "id": info.id.to_string(),
        "size_bytes": info.sectors.saturating_mul(SECTOR_BYTES),
        "logical_bytes": usage.volume.logical_bytes,
        "referenced_bytes": usage.volume.referenced_bytes,
        "unique_bytes": usage.volume.unique_bytes,
        "stored_bytes": data,
        "map_bytes": maps,
        "reclaimable_bytes": usage.named_bytes.map(|named| data.saturating_sub(named)),
        "snapshots": snapshots.collect::<Vec<_>>(),
    })
}

fn in_words(info: &VolumeInfo, usage: &Usage) -> String {
    let row = |name: String, sectors: u64, usage: &MapUsage, unique| {
        vec![
            name,
            show_bytes(sectors.saturating_mul(SECTOR_BYTES)),
            show_bytes(usage.logical_bytes),
            show_bytes(usage.referenced_bytes),
            show_bytes(unique),
        ]
    };
    let mut rows: Vec<_> = usage
        .snapshots
        .iter()
        .map(|(snapshot, usage)| {
            let deleted = if snapshot.hidden { " (deleted, has clones)" } else { "" };
            let name = format!("{}@{}{deleted}", info.name, snapshot.name);
            row(name, snapshot.sectors, usage, unique(snapshot, usage))
        })
        .collect();
    rows.push(row(info.name.clone(), info.sectors, &usage.volume, usage.volume.unique_bytes));
    columns(&["NAME", "SIZE", "LOGICAL", "REFERENCED", "UNIQUE"], rows)
}
