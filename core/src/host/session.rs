//! The conversation of a volume with the store: whether it is open, what is asked in it, and how it
//! ends.
//!
//! Promises: before the store has let the epoch go on, only the request to resume goes out, and
//! reads of clients behind it. An epoch that was fenced stays fenced. A barrier is answered once,
//! when everything before it is on stable storage here. The epoch is ended only by request, and
//! asked for again if the store did not answer. It must not know the content of answers, nor the
//! journal.
//!
//! # Call order
//!
//! [`StoreSession::link_up`], or [`StoreSession::resume`] once [`StoreSession::is_due`]; then
//! [`StoreSession::attached`] with the answer; then [`StoreSession::take_unsent`] for the requests
//! to ask again. [`StoreSession::hold`] instead if the store does not go on.

use super::barrier::Barriers;
use super::context::Context;
use super::copy::Staging;
use super::io::Event;
use super::outputs::Outputs;
use super::requests::{ParkedAnswer, Purpose, StoreRequest, StoreRequests};
use crate::block::{BlockError, Epoch, MAX_VOLUME_SECTORS, Range, Request, Seq, Time};
use crate::wire::link::{AttachError, Attached, Lane, RequestId, ToStore};
use std::time::Duration;

/// First and longest pause before the store is asked again.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LAST: Duration = Duration::from_secs(5);

/// How far the connection to the store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkState {
    Down,
    /// Connected, to be resumed at this time.
    Held(Time),
    /// Resume was sent.
    Resuming(RequestId),
    Up,
}

/// How far the end of the epoch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Detach {
    No,
    Sent(RequestId),
    Confirmed,
}

/// The meaning of the store's answer to a resume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resumption {
    /// It answers something else.
    NotAsked,
    /// The session is held; it is asked again later.
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
    /// The volume is being let go.
    closing: bool,
    detach: Detach,
    /// The store has no space for more data.
    full: bool,
    /// Never less than a client has been told.
    sectors: u64,
}

impl StoreSession {
    /// Of an epoch that has just begun.
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

    /// There is a connection again.
    pub(super) fn link_up(&mut self) {
        self.retry = RETRY_FIRST;
    }

    /// The connection is lost.
    pub(super) fn link_down(&mut self) {
        self.link = LinkState::Down;
        self.ask_detach_again();
        self.barriers.link_lost();
        self.requests.link_lost();
    }

    /// Asks the store to let the epoch go on. False if it was fenced.
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

    /// The store does not go on with the epoch for now: it is asked after a pause that grows.
    pub(super) fn hold(&mut self, now: Time) {
        // A store that the volume has left does not answer it.
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
            // A snapshot that is deleted does not come back, nor does anybody's patience.
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

    /// Another epoch has begun. False if that is known.
    pub(super) fn fence(&mut self, epoch: Epoch, out: &mut Outputs) -> bool {
        if self.fenced.is_some() {
            return false;
        }
        self.fenced = Some(epoch);
        out.event(Event::Fenced { epoch });
        out.drop_messages();
        true
    }

    /// The store has committed something: it is asked without a pause if it has to be asked again.
    pub(super) fn committed(&mut self) {
        self.retry = RETRY_FIRST;
    }

    // --- inputs: what the store says ---

    /// Whether the store has space for more data.
    pub(super) fn told_room(&mut self, room: bool, out: &mut Outputs) {
        if self.full == room {
            self.full = !room;
            out.event(Event::Room { room });
        }
    }

    /// How large the volume is. While it is attached it only grows; what is told out of order is
    /// old.
    pub(super) fn resized(&mut self, sectors: u64, out: &mut Outputs) {
        if sectors > self.sectors && sectors <= MAX_VOLUME_SECTORS && self.fenced.is_none() {
            self.sectors = sectors;
            out.event(Event::Resized { sectors });
        }
    }

    /// The store asks for everything up to `last` on behalf of somebody who takes a snapshot.
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

    /// The volume is to be let go: no more requests are taken.
    pub(super) fn close(&mut self) {
        self.closing = true;
    }

    /// Ends the epoch, unless that is under way: everything is committed.
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
            // Somebody waits: it goes behind the Resume that is under way.
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
            _ => ToStore::ReadBehind { request, volume, epoch, committed, range },
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

    /// Takes the requests that are not under way on this connection: all of them once the epoch
    /// goes on, before that only reads of clients.
    pub(super) fn take_unsent(&mut self) -> Vec<StoreRequest> {
        self.requests.take_unsent(self.link == LinkState::Up)
    }

    /// The request that is answered.
    pub(super) fn answered(&mut self, number: RequestId) -> Option<StoreRequest> {
        self.requests.take(number)
    }

    /// The store does not know the epoch: the request is asked again when the epoch goes on.
    pub(super) fn put_back(&mut self, request: StoreRequest) {
        let number = self.requests.next_number();
        self.requests.insert(number, request, false);
    }

    /// The answer waits for the table of versions.
    pub(super) fn park(&mut self, number: RequestId, request: StoreRequest, answer: ParkedAnswer) {
        self.requests.park(number, request, answer);
    }

    /// The answers that waited for the table of versions.
    pub(super) fn take_parked(&mut self) -> Vec<(RequestId, StoreRequest, ParkedAnswer)> {
        self.requests.take_parked()
    }

    /// `range` is written: answers about it may not have that.
    pub(super) fn spoil(&mut self, range: Range) {
        self.requests.spoil(range);
    }

    /// Gives up on all requests; returns those of clients.
    pub(super) fn give_up(&mut self) -> Vec<u64> {
        self.requests.give_up()
    }

    // --- outputs ---

    /// Whether the epoch goes on: everything may be sent.
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

    /// When the epoch is to be resumed.
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

    /// Why a request is not taken for want of space. While the store has no space, new data is
    /// refused, as a thin provisioned disk does it. Writes that were acknowledged before are
    /// shipped.
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
