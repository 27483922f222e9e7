//! The objects of a stopped store, wherever they are. Only reads them.

use anyhow::{Context as _, Result};
use bytes::Bytes;
use longhaul_core::store::sealed;
use longhaul_objects::{ObjectMeta, StoppedDevice, looks_like_object, open_object};
use longhaul_store::location::{self, LocationRecord, LocationRole, ObjectTrees};
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// Objects to read.
pub trait Stored {
    /// The objects whose names begin with `prefix`, which ends with a slash, in order.
    ///
    /// # Errors
    /// If the list fails.
    fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>>;

    /// Reads the existing part of a range of an object.
    ///
    /// # Errors
    /// If the read fails, or the object does not exist.
    fn read(&self, key: &str, range: Range<u64>) -> std::io::Result<Bytes>;

    /// Where it is, for people.
    fn place(&self, key: &str) -> PathBuf;

    /// Whether segments prove those before them. A replica may lack some that home had.
    fn proves_segments(&self) -> bool {
        true
    }
}

/// A directory with a file for each object.
pub struct Directory(pub PathBuf);

impl Stored for Directory {
    fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>> {
        let mut found = Vec::new();
        let mut dirs = vec![self.0.join(prefix)];
        while let Some(dir) = dirs.pop() {
            let read = || -> std::io::Result<()> {
                for entry in std::fs::read_dir(&dir)? {
                    let path = entry?.path();
                    let metadata = path.symlink_metadata()?;
                    let key = || path.strip_prefix(&self.0).unwrap_or(&path).to_string_lossy();
                    let empty =
                        || std::fs::read_dir(&path).is_ok_and(|mut dir| dir.next().is_none());
                    // List an empty directory in the place of an object, so that its read reports
                    // the problem.
                    if metadata.is_dir() && !(looks_like_object(&key()) && empty()) {
                        dirs.push(path);
                    } else {
                        let key = path.strip_prefix(&self.0).unwrap_or(&path);
                        let (key, bytes) = (key.to_string_lossy().into_owned(), metadata.len());
                        found.push(ObjectMeta { key, bytes });
                    }
                }
                Ok(())
            };
            match read_dir_if_there(read) {
                Ok(()) => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("cannot list {}", dir.display()));
                }
            }
        }
        found.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(found)
    }

    fn read(&self, key: &str, range: Range<u64>) -> std::io::Result<Bytes> {
        let file = open_object(&self.0.join(key)).map_err(|error| match error.kind() {
            ErrorKind::InvalidData => std::io::Error::new(error.kind(), "it is not a regular file"),
            _ => error,
        })?;
        let end = range.end.min(file.metadata()?.len());
        let mut data = vec![0; end.saturating_sub(range.start) as usize];
        file.read_exact_at(&mut data, range.start)?;
        Ok(data.into())
    }

    fn place(&self, key: &str) -> PathBuf {
        self.0.join(key)
    }
}

/// A directory that is not there is an empty one.
fn read_dir_if_there(read: impl FnOnce() -> std::io::Result<()>) -> std::io::Result<()> {
    match read() {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

impl Stored for StoppedDevice {
    fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>> {
        Ok(StoppedDevice::list(self, prefix))
    }

    fn read(&self, key: &str, range: Range<u64>) -> std::io::Result<Bytes> {
        StoppedDevice::read(self, key, range)
    }

    fn place(&self, key: &str) -> PathBuf {
        Path::new(self.path()).join(key)
    }
}

/// Longest small object to read: attributes are the longest.
const MAX_SEALED_BYTES: u64 = 64 << 20;

/// The valid part of a location: one of its trees, and a catalog.
pub struct InPlace<'a> {
    all: &'a dyn Stored,
    place: ObjectTrees,
}

impl<'a> InPlace<'a> {
    /// Finds the valid part.
    ///
    /// # Errors
    /// If a read fails.
    pub fn find(all: &'a dyn Stored) -> Result<(InPlace<'a>, LocationRole)> {
        let newest = all.list(location::PREFIX)?.into_iter().map(|meta| meta.key).max();
        let site = match newest {
            Some(key) => {
                let shown = all.place(&key);
                let record = all.read(&key, 0..location::MAX_BYTES);
                let record = record.with_context(|| format!("cannot read {}", shown.display()))?;
                location::parse(&key, &record)?
            }
            None => LocationRecord::first(),
        };
        Ok((InPlace { all, place: site.place }, site.role))
    }

    fn key(&self, key: &str) -> String {
        self.place.key(key)
    }
}

impl Stored for InPlace<'_> {
    fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>> {
        let whole = self.key(prefix);
        let before = whole.len() - prefix.len();
        let mut found = self.all.list(&whole)?;
        for meta in &mut found {
            meta.key.drain(..before);
        }
        Ok(found)
    }

    /// For a sealed object, returns the content. The read fails if the seal does not match.
    fn read(&self, key: &str, range: Range<u64>) -> std::io::Result<Bytes> {
        if !sealed::is_sealed(key) {
            return self.all.read(&self.key(key), range);
        }
        let object = self.all.read(&self.key(key), 0..MAX_SEALED_BYTES)?;
        let content = sealed::open(key, &object).map_err(std::io::Error::other)?;
        let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(content.len());
        let (start, end) = (place(range.start), place(range.end));
        Ok(content.slice(start.min(end)..end))
    }

    fn place(&self, key: &str) -> PathBuf {
        self.all.place(&self.key(key))
    }

    fn proves_segments(&self) -> bool {
        self.place.is_first()
    }
}
