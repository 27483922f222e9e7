//! The commands about credentials.

use super::YesArg;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

#[derive(Args)]
pub struct CredentialArgs {
    #[command(subcommand)]
    pub command: CredentialCommand,
}

#[derive(Subcommand)]
pub enum CredentialCommand {
    /// Write a new admin.toml and a new certificate of the store, and refuse the old ones from now
    /// on. Credentials that were issued by name stay. A running store notices.
    Rotate {
        /// State directory of the store.
        #[arg(long, value_name = "DIR", env = "LONGHAUL_STATE")]
        state: PathBuf,
    },
    /// Make a credential for one host or one operator: it has a role for the volumes of its
    /// patterns, and knows of no others. A running store notices.
    Issue {
        /// The role. `read`: list, show and export. `write`, for hosts: also attach, and take and
        /// delete snapshots. `admin`: everything; with all volumes and no tenant also tenants and
        /// stores.
        #[arg(long, value_enum)]
        role: RoleArg,
        /// Names of volumes, with `*` for any characters but `/`; may be given several times.
        #[arg(long = "volumes", value_name = "PATTERN", default_value = "*")]
        volumes: Vec<String>,
        /// For volumes of this tenant; `longhaul tenant create` makes the tenant.
        #[arg(long, value_name = "NAME")]
        tenant: Option<String>,
        /// Its name. The audit log names it, and `revoke` takes it.
        #[arg(long, value_name = "NAME")]
        name: String,
        /// State directory of the store.
        #[arg(long, value_name = "DIR", env = "LONGHAUL_STATE")]
        state: PathBuf,
        /// The file to write; it must not exist.
        file: PathBuf,
    },
    /// Refuse credentials from now on. A running store notices, and ends their sessions.
    Revoke {
        /// Serial number or name of the one, as `longhaul credential list` shows it.
        #[arg(value_name = "SERIAL|NAME", required_unless_present = "tenant")]
        which: Option<String>,
        /// All of this tenant.
        #[arg(long, value_name = "NAME", conflicts_with = "which")]
        tenant: Option<String>,
        /// State directory of the store.
        #[arg(long, value_name = "DIR", env = "LONGHAUL_STATE")]
        state: PathBuf,
        #[command(flatten)]
        yes: YesArg,
    },
    /// List the certificates that a store accepts, those of stores too, and what each is good for.
    List {
        /// State directory of the store.
        #[arg(long, value_name = "DIR", env = "LONGHAUL_STATE")]
        state: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Draw a key for encrypted volumes and write it to a file that only its owner may read.
    NewKey {
        /// The file; it must not exist.
        file: PathBuf,
    },
    /// Write what a credential file holds as the files that other programs take, to use the HTTP
    /// API: ca.pem, certificate.pem and key.pem.
    Unpack {
        /// The file.
        file: PathBuf,
        /// The directory; the command makes it.
        dir: PathBuf,
    },
    /// Write the addresses of all stores that there are into a credential file, instead of those
    /// that it has. Commands add those that they learn of by themselves.
    Refresh {
        /// The file.
        #[arg(env = "LONGHAUL_CREDENTIAL")]
        file: PathBuf,
    },
    /// Have another certificate signed for the key of a credential before it expires, and write it
    /// into the file.
    Renew {
        /// The file.
        #[arg(env = "LONGHAUL_CREDENTIAL")]
        file: PathBuf,
    },
    /// Show what a credential file says and when it expires.
    Show {
        /// The file.
        file: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

/// The role of a credential.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RoleArg {
    /// List, show and export.
    Read,
    /// Also attach, and take and delete snapshots.
    Write,
    /// Everything.
    Admin,
}
