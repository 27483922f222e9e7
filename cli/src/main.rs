//! `longhaul`: the one binary, with the storage gateway, the host gateway and the commands that
//! manage them.

use clap::Parser as _;
use longhaul::{args, commands};
use longhaul_base::{log, text};
use std::process::ExitCode;

fn main() -> ExitCode {
    let given = match args::arguments(std::env::args_os().collect()) {
        Ok(given) => given,
        Err(error) => {
            eprintln!("longhaul: {error:#}");
            return ExitCode::from(2);
        }
    };
    let cli = match args::Cli::try_parse_from(given) {
        Ok(cli) => cli,
        // Prints help and version on stdout with status 0, usage errors on stderr with status 2.
        Err(error) => error.exit(),
    };
    log::log(&cli.log);
    match commands::run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("longhaul: {}", text::escaped_lines(&format!("{error:#}")));
            ExitCode::from(if error.is::<longhaul_base::Usage>() { 2 } else { 1 })
        }
    }
}
