//! Attributes of volumes, as commands read and set them.

use anyhow::{Context as _, Result, bail};
use longhaul_core::block::Epoch;
use longhaul_core::wire::link::{
    VolumeError, VolumeInfo, VolumeOperation, VolumeReply, attribute_digest,
};
use longhaul_link::Requests;
use std::time::Duration;

/// How often to ask a store again that is opening the volume, and the pause.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(100);

/// Reads an attribute; empty if nobody ever set it.
///
/// # Errors
/// If the store does not answer, or refuses.
pub async fn get(requests: &Requests, info: &VolumeInfo, attribute: &str) -> Result<Vec<u8>> {
    let get = VolumeOperation::GetAttribute { volume: info.id, attribute: attribute.into() };
    match requests.volume(get).await? {
        VolumeReply::Attribute(data) => Ok(data),
        _ => bail!("the store gave an answer that does not fit"),
    }
}

/// The epoch that a volume is in, once the store has opened it.
///
/// # Errors
/// If the store does not say.
pub async fn epoch(requests: &Requests, name: &str) -> Result<Epoch> {
    for _ in 0..TRIES {
        let show = VolumeOperation::Show { name: name.to_owned() };
        let VolumeReply::Volume(info) = requests.volume(show).await? else {
            bail!("the store gave an answer that does not fit");
        };
        if let Some(live) = info.live {
            return Ok(live.epoch);
        }
        tokio::time::sleep(PAUSE).await;
    }
    bail!("the store does not open the volume: look at its log and try again")
}

/// Sets an attribute in this epoch. With `old`, the store sets it only in place of that value.
///
/// # Errors
/// If the store fails, the attribute has another value, or a host has attached the volume
/// meanwhile.
pub async fn set(
    requests: &Requests,
    info: &VolumeInfo,
    epoch: Epoch,
    attribute: &str,
    (old, data): (Option<&[u8]>, Vec<u8>),
) -> Result<()> {
    let mut tries = 0;
    loop {
        let set = VolumeOperation::SetAttribute {
            volume: info.id,
            epoch,
            attribute: attribute.into(),
            data: data.clone(),
            replaces: old.map(attribute_digest),
        };
        // A store takes attributes of volumes that it has open; asking for one opens it.
        let result = requests.call_volume(set).await?;
        if matches!(result, Ok(_) | Err(VolumeError::Changed)) || tries == TRIES {
            return result.map(drop).context("the store refused");
        }
        tries += 1;
        let show = VolumeOperation::Show { name: info.name.clone() };
        let VolumeReply::Volume(now) = requests.volume(show).await? else {
            bail!("the store gave an answer that does not fit");
        };
        if now.live.as_ref().is_some_and(|live| live.epoch != epoch) {
            bail!("a host has attached the volume meanwhile: try again");
        }
        tokio::time::sleep(PAUSE).await;
    }
}
