//! `longhaul store replica` and `longhaul store failover`.

use super::connect;
use crate::args::{ModeArg, ReplicaCommand, StoresArgs};
use crate::output::{columns, pretty, print};
use anyhow::{Context as _, Result};
use longhaul_api::client::{Client, problem};
use longhaul_api::types::{
    MaybeReplica, NewReplica, ProblemKind, Replica, ReplicaChange, ReplicaMode,
};
use longhaul_base::text::tell;
use longhaul_base::units::show_bytes;
use longhaul_link::credential::Credential;
use std::path::Path;

/// Runs one of those about the replica.
///
/// # Errors
/// If it does not succeed; the message says why and what to do.
pub(super) async fn run(command: &ReplicaCommand) -> Result<()> {
    let (ReplicaCommand::Show(to)
    | ReplicaCommand::Add { to, .. }
    | ReplicaCommand::Remove { to, .. }
    | ReplicaCommand::Mode { to, .. }) = command;
    let client = connect(to, None).await?;
    let answer = ask(&client, command).await;
    client.close().await;
    let shows = matches!(command, ReplicaCommand::Show(_));
    said(to, shows, &answer?)
}

async fn ask(client: &Client, command: &ReplicaCommand) -> Result<MaybeReplica> {
    match command {
        ReplicaCommand::Show(_) => client.replica().await,
        ReplicaCommand::Add { location, behind, standby, discard, .. } => {
            let mode = if *behind { ReplicaMode::Behind } else { ReplicaMode::InStep };
            let (location, standby) = (location.clone(), standby.clone());
            let new = NewReplica { location, mode, standby, discard: *discard };
            client.add_replica(&new).await
        }
        ReplicaCommand::Remove { .. } => {
            client.remove_replica().await?;
            Ok(MaybeReplica { replica: None })
        }
        ReplicaCommand::Mode { mode, .. } => {
            let mode = match mode {
                ModeArg::InStep => ReplicaMode::InStep,
                ModeArg::Behind => ReplicaMode::Behind,
            };
            client.change_replica(&ReplicaChange { mode }).await
        }
    }
}

fn said(to: &StoresArgs, shows: bool, answer: &MaybeReplica) -> Result<()> {
    if to.json {
        return print(&pretty(&serde_json::to_value(answer)?)?);
    }
    match &answer.replica {
        Some(replica) => show(replica),
        None if shows => print("the installation has no replica\n"),
        None => {
            tell("the installation has no replica any more");
            Ok(())
        }
    }
}

fn show(replica: &Replica) -> Result<()> {
    let waits = replica.mode == ReplicaMode::InStep;
    let mut rows = vec![
        ("location", replica.location.clone()),
        ("state", replica.state.clone()),
        ("commits", if waits { "wait for it" } else { "do not wait for it" }.to_owned()),
        ("behind by", format!("{:.1} s", replica.lag_seconds)),
        (
            "not there",
            format!("{} in {} operations", show_bytes(replica.lag_bytes), replica.lag_operations),
        ),
        ("put there", show_bytes(replica.put_bytes)),
    ];
    if replica.missing_objects > 0 {
        let (missing, put) = (replica.missing_objects, replica.missing_objects_put);
        rows.push(("found missing", format!("{missing} objects, {put} of them put")));
    }
    if replica.reused_bytes > 0 {
        rows.push(("was there", show_bytes(replica.reused_bytes)));
    }
    if !replica.standby.is_empty() {
        rows.push(("waiting there", replica.standby.join(", ")));
    }
    if let Some(trouble) = &replica.trouble {
        rows.push(("trouble", trouble.clone()));
    }
    let rows = rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect();
    print(&columns(&["REPLICA", ""], rows))
}

/// Has a store that waits go on.
///
/// # Errors
/// If it does not; the message says why and what to do.
pub(super) async fn failover(
    standby: &str,
    force: bool,
    credential: &Path,
    json: bool,
) -> Result<()> {
    let credential = Credential::load(credential)?;
    let client = Client::connect(credential, Some(standby)).await?;
    let done = client.fail_over(force).await;
    client.close().await;
    let done = match done {
        Err(error) if problem(&error) == Some(ProblemKind::NotFound) => {
            return Err(error).with_context(|| {
                format!("the store at {standby} does not wait over a replica: it serves volumes")
            });
        }
        done => done?,
    };
    if json {
        return print(&pretty(&serde_json::to_value(done)?)?);
    }
    tell(&format!("the store at {standby} takes over the volumes"));
    Ok(())
}
