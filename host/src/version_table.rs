//! The files of a version table.
//!
//! ```text
//! versions/ID/versions.0000   two heads: up to which write the table is complete
//! versions/ID/versions.0001   a mark for each block, sparse
//! versions/ID/versions.0002   marks for the sectors of blocks that were written in part, sparse
//! ```
//!
//! The files lie beside the directories of journals and not in them. An operator who moves a
//! journal away must still hear that the store has rolled the volume back. The engine knows the
//! content.

use super::state::StateDir;
use anyhow::{Context as _, Result};
use longhaul_base::disk::OrderedDisk;
use longhaul_base::files;
use longhaul_core::block::{Range, VolumeId};
use longhaul_core::host::versions::{
    BLOCKS, FILES, HEAD_BYTES, Head, PAGE_BYTES, Root, Rooting, SECTORS, damaged_bytes,
};
use longhaul_core::host::{Config, Mode, Versions};
use rustix::fs::{OFlags, SeekFrom};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// A table and the disk it is on.
pub struct VersionTable {
    /// For the engine.
    pub versions: Versions,
    /// Where its operations go.
    pub disk: OrderedDisk,
}

/// A name for the state that an operator accepts: valid for this state of the table, not for later
/// ones.
pub fn token(head: &Head) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, &head.encode());
    digest.as_ref()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Where the table of a volume is.
pub fn dir(state: &StateDir, volume: VolumeId) -> PathBuf {
    state.path().join("versions").join(volume.to_string())
}

fn path(dir: &Path, file: u32) -> PathBuf {
    dir.join(format!("versions.{file:04}"))
}

/// The head of the table of a volume, if there is one.
pub fn head(dir: &Path, volume: VolumeId) -> Result<Option<Head>> {
    let path = path(dir, 0);
    let mut heads = Vec::new();
    match files::open(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file.and_then(|file| file.take(2 * HEAD_BYTES as u64).read_to_end(&mut heads)),
    }
    .with_context(|| format!("cannot read {}", path.display()))?;
    Head::newest(volume, &heads).with_context(|| {
        format!(
            "the version table in {} is unusable, so the host cannot notice a rollback by the \
             store: restore the table from a copy, or move that directory away to accept the \
             store's present data",
            dir.display()
        )
    })
}

/// Creates or opens the files of a table, and writes its head.
pub fn create_files(dir: &Path, head: &Head, new: bool) -> Result<Vec<File>> {
    let shown = dir.display();
    let open = || -> std::io::Result<Vec<File>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(new).mode(0o600);
        // The heads go first, and come last.
        // Nobody waits for the other end of a pipe in the place of one.
        options.custom_flags(OFlags::NONBLOCK.bits() as i32);
        let files = (0..FILES).map(|file| regular(options.open(path(dir, file))?));
        let files: Vec<File> = files.collect::<Result<_, _>>()?;
        for file in files.iter().rev() {
            file.sync_all()?;
        }
        let data = head.encode();
        files[0].write_all_at(&data, head.slot() * HEAD_BYTES as u64)?;
        files[0].sync_all()?;
        files::sync_dir(dir)?;
        Ok(files)
    };
    files::create_dir(dir)?;
    open().with_context(|| format!("cannot open the version table in {shown}"))
}

fn regular(file: File) -> std::io::Result<File> {
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(std::io::Error::new(ErrorKind::InvalidData, "it is not a regular file")),
    }
}

/// The problems of the files of a table: file, offset and text.
pub fn problems(dir: &Path, volume: VolumeId) -> Vec<(PathBuf, Option<u64>, String)> {
    let mut problems = Vec::new();
    if let Err(error) = head(dir, volume) {
        problems.push((path(dir, 0), None, format!("{error:#}")));
    }
    for file in [BLOCKS, SECTORS] {
        let path = path(dir, file);
        let mut look = || -> std::io::Result<()> {
            let open = files::open(&path)?;
            let mut next = 0;
            while let Some(start) = data_from(&open, next)? {
                let number = start / PAGE_BYTES as u64;
                next = (number + 1) * PAGE_BYTES as u64;
                let damaged = damaged_bytes(file, number, &read_page(&open, number)?);
                if damaged > 0 {
                    let place = Some(number * PAGE_BYTES as u64);
                    problems.push((
                        path.clone(),
                        place,
                        format!("{damaged} bytes of marks are damaged"),
                    ));
                }
            }
            Ok(())
        };
        if let Err(error) = look() {
            problems.push((path.clone(), None, format!("it cannot be read: {error}")));
        }
    }
    problems
}

/// Memory for the pages of a table, in bytes.
pub fn memory() -> u64 {
    Config::new(Mode::WriteThrough).versions_bytes
}

/// The disk that carries out the operations on files of a table.
pub fn start_disk(dir: &Path, files: Vec<File>) -> OrderedDisk {
    let names = dir.join("versions").display().to_string();
    OrderedDisk::sparse(files, names)
}

/// Opens the files of a table, or makes them.
///
/// # Errors
/// If they are unusable.
pub fn open_files(
    dir: &Path,
    head: Head,
    committed: u64,
    forgotten: &[Range],
    new: bool,
) -> Result<VersionTable> {
    let files = create_files(dir, &head, new)?;
    let versions = Versions::new(head, committed, forgotten, memory());
    let versions =
        versions.with_context(|| format!("the version table in {} has no key", dir.display()))?;
    Ok(VersionTable { versions, disk: start_disk(dir, files) })
}

/// Works out the root of a table that is at rest; `None` if it does not know the version of every
/// block.
///
/// # Errors
/// If it cannot be read.
pub fn root_of(dir: &Path, volume: VolumeId) -> Result<Option<(Head, Root)>> {
    let Some(head) = head(dir, volume)? else { return Ok(None) };
    let Some(mut rooting) = Rooting::new(&head) else { return Ok(None) };
    let mut work = || -> std::io::Result<()> {
        let (blocks, sectors) =
            (files::open(&path(dir, BLOCKS))?, files::open(&path(dir, SECTORS))?);
        let page = PAGE_BYTES as u64;
        let mut next = 0;
        // The files are sparse, and as large as the volume makes them.
        while let Some(start) = data_from(&blocks, next * page)? {
            let number = start / page;
            let data = read_page(&blocks, number)?;
            rooting.take(number, &data, |number| read_page(&sectors, number))?;
            next = number + 1;
        }
        Ok(())
    };
    work().with_context(|| format!("cannot read the version table in {}", dir.display()))?;
    Ok(rooting.finish().map(|root| (head, root)))
}

/// Where there is data in a file, from an offset on.
fn data_from(file: &File, offset: u64) -> std::io::Result<Option<u64>> {
    match rustix::fs::seek(file, SeekFrom::Data(offset)) {
        Ok(start) => Ok(Some(start)),
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A page; what lies beyond the end of the file is left out.
fn read_page(file: &File, number: u64) -> std::io::Result<Vec<u8>> {
    let mut page = vec![0; PAGE_BYTES];
    let mut have = 0;
    while have < page.len() {
        match file.read_at(&mut page[have..], number * PAGE_BYTES as u64 + have as u64)? {
            0 => break,
            read => have += read,
        }
    }
    page.truncate(have);
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accepted::AcceptedRollback;
    use longhaul_core::wire::link::{Attached, HostId};
    use rustix::fs::{FileType, Mode};

    #[test]
    fn what_is_accepted_is_named_and_changes_with_the_table() {
        let attached = |epoch| Attached {
            volume: VolumeId(7),
            sectors: 2048,
            block_bytes: 512,
            epoch,
            committed: 5,
        };
        let first = Head::new(&attached(1), HostId(1), true, [1; 32]);
        let second = first.attached(&attached(2), HostId(1));
        assert_ne!(token(&first), token(&second));
        let text = format!("acme/db={}", token(&first));
        assert!(text.parse::<AcceptedRollback>().unwrap().is_of("acme/db", &token(&first)));
        for wrong in ["db", "db=", "=0123456789abcdef", "db=0123456789abcdeg", "db=0123"] {
            assert!(
                wrong.parse::<AcceptedRollback>().unwrap_err().to_string().contains("NAME=TOKEN"),
                "{wrong}"
            );
        }
    }

    #[test]
    fn a_table_is_made_found_and_begun_anew() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("versions");
        let volume = VolumeId(7);
        assert_eq!(head(&dir, volume).unwrap(), None);
        let attached = Attached { volume, sectors: 2048, block_bytes: 512, epoch: 1, committed: 0 };
        let first = Head::new(&attached, HostId(1), true, [1; 32]);
        drop(open_files(&dir, first.clone(), 0, &[], true).unwrap());
        assert_eq!(head(&dir, volume).unwrap(), Some(first.clone()));
        std::fs::write(path(&dir, 1), [7; 4096]).unwrap();
        let second = first.attached(&attached, HostId(1));
        drop(open_files(&dir, second.clone(), 0, &[], false).unwrap());
        assert_eq!(head(&dir, volume).unwrap(), Some(second));
        assert_eq!(std::fs::metadata(path(&dir, 1)).unwrap().len(), 4096);
        drop(open_files(&dir, first.clone(), 0, &[], true).unwrap());
        assert_eq!(head(&dir, volume).unwrap(), Some(first.clone()));
        assert_eq!(std::fs::metadata(path(&dir, 1)).unwrap().len(), 0);
        assert!(head(&dir, VolumeId(8)).is_err());
        assert_eq!(problems(&dir, volume), []);
        std::fs::write(path(&dir, 2), [7; 512]).unwrap();
        let found = problems(&dir, volume);
        assert_eq!((&found[0].0, found[0].1), (&path(&dir, 2), Some(0)), "{found:?}");
        // In a pipe nobody ever writes anything.
        for file in 0..FILES {
            let path = path(&dir, file);
            let kept = std::fs::read(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
            assert!(problems(&dir, volume).iter().any(|(of, ..)| *of == path));
            assert!(create_files(&dir, &first, false).is_err());
            assert!(file > 0 || head(&dir, volume).is_err());
            std::fs::remove_file(&path).unwrap();
            std::fs::write(&path, kept).unwrap();
        }
        std::fs::write(path(&dir, 0), [7; 8192]).unwrap();
        let error = format!("{:#}", head(&dir, volume).unwrap_err());
        assert!(error.contains("move that directory away"), "{error}");
    }
}
