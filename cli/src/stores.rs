//! `longhaul store list`, `evacuate`, `rebalance`, `forget`, `audit`, `invite` and `join`.

mod replica;

use crate::args::{StoreCommand, StoresArgs};
use crate::output::{columns, fields, pretty, print};
use anyhow::{Context as _, Result, bail};
use longhaul_api::client::Client;
use longhaul_api::types::{Evacuated, Store, StoreCondition};
use longhaul_base::Usage;
use longhaul_base::files;
use longhaul_base::text;
use longhaul_base::text::tell;
use longhaul_base::units::show_bytes;
use longhaul_core::wire::link::{StoreOperation, StoreReply};
use longhaul_link::Requests;
use longhaul_link::credential::{self, Credential, Joining, Signed};
use longhaul_store::audit::{self, Line};
use longhaul_store::registry;
use rustix::fs::{FileType, Mode};
use serde_json::json;
use std::io::Read as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// How often to look at a store that drains.
const LOOK: Duration = Duration::from_millis(250);

/// Runs one of them.
///
/// # Errors
/// If it does not succeed; the message says why and what to do.
pub fn run(command: &StoreCommand) -> Result<()> {
    match command {
        StoreCommand::Invite { file, state } => return invite(state, file.as_deref()),
        StoreCommand::Audit { state, verify: true, head, json, .. } => {
            return verify(state, head.as_deref(), *json);
        }
        StoreCommand::Audit { state, since, tenant, json, .. } => {
            return audit(state, *since, tenant.as_deref(), *json);
        }
        _ => {}
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match command {
            StoreCommand::List(to) => list(to).await,
            StoreCommand::Evacuate { id, off, limit, to } => {
                Box::pin(evacuate(to, id.as_deref(), !off, *limit)).await
            }
            StoreCommand::Rebalance(to) => Box::pin(rebalance(to)).await,
            StoreCommand::Forget { id, to, .. } => forget(to, id).await,
            StoreCommand::Replica { command } => Box::pin(replica::run(command)).await,
            StoreCommand::Failover { standby, force, credential, json } => {
                Box::pin(replica::failover(standby, *force, credential, *json)).await
            }
            StoreCommand::Join { state, invitation } => join(state, invitation).await,
            StoreCommand::Audit { .. } | StoreCommand::Invite { .. } => Ok(()),
        }
    })
}

fn invite(state: &Path, file: Option<&Path>) -> Result<()> {
    if let Some(file) = file
        && file.symlink_metadata().is_ok()
    {
        bail!("{} exists: give the name of a new file", file.display());
    }
    if file.is_none() {
        // Before there is anything in it.
        let out = std::io::stdout();
        let kind = rustix::fs::fstat(&out).map(|stat| FileType::from_raw_mode(stat.st_mode));
        if kind == Ok(FileType::RegularFile) {
            rustix::fs::fchmod(&out, Mode::from_raw_mode(0o600))
                .context("cannot keep others from reading the file on standard output")?;
        }
    }
    let token = credential::invite(state)?;
    tell(
        "give this to `longhaul store join` within an hour; it is good once, while this store runs",
    );
    match file {
        Some(file) => files::replace(file, token.as_bytes(), 0o600),
        None => print(&token),
    }
}

async fn join(state: &Path, invitation: &Path) -> Result<()> {
    let mut text = String::new();
    if invitation == Path::new("-") {
        std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
    } else {
        text = std::fs::read_to_string(invitation)
            .with_context(|| format!("cannot read {}", invitation.display()))?;
    }
    let joining = Joining::begin(state, &text)?;
    let requests = Requests::connect(joining.token(), None).await?;
    // If the store refuses, nothing stays behind.
    files::create_dir(state)?;
    let store = registry::identity(state)?;
    let request = joining.request().to_vec();
    let reply = requests.store(StoreOperation::Sign { store, request }).await;
    requests.close().await;
    let StoreReply::Signed { certificate, ca_key, list } = reply? else {
        bail!("the store gave an answer that does not fit: are both of the same version?");
    };
    joining.finish(&store.to_string(), Signed { certificate, ca_key, list })?;
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
            return print(&(text::json(&serde_json::to_string(line)?) + "\n"));
        }
        let Line { time, tenant, name, peer, action, object, outcome, .. } = line;
        let tenant = tenant.as_deref().unwrap_or("-");
        let name = name.as_deref().unwrap_or("-");
        let said = format!("{time}  {tenant}  {name}  {peer}  {action}  {object}  {outcome}");
        // Somebody may have edited the file and put anything into it.
        print(&(text::escaped(&said) + "\n"))
    })
}

fn verify(state: &Path, head: Option<&str>, json: bool) -> Result<()> {
    let found = audit::verify(state, head)?;
    if json {
        print(&pretty(&serde_json::to_value(&found)?)?)?;
    } else {
        for audit::Problem { file, line, what } in &found.problems {
            let place = if *line == 0 { file.clone() } else { format!("{file} line {line}") };
            print(&format!("{}\n", text::escaped(&format!("{place}: {what}"))))?;
        }
        let head = found.head.as_deref().unwrap_or("none");
        print(&fields(&[
            ("lines", found.lines.to_string()),
            ("oldest", found.first.to_string()),
            ("newest", found.last.to_string()),
            ("head", head.to_owned()),
        ]))?;
    }
    if !found.problems.is_empty() {
        bail!(
            "the audit log in {} was changed at {} places: compare it with a copy",
            state.display(),
            found.problems.len()
        );
    }
    if !json {
        tell(
            "no line was removed, moved or edited; keep `head` elsewhere and give it with --head \
             the next time",
        );
    }
    Ok(())
}

async fn connect(to: &StoresArgs, at: Option<&str>) -> Result<Client> {
    let credential = Credential::load(&to.credential)?;
    Client::connect(credential, at.or(to.store.as_deref())).await
}

async fn list(to: &StoresArgs) -> Result<()> {
    let client = connect(to, None).await?;
    let stores = client.stores().await;
    client.close().await;
    let stores = stores?;
    if to.json {
        return print(&pretty(&serde_json::to_value(stores)?)?);
    }
    let said = |what: Option<String>| what.unwrap_or_else(|| "-".to_owned());
    let rows = stores.stores.into_iter().map(|store| {
        vec![
            store.id,
            store.addresses.join(","),
            in_words(store.state).to_owned(),
            said(store.hosts.map(|hosts| hosts.to_string())),
            said(store.volumes.map(|volumes| volumes.to_string())),
            said(store.bytes_per_second.map(|bytes| format!("{}/s", show_bytes(bytes)))),
            said(store.software),
        ]
    });
    let head = ["STORE", "ADDRESS", "STATE", "HOSTS", "VOLUMES", "TRAFFIC", "SOFTWARE"];
    print(&columns(&head, rows.collect()))
}

fn in_words(condition: StoreCondition) -> &'static str {
    match condition {
        StoreCondition::Serving => "serving",
        StoreCondition::Evacuating => "evacuating",
        StoreCondition::NoAnswer => "no answer",
    }
}

/// The one store whose identity begins like this.
fn named<'a>(stores: &'a [Store], id: &str) -> Result<&'a Store> {
    let mut found = stores.iter().filter(|store| store.id.starts_with(id));
    match (found.next(), found.next()) {
        (Some(store), None) => Ok(store),
        (None, _) => {
            Err(Usage(format!("no store {id}: `longhaul store list` shows the existing ones"))
                .into())
        }
        (Some(_), Some(_)) => Err(Usage(format!("{id} is the beginning of several stores")).into()),
    }
}

async fn evacuate(to: &StoresArgs, id: Option<&str>, on: bool, limit: Duration) -> Result<()> {
    let mut client = connect(to, None).await?;
    if let Some(id) = id {
        let all = client.stores().await?.stores;
        let store = named(&all, id)?;
        let address = store.addresses.first().context("that store has no address")?.clone();
        client.close().await;
        client = connect(to, Some(&address)).await?;
    }
    let left = evacuate_at(&client, on, limit).await;
    client.close().await;
    let Evacuated { store, hosts: left, .. } = left?;
    if to.json {
        print(&pretty(&json!({ "store": store, "evacuating": on, "hosts": left }))?)?;
    } else if !on {
        tell(&format!("store {store} takes hosts again"));
    } else if left == 0 {
        tell(&format!("no host is left at store {store}: it can be stopped"));
    }
    if on && left > 0 {
        bail!(
            "{left} hosts are still at store {store}: they reach no other one, or have this one by \
             --store; when it stops, they wait until it is back"
        );
    }
    Ok(())
}

async fn forget(to: &StoresArgs, id: &str) -> Result<()> {
    let client = connect(to, None).await?;
    let forgotten = async {
        let all = client.stores().await?.stores;
        let store = named(&all, id)?.id.clone();
        client.forget_store(&store).await?;
        anyhow::Ok(store)
    };
    let forgotten = forgotten.await;
    client.close().await;
    let store = forgotten?;
    if to.json {
        return print(&pretty(&json!({ "store": store }))?);
    }
    tell(&format!("store {store} is forgotten"));
    Ok(())
}

/// How it stands in the end.
async fn evacuate_at(client: &Client, on: bool, limit: Duration) -> Result<Evacuated> {
    let start = Instant::now();
    let mut evacuated = client.evacuate(on).await?;
    while on && evacuated.hosts > 0 && start.elapsed() < limit {
        tokio::time::sleep(LOOK).await;
        evacuated = client.evacuated().await?;
    }
    Ok(evacuated)
}

async fn rebalance(to: &StoresArgs) -> Result<()> {
    let client = connect(to, None).await?;
    let all = client.stores().await;
    client.close().await;
    let mut moved = 0;
    let answers = |store: &&Store| store.state != StoreCondition::NoAnswer;
    for store in all?.stores.iter().filter(answers) {
        let Some(address) = store.addresses.first() else { continue };
        let client = connect(to, Some(address)).await?;
        let reply = client.rebalance().await;
        client.close().await;
        moved += reply?.hosts;
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
