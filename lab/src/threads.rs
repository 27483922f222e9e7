//! The processor time of each thread of host and store, and of each stage of a request.

use crate::bench::{Compared, Way};
use crate::fio::{self, Job, nbd};
use crate::node::{Node, Shape};
use crate::process::output;
use crate::report::{Row, Table};
use crate::run::admin;
use crate::stages::{self, Stage};
use crate::suite::Suite;
use anyhow::{Context as _, Result};
use std::collections::BTreeMap;

/// Volumes, and clients of each.
const VOLUMES: [&str; 8] = ["v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7"];
const CLIENTS: u32 = 8;

/// The region of each volume, and the flag of its host: a journal of one GiB for each takes a disk.
const REGION: u64 = 16 << 20;
const JOURNAL: [&str; 2] = ["--journal-size", "256MiB"];

/// More than it takes to write all regions once.
const FILL_SECONDS: u32 = 60;

/// Ticks of a thread are 10 ms (proc(5)).
const TICK: f64 = 0.01;

/// The flag for the number of the host's threads.
const FLAG: &str = "--threads";

/// How much more than an equal share the busiest of several threads may take.
const SLACK: f64 = 1.15;

/// A thread of a process: its name and its ticks, of user and system.
type Threads = BTreeMap<u32, (String, u64)>;

/// The time of a thread between two readings.
#[derive(Clone, Debug, PartialEq)]
struct Used {
    name: String,
    seconds: f64,
}

/// One reading of a process: its threads, and the ticks of all it ever had.
struct Reading {
    threads: Threads,
    process: u64,
}

impl Reading {
    fn of(pid: u32) -> Result<Reading> {
        let mut threads = Threads::new();
        for entry in std::fs::read_dir(format!("/proc/{pid}/task"))? {
            let path = entry?.path();
            // It may have ended since.
            let Ok(text) = std::fs::read_to_string(path.join("stat")) else { continue };
            if let Some((tid, name, ticks)) = stat(&text) {
                threads.insert(tid, (name, ticks));
            }
        }
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let (.., process) = stat(&text).context("/proc/PID/stat is too short")?;
        Ok(Reading { threads, process })
    }

    /// The time of each thread since an earlier reading, the busiest first, and all of it. Threads
    /// that have ended are only in the sum.
    fn since(&self, before: &Reading) -> (Vec<Used>, f64) {
        let mut used: Vec<Used> = self
            .threads
            .iter()
            .map(|(tid, (name, ticks))| {
                let earlier = before.threads.get(tid).map_or(0, |(_, ticks)| *ticks);
                Used { name: name.clone(), seconds: ticks.saturating_sub(earlier) as f64 * TICK }
            })
            .filter(|used| used.seconds > 0.0)
            .collect();
        used.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        (used, self.process.saturating_sub(before.process) as f64 * TICK)
    }
}

/// The number, the name and the ticks in a `stat` file of a thread or process.
fn stat(text: &str) -> Option<(u32, String, u64)> {
    let (tid, rest) = text.split_once(" (")?;
    let (name, rest) = rest.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    // Fields 14 and 15 of proc(5); the third is the first here.
    let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some((tid.parse().ok()?, name.to_owned(), ticks))
}

/// The share of the busiest thread in all time of the process.
fn busiest(used: &[Used], all: f64) -> f64 {
    // Ticks are rounded for each thread.
    used.first().map_or(f64::NAN, |first| (first.seconds / all).min(1.0))
}

/// The threads with their shares.
fn table(title: String, used: &[Used], all: f64) -> Table {
    let row = |name: &str, seconds: f64| {
        vec![name.to_owned(), format!("{seconds:.2}"), format!("{:.1} %", seconds / all * 100.0)]
    };
    let mut rows: Vec<Vec<String>> =
        used.iter().map(|used| row(&used.name, used.seconds)).collect();
    let rest = all - used.iter().map(|used| used.seconds).sum::<f64>();
    if rest > TICK {
        rows.push(row("threads that have ended", rest));
    }
    rows.push(row("all", all));
    let head = ["thread", "seconds", "share"].map(str::to_owned).into();
    Table { title, head, rows }
}

impl Suite {
    /// Whether a subcommand has a flag.
    fn has_flag(&self, subcommand: &str, flag: &str) -> Result<bool> {
        let help = output(&self.site.longhaul, &[subcommand, "--help"])?;
        Ok(help.split_whitespace().any(|word| word == flag))
    }

    /// A node of eight volumes whose host and store have so many threads.
    fn eight(&self, name: &str, threads: Option<&str>) -> Result<Node> {
        let (mut host, mut store) = (JOURNAL.to_vec(), Vec::new());
        if let Some(number) = threads {
            host.extend([FLAG, number]);
            store.extend([FLAG, number]);
        }
        let shape =
            Shape { name, volumes: &VOLUMES, host: &host, store: &store, ..Shape::new("1GiB") };
        let node = Node::start(&self.site, &shape.with_data(self.memory()?.path()))?;
        // The journals hold what the clients will read.
        let job = Job::new("write", "1m", 1, FILL_SECONDS);
        self.clients(&node, &Job { size: REGION, most: Some(REGION), ..job })?;
        Ok(node)
    }

    /// All clients of all volumes at once: requests a second.
    fn clients(&self, node: &Node, job: &Job<'_>) -> Result<f64> {
        let targets = VOLUMES.map(|volume| nbd(&self.site, &node.socket, volume));
        let iops = fio::run(&self.site, &targets, job)?.iops;
        node.wait_drained()?;
        self.memory()?.check()?;
        Ok(iops)
    }

    /// The time of each thread, and what a second thread brings.
    pub fn threads(&self) -> Result<()> {
        let flag = self.has_flag("host", FLAG)?;
        let numbers: &[Option<&str>] = if flag { &[Some("1"), Some("2")] } else { &[None] };
        if !flag {
            self.report.note(&format!(
                "This `longhaul host` has no {FLAG}: there is no target for its threads, and no \
                 comparison of two with one."
            ));
        }
        let clients = VOLUMES.len() as u64 * u64::from(CLIENTS);
        let most = Some(self.round_bytes()? / clients);
        let job = |rw| {
            let job = Job::new(rw, "4k", 1, self.seconds.unwrap_or(4));
            Job { jobs: CLIENTS, size: REGION, most, ..job }
        };
        for number in numbers {
            let with = number.map_or(String::new(), |number| format!(", {FLAG} {number}"));
            let node = self.eight("one-", *number)?;
            for (rw, kind) in [("randwrite", "writes"), ("randread", "reads")] {
                let job = job(rw);
                self.shares(&node, &format!("4 KiB {kind}{with}"), *number, &job)?;
            }
            node.stop()?;
        }
        if flag {
            // The clients on one processor: what they take does not grow with the host's speed.
            let last = std::thread::available_parallelism()?.get() - 1;
            let (one, two) = (self.eight("one-", Some("1"))?, self.eight("two-", Some("2"))?);
            for (rw, kind) in [("randwrite", "writes"), ("randread", "reads")] {
                // Two nodes share the memory.
                let most = most.map(|most| most / 2);
                let job = Job { processor: Some(last), most, ..job(rw) };
                self.turns(
                    &mut [
                        Way::new("two threads each", || self.clients(&two, &job)),
                        Way::new("one thread each", || self.clients(&one, &job)),
                    ],
                    &[Compared {
                        name: format!("4 KiB {kind}, host and store with two threads"),
                        unit: "IOPS",
                        with: 1,
                        target: None,
                    }],
                )?;
            }
            two.stop()?;
            one.stop()?;
            self.report.note(&format!(
                "For the comparison of two threads with one, all clients ran on processor {last}. \
                 Both hosts and stores could use all processors."
            ));
        }
        Ok(())
    }

    /// The share of the busiest thread under a load, and the threads of the last round.
    fn shares(&self, node: &Node, what: &str, threads: Option<&str>, job: &Job<'_>) -> Result<()> {
        let processes = [("host", node.host.pid()), ("store", node.store.pid())];
        let (rounds, tally) = self.rounds.all(|| {
            let before = processes.map(|(_, pid)| Reading::of(pid));
            let iops = self.clients(node, job)?;
            let mut used = Vec::new();
            for ((_, pid), before) in processes.iter().zip(before) {
                used.push(Reading::of(*pid)?.since(&before?));
            }
            Ok((iops, used))
        })?;
        let single = |name: String, values: Vec<f64>, unit: &str, target| {
            self.report.row(Row {
                name,
                unit: unit.into(),
                ours: values,
                peer: None,
                target,
                tally: tally.clone(),
            })
        };
        let iops = rounds.iter().map(|(iops, _)| *iops).collect();
        single(format!("8 volumes × 8 clients, {what}"), iops, "IOPS", None)?;
        for (at, (name, _)) in processes.iter().enumerate() {
            let shares = rounds.iter().map(|(_, used)| busiest(&used[at].0, used[at].1)).collect();
            // One thread may have it all.
            let several = threads.and_then(|number| number.parse::<f64>().ok());
            let several = several.filter(|number| *number > 1.0);
            let target = several.map(|number| (SLACK / number, false));
            single(format!("… busiest thread of the {name}, of all its time"), shares, "", target)?;
        }
        if let Some((_, used)) = rounds.last().filter(|_| tally.too_busy().is_none()) {
            for ((name, _), (used, all)) in processes.iter().zip(used) {
                self.report.table(table(format!("Threads of the {name}, {what}"), used, *all));
            }
        }
        Ok(())
    }

    /// Where the time of a request goes, as far as there are timers.
    pub fn stages(&self) -> Result<()> {
        const VOLUME: &str = "4GiB";
        const STAGED: u64 = 64 << 20;
        let memory = self.memory()?;
        let node = Node::start(&self.site, &Shape::new(VOLUME).with_data(memory.path()))?;
        let fill = Job::new("write", "1m", 4, FILL_SECONDS);
        let fill = Job { size: STAGED, most: Some(STAGED), ..fill };
        fio::run(&self.site, &[nbd(&self.site, &node.socket, "bench")], &fill)?;
        node.wait_drained()?;
        let mut found = Vec::new();
        for (rw, kind) in [("randwrite", "4 KiB write"), ("randread", "4 KiB read of fresh data")] {
            let job = Job::new(rw, "4k", 1, self.seconds.unwrap_or(4));
            let job = Job { size: STAGED, most: Some(self.round_bytes()?), ..job };
            let reading =
                || Ok::<_, anyhow::Error>(stages::read(&admin::get(node.admin, "/metrics")?));
            let (rounds, tally) = self.rounds.all(|| {
                let before = reading()?;
                let target = [nbd(&self.site, &node.socket, "bench")];
                let latency = fio::run(&self.site, &target, &job)?.mean_us;
                let after = reading()?;
                node.wait_drained()?;
                memory.check()?;
                let requests = after.requests - before.requests;
                let spent = after.request_seconds - before.request_seconds;
                let inside = spent / requests.max(1.0) * 1e6;
                Ok((latency, inside, stages::between(&before, &after, requests)))
            })?;
            let figure = |pick: fn(f64, f64) -> f64| {
                rounds
                    .iter()
                    .map(|(latency, inside, _)| pick(*latency, *inside))
                    .collect::<Vec<_>>()
            };
            let name = format!("{kind}, depth 1, mean latency at the client");
            self.report.single(&name, &figure(|latency, _| latency), "µs", None, &tally)?;
            let name = "… in the host, from the request to its reply";
            self.report.single(name, &figure(|_, inside| inside), "µs", None, &tally)?;
            let name = "… outside: sockets, the client, and waking up";
            self.report.single(
                name,
                &figure(|latency, inside| latency - inside),
                "µs",
                None,
                &tally,
            )?;
            if let Some((_, _, stages)) = rounds.into_iter().last() {
                found.push((kind, stages));
            }
        }
        self.report.table(stage_table(&found));
        self.report.note(
            "`front` is parsing, replies and their sockets; `host` is the engine, and the front \
             thread's own writes to the journal, which are in `journal_write` as well. Syncs and \
             commits run beside the requests. Stages without a timer are not in the table.",
        );
        node.stop()
    }
}

/// The stages of each kind of request, in the last round.
fn stage_table(found: &[(&str, Vec<Stage>)]) -> Table {
    let mut names: Vec<&str> = Vec::new();
    for stage in found.iter().flat_map(|(_, stages)| stages) {
        if !names.contains(&stage.stage.as_str()) {
            names.push(&stage.stage);
        }
    }
    names.sort_by_key(|name| stages::place(name));
    let rows = names.iter().map(|name| {
        let cells = found.iter().map(|(_, stages)| {
            let stage = stages.iter().find(|stage| stage.stage == *name);
            stage.map_or("–".into(), |stage| format!("{:.2} µs", stage.request_us))
        });
        std::iter::once((*name).to_owned()).chain(cells).collect()
    });
    let head = std::iter::once("stage").chain(found.iter().map(|(kind, _)| *kind));
    Table {
        title: "Mean time of a stage for each request, in the last round".into(),
        head: head.map(str::to_owned).collect(),
        rows: rows.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread() {
        let text = "77 (a (b) c) S 7 1 1 0 -1 4194560 9 8 7 6 11 22 33 44 20 0 1 0 555 1 2 3\n";
        assert_eq!(stat(text), Some((77, "a (b) c".into(), 33)));
        assert_eq!(stat("77 (a) S 7"), None);
    }

    fn reading(process: u64, threads: &[(u32, &str, u64)]) -> Reading {
        let threads = threads.iter().map(|(tid, name, ticks)| (*tid, ((*name).into(), *ticks)));
        Reading { threads: threads.collect(), process }
    }

    #[test]
    fn shares_of_threads() {
        let before = reading(100, &[(1, "front", 50), (2, "journal", 10), (3, "pool", 40)]);
        // The pool has ended after 10 more, another thread is new, and the journal slept.
        let after = reading(200, &[(1, "front", 110), (2, "journal", 10), (4, "front", 30)]);
        let (used, all) = after.since(&before);
        let shown: Vec<(&str, u64)> =
            used.iter().map(|used| (used.name.as_str(), (used.seconds * 100.0) as u64)).collect();
        assert_eq!(shown, [("front", 60), ("front", 30)]);
        assert!((busiest(&used, all) - 0.6).abs() < 1e-9);
        let table = table("t".into(), &used, all);
        assert_eq!(table.rows[2], ["threads that have ended", "0.10", "10.0 %"]);
        assert_eq!(table.rows[3], ["all", "1.00", "100.0 %"]);
        assert!(busiest(&[], 0.0).is_nan());
    }

    #[test]
    fn this_process() {
        let before = Reading::of(std::process::id()).unwrap();
        assert!(!before.threads.is_empty());
        let (_, all) = Reading::of(std::process::id()).unwrap().since(&before);
        assert!(all >= 0.0);
    }

    #[test]
    fn stages_by_request() {
        let stage = |name: &str, request_us| Stage {
            stage: name.into(),
            count: 1.0,
            request_us,
            mean_us: 1.0,
            p50_us: 1.0,
        };
        let found = [("write", vec![stage("new", 3.0), stage("host", 2.0)]), ("read", Vec::new())];
        let table = stage_table(&found);
        assert_eq!(table.head, ["stage", "write", "read"]);
        assert_eq!(table.rows, [["host", "2.00 µs", "–"], ["new", "3.00 µs", "–"]]);
    }
}
