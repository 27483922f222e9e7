//! Snapshots and clones.

use super::transfer;
use crate::args::{SnapshotArgs, SnapshotCommand, SnapshotName};
use crate::connect::{Reach, connected};
use crate::output::{columns, done, pretty, print};
use anyhow::{Context as _, Result, bail};
use longhaul_api::client::{Client, problem};
use longhaul_api::keys::{self, Given};
use longhaul_api::queries::{show, unexpected};
use longhaul_api::schedule::Schedule;
use longhaul_api::types::{ProblemKind, Snapshots, Volume};
use longhaul_base::Usage;
use longhaul_base::random;
use longhaul_base::text::tell;
use longhaul_base::units::show_bytes;
use longhaul_core::block::VolumeId;
use longhaul_core::wire::link::{SnapshotOperation, VolumeInfo, VolumeReply};
use longhaul_link::Requests;
use std::io::IsTerminal as _;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Runs `longhaul snapshot`.
///
/// # Errors
/// If it does not succeed; the message says why and what to do.
pub fn run(args: &SnapshotArgs) -> Result<()> {
    if let SnapshotCommand::Send { file, .. } = &args.command
        && file.as_os_str() == "-"
        && std::io::stdout().is_terminal()
    {
        bail!(Usage(
            "a stream is not for a terminal: give a file, or have another program read standard \
             output"
                .into()
        ));
    }
    let reach = match &args.command {
        SnapshotCommand::Send { .. } | SnapshotCommand::Receive { .. } => Reach::Link,
        _ => Reach::Api,
    };
    connected(args.credential.as_deref(), args.store.as_deref(), reach, async |client| {
        command(client, &args.command, args.json).await
    })
}

async fn command(client: &Client, command: &SnapshotCommand, json: bool) -> Result<()> {
    match command {
        SnapshotCommand::Create { snapshot, no_barrier } => {
            let SnapshotName { volume, snapshot: name } = snapshot;
            let taken = client.create_snapshot(volume, name, *no_barrier).await;
            let taken = taken.with_context(|| format!("snapshot {snapshot}"))?;
            if json {
                return print(&pretty(&serde_json::to_value(taken)?)?);
            }
            tell(&format!("took snapshot {snapshot}"));
            Ok(())
        }
        SnapshotCommand::List { volume } => list(client, volume.as_deref(), json).await,
        SnapshotCommand::Delete { snapshots, .. } => {
            for name in snapshots {
                let deleted = client.delete_snapshot(&name.volume, &name.snapshot).await;
                deleted.with_context(|| format!("snapshot {name}"))?;
                if !json {
                    tell(&format!("deleted snapshot {name}"));
                }
            }
            if json { print("{}\n") } else { Ok(()) }
        }
        SnapshotCommand::Send { snapshot, file, since, force, keys } => {
            let (link, given) = (client.link().await?, crate::connect::given(keys));
            transfer::send(link, snapshot, since.as_deref(), (file, *force), &given, json).await
        }
        SnapshotCommand::Receive { volume, file, keys, yes } => {
            let link = client.link().await?;
            transfer::receive(link, volume, file, &crate::connect::given(keys), (json, yes.yes))
                .await
        }
        SnapshotCommand::Schedule { volume, schedule } => {
            let parse = |text: &String| text.parse().map_err(Usage);
            let schedule: Option<Schedule> = schedule.as_ref().map(parse).transpose()?;
            self::schedule(client, volume, schedule.as_ref(), json).await
        }
        SnapshotCommand::Rollback { snapshot, .. } => {
            let back = client.roll_back(&snapshot.volume, &snapshot.snapshot).await;
            back.with_context(|| format!("volume {}", snapshot.volume))?;
            done(json, &format!("volume {} has the content of {snapshot} again", snapshot.volume))
        }
    }
}

/// Sets the schedule of a volume, or shows it.
async fn schedule(
    client: &Client,
    volume: &str,
    schedule: Option<&Schedule>,
    json: bool,
) -> Result<()> {
    let named = || format!("volume {volume}");
    if let Some(schedule) = schedule {
        client.set_schedule(volume, &schedule.to_string()).await.with_context(named)?;
        return done(json, &format!("snapshots of volume {volume}: {schedule}"));
    }
    let schedule = client.schedule(volume).await.with_context(named)?;
    if json {
        return print(&pretty(&serde_json::to_value(schedule)?)?);
    }
    print(&format!("{}\n", schedule.schedule))
}

async fn list(client: &Client, volume: Option<&str>, json: bool) -> Result<()> {
    let volumes = match volume {
        Some(volume) => vec![volume.to_owned()],
        None => client.volumes().await?.volumes.into_iter().map(|volume| volume.name).collect(),
    };
    let mut snapshots = Vec::new();
    for volume in volumes {
        let found = client.snapshots(&volume).await;
        snapshots.extend(found.with_context(|| format!("volume {volume}"))?.snapshots);
    }
    if json {
        return print(&pretty(&serde_json::to_value(Snapshots { snapshots })?)?);
    }
    let rows = snapshots.iter().map(|snapshot| {
        vec![
            format!("{}@{}", snapshot.volume, snapshot.name),
            show_bytes(snapshot.size_bytes),
            date(snapshot.created),
            snapshot.clones.to_string(),
        ]
    });
    print(&columns(&["NAME", "SIZE", "TAKEN", "CLONES"], rows.collect()))
}

/// Creates a clone.
///
/// # Errors
/// If the store refuses, or cannot take the keys of an encrypted volume.
pub async fn clone(
    client: &Client,
    snapshot: &SnapshotName,
    clone: &str,
    given: &Given,
    json: bool,
) -> Result<()> {
    let made = match client.create_clone(&snapshot.volume, &snapshot.snapshot, clone).await {
        // The keys stay on this side: this command gives them to the clone.
        Err(error) if problem(&error) == Some(ProblemKind::Encrypted) => {
            encrypted(client.link().await?, snapshot, clone, given).await?
        }
        made => made.with_context(|| format!("clone {clone}"))?,
    };
    if json {
        return print(&pretty(&serde_json::to_value(made)?)?);
    }
    tell(&format!("created volume {clone}, which begins as {snapshot}"));
    Ok(())
}

/// Makes a clone that has the keys of the volume that it is of.
async fn encrypted(
    requests: &Requests,
    snapshot: &SnapshotName,
    clone: &str,
    given: &Given,
) -> Result<Volume> {
    let parent = show(requests, &snapshot.volume).await?;
    // Check the keys before creating the clone.
    let heritage = keys::for_clones(requests, &parent, given).await;
    let heritage = heritage.with_context(|| format!("volume {}", snapshot.volume))?;
    let id = VolumeId(random::identity()?);
    let operation = SnapshotOperation::Clone {
        snapshot: snapshot.snapshot.clone(),
        clone: clone.to_owned(),
        id,
    };
    let reply = longhaul_api::queries::snapshots::ask(requests, &snapshot.volume, operation).await;
    let VolumeReply::Volume(info) = reply.with_context(|| format!("clone {clone}"))? else {
        return Err(unexpected());
    };
    if let Some(heritage) = heritage {
        // The keys are bound to the name and the identity of the request.
        let info = VolumeInfo { name: clone.to_owned(), id, ..info.clone() };
        heritage.pass_on(requests, &info).await.with_context(|| {
            format!("volume {clone} was created, but without the keys of {snapshot}: delete it")
        })?;
    }
    Ok(Volume::from(&info))
}

/// A time in UTC, to the second.
pub(super) fn date(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok();
    let time = time.and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
    time.and_then(|time| time.format(&Rfc3339).ok()).unwrap_or_else(|| "-".to_owned())
}
