//! What differs between two snapshots of a volume, or between one and the volume.

use super::{columns, pretty, print, show, snapshot, tell, unexpected};
use crate::cli::SnapshotName;
use crate::link::Requests;
use crate::store::api::types::{Change, Changes};
use crate::units::show_bytes;
use anyhow::{Context as _, Result, bail};
use longhaul_core::block::{BlockState, Range, SECTOR_BYTES, StatusRun, VolumeId};
use longhaul_core::wire::link::{
    SnapshotInfo, SnapshotKey, SnapshotOperation, SnapshotReply, VolumeReply,
};

/// What is compared with a snapshot.
#[derive(Clone, Debug)]
pub struct Later {
    /// It is read under this.
    pub id: VolumeId,
    /// Its size.
    pub sectors: u64,
    /// If it is a snapshot.
    pub key: Option<SnapshotKey>,
}

/// Runs `longhaul volume diff`.
///
/// # Errors
/// If the two are not of one volume, or the store fails.
pub async fn run(
    requests: &Requests,
    since: &SnapshotName,
    until: &str,
    as_json: bool,
) -> Result<()> {
    let (volume, name) = until.split_once('@').map_or((until, None), |(v, s)| (v, Some(s)));
    if volume != since.volume {
        bail!("{since} and {until} are not of one volume: only what one log says can be compared");
    }
    let changes = changes(requests, volume, &since.snapshot, name).await?;
    if as_json {
        return print(&pretty(&serde_json::to_value(&changes)?)?);
    }
    let bytes = changes.ranges.iter().map(|change| change.bytes).sum::<u64>();
    if changes.ranges.is_empty() {
        tell(&format!("{until} is what {since} is"));
        return Ok(());
    }
    let cells = changes.ranges.iter().map(|change| {
        vec![change.offset_bytes.to_string(), change.bytes.to_string(), change.kind.to_owned()]
    });
    print(&columns(&["OFFSET", "BYTES", "TYPE"], cells.collect()))?;
    tell(&format!("{} differ", show_bytes(bytes)));
    Ok(())
}

/// What differs between a snapshot and another one, or the volume as it is.
///
/// # Errors
/// If they are not there, or the store fails.
pub async fn changes(
    requests: &Requests,
    volume: &str,
    since: &str,
    until: Option<&str>,
) -> Result<Changes> {
    let earlier = find(requests, volume, since).await?;
    let later = match until {
        Some(name) => later(&find(requests, volume, name).await?),
        None => {
            let info = show(requests, volume).await?;
            Later { id: info.id, sectors: info.sectors, key: None }
        }
    };
    let mut rows: Vec<(Range, bool)> = Vec::new();
    let mut differs = Differs::new(requests, volume, &earlier, &later);
    while let Some(ranges) = differs.next().await? {
        for range in ranges {
            let mut at = range.lba;
            while at < range.end() {
                let part = Range::between(at, range.end());
                for StatusRun { sectors, state } in
                    super::export::status(requests, later.id, part).await?
                {
                    push(&mut rows, Range::new(at, sectors), state == BlockState::Data);
                    at += sectors;
                }
            }
        }
    }
    let change = |(range, data): (Range, bool)| Change {
        offset_bytes: range.lba.saturating_mul(SECTOR_BYTES),
        bytes: range.bytes(),
        kind: if data { "data" } else { "zero" },
    };
    Ok(Changes { ranges: rows.into_iter().map(change).collect() })
}

fn push(rows: &mut Vec<(Range, bool)>, range: Range, data: bool) {
    match rows.last_mut() {
        Some((last, kind)) if last.end() == range.lba && *kind == data => {
            last.sectors += range.sectors;
        }
        _ => rows.push((range, data)),
    }
}

/// A snapshot of a volume by its name.
///
/// # Errors
/// If there is none, or the store fails.
pub async fn find(requests: &Requests, volume: &str, name: &str) -> Result<SnapshotInfo> {
    let all = snapshot::of_volume(requests, volume).await;
    let all = all.with_context(|| format!("volume {volume}"))?;
    all.into_iter().find(|info| info.name == name).with_context(|| {
        format!("volume {volume} has no snapshot {name}: see `longhaul snapshot list {volume}`")
    })
}

/// A snapshot as the later of two.
pub fn later(info: &SnapshotInfo) -> Later {
    Later { id: info.id, sectors: info.sectors, key: Some(info.key()) }
}

/// What differs, part by part.
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
        let reply = snapshot::ask(self.requests, self.volume, operation).await;
        let reply = reply.with_context(|| format!("volume {}", self.volume))?;
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
