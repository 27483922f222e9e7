//! `longhaul tenant`.

use super::YesArg;
use clap::{Args, Subcommand};
use longhaul_base::units;
use std::path::PathBuf;

/// A limit, or `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitArg(pub Option<u64>);

#[derive(Args)]
pub struct TenantArgs {
    /// The admin credential that the store wrote.
    #[arg(long, global = true, value_name = "FILE", env = "LONGHAUL_CREDENTIAL")]
    pub credential: Option<PathBuf>,
    /// Address of the store, if not the one in the credential (HOST:PORT).
    #[arg(long, global = true, value_name = "HOST:PORT", env = "LONGHAUL_STORE")]
    pub store: Option<String>,
    /// Print JSON.
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub command: TenantCommand,
}

#[derive(Subcommand)]
pub enum TenantCommand {
    /// Create a tenant. It gets in with a credential of `longhaul credential issue`.
    Create {
        /// Its name: letters, digits, `.`, `_` and `-`, at most 63.
        name: String,
        #[command(flatten)]
        limits: TenantLimitArgs,
    },
    /// Change the limits of a tenant; the others stay. The tenant keeps its content.
    Set {
        /// Which.
        name: String,
        #[command(flatten)]
        limits: TenantLimitArgs,
    },
    /// Show a tenant: its limits, its use, and its waiting requests at the asked store.
    Show {
        /// Which.
        name: String,
    },
    /// List all tenants.
    List,
    /// Delete a tenant that has no volumes, not even deleted ones. Its credentials are good for
    /// nothing then, and again if there is a tenant of that name again: `longhaul credential
    /// revoke` withdraws them.
    Delete {
        /// Which.
        name: String,
        #[command(flatten)]
        yes: YesArg,
    },
}

#[derive(Args)]
pub struct TenantLimitArgs {
    /// Most volumes, or `none` for no limit.
    #[arg(long, value_name = "N", value_parser = count)]
    pub max_volumes: Option<LimitArg>,
    /// Most bytes of all volumes together, as large as they are, or `none`.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub max_bytes: Option<LimitArg>,
    /// Most bytes that the data of all volumes takes at the store, deleted ones and snapshots
    /// included, or `none`. Beyond it clients get "no space"; the store still takes acknowledged
    /// writes.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub max_stored: Option<LimitArg>,
    /// Most operations a second on all volumes together, or `none`: reads, also ahead, and writes
    /// as they reach the store. Above it they wait, of each volume as much as of any other.
    #[arg(long, value_name = "N", value_parser = some)]
    pub max_iops: Option<LimitArg>,
    /// Most bytes a second, read and written, of all volumes together, or `none`; as in `50MiB/s`
    /// or `100Mbit/s`.
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub max_rate: Option<LimitArg>,
}

fn count(text: &str) -> Result<LimitArg, String> {
    if text == "none" {
        return Ok(LimitArg(None));
    }
    let number = text.parse().map_err(|_| format!("{text:?} is neither a number nor `none`"))?;
    Ok(LimitArg(Some(number)))
}

fn size(text: &str) -> Result<LimitArg, String> {
    if text == "none" {
        return Ok(LimitArg(None));
    }
    units::bytes(text).map(|bytes| LimitArg(Some(bytes))).map_err(|error| error.to_string())
}

/// A number of something a second.
fn some(text: &str) -> Result<LimitArg, String> {
    positive(text, count(text)?)
}

/// Bytes a second, of a rate in bytes, `50MiB/s`, or in bits, `100Mbit/s`.
fn rate(text: &str) -> Result<LimitArg, String> {
    if text == "none" {
        return Ok(LimitArg(None));
    }
    let amount = text.strip_suffix("/s").unwrap_or(text);
    let rate = if amount.to_ascii_lowercase().ends_with("bit") {
        units::rate(amount).map(|bits| bits / 8)
    } else if amount.ends_with(|last: char| last.is_ascii_digit()) {
        return Err(format!(
            "{text:?} is not a rate: give its unit, as in `50MiB/s` or `100Mbit/s`"
        ));
    } else {
        units::bytes(amount)
    };
    let rate = rate.map_err(|_| format!("{text:?} is not a rate; try `50MiB/s` or `100Mbit/s`"))?;
    positive(text, LimitArg(Some(rate)))
}

fn positive(text: &str, limit: LimitArg) -> Result<LimitArg, String> {
    match limit.0 {
        Some(0) => Err(format!("{text:?} would stop everything: `none` is no limit")),
        _ => Ok(limit),
    }
}
