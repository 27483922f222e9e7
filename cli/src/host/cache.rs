//! `longhaul cache`: what a running host keeps in its read caches.

use super::control::ask;
use super::extents;
use super::status::{self, columns};
use crate::args::{CacheArgs, CacheCommand, WhereArgs};
use crate::output::progress;
use anyhow::{Context as _, Result, bail, ensure};
use longhaul_base::Usage;
use longhaul_base::span::Span;
use longhaul_base::units::show_bytes;
use longhaul_host::control::HostCommand;
use longhaul_host::pins::PinsReport;
use longhaul_host::report::{CacheReport, HostReport, WarmReport};
use std::time::Duration;

/// How often to ask for the progress of warming.
const LOOK: Duration = Duration::from_millis(250);

/// Pins, unpins, warms, shows.
///
/// # Errors
/// If no host answers, it refuses, or the places of files are unknown.
pub fn cache(args: &CacheArgs) -> Result<()> {
    let admin = &args.admin;
    match &args.command {
        CacheCommand::Pin { volume, place } => {
            let (volume, ranges) = (volume.clone(), spans(admin, volume, place)?);
            ask(admin, &HostCommand::Pin { volume, ranges })
        }
        CacheCommand::Unpin { volume, place } => {
            let (volume, ranges) = (volume.clone(), spans(admin, volume, place)?);
            ask(admin, &HostCommand::Unpin { volume, ranges })
        }
        CacheCommand::Warm { volume, place } => {
            let ranges = spans(admin, volume, place)?;
            ask(admin, &HostCommand::Warm { volume: volume.clone(), ranges })?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(follow(admin, volume))
        }
        CacheCommand::Stop { volume } => {
            ask(admin, &HostCommand::StopWarming { volume: volume.clone() })
        }
        CacheCommand::Show { volume, json } => show(admin, volume, *json),
    }
}

/// The ranges of the command line, as few as possible.
fn spans(admin: &str, volume: &str, place: &WhereArgs) -> Result<Vec<Span>> {
    let mut spans = place.ranges.clone();
    if !place.file.files.is_empty() {
        let found = extents::of(&place.file)?;
        for skipped in &found.skipped {
            eprintln!("longhaul: left out: {skipped}");
        }
        ensure!(!found.ranges.is_empty(), "the files have no data on the device");
        if let Some(disk_bytes) = found.disk_bytes {
            let size_bytes = pins_of(admin, volume)?.size_bytes;
            ensure!(
                disk_bytes == size_bytes,
                "the files are not on volume {volume}: their disk has {disk_bytes} bytes, the \
                 volume {size_bytes}; run this where the volume's file system is mounted"
            );
        }
        spans.extend(found.ranges.into_iter().map(Span::from));
    }
    if spans.is_empty() {
        bail!(Usage("name ranges of the volume, `all`, or files with --file".into()));
    }
    Ok(joined(spans))
}

fn joined(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_by_key(|span| span.start);
    let mut joined: Vec<Span> = Vec::new();
    for span in spans {
        match joined.last_mut() {
            Some(last) if last.end.is_none_or(|end| end >= span.start) => {
                last.end = last.end.zip(span.end).map(|(a, b)| a.max(b));
            }
            _ => joined.push(span),
        }
    }
    joined
}

/// Waits for warming to end, and ends it on Ctrl-C.
async fn follow(admin: &str, volume: &str) -> Result<()> {
    let first = warming(admin, volume)?;
    let bar = progress(first.total_bytes, true);
    let mut interrupted = std::pin::pin!(tokio::signal::ctrl_c());
    loop {
        let now = warming(admin, volume)?;
        if now.number != first.number {
            bail!("another command warms volume {volume} now: this one has ended");
        }
        bar.set_position(now.done_bytes);
        let (done, total) = (show_bytes(now.done_bytes), show_bytes(now.total_bytes));
        if now.state == "stopped" {
            bar.abandon();
            bail!("stopped: {done} of {total} of volume {volume} are warm");
        }
        if now.state == "done" {
            bar.finish();
            if now.failed_bytes > 0 {
                let failed = show_bytes(now.failed_bytes);
                bail!("{failed} of {total} could not be read at the store; the rest of it is warm");
            }
            return Ok(());
        }
        tokio::select! {
            _ = &mut interrupted => {
                bar.abandon();
                ask(admin, &HostCommand::StopWarming { volume: volume.to_owned() })?;
                bail!("stopped: {done} of {total} of volume {volume} are warm");
            }
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

fn cache_of(admin: &str, volume: &str) -> Result<CacheReport> {
    let text = status::get(admin, "/status").map_err(|error| status::unanswered(admin, error))?;
    let report: HostReport = serde_json::from_str(&text)
        .with_context(|| format!("the program at {admin} is not a host of this version"))?;
    let found = report.volumes.into_iter().find(|report| report.name == volume);
    let found = found.with_context(|| format!("volume {volume} is not attached here"))?;
    found.cache.with_context(|| format!("volume {volume} has no read cache"))
}

fn warming(admin: &str, volume: &str) -> Result<WarmReport> {
    let warming = cache_of(admin, volume)?.warming;
    warming.with_context(|| format!("volume {volume} was detached or the host started anew"))
}

fn pins_of(admin: &str, volume: &str) -> Result<PinsReport> {
    let text = status::get(admin, "/pins").map_err(|error| status::unanswered(admin, error))?;
    let pins: Vec<PinsReport> = serde_json::from_str(&text)
        .with_context(|| format!("the program at {admin} is not a host of this version"))?;
    let pins = pins.into_iter().find(|pins| pins.volume == volume);
    pins.with_context(|| format!("volume {volume} has no read cache, or is not attached here"))
}

fn show(admin: &str, volume: &str, json: bool) -> Result<()> {
    let cache = cache_of(admin, volume)?;
    let pins = pins_of(admin, volume)?;
    if json {
        let report = serde_json::json!({ "volume": volume, "cache": cache, "pinned": pins.ranges });
        println!("{report}");
        return Ok(());
    }
    print!("{}", table(&cache, &pins));
    Ok(())
}

fn table(cache: &CacheReport, pins: &PinsReport) -> String {
    let mut rows = vec![
        vec!["state".to_owned(), cache.state.clone()],
        vec![
            "filled".into(),
            format!("{} of {}", show_bytes(cache.valid_bytes), show_bytes(cache.capacity_bytes)),
        ],
        vec![
            "pinned".into(),
            format!(
                "{} of at most {}, of which {} are here",
                show_bytes(cache.pinned_bytes),
                show_bytes(cache.pinned_most_bytes),
                show_bytes(cache.pinned_valid_bytes)
            ),
        ],
    ];
    if let Some(warming) = &cache.warming {
        let (done, total) = (show_bytes(warming.done_bytes), show_bytes(warming.total_bytes));
        rows.push(vec!["warming".into(), format!("{}, {done} of {total}", warming.state)]);
    }
    let mut out = columns(&rows);
    if !pins.ranges.is_empty() {
        let mut rows = vec![["PINNED FROM", "TO", "LENGTH"].map(str::to_owned).to_vec()];
        rows.extend(
            pins.ranges.iter().map(|(start, end)| {
                vec![start.to_string(), end.to_string(), show_bytes(end - start)]
            }),
        );
        out += &columns(&rows);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_become_one() {
        let span = |start, end| Span { start, end };
        let spans = vec![
            span(8192, Some(12288)),
            span(0, Some(4096)),
            span(4096, Some(5000)),
            span(9000, Some(10000)),
            span(50000, None),
            span(60000, Some(70000)),
        ];
        let expected = [span(0, Some(5000)), span(8192, Some(12288)), span(50000, None)];
        assert_eq!(joined(spans), expected);
    }

    #[test]
    fn the_table_names_what_is_pinned() {
        let cache = CacheReport {
            state: "ready".into(),
            pinned_bytes: 16 << 20,
            pinned_most_bytes: 48 << 20,
            ..CacheReport::default()
        };
        let pins =
            PinsReport { volume: "v".into(), size_bytes: 1 << 30, ranges: vec![(0, 16 << 20)] };
        let text = table(&cache, &pins);
        assert!(text.contains("16 MiB of at most 48 MiB, of which 0 B are here"), "{text}");
        assert!(text.contains("0            16777216  16 MiB"), "{text}");
    }
}
