//! Keys of encrypted volumes, and volumes that must be encrypted.

use super::YesArg;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// For commands about one volume.
#[derive(Args, Clone, Debug, Default)]
pub struct KeyArgs {
    /// Key file of encrypted volumes (see `longhaul credential new-key`).
    #[arg(long, global = true, value_name = "FILE", env = "LONGHAUL_KEY_FILE")]
    pub key_file: Option<PathBuf>,
    /// File whose first line is the passphrase or the recovery key of an encrypted volume; `-` asks
    /// for it on the terminal.
    #[arg(long, global = true, value_name = "FILE", env = "LONGHAUL_PASSPHRASE_FILE")]
    pub passphrase_file: Option<PathBuf>,
    /// Go on if the store says that the volume is not encrypted, although a key is given.
    #[arg(long, global = true)]
    pub plain: bool,
}

#[derive(Subcommand)]
pub enum KeyCommand {
    /// List what opens a volume. With a key, verify that the store has not changed the list.
    List {
        /// Which volume.
        name: String,
    },
    /// Let something else open a volume, too. Say what opens it now with --key-file or
    /// --passphrase-file.
    Add {
        /// Which volume.
        name: String,
        /// A key file (see `longhaul credential new-key`).
        #[arg(long, value_name = "FILE")]
        new_key_file: Option<PathBuf>,
        /// A passphrase: the first line of this file; `-` asks for it on the terminal.
        #[arg(long, value_name = "FILE", conflicts_with = "new_key_file")]
        new_passphrase_file: Option<PathBuf>,
        /// A recovery key, which the command draws and prints. Nobody keeps it: write it down.
        #[arg(long, conflicts_with_all = ["new_key_file", "new_passphrase_file"])]
        recovery: bool,
    },
    /// Take a key slot away: it opens the volume no more. The last one stays.
    Remove {
        /// Which volume.
        name: String,
        /// Number of the slot, as `longhaul volume key list` shows it.
        slot: u32,
        #[command(flatten)]
        yes: YesArg,
    },
    /// Confirm the new name of a volume that you restored under another one.
    Rebind {
        /// Its name now.
        name: String,
        /// The name that it had when it was encrypted.
        #[arg(long, value_name = "NAME")]
        was: String,
    },
}
