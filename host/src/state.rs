//! The state directory of a host: who the host is, and what it keeps of each volume.
//!
//! ```text
//! lock                        held while a host runs, with its process id
//! host.toml                   the identity drawn when the directory was made
//! stores.json                 where the stores are that this host has heard of; may be missing
//! attached.json               volumes that `longhaul attach` named; may be missing
//! encrypted/NAME.ID           that this volume was attached here encrypted; empty
//! volumes/ID/volume.json      what the journal beside it belongs to
//! volumes/ID/journal.NNNN     the journal's files, preallocated
//! volumes/ID/cache.0000      the read cache; may be missing
//! volumes/ID/zeroed.json      how many of these have been written once; may be missing
//! ```
//!
//! Promises: one process at a time; a description is replaced whole or not at all; a journal that was
//! created has its space. It does not know what is in a journal.

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use longhaul_base::Usage;
use longhaul_base::files;
use longhaul_base::units::show_bytes;
use longhaul_core::block::{Epoch, VolumeId};
use longhaul_core::host::journal::Geometry;
use longhaul_core::wire::link::HostId;
use rustix::fs::FallocateFlags;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

const VERSION: u32 = 1;

/// Bytes of the page with the header that each journal file begins with; frames follow.
const PAGE_BYTES: u64 = 4096;

/// Smallest `--journal-size`: twice what may wait in memory for the journal.
pub const MIN_JOURNAL_BYTES: u64 = 64 << 20;

/// Where it is remembered which volumes are encrypted.
const ENCRYPTED: &str = "encrypted";

/// What is remembered of the encryption of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pin {
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

/// What a state directory keeps of volumes.
#[derive(Debug, Default)]
pub struct Survey {
    /// In order of identity.
    pub volumes: Vec<VolumeFile>,
    /// What cannot be read: only the volume in that directory is concerned.
    pub damaged: Vec<Damaged>,
}

/// A description of a volume that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged {
    /// Name of its directory: the volume's identity.
    pub id: String,
    /// What is wrong with which file.
    pub problem: String,
}

#[derive(Serialize, Deserialize)]
struct StoresFile {
    version: u32,
    stores: Vec<String>,
}

/// The shape of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalShape {
    /// Bytes of each file.
    pub file_bytes: u64,
    /// How many files.
    pub files: u32,
}

impl JournalShape {
    /// The shape that `--journal-size` asks for.
    ///
    /// # Errors
    /// If the size is too small.
    pub fn from_size(bytes: u64) -> Result<JournalShape> {
        if bytes < MIN_JOURNAL_BYTES {
            bail!(Usage(format!(
                "--journal-size {} is too small: a journal takes at least {}; choose a size that \
                 holds what is written during the longest outage of the store to be survived",
                show_bytes(bytes),
                show_bytes(MIN_JOURNAL_BYTES)
            )));
        }
        let Geometry { file_bytes, files } = Geometry::for_size(bytes)
            .map_err(|error| Usage(format!("--journal-size {}: {error}", show_bytes(bytes))))?;
        Ok(JournalShape { file_bytes, files })
    }

    /// The same for the engine.
    pub fn geometry(self) -> Geometry {
        Geometry { file_bytes: self.file_bytes, files: self.files }
    }

    /// Bytes of all files.
    pub fn bytes(self) -> u64 {
        self.file_bytes.saturating_mul(u64::from(self.files))
    }
}

/// What the state directory knows of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeFile {
    /// Format of this description.
    pub version: u32,
    /// The name it was last attached by.
    pub name: String,
    /// Its identity, 32 hexadecimal digits.
    pub id: String,
    /// The epoch of the last attach.
    pub epoch: Epoch,
    /// Its size.
    pub sectors: u64,
    /// Logical block size in bytes.
    pub block_bytes: u32,
    /// The journal, unless the volume has only been used without one.
    pub journal: JournalShape,
    /// Names this journal; every frame in it carries it.
    pub journal_id: String,
    /// Whether nothing of this host is missing at the store: it detached, or was fenced off. Only
    /// then is the volume left alone at the next start.
    pub released: bool,
    /// Whether the store had everything when it was released.
    #[serde(default)]
    pub delivered: bool,
    /// Whether it was encrypted at the last attach: whatever the store says, nothing is written to it
    /// in plain text from then on.
    #[serde(default)]
    pub encrypted: bool,
}

impl VolumeFile {
    /// The description of a volume that has just got a journal.
    pub fn new(
        name: &str,
        id: VolumeId,
        sectors: u64,
        block_bytes: u32,
        shape: JournalShape,
    ) -> Result<Self> {
        Ok(VolumeFile {
            version: VERSION,
            name: name.into(),
            id: id.to_string(),
            epoch: 0,
            sectors,
            block_bytes,
            journal: shape,
            journal_id: format!("{:032x}", random()?),
            released: true,
            delivered: true,
            encrypted: false,
        })
    }

    /// The identity as a number.
    pub fn volume_id(&self) -> Result<VolumeId> {
        Ok(VolumeId(parse_id(&self.id)?))
    }

    /// The journal's name as a number.
    pub fn journal_number(&self) -> Result<u128> {
        parse_id(&self.journal_id)
    }
}

/// A number nobody can guess or draw again.
pub fn random() -> Result<u128> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .context("cannot read /dev/urandom")?;
    Ok(u128::from_ne_bytes(bytes))
}

/// Reads an identity: 32 hexadecimal digits.
pub fn parse_id(text: &str) -> Result<u128> {
    match u128::from_str_radix(text, 16) {
        Ok(id) if text.len() == 32 => Ok(id),
        _ => bail!("`{text}` is not an identity: 32 hexadecimal digits are expected"),
    }
}

impl StateDir {
    /// Opens a state directory, making it if need be, and locks it.
    ///
    /// # Errors
    /// If it cannot be made or read, another process holds it, a later version wrote it, or it is
    /// a store's.
    pub fn open(path: &Path) -> Result<StateDir> {
        // Before anything is written.
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
        Ok(StateDir { path: path.to_owned(), host, _lock: lock })
    }

    /// Who this host is.
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
    /// If they cannot be written.
    pub fn save_stores(&self, stores: &[String]) -> Result<()> {
        let file = StoresFile { version: VERSION, stores: stores.to_vec() };
        files::replace(&self.path.join("stores.json"), &serde_json::to_vec_pretty(&file)?, 0o600)
    }

    /// What it keeps of volumes, in order of identity, as far as it can be read.
    ///
    /// # Errors
    /// If the directory cannot be listed.
    pub fn volumes(&self) -> Result<Vec<VolumeFile>> {
        self.survey().map(|survey| survey.volumes)
    }

    /// The same, with what cannot be read.
    ///
    /// # Errors
    /// If the directory cannot be listed.
    pub fn survey(&self) -> Result<Survey> {
        survey(&self.path)
    }

    /// The volumes that [`StateDir::save_attached`] remembered.
    ///
    /// # Errors
    /// If there is a list that cannot be read.
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

    /// Remembers the volumes that are attached by command.
    ///
    /// # Errors
    /// If they cannot be written; then the old list stands.
    pub fn save_attached(&self, volumes: &BTreeSet<String>) -> Result<()> {
        let file = AttachedFile { version: VERSION, volumes: volumes.clone() };
        files::replace(&self.path.join("attached.json"), &serde_json::to_vec_pretty(&file)?, 0o600)
    }

    /// Removes a volume's journal and read cache with all their space. Nothing in them may be needed any
    /// more. Traces and pins stay. Where it is cut short, the volume can be attached or freed again: its
    /// description goes last, and says that nothing is missing at the store.
    ///
    /// # Errors
    /// If something cannot be removed.
    pub fn free_volume(&self, volume: &VolumeFile) -> Result<()> {
        let dir = self.volume_dir(volume.volume_id()?);
        if !(volume.released && volume.delivered) {
            self.save_volume(&VolumeFile { released: true, delivered: true, ..volume.clone() })?;
        }
        // Without a frame at its start nobody takes a journal for one that has been written to.
        let first = journal_path(&dir, 0);
        match OpenOptions::new().write(true).truncate(true).open(&first) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            opened => opened
                .and_then(|file| file.sync_all())
                .with_context(|| format!("cannot empty {}", first.display()))?,
        }
        let numbers = (0..volume.journal.files).rev().map(|number| journal_path(&dir, number));
        let others = [super::cache::path(&dir), zeroed_path(&dir), dir.join("volume.json")];
        for path in numbers.chain(others) {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                removed => {
                    removed.with_context(|| format!("cannot remove {}", path.display()))?;
                }
            }
        }
        // Traces and pins may be in it.
        if std::fs::remove_dir(&dir).is_err() {
            files::sync_dir(&dir).with_context(|| format!("cannot sync {}", dir.display()))?;
        }
        Ok(())
    }

    /// What it keeps of a volume by identity.
    pub fn volume(&self, id: VolumeId) -> Result<Option<VolumeFile>> {
        let path = self.volume_dir(id).join("volume.json");
        if path.exists() { read_volume(&path).map(Some) } else { Ok(None) }
    }

    /// What is remembered of the encryption of a volume, by name and identity.
    ///
    /// # Errors
    /// If it cannot be read: nothing is attached as if nothing were remembered.
    pub fn encryption(&self, name: &str, id: VolumeId) -> Result<Option<Pin>> {
        let dir = self.path.join(ENCRYPTED);
        let read = || -> std::io::Result<Option<Pin>> {
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
                    return Ok(Some(Pin::Volume));
                }
                if of == pin_name(name) {
                    pin = Some(Pin::Name);
                }
            }
            Ok(pin)
        };
        read().with_context(|| format!("cannot read {}", dir.display()))
    }

    /// Remembers, durably and for good, that a volume is encrypted.
    ///
    /// # Errors
    /// If it cannot be written.
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
    /// If it cannot be written; then the old one stands.
    pub fn save_volume(&self, volume: &VolumeFile) -> Result<()> {
        let dir = self.volume_dir(volume.volume_id()?);
        files::replace(&dir.join("volume.json"), &serde_json::to_vec_pretty(volume)?, 0o600)
    }

    /// Makes the files of a journal with all their space, or removes what it made. `plan` gives the
    /// content of each file's start.
    ///
    /// # Errors
    /// If there is not enough space: the message says how much is missing. If there are files of a
    /// journal that has been written to: nothing says any more whose writes they hold.
    pub fn create_journal(&self, volume: &VolumeFile, plan: &[(u32, Bytes)]) -> Result<()> {
        let dir = self.volume_dir(volume.volume_id()?);
        files::create_dir(&dir)?;
        refuse_used(&dir)?;
        let free = files::free_bytes(&dir)?;
        let need = volume.journal.bytes();
        let full = |free: u64| {
            anyhow::anyhow!(
                "the journal of volume {} needs {} in {}, where {} are free: make room, choose a \
                 smaller --journal-size, or a --state on another disk",
                volume.name,
                show_bytes(need),
                dir.display(),
                show_bytes(free)
            )
        };
        if free < need {
            return Err(full(free));
        }
        let made = plan.iter().try_for_each(|(number, page)| -> std::io::Result<()> {
            let path = journal_path(&dir, *number);
            let mut file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(path)?;
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, volume.journal.file_bytes)?;
            if *number == 0 {
                zero_fill(&mut file, volume.journal.file_bytes)?;
                file.rewind()?;
            }
            file.write_all(page)?;
            file.sync_all()
        });
        if let Err(error) = made.and_then(|()| File::open(&dir)?.sync_all()) {
            for number in 0..volume.journal.files {
                // The space is given back as far as that works; the error that counts is the first.
                let _ = std::fs::remove_file(journal_path(&dir, number));
            }
            return Err(match error.raw_os_error() {
                Some(libc::ENOSPC | libc::EDQUOT) => full(files::free_bytes(&dir)?),
                _ => anyhow::Error::new(error)
                    .context(format!("cannot create a journal in {}", dir.display())),
            });
        }
        self.save_volume(volume)
    }

    /// Whether [`StateDir::free_volume`] began to remove a journal and was cut short.
    pub fn is_half_freed(&self, volume: &VolumeFile) -> bool {
        let first = |id| journal_path(&self.volume_dir(id), 0);
        let bytes =
            volume.volume_id().map(|id| std::fs::metadata(first(id)).map_or(0, |m| m.len()));
        volume.released && volume.delivered && matches!(bytes, Ok(0))
    }

    /// Opens the files of a journal, in order.
    ///
    /// # Errors
    /// If one is missing or has another size than when it was made.
    pub fn open_journal(&self, volume: &VolumeFile) -> Result<Vec<File>> {
        open_journal(&self.volume_dir(volume.volume_id()?), volume, true)
    }
}

/// How far the files of a new journal have been filled with zeroes: a file of its own, since another
/// thread than the one of `volume.json` writes it.
#[derive(Serialize, Deserialize)]
struct Zeroed {
    journal_id: String,
    files: u32,
}

fn zeroed_path(dir: &Path) -> PathBuf {
    dir.join("zeroed.json")
}

/// How many files of a journal, from the first, need no zeroes any more, as far as is known.
pub fn zeroed_files(dir: &Path, volume: &VolumeFile) -> u32 {
    let zeroed: Option<Zeroed> = files::read(&zeroed_path(dir))
        .ok()
        .and_then(|text| serde_json::from_slice(&text).ok())
        .filter(|zeroed: &Zeroed| zeroed.journal_id == volume.journal_id);
    // The first file is written when a journal is made. Without the rest of the knowledge, files
    // are zeroed once more.
    zeroed.map_or(1, |zeroed| zeroed.files.max(1))
}

/// Remembers [`zeroed_files`].
///
/// # Errors
/// If it cannot be written; then files will be zeroed again after a restart.
pub fn save_zeroed_files(dir: &Path, journal_id: &str, files: u32) -> Result<()> {
    let zeroed = Zeroed { journal_id: journal_id.into(), files };
    files::replace(&zeroed_path(dir), &serde_json::to_vec(&zeroed)?, 0o600)
}

/// Opens the files of the journal in a volume's directory, in order.
pub fn open_journal(dir: &Path, volume: &VolumeFile, write: bool) -> Result<Vec<File>> {
    let open = |number| {
        let path = journal_path(dir, number);
        // A pipe in its place is not waited for, and has no length.
        let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let file = OpenOptions::new().read(true).write(write).custom_flags(flags).open(&path);
        let file = file.with_context(|| {
            format!(
                "cannot open the journal file {}: bring it back, or move {} away to give up what \
                 was not delivered",
                path.display(),
                dir.display()
            )
        })?;
        let bytes = file.metadata()?.len();
        if bytes != volume.journal.file_bytes {
            bail!(
                "the journal file {} has {bytes} bytes instead of {}: restore it from a copy, or \
                 move {} away to give up what was not delivered",
                path.display(),
                volume.journal.file_bytes,
                dir.display()
            );
        }
        Ok(file)
    };
    (0..volume.journal.files).map(open).collect()
}

/// Where a journal's file is.
pub fn journal_path(dir: &Path, number: u32) -> PathBuf {
    dir.join(format!("journal.{number:04}"))
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

fn survey(path: &Path) -> Result<Survey> {
    let dir = path.join("volumes");
    let mut survey = Survey::default();
    let entries =
        std::fs::read_dir(&dir).with_context(|| format!("cannot list {}", dir.display()))?;
    for entry in entries {
        let entry = entry?;
        let file = entry.path().join("volume.json");
        // A directory without a description was made by an attach that failed before it had a
        // journal, or has what stays of a volume that was detached.
        if std::fs::symlink_metadata(&file).is_err() {
            continue;
        }
        match read_volume(&file) {
            Ok(volume) => survey.volumes.push(volume),
            Err(error) => survey.damaged.push(Damaged {
                id: entry.file_name().to_string_lossy().into_owned(),
                problem: format!("{error:#}"),
            }),
        }
    }
    survey.volumes.sort_by(|a, b| a.id.cmp(&b.id));
    survey.damaged.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(survey)
}

/// Reads the description of a volume.
///
/// # Errors
/// If it is none.
pub fn read_volume(path: &Path) -> Result<VolumeFile> {
    let read = || -> Result<VolumeFile> {
        let volume: VolumeFile = serde_json::from_slice(&files::read(path)?)?;
        known_version(volume.version)?;
        let id = volume.volume_id()?;
        volume.journal_number()?;
        if path.parent().and_then(Path::file_name) != Some(id.to_string().as_ref()) {
            bail!("it describes volume {id}, not the one its directory is named after");
        }
        Ok(volume)
    };
    read().with_context(|| format!("{} does not describe a volume", path.display()))
}

fn known_version(version: u32) -> Result<()> {
    if version > VERSION {
        bail!("it has version {version}, and this longhaul knows up to {VERSION}: use a newer one");
    }
    Ok(())
}

/// Refuses a directory whose journal holds frames. What a creation leaves that was cut short holds
/// zeroes where the first frame goes, right after the page of the header.
fn refuse_used(dir: &Path) -> Result<()> {
    let path = journal_path(dir, 0);
    let mut page = Vec::new();
    let read = files::open(&path).and_then(|mut file| {
        file.seek(SeekFrom::Start(PAGE_BYTES))?;
        file.take(PAGE_BYTES).read_to_end(&mut page)
    });
    match read {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        Ok(_) if page.iter().all(|byte| *byte == 0) => Ok(()),
        Ok(_) => bail!(
            "{} holds a journal and no volume.json that says what is in it: bring that file back from \
             a copy, or move the directory away to give up what was not delivered",
            dir.display()
        ),
    }
}

fn zero_fill(file: &mut File, bytes: u64) -> std::io::Result<()> {
    let zeroes = vec![0; 1 << 20];
    let mut left = bytes;
    while left > 0 {
        let part = left.min(zeroes.len() as u64);
        file.write_all(&zeroes[..part as usize])?;
        left -= part;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(shape: JournalShape) -> VolumeFile {
        VolumeFile::new("v", VolumeId(7), 2048, 512, shape).unwrap()
    }

    #[test]
    fn identity_survives_and_is_not_made_twice() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let first = StateDir::open(&path).unwrap().host();
        assert_eq!(StateDir::open(&path).unwrap().host(), first);
        std::fs::write(path.join("host.toml"), "version = 1\nid = \"xyz\"").unwrap();
        let error = format!("{:#}", StateDir::open(&path).err().unwrap());
        assert!(error.contains("host.toml") && error.contains("hexadecimal"), "{error}");
        std::fs::write(path.join("host.toml"), "version = 9\nid = \"\"").unwrap();
        assert!(format!("{:#}", StateDir::open(&path).err().unwrap()).contains("newer"));
    }

    #[test]
    fn what_was_encrypted_is_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        let encryption = |name: &str, id: u128| state.encryption(name, VolumeId(id)).unwrap();
        assert_eq!(encryption("acme/db", 7), None);
        for _ in 0..2 {
            state.remember_encryption("acme/db", VolumeId(7)).unwrap();
        }
        state.remember_encryption("a.b", VolumeId(9)).unwrap();
        assert_eq!(encryption("acme/db", 7), Some(Pin::Volume));
        assert_eq!(encryption("other", 7), Some(Pin::Volume));
        assert_eq!(encryption("acme/db", 8), Some(Pin::Name));
        assert_eq!((encryption("db", 8), encryption("a", 8)), (None, None));
        assert_eq!(encryption("a.b", 8), Some(Pin::Name));
        // What cannot be read is not taken for nothing.
        std::fs::remove_dir_all(dir.path().join(ENCRYPTED)).unwrap();
        std::fs::write(dir.path().join(ENCRYPTED), "").unwrap();
        assert!(state.encryption("db", VolumeId(8)).is_err());
        assert!(state.remember_encryption("db", VolumeId(8)).is_err());
    }

    #[test]
    fn a_lost_identity_beside_volumes_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        drop(StateDir::open(dir.path()).unwrap());
        std::fs::create_dir(dir.path().join("volumes/x")).unwrap();
        std::fs::remove_file(dir.path().join("host.toml")).unwrap();
        assert!(StateDir::open(dir.path()).err().unwrap().to_string().contains("bring it back"));
    }

    #[test]
    fn the_lock_names_its_holder() {
        let dir = tempfile::tempdir().unwrap();
        let held = StateDir::open(dir.path()).unwrap();
        let error = StateDir::open(dir.path()).err().unwrap().to_string();
        assert!(error.contains(&std::process::id().to_string()), "{error}");
        drop(held);
        StateDir::open(dir.path()).unwrap();
    }

    #[test]
    fn journals_come_with_their_space() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        let volume = volume(JournalShape { file_bytes: 64 << 10, files: 3 });
        let plan: Vec<_> = (0..3).map(|n| (n, Bytes::from(vec![n as u8 + 1; 16]))).collect();
        state.create_journal(&volume, &plan).unwrap();
        let files = state.open_journal(&volume).unwrap();
        assert_eq!(files.len(), 3);
        for (number, mut file) in files.into_iter().enumerate() {
            use std::os::unix::fs::MetadataExt as _;
            assert!(file.metadata().unwrap().blocks() * 512 >= 64 << 10, "space is reserved");
            let mut start = [0; 17];
            file.read_exact(&mut start).unwrap();
            assert_eq!((start[0], start[16]), (number as u8 + 1, 0));
        }
        assert_eq!(state.volumes().unwrap(), std::slice::from_ref(&volume));
        assert_eq!(state.volume(VolumeId(7)).unwrap(), Some(volume.clone()));
        assert_eq!(state.volume(VolumeId(8)).unwrap(), None);
        let file = journal_path(&state.volume_dir(VolumeId(7)), 1);
        OpenOptions::new().write(true).open(&file).unwrap().set_len(5).unwrap();
        let error = state.open_journal(&volume).unwrap_err().to_string();
        assert!(error.contains("journal.0001") && error.contains("5 bytes"), "{error}");
        std::fs::remove_file(file).unwrap();
        assert!(format!("{:#}", state.open_journal(&volume).unwrap_err()).contains("journal.0001"));
    }

    #[test]
    fn what_was_zeroed_is_remembered_by_journal() {
        let dir = tempfile::tempdir().unwrap();
        let volume = volume(JournalShape { file_bytes: 4096, files: 4 });
        assert_eq!(zeroed_files(dir.path(), &volume), 1);
        save_zeroed_files(dir.path(), &volume.journal_id, 3).unwrap();
        assert_eq!(zeroed_files(dir.path(), &volume), 3);
        let another = VolumeFile { journal_id: "0".into(), ..volume.clone() };
        assert_eq!(zeroed_files(dir.path(), &another), 1);
        std::fs::write(dir.path().join("zeroed.json"), "{").unwrap();
        assert_eq!(zeroed_files(dir.path(), &volume), 1);
    }

    #[test]
    fn a_disk_without_room_is_an_error_with_numbers() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        let volume = volume(JournalShape { file_bytes: 1 << 50, files: 2 });
        let error = state.create_journal(&volume, &[]).unwrap_err().to_string();
        assert!(error.contains("2 PiB") && error.contains("are free"), "{error}");
        assert!(state.volumes().unwrap().is_empty());
    }

    #[test]
    fn small_journals_are_refused_with_the_least_size() {
        let error = JournalShape::from_size(1 << 20).unwrap_err().to_string();
        assert!(error.contains("1 MiB") && error.contains("64 MiB"), "{error}");
        let shape = JournalShape::from_size(1 << 30).unwrap();
        assert_eq!(shape, JournalShape { file_bytes: 64 << 20, files: 16 });
    }

    #[test]
    fn descriptions_that_make_no_sense_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        let volume = volume(JournalShape { file_bytes: 4096, files: 1 });
        state.create_journal(&volume, &[]).unwrap();
        let path = state.volume_dir(VolumeId(7)).join("volume.json");
        std::fs::write(&path, "{").unwrap();
        let survey = state.survey().unwrap();
        let [Damaged { id, problem }] = survey.damaged.as_slice() else { panic!("{survey:?}") };
        assert_eq!(id, &volume.id);
        assert!(problem.contains("volume.json"), "{problem}");
        let error = format!("{:#}", state.volume(VolumeId(7)).unwrap_err());
        assert!(error.contains("volume.json"), "{error}");
    }

    #[test]
    fn one_bad_description_costs_its_own_volume_only() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        let good = volume(JournalShape { file_bytes: 4096, files: 1 });
        state.create_journal(&good, &[]).unwrap();
        let bad = state.volume_dir(VolumeId(8));
        std::fs::create_dir(&bad).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            bad.join("volume.json"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        assert_eq!(state.volumes().unwrap(), [good]);
        let damaged = state.survey().unwrap().damaged;
        assert!(damaged[0].problem.contains("not a regular file"), "{damaged:?}");
    }

    #[test]
    fn a_freed_volume_leaves_nothing_and_can_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        let volume = volume(JournalShape { file_bytes: 8192, files: 2 });
        let used: Vec<_> = (0..2).map(|n| (n, Bytes::from(vec![7; 8192]))).collect();
        state.create_journal(&volume, &used).unwrap();
        state.free_volume(&volume).unwrap();
        assert!(!state.volume_dir(VolumeId(7)).exists());
        // Traces stay, and what was cut short is in nobody's way.
        state.create_journal(&volume, &used).unwrap();
        std::fs::create_dir(state.volume_dir(VolumeId(7)).join("traces")).unwrap();
        OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(journal_path(&state.volume_dir(VolumeId(7)), 0))
            .unwrap();
        assert!(state.is_half_freed(&volume));
        state.create_journal(&volume, &used).unwrap();
        assert!(!state.is_half_freed(&volume));
        state.free_volume(&VolumeFile { released: false, delivered: false, ..volume }).unwrap();
        assert_eq!(std::fs::read_dir(state.volume_dir(VolumeId(7))).unwrap().count(), 1);
        assert!(state.survey().unwrap().volumes.is_empty());
    }

    #[test]
    fn what_commands_attached_is_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        assert!(state.attached().unwrap().is_empty());
        let names: BTreeSet<String> = ["a".to_owned(), "t/b".to_owned()].into();
        state.save_attached(&names).unwrap();
        assert_eq!(state.attached().unwrap(), names);
        std::fs::write(dir.path().join("attached.json"), "[").unwrap();
        assert!(format!("{:#}", state.attached().unwrap_err()).contains("attached.json"));
    }
}
