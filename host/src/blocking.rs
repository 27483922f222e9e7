//! Work on files, away from the front thread.

use anyhow::{Context as _, Result};

/// Runs work that blocks on a thread for files.
///
/// # Errors
/// Those of the work, or if the thread failed.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await.context("a thread for files failed")?
}
