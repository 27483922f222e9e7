//! The map diff of two snapshots of a volume, or of one and the volume.

use super::{info, snapshots, status, unexpected};
use crate::types::{Change, ChangeKind, Changes};
use anyhow::Result;
use longhaul_core::block::{BlockState, Range, SECTOR_BYTES, StatusRun, VolumeId};
use longhaul_core::wire::link::{
    SnapshotInfo, SnapshotKey, SnapshotOperation, SnapshotReply, VolumeReply,
};
use longhaul_link::Requests;
use std::time::{Duration, Instant};

/// Ranges of one answer of [`changes`], and how long it looks for more.
const MAX_RANGES: usize = 8192;
const LOOK: Duration = Duration::from_secs(5);

/// The later end of the comparison.
#[derive(Clone, Debug)]
pub struct Later {
    /// Reads of it use this identity.
    pub id: VolumeId,
    /// Its size.
    pub sectors: u64,
    /// If it is a snapshot.
    pub key: Option<SnapshotKey>,
}

/// The snapshot does not exist.
#[derive(Debug, thiserror::Error)]
#[error("volume {volume} has no snapshot {name}: see `longhaul snapshot list {volume}`")]
pub struct NoSnapshot {
    volume: String,
    name: String,
}

/// The map diff of a snapshot and another one, or the volume as it is, from a sector on. It may end
/// early if it is long.
///
/// # Errors
/// If one of them does not exist, or the store fails.
pub async fn changes(
    requests: &Requests,
    volume: &str,
    since: &str,
    until: Option<&str>,
    from: u64,
) -> Result<Changes> {
    let earlier = find(requests, volume, since).await?;
    let later = match until {
        Some(name) => later(&find(requests, volume, name).await?),
        None => {
            let info = info(requests, volume).await?;
            Later { id: info.id, sectors: info.sectors, key: None }
        }
    };
    let begun = Instant::now();
    let mut changes = Changes::default();
    let mut differs = Differs::new(requests, volume, &earlier, &later);
    differs.left = Range::between(from.min(later.sectors), later.sectors);
    while let Some(ranges) = differs.next().await? {
        for range in ranges {
            let mut at = range.lba;
            while at < range.end() {
                let enough = changes.ranges.len() >= MAX_RANGES || begun.elapsed() >= LOOK;
                if enough && at > from {
                    changes.next_bytes = Some(at.saturating_mul(SECTOR_BYTES));
                    return Ok(changes);
                }
                let part = Range::between(at, range.end());
                for StatusRun { sectors, state } in status(requests, later.id, part).await? {
                    changes.push(change(Range::new(at, sectors), state));
                    at += sectors;
                }
            }
        }
        if begun.elapsed() >= LOOK && !differs.left.is_empty() {
            changes.next_bytes = Some(differs.left.lba.saturating_mul(SECTOR_BYTES));
            return Ok(changes);
        }
    }
    Ok(changes)
}

fn change(range: Range, state: BlockState) -> Change {
    Change {
        offset_bytes: range.lba.saturating_mul(SECTOR_BYTES),
        bytes: range.bytes(),
        kind: if state == BlockState::Data { ChangeKind::Data } else { ChangeKind::Zero },
    }
}

/// A snapshot of a volume by its name.
///
/// # Errors
/// [`NoSnapshot`], or if the store fails.
pub async fn find(requests: &Requests, volume: &str, name: &str) -> Result<SnapshotInfo> {
    let all = snapshots::of_volume(requests, volume).await?;
    let found = all.into_iter().find(|info| info.name == name);
    found.ok_or_else(|| NoSnapshot { volume: volume.into(), name: name.into() }.into())
}

/// A snapshot as the later of two.
pub fn later(info: &SnapshotInfo) -> Later {
    Later { id: info.id, sectors: info.sectors, key: Some(info.key()) }
}

/// The differing ranges, part by part.
pub struct Differs<'a> {
    requests: &'a Requests,
    volume: &'a str,
    since: SnapshotKey,
    until: Option<SnapshotKey>,
    left: Range,
}

impl<'a> Differs<'a> {
    /// Compares all of the later one.
    pub fn new(
        requests: &'a Requests,
        volume: &'a str,
        since: &SnapshotInfo,
        until: &Later,
    ) -> Differs<'a> {
        let (since, left) = (since.key(), Range::new(0, until.sectors));
        Differs { requests, volume, since, until: until.key, left }
    }

    /// The next ranges, in order; nothing after the last.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn next(&mut self) -> Result<Option<Vec<Range>>> {
        if self.left.is_empty() {
            return Ok(None);
        }
        let (since, until, range) = (self.since, self.until, self.left);
        let operation = SnapshotOperation::Diff { since, until, range };
        let reply = snapshots::ask(self.requests, self.volume, operation).await?;
        let VolumeReply::Snapshot(SnapshotReply::Diff { ranges, end }) = reply else {
            return Err(unexpected());
        };
        if end <= range.lba || end > range.end() {
            return Err(unexpected());
        }
        self.left = Range::between(end, range.end());
        Ok(Some(ranges))
    }
}
