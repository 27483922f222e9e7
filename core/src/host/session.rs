//! The conversation of a volume with the store: its state, the requests in it, and its end.
//!
//! Promises: before the store has let the epoch go on, only the request to resume goes out, with
//! reads of clients behind it. A fenced epoch stays fenced. A barrier gets one answer, after
//! everything before it is on stable storage here. The epoch ends only by request, and the request
//! goes out again if the store did not answer. It must not know the content of answers, nor the
//! journal.
//!
//! # Call order
//!
//! [`StoreSession::link_up`], or [`StoreSession::resume`] once [`StoreSession::is_due`]; then
//! [`StoreSession::attached`] with the answer; then [`StoreSession::take_unsent`] for the requests
//! to ask again. If the store does not go on, [`StoreSession::hold`] takes the place of these.

use super::barrier::Barriers;
use super::context::Context;
use super::copy::Staging;
use super::io::Event;
use super::outputs::Outputs;
use super::requests::{ParkedAnswer, Purpose, StoreRequest, StoreRequests};
use crate::block::{BlockError, Epoch, MAX_VOLUME_SECTORS, Range, Request, Seq, Time};
use crate::wire::link::{AttachError, Attached, Lane, RequestId, ToStore};
use std::time::Duration;

/// First and longest pause before the next request to the store.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LAST: Duration = Duration::from_secs(5);

/// The state of the connection to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkState {
    Down,
    /// Connected. Resume at this time.
    Held(Time),
    /// The Resume message is under way.
    Resuming(RequestId),
    Up,
}

/// The progress of the end of the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Detach {
    No,
    Sent(RequestId),
    Confirmed,
}

/// The meaning of the store's answer to a resume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resumption {
    /// It answers another request.
    NotAsked,
    /// The session pauses, and asks again later.
    Held,
    /// The epoch is over.
    Fenced,
    /// The epoch goes on; the store has writes up to this number.
    Resumed(Seq),
}

/// See the module.
#[derive(Debug)]
pub(super) struct StoreSession {
    link: LinkState,
    retry: Duration,
    requests: StoreRequests,
    barriers: Barriers,
    fenced: Option<Epoch>,
    /// The volume is about to end.
    closing: bool,
    detach: Detach,
    /// The store has no space for more data.
    full: bool,
    /// Never less than the size that clients know.
    sectors: u64,
}

impl StoreSession {
    /// The session of an epoch that has just begun.
    pub(super) fn new(sectors: u64) -> StoreSession {
        StoreSession {
            link: LinkState::Up,
            retry: RETRY_FIRST,
            requests: StoreRequests::default(),
            barriers: Barriers::default(),
            fenced: None,
            closing: false,
            detach: Detach::No,
            full: false,
            sectors,
        }
    }

    // --- inputs: the connection ---

    /// A connection exists again.
    pub(super) fn link_up(&mut self) {
        self.retry = RETRY_FIRST;
    }

    /// The connection has gone.
    pub(super) fn link_down(&mut self) {
        self.link = LinkState::Down;
        self.ask_detach_again();
        self.barriers.link_lost();
        self.requests.link_lost();
    }

    /// Asks the store to let the epoch go on. False if the epoch is fenced.
    pub(super) fn resume(&mut self, context: &Context, out: &mut Outputs) -> bool {
        if self.fenced.is_some() {
            return false;
        }
        let request = self.requests.next_number();
        self.link = LinkState::Resuming(request);
        let Context { volume, epoch, host, .. } = *context;
        out.send(Lane::Control, ToStore::Resume { request, volume, epoch, host });
        true
    }

    /// The store does not let the epoch go on for now. The session asks again after a pause that
    /// grows.
    pub(super) fn hold(&mut self, now: Time) {
        // If the volume has moved to another store, this one does not answer.
        self.ask_detach_again();
        self.link = LinkState::Held(now.after(self.retry));
        self.retry = (self.retry * 2).min(RETRY_LAST);
    }

    fn ask_detach_again(&mut self) {
        if let Detach::Sent(_) = self.detach {
            self.detach = Detach::No;
        }
    }

    /// Takes the store's answer to a resume.
    pub(super) fn attached(
        &mut self,
        context: &Context,
        request: RequestId,
        result: Result<Attached, AttachError>,
        out: &mut Outputs,
    ) -> Resumption {
        if self.link != LinkState::Resuming(request) {
            return Resumption::NotAsked;
        }
        let attached = match result {
            Ok(attached) => attached,
            Err(AttachError::Fenced { epoch, .. }) => {
                return if self.fence(epoch, out) {
                    Resumption::Fenced
                } else {
                    Resumption::NotAsked
                };
            }
            // A deleted snapshot does not come back, so its clients need not wait.
            Err(error @ AttachError::NotFound) if context.epoch == 0 => {
                out.event(Event::Refused(error));
                self.fenced = Some(0);
                out.drop_messages();
                return Resumption::Fenced;
            }
            Err(error) => {
                out.event(Event::Refused(error));
                self.hold(context.now);
                return Resumption::Held;
            }
        };
        if attached.epoch != context.epoch || attached.volume != context.volume {
            self.hold(context.now);
            return Resumption::Held;
        }
        self.link = LinkState::Up;
        self.told_room(true, out);
        self.resized(attached.sectors, out);
        Resumption::Resumed(attached.committed)
    }

    /// Another epoch has begun. False if that was known already.
    pub(super) fn fence(&mut self, epoch: Epoch, out: &mut Outputs) -> bool {
        if self.fenced.is_some() {
            return false;
        }
        self.fenced = Some(epoch);
        out.event(Event::Fenced { epoch });
        out.drop_messages();
        true
    }

    /// The store has committed something. So the next request to resume needs no pause.
    pub(super) fn committed(&mut self) {
        self.retry = RETRY_FIRST;
    }

    // --- inputs: messages of the store ---

    /// Whether the store has space for more data.
    pub(super) fn told_room(&mut self, room: bool, out: &mut Outputs) {
        if self.full == room {
            self.full = !room;
            out.event(Event::Room { room });
        }
    }

    /// Takes the size of the volume. An attached volume only grows. So a smaller size is an old
    /// message.
    pub(super) fn resized(&mut self, sectors: u64, out: &mut Outputs) {
        if sectors > self.sectors && sectors <= MAX_VOLUME_SECTORS && self.fenced.is_none() {
            self.sectors = sectors;
            out.event(Event::Resized { sectors });
        }
    }

    /// The store asks for everything up to `last` on behalf of a client that takes a snapshot.
    pub(super) fn barrier(&mut self, barrier: u64, last: Seq) {
        self.barriers.ask(barrier, last);
    }

    /// Answers the barriers of which everything is on stable storage here.
    pub(super) fn tell_barriers(
        &mut self,
        context: &Context,
        (stable, committed): (Seq, Seq),
        out: &mut Outputs,
    ) {
        let Context { volume, epoch, .. } = *context;
        if self.link == LinkState::Up {
            self.barriers.tell(stable, |barrier, seq| {
                out.send(Lane::Control, ToStore::Barrier { volume, epoch, barrier, seq });
            });
        }
        self.barriers.forget(committed);
    }

    // --- inputs: the end ---

    /// The volume is about to end: it takes no more requests.
    pub(super) fn close(&mut self) {
        self.closing = true;
    }

    /// Ends the epoch, unless that is under way. Everything is committed.
    pub(super) fn detach(&mut self, context: &Context, out: &mut Outputs) {
        if self.detach != Detach::No || self.link != LinkState::Up {
            return;
        }
        let request = self.requests.next_number();
        self.detach = Detach::Sent(request);
        let Context { volume, epoch, .. } = *context;
        out.send(Lane::Control, ToStore::Detach { request, volume, epoch });
    }

    /// The store has ended the epoch.
    pub(super) fn detached(&mut self, request: RequestId, out: &mut Outputs) {
        if self.detach == Detach::Sent(request) {
            self.detach = Detach::Confirmed;
            out.event(Event::Detached);
        }
    }

    // --- inputs: requests ---

    /// A number that no other request of this volume has.
    pub(super) fn next_number(&mut self) -> RequestId {
        self.requests.next_number()
    }

    /// Asks the store, at once or when the epoch goes on.
    pub(super) fn ask(
        &mut self,
        context: &Context,
        committed: Seq,
        (number, request): (RequestId, StoreRequest),
        out: &mut Outputs,
    ) {
        let sent = match self.link {
            LinkState::Up => true,
            // A client waits for a read: send it behind the Resume message that is under way.
            LinkState::Resuming(_) => matches!(request.purpose, Purpose::Read { .. }),
            LinkState::Down | LinkState::Held(_) => false,
        };
        if sent {
            let (lane, message) = self.message(context, committed, number, &request);
            out.send(lane, message);
        }
        self.requests.insert(number, request, sent);
    }

    fn message(
        &self,
        context: &Context,
        committed: Seq,
        request: RequestId,
        StoreRequest { range, purpose, .. }: &StoreRequest,
    ) -> (Lane, ToStore) {
        let (Context { volume, epoch, .. }, range) = (context, *range);
        let (volume, epoch) = (*volume, *epoch);
        let read = match self.link {
            LinkState::Up => ToStore::Read { request, volume, epoch, range },
            _ => ToStore::EarlyRead { request, volume, epoch, committed, range },
        };
        match *purpose {
            Purpose::Read { .. } => (Lane::Read, read),
            Purpose::Prefetch | Purpose::Warm(_) | Purpose::Rewrite(_) => (Lane::ReadAhead, read),
            Purpose::FindContent(_) => {
                (Lane::ReadAhead, ToStore::Status { request, volume, epoch, range })
            }
            Purpose::Status { .. } => {
                (Lane::Read, ToStore::Status { request, volume, epoch, range })
            }
            Purpose::Stage(staging) => {
                let Staging { into, lba, object, .. } = staging;
                let stage = ToStore::Stage { request, volume, epoch, range, into, lba, object };
                (Lane::ReadAhead, stage)
            }
            Purpose::Changes(since) => {
                (Lane::Control, ToStore::Changed { request, volume, epoch, since })
            }
        }
    }

    /// Takes the requests that are not under way on this connection. These are all requests once
    /// the epoch goes on, and only reads of clients before that.
    pub(super) fn take_unsent(&mut self) -> Vec<StoreRequest> {
        self.requests.take_unsent(self.link == LinkState::Up)
    }

    /// Takes the request that an answer is for.
    pub(super) fn answered(&mut self, number: RequestId) -> Option<StoreRequest> {
        self.requests.take(number)
    }

    /// The store does not know the epoch. The request goes out again when the epoch goes on.
    pub(super) fn put_back(&mut self, request: StoreRequest) {
        let number = self.requests.next_number();
        self.requests.insert(number, request, false);
    }

    /// Keeps an answer until the version table can check it.
    pub(super) fn park(&mut self, number: RequestId, request: StoreRequest, answer: ParkedAnswer) {
        self.requests.park(number, request, answer);
    }

    /// Takes the answers that waited for the version table.
    pub(super) fn take_parked(&mut self) -> Vec<(RequestId, StoreRequest, ParkedAnswer)> {
        self.requests.take_parked()
    }

    /// A client writes `range`: answers about it may not have that.
    pub(super) fn spoil(&mut self, range: Range) {
        self.requests.spoil(range);
    }

    /// Gives up on all requests; returns those of clients.
    pub(super) fn give_up(&mut self) -> Vec<u64> {
        self.requests.give_up()
    }

    // --- outputs ---

    /// Whether the epoch goes on: the session may send everything.
    pub(super) fn is_up(&self) -> bool {
        self.link == LinkState::Up
    }

    /// Whether there is no connection.
    pub(super) fn is_down(&self) -> bool {
        self.link == LinkState::Down
    }

    /// Whether it is time to resume.
    pub(super) fn is_due(&self, now: Time) -> bool {
        self.deadline().is_some_and(|at| at <= now)
    }

    /// The time of the next resume.
    pub(super) fn deadline(&self) -> Option<Time> {
        match self.link {
            LinkState::Held(at) => Some(at),
            _ => None,
        }
    }

    pub(super) fn fenced(&self) -> Option<Epoch> {
        self.fenced
    }

    pub(super) fn is_fenced(&self) -> bool {
        self.fenced.is_some()
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing
    }

    pub(super) fn is_detached(&self) -> bool {
        self.detach == Detach::Confirmed
    }

    pub(super) fn is_full(&self) -> bool {
        self.full
    }

    pub(super) fn sectors(&self) -> u64 {
        self.sectors
    }

    /// The last number that the store waits for.
    pub(super) fn awaited(&self) -> Option<Seq> {
        self.barriers.awaited()
    }

    /// Whether no client waits for an answer of the store.
    pub(super) fn is_idle(&self) -> bool {
        self.requests.are_own()
    }

    /// Requests that a client, or the cache, waits for.
    pub(super) fn waiting(&self) -> u64 {
        self.requests.waiting()
    }

    /// Why the volume refuses a request for want of space. While the store has no space, the volume
    /// refuses new data, as a thin provisioned disk does. It still sends the writes that it
    /// acknowledged before.
    pub(super) fn want_of_space(&self, request: &Request) -> Option<BlockError> {
        let takes_some = match request {
            Request::Write { .. } | Request::WriteStaged { .. } => true,
            Request::Zero { allocate, .. } => *allocate,
            Request::Read(_)
            | Request::Flush
            | Request::Discard { .. }
            | Request::Prefetch(_)
            | Request::Status(_)
            | Request::Watch(_)
            | Request::Unwatch(_)
            | Request::Stage { .. } => false,
        };
        (self.full && takes_some).then_some(BlockError::NoSpace)
    }
}
