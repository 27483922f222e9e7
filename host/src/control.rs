//! The commands that a running host takes.

use longhaul_base::span::Span;
use serde::{Deserialize, Serialize};

/// The commands.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostCommand {
    /// Attach a volume.
    Attach {
        /// Which.
        volume: String,
        /// Also if another connected host has it.
        take_over: bool,
    },
    /// The command that asked for the volume does not wait any more.
    CancelAttach {
        /// Which volume.
        volume: String,
    },
    /// Detach a volume if the store has everything of it, or give up to attach it.
    Detach {
        /// Which.
        volume: String,
        /// Free its journal also if the store may not have everything.
        drop_undelivered: bool,
    },
    /// Other limits for a volume until this host stops. A missing limit stays as it is.
    Limit {
        /// Which.
        volume: String,
        /// As [`super::schedule::Schedule::parse`] takes it.
        drain_rate: Option<String>,
        /// As [`super::schedule::Schedule::parse`] takes it.
        readahead_rate: Option<String>,
    },
    /// Record what clients read.
    Record {
        /// Of which volume.
        volume: String,
        /// Of the trace.
        name: String,
    },
    /// Keep the recorded trace, or end a replay.
    Stop {
        /// Of which volume.
        volume: String,
    },
    /// Read a trace ahead.
    Replay {
        /// Of which volume.
        volume: String,
        /// Of the trace.
        name: String,
    },
    /// Keep ranges in the read cache.
    Pin {
        /// Of which volume.
        volume: String,
        /// Which.
        ranges: Vec<Span>,
    },
    /// No longer keep them there.
    Unpin {
        /// Of which volume.
        volume: String,
        /// Which.
        ranges: Vec<Span>,
    },
    /// Bring ranges into the read cache.
    Warm {
        /// Of which volume.
        volume: String,
        /// Which.
        ranges: Vec<Span>,
    },
    /// End the warming.
    StopWarming {
        /// Of which volume.
        volume: String,
    },
    /// Forget a trace.
    Delete {
        /// Of which volume.
        volume: String,
        /// Of the trace.
        name: String,
    },
}

impl HostCommand {
    /// The volume that it is about.
    #[must_use]
    pub fn volume(&self) -> &str {
        match self {
            HostCommand::Attach { volume, .. }
            | HostCommand::CancelAttach { volume }
            | HostCommand::Detach { volume, .. }
            | HostCommand::Limit { volume, .. }
            | HostCommand::Record { volume, .. }
            | HostCommand::Stop { volume }
            | HostCommand::Replay { volume, .. }
            | HostCommand::Pin { volume, .. }
            | HostCommand::Unpin { volume, .. }
            | HostCommand::Warm { volume, .. }
            | HostCommand::StopWarming { volume }
            | HostCommand::Delete { volume, .. } => volume,
        }
    }
}
