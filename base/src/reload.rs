//! SIGHUP: a gateway reads its command line and config file again, and applies the values that may
//! change.

use crate::log;
use anyhow::{Context as _, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::PathBuf;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signal. Once this exists the signal does not end the process.
pub struct Reload(Signal);

impl Reload {
    /// Begins to listen.
    ///
    /// # Errors
    /// If the system refuses the handler.
    pub fn listen() -> Result<Reload> {
        Ok(Reload(signal(SignalKind::hangup()).context("cannot handle signals")?))
    }

    /// Waits for the next one.
    pub async fn wait(&mut self) {
        if self.0.recv().await.is_none() {
            std::future::pending().await
        }
    }
}

/// The values of a command's flags, by flag.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings(BTreeMap<String, Vec<OsString>>);

impl Settings {
    /// These values, by `--flag`.
    #[must_use]
    pub fn new(values: BTreeMap<String, Vec<OsString>>) -> Settings {
        Settings(values)
    }

    /// The flags that have another value in `newer`.
    #[must_use]
    pub fn changes(&self, newer: &Settings) -> BTreeSet<String> {
        let differs = |flag: &&String| self.0.get(*flag) != newer.0.get(*flag);
        newer.0.keys().filter(differs).cloned().collect()
    }
}

/// The values of the command line of this process and its config file.
pub struct CommandLine<A> {
    /// The flags of the gateway.
    pub args: A,
    /// The config file, if there is one.
    pub config: Option<PathBuf>,
    /// The filter of `--log`.
    pub log: String,
    /// All values as text, to compare.
    pub settings: Settings,
}

/// Reads the command line of this process with its current config file. Fails if the file is not
/// usable any more.
pub type Read<A> = dyn Fn() -> Result<CommandLine<A>> + Send + Sync;

/// Applies a changed `--log`, and logs which flags took effect and which need a restart. `taken`
/// are the flags that the caller has applied. `more` are other things that it has read again.
pub fn conclude<A>(
    line: &CommandLine<A>,
    changes: &BTreeSet<String>,
    taken: &[&str],
    more: &[&str],
) {
    let mut done: Vec<&str> = more.to_vec();
    let mut waiting = Vec::new();
    for flag in changes {
        if flag == "--log" {
            match log::set_log(&line.log) {
                Ok(()) => done.push(flag),
                Err(error) => tracing::error!("cannot apply the new --log: {error}"),
            }
        } else if taken.contains(&flag.as_str()) {
            done.push(flag);
        } else {
            waiting.push(flag.as_str());
        }
    }
    let done = if done.is_empty() { "nothing".to_owned() } else { done.join(", ") };
    tracing::info!("reloaded: {done}");
    if !waiting.is_empty() {
        tracing::warn!("changed, but not before the next start: {}", waiting.join(", "));
    }
}
