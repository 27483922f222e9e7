//! `longhaul volume key` and `longhaul volume rotate-key`.

use crate::args::KeyCommand;
use crate::output::{columns, done, pretty, print};
use anyhow::{Context as _, Result, bail};
use longhaul_api::client::Client;
use longhaul_api::keys::{self, Change, Given, Opener};
use longhaul_api::queries::show;
use longhaul_base::Usage;
use longhaul_base::text::tell;
use serde_json::json;
use std::path::Path;

/// Runs `longhaul volume key`.
pub(super) async fn run(
    client: &Client,
    command: &KeyCommand,
    given: &Given,
    as_json: bool,
) -> Result<()> {
    let (KeyCommand::List { name }
    | KeyCommand::Add { name, .. }
    | KeyCommand::Remove { name, .. }
    | KeyCommand::Rebind { name, .. }) = command;
    let named = || format!("volume {name}");
    // Check the new keys before asking for anything.
    let new = match command {
        KeyCommand::Add { new_key_file, new_passphrase_file, recovery, .. } => {
            Some(new_opener(new_key_file.as_deref(), new_passphrase_file.as_deref(), *recovery)?)
        }
        _ => None,
    };
    let link = client.link().await?;
    let info = show(link, name).await?;
    match command {
        KeyCommand::List { .. } => {
            let list = match given.is_any() {
                true => Change::begin(link, &info, given, None).await.map(Change::into_list),
                false => keys::read(link, &info).await,
            };
            let list = list.with_context(named)?;
            if !given.is_any() {
                tell("no key is given: whether the store has changed this list is not known");
            }
            let slots = list.slots.iter();
            if as_json {
                let slots = slots.map(|slot| {
                    json!({ "slot": slot.number, "kind": slot.kind.name(), "key_file": slot.key_file })
                });
                let slots = slots.collect::<Vec<_>>();
                let verified = given.is_any();
                return print(&pretty(&json!({
                    "slots": slots, "keys": list.numbers(), "retires": list.retires(),
                    "name": list.name(), "verified": verified,
                }))?);
            }
            let rows = slots.map(|slot| {
                let detail = slot.key_file.clone().unwrap_or_else(|| "-".into());
                vec![slot.number.to_string(), slot.kind.name().into(), detail]
            });
            print(&columns(&["SLOT", "KIND", "KEY FILE"], rows.collect()))
        }
        KeyCommand::Add { .. } => {
            let (new, recovery) = new.context("give something to add")?;
            let change = Change::begin(link, &info, given, None).await.with_context(named)?;
            let slot = change.add(&new).await.with_context(named)?;
            let written = recovery.as_ref().map(|text| text.as_str());
            if as_json {
                return print(&pretty(&json!({ "slot": slot, "recovery_key": written }))?);
            }
            tell(&format!("key slot {slot} opens volume {name}, too"));
            let Some(written) = written else { return Ok(()) };
            tell("this recovery key is shown once; any holder of it can read the volume:");
            print(&format!("{written}\n"))
        }
        KeyCommand::Remove { slot, .. } => {
            let change = Change::begin(link, &info, given, None).await.with_context(named)?;
            change.remove(*slot).await.with_context(named)?;
            done(as_json, &format!("key slot {slot} of volume {name} is gone"))
        }
        KeyCommand::Rebind { was, .. } => {
            let change = Change::begin(link, &info, given, Some(was)).await.with_context(named)?;
            change.rebind().await.with_context(named)?;
            done(as_json, &format!("the keys of volume {name} are bound to that name"))
        }
    }
}

type Recovery = Option<zeroize::Zeroizing<String>>;

fn new_opener(
    key_file: Option<&Path>,
    passphrase: Option<&Path>,
    recovery: bool,
) -> Result<(Opener, Recovery)> {
    match (key_file, passphrase) {
        (Some(path), _) => Ok((keys::given::key_file(path)?, None)),
        (None, Some(path)) => Ok((keys::given::passphrase(path, true)?, None)),
        (None, None) if recovery => {
            let (opener, text) = Opener::draw_recovery()?;
            Ok((opener, Some(text)))
        }
        (None, None) => bail!(Usage(
            "say what to add: --new-key-file FILE, --new-passphrase-file FILE or --recovery".into()
        )),
    }
}

/// Runs `longhaul volume rotate-key`.
pub(super) async fn rotate(
    client: &Client,
    name: &str,
    new_key_file: Option<&Path>,
    given: &Given,
    as_json: bool,
) -> Result<()> {
    let named = || format!("volume {name}");
    given.required()?;
    let new = new_key_file.map(keys::given::key_file).transpose()?;
    let link = client.link().await?;
    let info = show(link, name).await?;
    let change = Change::begin(link, &info, given, None).await.with_context(named)?;
    match new {
        Some(new) => {
            change.replace(&new).await.with_context(named)?;
            done(as_json, &format!("the keys of volume {name} open with the new key file only"))
        }
        None => {
            let newest = change.rotate().await.with_context(named)?;
            if as_json {
                return print(&pretty(&json!({ "key": newest, "new_key_file": false }))?);
            }
            tell(&format!("new writes to volume {name} are encrypted with key {newest}"));
            Ok(())
        }
    }
}

/// After the restore of a volume under another name: binds its keys to that.
pub(super) async fn brought_back(
    client: &Client,
    (was, name): (&str, &str),
    given: &Given,
) -> Result<()> {
    let link = client.link().await?;
    let info = show(link, name).await?;
    if !keys::is_encrypted(link, &info).await? {
        return Ok(());
    }
    if !given.is_any() {
        tell(&format!(
            "it is encrypted, and hosts do not attach it under another name than {was} before \
             `longhaul volume key rebind {name} --was {was}`"
        ));
        return Ok(());
    }
    let change = Change::begin(link, &info, given, Some(was)).await;
    let bound = async { change?.rebind().await };
    bound.await.with_context(|| format!("volume {name} is back, but its keys are those of {was}"))
}
