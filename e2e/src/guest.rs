//! A Linux in an emulated machine, for what only a kernel of its own can show: the initiator that
//! most hosts use. It runs as an ordinary process, needs no root, and reaches this machine's
//! loopback as [`GATEWAY`].
//!
//! `scripts/guest` makes its image. QEMU emulates its processor: it does in seconds what this
//! machine does in tenths, and tests give it little to do.

use crate::device::blockdev;
use crate::process::{LIMIT, Output, Server, command, repository, run_within};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// This machine's 127.0.0.1 as the guest sees it.
pub const GATEWAY: &str = "10.0.2.2";

/// The time limit for a command of the guest; it takes 10 s if nothing else runs.
const BOOT: Duration = Duration::from_secs(180);

/// Longest answer to a command: `tail -c 65536` in base64, and what goes with it.
const MAX_ANSWER: u64 = 100_000;

/// One at a time: each keeps a processor busy.
static TURN: Mutex<()> = Mutex::new(());

/// Kernel and initramfs, made if they are not there yet.
fn image() -> (PathBuf, PathBuf) {
    static MADE: OnceLock<()> = OnceLock::new();
    MADE.get_or_init(|| {
        let made =
            run_within(command(repository().join("scripts/guest")), Duration::from_secs(600));
        made.ok();
    });
    let dir = repository().join("target/guest");
    (dir.join("vmlinuz"), dir.join("initramfs"))
}

/// Unpacks what the guest runs into a directory, which [`Guest::boot_from`] can boot as a file
/// system.
#[track_caller]
pub fn unpack_root(dir: &Path) {
    std::fs::create_dir_all(dir).unwrap();
    let initramfs = image().1;
    let mut cpio = command("cpio");
    cpio.args(["--extract", "--quiet", "--no-absolute-filenames", "--file"]).arg(initramfs);
    cpio.current_dir(dir);
    run_within(cpio, LIMIT).ok();
}

/// A running guest. It ends with the test, and a failed test shows its console.
pub struct Guest {
    machine: Server,
    port: BufReader<UnixStream>,
    next: u64,
    _turn: MutexGuard<'static, ()>,
}

impl Guest {
    /// Boots one, when no other test has one; `dir` is a directory to work in.
    #[track_caller]
    #[must_use]
    pub fn boot(dir: &Path) -> Guest {
        Guest::boot_with(dir, None)
    }

    /// The same with its root file system on a unit that QEMU's initiator is logged in to; `uri`
    /// names it.
    #[track_caller]
    #[must_use]
    pub fn boot_from(dir: &Path, uri: &str) -> Guest {
        Guest::boot_with(dir, Some(uri))
    }

    #[track_caller]
    fn boot_with(dir: &Path, root: Option<&str>) -> Guest {
        let (kernel, initramfs) = image();
        // A test that has failed has left nothing that the next one would see.
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let (agent, console) = (dir.join("guest.agent"), dir.join("guest.console"));
        let text = |path: &Path| path.to_str().expect("temporary paths are text").to_owned();
        let mut machine = command("qemu-system-x86_64");
        machine.args(["-machine", "q35", "-accel", "tcg", "-cpu", "max", "-smp", "1", "-m", "640"]);
        machine.args(["-nodefaults", "-display", "none", "-no-reboot"]);
        machine.arg("-kernel").arg(kernel).arg("-initrd").arg(initramfs);
        // The kernel tests its ciphers at every start, which takes an emulated processor seconds.
        let mut parameters =
            "console=ttyS0 panic=-1 mitigations=off cryptomgr.notests tsc=reliable".to_owned();
        if let Some(uri) = root {
            parameters += " root=/dev/vda";
            machine.arg("-blockdev").arg(format!("{},node-name=root", blockdev(uri)));
            machine.args(["-device", "virtio-blk-pci,drive=root"]);
        }
        machine.args(["-append", &parameters, "-serial", &format!("file:{}", text(&console))]);
        machine.args(["-netdev", "user,id=net,restrict=off"]);
        machine.args(["-device", "virtio-net-pci,netdev=net,romfile="]);
        let port = format!("socket,id=agent,path={},server=on,wait=off", text(&agent));
        machine.args(["-device", "virtio-serial-pci", "-chardev", &port]);
        machine.args(["-device", "virtserialport,chardev=agent,name=agent"]);
        let mut machine = Server::start("guest", machine, &console);
        let mut stream = None;
        machine.wait_until("the machine is made", LIMIT, || {
            stream = UnixStream::connect(&agent).ok();
            stream.is_some()
        });
        let stream = stream.expect("connected");
        stream.set_read_timeout(Some(BOOT)).unwrap();
        let mut guest = Guest { machine, port: BufReader::new(stream), next: 1, _turn: turn };
        let ready = guest.line();
        assert_eq!(ready, "ready", "what the guest says first\n{}", guest.machine.log());
        guest
    }

    #[track_caller]
    fn line(&mut self) -> String {
        let mut line = String::new();
        let mut port = std::io::Read::take(&mut self.port, MAX_ANSWER);
        let read = port.read_line(&mut line);
        match read {
            Ok(length) if length > 0 && line.ends_with('\n') => line.trim_end().to_owned(),
            read => {
                panic!("the guest does not answer ({read:?}); its console:\n{}", self.console())
            }
        }
    }

    /// The messages of its kernel.
    #[must_use]
    pub fn console(&self) -> String {
        self.machine.log()
    }

    /// Runs a shell script in it; the output is what it said on both outputs, in `stdout`.
    #[track_caller]
    pub fn run(&mut self, script: &str) -> Output {
        self.run_within(script, LIMIT)
    }

    /// [`Guest::run`] with another limit.
    #[track_caller]
    pub fn run_within(&mut self, script: &str, limit: Duration) -> Output {
        let id = self.next;
        self.next += 1;
        self.port.get_ref().set_read_timeout(Some(limit)).unwrap();
        let start = Instant::now();
        writeln!(self.port.get_mut(), "{id} {}", encode(script.as_bytes())).unwrap();
        let line = self.line();
        let mut parts = line.split(' ');
        let mut part = || parts.next().unwrap_or_default();
        assert_eq!(part(), id.to_string(), "the guest's answers are out of step");
        let status: i32 = part().parse().expect("an exit status");
        let stdout = String::from_utf8_lossy(&decode(part())).into_owned();
        if std::env::var_os("LONGHAUL_E2E_KEEP").is_some() {
            eprintln!("guest, {:.1?}, status {status}: {script}\n{stdout}", start.elapsed());
        }
        Output {
            command: format!("guest: {script}"),
            status: ExitStatus::from_raw(status << 8),
            stdout,
            stderr: String::new(),
        }
    }

    /// Has it write everything back and switch itself off.
    #[track_caller]
    pub fn power_off(mut self) {
        self.run("sync; mount -o remount,ro / && (sleep 0.5; poweroff -f) >/dev/null 2>&1 &").ok();
        let status = self.machine.wait(LIMIT);
        assert!(status.success(), "{status}\n{}", self.console());
    }

    /// Starts a script that goes on while others run.
    #[track_caller]
    pub fn start(&mut self, name: &str, script: &str) {
        let script = encode(script.as_bytes());
        self.run(&format!(
            "echo {script} | base64 -d >/run/{name}.sh; rm -f /run/{name}.status
            (sh /run/{name}.sh >/run/{name}.said 2>&1; echo $? >/run/{name}.status) &"
        ))
        .ok();
    }

    /// Whether the command still runs.
    #[track_caller]
    pub fn is_running(&mut self, name: &str) -> bool {
        self.run(&format!("test ! -s /run/{name}.status")).status.success()
    }

    /// Waits for the end of the command, and returns its output.
    #[track_caller]
    pub fn wait(&mut self, name: &str, limit: Duration) -> Output {
        let seconds = limit.as_secs();
        let wait = format!(
            "for i in $(seq {seconds}); do test -s /run/{name}.status && break; sleep 1; done
            cat /run/{name}.said; exit $(cat /run/{name}.status || echo 124)"
        );
        self.run_within(&wait, limit + LIMIT)
    }
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// RFC 4648 §4.
fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte))
            << (8 * (3 - chunk.len()));
        for digit in 0..4 {
            let index = (word >> (18 - 6 * digit)) as usize & 63;
            text.push(if digit <= chunk.len() { DIGITS[index] as char } else { '=' });
        }
    }
    text
}

fn decode(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut word, mut bits) = (0u32, 0);
    for digit in text.bytes().filter(|digit| *digit != b'=') {
        let value = DIGITS.iter().position(|known| *known == digit);
        word = word << 6 | value.expect("the guest answers in base64") as u32;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((word >> bits) as u8);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text), bytes.as_bytes());
        }
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(&encode(&all)), all);
    }
}
