//! Which code runs a command.

use crate::cli::Command;
use anyhow::Result;
use std::path::Path;

/// The command line asks for something that makes no sense: exit status 2 instead of 1.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// Runs a command to its end; `config` is the config file, if there is one.
pub fn run(command: Command, config: Option<&Path>) -> Result<()> {
    crate::confirm::confirm(&command)?;
    match command {
        Command::Demo(args) => crate::demo::run(&args),
        Command::Store(args) => crate::store::run(&args),
        Command::Host(args) => crate::host::run(&args, config),
        Command::Attach(args) => crate::host::attach(&args),
        Command::Detach(args) => crate::host::detach(&args),
        Command::Volume(args) => crate::volume::run(&args),
        Command::Snapshot(args) => crate::volume::snapshot::run(&args),
        Command::Tenant(args) => crate::tenant::run(&args),
        Command::Credential(args) => crate::volume::credentials::run(&args),
        Command::Iscsi(args) => crate::host::iscsi(&args),
        Command::Nbd(args) => crate::host::nbd(&args),
        Command::Limit(args) => crate::host::limit(&args),
        Command::Cache(args) => crate::host::cache(&args),
        Command::Trace(args) => crate::host::trace(&args),
        Command::Status(args) => crate::host::status(&args.admin, args.json),
        Command::Check(args) => crate::check::check(&args.dir, args.json),
        Command::BenchNull(args) => {
            crate::host::null::bench(&args.nbd, args.iscsi.as_deref(), args.size)
        }
        Command::BenchLink(args) => crate::bench::run(&args),
        Command::Relay(args) => {
            let shape = crate::relay::Shape {
                delay: args.delay,
                rate: args.rate,
                loss: args.loss,
                ..Default::default()
            };
            crate::relay::run(args.listen, args.to, shape, args.control.as_deref())
        }
    }
}
