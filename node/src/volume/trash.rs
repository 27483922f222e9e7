//! Deleting volumes, and bringing them back.

use super::{columns, done, pretty, print, snapshot::date, tell, unexpected};
use crate::commands::Usage;
use crate::link::Requests;
use crate::store::api::types::{DeletedVolume, DeletedVolumes};
use crate::store::info_json;
use crate::units::show_bytes;
use anyhow::{Context as _, Result, bail};
use longhaul_core::block::{SECTOR_BYTES, VolumeId};
use longhaul_core::wire::link::{
    DeletedInfo, TRASH_VERSION, TrashOperation, TrashReply, VolumeError, VolumeOperation,
    VolumeReply,
};

pub(crate) async fn ask(requests: &Requests, operation: TrashOperation) -> Result<VolumeReply> {
    if requests.version() < TRASH_VERSION {
        bail!("the store is too old to keep deleted volumes: upgrade it");
    }
    requests.volume(VolumeOperation::Trash(operation)).await
}

/// All deleted volumes, those that were deleted first before the others.
pub(crate) async fn deleted(requests: &Requests) -> Result<Vec<DeletedInfo>> {
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

/// The one deleted volume of that name or identity.
async fn named(requests: &Requests, name: &str) -> Result<DeletedInfo> {
    let all = deleted(requests).await?.into_iter();
    let mut found: Vec<_> =
        all.filter(|volume| volume.name == name || volume.id.to_string() == name).collect();
    match (found.pop(), found.is_empty()) {
        (Some(volume), true) => Ok(volume),
        (Some(_), false) => Err(Usage(format!(
            "several deleted volumes were called {name}: name one by its identity, as `longhaul volume list --deleted` shows it"
        ))
        .into()),
        (None, _) => bail!(
            "no deleted volume is called {name}; `longhaul volume list --deleted` shows those that can be brought back"
        ),
    }
}

pub(super) async fn list(requests: &Requests, json: bool) -> Result<()> {
    let all = deleted(requests).await?;
    if json {
        let volumes = DeletedVolumes { volumes: all.iter().map(DeletedVolume::from).collect() };
        return print(&pretty(&serde_json::to_value(volumes)?)?);
    }
    let rows = all.iter().map(|volume| {
        vec![
            volume.name.clone(),
            volume.id.to_string(),
            show_bytes(volume.sectors.saturating_mul(SECTOR_BYTES)),
            date(volume.deleted),
            date(volume.until),
        ]
    });
    print(&columns(&["NAME", "ID", "SIZE", "DELETED", "KEPT UNTIL"], rows.collect()))
}

pub(super) async fn delete(requests: &Requests, name: &str, now: bool, json: bool) -> Result<()> {
    let context = || format!("volume {name}");
    // What is there is asked for by name, what is deleted by identity.
    let shown = if now {
        match requests.call_volume(VolumeOperation::Show { name: name.to_owned() }).await? {
            Ok(VolumeReply::Volume(info)) => Some(info.id),
            Ok(_) => return Err(unexpected()),
            Err(VolumeError::NotFound) => None,
            // It can be deleted all the same.
            Err(error) => return Err(error).with_context(context),
        }
    } else {
        None
    };
    if shown.is_some() || !now || requests.version() < TRASH_VERSION {
        let operation = VolumeOperation::Delete { name: name.to_owned() };
        requests.volume(operation).await.with_context(context)?;
    }
    // Before there was anything to keep, everything went at once.
    if now && requests.version() >= TRASH_VERSION {
        let volume = match shown {
            Some(id) => id,
            None => named(requests, name).await?.id,
        };
        let operation = VolumeOperation::Trash(TrashOperation::Purge { volume });
        match requests.call_volume(operation).await? {
            Ok(_) => {}
            // It went with its name.
            Err(VolumeError::NotFound) if shown.is_some() => {}
            Err(error) => return Err(error).with_context(context),
        }
        return done(json, &format!("deleted volume {name} for good"));
    }
    done(json, &format!("deleted volume {name}"))
}

pub(super) async fn restore(
    requests: &Requests,
    volume: &str,
    new_name: Option<&str>,
    json: bool,
) -> Result<()> {
    let deleted = named(requests, volume).await?;
    let name = new_name.map_or(deleted.name, str::to_owned);
    let operation = TrashOperation::Restore { volume: deleted.id, name: name.clone() };
    let reply = ask(requests, operation).await.with_context(|| format!("volume {name}"))?;
    let VolumeReply::Volume(info) = reply else { return Err(unexpected()) };
    if json {
        return print(&pretty(&info_json(&info))?);
    }
    tell(&format!("volume {name} is back"));
    Ok(())
}
