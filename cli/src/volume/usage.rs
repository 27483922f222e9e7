//! The space of a volume and its snapshots.

use crate::output::{columns, pretty, print, waiting};
use anyhow::{Context as _, Result};
use longhaul_api::client::Client;
use longhaul_api::types::{SnapshotUsage, Usage};
use longhaul_base::text::tell;
use longhaul_base::units::show_bytes;

/// Runs `longhaul volume usage`.
///
/// # Errors
/// If the volume does not exist, or the store fails.
pub async fn run(client: &Client, name: &str, as_json: bool) -> Result<()> {
    let sign = waiting(!as_json);
    let usage = client.usage(name).await;
    sign.finish_and_clear();
    let usage = usage.with_context(|| format!("volume {name}"))?;
    if as_json {
        return print(&pretty(&serde_json::to_value(&usage)?)?);
    }
    print(&in_words(&usage))?;
    let (data, maps) = (show_bytes(usage.stored_bytes), show_bytes(usage.map_bytes));
    let mut text = format!("{data} of data are stored, and {maps} of maps");
    if let Some(free) = usage.reclaimable_bytes {
        text += &format!("; {} of the data can be reclaimed", show_bytes(free));
    }
    tell(&text);
    Ok(())
}

fn in_words(usage: &Usage) -> String {
    let row = |name: String, bytes: [u64; 4]| {
        std::iter::once(name).chain(bytes.map(show_bytes)).collect::<Vec<_>>()
    };
    let mut rows: Vec<_> = usage
        .snapshots
        .iter()
        .map(|snapshot| {
            let deleted = if snapshot.deleted { " (deleted, has clones)" } else { "" };
            let SnapshotUsage { size_bytes, logical_bytes, referenced_bytes, unique_bytes, .. } =
                *snapshot;
            let bytes = [size_bytes, logical_bytes, referenced_bytes, unique_bytes];
            row(format!("{}@{}{deleted}", usage.name, snapshot.name), bytes)
        })
        .collect();
    let Usage { size_bytes, logical_bytes, referenced_bytes, unique_bytes, .. } = *usage;
    rows.push(row(usage.name.clone(), [size_bytes, logical_bytes, referenced_bytes, unique_bytes]));
    columns(&["NAME", "SIZE", "LOGICAL", "REFERENCED", "UNIQUE"], rows)
}
