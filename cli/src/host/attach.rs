//! `longhaul attach` and `longhaul detach`: have a running host take a volume, or give it back.

use super::control::ask;
use super::status;
use crate::args::{AttachArgs, DetachArgs};
use crate::output::{progress, waiting};
use anyhow::{Context as _, Result, bail};
use longhaul_base::text::tell;
use longhaul_base::units::show_bytes;
use longhaul_core::front::iscsi::TARGET_PREFIX;
use longhaul_host::control::HostCommand;
use longhaul_host::report::{HostReport, VolumeReport};
use serde_json::{Value, json};
use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// How often to ask the host for its progress.
const LOOK: Duration = Duration::from_millis(50);

/// How long clients have to be gone.
const FAREWELL: Duration = Duration::from_secs(1);

/// Attaches a volume and prints how to use it.
///
/// # Errors
/// If no host answers, or the attach fails: why, and what to do.
pub fn attach(args: &AttachArgs) -> Result<()> {
    let volume = args.name.clone();
    ask(&args.admin, &HostCommand::Attach { volume, take_over: args.take_over })?;
    let (report, volume) = runtime()?.block_on(attached(args))?;
    let uris = uris(&report.nbd, report.nbd_tls, &volume.name);
    if args.json {
        return print(&(ways_json(&uris, &report.iscsi, &volume).to_string() + "\n"));
    }
    print(&ways_text(&uris, &report.iscsi, &volume))
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("cannot write the answer")
}

fn look(admin: &str) -> Result<HostReport> {
    let text = status::get(admin, "/status").map_err(|error| status::unanswered(admin, error))?;
    serde_json::from_str(&text)
        .with_context(|| format!("the program at {admin} is not a host of this version"))
}

fn of(report: &HostReport, name: &str) -> Option<VolumeReport> {
    report.volumes.iter().find(|volume| volume.name == name).cloned()
}

/// Waits until the volume is attached.
async fn attached(args: &AttachArgs) -> Result<(HostReport, VolumeReport)> {
    let name = &args.name;
    let sign = waiting(!args.json);
    let mut interrupted = std::pin::pin!(tokio::signal::ctrl_c());
    let mut told = None;
    loop {
        let report = look(&args.admin)?;
        let Some(volume) = of(&report, name) else {
            bail!("another command has ended the attach of volume {name}");
        };
        match volume.state.as_str() {
            "attached" => {
                sign.finish_and_clear();
                return Ok((report, volume));
            }
            "attaching" => {
                let why = volume.reason.clone().unwrap_or_else(|| format!("attaching {name}"));
                let down = !report.link.up;
                let why = match report.link.last_error.as_ref().filter(|_| down) {
                    Some(error) => format!("{why}: {error}"),
                    None => why,
                };
                sign.set_message(why.clone());
                if down && told.as_ref() != Some(&why) && !std::io::stderr().is_terminal() {
                    tell(&why);
                    told = Some(why);
                }
            }
            _ => {
                sign.finish_and_clear();
                let why = volume.reason.unwrap_or(volume.state);
                bail!("{}", why);
            }
        }
        tokio::select! {
            _ = &mut interrupted => {
                sign.finish_and_clear();
                ask(&args.admin, &HostCommand::CancelAttach { volume: name.clone() })?;
                bail!("stopped: volume {name} is not attached by this command");
            }
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

/// URIs for NBD.
fn uris(addresses: &[String], tls: bool, name: &str) -> Vec<String> {
    let scheme = if tls { "nbds" } else { "nbd" };
    let uri = |address: &String| match address.strip_prefix("unix:") {
        Some(path) => format!("{scheme}+unix:///{name}?socket={path}"),
        None => format!("{scheme}://{address}/{name}"),
    };
    addresses.iter().map(uri).collect()
}

fn target(name: &str) -> String {
    format!("{TARGET_PREFIX}{}", name.replace('@', ":").replace('/', "::"))
}

fn ways_json(uris: &[String], portals: &[String], volume: &VolumeReport) -> Value {
    json!({
        "volume": volume.name,
        "state": volume.state,
        "id": volume.id,
        "epoch": volume.epoch,
        "size_bytes": volume.size_bytes,
        "nbd": uris,
        "iscsi": { "target": target(&volume.name), "portals": portals },
    })
}

fn ways_text(uris: &[String], portals: &[String], volume: &VolumeReport) -> String {
    let name = &volume.name;
    let mut out = format!(
        "volume {name} of {} is attached, epoch {}\n",
        show_bytes(volume.size_bytes),
        volume.epoch
    );
    for uri in uris {
        out += &format!("NBD:   {uri}\n");
    }
    for portal in portals {
        out += &format!("iSCSI: {} at {portal}, LUN 0\n", target(name));
    }
    if uris.is_empty() && portals.is_empty() {
        out += "clients cannot use it: this host runs without --nbd and --iscsi\n";
    }
    out
}

/// Detaches a volume once the store has everything.
///
/// # Errors
/// If no host answers, the volume is in use, or it has undelivered writes.
pub fn detach(args: &DetachArgs) -> Result<()> {
    runtime()?.block_on(detached(args))?;
    if args.json {
        return print(&(json!({ "volume": args.name, "detached": true }).to_string() + "\n"));
    }
    print(&format!("volume {} is detached\n", args.name))
}

async fn detached(args: &DetachArgs) -> Result<()> {
    let name = &args.name;
    let command =
        HostCommand::Detach { volume: name.clone(), drop_undelivered: args.drop_undelivered };
    let begun = Instant::now();
    let mut asked = false;
    let mut bar = None;
    let mut told = false;
    let mut interrupted = std::pin::pin!(tokio::signal::ctrl_c());
    loop {
        let report = look(&args.admin)?;
        match of(&report, name) {
            None if asked => return Ok(()),
            None => return ask(&args.admin, &command),
            Some(volume) => match volume.state.as_str() {
                "attached" => {
                    let clients = volume.connections + volume.iscsi_sessions;
                    // The count may still include a client that has just left.
                    if clients > 0 && begun.elapsed() < FAREWELL {
                        tokio::time::sleep(LOOK).await;
                        continue;
                    }
                    if clients > 0 {
                        bail!(
                            "volume {name} has {clients} clients: disconnect them, then detach it; \
                             `longhaul iscsi sessions` shows those of iSCSI"
                        );
                    }
                    let left = volume.journal.lag_bytes;
                    if left == 0 && report.link.up {
                        ask(&args.admin, &command)?;
                        asked = true;
                        continue;
                    }
                    let bar = bar.get_or_insert_with(|| progress(left, !args.json));
                    let most = bar.length().unwrap_or_default().max(left);
                    bar.set_length(most);
                    bar.set_position(most - left);
                    if !report.link.up && !told {
                        told = true;
                        tell(&format!(
                            "waiting for the store, which does not have {} yet; Ctrl-C leaves the \
                             volume as it is",
                            show_bytes(left)
                        ));
                    }
                }
                "detaching" => asked = true,
                _ if !asked => {
                    ask(&args.admin, &command)?;
                    asked = true;
                }
                // The host lets go of it.
                "attaching" | "refused" => {}
                state => bail!("volume {name} is {state}: {}", volume.reason.unwrap_or_default()),
            },
        }
        tokio::select! {
            _ = &mut interrupted => {
                if asked {
                    bail!("volume {name} is being detached: the host finishes that by itself");
                }
                bail!("stopped: volume {name} is attached as before");
            }
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_how_to_use_a_volume() {
        let volume = VolumeReport {
            name: "t/db@mon".into(),
            size_bytes: 1 << 30,
            epoch: 3,
            ..VolumeReport::default()
        };
        let listening = ["127.0.0.1:10809".to_owned(), "unix:/run/l.sock".to_owned()];
        let (uris, portals) =
            (uris(&listening, false, &volume.name), ["127.0.0.1:3260".to_owned()]);
        let text = ways_text(&uris, &portals, &volume);
        for part in [
            "nbd://127.0.0.1:10809/t/db@mon",
            "nbd+unix:///t/db@mon?socket=/run/l.sock",
            "iqn.2026-11.io.longhaul:t::db:mon at 127.0.0.1:3260",
            "1 GiB",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(ways_text(&[], &[], &volume).contains("--nbd"));
        let json = ways_json(&uris, &portals, &volume);
        assert_eq!(json["nbd"][1], "nbd+unix:///t/db@mon?socket=/run/l.sock");
    }
}
