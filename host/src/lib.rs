//! The host gateway: sockets, journal files, link and signals around the engine.
//!
//! A volume and the sessions of its clients share a front thread. So a request meets no lock and no
//! queue between threads. Each front thread has a link in a thread of its own. Each journal has a
//! thread, and the admin listener has one.

mod accepted;
mod admin;
mod args;
mod attach;
mod bitmaps;
mod blocking;
pub mod cache;
mod context;
pub mod control;
mod encryption;
mod exposition;
mod failure;
mod front;
pub mod iscsi;
mod kept_journal;
mod learning;
mod metrics;
pub mod nbd;
pub mod null;
pub mod pins;
mod ready;
mod registry;
pub mod report;
mod run;
mod runtime;
mod schedule;
mod settings;
mod space;
pub mod state;
mod stream;
mod task;
#[cfg(test)]
mod tests;
pub mod traces;
mod uplink;
mod version_table;
mod versions;
mod volume;

pub use accepted::{AcceptedRollback, RootExpectation};
pub use args::{HostArgs, KeyArgs};
pub use attach::{lengths, run_recovery};
pub use run::run;
pub use schedule::Schedule;
pub use version_table::problems as versions_problems;

/// Whether the access rights in a state directory can be read.
///
/// # Errors
/// If they cannot be read.
pub fn iscsi_rights(state: &std::path::Path) -> anyhow::Result<()> {
    iscsi::InitiatorRights::open(state, iscsi::ConfiguredAccess::default()).map(drop)
}
