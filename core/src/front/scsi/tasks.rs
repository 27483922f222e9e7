//! The task set: which task may start when, and what becomes of its requests.
//!
//! Promises: tasks of a nexus start in the order that their attributes ask for (SAM-5 §8.9); one that reads,
//! thinks and writes (COMPARE AND WRITE, ORWRITE, WRITE AND VERIFY) never overlaps another that
//! writes the same blocks; a task that was ended keeps its claim on blocks until the last of its
//! writes is answered, and until then task management is not done.
//!
//! There is one task set for all nexuses (TST is 0), and simple tasks may be reordered at will
//! (QUEUE ALGORITHM MODIFIER is 1): they start as soon as their output is there. In one respect it is not one
//! set: attributes are of no concern to tasks of other nexuses. An initiator that sends an ordered write and dies
//! before its data would otherwise hold up all others until its session is given up.

use super::cdb::Cdb;
use super::copy;
use super::io::{Io, Step};
use super::sense::{Refusal, Sense, code, key};
use super::{
    Attribute, Context, DataIn, Device, NexusId, Outcome, Output, Response, Status, TaskId,
};
use crate::block::{BlockError, Range, Reply, Request};
use bytes::{Bytes, BytesMut};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Bytes that commands may hold which read or build what they do not transfer; a command that asks
/// for more waits, unless it is alone.
const MAX_INTERNAL_BYTES: u64 = 64 << 20;

/// What a task does when it starts.
#[derive(Debug)]
pub(super) enum Work {
    Control(fn(&mut Device, &Context) -> Outcome),
    List {
        run: fn(&mut Device, &Context, &[u8]) -> Outcome,
        /// Size of the volume, where it may change any part of it.
        all: Option<u64>,
    },
    Medium(Box<Io>),
    /// The reservations are at it.
    Reservations,
    /// The transport is at it: a copy.
    Copy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Output is to come.
    Collecting,
    /// It may start when the others let it.
    Ready,
    /// It has started.
    Started,
    /// It has no task any more, only requests.
    Gone,
}

/// Blocks that a task changes.
#[derive(Clone, Copy, Debug)]
struct Claim {
    range: Range,
    exclusive: bool,
    started: bool,
}

#[derive(Debug)]
pub(super) struct Task {
    /// Tasks in the order of their arrival.
    seq: u64,
    context: Context,
    attribute: Attribute,
    stage: Stage,
    /// Bytes of output asked for, and of those the ones that are collected.
    wanted: u64,
    collect: u64,
    data: Vec<Bytes>,
    work: Work,
    /// Requests without an answer, and those of them that change the medium.
    pending: u32,
    changing: u32,
    failure: Option<Sense>,
    /// Why the last request that failed did.
    error: Option<BlockError>,
    busy: bool,
    /// It is a part of a copy, which gets no response.
    part: bool,
    /// Its end as a part has not been told.
    owes: bool,
    /// The copy that it waits for, and whether that goes on without it.
    copy: Option<u64>,
    background: bool,
    /// Part of [`MAX_INTERNAL_BYTES`].
    internal: u64,
}

impl Task {
    fn new(
        seq: u64,
        context: Context,
        attribute: Attribute,
        work: Work,
        wanted: u64,
        collect: u64,
    ) -> Task {
        Task {
            seq,
            context,
            attribute,
            stage: Stage::Collecting,
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

    /// Whether it is a part of a copy.
    pub fn is_part(&self) -> bool {
        self.part
    }
}

/// All tasks, and those that are gone but for their requests.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    tasks: BTreeMap<TaskId, Task>,
    /// Whose, and whether it changes the medium.
    requests: BTreeMap<u64, (TaskId, bool)>,
    next_seq: u64,
    next_request: u64,
    /// By order of arrival: those that are ready.
    ready: BTreeMap<u64, TaskId>,
    /// By nexus and order of arrival: all that have not ended, and those of the attributes that stop others.
    order: BTreeSet<(NexusId, u64)>,
    ordered: BTreeSet<(NexusId, u64)>,
    heads: BTreeSet<(NexusId, u64)>,
    claims: BTreeMap<u64, Claim>,
    exclusive: BTreeSet<u64>,
    internal: u64,
    /// How many have ended.
    ended: u64,
    /// Ends of parts of copies that are to be told.
    pub parts: copy::Parts,
    /// Watches that nobody waits for any more.
    pub strays: Vec<u64>,
}

/// What a task was that has ended.
#[derive(Clone, Copy, Debug)]
struct Ended {
    /// Bytes of output that it wanted.
    wanted: u64,
    part: bool,
    error: Option<BlockError>,
}

impl Tasks {
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Whether nothing of any task is left, anywhere.
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

    /// Whether this is a task, or was one whose requests are not all answered.
    pub fn contains(&self, task: TaskId) -> bool {
        self.tasks.contains_key(&task)
    }

    /// Whether this is a task.
    pub fn is_live(&self, task: TaskId) -> bool {
        self.tasks.get(&task).is_some_and(|task| task.stage != Stage::Gone)
    }

    pub fn nexus_of(&self, task: TaskId) -> Option<NexusId> {
        self.tasks.get(&task).map(Task::nexus)
    }

    /// Tasks that have ended, but may still change the medium.
    pub fn lingering(&self) -> BTreeSet<TaskId> {
        let tasks = self.tasks.iter().filter(|(id, _)| self.lingers(**id));
        tasks.map(|(id, _)| *id).collect()
    }

    pub fn lingers(&self, task: TaskId) -> bool {
        let lingers =
            |task: &Task| task.stage == Stage::Gone && task.changing > 0 && !task.background;
        self.tasks.get(&task).is_some_and(lingers)
    }

    pub fn is_collecting(&self, task: TaskId) -> bool {
        self.tasks.get(&task).is_some_and(|task| task.stage == Stage::Collecting)
    }

    /// The tasks for which `which` holds.
    pub fn of(&self, which: impl Fn(&Task) -> bool) -> Vec<TaskId> {
        let live = self.tasks.iter().filter(|(_, task)| task.stage != Stage::Gone && which(task));
        live.map(|(id, _)| *id).collect()
    }

    /// A task that collects so many bytes of the output that it wants, and then is ready.
    pub fn add(
        &mut self,
        context: Context,
        attribute: Attribute,
        work: Work,
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

    /// A part of a copy. What waits for the task that asked for the copy must not be waited for, so it
    /// is outside of the order of tasks, and waits for no claim on blocks but of those that have started.
    pub fn add_part(&mut self, nexus: NexusId, id: TaskId, work: Work) {
        let seq = self.next_seq;
        self.next_seq += 1;
        let context = Context { nexus, task: id, cdb: Cdb([0; 16]), out_bytes: 0 };
        let mut task = Task::new(seq, context, Attribute::HeadOfQueue, work, 0, 0);
        task.part = true;
        self.tasks.insert(id, task);
        self.make_ready(id);
    }

    /// A task that has started waits for a copy, or leaves it to go on without it; the copy's name.
    pub fn wait_for_copy(&mut self, id: TaskId, background: bool) -> Option<u64> {
        let task = self.tasks.get_mut(&id)?;
        let request = self.next_request;
        self.next_request += 1;
        self.requests.insert(request, (id, true));
        task.work = Work::Copy;
        task.pending += 1;
        task.changing += 1;
        (task.copy, task.background) = (Some(request), background);
        Some(request)
    }

    /// A copy has ended; the task that waits for it, if it still does.
    pub fn copied(&mut self, copy: u64) -> Option<TaskId> {
        let (id, _) = self.requests.remove(&copy)?;
        let task = self.tasks.get_mut(&id)?;
        task.copy = None;
        task.pending = task.pending.saturating_sub(1);
        task.changing = task.changing.saturating_sub(1);
        if task.stage != Stage::Gone {
            return Some(id);
        }
        if task.pending == 0 {
            self.forget(id);
        }
        None
    }

    /// Copies in the background of these nexuses, which are waited for from now on like anything else
    /// that may still change the medium.
    pub fn stop_background(&mut self, whose: impl Fn(NexusId) -> bool) -> Vec<u64> {
        let background = self.tasks.values_mut().filter(|task| {
            task.background && task.stage == Stage::Gone && whose(task.context.nexus)
        });
        background
            .filter_map(|task| {
                task.background = false;
                task.copy
            })
            .collect()
    }

    /// Takes the output that a task collects; `false` if it collects none.
    pub fn collected(&mut self, id: TaskId, data: Vec<Bytes>) -> bool {
        let Some(task) = self.tasks.get_mut(&id) else { return false };
        if task.stage != Stage::Collecting {
            return false;
        }
        let bytes = data.iter().fold(0, |sum: u64, piece| sum.saturating_add(piece.len() as u64));
        if bytes == task.collect {
            task.data = data;
        } else {
            // The transport has broken its promise; nothing of it may reach the volume.
            task.failure = Some(Sense::new(key::HARDWARE_ERROR, code::INTERNAL_TARGET_FAILURE));
        }
        self.make_ready(id);
        true
    }

    fn make_ready(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        task.stage = Stage::Ready;
        let claim = match &task.work {
            Work::Medium(io) => io.claim(),
            Work::List { all: Some(sectors), .. } => Some((Range::new(0, *sectors), false)),
            Work::List { .. } | Work::Control(_) | Work::Reservations | Work::Copy => None,
        };
        self.ready.insert(task.seq, id);
        if let Some((range, exclusive)) = claim {
            self.claims.insert(task.seq, Claim { range, exclusive, started: false });
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

    /// The first task in order, from `seq` on, that is ready.
    fn next_ready(&self, seq: u64) -> Option<(u64, TaskId)> {
        self.ready.range(seq..).next().map(|(seq, id)| (*seq, *id))
    }

    /// Whether the tasks of its nexus let it start.
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

    fn may_start(&self, id: TaskId) -> bool {
        let Some(task) = self.tasks.get(&id) else { return false };
        if !self.is_in_turn(task) {
            return false;
        }
        let seq = task.seq;
        let internal = match &task.work {
            Work::Medium(io) => io.internal_bytes(),
            _ => 0,
        };
        if internal > 0 && self.internal > 0 && self.internal + internal > MAX_INTERNAL_BYTES {
            return false;
        }
        let Some(mine) = self.claims.get(&seq) else { return true };
        // What is ready and older goes first, or a stream of younger tasks could keep it waiting for
        // ever. A head of queue does not wait for what waits for it.
        let waits = |other: u64| {
            let older = self.ready.get(&other).and_then(|id| self.tasks.get(id));
            older.is_some_and(|older| self.is_in_turn(older))
        };
        let first = |other: u64, claim: &Claim| {
            let head = task.attribute == Attribute::HeadOfQueue;
            claim.started || other < seq && !head && waits(other)
        };
        let stops = |other: u64, claim: &Claim| {
            other != seq && first(other, claim) && claim.range.intersect(mine.range).is_some()
        };
        if mine.exclusive {
            !self.claims.iter().any(|(other, claim)| stops(*other, claim))
        } else {
            let mut exclusive = self.exclusive.iter();
            !exclusive.any(|other| self.claims.get(other).is_some_and(|claim| stops(*other, claim)))
        }
    }

    /// Takes the answer to a request; the task, if it was the last one that it waited for.
    pub fn replied(
        &mut self,
        request: u64,
        result: Result<Reply, BlockError>,
        block_sectors: u64,
    ) -> Option<TaskId> {
        let (id, changes) = self.requests.remove(&request)?;
        let task = self.tasks.get_mut(&id)?;
        task.pending = task.pending.saturating_sub(1);
        task.changing = task.changing.saturating_sub(u32::from(changes));
        if task.stage == Stage::Gone
            && let Ok(Reply::Watching(watch)) = result
        {
            self.strays.push(watch);
        }
        task.error = result.as_ref().err().copied();
        match result {
            Ok(reply) => {
                if task.stage != Stage::Gone
                    && let Work::Medium(io) = &mut task.work
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

    /// Ends a task but for its requests; without those nothing is left of it.
    fn end(&mut self, id: TaskId) -> Option<Ended> {
        let task = self.tasks.get_mut(&id)?;
        if task.stage == Stage::Gone {
            return None;
        }
        task.stage = Stage::Gone;
        task.data = Vec::new();
        let ended = Ended { wanted: task.wanted, part: task.part, error: task.error };
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
                self.parts.push_back((id, Err(copy::PartFailure::Ended)));
            }
        }
    }
}

/// What the initiator learns of a request that failed.
fn sense_of(error: BlockError, block_sectors: u64) -> Sense {
    match error {
        BlockError::Medium(range) => Sense::new(key::MEDIUM_ERROR, code::UNRECOVERED_READ_ERROR)
            .with_information(range.lba / block_sectors),
        // Hosts give up this path at once and look for another one; they do not retry for ever.
        BlockError::Fenced => Sense::new(key::NOT_READY, code::TARGET_PORT_UNAVAILABLE),
        BlockError::NoSpace => Sense::new(key::DATA_PROTECT, code::SPACE_ALLOCATION_FAILED),
        BlockError::Stopped
        | BlockError::ShuttingDown
        | BlockError::Changed
        | BlockError::Unsupported => Sense::new(key::HARDWARE_ERROR, code::INTERNAL_TARGET_FAILURE),
    }
}

/// Where a task's requests go.
pub(super) struct Requests<'a> {
    task: TaskId,
    sectors: u64,
    next: &'a mut u64,
    requests: &'a mut BTreeMap<u64, (TaskId, bool)>,
    outputs: &'a mut VecDeque<Output>,
    issued: u32,
    changing: u32,
}

impl Requests<'_> {
    /// Sectors of the volume.
    pub fn sectors(&self) -> u64 {
        self.sectors
    }

    pub fn push(&mut self, request: Request) {
        let id = *self.next;
        *self.next += 1;
        self.issued += 1;
        let changes = matches!(
            request,
            Request::Write { .. }
                | Request::Discard { .. }
                | Request::Zero { .. }
                | Request::WriteStaged { .. }
        );
        self.changing += u32::from(changes);
        self.requests.insert(id, (self.task, changes));
        self.outputs.push_back(Output::Request { id, request });
    }
}

impl Device {
    /// Restores what holds between events: nothing waits that could start, and nothing is kept from
    /// those who wait for it.
    pub(super) fn settle(&mut self) {
        loop {
            self.start_ready();
            let more = self.take_reservation_outputs() | self.answer_waiting();
            if !more {
                break;
            }
        }
        self.tell_parts();
        while let Some(watch) = self.tasks.strays.pop() {
            self.unwatch(watch);
        }
    }

    /// Gives up a watch; nobody waits for the answer.
    pub(super) fn unwatch(&mut self, watch: u64) {
        let id = self.tasks.next_request;
        self.tasks.next_request += 1;
        self.outputs.push_back(Output::Request { id, request: Request::Unwatch(watch) });
    }

    fn start_ready(&mut self) {
        loop {
            let ended = self.tasks.ended;
            let mut from = 0;
            while let Some((seq, id)) = self.tasks.next_ready(from) {
                from = seq + 1;
                if self.tasks.may_start(id) {
                    self.start(id);
                }
            }
            // The end of one may let another start, also one that was passed over.
            if self.tasks.ended == ended {
                break;
            }
        }
    }

    fn start(&mut self, id: TaskId) {
        let Some(task) = self.tasks.tasks.get_mut(&id) else { return };
        task.stage = Stage::Started;
        self.tasks.ready.remove(&task.seq);
        if let Some(claim) = self.tasks.claims.get_mut(&task.seq) {
            claim.started = true;
        }
        let context = task.context;
        let outcome = match &mut task.work {
            Work::Control(run) => {
                let run = *run;
                run(self, &context)
            }
            Work::List { run, .. } => {
                let run = *run;
                let list = joined(std::mem::take(&mut task.data));
                match task.failure {
                    Some(sense) => sense.into(),
                    None => run(self, &context, &list),
                }
            }
            Work::Medium(io) => {
                io.set_data(std::mem::take(&mut task.data));
                task.internal = io.internal_bytes();
                self.tasks.internal += task.internal;
                return self.advance(id);
            }
            Work::Reservations | Work::Copy => return,
        };
        match outcome {
            Outcome::Medium(io) => {
                if let Some(task) = self.tasks.tasks.get_mut(&id) {
                    task.work = Work::Medium(io);
                }
                self.advance(id);
            }
            Outcome::Reservations => {
                if let Some(task) = self.tasks.tasks.get_mut(&id) {
                    task.work = Work::Reservations;
                }
            }
            Outcome::Copy(asked) => self.begin_copy(id, *asked),
            Outcome::Good(_) | Outcome::Refused(_) | Outcome::Staged(_) => self.finish(id, outcome),
        }
    }

    /// Goes on with a task all of whose requests are answered.
    pub(super) fn advance(&mut self, id: TaskId) {
        let Some(task) = self.tasks.tasks.get_mut(&id) else { return };
        if task.stage == Stage::Gone {
            return self.tasks.forget(id);
        }
        if let Some(sense) = task.failure {
            return self.finish(id, sense.into());
        }
        if task.busy {
            return self.finish(id, Outcome::Refused(Refusal::Status(Status::Busy)));
        }
        let Work::Medium(io) = &mut task.work else { return };
        let mut requests = Requests {
            task: id,
            sectors: self.config.sectors,
            next: &mut self.tasks.next_request,
            requests: &mut self.tasks.requests,
            outputs: &mut self.outputs,
            issued: 0,
            changing: 0,
        };
        let step = io.advance(&mut requests);
        task.pending += requests.issued;
        task.changing += requests.changing;
        match step {
            Step::Wait => {}
            Step::Done(data) => self.finish(id, Outcome::Good(data)),
            Step::Failed(sense) => self.finish(id, sense.into()),
            Step::Staged(pieces) => self.finish(id, Outcome::Staged(pieces)),
            Step::Watching(watch, populate) => {
                let outcome = self.make_token(id, &populate, watch);
                self.finish(id, outcome);
            }
        }
    }

    /// Ends a task with a response.
    pub(super) fn finish(&mut self, id: TaskId, outcome: Outcome) {
        match self.tasks.end(id) {
            Some(Ended { part: true, error, .. }) => {
                self.tasks.parts.push_back((id, copy::part_result(outcome, error)));
            }
            Some(Ended { wanted, .. }) => self.respond(id, wanted, outcome),
            None => {}
        }
    }

    /// Ends a task without a response.
    pub(super) fn drop_task(&mut self, id: TaskId) {
        let copy = self.tasks.tasks.get(&id).and_then(|task| task.copy);
        if let Some(Ended { part: true, .. }) = self.tasks.end(id) {
            // A write of it that is under way may still be done.
            if self.tasks.lingers(id) {
                self.tasks.tasks.entry(id).and_modify(|task| task.owes = true);
            } else {
                self.tasks.parts.push_back((id, Err(copy::PartFailure::Ended)));
            }
        }
        if let Some(copy) = copy {
            self.stop_copy(copy);
        }
        self.reservations.handle_abort(id);
    }

    /// Ends a task because task management, or a PREEMPT AND ABORT, of `by` says so (SAM-5 §5.6).
    pub(super) fn abort(&mut self, id: TaskId, by: NexusId) {
        let Some(task) = self.tasks.tasks.get(&id) else { return };
        let (nexus, wanted, part) = (task.nexus(), task.wanted, task.part);
        self.drop_task(id);
        if part {
            return;
        }
        if nexus != by && self.mode.task_aborted {
            let response = Response {
                status: Status::TaskAborted,
                sense: Bytes::new(),
                data: DataIn::None,
                out_wanted: wanted,
            };
            self.outputs.push_back(Output::Response { task: id, response });
        } else {
            self.outputs.push_back(Output::Aborted { task: id });
        }
    }
}

/// One run of bytes; copied only if it came in several.
pub(super) fn joined(mut data: Vec<Bytes>) -> Bytes {
    match data.len() {
        0 => Bytes::new(),
        1 => data.remove(0),
        _ => {
            let bytes = data.iter().map(Bytes::len).sum();
            let mut whole = BytesMut::with_capacity(bytes);
            for piece in data {
                whole.extend_from_slice(&piece);
            }
            whole.freeze()
        }
    }
}
