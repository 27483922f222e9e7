//! The flags of `longhaul host`.

use crate::accepted::{AcceptedRollback, RootExpectation};
use crate::schedule::Schedule;
use clap::ValueEnum;
use clap::builder::BoolishValueParser;
use longhaul_base::pattern::Pattern;
use longhaul_base::units;
use longhaul_core::pack::Compression;
use longhaul_link::Transport;
use std::path::PathBuf;
use std::time::Duration;

/// The flags about journals.
#[derive(clap::Args)]
pub struct JournalArgs {
    /// Block device for the journals, instead of files in --state: a partition, a logical volume,
    /// or a file that has its size. A blank one becomes this host's, with room for journals of
    /// --journal-size.
    #[arg(long, value_name = "DEVICE", env = "LONGHAUL_JOURNAL")]
    pub journal: Option<PathBuf>,
    /// Journal of each volume: the writes that it can take without the store.
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "1GiB",
        value_parser = units::bytes,
        env = "LONGHAUL_JOURNAL_SIZE"
    )]
    pub journal_size: u64,
}

/// The flags of `longhaul host`.
#[derive(clap::Args)]
pub struct HostArgs {
    /// Credential file that the store wrote (STATE/credentials/admin.toml there).
    #[arg(long, value_name = "FILE", env = "LONGHAUL_CREDENTIAL")]
    pub credential: PathBuf,
    /// Journals and identity of this host. Keep it on a disk that survives.
    #[arg(long, value_name = "DIR", env = "LONGHAUL_STATE")]
    pub state: PathBuf,
    /// Address of the store, if not the one in the credential (HOST:PORT).
    #[arg(long, value_name = "HOST:PORT", env = "LONGHAUL_STORE")]
    pub store: Option<String>,
    /// The transport of the link: QUIC over UDP, or TLS over TCP. `auto` takes TCP only where QUIC
    /// does not get through, and QUIC again once it does.
    #[arg(long, value_enum, default_value = "auto", env = "LONGHAUL_TRANSPORT")]
    pub transport: Transport,
    /// The NBD server.
    #[command(flatten)]
    pub nbd_args: NbdArgs,
    /// iSCSI address: ADDR or ADDR:PORT (default port 3260). Repeat for several. Initiators on
    /// other machines may use nothing before `longhaul iscsi allow` or the config file names them.
    #[arg(long, value_name = "ADDR", env = "LONGHAUL_ISCSI", value_delimiter = ',')]
    pub iscsi: Vec<String>,
    /// The admin address.
    #[command(flatten)]
    pub admin_args: AdminArgs,
    /// The volumes to attach.
    #[command(flatten)]
    pub volume_args: VolumeArgs,
    /// The journals.
    #[command(flatten)]
    pub journal_args: JournalArgs,
    /// Read cache of each volume on the disk of --state, from 64MiB; 0 for none. It gets less where
    /// the disk lacks room, and takes 1 MiB of memory for each GiB.
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "0",
        value_parser = units::bytes,
        env = "LONGHAUL_CACHE_SIZE"
    )]
    pub cache_size: u64,
    /// The condition for a flush: the journal on this host's disk, the store, or the store and its
    /// replica. Without a replica, the last is the store.
    #[arg(long, value_enum, default_value = "host", env = "LONGHAUL_DURABILITY")]
    pub durability: DurabilityArg,
    /// When the journal's disk fails: go on with every flush waiting for the store, or stop.
    #[arg(long, value_enum, default_value = "continue", env = "LONGHAUL_ON_JOURNAL_FAILURE")]
    pub on_journal_failure: OnJournalFailureArg,
    /// Without journal and cache: every write waits for the store.
    #[arg(long, env = "LONGHAUL_WRITE_THROUGH", value_parser = BoolishValueParser::new())]
    pub write_through: bool,
    /// Compression of new writes: none, lz4, zstd or zstd:LEVEL (1 to 19).
    #[arg(long, value_name = "METHOD", default_value = "none", env = "LONGHAUL_COMPRESSION")]
    pub compression: Compression,
    /// Keys of encrypted volumes.
    #[command(flatten)]
    pub keys: KeyArgs,
    /// The state of encrypted volumes.
    #[command(flatten)]
    pub roots: RootArgs,
    /// Memory of each volume for read-ahead; 0 for none, not even on a client's request. It should
    /// be twice the bandwidth times the round trip [default: 32MiB, or 0 with --write-through].
    #[arg(long, value_name = "SIZE", value_parser = units::bytes, env = "LONGHAUL_READAHEAD")]
    pub readahead: Option<u64>,
    /// Limits of volumes that no command has given others.
    #[command(flatten)]
    pub rates: RateArgs,
    /// At each attach of a volume, read its trace of this name ahead, if it has one
    /// (`longhaul trace record`).
    #[arg(long, value_name = "NAME", env = "LONGHAUL_WARM")]
    pub warm: Option<String>,
    /// The process.
    #[command(flatten)]
    pub process: ProcessArgs,
}

/// The process.
#[derive(clap::Args)]
pub struct ProcessArgs {
    /// Front threads: each serves some of the volumes, and has a link of its own. A thread starts
    /// with its first volume [default: the processor's cores, up to 8].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64),
          env = "LONGHAUL_THREADS")]
    pub threads: Option<u16>,
    /// Use threads for local disks, and no io_uring. That happens by itself where the kernel or a
    /// sandbox refuses it.
    #[arg(long, env = "LONGHAUL_NO_IO_URING")]
    pub no_io_uring: bool,
    /// How long to go on draining after SIGTERM; the rest stays in the journal.
    #[arg(
        long,
        value_name = "TIME",
        default_value = "10s",
        value_parser = units::duration,
        env = "LONGHAUL_DRAIN_LIMIT"
    )]
    pub drain_limit: Duration,
}

/// The NBD server.
#[derive(clap::Args)]
pub struct NbdArgs {
    /// NBD address: ADDR:PORT, or unix:PATH. Repeat for several.
    #[arg(long, value_name = "ADDR", env = "LONGHAUL_NBD", value_delimiter = ',')]
    pub nbd: Vec<String>,
    /// Certificate chain (PEM) of the NBD server. With it NBD requires TLS of clients; off loopback
    /// it is mandatory.
    #[arg(long, value_name = "FILE", env = "LONGHAUL_NBD_TLS_CERT", requires = "nbd_tls_key")]
    pub nbd_tls_cert: Option<PathBuf>,
    /// Private key (PEM) of the NBD server.
    #[arg(long, value_name = "FILE", env = "LONGHAUL_NBD_TLS_KEY", requires = "nbd_tls_cert")]
    pub nbd_tls_key: Option<PathBuf>,
    /// CA (PEM) of NBD clients' certificates; off loopback it is mandatory.
    #[arg(long, value_name = "FILE", env = "LONGHAUL_NBD_TLS_CA", requires = "nbd_tls_cert")]
    pub nbd_tls_ca: Option<PathBuf>,
}

/// The admin address.
#[derive(clap::Args)]
pub struct AdminArgs {
    /// HTTP address for /metrics, /livez, /readyz, /status and the commands of a host, as `longhaul
    /// attach`; `none` for no such listener.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7780", env = "LONGHAUL_ADMIN")]
    pub admin: String,
    /// Name of the admin address in requests, as through a proxy, besides loopback addresses and
    /// `localhost`. Repeat for several.
    #[arg(long, value_name = "NAME", env = "LONGHAUL_ADMIN_HOST", value_delimiter = ',')]
    pub admin_host: Vec<String>,
}

/// The volumes to attach.
#[derive(clap::Args)]
pub struct VolumeArgs {
    /// Attach this volume at start. Repeat for several. The host also attaches volumes that
    /// `longhaul attach` named and those with undelivered writes here; clients find no others.
    #[arg(long = "volume", value_name = "NAME", env = "LONGHAUL_VOLUME", value_delimiter = ',')]
    pub volumes: Vec<String>,
    /// Attach volumes whose names match when a client connects to them (NBD_OPT_GO, or a login over
    /// iSCSI): `*` is any text, `?` any one character. Repeat for several. It never takes a volume
    /// that another host has, and looking attaches nothing.
    #[arg(long, value_name = "PATTERN", env = "LONGHAUL_ATTACH_ON_DEMAND", value_delimiter = ',')]
    pub attach_on_demand: Vec<Pattern>,
}

/// The state of encrypted volumes.
#[derive(clap::Args)]
pub struct RootArgs {
    /// Believe the store's present state of this encrypted volume, although this host left another
    /// one. Use it after you rolled the volume back, made it smaller, or gave up losses. The
    /// refused attach says the token. Repeat for several.
    #[arg(long, value_name = "NAME=TOKEN")]
    pub accept_rollback: Vec<AcceptedRollback>,
    /// Attach this encrypted volume, of which this host knows nothing, only if all of it is what
    /// the root HASH is of (`longhaul volume show NAME --key-file FILE`). The host reads all its
    /// data first. With `any`, the host learns the store's content in the same way, and believes
    /// nothing else later. With one `--volume`, you can leave `NAME=` out. Repeat for several.
    #[arg(long, value_name = "NAME=HASH")]
    pub expect_root: Vec<RootExpectation>,
}

/// Limits of volumes that no command has given others.
#[derive(clap::Args)]
pub struct RateArgs {
    /// Most that each volume may send to the store, as in `20Mbit/s`, or by time of day as in
    /// `50Mbit/s,08:00-18:00=5Mbit/s`. Requests that a client or a snapshot waits for are not held
    /// back.
    #[arg(
        long,
        value_name = "RATE",
        default_value = "none",
        value_parser = Schedule::parse,
        env = "LONGHAUL_DRAIN_RATE"
    )]
    pub drain_rate: Schedule,
    /// Most that each volume may read ahead, in the same words.
    #[arg(
        long,
        value_name = "RATE",
        default_value = "none",
        value_parser = Schedule::parse,
        env = "LONGHAUL_READAHEAD_RATE"
    )]
    pub readahead_rate: Schedule,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DurabilityArg {
    /// Local stable storage.
    Host,
    /// Committed by the store.
    Store,
    /// Committed by the store, at both places of its objects where there are two (`longhaul store
    /// replica`).
    Replica,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnJournalFailureArg {
    /// In `store` durability, from memory.
    Continue,
    /// Fail all requests.
    Stop,
}

/// Keys of encrypted volumes, and which volumes have to be encrypted.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct KeyArgs {
    /// Key file of encrypted volumes: of the volume NAME, or of all. Repeat for several. It stays
    /// on this host. The volumes that it is for have to be encrypted (see --plain). A FILE with `=`
    /// in its path begins with `./` or `/`.
    #[arg(
        long = "key-file",
        value_name = "[NAME=]FILE",
        env = "LONGHAUL_KEY_FILE",
        value_delimiter = ','
    )]
    pub key_files: Vec<String>,
    /// File whose first line is the passphrase or the recovery key of encrypted volumes, in the
    /// same way; `-` asks for it on the terminal.
    #[arg(
        long = "passphrase-file",
        value_name = "[NAME=]FILE",
        env = "LONGHAUL_PASSPHRASE_FILE",
        value_delimiter = ','
    )]
    pub passphrase_files: Vec<String>,
    /// Attach encrypted volumes only, whatever the store says of them.
    #[arg(long, env = "LONGHAUL_REQUIRE_ENCRYPTION", value_parser = BoolishValueParser::new())]
    pub require_encryption: bool,
    /// Attach this volume only if it is encrypted. Repeat for several.
    #[arg(
        long = "require-encryption-of",
        value_name = "NAME",
        env = "LONGHAUL_REQUIRE_ENCRYPTION_OF",
        value_delimiter = ','
    )]
    pub encrypted: Vec<String>,
    /// Attach this volume although it is not encrypted, beside others that have to be. Repeat for
    /// several. A volume that was attached here encrypted stays so.
    #[arg(long = "plain", value_name = "NAME", env = "LONGHAUL_PLAIN", value_delimiter = ',')]
    pub plain: Vec<String>,
}
