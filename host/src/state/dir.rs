//! The state directory itself: the host's identity, and what the host remembers.

use super::description::{
    JournalShape, Survey, VERSION, VolumeFile, known_version, parse_id, random, read_volume, survey,
};
use super::journal_device::JournalDevice;
use anyhow::{Context as _, Result, bail};
use longhaul_base::files;
use longhaul_core::block::VolumeId;
use longhaul_core::wire::link::HostId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The directory that remembers which volumes are encrypted.
pub(super) const ENCRYPTED: &str = "encrypted";

/// The memory of the encryption of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownEncryption {
    /// This volume was attached here encrypted.
    Volume,
    /// Another one of the same name was.
    Name,
}

/// A name of a volume as part of a file's: `%` is in no name.
fn pin_name(name: &str) -> String {
    name.replace('/', "%")
}

/// An opened and locked state directory.
pub struct StateDir {
    path: PathBuf,
    host: HostId,
    /// Held while a file that all threads write is replaced.
    writing: Mutex<()>,
    /// Where new journals are, instead of files in this directory.
    device: Option<JournalDevice>,
    _lock: files::Lock,
}

#[derive(Serialize, Deserialize)]
struct HostFile {
    version: u32,
    id: String,
}

#[derive(Serialize, Deserialize)]
struct AttachedFile {
    version: u32,
    volumes: BTreeSet<String>,
}

#[derive(Serialize, Deserialize)]
struct StoresFile {
    version: u32,
    stores: Vec<String>,
}

impl StateDir {
    /// Opens a state directory, making it if need be, and locks it.
    ///
    /// # Errors
    /// If it is unusable, another process holds it, a later version wrote it, or it is a store's.
    pub fn open(path: &Path) -> Result<StateDir> {
        // Check before writing anything.
        if longhaul_base::dirs::is_data_dir(path) {
            bail!(
                "{} is the data directory of a store: give the host a directory of its own with \
                 --state",
                path.display()
            );
        }
        files::create_dir(&path.join("volumes"))?;
        let lock = files::Lock::acquire(path)?;
        let host = identity(path, true)?;
        let (path, writing) = (path.to_owned(), Mutex::default());
        Ok(StateDir { path, host, writing, device: None, _lock: lock })
    }

    /// Has new journals made on that device. A blank device becomes one of this host.
    ///
    /// # Errors
    /// If the device is unusable, or is not that of the journals that are on one.
    pub fn use_device(&mut self, path: &Path, shape: JournalShape) -> Result<()> {
        self.device = Some(JournalDevice::open(path, self.host, shape, &self.volumes()?)?);
        Ok(())
    }

    /// The device for new journals.
    pub fn device(&self) -> Option<&JournalDevice> {
        self.device.as_ref()
    }

    /// The identity of this host.
    pub fn host(&self) -> HostId {
        self.host
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Addresses of the stores that this host has heard of.
    pub fn stores(&self) -> Vec<String> {
        let text = files::read(&self.path.join("stores.json")).ok();
        let file: Option<StoresFile> = text.and_then(|text| serde_json::from_slice(&text).ok());
        // Without it there is the credential.
        file.filter(|file| file.version == VERSION).map_or_else(Vec::new, |file| file.stores)
    }

    /// Remembers [`StateDir::stores`].
    ///
    /// # Errors
    /// If the write fails.
    pub fn save_stores(&self, stores: &[String]) -> Result<()> {
        // Each front thread hears of stores.
        let _one_at_a_time = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let file = StoresFile { version: VERSION, stores: stores.to_vec() };
        files::replace(&self.path.join("stores.json"), &serde_json::to_vec_pretty(&file)?, 0o600)
    }

    /// The readable descriptions of all volumes, in order of identity.
    ///
    /// # Errors
    /// If the directory is unreadable.
    pub fn volumes(&self) -> Result<Vec<VolumeFile>> {
        self.survey().map(|survey| survey.volumes)
    }

    /// The same, with the unreadable descriptions.
    ///
    /// # Errors
    /// If the directory is unreadable.
    pub fn survey(&self) -> Result<Survey> {
        survey(&self.path)
    }

    /// The volumes that [`StateDir::save_attached`] remembered.
    ///
    /// # Errors
    /// If the list exists and is unreadable.
    pub fn attached(&self) -> Result<BTreeSet<String>> {
        let path = self.path.join("attached.json");
        let text = match files::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(BTreeSet::new());
            }
            read => read.with_context(|| format!("cannot read {}", path.display()))?,
        };
        let read = || -> Result<BTreeSet<String>> {
            let file: AttachedFile = serde_json::from_slice(&text)?;
            known_version(file.version)?;
            Ok(file.volumes)
        };
        read().with_context(|| format!("{} is no list of volumes", path.display()))
    }

    /// Remembers the volumes that commands attached.
    ///
    /// # Errors
    /// If the write fails. Then the old list stands.
    pub fn save_attached(&self, volumes: &BTreeSet<String>) -> Result<()> {
        let file = AttachedFile { version: VERSION, volumes: volumes.clone() };
        files::replace(&self.path.join("attached.json"), &serde_json::to_vec_pretty(&file)?, 0o600)
    }

    /// The description of a volume by identity.
    pub fn volume(&self, id: VolumeId) -> Result<Option<VolumeFile>> {
        let path = self.volume_dir(id).join("volume.json");
        if path.exists() { read_volume(&path).map(Some) } else { Ok(None) }
    }

    /// The memory of the encryption of a volume, by name and identity.
    ///
    /// # Errors
    /// If the memory is unreadable. The caller must not take this for a volume without encryption.
    pub fn encryption(&self, name: &str, id: VolumeId) -> Result<Option<KnownEncryption>> {
        let dir = self.path.join(ENCRYPTED);
        let read = || -> std::io::Result<Option<KnownEncryption>> {
            let entries = match std::fs::read_dir(&dir) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
                entries => entries?,
            };
            let mut pin = None;
            for entry in entries {
                let file = entry?.file_name();
                let Some((of, its)) = file.to_str().and_then(|file| file.rsplit_once('.')) else {
                    continue;
                };
                if its == id.to_string() {
                    return Ok(Some(KnownEncryption::Volume));
                }
                if of == pin_name(name) {
                    pin = Some(KnownEncryption::Name);
                }
            }
            Ok(pin)
        };
        read().with_context(|| format!("cannot read {}", dir.display()))
    }

    /// Remembers, durably and for good, that a volume is encrypted.
    ///
    /// # Errors
    /// If the write fails.
    pub fn remember_encryption(&self, name: &str, id: VolumeId) -> Result<()> {
        let dir = self.path.join(ENCRYPTED);
        files::create_dir(&dir)?;
        let path = dir.join(format!("{}.{id}", pin_name(name)));
        if path.exists() { Ok(()) } else { files::replace(&path, b"", 0o600) }
    }

    /// The directory of a volume.
    pub fn volume_dir(&self, id: VolumeId) -> PathBuf {
        self.path.join("volumes").join(id.to_string())
    }

    /// Replaces the description of a volume, durably.
    ///
    /// # Errors
    /// If the write fails. Then the old one stands.
    pub fn save_volume(&self, volume: &VolumeFile) -> Result<()> {
        let dir = self.volume_dir(volume.volume_id()?);
        files::replace(&dir.join("volume.json"), &serde_json::to_vec_pretty(volume)?, 0o600)
    }
}

/// The identity of the host whose directory this is.
pub fn identity(path: &Path, create: bool) -> Result<HostId> {
    let file = path.join("host.toml");
    let text = match files::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && create => {
            if std::fs::read_dir(path.join("volumes"))?.next().is_some() {
                bail!(
                    "{} is missing although there are volumes beside it: bring it back, the store \
                     knows this host by the identity in it",
                    file.display()
                );
            }
            let host = HostFile { version: VERSION, id: format!("{:032x}", random()?) };
            let text = toml::to_string(&host)?;
            files::replace(&file, text.as_bytes(), 0o600)?;
            text
        }
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read {}", file.display()));
        }
    };
    let read = || -> Result<HostId> {
        let host: HostFile = toml::from_str(&text)?;
        known_version(host.version)?;
        Ok(HostId(parse_id(&host.id)?))
    };
    read().with_context(|| format!("{} is not the identity of a host", file.display()))
}
