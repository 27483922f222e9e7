//! Objects as files of a local directory.
//!
//! A put writes a file in `tmp/` and makes its content durable (fdatasync). Then it gives the file
//! its name if that is free (renameat2 with RENAME_NOREPLACE, else link(2)), and makes the name
//! durable (fsync of the directory). The next start removes the leftovers of a crash in `tmp/`.
//! `docs/decisions/objects.md` says why this does not use the `object_store` crate.

use super::failure;
use super::{GetError, ObjectMeta, Objects, PutError, StorageError};
use anyhow::{Context as _, Result};
use async_trait::async_trait;
use bytes::{Buf as _, Bytes};
use longhaul_base::files;
use longhaul_base::random;
use longhaul_base::service::open_files_max;
use rustix::fs::{CWD, Mode, OFlags, RenameFlags, ResolveFlags, openat2};
use rustix::io::{Errno, ReadWriteFlags};
use std::collections::HashMap;
use std::fs::File;
use std::io::{ErrorKind, IoSlice, IoSliceMut, Write as _};
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most files kept open for reading, and their share of the files that the process may open.
const OPEN_FILES: usize = 4096;
const OPEN_SHARE: usize = 4;
/// The part of the open files to close when there are too many: one in this many.
const CLOSED_PART: usize = 16;
/// How often to close the files without a read since the last time. While a file is open here, its
/// space is not free, even if another store has deleted it.
const CLOSE_INTERVAL: Duration = Duration::from_secs(60);
/// Largest object to read whole.
const MAX_WHOLE_BYTES: u64 = 1 << 30;

/// Objects in a directory.
pub struct LocalObjects {
    inner: Arc<Inner>,
}

struct Inner {
    root: PathBuf,
    temporary: PathBuf,
    /// Distinguishes its files in `temporary` from those of other processes.
    process: u128,
    next: AtomicU64,
    open: Mutex<OpenFiles>,
    /// How often to look for files without a read.
    interval: Duration,
}

/// Files that are no longer kept open. Closing the last handle of a deleted file frees its space,
/// which takes disk time. So close them outside of the lock, and not on a thread that serves.
type Closed = Vec<Arc<File>>;

/// The open files, each with the time of its last use.
struct OpenFiles {
    files: HashMap<String, (Arc<File>, u64)>,
    clock: u64,
    most: usize,
    /// Whether a task looks for files without a read, every [`Inner::interval`].
    watched: bool,
}

impl OpenFiles {
    /// Keeps at most `most` files open.
    fn new(most: usize) -> OpenFiles {
        OpenFiles { files: HashMap::new(), clock: 0, most, watched: false }
    }

    fn get(&mut self, key: &str) -> Option<Arc<File>> {
        self.clock += 1;
        let (file, used) = self.files.get_mut(key)?;
        *used = self.clock;
        Some(file.clone())
    }

    /// Keeps a file open, unless another thread has opened it in the meantime. Returns the file
    /// that stays open, and those that make room for it.
    fn keep(&mut self, key: &str, file: File) -> (Arc<File>, Closed) {
        let mut closed = Vec::new();
        if self.files.len() >= self.most {
            let mut used: Vec<u64> = self.files.values().map(|(_, used)| *used).collect();
            let part = used.len() / CLOSED_PART;
            let (_, &mut last, _) = used.select_nth_unstable(part);
            closed = self.take_unused(last);
        }
        let clock = self.clock;
        let (file, _) = self.files.entry(key.to_owned()).or_insert((Arc::new(file), clock));
        (file.clone(), closed)
    }

    /// Takes out the files that nobody has read after the clock said `since`.
    fn take_unused(&mut self, since: u64) -> Closed {
        let unused = self.files.extract_if(|_, (_, used)| *used <= since);
        unused.map(|(_, (file, _))| file).collect()
    }
}

impl LocalObjects {
    /// Opens the objects in `data`/objects. The caller holds a lock, so nobody else uses them at
    /// this moment.
    ///
    /// # Errors
    /// If the directory cannot be created or cleaned up.
    pub fn open(data: &Path) -> Result<LocalObjects> {
        let objects = LocalObjects::beside(data)?;
        let temporary = &objects.inner.temporary;
        let left = std::fs::read_dir(temporary)
            .with_context(|| format!("cannot read {}", temporary.display()))?;
        for entry in left {
            let path = entry?.path();
            std::fs::remove_file(&path)
                .with_context(|| format!("cannot remove the left-over {}", path.display()))?;
        }
        Ok(objects)
    }

    /// Like [`LocalObjects::open`], while other processes may use the objects. Leaves `tmp/` as it
    /// is.
    ///
    /// # Errors
    /// If the directory cannot be created.
    pub fn beside(data: &Path) -> Result<LocalObjects> {
        let (root, temporary) = (data.join("objects"), data.join("tmp"));
        files::create_dir(&root)?;
        files::create_dir(&temporary)?;
        let inner = Inner {
            root,
            temporary,
            process: random::identity()?,
            next: AtomicU64::new(0),
            open: Mutex::new(OpenFiles::new(OPEN_FILES.min(open_files_max() / OPEN_SHARE).max(1))),
            interval: CLOSE_INTERVAL,
        };
        Ok(LocalObjects { inner: Arc::new(inner) })
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> T + Send + 'static,
    ) -> Result<T, StorageError> {
        let inner = self.inner.clone();
        tokio::task::spawn_blocking(move || work(&inner)).await.map_err(failure::of_thread)
    }

    /// Starts the task that closes unused files, unless it runs already.
    fn watch(&self) {
        if std::mem::replace(&mut self.inner.open().watched, true) {
            return;
        }
        let (inner, interval) = (Arc::downgrade(&self.inner), self.inner.interval);
        tokio::spawn(async move {
            let mut since = 0;
            loop {
                tokio::time::sleep(interval).await;
                let Some(inner) = inner.upgrade() else { return };
                let mut open = inner.open();
                let closed = open.take_unused(since);
                since = open.clock;
                let last = open.files.is_empty();
                open.watched = !last;
                drop(open);
                close(closed);
                if last {
                    return;
                }
            }
        });
    }
}

#[async_trait]
impl Objects for LocalObjects {
    async fn put(&self, key: &str, data: Vec<Bytes>) -> Result<(), PutError> {
        let key = key.to_owned();
        self.blocking(move |inner| inner.put(&key, data)).await.map_err(PutError::Failed)?
    }

    async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Bytes, GetError> {
        let (key, kept) = (key.to_owned(), range.is_some());
        let got = self.blocking(move |inner| inner.get(&key, range)).await;
        if kept {
            self.watch();
        }
        got.map_err(GetError::Failed)?
    }

    fn try_get(&self, key: &str, range: Option<&Range<u64>>) -> Option<Result<Bytes, GetError>> {
        let range = range?;
        let known = self.inner.open().get(key);
        let open = || {
            let opened = self.inner.try_open(key);
            self.watch();
            opened
        };
        let file = known.or_else(open)?;
        let bytes = usize::try_from(range.end.checked_sub(range.start)?).ok()?;
        let mut data = vec![0; bytes];
        // The read may be short at the end of the file or of the page cache. The slow path handles
        // that.
        let mut buffers = [IoSliceMut::new(&mut data)];
        let read = rustix::io::preadv2(&file, &mut buffers, range.start, ReadWriteFlags::NOWAIT);
        (read == Ok(bytes)).then(|| Ok(data.into()))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>, StorageError> {
        let prefix = prefix.to_owned();
        self.blocking(move |inner| inner.list(&prefix)).await?
    }

    async fn delete(&self, key: &str) -> Result<(), StorageError> {
        let key = key.to_owned();
        self.blocking(move |inner| inner.delete(&key)).await?
    }

    async fn restore(&self, key: &str, data: Bytes) -> Result<(), StorageError> {
        let key = key.to_owned();
        self.blocking(move |inner| inner.restore(&key, data)).await?
    }

    async fn copy(&self, from: &str, to: &str) -> Result<(), PutError> {
        let (from, to) = (from.to_owned(), to.to_owned());
        self.blocking(move |inner| inner.link(&from, &to)).await.map_err(PutError::Failed)?
    }
}

/// Closes files on a thread of their own.
fn close(closed: Closed) {
    if !closed.is_empty() {
        tokio::task::spawn_blocking(move || drop(closed));
    }
}

impl Inner {
    /// The path of a key. The engine makes the keys. Still, no name may lead out of the directory.
    fn path(&self, key: &str) -> Result<PathBuf, StorageError> {
        let parts = key.split('/');
        if parts.clone().any(|part| part.is_empty() || part == "." || part == "..") {
            return Err(failure::not_a_name(key));
        }
        Ok(parts.fold(self.root.clone(), |path, part| path.join(part)))
    }

    /// The path of a new file beside the objects.
    fn temporary(&self) -> PathBuf {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.temporary.join(format!("{:032x}-{number:x}", self.process))
    }

    fn put(&self, key: &str, data: Vec<Bytes>) -> Result<(), PutError> {
        let path = self.path(key).map_err(PutError::Failed)?;
        let temporary = self.temporary();
        let result = self.put_as(&temporary, &path, data);
        if !matches!(result, Ok(())) {
            let _ = std::fs::remove_file(&temporary);
        }
        result.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => PutError::Exists,
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                PutError::Failed(failure::no_space(format_args!(
                    "no space left for {}: free some; until then nothing is committed, reads go \
                     on; if a quota is used up, enlarge it",
                    path.display()
                )))
            }
            _ => PutError::Failed(failure::of_io(cannot("write", &path), &error)),
        })
    }

    fn put_as(&self, temporary: &Path, path: &Path, data: Vec<Bytes>) -> std::io::Result<()> {
        let dir = path.parent().unwrap_or(&self.root);
        write_new(temporary, data)?;
        let mut named = rename_new(temporary, path);
        if matches!(&named, Err(error) if error.kind() == ErrorKind::NotFound) {
            // A deletion may remove an empty directory again, so create it only now.
            failure::create_dir(dir)?;
            named = rename_new(temporary, path);
        }
        if matches!(&named, Err(error) if error.kind() != ErrorKind::AlreadyExists) {
            return named;
        }
        // Sync also if the file exists: it may be our own, from an attempt that failed here.
        files::sync_dir(dir)?;
        named
    }

    /// Replaces the file of an object by another one.
    fn restore(&self, key: &str, data: Bytes) -> Result<(), StorageError> {
        let path = self.path(key)?;
        let temporary = self.temporary();
        let dir = path.parent().unwrap_or(&self.root);
        let restore = || -> std::io::Result<File> {
            write_new(&temporary, vec![data])?;
            failure::create_dir(dir)?;
            std::fs::rename(&temporary, &path)?;
            files::sync_dir(dir)?;
            open_object(&path)
        };
        let restored = restore().map_err(|error| {
            let _ = std::fs::remove_file(&temporary);
            failure::of_io(cannot("write", &path), &error)
        })?;
        // A reader that has just opened the old file keeps this one open.
        let mut open = self.open();
        let clock = open.clock;
        open.files.insert(key.to_owned(), (Arc::new(restored), clock));
        Ok(())
    }

    /// Gives the file of an object, which never changes, a second name.
    fn link(&self, from: &str, to: &str) -> Result<(), PutError> {
        let from = self.path(from).map_err(PutError::Failed)?;
        let path = self.path(to).map_err(PutError::Failed)?;
        let dir = path.parent().unwrap_or(&self.root);
        let link = || -> std::io::Result<()> {
            let mut linked = std::fs::hard_link(&from, &path);
            if matches!(&linked, Err(error) if error.kind() == ErrorKind::NotFound) {
                failure::create_dir(dir)?;
                linked = std::fs::hard_link(&from, &path);
            }
            if matches!(&linked, Err(error) if error.kind() != ErrorKind::AlreadyExists) {
                return linked;
            }
            files::sync_dir(dir)?;
            linked
        };
        link().map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => PutError::Exists,
            _ => PutError::Failed(failure::of_io(cannot("link", &path), &error)),
        })
    }

    fn open(&self) -> MutexGuard<'_, OpenFiles> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a file for many reads, if the kernel can find it without the disk.
    fn try_open(&self, key: &str) -> Option<Arc<File>> {
        let path = self.path(key).ok()?;
        // Systems before Linux 5.12 refuse the last flag. Then the slow path opens the file.
        let file = openat2(CWD, &path, OPEN_FLAGS, Mode::empty(), ResolveFlags::CACHED).ok()?;
        let file = File::from(file);
        if !file.metadata().ok()?.is_file() {
            return None;
        }
        let (file, closed) = self.open().keep(key, file);
        close(closed);
        Some(file)
    }

    /// Opens a file. Set `keep` if more reads of it will follow. Another process may delete a name
    /// like that of a volume and use it again. So `keep` is false for such objects, and their reads
    /// are whole.
    fn file(&self, key: &str, keep: bool) -> Result<Arc<File>, GetError> {
        if keep && let Some(file) = self.open().get(key) {
            return Ok(file);
        }
        let path = self.path(key).map_err(GetError::Failed)?;
        match open_object(&path) {
            Ok(file) if keep => {
                let (file, _closed) = self.open().keep(key, file);
                Ok(file)
            }
            Ok(file) => Ok(Arc::new(file)),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(GetError::NotFound),
            Err(error) => Err(failed(&path, &error)),
        }
    }

    fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Bytes, GetError> {
        let file = self.file(key, range.is_some())?;
        let read = || -> std::io::Result<Bytes> {
            let length = file.metadata()?.len();
            let range = range.unwrap_or(0..length);
            let end = range.end.min(length);
            let wanted = end.saturating_sub(range.start);
            if wanted > MAX_WHOLE_BYTES {
                // No object has that many bytes.
                return Err(ErrorKind::FileTooLarge.into());
            }
            let mut data = vec![0; wanted as usize];
            file.read_exact_at(&mut data, range.start)?;
            Ok(data.into())
        };
        read().map_err(|error| {
            let path = self.root.join(key);
            if is_bad_medium(&file, &error) {
                return GetError::Damaged(format!("cannot read {}: {error}", path.display()));
            }
            failed(&path, &error)
        })
    }

    fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>, StorageError> {
        let (dir, _) = prefix.rsplit_once('/').unwrap_or(("", prefix));
        let top = if dir.is_empty() { self.root.clone() } else { self.path(dir)? };
        let mut found = Vec::new();
        let mut pending = vec![(dir.to_owned(), top)];
        while let Some((name, path)) = pending.pop() {
            let error = |error: std::io::Error| failure::of_io(cannot("list", &path), &error);
            let entries = match std::fs::read_dir(&path) {
                Ok(entries) => entries,
                Err(missing) if missing.kind() == ErrorKind::NotFound => continue,
                Err(other) => return Err(error(other)),
            };
            let mut empty = true;
            for entry in entries {
                empty = false;
                let entry = entry.map_err(error)?;
                // Every object of longhaul has a UTF-8 name.
                let Ok(last) = entry.file_name().into_string() else { continue };
                let key = if name.is_empty() { last } else { format!("{name}/{last}") };
                match entry.metadata() {
                    Ok(metadata) if metadata.is_dir() => pending.push((key, entry.path())),
                    Ok(metadata) if key.starts_with(prefix) => {
                        found.push(ObjectMeta { key, bytes: metadata.len() });
                    }
                    Ok(_) => {}
                    Err(gone) if gone.kind() == ErrorKind::NotFound => {}
                    Err(other) => return Err(error(other)),
                }
            }
            // List the directory in place of an object, so that the reader gets an error that
            // explains it.
            if empty && name.starts_with(prefix) && looks_like_object(&name) {
                found.push(ObjectMeta { key: name, bytes: 0 });
            }
        }
        Ok(found)
    }

    fn delete(&self, key: &str) -> Result<(), StorageError> {
        let path = self.path(key)?;
        self.open().files.remove(key);
        let error = |error: std::io::Error| failure::of_io(cannot("delete", &path), &error);
        let mut removed = std::fs::remove_file(&path);
        if matches!(&removed, Err(error) if error.kind() == ErrorKind::IsADirectory) {
            removed = std::fs::remove_dir(&path);
        }
        match removed {
            Ok(()) => {}
            Err(missing) if missing.kind() == ErrorKind::NotFound => return Ok(()),
            Err(other) => return Err(error(other)),
        }
        let mut dir = path.parent().unwrap_or(&self.root);
        files::sync_dir(dir).map_err(error)?;
        // Remove empty directories as well. A put that needs one makes it again.
        while dir != self.root && std::fs::remove_dir(dir).is_ok() {
            dir = dir.parent().unwrap_or(&self.root);
        }
        Ok(())
    }
}

/// Whether the name of an empty directory is one of an object. Deletions leave other empty
/// directories for a moment, and crashes leave them for longer.
pub fn looks_like_object(name: &str) -> bool {
    let mut parts = name.rsplit('/');
    let mut part = || parts.next().unwrap_or_default();
    let (last, above, top) = (part(), part(), part());
    let described =
        above == "volumes" && !last.starts_with('_') || top == "volumes" && above.starts_with('_');
    let numbered = |part: &str| part.len() == 16 && part.bytes().all(|b| b.is_ascii_hexdigit());
    last.split('-').all(numbered) || described
}

/// Never waits for the other end of a pipe, and follows no link in the place of an object. Follows
/// links in the place of directories: an operator may have moved one to another disk.
const OPEN_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOFOLLOW);

/// Opens the file of an object, if it is a regular file.
///
/// # Errors
/// If it does not open, or is not a regular file ([`ErrorKind::InvalidData`]).
pub fn open_object(path: &Path) -> std::io::Result<File> {
    let file = File::from(rustix::fs::open(path, OPEN_FLAGS, Mode::empty())?);
    if file.metadata()?.is_file() { Ok(file) } else { Err(ErrorKind::InvalidData.into()) }
}

/// Whether file systems report an unreadable place of the disk with this error. A network file
/// system also reports an outage with it, which ends, so it does not count.
fn is_bad_medium(file: &File, error: &std::io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    let bad = matches!(errno, Some(Errno::IO | Errno::NODATA | Errno::UCLEAN | Errno::ILSEQ));
    bad && rustix::fs::fstatfs(file)
        .is_ok_and(|system| !NETWORK_FILE_SYSTEMS.contains(&(system.f_type as u64 as u32)))
}

/// Magic numbers of NFS, SMB (three), FUSE, Ceph, 9P, AFS, Lustre, GFS2 and OCFS2, as in statfs(2).
const NETWORK_FILE_SYSTEMS: [u32; 11] = [
    0x6969,
    0x517b,
    0xff53_4d42,
    0xfe53_4d42,
    0x6573_5546,
    0x00c3_6400,
    0x0102_1997,
    0x5346_414f,
    0x0bd0_0bd0,
    0x0116_1970,
    0x7461_636f,
];

fn cannot(verb: &str, path: &Path) -> String {
    format!("cannot {verb} {}", path.display())
}

/// Why a read of a file failed, and whether another attempt can help.
fn failed(path: &Path, error: &std::io::Error) -> GetError {
    let damaged = |what: &str| GetError::Damaged(format!("{} {what}", path.display()));
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        None if error.kind() == ErrorKind::InvalidData => damaged("is no file"),
        None if error.kind() == ErrorKind::FileTooLarge => damaged("is larger than any object"),
        // A link, a file in the place of a directory, a device without a driver, or a socket.
        Some(Errno::LOOP | Errno::NOTDIR | Errno::NXIO | Errno::ISDIR) => damaged("is no file"),
        _ => GetError::Failed(failure::of_io(cannot("read", path), error)),
    }
}

/// Renames a file, unless the new name exists.
fn rename_new(from: &Path, to: &Path) -> std::io::Result<()> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Some file systems do not know the flag.
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
            std::fs::hard_link(from, to)?;
            std::fs::remove_file(from)
        }
        result => result.map_err(Into::into),
    }
}

/// Writes a new file, and makes its content durable.
fn write_new(path: &Path, data: Vec<Bytes>) -> std::io::Result<()> {
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    write_all(&mut file, data)?;
    file.sync_data()
}

fn write_all(file: &mut File, mut data: Vec<Bytes>) -> std::io::Result<()> {
    data.retain(|part| !part.is_empty());
    let mut at = 0;
    while at < data.len() {
        // IOV_MAX is 1024.
        let slices: Vec<_> = data[at..].iter().take(1024).map(|part| IoSlice::new(part)).collect();
        let mut written = file.write_vectored(&slices)?;
        if written == 0 {
            return Err(ErrorKind::WriteZero.into());
        }
        while written > 0 {
            let part = written.min(data[at].len());
            data[at].advance(part);
            written -= part;
            if data[at].is_empty() {
                at += 1;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests;
    use super::*;

    fn objects() -> (tempfile::TempDir, LocalObjects) {
        let dir = tempfile::tempdir().unwrap();
        let objects = LocalObjects::open(dir.path()).unwrap();
        (dir, objects)
    }

    #[tokio::test]
    async fn nothing_is_left_of_what_was_deleted() {
        let (dir, objects) = objects();
        tests::keeps_the_contract(Arc::new(objects)).await;
        assert!(!dir.path().join("objects/v").exists());
        assert_eq!(std::fs::read_dir(dir.path().join("tmp")).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn two_processes_share_a_directory() {
        let (dir, one) = objects();
        let two = LocalObjects::beside(dir.path()).unwrap();
        one.put("volumes/a", vec![Bytes::from("first")]).await.unwrap();
        assert_eq!(two.get("volumes/a", None).await.unwrap(), "first");
        let taken = two.put("volumes/a", vec![Bytes::from("x")]).await;
        assert_eq!(taken, Err(PutError::Exists));
        one.delete("volumes/a").await.unwrap();
        one.put("volumes/a", vec![Bytes::from("second")]).await.unwrap();
        assert_eq!(two.get("volumes/a", None).await.unwrap(), "second");
        let puts = (0..50).map(|n| {
            let store = if n % 2 == 0 { &one } else { &two };
            async move { store.put(&format!("v/{n}/x"), vec![Bytes::from("x")]).await }
        });
        for put in futures_util::future::join_all(puts).await {
            put.unwrap();
        }
    }

    #[tokio::test]
    async fn what_was_read_before_is_at_hand() {
        let (_dir, objects) = objects();
        objects.put("a", vec![Bytes::from("hello world")]).await.unwrap();
        objects.get("a", Some(0..1)).await.unwrap();
        assert_eq!(objects.try_get("a", Some(&(6..9))).unwrap().unwrap(), "wor");
    }

    #[tokio::test]
    async fn what_is_in_memory_is_opened_and_read_at_once() {
        let (dir, objects) = objects();
        objects.put("v/1/seg/a", vec![Bytes::from("hello world")]).await.unwrap();
        drop(objects);
        let objects = LocalObjects::open(dir.path()).unwrap();
        assert_eq!(objects.try_get("v/1/seg/a", Some(&(6..9))).unwrap().unwrap(), "wor");
        assert!(objects.try_get("v/1/seg/b", Some(&(6..9))).is_none());
        objects.delete("v/1/seg/a").await.unwrap();
        assert!(objects.try_get("v/1/seg/a", Some(&(6..9))).is_none());
    }

    #[tokio::test]
    async fn a_file_that_nobody_reads_is_closed() {
        let (_dir, mut objects) = objects();
        Arc::get_mut(&mut objects.inner).unwrap().interval = Duration::from_millis(10);
        for key in ["a", "b"] {
            objects.put(key, vec![Bytes::from("hello world")]).await.unwrap();
            assert_eq!(objects.get(key, Some(6..9)).await.unwrap(), "wor");
        }
        let begun = std::time::Instant::now();
        while !objects.inner.open().files.is_empty() || objects.inner.open().watched {
            assert!(begun.elapsed() < Duration::from_secs(180));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(objects.get("a", Some(6..9)).await.unwrap(), "wor");
        let open = objects.inner.open();
        assert!(open.watched || open.files.is_empty());
    }

    #[test]
    fn only_what_was_not_read_is_closed() {
        let mut open = OpenFiles::new(32);
        let file = tempfile::tempfile().unwrap();
        for key in ["a", "b"] {
            open.keep(key, file.try_clone().unwrap());
            assert!(open.get(key).is_some());
        }
        assert_eq!((open.take_unused(0).len(), open.files.len()), (0, 2));
        let since = open.clock;
        assert!(open.get("b").is_some());
        assert_eq!(open.take_unused(since).len(), 1);
        assert!(open.files.contains_key("b") && open.files.len() == 1);
        assert_eq!((open.take_unused(open.clock).len(), open.files.len()), (1, 0));
    }

    #[test]
    fn the_files_used_longest_ago_are_closed() {
        let mut open = OpenFiles::new(32);
        let file = tempfile::tempfile().unwrap();
        for n in 0..1000 {
            open.keep(&n.to_string(), file.try_clone().unwrap());
            assert!(open.get(&n.to_string()).is_some());
            assert!(open.get("0").is_some());
            assert!(open.files.len() <= 32, "{}", open.files.len());
        }
        assert!((972..1000).all(|n| open.files.contains_key(&n.to_string())));
        assert!(!open.files.contains_key("900"));
        assert_eq!(OpenFiles::new(1).keep("a", file).0.metadata().unwrap().len(), 0);
    }

    #[tokio::test]
    async fn what_was_damaged_is_read_anew() {
        let (dir, objects) = objects();
        objects.put("v/1/seg/a", vec![Bytes::from("sound")]).await.unwrap();
        let path = dir.path().join("objects/v/1/seg/a");
        std::fs::write(&path, "wrong").unwrap();
        assert_eq!(objects.get("v/1/seg/a", Some(0..5)).await.unwrap(), "wrong");
        objects.restore("v/1/seg/a", Bytes::from("sound")).await.unwrap();
        assert_eq!(objects.get("v/1/seg/a", Some(0..5)).await.unwrap(), "sound");
        std::fs::remove_dir_all(dir.path().join("objects/v/1")).unwrap();
        objects.restore("v/1/seg/a", Bytes::from("sound")).await.unwrap();
        assert_eq!(std::fs::read(path).unwrap(), b"sound");
        assert_eq!(std::fs::read_dir(dir.path().join("tmp")).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn what_is_no_file_is_damaged_and_not_waited_for() {
        let (dir, objects) = objects();
        let place = |key: &str| dir.path().join("objects").join(key);
        let keys = ["volumes/a", "v/1/seg/0000000000000001", "volumes/b", "volumes/c"];
        for key in keys {
            objects.put(key, vec![Bytes::from("x")]).await.unwrap();
            std::fs::remove_file(place(key)).unwrap();
        }
        let pipe = Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(CWD, place(keys[0]), pipe).unwrap();
        std::fs::create_dir(place(keys[1])).unwrap();
        std::fs::create_dir(place(keys[2])).unwrap();
        std::os::unix::fs::symlink("/dev/zero", place(keys[3])).unwrap();
        for key in keys {
            for range in [None, Some(0..4)] {
                assert!(objects.try_get(key, range.as_ref()).is_none(), "{key}");
                let read = objects.get(key, range).await;
                assert!(matches!(read, Err(GetError::Damaged(_))), "{key}: {read:?}");
            }
            let put = objects.put(key, vec![Bytes::from("y")]).await;
            assert_eq!(put, Err(PutError::Exists), "{key}");
        }
        let mut listed: Vec<_> =
            objects.list("").await.unwrap().into_iter().map(|meta| meta.key).collect();
        listed.sort_unstable();
        assert_eq!(listed, ["v/1/seg/0000000000000001", "volumes/a", "volumes/b", "volumes/c"]);
        for key in keys {
            objects.delete(key).await.unwrap();
            assert_eq!(objects.get(key, None).await, Err(GetError::NotFound));
        }
    }

    #[tokio::test]
    async fn names_stay_within_the_directory_and_leftovers_go() {
        let (dir, objects) = objects();
        for key in ["../x", "a/../../x", "/x", "a//b", "", "a/."] {
            assert!(matches!(objects.put(key, vec![]).await, Err(PutError::Failed(_))), "{key}");
            assert!(matches!(objects.get(key, None).await, Err(GetError::Failed(_))), "{key}");
        }
        std::fs::write(dir.path().join("tmp/17"), "torn").unwrap();
        LocalObjects::open(dir.path()).unwrap();
        assert!(!dir.path().join("tmp/17").exists());
    }
}
