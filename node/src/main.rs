//! `longhaul`: the one binary, with the storage gateway, the host gateway and the commands that
//! manage them.

mod admin;
mod bench;
mod check;
mod cli;
mod commands;
mod confirm;
mod credential;
mod demo;
mod files;
mod histogram;
mod host;
mod keys;
mod limits;
mod link;
mod objects;
mod pattern;
mod random;
mod relay;
mod reload;
mod service;
mod span;
mod store;
mod tenant;
mod text;
mod units;
mod volume;

use clap::Parser as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args = match cli::arguments(std::env::args_os().collect()) {
        Ok(args) => args,
        Err(error) => {
            eprintln!("longhaul: {error:#}");
            return ExitCode::from(2);
        }
    };
    let cli = match cli::Cli::try_parse_from(args) {
        Ok(cli) => cli,
        // Prints help and version on stdout with status 0, usage errors on stderr with status 2.
        Err(error) => error.exit(),
    };
    cli::log(&cli.log);
    match commands::run(cli.command, cli.config.as_deref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("longhaul: {}", text::escaped_lines(&format!("{error:#}")));
            ExitCode::from(if error.is::<commands::Usage>() { 2 } else { 1 })
        }
    }
}
