//! Runs the code of each command.

use crate::args::{Command, StoreCommandLine};
use crate::{bench, check, confirm, demo, host, reload, stores, tenant, volume};
use anyhow::Result;
use longhaul_link::relay;
use std::sync::Arc;

/// Runs a command to its end.
///
/// # Errors
/// If it does not succeed; the message says why and what to do.
pub fn run(command: Command) -> Result<()> {
    confirm::confirm(&command)?;
    match command {
        Command::Demo(args) => demo::run(&args),
        Command::Store(args) => match args.command {
            Some(command) => stores::run(&command),
            None => longhaul_store::run(Arc::new(|| reload::read(of_store))),
        },
        Command::Host(_) => longhaul_host::run(&|| reload::read(of_host)),
        Command::Attach(args) => host::attach(&args),
        Command::Detach(args) => host::detach(&args),
        Command::Volume(args) => volume::run(&args),
        Command::Snapshot(args) => volume::snapshot::run(&args),
        Command::Tenant(args) => tenant::run(&args),
        Command::Credential(args) => volume::credentials::run(&args),
        Command::Iscsi(args) => host::iscsi(&args),
        Command::Nbd(args) => host::nbd(&args),
        Command::Limit(args) => host::limit(&args),
        Command::Cache(args) => host::cache(&args),
        Command::Trace(args) => host::trace(&args),
        Command::Status(args) => host::status(&args.admin, args.json),
        Command::Check(args) => check::check(&args.dir, args.journal.as_deref(), args.json),
        Command::BenchNull(args) => {
            longhaul_host::null::bench(&args.nbd, args.iscsi.as_deref(), args.size)
        }
        Command::BenchLink(args) => bench::run(&args),
        Command::Relay(args) => {
            let shape = relay::Shape {
                delay: args.delay,
                rate: args.rate,
                loss: args.loss,
                ..Default::default()
            };
            relay::run(args.listen, args.to, shape, args.control.as_deref())
        }
    }
}

fn of_store(command: Command) -> Option<longhaul_store::StoreArgs> {
    match command {
        Command::Store(args) => {
            let StoreCommandLine { command: None, store } = *args else { return None };
            Some(store)
        }
        _ => None,
    }
}

fn of_host(command: Command) -> Option<longhaul_host::HostArgs> {
    if let Command::Host(args) = command { Some(*args) } else { None }
}
