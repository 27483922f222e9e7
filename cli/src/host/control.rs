//! `longhaul limit` and `longhaul trace`: have a running host do something.

use super::iscsi::token;
use super::status::{self, columns};
use crate::args::{LimitArgs, TraceArgs, TraceCommand};
use anyhow::{Context as _, Result};
use longhaul_base::units::show_bytes;
use longhaul_host::Schedule;
use longhaul_host::control::HostCommand;
use longhaul_host::traces::{TraceReport, check_name};

/// Changes limits.
///
/// # Errors
/// If a rate is none, no host answers, or it refuses.
pub fn limit(args: &LimitArgs) -> Result<()> {
    let text = |schedule: &Option<Schedule>| schedule.as_ref().map(ToString::to_string);
    let control = HostCommand::Limit {
        volume: args.volume.clone(),
        drain_rate: text(&args.drain_rate),
        readahead_rate: text(&args.readahead_rate),
    };
    ask(&args.admin, &control)
}

/// Records, replays and shows traces.
///
/// # Errors
/// If no host answers, or it refuses.
pub fn trace(args: &TraceArgs) -> Result<()> {
    let named = |name: &str| check_name(name).map(|()| name.to_owned());
    let control = match &args.command {
        TraceCommand::List { json } => return list(&args.admin, *json),
        TraceCommand::Record { volume, name } => {
            HostCommand::Record { volume: volume.clone(), name: named(name)? }
        }
        TraceCommand::Stop { volume } => HostCommand::Stop { volume: volume.clone() },
        TraceCommand::Replay { volume, name } => {
            HostCommand::Replay { volume: volume.clone(), name: named(name)? }
        }
        TraceCommand::Delete { volume, name } => {
            HostCommand::Delete { volume: volume.clone(), name: named(name)? }
        }
    };
    ask(&args.admin, &control)
}

pub(super) fn ask(admin: &str, control: &HostCommand) -> Result<()> {
    let token = token(admin)?;
    status::post(admin, "/control", &token, &serde_json::to_string(control)?)
}

fn list(admin: &str, json: bool) -> Result<()> {
    let text = status::get(admin, "/traces").map_err(|error| status::unanswered(admin, error))?;
    if json {
        println!("{}", text.trim_end());
        return Ok(());
    }
    let traces: Vec<TraceReport> = serde_json::from_str(&text)
        .with_context(|| format!("the program at {admin} is not a host of this version"))?;
    let mut rows = vec![["VOLUME", "TRACE", "RANGES", "BYTES"].map(str::to_owned).to_vec()];
    rows.extend(traces.iter().map(|trace| {
        let ranges = trace.ranges.to_string();
        vec![trace.volume.clone(), trace.name.clone(), ranges, show_bytes(trace.bytes)]
    }));
    print!("{}", columns(&rows));
    Ok(())
}
