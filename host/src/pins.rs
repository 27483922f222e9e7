//! The file that says which ranges of a volume stay in its read cache.
//!
//! ```text
//! volumes/ID/pins             the pinned ranges, see docs/formats.md; may be missing
//! ```

use anyhow::{Context as _, Result};
use longhaul_core::host::cache::Pins;
use longhaul_core::ranges::MAX_ENCODED_BYTES;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The pinned ranges of a volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PinsReport {
    /// Which.
    pub volume: String,
    /// Its size.
    pub size_bytes: u64,
    /// First byte and end of each range, in order.
    pub ranges: Vec<(u64, u64)>,
}

/// Where the pins of a volume are.
pub fn path(dir: &Path) -> PathBuf {
    dir.join("pins")
}

/// The pins of a volume; none if there is no file. Blocks.
///
/// # Errors
/// If that cannot be read, or is damaged.
pub fn load(dir: &Path) -> Result<Pins> {
    use std::io::Read as _;
    let path = path(dir);
    let file = match longhaul_base::files::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Pins::default()),
        Err(error) => return Err(error).with_context(|| format!("cannot open {}", path.display())),
    };
    let mut bytes = Vec::new();
    file.take(MAX_ENCODED_BYTES as u64 + 1)
        .read_to_end(&mut bytes)
        .with_context(|| format!("cannot read {}", path.display()))?;
    Pins::decode(&bytes).with_context(|| format!("{} cannot be used", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_base::files;
    use longhaul_core::block::Range;

    #[test]
    fn pins_are_kept_and_damage_is_named() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(load(dir.path()).unwrap().bytes(), 0);
        let mut pins = Pins::default();
        pins.add(Range::new(100, 1));
        files::replace(&path(dir.path()), &pins.encode(), 0o600).unwrap();
        assert_eq!(load(dir.path()).unwrap().bytes(), 16 << 10);
        let mut bytes = pins.encode();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(path(dir.path()), bytes).unwrap();
        let error = format!("{:#}", load(dir.path()).unwrap_err());
        assert!(error.contains("pins cannot be used") && error.contains("damaged"), "{error}");
    }
}
