//! The tasks of a session.

use super::ConnectionId;
use super::collect::Collect;
use crate::front::scsi::{Command, CommandResponse, TaskId};
use std::collections::BTreeMap;

/// Most tasks of a session; the window of commands is kept below.
pub(super) const MAX_TASKS: usize = u16::MAX as usize - 1;

/// Bits of a task's identity that say how often its slot was used before.
const GENERATION_BITS: u32 = 24;

/// How far a task has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Older commands have not arrived.
    Held,
    /// It does not fit in memory next to what the session holds.
    Waiting,
    /// The device has it.
    Active,
    /// The status was sent and may be asked for again.
    Done,
}

/// A SCSI command.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) itt: u32,
    /// The connection it is allegiant to.
    pub(super) link: ConnectionId,
    pub(super) lun: u64,
    pub(super) cmd_sn: u32,
    pub(super) immediate: bool,
    pub(super) read: bool,
    pub(super) write: bool,
    /// Bytes the initiator expects to move.
    pub(super) expected: u32,
    pub(super) stage: Stage,
    /// What the device will be given.
    pub(super) command: Option<Command>,
    /// Output on its way in.
    pub(super) collect: Option<Box<Collect>>,
    /// Counted against the session's memory, in bytes.
    pub(super) charge: u64,
    /// R2T or Data-In PDUs sent, which are numbered from 0.
    pub(super) data_sn: u32,
    /// Makes tags of R2Ts.
    pub(super) tags: u16,
    /// Nothing more is asked for: its end has been decided.
    pub(super) frozen: bool,
    /// How it ended: until its output has come, and until the status is acknowledged.
    pub(super) response: Option<CommandResponse>,
    /// Data-In PDUs before this number have been acknowledged.
    pub(super) data_acknowledged: u32,
    /// How its input was cut into Data-In PDUs.
    pub(super) cut: Cut,
}

/// The Data-In PDUs of a task from number `data_sn` on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cut {
    /// Number of the first.
    pub(super) data_sn: u32,
    /// Its place, in bytes.
    pub(super) offset: u64,
    /// Longest data segment, in bytes.
    pub(super) segment: u32,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    task: Option<Task>,
}

/// Tasks by slot, found by initiator task tag.
#[derive(Debug)]
pub(super) struct Tasks {
    /// Upper bits of the identities.
    serial: u32,
    slots: Vec<Slot>,
    free: Vec<u16>,
    by_itt: BTreeMap<u32, u16>,
    len: usize,
}

impl Tasks {
    /// No tasks yet; `serial` (below 2^24) tells this session's tasks from others'.
    pub(super) fn new(serial: u32) -> Tasks {
        Tasks { serial, slots: Vec::new(), free: Vec::new(), by_itt: BTreeMap::new(), len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Takes a task in; `None` if there are too many. It takes its tag over from one that is done.
    pub(super) fn insert(&mut self, task: Task) -> Option<u16> {
        if self.len >= MAX_TASKS {
            return None;
        }
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.slots.push(Slot::default());
                (self.slots.len() - 1) as u16
            }
        };
        self.by_itt.insert(task.itt, slot);
        self.slots[usize::from(slot)].task = Some(task);
        self.len += 1;
        Some(slot)
    }

    pub(super) fn remove(&mut self, slot: u16) -> Option<Task> {
        let entry = self.slots.get_mut(usize::from(slot))?;
        let task = entry.task.take()?;
        entry.generation = (entry.generation + 1) % (1 << GENERATION_BITS);
        self.free.push(slot);
        self.len -= 1;
        if self.by_itt.get(&task.itt) == Some(&slot) {
            self.by_itt.remove(&task.itt);
        }
        Some(task)
    }

    pub(super) fn get(&mut self, slot: u16) -> Option<&mut Task> {
        self.slots.get_mut(usize::from(slot))?.task.as_mut()
    }

    pub(super) fn find(&self, itt: u32) -> Option<u16> {
        self.by_itt.get(&itt).copied()
    }

    /// The name of a task towards the device.
    pub(super) fn id(&self, slot: u16) -> TaskId {
        let generation = self.slots.get(usize::from(slot)).map_or(0, |slot| slot.generation);
        u64::from(self.serial) << 40 | u64::from(generation) << 16 | u64::from(slot)
    }

    /// The task of that name, if it still exists.
    pub(super) fn by_id(&self, id: TaskId) -> Option<u16> {
        let slot = id as u16;
        let entry = self.slots.get(usize::from(slot))?;
        (entry.task.is_some() && self.id(slot) == id).then_some(slot)
    }

    /// The session that a task is of.
    pub(super) fn serial_of(id: TaskId) -> u32 {
        (id >> 40) as u32
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u16, &Task)> {
        self.slots
            .iter()
            .enumerate()
            .filter_map(|(slot, entry)| Some((slot as u16, entry.task.as_ref()?)))
    }

    /// The slots of the tasks that `which` is true for.
    pub(super) fn select(&self, which: impl Fn(&Task) -> bool) -> Vec<u16> {
        self.iter().filter(|(_, task)| which(task)).map(|(slot, _)| slot).collect()
    }
}
