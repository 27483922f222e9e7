//! The task set: the order in which tasks start, and the requests of each task.
//!
//! The task set promises:
//!
//! - the tasks of a nexus start in the order of their attributes (SAM-5 §8.9);
//! - a task that reads, decides and writes (COMPARE AND WRITE, ORWRITE, WRITE AND VERIFY) never
//!   overlaps another task that writes the same blocks;
//! - a task that was ended keeps its claim on blocks until its last write has ended. Task
//!   management waits for that.
//!
//! All nexuses share one task set (TST is 0). Simple tasks may start out of order (QUEUE ALGORITHM
//! MODIFIER is 1): each starts as soon as its output is there.
//!
//! The set differs from SAM-5 in one respect: an attribute orders only the tasks of its own nexus.
//! Otherwise an initiator could send an ordered write and die before its data. It would block all
//! other initiators until its session ends.

use super::command::{Attribute, Cdb};
use super::copy::part::{PartFailure, PartReply, Parts};
use super::copy::plan::PopulateToken;
use super::handler::{CommandContext, CommandOutcome, ControlHandler, ListHandler, TableHandler};
use super::nexus::{NexusId, TaskId};
use super::output::DeviceOutput;
use super::requests::{PendingRequests, RequestSink, joined};
use super::response::Status;
use super::sense::{CommandRefusal, Sense, code, key};
use super::volume_io::{IoStep, VolumeIo};
use crate::block::{BlockError, Range, Reply};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Bytes that commands may hold beyond the data that they transfer. A command that needs more
/// waits, unless no other command holds any.
const MAX_INTERNAL_BYTES: u64 = 64 << 20;

/// The work of a task.
#[derive(Debug)]
pub(super) enum TaskWork {
    Control(ControlHandler),
    Table(TableHandler),
    List {
        run: ListHandler,
        /// Size of the volume, if the command may change any part of it.
        all: Option<u64>,
    },
    Medium(Box<VolumeIo>),
    /// The reservations work on it.
    Reservations,
    /// The transport copies.
    Copy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TaskState {
    /// The task waits for its output.
    Collecting,
    /// The task may start when the other tasks let it.
    Ready,
    /// The task has started.
    Started,
    /// The task has ended; some of its requests are not answered.
    Gone,
}

/// The blocks that a task changes.
#[derive(Clone, Copy, Debug)]
struct BlockClaim {
    range: Range,
    exclusive: bool,
    started: bool,
}

#[derive(Debug)]
pub(super) struct Task {
    /// Position in the order of arrival.
    seq: u64,
    context: CommandContext,
    attribute: Attribute,
    state: TaskState,
    /// Bytes of output that the command asks for, and the bytes of those that are collected.
    wanted: u64,
    collect: u64,
    data: Vec<Bytes>,
    work: TaskWork,
    /// Requests without an answer, and the number of those that change the medium.
    pending: u32,
    changing: u32,
    failure: Option<Sense>,
    /// The error of the last request that failed.
    error: Option<BlockError>,
    busy: bool,
    /// The task is a part of a copy, and gets no response.
    part: bool,
    /// The task owes a report of the part's end.
    owes: bool,
    /// The copy of this task, and whether the copy goes on after the task has ended.
    copy: Option<u64>,
    background: bool,
    /// Its share of [`MAX_INTERNAL_BYTES`].
    internal: u64,
}

impl Task {
    fn new(
        seq: u64,
        context: CommandContext,
        attribute: Attribute,
        work: TaskWork,
        wanted: u64,
        collect: u64,
    ) -> Task {
        Task {
            seq,
            context,
            attribute,
            state: TaskState::Collecting,
            wanted,
            collect,
            data: Vec::new(),
            work,
            pending: 0,
            changing: 0,
            failure: None,
            error: None,
            busy: false,
            part: false,
            owes: false,
            copy: None,
            background: false,
            internal: 0,
        }
    }

    pub fn nexus(&self) -> NexusId {
        self.context.nexus
    }

    /// Bytes of output that the command asks for.
    pub fn wanted(&self) -> u64 {
        self.wanted
    }

    /// Whether the task is a part of a copy.
    pub fn is_part(&self) -> bool {
        self.part
    }
}

/// All tasks, and ended ones with requests that are not answered.
#[derive(Debug, Default)]
pub(super) struct TaskSet {
    tasks: BTreeMap<TaskId, Task>,
    requests: PendingRequests,
    next_seq: u64,
    /// Ready tasks by order of arrival.
    ready: BTreeMap<u64, TaskId>,
    /// By nexus and order of arrival: all tasks that have not ended, ordered tasks, and tasks at
    /// the head of the queue.
    order: BTreeSet<(NexusId, u64)>,
    ordered: BTreeSet<(NexusId, u64)>,
    heads: BTreeSet<(NexusId, u64)>,
    claims: BTreeMap<u64, BlockClaim>,
    exclusive: BTreeSet<u64>,
    internal: u64,
    /// The number of tasks that have ended.
    ended: u64,
    /// Results of parts that were not taken yet.
    parts: Parts,
    /// Watches that belong to no task any more.
    strays: Vec<u64>,
}

/// A task that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndedTask {
    /// Bytes of output that the command asked for.
    pub wanted: u64,
    /// The task was a part of a copy.
    pub part: bool,
    /// The error of the last request that failed.
    pub error: Option<BlockError>,
}

/// The next step of a task that starts.
#[derive(Debug)]
pub(super) enum TaskStart {
    Control(ControlHandler, CommandContext),
    Table(TableHandler, CommandContext),
    List(ListHandler, CommandContext, Bytes),
    /// Call [`TaskSet::advance`].
    Medium,
    Failed(Sense),
}

/// The next step of a task that goes on.
#[derive(Debug)]
pub(super) enum TaskStep {
    End(CommandOutcome),
    /// The watch of the ranges has begun. The unit makes a token for it.
    MakeToken(u64, Box<PopulateToken>),
}

impl TaskSet {
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Whether no state of any task is left.
    #[cfg(test)]
    pub fn is_idle(&self) -> bool {
        self.tasks.is_empty()
            && self.requests.is_empty()
            && self.order.is_empty()
            && self.ready.is_empty()
            && self.ordered.is_empty()
            && self.heads.is_empty()
            && self.claims.is_empty()
            && self.exclusive.is_empty()
            && self.internal == 0
            && self.parts.is_empty()
            && self.strays.is_empty()
    }

    /// Whether the task exists, or has ended with requests that are not answered.
    pub fn contains(&self, task: TaskId) -> bool {
        self.tasks.contains_key(&task)
    }

    /// Whether the task exists and has not ended.
    pub fn is_live(&self, task: TaskId) -> bool {
        self.tasks.get(&task).is_some_and(|task| task.state != TaskState::Gone)
    }

    pub fn get(&self, task: TaskId) -> Option<&Task> {
        self.tasks.get(&task)
    }

    pub fn nexus_of(&self, task: TaskId) -> Option<NexusId> {
        self.tasks.get(&task).map(Task::nexus)
    }

    /// Tasks that have ended but may still change the medium.
    pub fn lingering(&self) -> BTreeSet<TaskId> {
        let tasks = self.tasks.iter().filter(|(id, _)| self.lingers(**id));
        tasks.map(|(id, _)| *id).collect()
    }

    pub fn lingers(&self, task: TaskId) -> bool {
        let lingers =
            |task: &Task| task.state == TaskState::Gone && task.changing > 0 && !task.background;
        self.tasks.get(&task).is_some_and(lingers)
    }

    pub fn is_collecting(&self, task: TaskId) -> bool {
        self.tasks.get(&task).is_some_and(|task| task.state == TaskState::Collecting)
    }

    /// The tasks for which `which` is true.
    pub fn of(&self, which: impl Fn(&Task) -> bool) -> Vec<TaskId> {
        let live =
            self.tasks.iter().filter(|(_, task)| task.state != TaskState::Gone && which(task));
        live.map(|(id, _)| *id).collect()
    }

    /// Adds a task. It collects `collect` bytes of the `wanted` bytes of output, and then is ready.
    pub fn add(
        &mut self,
        context: CommandContext,
        attribute: Attribute,
        work: TaskWork,
        wanted: u64,
        collect: u64,
    ) {
        let seq = self.next_seq;
        self.next_seq += 1;
        let place = (context.nexus, seq);
        self.order.insert(place);
        match attribute {
            Attribute::Ordered => _ = self.ordered.insert(place),
            Attribute::HeadOfQueue => _ = self.heads.insert(place),
            Attribute::Simple | Attribute::Aca => {}
        }
        let task = Task::new(seq, context, attribute, work, wanted, collect);
        self.tasks.insert(context.task, task);
        if collect == 0 {
            self.make_ready(context.task);
        }
    }

    /// Adds a part of a copy.
    ///
    /// Other tasks may wait for the task that asked for the copy, so a part must not wait for them.
    /// It has no place in the order of tasks. It waits only for claims on blocks of tasks that have
    /// started.
    pub fn add_part(&mut self, nexus: NexusId, id: TaskId, work: TaskWork) {
        let seq = self.next_seq;
        self.next_seq += 1;
        let context = CommandContext { nexus, task: id, cdb: Cdb([0; 16]), out_bytes: 0 };
        let mut task = Task::new(seq, context, Attribute::HeadOfQueue, work, 0, 0);
        task.part = true;
        self.tasks.insert(id, task);
        self.make_ready(id);
    }

    /// A task that has started waits for a copy. With `background` the copy goes on after the task
    /// has ended. Returns the name of the copy.
    pub fn wait_for_copy(&mut self, id: TaskId, background: bool) -> Option<u64> {
        let task = self.tasks.get_mut(&id)?;
        let request = self.requests.add(id, true);
        task.work = TaskWork::Copy;
        task.pending += 1;
        task.changing += 1;
        (task.copy, task.background) = (Some(request), background);
        Some(request)
    }

    /// A copy has ended. Returns the task, if it still waits for the copy.
    pub fn copied(&mut self, copy: u64) -> Option<TaskId> {
        let (id, _) = self.requests.remove(copy)?;
        let task = self.tasks.get_mut(&id)?;
        task.copy = None;
        task.pending = task.pending.saturating_sub(1);
        task.changing = task.changing.saturating_sub(1);
        if task.state != TaskState::Gone {
            return Some(id);
        }
        if task.pending == 0 {
            self.forget(id);
        }
        None
    }

    /// Ends the background of the copies of these nexuses. From now on task management waits for
    /// them, as for any write. Returns their names.
    pub fn stop_background(&mut self, whose: impl Fn(NexusId) -> bool) -> Vec<u64> {
        let background = self.tasks.values_mut().filter(|task| {
            task.background && task.state == TaskState::Gone && whose(task.context.nexus)
        });
        background
            .filter_map(|task| {
                task.background = false;
                task.copy
            })
            .collect()
    }

    /// Takes the output of a task; `false` if the task collects none.
    pub fn collected(&mut self, id: TaskId, data: Vec<Bytes>) -> bool {
        let Some(task) = self.tasks.get_mut(&id) else { return false };
        if task.state != TaskState::Collecting {
            return false;
        }
        let bytes = data.iter().fold(0, |sum: u64, piece| sum.saturating_add(piece.len() as u64));
        if bytes == task.collect {
            task.data = data;
        } else {
            // The transport broke its promise. None of the output may reach the volume.
            task.failure = Some(Sense::new(key::HARDWARE_ERROR, code::INTERNAL_TARGET_FAILURE));
        }
        self.make_ready(id);
        true
    }

    fn make_ready(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        task.state = TaskState::Ready;
        let claim = match &task.work {
            TaskWork::Medium(io) => io.claim(),
            TaskWork::List { all: Some(sectors), .. } => Some((Range::new(0, *sectors), false)),
            TaskWork::List { .. }
            | TaskWork::Control(_)
            | TaskWork::Table(_)
            | TaskWork::Reservations
            | TaskWork::Copy => None,
        };
        self.ready.insert(task.seq, id);
        if let Some((range, exclusive)) = claim {
            self.claims.insert(task.seq, BlockClaim { range, exclusive, started: false });
            if exclusive {
                self.exclusive.insert(task.seq);
            }
        }
    }

    fn unclaim(&mut self, id: TaskId) {
        if let Some(task) = self.tasks.get(&id) {
            self.claims.remove(&task.seq);
            self.exclusive.remove(&task.seq);
        }
    }

    /// The first ready task whose position is `seq` or later.
    pub fn next_ready(&self, seq: u64) -> Option<(u64, TaskId)> {
        self.ready.range(seq..).next().map(|(seq, id)| (*seq, *id))
    }

    /// Whether the other tasks of its nexus let a task start.
    fn is_in_turn(&self, task: &Task) -> bool {
        let (nexus, seq) = (task.nexus(), task.seq);
        let first = |places: &BTreeSet<(NexusId, u64)>| {
            places.range((nexus, 0)..=(nexus, u64::MAX)).next().map(|(_, seq)| *seq)
        };
        match task.attribute {
            Attribute::HeadOfQueue => true,
            Attribute::Ordered => first(&self.heads).is_none() && first(&self.order) == Some(seq),
            Attribute::Simple | Attribute::Aca => {
                first(&self.heads).is_none() && first(&self.ordered).is_none_or(|first| first > seq)
            }
        }
    }

    pub fn may_start(&self, id: TaskId) -> bool {
        let Some(task) = self.tasks.get(&id) else { return false };
        if !self.is_in_turn(task) {
            return false;
        }
        let seq = task.seq;
        let internal = match &task.work {
            TaskWork::Medium(io) => io.internal_bytes(),
            _ => 0,
        };
        if internal > 0 && self.internal > 0 && self.internal + internal > MAX_INTERNAL_BYTES {
            return false;
        }
        let Some(mine) = self.claims.get(&seq) else { return true };
        // An older task that is ready goes first, or younger tasks could keep it waiting for ever.
        // A task at the head of the queue does not wait for tasks that wait for it.
        let waits = |other: u64| {
            let older = self.ready.get(&other).and_then(|id| self.tasks.get(id));
            older.is_some_and(|older| self.is_in_turn(older))
        };
        let first = |other: u64, claim: &BlockClaim| {
            let head = task.attribute == Attribute::HeadOfQueue;
            claim.started || other < seq && !head && waits(other)
        };
        let stops = |other: u64, claim: &BlockClaim| {
            other != seq && first(other, claim) && claim.range.intersect(mine.range).is_some()
        };
        if mine.exclusive {
            !self.claims.iter().any(|(other, claim)| stops(*other, claim))
        } else {
            let mut exclusive = self.exclusive.iter();
            !exclusive.any(|other| self.claims.get(other).is_some_and(|claim| stops(*other, claim)))
        }
    }

    /// Takes the answer to a request. Returns the task if it waits for no other answer.
    pub fn replied(
        &mut self,
        request: u64,
        result: Result<Reply, BlockError>,
        block_sectors: u64,
    ) -> Option<TaskId> {
        let (id, changes) = self.requests.remove(request)?;
        let task = self.tasks.get_mut(&id)?;
        task.pending = task.pending.saturating_sub(1);
        task.changing = task.changing.saturating_sub(u32::from(changes));
        if task.state == TaskState::Gone
            && let Ok(Reply::Watching(watch)) = result
        {
            self.strays.push(watch);
        }
        task.error = result.as_ref().err().copied();
        match result {
            Ok(reply) => {
                if task.state != TaskState::Gone
                    && let TaskWork::Medium(io) = &mut task.work
                {
                    io.take(reply);
                }
            }
            Err(BlockError::ShuttingDown) => task.busy = true,
            Err(error) => {
                let sense = sense_of(error, block_sectors);
                task.failure.get_or_insert(sense);
            }
        }
        (task.pending == 0).then_some(id)
    }

    /// How many tasks have ended.
    pub fn ended(&self) -> u64 {
        self.ended
    }

    /// Starts a task that may start.
    pub fn start(&mut self, id: TaskId) -> Option<TaskStart> {
        let task = self.tasks.get_mut(&id)?;
        task.state = TaskState::Started;
        self.ready.remove(&task.seq);
        if let Some(claim) = self.claims.get_mut(&task.seq) {
            claim.started = true;
        }
        let context = task.context;
        match &mut task.work {
            TaskWork::Control(run) => Some(TaskStart::Control(*run, context)),
            TaskWork::Table(run) => Some(TaskStart::Table(*run, context)),
            TaskWork::List { run, .. } => {
                let list = joined(std::mem::take(&mut task.data));
                Some(match task.failure {
                    Some(sense) => TaskStart::Failed(sense),
                    None => TaskStart::List(*run, context, list),
                })
            }
            TaskWork::Medium(io) => {
                io.set_data(std::mem::take(&mut task.data));
                task.internal = io.internal_bytes();
                self.internal += task.internal;
                Some(TaskStart::Medium)
            }
            TaskWork::Reservations | TaskWork::Copy => None,
        }
    }

    /// Replaces the work of a task that has started.
    pub fn set_work(&mut self, id: TaskId, work: TaskWork) {
        if let Some(task) = self.tasks.get_mut(&id) {
            task.work = work;
        }
    }

    /// Goes on with a task whose requests are all answered. The volume has this many sectors.
    pub fn advance(
        &mut self,
        id: TaskId,
        sectors: u64,
        outputs: &mut VecDeque<DeviceOutput>,
    ) -> Option<TaskStep> {
        let task = self.tasks.get_mut(&id)?;
        if task.state == TaskState::Gone {
            self.forget(id);
            return None;
        }
        if let Some(sense) = task.failure {
            return Some(TaskStep::End(sense.into()));
        }
        if task.busy {
            let busy = CommandRefusal::Status(Status::Busy);
            return Some(TaskStep::End(CommandOutcome::Refused(busy)));
        }
        let TaskWork::Medium(io) = &mut task.work else { return None };
        let mut requests = RequestSink::new(id, sectors, &mut self.requests, outputs);
        let step = io.advance(&mut requests);
        let (issued, changing) = requests.counts();
        task.pending += issued;
        task.changing += changing;
        match step {
            IoStep::Wait => None,
            IoStep::Done(data) => Some(TaskStep::End(CommandOutcome::Good(data))),
            IoStep::Failed(sense) => Some(TaskStep::End(sense.into())),
            IoStep::Staged(pieces) => Some(TaskStep::End(CommandOutcome::Staged(pieces))),
            IoStep::Watching(watch, request) => Some(TaskStep::MakeToken(watch, request)),
        }
    }

    /// Ends a task without a response. Returns the copy that the task waited for.
    pub fn drop_task(&mut self, id: TaskId) -> Option<u64> {
        let copy = self.tasks.get(&id).and_then(|task| task.copy);
        if let Some(EndedTask { part: true, .. }) = self.end(id) {
            // A write of the part is under way, and may still be done.
            if self.lingers(id) {
                self.tasks.entry(id).and_modify(|task| task.owes = true);
            } else {
                self.end_part(id, Err(PartFailure::Ended));
            }
        }
        copy
    }

    /// Keeps the result of a part for [`TaskSet::poll_part`].
    pub fn end_part(&mut self, id: TaskId, result: Result<PartReply, PartFailure>) {
        self.parts.push_back((id, result));
    }

    /// Takes the result of a part that has ended.
    pub fn poll_part(&mut self) -> Option<(TaskId, Result<PartReply, PartFailure>)> {
        self.parts.pop_front()
    }

    /// Takes a watch that belongs to no task.
    pub fn poll_stray_watch(&mut self) -> Option<u64> {
        self.strays.pop()
    }

    /// A name for a request that belongs to no task.
    pub fn name_request(&mut self) -> u64 {
        self.requests.name()
    }

    /// Ends a task. Its state is kept as long as requests of it are not answered.
    pub fn end(&mut self, id: TaskId) -> Option<EndedTask> {
        let task = self.tasks.get_mut(&id)?;
        if task.state == TaskState::Gone {
            return None;
        }
        task.state = TaskState::Gone;
        task.data = Vec::new();
        let ended = EndedTask { wanted: task.wanted, part: task.part, error: task.error };
        let (seq, place) = (task.seq, (task.nexus(), task.seq));
        let (idle, harmless) = (task.pending == 0, task.changing == 0);
        self.ended += 1;
        self.ready.remove(&seq);
        self.order.remove(&place);
        self.ordered.remove(&place);
        self.heads.remove(&place);
        if harmless {
            self.unclaim(id);
        }
        if idle {
            self.forget(id);
        }
        Some(ended)
    }

    fn forget(&mut self, id: TaskId) {
        self.unclaim(id);
        if let Some(task) = self.tasks.remove(&id) {
            self.internal = self.internal.saturating_sub(task.internal);
            if task.owes {
                self.parts.push_back((id, Err(PartFailure::Ended)));
            }
        }
    }
}

/// The sense data for a request that failed.
fn sense_of(error: BlockError, block_sectors: u64) -> Sense {
    match error {
        BlockError::Medium(range) => Sense::new(key::MEDIUM_ERROR, code::UNRECOVERED_READ_ERROR)
            .with_information(range.lba / block_sectors),
        // Hosts give up this path at once and look for another one. They do not retry for ever.
        BlockError::Fenced => Sense::new(key::NOT_READY, code::TARGET_PORT_UNAVAILABLE),
        BlockError::NoSpace => Sense::new(key::DATA_PROTECT, code::SPACE_ALLOCATION_FAILED),
        BlockError::Stopped
        | BlockError::ShuttingDown
        | BlockError::Changed
        | BlockError::Unsupported => Sense::new(key::HARDWARE_ERROR, code::INTERNAL_TARGET_FAILURE),
    }
}
