//! The cache file of a volume: made, opened, read.
//!
//! ```text
//! volumes/ID/cache.0000       the read cache, preallocated; may be deleted while no host runs
//! ```
//!
//! Promises: if a cache cannot be made, or not as large as asked for, the host only warns. It uses
//! no file but a cache of this volume. No plain text stays in the file of an encrypted volume. The
//! engine knows the content.

use super::state::{StateDir, random};

pub use super::state::cache_path as path;

use anyhow::{Context as _, Result};
use longhaul_base::cache_file::{fitting, run_load};
use longhaul_base::disk::OrderedDisk;
use longhaul_base::files::free_bytes;
use longhaul_base::units::show_bytes;
use longhaul_core::block::VolumeId;
use longhaul_core::host::cache::{Cache, Geometry, Load, Loaded, MIN_CACHE_BYTES, Pins};
use rustix::fs::FallocateFlags;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Instant;

/// Space that a cache leaves free on its disk: the journal of the next volume comes before it.
const LEFT_FREE_BYTES: u64 = 256 << 20;

/// A cache and the disk it is on.
pub struct CacheFile {
    /// For the engine.
    pub cache: Cache,
    /// Where its operations go.
    pub disk: OrderedDisk,
    /// What is pinned.
    pub pins: Pins,
}

/// Opens the cache of a volume, or makes one; `None` if the host wants none or cannot have one.
/// `sealed`: its content has to be encrypted. Blocks.
pub fn open(
    state: &StateDir,
    (name, volume): (&str, VolumeId),
    bytes: u64,
    sealed: bool,
) -> Option<CacheFile> {
    let dir = state.volume_dir(volume);
    let opened =
        if bytes == 0 { remove(&dir) } else { open_file(&dir, (name, volume), bytes, sealed) };
    opened.unwrap_or_else(|error| {
        tracing::warn!(volume = name, "the volume has no read cache: {error:#}");
        None
    })
}

fn remove(dir: &Path) -> Result<Option<CacheFile>> {
    match std::fs::remove_file(path(dir)) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            let path = path(dir);
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(None),
    }
}

fn open_file(
    dir: &Path,
    (name, volume): (&str, VolumeId),
    wanted: u64,
    sealed: bool,
) -> Result<Option<CacheFile>> {
    let started = Instant::now();
    let path = path(dir);
    let cannot = || format!("cannot use {}", path.display());
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(&path).with_context(cannot)?;
    let have = file.metadata().with_context(cannot)?.len();
    let free = free_bytes(dir)?.saturating_add(have).saturating_sub(LEFT_FREE_BYTES);
    let bytes = fitting(wanted, free);
    if bytes < wanted {
        tracing::warn!(
            volume = name,
            "the read cache gets {} of {}: {} has no more room",
            show_bytes(bytes),
            show_bytes(wanted),
            dir.display()
        );
    }
    let Some(geometry) = Geometry::for_size(bytes).filter(|_| bytes >= MIN_CACHE_BYTES) else {
        return remove(dir);
    };
    let (mut cache, mut loaded) = load(&file, geometry, volume)?;
    let plain = sealed && have > 0 && !loaded.sealed;
    if have != bytes || plain {
        // The content was laid out for another size, or may be plain text that must not be there.
        file.set_len(0).with_context(cannot)?;
        if let Err(error) = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes) {
            remove(dir)?;
            return Err(error).with_context(|| {
                format!("{} has no room for {}", dir.display(), show_bytes(bytes))
            });
        }
        (cache, loaded) = load(&file, geometry, volume)?;
    }
    tracing::info!(
        volume = name,
        "opened a read cache of {} with {} in {:.2} s",
        show_bytes(bytes),
        show_bytes(loaded.valid_bytes),
        started.elapsed().as_secs_f64()
    );
    let names = path.with_extension("").display().to_string();
    let disk = OrderedDisk::new(vec![file], names);
    let pins = super::pins::load(dir).unwrap_or_else(|error| {
        tracing::warn!(volume = name, "nothing is pinned: {error:#}; pin it again");
        Pins::default()
    });
    Ok(Some(CacheFile { cache, disk, pins }))
}

fn load(file: &File, geometry: Geometry, volume: VolumeId) -> Result<(Cache, Loaded)> {
    let mut load = Load::new(geometry, Some(volume));
    run_load(&mut load, file);
    let report = load.report();
    if report.bad_pages > 0 {
        tracing::warn!(
            "{} pages of the index of a read cache are damaged; the host does not use their blocks",
            report.bad_pages
        );
    }
    Ok((load.finish(volume, random()?), report))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_file_is_made_found_and_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(&dir.path().join("state")).unwrap();
        let volume = VolumeId(7);
        std::fs::create_dir_all(state.volume_dir(volume)).unwrap();
        let path = path(&state.volume_dir(volume));
        let length = || std::fs::metadata(&path).map(|meta| meta.len()).ok();
        assert!(open(&state, ("v", volume), 64 << 20, false).is_some());
        assert_eq!(length(), Some(64 << 20));
        std::fs::write(&path, vec![0xa5; 64 << 20]).unwrap();
        assert!(
            open(&state, ("v", volume), 64 << 20, false).is_some(),
            "rubbish is no reason to fail"
        );
        let rubbish = || std::fs::read(&path).unwrap().contains(&0xa5);
        assert!(rubbish());
        assert!(open(&state, ("v", volume), 64 << 20, true).is_some());
        assert!(
            !rubbish(),
            "what may be plain text does not stay in the file of an encrypted volume"
        );
        assert!(open(&state, ("v", volume), 65 << 20, false).is_some());
        assert_eq!(length(), Some(65 << 20));
        assert!(open(&state, ("v", volume), 0, false).is_none());
        assert_eq!(length(), None);
        std::fs::create_dir(&path).unwrap();
        assert!(open(&state, ("v", volume), 64 << 20, false).is_none());
    }
}
