//! The flags of `longhaul store`.

use longhaul_base::units;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The flags of `longhaul store`.
#[derive(clap::Args)]
pub struct StoreArgs {
    /// Location of volumes: a directory; `s3://BUCKET/PREFIX`; a blank block device, or a file of
    /// fixed size, as in `file:///dev/sdb`; or `mem://SIZE`. A bucket takes credentials, region and
    /// endpoint as the AWS tools do, from the environment and from profiles. `mem://` is memory of
    /// this process, for measurements only: everything is gone when the process ends. Without a
    /// size it takes half of the machine's memory.
    #[arg(
        long,
        value_name = "DIR|s3://BUCKET/PREFIX|file:///DEVICE|mem://SIZE",
        env = "LONGHAUL_DATA",
        required = true
    )]
    pub data: Option<PathBuf>,
    /// Address for hosts, over UDP, and over TCP where that does not get through; over TCP for
    /// commands and the HTTP API, too.
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:7777", env = "LONGHAUL_LISTEN")]
    pub listen: SocketAddr,
    /// Address to write into credentials, when hosts reach this store under another one than
    /// `--listen` (HOST:PORT).
    #[arg(long, value_name = "HOST:PORT", env = "LONGHAUL_ADVERTISE")]
    pub advertise: Option<String>,
    /// Credentials, lock and scratch [default: the data directory; required where that is none].
    #[arg(long, value_name = "DIR", env = "LONGHAUL_STATE")]
    pub state: Option<PathBuf>,
    /// Threads for the sessions of hosts: each has a share of the links, with their encryption and
    /// their volumes. With one, the main thread does this work, too [default: the processor's
    /// cores, up to 8].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64),
          env = "LONGHAUL_THREADS")]
    pub threads: Option<u16>,
    /// Use threads for local disks, and no io_uring. That happens by itself where the kernel or a
    /// sandbox refuses it.
    #[arg(long, env = "LONGHAUL_NO_IO_URING")]
    pub no_io_uring: bool,
    /// HTTP address for /metrics, /livez, /readyz and /status; `none` for no such listener.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7781", env = "LONGHAUL_ADMIN")]
    pub admin: String,
    /// Name of the admin address in requests, as through a proxy, besides loopback addresses and
    /// `localhost`. Repeat for several.
    #[arg(long, value_name = "NAME", env = "LONGHAUL_ADMIN_HOST", value_delimiter = ',')]
    pub admin_host: Vec<String>,
    /// Cache in front of the objects, for a local disk that is faster than they are: from 64MiB, 0
    /// for none. It gets less where the disk lacks room, and takes 1 MiB of memory for each GiB.
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "0",
        value_parser = units::bytes,
        env = "LONGHAUL_CACHE_SIZE"
    )]
    pub cache_size: u64,
    /// Where that cache is [default: `cache` in the state directory].
    #[arg(long, value_name = "DIR", env = "LONGHAUL_CACHE_DIR")]
    pub cache_dir: Option<PathBuf>,
    /// Memory for the maps of all volumes: recent changes, and pages of the rest, which the store
    /// reads when it needs them. From 1MiB.
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "256MiB",
        value_parser = units::bytes,
        env = "LONGHAUL_MAP_MEMORY"
    )]
    pub map_memory: u64,
    /// Take over data whose stores are gone for good, and their credentials with them: hosts then
    /// need this store's.
    #[arg(long)]
    pub new_ca: bool,
    /// How often the store reads and verifies all objects, in the background; 0 for never. In a
    /// bucket each costs a request.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "30d",
        value_parser = units::duration,
        env = "LONGHAUL_SCRUB_EVERY"
    )]
    pub scrub_every: Duration,
    /// Most that this reads in a second.
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "16MiB",
        value_parser = units::bytes,
        env = "LONGHAUL_SCRUB_RATE"
    )]
    pub scrub_rate: u64,
    /// Free space once the segments of a volume take more than this percentage of their live data.
    /// With 149 the store writes randomly overwritten data about twice. From 110; 0 for never.
    #[arg(long, value_name = "PERCENT", default_value = "149", env = "LONGHAUL_GC_PERCENT")]
    pub gc_percent: u64,
    /// Most that this reads and writes in a second; 0 for no limit.
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "0",
        value_parser = units::bytes,
        env = "LONGHAUL_GC_RATE"
    )]
    pub gc_rate: u64,
    /// How long the store keeps dead objects for readers of an older map, here or at another store.
    /// Tests have less.
    #[arg(
        long,
        hide = true,
        value_name = "DURATION",
        default_value = "10m",
        value_parser = units::duration
    )]
    pub delete_delay: Duration,
    /// How long the data of deleted volumes stays, so that you can restore them; 0 to remove it at
    /// once.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "1d",
        value_parser = units::duration,
        env = "LONGHAUL_DELETE_GRACE"
    )]
    pub delete_grace: Duration,
}

/// Most link threads by default. Memory for their disk operations grows with each.
const LINK_THREADS_MAX: usize = 8;

impl StoreArgs {
    /// The number of link threads.
    pub(super) fn link_threads(&self) -> usize {
        self.threads.map_or_else(
            || {
                let cores = std::thread::available_parallelism().map_or(1, usize::from);
                cores.clamp(1, LINK_THREADS_MAX)
            },
            usize::from,
        )
    }
}
