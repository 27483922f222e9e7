//! `longhaul-lab`: measures longhaul against its peers on one machine.
//!
//! Every figure is a ratio between two things in the same run, in turn (A B A B …). The report has
//! the median over the rounds. It also prints absolute numbers, for orientation: they say more
//! about the machine than about the product.

mod bench;
mod bucket;
mod charts;
mod costs;
mod fio;
mod gc;
mod html;
mod initiator;
mod iscsi;
mod machine;
mod map;
mod memory;
mod model;
mod node;
mod page;
mod papers;
mod plot;
mod process;
mod quiet;
mod report;
mod results;
mod rounds;
mod run;
mod scenario;
mod stages;
mod stats;
mod store;
mod suite;
mod threads;
mod verdict;
mod wan;

use anyhow::Result;
// The product's own reading of human units: both have to read them alike.
use clap::{Parser, Subcommand};
use longhaul_base::units;
use std::path::PathBuf;
use std::process::ExitCode;

/// Measures longhaul against its peers.
#[derive(Parser)]
#[command(name = "longhaul-lab", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the benchmarks of docs/performance.md, all or some, and write a report.
    Bench(BenchArgs),
    /// Those of the iSCSI target only, beside tgt, over loopback.
    BenchIscsi(BenchArgs),
    /// Those of the store only, mostly without a host, beside the disk it writes to.
    BenchStore(BenchArgs),
    /// Measure the store's map by itself: memory, what is written for it, and lookups.
    BenchMap(map::MapArgs),
    /// An emulated WAN between two network namespaces: for a shell, a command, or its own check.
    Wan(wan::cli::WanArgs),
    /// Run scenarios over an emulated WAN, longhaul and its peers in turn, and report.
    Run(run::RunArgs),
    /// Write the reports again, of results that are there.
    Report(run::ReportArgs),
}

/// Options of all benchmarks.
#[derive(clap::Args)]
pub struct BenchArgs {
    /// The binary to measure [default: `longhaul` beside this program].
    #[arg(long, value_name = "FILE")]
    longhaul: Option<PathBuf>,
    /// An earlier `longhaul`: `bench before` compares the empty loop of both.
    #[arg(long, value_name = "FILE")]
    before: Option<PathBuf>,
    /// Directory on the disk to measure on, and for the report; it needs about 12 GiB.
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    dir: PathBuf,
    /// Rounds of each measurement.
    #[arg(long, default_value = "5")]
    rounds: usize,
    /// Seconds of each measurement [default: 4, for iSCSI 1].
    #[arg(long)]
    seconds: Option<u32>,
    /// The share of the machine that others may take in a round that counts.
    #[arg(long, value_name = "PERCENT", default_value = "10")]
    busy_limit: u8,
    /// How often a round is repeated in which the machine was busier.
    #[arg(long, value_name = "TIMES", default_value = "2")]
    retries: usize,
    /// After this time no part begins, and no round is repeated.
    #[arg(long, value_name = "MINUTES", default_value = "120")]
    minutes: u64,
    /// Append each result as a JSON line.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Only these parts, as in `host flush iscsi store-commit`; a wrong name prints all names.
    only: Vec<String>,
}

fn main() -> Result<ExitCode> {
    match Cli::parse().command {
        Command::Bench(args) => suite::run(&args, "")?,
        Command::BenchIscsi(args) => suite::run(&args, "iscsi-")?,
        Command::BenchMap(args) => map::run(&args)?,
        Command::BenchStore(args) => suite::run(&args, "store-")?,
        Command::Wan(args) => return wan::cli::run(&args),
        Command::Run(args) => return run::run(&args),
        Command::Report(args) => return run::report(&args),
    }
    Ok(ExitCode::SUCCESS)
}
