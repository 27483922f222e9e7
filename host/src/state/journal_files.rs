//! Makes the files of a journal with all their space, opens them, and frees them.

use super::description::VolumeFile;
use super::dir::StateDir;
use super::journal_device::{JournalDevice, SlotContent};
use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use longhaul_base::disk::FileArea;
use longhaul_base::files;
use longhaul_base::units::show_bytes;
use rustix::fs::FallocateFlags;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Bytes of the page with the header that each journal file begins with; frames follow.
const PAGE_BYTES: u64 = 4096;

impl StateDir {
    /// Makes a journal with all its space, or removes what it made. `plan` gives the content of
    /// each file's start. If there is a journal device, the journal is there, and the description
    /// says so.
    ///
    /// # Errors
    /// If there is not enough space: the message says how much is missing. If there are files of a
    /// used journal: nothing says any more whose writes they hold.
    pub fn create_journal(&self, volume: &mut VolumeFile, plan: &[(u32, Bytes)]) -> Result<()> {
        let dir = self.volume_dir(volume.volume_id()?);
        files::create_dir(&dir)?;
        refuse_used(&dir)?;
        if let Some(device) = self.device() {
            return self.create_on(device, volume, plan);
        }
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
                // Free as much of the space as possible. The first error counts.
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

    fn create_on(
        &self,
        device: &JournalDevice,
        volume: &mut VolumeFile,
        plan: &[(u32, Bytes)],
    ) -> Result<()> {
        if let Some(before) = self.volume(volume.volume_id()?)?
            && let Some(slot) = &before.slot
        {
            // A crash has cut short its end.
            device.free(&before, slot)?;
        }
        let slot = device.take()?;
        volume.slot = Some(slot.clone());
        let made = self.save_volume(volume).and_then(|()| device.create(volume, &slot, plan));
        if made.is_err() {
            // The description says that the store lacks nothing, so nobody needs the slot.
            let _ = device.give_back(&slot);
        }
        made
    }

    /// Removes a volume's journal and read cache with all their space. The store must not need
    /// anything in them. Traces and pins stay. If a crash cuts this short, the host can attach or
    /// free the volume again. The description goes last, and says that the store lacks nothing.
    ///
    /// # Errors
    /// If something stays.
    pub fn free_volume(&self, volume: &VolumeFile) -> Result<()> {
        let dir = self.volume_dir(volume.volume_id()?);
        if !(volume.released && volume.delivered) {
            self.save_volume(&VolumeFile { released: true, delivered: true, ..volume.clone() })?;
        }
        if let Some(slot) = &volume.slot {
            self.device_of(volume)?.free(volume, slot)?;
        }
        // Without a frame at its start nobody takes a journal for a used one.
        let first = journal_path(&dir, 0);
        match OpenOptions::new().write(true).truncate(true).open(&first) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            opened => opened
                .and_then(|file| file.sync_all())
                .with_context(|| format!("cannot empty {}", first.display()))?,
        }
        let numbers = (0..volume.journal.files).rev().map(|number| journal_path(&dir, number));
        let others = [cache_path(&dir), zeroed_path(&dir), dir.join("volume.json")];
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

    /// Whether [`StateDir::free_volume`] began to remove a journal and did not finish. Or, on a
    /// journal device, [`StateDir::create_journal`] to make one.
    pub fn is_half_freed(&self, volume: &VolumeFile) -> bool {
        if let Some(slot) = &volume.slot {
            let content = self.device_of(volume).and_then(|device| device.content(volume, slot));
            let is_gone = content.is_ok_and(SlotContent::is_gone);
            return volume.released && volume.delivered && is_gone;
        }
        let first = |id| journal_path(&self.volume_dir(id), 0);
        let bytes =
            volume.volume_id().map(|id| std::fs::metadata(first(id)).map_or(0, |m| m.len()));
        volume.released && volume.delivered && matches!(bytes, Ok(0))
    }

    /// Opens the files of a journal, in order.
    ///
    /// # Errors
    /// If one is missing, or has not the size of its creation. If the journal is on a journal
    /// device that this host was not given.
    pub fn open_journal(&self, volume: &VolumeFile) -> Result<Vec<FileArea>> {
        match &volume.slot {
            Some(slot) => self.device_of(volume)?.open_journal(volume, slot),
            None => open_journal(&self.volume_dir(volume.volume_id()?), volume, true),
        }
    }

    fn device_of(&self, volume: &VolumeFile) -> Result<&JournalDevice> {
        self.device().with_context(|| {
            format!(
                "the journal of volume {} is on a journal device: start the host with --journal \
                 DEVICE",
                volume.name
            )
        })
    }
}

/// The number of files of a new journal that hold zeroes. It has a file of its own, because the
/// thread that writes it is not that of `volume.json`.
#[derive(Serialize, Deserialize)]
struct Zeroed {
    journal_id: String,
    files: u32,
}

fn zeroed_path(dir: &Path) -> PathBuf {
    dir.join("zeroed.json")
}

/// Number of files of a journal, from the first, that are known to need no zeroes any more.
pub fn zeroed_files(dir: &Path, volume: &VolumeFile) -> u32 {
    let zeroed: Option<Zeroed> = files::read(&zeroed_path(dir))
        .ok()
        .and_then(|text| serde_json::from_slice(&text).ok())
        .filter(|zeroed: &Zeroed| zeroed.journal_id == volume.journal_id);
    // The first file is written at the creation of a journal. Without further knowledge, the host
    // zeroes the other files once more.
    zeroed.map_or(1, |zeroed| zeroed.files.max(1))
}

/// Remembers [`zeroed_files`].
///
/// # Errors
/// If the write fails. Then the host zeroes the files again after a restart.
pub fn save_zeroed_files(dir: &Path, journal_id: &str, files: u32) -> Result<()> {
    let zeroed = Zeroed { journal_id: journal_id.into(), files };
    files::replace(&zeroed_path(dir), &serde_json::to_vec(&zeroed)?, 0o600)
}

/// Opens the files of the journal in a volume's directory, in order.
pub fn open_journal(dir: &Path, volume: &VolumeFile, write: bool) -> Result<Vec<FileArea>> {
    let open = |number| {
        let path = journal_path(dir, number);
        // A pipe in its place has no length, and must not make the open wait.
        let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let file = OpenOptions::new().read(true).write(write).custom_flags(flags).open(&path);
        let file = file.with_context(|| {
            format!(
                "cannot open the journal file {}: restore it, or move {} away to give up the \
                 undelivered writes",
                path.display(),
                dir.display()
            )
        })?;
        let bytes = file.metadata()?.len();
        if bytes != volume.journal.file_bytes {
            bail!(
                "the journal file {} has {bytes} bytes instead of {}: restore it from a copy, or \
                 move {} away to give up the undelivered writes",
                path.display(),
                volume.journal.file_bytes,
                dir.display()
            );
        }
        Ok(FileArea::whole(file)?)
    };
    (0..volume.journal.files).map(open).collect()
}

/// Where a journal's file is.
pub fn journal_path(dir: &Path, number: u32) -> PathBuf {
    dir.join(format!("journal.{number:04}"))
}

/// Where the read cache of a volume is.
pub fn cache_path(dir: &Path) -> PathBuf {
    dir.join("cache.0000")
}

/// Refuses a directory whose journal holds frames. An unfinished creation leaves zeroes in the
/// place of the first frame, right after the page of the header.
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
            "{} holds a journal and no volume.json that describes it: restore that file from a \
             copy, or move the directory away to give up the undelivered writes",
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
