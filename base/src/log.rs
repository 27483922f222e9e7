//! What is logged, and where.

use clap::Args;
use clap::builder::BoolishValueParser;
use std::sync::OnceLock;
use tracing_subscriber::EnvFilter;

/// What is logged, and how.
#[derive(Args)]
pub struct LogArgs {
    /// What to log on stderr: a level (error, warn, info, debug, trace), or levels by component as
    /// in `info,longhaul_link=debug`.
    #[arg(
        long,
        global = true,
        value_name = "FILTER",
        env = "LONGHAUL_LOG",
        default_value = "info"
    )]
    pub log: String,
    /// Log a JSON object per line.
    #[arg(long, global = true, env = "LONGHAUL_LOG_JSON", value_parser = BoolishValueParser::new())]
    pub log_json: bool,
}

/// Takes another filter for what is logged.
type SetLog = Box<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

/// Set once logging has started.
static SET_LOG: OnceLock<SetLog> = OnceLock::new();

/// Logs by another filter from now on.
///
/// # Errors
/// If it is no filter: why.
pub fn set_log(filter: &str) -> Result<(), String> {
    SET_LOG.get().map_or(Ok(()), |set| set(filter))
}

fn filter(text: &str) -> Result<EnvFilter, String> {
    // It tells of each attempt; what comes of them is told here. Whoever names it gets it.
    EnvFilter::try_new(format!("object_store=warn,{text}")).map_err(|error| error.to_string())
}

/// Starts logging on stderr.
pub fn log(args: &LogArgs) {
    let first = filter(&args.log).unwrap_or_else(|error| {
        eprintln!("longhaul: --log {}: {error}; logging at `info`", args.log);
        EnvFilter::new("info")
    });
    let builder = tracing_subscriber::fmt().with_env_filter(first).with_writer(std::io::stderr);
    let set: SetLog = if args.log_json {
        let builder = builder.json().with_filter_reloading();
        let handle = builder.reload_handle();
        builder.init();
        Box::new(move |text| handle.reload(filter(text)?).map_err(|error| error.to_string()))
    } else {
        use std::io::IsTerminal as _;
        let builder = builder.with_ansi(std::io::stderr().is_terminal()).with_filter_reloading();
        let handle = builder.reload_handle();
        builder.init();
        Box::new(move |text| handle.reload(filter(text)?).map_err(|error| error.to_string()))
    };
    // Logging starts once.
    let _ = SET_LOG.set(set);
}
