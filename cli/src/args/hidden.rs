//! Commands that are not for operators: for tests, and to measure.

use clap::{Args, Subcommand};
use longhaul_base::units;
use longhaul_link::Transport;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Args)]
pub struct RelayArgs {
    /// UDP address for hosts.
    #[arg(long, value_name = "ADDR")]
    pub listen: SocketAddr,
    /// UDP address of the store.
    #[arg(long, value_name = "ADDR")]
    pub to: SocketAddr,
    /// One-way delay.
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = units::duration)]
    pub delay: Duration,
    /// Bottleneck in each direction, as in `100Mbit/s` [default: none].
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    pub rate: Option<u64>,
    /// Share of the datagrams to lose, as in `0.1%`.
    #[arg(long, value_name = "SHARE", default_value = "0", value_parser = units::share)]
    pub loss: f64,
    /// Unix socket that takes a command a line: cut, restore, delay TIME, rate RATE, loss SHARE,
    /// status. SIGUSR1 cuts, SIGUSR2 restores.
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
}

#[derive(Args)]
pub struct BenchNullArgs {
    /// NBD address: ADDR:PORT, or unix:PATH.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:10809")]
    pub nbd: String,
    /// iSCSI address as well: ADDR or ADDR:PORT.
    #[arg(long, value_name = "ADDR")]
    pub iscsi: Option<String>,
    /// Size of the volume.
    #[arg(long, default_value = "1GiB", value_parser = units::bytes)]
    pub size: u64,
}

#[derive(Args)]
pub struct BenchLinkArgs {
    /// Credential file that the store wrote.
    #[arg(long, value_name = "FILE")]
    pub credential: PathBuf,
    /// The transport of the link.
    #[arg(long, value_enum, default_value = "auto", global = true)]
    pub transport: Transport,
    #[command(subcommand)]
    pub command: BenchLinkCommand,
}

/// Each prints a JSON object.
#[derive(Subcommand)]
pub enum BenchLinkCommand {
    /// Create volumes, commit so many bytes to each, all at the same time, and detach them.
    Write {
        /// Their names.
        #[arg(required = true)]
        names: Vec<String>,
        /// Bytes of data to each.
        #[arg(long, default_value = "1GiB", value_parser = units::bytes)]
        bytes: u64,
        /// Bytes of a write: a multiple of 4KiB, at most 1MiB.
        #[arg(long, default_value = "64KiB", value_parser = units::bytes)]
        record: u64,
        /// In an order that looks random; else from front to back.
        #[arg(long)]
        random: bool,
        /// Wait for the commit of each write before the next one.
        #[arg(long)]
        one_at_a_time: bool,
        /// Stay attached until SIGTERM or Ctrl-C.
        #[arg(long)]
        hold: bool,
    },
    /// Open sessions, each with a new volume attached, and hold them until SIGTERM or Ctrl-C.
    Hold {
        /// How many.
        #[arg(long, default_value = "10")]
        sessions: usize,
    },
    /// Read 8 KiB at a time from all over a volume.
    Read {
        /// Which.
        name: String,
        /// Bytes from its start to read in.
        #[arg(long, default_value = "1GiB", value_parser = units::bytes)]
        bytes: u64,
        /// How many reads; no place comes twice.
        #[arg(long, default_value = "2000")]
        count: u64,
        /// How many of them at a time.
        #[arg(long, default_value = "1")]
        depth: usize,
    },
}
