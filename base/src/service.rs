//! The signals of service managers and terminals, and the notices to systemd.

use anyhow::{Context as _, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Tells systemd, if it is there (sd_notify(3)).
pub fn notify(state: sd_notify::NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(false, &[state]) {
        tracing::debug!("cannot notify systemd: {error}");
    }
}

/// Raises the limit of open files as far as the system allows. The usual soft limit of 1024 is too
/// low for the connections and the files of many volumes.
pub fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::debug!("the limit of open files stays as it is: {error}");
    }
}

/// How many files the process may have open.
pub fn open_files_max() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}

/// The signals to stop. Each [`Stop`] sees the signals after its creation.
pub struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    /// From now on SIGTERM and SIGINT do not end the process by themselves.
    ///
    /// # Errors
    /// If the system refuses the handlers.
    pub fn listen() -> Result<Stop> {
        let listen = |kind| signal(kind).context("cannot handle signals");
        Ok(Stop {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    /// Waits for one of the signals.
    pub async fn wait(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Waits for a signal that comes after the call.
    pub async fn wait_again() {
        match Stop::listen() {
            Ok(mut stop) => stop.wait().await,
            Err(_) => std::future::pending().await,
        }
    }
}
