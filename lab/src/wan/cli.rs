//! `longhaul-lab wan`: a WAN for a shell, for a command, or for its own check.

use super::{Background, GilbertElliott, LineConfig, LineReport, Outages, Reorder};
use super::{Side, Wan, WanConfig, WanReport, check, human, signals};
use crate::units;
use anyhow::{Context as _, Result, bail};
use signal_hook::consts::SIGHUP;
use signal_hook::iterator::Signals;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// The text of `longhaul-lab wan --help` after the options.
const HELP: &str = "\
The host's side is 198.18.0.1, the store's 198.18.0.2; nothing else can be reached from inside. Both are network \
namespaces of this process: they share its files, and end with it, with all that runs inside. The command finds how to \
enter them in its environment:

  WAN_HOST, WAN_STORE          the addresses
  WAN_HOST_NS, WAN_STORE_NS    nsenter --net=$WAN_STORE_NS COMMAND

Examples:

  longhaul-lab wan --delay 8ms --rate 1Gbit/s --queue 2MB --loss 1e-4
  longhaul-lab wan --delay 20ms -- sh -c 'nsenter --net=$WAN_STORE_NS iperf3 -s -D; sleep 1; iperf3 -c $WAN_STORE'
  longhaul-lab wan --config wan.toml      # lines that differ; kill -HUP reads it again

A file for --config, with all there is to say (`both` goes for the two lines, which can say otherwise):

  seed = 1
  [both]
  delay = \"8ms\"
  jitter = \"1ms\"
  rate = \"155Mbit/s\"
  queue = \"256KiB\"
  loss = 1e-4
  burst_loss = { good = 100000, bad = 10, loss = 0.5 }
  reorder = { share = 0.001, by = \"2ms\" }
  background = { load = 0.7 }
  outages = { after = \"10s\", length = \"1s\", every = \"30s\" }
  [to_host]
  delay = \"10ms\"
  outage = false";

/// Options of `longhaul-lab wan`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct WanArgs {
    #[command(flatten)]
    line: LineArgs,
    /// The seed of everything random.
    #[arg(long, default_value = "0")]
    seed: u64,
    /// TOML file with the lines; SIGHUP makes the process read it again.
    #[arg(long, value_name = "FILE", conflicts_with = "LineArgs")]
    config: Option<PathBuf>,
    /// Side on which the command runs.
    #[arg(long, default_value = "host", value_parser = ["host", "store"])]
    side: String,
    /// Write what happened on the lines, as JSON.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Measure instead how accurate the emulator is on this machine, and how much it carries; about
    /// a minute. The other options do not matter, but `--report`.
    #[arg(long)]
    check: bool,
    /// The command, with which the WAN ends [default: a shell].
    #[arg(last = true)]
    command: Vec<String>,
}

/// A line, the same in both directions.
#[derive(clap::Args)]
struct LineArgs {
    /// One-way delay, as in `8ms`; accuracy tests cover 0 to 200 ms.
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "0")]
    delay: Duration,
    /// The delay wanders between itself and this much more, without reordering.
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "0")]
    jitter: Duration,
    /// Bottleneck, as in `1Gbit/s`, counting IP packets with their headers [default: none].
    #[arg(long, value_parser = units::rate)]
    rate: Option<u64>,
    /// Bytes that may wait at the bottleneck before it drops packets, as in `2MB` [default: twice
    /// the delay at the rate, at least 64 KiB].
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    queue: Option<u64>,
    /// Share of packets lost at random, as in `1e-4` or `0.1%`.
    #[arg(long, value_name = "SHARE", value_parser = human::share::parse, default_value = "0")]
    loss: f64,
    /// Losses in bursts (Gilbert and Elliott): mean packets between bursts, mean packets in one,
    /// and the share lost in one [default: 1], as in `100000,10,0.5`.
    #[arg(long, value_name = "GOOD,BAD[,LOSS]", value_parser = bursts)]
    burst_loss: Option<GilbertElliott>,
    /// Share of packets that arrive late, and how late, as in `0.1%,2ms`.
    #[arg(long, value_name = "SHARE,TIME", value_parser = reorder)]
    reorder: Option<Reorder>,
    /// Load factor of other traffic at the bottleneck, which does not back off, as in `70%`: the
    /// profile of FAST 2002.
    #[arg(long, value_name = "LOAD", value_parser = background, requires = "rate")]
    background: Option<Background>,
    /// When the line goes down first, for how long, and from one time to the next [default: only
    /// once], as in `10s,1s,30s`.
    #[arg(long, value_name = "AFTER,LENGTH[,EVERY]", value_parser = outages)]
    outages: Option<Outages>,
}

impl LineArgs {
    fn config(&self) -> LineConfig {
        LineConfig {
            delay: self.delay,
            jitter: self.jitter,
            rate: self.rate,
            queue: self.queue.unwrap_or(0),
            loss: self.loss,
            burst_loss: self.burst_loss.clone(),
            reorder: self.reorder.clone(),
            background: self.background.clone(),
            outage: false,
            outages: self.outages.clone(),
        }
    }
}

fn bursts(text: &str) -> Result<GilbertElliott> {
    let parts: Vec<&str> = text.split(',').collect();
    let (good, bad, loss) = match parts.as_slice() {
        [good, bad] => (good, bad, 1.0),
        [good, bad, loss] => (good, bad, human::share::parse(loss)?),
        _ => bail!("`{text}` is not of the form `100000,10` or `100000,10,0.5`"),
    };
    Ok(GilbertElliott { good: good.parse()?, bad: bad.parse()?, loss })
}

fn reorder(text: &str) -> Result<Reorder> {
    let (share, by) = text.split_once(',').context("it is not of the form `0.1%,2ms`")?;
    Ok(Reorder { share: human::share::parse(share)?, by: units::duration(by)? })
}

fn background(text: &str) -> Result<Background> {
    Ok(Background { load: human::share::parse(text)? })
}

fn outages(text: &str) -> Result<Outages> {
    let times: Vec<Duration> = text.split(',').map(units::duration).collect::<Result<_>>()?;
    match times.as_slice() {
        [after, length] => Ok(Outages { after: *after, length: *length, every: Duration::ZERO }),
        [after, length, every] => Ok(Outages { after: *after, length: *length, every: *every }),
        _ => bail!("`{text}` is not of the form `10s,1s` or `10s,1s,30s`"),
    }
}

fn read(path: &Path) -> Result<WanConfig> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    toml::from_str(&text).with_context(|| format!("{} makes no sense", path.display()))
}

/// Runs it; the exit status is the command's, or that of the check.
pub fn run(args: &WanArgs) -> Result<ExitCode> {
    if args.check {
        let rows = check::run()?;
        write(args, &rows)?;
        return Ok(if rows.iter().all(check::Row::is_ok) {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        });
    }
    let config = match &args.config {
        Some(path) => read(path)?,
        None => WanConfig::both(args.line.config(), args.seed),
    };
    let wan = Arc::new(Wan::start(&config)?);
    if let Some(path) = args.config.clone() {
        let mut signals = Signals::new([SIGHUP])?;
        // The thread must not keep the WAN alive after its end.
        let wan = Arc::downgrade(&wan);
        std::thread::spawn(move || {
            for _ in signals.forever() {
                let Some(wan) = wan.upgrade() else { return };
                match read(&path) {
                    Ok(config) => {
                        wan.set(&config);
                        describe(&config);
                    }
                    Err(error) => eprintln!("nothing changed: {error:#}"),
                }
            }
        });
    }
    describe(&config);
    for (name, side) in [("host", Side::Host), ("store", Side::Store)] {
        let (address, path) = (wan.address(side), wan.path(side));
        eprintln!("{name}: {address}; from elsewhere: nsenter --net={} COMMAND", path.display());
    }
    let shell = std::env::var("SHELL").unwrap_or_else(|_| "/bin/sh".into());
    let words = if args.command.is_empty() { vec![shell] } else { args.command.clone() };
    let (program, rest) = words.split_first().context("no command")?;
    let side = if args.side == "store" { Side::Store } else { Side::Host };
    wan.mark();
    let status = wan
        .command(side, Path::new(program))
        .args(rest)
        .env("WAN_HOST", wan.address(Side::Host).to_string())
        .env("WAN_STORE", wan.address(Side::Store).to_string())
        .env("WAN_HOST_NS", wan.path(Side::Host))
        .env("WAN_STORE_NS", wan.path(Side::Store))
        .status()
        .with_context(|| format!("cannot run {program}"))?;
    signals::wait_if_ending();
    let report = wan.report();
    write(args, &report)?;
    show(&report);
    // As shells say it: 128 and the signal.
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    Ok(ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

fn write(args: &WanArgs, report: &impl serde::Serialize) -> Result<()> {
    let Some(path) = &args.report else { return Ok(()) };
    std::fs::write(path, serde_json::to_string_pretty(report)? + "\n")
        .with_context(|| format!("cannot write {}", path.display()))
}

fn describe(config: &WanConfig) {
    for (name, line) in [("to the store", &config.to_store), ("to the host", &config.to_host)] {
        let rate = line.rate.map_or("no bottleneck".into(), |rate| {
            let queue = units::show_bytes(line.queue_bytes());
            format!("{}, queue {queue}", human::rate::show(rate))
        });
        let delay = human::duration::show(line.delay);
        let loss = if line.loss > 0.0 { format!(", loss {}", line.loss) } else { String::new() };
        let more: Vec<&str> = [
            ("jitter", !line.jitter.is_zero()),
            ("bursts of loss", line.burst_loss.is_some()),
            ("reordering", line.reorder.is_some()),
            ("background traffic", line.background.is_some()),
            ("outages", line.outages.is_some()),
            ("down", line.outage),
        ]
        .into_iter()
        .filter_map(|(word, there)| there.then_some(word))
        .collect();
        let more = if more.is_empty() { String::new() } else { format!("; {}", more.join(", ")) };
        eprintln!("{name}: delay {delay}, {rate}{loss}{more}");
    }
}

fn show(report: &WanReport) {
    for (name, line) in [("to the store", &report.to_store), ("to the host", &report.to_host)] {
        let LineReport { packets, bytes, lost, queue_drops, outage_drops, .. } = line;
        let rate = *bytes as f64 * 8e-6 / report.seconds;
        eprintln!(
            "{name}: {packets} packets ({rate:.3} Mbit/s), {lost} lost, {queue_drops} dropped at \
             the queue, {outage_drops} in outages; late by {:.0} µs (p50), {:.0} (p99), {:.0} (max)",
            line.delay_error_p50_us, line.delay_error_p99_us, line.delay_error_max_us,
        );
    }
    let processor = 100.0 * report.processor_seconds / report.seconds;
    eprintln!("{:.1} s, the router took {processor:.0} % of a processor", report.seconds);
    if let Some(reason) = &report.reason {
        eprintln!("INVALID: {reason}");
    }
}
