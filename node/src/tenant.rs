//! `longhaul tenant`.

use crate::cli::{LimitArg, TenantArgs, TenantCommand, TenantLimitArgs};
use crate::store::api::client::Client;
use crate::store::api::types::{Limits, Tenant};
use crate::units::show_bytes;
use crate::volume::{Reach, columns, connected, done, fields, pretty, print, tell};
use anyhow::{Context as _, Result};

/// Runs it.
///
/// # Errors
/// If it does not succeed; the message says why and what to do.
pub fn run(args: &TenantArgs) -> Result<()> {
    connected(args.credential.as_deref(), args.store.as_deref(), Reach::Api, async |client| {
        command(client, &args.command, args.json).await
    })
}

async fn command(client: &Client, command: &TenantCommand, json: bool) -> Result<()> {
    let named = |name: &String| format!("tenant {name}");
    match command {
        TenantCommand::Create { name, limits } => {
            let limits = changed(Limits::default(), limits);
            let made = client.create_tenant(name, limits).await;
            shown(made.with_context(|| named(name))?, json, &format!("created tenant {name}"))
        }
        TenantCommand::Set { name, limits } => {
            let set = async {
                let before = client.tenant(name).await?;
                client.set_tenant(name, &changed(Limits::from(&before), limits)).await
            };
            let set = set.await.with_context(|| named(name))?;
            shown(set, json, &format!("changed tenant {name}"))
        }
        TenantCommand::Show { name } => {
            let tenant = client.tenant(name).await.with_context(|| named(name))?;
            if json {
                return print(&pretty(&serde_json::to_value(tenant)?)?);
            }
            print(&fields(&[
                ("name", tenant.name),
                ("volumes", of(tenant.volumes, tenant.max_volumes, |count| count.to_string())),
                ("size", of(tenant.bytes, tenant.max_bytes, show_bytes)),
                ("deleted", tenant.deleted.to_string()),
                ("stored", of(tenant.stored, tenant.max_stored, show_bytes)),
            ]))
        }
        TenantCommand::List => {
            let all = client.tenants().await?;
            if json {
                return print(&pretty(&serde_json::to_value(all)?)?);
            }
            let rows = all.tenants.iter().map(|tenant| {
                vec![
                    tenant.name.clone(),
                    of(tenant.volumes, tenant.max_volumes, |count| count.to_string()),
                    of(tenant.bytes, tenant.max_bytes, show_bytes),
                    tenant.deleted.to_string(),
                    of(tenant.stored, tenant.max_stored, show_bytes),
                ]
            });
            let head = ["TENANT", "VOLUMES", "SIZE", "DELETED", "STORED"];
            print(&columns(&head, rows.collect()))
        }
        TenantCommand::Delete { name } => {
            client.delete_tenant(name).await.with_context(|| named(name))?;
            done(json, &format!("deleted tenant {name}"))
        }
    }
}

fn shown(tenant: Tenant, json: bool, message: &str) -> Result<()> {
    if json {
        return print(&pretty(&serde_json::to_value(tenant)?)?);
    }
    tell(message);
    Ok(())
}

/// Limits with what was given put in.
fn changed(mut limits: Limits, given: &TenantLimitArgs) -> Limits {
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
