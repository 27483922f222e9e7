//! Requests at a fixed depth, by fio's NBD engine, on the host's side.

use super::{Bench, Run};
use crate::process::finish;
use crate::results::Series;
use crate::scenario::{Fio, Pattern, Size};
use crate::stats::quantile;
use crate::wan::Side;
use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Seconds between the points of a series.
const SERIES_SECONDS: f64 = 0.25;

/// Percentiles of latency, by the figure's name.
const PERCENTILES: [(&str, f64); 4] =
    [("p50_ms", 50.0), ("p90_ms", 90.0), ("p99_ms", 99.0), ("p999_ms", 99.9)];

/// A job for fio.
#[derive(Clone)]
pub struct Job<'a> {
    /// Name of its files.
    pub name: &'a str,
    /// Which requests.
    pub rw: Pattern,
    /// Bytes of each.
    pub block: u64,
    /// How many are outstanding.
    pub depth: u32,
    /// The beginning of the used part of the volume.
    pub offset: u64,
    /// How long that part is.
    pub size: u64,
    /// How long it lasts, in seconds; `None` for once through.
    pub seconds: Option<f64>,
    /// Seconds at the beginning that do not count.
    pub ramp: f64,
    /// Begin again at the end of the part, until the time is over.
    pub again: bool,
    /// The distribution of random requests.
    pub distribution: Option<&'a str>,
    /// Keep the throughput over time.
    pub series: bool,
    /// Zeroes in each written 4 KiB, in percent.
    pub compressible: u8,
}

impl<'a> Job<'a> {
    /// Requests of one kind, one at a time, over a part of the volume.
    #[must_use]
    pub fn new(name: &'a str, rw: Pattern, block: Size, size: u64) -> Job<'a> {
        Job {
            name,
            rw,
            block: block.0,
            depth: 1,
            offset: 0,
            size,
            seconds: None,
            ramp: 0.0,
            again: false,
            distribution: None,
            series: false,
            compressible: 0,
        }
    }

    /// Whether each request's latency is kept. fio's own percentiles are of a histogram whose steps
    /// are 1.6 % wide: a quarter of a millisecond at a round trip of 16.
    fn keeps_latencies(&self) -> bool {
        self.depth == 1 && !self.series && self.ramp == 0.0
    }

    fn output(&self, bench: &Bench<'_>) -> PathBuf {
        bench.path(&format!("{}.json", self.name))
    }

    /// The command that does it.
    #[must_use]
    pub fn command(&self, bench: &Bench<'_>, uri: &str) -> Command {
        let mut command = bench.wan.command(Side::Host, Path::new("fio"));
        command.arg(format!("--name={}", self.name)).arg("--ioengine=nbd");
        command.arg(format!("--uri={uri}")).arg(format!("--rw={}", self.rw.name()));
        command.arg(format!("--bs={}", self.block)).arg(format!("--iodepth={}", self.depth));
        command.arg(format!("--offset={}", self.offset)).arg(format!("--size={}", self.size));
        // New data in every block: its look allows no savings.
        command.arg("--refill_buffers");
        if self.compressible > 0 {
            command.arg(format!("--buffer_compress_percentage={}", self.compressible));
            command.arg("--buffer_compress_chunk=4k");
        }
        if let Some(seconds) = self.seconds {
            command.arg(format!("--runtime={}ms", (seconds * 1000.0) as u64));
        }
        if self.ramp > 0.0 {
            command.arg(format!("--ramp_time={}ms", (self.ramp * 1000.0) as u64));
        }
        if self.again {
            command.args(["--time_based", "--norandommap"]);
        }
        if let Some(distribution) = self.distribution {
            command.arg(format!("--random_distribution={distribution}"));
        }
        if self.series {
            let log = bench.path(self.name).display().to_string();
            command.arg(format!("--write_bw_log={log}"));
            // By the clock: it takes fio a while to begin.
            command.args([
                &format!("--log_avg_msec={}", SERIES_SECONDS * 1000.0),
                "--log_unix_epoch=1",
            ]);
        }
        if self.keeps_latencies() {
            command.arg(format!("--write_lat_log={}", bench.path(self.name).display()));
            command.args(["--disable_lat=1", "--disable_slat=1"]);
        }
        command.args(["--percentile_list=50:90:99:99.9:99.99", "--output-format=json"]);
        command.arg(format!("--output={}", self.output(bench).display()));
        command
    }

    /// Results of a command that has ended: figures by name.
    ///
    /// # Errors
    /// If fio saw an error.
    pub fn figures(&self, bench: &Bench<'_>) -> Result<Vec<(String, f64)>> {
        let text = std::fs::read_to_string(self.output(bench)).context("fio left no result")?;
        let mut found = figures(&text, self.rw)?;
        if self.keeps_latencies() {
            let log = bench.path(&format!("{}_clat.1.log", self.name));
            let log = std::fs::read_to_string(log).context("fio left no log of latencies")?;
            let latencies = latencies(&log);
            for (name, value) in &mut found {
                if let Some((_, share)) = PERCENTILES.iter().find(|(figure, _)| figure == name) {
                    *value = quantile(&latencies, share / 100.0);
                }
            }
        }
        Ok(found)
    }

    /// Runs it to its end.
    ///
    /// # Errors
    /// If fio fails or sees an error.
    pub fn run(&self, bench: &Bench<'_>, uri: &str) -> Result<Vec<(String, f64)>> {
        finish(self.command(bench, uri))?;
        self.figures(bench)
    }

    /// The throughput over time, in seconds since `start`, if it was kept.
    fn series(&self, bench: &Bench<'_>, start: SystemTime) -> Result<Series> {
        let text = std::fs::read_to_string(bench.path(&format!("{}_bw.1.log", self.name)))?;
        let start = start.duration_since(UNIX_EPOCH)?.as_secs_f64();
        let kind = if self.rw.writes() { "written" } else { "read" };
        Ok(Series { name: format!("{kind}_mb_per_s"), points: throughput(&text, start) })
    }
}

/// The points of fio's log: milliseconds since 1970, KiB/s, direction, block size, …
fn throughput(text: &str, start: f64) -> Vec<(f64, f64)> {
    let point = |line: &str| {
        let mut cells = line.split(',').map(|cell| cell.trim().parse::<f64>());
        Some((cells.next()?.ok()? / 1000.0 - start, cells.next()?.ok()? * 1024.0 / 1e6))
    };
    text.lines().filter_map(point).collect()
}

/// The latencies of fio's log in milliseconds: milliseconds since the start, nanoseconds,
/// direction, …
fn latencies(text: &str) -> Vec<f64> {
    let value = |line: &str| line.split(',').nth(1)?.trim().parse::<f64>().ok();
    text.lines().filter_map(value).map(|nanoseconds| nanoseconds / 1e6).collect()
}

/// The figures of fio's JSON.
fn figures(text: &str, rw: Pattern) -> Result<Vec<(String, f64)>> {
    // Warnings come before it.
    let start = text.find('{').context("fio printed no JSON")?;
    let json: Value = serde_json::from_str(&text[start..])?;
    let job = &json["jobs"][0];
    if job["error"] != 0 {
        bail!("fio reports error {}", job["error"]);
    }
    let side = &job[if rw.writes() { "write" } else { "read" }];
    let get = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
    let latency = &side["clat_ns"];
    let mut found: Vec<(String, f64)> = vec![
        ("iops".into(), get(&side["iops"])),
        ("mb_per_s".into(), get(&side["bw_bytes"]) / 1e6),
        ("requests".into(), get(&side["total_ios"])),
        ("mean_ms".into(), get(&latency["mean"]) / 1e6),
        ("max_ms".into(), get(&latency["max"]) / 1e6),
    ];
    for (name, share) in PERCENTILES {
        found.push((name.into(), get(&latency["percentile"][format!("{share:.6}")]) / 1e6));
    }
    found.retain(|(_, value)| value.is_finite());
    Ok(found)
}

impl Run<'_, '_> {
    /// The workload `fio`.
    pub(super) fn fio(&mut self, fio: &Fio) -> Result<()> {
        let set = self.point.definition.working_set().unwrap_or_default();
        let uri = self.uri.clone();
        for _ in 0..fio.warm {
            let whole = Job { depth: 8, ..Job::new("warm", Pattern::Read, Size(256 << 10), set) };
            whole.run(self.bench, &uri)?;
        }
        let job = Job {
            depth: fio.depth,
            seconds: Some(fio.seconds),
            ramp: fio.ramp,
            // fio reads cold data once.
            again: fio.rw.writes() || fio.warm > 0,
            distribution: fio.distribution.as_deref(),
            series: fio.series,
            ..Job::new("fio", fio.rw, fio.block, set)
        };
        let watch = self.product.filter(|_| fio.series).map(|product| {
            product.host_admin().watch(Duration::from_secs_f64(SERIES_SECONDS / 2.0))
        });
        let (bench, clock) = (self.bench, SystemTime::now());
        let (measured, start) = self.measure(|| job.run(bench, &uri))?;
        self.figures.extend(measured);
        if fio.series {
            self.series.push(job.series(bench, clock)?);
        }
        if let Some(watch) = watch {
            let samples = watch.finish(start)?;
            let points = samples.iter().map(|(at, sample)| (*at, sample.lag_bytes / 1e6)).collect();
            self.series.push(Series { name: "lag_mb".into(), points });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_of_fio() {
        let points = throughput("1000250, 1000, 1, 8192, 0\n1000500, 500, 1, 8192, 0\n\n", 1000.0);
        assert_eq!(points, [(0.25, 1.024), (0.5, 0.512)]);
        assert_eq!(
            latencies("1, 16900123, 0, 8192, 0\n2, 500000, 0, 8192, 0\n\n"),
            [16.900_123, 0.5]
        );
    }

    #[test]
    fn output_of_fio() {
        let text = r#"note: both iodepth >= 1 …
{"jobs": [{"error": 0, "write": {}, "read": {"iops": 50.5, "bw_bytes": 4000000, "total_ios": 202,
 "clat_ns": {"mean": 16200000.0, "max": 20000000, "percentile": {"50.000000": 16100000, "99.900000": 19000000}}}}]}"#;
        let found = figures(text, Pattern::RandRead).unwrap();
        let get = |name: &str| found.iter().find(|(n, _)| n == name).map(|(_, value)| *value);
        assert_eq!(get("p50_ms"), Some(16.1));
        assert_eq!(get("p999_ms"), Some(19.0));
        assert_eq!(get("mb_per_s"), Some(4.0));
        assert_eq!(get("p99_ms"), None);
        assert!(figures(&text.replace("\"error\": 0", "\"error\": 5"), Pattern::Read).is_err());
        assert!(figures("", Pattern::Read).is_err());
    }
}
