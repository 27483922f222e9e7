//! The flag of commands that destroy something.

use clap::Args;
use clap::builder::BoolishValueParser;

/// Of commands that destroy something.
#[derive(Args)]
pub struct YesArg {
    /// Do it without asking. Without a terminal nothing can be asked, and this must be given.
    #[arg(long, env = "LONGHAUL_YES", value_parser = BoolishValueParser::new())]
    pub yes: bool,
}
