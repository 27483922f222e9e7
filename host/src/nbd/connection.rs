//! One client's connection: drives its session, on the front thread.

use super::access::Identity;
use super::server::{NbdHome, NbdServer};
use crate::bitmaps::Bitmaps;
use crate::stream::{MovedStream, Outbound, Reader, Writer, Written};
use crate::volume::{Requester, Volume};
use bytes::BytesMut;
use longhaul_base::limits::{Stranger, Who};
use longhaul_core::block::{BlockError, Reply, Request};
use longhaul_core::front::nbd::{
    CloseReason, Event, ExportEntry, LookupError, LookupErrorKind, Session,
};
use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;
use tokio::time::Instant;

/// Read buffer, in bytes: some dozen 4 KiB writes of a deep queue in one read. Measured in
/// `docs/performance.md`.
const READ_BYTES: usize = 256 << 10;

/// If less room than this is left, the next read gets a new buffer.
const LEAST_ROOM_BYTES: usize = 16 << 10;

/// How long a client may take for its part of the handshake. The clock stands while it waits for
/// us; this is longer than a lookup all the same.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(15);

/// How long a client may take to read its last replies.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// A client's connection.
pub struct NbdConnection {
    peer: String,
    state: RefCell<ConnectionState>,
}

struct ConnectionState {
    session: Session,
    out: Outbound,
    /// The identity that it has shown.
    client: Identity,
    /// The volume that the last lookup found; the session's once it is ready.
    volume: Option<Rc<Volume>>,
    /// The bitmaps that the last lookup found, if the volume was a snapshot.
    bitmaps: Option<Rc<Bitmaps>>,
    ready: bool,
    waker: Option<Waker>,
    /// The task has something to do that no socket tells of.
    kicked: bool,
    /// The socket takes no more. Nobody writes until it does.
    blocked: bool,
    /// The connection has collected replies since the last flush.
    marked: bool,
    /// Input that the session would not take remains.
    stalled: bool,
    /// The client waits for us: the handshake's clock stands.
    looking_up: bool,
    /// TLS begins after the socket has taken all earlier output.
    tls_pending: bool,
    closing: Option<CloseReason>,
    stopping: bool,
    failed: Option<io::Error>,
    /// Another front thread has the export.
    moving: Option<(Box<dyn NbdHome>, Lookup)>,
}

/// The client's question for an export.
struct Lookup {
    name: String,
    entering: bool,
    bitmaps: bool,
}

/// The part of a connection that only its task uses.
struct Intake {
    who: Who,
    reader: Reader,
    input: BytesMut,
    /// Inside TLS.
    raw: BytesMut,
    /// The rest of [`HANDSHAKE_LIMIT`].
    patience: Duration,
    stranger: Option<Stranger>,
}

/// A connection on its way to the front thread that has its export.
pub struct MovedNbd {
    peer: String,
    who: Who,
    stream: MovedStream,
    session: Session,
    client: Identity,
    input: BytesMut,
    raw: BytesMut,
    patience: Duration,
    stranger: Option<Stranger>,
    lookup: Lookup,
}

/// The reason for a wake-up.
enum Wake {
    Work,
    Input,
    End,
}

impl NbdConnection {
    /// Serves a new connection until it ends.
    pub async fn serve(
        server: Rc<NbdServer>,
        (peer, who, client): (String, Who, Identity),
        reader: Reader,
        writer: Writer,
    ) {
        if !server.places.places.has_room(&who) {
            return server.turn_away(&peer);
        }
        if server.stopping.get() {
            return;
        }
        let session = Session::new(server.session_config());
        let connection = NbdConnection::new(peer, session, Outbound::new(writer), client);
        let intake = Intake {
            who,
            reader,
            input: BytesMut::new(),
            raw: BytesMut::new(),
            patience: HANDSHAKE_LIMIT,
            stranger: Some(server.places.strangers.enter(who)),
        };
        connection.run_to_end(server, intake).await;
    }

    /// Goes on with a connection that another thread has begun.
    pub async fn resume(server: Rc<NbdServer>, moved: MovedNbd) {
        let MovedNbd { peer, who, stream, session, client, .. } = moved;
        let (reader, out) = match stream.give() {
            Ok(stream) => stream,
            Err(error) => return tracing::warn!(peer, "NBD client dropped: {error}"),
        };
        let connection = NbdConnection::new(peer, session, out, client);
        let MovedNbd { input, raw, patience, stranger, lookup, .. } = moved;
        {
            let state = &mut *connection.state.borrow_mut();
            if server.stopping.get() {
                state.session.handle_shutdown();
                state.stopping = true;
            }
            connection.look_up(state, &server, lookup);
        }
        let intake = Intake { who, reader, input, raw, patience, stranger };
        connection.run_to_end(server, intake).await;
    }

    fn new(peer: String, session: Session, out: Outbound, client: Identity) -> Rc<NbdConnection> {
        Rc::new(NbdConnection {
            peer,
            state: RefCell::new(ConnectionState {
                session,
                out,
                client,
                volume: None,
                bitmaps: None,
                ready: false,
                waker: None,
                kicked: true,
                blocked: false,
                marked: false,
                stalled: false,
                looking_up: false,
                tls_pending: false,
                closing: None,
                stopping: false,
                failed: None,
                moving: None,
            }),
        })
    }

    async fn run_to_end(self: Rc<Self>, server: Rc<NbdServer>, mut intake: Intake) {
        let id = server.next_id.get();
        server.next_id.set(id + 1);
        server.connections.borrow_mut().insert(id, self.clone());
        let result = self.run(&server, &mut intake).await;
        server.connections.borrow_mut().remove(&id);
        let peer = self.peer.clone();
        match result {
            Ok(Some(reason)) => {
                self.state.borrow_mut().out.close();
                if let CloseReason::Disconnected | CloseReason::Aborted = reason {
                    tracing::debug!(peer, "NBD client left: {reason}");
                } else {
                    tracing::info!(peer, "NBD client dropped: {reason}");
                }
            }
            Ok(None) => {
                if let Err(error) = self.send(intake).await {
                    tracing::info!(peer, "NBD client dropped: {error}");
                }
            }
            Err(error) => {
                self.state.borrow_mut().out.close();
                tracing::info!(peer, "NBD client dropped: {error}");
            }
        }
    }

    /// Sends the connection to the thread that has its export.
    async fn send(self: Rc<Self>, intake: Intake) -> io::Result<()> {
        let lost = || io::Error::other("it could not move to the thread of its volume");
        // It has no volume yet, so nobody else has it.
        let NbdConnection { peer, state } = Rc::into_inner(self).ok_or_else(lost)?;
        let state = state.into_inner();
        let (home, lookup) = state.moving.ok_or_else(lost)?;
        let Intake { who, reader, input, raw, patience, stranger } = intake;
        let moved = MovedNbd {
            peer,
            who,
            stream: MovedStream::take(reader, state.out)?,
            session: state.session,
            client: state.client,
            input,
            raw,
            patience,
            stranger,
            lookup,
        };
        home.take_nbd(moved).await
    }

    /// Whether the client uses the volume of this name.
    pub fn serves(&self, name: &str) -> bool {
        let state = self.state.borrow();
        state.ready && state.volume.as_ref().is_some_and(|volume| volume.name() == name)
    }

    /// Ends it if its client may not use its volume.
    pub fn end_unless(&self, may_use: impl FnOnce(&str, &Identity) -> bool) {
        let lost = {
            let state = self.state.borrow();
            let volume = state.volume.as_ref();
            volume.filter(|volume| !may_use(volume.name(), &state.client)).cloned()
        };
        if let Some(volume) = lost {
            let peer = &self.peer;
            tracing::info!(
                peer,
                volume = volume.name(),
                "an NBD client lost its right and is cut off"
            );
            self.stop();
        }
    }

    /// Takes no more requests. Answers those in flight, then ends the connection.
    pub fn stop(&self) {
        let mut state = self.state.borrow_mut();
        state.session.handle_shutdown();
        state.stopping = true;
        state.kick();
    }

    /// Serves the connection until it ends, or moves to another thread (`None`).
    async fn run(
        self: &Rc<Self>,
        server: &Rc<NbdServer>,
        intake: &mut Intake,
    ) -> io::Result<Option<CloseReason>> {
        let Intake { who, reader, input, raw, patience, stranger } = intake;
        let who = *who;
        let this: Rc<dyn Requester> = self.clone();
        let mut _place = None;
        loop {
            self.turn(server, &this, input, raw)?;
            let (ready, looking_up, ended, moves) = {
                let state = self.state.borrow();
                let idle = state.stopping && state.session.inflight().requests == 0;
                let ended = state.closing.is_some() || idle;
                (state.ready, state.looking_up, ended, state.moving.is_some())
            };
            if ended {
                return self.finish().await.map(Some);
            }
            if moves {
                return Ok(None);
            }
            if ready && stranger.take().is_some() {
                _place = server.places.places.take(who);
                if _place.is_none() {
                    server.turn_away(&self.peer);
                    return Err(io::Error::other("the server has too many clients"));
                }
            }
            let wait = self.wait(reader, input, raw);
            let wake = match stranger {
                None => wait.await?,
                Some(stranger) => {
                    stranger.busy().set(looking_up);
                    let since = Instant::now();
                    let limit = if looking_up { Duration::MAX } else { *patience };
                    let wake = tokio::select! {
                        wake = tokio::time::timeout(limit, wait) => wake,
                        () = stranger.dropped() => {
                            return Err(io::Error::other("too many clients choose no export"));
                        }
                    };
                    let wake = wake.map_err(|_| {
                        io::Error::other(format!(
                            "no handshake within {} s; a client that only connects is not one of \
                             NBD",
                            HANDSHAKE_LIMIT.as_secs()
                        ))
                    })??;
                    if !looking_up {
                        let left = patience.saturating_sub(since.elapsed());
                        *patience = left.max(Duration::from_millis(1));
                    }
                    wake
                }
            };
            if let Wake::End = wake {
                self.state.borrow_mut().session.handle_eof();
            }
        }
    }

    /// Writes the rest of the output, then ends.
    async fn finish(&self) -> io::Result<CloseReason> {
        let reason = {
            let mut state = self.state.borrow_mut();
            state.flush();
            state.out.close_tls();
            state.closing.take().unwrap_or(CloseReason::Disconnected)
        };
        let written = std::future::poll_fn(|cx| {
            loop {
                let mut state = self.state.borrow_mut();
                state.blocked = false;
                state.flush();
                if let Some(error) = state.failed.take() {
                    return Poll::Ready(Err(error));
                }
                if !state.blocked {
                    return Poll::Ready(Ok(()));
                }
                std::task::ready!(state.out.poll_ready(cx))?;
            }
        });
        // Whether a client that leaves reads its last replies is its own affair.
        let _ = tokio::time::timeout(CLOSE_LIMIT, written).await;
        Ok(reason)
    }

    /// Waits for something to do.
    async fn wait(
        &self,
        reader: &mut Reader,
        input: &mut BytesMut,
        raw: &mut BytesMut,
    ) -> io::Result<Wake> {
        std::future::poll_fn(|cx| {
            let (wants, tls) = {
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
                    return Poll::Ready(Ok(Wake::Work));
                }
                let wants = state.session.wants_input() && !state.tls_pending;
                (wants || state.out.is_handshaking(), state.out.has_tls())
            };
            if !wants {
                return Poll::Pending;
            }
            let buffer = if tls { &mut *raw } else { &mut *input };
            let wanted = if tls { 0 } else { self.state.borrow().session.wanted() };
            let room = LEAST_ROOM_BYTES.max(wanted.saturating_sub(buffer.len()));
            if buffer.capacity() - buffer.len() < room {
                buffer.reserve(room.max(READ_BYTES));
            }
            match std::task::ready!(reader.poll(cx, buffer)) {
                Ok(0) => Poll::Ready(Ok(Wake::End)),
                Ok(_) => Poll::Ready(Ok(Wake::Input)),
                Err(error) => Poll::Ready(Err(error)),
            }
        })
        .await
    }

    /// Takes the input, acts on it and writes the results.
    fn turn(
        self: &Rc<Self>,
        server: &Rc<NbdServer>,
        this: &Rc<dyn Requester>,
        input: &mut BytesMut,
        raw: &mut BytesMut,
    ) -> io::Result<()> {
        let mut requests: Vec<(u64, Request)> = Vec::new();
        loop {
            let since = std::time::Instant::now();
            let volume = {
                let state = &mut *self.state.borrow_mut();
                if state.out.has_tls() {
                    self.decrypt(state, input, raw)?;
                }
                state.session.handle_input(input);
                while let Some(event) = state.session.poll_event() {
                    if let Event::Request { slot, request } = event {
                        requests.push((slot, request));
                    } else {
                        self.handle_event(state, server, event);
                    }
                }
                state.volume.clone()
            };
            let worked = !requests.is_empty();
            match volume {
                Some(volume) if worked => volume.submit(this, since, requests.drain(..)),
                Some(_) => {}
                // A session is only ready once a lookup has set the volume.
                None => {
                    for (slot, _) in requests.drain(..) {
                        self.reply(slot, Err(BlockError::Stopped));
                    }
                }
            }
            let state = &mut *self.state.borrow_mut();
            state.flush();
            if state.tls_pending
                && !state.blocked
                && let Some(config) = server.tls.borrow().clone()
            {
                state.tls_pending = false;
                state.out.start_tls(config).map_err(io::Error::other)?;
                return Ok(());
            }
            state.stalled = !input.is_empty() || !raw.is_empty();
            if !worked || !state.stalled || !state.session.wants_input() {
                return Ok(());
            }
        }
    }

    fn decrypt(
        &self,
        state: &mut ConnectionState,
        input: &mut BytesMut,
        raw: &mut BytesMut,
    ) -> io::Result<()> {
        let handshaking = state.out.is_handshaking();
        let most = READ_BYTES.max(state.session.wanted());
        let decrypted = state.out.decrypt(raw, input, most);
        if let Err(error) = decrypted {
            // The alert tells the client why. It may not arrive.
            let _ = state.out.write(|| None);
            return Err(io::Error::other(format!("TLS: {error}")));
        }
        if handshaking && !state.out.is_handshaking() {
            if let Some(certificate) = state.out.client_certificate() {
                state.client.set_certificate(certificate);
            }
            state.session.handle_tls_established();
        }
        Ok(())
    }

    fn handle_event(
        self: &Rc<Self>,
        state: &mut ConnectionState,
        server: &Rc<NbdServer>,
        event: Event,
    ) {
        match event {
            Event::ListExports => {
                state.looking_up = true;
                let (this, list) = (self.clone(), server.exports.clone().list());
                let (server, client) = (server.clone(), state.client.clone());
                tokio::task::spawn_local(async move {
                    let mut exports = list.await;
                    if let Ok(exports) = &mut exports {
                        exports.retain(|ExportEntry { name, .. }| server.may_use(name, &client));
                    }
                    let state = &mut *this.state.borrow_mut();
                    state.looking_up = false;
                    state.session.handle_exports(exports);
                    state.kick();
                });
            }
            Event::LookupExport { name, entering, bitmaps } => {
                self.look_up(state, server, Lookup { name, entering, bitmaps });
            }
            Event::StartTls => state.tls_pending = true,
            Event::Ready { name } => {
                state.ready = true;
                tracing::info!(peer = self.peer, volume = name, "NBD client attached");
            }
            Event::Close(reason) => state.closing = Some(reason),
            Event::Dirty { slot, bitmap, range } => {
                let (this, bitmaps) = (Rc::downgrade(self), state.bitmaps.clone());
                tokio::task::spawn_local(async move {
                    let runs = match bitmaps {
                        Some(bitmaps) => bitmaps.since(&bitmap, range).await,
                        // A session selects only what a lookup has found.
                        None => Err(BlockError::Stopped),
                    };
                    let Some(this) = this.upgrade() else { return };
                    this.reply(slot, runs.map(Reply::Status));
                    this.state.borrow_mut().kick();
                });
            }
            // Collected by the caller.
            Event::Request { .. } => {}
        }
    }

    /// Looks for an export, and moves to the thread that has it.
    fn look_up(
        self: &Rc<Self>,
        state: &mut ConnectionState,
        server: &Rc<NbdServer>,
        lookup: Lookup,
    ) {
        state.looking_up = true;
        let (this, exports) = (self.clone(), server.exports.clone());
        let (server, client) = (server.clone(), state.client.clone());
        tokio::task::spawn_local(async move {
            let Lookup { name, entering, bitmaps } = lookup;
            let refused = |name: &str| LookupError {
                kind: LookupErrorKind::Policy,
                message: format!(
                    "volume {name} is not for this client ({client}): an operator grants it with \
                     `longhaul nbd allow`"
                ),
            };
            // Check the right before an attach.
            let mut export = if !name.is_empty() && !server.may_use(&name, &client) {
                Err(refused(&name))
            } else {
                match exports.clone().elsewhere(name).await {
                    Ok((name, Some(home))) => {
                        let state = &mut *this.state.borrow_mut();
                        let lookup = Lookup { name, entering, bitmaps };
                        state.moving = Some((home, lookup));
                        return state.kick();
                    }
                    Ok((name, None)) => exports.clone().open(name, entering).await,
                    Err(error) => Err(error),
                }
            };
            let found = match &export {
                Ok((info, _)) if bitmaps => exports.bitmaps(info.name.clone()).await,
                _ => None,
            };
            // Check again: the empty name has a meaning now, and somebody may have withdrawn the
            // right. From here on a loss of the right cuts the connection off.
            if let Ok((info, _)) = &export
                && !server.may_use(&info.name, &client)
            {
                export = Err(refused(&info.name));
            }
            let state = &mut *this.state.borrow_mut();
            state.looking_up = false;
            let info = export.map(|(mut info, volume)| {
                state.volume = Some(volume);
                if let Some(found) = found {
                    info.bitmaps = found.names();
                    state.bitmaps = Some(Rc::new(found));
                }
                info
            });
            state.session.handle_export(info);
            state.kick();
        });
    }
}

impl Requester for NbdConnection {
    fn reply(&self, slot: u64, reply: Result<Reply, BlockError>) {
        // An unknown slot belongs to a session that closed: nobody waits for the reply.
        self.state.borrow_mut().session.handle_reply(slot, reply);
    }

    fn flush(&self) {
        let state = &mut *self.state.borrow_mut();
        state.marked = false;
        state.flush();
        if state.stalled || state.stopping {
            state.kick();
        }
        while let Some(event) = state.session.poll_event() {
            if let Event::Close(reason) = event {
                state.closing = Some(reason);
                state.kick();
            }
        }
    }

    fn mark(&self) -> bool {
        !std::mem::replace(&mut self.state.borrow_mut().marked, true)
    }
}

impl ConnectionState {
    fn kick(&mut self) {
        self.kicked = true;
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }

    fn flush(&mut self) {
        if self.blocked || self.failed.is_some() {
            return;
        }
        let session = &mut self.session;
        match self.out.write(|| session.poll_output()) {
            Ok(Written::All) => {}
            Ok(Written::Blocked) => {
                self.blocked = true;
                // The task has to wait for the socket, whatever found it full.
                if let Some(waker) = &self.waker {
                    waker.wake_by_ref();
                }
            }
            Err(error) => {
                self.failed = Some(error);
                self.kick();
            }
        }
    }
}
