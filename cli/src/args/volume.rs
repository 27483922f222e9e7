//! `longhaul volume`.

use super::{KeyArgs, KeyCommand, SnapshotName, YesArg};
use clap::{Args, Subcommand};
use longhaul_base::units;
use std::path::PathBuf;

#[derive(Args)]
pub struct VolumeArgs {
    /// Credential file that the store wrote.
    #[arg(long, global = true, value_name = "FILE", env = "LONGHAUL_CREDENTIAL")]
    pub credential: Option<PathBuf>,
    /// Address of the store, if not the one in the credential (HOST:PORT).
    #[arg(long, global = true, value_name = "HOST:PORT", env = "LONGHAUL_STORE")]
    pub store: Option<String>,
    #[command(flatten)]
    pub keys: KeyArgs,
    /// Print JSON.
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub command: VolumeCommand,
}

#[derive(Subcommand)]
pub enum VolumeCommand {
    /// Create a volume. It takes no space before the first write.
    Create {
        /// Its name: letters, digits, `.`, `_` and `-`. With the admin credential, TENANT/NAME is a
        /// volume of a tenant.
        name: String,
        /// Its size, as in `10GiB`.
        #[arg(long, value_parser = units::bytes)]
        size: u64,
        /// Logical block size in bytes.
        #[arg(long, default_value = "512", value_parser = ["512", "4096"])]
        block_size: String,
        /// Encrypt all that hosts write to it, with data keys that only the --key-file or the
        /// --passphrase-file opens.
        #[arg(long)]
        encrypt: bool,
    },
    /// Encrypt new writes to a volume with a new data key; hosts that have it attached take it up
    /// within half a minute. Older data keeps its key. With --new-key-file, put the data keys under
    /// another key file instead.
    RotateKey {
        /// Which.
        name: String,
        /// Key file that replaces the --key-file of this volume.
        #[arg(long, value_name = "FILE")]
        new_key_file: Option<PathBuf>,
        /// Encrypt data under older data keys anew, and take these from the list once no snapshot
        /// can need them. The command draws a new data key unless an earlier rotation is still
        /// incomplete. If a host has the volume attached, it does the work while clients use the
        /// volume, and the command returns at once. The same command later shows the progress, and
        /// takes the older keys from the list. Otherwise the command does the work itself. After an
        /// interruption, the same command goes on.
        #[arg(long, conflicts_with = "new_key_file")]
        rewrite: bool,
        /// With --rewrite: wait until a host that has the volume attached has done it.
        #[arg(long, requires = "rewrite")]
        wait: bool,
    },
    /// List, add and remove what opens an encrypted volume: key files, passphrases, recovery keys.
    #[command(subcommand)]
    Key(KeyCommand),
    /// List all volumes.
    List {
        /// The deleted ones that can still be restored.
        #[arg(long)]
        deleted: bool,
    },
    /// Show one volume. With --key-file or --passphrase-file, also the content root that the last
    /// host stated of an encrypted one. A host that does not know the volume can expect it
    /// (`longhaul host --expect-root`).
    Show {
        /// Which.
        name: String,
    },
    /// Make a volume larger, also while a host has it attached; or smaller, with --force.
    Resize {
        /// Which.
        name: String,
        /// Its size from now on, as in `20GiB`.
        #[arg(value_parser = units::bytes)]
        size: u64,
        /// Cut off the end of a volume that no host has attached, with what is there. Shrink its
        /// content first: otherwise a file system of the old size is damaged. Snapshots keep their
        /// size.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        yes: YesArg,
    },
    /// Delete a volume. Its name is free at once; its data goes after a day, or what the store's
    /// --delete-grace says, and until then `longhaul volume undelete` brings it back.
    Delete {
        /// Its name; with --now also the name or identity of a deleted one.
        name: String,
        /// Remove its data now: nothing brings it back.
        #[arg(long)]
        now: bool,
        #[command(flatten)]
        yes: YesArg,
    },
    /// Bring a deleted volume back, with its data and its snapshots.
    Undelete {
        /// Its name, or its identity where several had the name; `longhaul volume list --deleted`
        /// shows both.
        volume: String,
        /// Its name from now on [default: the one that it had].
        #[arg(long = "name", value_name = "NAME")]
        new_name: Option<String>,
    },
    /// Create a volume that begins as a snapshot and shares its data. It takes no space before the
    /// first write.
    Clone {
        /// Of which snapshot: VOLUME@SNAPSHOT. It stays as long as the clone does, hidden if it is
        /// deleted.
        snapshot: SnapshotName,
        /// The clone's name: letters, digits, `.`, `_` and `-`.
        name: String,
    },
    /// List the ranges in which a snapshot and a later one, or the volume as it is, differ.
    Diff {
        /// VOLUME@SNAPSHOT.
        since: SnapshotName,
        /// VOLUME@SNAPSHOT or VOLUME, of the same volume; the type in the list is that of its data.
        until: String,
    },
    /// Show the space of a volume and each of its snapshots. The columns are the size for a client,
    /// the stored size, and the part that deleting only that one would free. It also shows stored
    /// data that nothing needs any more. It reads all of their maps.
    Usage {
        /// Which.
        name: String,
    },
    /// Copy a raw image file into a volume. Discards the content of the volume.
    Import {
        /// Into which volume; it must be at least as large as the file and not attached.
        name: String,
        /// The file, or `-` for standard input.
        file: PathBuf,
        #[command(flatten)]
        yes: YesArg,
    },
    /// Copy the committed content of a volume, or a snapshot, into a raw image file.
    Export {
        /// The volume, or VOLUME@SNAPSHOT.
        name: String,
        /// The file to write (sparse), or `-` for standard output.
        file: PathBuf,
        /// Write over a file or device that is there.
        #[arg(long)]
        force: bool,
    },
    /// Show what a host acknowledged and has not delivered: lost, if it never comes back.
    Lost {
        /// Of which volume.
        name: String,
    },
    /// Give up writes that a dead host never delivered, so that another host can attach the volume.
    AcceptLoss {
        /// Of which volume.
        name: String,
        #[command(flatten)]
        yes: YesArg,
    },
}
