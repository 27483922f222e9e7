//! The marker that makes a directory or bucket a store's, and the refusal of everything else.

use anyhow::{Context as _, Result, bail};
use longhaul_base::dirs::{STORE_FILE, is_data_dir, is_state_dir};
use longhaul_base::{files, random};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Identifies a data directory and the format of what is in it.
#[derive(Serialize, Deserialize)]
pub struct Marker {
    format: u32,
    pub installation: String,
    created_by: String,
}

impl Marker {
    /// Of a new installation.
    pub fn new() -> Result<Marker> {
        Ok(Marker::of(&format!("{:032x}", random::identity()?)))
    }

    /// Makes the marker of another location of an installation.
    pub fn of(installation: &str) -> Marker {
        let installation = installation.to_owned();
        Marker { format: FORMAT, installation, created_by: longhaul_base::software() }
    }

    /// The identity of the installation that a marker names; `path` is where it is.
    pub fn parse(text: &[u8], path: &str) -> Result<String> {
        let marker: Marker = serde_json::from_slice(text)
            .with_context(|| format!("{path} is damaged: bring it back from a copy"))?;
        if marker.format != FORMAT {
            bail!(
                "{path} says format {}, and this longhaul knows format {FORMAT}: use a newer \
                 longhaul",
                marker.format
            );
        }
        Ok(marker.installation)
    }
}

/// The file that makes a directory the data directory of a store.
const FORMAT: u32 = 1;

/// Refuses the directory of a host. Comes before any write to it.
pub fn refuse_host(option: &str, dir: &Path) -> Result<()> {
    if is_state_dir(dir) {
        bail!(
            "{} is the state directory of a host (it has a host.toml): give the store another \
             directory with {option}",
            dir.display()
        );
    }
    Ok(())
}

/// Refuses a data directory with other content. Comes before any write to it.
pub fn refuse_foreign(data: &Path) -> Result<()> {
    refuse_host("--data", data)?;
    if is_data_dir(data) {
        return Ok(());
    }
    let entries = match std::fs::read_dir(data) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot list --data {}", data.display()));
        }
    };
    for entry in entries {
        let name = entry.with_context(|| format!("cannot list --data {}", data.display()))?;
        let name = name.file_name();
        let name = name.to_string_lossy();
        // Leftovers of an unfinished start, a credential from elsewhere, and the directory that
        // mkfs makes at the root of a file system.
        let ours = ["credentials", "lock", "shared.lock", "store.json", "lost+found"]
            .contains(&&*name)
            || name.starts_with("audit.")
            || name.strip_prefix(STORE_FILE).is_some_and(|rest| rest.ends_with(".tmp"));
        if !ours {
            bail!(
                "--data {} is neither empty nor the data directory of a store: it has `{name}` and \
                 no {STORE_FILE}; if it was a store's, restore that file, else give an empty or a \
                 new directory",
                data.display()
            );
        }
    }
    Ok(())
}

/// Reads the marker of a data directory. Returns the installation's identity, or `None` without a
/// marker.
///
/// # Errors
/// If it is damaged, or of a format that this version does not know.
pub fn installation(data: &Path) -> Result<Option<String>> {
    let path = data.join(STORE_FILE);
    let text = match files::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read {}", path.display()));
        }
    };
    Marker::parse(&text, &path.display().to_string()).map(Some)
}

/// Reads or makes the marker; returns the installation's identity.
pub fn marker(data: &Path) -> Result<String> {
    match installation(data)? {
        Some(installation) => Ok(installation),
        None => {
            let marker = Marker::new()?;
            files::replace(&data.join(STORE_FILE), &serde_json::to_vec_pretty(&marker)?, 0o600)?;
            Ok(marker.installation)
        }
    }
}
