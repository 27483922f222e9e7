//! `longhaul volume`, `longhaul snapshot` and `longhaul credential`.
//!
//! Results go to stdout, as a table or as JSON; everything else goes to stderr.

pub mod credentials;
pub mod diff;
mod export;
pub mod import;
mod keys;
pub mod lost;
mod rewrite;
mod root;
pub mod snapshot;
mod stream;
mod transfer;
pub mod trash;
pub mod usage;

use crate::args::{VolumeArgs, VolumeCommand};
use crate::connect::{Reach, connected, given};
use crate::output::{columns, done, fields, pretty, print};
use anyhow::{Context as _, Result};
use longhaul_api::client::Client;
use longhaul_api::keys as locks;
use longhaul_api::queries::info;
use longhaul_api::types::{Live, Volume};
use longhaul_base::text::tell;
use longhaul_base::units::show_bytes;

/// Runs `longhaul volume`.
///
/// # Errors
/// If it does not succeed; the message says why and what to do.
pub fn run(args: &VolumeArgs) -> Result<()> {
    let reach = match &args.command {
        VolumeCommand::Create { encrypt: true, .. }
        | VolumeCommand::RotateKey { .. }
        | VolumeCommand::Key(_)
        | VolumeCommand::Import { .. }
        | VolumeCommand::Export { .. } => Reach::Link,
        _ => Reach::Api,
    };
    if let VolumeCommand::Export { file, force: false, .. } = &args.command {
        export::refuse_existing(file)?;
    }
    connected(args.credential.as_deref(), args.store.as_deref(), reach, async |client| {
        command(client, args).await
    })
}

async fn command(client: &Client, args: &VolumeArgs) -> Result<()> {
    let given = given(&args.keys);
    let named = |name: &str| format!("volume {name}");
    match &args.command {
        VolumeCommand::Create { name, size, block_size, encrypt } => {
            // Check the keys before creating the volume.
            let openers = if *encrypt { Some(given.required()?) } else { None };
            let block_bytes = block_size.parse().context("--block-size is not a number")?;
            let made = client.create_volume(name, *size, block_bytes).await;
            let made = made.with_context(|| named(name))?;
            if let Some(openers) = openers {
                let link = client.link().await?;
                let encrypted =
                    async { locks::encrypt(link, &info(link, name).await?, openers).await };
                encrypted.await.with_context(|| {
                    format!("volume {name} was created, but is not encrypted: delete it")
                })?;
            }
            if args.json {
                return print(&pretty(&serde_json::to_value(made)?)?);
            }
            tell(&format!("created volume {name} of {}", show_bytes(*size)));
            Ok(())
        }
        VolumeCommand::List { deleted: true } => trash::list(client, args.json).await,
        VolumeCommand::List { deleted: false } => {
            let list = client.volumes().await?;
            if args.json {
                return print(&pretty(&serde_json::to_value(list)?)?);
            }
            print(&table(&list.volumes))
        }
        VolumeCommand::Show { name } => {
            let volume = client.volume(name).await.with_context(|| named(name))?;
            let root = match given.is_any() {
                true => {
                    Some(root::of_volume(client, name, &given).await.with_context(|| named(name))?)
                }
                false => None,
            };
            if args.json {
                let mut shown = serde_json::to_value(volume)?;
                if let (Some(shown), Some(root)) = (shown.as_object_mut(), &root) {
                    shown.insert("root".into(), root.to_json());
                }
                return print(&pretty(&shown)?);
            }
            let root = root.map(|root| fields(&[("root", root.to_string())]));
            print(&(details(&volume) + &root.unwrap_or_default()))
        }
        VolumeCommand::Resize { name, size, force, .. } => {
            let resized = client.resize_volume(name, *size, *force).await;
            let resized = resized.with_context(|| named(name))?;
            let size = show_bytes(resized.size_bytes);
            if args.json {
                return print(&pretty(&serde_json::to_value(resized)?)?);
            }
            tell(&format!("volume {name} has {size}"));
            Ok(())
        }
        VolumeCommand::RotateKey { name, rewrite: true, wait, .. } => {
            let link = client.link().await?;
            let how = rewrite::How { wait: *wait, as_json: args.json };
            rewrite::run(link, name, &given, how).await.with_context(|| named(name))
        }
        VolumeCommand::RotateKey { name, new_key_file, .. } => {
            keys::rotate(client, name, new_key_file.as_deref(), &given, args.json).await
        }
        VolumeCommand::Key(command) => keys::run(client, command, &given, args.json).await,
        VolumeCommand::Delete { name, now, .. } => {
            trash::delete(client, name, *now, args.json).await
        }
        VolumeCommand::Undelete { volume, new_name } => {
            trash::restore(client, volume, new_name.as_deref(), &given, args.json).await
        }
        VolumeCommand::Clone { snapshot, name } => {
            snapshot::clone(client, snapshot, name, &given, args.json).await
        }
        VolumeCommand::Diff { since, until } => diff::run(client, since, until, args.json).await,
        VolumeCommand::Usage { name } => usage::run(client, name, args.json).await,
        VolumeCommand::Lost { name } => lost::run(client, name, args.json).await,
        VolumeCommand::AcceptLoss { name, .. } => {
            client.accept_loss(name).await.with_context(|| named(name))?;
            done(args.json, &format!("a host can attach volume {name} without the lost writes"))
        }
        VolumeCommand::Import { name, file, yes } => {
            let link = client.link().await?;
            let outcome = import::run(link, name, file, &given, (!args.json, yes.yes)).await?;
            if args.json {
                return print(&pretty(&outcome)?);
            }
            tell(&format!("imported {} into volume {name}", file.display()));
            Ok(())
        }
        VolumeCommand::Export { name, file, force } => {
            let link = client.link().await?;
            let outcome = export::run(link, name, (file, *force), &given, !args.json).await?;
            if args.json && file.as_os_str() != "-" {
                return print(&pretty(&outcome)?);
            }
            tell(&format!("exported volume {name} to {}", file.display()));
            Ok(())
        }
    }
}

fn table(list: &[Volume]) -> String {
    let rows = list.iter().map(|volume| {
        let live = volume.live.as_ref();
        vec![
            volume.name.clone(),
            show_bytes(volume.size_bytes),
            live.map_or("-".to_owned(), |live| show_bytes(live.mapped_bytes)),
            state(volume),
            live.filter(|live| !live.clean).and_then(holder).unwrap_or_else(|| "-".to_owned()),
        ]
    });
    columns(&["NAME", "SIZE", "DATA", "STATE", "HOST"], rows.collect())
}

fn state(volume: &Volume) -> String {
    if let Some(reason) = &volume.damaged {
        return format!("damaged: {reason}");
    }
    let Some(live) = &volume.live else {
        return if volume.name.contains('@') { "snapshot" } else { "unknown" }.to_owned();
    };
    let host = live.host.as_deref().unwrap_or_default();
    let imports = import::is_import(&volume.id, host);
    if live.connected {
        return if imports { "being imported" } else { "attached" }.to_owned();
    }
    let missing = show_bytes(live.announced_bytes);
    match live.announced_bytes {
        1.. => format!("host gone, writes missing: {missing} of host {host}"),
        0 if !live.clean && imports => "import cut short".to_owned(),
        0 if !live.clean && live.host.is_some() => format!("host gone: {host}"),
        0 => "detached".to_owned(),
    }
}

/// The host that has a volume or had it last.
fn holder(live: &Live) -> Option<String> {
    live.host_name.clone().or_else(|| live.host.clone())
}

fn details(volume: &Volume) -> String {
    let mut all = vec![
        ("name", volume.name.clone()),
        ("id", volume.id.clone()),
        ("size", show_bytes(volume.size_bytes)),
        ("block size", show_bytes(volume.block_bytes.into())),
        ("state", state(volume)),
    ];
    if let Some(live) = &volume.live {
        all.extend([
            ("host", live.host.clone().unwrap_or_else(|| "none".to_owned())),
            ("host name", live.host_name.clone().unwrap_or_else(|| "not known".to_owned())),
            ("epoch", live.epoch.to_string()),
            ("committed", live.committed.to_string()),
            ("segments", live.segments.to_string()),
            ("data", show_bytes(live.mapped_bytes)),
            ("not arrived", show_bytes(live.announced_bytes)),
        ]);
        let since = live.silent_since.map(snapshot::date);
        all.extend(since.map(|since| ("silent since", since)));
    }
    fields(&all)
}
