//! `longhaul nbd`: asks a running host which clients may use what, and changes it.

use super::iscsi::token;
use super::status::{self, columns};
use crate::args::{NbdArgs, NbdCommand};
use anyhow::{Context as _, Result};
use longhaul_base::Usage;
use longhaul_host::nbd::access::{ClientChange, ClientRightsReport, Grant};
use std::io::Write as _;

/// Runs a command.
///
/// # Errors
/// If no host answers, or it refuses.
pub fn run(args: &NbdArgs) -> Result<()> {
    let change = match &args.command {
        NbdCommand::List { json } => return list(&args.admin, *json),
        NbdCommand::Allow { volume, client } => {
            ClientChange::Allow { volume: volume.clone(), client: grant(client)? }
        }
        NbdCommand::Deny { volume, client } => {
            ClientChange::Deny { volume: volume.clone(), client: grant(client)? }
        }
        NbdCommand::Open { volume } => ClientChange::Open { volume: volume.clone() },
    };
    let body = serde_json::to_string(&change)?;
    status::post(&args.admin, "/nbd", &token(&args.admin)?, &body)
}

fn grant(client: &str) -> Result<Grant> {
    client.parse::<Grant>().map_err(|error| Usage(error.to_string()).into())
}

fn list(admin: &str, json: bool) -> Result<()> {
    let text = status::get(admin, "/nbd").map_err(|error| status::unanswered(admin, error))?;
    let report: ClientRightsReport = serde_json::from_str(&text)
        .with_context(|| format!("the program at {admin} is not a host of this version"))?;
    let out = if json { format!("{}\n", text.trim_end()) } else { table(&report) };
    std::io::stdout().write_all(out.as_bytes()).context("cannot write the answer")
}

fn table(report: &ClientRightsReport) -> String {
    let mut rows = vec![["VOLUME", "CLIENT", "FROM"].map(str::to_owned).to_vec()];
    rows.extend(report.grants.iter().map(|grant| {
        let client = grant.client.as_ref().map_or("(nobody)".to_owned(), ToString::to_string);
        let from = if grant.from_config { "config file" } else { "command" };
        vec![grant.volume.clone(), client, from.to_owned()]
    }));
    let mut out = columns(&rows);
    if report.grants.is_empty() {
        out += "(none: any client that reaches an address may use the attached volumes)\n";
    }
    out
}
