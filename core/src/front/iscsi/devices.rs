//! The devices of a target, by name and by volume, and the volumes that are about to open.

use super::{ConnectionId, Device, DeviceId};
use crate::block::Time;
use std::collections::BTreeMap;

/// Most devices of a target.
const MAX_DEVICES: usize = 4096;

/// A device and its users.
#[derive(Debug)]
pub(super) struct TargetDevice {
    pub(super) device: Device,
    pub(super) volume: String,
    /// Sessions that use it.
    pub(super) sessions: usize,
    /// Sessions that lost tasks to a function of another session.
    pub(super) affected: Vec<u32>,
    /// The time of its timer.
    pub(super) armed: Option<Time>,
}

/// All devices of a target.
#[derive(Debug, Default)]
pub(super) struct Devices {
    by_id: BTreeMap<DeviceId, TargetDevice>,
    by_volume: BTreeMap<String, DeviceId>,
    /// Logins that wait for a volume.
    opening: BTreeMap<String, Vec<ConnectionId>>,
    last: DeviceId,
}

impl Devices {
    pub(super) fn is_full(&self) -> bool {
        self.by_id.len() >= MAX_DEVICES
    }

    pub(super) fn get(&self, id: DeviceId) -> Option<&TargetDevice> {
        self.by_id.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: DeviceId) -> Option<&mut TargetDevice> {
        self.by_id.get_mut(&id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (DeviceId, &TargetDevice)> {
        self.by_id.iter().map(|(id, device)| (*id, device))
    }

    /// The device of a volume.
    pub(super) fn of_volume(&self, volume: &str) -> Option<DeviceId> {
        self.by_volume.get(volume).copied()
    }

    /// Adds the device of a volume.
    pub(super) fn add(&mut self, volume: &str, device: Device) -> DeviceId {
        self.last += 1;
        let volume = volume.to_owned();
        self.by_volume.insert(volume.clone(), self.last);
        let (sessions, affected, armed) = (0, Vec::new(), None);
        self.by_id.insert(self.last, TargetDevice { device, volume, sessions, affected, armed });
        self.last
    }

    /// A volume has no device any more, although the device may still be there for a moment.
    pub(super) fn forget_volume(&mut self, volume: &str) -> Option<DeviceId> {
        self.by_volume.remove(volume)
    }

    pub(super) fn remove(&mut self, id: DeviceId) -> Option<TargetDevice> {
        let device = self.by_id.remove(&id)?;
        if self.by_volume.get(&device.volume) == Some(&id) {
            self.by_volume.remove(&device.volume);
        }
        Some(device)
    }

    /// Notes that a login waits for a volume. `true` if it is the first one.
    pub(super) fn wait(&mut self, volume: &str, login: ConnectionId) -> bool {
        let waiting = self.opening.entry(volume.to_owned()).or_default();
        waiting.push(login);
        waiting.len() == 1
    }

    /// Notes that a volume is about to open without a login that waits.
    #[cfg(test)]
    pub(super) fn expect(&mut self, volume: &str) {
        self.opening.insert(volume.to_owned(), Vec::new());
    }

    /// Notes that a login does not wait for a volume any more.
    pub(super) fn stop_waiting(&mut self, volume: &str, login: ConnectionId) {
        if let Some(waiting) = self.opening.get_mut(volume) {
            waiting.retain(|other| *other != login);
        }
    }

    /// The opening of a volume has succeeded or failed. Returns the logins that waited for it.
    pub(super) fn opened(&mut self, volume: &str) -> Option<Vec<ConnectionId>> {
        self.opening.remove(volume)
    }
}
