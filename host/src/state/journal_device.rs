//! A block device, or a file in its place, with the journals of many volumes.
//!
//! ```text
//! 0                          a page with the header
//! 1 MiB                      slot 0: the files of a journal, one after another
//! 1 MiB + bytes of a slot    slot 1
//! ```
//!
//! All slots have the same size. `volume.json` names the slot of a volume, and nothing on the
//! device says who has which.
//!
//! Promises: one process at a time; a slot goes to one volume; a slot with a journal goes to no
//! other volume until [`JournalDevice::free`]. A description names a slot before there is a journal
//! in it, so a journal without a description is one whose description was lost. A description may
//! also outlive its journal. So the header in a slot says whose the journal is, and nobody else
//! touches it.

use super::description::{JournalShape, VERSION, VolumeFile, known_version, parse_id, random};
use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use longhaul_base::device;
use longhaul_base::disk::FileArea;
use longhaul_base::units::show_bytes;
use longhaul_core::host::journal::FileHeader;
use longhaul_core::wire::link::HostId;
use rustix::fs::{Advice, FallocateFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The header begins with this line. Its values follow as JSON, and zeroes to the end of the page.
const MAGIC: &[u8] = b"longhaul journal device\n";

const PAGE_BYTES: u64 = 4096;

/// Where the first slot begins.
const FIRST_SLOT: u64 = 1 << 20;

/// The place of a journal on a journal device, in `volume.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalSlot {
    /// The device: the identity in its header.
    pub device: String,
    /// The number of the slot.
    pub number: u32,
}

/// The journal in a slot, as a volume sees it that names the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotContent {
    /// No journal: a crash came before [`JournalDevice::create`], or after
    /// [`JournalDevice::free`].
    Blank,
    /// Its own.
    Ours,
    /// A later one of another volume.
    Another,
    /// Perhaps its own: the header is damaged.
    Damaged,
}

impl SlotContent {
    /// Whether it is certain that the volume has no journal there.
    pub fn is_gone(self) -> bool {
        matches!(self, SlotContent::Blank | SlotContent::Another)
    }
}

/// An opened journal device.
pub struct JournalDevice {
    path: PathBuf,
    /// Keeps the device for this process.
    file: File,
    header: Header,
    slots: u32,
    /// Slots with journals.
    used: Mutex<BTreeSet<u32>>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Header {
    version: u32,
    /// The identity of the device.
    id: String,
    /// The host whose journals it has.
    host: String,
    /// Of each slot.
    journal: JournalShape,
}

impl JournalDevice {
    /// Opens the journal device of this host and these volumes of it. A blank device becomes one,
    /// with slots of that shape.
    ///
    /// # Errors
    /// If it is missing, in use, too small, another host's, or holds something else. If it is not
    /// the device of the volumes, or two of them have the same slot.
    pub fn open(
        path: &Path,
        host: HostId,
        shape: JournalShape,
        volumes: &[VolumeFile],
    ) -> Result<JournalDevice> {
        let file = device::open(path, true)?;
        allocate(path, &file)?;
        // The page cache may hold what never reached the disk.
        rustix::fs::fdatasync(&file)?;
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
        let header = match read_header(path, &file)? {
            Some(header) => header,
            None => {
                refuse_others(path, volumes)?;
                format(path, &file, host, shape)?
            }
        };
        if header.host != host.to_string() {
            bail!(
                "{} has the journals of host {}, and this is host {host}: start that host with it, \
                 or give this one another device",
                path.display(),
                header.host
            );
        }
        let device = JournalDevice::over(path, file, header)?;
        device.adopt(volumes)?;
        Ok(device)
    }

    /// Opens a journal device to read it.
    ///
    /// # Errors
    /// If it is none, or in use.
    pub fn open_stopped(path: &Path) -> Result<JournalDevice> {
        let file = device::open(path, false)?;
        let header = read_header(path, &file)?;
        let header = header.with_context(|| format!("{} is blank", path.display()))?;
        JournalDevice::over(path, file, header)
    }

    fn over(path: &Path, file: File, header: Header) -> Result<JournalDevice> {
        let slots = slots(device::size(&file)?, header.journal);
        if slots == 0 {
            bail!(
                "{} is too small: it has {}, and a journal takes {} after the first {}: choose a \
                 larger device or a smaller --journal-size",
                path.display(),
                show_bytes(device::size(&file)?),
                show_bytes(header.journal.bytes()),
                show_bytes(FIRST_SLOT)
            );
        }
        Ok(JournalDevice { path: path.into(), file, header, slots, used: Mutex::default() })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The shape of each journal on it.
    pub fn shape(&self) -> JournalShape {
        self.header.journal
    }

    /// Takes in which slots have the journals of these volumes.
    fn adopt(&self, volumes: &[VolumeFile]) -> Result<()> {
        let mut used = self.used();
        for volume in volumes {
            let Some(slot) = &volume.slot else { continue };
            self.number(volume, slot)?;
            if volume.released && volume.delivered && self.content(volume, slot)?.is_gone() {
                continue;
            }
            if !used.insert(slot.number) {
                bail!(
                    "volume {} and another one have their journals in slot {} of {}: bring back \
                     the volume.json files as they were",
                    volume.name,
                    slot.number,
                    self.path.display()
                );
            }
        }
        Ok(())
    }

    /// Takes a slot that no volume has, for a volume whose description is to name it.
    ///
    /// # Errors
    /// If all slots are taken, or a read fails.
    pub fn take(&self) -> Result<JournalSlot> {
        let mut used = self.used();
        let mut orphans = Vec::new();
        for number in (0..self.slots).filter(|number| !used.contains(number)) {
            if is_blank(&self.page(self.start(number))?) {
                used.insert(number);
                return Ok(JournalSlot { device: self.header.id.clone(), number });
            }
            orphans.push(number);
        }
        let path = self.path.display();
        let advice = match orphans.first() {
            Some(&slot) => format!(
                "; {} of them have journals that no volume.json of this host describes: bring \
                 these files back, or give up the undelivered writes in slot {slot} with `dd \
                 if=/dev/zero of={path} bs=4096 seek={} count=1 conv=notrunc,fsync`",
                orphans.len(),
                self.start(slot) / PAGE_BYTES
            ),
            None => String::new(),
        };
        bail!(
            "{path} has no room for another journal: all of its {} slots of {} are taken{advice}; \
             detach a volume, or use a larger device",
            self.slots,
            show_bytes(self.shape().bytes())
        )
    }

    /// Makes a journal in the slot of a volume. `plan` gives the content of each file's start.
    /// Frames of an earlier journal may stay, because they carry its identity.
    ///
    /// # Errors
    /// If a write fails.
    pub fn create(
        &self,
        volume: &VolumeFile,
        slot: &JournalSlot,
        plan: &[(u32, Bytes)],
    ) -> Result<()> {
        let start = self.start(self.number(volume, slot)?);
        let write = |(number, page): &(u32, Bytes)| {
            self.file.write_all_at(page, start + u64::from(*number) * self.shape().file_bytes)
        };
        let made = plan.iter().try_for_each(write).and_then(|()| self.file.sync_data());
        made.with_context(|| format!("cannot make a journal in {}", self.path.display()))
    }

    /// The files of a journal, in order.
    ///
    /// # Errors
    /// If the slot is not on this device, or the device does not open.
    pub fn open_journal(&self, volume: &VolumeFile, slot: &JournalSlot) -> Result<Vec<FileArea>> {
        let start = self.start(self.number(volume, slot)?);
        let mut options = OpenOptions::new();
        options.read(true).write(!self.is_read_only()?);
        // The kernel reports an error of writeback once to each open file description, so each file
        // has one.
        let open = |number: u32| {
            let file = options.open(&self.path)?;
            let start = start + u64::from(number) * self.shape().file_bytes;
            Ok(FileArea::part(file, start, self.shape().file_bytes))
        };
        let files = (0..self.shape().files).map(open).collect::<std::io::Result<_>>();
        files.with_context(|| format!("cannot open {}", self.path.display()))
    }

    /// Frees the slot of a volume, if its journal is there. The store must not need anything in it.
    ///
    /// # Errors
    /// If a read or write fails.
    pub fn free(&self, volume: &VolumeFile, slot: &JournalSlot) -> Result<()> {
        match self.content(volume, slot)? {
            SlotContent::Ours => self.give_back(slot),
            SlotContent::Blank | SlotContent::Another | SlotContent::Damaged => Ok(()),
        }
    }

    /// Gives back a slot that [`JournalDevice::take`] gave to the caller.
    ///
    /// # Errors
    /// If a write fails. Then nobody gets the slot before the next start.
    pub fn give_back(&self, slot: &JournalSlot) -> Result<()> {
        let mut used = self.used();
        let cleared = self.clear(slot.number);
        cleared.with_context(|| format!("cannot free a journal in {}", self.path.display()))?;
        used.remove(&slot.number);
        Ok(())
    }

    /// The journal in the slot of a volume.
    ///
    /// # Errors
    /// If the slot is not on this device, or a read fails.
    pub fn content(&self, volume: &VolumeFile, slot: &JournalSlot) -> Result<SlotContent> {
        let page = self.page(self.start(self.number(volume, slot)?));
        let page = page.with_context(|| format!("cannot read {}", self.path.display()))?;
        let journal = volume.journal_number()?;
        Ok(match FileHeader::parse(0, &page) {
            _ if is_blank(&page) => SlotContent::Blank,
            Ok(header) if header.journal == journal => SlotContent::Ours,
            Ok(_) => SlotContent::Another,
            Err(_) => SlotContent::Damaged,
        })
    }

    /// The number of a slot, if it is on this device.
    fn number(&self, volume: &VolumeFile, slot: &JournalSlot) -> Result<u32> {
        if slot.device != self.header.id || slot.number >= self.slots {
            bail!(
                "the journal of volume {} is in slot {} of journal device {}, and {} is device {} \
                 with {} slots: start the host with --journal and the right device",
                volume.name,
                slot.number,
                slot.device,
                self.path.display(),
                self.header.id,
                self.slots
            );
        }
        Ok(slot.number)
    }

    fn start(&self, slot: u32) -> u64 {
        FIRST_SLOT + u64::from(slot) * self.shape().bytes()
    }

    fn used(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        // Each change is one insertion or removal.
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_read_only(&self) -> Result<bool> {
        Ok(!rustix::fs::fcntl_getfl(&self.file)?.contains(rustix::fs::OFlags::RDWR))
    }

    fn page(&self, place: u64) -> std::io::Result<[u8; PAGE_BYTES as usize]> {
        let mut page = [0; PAGE_BYTES as usize];
        self.file.read_exact_at(&mut page, place)?;
        Ok(page)
    }

    /// A journal without a header in its first file is none.
    fn clear(&self, slot: u32) -> std::io::Result<()> {
        self.file.write_all_at(&[0; PAGE_BYTES as usize], self.start(slot))?;
        self.file.sync_data()
    }
}

fn is_blank(page: &[u8]) -> bool {
    page.iter().all(|byte| *byte == 0)
}

fn slots(bytes: u64, shape: JournalShape) -> u32 {
    let slots = bytes.saturating_sub(FIRST_SLOT).checked_div(shape.bytes());
    slots.unwrap_or(0).try_into().unwrap_or(u32::MAX)
}

/// The header of a device; `None` if the device is blank.
fn read_header(path: &Path, file: &File) -> Result<Option<Header>> {
    let shown = path.display();
    let mut page = vec![0; PAGE_BYTES as usize];
    let too_short = || format!("cannot read the first page of {shown}");
    file.read_exact_at(&mut page, 0).with_context(too_short)?;
    if let Some(rest) = page.strip_prefix(MAGIC) {
        let end = rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len());
        let read = || -> Result<Header> {
            let header: Header = serde_json::from_slice(&rest[..end])?;
            known_version(header.version)?;
            parse_id(&header.id)?;
            header.journal.geometry().check()?;
            Ok(header)
        };
        let header = read().with_context(|| {
            format!("the header of journal device {shown} is damaged: bring back its first page")
        })?;
        return Ok(Some(header));
    }
    let mark = device::first_mark(file).with_context(|| format!("cannot read {shown}"))?;
    if let Some(at) = mark {
        bail!(
            "{shown} holds other data (byte {at} is not zero); if you do not need it, clear the \
             beginning with `dd if=/dev/zero of={shown} bs=1M count=1 conv=notrunc,fsync` and \
             start again"
        );
    }
    Ok(None)
}

/// Sees to it that a file in place of a device has all of its space. A journal must not run out.
fn allocate(path: &Path, file: &File) -> Result<()> {
    let meta = file.metadata()?;
    if !meta.is_file() || meta.len() == 0 {
        return Ok(());
    }
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, meta.len()) {
        // The file system does not know how.
        Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
        Err(error) => Err(error).with_context(|| {
            format!("the disk of {} has no space for all of it: make room", path.display())
        }),
    }
}

/// Refuses a blank device if journals are on another one.
fn refuse_others(path: &Path, volumes: &[VolumeFile]) -> Result<()> {
    let on_another = |volume: &&VolumeFile| volume.slot.is_some();
    let Some(volume) = volumes.iter().find(on_another) else { return Ok(()) };
    bail!(
        "{} is blank, and the journal of volume {} is on another device: start the host with \
         --journal and the right device",
        path.display(),
        volume.name
    )
}

/// Makes a blank device a journal device.
fn format(path: &Path, file: &File, host: HostId, shape: JournalShape) -> Result<Header> {
    let id = format!("{:032x}", random()?);
    let header = Header { version: VERSION, id, host: host.to_string(), journal: shape };
    let slots = slots(device::size(file)?, shape);
    if slots == 0 {
        return Ok(header);
    }
    // A slot may hold old data that looks like a header.
    let clear = |slot: u32| {
        let start = FIRST_SLOT + u64::from(slot) * shape.bytes();
        file.write_all_at(&[0; PAGE_BYTES as usize], start)
    };
    let mut page = [MAGIC, &serde_json::to_vec(&header)?].concat();
    page.resize(PAGE_BYTES as usize, 0);
    let written = (0..slots).try_for_each(clear).and_then(|()| {
        file.sync_data()?;
        file.write_all_at(&page, 0)?;
        file.sync_data()
    });
    written.with_context(|| format!("cannot write {}", path.display()))?;
    tracing::info!(
        "{} was blank, and has room for {slots} journals of {} from now on",
        path.display(),
        show_bytes(shape.bytes())
    );
    Ok(header)
}
