//! Writes that a host acknowledged and has not delivered.

use crate::output::{columns, pretty, print};
use anyhow::{Context as _, Result};
use longhaul_api::client::Client;
use longhaul_api::types::Lost;
use longhaul_base::text::tell;
use longhaul_base::units::show_bytes;

/// Runs `longhaul volume lost`.
///
/// # Errors
/// If the volume does not exist, or the store fails.
pub async fn run(client: &Client, name: &str, json: bool) -> Result<()> {
    let lost = client.lost(name).await.with_context(|| format!("volume {name}"))?;
    if json {
        return print(&pretty(&serde_json::to_value(&lost)?)?);
    }
    let Lost { host, connected, rounded, bytes, ranges, .. } = lost;
    match host {
        _ if ranges.is_empty() => tell("nothing is known to be lost"),
        Some(host) if connected => tell(&format!(
            "host {host} is connected and delivering: {} are under way",
            show_bytes(bytes)
        )),
        host => tell(&format!(
            "{} acknowledged by {} have not arrived{}",
            show_bytes(bytes),
            host.map_or("a host".to_owned(), |host| format!("host {host}")),
            if rounded { " (ranges are rounded up)" } else { "" }
        )),
    }
    if ranges.is_empty() {
        return Ok(());
    }
    let rows = ranges.iter().map(|range| vec![range.offset.to_string(), range.bytes.to_string()]);
    print(&columns(&["OFFSET", "BYTES"], rows.collect()))
}
