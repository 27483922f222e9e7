//! All benchmarks: what they share, their order, and their report.

use crate::machine;
use crate::memory::{Memory, clear_when_interrupted};
use crate::node::Site;
use crate::page::{Facts, page};
use crate::quiet::adopt_orphans;
use crate::report::Report;
use crate::rounds::Rounds;
use crate::{BenchArgs, gc, iscsi, store};
use anyhow::{Result, bail};
use std::cell::OnceCell;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Files of the parts in the directory on the disk. Others may have files there, too.
const FILES: [&str; 8] = [
    "peer.raw",
    "uncached.raw",
    "direct.raw",
    "flush.raw",
    "objects.raw",
    "synced.raw",
    "disk.raw",
    "device.raw",
];
const DIRECTORIES: [&str; 6] = ["store", "host", "objects", "second", "one-host", "two-host"];

/// The common things of all benchmarks.
pub struct Suite {
    /// The binary, and the directory on the disk.
    pub site: Site,
    /// The rules of the rounds.
    pub rounds: Rounds,
    /// Seconds of a measurement, if the command line says so.
    pub seconds: Option<u32>,
    /// An earlier binary.
    pub before: Option<PathBuf>,
    /// Where the results go.
    pub report: Report,
    memory: OnceCell<Memory>,
}

/// A benchmark that runs by itself.
struct Part {
    name: &'static str,
    about: &'static str,
    run: fn(&Suite) -> Result<()>,
}

const fn part(name: &'static str, about: &'static str, run: fn(&Suite) -> Result<()>) -> Part {
    Part { name, about, run }
}

/// In this order.
const PARTS: [Part; 22] = [
    part(
        "null",
        "The empty host loop: session, engine, records, checksums, batches and commits. The \
         journal is in memory and there is no store.",
        Suite::null,
    ),
    part("before", "The empty host loop beside that of an earlier binary.", Suite::before),
    part(
        "host",
        "The whole host over NBD. Its journal is on the disk, the store's data are in memory.",
        Suite::host,
    ),
    part(
        "flush",
        "The cost of a flush over NBD. The journal is on the disk, the store's data are in memory.",
        Suite::flush,
    ),
    part("stages", "Where the time of one request goes, one outstanding.", Suite::stages),
    part(
        "threads",
        "The processor time of each thread of host and store: 8 volumes with 8 clients each, one \
         request outstanding for each client.",
        Suite::threads,
    ),
    part(
        "costs",
        "What grows with the number of volumes, the size of a volume, and its snapshots.",
        Suite::costs,
    ),
    part("cold", "Reads that only the store can answer.", Suite::cold),
    part("drain", "Whether the store keeps up with a host that never pauses.", Suite::drain),
    part("recovery", "The start of a host whose journal is full.", Suite::recovery),
    part(
        "iscsi-empty",
        "The cost of iSCSI by itself: units that do nothing, over loopback.",
        iscsi::empty,
    ),
    part("iscsi-read", "Reads over iSCSI of data that both have just written.", iscsi::read),
    part(
        "iscsi-write",
        "Writes over iSCSI. The journal is on the disk, the store's data are in memory.",
        iscsi::write,
    ),
    part(
        "store-gc",
        "What garbage collection writes: the engine of one volume over objects in memory.",
        gc::run,
    ),
    part("store-commit", "How fast the store commits, beside the disk.", store::commit),
    part("store-distant", "How fast the store commits to a slow bucket.", store::distant),
    part("store-requests", "The store's requests to its objects.", store::requests),
    part("store-read", "The cost of a read at the store.", store::read),
    part("store-volumes", "The memory of many volumes in use.", store::volumes),
    part("store-growth", "The costs of a store as something grows.", store::growth),
    part("store-limits", "Two volumes of one tenant below the tenant's limits.", store::limits),
    part("store-failover", "How long a client waits whose store is killed.", store::failover),
];

/// The parts that a command line names, of those whose names begin with `group`.
fn chosen(only: &[String], group: &str, before: bool) -> Result<Vec<&'static Part>> {
    let all = || PARTS.iter().filter(|part| part.name.starts_with(group));
    let wanted = |part: &Part, name: &str| {
        let whole = format!("{name}-");
        part.name == name
            || part.name.starts_with(&whole)
            || part.name.strip_prefix(group).is_some_and(|rest| rest == name)
    };
    for name in only {
        if !all().any(|part| wanted(part, name)) {
            let names: Vec<&str> = all().map(|part| part.name).collect();
            bail!("there is no benchmark `{name}`; there are {}", names.join(", "));
        }
    }
    let everything = |part: &Part| only.is_empty() && (part.name != "before" || before);
    Ok(all()
        .filter(|part| everything(part) || only.iter().any(|name| wanted(part, name)))
        .collect())
}

/// The name of the report: a run of some parts leaves the report of all alone.
fn report_name(only: &[String], group: &str) -> String {
    let names: Vec<&str> = std::iter::once(group.trim_end_matches('-'))
        .chain(only.iter().map(String::as_str))
        .collect();
    let names: Vec<&str> = names.into_iter().filter(|name| !name.is_empty()).collect();
    if names.is_empty() { "report.html".into() } else { format!("report-{}.html", names.join("-")) }
}

/// Runs the chosen parts of a group, or all, and writes the report. A failure does not keep the
/// other parts from running.
///
/// # Errors
/// If a part failed.
pub fn run(args: &BenchArgs, group: &str) -> Result<()> {
    let parts = chosen(&args.only, group, args.before.is_some())?;
    let site = Site::new(args)?;
    adopt_orphans();
    clear_when_interrupted()?;
    let begun = Instant::now();
    let rounds = Rounds {
        wanted: args.rounds,
        retries: args.retries,
        limit: f64::from(args.busy_limit) / 100.0,
        deadline: begun + Duration::from_secs(60 * args.minutes),
    };
    let started = crate::process::output(std::path::Path::new("date"), &["+%F %T %Z"])?;
    let mut machine = machine::machine();
    machine.extend(machine::disk(&site.dir));
    let mut facts = Facts {
        started: format!("Measured from {}", started.trim()),
        machine,
        versions: machine::bench_versions(&site.longhaul),
        rounds,
        command: std::env::args().collect::<Vec<_>>().join(" "),
        left_out: Vec::new(),
    };
    let path = site.path(&report_name(&args.only, group));
    let mut suite = Suite {
        site,
        rounds,
        seconds: args.seconds,
        before: args.before.clone(),
        report: Report::new(args.json.clone()),
        memory: OnceCell::new(),
    };
    let mut failed = Vec::new();
    for part in parts {
        if Instant::now() >= rounds.deadline {
            facts.left_out.push(part.name.into());
            continue;
        }
        suite.report.begin(part.name, part.about);
        let start = Instant::now();
        let outcome = (part.run)(&suite);
        let error = outcome.err().map(|error| format!("{error:#}"));
        failed.extend(error.as_ref().map(|_| part.name));
        suite.report.end(start.elapsed().as_secs_f64(), error);
        suite.clear();
        // After each part: it stays there, whatever happens to the next one.
        std::fs::write(&path, page(&facts, &suite.report.sections()))?;
    }
    if !facts.left_out.is_empty() {
        std::fs::write(&path, page(&facts, &suite.report.sections()))?;
        println!("\nno time was left for: {}", facts.left_out.join(", "));
    }
    println!("\nreport: {}", path.display());
    if !failed.is_empty() {
        bail!("these benchmarks failed: {}", failed.join(", "));
    }
    Ok(())
}

impl Suite {
    /// The directory in memory, which lasts as long as the part.
    pub fn memory(&self) -> Result<&Memory> {
        if let Some(memory) = self.memory.get() {
            return Ok(memory);
        }
        let memory = Memory::new()?;
        Ok(self.memory.get_or_init(|| memory))
    }

    /// Removes what a part left: gigabytes. The logs stay, to look at.
    fn clear(&mut self) {
        self.memory.take();
        for name in FILES {
            let _ = std::fs::remove_file(self.site.path(name));
        }
        for name in DIRECTORIES {
            let _ = std::fs::remove_dir_all(self.site.path(name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(only: &[&str], group: &str) -> Vec<&'static str> {
        let only: Vec<String> = only.iter().map(|&name| name.to_owned()).collect();
        chosen(&only, group, false).unwrap().into_iter().map(|part| part.name).collect()
    }

    #[test]
    fn parts_by_name() {
        assert_eq!(names(&[], "").len(), PARTS.len() - 1, "all but `before`");
        assert_eq!(names(&["flush", "host"], ""), ["host", "flush"]);
        assert_eq!(names(&["before"], ""), ["before"]);
        assert_eq!(names(&["iscsi"], ""), ["iscsi-empty", "iscsi-read", "iscsi-write"]);
        assert_eq!(names(&["store-read"], ""), ["store-read"]);
        assert_eq!(names(&["read"], "iscsi-"), ["iscsi-read"]);
        assert_eq!(names(&[], "iscsi-"), names(&["iscsi"], ""));
        let unknown = chosen(&["read".into()], "", false).err().unwrap().to_string();
        assert!(unknown.contains("there is no benchmark `read`; there are null, "), "{unknown}");
        assert!(chosen(&["host".into()], "store-", false).is_err());
    }

    #[test]
    fn a_part_leaves_the_whole_report_alone() {
        assert_eq!(report_name(&[], ""), "report.html");
        assert_eq!(report_name(&["host".into(), "flush".into()], ""), "report-host-flush.html");
        assert_eq!(report_name(&["read".into()], "iscsi-"), "report-iscsi-read.html");
        assert_eq!(report_name(&[], "store-"), "report-store.html");
    }
}
