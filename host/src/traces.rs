//! The files of recorded traces.
//!
//! ```text
//! volumes/ID/traces/NAME.trace     a recording, see docs/formats.md
//! ```

use super::state::StateDir;
use anyhow::{Context as _, Result, ensure};
use longhaul_base::files;
use longhaul_core::block::VolumeId;
use longhaul_core::host::{MAX_TRACE_BYTES, Trace};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Longest name of a trace, in bytes.
const MAX_NAME_BYTES: usize = 64;

/// Most traces of a volume.
const MAX_TRACES: usize = 64;

/// A recorded trace.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TraceReport {
    /// Of which volume.
    pub volume: String,
    /// Its name.
    pub name: String,
    /// Ranges in it.
    pub ranges: usize,
    /// Bytes of the volume in them.
    pub bytes: u64,
}

/// Checks the name of a trace.
///
/// # Errors
/// If it would not do as the name of a file.
pub fn check_name(name: &str) -> Result<()> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    ensure!(
        !name.is_empty()
            && name.len() <= MAX_NAME_BYTES
            && name.chars().all(good)
            && !name.starts_with('.'),
        "`{name}` is not a name for a trace: up to {MAX_NAME_BYTES} letters, digits, `.`, `_` and \
         `-`, and no `.` at the beginning"
    );
    Ok(())
}

fn dir(state: &StateDir, id: VolumeId) -> PathBuf {
    state.volume_dir(id).join("traces")
}

/// Where a trace is.
pub fn path(state: &StateDir, id: VolumeId, name: &str) -> PathBuf {
    dir(state, id).join(format!("{name}.trace"))
}

/// The names of the traces of a volume, in order.
///
/// # Errors
/// If the directory is unreadable.
pub fn names(state: &StateDir, id: VolumeId) -> Result<Vec<String>> {
    let dir = dir(state, id);
    let entries = match std::fs::read_dir(&dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("cannot list {}", dir.display())),
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        let name = name.to_str().and_then(|name| name.strip_suffix(".trace"));
        names.extend(name.filter(|name| check_name(name).is_ok()).map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

/// Saves a trace.
///
/// # Errors
/// If the volume has too many traces, or a write fails.
pub fn save(state: &StateDir, id: VolumeId, name: &str, trace: &Trace) -> Result<()> {
    let names = names(state, id)?;
    ensure!(
        names.len() < MAX_TRACES || names.iter().any(|other| other == name),
        "this volume has {MAX_TRACES} traces already: delete one and record it again"
    );
    files::create_dir(&dir(state, id))?;
    files::replace(&path(state, id, name), &trace.encode(), 0o600)
}

/// Reads a trace; `None` if there is no such trace.
///
/// # Errors
/// If it cannot be read.
pub fn load(state: &StateDir, id: VolumeId, name: &str) -> Result<Option<Trace>> {
    use std::io::Read as _;
    let path = path(state, id, name);
    let file = match longhaul_base::files::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot open {}", path.display())),
    };
    let mut bytes = Vec::new();
    file.take(MAX_TRACE_BYTES as u64 + 1)
        .read_to_end(&mut bytes)
        .with_context(|| format!("cannot read {}", path.display()))?;
    let trace = Trace::decode(&bytes).with_context(|| {
        format!("{} cannot be used: delete it and record it again", path.display())
    })?;
    Ok(Some(trace))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_are_kept_by_volume_and_damage_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(&dir.path().join("state")).unwrap();
        let id = VolumeId(7);
        assert_eq!(names(&state, id).unwrap(), [""; 0]);
        assert_eq!(load(&state, id, "boot").unwrap(), None);
        let trace = Trace::default();
        save(&state, id, "boot", &trace).unwrap();
        save(&state, id, "boot", &trace).unwrap();
        save(&state, id, "login", &trace).unwrap();
        assert_eq!(names(&state, id).unwrap(), ["boot", "login"]);
        assert_eq!(load(&state, id, "boot").unwrap(), Some(trace));
        assert_eq!(load(&state, VolumeId(8), "boot").unwrap(), None);
        std::fs::write(path(&state, id, "boot"), b"LHTRACE1xxxxxxxxxxxx").unwrap();
        let error = format!("{:#}", load(&state, id, "boot").unwrap_err());
        assert!(error.contains("boot.trace") && error.contains("damaged"), "{error}");
        for bad in ["", ".", "..", ".x", "a/b", "a b", &"x".repeat(65)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }
}
