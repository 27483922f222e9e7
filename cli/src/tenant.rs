//! `longhaul tenant`.

use crate::args::{LimitArg, TenantArgs, TenantCommand, TenantLimitArgs};
use crate::connect::{Reach, connected};
use crate::output::{columns, done, fields, pretty, print};
use anyhow::{Context as _, Result};
use longhaul_api::client::Client;
use longhaul_api::types::{Limits, Tenant};
use longhaul_base::text::tell;
use longhaul_base::units::show_bytes;

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
                (
                    "iops",
                    tenant.max_iops.map_or("no limit".into(), |iops| format!("at most {iops}")),
                ),
                (
                    "rate",
                    tenant
                        .max_rate
                        .map_or("no limit".into(), |rate| format!("at most {}", show_rate(rate))),
                ),
                ("waiting", waiting(tenant.waiting_requests, tenant.waiting_bytes)),
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
                    tenant.max_iops.map_or("-".into(), |iops| iops.to_string()),
                    tenant.max_rate.map_or("-".into(), show_rate),
                ]
            });
            let head = ["TENANT", "VOLUMES", "SIZE", "DELETED", "STORED", "IOPS", "RATE"];
            print(&columns(&head, rows.collect()))
        }
        TenantCommand::Delete { name, .. } => {
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

/// The limits with the changes of the command line.
fn changed(mut limits: Limits, given: &TenantLimitArgs) -> Limits {
    for (limit, given) in [
        (&mut limits.max_volumes, given.max_volumes),
        (&mut limits.max_bytes, given.max_bytes),
        (&mut limits.max_stored, given.max_stored),
        (&mut limits.max_iops, given.max_iops),
        (&mut limits.max_rate, given.max_rate),
    ] {
        if let Some(LimitArg(given)) = given {
            *limit = given;
        }
    }
    limits
}

fn show_rate(bytes: u64) -> String {
    format!("{}/s", show_bytes(bytes))
}

/// The requests and bytes that wait for the limits.
fn waiting(requests: u64, bytes: u64) -> String {
    match requests {
        0 => "nothing at this store".to_owned(),
        _ => format!("{requests} requests of {} at this store", show_bytes(bytes)),
    }
}

fn of(has: u64, limit: Option<u64>, show: impl Fn(u64) -> String) -> String {
    match limit {
        Some(limit) => format!("{} of {}", show(has), show(limit)),
        None => show(has),
    }
}
