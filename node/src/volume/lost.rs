//! What a host acknowledged and has not delivered.

use super::{columns, pretty, print, tell, unexpected};
use crate::link::Requests;
use crate::store::api::client::Client;
use crate::store::api::types::{Lost, LostRange};
use crate::units::show_bytes;
use anyhow::{Context as _, Result};
use longhaul_core::wire::link::{VolumeOperation, VolumeReply};

/// Runs `longhaul volume lost`.
///
/// # Errors
/// If there is no such volume, or the store fails.
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

/// What is lost of a volume, as long as its host does not come back.
///
/// # Errors
/// As for [`run`].
pub async fn of(requests: &Requests, name: &str) -> Result<Lost> {
    let mut all: Vec<LostRange> = Vec::new();
    let mut from_lba = 0;
    let (host, connected, clean, rounded) = loop {
        let operation = VolumeOperation::Lost { name: name.to_owned(), from_lba };
        let reply = requests.volume(operation).await?;
        let VolumeReply::Lost { host, connected, clean, rounded, ranges, more } = reply else {
            return Err(unexpected());
        };
        let end = ranges.last().map(|last| last.end());
        all.extend(ranges.iter().map(LostRange::from));
        match end {
            Some(end) if more && end > from_lba => from_lba = end,
            _ => break (host, connected, clean, rounded),
        }
    };
    let bytes = all.iter().map(|range| range.bytes).sum();
    let (name, host) = (name.to_owned(), host.map(|host| host.to_string()));
    Ok(Lost { name, host, connected, clean, rounded, bytes, ranges: all })
}
