//! Logging: filters and output.

use clap::Args;
use clap::builder::BoolishValueParser;
use std::sync::OnceLock;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{fmt, registry, reload};

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

fn filter(text: &str) -> Result<Targets, String> {
    // `object_store` logs each attempt, and longhaul logs the outcomes. A filter that names it gets
    // both.
    format!("object_store=warn,{text}").parse().map_err(|error| format!("{error}"))
}

/// Starts logging on stderr.
pub fn log(args: &LogArgs) {
    let first = filter(&args.log).unwrap_or_else(|error| {
        eprintln!("longhaul: --log {}: {error}; logging at `info`", args.log);
        Targets::new().with_default(tracing::Level::INFO)
    });
    let (filtered, handle) = reload::Layer::new(first);
    let filtered = registry().with(filtered);
    let lines = fmt::layer().with_writer(std::io::stderr);
    if args.log_json {
        filtered.with(lines.json()).init();
    } else {
        use std::io::IsTerminal as _;
        filtered.with(lines.with_ansi(std::io::stderr().is_terminal())).init();
    }
    let set = move |text: &str| handle.reload(filter(text)?).map_err(|error| error.to_string());
    // Logging starts once.
    let _ = SET_LOG.set(Box::new(set));
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

    #[test]
    fn a_filter_is_a_level_or_levels_by_component() {
        let found = filter("info,longhaul_link=debug").unwrap();
        assert!(found.would_enable("longhaul_store", &Level::INFO));
        assert!(!found.would_enable("longhaul_store", &Level::DEBUG));
        assert!(found.would_enable("longhaul_link::session", &Level::DEBUG));
        assert!(!found.would_enable("object_store", &Level::INFO));
        assert!(
            filter("info,object_store=debug").unwrap().would_enable("object_store", &Level::DEBUG)
        );
        assert!(filter("longhaul_link=loud").is_err());
    }
}
