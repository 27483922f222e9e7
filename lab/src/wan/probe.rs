//! The emulator's measure of itself: small packets between a socket on one side and a socket on the
//! other. They pass both kernels' network stacks and the router, but not the model. They wait only
//! for the line's delay and do not count as its packets. Their time above the delay is the
//! emulator's error as an application sees it.

use super::line::{Nanos, nanos};
use super::namespace::Namespace;
use super::packet::HEADER;
use super::router::{Clock, run_ahead};
use super::stats::Histogram;
use anyhow::{Context as _, Result};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// UDP port at both sides, and what the probe's packets begin with.
pub const PORT: u16 = 65_533;
const MAGIC: &[u8; 8] = b"longhaul";
/// A packet: magic, time of sending, the delay from the router; both in nanoseconds.
const BYTES: usize = 24;
/// Time between two packets: often enough for a 99th percentile in seconds, rarely enough to cost
/// nothing.
pub const INTERVAL: Duration = Duration::from_millis(20);
/// IPv4 header without options, UDP header.
const HEADERS: usize = 28;

/// If this, read from a device, is one of the probe's packets: notes the delay in it. (The
/// receiving kernel does not look at the checksum of what comes from a socket of this machine.)
pub fn stamp(bytes: &mut [u8], delay: Nanos) -> bool {
    if bytes.len() != HEADER + HEADERS + BYTES {
        return false;
    }
    let (headers, payload) = bytes.split_at_mut(HEADER + HEADERS);
    let port = headers[HEADER + 22..HEADER + 24] == PORT.to_be_bytes();
    if headers[HEADER] != 0x45 || headers[HEADER + 9] != 17 || !port || !payload.starts_with(MAGIC)
    {
        return false;
    }
    payload[16..24].copy_from_slice(&delay.to_ne_bytes());
    true
}

/// Errors toward the store and toward the host.
pub type Errors = [Histogram; 2];

/// The probe's thread; it ends with it.
pub struct Probe {
    errors: Arc<Mutex<Errors>>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Probe {
    /// Starts between the two sides, with a packet each way every `interval`.
    pub fn start(
        sides: [(&Namespace, Ipv4Addr); 2],
        clock: Clock,
        interval: Duration,
    ) -> Result<Probe> {
        let [host, store] = sides.map(|(namespace, address)| {
            namespace.run(|| {
                let socket =
                    UdpSocket::bind((address, PORT)).context("cannot bind the probe's socket")?;
                socket.set_nonblocking(true)?;
                Ok(socket)
            })
        });
        let (host, store) = (host?, store?);
        host.connect((sides[1].1, PORT))?;
        store.connect((sides[0].1, PORT))?;
        let errors = Arc::new(Mutex::new(Errors::default()));
        let stop = Arc::new(AtomicBool::new(false));
        let (shared, stopped) = (errors.clone(), stop.clone());
        let thread = std::thread::Builder::new()
            .name("wan-probe".into())
            .spawn(move || run(&[host, store], clock, nanos(interval), &shared, &stopped))?;
        Ok(Probe { errors, stop, thread: Some(thread) })
    }

    /// Errors since the last [`Probe::mark`].
    pub fn errors(&self) -> Errors {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Forgets the errors so far.
    pub fn mark(&self) {
        *self.errors.lock().unwrap_or_else(PoisonError::into_inner) = Errors::default();
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(
    sockets: &[UdpSocket; 2],
    clock: Clock,
    interval: Nanos,
    errors: &Mutex<Errors>,
    stop: &AtomicBool,
) {
    run_ahead();
    let mut next = clock.now();
    while !stop.load(Ordering::Relaxed) {
        let now = clock.now();
        if now >= next {
            for socket in sockets {
                let mut packet = [0; BYTES];
                packet[..8].copy_from_slice(MAGIC);
                packet[8..16].copy_from_slice(&clock.now().to_ne_bytes());
                // A packet that cannot be sent is missing among the results.
                let _ = socket.send(&packet);
            }
            next = now + interval;
        }
        let wait = Timespec { tv_sec: 0, tv_nsec: next.saturating_sub(clock.now()) as _ };
        let [a, b] = sockets;
        let mut fds = [PollFd::new(a, PollFlags::IN), PollFd::new(b, PollFlags::IN)];
        let _ = rustix::event::poll(&mut fds, Some(&wait));
        let ready = [!fds[0].revents().is_empty(), !fds[1].revents().is_empty()];
        for (side, socket) in sockets.iter().enumerate().filter(|(side, _)| ready[*side]) {
            let mut packet = [0; BYTES];
            while let Ok(BYTES) = socket.recv(&mut packet) {
                let now = clock.now();
                let [sent, delay] = [8, 16].map(|at| {
                    let mut number = [0; 8];
                    number.copy_from_slice(&packet[at..at + 8]);
                    Nanos::from_ne_bytes(number)
                });
                // A packet that arrives at the store's side went toward the store.
                let direction = 1 - side;
                let error = now.saturating_sub(sent.saturating_add(delay));
                let mut errors = errors.lock().unwrap_or_else(PoisonError::into_inner);
                errors[direction].record(error);
            }
        }
    }
}
