//! The map diff of two snapshots of a volume, or of one and the volume.

use crate::args::SnapshotName;
use crate::output::{columns, pretty, print};
use anyhow::{Context as _, Result, bail};
use longhaul_api::client::Client;
use longhaul_api::queries::unexpected;
use longhaul_api::types::{ChangeKind, Changes};
use longhaul_base::text::tell;
use longhaul_base::units::show_bytes;

/// Runs `longhaul volume diff`.
///
/// # Errors
/// If the two are not of one volume, or the store fails.
pub async fn run(client: &Client, since: &SnapshotName, until: &str, as_json: bool) -> Result<()> {
    let (volume, name) = until.split_once('@').map_or((until, None), |(v, s)| (v, Some(s)));
    if volume != since.volume {
        bail!("{since} and {until} are not of one volume: a diff needs one log");
    }
    let mut changes = Changes::default();
    let mut from = 0;
    loop {
        let part = client.changes(volume, &since.snapshot, name, from).await;
        let part = part.with_context(|| format!("{since} and {until}"))?;
        part.ranges.into_iter().for_each(|change| changes.push(change));
        match part.next_bytes {
            Some(next) if next > from => from = next,
            Some(_) => return Err(unexpected()),
            None => break,
        }
    }
    if as_json {
        return print(&pretty(&serde_json::to_value(&changes)?)?);
    }
    let bytes = changes.ranges.iter().map(|change| change.bytes).sum::<u64>();
    if changes.ranges.is_empty() {
        tell(&format!("{until} equals {since}"));
        return Ok(());
    }
    let cells = changes.ranges.iter().map(|change| {
        let kind = match change.kind {
            ChangeKind::Data => "data",
            ChangeKind::Zero => "zero",
        };
        vec![change.offset_bytes.to_string(), change.bytes.to_string(), kind.to_owned()]
    });
    print(&columns(&["OFFSET", "BYTES", "TYPE"], cells.collect()))?;
    tell(&format!("{} differ", show_bytes(bytes)));
    Ok(())
}
