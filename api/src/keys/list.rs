//! The list of the keys of a volume, as the store keeps it: `docs/formats.md` has the format.
//!
//! The volume's secret wraps the data keys. One or more slots hold the secret. The secret also
//! authenticates the whole list: the volume's name and identity, the volumes whose data it began
//! as, the slots and the keys. So a store can hide a list or return an older one. It cannot change
//! one, nor pass one volume's list off as another's.
//!
//! Parsing ends with an error or with a list of bounded size, whatever the store returns.

use super::slots::{
    MAX_SLOTS, Opener, SECRET_BYTES, Secret, Slot, SlotKind, cipher, hex, open, seal, unhex,
};
use anyhow::{Context as _, Result, bail};
use longhaul_core::block::VolumeId;
use longhaul_core::pack::{DATA_KEY_BYTES, DataKey};
use longhaul_core::wire::link::MAX_ATTRIBUTE_BYTES;
use ring::hmac;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

const VERSION: u32 = 1;
const CIPHER: &str = "AES-256-GCM";
/// Most data keys, and most volumes behind a clone.
const MAX_KEYS: usize = 1000;
const MAX_PARENTS: usize = 1000;
const MAX_NAME_BYTES: usize = 1024;

/// The owner of the keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// `NAME`, or `TENANT/NAME`.
    pub name: String,
    /// Its identity.
    pub volume: VolumeId,
}

/// The list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyList {
    version: u32,
    cipher: String,
    name: String,
    volume: String,
    /// Of a clone: the volumes behind it, the nearest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    parents: Vec<String>,
    /// What opens it.
    pub slots: Vec<Slot>,
    keys: Vec<WrappedKey>,
    /// Whether to give up all keys but the newest one: hosts encrypt the content under them anew.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    retires: bool,
    /// HMAC-SHA256 of the rest, in hexadecimal digits.
    mac: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrappedKey {
    /// From 1.
    number: u32,
    /// Nonce, encrypted key and tag in hexadecimal digits.
    wrapped: String,
}

#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

/// The content of an opened list.
#[derive(Debug)]
pub struct Unlocked {
    /// The data keys.
    pub keys: BTreeMap<u32, DataKey>,
    /// The volumes behind it.
    pub parents: Vec<VolumeId>,
    /// The secret that wraps them.
    pub secret: Secret,
    /// Whether to give up all keys but the newest one.
    pub retires: bool,
}

impl KeyList {
    /// Reads one.
    ///
    /// # Errors
    /// If it is none, is of another version, or is larger than any.
    pub fn parse(data: &[u8]) -> Result<KeyList> {
        let damaged = "the store's list of the volume's keys is damaged";
        if data.len() > MAX_ATTRIBUTE_BYTES {
            bail!("{damaged}: {} bytes", data.len());
        }
        let Versioned { version } = serde_json::from_slice(data).context(damaged)?;
        if version != VERSION {
            bail!(
                "the volume's keys are of version {version}, and this longhaul knows version \
                 {VERSION}: use a newer one"
            );
        }
        let list: KeyList = serde_json::from_slice(data).context(damaged)?;
        list.check().context(damaged)?;
        Ok(list)
    }

    fn check(&self) -> Result<()> {
        if self.cipher != CIPHER {
            bail!("cipher {:?} is not known", self.cipher.chars().take(32).collect::<String>());
        }
        if self.slots.is_empty() || self.slots.len() > MAX_SLOTS {
            bail!("there are {} slots", self.slots.len());
        }
        if self.keys.is_empty() || self.keys.len() > MAX_KEYS || self.parents.len() > MAX_PARENTS {
            bail!("there are {} keys and {} parents", self.keys.len(), self.parents.len());
        }
        if self.name.len() > MAX_NAME_BYTES {
            bail!("the name has {} bytes", self.name.len());
        }
        identity(&self.volume)?;
        self.parents.iter().try_for_each(|parent| identity(parent).map(drop))?;
        self.slots.iter().try_for_each(Slot::check)?;
        let slots: BTreeSet<u32> = self.slots.iter().map(|slot| slot.number).collect();
        let keys: BTreeSet<u32> = self.keys.iter().map(|key| key.number).collect();
        if slots.len() != self.slots.len() || keys.len() != self.keys.len() || keys.contains(&0) {
            bail!("a number comes twice, or is none");
        }
        Ok(())
    }

    /// Writes one.
    ///
    /// # Errors
    /// If it has more than a list can have.
    pub fn encode(&self) -> Result<Vec<u8>> {
        self.check()?;
        let data = serde_json::to_vec(self).context("cannot encode the keys")?;
        if data.len() > MAX_ATTRIBUTE_BYTES {
            bail!("the list of keys is full");
        }
        Ok(data)
    }

    /// Makes one.
    ///
    /// # Errors
    /// If the random numbers give out.
    pub fn seal(owner: &Owner, unlocked: &Unlocked, slots: Vec<Slot>) -> Result<KeyList> {
        let Unlocked { keys, parents, secret, retires } = unlocked;
        let wrapping = cipher(&*secret.derive("longhaul wrapped data keys 1")?)?;
        let wrap = |(number, key): (&u32, &DataKey)| {
            let purpose = purpose(owner.volume, *number);
            let wrapped = hex(&seal(&wrapping, &purpose, key.bytes())?);
            Ok(WrappedKey { number: *number, wrapped })
        };
        let mut list = KeyList {
            version: VERSION,
            cipher: CIPHER.into(),
            name: owner.name.clone(),
            volume: owner.volume.to_string(),
            parents: parents.iter().map(VolumeId::to_string).collect(),
            slots,
            keys: keys.iter().map(wrap).collect::<Result<_>>()?,
            retires: *retires,
            mac: String::new(),
        };
        list.mac = hex(hmac::sign(&authenticator(secret)?, &list.authenticated()).as_ref());
        Ok(list)
    }

    /// Opens the keys, if the list is that of `owner` and nobody has changed it. `known` is the
    /// secret that opened it before.
    ///
    /// # Errors
    /// If nothing opens it, somebody changed it, or it is another volume's. The message says what
    /// to do.
    pub fn unlock(
        &self,
        owner: &Owner,
        openers: &[Opener],
        known: Option<&Secret>,
    ) -> Result<Unlocked> {
        let known = known.filter(|secret| self.is_of(secret).unwrap_or(false));
        let secret = match known {
            Some(secret) => secret.clone(),
            None => self.secret(openers)?.0,
        };
        if !self.is_of(&secret)? {
            bail!(
                "the list of the volume's keys was changed at the store: it is damaged, or \
                 somebody edited it; ask the operator of the store for an earlier copy of it"
            );
        }
        if self.volume != owner.volume.to_string() {
            bail!(
                "the store gives out the keys of volume {} ({}) as those of this one ({}): it \
                 mixes volumes up",
                self.name,
                self.volume,
                owner.volume
            );
        }
        if self.name != owner.name {
            let (was, name) = (&self.name, &owner.name);
            bail!(
                "the store returns the data and the keys of volume {was} under the name {name}: it \
                 mixes volumes up, or somebody restored {was} under this name; in that case, \
                 `longhaul volume key rebind {name} --was {was}` says it"
            );
        }
        let wrapping = cipher(&*secret.derive("longhaul wrapped data keys 1")?)?;
        let mut keys = BTreeMap::new();
        for WrappedKey { number, wrapped } in &self.keys {
            let sealed = unhex(wrapped).unwrap_or_default();
            let key = open(&wrapping, &purpose(owner.volume, *number), sealed);
            let key = key.and_then(|key| <[u8; DATA_KEY_BYTES]>::try_from(&key[..]).ok());
            let key = key.with_context(|| format!("data key {number} does not open"))?;
            keys.insert(*number, DataKey::new(key));
        }
        let parents = self.parents.iter().map(|id| identity(id)).collect::<Result<_>>()?;
        Ok(Unlocked { keys, parents, secret, retires: self.retires })
    }

    /// The secret, and the number of the slot that one of these opens.
    ///
    /// # Errors
    /// If none opens any; the message says what would.
    pub fn secret(&self, openers: &[Opener]) -> Result<(Secret, u32)> {
        for slot in &self.slots {
            for opener in openers {
                if let Some(secret) = slot.open(opener)? {
                    return Ok((secret, slot.number));
                }
            }
        }
        let wanted = self.slots.iter().map(|slot| match (slot.kind, &slot.key_file) {
            (SlotKind::KeyFile, Some(fingerprint)) => format!("the key file {fingerprint}"),
            (SlotKind::RecoveryKey, _) => "a recovery key".to_owned(),
            _ => "a passphrase".to_owned(),
        });
        let wanted: BTreeSet<String> = wanted.collect();
        let wanted: Vec<String> = wanted.into_iter().collect();
        let has: Vec<String> = openers.iter().map(Opener::describe).collect();
        let has = if has.is_empty() { "none was given".to_owned() } else { has.join(", ") };
        bail!(
            "the volume is encrypted, and its keys open with {} ({has}): give it with --key-file \
             or --passphrase-file",
            wanted.join(" or ")
        )
    }

    /// The name in the list. Not authentic before the list is opened.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Numbers of the data keys.
    pub fn numbers(&self) -> Vec<u32> {
        self.keys.iter().map(|key| key.number).collect()
    }

    /// Whether to give up all keys but the newest one. Not authentic before the list is opened.
    pub fn retires(&self) -> bool {
        self.retires
    }

    fn is_of(&self, secret: &Secret) -> Result<bool> {
        let mac = unhex(&self.mac).unwrap_or_default();
        Ok(hmac::verify(&authenticator(secret)?, &self.authenticated(), &mac).is_ok())
    }

    /// Everything but the authentication itself, each field with its length: no two lists have the
    /// same.
    fn authenticated(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut field = |data: &[u8]| {
            out.extend_from_slice(&(data.len() as u64).to_le_bytes());
            out.extend_from_slice(data);
        };
        field(&self.version.to_le_bytes());
        for text in [&self.cipher, &self.name, &self.volume] {
            field(text.as_bytes());
        }
        let counts = [self.parents.len(), self.slots.len(), self.keys.len()];
        counts.iter().for_each(|count| field(&(*count as u64).to_le_bytes()));
        self.parents.iter().for_each(|parent| field(parent.as_bytes()));
        for slot in &self.slots {
            slot.fields().iter().for_each(|data| field(data));
        }
        for WrappedKey { number, wrapped } in &self.keys {
            field(&number.to_le_bytes());
            field(wrapped.as_bytes());
        }
        if self.retires {
            field(b"retires");
        }
        out
    }
}

fn authenticator(secret: &Secret) -> Result<hmac::Key> {
    let key = secret.derive("longhaul list of keys 1")?;
    Ok(hmac::Key::new(hmac::HMAC_SHA256, &*key))
}

/// The purpose of a wrapped data key.
fn purpose(volume: VolumeId, number: u32) -> String {
    format!("longhaul data key {volume} {number}")
}

fn identity(text: &str) -> Result<VolumeId> {
    let id = u128::from_str_radix(text, 16).ok().filter(|_| text.len() == 32).map(VolumeId);
    id.with_context(|| format!("{:?} is no identity", text.chars().take(40).collect::<String>()))
}

const _: () = assert!(SECRET_BYTES == DATA_KEY_BYTES);
