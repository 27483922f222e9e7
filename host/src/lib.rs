//! The host gateway: sockets, journal files, link and signals around the engine.
//!
//! Sessions of NBD and iSCSI and volumes live together on one front thread, so that nothing on the way of a
//! request is locked or handed over; journals have a thread each, the link has one, and so has
//! the admin listener.

mod accepted;
mod admin;
pub mod ahead;
mod args;
mod attach;
mod bitmaps;
pub mod cache;
mod front;
pub mod iscsi;
mod learn;
mod locks;
mod metrics;
pub mod nbd;
pub mod null;
pub mod pins;
mod ready;
pub mod report;
mod run;
mod schedule;
pub mod state;
mod stream;
#[cfg(test)]
mod tests;
mod uplink;
mod versions;
mod volume;

pub use accepted::{Accepted, Expected};
pub use args::{HostArgs, KeyArgs};
pub use attach::{lengths, run_recovery};
pub use run::run;
pub use schedule::Schedule;
pub use versions::problems as versions_problems;

use anyhow::{Context as _, Result};
use longhaul_core::front::nbd::ExportInfo;

/// Whether the access rights in a state directory can be read.
///
/// # Errors
/// What is wrong with them.
pub fn iscsi_rights(state: &std::path::Path) -> anyhow::Result<()> {
    iscsi::Rights::open(state, iscsi::Static::default()).map(drop)
}

/// The runtime of the front thread. A second worker would cost a third of the request rate.
fn front_runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // Reads of a journal that the page cache did not hold.
        .max_blocking_threads(16)
        .build()
        .context("cannot start the front thread's runtime")
}

fn export_info(volume: &volume::Volume) -> ExportInfo {
    let attached = volume.attached();
    ExportInfo {
        name: volume.name().into(),
        description: String::new(),
        sectors: volume.sectors(),
        min_block: attached.block_bytes,
        // A block that is written whole keeps one checksum and needs no neighbour when read.
        preferred_block: 4096,
        max_payload: 32 << 20,
        read_only: volume.is_read_only(),
        bitmaps: Vec::new(),
    }
}
