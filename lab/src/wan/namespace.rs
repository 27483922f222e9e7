//! A network namespace without a name. It exists as long as this process holds it or a process is
//! in it. It needs no cleanup, however this process ends.

use anyhow::{Context as _, Result};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A network namespace.
pub struct Namespace {
    fd: Arc<OwnedFd>,
    inode: u64,
}

impl Namespace {
    /// A new one, with nothing but a loopback device that is down. Needs CAP_SYS_ADMIN.
    pub fn new() -> Result<Namespace> {
        // A thread of its own: this one stays where it is.
        let made = on_a_thread(|| -> Result<OwnedFd> {
            leave()?;
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            Ok(rustix::fs::open("/proc/thread-self/ns/net", flags, Mode::empty())?)
        });
        let fd = made.context("cannot make a network namespace")?;
        let inode = rustix::fs::fstat(&fd)?.st_ino;
        Ok(Namespace { fd: Arc::new(fd), inode })
    }

    /// Its identity among all namespaces, as in `net:[4026532000]`.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Runs something on a thread inside. Sockets and devices that it opens stay inside.
    pub fn run<T: Send>(&self, inside: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        on_a_thread(|| {
            enter(&self.fd)?;
            inside()
        })
    }

    /// A command that will run inside.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        let fd = self.fd.clone();
        let inside = move || enter(&fd).map_err(std::io::Error::from);
        // SAFETY: between fork and exec `inside` makes one system call and allocates nothing.
        #[allow(unsafe_code)]
        unsafe {
            command.pre_exec(inside);
        }
        command
    }

    /// How someone else gets inside, as root: `nsenter --net=… COMMAND`.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.fd.as_raw_fd()))
    }
}

/// Ends all processes inside the namespace with this inode: asks them, gives them `grace`, then
/// forces them.
pub fn end_processes(inode: u64, grace: Duration) {
    let start = Instant::now();
    let mut signal = Signal::TERM;
    loop {
        let inside = processes(inode);
        if inside.is_empty() || start.elapsed() > 2 * grace {
            return;
        }
        if signal == Signal::TERM || start.elapsed() > grace {
            for pid in inside {
                let _ = rustix::process::kill_process(pid, signal);
            }
            // Asked once; from then on they are waited for, and forced at the end.
            signal = Signal::KILL;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn processes(inode: u64) -> Vec<Pid> {
    let inside = format!("net:[{inode}]");
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        std::fs::read_link(format!("/proc/{pid}/ns/net"))
            .is_ok_and(|link| link.as_os_str() == inside.as_str())
    })
    .filter_map(Pid::from_raw)
    .collect()
}

fn enter(fd: &OwnedFd) -> Result<(), Errno> {
    rustix::thread::move_into_link_name_space(fd.as_fd(), Some(LinkNameSpaceType::Network))
}

fn leave() -> Result<(), Errno> {
    // SAFETY: only a network namespace is unshared, not the table of file descriptors.
    #[allow(unsafe_code)]
    unsafe {
        rustix::thread::unshare_unsafe(UnshareFlags::NEWNET)
    }
}

fn on_a_thread<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| match scope.spawn(work).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}
