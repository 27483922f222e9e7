//! The progress of a host that encrypts a volume anew. The host writes it to an attribute of the
//! volume, sealed with the volume's keys. So a store cannot claim that no content is under an older
//! key any more.

use anyhow::{Context as _, Result};
use longhaul_base::random;
use longhaul_core::block::{Epoch, VolumeId};
use longhaul_core::host::RewriteStatus;
use longhaul_core::pack::Keys;
use serde::{Deserialize, Serialize};

/// The attribute of a volume that holds it.
pub const PROGRESS_ATTRIBUTE: &str = "rewrite";

/// The report of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// In which epoch it says so: it is true as long as that lasts.
    pub epoch: Epoch,
    /// Number of the data key that all data should have in the end.
    pub key: u32,
    /// Whether everything is.
    pub done: bool,
    /// Bytes of the volume.
    pub total_bytes: u64,
    /// Bytes of it that the host has looked at.
    pub done_bytes: u64,
    /// Bytes that were encrypted anew.
    pub rewritten_bytes: u64,
    /// Bytes that the store could not give.
    pub failed_bytes: u64,
}

impl Progress {
    /// The report of the engine of that epoch.
    pub fn new(epoch: Epoch, status: &RewriteStatus) -> Progress {
        let RewriteStatus { key, done, total_bytes, done_bytes, rewritten_bytes, failed_bytes } =
            *status;
        Progress { epoch, key, done, total_bytes, done_bytes, rewritten_bytes, failed_bytes }
    }

    /// The content of the attribute.
    ///
    /// # Errors
    /// If the seal fails.
    pub fn seal(&self, keys: &Keys, volume: VolumeId) -> Result<Vec<u8>> {
        let plain = serde_json::to_vec(self).context("cannot encode how far it is")?;
        let sealed = keys.seal(volume, random::bytes()?, &plain);
        sealed.context("how far it is cannot be sealed")
    }

    /// Opens the attribute, if a holder of the keys wrote it.
    pub fn open(keys: &Keys, volume: VolumeId, data: &[u8]) -> Option<Progress> {
        serde_json::from_slice(&keys.unseal(volume, data)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_core::pack::DataKey;

    #[test]
    fn only_who_has_the_keys_says_how_far_it_is() {
        let keys = |byte| Keys::new([1; 12], [(1, DataKey::new([byte; 32]))].into()).unwrap();
        let status = RewriteStatus { key: 1, done: true, ..RewriteStatus::default() };
        let progress = Progress::new(7, &status);
        let data = progress.seal(&keys(2), VolumeId(3)).unwrap();
        assert_eq!(Progress::open(&keys(2), VolumeId(3), &data), Some(progress));
        assert_eq!(Progress::open(&keys(3), VolumeId(3), &data), None);
        assert_eq!(Progress::open(&keys(2), VolumeId(4), &data), None);
        let other = keys(2).seal(VolumeId(3), random::bytes().unwrap(), &[0; 16]).unwrap();
        assert_eq!(Progress::open(&keys(2), VolumeId(3), &other), None, "it is a statement");
    }
}
