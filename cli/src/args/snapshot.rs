//! `longhaul snapshot`.

use super::{KeyArgs, YesArg};
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::str::FromStr;

/// `VOLUME@SNAPSHOT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotName {
    /// Of which volume.
    pub volume: String,
    /// Its own name.
    pub snapshot: String,
}

impl FromStr for SnapshotName {
    type Err = String;

    fn from_str(text: &str) -> Result<SnapshotName, String> {
        match text.split_once('@') {
            Some((volume, snapshot)) if !volume.is_empty() && !snapshot.is_empty() => {
                Ok(SnapshotName { volume: volume.to_owned(), snapshot: snapshot.to_owned() })
            }
            _ => Err("a snapshot is named VOLUME@SNAPSHOT, as in `db@monday`".to_owned()),
        }
    }
}

impl std::fmt::Display for SnapshotName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", self.volume, self.snapshot)
    }
}

#[derive(Args)]
pub struct SnapshotArgs {
    /// Credential file that the store wrote.
    #[arg(long, global = true, value_name = "FILE", env = "LONGHAUL_CREDENTIAL")]
    pub credential: Option<PathBuf>,
    /// Address of the store, if not the one in the credential (HOST:PORT).
    #[arg(long, global = true, value_name = "HOST:PORT", env = "LONGHAUL_STORE")]
    pub store: Option<String>,
    /// Print JSON.
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub command: SnapshotCommand,
}

#[derive(Subcommand)]
pub enum SnapshotCommand {
    /// Take a snapshot, at once and while the volume is in use. It holds everything that the host
    /// that has the volume attached has acknowledged so far: what a power cut of the client would
    /// leave.
    Create {
        /// VOLUME@SNAPSHOT; the name of a snapshot has letters, digits, `.`, `_` and `-`.
        snapshot: SnapshotName,
        /// Take it of what the store has, and do not wait for what the host has not delivered.
        /// Waiting has that delivered at once, beyond the --drain-rate of the host.
        #[arg(long)]
        no_barrier: bool,
    },
    /// List the snapshots of a volume, or of all, the oldest first.
    List {
        /// Of which volume.
        volume: Option<String>,
    },
    /// Delete snapshots, in any order. The store frees space that nothing else needs.
    Delete {
        /// VOLUME@SNAPSHOT.
        #[arg(required = true)]
        snapshots: Vec<SnapshotName>,
        #[command(flatten)]
        yes: YesArg,
    },
    /// Have the store take snapshots by the clock, and delete the oldest of them; or show how. The
    /// store takes them of its own content, while a host uses the volume and if something changed.
    /// Their names have the hour, day, week (from Monday) or month that has begun, in UTC.
    Schedule {
        /// Of which volume.
        volume: String,
        /// How many to keep, as in `hourly=24,daily=7,weekly=4,monthly=12`, or `none`.
        schedule: Option<String>,
    },
    /// Write a snapshot as a stream, for `longhaul snapshot receive`: all of it, or the changes
    /// since an earlier one. The stream is not encrypted, also if the volume is.
    Send {
        /// VOLUME@SNAPSHOT.
        snapshot: SnapshotName,
        /// The file to write, or `-` for standard output.
        file: PathBuf,
        /// Name of an earlier snapshot of the volume, which the receiver has.
        #[arg(long, value_name = "SNAPSHOT")]
        since: Option<String>,
        /// Write over a file or device that is there.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        keys: KeyArgs,
    },
    /// Make a volume what a stream of `longhaul snapshot send` says, and take the same snapshot of
    /// it. A stream since an earlier snapshot goes into a volume that has received that one and has
    /// not been written to. Any other discards the content of the volume.
    Receive {
        /// Into which volume; no host may have it attached.
        volume: String,
        /// The file to read, or `-` for standard input.
        file: PathBuf,
        #[command(flatten)]
        keys: KeyArgs,
        #[command(flatten)]
        yes: YesArg,
    },
    /// Make a volume what it was at a snapshot. Later writes are gone, unless another snapshot has
    /// them. No host may have the volume attached.
    Rollback {
        /// VOLUME@SNAPSHOT.
        snapshot: SnapshotName,
        #[command(flatten)]
        yes: YesArg,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_snapshots() {
        let name: SnapshotName = "db.1@monday".parse().unwrap();
        assert_eq!((name.volume.as_str(), name.snapshot.as_str()), ("db.1", "monday"));
        assert_eq!(name.to_string(), "db.1@monday");
        for bad in ["", "db", "@", "@a", "a@"] {
            assert!(bad.parse::<SnapshotName>().unwrap_err().contains("VOLUME@SNAPSHOT"), "{bad}");
        }
    }
}
