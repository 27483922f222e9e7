//! `longhaul credential`: files, and the list of a store.

use crate::args::{CredentialArgs, CredentialCommand, RoleArg};
use crate::output::{columns, fields, pretty, print};
use anyhow::{Result, bail};
use longhaul_api::client::Client;
use longhaul_api::keys;
use longhaul_api::queries::unexpected;
use longhaul_base::text::escaped;
use longhaul_base::text::tell;
use longhaul_core::wire::link::{StoreOperation, StoreReply};
use longhaul_link::credential::{self, Credential, Grant, Role, Wanted};
use serde_json::json;
use std::path::Path;

impl From<RoleArg> for Role {
    fn from(role: RoleArg) -> Role {
        match role {
            RoleArg::Read => Role::Read,
            RoleArg::Write => Role::Write,
            RoleArg::Admin => Role::Admin,
        }
    }
}

/// Runs `longhaul credential`.
///
/// # Errors
/// If it does not succeed; the message says why and what to do.
pub fn run(args: &CredentialArgs) -> Result<()> {
    match &args.command {
        CredentialCommand::NewKey { file } => {
            keys::create(file)?;
            tell("keep a copy elsewhere: without it the encrypted data is lost");
            Ok(())
        }
        CredentialCommand::Issue { role, volumes, tenant, name, state, file } => {
            let (role, volumes) = ((*role).into(), volumes.clone());
            let wanted = Wanted { name, tenant: tenant.as_deref(), role, volumes };
            credential::issue(state, &wanted, file)?;
            tell(&match tenant {
                Some(tenant) => {
                    format!(
                        "give this to tenant {tenant}; it works after the creation of the tenant:"
                    )
                }
                None => format!("this is credential {name}, of role {role}:"),
            });
            print(&format!("{}\n", file.display()))
        }
        CredentialCommand::Revoke { which, tenant, state, .. } => {
            let revoked = credential::revoke(state, which.as_deref(), tenant.as_deref())?;
            if revoked == 0 {
                bail!(
                    "no such credential: `longhaul credential list` shows the existing \
                     ones"
                );
            }
            tell(&format!("credentials that are refused from now on: {revoked}"));
            Ok(())
        }
        CredentialCommand::List { state, json } => list(state, *json),
        CredentialCommand::Rotate { state } => {
            let path = credential::rotate(state)?;
            tell(
                "the old credential is refused from now on; copy the new one to where it is used:",
            );
            print(&format!("{}\n", path.display()))
        }
        CredentialCommand::Unpack { file, dir } => {
            credential::unpack(file, dir)?;
            tell("with these, other programs can use the HTTP API of the store");
            Ok(())
        }
        CredentialCommand::Show { file, json } => show(file, *json),
        CredentialCommand::Refresh { file } => refresh(file),
        CredentialCommand::Renew { file } => renew(file),
    }
}

/// Writes the addresses that a store knows into a credential, instead of those that it has.
fn refresh(file: &Path) -> Result<()> {
    let credential = Credential::load(file)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let stores = runtime.block_on(async {
        let client = Client::linked(credential, None).await?;
        let stores = client.known_stores();
        client.close().await;
        anyhow::Ok(stores)
    })?;
    if stores.is_empty() {
        bail!("the store names no others: {} stays as it is", file.display());
    }
    credential::set_stores(file, &stores)?;
    tell(&format!("{} has the addresses of all stores:", file.display()));
    // A store says them.
    let shown: Vec<String> = stores.iter().map(|store| escaped(store)).collect();
    print(&(shown.join("\n") + "\n"))
}

/// Has another certificate signed for the key of a credential.
fn renew(file: &Path) -> Result<()> {
    let credential = Credential::load(file)?;
    let request = credential.request()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let reply = runtime.block_on(async {
        let client = Client::linked(credential, None).await?;
        let reply = client.link().await?.store(StoreOperation::Renew { request }).await;
        client.close().await;
        reply
    })?;
    let StoreReply::Renewed(certificate) = reply else { return Err(unexpected()) };
    credential::set_certificate(file, &certificate)?;
    let until = credential::date(Credential::read(file)?.not_after);
    tell(&format!("{} is valid until {until}; restart the host that uses it", file.display()));
    Ok(())
}

fn list(state: &Path, json: bool) -> Result<()> {
    let accepted = credential::accepted(state)?.accepted;
    if json {
        let list = accepted.iter().map(|(serial, grant)| {
            json!({
                "name": grant.name,
                "serial": credential::bare(serial),
                "key": grant.key,
                "kind": grant.kind,
                "role": grant.role,
                "volumes": grant.volumes,
                "tenant": credential::tenant_of(serial),
                "store": grant.store,
                "issued": grant.issued,
                "not_after": grant.not_after,
            })
        });
        return print(&pretty(&json!({ "credentials": list.collect::<Vec<_>>() }))?);
    }
    let rows = accepted.iter().map(|(serial, grant)| {
        let Grant { name, kind, role, volumes, issued, not_after, .. } = grant;
        let day = |time: &str| time.split('T').next().unwrap_or_default().to_owned();
        vec![
            name.clone(),
            kind.to_string(),
            role.to_string(),
            volumes.join(" "),
            credential::tenant_of(serial).unwrap_or("-").to_owned(),
            day(issued),
            day(not_after),
            credential::bare(serial).to_owned(),
        ]
    });
    let head = ["NAME", "KIND", "ROLE", "VOLUMES", "TENANT", "ISSUED", "VALID UNTIL", "SERIAL"];
    print(&columns(&head, rows.collect()))
}

fn show(file: &Path, json: bool) -> Result<()> {
    let credential = Credential::read(file)?;
    let now = time::OffsetDateTime::now_utc();
    let days = (credential.not_after - now).whole_days();
    let expired = credential.not_after <= now;
    let (tenant, key) =
        (credential::tenant_of(&credential.serial), credential::key_id(&credential.certificate)?);
    if json {
        return print(&pretty(&json!({
            "stores": credential.stores,
            "serial": credential::bare(&credential.serial),
            "key": key,
            "tenant": tenant,
            "not_after": credential.not_after.unix_timestamp(),
            "expired": expired,
        }))?);
    }
    let until = credential::date(credential.not_after);
    let state = if expired { "expired".to_owned() } else { format!("{days} days left") };
    print(&fields(&[
        ("stores", credential.stores.join(", ")),
        ("serial", credential::bare(&credential.serial).to_owned()),
        ("key", key),
        ("tenant", tenant.unwrap_or("none").to_owned()),
        ("valid until", format!("{until} ({state})")),
    ]))
}
