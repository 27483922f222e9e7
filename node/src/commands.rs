//! Which code runs a command.

use crate::cli::Command;
use anyhow::Result;

/// Runs a command to its end.
pub fn run(command: Command) -> Result<()> {
    match command {
        Command::Demo(_) => anyhow::bail!("not built yet"),
        Command::Store(_) => anyhow::bail!("not built yet"),
        Command::Host(args) => crate::host::run(&args),
        Command::Volume(_) => anyhow::bail!("not built yet"),
        Command::Credential(_) => anyhow::bail!("not built yet"),
        Command::Status(args) => crate::host::status(&args.admin, args.json),
        Command::BenchNull(args) => crate::host::null::bench(&args.nbd, args.size),
        Command::Check(args) => crate::check::check(&args.dir, args.json),
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
