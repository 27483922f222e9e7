//! Deleting volumes, and bringing them back.

use super::snapshot::date;
use crate::output::{columns, done, pretty, print};
use anyhow::{Context as _, Result, bail};
use longhaul_api::client::{Client, problem};
use longhaul_api::keys::Given;
use longhaul_api::types::{DeletedVolume, ProblemKind};
use longhaul_base::Usage;
use longhaul_base::text::tell;
use longhaul_base::units::show_bytes;

/// The one deleted volume of that name or identity.
async fn named(client: &Client, name: &str) -> Result<DeletedVolume> {
    let all = client.deleted().await?.volumes.into_iter();
    let mut found: Vec<_> = all.filter(|volume| volume.name == name || volume.id == name).collect();
    match (found.pop(), found.is_empty()) {
        (Some(volume), true) => Ok(volume),
        (Some(_), false) => Err(Usage(format!(
            "several deleted volumes were called {name}: name one by its identity, as `longhaul \
             volume list --deleted` shows it"
        ))
        .into()),
        (None, _) => bail!(
            "no deleted volume is called {name}; `longhaul volume list --deleted` shows those that \
             can be brought back"
        ),
    }
}

pub(super) async fn list(client: &Client, json: bool) -> Result<()> {
    let all = client.deleted().await?;
    if json {
        return print(&pretty(&serde_json::to_value(all)?)?);
    }
    let rows = all.volumes.iter().map(|volume| {
        vec![
            volume.name.clone(),
            volume.id.clone(),
            show_bytes(volume.size_bytes),
            date(volume.deleted),
            date(volume.until),
        ]
    });
    print(&columns(&["NAME", "ID", "SIZE", "DELETED", "KEPT UNTIL"], rows.collect()))
}

pub(super) async fn delete(client: &Client, name: &str, now: bool, json: bool) -> Result<()> {
    let context = || format!("volume {name}");
    match client.delete_volume(name, now).await {
        Ok(()) => {}
        // It may be deleted already, with its data still there.
        Err(error) if now && problem(&error) == Some(ProblemKind::NotFound) => {
            let id = named(client, name).await?.id;
            client.purge(&id).await.with_context(context)?;
        }
        Err(error) => return Err(error).with_context(context),
    }
    let how = if now { " for good" } else { "" };
    done(json, &format!("deleted volume {name}{how}"))
}

pub(super) async fn restore(
    client: &Client,
    volume: &str,
    new_name: Option<&str>,
    given: &Given,
    json: bool,
) -> Result<()> {
    let deleted = named(client, volume).await?;
    let name = new_name.unwrap_or(&deleted.name).to_owned();
    let back = client.restore(&deleted.id, &name).await;
    let back = back.with_context(|| format!("volume {name}"))?;
    if !json {
        tell(&format!("volume {name} is back"));
    }
    if name != deleted.name {
        super::keys::brought_back(client, (&deleted.name, &name), given).await?;
    }
    if json {
        return print(&pretty(&serde_json::to_value(back)?)?);
    }
    Ok(())
}
