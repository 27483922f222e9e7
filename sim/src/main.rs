//! Runs seeds. A world has one thread, and this program runs several worlds at a time.

use longhaul_sim::trace::Mode;
use longhaul_sim::{fleet, world};
use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

const USAGE: &str = "usage: longhaul-sim [--seed N [--trace]] [--seeds N [--from M]] [--steps N] [--threads N] [--keep-going] [--fleet]

  --seed N      run one seed
  --trace       print every event of it to standard error
  --seeds N     run N seeds (default 1000)
  --from M      the first of them (default 0)
  --steps N     give up on a seed after this many events (default 2000000)
  --threads N   worlds to run at a time (default: all cores)
  --keep-going  run all seeds although one has failed, and list all that fail
  --fleet       the world of several stores over one location, in place of that of hosts and volumes

Exit status: 0 if the contract held, 1 if not, 2 for a usage error.";

struct Options {
    seed: Option<u64>,
    seeds: u64,
    from: u64,
    steps: u64,
    threads: usize,
    trace: bool,
    keep_going: bool,
    fleet: bool,
}

fn options(mut arguments: impl Iterator<Item = String>) -> Option<Options> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut options = Options {
        seed: None,
        seeds: 1000,
        from: 0,
        steps: 2_000_000,
        threads: cores,
        trace: false,
        keep_going: false,
        fleet: false,
    };
    while let Some(argument) = arguments.next() {
        let mut number = || arguments.next()?.parse::<u64>().ok();
        match argument.as_str() {
            "--seed" => options.seed = Some(number()?),
            "--seeds" => options.seeds = number()?,
            "--from" => options.from = number()?,
            "--steps" => options.steps = number()?,
            "--threads" => options.threads = number()?.clamp(1, 1024) as usize,
            "--trace" => options.trace = true,
            "--keep-going" => options.keep_going = true,
            "--fleet" => options.fleet = true,
            _ => return None,
        }
    }
    Some(options)
}

/// The result of a world of either kind.
#[derive(Default)]
struct Outcome {
    violation: Option<String>,
    coverage: Vec<(&'static str, u64)>,
    steps: u64,
}

fn run(seed: u64, mode: Mode, options: &Options) -> Outcome {
    if options.fleet {
        let outcome = fleet::run(seed, mode, options.steps);
        let (violation, steps) = (outcome.violation, outcome.steps);
        return Outcome { violation, coverage: outcome.coverage.entries(), steps };
    }
    let outcome = world::run(seed, mode, options.steps);
    let (violation, steps) = (outcome.violation, outcome.steps);
    Outcome { violation, coverage: outcome.coverage.entries(), steps }
}

/// Runs a seed. A panic of the core is a violation like any other.
fn guarded(seed: u64, mode: Mode, options: &Options) -> Outcome {
    std::panic::catch_unwind(|| run(seed, mode, options)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let text = text.unwrap_or_else(|| "of unknown kind".to_owned());
        Outcome { violation: Some(format!("panic: {text}")), ..Outcome::default() }
    })
}

/// The sums over all worlds.
#[derive(Default)]
struct Total {
    /// Names of the counters in their order; `counters` has their values.
    names: Vec<&'static str>,
    counters: BTreeMap<&'static str, u64>,
    steps: u64,
    failures: Vec<(u64, String)>,
}

impl Total {
    fn add(&mut self, coverage: Vec<(&'static str, u64)>, steps: u64) {
        if self.names.is_empty() {
            self.names = coverage.iter().map(|(name, _)| *name).collect();
        }
        for (name, value) in coverage {
            *self.counters.entry(name).or_default() += value;
        }
        self.steps += steps;
    }
}

fn main() -> ExitCode {
    let Some(options) = options(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let (first, count) = options.seed.map_or((options.from, options.seeds), |seed| (seed, 1));
    let mode = if options.trace { Mode::Print } else { Mode::Off };
    let begun = Instant::now();
    let next = AtomicU64::new(first);
    let stop = AtomicBool::new(false);
    let total = Mutex::new(Total::default());
    if !options.trace {
        // The report has the text of a panic, and the replay shows its place.
        std::panic::set_hook(Box::new(|_| {}));
    }
    std::thread::scope(|scope| {
        for _ in 0..options.threads {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed - first >= count {
                        break;
                    }
                    let outcome = guarded(seed, mode, &options);
                    let Ok(mut total) = total.lock() else { break };
                    total.add(outcome.coverage, outcome.steps);
                    if let Some(violation) = outcome.violation {
                        total.failures.push((seed, violation));
                        stop.fetch_or(!options.keep_going, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let Ok(total) = total.into_inner() else { return ExitCode::from(1) };
    let Total { names, counters, steps, mut failures } = total;
    failures.sort();
    let seconds = begun.elapsed().as_secs_f64();
    let mut out = std::io::stdout().lock();
    let done = (next.load(Ordering::Relaxed).min(first + count) - first).max(1);
    let _ = writeln!(
        out,
        "{done} seeds, {steps} steps, {seconds:.1} s, {:.0} seeds/min",
        done as f64 / seconds * 60.0
    );
    for name in names {
        let value = counters.get(name).copied().unwrap_or_default();
        let _ = writeln!(out, "  {name:<22} {value}");
    }
    for (seed, violation) in &failures {
        let _ = writeln!(out, "seed {seed} FAILED: {violation}");
        let fleet = if options.fleet { "--fleet " } else { "" };
        let replay = "cargo run --release -p longhaul-sim --";
        let _ = writeln!(out, "  replay: {replay} {fleet}--seed {seed} --trace");
    }
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) }
}
