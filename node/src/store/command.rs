//! `longhaul store list`, `drain`, `rebalance`, `forget`, `audit`, `invite` and `join`.

mod replica;

pub use replica::{json as replica_json, metrics as replica_metrics};

use super::api::types::{Store, Stores};
use super::audit::{self, Line};
use crate::cli::{StoreCommand, StoresArgs};
use crate::commands::Usage;
use crate::credential::{self, Credential};
use crate::link::Requests;
use crate::units::show_bytes;
use crate::volume::{columns, pretty, print, tell};
use anyhow::{Context as _, Result, bail};
use longhaul_core::wire::link::{StoreId, StoreOperation, StoreReply, StoreState};
use serde_json::json;
use std::io::Read as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// How often a store that is being drained is looked at.
const LOOK: Duration = Duration::from_millis(250);

/// Runs one of them.
///
/// # Errors
/// If it does not succeed; the message says why and what to do.
pub fn run(command: &StoreCommand) -> Result<()> {
    match command {
        StoreCommand::Invite { state } => {
            tell(
                "give this to `longhaul store join` over a channel that nobody reads, and delete it",
            );
            return print(&credential::invite(state)?);
        }
        StoreCommand::Join { state, invitation } => return join(state, invitation),
        StoreCommand::Audit { state, since, tenant, json } => {
            return audit(state, *since, tenant.as_deref(), *json);
        }
        _ => {}
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match command {
            StoreCommand::List(to) => list(to).await,
            StoreCommand::Drain { id, off, limit, to } => {
                drain(to, id.as_deref(), !off, *limit).await
            }
            StoreCommand::Rebalance(to) => rebalance(to).await,
            StoreCommand::Forget { id, to } => forget(to, id).await,
            StoreCommand::Replica { command } => replica::run(command).await,
            StoreCommand::Failover { standby, force, credential, json } => {
                replica::failover(standby, *force, credential, *json).await
            }
            StoreCommand::Audit { .. }
            | StoreCommand::Invite { .. }
            | StoreCommand::Join { .. } => Ok(()),
        }
    })
}

fn join(state: &Path, invitation: &Path) -> Result<()> {
    let mut text = String::new();
    if invitation == Path::new("-") {
        std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
    } else {
        text = std::fs::read_to_string(invitation)
            .with_context(|| format!("cannot read {}", invitation.display()))?;
    }
    credential::join(state, &text)?;
    tell(&format!("start this store with --state {}", state.display()));
    Ok(())
}

fn audit(state: &Path, since: Option<Duration>, tenant: Option<&str>, json: bool) -> Result<()> {
    let since = since.map(|since| time::OffsetDateTime::now_utc() - since);
    audit::read(state, since, |line| {
        if tenant.is_some() && line.tenant.as_deref() != tenant {
            return Ok(());
        }
        if json {
            return print(&(serde_json::to_string(line)? + "\n"));
        }
        let Line { time, tenant, peer, action, object, outcome, .. } = line;
        let tenant = tenant.as_deref().unwrap_or("-");
        print(&format!("{time}  {tenant}  {peer}  {action}  {object}  {outcome}\n"))
    })
}

async fn connect(to: &StoresArgs, at: Option<&str>) -> Result<Requests> {
    let credential = Credential::load(&to.credential)?;
    Requests::connect(&credential, at.or(to.store.as_deref())).await
}

async fn stores(requests: &Requests) -> Result<Vec<StoreState>> {
    match requests.store(StoreOperation::List).await? {
        StoreReply::List(stores) => Ok(stores),
        _ => bail!("the store gave an answer that does not fit"),
    }
}

async fn list(to: &StoresArgs) -> Result<()> {
    let requests = connect(to, None).await?;
    let stores = stores(&requests).await;
    requests.close().await;
    let stores = stores?;
    if to.json {
        let stores = Stores { stores: stores.iter().map(Store::from).collect() };
        return print(&pretty(&serde_json::to_value(stores)?)?);
    }
    let rows = stores.iter().map(|store| {
        let said = |say: fn(&longhaul_core::wire::link::StoreReport) -> String| {
            store.report.as_ref().map_or_else(|| "-".to_owned(), say)
        };
        vec![
            store.id.to_string(),
            store.addresses.join(","),
            state_in_words(store).to_owned(),
            said(|report| report.hosts.to_string()),
            said(|report| report.attached.to_string()),
            said(|report| format!("{}/s", show_bytes(report.bytes_per_second))),
            said(|report| report.software.clone()),
        ]
    });
    let head = ["STORE", "ADDRESS", "STATE", "HOSTS", "VOLUMES", "TRAFFIC", "SOFTWARE"];
    print(&columns(&head, rows.collect()))
}

fn state_in_words(store: &StoreState) -> &'static str {
    match &store.report {
        None => "no answer",
        Some(report) if report.draining => "draining",
        Some(_) => "serving",
    }
}

/// The one store whose identity begins like this.
fn named<'a>(stores: &'a [StoreState], id: &str) -> Result<&'a StoreState> {
    let mut found = stores.iter().filter(|store| store.id.to_string().starts_with(id));
    match (found.next(), found.next()) {
        (Some(store), None) => Ok(store),
        (None, _) => Err(Usage(format!(
            "there is no store {id}; `longhaul store list` shows those there are"
        ))
        .into()),
        (Some(_), Some(_)) => Err(Usage(format!("{id} is the beginning of several stores")).into()),
    }
}

async fn drain(to: &StoresArgs, id: Option<&str>, on: bool, limit: Duration) -> Result<()> {
    let mut requests = connect(to, None).await?;
    if let Some(id) = id {
        let all = stores(&requests).await?;
        let store = named(&all, id)?;
        let address = store.addresses.first().context("that store has no address")?.clone();
        requests.close().await;
        requests = connect(to, Some(&address)).await?;
    }
    let left = drain_at(&requests, on, limit).await;
    requests.close().await;
    let (store, left) = left?;
    if to.json {
        print(&pretty(&json!({ "store": store.to_string(), "draining": on, "hosts": left }))?)?;
    } else if !on {
        tell(&format!("store {store} takes hosts again"));
    } else if left == 0 {
        tell(&format!("no host is left at store {store}: it can be stopped"));
    }
    if on && left > 0 {
        bail!(
            "{left} hosts are still at store {store}: they do not reach another one, were given this one with --store, \
             or are too old to know others; when it is stopped they wait until it is back"
        );
    }
    Ok(())
}

async fn forget(to: &StoresArgs, id: &str) -> Result<()> {
    let requests = connect(to, None).await?;
    let forgotten = async {
        let all = stores(&requests).await?;
        let store = named(&all, id)?.id;
        requests.store(StoreOperation::Forget { id: store }).await?;
        anyhow::Ok(store)
    };
    let forgotten = forgotten.await;
    requests.close().await;
    let store = forgotten?;
    if to.json {
        return print(&pretty(&json!({ "store": store.to_string() }))?);
    }
    tell(&format!("store {store} is forgotten"));
    Ok(())
}

/// Which store it is, and how many hosts are left.
async fn drain_at(requests: &Requests, on: bool, limit: Duration) -> Result<(StoreId, u32)> {
    requests.store(StoreOperation::Drain { on }).await?;
    let start = Instant::now();
    loop {
        let StoreReply::Report(report) = requests.store(StoreOperation::Report).await? else {
            bail!("the store gave an answer that does not fit");
        };
        if !on || report.hosts == 0 || start.elapsed() >= limit {
            return Ok((report.id, report.hosts));
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn rebalance(to: &StoresArgs) -> Result<()> {
    let requests = connect(to, None).await?;
    let all = stores(&requests).await;
    requests.close().await;
    let mut moved = 0;
    for store in all?.iter().filter(|store| store.report.is_some()) {
        let Some(address) = store.addresses.first() else { continue };
        let requests = connect(to, Some(address)).await?;
        let reply = requests.store(StoreOperation::Rebalance).await;
        requests.close().await;
        if let StoreReply::Moved(hosts) = reply? {
            moved += hosts;
        }
    }
    if to.json {
        return print(&pretty(&json!({ "hosts": moved }))?);
    }
    tell(&match moved {
        0 => "nothing to do".to_owned(),
        1 => "asked a host to go to another store".to_owned(),
        _ => format!("asked {moved} hosts to go to other stores"),
    });
    Ok(())
}
