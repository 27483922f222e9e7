//! Child processes that end with the benchmark, and what they cost.

use anyhow::{Context as _, Result, bail};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A size that /proc/PID/status says, in bytes.
pub fn status_bytes(pid: u32, key: &str) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(key)).context("no such line")?;
    let number = line.split_whitespace().next().context("no number")?;
    Ok(number.parse::<u64>()? * 1024)
}

/// A server that is killed when dropped.
pub struct Server {
    child: Child,
    name: String,
    log: PathBuf,
}

impl Server {
    /// Starts `program` with its output in `log`.
    pub fn start(name: &str, program: &Path, args: &[&str], log: &Path) -> Result<Server> {
        let mut command = Command::new(program);
        command.args(args);
        Server::spawn(name, command, log)
    }

    /// Starts a command with its output in `log`.
    pub fn spawn(name: &str, mut command: Command, log: &Path) -> Result<Server> {
        let output = std::fs::File::create(log)?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let child = command.spawn().with_context(|| {
            format!("cannot start {}: is it installed?", command.get_program().display())
        })?;
        Ok(Server { child, name: name.into(), log: log.into() })
    }

    /// Waits until `ready` holds.
    pub fn wait_until(&mut self, what: &str, mut ready: impl FnMut() -> bool) -> Result<()> {
        let start = Instant::now();
        while !ready() {
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended with {status} before {what}:\n{}", self.name, self.log_tail());
            }
            if start.elapsed() > Duration::from_secs(60) {
                bail!("{}: no {what} within 60 s:\n{}", self.name, self.log_tail());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn log_tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// The process's id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The largest resident set it has had, in bytes, of which anonymous memory is reported
    /// separately by [`Server::memory_bytes`].
    pub fn peak_bytes(&self) -> Result<u64> {
        status_bytes(self.pid(), "VmHWM:")
    }

    /// Anonymous memory now, in bytes.
    pub fn memory_bytes(&self) -> Result<u64> {
        status_bytes(self.pid(), "RssAnon:")
    }

    /// Processor time used so far, in seconds.
    pub fn cpu_seconds(&self) -> Result<f64> {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()))?;
        let after = text.rsplit(')').next().context("no command in stat")?;
        let field = |n: usize| -> Result<f64> {
            Ok(after.split_whitespace().nth(n).context("short stat")?.parse()?)
        };
        // proc(5): utime and stime are fields 14 and 15, in clock ticks of 10 ms.
        Ok((field(11)? + field(12)?) / 100.0)
    }

    /// How often each of its threads has woken up so far, by thread.
    pub fn wakeups(&self) -> Result<BTreeMap<OsString, u64>> {
        let mut all = BTreeMap::new();
        for entry in std::fs::read_dir(format!("/proc/{}/task", self.pid()))? {
            let entry = entry?;
            // It may have ended since.
            let Ok(text) = std::fs::read_to_string(entry.path().join("status")) else { continue };
            let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            all.insert(entry.file_name(), line.context("no such line")?.trim().parse()?);
        }
        Ok(all)
    }

    /// The names of its threads.
    pub fn thread_names(&self) -> Result<Vec<String>> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid()))?;
        // One may have ended since.
        let name = |path: PathBuf| std::fs::read_to_string(path.join("comm")).ok();
        let names = tasks.filter_map(|entry| name(entry.ok()?.path()));
        Ok(names.map(|name| name.trim().to_owned()).collect())
    }

    /// Asks it to end and waits, then forces it.
    pub fn stop(mut self) -> Result<()> {
        let _ = Command::new("kill").arg(self.pid().to_string()).status();
        let start = Instant::now();
        while self.child.try_wait()?.is_none() {
            if start.elapsed() > Duration::from_secs(60) {
                bail!("{} did not end within 60 s of SIGTERM:\n{}", self.name, self.log_tail());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Ends it at once.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command to its end and returns its standard output.
pub fn output(program: &Path, args: &[&str]) -> Result<String> {
    let mut command = Command::new(program);
    command.args(args);
    finish(command)
}

/// Runs a command to its end and returns its standard output.
pub fn finish(mut command: Command) -> Result<String> {
    let out = command.stdin(Stdio::null()).output().with_context(|| {
        format!("cannot start {}: is it installed?", command.get_program().display())
    })?;
    if !out.status.success() {
        let args: Vec<_> = command.get_args().map(std::ffi::OsStr::to_string_lossy).collect();
        bail!(
            "{} {} failed ({}):\n{}{}",
            command.get_program().display(),
            args.join(" "),
            out.status,
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr)
        );
    }
    Ok(String::from_utf8(out.stdout)?)
}
