//! The engine of a volume as a task, with a queue of inputs.
//!
//! The task runs in the thread of the host's session. It does the everyday work: batches, reads,
//! operations on objects and timers. It sends answers that need nobody else by itself. Everything
//! else is the actor's: events, and answers that other parts have to see.
//!
//! A lock protects the engine, so the actor can ask it and decide about it at any time. The one
//! that takes the lock first handles the inputs that wait, in their order. So nobody sees the
//! engine as it was before an input.
//!
//! The outputs keep their order. Once the task has something for the actor, it calls the actor and
//! sends nothing more, until the actor has taken all outputs.

use super::completions::Completions;
use super::meter::Meter;
use longhaul_core::block::{Time, VolumeId};
use longhaul_core::store::{
    Event, ObjectOperation, ObjectResult, Places, PutError, SHELL_SESSION, SessionId, StorageError,
    Volume,
};
use longhaul_core::wire::link::{Frame, Lane, ReadError, RequestId, ToHost, ToStore};
use longhaul_objects::Objects;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::Notify;

/// Most inputs in one turn of the task. Other tasks of the thread come between two turns.
const INPUTS_AT_ONCE: usize = 64;

/// Queues a frame for a session.
pub(super) type SendFrame = Arc<dyn Fn(u64, Lane, Frame<ToHost>) + Send + Sync>;

/// The other parts of the store that engines use.
#[derive(Clone)]
pub(super) struct Services {
    pub objects: Arc<dyn Objects>,
    pub send: SendFrame,
    pub meter: Meter,
    pub attend: Completions<Attend>,
}

/// Tells the actor that the engine of this number has outputs for it.
pub(super) struct Attend {
    pub volume: VolumeId,
    pub engine: u64,
}

/// An input of an engine that waits its turn.
pub(super) enum Input {
    /// A frame that has passed the stages.
    Frame(SentFrame),
    /// An operation on an object has ended.
    Object(ObjectDone),
}

/// A frame of a session.
pub(super) struct SentFrame {
    pub session: u64,
    pub lane: Lane,
    pub frame: Frame<ToStore>,
}

/// The end of an operation on an object.
pub(super) struct ObjectDone {
    id: u64,
    key: String,
    result: ObjectResult,
}

/// The outputs of an engine that the actor handles, in this order.
#[derive(Default)]
pub(super) struct Outputs {
    pub places: VecDeque<(RequestId, Result<Places, ReadError>)>,
    pub events: VecDeque<Event>,
    /// Messages come after the events, which say more about them.
    pub messages: VecDeque<(SessionId, Lane, Frame<ToHost>)>,
}

impl Outputs {
    fn is_empty(&self) -> bool {
        self.places.is_empty() && self.events.is_empty() && self.messages.is_empty()
    }

    /// Whether only the messages are left, and the task can send them.
    fn are_for_sessions_only(&self) -> bool {
        let mut messages = self.messages.iter();
        self.places.is_empty() && self.events.is_empty() && messages.all(is_for_session_only)
    }
}

/// Whether only the session has to see the message. The audit recorder or the tenant scope has to
/// see the others first, and the store itself has asked for those of its own session.
fn is_for_session_only((session, _, frame): &(SessionId, Lane, Frame<ToHost>)) -> bool {
    let listed = matches!(
        frame.message,
        ToHost::Data { .. }
            | ToHost::Committed { .. }
            | ToHost::Status { .. }
            | ToHost::Staged { .. }
            | ToHost::Changed { .. }
    );
    listed && *session != SHELL_SESSION
}

/// An engine, and what its owner notes about it.
pub(super) struct Driven {
    pub volume: Volume,
    /// A message has come for it since the last look.
    pub used: bool,
    /// Operations on objects without an outcome yet.
    pub under_way: usize,
    pub failures: Failures,
    outputs: Outputs,
    /// Whether it has room, as the actor knows.
    has_room: bool,
    /// The actor takes the outputs, now or soon.
    attended: bool,
    /// The actor wants to hear of each change.
    watched: bool,
    /// It has had an input since the actor took its outputs last.
    changed: bool,
    /// When the task wakes up.
    deadline: Option<Time>,
}

/// Failures of its operations.
#[derive(Default)]
pub(super) struct Failures {
    /// The last failure of an operation that has not succeeded since: the object, and the error.
    pub retrying: Option<(String, StorageError)>,
    /// When it could not open the volume.
    pub failed_at: Option<Instant>,
    /// How often in a row the open failed before.
    pub before: u32,
    /// The failed object has been restored since.
    pub repaired: bool,
}

impl Failures {
    /// Notes what an event says of opening and of operations that fail.
    fn note(&mut self, event: &Event) {
        match event {
            Event::Retry { key, error, .. } => {
                self.retrying = Some((key.clone(), error.clone()));
            }
            Event::Failed(_) => self.failed_at = Some(Instant::now()),
            Event::Opened { .. } => self.before = 0,
            _ => {}
        }
    }
}

/// Whether an operation ends with this result: it has an answer, or the engine does not repeat it.
/// The engine repeats no deletion: the next one also deletes the leftovers.
fn settles(result: &ObjectResult) -> bool {
    !matches!(
        result,
        ObjectResult::Put(Err(PutError::Failed(_)))
            | ObjectResult::Get(Err(longhaul_objects::GetError::Failed(_)))
            | ObjectResult::List(Err(_))
    )
}

impl Driven {
    fn handle(&mut self, now: Time, input: Input) {
        match input {
            Input::Frame(SentFrame { session, lane, frame }) => {
                self.used = true;
                self.volume.handle_message(now, SessionId(session), lane, frame);
            }
            Input::Object(ObjectDone { id, key, result }) => {
                self.under_way = self.under_way.saturating_sub(1);
                if matches!(result, ObjectResult::Put(Ok(()))) {
                    self.failures.retrying = None;
                }
                self.handle_object(now, id, &key, result);
            }
        }
    }

    fn handle_object(&mut self, now: Time, id: u64, key: &str, result: ObjectResult) {
        let settled = settles(&result);
        self.volume.handle_object(now, id, result);
        // Its events about failures come first.
        self.collect();
        if settled {
            self.failures.retrying.take_if(|(about, _)| about == key);
        }
    }

    /// Takes the outputs of the engine, apart from operations on objects.
    fn collect(&mut self) {
        let Driven { volume, outputs, failures, .. } = self;
        outputs.places.extend(std::iter::from_fn(|| volume.poll_places()));
        outputs.events.extend(std::iter::from_fn(|| volume.poll_event()).inspect(|event| {
            failures.note(event);
        }));
        outputs.messages.extend(std::iter::from_fn(|| volume.poll_message()));
    }

    /// Whether it has come to have room, or to have none, since the last call: then which.
    pub fn room_changed(&mut self) -> Option<bool> {
        let has_room = self.volume.wants_input();
        (has_room != std::mem::replace(&mut self.has_room, has_room)).then_some(has_room)
    }

    /// Whether nothing is under way and nothing waits for the actor.
    pub fn is_at_rest(&self) -> bool {
        let volume = &self.volume;
        self.outputs.is_empty() && volume.is_idle() && volume.poll_timeout().is_none()
    }
}

struct Queue {
    inputs: VecDeque<Input>,
    closed: bool,
}

/// See the module.
pub(super) struct EngineTask {
    /// Of a volume or snapshot.
    pub id: VolumeId,
    /// Distinguishes engines of the same volume.
    pub number: u64,
    queue: Mutex<Queue>,
    driven: Mutex<Driven>,
    wake: Notify,
    /// Of the thread that it runs in.
    home: Handle,
    services: Services,
}

/// When the task continues.
enum Next {
    /// Something waits.
    AtOnce,
    /// With the next input, and at that time.
    Wait(Option<Time>),
    /// Never: it is closed.
    Never,
}

/// A turn of an engine.
struct Turn {
    /// How many inputs it took, and a timer that had come.
    inputs: usize,
    /// Time that it spent reading objects.
    reading: Duration,
}

impl EngineTask {
    /// Of an engine that opens now, after `failures` failures in a row. The caller spawns
    /// [`EngineTask::run`] in the runtime `home`.
    pub fn new(
        volume: Volume,
        number: u64,
        failures: u32,
        home: Handle,
        services: Services,
    ) -> Arc<EngineTask> {
        let id = volume.id();
        let driven = Driven {
            volume,
            used: true,
            under_way: 0,
            failures: Failures { before: failures, ..Failures::default() },
            outputs: Outputs::default(),
            has_room: true,
            attended: false,
            watched: false,
            changed: false,
            deadline: None,
        };
        Arc::new(EngineTask {
            id,
            number,
            queue: Mutex::new(Queue { inputs: VecDeque::new(), closed: false }),
            driven: Mutex::new(driven),
            wake: Notify::new(),
            home,
            services,
        })
    }

    pub fn home(&self) -> &Handle {
        &self.home
    }

    /// Gives the engine an input, for its next turn; gives it back if the engine is closed.
    pub fn push(&self, input: Input) -> Option<Input> {
        let mut queue = self.queue();
        if queue.closed {
            return Some(input);
        }
        queue.inputs.push_back(input);
        drop(queue);
        self.wake.notify_one();
        None
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // Nothing that can panic happens with the lock.
        self.queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    #[expect(clippy::expect_used, reason = "stated below")]
    fn driven(&self) -> MutexGuard<'_, Driven> {
        // Invariant: no engine panics. If one does, nobody may use it again: the store ends.
        self.driven.lock().expect("the engine of a volume has panicked")
    }

    /// The engine, after all its inputs so far.
    pub fn lock(&self) -> MutexGuard<'_, Driven> {
        let mut driven = self.driven();
        if self.take_inputs(&mut driven, usize::MAX) > 0 {
            // For the outputs.
            self.wake.notify_one();
        }
        driven
    }

    fn take_inputs(&self, driven: &mut Driven, most: usize) -> usize {
        let inputs: VecDeque<Input> = {
            let mut queue = self.queue();
            let count = queue.inputs.len().min(most);
            if count == queue.inputs.len() {
                std::mem::take(&mut queue.inputs)
            } else {
                queue.inputs.drain(..count).collect()
            }
        };
        let count = inputs.len();
        driven.changed |= count > 0;
        for input in inputs {
            driven.handle(self.services.meter.now(), input);
        }
        count
    }

    /// Takes inputs and timers that have come, and carries out operations on objects, until all
    /// that is left are outputs for others.
    fn work(self: &Arc<Self>, driven: &mut Driven, most: usize) -> Turn {
        let mut turn = Turn { inputs: self.take_inputs(driven, most), reading: Duration::ZERO };
        let now = self.services.meter.now();
        if driven.volume.poll_timeout().is_some_and(|at| at <= now) {
            driven.volume.handle_timeout(now);
            driven.changed = true;
            turn.inputs += 1;
        }
        while let Some((number, operation)) = driven.volume.poll_object() {
            let begun = Instant::now();
            if let ObjectOperation::Get { key, range: Some(range), copies } = &operation
                && let Some(result) = self.services.objects.try_read(key, range, *copies)
            {
                let took = begun.elapsed();
                turn.reading += took;
                self.services.meter.counts().add_read(&result, took);
                driven.changed = true;
                driven.handle_object(now, number, key, ObjectResult::Get(result));
            } else {
                driven.under_way += 1;
                self.start(number, operation);
            }
        }
        driven.collect();
        turn
    }

    /// Carries out an operation in a task of its own.
    fn start(self: &Arc<Self>, id: u64, operation: ObjectOperation) {
        let bytes = match &operation {
            ObjectOperation::Put { data, .. } => data.iter().map(|part| part.len() as u64).sum(),
            _ => 0,
        };
        let (task, key) = (self.clone(), operation.key().to_owned());
        self.home.spawn(async move {
            let begun = Instant::now();
            let result = longhaul_objects::execute(&*task.services.objects, operation).await;
            task.services.meter.counts().add(&result, bytes, begun.elapsed());
            // A closed engine needs it no more.
            let _ = task.push(Input::Object(ObjectDone { id, key, result }));
        });
    }

    /// Runs until the engine is closed.
    pub async fn run(self: Arc<Self>) {
        loop {
            let deadline = match self.turn() {
                Next::Never => return,
                Next::AtOnce => {
                    tokio::task::yield_now().await;
                    continue;
                }
                Next::Wait(deadline) => deadline,
            };
            let wait = deadline.map(|at| at.since(self.services.meter.now()));
            let timeout = async {
                match wait {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.wake.notified() => {}
                () = timeout => {}
            }
        }
    }

    fn turn(self: &Arc<Self>) -> Next {
        let begun = Instant::now();
        let mut driven = self.driven();
        if self.queue().closed {
            return Next::Never;
        }
        let turn = self.work(&mut driven, INPUTS_AT_ONCE);
        self.deliver(&mut driven);
        driven.deadline = driven.volume.poll_timeout();
        let deadline = driven.deadline;
        drop(driven);
        if turn.inputs > 0 {
            let work = begun.elapsed().saturating_sub(turn.reading);
            self.services.meter.counts().work.record(work);
        }
        let more = !self.queue().inputs.is_empty();
        match more || deadline.is_some_and(|at| at <= self.services.meter.now()) {
            true => Next::AtOnce,
            false => Next::Wait(deadline),
        }
    }

    /// Sends the messages that only sessions need, or calls the actor.
    fn deliver(&self, driven: &mut Driven) {
        if driven.attended {
            return;
        }
        let room_changed = driven.has_room != driven.volume.wants_input();
        let watched = driven.watched && driven.changed;
        if watched || room_changed || !driven.outputs.are_for_sessions_only() {
            driven.attended = true;
            return self.services.attend.send(Attend { volume: self.id, engine: self.number });
        }
        self.send_messages(driven);
    }

    fn send_messages(&self, driven: &mut Driven) {
        if driven.outputs.messages.is_empty() {
            return;
        }
        let mut bytes = 0;
        for (session, lane, frame) in driven.outputs.messages.drain(..) {
            bytes += frame.payload.len() as u64;
            (self.services.send)(session.0, lane, frame);
        }
        self.services.meter.counts().sent_bytes += bytes;
    }

    /// The outputs for the actor, if there are any. Until [`EngineTask::attended`] the task sends
    /// none by itself.
    pub fn take_outputs(self: &Arc<Self>) -> Option<Outputs> {
        let mut driven = self.driven();
        if self.queue().closed {
            return None;
        }
        self.work(&mut driven, usize::MAX);
        driven.changed = false;
        driven.attended = true;
        (!driven.outputs.is_empty()).then(|| std::mem::take(&mut driven.outputs))
    }

    /// The actor has handled the outputs that it took. `watched` tells whether it wants to hear of
    /// each change. False if there are more outputs for it now.
    pub fn attended(&self, watched: bool) -> bool {
        let mut driven = self.driven();
        driven.watched = watched;
        if !driven.outputs.are_for_sessions_only() {
            return false;
        }
        // Else a stream of answers could keep the actor here.
        self.send_messages(&mut driven);
        driven.attended = false;
        // The task did not call the actor for changes that it saw meanwhile.
        let watched = watched && driven.changed;
        let room_changed = driven.has_room != driven.volume.wants_input();
        if watched || room_changed || driven.deadline != driven.volume.poll_timeout() {
            self.wake.notify_one();
        }
        true
    }

    /// Closes the engine, after `last` has changed it. Returns the outputs, and the frames that
    /// have come meanwhile. Its operations on objects may still have their effect.
    pub fn close(&self, last: impl FnOnce(&mut Volume, Time)) -> (Outputs, Vec<SentFrame>) {
        let mut driven = self.lock();
        last(&mut driven.volume, self.services.meter.now());
        driven.collect();
        let outputs = std::mem::take(&mut driven.outputs);
        let inputs = {
            let mut queue = self.queue();
            queue.closed = true;
            std::mem::take(&mut queue.inputs)
        };
        self.wake.notify_one();
        let frames = inputs.into_iter().filter_map(|input| match input {
            Input::Frame(frame) => Some(frame),
            Input::Object(_) => None,
        });
        (outputs, frames.collect())
    }

    /// Closes the engine if nothing is under way and `may_close` agrees. Then returns what
    /// `may_close` says.
    pub fn close_at_rest<T>(&self, may_close: impl FnOnce(&mut Driven) -> Option<T>) -> Option<T> {
        let mut driven = self.lock();
        let closing = may_close(&mut driven)?;
        let mut queue = self.queue();
        if !driven.is_at_rest() || !queue.inputs.is_empty() {
            return None;
        }
        queue.closed = true;
        drop(queue);
        self.wake.notify_one();
        Some(closing)
    }
}

#[cfg(test)]
mod tests;
