//! What commands do with the read caches of a running host, and where it is kept what is pinned.
//!
//! ```text
//! volumes/ID/pins             what is pinned, see docs/formats.md; there may be none
//! ```
//!
//! Promises: a command that pins or unpins has succeeded when that is on stable storage, and otherwise
//! changes nothing.

use super::ahead::blocking;
use super::front::Front;
use super::volume::Volume;
use anyhow::{Context as _, Result, bail, ensure};
use longhaul_base::files;
use longhaul_base::span::Span;
use longhaul_base::units::show_bytes;
use longhaul_core::block::{BLOCK_SECTORS, Range, SECTOR_BYTES};
use longhaul_core::host::WarmError;
use longhaul_core::host::cache::Pins;
use longhaul_core::ranges::{MAX_ENCODED_BYTES, MAX_RANGES};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// What is pinned of a volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PinsReport {
    /// Which.
    pub volume: String,
    /// Its size.
    pub size_bytes: u64,
    /// First byte and end of each range, in order.
    pub ranges: Vec<(u64, u64)>,
}

impl Front {
    /// Pins ranges of a volume, or no longer. Not to run twice at a time: the host carries out one command
    /// after the other.
    pub(super) async fn pin_ranges(&self, name: &str, spans: &[Span], on: bool) -> Result<()> {
        let volume = self.attached(name)?;
        let ranges = ranges(&volume, spans)?;
        let (mut pins, mut most) = (self.pins_of(&volume)?, 0);
        for range in ranges {
            if on { pins.add(range) } else { pins.remove(range) }
        }
        if on {
            let status = volume.status().0.cache.unwrap_or_default();
            most = status.pinned_most_bytes;
            ensure!(
                pins.bytes() <= most,
                "with this {} of volume {name} would be pinned: that is more than {}, which is what may be pinned of \
                 its cache of {}; unpin something, or start the host with a larger --cache-size",
                show_bytes(pins.bytes()),
                show_bytes(most),
                show_bytes(status.capacity_bytes)
            );
        }
        ensure!(
            pins.is_encodable(),
            "volume {name} would have {} pinned ranges and {MAX_RANGES} are the most: pin fewer and larger ones",
            pins.ranges().count()
        );
        let path = path(&self.state.volume_dir(volume.attached().volume));
        let bytes = pins.encode();
        blocking(move || files::replace(&path, &bytes, 0o600)).await?;
        tracing::info!(
            volume = name,
            "{} {}; {} are pinned{}",
            if on { "pinned more of it, now" } else { "unpinned some of it, now" },
            show_bytes(pins.bytes()),
            pins.ranges().count(),
            if on { format!(" of at most {}", show_bytes(most)) } else { String::new() }
        );
        volume.with(|now, engine| {
            engine.handle_pins(now, pins);
        });
        Ok(())
    }

    /// Brings ranges of a volume into its cache.
    pub(super) fn warm(&self, name: &str, spans: &[Span]) -> Result<()> {
        let volume = self.attached(name)?;
        self.pins_of(&volume)?;
        let ranges = ranges(&volume, spans)?;
        let mut begun = Ok(());
        volume.with(|now, engine| begun = engine.handle_warm(now, &ranges));
        match begun {
            Ok(()) => Ok(()),
            Err(WarmError::Busy) => bail!(
                "volume {name} is being warmed already: wait for that, or end it with `longhaul cache stop {name}`"
            ),
            Err(WarmError::TooMuch { bytes, most }) => bail!(
                "the ranges have {}, and the cache of volume {name} holds {} beside what is pinned: name less, or start \
                 the host with a larger --cache-size",
                show_bytes(bytes),
                show_bytes(most)
            ),
            Err(error @ (WarmError::NoCache | WarmError::Failed)) => {
                bail!("volume {name} cannot be warmed: {error}")
            }
        }
    }

    /// Ends that.
    pub(super) fn stop_warming(&self, name: &str) -> Result<()> {
        let volume = self.attached(name)?;
        let mut stopped = false;
        volume.with(|now, engine| stopped = engine.handle_stop_warming(now));
        ensure!(stopped, "volume {name} is not being warmed");
        Ok(())
    }

    /// What is pinned of the attached volumes that have a cache.
    pub fn pins(&self) -> Vec<PinsReport> {
        let report = |volume: &Rc<Volume>| {
            let pins = pins(volume)?;
            let bytes = |range: Range| (range.lba * SECTOR_BYTES, range.end() * SECTOR_BYTES);
            Some(PinsReport {
                volume: volume.name().to_owned(),
                size_bytes: volume.sectors() * SECTOR_BYTES,
                ranges: pins.ranges().map(bytes).collect(),
            })
        };
        self.volumes().iter().filter_map(report).collect()
    }

    fn pins_of(&self, volume: &Volume) -> Result<Pins> {
        let name = volume.name();
        match pins(volume) {
            Some(pins) => Ok(pins),
            None if self.options.write_through => {
                bail!("volume {name} has no read cache: this host runs with --write-through")
            }
            None if self.options.cache_bytes == 0 => bail!(
                "volume {name} has no read cache: start the host with --cache-size, as in `--cache-size 10GiB`"
            ),
            None => bail!(
                "volume {name} has no read cache although --cache-size asks for one: the host's log says why"
            ),
        }
    }
}

fn pins(volume: &Volume) -> Option<Pins> {
    let mut pins = None;
    volume.with(|_, engine| pins = engine.pins().cloned());
    pins
}

/// The blocks of 4 KiB that the spans touch.
fn ranges(volume: &Volume, spans: &[Span]) -> Result<Vec<Range>> {
    let sectors = volume.sectors();
    let size = sectors * SECTOR_BYTES;
    ensure!(!spans.is_empty(), "there is no range to work on");
    let range = |span: &Span| -> Result<Range> {
        let end = span.end.unwrap_or(size);
        ensure!(
            span.start < end && end <= size,
            "the range {span} is not within volume {}, which has {} ({size} bytes)",
            volume.name(),
            show_bytes(size)
        );
        let start = span.start / SECTOR_BYTES / BLOCK_SECTORS * BLOCK_SECTORS;
        let end = end.div_ceil(SECTOR_BYTES).next_multiple_of(BLOCK_SECTORS).min(sectors);
        Ok(Range::between(start, end))
    };
    spans.iter().map(range).collect()
}

/// Where it is kept what is pinned of a volume.
pub fn path(dir: &Path) -> PathBuf {
    dir.join("pins")
}

/// What is pinned of a volume; nothing if nobody has ever pinned anything. Blocks.
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
