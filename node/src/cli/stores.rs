//! The commands about the stores of an installation.

use crate::units;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Subcommand)]
pub enum StoreCommand {
    /// Show all stores of the installation, and what each of them does.
    List(StoresArgs),
    /// Send the hosts of a store to other stores, wait until all have gone, and keep them away until it
    /// is started again.
    Drain {
        /// Which store, as `longhaul store list` shows it; or the beginning of that. The one that
        /// answers first if none is named.
        id: Option<String>,
        /// Let hosts come again.
        #[arg(long)]
        off: bool,
        /// How long to wait until all hosts have gone.
        #[arg(long, value_name = "TIME", default_value = "60s", value_parser = units::duration)]
        limit: Duration,
        #[command(flatten)]
        to: StoresArgs,
    },
    /// Have hosts go from the stores that have more than their share of volumes to those that have less.
    /// Stores do that by themselves too, a host every half minute.
    Rebalance(StoresArgs),
    /// Strike a store that is gone for good off the list, so that nobody tries to reach it any more. One that answers is
    /// refused; one that is started again is on the list again.
    Forget {
        /// Which store, as `longhaul store list` shows it; or the beginning of that.
        id: String,
        #[command(flatten)]
        to: StoresArgs,
    },
    /// Print the audit log of a store: who did what, and what came of it, the oldest first.
    Audit {
        /// State directory of the store.
        #[arg(long, value_name = "DIR", env = "LONGHAUL_STATE")]
        state: PathBuf,
        /// Only what happened within this time, as in `2h`.
        #[arg(long, value_name = "TIME", value_parser = units::duration)]
        since: Option<Duration>,
        /// Only what was done on behalf of this tenant.
        #[arg(long, value_name = "NAME")]
        tenant: Option<String>,
        /// Print a JSON object per line.
        #[arg(long)]
        json: bool,
    },
    /// Print what another store needs to serve the same data: the CA with its key, a secret.
    Invite {
        /// State directory of this store.
        #[arg(long, value_name = "DIR", env = "LONGHAUL_STATE")]
        state: PathBuf,
    },
    /// Make the state directory of a store that is to serve the same data as the one that invited it.
    Join {
        /// State directory of the new store.
        #[arg(long, value_name = "DIR", env = "LONGHAUL_STATE")]
        state: PathBuf,
        /// What `longhaul store invite` printed, or `-` for standard input.
        #[arg(default_value = "-")]
        invitation: PathBuf,
    },
}

#[derive(Args)]
pub struct StoresArgs {
    /// Credential file that the store wrote.
    #[arg(long, value_name = "FILE", env = "LONGHAUL_CREDENTIAL")]
    pub credential: PathBuf,
    /// Address of the store, if not the one in the credential (HOST:PORT).
    #[arg(long, value_name = "HOST:PORT", env = "LONGHAUL_STORE")]
    pub store: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}
