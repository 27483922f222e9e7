//! The store, loaded over the link without a host mostly, beside the disk it writes to.

mod failover;
mod growth;
mod limits;
mod read;

use crate::bucket::{BUCKET, Bucket};
use crate::node::{Site, free_port};
use crate::process::{Server, output};
use crate::report::{Report, Row};
use crate::rounds::{Rounds, Tally};
use crate::run::admin;
use crate::suite::Suite;
use anyhow::{Context as _, Result};
use serde_json::Value;
use std::fs::File;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Bytes committed in a measurement, to all volumes together.
const WRITTEN: u64 = 1 << 30;

/// Size of the file that is a device.
const DEVICE: u64 = 3 << 30;

/// Bytes of a segment, and of a write to the disk beside it.
const SEGMENT: usize = 4 << 20;

/// How long a store may take to end what it has begun.
const SETTLED: Duration = Duration::from_secs(60);

/// How long the benchmark watches a store without requests.
const IDLE: Duration = Duration::from_secs(10);

/// Volumes in use at the same time, and bytes written to each.
const VOLUMES: usize = 1000;
const EACH: &str = "1MiB";

const MIB: f64 = 1048576.0;

/// Where a store has its objects.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Data {
    Directory,
    Device,
    Memory,
    /// A bucket that takes [`PUT_DELAY`] for each new object, at this address.
    Bucket(SocketAddr),
}

/// How long a put takes in a bucket in the same region, by common reports.
const PUT_DELAY: Duration = Duration::from_millis(30);

impl Data {
    fn name(self) -> &'static str {
        match self {
            Data::Directory => "directory",
            Data::Device => "device (a file)",
            Data::Memory => "memory",
            Data::Bucket(_) => "bucket",
        }
    }
}

struct Bench<'a> {
    site: &'a Site,
    rounds: Rounds,
    report: &'a Report,
}

/// Runs a benchmark and removes what it leaves.
fn with(suite: &Suite, run: impl FnOnce(&Bench<'_>) -> Result<()>) -> Result<()> {
    let bench = Bench { site: &suite.site, rounds: suite.rounds, report: &suite.report };
    run(&bench)?;
    bench.clear()
}

/// How fast the store commits, beside the disk.
pub fn commit(suite: &Suite) -> Result<()> {
    with(suite, |bench| bench.commit())
}

/// How fast the store commits if each new object takes a while.
pub fn distant(suite: &Suite) -> Result<()> {
    with(suite, |bench| bench.distant())
}

/// The costs of a store as something grows.
pub fn growth(suite: &Suite) -> Result<()> {
    with(suite, |bench| bench.growth())
}

/// The store's requests to its objects.
pub fn requests(suite: &Suite) -> Result<()> {
    with(suite, |bench| bench.requests())
}

/// The cost of a read.
pub fn read(suite: &Suite) -> Result<()> {
    with(suite, |bench| bench.read())
}

/// The memory of many volumes.
pub fn volumes(suite: &Suite) -> Result<()> {
    with(suite, |bench| bench.volumes())
}

/// The limits of a tenant.
pub fn limits(suite: &Suite) -> Result<()> {
    with(suite, |bench| bench.limits())
}

/// A store that is killed.
pub fn failover(suite: &Suite) -> Result<()> {
    with(suite, |bench| bench.failover())
}

/// A running store.
struct Store<'a> {
    site: &'a Site,
    server: Server,
    admin: u16,
    credential: String,
}

impl Store<'_> {
    /// Runs `longhaul bench-link` against it.
    fn load(&self, args: &[&str]) -> Result<Value> {
        let fixed = ["bench-link", "--credential", &self.credential];
        let text = output(&self.site.longhaul, &[&fixed, args].concat())?;
        serde_json::from_str(&text).with_context(|| format!("bench-link printed {text}"))
    }

    /// Starts it, waits until it has printed its result, and leaves it attached.
    fn hold(&self, args: &[&str]) -> Result<Server> {
        let fixed = ["bench-link", "--credential", &self.credential];
        let log = self.site.path("link.log");
        let args = [&fixed, args, &["--hold"]].concat();
        let mut link = Server::start("bench-link", &self.site.longhaul, &args, &log)?;
        let done = || std::fs::read_to_string(&log).is_ok_and(|text| text.contains("\"seconds\""));
        link.wait_until("result", done)?;
        Ok(link)
    }

    /// Some of its metrics.
    fn metrics<const N: usize>(&self, names: [&str; N]) -> Result<[f64; N]> {
        let page = admin::get(self.admin, "/metrics")?;
        let mut values = [0.0; N];
        for (name, value) in names.iter().zip(&mut values) {
            let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            *value = line.with_context(|| format!("no {name}"))?.parse()?;
        }
        Ok(values)
    }

    /// All requests it has made of its objects, and those of them that create one.
    fn requests(&self) -> Result<(f64, f64)> {
        let all = self.metrics([
            "longhaul_store_object_puts_total",
            "longhaul_store_object_gets_total",
            "longhaul_store_object_lists_total",
            "longhaul_store_object_deletes_total",
            "longhaul_store_object_failures_total",
        ])?;
        Ok((all.iter().sum(), all[0]))
    }
}

impl Bench<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.site.path(name)
    }

    /// Removes the file; nothing of it remains for the disk.
    fn clear(&self) -> Result<()> {
        for name in ["store", "objects", "second", "host"] {
            let _ = std::fs::remove_dir_all(self.path(name));
        }
        for name in ["disk.raw", "device.raw"] {
            let _ = std::fs::remove_file(self.path(name));
        }
        output(Path::new("sync"), &[]).map(drop)
    }

    /// A new store.
    fn store(&self, at: Data) -> Result<Store<'_>> {
        self.clear()?;
        if at == Data::Device {
            File::create(self.path("device.raw"))?.set_len(DEVICE)?;
        }
        self.again(at)
    }

    /// A store with the data and the state that are there.
    fn again(&self, at: Data) -> Result<Store<'_>> {
        let (listen, admin) = (format!("127.0.0.1:{}", free_port(true)?), free_port(false)?);
        let (objects, state) = (self.path("objects"), self.path("store"));
        let data = match at {
            Data::Directory => objects.display().to_string(),
            Data::Device => format!("file://{}", self.path("device.raw").display()),
            Data::Memory => "mem://4GiB".to_owned(),
            Data::Bucket(_) => format!("s3://{BUCKET}/store"),
        };
        let address = format!("127.0.0.1:{admin}");
        let state = state.display().to_string();
        let args =
            ["store", "--data", &data, "--state", &state, "--listen", &listen, "--admin", &address];
        let mut command = Command::new(&self.site.longhaul);
        command.args(args);
        if let Data::Bucket(address) = at {
            command
                .envs([("AWS_ACCESS_KEY_ID", "lab"), ("AWS_SECRET_ACCESS_KEY", "lab")])
                .envs([("AWS_REGION", "us-east-1"), ("AWS_ALLOW_HTTP", "true")])
                .env("AWS_ENDPOINT_URL", format!("http://{address}"));
        }
        let mut server = Server::spawn("store", command, &self.path("store.log"))?;
        server.wait_until("answer", || admin::get(admin, "/healthz").is_ok())?;
        let credential = self.path("store/credentials/admin.toml").display().to_string();
        Ok(Store { site: self.site, server, admin, credential })
    }

    /// Bytes a second that a new store commits.
    fn committed(&self, data: Data, volumes: usize, transport: &str) -> Result<f64> {
        Ok(self.committed_with_memory(data, volumes, transport)?.0)
    }

    /// As [`Bench::committed`], with the peak memory of the store in MiB.
    fn committed_with_memory(
        &self,
        data: Data,
        volumes: usize,
        transport: &str,
    ) -> Result<(f64, f64)> {
        let store = self.store(data)?;
        let names: Vec<String> = (0..volumes).map(|number| format!("v{number}")).collect();
        let bytes = (WRITTEN / volumes as u64).to_string();
        let mut args = vec!["write", "--bytes", &bytes, "--record", "64KiB"];
        args.extend(["--transport", transport]);
        args.extend(names.iter().map(String::as_str));
        let result = store.load(&args)?;
        let peak = store.server.peak_bytes()? as f64 / MIB;
        store.server.stop()?;
        let figure = |name: &str| result[name].as_f64().context("no figure");
        Ok((figure("bytes")? / figure("seconds")?, peak))
    }

    /// Bytes a second for writing a file from front to back. It has one sync at its end, or one
    /// after each part of the size of a segment.
    fn disk(&self, each: bool) -> Result<f64> {
        self.clear()?;
        let mut data = vec![0; SEGMENT];
        fastrand::fill(&mut data);
        let begun = Instant::now();
        let mut file = File::create(self.path("disk.raw"))?;
        for _ in 0..WRITTEN / SEGMENT as u64 {
            file.write_all(&data)?;
            if each {
                file.sync_data()?;
            }
        }
        file.sync_data()?;
        Ok(WRITTEN as f64 / begun.elapsed().as_secs_f64())
    }

    /// How fast the store commits, beside the disk. All take turns: the cost of fresh disk and
    /// memory varies over minutes.
    fn commit(&self) -> Result<()> {
        let target = Some((0.8, true));
        let cases = [
            (Data::Directory, "quic", 1, target),
            (Data::Directory, "quic", 4, target),
            (Data::Directory, "tcp", 1, target),
            (Data::Directory, "tcp", 4, target),
            (Data::Device, "quic", 1, None),
            (Data::Device, "quic", 4, None),
            (Data::Memory, "quic", 1, None),
            (Data::Memory, "tcp", 1, None),
        ];
        let mut rows = cases.map(|(data, transport, volumes, target)| Row {
            name: format!(
                "commits of 64 KiB writes, volumes: {volumes}, {}, {transport}",
                data.name()
            ),
            unit: "MB/s".into(),
            peer: Some(("one file, 4 MiB at a time, one sync".into(), Vec::new())),
            target,
            ..Row::default()
        });
        let (mut synced, mut tally) = (Vec::new(), Tally::default());
        for _ in 0..self.rounds.wanted {
            for ((data, transport, volumes, _), row) in cases.iter().zip(&mut rows) {
                let round = self.rounds.round(&mut row.tally, || {
                    let ours = self.committed(*data, *volumes, transport)? / 1e6;
                    Ok((ours, self.disk(false)? / 1e6))
                })?;
                if let (Some((ours, disk)), Some((_, theirs))) = (round, &mut row.peer) {
                    row.ours.push(ours);
                    theirs.push(disk);
                }
            }
            synced.extend(self.rounds.round(&mut tally, || Ok(self.disk(true)? / 1e6))?);
        }
        for row in rows {
            self.report.row(row)?;
        }
        let name = "one file, 4 MiB at a time, each with a sync";
        self.report.single(name, &synced, "MB/s", None, &tally)
    }

    /// How fast the store commits to a bucket in which each new object takes 30 ms, and the memory
    /// that it takes for that.
    fn distant(&self) -> Result<()> {
        for (volumes, target) in [(1, Some((300.0, true))), (4, None)] {
            let (mut rates, mut memory) = (Vec::new(), Vec::new());
            let (mut tally, mut seen) = (Tally::default(), 0.0);
            for _ in 0..self.rounds.wanted {
                let rate = self.rounds.round(&mut tally, || {
                    let bucket = Bucket::start(PUT_DELAY)?;
                    let (rate, peak) =
                        self.committed_with_memory(Data::Bucket(bucket.address), volumes, "tcp")?;
                    seen = peak;
                    Ok(rate / 1e6)
                })?;
                if let Some(rate) = rate {
                    rates.push(rate);
                    memory.push(seen);
                }
            }
            let ms = PUT_DELAY.as_millis();
            let name = format!("commits to a bucket, {ms} ms for each put, volumes: {volumes}");
            self.report.single(&name, &rates, "MB/s", target, &tally)?;
            self.report.single("its peak memory", &memory, "MiB", Some((512.0, false)), &tally)?;
        }
        Ok(())
    }

    /// The store's requests to its objects, during writes and afterward.
    fn requests(&self) -> Result<()> {
        let store = self.store(Data::Directory)?;
        let bytes = WRITTEN.to_string();
        let args = ["write", "v", "--random", "--record", "4KiB", "--bytes", &bytes];
        let link = store.hold(&args)?;
        // The last writes leave a merge of the map, which is no work of an idle store.
        let (mut before, begun) = (store.requests()?, Instant::now());
        loop {
            std::thread::sleep(Duration::from_secs(1));
            let now = store.requests()?;
            if std::mem::replace(&mut before, now) == now || begun.elapsed() > SETTLED {
                break;
            }
        }
        std::thread::sleep(IDLE);
        let idle = store.requests()?.0 - before.0;
        link.stop()?;
        store.server.stop()?;
        // Counts, not times: a busy machine does not change them.
        let count = |name: &str, value: f64, target| {
            self.report.single(name, &[value], "", target, &Tally::default())
        };
        count(
            "4 KiB random writes: objects created for each 4 MiB of data",
            before.1 / (WRITTEN as f64 / SEGMENT as f64),
            Some((1.0, false)),
        )?;
        let seconds = IDLE.as_secs();
        let name = format!("requests in {seconds} s with a volume attached and nothing to do");
        count(&name, idle, Some((0.0, false)))
    }

    /// The memory of many volumes in use.
    fn volumes(&self) -> Result<()> {
        let store = self.store(Data::Directory)?;
        let idle = store.server.memory_bytes()? as f64 / MIB;
        let names: Vec<String> = (0..VOLUMES).map(|number| format!("v{number:04}")).collect();
        let mut args = vec!["write", "--random", "--record", "4KiB", "--bytes", EACH];
        args.extend(names.iter().map(String::as_str));
        let link = store.hold(&args)?;
        let (peak, held) = (store.server.peak_bytes()?, store.server.memory_bytes()?);
        link.stop()?;
        store.server.stop()?;
        let name = format!("{VOLUMES} volumes attached and written, {EACH} each: peak memory");
        let single = |name: &str, value: f64, target| {
            self.report.single(name, &[value], "MiB", target, &Tally::default())
        };
        single(&name, peak as f64 / MIB, Some((512.0, false)))?;
        single("… anonymous at the end", held as f64 / MIB, None)?;
        single("… before the first", idle, None)
    }
}

/// The files of the largest objects.
fn segments(dir: &Path) -> Result<Vec<File>> {
    let (mut found, mut dirs) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            if metadata.is_dir() {
                dirs.push(entry.path());
            } else if metadata.len() > SEGMENT as u64 / 2 {
                found.push(File::open(entry.path())?);
            }
        }
    }
    Ok(found)
}
