//! `longhaul nbd`.

use clap::{Args, Subcommand};

#[derive(Args)]
pub struct NbdArgs {
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
    pub command: NbdCommand,
}

#[derive(Subcommand)]
pub enum NbdCommand {
    /// Let a client use a volume, from now on and after every restart. After the first grant for a
    /// volume, others may not use it, wherever they connect.
    Allow {
        /// Which volume.
        volume: String,
        /// `uid:NUMBER`, a user of this machine over a unix socket; or `cert:NAME`, whoever shows a
        /// certificate with this common name or alternative name.
        client: String,
    },
    /// Withdraw that; its connections end. When no client is left, nobody may use the volume:
    /// `open` ends its list.
    Deny {
        /// Which volume.
        volume: String,
        /// The client, as in `allow`.
        client: String,
    },
    /// End the list of a volume: whoever reaches an address may use it, from now on.
    Open {
        /// Which volume.
        volume: String,
    },
    /// Show who may use what.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}
