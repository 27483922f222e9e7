//! One connection of an initiator: its socket, on the front thread.

use super::input::Input;
use super::server::{IscsiHome, IscsiServer};
use crate::stream::{MovedStream, Outbound, Reader, Writer, Written};
use bytes::BytesMut;
use longhaul_base::limits::{Place, Places, Stranger, Who};
use longhaul_core::block::Time;
use longhaul_core::front::iscsi::{CloseReason, ConnectionId, MovedLogin, Peer, Target};
use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

/// How long an initiator may take to read its last responses.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// An initiator's connection.
pub struct IscsiConnection {
    id: ConnectionId,
    peer: String,
    who: Who,
    state: RefCell<ConnectionState>,
}

struct ConnectionState {
    /// Of one that has logged in.
    place: Option<Place<Who>>,
    out: Outbound,
    waker: Option<Waker>,
    /// The task has something to do that no socket tells of.
    kicked: bool,
    /// The socket takes no more. Nobody writes until it does.
    blocked: bool,
    /// The target needs it no more.
    closing: Option<CloseReason>,
    failed: Option<io::Error>,
    /// Another front thread has its volume.
    moving: Option<(Box<dyn IscsiHome>, MovedLogin)>,
}

/// The part of a connection that only its task uses.
struct Intake {
    reader: Reader,
    input: Input,
    stranger: Option<Stranger>,
}

/// How the task of a connection ends.
enum Outcome {
    /// The initiator has ended it.
    Left,
    /// The target has.
    Closed(CloseReason),
    /// It moves to another thread.
    Moved,
}

/// A connection on its way to the front thread that has its volume.
pub struct MovedIscsi {
    peer: String,
    who: Who,
    stream: MovedStream,
    input: BytesMut,
    stranger: Option<Stranger>,
    login: MovedLogin,
}

/// The reason for a wake-up.
enum Wake {
    Work,
    /// The socket takes more.
    Room,
    Input,
    End,
}

impl IscsiConnection {
    /// Serves a new connection until it ends.
    pub(super) async fn serve(
        server: Rc<IscsiServer>,
        (peer, who): (Peer, Who),
        reader: Reader,
        writer: Writer,
    ) {
        if server.stopping.get() {
            return;
        }
        let random = match longhaul_base::random::secret() {
            Ok(random) => random,
            Err(error) => {
                tracing::error!(peer = peer.address, "refused an iSCSI initiator: {error:#}");
                return;
            }
        };
        let connection = IscsiConnection::new(
            server.new_id(),
            (peer.address.clone(), who),
            Outbound::new(writer),
        );
        let stranger = Some(server.places.strangers.enter(who));
        let intake = Intake { reader, input: Input::new(), stranger };
        let begin = move |now, target: &mut Target, id| target.handle_accept(now, id, peer, random);
        connection.run_to_end(server, intake, begin).await;
    }

    /// Goes on with a connection that another thread has begun.
    pub async fn resume(server: Rc<IscsiServer>, moved: MovedIscsi) {
        let MovedIscsi { peer, who, stream, input, stranger, login } = moved;
        let (reader, out) = match stream.give() {
            Ok(stream) => stream,
            Err(error) => return tracing::warn!(peer, "iSCSI connection lost: {error}"),
        };
        let connection = IscsiConnection::new(server.new_id(), (peer, who), out);
        let intake = Intake { reader, input: Input::from(input), stranger };
        let begin = move |now, target: &mut Target, id| target.handle_moved(now, id, login);
        connection.run_to_end(server, intake, begin).await;
    }

    fn new(id: ConnectionId, (peer, who): (String, Who), out: Outbound) -> Rc<IscsiConnection> {
        Rc::new(IscsiConnection {
            id,
            peer,
            who,
            state: RefCell::new(ConnectionState {
                place: None,
                out,
                waker: None,
                kicked: true,
                blocked: false,
                closing: None,
                failed: None,
                moving: None,
            }),
        })
    }

    /// Has `begin` tell the target of the connection, and serves it until it ends or moves.
    async fn run_to_end(
        self: Rc<Self>,
        server: Rc<IscsiServer>,
        mut intake: Intake,
        begin: impl FnOnce(Time, &mut Target, ConnectionId),
    ) {
        let id = self.id;
        server.connections.borrow_mut().insert(id, self.clone());
        server.with(|now, target| begin(now, target, id));
        // Output may have come along.
        self.flush(&server);
        let result = self.run(&server, &mut intake).await;
        server.connections.borrow_mut().remove(&id);
        server.stalled.borrow_mut().remove(&id);
        if !matches!(result, Ok(Outcome::Moved)) {
            self.state.borrow_mut().out.close();
            server.with(|now, target| target.handle_closed(now, id));
        }
        let peer = self.peer.clone();
        match result {
            Ok(Outcome::Left) => {
                tracing::debug!(peer, "iSCSI connection closed by the initiator");
            }
            Ok(Outcome::Closed(CloseReason::LoggedOut)) => {
                tracing::debug!(peer, "iSCSI connection ended");
            }
            Ok(Outcome::Closed(reason)) => {
                tracing::info!(peer, "iSCSI connection closed: {reason}");
            }
            Ok(Outcome::Moved) => {
                if let Err(error) = self.send(intake).await {
                    tracing::info!(peer, "iSCSI connection lost: {error}");
                }
            }
            Err(error) => tracing::info!(peer, "iSCSI connection lost: {error}"),
        }
    }

    /// Has its task send it to the thread that has its volume.
    pub(super) fn send_to(&self, home: Box<dyn IscsiHome>, login: MovedLogin) {
        let mut state = self.state.borrow_mut();
        state.moving = Some((home, login));
        state.kick();
    }

    async fn send(self: Rc<Self>, intake: Intake) -> io::Result<()> {
        let lost = || io::Error::other("it could not move to the thread of its volume");
        let IscsiConnection { peer, who, state, .. } = Rc::into_inner(self).ok_or_else(lost)?;
        let state = state.into_inner();
        let (home, login) = state.moving.ok_or_else(lost)?;
        let Intake { reader, input, stranger } = intake;
        let stream = MovedStream::take(reader, state.out)?;
        let moved = MovedIscsi { peer, who, stream, input: input.bytes, stranger, login };
        home.take_iscsi(moved).await
    }

    /// It has logged in: it takes one of the places, if there is one for where it comes from.
    pub(super) fn logged_in(&self, places: &Places<Who>) -> bool {
        let mut state = self.state.borrow_mut();
        state.place = places.take(self.who);
        state.kick();
        state.place.is_some()
    }

    /// Where it comes from.
    pub(super) fn peer(&self) -> &str {
        &self.peer
    }

    /// The target needs it no more: it writes the rest of its output, then it ends.
    pub(super) fn close(&self, reason: CloseReason) {
        let mut state = self.state.borrow_mut();
        state.closing.get_or_insert(reason);
        state.kick();
    }

    /// Wakes the task of the connection.
    pub(super) fn kick(&self) {
        self.state.borrow_mut().kick();
    }

    /// Writes what the target has for it, as far as the socket takes it.
    pub(super) fn flush(&self, server: &IscsiServer) {
        let state = &mut *self.state.borrow_mut();
        if state.blocked || state.failed.is_some() {
            return;
        }
        let target = &mut *server.target.borrow_mut();
        let mut sent = 0;
        let written = state.out.write(|| {
            let piece = target.poll_output(self.id)?;
            sent += piece.len() as u64;
            Some(piece)
        });
        server.counters.borrow_mut().sent_bytes += sent;
        match written {
            Ok(Written::All) => {}
            Ok(Written::Blocked) => {
                state.blocked = true;
                // The task has to wait for the socket, whatever found it full.
                if let Some(waker) = &state.waker {
                    waker.wake_by_ref();
                }
            }
            Err(error) => {
                state.failed = Some(error);
                state.kick();
            }
        }
    }

    async fn run(&self, server: &Rc<IscsiServer>, intake: &mut Intake) -> io::Result<Outcome> {
        let Intake { reader, input, stranger } = intake;
        loop {
            if self.state.borrow().closing.is_some() {
                return self.finish(server).await.map(Outcome::Closed);
            }
            if self.state.borrow().moving.is_some() {
                return Ok(Outcome::Moved);
            }
            stranger.take_if(|_| self.state.borrow().place.is_some());
            let wake = tokio::select! {
                wake = self.wait(server, reader, input) => wake?,
                () = given_way(stranger.as_mut()) => {
                    return Err(io::Error::other("too many initiators do not log in"));
                }
            };
            match wake {
                Wake::End => return Ok(Outcome::Left),
                Wake::Input | Wake::Work => {}
                Wake::Room => self.flush(server),
            }
            while self.turn(server, &mut input.bytes) {}
        }
    }

    /// Hands the input to the target and acts on its answers. True if the target may take the rest
    /// now, because its reason to stop may have gone.
    fn turn(&self, server: &Rc<IscsiServer>, input: &mut BytesMut) -> bool {
        let before = input.len();
        let wanted = server.with(|now, target| {
            let wanted = target.wants_input(self.id);
            if wanted && before > 0 {
                target.handle_input(now, self.id, input);
            }
            wanted
        });
        let target = server.target.borrow();
        let progress = !wanted || input.len() < before;
        progress
            && !input.is_empty()
            && target.wants_input(self.id)
            && input.len() >= target.wanted(self.id)
    }

    /// Writes the rest of the output, then ends.
    async fn finish(&self, server: &Rc<IscsiServer>) -> io::Result<CloseReason> {
        let written = std::future::poll_fn(|cx| {
            loop {
                self.flush(server);
                let mut state = self.state.borrow_mut();
                if let Some(error) = state.failed.take() {
                    return Poll::Ready(Err(error));
                }
                if !state.blocked {
                    return Poll::Ready(Ok(()));
                }
                std::task::ready!(state.out.poll_ready(cx))?;
                state.blocked = false;
            }
        });
        // Whether an initiator that leaves reads its last responses is its own affair.
        let _ = tokio::time::timeout(CLOSE_LIMIT, written).await;
        let reason = self.state.borrow_mut().closing.take();
        Ok(reason.unwrap_or(CloseReason::LoggedOut))
    }

    /// Waits for something to do.
    async fn wait(
        &self,
        server: &IscsiServer,
        reader: &mut Reader,
        input: &mut Input,
    ) -> io::Result<Wake> {
        std::future::poll_fn(|cx| {
            {
                let state = &mut *self.state.borrow_mut();
                if let Some(error) = state.failed.take() {
                    return Poll::Ready(Err(error));
                }
                if std::mem::take(&mut state.kicked) {
                    return Poll::Ready(Ok(Wake::Work));
                }
                if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                    state.waker = Some(cx.waker().clone());
                }
                if state.blocked && state.out.poll_ready(cx)?.is_ready() {
                    state.blocked = false;
                    return Poll::Ready(Ok(Wake::Room));
                }
            }
            let wanted = {
                let target = server.target.borrow();
                if !target.wants_input(self.id) {
                    server.stalled.borrow_mut().insert(self.id);
                    return Poll::Pending;
                }
                target.wanted(self.id)
            };
            input.make_room(wanted);
            match std::task::ready!(reader.poll(cx, &mut input.bytes)) {
                Ok(0) => Poll::Ready(Ok(Wake::End)),
                Ok(read) => {
                    server.counters.borrow_mut().received_bytes += read as u64;
                    Poll::Ready(Ok(Wake::Input))
                }
                Err(error) => Poll::Ready(Err(error)),
            }
        })
        .await
    }
}

/// Waits until a connection without a login has to go.
async fn given_way(stranger: Option<&mut Stranger>) {
    match stranger {
        Some(stranger) => stranger.dropped().await,
        None => std::future::pending().await,
    }
}

impl ConnectionState {
    fn kick(&mut self) {
        self.kicked = true;
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }
}
