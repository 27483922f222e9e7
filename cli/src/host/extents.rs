//! The places of files on the device under their file system: FIEMAP, and the partition of the file
//! system.
//!
//! Promises: each extent is the place of the file's bytes on the device at this moment. If the file
//! system cannot be certain about a file, the command refuses it by name. It must not know volumes.

use crate::args::FileArgs;
use anyhow::{Context as _, Result, bail, ensure};
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Extents asked for at once.
const BATCH: usize = 256;
/// `FS_IOC_FIEMAP`, <linux/fs.h>.
const FIEMAP: Opcode = opcode::read_write::<[u64; 4]>(b'f', 11);
/// `FIEMAP_FLAG_SYNC`: the kernel first writes all dirty data.
const SYNC: u32 = 1;

const LAST: u32 = 0x0001;
const UNKNOWN: u32 = 0x0002;
const DELALLOC: u32 = 0x0004;
const ENCODED: u32 = 0x0008;
const NOT_ALIGNED: u32 = 0x0100;
const INLINE: u32 = 0x0200;
const TAIL: u32 = 0x0400;
const UNWRITTEN: u32 = 0x0800;

/// `struct fiemap_extent`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved2: [u32; 3],
}

/// `struct fiemap` with room for its extents.
#[repr(C)]
struct Map {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    room: u32,
    reserved: u32,
    extents: [Extent; BATCH],
}

const _: () = assert!(size_of::<Extent>() == 56);
const _: () = assert!(size_of::<Map>() == 32 + BATCH * 56);

/// Bytes of the device that hold the content of files, and skipped files of directories.
#[derive(Debug, Default)]
pub struct Found {
    /// In the order of the files; they may touch and, where files share extents, overlap.
    pub ranges: Vec<Range<u64>>,
    /// Files whose place on the device is unknown, with why.
    pub skipped: Vec<String>,
    /// Size of their disk, in bytes. `None` if the command line gave their place on the disk.
    pub disk_bytes: Option<u64>,
}

/// The extents of files, and of all regular files below directories on the same file system. Files
/// may lie on several file systems, but these must be on one device.
///
/// # Errors
/// If there is no such file, or it has extents with an unknown place. Without an offset on
/// the command line, also if the file system is not on a partition or a whole device.
pub fn of(args: &FileArgs) -> Result<Found> {
    let mut found = Found::default();
    let mut device = None;
    for path in &args.files {
        let meta = std::fs::metadata(path)
            .with_context(|| format!("cannot look at {}", path.display()))?;
        ensure!(
            *device.get_or_insert(meta.dev()) == meta.dev(),
            "{} lies on another file system than {}: they need a command each",
            path.display(),
            args.files[0].display()
        );
        let offset = match args.device_offset {
            Some(offset) => offset,
            None => {
                let place = place_of(Path::new("/sys/dev/block"), meta.dev());
                let (offset, disk_bytes) = place.with_context(|| {
                    format!(
                        "{}: cannot tell where its file system begins on the volume",
                        path.display()
                    )
                })?;
                found.disk_bytes = disk_bytes;
                offset
            }
        };
        if meta.is_dir() {
            walk(path, meta.dev(), offset, &mut found)?;
        } else {
            ensure!(meta.is_file(), "{} is neither a file nor a directory", path.display());
            file(path, offset, &mut found.ranges)?;
        }
    }
    Ok(found)
}

fn walk(dir: &Path, device: u64, offset: u64, found: &mut Found) -> Result<()> {
    let mut dirs: Vec<PathBuf> = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        let cannot = || format!("cannot list {}", dir.display());
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(&dir).with_context(cannot)? {
            entries.push(entry.with_context(cannot)?.path());
        }
        entries.sort();
        for path in entries {
            // Skip targets of symbolic links, and other file systems: they are not below the
            // directory.
            let Ok(meta) = std::fs::symlink_metadata(&path) else { continue };
            if meta.dev() != device {
                continue;
            }
            if meta.is_dir() {
                dirs.push(path);
            } else if meta.is_file()
                && let Err(error) = file(&path, offset, &mut found.ranges)
            {
                found.skipped.push(format!("{error:#}"));
            }
        }
    }
    Ok(())
}

/// Adds the extents of a file; on an error none.
fn file(path: &Path, offset: u64, ranges: &mut Vec<Range<u64>>) -> Result<()> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let before = ranges.len();
    let added = extents(&file, offset, ranges);
    if added.is_err() {
        ranges.truncate(before);
    }
    added.with_context(|| format!("{} cannot be used", path.display()))
}

fn extents(file: &File, offset: u64, ranges: &mut Vec<Range<u64>>) -> Result<()> {
    let mut map = Box::new(Map {
        start: 0,
        length: u64::MAX,
        flags: SYNC,
        mapped: 0,
        room: BATCH as u32,
        reserved: 0,
        extents: [Extent::default(); BATCH],
    });
    loop {
        map.mapped = 0;
        ask(file, &mut map).context("its file system cannot say where it lies (FIEMAP)")?;
        let mapped =
            map.extents.get(..map.mapped as usize).context("FIEMAP gave too many extents")?;
        for extent in mapped {
            ranges.extend(usable(extent, offset)?);
        }
        match mapped.last() {
            Some(last) if last.flags & LAST == 0 => {
                let next = last.logical.checked_add(last.length).filter(|next| *next > map.start);
                map.start = next.context("FIEMAP goes round in circles")?;
                map.length = u64::MAX - map.start;
            }
            _ => return Ok(()),
        }
    }
}

#[allow(unsafe_code)]
fn ask(file: &File, map: &mut Map) -> rustix::io::Result<()> {
    // SAFETY: FIEMAP takes a `struct fiemap`, followed by as many `struct fiemap_extent` as it says
    // there is room for. `Map` has the layout of these (`repr(C)`, sizes asserted above). It says
    // that there is room for `BATCH`, and has `BATCH`. All bit patterns are values of its fields.
    unsafe { ioctl(file, Updater::<FIEMAP, Map>::new(map)) }
}

/// The place of an extent on the device; `None` if reads of it do not use the device.
fn usable(extent: &Extent, offset: u64) -> Result<Option<Range<u64>>> {
    for (flag, why) in [
        (DELALLOC, "a part of it is not on the device yet: sync it and try again"),
        (INLINE | TAIL, "it is so small that the file system keeps it among its own data"),
        (ENCODED, "a part of it is compressed or encrypted by the file system"),
        (UNKNOWN | NOT_ALIGNED, "the file system does not know where a part of it lies"),
    ] {
        if extent.flags & flag != 0 {
            bail!("{why}");
        }
    }
    if extent.flags & UNWRITTEN != 0 {
        return Ok(None);
    }
    let start = extent.physical.checked_add(offset);
    let range = start.and_then(|start| Some(start..start.checked_add(extent.length)?));
    range.map(Some).context("it lies beyond any device")
}

/// Byte of the disk at which the device of a file system begins: the beginning of its partition.
/// Also the size of the disk in bytes, if it is known.
fn place_of(sysfs: &Path, device: u64) -> Result<(u64, Option<u64>)> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let dir = sysfs.join(format!("{major}:{minor}"));
    ensure!(
        dir.exists(),
        "it is not on one block device (an overlay, btrfs, or a network file system?)"
    );
    for (name, what) in [("dm", "device mapper (LVM, dm-crypt)"), ("md", "software RAID")] {
        ensure!(
            !dir.join(name).exists(),
            "it is on a device made by the {what}: if that is one piece of the volume, say with \
             --device-offset where it begins there"
        );
    }
    match bytes(&dir.join("start"))? {
        // Its directory is in that of the disk.
        Some(start) => {
            let disk = dir.canonicalize().ok().and_then(|dir| dir.parent().map(Path::to_owned));
            let size = disk.and_then(|disk| bytes(&disk.join("size")).ok().flatten());
            Ok((start, size))
        }
        // A whole disk.
        None => Ok((0, bytes(&dir.join("size"))?)),
    }
}

/// Reads a number of sectors of 512 bytes from a file. `None` if the file is missing.
fn bytes(path: &Path) -> Result<Option<u64>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    let sectors: u64 =
        text.trim().parse().with_context(|| format!("{} is no number", path.display()))?;
    let bytes = sectors.checked_mul(512);
    bytes.map(Some).with_context(|| format!("{} is too large", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_begin_where_sysfs_says_and_stacked_devices_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let device = |minor: u32, name: &str, text: &str| {
            let device = dir.path().join(format!("7:{minor}"));
            std::fs::create_dir_all(&device).unwrap();
            if !name.is_empty() {
                std::fs::write(device.join(name), text).unwrap();
            }
            rustix::fs::makedev(7, minor)
        };
        assert_eq!(place_of(dir.path(), device(1, "", "")).unwrap(), (0, None));
        assert_eq!(place_of(dir.path(), device(2, "start", "2048\n")).unwrap(), (1 << 20, None));
        assert!(place_of(dir.path(), device(3, "start", "many")).is_err());
        let error = place_of(dir.path(), device(4, "dm", "")).unwrap_err().to_string();
        assert!(error.contains("--device-offset"), "{error}");
        assert!(place_of(dir.path(), rustix::fs::makedev(0, 50)).is_err());
        // A disk, and a partition of it.
        let disk = device(5, "size", "8192\n");
        assert_eq!(place_of(dir.path(), disk).unwrap(), (0, Some(4 << 20)));
        let partition = dir.path().join("7:5/disk5p1");
        std::fs::create_dir(&partition).unwrap();
        std::fs::write(partition.join("start"), "2048").unwrap();
        std::os::unix::fs::symlink(&partition, dir.path().join("7:6")).unwrap();
        let partition = rustix::fs::makedev(7, 6);
        assert_eq!(place_of(dir.path(), partition).unwrap(), (1 << 20, Some(4 << 20)));
    }

    #[test]
    fn extents_that_cannot_be_told_are_refused() {
        let extent = |flags| Extent { physical: 4096, length: 8192, flags, ..Extent::default() };
        assert_eq!(usable(&extent(LAST), 512).unwrap(), Some(4608..12800));
        assert_eq!(usable(&extent(LAST | UNWRITTEN), 0).unwrap(), None);
        for (flags, part) in [
            (UNKNOWN | DELALLOC, "sync"),
            (INLINE | NOT_ALIGNED, "small"),
            (ENCODED, "compressed"),
            (UNKNOWN, "does not know"),
        ] {
            let error = usable(&extent(flags), 0).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        assert!(usable(&extent(0), u64::MAX - 4096).is_err());
    }

    #[test]
    fn a_file_that_was_written_has_extents() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, vec![1; 1 << 20]).unwrap();
        let mut ranges = Vec::new();
        match file(&path, 0, &mut ranges) {
            Ok(()) => {
                assert_eq!(ranges.iter().map(|range| range.end - range.start).sum::<u64>(), 1 << 20)
            }
            // Not every file system under a temporary directory can.
            Err(error) => assert!(format!("{error:#}").contains("FIEMAP"), "{error:#}"),
        }
    }
}
