//! The admin addresses of host and store, which only listen inside their network namespaces.

use crate::stages::{self, Reading};
use anyhow::{Context as _, Result, bail};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where a process serves `/status` and `/metrics`.
#[derive(Clone, Copy, Debug)]
pub struct Admin {
    /// The process, in whose namespace the address is.
    pub pid: u32,
    /// Its port on loopback.
    pub port: u16,
}

impl Admin {
    /// The state as JSON.
    ///
    /// # Errors
    /// If the process does not answer.
    pub fn status(self) -> Result<Value> {
        let page = self.inside(move || get(self.port, "/status"))?;
        Ok(serde_json::from_str(&page)?)
    }

    /// The product's stage timers.
    ///
    /// # Errors
    /// If the process does not answer.
    pub fn stages(self) -> Result<Reading> {
        Ok(stages::read(&self.inside(move || get(self.port, "/metrics"))?))
    }

    /// Whether it says that it works.
    #[must_use]
    pub fn healthy(self) -> bool {
        self.inside(move || get(self.port, "/healthz")).is_ok()
    }

    fn inside<T: Send>(self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                enter(self.pid)?;
                work()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Asks a host for its state again and again from now on.
    #[must_use]
    pub fn watch(self, interval: Duration) -> Watch {
        let samples = Arc::new(Mutex::new(Vec::new()));
        let (stop, stopped) = channel::<()>();
        let kept = samples.clone();
        let thread = std::thread::spawn(move || {
            enter(self.pid)?;
            loop {
                // A host that is too busy to answer in time has a gap in its series, and no more.
                if let Ok(page) = get(self.port, "/status")
                    && let Some(sample) = Sample::of(&serde_json::from_str(&page)?)
                {
                    kept.lock().unwrap_or_else(PoisonError::into_inner).push(sample);
                }
                match stopped.recv_timeout(interval) {
                    Err(RecvTimeoutError::Timeout) => {}
                    Ok(()) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
                }
            }
        });
        Watch { samples, stop, thread }
    }
}

/// A host's report of its volumes, all together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    /// When.
    pub at: Option<Instant>,
    /// Bytes that the store has not committed.
    pub lag_bytes: f64,
    /// Everything that was ever written.
    pub write_bytes: f64,
}

impl Sample {
    fn of(status: &Value) -> Option<Sample> {
        let volumes = status["volumes"].as_array()?;
        let sum = |get: &dyn Fn(&Value) -> Option<f64>| volumes.iter().filter_map(get).sum();
        Some(Sample {
            at: Some(Instant::now()),
            lag_bytes: sum(&|volume| volume["lag_bytes"].as_f64()),
            write_bytes: sum(&|volume| volume["counters"]["write_bytes"].as_f64()),
        })
    }

    /// Written bytes that the store has committed.
    #[must_use]
    pub fn committed_bytes(&self) -> f64 {
        self.write_bytes - self.lag_bytes
    }
}

/// Samples of a host's state over time.
pub struct Watch {
    samples: Arc<Mutex<Vec<Sample>>>,
    stop: Sender<()>,
    thread: JoinHandle<Result<()>>,
}

impl Watch {
    /// The last sample.
    #[must_use]
    pub fn last(&self) -> Sample {
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        samples.last().copied().unwrap_or_default()
    }

    /// All samples, as seconds since `start`; those before it are left out.
    ///
    /// # Errors
    /// If the host could not be asked at all.
    pub fn finish(self, start: Instant) -> Result<Vec<(f64, Sample)>> {
        drop(self.stop);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let since = |at: Instant| at.checked_duration_since(start).map(|time| time.as_secs_f64());
        Ok(samples.iter().filter_map(|sample| Some((since(sample.at?)?, *sample))).collect())
    }
}

/// Moves this thread into the network namespace of a process.
fn enter(pid: u32) -> Result<()> {
    let path = format!("/proc/{pid}/ns/net");
    let namespace = std::fs::File::open(&path).with_context(|| format!("cannot open {path}"))?;
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .context("cannot enter the network namespace: this needs root")?;
    Ok(())
}

/// The body of an HTTP answer of this machine.
///
/// # Errors
/// If there is none, or it says that something is wrong.
pub fn get(port: u16, path: &str) -> Result<String> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    // HTTP/1.0, so that the answer ends with the connection and has no chunks.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("the answer is no HTTP")?;
    if head.split_whitespace().nth(1) != Some("200") {
        bail!("{path}: {}", head.lines().next().unwrap_or_default());
    }
    Ok(body.to_owned())
}
