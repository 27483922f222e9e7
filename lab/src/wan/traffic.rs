//! UDP traffic from the host's side to the store's, for the emulator's check and tests.

use super::router::run_ahead;
use super::{Side, Wan};
use anyhow::{Context as _, Result};
use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// UDP port of the sink.
const PORT: u16 = 65_000;
/// Bytes of IPv4 and UDP headers.
const HEADERS: u32 = 28;
/// Bytes that may wait for the sink.
const SINK_BUFFER: usize = 64 << 20;
/// The sender sends what is due this often.
const TICK: Duration = Duration::from_millis(1);

/// A stream of datagrams of one size.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// Bytes of each on the wire, 28 to 1500.
    pub packet_bytes: u32,
    /// How many the sender gives the kernel at once, 1 to 40.
    pub batch: u32,
    /// Packets per second.
    pub rate: f64,
}

/// Counts what arrives on the store's side; ends when dropped.
pub struct Sink {
    bytes: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Sink {
    /// Starts one.
    pub fn start(wan: &Wan) -> Result<Sink> {
        let address = (wan.address(Side::Store), PORT);
        let socket = wan.inside(Side::Store, || Ok(UdpSocket::bind(address)?))?;
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, SINK_BUFFER)?;
        set_udp_option(&socket, libc::UDP_GRO, 1)?;
        socket.set_read_timeout(Some(Duration::from_millis(20)))?;
        let (bytes, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, stopped) = (bytes.clone(), stop.clone());
        let thread = std::thread::Builder::new().name("wan-sink".into()).spawn(move || {
            run_ahead();
            let mut buffer = vec![0; 65_536];
            while !stopped.load(Ordering::Relaxed) {
                if let Ok(length) = socket.recv(&mut buffer) {
                    count.fetch_add(length as u64, Ordering::Relaxed);
                }
            }
        })?;
        Ok(Sink { bytes, stop, thread: Some(thread) })
    }

    /// Packets of a flow that have arrived since the start.
    pub fn packets(&self, flow: Flow) -> u64 {
        self.bytes.load(Ordering::Relaxed) / u64::from(flow.packet_bytes - HEADERS)
    }

    /// Waits until nothing has arrived for a while, longer than the line's delay.
    pub fn settle(&self, quiet: Duration) {
        let (mut last, mut since) = (u64::MAX, Instant::now());
        while since.elapsed() < quiet {
            let now = self.bytes.load(Ordering::Relaxed);
            if now != last {
                (last, since) = (now, Instant::now());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Sends for so long, on a thread of its own; says how many packets it sent. It sends what has
/// become due each millisecond, so fewer than asked if the machine is too slow.
pub fn send(wan: &Wan, flow: Flow, length: Duration) -> Result<u64> {
    let socket = wan.inside(Side::Host, || Ok(UdpSocket::bind((wan.address(Side::Host), 0))?))?;
    socket.connect((wan.address(Side::Store), PORT))?;
    let sender = || {
        run_ahead();
        send_from(&socket, flow, length)
    };
    std::thread::scope(|scope| match scope.spawn(sender).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

fn send_from(socket: &UdpSocket, flow: Flow, length: Duration) -> Result<u64> {
    let payload = flow.packet_bytes - HEADERS;
    if flow.batch > 1 {
        set_udp_option(socket, libc::UDP_SEGMENT, payload as libc::c_int)?;
    }
    let datagrams = vec![0; (payload * flow.batch) as usize];
    let start = Instant::now();
    let mut sent = 0;
    while start.elapsed() < length {
        let due = (start.elapsed().as_secs_f64() * flow.rate) as u64;
        // One tick's worth at most: after a busy machine's pause, no burst follows.
        let most = sent + (flow.rate * TICK.as_secs_f64() * 2.0) as u64 + u64::from(flow.batch);
        while sent < due.min(most) {
            socket.send(&datagrams).context("cannot send")?;
            sent += u64::from(flow.batch);
        }
        std::thread::sleep(TICK);
    }
    Ok(sent)
}

/// Sets an integer option of UDP sockets: udp(7).
pub fn set_udp_option(socket: &UdpSocket, option: libc::c_int, value: libc::c_int) -> Result<()> {
    // SAFETY: the call reads the integer it is given the address and size of.
    #[allow(unsafe_code)]
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            option,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if done < 0 {
        return Err(std::io::Error::last_os_error()).context("the kernel lacks UDP offloads");
    }
    Ok(())
}
