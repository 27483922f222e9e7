//! The sessions of a target, by serial number and by TSIH.

use super::session::Session;
use crate::front::scsi::NexusId;
use std::collections::BTreeMap;

/// All sessions, and the numbers that new ones get.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    by_serial: BTreeMap<u32, Session>,
    by_tsih: BTreeMap<u16, u32>,
    last_tsih: u16,
    last_serial: u32,
    last_nexus: NexusId,
}

impl Sessions {
    pub(super) fn len(&self) -> usize {
        self.by_serial.len()
    }

    pub(super) fn contains(&self, serial: u32) -> bool {
        self.by_serial.contains_key(&serial)
    }

    pub(super) fn get(&self, serial: u32) -> Option<&Session> {
        self.by_serial.get(&serial)
    }

    pub(super) fn get_mut(&mut self, serial: u32) -> Option<&mut Session> {
        self.by_serial.get_mut(&serial)
    }

    /// The session with this TSIH.
    pub(super) fn of_tsih(&self, tsih: u16) -> Option<&Session> {
        self.by_serial.get(self.by_tsih.get(&tsih)?)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Session> {
        self.by_serial.values()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Session> {
        self.by_serial.values_mut()
    }

    /// The serial numbers of the sessions for which `which` is true.
    pub(super) fn select(&self, which: impl Fn(&Session) -> bool) -> Vec<u32> {
        self.iter().filter(|session| which(session)).map(|session| session.serial).collect()
    }

    pub(super) fn insert(&mut self, session: Session) {
        self.by_tsih.insert(session.identity.tsih, session.serial);
        self.by_serial.insert(session.serial, session);
    }

    pub(super) fn remove(&mut self, serial: u32) -> Option<Session> {
        let session = self.by_serial.remove(&serial)?;
        self.by_tsih.remove(&session.identity.tsih);
        Some(session)
    }

    /// A serial number that no session has, from 1 to 2^24 - 1. Number 0 is for parts of copies.
    pub(super) fn free_serial(&mut self) -> u32 {
        loop {
            self.last_serial = self.last_serial % ((1 << 24) - 1) + 1;
            if !self.by_serial.contains_key(&self.last_serial) {
                return self.last_serial;
            }
        }
    }

    /// A TSIH that no session has; 0 is none.
    pub(super) fn free_tsih(&mut self) -> Option<u16> {
        for _ in 0..=u16::MAX {
            self.last_tsih = self.last_tsih.wrapping_add(1);
            if self.last_tsih != 0 && !self.by_tsih.contains_key(&self.last_tsih) {
                return Some(self.last_tsih);
            }
        }
        None
    }

    /// A name for a new nexus.
    pub(super) fn new_nexus(&mut self) -> NexusId {
        self.last_nexus += 1;
        self.last_nexus
    }
}
