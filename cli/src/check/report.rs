//! The findings of a check, and their text.

use super::stored::Stored;
use anyhow::{Context as _, Result};
use bytes::Bytes;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Largest segment read: batches are limited, and a segment holds one at least.
pub(crate) const MAX_SEGMENT_BYTES: u64 = 1 << 30;

/// The findings of a check.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    /// `host` or `store`.
    pub(crate) kind: &'static str,
    pub(crate) volumes: Vec<Checked>,
    pub(crate) damage: Vec<Damage>,
    /// Facts worth knowing that are no damage.
    pub(crate) notes: Vec<String>,
}

/// A checked volume.
#[derive(Debug, Serialize)]
pub(crate) struct Checked {
    pub(crate) name: String,
    pub(crate) id: String,
    pub(crate) ok: bool,
    pub(crate) epoch: u64,
    pub(crate) last_seq: u64,
    /// Journal frames or segments.
    pub(crate) parts: u64,
    pub(crate) bytes: u64,
    /// Of a store's encrypted volume: bytes of records in its objects by the number of their data
    /// key, live or not.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) data_keys: BTreeMap<u32, u64>,
    /// In words.
    pub(crate) found: String,
}

/// Something that is not as written.
#[derive(Debug, Serialize)]
pub(crate) struct Damage {
    pub(crate) file: PathBuf,
    pub(crate) offset: Option<u64>,
    pub(crate) problem: String,
    /// What to do.
    pub(crate) advice: String,
}

pub(crate) fn read(objects: &dyn Stored, key: &str) -> std::io::Result<Bytes> {
    objects.read(key, 0..MAX_SEGMENT_BYTES)
}

pub(crate) fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    if !dir.exists() {
        return Ok(Vec::new());
    }
    let read = || -> std::io::Result<Vec<PathBuf>> {
        std::fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect()
    };
    let mut paths = read().with_context(|| format!("cannot list {}", dir.display()))?;
    paths.sort();
    Ok(paths)
}

pub(crate) fn directories(dir: &Path) -> Result<Vec<PathBuf>> {
    Ok(entries(dir)?.into_iter().filter(|path| path.is_dir()).collect())
}
