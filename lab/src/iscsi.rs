//! The iSCSI target beside tgt, in turn, over loopback.

use crate::initiator::set_write_cache;
use crate::memory::Memory;
use crate::node::{Node, Shape, Site, free_port};
use crate::process::{Server, output};
use crate::report::{Report, Row, Target};
use crate::rounds::{Rounds, Tally};
use crate::suite::Suite;
use anyhow::{Context as _, Result};
use std::path::Path;
use std::time::Duration;

/// Size of the units: small enough that old writes are still in our journal and in the peer's page
/// cache.
const VOLUME: &str = "512MiB";
const VOLUME_BYTES: u64 = 512 << 20;

/// How our targets' names begin.
const PREFIX: &str = "iqn.2026-11.io.longhaul:";

/// tgt's target.
const PEER: &str = "iqn.2026-11.com.example:tgt";

/// No measurement takes so long.
const TOOL_SECONDS: &str = "60";

/// Blocks from one request to the next where they are to look random: an odd number meets every
/// block before the first one again.
const STRIDE: u64 = 10_007;

/// The initiator's program.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tool {
    /// `qemu-img bench`.
    Qemu,
    /// `iscsi-perf`, which only reads.
    Perf,
}

/// A request of an initiator.
#[derive(Clone, Copy)]
struct Load {
    tool: Tool,
    write: bool,
    random: bool,
    /// Bytes of a request.
    block: u64,
    depth: u32,
}

impl Load {
    const fn qemu(write: bool, random: bool, block: u64, depth: u32) -> Load {
        Load { tool: Tool::Qemu, write, random, block, depth }
    }

    const fn perf(depth: u32) -> Load {
        Load { tool: Tool::Perf, write: false, random: true, block: 4096, depth }
    }

    fn name(&self) -> String {
        format!(
            "{} KiB {} {}, depth {}{}",
            self.block >> 10,
            if self.random { "random" } else { "sequential" },
            if self.write { "write" } else { "read" },
            self.depth,
            if self.tool == Tool::Perf { ", iscsi-perf" } else { "" }
        )
    }

    /// The target of the ratio for reads and for units that do nothing.
    fn target(&self) -> Target {
        match self.depth {
            1 => Some((1.1, true)),
            32 => Some((1.3, true)),
            _ => None,
        }
    }
}

const READS: [Load; 8] = [
    Load::qemu(false, true, 4096, 1),
    Load::qemu(false, true, 4096, 32),
    Load::perf(1),
    Load::perf(32),
    Load::qemu(false, false, 64 << 10, 1),
    Load::qemu(false, false, 64 << 10, 32),
    Load::qemu(false, false, 256 << 10, 1),
    Load::qemu(false, false, 256 << 10, 32),
];

const WRITES: [Load; 6] = [
    Load::qemu(true, true, 4096, 1),
    Load::qemu(true, true, 4096, 32),
    Load::qemu(true, false, 64 << 10, 1),
    Load::qemu(true, false, 64 << 10, 32),
    Load::qemu(true, false, 256 << 10, 1),
    Load::qemu(true, false, 256 << 10, 32),
];

/// A unit with the processes that serve it.
struct Unit<'a> {
    url: String,
    servers: Vec<&'a Server>,
    /// Does all work that a load has left behind.
    settle: Box<dyn Fn() -> Result<()> + 'a>,
}

/// One measurement.
struct Sample {
    /// Requests a second.
    rate: f64,
    /// Processor seconds of a request, by server.
    cpu: Vec<f64>,
}

impl Unit<'_> {
    fn new<'a>(url: String, servers: Vec<&'a Server>) -> Unit<'a> {
        Unit { url, servers, settle: Box::new(|| Ok(())) }
    }

    /// Processor time of its servers, in seconds.
    fn cpu(&self) -> Result<Vec<f64>> {
        self.servers.iter().map(|server| server.cpu_seconds()).collect()
    }

    /// Runs a load for about so many seconds, at about `pace` requests a second. It writes no more
    /// than `most` bytes.
    fn measure(&self, load: &Load, seconds: f64, pace: f64, most: u64) -> Result<Sample> {
        let before = self.cpu()?;
        let (requests, rate) = match load.tool {
            Tool::Perf => perf(&self.url, load, seconds)?,
            Tool::Qemu if load.write => {
                qemu(&self.url, load, (pace * seconds).min((most / load.block) as f64))?
            }
            Tool::Qemu => qemu(&self.url, load, pace * seconds)?,
        };
        if load.write {
            (self.settle)()?;
        }
        let after = self.cpu()?;
        let cpu = before.iter().zip(&after).map(|(before, after)| (after - before) / requests);
        Ok(Sample { rate, cpu: cpu.collect() })
    }
}

/// Runs a program of the initiator, which may hang: `iscsi-perf` did, once, at depth 1 with a busy
/// tgtd. The benchmark then ends it and runs it again.
fn initiator(program: &str, args: &[&str]) -> Result<String> {
    let limit = ["-k", "5", TOOL_SECONDS, program];
    let args = [&limit[..], args].concat();
    let mut tries = 0;
    loop {
        match output(Path::new("timeout"), &args) {
            Err(error) if tries < 2 => eprintln!("once more: {error:#}"),
            outcome => return outcome,
        }
        tries += 1;
    }
}

/// `qemu-img bench` with so many requests; gives how many there were, and how many a second.
fn qemu(url: &str, load: &Load, requests: f64) -> Result<(f64, f64)> {
    let requests = requests.clamp(50.0, 1e8).round();
    let step = if load.random { load.block * STRIDE } else { load.block };
    let mut args: Vec<String> = ["bench", "-f", "raw", "-t", "writeback"].map(str::to_owned).into();
    for (option, value) in
        [("-c", requests as u64), ("-d", load.depth.into()), ("-s", load.block), ("-S", step)]
    {
        args.extend([option.to_owned(), value.to_string()]);
    }
    if load.write {
        args.extend(["-w", "--pattern=77"].map(str::to_owned));
    }
    args.push(url.to_owned());
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let text = initiator("qemu-img", &args)?;
    let seconds = text.split("completed in").nth(1).and_then(|rest| rest.split_whitespace().next());
    let seconds: f64 = seconds.context("qemu-img printed no time")?.parse()?;
    Ok((requests, requests / seconds.max(1e-3)))
}

/// `iscsi-perf` for whole seconds; gives how many requests there were, and how many a second.
fn perf(url: &str, load: &Load, seconds: f64) -> Result<(f64, f64)> {
    let seconds = seconds.ceil().max(1.0);
    let (depth, blocks) = (load.depth.to_string(), (load.block / 512).to_string());
    let time = seconds.to_string();
    let args = ["-m", &depth, "-b", &blocks, "-t", &time, "-r", url];
    let text = initiator("iscsi-perf", &args)?;
    // Progress comes on one line, overwritten; the last average is that of the whole run.
    let average = text.rsplit("iops average").next();
    let rate = average.and_then(|rest| rest.split_whitespace().next());
    let rate: f64 = rate.context("iscsi-perf printed no average")?.parse()?;
    Ok((rate * seconds, rate))
}

/// tgt with its default settings and three units. They are a file, one that does nothing, and a
/// file with O_SYNC. There a write is durable before its answer, as ours is.
struct Tgt {
    server: Server,
    portal: String,
}

impl Tgt {
    fn start(site: &Site) -> Result<Tgt> {
        let disk = site.path("peer.raw");
        fill(&disk)?;
        let portal = format!("127.0.0.1:{}", free_port(false)?);
        // Its own control socket and number, so that it leaves another tgt alone.
        let socket = format!("TGT_IPC_SOCKET={}", site.path("tgt").display());
        let control = (free_port(false)? % 30_000).to_string();
        let listen = format!("portal={portal}");
        let args = [&socket, "tgtd", "-f", "-C", &control, "--iscsi", &listen];
        let mut server = Server::start("tgtd", Path::new("env"), &args, &site.path("tgtd.log"))?;
        server.wait_until("portal", || std::net::TcpStream::connect(&portal).is_ok())?;
        let synced = site.path("synced.raw");
        fill(&synced)?;
        let (disk, synced) = (disk.display().to_string(), synced.display().to_string());
        let target = ["--mode", "target", "--tid", "1", "--op"];
        let unit = ["--mode", "logicalunit", "--tid", "1", "--op", "new", "--lun"];
        for (which, what) in [
            (&target[..], &["new", "--targetname", PEER][..]),
            (&unit[..], &["1", "--backing-store", &disk][..]),
            (&unit[..], &["2", "--bstype", "null", "--backing-store", &disk][..]),
            (&unit[..], &["3", "--bsoflags", "sync", "--backing-store", &synced][..]),
            (&target[..], &["bind", "--initiator-address", "ALL"][..]),
        ] {
            let with = [&socket, "tgtadm", "-C", &control, "--lld", "iscsi"];
            output(Path::new("env"), &[&with[..], which, what].concat())?;
        }
        Ok(Tgt { server, portal })
    }

    fn unit(&self, lun: u8) -> Unit<'_> {
        Unit::new(format!("iscsi://{}/{PEER}/{lun}", self.portal), vec![&self.server])
    }
}

/// A file with data in every block.
fn fill(path: &Path) -> Result<()> {
    let (to, count) = (format!("of={}", path.display()), format!("count={}", VOLUME_BYTES >> 20));
    let args = ["if=/dev/urandom", &to, "bs=1M", &count, "conv=fsync", "status=none"];
    output(Path::new("dd"), &args).map(drop)
}

/// A way to do the work.
struct Way<'a> {
    name: &'a str,
    unit: &'a Unit<'a>,
    /// Preparation before the measurement.
    before: &'a dyn Fn() -> Result<()>,
}

/// No preparation.
fn nothing() -> Result<()> {
    Ok(())
}

struct Bench<'a> {
    site: &'a Site,
    rounds: Rounds,
    seconds: f64,
    report: &'a Report,
    suite: &'a Suite,
}

impl<'a> Bench<'a> {
    fn new(suite: &'a Suite) -> Bench<'a> {
        let seconds = suite.seconds.unwrap_or(1).into();
        Bench { site: &suite.site, rounds: suite.rounds, seconds, report: &suite.report, suite }
    }
}

/// Runs a benchmark beside a tgt of its own.
fn beside_tgt(suite: &Suite, run: impl FnOnce(&Bench<'_>, &Tgt) -> Result<()>) -> Result<()> {
    let bench = Bench::new(suite);
    let tgt = Tgt::start(bench.site)?;
    run(&bench, &tgt)?;
    // It has nothing to save, and after SIGTERM it waits for ever for its initiators.
    tgt.server.kill()
}

/// The cost of the protocol by itself.
pub fn empty(suite: &Suite) -> Result<()> {
    beside_tgt(suite, |bench, tgt| bench.empty(tgt))
}

/// Reads of the whole host.
pub fn read(suite: &Suite) -> Result<()> {
    beside_tgt(suite, |bench, tgt| bench.reads(tgt))
}

/// Writes of the whole host.
pub fn write(suite: &Suite) -> Result<()> {
    beside_tgt(suite, |bench, tgt| bench.writes(tgt))
}

/// tgt answers from the page cache. Its dirty pages must not disturb the next measurement.
fn settled(unit: Unit<'_>) -> Unit<'_> {
    Unit { settle: Box::new(|| output(Path::new("sync"), &[]).map(drop)), ..unit }
}

/// The whole host, with its journal on the disk and the store's data in memory.
struct Host<'a> {
    node: Node,
    memory: &'a Memory,
    portal: String,
    target: String,
}

impl<'a> Host<'a> {
    fn start(bench: &Bench<'a>) -> Result<Host<'a>> {
        let portal = format!("127.0.0.1:{}", free_port(false)?);
        let memory = bench.suite.memory()?;
        let host = ["--iscsi", &portal];
        let shape = Shape { host: &host, ..Shape::new(VOLUME).with_data(memory.path()) };
        let node = Node::start(bench.site, &shape)?;
        Ok(Host { node, memory, portal, target: format!("{PREFIX}bench") })
    }

    fn unit(&self) -> Unit<'_> {
        let url = format!("iscsi://{}/{}/0", self.portal, self.target);
        let settle = || {
            self.node.wait_drained()?;
            self.memory.check()
        };
        Unit { settle: Box::new(settle), ..Unit::new(url, vec![&self.node.host, &self.node.store]) }
    }
}

impl Bench<'_> {
    /// The cost of the protocol by itself: units that do nothing.
    fn empty(&self, tgt: &Tgt) -> Result<()> {
        let portal = format!("127.0.0.1:{}", free_port(false)?);
        let nbd = format!("unix:{}", self.site.path("ours.sock").display());
        let args = ["bench-null", "--nbd", &nbd, "--iscsi", &portal, "--size", VOLUME];
        let server = self.site.serve(&self.site.longhaul, "ours.sock", &args)?;
        let ours = Unit::new(format!("iscsi://{portal}/{PREFIX}null/0"), vec![&server]);
        let theirs = tgt.unit(2);
        let ways = [
            Way { name: "longhaul", unit: &ours, before: &nothing },
            Way { name: "tgt, null store", unit: &theirs, before: &nothing },
        ];
        for (write, depth) in [(false, 1), (false, 32), (true, 1), (true, 32)] {
            let load = Load::qemu(write, true, 4096, depth);
            self.compare(&load, &ways, &[("empty", 0, 1, load.target())])?;
        }
        drop(ours);
        server.stop()
    }

    /// Reads of the whole host, of data that both have just written.
    fn reads(&self, tgt: &Tgt) -> Result<()> {
        let host = Host::start(self)?;
        let (ours, theirs) = (host.unit(), settled(tgt.unit(1)));
        let fill = Load::qemu(true, false, 1 << 20, 4);
        qemu(&ours.url, &fill, (VOLUME_BYTES >> 20) as f64)?;
        (ours.settle)()?;
        let ways = [
            Way { name: "longhaul", unit: &ours, before: &nothing },
            Way { name: "tgt, file", unit: &theirs, before: &nothing },
        ];
        for load in READS {
            self.compare(&load, &ways, &[("host", 0, 1, load.target())])?;
        }
        drop(ours);
        host.node.stop()
    }

    /// Writes to the whole host. Each load has a new store, because garbage stays for minutes.
    fn writes(&self, tgt: &Tgt) -> Result<()> {
        let (file, synced) = (settled(tgt.unit(1)), settled(tgt.unit(3)));
        for load in WRITES {
            let host = Host::start(self)?;
            let ours = host.unit();
            let on = || set_write_cache(&host.portal, &host.target, true);
            let off = || set_write_cache(&host.portal, &host.target, false);
            let ways = [
                Way { name: "longhaul", unit: &ours, before: &off },
                Way { name: "tgt, file", unit: &file, before: &nothing },
                Way { name: "longhaul, write cache on", unit: &ours, before: &on },
                Way { name: "tgt, file with O_SYNC", unit: &synced, before: &nothing },
            ];
            let pairs = [
                ("host, default (WCE=0)", 0, 3, Some((1.3, true))),
                ("host, write cache on (WCE=1)", 2, 1, Some((1.1, true))),
            ];
            self.compare(&load, &ways, &pairs)?;
            drop(ours);
            host.node.stop()?;
        }
        Ok(())
    }

    /// Measures the ways in turn and reports each pair.
    fn compare(
        &self,
        load: &Load,
        ways: &[Way<'_>],
        pairs: &[(&str, usize, usize, Target)],
    ) -> Result<()> {
        // Finds out how fast each is, so that a measurement takes the time it is to take.
        // Ours writes in two ways.
        let most = self.suite.round_bytes()? / 2;
        let mut paces = Vec::new();
        for way in ways {
            (way.before)()?;
            let first = way.unit.measure(load, 0.5, 200.0, most)?;
            paces.push(way.unit.measure(load, 0.2, first.rate, most / 4)?.rate);
        }
        let (rounds, tally) = self.rounds.all(|| {
            let mut round = Vec::new();
            for (way, pace) in ways.iter().zip(&mut paces) {
                (way.before)()?;
                // Not straight after other work that the disk still settles.
                std::thread::sleep(Duration::from_millis(50));
                let sample = way.unit.measure(load, self.seconds, *pace, most)?;
                *pace = sample.rate;
                round.push(sample);
            }
            Ok(round)
        })?;
        for (name, ours, theirs, target) in pairs {
            let comparison = Comparison {
                name: format!("{name}, {}", load.name()),
                peer: ways[*theirs].name,
                target: *target,
                rounds: rounds.iter().map(|round| (&round[*ours], &round[*theirs])).collect(),
                tally: &tally,
            };
            self.rows(load, &comparison)?;
        }
        Ok(())
    }

    /// The rows of one comparison.
    fn rows(&self, load: &Load, compared: &Comparison<'_>) -> Result<()> {
        let row = |name: &str,
                   unit: &str,
                   target: Target,
                   ours: &dyn Fn(&Sample) -> f64,
                   theirs: &dyn Fn(&Sample) -> f64| {
            let theirs = compared.rounds.iter().map(|(_, sample)| theirs(sample)).collect();
            self.report.row(Row {
                name: name.to_owned(),
                unit: unit.to_owned(),
                ours: compared.rounds.iter().map(|(sample, _)| ours(sample)).collect(),
                peer: Some((compared.peer.to_owned(), theirs)),
                target,
                tally: compared.tally.clone(),
            })
        };
        let (unit, factor) =
            if load.block <= 4096 { ("IOPS", 1.0) } else { ("MB/s", load.block as f64 / 1e6) };
        let rate = |sample: &Sample| sample.rate * factor;
        row(&compared.name, unit, compared.target, &rate, &rate)?;
        let all = |sample: &Sample| sample.cpu.iter().sum::<f64>() * 1e6;
        if compared.rounds.iter().any(|(ours, _)| ours.cpu.len() > 1) {
            row("… processor time of a request, host and store", "µs", None, &all, &all)?;
        }
        let host = |sample: &Sample| sample.cpu[0] * 1e6;
        row("… processor time of a request, host", "µs", None, &host, &all)
    }
}

/// Ours and theirs by round.
struct Comparison<'a> {
    name: String,
    peer: &'a str,
    target: Target,
    rounds: Vec<(&'a Sample, &'a Sample)>,
    tally: &'a Tally,
}
