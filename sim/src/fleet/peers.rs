//! Questions between stores. Questions and answers may be late, and may get lost.

use super::place::{MS, SECOND};
use super::requests::{Asker, Request};
use super::store::Stage;
use super::{Event, World};
use crate::note;
use crate::rng::Rng;
use longhaul_core::block::{Time, VolumeId};
use longhaul_core::store::fleet::EffectResult;
use longhaul_core::wire::link::{
    Frame, StoreId, StoreOperation, StoreReply, StoreReport, ToHost, ToStore, VolumeError,
};
use std::collections::{BTreeMap, BTreeSet};

/// The time that a store waits for the answer of another store.
const ANSWER_LIMIT: u64 = 3 * SECOND;

/// A question to another store.
pub(super) enum Question {
    Store(StoreOperation),
    /// A request for a volume that another store has.
    Forward(VolumeId, ToStore),
}

pub(super) enum Answer {
    Store(Result<StoreReply, VolumeError>),
    Frame(ToHost),
}

/// The recipient of the answer.
enum Waiting {
    Task(u64),
    /// A forwarded request, and whether its store only remembered the holder of the lease.
    Request(Box<Request>, bool),
    Nobody,
}

pub(super) struct Call {
    from: usize,
    incarnation: u64,
    pub to: usize,
    question: Option<Question>,
    waiting: Waiting,
    answer: Option<Answer>,
}

/// The questions in progress between stores, and the faults of their links.
pub(super) struct Peering {
    pub calls: BTreeMap<u64, Call>,
    /// The broken links, each with the lower number first.
    pub cut: BTreeSet<(usize, usize)>,
    /// Lost messages per million.
    pub loss: u64,
    rng: Rng,
}

impl Peering {
    pub fn new(mut rng: Rng) -> Peering {
        let loss = if rng.percent(50) { 0 } else { rng.below(100_000) };
        Peering { calls: BTreeMap::new(), cut: BTreeSet::new(), loss, rng }
    }

    pub fn is_cut(&self, a: usize, b: usize) -> bool {
        self.cut.contains(&(a.min(b), a.max(b)))
    }
}

impl World {
    pub(super) fn store_of(&self, id: StoreId) -> Option<usize> {
        self.stores.iter().position(|store| store.id == id)
    }

    /// Asks another store, for a procedure or without a recipient of the answer.
    pub(super) fn call_store(
        &mut self,
        from: usize,
        to: StoreId,
        operation: StoreOperation,
        task: Option<u64>,
    ) {
        let Some(to) = self.store_of(to) else { return };
        let waiting = task.map_or(Waiting::Nobody, Waiting::Task);
        self.call(from, to, Question::Store(operation), waiting);
    }

    /// Forwards a request to the store that has the volume.
    pub(super) fn forward(&mut self, from: usize, to: StoreId, request: Request, cached: bool) {
        let Some(to) = self.store_of(to) else { return };
        let (volume, message) = (request.volume, request.frame.message.clone());
        let question = Question::Forward(volume, message);
        self.call(from, to, question, Waiting::Request(Box::new(request), cached));
    }

    fn call(&mut self, from: usize, to: usize, question: Question, waiting: Waiting) {
        let number = self.number();
        let incarnation = self.stores[from].incarnation;
        let call = Call { from, incarnation, to, question: Some(question), waiting, answer: None };
        self.peering.calls.insert(number, call);
        let silent = self.stores[from].silent.get(&to).is_some_and(|until| *until > self.now);
        if silent {
            return self.after(0, Event::CallTimeout(number));
        }
        let Peering { rng, loss, .. } = &mut self.peering;
        let (delay, lost) = (rng.spread(MS / 4, 200 * MS), rng.ppm(*loss));
        let gone = matches!(self.stores[to].stage, Stage::Down | Stage::Starting);
        if self.peering.is_cut(from, to) || lost {
            self.after(ANSWER_LIMIT, Event::CallTimeout(number));
        } else if gone && self.peering.rng.percent(50) {
            // The machine of a store without a running process rejects the connection.
            self.after(delay, Event::CallTimeout(number));
        } else {
            self.after(delay, Event::CallArrives(number));
            self.after(ANSWER_LIMIT, Event::CallTimeout(number));
        }
    }

    pub(super) fn call_arrives(&mut self, number: u64) {
        let Some(call) = self.peering.calls.get_mut(&number) else { return };
        let (from, to, question) = (call.from, call.to, call.question.take());
        if !self.stores[to].is_up() || self.peering.is_cut(from, to) {
            return;
        }
        let Some(question) = question else { return };
        match question {
            Question::Store(StoreOperation::Refresh) => {
                self.stores[to].silent.clear();
                self.look_around(to);
                self.answer_call(number, Answer::Store(Ok(StoreReply::Done)));
            }
            Question::Store(StoreOperation::Report) => {
                let report = self.report(to);
                self.answer_call(number, Answer::Store(Ok(StoreReply::Report(report))));
            }
            Question::Store(operation) => {
                if let Some(result) = self.release(to, number, &operation) {
                    self.answer_call(number, Answer::Store(result));
                }
            }
            Question::Forward(volume, message) => {
                let frame = Frame::from(message);
                let asker = Asker::Call(number);
                self.take(to, Request { asker, volume, frame, from_store: true });
            }
        }
    }

    fn report(&self, store: usize) -> StoreReport {
        StoreReport {
            id: self.stores[store].id,
            addresses: self.stores[store].holder().addresses,
            software: String::new(),
            evacuating: self.stores[store].draining,
            hosts: 0,
            attached: 0,
            bytes_per_second: 0,
            volumes: Vec::new(),
        }
    }

    /// Sends the answer to a question back to its store.
    pub(super) fn answer_call(&mut self, number: u64, answer: Answer) {
        let Some(call) = self.peering.calls.get_mut(&number) else { return };
        let (from, to) = (call.from, call.to);
        call.answer = Some(answer);
        let Peering { rng, loss, .. } = &mut self.peering;
        let (delay, lost) = (rng.spread(MS / 4, 200 * MS), rng.ppm(*loss));
        if !lost && !self.peering.is_cut(from, to) {
            self.after(delay, Event::CallAnswered(number));
        }
    }

    pub(super) fn call_answered(&mut self, number: u64) {
        let Some(call) = self.peering.calls.remove(&number) else { return };
        if self.stores[call.from].incarnation != call.incarnation {
            return;
        }
        let from = call.from;
        match (call.waiting, call.answer) {
            (Waiting::Task(task), Some(Answer::Store(result))) => {
                note!(self, "task {task} is answered {result:?}");
                self.result(task, EffectResult::Peer(Some(result)));
            }
            (Waiting::Request(request, _), Some(Answer::Frame(message))) => {
                self.coverage.forwarded += 1;
                self.answer(from, &request.asker, message);
            }
            _ => {}
        }
    }

    pub(super) fn call_timeout(&mut self, number: u64) {
        let Some(call) = self.peering.calls.remove(&number) else { return };
        if self.stores[call.from].incarnation != call.incarnation {
            return;
        }
        let (from, to) = (call.from, call.to);
        self.coverage.calls_lost += 1;
        let (now, until) = (self.now, Time(self.now.0 + 3 * SECOND));
        self.stores[from].silent.retain(|_, until| *until > now);
        self.stores[from].silent.entry(to).or_insert(until);
        if let Waiting::Request(request, _) = &call.waiting
            && let Asker::Operation(number, _) = request.asker
            && let Some(operation) = self.operator.operations.get_mut(&number)
        {
            operation.left = true;
        }
        match call.waiting {
            Waiting::Task(task) => {
                note!(self, "task {task} is not answered");
                self.result(task, EffectResult::Peer(None));
            }
            Waiting::Request(request, true) => {
                if let Some(claim) = self.stores[from].claims.get_mut(&request.volume) {
                    claim.holder = None;
                }
                self.take(from, *request);
            }
            Waiting::Request(request, false) => {
                self.refuse(from, *request, VolumeError::Store("its store is silent".into()));
            }
            Waiting::Nobody => {}
        }
    }

    /// Tells the other stores to look at the location.
    pub(super) fn tell_peers(&mut self, from: usize) {
        for to in 0..self.stores.len() {
            if to != from && !self.stores[to].left {
                let id = self.stores[to].id;
                self.call_store(from, id, StoreOperation::Refresh, None);
            }
        }
    }
}
