//! Objects in a block device, or a file of fixed size, without a file system.
//!
//! [`engine`] keeps the objects, [`format`](self::format) defines the bytes, [`space`] finds room.
//! This module does the system calls. It opens the device for one store only, and never takes it
//! away from another user. It reads and writes through the page cache with `fdatasync`
//! (`docs/decisions/objects.md` has the numbers).

mod engine;
mod format;
mod space;
#[cfg(test)]
mod tests;

use super::failure;
use super::{GetError, ObjectMeta, Objects, PutError, StorageError};
use anyhow::{Context as _, Result, bail};
use async_trait::async_trait;
use bytes::Bytes;
use engine::{Engine, Loaded, Medium};
use format::{Geometry, Superblock};
use longhaul_base::units::show_bytes;
use longhaul_base::{device, random};
use rustix::fs::{Advice, FallocateFlags};
use rustix::io::{Errno, ReadWriteFlags};
use std::fs::File;
use std::io::IoSliceMut;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes to verify at a time.
const PIECE_BYTES: u64 = 1 << 20;

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
    /// Opens the objects of a device. A blank device becomes a new store without objects.
    ///
    /// # Errors
    /// If the device does not open, is in use, holds something else, is damaged, or is smaller than
    /// it was.
    pub fn open(path: &Path) -> Result<DeviceObjects> {
        let shown = path.display();
        let file = device::open(path, true)?;
        let size =
            device::size(&file).with_context(|| format!("cannot tell how large {shown} is"))?;
        // Without this, a write that must not fail could find that the file has no space for it.
        if file.metadata()?.is_file() && size > 0 {
            match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size) {
                Ok(()) | Err(Errno::OPNOTSUPP) => {}
                Err(error) => {
                    return Err(error).with_context(|| {
                        format!("the disk has no room for the {} of {shown}", show_bytes(size))
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

    /// The installation that owns the objects.
    pub fn installation(&self) -> u128 {
        self.engine.superblock().identity
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Engine<Disk>) -> T + Send + 'static,
    ) -> Result<T, StorageError> {
        let engine = self.engine.clone();
        tokio::task::spawn_blocking(move || work(&engine)).await.map_err(failure::of_thread)
    }
}

impl Disk {
    /// Makes reads return the content of the disk. The page cache may hold more: writes of a killed
    /// process without a sync, and pages that a failed sync left behind as clean. But reads must
    /// return durable objects only.
    fn forget_cached(&self) -> std::io::Result<()> {
        self.0.sync_data()?;
        Ok(rustix::fs::fadvise(&self.0, 0, None, Advice::DontNeed)?)
    }
}

fn too_small(path: &Path, size: u64) -> String {
    format!(
        "{} has {}, and a store needs {} at least",
        path.display(),
        show_bytes(size),
        show_bytes(format::MIN_DEVICE_BYTES)
    )
}

/// The superblock of a device; `None` if the device is blank.
///
/// # Errors
/// If a read fails, the device holds something else, or it is smaller than the store on it.
fn look(disk: &Disk, path: &Path, size: u64) -> Result<Option<Superblock>> {
    let shown = path.display();
    if size < format::MIN_DEVICE_BYTES {
        bail!(too_small(path, size));
    }
    if let Some(superblock) = engine::superblock(disk).with_context(|| shown.to_string())? {
        let was = superblock.geometry.device_bytes;
        if size < was {
            bail!(
                "{shown} has {size} bytes and the store on it was made for {was}: bring back the \
                 device as it was, nothing has been changed"
            );
        }
        return Ok(Some(superblock));
    }
    let mark = device::first_mark(&disk.0).with_context(|| format!("cannot read {shown}"))?;
    if let Some(at) = mark {
        bail!(
            "{shown} holds other data, or a store with damaged superblocks (byte {at} is not \
             zero); if you do not need it, clear the beginning with `dd if=/dev/zero of={shown} \
             bs=1M count=1 conv=notrunc,fsync` and start again"
        );
    }
    Ok(None)
}

/// The objects of a device that no store uses. Only reads them.
pub struct StoppedDevice {
    disk: Disk,
    path: PathBuf,
    loaded: Loaded,
}

impl StoppedDevice {
    /// Reads the index.
    ///
    /// # Errors
    /// If a read fails, the device is in use or has no store, or its index is damaged.
    pub fn open(path: &Path) -> Result<StoppedDevice> {
        let shown = path.display();
        let file = device::open(path, false)?;
        let size =
            device::size(&file).with_context(|| format!("cannot tell how large {shown} is"))?;
        let disk = Disk(file);
        // Read from the disk, not from writes that have not reached it.
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

    /// Reads the existing part of a range of an object.
    ///
    /// # Errors
    /// If the object does not exist, or a read fails.
    pub fn read(&self, key: &str, range: Range<u64>) -> std::io::Result<Bytes> {
        let object = self.loaded.objects.get(key).ok_or(std::io::ErrorKind::NotFound)?;
        engine::read(&self.disk, object, range)
    }

    /// Checks that the content of an object is the content of its put.
    ///
    /// # Errors
    /// Why the content is wrong.
    pub fn verify(&self, key: &str) -> Result<(), String> {
        let Some(object) = self.loaded.objects.get(key) else { return Err("it is gone".into()) };
        let (mut crc, mut at) = (0, 0);
        while at < object.bytes {
            let piece = engine::read(&self.disk, object, at..at + PIECE_BYTES)
                .map_err(|error| format!("it cannot be read: {error}"))?;
            crc = crc32c::crc32c_append(crc, &piece);
            at += piece.len() as u64;
        }
        if crc != object.crc {
            return Err("its content differs from the written data".into());
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
        // Try one read of one whole piece. The slow path handles all other cases.
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

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>, StorageError> {
        Ok(self.engine.list(prefix))
    }

    async fn restore(&self, key: &str, data: Bytes) -> Result<(), StorageError> {
        let key = key.to_owned();
        self.blocking(move |engine| engine.restore(&key, data)).await?
    }

    async fn delete(&self, key: &str) -> Result<(), StorageError> {
        let key = key.to_owned();
        self.blocking(move |engine| engine.delete(&key)).await?
    }
}
