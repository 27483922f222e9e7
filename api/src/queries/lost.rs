//! Writes that a host acknowledged and has not delivered.

use super::unexpected;
use crate::types::{Lost, LostRange};
use anyhow::Result;
use longhaul_core::wire::link::{VolumeOperation, VolumeReply};
use longhaul_link::Requests;

/// The writes of a volume that are lost as long as its host does not come back.
///
/// # Errors
/// If the volume does not exist, or the store fails.
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
