//! Persistent reservations, which stay with the volume wherever it is attached.

use super::{Front, LOOKUP_LIMIT};
use crate::uplink::LinkLost;
use crate::volume::Volume;
use bytes::Bytes;
use longhaul_base::units::show_bytes;
use longhaul_core::wire::link::{
    ATTRIBUTES_VERSION, MAX_ATTRIBUTE_BYTES, ToHost, ToStore, VolumeError, VolumeOperation,
    VolumeReply,
};
use std::time::Duration;
use tokio::time::Instant;

/// The attribute that holds them.
const RESERVATIONS: &str = "reservations";

/// Pause before the store is asked again for what it could not do.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Longer than any outage.
const FOR_EVER: Duration = Duration::from_secs(365 * 86400);

impl Front {
    /// Reads what was saved, and saves it again: from then on nothing counts that a host of an older
    /// epoch may still save at a store that has not heard of ours. Later, an initiator may come back
    /// while the store is away, so the store is asked only once.
    pub(super) async fn reservations(&self, volume: &Volume) -> Result<Bytes, String> {
        if volume.is_read_only() {
            return Ok(Bytes::new());
        }
        let known = self.reservations.borrow().get(&volume.attached().volume).cloned();
        if let Some((epoch, saved)) = known
            && epoch == volume.status().0.epoch
        {
            return Ok(saved);
        }
        if self.router.is_up() && self.router.version() < ATTRIBUTES_VERSION {
            return Ok(Bytes::new());
        }
        let id = volume.attached().volume;
        let get = || VolumeOperation::GetAttribute { volume: id, attribute: RESERVATIONS.into() };
        let limit = Instant::now() + LOOKUP_LIMIT;
        let saved = match self.insist(volume, get, limit).await? {
            VolumeReply::Attribute(saved) => Bytes::from(saved),
            _ => return Err("the store answered something else".into()),
        };
        if saved.is_empty() {
            self.know_reservations(volume, Bytes::new());
        } else {
            self.set_reservations(volume, &saved, limit).await?;
        }
        Ok(saved)
    }

    /// Saves, however long the store is away: as a write, it fails for no outage.
    pub(super) async fn save_reservations(
        &self,
        volume: &Volume,
        data: &Bytes,
    ) -> Result<(), String> {
        if volume.is_read_only() {
            return Err("what is registered for a snapshot is not kept".into());
        }
        let ever = Instant::now() + FOR_EVER;
        self.set_reservations(volume, data, ever).await
    }

    async fn set_reservations(
        &self,
        volume: &Volume,
        data: &Bytes,
        limit: Instant,
    ) -> Result<(), String> {
        if data.len() > MAX_ATTRIBUTE_BYTES {
            return Err(format!(
                "{} of registrations are more than a volume can keep ({}): unregister some initiators",
                show_bytes(data.len() as u64),
                show_bytes(MAX_ATTRIBUTE_BYTES as u64)
            ));
        }
        let set = || VolumeOperation::SetAttribute {
            volume: volume.attached().volume,
            epoch: volume.status().0.epoch,
            attribute: RESERVATIONS.into(),
            data: data.to_vec(),
            replaces: None,
        };
        self.insist(volume, set, limit).await?;
        self.know_reservations(volume, data.clone());
        Ok(())
    }

    fn know_reservations(&self, volume: &Volume, saved: Bytes) {
        let epoch = volume.status().0.epoch;
        self.reservations.borrow_mut().insert(volume.attached().volume, (epoch, saved));
    }

    /// Asks the store until it answers, it refuses for good, or the limit has passed.
    async fn insist(
        &self,
        volume: &Volume,
        operation: impl Fn() -> VolumeOperation,
        limit: Instant,
    ) -> Result<VolumeReply, String> {
        let mut link = self.link.subscribe();
        loop {
            link.mark_unchanged();
            let too_old = self.router.is_up() && self.router.version() < ATTRIBUTES_VERSION;
            if too_old {
                return Err("the store is of an older version: update it".into());
            }
            let operation = operation();
            let asked = self.router.call(|request| ToStore::Volume { request, operation });
            let asked = tokio::time::timeout_at(limit, asked).await;
            let why = match asked.unwrap_or(Err(LinkLost)) {
                Ok(ToHost::Volume { result: Ok(reply), .. }) => return Ok(reply),
                Ok(ToHost::Volume { result: Err(VolumeError::Store(why)), .. }) => why,
                Ok(ToHost::Volume { result: Err(error), .. }) => return Err(error.to_string()),
                Ok(_) => return Err("the store answered something else".into()),
                Err(lost) => lost.to_string(),
            };
            if volume.status().0.fenced.is_some() {
                return Err("the volume is fenced off here".into());
            }
            if Instant::now() >= limit || self.stopping.get() {
                return Err(why);
            }
            tracing::debug!(volume = volume.name(), "asking again: {why}");
            tokio::select! {
                _ = link.changed() => {}
                () = tokio::time::sleep_until(limit) => {}
                () = tokio::time::sleep(ASK_AGAIN), if self.router.is_up() => {}
            }
        }
    }
}
