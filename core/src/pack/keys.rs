//! The keys of an encrypted volume, and their use.
//!
//! A volume has one or more *data keys*, numbered from 1. A *subkey* follows (HKDF-SHA256) from a
//! data key, the salt that the host drew for this attachment, the volume's identity and the epoch.
//! The subkey encrypts blocks with AES-256-GCM. The nonce is the number of the write (u64) and the
//! low half of the number of the block in the volume (u32), both little-endian.
//!
//! Why no nonce comes twice under a subkey: a write has one number in its epoch and touches a block
//! once. A packed record is shorter than 2³² blocks, so the low halves within it differ. The host
//! packs a write once, when it gets its number. From then on it carries and cuts the record as it
//! is. A number comes again only in another epoch, because a host attaches anew after a crash.
//! Epochs come from the store, which the host must not trust with this. Even if the store lies
//! about them, the salt makes the subkey another one.
//!
//! The seal of a block also authenticates volume, epoch, write, sectors and method. So a block
//! passes only for itself.
//!
//! A clone has the data keys of the volume that it began as. It reads records of that volume under
//! that volume's name, so it tries its parents in turn. A salt belongs to one attachment. So the
//! volume that opens one block of an attachment opens all.

use crate::block::{BLOCK_SECTORS, Epoch, Range, Seq, VolumeId};
use crate::record::RecordError;
use crate::record::packed::{Lock, Method, SALT_BYTES, TAG_BYTES};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf;
use std::collections::BTreeMap;
use zeroize::Zeroize;

/// Bytes of a data key.
pub const DATA_KEY_BYTES: usize = 32;

/// The beginning of the info of this use of HKDF.
const INFO: &[u8] = b"longhaul packed record 1";
/// The same of the keys for what is not a block.
const INFO_SMALL: &[u8] = b"longhaul statement 1";
/// Most subkeys to keep: one for each key and attachment with data under read.
const SUBKEYS_MAX: usize = 64;

/// A data key. Its drop wipes it from memory. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct DataKey([u8; DATA_KEY_BYTES]);

impl DataKey {
    /// These bytes, which must be random.
    #[must_use]
    pub fn new(bytes: [u8; DATA_KEY_BYTES]) -> DataKey {
        DataKey(bytes)
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8; DATA_KEY_BYTES] {
        &self.0
    }
}

impl Drop for DataKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl std::fmt::Debug for DataKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DataKey(..)")
    }
}

/// The keys of a volume: the last one for new writes, all of them for existing data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    salt: [u8; SALT_BYTES],
    keys: BTreeMap<u32, DataKey>,
    newest: u32,
    parents: Vec<VolumeId>,
    retires: bool,
}

impl Keys {
    /// The keys by their numbers; `salt` must be random and never used before. `None` if there is
    /// no key, or one has the number 0, which stands for no encryption.
    #[must_use]
    pub fn new(salt: [u8; SALT_BYTES], keys: BTreeMap<u32, DataKey>) -> Option<Keys> {
        let newest = *keys.keys().next_back()?;
        (!keys.contains_key(&0)).then_some(Keys {
            salt,
            keys,
            newest,
            parents: Vec::new(),
            retires: false,
        })
    }

    /// The same keys, for a volume whose blocks may come from writes to these parents.
    #[must_use]
    pub fn with_parents(self, parents: Vec<VolumeId>) -> Keys {
        Keys { parents, ..self }
    }

    /// The same keys, with the flag to give up all but the newest one: hosts encrypt the content
    /// under them anew.
    #[must_use]
    pub fn with_retiring(self, retires: bool) -> Keys {
        Keys { retires, ..self }
    }

    /// Whether to give up all keys but the newest one.
    #[must_use]
    pub fn retires(&self) -> bool {
        self.retires
    }

    /// The same for a snapshot of that volume, whose keys these are.
    #[must_use]
    pub fn of_snapshot(mut self, volume: VolumeId) -> Keys {
        self.parents.insert(0, volume);
        self
    }

    /// The volumes whose blocks these keys are to open besides the volume's own.
    #[must_use]
    pub fn parents(&self) -> &[VolumeId] {
        &self.parents
    }

    /// Number of the key for new writes.
    #[must_use]
    pub fn newest(&self) -> u32 {
        self.newest
    }

    /// Encrypts something small that only a holder of the keys of the volume may read, can make.
    /// `nonce` must be random and never used before.
    #[must_use]
    pub fn seal(&self, volume: VolumeId, nonce: [u8; NONCE_LEN], plain: &[u8]) -> Option<Vec<u8>> {
        let key = self.small_key(volume, self.newest)?;
        let number = self.newest.to_le_bytes();
        let mut data = plain.to_vec();
        let aad = Aad::from(number);
        key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut data).ok()?;
        Some([&number[..], &nonce, &data].concat())
    }

    /// The input of [`Keys::seal`]; `None` if none of these keys made the seal for this volume.
    #[must_use]
    pub fn unseal(&self, volume: VolumeId, sealed: &[u8]) -> Option<Vec<u8>> {
        let (number, rest) = sealed.split_first_chunk::<4>()?;
        let (nonce, data) = rest.split_first_chunk::<NONCE_LEN>()?;
        let key = self.small_key(volume, u32::from_le_bytes(*number))?;
        let (nonce, mut data) = (Nonce::assume_unique_for_key(*nonce), data.to_vec());
        let plain = key.open_in_place(nonce, Aad::from(*number), &mut data).ok()?;
        Some(plain.to_vec())
    }

    fn small_key(&self, volume: VolumeId, number: u32) -> Option<LessSafeKey> {
        let secret =
            hkdf::Salt::new(hkdf::HKDF_SHA256, &[]).extract(self.keys.get(&number)?.bytes());
        let volume = volume.0.to_le_bytes();
        let info: [&[u8]; 2] = [INFO_SMALL, &volume];
        let mut bytes = [0; DATA_KEY_BYTES];
        secret.expand(&info, &AES_256_GCM).ok()?.fill(&mut bytes).ok()?;
        let key = UnboundKey::new(&AES_256_GCM, &bytes).ok();
        bytes.zeroize();
        key.map(LessSafeKey::new)
    }

    /// A key for AES-256-GCM from a data key, a salt and what it is for; `None` if the data key is
    /// not there.
    pub(super) fn derive(&self, lock: &Lock, info: &[&[u8]]) -> Option<LessSafeKey> {
        let data_key = self.keys.get(&lock.key)?;
        let secret = hkdf::Salt::new(hkdf::HKDF_SHA256, &lock.salt).extract(data_key.bytes());
        let mut bytes = [0; DATA_KEY_BYTES];
        secret.expand(info, &AES_256_GCM).ok()?.fill(&mut bytes).ok()?;
        let key = UnboundKey::new(&AES_256_GCM, &bytes).ok();
        bytes.zeroize();
        key.map(LessSafeKey::new)
    }

    /// With what new writes are encrypted.
    pub(super) fn lock(&self) -> Lock {
        Lock { key: self.newest, salt: self.salt }
    }
}

/// The identity of a block in its encryption.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub volume: VolumeId,
    pub epoch: Epoch,
    pub seq: Seq,
    pub block: Range,
    pub method: Method,
}

impl Place {
    fn nonce(&self) -> Nonce {
        let mut nonce = [0; NONCE_LEN];
        nonce[..8].copy_from_slice(&self.seq.to_le_bytes());
        let block = (self.block.lba / BLOCK_SECTORS) as u32;
        nonce[8..].copy_from_slice(&block.to_le_bytes());
        Nonce::assume_unique_for_key(nonce)
    }

    fn aad(&self) -> Aad<[u8; 42]> {
        let mut aad = [0; 42];
        aad[..16].copy_from_slice(&self.volume.0.to_le_bytes());
        aad[16..24].copy_from_slice(&self.epoch.to_le_bytes());
        aad[24..32].copy_from_slice(&self.seq.to_le_bytes());
        aad[32..40].copy_from_slice(&self.block.lba.to_le_bytes());
        aad[40] = self.block.sectors as u8;
        aad[41] = self.method.code();
        Aad::from(aad)
    }
}

/// Derived subkeys, and the volume of each.
#[derive(Default)]
pub(super) struct Subkeys(BTreeMap<(Lock, Epoch), (VolumeId, LessSafeKey)>);

impl Subkeys {
    /// The subkey of a block; `place` names the volume itself.
    fn get(&mut self, keys: &Keys, lock: &Lock, place: &Place) -> Option<&LessSafeKey> {
        let at = (*lock, place.epoch);
        if self.0.get(&at).is_none_or(|(volume, _)| *volume != place.volume) {
            let (volume, epoch) = (place.volume.0.to_le_bytes(), place.epoch.to_le_bytes());
            let key = keys.derive(lock, &[INFO, &volume, &epoch])?;
            if self.0.len() >= SUBKEYS_MAX {
                self.0.clear();
            }
            self.0.insert(at, (place.volume, key));
        }
        self.0.get(&at).map(|(_, key)| key)
    }

    /// Encrypts a block in place and appends its tag.
    pub(super) fn seal(&mut self, keys: &Keys, lock: &Lock, place: &Place, data: &mut Vec<u8>) {
        let key = self.get(keys, lock, place);
        let sealed = key.map(|key| {
            let tag = key.seal_in_place_separate_tag(place.nonce(), place.aad(), data);
            tag.map(|tag| data.extend_from_slice(tag.as_ref()))
        });
        // It fails for data of 64 GiB and keys of the wrong length only; going on would mean to
        // hand out plain text.
        assert!(matches!(sealed, Some(Ok(()))), "AES-GCM encrypts a block");
    }

    /// Decrypts a block with its tag in place.
    pub(super) fn open<'a>(
        &mut self,
        keys: Option<&Keys>,
        lock: &Lock,
        place: &Place,
        data: &'a mut [u8],
    ) -> Result<&'a [u8], RecordError> {
        let range = place.block;
        let no_key = RecordError::NoKey { range, key: lock.key };
        let Some(keys) = keys else { return Err(no_key) };
        let known = self.0.get(&(*lock, place.epoch)).map(|(volume, _)| *volume);
        let parents = if known.is_some() { &[][..] } else { &keys.parents[..] };
        // A failed attempt to open may change the data.
        let sealed = if parents.is_empty() { Vec::new() } else { data.to_vec() };
        let first = known.unwrap_or(place.volume);
        for (n, volume) in std::iter::once(&first).chain(parents).enumerate() {
            if n > 0 {
                data.copy_from_slice(&sealed);
            }
            let place = Place { volume: *volume, ..*place };
            let Some(key) = self.get(keys, lock, &place) else { return Err(no_key) };
            if let Ok(plain) = key.open_in_place(place.nonce(), place.aad(), data) {
                let bytes = plain.len();
                return Ok(&data[..bytes]);
            }
        }
        if known.is_none() {
            self.0.remove(&(*lock, place.epoch));
        }
        Err(RecordError::Sealed(range))
    }
}

const _: () = assert!(TAG_BYTES == 16 && SALT_BYTES == NONCE_LEN);
