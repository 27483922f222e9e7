//! An emulated WAN: two network namespaces, the host's side and the store's. Each has a TUN device
//! whose other end is a router in this process.
//!
//! - [`config`]: the settings of the line. [`line`] is the model: which packets arrive, and when;
//!   [`background`] the traffic it shares its bottleneck with.
//! - [`router`]: the thread that carries packets; [`packet`] what they look like; [`tun`],
//!   [`namespace`] where they come from.
//! - [`stats`], [`probe`]: how well it did. It marks a run that it could not keep up with as
//!   invalid.
//! - [`cli`], [`check`]: `longhaul-lab wan`.
//!
//! Needs root and Linux. Namespaces and devices have no names outside this process and end with it,
//! however it ends. [`Wan`]'s drop ends the processes inside the namespaces, and so do SIGINT and
//! SIGTERM.

mod background;
mod check;
pub mod cli;
mod config;
mod human;
mod line;
mod namespace;
mod packet;
mod probe;
mod router;
mod signals;
mod stats;
#[cfg(test)]
mod tests;
mod traffic;
mod tun;

pub use config::{Background, GilbertElliott, LineConfig, Outages, Reorder, WanConfig};
pub use stats::LineReport;

use anyhow::{Context as _, Result, bail};
use line::Line;
use namespace::Namespace;
use router::{Clock, Command as Order, Direction, Router};
use rustix::event::EventfdFlags;
use serde::Serialize;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Sender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Side of the WAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Where the host gateway and its clients are.
    Host,
    /// Where the store is.
    Store,
}

/// Addresses of the two sides: RFC 2544's range for tests of networks.
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 18, 0, 2)];
/// A run in which more than a hundredth of the packets or probes was later than this is not valid,
/// in microseconds.
pub const LATE_US: f64 = 1000.0;
/// Fewer probes than this say nothing about their 99th percentile.
const PROBES_MIN: u64 = 100;
/// How long processes inside the namespaces have to end when asked to.
const GRACE: Duration = Duration::from_secs(2);

/// A running WAN; it ends when dropped, with the processes inside.
pub struct Wan {
    /// In the order of [`Side`].
    sides: [Namespace; 2],
    /// Gives orders to the router; none when it is to end.
    orders: Option<Sender<Order>>,
    wake: Arc<OwnedFd>,
    thread: Option<std::thread::JoinHandle<()>>,
    probe: Option<probe::Probe>,
    marked: Mutex<Mark>,
}

struct Mark {
    at: Instant,
    drops: [tun::Drops; 2],
    processor_seconds: f64,
}

/// How a span of time went, since the last [`Wan::mark`].
#[derive(Clone, Debug, Serialize)]
pub struct WanReport {
    /// From the host's side to the store's.
    pub to_store: LineReport,
    /// From the store's side to the host's.
    pub to_host: LineReport,
    /// Its length.
    pub seconds: f64,
    /// Processor time of the router.
    pub processor_seconds: f64,
    /// Whether the emulator kept up. If not, measurements through it mean nothing.
    pub valid: bool,
    /// Why not.
    pub reason: Option<String>,
}

impl Wan {
    /// Starts one.
    ///
    /// # Errors
    /// If the configuration makes no sense, or this process is not root, or there is no TUN driver.
    pub fn start(config: &WanConfig) -> Result<Wan> {
        Wan::start_probed(config, probe::INTERVAL)
    }

    fn start_probed(config: &WanConfig, interval: Duration) -> Result<Wan> {
        config.check()?;
        if !rustix::process::geteuid().is_root() {
            bail!("the WAN needs root, for network namespaces and TUN devices");
        }
        let sides = [Namespace::new()?, Namespace::new()?];
        let [host, store] = &sides;
        let host_end = Arc::new(tun::open(host, ADDRESSES[0], ADDRESSES[1])?);
        let store_end = Arc::new(tun::open(store, ADDRESSES[1], ADDRESSES[0])?);
        let clock = Clock::start();
        // The two directions draw from different sequences.
        let to_store = Line::new(config.to_store.clone(), config.seed.wrapping_mul(2));
        let to_host =
            Line::new(config.to_host.clone(), config.seed.wrapping_mul(2).wrapping_add(1));
        let directions = vec![
            Direction::new(host_end.clone(), store_end.clone(), to_store),
            Direction::new(store_end, host_end, to_host),
        ];
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let wake = Arc::new(wake);
        let (orders, commands) = std::sync::mpsc::channel();
        let router = Router::new(directions, clock, commands, wake.clone());
        let thread = std::thread::Builder::new()
            .name("wan-router".into())
            .spawn(move || router.run())
            .context("cannot start the router's thread")?;
        signals::watch(&sides.each_ref().map(Namespace::inode))?;
        let mut wan = Wan {
            sides,
            orders: Some(orders),
            wake,
            thread: Some(thread),
            probe: None,
            marked: Mutex::new(Mark {
                at: Instant::now(),
                drops: Default::default(),
                processor_seconds: 0.0,
            }),
        };
        let [host, store] = &wan.sides;
        let sides = [(host, ADDRESSES[0]), (store, ADDRESSES[1])];
        wan.probe = Some(probe::Probe::start(sides, clock, interval)?);
        Ok(wan)
    }

    /// Changes both lines, from now on.
    pub fn set(&self, config: &WanConfig) {
        self.order(Order::Set(0, Box::new(config.to_store.clone())));
        self.order(Order::Set(1, Box::new(config.to_host.clone())));
    }

    /// The address of a side. It has no other network inside.
    #[must_use]
    pub fn address(&self, side: Side) -> Ipv4Addr {
        ADDRESSES[side as usize]
    }

    /// A command that will run inside the namespace of a side.
    #[must_use]
    pub fn command(&self, side: Side, program: &Path) -> Command {
        self.sides[side as usize].command(program)
    }

    /// Runs something on a thread inside the namespace of a side: sockets it opens stay inside.
    pub fn inside<T: Send>(
        &self,
        side: Side,
        inside: impl FnOnce() -> Result<T> + Send,
    ) -> Result<T> {
        self.sides[side as usize].run(inside)
    }

    /// How root gets inside from elsewhere, while this process runs: `nsenter --net=PATH COMMAND`.
    #[must_use]
    pub fn path(&self, side: Side) -> PathBuf {
        self.sides[side as usize].path()
    }

    /// Starts a measured span.
    pub fn mark(&self) {
        let processor_seconds = self.counters().map_or(0.0, |(_, seconds)| seconds);
        self.order(Order::Mark);
        if let Some(probe) = &self.probe {
            probe.mark();
        }
        let drops = self.drops().unwrap_or_default();
        let mark = Mark { at: Instant::now(), drops, processor_seconds };
        *self.marked.lock().unwrap_or_else(PoisonError::into_inner) = mark;
    }

    /// The events since the last mark, or since the start.
    #[must_use]
    pub fn report(&self) -> WanReport {
        let marked = self.marked.lock().unwrap_or_else(PoisonError::into_inner);
        let probe = self.probe.as_ref().map(probe::Probe::errors).unwrap_or_default();
        let counted = self.counters();
        let lost_router = counted.is_none();
        let (counters, processor_seconds) = counted.unwrap_or_default();
        let line =
            |at: usize| LineReport::new(&counters.get(at).cloned().unwrap_or_default(), &probe[at]);
        let mut reasons = Vec::new();
        if lost_router {
            reasons.push("the router's thread has ended".to_owned());
        }
        match self.drops() {
            Err(error) => reasons.push(format!("no counters of the devices: {error:#}")),
            Ok(drops) => {
                let unread = |at: usize| drops[at].unread - marked.drops[at].unread;
                let refused = |at: usize| drops[at].refused - marked.drops[at].refused;
                let names = ["host's", "store's"];
                for (at, name) in names.iter().enumerate() {
                    if unread(at) > 0 {
                        let count = unread(at);
                        reasons.push(format!(
                            "{count} packets of the {name} side were not read in time"
                        ));
                    }
                    if refused(at) > 0 {
                        let count = refused(at);
                        reasons.push(format!("the {name} side did not take {count} packets"));
                    }
                }
            }
        }
        let lines = [line(0), line(1)];
        for (at, (name, line)) in ["store", "host"].iter().zip(&lines).enumerate() {
            if let Some(counters) = counters.get(at) {
                if counters.overflow > 0 {
                    let count = counters.overflow;
                    reasons.push(format!(
                        "{count} packets to the {name} were more than the router holds"
                    ));
                }
                if counters.refused > 0 {
                    let count = counters.refused;
                    reasons.push(format!("{count} packets to the {name} could not be delivered"));
                }
            }
            for (what, late, enough) in [
                ("packets", line.delay_error_p99_us, true),
                ("probes", line.probe_error_p99_us, line.probes >= PROBES_MIN),
            ] {
                if enough && late > LATE_US {
                    reasons.push(format!(
                        "1 % of the {what} to the {name} were {late:.0} µs late or more, over \
                         {LATE_US:.0} µs"
                    ));
                }
            }
        }
        let [to_store, to_host] = lines;
        WanReport {
            to_store,
            to_host,
            seconds: marked.at.elapsed().as_secs_f64(),
            processor_seconds: processor_seconds - marked.processor_seconds,
            valid: reasons.is_empty(),
            reason: (!reasons.is_empty()).then(|| reasons.join("; ")),
        }
    }

    fn drops(&self) -> Result<[tun::Drops; 2]> {
        let [host, store] = &self.sides;
        Ok([tun::drops(host)?, tun::drops(store)?])
    }

    fn counters(&self) -> Option<(Vec<stats::Counters>, f64)> {
        let (to, from) = sync_channel(1);
        self.order(Order::Report(to));
        from.recv().ok()
    }

    fn order(&self, order: Order) {
        // A router that has ended is noticed by the report.
        if let Some(orders) = &self.orders {
            let _ = orders.send(order);
        }
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }
}

impl Drop for Wan {
    fn drop(&mut self) {
        self.probe = None;
        for side in &self.sides {
            namespace::end_processes(side.inode(), GRACE);
        }
        signals::forget(&self.sides.each_ref().map(Namespace::inode));
        self.orders = None;
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
