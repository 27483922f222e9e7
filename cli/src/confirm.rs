//! Commands that destroy something ask first.
//!
//! On a terminal the question goes there. Without one nobody can answer: then the command needs
//! `--yes`.

use crate::args::{
    Command, CredentialCommand, DetachArgs, KeyCommand, ReplicaCommand, SnapshotCommand,
    StoreCommand, TenantCommand, VolumeCommand,
};
use anyhow::{Context as _, Result, bail};
use longhaul_base::Usage;
use longhaul_base::units::show_bytes;
use std::io::{IsTerminal as _, Write as _};

/// Asks whether to go on with a command whose effect cannot be undone, unless `--yes` says so.
///
/// # Errors
/// If the answer is no, or nobody can answer.
pub fn confirm(command: &Command) -> Result<()> {
    match destroys(command) {
        Some((what, false)) => ask(&what),
        _ => Ok(()),
    }
}

/// The thing that a command destroys, and whether it has `--yes`.
fn destroys(command: &Command) -> Option<(String, bool)> {
    let (what, yes) = match command {
        Command::Volume(args) => match &args.command {
            VolumeCommand::Delete { name, now: true, yes } => (
                format!("volume {name} is deleted and its data removed: nothing brings it back"),
                yes,
            ),
            VolumeCommand::Delete { name, now: false, yes } => (
                format!(
                    "volume {name} is deleted; `longhaul volume undelete` brings it back for as \
                     long as the store keeps it"
                ),
                yes,
            ),
            VolumeCommand::Resize { name, size, force: true, yes } => (
                format!("volume {name} is cut off after {}, if it is larger", show_bytes(*size)),
                yes,
            ),
            VolumeCommand::AcceptLoss { name, yes } => (
                format!(
                    "this gives up the undelivered writes of volume {name}; `longhaul volume lost` \
                     shows them"
                ),
                yes,
            ),
            VolumeCommand::Key(KeyCommand::Remove { name, slot, yes }) => {
                (format!("the key of slot {slot} will no longer open volume {name}"), yes)
            }
            _ => return None,
        },
        Command::Detach(DetachArgs { name, drop_undelivered: true, yes, .. }) => {
            (format!("this gives up the undelivered writes of volume {name}"), yes)
        }
        Command::Snapshot(args) => match &args.command {
            SnapshotCommand::Delete { snapshots, yes } => {
                let names: Vec<String> = snapshots.iter().map(ToString::to_string).collect();
                (format!("snapshots are deleted: {}", names.join(", ")), yes)
            }
            SnapshotCommand::Rollback { snapshot, yes } => (
                format!(
                    "this loses all writes to volume {} since {snapshot}, unless another snapshot \
                     has them",
                    snapshot.volume
                ),
                yes,
            ),
            _ => return None,
        },
        Command::Tenant(args) => match &args.command {
            TenantCommand::Delete { name, yes } => (format!("tenant {name} is deleted"), yes),
            _ => return None,
        },
        Command::Store(args) => match &args.command {
            Some(StoreCommand::Forget { id, yes, .. }) => {
                (format!("store {id} is struck off the list, and its certificate is refused"), yes)
            }
            Some(StoreCommand::Replica { command: ReplicaCommand::Remove { yes, .. } }) => (
                "the installation has no replica any more, and no store can take over with its \
                 objects"
                    .to_owned(),
                yes,
            ),
            _ => return None,
        },
        Command::Credential(args) => match &args.command {
            CredentialCommand::Revoke { which: Some(serial), yes, .. } => {
                (format!("credential {serial} is refused from now on"), yes)
            }
            CredentialCommand::Revoke { tenant, yes, .. } => {
                let tenant = tenant.as_deref().unwrap_or_default();
                (format!("all credentials of tenant {tenant} are refused from now on"), yes)
            }
            _ => return None,
        },
        _ => return None,
    };
    Some((what, yes.yes))
}

/// Asks a question on the terminal.
///
/// # Errors
/// If the answer is no, or nobody can answer.
pub fn ask(what: &str) -> Result<()> {
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        bail!(Usage(format!(
            "{what}: give --yes to confirm, because there is no terminal for the question"
        )));
    }
    let mut errors = std::io::stderr().lock();
    let prompt = write!(errors, "{what}. Go on? [y/N] ").and_then(|()| errors.flush());
    prompt.context("cannot ask on the terminal: say --yes")?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).context("cannot read the answer: say --yes")?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => bail!("nothing was done"),
    }
}
