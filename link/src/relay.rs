//! A piece of bad network: a UDP relay that delays, limits, loses and cuts.
//!
//! It stands between host and store in `longhaul demo --wan-delay` and in tests. Each direction is
//! a bottleneck with a drop-tail queue, followed by a constant delay. The relay loses datagrams at
//! random. It does not know the content of datagrams.

use anyhow::{Context as _, Result, bail};
use std::collections::{HashMap, VecDeque};
use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How the network is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// One-way delay, each way.
    pub delay: Duration,
    /// Bits per second each way, of datagrams without IP and UDP headers; `None` for no limit.
    pub rate: Option<u64>,
    /// The share of the datagrams that the relay loses, 0 to 1.
    pub loss: f64,
    /// The relay drops longer datagrams; an Ethernet path's limit by default.
    pub mtu: usize,
    /// Nothing gets through.
    pub cut: bool,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape { delay: Duration::ZERO, rate: None, loss: 0.0, mtu: 1472, cut: false }
    }
}

/// The longest time of a datagram in the queue of a bottleneck; after that the relay drops it.
const QUEUE_TIME: Duration = Duration::from_millis(50);
/// Most bytes on their way in one direction.
const MAX_QUEUED_BYTES: usize = 64 << 20;
/// Most hosts.
const MAX_FLOWS: usize = 64;
/// The time of silence after which the relay forgets a host.
const FLOW_IDLE: Duration = Duration::from_secs(60);
/// How often blocked threads look whether to stop.
const TICK: Duration = Duration::from_millis(100);
/// Enough for any datagram.
const DATAGRAM_BYTES: usize = 65_536;

/// A running relay; it stops when dropped.
pub struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    shape: Mutex<Shape>,
    stop: AtomicBool,
    to_store: Line,
    to_host: Line,
}

/// One direction.
#[derive(Default)]
struct Line {
    queue: Mutex<Queue>,
    wake: Condvar,
    passed: AtomicU64,
    dropped: AtomicU64,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Datagram>,
    bytes: usize,
    /// When the bottleneck will have sent all that it has.
    free_at: Option<Instant>,
}

struct Datagram {
    due: Instant,
    socket: Arc<UdpSocket>,
    to: SocketAddr,
    data: Vec<u8>,
}

impl Relay {
    /// Relays between any sender to `listen`, and `to`.
    ///
    /// # Errors
    /// If this process cannot bind `listen`.
    pub fn start(listen: SocketAddr, to: SocketAddr, shape: Shape) -> Result<Relay> {
        let front = socket(listen).with_context(|| format!("the relay cannot use {listen}"))?;
        let address = front.local_addr()?;
        let shared = Arc::new(Shared {
            shape: Mutex::new(shape),
            stop: AtomicBool::new(false),
            to_store: Line::default(),
            to_host: Line::default(),
        });
        let mut relay = Relay { address, shared, threads: Vec::new() };
        relay.spawn("relay-up", |shared| deliver(shared, &shared.to_store))?;
        relay.spawn("relay-down", |shared| deliver(shared, &shared.to_host))?;
        relay.spawn("relay", move |shared| receive(shared, &Arc::new(front), to))?;
        Ok(relay)
    }

    fn spawn(
        &mut self,
        name: &str,
        body: impl FnOnce(&Arc<Shared>) + Send + 'static,
    ) -> Result<()> {
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || body(&shared))?;
        self.threads.push(thread);
        Ok(())
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How the network is now.
    pub fn shape(&self) -> Shape {
        *lock(&self.shared.shape)
    }

    /// Changes the network from now on. Datagrams on their way stay as they are, unless the change
    /// cuts them.
    pub fn change(&self, change: impl FnOnce(&mut Shape)) {
        change(&mut lock(&self.shared.shape));
    }

    /// Datagrams that passed, and datagrams that the relay dropped, both ways together.
    pub fn counts(&self) -> (u64, u64) {
        let lines = [&self.shared.to_store, &self.shared.to_host];
        let sum = |count: fn(&Line) -> &AtomicU64| {
            lines.iter().map(|line| count(line).load(Ordering::Relaxed)).sum()
        };
        (sum(|line| &line.passed), sum(|line| &line.dropped))
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for line in [&self.shared.to_store, &self.shared.to_host] {
            line.wake.notify_all();
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn socket(address: SocketAddr) -> std::io::Result<UdpSocket> {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_recv_buffer_size(4 << 20)?;
    socket.bind(&address.into())?;
    socket.set_read_timeout(Some(TICK))?;
    Ok(socket.into())
}

/// Takes what hosts send, and starts a thread for the answers to each of them.
fn receive(shared: &Arc<Shared>, front: &Arc<UdpSocket>, to: SocketAddr) {
    let any = match to {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let mut flows: HashMap<SocketAddr, (Arc<UdpSocket>, JoinHandle<()>)> = HashMap::new();
    let mut buffer = vec![0; DATAGRAM_BYTES];
    while let Some((bytes, host)) = next(shared, front, &mut buffer) {
        flows.retain(|_, (_, thread)| !thread.is_finished());
        if !flows.contains_key(&host) && flows.len() < MAX_FLOWS {
            let Ok(back) = socket(any).map(Arc::new) else { continue };
            let (shared, front, answers) = (shared.clone(), front.clone(), back.clone());
            let thread = std::thread::Builder::new()
                .name("relay-flow".into())
                .spawn(move || answer(&shared, &front, &answers, host));
            let Ok(thread) = thread else { continue };
            flows.insert(host, (back, thread));
        }
        if let Some((back, _)) = flows.get(&host) {
            send(shared, &shared.to_store, back, to, &buffer[..bytes]);
        }
    }
    for (_, (_, thread)) in flows {
        let _ = thread.join();
    }
}

fn answer(shared: &Shared, front: &Arc<UdpSocket>, back: &UdpSocket, host: SocketAddr) {
    let mut buffer = vec![0; DATAGRAM_BYTES];
    let mut heard = Instant::now();
    loop {
        match back.recv_from(&mut buffer) {
            Ok((bytes, _)) => {
                heard = Instant::now();
                send(shared, &shared.to_host, front, host, &buffer[..bytes]);
            }
            Err(_) if shared.stop.load(Ordering::Relaxed) || heard.elapsed() > FLOW_IDLE => return,
            Err(error) => pause_unless_timeout(&error),
        }
    }
}

fn next(shared: &Shared, socket: &UdpSocket, buffer: &mut [u8]) -> Option<(usize, SocketAddr)> {
    loop {
        match socket.recv_from(buffer) {
            Ok(received) => return Some(received),
            Err(_) if shared.stop.load(Ordering::Relaxed) => return None,
            Err(error) => pause_unless_timeout(&error),
        }
    }
}

fn pause_unless_timeout(error: &std::io::Error) {
    // A port that is not open answers with an error; that must not make a thread spin.
    if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Puts a datagram on the line, or drops it.
fn send(shared: &Shared, line: &Line, socket: &Arc<UdpSocket>, to: SocketAddr, data: &[u8]) {
    let shape = *lock(&shared.shape);
    let now = Instant::now();
    let mut queue = lock(&line.queue);
    let begins = queue.free_at.map_or(now, |free| free.max(now));
    let lost = shape.loss > 0.0 && fastrand::f64() < shape.loss;
    let full = queue.bytes + data.len() > MAX_QUEUED_BYTES
        || shape.rate.is_some() && begins.duration_since(now) > QUEUE_TIME;
    if shape.cut || lost || full || data.len() > shape.mtu {
        line.dropped.fetch_add(1, Ordering::Relaxed);
        return;
    }
    let sent = match shape.rate {
        Some(rate) => {
            begins + Duration::from_secs_f64(data.len() as f64 * 8.0 / rate.max(1) as f64)
        }
        None => now,
    };
    queue.free_at = Some(sent);
    queue.bytes += data.len();
    let due = sent + shape.delay;
    queue.waiting.push_back(Datagram { due, socket: socket.clone(), to, data: data.to_vec() });
    if queue.waiting.len() == 1 {
        line.wake.notify_one();
    }
}

/// Hands datagrams over when they are due. They stay in order, also when the delay shrinks.
fn deliver(shared: &Shared, line: &Line) {
    let mut queue = lock(&line.queue);
    while !shared.stop.load(Ordering::Relaxed) {
        let wait = match queue.waiting.front() {
            None => TICK,
            Some(first) => first.due.saturating_duration_since(Instant::now()),
        };
        if !wait.is_zero() {
            queue = line.wake.wait_timeout(queue, wait).unwrap_or_else(PoisonError::into_inner).0;
            continue;
        }
        let Some(datagram) = queue.waiting.pop_front() else { continue };
        queue.bytes -= datagram.data.len();
        drop(queue);
        if lock(&shared.shape).cut {
            line.dropped.fetch_add(1, Ordering::Relaxed);
        } else {
            line.passed.fetch_add(1, Ordering::Relaxed);
            // Full buffers and closed ports are losses like any other.
            let _ = datagram.socket.send_to(&datagram.data, datagram.to);
        }
        queue = lock(&line.queue);
    }
}

/// Carries out a command: `cut`, `restore`, `delay 8ms`, `rate 100Mbit/s`, `rate none`, `loss 0.1%`
/// or `status`. Returns what to say.
///
/// # Errors
/// If it is none of them.
pub fn command(relay: &Relay, line: &str) -> Result<String> {
    let (word, value) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
    match word {
        "cut" => relay.change(|shape| shape.cut = true),
        "restore" => relay.change(|shape| shape.cut = false),
        "delay" => {
            let delay = longhaul_base::units::duration(value)?;
            relay.change(|shape| shape.delay = delay);
        }
        "rate" => {
            let rate =
                if value == "none" { None } else { Some(longhaul_base::units::rate(value)?) };
            relay.change(|shape| shape.rate = rate);
        }
        "loss" => {
            let loss = longhaul_base::units::share(value)?;
            relay.change(|shape| shape.loss = loss);
        }
        "status" => {
            let (passed, dropped) = relay.counts();
            return Ok(format!("{:?} passed {passed} dropped {dropped}", relay.shape()));
        }
        _ => bail!(
            "`{word}` is not a command: cut, restore, delay TIME, rate RATE, loss SHARE, status"
        ),
    }
    Ok("ok".to_owned())
}

/// Runs `longhaul relay` until SIGTERM or Ctrl-C: SIGUSR1 cuts, SIGUSR2 restores, and lines on
/// `control`, a unix socket, are [`command`]s.
///
/// # Errors
/// If this process cannot use an address.
pub fn run(listen: SocketAddr, to: SocketAddr, shape: Shape, control: Option<&Path>) -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let relay = Arc::new(Relay::start(listen, to, shape)?);
    if let Some(path) = control {
        if let Err(error) = std::fs::remove_file(path)
            && error.kind() != ErrorKind::NotFound
        {
            return Err(error).with_context(|| format!("cannot replace {}", path.display()));
        }
        let listener = UnixListener::bind(path)
            .with_context(|| format!("cannot listen at {}", path.display()))?;
        let relay = relay.clone();
        std::thread::Builder::new().name("relay-control".into()).spawn(move || {
            for stream in listener.incoming().flatten() {
                let Ok(mut replies) = stream.try_clone() else { continue };
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    let said =
                        command(&relay, &line).unwrap_or_else(|error| format!("error: {error:#}"));
                    if writeln!(replies, "{said}").is_err() {
                        break;
                    }
                }
            }
        })?;
    }
    tracing::info!("relaying {} to {to}", relay.address());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut cut = signal(SignalKind::user_defined1())?;
        let mut restore = signal(SignalKind::user_defined2())?;
        let mut terminate = signal(SignalKind::terminate())?;
        loop {
            tokio::select! {
                _ = cut.recv() => relay.change(|shape| shape.cut = true),
                _ = restore.recv() => relay.change(|shape| shape.cut = false),
                _ = terminate.recv() => return Ok(()),
                result = tokio::signal::ctrl_c() => return result.context("cannot wait for Ctrl-C"),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn echo() -> (SocketAddr, JoinHandle<()>) {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        let address = socket.local_addr().unwrap();
        let thread = std::thread::spawn(move || {
            let mut buffer = [0; 2000];
            while let Ok((bytes, from)) = socket.recv_from(&mut buffer) {
                if bytes == 0 {
                    return;
                }
                socket.send_to(&buffer[..bytes], from).unwrap();
            }
        });
        (address, thread)
    }

    fn ask(socket: &UdpSocket, at: SocketAddr, bytes: usize) -> Option<Duration> {
        let begun = Instant::now();
        socket.send_to(&vec![1; bytes], at).unwrap();
        let mut buffer = [0; 2000];
        socket.recv_from(&mut buffer).ok()?;
        Some(begun.elapsed())
    }

    #[test]
    fn delays_limits_cuts_and_restores() {
        let (store, thread) = echo();
        let shape = Shape { delay: Duration::from_millis(10), ..Shape::default() };
        let relay = Relay::start("127.0.0.1:0".parse().unwrap(), store, shape).unwrap();
        let host = UdpSocket::bind("127.0.0.1:0").unwrap();
        host.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let rtt = ask(&host, relay.address(), 100).unwrap();
        assert!(rtt >= Duration::from_millis(20), "{rtt:?}");

        assert_eq!(ask(&host, relay.address(), 1500), None, "longer than the path's limit");
        assert_eq!(command(&relay, "cut\n").unwrap(), "ok");
        assert_eq!(ask(&host, relay.address(), 100), None);
        command(&relay, "restore").unwrap();
        command(&relay, "delay 0").unwrap();
        assert!(ask(&host, relay.address(), 100).is_some());

        // 1000 bytes at 80 kbit/s take 100 ms, each way.
        command(&relay, "rate 80kbit/s").unwrap();
        let rtt = ask(&host, relay.address(), 1000);
        assert!(rtt.is_none_or(|rtt| rtt >= Duration::from_millis(190)), "{rtt:?}");
        command(&relay, "rate none").unwrap();
        command(&relay, "loss 100%").unwrap();
        std::thread::sleep(Duration::from_millis(200));
        while host.recv_from(&mut [0; 2000]).is_ok() {}
        assert_eq!(ask(&host, relay.address(), 100), None);
        assert!(command(&relay, "status").unwrap().contains("dropped"));
        assert!(command(&relay, "explode").is_err());
        drop(relay);
        host.send_to(&[], store).unwrap();
        thread.join().unwrap();
    }
}
