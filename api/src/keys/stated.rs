//! The last statement of a holder of a volume's keys, in an attribute of the volume. It holds the
//! last epoch, the key of the version tables, and the last
//! [root](longhaul_core::host::versions::Root). Only a holder of the keys can make one.

use anyhow::{Context as _, Result};
use longhaul_base::random;
use longhaul_core::block::VolumeId;
use longhaul_core::host::versions::Statement;
use longhaul_core::pack::Keys;

/// The attribute of a volume that holds it.
pub const VERSIONS_ATTRIBUTE: &str = "versions";

/// The content of the attribute.
///
/// # Errors
/// If the seal fails.
pub fn seal(keys: &Keys, volume: VolumeId, statement: &Statement) -> Result<Vec<u8>> {
    let sealed = keys.seal(volume, random::bytes()?, &statement.encode());
    sealed.context("a statement cannot be sealed")
}

/// Opens the attribute, if a holder of the keys wrote it.
pub fn open(keys: &Keys, volume: VolumeId, data: &[u8]) -> Option<Statement> {
    Statement::parse(&keys.unseal(volume, data)?)
}

/// The statement of the next epoch after `last`, with its key of the tables, or a new one.
///
/// # Errors
/// If there are no random numbers.
pub fn next(last: Option<&Statement>, epoch: u64, seq: u64) -> Result<Statement> {
    Ok(match last {
        Some(last) => Statement { epoch, seq, ..*last },
        None => Statement { epoch, seq, key: random::secret()?, root: None },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_core::host::versions::{Root, RootHash};
    use longhaul_core::pack::DataKey;

    #[test]
    fn only_who_has_the_keys_states_anything() {
        let keys = |byte| Keys::new([1; 12], [(1, DataKey::new([byte; 32]))].into()).unwrap();
        let first = next(None, 1, 5).unwrap();
        let root = Some(Root { seq: 9, hash: RootHash([3; 32]) });
        let second = next(Some(&Statement { root, ..first }), 2, 9).unwrap();
        assert_eq!((second.epoch, second.seq, second.root), (2, 9, root));
        assert!(second.key == first.key && second.key != next(None, 1, 5).unwrap().key);
        let data = seal(&keys(2), VolumeId(3), &second).unwrap();
        assert_eq!(open(&keys(2), VolumeId(3), &data), Some(second));
        assert_eq!(open(&keys(3), VolumeId(3), &data), None);
        assert_eq!(open(&keys(2), VolumeId(4), &data), None);
    }
}
