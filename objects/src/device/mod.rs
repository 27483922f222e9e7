//! Objects in a block device, or a file of fixed size, without a file system.
//!
//! [`engine`] says how, [`format`] what the bytes are, [`space`] where there is room. Here is what it takes of the
//! system: the device is opened for one store only, is never taken from anybody else, and is read and
//! written through the page cache with `fdatasync` (`docs/decisions/objects.md` has the numbers).

mod engine;
mod format;
mod space;
#[cfg(test)]
mod tests;

use super::{GetError, ObjectMeta, Objects, PutError};
use anyhow::{Context as _, Result, bail};
use async_trait::async_trait;
use bytes::Bytes;
use engine::{Engine, Loaded, Medium};
use format::{Geometry, Superblock};
use longhaul_base::random;
use longhaul_base::units::show_bytes;
use rustix::fs::{Advice, FallocateFlags, FlockOperation};
use rustix::io::{Errno, ReadWriteFlags};
use std::fs::{File, OpenOptions};
use std::io::{IoSliceMut, Seek as _, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How a file system, a partition table or anything else is noticed: it has something here.
const LOOKED_AT_BYTES: usize = 1 << 20;

/// How often, and how long, a block device that somebody looks at is waited for.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(100);

/// Objects in a device.
pub struct DeviceObjects {
    engine: Arc<Engine<Disk>>,
}

/// A block device or a file.
struct Disk(File);

impl Medium for Disk {
    fn read_at(&self, offset: u64, data: &mut [u8]) -> std::io::Result<()> {
        self.0.read_exact_at(data, offset)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        self.0.write_all_at(data, offset)
    }

    fn sync(&self) -> std::io::Result<()> {
        self.0.sync_data()
    }
}

impl DeviceObjects {
    /// The objects of a device; one that is blank gets a new store without any.
    ///
    /// # Errors
    /// If it cannot be opened, is in use, holds something else, is damaged, or is smaller than it was.
    pub fn open(path: &Path) -> Result<DeviceObjects> {
        let shown = path.display();
        let file = open(path, true)?;
        let size = size(&file).with_context(|| format!("cannot tell how large {shown} is"))?;
        // Space that is not there would be noticed by a write that must not fail.
        if file.metadata()?.is_file() && size > 0 {
            match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size) {
                Ok(()) | Err(Errno::OPNOTSUPP) => {}
                Err(error) => {
                    return Err(error).with_context(|| {
                        format!("there is no room for the {} of {shown}", show_bytes(size))
                    });
                }
            }
        }
        let disk = Disk(file);
        if look(&disk, path, size)?.is_none() {
            let geometry = Geometry::new(size).with_context(|| too_small(path, size))?;
            let superblock = Superblock { identity: random::identity()?, geometry };
            engine::format(&disk, &superblock)
                .with_context(|| format!("cannot write to {shown}"))?;
            tracing::info!("{shown} was blank, and is a store's from now on");
        }
        disk.forget_cached().with_context(|| format!("cannot sync {shown}"))?;
        let engine = Engine::open(disk).with_context(|| format!("{shown} cannot be used"))?;
        let usage = engine.usage();
        tracing::info!(
            "{shown}: {} objects, {} of {} in use",
            usage.objects,
            show_bytes(usage.used_bytes),
            show_bytes(usage.total_bytes)
        );
        Ok(DeviceObjects { engine: Arc::new(engine) })
    }

    /// The installation whose objects they are.
    pub fn installation(&self) -> u128 {
        self.engine.superblock().identity
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Engine<Disk>) -> T + Send + 'static,
    ) -> Result<T, String> {
        let engine = self.engine.clone();
        tokio::task::spawn_blocking(move || work(&engine))
            .await
            .map_err(|error| format!("a thread of ours failed: {error}"))
    }
}

impl Disk {
    /// Makes reads see what the disk holds. The page cache may hold more: what a killed process wrote and did not
    /// sync, and what a failed sync left behind as clean. An object that is visible has to be durable.
    fn forget_cached(&self) -> std::io::Result<()> {
        self.0.sync_data()?;
        Ok(rustix::fs::fadvise(&self.0, 0, None, Advice::DontNeed)?)
    }
}

/// Opens a device for this process only.
fn open(path: &Path, write: bool) -> Result<File> {
    let shown = path.display();
    let kind = std::fs::metadata(path)
        .with_context(|| {
            format!(
                "cannot use {shown}: a file has to be there and have its size, as `fallocate -l 100GiB {shown}` makes it"
            )
        })?
        .file_type();
    if !kind.is_file() && !kind.is_block_device() {
        bail!("{shown} is neither a file nor a block device");
    }
    let mut options = OpenOptions::new();
    options.read(true).write(write);
    if kind.is_block_device() && write {
        // Refused by the kernel while it is mounted, or part of something.
        options.custom_flags(libc::O_EXCL);
    }
    let file = match options.open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
            bail!("{shown} is in use: it is mounted, part of another device, or another store's")
        }
        opened => opened.with_context(|| format!("cannot open {shown}"))?,
    };
    let lock = match write {
        true => FlockOperation::NonBlockingLockExclusive,
        false => FlockOperation::NonBlockingLockShared,
    };
    let mut tries = 0;
    loop {
        match rustix::fs::flock(&file, lock) {
            Ok(()) => return Ok(file),
            // udev takes a block device for the moment in which it looks what is on it.
            Err(Errno::WOULDBLOCK) if kind.is_block_device() && tries < LOCK_TRIES => {
                tries += 1;
                std::thread::sleep(LOCK_PAUSE);
            }
            Err(Errno::WOULDBLOCK) => {
                bail!("{shown} is in use by another longhaul process: stop it first")
            }
            Err(error) => return Err(error).with_context(|| format!("cannot lock {shown}")),
        }
    }
}

fn size(mut file: &File) -> std::io::Result<u64> {
    file.seek(SeekFrom::End(0))
}

fn too_small(path: &Path, size: u64) -> String {
    format!(
        "{} has {}, and a store needs {} at least",
        path.display(),
        show_bytes(size),
        show_bytes(format::MIN_DEVICE_BYTES)
    )
}

/// Whose the device is; nothing if it is blank.
///
/// # Errors
/// If it cannot be read, holds something else, or is smaller than the store on it.
fn look(disk: &Disk, path: &Path, size: u64) -> Result<Option<Superblock>> {
    let shown = path.display();
    if size < format::MIN_DEVICE_BYTES {
        bail!(too_small(path, size));
    }
    if let Some(superblock) = engine::superblock(disk).with_context(|| shown.to_string())? {
        let was = superblock.geometry.device_bytes;
        if size < was {
            bail!(
                "{shown} has {size} bytes and the store on it was made for {was}: bring back the device as it was, \
                 nothing has been changed"
            );
        }
        return Ok(Some(superblock));
    }
    let mut beginning = vec![0; LOOKED_AT_BYTES];
    disk.read_at(0, &mut beginning).with_context(|| format!("cannot read {shown}"))?;
    if let Some(at) = beginning.iter().position(|byte| *byte != 0) {
        bail!(
            "{shown} holds something that is not a store's, or a store's whose superblocks are damaged (byte {at} is not \
             zero); if it may go, clear the beginning with `dd if=/dev/zero of={shown} bs=1M count=1 conv=notrunc,fsync` \
             and start again"
        );
    }
    Ok(None)
}

/// The objects of a device that no store uses: read, and left as they are.
pub struct StoppedDevice {
    disk: Disk,
    path: PathBuf,
    loaded: Loaded,
}

impl StoppedDevice {
    /// Reads the index.
    ///
    /// # Errors
    /// If the device cannot be read, is in use, has no store, or its index is damaged.
    pub fn open(path: &Path) -> Result<StoppedDevice> {
        let shown = path.display();
        let file = open(path, false)?;
        let size = size(&file).with_context(|| format!("cannot tell how large {shown} is"))?;
        let disk = Disk(file);
        // What the disk has, not what was meant for it.
        rustix::fs::fadvise(&disk.0, 0, None, Advice::DontNeed)?;
        look(&disk, path, size)?.with_context(|| format!("{shown} is blank: it has no store"))?;
        let loaded = engine::load(&disk).with_context(|| shown.to_string())?;
        Ok(StoppedDevice { disk, path: path.to_owned(), loaded })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All objects whose names begin with `prefix`, in order.
    pub fn list(&self, prefix: &str) -> Vec<ObjectMeta> {
        engine::list(&self.loaded.objects, prefix)
    }

    /// What there is of a range of an object.
    ///
    /// # Errors
    /// If it is not there, or cannot be read.
    pub fn read(&self, key: &str, range: Range<u64>) -> std::io::Result<Bytes> {
        let object = self.loaded.objects.get(key).ok_or(std::io::ErrorKind::NotFound)?;
        engine::read(&self.disk, object, range)
    }

    /// Whether the content of an object is what was written.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn verify(&self, key: &str) -> Result<(), String> {
        let Some(object) = self.loaded.objects.get(key) else { return Err("it is gone".into()) };
        let (mut crc, mut at) = (0, 0);
        while at < object.bytes {
            let piece = engine::read(&self.disk, object, at..at + LOOKED_AT_BYTES as u64)
                .map_err(|error| format!("it cannot be read: {error}"))?;
            crc = crc32c::crc32c_append(crc, &piece);
            at += piece.len() as u64;
        }
        if crc != object.crc {
            return Err("its content is not what was written".into());
        }
        Ok(())
    }
}

#[async_trait]
impl Objects for DeviceObjects {
    async fn put(&self, key: &str, data: Vec<Bytes>) -> Result<(), PutError> {
        let key = key.to_owned();
        self.blocking(move |engine| engine.put(&key, &data)).await.map_err(PutError::Failed)?
    }

    async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Bytes, GetError> {
        let key = key.to_owned();
        self.blocking(move |engine| engine.get(&key, range)).await.map_err(GetError::Failed)?
    }

    fn try_get(&self, key: &str, range: Option<&Range<u64>>) -> Option<Result<Bytes, GetError>> {
        let range = range?;
        let object = match self.engine.find(key) {
            Ok(object) => object,
            Err(error) => return Some(Err(error)),
        };
        // In one piece and whole, or the other way sorts it out.
        let mut places = engine::places(&object.extents, range.clone());
        let place = places.next().filter(|_| range.end <= object.bytes)?;
        let bytes = usize::try_from(range.end.checked_sub(range.start)?).ok()?;
        if places.next().is_some() {
            return None;
        }
        let mut data = vec![0; bytes];
        let mut buffers = [IoSliceMut::new(&mut data)];
        let file = &self.engine.medium().0;
        let read = rustix::io::preadv2(file, &mut buffers, place.start, ReadWriteFlags::NOWAIT);
        (read == Ok(bytes)).then(|| Ok(data.into()))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>, String> {
        Ok(self.engine.list(prefix))
    }

    async fn restore(&self, key: &str, data: Bytes) -> Result<(), String> {
        let key = key.to_owned();
        self.blocking(move |engine| engine.restore(&key, data)).await?
    }

    async fn delete(&self, key: &str) -> Result<(), String> {
        let key = key.to_owned();
        self.blocking(move |engine| engine.delete(&key)).await?
    }
}
