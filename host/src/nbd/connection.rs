//! One client's connection: drives its session, on the front thread.

use super::access::Identity;
use super::server::NbdServer;
use crate::bitmaps::Bitmaps;
use crate::stream::{Outbound, Reader, Writer, Written};
use crate::volume::{Requester, Volume};
use bytes::BytesMut;
use longhaul_base::limits::Who;
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
        if !server.places.has_room(&who) {
            return server.turn_away(&peer);
        }
        if server.stopping.get() {
            return;
        }
        let id = server.next_id.get();
        server.next_id.set(id + 1);
        let connection = Rc::new(NbdConnection {
            peer,
            state: RefCell::new(ConnectionState {
                session: Session::new(server.session_config()),
                out: Outbound::new(writer),
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
            }),
        });
        server.connections.borrow_mut().insert(id, connection.clone());
        let result = connection.run(&server, who, reader).await;
        connection.state.borrow_mut().out.close();
        server.connections.borrow_mut().remove(&id);
        match result {
            Ok(reason @ (CloseReason::Disconnected | CloseReason::Aborted)) => {
                tracing::debug!(peer = connection.peer, "NBD client left: {reason}");
            }
            Ok(reason) => tracing::info!(peer = connection.peer, "NBD client dropped: {reason}"),
            Err(error) => tracing::info!(peer = connection.peer, "NBD client dropped: {error}"),
        }
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

    async fn run(
        self: &Rc<Self>,
        server: &Rc<NbdServer>,
        who: Who,
        mut reader: Reader,
    ) -> io::Result<CloseReason> {
        let mut input = BytesMut::new();
        let mut raw = BytesMut::new();
        let this: Rc<dyn Requester> = self.clone();
        let mut patience = HANDSHAKE_LIMIT;
        let mut stranger = Some(server.strangers.enter(who));
        let mut _place = None;
        loop {
            self.turn(server, &this, &mut input, &mut raw)?;
            let (ready, looking_up, ended) = {
                let state = self.state.borrow();
                let idle = state.stopping && state.session.inflight().requests == 0;
                (state.ready, state.looking_up, state.closing.is_some() || idle)
            };
            if ended {
                return self.finish().await;
            }
            if ready && stranger.take().is_some() {
                _place = server.places.take(who);
                if _place.is_none() {
                    server.turn_away(&self.peer);
                    return Err(io::Error::other("the server has too many clients"));
                }
            }
            let wait = self.wait(&mut reader, &mut input, &mut raw);
            let wake = match &mut stranger {
                None => wait.await?,
                Some(stranger) => {
                    stranger.busy().set(looking_up);
                    let since = Instant::now();
                    let limit = if looking_up { Duration::MAX } else { patience };
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
                        patience = left.max(Duration::from_millis(1));
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
                state.looking_up = true;
                let (this, exports) = (self.clone(), server.exports.clone());
                let (server, client) = (server.clone(), state.client.clone());
                tokio::task::spawn_local(async move {
                    let refused = |name: &str| LookupError {
                        kind: LookupErrorKind::Policy,
                        message: format!(
                            "volume {name} is not for this client ({client}): an operator grants \
                             it with `longhaul nbd allow`"
                        ),
                    };
                    // Check the right before an attach.
                    let mut export = if !name.is_empty() && !server.may_use(&name, &client) {
                        Err(refused(&name))
                    } else {
                        exports.clone().open(name, entering).await
                    };
                    let found = match &export {
                        Ok((info, _)) if bitmaps => exports.bitmaps(info.name.clone()).await,
                        _ => None,
                    };
                    // Check again: the empty name has a meaning now, and somebody may have
                    // withdrawn the right. From here on a loss of the right cuts the connection
                    // off.
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
