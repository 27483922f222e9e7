//! The directory of a store's credentials.

use anyhow::{Context as _, Result};
use std::path::{Path, PathBuf};

pub(super) fn directory(state: &Path) -> PathBuf {
    state.join("credentials")
}

pub(super) fn read_if_there(path: &Path) -> Result<Option<String>> {
    match longhaul_base::files::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

pub(super) fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}
