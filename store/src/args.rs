//! The flags of `longhaul store`.

use longhaul_base::units;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The flags of `longhaul store`.
#[derive(clap::Args)]
pub struct StoreArgs {
    /// Where volumes are kept: a directory; `s3://BUCKET/PREFIX`, with credentials, region and endpoint as
    /// the AWS tools take them from the environment and from profiles; a blank block device, or a file of
    /// fixed size, as in `file:///dev/sdb`; or `mem://SIZE`, memory of this process, to measure with: half of
    /// the machine's if no size is given, and everything is gone when the process ends.
    #[arg(
        long,
        value_name = "DIR|s3://BUCKET/PREFIX|file:///DEVICE|mem://SIZE",
        env = "LONGHAUL_DATA",
        required = true
    )]
    pub data: Option<PathBuf>,
    /// Address for hosts, over UDP, and over TCP where that does not get through; over TCP for commands and the HTTP API, too.
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:7777", env = "LONGHAUL_LISTEN")]
    pub listen: SocketAddr,
    /// Address to write into credentials, when hosts reach this store under another one than
    /// `--listen` (HOST:PORT).
    #[arg(long, value_name = "HOST:PORT", env = "LONGHAUL_ADVERTISE")]
    pub advertise: Option<String>,
    /// Credentials, lock and scratch [default: the data directory; required where that is none].
    #[arg(long, value_name = "DIR", env = "LONGHAUL_STATE")]
    pub state: Option<PathBuf>,
    /// HTTP address for /metrics, /livez, /readyz and /status; `none` for no such listener.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7781", env = "LONGHAUL_ADMIN")]
    pub admin: String,
    /// Name under which the admin address may be asked for, as through a proxy, besides loopback addresses and
    /// `localhost`. Repeat for several.
    #[arg(long, value_name = "NAME", env = "LONGHAUL_ADMIN_HOST", value_delimiter = ',')]
    pub admin_host: Vec<String>,
    /// Cache in front of the objects, for a local disk that is faster than they are: from 64MiB, 0 for
    /// none. It is given less where there is not enough room, and takes 1 MiB of memory for each GiB.
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = units::bytes, env = "LONGHAUL_CACHE_SIZE")]
    pub cache_size: u64,
    /// Where that cache is [default: `cache` in the state directory].
    #[arg(long, value_name = "DIR", env = "LONGHAUL_CACHE_DIR")]
    pub cache_dir: Option<PathBuf>,
    /// Memory for the maps of all volumes, which say what lies where: what has changed lately, and pages
    /// of the rest, which are read when they are needed. From 1MiB.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = units::bytes, env = "LONGHAUL_MAP_MEMORY")]
    pub map_memory: u64,
    /// Take over data whose stores are gone for good, and their credentials with them: hosts then need
    /// this store's.
    #[arg(long)]
    pub new_ca: bool,
    /// How often all objects are read and verified, in the background; 0 for never. In a bucket each costs a
    /// request.
    #[arg(long, value_name = "DURATION", default_value = "30d", value_parser = units::duration, env = "LONGHAUL_SCRUB_EVERY")]
    pub scrub_every: Duration,
    /// Most that this reads in a second.
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = units::bytes, env = "LONGHAUL_SCRUB_RATE")]
    pub scrub_rate: u64,
    /// Give space back once the segments of a volume take more than so many percent of what is needed of them:
    /// with 149 what is overwritten at random is written about twice. From 110; 0 for never.
    #[arg(long, value_name = "PERCENT", default_value = "149", env = "LONGHAUL_GC_PERCENT")]
    pub gc_percent: u64,
    /// Most that this reads and writes in a second; 0 for no limit.
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = units::bytes, env = "LONGHAUL_GC_RATE")]
    pub gc_rate: u64,
    /// How long what is not needed any more stays for who reads by an older map, here or at another store. Tests have
    /// less.
    #[arg(long, hide = true, value_name = "DURATION", default_value = "10m", value_parser = units::duration)]
    pub delete_delay: Duration,
    /// For how long the data of deleted volumes stays, so that they can be brought back; 0 to remove it at once.
    #[arg(long, value_name = "DURATION", default_value = "1d", value_parser = units::duration, env = "LONGHAUL_DELETE_GRACE")]
    pub delete_grace: Duration,
}
