//! Drives the read cache of `longhaul` and foyer with the same traces over the same number of bytes
//! on the same disk. Both use the page cache. The output is the table of
//! `docs/performance-history.md`:
//!
//!     make bench-cache [DIR=where the files go]
//!
//! Entries are lines of 16 KiB. Both may write behind; where hits are counted, what was admitted is
//! on disk at least every 32 misses, so that no queue overflows. foyer has as little of its memory
//! tier as its shards allow, since the comparison is about hits on disk.

mod foyers;
#[path = "../../../core/src/cache/generate.rs"]
mod generate;
mod measure;
mod ours;

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use foyers::Foyer;
use measure::{Cpu, allocated, drop_pages, median, percentile};
use ours::Ours;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Room on disk.
const BYTES: u64 = 64 << 20;
/// Bytes of an entry.
const LINE: usize = 16 << 10;
/// Misses that may be on their way to the disk while hits count.
const PACE: u64 = 32;
/// Lines that fit into either.
const RESIDENT: u64 = 2000;
/// Rounds of what is timed; a median is given.
const ROUNDS: usize = 5;
/// Hits timed in a round.
const HITS: u64 = 10_000;

/// What is compared.
pub trait Contender {
    /// The line, if it is there.
    async fn get(&mut self, line: u64) -> Option<Bytes>;
    /// Offers a line.
    fn put(&mut self, line: u64, data: Bytes);
    /// The line is old.
    fn remove(&mut self, line: u64);
    /// Waits until nothing is on its way to the disk.
    async fn settle(&mut self);
    /// Bytes written to the disk.
    fn written(&self) -> u64;
    /// Ends in order.
    async fn close(self);
}

/// The content of a line, so that a wrong one shows.
pub fn content(line: u64) -> Bytes {
    let mut data = vec![line as u8; LINE];
    data[..8].copy_from_slice(&line.to_le_bytes());
    data.into()
}

struct Run {
    hits: f64,
    written: f64,
    admitted: f64,
}

async fn run_trace(cache: &mut impl Contender, trace: &[u64]) -> Result<Run> {
    let (mut hits, mut misses) = (0_u64, 0_u64);
    let before = cache.written();
    for line in trace {
        match cache.get(*line).await {
            Some(data) if data[..8] == line.to_le_bytes() => hits += 1,
            Some(_) => bail!("line {line} is another one"),
            None => {
                cache.put(*line, content(*line));
                misses += 1;
                if misses.is_multiple_of(PACE) {
                    cache.settle().await;
                }
            }
        }
    }
    cache.settle().await;
    let asked = trace.len() as f64;
    let written = (cache.written() - before) as f64 / LINE as f64;
    Ok(Run {
        hits: hits as f64 / asked,
        written: written / asked,
        admitted: written / (misses as f64).max(1.0),
    })
}

async fn ratios(dir: &Path) -> Result<()> {
    println!(
        "| trace | hits, ours | hits, foyer | written, ours | written, foyer | seconds, ours | seconds, foyer |"
    );
    println!("|---|---|---|---|---|---|---|");
    for (name, trace) in generate::traces(BYTES / LINE as u64) {
        let begun = Instant::now();
        let mut cache = Ours::open(&dir.join("ours"), true)?;
        let ours = run_trace(&mut cache, &trace).await?;
        cache.close().await;
        let first = begun.elapsed().as_secs_f64();
        let begun = Instant::now();
        let mut cache = Foyer::open(&dir.join("foyer"), true).await?;
        let foyer = run_trace(&mut cache, &trace).await?;
        cache.close().await;
        println!(
            "| {name} | {:.1} % | {:.1} % | {:.2} | {:.2} | {first:.1} | {:.1} |",
            100.0 * ours.hits,
            100.0 * foyer.hits,
            ours.written,
            foyer.written,
            begun.elapsed().as_secs_f64()
        );
        if name.starts_with("one scan") {
            eprintln!("written per miss: ours {:.2}, foyer {:.2}", ours.admitted, foyer.admitted);
        }
    }
    Ok(())
}

async fn fill(cache: &mut impl Contender) {
    for line in 0..RESIDENT {
        cache.put(line, content(line));
        if line % PACE == 0 {
            cache.settle().await;
        }
    }
    cache.settle().await;
}

/// Microseconds: median and 99th percentile of a hit, and processor time for one.
async fn hits(cache: &mut impl Contender, path: &Path, cold: bool) -> Result<[f64; 4]> {
    let mut rng = fastrand::Rng::with_seed(7);
    let count = if cold { HITS / 10 } else { HITS };
    if cold {
        drop_pages(path)?;
    }
    let (mut times, mut missing) = (Vec::new(), 0_u64);
    let cpu = Cpu::now();
    for _ in 0..count {
        let line = rng.u64(0..RESIDENT);
        let begun = Instant::now();
        let found = cache.get(line).await;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
        missing += u64::from(found.is_none());
    }
    let cpu = cpu.since() * 1e6 / count as f64;
    let missing = missing as f64 / count as f64;
    Ok([percentile(&mut times, 0.5), percentile(&mut times, 0.99), cpu, missing])
}

async fn latencies(dir: &Path) -> Result<()> {
    let (ours_path, foyer_path) = (dir.join("ours"), dir.join("foyer"));
    let mut ours = Ours::open(&ours_path, true)?;
    let mut foyer = Foyer::open(&foyer_path, true).await?;
    fill(&mut ours).await;
    fill(&mut foyer).await;
    println!("| hit of 16 KiB | p50 | p99 | processor | missing |\n|---|---|---|---|---|");
    for (cold, what) in [(false, "page cache"), (true, "disk")] {
        let mut all = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            all[0].push(hits(&mut ours, &ours_path, cold).await?);
            all[1].push(hits(&mut foyer, &foyer_path, cold).await?);
        }
        for (name, rounds) in ["ours", "foyer"].iter().zip(all) {
            let of = |n: usize| median(rounds.iter().map(|round| round[n]).collect());
            println!(
                "| {what}, {name} | {:.1} µs | {:.1} µs | {:.1} µs | {:.1} % |",
                of(0),
                of(1),
                of(2),
                100.0 * of(3)
            );
        }
    }
    ours.close().await;
    foyer.close().await;
    Ok(())
}

async fn memory(dir: &Path) -> Result<()> {
    // The process frees the closed one in time.
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    let gib = |bytes: i64| bytes as f64 * (1 << 30) as f64 / BYTES as f64 / 1e6;
    let before = allocated();
    let mut cache = Ours::open(&dir.join("ours"), true)?;
    let opened = allocated() - before;
    for line in 0..2 * BYTES / LINE as u64 {
        cache.put(line, content(line));
        if line % PACE == 0 {
            cache.settle().await;
        }
    }
    cache.settle().await;
    println!(
        "memory, ours: {:.2} MB/GiB empty, {:.2} full",
        gib(opened),
        gib(allocated() - before)
    );
    cache.close().await;
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    let before = allocated();
    let mut cache = Foyer::open(&dir.join("foyer"), true).await?;
    let opened = allocated() - before;
    for line in 0..2 * BYTES / LINE as u64 {
        cache.put(line, content(line));
        if line % PACE == 0 {
            cache.settle().await;
        }
    }
    cache.settle().await;
    cache.forget_memory_tier();
    // Buffers do not grow with the cache.
    let grown = allocated() - before - opened;
    println!(
        "memory, foyer: {:.1} MB of buffers, {:.2} MB/GiB more when full",
        opened as f64 / 1e6,
        gib(grown)
    );
    cache.close().await;
    Ok(())
}

/// Of lines offered as fast as possible, how many arrive?
async fn burst(dir: &Path) -> Result<()> {
    async fn arrived(cache: &mut impl Contender) -> (f64, f64) {
        let begun = Instant::now();
        for line in 0..RESIDENT {
            cache.put(line, content(line));
        }
        let took = begun.elapsed().as_secs_f64();
        cache.settle().await;
        let mut there = 0;
        for line in 0..RESIDENT {
            there += u64::from(cache.get(line).await.is_some());
        }
        (100.0 * there as f64 / RESIDENT as f64, took * 1e3)
    }
    let mut ours = Ours::open(&dir.join("ours"), true)?;
    let (a, ta) = arrived(&mut ours).await;
    ours.close().await;
    let mut foyer = Foyer::open(&dir.join("foyer"), true).await?;
    let (b, tb) = arrived(&mut foyer).await;
    foyer.close().await;
    println!("burst of 31 MiB: ours keeps {a:.0} % ({ta:.0} ms), foyer {b:.0} % ({tb:.0} ms)");
    Ok(())
}

/// Fills a cache, says that every other line is old, and dies at once.
async fn die(cache: &mut impl Contender, wait: u64) -> ! {
    fill(cache).await;
    tokio::time::sleep(std::time::Duration::from_secs(wait)).await;
    cache.settle().await;
    for line in (0..RESIDENT).step_by(2) {
        cache.remove(line);
    }
    std::process::abort();
}

async fn survivors(cache: &mut impl Contender) -> (u64, u64) {
    let (mut good, mut old) = (0, 0);
    for line in 0..RESIDENT {
        let there = u64::from(cache.get(line).await.is_some());
        if line % 2 == 0 { old += there } else { good += there }
    }
    (good, old)
}

async fn crash(dir: &Path) -> Result<()> {
    for which in ["ours", "foyer"] {
        let path = dir.join(which);
        let program = std::env::current_exe()?;
        let status = std::process::Command::new(program).arg(which).arg(&path).status()?;
        if status.success() {
            bail!("it did not die");
        }
        let begun = Instant::now();
        let (reopened, (good, old)) = if which == "ours" {
            let mut cache = Ours::open(&path, false)?;
            (begun.elapsed(), survivors(&mut cache).await)
        } else {
            let mut cache = Foyer::open(&path, false).await?;
            (begun.elapsed(), survivors(&mut cache).await)
        };
        println!(
            "killed, {which}: opened again in {:.0} ms, {good} of {} lines survive, {old} of {} lines that were old come back{}",
            reopened.as_secs_f64() * 1e3,
            RESIDENT / 2,
            RESIDENT / 2,
            if which == "ours" { " (before the store has said what was written)" } else { "" }
        );
    }
    Ok(())
}

fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start a runtime")?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    runtime.block_on(async {
        match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            // The child of `crash`.
            ["ours", path] => die(&mut Ours::open(Path::new(path), true)?, 11).await,
            ["foyer", path] => die(&mut Foyer::open(Path::new(path), true).await?, 1).await,
            _ => {}
        }
        let base = arguments.first().map_or_else(std::env::temp_dir, PathBuf::from);
        let dir = tempfile::tempdir_in(base)?;
        latencies(dir.path()).await?;
        memory(dir.path()).await?;
        burst(dir.path()).await?;
        crash(dir.path()).await?;
        ratios(dir.path()).await
    })
}
