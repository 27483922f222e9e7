//! fio beside the benchmarks: one run of it, and its figures.

use crate::node::Site;
use crate::process::output;
use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use std::path::Path;

/// How much longer than its time a run may take, in seconds: a server that hangs ends the run.
const PATIENCE: u32 = 60;

/// What fio measured.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    pub requests: f64,
    pub iops: f64,
    pub bytes_per_second: f64,
    pub mean_us: f64,
    pub p50_us: f64,
    pub sync_p50_us: f64,
    pub syncs_per_second: f64,
}

/// One fio job, the same for all targets of a run.
#[derive(Clone, Copy)]
pub struct Job<'a> {
    pub rw: &'a str,
    pub block: &'a str,
    pub depth: u32,
    /// Clients of each target.
    pub jobs: u32,
    pub fsync: bool,
    /// The region of the target.
    pub size: u64,
    /// The end, if the time does not come first: bytes of each client.
    pub most: Option<u64>,
    pub seconds: u32,
    /// The only processor that it uses.
    pub processor: Option<usize>,
    /// Most requests a second of each client.
    pub rate: Option<u32>,
}

impl<'a> Job<'a> {
    pub const fn new(rw: &'a str, block: &'a str, depth: u32, seconds: u32) -> Job<'a> {
        let size = 1 << 30;
        let (most, processor, rate) = (None, None, None);
        Job { rw, block, depth, jobs: 1, fsync: false, size, most, seconds, processor, rate }
    }

    fn arguments(&self) -> Vec<String> {
        let mut args = vec![
            format!("--rw={}", self.rw),
            format!("--bs={}", self.block),
            format!("--iodepth={}", self.depth),
            format!("--numjobs={}", self.jobs),
            format!("--size={}", self.size),
            format!("--fsync={}", u32::from(self.fsync)),
            format!("--runtime={}", self.seconds),
        ];
        args.push(match self.most {
            Some(most) => format!("--io_size={most}"),
            None => "--time_based".into(),
        });
        args.extend(self.rate.map(|rate| format!("--rate_iops={rate}")));
        args.extend(self.processor.map(|number| format!("--cpus_allowed={number}")));
        let rest = [
            "--group_reporting",
            "--randrepeat=1",
            "--norandommap",
            "--percentile_list=50:99:99.9",
            "--output-format=json",
        ];
        args.extend(rest.map(str::to_owned));
        args
    }
}

/// The arguments of fio for an export behind a socket of the directory.
pub fn nbd(site: &Site, socket: &str, export: &str) -> Vec<String> {
    let socket = site.path(socket);
    vec!["--ioengine=nbd".into(), format!("--uri=nbd+unix:///{export}?socket={}", socket.display())]
}

/// Runs a job on all targets at once: their figures together.
///
/// # Errors
/// If fio fails or sees an error.
pub fn run(site: &Site, targets: &[Vec<String>], job: &Job<'_>) -> Result<Figures> {
    let out = site.path("fio.json");
    let limit = (job.seconds + PATIENCE).to_string();
    let mut args: Vec<String> = ["-k", "5", &limit, "fio"].map(str::to_owned).into();
    args.extend(job.arguments());
    args.push(format!("--output={}", out.display()));
    for (number, target) in targets.iter().enumerate() {
        args.push(format!("--name=bench{number}"));
        args.extend_from_slice(target);
    }
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    output(Path::new("timeout"), &args)?;
    figures(&std::fs::read_to_string(&out)?, job.rw)
}

fn figures(text: &str, rw: &str) -> Result<Figures> {
    // Warnings come before it.
    let start = text.find('{').context("fio printed no JSON")?;
    let json: Value = serde_json::from_str(&text[start..])?;
    let job = &json["jobs"][0];
    if job["error"] != 0 {
        bail!("fio reports error {}: {text}", job["error"]);
    }
    let get = |value: &Value| value.as_f64().unwrap_or(0.0);
    let side = &job[if rw.contains("read") { "read" } else { "write" }];
    let seconds = get(&side["runtime"]) / 1000.0;
    let micros = |value: &Value| get(value) / 1000.0;
    Ok(Figures {
        requests: get(&side["total_ios"]),
        iops: get(&side["iops"]),
        bytes_per_second: get(&side["bw_bytes"]),
        mean_us: micros(&side["lat_ns"]["mean"]),
        p50_us: micros(&side["clat_ns"]["percentile"]["50.000000"]),
        sync_p50_us: micros(&job["sync"]["lat_ns"]["percentile"]["50.000000"]),
        syncs_per_second: get(&job["sync"]["total_ios"]) / seconds.max(1e-9),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments() {
        let job = Job::new("randwrite", "4k", 32, 2);
        assert!(job.arguments().contains(&"--time_based".to_owned()));
        let bounded = Job { most: Some(5), processor: Some(1), ..job }.arguments();
        assert!(!bounded.contains(&"--time_based".to_owned()));
        for wanted in ["--io_size=5", "--cpus_allowed=1", "--runtime=2"] {
            assert!(bounded.contains(&wanted.to_owned()), "{wanted}");
        }
    }

    #[test]
    fn output_of_fio() {
        let text = r#"note
{"jobs": [{"error": 0, "read": {}, "write": {
 "iops": 50.5, "bw_bytes": 4096, "total_ios": 101, "runtime": 2000,
 "lat_ns": {"mean": 3000.0}, "clat_ns": {"percentile": {"50.000000": 2000}}},
 "sync": {"total_ios": 20, "lat_ns": {"percentile": {"50.000000": 9000}}}}]}"#;
        let found = figures(text, "randwrite").unwrap();
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} is not {b}");
        near(found.iops, 50.5);
        near(found.mean_us, 3.0);
        near(found.p50_us, 2.0);
        near(found.sync_p50_us, 9.0);
        near(found.syncs_per_second, 10.0);
        assert!(figures(&text.replace("\"error\": 0", "\"error\": 5"), "write").is_err());
        assert!(figures("", "write").is_err());
    }
}
