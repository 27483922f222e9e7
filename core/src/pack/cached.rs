//! The blocks of an encrypted volume in a read cache, encrypted only for the cache's file.
//!
//! The key comes (HKDF-SHA256) from the newest data key and a salt, as that of packed records does.
//! The salt is drawn when the keys are opened. The info differs, so no key serves both uses. The
//! nonce is the number of the block among all sealed here (u64, little-endian) and four zero bytes.
//!
//! Why no nonce comes twice under a key: the number only goes up while a [`Sealer`] lives, also
//! when the keys change. The next sealer has another salt, and so another key. So no disk has to
//! keep numbers, which a loss or an old copy could set back.

use super::keys::Keys;
use crate::block::VolumeId;
use crate::record::packed::{Lock, SALT_BYTES, TAG_BYTES};
use ring::aead::{Aad, LessSafeKey, NONCE_LEN, Nonce};
use std::collections::BTreeMap;

/// Bytes of a [`Seal`].
pub const SEAL_BYTES: usize = 4 + SALT_BYTES + 8 + TAG_BYTES;
/// The seal of what is not encrypted.
pub(crate) const UNSEALED: [u8; SEAL_BYTES] = [0; SEAL_BYTES];

/// The beginning of the info of this use of HKDF.
const INFO: &[u8] = b"longhaul cached block 1";
/// Most keys to keep: one for each attachment with blocks under read.
const KEYS_MAX: usize = 64;

/// Everything besides the keys that opens a block and proves it to be the sealed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seal {
    lock: Lock,
    number: u64,
    tag: [u8; TAG_BYTES],
}

impl Seal {
    pub(crate) fn bytes(&self) -> [u8; SEAL_BYTES] {
        let mut out = UNSEALED;
        let (lock, rest) = out.split_at_mut(4 + SALT_BYTES);
        lock[..4].copy_from_slice(&self.lock.key.to_le_bytes());
        lock[4..].copy_from_slice(&self.lock.salt);
        rest[..8].copy_from_slice(&self.number.to_le_bytes());
        rest[8..].copy_from_slice(&self.tag);
        out
    }

    /// `None` if the block is not encrypted.
    pub(crate) fn parse(bytes: &[u8; SEAL_BYTES]) -> Option<Seal> {
        let (key, rest) = bytes.split_first_chunk()?;
        let (salt, rest) = rest.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        let (tag, _) = rest.split_first_chunk()?;
        let lock = Lock { key: u32::from_le_bytes(*key), salt: *salt };
        let number = u64::from_le_bytes(*number);
        (lock.key != 0).then_some(Seal { lock, number, tag: *tag })
    }

    fn nonce(&self) -> Nonce {
        let mut nonce = [0; NONCE_LEN];
        nonce[..8].copy_from_slice(&self.number.to_le_bytes());
        Nonce::assume_unique_for_key(nonce)
    }
}

/// Encrypts and decrypts the blocks of a volume's read cache.
pub struct Sealer {
    volume: VolumeId,
    keys: Keys,
    derived: BTreeMap<Lock, LessSafeKey>,
    sealed: u64,
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sealer").field("keys", &self.keys).finish_non_exhaustive()
    }
}

impl Sealer {
    /// For the cache of a volume. No two may have the salt of the same keys.
    #[must_use]
    pub fn new(volume: VolumeId, keys: Keys) -> Sealer {
        Sealer { volume, keys, derived: BTreeMap::new(), sealed: 0 }
    }

    /// Replaces the keys. Blocks sealed under a missing key do not open any more.
    pub(crate) fn set_keys(&mut self, keys: Keys) {
        self.keys = keys;
        self.derived.clear();
    }

    /// Encrypts a block in place. `None` if that fails; then the content of `data` is undefined.
    pub(crate) fn seal(&mut self, context: &[u8], data: &mut [u8]) -> Option<Seal> {
        let seal = Seal { lock: self.keys.lock(), number: self.sealed, tag: [0; TAG_BYTES] };
        self.sealed = self.sealed.checked_add(1)?;
        let aad = Aad::from(context);
        let key = self.key(&seal.lock)?;
        let tag = key.seal_in_place_separate_tag(seal.nonce(), aad, data).ok()?;
        Some(Seal { tag: tag.as_ref().try_into().ok()?, ..seal })
    }

    /// The block, if it has that seal and context under a key that the volume still has.
    pub(crate) fn open(&mut self, seal: &Seal, context: &[u8], data: &[u8]) -> Option<Vec<u8>> {
        let key = self.key(&seal.lock)?;
        let mut out = Vec::with_capacity(data.len() + TAG_BYTES);
        out.extend_from_slice(data);
        out.extend_from_slice(&seal.tag);
        key.open_in_place(seal.nonce(), Aad::from(context), &mut out).ok()?;
        out.truncate(data.len());
        Some(out)
    }

    fn key(&mut self, lock: &Lock) -> Option<&LessSafeKey> {
        if !self.derived.contains_key(lock) {
            let volume = self.volume.0.to_le_bytes();
            let key = self.keys.derive(lock, &[INFO, &volume])?;
            if self.derived.len() >= KEYS_MAX {
                self.derived.clear();
            }
            self.derived.insert(*lock, key);
        }
        self.derived.get(lock)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{DATA_KEY_BYTES, DataKey};
    use super::*;

    fn keys(salt: u8, keys: &[u8]) -> Keys {
        let key = |n: &u8| (u32::from(*n), DataKey::new([*n; DATA_KEY_BYTES]));
        Keys::new([salt; SALT_BYTES], keys.iter().map(key).collect()).unwrap()
    }

    #[test]
    fn a_block_opens_with_its_seal_context_volume_and_key_only() {
        let mut one = Sealer::new(VolumeId(1), keys(1, &[1]));
        let mut block = vec![7; 4096];
        let seal = one.seal(b"here", &mut block).unwrap();
        assert_ne!(block, [7; 4096]);
        assert_eq!(Seal::parse(&seal.bytes()), Some(seal));
        assert_eq!(one.open(&seal, b"here", &block), Some(vec![7; 4096]));
        assert_eq!(one.open(&seal, b"there", &block), None);
        assert_eq!(Sealer::new(VolumeId(2), keys(1, &[1])).open(&seal, b"here", &block), None);
        // The next attachment, after a rotation of the key, and after the old key is gone.
        let mut next = Sealer::new(VolumeId(1), keys(2, &[1, 2]));
        assert_eq!(next.open(&seal, b"here", &block), Some(vec![7; 4096]));
        next.set_keys(keys(3, &[2]));
        assert_eq!(next.open(&seal, b"here", &block), None);
        for bit in 0..SEAL_BYTES * 8 {
            let mut bytes = seal.bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let opened = Seal::parse(&bytes).and_then(|seal| one.open(&seal, b"here", &block));
            assert_eq!(opened, None, "bit {bit}");
        }
        block[100] ^= 1;
        assert_eq!(one.open(&seal, b"here", &block), None);
    }

    #[test]
    fn no_number_comes_twice_and_the_newest_key_is_used() {
        let mut sealer = Sealer::new(VolumeId(1), keys(1, &[1]));
        let first = sealer.seal(b"", &mut [7; 16]).unwrap();
        sealer.set_keys(keys(1, &[1, 2]));
        let second = sealer.seal(b"", &mut [7; 16]).unwrap();
        assert_eq!((first.lock.key, first.number), (1, 0));
        assert_eq!((second.lock.key, second.number), (2, 1));
        assert_eq!(Seal::parse(&UNSEALED), None);
    }
}
