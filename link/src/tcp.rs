//! TLS over TCP as the link's transport, for networks without UDP.
//!
//! A link is several TCP connections, one or more for each lane, so that a lost packet stalls only
//! one of them. The host draws a token. Each connection begins with the token, its lane and its
//! number. The store joins the connections that have the same token and the same certificate. Then
//! each carries chunks with a header of four bytes (length and kind). The data chunks of a lane
//! travel on its connections in turn.
//!
//! Priorities have a limited effect. The queue in the kernel is short, and a chunk waits a while
//! for those of more urgent lanes. But TCP decides how the connections share the line.

mod accept;
mod stream;
mod visit;

pub use accept::{Acceptor, Visitor, cannot_listen};
pub use stream::client_error;
pub use visit::{Visit, visit};

use super::error::{CloseCode, LinkError};
use super::tls;
use super::transport::{Connection, LaneStreams, Lanes, ReceiveStream, SendStream, Statistics};
use super::transport::{lane_number, priority};
use crate::credential::Credential;
use anyhow::Result;
use async_trait::async_trait;
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use longhaul_core::wire::link::{Lane, Principal};
use socket2::SockRef;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use stream::{ALPN, Stream, principal, secured};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

/// Bytes of a data chunk at most.
const CHUNK_BYTES: usize = 16 << 10;
/// Data chunks between a lane and each of its connections, either way.
const QUEUED_CHUNKS: usize = 2;
/// How long a chunk waits for more urgent lanes at most: what they have may be what the peer does
/// not take.
const YIELD_TIME: Duration = Duration::from_millis(20);
/// How long closing may take, and how long a connection that ends without a reason waits for the
/// control lane's to say one.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// The same for the control lane: TLS reports its error on every connection.
const REASON_TIMEOUT: Duration = Duration::from_millis(300);

const OPENING_BYTES: usize = 20;
type Token = [u8; 16];

const DATA: u8 = 0;
/// Code (u32 LE) and reason; on the control lane's connection.
const CLOSE: u8 = 1;
/// No more data on this connection.
const END: u8 = 2;
/// The receiver has taken all data before the peer's `END`.
const ENDED: u8 = 3;
const HEADER_BYTES: usize = 4;
/// Bytes of a chunk that is not data.
const MAX_OTHER_BYTES: usize = 1024;

/// Connections of a lane.
fn connections(lane: Lane) -> usize {
    match lane {
        Lane::Read => 2,
        Lane::Control => 1,
        Lane::ReadAhead | Lane::Drain => 4,
    }
}

/// Whether the store may leave a lane unread for as long as it takes.
///
/// To Linux a window that stays shut is as a peer that acknowledges nothing: `TCP_USER_TIMEOUT`
/// ends the connection (`tcp_probe_timer`). That the peer is dead the connections of the other
/// lanes notice.
fn may_stay_unread(lane: Lane) -> bool {
    matches!(lane, Lane::ReadAhead | Lane::Drain)
}

fn opening(lane: Lane, number: usize, token: &Token) -> [u8; OPENING_BYTES] {
    let mut opening = [0; OPENING_BYTES];
    opening[..4].copy_from_slice(&[b'L', b'H', lane_number(lane), number as u8]);
    opening[4..].copy_from_slice(token);
    opening
}

fn header(kind: u8, bytes: usize) -> u32 {
    u32::from(kind) << 24 | bytes as u32
}

/// The host's end.
pub struct Dialer {
    connector: TlsConnector,
}

impl Dialer {
    /// Speaks with this credential.
    ///
    /// # Errors
    /// If key and certificate do not make a credential.
    pub fn new(credential: &Credential) -> Result<Dialer> {
        let config = tls::client(credential, &[ALPN])?;
        Ok(Dialer { connector: TlsConnector::from(Arc::new(config)) })
    }

    /// Connects to an address.
    ///
    /// # Errors
    /// If nobody answers there, or not the store of the credential.
    pub async fn connect(&self, address: SocketAddr) -> Result<Box<dyn Connection>, LinkError> {
        let token = longhaul_base::random::identity()
            .map_err(|error| LinkError::Lost(error.to_string()))?;
        let token: Token = token.to_le_bytes();
        let mut attempts = JoinSet::new();
        for lane in Lane::ALL {
            for number in 0..connections(lane) {
                let (connector, first) = (self.connector.clone(), opening(lane, number, &token));
                attempts.spawn(async move {
                    let opened = open(&connector, address, lane, first).await;
                    opened.map(|(stream, rtt)| (lane, number, stream, rtt))
                });
            }
        }
        let mut slots = Slots::default();
        while let Some(opened) = attempts.join_next().await {
            let opened = opened.map_err(|error| LinkError::Lost(error.to_string()))?;
            let (lane, number, stream, rtt) = opened?;
            if lane == Lane::Control {
                slots.rtt = rtt;
            }
            slots.put(lane, number, stream);
        }
        Ok(Box::new(Tcp::new(address, slots, client_error)))
    }
}

async fn open(
    connector: &TlsConnector,
    address: SocketAddr,
    lane: Lane,
    opening: [u8; OPENING_BYTES],
) -> Result<(Stream, Duration), LinkError> {
    let (mut stream, rtt) = secured(connector, address, || {}).await?;
    if may_stay_unread(lane) {
        let untimed = SockRef::from(stream.get_ref().0).set_tcp_user_timeout(None);
        untimed.map_err(|error| LinkError::Lost(error.to_string()))?;
    }
    stream.write_all(&opening).await.map_err(|error| client_error(&error))?;
    stream.flush().await.map_err(|error| client_error(&error))?;
    Ok((stream, rtt))
}

/// The connections of a link, as far as they are there.
#[derive(Default)]
struct Slots {
    streams: HashMap<(u8, usize), Stream>,
    rtt: Duration,
}

impl Slots {
    /// False if the place does not exist or is in use.
    fn put(&mut self, lane: Lane, number: usize, stream: Stream) -> bool {
        let free =
            number < connections(lane) && !self.streams.contains_key(&(lane_number(lane), number));
        if free {
            self.streams.insert((lane_number(lane), number), stream);
        }
        free
    }

    fn are_full(&self) -> bool {
        self.streams.len() == Lane::ALL.into_iter().map(connections).sum::<usize>()
    }

    fn take(&mut self, lane: Lane) -> Vec<Stream> {
        let numbers = 0..connections(lane);
        numbers.filter_map(|number| self.streams.remove(&(lane_number(lane), number))).collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Tcp {
    peer: SocketAddr,
    principal: Option<Principal>,
    rtt: Duration,
    slots: Mutex<Slots>,
    shared: Arc<Shared>,
    /// Into the control lane's connection, apart from its data.
    control: Mutex<Option<mpsc::UnboundedSender<Other>>>,
}

/// A chunk that is not data.
struct Other {
    kind: u8,
    bytes: Vec<u8>,
}

struct Shared {
    /// Why it is over.
    over: watch::Sender<Option<LinkError>>,
    error: fn(&io::Error) -> LinkError,
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
    /// Lanes that wait for room, by priority from 0.
    waiting: [AtomicUsize; 4],
}

impl Shared {
    fn end(&self, error: LinkError) {
        self.over.send_if_modified(|over| {
            let first = over.is_none();
            if first {
                *over = Some(error);
            }
            first
        });
    }

    fn ended(&self) -> LinkError {
        let over = self.over.borrow().clone();
        over.unwrap_or_else(|| LinkError::Lost("a connection ended".into()))
    }

    async fn wait_end(&self) -> LinkError {
        let mut over = self.over.subscribe();
        let _ = over.wait_for(Option::is_some).await;
        self.ended()
    }
}

impl Tcp {
    fn new(peer: SocketAddr, slots: Slots, error: fn(&io::Error) -> LinkError) -> Tcp {
        let principal = slots.streams.values().next().and_then(principal);
        Tcp {
            peer,
            principal,
            rtt: slots.rtt,
            slots: Mutex::new(slots),
            shared: Arc::new(Shared {
                over: watch::Sender::new(None),
                error,
                sent_bytes: AtomicU64::new(0),
                received_bytes: AtomicU64::new(0),
                waiting: Default::default(),
            }),
            control: Mutex::new(None),
        }
    }

    fn lanes(&self) -> Result<Lanes, LinkError> {
        let mut lanes = Vec::with_capacity(Lane::ALL.len());
        for lane in Lane::ALL {
            // Why the link ends comes over the control lane's connection.
            let reason_timeout = match lane {
                Lane::Control => REASON_TIMEOUT,
                _ => CLOSE_TIMEOUT,
            };
            let (mut send, mut receive) = (Vec::new(), Vec::new());
            for stream in lock(&self.slots).take(lane) {
                let (data, to_send) = mpsc::channel(QUEUED_CHUNKS);
                let (other, others) = mpsc::unbounded_channel();
                let (arrived, received) = mpsc::channel(QUEUED_CHUNKS);
                let (ended, end_taken) = watch::channel(false);
                let (read, write) = tokio::io::split(stream);
                if lane == Lane::Control {
                    *lock(&self.control) = Some(other.clone());
                }
                let shared = self.shared.clone();
                tokio::spawn(async move {
                    tokio::select! {
                        result = write_all(write, to_send, others, &shared) => match result {
                            Ok(()) => {}
                            Err(error) => {
                                // The peer may have said why before it hung up.
                                tokio::time::sleep(reason_timeout).await;
                                shared.end((shared.error)(&error));
                            }
                        },
                        _ = shared.wait_end() => {}
                    }
                });
                let (shared, acknowledge) = (self.shared.clone(), other.clone());
                tokio::spawn(async move {
                    tokio::select! {
                        result = read_all(read, arrived, acknowledge, ended, &shared) => {
                            if let Err(error) = result {
                                // Another connection may know better.
                                if let LinkError::Lost(_) = error {
                                    tokio::time::sleep(reason_timeout).await;
                                }
                                shared.end(error);
                            }
                        }
                        _ = shared.wait_end() => {}
                    }
                });
                send.push(Outgoing { data, other, end_taken });
                receive.push(received);
            }
            let (priority, shared) = (AtomicI32::new(priority(lane, false)), self.shared.clone());
            lanes.push(LaneStreams {
                send: Box::new(Sending { connections: send, at: 0, priority, shared }),
                receive: Box::new(Receiving {
                    connections: receive,
                    at: 0,
                    ended: false,
                    shared: self.shared.clone(),
                }),
            });
        }
        lanes.try_into().map_err(|_| LinkError::Protocol("not all lanes were opened".into()))
    }
}

#[async_trait]
impl Connection for Tcp {
    async fn open_lanes(&self) -> Result<Lanes, LinkError> {
        self.lanes()
    }

    async fn accept_lanes(&self) -> Result<Lanes, LinkError> {
        self.lanes()
    }

    fn transport(&self) -> &'static str {
        "tcp"
    }

    fn peer(&self) -> SocketAddr {
        self.peer
    }

    fn principal(&self) -> Option<Principal> {
        self.principal.clone()
    }

    fn statistics(&self) -> Statistics {
        Statistics {
            rtt: self.rtt,
            sent_bytes: self.shared.sent_bytes.load(Ordering::Relaxed),
            received_bytes: self.shared.received_bytes.load(Ordering::Relaxed),
            ..Statistics::default()
        }
    }

    fn close(&self, code: CloseCode, reason: &str) {
        let mut bytes = code.number().to_le_bytes().to_vec();
        let mut length = reason.len().min(MAX_OTHER_BYTES - bytes.len());
        while !reason.is_char_boundary(length) {
            length -= 1;
        }
        bytes.extend_from_slice(&reason.as_bytes()[..length]);
        let told = lock(&self.control)
            .take()
            .is_some_and(|control| control.send(Other { kind: CLOSE, bytes }).is_ok());
        let shared = self.shared.clone();
        if told {
            tokio::spawn(async move {
                // The writer ends it as soon as it has told the peer.
                let _ = tokio::time::timeout(CLOSE_TIMEOUT, shared.wait_end()).await;
                shared.end(LinkError::Closed("by ourselves".into()));
            });
        } else {
            shared.end(LinkError::Closed("by ourselves".into()));
        }
    }

    async fn closed(&self) -> LinkError {
        self.shared.wait_end().await
    }
}

impl Drop for Tcp {
    fn drop(&mut self) {
        // A connection that closes ends by itself once it has told the peer.
        if lock(&self.control).is_some() || !lock(&self.slots).streams.is_empty() {
            self.shared.end(LinkError::Closed("by ourselves".into()));
        }
    }
}

/// Sends the queued chunks; returns when all senders of the queue are gone.
async fn write_all(
    mut stream: impl AsyncWrite + Unpin,
    mut data: mpsc::Receiver<Bytes>,
    mut others: mpsc::UnboundedReceiver<Other>,
    shared: &Shared,
) -> io::Result<()> {
    let mut out = BytesMut::with_capacity(CHUNK_BYTES + MAX_OTHER_BYTES);
    let mut open = true;
    loop {
        let other = tokio::select! {
            biased;
            // Queued data goes before the end of the data.
            chunk = data.recv(), if open => match chunk {
                Some(chunk) => {
                    out.put_u32_le(header(DATA, chunk.len()));
                    out.put(chunk);
                    None
                }
                None => {
                    open = false;
                    continue;
                }
            },
            other = others.recv() => match other {
                Some(other) => Some(other),
                None => return stream.shutdown().await,
            },
        };
        if let Some(Other { kind, bytes }) = &other {
            out.put_u32_le(header(*kind, bytes.len()));
            out.put_slice(bytes);
        }
        stream.write_all(&out).await?;
        stream.flush().await?;
        shared.sent_bytes.fetch_add(out.len() as u64, Ordering::Relaxed);
        out.clear();
        if other.is_some_and(|other| other.kind == CLOSE) {
            stream.shutdown().await?;
            shared.end(LinkError::Closed("by ourselves".into()));
            return Ok(());
        }
    }
}

/// Takes chunks until the link is over.
async fn read_all(
    mut stream: impl AsyncRead + Unpin,
    arrived: mpsc::Sender<Bytes>,
    acknowledge: mpsc::UnboundedSender<Other>,
    ended: watch::Sender<bool>,
    shared: &Shared,
) -> Result<(), LinkError> {
    let mut arrived = Some(arrived);
    loop {
        let mut first = [0; HEADER_BYTES];
        let read = stream.read_exact(&mut first).await;
        read.map_err(|error| (shared.error)(&error))?;
        let first = u32::from_le_bytes(first);
        let (kind, bytes) = ((first >> 24) as u8, (first & 0xff_ffff) as usize);
        let most = if kind == DATA { CHUNK_BYTES } else { MAX_OTHER_BYTES };
        if bytes > most || kind == DATA && bytes == 0 {
            return Err(LinkError::Protocol(format!("a chunk of {bytes} bytes")));
        }
        let mut chunk = vec![0; bytes];
        stream.read_exact(&mut chunk).await.map_err(|error| (shared.error)(&error))?;
        shared.received_bytes.fetch_add((bytes + HEADER_BYTES) as u64, Ordering::Relaxed);
        match kind {
            DATA => {
                let Some(arrived) = &arrived else {
                    return Err(LinkError::Protocol("data after the end".into()));
                };
                // Fails only once nobody reads the lane any more.
                let _ = arrived.send(chunk.into()).await;
            }
            CLOSE => {
                let mut chunk = &chunk[..];
                let code = chunk.try_get_u32_le().unwrap_or_default();
                let reason = longhaul_base::text::bounded(&String::from_utf8_lossy(chunk));
                return Err(if code == CloseCode::Revoked.number() {
                    LinkError::Revoked
                } else {
                    LinkError::Closed(reason)
                });
            }
            END => {
                // Nothing is the end; that nothing comes any more is the end of the connection.
                if let Some(arrived) = arrived.take() {
                    let _ = arrived.send(Bytes::new()).await;
                }
                let _ = acknowledge.send(Other { kind: ENDED, bytes: Vec::new() });
            }
            ENDED => {
                ended.send_replace(true);
            }
            _ => return Err(LinkError::Protocol(format!("a chunk of kind {kind}"))),
        }
    }
}

/// To one connection's writer.
struct Outgoing {
    data: mpsc::Sender<Bytes>,
    other: mpsc::UnboundedSender<Other>,
    end_taken: watch::Receiver<bool>,
}

/// The sending half of a lane.
struct Sending {
    connections: Vec<Outgoing>,
    at: usize,
    priority: AtomicI32,
    shared: Arc<Shared>,
}

/// Counts a lane as waiting while it lives.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Sending {
    /// Gives more urgent lanes that wait for room a while.
    async fn give_way(&self) {
        let priority = usize::try_from(self.priority.load(Ordering::Relaxed)).unwrap_or(0);
        let more_urgent = || {
            let above = self.shared.waiting.get(priority + 1..).unwrap_or_default();
            above.iter().any(|waiting| waiting.load(Ordering::Relaxed) > 0)
        };
        let mut waited = Duration::ZERO;
        while waited < YIELD_TIME && more_urgent() {
            let pause = Duration::from_millis(1);
            tokio::time::sleep(pause).await;
            waited += pause;
        }
    }
}

#[async_trait]
impl SendStream for Sending {
    async fn write(&mut self, chunks: &mut [Bytes]) -> Result<usize, LinkError> {
        let Some(first) = chunks.first_mut() else { return Ok(0) };
        if first.is_empty() {
            return Ok(1);
        }
        self.give_way().await;
        let level = usize::try_from(self.priority.load(Ordering::Relaxed)).unwrap_or(0);
        let waiting = &self.shared.waiting[level.min(self.shared.waiting.len() - 1)];
        waiting.fetch_add(1, Ordering::Relaxed);
        let waiting = Waiting(waiting);
        let room = self.connections[self.at].data.reserve().await;
        drop(waiting);
        let Ok(room) = room else { return Err(self.shared.ended()) };
        room.send(first.split_to(first.len().min(CHUNK_BYTES)));
        self.at = (self.at + 1) % self.connections.len();
        Ok(usize::from(first.is_empty()))
    }

    fn set_priority(&self, priority: i32) {
        self.priority.store(priority, Ordering::Relaxed);
    }

    async fn finish(&mut self) -> Result<(), LinkError> {
        for connection in &mut self.connections {
            // The writer takes data before other chunks, so this comes after all of it.
            let _ = connection.other.send(Other { kind: END, bytes: Vec::new() });
        }
        for connection in &mut self.connections {
            // Fails only once the connection is over.
            let _ = connection.end_taken.wait_for(|taken| *taken).await;
        }
        Ok(())
    }
}

/// The receiving half of a lane.
struct Receiving {
    connections: Vec<mpsc::Receiver<Bytes>>,
    at: usize,
    ended: bool,
    shared: Arc<Shared>,
}

#[async_trait]
impl ReceiveStream for Receiving {
    async fn read(&mut self, chunks: &mut [Bytes]) -> Result<usize, LinkError> {
        let mut filled = 0;
        if self.ended {
            return Ok(0);
        }
        while let Some(slot) = chunks.get_mut(filled) {
            let connection = &mut self.connections[self.at];
            // The receiver waits only for the first.
            let chunk = match filled {
                0 => connection.recv().await,
                _ => match connection.try_recv() {
                    Ok(chunk) => Some(chunk),
                    Err(_) => break,
                },
            };
            match chunk {
                Some(chunk) if chunk.is_empty() => {
                    self.ended = true;
                    break;
                }
                Some(chunk) => *slot = chunk,
                None => return Err(self.shared.wait_end().await),
            }
            filled += 1;
            self.at = (self.at + 1) % self.connections.len();
        }
        Ok(filled)
    }
}
