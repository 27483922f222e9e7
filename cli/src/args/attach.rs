//! `longhaul attach` and `longhaul detach`.

use super::YesArg;
use clap::Args;

#[derive(Args)]
pub struct AttachArgs {
    /// Admin address of the host.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7780", env = "LONGHAUL_ADMIN")]
    pub admin: String,
    /// The volume, or VOLUME@SNAPSHOT. It stays attached, also after restarts of the host, until
    /// `longhaul detach`.
    pub name: String,
    /// Take it from another host, even from a connected one: the store fences that host, and its
    /// undelivered writes are lost.
    #[arg(long)]
    pub take_over: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct DetachArgs {
    /// Admin address of the host.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7780", env = "LONGHAUL_ADMIN")]
    pub admin: String,
    /// Which volume. Disconnect its clients first. Without a link to the store this waits; Ctrl-C
    /// leaves the volume as it was.
    pub name: String,
    /// Give up the undelivered writes of a volume that is not attached and never will be.
    #[arg(long)]
    pub drop_undelivered: bool,
    #[command(flatten)]
    pub yes: YesArg,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}
