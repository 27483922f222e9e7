//! Whether the machine was quiet: the processor time that others took during a measurement.
//!
//! `/proc/stat` counts the time of all processors (proc(5)). The benchmark's own time is that of
//! its process, of the children that have ended, and of all descendants that run. Threads of the
//! kernel count for nobody: they also write back data of the benchmark. The rest of the busy time
//! is foreign. Time that a hypervisor stole is foreign, too.

use anyhow::{Context as _, Result};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The kernel's parent of its own threads.
const KTHREADD: u32 = 2;

/// The shortest time in which ticks of 10 ms say something.
const GLANCE: Duration = Duration::from_millis(500);

/// One reading of the machine's clocks, in ticks.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    machine: Machine,
    /// This process, the children it has waited for, and all descendants.
    ours: u64,
    /// The kernel's threads by process and start: some end in between.
    kernel: BTreeMap<(u32, u64), u64>,
}

/// The line `cpu` of /proc/stat.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Machine {
    /// Work of any kind.
    busy: u64,
    /// Time that a hypervisor gave to others.
    stolen: u64,
    /// Everything.
    all: u64,
}

/// A process in /proc/PID/stat.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Process {
    parent: u32,
    /// Its own ticks.
    own: u64,
    /// Those of its children that have ended.
    ended: u64,
    start: u64,
}

impl Reading {
    /// The clocks now.
    ///
    /// # Errors
    /// If there is no /proc.
    pub fn now() -> Result<Reading> {
        let machine = machine(&std::fs::read_to_string("/proc/stat")?)?;
        Ok(Reading::of(machine, &processes()?, std::process::id()))
    }

    fn of(machine: Machine, processes: &BTreeMap<u32, Process>, root: u32) -> Reading {
        let ours = processes
            .iter()
            .filter(|(pid, _)| descends(processes, **pid, root))
            .map(|(_, process)| process.own + process.ended)
            .sum();
        let kernel = processes
            .iter()
            .filter(|(pid, process)| **pid == KTHREADD || process.parent == KTHREADD)
            .map(|(pid, process)| ((*pid, process.start), process.own))
            .collect();
        Reading { machine, ours, kernel }
    }

    /// The share of the machine, 0 to 1, that others took since an earlier reading.
    #[must_use]
    pub fn foreign_since(&self, before: &Reading) -> f64 {
        let all = self.machine.all.saturating_sub(before.machine.all);
        if all == 0 {
            return 0.0;
        }
        let kernel: u64 = self
            .kernel
            .iter()
            .map(|(thread, now)| {
                now.saturating_sub(before.kernel.get(thread).copied().unwrap_or_default())
            })
            .sum();
        let taken = (self.machine.busy + self.machine.stolen)
            .saturating_sub(before.machine.busy + before.machine.stolen);
        let ours = self.ours.saturating_sub(before.ours);
        taken.saturating_sub(ours + kernel) as f64 / all as f64
    }
}

fn processes() -> Result<BTreeMap<u32, Process>> {
    let of = |entry: std::fs::DirEntry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        // It may have ended since.
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some((pid, process(&stat)?))
    };
    Ok(std::fs::read_dir("/proc")?.filter_map(|entry| of(entry.ok()?)).collect())
}

/// Whether a process is `root`, or a descendant of it.
fn descends(processes: &BTreeMap<u32, Process>, mut pid: u32, root: u32) -> bool {
    // As deep as there are processes, should the readings be of different moments.
    for _ in 0..processes.len() {
        if pid == root {
            return true;
        }
        match processes.get(&pid) {
            Some(process) => pid = process.parent,
            None => return false,
        }
    }
    false
}

/// Kills all processes that this one has started, and those that they have started.
pub fn kill_descendants() {
    let (root, Ok(processes)) = (std::process::id(), processes()) else { return };
    let ours = processes.keys().filter(|pid| **pid != root && descends(&processes, **pid, root));
    for pid in ours {
        let pid = i32::try_from(*pid).ok().and_then(rustix::process::Pid::from_raw);
        // One that has ended already is none any more.
        let _ = pid.map(|pid| rustix::process::kill_process(pid, rustix::process::Signal::KILL));
    }
}

fn machine(stat: &str) -> Result<Machine> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu ")).context("no line `cpu`")?;
    let ticks: Vec<u64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
    // User, nice, system, idle, iowait, irq, softirq, steal. Guests are in user and nice already.
    let [user, nice, system, idle, iowait, irq, softirq, stolen] =
        *ticks.first_chunk().context("/proc/stat has fewer than eight columns")?;
    let busy = user + nice + system + irq + softirq;
    Ok(Machine { busy, stolen, all: busy + stolen + idle + iowait })
}

fn process(stat: &str) -> Option<Process> {
    // The name can hold anything, also `)`.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    // proc(5) counts from 1, and the third field is the first here.
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some(Process {
        parent: u32::try_from(field(4)?).ok()?,
        own: field(14)? + field(15)?,
        ended: field(16)? + field(17)?,
        start: field(22)?,
    })
}

/// Makes orphans of its processes its own children. Their time stays known as ours.
pub fn adopt_orphans() {
    // Without it only the time of orphans would be foreign.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
}

/// Waits until others take no more than `limit` for a moment, or until so much time has passed.
///
/// # Errors
/// If there is no /proc.
pub fn wait_for_quiet(limit: f64, patience: Duration) -> Result<()> {
    let begun = Instant::now();
    while begun.elapsed() < patience {
        let before = Reading::now()?;
        std::thread::sleep(GLANCE);
        if Reading::now()?.foreign_since(&before) <= limit {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  100 20 30 700 50 5 15 80 40 0\ncpu0 1 2 3 4 5 6 7 8 0 0\nintr 1\n";

    #[test]
    fn the_machine() {
        let found = machine(STAT).unwrap();
        assert_eq!(found, Machine { busy: 170, stolen: 80, all: 1000 });
        assert!(machine("cpu0 1 2\n").is_err());
        assert!(machine("cpu  1 2 3\n").is_err());
    }

    #[test]
    fn a_process_with_a_bad_name() {
        let stat = "12 (a) b) (c) S 7 1 1 0 -1 4194560 9 8 7 6 11 22 33 44 20 0 1 0 555 1 2 3\n";
        let wanted = Process { parent: 7, own: 33, ended: 77, start: 555 };
        assert_eq!(process(stat), Some(wanted));
        assert_eq!(process("12 (a) S 7"), None);
    }

    fn one(parent: u32, own: u64, ended: u64) -> Process {
        Process { parent, own, ended, start: 1 }
    }

    #[test]
    fn what_others_took() {
        let at = |all, busy, stolen, processes: &[(u32, Process)]| {
            let machine = Machine { busy, stolen, all };
            Reading::of(machine, &processes.iter().copied().collect(), 10)
        };
        // The process 10 with a child and its child; a shell, a stranger, and the kernel's 30.
        let before = at(
            0,
            0,
            0,
            &[
                (1, one(0, 0, 0)),
                (2, one(0, 5, 0)),
                (10, one(1, 10, 0)),
                (11, one(10, 20, 0)),
                (12, one(11, 0, 0)),
                (20, one(1, 500, 0)),
                (30, one(2, 1000, 0)),
            ],
        );
        // The child has ended, its child is an orphan that was adopted, a kernel's thread is new.
        let after = at(
            1000,
            400,
            50,
            &[
                (1, one(0, 0, 0)),
                (2, one(0, 5, 0)),
                (10, one(1, 20, 100)),
                (12, one(10, 60, 0)),
                (20, one(1, 700, 0)),
                (31, one(2, 30, 0)),
            ],
        );
        // Ours: 180 − 30 = 150; the kernel's: 30. Of 450 that leaves 270.
        let share = after.foreign_since(&before);
        assert!((share - 0.27).abs() < 1e-9, "{share}");
    }

    #[test]
    fn stolen_time_is_foreign_and_idle_time_is_not() {
        let of = |machine| Reading { machine, ..Reading::default() };
        let before = of(Machine::default());
        let stolen = of(Machine { busy: 0, stolen: 20, all: 100 });
        assert!((stolen.foreign_since(&before) - 0.2).abs() < 1e-9);
        let idle = of(Machine { busy: 0, stolen: 0, all: 100 });
        assert!(idle.foreign_since(&before).abs() < 1e-9);
        // Nothing has passed; and a sampled clock may count less than the processes.
        assert!(before.foreign_since(&before).abs() < 1e-9);
        let exact = Reading { ours: 50, ..of(Machine { busy: 40, stolen: 0, all: 100 }) };
        assert!(exact.foreign_since(&before).abs() < 1e-9);
    }

    #[test]
    fn this_machine() {
        let before = Reading::now().unwrap();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(200) {
            std::hint::spin_loop();
        }
        let after = Reading::now().unwrap();
        // Other tests run in this process, and anything elsewhere.
        assert!(after.ours - before.ours >= 5, "{before:?} {after:?}");
        assert!((0.0..=1.0).contains(&after.foreign_since(&before)));
    }
}
