//! The benchmarks: longhaul beside its peers, in turn.

use crate::BenchArgs;
use crate::node::{Node, Site};
use crate::process::{Server, output};
use crate::report::{Pair, Report};
use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Size of the volumes measured on.
const VOLUME: &str = "4GiB";
const VOLUME_BYTES: u64 = 4 << 30;

struct Bench {
    site: Site,
    rounds: usize,
    seconds: u32,
    before: Option<PathBuf>,
    report: Report,
}

/// Runs what was asked for, or everything.
pub fn run(args: &BenchArgs) -> Result<()> {
    let bench = Bench {
        site: Site::new(args)?,
        rounds: args.rounds,
        seconds: args.seconds.unwrap_or(4),
        before: args.before.clone(),
        report: Report::new(args.json.clone()),
    };
    type Step = fn(&Bench) -> Result<()>;
    let steps: [(&str, Step); 7] = [
        ("null", Bench::null),
        ("before", Bench::before),
        ("host", Bench::host),
        ("flush", Bench::flush),
        ("cold", Bench::cold),
        ("drain", Bench::drain),
        ("recovery", Bench::recovery),
    ];
    for name in &args.only {
        if !steps.iter().any(|(step, _)| step == name) {
            bail!("there is no benchmark `{name}`");
        }
    }
    for (name, step) in steps {
        let wanted = if args.only.is_empty() {
            name != "before" || args.before.is_some()
        } else {
            args.only.iter().any(|only| only == name)
        };
        if wanted {
            step(&bench).with_context(|| format!("benchmark `{name}`"))?;
        }
    }
    // Gigabytes; after a failure they stay, to look at.
    for name in ["store", "host"] {
        let _ = std::fs::remove_dir_all(bench.path(name));
    }
    for name in ["peer.raw", "flush.raw", "objects.raw"] {
        let _ = std::fs::remove_file(bench.path(name));
    }
    Ok(())
}

/// What fio measured.
#[derive(Clone, Copy, Default)]
struct Figures {
    requests: f64,
    iops: f64,
    bytes_per_second: f64,
    p50_us: f64,
    sync_p50_us: f64,
    syncs_per_second: f64,
}

/// One fio job.
struct Job<'a> {
    rw: &'a str,
    block: &'a str,
    depth: u32,
    jobs: u32,
    fsync: bool,
    size: u64,
    seconds: Option<u32>,
}

impl<'a> Job<'a> {
    fn new(rw: &'a str, block: &'a str, depth: u32) -> Job<'a> {
        Job { rw, block, depth, jobs: 1, fsync: false, size: 1 << 30, seconds: None }
    }
}

impl Bench {
    fn path(&self, name: &str) -> PathBuf {
        self.site.path(name)
    }

    fn fio(&self, target: &[&str], job: &Job<'_>) -> Result<Figures> {
        let out = self.path("fio.json");
        let mut args: Vec<String> = target.iter().map(|&arg| arg.into()).collect();
        args.extend([
            "--name=bench".into(),
            format!("--rw={}", job.rw),
            format!("--bs={}", job.block),
            format!("--iodepth={}", job.depth),
            format!("--numjobs={}", job.jobs),
            format!("--size={}", job.size),
            format!("--fsync={}", u32::from(job.fsync)),
            format!("--runtime={}", job.seconds.unwrap_or(self.seconds)),
            "--time_based".into(),
            "--group_reporting".into(),
            "--randrepeat=1".into(),
            "--norandommap".into(),
            "--percentile_list=50:99:99.9".into(),
            "--output-format=json".into(),
            format!("--output={}", out.display()),
        ]);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        output(Path::new("fio"), &args)?;
        let text = std::fs::read_to_string(&out)?;
        let start = text.find('{').context("fio printed no JSON")?;
        let json: Value = serde_json::from_str(&text[start..])?;
        let job_json = &json["jobs"][0];
        if job_json["error"] != 0 {
            bail!("fio reports error {}: {text}", job_json["error"]);
        }
        let kind = if job.rw.contains("read") { "read" } else { "write" };
        let get = |value: &Value| value.as_f64().unwrap_or(0.0);
        let side = &job_json[kind];
        let run_seconds = get(&side["runtime"]) / 1000.0;
        Ok(Figures {
            requests: get(&side["total_ios"]),
            iops: get(&side["iops"]),
            bytes_per_second: get(&side["bw_bytes"]),
            p50_us: get(&side["clat_ns"]["percentile"]["50.000000"]) / 1000.0,
            sync_p50_us: get(&job_json["sync"]["lat_ns"]["percentile"]["50.000000"]) / 1000.0,
            syncs_per_second: get(&job_json["sync"]["total_ios"]) / run_seconds.max(1e-9),
        })
    }

    fn nbd(&self, socket: &str, export: &str, job: &Job<'_>) -> Result<Figures> {
        let uri = format!("--uri=nbd+unix:///{export}?socket={}", self.path(socket).display());
        self.fio(&["--ioengine=nbd", &uri], job)
    }

    fn raw_file(&self, name: &str) -> Result<PathBuf> {
        let path = self.path(name);
        let file = std::fs::File::create(&path)?;
        file.set_len(VOLUME_BYTES)?;
        Ok(path)
    }

    fn qemu_nbd(&self, file: &Path) -> Result<Server> {
        let socket = self.path("peer.sock");
        let (socket, file) = (socket.display().to_string(), file.display().to_string());
        let args = ["-t", "-e", "32", "-f", "raw", "-k", &socket, &file];
        self.site.serve(Path::new("qemu-nbd"), "peer.sock", &args)
    }

    fn pair(
        &self,
        name: &str,
        unit: &'static str,
        peer: &str,
        target: Option<(f64, bool)>,
        mut ours: impl FnMut() -> Result<f64>,
        mut theirs: impl FnMut() -> Result<f64>,
    ) -> Result<()> {
        let mut pair = Pair {
            name: name.into(),
            unit,
            peer: peer.into(),
            ours: Vec::new(),
            theirs: Vec::new(),
            target,
        };
        for _ in 0..self.rounds {
            pair.ours.push(ours()?);
            pair.theirs.push(theirs()?);
        }
        self.report.pair(&pair)
    }

    /// The empty host loop: session and engine, with journal and store answering at once.
    fn null(&self) -> Result<()> {
        let address = format!("unix:{}", self.path("ours.sock").display());
        let ours = self.site.serve(
            &self.site.longhaul,
            "ours.sock",
            &["bench-null", "--nbd", &address],
        )?;
        let socket = self.path("nbdkit.sock").display().to_string();
        let args = ["-U", &socket, "-f", "memory", "4G"];
        let nbdkit = self.site.serve(Path::new("nbdkit"), "nbdkit.sock", &args)?;
        let size = VOLUME_BYTES.to_string();
        let socket = self.path("qsd.sock").display().to_string();
        let args = [
            "--blockdev",
            &format!("driver=null-co,node-name=n,size={size},read-zeroes=on"),
            "--nbd-server",
            &format!("addr.type=unix,addr.path={socket}"),
            "--export",
            "type=nbd,id=e,node-name=n,name=null,writable=on",
        ];
        let qsd = self.site.serve(Path::new("qemu-storage-daemon"), "qsd.sock", &args)?;
        for (rw, kind) in [("randwrite", "write"), ("randread", "read")] {
            for depth in [1, 32] {
                let job = Job { size: 256 << 20, ..Job::new(rw, "4k", depth) };
                for (peer, socket, export) in [
                    ("nbdkit memory", "nbdkit.sock", ""),
                    ("qemu-storage-daemon null", "qsd.sock", "null"),
                ] {
                    self.pair(
                        &format!("empty loop, 4 KiB {kind}, depth {depth}"),
                        "IOPS",
                        peer,
                        Some((1.0, true)),
                        || Ok(self.nbd("ours.sock", "null", &job)?.iops),
                        || Ok(self.nbd(socket, export, &job)?.iops),
                    )?;
                }
            }
        }
        ours.stop()?;
        nbdkit.stop()?;
        qsd.stop()
    }

    /// The empty host loop beside that of an earlier `longhaul`: requests in a second, and the
    /// server's processor time for each request.
    fn before(&self) -> Result<()> {
        let before = self.before.as_deref().context("give the earlier binary: --before FILE")?;
        let serve = |program: &Path, socket: &str| {
            let address = format!("unix:{}", self.path(socket).display());
            self.site.serve(program, socket, &["bench-null", "--nbd", &address])
        };
        let now = serve(&self.site.longhaul, "ours.sock")?;
        let earlier = serve(before, "before.sock")?;
        for (rw, kind) in [("randwrite", "write"), ("randread", "read")] {
            for depth in [1, 32] {
                let job = Job { size: 256 << 20, ..Job::new(rw, "4k", depth) };
                let (ours, theirs) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()));
                let measure = |server: &Server, socket: &str, costs: &RefCell<Vec<f64>>| {
                    let start = server.cpu_seconds()?;
                    let figures = self.nbd(socket, "null", &job)?;
                    let cost = (server.cpu_seconds()? - start) * 1e6 / figures.requests.max(1.0);
                    costs.borrow_mut().push(cost);
                    Ok(figures.iops)
                };
                let name = format!("empty loop, 4 KiB {kind}, depth {depth}");
                self.pair(
                    &name,
                    "IOPS",
                    "before",
                    Some((1.0, true)),
                    || measure(&now, "ours.sock", &ours),
                    || measure(&earlier, "before.sock", &theirs),
                )?;
                self.report.pair(&Pair {
                    name: format!("{name}, processor time of a request"),
                    unit: "µs",
                    peer: "before".into(),
                    ours: ours.into_inner(),
                    theirs: theirs.into_inner(),
                    target: Some((1.0, false)),
                })?;
            }
        }
        now.stop()?;
        earlier.stop()
    }

    /// The whole host, with its journal on the disk and a store beside it.
    fn host(&self) -> Result<()> {
        let node = Node::start(&self.site, VOLUME, &[])?;
        let raw = self.raw_file("peer.raw")?;
        let peer = self.qemu_nbd(&raw)?;
        for (rw, kind, block, depth, unit) in [
            ("randwrite", "random write", "4k", 1, "IOPS"),
            ("randwrite", "random write", "4k", 32, "IOPS"),
            ("write", "sequential write", "64k", 4, "MB/s"),
            ("write", "sequential write", "1m", 4, "MB/s"),
        ] {
            let job = Job { size: 256 << 20, ..Job::new(rw, block, depth) };
            let value = |figures: Figures| {
                if unit == "IOPS" { figures.iops } else { figures.bytes_per_second / 1e6 }
            };
            self.pair(
                &format!("host, {block} {kind}, depth {depth}"),
                unit,
                "qemu-nbd raw",
                Some((1.0, true)),
                || {
                    let figures = self.nbd("ours.sock", "bench", &job)?;
                    node.wait_drained()?;
                    Ok(value(figures))
                },
                || {
                    let figures = self.nbd("peer.sock", "", &job)?;
                    output(Path::new("sync"), &[])?;
                    Ok(value(figures))
                },
            )?;
        }
        // 128 MiB that both have just written: still in our journal, in the peer's page cache.
        let fill = Job { size: 128 << 20, ..Job::new("write", "1m", 4) };
        self.nbd("ours.sock", "bench", &fill)?;
        node.wait_drained()?;
        self.nbd("peer.sock", "", &fill)?;
        output(Path::new("sync"), &[])?;
        for depth in [1, 32] {
            let job = Job { size: 128 << 20, ..Job::new("randread", "4k", depth) };
            self.pair(
                &format!("host, 4k random read of fresh data, depth {depth}"),
                "IOPS",
                "qemu-nbd raw",
                Some((1.0, true)),
                || Ok(self.nbd("ours.sock", "bench", &job)?.iops),
                || Ok(self.nbd("peer.sock", "", &job)?.iops),
            )?;
        }
        peer.stop()?;
        node.stop()
    }

    /// The cost of a flush beside the disk's own.
    fn flush(&self) -> Result<()> {
        let node = Node::start(&self.site, VOLUME, &[])?;
        let file = self.path("flush.raw");
        // Written once, so that the file system has nothing left to allocate or convert.
        output(
            Path::new("dd"),
            &[
                "if=/dev/zero",
                &format!("of={}", file.display()),
                "bs=1M",
                "count=256",
                "conv=fsync",
                "status=none",
            ],
        )?;
        let target = format!("--filename={}", file.display());
        let raw = Job { fsync: true, size: 256 << 20, ..Job::new("write", "8k", 1) };
        let ours = Job { fsync: true, size: 256 << 20, ..Job::new("randwrite", "4k", 1) };
        self.pair(
            "4 KiB write and flush, one at a time, latency of the flush (p50)",
            "µs",
            "fdatasync of 8 KiB on a preallocated file",
            Some((1.25, false)),
            || Ok(self.nbd("ours.sock", "bench", &ours)?.sync_p50_us),
            || {
                let args = ["--ioengine=psync", &target, "--fdatasync=1"];
                Ok(self.fio(&args, &Job { fsync: false, ..raw })?.sync_p50_us)
            },
        )?;
        let many = Job { jobs: 16, ..ours };
        self.pair(
            "16 concurrent flushers, flushes a second",
            "1/s",
            "one flusher",
            None,
            || Ok(self.nbd("ours.sock", "bench", &many)?.syncs_per_second),
            || Ok(self.nbd("ours.sock", "bench", &ours)?.syncs_per_second),
        )?;
        node.stop()
    }

    /// A read that only the store can answer.
    fn cold(&self) -> Result<()> {
        let node = Node::start(&self.site, VOLUME, &[])?;
        let fill = Job { size: 1 << 30, seconds: Some(10), ..Job::new("write", "1m", 4) };
        self.nbd("ours.sock", "bench", &fill)?;
        node.wait_drained()?;
        let node = node.with_fresh_host(&self.site)?;
        let objects = self.path("objects.raw");
        output(
            Path::new("dd"),
            &[
                "if=/dev/zero",
                &format!("of={}", objects.display()),
                "bs=1M",
                "count=1024",
                "conv=fsync",
                "status=none",
            ],
        )?;
        let target = format!("--filename={}", objects.display());
        let job = Job { size: 1 << 30, ..Job::new("randread", "8k", 1) };
        let mut over = Vec::new();
        self.pair(
            "cold 8 KiB read, one outstanding, p50",
            "µs",
            "pread of 8 KiB from a file in the page cache",
            None,
            || {
                let p50 = self.nbd("ours.sock", "bench", &job)?.p50_us;
                over.push(p50);
                Ok(p50)
            },
            || Ok(self.fio(&["--ioengine=psync", &target], &job)?.p50_us),
        )?;
        let cold = crate::stats::median(&over);
        self.report.single(
            "cold 8 KiB read, whole path above zero, p50",
            cold,
            "µs",
            Some((250.0, false)),
        )?;
        node.stop()
    }

    /// Whether the store keeps up with a host that never pauses, and what memory that takes.
    fn drain(&self) -> Result<()> {
        let node = Node::start(&self.site, VOLUME, &[])?;
        let job = Job { size: VOLUME_BYTES, seconds: Some(60), ..Job::new("randwrite", "4k", 32) };
        let before = node.committed()?;
        let start = Instant::now();
        let figures = self.nbd("ours.sock", "bench", &job)?;
        let elapsed = start.elapsed().as_secs_f64();
        let drained = (node.committed()? - before) as f64 / elapsed;
        let (host, store) = (node.host.peak_bytes()?, node.store.peak_bytes()?);
        let (host_anon, store_anon) = (node.host.memory_bytes()?, node.store.memory_bytes()?);
        self.report.single(
            "60 s of 4 KiB random writes, depth 32: accepted",
            figures.iops,
            "1/s",
            None,
        )?;
        self.report.single("… drained meanwhile", drained, "1/s", None)?;
        self.report.single(
            "… drained / accepted",
            drained / figures.iops,
            "",
            Some((0.5, true)),
        )?;
        const MIB: f64 = 1048576.0;
        self.report.single(
            "… peak memory of the host",
            host as f64 / MIB,
            "MiB",
            Some((256.0, false)),
        )?;
        self.report.single(
            "… peak memory of the store",
            store as f64 / MIB,
            "MiB",
            Some((256.0, false)),
        )?;
        self.report.single("… anonymous at the end, host", host_anon as f64 / MIB, "MiB", None)?;
        self.report.single(
            "… anonymous at the end, store",
            store_anon as f64 / MIB,
            "MiB",
            None,
        )?;
        self.report.single("… processor, host", node.host.cpu_seconds()?, "s", None)?;
        self.report.single("… processor, store", node.store.cpu_seconds()?, "s", None)?;
        let start = Instant::now();
        node.wait_drained()?;
        self.report.single("… rest drained after", start.elapsed().as_secs_f64(), "s", None)?;
        node.stop()
    }

    /// A full journal read back after a crash.
    fn recovery(&self) -> Result<()> {
        let mut seconds = Vec::new();
        for _ in 0..self.rounds.min(3) {
            let mut node = Node::start(&self.site, VOLUME, &[])?;
            node.pause_store()?;
            // Fills 1 GiB of journal; the writer blocks when it is full and fio's time runs out.
            let uri =
                format!("--uri=nbd+unix:///bench?socket={}", self.path("ours.sock").display());
            let mut fio = Server::start(
                "fio",
                Path::new("fio"),
                &[
                    "--ioengine=nbd",
                    &uri,
                    "--name=fill",
                    "--rw=randwrite",
                    "--bs=4k",
                    "--iodepth=32",
                    "--size=4g",
                    "--time_based",
                    "--runtime=120",
                ],
                &self.path("fill.log"),
            )?;
            let full = Instant::now();
            let mut last = (0, Instant::now());
            fio.wait_until("full journal", || {
                let used = node.journal_bytes().unwrap_or(0);
                if used != last.0 {
                    last = (used, Instant::now());
                }
                used > 0 && last.1.elapsed() > Duration::from_secs(3)
                    || full.elapsed().as_secs() > 55
            })?;
            fio.kill()?;
            let held = node.journal_bytes()?;
            if held < 900 << 20 {
                bail!("the journal holds only {held} bytes: nothing to recover");
            }
            node.resume_store()?;
            seconds.push(node.crash_and_recover(&self.site)?);
        }
        self.report.single(
            "recovery of a full 1 GiB journal",
            crate::stats::median(&seconds),
            "s",
            Some((2.0, false)),
        )
    }
}
