//! Logging: filters and output.

use clap::Args;
use clap::builder::BoolishValueParser;
use std::sync::OnceLock;
use tracing_subscriber::EnvFilter;

/// The flags for logging.
#[derive(Args)]
pub struct LogArgs {
    /// Log filter for stderr: a level (error, warn, info, debug, trace), or levels by component as
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

/// Replaces the filter of the log.
type SetLog = Box<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

/// Set once logging has started.
static SET_LOG: OnceLock<SetLog> = OnceLock::new();

/// Replaces the filter of the log.
///
/// # Errors
/// Why the text is not a filter.
pub fn set_log(filter: &str) -> Result<(), String> {
    SET_LOG.get().map_or(Ok(()), |set| set(filter))
}

fn filter(text: &str) -> Result<EnvFilter, String> {
    // `object_store` logs each attempt, and longhaul logs the outcomes. A filter that names it gets
    // both.
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
