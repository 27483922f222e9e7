//! What opens encrypted volumes, and which volumes have to be encrypted.

use super::YesArg;
use clap::builder::BoolishValueParser;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// For commands about one volume.
#[derive(Args, Clone, Debug, Default)]
pub struct KeyArgs {
    /// Key file of encrypted volumes (see `longhaul credential new-key`).
    #[arg(long, global = true, value_name = "FILE", env = "LONGHAUL_KEY_FILE")]
    pub key_file: Option<PathBuf>,
    /// File whose first line is the passphrase or the recovery key of an encrypted volume; `-` asks for it on the
    /// terminal.
    #[arg(long, global = true, value_name = "FILE", env = "LONGHAUL_PASSPHRASE_FILE")]
    pub passphrase_file: Option<PathBuf>,
    /// Go on if the store says that the volume is not encrypted, although a key is given.
    #[arg(long, global = true)]
    pub plain: bool,
}

/// For a host.
#[derive(Args, Clone, Debug, Default)]
pub struct HostKeyArgs {
    /// Key file of encrypted volumes: of the volume NAME, or of all. Repeat for several. It stays on this host. The
    /// volumes that it is for have to be encrypted (see --plain). A FILE with `=` in its path begins with `./` or `/`.
    #[arg(
        long = "key-file",
        value_name = "[NAME=]FILE",
        env = "LONGHAUL_KEY_FILE",
        value_delimiter = ','
    )]
    pub key_files: Vec<String>,
    /// File whose first line is the passphrase or the recovery key of encrypted volumes, in the same way; `-` asks for
    /// it on the terminal.
    #[arg(
        long = "passphrase-file",
        value_name = "[NAME=]FILE",
        env = "LONGHAUL_PASSPHRASE_FILE",
        value_delimiter = ','
    )]
    pub passphrase_files: Vec<String>,
    /// Attach encrypted volumes only, whatever the store says of them.
    #[arg(long, env = "LONGHAUL_REQUIRE_ENCRYPTION", value_parser = BoolishValueParser::new())]
    pub require_encryption: bool,
    /// Attach this volume only if it is encrypted. Repeat for several.
    #[arg(
        long = "require-encryption-of",
        value_name = "NAME",
        env = "LONGHAUL_REQUIRE_ENCRYPTION_OF",
        value_delimiter = ','
    )]
    pub encrypted: Vec<String>,
    /// Attach this volume although it is not encrypted, beside others that have to be. Repeat for several. A volume that
    /// was attached here encrypted stays so.
    #[arg(long = "plain", value_name = "NAME", env = "LONGHAUL_PLAIN", value_delimiter = ',')]
    pub plain: Vec<String>,
}

#[derive(Subcommand)]
pub enum KeyCommand {
    /// List what opens a volume. With a key, it is verified that the store has not changed the list.
    List {
        /// Which volume.
        name: String,
    },
    /// Let something else open a volume, too. Say what opens it now with --key-file or --passphrase-file.
    Add {
        /// Which volume.
        name: String,
        /// A key file (see `longhaul credential new-key`).
        #[arg(long, value_name = "FILE")]
        new_key_file: Option<PathBuf>,
        /// A passphrase: the first line of this file; `-` asks for it on the terminal.
        #[arg(long, value_name = "FILE", conflicts_with = "new_key_file")]
        new_passphrase_file: Option<PathBuf>,
        /// A recovery key, which is drawn and printed. It is not kept anywhere: write it down.
        #[arg(long, conflicts_with_all = ["new_key_file", "new_passphrase_file"])]
        recovery: bool,
    },
    /// Take a key slot away: what it is for opens the volume no more. The last one stays.
    Remove {
        /// Which volume.
        name: String,
        /// Number of the slot, as `longhaul volume key list` shows it.
        slot: u32,
        #[command(flatten)]
        yes: YesArg,
    },
    /// Say that a volume is meant to have the name that it has, after it was brought back under another one.
    Rebind {
        /// Its name now.
        name: String,
        /// The name that it had when it was encrypted.
        #[arg(long, value_name = "NAME")]
        was: String,
    },
}
