//! The common parts of the cache files of hosts and of stores: their size limits and how to load
//! them.

use crate::Usage;
use crate::units::show_bytes;
use anyhow::{Result, bail};
use longhaul_core::cache::{Load, MAX_CACHE_BYTES, MIN_CACHE_BYTES};
use longhaul_core::disk::{DiskOperation, DiskResult};
use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// Checks a value of `--cache-size`.
///
/// # Errors
/// If it is too small or too large.
pub fn check_size(bytes: u64) -> Result<u64> {
    if bytes != 0 && !(MIN_CACHE_BYTES..=MAX_CACHE_BYTES).contains(&bytes) {
        bail!(Usage(format!(
            "--cache-size {}: a cache has {} to {}, or 0 for none",
            show_bytes(bytes),
            show_bytes(MIN_CACHE_BYTES),
            show_bytes(MAX_CACHE_BYTES)
        )));
    }
    Ok(bytes)
}

/// The wanted size; if that does not fit, the largest of its halves, quarters and so on that does.
pub fn fitting(wanted: u64, free: u64) -> u64 {
    let mut bytes = wanted;
    while bytes > free && bytes > 0 {
        bytes = bytes / 2 / 4096 * 4096;
    }
    if bytes >= MIN_CACHE_BYTES { bytes } else { 0 }
}

/// Carries out the reads of a load until it asks for no more.
pub fn run_load(load: &mut Load, file: &File) {
    while let Some(operation) = load.poll_disk() {
        load.handle_disk(match operation {
            DiskOperation::Read { id, offset, bytes, .. } => {
                let mut data = vec![0; bytes];
                match file.read_exact_at(&mut data, offset) {
                    Ok(()) => DiskResult::Data { id, data: data.into() },
                    Err(error) => DiskResult::Failed { id, error: error.to_string() },
                }
            }
            DiskOperation::Write { id, .. } | DiskOperation::Sync { id, .. } => {
                DiskResult::Failed { id, error: "loading is read-only".into() }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_makes_the_cache_smaller() {
        assert_eq!(fitting(10 << 30, 20 << 30), 10 << 30);
        assert_eq!(fitting(10 << 30, 3 << 30), (10 << 30) / 4);
        assert_eq!(fitting(10 << 30, 10 << 20), 0);
        // A cache that was made smaller keeps its size: the next start computes the same value.
        let smaller = fitting(10 << 30, 3 << 30);
        assert_eq!(fitting(10 << 30, (3 << 30) - smaller + smaller), smaller);
    }

    #[test]
    fn sizes_have_limits() {
        assert_eq!(check_size(0).unwrap(), 0);
        assert_eq!(check_size(64 << 20).unwrap(), 64 << 20);
        assert!(check_size(1 << 20).is_err() && check_size(1 << 60).is_err());
    }
}
