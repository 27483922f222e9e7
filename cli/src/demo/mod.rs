//! `longhaul demo`: store and host on this machine, to see and feel what it is.
//!
//! Both are processes of their own, as they would be on two machines; between them is a relay that
//! delays datagrams. Everything is in one directory.

mod client;

use crate::args::DemoArgs;
use crate::host::get;
use anyhow::{Context as _, Result, bail};
use client::Client;
use longhaul_base::units::show_bytes;
use longhaul_link::relay::{Relay, Shape};
use rustix::process::{Pid, Signal};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const VOLUME: &str = "demo";

/// How long a process may take to be ready.
const START_LIMIT: Duration = Duration::from_secs(60);

/// How long a process may take to end: longer than the default drain limit of a host.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// Bytes that the show writes and reads.
const SHOW_BYTES: u64 = 64 << 20;

/// Flushes that the show times.
const SHOW_FLUSHES: u32 = 200;

/// A process of the demo.
struct Running {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

type Processes = Arc<Mutex<Vec<Running>>>;

fn lock(processes: &Processes) -> MutexGuard<'_, Vec<Running>> {
    processes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the demo until Ctrl-C, or until the show is over.
///
/// # Errors
/// If a port is taken, or a process does not start or ends by itself.
pub fn run(args: &DemoArgs) -> Result<()> {
    let (dir, temporary) = match &args.dir {
        Some(dir) => {
            longhaul_base::files::create_dir(dir)?;
            (dir.clone(), false)
        }
        None => (temporary_dir()?, true),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let processes = Processes::default();
    let relay = Arc::default();
    let result = runtime.block_on(until_stopped(args, &dir, &processes, &relay));
    // The host first: it still has something to tell the store.
    let stopped = stop_all(&processes);
    drop(relay);
    if temporary && let Err(error) = std::fs::remove_dir_all(&dir) {
        eprintln!("longhaul: cannot remove {}: {error}", dir.display());
    }
    result.and(stopped)
}

/// A new directory of our own. One that is there already may be someone else's, who could read the
/// credentials in it.
fn temporary_dir() -> Result<PathBuf> {
    use std::os::unix::fs::DirBuilderExt as _;
    let name = format!("longhaul-demo-{:032x}", longhaul_base::random::identity()?);
    let dir = std::env::temp_dir().join(name);
    std::fs::DirBuilder::new().mode(0o700).create(&dir).with_context(|| {
        format!("cannot create {}: choose a directory with --dir", dir.display())
    })?;
    Ok(dir)
}

async fn until_stopped(
    args: &DemoArgs,
    dir: &Path,
    processes: &Processes,
    relay: &Arc<Mutex<Option<Relay>>>,
) -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let show = {
        let (args, dir) = (args.clone(), dir.to_owned());
        let (processes, relay) = (processes.clone(), relay.clone());
        tokio::task::spawn_blocking(move || start_and_show(&args, &dir, &processes, &relay))
    };
    let work = async {
        show.await.context("the show failed")??;
        if args.once {
            return Ok(());
        }
        loop {
            tokio::time::sleep(Duration::from_millis(500)).await;
            watch(processes)?;
        }
    };
    tokio::select! {
        result = work => result,
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
    }
}

/// An error if a process has ended by itself.
fn watch(processes: &Processes) -> Result<()> {
    for running in lock(processes).iter_mut() {
        if let Some(status) = running.child.try_wait()? {
            let log = std::fs::read_to_string(&running.log).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let tail = lines[lines.len().saturating_sub(10)..].join("\n");
            bail!("the {} ended by itself ({status}):\n{tail}", running.name);
        }
    }
    Ok(())
}

fn stop_all(processes: &Processes) -> Result<()> {
    let mut result = Ok(());
    while let Some(mut running) = lock(processes).pop() {
        let deadline = Instant::now() + STOP_LIMIT;
        let pid = i32::try_from(running.child.id()).ok().and_then(Pid::from_raw);
        if running.child.try_wait()?.is_none()
            && let Some(pid) = pid
        {
            rustix::process::kill_process(pid, Signal::TERM)?;
        }
        while running.child.try_wait()?.is_none() {
            if Instant::now() > deadline {
                running.child.kill()?;
                running.child.wait()?;
                result = Err(anyhow::anyhow!(
                    "the {} did not end within {} s and was killed; its log is {}",
                    running.name,
                    STOP_LIMIT.as_secs(),
                    running.log.display()
                ));
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    result
}

/// Leaves the relay in `kept`: the host still drains through it when it stops.
fn start_and_show(
    args: &DemoArgs,
    dir: &Path,
    processes: &Processes,
    kept: &Mutex<Option<Relay>>,
) -> Result<()> {
    let program = std::env::current_exe().context("cannot find the longhaul program")?;
    nbd_is_free(&args.nbd)?;
    let store_udp = UdpSocket::bind("127.0.0.1:0")?.local_addr()?;
    let store_admin = free_admin(7781)?;
    let host_admin = free_admin(7780)?;
    let credential = dir.join("store/credentials/admin.toml");

    say(&format!("starting a store in {}", dir.join("store").display()))?;
    let mut store = Command::new(&program);
    store.arg("store").arg("--data").arg(dir.join("store"));
    store.args(["--listen", &store_udp.to_string(), "--admin", &store_admin.to_string()]);
    spawn("store", store, dir, processes)?;
    wait_for("store", processes, || {
        credential.exists() && get(&store_admin.to_string(), "/healthz").is_ok()
    })?;

    // The directory may be that of an earlier demo.
    let mut look = Command::new(&program);
    look.args(["volume", "show", VOLUME]).arg("--credential").arg(&credential);
    let known = clean(&mut look).output().context("cannot run `longhaul volume show`")?;
    if !known.status.success() {
        let mut create = Command::new(&program);
        create.args(["volume", "create", VOLUME, "--size", &args.size.to_string()]);
        create.arg("--credential").arg(&credential);
        let created = clean(&mut create).output().context("cannot run `longhaul volume create`")?;
        if !created.status.success() {
            let complaint = String::from_utf8_lossy(&created.stderr);
            bail!("cannot create the volume: {}", complaint.trim());
        }
    }

    let relay = if args.wan_delay.is_zero() {
        None
    } else {
        let shape = Shape { delay: args.wan_delay, ..Shape::default() };
        Some(Relay::start(SocketAddr::from(([127, 0, 0, 1], 0)), store_udp, shape)?)
    };
    say(&format!(
        "starting a host in {}, {}",
        dir.join("host").display(),
        if args.wan_delay.is_zero() {
            "next to its store".into()
        } else {
            format!("{:?} each way from its store", args.wan_delay)
        }
    ))?;
    let mut host = Command::new(&program);
    host.arg("host").arg("--credential").arg(&credential).arg("--state").arg(dir.join("host"));
    host.args(["--volume", VOLUME, "--nbd", &args.nbd, "--journal-size", "256MiB"]);
    host.args(["--admin", &host_admin.to_string()]);
    if let Some(iscsi) = &args.iscsi {
        host.args(["--iscsi", iscsi]);
    }
    if let Some(relay) = &relay {
        host.args(["--store", &relay.address().to_string()]);
    }
    *kept.lock().unwrap_or_else(PoisonError::into_inner) = relay;
    if args.write_through {
        host.arg("--write-through");
    }
    spawn("host", host, dir, processes)?;
    wait_for("host", processes, || {
        get(&host_admin.to_string(), "/status").is_ok_and(|status| {
            serde_json::from_str::<serde_json::Value>(&status)
                .is_ok_and(|status| status["volumes"][0]["state"] == "attached")
        })
    })?;
    say(&format!("volume `{VOLUME}` of {} is attached", show_bytes(args.size)))?;

    show(args, dir)?;
    if !args.once {
        explain(args, dir, host_admin, store_admin)?;
    }
    Ok(())
}

/// A command that does not take its settings from this one's environment.
fn clean(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("LONGHAUL_") {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null())
}

fn spawn(
    name: &'static str,
    mut command: Command,
    dir: &Path,
    processes: &Processes,
) -> Result<()> {
    let log = dir.join(format!("{name}.log"));
    let out = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    clean(&mut command).stdout(out.try_clone()?).stderr(out);
    // A Ctrl-C in the terminal is for us: we stop them in the right order.
    let child =
        command.process_group(0).spawn().with_context(|| format!("cannot start the {name}"))?;
    lock(processes).push(Running { name, child, log });
    Ok(())
}

fn wait_for(name: &str, processes: &Processes, ready: impl Fn() -> bool) -> Result<()> {
    let deadline = Instant::now() + START_LIMIT;
    while !ready() {
        watch(processes)?;
        if lock(processes).is_empty() {
            bail!("stopped");
        }
        if Instant::now() > deadline {
            bail!("the {name} is not ready after {} s", START_LIMIT.as_secs());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn nbd_is_free(nbd: &str) -> Result<()> {
    if nbd.starts_with("unix:") {
        return Ok(());
    }
    TcpListener::bind(nbd).map(|_| ()).with_context(|| {
        format!("{nbd} is in use or not an address of this machine: choose another one with --nbd")
    })
}

/// The default admin address, or a free one if something else has it.
fn free_admin(port: u16) -> Result<SocketAddr> {
    let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
    let listener = TcpListener::bind(address(port)).or_else(|_| TcpListener::bind(address(0)))?;
    Ok(listener.local_addr()?)
}

fn uri(nbd: &str) -> String {
    match nbd.strip_prefix("unix:") {
        Some(path) => format!("nbd+unix:///{VOLUME}?socket={path}"),
        None => format!("nbd://{nbd}/{VOLUME}"),
    }
}

/// A client's write and read, and what a flush costs.
fn show(args: &DemoArgs, dir: &Path) -> Result<()> {
    let bytes = SHOW_BYTES.min(args.size);
    if installed("nbdcopy") {
        let (original, copy) = (dir.join("original"), dir.join("copy"));
        let mut random = File::open("/dev/urandom")?.take(bytes);
        std::io::copy(&mut random, &mut File::create(&original)?)?;
        let uri = uri(&args.nbd);
        let took = timed(Command::new("nbdcopy").arg("--flush").arg(&original).arg(&uri))?;
        tell_rate("nbdcopy --flush FILE", &uri, bytes, took)?;
        // Holes cost nothing, and a rate that counts them says nothing: only what was written does.
        let took = timed(Command::new("nbdcopy").arg(&uri).arg(&copy))?;
        tell_rate("nbdcopy", &format!("{uri} FILE"), bytes, took)?;
        same(&original, &copy)?;
        std::fs::remove_file(&original)?;
        std::fs::remove_file(&copy)?;
    } else {
        built_in(args, bytes)?;
    }
    let mut client = Client::open(&args.nbd, VOLUME)?;
    let mut took: Vec<Duration> = (0..SHOW_FLUSHES)
        .map(|number| {
            let started = Instant::now();
            client.write(u64::from(number) * 4096, &[number as u8; 4096])?;
            client.flush()?;
            Ok(started.elapsed())
        })
        .collect::<Result<_>>()?;
    took.sort();
    say(&format!(
        "{SHOW_FLUSHES} times write 4 KiB and flush: median {:.2} ms, slowest {:.2} ms{}",
        took[took.len() / 2].as_secs_f64() * 1e3,
        took[took.len() - 1].as_secs_f64() * 1e3,
        if args.wan_delay.is_zero() {
            String::new()
        } else {
            format!(
                "; a round trip to the store takes {:.1} ms",
                args.wan_delay.as_secs_f64() * 2e3
            )
        }
    ))
}

fn built_in(args: &DemoArgs, bytes: u64) -> Result<()> {
    let mut client = Client::open(&args.nbd, VOLUME)?;
    let piece =
        |at: u64| -> Vec<u8> { (0..1u32 << 20).map(|i| (i as u64 ^ (at >> 18)) as u8).collect() };
    let started = Instant::now();
    for at in (0..bytes >> 20).map(|piece| piece << 20) {
        client.write(at, &piece(at))?;
    }
    client.flush()?;
    tell_rate("write and flush, built-in client", "", bytes, started.elapsed())?;
    let started = Instant::now();
    let mut found = vec![0; 1 << 20];
    for at in (0..bytes >> 20).map(|piece| piece << 20) {
        client.read(at, &mut found)?;
        if found != piece(at) {
            bail!("the data read at {at} differs from the written data");
        }
    }
    tell_rate("read, built-in client", "", bytes, started.elapsed())
}

fn same(original: &Path, copy: &Path) -> Result<()> {
    let bytes = std::fs::metadata(original)?.len();
    let (mut a, mut b) = (File::open(original)?, File::open(copy)?.take(bytes));
    let (mut left, mut right) = (Vec::new(), Vec::new());
    loop {
        left.clear();
        right.clear();
        (&mut a).take(1 << 20).read_to_end(&mut left)?;
        (&mut b).take(1 << 20).read_to_end(&mut right)?;
        if left != right {
            bail!("the read data differs from the written data: please report this");
        }
        if left.is_empty() {
            return say("the read data equals the written data");
        }
    }
}

fn installed(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

fn timed(command: &mut Command) -> Result<Duration> {
    let started = Instant::now();
    let output = command.stdin(Stdio::null()).output()?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(started.elapsed())
}

fn tell_rate(what: &str, detail: &str, bytes: u64, took: Duration) -> Result<()> {
    let seconds = took.as_secs_f64();
    let rate = show_bytes((bytes as f64 / seconds.max(1e-9)) as u64);
    say(&format!("{what} {detail}: {} in {seconds:.2} s ({rate}/s)", show_bytes(bytes)))
}

fn explain(args: &DemoArgs, dir: &Path, host: SocketAddr, store: SocketAddr) -> Result<()> {
    let uri = uri(&args.nbd);
    let mut lines = vec![
        String::new(),
        "Use it as a disk:".into(),
        format!("  nbdinfo {uri}"),
        format!("  qemu-system-x86_64 -drive file={uri},format=raw,if=virtio ..."),
        format!("  nbdfuse /mnt {uri}"),
    ];
    lines.push(match (args.nbd.strip_prefix("unix:"), args.nbd.rsplit_once(':')) {
        (Some(path), _) => {
            format!("  nbd-client -unix {path} -N {VOLUME} /dev/nbd0      (as root)")
        }
        (None, Some((address, port))) => {
            format!("  nbd-client {address} {port} -N {VOLUME} /dev/nbd0      (as root)")
        }
        (None, None) => String::new(),
    });
    if let Some(iscsi) = &args.iscsi {
        let portal = if iscsi.contains(':') { iscsi.clone() } else { format!("{iscsi}:3260") };
        let target = format!("{}{VOLUME}", longhaul_core::front::iscsi::TARGET_PREFIX);
        lines.extend([
            "Over iSCSI:".into(),
            format!("  iscsi-ls -s iscsi://{portal}"),
            format!("  qemu-img info -f raw iscsi://{portal}/{target}/0"),
            format!("  iscsiadm -m discovery -t sendtargets -p {portal}      (as root)"),
            format!("  iscsiadm -m node -T {target} -p {portal} --login      (as root)"),
        ]);
    }
    lines.extend([
        "Look at it:".into(),
        format!("  longhaul status --admin {host}"),
        format!("  curl http://{host}/metrics      (host)"),
        format!("  curl http://{store}/metrics      (store)"),
        format!("  logs: {0}/host.log {0}/store.log", dir.display()),
        "Ctrl-C stops both.".into(),
    ]);
    say(&lines.join("\n"))
}

fn say(text: &str) -> Result<()> {
    writeln!(std::io::stdout(), "{text}").context("cannot write to standard output")
}
