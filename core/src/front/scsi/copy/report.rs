//! What became of copies, for those who ask: RECEIVE COPY RESULTS and RECEIVE ROD TOKEN INFORMATION
//! (SPC-4).
//!
//! A result is kept for the nexus that asked for the copy, until the nexus is gone, the unit is reset,
//! the same name is used again, or [`MAX_RESULTS`] newer ones have ended. No data is held.

use super::list::{
    BLOCK_TO_BLOCK, IDENTIFICATION, MAX_DESCRIPTORS, MAX_LIST_BYTES, MAX_SEGMENT_BYTES,
    MAX_SEGMENTS,
};
use super::token::{TOKEN_BYTES, Token};
use super::{MAX_COPIES, list};
use crate::block::SECTOR_BYTES;
use crate::front::scsi::sense::{Refusal, Sense};
use crate::front::scsi::{Context, Device, NexusId, Outcome, Status};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};

/// Results that are kept of copies that have ended.
const MAX_RESULTS: usize = 64;

/// LIST IDENTIFIER: those of one byte and those of four are apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::front::scsi) enum ListId {
    /// Of EXTENDED COPY(LID1).
    One(u8),
    /// Of commands with tokens.
    Four(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running {
        background: bool,
    },
    Done,
    Failed,
    /// By task management.
    Stopped,
}

#[derive(Debug)]
struct Entry {
    action: u8,
    state: State,
    segments: u16,
    sectors: u64,
    status: u8,
    sense: Bytes,
    token: Option<Box<Token>>,
}

/// A copy under way.
#[derive(Debug)]
struct Running {
    nexus: NexusId,
    list: Option<ListId>,
    action: u8,
}

/// Copies under way, and results.
#[derive(Debug, Default)]
pub(in crate::front::scsi) struct Results {
    running: BTreeMap<u64, Running>,
    entries: BTreeMap<(NexusId, ListId), Entry>,
    /// Those that have ended, oldest first.
    ended: VecDeque<(NexusId, ListId)>,
}

impl Results {
    pub fn running(&self) -> usize {
        self.running.len()
    }

    pub fn action_of(&self, id: u64) -> Option<u8> {
        self.running.get(&id).map(|running| running.action)
    }

    /// A copy begins; `false` if another one of that name is under way.
    pub fn begin(
        &mut self,
        id: u64,
        nexus: NexusId,
        list: Option<ListId>,
        action: u8,
        background: bool,
    ) -> bool {
        if let Some(list) = list {
            if self.is_running(nexus, list) {
                return false;
            }
            self.forget(|key| *key == (nexus, list));
            let state = State::Running { background };
            let (segments, sectors, status) = (0, 0, Status::Good as u8);
            let (sense, token) = (Bytes::new(), None);
            let entry = Entry { action, state, segments, sectors, status, sense, token };
            self.entries.insert((nexus, list), entry);
        }
        self.running.insert(id, Running { nexus, list, action });
        true
    }

    pub fn is_running(&self, nexus: NexusId, list: ListId) -> bool {
        let entry = self.entries.get(&(nexus, list));
        entry.is_some_and(|entry| matches!(entry.state, State::Running { .. }))
    }

    fn entry_of(&mut self, id: u64) -> Option<&mut Entry> {
        let running = self.running.get(&id)?;
        self.entries.get_mut(&(running.nexus, running.list?))
    }

    pub fn progress(&mut self, id: u64, segments: u16, sectors: u64) {
        if let Some(entry) = self.entry_of(id) {
            (entry.segments, entry.sectors) = (segments, sectors);
        }
    }

    /// A copy has been told to end.
    pub fn stop(&mut self, id: u64) {
        if let Some(entry) = self.entry_of(id) {
            (entry.state, entry.status) = (State::Stopped, Status::TaskAborted as u8);
            if let Some(Running { nexus, list: Some(list), .. }) = self.running.get(&id) {
                self.ended.push_back((*nexus, *list));
            }
        }
        // Whoever uses the name from now on means another copy.
        if let Some(running) = self.running.get_mut(&id) {
            running.list = None;
        }
        self.trim();
    }

    /// A copy has ended, without a refusal or with one.
    pub fn end(&mut self, id: u64, refusal: Option<Refusal>, descriptors: bool) {
        if let Some(entry) = self.entry_of(id) {
            entry.state = if refusal.is_none() { State::Done } else { State::Failed };
            match refusal {
                None => {}
                Some(Refusal::Status(status)) => entry.status = status as u8,
                Some(Refusal::Check(sense)) => {
                    entry.status = Status::CheckCondition as u8;
                    entry.sense = sense.bytes(descriptors);
                }
            }
        }
        if let Some(Running { nexus, list: Some(list), .. }) = self.running.remove(&id) {
            self.ended.push_back((nexus, list));
            self.trim();
        }
    }

    /// A token was made.
    pub fn add_token(&mut self, nexus: NexusId, list: u32, sectors: u64, token: Box<Token>) {
        let key = (nexus, ListId::Four(list));
        self.forget(|other| *other == key);
        let entry = Entry {
            action: super::token::POPULATE,
            state: State::Done,
            segments: 0,
            sectors,
            status: Status::Good as u8,
            sense: Bytes::new(),
            token: Some(token),
        };
        self.entries.insert(key, entry);
        self.ended.push_back(key);
        self.trim();
    }

    fn trim(&mut self) {
        while self.ended.len() > MAX_RESULTS {
            if let Some(key) = self.ended.pop_front() {
                self.entries.remove(&key);
            }
        }
    }

    fn forget(&mut self, which: impl Fn(&(NexusId, ListId)) -> bool) {
        self.ended.retain(|key| !which(key));
        self.entries.retain(|key, _| !which(key));
    }

    /// A nexus is gone.
    pub fn forget_nexus(&mut self, nexus: NexusId) {
        self.forget(|(other, _)| *other == nexus);
    }

    /// The unit was reset.
    pub fn forget_all(&mut self) {
        self.forget(|_| true);
    }
}

/// The result that the command names.
fn named<'a>(device: &'a Device, context: &Context, list: ListId) -> Result<&'a Entry, Sense> {
    device.results.entries.get(&(context.nexus, list)).ok_or(Sense::in_cdb(2, None))
}

fn allocation(context: &Context) -> usize {
    context.cdb.u32(10) as usize
}

/// RECEIVE COPY RESULTS, COPY STATUS.
pub(in crate::front::scsi) fn copy_status(device: &mut Device, context: &Context) -> Outcome {
    let entry = match named(device, context, ListId::One(context.cdb.byte(2))) {
        Ok(entry) => entry,
        Err(sense) => return sense.into(),
    };
    let state = match entry.state {
        State::Running { .. } => 0,
        State::Done => 1,
        State::Failed | State::Stopped => 2,
    };
    let bytes = entry.sectors.saturating_mul(SECTOR_BYTES);
    // TRANSFER COUNT UNITS: bytes, or as many times 1024 of them as it takes.
    let units = (0..4).find(|units| bytes >> (10 * units) <= u64::from(u32::MAX)).unwrap_or(4);
    let mut data = vec![0, 0, 0, 8, state];
    data.extend(entry.segments.to_be_bytes());
    data.push(units as u8);
    data.extend(((bytes >> (10 * units)) as u32).to_be_bytes());
    Outcome::data(data, allocation(context))
}

/// RECEIVE COPY RESULTS, RECEIVE DATA: there is none that is held.
pub(in crate::front::scsi) fn receive_data(device: &mut Device, context: &Context) -> Outcome {
    match named(device, context, ListId::One(context.cdb.byte(2))) {
        Ok(Entry { state: State::Running { .. }, .. }) => Sense::in_cdb(2, None).into(),
        Ok(_) => Outcome::data(vec![0; 4], allocation(context)),
        Err(sense) => sense.into(),
    }
}

/// RECEIVE COPY RESULTS, FAILED SEGMENT DETAILS.
pub(in crate::front::scsi) fn failed_segment_details(
    device: &mut Device,
    context: &Context,
) -> Outcome {
    let entry = match named(device, context, ListId::One(context.cdb.byte(2))) {
        Ok(Entry { state: State::Running { .. }, .. }) => return Sense::in_cdb(2, None).into(),
        Ok(entry) => entry,
        Err(sense) => return sense.into(),
    };
    if entry.state == State::Done {
        return Outcome::data(vec![0; 4], allocation(context));
    }
    let mut data = vec![0; 60];
    data[56] = entry.status;
    data[58..60].copy_from_slice(&(entry.sense.len() as u16).to_be_bytes());
    data.extend(&entry.sense);
    // Sense data has less than 256 bytes.
    let available = (data.len() - 4) as u32;
    data[..4].copy_from_slice(&available.to_be_bytes());
    Outcome::data(data, allocation(context))
}

/// RECEIVE COPY RESULTS, OPERATING PARAMETERS.
pub(in crate::front::scsi) fn operating_parameters(
    _device: &mut Device,
    context: &Context,
) -> Outcome {
    let mut data = vec![0; 44];
    // SNLID.
    data[4] = 1;
    data[8..10].copy_from_slice(&(MAX_DESCRIPTORS as u16).to_be_bytes());
    data[10..12].copy_from_slice(&(MAX_SEGMENTS as u16).to_be_bytes());
    data[12..16].copy_from_slice(&(MAX_LIST_BYTES as u32).to_be_bytes());
    data[16..20].copy_from_slice(&MAX_SEGMENT_BYTES.to_be_bytes());
    // TOTAL CONCURRENT COPIES, MAXIMUM CONCURRENT COPIES.
    data[34..36].copy_from_slice(&(MAX_COPIES as u16).to_be_bytes());
    data[36] = MAX_COPIES as u8;
    // DATA SEGMENT GRANULARITY: a sector.
    data[37] = SECTOR_BYTES.trailing_zeros() as u8;
    let kinds = [BLOCK_TO_BLOCK, IDENTIFICATION];
    data[43] = kinds.len() as u8;
    data.extend(kinds);
    let available = (data.len() - 4) as u32;
    data[..4].copy_from_slice(&available.to_be_bytes());
    Outcome::data(data, allocation(context))
}

/// RECEIVE ROD TOKEN INFORMATION.
pub(in crate::front::scsi) fn rod_token_information(
    device: &mut Device,
    context: &Context,
) -> Outcome {
    // TRANSFER COUNT UNITS: logical blocks.
    const BLOCKS: u8 = 0xf1;
    let block_sectors = device.block_sectors();
    let entry = match named(device, context, ListId::Four(context.cdb.u32(2))) {
        Ok(entry) => entry,
        Err(sense) => return sense.into(),
    };
    let state = match entry.state {
        State::Running { background: false } => 0x11,
        State::Running { background: true } => 0x12,
        State::Done => 0x01,
        State::Failed => 0x02,
        State::Stopped => 0x60,
    };
    let mut data = vec![0; 32];
    data[4] = entry.action;
    data[5] = state;
    data[6..8].copy_from_slice(&entry.segments.to_be_bytes());
    // ESTIMATED STATUS UPDATE DELAY: none is told.
    data[8..12].copy_from_slice(&[0xff; 4]);
    data[12] = entry.status;
    // Sense data has less than 256 bytes.
    data[13] = entry.sense.len() as u8;
    data[14] = entry.sense.len() as u8;
    data[15] = BLOCKS;
    data[16..24].copy_from_slice(&(entry.sectors / block_sectors).to_be_bytes());
    data[24..26].copy_from_slice(&entry.segments.to_be_bytes());
    data.extend(&entry.sense);
    match &entry.token {
        None => data.extend([0; 4]),
        Some(token) => {
            data.extend((2 + TOKEN_BYTES as u32).to_be_bytes());
            data.extend([0; 2]);
            data.extend(token.as_slice());
        }
    }
    let available = (data.len() - 4) as u32;
    data[..4].copy_from_slice(&available.to_be_bytes());
    Outcome::data(data, allocation(context))
}

/// Service actions of RECEIVE COPY RESULTS and its kin, as VPD page 8Fh lists them.
pub(super) const RECEIVE_ACTIONS: [u8; 5] = [0x00, 0x01, 0x03, 0x04, 0x07];

/// Those of EXTENDED COPY and its kin.
pub(super) const COPY_ACTIONS: [u8; 3] =
    [list::EXTENDED_COPY, super::token::POPULATE, super::token::WRITE];
