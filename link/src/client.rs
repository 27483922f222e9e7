//! The host's side of the link: it reconnects by itself until its owner closes it.
//!
//! It runs in a thread of its own. Frames that the host sends without a connection are lost. After
//! [`LinkEvent::Up`] their sender sends again those that still matter.

use super::Transport;
use super::connect::{self, Known, Opening, Senders};
use super::dial::Dialer;
use super::elsewhere::{self, Elsewhere, Found};
use super::error::LinkError;
use super::quic::EarlyCounters;
use super::transport::{Connection, PathStatus, Statistics};
use crate::credential::Credential;
use anyhow::{Context as _, Result};
use longhaul_core::link::AskCounters;
use longhaul_core::wire::link::{Frame, Lane, ToHost, ToStore};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
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

/// An event for the host.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all are frames")]
pub enum LinkEvent {
    /// The store is connected and has said Hello. No earlier frame reaches it any more, except
    /// those since a [`LinkEvent::Early`] just before.
    Up {
        /// Address of the store, as configured or learned.
        peer: String,
        /// The store's name of its software.
        software: String,
        /// Version of the protocol on this connection.
        version: u16,
    },
    /// The link tries a store that was connected before. Frames of [`ToStore::EarlyRead`] now go
    /// to it without waiting for an answer. All other frames wait for [`LinkEvent::Up`]; after
    /// [`LinkEvent::Unreachable`] all of them are lost.
    Early,
    /// An attempt to connect came to nothing, [`Client::status`] says why; another one follows.
    Unreachable,
    /// The connection is over, and the link tries another one. For a connection that
    /// [`Client::close`] has ended the event does not come.
    Down {
        /// Why.
        reason: String,
    },
    /// A frame from the store.
    Frame(Frame<ToHost>),
    /// The present list of stores, which the host remembers.
    Stores(Vec<String>),
}

/// The link's state at a moment.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct LinkStatus {
    /// Whether a store is connected.
    pub up: bool,
    /// Seconds in this state.
    pub since_seconds: f64,
    /// Address of the present or the last connected store.
    pub peer: Option<String>,
    /// `quic` or `tcp`, while up.
    pub transport: Option<String>,
    /// Round-trip time in milliseconds, while up.
    pub rtt_ms: Option<f64>,
    /// The facts about the path to the store, while up.
    pub path: Option<PathStatus>,
    /// Packets that count as lost, over all connections.
    pub lost_packets: u64,
    /// Bytes in them.
    pub lost_bytes: u64,
    /// The lost ones of a time with a long queue.
    pub queue_lost_bytes: u64,
    /// Bytes sent in datagrams, over all connections.
    pub sent_bytes: u64,
    /// Bytes received in datagrams, over all connections.
    pub received_bytes: u64,
    /// Why the last connection or attempt ended.
    pub last_error: Option<String>,
    /// Connections after the first.
    pub reconnects: u64,
    /// Addresses that the link tries.
    pub stores: Vec<String>,
    /// Small reads in datagrams, over all connections.
    pub datagrams: DatagramStatus,
    /// Connections begun with data.
    pub early: EarlyStatus,
}

impl LinkStatus {
    /// Several links of one host, taken together. They are up if all are. The first that is down
    /// gives the state, or else the first of all. Totals are those of all.
    #[must_use]
    pub fn together(links: &[LinkStatus]) -> LinkStatus {
        let Some(shown) = links.iter().find(|link| !link.up).or(links.first()) else {
            return LinkStatus::default();
        };
        let sum = |total: fn(&LinkStatus) -> u64| links.iter().map(total).sum();
        LinkStatus {
            lost_packets: sum(|link| link.lost_packets),
            lost_bytes: sum(|link| link.lost_bytes),
            queue_lost_bytes: sum(|link| link.queue_lost_bytes),
            sent_bytes: sum(|link| link.sent_bytes),
            received_bytes: sum(|link| link.received_bytes),
            reconnects: sum(|link| link.reconnects),
            datagrams: DatagramStatus {
                requests: sum(|link| link.datagrams.requests),
                repeats: sum(|link| link.datagrams.repeats),
                recovered: sum(|link| link.datagrams.recovered),
                by_stream: sum(|link| link.datagrams.by_stream),
                useful_bytes: sum(|link| link.datagrams.useful_bytes),
                redundant_bytes: sum(|link| link.datagrams.redundant_bytes),
            },
            early: EarlyStatus {
                offered: sum(|link| link.early.offered),
                accepted: sum(|link| link.early.accepted),
                rejected: sum(|link| link.early.rejected),
            },
            ..shown.clone()
        }
    }
}

/// Totals of connections that began with data (0-RTT), since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct EarlyStatus {
    /// Begun with data.
    pub offered: u64,
    /// Of them answered by a store that took it.
    pub accepted: u64,
    /// Those to a store that answered and did not accept the data: the host sent it again.
    pub rejected: u64,
}

/// Totals of what went by datagram instead of by stream, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DatagramStatus {
    /// Requests.
    pub requests: u64,
    /// Requests that the host sent again after a loss or a delay.
    pub repeats: u64,
    /// Replies with a lost part that the host made from the parity.
    pub recovered: u64,
    /// Requests that went by stream after all.
    pub by_stream: u64,
    /// Bytes of necessary requests and replies, with packet headers.
    pub useful_bytes: u64,
    /// Bytes of second copies, of unneeded parity, and of parts that came twice.
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
    /// Requests in datagrams of the connection, and of earlier ones.
    datagrams: Arc<Mutex<AskCounters>>,
    past_datagrams: DatagramStatus,
    since: Instant,
    peer: Option<String>,
    /// Of the connections that are over.
    past: Statistics,
    last_error: Option<String>,
    connections: u64,
    /// Those to try, in order.
    stores: Vec<String>,
    /// The addresses from the caller, which the link never forgets.
    given: Vec<String>,
    early: Arc<EarlyCounters>,
}

impl State {
    /// A store has said which stores there are; returns whether that is new.
    fn learn(&mut self, said: &[String], all: bool) -> bool {
        let mut stores = said.to_vec();
        // A store that wants to be left names only the stores to go to.
        stores.extend(if all { self.given.clone() } else { self.stores.clone() });
        let mut seen = BTreeSet::new();
        stores.retain(|store| seen.insert(store.clone()));
        let new = seen != self.stores.iter().cloned().collect();
        self.stores = stores;
        new
    }
}

impl Client {
    /// Starts to connect to the store of a credential, or to the one at `store`.
    ///
    /// # Errors
    /// If the credential is unusable, or the process cannot start the thread. An unreachable store
    /// is no error: the link tries until it reaches one.
    pub fn start(
        credential: Credential,
        store: Option<String>,
        transport: Transport,
    ) -> Result<(Client, UnboundedReceiver<LinkEvent>)> {
        let mut dialer = Dialer::new(&credential, transport)?;
        dialer.remember(Arc::default());
        dialer.spread();
        Client::start_with(dialer, credential, store)
    }

    pub(super) fn start_with(
        dialer: Dialer,
        credential: Credential,
        store: Option<String>,
    ) -> Result<(Client, UnboundedReceiver<LinkEvent>)> {
        let fixed = store.is_some();
        let elsewhere = Elsewhere::new(credential.clone(), &dialer);
        let stores = store.map_or(credential.stores, |store| vec![store]);
        let (events, receiver) = unbounded_channel();
        let inner = Arc::new(Inner {
            senders: Mutex::new(None),
            state: Mutex::new(State {
                connection: None,
                datagrams: Arc::default(),
                past_datagrams: DatagramStatus::default(),
                since: Instant::now(),
                peer: None,
                past: Statistics::default(),
                last_error: None,
                connections: 0,
                given: stores.clone(),
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
            .spawn(move || runtime.block_on(run(shared, dialer, elsewhere, events, fixed)))
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
        let mut datagrams = state.past_datagrams;
        datagrams.add(&lock(&state.datagrams));
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

    /// Sends the queued frames for at most two seconds, closes the connection and waits for the
    /// link's thread. Not for calls from that thread.
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
    elsewhere: Elsewhere,
    events: UnboundedSender<LinkEvent>,
    fixed: bool,
) {
    let mut closing = inner.closing.subscribe();
    let mut pause = BACK_OFF.0;
    let mut known: Option<Known> = None;
    // Others have their turn after the store that data goes to has been out of reach at once.
    let mut others = false;
    let mut next = None;
    while !*closing.borrow() {
        let stores = lock(&inner.state).stores.clone();
        let may_be_early = |known: &&Known| dialer.may_be_early(known.socket);
        let early = known.as_ref().filter(may_be_early).filter(|_| next.is_none() && !others);
        let opening = Opening::new(early.is_some());
        let is_early = opening.early;
        if is_early {
            *lock(&inner.senders) = Some(opening.senders.clone());
            if events.send(LinkEvent::Early).is_err() {
                break;
            }
        }
        let begun = Instant::now();
        let connected = match next.take() {
            Some((other, established)) => Ok((Some(other), established)),
            None => tokio::select! {
                _ = closing.wait_for(|closing| *closing) => break,
                connected = elsewhere.first(&mut dialer, &stores, known.as_ref(), opening) => connected,
            },
        };
        others = is_early && connected.is_err() && begun.elapsed() < elsewhere::HEAD_START;
        if is_early && connected.is_err() {
            *lock(&inner.senders) = None;
        }
        match connected {
            Ok((other, established)) => {
                if let Some(other) = other {
                    dialer = other;
                    // Frames in the queue for the remembered store are lost.
                    if is_early && events.send(LinkEvent::Unreachable).is_err() {
                        break;
                    }
                }
                let begun = Instant::now();
                if events.is_closed() {
                    break;
                }
                let elsewhere = Some(&elsewhere).filter(|_| !fixed);
                match session(&inner, &mut dialer, elsewhere, established, &events).await {
                    Ended::Closed => break,
                    Ended::Lost(store) => known = store,
                    Ended::Moved(found) => {
                        next = Some(*found);
                        pause = BACK_OFF.0;
                        continue;
                    }
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
    /// The owner closes the link.
    Closed,
    /// The link has to connect again. Has the store, if it said Hello and nothing speaks against
    /// it.
    Lost(Option<Known>),
    /// Another store is connected already.
    Moved(Box<Found>),
}

/// Serves one connection.
async fn session(
    inner: &Arc<Inner>,
    dialer: &mut Dialer,
    elsewhere: Option<&Elsewhere>,
    established: connect::Established,
    events: &UnboundedSender<LinkEvent>,
) -> Ended {
    let fixed = elsewhere.is_none();
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
    let mut learned = None;
    // The store's Hello has its list of stores. If the link does not wait for the Hello, it learns
    // the list at the end of the connection. A newer list from the store goes first.
    let heard = Arc::new(AtomicBool::new(greeting.get().is_some()));
    {
        let mut state = lock(&inner.state);
        state.connection = Some(established.connection.clone());
        state.datagrams = established.datagrams.clone();
        state.since = Instant::now();
        state.connections += 1;
        state.peer = Some(peer.clone());
        if !fixed && let Some(greeting) = greeting.get() {
            learned = state.learn(&greeting.stores, true).then(|| state.stores.clone());
        }
        // The store that answered is the first to try next time.
        if let Some(at) = state.stores.iter().position(|store| *store == peer) {
            state.stores[..=at].rotate_right(1);
        }
    }
    let (connection, senders, moving) = established.split();
    *lock(&inner.senders) = Some(senders);
    let mut open = events.send(up).is_ok();
    if let Some(stores) = learned {
        open &= events.send(LinkEvent::Stores(stores)).is_ok();
    }
    // The store wants the host to go to one of these.
    let (told, leave) = watch::channel(Vec::new());
    let deliver = {
        let (events, inner, told) = (events.clone(), inner.clone(), Arc::new(told));
        let heard = heard.clone();
        move |_, frame: Frame<ToHost>| match &frame.message {
            ToHost::Stores { stores, leave } if !fixed => {
                heard.store(true, Ordering::Relaxed);
                let mut state = lock(&inner.state);
                let new = state.learn(stores, !*leave).then(|| state.stores.clone());
                drop(state);
                if *leave {
                    told.send_replace(stores.clone());
                }
                new.is_none_or(|stores| events.send(LinkEvent::Stores(stores)).is_ok())
            }
            _ => events.send(LinkEvent::Frame(frame)).is_ok(),
        }
    };
    let others = || {
        let mut stores = lock(&inner.state).stores.clone();
        stores.retain(|store| *store != peer);
        stores
    };
    let moved = async {
        match elsewhere {
            Some(elsewhere) => elsewhere.instead(&*connection, others, leave).await,
            None => std::future::pending().await,
        }
    };
    let mut next = None;
    let urgent = inner.drain_urgent.subscribe();
    let mut pump = std::pin::pin!(connect::pump(connection.clone(), moving, urgent, deliver));
    let ended = tokio::select! {
        ended = &mut pump => Some(ended),
        _ = closing.wait_for(|closing| *closing) => None,
        () = dialer.wait_for_quic(&*connection) => {
            connection.close(super::CloseCode::Done, "UDP gets through again");
            Some(Err(LinkError::Closed("UDP gets through again, changing to QUIC".into())))
        }
        found = moved => {
            connection.close(super::CloseCode::Done, "another store is gone to");
            let reason = format!("going to the store at {}", found.1.address);
            next = Some(Box::new(found));
            Some(Err(LinkError::Closed(reason)))
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
        Some(Ok(())) => "the host has closed the link".to_owned(),
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
        let datagrams = std::mem::take(&mut state.datagrams);
        state.past_datagrams.add(&lock(&datagrams));
        state.past.lost_packets += last.lost_packets;
        state.past.lost_bytes += last.lost_bytes;
        state.past.path.queue_lost_bytes += last.path.queue_lost_bytes;
        state.past.sent_bytes += last.sent_bytes;
        state.past.received_bytes += last.received_bytes;
        state.last_error = Some(reason.clone());
        if !fixed
            && next.is_none()
            && !heard.load(Ordering::Relaxed)
            && let Some(greeting) = greeting.get()
            && state.learn(&greeting.stores, true)
        {
            open &= events.send(LinkEvent::Stores(state.stores.clone())).is_ok();
        }
    }
    // The part that closed it knows.
    if closed {
        return Ended::Closed;
    }
    open &= events.send(LinkEvent::Down { reason }).is_ok();
    if !open {
        return Ended::Closed;
    }
    if let Some(found) = next {
        return Ended::Moved(found);
    }
    let socket = connection.peer();
    let greeting = greeting.get().filter(|_| !doubtful).cloned();
    Ended::Lost(greeting.map(|greeting| Known { address: peer, socket, greeting }))
}
