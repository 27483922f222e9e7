//! Questions to a store that take several frames of the link.
//!
//! The HTTP API and commands with a link both use them.

pub mod deleted;
pub mod diff;
pub mod lost;
pub mod snapshots;
pub mod usage;

use anyhow::{Context as _, Result};
use longhaul_core::block::{Epoch, Range, StatusRun, VolumeId};
use longhaul_core::wire::link::{Lane, ToHost, ToStore, VolumeInfo, VolumeOperation, VolumeReply};
use longhaul_link::Requests;

/// The epoch of a session that reads committed data and attaches nothing.
pub const OBSERVER: Epoch = 0;

/// The description of a volume. If the store does not have the volume open, this opens it.
pub async fn show(requests: &Requests, name: &str) -> Result<VolumeInfo> {
    info(requests, name).await.with_context(|| format!("volume {name}"))
}

/// The same; an error does not name it.
pub async fn info(requests: &Requests, name: &str) -> Result<VolumeInfo> {
    // A volume that the store opens for this answers what it knows, which may be nothing yet.
    match requests.volume(VolumeOperation::Show { name: name.to_owned() }).await? {
        // Keep the name of the request, whatever name the store returns.
        VolumeReply::Volume(info) => Ok(VolumeInfo { name: name.to_owned(), ..info }),
        _ => Err(unexpected()),
    }
}

/// The error for an answer that does not fit the request.
pub fn unexpected() -> anyhow::Error {
    anyhow::anyhow!("the store gave an answer that does not fit: are both of the same version?")
}

/// The kinds of data in a range, from its start on, as far as the store says at once: at least one
/// run.
pub async fn status(requests: &Requests, volume: VolumeId, range: Range) -> Result<Vec<StatusRun>> {
    let status = |request| ToStore::Status { request, volume, epoch: OBSERVER, range };
    let ToHost::Status { result, .. } = requests.call(Lane::Read, status).await?.message else {
        return Err(unexpected());
    };
    let runs = result.context("the store cannot show the content of the volume")?;
    let mut left = range.sectors;
    for run in &runs {
        if run.sectors == 0 || run.sectors > left {
            return Err(unexpected());
        }
        left -= run.sectors;
    }
    if runs.is_empty() {
        return Err(unexpected());
    }
    Ok(runs)
}
