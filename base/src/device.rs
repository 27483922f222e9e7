//! Block devices, and files in their place, that one process has for itself.

use anyhow::{Context as _, Result, bail};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::Duration;

/// How often to try again if another process has a block device open for a moment.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(100);

/// A file system, a partition table or anything else has some bytes in this part of a device.
const LOOKED_AT_BYTES: u64 = 1 << 20;

/// Opens a device for this process only. It stays locked until the file is closed.
///
/// # Errors
/// If it is missing, neither a block device nor a file, in use, or not accessible.
pub fn open(path: &Path, write: bool) -> Result<File> {
    let shown = path.display();
    let kind = std::fs::metadata(path)
        .with_context(|| {
            format!(
                "cannot use {shown}: a file has to be there and have its size, as `fallocate -l \
                 100GiB {shown}` makes it"
            )
        })?
        .file_type();
    if !kind.is_file() && !kind.is_block_device() {
        bail!("{shown} is neither a file nor a block device");
    }
    let mut options = OpenOptions::new();
    options.read(true).write(write);
    if kind.is_block_device() && write {
        // The kernel refuses this for a device that is mounted or part of something.
        options.custom_flags(libc::O_EXCL);
    }
    let file = match options.open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
            bail!("{shown} is in use: it is mounted, part of another device, or another longhaul's")
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
            // udev takes a block device for a moment to look at its content.
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

/// Bytes of a device.
///
/// # Errors
/// If the kernel does not say.
pub fn size(mut file: &File) -> std::io::Result<u64> {
    file.seek(SeekFrom::End(0))
}

/// The place of the first byte at the start of a device that is not zero; `None` if the device is
/// blank.
///
/// # Errors
/// If a read fails.
pub fn first_mark(mut file: &File) -> std::io::Result<Option<usize>> {
    let mut beginning = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.take(LOOKED_AT_BYTES).read_to_end(&mut beginning)?;
    Ok(beginning.iter().position(|byte| *byte != 0))
}
