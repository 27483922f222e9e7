//! Store and host as services: what systemd hears of them, and how they stop.

// A test's harness: a panic is how it reports.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::Read as _;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest wait for anything.
const LIMIT: Duration = Duration::from_secs(60);

struct Service {
    child: Child,
    socket: UnixDatagram,
}

impl Service {
    /// Starts a service with a socket for what it tells systemd.
    fn start(dir: &Path, name: &str, args: &[&str]) -> Service {
        let path: PathBuf = dir.join(format!("{name}.notify"));
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
        command.env("NOTIFY_SOCKET", &path).arg(name).args(args).args(["--admin", "none"]);
        let child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        Service { child, socket }
    }

    fn told(&self) -> String {
        let mut message = [0; 1024];
        let bytes = self.socket.recv(&mut message).expect("systemd is told in time");
        String::from_utf8_lossy(&message[..bytes]).trim().to_owned()
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Its exit code and what it logged.
    fn ended(mut self) -> (Option<i32>, String) {
        let deadline = Instant::now() + LIMIT;
        let code = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status.code(),
                None if Instant::now() > deadline => panic!("it does not end"),
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let mut log = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        (code, log)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It has ended, unless the test fails.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn systemd_is_told_when_they_are_ready_and_when_they_stop() {
    use rustix::process::Signal;
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (data, state) = (path("data"), path("state"));
    let store = Service::start(dir.path(), "store", &["--data", &data, "--listen", "127.0.0.1:0"]);
    assert_eq!(store.told(), "READY=1");
    // Ready means usable: the credential is there, and the store answers.
    let credential = path("data/credentials/admin.toml");
    let host =
        Service::start(dir.path(), "host", &["--credential", &credential, "--state", &state]);
    assert_eq!(host.told(), "READY=1");
    host.signal(Signal::TERM);
    assert_eq!(host.told(), "STOPPING=1");
    let (code, log) = host.ended();
    assert_eq!(code, Some(0), "{log}");
    store.signal(Signal::INT);
    assert_eq!(store.told(), "STOPPING=1");
    let (code, log) = store.ended();
    assert_eq!(code, Some(0), "{log}");
}
