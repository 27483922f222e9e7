//! The costs of volumes, of the size of a volume, and of snapshots, as they grow.

use crate::fio::{self, Job, nbd};
use crate::node::{Node, Shape};
use crate::process::{Server, output};
use crate::report::Table;
use crate::suite::Suite;
use anyhow::{Context as _, Result};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

/// Volumes of a host.
const VOLUMES: [usize; 4] = [1, 10, 100, 1000];
/// GiB of a volume.
const SIZES: [u64; 5] = [1, 10, 100, 1000, 10_000];
/// Snapshots of a volume.
const SNAPSHOTS: [usize; 4] = [1, 10, 100, 1000];

/// How long a host and its store are left alone, and are busy.
const IDLE: Duration = Duration::from_secs(20);
const BUSY_SECONDS: u32 = 10;

/// Requests a second of each busy volume.
const RATE: u32 = 10;

/// Bytes of the writes to a volume of some size.
const WRITTEN: u64 = 16 << 20;

/// The use of a process so far.
pub struct Use {
    seconds: f64,
    wakeups: BTreeMap<OsString, u64>,
    at: Instant,
}

impl Use {
    /// Up to now.
    ///
    /// # Errors
    /// If it is not running.
    pub fn of(server: &Server) -> Result<Use> {
        let (seconds, wakeups) = (server.cpu_seconds()?, server.wakeups()?);
        Ok(Use { seconds, wakeups, at: Instant::now() })
    }

    /// Percent of a core, and wake-ups a second, since an earlier look. Those of threads that have
    /// ended do not count.
    pub fn since(&self, before: &Use) -> (f64, f64) {
        let seconds = self.at.duration_since(before.at).as_secs_f64();
        let of = |(thread, count): (&OsString, &u64)| {
            count - before.wakeups.get(thread).copied().unwrap_or(0).min(*count)
        };
        let wakeups: u64 = self.wakeups.iter().map(of).sum();
        ((self.seconds - before.seconds) / seconds * 100.0, wakeups as f64 / seconds)
    }
}

/// A loop device over a file without content.
struct SparseDevice(String);

impl SparseDevice {
    fn new(file: &Path, bytes: u64) -> Result<SparseDevice> {
        std::fs::File::create(file)?.set_len(bytes)?;
        let file = file.display().to_string();
        let made = output(Path::new("losetup"), &["--find", "--show", &file]);
        let made = made.context("no loop device: run this as root")?;
        Ok(SparseDevice(made.trim().to_owned()))
    }
}

impl Drop for SparseDevice {
    fn drop(&mut self) {
        // The kernel does it once nobody has it open any more.
        let _ = output(Path::new("losetup"), &["--detach", &self.0]);
    }
}

fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

/// The head of a table.
pub fn head(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

impl Suite {
    /// The costs of a host and its store as something grows.
    pub fn costs(&self) -> Result<()> {
        self.costs_of_volumes()?;
        self.costs_of_size()?;
        self.costs_of_snapshots()
    }

    /// A node whose journals take only the space that they use.
    fn costly(&self, volumes: &[&str], size: &str) -> Result<(Node, f64, SparseDevice)> {
        // A slot of the device for each volume, and a little more.
        let bytes = (volumes.len() as u64 + 1) * (64 << 20);
        let device = SparseDevice::new(&self.site.path("device.raw"), bytes)?;
        let flags = ["--journal", &device.0, "--journal-size", "64MiB", "--threads", "1"];
        let shape = Shape { volumes, host: &flags, store: &["--threads", "1"], ..Shape::new(size) };
        let (node, attached) = Node::start_unused(&self.site, &shape)?;
        Ok((node, attached, device))
    }

    fn costs_of_volumes(&self) -> Result<()> {
        let mut rows = Vec::new();
        for count in VOLUMES {
            let names: Vec<String> = (0..count).map(|number| format!("v{number}")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let (node, attached, _device) = self.costly(&names, "1GiB")?;
            // The attach has things to do for a while.
            std::thread::sleep(Duration::from_secs(5));
            let mut cells = vec![count.to_string(), format!("{attached:.2}")];
            for server in [&node.host, &node.store] {
                cells.push(mib(server.memory_bytes()?));
            }
            let looks = || -> Result<_> { Ok([Use::of(&node.host)?, Use::of(&node.store)?]) };
            let before = looks()?;
            std::thread::sleep(IDLE);
            for (after, before) in looks()?.iter().zip(&before) {
                let (share, wakeups) = after.since(before);
                cells.push(format!("{share:.2} %, {wakeups:.0}/s"));
            }
            let busy: Vec<_> = names
                .iter()
                .take(count.div_ceil(100))
                .map(|volume| nbd(&self.site, &node.socket, volume))
                .collect();
            let job = Job { rate: Some(RATE), ..Job::new("randwrite", "4k", 1, BUSY_SECONDS) };
            let before = looks()?;
            fio::run(&self.site, &busy, &Job { size: WRITTEN, ..job })?;
            for (after, before) in looks()?.iter().zip(&before) {
                cells.push(format!("{:.2} %", after.since(before).0));
            }
            rows.push(cells);
            node.stop()?;
        }
        self.report.table(Table {
            title: format!(
                "Volumes of a host. Idle: of one core, and wake-ups. Busy: one of a hundred, with \
                 {RATE} writes a second."
            ),
            head: head(&[
                "volumes",
                "s to attach",
                "host MiB",
                "store MiB",
                "host idle",
                "store idle",
                "host busy",
                "store busy",
            ]),
            rows,
        });
        Ok(())
    }

    fn costs_of_size(&self) -> Result<()> {
        let mut rows = Vec::new();
        for gib in SIZES {
            let (node, attached, _device) = self.costly(&["bench"], &format!("{gib}GiB"))?;
            let target = [nbd(&self.site, &node.socket, "bench")];
            let job = Job::new("randwrite", "4k", 32, BUSY_SECONDS);
            let job = Job { size: gib << 30, most: Some(WRITTEN), ..job };
            let before = [node.host.cpu_seconds()?, node.store.cpu_seconds()?];
            let start = Instant::now();
            fio::run(&self.site, &target, &job)?;
            node.wait_drained()?;
            let mut cells = vec![gib.to_string(), format!("{attached:.2}")];
            cells.push(format!("{:.2}", start.elapsed().as_secs_f64()));
            for (server, before) in [&node.host, &node.store].iter().zip(before) {
                cells.push(format!("{:.2}", server.cpu_seconds()? - before));
                cells.push(mib(server.memory_bytes()?));
            }
            rows.push(cells);
            node.stop()?;
        }
        self.report.table(Table {
            title: format!(
                "Size of a volume, with {} MiB of 4 KiB writes anywhere in it",
                WRITTEN >> 20
            ),
            head: head(&[
                "GiB",
                "s to attach",
                "s to write and drain",
                "host CPU s",
                "host MiB",
                "store CPU s",
                "store MiB",
            ]),
            rows,
        });
        Ok(())
    }

    fn costs_of_snapshots(&self) -> Result<()> {
        let (node, _, _device) = self.costly(&["bench"], "10GiB")?;
        let target = [nbd(&self.site, &node.socket, "bench")];
        let few = Job::new("randwrite", "4k", 1, BUSY_SECONDS);
        let few = Job { size: 1 << 30, most: Some(64 << 10), ..few };
        let (mut rows, mut taken) = (Vec::new(), 0);
        for count in SNAPSHOTS {
            let before = [node.host.cpu_seconds()?, node.store.cpu_seconds()?];
            let (start, first) = (Instant::now(), taken);
            while taken < count {
                if taken.is_multiple_of(10) {
                    fio::run(&self.site, &target, &few)?;
                }
                taken += 1;
                node.command(&["snapshot", "create", &format!("bench@s{taken}")])?;
            }
            let each = start.elapsed().as_secs_f64() / (count - first) as f64;
            let mut cells = vec![count.to_string(), format!("{:.1}", each * 1e3)];
            for (server, before) in [&node.host, &node.store].iter().zip(before) {
                let used = (server.cpu_seconds()? - before) / (count - first) as f64;
                cells.push(format!("{:.1}", used * 1e3));
                cells.push(mib(server.memory_bytes()?));
            }
            let start = Instant::now();
            node.command(&["snapshot", "list", "bench"])?;
            cells.push(format!("{:.1}", start.elapsed().as_secs_f64() * 1e3));
            rows.push(cells);
        }
        self.report.table(Table {
            title: "Snapshots of a volume, with 64 KiB of writes before every tenth".into(),
            head: head(&[
                "snapshots",
                "ms for one",
                "host CPU ms for one",
                "host MiB",
                "store CPU ms for one",
                "store MiB",
                "ms to list",
            ]),
            rows,
        });
        node.stop()
    }
}
