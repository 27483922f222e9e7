//! `longhaul-lab wan --check`: how accurate the emulator is on this machine, and how much it
//! carries.

use super::router::{Clock, run_ahead};
use super::stats::Histogram;
use super::traffic::{Flow, Sink, send};
use super::{LATE_US, LineConfig, LineReport, Wan, WanConfig, WanReport};
use anyhow::Result;
use serde::Serialize;
use std::net::UdpSocket;
use std::time::Duration;

/// The largest median error of the delay, in microseconds.
const DELAY_P50_US: f64 = 100.0;
/// Time between two probes: no delay is a multiple of it, so that sending does not meet receiving.
const PROBING: Duration = Duration::from_micros(1370);
/// How far off a rate may be.
const RATE_ERROR: f64 = 0.01;
/// How far off a share of lost packets may be.
const LOSS_ERROR: f64 = 0.05;
/// The emulator's load: 1 Gb/s of the largest packets, in packets per second.
const LINE_RATE: f64 = 0.99e9 / 8.0 / 1500.0;
/// With at most this share of a processor.
const PROCESSOR: f64 = 0.6;
/// Packets on the wire in one of quinn's sends.
const QUIC_BATCH: u32 = 10;

/// A line of the table.
#[derive(Debug, Serialize)]
pub struct Row {
    what: String,
    measured: String,
    wanted: String,
    ok: bool,
}

impl Row {
    fn new(what: impl Into<String>, measured: String, wanted: impl Into<String>, ok: bool) -> Row {
        let row = Row { what: what.into(), measured, wanted: wanted.into(), ok };
        let verdict = if row.ok { "" } else { " **missed**" };
        println!("| {} | {} | {}{verdict} |", row.what, row.measured, row.wanted);
        row
    }

    /// Whether the result meets the target.
    pub fn is_ok(&self) -> bool {
        self.ok
    }
}

/// Prints the table, and gives it.
pub fn run() -> Result<Vec<Row>> {
    println!("| what | measured | wanted |");
    println!("|---|---|---|");
    let mut rows = vec![loopback()?];
    for delay in [0, 1, 2, 8, 50, 200] {
        rows.push(idle(Duration::from_millis(delay))?);
    }
    for rate in [20_000_000, 155_000_000, 1_000_000_000] {
        rows.push(rate_of(rate)?);
    }
    rows.push(loss()?);
    rows.extend(loaded()?);
    let most = |what: &str, packet_bytes, batch| ceiling(what, packet_bytes, batch);
    rows.push(most("packets of 1500 B, sent one by one", 1500, 1)?);
    rows.push(most("packets of 100 B, sent one by one", 100, 1)?);
    rows.push(most("packets of 1500 B, sent ten at once", 1500, QUIC_BATCH)?);
    Ok(rows)
}

fn start(line: LineConfig) -> Result<Wan> {
    Wan::start(&WanConfig::both(line, 1))
}

fn probe_errors(report: &WanReport) -> (f64, f64, f64) {
    let worse = |of: fn(&LineReport) -> f64| of(&report.to_store).max(of(&report.to_host));
    (
        worse(|line| line.probe_error_p50_us),
        worse(|line| line.probe_error_p99_us),
        worse(|line| line.probe_error_max_us),
    )
}

/// The way from socket to socket without an emulator: what a delay's error cannot be less than
/// here.
fn loopback() -> Result<Row> {
    let (from, to) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
    from.connect(to.local_addr()?)?;
    to.set_read_timeout(Some(Duration::from_secs(1)))?;
    let clock = Clock::start();
    let errors = std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            run_ahead();
            let mut errors = Histogram::default();
            let mut sent = [0; 8];
            while let Ok(8) = to.recv(&mut sent) {
                errors.record(clock.now() - u64::from_ne_bytes(sent));
            }
            errors
        });
        let sender = scope.spawn(|| {
            run_ahead();
            for _ in 0..1500 {
                let _ = from.send(&clock.now().to_ne_bytes());
                std::thread::sleep(PROBING);
            }
        });
        let _ = sender.join();
        receiver.join().unwrap_or_default()
    });
    let [p50, p99] = [0.5, 0.99].map(|q| errors.quantile_us(q));
    Ok(Row::new(
        "for comparison: loopback, socket to socket",
        format!("p50 {p50:.0} µs, p99 {p99:.0} µs, max {:.0} µs", errors.max_us()),
        "",
        true,
    ))
}

/// A socket's packets from side to side, with nothing else on the line.
fn idle(delay: Duration) -> Result<Row> {
    let line = LineConfig { delay, ..LineConfig::default() };
    let wan = Wan::start_probed(&WanConfig::both(line, 1), PROBING)?;
    std::thread::sleep(delay + Duration::from_millis(100));
    wan.mark();
    std::thread::sleep(Duration::from_millis(2000));
    let report = wan.report();
    let (p50, p99, max) = probe_errors(&report);
    Ok(Row::new(
        format!("delay {delay:?}, socket to socket: error"),
        format!("p50 {p50:.0} µs, p99 {p99:.0} µs, max {max:.0} µs"),
        format!("p50 ≤ {DELAY_P50_US:.0} µs, p99 ≤ {LATE_US:.0} µs"),
        p50 <= DELAY_P50_US && p99 <= LATE_US,
    ))
}

/// The throughput of an overloaded bottleneck.
fn rate_of(rate: u64) -> Result<Row> {
    let wan = start(LineConfig {
        delay: Duration::from_millis(8),
        rate: Some(rate),
        ..LineConfig::default()
    })?;
    let sink = Sink::start(&wan)?;
    let flow = Flow { packet_bytes: 1500, batch: QUIC_BATCH, rate: rate as f64 * 1.1 / 12e3 };
    let (measured, report) = std::thread::scope(|scope| -> Result<(f64, WanReport)> {
        let sender = scope.spawn(|| send(&wan, flow, Duration::from_millis(3000)));
        // The queue is full by now.
        std::thread::sleep(Duration::from_millis(800));
        wan.mark();
        let (before, start) = (sink.packets(flow), std::time::Instant::now());
        std::thread::sleep(Duration::from_millis(2000));
        let measured = (sink.packets(flow) - before) as f64 * 12e3 / start.elapsed().as_secs_f64();
        let report = wan.report();
        if let Ok(sent) = sender.join() {
            sent?;
        }
        Ok((measured, report))
    })?;
    let error = measured / rate as f64 - 1.0;
    Ok(Row::new(
        format!("rate {} Mbit/s", rate / 1_000_000),
        format!("{:.2} Mbit/s ({:+.2} %){}", measured / 1e6, 100.0 * error, why_not(&report)),
        format!("within {:.0} %", 100.0 * RATE_ERROR),
        error.abs() <= RATE_ERROR && report.valid,
    ))
}

fn loss() -> Result<Row> {
    let wanted = 0.01;
    let wan = start(LineConfig {
        delay: Duration::from_millis(8),
        loss: wanted,
        ..LineConfig::default()
    })?;
    let sink = Sink::start(&wan)?;
    let flow = Flow { packet_bytes: 1500, batch: QUIC_BATCH, rate: LINE_RATE };
    wan.mark();
    let sent = send(&wan, flow, Duration::from_millis(6000))?;
    sink.settle(Duration::from_millis(100));
    let report = wan.report();
    let measured = 1.0 - sink.packets(flow) as f64 / sent as f64;
    let error = measured / wanted - 1.0;
    Ok(Row::new(
        "loss 1 %, counted by the receiver",
        format!(
            "{:.3} % of {sent} packets ({:+.1} %){}",
            100.0 * measured,
            100.0 * error,
            why_not(&report)
        ),
        format!("within {:.0} %", 100.0 * LOSS_ERROR),
        error.abs() <= LOSS_ERROR && report.valid,
    ))
}

/// The cost of carrying a full line.
fn loaded() -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (what, batch) in [("one by one", 1), ("ten at once", QUIC_BATCH)] {
        let flow = Flow { packet_bytes: 1500, batch, rate: LINE_RATE };
        let rate = Some(1_000_000_000);
        let (sent, received, report) = carry(flow, rate, Duration::from_millis(3000))?;
        let share = report.processor_seconds / report.seconds;
        let line = &report.to_store;
        rows.push(Row::new(
            format!("1 Gbit/s of 1500 B packets, sent {what}: router's share of a processor"),
            format!(
                "{:.0} % at {:.0} kpackets/s, late by {:.0} µs (p50), {:.0} µs (p99){}",
                100.0 * share,
                sent as f64 / 3.0 / 1000.0,
                line.delay_error_p50_us,
                line.delay_error_p99_us,
                why_not(&report)
            ),
            format!("≤ {:.0} %", 100.0 * PROCESSOR),
            share <= PROCESSOR && report.valid && sent == received,
        ));
    }
    Ok(rows)
}

/// The largest tried load that stays valid.
fn ceiling(what: &str, packet_bytes: u32, batch: u32) -> Result<Row> {
    let mut best: Option<(f64, f64)> = None;
    let mut rate = 40e3;
    let reason = loop {
        let flow = Flow { packet_bytes, batch, rate };
        let mut reason = None;
        // Twice: the machine may have been busy with something else.
        for _ in 0..2 {
            let length = Duration::from_millis(1000);
            let (sent, received, report) = carry(flow, None, length)?;
            let reached = sent as f64 / length.as_secs_f64();
            let share = report.processor_seconds / report.seconds;
            reason = if reached < 0.98 * rate {
                Some("the sender cannot do more".to_owned())
            } else if received < sent && report.valid {
                Some(format!("{} packets missing at the receiver", sent - received))
            } else {
                report.reason
            };
            if reason.is_none() {
                best = Some((reached, share));
                break;
            }
        }
        match reason {
            Some(reason) => break reason,
            None => rate *= 1.25,
        }
    };
    let (rate, share) = best.unwrap_or_default();
    Ok(Row::new(
        format!("ceiling, {what}"),
        format!(
            "{:.0} kpackets/s, {:.2} Gbit/s, {:.0} % of a processor; then {reason}",
            rate / 1e3,
            rate * f64::from(packet_bytes) * 8e-9,
            100.0 * share,
        ),
        "",
        true,
    ))
}

fn carry(flow: Flow, rate: Option<u64>, length: Duration) -> Result<(u64, u64, WanReport)> {
    let line = LineConfig { delay: Duration::from_millis(8), rate, ..LineConfig::default() };
    let wan = start(line)?;
    let sink = Sink::start(&wan)?;
    wan.mark();
    let sent = send(&wan, flow, length)?;
    let report = wan.report();
    sink.settle(Duration::from_millis(100));
    Ok((sent, sink.packets(flow), report))
}

fn why_not(report: &WanReport) -> String {
    report.reason.as_ref().map_or(String::new(), |reason| format!("; invalid: {reason}"))
}
