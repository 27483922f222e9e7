//! A directory in memory, of bounded size, that goes with the benchmark.

use crate::process::output;
use crate::quiet::kill_descendants;
use anyhow::{Context as _, Result, bail, ensure};
use std::path::{Path, PathBuf};

const SHARED: &str = "/dev/shm";
const PREFIX: &str = "longhaul-bench-";

/// Its largest size, and the smallest that is of use.
const MOST: u64 = 12 << 30;
const LEAST: u64 = 2 << 30;

/// The directory. It is a tmpfs of its own if this process may mount one, as its size is certain
/// then.
pub struct Memory {
    path: PathBuf,
    bytes: u64,
    mounted: bool,
}

impl Memory {
    /// Makes it, and removes what benchmarks have left behind that did not end in order.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn new() -> Result<Memory> {
        remove_stale(Path::new(SHARED));
        let free = available().context("/proc/meminfo does not say what is available")?;
        // The rest is for the processes and for the page cache of the peers.
        let bytes = (free / 2).min(MOST);
        ensure!(bytes >= LEAST, "{} MiB of memory are available: too little", free >> 20);
        let path = own();
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let mut memory = Memory { path, bytes, mounted: false };
        let place = memory.path.display().to_string();
        let options = format!("size={bytes},mode=700");
        let mount = ["-t", "tmpfs", "-o", &options, "longhaul-bench", &place];
        memory.mounted = output(Path::new("mount"), &mount).is_ok();
        if !memory.mounted {
            let room = rustix::fs::statvfs(SHARED)?;
            let room = room.f_bavail * room.f_frsize;
            ensure!(room >= bytes, "{SHARED} has only {} MiB of room", room >> 20);
        }
        Ok(memory)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it holds.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Fails if it holds more than it may. Only a tmpfs of its own ends writes by itself.
    ///
    /// # Errors
    /// If it is too full for the figures to mean anything.
    pub fn check(&self) -> Result<()> {
        if self.mounted {
            let room = rustix::fs::statvfs(&self.path)?;
            if room.f_bavail * room.f_frsize < 64 << 20 {
                bail!("{} is full: use fewer --seconds or --rounds", self.path.display());
            }
        }
        Ok(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        remove(&self.path, self.mounted);
    }
}

/// The directory of this process.
fn own() -> PathBuf {
    Path::new(SHARED).join(format!("{PREFIX}{}", std::process::id()))
}

/// Ends the benchmark's processes and removes the directory also when somebody interrupts it. Some
/// servers ignore SIGTERM, and the directory can hold half of the machine's memory.
///
/// # Errors
/// If the signals cannot be caught.
pub fn clear_when_interrupted() -> Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            kill_descendants();
            remove(&own(), true);
            std::process::exit(128 + signal);
        }
    });
    Ok(())
}

fn remove(path: &Path, mounted: bool) {
    if mounted {
        // A process that still ends may hold files.
        let place = path.display().to_string();
        let _ = output(Path::new("umount"), &["--lazy", &place]);
    }
    let _ = std::fs::remove_dir_all(path);
}

/// Removes the directories of processes that are gone.
fn remove_stale(shared: &Path) {
    for entry in std::fs::read_dir(shared).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            // Whether one is mounted there is unknown; the command says no if not.
            remove(&entry.path(), true);
        }
    }
}

/// Memory that programs can have without swapping, in bytes.
fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_the_dead_go() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let alive = path(&format!("{PREFIX}{}", std::process::id()));
        // Above the largest number of a process (proc(5), pid_max).
        let dead = path(&format!("{PREFIX}4194305"));
        let other = path("other");
        for path in [&alive, &dead, &other] {
            std::fs::create_dir(path).unwrap();
        }
        std::fs::write(dead.join("data"), "x").unwrap();
        remove_stale(directory.path());
        assert!(alive.exists() && other.exists() && !dead.exists());
        assert!(available().unwrap() > 0);
    }
}
