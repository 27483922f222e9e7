//! Runs scenarios: every subject at every point, in turn, over the emulated WAN.
//!
//! A round has all points, a point all subjects, one after the other: what the machine does
//! otherwise meets all of them alike. Each run of a subject has fresh processes. Its data is at the
//! storage side only. The order is A B A B, and the median over the rounds counts.

pub mod admin;
mod bulk;
mod fio;
mod flow;
mod peers;
mod postmark;
mod product;

use crate::html;
use crate::machine;
use crate::process::{finish, output};
use crate::results::{LineFacts, Record, Results, Series, append, csv, load, number, point_json};
use crate::scenario::{Definition, Point, Scenario, Subject, Workload};
use crate::stages::{Reading, Stage, between};
use crate::verdict::verdicts;
use crate::wan::{Side, Wan, WanConfig};
use anyhow::{Context as _, Result, bail, ensure};
use peers::Peer;
use product::Product;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// What `longhaul-lab run` takes.
#[derive(clap::Args)]
pub struct RunArgs {
    /// Scenario files; lab/scenarios has those of docs/laboratory.md.
    #[arg(required = true, value_name = "FILE")]
    scenarios: Vec<PathBuf>,
    /// Rounds, instead of what the scenarios say.
    #[arg(long)]
    rounds: Option<usize>,
    /// Seconds of each measurement, instead of what the scenarios say.
    #[arg(long)]
    seconds: Option<f64>,
    /// Only these subjects, such as `longhaul` or `nbd`; repeat it for several.
    #[arg(long = "subject", value_name = "NAME")]
    subjects: Vec<String>,
    /// Only points with this in their name, as in `delay=8ms`; repeat it for what must all be
    /// there.
    #[arg(long = "point", value_name = "TEXT")]
    points: Vec<String>,
    /// Where results and reports go; it keeps existing results.
    #[arg(long, value_name = "DIR", default_value = "target/lab/results")]
    out: PathBuf,
    /// Where the disks of both sides are while it runs; they need some 10 GiB.
    #[arg(long, value_name = "DIR", default_value = "target/lab/disks")]
    dir: PathBuf,
    /// The binary to measure [default: `longhaul` beside this program].
    #[arg(long, value_name = "FILE")]
    longhaul: Option<PathBuf>,
    /// How often a run that the emulator could not keep up with is repeated.
    #[arg(long, default_value = "1", value_name = "N")]
    retries: usize,
    /// Exit with status 1 if anything that a scenario asserts is missed, or was not measured.
    #[arg(long)]
    assert: bool,
    /// Check the scenarios and say what would be run, and no more.
    #[arg(long)]
    check: bool,
}

/// What `longhaul-lab report` takes.
#[derive(clap::Args)]
pub struct ReportArgs {
    /// Scenario files whose results are there.
    #[arg(required = true, value_name = "FILE")]
    scenarios: Vec<PathBuf>,
    /// Where the results are and the reports go.
    #[arg(long, value_name = "DIR", default_value = "target/lab/results")]
    out: PathBuf,
}

/// The subject of the measurement, and its place.
pub struct Bench<'a> {
    wan: &'a Wan,
    longhaul: &'a Path,
    dir: &'a Path,
    /// Size and fill of the volume that the store's directory has, and whether it is encrypted, if
    /// nothing was written to it since.
    prepared: Option<(u64, u64, bool)>,
}

/// One run of one subject.
struct Run<'a, 'b> {
    bench: &'a Bench<'b>,
    point: &'a Point,
    subject: Subject,
    product: Option<&'a Product>,
    /// An NBD address on the host's side; empty if there is none.
    uri: String,
    /// The disk as a file, where it is one on the host's side.
    file: Option<PathBuf>,
    seed: u64,
    figures: BTreeMap<String, f64>,
    series: Vec<Series>,
    stages: Vec<Stage>,
    report: serde_json::Value,
    invalid: Option<String>,
}

impl Bench<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// A file of this many random bytes.
    fn image(&self, size: u64) -> Result<PathBuf> {
        let path = self.path(&format!("random-{size}"));
        if std::fs::metadata(&path).is_ok_and(|file| file.len() == size) {
            return Ok(path);
        }
        let random = std::fs::File::open("/dev/urandom")?;
        let mut file = std::fs::File::create(&path)?;
        std::io::copy(&mut std::io::Read::take(random, size), &mut file)?;
        file.sync_all()?;
        Ok(path)
    }

    /// A peer's disk as the scenario wants it.
    fn disk(&self, definition: &Definition) -> Result<PathBuf> {
        let path = self.path("peer.raw");
        let _ = std::fs::remove_file(&path);
        let fill = definition.fill();
        let mut file = std::fs::File::create(&path)?;
        if fill > 0 {
            std::io::copy(&mut std::fs::File::open(self.image(fill)?)?, &mut file)?;
        }
        file.set_len(definition.volume.size.0)?;
        file.sync_all()?;
        Ok(path)
    }

    /// Sets the congestion control of TCP on both sides.
    fn set_tcp(&self, name: &str) -> Result<()> {
        // Namespaces may only have by default what anybody may have: allowed for that moment.
        const ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
        let allowed = std::fs::read_to_string(ALLOWED).context("cannot read what TCP may use")?;
        let lacking = !allowed.split_whitespace().any(|other| other == name);
        if lacking {
            std::fs::write(ALLOWED, format!("{} {name}", allowed.trim()))
                .with_context(|| format!("the kernel has no congestion control `{name}`"))?;
        }
        let set = [Side::Host, Side::Store].into_iter().try_for_each(|side| {
            let mut command = self.wan.command(side, Path::new("sysctl"));
            command.args(["-qw", &format!("net.ipv4.tcp_congestion_control={name}")]);
            finish(command).map(drop)
        });
        if lacking {
            std::fs::write(ALLOWED, allowed.trim())?;
        }
        set
    }

    /// Runs one subject at one point.
    fn run(&mut self, point: &Point, subject: Subject, seed: u64) -> Result<Outcome> {
        let definition = &point.definition;
        // Getting ready takes no part in it.
        self.wan.set(&WanConfig { seed, ..definition.wan.clone() });
        let (mut product, mut peer) = (None, None);
        if subject.is_longhaul() {
            let through: &[String] = match subject {
                Subject::LonghaulWriteThrough => &["--write-through".into()],
                _ => &[],
            };
            product = Some(Product::start(self, definition, through)?);
        } else if subject.flow().is_none() && !matches!(definition.workload, Workload::Fair(_)) {
            peer = Some(Peer::start(self, definition, subject)?);
        }
        if definition.workload.writes() {
            self.prepared = None;
        }
        let mut run = Run {
            bench: self,
            point,
            subject,
            product: product.as_ref(),
            uri: match (&product, &peer) {
                (Some(product), _) => product.uri(),
                (None, Some(peer)) => peer.uri.clone(),
                (None, None) => String::new(),
            },
            file: peer.as_ref().and_then(|peer| peer.file.clone()),
            seed,
            figures: BTreeMap::new(),
            series: Vec::new(),
            stages: Vec::new(),
            report: serde_json::Value::Null,
            invalid: None,
        };
        run.workload()?;
        if let Some(product) = &product {
            run.figures.extend(product.costs()?);
        }
        let outcome = Outcome {
            figures: run.figures,
            series: run.series,
            stages: run.stages,
            report: run.report,
            invalid: run.invalid,
        };
        if let Some(product) = product {
            product.stop()?;
        }
        if let Some(peer) = peer {
            peer.stop()?;
        }
        if definition.workload.writes() {
            let _ = std::fs::remove_file(self.path("peer.raw"));
            let _ = std::fs::remove_dir_all(self.path("host"));
            self.settle_disk()?;
        }
        Ok(outcome)
    }
}

/// The result of a run.
struct Outcome {
    figures: BTreeMap<String, f64>,
    series: Vec<Series>,
    stages: Vec<Stage>,
    report: serde_json::Value,
    invalid: Option<String>,
}

impl Run<'_, '_> {
    fn workload(&mut self) -> Result<()> {
        match &self.point.definition.workload {
            Workload::Fio(fio) => match self.subject.flow() {
                Some(tcp) => self.flow(tcp, fio.seconds, fio.ramp.max(1.0)),
                None => self.fio(fio),
            },
            Workload::Drain(drain) => self.drain(drain),
            Workload::Postmark(postmark) => self.postmark(postmark),
            Workload::Beside(beside) => self.beside(beside),
            Workload::Fair(fair) => self.fair(fair),
        }
    }

    /// The WAN as it is at the beginning of this run.
    fn wan(&self) -> WanConfig {
        WanConfig { seed: self.seed, ..self.point.definition.wan.clone() }
    }

    fn readings(&self) -> Result<Vec<Reading>> {
        let Some(product) = self.product else { return Ok(Vec::new()) };
        Ok(vec![product.host_admin().stages()?, product.store_admin().stages()?])
    }

    /// Runs the workload, while the WAN changes as the scenario says; gives the result and when it
    /// began.
    fn measure<T>(&mut self, work: impl FnOnce() -> Result<T>) -> Result<(T, Instant)> {
        let before = self.readings()?;
        let (wan, steps, seed) = (self.bench.wan, &self.point.steps, self.seed);
        let (stop, stopped) = channel::<()>();
        wan.mark();
        let start = Instant::now();
        let result = std::thread::scope(|scope| {
            scope.spawn(move || {
                for (at, config) in steps {
                    let left = (start + *at).saturating_duration_since(Instant::now());
                    if stopped.recv_timeout(left) != Err(RecvTimeoutError::Timeout) {
                        return;
                    }
                    wan.set(&WanConfig { seed, ..config.clone() });
                }
            });
            let result = work();
            drop(stop);
            result
        });
        let report = wan.report();
        // The emulator's lateness says nothing about a subject that does not cross the WAN.
        if !report.valid && self.invalid.is_none() && !self.subject.is_local() {
            self.invalid = Some(
                report.reason.clone().unwrap_or_else(|| "the emulator did not keep up".into()),
            );
        }
        self.report = serde_json::to_value(&report)?;
        let result = result?;
        if !self.point.steps.is_empty() {
            wan.set(&self.wan());
        }
        self.wan_figures();
        let after = self.readings()?;
        let sum =
            |readings: &[Reading]| readings.iter().map(|reading| reading.requests).sum::<f64>();
        let requests = sum(&after) - sum(&before);
        // Of several measurements of a run, the last one's.
        self.stages.clear();
        for (before, after) in before.iter().zip(&after) {
            self.stages.extend(between(before, after, requests));
            for (name, count) in &after.cache {
                let more = count - before.cache.get(name).unwrap_or(&0.0);
                self.figures.insert(format!("cache_{name}_mb"), more / 1e6);
            }
        }
        Ok((result, start))
    }

    /// The emulator's view of the direction of the workload.
    fn wan_figures(&mut self) {
        let uploads = self.point.definition.workload.uploads();
        let direction = &self.report[if uploads { "to_store" } else { "to_host" }];
        let get = |key: &str| direction[key].as_f64().unwrap_or_default();
        let packets = get("packets").max(1.0);
        let figures = [
            ("wan_packets", get("packets")),
            ("wan_mb", get("delivered_bytes") / 1e6),
            ("random_loss", get("lost") / packets),
            ("queue_loss", get("queue_drops") / packets),
        ];
        self.figures.extend(figures.map(|(name, value)| (name.to_owned(), value)));
    }
}

/// Runs the chosen scenarios; the exit status is 1 if a target is missed and that matters.
///
/// # Errors
/// If a scenario makes no sense, or cannot be run.
pub fn run(args: &RunArgs) -> Result<std::process::ExitCode> {
    let mut scenarios =
        args.scenarios.iter().map(|path| Scenario::load(path)).collect::<Result<Vec<_>>>()?;
    for scenario in &mut scenarios {
        narrow(scenario, args)?;
    }
    if args.check {
        for scenario in &scenarios {
            describe(scenario);
        }
        return Ok(std::process::ExitCode::SUCCESS);
    }
    let longhaul = match &args.longhaul {
        Some(path) => path.clone(),
        None => std::env::current_exe()?.with_file_name("longhaul"),
    };
    ensure!(longhaul.exists(), "{} is not there: build it, or give --longhaul", longhaul.display());
    let longhaul = longhaul.canonicalize()?;
    for directory in [&args.out, &args.dir] {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
    }
    let dir = args.dir.canonicalize()?;
    let machine = machine::machine();
    let versions = machine::versions(&longhaul);
    let mut missed = 0;
    for scenario in &scenarios {
        let lab =
            Lab { args, longhaul: &longhaul, dir: &dir, machine: &machine, versions: &versions };
        lab.scenario(scenario).with_context(|| format!("scenario {}", scenario.name))?;
        missed += report_scenario(scenario, &args.out)?;
    }
    html::write(&scenarios, &args.out)?;
    println!("report: {}", args.out.join("report.html").display());
    Ok(if args.assert && missed > 0 { 1.into() } else { std::process::ExitCode::SUCCESS })
}

/// Writes the reports of results that are there.
///
/// # Errors
/// If there are none, or they cannot be read.
pub fn report(args: &ReportArgs) -> Result<std::process::ExitCode> {
    let scenarios =
        args.scenarios.iter().map(|path| Scenario::load(path)).collect::<Result<Vec<_>>>()?;
    for scenario in &scenarios {
        report_scenario(scenario, &args.out)?;
    }
    html::write(&scenarios, &args.out)?;
    println!("report: {}", args.out.join("report.html").display());
    Ok(std::process::ExitCode::SUCCESS)
}

/// Leaves of a scenario what the command line asks for.
fn narrow(scenario: &mut Scenario, args: &RunArgs) -> Result<()> {
    if let Some(rounds) = args.rounds {
        ensure!(rounds >= 1, "--rounds: there has to be one");
        scenario.base.rounds = rounds;
    }
    if !args.subjects.is_empty() {
        for name in &args.subjects {
            ensure!(
                Subject::ALL.iter().any(|s| s.name() == name),
                "--subject: there is no `{name}`"
            );
        }
        scenario
            .base
            .subjects
            .retain(|subject| args.subjects.iter().any(|name| subject.name() == name));
        ensure!(
            !scenario.base.subjects.is_empty(),
            "--subject: {} has none of these",
            scenario.name
        );
    }
    scenario.points.retain(|point| args.points.iter().all(|text| point.label().contains(text)));
    ensure!(!scenario.points.is_empty(), "--point: {} has no such point", scenario.name);
    if let Some(seconds) = args.seconds {
        ensure!(seconds > 0.0, "--seconds: more than none");
        for point in &mut scenario.points {
            match &mut point.definition.workload {
                Workload::Fio(fio) => fio.seconds = seconds,
                Workload::Drain(drain) => drain.seconds = seconds,
                Workload::Beside(beside) => beside.seconds = seconds,
                Workload::Fair(fair) => fair.seconds = seconds.max(fair.ramp + 1.0),
                Workload::Postmark(_) => {}
            }
        }
    }
    Ok(())
}

/// The description of a scenario.
fn describe(scenario: &Scenario) {
    let subjects: Vec<&str> = scenario.base.subjects.iter().map(|subject| subject.name()).collect();
    println!("{}: {}", scenario.name, scenario.base.title);
    println!(
        "  {} rounds of {} points, each by {}",
        scenario.base.rounds,
        scenario.points.len(),
        subjects.join(", ")
    );
    for assert in &scenario.base.asserts {
        println!("  target: {}", assert.name);
    }
}

/// Everything that is the same for all scenarios.
struct Lab<'a> {
    args: &'a RunArgs,
    longhaul: &'a Path,
    dir: &'a Path,
    machine: &'a BTreeMap<String, String>,
    versions: &'a BTreeMap<String, String>,
}

impl Lab<'_> {
    fn scenario(&self, scenario: &Scenario) -> Result<()> {
        let results = self.args.out.join(format!("{}.jsonl", scenario.name));
        // An existing file may be of another program: each time has a file of its own.
        if results.exists() {
            let old = self.args.out.join(format!("{}.{}.jsonl", scenario.name, seconds_now()));
            std::fs::rename(&results, old)?;
        }
        let Some(first) = scenario.points.first() else { bail!("no points") };
        let wan = Wan::start(&first.definition.wan)?;
        let mut bench = Bench { wan: &wan, longhaul: self.longhaul, dir: self.dir, prepared: None };
        bench.set_tcp(scenario.base.tcp.name())?;
        describe(scenario);
        for round in 1..=scenario.base.rounds {
            for point in &scenario.points {
                for &subject in &scenario.base.subjects {
                    for attempt in 0..=self.args.retries {
                        let seed = point.definition.wan.seed + (round + attempt * 1000) as u64;
                        let record = self.record(&mut bench, scenario, point, subject, round, seed);
                        append(&results, &record)?;
                        show(&record, point);
                        if record.valid {
                            break;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn record(
        &self,
        bench: &mut Bench<'_>,
        scenario: &Scenario,
        point: &Point,
        subject: Subject,
        round: usize,
        seed: u64,
    ) -> Record {
        let started = seconds_now();
        let outcome = bench.run(point, subject, seed).unwrap_or_else(|error| {
            bench.prepared = None;
            Outcome {
                figures: BTreeMap::new(),
                series: Vec::new(),
                stages: Vec::new(),
                report: serde_json::Value::Null,
                invalid: Some(format!("failed: {error:#}")),
            }
        });
        Record {
            scenario: scenario.name.clone(),
            started,
            round,
            point: point_json(&point.values),
            subject: subject.name().into(),
            valid: outcome.invalid.is_none(),
            reason: outcome.invalid,
            figures: outcome.figures,
            line: LineFacts::of(point),
            wan: outcome.report,
            stages: outcome.stages,
            series: outcome.series,
            versions: self.versions.clone(),
            machine: self.machine.clone(),
        }
    }
}

fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// A line for a run.
fn show(record: &Record, point: &Point) {
    const SHOWN: [&str; 9] = [
        "p50_ms",
        "p99_ms",
        "p999_ms",
        "mb_per_s",
        "transactions_per_s",
        "p99_ratio",
        "jain",
        "queue_loss",
        "host_memory_mib",
    ];
    let figures: Vec<String> = SHOWN
        .iter()
        .filter_map(|name| Some(format!("{name} {}", number(*record.figures.get(*name)?))))
        .collect();
    let outcome = match &record.reason {
        None => figures.join("  "),
        Some(reason) => format!("INVALID: {reason}  {}", figures.join("  ")),
    };
    println!("  round {}  {}  {}:  {outcome}", record.round, point.label(), record.subject);
}

/// Writes a scenario's CSV and its verdicts; gives the number of missed ones.
fn report_scenario(scenario: &Scenario, out: &Path) -> Result<usize> {
    let records = load(&out.join(format!("{}.jsonl", scenario.name)))?;
    let results = Results { scenario, records: &records };
    std::fs::write(out.join(format!("{}.csv", scenario.name)), csv(results))?;
    let verdicts = verdicts(results);
    for verdict in &verdicts {
        println!(
            "  {}: {} {}{} ({})",
            verdict.word(),
            verdict.name,
            if verdict.point.is_empty() { String::new() } else { format!("[{}] ", verdict.point) },
            verdict.value.map_or("–".into(), number),
            verdict.bound_text(),
        );
    }
    for text in crate::model::text(results) {
        println!("  {text}");
    }
    Ok(verdicts.iter().filter(|verdict| !verdict.met()).count())
}

/// Turns an SVG file into PNG beside it, if `rsvg-convert` is installed.
pub(crate) fn to_png(svg: &Path) -> bool {
    let png = svg.with_extension("png").display().to_string();
    let args = ["--zoom=2", "--output", &png, &svg.display().to_string()];
    output(Path::new("rsvg-convert"), &args).is_ok()
}
