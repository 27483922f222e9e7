//! Persistent reservations. They stay with the volume, whichever host attaches it.

use super::link::LinkWatch;
use crate::context::HostContext;
use crate::iscsi::ReservationError;
use crate::task::Shutdown;
use crate::uplink::LinkLost;
use crate::volume::Volume;
use bytes::Bytes;
use longhaul_core::block::VolumeId;
use longhaul_core::wire::link::{
    MAX_ATTRIBUTE_BYTES, ToHost, ToStore, VolumeError, VolumeOperation, VolumeReply,
};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::Instant;

/// How long a client waits for the link's first connection and for an attach before it has to try
/// again. That is less than the patience of clients. On most disks it is enough to make or recover
/// a journal.
pub(super) const LOOKUP_LIMIT: Duration = Duration::from_secs(10);

/// The attribute that holds them.
const RESERVATIONS: &str = "reservations";

/// Pause before the host asks the store again after a failure.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Longer than any outage.
const FOR_EVER: Duration = Duration::from_secs(365 * 86400);

/// The persistent reservations of the attached volumes.
pub(super) struct Reservations {
    host: Rc<HostContext>,
    link: Rc<LinkWatch>,
    shutdown: Rc<Shutdown>,
    /// As the store has them, with the epoch of the attach that knows: nobody else may save them
    /// before another host attaches the volume.
    known: RefCell<BTreeMap<VolumeId, (u64, Bytes)>>,
}

impl Reservations {
    /// No known reservations.
    pub fn new(host: Rc<HostContext>, link: Rc<LinkWatch>, shutdown: Rc<Shutdown>) -> Reservations {
        Reservations { host, link, shutdown, known: RefCell::default() }
    }

    /// Reads the saved reservations, and saves them again. A host of an older epoch may still save
    /// some at a store that has not heard of our epoch. After the second save those do not count.
    /// Later, an initiator may come back while the store is away. So the host asks the store only
    /// once.
    pub async fn load(&self, volume: &Volume) -> Result<Bytes, ReservationError> {
        if volume.is_read_only() {
            return Ok(Bytes::new());
        }
        let known = self.known.borrow().get(&volume.attached().volume).cloned();
        if let Some((epoch, saved)) = known
            && epoch == volume.status().0.epoch
        {
            return Ok(saved);
        }
        let id = volume.attached().volume;
        let get = || VolumeOperation::GetAttribute { volume: id, attribute: RESERVATIONS.into() };
        let limit = Instant::now() + LOOKUP_LIMIT;
        let saved = match self.insist(volume, get, limit).await? {
            VolumeReply::Attribute(saved) => Bytes::from(saved),
            _ => return Err(ReservationError::Unfit),
        };
        if saved.is_empty() {
            self.know(volume, Bytes::new());
        } else {
            self.set(volume, &saved, limit).await?;
        }
        Ok(saved)
    }

    /// Saves, however long the store is away: as a write, it fails for no outage.
    pub async fn save(&self, volume: &Volume, data: &Bytes) -> Result<(), ReservationError> {
        if volume.is_read_only() {
            return Err(ReservationError::ReadOnly);
        }
        let ever = Instant::now() + FOR_EVER;
        self.set(volume, data, ever).await
    }

    async fn set(
        &self,
        volume: &Volume,
        data: &Bytes,
        limit: Instant,
    ) -> Result<(), ReservationError> {
        if data.len() > MAX_ATTRIBUTE_BYTES {
            let most = MAX_ATTRIBUTE_BYTES as u64;
            return Err(ReservationError::TooLarge(data.len() as u64, most));
        }
        let set = || VolumeOperation::SetAttribute {
            volume: volume.attached().volume,
            epoch: volume.status().0.epoch,
            attribute: RESERVATIONS.into(),
            data: data.to_vec(),
            replaces: None,
        };
        self.insist(volume, set, limit).await?;
        self.know(volume, data.clone());
        Ok(())
    }

    fn know(&self, volume: &Volume, saved: Bytes) {
        let epoch = volume.status().0.epoch;
        self.known.borrow_mut().insert(volume.attached().volume, (epoch, saved));
    }

    /// Asks the store until it answers, it refuses for good, or the limit has passed.
    async fn insist(
        &self,
        volume: &Volume,
        operation: impl Fn() -> VolumeOperation,
        limit: Instant,
    ) -> Result<VolumeReply, ReservationError> {
        let mut link = self.link.subscribe();
        loop {
            link.mark_unchanged();
            let operation = operation();
            let asked = self.host.router.call(|request| ToStore::Volume { request, operation });
            let asked = tokio::time::timeout_at(limit, asked).await;
            let why = match asked.unwrap_or(Err(LinkLost)) {
                Ok(ToHost::Volume { result: Ok(reply), .. }) => return Ok(reply),
                Ok(ToHost::Volume { result: Err(VolumeError::Store(why)), .. }) => why,
                Ok(ToHost::Volume { result: Err(error), .. }) => {
                    return Err(ReservationError::Refused(error.to_string()));
                }
                Ok(_) => return Err(ReservationError::Unfit),
                Err(lost) => lost.to_string(),
            };
            if volume.status().0.fenced.is_some() {
                return Err(ReservationError::Fenced);
            }
            if Instant::now() >= limit || self.shutdown.has_begun() {
                return Err(ReservationError::Unavailable(why));
            }
            tracing::debug!(volume = volume.name(), "asking again: {why}");
            tokio::select! {
                _ = link.changed() => {}
                () = tokio::time::sleep_until(limit) => {}
                () = tokio::time::sleep(ASK_AGAIN), if self.host.router.is_up() => {}
            }
        }
    }
}
