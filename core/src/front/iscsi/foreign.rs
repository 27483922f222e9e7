//! Messages between the targets of one host, about copies between their volumes.
//!
//! Each volume of a host belongs to one target. A copy belongs to the target that got its command.
//! If it concerns a volume of another target, that one does the parts of its volume. It makes the
//! same checks as for copies of its own.

use super::{DeviceId, Identity};
use crate::block::{Range, SECTOR_BYTES, VolumeId};
use crate::front::scsi::TaskId;
use crate::front::scsi::copy::{CopyPart, Designator, PartFailure, PartReply, Rod, RodToken};

/// Names a target of a host.
pub type TargetId = usize;

/// Names a copy: the device that was asked for it, and its name there.
pub type CopyId = (DeviceId, u64);

/// The initiator that asked for a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asker {
    /// Its name.
    pub initiator: String,
    /// The CHAP user that it authenticated as.
    pub user: Option<String>,
    /// All its connections come from this machine.
    pub loopback: bool,
}

impl Asker {
    /// The initiator of a session.
    pub(super) fn new(identity: &Identity, loopback: bool) -> Asker {
        Asker { initiator: identity.initiator.clone(), user: identity.user.clone(), loopback }
    }

    /// Nobody has such a name.
    pub(super) fn nobody() -> Asker {
        Asker { initiator: String::new(), user: None, loopback: false }
    }

    /// Whether a session is of this initiator.
    pub(super) fn is(&self, identity: &Identity) -> bool {
        self.initiator == identity.initiator && self.user == identity.user
    }
}

/// A unit that a copy may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitFacts {
    /// Its name at its target.
    pub device: DeviceId,
    /// Its volume.
    pub volume: VolumeId,
    /// Bytes in a block.
    pub block_bytes: u32,
    /// Sectors of it.
    pub sectors: u64,
}

impl UnitFacts {
    /// The sectors of these blocks, if the unit has them.
    pub(super) fn range(&self, lba: u64, blocks: u64) -> Option<Range> {
        let block_sectors = u64::from(self.block_bytes) / SECTOR_BYTES;
        let size = self.sectors / block_sectors.max(1);
        let fits = lba <= size && blocks <= size - lba;
        fits.then(|| Range::new(lba * block_sectors, blocks * block_sectors))
    }
}

/// A question of a target about a copy, for all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyQuestion {
    /// Which of the units with these designators may the copy use, and write to if `true`?
    Units(Vec<(Designator, bool)>),
    /// The data of this token, if its creator is a unit there that the copy may use.
    Token {
        /// The creator of the token.
        creator: Designator,
        /// The token.
        token: Box<RodToken>,
        /// Whether to delete the token after this use.
        delete: bool,
    },
}

/// The answer of one target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyAnswer {
    /// For each designator the units with it.
    Units(Vec<Vec<UnitFacts>>),
    /// The unit, and the data or the additional sense code of the refusal. `None` if there is no
    /// such unit.
    Token(Option<(UnitFacts, Result<Rod, u16>)>),
}

/// A message from one target to another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyMessage {
    /// Do a part of a copy, and answer with `Done`.
    Part {
        /// Name of the part, at the sender.
        task: TaskId,
        /// The unit that does it.
        device: DeviceId,
        /// The initiator that asked for the copy.
        asker: Asker,
        /// The part.
        part: CopyPart,
    },
    /// Nobody needs the result of a part any more.
    End {
        /// Name of the part, at the sender.
        task: TaskId,
    },
    /// A part has ended.
    Done {
        /// Name of the part, at the receiver.
        task: TaskId,
        /// How it ended.
        result: Result<PartReply, PartFailure>,
    },
    /// A copy does not use a token any more.
    Release {
        /// The unit that made the token.
        device: DeviceId,
        /// The token.
        token: u64,
        /// Its data has changed.
        revoked: bool,
    },
}

impl CopyMessage {
    /// The answer in the place of a target that does not exist any more.
    #[must_use]
    pub fn undelivered(&self) -> Option<CopyMessage> {
        match self {
            CopyMessage::Part { task, .. } => {
                let result = Err(PartFailure::NotReachable);
                Some(CopyMessage::Done { task: *task, result })
            }
            CopyMessage::End { .. } | CopyMessage::Done { .. } | CopyMessage::Release { .. } => {
                None
            }
        }
    }
}
