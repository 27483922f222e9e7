//! The difference between a snapshot and an earlier one of its volume. NBD clients ask for it as
//! `qemu:dirty-bitmap:NAME`; backup programs copy only that.

use super::uplink::Router;
use super::volume::snapshot_of;
use longhaul_core::block::{BlockError, BlockState, Range, StatusRun};
use longhaul_core::wire::link::{
    SnapshotInfo, SnapshotKey, SnapshotOperation, SnapshotReply, ToHost, ToStore, VolumeError,
    VolumeOperation, VolumeReply,
};
use std::rc::Rc;
use std::time::Duration;

/// How long a client that connects waits for the list.
const LIMIT: Duration = Duration::from_secs(10);
/// Time until a request that a lost link has taken along goes out again.
const AGAIN: Duration = Duration::from_millis(500);

/// A snapshot, and those before it.
pub struct Bitmaps {
    router: Rc<Router>,
    volume: String,
    own: SnapshotKey,
    /// The newest first.
    earlier: Vec<SnapshotInfo>,
}

impl Bitmaps {
    /// Asks the store for the snapshots before a snapshot. `None` if the export is no snapshot, or
    /// the store does not answer in time.
    pub async fn of(router: Rc<Router>, export: String) -> Option<Bitmaps> {
        tokio::time::timeout(LIMIT, Bitmaps::find(router, &export)).await.ok().flatten()
    }

    async fn find(router: Rc<Router>, export: &str) -> Option<Bitmaps> {
        let volume = snapshot_of(export)?.to_owned();
        let name = &export[volume.len() + 1..];
        let mut earlier: Vec<SnapshotInfo> = Vec::new();
        loop {
            let after = earlier.last().map_or(0, |last| last.segment);
            let list = SnapshotOperation::List { after, hidden: false };
            let reply = ask(&router, &volume, list).await?;
            let Ok(VolumeReply::Snapshot(SnapshotReply::List { snapshots, more })) = reply else {
                return None;
            };
            let ends = !more || snapshots.last().is_none_or(|last| last.segment <= after);
            for info in snapshots {
                if info.name == name {
                    earlier.reverse();
                    return Some(Bitmaps { router, volume, own: info.key(), earlier });
                }
                earlier.push(info);
            }
            if ends {
                return None;
            }
        }
    }

    /// The names of the earlier snapshots, the newest first.
    pub fn names(&self) -> Vec<String> {
        self.earlier.iter().map(|info| info.name.clone()).collect()
    }

    /// The changes since an earlier snapshot, from the start of a range on: changed ranges as data,
    /// the rest as a hole. Waits while the store is out of reach.
    ///
    /// # Errors
    /// If somebody has deleted a snapshot meanwhile, or its map is unreadable.
    pub async fn since(&self, name: &str, range: Range) -> Result<Vec<StatusRun>, BlockError> {
        let since = self.earlier.iter().find(|info| info.name == name).map(SnapshotInfo::key);
        let since = since.ok_or(BlockError::Stopped)?;
        loop {
            let operation = SnapshotOperation::Diff { since, until: Some(self.own), range };
            match ask(&self.router, &self.volume, operation).await {
                Some(Ok(VolumeReply::Snapshot(SnapshotReply::Diff { ranges, end }))) => {
                    return runs(range, &ranges, end).ok_or(BlockError::Stopped);
                }
                Some(other) => {
                    tracing::warn!(
                        "cannot compare a snapshot of volume {} with {name}: {other:?}",
                        self.volume
                    );
                    return Err(BlockError::Medium(range));
                }
                None => tokio::time::sleep(AGAIN).await,
            }
        }
    }
}

/// `None` if the link was lost.
async fn ask(
    router: &Router,
    volume: &str,
    operation: SnapshotOperation,
) -> Option<Result<VolumeReply, VolumeError>> {
    let name = volume.to_owned();
    let operation = VolumeOperation::Snapshot { name, operation };
    match router.call(|request| ToStore::Volume { request, operation }).await.ok()? {
        ToHost::Volume { result, .. } => Some(result),
        _ => None,
    }
}

/// Runs from the start of a range to a sector; `None` if these ranges are not between.
fn runs(range: Range, ranges: &[Range], end: u64) -> Option<Vec<StatusRun>> {
    let mut runs = Vec::new();
    let mut at = range.lba;
    let mut push = |sectors, state| {
        if sectors > 0 {
            runs.push(StatusRun { sectors, state });
        }
    };
    for different in ranges {
        push(different.lba.checked_sub(at)?, BlockState::Hole);
        push(different.sectors, BlockState::Data);
        at = different.end();
    }
    push(end.checked_sub(at)?, BlockState::Hole);
    (end > range.lba && end <= range.end()).then_some(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_become_runs() {
        let run = |sectors, state| StatusRun { sectors, state };
        let (dirty, clean) = (BlockState::Data, BlockState::Hole);
        let range = Range::new(8, 100);
        assert_eq!(runs(range, &[], 108), Some(vec![run(100, clean)]));
        assert_eq!(
            runs(range, &[Range::new(8, 2), Range::new(20, 5)], 25),
            Some(vec![run(2, dirty), run(10, clean), run(5, dirty)])
        );
        for (ranges, end) in [
            (vec![], 8),
            (vec![], 109),
            (vec![Range::new(7, 2)], 20),
            (vec![Range::new(9, 4), Range::new(12, 1)], 20),
            (vec![Range::new(9, 4)], 12),
        ] {
            assert_eq!(runs(range, &ranges, end), None, "{ranges:?} {end}");
        }
    }
}
