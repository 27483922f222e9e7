//! Why a volume is not attached.

use super::uplink::LinkLost;

/// Why a volume could not be attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachFailure {
    /// The link is down: the next attempt comes when it is up.
    Link,
    /// The store has no such volume.
    NotFound(String),
    /// Another host has it: the attempts go on quietly.
    InUse(String),
    /// Another host took it.
    Fenced(String),
    /// Something that someone has to decide or repair.
    Refused(String),
    /// The disk under the journal failed to sync: not tried again by this process.
    Disk(String),
}

impl From<LinkLost> for AttachFailure {
    fn from(_: LinkLost) -> AttachFailure {
        AttachFailure::Link
    }
}

impl From<anyhow::Error> for AttachFailure {
    fn from(error: anyhow::Error) -> AttachFailure {
        let text = format!("{error:#}");
        if error.is::<JournalDisk>() {
            AttachFailure::Disk(text)
        } else {
            AttachFailure::Refused(text)
        }
    }
}

impl AttachFailure {
    /// The text for the operator; none for a link that is down.
    pub fn text(&self) -> Option<&str> {
        match self {
            AttachFailure::Link => None,
            AttachFailure::NotFound(why)
            | AttachFailure::InUse(why)
            | AttachFailure::Fenced(why)
            | AttachFailure::Refused(why)
            | AttachFailure::Disk(why) => Some(why),
        }
    }
}

/// A sync of a journal failed: a second one may succeed without having stored what the first could
/// not, so there is none.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct JournalDisk(pub String);
