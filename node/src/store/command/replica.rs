//! `longhaul store replica` and `longhaul store failover`.

use super::connect;
use crate::admin::Metrics;
use crate::cli::{ModeArg, ReplicaCommand, StoresArgs};
use crate::units::show_bytes;
use crate::volume::{columns, pretty, print, tell};
use anyhow::{Result, bail};
use longhaul_core::wire::link::{ReplicaOperation, ReplicaState, StoreOperation, StoreReply};
use std::path::Path;

/// Runs one of those about the replica.
///
/// # Errors
/// If it does not succeed; the message says why and what to do.
pub(super) async fn run(command: &ReplicaCommand) -> Result<()> {
    let (to, operation) = match command {
        ReplicaCommand::Show(to) => (to, ReplicaOperation::Show),
        ReplicaCommand::Add { location, behind, standby, discard, to } => {
            let operation = ReplicaOperation::Add {
                location: location.clone(),
                in_step: !behind,
                standby: standby.clone(),
                discard: *discard,
            };
            (to, operation)
        }
        ReplicaCommand::Remove(to) => (to, ReplicaOperation::Remove),
        ReplicaCommand::Mode { mode, to } => {
            (to, ReplicaOperation::Mode { in_step: *mode == ModeArg::InStep })
        }
    };
    let shows = operation == ReplicaOperation::Show;
    let state = ask(to, operation).await?;
    if to.json {
        return print(&pretty(&serde_json::json!({ "replica": state.as_ref().map(json) }))?);
    }
    match state {
        Some(state) => show(&state),
        None if shows => print("there is no replica\n"),
        None => {
            tell("there is no replica any more");
            Ok(())
        }
    }
}

async fn ask(to: &StoresArgs, operation: ReplicaOperation) -> Result<Option<ReplicaState>> {
    let requests = connect(to, None).await?;
    let answer = requests.store(StoreOperation::Replica(operation)).await;
    requests.close().await;
    match answer? {
        StoreReply::Replica(state) => Ok(state),
        _ => bail!("the store gave an answer that does not fit"),
    }
}

fn state_in_words(state: &ReplicaState) -> &'static str {
    match (state.built, &state.trouble, state.in_step) {
        (_, Some(_), _) => "in trouble",
        (false, ..) => "being made",
        (true, _, true) => "in step",
        (true, _, false) => "behind",
    }
}

/// For programs.
pub fn json(state: &ReplicaState) -> serde_json::Value {
    serde_json::json!({
        "location": state.location,
        "state": state_in_words(state),
        "mode": if state.in_step { "in-step" } else { "behind" },
        "complete": state.built,
        "standby": state.standby,
        "lag_seconds": state.lag_ms as f64 / 1e3,
        "lag_operations": state.operations,
        "lag_bytes": state.bytes,
        "volumes_unknown": state.unknown,
        "missing_objects": state.missing.0,
        "missing_objects_put": state.missing.1,
        "put_bytes": state.put_bytes,
        "reused_bytes": state.reused_bytes,
        "trouble": state.trouble,
    })
}

/// For Prometheus.
pub fn metrics(out: &mut Metrics, state: &ReplicaState) {
    let help = "How long the oldest operation has been waiting to be repeated at the replica.";
    out.single("longhaul_replica_lag_seconds", "gauge", help, state.lag_ms as f64 / 1e3);
    let help = "Bytes of objects that are not at the replica, as far as that is known.";
    out.single("longhaul_replica_lag_bytes", "gauge", help, state.bytes as f64);
    let help = "Operations of this store that are not repeated at the replica.";
    out.single("longhaul_replica_lag_operations", "gauge", help, state.operations as f64);
    let help = "Volumes of which it is not known what the replica lacks.";
    out.single("longhaul_replica_volumes_unknown", "gauge", help, state.unknown as f64);
    let help = "Whether everything has been at the replica once: it can be gone on with.";
    out.single("longhaul_replica_complete", "gauge", help, f64::from(u8::from(state.built)));
    let help = "Whether commits wait for the replica.";
    let in_step = state.in_step && state.built;
    out.single("longhaul_replica_in_step", "gauge", help, f64::from(u8::from(in_step)));
    let help = "Whether the last operation at the replica failed.";
    let trouble = f64::from(u8::from(state.trouble.is_some()));
    out.single("longhaul_replica_trouble", "gauge", help, trouble);
    let help = "Bytes of objects put at the replica.";
    out.single("longhaul_replica_put_bytes_total", "counter", help, state.put_bytes as f64);
    let help = "Bytes of objects that were there from before, and were not sent.";
    out.single("longhaul_replica_reused_bytes_total", "counter", help, state.reused_bytes as f64);
}

fn show(state: &ReplicaState) -> Result<()> {
    let mut rows = vec![
        ("location", state.location.clone()),
        ("state", state_in_words(state).to_owned()),
        ("commits", if state.in_step { "wait for it" } else { "do not wait for it" }.to_owned()),
        ("behind by", format!("{:.1} s", state.lag_ms as f64 / 1e3)),
        ("not there", format!("{} in {} operations", show_bytes(state.bytes), state.operations)),
        ("put there", show_bytes(state.put_bytes)),
    ];
    if state.missing.0 > 0 {
        let (missing, put) = state.missing;
        rows.push(("found missing", format!("{missing} objects, {put} of them put")));
    }
    if state.reused_bytes > 0 {
        rows.push(("was there", show_bytes(state.reused_bytes)));
    }
    if !state.standby.is_empty() {
        rows.push(("waiting there", state.standby.join(", ")));
    }
    if let Some(trouble) = &state.trouble {
        rows.push(("trouble", trouble.clone()));
    }
    let rows = rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect();
    print(&columns(&["REPLICA", ""], rows))
}

/// Has a store that waits go on.
pub(super) async fn failover(
    standby: &str,
    force: bool,
    credential: &Path,
    json: bool,
) -> Result<()> {
    let _ = (standby, force, credential, json);
    bail!("not yet")
}
