//! Reads the command line of this process again, for the gateways.

use crate::args::{self, Cli, Command};
use anyhow::{Context as _, Result};
use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _};
use longhaul_base::reload::{CommandLine, Settings};
use std::collections::BTreeMap;
use std::ffi::OsString;

/// Reads the command line of this process with its config file, as it is now. `gateway` takes the
/// flags of the gateway that runs.
///
/// # Errors
/// If it is not usable any more, or is another gateway's.
pub fn read<A>(gateway: fn(Command) -> Option<A>) -> Result<CommandLine<A>> {
    parse(args::arguments(std::env::args_os().collect())?, gateway)
}

fn parse<A>(args: Vec<OsString>, gateway: fn(Command) -> Option<A>) -> Result<CommandLine<A>> {
    let matches = Cli::command().try_get_matches_from(args)?;
    let settings = settings(&matches);
    let cli = Cli::from_arg_matches(&matches)?;
    let args = gateway(cli.command).context("the command line is another gateway's")?;
    Ok(CommandLine { args, config: cli.config, log: cli.log.log, settings })
}

fn settings(matches: &ArgMatches) -> Settings {
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
    Settings::new(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(command: Command) -> Option<longhaul_host::HostArgs> {
        if let Command::Host(args) = command { Some(*args) } else { None }
    }

    fn settings(more: &[&str]) -> Settings {
        let args = ["longhaul", "host", "--credential", "c", "--state", "s"];
        parse(args.iter().chain(more).map(OsString::from).collect(), host).unwrap().settings
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
