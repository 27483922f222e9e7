//! The commands about the stores of an installation.

use super::YesArg;
use clap::{Args, Subcommand, ValueEnum};
use longhaul_base::units;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Subcommand)]
pub enum StoreCommand {
    /// Show all stores of the installation, and what each of them does.
    List(StoresArgs),
    /// Send the hosts of a store to other stores, wait until all have gone, and keep them away
    /// until its next start.
    Evacuate {
        /// The store, as in `longhaul store list`; or the beginning of that. The one that answers
        /// first by default.
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
    /// Have hosts go from the stores that have more than their share of volumes to those that have
    /// less. Stores do that by themselves too, a host every half minute.
    Rebalance(StoresArgs),
    /// Strike a store that is gone for good off the list, so that nobody tries to reach it any
    /// more, and refuse its certificate. The command refuses one that answers; one that starts
    /// again is on the list again.
    Forget {
        /// The store, as in `longhaul store list`; or the beginning of that.
        id: String,
        #[command(flatten)]
        yes: YesArg,
        #[command(flatten)]
        to: StoresArgs,
    },
    /// Keep a replica of all objects at another site, and show its state.
    ///
    /// The stores repeat all operations on objects there in order, so the replica holds a state
    /// that was here. A store over it with `--data` waits, and `longhaul store failover` orders it
    /// to continue.
    Replica {
        #[command(subcommand)]
        command: ReplicaCommand,
    },
    /// Have a store that waits over a replica go on with the volumes.
    ///
    /// The store fences the former ones: nothing that they do from then on counts, and they end
    /// when they notice. Hosts come by themselves if they know the address of the store
    /// (`longhaul store replica add --standby`).
    Failover {
        /// Address of the store that waits (HOST:PORT).
        standby: String,
        /// Continue with the state from before, where a replica was never complete.
        #[arg(long)]
        force: bool,
        /// Credential file of the installation.
        #[arg(long, value_name = "FILE", env = "LONGHAUL_CREDENTIAL")]
        credential: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print the audit log of a store: who did what, and what came of it, the oldest first.
    Audit {
        /// State directory of the store.
        #[arg(long, value_name = "DIR", env = "LONGHAUL_STATE")]
        state: PathBuf,
        /// Only what happened within this time, as in `2h`.
        #[arg(long, value_name = "TIME", value_parser = units::duration)]
        since: Option<Duration>,
        /// Only actions on behalf of this tenant.
        #[arg(long, value_name = "NAME")]
        tenant: Option<String>,
        /// Find removed, moved or edited lines, and print the hash of the last line. Keep that
        /// elsewhere.
        #[arg(long, conflicts_with_all = ["since", "tenant"])]
        verify: bool,
        /// A hash that an earlier `--verify` printed. Its line must still be there.
        #[arg(long, value_name = "HASH", requires = "verify")]
        head: Option<String>,
        /// Print a JSON object per line.
        #[arg(long)]
        json: bool,
    },
    /// Make a token with which another store joins the installation: once, within an hour, while
    /// this store runs. It has nothing of the CA's key.
    Invite {
        /// The file to write; it must not exist. Standard output without it.
        file: Option<PathBuf>,
        /// State directory of this store.
        #[arg(long, value_name = "DIR", env = "LONGHAUL_STATE")]
        state: PathBuf,
    },
    /// Make the state directory of a store that is to serve the same data as the one that invited
    /// it, which has to run.
    Join {
        /// State directory of the new store.
        #[arg(long, value_name = "DIR", env = "LONGHAUL_STATE")]
        state: PathBuf,
        /// The output of `longhaul store invite`, or `-` for standard input.
        #[arg(default_value = "-")]
        invitation: PathBuf,
    },
}

#[derive(Subcommand)]
pub enum ReplicaCommand {
    /// Show where the replica is, and how far behind it is at the store that answers.
    Show(StoresArgs),
    /// Have a replica from now on, and bring everything there.
    Add {
        /// Where: a directory (with its whole path, reachable from all stores), or
        /// `s3://BUCKET/PREFIX`. Environment variables that begin with LONGHAUL_REPLICA_AWS_ count
        /// for it before those that begin with AWS_.
        location: String,
        /// Do not wait for it: it may be behind, and its missing part is lost with this site.
        /// Without this, the store commits nothing before it is at both places, once the replica is
        /// complete.
        #[arg(long)]
        behind: bool,
        /// Address of a standby there (HOST:PORT), for hosts; repeat for several.
        #[arg(long = "standby", value_name = "HOST:PORT")]
        standby: Vec<String>,
        /// Lose the content that is only there: it served volumes once, and they may have changed
        /// there since.
        #[arg(long)]
        discard: bool,
        #[command(flatten)]
        to: StoresArgs,
    },
    /// Have none any more. Its content stays, and no store can continue from it.
    Remove {
        #[command(flatten)]
        yes: YesArg,
        #[command(flatten)]
        to: StoresArgs,
    },
    /// Wait for it with commits, or do not.
    Mode {
        /// `in-step`: commits wait for the replica; `behind`: they do not.
        mode: ModeArg,
        #[command(flatten)]
        to: StoresArgs,
    },
}

/// Whether commits wait for the replica.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ModeArg {
    /// They do.
    InStep,
    /// They do not.
    Behind,
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
