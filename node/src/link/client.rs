//! The host's side of the link: it comes back by itself, whatever happens, until it is closed.
//!
//! It runs in a thread of its own. Frames that are sent while it is down are dropped: who sends them
//! sends again after [`LinkEvent::Up`] what still matters.

use super::LinkError;
use super::Transport;
use super::connect::{self, Greeting, Known, Opening, Senders};
use super::dial::Dialer;
use super::quic::EarlyCounters;
use super::transport::{Connection, PathStatus, Statistics};
use crate::credential::Credential;
use anyhow::{Context as _, Result};
use longhaul_core::link::AskCounters;
use longhaul_core::wire::link::{BEHIND_VERSION, Frame, Lane, ToHost, ToStore};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;

/// Shortest and longest pause before connecting again.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// Longest pause when nobody answered at all: the line is down, and to be there when it returns is
/// worth a packet now and then. The attempt itself takes seconds.
const SILENCE: Duration = Duration::from_millis(500);

/// What the link tells the host.
#[derive(Debug)]
pub enum LinkEvent {
    /// The store is connected and has said Hello. Nothing that was sent before reaches it any more, except
    /// since a [`LinkEvent::Early`] just before.
    Up {
        /// Address of the store, as configured or learned.
        peer: String,
        /// What the store says of itself.
        software: String,
        /// Version of the protocol that is spoken.
        version: u16,
    },
    /// A store that was connected before is tried again, and what is sent now of
    /// [`ToStore::ReadBehind`] goes to it without waiting for an answer. All else waits for
    /// [`LinkEvent::Up`]; or all is dropped, with [`LinkEvent::Unreachable`].
    Early {
        /// Version of the protocol that was spoken.
        version: u16,
    },
    /// An attempt to connect came to nothing, [`Client::status`] says why; another one follows.
    Unreachable,
    /// The connection is over; another one is being tried.
    Down {
        /// Why.
        reason: String,
    },
    /// A frame from the store.
    Frame(Frame<ToHost>),
}

/// The link's state at a moment.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct LinkStatus {
    /// Whether a store is connected.
    pub up: bool,
    /// Seconds in this state.
    pub since_seconds: f64,
    /// Address of the store that is or was connected last.
    pub peer: Option<String>,
    /// `quic` or `tcp`, while up.
    pub transport: Option<String>,
    /// Round-trip time in milliseconds, while up.
    pub rtt_ms: Option<f64>,
    /// What is known of the path to the store, while up.
    #[serde(default)]
    pub path: Option<PathStatus>,
    /// Packets that were sent and count as lost, over all connections.
    pub lost_packets: u64,
    /// Bytes in them.
    #[serde(default)]
    pub lost_bytes: u64,
    /// Those that were lost while the queue was long.
    #[serde(default)]
    pub queue_lost_bytes: u64,
    /// Bytes sent in datagrams, over all connections.
    pub sent_bytes: u64,
    /// Bytes received in datagrams, over all connections.
    pub received_bytes: u64,
    /// Why the last connection or attempt ended.
    pub last_error: Option<String>,
    /// Connections after the first.
    pub reconnects: u64,
    /// Addresses that are tried.
    pub stores: Vec<String>,
    /// Small reads in datagrams, over all connections.
    pub datagrams: DatagramStatus,
    /// Connections begun with data.
    #[serde(default)]
    pub early: EarlyStatus,
}

/// Totals of connections that were begun with data (0-RTT), since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct EarlyStatus {
    /// Begun with data.
    pub offered: u64,
    /// Of them answered by a store that took it.
    pub accepted: u64,
    /// Of them answered by a store that did not: the data was sent again.
    pub rejected: u64,
}

/// Totals of what went by datagram instead of by stream, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DatagramStatus {
    /// Requests.
    pub requests: u64,
    /// Requests sent again because something was lost or late.
    pub repeats: u64,
    /// Replies of which a lost part was made from the parity.
    pub recovered: u64,
    /// Requests that went by stream after all.
    pub by_stream: u64,
    /// Bytes of requests and replies that were needed, with packet headers.
    pub useful_bytes: u64,
    /// Bytes of second copies, of parity that was not needed, and of what came twice.
    pub redundant_bytes: u64,
}

impl DatagramStatus {
    fn add(&mut self, counters: &AskCounters) {
        self.requests += counters.requests;
        self.repeats += counters.repeats;
        self.recovered += counters.recovered;
        self.by_stream += counters.by_stream;
        self.useful_bytes += counters.useful_bytes;
        self.redundant_bytes += counters.redundant_bytes;
    }
}

/// A link to a store. Cheap to clone; all clones are the same link.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    senders: Mutex<Option<Senders>>,
    state: Mutex<State>,
    drain_urgent: watch::Sender<bool>,
    closing: watch::Sender<bool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct State {
    connection: Option<Arc<dyn Connection>>,
    /// Lone requests of the connection, and of those that are over.
    lone: Arc<Mutex<AskCounters>>,
    past_lone: DatagramStatus,
    since: Instant,
    peer: Option<String>,
    /// Of the connections that are over.
    past: Statistics,
    last_error: Option<String>,
    connections: u64,
    stores: Vec<String>,
    early: Arc<EarlyCounters>,
}

impl State {
    fn learn(&mut self, greeting: &Greeting) {
        for store in &greeting.stores {
            if !self.stores.contains(store) {
                self.stores.push(store.clone());
            }
        }
    }
}

impl Client {
    /// Starts connecting to the store of a credential, or to the one at `store`.
    ///
    /// # Errors
    /// If the credential cannot be used or the thread not be started. That the store cannot be
    /// reached is no error: it is tried until it can.
    pub fn start(
        credential: Credential,
        store: Option<String>,
        transport: Transport,
    ) -> Result<(Client, UnboundedReceiver<LinkEvent>)> {
        let mut dialer = Dialer::new(&credential, transport)?;
        dialer.remember();
        Client::start_with(dialer, credential, store)
    }

    pub(super) fn start_with(
        dialer: Dialer,
        credential: Credential,
        store: Option<String>,
    ) -> Result<(Client, UnboundedReceiver<LinkEvent>)> {
        let fixed = store.is_some();
        let stores = store.map_or(credential.stores, |store| vec![store]);
        let (events, receiver) = unbounded_channel();
        let inner = Arc::new(Inner {
            senders: Mutex::new(None),
            state: Mutex::new(State {
                connection: None,
                lone: Arc::default(),
                past_lone: DatagramStatus::default(),
                since: Instant::now(),
                peer: None,
                past: Statistics::default(),
                last_error: None,
                connections: 0,
                stores,
                early: dialer.early(),
            }),
            drain_urgent: watch::Sender::new(false),
            closing: watch::Sender::new(false),
            thread: Mutex::new(None),
        });
        let shared = inner.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::Builder::new()
            .name("link".into())
            .spawn(move || runtime.block_on(run(shared, dialer, events, fixed)))
            .context("cannot start the link's thread")?;
        *lock(&inner.thread) = Some(thread);
        Ok((Client { inner }, receiver))
    }

    /// Queues a frame; drops it while the link is down.
    pub fn send(&self, lane: Lane, frame: Frame<ToStore>) {
        if let Some(senders) = &*lock(&self.inner.senders) {
            // Fails only in the moment in which the connection ends.
            let _ = senders[lane as usize].send(frame);
        }
    }

    /// While set the drain lane is as urgent as the control lane.
    pub fn set_drain_urgent(&self, urgent: bool) {
        self.inner.drain_urgent.send_if_modified(|now| std::mem::replace(now, urgent) != urgent);
    }

    /// How the link is doing.
    pub fn status(&self) -> LinkStatus {
        let state = lock(&self.inner.state);
        let now = state.connection.as_ref().map(|connection| connection.statistics());
        let current = now.unwrap_or_default();
        let mut datagrams = state.past_lone;
        datagrams.add(&lock(&state.lone));
        let [offered, accepted, rejected] =
            [&state.early.offered, &state.early.accepted, &state.early.rejected]
                .map(|counter| counter.load(Ordering::Relaxed));
        LinkStatus {
            early: EarlyStatus { offered, accepted, rejected },
            up: now.is_some(),
            since_seconds: state.since.elapsed().as_secs_f64(),
            peer: state.peer.clone(),
            transport: state.connection.as_ref().map(|now| now.transport().to_owned()),
            rtt_ms: now.map(|now| now.rtt.as_secs_f64() * 1e3),
            path: now.map(|now| now.path.into()),
            lost_packets: state.past.lost_packets + current.lost_packets,
            lost_bytes: state.past.lost_bytes + current.lost_bytes,
            queue_lost_bytes: state.past.path.queue_lost_bytes + current.path.queue_lost_bytes,
            sent_bytes: state.past.sent_bytes + current.sent_bytes,
            received_bytes: state.past.received_bytes + current.received_bytes,
            last_error: state.last_error.clone(),
            reconnects: state.connections.saturating_sub(1),
            stores: state.stores.clone(),
            datagrams,
        }
    }

    /// Sends what is queued, as far as that takes no longer than two seconds, closes the connection
    /// and waits for the link's thread. Not to be called from that thread.
    pub fn close(&self) {
        self.inner.closing.send_replace(true);
        if let Some(thread) = lock(&self.inner.thread).take() {
            // It can only have panicked, and then there is nothing left to close.
            let _ = thread.join();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.closing.send_replace(true);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn run(
    inner: Arc<Inner>,
    mut dialer: Dialer,
    events: UnboundedSender<LinkEvent>,
    fixed: bool,
) {
    let mut closing = inner.closing.subscribe();
    let mut pause = BACK_OFF.0;
    let mut known: Option<Known> = None;
    // Others have their turn after the one that data goes to has not answered.
    let mut others = false;
    while !*closing.borrow() {
        let mut stores = lock(&inner.state).stores.clone();
        let may_be_early = |known: &&Known| {
            known.greeting.version >= BEHIND_VERSION && dialer.may_be_early(known.socket)
        };
        let early = known.as_ref().filter(may_be_early).filter(|_| !others);
        others = early.is_some() && stores.len() > 1;
        let opening = Opening::new(early.is_some());
        let is_early = opening.early;
        if let Some(Known { address, greeting, .. }) = early {
            stores = vec![address.clone()];
            *lock(&inner.senders) = Some(opening.senders.clone());
            if events.send(LinkEvent::Early { version: greeting.version }).is_err() {
                break;
            }
        }
        let connected = tokio::select! {
            _ = closing.wait_for(|closing| *closing) => break,
            connected = connect::connect(&mut dialer, &stores, known.as_ref(), opening) => connected,
        };
        if is_early && connected.is_err() {
            *lock(&inner.senders) = None;
        }
        match connected {
            Ok(established) => {
                others = false;
                let begun = Instant::now();
                if events.is_closed() {
                    break;
                }
                match session(&inner, &mut dialer, established, &events, fixed).await {
                    Ended::Closed => break,
                    Ended::Lost(store) => known = store,
                }
                if begun.elapsed() > Duration::from_secs(1) {
                    pause = BACK_OFF.0;
                }
            }
            Err(errors) => {
                let reason = connect::describe(&errors);
                let mut state = lock(&inner.state);
                if state.last_error.as_ref() != Some(&reason) {
                    tracing::warn!("no link: {reason}; trying on");
                }
                state.last_error = Some(reason);
                drop(state);
                if events.send(LinkEvent::Unreachable).is_err() {
                    break;
                }
                if errors.iter().all(|(_, error)| *error == LinkError::TimedOut) {
                    pause = pause.min(SILENCE);
                }
                if errors.iter().any(|(_, error)| error.needs_operator()) {
                    pause = BACK_OFF.1;
                    known = None;
                }
            }
        }
        // Jitter keeps many hosts from coming back to a restarted store in step.
        let wait = pause.mul_f64(0.5 + fastrand::f64() / 2.0);
        let _ = tokio::time::timeout(wait, closing.wait_for(|closing| *closing)).await;
        pause = (pause * 2).min(BACK_OFF.1);
    }
    *lock(&inner.senders) = None;
    dialer.wait_idle().await;
}

/// How a connection ended.
enum Ended {
    /// The link is to be closed.
    Closed,
    /// It is to be connected again; the store if it said Hello and nothing speaks against it.
    Lost(Option<Known>),
}

/// Serves one connection.
async fn session(
    inner: &Inner,
    dialer: &mut Dialer,
    established: connect::Established,
    events: &UnboundedSender<LinkEvent>,
    fixed: bool,
) -> Ended {
    let mut closing = inner.closing.subscribe();
    let greeting = established.greeting.clone();
    let peer = established.address.clone();
    let over = established.connection.transport();
    tracing::info!("link up: store at {peer} ({}) over {over}", established.software);
    let up = LinkEvent::Up {
        peer: peer.clone(),
        software: established.software.clone(),
        version: established.version,
    };
    {
        let mut state = lock(&inner.state);
        state.connection = Some(established.connection.clone());
        state.lone = established.lone.clone();
        state.since = Instant::now();
        state.connections += 1;
        state.peer = Some(peer.clone());
        if !fixed && let Some(greeting) = greeting.get() {
            state.learn(greeting);
        }
        // The one that answered is the first to be tried next time.
        if let Some(at) = state.stores.iter().position(|store| *store == peer) {
            state.stores[..=at].rotate_right(1);
        }
    }
    let (connection, senders, moving) = established.split();
    *lock(&inner.senders) = Some(senders);
    let mut open = events.send(up).is_ok();
    let deliver = {
        let events = events.clone();
        move |_, frame| events.send(LinkEvent::Frame(frame)).is_ok()
    };
    let urgent = inner.drain_urgent.subscribe();
    let mut pump = std::pin::pin!(connect::pump(connection.clone(), moving, urgent, deliver));
    let ended = tokio::select! {
        ended = &mut pump => Some(ended),
        _ = closing.wait_for(|closing| *closing) => None,
        () = dialer.wait_for_quic(&*connection) => {
            connection.close(super::CloseCode::Done, "UDP gets through again");
            Some(Err(LinkError::Closed("UDP gets through again, changing to QUIC".into())))
        }
    };
    *lock(&inner.senders) = None;
    let closed = ended.is_none();
    let doubtful = match &ended {
        Some(Err(error)) => error.needs_operator() || matches!(error, LinkError::Protocol(_)),
        _ => false,
    };
    let reason = match ended {
        None => {
            connect::flushed(pump).await;
            connection.close(super::CloseCode::Done, "done");
            "closed".to_owned()
        }
        Some(Ok(())) => "nobody listens any more".to_owned(),
        Some(Err(error)) => error.to_string(),
    };
    if !closed {
        tracing::warn!("link down: store at {peer}: {reason}");
    }
    {
        let mut state = lock(&inner.state);
        let last = connection.statistics();
        state.connection = None;
        state.since = Instant::now();
        let lone = std::mem::take(&mut state.lone);
        state.past_lone.add(&lock(&lone));
        state.past.lost_packets += last.lost_packets;
        state.past.lost_bytes += last.lost_bytes;
        state.past.path.queue_lost_bytes += last.path.queue_lost_bytes;
        state.past.sent_bytes += last.sent_bytes;
        state.past.received_bytes += last.received_bytes;
        state.last_error = Some(reason.clone());
        if !fixed && let Some(greeting) = greeting.get() {
            state.learn(greeting);
        }
    }
    open &= events.send(LinkEvent::Down { reason }).is_ok();
    if closed || !open {
        return Ended::Closed;
    }
    let socket = connection.peer();
    let greeting = greeting.get().filter(|_| !doubtful).cloned();
    Ended::Lost(greeting.map(|greeting| Known { address: peer, socket, greeting }))
}
