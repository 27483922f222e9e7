//! Which code runs a command.

use crate::cli::Command;
use anyhow::Result;

/// Runs a command to its end.
pub fn run(command: Command) -> Result<()> {
    match command {
        Command::Demo(_) => anyhow::bail!("not built yet"),
        Command::Store(args) => crate::store::run(&args),
        Command::Host(_) => anyhow::bail!("not built yet"),
        Command::Volume(args) => crate::volume::run(&args),
        Command::Credential(args) => crate::volume::credential(&args),
        Command::Status(_) => anyhow::bail!("not built yet"),
        Command::Check(_) => anyhow::bail!("not built yet"),
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
