//! Snapshots and clones.

use super::{
    attributes, columns, connected, done, pretty, print, show, tell, transfer, unexpected,
};
use crate::cli::{SnapshotArgs, SnapshotCommand, SnapshotName};
use crate::commands::Usage;
use crate::keys;
use crate::link::Requests;
use crate::random;
use crate::store::api::types::{Snapshot, SnapshotSchedule, Snapshots};
use crate::store::info_json;
use crate::store::schedule::{ATTRIBUTE, Schedule};
use crate::units::show_bytes;
use anyhow::{Context as _, Result, bail};
use longhaul_core::block::{SECTOR_BYTES, VolumeId};
use longhaul_core::wire::link::{
    SNAPSHOT_VERSION, SnapshotInfo, SnapshotOperation, SnapshotReply, VolumeOperation, VolumeReply,
};
use std::path::Path;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Runs `longhaul snapshot`.
///
/// # Errors
/// If it does not succeed; the message says why and what to do.
pub fn run(args: &SnapshotArgs) -> Result<()> {
    connected(args.credential.as_deref(), args.store.as_deref(), async |requests| {
        command(requests, &args.command, args.json).await
    })
}

async fn command(requests: &Requests, command: &SnapshotCommand, json: bool) -> Result<()> {
    match command {
        SnapshotCommand::Create { snapshot, no_barrier } => {
            let operation = SnapshotOperation::Create {
                snapshot: snapshot.snapshot.clone(),
                id: VolumeId(random::identity()?),
                created: 0,
                barrier: !no_barrier,
            };
            let reply = ask(requests, &snapshot.volume, operation).await;
            let reply = reply.with_context(|| format!("snapshot {snapshot}"))?;
            let VolumeReply::Snapshot(SnapshotReply::Taken(info)) = reply else {
                return Err(unexpected());
            };
            if json {
                let taken = Snapshot::of(&snapshot.volume, &info);
                return print(&pretty(&serde_json::to_value(taken)?)?);
            }
            tell(&format!("took snapshot {snapshot}"));
            Ok(())
        }
        SnapshotCommand::List { volume } => list(requests, volume.as_deref(), json).await,
        SnapshotCommand::Delete { snapshots } => {
            for name in snapshots {
                let operation = SnapshotOperation::Delete { snapshot: name.snapshot.clone() };
                let reply = ask(requests, &name.volume, operation).await;
                reply.with_context(|| format!("snapshot {name}"))?;
                if !json {
                    tell(&format!("deleted snapshot {name}"));
                }
            }
            if json { print("{}\n") } else { Ok(()) }
        }
        SnapshotCommand::Send { snapshot, file, since, key_file } => {
            let key_file = key_file.as_deref();
            transfer::send(requests, snapshot, since.as_deref(), file, key_file, json).await
        }
        SnapshotCommand::Receive { volume, file, key_file } => {
            transfer::receive(requests, volume, file, key_file.as_deref(), json).await
        }
        SnapshotCommand::Schedule { volume, schedule } => {
            let parse = |text: &String| text.parse().map_err(Usage);
            let schedule: Option<Schedule> = schedule.as_ref().map(parse).transpose()?;
            self::schedule(requests, volume, schedule.as_ref(), json).await
        }
        SnapshotCommand::Rollback { snapshot } => {
            let operation = SnapshotOperation::Rollback { snapshot: snapshot.snapshot.clone() };
            let reply = ask(requests, &snapshot.volume, operation).await;
            reply.with_context(|| format!("volume {}", snapshot.volume))?;
            done(json, &format!("volume {} is what it was as {snapshot}", snapshot.volume))
        }
    }
}

/// Sets the schedule of a volume, or shows it.
async fn schedule(
    requests: &Requests,
    volume: &str,
    schedule: Option<&Schedule>,
    json: bool,
) -> Result<()> {
    if let Some(schedule) = schedule {
        set_schedule(requests, volume, schedule).await?;
        return done(json, &format!("snapshots of volume {volume}: {schedule}"));
    }
    let schedule = schedule_of(requests, volume).await?.to_string();
    if json {
        return print(&pretty(&serde_json::to_value(SnapshotSchedule { schedule })?)?);
    }
    print(&format!("{schedule}\n"))
}

/// When snapshots of a volume are taken.
///
/// # Errors
/// If there is no such volume, or the store fails.
pub async fn schedule_of(requests: &Requests, volume: &str) -> Result<Schedule> {
    let info = show(requests, volume).await?;
    let data = attributes::get(requests, &info, ATTRIBUTE).await;
    let data = data.with_context(|| format!("volume {volume}"))?;
    String::from_utf8_lossy(&data).parse().map_err(|error| {
        anyhow::anyhow!("volume {volume}: what the store has is no schedule: {error}")
    })
}

/// Has snapshots of a volume taken.
///
/// # Errors
/// As for [`schedule_of`].
pub async fn set_schedule(requests: &Requests, volume: &str, schedule: &Schedule) -> Result<()> {
    let info = show(requests, volume).await?;
    let named = || format!("volume {volume}");
    let data = schedule.to_string().into_bytes();
    let epoch = attributes::epoch(requests, volume).await.with_context(named)?;
    attributes::set(requests, &info, epoch, ATTRIBUTE, data).await.with_context(named)
}

pub(crate) async fn ask(
    requests: &Requests,
    volume: &str,
    operation: SnapshotOperation,
) -> Result<VolumeReply> {
    if requests.version() < SNAPSHOT_VERSION {
        bail!("the store is too old for snapshots: upgrade it");
    }
    let name = volume.to_owned();
    requests.volume(VolumeOperation::Snapshot { name, operation }).await
}

async fn list(requests: &Requests, volume: Option<&str>, json: bool) -> Result<()> {
    let volumes = match volume {
        Some(volume) => vec![volume.to_owned()],
        None => {
            let VolumeReply::List(list) = requests.volume(VolumeOperation::List).await? else {
                return Err(unexpected());
            };
            list.into_iter().map(|info| info.name).collect()
        }
    };
    let mut all: Vec<(String, SnapshotInfo)> = Vec::new();
    for volume in volumes {
        let found = of_volume(requests, &volume).await;
        let found = found.with_context(|| format!("volume {volume}"))?;
        all.extend(found.into_iter().map(|snapshot| (volume.clone(), snapshot)));
    }
    if json {
        let list = all.iter().map(|(volume, info)| Snapshot::of(volume, info));
        let list = Snapshots { snapshots: list.collect() };
        return print(&pretty(&serde_json::to_value(list)?)?);
    }
    let rows = all.iter().map(|(volume, info)| {
        vec![
            format!("{volume}@{}", info.name),
            show_bytes(info.sectors.saturating_mul(SECTOR_BYTES)),
            date(info.created),
            info.clones.to_string(),
        ]
    });
    print(&columns(&["NAME", "SIZE", "TAKEN", "CLONES"], rows.collect()))
}

/// All snapshots of a volume, the oldest first.
pub(crate) async fn of_volume(requests: &Requests, volume: &str) -> Result<Vec<SnapshotInfo>> {
    listed(requests, volume, false).await
}

/// The same, also with those that were deleted and stay for their clones.
pub(super) async fn listed(
    requests: &Requests,
    volume: &str,
    hidden: bool,
) -> Result<Vec<SnapshotInfo>> {
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

/// Makes a clone.
///
/// # Errors
/// If the store refuses, or the keys of an encrypted volume cannot be passed on.
pub async fn clone(
    requests: &Requests,
    snapshot: &SnapshotName,
    clone: &str,
    key_file: Option<&Path>,
    json: bool,
) -> Result<()> {
    let parent = show(requests, &snapshot.volume).await?;
    // What can be wrong with the key is told before there is a clone.
    let heritage = keys::for_clones(requests, &parent, key_file).await;
    let heritage = heritage.with_context(|| format!("volume {}", snapshot.volume))?;
    let operation = SnapshotOperation::Clone {
        snapshot: snapshot.snapshot.clone(),
        clone: clone.to_owned(),
        id: VolumeId(random::identity()?),
    };
    let reply = ask(requests, &snapshot.volume, operation).await;
    let VolumeReply::Volume(info) = reply.with_context(|| format!("clone {clone}"))? else {
        return Err(unexpected());
    };
    if let Some(heritage) = heritage {
        heritage.pass_on(requests, &info).await.with_context(|| {
            format!("volume {clone} was created, but without the keys of {snapshot}: delete it")
        })?;
    }
    if json {
        return print(&pretty(&info_json(&info))?);
    }
    tell(&format!("created volume {clone}, which begins as {snapshot}"));
    Ok(())
}

/// A time in UTC, to the second.
pub(super) fn date(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok();
    let time = time.and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
    time.and_then(|time| time.format(&Rfc3339).ok()).unwrap_or_else(|| "-".to_owned())
}
