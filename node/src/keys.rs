//! Keys of encrypted volumes: the key file of a host, and the data keys that it opens.
//!
//! A volume is encrypted if it has the attribute `keys`: its data keys, each wrapped (AES-256-GCM) with
//! the key of a key file. The store keeps the attribute and can read none of it, any host with the key
//! file can attach the volume, and putting the data keys under another key file touches no data.
//! `docs/formats.md` has the format.

use crate::commands::Usage;
use crate::files;
use crate::link::Requests;
use crate::random;
use crate::volume::attributes;
use anyhow::{Context as _, Result, anyhow, bail};
use longhaul_core::block::VolumeId;
use longhaul_core::pack::{DATA_KEY_BYTES, DataKey, Keys};
use longhaul_core::record::packed::SALT_BYTES;
use longhaul_core::wire::link::{PACKED_VERSION, VolumeInfo};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// The attribute of a volume that holds its wrapped keys.
pub const ATTRIBUTE: &str = "keys";

const VERSION: u32 = 1;
const CIPHER: &str = "AES-256-GCM";

/// The key of a key file. It is wiped from memory when it is dropped, and never printed.
#[derive(Clone)]
pub struct KeyFile {
    path: PathBuf,
    key: Zeroizing<[u8; DATA_KEY_BYTES]>,
}

impl std::fmt::Debug for KeyFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeyFile({})", self.path.display())
    }
}

/// Draws a key and writes it to a new file.
///
/// # Errors
/// If there is such a file, or it cannot be written.
pub fn create(path: &Path) -> Result<()> {
    let text = Zeroizing::new(format!("{}\n", hex(&random::secret()?)));
    let write = || -> std::io::Result<()> {
        use std::io::Write as _;
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        files::sync_dir(
            path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new(".")),
        )
    };
    write().with_context(|| format!("cannot write the key file {}", path.display()))
}

/// The key file that a command was given.
///
/// # Errors
/// If it was given none, or one that is not good.
pub fn key_file(path: Option<&Path>) -> Result<KeyFile> {
    let path = path.ok_or_else(|| {
        Usage("no key file: give --key-file FILE; `longhaul credential new-key` makes one".into())
    })?;
    KeyFile::load(path)
}

impl KeyFile {
    /// Reads one.
    ///
    /// # Errors
    /// If it cannot be read, others than its owner may, or it does not hold a key.
    pub fn load(path: &Path) -> Result<KeyFile> {
        let shown = path.display();
        let read = || -> std::io::Result<(u32, Zeroizing<String>)> {
            let mode = std::fs::metadata(path)?.permissions().mode();
            Ok((mode, Zeroizing::new(std::fs::read_to_string(path)?)))
        };
        let (mode, text) = read().with_context(|| format!("cannot read the key file {shown}"))?;
        if mode & 0o077 != 0 {
            bail!("others can read the key file {shown}: chmod 600 it");
        }
        let key =
            unhex(text.trim()).and_then(|bytes| Zeroizing::new(bytes).as_slice().try_into().ok());
        let key = key.with_context(|| {
            format!("{shown} is not a key file: 64 hexadecimal digits are expected")
        })?;
        Ok(KeyFile { path: path.to_owned(), key: Zeroizing::new(key) })
    }

    /// Tells key files apart without saying anything of the key.
    fn fingerprint(&self) -> String {
        let mut digest = ring::digest::Context::new(&ring::digest::SHA256);
        digest.update(b"longhaul key file");
        digest.update(&*self.key);
        hex(&digest.finish().as_ref()[..8])
    }

    fn cipher(&self) -> Result<LessSafeKey> {
        let key = UnboundKey::new(&AES_256_GCM, &*self.key);
        Ok(LessSafeKey::new(key.map_err(|_| anyhow!("AES-256-GCM does not take the key"))?))
    }
}

/// The attribute.
#[derive(Serialize, Deserialize)]
struct Wrapped {
    version: u32,
    cipher: String,
    /// Fingerprint of the key file.
    key_file: String,
    keys: Vec<WrappedKey>,
    /// Of a clone: the volumes behind it, the nearest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    parents: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct WrappedKey {
    /// From 1.
    number: u32,
    /// Nonce, encrypted key and tag in hexadecimal digits.
    wrapped: String,
}

/// What a wrapped key is for. The parents are in it so that no store can give a volume others.
fn aad(volume: VolumeId, number: u32, parents: &[String]) -> Aad<Vec<u8>> {
    let of = if parents.is_empty() { "" } else { " of " };
    let parents = parents.join(" ");
    Aad::from(format!("longhaul data key {volume} {number}{of}{parents}").into_bytes())
}

impl Wrapped {
    fn parse(data: &[u8]) -> Result<Wrapped> {
        let wrapped: Wrapped = serde_json::from_slice(data)
            .context("what the store has of the volume's keys is damaged")?;
        if wrapped.version != VERSION || wrapped.cipher != CIPHER {
            bail!(
                "the volume's keys are of version {} ({}), which needs a newer longhaul",
                wrapped.version,
                wrapped.cipher
            );
        }
        Ok(wrapped)
    }

    fn encode(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).context("cannot encode the keys")
    }

    fn wrap(
        volume: VolumeId,
        keys: &BTreeMap<u32, DataKey>,
        parents: Vec<String>,
        file: &KeyFile,
    ) -> Result<Wrapped> {
        let cipher = file.cipher()?;
        let wrap = |(number, key): (&u32, &DataKey)| {
            let nonce: [u8; NONCE_LEN] = random::bytes()?;
            let mut data = Zeroizing::new(key.bytes().to_vec());
            let sealed = cipher.seal_in_place_separate_tag(
                Nonce::assume_unique_for_key(nonce),
                aad(volume, *number, &parents),
                &mut data,
            );
            let tag = sealed.map_err(|_| anyhow!("a data key cannot be wrapped"))?;
            let all = [&nonce[..], &data, tag.as_ref()].concat();
            Ok(WrappedKey { number: *number, wrapped: hex(&all) })
        };
        Ok(Wrapped {
            version: VERSION,
            cipher: CIPHER.into(),
            key_file: file.fingerprint(),
            keys: keys.iter().map(wrap).collect::<Result<_>>()?,
            parents,
        })
    }

    fn unwrap(&self, volume: VolumeId, files: &[KeyFile]) -> Result<BTreeMap<u32, DataKey>> {
        let file = files.iter().find(|file| file.fingerprint() == self.key_file);
        let Some(file) = file else {
            let has: Vec<String> = files
                .iter()
                .map(|file| format!("{} is {}", file.path.display(), file.fingerprint()))
                .collect();
            let has = if has.is_empty() { "none was given".to_owned() } else { has.join(", ") };
            bail!(
                "the volume is encrypted, and its keys open with the key file {} ({has}): give it with --key-file",
                self.key_file
            );
        };
        let cipher = file.cipher()?;
        let mut keys = BTreeMap::new();
        for WrappedKey { number, wrapped } in &self.keys {
            let opened = unhex(wrapped).and_then(|all| {
                let (nonce, sealed) = all.split_first_chunk::<NONCE_LEN>()?;
                let mut sealed = Zeroizing::new(sealed.to_vec());
                let nonce = Nonce::assume_unique_for_key(*nonce);
                let plain = cipher
                    .open_in_place(nonce, aad(volume, *number, &self.parents), &mut sealed)
                    .ok()?;
                Some(DataKey::new((&*plain).try_into().ok()?))
            });
            let key = opened.with_context(|| {
                format!(
                    "data key {number} of the volume does not open with {}: it is damaged at the store, or another \
                     volume's",
                    file.path.display()
                )
            })?;
            if keys.insert(*number, key).is_some() {
                bail!("the volume has two data keys of number {number}");
            }
        }
        Ok(keys)
    }
}

/// The keys in the attribute of a volume, for a new attachment; `None` if it has none: then the volume
/// is not encrypted.
///
/// # Errors
/// If none of the key files opens them, or the attribute makes no sense.
pub fn open(volume: VolumeId, data: &[u8], files: &[KeyFile]) -> Result<Option<Keys>> {
    if data.is_empty() {
        return Ok(None);
    }
    let wrapped = Wrapped::parse(data)?;
    let keys = wrapped.unwrap(volume, files)?;
    let parents = wrapped.parents.iter().map(|id| identity(id)).collect::<Result<_>>()?;
    let salt: [u8; SALT_BYTES] = random::bytes()?;
    let keys = Keys::new(salt, keys).context("the volume is encrypted and has no keys")?;
    Ok(Some(keys.with_parents(parents)))
}

/// The keys of a volume, for a command.
///
/// # Errors
/// If the store does not answer, or the key file is missing or does not open them.
pub async fn of_volume(
    requests: &Requests,
    info: &VolumeInfo,
    key_file: Option<&Path>,
) -> Result<Option<Keys>> {
    let data = get(requests, info).await?;
    let files = match key_file {
        Some(path) if !data.is_empty() => vec![KeyFile::load(path)?],
        _ => Vec::new(),
    };
    open(info.id, &data, &files).with_context(|| format!("volume {}", info.name))
}

/// Gives a volume that was just created its first data key.
///
/// # Errors
/// If the store is too old or fails, or the volume has been attached meanwhile.
pub async fn encrypt(requests: &Requests, info: &VolumeInfo, file: &KeyFile) -> Result<()> {
    let keys = BTreeMap::from([(1, DataKey::new(random::secret()?))]);
    set(requests, info, 0, &Wrapped::wrap(info.id, &keys, Vec::new(), file)?).await
}

/// The keys of a volume, for clones of it; `None` if it is not encrypted.
///
/// # Errors
/// If the store does not answer, or the key file is missing or does not open them.
pub async fn for_clones(
    requests: &Requests,
    info: &VolumeInfo,
    key_file: Option<&Path>,
) -> Result<Option<Heritage>> {
    let data = get(requests, info).await?;
    if data.is_empty() {
        return Ok(None);
    }
    let file = self::key_file(key_file)?;
    let wrapped = Wrapped::parse(&data)?;
    let keys = wrapped.unwrap(info.id, std::slice::from_ref(&file))?;
    let parents = std::iter::once(info.id.to_string()).chain(wrapped.parents).collect();
    Ok(Some(Heritage { file, keys, parents }))
}

/// What a clone has from the volume that it began as.
pub struct Heritage {
    file: KeyFile,
    keys: BTreeMap<u32, DataKey>,
    parents: Vec<String>,
}

impl Heritage {
    /// Gives it to a clone that was just made.
    ///
    /// # Errors
    /// If the store fails, or the clone has been attached meanwhile.
    pub async fn pass_on(self, requests: &Requests, clone: &VolumeInfo) -> Result<()> {
        let wrapped = Wrapped::wrap(clone.id, &self.keys, self.parents, &self.file)?;
        // It goes on in the epoch of its parent, which it says once it is open.
        let epoch = attributes::epoch(requests, &clone.name).await?;
        set(requests, clone, epoch, &wrapped).await
    }
}

/// Gives a volume a new data key for new writes, or, with `new`, puts those it has under that key
/// file. The number of the newest key.
///
/// # Errors
/// If the volume is not encrypted, the key file does not open its keys, or the store fails.
pub async fn rotate(
    requests: &Requests,
    info: &VolumeInfo,
    file: &KeyFile,
    new: Option<&KeyFile>,
) -> Result<u32> {
    let data = get(requests, info).await?;
    if data.is_empty() {
        bail!("it is not encrypted");
    }
    let wrapped = Wrapped::parse(&data)?;
    let mut keys = wrapped.unwrap(info.id, std::slice::from_ref(file))?;
    let mut newest = keys.keys().next_back().copied().unwrap_or(0);
    if new.is_none() {
        newest += 1;
        keys.insert(newest, DataKey::new(random::secret()?));
    }
    let wrapped = Wrapped::wrap(info.id, &keys, wrapped.parents, new.unwrap_or(file))?;
    let epoch = info.live.as_ref().map_or(0, |live| live.epoch);
    set(requests, info, epoch, &wrapped).await?;
    Ok(newest)
}

async fn get(requests: &Requests, info: &VolumeInfo) -> Result<Vec<u8>> {
    let data = attributes::get(requests, info, ATTRIBUTE).await;
    data.context("cannot ask for the volume's keys")
}

async fn set(requests: &Requests, info: &VolumeInfo, epoch: u64, keys: &Wrapped) -> Result<()> {
    if requests.version() < PACKED_VERSION {
        bail!("the store is too old for encrypted volumes: upgrade it");
    }
    let set = attributes::set(requests, info, epoch, ATTRIBUTE, keys.encode()?).await;
    set.context("cannot store the volume's keys")
}

fn identity(text: &str) -> Result<VolumeId> {
    let id = u128::from_str_radix(text, 16).ok().map(VolumeId);
    id.with_context(|| format!("the volume's keys name {text:?} as a parent, which is no identity"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(dir: &Path, name: &str) -> KeyFile {
        let path = dir.join(name);
        create(&path).unwrap();
        assert!(create(&path).is_err(), "it exists");
        KeyFile::load(&path).unwrap()
    }

    #[test]
    fn keys_open_with_their_file_and_for_their_volume_only() {
        let dir = tempfile::tempdir().unwrap();
        let (mine, other) = (file(dir.path(), "mine"), file(dir.path(), "other"));
        let keys: BTreeMap<u32, DataKey> =
            (1..3).map(|number| (number, DataKey::new([number as u8; DATA_KEY_BYTES]))).collect();
        let id = VolumeId(7);
        let data = Wrapped::wrap(id, &keys, Vec::new(), &mine).unwrap().encode().unwrap();
        assert!(!data.windows(8).any(|window| window == [1; 8]));
        let both = [other.clone(), mine.clone()];
        assert_eq!(Wrapped::parse(&data).unwrap().unwrap(id, &both).unwrap(), keys);
        assert_eq!(open(id, &data, &both).unwrap().unwrap().newest(), 2);
        assert!(open(id, &[], &[]).unwrap().is_none());
        let error =
            |volume, files: &[KeyFile]| format!("{:#}", open(volume, &data, files).unwrap_err());
        for files in [&[][..], &[other]] {
            let error = error(id, files);
            assert!(error.contains("--key-file") && error.contains(&mine.fingerprint()), "{error}");
        }
        assert!(error(VolumeId(8), std::slice::from_ref(&mine)).contains("does not open"));
        // Where a volume comes from is not for the store to say.
        let of = vec![VolumeId(9).to_string()];
        let mut wrapped = Wrapped::wrap(id, &keys, of, &mine).unwrap();
        let opened = open(id, &wrapped.encode().unwrap(), &both).unwrap().unwrap();
        assert_eq!(opened.parents(), [VolumeId(9)]);
        wrapped.parents.push(VolumeId(5).to_string());
        assert!(open(id, &wrapped.encode().unwrap(), &both).is_err());
    }

    #[test]
    fn each_mistake_with_a_key_file_has_its_message() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let message = || format!("{:#}", KeyFile::load(&path).unwrap_err());
        assert!(message().contains("cannot read"));
        create(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(message().contains("chmod 600"));
        for text in ["", "00", "zz", "é"] {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            assert!(message().contains("64 hexadecimal digits"), "{}", message());
        }
    }
}
