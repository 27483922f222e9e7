//! The description of each volume in a state directory: `volume.json`.

use super::journal_device::JournalSlot;
use anyhow::{Context as _, Result, bail};
use longhaul_base::Usage;
use longhaul_base::files;
use longhaul_base::units::show_bytes;
use longhaul_core::block::{Epoch, VolumeId};
use longhaul_core::host::journal::Geometry;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// Version of the files that describe something in a state directory.
pub(super) const VERSION: u32 = 1;

/// Smallest `--journal-size`: twice what may wait in memory for the journal.
pub const MIN_JOURNAL_BYTES: u64 = 64 << 20;

/// The volumes in a state directory.
#[derive(Debug, Default)]
pub struct Survey {
    /// In order of identity.
    pub volumes: Vec<VolumeFile>,
    /// Unreadable descriptions. Each concerns only the volume in its directory.
    pub damaged: Vec<Damaged>,
}

/// An unreadable description of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged {
    /// Name of its directory: the volume's identity.
    pub id: String,
    /// The problem, with the file's name.
    pub problem: String,
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
                 holds all writes during the longest outage of the store that you want to survive",
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

/// The description of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeFile {
    /// Format of this description.
    pub version: u32,
    /// Its name at the last attach.
    pub name: String,
    /// Its identity, 32 hexadecimal digits.
    pub id: String,
    /// The epoch of the last attach.
    pub epoch: Epoch,
    /// Its size.
    pub sectors: u64,
    /// Logical block size in bytes.
    pub block_bytes: u32,
    /// The journal, unless the host has used the volume only without one.
    pub journal: JournalShape,
    /// Its place, if that is a journal device and not files beside this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slot: Option<JournalSlot>,
    /// Names this journal; every frame in it carries it.
    pub journal_id: String,
    /// Whether the store lacks nothing of this host: it detached, or was fenced off. Only then the
    /// next start leaves the volume alone.
    pub released: bool,
    /// Whether the store had everything when it was released.
    pub delivered: bool,
    /// Whether it was encrypted at the last attach. From then on the host writes no plain text to
    /// it, whatever the store says.
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
            slot: None,
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

/// Reads all descriptions below a state directory.
pub(super) fn survey(path: &Path) -> Result<Survey> {
    let dir = path.join("volumes");
    let mut survey = Survey::default();
    let entries =
        std::fs::read_dir(&dir).with_context(|| format!("cannot list {}", dir.display()))?;
    for entry in entries {
        let entry = entry?;
        let file = entry.path().join("volume.json");
        // An attach that failed before it had a journal leaves a directory without a description. A
        // detach may leave one too, with traces and pins.
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

/// Refuses a file of another version.
pub(super) fn known_version(version: u32) -> Result<()> {
    if version != VERSION {
        bail!(
            "it has version {version}, and this longhaul knows version {VERSION}: use a newer one"
        );
    }
    Ok(())
}
