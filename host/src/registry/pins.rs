//! Commands on the read caches of a running host.
//!
//! Promises: a command that pins or unpins has succeeded when that is on stable storage, and
//! otherwise changes nothing.

use crate::blocking::blocking;
use crate::context::HostContext;
use crate::pins::{self, PinsReport};
use crate::volume::Volume;
use anyhow::{Result, bail, ensure};
use longhaul_base::files;
use longhaul_base::span::Span;
use longhaul_base::units::show_bytes;
use longhaul_core::block::{BLOCK_SECTORS, Range, SECTOR_BYTES};
use longhaul_core::host::WarmError;
use longhaul_core::host::cache::Pins;
use longhaul_core::ranges::MAX_RANGES;
use std::rc::Rc;

/// Pins ranges of a volume, or no longer. Not to run twice at a time: the host carries out one
/// command after the other.
pub(super) async fn pin_ranges(
    host: &HostContext,
    volume: &Volume,
    spans: &[Span],
    on: bool,
) -> Result<()> {
    let name = volume.name();
    let ranges = ranges(volume, spans)?;
    let (mut pins, mut most) = (pins_of(host, volume)?, 0);
    for range in ranges {
        if on { pins.add(range) } else { pins.remove(range) }
    }
    if on {
        let status = volume.status().0.cache.unwrap_or_default();
        most = status.pinned_most_bytes;
        ensure!(
            pins.bytes() <= most,
            "with this, pins would cover {} of volume {name}: that is more than {}, the limit for \
             its cache of {}; unpin something, or start the host with a larger --cache-size",
            show_bytes(pins.bytes()),
            show_bytes(most),
            show_bytes(status.capacity_bytes)
        );
    }
    ensure!(
        pins.is_encodable(),
        "volume {name} would have {} pinned ranges and {MAX_RANGES} are the most: pin fewer and \
         larger ones",
        pins.ranges().count()
    );
    let path = pins::path(&host.state.volume_dir(volume.attached().volume));
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
pub(super) fn warm(host: &HostContext, volume: &Volume, spans: &[Span]) -> Result<()> {
    let name = volume.name();
    pins_of(host, volume)?;
    let ranges = ranges(volume, spans)?;
    let mut begun = Ok(());
    volume.with(|now, engine| begun = engine.handle_warm(now, &ranges));
    match begun {
        Ok(()) => Ok(()),
        Err(WarmError::Busy) => bail!(
            "volume {name} is being warmed already: wait for that, or end it with `longhaul cache \
             stop {name}`"
        ),
        Err(WarmError::TooMuch { bytes, most }) => bail!(
            "the ranges have {}, and the cache of volume {name} holds {} beside the pinned ranges: \
             name less, or start the host with a larger --cache-size",
            show_bytes(bytes),
            show_bytes(most)
        ),
        Err(error @ (WarmError::NoCache | WarmError::Failed)) => {
            bail!("volume {name} cannot be warmed: {error}")
        }
    }
}

/// Ends the warming of a volume.
pub(super) fn stop_warming(volume: &Volume) -> Result<()> {
    let name = volume.name();
    let mut stopped = false;
    volume.with(|now, engine| stopped = engine.handle_stop_warming(now));
    ensure!(stopped, "volume {name} is not being warmed");
    Ok(())
}

/// The pinned ranges of the attached volumes that have a cache.
pub(super) fn list(volumes: &[Rc<Volume>]) -> Vec<PinsReport> {
    let report = |volume: &Rc<Volume>| {
        let pins = current(volume)?;
        let bytes = |range: Range| (range.lba * SECTOR_BYTES, range.end() * SECTOR_BYTES);
        Some(PinsReport {
            volume: volume.name().to_owned(),
            size_bytes: volume.sectors() * SECTOR_BYTES,
            ranges: pins.ranges().map(bytes).collect(),
        })
    };
    volumes.iter().filter_map(report).collect()
}

fn pins_of(host: &HostContext, volume: &Volume) -> Result<Pins> {
    let name = volume.name();
    match current(volume) {
        Some(pins) => Ok(pins),
        None if host.settings.write_through => {
            bail!("volume {name} has no read cache: this host runs with --write-through")
        }
        None if host.settings.cache_bytes == 0 => bail!(
            "volume {name} has no read cache: start the host with --cache-size, as in \
             `--cache-size 10GiB`"
        ),
        None => bail!(
            "volume {name} has no read cache although --cache-size asks for one: the host's log \
             says why"
        ),
    }
}

/// The pins of a volume that has a cache.
fn current(volume: &Volume) -> Option<Pins> {
    let mut pins = None;
    volume.with(|_, engine| pins = engine.pins().cloned());
    pins
}

/// The blocks of 4 KiB that the spans touch.
fn ranges(volume: &Volume, spans: &[Span]) -> Result<Vec<Range>> {
    let sectors = volume.sectors();
    let size = sectors * SECTOR_BYTES;
    ensure!(!spans.is_empty(), "give at least one range");
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
