//! `longhaul iscsi`: asks a running host who may use what, and changes it.

use super::status::{self, columns};
use crate::args::{IscsiArgs, IscsiCommand, UserCommand};
use anyhow::{Context as _, Result};
use longhaul_base::units::show_bytes;
use longhaul_core::front::iscsi::Secret;
use longhaul_host::iscsi::SessionReport;
use longhaul_host::iscsi::access::{self, InitiatorChange, InitiatorRightsReport, SECRET_BYTES};
use serde::Deserialize;
use std::io::{IsTerminal as _, Read as _, Write as _};
use std::path::Path;

/// Runs a command.
///
/// # Errors
/// If no host answers, or it refuses.
pub fn run(args: &IscsiArgs) -> Result<()> {
    let change = match &args.command {
        IscsiCommand::List { json } => return list(&args.admin, *json),
        IscsiCommand::Sessions { json } => return sessions(&args.admin, *json),
        IscsiCommand::Allow { volume, initiator, chap_user } => InitiatorChange::Allow {
            volume: volume.clone(),
            initiator: initiator.clone(),
            user: chap_user.clone(),
        },
        IscsiCommand::Deny { volume, initiator } => {
            InitiatorChange::Deny { volume: volume.clone(), initiator: initiator.clone() }
        }
        IscsiCommand::Open { volume } => InitiatorChange::Open { volume: volume.clone() },
        IscsiCommand::User { command: UserCommand::Set { name, secret_file, target } } => {
            let Secret(secret) = secret(secret_file.as_deref())?;
            let secret = access::hex(&secret);
            InitiatorChange::SetUser { name: name.clone(), secret, target: *target }
        }
        IscsiCommand::User { command: UserCommand::Remove { name, target } } => {
            InitiatorChange::RemoveUser { name: name.clone(), target: *target }
        }
        IscsiCommand::Move { volume, to, .. } => {
            InitiatorChange::Move { volume: volume.clone(), to: to.clone() }
        }
    };
    let body = serde_json::to_string(&change)?;
    status::post(&args.admin, "/iscsi", &token(&args.admin)?, &body)
}

/// The token that the host at `admin` requires for a change.
///
/// # Errors
/// If no host answers, or this user may not read its state directory.
pub fn token(admin: &str) -> Result<String> {
    let state = rights(admin)?.1.state;
    let path = access::token_path(&state);
    let token = std::fs::read_to_string(&path).with_context(|| {
        format!(
            "cannot read {}: run this as the user that the host runs as, on its machine",
            path.display()
        )
    })?;
    Ok(token.trim().to_owned())
}

fn secret(file: Option<&Path>) -> Result<Secret> {
    if let Some(file) = file {
        return access::read_secret(file);
    }
    if std::io::stdin().is_terminal() {
        eprintln!("The secret, {} bytes at least, then Ctrl-D:", SECRET_BYTES.start());
    }
    let mut secret = Vec::new();
    // Read a little more than the limit, to notice a secret that is too long.
    let most = SECRET_BYTES.end() + 16;
    let read = std::io::stdin().take(most as u64).read_to_end(&mut secret);
    read.context("cannot read the secret from standard input")?;
    access::check_secret(secret)
}

/// The rights, as text and read.
fn rights(admin: &str) -> Result<(String, InitiatorRightsReport)> {
    let text = status::get(admin, "/iscsi").map_err(|error| status::unanswered(admin, error))?;
    let report = serde_json::from_str(&text)
        .with_context(|| format!("the program at {admin} is not a host of this version"))?;
    Ok((text, report))
}

fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("cannot write the answer")
}

fn list(admin: &str, json: bool) -> Result<()> {
    let (text, report) = rights(admin)?;
    if json {
        return print(&format!("{}\n", text.trim_end()));
    }
    let from = |config: bool| if config { "config file" } else { "command" }.to_owned();
    let mut rows = vec![["VOLUME", "INITIATOR", "CHAP USER", "FROM"].map(str::to_owned).to_vec()];
    rows.extend(report.grants.iter().map(|grant| {
        vec![
            grant.volume.clone(),
            grant.initiator.clone().unwrap_or_else(|| "(nobody)".into()),
            grant.chap_user.clone().unwrap_or_else(|| "-".into()),
            from(grant.from_config),
        ]
    }));
    let mut out = columns(&rows);
    if report.grants.is_empty() {
        out += "(none: over loopback everything may be used, from elsewhere nothing)\n";
    }
    if !report.users.is_empty() {
        let mut rows = vec![["USER", "AUTHENTICATES", "FROM"].map(str::to_owned).to_vec()];
        rows.extend(report.users.iter().map(|user| {
            let whom = if user.target { "this target" } else { "initiators" };
            vec![user.name.clone(), whom.into(), from(user.from_config)]
        }));
        out += &format!("\n{}", columns(&rows));
    }
    if !report.moved.is_empty() {
        let mut rows = vec![["MOVED", "TO", "FROM"].map(str::to_owned).to_vec()];
        rows.extend(
            report
                .moved
                .iter()
                .map(|moved| vec![moved.volume.clone(), moved.to.clone(), from(moved.from_config)]),
        );
        out += &format!("\n{}", columns(&rows));
    }
    let portals = if report.portals.is_empty() { "none".into() } else { report.portals.join(", ") };
    print(&format!("{out}\nportals: {portals}\n"))
}

#[derive(Deserialize)]
struct Sessions {
    iscsi_sessions: Vec<SessionReport>,
}

fn sessions(admin: &str, json: bool) -> Result<()> {
    let text = status::get(admin, "/status").map_err(|error| status::unanswered(admin, error))?;
    let Sessions { iscsi_sessions } = serde_json::from_str(&text)
        .with_context(|| format!("the program at {admin} is not a host of this version"))?;
    if json {
        return print(&format!("{}\n", serde_json::to_string(&iscsi_sessions)?));
    }
    let mut rows = vec![
        ["VOLUME", "INITIATOR", "USER", "FROM", "TSIH", "COMMANDS", "HELD", "DIGESTS"]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows.extend(iscsi_sessions.iter().map(|session| {
        vec![
            session.volume.clone().unwrap_or_else(|| "(discovery)".into()),
            session.initiator.clone(),
            session.user.clone().unwrap_or_else(|| "-".into()),
            session.connections.join(" "),
            session.tsih.to_string(),
            session.commands.to_string(),
            show_bytes(session.held_bytes),
            session.digests.clone(),
        ]
    }));
    let mut out = columns(&rows);
    if iscsi_sessions.is_empty() {
        out += "(none)\n";
    }
    print(&out)
}
