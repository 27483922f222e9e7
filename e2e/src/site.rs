//! A store, hosts and relays with their directories and ports, as an operator would start them.

use crate::client::{Client, Protocol};
use crate::iscsi::TARGET_PREFIX;
use crate::process::{LIMIT, Output, Server, command, longhaul, run, run_within};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long starting, attaching and stopping may take.
pub const START: Duration = Duration::from_secs(180);

/// Journal of a host unless its test says otherwise: small, so that it is soon there and soon full.
pub const SMALL_JOURNAL: &str = "128MiB";

/// A port without a listener over UDP or TCP, which no other test has.
#[must_use]
pub fn free_port() -> u16 {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let mut given = GIVEN.lock().unwrap();
    loop {
        // Below the range that the system gives outgoing connections.
        let port = fastrand::u16(12_000..32_000);
        let free = UdpSocket::bind(("127.0.0.1", port)).is_ok()
            && TcpListener::bind(("127.0.0.1", port)).is_ok();
        if free && given.insert(port) {
            return port;
        }
    }
}

/// A free address on loopback.
#[must_use]
pub fn free_address() -> String {
    format!("127.0.0.1:{}", free_port())
}

/// Status code and body of an HTTP GET; `None` if nobody answers.
#[must_use]
pub fn http_get(address: &str, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let code = head.split_whitespace().nth(1)?.parse().ok()?;
    Some((code, body.to_owned()))
}

/// The value of a metric without labels.
#[track_caller]
#[must_use]
pub fn metric(admin: &str, name: &str) -> f64 {
    let (_, body) = http_get(admin, "/metrics").unwrap_or_else(|| panic!("no answer of {admin}"));
    let sample = body.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let sample = sample.unwrap_or_else(|| panic!("no metric {name} in:\n{body}"));
    sample.parse().unwrap_or_else(|_| panic!("{name} is {sample}"))
}

/// A temporary directory with a store in it, and all that a test adds.
pub struct Site {
    /// The store.
    pub store: Store,
    /// The protocol of its hosts' clients.
    protocol: Protocol,
    dir: TempDir,
}

impl Default for Site {
    fn default() -> Self {
        Self::new()
    }
}

impl Site {
    /// Starts a store.
    #[track_caller]
    #[must_use]
    pub fn new() -> Site {
        let dir = temp_dir();
        let store = Store::start(&dir.path().join("store"));
        Site { store, protocol: Protocol::Nbd, dir }
    }

    /// Starts a store that keeps its objects elsewhere than in its directory.
    #[track_caller]
    #[must_use]
    pub fn with_data(data: &str) -> Site {
        let dir = temp_dir();
        let mut store = Store::stopped(&dir.path().join("store"));
        store.set_data(data);
        store.restart();
        Site { store, protocol: Protocol::Nbd, dir }
    }

    /// With a store that its test has made ready, in the directory of all; not started here.
    #[must_use]
    pub fn around(dir: TempDir, store: Store) -> Site {
        Site { store, protocol: Protocol::Nbd, dir }
    }

    /// Starts a store with a volume of `mib` MiB.
    #[track_caller]
    #[must_use]
    pub fn with_volume(name: &str, mib: u64) -> Site {
        let site = Site::new();
        site.create(name, mib);
        site
    }

    /// Starts a store with an encrypted volume of `mib` MiB, and gives the path of its key file,
    /// too.
    #[track_caller]
    #[must_use]
    pub fn with_encrypted(name: &str, mib: u64) -> (Site, String) {
        let site = Site::new();
        let key = site.path("key").display().to_string();
        run(longhaul(), ["credential", "new-key", &key]).ok();
        let size = format!("{mib}MiB");
        site.volume(["create", name, "--size", &size, "--encrypt", "--key-file", &key]).ok();
        (site, key)
    }

    /// With clients that speak this protocol, instead of NBD.
    #[must_use]
    pub fn over(mut self, protocol: Protocol) -> Site {
        self.protocol = protocol;
        self
    }

    /// Creates a volume.
    #[track_caller]
    pub fn create(&self, name: &str, mib: u64) {
        self.volume(["create", name, "--size", &format!("{mib}MiB")]).ok();
    }

    /// A path in the directory.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs `longhaul volume …` with the store's credential.
    #[track_caller]
    pub fn volume<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Output {
        self.command("volume", args)
    }

    /// Runs `longhaul snapshot …` with the store's credential.
    #[track_caller]
    pub fn snapshot<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Output {
        self.command("snapshot", args)
    }

    #[track_caller]
    fn command<'a>(&self, name: &str, args: impl IntoIterator<Item = &'a str>) -> Output {
        let mut command = command(longhaul());
        command.arg(name).arg("--credential").arg(self.store.credential()).args(args);
        run_within(command, LIMIT)
    }

    /// The store's committed content of a volume.
    #[track_caller]
    #[must_use]
    pub fn export(&self, name: &str) -> Vec<u8> {
        let file = self.path(&format!("export-{name}"));
        let _ = std::fs::remove_file(&file);
        self.volume(["export", name, file.to_str().expect("temporary paths are text")]).ok();
        std::fs::read(file).unwrap()
    }

    /// [`Site::export`], repeated until the store has committed nothing meanwhile. So it is the
    /// image of a moment, although a store may still be busy with a dead host's data.
    #[track_caller]
    #[must_use]
    pub fn export_at_rest(&self, name: &str) -> Vec<u8> {
        let committed = || self.show(name)["live"]["committed"].as_u64();
        let start = Instant::now();
        loop {
            let before = committed();
            let image = self.export(name);
            if committed() == before {
                return image;
            }
            assert!(start.elapsed() < LIMIT, "the store goes on committing to volume {name}");
        }
    }

    /// `longhaul volume show --json`.
    #[track_caller]
    #[must_use]
    pub fn show(&self, name: &str) -> Value {
        self.volume(["show", name, "--json"]).ok().json()
    }

    /// A host with its state in `name`, not started.
    #[must_use]
    pub fn host(&self, name: &str) -> Host {
        let host = Host::new(&self.path(name), &self.store.credential());
        Host { protocol: self.protocol, ..host }
    }
}

/// A directory that goes with the test; kept with `LONGHAUL_E2E_KEEP=1`, to look at.
#[must_use]
pub fn temp_dir() -> TempDir {
    crate::say_failures_at_once();
    let mut dir = tempfile::Builder::new().prefix("longhaul-e2e-").tempdir().unwrap();
    if std::env::var_os("LONGHAUL_E2E_KEEP").is_some() {
        eprintln!("kept: {}", dir.path().display());
        dir.disable_cleanup(true);
    }
    dir
}

/// A storage gateway.
pub struct Store {
    binary: PathBuf,
    dir: PathBuf,
    /// Where hosts reach it.
    pub address: String,
    /// Its admin address.
    pub admin: String,
    flags: Vec<String>,
    /// Where its objects are, if not in the directory.
    data: Option<String>,
    variables: Vec<(String, String)>,
    server: Option<Server>,
}

impl Store {
    /// Starts one on a data directory.
    #[track_caller]
    #[must_use]
    pub fn start(dir: &Path) -> Store {
        let mut store = Store::stopped(dir);
        store.restart();
        store
    }

    /// One that does not run yet.
    #[must_use]
    pub fn stopped(dir: &Path) -> Store {
        let (address, admin) = (free_address(), free_address());
        Store {
            binary: longhaul().into(),
            dir: dir.into(),
            address,
            admin,
            flags: Vec::new(),
            data: None,
            variables: Vec::new(),
            server: None,
        }
    }

    /// Other variables in its environment, from the next start on.
    pub fn set_variables<'a>(&mut self, variables: impl IntoIterator<Item = (&'a str, &'a str)>) {
        let owned = variables.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
        self.variables = owned.collect();
    }

    /// Keeps its objects elsewhere from the next start on, and its state in the directory.
    pub fn set_data(&mut self, data: &str) {
        self.data = Some(data.to_owned());
    }

    /// Another version, from the next start on.
    pub fn set_binary(&mut self, binary: &Path) {
        self.binary = binary.into();
    }

    /// More flags, from the next start on.
    pub fn set_flags<'a>(&mut self, flags: impl IntoIterator<Item = &'a str>) {
        self.flags = flags.into_iter().map(str::to_owned).collect();
    }

    /// The command that starts it.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut store = command(&self.binary);
        store.args(["store", "--listen", &self.address, "--admin", &self.admin, "--data"]);
        match &self.data {
            None => store.arg(&self.dir),
            Some(data) => store.arg(data).arg("--state").arg(&self.dir),
        };
        store.args(&self.flags).envs(self.variables.iter().cloned());
        store
    }

    /// Starts it, after a kill or a stop, on the same directory and addresses.
    #[track_caller]
    pub fn restart(&mut self) {
        self.server = None;
        std::fs::create_dir_all(&self.dir).unwrap();
        let mut server = Server::start("store", self.command(), &self.dir.with_extension("log"));
        let admin = self.admin.clone();
        server.wait_until("the store is ready", START, || {
            http_get(&admin, "/healthz").is_some_and(|(code, _)| code == 200)
        });
        self.server = Some(server);
    }

    /// The running process.
    #[track_caller]
    pub fn server(&mut self) -> &mut Server {
        self.server.as_mut().expect("the store was started")
    }

    /// Its data directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Makes `dir` the state directory of another store of this one's installation.
    #[track_caller]
    pub fn invite(&self, dir: &Path) {
        let store = |what: &str, dir: &Path| {
            let mut store = command(longhaul());
            store.args(["store", what, "--state"]).arg(dir);
            store
        };
        let invitation = dir.with_extension("invitation");
        let printed = run_within(store("invite", &self.dir), LIMIT).ok().stdout;
        std::fs::write(&invitation, printed).unwrap();
        let mut join = store("join", dir);
        join.arg(&invitation);
        run_within(join, LIMIT).ok();
    }

    /// The credential it wrote.
    #[must_use]
    pub fn credential(&self) -> PathBuf {
        self.dir.join("credentials/admin.toml")
    }

    /// SIGTERM, and waits.
    #[track_caller]
    pub fn stop(&mut self) -> ExitStatus {
        let status = self.server().terminate(START);
        self.server = None;
        status
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.kill();
        }
    }

    /// All segments of the one volume in it, oldest first.
    #[must_use]
    pub fn segments(&self) -> Vec<PathBuf> {
        let mut found = files_below(&self.dir);
        found.retain(|path| path.parent().is_some_and(|parent| parent.ends_with("seg")));
        found.sort();
        found
    }
}

/// All files below a directory.
#[must_use]
pub fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files_below(&path)) } else { found.push(path) }
    }
    found
}

/// A volume, VOLUME@SNAPSHOT or TENANT/VOLUME, as iSCSI names it.
#[must_use]
pub fn target(volume: &str) -> String {
    format!("{TARGET_PREFIX}{}", volume.replace('@', ":").replace('/', "::"))
}

/// A host gateway.
pub struct Host {
    binary: PathBuf,
    state: PathBuf,
    credential: PathBuf,
    /// Its admin address.
    pub admin: String,
    /// Flags in addition to those that every host gets.
    pub flags: Vec<String>,
    /// Journal of each volume.
    pub journal_size: String,
    /// Where the journals are, if not in the state directory.
    pub journal_device: Option<PathBuf>,
    protocol: Protocol,
    /// Its iSCSI address, if that is its protocol.
    portal: String,
    server: Option<Server>,
}

impl Host {
    /// With a state directory and a credential; not started.
    #[must_use]
    pub fn new(state: &Path, credential: &Path) -> Host {
        Host {
            binary: longhaul().into(),
            state: state.into(),
            credential: credential.into(),
            admin: free_address(),
            flags: Vec::new(),
            journal_size: SMALL_JOURNAL.into(),
            journal_device: None,
            protocol: Protocol::Nbd,
            portal: free_address(),
            server: None,
        }
    }

    /// Another version, from the next start on.
    pub fn set_binary(&mut self, binary: &Path) {
        self.binary = binary.into();
    }

    /// With these flags in addition.
    #[must_use]
    pub fn with<'a>(mut self, flags: impl IntoIterator<Item = &'a str>) -> Host {
        self.flags.extend(flags.into_iter().map(str::to_owned));
        self
    }

    /// The command that starts it.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut host = command(&self.binary);
        host.args(["host", "--admin", &self.admin, "--journal-size", &self.journal_size]);
        host.arg("--credential").arg(&self.credential).arg("--state").arg(&self.state);
        if let Some(device) = &self.journal_device {
            host.arg("--journal").arg(device);
        }
        if self.protocol == Protocol::Iscsi {
            host.arg("--iscsi").arg(&self.portal);
        }
        host.arg("--nbd").arg(self.nbd()).args(&self.flags);
        host
    }

    /// Starts it; it need not be ready yet.
    #[track_caller]
    pub fn launch(&mut self) {
        self.server = None;
        let log = self.state.with_extension("log");
        self.server = Some(Server::start("host", self.command(), &log));
    }

    /// Starts it and waits until clients can connect.
    #[track_caller]
    pub fn start(&mut self) {
        self.launch();
        let socket = self.socket();
        self.server()
            .wait_until("the host listens", START, || UnixStream::connect(&socket).is_ok());
    }

    /// Starts it and waits for its end, which the test expects within a moment.
    #[track_caller]
    #[must_use]
    pub fn run_to_failure(&self) -> Output {
        run_within(self.command(), START)
    }

    /// The running process.
    #[track_caller]
    pub fn server(&mut self) -> &mut Server {
        self.server.as_mut().expect("the host was started")
    }

    /// Its state directory.
    #[must_use]
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// Uses another state directory from the next start on.
    pub fn set_state(&mut self, state: &Path) {
        self.state = state.into();
    }

    fn socket(&self) -> PathBuf {
        self.state.with_extension("nbd")
    }

    /// Its NBD address as longhaul and [`Client::nbd`] take it.
    #[must_use]
    pub fn nbd(&self) -> String {
        format!("unix:{}", self.socket().display())
    }

    /// A volume as clients name it; attached first, as an operator would, if the host runs.
    #[must_use]
    pub fn uri(&self, volume: &str) -> String {
        if self.server.is_some() && !volume.is_empty() {
            self.name(volume);
        }
        self.uri_only(volume)
    }

    /// A volume as clients name it, attached or not.
    #[must_use]
    pub fn uri_only(&self, volume: &str) -> String {
        match self.protocol {
            Protocol::Nbd => format!("nbd+unix:///{volume}?socket={}", self.socket().display()),
            Protocol::Iscsi => crate::iscsi::url(&self.portal, None, volume),
        }
    }

    /// Runs `longhaul attach`.
    #[track_caller]
    pub fn attach<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Output {
        self.control("attach", args)
    }

    /// Runs `longhaul detach`.
    #[track_caller]
    pub fn detach<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Output {
        self.control("detach", args)
    }

    /// Runs a command of the running host.
    #[track_caller]
    pub fn control<'a>(&self, name: &str, args: impl IntoIterator<Item = &'a str>) -> Output {
        let mut control = command(longhaul());
        control.args([name, "--admin", &self.admin]).args(args);
        run_within(control, LIMIT)
    }

    /// An operator's preparation before a client can use a volume. Versions before this one need
    /// none.
    fn name(&self, volume: &str) {
        let listed = || {
            let (_, body) = http_get(&self.admin, "/status")?;
            let status: Value = serde_json::from_str(&body).ok()?;
            let known = |found: &Value| found["name"] == volume && found["state"] == "attached";
            Some(status["volumes"].as_array()?.iter().any(known))
        };
        if self.binary == longhaul() && listed() == Some(false) {
            // A connecting client sees the error.
            let _ = self.attach([volume]);
        }
    }

    fn connect(&self, volume: &str) -> std::io::Result<Client> {
        match self.protocol {
            Protocol::Nbd => Client::nbd(&self.nbd(), volume),
            Protocol::Iscsi => Client::iscsi(&self.portal, &target(volume)),
        }
    }

    /// A client of a volume, after an attach if need be; tries for a while, like one that should
    /// reconnect.
    #[track_caller]
    #[must_use]
    pub fn client(&self, volume: &str) -> Client {
        let start = Instant::now();
        loop {
            match self.connect(volume) {
                Ok(client) => return client,
                Err(error) if start.elapsed() > START => panic!("no client connects: {error}"),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
            self.name(volume);
        }
    }

    /// A client of a volume, after an attach if need be, or none if the host refuses.
    #[must_use]
    pub fn client_or_refused(&self, volume: &str) -> Option<Client> {
        self.name(volume);
        self.connect(volume).ok()
    }

    /// The text with which the host refuses to attach a volume, or to export it over NBD. While it
    /// only waits for the store, this asks again.
    ///
    /// # Panics
    /// If it exports it.
    #[track_caller]
    #[must_use]
    pub fn refusal(&self, volume: &str) -> String {
        let start = Instant::now();
        loop {
            let attached = self.attach([volume]);
            // A host that is gone counts as connected for a while.
            if attached.stderr.contains("is in use by") && start.elapsed() < START {
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
            if !attached.status.success() {
                return attached.stderr;
            }
            match Client::nbd(&self.nbd(), volume) {
                Ok(_) => panic!("volume {volume} is exported, and must not be"),
                Err(error)
                    if error.kind() == ErrorKind::PermissionDenied
                        && !error.to_string().contains("not attached yet") =>
                {
                    return error.to_string();
                }
                Err(error) if start.elapsed() > START => panic!("no answer: {error}"),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// `longhaul status --json`.
    #[track_caller]
    #[must_use]
    pub fn status(&self) -> Value {
        let mut status = command(longhaul());
        status.args(["status", "--json", "--admin", &self.admin]);
        run_within(status, LIMIT).ok().json()
    }

    /// The status of a volume.
    #[track_caller]
    #[must_use]
    pub fn volume_status(&self, name: &str) -> Value {
        let status = self.status();
        let volumes = status["volumes"].as_array().expect("status has volumes");
        let found = volumes.iter().find(|volume| volume["name"] == name);
        found.unwrap_or_else(|| panic!("no volume {name} in {status}")).clone()
    }

    /// Uncommitted bytes at the store.
    #[track_caller]
    #[must_use]
    pub fn lag_bytes(&self, volume: &str) -> u64 {
        self.volume_status(volume)["lag_bytes"].as_u64().expect("lag_bytes is a number")
    }

    /// Waits until the store has everything.
    #[track_caller]
    pub fn wait_drained(&self, volume: &str, limit: Duration) {
        crate::wait_for("the store has everything", limit, || {
            let status = self.volume_status(volume);
            status["state"] == "attached" && status["lag_bytes"] == 0
        });
    }

    /// Whether the process is there.
    #[must_use]
    pub fn server_is_alive(&self) -> bool {
        let pid = self.server.as_ref().map(Server::pid);
        pid.is_some_and(|pid| Path::new(&format!("/proc/{pid}/exe")).exists())
    }

    /// SIGTERM, and waits.
    #[track_caller]
    pub fn stop(&mut self) -> ExitStatus {
        let status = self.server().terminate(START);
        self.server = None;
        status
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.kill();
        }
    }
}

/// A line between host and store with a throttle and a cut.
pub struct Relay {
    /// Where hosts reach it.
    pub address: String,
    control: PathBuf,
    _server: Server,
}

impl Relay {
    /// Starts one in front of `store`.
    #[track_caller]
    #[must_use]
    pub fn start<'a>(site: &Site, flags: impl IntoIterator<Item = &'a str>) -> Relay {
        let address = free_address();
        let mut relay = command(longhaul());
        relay.args(["relay", "--listen", &address, "--to", &site.store.address]).args(flags);
        let control = site.path(&format!("relay-{address}.control"));
        relay.arg("--control").arg(&control);
        let log = site.path(&format!("relay-{address}.log"));
        let mut server = Server::start("relay", relay, &log);
        // It has its UDP address before it takes commands.
        server.wait_until("the relay listens", START, || UnixStream::connect(&control).is_ok());
        Relay { address, control, _server: server }
    }

    /// Lets nothing through from now on: when this returns, the cut is complete.
    #[track_caller]
    pub fn cut(&self) {
        self.command("cut");
    }

    /// Lets everything through again.
    #[track_caller]
    pub fn restore(&self) {
        self.command("restore");
    }

    #[track_caller]
    fn command(&self, line: &str) {
        let mut stream = UnixStream::connect(&self.control).unwrap();
        stream.set_read_timeout(Some(START)).unwrap();
        writeln!(stream, "{line}").unwrap();
        let mut reply = String::new();
        BufReader::new(stream).read_line(&mut reply).unwrap();
        assert_eq!(reply, "ok\n", "the relay's answer to `{line}`");
    }
}
