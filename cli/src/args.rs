//! The command line: every command, every flag, where its value may come from.
//!
//! A flag's value comes from the command line, else from `LONGHAUL_*` in the environment, else from
//! the command's table in the `--config` file. Otherwise it is the default.

// Also found from where the fuzz targets include this file.
#[path = "args/attach.rs"]
mod attach;
#[path = "args/confirmed.rs"]
mod confirmed;
#[path = "args/credential.rs"]
mod credential;
#[path = "args/hidden.rs"]
mod hidden;
#[path = "args/keys.rs"]
mod keys;
#[path = "args/nbd.rs"]
mod nbd;
#[path = "args/snapshot.rs"]
mod snapshot;
#[path = "args/stores.rs"]
mod stores;
#[path = "args/tenant.rs"]
mod tenant;
#[path = "args/volume.rs"]
mod volume;

pub use attach::{AttachArgs, DetachArgs};
pub use confirmed::YesArg;
pub use credential::{CredentialArgs, CredentialCommand, RoleArg};
pub use hidden::{BenchLinkArgs, BenchLinkCommand, BenchNullArgs, RelayArgs};
pub use keys::{KeyArgs, KeyCommand};
pub use nbd::{NbdArgs, NbdCommand};
pub use snapshot::{SnapshotArgs, SnapshotCommand, SnapshotName};
pub use stores::{ModeArg, ReplicaCommand, StoreCommand, StoresArgs};
pub use tenant::{LimitArg, TenantArgs, TenantCommand, TenantLimitArgs};
pub use volume::{VolumeArgs, VolumeCommand};

use anyhow::{Context as _, Result, bail};
use clap::builder::BoolishValueParser;
use clap::{Args, CommandFactory as _, Parser, Subcommand};
use longhaul_base::span::{self, Span};
use longhaul_base::units;
use longhaul_host::Schedule;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Block storage that lives far away and behaves as if it were in the next bay.
///
/// A host gateway (`longhaul host`) serves ordinary disks and journals their writes on the local
/// disk. It sends them in order over an encrypted link to a storage gateway (`longhaul store`). Try
/// it on one machine with `longhaul demo`.
#[derive(Parser)]
#[command(name = "longhaul", version, arg_required_else_help = true, max_term_width = 100)]
pub struct Cli {
    /// TOML file with a table per command, as in `[host]` `journal-size = "2GiB"` or
    /// `[credential.rotate]`; flags and the environment override it.
    #[arg(long, global = true, value_name = "FILE", env = "LONGHAUL_CONFIG")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub log: longhaul_base::log::LogArgs,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Start store and host on this machine with a volume, and show how to use it.
    Demo(DemoArgs),
    /// Run a storage gateway.
    Store(Box<StoreCommandLine>),
    /// Run a host gateway.
    Host(Box<longhaul_host::HostArgs>),
    /// Attach a volume to a running host, and show how to use it.
    Attach(AttachArgs),
    /// Detach a volume from a running host: the store gets everything, and the host's space is free
    /// again.
    Detach(DetachArgs),
    /// Create, list, show, resize, delete, import and export volumes.
    Volume(VolumeArgs),
    /// Take, list, delete and go back to snapshots of volumes.
    Snapshot(SnapshotArgs),
    /// Create, change, show, list and delete tenants, who have volumes of their own and know of no
    /// others.
    Tenant(TenantArgs),
    /// Make, renew, list and withdraw the credentials of a store.
    Credential(CredentialArgs),
    /// Say which iSCSI initiators may use what at a running host, and show who does.
    Iscsi(IscsiArgs),
    /// Say which NBD clients may use what at a running host.
    Nbd(NbdArgs),
    /// Change how much of the line a volume of a running host may use.
    Limit(LimitArgs),
    /// Keep parts of a volume, or files on it, in the read cache of a running host.
    Cache(CacheArgs),
    /// Record the reads while something starts, and read that ahead the next time.
    Trace(TraceArgs),
    /// Show the state of a running host: its volumes, how far the store lags, and the link.
    Status(StatusArgs),
    /// Verify a host state directory or a store data directory, offline and read-only.
    Check(CheckArgs),
    /// Relay UDP between host and store over a network made as bad as wanted.
    #[command(hide = true)]
    Relay(RelayArgs),
    /// Serve a volume without disk and store, to measure what everything else costs.
    #[command(hide = true)]
    BenchNull(BenchNullArgs),
    /// Load a running store over the link, without a host, to measure what the store costs.
    #[command(hide = true)]
    BenchLink(BenchLinkArgs),
}

#[derive(Clone, Args)]
pub struct DemoArgs {
    /// Where store and host keep their state [default: a new temporary directory, removed at exit].
    #[arg(long, value_name = "DIR", env = "LONGHAUL_DIR")]
    pub dir: Option<PathBuf>,
    /// Size of the volume `demo`.
    #[arg(long, default_value = "4GiB", value_parser = units::bytes, env = "LONGHAUL_SIZE")]
    pub size: u64,
    /// One-way delay to put on the link between host and store, to feel what distance costs.
    #[arg(long, default_value = "0", value_parser = units::duration, env = "LONGHAUL_WAN_DELAY")]
    pub wan_delay: Duration,
    /// NBD address of the host: ADDR:PORT, or unix:PATH.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:10809", env = "LONGHAUL_NBD")]
    pub nbd: String,
    /// iSCSI address of the host as well: ADDR or ADDR:PORT.
    #[arg(long, value_name = "ADDR", env = "LONGHAUL_ISCSI")]
    pub iscsi: Option<String>,
    /// Without journal and cache: every write waits for the store.
    #[arg(long, env = "LONGHAUL_WRITE_THROUGH", value_parser = BoolishValueParser::new())]
    pub write_through: bool,
    /// Show a client's write and read, then exit.
    #[arg(long)]
    pub once: bool,
}

#[derive(Args)]
#[command(subcommand_negates_reqs = true)]
pub struct StoreCommandLine {
    #[command(subcommand)]
    pub command: Option<StoreCommand>,
    #[command(flatten)]
    pub store: longhaul_store::StoreArgs,
}

#[derive(Args)]
pub struct IscsiArgs {
    /// Admin address of the host.
    #[arg(
        long,
        global = true,
        value_name = "ADDR",
        default_value = "127.0.0.1:7780",
        env = "LONGHAUL_ADMIN"
    )]
    pub admin: String,
    #[command(subcommand)]
    pub command: IscsiCommand,
}

#[derive(Subcommand)]
pub enum IscsiCommand {
    /// Let an initiator use a volume, from now on and after every restart. After the first grant
    /// for a volume, others may not use it over loopback either.
    Allow {
        /// Which volume.
        volume: String,
        /// iSCSI name of the initiator (in its /etc/iscsi/initiatorname.iscsi).
        #[arg(value_name = "IQN")]
        initiator: String,
        /// CHAP user that it has to authenticate as.
        #[arg(long, value_name = "USER")]
        chap_user: Option<String>,
    },
    /// Withdraw that; its sessions end. When no initiator is left, nobody may use the volume:
    /// `open` ends its list.
    Deny {
        /// Which volume.
        volume: String,
        /// iSCSI name of the initiator.
        #[arg(value_name = "IQN")]
        initiator: String,
    },
    /// End the list of a volume: everybody may use it over loopback from now on, and nobody from
    /// elsewhere.
    Open {
        /// Which volume.
        volume: String,
    },
    /// Give CHAP users their secrets, or remove them.
    User {
        #[command(subcommand)]
        command: UserCommand,
    },
    /// Send initiators of a volume to another portal when they log in.
    Move {
        /// Which volume.
        volume: String,
        /// ADDR:PORT of the portal.
        #[arg(long, value_name = "ADDR:PORT", required_unless_present = "back")]
        to: Option<String>,
        /// Serve it here again.
        #[arg(long, conflicts_with = "to")]
        back: bool,
    },
    /// Show who may use what.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show the logged-in initiators.
    Sessions {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Subcommand)]
pub enum UserCommand {
    /// Set a user's secret: 12 bytes at least, read from standard input or a file.
    Set {
        /// Who.
        name: String,
        /// File with the secret, which only its owner may read.
        #[arg(long, value_name = "FILE")]
        secret_file: Option<PathBuf>,
        /// It is what the target proves its identity with, to initiators that ask for it.
        #[arg(long)]
        target: bool,
    },
    /// Remove a user.
    Remove {
        /// Who.
        name: String,
        /// It is the target's own user.
        #[arg(long)]
        target: bool,
    },
}

#[derive(Args)]
pub struct LimitArgs {
    /// Admin address of the host.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7780", env = "LONGHAUL_ADMIN")]
    pub admin: String,
    /// Which volume. Its limits hold until the host stops; those of the command line are for all.
    pub volume: String,
    /// Most that it may send to the store: `20Mbit/s`, `none`, or by time of day
    /// (`50Mbit/s,08:00-18:00=5Mbit/s`).
    #[arg(
        long,
        value_name = "RATE",
        value_parser = Schedule::parse,
        required_unless_present = "readahead_rate"
    )]
    pub drain_rate: Option<Schedule>,
    /// Most that it may read ahead.
    #[arg(long, value_name = "RATE", value_parser = Schedule::parse)]
    pub readahead_rate: Option<Schedule>,
}

#[derive(Args)]
pub struct CacheArgs {
    /// Admin address of the host.
    #[arg(
        long,
        global = true,
        value_name = "ADDR",
        default_value = "127.0.0.1:7780",
        env = "LONGHAUL_ADMIN"
    )]
    pub admin: String,
    #[command(subcommand)]
    pub command: CacheCommand,
}

#[derive(Subcommand)]
pub enum CacheCommand {
    /// Keep ranges in the cache from now on, also after restarts. Nothing takes their place. The
    /// host fetches missing parts behind everything else, and again after another host wrote them.
    /// It can pin at most four fifths of the cache, in whole lines of 16 KiB.
    Pin {
        /// Which volume.
        volume: String,
        #[command(flatten)]
        place: WhereArgs,
    },
    /// No longer keep ranges there. They stay until something else needs the room.
    Unpin {
        /// Which volume.
        volume: String,
        #[command(flatten)]
        place: WhereArgs,
    },
    /// Bring ranges into the cache now, within --readahead-rate and behind what clients read, and
    /// wait until they are there. Ctrl-C ends it.
    Warm {
        /// Which volume.
        volume: String,
        #[command(flatten)]
        place: WhereArgs,
    },
    /// End a `warm` that is under way.
    Stop {
        /// Which volume.
        volume: String,
    },
    /// Show the fill of the cache, and the pinned ranges.
    Show {
        /// Which volume.
        volume: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args)]
pub struct WhereArgs {
    /// Bytes of the volume: OFFSET+LENGTH, OFFSET-END or `all`, as in `0+64MiB` or `1GiB-2GiB`.
    #[arg(value_name = "RANGE", value_parser = span::parse)]
    pub ranges: Vec<Span>,
    #[command(flatten)]
    pub file: FileArgs,
}

#[derive(Args)]
pub struct FileArgs {
    /// The places of this file, or of all files below this directory, as they are now. Run it where
    /// the volume's file system is mounted. A pin does not follow a file that moves later. Repeat
    /// for several.
    #[arg(long = "file", value_name = "PATH")]
    pub files: Vec<PathBuf>,
    /// Byte of the volume at which the file system of the --file begins [default: where its
    /// partition does].
    #[arg(long, value_name = "OFFSET", value_parser = units::bytes, requires = "files")]
    pub device_offset: Option<u64>,
}

#[derive(Args)]
pub struct TraceArgs {
    /// Admin address of the host.
    #[arg(
        long,
        global = true,
        value_name = "ADDR",
        default_value = "127.0.0.1:7780",
        env = "LONGHAUL_ADMIN"
    )]
    pub admin: String,
    #[command(subcommand)]
    pub command: TraceCommand,
}

#[derive(Subcommand)]
pub enum TraceCommand {
    /// Begin to record what clients read.
    Record {
        /// Of which volume.
        volume: String,
        /// Name for the trace; `stop` replaces an older one of that name.
        name: String,
    },
    /// Keep the recording; or, without one, end a replay.
    Stop {
        /// Of which volume.
        volume: String,
    },
    /// Read a trace ahead, now.
    Replay {
        /// Of which volume.
        volume: String,
        /// Which trace.
        name: String,
    },
    /// Forget a trace.
    Delete {
        /// Of which volume.
        volume: String,
        /// Which trace.
        name: String,
    },
    /// Show the traces of all attached volumes.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args)]
pub struct StatusArgs {
    /// Admin address of the host.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7780", env = "LONGHAUL_ADMIN")]
    pub admin: String,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct CheckArgs {
    /// State directory of a stopped host, or what a stopped store has as --data.
    pub dir: PathBuf,
    /// The journal device of the host, if it has one.
    #[arg(long, value_name = "DEVICE", env = "LONGHAUL_JOURNAL")]
    pub journal: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// The tables of the config file that are not a command's flags: who may use what.
const ACCESS_TABLES: [&str; 2] = ["iscsi", "nbd"];

/// The arguments with those of the config file before the user's own, so that the user's win. An
/// option with a value in the environment is left out.
///
/// # Errors
/// If the config file cannot be read, is not TOML, or has a value that no flag can take.
pub fn arguments(args: Vec<OsString>) -> Result<Vec<OsString>> {
    let Some(path) = config_path(&args) else { return Ok(args) };
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read the config file {}", path.display()))?;
    let config: toml::Table = toml::from_str(&text)
        .with_context(|| format!("the config file {} is not valid TOML", path.display()))?;
    let commands =
        ["demo", "store", "host", "volume", "snapshot", "tenant", "credential", "status", "check"];
    let access = |key: &str| ACCESS_TABLES.contains(&key);
    let unknown = |key: &&String| !commands.contains(&key.as_str()) && !access(key);
    if let Some(unknown) = config.keys().find(unknown) {
        bail!(
            "{}: `{unknown}` is no command; tables are {}, {}",
            path.display(),
            commands.join(", "),
            ACCESS_TABLES.join(", ")
        );
    }
    // The word after `--config` or `--log` is a value, whatever it looks like.
    let is_command = |n: usize| {
        let value = args[n - 1] == "--config" || args[n - 1] == "--log";
        let known = |arg: &str| commands.contains(&arg) || access(arg);
        !value && args[n].to_str().is_some_and(known)
    };
    let Some(at) = (1..args.len()).find(|n| is_command(*n)) else { return Ok(args) };
    if args[at].to_str().is_some_and(access) {
        return Ok(args);
    }
    let command = Cli::command();
    let (Some(table), Some(command)) =
        (args[at].to_str().and_then(|name| config.get(name)), command.find_subcommand(&args[at]))
    else {
        return Ok(args);
    };
    let table = table
        .as_table()
        .with_context(|| format!("{}: `{}` is not a table", path.display(), args[at].display()))?;
    let mut all = args[..=at].to_vec();
    all.extend(fill_in(&path, table, command, &args[at + 1..])?);
    Ok(all)
}

/// The arguments of a command with those of its table in front, and of the tables in it for its own
/// commands.
fn fill_in(
    path: &Path,
    table: &toml::Table,
    command: &clap::Command,
    args: &[OsString],
) -> Result<Vec<OsString>> {
    let mut all = Vec::new();
    for (key, value) in table {
        if value.is_table() && command.find_subcommand(key).is_some() {
            continue;
        }
        let env = format!("LONGHAUL_{}", key.replace('-', "_").to_uppercase());
        let flag = OsString::from(format!("--{key}"));
        let given = |arg: &OsString| {
            arg == &flag || arg.to_str().is_some_and(|a| a.starts_with(&format!("--{key}=")))
        };
        if std::env::var_os(env).is_some() || args.iter().any(given) {
            continue;
        }
        let mut push = |value: &toml::Value| -> Result<()> {
            let text = match value {
                toml::Value::String(text) => text.clone(),
                toml::Value::Integer(number) => number.to_string(),
                toml::Value::Float(number) => number.to_string(),
                other => bail!("{}: `{key}` cannot be {other}", path.display()),
            };
            all.push(format!("--{key}={text}").into());
            Ok(())
        };
        match value {
            toml::Value::Boolean(true) => all.push(flag),
            toml::Value::Boolean(false) => {}
            toml::Value::Array(values) => values.iter().try_for_each(push)?,
            value => push(value)?,
        }
    }
    let own = args.iter().position(|arg| command.find_subcommand(arg).is_some());
    let nested = own.and_then(|at| {
        let table = table.get(args[at].to_str()?)?.as_table()?;
        Some((at, table, command.find_subcommand(&args[at])?))
    });
    match nested {
        None => all.extend_from_slice(args),
        Some((at, table, command)) => {
            all.extend_from_slice(&args[..=at]);
            all.extend(fill_in(path, table, command, &args[at + 1..])?);
        }
    }
    Ok(all)
}

fn config_path(args: &[OsString]) -> Option<PathBuf> {
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == "--config" {
            return args.next().map(PathBuf::from);
        }
        if let Some(path) = arg.to_str().and_then(|arg| arg.strip_prefix("--config=")) {
            return Some(path.into());
        }
    }
    std::env::var_os("LONGHAUL_CONFIG").map(PathBuf::from)
}

#[cfg(test)]
// Also found from where the fuzz targets include this file.
#[path = "args/tests.rs"]
mod tests;
