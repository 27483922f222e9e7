//! The runtime of the front thread.

use anyhow::{Context as _, Result};

/// Makes the runtime of the front thread. A second worker would cost a third of the request rate.
///
/// # Errors
/// If the system refuses what it needs.
pub fn front_runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // Reads of a journal that the page cache did not hold.
        .max_blocking_threads(16)
        .build()
        .context("cannot start the front thread's runtime")
}
