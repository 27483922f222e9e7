//! The copies of a unit that are under way, and the results of those that have ended.
//!
//! The unit keeps a result for the nexus that asked for the copy. The result goes when the nexus is
//! lost, a reset comes, the same list identifier comes again, or [`MAX_RESULTS`] newer copies have
//! ended. The unit holds no data.

use super::format::{POPULATE, RodToken};
use super::plan::ListId;
use crate::front::scsi::nexus::NexusId;
use crate::front::scsi::response::Status;
use crate::front::scsi::sense::CommandRefusal;
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
/// Most results of copies that have ended.
const MAX_RESULTS: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyState {
    Running {
        background: bool,
    },
    Done,
    Failed,
    /// Task management ended the copy.
    Stopped,
}

#[derive(Debug)]
pub(super) struct CopyResult {
    pub action: u8,
    pub state: CopyState,
    pub segments: u16,
    pub sectors: u64,
    pub status: u8,
    pub sense: Bytes,
    pub token: Option<Box<RodToken>>,
}

/// A copy under way.
#[derive(Debug)]
struct RunningCopy {
    nexus: NexusId,
    list: Option<ListId>,
    action: u8,
}

/// Copies under way, and results.
#[derive(Debug, Default)]
pub(in crate::front::scsi) struct CopyResults {
    running: BTreeMap<u64, RunningCopy>,
    entries: BTreeMap<(NexusId, ListId), CopyResult>,
    /// Results of copies that have ended, oldest first.
    ended: VecDeque<(NexusId, ListId)>,
}

impl CopyResults {
    pub fn running(&self) -> usize {
        self.running.len()
    }

    pub fn action_of(&self, id: u64) -> Option<u8> {
        self.running.get(&id).map(|running| running.action)
    }

    /// Adds a copy; `false` if another copy with that identifier is under way.
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
            let state = CopyState::Running { background };
            let (segments, sectors, status) = (0, 0, Status::Good as u8);
            let (sense, token) = (Bytes::new(), None);
            let entry = CopyResult { action, state, segments, sectors, status, sense, token };
            self.entries.insert((nexus, list), entry);
        }
        self.running.insert(id, RunningCopy { nexus, list, action });
        true
    }

    /// The result of a copy, by the names under which the nexus asks for it.
    pub(super) fn get(&self, nexus: NexusId, list: ListId) -> Option<&CopyResult> {
        self.entries.get(&(nexus, list))
    }

    pub fn is_running(&self, nexus: NexusId, list: ListId) -> bool {
        let entry = self.entries.get(&(nexus, list));
        entry.is_some_and(|entry| matches!(entry.state, CopyState::Running { .. }))
    }

    fn entry_of(&mut self, id: u64) -> Option<&mut CopyResult> {
        let running = self.running.get(&id)?;
        self.entries.get_mut(&(running.nexus, running.list?))
    }

    pub fn progress(&mut self, id: u64, segments: u16, sectors: u64) {
        if let Some(entry) = self.entry_of(id) {
            (entry.segments, entry.sectors) = (segments, sectors);
        }
    }

    /// Notes that a copy has to end.
    pub fn stop(&mut self, id: u64) {
        if let Some(entry) = self.entry_of(id) {
            (entry.state, entry.status) = (CopyState::Stopped, Status::TaskAborted as u8);
            if let Some(RunningCopy { nexus, list: Some(list), .. }) = self.running.get(&id) {
                self.ended.push_back((*nexus, *list));
            }
        }
        // From now on the identifier can name another copy.
        if let Some(running) = self.running.get_mut(&id) {
            running.list = None;
        }
        self.trim();
    }

    /// A copy has ended, with a refusal or without.
    pub fn end(&mut self, id: u64, refusal: Option<CommandRefusal>, descriptors: bool) {
        if let Some(entry) = self.entry_of(id) {
            entry.state = if refusal.is_none() { CopyState::Done } else { CopyState::Failed };
            match refusal {
                None => {}
                Some(CommandRefusal::Status(status)) => entry.status = status as u8,
                Some(CommandRefusal::Check(sense)) => {
                    entry.status = Status::CheckCondition as u8;
                    entry.sense = sense.bytes(descriptors);
                }
            }
        }
        if let Some(RunningCopy { nexus, list: Some(list), .. }) = self.running.remove(&id) {
            self.ended.push_back((nexus, list));
            self.trim();
        }
    }

    /// Keeps a new token as the result of its command.
    pub fn add_token(&mut self, nexus: NexusId, list: u32, sectors: u64, token: Box<RodToken>) {
        let key = (nexus, ListId::Four(list));
        self.forget(|other| *other == key);
        let entry = CopyResult {
            action: POPULATE,
            state: CopyState::Done,
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

    /// A nexus is lost.
    pub fn forget_nexus(&mut self, nexus: NexusId) {
        self.forget(|(other, _)| *other == nexus);
    }

    /// The unit was reset.
    pub fn forget_all(&mut self) {
        self.forget(|_| true);
    }
}
