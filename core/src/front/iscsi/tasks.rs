//! The tasks of a session.

use super::collect::DataOutCollector;
use super::identity::ConnectionId;
use crate::front::scsi::{Command, CommandResponse, TaskId};
use std::collections::{BTreeMap, VecDeque};

/// Most tasks of a session. The window of commands is smaller.
pub(super) const MAX_TASKS: usize = u16::MAX as usize - 1;

/// Bits of a task identifier that count how often its slot was used.
const GENERATION_BITS: u32 = 24;

/// The progress of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TaskStage {
    /// Older commands have not arrived.
    Held,
    /// The task waits for memory.
    Waiting,
    /// The device has the task.
    Active,
    /// The status was sent, and the initiator may ask for it again.
    Done,
}

/// A SCSI command.
#[derive(Debug)]
pub(super) struct SessionTask {
    pub(super) itt: u32,
    /// The connection that the task is allegiant to.
    pub(super) connection: ConnectionId,
    pub(super) lun: u64,
    pub(super) cmd_sn: u32,
    pub(super) immediate: bool,
    pub(super) read: bool,
    pub(super) write: bool,
    /// Bytes that the initiator expects to move.
    pub(super) expected: u32,
    pub(super) stage: TaskStage,
    /// The command, until the device gets it.
    pub(super) command: Option<Command>,
    /// The output that arrives.
    pub(super) collect: Option<Box<DataOutCollector>>,
    /// Bytes that count against the session's memory.
    pub(super) charge: u64,
    /// Number of R2T or Data-In PDUs that were sent.
    pub(super) data_sn: u32,
    /// Counter for the tags of R2Ts.
    pub(super) tags: u16,
    /// No output is solicited any more, because the end of the task is decided.
    pub(super) frozen: bool,
    /// The response: kept until output on its way has come, and until the status is acknowledged.
    pub(super) response: Option<CommandResponse>,
    /// The initiator has acknowledged the Data-In PDUs before this number.
    pub(super) data_acknowledged: u32,
    /// The layout of its input in Data-In PDUs.
    pub(super) layout: DataInLayout,
}

/// The layout of the Data-In PDUs of a task, from number `data_sn` on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DataInLayout {
    /// Number of the first PDU.
    pub(super) data_sn: u32,
    /// Its offset in bytes.
    pub(super) offset: u64,
    /// Longest data segment, in bytes.
    pub(super) segment: u32,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    task: Option<SessionTask>,
}

/// Tasks by slot, found by initiator task tag.
#[derive(Debug)]
pub(super) struct SessionTasks {
    /// Upper bits of the task identifiers.
    serial: u32,
    slots: Vec<Slot>,
    free: Vec<u16>,
    by_itt: BTreeMap<u32, u16>,
    len: usize,
    /// Tasks that wait for memory, oldest first.
    waiting: VecDeque<u16>,
    /// Payload of admitted tasks, in bytes.
    charge: u64,
    /// Tags of tasks that ended while output for them may be on its way.
    late_tags: VecDeque<u32>,
    max_late_tags: usize,
}

impl SessionTasks {
    /// No tasks yet. `serial` (below 2^24) distinguishes the tasks of this session from others',
    /// and `window` is the most numbered commands that may be outstanding.
    pub(super) fn new(serial: u32, window: u32) -> SessionTasks {
        SessionTasks {
            serial,
            slots: Vec::new(),
            free: Vec::new(),
            by_itt: BTreeMap::new(),
            len: 0,
            waiting: VecDeque::new(),
            charge: 0,
            late_tags: VecDeque::new(),
            max_late_tags: 2 * window as usize,
        }
    }

    /// Payload of admitted tasks, in bytes.
    pub(super) fn charge(&self) -> u64 {
        self.charge
    }

    /// Whether tasks wait for memory.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The oldest task that waits for memory.
    pub(super) fn next_waiting(&self) -> Option<u16> {
        self.waiting.front().copied()
    }

    /// A task waits for memory from now on.
    pub(super) fn wait(&mut self, slot: u16) -> Option<&mut SessionTask> {
        let task = self.slots.get_mut(usize::from(slot))?.task.as_mut()?;
        task.stage = TaskStage::Waiting;
        self.waiting.push_back(slot);
        Some(task)
    }

    /// Admits the oldest task that waits, and charges it. Returns its command for the device.
    pub(super) fn admit_next(&mut self, charge: u64) -> Option<Command> {
        let slot = self.waiting.pop_front()?;
        let task = self.slots.get_mut(usize::from(slot))?.task.as_mut()?;
        task.charge = charge;
        task.stage = TaskStage::Active;
        self.charge += charge;
        task.command.take()
    }

    /// Whether output for a task with this tag may be on its way, although the task has ended.
    pub(super) fn is_late_tag(&self, itt: u32) -> bool {
        self.late_tags.contains(&itt)
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds a task; `None` if there are too many. A task that is done loses its tag to the new one.
    pub(super) fn insert(&mut self, task: SessionTask) -> Option<u16> {
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

    pub(super) fn remove(&mut self, slot: u16) -> Option<SessionTask> {
        let entry = self.slots.get_mut(usize::from(slot))?;
        let task = entry.task.take()?;
        entry.generation = (entry.generation + 1) % (1 << GENERATION_BITS);
        self.free.push(slot);
        self.len -= 1;
        if self.by_itt.get(&task.itt) == Some(&slot) {
            self.by_itt.remove(&task.itt);
        }
        self.charge -= task.charge;
        if task.stage == TaskStage::Waiting {
            self.waiting.retain(|other| *other != slot);
        }
        if task.collect.as_deref().is_some_and(|collect| !collect.is_quiet()) {
            if self.late_tags.len() >= self.max_late_tags {
                self.late_tags.pop_front();
            }
            self.late_tags.push_back(task.itt);
        }
        Some(task)
    }

    pub(super) fn get(&mut self, slot: u16) -> Option<&mut SessionTask> {
        self.slots.get_mut(usize::from(slot))?.task.as_mut()
    }

    pub(super) fn find(&self, itt: u32) -> Option<u16> {
        self.by_itt.get(&itt).copied()
    }

    /// The name of a task at the device.
    pub(super) fn id(&self, slot: u16) -> TaskId {
        let generation = self.slots.get(usize::from(slot)).map_or(0, |slot| slot.generation);
        u64::from(self.serial) << 40 | u64::from(generation) << 16 | u64::from(slot)
    }

    /// The slot of the task with this name, if it still exists.
    pub(super) fn by_id(&self, id: TaskId) -> Option<u16> {
        let slot = id as u16;
        let entry = self.slots.get(usize::from(slot))?;
        (entry.task.is_some() && self.id(slot) == id).then_some(slot)
    }

    /// The session that a task belongs to.
    pub(super) fn serial_of(id: TaskId) -> u32 {
        (id >> 40) as u32
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u16, &SessionTask)> {
        self.slots
            .iter()
            .enumerate()
            .filter_map(|(slot, entry)| Some((slot as u16, entry.task.as_ref()?)))
    }

    /// The slots of the tasks for which `which` is true.
    pub(super) fn select(&self, which: impl Fn(&SessionTask) -> bool) -> Vec<u16> {
        self.iter().filter(|(_, task)| which(task)).map(|(slot, _)| slot).collect()
    }
}
