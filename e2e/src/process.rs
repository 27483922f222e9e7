//! Child processes: commands that must end in time, and servers that end with the test.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

/// How long a command may take unless its test says otherwise. Generous: the machine may be busy.
pub const LIMIT: Duration = Duration::from_secs(240);

/// The binary under test: `$LONGHAUL_BIN`, or else what `cargo build` makes of the workspace now.
pub fn longhaul() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        if let Some(path) = std::env::var_os("LONGHAUL_BIN") {
            let path = std::path::absolute(PathBuf::from(path)).unwrap();
            assert!(path.is_file(), "LONGHAUL_BIN={} is not a file", path.display());
            return path;
        }
        // TARGET/PROFILE/deps/e2e-HASH
        let test = std::env::current_exe().unwrap();
        let profile = test.parent().and_then(Path::parent).expect("a test is in TARGET/PROFILE");
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut build = Command::new(cargo);
        build.args(["build", "--quiet", "--workspace", "--bin", "longhaul"]);
        build.arg("--manifest-path").arg(repository().join("Cargo.toml"));
        build.arg("--target-dir").arg(profile.parent().expect("a profile is in TARGET"));
        if profile.ends_with("release") {
            build.arg("--release");
        }
        let status = build.status().expect("cargo can be started");
        assert!(status.success(), "the binary under test does not build");
        profile.join("longhaul")
    })
}

/// The root of the repository.
#[must_use]
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in the repository")
}

/// The output of a command that ended.
pub struct Output {
    /// The command, for messages.
    pub command: String,
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Output {
    /// Panics unless the command succeeded.
    #[track_caller]
    pub fn ok(self) -> Output {
        assert!(self.status.success(), "{self}");
        self
    }

    /// Panics unless the command ended with `code` and said each of `parts` on standard error.
    #[track_caller]
    pub fn fails(self, code: i32, parts: &[&str]) -> Output {
        assert_eq!(self.status.code(), Some(code), "{self}");
        let said = self.stderr.to_lowercase();
        for part in parts {
            assert!(
                said.contains(&part.to_lowercase()),
                "`{part}` is not in the message of {self}"
            );
        }
        self
    }

    /// Standard output as JSON.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("not JSON ({error}): {self}"))
    }
}

impl std::fmt::Display for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (out, err) = (tail(&self.stdout, 60), tail(&self.stderr, 60));
        write!(f, "`{}` ({})\nstdout:\n{out}\nstderr:\n{err}", self.command, self.status)
    }
}

fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

fn shown(command: &Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    for arg in command.get_args() {
        text.push(' ');
        text.push_str(&arg.to_string_lossy());
    }
    text
}

/// A command without the variables that longhaul takes flags, credentials and proxies from. It
/// confirms destructive commands.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy().to_uppercase();
        if text.starts_with("LONGHAUL_") || text.starts_with("AWS_") || text.ends_with("_PROXY") {
            command.env_remove(name);
        }
    }
    // It has no terminal for a question.
    command.env("LONGHAUL_YES", "true");
    command
}

/// Runs a command to its end, killing it after [`LIMIT`].
#[track_caller]
pub fn run<A: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    args: impl IntoIterator<Item = A>,
) -> Output {
    let mut command = command(program);
    command.args(args);
    run_within(command, LIMIT)
}

/// Runs a command to its end; panics if that takes longer than `limit`.
#[track_caller]
pub fn run_within(mut command: Command, limit: Duration) -> Output {
    let shown = shown(&command);
    // Files, not pipes: a command that says more than a pipe holds must not wait for its reader.
    let (out, err) =
        (tempfile::NamedTempFile::new().unwrap(), tempfile::NamedTempFile::new().unwrap());
    command.stdin(Stdio::null());
    command.stdout(out.reopen().unwrap()).stderr(err.reopen().unwrap());
    let child = command.spawn();
    let mut child = child.unwrap_or_else(|error| {
        panic!("`{shown}` cannot be started: {error}; `make test` as root installs what tests need")
    });
    let start = Instant::now();
    let (status, late) = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break (status, false);
        }
        if start.elapsed() > limit {
            let _ = child.kill();
            break (child.wait().unwrap(), true);
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let text = |path: &Path| String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned();
    let output =
        Output { command: shown, status, stdout: text(out.path()), stderr: text(err.path()) };
    assert!(!late, "killed after {limit:?}: {output}");
    output
}

/// A server. A drop kills it; a failed test then shows its log.
pub struct Server {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Server {
    /// Starts a command with its output in `log`.
    #[track_caller]
    pub fn start(name: &str, mut command: Command, log: &Path) -> Server {
        let file = File::options().create(true).append(true).open(log).unwrap();
        command.stdin(Stdio::null());
        command.stdout(file.try_clone().unwrap()).stderr(file);
        let child = command
            .spawn()
            .unwrap_or_else(|error| panic!("`{}` cannot be started: {error}", shown(&command)));
        Server { name: name.into(), child, log: log.into() }
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Everything it has said.
    #[must_use]
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Its exit status, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Polls until `ready`; panics if the server ends or `limit` passes before.
    #[track_caller]
    pub fn wait_until(&mut self, what: &str, limit: Duration, mut ready: impl FnMut() -> bool) {
        let start = Instant::now();
        while !ready() {
            if let Some(status) = self.ended() {
                panic!(
                    "{} ended with {status} before: {what}\n{}",
                    self.name,
                    tail(&self.log(), 40)
                );
            }
            if start.elapsed() > limit {
                panic!("{}: {limit:?} passed before: {what}\n{}", self.name, tail(&self.log(), 40));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits for its end; panics after `limit`.
    #[track_caller]
    pub fn wait(&mut self, limit: Duration) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.ended() {
                return status;
            }
            if start.elapsed() > limit {
                panic!("{} has not ended within {limit:?}\n{}", self.name, tail(&self.log(), 40));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.pid()).unwrap()).unwrap();
        let _ = rustix::process::kill_process(pid, signal);
    }

    /// SIGTERM, then waits for the end.
    #[track_caller]
    pub fn terminate(&mut self, limit: Duration) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait(limit)
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("--- {} ({}):\n{}", self.name, self.log.display(), tail(&self.log(), 60));
        }
    }
}
