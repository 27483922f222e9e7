//! The benchmarks of the host: longhaul beside its peers, in turn.

use crate::fio::{self, Figures, Job, nbd};
use crate::node::{Node, Shape};
use crate::process::{Server, output};
use crate::report::{Row, Target};
use crate::rounds::Tally;
use crate::suite::Suite;
use anyhow::{Context as _, Result, bail};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Size of the volumes measured on.
const VOLUME: &str = "4GiB";
const VOLUME_BYTES: u64 = 4 << 30;

/// The region that writes go to.
const REGION: u64 = 256 << 20;

const MIB: f64 = 1048576.0;

/// The loads of the write path: fio's pattern, its name, block, depth and unit.
const WRITES: [(&str, &str, &str, u32, &str); 4] = [
    ("randwrite", "random write", "4k", 1, "IOPS"),
    ("randwrite", "random write", "4k", 32, "IOPS"),
    ("write", "sequential write", "64k", 4, "MB/s"),
    ("write", "sequential write", "1m", 4, "MB/s"),
];

/// One way to do the work of a round; gives a figure.
pub struct Way<'a> {
    name: &'a str,
    measure: Box<dyn FnMut() -> Result<f64> + 'a>,
}

impl<'a> Way<'a> {
    /// A way with the name of the program.
    pub fn new(name: &'a str, measure: impl FnMut() -> Result<f64> + 'a) -> Way<'a> {
        Way { name, measure: Box::new(measure) }
    }
}

/// A row about the first way, beside another one.
pub struct Compared {
    /// What was measured.
    pub name: String,
    /// In which unit.
    pub unit: &'static str,
    /// The number of the other way.
    pub with: usize,
    /// Of the ratio.
    pub target: Target,
}

impl Suite {
    /// Seconds of a measurement.
    fn time(&self) -> u32 {
        self.seconds.unwrap_or(4)
    }

    fn job<'a>(&self, rw: &'a str, block: &'a str, depth: u32) -> Job<'a> {
        Job::new(rw, block, depth, self.time())
    }

    /// fio on an export behind a socket.
    fn nbd(&self, socket: &str, export: &str, job: &Job<'_>) -> Result<Figures> {
        fio::run(&self.site, &[nbd(&self.site, socket, export)], job)
    }

    /// fio on a file.
    fn file(&self, file: &Path, engine: &[&str], job: &Job<'_>) -> Result<Figures> {
        let mut target = vec![format!("--filename={}", file.display())];
        target.extend(engine.iter().map(|&arg| arg.to_owned()));
        fio::run(&self.site, &[target], job)
    }

    /// A file of the volumes' size whose first `bytes` were written once: the file system has
    /// nothing left to allocate or convert there.
    fn written_file(&self, name: &str, bytes: u64) -> Result<PathBuf> {
        let path = self.site.path(name);
        let (to, count) = (format!("of={}", path.display()), format!("count={}", bytes >> 20));
        let args = ["if=/dev/zero", &to, "bs=1M", &count, "conv=fsync", "status=none"];
        output(Path::new("dd"), &args)?;
        std::fs::OpenOptions::new().write(true).open(&path)?.set_len(VOLUME_BYTES)?;
        Ok(path)
    }

    fn qemu_nbd(&self, socket: &str, file: &Path, more: &[&str]) -> Result<Server> {
        let path = self.site.path(socket);
        let (path, file) = (path.display().to_string(), file.display().to_string());
        let args = [&["-t", "-e", "32", "-f", "raw", "-k", &path], more, &[&file]].concat();
        self.site.serve(Path::new("qemu-nbd"), socket, &args)
    }

    /// Bytes that a round may write: the store's data are in memory, and what the store collects
    /// stays there for minutes.
    pub fn round_bytes(&self) -> Result<u64> {
        const MOST: u64 = 512 << 20;
        let times = (self.rounds.wanted * (1 + self.rounds.retries)).max(1) as u64;
        Ok((self.memory()?.bytes() / times / 5 * 4).min(MOST))
    }

    /// Does the work in all ways in turn, and reports the first one beside others.
    pub fn turns(&self, ways: &mut [Way<'_>], compared: &[Compared]) -> Result<()> {
        let (rounds, tally) = self
            .rounds
            .all(|| ways.iter_mut().map(|way| (way.measure)()).collect::<Result<Vec<f64>>>())?;
        let values = |way: usize| rounds.iter().map(|round| round[way]).collect();
        for row in compared {
            self.report.row(Row {
                name: row.name.clone(),
                unit: row.unit.into(),
                ours: values(0),
                peer: Some((ways[row.with].name.into(), values(row.with))),
                target: row.target,
                tally: tally.clone(),
            })?;
        }
        Ok(())
    }

    /// Does the work in two ways in turn.
    pub fn pair(
        &self,
        name: &str,
        unit: &'static str,
        target: Target,
        ours: Way<'_>,
        theirs: Way<'_>,
    ) -> Result<()> {
        let compared = Compared { name: name.into(), unit, with: 1, target };
        self.turns(&mut [ours, theirs], &[compared])
    }

    /// The empty host loop: session and engine, with journal and store answering at once.
    pub fn null(&self) -> Result<()> {
        let address = format!("unix:{}", self.site.path("ours.sock").display());
        let ours = self.site.serve(
            &self.site.longhaul,
            "ours.sock",
            &["bench-null", "--nbd", &address],
        )?;
        let socket = self.site.path("nbdkit.sock").display().to_string();
        let args = ["-U", &socket, "-f", "memory", "4G"];
        let nbdkit = self.site.serve(Path::new("nbdkit"), "nbdkit.sock", &args)?;
        let size = VOLUME_BYTES.to_string();
        let socket = self.site.path("qsd.sock").display().to_string();
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
                let job = Job { size: REGION, ..self.job(rw, "4k", depth) };
                let iops = |socket, export| Ok(self.nbd(socket, export, &job)?.iops);
                let compared = |with| Compared {
                    name: format!("empty loop, 4 KiB {kind}, depth {depth}"),
                    unit: "IOPS",
                    with,
                    target: Some((1.0, true)),
                };
                self.turns(
                    &mut [
                        Way::new("longhaul", || iops("ours.sock", "null")),
                        Way::new("nbdkit memory", || iops("nbdkit.sock", "")),
                        Way::new("qemu-storage-daemon null", || iops("qsd.sock", "null")),
                    ],
                    &[compared(1), compared(2)],
                )?;
            }
        }
        ours.stop()?;
        nbdkit.stop()?;
        qsd.stop()
    }

    /// The empty host loop beside that of an earlier `longhaul`: requests in a second, and the
    /// server's processor time for each request.
    pub fn before(&self) -> Result<()> {
        let before = self.before.as_deref().context("give the earlier binary: --before FILE")?;
        let serve = |program: &Path, socket: &str| {
            let address = format!("unix:{}", self.site.path(socket).display());
            self.site.serve(program, socket, &["bench-null", "--nbd", &address])
        };
        let now = serve(&self.site.longhaul, "ours.sock")?;
        let earlier = serve(before, "before.sock")?;
        for (rw, kind) in [("randwrite", "write"), ("randread", "read")] {
            for depth in [1, 32] {
                let job = Job { size: REGION, ..self.job(rw, "4k", depth) };
                let measure = |server: &Server, socket: &str| {
                    let start = server.cpu_seconds()?;
                    let figures = self.nbd(socket, "null", &job)?;
                    let cost = (server.cpu_seconds()? - start) * 1e6 / figures.requests.max(1.0);
                    Ok::<_, anyhow::Error>([figures.iops, cost])
                };
                let (rounds, tally) = self
                    .rounds
                    .all(|| Ok([measure(&now, "ours.sock")?, measure(&earlier, "before.sock")?]))?;
                let name = format!("empty loop, 4 KiB {kind}, depth {depth}");
                for (figure, name, unit, more) in [
                    (0, name.clone(), "IOPS", true),
                    (1, format!("{name}, processor time of a request"), "µs", false),
                ] {
                    let values = |way: usize| rounds.iter().map(|r| r[way][figure]).collect();
                    self.report.row(Row {
                        name,
                        unit: unit.into(),
                        ours: values(0),
                        peer: Some(("before".into(), values(1))),
                        target: Some((1.0, more)),
                        tally: tally.clone(),
                    })?;
                }
            }
        }
        now.stop()?;
        earlier.stop()
    }

    /// The whole host, with its journal on the disk and the store's data in memory.
    pub fn host(&self) -> Result<()> {
        let memory = self.memory()?;
        let files = ["peer.raw", "uncached.raw", "direct.raw"];
        let [cached, uncached, direct] = files.map(|name| self.written_file(name, REGION));
        let direct = direct?;
        let cached = self.qemu_nbd("cached.sock", &cached?, &[])?;
        let uncached = self.qemu_nbd("uncached.sock", &uncached?, &["--cache=none"])?;
        for (rw, kind, block, depth, unit) in WRITES {
            let most = Some(self.round_bytes()?);
            let job = Job { size: REGION, most, ..self.job(rw, block, depth) };
            let value = |figures: Figures| {
                if unit == "IOPS" { figures.iops } else { figures.bytes_per_second / 1e6 }
            };
            let node = Node::start(&self.site, &Shape::new(VOLUME).with_data(memory.path()))?;
            let peer = |socket: &'static str| {
                move || {
                    let figures = self.nbd(socket, "", &job)?;
                    output(Path::new("sync"), &[])?;
                    Ok(value(figures))
                }
            };
            let mut ways = vec![
                Way::new("longhaul", || {
                    let figures = self.nbd("ours.sock", "bench", &job)?;
                    node.wait_drained()?;
                    memory.check()?;
                    Ok(value(figures))
                }),
                Way::new("qemu-nbd, default cache", peer("cached.sock")),
            ];
            let row = |with, target| Compared {
                name: format!("host, {block} {kind}, depth {depth}"),
                unit,
                with,
                target,
            };
            if depth != 4 {
                let bound = if depth == 1 { 1.2 } else { 1.5 };
                self.turns(&mut ways, &[row(1, Some((bound, true)))])?;
            } else {
                ways.push(Way::new("qemu-nbd --cache=none", peer("uncached.sock")));
                ways.push(Way::new("fio --direct=1 on the disk", || {
                    Ok(value(self.file(&direct, &["--ioengine=libaio", "--direct=1"], &job)?))
                }));
                let rows = [row(2, Some((1.0, true))), row(3, Some((0.5, true))), row(1, None)];
                self.turns(&mut ways, &rows)?;
            }
            drop(ways);
            node.stop()?;
        }
        uncached.stop()?;
        // 128 MiB that both have just written: still in our journal, in the peer's page cache.
        let node = Node::start(&self.site, &Shape::new(VOLUME).with_data(memory.path()))?;
        let fill = Job { size: REGION / 2, most: Some(REGION / 2), ..self.job("write", "1m", 4) };
        self.nbd("ours.sock", "bench", &fill)?;
        node.wait_drained()?;
        self.nbd("cached.sock", "", &fill)?;
        output(Path::new("sync"), &[])?;
        for depth in [1, 32] {
            let job = Job { size: REGION / 2, ..self.job("randread", "4k", depth) };
            self.pair(
                &format!("host, 4k random read of fresh data, depth {depth}"),
                "IOPS",
                Some((1.0, true)),
                Way::new("longhaul", || Ok(self.nbd("ours.sock", "bench", &job)?.iops)),
                Way::new("qemu-nbd, default cache", || Ok(self.nbd("cached.sock", "", &job)?.iops)),
            )?;
        }
        cached.stop()?;
        node.stop()
    }

    /// The cost of a flush beside the disk's own.
    pub fn flush(&self) -> Result<()> {
        let memory = self.memory()?;
        let node = Node::start(&self.site, &Shape::new(VOLUME).with_data(memory.path()))?;
        let file = self.written_file("flush.raw", REGION)?;
        let raw = Job { size: REGION, ..self.job("write", "8k", 1) };
        let most = Some(self.round_bytes()?);
        let ours = Job { fsync: true, size: REGION, most, ..self.job("randwrite", "4k", 1) };
        self.pair(
            "4 KiB write and flush, one at a time, latency of the flush (p50)",
            "µs",
            Some((1.15, false)),
            Way::new("longhaul", || Ok(self.nbd("ours.sock", "bench", &ours)?.sync_p50_us)),
            Way::new("fdatasync of 8 KiB on a preallocated file", || {
                Ok(self.file(&file, &["--ioengine=psync", "--fdatasync=1"], &raw)?.sync_p50_us)
            }),
        )?;
        let many = Job { jobs: 16, most: most.map(|most| most / 16), ..ours };
        let flushes = |job| Ok(self.nbd("ours.sock", "bench", job)?.syncs_per_second);
        self.pair(
            "16 concurrent flushers, flushes a second",
            "1/s",
            Some((8.0, true)),
            Way::new("longhaul", || flushes(&many)),
            Way::new("one flusher", || flushes(&ours)),
        )?;
        node.stop()
    }

    /// A read that only the store can answer.
    pub fn cold(&self) -> Result<()> {
        let node = Node::start(&self.site, &Shape::new(VOLUME))?;
        const FILL: u64 = 1 << 30;
        let fill = Job { most: Some(FILL), ..Job::new("write", "1m", 4, 60) };
        self.nbd("ours.sock", "bench", &fill)?;
        node.wait_drained()?;
        let node = node.with_fresh_host(&self.site)?;
        let objects = self.written_file("objects.raw", FILL)?;
        let job = self.job("randread", "8k", 1);
        let (rounds, tally) = self.rounds.all(|| {
            let ours = self.nbd("ours.sock", "bench", &job)?.p50_us;
            Ok((ours, self.file(&objects, &["--ioengine=psync"], &job)?.p50_us))
        })?;
        let (ours, theirs): (Vec<f64>, Vec<f64>) = rounds.into_iter().unzip();
        self.report.row(Row {
            name: "cold 8 KiB read, one outstanding, p50".into(),
            unit: "µs".into(),
            ours: ours.clone(),
            peer: Some(("pread of 8 KiB from a file in the page cache".into(), theirs)),
            target: None,
            tally: tally.clone(),
        })?;
        let name = "cold 8 KiB read, whole path above zero, p50";
        self.report.single(name, &ours, "µs", Some((250.0, false)), &tally)?;
        node.stop()
    }

    /// Whether the store keeps up with a host that never pauses, and what memory that takes.
    pub fn drain(&self) -> Result<()> {
        const SECONDS: u32 = 60;
        let job = Job { size: VOLUME_BYTES, ..Job::new("randwrite", "4k", 32, SECONDS) };
        let mut tally = Tally::default();
        let found = self.rounds.few().round(&mut tally, || {
            let node = Node::start(&self.site, &Shape::new(VOLUME))?;
            let before = node.committed()?;
            let start = Instant::now();
            let figures = self.nbd("ours.sock", "bench", &job)?;
            let elapsed = start.elapsed().as_secs_f64();
            let drained = (node.committed()? - before) as f64 / elapsed;
            let peaks = [node.host.peak_bytes()?, node.store.peak_bytes()?];
            let ends = [node.host.memory_bytes()?, node.store.memory_bytes()?];
            let processor = [node.host.cpu_seconds()?, node.store.cpu_seconds()?];
            let start = Instant::now();
            node.wait_drained()?;
            let rest = start.elapsed().as_secs_f64();
            node.stop()?;
            let mib = |bytes: [u64; 2]| bytes.map(|bytes| bytes as f64 / MIB);
            Ok((figures.iops, drained, mib(peaks), mib(ends), processor, rest))
        })?;
        let (iops, drained, peaks, ends, processor, rest) = found.unwrap_or_default();
        let limit = Some((256.0, false));
        for (name, value, unit, target) in [
            ("60 s of 4 KiB random writes, depth 32: accepted", iops, "1/s", None),
            ("… drained meanwhile", drained, "1/s", None),
            ("… drained / accepted", drained / iops, "", Some((0.5, true))),
            ("… peak memory of the host", peaks[0], "MiB", limit),
            ("… peak memory of the store", peaks[1], "MiB", limit),
            ("… anonymous at the end, host", ends[0], "MiB", None),
            ("… anonymous at the end, store", ends[1], "MiB", None),
            ("… processor, host", processor[0], "s", None),
            ("… processor, store", processor[1], "s", None),
            ("… rest drained after", rest, "s", None),
        ] {
            self.report.single(name, &[value], unit, target, &tally)?;
        }
        Ok(())
    }

    /// A full journal read back after a crash.
    pub fn recovery(&self) -> Result<()> {
        let (seconds, tally) = self.rounds.few().all(|| self.recovered())?;
        let target = Some((2.0, false));
        self.report.single("recovery of a full 1 GiB journal", &seconds, "s", target, &tally)
    }

    /// Seconds until the volume is back.
    fn recovered(&self) -> Result<f64> {
        let mut node = Node::start(&self.site, &Shape::new(VOLUME))?;
        node.pause_store()?;
        // Fills 1 GiB of journal; the writer blocks when it is full and fio's time runs out.
        let target = nbd(&self.site, "ours.sock", "bench");
        let load = ["--name=fill", "--rw=randwrite", "--bs=4k", "--iodepth=32", "--size=4g"];
        let mut args: Vec<&str> = target.iter().map(String::as_str).collect();
        args.extend(load);
        args.extend(["--time_based", "--runtime=120"]);
        let log = self.site.path("fill.log");
        let mut fio = Server::start("fio", Path::new("fio"), &args, &log)?;
        let full = Instant::now();
        let mut last = (0, Instant::now());
        fio.wait_until("full journal", || {
            let used = node.journal_bytes().unwrap_or(0);
            if used != last.0 {
                last = (used, Instant::now());
            }
            used > 0 && last.1.elapsed() > Duration::from_secs(3) || full.elapsed().as_secs() > 55
        })?;
        fio.kill()?;
        let held = node.journal_bytes()?;
        if held < 900 << 20 {
            bail!("the journal holds only {held} bytes: nothing to recover");
        }
        node.resume_store()?;
        node.crash_and_recover(&self.site)
    }
}
