//! Attachments, and reasons for their refusal.

use super::ids::HostId;
use super::principal::KeyId;
use crate::block::{Epoch, Seq, VolumeId};
use serde::{Deserialize, Serialize};

/// The facts about a host's journal when the host attaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalState {
    /// The volume it belongs to.
    pub volume: VolumeId,
    /// The newest epoch it has written in.
    pub epoch: Epoch,
    /// The last number that it holds or knows to be committed.
    pub last: Seq,
}

/// A granted attachment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    /// Which volume.
    pub volume: VolumeId,
    /// Its size in sectors now; it may grow.
    pub sectors: u64,
    /// Logical block size in bytes: 512 or 4096.
    pub block_bytes: u32,
    /// The host's epoch.
    pub epoch: Epoch,
    /// The last committed number: the host sends the rest of the journal from here.
    pub committed: Seq,
}

/// The reason why a host cannot attach a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum AttachError {
    /// No volume of that name or identity.
    #[error("no such volume; `longhaul volume list` shows the existing ones")]
    NotFound,
    /// A host acknowledged writes that never arrived.
    #[error(
        "host {host} acknowledged writes to {bytes} bytes that never arrived: start it again, or \
         bring its state directory here; or see `longhaul volume lost` and give them up with \
         `longhaul volume accept-loss`"
    )]
    LossPending {
        /// Whose writes.
        host: HostId,
        /// Bytes in the announced ranges.
        bytes: u64,
    },
    /// Another epoch went on without the writes that this journal holds.
    #[error(
        "the journal holds writes {from}..={to} of epoch {epoch}, but the volume went on without \
         them: move the journal away to keep them for salvage, or delete it to give them up"
    )]
    Diverged {
        /// The journal's epoch.
        epoch: Epoch,
        /// First number that the other epoch left behind.
        from: Seq,
        /// Last number the journal holds.
        to: Seq,
    },
    /// The epoch to resume is over.
    #[error("fenced: epoch {epoch} of this volume has begun on host {host}")]
    Fenced {
        /// The current epoch.
        epoch: Epoch,
        /// Whose it is.
        host: HostId,
    },
    /// The journal belongs to another volume of the same name.
    #[error(
        "the journal belongs to volume {0}, which was deleted and created again: move the journal \
         away to attach the new volume"
    )]
    WrongVolume(VolumeId),
    /// The store cannot open the volume.
    #[error("the store cannot open this volume: {0}")]
    Damaged(String),
    /// The store is stopping; try again.
    #[error("the store is shutting down")]
    ShuttingDown,
    /// The credential may not attach it: why not, and who may.
    #[error("{0}")]
    Forbidden(String),
    /// Another host has it, and has a connection or had one a moment ago.
    #[error(
        "volume {volume} is in use by {}, which is connected or was a moment ago: stop that host \
         or run `longhaul detach {volume}` there; or take the volume from it with `longhaul attach \
         {volume} --take-over`",
        who(*host, by)
    )]
    InUse {
        /// Name of the volume.
        volume: String,
        /// Which host.
        host: HostId,
        /// Its credential and where it is, for people; empty if the store does not know.
        by: String,
    },
    /// Another key than that of this session began the epoch to resume.
    #[error(
        "refused: the epoch belongs to key {key}: start the host with the credential with which it \
         attached the volume, or attach the volume anew (epoch {epoch})"
    )]
    OtherKey {
        /// The epoch.
        epoch: Epoch,
        /// The key that began it.
        key: KeyId,
    },
    /// Only another key says that writes of this journal are, or will be, delivered in its epoch.
    #[error(
        "epoch {epoch} of this volume belongs to key {key}, not to this session's, and the store \
         lacks writes that the journal holds, or knows of their delivery only from that epoch: if \
         this state directory went from one machine to another, or the credential has a new key, \
         say so with `--take-over`; if not, move the journal away to keep it for salvage"
    )]
    Carried {
        /// The epoch.
        epoch: Epoch,
        /// The key that began it.
        key: KeyId,
    },
}

/// A host, for people.
fn who(host: HostId, by: &str) -> String {
    if by.is_empty() { format!("host {host}") } else { format!("{by} (host {host})") }
}
