//! Workloads around the drain: by itself, with cold reads beside it, and beside a TCP flow.

use super::fio::Job;
use super::flow::Flow;
use super::{Bench, Run};
use crate::process::Server;
use crate::results::Series;
use crate::run::admin::Sample;
use crate::scenario::{Beside, Drain, Fair, Pattern, Size, Tcp};
use crate::stats::jain;
use anyhow::{Context as _, Result, bail, ensure};
use std::time::{Duration, Instant};

/// How long a drain may take.
const LIMIT: Duration = Duration::from_secs(600);

/// A drain's rate counts between these shares of its amount. So it excludes the time until the host
/// finds the line again, and the last batch's round trip.
const BEGIN: f64 = 0.1;
/// See [`BEGIN`].
const END: f64 = 0.95;

/// Writes without end, so that the journal is never empty.
struct Writer(Server);

impl Writer {
    /// Starts to write at `offset`, for at most so many seconds. Waits until the store lags by
    /// `lag` bytes, or the lag stops growing.
    fn start(run: &Run<'_, '_>, block: Size, offset: u64, seconds: f64) -> Result<Writer> {
        let size = run.point.definition.volume.size.0 - offset;
        let job = Job {
            depth: 8,
            offset,
            seconds: Some(seconds),
            again: true,
            ..Job::new("writer", Pattern::Write, block, size)
        };
        let command = job.command(run.bench, &run.uri);
        Ok(Writer(Server::spawn("the writer", command, &run.bench.path("writer.log"))?))
    }

    /// Waits until the journal has stopped growing: from then on writes go as fast as the drain.
    fn settle(&self, run: &Run<'_, '_>) -> Result<()> {
        let admin = run.product.context("nothing to drain")?.host_admin();
        let (start, mut high, mut since) = (Instant::now(), 0, Instant::now());
        while since.elapsed() < Duration::from_secs(1) && start.elapsed() < Duration::from_secs(30)
        {
            let status = admin.status()?;
            let held = status["volumes"][0]["journal_bytes"].as_u64().unwrap_or_default();
            // A full journal still breathes by a batch or two.
            if held > high + (16 << 20) || high == 0 {
                (high, since) = (held, Instant::now());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

/// The rate in MB/s at which `done` grew between two of its values, from the first samples at or
/// beyond them.
fn rate_between(samples: &[(f64, f64)], from: f64, to: f64) -> Option<f64> {
    let at = |value: f64| samples.iter().find(|(_, done)| *done >= value);
    let ((start, low), (end, high)) = (at(from)?, at(to)?);
    (end > start).then(|| (high - low) / (end - start) / 1e6)
}

/// The rate in MB/s at which `done` grew between two times.
fn rate_during(samples: &[(f64, f64)], from: f64, to: f64) -> Option<f64> {
    let inside: Vec<&(f64, f64)> =
        samples.iter().filter(|(at, _)| (from..=to).contains(at)).collect();
    let (first, last) = (inside.first()?, inside.last()?);
    (last.0 > first.0).then(|| (last.1 - first.1) / (last.0 - first.0) / 1e6)
}

fn series(name: &str, samples: &[(f64, Sample)], of: impl Fn(&Sample) -> f64) -> Series {
    Series { name: name.into(), points: samples.iter().map(|(at, s)| (*at, of(s) / 1e6)).collect() }
}

impl Run<'_, '_> {
    /// The workload `drain`.
    pub(super) fn drain(&mut self, drain: &Drain) -> Result<()> {
        if let Some(tcp) = self.subject.flow() {
            return self.flow(tcp, drain.seconds, 2.0);
        }
        let product = self.product.context("a drain without a product")?;
        let admin = product.host_admin();
        let mut cut = self.wan();
        cut.to_store.outage = true;
        cut.to_host.outage = true;
        self.bench.wan.set(&cut);
        let pattern = if drain.random { Pattern::RandWrite } else { Pattern::Write };
        let job = Job::new("fill", pattern, drain.block, drain.amount.0);
        let fill = Job { depth: 8, compressible: drain.compressible, ..job };
        fill.run(self.bench, &self.uri)?;
        // The measurement is for the line, not for the disk that still writes the journal.
        self.bench.settle_disk()?;
        let before = admin.status()?;
        let lag =
            before["volumes"][0]["lag_bytes"].as_f64().context("status has no `lag_bytes`")?;
        // Bytes on their way at the cut, and bytes that a batch or compression leaves out.
        let amount = drain.amount.0 as f64;
        ensure!(
            lag >= 0.9 * amount * f64::from(100 - drain.compressible) / 100.0,
            "only {lag} bytes piled up: is the journal too small?"
        );
        let watch = admin.watch(Duration::from_millis(10));
        let (bench, wan) = (self.bench, self.wan());
        let (took, start) = self.measure(|| {
            let start = Instant::now();
            bench.wan.set(&wan);
            while watch.last().at.is_none_or(|at| at < start) || watch.last().lag_bytes > 0.0 {
                if start.elapsed() > LIMIT {
                    bail!("not drained after {LIMIT:?}");
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            Ok(start.elapsed())
        })?;
        let samples = watch.finish(start)?;
        let done: Vec<(f64, f64)> =
            samples.iter().map(|(at, s)| (*at, lag - s.lag_bytes)).collect();
        let rate = rate_between(&done, BEGIN * lag, END * lag)
            .context("drained too fast to be measured")?;
        self.figures.insert("mb_per_s".into(), rate);
        self.figures.insert("whole_mb_per_s".into(), lag / took.as_secs_f64() / 1e6);
        // Written bytes, however few bytes of the line they took.
        self.figures.insert("data_mb_per_s".into(), rate * amount / lag);
        if let Some((at, _)) = done.iter().find(|(_, done)| *done > 0.0) {
            self.figures.insert("first_commit_s".into(), *at);
        }
        self.series.push(series("lag_mb", &samples, |sample| sample.lag_bytes));
        Ok(())
    }

    /// The workload `beside`.
    pub(super) fn beside(&mut self, beside: &Beside) -> Result<()> {
        let product = self.product.context("a drain without a product")?;
        // Each read of what nobody has read before.
        let half = self.point.definition.volume.fill.0 / 2 / beside.block.0 * beside.block.0;
        let reads = |name, offset| Job {
            depth: beside.depth,
            offset,
            seconds: Some(beside.seconds),
            ..Job::new(name, Pattern::RandRead, beside.block, half)
        };
        let (bench, uri) = (self.bench, self.uri.clone());
        let (alone, _) = self.measure(|| reads("alone", 0).run(bench, &uri))?;
        let filled = self.point.definition.volume.fill.0;
        let writer = Writer::start(self, beside.write_block, filled, beside.seconds + 120.0)?;
        writer.settle(self)?;
        let watch = product.host_admin().watch(Duration::from_millis(20));
        let (with, start) = self.measure(|| reads("with", half).run(bench, &uri))?;
        let end = start.elapsed().as_secs_f64();
        writer.0.kill()?;
        let samples = watch.finish(start)?;
        let done: Vec<(f64, f64)> =
            samples.iter().map(|(at, s)| (*at, s.committed_bytes())).collect();
        if let Some(rate) = rate_during(&done, 0.0, end) {
            self.figures.insert("drain_mb_per_s".into(), rate);
        }
        for (name, value) in &alone {
            let beside = with.iter().find(|(other, _)| other == name).map(|(_, value)| *value);
            self.figures.insert(format!("alone_{name}"), *value);
            if let Some(beside) = beside {
                self.figures.insert(format!("beside_{name}"), beside);
                if name.ends_with("_ms") {
                    let kind = name.trim_end_matches("_ms");
                    self.figures.insert(format!("{kind}_ratio"), beside / value);
                }
            }
        }
        Ok(())
    }

    /// The workload `fair`: the shares of two bulk transfers of which one at least is TCP cubic.
    pub(super) fn fair(&mut self, fair: &Fair) -> Result<()> {
        let download = !fair.rw.writes();
        let tcp = Flow::new(self.bench, Tcp::Cubic, fair.seconds, fair.ramp, download)?;
        let (ours, theirs) = match self.product {
            None => {
                let other = Flow::new(self.bench, Tcp::Cubic, fair.seconds, fair.ramp, download)?;
                let (both, _) = self.measure(|| together(|| other.run(), || tcp.run()))?;
                (both.0.mb_per_s, both.1.mb_per_s)
            }
            Some(product) if fair.rw.writes() => {
                let writer = Writer::start(self, Size(64 << 10), 0, fair.seconds + 120.0)?;
                writer.settle(self)?;
                let watch = product.host_admin().watch(Duration::from_millis(20));
                let (tcp, start) = self.measure(|| tcp.run())?;
                writer.0.kill()?;
                let samples = watch.finish(start)?;
                let done: Vec<(f64, f64)> =
                    samples.iter().map(|(at, s)| (*at, s.committed_bytes())).collect();
                let rate =
                    rate_during(&done, fair.ramp, fair.seconds).context("nothing was drained")?;
                (rate, tcp.mb_per_s)
            }
            Some(_) => {
                let fill = self.point.definition.volume.fill.0;
                let job = Job {
                    seconds: Some(fair.seconds - fair.ramp),
                    ramp: fair.ramp,
                    ..Job::new("fair", fair.rw, Size(256 << 10), fill)
                };
                let (bench, uri) = (self.bench, self.uri.clone());
                let (both, _) = self.measure(|| together(|| job.run(bench, &uri), || tcp.run()))?;
                let ours = both.0.iter().find(|(name, _)| name == "mb_per_s");
                (ours.context("fio says no rate")?.1, both.1.mb_per_s)
            }
        };
        self.figures.insert("mb_per_s".into(), ours);
        self.figures.insert("cubic_mb_per_s".into(), theirs);
        self.figures.insert("jain".into(), jain(&[ours, theirs]));
        Ok(())
    }
}

/// Runs two things at once.
fn together<A: Send, B>(
    one: impl FnOnce() -> Result<A> + Send,
    other: impl FnOnce() -> Result<B>,
) -> Result<(A, B)> {
    std::thread::scope(|scope| {
        let one = scope.spawn(one);
        let other = other();
        let one = one.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok((one?, other?))
    })
}

impl Bench<'_> {
    /// Waits until the file system of the lab's directory has written what it holds.
    ///
    /// # Errors
    /// If `sync` fails.
    pub fn settle_disk(&self) -> Result<()> {
        crate::process::output("sync".as_ref(), &["-f", &self.dir.display().to_string()]).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates() {
        let samples: Vec<(f64, f64)> =
            (0..=10).map(|i| (f64::from(i), f64::from(i) * 5e6)).collect();
        assert_eq!(rate_between(&samples, 5e6, 45e6), Some(5.0));
        assert_eq!(rate_between(&samples, 5e6, 60e6), None);
        assert_eq!(rate_between(&samples, 5e6, 5e6), None);
        assert_eq!(rate_during(&samples, 2.0, 8.0), Some(5.0));
        assert_eq!(rate_during(&samples, 20.0, 30.0), None);
    }

    #[test]
    fn both_at_once() {
        let (send, receive) = std::sync::mpsc::channel();
        let both = together(move || Ok(receive.recv()?), move || Ok(send.send(7)?));
        assert_eq!(both.unwrap(), (7, ()));
    }
}
