//! `longhaul tenant`.

use crate::cli::{LimitArg, TenantArgs, TenantCommand, TenantLimitArgs};
use crate::link::Requests;
use crate::store::api::types::{Tenant, Tenants};
use crate::units::show_bytes;
use crate::volume::{columns, connected, done, fields, pretty, print, tell, unexpected};
use anyhow::{Context as _, Result};
use longhaul_core::wire::link::{TenantInfo, TenantLimits, TenantOperation, TenantReply};

/// Runs it.
///
/// # Errors
/// If it does not succeed; the message says why and what to do.
pub fn run(args: &TenantArgs) -> Result<()> {
    connected(args.credential.as_deref(), args.store.as_deref(), async |requests| {
        command(requests, &args.command, args.json).await
    })
}

async fn command(requests: &Requests, command: &TenantCommand, json: bool) -> Result<()> {
    match command {
        TenantCommand::Create { name, limits } => {
            let tenant = name.clone();
            let limits = changed(TenantLimits::default(), limits);
            let info = one(requests, name, TenantOperation::Create { tenant, limits }).await?;
            shown(&info, json, &format!("created tenant {name}"))
        }
        TenantCommand::Set { name, limits } => {
            let tenant = || name.clone();
            let before = one(requests, name, TenantOperation::Show { tenant: tenant() }).await?;
            let operation =
                TenantOperation::Set { tenant: tenant(), limits: changed(before.limits, limits) };
            let info = one(requests, name, operation).await?;
            shown(&info, json, &format!("changed tenant {name}"))
        }
        TenantCommand::Show { name } => {
            let info = one(requests, name, TenantOperation::Show { tenant: name.clone() }).await?;
            if json {
                return print(&pretty(&serde_json::to_value(Tenant::from(&info))?)?);
            }
            let TenantInfo { name, limits, volumes, bytes, deleted, stored } = info;
            print(&fields(&[
                ("name", name),
                ("volumes", of(volumes, limits.max_volumes, |count| count.to_string())),
                ("size", of(bytes, limits.max_bytes, show_bytes)),
                ("deleted", deleted.to_string()),
                ("stored", of(stored, limits.max_stored, show_bytes)),
            ]))
        }
        TenantCommand::List => {
            let TenantReply::List(all) = requests.tenant(TenantOperation::List).await? else {
                return Err(unexpected());
            };
            if json {
                let tenants = Tenants { tenants: all.iter().map(Tenant::from).collect() };
                return print(&pretty(&serde_json::to_value(tenants)?)?);
            }
            let rows = all.iter().map(|info| {
                vec![
                    info.name.clone(),
                    of(info.volumes, info.limits.max_volumes, |count| count.to_string()),
                    of(info.bytes, info.limits.max_bytes, show_bytes),
                    info.deleted.to_string(),
                    of(info.stored, info.limits.max_stored, show_bytes),
                ]
            });
            let head = ["TENANT", "VOLUMES", "SIZE", "DELETED", "STORED"];
            print(&columns(&head, rows.collect()))
        }
        TenantCommand::Delete { name } => {
            let operation = TenantOperation::Delete { tenant: name.clone() };
            requests.tenant(operation).await.with_context(|| format!("tenant {name}"))?;
            done(json, &format!("deleted tenant {name}"))
        }
    }
}

async fn one(requests: &Requests, name: &str, operation: TenantOperation) -> Result<TenantInfo> {
    match requests.tenant(operation).await.with_context(|| format!("tenant {name}"))? {
        TenantReply::Tenant(info) => Ok(info),
        _ => Err(unexpected()),
    }
}

fn shown(info: &TenantInfo, json: bool, message: &str) -> Result<()> {
    if json {
        return print(&pretty(&serde_json::to_value(Tenant::from(info))?)?);
    }
    tell(message);
    Ok(())
}

/// Limits with what was given put in.
fn changed(mut limits: TenantLimits, given: &TenantLimitArgs) -> TenantLimits {
    for (limit, given) in [
        (&mut limits.max_volumes, given.max_volumes),
        (&mut limits.max_bytes, given.max_bytes),
        (&mut limits.max_stored, given.max_stored),
    ] {
        if let Some(LimitArg(given)) = given {
            *limit = given;
        }
    }
    limits
}

fn of(has: u64, limit: Option<u64>, show: impl Fn(u64) -> String) -> String {
    match limit {
        Some(limit) => format!("{} of {}", show(has), show(limit)),
        None => show(has),
    }
}
