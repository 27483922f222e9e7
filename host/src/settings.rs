//! The settings of the command line for all volumes.

use super::accepted::{AcceptedRollback, ExpectedRoot, RootExpectation};
use super::encryption::EncryptionPolicy;
use super::schedule::Schedule;
use super::state::JournalShape;
use longhaul_core::host::{Durability, OnJournalFailure};
use longhaul_core::pack::Compression;

/// Limits of a volume by time of day.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    /// Of the drain.
    pub drain: Schedule,
    /// Of reading ahead.
    pub readahead: Schedule,
}

/// The settings of the command line for all volumes.
#[derive(Clone, Debug)]
pub struct VolumeSettings {
    /// Shape of new journals.
    pub journal: JournalShape,
    /// Bytes of each read cache, 0 for none.
    pub cache_bytes: u64,
    /// The durability that a flush waits for.
    pub durability: Durability,
    /// The reaction to a failed journal.
    pub on_journal_failure: OnJournalFailure,
    /// No journals.
    pub write_through: bool,
    /// The compression of writes.
    pub compression: Compression,
    /// The volumes that must be encrypted, and the keys that open them.
    pub locks: EncryptionPolicy,
    /// Accepted rollbacks of encrypted volumes.
    pub accept_rollback: Vec<AcceptedRollback>,
    /// The roots of encrypted volumes that this host does not know.
    pub expect_root: Vec<RootExpectation>,
    /// Memory of a volume for read-ahead data, in bytes.
    pub readahead_bytes: u64,
    /// Limits of volumes that no command has given others.
    pub limits: Limits,
    /// The trace that the host reads ahead after an attach.
    pub warm: Option<String>,
}

impl VolumeSettings {
    /// The root that the operator expects of an encrypted volume, if any.
    pub fn expected(&self, name: &str) -> Option<ExpectedRoot> {
        self.expect_root.iter().find_map(|one| one.of(name))
    }
}
