//! Common parts of the gateways, the link and the objects: files, disks, limits, units, logs,
//! signals.
//!
//! It knows no volume, no protocol and no command.

pub mod cache_file;
pub mod device;
pub mod dirs;
pub mod disk;
pub mod files;
pub mod histogram;
pub mod limits;
pub mod log;
pub mod pattern;
pub mod random;
pub mod reload;
pub mod service;
pub mod span;
pub mod text;
pub mod threads;
pub mod units;

/// The command line or the configuration is wrong: exit status 2 instead of 1.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// The name and the version of this program, for peers and for files.
#[must_use]
pub fn software() -> String {
    concat!("longhaul ", env!("CARGO_PKG_VERSION")).to_owned()
}
