//! The store's side of the link: sessions of hosts, and the frames they send.
//!
//! Each session has bounded memory. The listener does not read a lane while the store does not take
//! its frames, or the host does not receive its replies. The same holds while [`MAX_UNANSWERED`] of
//! its reads wait for a reply. It does not read the drain lane while [`Listener::pause_drain`] says
//! so. All sessions together, and those of each party, have a bound too ([`Answers`]). It counts
//! the bytes of the answers, and of the batches that the store has not stored. Without room, the
//! listener does not take in the next question or the next batch. Requests in datagrams have bounds
//! of their own, see [`longhaul_core::link`].

use super::answers::{Answers, Budgets};
use super::error::{CloseCode, LinkError};
use super::lane::{Backlog, FrameReader, Queued, send_all};
use super::quic::{Acceptor, AcceptorSocket, Arriving};
use super::seats::Seats;
use super::tcp;
use super::timeouts::SETUP_TIMEOUT;
use super::transport::{Connection, LaneStreams};
use super::{Requests, datagrams, local, party};
use crate::credential::Issued;
use anyhow::Result;
use longhaul_base::limits;
use longhaul_base::text::bounded;
use longhaul_core::link::AnswerCounters;
use longhaul_core::wire::link::{
    Frame, Lane, MAX_VERSION, MIN_VERSION, Principal, ToHost, ToStore,
};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{Receiver, Sender, UnboundedSender, channel, unbounded_channel};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinSet;

/// The listener does not read a lane with more bytes of unsent replies than this.
const MAX_BACKLOG_BYTES: usize = 16 << 20;
/// The listener does not read a lane for reads with this many requests without a reply. With a
/// reply of 1 MiB each, this is the memory that a host can take if it asks and does not listen. An
/// engine reads as many at a time.
const MAX_UNANSWERED: usize = 256;
/// Frames of all sessions that wait for the store service.
const MAX_WAITING_FRAMES: usize = 64;
/// The pause between checks of the sessions for withdrawn credentials.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// An event of a listener.
#[derive(Debug)]
pub enum ListenerEvent {
    /// A host said Hello.
    Opened {
        /// Number of the session, never used again.
        session: u64,
        /// Where the host is.
        peer: SocketAddr,
        /// The owner of the certificate that it has shown.
        principal: Principal,
        /// The host's name of its software.
        software: String,
    },
    /// A frame of an open session.
    Frame {
        /// Of which.
        session: u64,
        /// In which lane.
        lane: Lane,
        /// The frame.
        frame: Frame<ToStore>,
    },
    /// A session is over; nothing more comes from it.
    Closed {
        /// Which.
        session: u64,
        /// Why.
        reason: String,
    },
}

/// Accepts hosts with valid credentials.
pub struct Listener {
    acceptor: Box<Acceptor>,
    events: Receiver<ListenerEvent>,
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
}

struct Shared {
    seats: Seats,
    budgets: Arc<Budgets>,
    turns: Mutex<HashMap<String, Arc<Semaphore>>>,
    events: Sender<ListenerEvent>,
    sessions: Mutex<HashMap<u64, Arc<Session>>>,
    /// Requests in datagrams of the sessions that are over.
    past_datagrams: Mutex<AnswerCounters>,
    /// Sessions that began with data.
    early: AtomicU64,
    issued: Arc<Issued>,
    /// Addresses of all stores, which hosts get.
    stores: Mutex<Vec<String>>,
    versions: (u16, u16),
    next: AtomicU64,
    /// Told who was not let in.
    refusals: OnceLock<Refusals>,
    shortcut: OnceLock<Shortcut>,
}

/// Hears of each client that the store refuses because of its credential: its address, and the
/// reason. It must not wait.
pub type Refusals = Box<dyn Fn(SocketAddr, &str) + Send + Sync>;

/// Takes a frame of a session before it becomes an event, or gives it back. It runs in the thread
/// of the session, and must not wait.
pub type Shortcut = Box<dyn Fn(u64, Lane, Frame<ToStore>) -> Option<Frame<ToStore>> + Send + Sync>;

struct Session {
    /// Of the protocol.
    version: u16,
    /// Of the thread that serves it.
    runtime: Handle,
    connection: Arc<dyn Connection>,
    principal: Principal,
    lanes: [(UnboundedSender<Queued<ToHost>>, Arc<Backlog>); Lane::ALL.len()],
    answers: Arc<Answers>,
    paused: watch::Sender<bool>,
    /// The rest of [`MAX_UNANSWERED`] by lane.
    unanswered: [Arc<Semaphore>; Lane::ALL.len()],
    /// The session has sent a commit, which a flush may wait for.
    committed: Arc<Notify>,
    datagrams: Arc<datagrams::Replies>,
}

/// Lanes whose frames are requests with one reply each, in the same lane.
fn is_for_reads(lane: Lane) -> bool {
    matches!(lane, Lane::Read | Lane::ReadAhead)
}

/// Whether the listener takes a frame from a host that has not [proven](Connection::proven) that it
/// is there. Such a frame changes nothing, however often and late it comes.
fn may_be_early(message: &ToStore) -> bool {
    matches!(message, ToStore::EarlyRead { .. })
}

impl Shared {
    fn next_session(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<u64, Arc<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn session(&self, id: u64) -> Option<Arc<Session>> {
        self.sessions().get(&id).cloned()
    }

    /// Hands a frame to the store service. False if there is none any more.
    async fn hand_over(
        &self,
        session: u64,
        lane: Lane,
        frame: Frame<ToStore>,
        turns: &Semaphore,
    ) -> bool {
        let frame = match self.shortcut.get() {
            Some(shortcut) => shortcut(session, lane, frame),
            None => Some(frame),
        };
        let Some(frame) = frame else { return true };
        // Never closed. The queue takes those that wait for it in turn.
        let _turn = turns.acquire().await.ok();
        self.events.send(ListenerEvent::Frame { session, lane, frame }).await.is_ok()
    }

    fn send(&self, session: u64, lane: Lane, frame: Frame<ToHost>) {
        let Some(session) = self.session(session) else { return };
        let answer = session.answers.end(lane, &frame.message);
        let frame = match lane {
            Lane::Read => match session.datagrams.send(&*session.connection, frame) {
                Some(frame) => frame,
                None => return,
            },
            _ => frame,
        };
        let (sender, backlog) = &session.lanes[lane as usize];
        backlog.add(&frame);
        if is_for_reads(lane) {
            session.unanswered[lane as usize].add_permits(1);
        }
        if let ToHost::Committed { .. } = frame.message {
            session.committed.notify_one();
        }
        // Fails only in the moment in which the session ends.
        let _ = sender.send(Queued { frame, answer });
    }

    fn stores(&self) -> MutexGuard<'_, Vec<String>> {
        self.stores.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn past_datagrams(&self) -> MutexGuard<'_, AnswerCounters> {
        self.past_datagrams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Of a party that queues frames.
    fn turns(&self, party: &str) -> Arc<Semaphore> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.retain(|_, of| Arc::strong_count(of) > 1);
        let new = || Arc::new(Semaphore::new(limits::FRAMES_OF_ONE));
        turns.entry(party.to_owned()).or_insert_with(new).clone()
    }

    /// Says that somebody was not let in.
    fn refused(&self, peer: SocketAddr, reason: &str) {
        if let Some(refusals) = self.refusals.get() {
            refusals(peer, reason);
        }
    }

    fn remove(&self, id: u64) {
        let mut sessions = self.sessions();
        if let Some(session) = sessions.remove(&id) {
            self.past_datagrams().add(&session.datagrams.counters());
        }
    }
}

impl Listener {
    /// Accepts what arrives at `acceptor`, in its threads; tells hosts the addresses `stores`.
    pub fn start(acceptor: Acceptor, issued: Arc<Issued>, stores: Vec<String>) -> Listener {
        Self::with_versions(acceptor, issued, stores, (MIN_VERSION, MAX_VERSION))
    }

    /// As [`Listener::start`], speaking these protocol versions.
    pub fn with_versions(
        acceptor: Acceptor,
        issued: Arc<Issued>,
        stores: Vec<String>,
        versions: (u16, u16),
    ) -> Listener {
        let (sender, events) = channel(MAX_WAITING_FRAMES);
        let shared = Arc::new(Shared {
            seats: Seats::new(),
            budgets: Arc::default(),
            turns: Mutex::default(),
            events: sender,
            sessions: Mutex::default(),
            past_datagrams: Mutex::default(),
            early: AtomicU64::new(0),
            issued,
            stores: Mutex::new(stores),
            versions,
            next: AtomicU64::new(1),
            refusals: OnceLock::new(),
            shortcut: OnceLock::new(),
        });
        let mut tasks = JoinSet::new();
        for (socket, runtime) in acceptor.sockets() {
            tasks.spawn_on(accept(socket.clone(), shared.clone()), runtime);
        }
        tasks.spawn(withdraw(shared.clone()));
        Listener { acceptor: Box::new(acceptor), events, shared, tasks }
    }

    /// Accepts what arrives over TCP, too, in the runtime of [`Acceptor::runtime`].
    pub fn add_tcp(&mut self, mut acceptor: tcp::Acceptor) {
        let shared = self.shared.clone();
        let accepted = async move {
            let mut tasks = JoinSet::new();
            while let Some(arrived) = acceptor.accept().await {
                let connection = match arrived {
                    Ok(connection) => connection,
                    Err((peer, reason)) => {
                        shared.refused(peer, &reason);
                        continue;
                    }
                };
                tasks.spawn(admit(connection.into(), shared.clone()));
                while tasks.try_join_next().is_some() {}
            }
        };
        self.tasks.spawn_on(accepted, &self.acceptor.runtime());
    }

    /// Reports each refused client from now on. Only the first caller gets the reports.
    pub fn on_refused(&self, refusals: Refusals) {
        let _ = self.shared.refusals.set(refusals);
    }

    /// Another way in.
    pub fn door(&self) -> Door {
        Door { shared: self.shared.clone() }
    }

    /// The next event. A canceled call loses nothing.
    pub async fn event(&mut self) -> Option<ListenerEvent> {
        self.events.recv().await
    }

    /// An event that is there already.
    pub fn try_event(&mut self) -> Option<ListenerEvent> {
        self.events.try_recv().ok()
    }

    /// Queues a frame for a session; drops it if the session is over.
    pub fn send(&self, session: u64, lane: Lane, frame: Frame<ToHost>) {
        self.shared.send(session, lane, frame);
    }

    /// Another way out.
    pub fn sender(&self) -> FrameSender {
        FrameSender { shared: self.shared.clone() }
    }

    /// Asks this about each frame from now on, before the frame becomes an event. Only the first
    /// caller gets the frames.
    pub fn set_shortcut(&self, shortcut: Shortcut) {
        let _ = self.shared.shortcut.set(shortcut);
    }

    /// The runtimes of all threads that serve sessions: at least one.
    pub fn runtimes(&self) -> Vec<Handle> {
        self.acceptor.sockets().map(|(_, runtime)| runtime.clone()).collect()
    }

    /// The runtime of the thread that serves a session; nothing once it is over.
    pub fn runtime_of(&self, session: u64) -> Option<Handle> {
        self.shared.session(session).map(|session| session.runtime.clone())
    }

    /// Stops or continues to read a session's drain lane. Frames that it has read already still
    /// come.
    pub fn pause_drain(&self, session: u64, paused: bool) {
        if let Some(session) = self.shared.session(session) {
            session.paused.send_if_modified(|now| std::mem::replace(now, paused) != paused);
        }
    }

    /// Ends a session; [`ListenerEvent::Closed`] follows.
    pub fn close_session(&self, session: u64, code: CloseCode, reason: &str) {
        if let Some(session) = self.shared.session(session) {
            session.connection.close(code, reason);
        }
    }

    /// Tells hosts these addresses of stores from now on, when they say Hello.
    pub fn set_stores(&self, stores: Vec<String>) {
        *self.shared.stores() = stores;
    }

    /// Tells a host something in its control lane.
    pub fn tell_host(&self, session: u64, message: &ToHost) {
        self.send(session, Lane::Control, message.clone().into());
    }

    /// Tells all hosts something. Other stores are no hosts.
    pub fn tell_hosts(&self, message: &ToHost) {
        let sessions = self.shared.sessions();
        let hosts = sessions.iter().filter(|(_, session)| !session.principal.store);
        let hosts: Vec<u64> = hosts.map(|(number, _)| *number).collect();
        drop(sessions);
        for host in hosts {
            self.tell_host(host, message);
        }
    }

    /// Bytes to and from each session so far.
    pub fn traffic(&self) -> Vec<(u64, u64)> {
        let sessions = self.shared.sessions();
        let traffic = sessions.iter().map(|(number, session)| {
            let statistics = session.connection.statistics();
            (*number, statistics.sent_bytes + statistics.received_bytes)
        });
        traffic.collect()
    }

    /// The version of the protocol in a session.
    pub fn version(&self, session: u64) -> Option<u16> {
        self.shared.sessions().get(&session).map(|session| session.version)
    }

    /// Whether the host of a session has proven that it is there now; what came before may be a
    /// copy of what it sent once.
    pub fn is_proven(&self, session: u64) -> bool {
        let sessions = self.shared.sessions();
        sessions.get(&session).is_some_and(|session| session.connection.is_proven())
    }

    /// Sessions that began with data, since the start.
    pub fn early(&self) -> u64 {
        self.shared.early.load(Ordering::Relaxed)
    }

    /// Numbers about the connections that are open.
    pub fn statistics(&self) -> Vec<(SocketAddr, super::transport::Statistics)> {
        let sessions = self.shared.sessions();
        let mut all: Vec<_> = sessions
            .values()
            .map(|session| (session.connection.peer(), session.connection.statistics()))
            .collect();
        all.sort_unstable_by_key(|(peer, _)| *peer);
        all
    }

    /// Requests in datagrams and their replies, of all sessions since the start.
    pub fn datagrams(&self) -> AnswerCounters {
        // Held throughout: a session that ends meanwhile counts once.
        let sessions = self.shared.sessions();
        let mut all = *self.shared.past_datagrams();
        for session in sessions.values() {
            all.add(&session.datagrams.counters());
        }
        all
    }

    /// Bytes that the unsent answers count.
    pub fn answer_bytes(&self) -> u64 {
        self.shared.budgets.out()
    }

    /// Bytes of batches and other data that wait for the object store or for anything else.
    pub fn waiting_bytes(&self) -> u64 {
        self.shared.budgets.waiting()
    }

    /// Ends all sessions.
    pub async fn shutdown(mut self) {
        // Over TCP each connection tells its peer by itself, over QUIC the endpoint tells all at
        // once.
        let over_tcp: Vec<_> = {
            let sessions = self.shared.sessions();
            let connections = sessions.values().map(|session| session.connection.clone());
            connections.filter(|connection| connection.transport() == "tcp").collect()
        };
        for connection in &over_tcp {
            connection.close(CloseCode::ShuttingDown, "the store is shutting down");
        }
        for connection in over_tcp {
            connection.closed().await;
        }
        self.acceptor.close(CloseCode::ShuttingDown, "the store is shutting down").await;
        self.tasks.shutdown().await;
        // A door has these too, and they have the sockets.
        self.shared.sessions().clear();
    }
}

/// Queues frames for sessions, in any thread.
#[derive(Clone)]
pub struct FrameSender {
    shared: Arc<Shared>,
}

impl FrameSender {
    /// See [`Listener::send`].
    pub fn send(&self, session: u64, lane: Lane, frame: Frame<ToHost>) {
        self.shared.send(session, lane, frame);
    }
}

/// Lets in peers that another part has authenticated, with sessions like any other.
#[derive(Clone)]
pub struct Door {
    shared: Arc<Shared>,
}

impl Door {
    /// The addresses of all stores, in the form for hosts.
    pub fn stores(&self) -> Vec<String> {
        self.shared.stores().clone()
    }

    /// Begins a session for `peer`, which has shown the certificate of that principal just now. The
    /// caller limits their number.
    ///
    /// # Errors
    /// If the certificate is withdrawn.
    pub async fn enter(
        &self,
        peer: SocketAddr,
        principal: Principal,
    ) -> Result<Requests, LinkError> {
        if !self.shared.issued.accepts(&principal.serial) {
            return Err(LinkError::Revoked);
        }
        let (theirs, ours) = local::link(peer, principal);
        tokio::spawn(session(self.shared.next_session(), ours, self.shared.clone()));
        Requests::over(theirs, "this one".into()).await
    }
}

async fn accept(socket: AcceptorSocket, shared: Arc<Shared>) {
    let mut tasks = JoinSet::new();
    while let Some(arriving) = socket.accept().await {
        tasks.spawn(authenticate(arriving, shared.clone()));
        while tasks.try_join_next().is_some() {}
    }
}

async fn withdraw(shared: Arc<Shared>) {
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        for session in shared.sessions().values() {
            if !shared.issued.accepts(&session.principal.serial) {
                session.connection.close(CloseCode::Revoked, "the credential was withdrawn");
            }
        }
    }
}

async fn authenticate(arriving: Arriving, shared: Arc<Shared>) {
    let peer = arriving.peer();
    match arriving.authenticate().await {
        Ok(connection) => admit(connection.into(), shared).await,
        Err(error) if error.is_of_nobody() => tracing::debug!("refused {peer}: {error}"),
        Err(error) => {
            tracing::warn!("refused {peer}: {error}");
            if let LinkError::Credential(_) = error {
                shared.refused(peer, &error.to_string());
            }
        }
    }
}

/// Serves a connection over a link, if there is a place for it.
async fn admit(connection: Arc<dyn Connection>, shared: Arc<Shared>) {
    let peer = connection.peer();
    let Some(principal) = connection.principal() else {
        return connection.close(CloseCode::Protocol, "no certificate");
    };
    match shared.seats.take(peer, &principal) {
        Ok(_seat) => session(shared.next_session(), connection, shared.clone()).await,
        Err(why) => {
            tracing::warn!("refused {peer}: {why}");
            connection.close(CloseCode::ShuttingDown, why);
        }
    }
}

async fn session(id: u64, connection: Arc<dyn Connection>, shared: Arc<Shared>) {
    let peer = connection.peer();
    let Some(principal) = connection.principal() else {
        return connection.close(CloseCode::Protocol, "no certificate");
    };
    let setup = tokio::time::timeout(SETUP_TIMEOUT, setup(&*connection, &shared)).await;
    let SetUp { lanes, control, version, software } =
        match setup.unwrap_or(Err(LinkError::TimedOut)) {
            Ok(set_up) => set_up,
            Err(error) => {
                connection.close(CloseCode::Protocol, &error.to_string());
                return tracing::warn!("refused {peer}: {error}");
            }
        };
    if !connection.is_proven() {
        shared.early.fetch_add(1, Ordering::Relaxed);
    }
    let opened =
        ListenerEvent::Opened { session: id, peer, principal: principal.clone(), software };
    if shared.events.send(opened).await.is_err() {
        return;
    }
    let result = serve(id, &connection, principal, version, (lanes, control), &shared).await;
    shared.remove(id);
    if let Err(LinkError::Protocol(reason)) = &result {
        tracing::warn!("closing the session of {peer}: {reason}");
        connection.close(CloseCode::Protocol, reason);
    } else {
        connection.close(CloseCode::Done, "done");
    }
    let reason = result.err().map_or("done".to_owned(), |error| error.to_string());
    let _ = shared.events.send(ListenerEvent::Closed { session: id, reason }).await;
}

struct SetUp {
    lanes: Vec<(Lane, LaneStreams)>,
    control: FrameReader,
    version: u16,
    software: String,
}

/// Lanes and Hello.
async fn setup(connection: &dyn Connection, shared: &Shared) -> Result<SetUp, LinkError> {
    let lanes = connection.accept_lanes().await?;
    let mut rest = Vec::new();
    let mut control = None;
    for (lane, streams) in Lane::ALL.into_iter().zip(lanes) {
        if lane == Lane::Control {
            control = Some(streams);
        } else {
            rest.push((lane, streams));
        }
    }
    let Some(LaneStreams { mut send, receive }) = control else {
        return Err(LinkError::Protocol("no control lane".into()));
    };
    let mut reader = FrameReader::new(receive);
    let Some(Frame { message: ToStore::Hello { min_version, max_version, software }, .. }) =
        reader.next().await?
    else {
        return Err(LinkError::Protocol("the first frame is not Hello".into()));
    };
    let newest = max_version.min(shared.versions.1);
    let version = (newest >= min_version.max(shared.versions.0)).then_some(newest);
    let hello = ToHost::Hello {
        version,
        supported: shared.versions,
        software: longhaul_base::software(),
        stores: shared.stores().clone(),
    };
    let head = Frame::from(hello).encode_head();
    let mut chunks = [head.map_err(|error| LinkError::Protocol(error.to_string()))?];
    while send.write(&mut chunks).await? == 0 {}
    let Some(version) = version else {
        // The host reads the reply and closes.
        let _ = tokio::time::timeout(Duration::from_secs(1), connection.closed()).await;
        return Err(LinkError::Version {
            store: shared.versions,
            host: (min_version, max_version),
        });
    };
    // Only ever read through `reader`.
    let receive = Box::new(Ended);
    rest.push((Lane::Control, LaneStreams { send, receive }));
    let software = bounded(&software);
    Ok(SetUp { lanes: rest, control: reader, version, software })
}

async fn serve(
    id: u64,
    connection: &Arc<dyn Connection>,
    principal: Principal,
    version: u16,
    (lanes, control): (Vec<(Lane, LaneStreams)>, FrameReader),
    shared: &Arc<Shared>,
) -> Result<(), LinkError> {
    let mut tasks = JoinSet::new();
    let (paused, unpaused) = watch::channel(false);
    let channels = Lane::ALL.map(|_| (unbounded_channel(), Arc::new(Backlog::default())));
    let senders = channels.each_ref().map(|((sender, _), log)| (sender.clone(), log.clone()));
    let mut queues = channels.map(|((_, queue), _)| Some(queue));
    let mut control = Some(control);
    // Nothing is urgent in the drain lane toward the host: commits travel in the control lane.
    let (_keep, urgent) = watch::channel(false);
    let unanswered = Lane::ALL.map(|_| Arc::new(Semaphore::new(MAX_UNANSWERED)));
    let answers = Arc::new(Answers::new(shared.budgets.clone(), &principal, id));
    let turns = shared.turns(&party(&principal));
    for (lane, streams) in lanes {
        let backlog = senders[lane as usize].1.clone();
        let room = unanswered[lane as usize].clone();
        let mut reader = match lane {
            Lane::Control => control.take().unwrap_or_else(|| FrameReader::new(streams.receive)),
            _ => FrameReader::new(streams.receive),
        };
        let (service, proof) = (shared.clone(), connection.clone());
        let (answers, turns) = (answers.clone(), turns.clone());
        let mut unpaused = unpaused.clone();
        let limit = backlog.clone();
        tasks.spawn(async move {
            let mut proven = false;
            loop {
                limit.below(MAX_BACKLOG_BYTES).await;
                if is_for_reads(lane) {
                    match room.acquire().await {
                        Ok(permit) => permit.forget(),
                        Err(_) => return Ok(()),
                    }
                }
                if lane == Lane::Drain && unpaused.wait_for(|paused| !*paused).await.is_err() {
                    return Ok(());
                }
                let Some(frame) = reader.next().await? else {
                    // The host ends its lanes one after the other, then the connection.
                    std::future::pending::<()>().await;
                    return Ok(());
                };
                if !proven && !may_be_early(&frame.message) {
                    proof.proven().await?;
                    proven = true;
                }
                answers.begin(lane, &frame.message).await;
                let frame = answers.count(frame).await;
                if !service.hand_over(id, lane, frame, &turns).await {
                    return Ok(());
                }
            }
        });
        if let Some(queue) = queues[lane as usize].take() {
            let urgent = urgent.clone();
            tasks.spawn(async move {
                send_all::<ToHost, _>(lane, streams.send, queue, &backlog, urgent).await
            });
        }
    }
    let datagrams = Arc::<datagrams::Replies>::default();
    let asked = datagrams.clone();
    let (over, service) = (connection.clone(), shared.clone());
    let (answered, turns) = (answers.clone(), turns.clone());
    tasks.spawn(async move {
        let mut proven = false;
        loop {
            let Some(frame) = asked.receive(&*over).await? else { continue };
            if !proven && !may_be_early(&frame.message) {
                over.proven().await?;
                proven = true;
            }
            answered.begin(Lane::Read, &frame.message).await;
            let frame = answered.count(frame).await;
            if !service.hand_over(id, Lane::Read, frame, &turns).await {
                return Ok(());
            }
        }
    });
    let committed = Arc::new(Notify::new());
    let session = Session {
        committed: committed.clone(),
        datagrams,
        version,
        runtime: Handle::current(),
        connection: connection.clone(),
        principal,
        lanes: senders,
        answers,
        paused,
        unanswered,
    };
    shared.sessions().insert(id, Arc::new(session));
    let result = tokio::select! {
        error = connection.closed() => Err(error),
        never = super::transport::trail(&**connection, &committed) => match never {},
        error = unproven(&**connection) => Err(error),
        Some(result) = tasks.join_next() => {
            result.unwrap_or_else(|error| Err(LinkError::Lost(format!("a task failed: {error}"))))
        }
    };
    tasks.shutdown().await;
    match result {
        // The host has ended it in order, whoever noticed first.
        Err(LinkError::Closed(_)) => Ok(()),
        result => result,
    }
}

/// Waits until it is certain that the host is not there, for ever if it is.
async fn unproven(connection: &dyn Connection) -> LinkError {
    match tokio::time::timeout(SETUP_TIMEOUT, connection.proven()).await {
        Ok(Ok(())) => std::future::pending().await,
        Ok(Err(error)) => error,
        Err(_) => LinkError::TimedOut,
    }
}

/// A stream that has nothing.
struct Ended;

#[async_trait::async_trait]
impl super::transport::ReceiveStream for Ended {
    async fn read(&mut self, _: &mut [bytes::Bytes]) -> Result<usize, LinkError> {
        Ok(0)
    }
}
