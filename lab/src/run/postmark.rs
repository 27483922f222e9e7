//! PostMark on ext4: the disk as a file (nbdfuse), that file as a loop device, a file system on it.

use super::Run;
use crate::process::{Server, finish, output};
use crate::scenario::Postmark;
use crate::wan::Side;
use anyhow::{Context as _, Result, bail, ensure};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// A block device's file system, mounted; undone when dropped, in whatever state it is.
struct Mounted {
    fuse: Option<(Server, PathBuf)>,
    device: Option<String>,
    directory: PathBuf,
    mounted: bool,
}

impl Mounted {
    /// Makes a file system on the subject's disk and mounts it.
    fn new(run: &Run<'_, '_>, options: Option<&str>) -> Result<Mounted> {
        let directory = run.bench.path("mnt");
        std::fs::create_dir_all(&directory)?;
        // The remains of an interrupted run.
        for (program, stale) in [("umount", &directory), ("fusermount3", &run.bench.path("fuse"))] {
            let _ = output(
                Path::new(program),
                &[if program == "umount" { "-q" } else { "-qu" }, &stale.display().to_string()],
            );
        }
        let mut mounted = Mounted { fuse: None, device: None, directory, mounted: false };
        let file = match &run.file {
            Some(file) => file.clone(),
            None => mounted.fuse(run)?,
        };
        // Direct: the page cache that counts is the file system's.
        let loop_device = ["--find", "--show", "--direct-io=on", &file.display().to_string()];
        let device = output(Path::new("losetup"), &loop_device)?.trim().to_owned();
        mounted.device = Some(device.clone());
        // All of it now: nothing may initialize in the background later.
        let now = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
        output(Path::new("mkfs.ext4"), &["-q", "-F", "-E", now, &device])?;
        let directory = mounted.directory.display().to_string();
        let options = options.map_or_else(|| "noatime".into(), |more| format!("noatime,{more}"));
        output(Path::new("mount"), &["-t", "ext4", "-o", &options, &device, &directory])?;
        mounted.mounted = true;
        // From now on the kernel detaches it at the unmount.
        output(Path::new("losetup"), &["--detach", &device])?;
        mounted.device = None;
        Ok(mounted)
    }

    fn fuse(&mut self, run: &Run<'_, '_>) -> Result<PathBuf> {
        let point = run.bench.path("fuse");
        std::fs::create_dir_all(&point)?;
        let file = point.join("disk");
        let mut command = run.bench.wan.command(Side::Host, Path::new("nbdfuse"));
        command.arg(&file).arg(&run.uri);
        let server = Server::spawn("nbdfuse", command, &run.bench.path("nbdfuse.log"))?;
        let (server, _) = self.fuse.insert((server, point));
        server.wait_until("disk", || file.exists())?;
        Ok(file)
    }

    /// Takes it all down in order.
    fn undo(&mut self) -> Result<()> {
        if std::mem::take(&mut self.mounted) {
            output(Path::new("umount"), &[&self.directory.display().to_string()])?;
        }
        if let Some(device) = self.device.take() {
            output(Path::new("losetup"), &["--detach", &device])?;
        }
        if let Some((server, point)) = self.fuse.take() {
            // The loop device lets go of the file a moment later.
            let mut tries = 0;
            while let Err(error) =
                output(Path::new("fusermount3"), &["-u", &point.display().to_string()])
            {
                ensure!(tries < 100, error);
                tries += 1;
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            server.stop()?;
        }
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = self.undo() {
            eprintln!("the file system in {} is still there: {error:#}", self.directory.display());
        }
    }
}

/// A limit on the memory and page cache of the processes in it.
struct Memory {
    group: PathBuf,
}

impl Memory {
    fn new(bytes: u64) -> Result<Memory> {
        let name = format!("longhaul-lab-{}", std::process::id());
        let (old, new) = (Path::new("/sys/fs/cgroup/memory"), Path::new("/sys/fs/cgroup"));
        let first = old.is_dir();
        let group = if first { old.join(name) } else { new.join(name) };
        std::fs::create_dir_all(&group).context("cannot limit memory: no control groups here")?;
        let limit = if first { "memory.limit_in_bytes" } else { "memory.max" };
        let memory = Memory { group };
        std::fs::write(memory.group.join(limit), bytes.to_string())
            .context("cannot limit memory: the controller `memory` is not there")?;
        Ok(memory)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("sh");
        let script = "echo $$ > \"$1/cgroup.procs\" && shift && exec \"$@\"";
        command.args(["-c", script, "sh"]).arg(&self.group).args(["stdbuf", "-o0", program]);
        command
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.group);
    }
}

/// PostMark's output, and the begin and end of its transactions, in seconds since its start.
struct Said {
    text: String,
    transactions: (f64, f64),
    whole: f64,
}

/// Runs PostMark with a script.
fn postmark(mut command: Command, script: &str) -> Result<Said> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start postmark: is it installed?")?;
    let start = Instant::now();
    let mut input = child.stdin.take().context("no standard input")?;
    input.write_all(script.as_bytes())?;
    drop(input);
    let mut out = child.stdout.take().context("no standard output")?;
    let (mut text, mut buffer) = (String::new(), [0; 4096]);
    let (mut began, mut ended) = (None, None);
    // It counts in whole seconds; its progress, unbuffered, tells more exactly.
    loop {
        let n = out.read(&mut buffer)?;
        if n == 0 {
            break;
        }
        text.push_str(&String::from_utf8_lossy(&buffer[..n]));
        let now = start.elapsed().as_secs_f64();
        if began.is_none() && text.contains("Performing transactions") {
            began = Some(now);
        }
        if ended.is_none() && text.contains("Deleting files") {
            ended = Some(now);
        }
    }
    let status = child.wait()?;
    if !status.success() || text.contains("Error") {
        bail!("postmark failed ({status}):\n{text}");
    }
    let transactions = began.zip(ended).with_context(|| format!("postmark said:\n{text}"))?;
    Ok(Said { text, transactions, whole: start.elapsed().as_secs_f64() })
}

/// The number before ` created`, ` read`, … of PostMark's report.
fn counted(text: &str, what: &str) -> Option<f64> {
    let line = text.lines().map(str::trim).find(|line| line.contains(what))?;
    line.split_whitespace().next()?.parse().ok()
}

impl Run<'_, '_> {
    /// The workload `postmark`.
    pub(super) fn postmark(&mut self, what: &Postmark) -> Result<()> {
        let mut mounted = Mounted::new(self, what.mount.as_deref())?;
        let memory = what.memory.map(|size| Memory::new(size.0)).transpose()?;
        let command = match &memory {
            Some(memory) => memory.command("postmark"),
            None => {
                let mut command = Command::new("stdbuf");
                command.args(["-o0", "postmark"]);
                command
            }
        };
        let script = format!(
            "set size {} {}\nset number {}\nset transactions {}\nset subdirectories {}\n\
             set location {}\nset buffering false\nrun\nquit\n",
            what.smallest.0,
            what.largest.0,
            what.files,
            what.transactions,
            what.directories,
            mounted.directory.display()
        );
        let (said, _) = self.measure(|| postmark(command, &script))?;
        let (began, ended) = said.transactions;
        let seconds = (ended - began).max(1e-3);
        self.figures.insert("transactions_per_s".into(), f64::from(what.transactions) / seconds);
        self.figures.insert("transactions_s".into(), seconds);
        self.figures.insert("whole_s".into(), said.whole);
        for (name, key) in [
            ("created", "created ("),
            ("read", " read ("),
            ("appended", "appended ("),
            ("deleted", "deleted ("),
        ] {
            if let Some(count) = counted(&said.text, key) {
                self.figures.insert(format!("files_{name}"), count);
            }
        }
        mounted.undo()?;
        // PostMark's last writes belong to it: none may remain at its end.
        drop(memory);
        let mut command = Command::new("sync");
        command.arg("-f").arg(self.bench.dir);
        finish(command).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn report_of_postmark() {
        let text = "Files:\n\t57 created (57 per second)\n\t\tCreation alone: 10 files (10 per \
                    second)\n\t48 read (48 per second)\n\nData:\n\t39.65 kilobytes read (39.65 \
                    kilobytes per second)\n";
        assert_eq!(counted(text, "created ("), Some(57.0));
        assert_eq!(counted(text, " read ("), Some(48.0));
        assert_eq!(counted(text, "appended ("), None);
    }
}
