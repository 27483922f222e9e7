//! A device with a few initiators, which send bytes.

mod model;
mod scenarios;

use super::*;
use crate::front::scsi::nexus::{Nexus, NexusId, TaskId};
use bytes::Bytes;

/// Codes of service actions.
pub const REGISTER: u8 = 0;
pub const RESERVE: u8 = 1;
pub const RELEASE: u8 = 2;
pub const CLEAR: u8 = 3;
pub const PREEMPT: u8 = 4;
pub const PREEMPT_AND_ABORT: u8 = 5;
pub const REGISTER_IGNORING: u8 = 6;
pub const MOVE: u8 = 7;

/// Flags of the parameter list.
pub const SPEC_I_PT: u8 = 0x08;
pub const ALL_TG_PT: u8 = 0x04;
pub const APTPL: u8 = 0x01;

pub const GOOD: Result<(), ReservationRefusal> = Ok(());
pub const CONFLICT: Result<(), ReservationRefusal> = Err(ReservationRefusal::Conflict);

/// The additional sense code of a refusal.
pub fn code(result: Result<(), ReservationRefusal>) -> Option<u16> {
    match result {
        Err(ReservationRefusal::Check { code, .. }) => Some(code),
        _ => None,
    }
}

pub fn out_cdb(action: u8, what: u8, list: &[u8]) -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1], cdb[2]) = (0x5f, action, what);
    cdb[5..9].copy_from_slice(&(list.len() as u32).to_be_bytes());
    cdb
}

pub fn list(key: u64, action_key: u64, flags: u8) -> Vec<u8> {
    let mut list = [key.to_be_bytes(), action_key.to_be_bytes(), [0; 8]].concat();
    list[20] = flags;
    list
}

/// A TransportID in wire format.
pub fn transport_id(port: &str) -> Vec<u8> {
    let mut id = Vec::new();
    transport::encode(port, &mut id);
    id
}

pub fn specifying(mut list: Vec<u8>, ports: &[&str]) -> Vec<u8> {
    let ids: Vec<u8> = ports.iter().flat_map(|port| transport_id(port)).collect();
    list.extend((ids.len() as u32).to_be_bytes());
    list.extend(ids);
    list
}

pub fn moving(key: u64, action_key: u64, flags: u8, relative: u16, to: &str) -> Vec<u8> {
    let mut list = list(key, action_key, 0);
    let id = transport_id(to);
    list[17] = flags;
    list[18..20].copy_from_slice(&relative.to_be_bytes());
    list[20..24].copy_from_slice(&(id.len() as u32).to_be_bytes());
    list.extend(id);
    list
}

pub fn in_cdb(action: u8, allocation: u16) -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (0x5e, action);
    cdb[7..9].copy_from_slice(&allocation.to_be_bytes());
    cdb
}

pub fn port(initiator: u8) -> String {
    format!("iqn.2026-11.test:{initiator},i,0x0000000000{initiator:02x}")
}

pub fn ends(initiator: u8, relative_port: u16) -> Nexus {
    Nexus { initiator_port: port(initiator), relative_port }
}

/// A unit whose saves succeed unless told otherwise. Nexus `n` is that of initiator `n` through
/// target port 1.
pub struct Unit {
    pub it: Reservations,
    pub storage: Bytes,
    pub failing: bool,
    pub attentions: Vec<(NexusId, u16)>,
    pub aborted: Vec<NexusId>,
    pub saves: usize,
    tasks: TaskId,
}

impl Unit {
    pub fn new() -> Unit {
        Unit::over(Reservations::restore(&[1, 2], &[]).unwrap())
    }

    pub fn over(mut it: Reservations) -> Unit {
        for nexus in 1..=4 {
            it.handle_nexus(nexus, &ends(nexus as u8, 1));
        }
        Unit {
            it,
            storage: Bytes::new(),
            failing: false,
            attentions: vec![],
            aborted: vec![],
            saves: 0,
            tasks: 0,
        }
    }

    pub fn send(
        &mut self,
        nexus: NexusId,
        action: u8,
        what: u8,
        list: &[u8],
    ) -> Result<(), ReservationRefusal> {
        let cdb = out_cdb(action, what, list);
        let bytes = self.it.begin_out(&cdb)?;
        assert_eq!(bytes as usize, list.len());
        self.tasks += 1;
        self.it.handle_out(self.tasks, nexus, &cdb, list);
        self.attentions.clear();
        self.aborted.clear();
        let mut ended = None;
        while let Some(output) = self.it.poll_output() {
            assert!(ended.is_none(), "{output:?} after the end");
            match output {
                ReservationOutput::Done { task, result } => {
                    assert_eq!(task, self.tasks);
                    ended = Some(result);
                }
                ReservationOutput::Save { id, data } => {
                    self.saves += 1;
                    if self.failing {
                        self.it.handle_saved(id, Err("no space".into()));
                    } else {
                        self.storage = data;
                        self.it.handle_saved(id, Ok(()));
                    }
                }
                ReservationOutput::Attention { nexus, code } => self.attentions.push((nexus, code)),
                ReservationOutput::Abort { nexus, except } => {
                    assert_eq!(except, self.tasks);
                    self.aborted.push(nexus);
                }
            }
        }
        ended.expect("an end")
    }

    pub fn register(&mut self, nexus: NexusId, key: u64) {
        assert_eq!(self.send(nexus, REGISTER_IGNORING, 0, &list(0, key, 0)), GOOD);
    }

    pub fn keys(&self) -> Vec<u64> {
        let data = self.it.handle_in(&in_cdb(0, u16::MAX)).unwrap();
        let keys = data[8..].chunks(8).map(|key| u64::from_be_bytes(key.try_into().unwrap()));
        keys.collect()
    }

    pub fn generation(&self) -> u32 {
        let data = self.it.handle_in(&in_cdb(0, 8)).unwrap();
        u32::from_be_bytes(data[..4].try_into().unwrap())
    }

    /// Key and type.
    pub fn reservation(&self) -> Option<(u64, u8)> {
        let data = self.it.handle_in(&in_cdb(1, 100)).unwrap();
        let length = u32::from_be_bytes(data[4..8].try_into().unwrap()) as usize;
        assert_eq!(data.len(), 8 + length);
        (length > 0).then(|| (u64::from_be_bytes(data[8..16].try_into().unwrap()), data[21]))
    }

    pub fn power_cycle(&mut self) {
        let it = Reservations::restore(&[1, 2], &self.storage).unwrap();
        let storage = std::mem::take(&mut self.storage);
        *self = Unit { storage, ..Unit::over(it) };
    }
}
