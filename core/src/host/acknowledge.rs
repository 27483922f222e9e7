//! Requests that wait: writes for room in the journal, and all others until a write is safe enough
//! for them.
//!
//! Promises: writes enter in the order in which they came. A write counts as acknowledged only
//! after it has reached the place that mode, durability and FUA demand. That place is the journal's
//! files, stable storage, the store, or every place where the store keeps its objects. It must not
//! know the journal, the link or the content of writes: [`Progress`] says how far they have got.
//!
//! # Call order
//!
//! Call [`Acknowledger::acknowledge`] or [`Acknowledger::wait_until_durable`] once for a request,
//! and [`Acknowledger::wake`] whenever there is progress.

use super::config::{Config, Durability, Mode};
use super::outputs::Outputs;
use super::writes::PendingWrite;
use crate::block::{BlockError, Reply, Seq};
use crate::wire::link::ReplicaProgress;
use std::collections::VecDeque;

/// How far the writes have got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Progress {
    /// The last number given to a write.
    pub(super) last: Seq,
    /// The last number in the journal's files.
    pub(super) written: Seq,
    /// The last number on stable storage.
    pub(super) stable: Seq,
    /// The last number that the store has committed.
    pub(super) committed: Seq,
    /// Writes live in memory until the store has committed them.
    pub(super) memory_only: bool,
}

/// The state of the journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum JournalHealth {
    #[default]
    Good,
    /// It has failed, and the volume goes on without it.
    Failed,
    /// It has failed, and the volume has stopped.
    Stopped,
}

/// Requests with the number that each of them waits for, in order.
type Waiters = VecDeque<(u64, Seq)>;

/// See the module.
#[derive(Debug)]
pub(super) struct Acknowledger {
    /// Writes that wait for room.
    waiting: VecDeque<PendingWrite>,
    /// Requests that wait until a number is in the journal's files, ...
    written: Waiters,
    /// ... on stable storage, ...
    stable: Waiters,
    /// ... at the store, ...
    committed: Waiters,
    /// ... at every place of the store's objects.
    replicated: Waiters,
    replica: ReplicaProgress,
    journal: JournalHealth,
}

impl Acknowledger {
    pub(super) fn new() -> Acknowledger {
        Acknowledger {
            waiting: VecDeque::new(),
            written: Waiters::new(),
            stable: Waiters::new(),
            committed: Waiters::new(),
            replicated: Waiters::new(),
            replica: ReplicaProgress::None,
            journal: JournalHealth::default(),
        }
    }

    // --- inputs: requests ---

    /// All of a write is in the journal.
    pub(super) fn acknowledge(
        &mut self,
        config: &Config,
        progress: Progress,
        write: &PendingWrite,
        out: &mut Outputs,
    ) {
        let (id, fua, seq) = (write.id(), write.fua(), progress.last);
        let far = fua && config.durability == Durability::Replica;
        if config.mode == Mode::WriteThrough && !far {
            self.committed.push_back((id, seq));
        } else if fua {
            self.wait_until_durable(config, progress, id, out);
        } else if progress.memory_only {
            out.reply(id, Ok(Reply::Done));
        } else {
            self.written.push_back((id, seq));
        }
    }

    /// Replies once all writes so far are durable.
    pub(super) fn wait_until_durable(
        &mut self,
        config: &Config,
        progress: Progress,
        id: u64,
        out: &mut Outputs,
    ) {
        let seq = progress.last;
        if config.durability == Durability::Replica {
            if seq <= self.replicated_seq(progress.committed) {
                out.reply(id, Ok(Reply::Done));
            } else {
                self.replicated.push_back((id, seq));
            }
            return;
        }
        let at_store = config.durability == Durability::Store || progress.memory_only;
        let reached = if at_store { progress.committed } else { progress.stable };
        // Write-through acknowledges only committed writes.
        if seq <= reached || config.mode == Mode::WriteThrough {
            out.reply(id, Ok(Reply::Done));
        } else if at_store {
            self.committed.push_back((id, seq));
        } else {
            self.stable.push_back((id, seq));
        }
    }

    /// Queues a write that has no room, or that comes after others without room.
    pub(super) fn queue(&mut self, write: PendingWrite) {
        self.waiting.push_back(write);
    }

    /// Takes the oldest waiting write, to append it or to put it back.
    pub(super) fn take_waiting(&mut self) -> Option<PendingWrite> {
        self.waiting.pop_front()
    }

    /// Puts back a write whose rest still has no room.
    pub(super) fn put_back(&mut self, write: PendingWrite) {
        self.waiting.push_front(write);
    }

    // --- inputs: progress ---

    /// Replies to the requests whose number has got where it has to be.
    pub(super) fn wake(&mut self, progress: Progress, out: &mut Outputs) {
        let replicated = self.replicated_seq(progress.committed);
        for (waiters, reached) in [
            (&mut self.written, progress.written),
            (&mut self.stable, progress.stable),
            (&mut self.committed, progress.committed),
            (&mut self.replicated, replicated),
        ] {
            while let Some((id, _)) = waiters.pop_front_if(|(_, seq)| *seq <= reached) {
                out.reply(id, Ok(Reply::Done));
            }
        }
    }

    /// Takes the state of the store's replica.
    pub(super) fn set_replica(&mut self, replica: ReplicaProgress) {
        self.replica = replica;
    }

    /// The journal has failed; the volume goes on without it or stops.
    pub(super) fn journal_failed(&mut self, continues: bool, out: &mut Outputs) {
        if !continues {
            self.journal = JournalHealth::Stopped;
            return;
        }
        if self.journal == JournalHealth::Good {
            self.journal = JournalHealth::Failed;
        }
        // Local stable storage will not come. From now on they wait for the store.
        self.committed.append(&mut self.stable);
        for (id, _) in std::mem::take(&mut self.written) {
            out.reply(id, Ok(Reply::Done));
        }
    }

    /// Gives up on everything. Returns the requests that need an answer.
    pub(super) fn give_up(&mut self) -> Vec<u64> {
        let mut ids = Vec::new();
        for waiters in
            [&mut self.written, &mut self.stable, &mut self.committed, &mut self.replicated]
        {
            ids.extend(waiters.drain(..).map(|(id, _)| id));
        }
        ids.extend(self.waiting.drain(..).map(|write| write.id()));
        ids
    }

    // --- outputs ---

    /// The last number that somebody waits to see committed.
    pub(super) fn awaited(&self) -> Option<Seq> {
        let last = |waiters: &Waiters| waiters.back().map(|(_, seq)| *seq);
        last(&self.committed).max(last(&self.replicated))
    }

    /// The last number that somebody waits to see on local stable storage.
    pub(super) fn awaited_here(&self) -> Option<Seq> {
        self.stable.back().map(|(_, seq)| *seq)
    }

    /// Whether writes wait for room that only commits can make.
    pub(super) fn has_waiting_writes(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(super) fn waiting_writes(&self) -> u64 {
        self.waiting.len() as u64
    }

    /// Flushes and writes that wait for durability.
    pub(super) fn waiting_flushes(&self) -> u64 {
        (self.stable.len() + self.committed.len() + self.replicated.len()) as u64
    }

    pub(super) fn replica(&self) -> ReplicaProgress {
        self.replica
    }

    /// Whether the journal has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.journal != JournalHealth::Good
    }

    /// Whether nobody waits.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.waiting_flushes() == 0
    }

    /// Why the volume refuses requests, if it does.
    pub(super) fn refusal(&self) -> Option<BlockError> {
        (self.journal == JournalHealth::Stopped).then_some(BlockError::Stopped)
    }

    /// The last number that is at every place where the store keeps its objects.
    fn replicated_seq(&self, committed: Seq) -> Seq {
        match self.replica {
            ReplicaProgress::None => committed,
            ReplicaProgress::Behind => 0,
            ReplicaProgress::InStep(seq) => seq.min(committed),
        }
    }
}
