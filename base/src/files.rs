//! Small files that survive a power cut, and the lock of a directory.
//!
//! [`replace`] leaves either the old or the new content, never a mixture and never nothing.
//! [`Lock`] lets one live process use a directory; the lock goes with the process, however it ends.

use anyhow::{Context as _, Result, bail};
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::fs::File;
use std::io::{ErrorKind, Read as _, Seek as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Makes `path` a file with this content and mode, durably.
///
/// # Errors
/// If any step fails. Then `path` has the old content, or the new one, which may not be durable.
pub fn replace(path: &Path, content: &[u8], mode: u32) -> Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().with_context(|| format!("{} names no file", path.display()))?;
    let mut temporary = dir.join(name).into_os_string();
    temporary.push(format!(".{}.tmp", std::process::id()));
    let write = || -> std::io::Result<()> {
        match std::fs::remove_file(&temporary) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file =
            std::fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
        file.write_all(content)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)?;
        sync_dir(dir)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// Opens a regular file for reading. Refuses a directory, a device, and a pipe, whose other end may
/// never come.
///
/// # Errors
/// If the file does not open, or is not a regular file ([`ErrorKind::InvalidData`]).
pub fn open(path: &Path) -> std::io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(std::io::Error::new(ErrorKind::InvalidData, "it is not a regular file")),
    }
}

/// Reads a small file whole, as [`open`] opens it.
///
/// # Errors
/// Those of [`open`]. Also if the file is larger than any that longhaul writes.
pub fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut content = Vec::new();
    open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut content)?;
    if content.len() as u64 > MAX_FILE_BYTES {
        return Err(std::io::Error::new(ErrorKind::InvalidData, "it is too large to be ours"));
    }
    Ok(content)
}

/// Reads a small text file whole.
///
/// # Errors
/// Those of [`read`]. Also if the content is not UTF-8.
pub fn read_to_string(path: &Path) -> std::io::Result<String> {
    String::from_utf8(read(path)?)
        .map_err(|_| std::io::Error::new(ErrorKind::InvalidData, "it is not text"))
}

/// Largest file to read whole. Certificates, lists and descriptions have a thousandth of it.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Makes the names in a directory durable.
///
/// # Errors
/// If the directory cannot be opened or synced.
pub fn sync_dir(dir: &Path) -> std::io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Creates a directory and its parents, durably, for the owner only.
///
/// # Errors
/// If one cannot be created or synced.
pub fn create_dir(dir: &Path) -> Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    if dir.is_dir() {
        return Ok(());
    }
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent {
        create_dir(parent)?;
    }
    match std::fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            Err(error).with_context(|| format!("cannot create the directory {}", dir.display()))
        }
        _ => sync_dir(parent.unwrap_or(Path::new(".")))
            .with_context(|| format!("cannot sync the directory above {}", dir.display())),
    }
}

/// Removes the content of a directory, and keeps the directory.
///
/// # Errors
/// If some of it stays.
pub fn empty_dir(dir: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => std::fs::remove_dir_all(entry.path())?,
            false => std::fs::remove_file(entry.path())?,
        }
    }
    Ok(())
}

/// The exclusive use of a directory, until dropped.
#[derive(Debug)]
pub struct Lock {
    _file: OwnedFd,
}

impl Lock {
    /// Takes the lock file `lock` in `dir`.
    ///
    /// # Errors
    /// If another live process has it; the message names its pid.
    pub fn acquire(dir: &Path) -> Result<Lock> {
        let path = dir.join("lock");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let file = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600))
            .with_context(|| format!("cannot open the lock file {}", path.display()))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            // The previous owner may have removed the file after this process opened it.
            Ok(()) if !is_at(&file, &path) => return Lock::acquire(dir),
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut pid = String::new();
                let _ = File::from(file).read_to_string(&mut pid);
                let pid = if pid.trim().is_empty() { "unknown" } else { pid.trim() };
                bail!(
                    "{} is in use by another longhaul process (pid {pid}): stop it first, or use \
                     another directory",
                    dir.display()
                );
            }
            Err(error) => {
                return Err(error).with_context(|| {
                    format!("cannot lock {}: is it on a file system with locks?", path.display())
                });
            }
        }
        let mut file = File::from(file);
        let mark = |file: &mut File| -> std::io::Result<()> {
            file.set_len(0)?;
            file.rewind()?;
            writeln!(file, "{}", std::process::id())
        };
        // The pid only serves the error message of the next process.
        let _ = mark(&mut file);
        Ok(Lock { _file: file.into() })
    }
}

/// Whether a path still leads to this file.
fn is_at(file: &OwnedFd, path: &Path) -> bool {
    let numbers = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
    let there = rustix::fs::stat(path).map(numbers);
    there.is_ok() && there == rustix::fs::fstat(file).map(numbers)
}

/// The use of a directory together with other processes that share it, until dropped.
#[derive(Debug)]
pub struct Sharing {
    file: OwnedFd,
    alone: bool,
}

impl Sharing {
    /// Takes the lock file `shared.lock` in `dir`. Takes it exclusively if nobody else uses the
    /// directory.
    ///
    /// # Errors
    /// If the file system has no locks, or another process keeps it exclusively.
    pub fn acquire(dir: &Path) -> Result<Sharing> {
        let path = dir.join("shared.lock");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let file = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600))
            .with_context(|| format!("cannot open the lock file {}", path.display()))?;
        let until = std::time::Instant::now() + SHARING_LIMIT;
        loop {
            for (operation, alone) in [
                (FlockOperation::NonBlockingLockExclusive, true),
                (FlockOperation::NonBlockingLockShared, false),
            ] {
                match rustix::fs::flock(&file, operation) {
                    Ok(()) => return Ok(Sharing { file, alone }),
                    Err(rustix::io::Errno::WOULDBLOCK) => {}
                    Err(error) => {
                        return Err(error).with_context(|| {
                            format!(
                                "cannot lock {}: is it on a file system with locks?",
                                path.display()
                            )
                        });
                    }
                }
            }
            // Another process holds the lock exclusively only while it starts.
            if std::time::Instant::now() > until {
                bail!("{} is in use by another process, which keeps it to itself", dir.display());
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    /// The exclusive lock of a directory, if nobody uses the directory, including the caller.
    pub fn alone(dir: &Path) -> Option<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::open(dir.join("shared.lock"), flags, Mode::empty()).ok()?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
        Some(file)
    }

    /// Whether nobody else uses the directory. That ends with [`Sharing::share`].
    pub fn is_alone(&self) -> bool {
        self.alone
    }

    /// Lets other processes share the directory.
    ///
    /// # Errors
    /// If the file system refuses.
    pub fn share(mut self) -> Result<Sharing> {
        rustix::fs::flock(&self.file, FlockOperation::LockShared).context("cannot share a lock")?;
        self.alone = false;
        Ok(self)
    }
}

/// How long another process may take to start.
const SHARING_LIMIT: std::time::Duration = std::time::Duration::from_secs(10);

/// Space left on the disk of a directory.
pub fn free_bytes(dir: &Path) -> Result<u64> {
    let stat = rustix::fs::statvfs(dir)
        .with_context(|| format!("cannot ask how much space is left in {}", dir.display()))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn replace_sets_content_and_mode_and_leaves_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "old").unwrap();
        replace(&path, b"new", 0o600).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_no_file_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::from_raw_mode(0o600)).unwrap();
        assert_eq!(read(&path).unwrap_err().kind(), ErrorKind::InvalidData);
        assert_eq!(read(dir.path()).unwrap_err().kind(), ErrorKind::InvalidData);
        assert_eq!(read(&dir.path().join("none")).unwrap_err().kind(), ErrorKind::NotFound);
        std::fs::write(dir.path().join("file"), "text").unwrap();
        assert_eq!(read_to_string(&dir.path().join("file")).unwrap(), "text");
    }

    #[test]
    fn the_second_lock_names_the_first_holder() {
        let dir = tempfile::tempdir().unwrap();
        let first = Lock::acquire(dir.path()).unwrap();
        let error = Lock::acquire(dir.path()).unwrap_err().to_string();
        assert!(error.contains(&format!("pid {}", std::process::id())), "{error}");
        drop(first);
        Lock::acquire(dir.path()).unwrap();
    }

    #[test]
    fn one_is_alone_until_it_shares() {
        let dir = tempfile::tempdir().unwrap();
        let first = Sharing::acquire(dir.path()).unwrap();
        assert!(first.is_alone());
        let second = std::thread::scope(|scope| {
            let second = scope.spawn(|| Sharing::acquire(dir.path()).unwrap());
            std::thread::sleep(std::time::Duration::from_millis(100));
            assert!(!second.is_finished(), "it waits for the other one to have started");
            let _first = first.share().unwrap();
            second.join().unwrap()
        });
        assert!(!second.is_alone());
    }
}
