//! SIGHUP: the command line with its config file is read again, and what can change does.

use crate::cli::{self, Cli};
use anyhow::{Context as _, Result};
use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signal. From when it is listened for it does not end the process.
pub struct Reload(Signal);

impl Reload {
    /// Listens.
    ///
    /// # Errors
    /// If signals cannot be handled.
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
    fn of(matches: &ArgMatches) -> Settings {
        let mut values = BTreeMap::new();
        let whole = Cli::command();
        if let Some((name, matches)) = matches.subcommand()
            && let Some(command) = whole.find_subcommand(name)
        {
            for argument in command.get_arguments().chain(whole.get_arguments()) {
                let Some(flag) = argument.get_long() else { continue };
                let given = matches.try_get_raw(argument.get_id().as_str());
                let given = given.ok().flatten().map(|all| all.map(ToOwned::to_owned).collect());
                values.insert(format!("--{flag}"), given.unwrap_or_default());
            }
        }
        Settings(values)
    }

    /// The flags that have another value in `newer`.
    #[must_use]
    pub fn changes(&self, newer: &Settings) -> BTreeSet<String> {
        let differs = |flag: &&String| self.0.get(*flag) != newer.0.get(*flag);
        newer.0.keys().filter(differs).cloned().collect()
    }
}

/// Reads the command line of this process with its config file, as it is now.
///
/// # Errors
/// If it is not usable any more.
pub fn read() -> Result<(Cli, Settings)> {
    parse(cli::arguments(std::env::args_os().collect())?)
}

fn parse(args: Vec<OsString>) -> Result<(Cli, Settings)> {
    let matches = Cli::command().try_get_matches_from(args)?;
    let settings = Settings::of(&matches);
    Ok((Cli::from_arg_matches(&matches)?, settings))
}

/// Takes up another `--log`, where it changed, and says what was taken up and what needs a restart. `taken` are the
/// flags that the caller has taken up, `more` what it has read again besides.
pub fn conclude(cli: &Cli, changes: &BTreeSet<String>, taken: &[&str], more: &[&str]) {
    let mut done: Vec<&str> = more.to_vec();
    let mut waiting = Vec::new();
    for flag in changes {
        if flag == "--log" {
            match cli::set_log(&cli.log.log) {
                Ok(()) => done.push(flag),
                Err(error) => tracing::error!("--log is not taken up: {error}"),
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
        tracing::warn!("changed, and taken up at the next start only: {}", waiting.join(", "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(more: &[&str]) -> Settings {
        let args = ["longhaul", "host", "--credential", "c", "--state", "s"];
        parse(args.iter().chain(more).map(OsString::from).collect()).unwrap().1
    }

    #[test]
    fn what_changed_is_named_by_its_flag() {
        let before = settings(&["--volume", "a", "--drain-rate", "1Mbit/s"]);
        assert!(before.changes(&before.clone()).is_empty());
        let after =
            settings(&["--volume", "a", "--volume", "b", "--write-through", "--log", "debug"]);
        let changes: Vec<String> = before.changes(&after).into_iter().collect();
        assert_eq!(changes, ["--drain-rate", "--log", "--volume", "--write-through"]);
    }
}
